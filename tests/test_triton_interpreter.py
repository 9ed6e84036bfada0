"""Triton's interpreter is made faster, and computes what it computed before."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest

from fusebench.backends import triton_interpreter

triton = pytest.importorskip("triton")
torch = pytest.importorskip("torch")

import triton.language as tl  # noqa: E402
from triton.language import core, semantic  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

CHANGED = (  # beside what exchanges names
    (interpreter, "_patch_lang_tensor"),
    (interpreter, "_get_np_dtype"),
    (core.block_type, "__init__"),
    (core.tensor, "__init__"),
    (semantic.TritonSemantic, "broadcast_impl_value"),
)


def twice(value):
    return value + value


def twice_of_core(value):
    return core.add(value, value)


twice, twice_of_core = interpreter.InterpretedFunction(twice), interpreter.InterpretedFunction(twice_of_core)
twice_of_core.fn = type(twice.fn)(twice_of_core.fn.__code__, {"core": core}, "twice_of_core")


def kernel(x, y, N: tl.constexpr):
    places = tl.program_id(0) * N + tl.arange(0, N)
    value = tl.load(x + places)
    for _ in range(3):
        value = twice_of_core(twice(value))
    tl.store(y + places, value)


def launch(count=4, dtype=torch.float32):
    x = torch.arange(count * 8).to(dtype)
    y = torch.empty_like(x)
    interpreter.InterpretedFunction(kernel)[(count,)](x, y, N=8)
    return x, y


@pytest.fixture
def quickened(monkeypatch):
    """The functions for whose modules names were exchanged, in the order of time."""
    original, calls = interpreter._patch_lang, []

    def counted(function):
        calls.append(function)
        return original(function)

    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", dataclasses.replace(builder.options, sanitize_overflow=True))
    monkeypatch.setattr(interpreter, "_LangPatchScope", interpreter._LangPatchScope)
    monkeypatch.setattr(interpreter, "_patch_lang", counted)
    for place, name in CHANGED:
        monkeypatch.setattr(place, name, getattr(place, name))
    triton_interpreter.quicken()
    return calls


def test_names_are_exchanged_once_a_launch_for_each_module_of_the_language(quickened):
    for launches in (1, 2):
        x, y = launch()
        assert torch.equal(y, 64 * x)
        assert [f.__name__ for f in quickened] == ["kernel", "twice_of_core"] * launches
        assert core.is_builtin(tl.load) and core.is_builtin(tl.tensor.__add__), "the names are put back"


def test_a_launch_that_fails_leaves_nothing_exchanged(quickened):
    with pytest.raises(interpreter.InterpreterError):
        interpreter.InterpretedFunction(kernel)[(1,)](torch.zeros(8), None, N=8)
    assert core.is_builtin(tl.load)
    x, y = launch()
    assert torch.equal(y, 64 * x)


def test_integers_wrap_as_those_of_a_compiled_kernel_do(quickened):
    x, y = launch(dtype=torch.int32)
    assert torch.equal(y, 64 * x)
    large = torch.full((8,), 2**30, dtype=torch.int32)
    interpreter.InterpretedFunction(kernel)[(1,)](large, sums := torch.empty_like(large), N=8)
    assert not sums.any()


def count(x, y, n, STEP: tl.constexpr):
    for i in range(0, n, STEP):
        tl.store(y + i // STEP, tl.load(x + i) + n)


def test_python_counts_by_a_number_that_is_an_array_of_one_element(quickened, monkeypatch):
    """As Triton 3.6 has it, and NumPy 2.4 does not take."""
    patch = interpreter._patch_lang_tensor.__closure__[0].cell_contents

    def older(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda value: int(str(value.handle.data)))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", triton_interpreter._with_items(older))
    x, y = torch.arange(8.0), torch.zeros(4)
    interpreter.InterpretedFunction(count)[(1,)](x, y, 8, STEP=2)
    assert y.tolist() == [8, 10, 12, 14] and core.is_builtin(tl.load)


def test_twice_is_once(quickened):
    def parts():
        return [getattr(*c) for c in ((interpreter, "_patch_lang"), (interpreter, "_LangPatchScope"), *CHANGED)]

    before = parts(), interpreter.interpreter_builder.options
    triton_interpreter.quicken()
    assert before == (parts(), interpreter.interpreter_builder.options)


def test_another_interpreter_is_left_alone(monkeypatch):
    other = type(triton)("triton.runtime.interpreter")
    monkeypatch.setitem(sys.modules, "triton.runtime.interpreter", other)
    triton_interpreter.quicken()
    assert not [name for name in vars(other) if not name.startswith("__")]
    monkeypatch.delitem(sys.modules, "triton.runtime.interpreter")
    triton_interpreter.quicken()


def test_blocks_of_one_shape_share_it(quickened):
    one, other = (core.tensor(None, core.block_type(core.int32, [4, 2])) for _ in range(2))
    assert one.shape is other.shape and one.type.shape is other.type.shape and one.numel == other.numel == 8


def test_blocks_that_have_more_than_is_known_are_left_as_they_are(quickened, monkeypatch):
    monkeypatch.undo()
    init = core.tensor.__init__

    def with_more(self, handle, type):
        init(self, handle, type)
        self.more = 1

    for place, name in CHANGED:
        monkeypatch.setattr(place, name, getattr(place, name))
    monkeypatch.setattr(core.tensor, "__init__", with_more)
    triton_interpreter._keep_shapes(core)
    assert core.tensor.__init__ is with_more


def test_what_is_computed_is_the_same_bit_for_bit(quickened, monkeypatch):
    fast = launch(dtype=torch.float16)[1].numpy()
    monkeypatch.undo()
    assert np.array_equal(fast.view(np.int16), launch(dtype=torch.float16)[1].numpy().view(np.int16))


@interpreter.InterpretedFunction
def total(a, b):
    return a + b


@interpreter.InterpretedFunction
def blocks(x, y, sums, rows, M: tl.constexpr, N: tl.constexpr):
    """Blocks of one shape and of others, scalars, masks, pointers, casts, a reduction, a product."""
    i, j = tl.arange(0, M), tl.arange(0, N)
    places, mask = i[:, None] * N + j[None, :], (i[:, None] < rows) & (j[None, :] != 3)
    value = tl.load(x + places, mask, other=1.5).to(tl.float32)
    value = (
        tl.where(value > 0, value * 2, 1 - value)
        + tl.reduce(value, 1, total)[:, None]
        + tl.reduce(value, 0, total)[None, :]
    )
    square = tl.dot(value, tl.trans(value), input_precision="ieee")
    tl.store(y + places, value.to(y.dtype.element_ty), mask)
    tl.store(sums + tl.arange(0, M), tl.reduce(square, 0, total) + tl.full([M], 1, tl.float32))


def blocks_of(dtype):
    x = (torch.arange(32 * 16) % 7 - 2).to(dtype).reshape(32, 16)
    y, sums = torch.zeros_like(x), torch.zeros(32)
    blocks[(1,)](x, y, sums, 30, M=32, N=16)
    return y.float().numpy(), sums.numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int8])
def test_blocks_of_many_shapes_are_the_same_bit_for_bit(request, monkeypatch, dtype):
    slow = blocks_of(dtype)
    request.getfixturevalue("quickened")
    for was, is_ in zip(slow, blocks_of(dtype), strict=True):
        assert np.array_equal(was, is_) and len(np.unique(is_)) > 2


SCALARS = [v for v in vars(tl).values() if isinstance(v, tl.dtype) and v.name != "void" and v.is_ptr() is False]


@pytest.mark.parametrize("dtype", SCALARS, ids=str)
def test_types_are_what_they_were(request, dtype):
    def seen():
        scalars = dtype, tl.pointer_type(dtype)
        types = [
            *scalars,
            *(tl.block_type(s, shape) for s in scalars for shape in ([4], [4, tl.constexpr(2)], tl.tuple([4, 2]))),
        ]
        tensors = [tl.tensor(None, type_) for type_ in types]
        shown = [(str(t.type), t.type.mangle(), list(t.shape), t.numel.value, str(t.dtype), str(t)) for t in tensors]
        return shown, [str(interpreter._get_np_dtype(type_)) for type_ in types], [a == b for a in types for b in types]

    was = seen()
    request.getfixturevalue("quickened")
    assert seen() == was == seen()


@pytest.mark.parametrize("shape", [[3], [4.0], (4,), [], [2**21]])
def test_a_shape_that_none_can_have_is_refused(quickened, shape):
    tl.block_type(tl.int32, [4])  # which 4.0 equals
    for _ in range(2):
        with pytest.raises((TypeError, ValueError, AssertionError)):
            tl.block_type(tl.int32, shape)


def test_blocks_that_do_not_fit_are_refused(quickened):
    with pytest.raises(ValueError, match="incompatible dimensions"):
        interpreter.interpreter_semantic.broadcast_impl_value(
            *(tl.tensor(None, tl.block_type(tl.int32, [n])) for n in (4, 8))
        )
