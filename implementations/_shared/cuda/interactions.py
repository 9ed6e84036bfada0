"""The tiles of interactions.cuh, and its launch. `case` is one of interaction, or a part of a model's.

BLOCK_M: samples of a block, or rows of a sample's outer product. Of dots, num_warps has each sample; BLOCK_F vectors are a band, and BLOCK_K
elements of each are in shared memory at once.
"""

from math import gcd

import numpy as np

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, too_large
from implementations._shared.gpu import is_ieee, multiprocessors, shared_memory

SAMPLES, DEPTHS, BANDS, WARPS = (1, 2, 4, 8), (16, 32, 64, 128, 256, 512), (32, 64, 128, 256, 512), (1, 2, 4, 8)
STAGED_BYTES = 48 << 10  # of a sample's row of y: beyond, it is stored where it belongs, element by element


def kernel_of(case):
    """The kernel that the case takes."""
    if case.options["form"] == "outer":
        return "outer_flat" if case.sizes["D"] % vector(case) else "outer_rows"
    return "dot_simt" if is_ieee(case) else "dot_tensor"


def config(case, device):
    kernel = kernel_of(case)
    if kernel == "outer_flat":
        return {}
    if kernel == "outer_rows":
        return {"BLOCK_M": 16}
    M, F, D = case.size("M", "F", "D")
    enough = multiprocessors(device)
    chosen = {"BLOCK_M": 1, "BLOCK_K": next((n for n in DEPTHS if n >= D), DEPTHS[-1])} | _bands(case, device, enough)
    while chosen["BLOCK_K"] > DEPTHS[0] and _is_large(case, chosen, device):
        chosen["BLOCK_K"] //= 2
    chosen["num_warps"] = _warps(case, chosen, M * _pairs(case, chosen) <= 2 * enough)
    # a multiprocessor has up to 32 blocks: if they are a warp with a short sample each, these are too few bytes on their way
    if chosen["num_warps"] == 1 and 32 * enough < M and (F + 1) * D * case.itemsize < 2048:
        chosen["BLOCK_M"] = 4
    return chosen


def _bands(case, device, enough):
    """The most vectors of a band that leave enough blocks, and bring vectors as a whole. 64 or less are multiplied in one pass, so that pieces of
    vectors are brought once."""
    M, F, D = case.size("M", "F", "D")
    least = next((n for n in BANDS if n > F), BANDS[-1])
    choices = [{"BLOCK_F": n, "BLOCK_K": D} for n in (256, 128, 64, 32) if n <= least]
    fitting = (c for c in choices if M * _pairs(case, c) >= enough and not _is_large(case, c, device))
    return {"BLOCK_F": next(fitting, {"BLOCK_F": min(64, least)})["BLOCK_F"]}


def _is_large(case, config, device):
    """Whether a multiprocessor cannot have two blocks of a sample."""
    return 2 * _bytes(case, config, columns_of_dots(case), looks_up=True) > shared_memory(device)


def _warps(case, chosen, few):
    """Warps of a sample. With few samples each square, a small one, has a warp, and no less than 4 bring vectors; with many no warp is without
    a square."""
    if few or is_ieee(case):
        wanted = -(-_squares(case, chosen, 4) // 32) if is_ieee(case) else _squares(case, chosen, 16)
        return next((n for n in WARPS if n >= max(wanted, 4 if few else 1)), WARPS[-1])
    return max(n for n in WARPS if n <= max(1, _squares(case, chosen, 32) // 4))


def _squares(case, config, side):
    """How many squares of products the largest of a sample's blocks has."""
    vectors = min(case.sizes["F"] + 1, config["BLOCK_F"])
    across = -(-vectors // side)
    return across * (across + 1) // 2 if config["BLOCK_F"] > case.sizes["F"] else across * across


def _side(case, config):
    """Vectors of a side of the squares: fewer where warps, or lanes, would be without one."""
    if is_ieee(case):
        return 4 if _squares(case, config, 2) > 32 * config["num_warps"] else 2
    if config["num_warps"] == 1 and config["BLOCK_F"] > case.sizes["F"] and case.sizes["F"] < 64:
        return case.sizes["F"] // 16 * 16 + 16  # its only one
    return 32 if _squares(case, config, 32) >= config["num_warps"] else 16


def _pairs(case, config):
    """Blocks of a sample, or of BLOCK_M of them: pairs of bands."""
    bands = case.sizes["F"] // config["BLOCK_F"] + 1
    return bands * (bands + 1) // 2


def fits(case, device, config):
    """Why a config cannot run, or None."""
    kernel = kernel_of(case)
    if kernel == "outer_flat":
        return None
    rows = config["BLOCK_M"]
    if kernel == "outer_rows":
        return not_one_of("BLOCK_M", rows, range(1, 257))
    known = {"BLOCK_M": SAMPLES, "BLOCK_K": DEPTHS, "BLOCK_F": BANDS, "num_warps": WARPS}
    if reason := next(filter(None, (not_one_of(name, config[name], values) for name, values in known.items())), None):
        return reason
    if rows > 1 and config["num_warps"] > 1:
        return f"a sample has {config['num_warps']} warps: several of a block have one each"
    return too_large(rows * _bytes(case, config, columns_of_dots(case) + 15, looks_up=True), device)


def launch(file, case, config, hashing="", pitch=None):
    """The launch of `file`, which includes interactions.cuh; of dots with a hashing, `modulus` or `improved`, of that which looks up. `pitch` is
    how many elements a row of dots takes; those past its columns become 0."""
    M, F, D = case.size("M", "F", "D")
    kernel, rows = kernel_of(case), config.get("BLOCK_M")
    T, sizes, dtypes = TYPES[case.dtype], (np.int32(F), np.int32(D)), (case.dtype,) * 3
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
    name, each = kernel, _bytes(case, config, pitch, bool(hashing))
    if hashing:
        name, head = f"looked_up_{kernel}", (*head, hashing == "improved")
        dtypes = (case.dtype, "int64", case.dtype, "int64", "int32", "int32", case.dtype)
    warps, copy, depth = config["num_warps"], gcd(16, D * case.itemsize), _depth(case, config)
    staged = _staged(case, config, pitch) > 0
    own = f"Sizes<{F}, {D}, {pitch}, {config['BLOCK_F']}, {depth}, {each}>"
    program = instance(file, name, *head, own, _side(case, config), copy, staged, warps, rows)
    grid = -(-M // rows) * _pairs(case, config)
    return Launch(program, grid, rows * warps * 32, rows * each, dtypes=dtypes, sizes=(M,))


def call(described, case, hashing, columns):
    """A function of dense (M, D) and sparse (M, F, D), or with a hashing of ids, tables, offsets and what was prepared for it in the
    place of `sparse`. It returns (M, columns)."""
    absent = (4, 5) if hashing == "modulus" else ()
    return described.returning({len(described.dtypes) - 1: (case.sizes["M"], columns)}, absent=absent)


def vector(case):
    """Elements of 16 bytes."""
    return 16 // case.itemsize


def step(case):
    """Elements of D that the four lanes of a vector load at once, where fragments come from where the vectors lie."""
    return 4 * vector(case)


def columns_of_dots(case):
    """Columns of y."""
    F, D = case.size("F", "D")
    return D + F * (F + 1) // 2


def _depth(case, config):
    """Elements of a vector in shared memory: whole steps of the tensor cores, 32 bytes."""
    step = 32 // case.itemsize
    return min(config["BLOCK_K"], -(-case.sizes["D"] // step) * step)


def _staged(case, config, pitch):
    """Shared memory for a sample's row of y, which may begin up to a vector further; none where several blocks have it, or it takes too much."""
    size = -(-(pitch + vector(case) - 1) // vector(case)) * 16
    return size if config["BLOCK_F"] > case.sizes["F"] and size <= STAGED_BYTES else 0


def _bytes(case, config, pitch, looks_up):
    """Shared memory of a sample in a block (dots.cuh)."""
    F, band = case.sizes["F"], config["BLOCK_F"]
    vectors = F + 1 if band > F else 2 * band
    where = (vectors + 1) // 2 * 16 if looks_up else 0
    return where + vectors * (_depth(case, config) * case.itemsize + 16) + _staged(case, config, pitch)
