"""Programs in NumPy for every kernel, right ones and wrong ones, written from the kernels' mathematics and not from formula().

`programs/<kernel>.py` has CORRECT, {name: Program}, and MISTAKES, {name: Mistake}: each one deviation from a correct program,
with the case on which it shows. They compute in float32 and store in the storage dtype, as kernels do.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fusebench.cases import make_case
from fusebench.contract import Case
from fusebench.discovery import Kernel
from fusebench.inputs import make_sets
from fusebench.parity.judge import Judge, Verdict

Run = Callable[..., Any]  # (case, *inputs) → output, or a tuple of them


def always(case: Case) -> bool:
    return True


@dataclass(frozen=True)
class Program:
    """A correct program, the points that it rounds to the storage dtype, and the cases that it is for."""

    run: Run
    points: tuple[str, ...] = ()
    where: Callable[[Case], bool] = always


@dataclass(frozen=True)
class Mistake:
    """A wrong program, the correct one that it deviates from (a key of CORRECT), and the case on which it shows.

    `change` makes other inputs of those of the case. What shows only later is called twice, on another set each time.
    """

    run: Run
    of: str
    sizes: Mapping[str, int]
    dtype: str = "float32"
    precision: str = "ieee"
    options: Mapping[str, str] = field(default_factory=dict)
    inputs: str = "plain"
    change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = dict
    calls: int = 1
    seed: int = 0
    mode: str = "forward"


@dataclass(frozen=True)
class Programs:
    """The programs of one kernel, the largest sizes that they are run on at random (LARGEST), and the dimension that is now and
    then much larger (LONG)."""

    correct: Mapping[str, Program]
    mistakes: Mapping[str, Mistake]
    largest: Mapping[str, int]
    long: str = ""


def find(kernels: Mapping[str, Kernel]) -> dict[str, Programs]:
    """The programs of the kernels, by kernel, as far as there are any."""
    found = {}
    for name in kernels:
        if (Path(__file__).parent / f"{name}.py").exists():
            module = importlib.import_module(f"programs.{name}")
            largest, long = getattr(module, "LARGEST", {}), getattr(module, "LONG", "")
            found[name] = Programs(module.CORRECT, module.MISTAKES, largest, long)
    return found


def run(program: Run, case: Case, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs, always as a list; overflow and the like is what a program may come to, and raises no warning."""
    with np.errstate(all="ignore"):
        outputs = program(case, *arrays.values())
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


@dataclass(frozen=True)
class Situation:
    """A case with input sets, as many as a mistake is called with; the last is judged."""

    case: Case
    sets: list[dict[str, np.ndarray]]
    judge: Judge
    right: dict[Program, tuple[list[np.ndarray], Verdict]] = field(default_factory=dict)

    def of(self, program: Program) -> tuple[list[np.ndarray], Verdict]:
        """The outputs of a correct program and the verdict on them."""
        if program not in self.right:
            outputs = run(program.run, self.case, self.sets[-1])
            self.right[program] = outputs, self.judge.judge(outputs, program.points)
        return self.right[program]


_situations: dict[tuple[Any, ...], Situation] = {}  # many programs share one, and the judge takes most of the time


def situation(kernel: Kernel, mistake: Mistake) -> Situation:
    """The situation in which the mistake shows."""
    case = make_case(kernel, mistake.sizes, mistake.dtype, mistake.precision, mistake.options, mistake.mode)
    return situation_of(kernel, case, mistake.seed, mistake.calls, mistake.inputs, mistake.change)


def situation_of(
    kernel: Kernel, case: Case, seed: int, calls: int = 1, inputs: str = "plain", change: Callable[..., Any] = dict
) -> Situation:
    """A case with its input sets and its judge, made once."""
    key = (kernel.name, case.id, seed, calls, inputs, change)
    if key not in _situations:
        sets = [change(arrays) for arrays in make_sets(kernel.mathematics, case, seed, calls, inputs)]
        for array in (a for arrays in sets for a in arrays.values() if isinstance(a, np.ndarray)):
            array.setflags(write=False)
        _situations[key] = Situation(case, sets, Judge(kernel.mathematics, case, sets[-1]))
    return _situations[key]
