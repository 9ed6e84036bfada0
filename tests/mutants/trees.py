"""Copies of the repository in which a slip is made, and the processes that run tests there."""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Tree:
    """A copy of the repository for one job, with what the tests that run there write beside it."""

    folder: Path

    @property
    def out(self) -> Path:
        """What the last tests printed."""
        return self.folder.with_name(f"{self.folder.name}.txt")

    @property
    def scratch(self) -> Path:
        """The temporary folder of the tests."""
        return self.folder.with_name(f"{self.folder.name}-tmp")

    @property
    def original(self) -> Path:
        """The file that a slip has changed, as it was."""
        return self.folder.with_name(f"{self.folder.name}.py")

    def printed(self) -> list[str]:
        return self.out.read_text(errors="replace").strip().splitlines()


def copy_repository(folder: Path) -> Tree:
    """The files as they are now, in a repository of their own where there is git: tests ask for the commit."""
    ignored = [line.strip("/\n") for line in (ROOT / ".gitignore").open()]
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(".git", *ignored))
    identity = ["-c", "user.name=mutants", "-c", "user.email=mutants@localhost"]
    if shutil.which("git"):
        for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "as it is"]):
            subprocess.run(["git", *command], cwd=folder, check=True)
    return Tree(folder)


def copies(first: Tree, count: int) -> list[Tree]:
    """The tree and as many copies of it as make `count`. Times of files stay, so that compiled modules stay usable."""
    others = [Tree(first.folder.with_name(f"tree{number}")) for number in range(1, count)]
    for tree in others:
        shutil.copytree(first.folder, tree.folder, symlinks=True)
    return [first, *others]


@dataclass(frozen=True)
class Task:
    """A run of pytest: its arguments, what it adds to the environment, the seconds after which it is ended, the file that is changed
    for it and how. It leaves `compiled` modules behind only if told to: those of a slip would stay."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    limit_s: float = math.inf
    file: str = ""
    text: str = ""
    compiled: bool = False


@dataclass
class Ended:
    """What became of a task: pytest's exit code, None where it did not end in time, its seconds, and what it printed."""

    code: int | None
    seconds: float
    printed: list[str]


class Jobs:
    """Runs as many tasks at a time as there are trees. Use as a context manager: leaving it ends those that still run."""

    def __init__(self, trees: Sequence[Tree]):
        self.free = list(trees)
        self.running: dict[int, tuple[Tree, Task, float]] = {}

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.running:
            _end(pid)

    def start(self, task: Task) -> int:
        """The number by which `ended` will name it. There must be a free tree."""
        tree = self.free.pop()
        if task.file:
            changed = tree.folder / task.file
            shutil.copy2(changed, tree.original)
            changed.write_text(task.text)
        pid = _fork(tree, task)
        self.running[pid] = tree, task, time.monotonic()
        return pid

    def ended(self) -> Iterator[tuple[int, Ended]]:
        """Those tasks that have ended since the last call, by their numbers."""
        for pid, (tree, task, begin) in list(self.running.items()):
            over = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            seconds = time.monotonic() - begin
            if not over and seconds < task.limit_s:
                continue
            status = _end(pid)
            del self.running[pid]
            if task.file:
                shutil.copy2(tree.original, tree.folder / task.file)
            self.free.append(tree)
            yield pid, Ended(os.waitstatus_to_exitcode(status) if over else None, seconds, tree.printed())


def _fork(tree: Tree, task: Task) -> int:
    """A child that runs pytest in the tree, with the packages that this process has loaded; its number."""
    parent = os.getpid()
    shutil.rmtree(tree.scratch, ignore_errors=True)
    tree.scratch.mkdir()
    if pid := os.fork():
        return pid
    code = 70
    try:
        os.setsid()  # what its tests start is ended with it
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it does not outlive an interrupted run
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getppid() != parent:
            return code
        with tree.out.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(tree.folder)
        # the tree comes first and the repository not at all: its packages have no __init__.py and would be merged
        ours = [str(tree.folder), str(HERE)]
        paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p).resolve() != ROOT]
        sys.path[:] = ours + [p for p in sys.path if Path(p).resolve() != ROOT]
        settings = {"PYTHONPATH": os.pathsep.join(ours + paths), "TMPDIR": str(tree.scratch), "OMP_NUM_THREADS": "1"}
        os.environ |= {**settings, "PYTHONDONTWRITEBYTECODE": "" if task.compiled else "1", **task.environment}
        sys.dont_write_bytecode = not task.compiled
        tempfile.tempdir = None  # which a package may have asked for before
        code = _pytest(task.arguments, tree)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _pytest(arguments: Sequence[str], tree: Tree) -> int:
    import pytest

    shared = ["-p", "no:cacheprovider", "--rootdir=.", f"--basetemp={tree.scratch}/pytest", "-o", "addopts="]
    return int(pytest.main([*shared, *arguments]))


def _end(pid: int) -> int:
    """Ends a child, if it runs, and what its tests started; its status."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has no group yet
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]
