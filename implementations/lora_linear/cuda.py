"""lora_linear in CUDA C++ (cuda.cu, which describes the algorithm).

fused           one launch: x @ A is summed beside x @ W
two_launches    x @ A first, then the layer with it
"""

from pathlib import Path

from implementations._shared.cuda.launch import TYPES, Plan, instance, unsupported
from implementations._shared.cuda.matmul import TENSOR_TILES, MatmulTile, blocks
from implementations._shared.gpu import is_ieee, multiprocessors, rows_are_aligned, shared_memory

BACKEND = "torch"
VARIANTS = {"fused": ("scaled_xa",), "two_launches": ("xa", "scaled_xa")}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")
LARGEST_RANK = 128


DOWN = MatmulTile("tensor", 32, 0, 1.0, 2, 2)  # x @ A alone: few rows, so that there are many blocks to read x


def skip(case, variant, device):
    if reason := unsupported(device):
        return reason
    if case.sizes["R"] > LARGEST_RANK:
        return f"a block holds its rows of x @ A: at most {LARGEST_RANK} columns, not R = {case.sizes['R']}"
    return None


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan.program for plan in plans(case, variant, device)]


def plans(case, variant, device):
    """The launches of the variant in order, their kernels and tiles chosen from the sizes and the device."""
    fused = variant == "fused"
    return [layer(case, device, fused)] if fused else [down(case, device), layer(case, device, fused)]


def common(case):
    """Type, SIMT, and whether rows of x, W and B, and those of A, start on 16 bytes."""
    K, N, R = case.size("K", "N", "R")
    return TYPES[case.dtype], is_ieee(case), rows_are_aligned(case, K, N), rows_are_aligned(case, R)


def low_warps(tile):
    """The arrangement of the tile's warps on x @ A: 16 rows each, and where there are more warps, 16 columns beside them."""
    down = tile.rows // 16
    return down, tile.threads // 32 // down


def rank_columns(case, tile):
    """Columns of the tile of x @ A: a power of two."""
    return max(16 * low_warps(tile)[1], 1 << (case.sizes["R"] - 1).bit_length())


def layer(case, device, fused):
    """`fused` or `up`: the tile with the least work on the busiest multiprocessor."""
    M, N = case.size("M", "N")
    limit = shared_memory(device)
    T, simt, aligned, rank_aligned = common(case)

    def memory(tile, stages):
        low = rank_columns(case, tile) if fused else 0
        return max(stages * (tile.rows + tile.columns + low) * 128, tile.rows * (tile.columns + 8) * case.itemsize)

    def fits(tile):
        # the widest tile leaves registers for few sums of x @ A, and none for what the float32 units multiply
        wide = not simt and (not fused or case.sizes["R"] <= 16)
        return memory(tile, 2) <= limit and (wide or tile.columns < 256)

    def work(tile):
        rounds = -(-blocks(tile, M, N) // multiprocessors(device))
        return rounds * tile.rows * (tile.columns + (rank_columns(case, tile) if fused else 0)) * tile.cost

    tile = min(filter(fits, TENSOR_TILES), key=work)
    stages = next(s for s in (4, 3, 2) if memory(tile, s) <= limit)
    shape = tile.rows, tile.columns, tile.warps_m, tile.warps_n, rank_columns(case, tile), *low_warps(tile), stages
    options = case.options["activation"].upper(), aligned, rank_aligned, case.options["w_layout"] == "nk"
    program = instance(FILE, "fused" if fused else "up", T, simt, *options, *shape)
    return Plan(program, blocks(tile, M, N), tile.threads, memory(tile, stages))


def down(case, device):
    columns, stages = rank_columns(case, DOWN), 4
    program = instance(FILE, "down", *common(case), DOWN.rows, columns, *low_warps(DOWN), stages)
    return Plan(program, -(-case.sizes["M"] // DOWN.rows), 128, stages * (DOWN.rows + columns) * 128)


def build(case, variant, device):
    """call(x (M, K), scale (), W, b (N,), A (K, R), B (R, N)) → (M, N)."""
    sizes = M, K, N, R = case.size("M", "K", "N", "R")
    *first, last = (plan.bind() for plan in plans(case, variant, device))

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
