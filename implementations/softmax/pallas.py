"""softmax in Pallas, JAX's language for kernels, through its Triton back end: a program has some whole rows in registers, masked
up to the next power of two.

Without a GPU it runs in Pallas's interpreter.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas
from jax.experimental.pallas import triton as pallas_triton

BACKEND = "jax"
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ()}
TUNABLES = {"default": {"ROWS": (1, 2, 4, 8), "num_warps": (1, 2, 4, 8, 16)}}

BEGIN = np.int32(0)  # indices of one slice have one dtype, and the other one is 32 bits wide
LONGEST = 32768  # elements of a row: 64 of each of 512 threads


def skip(case, variant, device):
    """Why it cannot run this cell, or None."""
    C = case.sizes["C"]
    return None if C <= LONGEST else f"rows are held whole: {C} elements, at most {LONGEST}"


def config(case, variant, device):
    """Rows of a program for 2048 elements at least, and a warp for each 1024 of them."""
    BLOCK = pallas.next_power_of_2(case.sizes["C"])
    ROWS = max(1, min(8, 2048 // BLOCK))
    return {"ROWS": ROWS, "num_warps": max(1, min(16, ROWS * BLOCK // 1024))}


def build(case, variant, device, chosen):
    """call(x (R, C)) → (R, C), jitted."""
    R, C = case.size("R", "C")
    ROWS, BLOCK = chosen["ROWS"], pallas.next_power_of_2(C)

    def softmax(x, y):
        first = pallas.program_id(0) * ROWS
        inside = (first + jnp.arange(ROWS, dtype=jnp.int32) < R)[:, None] & (jnp.arange(BLOCK, dtype=jnp.int32) < C)
        tile = pallas.ds(first, ROWS), pallas.ds(BEGIN, BLOCK)
        values = pallas_triton.load(x.at[tile], mask=inside, other=-jnp.inf).astype(jnp.float32)
        exponentials = jnp.exp(values - values.max(axis=1, keepdims=True))
        z = exponentials / exponentials.sum(axis=1, keepdims=True)
        pallas_triton.store(y.at[tile], z.astype(y.dtype), mask=inside)

    return jax.jit(
        pallas.pallas_call(
            softmax,
            out_shape=jax.ShapeDtypeStruct((R, C), case.dtype),
            grid=(pallas.cdiv(R, ROWS),),
            compiler_params=pallas_triton.CompilerParams(num_warps=chosen["num_warps"]),
            interpret=device.type == "cpu",
        )
    )
