"""softmax in CUDA C++ (cuda.cu, which describes the algorithms), one launch in every variant.

row: a row in the registers of some lanes or of a block. cluster: in those of several blocks. online: rows of any length,
read twice.
"""

from pathlib import Path

from implementations._shared.cuda.launch import TYPES, Plan, instance, unsupported
from implementations._shared.cuda.softmax import ROW_THREADS, VECTORS, fits_in_registers, row_tile, vectors
from implementations._shared.gpu import multiprocessors, rows_are_aligned

BACKEND = "torch"
VARIANTS = {"row": (), "cluster": (), "online": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")
CLUSTER_THREADS, ONLINE_THREADS = (256, 512, 1024), 512


def skip(case, variant, device):
    if reason := unsupported(device):
        return reason
    count = vectors(case.sizes["C"], case)
    if case.sizes["C"] >= 2**30:
        return "columns are counted in 32 bits"
    if variant == "row" and not fits_in_registers(count):
        return "a row of more than 128 KiB does not fit in a block's registers: cluster or online"
    if variant == "cluster" and device.capability < (9, 0):
        return "thread-block clusters need compute capability 9.0"
    if variant == "cluster" and count > 8 * ROW_THREADS * VECTORS:
        return "a row of more than 1 MiB does not fit in the registers of 8 blocks: online"
    if variant == "cluster" and count <= CLUSTER_THREADS[0]:
        return "a row of less than a block's vectors needs no cluster: row"
    return None


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan(case, variant, device).program]


def plan(case, variant, device):
    """Chooses the tile from the sizes and the device."""
    R, C = case.size("R", "C")
    head, count = (TYPES[case.dtype], rows_are_aligned(case, C)), vectors(C, case)
    if variant == "row":
        lanes, held = row_tile(count)
        block = max(128, lanes)
        return Plan(instance(FILE, "row", *head, lanes, held), -(-R * lanes // block), block, sizes=(R, C))
    if variant == "cluster":
        blocks, lanes, held = cluster_tile(count, R, multiprocessors(device))
        return Plan(instance(FILE, "cluster", *head, blocks, lanes, held), R * blocks, lanes, sizes=(C,))
    return Plan(instance(FILE, "online", *head, ONLINE_THREADS), R, ONLINE_THREADS, sizes=(C,))


def cluster_tile(count, R, multiprocessors):
    """Blocks of a row of `count` vectors, lanes of a block, and vectors of a lane: small blocks before large ones, because
    they begin and end apart from each other; but few rows take all the blocks they can."""
    sizes = (8,) if multiprocessors > 2 * R else (2, 4, 8)
    lanes, blocks = next((n, b) for n in CLUSTER_THREADS for b in sizes if count <= b * n * VECTORS)
    return blocks, lanes, -(-count // (lanes * blocks))


def build(case, variant, device):
    """call(x (R, C)) → (R, C)."""
    import torch

    planned = plan(case, variant, device)
    launch = planned.bind()

    def call(x):
        if not x.is_contiguous():
            raise ValueError("x is not contiguous; pass x.contiguous()")
        y = torch.empty_like(x)
        launch(x, y, *planned.sizes)
        return y

    return call
