"""Mistakes confined to some rows of a large case, of which the judge itself sees eight: are they found?

    python tests/confined.py                   all planted mistakes of programs/, in four places each
    python tests/confined.py --draws 16 --kernel softmax --kernel lola
    python tests/confined.py --backward        those in gradients whose rows, or whose slices, are independent

A case counts as large here whatever its size, so that its other rows go to the reference on the device, with as few noisy
evaluations as that makes of the largest cases on a GPU. Of the rows in which a mistake shows are wrong: those of the last tile (the
last 16), one drawn at random, all that the judge does not see, and one of these. Where slices stand for rows, as heads do in gradients of
attention, the last tile is that of the last slice, and of the one that is drawn one row is wrong.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import programs
from programs import gradients

from fusebench import discovery
from fusebench.contract import Mathematics
from fusebench.parity import reference, view
from fusebench.parity.judge import Judge

TILE = 16
PLACES = ("last tile", "one row", "all unseen", "one unseen")
ROWS_OF_SLICES = PLACES[:2]


@dataclass(frozen=True)
class Found:
    """Whether a mistake of a kernel was rejected in that place."""

    kernel: str
    mistake: str
    place: str
    rejected: bool


def as_large(draws: int) -> None:
    """From now on every case is large, and the reference on the device makes that many draws."""
    view.JUDGED_ELEMENTS = 1e-9
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
    hit = np.zeros(judge.view.height, bool)
    for number, (a, b) in enumerate(zip(right, wrong, strict=True)):
        hit |= np.moveaxis(differs(a, b), judge.view.axis(number), 0).reshape(judge.view.height, -1).any(axis=1)
    return np.flatnonzero(hit)


def confined(
    judge: Judge, right: Sequence[np.ndarray], wrong: Sequence[np.ndarray], rows: Sequence[int], place: str
) -> list[np.ndarray]:
    """The right outputs with those rows of the wrong ones, or in that place of those slices."""
    mixed = []
    for number, (a, b) in enumerate(zip(right, wrong, strict=True)):
        wrong_here = np.zeros(a.shape, bool)
        np.moveaxis(wrong_here, judge.view.axis(number), 0)[list(rows)] = True
        if judge.view.sliced and place in ROWS_OF_SLICES:
            tokens = np.flatnonzero((wrong_here & differs(a, b)).any(axis=(0, 1, 3)))
            inside = tokens[-1:] if place == "one row" else np.arange(a.shape[2] - TILE, a.shape[2])
            wrong_here &= np.isin(np.arange(a.shape[2]), inside)[:, None]
        mixed.append(np.where(wrong_here, b, a))
    return mixed


def differs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where two outputs are not the same; NaN is the same as NaN."""
    return (a != b) & ~(np.isnan(a.astype(np.float32)) & np.isnan(b.astype(np.float32)))


def places(judge: Judge, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Of the rows in which a mistake shows, those that are to be wrong, by place."""
    assert judge.view.judged is not None
    unseen = np.setdiff1d(rows, judge.view.judged)
    tile = rows[rows >= judge.view.height - (1 if judge.view.sliced else TILE)]
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
    if not mathematics.rows or judge.view.judged is None or [a.shape for a in right] != [b.shape for b in wrong]:
        return
    arrays = situation.sets[-1]
    assert accepts(judge, arrays, right, correct.points, known), f"{kernel}: the program without {name!r} is rejected"
    if accepts(judge, arrays, wrong, correct.points, known):
        return
    for place, rows in places(judge, differing(judge, right, wrong), np.random.default_rng(len(name))).items():
        if len(rows):
            outputs = confined(judge, right, wrong, rows, place)
            if all(not differs(a, b).any() for a, b in zip(outputs, right, strict=True)):
                continue  # it does not show there
            yield Found(kernel, name, place, not accepts(judge, arrays, outputs, correct.points, known))


def look_at_all(kernels: Sequence[str] = (), every: int = 1, backward: bool = False) -> Iterator[Found]:
    """All planted mistakes of the kernels, or of their gradients, or one in `every`."""
    discovery.use_roots([discovery.HOME])
    everything = discovery.find_kernels([discovery.HOME])
    if backward:
        all_ = {k: programs.Programs(c, gradients.MISTAKES[k], {}) for k, c in gradients.CORRECT.items()}
    else:
        all_ = programs.find(everything)
    planted = [(k, p, m) for k, p in all_.items() for m in p.mistakes if not kernels or k in kernels]
    budgets: dict[Any, Any] = {}
    for kernel, found, name in planted[::every]:
        situation = programs.situation(everything[kernel], found.mistakes[name])
        known = budgets.setdefault((id(situation), found.correct[found.mistakes[name].of].points), {})
        yield from look(kernel, everything[kernel].mathematics, found, name, situation, known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=4, choices=(4, 8, 16))
    parser.add_argument("--kernel", action="append", default=[])
    parser.add_argument("--backward", action="store_true", help="mistakes in gradients, of rows or of heads")
    asked = parser.parse_args()
    as_large(asked.draws)
    all_, rejected = Counter[str](), Counter[str]()
    for found in look_at_all(asked.kernel, backward=asked.backward):
        all_[found.place] += 1
        rejected[found.place] += found.rejected
        if not found.rejected:
            print(f"accepted: {found.kernel}, {found.mistake}, in {found.place}")
    for place in PLACES:
        print(f"{place:12}{rejected[place]:5} of {all_[place]} rejected ({rejected[place] / max(all_[place], 1):.1%})")


if __name__ == "__main__":
    main()
