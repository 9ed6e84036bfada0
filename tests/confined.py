"""Mistakes confined to some rows of a large case, of which the judge itself sees eight: are they found?

    python tests/confined.py                   all planted mistakes of programs/, in four places each
    python tests/confined.py --draws 16 --kernel softmax --kernel lola

A case counts as large here whatever its size, so that its other rows go to the reference on the device, with as few noisy
evaluations as that makes of the largest cases on a GPU. Of the rows in which a mistake shows are wrong: those of the last tile (the
last 16), one drawn at random, all that the judge does not see, and one of these.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import programs

from fusebench import discovery
from fusebench.contract import Mathematics
from fusebench.parity import judge as judge_module
from fusebench.parity import reference
from fusebench.parity.judge import Judge

TILE = 16
PLACES = ("last tile", "one row", "all unseen", "one unseen")


@dataclass(frozen=True)
class Found:
    """Whether a mistake of a kernel was rejected in that place."""

    kernel: str
    mistake: str
    place: str
    rejected: bool


def as_large(draws: int) -> None:
    """From now on every case is large, and the reference on the device makes that many draws."""
    judge_module.JUDGED_ELEMENTS = 1e-9
    reference.DRAWS = {"cpu": ((draws, float("inf")),)}


def accepts(
    judge: Judge, arrays: dict[str, np.ndarray], outputs: Sequence[np.ndarray], points: Sequence[str], known: Any
) -> bool:
    """What a run with a GPU says of the outputs."""
    verdict = judge.judge(outputs, points)
    if not verdict.ok:
        return False
    asked = judge.ask(outputs, points, "cuda")
    return judge.widened(verdict, reference.check(asked, list(arrays.values()), outputs, "cpu", known), asked).ok


def differing(judge: Judge, right: Sequence[np.ndarray], wrong: Sequence[np.ndarray]) -> np.ndarray:
    """The numbers of the rows in which two programs' outputs differ."""
    hit = np.zeros(judge.height, bool)
    for number, (a, b) in enumerate(zip(right, wrong, strict=True)):
        other = (a != b) & ~(np.isnan(a.astype(np.float32)) & np.isnan(b.astype(np.float32)))
        hit |= np.moveaxis(other, judge.axis(number), 0).reshape(judge.height, -1).any(axis=1)
    return np.flatnonzero(hit)


def confined(
    judge: Judge, right: Sequence[np.ndarray], wrong: Sequence[np.ndarray], rows: Sequence[int]
) -> list[np.ndarray]:
    """The right outputs with those rows of the wrong ones."""
    mixed = []
    for number, (a, b) in enumerate(zip(right, wrong, strict=True)):
        at: list[Any] = [slice(None)] * a.ndim
        at[judge.axis(number)] = list(rows)
        mixed.append(a.copy())
        mixed[-1][tuple(at)] = b[tuple(at)]
    return mixed


def places(judge: Judge, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Of the rows in which a mistake shows, those that are to be wrong, by place."""
    assert judge.judged is not None
    unseen = np.setdiff1d(rows, judge.judged)
    tile = rows[rows >= judge.height - TILE]
    drawn = [some[rng.integers(0, len(some), 1)] if len(some) else some for some in (rows, unseen)]
    return dict(zip(PLACES, (tile, drawn[0], unseen, drawn[1]), strict=True))


def look(
    kernel: str,
    mathematics: Mathematics,
    found: programs.Programs,
    name: str,
    situation: programs.Situation,
    known: Any,
) -> Iterator[Found]:
    """What becomes of one mistake in each place, where it is rejected if it is everywhere."""
    mistake, judge = found.mistakes[name], situation.judge
    correct = found.correct[mistake.of]
    right = programs.run(correct.run, situation.case, situation.sets[-1])
    wrong = [programs.run(mistake.run, situation.case, arrays) for arrays in situation.sets][-1]
    if not mathematics.rows or judge.judged is None or [a.shape for a in right] != [b.shape for b in wrong]:
        return
    arrays = situation.sets[-1]
    assert accepts(judge, arrays, right, correct.points, known), f"{kernel}: the program without {name!r} is rejected"
    if accepts(judge, arrays, wrong, correct.points, known):
        return
    for place, rows in places(judge, differing(judge, right, wrong), np.random.default_rng(len(name))).items():
        if len(rows):
            outputs = confined(judge, right, wrong, rows)
            yield Found(kernel, name, place, not accepts(judge, arrays, outputs, correct.points, known))


def look_at_all(kernels: Sequence[str] = (), every: int = 1) -> Iterator[Found]:
    """All planted mistakes of the kernels, or one in `every`."""
    discovery.use_roots([discovery.HOME])
    everything = discovery.find_kernels([discovery.HOME])
    planted = [
        (k, p, m) for k, p in programs.find(everything).items() for m in p.mistakes if not kernels or k in kernels
    ]
    budgets: dict[Any, Any] = {}
    for kernel, found, name in planted[::every]:
        situation = programs.situation(everything[kernel], found.mistakes[name])
        known = budgets.setdefault((id(situation), found.correct[found.mistakes[name].of].points), {})
        yield from look(kernel, everything[kernel].mathematics, found, name, situation, known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=4, choices=(4, 8, 16))
    parser.add_argument("--kernel", action="append", default=[])
    asked = parser.parse_args()
    as_large(asked.draws)
    all_, rejected = Counter[str](), Counter[str]()
    for found in look_at_all(asked.kernel):
        all_[found.place] += 1
        rejected[found.place] += found.rejected
        if not found.rejected:
            print(f"accepted: {found.kernel}, {found.mistake}, in {found.place}")
    for place in PLACES:
        print(f"{place:12}{rejected[place]:5} of {all_[place]} rejected ({rejected[place] / max(all_[place], 1):.1%})")


if __name__ == "__main__":
    main()
