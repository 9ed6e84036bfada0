"""Persisting lines of a GPU's L2, by the driver: those that outlive the flushes between calls. Cards from compute capability 8.0 have
them. Torch and JAX share the device's primary context, so that one module does for both; it needs cuda-bindings.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

_raised = {"bytes": 0}  # the largest limit that was found since `forbid`


def forbid() -> None:
    """No line persists from now on, and `raised` counts anew."""
    reset()
    _raised["bytes"] = 0


def reset() -> None:
    """Makes persisting lines ordinary ones, and the limit of their size zero; what it was before is noted."""
    if (found := _context()) is None:
        return
    driver, context = found
    limit = driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
    driver.cuCtxPushCurrent(context)
    try:
        error, size = driver.cuCtxGetLimit(limit)
        if not int(error) and size:
            _raised["bytes"] = max(_raised["bytes"], int(size))
            driver.cuCtxSetLimit(limit, 0)
        driver.cuCtxResetPersistingL2Cache()
    finally:
        driver.cuCtxPopCurrent()


def raised() -> int | None:
    """The largest limit in bytes that a program has set since `forbid`, or None where the card or cuda-bindings cannot tell."""
    if _context() is None:
        return None
    reset()
    return _raised["bytes"]


@cache
def _context() -> tuple[Any, Any] | None:
    """The driver's functions and the first GPU's primary context; None where lines cannot persist, or nobody can ask."""
    try:
        from cuda.bindings import driver
    except ImportError:
        print(
            "cuda-bindings is missing: persisting lines of L2 are not reset (pip install cuda-bindings)",
            file=sys.stderr,
        )
        return None
    major = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    errors: list[Any] = [driver.cuInit(0)[0]]
    error, device = driver.cuDeviceGet(0)
    errors.append(error)
    error, capability = driver.cuDeviceGetAttribute(major, device)
    errors.append(error)
    if any(map(int, errors)) or capability < 8:
        return None
    error, context = driver.cuDevicePrimaryCtxRetain(device)
    return None if int(error) else (driver, context)
