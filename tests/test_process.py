"""What an implementation changes in its process is seen by name, and what a library does itself is not."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fusebench.workers import outputs, state


@pytest.fixture
def backend():
    return SimpleNamespace(settings=lambda: {"precision": "ieee"})


def test_nothing_changed_is_no_change(backend):
    assert state.changes(state.read(backend), state.read(backend)) == ()


@pytest.mark.parametrize("function", ["time.perf_counter", "numpy.matmul"])
def test_a_replaced_function_is_named(backend, monkeypatch, function):
    before = state.read(backend)
    monkeypatch.setattr(function, lambda *_: 0)
    assert state.changes(before, state.read(backend)) == (f"{function} replaced",)


def test_a_function_that_says_it_is_equal_to_all_is_another_one(backend, monkeypatch):
    class Sly:
        __hash__ = None

        def __eq__(self, other):
            return True

        def __call__(self):
            return 0

    before = state.read(backend)
    monkeypatch.setattr("time.time", Sly())
    assert state.changes(before, state.read(backend)) == ("time.time replaced",)


def test_a_function_that_is_gone_was_replaced_and_a_new_one_was_not(backend, monkeypatch):
    before = state.read(backend)
    monkeypatch.setattr(sys.modules["numpy"], "of_my_own", len, raising=False)
    assert state.changes(before, state.read(backend)) == ()
    assert state.changes(state.read(backend), before) == ("numpy.of_my_own replaced",)


def test_a_setting_is_shown_with_both_values_and_many_are_cut_short():
    assert state.changes({"a": 1, "b": 2}, {"a": 1, "b": 3}) == ("b 2 → 3",)
    assert state.changes(dict.fromkeys("abcdefgh", 1), {})[-2:] == ("f 1 → None", "2 more")


class Lazy(list):
    def __iter__(self):
        raise AssertionError("it was looked at")


def test_a_list_that_is_iterated_in_its_own_way_is_no_list():
    assert outputs.as_list([1, 2]) == [1, 2] and outputs.as_list((1,)) == [1] and outputs.as_list(3) == [3]
    (one,) = outputs.as_list(Lazy())
    assert type(one) is Lazy


@pytest.mark.parametrize(
    ("a", "b", "shared"),
    [([(0, 4)], [(4, 8)], False), ([(0, 5)], [(4, 8)], True), ([(5, 6)], [(4, 8)], True), ([(4, 4)], [(0, 8)], False), ([], [(0, 1)], False)],
)  # fmt: skip
def test_memory_is_shared_where_spans_overlap(a, b, shared):
    assert outputs.overlap(a, b) is shared and outputs.overlap(b, a) is shared


@pytest.mark.parametrize("name", ["torch", "jax", "numpy"])
def test_an_array_has_memory_of_its_own(name):
    backend = pytest.importorskip(f"fusebench.backends.{name}")
    device = SimpleNamespace(type="cpu")
    a = backend.put(np.arange(64, dtype=np.float32), device)
    b = backend.copy(a)
    ((begin, end),) = outputs.spans(backend, a)
    assert end - begin == a.nbytes and not outputs.overlap([(begin, end)], outputs.spans(backend, b))
    assert outputs.fault(backend, (a, b), device, []) is None
    assert "the memory of an input" in outputs.fault(backend, (b, a), device, [(begin, end)])
