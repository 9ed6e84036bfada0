"""embedding in CUDA C++ (cuda.cu, which describes the algorithms): hashing and gather in one launch in every variant.

modulus: the remainder. naive: the known values move to the device in every call and are compared one by one. improved: they
stay there, sorted, and are searched.
"""

from math import gcd
from pathlib import Path

from implementations._shared.cuda.launch import Launch, instance, not_one_of
from implementations._shared.gpu import multiprocessors
from implementations.embedding import _limits

BACKEND = "torch"
FUSED = True
VARIANTS = {"modulus": (), "naive": (), "improved": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"
EXPECT = (
    {"variant": "modulus", "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": ("naive", "improved"), "case": "small", "options": {"hashing": "lookup"}, "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    ("modulus", "improved"): {"LOOKUPS": (8, 16, 32, 64, 128), "num_warps": (2, 4, 8)},
    "naive": {"SAMPLES": (4, 8, 16), "num_warps": (4, 8, 16)},
}

FILE = Path(__file__).with_suffix(".cu")
UNITS = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short"}  # bytes → type


def skip(case, variant, device):
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    return _limits.skip(case, variant, device)


def prepare(case, variant, ids, tables, offsets, known=None):
    from implementations._shared.torch.lookup import prepared_for_kernels

    return prepared_for_kernels(variant, offsets, known)


def config(case, variant, device):
    """As many look-ups a block as give a thread 4 units, fewer where that leaves multiprocessors without two blocks."""
    if variant == "naive":
        return {"SAMPLES": 8, "num_warps": 8}
    M, F, D = case.size("M", "F", "D")
    threads = 128
    lookups = min(threads, max(8, 4 * threads * unit_bytes(case) // (D * case.itemsize)))
    lookups = 1 << (lookups.bit_length() - 1)
    while lookups > 8 and -(-M * F // lookups) < 2 * multiprocessors(device):
        lookups //= 2
    return {"LOOKUPS": lookups, "num_warps": threads // 32}


def fits(case, variant, device, config):
    name, values = ("SAMPLES", range(1, 33)) if variant == "naive" else ("LOOKUPS", range(1, 1025))
    return not_one_of("num_warps", config["num_warps"], range(1, 33)) or not_one_of(name, config[name], values)


def unit_bytes(case):
    """The widest unit that divides a row."""
    return gcd(16, case.sizes["D"] * case.itemsize)


def launches(case, variant, device, config):
    M, F, D = case.size("M", "F", "D")
    width, threads, dtype = unit_bytes(case), 32 * config["num_warps"], case.dtype
    unit = UNITS[width], D * case.itemsize // width, F
    if variant == "naive":
        samples, dtypes = config["SAMPLES"], ("int64", dtype, "int64", "int64", dtype)
        program = instance(FILE, "naive", *unit, threads, samples)
        return (Launch(program, -(-M // samples) * F, threads, dtypes=dtypes),)
    lookups, dtypes = config["LOOKUPS"], ("int64", dtype, "int64", "int32", "int32", dtype)
    program = instance(FILE, "embed", *unit, variant == "improved", threads, lookups)
    return (Launch(program, -(-M * F // lookups), threads, dtypes=dtypes),)


def build(case, variant, device, config):
    import torch

    M, F, D = case.size("M", "F", "D")
    (described,) = launches(case, variant, device, config)
    launch = described.bind()

    def modulus(ids, tables, offsets):
        y = torch.empty((M, F, D), dtype=tables.dtype, device=tables.device)
        launch(ids, tables, offsets, 0, 0, y, M * F)
        return y

    def naive(ids, tables, offsets, known, host_known):
        y = torch.empty((M, F, D), dtype=tables.dtype, device=tables.device)
        launch(ids, tables, offsets, host_known.to(ids.device), y, M)
        return y

    def improved(ids, tables, offsets, known, keys, positions):
        y = torch.empty((M, F, D), dtype=tables.dtype, device=tables.device)
        launch(ids, tables, offsets, keys, positions, y, M * F)
        return y

    return {"modulus": modulus, "naive": naive, "improved": improved}[variant]
