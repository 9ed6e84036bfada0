"""interaction's backward modes in Triton, one launch in either form, from the inputs alone: nothing else is kept.

dot     a program has some of a sample's F + 1 vectors: their rows of the symmetric matrix of dy, which stand in the triangle's order in
        memory, times all vectors. Its diagonal is 0. Vector 0, the dense one, also has dy's own columns.
outer   a program has a sample and goes once through its dy (N, N), some whole rows i at a time: dy[i] · x is the first part of dx[i],
        and dy[i, j] x[i] adds to dx[j]. dy, which is all of the traffic, is read once.
"""

import triton
import triton.language as tl

from implementations._shared.gpu import is_ieee
from implementations._shared.triton.interactions import features_of, nearest_tf32, vectors
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit
from implementations.interaction._vectors import side_by_side

LONGEST = 8192  # values of a sample, of which each thread has some in registers


def skip(case, variant, device):
    """Why Triton cannot run this cell backward, or None."""
    N = (case.sizes["F"] + 1) * case.sizes["D"]
    if case.options["form"] == "outer" and N > LONGEST:
        return f"a sample of more than {LONGEST} values does not fit in a program's registers"
    return None


def config(case):
    """The tunables of a form: 27 vectors of DLRM are one tile of 32; `outer` has 8192 elements of dy at a time."""
    F, D = case.size("F", "D")
    if case.options["form"] == "outer":
        BLOCK_J = max(64, triton.next_power_of_2((F + 1) * D))
        BLOCK_I = max(1, min(16, 8192 // BLOCK_J))
        return {"BLOCK_I": BLOCK_I, "num_warps": 8 if BLOCK_J >= 256 else 4, "num_stages": 3}
    BLOCK_F = max(16, min(64 if case.dtype != "float32" else 32, triton.next_power_of_2(F + 1)))
    BLOCK_D = max(16, min(32 if is_ieee(case) else 64, triton.next_power_of_2(D)))
    return {"BLOCK_F": BLOCK_F, "BLOCK_D": BLOCK_D, "num_warps": 4 if BLOCK_F == 64 else 1, "num_stages": 2}


def fits(case, device, config):
    """Why a config cannot run, or None."""
    if case.options["form"] == "outer":
        columns = triton.next_power_of_2((case.sizes["F"] + 1) * case.sizes["D"])
        shared = config["num_stages"] * config["BLOCK_I"] * columns * case.itemsize
        return misfit(device, config, values=(config["BLOCK_I"] + 2) * columns, shared=shared)
    BLOCK_F, BLOCK_D = config["BLOCK_F"], config["BLOCK_D"]
    values = BLOCK_F * BLOCK_F + 2 * BLOCK_F * BLOCK_D
    shared = (BLOCK_F * BLOCK_F + BLOCK_F * BLOCK_D) * case.itemsize * config["num_stages"]
    return misfit(device, config, ("BLOCK_F", "BLOCK_D"), values, shared)


def launches(case, config):
    """The one launch of either form."""
    M, F, D = case.size("M", "F", "D")
    pointer = TYPES[case.dtype]
    signature = dict.fromkeys(("dense", "sparse", "dy", "ddense", "dsparse"), pointer)
    if case.options["form"] == "outer":
        options = {
            "F": F,
            "D": D,
            "BLOCK_J": max(64, triton.next_power_of_2((F + 1) * D)),
            "STAGES": config["num_stages"],
        }
        return (launch_with(config, outer_gradient, signature, options, (M,)),)
    bands = triton.cdiv(F + 1, config["BLOCK_F"])
    options = {"F": F, "D": D, "PRECISION": case.precision, "BANDS": bands}
    return (launch_with(config, dot_gradient, signature, options, (M * bands,)),)


@triton.jit
def symmetric(dy, row_band, column_band, F: tl.constexpr, PRECISION: tl.constexpr, BLOCK_F: tl.constexpr):
    """A tile of the symmetric matrix of which dy has the lower triangle, row by row; its diagonal is 0."""
    i = row_band * BLOCK_F + tl.arange(0, BLOCK_F)[:, None]
    j = column_band * BLOCK_F + tl.arange(0, BLOCK_F)[None, :]
    below, above = tl.maximum(i, j), tl.minimum(i, j)
    tile = tl.load(dy + below * (below - 1) // 2 + above, mask=(below <= F) & (below > above), other=0.0)
    return nearest_tf32(tile) if PRECISION == "tf32" else tile


@triton.jit
def dot_gradient(
    dense, sparse, dy, ddense, dsparse,
    F: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr, BANDS: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One band of a sample's vectors."""
    sample, band = (tl.program_id(0) // BANDS).to(tl.int64), tl.program_id(0) % BANDS
    dense += sample * D
    sparse += sample * F * D
    dy += sample * (D + F * (F + 1) // 2)
    f = band * BLOCK_F + tl.arange(0, BLOCK_F)
    written = tl.where(f == 0, ddense + sample * D, dsparse + sample * F * D + (f - 1) * D)
    weights = symmetric(dy + D, band, 0, F, PRECISION, BLOCK_F)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        x = vectors(dense, sparse, features_of(0, F, BLOCK_F), 0, d, F, D, PRECISION, BLOCK_F)
        acc = tl.dot(weights, x, input_precision=PRECISION)
        for other in range(1, BANDS):
            x = vectors(dense, sparse, features_of(other, F, BLOCK_F), other, d, F, D, PRECISION, BLOCK_F)
            acc = tl.dot(symmetric(dy + D, band, other, F, PRECISION, BLOCK_F), x, acc, input_precision=PRECISION)
        if band == 0:
            own = tl.load(dy + d, mask=d < D, other=0.0).to(tl.float32)
            acc += tl.where(f[:, None] == 0, own[None, :], 0.0)
        inside = (f <= F)[:, None] & (d < D)[None, :]
        tl.store(written[:, None] + d[None, :], acc.to(ddense.dtype.element_ty), mask=inside)


@triton.jit
def outer_gradient(
    dense, sparse, dy, ddense, dsparse,
    F: tl.constexpr, D: tl.constexpr, BLOCK_J: tl.constexpr, STAGES: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """One sample. A row's sum becomes that of its own column, where row and column have one number."""
    N: tl.constexpr = (F + 1) * D
    sample = tl.program_id(0).to(tl.int64)
    dense += sample * D
    sparse += sample * F * D
    dy += sample * N * N
    j = tl.arange(0, BLOCK_J)
    x = side_by_side(dense, sparse, j, D, N)
    acc = tl.zeros([BLOCK_J], tl.float32)
    for start in tl.range(0, N, BLOCK_I, num_stages=STAGES):
        i = start + tl.arange(0, BLOCK_I)
        place = i.to(tl.int64)[:, None] * N + j[None, :]
        tile = tl.load(dy + place, mask=(i < N)[:, None] & (j < N)[None, :], other=0.0).to(tl.float32)
        along = tl.sum(tile * x[None, :], 1)
        across = tile * side_by_side(dense, sparse, i, D, N)[:, None]
        acc += tl.sum(across + tl.where(i[:, None] == j[None, :], along[:, None], 0.0), 0)
    written = tl.where(j < D, ddense + sample * D, dsparse + sample * F * D - D)
    tl.store(written + j, acc.to(ddense.dtype.element_ty), mask=j < N)
