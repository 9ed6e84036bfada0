"""Do the tests notice a slip? Changes the harness in one place at a time and runs the tests that pass there.

    make mutants                                 the lines that differ from the last commit, or else those of the last commit
    make mutants ARGS="--since main~5"           the lines that differ from a revision
    make mutants ARGS="fusebench/report.py"      whole files or folders; `--sample 50` takes as many of each file
    make mutants ARGS="fusebench --tests tests/test_report.py"     only these test files

A slip that a test notices is caught: the test fails, or does not end. The others are listed, and the exit code is 1 if fewer
than `--least` percent were caught. Slips that change nothing stand in `same.txt` with the reason. docs/testing.md has the score.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import slips
from rich.console import Console
from rich.progress import track
from rich.table import Table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LOADED = (
    "numpy",
    "scipy.stats",
    "torch",
    "jax",
    "hydra",
    "hypothesis",
    "rich",
    "pytest",
    "coverage",
)  # once, for every fork
TESTS_S = 20.0  # of tests a slip is tried with, the shortest first
SLOW_S = 5.0  # a test that takes longer is left out
PATIENCE = 5.0  # a slip may make the tests take so many times as long, and TESTS_S more


@dataclass(frozen=True)
class Mutant:
    """A slip in a file of the repository, with the tests that pass there."""

    file: str
    slip: slips.Slip
    tests: tuple[str, ...]

    @property
    def key(self) -> str:
        """As it stands in same.txt; lines may move."""
        return f"{self.file}:{self.slip.function}: {self.slip.change}"


@dataclass(frozen=True)
class Observed:
    """What the tests did without a slip: the seconds of each, and those that pass at each line of each file."""

    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[str, Sequence[str]]]

    def tests(self, file: str, line: int) -> tuple[str, ...]:
        """The tests that pass at a line, the shortest first, for TESTS_S. A line that runs at the import is passed by all
        tests of the file."""
        lines = self.lines.get(file, {})
        passing = lines.get(str(line)) or sorted({test for tests in lines.values() for test in tests})
        ordered = sorted((test for test in passing if test in self.seconds), key=self.seconds.__getitem__)
        total = itertools.accumulate(self.seconds[test] for test in ordered)
        return tuple(test for test, so_far in zip(ordered, total, strict=True) if so_far < TESTS_S)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("paths", nargs="*", help="files or folders; without any, what --since names")
    arguments.add_argument("--since", help="a revision: only lines that differ from it")
    arguments.add_argument(
        "--sample", type=int, help="at most as many slips of a file, drawn at random with a fixed seed"
    )
    arguments.add_argument("--tests", nargs="*", default=["tests"], help="the test files to run")
    arguments.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments.add_argument("--least", type=float, default=85.0, help="percent that must be caught (85)")
    arguments.add_argument("--json", help="a file for all results")
    asked = arguments.parse_args()
    os.chdir(ROOT)
    chosen = list(choose(asked.paths, asked.since, asked.sample))
    if not chosen:
        print("no slips: nothing of fusebench/ differs")
        return 0
    for name in LOADED:
        __import__(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [copy_tree(Path(folder, str(job))) for job in range(asked.jobs)]
        observed = observe(trees[0], asked.tests)
        mutants = [Mutant(file, slip, observed.tests(file, slip.line)) for file, slip in chosen]
        results = dict(track(run(mutants, trees), "slips", len(mutants), console=Console(stderr=True), transient=True))
    return report(mutants, results, asked.least, asked.json)


def choose(paths: Sequence[str], since: str | None, sample: int | None) -> Iterator[tuple[str, slips.Slip]]:
    """The slips to try, by file and line."""
    same = {line.split("   # ")[0].strip() for line in (HERE / "same.txt").read_text().splitlines()}
    lines = None if paths and not since else changed_lines(since or ("HEAD" if dirty() else "HEAD~1"))
    wanted = [Path(p).resolve().relative_to(ROOT) for p in paths or ["fusebench"]]
    files = sorted({f for p in wanted for f in (p.rglob("*.py") if p.is_dir() else [p])})
    for file in map(str, files):
        found = [s for s in slips.find(Path(file).read_text()) if lines is None or s.line in lines[file]]
        found = [s for s in found if f"{file}:{s.function}: {s.change}" not in same]
        if sample is not None and sample < len(found):
            found = sorted(random.Random(file).sample(found, sample), key=lambda s: s.line)
        yield from ((file, slip) for slip in found)


def dirty() -> bool:
    return bool(git("status", "--porcelain", "--", "fusebench"))


def changed_lines(since: str) -> dict[str, set[int]]:
    """The lines of each file that differ from a revision, as they are numbered now."""
    lines: dict[str, set[int]] = defaultdict(set)
    file = ""
    for line in git("diff", "--unified=0", since, "--", "fusebench").splitlines():
        if line.startswith("+++ "):
            file = line[len("+++ b/") :]
        elif line.startswith("@@ "):
            start, _, count = line.split("+")[1].split(" ")[0].partition(",")
            lines[file].update(range(int(start), int(start) + int(count or 1)))
    return lines


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def copy_tree(folder: Path) -> Path:
    """A repository of its own with the files as they are now: a slip is written there, also for processes that a test starts."""
    for name in git("ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if Path(name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, folder / name, follow_symlinks=False)
    identity = ["-c", "user.name=mutants", "-c", "user.email=mutants@localhost"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "as it is"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def observe(tree: Path, tests: Sequence[str]) -> Observed:
    """Runs the tests once to see which of them pass where."""
    found = tree.parent / "observed.json"
    out = tree.parent / "observed.txt"
    print("running the tests once: which lines do they pass?", flush=True)
    pid = fork(lambda: pytest(["-q", "-p", "observer", *tests]), tree, out, {"MUTANTS_OBSERVED": str(found)})
    os.waitpid(pid, 0)
    if not found.exists():
        raise SystemExit(out.read_text()[-3000:])
    print(out.read_text().strip().splitlines()[-1])
    seen = json.loads(found.read_text())
    return Observed({test: s for test, s in seen["seconds"].items() if s < SLOW_S}, seen["tests"])


def run(mutants: Sequence[Mutant], trees: Sequence[Path]) -> Iterator[tuple[Mutant, str]]:
    """What became of each mutant: `caught`, `missed` or `no test`. As many at a time as there are trees."""
    waiting, free = list(reversed(mutants)), list(trees)
    originals = {m.file: (trees[0] / m.file).read_text() for m in mutants}
    running: dict[int, tuple[Mutant, Path, float]] = {}
    while waiting or running:
        while waiting and free:
            mutant = waiting.pop()
            if not mutant.tests:
                yield mutant, "no test"
                continue
            tree = free.pop()
            (tree / mutant.file).write_text(mutant.slip.write())
            pid = fork(lambda m=mutant: pytest(["-x", "-q", *m.tests]), tree, tree.parent / f"{tree.name}.txt")
            running[pid] = mutant, tree, time.monotonic() + PATIENCE * TESTS_S
        for pid, (mutant, tree, deadline) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            late = time.monotonic() > deadline
            if not ended and not late:
                continue
            if not ended:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            (tree / mutant.file).write_text(originals[mutant.file])
            free.append(tree)
            del running[pid]
            yield mutant, "missed" if ended and os.waitstatus_to_exitcode(status) == 0 else "caught"
        time.sleep(0.01)


def fork(work: Callable[[], int], tree: Path, out: Path, environment: dict[str, str] | None = None) -> int:
    """A child in the tree with the heavy packages loaded already; it ends with what `work` returns. Its number."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    code = 70
    try:
        os.setsid()  # what its tests start is ended with it
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it does not outlive an interrupted run
        if os.getppid() != parent:
            return code
        with out.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(tree)
        sys.path[:0] = [str(tree), str(HERE)]
        os.environ |= {"PYTHONPATH": f"{tree}:{HERE}", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        os.environ |= environment or {}
        sys.dont_write_bytecode = True
        code = work()
    finally:
        sys.stdout.flush()
        os._exit(code)


def pytest(arguments: Sequence[str]) -> int:
    import pytest as it

    scratch = Path.cwd().with_name(f"{Path.cwd().name}-tmp")
    shared = ["-p", "no:cacheprovider", "--rootdir=.", f"--basetemp={scratch}", "-o", "addopts="]
    return int(it.main([*shared, *arguments]))


def report(mutants: Sequence[Mutant], results: dict[Mutant, str], least: float, file: str | None) -> int:
    """Prints the score by module and what was missed; the exit code."""
    out = Console(width=None if sys.stdout.isatty() else 200)
    table = Table("module", "slips", "caught", "no test", "score")
    by_file: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in mutants:
        by_file[mutant.file][results[mutant]] += 1
    for name, count in [*by_file.items(), ("all", sum(by_file.values(), Counter()))]:
        caught = f"{count['caught'] / count.total():.0%}"
        table.add_row(name, str(count.total()), str(count["caught"]), str(count["no test"]), caught)
    for mutant in mutants:
        if results[mutant] != "caught":
            where = f"{mutant.file}:{mutant.slip.line}"
            out.print(
                f"{results[mutant]}  {where}  {mutant.slip.change}", soft_wrap=True, highlight=False, markup=False
            )
    out.print(table)
    if file:
        rows = [{"key": m.key, "line": m.slip.line, "result": results[m]} for m in mutants]
        Path(file).write_text(json.dumps(rows, indent=1))
    share = 100 * sum(by_file.values(), Counter())["caught"] / len(mutants)
    return int(math.floor(share) < least)


if __name__ == "__main__":
    sys.exit(main())
