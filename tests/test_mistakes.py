"""Planted mistakes: every wrong program is rejected on its case, where the correct one that it deviates from passes."""

from __future__ import annotations

import programs
import pytest

from fusebench import discovery

KERNELS = discovery.find_kernels([discovery.HOME])
PROGRAMS = programs.find(KERNELS)
PLANTED = {(kernel, name): mistake for kernel, p in PROGRAMS.items() for name, mistake in p.mistakes.items()}


@pytest.mark.parametrize("planted", PLANTED, ids=": ".join)
def test_a_mistake_is_rejected_and_nothing_but_the_mistake(planted):
    kernel, mistake = planted[0], PLANTED[planted]
    wrong, right = programs.judged(KERNELS[kernel], mistake, PROGRAMS[kernel].correct[mistake.of])
    assert right.ok, f"the program without the mistake: {right.reason()}"
    assert not wrong.problem, "a mistake has outputs of the right shape and dtype"
    assert not wrong.ok


def test_there_are_enough_mistakes():
    assert len(PLANTED) >= 60


def test_every_kernel_has_programs():
    assert set(PROGRAMS) == set(KERNELS), (
        "tests/programs/<kernel>.py has a kernel's correct programs and planted mistakes"
    )
