"""What an implementation changes in its process is seen by name, and what a library does itself is not."""

from __future__ import annotations

import _thread
import sys
import threading
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
def test_a_replaced_function_is_named(monkeypatch, function):
    before = state.functions()
    monkeypatch.setattr(function, lambda *_: 0)
    assert state.replaced(before, state.functions()) == (function,)


def test_a_function_that_says_it_is_equal_to_all_is_another_one(monkeypatch):
    class Sly:
        __hash__ = None

        def __eq__(self, other):
            return True

        def __call__(self):
            return 0

    before = state.functions()
    monkeypatch.setattr("time.time", Sly())
    assert state.replaced(before, state.functions()) == ("time.time",)


def test_a_function_that_is_gone_was_replaced_and_a_new_one_was_not(monkeypatch):
    before = state.functions()
    monkeypatch.setattr(sys.modules["numpy"], "of_my_own", len, raising=False)
    assert state.replaced(before, state.functions()) == ()
    assert state.replaced(state.functions(), before) == ("numpy.of_my_own",)


def test_the_cores_and_the_threads_of_the_process_are_settings_too(backend, monkeypatch):
    before = state.read(backend)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {5, 3} if process == 0 else set())
    count = _thread._count()
    monkeypatch.setattr("_thread._count", lambda: count + 1)
    backend.settings = lambda: {"precision": "tf32"}
    cores, threads, precision = state.changes(before, state.read(backend))
    assert cores == f"CPU affinity {before['CPU affinity']} → [3, 5]"
    assert threads.startswith("live threads ") and precision == "precision ieee → tf32"


@pytest.mark.parametrize(("module", "more"), [("torch._inductor.compile_worker.pool", 0), ("mine", 1)])
def test_a_thread_of_a_compiler_is_no_change_and_another_is(backend, monkeypatch, module, more):
    """Whatever the compiler's is called: it is known by the module whose function it runs."""
    running, begun, end = [], threading.Event(), threading.Event()
    monkeypatch.setattr("_thread._count", lambda: 7 + len(running))
    names = {"__name__": module, "begun": begun, "end": end}
    exec("def work():\n    begun.set()\n    end.wait()", names)
    before = state.read(backend)
    running.append(threading.Thread(target=names["work"]))
    running[0].start()
    begun.wait()
    try:
        assert state.read(backend)["live threads"] == before["live threads"] + more
    finally:
        end.set()
        running[0].join()


def test_what_is_no_function_of_a_module_is_no_state_of_the_process(monkeypatch):
    before = state.functions()
    monkeypatch.setattr("numpy.pi", 3)
    monkeypatch.setattr("time.timezone", "a text")
    assert state.replaced(before, state.functions()) == () and "time.timezone" not in before.values


def test_a_method_of_a_tensor_may_not_be_replaced_and_a_generator_s_seed_may(monkeypatch):
    """torch.compile replaces torch.manual_seed when it is first used."""
    pytest.importorskip("torch")
    before = state.functions()
    for function in ("torch.Tensor.sum", "torch.manual_seed", "torch.nn.functional.relu"):
        monkeypatch.setattr(function, lambda *_: 0)
    assert set(state.replaced(before, state.functions())) == {
        "torch.Tensor.sum",
        "torch.nn.functional.relu",
    }


def test_a_framework_that_is_not_loaded_has_no_functions(monkeypatch):
    for name in ("torch", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = state.functions().values
    assert "time.time" in found and "numpy.matmul" in found
    assert not [name for name in found if name.startswith(("torch.Tensor", "jax.jit"))]


def test_a_setting_is_shown_with_both_values_and_many_are_cut_short():
    assert state.changes({"a": 1, "b": 2}, {"a": 1, "b": 3}) == ("b 2 → 3",)
    assert state.changes(dict.fromkeys("abcdef", 1), {})[-1] == "f 1 → None", "six are shown"
    assert state.changes(dict.fromkeys("abcdefg", 1), {})[-1] == "1 more"
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
