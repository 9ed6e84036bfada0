"""Calls of several launches, by a stand-in for the driver."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

pytest.importorskip("cuda.core")
from cuda_kernels import H200, KERNELS, module_of
from stand_in_driver import PROGRAM, on

from fusebench.backends import calls, cuda, tensor_maps
from fusebench.cases import make_case
from fusebench.launchers import chained


@pytest.fixture
def allocated(driver, monkeypatch):
    """The shapes of what calls allocate."""
    shapes, empty = [], calls._empty(torch)
    noting = lambda shape, strides, dtype: shapes.append(tuple(shape)) or empty(shape, strides, dtype)  # noqa: E731
    monkeypatch.setattr(calls, "_empty", lambda torch: noting)
    return shapes


class Map(tensor_maps.TensorMap):
    """A tensor map as a driver makes it that writes nothing but the address."""

    __slots__ = ()

    def describe(self, pointer, shape):
        self.shape = shape


def launch(outputs, tensors=3, numbers=(4,), **options):
    return cuda.Launcher(PROGRAM, 1, 32, dtypes=("float32",) * tensors, **options).returning(outputs, numbers)


def two():
    """y and mean of x; both, and y @ w."""
    statistics, product = launch({1: (4,), 2: (4,)}), launch({2: (4, 8)})

    def call(x, arrays):
        mean, y = statistics(x)
        return product(mean, arrays[0]), (x, y, arrays[1])

    return call


def vectors(count=2, gpu=0):
    return [on(gpu, torch.ones(4)) for _ in range(count)]


def test_the_first_call_is_as_it_was_and_the_next_ones_have_one_allocation_for_all_between(driver, allocated):
    call, (x, w) = chained(two()), vectors()
    call(x, (w, None))
    assert allocated == [(4,), (4,), (4, 8)]
    for given, other in (vectors(), vectors(), (w, x)):
        del allocated[:]
        y, (same, kept, none) = call(given, (other, None))
        first, second = driver.launched[-2:]
        assert sorted(allocated) == [(4,), (4, 8), (512,)], "what lies between, and what is returned"
        assert first.values == [given.data_ptr(), second.values[0], kept.data_ptr(), 4]
        assert second.values[1:] == [other.data_ptr(), y.data_ptr(), 4]
        assert same is given and none is None and y.shape == (4, 8) and kept.shape == (4,)
    assert len(driver.launched) == 8


def test_tensors_between_launches_are_apart(driver):
    first, second, third = launch({1: (4,), 2: (300,)}), launch({2: (2,)}), launch({2: (4,)})

    def call(x):
        a, b = first(x)
        return third(second(a, b), a)

    call, x = chained(call), vectors(1)[0]
    for _ in range(2):
        call(x)
    (_, a, b, _), (*read, c, _), (*last, y, _) = (launched.values for launched in driver.launched[-3:])
    assert read == [a, b] and last == [c, a] and [b - a, c - a] == [512, 512 + 1536] and y not in (a, b, c)


def test_an_address_within_a_tensor_stays_as_far_behind_its_begin(driver):
    product, last = launch({1: (3, 4)}, 2, ()), cuda.Launcher(PROGRAM, 1, 32)

    def call(x):
        rows, y = product(x), x.new_empty((4,))
        last(rows, rows.data_ptr() + 16, y, y.data_ptr() + 4, x.data_ptr() + 8, 3)
        return y

    call, x = chained(call), vectors(1)[0]
    for _ in range(3):
        y = call(x)
        rows = driver.launched[-2].values[1]
        assert driver.launched[-1].values == [rows, rows + 16, y.data_ptr(), y.data_ptr() + 4, x.data_ptr() + 8, 3]


def test_tensor_maps_of_given_tensors_and_of_those_between(driver, monkeypatch):
    monkeypatch.setattr(cuda, "TensorMap", Map)
    first, second = launch({1: (4, 64)}, 2, (), boxes=[(2, 32)]), launch({2: (4,)}, 3, (), boxes=[(2, 32), (2, 32)])
    call = chained(lambda x, w: second(first(x), w))
    for _ in range(3):
        x, w = (on(0, torch.ones(4, 64)) for _ in "xw")
        y = call(x, w)
        before, behind = driver.launched[-2:]
        assert before.values[0] == x.data_ptr() and behind.values == [before.values[1], w.data_ptr(), y.data_ptr()]


@pytest.mark.parametrize("of", ["dtype", "shape", "none", "count"])
def test_other_arguments_are_the_calls_own_affair(driver, allocated, of):
    """What was chained is not launched for them, nor are they refused."""
    seen = []

    def call(x, w, more=None):
        seen.append(more)
        m, _ = statistics(x)
        return product(m, w)

    statistics, product = launch({1: (4,), 2: (4,)}), launch({2: (4, 8)})
    chain, (x, w) = chained(call), vectors()
    chain(x, w, None)
    chain(x, w, None)
    assert seen == [None, None], "the first call, and that it was followed"
    if of == "dtype":
        with pytest.raises(ValueError, match=r"argument 1 is torch\.float64; the kernel takes torch\.float32"):
            chain(x, on(0, w.double()), None)
        return
    given = {"shape": (x, on(0, torch.ones(2, 4)), None), "none": (x, w, 5), "count": (x, w)}[of]
    del allocated[:]
    for _ in range(2):
        chain(*given)
    assert len(seen) == 4 and (1024,) not in allocated
    chain(x, w, None)
    assert (1024,) in allocated and len(seen) == 4, "and the others are as quick as before"


@pytest.mark.parametrize(
    "does", ["computes", "asks", "asks for truth", "minds", "launches one twice", "returns a number", "launches once"]
)
def test_what_is_more_than_launches_runs_as_it_is(driver, does):
    a, b = launch({1: (4,)}, 2, ()), launch({1: (4,)}, 2, ())

    def call(x):
        if does == "computes":
            return b(on(0, a(x) * 2))
        if does == "asks":
            return b(a(x)) if x.sum() > 0 else x
        if does == "asks for truth":
            return b(a(x)) if x[:1] else x
        if does == "minds":
            if not isinstance(x, torch.Tensor):
                raise ValueError("no tensor")
            return b(a(x))
        if does == "launches one twice":
            return a(a(x))
        return (b(a(x)), 3) if does == "returns a number" else a(x)

    plain, count = chained(call), {"launches once": 1}.get(does, 2)
    for i in range(5):
        plain(on(0, torch.ones(4)))
        assert len(driver.launched) == count * (i + 1)
        if count == 2 and does != "computes":
            assert driver.launched[-1].values[0] == driver.launched[-2].values[1]


def test_a_shape_that_the_launches_follow_from_is_checked_also_of_a_tensor_that_none_has(driver):
    first, last = launch({1: (4,)}, 2, ()), cuda.Launcher(PROGRAM, 1, 32)

    def call(x, like):
        y = first(x)
        last(y, y, like.shape[0])
        return y

    call, x = chained(call), vectors(1)[0]
    for rows in (7, 7, 9, 11, 7):
        call(x, on(0, torch.ones(rows)))
        assert driver.launched[-1].values[2] == rows


def test_what_is_given_is_returned_as_it_was(driver):
    statistics, product = launch({1: (4,), 2: (4,)}), launch({2: (4, 8)})

    def call(x, arrays):
        mean, y = statistics(x)
        return [product(mean, arrays[0]), (y,)], arrays

    call, (x, w) = chained(call), vectors()
    for arrays in ((w,), (w,), (w,)):
        made, same = call(x, arrays)
        assert same == (w,) and [type(part) for part in (made, made[1], same)] == [list, tuple, tuple]


@pytest.mark.parametrize("beside", [None, 1000, 0.5])
def test_calls_that_cannot_go_straight_keep_nothing_each(driver, beside):
    """On another device than the current one, and with a number that is another object each time."""
    call, gpu = two() if beside is None else (lambda x, arrays: two_of_them(x, (arrays[0], None))), int(beside is None)
    two_of_them, call = two(), chained(call)
    for _ in range(20):
        x, w = vectors(2, gpu)
        call(x, (w, None if beside is None else type(beside)(str(beside))))
    assert len({launched.address for launched in driver.launched}) <= 4, "parameters for a call and for a chained one"


def test_each_device_has_its_own(driver):
    call = chained(two())
    for gpu in (0, 1, 0, 1):
        for _ in range(2):
            (x, w), driver.now = vectors(2, gpu), gpu
            y, _ = call(x, (w, None))
            assert [launched.device for launched in driver.launched[-2:]] == [gpu, gpu] and y.get_device() == gpu
            assert driver.launched[-1].function == 0xF00 + gpu and driver.launched[-1].stream == driver.stream + gpu
    driver.now = 0
    y, _ = call(*((v := vectors(2, 1))[0], (v[1], None)))
    assert driver.launched[-1].device == 1, "also where another device is the current one"


def test_a_call_is_queued_on_the_stream_of_the_time(driver):
    call, (x, w) = chained(two()), vectors()
    for stream in (0xABC0, 0xABC0, 0xDEF0, 0xABC0):
        driver.stream = stream
        call(x, (w, None))
        assert [launched.stream for launched in driver.launched[-2:]] == [stream, stream]


def test_calls_that_overlap_write_to_memory_of_their_own(driver, monkeypatch):
    from cuda.bindings import driver as real

    inner, outer, record, inside = vectors(), vectors(), real.cuLaunchKernelEx, []

    def slow(*arguments):
        if len(driver.launched) == 4 and not inside:
            inside.append(True)
            thread = threading.Thread(target=call, args=(inner[0], (inner[1], None)))
            thread.start()
            thread.join()
        return record(*arguments)

    monkeypatch.setattr(real, "cuLaunchKernelEx", slow)
    call = chained(two())
    for _ in range(2):
        call(outer[0], (outer[1], None))
    call(outer[0], (outer[1], None))
    given = [launched.values[0] for launched in driver.launched]
    assert given[4] == inner[0].data_ptr() and given[6] == outer[0].data_ptr()
    assert [launched.values[1] for launched in driver.launched[4:8]][1::2] == [inner[1].data_ptr(), outer[1].data_ptr()]


def test_a_launch_that_the_driver_refuses_is_named(driver):
    from cuda.bindings import driver as real

    call, (x, w) = chained(two()), vectors()
    for _ in range(2):
        call(x, (w, None))
    driver.results = [real.CUresult.CUDA_ERROR_INVALID_VALUE, real.CUresult.CUDA_SUCCESS]
    with pytest.raises(RuntimeError, match=r"copy<float> of copy\.cu was not launched \(CUDA_ERROR_INVALID_VALUE\)"):
        call(x, (w, None))
    assert call(x, (w, None))[0].shape == (4, 8), "and the next call is right again"


def test_forward_and_backward_are_chained_each(driver):
    forward, backward = chained((two(), two()))
    (x, w) = vectors()
    for _ in range(2):
        assert forward(x, (w, None))[0].shape == backward(x, (w, None))[0].shape == (4, 8)


CHAINED = [  # a variant of each kernel whose calls in CUDA C++ are chained, whose case has several launches
    ("dlrm", "modulus", "one", "forward"), ("dlrm_train", "modulus_two_launches", "one", "forward"), ("fused_mlp", "default", "odd", "forward"),
    ("geglu", "two_launches", "odd", "forward"), ("lola", "two_launches", "odd", "forward"), ("lora_linear", "two_launches", "odd", "forward"),
    ("lora_mlp", "two_launches", "odd", "forward"), ("shcsa", "padded_softmax", "odd", "forward"), ("shcsa", "padded_attention", "odd", "forward"),
    ("add_mul_act", "default", {"M": 5000, "N": 70}, "backward"), ("embedding", "deterministic", "tall", "backward"), ("fused_mlp", "default", "odd", "backward"),
    ("geglu", "two_accumulators", "odd", "backward"), ("lola", "multirow", "odd", "backward"), ("lora_linear", "two_launches", "odd", "backward"),
    ("lora_mlp", "default", "odd", "backward"), ("padded_attention", "flash", "odd", "backward"), ("splacc", "two_accumulators", "odd", "backward"),
]  # fmt: skip


@pytest.fixture
def kept_alive(driver, monkeypatch):
    """No two allocations of a call have one address."""
    alive, empty = [], calls._empty(torch)
    monkeypatch.setattr(calls, "_empty", lambda torch: lambda *how: alive.append(empty(*how)) or alive[-1])
    monkeypatch.setattr(
        cuda, "compile_cubin", lambda path, arch, names, defines=(): cuda.Cubin(b"", dict.fromkeys(names, "_Z"))
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index=0: (9, 0))
    monkeypatch.setattr(cuda, "TensorMap", Map)
    return alive


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "variant", "sizes", "mode"), CHAINED)
def test_chained_kernels_launch_what_their_first_call_does(driver, kept_alive, name, variant, sizes, mode, dtype):
    """Where two launches of the first call have one address, those of the others have, and nowhere else."""
    module, case = module_of(name), make_case(KERNELS[name], sizes, dtype, "ieee", {}, mode)
    built, given = (
        module.build(case, variant, H200, module.config(case, variant, H200)),
        arguments_of(module, case, variant),
    )
    if mode == "backward":
        (forward, built), (own, upstream) = built, given
        given = (forward(*own)[1], *upstream)
    found = []
    for _ in range(3):
        del driver.launched[:], kept_alive[:]
        outputs = built(*given)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        values = [value for launched in driver.launched for value in launched.values]
        shared = [values.index(value) for value in values]
        found.append((shared, [launched.grid for launched in driver.launched], [y.shape for y in outputs]))
    assert found[0] == found[1] == found[2] and len(driver.launched) > 1
    between = [memory for memory in kept_alive if memory.dtype is torch.uint8]
    assert len(between) <= 1 and len(kept_alive) <= len(outputs) + len(between), (
        "one allocation for all that is not returned"
    )


def arguments_of(module, case, variant):
    """Tensors of a GPU, with zeros: what a call is given and what was prepared; in the backward modes that, and the upstream gradients."""
    mathematics, rng = KERNELS[case.kernel].mathematics, np.random.default_rng(0)

    def tensors(arrays):
        own = {name: mathematics.own_dtypes.get(name, case.dtype) for name in arrays}
        floats = {
            name: torch.as_tensor(a) if a.dtype.kind == "i" else torch.as_tensor(a).to(getattr(torch, own[name]))
            for name, a in arrays.items()
        }
        return [on(0, tensor) for tensor in floats.values()]

    inputs = tensors(mathematics.inputs(case, rng) | mathematics.weights(case, rng))
    prepared = [on(0, made) for made in getattr(module, "prepare", lambda *_: ())(case, variant, *inputs)]
    own = (*inputs, *prepared)
    return own if case.mode == "forward" else (own, tensors(mathematics.upstream(case, rng)))
