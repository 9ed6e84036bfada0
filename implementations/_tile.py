"""The choice of a tile for kernels on _tile.cuh: what is compiled, and the grid and the shared memory of its launch."""

from dataclasses import dataclass

from fusebench.backends.cuda import Program
from implementations._cuda import SHARED_MEMORY, TYPES, Plan


@dataclass(frozen=True)
class Tile:
    """A block's part of the product, its arrangement of warps, and what an element costs in it beside the largest tile."""

    rows: int
    columns: int
    warps_m: int
    warps_n: int
    cost: float


# The larger a tile, the fewer bytes a product reads; the smaller, the more blocks there are for a small y. 16 rows are the
# least that tensor cores multiply: with few rows, W is all that is read, and wants many blocks.
TENSOR_TILES = (
    Tile(128, 256, 2, 4, 1.0), Tile(128, 128, 2, 4, 1.2), Tile(64, 128, 2, 2, 1.4), Tile(64, 64, 2, 2, 1.6),
    Tile(16, 64, 1, 4, 3.0),
)  # fmt: skip
SIMT_TILES = (Tile(128, 128, 2, 4, 1.0), Tile(64, 64, 1, 2, 1.2))


def plan(file, kernel, case, device, arguments=(), parts=1):
    """The plan of `<kernel>_tensor` or `<kernel>_simt` of `file`: x (M, K) times `parts` matrices (K, N) side by side.

    Its template's arguments are the type (not of simt), `arguments`, ALIGNED, NK, and the tile.
    """
    M, K, N = case.size("M", "K", "N")
    vector = 16 // case.itemsize
    aligned = K % vector == 0 and N % vector == 0
    shared = [*arguments, str(aligned).lower(), str(case.options["w_layout"] == "nk").lower()]
    multiprocessors = device.multiprocessors or 132
    if case.dtype == "float32" and case.precision == "ieee":
        tile = best(SIMT_TILES, M, N, parts, multiprocessors)
        name = f"{kernel}_simt<{', '.join(map(str, [*shared, tile.rows, tile.columns]))}>"
        return Plan(Program(file, name), blocks(tile, M, N, parts), tile.rows * tile.columns // 64)
    limit = SHARED_MEMORY.get(tuple(device.capability), 99) * 1024
    fitting = [t for t in TENSOR_TILES if stages_of(t, parts, case.itemsize, limit)]
    tile = best(fitting, M, N, parts, multiprocessors)
    stages = stages_of(tile, parts, case.itemsize, limit)
    shape = [tile.rows, tile.columns, tile.warps_m, tile.warps_n, stages]
    name = f"{kernel}_tensor<{', '.join(map(str, [TYPES[case.dtype], *shared, *shape]))}>"
    memory = shared_memory(tile, parts, stages, case.itemsize)
    return Plan(Program(file, name), blocks(tile, M, N, parts), tile.warps_m * tile.warps_n * 32, memory)


def best(tiles, M, N, parts, multiprocessors):
    """The tile with the least work on the busiest multiprocessor."""
    return min(tiles, key=lambda t: -(-blocks(t, M, N, parts) // multiprocessors) * t.rows * t.columns * t.cost)


def blocks(tile, M, N, parts):
    """How many tiles cover y (M, N)."""
    return -(-M // tile.rows) * -(-N // (tile.columns // parts))


def shared_memory(tile, parts, stages, itemsize):
    """Bytes of a block: slabs of 128 bytes of K, whose place the tile of y takes before it is stored."""
    return max(stages * (tile.rows + tile.columns) * 128, tile.rows * (tile.columns // parts + 8) * itemsize)


def stages_of(tile, parts, itemsize, limit):
    """How many slabs fit, four at most: more wait for nothing. 0 if two are too large."""
    return next((s for s in (4, 3, 2) if shared_memory(tile, parts, s, itemsize) <= limit), 0)
