"""Outputs of calls on the same inputs: which are the same bit for bit, and which come back to be judged."""

from __future__ import annotations

import numpy as np
import pytest
from stand_in import StandIn

from fusebench.records.record import Spread
from fusebench.workers.repeats import RANKS, Repeats

INF, NAN = np.inf, np.nan


@pytest.fixture
def repeats():
    return Repeats(StandIn())


A = np.arange(4, dtype=np.float32)


def off(by, at=1):
    output = A.copy()
    output[at] += by
    return output


def test_the_same_bits_are_no_spread(repeats):
    assert all(repeats.see(0, A.copy()) for _ in range(5)) and all(repeats.see(2, 2 * A) for _ in range(3))
    assert repeats.found() is None and repeats.take() == []


def test_each_set_has_its_own_first_output(repeats):
    assert repeats.see(0, A) and repeats.see(2, 2 * A)
    assert not repeats.see(2, A) and not repeats.see(0, 2 * A)
    assert repeats.found() == Spread(3, 3.0, 2, 2), "of two calls that could have been the same"


def test_a_call_may_write_all_outputs_to_one_buffer(repeats):
    buffer = A.copy()
    repeats.see(0, buffer)
    buffer[1] = 9
    assert not repeats.see(0, buffer)
    buffer[1] = 8
    ((_, (kept,)),) = repeats.take()
    assert kept.tolist() == [0, 9, 2, 3] and repeats.first[0][0].tolist() == A.tolist()


@pytest.mark.parametrize("value", [NAN, INF, -0.0])
def test_a_spoilt_element_is_another_bit(repeats, value):
    assert repeats.see(0, A) and repeats.backend.events == ["wait"], "the copy is finished before the next call"
    assert not repeats.see(0, np.array([value, 1, 2, 3], np.float32))
    assert len(repeats.take()) == 1


def test_a_zero_of_the_other_sign_is_a_difference_of_no_element(repeats):
    repeats.see(0, A)
    assert not repeats.see(0, np.array([-0.0, 1, 2, 3], np.float32))
    assert repeats.found() == Spread(0, 0.0, 1, 1)


def test_nan_beside_the_same_nan_is_no_difference(repeats):
    spoilt = np.array([NAN, 1], np.float32)
    assert repeats.see(0, spoilt) and repeats.see(0, spoilt.copy())


def test_several_outputs_are_compared_one_by_one(repeats):
    repeats.see(0, (A, 2 * A))
    assert repeats.see(0, [A.copy(), 2 * A])
    assert not repeats.see(0, (A, A)) and not repeats.see(0, (A,)) and not repeats.see(0, A)
    assert 1 in [len(outputs) for _, outputs in repeats.take()], "a missing one is infinitely far off"


def test_the_output_that_differs_most_is_kept(repeats):
    repeats.see(0, A)
    for by in (0.5, 4, 1, 0, 8, 2, 0.25):
        repeats.see(0, off(by))
    assert repeats.found() == Spread(1, 8.0, 6, 7)
    kept = repeats.take()
    assert 8 in [float(outputs[0][1] - 1) for _, outputs in kept] and len(kept) <= len(RANKS)
    assert repeats.take() == [], "once"
    assert repeats.found() == Spread(1, 8.0, 6, 7), "what was seen stays known"
    repeats.see(0, off(0.5))
    assert len(repeats.take()) == 1


@pytest.mark.parametrize(
    "spoilt", [[0.0, 1.0, 2.0, 1000.0], [0.0011, 1.01, 2.01, 1000.0]], ids=["a small one lost", "several moved"]
)
def test_rounding_of_large_elements_hides_no_fault_of_small_ones_or_of_many(repeats, spoilt):
    """As of a race beside sums whose order is nobody's."""
    right = np.array([0.001, 1, 2, 1000], np.float32)
    repeats.see(0, right)
    for by in (0.5, 0.25, 0.75, 1.0):
        repeats.see(0, right + np.float32([0, 0, 0, by]))
    repeats.see(0, np.array(spoilt, np.float32))
    for by in (0.5, 0.75, 1.0, 1.25):
        repeats.see(0, right + np.float32([0, 0, 0, by]))
    kept = [outputs[0].tolist() for _, outputs in repeats.take()]
    assert np.array(spoilt, np.float32).tolist() in kept and len(kept) > 1


def test_a_nan_is_kept_before_any_number(repeats):
    repeats.see(0, A)
    for by in (100, NAN, 200, 300, 400):
        repeats.see(0, off(by))
    assert any(np.isnan(outputs[0][1]) for _, outputs in repeats.take()) and repeats.found().max_abs == INF


def test_the_spread_is_the_most_of_any_call(repeats):
    repeats.see(0, A)
    repeats.see(0, off(0.25))
    assert repeats.found() == Spread(1, 0.25, 1, 1)
    repeats.see(0, A + np.float32(0.5))
    repeats.see(0, off(3))
    assert repeats.found() == Spread(4, 3.0, 3, 3)


@pytest.mark.parametrize(
    ("outputs", "elements"), [([A[:2]], 4), ([A, A], 8), ([A.reshape(2, 2)], 4)], ids=["shorter", "more", "other shape"]
)
def test_outputs_of_another_shape_or_number_are_infinitely_far_apart(repeats, outputs, elements):
    repeats.see(0, [A])
    assert not repeats.see(0, outputs)
    assert repeats.found() == Spread(elements, INF, 1, 1)


def test_only_what_is_kept_comes_from_the_device(repeats, monkeypatch):
    monkeypatch.setattr("fusebench.draws.share", float)
    repeats.see(0, A)
    fetched = []
    monkeypatch.setattr(repeats.backend, "get", lambda array: fetched.append(float(array[1] - 1)) or np.asarray(array))
    for by in (4, 8, 2, 1, 16, 0.5):
        repeats.see(0, off(by))
    assert fetched == [4, 8, 16] and [float(o[0][1] - 1) for _, o in repeats.take()] == [4, 16], (
        "the first as good as any"
    )


def test_rows_at_the_same_place_in_another_set_are_no_spread(repeats):
    """Each set has its own tile at the edge."""
    for set_ in (0, 1):
        repeats.see(set_, A, "here")
    assert not repeats.see(0, off(1), "there") and not repeats.see(1, off(2), "there") and repeats.found() is None
