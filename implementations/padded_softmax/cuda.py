"""padded_softmax in CUDA C++ (cuda.cu, which describes the algorithms), one launch in either variant.

row: a row in the registers of some lanes or of a block. online: rows of any length, whose visible part is read twice.
"""

from pathlib import Path

from fusebench.backends.cuda import Launch, Program
from implementations._cuda import TYPES

BACKEND = "torch"
VARIANTS = {"row": (), "online": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")
VECTORS = 8  # that a thread may hold: 32 of the 64 registers that leave room for 1024 threads
ROW_THREADS, ONLINE_THREADS = 1024, 256


def skip(case, variant, device):
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    if device.capability < (8, 0):
        return "needs compute capability 8.0 (bfloat16)"
    if case.sizes["T"] >= 2**30:
        return "columns are counted in 32 bits"
    if variant == "row" and vectors(case) > ROW_THREADS * VECTORS:
        return "a row of more than 128 KiB does not fit in a block's registers: online"
    return None


def vectors(case):
    """How many vectors of 16 bytes a row has, its edges left out: at most."""
    return case.sizes["T"] * case.itemsize // 16


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan(case, variant)[0]]


def plan(case, variant):
    """(program, blocks, threads of a block)."""
    T = case.sizes["T"]
    head = f"{TYPES[case.dtype]}, {str(T * case.itemsize % 16 == 0).lower()}"
    if variant == "online":
        return Program(FILE, f"online<{head}, {ONLINE_THREADS}>"), T, ONLINE_THREADS
    lanes, held = row_tile(vectors(case))
    block = max(128, lanes)
    return Program(FILE, f"row<{head}, {lanes}, {held}>"), -(-T * lanes // block), block


def row_tile(count):
    """Lanes of a row of `count` vectors, and vectors of a lane.

    One each up to a warp, which needs no barrier and takes up to 8 each; 4 lanes at least, to share the edges. Beyond, 4 each, whose registers leave room for enough
    blocks to read while others compute, until that would take more than 512 lanes.
    """
    if count <= 32 * VECTORS:
        lanes = min(32, power_of_two(max(4, count)))
    else:
        lanes = max(128, min(512, power_of_two(-(-count // 4))))
        if count > lanes * VECTORS:
            lanes = ROW_THREADS
    return lanes, max(1, -(-count // lanes))


def power_of_two(n):
    """The least that is not below n."""
    return 1 << (n - 1).bit_length()


def build(case, variant, device):
    """call(att (T, T), n_padd () int32) → (T, T)."""
    import torch

    launch, T = Launch(*plan(case, variant)), case.sizes["T"]

    def call(att, n_padd):
        if not att.is_contiguous():
            raise ValueError("att is not contiguous; pass att.contiguous()")
        y = torch.empty_like(att)
        launch(att, n_padd, y, T)
        return y

    return call
