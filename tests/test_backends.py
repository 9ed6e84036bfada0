"""What the back ends offer the harness: the same of each, the same bits, and the settings that decide a figure."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from fusebench.contract import Device
from fusebench.machine import cpu_name

CPU = Device("cpu", "test")
BF16 = np.dtype(ml_dtypes.bfloat16)
INF, NAN = np.inf, np.nan
DTYPES = [np.dtype(n) for n in ("float32", "float16", "float64", "int64", "int32", "uint8", "bool")] + [BF16]
NAMES = ("torch", "jax", "numpy")


@pytest.fixture(params=(*NAMES, "jax as on a GPU"))
def backend(request, monkeypatch):
    name, _, elsewhere = request.param.partition(" ")
    module = load(name)
    if elsewhere:
        monkeypatch.setattr(module, "_on_host", lambda: False)
    return module


@pytest.fixture(params=("torch", "jax"))
def framework(request):
    """Those that compute on a GPU."""
    return load(request.param)


@pytest.fixture
def torch():
    return load("torch")


@pytest.fixture
def jax():
    return load("jax")


def load(name):
    module = importlib.import_module(f"fusebench.backends.{name}")
    if name == "jax":
        module.jax.config.update("jax_enable_x64", True)  # as configure does
    return module


def bits_of(array):
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).tolist()


def sample(dtype, shape=(3, 2)):
    values = np.array([0.0, 1.0, -2.5, 3.25, 0.1, 7.0]).astype(dtype)
    return values[: int(np.prod(shape))].reshape(shape)


# Arrays


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_array_comes_back_bit_for_bit(backend, dtype):
    for array in (sample(dtype), sample(dtype).T, sample(dtype, ()), sample(dtype)[:0]):
        there = backend.put(array, CPU)
        back = backend.get(there)
        assert backend.is_array(there) and not backend.is_array([1.0]) and not backend.is_array(3.0)
        assert back.dtype == array.dtype and back.shape == array.shape and bits_of(back) == bits_of(array)
        assert tuple(there.shape) == array.shape


@pytest.mark.parametrize("bits", [0x7FC00001, 0x7F800001, 0xFFC00000, 0x80000000, 0x00000001])
def test_nan_payloads_minus_zero_and_subnormals_come_back(backend, bits):
    array = np.array([bits], np.uint32).view(np.float32)
    assert bits_of(backend.get(backend.put(array, CPU))) == bits_of(array)
    assert bits_of(backend.get(backend.copy(backend.put(array, CPU)))) == bits_of(array)


def test_strided_outputs_are_read_as_they_look(torch):
    tensor = torch.put(sample(BF16), CPU)
    assert bits_of(torch.get(tensor.T)) == bits_of(sample(BF16).T)
    tensor = torch.put(sample(np.float32), CPU).requires_grad_()
    assert bits_of(torch.get(tensor.T)) == bits_of(sample(np.float32).T)


def test_a_copy_has_memory_of_its_own(backend):
    array = backend.put(sample(np.float32), CPU)
    copy = backend.copy(array)
    assert bits_of(backend.get(copy)) == bits_of(sample(np.float32))
    if backend.__name__.endswith("jax"):
        assert copy.unsafe_buffer_pointer() != array.unsafe_buffer_pointer()
    else:
        copy[0, 0] = 9
        assert backend.get(array)[0, 0] == 0


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_overwriting_keeps_the_memory_where_a_framework_can(name):
    module = load(name)
    a, b = (module.put(np.full(3, v, np.float32), CPU) for v in (1, 2))
    assert module.overwrite(a, b) is a and module.get(a).tolist() == [2, 2, 2]
    b[0] = 7
    assert module.get(a).tolist() == [2, 2, 2]


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("made", [lambda jax, a: jax.copy(a), lambda jax, a: jax.move_rows(a, 0, 1, (0, 2))])
def test_jax_overwrites_memory_by_donating_it(jax, monkeypatch, made, on_host):
    monkeypatch.setattr(jax, "_on_host", lambda: on_host)
    a, b = (made(jax, jax.put(np.full(300, v, np.float32), CPU)) for v in (1, 2))
    place = a.unsafe_buffer_pointer()
    new = jax.overwrite(a, b)
    assert jax.get(new).tolist() == [2] * 300 == jax.get(b).tolist() and a.is_deleted()
    assert new.unsafe_buffer_pointer() == place != b.unsafe_buffer_pointer()
    assert jax.get(jax.overwrite(a, b)).tolist() == [2] * 300, "a call that donates its input has taken the memory"


@pytest.mark.parametrize("on_host", [True, False])
def test_what_is_made_of_an_array_of_jax_is_an_input_like_it(jax, monkeypatch, on_host):
    """A program is compiled anew for arrays that are held to a device."""
    monkeypatch.setattr(jax, "_on_host", lambda: on_host)
    twice = jax.jax.jit(lambda a: a + a)
    array = jax.put(sample(np.float32), CPU)
    for made in (array, jax.copy(array), jax.move_rows(array, 0, 1, (0, 2))):
        twice(made)
    assert twice._cache_size() == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_means_the_same_bits(backend, dtype):
    put = lambda array: backend.put(array, CPU)  # noqa: E731
    array = sample(dtype)
    assert backend.same(put(array), put(array.copy()))
    for place in ((0, 0), (2, 1)):
        other = array.copy()
        other[place] = 0 if other[place] else 1
        assert not backend.same(put(array), put(other))
    assert not backend.same(put(array), put(array[:2])) and not backend.same(put(array), put(array.reshape(2, 3)))


def test_bits_differ_where_values_do_not(backend):
    put = lambda *values, dtype=np.float32: backend.put(np.array(values, dtype), CPU)  # noqa: E731
    nan = float("nan")
    assert backend.same(put(nan, 1.0), put(nan, 1.0)), "a NaN that stays is no change"
    assert not backend.same(put(0.0), put(-0.0)) and not backend.same(put(nan), put(1.0))
    payloads = [np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00000, 0x7FC00001)]
    assert not backend.same(*(backend.put(p, CPU) for p in payloads))
    assert not backend.same(put(1), put(1, dtype=np.int32)) and not backend.same(put(1), put(1, dtype=np.float64))
    assert backend.same(put(), put())


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        ([1.0, 2.0], [1.0, 2.0], (0, 0.0, 0.0)),
        ([1.0, 2.0], [1.5, 0.0], (2, 2.0, 1.0)),
        ([8.0, -0.25], [4.0, 0.25], (2, 4.0, 2.0)),
        ([NAN, NAN], [NAN, 1.0], (1, INF, INF)),
        ([INF, -INF, 0.0], [INF, INF, -0.0], (1, INF, INF)),
        ([1.0], [INF], (1, INF, INF)),
        ([], [], (0, 0.0, 0.0)),
        ([[2**40, 4]], [[2**40 + 3, 5]], (2, 3.0, 0.2)),
    ],
)
def test_how_far_arrays_are_apart(backend, monkeypatch, a, b, apart, on_host):
    if backend.__name__.endswith("jax"):
        monkeypatch.setattr(backend, "_on_host", lambda: on_host)
    if backend.__name__.endswith("torch"):
        monkeypatch.setattr(backend, "CHUNK_ELEMENTS", 2 if on_host else 1)
    assert backend.apart(*(backend.put(np.array(values), CPU) for values in (a, b))) == apart


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_minus_zero_is_seen_in_every_width(backend, dtype):
    zero, minus = (backend.put(np.array([v]).astype(BF16 if dtype == "bfloat16" else dtype), CPU) for v in (0.0, -0.0))
    assert backend.same(zero, zero) and not backend.same(zero, minus)


def test_half_is_half(backend):
    there = backend.put(np.array([3.0, -1.0], np.float32), CPU)
    assert backend.get(backend.half(there)).tolist() == [1.5, -0.5]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool"])
def test_floats_are_mixed_in_their_own_dtype_and_others_stay(backend, dtype):
    array, other = (np.array(a).astype(BF16 if dtype == "bfloat16" else dtype) for a in ([3, 0, 1], [1, 2, 1]))
    there = backend.put(array, CPU)
    found = backend.get(backend.mixed(there, backend.put(other, CPU), 0.75))
    expected = array if dtype in ("int64", "bool") else np.array([2.5, 0.5, 1])
    assert found.dtype == array.dtype and found.tolist() == expected.tolist()
    assert backend.get(there).tolist() == array.tolist()


# Settings


@pytest.fixture
def settings():
    """Puts back what `configure` sets for the whole process."""
    import jax as jax_
    import torch as torch_

    matmul = torch_.backends.cuda.matmul
    before = torch_.get_float32_matmul_precision(), jax_.config.jax_default_matmul_precision
    allowed = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction
    yield
    torch_.set_float32_matmul_precision(before[0])
    jax_.config.update("jax_default_matmul_precision", before[1])
    matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction = allowed


@pytest.mark.parametrize(("precision", "theirs", "tf32"), [("ieee", "highest", False), ("tf32", "high", True)])
def test_torch_multiplies_float32_as_it_is_told(torch, settings, precision, theirs, tf32):
    matmul = torch.torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = matmul.allow_fp16_reduced_precision_reduction = True
    torch.torch.set_float32_matmul_precision("medium")
    torch.configure(precision)
    assert torch.torch.get_float32_matmul_precision() == theirs and matmul.allow_tf32 == tf32
    assert not matmul.allow_bf16_reduced_precision_reduction and not matmul.allow_fp16_reduced_precision_reduction


@pytest.mark.parametrize("asked", [None, "/of/the/user"])
def test_torch_s_assembler_is_not_left_to_programs_of_triton(torch, settings, monkeypatch, asked):
    """Torch's compiler names it once in a process, by a function that remembers that it did."""
    compiling = importlib.import_module("torch._inductor.runtime.compile_tasks")
    pointing = functools.cache(lambda: os.environ.update(TRITON_PTXAS_PATH="/of/torch"))
    monkeypatch.setattr(compiling, "_set_triton_ptxas_path", pointing)
    monkeypatch.setattr(torch, "_assembler_at_start", asked)
    seen = []
    for _ in range(2):
        compiling._set_triton_ptxas_path()
        seen.append(os.environ["TRITON_PTXAS_PATH"])
        torch.configure("ieee")
        assert os.environ.get("TRITON_PTXAS_PATH") == asked
    assert seen == ["/of/torch"] * 2, "what Torch compiles next gets it again"


@pytest.mark.parametrize(("precision", "theirs"), [("ieee", "highest"), ("tf32", "tensorfloat32")])
def test_jax_multiplies_float32_as_it_is_told(jax, settings, monkeypatch, precision, theirs):
    cleared = []
    monkeypatch.setattr(jax.jax, "clear_caches", lambda: cleared.append(1))
    jax.jax.config.update("jax_enable_x64", False)
    jax.configure(precision)
    assert jax.jax.config.jax_default_matmul_precision == theirs and cleared
    assert jax.put(np.array([2**40]), CPU).dtype == "int64", "ids reach beyond 32 bits"
    text = str(jax.jax.make_jaxpr(lambda a: a @ a)(np.ones((2, 2), np.float32)))
    assert ("Precision.HIGHEST" if precision == "ieee" else "Precision.HIGH,") in text


def test_the_numpy_back_end_sets_nothing_and_holds_nothing():
    plain = load("numpy")
    assert plain.start("cpu") == Device("cpu", cpu_name())
    with pytest.raises(RuntimeError, match="on the CPU alone"):
        plain.start("cuda")
    assert plain.watch(lambda a, b: a + b, (1, 2)) == (3, [])
    answers = [
        plain.configure("ieee"),
        plain.wait(3),
        plain.flush(),
        plain.reset_peak(),
        plain.peak_bytes(),
        plain.release(),
    ]
    assert answers == [None] * 5 + [0]


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("ask", ["configure", "release"])
def test_torchs_compiler_starts_anew_where_it_is_loaded(torch, settings, monkeypatch, loaded, ask):
    resets = []
    monkeypatch.setattr(torch.torch.compiler, "reset", lambda: resets.append(1))
    monkeypatch.setitem(sys.modules, "torch._dynamo", SimpleNamespace())
    if not loaded:
        monkeypatch.delitem(sys.modules, "torch._dynamo")
    torch.configure("ieee") if ask == "configure" else torch.release()
    assert resets == [1] * loaded


# Operators


def test_the_operators_that_torch_computes_with_are_named_once(torch):
    t = torch.torch

    def call(x, y):
        z = t.empty_like(x)
        z.copy_(x)
        return ((x + y) + z.reshape(3, 2)[1:].T.clone().sum()).contiguous()

    output, names = torch.watch(call, (t.ones(2, 3), 1))
    assert names == ["torch's add", "torch's sum"] and output.shape == (2, 3)
    output, names = torch.watch(lambda x: x.T.unsqueeze(0).to(t.float16), [t.ones(2, 3)])
    assert names == [] and output.dtype == t.float16, "keyword arguments reach the operators"


def test_the_primitives_that_jax_computes_with_are_named_once(jax):
    import jax as framework
    import jax.numpy as jnp

    inner = framework.jit(lambda x: jnp.tanh(x) + x)

    def call(x, y):
        return framework.jit(lambda: inner(x) + inner(x * y))().reshape(6).reshape(2, 3)

    output, names = jax.watch(framework.jit(call), (jnp.ones((2, 3)), 2.0))
    assert sorted(names) == ["jax's add", "jax's mul", "jax's tanh"]
    assert output.shape == (2, 3) and float(output[0, 0]) == pytest.approx(np.tanh(1.0) + np.tanh(2.0) + 3)
    quiet = framework.jit(lambda x: x.astype(jnp.float16).T.reshape(3, 2)[1:])
    assert jax.watch(quiet, (jnp.ones((2, 3)),))[1] == []


def test_the_body_of_a_launched_kernel_is_its_own(jax):
    from jax.experimental import pallas

    def body(x, y):
        y[...] = x[...] * 2 + 1

    def call(x):
        return pallas.pallas_call(body, out_shape=x, interpret=True)(x)

    output, names = jax.watch(jax.jax.jit(call), (jax.jax.numpy.ones(8),))
    assert output.tolist() == [3] * 8 and names == []
    assert jax.watch(lambda x: call(x) - 1, (jax.jax.numpy.ones(8),))[1] == ["jax's sub"]


# What a call may return


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("ones(2)", None), ("ones(2, 3).T", None), ("nn.Parameter(torch.ones(2))", "Parameter"), ("numpy()", "ndarray"),
        ("ones(2).to_sparse()", "a torch.sparse_coo tensor on cpu rather than cpu"),
        ("ones(2, device='meta')", "a torch.strided tensor on meta rather than cpu"),
        ("ones(2, dtype=torch.complex64).conj()", "a tensor that is still to be conjugated or negated"),
        ("ones(2, dtype=torch.complex64).conj().imag", "a tensor that is still to be conjugated or negated"),
    ],
)  # fmt: skip
def test_what_is_no_finished_tensor_on_the_device_is_a_fault(torch, made, said):
    value = np.ones(2) if made == "numpy()" else eval(f"torch.{made}", {"torch": torch.torch})
    assert torch.fault(value, CPU) == said


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        ("f4", None), ("i8", None), ("?", None), (ml_dtypes.bfloat16, None), ("O", "an array of dtype object"),
        (">f4", "an array of dtype >f4"), ([("a", "f4")], "an array of dtype [('a', '<f4')]"),
    ],
)  # fmt: skip
def test_an_array_of_numpy_s_that_holds_no_numbers_of_this_machine_is_a_fault(dtype, said):
    numpy = importlib.import_module("fusebench.backends.numpy")
    assert numpy.fault(np.zeros(2, dtype), CPU) == said


def test_a_tensor_with_a_method_of_its_own_is_a_fault(torch):
    value = torch.torch.ones(2)
    value.remark = "a name that no tensor has"
    assert torch.fault(value, CPU) is None
    value.cpu = lambda: value
    assert torch.fault(value, CPU) == "a tensor with a cpu of its own"


def test_what_is_no_living_array_of_jax_on_the_device_is_a_fault(jax, monkeypatch):
    value = jax.put(np.ones(2), CPU)
    assert jax.fault(value, CPU) is None and jax.fault(np.ones(2), CPU) == "ndarray"
    value.remark = "a name that no array has"
    assert jax.fault(value, CPU) is None
    kept = jax.jax.devices
    monkeypatch.setattr(jax.jax, "devices", lambda: ["first", *kept()])
    assert jax.fault(value, CPU).endswith("rather than first")
    monkeypatch.undo()
    value.delete()
    assert jax.fault(value, CPU) == "an array that is deleted"
    other = jax.put(np.ones(2), CPU)
    other.sum = lambda: other
    assert jax.fault(other, CPU) == "an array with a sum of its own"


# The device, of which there is none here


def test_the_cpu_is_taken_by_its_name(framework):
    assert framework.start("cpu") == Device("cpu", cpu_name())
    there = framework.put(sample(np.float32), CPU)
    assert framework.device_of(there) == "cpu"
    assert framework.release() == 0 and not framework._scratch


class Cuda:
    """torch.cuda with a GPU of so many bytes in use, and what was asked of it."""

    def __init__(self, available=True, initialized=True):
        self.asked, self.available, self.initialized = [], available, initialized
        self.in_use, self.peak, self.reserved = 100, 700, 900

    def is_available(self):
        return self.available

    def is_initialized(self):
        return self.initialized

    def get_device_properties(self, index):
        return SimpleNamespace(name=f"card {index}", major=9, minor=1, multi_processor_count=132)

    def current_device(self):
        return 1

    def memory_allocated(self):
        return self.in_use

    def max_memory_allocated(self):
        return self.peak

    def memory_reserved(self):
        return self.reserved

    def __getattr__(self, name):
        return lambda *_: self.asked.append(name)


def test_torchs_gpu_is_described_or_missed(torch, monkeypatch):
    monkeypatch.setattr(torch.torch, "cuda", Cuda())
    assert torch.start("cuda") == Device("cuda", "card 0", (9, 1), 132)
    monkeypatch.setattr(torch.torch, "cuda", Cuda(available=False))
    with pytest.raises(RuntimeError, match="torch sees no CUDA device"):
        torch.start("cuda")


def test_what_is_saved_for_the_backward_pass_is_found_once(torch):
    x, w = (torch.torch.ones(2, 3, requires_grad=True) for _ in range(2))
    product = x * w  # whose graph has both
    found = torch.saved(({"y": product, "same": product}, [w, (None, 4)]))
    assert sorted(map(id, found)) == sorted(map(id, (product, x, w)))


def test_torchs_peak_counts_from_where_it_was_reset(torch, monkeypatch):
    cuda = Cuda()
    monkeypatch.setattr(torch.torch, "cuda", cuda)
    monkeypatch.setattr(torch, "_before", {"bytes": 0})
    torch.reset_peak()
    assert cuda.asked == ["reset_peak_memory_stats"] and torch.peak_bytes() == 700 - 100
    torch.wait(None)
    assert torch.release() == 900
    assert cuda.asked[1:] == ["synchronize", "empty_cache"]
    monkeypatch.setattr(torch.torch, "cuda", cuda := Cuda(initialized=False))
    torch.reset_peak(), torch.wait(None)
    assert torch.peak_bytes() is None and torch.release() == 0 and not cuda.asked


@pytest.mark.parametrize(
    ("type_", "index", "right"), [("cpu", None, True), ("cuda", 0, False), ("cuda", 1, False), ("cuda", None, False)]
)
def test_only_the_first_gpu_is_timed_by_torch(torch, monkeypatch, type_, index, right):
    monkeypatch.setattr(torch.torch, "cuda", Cuda())
    tensor = SimpleNamespace(device=SimpleNamespace(type=type_, index=index))
    if right:
        assert torch.device_of(tensor) == "cpu"
    else:
        with pytest.raises(ValueError, match="only the first visible GPU can be timed"):
            torch.device_of(tensor)
    monkeypatch.setattr(Cuda, "current_device", lambda self: 0)
    if index != 1:
        assert torch.device_of(tensor) == type_


def test_torchs_flush_writes_256_mib_that_stay_until_the_release(torch, monkeypatch):
    made = []

    class Bytes:
        def bitwise_not_(self):
            made.append("flush")

    monkeypatch.setattr(torch.torch, "zeros", lambda *a, **k: made.append((a, k)) or Bytes())
    monkeypatch.setattr(torch, "_scratch", {})
    torch.flush(), torch.flush()
    assert made == [((256 * 2**20,), {"dtype": torch.torch.int8, "device": "cuda"}), "flush", "flush"]


class Gpu:
    platform, device_kind, compute_capability, core_count = "gpu", "card", "9.1", 132

    def __init__(self, stats=None):
        self.stats = stats

    def memory_stats(self):
        return self.stats


def test_jaxs_gpu_is_described_or_missed(jax, monkeypatch):
    monkeypatch.setattr(jax.jax, "devices", lambda: [Gpu(), None])
    monkeypatch.setattr(jax.jax, "default_backend", lambda: "gpu")
    assert jax.start("cuda") == Device("cuda", "card", (9, 1), 132)
    monkeypatch.delattr(Gpu, "core_count")
    assert jax.start("cuda") == Device("cuda", "card", (9, 1), 0), "older versions of jax do not tell"
    monkeypatch.setattr(jax.jax, "default_backend", lambda: "cpu")
    with pytest.raises(RuntimeError, match="jax sees no CUDA device"):
        jax.start("cuda")


@pytest.mark.parametrize(("peak", "expected"), [(701, 601), (700, None)])
def test_jaxs_peak_is_known_where_this_cells_is_the_highest(jax, monkeypatch, peak, expected):
    gpu = Gpu({"bytes_in_use": 100, "peak_bytes_in_use": 700, "pool_bytes": 900})
    monkeypatch.setattr(jax.jax, "devices", lambda: [gpu])
    monkeypatch.setattr(jax, "_before", {"bytes": 0, "peak": 0})
    jax.reset_peak()
    gpu.stats = gpu.stats | {"bytes_in_use": 300, "peak_bytes_in_use": peak}
    assert jax.peak_bytes() == expected
    monkeypatch.setattr(jax, "_scratch", {"flush": 1})
    monkeypatch.setattr(jax.jax, "clear_caches", lambda: None)
    assert jax.release() == 900 and not jax._scratch
    gpu.stats = None
    assert jax.release() == 0


def test_only_the_first_gpu_is_timed_by_jax(jax, monkeypatch):
    first, second = Gpu(), Gpu()
    monkeypatch.setattr(jax.jax, "devices", lambda: [first, second])
    array = lambda *devices: SimpleNamespace(devices=lambda: list(devices))  # noqa: E731
    assert jax.device_of(array(first)) == "cuda"
    for wrong in (array(second), array(first, second)):
        with pytest.raises(ValueError, match="only the first visible GPU can be timed"):
            jax.device_of(wrong)


def test_jax_waits_for_the_outputs_and_the_flush(jax, monkeypatch):
    waited = []
    monkeypatch.setattr(jax, "_scratch", {})
    monkeypatch.setattr(jax, "FLUSH_BYTES", 16)
    monkeypatch.setattr(jax.jax, "block_until_ready", waited.append)
    jax.flush()
    first = jax._scratch["flush"]
    assert np.asarray(first).tolist() == [-1] * 16 and first.dtype == "int8"
    jax.flush()
    assert np.asarray(jax._scratch["flush"]).tolist() == [0] * 16
    assert first.is_deleted(), "it was not overwritten in its place, as Torch's is"
    jax.wait("outputs")
    assert waited == [("outputs", jax._scratch)]


def test_both_flushes_are_larger_than_an_l2(framework):
    assert framework.FLUSH_BYTES == 256 * 2**20


# The yardsticks' calls, which are Torch's


def test_the_calls_of_the_yardsticks_do_what_they_are_named_after(torch):
    call, arguments = torch.copy_call(5, CPU)
    assert call(*arguments).tolist() == [1] * 5 and arguments[0].nbytes == 20
    call, arguments = torch.read_call(5, CPU)
    assert call(*arguments).item() == 5 and arguments[0].dtype == torch.torch.float32
    call, arguments = torch.launch_call(CPU)
    assert call(*arguments).tolist() == [1.0], "a zero would be a memset on a GPU"
    call, (a, b) = torch.product_call(3, "bfloat16", CPU)
    assert a.dtype == b.dtype == torch.torch.bfloat16 and a.shape == b.shape == (3, 3)
    assert torch.torch.equal(call(a, b), a @ b) and not torch.torch.equal(a, b) and a.unique().numel() > 3
    assert torch.versions() == (torch.torch.__version__, torch.torch.get_num_threads())
