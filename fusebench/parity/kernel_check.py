"""What a kernel.py says wrongly of its formula, seen on its smallest named case before anything is judged by it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from fusebench.contract import Case, Mathematics
from fusebench.parity.judge import Judge, of_smallest
from fusebench.parity.view import check_axis

# Formulas with their modes. In upper case it would be a constant, which nothing may change while a cell runs.
_checked: set[tuple[Any, ...]] = set()


def check(mathematics: Mathematics, case: Case, part: str, timeout_s: float) -> None:
    """Raises ValueError where the formula gives other values when it is evaluated again on the same inputs, or where ROWS does not fit
    its outputs, and TimeoutError: once in a process for each formula and mode."""
    known = (mathematics.formula_of(part), mathematics.gradient, case.mode)
    if known in _checked:
        return
    with _within(timeout_s):
        judge = of_smallest(mathematics, case, part)
        if not judge.view.most:  # else NumPy would take minutes
            _check_steady(judge)
            _check_rows(judge)
    _checked.add(known)


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raises TimeoutError inside once that many seconds have passed; only Python's main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: object) -> None:
        raise TimeoutError(f"kernel.py took more than {seconds:g} s for its smallest case (timeout_s sets the limit)")

    handler, timer = signal.signal(signal.SIGALRM, late), signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)


def _check_steady(judge: Judge) -> None:
    first, again = judge.reference(), judge.evaluated_again()
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, again, strict=True)):
        raise ValueError(
            "the formula of kernel.py gives other values each time on the same inputs; expected the same ones: "
            "draw random numbers in inputs(case, rng), and change no input in place"
        )


def _check_rows(judge: Judge) -> None:
    mathematics, outputs = judge.mathematics, judge.reference()
    named = mathematics.outputs
    others = [name for name in mathematics.rows if name not in judge.arrays]
    strange = [name for name in others if name and named and name not in named and not mathematics.options]
    if strange or not (named or judge.part or len(others) in (0, 1, len(outputs))):
        expected = f"outputs ({', '.join(named)})" if named else f"as many names as outputs, {len(outputs)},"
        raise ValueError(
            f"ROWS of kernel.py names {', '.join(strange or others)}, not among the inputs ({', '.join(judge.arrays)}): "
            f"expected {expected} beside these"
        )
    for number, output in enumerate(outputs):
        name = named[number] if number < len(named) else f"output {number}"
        check_axis(name, mathematics.output_axis(number, judge.arrays), output.shape)
