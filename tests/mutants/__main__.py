"""Do the tests notice a slip? Changes the harness in one place at a time and runs the tests that pass there.

    make mutants                                 the lines that differ from the last commit, or else those of the last commit
    make mutants ARGS="--since main~5"           the lines that differ from a revision
    make mutants ARGS="fusebench/report.py"      whole files or folders; `--sample 50` takes as many of each file
    make mutants ARGS="fusebench --jobs 16 --seconds 3000"         the files in turns, as many slips as that time allows
    make mutants ARGS="fusebench --together --skip 200 --sample 200"     a random sample of all slips, without that of an earlier run
    make mutants ARGS="fusebench --tests tests/test_report.py"     only these test files
    make mutants ARGS="fusebench/timing/gpu.py --then tests/test_gpu.py"     what is missed is tried with these, on the GPU

Each slip is shown when it is decided: caught if a test fails or does not end. Then the score by module follows, also of a run
that is interrupted; the exit code is 1 if fewer than `--least` percent were caught. Slips that change nothing stand in
`same.txt` with the reason. docs/testing.md has the score.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import slips
import trees
import trials
from rich.console import Console
from rich.table import Table
from trials import Mutant, Result

# once, for every fork
LOADED = ("numpy", "scipy.stats", "torch", "jax", "hydra", "hypothesis", "rich", "pytest", "coverage")


def main() -> int:
    asked = parse()
    begin = time.monotonic()
    os.chdir(trees.ROOT)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is known is shown then too
    by_file = sampled(choose(asked.paths, asked.since), asked.skip, asked.sample, asked.together)
    if not by_file:
        print("no slips: nothing of fusebench/ differs")
        return 0
    for name in LOADED:
        __import__(name)
    results = before(asked.json, by_file) if asked.json else {}
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        first = trees.copy_repository(Path(folder, "tree0"))
        tests = trials.collect(first, asked.tests)
        copies = trees.copies(first, asked.jobs)
        seen = trials.observed(copies, tests, asked.observed)
        waiting = in_order(by_file, results, asked.together)
        then = trials.further(first, dict.fromkeys(m.file for m in waiting), asked.then)
        try:
            for mutant, result in trials.decide(waiting, copies, seen, then, begin + asked.seconds):
                results[mutant] = result
                line = f"{result.what:8}{mutant.file}:{mutant.slip.line}  {mutant.slip.change}"
                print(line + (f"  ({result.by})" if result.by else ""), flush=True)
        except KeyboardInterrupt:
            print("interrupted")
    if asked.json:
        rows = {at(m): {"at": at(m), "result": r.what, "by": r.by} for m, r in results.items()}
        others = {tuple(row["at"]): row for row in read(asked.json)}  # of files that this run was not asked for
        asked.json.write_text(json.dumps([*(others | rows).values()], indent=1))
    return int(score(by_file, results) < asked.least)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files or folders; without any, what --since names")
    parser.add_argument("--since", help="a revision: only lines that differ from it")
    parser.add_argument("--sample", type=int, help="at most as many slips of a file, drawn at random with a fixed seed")
    parser.add_argument(
        "--skip", type=int, default=0, help="leaves out as many of a file: those that were drawn before"
    )
    parser.add_argument("--together", action="store_true", help="draws from all files together, and not from each")
    parser.add_argument("--tests", nargs="*", default=["tests"], help="the test files to run")
    parser.add_argument(
        "--then",
        help="pytest's arguments: tests with workers or a GPU, for what the others missed; without, those of trials.THEN",
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="slips at a time (the cores)")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="from the start on; no slip is begun after them"
    )
    parser.add_argument("--least", type=float, default=85.0, help="percent that must be caught (85)")
    parser.add_argument("--observed", type=Path, help="a file that keeps which tests pass where, for the next run")
    parser.add_argument(
        "--json", type=Path, help="a file for all results; a run goes on from it: what it caught is not tried again"
    )
    asked = parser.parse_args()
    for name in ("observed", "json"):
        if path := getattr(asked, name):
            setattr(asked, name, path.absolute())
    return asked


def choose(paths: Sequence[str], since: str | None) -> dict[str, list[Mutant]]:
    """The slips that may be tried, by file and there in the order in which they are."""
    same = {line.split("   # ")[0].strip() for line in (trees.HERE / "same.txt").read_text().splitlines()}
    lines = None if paths and not since else changed_lines(since or ("HEAD" if dirty() else "HEAD~1"))
    wanted = [Path(p).resolve().relative_to(trees.ROOT) for p in paths or ["fusebench"]]
    files = sorted({f for p in wanted for f in (p.rglob("*.py") if p.is_dir() else [p])})
    chosen = {}
    for file in map(str, files):
        found = [Mutant(file, s) for s in slips.find(Path(file).read_text()) if lines is None or s.line in lines[file]]
        if found := drawn(m for m in found if m.key not in same):
            chosen[file] = found
    return chosen


def drawn(found: Iterable[Mutant]) -> list[Mutant]:
    """In an order that is drawn with a fixed seed, and stays where others come or go."""
    alike: Counter[str] = Counter()

    def place(mutant: Mutant) -> float:
        alike[mutant.key] += 1
        return random.Random(f"{mutant.key} {alike[mutant.key]}").random()

    return sorted(sorted(found, key=at), key=place)


def sampled(by_file: dict[str, list[Mutant]], skip: int, sample: int | None, together: bool) -> dict[str, list[Mutant]]:
    """Of each file, or of all together, as many as `sample` without the first `skip`."""
    groups = [drawn(itertools.chain(*by_file.values()))] if together else list(by_file.values())
    taken = {mutant for group in groups for mutant in group[skip:][:sample]}
    return {file: own for file, mutants in by_file.items() if (own := [m for m in mutants if m in taken])}


def before(kept: Path, by_file: dict[str, list[Mutant]]) -> dict[Mutant, Result]:
    """What an earlier run found with tests, as far as the slips still stand where they stood."""
    found = {tuple(row["at"]): Result(row["result"], row["by"]) for row in read(kept) if row["result"] != "no test"}
    return {m: found[at(m)] for mutants in by_file.values() for m in mutants if at(m) in found}


def read(kept: Path) -> list[dict[str, Any]]:
    return json.loads(kept.read_text()) if kept.exists() else []


def at(mutant: Mutant) -> tuple[str, int, int]:
    return mutant.key, mutant.slip.line, mutant.slip.column


def in_order(by_file: dict[str, list[Mutant]], known: dict[Mutant, Result], together: bool) -> list[Mutant]:
    """One of each file, then the next one of each, or those of all files as they are drawn: whenever a run ends, every module has had its
    share, or all slips had the same chance. First come those that an earlier run did not catch; those that it caught are left out."""
    first = [m for m, result in known.items() if result.what != "caught"]
    others = [[m for m in mutants if m not in known] for mutants in by_file.values()]
    turns = (mutant for turn in itertools.zip_longest(*others) for mutant in turn if mutant)
    return first + (drawn(itertools.chain(*others)) if together else list(turns))


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


def score(by_file: dict[str, list[Mutant]], results: dict[Mutant, Result]) -> float:
    """Prints the score by module; the percentage of all slips, each module counted by its number of slips."""
    table = Table("module", "slips", "tried", "caught", "no test", "score")
    known, expected = 0, 0.0
    total: Counter[str] = Counter()
    for file, mutants in by_file.items():
        count = Counter(results[m].what for m in mutants if m in results)
        total += count
        share = count["caught"] / count.total() if count.total() else float("nan")
        if count.total():
            known, expected = known + len(mutants), expected + share * len(mutants)
            table.add_row(file, *_figures(len(mutants), count, share))
    share = expected / known if known else float("nan")
    table.add_row("all, by their slips", *_figures(sum(map(len, by_file.values())), total, share))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    return 100 * share


def _figures(slips_: int, count: Counter[str], share: float) -> Iterator[str]:
    yield from map(str, (slips_, count.total(), count["caught"], count["no test"]))
    yield f"{share:.0%}" if count.total() else ""


if __name__ == "__main__":
    sys.exit(main())
