"""padded_softmax in CUDA C++ (cuda.cu, which describes the algorithms), one launch in either variant.

row: a row in the registers of some lanes or of a block. online: rows of any length, whose visible part is read twice.
"""

from pathlib import Path

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, unsupported
from implementations._shared.cuda.softmax import (
    fits_in_registers,
    online_warps,
    row_fits,
    row_lanes,
    row_shape,
    vectors,
)
from implementations._shared.gpu import multiprocessors, reads_padding, rows_are_aligned

BACKEND = "torch"
FUSED = True
VARIANTS = {"row": ("subnormals",), "online": ("subnormals",)}  # flushed by the fast exponential
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": ("row", "online"), "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {"row": {"LANES": (4, 8, 16, 32, 128, 256, 512, 1024)}, "online": {"num_warps": (4, 8, 16, 32)}}

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    if reason := unsupported(device):
        return reason
    if case.sizes["T"] >= 2**30:
        return "columns are counted in 32 bits"
    if variant == "row" and not fits_in_registers(vectors(case.sizes["T"], case)):
        return "a row of more than 128 KiB does not fit in a block's registers: online"
    return None


def config(case, variant, device):
    T = case.sizes["T"]
    count = vectors(T, case)
    if variant == "online":
        return {"num_warps": online_warps(count // 2)}  # the mask leaves half of a row on average
    return {"LANES": row_lanes(count, T, multiprocessors(device))}


def fits(case, variant, device, config):
    if variant == "online":
        return not_one_of("num_warps", config["num_warps"], (4, 8, 16, 32))
    return row_fits(case.sizes["T"], config, case)


def launches(case, variant, device, config):
    T, dtypes = case.sizes["T"], (case.dtype, "int32", case.dtype)
    head = TYPES[case.dtype], rows_are_aligned(case, T)
    if variant == "online":
        block = 32 * config["num_warps"]
        return (Launch(instance(FILE, "online", *head, block), T, block, dtypes=dtypes),)
    lanes, (block, held) = config["LANES"], row_shape(T, config, case)
    program = instance(FILE, "row", *head, reads_padding(case), lanes, held)
    return (Launch(program, -(-T * lanes // block), block, dtypes=dtypes),)


def build(case, variant, device, config):
    """call(att (T, T), n_padd () int32) → (T, T)."""
    (launch,), T = launches(case, variant, device, config), case.sizes["T"]
    return launch.returning({2: (T, T)}, (T,))
