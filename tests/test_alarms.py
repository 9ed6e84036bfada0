"""A fixed sample of the cells of alarms.py: no correct program is rejected."""

from __future__ import annotations

import alarms
import pytest

from fusebench.contract import MODES

CELLS, PARTS = 150, 5


@pytest.mark.parametrize("part", range(PARTS))
def test_correct_programs_are_accepted(part):
    results = [alarms.judge(number) for number in range(part, CELLS, PARTS)]
    assert not [f"{r.line}: {r.verdict.reason()}" for r in results if not r.verdict.ok]


def test_programs_made_of_a_formula_are_accepted_in_every_mode():
    results = [alarms.judge_formula(number) for number in range(14)]
    assert {r.case.mode for r in results} == set(MODES) and len({r.case.kernel for r in results}) >= 6
    assert not [f"{r.line}: {r.verdict.reason()}" for r in results if not r.verdict.ok]


def test_a_cell_is_the_same_whenever_it_is_judged():
    assert alarms.judge(7) == alarms.judge(7)
