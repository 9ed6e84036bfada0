"""What a budget is made of: the evaluations of one formula on one input set, on NumPy's arrays or on those of tensor.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusebench.contract import Case
from fusebench.parity.noise import Noisy
from fusebench.parity.rounding import FLUSHED, Exact, Stored, evaluate


@dataclass(frozen=True)
class Evaluations:
    """The outputs exactly, with the declared points rounded (the same arrays where there are none) and in each noisy draw, of all
    rows or of some, in float64. `seen` are the names of the points that the formula came to, `by_number` whether it asked for the
    numbers of rows."""

    exact: Sequence[Any]
    staged: Sequence[Any]
    draws: Iterable[Sequence[Any]]
    seen: frozenset[str]
    by_number: bool = False


def evaluations(
    formula: Callable[..., Any], case: Case, inputs: Sequence[Any], points: Sequence[str], random: Any,
    rows: np.ndarray | None, draws: int, wide: Callable[[Any], Any] = lambda value: np.asarray(value, np.float64),
) -> Evaluations:  # fmt: skip
    """Evaluates the formula for a program that rounds at `points`; the draws are made as they are asked for. `inputs` have the
    `rows` alone, None for all; `random` is a generator for arrays where they are (rounding.py), `wide` makes float64 of outputs."""

    def outputs(r: Exact) -> list[Any]:
        with np.errstate(all="ignore"):
            return [wide(o) for o in evaluate(formula, case, r, inputs)]

    def noisy() -> Iterator[list[Any]]:
        r = Noisy(case, points, random, rows, draws)
        for _ in range(draws):
            yield outputs(r)
            r.next_draw()

    reference = Exact(rows)
    exact = outputs(reference)
    staged = outputs(Stored(case, points, rows)) if set(points) - {FLUSHED} else exact
    return Evaluations(exact, staged, noisy(), frozenset(reference.seen), reference.by_number)
