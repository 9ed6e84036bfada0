"""The launches of lora.cuh's kernels, a linear layer with a low-rank adapter, and the choice of their tiles.

`case` has the sizes M, K, N and R and the options `activation` and `w_layout` of one layer. The variants:

fused           one launch: x @ A is summed beside x @ W
two_launches    x @ A first, then the layer with it
"""

from implementations._shared.cuda.launch import TYPES, Launch, instance, of_launch, prefixed, too_large, unsupported
from implementations._shared.cuda.matmul import TENSOR_TILES, MatmulTile, blocks
from implementations._shared.gpu import is_ieee, multiprocessors, rows_are_aligned

LARGEST_RANK = 128
DOWN = MatmulTile("tensor", 32, 0, 1.0, 2, 2)  # x @ A alone: few rows, so that there are many blocks to read x


def skip(case, variant, device):
    """Why the kernels cannot run this cell, or None."""
    if reason := unsupported(device):
        return reason
    if case.sizes["R"] > LARGEST_RANK:
        return f"a block holds its rows of x @ A: at most {LARGEST_RANK} columns, not R = {case.sizes['R']}"
    return None


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


def config(case, variant, device):
    """The tile with the least work on the busiest multiprocessor."""
    M, N = case.size("M", "N")
    found = {}
    for tile in TENSOR_TILES:
        shape = {"BLOCK_M": tile.rows, "BLOCK_N": tile.columns}
        choices = (named(variant, shape | {"num_stages": stages}) for stages in (4, 3, 2))
        if own := next((c for c in choices if fits(case, variant, device, c) is None), None):
            found[tile] = own

    def work(tile):
        rounds = -(-blocks(tile, M, N) // multiprocessors(device))
        low = rank_columns(case, tile) if variant == "fused" else 0
        return rounds * tile.rows * (tile.columns + low) * tile.cost

    return found[min(found, key=work)]


def tile_of(config):
    """The tile of a config, or None where there is no such instance."""
    return next((t for t in TENSOR_TILES if (t.rows, t.columns) == (config["BLOCK_M"], config["BLOCK_N"])), None)


def named(variant, config):
    """The config of `fused`, or of `up`, which `two_launches` ends with."""
    return config if variant == "fused" else prefixed("up", config)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    own = config if variant == "fused" else of_launch("up", config)
    tile, stages, R = tile_of(own), own["num_stages"], case.sizes["R"]
    if tile is None:
        return f"the tiles are {', '.join(f'{t.rows}×{t.columns}' for t in TENSOR_TILES)}"
    if tile.columns == 256 and (is_ieee(case) or (variant == "fused" and R > 16)):
        return f"256 columns leave no registers for IEEE float32, nor for more than 16 columns of x @ A beside them (R = {R})"
    if stages < 2:
        return f"num_stages is {stages}: one is read while another is written"
    return too_large(layer_bytes(case, variant, tile, stages), device)


def layer_bytes(case, variant, tile, stages):
    """Shared memory of a block of `fused` or `up`."""
    low = rank_columns(case, tile) if variant == "fused" else 0
    return max(stages * (tile.rows + tile.columns + low) * 128, tile.rows * (tile.columns + 8) * case.itemsize)


def launches(file, case, variant, device, config):
    """One launch (`fused`), or `down` and `up`, of `file`, which includes lora.cuh."""
    fused, T = variant == "fused", case.dtype
    own = config if fused else of_launch("up", config)
    tile, stages = tile_of(own), own["num_stages"]
    dtype, simt, aligned, rank_aligned = common(case)
    shape = tile.rows, tile.columns, tile.warps_m, tile.warps_n, rank_columns(case, tile), *low_warps(tile), stages
    options = case.options["activation"].upper(), aligned, rank_aligned, case.options["w_layout"] == "nk"
    program = instance(file, "fused" if fused else "up", dtype, simt, *options, *shape)
    grid, memory = blocks(tile, *case.size("M", "N")), layer_bytes(case, variant, tile, stages)
    layer = Launch(program, grid, tile.threads, memory, dtypes=(T,) * 7)
    return (layer,) if fused else (down(file, case), layer)


def down(file, case):
    """The launch of x @ A alone, the first of `two_launches`."""
    columns, stages = rank_columns(case, DOWN), 4
    program, grid = (
        instance(file, "down", *common(case), DOWN.rows, columns, *low_warps(DOWN), stages),
        -(-case.sizes["M"] // DOWN.rows),
    )
    return Launch(program, grid, 128, stages * (DOWN.rows + columns) * 128, dtypes=(case.dtype,) * 3)
