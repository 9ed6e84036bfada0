"""The device that is emulated."""

from __future__ import annotations

import os
import re

from fusebench.contract import Device

ARCH = "FUSEBENCH_EMULATE"  # names another architecture than Hopper: "sm_80"
MULTIPROCESSORS = 8  # few: grids that fill a device are small then
THREADS = 2048  # of a multiprocessor


def emulated() -> Device:
    """The device that implementations are asked about. Raises ValueError where the environment names none."""
    arch = os.environ.get(ARCH) or "sm_90a"
    found = re.fullmatch(r"sm_(\d+)(\d)a?", arch)
    if found is None:
        raise ValueError(f"{ARCH}={arch}: expected an architecture such as sm_80 or sm_90a")
    return Device("cuda", f"emulated {arch}", (int(found[1]), int(found[2])), MULTIPROCESSORS)
