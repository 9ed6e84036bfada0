"""The tiles of kernels on hopper/matmul_split.cuh, and their launch: products whose y has few tiles.

The tunables are matmul.py's with KERNEL=warpgroup, but no CLUSTER, and SPLIT: so many blocks share the K of a tile of BLOCK_M × BLOCK_N.
Of `parts` products side by side a tile has BLOCK_N / parts columns each. Where there are whole tiles beside it, they say KERNEL=split and
CLUSTER for SPLIT (`or_split`, `of_cluster`).
"""

from itertools import product

from implementations._shared.cuda.launch import TYPES, Launch, instance, too_large
from implementations._shared.cuda.matmul import PANEL, boxes, slab
from implementations._shared.cuda.matmul_choice import split_time, time_of
from implementations._shared.gpu import is_ieee, rows_are_aligned

ROWS, COLUMNS, SPLITS = (128, 64), (128, 64), (1, 2, 4, 8)
WIDE = (*COLUMNS, 256)  # of kernels that have such tiles, too
# that is chosen at most: 2048×4096→384 and the attention behind it took 28.3 µs on an H200 with two blocks a tile, 39.8 with four of 128×192
PREFERRED_SPLIT = 4
LEAST_STAGES = 3  # whose place the sums of other blocks take
# of an element, as MatmulTile has it
COSTS = {(128, 256): 0.41, (64, 256): 0.59, (128, 128): 0.49, (64, 128): 0.73, (128, 64): 0.74, (64, 64): 1.03}


def config(case, device, parts=1, kernel="warpgroup", columns=COLUMNS, narrow=False):
    """The config of the least time among those that fit with BLOCK_N one of `columns`, or None."""
    choices = []
    for rows, wide, split in product(ROWS, columns, [s for s in SPLITS if s <= PREFERRED_SPLIT]):
        deep = -(-case.sizes["K"] // (slab(case) * split))
        for stages in range(max(LEAST_STAGES, min(6, deep)), LEAST_STAGES - 1, -1):
            own = {"KERNEL": kernel, "BLOCK_M": rows, "BLOCK_N": wide, "num_stages": stages, "SPLIT": split}
            if fits(case, device, own, parts, columns, narrow) is None:
                choices.append(own)
                break
    return min(choices, key=lambda own: time(case, own, parts, device), default=None)


def time(case, config, parts, device):
    """Microseconds that a product takes (matmul_choice.py)."""
    shape, split = (config["BLOCK_M"], config["BLOCK_N"]), config["SPLIT"]
    return split_time(case, shape, COSTS[shape], split, parts, device)


def or_split(case, whole, device, parts=1, columns=COLUMNS, narrow=False):
    """The faster, by the estimates, of `whole`, a config of matmul.py or None, and of tiles whose K blocks share."""
    split = config(case, device, parts, "split", columns, narrow)
    if split is None or (whole and time_of(case, whole, parts, device) <= time(case, split, parts, device)):
        return whole
    return {"CLUSTER" if name == "SPLIT" else name: value for name, value in split.items()} | {"SCHEDULE": "tiles"}


def time_of_either(case, config, parts, device):
    """Microseconds that a product takes in a config of matmul.py, or with KERNEL=split."""
    if config["KERNEL"] == "split":
        return time(case, of_cluster(config), parts, device)
    return time_of(case, config, parts, device)


def of_cluster(config):
    """A config with KERNEL=split as it is here."""
    return config | {"SPLIT": config["CLUSTER"]}


def blocks(config, M, N):
    """How many there are."""
    return -(-M // config["BLOCK_M"]) * -(-N // config["BLOCK_N"]) * config["SPLIT"]


def fits(case, device, config, parts=1, known=COLUMNS, narrow=False):
    """Why a config cannot run, or None. Coordinates have 31 bits. `narrow`: y may have fewer columns than the narrowest tile."""
    M, K, N = case.size("M", "K", "N")
    rows, columns, stages, split = (config[name] for name in ("BLOCK_M", "BLOCK_N", "num_stages", "SPLIT"))
    kernel = f"KERNEL={config['KERNEL']}"
    if rows not in ROWS or columns not in known or split not in SPLITS:
        return f"{kernel} has tiles of 64 or 128 × {' or '.join(map(str, sorted(known)))}, SPLIT 1, 2, 4, 8"
    nk, deep = case.options["w_layout"] == "nk", slab(case)
    least = 1 if narrow and columns == PANEL * parts else columns // parts
    if tuple(device.capability) != (9, 0) or is_ieee(case) or (case.itemsize == 4 and not nk):
        return f"{kernel} is for Hopper (9.0), 16 bits, or tf32 with W (N, K)"
    if columns < PANEL * parts:
        return f"{kernel} has {PANEL} columns of each of {parts} matrices at least, not {columns // parts}"
    if (
        not rows_are_aligned(case, *((K,) if nk else (K, N)))
        or (rows > 64 and rows >= 2 * M)
        or least > N
        or max(PANEL, deep * split) > K
    ):
        return f"{kernel}: M from {1 if rows == 64 else rows // 2 + 1}, N from {least}, K from {max(PANEL, deep * split)}; rows of x and W of whole vectors of 16 bytes"
    if max(M, K, parts * N) >= 2**31 - 256:
        return f"{kernel}: all sizes are below 2**31"
    if stages < LEAST_STAGES:
        return f"num_stages is {stages}: the sums of other blocks take the place of {LEAST_STAGES}"
    return too_large(memory(config), device)


def memory(config):
    """Shared memory of a block: slabs of 128 bytes of K, two barriers of each, and one of the sums."""
    stages = config["num_stages"]
    return stages * ((config["BLOCK_M"] + config["BLOCK_N"]) * 128 + 16) + 16


def launch(file, kernel, case, config, dtypes=(), arguments=(), parts=1):
    """The launch of `<kernel>_<KERNEL>` of `file` with a config that fits. Its template's arguments are the type, `arguments`, NK, and the
    config."""
    M, _, N = case.size("M", "K", "N")
    rows, columns, stages, split = (config[name] for name in ("BLOCK_M", "BLOCK_N", "num_stages", "SPLIT"))
    nk, deep = case.options["w_layout"] == "nk", slab(case)
    name = f"{kernel}_{config['KERNEL']}"
    program = instance(file, name, TYPES[case.dtype], *arguments, nk, rows, columns, stages, split)
    of_x, of_W = boxes(case, rows, columns // parts)
    return Launch(
        program,
        blocks(config, M, parts * N),
        rows * 2 + 128,
        memory(config),
        dtypes=dtypes,
        boxes=(of_x, of_W if nk else (deep, PANEL)),
    )
