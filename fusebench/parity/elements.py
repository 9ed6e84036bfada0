"""Functions of each element that noise and budget are made of, on NumPy's arrays and on tensors, which do some in one pass over memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusebench.dtypes import FORMATS


def moved(value: Any, size: Any, noise: Any) -> Any:
    """value + size × noise, where the size is finite: an infinity stays what it is."""
    fused = getattr(value, "moved", None)  # tensors in one go
    return value + size * noise if fused is None else fused(size, noise)


def plus_product(total: Any, a: Any, b: Any) -> Any:
    """total + a @ b."""
    fused = getattr(total, "plus_product", None)  # tensors in one go
    return total + a @ b if fused is None or np.shape(a)[:-2] != np.shape(b)[:-2] else fused(a, b)


def centred(random: Any, shape: tuple[int, ...], shared: Any) -> Any:
    """Uniform in [-1/2, 1/2), and what all elements share."""
    fused = getattr(random, "centred", None)  # tensors in one go
    if fused is None:
        return random.random(shape, np.float32) + (shared - 0.5)
    noise = fused(shape, np.float32)
    return noise if isinstance(shared, float) and shared == 0.0 else noise + shared


def finite(value: Any) -> Any:
    """The value, 0 where it is not finite."""
    fused = getattr(value, "finite", None)  # tensors in one go
    return np.where(np.isfinite(value), value, 0.0) if fused is None else fused()


def spacing(values: Any, dtype: str, times: float = 1.0) -> Any:
    """The distance between neighbours of the dtype at each value (float64 in, float64 out), subnormals included, so many times; 0
    where the value is not finite, and for integers, which nothing rounds."""
    if dtype not in FORMATS:
        return 0.0 * values
    mantissa, smallest, _ = FORMATS[dtype]
    if getattr(values, "is_cuda", False):
        return values.spacing(times * 2.0**-mantissa, 2.0**smallest)
    power = _power(values)
    return np.where(power < np.inf, np.maximum(power, 2.0**smallest) * (times * 2.0**-mantissa), 0.0)


def _power(values: Any) -> Any:
    """The largest power of 2 that is at most |value|, infinite where the value is not finite."""
    if isinstance(values, np.ndarray | np.generic | float | int):
        bits = np.asarray(values, np.float64).view(np.int64) & 0x7FF0000000000000
        return bits.view(np.float64)
    return values.power()


def stored(values: Any, dtype: str) -> Any:
    """The values rounded to the nearest of the dtype, ties to even, in float64; past the largest they are infinite. Integers stay."""
    if dtype not in FORMATS:
        return values
    if getattr(values, "is_cuda", False):
        mantissa, smallest, highest = FORMATS[dtype]
        return values.stored(2.0**-mantissa, 2.0**smallest, highest)
    unit = spacing(values, dtype)
    with np.errstate(all="ignore"):
        rounded = np.where(np.isfinite(values), np.rint(values / unit) * unit, values)
        return np.where(np.abs(rounded) > FORMATS[dtype][2], np.copysign(np.inf, rounded), rounded)
