"""lola in JAX through jax-triton: triton.py's kernels and variants.

unjitted: batched_row as the published call is, without jax.jit, so that JAX traces it anew at each call. The kernel is the same; what
differs is the host's time.
"""

import jax
import jax.numpy as jnp

from implementations._shared.gpu import weight_row
from implementations._shared.jax.autograd import jitted
from implementations._shared.jax.launch import run
from implementations.lola import _triton_backward as backward
from implementations.lola import _triton_kernels as kernels
from implementations.lola._triton_kernels import TUNABLES, WITH_COLSUM, fits, pitch  # noqa: F401 (parts of the contract)

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {
    "row": (),
    "batched_row": (),
    "multirow": ("one_pass",),
    "multirow_ws": ("one_pass",),
    "multirow_f16acc": ("half_sums",),
    "multirow_ws_f16acc": ("half_sums",),
    "unjitted": (),
}
BACKWARD = {"multirow": ("layernorm", "bias", "dz", "normed")}


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    return kernels.skip(case, _of(variant), device)


def config(case, variant, device):
    """The tunables of a variant; `unjitted` has none."""
    return {} if variant == "unjitted" else kernels.config(case, variant, device)


def launches(case, variant, device, chosen):
    """The one launch of every variant."""
    return kernels.launches(case, _of(variant), device, chosen or kernels.config(case, _of(variant), device))


def _of(variant):
    """The variant whose kernel it is."""
    return "batched_row" if variant == "unjitted" else variant


def prepare(case, variant, x, W, b):
    """For `row` W with rows of whole vectors, where they are not. With prepared column sums: those of W in float32."""
    if variant == "row":
        beyond = pitch(case, variant) - weight_row(case)
        return (jnp.pad(W, ((0, 0), (0, beyond))),) if beyond else ()
    return (W.sum(0 if case.options["w_layout"] == "kn" else 1, dtype=jnp.float32),) if variant in WITH_COLSUM else ()


def build(case, variant, device, chosen):
    if case.mode != "forward":
        return _differentiated(case, device, chosen)
    (launch,) = launches(case, variant, device, chosen)
    M, N = case.size("M", "N")

    def call(x, W, b, *prepared):
        W, colsum = (prepared[0], ()) if prepared and variant == "row" else (W, prepared)
        return run(launch, x, W, b, *colsum, M, out=jax.ShapeDtypeStruct((M, N), x.dtype))

    return call if variant == "unjitted" else jax.jit(call)


def _differentiated(case, device, chosen):
    """(forward, backward) of four launches (_triton_backward.py), both jitted."""
    normalise, linear = backward.forward_launches(case, device)
    rows, products = backward.backward_launches(case, chosen)
    M, K, N = case.size("M", "K", "N")

    def shaped(dtype, *shape):
        return jax.ShapeDtypeStruct(shape, dtype)

    def forward(x, W, b):
        n, rstd = run(normalise, x, out=[shaped(x.dtype, M, K), shaped(jnp.float32, M)])
        z, y, colsum = run(
            linear, n, W, b, M, out=[shaped(x.dtype, M, N), shaped(x.dtype, M, N), shaped(jnp.float32, N)]
        )
        return y, (n, rstd, z, colsum, W, b)

    def backward_(residuals, dy):
        n, rstd, z, colsum, W, b = residuals
        dz, sums = run(rows, z, b, colsum, dy, out=[shaped(dy.dtype, M, N), shaped(jnp.float32, M, 2)])
        like = [shaped(v.dtype, *v.shape) for v in (n, W, b)]
        return tuple(run(products, dz, W, n, rstd, sums, M, out=like))

    return jitted(forward, backward_)
