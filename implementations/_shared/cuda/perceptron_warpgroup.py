"""The tiles of hopper/perceptron.cuh, and its launch. `case` is one of fused_mlp.

The tunables are those of perceptron.py with KERNEL=warpgroup: BLOCK_M=128 for many rows, 64 for few; BLOCK_N is how many columns of layer
1 are in registers at a time.
"""

from math import ceil, gcd

from implementations._shared.cuda.launch import TYPES, Launch, instance, too_large
from implementations._shared.cuda.perceptron import widths
from implementations._shared.gpu import clusters_at_once, multiprocessors, rows_are_aligned

SHARING_WEIGHTS, SHARING_ROWS = 128, 64  # BLOCK_M: what the blocks of a cluster share
COLUMNS = 128  # of layer 1 at a time, as in hopper/perceptron.cuh
IN_REGISTERS = 16  # columns of x at most
MOST_COLUMNS = 1408  # of x: with 64 rows of more there is no memory for two stages
TILES = {SHARING_WEIGHTS: (1, 2), SHARING_ROWS: (2, 4)}  # BLOCK_M → CLUSTER
MOST_STAGES = 9
LEAST_ROWS_OF_SMALL = 2048  # from which it is taken for two small hidden layers
# Estimates, in clocks: of a launch, and where blocks share rows, and products of a multiprocessor in one. An H200 takes for 2048 and 65536
# rows of 13-512-256-64-16 8.7 and 30.2 µs, which are 9.5 and 36 by these, and of 512-512-256-1 13.3 and 79, which are 12.4 and 83
# And of small hidden layers, 64-128-64-1: 1024, 4096 and 16384 rows take 4.8, 4.0 and 4.8 µs
LAUNCH_CLOCKS, SHARING_CLOCKS, SMALL_CLOCKS, PRODUCTS = 9000, 13200, 7000, 1480


def config(case, device):
    """The config of a case that is one of KERNEL=warpgroup without an estimate, or None: of many rows, where 8192×512-512-256-1 took an H200 22.0 µs, by a
    launch for each layer 22.7. Few rows of a wide x are faster by layers: 64 rows 7.9 and 10.3, 2048 12.9 and 13.3, but 256 11.0 and 9.8."""
    if (own := of_tile(case, device)) is None:
        return None
    rows, cluster, _ = tile(case, device)
    _, N1, N2, *between, last = widths(case)
    whole = (N1, N2, *between) == whole_tiles(case, rows, cluster)[: len(between) + 2] and N2 == 256
    # the others have not been compared on a card
    return own if rows == SHARING_WEIGHTS and (whole or is_small(case)) and last <= 16 else None


def of_tile(case, device):
    """The config with the tile that is best for so many rows, or None where no kernel here can run the case or a tile has more rows."""
    if no_warpgroups(case, device) or case.sizes["M"] < SHARING_ROWS:
        return None
    rows, cluster, most = tile(case, device)
    shape = {"KERNEL": "warpgroup", "BLOCK_M": rows, "BLOCK_N": COLUMNS, "CLUSTER": cluster}
    choices = (shape | {"num_stages": stages} for stages in range(most, 1, -1))
    return next((c for c in choices if fits(case, device, c) is None), None)


def is_small(case):
    """Whether there are many rows for two small hidden layers, whose weights any block has at once. 16384×64-128-64-1 in bfloat16 took an H100
    5.1 µs, in a cluster of two with four stages 6.35; 4096 rows 4.3, by 64 rows in clusters of two with nine stages 5.5."""
    return case.sizes["M"] >= LEAST_ROWS_OF_SMALL and _has_small_layers(case)


def _has_small_layers(case):
    _, N1, N2, *between, _ = widths(case)
    return N1 <= COLUMNS and N2 <= COLUMNS // 2 and not between


def tile(case, device):
    """(BLOCK_M, CLUSTER, the most stages that gained on an H200). Few rows are shared among the most blocks that run at once: clusters of
    four do not fill a card, of whose graphics clusters some have an odd pair of multiprocessors."""
    if is_small(case) and widths(case)[0] <= COLUMNS:
        return SHARING_WEIGHTS, 1, 3  # wider x was not compared
    tiles, count = tiles_of(case, SHARING_ROWS), multiprocessors(device)
    if 4 * tiles <= 0.9 * count:
        return SHARING_ROWS, 4, MOST_STAGES
    if 2 * tiles <= count:
        return SHARING_ROWS, 2, MOST_STAGES
    if widths(case)[0] > IN_REGISTERS:
        return SHARING_WEIGHTS, 2, 4
    return SHARING_WEIGHTS, 1, MOST_STAGES  # one block's weights are few: nothing is gained by waiting for a neighbour


def clocks(case, device, config):
    """What the launch is expected to take."""
    rows, cluster, last = config["BLOCK_M"], config["CLUSTER"], -(-widths(case)[-1] // 8) * 8
    (N1, N2, N3), (*_, slabs) = whole_tiles(case, rows, cluster), shape(case, rows, cluster)
    products = rows * ((slabs * 64 or IN_REGISTERS) * N1 + N1 * N2 + N2 * N3 + (N3 or N2) * last)
    launch, count = LAUNCH_CLOCKS, tiles_of(case, rows * cluster)
    if rows == SHARING_ROWS:
        launch, count, products = SHARING_CLOCKS, tiles_of(case, rows), products / cluster
    launch = SMALL_CLOCKS if _has_small_layers(case) else launch
    return launch + ceil(count / clusters_at_once(device, cluster)) * products / PRODUCTS


def fits(case, device, config):
    """Why a config with KERNEL=warpgroup cannot run, or None."""
    if reason := no_warpgroups(case, device):
        return reason
    rows, cluster, stages = config["BLOCK_M"], config["CLUSTER"], config["num_stages"]
    if cluster not in TILES.get(rows, ()) or config["BLOCK_N"] != COLUMNS:
        return "the tiles of KERNEL=warpgroup are 128×128 in clusters of 1 or 2, and 64×128 in clusters of 2 or 4"
    if stages < 2:
        return f"num_stages is {stages}: one is read while another is written"
    if stages > MOST_STAGES:
        return f"num_stages is {stages}: more than {MOST_STAGES} wait for nothing"
    return too_large(block_bytes(case, rows, cluster, stages), device)


def no_warpgroups(case, device):
    """Why hopper/perceptron.cuh cannot be compiled for the device or take the case, or None."""
    if tuple(device.capability) != (9, 0):
        return "KERNEL=warpgroup is for Hopper (9.0)"
    return no_such_case(case)


def no_such_case(case):
    """Why there is no instance for the case on any device, or None."""
    sizes = widths(case)
    if case.itemsize != 2 or sizes[0] > MOST_COLUMNS:
        return f"KERNEL=warpgroup is for 16 bits and x of up to {MOST_COLUMNS} columns"
    if len(sizes) not in (4, 5) or sizes[2] > 256 or max(sizes[3:-1], default=0) > 64 or sizes[-1] > 128:
        return "KERNEL=warpgroup is for three or four layers, N2 up to 256, N3 of four up to 64, the last N up to 128"
    if not rows_are_aligned(case, *sizes[1:-1]):
        return "KERNEL=warpgroup takes N in eights, but those of x and the last layer"
    if case.sizes["M"] < period(case):
        return f"KERNEL=warpgroup brings {period(case)} rows of such an x at least, not {case.sizes['M']}"
    return None if case.sizes["M"] < 2**31 - 2**17 else "rows are counted in 32 bits"


def is_turned(case):
    """Whether `prepare` turns W: the kernel takes (K, N)."""
    return case.options["w_layout"] == "nk" and no_such_case(case) is None


def prepared(case, layers):
    """() or the W of all layers as (K, N). `layers` are W1, b1, W2, b2, …"""
    return tuple(W.T.contiguous() for W in layers[::2]) if is_turned(case) else ()


def period(case):
    """Rows after which one of x begins at a multiple of 16 bytes again. A tile has rows of one remainder modulo that."""
    N0 = widths(case)[0]
    return 8 // gcd(N0, 8) if N0 > IN_REGISTERS else 1


def tiles_of(case, rows):
    """How many tiles of so many rows x has."""
    return -(-case.sizes["M"] // (period(case) * rows)) * period(case)


def whole_tiles(case, rows, cluster):
    """(N1, N2, N3 or 0) in whole tiles, as PerceptronSizes has them."""
    _, N1, N2, *between, _ = widths(case)
    share = COLUMNS * (cluster if rows == SHARING_ROWS else 1)
    return -(-N1 // share) * share, -(-N2 // 128) * 128, 64 if between else 0


def shape(case, rows, cluster):
    """(rows of W2 in a stage, bytes before the ring, slabs of x), as PerceptronSizes has them."""
    N0, (N1, N2, N3) = widths(case)[0], whole_tiles(case, rows, cluster)
    slabs = -(-(N0 + 8 - 8 // period(case)) // 64) if N0 > IN_REGISTERS else 0
    share = cluster if rows == SHARING_ROWS else 1
    own = slabs * rows * 128 if slabs else 16 * N1 // share * 2
    front = max(own, 64 * N2 * 4) if share > 1 else own
    return 8192 // N2 if slabs else 64, front + N2 * N3 * 2, slabs


def block_bytes(case, rows, cluster, stages):
    """Shared memory of a block: x or W1, W3, stages, barriers, biases, and the last W."""
    N1, N2, N3 = whole_tiles(case, rows, cluster)
    depth, before, slabs = shape(case, rows, cluster)
    eights = -(-widths(case)[-1] // 8)
    barriers = before + stages * (depth * N2 * 2 + 16) + (2 * slabs + 2) * 8
    return barriers + (N1 + N2 + N3 + eights * 8) * 4 + (N3 or N2) // 16 * eights * 256


def launch(file, case, device, config):
    """The launch of mlp_warpgroup of `file` with a config that fits."""
    sizes, rows, cluster, stages = widths(case), config["BLOCK_M"], config["CLUSTER"], config["num_stages"]
    *before, out = sizes if len(sizes) == 5 else (*sizes[:3], 0, sizes[3])  # WIDTH3 of three layers is 0
    depth, _, slabs = shape(case, rows, cluster)
    arguments = *before, out, rows, stages, cluster
    program = instance(file, "mlp_warpgroup", TYPES[case.dtype], case.options["last"].upper(), *arguments)
    if rows == SHARING_ROWS:
        grid = tiles_of(case, rows) * cluster
    else:
        grid = min(tiles_of(case, rows * cluster), clusters_at_once(device, cluster)) * cluster
    first, second = (64 if slabs else 16, 64), (depth, 64)
    third = (whole_tiles(case, rows, cluster)[1], 64) if before[3] else second
    boxes = first, second, third, (rows, 64) if slabs else first
    memory = block_bytes(case, rows, cluster, stages)
    return Launch(program, grid, rows * 2 + 128, memory, dtypes=(case.dtype,) * 11, boxes=boxes)


def call(described, case):
    """A function of x (M, N0), W1, b1, W2, b2, … and what was `prepared`, which returns (M, N of the last layer)."""
    M, sizes, P = case.sizes["M"], widths(case), period(case)
    launch, layers = described.returning({10: (M, sizes[-1])}, (M,)), len(sizes) - 1
    shape, strides = (M // P, P * sizes[0]), (P * sizes[0], 1)  # of x as its map has it: whole periods
    turned, wide = is_turned(case), sizes[0] > IN_REGISTERS

    def run(x, *arguments):
        given, biases = arguments[: 2 * layers : 2], arguments[1 : 2 * layers : 2]
        W1, W2, *third, W = arguments[2 * layers :] if turned else given
        b1, b2, *b_third, b = biases
        (W3,), (b3,) = third or (W2,), b_third or (b2,)  # what is not there is not read
        by_periods = x if P == 1 else x.as_strided(shape, strides)
        return launch(W1, W2, W3, by_periods if wide else W1, x, b1, b2, b3, W, b)

    return run
