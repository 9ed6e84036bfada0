"""Planted mistakes: every wrong program is rejected on its case, where the correct one that it deviates from passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import programs
import pytest

from fusebench import discovery

KERNELS = discovery.find_kernels([discovery.HOME])
PROGRAMS = programs.find(KERNELS)
PLANTED = {(kernel, name): mistake for kernel, p in PROGRAMS.items() for name, mistake in p.mistakes.items()}
NUMERICS = Path(__file__).parents[1] / "docs" / "numerics.md"


@pytest.mark.parametrize("planted", PLANTED, ids=": ".join)
def test_a_mistake_is_rejected_and_nothing_but_the_mistake(planted):
    kernel, mistake = planted[0], PLANTED[planted]
    correct = PROGRAMS[kernel].correct[mistake.of]
    found = programs.situation(KERNELS[kernel], mistake)
    right, verdict = found.of(correct)
    assert verdict.ok, f"the program without the mistake: {verdict.reason()}"
    wrong = [programs.run(mistake.run, found.case, arrays) for arrays in found.sets][-1]
    verdict = found.judge.judge(wrong, correct.points)
    assert not verdict.problem, "a mistake has outputs of the right shape and dtype"
    assert not verdict.ok
    if verdict.ratio > 1:
        assert worse(
            verdict.index, wrong[verdict.output], right[verdict.output], found.judge.reference()[verdict.output]
        )


def worse(at, wrong, right, exact):
    """Whether the mistake moved that element away from the formula: it is rejected for what it did."""
    with np.errstate(invalid="ignore"):
        errors = [abs(float(a[at]) - exact[at]) for a in (wrong, right)]
    same = [float(a[at]) == exact[at] or (np.isnan(float(a[at])) and np.isnan(exact[at])) for a in (wrong, right)]
    return not same[0] and (same[1] or not errors[0] <= errors[1])


def test_no_mistake_is_lost():
    """The documentation says how many there are: whoever takes one away says so there."""
    assert f"{len(PLANTED)} wrong programs" in NUMERICS.read_text()


def test_every_kernel_has_programs():
    assert set(PROGRAMS) == set(KERNELS), (
        "tests/programs/<kernel>.py has a kernel's correct programs and planted mistakes"
    )
