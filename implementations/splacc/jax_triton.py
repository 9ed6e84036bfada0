"""splacc in JAX through jax-triton: triton.py's kernel and variants."""

import jax

from implementations._shared.jax.autograd import jitted
from implementations._shared.jax.launch import run
from implementations._shared.recompute import recomputing
from implementations._shared.triton import gated_backward
from implementations._shared.triton.gated_backward import TUNABLES, config, fits, skip  # noqa: F401 (parts of the contract)
from implementations._shared.triton.gated_matmul import interleave
from implementations.splacc._triton_kernels import alone, launches

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"two_accumulators": (), "interleaved": (), "recompute": ()}
BACKWARD = {"two_accumulators": ("product", "dz"), "recompute": ("product", "dz")}


def prepare(case, variant, A, B):
    """interleaved: B with the columns of its halves alternating."""
    return (interleave(B, case),) if variant == "interleaved" else ()


def build(case, variant, device, chosen):
    """call(A (M, K), B, *prepared) → (M, N), jitted."""
    if case.mode != "forward":
        return _differentiated(case, variant, device, chosen)
    (launch,) = launches(case, variant, device, chosen)
    M, N = case.size("M", "N")

    def call(A, B, prepared=None):
        return run(launch, A, B if prepared is None else prepared, M, out=jax.ShapeDtypeStruct((M, N), A.dtype))

    return jax.jit(call)


def _differentiated(case, variant, device, chosen):
    """(forward, backward) of three launches (gated_backward.py), both jitted."""
    first = gated_backward.forward_launch(case, device, "splacc")
    gate, products = gated_backward.backward_launches(case, chosen, "splacc")
    M, N = case.size("M", "N")

    def like(array):
        return jax.ShapeDtypeStruct(array.shape, array.dtype)

    def forward(A, B):
        Z, y = run(first, A, B, B, M, out=[jax.ShapeDtypeStruct((M, n), A.dtype) for n in (2 * N, N)])
        return y, (A, B, Z)

    def backward(residuals, dy):
        A, B, Z = residuals
        dZ = run(gate, Z, dy, out=like(Z))
        return tuple(run(products, dZ, B, A, M, out=[like(A), like(B)]))

    if variant == "recompute":
        whole = alone(case, device)

        def unkept(A, B):
            return run(whole, A, B, M, out=jax.ShapeDtypeStruct((M, N), A.dtype))

        forward, backward = recomputing(unkept, forward, backward)
    return jitted(forward, backward)
