"""softmax in CUDA C++ (cuda.cu, which describes the algorithms), one launch in every variant.

row: a row in the registers of some lanes or of a block. cluster: in those of several blocks. online: rows of any length,
read twice.
"""

from dataclasses import dataclass
from pathlib import Path

from fusebench.backends.cuda import Launch, Program
from implementations import _cuda
from implementations._cuda import TYPES

BACKEND = "torch"
VARIANTS = {"row": (), "cluster": (), "online": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")
VECTORS = 8  # that a thread may hold: 32 of the 64 registers that leave room for 1024 threads
ROW_THREADS, CLUSTER_THREADS, ONLINE_THREADS = 1024, (256, 512, 1024), 512


@dataclass(frozen=True)
class Plan(_cuda.Plan):
    """`rows` says whether the kernel takes R."""

    rows: bool = False


def skip(case, variant, device):
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    if device.capability < (8, 0):
        return "needs compute capability 8.0 (bfloat16)"
    if case.sizes["C"] >= 2**30:
        return "columns are counted in 32 bits"
    if variant == "row" and vectors(case) > ROW_THREADS * VECTORS:
        return "a row of more than 128 KiB does not fit in a block's registers: cluster or online"
    if variant == "cluster" and device.capability < (9, 0):
        return "thread-block clusters need compute capability 9.0"
    if variant == "cluster" and vectors(case) > 8 * ROW_THREADS * VECTORS:
        return "a row of more than 1 MiB does not fit in the registers of 8 blocks: online"
    if variant == "cluster" and vectors(case) <= CLUSTER_THREADS[0]:
        return "a row of less than a block's vectors needs no cluster: row"
    return None


def vectors(case):
    """How many vectors of 16 bytes a row has, its edges left out: at most."""
    return case.sizes["C"] * case.itemsize // 16


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan(case, variant, device).program]


def plan(case, variant, device):
    """Chooses the tile from the sizes and the device."""
    R, C = case.size("R", "C")
    head = f"{TYPES[case.dtype]}, {str(C * case.itemsize % 16 == 0).lower()}"
    if variant == "row":
        lanes, held = row_tile(vectors(case))
        block = max(128, lanes)
        return Plan(Program(FILE, f"row<{head}, {lanes}, {held}>"), -(-R * lanes // block), block, rows=True)
    if variant == "cluster":
        blocks, lanes, held = cluster_tile(vectors(case), R, device.multiprocessors or 132)
        return Plan(Program(FILE, f"cluster<{head}, {blocks}, {lanes}, {held}>"), R * blocks, lanes)
    return Plan(Program(FILE, f"online<{head}, {ONLINE_THREADS}>"), R, ONLINE_THREADS)


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


def cluster_tile(count, R, multiprocessors):
    """Blocks of a row of `count` vectors, lanes of a block, and vectors of a lane: small blocks before large ones, because
    they begin and end apart from each other; but few rows take all the blocks they can."""
    sizes = (8,) if multiprocessors > 2 * R else (2, 4, 8)
    lanes, blocks = next((n, b) for n in CLUSTER_THREADS for b in sizes if count <= b * n * VECTORS)
    return blocks, lanes, -(-count // (lanes * blocks))


def power_of_two(n):
    """The least that is not below n."""
    return 1 << (n - 1).bit_length()


def build(case, variant, device):
    """call(x (R, C)) → (R, C)."""
    import torch

    R, C = case.size("R", "C")
    planned = plan(case, variant, device)
    launch = Launch(planned.program, planned.grid, planned.block)
    sizes = (R, C) if planned.rows else (C,)

    def call(x):
        if not x.is_contiguous():
            raise ValueError("x is not contiguous; pass x.contiguous()")
        y = torch.empty_like(x)
        launch(x, y, *sizes)
        return y

    return call
