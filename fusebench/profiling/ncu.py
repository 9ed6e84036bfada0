"""Nsight Compute's command line, ncu: which one there is, what it is asked, and why it reads no counters where it does not."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fusebench.backends.cuda import toolkits
from fusebench.errors import UsageError

NAME = "ncu"
ANSWER_S = 120.0  # for what needs no program under it
DRAM = ("dram__bytes_read.sum", "dram__bytes_write.sum")
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
# of which the first one that the device has is taken: names differ between generations
TENSOR = (
    # without HFMA2, by which tensor cores do what is no product
    "sm__pipe_tensor_type_hmma_hgmma_qgmma_imma_igmma_bmma_bgmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
)
STALL = re.compile(r"^smsp__average_warps_issue_stalled_(\w+)_per_issue_active$")
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "imc_miss", "lg_throttle", "long_scoreboard", "math_pipe_throttle",
    "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip
INSTALLED = Path("/opt/nvidia/nsight-compute")  # where its own packages put it
NO_PROFILER = "Failed to initialize the profiler"
FORBIDDEN = "ERR_NVGPUCTRPERM"
SAID = re.compile(r"^==(?:ERROR|WARNING)== *(.*)", re.M)


@dataclass(frozen=True)
class Ncu:
    """An ncu that runs: its path, its version, and the metrics that it is asked for."""

    path: str
    version: str
    metrics: tuple[str, ...]

    def command(self, report: Path, program: Sequence[str]) -> list[str]:
        """The command line that reads the counters of what the program runs between cuProfilerStart and cuProfilerStop. The clocks are
        left as they are; caches are flushed before each kernel and each pass."""
        return [
            self.path, "--profile-from-start", "off", "--target-processes", "application-only", "--clock-control", "none",
            "--metrics", ",".join(self.metrics), "--force-overwrite", "--export", str(report.with_suffix("")).replace("%", "%%"), *program,
        ]  # fmt: skip

    def listing(self, report: Path) -> str:
        """The report as CSV, in units without prefixes. Raises NoCounters where ncu does not read it."""
        done = _answer(
            self.path,
            "--import",
            str(report),
            "--csv",
            "--page",
            "raw",
            "--print-units",
            "base",
            "--print-kernel-base",
            "demangled",
        )
        if done.returncode:
            raise NoCounters(f"ncu does not read {report.name}: {' '.join(done.stdout.split())[:200]}")
        return done.stdout


class NoCounters(Exception):
    """Why there are no counters, in a line; `everywhere` where no other cell will have any."""

    def __init__(self, reason: str, everywhere: bool = False):
        super().__init__(reason)
        self.everywhere = everywhere


def find(given: str | None) -> Ncu:
    """The ncu at the path that was given, on PATH, or in a CUDA toolkit. Raises UsageError where the path is none of a program, and
    NoCounters where there is no ncu, or none that runs."""
    path = shutil.which(given) if given else next(filter(None, map(shutil.which, _places())), None)
    if path is None and given:
        raise UsageError(f"ncu={given}: no such program; expected the path of ncu, of Nsight Compute")
    if path is None:
        raise NoCounters(
            "ncu (Nsight Compute, a part of the CUDA toolkit) is neither on PATH nor in CUDA_HOME/bin: ncu=PATH says where it is", True
        )  # fmt: skip
    said = _answer(path, "--version").stdout
    version = next(iter(re.findall(r"\d{4}\.\d+(?:\.\d+)*", said)), "")
    if not version:
        raise NoCounters(f"{path} is no ncu, or does not run: its --version is {' '.join(said.split())[:80]!r}", True)
    return Ncu(path, version, metrics(_answer(path, "--query-metrics").stdout))


def metrics(listed: str) -> tuple[str, ...]:
    """What to ask for, of the metrics that `ncu --query-metrics` lists for the device; where it lists none, the names of today."""
    known = {line.split()[0] for line in listed.splitlines() if line.strip() and "__" in line.split()[0]}
    if not known:
        return (*DRAM, OCCUPANCY, TENSOR[1], *map(_stall, STALLS))
    stalls = sorted(found[1] for name in known if (found := STALL.match(name)) and found[1] != "selected")
    tensor = next((name for name in TENSOR if name.split(".")[0] in known), None)
    wanted = [name for name in (*DRAM, OCCUPANCY) if name.split(".")[0] in known]
    return (*wanted, *([tensor] if tensor else []), *map(_stall, stalls or STALLS))


def why_none(output: str) -> NoCounters:
    """Why a program under ncu left no counters, in what ncu printed."""
    if FORBIDDEN in output:
        return NoCounters(
            f"this machine's driver keeps them for administrators ({FORBIDDEN}): the module option NVreg_RestrictProfilingToAdminUsers=0 "
            "or CAP_SYS_ADMIN gives leave", True,
        )  # fmt: skip
    said = [" ".join(line.split()) for line in SAID.findall(output) if line.strip()]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    why = said[0] if said else lines[-1] if lines else "it printed nothing"
    return NoCounters(f"ncu read none: {why[:200]}", NO_PROFILER in output)


def _stall(reason: str) -> str:
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


def _places() -> list[str]:
    return [
        NAME,
        *(str(t / "bin" / NAME) for t in toolkits()),
        *map(str, sorted(INSTALLED.glob("*/ncu"), reverse=True)),
    ]


def _answer(path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What it says, errors included. Raises NoCounters where it cannot be run, or does not come to an end."""
    try:
        return subprocess.run(
            [path, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            timeout=ANSWER_S, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCounters(f"{path} does not run: {error}", True) from error
