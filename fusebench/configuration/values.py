"""What a configuration's values mean on this machine: the device, the threads, how cells are timed."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from typing import Any

from fusebench import machine
from fusebench.emulator.device import emulated
from fusebench.errors import UsageError, unknown
from fusebench.settings import Settings
from fusebench.timing.plan import Plan
from fusebench.workers.cores import check_threads


def resolve_device(value: str) -> str:
    """`auto` becomes "cuda" where the driver sees a GPU, else "cpu". Raises UsageError for another name or a missing GPU."""
    if value not in ("auto", "cpu", "cuda"):
        raise unknown("device", value, ("auto", "cpu", "cuda"))
    if value == "cuda" and machine.gpu() is None:
        raise UsageError("device=cuda: no NVIDIA driver with a GPU answers here; device=cpu and device=auto work")
    return ("cuda" if machine.gpu() else "cpu") if value == "auto" else value


def settings(chosen: Mapping[str, Any]) -> Settings:
    """How the cells of a configuration are run on this machine. Raises UsageError where the device, a time, the threads or the
    plan of sampling cannot be had."""
    for key in ("time_s", "timeout_s", "compile_timeout_s"):
        if not 0 < chosen.get(key, 1) < math.inf:
            raise UsageError(f"{key} is {chosen[key]!r}: expected a number of seconds above 0")
    threads, device = check_threads(chosen["threads"]), resolve_device(chosen["device"])
    if device == "cpu":
        check_emulated()
    worker = chosen["worker"]
    for name, python in worker["python"].items():
        if python is not None and not shutil.which(python):  # else its worker would be waited for first
            raise UsageError(
                f"worker.python.{name}={python}: nothing there that can be run; expected a Python interpreter"
            )
    more = {"hard": chosen["inputs"] is None}
    more |= {} if chosen["rows_seed"] is None else {"rows_seed": chosen["rows_seed"]}
    return Settings(
        device,
        plan(chosen, device),
        chosen["timeout_s"],
        threads,
        worker["inline"],
        worker["python"],
        tuned=chosen.get("tuned", True),
        fits=chosen.get("fits", True),
        compile_timeout_s=chosen.get("compile_timeout_s"),
        **more,
    )


def check_emulated() -> None:
    """Raises UsageError where the environment names no device that can be emulated."""
    try:
        emulated()
    except ValueError as error:
        raise UsageError(str(error)) from error


def plan(chosen: Mapping[str, Any], device: str) -> Plan:
    """How the cells of a configuration are timed. Raises UsageError for a name or a number that cannot be, or not there."""
    if "time_s" not in chosen:
        return Plan(time_s=0)
    return Plan(chosen["time_s"], chosen["target"], chosen["regime"], chosen["cache"]).on(device)
