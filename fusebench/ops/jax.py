"""The fused Triton kernels as differentiable functions of JAX arrays, by the names of the kernels:

    from fusebench.ops.jax import lola
    dx, dW, db = jax.grad(lambda x, W, b: lola(x, W, b, activation="relu").sum(), (0, 1, 2))(x, W, b)

Each takes the inputs of its kernel.py by position, and by name its options and the sizes that no shape shows (V of embedding);
`precision` is how float32 products are computed, "ieee" or "tf32". Floats have one dtype, integers that of kernel.py, and scalars no
gradient. They have a jax.custom_vjp and work within jax.jit; jax.vmap calls them once for each element.

The ids of embedding are int64, which JAX has with jax_enable_x64 alone. 32 bits are refused, not widened: they do not hold every id, and
without that option JAX has nothing wider. Raises UsageError for other inputs, and for what a kernel cannot do, such as second derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fusebench.ops.program import (
    Wanted,
    about,
    kernel_of,
    kernels,
    no_array,
    program,
    without_gradient,
    without_second_derivative,
)


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
        for place, given in enumerate(inputs):
            if not isinstance(given, jax.Array | np.ndarray):
                raise no_array(kernel, place, f"a {type(given).__name__}", "an array of JAX or NumPy")
        # of NumPy's 64 bits JAX may keep 32, which the dtypes are to show
        arrays = [i if isinstance(i, jax.Array) else jnp.asarray(i) for i in inputs]
        device = "cpu" if jax.default_backend() == "cpu" else "cuda"
        shapes, dtypes = tuple(i.shape for i in arrays), tuple(i.dtype.name for i in arrays)
        chosen = tuple(sorted((n, str(v)) for n, v in options.items()))
        return _differentiable(Wanted(name, "jax_triton", device, shapes, dtypes, precision, chosen))(*arrays)

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

    def forward(*inputs: Any) -> Any:
        for place, (name, of_input) in enumerate(zip(made.names, inputs, strict=True)):
            floating = jnp.issubdtype(of_input.value.dtype, jnp.floating)
            if of_input.perturbed and floating and place not in made.wanted:
                raise without_gradient(of.kernel, name, f"jax.lax.stop_gradient({name})")
        return run(*(i.value for i in inputs))

    def backward(residuals: Any, behind: Any) -> tuple[Any, ...]:
        upstream = [
            jnp.zeros(dy.shape, dy.dtype) if isinstance(dy, jax.custom_derivatives.SymbolicZero) else dy
            for dy in (behind if isinstance(behind, tuple | list) else (behind,))
        ]
        gradients = run_backward(residuals, *upstream)
        by_place = dict(
            zip(made.wanted, gradients if isinstance(gradients, tuple | list) else (gradients,), strict=True)
        )
        return tuple(by_place.get(place) for place in range(len(made.names)))

    # with symbolic zeros JAX says which inputs a derivative is by
    function.defvjp(forward, backward, symbolic_zeros=True)
    return function


def _once(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, which vmap repeats for each element, and which cannot be differentiated."""
    repeated = jax.custom_jvp(jax.custom_batching.sequential_vmap(call))

    @repeated.defjvp
    def refuse(*_: Any) -> Any:
        raise without_second_derivative(name)

    return repeated
