"""The tiles of lookup.cuh, and its launch, by hashing: modulus, naive, improved. `case` is one of embedding, or a part of a model's."""

from math import gcd

from implementations._shared.cuda.launch import Launch, instance, not_one_of
from implementations._shared.gpu import multiprocessors

UNITS = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short"}  # bytes → type
MULTIPLE = 8  # of look-ups: any rows of so many are whole vectors


def config(case, hashing, device):
    """As many look-ups a block as give a thread the vectors that it requests at once (lookup.cuh's AHEAD), fewer where that leaves
    multiprocessors without two blocks."""
    if hashing == "naive":
        return {"SAMPLES": 8, "num_warps": 8}
    M, F, D = case.size("M", "F", "D")
    threads, vectors = 128, 2 if unit_bytes(case) == 2 else 4
    lookups = whole_vectors(min(threads, vectors * 16 * threads // (D * case.itemsize)))
    while lookups > MULTIPLE and -(-M * F // lookups) < 2 * multiprocessors(device):
        lookups = whole_vectors(lookups // 2)
    return {"LOOKUPS": lookups, "num_warps": threads // 32}


def whole_vectors(lookups):
    """About so many, of whose output each block has whole vectors."""
    return max(MULTIPLE, lookups // MULTIPLE * MULTIPLE)


def fits(hashing, config):
    """Why a config cannot run, or None."""
    name, values = ("SAMPLES", range(1, 33)) if hashing == "naive" else ("LOOKUPS", range(MULTIPLE, 1025, MULTIPLE))
    return not_one_of("num_warps", config["num_warps"], range(1, 33)) or not_one_of(name, config[name], values)


def unit_bytes(case):
    """The widest unit that divides a row."""
    return gcd(16, case.sizes["D"] * case.itemsize)


def launch(file, case, hashing, config):
    """The launch of a hashing of `file`, which includes lookup.cuh."""
    M, F, D = case.size("M", "F", "D")
    width, threads, dtype = unit_bytes(case), 32 * config["num_warps"], case.dtype
    unit = UNITS[width], D * case.itemsize // width, F
    if hashing == "naive":
        samples, dtypes = config["SAMPLES"], ("int64", dtype, "int64", "int64", dtype)
        program = instance(file, "naive", *unit, threads, samples)
        return Launch(program, -(-M // samples) * F, threads, dtypes=dtypes)
    lookups, dtypes = config["LOOKUPS"], ("int64", dtype, "int64", "int32", "int32", dtype)
    program = instance(file, "embed", *unit, hashing == "improved", threads, lookups)
    return Launch(program, -(-M * F // lookups), threads, dtypes=dtypes)


def call(described, case, hashing):
    """A function of ids (M, F), tables, offsets and what was prepared for the hashing, which returns (M, F, D)."""
    M, F, D = case.size("M", "F", "D")
    if hashing != "naive":
        return described.returning({5: (M, F, D)}, (M * F,), absent=(3, 4) if hashing == "modulus" else ())
    launch = described.returning({4: (M, F, D)}, (M,))
    return lambda ids, tables, offsets, host_known: launch(ids, tables, offsets, host_known.to(ids.device))
