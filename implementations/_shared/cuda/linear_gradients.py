"""dx = f(dz @ Wᵀ) and dW = xᵀ @ dz in one launch of Hopper's warpgroups (hopper/linear_gradients.cuh).

`case` is one of x (M, K) with W (K, N) or (N, K), N being all of its columns. The tunables are BLOCK_M × BLOCK_N, num_stages, CLUSTER, and
SCHEDULE: `tiles`, or `stream_k`, by which tiles are shared so that all blocks have as much to do. x, W and dz have rows of whole vectors.
"""

from dataclasses import dataclass
from itertools import pairwise, product

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, too_large
from implementations._shared.cuda.matmul import PANEL, boxes
from implementations._shared.cuda.matmul_choice import WORTH
from implementations._shared.gpu import filled_up, multiprocessors

TILES = ((128, 256), (192, 192), (128, 128))
SCHEDULES, CLUSTERS = ("tiles", "stream_k"), (1, 2)
SLAB = 0.74  # microseconds of one of the largest tile, 64 deep
COSTS = {(128, 256): 1.0, (192, 192): 1.1, (128, 128): 0.6}  # of a slab beside that
# and in a cluster of two, which bring one operand once (the largest tile): lola 4096³ took an H100 452 µs, without clusters 485, but in 90 times of nine shapes of up to 1500 rows
# on an H200 they were about as fast as single blocks
SHARED = 0.96
# In slabs' time: a tile's end; what each sharer of a tile leaves for its last one, of the largest tile; and how near a piece's beginning may be
# to that of a tile. What they choose was the fastest, or within 4 %, in seven of nine shapes on an H200; two took 12 and 36 % longer, the latter before n came in vectors
TILE_END, EXCHANGE, NEAR = 2.0, 2.5, 2
ALWAYS = 1 << 20  # nearer than this every slab is
SCHEDULER = 128  # bytes of a block, at most


@dataclass(frozen=True)
class Shares:
    """Whole tiles of each cluster, of dx and of dW; how near the beginning of a tile a piece of what is left begins there; the slabs and the
    ends of tiles of the cluster that has most to do; and how many clusters share a tile, or 0."""

    dx: int
    dW: int
    snap: int
    slabs: int
    ends: int
    sharers: int


def weights_shape(case):
    """Rows and columns of W, and of dW, as they are stored."""
    K, N = case.size("K", "N")
    return (N, K) if case.options["w_layout"] == "nk" else (K, N)


def is_possible(case, device):
    """Whether the products can be by warpgroups, once rows are filled up: no tile is mostly beyond what it is of."""
    M, K, N = case.size("M", "K", "N")
    rows, columns = (filled_up(case, size) for size in weights_shape(case))
    # z = x @ W is a product of them, too, whose W has as many columns
    fits = min(M, rows) >= PANEL and min(filled_up(case, K), N, columns) >= 2 * PANEL
    return tuple(device.capability) == (9, 0) and case.itemsize == 2 and fits and max(M, 2 * K, 2 * N) < 2**31 - 256


def config(case, device):
    """The tile and the schedule with the least to do for the busiest cluster."""
    choices = []
    for (rows, columns), cluster, schedule, stages in product(TILES, CLUSTERS, SCHEDULES, (4, 3)):
        own = {"BLOCK_M": rows, "BLOCK_N": columns, "num_stages": stages, "CLUSTER": cluster, "SCHEDULE": schedule}
        if fits(case, device, own) is None:
            choices.append(own)
    return min(choices, key=lambda own: time(case, device, own))


def time(case, device, config):
    """Microseconds that both products take."""
    own, rows, columns = shares(case, device, config), config["BLOCK_M"], config["BLOCK_N"]
    exchanged = EXCHANGE * own.sharers * rows * columns / (TILES[0][0] * TILES[0][1])
    shared = SHARED if config["CLUSTER"] > 1 and (rows, columns) == TILES[0] else 1.0
    slabs = COSTS[rows, columns] * shared * (own.slabs + TILE_END * own.ends) + exchanged
    return SLAB * slabs * (WORTH if config["SCHEDULE"] == "stream_k" else 1)


def fits(case, device, config):
    """Why a config cannot run, or None."""
    if not is_possible(case, device):
        return "one launch of both products is for Hopper (9.0), 16 bits, M and rows of W from 64, and its columns and K from 128"
    tile, stages = (config["BLOCK_M"], config["BLOCK_N"]), config["num_stages"]
    if tile not in TILES:
        return f"the tiles of both products are {', '.join(f'{m}×{n}' for m, n in TILES)}"
    if reason := (
        not_one_of("CLUSTER", config["CLUSTER"], CLUSTERS)
        or not_one_of("SCHEDULE", config["SCHEDULE"], SCHEDULES)
        or not_one_of("num_stages", stages, (2, 3, 4))
    ):
        return reason
    if tile[1] // config["CLUSTER"] % PANEL:
        return f"a block brings {tile[1] // config['CLUSTER']} columns at once, which are panels of {PANEL}"
    if tile[0] > 2 * case.sizes["M"]:
        return f"more than half of a tile of {tile[0]} rows is beyond dz of {case.sizes['M']}"
    return too_large(memory(config), device)


def memory(config):
    """Shared memory of a block: slabs, its tile on the way out, of two tiles 16 bytes of each row, barriers, and the scheduler."""
    rows, columns, stages = config["BLOCK_M"], config["BLOCK_N"], config["num_stages"]
    return stages * ((rows + columns) * 128 + 16) + rows * 144 + 2 * (16 * rows + 16) + SCHEDULER


def shares(case, device, config):
    """How the tiles are shared out: so many are whole that a piece of the others is at least as deep as one of them, where there are as many:
    no tile has more than three sharers then."""
    M, K, N = case.size("M", "K", "N")
    rows, columns, cluster = config["BLOCK_M"] * config["CLUSTER"], config["BLOCK_N"], config["CLUSTER"]
    clusters = max(1, multiprocessors(device) // cluster)
    of_W = weights_shape(case)
    tiles = [-(-a // rows) * -(-b // columns) for a, b in ((M, K), of_W)]
    depth = [-(-N // 64), -(-M // 64)]
    snap = ALWAYS if config["SCHEDULE"] == "tiles" else NEAR
    whole = [count // clusters for count in tiles]

    def left():
        return [count - own * clusters for count, own in zip(tiles, whole, strict=True)]

    def deepest():
        return max((d for d, count in zip(depth, left(), strict=True) if count), default=0)

    while sum(d * count for d, count in zip(depth, left(), strict=True)) < deepest() * clusters and any(whole):
        most = max((i for i in (0, 1) if whole[i]), key=lambda i: depth[i])
        whole[most] -= 1
    pool = sum(d * count for d, count in zip(depth, left(), strict=True))
    begins = [_begin(cluster_at * pool // clusters, pool, left()[0], depth, snap) for cluster_at in range(clusters + 1)]
    border = left()[0] * depth[0]
    pieces = [(b - a, _touched(a, b, border, depth)) for a, b in pairwise(begins)]
    slabs, ends = max(pieces, key=lambda piece: piece[0] + TILE_END * piece[1])
    slabs, ends = slabs + sum(d * w for d, w in zip(depth, whole, strict=True)), ends + sum(whole)
    sharers = 1 + -(-deepest() // max(1, pool // clusters)) if pool and snap < ALWAYS else 0
    return Shares(*whole, snap, slabs, ends, sharers)


def _touched(begin, end, border, depth):
    """How many tiles a piece has slabs of; those of dx end at `border`."""
    of_dx, of_dW = (begin, min(end, border)), (max(begin, border) - border, end - border)
    return sum(-(-b // d) - a // d for (a, b), d in zip((of_dx, of_dW), depth, strict=True) if a < b)


def _begin(at, pool, dx_tiles, depth, snap):
    """Where a piece begins: GradientScheduler::begin_of."""
    if at == pool:
        return at
    border = dx_tiles * depth[0]
    first, deep = (0, depth[0]) if at < border else (border, depth[1])
    start = at - (at - first) % deep
    if at - start <= snap:
        return start
    return start + deep if start + deep - at <= snap else at


def launch(file, case, device, config, arguments=(), dtypes=()):
    """The launch of `gradients_together` of `file`, whose numbers end with those of the schedule. `dtypes` are those of what follows its four
    tensor maps: dz and W, the operands of dx, and both of dW. The template's arguments are the type, `arguments`, whether W is read as
    rows of N, and the tile."""
    rows, columns, stages, cluster = (config[name] for name in ("BLOCK_M", "BLOCK_N", "num_stages", "CLUSTER"))
    upright = case.options["w_layout"] == "kn"
    program = instance(
        file, "gradients_together", TYPES[case.dtype], *arguments, upright, rows, columns, stages, cluster
    )
    most = max(1, multiprocessors(device) // cluster)
    own, panels = shares(case, device, config), (64, PANEL)
    grid = most * cluster  # `shares` counts on all of them
    exchange = ((grid * rows * columns,), (grid * rows // 16,)) if own.snap < ALWAYS else ()
    return Launch(
        program,
        grid,
        rows * 2 + 128,
        memory(config),
        dtypes=(case.dtype,) * 4 + tuple(dtypes),
        boxes=(*boxes(case, rows, columns // cluster), panels, panels),
        sizes=(own.dx, own.dW, own.snap),
        exchange=exchange,
    )
