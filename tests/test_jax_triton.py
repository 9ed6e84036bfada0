"""What is handed to jax-triton, and to Triton's interpreter in its place."""

from __future__ import annotations

import os
import sys
import warnings
from types import ModuleType, SimpleNamespace

import jax
import numpy as np
import pytest
import torch

from fusebench.backends import jax_triton


class Kernel:
    """A Triton kernel of the interpreter: adds what it is given into its last pointer, in place where they are one."""

    arg_names = ("x", "n", "y", "out", "second", "BLOCK")

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        def launch(*arguments, **meta):
            self.calls.append((grid, arguments, meta))
            *inputs, out = arguments
            out.copy_(sum(float(v) if np.ndim(v) == 0 else v.to(torch.float32) for v in inputs))

        return launch


X, Y = np.arange(3, dtype=np.float32), np.full(3, 10, np.float32)
SHAPE = jax.ShapeDtypeStruct((3,), np.float32)


def test_the_interpreter_gets_scalars_arrays_and_an_output_in_their_places():
    kernel = Kernel()
    call = jax.jit(
        lambda x, y: jax_triton.triton_call(x, 0.5, y, 2, kernel=kernel, out_shape=SHAPE, grid=(7,), BLOCK=4)
    )
    assert np.asarray(call(X, Y)).tolist() == [12.5, 13.5, 14.5]
    ((grid, arguments, meta),) = kernel.calls
    assert grid == (7,) and meta == {"BLOCK": 4}, "neither warps nor stages mean anything there"
    assert type(arguments[1]) is np.float32 and arguments[3] == 2 and len(arguments) == 5


def test_an_aliased_output_is_its_input_in_the_interpreter():
    kernel = Kernel()
    call = lambda x: jax_triton.triton_call(x, kernel=kernel, out_shape=[SHAPE], grid=(1,), input_output_aliases={0: 0})  # noqa: E731
    (found,) = call(jax.numpy.asarray(X))
    ((_, (given, out), _),) = kernel.calls
    assert given is out and np.asarray(found).tolist() == X.tolist() and X.tolist() == [0, 1, 2]


@pytest.fixture
def outer(monkeypatch):
    """jax-triton's own `triton_call` of a version, on a device that it lowers for."""
    seen = []

    def install(outputs):
        monkeypatch.setattr(
            jax_triton, "_jax_triton", lambda: (lambda *a, **k: seen.append((a, k)) or "lowered", outputs)
        )
        return seen

    return install


@pytest.mark.parametrize("outputs", ["out_shape", "out_type"])
def test_both_names_of_the_outputs_are_known(outer, outputs):
    seen = outer(outputs)
    kernel = Kernel()
    found = jax_triton.triton_call(
        X, 0.1, 3, kernel=kernel, out_shape=SHAPE, grid=(7, 2), compute_capability=90, BLOCK=4
    )
    ((arguments, keywords),) = seen
    assert found == "lowered" and arguments[0] is X and arguments[2] == 3
    assert type(arguments[1]) is np.float32 and arguments[1] == np.float32(0.1), (
        "jax-triton takes a Python float for float64"
    )
    assert keywords == {
        "kernel": kernel, "grid": (7, 2), outputs: SHAPE, "num_warps": 4, "num_stages": 3, "compute_capability": 90, "BLOCK": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("outputs", "options"),
    [("out_shape", {"input_output_aliases": {1: 0}}), ("out_type", {"input_output_aliases": {2: 0}, "out": None})],
)
def test_aliases_are_told_as_the_version_counts(outer, monkeypatch, outputs, options):
    seen = outer(outputs)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with warnings.catch_warnings(record=True):
        jax_triton.triton_call(
            X,
            3,
            Y,
            kernel=Kernel(),
            out_shape=[SHAPE, SHAPE],
            grid=(1,),
            num_warps=8,
            num_stages=2,
            input_output_aliases={2: 0},
        )
    ((_, keywords),) = seen
    assert keywords.items() >= options.items() and (keywords["num_warps"], keywords["num_stages"]) == (8, 2)
    assert ("out" in keywords) == (outputs == "out_type") and "second" not in keywords


@pytest.mark.parametrize(("named", "has"), [("out_shape", True), ("out_type", False)])
def test_jax_triton_is_loaded_as_it_is_needed(monkeypatch, named, has):
    """0.3 empties TRITON_CACHE_DIR at its import, and 0.4 reads a constant that older Tritons lack."""
    driver = SimpleNamespace(TMA_TF32=5) if has else SimpleNamespace()
    names = {}
    exec(f"def triton_call(*args, kernel, {named}, grid): pass", names)

    class Theirs(ModuleType):
        def __getattr__(self, name):
            if name != "triton_call":
                raise AttributeError(name)
            monkeypatch.setenv("TRITON_CACHE_DIR", "")
            return names["triton_call"]

    for name in ("triton", "triton.backends", "triton.backends.nvidia", "triton.backends.nvidia.driver"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["triton.backends.nvidia"].driver = driver
    monkeypatch.setitem(sys.modules, "jax_triton", Theirs("jax_triton"))
    for before in ("/mine", None):
        monkeypatch.setenv("TRITON_CACHE_DIR", before) if before else monkeypatch.delenv("TRITON_CACHE_DIR")
        assert jax_triton._jax_triton.__wrapped__() == (names["triton_call"], named)
        assert os.environ.get("TRITON_CACHE_DIR") == before
    assert vars(driver) == {"TMA_TF32": 5 if has else 11}
