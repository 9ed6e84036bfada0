"""The tiles of interactions.cuh, and its launch. `case` is one of interaction, or a part of a model's.

BLOCK_M: samples of a block, or rows of a sample's outer product. BLOCK_K: elements of D that are on their way at once.
"""

import numpy as np

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, too_large
from implementations._shared.dlrm import pairs_skip
from implementations._shared.gpu import is_ieee

FIXED = "dot_wide", "outer_flat"  # kernels without tunables
ROWS_BYTES = 32 * 8  # of shared memory for where a sample's vectors lie
STAGED_BYTES = 48 << 10  # of a block's rows of y: beyond, they are stored where they belong, element by element


def skip(case):
    """Why no kernel here can run the case, or None."""
    if reason := pairs_skip(case):
        return reason
    if case.options["form"] == "dot" and case.precision == "tf32" and case.sizes["F"] > 31:
        return "multiplies more than 32 vectors without tensor cores: precision=ieee runs it"
    return None


def kernel_of(case):
    """The kernel that the case takes."""
    F, D = case.size("F", "D")
    if case.options["form"] == "outer":
        return "outer_flat" if D % vector(case) else "outer_rows"
    return "dot_wide" if F > 31 else "dot_simt" if is_ieee(case) else "dot_tensor"


def config(case, device):
    kernel, D = kernel_of(case), case.sizes["D"]
    if kernel in FIXED:
        return {}
    if kernel == "outer_rows":
        return {"BLOCK_M": 16}
    samples = 8 if case.dtype != "float32" else 4  # the rows of so many samples are whole vectors
    if kernel == "dot_tensor":
        steps = -(-D // step(case)) if D % vector(case) == 0 else 1
        return {"BLOCK_M": samples, "BLOCK_K": step(case) * min(4, 1 << (steps - 1).bit_length())}
    depths = (depth for depth in (128, 64, 32, 16) if depth < 2 * D or depth == 16)
    found = ({"BLOCK_M": samples, "BLOCK_K": depth} for depth in depths)
    return next(own for own in found if fits(case, device, own) is None)


def fits(case, device, config):
    """Why a config cannot run, or None."""
    kernel = kernel_of(case)
    if kernel in FIXED:
        return None
    rows = config["BLOCK_M"]
    if kernel == "outer_rows":
        return not_one_of("BLOCK_M", rows, range(1, 257))
    depth = config["BLOCK_K"]
    if rows > 32 or rows < 1 or rows * case.itemsize % 16:
        return f"BLOCK_M is {rows}: a block has at most 32 samples, whose rows are together whole vectors of 16 bytes"
    if kernel == "dot_tensor":
        # 4 of 4 bands: 64 registers of loads
        return not_one_of("BLOCK_K", depth, [step(case) * unroll for unroll in (1, 2, 4)])
    return not_one_of("BLOCK_K", depth, (16, 32, 64, 128)) or too_large(
        shared_bytes(case, config, columns_of_dots(case) + 15), device, ROWS_BYTES * rows
    )


def launch(file, case, config, hashing="", pitch=None):
    """The launch of `file`, which includes interactions.cuh; of dots with a hashing, `modulus` or `improved`, of that which looks up. `pitch` is
    how many elements a row of dots takes; those past its columns become 0."""
    M, F, D = case.size("M", "F", "D")
    kernel, rows, depth = kernel_of(case), config.get("BLOCK_M"), config.get("BLOCK_K")
    T, sizes, aligned, dtypes = TYPES[case.dtype], (np.int32(F), np.int32(D)), D % vector(case) == 0, (case.dtype,) * 3
    N = (F + 1) * D
    if kernel == "outer_flat":
        grid = -(-M * N * N // (256 * vector(case)))
        return Launch(instance(file, kernel, T), grid, 256, dtypes=dtypes, sizes=(M, *sizes))
    if kernel == "outer_rows":
        vectors = N // vector(case)
        blocks = -(-vectors // 256)
        block = -(-vectors // (blocks * 32)) * 32
        grid = M * blocks * -(-N // rows)
        return Launch(instance(file, kernel, T, rows), grid, block, dtypes=dtypes, sizes=sizes)
    head, pitch = () if kernel == "dot_simt" else (T,), pitch or columns_of_dots(case)
    sizes = (*sizes, np.int32(pitch))
    name = kernel
    if hashing:
        name, head = f"looked_up_{kernel}", (*head, hashing == "improved")
        dtypes = (case.dtype, "int64", case.dtype, "int64", "int32", "int32", case.dtype)
    if kernel == "dot_wide":
        bands = F // 32 + 1
        return Launch(instance(file, name, *head), M * (bands * (bands + 1) // 2), 256, dtypes=dtypes, sizes=sizes)
    tile = (depth, rows) if kernel == "dot_simt" else (F // 8 + 1, depth // step(case), rows)
    program = instance(file, name, *head, aligned, staged_bytes(case, rows, pitch) > 0, *tile)
    return Launch(
        program, -(-M // rows), rows * 32, shared_bytes(case, config, pitch), dtypes=dtypes, sizes=(M, *sizes)
    )


def call(described, case, hashing, columns):
    """A function of dense (M, D) and sparse (M, F, D), or with a hashing of ids, tables, offsets and what was prepared for it in the
    place of `sparse`. It returns (M, columns)."""
    absent = (4, 5) if hashing == "modulus" else ()
    return described.returning({len(described.dtypes) - 1: (case.sizes["M"], columns)}, absent=absent)


def vector(case):
    """Elements of 16 bytes."""
    return 16 // case.itemsize


def step(case):
    """Elements of D that the four lanes of a vector load at once, for tensor cores."""
    return 4 * vector(case)


def columns_of_dots(case):
    """Columns of y."""
    F, D = case.size("F", "D")
    return D + F * (F + 1) // 2


def staged_bytes(case, samples, pitch):
    """Shared memory for a block's rows of y; none where they would take too much of it."""
    size = samples * pitch * case.itemsize
    return size if size <= STAGED_BYTES else 0


def shared_bytes(case, config, pitch):
    """Shared memory of a block of `dot_simt` or `dot_tensor`: its rows of y, and what dot_simt keeps of its vectors."""
    kept = 0
    if is_ieee(case):
        kept = config["BLOCK_M"] * 4 * (case.sizes["F"] // 4 + 1) * (config["BLOCK_K"] | 4) * 4
    return staged_bytes(case, config["BLOCK_M"], pitch) + kept
