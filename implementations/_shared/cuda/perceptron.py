"""The tiles of perceptron.cuh, and its launch. `case` is one of fused_mlp, or a part of a model's."""

from dataclasses import dataclass
from itertools import pairwise

from implementations._shared.cuda.launch import TYPES, Launch, instance, too_large
from implementations._shared.gpu import is_ieee, multiprocessors

NARROW = 64  # as in perceptron.cuh


@dataclass(frozen=True)
class RowTile:
    """Rows of a block or cluster, columns of a pass, the arrangement of warps for wide and for narrow layers, and how many
    blocks may share the rows."""

    rows: int
    wide: int
    wide_warps: tuple[int, int]
    narrow_warps: tuple[int, int]
    clusters: tuple[int, ...]

    @property
    def threads(self):
        return self.wide_warps[0] * self.wide_warps[1] * 32

    @property
    def stage(self):
        """Bytes of a slab of x and one of W."""
        return (self.rows + self.wide) * 128


# Many rows read the weights few times; few rows make many blocks, and a cluster even more. What a block of a cluster makes
# of a layer is 1 / cluster of it, so its tile is not as wide.
TILES = (
    RowTile(128, 256, (2, 4), (4, 2), (1,)),
    RowTile(64, 256, (2, 4), (4, 2), (1,)),
    RowTile(64, 128, (2, 4), (4, 2), (1, 2, 4)),
    RowTile(32, 128, (2, 4), (2, 4), (1, 2, 4, 8)),
    RowTile(16, 128, (1, 4), (1, 4), (1, 2, 4, 8)),
)
# What a multiprocessor of an H200 does in a clock: products by (dtype, precision), and bytes that reach it from L2.
PRODUCTS = {("float32", "ieee"): 110, ("float32", "tf32"): 450, ("float16", "ieee"): 900, ("bfloat16", "ieee"): 900}
L2_BYTES = 50
LAYER_CLOCKS = 1500  # before the first product of a layer and after the last
# The part of the multiprocessors that clusters of so many blocks fill: some graphics clusters have a pair more than fours, or than eights. Where
# the last of 32 clusters of four had to wait, 1024×256-256-256 took an H100 15 µs in bfloat16, and 2048×1024-1024-1024 100
FILLED = {1: 1.0, 2: 1.0, 4: 0.9, 8: 7 / 8}
STATIC_BYTES = 1024  # of shared memory at most: the layers' own 160 and some


def widths(case):
    return case.size("N0", "N1", "N2", "N3", "N4")[: case.sizes["LAYERS"] + 1]


def whole_slabs(width, case):
    """The width in slabs of 128 bytes, as elements."""
    slab = 128 // case.itemsize
    return -(-width // slab) * slab


def places(case, tile, cluster):
    """Bytes of the two places for what layers make. perceptron.cuh chooses between them by the same rule."""
    sizes, place = [0, 0], 0
    for number, width in enumerate(widths(case)[1:-1]):
        columns = whole_slabs(width, case)
        if number > 0 and not (cluster == 1 and columns <= tile.wide):
            place = 1 - place
        sizes[place] = max(sizes[place], columns * case.itemsize * tile.rows)
    return sizes


def tile_of(config):
    """The tile of a config, or None where there is no such instance."""
    return next((t for t in TILES if (t.rows, t.wide) == (config["BLOCK_M"], config["BLOCK_N"])), None)


def fits(case, device, config):
    """Why a config cannot run, or None."""
    tile, cluster, stages = tile_of(config), config["CLUSTER"], config["num_stages"]
    if tile is None:
        return f"the tiles are {', '.join(f'{t.rows}×{t.wide}' for t in TILES)}"
    if cluster not in tile.clusters:
        return (
            f"the tile {tile.rows}×{tile.wide} is for clusters of {', '.join(map(str, tile.clusters))}, not {cluster}"
        )
    if cluster > 1 and device.capability < (9, 0):
        return "thread-block clusters need compute capability 9.0"
    if stages < 2:
        return f"num_stages is {stages}: one is read while another is written"
    return too_large(stages * tile.stage + sum(places(case, tile, cluster)), device, STATIC_BYTES)


def candidates(case, device):
    """The configs of all tiles and clusters that fit on the device, each with the most stages, which are 8: few rows wait for each slab of weights."""
    found = []
    for tile, cluster in ((t, cluster) for t in TILES for cluster in t.clusters):
        shape = {"BLOCK_M": tile.rows, "BLOCK_N": tile.wide, "CLUSTER": cluster}
        choices = (shape | {"num_stages": stages} for stages in (8, 6, 4, 3, 2))
        if own := next((c for c in choices if fits(case, device, c) is None), None):
            found.append(own)
    return found


def config(case, device):
    """The tile and the cluster that are expected to be over first."""
    return min(candidates(case, device), key=lambda c: clocks(case, device, tile_of(c), c["CLUSTER"]))


def clocks(case, device, tile, cluster):
    """What the launch is expected to take, by which a tile is chosen."""
    tiles, total = -(-case.sizes["M"] // tile.rows), 0.0
    for number, (K, N) in enumerate(pairwise(widths(case))):
        if number and N == 1 and number == case.sizes["LAYERS"] - 1:  # a column is no tile
            total += LAYER_CLOCKS
            continue
        share = -(-N // (16 * cluster)) * 16
        width = NARROW if share <= NARROW else tile.wide
        columns = -(-share // width) * width
        step = 32 // case.itemsize
        products = tile.rows * columns * -(-K // step) * step / PRODUCTS[case.dtype, case.precision]
        read = (share + (tile.rows * -(-share // width) if number == 0 else 0)) * K * case.itemsize
        total += max(products, read / L2_BYTES) + LAYER_CLOCKS + (500 if cluster > 1 else 0)
    return total * -(-tiles // max(1, int(FILLED[cluster] * multiprocessors(device)) // cluster))


def launch(file, case, config, pitch=None):
    """The launch of a perceptron of `file`, which includes perceptron.cuh. `pitch` is how many elements a row of x takes, N0 unless told
    otherwise; those past N0 are 0."""
    tile, cluster, stages = tile_of(config), config["CLUSTER"], config["num_stages"]
    arguments = (
        TYPES[case.dtype], is_ieee(case), case.options["w_layout"] == "nk", case.options["last"].upper(),
        tile.rows, tile.wide, *tile.wide_warps, *tile.narrow_warps, stages, *([cluster] if cluster > 1 else []),
    )  # fmt: skip
    program = instance(file, "mlp_cluster" if cluster > 1 else "mlp", *arguments)
    grid, (first, second) = -(-case.sizes["M"] // tile.rows) * cluster, places(case, tile, cluster)
    memory, dtypes = stages * tile.stage + first + second, (case.dtype,) * 10
    # the last arguments are the pitch and where the second place for outputs lies behind the first
    return Launch(program, grid, tile.threads, memory, dtypes=dtypes, sizes=(pitch or case.sizes["N0"], first))


def call(described, case):
    """A function of x (M, N0), W1, b1, W2, b2, …, which returns (M, N of the last layer)."""
    M, layers, *sizes = case.size("M", "LAYERS", "N0", "N1", "N2", "N3", "N4")
    return described.returning({9: (M, widths(case)[-1])}, (M, layers, *sizes), absent=range(1 + 2 * layers, 9))
