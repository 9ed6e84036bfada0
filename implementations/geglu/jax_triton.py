"""geglu in JAX through jax-triton: triton.py's kernel and variants."""

import jax

from implementations._shared.jax.autograd import jitted
from implementations._shared.jax.launch import run
from implementations._shared.recompute import recomputing
from implementations._shared.triton import gated_backward
from implementations._shared.triton.gated_backward import TUNABLES, config, fits, skip  # noqa: F401 (parts of the contract)
from implementations._shared.triton.gated_matmul import interleave
from implementations.geglu._triton_kernels import alone, launches

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"two_accumulators": (), "interleaved": (), "recompute": ()}
BACKWARD = {"two_accumulators": ("bias", "dz"), "recompute": ("bias", "dz")}


def prepare(case, variant, x, W, b):
    """interleaved: W with the columns of its halves alternating."""
    return (interleave(W, case),) if variant == "interleaved" else ()


def build(case, variant, device, chosen):
    """call(x (M, K), W, b (2N,), *prepared) → (M, N), jitted."""
    if case.mode != "forward":
        return _differentiated(case, variant, device, chosen)
    (launch,) = launches(case, variant, device, chosen)
    M, N = case.size("M", "N")

    def call(x, W, b, prepared=None):
        return run(launch, x, W if prepared is None else prepared, b, M, out=jax.ShapeDtypeStruct((M, N), x.dtype))

    return jax.jit(call)


def _differentiated(case, variant, device, chosen):
    """(forward, backward) of three launches (gated_backward.py), both jitted."""
    first = gated_backward.forward_launch(case, device, "geglu")
    gate, products = gated_backward.backward_launches(case, chosen, "geglu")
    M, N = case.size("M", "N")

    def like(array):
        return jax.ShapeDtypeStruct(array.shape, array.dtype)

    def forward(x, W, b):
        Z, y = run(first, x, W, b, M, out=[jax.ShapeDtypeStruct((M, n), x.dtype) for n in (2 * N, N)])
        return y, (x, W, b, Z)

    def backward(residuals, dy):
        x, W, b, Z = residuals
        dZ = run(gate, Z, dy, out=like(Z))
        return tuple(run(products, dZ, W, x, M, out=[like(x), like(W), like(b)]))

    if variant == "recompute":
        whole = alone(case, device)

        def unkept(x, W, b):
            return run(whole, x, W, b, M, out=jax.ShapeDtypeStruct((M, N), x.dtype))

        forward, backward = recomputing(unkept, forward, backward)
    return jitted(forward, backward)
