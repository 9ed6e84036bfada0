"""lora_linear in CUDA C++ (cuda.cu, which describes the algorithm).

fused           one launch: x @ A is summed beside x @ W
two_launches    x @ A first, then the layer with it
"""

from dataclasses import dataclass
from pathlib import Path

from fusebench.backends.cuda import Launch, Program
from implementations._cuda import SHARED_MEMORY, TYPES, Plan

BACKEND = "torch"
VARIANTS = {"fused": ("scaled_xa",), "two_launches": ("xa", "scaled_xa")}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")
LARGEST_RANK = 128


@dataclass(frozen=True)
class Tile:
    """A block's part of y, its warps on it and on x @ A, and what an element costs in it beside the largest tile."""

    rows: int
    columns: int
    warps: tuple[int, int]
    low_warps: tuple[int, int]
    cost: float

    @property
    def least_rank(self):
        """Columns of x @ A: 16 for each warp beside another."""
        return 16 * self.low_warps[1]


TILES = (
    Tile(128, 256, (2, 4), (8, 1), 1.0),
    Tile(128, 128, (2, 4), (8, 1), 1.2),
    Tile(64, 128, (2, 2), (4, 1), 1.4),
    Tile(64, 64, (2, 2), (4, 1), 1.6),
    Tile(16, 64, (1, 4), (1, 4), 3.0),
)
DOWN = Tile(32, 0, (2, 2), (2, 2), 1.0)  # x @ A alone: few rows, so that there are many blocks to read x


def skip(case, variant, device):
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    if device.capability < (8, 0):
        return "needs compute capability 8.0 (bfloat16 and asynchronous copies)"
    if case.sizes["R"] > LARGEST_RANK:
        return f"a block holds its rows of x @ A: at most {LARGEST_RANK} columns, not R = {case.sizes['R']}"
    return None


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [p.program for p in plans(case, variant, device)]


def plans(case, variant, device):
    """The launches of the variant in order, their kernels and tiles chosen from the sizes and the device."""
    fused = variant == "fused"
    return [layer(case, device, fused)] if fused else [down(case, device), layer(case, device, fused)]


def blocks(tile, M, N):
    """How many tiles cover y (M, N)."""
    return -(-M // tile.rows) * -(-N // tile.columns)


def words(*values):
    """Template arguments."""
    return ", ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values)


def common(case):
    """Type, SIMT, and whether rows of x, W and B, and those of A, start on 16 bytes."""
    K, N, R = case.size("K", "N", "R")
    vector = 16 // case.itemsize
    simt = case.dtype == "float32" and case.precision == "ieee"
    return TYPES[case.dtype], simt, K % vector == 0 and N % vector == 0, R % vector == 0


def rank_columns(case, tile):
    """Columns of the tile of x @ A: a power of two."""
    return max(tile.least_rank, 1 << (case.sizes["R"] - 1).bit_length())


def layer(case, device, fused):
    """`fused` or `up`: the tile with the least work on the busiest multiprocessor."""
    M, N = case.size("M", "N")
    limit = SHARED_MEMORY.get(tuple(device.capability), 99) * 1024
    multiprocessors = device.multiprocessors or 132
    T, simt, aligned, rank_aligned = common(case)

    def memory(tile, stages):
        low = rank_columns(case, tile) if fused else 0
        return max(stages * (tile.rows + tile.columns + low) * 128, tile.rows * (tile.columns + 8) * case.itemsize)

    def fits(tile):
        # the widest tile leaves registers for few sums of x @ A, and none for what the float32 units multiply
        wide = not simt and (not fused or case.sizes["R"] <= 16)
        return memory(tile, 2) <= limit and (wide or tile.columns < 256)

    def work(tile):
        rounds = -(-blocks(tile, M, N) // multiprocessors)
        return rounds * tile.rows * (tile.columns + (rank_columns(case, tile) if fused else 0)) * tile.cost

    tile = min(filter(fits, TILES), key=work)
    stages = next(s for s in (4, 3, 2) if memory(tile, s) <= limit)
    nk, activation = case.options["w_layout"] == "nk", case.options["activation"].upper()
    shape = (tile.rows, tile.columns, *tile.warps, rank_columns(case, tile), *tile.low_warps, stages)
    name = f"{'fused' if fused else 'up'}<{words(T, simt, activation, aligned, rank_aligned, nk, *shape)}>"
    threads = tile.warps[0] * tile.warps[1] * 32
    return Plan(Program(FILE, name), blocks(tile, M, N), threads, memory(tile, stages))


def down(case, device):
    T, simt, aligned, rank_aligned = common(case)
    columns, stages = rank_columns(case, DOWN), 4
    name = f"down<{words(T, simt, aligned, rank_aligned, DOWN.rows, columns, *DOWN.warps, stages)}>"
    return Plan(Program(FILE, name), -(-case.sizes["M"] // DOWN.rows), 128, stages * (DOWN.rows + columns) * 128)


def build(case, variant, device):
    """call(x (M, K), scale (), W, b (N,), A (K, R), B (R, N)) → (M, N)."""
    sizes = M, K, N, R = case.size("M", "K", "N", "R")
    *first, last = (Launch(p.program, p.grid, p.block, p.shared_memory) for p in plans(case, variant, device))

    def fused(x, scale, W, b, A, B):
        y = x.new_empty((M, N))
        last(x, scale, W, b, A, B, y, *sizes)
        return y

    def two_launches(x, scale, W, b, A, B):
        xa = x.new_empty((M, R))
        first[0](x, A, xa, M, K, R)
        y = x.new_empty((M, N))
        last(xa, x, scale, W, b, B, y, *sizes)
        return y

    return two_launches if first else fused
