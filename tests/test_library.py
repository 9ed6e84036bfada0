"""`fusebench.measure`: which back end a call computes with, what is refused, and what the record has of plain Python and NumPy."""

from __future__ import annotations

import inspect
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import torch
import yaml
from samples import CPU as CPU_INFO
from samples import case, timed, untimed

import fusebench
from fusebench import library, machine
from fusebench.settings import Settings
from fusebench.timing.plan import Plan

MIB = 2**20
CPU = jax.devices("cpu")[0]


@pytest.fixture
def benches(monkeypatch):
    """The back end and device of each bench that `measure` makes; none is made, and nothing is measured."""
    made = []

    def bench(*which):
        made.append(which)
        raise Stopped

    monkeypatch.setattr(library, "Bench", bench)
    return made


class Stopped(Exception):
    pass


def chosen(benches, *arguments, **options):
    """The back end and device that `measure` takes for these arguments."""
    with pytest.raises(Stopped):
        fusebench.measure(lambda *_: pytest.fail("called"), *arguments, **options)
    return benches.pop()


def refused(*arguments, **options):
    with pytest.raises(ValueError) as error:
        fusebench.measure(lambda *_: pytest.fail("called"), *arguments, **options)
    return str(error.value)


# The back end

TORCH, NUMPY = torch.zeros(2), np.zeros(2)
JAX = jax.device_put(NUMPY, CPU)
PLACES = {
    "bare": lambda array: (array,),
    "last": lambda array: (1, "text", None, array),
    "list": lambda array: ([1, array],),
    "tuple": lambda array: ((1, (2, array)),),
    "dict": lambda array: ({"a": 1, "b": array},),
    "deep": lambda array: ({"layers": [{"w": (array,)}, {}]}, []),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("array", "backend"), [(TORCH, "torch"), (JAX, "jax"), (NUMPY, "numpy")])
def test_an_array_decides_wherever_it_stands(benches, array, backend, place):
    assert chosen(benches, *PLACES[place](array)) == (backend, "cpu")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("array", "backend"), [(TORCH, "torch"), (NUMPY, "numpy")])
def test_an_array_decides_where_jax_is_not_loaded(benches, monkeypatch, array, backend, place):
    monkeypatch.delitem(sys.modules, "jax")
    assert chosen(benches, *PLACES[place](array)) == (backend, "cpu")


def test_a_dictionary_that_jax_could_not_sort_is_looked_into(benches):
    assert chosen(benches, {1: 1.0, "a": TORCH, None: {2: 3, "b": 4}}) == ("torch", "cpu")


def test_a_pytree_of_jax_s_own_is_looked_into(benches):
    @jax.tree_util.register_pytree_node_class
    class Weights:
        def __init__(self, *parts):
            self.parts = parts

        def tree_flatten(self):
            return self.parts, None

        @classmethod
        def tree_unflatten(cls, _, parts):
            return cls(*parts)

    assert chosen(benches, [Weights(1.0, JAX)]) == ("jax", "cpu")
    assert chosen(benches, Weights(NUMPY)) == ("numpy", "cpu")


@pytest.mark.parametrize(("array", "backend"), [(TORCH, "torch"), (JAX, "jax")])
def test_frameworks_take_numpy_s_arrays_too(benches, array, backend):
    assert chosen(benches, NUMPY, array) == chosen(benches, array, {"x": NUMPY}) == (backend, "cpu")


def test_a_back_end_that_is_named_counts_more_than_arrays(benches):
    assert chosen(benches, NUMPY, backend="torch", device="cpu") == ("torch", "cpu")
    assert chosen(benches, TORCH, JAX, backend="torch") == ("torch", "cpu")
    assert chosen(benches, TORCH, JAX, backend="jax") == ("jax", "cpu")


def test_no_framework_is_loaded_to_look_for_arrays():
    program = (
        "import sys, numpy, fusebench\n"
        "fusebench.measure(numpy.sin, [numpy.zeros(3)][0], time_s=0.001)\n"
        "print([m for m in ('torch', 'jax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


# Without an array


@pytest.mark.parametrize("arguments", [(), (1, 2.0, "text", None), ([], {}), ([1], {"a": (2, 3)}), (np.float32(1),)])
def test_where_no_argument_is_an_array_the_back_end_is_asked_for(arguments):
    assert refused(*arguments) == (
        "no argument is an array: name the back end that the call computes with, backend= one of jax, torch, numpy; "
        "numpy is for plain Python as well"
    )


@pytest.mark.parametrize(
    ("gpu", "options", "expected"),
    [
        (None, {"backend": "torch"}, ("torch", "cpu")),
        ({"name": "x"}, {"backend": "torch"}, ("torch", "cuda")),
        ({"name": "x"}, {"backend": "jax"}, ("jax", "cuda")),
        ({"name": "x"}, {"backend": "torch", "device": "cpu"}, ("torch", "cpu")),
        ({"name": "x"}, {"backend": "numpy"}, ("numpy", "cpu")),  # which has no other
    ],
)
def test_the_device_of_a_back_end_that_is_named(benches, monkeypatch, gpu, options, expected):
    monkeypatch.setattr(machine, "gpu", lambda: gpu)
    assert chosen(benches, **options) == expected


# What is refused


@pytest.mark.parametrize("arguments", [(), (TORCH,)], ids=["no array", "array"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "torhc"}, "unknown backend 'torhc': did you mean torch? There are: jax, numpy, torch"),
        ({"backend": ""}, "unknown backend ''. There are: jax, numpy, torch"),
        ({"backend": "torch", "device": "gpu"}, "unknown device 'gpu': did you mean cpu? There are: cpu, cuda"),
        ({"device": "auto"}, "unknown device 'auto'. There are: cpu, cuda"),
    ],
)
def test_a_name_that_there_is_not_is_answered_with_those_that_there_are(arguments, options, said):
    assert refused(*arguments, **options) == said


@pytest.mark.parametrize("what", ["flops", "moved_bytes"])
@pytest.mark.parametrize("amount", [-1, "abc", float("nan"), float("inf")])
def test_work_that_is_no_number_of_at_least_0_is_refused_before_the_call(what, amount):
    assert refused(NUMPY, **{what: amount}) == f"{what} is {amount!r}: expected None or a number of at least 0"


def test_what_cannot_be_called_is_refused():
    with pytest.raises(ValueError, match=r"^call is 3: expected a function$"):
        fusebench.measure(3, backend="numpy")


@pytest.mark.parametrize("array", [TORCH, JAX, NUMPY])
def test_an_array_lies_where_it_lies(array):
    said = "device is 'cuda', but an argument lies on 'cpu'"
    assert refused(array, device="cuda") == refused([{"x": array}], device="cuda") == said


def test_numpy_computes_on_the_cpu_alone():
    with pytest.raises(RuntimeError, match=r"^NumPy computes on the CPU alone: device=cpu$"):
        fusebench.measure(lambda: pytest.fail("called"), backend="numpy", device="cuda")


def test_a_second_gpu_is_refused():
    """The flush and the wait would be the first one's: nothing would be cold, nor queued, nor waited for."""
    from fusebench.backends import torch as backend

    with pytest.raises(ValueError, match="cuda:1: only the first visible GPU"):
        backend.device_of(SimpleNamespace(device=torch.device("cuda", 1)))


# The record


def test_measure_and_settings_have_the_values_that_bench_has():
    """In conf/, which is where a user of the command line reads them."""
    conf = Path(fusebench.__file__).parents[1] / "conf"
    bench = yaml.safe_load((conf / "base.yaml").read_text()) | yaml.safe_load((conf / "bench.yaml").read_text())
    given = {n: p.default for n, p in inspect.signature(fusebench.measure).parameters.items()}
    for key in ("time_s", "target", "regime", "cache"):
        assert given[key] == getattr(Plan(), key) == bench[key]
    assert Settings().timeout_s == bench["timeout_s"] and Settings().threads is bench["threads"] is None


@pytest.mark.parametrize("time_s", ["a", 0, float("inf")])
def test_a_budget_that_is_no_time_is_refused(time_s):
    with pytest.raises(ValueError, match=f"time_s is {time_s!r}: expected a number of seconds above 0"):
        fusebench.measure(np.abs, np.ones(3), time_s=time_s)


def test_arrays_reach_the_call_as_they_were_given():
    seen = []
    tree = {"x": np.ones(3), "y": [2.0]}
    record = fusebench.measure(lambda *given: seen.append(given), tree, 7, time_s=0.001)
    assert len(seen) > 1 and all(given[0] is tree and given[1] == 7 for given in seen)
    assert record.case.dtype == "float64"


def test_numpy_s_arrays_give_the_record_of_a_cell():
    x = np.zeros((100, 10), np.float32)
    record = fusebench.measure(np.add, x, x, time_s=0.005, flops=1000, moved_bytes=12_000)
    assert (record.label, record.case.dtype, record.device.type, record.status) == ("add", "float32", "cpu", "ok")
    assert record.build.written_bytes == x.nbytes and record.build.prepare_s == 0 <= record.build.compile_s
    timing = record.timing
    assert timing.timer == "wall" and 0 < timing.q1 <= timing.median <= timing.q3 and len(timing.samples) >= 3
    assert record.rates.gbps == pytest.approx(12_000 / timing.median / 1e9)
    assert record.rates.tflops == pytest.approx(1000 / timing.median / 1e12)
    assert record.environment.packages["numpy"] == np.__version__


def test_plain_python_gives_the_record_of_a_cell():
    record = fusebench.measure(sorted, range(100), name="mine", backend="numpy", time_s=0.005)
    assert (record.label, record.case.dtype, record.device.type, record.status) == ("mine", "", "cpu", "ok")
    assert record.timing.median > 0 and record.timing.timer == "wall" and record.build.written_bytes == 0
    rates = record.rates
    # what the device can do may be known from an earlier run
    assert (rates.tflops, rates.gbps, rates.best_s, rates.bound_s) == (None,) * 4, "nothing is known of the call"


def test_keyword_arguments_reach_the_call_and_decide_as_others_do(benches):
    assert chosen(benches, 1, dim=-1, x=TORCH) == ("torch", "cpu")


def test_a_call_with_keyword_arguments_is_timed_with_them():
    seen = []
    record = fusebench.measure(lambda x, **given: seen.append(given), 3, axis=-1, out=NUMPY, time_s=0.001)
    assert len(seen) > 1 and all(given["axis"] == -1 and given["out"] is NUMPY for given in seen)
    assert (record.label, record.case.dtype) == ("<lambda>", "float64")


def test_threads_are_the_cores_and_torch_s_threads_of_the_calls_alone():
    def call():
        seen.append((len(os.sched_getaffinity(0)), torch.get_num_threads()))

    seen, ours, before = [], os.sched_getaffinity(0), torch.get_num_threads()
    record = fusebench.measure(call, backend="torch", device="cpu", threads=1, time_s=0.001)
    assert set(seen) == {(1, 1)} and record.timing.state.threads == (1, 1) and record.device.threads == 1
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == (ours, before)


def test_a_thread_that_began_within_a_call_gets_the_cores_that_were_ours():
    """Not all of the machine: this process may have had fewer before."""
    whole, begun, done = os.sched_getaffinity(0), [], threading.Event()

    def call():
        if not begun:
            begun.append(threading.Thread(target=done.wait))
            begun[0].start()

    try:
        os.sched_setaffinity(0, {min(whole)})
        fusebench.measure(call, backend="numpy", threads=1, time_s=0.001)
        assert os.sched_getaffinity(begun[0].native_id) == {min(whole)}
    finally:
        done.set()
        begun[0].join()
        os.sched_setaffinity(0, whole)


@pytest.mark.parametrize("threads", [0, True, 1.0, 10**6])
def test_threads_that_there_are_not_are_refused(threads):
    assert refused(NUMPY, threads=threads).startswith(f"threads is {threads}: expected a number from 1 to ")


def test_a_gpu_has_no_threads_to_choose(benches):
    said = "threads is 1: expected None on a GPU, whose time the host's threads do not change"
    assert refused(backend="torch", device="cuda", threads=1) == said


def test_a_record_prints_as_a_few_lines():
    record = timed("softmax", of=case("softmax", id="softmax"), written_bytes=8, work=(2_000_000_000, 3_000_000))
    assert (
        repr(record)
        == str(record)
        == (
            "softmax on some GPU: ok\n  100 µs ± 7.0%  queued, cold caches, 6 samples\n  20 TFLOP/s, 30 GB/s, best 40 µs"
        )
    )
    unknown = timed("softmax", device=CPU_INFO, rates=None, work=(None, None), how={"regime": "isolated"})
    assert repr(unknown).splitlines()[1:] == ["  100 µs ± 7.0%  isolated, cold caches, 6 samples"]
    assert repr(untimed("cuda", "failed", reason="raised")).splitlines()[1:] == ["  raised"]


@pytest.mark.parametrize("held", [0, 160])
def test_peak_memory_is_what_the_call_takes_beyond_its_inputs(held):
    def ones(size):  # in pages of their own, whatever earlier tests have left to the allocator
        array = np.frombuffer(mmap.mmap(-1, size * MIB), np.uint8) if size else np.zeros(0, np.uint8)
        array[:] = 1
        return array

    def call(_):
        ones(48)
        return np.ones(16 * MIB, np.uint8)

    x = ones(held)

    peak = fusebench.measure(call, x, time_s=0.001).build.peak_memory_bytes
    if peak is None:
        pytest.skip("this system does not let a process begin the count of its peak")
    assert 47 * MIB <= peak <= 80 * MIB


def test_a_system_that_does_not_tell_gives_no_peak(monkeypatch):
    monkeypatch.setattr(machine, "reset_peak_rss", lambda: None)
    assert fusebench.measure(np.sin, NUMPY, time_s=0.001).build.peak_memory_bytes is None
