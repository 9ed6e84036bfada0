"""embedding in CUDA C++ (cuda.cu, which describes the algorithms): hashing and gather in one launch in every variant.

modulus: the remainder. naive: the known values move to the device in every call and are compared one by one. improved: they
stay there, sorted, and are searched.
"""

from math import gcd
from pathlib import Path

from implementations._shared.cuda.launch import Plan, instance
from implementations._shared.gpu import multiprocessors
from implementations.embedding import _limits

BACKEND = "torch"
VARIANTS = {"modulus": (), "naive": (), "improved": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")
UNITS = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short"}  # bytes → type
SAMPLES = 8  # of one block of `naive`


def skip(case, variant, device):
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    return _limits.skip(case, variant, device)


def prepare(case, variant, ids, tables, offsets, known=None):
    """naive: the known values in the host's memory. improved: the sorted values and their positions."""
    from implementations.embedding._torch import narrow_search_list

    if variant == "naive":
        return (known.cpu(),)
    return narrow_search_list(offsets, known) if variant == "improved" else ()


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan(case, variant, device).program]


def plan(case, variant, device):
    """The widest unit that divides a row; then as many look-ups a block as give a thread 4 units, fewer where that leaves
    multiprocessors without two blocks."""
    M, F, D = case.size("M", "F", "D")
    width = gcd(16, D * case.itemsize)
    unit = UNITS[width], D * case.itemsize // width, F
    if variant == "naive":
        return Plan(instance(FILE, "naive", *unit, 256, SAMPLES), -(-M // SAMPLES) * F, 256)
    threads = 128
    lookups = min(threads, max(8, 4 * threads * width // (D * case.itemsize)))
    lookups = 1 << (lookups.bit_length() - 1)
    while lookups > 8 and -(-M * F // lookups) < 2 * multiprocessors(device):
        lookups //= 2
    program = instance(FILE, "embed", *unit, variant == "improved", threads, lookups)
    return Plan(program, -(-M * F // lookups), threads)


def build(case, variant, device):
    import torch

    M, F, D = case.size("M", "F", "D")
    launch = plan(case, variant, device).bind()

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
