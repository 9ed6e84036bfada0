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
from triton.language import core  # noqa: E402
from triton.runtime import interpreter  # noqa: E402


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


def test_twice_is_once(quickened):
    before = interpreter._patch_lang, interpreter._LangPatchScope, interpreter.interpreter_builder.options
    triton_interpreter.quicken()
    assert before == (interpreter._patch_lang, interpreter._LangPatchScope, interpreter.interpreter_builder.options)


def test_another_interpreter_is_left_alone(monkeypatch):
    other = type(triton)("triton.runtime.interpreter")
    monkeypatch.setitem(sys.modules, "triton.runtime.interpreter", other)
    triton_interpreter.quicken()
    assert not [name for name in vars(other) if not name.startswith("__")]
    monkeypatch.delitem(sys.modules, "triton.runtime.interpreter")
    triton_interpreter.quicken()


def test_what_is_computed_is_the_same_bit_for_bit(quickened, monkeypatch):
    fast = launch(dtype=torch.float16)[1].numpy()
    monkeypatch.undo()
    assert np.array_equal(fast.view(np.int16), launch(dtype=torch.float16)[1].numpy().view(np.int16))
