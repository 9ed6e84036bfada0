"""embedding's backward modes in CUDA C++ (cuda_backward.cu).

deterministic   three launches, and sums in one order whatever ran first.
atomic          atomic additions of what a block has of each row: two launches, three with tables of 16 bits.

Nothing is kept of the forward call: ids are hashed again. The tunables are CHUNK, the samples that a block sorts, and num_warps.
"""

from math import gcd
from pathlib import Path

from fusebench.launchers import Program
from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of
from implementations._shared.gpu import multiprocessors

FILE = Path(__file__).with_name("cuda_backward.cu")
CHUNKS = (128, 256, 512, 1024, 2048)
THREADS = 256  # of a block of clear and add_chunks
BLOCKS = 8  # of a multiprocessor there


def skip(case, device):
    """Why it cannot run the case, or None."""
    M, F, V = case.size("M", "F", "V")
    if device.capability < (8, 0):
        return "needs compute capability 8.0 (bfloat16)"
    return "look-ups and rows are counted in 32 bits" if M * F >= 2**30 or V >= 2**30 else None


def config(case, device):
    """The largest chunks that leave every multiprocessor two."""
    M, F = case.size("M", "F")
    chunk = next((c for c in reversed(CHUNKS) if F * -(-M // c) >= 2 * multiprocessors(device)), CHUNKS[0])
    return {"CHUNK": chunk, "num_warps": min(8, chunk // 32)}


def fits(case, config):
    """Why a config cannot run, or None."""
    if reason := not_one_of("CHUNK", config["CHUNK"], CHUNKS):
        return reason
    return not_one_of("num_warps", config["num_warps"], [w for w in (2, 4, 8, 16) if 32 * w <= config["CHUNK"]])


def chunks(case, config):
    """Chunks of a feature."""
    return -(-case.sizes["M"] // config["CHUNK"])


def words(case, config):
    """Words of a table row's mask."""
    return -(-chunks(case, config) // 32)


def hashing(case):
    """The variant of mode=forward that hashes as the case says."""
    return "modulus" if case.options["hashing"] == "modulus" else "improved"


def launches(case, variant, device, config):
    """`clear`, `sum_chunks`, and `add_chunks`, or of `atomic` what narrows its sums, if anything."""
    F, V, D = case.size("F", "V", "D")
    T, dtype, threads, log = TYPES[case.dtype], case.dtype, 32 * config["num_warps"], config["CHUNK"].bit_length() - 1
    width = gcd(16 // case.itemsize, D)
    lanes, improved, atomic = (
        min(32, 1 << (D // width - 1).bit_length()),
        hashing(case) == "improved",
        variant == "atomic",
    )
    key = "unsigned" if (V + 2) << log < 2**32 else "unsigned long long"
    blocks, slices = BLOCKS * multiprocessors(device), -(-D // (width * lanes))
    cleared = "float32" if atomic else "int32"
    first = Launch(Program(FILE, "clear"), blocks, THREADS, dtypes=(cleared,))
    program = instance(FILE, "sum_chunks", key, T, width, lanes, F, improved, atomic, threads, log)
    dtypes = "int64", "int64", "int32", "int32", dtype, "int32", "int32", "int32", "int32", "float32"
    second = Launch(program, F * chunks(case, config), threads, dtypes=dtypes)
    if atomic:
        narrow = Launch(instance(FILE, "narrow", T), blocks, THREADS, dtypes=("float32", dtype))
        return (first, second) if case.dtype == "float32" else (first, second, narrow)
    program = instance(FILE, "add_chunks", T, width, lanes, F, THREADS, log)
    dtypes = "int32", "int32", "int32", "int32", dtype, "float32", "int64", dtype
    third = Launch(program, -(-blocks // slices) * slices + 1, THREADS, dtypes=dtypes)
    return first, second, third


def gradient(case, variant, device, config):
    """A function (ids, offsets, keys, positions, tables, dy) → dtables; keys and positions are 0 where there are none."""
    bound = [launch.bind() for launch in launches(case, variant, device, config)]
    return (_atomic if variant == "atomic" else _deterministic)(case, config, bound)


def _deterministic(case, config, bound):
    import torch

    clear, sum_chunks, add_chunks = bound
    M, F, D = case.size("M", "F", "D")
    per_feature, mask_words = chunks(case, config), words(case, config)
    sorted_ones = F * per_feature * config["CHUNK"]

    def call(ids, offsets, keys, positions, tables, dy):
        masks, where, rows, samples = (
            torch.empty(size, dtype=torch.int32, device=dy.device)
            for size in (len(tables) * mask_words, len(tables), sorted_ones, sorted_ones)
        )
        partials = torch.empty((sorted_ones // 2, D), dtype=torch.float32, device=dy.device)
        dtables = torch.empty_like(tables)
        clear(masks, masks.numel())
        sum_chunks(ids, offsets, keys, positions, dy, masks, where, rows, samples, partials, M, D, mask_words)
        add_chunks(masks, where, rows, samples, dy, partials, offsets, dtables, per_feature, D, mask_words)
        return dtables

    return call


def _atomic(case, config, bound):
    import torch

    clear, add, *narrow = bound
    M, D = case.size("M", "D")

    def call(ids, offsets, keys, positions, tables, dy):
        sums = torch.empty_like(tables, dtype=torch.float32)
        clear(sums, sums.numel())
        add(ids, offsets, keys, positions, dy, 0, 0, 0, 0, sums, M, D, 0)
        if not narrow:
            return sums
        dtables = torch.empty_like(tables)
        narrow[0](sums, dtables, sums.numel())
        return dtables

    return call
