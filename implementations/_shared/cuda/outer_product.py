"""The tiles of outer_product.cuh, and its launches: the first layer of a perceptron behind outer products. `case` is one of interaction, or a
part of a model's; `columns` is how wide the layer is.

BLOCK_M samples and BLOCK_N columns of a block, PARTS pieces of W's rows, num_stages slabs on their way.
"""

from implementations._shared.cuda.launch import TYPES, Launch, in_turn, instance, not_one_of, too_large
from implementations._shared.cuda.matmul import MatmulTile, slab
from implementations._shared.gpu import is_ieee, multiprocessors, rows_are_aligned

TILES = (
    MatmulTile("tensor", 128, 128, 1.0, 2, 4), MatmulTile("tensor", 64, 64, 1.0, 2, 2), MatmulTile("tensor", 16, 64, 1.0, 1, 4),
)  # fmt: skip
PARTS = tuple(2**i for i in range(10))


def width(case):
    """Values of a sample."""
    F, D = case.size("F", "D")
    return (F + 1) * D


def config(case, columns, device):
    """The largest tile that samples and columns fill, and about as many pieces as give each multiprocessor a block, or two of the smaller
    tiles; with four slabs on their way, or as many as fit."""
    M = case.sizes["M"]
    tile = next(t for t in TILES if (t.rows <= M and t.columns // 2 < columns) or t is TILES[-1])
    tiles = -(-M // tile.rows) * -(-columns // tile.columns)
    blocks = multiprocessors(device) * (1 if tile is TILES[0] else 2)
    most = max(1, min(blocks // tiles, width(case) ** 2 // (4 * slab(case))))
    own = {"BLOCK_M": tile.rows, "BLOCK_N": tile.columns, "PARTS": max(p for p in PARTS if p <= most)}
    found = (own | {"num_stages": stages} for stages in (4, 3, 2))
    return next(o for o in found if o["num_stages"] == 2 or fits(case, device, o) is None)


def tile_of(config):
    return next((t for t in TILES if (t.rows, t.columns) == (config["BLOCK_M"], config["BLOCK_N"])), None)


def fits(case, device, config):
    """Why a config cannot run, or None."""
    tile, stages, parts = tile_of(config), config["num_stages"], config["PARTS"]
    if tile is None:
        return f"the tiles are {', '.join(f'{t.rows}×{t.columns}' for t in TILES)}"
    if reason := not_one_of("PARTS", parts, PARTS):
        return reason
    if stages < 2:
        return f"num_stages is {stages}: one is read while another is written"
    if width(case) ** 2 >= 2**31 - 2 * slab(case) * parts:
        return f"{width(case)}² rows of W are more than 31 bits count"
    return too_large(stages * (tile.rows + tile.columns) * 128, device)


def launches(file, case, columns, activation, config):
    """`outer_share` and `outer_total` of `file`, which includes outer_product.cuh."""
    (M, D), N, T, tile = case.size("M", "D"), width(case), case.dtype, tile_of(config)
    stages, parts = config["num_stages"], config["PARTS"]
    arguments = TYPES[T], is_ieee(case), rows_are_aligned(case, D), rows_are_aligned(case, columns)
    program = instance(file, "outer_share", *arguments, tile.rows, tile.columns, tile.warps_m, tile.warps_n, stages)
    grid = -(-M // tile.rows) * -(-columns // tile.columns) * parts
    memory, sizes = stages * (tile.rows + tile.columns) * 128, (M, N, D, columns, parts)
    share = Launch(program, grid, tile.threads, memory, dtypes=(T, T, T, "float32"), sizes=sizes)
    program = instance(file, "outer_total", TYPES[T], activation.upper())
    total = Launch(program, -(-M * columns // 32), 256, dtypes=("float32", T, T), sizes=(M, columns, parts))
    return in_turn(share, total)


def call(described, case, columns, config):
    """A function of dense (M, D), sparse (M, F, D), W (N², P) and b (P,), which returns (M, P)."""
    M, parts = case.sizes["M"], config["PARTS"]
    share, total = (
        launch.returning({place: shape})
        for launch, place, shape in zip(described, (3, 2), ((parts, M, columns), (M, columns)), strict=True)
    )
    return lambda dense, sparse, W, b: total(share(dense, sparse, W), b)
