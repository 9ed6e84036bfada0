"""The device that is emulated."""

from __future__ import annotations

import os
import re

from fusebench.contract import Device

ARCH = "FUSEBENCH_EMULATE"  # names another architecture than Hopper: "sm_80"
CAPABILITIES = (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)  # which NVRTC compiles for and kernels know
MULTIPROCESSORS = 8  # few: grids that fill a device are small then
THREADS = 2048  # of a multiprocessor


def emulated() -> Device:
    """The device that implementations are asked about. Raises ValueError where the environment names none that is emulated."""
    arch = os.environ.get(ARCH) or "sm_90a"
    found = re.fullmatch(r"sm_(\d+)(\d)a?", arch)
    capability = (int(found[1]), int(found[2])) if found else None
    if capability not in CAPABILITIES:
        known = ", ".join(f"sm_{major}{minor}" for major, minor in CAPABILITIES)
        raise ValueError(f"{ARCH}={arch}: expected one of {known}")
    return Device("cuda", f"emulated {arch}", capability, MULTIPROCESSORS)
