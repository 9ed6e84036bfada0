"""interaction in Triton: the kernels that triton.py and jax_triton.py both launch, and the choice of their tiles.

dot     a program has one sample and a tile of its F + 1 vectors against another (one tile where F + 1 fits): a product of
        matrices of which the part below the diagonal is stored where the triangle has it.
outer   a program has one sample and a tile of its outer product.
"""

import triton
import triton.language as tl

from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit
from implementations.interaction import _limits

TUNABLES = {  # BLOCK_F and BLOCK_D are those of form=dot, BLOCK_I and BLOCK_J those of form=outer
    "default": {
        "BLOCK_F": (16, 32, 64), "BLOCK_D": (16, 32, 64, 128), "BLOCK_I": (8, 16, 32, 64), "BLOCK_J": (64, 128, 256, 512),
        "num_warps": (1, 2, 4, 8), "num_stages": (1, 2, 3, 4),
    },
}  # fmt: skip


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    return _limits.skip(case, variant, device)


def config(case, variant, device):
    """The tunables of a form: its tile and warps; `outer`, which has no loop, has no stages."""
    return dot_config(case) if case.options["form"] == "dot" else outer_config(case)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    if case.options["form"] == "outer":
        return misfit(device, config, values=config["BLOCK_I"] * config["BLOCK_J"])
    BLOCK_F, BLOCK_D = config["BLOCK_F"], config["BLOCK_D"]
    bands = 1 if case.sizes["F"] < BLOCK_F else 2  # of vectors in a program: where there is one, it meets itself
    shared = config["num_stages"] * bands * BLOCK_F * BLOCK_D * case.itemsize
    return misfit(device, config, ("BLOCK_F", "BLOCK_D"), BLOCK_F * (BLOCK_F + BLOCK_D * case.itemsize // 4), shared)


def launches(case, variant, device, config):
    """The one launch of either form."""
    M, F, D = case.size("M", "F", "D")
    pointer = TYPES[case.dtype]
    signature = {"dense": pointer, "sparse": pointer, "y": pointer}
    constexprs = {"F": F, "D": D}
    if case.options["form"] == "outer":
        N = (F + 1) * D
        tiles = triton.cdiv(N, config["BLOCK_I"]) * triton.cdiv(N, config["BLOCK_J"])
        return (launch_with(config, outer, signature, constexprs, (M * tiles,)),)
    bands = triton.cdiv(F + 1, config["BLOCK_F"])
    constexprs |= {"PRECISION": case.precision, "BANDS": bands}
    return (launch_with(config, dot, signature, constexprs, (M * (bands * (bands + 1) // 2),)),)


def dot_config(case):
    """The tile of `dot`, its warps and its stages. DLRM's 27 vectors are one tile of 32 and one warp: 16 and more of them live
    on a multiprocessor, which keeps enough loads in flight without a pipeline."""
    F, D = case.size("F", "D")
    BLOCK_F = max(16, min(64, triton.next_power_of_2(F + 1)))
    # the tile stands in registers on its way to shared memory: 8 KB of one warp are 64 registers of a thread
    limit = 128 if case.dtype != "float32" else 64 if case.precision == "tf32" else 32
    BLOCK_D = max(16, min(limit * 32 // max(32, BLOCK_F), triton.next_power_of_2(D)))
    return {"BLOCK_F": BLOCK_F, "BLOCK_D": BLOCK_D, "num_warps": 4 if BLOCK_F == 64 else 1, "num_stages": 2}


def outer_config(case):
    """The tile of `outer` and its warps: 8192 elements, long in the direction in which y is contiguous."""
    F, D = case.size("F", "D")
    BLOCK_J = min(512, triton.next_power_of_2((F + 1) * D))
    BLOCK_I = min(8192 // BLOCK_J, triton.next_power_of_2((F + 1) * D))
    return {"BLOCK_I": BLOCK_I, "BLOCK_J": BLOCK_J, "num_warps": 4 if BLOCK_I * BLOCK_J >= 2048 else 1}


@triton.jit
def nearest_tf32(v):
    """v rounded to TF32; NaN stays NaN. Tensor cores drop the low 13 bits instead, always towards 0."""
    rounded = ((v.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return tl.where(v == v, rounded, v)


@triton.jit
def vectors(dense, sparse, band, d, F: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr, BLOCK_F: tl.constexpr):
    """The elements d of the sample's vectors in the band, (BLOCK_F, BLOCK_D), 0 outside; vector 0 is the dense one."""
    f = band * BLOCK_F + tl.arange(0, BLOCK_F)
    start = tl.where(f == 0, dense, sparse + (f - 1) * D)
    x = tl.load(start[:, None] + d[None, :], mask=(f <= F)[:, None] & (d < D)[None, :], other=0.0)
    return nearest_tf32(x) if PRECISION == "tf32" else x


@triton.jit
def dot(
    dense, sparse, y,
    F: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr, BANDS: tl.constexpr,
    BLOCK_F: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One band of vectors against itself or an earlier one, of one sample."""
    PAIRS: tl.constexpr = BANDS * (BANDS + 1) // 2
    sample = (tl.program_id(0) // PAIRS).to(tl.int64)
    pair = tl.program_id(0) % PAIRS
    row_band = 0
    for band in range(1, BANDS):
        row_band += (band * (band + 1) // 2 <= pair).to(tl.int32)
    column_band = pair - row_band * (row_band + 1) // 2
    dense += sample * D
    sparse += sample * F * D
    y += sample * (D + F * (F + 1) // 2)

    acc = tl.zeros([BLOCK_F, BLOCK_F], tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        a = vectors(dense, sparse, row_band, d, F, D, PRECISION, BLOCK_F)
        b = a if BANDS == 1 else vectors(dense, sparse, column_band, d, F, D, PRECISION, BLOCK_F)
        acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)
        if pair == 0:
            tl.store(y + d, tl.load(dense + d, mask=d < D), mask=d < D)

    i = row_band * BLOCK_F + tl.arange(0, BLOCK_F)[:, None]
    j = column_band * BLOCK_F + tl.arange(0, BLOCK_F)[None, :]
    tl.store(y + D + i * (i - 1) // 2 + j, acc.to(y.dtype.element_ty), mask=(j < i) & (i <= F))


@triton.jit
def side_by_side(dense, sparse, n, D: tl.constexpr, N: tl.constexpr):
    """The elements n of the sample's dense and sparse vectors side by side, as float32; 0 from N on."""
    start = tl.where(n < D, dense, sparse - D)
    return tl.load(start + n, mask=n < N, other=0.0).to(tl.float32)


@triton.jit
def outer(
    dense, sparse, y,
    F: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """A tile of the outer product of one sample. Neighbouring programs write neighbouring memory."""
    N: tl.constexpr = (F + 1) * D
    ACROSS: tl.constexpr = (N + BLOCK_J - 1) // BLOCK_J
    TILES: tl.constexpr = ACROSS * ((N + BLOCK_I - 1) // BLOCK_I)
    sample = (tl.program_id(0) // TILES).to(tl.int64)
    tile = tl.program_id(0) % TILES
    i = tile // ACROSS * BLOCK_I + tl.arange(0, BLOCK_I)
    j = tile % ACROSS * BLOCK_J + tl.arange(0, BLOCK_J)
    dense += sample * D
    sparse += sample * F * D
    product = side_by_side(dense, sparse, i, D, N)[:, None] * side_by_side(dense, sparse, j, D, N)[None, :]
    y_tile = y + sample * N * N + i.to(tl.int64)[:, None] * N + j[None, :]
    tl.store(y_tile, product.to(y.dtype.element_ty), mask=(i < N)[:, None] & (j < N)[None, :], cache_modifier=".cs")
