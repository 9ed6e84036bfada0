"""The tiles of kernels on hopper/matmul_turned.cuh, and their launch: products of 16 bits whose y has few tiles.

The tunables are matmul.py's, with KERNEL=turned: BLOCK_M is any multiple of 16 rows of y, and BLOCK_N columns of W, of which `parts` products
side by side have an equal number each. CLUSTER blocks with neighbouring columns bring the rows of x for each other.
"""

import math
from itertools import product

from implementations._shared.cuda import matmul, matmul_split
from implementations._shared.cuda.launch import TYPES, Launch, instance, too_large
from implementations._shared.cuda.matmul import PANEL, multiplies_by_warpgroups, slab
from implementations._shared.cuda.matmul_choice import beyond_l2, unhurried
from implementations._shared.cuda.matmul_split import time_of_either
from implementations._shared.gpu import clusters_at_once, weight_row

ROWS, COLUMNS, CLUSTERS = range(64, 257, 16), (128, 64), (1, 2)  # COLUMNS of each product; four were never the fastest
MOST_STAGES, LEAST_STAGES = 10, 3
MOST_SUMS = 256  # rows of all products that a thread's registers hold the sums of
ONES = 16  # rows behind those of x, where columns of W are summed up
# Microseconds, fitted with those of matmul_choice.py: of a slab of K of 128×256 elements, of 384 of its rows that a block brings, and of any;
# of what follows the sums of such a tile; of 384 rows that are no whole lines of the L2 cache; and of a launch of clusters
SLAB, BROUGHT, ANY_SLAB, END, NO_LINES, CLUSTERED = 0.452, 0.196, 0.083, 3.9, 0.1, 1.8
# and of each round of tiles behind the first, by products: splacc 500×1000→5000 took 29.3 µs and 500×2000→5000 49, in tiles of 128×128, whose estimates
# are higher without it, 27.4 and 42.4
AGAIN = {1: 0, 2: 1.3}
WORTH = 1.05  # what turned tiles must gain: of large products they were up to 3 % slower than estimated


def config(case, device, parts=1, summed=False):
    """The config of the least time among those that fit, or None. `summed`: of a kernel that sums up the columns of W, too."""
    choices = []
    for rows, columns, cluster in product(ROWS, COLUMNS, CLUSTERS):
        for stages in range(MOST_STAGES, LEAST_STAGES - 1, -1):
            own = {
                "KERNEL": "turned", "BLOCK_M": rows, "BLOCK_N": columns * parts, "num_stages": stages, "CLUSTER": cluster,
                "SCHEDULE": "tiles",
            }  # fmt: skip
            if fits(case, device, own, parts, summed) is None:
                choices.append(own)
                break
    return min(choices, key=lambda own: time(case, own, parts, device, summed), default=None)


def or_turned(case, other, device, parts=1):
    """The faster, by the estimates, of `other`, a config of matmul.py or matmul_split.py or None, and of turned tiles, which have to be worth it."""
    own = config(case, device, parts)
    if own is None or (other and time_of_either(case, other, parts, device) <= WORTH * time(case, own, parts, device)):
        return other
    return own


def time(case, config, parts, device, summed=False):
    """Microseconds that a product takes."""
    K, (rows, columns, cluster), line = case.sizes["K"], _tile(config), slab(case)
    area, brought = (rows + summed * ONES) * columns / (128 * 256), rows / cluster
    rounds = _clusters(case, config, parts) / clusters_at_once(device, cluster)
    odd = brought * (K % line > 0) + columns * (weight_row(case) % line > 0)
    of_slab = (SLAB * area + BROUGHT * (columns + brought) / 384 + ANY_SLAB) * unhurried(rounds)
    of_slab += NO_LINES * odd / 384 + beyond_l2(case, brought, columns, parts)
    begun = (CLUSTERED if cluster > 1 else 0) + (math.ceil(rounds) - 1) * AGAIN[parts]
    return begun + math.ceil(rounds) * (-(-K // line) * of_slab + END * area / parts)


def fits(case, device, config, parts=1, summed=False):
    """Why a config cannot run, or None."""
    rows, columns, cluster = _tile(config)
    if rows not in ROWS or columns % parts or columns // parts not in COLUMNS or cluster not in CLUSTERS:
        known = " or ".join(str(parts * c) for c in sorted(COLUMNS))
        return f"KERNEL=turned has tiles of 64, 80, … 256 × {known}, in clusters of 1 or 2"
    if (rows + summed * ONES) * parts > MOST_SUMS:
        return f"a thread has no registers for the sums of {rows} rows of {parts} products"
    if rows % (8 * cluster):
        return f"a block brings {rows // cluster} rows of x, which are no multiple of 8"
    if case.itemsize != 2 or not multiplies_by_warpgroups(case, device):
        return "KERNEL=turned is for 16 bits on Hopper's warpgroups (9.0): K from 64, N from 128, rows of x and W of whole vectors of 16 bytes"
    if config["num_stages"] < 2:
        return f"num_stages is {config['num_stages']}: one is read while another is written"
    return too_large(_memory(config, parts, summed), device)


def _tile(config):
    return config["BLOCK_M"], config["BLOCK_N"], config["CLUSTER"]


def _clusters(case, config, parts):
    """How many have a tile."""
    (M, N), (rows, columns, cluster) = case.size("M", "N"), _tile(config)
    return -(-M // rows) * -(-N // (columns // parts * cluster))


def _memory(config, parts, summed=False):
    """Shared memory of a block: slabs of 128 bytes of K, lines of 64 columns that are stored together, what belongs to the rows of two tiles,
    or to its columns, 8 bytes each, and two barriers of each slab and tile."""
    rows, columns, _ = _tile(config)
    slabs = config["num_stages"] * (rows + summed * ONES + columns) * 128
    return slabs + columns // parts * (128 + 16) + 2 * 8 * (rows + columns // parts) + (config["num_stages"] + 2) * 16


def launch(file, kernel, case, device, config, arguments=(), parts=1, dtypes=(), summed=False):
    """The launch of `<kernel>_turned` of `file` with a config that fits. Its template's arguments are the type, `arguments`, NK, and the
    tile of one product."""
    rows, columns, cluster = _tile(config)
    nk, deep, of_one = case.options["w_layout"] == "nk", slab(case), columns // parts
    program = instance(
        file, f"{kernel}_turned", TYPES[case.dtype], *arguments, nk, rows, of_one, config["num_stages"], cluster
    )
    tiles = _clusters(case, config, parts) * cluster
    grid = min(tiles, clusters_at_once(device, cluster) * cluster)
    boxes = (rows // cluster, deep), (PANEL, deep) if nk else (deep, PANEL)
    memory = _memory(config, parts, summed)
    return Launch(program, grid, of_one * 2 + 128, memory, dtypes=dtypes, boxes=boxes, tiles=tiles)


def launch_of_any(file, kernel, case, device, config, dtypes, arguments=(), parts=1):
    """The launch of `<kernel>_<KERNEL>` of `file` with a config that fits, of KERNEL=turned, split, or one of matmul.py."""
    if config["KERNEL"] == "split":
        return matmul_split.launch(file, kernel, case, matmul_split.of_cluster(config), dtypes, arguments, parts=parts)
    described = launch if config["KERNEL"] == "turned" else matmul.launch
    return described(file, kernel, case, device, config, arguments, parts=parts, dtypes=dtypes)
