"""lola in CUDA C++ (cuda.cu, which describes the algorithms): one launch in every variant but the last.

row             one token; the product is a stream over W
multirow        a tile of rows; statistics, colsum(W) and product in one kernel
multirow_ws     the same with colsum(W) summed once beforehand
two_launches    and the statistics of rows in a launch before: worth it where many tiles would each sum up the same rows
"""

from pathlib import Path

from implementations._shared.cuda import matmul
from implementations._shared.cuda.launch import TYPES, Plan, instance, unsupported
from implementations._shared.gpu import multiprocessors, rows_are_aligned

BACKEND = "torch"
VARIANTS = {"row": (), "multirow": ("one_pass",), "multirow_ws": ("one_pass",), "two_launches": ("one_pass",)}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")
ROW_WARPS = {"kn": 16, "nk": 8}

# the larger ones, in which the statistics cost least beside the products; clusters only make blocks wait for each other's
TILES = [t for t in matmul.WARPGROUP_TILES if t.cluster == 1] + [
    t for t in matmul.TENSOR_TILES if (t.rows, t.columns) in ((128, 256), (128, 128), (64, 64))
]
ROWS_AT_ONCE = 8  # of a block of row_statistics


def skip(case, variant, device):
    if reason := unsupported(device):
        return reason
    if variant == "row" and case.sizes["M"] != 1:
        return "row is for M = 1"
    if variant == "row" and case.dtype == "float32" and case.precision != "ieee":
        return "multiplies in IEEE float32, without tensor cores: precision=ieee runs it"
    if variant == "two_launches" and not matmul.multiplies_by_warpgroups(case, device):
        return "is for Hopper's warpgroups (9.0; 16 bits; M from 128, K from 64, N from 256, K and N in eights): multirow_ws"
    return None


def prepare(case, variant, x, W, b):
    """colsum(W): the float32 sum of W as rounded."""
    import torch

    if variant not in ("multirow_ws", "two_launches"):
        return ()
    return (W.sum(0 if case.options["w_layout"] == "kn" else 1, dtype=torch.float32),)


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan.program for plan in plans(case, variant, device)]


def plans(case, variant, device):
    """What a call launches, in order: chooses the kernel, its tile and its grid from the sizes and the device."""
    activation = case.options["activation"].upper()
    if variant == "row":
        return [_plan_row(case, activation, device)]
    if variant == "two_launches":
        statistics = instance(FILE, "row_statistics", TYPES[case.dtype])
        first = Plan(statistics, -(-case.sizes["M"] // ROWS_AT_ONCE), 32 * ROWS_AT_ONCE)
        return [first, matmul.plan(FILE, "normed", case, device, [activation], tiles=matmul.WARPGROUP_TILES)]
    arguments = [activation, variant == "multirow_ws"]
    return [matmul.plan(FILE, "tile", case, device, arguments, tiles=TILES, beside=_statistics)]


def _plan_row(case, activation, device):
    """The longest contiguous reads (kn) or the most columns a warp (nk) that still give all multiprocessors work.

    On an H200 one block of kn on each was best at every size, and two of nk.
    """
    K, N = case.size("K", "N")
    layout, vector = case.options["w_layout"], 16 // case.itemsize
    if layout == "kn":
        choices = {lanes: -(-N // (lanes * vector)) for lanes in (32, 16, 8, 4)}
        enough = 0.9 * multiprocessors(device)
    else:
        choices = {columns: -(-N // (columns * ROW_WARPS["nk"])) for columns in (4, 2, 1)}
        enough = 2 * multiprocessors(device)
    width = next((w for w, grid in choices.items() if grid >= enough), min(choices))
    arguments = TYPES[case.dtype], activation, rows_are_aligned(case, K, N), width, ROW_WARPS[layout]
    return Plan(instance(FILE, f"row_{layout}", *arguments), choices[width], ROW_WARPS[layout] * 32)


def _statistics(tile):
    """Bytes of a block's statistics; for warpgroups they are what belongs to the columns."""
    m, n = tile.rows, tile.columns
    return 0 if tile.kind == "warpgroup" else 4 * (3 * m + n + tile.warps_n * 2 * m + tile.warps_m * n)


def build(case, variant, device):
    """call(x (M, K), W, b (N,), then what `prepare` made) → (M, N)."""
    import torch

    M, K, N = case.size("M", "K", "N")
    *first, last = (plan.bind() for plan in plans(case, variant, device))

    def row(x, W, b):
        y = x.new_empty((1, N))
        last(x, W, b, y, K, N)
        return y

    def multirow(x, W, b, colsum=None):
        y = x.new_empty((M, N))
        last(x, W, b, 0 if colsum is None else colsum, y, M, K, N)
        return y

    def two_launches(x, W, b, colsum):
        mean, rstd = x.new_empty(M, dtype=torch.float32), x.new_empty(M, dtype=torch.float32)
        first[0](x, mean, rstd, M, K)
        y = x.new_empty((M, N))
        last(x, W, b, mean, rstd, colsum, y, M, K, N)
        return y

    return {"row": row, "two_launches": two_launches}.get(variant, multirow)
