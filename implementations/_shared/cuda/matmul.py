"""The choice of a tile for kernels on matmul_mma.cuh, matmul_simt.cuh and hopper/matmul.cuh: what is compiled, and the grid and
the shared memory of its launch."""

from dataclasses import dataclass

from implementations._shared.cuda.launch import TYPES, Plan, instance
from implementations._shared.gpu import is_ieee, multiprocessors, rows_are_aligned, shared_memory


@dataclass(frozen=True)
class MatmulTile:
    """A block's part of the product, the kind of kernel that multiplies it (`tensor`, `simt` or `warpgroup`), its arrangement of
    warps, how many neighbours in M are a cluster, and what an element costs in it beside the largest tile of tensor cores."""

    kind: str
    rows: int
    columns: int
    cost: float
    warps_m: int = 0
    warps_n: int = 0
    cluster: int = 1

    @property
    def threads(self):
        if self.kind == "warpgroup":
            return self.rows * 2 + 128  # a consumer warpgroup for every 64 rows, and one producer
        return self.rows * self.columns // 64 if self.kind == "simt" else self.warps_m * self.warps_n * 32


# The larger a tile, the fewer bytes a product reads; the smaller, the more blocks there are for a small y. 16 rows are the
# least that tensor cores multiply: with few rows, W is all that is read, and wants many blocks.
TENSOR_TILES = (
    MatmulTile("tensor", 128, 256, 1.0, 2, 4), MatmulTile("tensor", 128, 128, 1.2, 2, 4), MatmulTile("tensor", 64, 128, 1.4, 2, 2),
    MatmulTile("tensor", 64, 64, 1.6, 2, 2), MatmulTile("tensor", 16, 64, 3.0, 1, 4),
)  # fmt: skip
SIMT_TILES = (MatmulTile("simt", 128, 128, 1.0), MatmulTile("simt", 64, 64, 1.2))
# On an H200 a cluster gained 3 % where blocks make many tiles, since two bring W once, and lost as much where they make one.
WARPGROUP_TILES = tuple(
    MatmulTile("warpgroup", 128, columns, cost, cluster=cluster)
    for columns, cost, cluster in ((256, 0.4, 2), (256, 0.405, 1), (128, 0.52, 2), (128, 0.525, 1))
)
SLAB = 64  # elements of 128 bytes


def plan(file, kernel, case, device, arguments=(), parts=1, tiles=TENSOR_TILES, beside=lambda tile: 0):
    """The plan of `<kernel>_simt`, or of `<kernel>_<kind>` of the best of `tiles`, of `file`: x (M, K) times `parts` matrices
    (K, N) side by side. `beside` is how many bytes of shared memory the kernel has with a tile beside its own.

    The template's arguments are the type (not of simt), `arguments`, ALIGNED (not of warpgroup), NK, and the tile.
    """
    M, K, N = case.size("M", "K", "N")
    aligned, nk = rows_are_aligned(case, K, N), case.options["w_layout"] == "nk"

    if is_ieee(case):
        tile = best(SIMT_TILES, M, N, parts, device)
        program = instance(file, f"{kernel}_simt", *arguments, aligned, nk, tile.rows, tile.columns)
        return Plan(program, blocks(tile, M, N, parts), tile.threads)

    def memory(tile, stages):
        return tile_bytes(tile, parts, stages, case.itemsize) + beside(tile)

    limit = shared_memory(device)
    fitting = [
        t for t in tiles if memory(t, 2) <= limit and (t.kind == "tensor" or multiplies_by_warpgroups(case, device))
    ]
    tile = best(fitting, M, N, parts, device)
    stages = next(s for s in (4, 3, 2) if memory(tile, s) <= limit)  # more wait for nothing
    template, head, shape = f"{kernel}_{tile.kind}", (TYPES[case.dtype], *arguments), (tile.rows, tile.columns)
    if tile.kind == "tensor":
        program = instance(file, template, *head, aligned, nk, *shape, tile.warps_m, tile.warps_n, stages)
        return Plan(program, blocks(tile, M, N, parts), tile.threads, memory(tile, stages))
    program = instance(file, template, *head, nk, *shape, stages, tile.cluster)
    grid = min(blocks(tile, M, N, parts), max(1, multiprocessors(device) // tile.cluster) * tile.cluster)
    columns = (tile.columns // max(parts, tile.cluster), SLAB) if nk else (SLAB, SLAB)
    return Plan(program, grid, tile.threads, memory(tile, stages), boxes=((tile.rows, SLAB), columns))


def multiplies_by_warpgroups(case, device):
    """Whether hopper/matmul.cuh can be compiled for the device and take the case: no box is larger than what it is of, and
    coordinates have 31 bits."""
    M, K, N = case.size("M", "K", "N")
    fits = M >= 128 and K >= SLAB and N >= 256 and max(M, K, 2 * N) < 2**31 - 256
    return tuple(device.capability) == (9, 0) and case.itemsize == 2 and rows_are_aligned(case, K, N) and fits


def best(tiles, M, N, parts, device):
    """The tile with the least work on the busiest multiprocessor."""
    sms = multiprocessors(device)
    return min(tiles, key=lambda t: -(-blocks(t, M, N, parts) // sms) * t.rows * t.columns * t.cost)


def blocks(tile, M, N, parts=1):
    """How many tiles cover y (M, N), in whole clusters."""
    return -(-M // (tile.rows * tile.cluster)) * tile.cluster * -(-N // (tile.columns // parts))


def tile_bytes(tile, parts, stages, itemsize):
    """Shared memory of a block: slabs of 128 bytes of K, whose place the tile of y takes before it is stored. For warpgroups the
    tile's rows lie beside the slabs, 64 columns at a time, as does what belongs to the columns of two tiles, 8 bytes each; and
    two barriers of each slab and tile."""
    slabs = stages * (tile.rows + tile.columns) * 128
    if tile.kind == "warpgroup":
        return slabs + tile.rows * (SLAB + 8) * itemsize + 2 * 8 * tile.columns // parts + (stages + 2) * 16
    return max(slabs, tile.rows * (tile.columns // parts + 8) * itemsize)
