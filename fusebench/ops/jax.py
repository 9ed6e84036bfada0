"""The fused Triton kernels as differentiable functions of JAX arrays, by the names of the kernels:

    from fusebench.ops.jax import lola
    dx, dW, db = jax.grad(lambda x, W, b: lola(x, W, b, activation="relu").sum(), (0, 1, 2))(x, W, b)

Each takes the inputs of its kernel.py in their order, of one dtype, and by name its options and the sizes that no shape shows (V of
embedding); `precision` is how float32 products are computed, "ieee" or "tf32". They have a jax.custom_vjp and work within jax.jit; jax.vmap
calls them once for each element. ids are int64, which JAX has with jax_enable_x64 alone. Raises UsageError for what a kernel cannot do,
such as second derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fusebench.errors import UsageError
from fusebench.ops.program import Wanted, about, kernel_of, kernels, program, wanted, without_second_derivative


def __getattr__(name: str) -> Callable[..., Any]:
    """The function of a kernel."""
    if name not in kernels("jax_triton"):
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}: kernels are {', '.join(kernels('jax_triton'))}"
        )
    return _function(name)


def __dir__() -> list[str]:
    return [*kernels("jax_triton")]


@functools.cache
def _function(name: str) -> Callable[..., Any]:
    kernel = kernel_of("jax_triton", name)

    def function(*inputs: jax.Array, precision: str = "ieee", **options: Any) -> Any:
        device = "cpu" if jax.default_backend() == "cpu" else "cuda"
        if others := [i for i in inputs if not isinstance(i, jax.Array | np.ndarray)]:
            raise UsageError(f"{name}: an input is a {type(others[0]).__name__}; expected arrays of JAX or NumPy")
        arrays = [(i.shape, i.dtype.name) for i in inputs]
        return _differentiable(wanted(name, "jax_triton", device, arrays, precision, options))(*inputs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = about(kernel)
    return function


@functools.lru_cache(1024)
def _differentiable(of: Wanted) -> Callable[..., Any]:
    made = program(of)
    run, run_backward = (_once(of.kernel, part) for part in (made.forward, made.backward))

    @jax.custom_vjp
    def function(*inputs: jax.Array) -> Any:
        return run(*inputs)[0]

    def forward(*inputs: jax.Array) -> Any:
        outputs, residuals = run(*inputs)
        return outputs, (inputs, residuals)

    def backward(kept: Any, behind: Any) -> tuple[Any, ...]:
        inputs, residuals = kept
        gradients = run_backward(residuals, *(behind if isinstance(behind, tuple | list) else (behind,)))
        by_place = dict(
            zip(made.wanted, gradients if isinstance(gradients, tuple | list) else (gradients,), strict=True)
        )
        return tuple(by_place[n] if n in by_place else _none(i) for n, i in enumerate(inputs))

    function.defvjp(forward, backward)
    return function


def _once(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, which vmap repeats for each element, and which cannot be differentiated."""
    repeated = jax.custom_jvp(jax.custom_batching.sequential_vmap(call))

    @repeated.defjvp
    def refuse(*_: Any) -> Any:
        raise without_second_derivative(name)

    return repeated


def _none(array: jax.Array) -> Any:
    """The gradient by what has none: a scalar's 0, and for integers what JAX wants of them."""
    return (
        jnp.zeros_like(array) if jnp.issubdtype(array.dtype, jnp.floating) else np.zeros(array.shape, jax.dtypes.float0)
    )
