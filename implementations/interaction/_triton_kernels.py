"""interaction in Triton: the kernels that triton.py and jax_triton.py both launch, and the choice of their tiles.

dot     a program has one sample and a tile of its F + 1 vectors against another (one tile where F + 1 fits): a product of
        matrices of which the part below the diagonal is stored where the triangle has it.
outer   a program has one sample and a tile of its outer product.
"""

import triton
import triton.language as tl

from implementations._shared.triton.launch import TYPES, Launch
from implementations.interaction import _limits


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    return _limits.skip(case, variant, device)


def launches(case, variant, device):
    """The one launch of either form."""
    M, F, D = case.size("M", "F", "D")
    pointer = TYPES[case.dtype]
    signature = {"dense": pointer, "sparse": pointer, "y": pointer}
    constexprs = {"F": F, "D": D}
    if case.options["form"] == "outer":
        tile, num_warps = outer_tile(case)
        N = (F + 1) * D
        tiles = triton.cdiv(N, tile["BLOCK_I"]) * triton.cdiv(N, tile["BLOCK_J"])
        return (Launch(outer, signature, constexprs | tile, (M * tiles,), num_warps, 1),)
    tile, num_warps, num_stages = dot_tile(case)
    bands = triton.cdiv(F + 1, tile["BLOCK_F"])
    constexprs |= {"PRECISION": case.precision, "BANDS": bands} | tile
    return (Launch(dot, signature, constexprs, (M * (bands * (bands + 1) // 2),), num_warps, num_stages),)


def dot_tile(case):
    """The tile of `dot`, its warps and its stages. DLRM's 27 vectors are one tile of 32 and one warp: 16 and more of them live
    on a multiprocessor, which keeps enough loads in flight without a pipeline."""
    F, D = case.size("F", "D")
    BLOCK_F = max(16, min(64, triton.next_power_of_2(F + 1)))
    # the tile stands in registers on its way to shared memory: 8 KB of one warp are 64 registers of a thread
    limit = 128 if case.dtype != "float32" else 64 if case.precision == "tf32" else 32
    BLOCK_D = max(16, min(limit * 32 // max(32, BLOCK_F), triton.next_power_of_2(D)))
    num_warps = 4 if BLOCK_F == 64 else 1
    return {"BLOCK_F": BLOCK_F, "BLOCK_D": BLOCK_D}, num_warps, 2


def outer_tile(case):
    """The tile of `outer` and its warps: 8192 elements, long in the direction in which y is contiguous."""
    F, D = case.size("F", "D")
    BLOCK_J = min(512, triton.next_power_of_2((F + 1) * D))
    BLOCK_I = min(8192 // BLOCK_J, triton.next_power_of_2((F + 1) * D))
    return {"BLOCK_I": BLOCK_I, "BLOCK_J": BLOCK_J}, 4 if BLOCK_I * BLOCK_J >= 2048 else 1


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
