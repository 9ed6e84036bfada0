"""padded_attention in Pallas, JAX's language for kernels, through its Triton back end: a program has a tile of rows of one head
and goes through the tokens that they see in blocks, with a running maximum and sum for each row (the flash form).

Blocks begin at token n_padd: padding is never read. Without a GPU it runs in Pallas's interpreter.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas
from jax.experimental.pallas import triton as pallas_triton

BACKEND = "jax"
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ("probabilities",)}
TUNABLES = {
    "default": {
        "BLOCK_M": (16, 32, 64, 128),
        "BLOCK_N": (16, 32, 64, 128),
        "num_warps": (4, 8),
        "num_stages": (1, 2, 3),
    },
}

BEGIN = np.int32(0)  # indices of one slice have one dtype, and the others are 32 bits wide
WIDEST = 256  # columns of a row that a program can hold
LOWEST = -3.0e38  # a maximum before anything was seen: -inf - -inf would be NaN


def skip(case, variant, device):
    """Why it cannot run this cell, or None."""
    D = case.sizes["D"]
    return None if D <= WIDEST else f"rows of more than {WIDEST} elements do not fit in a program's registers"


def config(case, variant, device):
    """64 rows and 64 tokens; half of that in float32, whose tiles are twice as large."""
    T = case.sizes["T"]
    most = 32 if case.dtype == "float32" or padded(case.sizes["D"]) > 128 else 64
    BLOCK = min(most, padded(T))
    return {"BLOCK_M": BLOCK, "BLOCK_N": BLOCK, "num_warps": 4, "num_stages": 2}


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    for name in ("BLOCK_M", "BLOCK_N"):
        if config[name] < 16 or config[name] & (config[name] - 1):
            return f"{name}={config[name]}; a tile has a power of two, 16 at least"
    return None


def padded(size):
    """The power of two that a tile needs for this size; a product has 16 at least."""
    return max(16, pallas.next_power_of_2(size))


def build(case, variant, device, chosen):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D), jitted."""
    B, H, T, D = case.size("B", "H", "T", "D")
    BLOCK_M, BLOCK_N, BLOCK_D = chosen["BLOCK_M"], chosen["BLOCK_N"], padded(D)
    scale = 1 / math.sqrt(D)
    exact = jax.lax.Precision.HIGHEST if case.precision == "ieee" else jax.lax.Precision.HIGH
    dot = functools.partial(pallas_triton.dot, precision=exact if case.dtype == "float32" else None)

    def attention(q, k, v, n_padd, y):
        b, h, first = pallas.program_id(0), pallas.program_id(1), pallas.program_id(2) * BLOCK_M
        rows = first + jnp.arange(BLOCK_M, dtype=jnp.int32)
        inside = jnp.arange(BLOCK_D, dtype=jnp.int32) < D
        n = jnp.clip(n_padd[b], 0, T)

        def tile(x, start, count):
            return x.at[b, h, pallas.ds(start, count), pallas.ds(BEGIN, BLOCK_D)]

        def load(x, start, count):
            """The tokens (count, BLOCK_D) of x from `start`, 0 past T and D."""
            tokens = start + jnp.arange(count, dtype=jnp.int32)
            return pallas_triton.load(tile(x, start, count), mask=(tokens < T)[:, None] & inside, other=0)

        queries = load(q, first, BLOCK_M)

        def advance(number, sums):
            acc, total, highest = sums
            start = n + number * BLOCK_N
            tokens = start + jnp.arange(BLOCK_N, dtype=jnp.int32)
            scores = dot(queries, load(k, start, BLOCK_N), trans_b=True) * scale
            scores = jnp.where(tokens[None, :] <= rows[:, None], scores, -jnp.inf)
            higher = jnp.maximum(highest, scores.max(axis=1))
            weights, rescale = jnp.exp(scores - higher[:, None]), jnp.exp(highest - higher)
            values = load(v, start, BLOCK_N)
            acc = acc * rescale[:, None] + dot(weights.astype(values.dtype), values)
            return acc, total * rescale + weights.sum(axis=1), higher

        begin = (
            jnp.zeros((BLOCK_M, BLOCK_D), jnp.float32),
            jnp.zeros(BLOCK_M, jnp.float32),
            jnp.full(BLOCK_M, LOWEST, jnp.float32),
        )
        blocks = (jnp.maximum(jnp.minimum(first + BLOCK_M, T) - n, 0) + BLOCK_N - 1) // BLOCK_N
        acc, total, _ = jax.lax.fori_loop(0, blocks, advance, begin)
        z = jnp.where(rows[:, None] < n, 0.0, acc / total[:, None])
        stored = (rows < T)[:, None] & inside
        pallas_triton.store(tile(y, first, BLOCK_M), z.astype(y.dtype), mask=stored)

    return jax.jit(
        pallas.pallas_call(
            attention,
            out_shape=jax.ShapeDtypeStruct((B, H, T, D), case.dtype),
            grid=(B, H, pallas.cdiv(T, BLOCK_M)),
            compiler_params=pallas_triton.CompilerParams(
                num_warps=chosen["num_warps"], num_stages=chosen["num_stages"]
            ),
            interpret=device.type == "cpu",
        )
    )
