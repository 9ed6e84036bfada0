"""shcsa in JAX through jax-triton: triton.py's kernels and variants."""

import functools

import jax

from implementations._shared.jax.launch import run
from implementations.shcsa._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {
    "padded_attention": ("bias", "probabilities"),
    "padded_softmax_v": ("bias", "scaled", "probabilities"),
    "padded_softmax": ("bias", "scaled", "probabilities"),
    "plain_softmax": ("bias", "scaled", "probabilities"),
}


def build(case, variant, device, chosen):
    """call(x (T, C), n_padd () int32, W, b (3 D,)) → (T, D), jitted."""
    T, D = case.size("T", "D")
    dense, *others = [functools.partial(run, launch) for launch in launches(case, variant, device, chosen)]

    def call(x, n_padd, W, b):
        y, att = jax.ShapeDtypeStruct((T, D), x.dtype), jax.ShapeDtypeStruct((T, T), x.dtype)
        q, k, v = dense(x, W, b, out=[y, y, y])
        if variant == "padded_attention":
            return others[0](q, k, v, n_padd, out=y)
        weights = others[0](q, k, n_padd, out=att)
        if variant != "padded_softmax_v":
            weights = others[1](weights, T if variant == "plain_softmax" else n_padd, out=att)
        return others[-1](weights, v, n_padd, out=y)

    return jax.jit(call)
