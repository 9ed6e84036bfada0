"""compute-sanitizer itself: which one there is, and the command line and environment of a program under one of its tools."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusebench.backends.cuda import LINEINFO, toolkits
from fusebench.errors import UsageError
from fusebench.sanitizer.own import Own, filters
from fusebench.workers.pool import environment

NAME = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
ANSWER_S = 60.0  # for --version and --help
# by which a tool talks to its program: each place among those that work side by side has its own
FIRST_PORT, PORTS = 49152, 16
# More reports than a broken kernel needs, and fewer than fill a disk
PRINTED = 10_000
PADDING = 512  # bytes behind every allocation, so that what runs over its end does not hit the next one
ALWAYS = (
    "--launch-timeout", "0",  # importing a framework takes longer than the 10 s that it would wait
    "--target-processes", "application-only",  # neither ptxas nor another compiler
    "--print-limit", str(PRINTED),
    "--show-backtrace", "device",
    "--strip-paths", "no",  # two libraries may have a file of one name
)  # fmt: skip
OF_TOOL = {
    # what frameworks try at their start, and expect to fail, is no finding
    "memcheck": ("--report-api-errors", "no", "--padding", str(PADDING)),
    "racecheck": ("--racecheck-report", "analysis"),
}


@dataclass(frozen=True)
class Sanitizer:
    """A compute-sanitizer that runs: its path, its version, and the options that its help names, because some are of new versions
    alone."""

    path: str
    version: str
    options: frozenset[str]

    def command(
        self, tool: str, own: Own, log: Path, place: int, threads: int, program: Sequence[str]
    ) -> list[str]:  # fmt: skip
        """The command line that runs the program under the tool. `place` is a number among the programs that run side by side, each
        of which has so many `threads`."""
        pairs = [*ALWAYS, *OF_TOOL.get(tool, ()), "--port", str(FIRST_PORT + place * PORTS)]
        pairs += ["--racecheck-num-workers", str(threads)] if tool == "racecheck" else []
        known = [w for at in range(0, len(pairs), 2) if pairs[at] in self.options for w in pairs[at : at + 2]]
        watched = [word for symbol in own.symbols for word in ("--kernel-name", symbol)] if filters(tool) else []
        written = str(log).replace("%", "%%")
        return [self.path, "--tool", tool, "--log-file", written, *known, *watched, "--", *program]


def find(given: str | None) -> Sanitizer:
    """The compute-sanitizer at the path that was given, on PATH, or in a CUDA toolkit. Raises UsageError where there is none, or none
    that runs."""
    path = shutil.which(given) if given else next(filter(None, map(shutil.which, _places())), None)
    if path is None and given:
        raise UsageError(f"sanitizer={given}: no such program; expected the path of {NAME}")
    if path is None:
        raise UsageError(
            f"sanitize needs {NAME}, a part of the CUDA toolkit, and it is neither on PATH nor in CUDA_HOME/bin: "
            f"sanitizer=PATH says where it is"
        )
    said = [_answer(path, flag) for flag in ("--version", "--help")]
    options = frozenset(re.findall(r"--[a-z][a-z0-9-]*", said[1]))
    version = next(iter(re.findall(r"\d+(?:\.\d+)+", said[0])), "unknown")
    if "--tool" not in options:
        raise UsageError(f"{path} is no {NAME}, or does not run: its --help is {' '.join(said[1].split())[:80]!r}")
    if "--kernel-name" not in options:
        raise UsageError(f"{path} has the version {version}: expected 2023.3 or a later one, of CUDA 12.3")
    return Sanitizer(path, version, options)


def _places() -> list[str]:
    return [NAME, *(str(t / sub / NAME) for t in toolkits() for sub in ("bin", "compute-sanitizer"))]


def _answer(path: str, flag: str) -> str:
    try:
        done = subprocess.run(
            [path, flag], capture_output=True, errors="replace", timeout=ANSWER_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{path} does not run: {error}") from error
    return done.stdout + done.stderr


def variables(python: str, cores: Sequence[int]) -> Mapping[str, str]:
    """The environment of a program under a tool. Every array is an allocation of its own: within a framework's pool, memory that is
    read beyond an array's end, or before it was written, is an earlier array's, and no tool sees it. JAX's "platform" allocator rounds
    each array up to 2 MiB (0.11), its asynchronous one does not."""
    env = environment("cuda", python, cores)
    env.update(PYTORCH_NO_CUDA_MEMORY_CACHING="1", XLA_PYTHON_CLIENT_ALLOCATOR="cuda_async")
    # autotuning would run kernels of no interest
    env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0".strip()
    env[LINEINFO] = "1"
    env.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(len(cores))))
    return env
