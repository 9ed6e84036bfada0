"""DLRM's dots of vectors in Triton: the kernel of interaction with form=dot, the same behind look-ups of its own, and the choice of
their tile. `case` is one of interaction, or a part of a model's.

A program has one sample and a tile of its F + 1 vectors against another (one tile where F + 1 fits): a product of matrices of which
the part below the diagonal is stored where the triangle has it.

    dot                       the sparse vectors are there
    modulus_dot, improved_dot ids and tables are there: the program finds its sample's table rows and reads them straight into the
                              product, so that the vectors are never written
"""

import triton
import triton.language as tl

from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit
from implementations._shared.triton.lookup import found_rows, hashed_rows, search_steps


def config(case):
    """The tile of `dot`, its warps and its stages. DLRM's 27 vectors are one tile of 32 and one warp: 16 and more of them live
    on a multiprocessor, which keeps enough loads in flight without a pipeline."""
    F, D = case.size("F", "D")
    BLOCK_F = max(16, min(64, triton.next_power_of_2(F + 1)))
    # the tile stands in registers on its way to shared memory: 8 KB of one warp are 64 registers of a thread
    limit = 128 if case.dtype != "float32" else 64 if case.precision == "tf32" else 32
    BLOCK_D = max(16, min(limit * 32 // max(32, BLOCK_F), triton.next_power_of_2(D)))
    return {"BLOCK_F": BLOCK_F, "BLOCK_D": BLOCK_D, "num_warps": 4 if BLOCK_F == 64 else 1, "num_stages": 2}


def fits(case, device, config):
    """Why a config cannot run, or None."""
    BLOCK_F, BLOCK_D = config["BLOCK_F"], config["BLOCK_D"]
    bands = 1 if case.sizes["F"] < BLOCK_F else 2  # of vectors in a program: where there is one, it meets itself
    shared = config["num_stages"] * bands * BLOCK_F * BLOCK_D * case.itemsize
    return misfit(device, config, ("BLOCK_F", "BLOCK_D"), BLOCK_F * (BLOCK_F + BLOCK_D * case.itemsize // 4), shared)


def launch(case, config, hashing="", V=1, pitch=None):
    """The launch of `dot`, or with a hashing, `modulus` or `improved` in tables of V rows at most, of that which looks up. `pitch` is how
    many elements a row of y takes; those past its columns become 0."""
    M, F, D = case.size("M", "F", "D")
    pointer, bands = TYPES[case.dtype], triton.cdiv(F + 1, config["BLOCK_F"])
    constexprs = {"F": F, "D": D, "PITCH": pitch or D + F * (F + 1) // 2, "PRECISION": case.precision, "BANDS": bands}
    kernel, signature = dot, {"dense": pointer, "sparse": pointer}
    if hashing:
        kernel, signature = modulus_dot, {"dense": pointer, "ids": "*i64", "tables": pointer, "offsets": "*i64"}
    if hashing == "improved":
        kernel = improved_dot
        signature |= {"keys": "*i32", "positions": "*i32"}
        constexprs |= {"STEPS": search_steps(V)}
    return launch_with(config, kernel, signature | {"y": pointer}, constexprs, (M * (bands * (bands + 1) // 2),))


@triton.jit
def nearest_tf32(v):
    """v rounded to TF32; NaN stays NaN. Tensor cores drop the low 13 bits instead, always towards 0."""
    rounded = ((v.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return tl.where(v == v, rounded, v)


@triton.jit
def bands_of_program(BANDS: tl.constexpr):
    """The program's sample, and its band of vectors with the same or an earlier one."""
    PAIRS: tl.constexpr = BANDS * (BANDS + 1) // 2
    sample = (tl.program_id(0) // PAIRS).to(tl.int64)
    pair = tl.program_id(0) % PAIRS
    row_band = 0
    for band in range(1, BANDS):
        row_band += (band * (band + 1) // 2 <= pair).to(tl.int32)
    return sample, row_band, pair - row_band * (row_band + 1) // 2


@triton.jit
def features_of(band, F: tl.constexpr, BLOCK_F: tl.constexpr):
    """The features whose vectors stand in the band, which begins with the dense vector; an existing one for others."""
    return tl.minimum(tl.maximum(band * BLOCK_F + tl.arange(0, BLOCK_F) - 1, 0), F - 1)


@triton.jit
def vectors(
    dense, tables, rows, band, d, F: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr, BLOCK_F: tl.constexpr
):
    """The elements d of the sample's vectors in the band, (BLOCK_F, BLOCK_D), 0 outside; vector 0 is the dense one, the others are
    `rows` of the tables."""
    f = band * BLOCK_F + tl.arange(0, BLOCK_F)
    start = tl.where(f == 0, dense, tables + rows * D)
    x = tl.load(start[:, None] + d[None, :], mask=(f <= F)[:, None] & (d < D)[None, :], other=0.0)
    return nearest_tf32(x) if PRECISION == "tf32" else x


@triton.jit
def store_dots(
    dense, tables, rows, columns, row_band, column_band, y,
    F: tl.constexpr, D: tl.constexpr, PITCH: tl.constexpr, PRECISION: tl.constexpr, BANDS: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One band of a sample's vectors against itself or an earlier one. `rows` and `columns` are their rows of the tables."""
    acc = tl.zeros([BLOCK_F, BLOCK_F], tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        a = vectors(dense, tables, rows, row_band, d, F, D, PRECISION, BLOCK_F)
        b = a if BANDS == 1 else vectors(dense, tables, columns, column_band, d, F, D, PRECISION, BLOCK_F)
        acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)
        if row_band == 0:
            tl.store(y + d, tl.load(dense + d, mask=d < D), mask=d < D)

    WIDTH: tl.constexpr = D + F * (F + 1) // 2
    if PITCH > WIDTH and row_band == 0:
        past = WIDTH + tl.arange(0, 16)
        tl.store(y + past, tl.zeros([16], y.dtype.element_ty), mask=past < PITCH)
    i = row_band * BLOCK_F + tl.arange(0, BLOCK_F)[:, None]
    j = column_band * BLOCK_F + tl.arange(0, BLOCK_F)[None, :]
    tl.store(y + D + i * (i - 1) // 2 + j, acc.to(y.dtype.element_ty), mask=(j < i) & (i <= F))


@triton.jit
def dot(
    dense, sparse, y,
    F: tl.constexpr, D: tl.constexpr, PITCH: tl.constexpr, PRECISION: tl.constexpr, BANDS: tl.constexpr,
    BLOCK_F: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    sample, row_band, column_band = bands_of_program(BANDS)
    sparse += sample * F * D
    rows, columns = features_of(row_band, F, BLOCK_F), features_of(column_band, F, BLOCK_F)
    store_dots(
        dense + sample * D, sparse, rows, columns, row_band, column_band, y + sample * PITCH,
        F, D, PITCH, PRECISION, BANDS, BLOCK_F, BLOCK_D,
    )  # fmt: skip


@triton.jit
def modulus_dot(
    dense, ids, tables, offsets, y,
    F: tl.constexpr, D: tl.constexpr, PITCH: tl.constexpr, PRECISION: tl.constexpr, BANDS: tl.constexpr,
    BLOCK_F: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    sample, row_band, column_band = bands_of_program(BANDS)
    ids += sample * F
    feature = features_of(row_band, F, BLOCK_F)
    rows = hashed_rows(tl.load(ids + feature), feature, offsets, F)
    columns = rows
    if BANDS > 1:
        feature = features_of(column_band, F, BLOCK_F)
        columns = hashed_rows(tl.load(ids + feature), feature, offsets, F)
    store_dots(
        dense + sample * D, tables, rows, columns, row_band, column_band, y + sample * PITCH,
        F, D, PITCH, PRECISION, BANDS, BLOCK_F, BLOCK_D,
    )  # fmt: skip


@triton.jit
def improved_dot(
    dense, ids, tables, offsets, keys, positions, y,
    F: tl.constexpr, D: tl.constexpr, PITCH: tl.constexpr, PRECISION: tl.constexpr, BANDS: tl.constexpr, STEPS: tl.constexpr,
    BLOCK_F: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    sample, row_band, column_band = bands_of_program(BANDS)
    ids += sample * F
    feature = features_of(row_band, F, BLOCK_F)
    rows = found_rows(tl.load(ids + feature), feature, offsets, keys, positions, F, STEPS)
    columns = rows
    if BANDS > 1:
        feature = features_of(column_band, F, BLOCK_F)
        columns = found_rows(tl.load(ids + feature), feature, offsets, keys, positions, F, STEPS)
    store_dots(
        dense + sample * D, tables, rows, columns, row_band, column_band, y + sample * PITCH,
        F, D, PITCH, PRECISION, BANDS, BLOCK_F, BLOCK_D,
    )  # fmt: skip
