"""The tiles of kernels on hopper/matmul_split.cuh, and their launch: products whose y has few tiles.

The tunables are matmul.py's with KERNEL=warpgroup, but no CLUSTER, and SPLIT: so many blocks share the K of a tile of BLOCK_M × BLOCK_N.
Of `parts` products side by side a tile has BLOCK_N / parts columns each; splacc and geglu (gated_matmul.py) say KERNEL=split.
"""

from itertools import product

from implementations._shared.cuda.launch import TYPES, Launch, instance, too_large
from implementations._shared.cuda.matmul import PANEL, slab
from implementations._shared.gpu import is_ieee, multiprocessors, rows_are_aligned

ROWS, COLUMNS, SPLITS = (128, 64), (128, 64), (1, 2, 4, 8)
# that is chosen at most: 2048×4096→384 and the attention behind it took 28.3 µs on an H200 with two blocks a tile, 39.8 with four of 128×192
PREFERRED_SPLIT = 4
LEAST_STAGES = 3  # whose place the sums of other blocks take
# Estimates by which tiles are chosen. In a cycle pass so many bytes: from L2 in all, to a multiprocessor, and to one from its neighbours.
# The blocks of a cluster wait for one another so many cycles, and so many more for each of them.
L2_BYTES, OWN_BYTES, NEIGHBOUR_BYTES = 4500, 48, 32
WAIT, WAIT_FOR_ONE = 400, 60


def config(case, device, parts=1, kernel="warpgroup", most=PREFERRED_SPLIT, columns=COLUMNS, rows_of=ROWS):
    """The config of the least work among those that fit with a SPLIT of at most `most`, BLOCK_M one of `rows_of`, and BLOCK_N of `columns`, or None."""
    M, K, N = case.size("M", "K", "N")
    best = None
    for rows, wide, split in product(rows_of, columns, [s for s in SPLITS if s <= most]):
        deep = -(-K // (slab(case) * split))
        for stages in range(max(LEAST_STAGES, min(6, deep)), LEAST_STAGES - 1, -1):
            own = {"KERNEL": kernel, "BLOCK_M": rows, "BLOCK_N": wide, "num_stages": stages, "SPLIT": split}
            if fits(case, device, own, parts, columns) is None:
                cycles = work(own, M, parts * N, deep, multiprocessors(device))
                if best is None or cycles < best[0]:
                    best = cycles, own
                break
    return best and best[1]


def work(config, M, N, deep, multiprocessors):
    """About how many cycles the product takes, each block of which has `deep` slabs of K. That of a slab of 128 × 128 is 512 cycles of
    tensor cores, in 16 bits and, with half the elements, in tf32."""
    rows, columns, split = (config[name] for name in ("BLOCK_M", "BLOCK_N", "SPLIT"))
    count, together = blocks(config, M, N), multiprocessors // split * split
    shared = (rows + columns) * 128 * min(count, together) / L2_BYTES
    slab = max(rows * columns / 32, shared, (rows + columns) * 128 / OWN_BYTES)
    wait = WAIT + WAIT_FOR_ONE * split if split > 1 else 0
    sums = rows * columns * 4 * (split - 1) / split / NEIGHBOUR_BYTES
    return -(-count // together) * (deep * slab + sums + wait)


def blocks(config, M, N):
    """How many there are."""
    return -(-M // config["BLOCK_M"]) * -(-N // config["BLOCK_N"]) * config["SPLIT"]


def fits(case, device, config, parts=1, known=COLUMNS):
    """Why a config cannot run, or None. No box is larger than what it is of, and coordinates have 31 bits."""
    M, K, N = case.size("M", "K", "N")
    rows, columns, stages, split = (config[name] for name in ("BLOCK_M", "BLOCK_N", "num_stages", "SPLIT"))
    kernel = f"KERNEL={config['KERNEL']}"
    if rows not in ROWS or columns not in known or split not in SPLITS:
        return f"{kernel} has tiles of 64 or 128 × {' or '.join(map(str, sorted(known)))}, SPLIT 1, 2, 4, 8"
    nk, deep = case.options["w_layout"] == "nk", slab(case)
    if tuple(device.capability) != (9, 0) or is_ieee(case) or (case.itemsize == 4 and not nk):
        return f"{kernel} is for Hopper (9.0), 16 bits, or tf32 with W (N, K)"
    if columns < PANEL * parts:
        return f"{kernel} has {PANEL} columns of each of {parts} matrices at least, not {columns // parts}"
    if not rows_are_aligned(case, K, N) or rows > M or columns // parts > N or max(PANEL, deep * split) > K:
        return f"{kernel}: M from {rows}, N from {columns // parts}, K from {max(PANEL, deep * split)}; rows of whole vectors of 16 bytes"
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
    boxes = (rows, deep), (columns // parts, deep) if nk else (deep, PANEL)
    return Launch(program, blocks(config, M, parts * N), rows * 2 + 128, memory(config), dtypes=dtypes, boxes=boxes)
