"""shcsa in JAX through jax-triton: triton.py's kernels and variants."""

import functools

import jax

from fusebench.backends.jax_triton import triton_call
from implementations.shcsa._triton_kernels import launches, skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
VARIANTS = {
    "padded_attention": ("bias", "probabilities"),
    "padded_softmax_v": ("bias", "scaled", "probabilities"),
    "padded_softmax": ("bias", "scaled", "probabilities"),
    "plain_softmax": ("bias", "scaled", "probabilities"),
}


def build(case, variant, device):
    """call(x (T, C), n_padd () int32, W, b (3 D,)) → (T, D), jitted."""
    T, D = case.size("T", "D")
    dense, *others = [functools.partial(run, launch) for launch in launches(case, variant, device)]

    def call(x, n_padd, W, b):
        y, att = jax.ShapeDtypeStruct((T, D), x.dtype), jax.ShapeDtypeStruct((T, T), x.dtype)
        q, k, v = dense(x, W, b, out_shape=[y, y, y])
        if variant == "padded_attention":
            return others[0](q, k, v, n_padd, out_shape=y)
        weights = others[0](q, k, n_padd, out_shape=att)
        if variant != "padded_softmax_v":
            weights = others[1](weights, T if variant == "plain_softmax" else n_padd, out_shape=att)
        return others[-1](weights, v, n_padd, out_shape=y)

    return jax.jit(call)


def run(launch, *args, out_shape):
    """One launch, with what it writes as arrays of `out_shape`."""
    return triton_call(
        *args,
        kernel=launch.kernel,
        out_shape=out_shape,
        grid=launch.grid,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        **launch.constexprs,
    )
