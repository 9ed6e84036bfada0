"""Which tests pass where, and what they say to each slip."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shlex
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import slips
from trees import HERE, Ended, Jobs, Task, Tree

TESTS_S = 20.0  # of tests a slip is tried with, the shortest first
SLOW_S = 5.0  # a test that takes longer is left out
TOGETHER, TOGETHER_S = 160, 900.0  # so many tests are observed in one process, for so long
# test files of processes of their own, whose lines are not seen, or of minutes
LEFT_OUT = ("ahead_of_time", "contributing", "gpu", "isolation", "parity", "readme")
# modules, or folders, that run in workers and processes: what the tests above miss is tried with these, pytest's arguments
THEN = {
    "fusebench/ops": "tests/test_ops.py",
    "fusebench/workers/compiler.py": "tests/test_ahead.py -k 'first_call or for_their_loader or own_row'",
    "fusebench/workers/traces.py": "tests/test_profile.py",
    "fusebench/inspection/standalone.py": "tests/test_inspect_scripts.py",
    "fusebench/inspection/generated.py": "tests/test_inspect.py -k 'torch_compile or graph_break'",
    "fusebench/backends/triton_interpreter.py": "tests/test_triton_interpreter.py",
    "fusebench/parity/pieces.py": "tests/test_whole_gradients.py",
}
PATIENCE = 3.0  # a slip may make the tests take so many times as long, and TESTS_S more
WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}  # the jobs would share it
POLL_S = 0.01
MOST_LEFT = 4  # slips that wait for more tests: those that were begun are decided


@dataclass(frozen=True)
class Mutant:
    """A slip in a file of the repository."""

    file: str
    slip: slips.Slip

    @property
    def key(self) -> str:
        """As it stands in same.txt; lines may move."""
        return f"{self.file}:{self.slip.function}: {self.slip.change}"


@dataclass(frozen=True)
class Result:
    """`caught`, `missed` or `no test`; `by` is what caught it."""

    what: str
    by: str = ""


@dataclass(frozen=True)
class Observed:
    """What the tests did without a slip: the seconds of each, and those that pass at each line of each file."""

    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[str, Sequence[str]]]

    def tests(self, file: str, slip: slips.Slip) -> list[str]:
        """The tests that pass where a slip shows, the shortest first, for TESTS_S. What runs at the import runs in the first of the
        tests alone: such a slip is tried with all that pass the function, or else the file."""
        lines = self.lines.get(file, {})
        passing = {test for line in slip.acts or () for test in lines.get(str(line), ())}
        passing = passing or {test for tests in lines.values() for test in tests}
        ordered = sorted(
            sorted(t for t in passing if self.seconds.get(t, SLOW_S) < SLOW_S), key=self.seconds.__getitem__
        )
        total = itertools.accumulate(self.seconds[test] for test in ordered)
        return [test for test, so_far in zip(ordered, total, strict=True) if so_far < TESTS_S]


@dataclass(frozen=True)
class More:
    """Tests that a slip is tried with which the others missed: pytest's arguments, and the seconds that they take without a slip."""

    arguments: Sequence[str]
    seconds: float


def collect(tree: Tree, tests: Sequence[str]) -> list[list[str]]:
    """The tests that need no shared workers, some of a file together, those of the largest files first. It leaves the modules compiled."""
    ignored = [f"--ignore=tests/test_{name}.py" for name in LEFT_OUT]
    with Jobs([tree]) as jobs:
        jobs.start(Task(["--collect-only", "-q", "-p", "observer", *ignored, *tests], WITHOUT_GPU, compiled=True))
        ended = _wait(jobs)
    for line in ended.printed:
        if line.startswith("ERROR"):  # a package that is not here
            print(line)
    by_file: dict[str, list[str]] = {}
    for line in ended.printed:
        if "::" in line and (tree.folder / (file := line.split("::")[0])).is_file():
            by_file.setdefault(file, []).append(line)
    if not by_file:
        raise SystemExit("\n".join(ended.printed[-30:]))
    largest = sorted(by_file, key=lambda file: -(tree.folder / file).stat().st_size)
    return [by_file[f][i : i + TOGETHER] for f in largest for i in range(0, len(by_file[f]), TOGETHER)]


def observe(trees: Sequence[Tree], tests: Sequence[Sequence[str]]) -> Observed:
    """Runs the tests once, as many groups at a time as there are trees, to see which tests pass where."""
    seconds: dict[str, float] = {}
    lines: dict[str, dict[str, list[str]]] = {}
    waiting, running = deque(enumerate(tests)), {}
    with Jobs(trees) as jobs:
        while waiting or jobs.running:
            while waiting and jobs.free:
                number, together = waiting.popleft()
                found = trees[0].folder.with_name(f"observed-{number}.json")
                arguments = ["-q", "-p", "observer", f"--timeout={2 * SLOW_S}", *together]
                task = Task(arguments, WITHOUT_GPU | {"MUTANTS_OBSERVED": str(found)}, TOGETHER_S)
                running[jobs.start(task)] = found
            for pid, ended in jobs.ended():
                if not running[pid].exists():
                    print("\n".join(["tests that did not end:", *ended.printed[-5:]]))
                    continue
                seen = json.loads(running[pid].read_text())
                seconds |= seen["seconds"]
                for file, by_line in seen["tests"].items():
                    for line, passing in by_line.items():
                        lines.setdefault(file, {}).setdefault(line, []).extend(passing)
            time.sleep(POLL_S)
    return Observed(seconds, lines)


def observed(trees: Sequence[Tree], tests: Sequence[Sequence[str]], kept: Path | None) -> Observed:
    """What `observe` finds, or found before: in the file `kept`, as far as it is of the same sources and of the same test files."""
    folder = trees[0].folder
    now = _digests(folder, tests)
    was = json.loads(kept.read_text()) if kept and kept.exists() else {"of": {}, "seconds": {}, "lines": {}}
    known = {file for file in now if now[file] == was["of"].get(file)}
    new = [together for together in tests if together[0].split("::")[0] not in known]
    begin = time.monotonic()
    count, of = sum(map(len, new)), sum(map(len, tests))
    print(f"running {count} of {of} tests that need no shared workers once: which lines do they pass?", flush=True)
    seen = observe(trees, new)
    print(f"that took {time.monotonic() - begin:.0f} s", flush=True)
    seen = _joined(Observed(was["seconds"], was["lines"]), known, seen)
    if kept:
        kept.write_text(json.dumps({"of": now, "seconds": seen.seconds, "lines": seen.lines}))
    return seen


def _joined(before: Observed, known: Set[str], now: Observed) -> Observed:
    """What was seen before of the files that are `known`, and what was seen now."""
    seconds = {test: s for test, s in before.seconds.items() if test.split("::")[0] in known} | dict(now.seconds)
    lines: dict[str, dict[str, list[str]]] = {}
    for seen in (before, now):
        for file, by_line in seen.lines.items():
            for line, passing in by_line.items():
                kept = [test for test in passing if seen is now or test.split("::")[0] in known]
                lines.setdefault(file, {}).setdefault(line, []).extend(kept)
    return Observed(seconds, lines)


def further(tree: Tree, files: Iterable[str], then: str | None) -> dict[str, More]:
    """By file the tests of a second step: `then` for all of them, or else those of THEN. Each has to pass without a slip."""
    own = {file: then or next((t for place, t in THEN.items() if file.startswith(place)), "") for file in files}
    found = {arguments: _more(tree, shlex.split(arguments)) for arguments in dict.fromkeys(own.values()) if arguments}
    return {file: found[arguments] for file, arguments in own.items() if arguments}


def _more(tree: Tree, arguments: Sequence[str]) -> More:
    """Those tests, which have to pass without a slip."""
    with Jobs([tree]) as jobs:
        jobs.start(Task(["-q", *arguments], {}))
        ended = _wait(jobs)
    last = ended.printed[-1] if ended.printed else ""
    print(f"{' '.join(arguments)}: {last}", flush=True)
    if ended.code or " passed" not in last:
        raise SystemExit("\n".join(ended.printed[-30:]))
    return More(arguments, ended.seconds)


def decide(
    mutants: Sequence[Mutant], trees: Sequence[Tree], seen: Observed, then: Mapping[str, More], until: float
) -> Iterator[tuple[Mutant, Result]]:  # fmt: skip
    """What becomes of each mutant. After the time `until` no other is begun."""
    waiting = deque(mutants)
    left: deque[Mutant] = deque()  # to be tried with more tests
    running: dict[int, tuple[Mutant, bool]] = {}
    with Jobs(trees) as jobs:
        while waiting or left or running:
            if time.monotonic() > until:
                waiting.clear()
            # one at a time, because a device is for one
            if left and jobs.free and not any(again for _, again in running.values()):
                mutant = left.popleft()
                more = then[mutant.file]
                running[jobs.start(_task(mutant, more.arguments, more.seconds, {}))] = mutant, True
            while waiting and jobs.free and len(left) < MOST_LEFT:
                mutant = waiting.popleft()
                if tests := seen.tests(mutant.file, mutant.slip):
                    seconds = sum(map(seen.seconds.__getitem__, tests))
                    running[jobs.start(_task(mutant, tests, seconds, WITHOUT_GPU))] = mutant, False
                elif mutant.file in then:
                    left.append(mutant)
                else:
                    yield mutant, Result("no test")
            for pid, ended in jobs.ended():
                mutant, again = running.pop(pid)
                if ended.code != 0:
                    yield mutant, Result("caught", _by(ended))
                elif mutant.file in then and not again:
                    left.append(mutant)
                else:
                    yield mutant, Result("missed")
            time.sleep(POLL_S)


def _task(mutant: Mutant, tests: Sequence[str], seconds: float, environment: Mapping[str, str]) -> Task:
    limit_s = PATIENCE * seconds + TESTS_S
    return Task(["-x", "-q", *tests], environment, limit_s, mutant.file, mutant.slip.write())


def _wait(jobs: Jobs) -> Ended:
    while not (ended := list(jobs.ended())):
        time.sleep(POLL_S)
    return ended[0][1]


def _by(ended: Ended) -> str:
    """The test that failed."""
    if ended.code is None:
        return "no end"
    failed = (re.match(r"(?:FAILED|ERROR) (.+?)(?: - |$)", line) for line in reversed(ended.printed))
    return next((found[1] for found in failed if found), f"exit code {ended.code}")


def _digests(folder: Path, tests: Sequence[Sequence[str]]) -> dict[str, str]:
    """Of each test file: what its tests are, what they are made of and what they may pass."""
    sources = [p for name in ("fusebench", "implementations", "tests") for p in (folder / name).rglob("*.py")]
    ours = [p for p in sorted(sources) if not p.match("tests/test_*.py") and HERE.name not in p.parts]
    shared = hashlib.sha256(b"\0".join(p.read_bytes() for p in ours))
    digests = {}
    for together in tests:
        file = together[0].split("::")[0]
        if file not in digests:
            digests[file] = shared.copy()
            digests[file].update((folder / file).read_bytes())
        digests[file].update("\0".join(together).encode())
    return {file: digest.hexdigest() for file, digest in digests.items()}
