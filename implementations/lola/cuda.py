"""lola in CUDA C++ (cuda.cu, which describes the algorithms): one launch in every variant.

row             one token; the product is a stream over W
multirow        a tile of rows; statistics, colsum(W) and product in one kernel
multirow_ws     the same with colsum(W) summed once beforehand
"""

from dataclasses import dataclass
from pathlib import Path

from fusebench.backends.cuda import Launch, Program
from implementations._cuda import SHARED_MEMORY, TYPES, Plan

BACKEND = "torch"
VARIANTS = {"row": (), "multirow": ("one_pass",), "multirow_ws": ("one_pass",)}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")
ROW_WARPS = {"kn": 16, "nk": 8}


@dataclass(frozen=True)
class Tile:
    """A block's part of y, its arrangement of warps, and what an element costs in it beside the largest tile."""

    rows: int
    columns: int
    warps_m: int
    warps_n: int
    cost: float


# The larger a tile, the fewer bytes a product reads; the smaller, the more blocks there are for a small y.
TENSOR_TILES = (Tile(128, 256, 2, 4, 1.0), Tile(128, 128, 2, 4, 1.2), Tile(64, 64, 2, 2, 1.6))
SIMT_TILES = (Tile(128, 128, 2, 4, 1.0), Tile(64, 64, 1, 2, 1.2))


def skip(case, variant, device):
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    if device.capability < (8, 0):
        return "needs compute capability 8.0 (bfloat16 and asynchronous copies)"
    if variant == "row" and case.sizes["M"] != 1:
        return "row is for M = 1"
    if variant == "row" and case.dtype == "float32" and case.precision != "ieee":
        return "multiplies in IEEE float32, without tensor cores: precision=ieee runs it"
    return None


def prepare(case, variant, x, W, b):
    """colsum(W): the float32 sum of W as rounded."""
    import torch

    if variant != "multirow_ws":
        return ()
    return (W.sum(0 if case.options["w_layout"] == "kn" else 1, dtype=torch.float32),)


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan(case, variant, device).program]


def plan(case, variant, device):
    """Chooses the kernel, its tile and its grid from the sizes and the device."""
    M, K, N = case.size("M", "K", "N")
    vector, layout = 16 // case.itemsize, case.options["w_layout"]
    aligned = str(K % vector == 0 and N % vector == 0).lower()
    head = f"{case.options['activation'].upper()}, {aligned}"
    multiprocessors = device.multiprocessors or 132
    if variant == "row":
        return _plan_row(TYPES[case.dtype], head, layout, N, vector, multiprocessors)
    head += f", {str(layout == 'nk').lower()}, {str(variant == 'multirow_ws').lower()}"
    if case.dtype == "float32" and case.precision == "ieee":
        tile = _best(SIMT_TILES, M, N, multiprocessors)
        return _planned(f"tile_simt<{head}, {tile.rows}, {tile.columns}>", tile, M, N)
    limit = SHARED_MEMORY.get(tuple(device.capability), 99) * 1024
    fitting = [t for t in TENSOR_TILES if _stages(t, case.itemsize, limit) >= 2]
    tile = _best(fitting, M, N, multiprocessors)
    stages = _stages(tile, case.itemsize, limit)
    shape = f"{tile.rows}, {tile.columns}, {tile.warps_m}, {tile.warps_n}, {stages}"
    name = f"tile_tensor<{TYPES[case.dtype]}, {head}, {shape}>"
    return _planned(name, tile, M, N, _shared_memory(tile, stages, case.itemsize))


def _plan_row(dtype, head, layout, N, vector, multiprocessors):
    """The longest contiguous reads (kn) or the most columns a warp (nk) that still give all multiprocessors work.

    On an H200 one block of kn on each was best at every size, and two of nk.
    """
    if layout == "kn":
        choices = {lanes: -(-N // (lanes * vector)) for lanes in (32, 16, 8, 4)}
        enough = 0.9 * multiprocessors
    else:
        choices = {columns: -(-N // (columns * ROW_WARPS["nk"])) for columns in (4, 2, 1)}
        enough = 2 * multiprocessors
    width = next((w for w, grid in choices.items() if grid >= enough), min(choices))
    name = f"row_{layout}<{dtype}, {head}, {width}, {ROW_WARPS[layout]}>"
    return Plan(Program(FILE, name), choices[width], ROW_WARPS[layout] * 32)


def _best(tiles, M, N, multiprocessors):
    """The tile with the least work on the busiest multiprocessor."""
    return min(tiles, key=lambda t: -(-_count(t, M, N) // multiprocessors) * t.rows * t.columns * t.cost)


def _count(tile, M, N):
    return -(-M // tile.rows) * -(-N // tile.columns)


def _planned(name, tile, M, N, shared_memory=0):
    return Plan(Program(FILE, name), _count(tile, M, N), tile.warps_m * tile.warps_n * 32, shared_memory)


def _shared_memory(tile, stages, itemsize):
    """Bytes of tile_tensor's block: the stages, which the output tile uses again, and the statistics behind them."""
    m, n = tile.rows, tile.columns
    statistics = 3 * m + 2 * n + tile.warps_n * 2 * m + tile.warps_m * n
    return max(stages * (m + n) * 128, m * (n + 8) * itemsize) + 4 * statistics


def _stages(tile, itemsize, limit):
    """How many slabs fit, four at most: more wait for nothing. 0 if the output tile alone is too large."""
    return next((s for s in (4, 3, 2) if _shared_memory(tile, s, itemsize) <= limit), 0)


def build(case, variant, device):
    M, K, N = case.size("M", "K", "N")
    planned = plan(case, variant, device)
    launch = Launch(planned.program, planned.grid, planned.block, planned.shared_memory)

    def row(x, W, b):
        y = x.new_empty((1, N))
        launch(x, W, b, y, K, N)
        return y

    def multirow(x, W, b, colsum=None):
        y = x.new_empty((M, N))
        launch(x, W, b, 0 if colsum is None else colsum, y, M, K, N)
        return y

    return row if variant == "row" else multirow
