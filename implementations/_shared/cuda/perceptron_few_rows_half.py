"""The tiles of hopper/perceptron_few_rows_half.cuh, and its launch: perceptron_few_rows.py's in 16 bits. `case` is one of fused_mlp.

BLOCK_M rows are a cluster's, BLOCK_N columns of a layer at most a block's, with a warp for eight. num_stages is 4 always: of each layer all
weights are on their way at once.
"""

from itertools import pairwise, product

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, too_large
from implementations._shared.cuda.perceptron import FILLED, STATIC_BYTES, widths
from implementations._shared.cuda.perceptron_few_rows import RESERVED, STAGES
from implementations._shared.gpu import multiprocessors, rows_are_aligned, shared_memory

ROWS, COLUMNS, CLUSTERS = (16, 32), (64, 128), (1, 2, 4, 8)
STEP = 16  # elements of K of a product
LEAST_WEIGHTS = 1 << 14  # elements; fewer are one slab or two of a layer, which are on their way at once in any kernel
MOST_ROWS = 128  # up to which it comes before Hopper's warpgroups
ELEMENTS = 64  # of a row of x of no whole vectors, which are read one by one, that it does so with
# Estimates, in clocks: a launch; a layer, and its exchange between blocks; a product of 16×8×16; and the bytes that reach a block in one
LAUNCH_CLOCKS, LAYER_CLOCKS, EXCHANGE_CLOCKS, PRODUCT_CLOCKS, BYTES, LATENCY = 3500, 1000, 700, 6, 40, 1000


def config(case, device):
    """The config that is expected to be the fastest, or None where none has all its blocks running at the same time."""
    if case.itemsize != 2 or sum(K * N for K, N in pairwise(widths(case))) < LEAST_WEIGHTS:
        return None
    found = []
    for rows, columns, cluster in product(ROWS, COLUMNS, CLUSTERS):
        own = {"KERNEL": "few_rows", "BLOCK_M": rows, "BLOCK_N": columns, "CLUSTER": cluster, "num_stages": STAGES}
        if fits(case, device, own) is None and _at_once(case, device, own):
            found.append(own)
    return min(found, key=lambda c: clocks(case, device, c), default=None)


def is_latency(case):
    """Whether the rows are so few that no other kernel is expected to be faster."""
    N0 = case.sizes["N0"]
    return case.sizes["M"] <= MOST_ROWS and (N0 <= ELEMENTS or rows_are_aligned(case, N0))


def clocks(case, device, config):
    """What the launch is expected to take."""
    rows, cluster, threads, N0 = config["BLOCK_M"], config["CLUSTER"], 4 * config["BLOCK_N"], case.sizes["N0"]
    products = 0
    for K, N in pairwise(widths(case)):
        products += rows // 16 * -(-N // (8 * cluster)) * (_whole_steps(K) // STEP)
    *_, weights = memory(case, config)
    each = -(-grid(case, config) // int(FILLED[cluster] * multiprocessors(device)))  # blocks of a multiprocessor
    total = LAUNCH_CLOCKS + each * (products * PRODUCT_CLOCKS + (weights + rows * N0 * 2) / BYTES)
    if not rows_are_aligned(case, N0):
        total += -(-rows * N0 // (4 * threads)) * LATENCY  # four elements of a thread are on their way at once
    return total + case.sizes["LAYERS"] * (LAYER_CLOCKS + (EXCHANGE_CLOCKS if cluster > 1 else 0))


def _at_once(case, device, config):
    resident = (shared_memory(device) + RESERVED) // (sum(memory(case, config)) + STATIC_BYTES + RESERVED)
    resident = min(resident, 2048 // (4 * config["BLOCK_N"]))
    return grid(case, config) <= FILLED[config["CLUSTER"]] * resident * multiprocessors(device)


def fits(case, device, config):
    """Why a config with KERNEL=few_rows cannot run, or None."""
    if device.capability < (9, 0):
        return "KERNEL=few_rows has clusters, which need compute capability 9.0"
    choices = (("BLOCK_M", ROWS), ("BLOCK_N", COLUMNS), ("CLUSTER", CLUSTERS), ("num_stages", (STAGES,)))
    if reason := next((r for name, known in choices if (r := not_one_of(name, config[name], known))), None):
        return f"KERNEL=few_rows: {reason}"
    cluster, widest = config["CLUSTER"], max(widths(case)[1:])
    if widest > (most := cluster * config["BLOCK_N"]):
        return f"KERNEL=few_rows: {cluster} blocks make {most} columns of a layer, not {widest}"
    return too_large(sum(memory(case, config)), device, STATIC_BYTES)


def _whole_steps(K):
    return -(-K // STEP) * STEP


def _pitch(K):
    """Vectors of 16 bytes from one row of K to the next."""
    return _whole_steps(K) // 8 + 1


def memory(case, config):
    """Bytes of shared memory: x and the hidden layers, the warps' sums, the biases, and the weights."""
    rows, columns, cluster, sizes = config["BLOCK_M"], config["BLOCK_N"], config["CLUSTER"], widths(case)
    layers, weights = sum(rows * _pitch(K) * 16 for K in sizes[:-1]), 0
    for K, N in pairwise(sizes):
        share = -(-N // (8 * cluster)) * 8
        nk = case.options["w_layout"] == "nk"
        weights += (share * _pitch(K) if nk else _whole_steps(K) * (share // 8 | 1)) * 16
    return layers, columns // 8 * rows * 32, 4 * columns * 4, weights


def grid(case, config):
    return -(-case.sizes["M"] // config["BLOCK_M"]) * config["CLUSTER"]


def launch(file, case, config):
    """The launch of mlp_few_rows_half of `file` with a config that fits."""
    rows, columns, cluster = config["BLOCK_M"], config["BLOCK_N"], config["CLUSTER"]
    nk, last = case.options["w_layout"] == "nk", case.options["last"].upper()
    program = instance(file, "mlp_few_rows_half", TYPES[case.dtype], nk, last, rows, columns, cluster)
    layers, sums, biases, weights = memory(case, config)
    # the last arguments are where the sums and the biases lie
    return Launch(
        program, grid(case, config), 4 * columns, layers + sums + biases + weights, dtypes=(case.dtype,) * 10,
        sizes=(layers, layers + sums),
    )  # fmt: skip
