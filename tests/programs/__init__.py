"""Programs in NumPy for every kernel, right ones and wrong ones, written from the kernels' mathematics and not from formula().

`programs/<kernel>.py` has CORRECT, {name: Program}, and MISTAKES, {name: Mistake}: each one deviation from a correct program,
with the case on which it shows. They compute in float32 and store in the storage dtype, as kernels do.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True)
class Programs:
    """The programs of one kernel, and the largest sizes that they are run on at random (LARGEST)."""

    correct: Mapping[str, Program]
    mistakes: Mapping[str, Mistake]
    largest: Mapping[str, int]


def find(kernels: Mapping[str, Kernel]) -> dict[str, Programs]:
    """The programs of the kernels, by kernel, as far as there are any."""
    found = {}
    for name in kernels:
        if (Path(__file__).parent / f"{name}.py").exists():
            module = importlib.import_module(f"programs.{name}")
            found[name] = Programs(module.CORRECT, module.MISTAKES, getattr(module, "LARGEST", {}))
    return found


def run(program: Run, case: Case, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs, always as a list; overflow and the like is what a program may come to, and raises no warning."""
    with np.errstate(all="ignore"):
        outputs = program(case, *arrays.values())
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def judged(kernel: Kernel, mistake: Mistake, program: Program) -> tuple[Verdict, Verdict]:
    """The verdicts on the mistake and on the correct program, on the same case and inputs."""
    case = make_case(kernel, mistake.sizes, mistake.dtype, mistake.precision, mistake.options)
    sets = make_sets(kernel.module, case, mistake.seed, mistake.calls, mistake.inputs)
    sets = [mistake.change(arrays) for arrays in sets]
    judge = Judge(kernel.module, case, sets[-1])
    wrong = [run(mistake.run, case, arrays) for arrays in sets][-1]
    right = run(program.run, case, sets[-1])
    return judge.judge(wrong, program.points), judge.judge(right, program.points)


def together_only(verdict: Verdict) -> Verdict:
    """The verdict without its elements: whether all of them together give the mistake away."""
    return replace(verdict, ratio=0.0)
