"""The tiles of hopper/perceptron_few_rows_half.cuh, and its launch: perceptron_few_rows.py's in 16 bits. `case` is one of fused_mlp.

BLOCK_M rows are a cluster's, BLOCK_N columns of a layer at most a block's, with a warp for eight. num_stages is 4 always: of each layer all
weights are on their way at once.
"""

from itertools import pairwise

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, too_large
from implementations._shared.cuda.perceptron import STATIC_BYTES, widths
from implementations._shared.cuda.perceptron_few_rows import CLUSTERS, LEAST_WEIGHTS, RESERVED, STAGES
from implementations._shared.cuda.perceptron_warpgroup import SHARING_ROWS
from implementations._shared.gpu import multiprocessors, rows_are_aligned, shared_memory

ROWS, COLUMNS = (16, 32), (64, 128)
STEP = 16  # elements of K of a product
MOST_ROWS = 128  # up to which it is taken; but 64 of an x that it would read element by element, and Hopper's warpgroups would not
ELEMENTS = 64  # of a row of x that are read so all the same: in about one go


def config(case, device):
    """The config that is expected to be the fastest, or None where another kernel is better."""
    weights, N0 = sum(K * N for K, N in pairwise(widths(case))), case.sizes["N0"]
    most = MOST_ROWS if N0 <= ELEMENTS or rows_are_aligned(case, N0) else SHARING_ROWS - 1
    if case.itemsize != 2 or case.sizes["M"] > most or weights < LEAST_WEIGHTS:
        return None
    shape = {"KERNEL": "few_rows", "BLOCK_M": 16, "CLUSTER": 8, "num_stages": STAGES}
    for columns in COLUMNS:
        own = shape | {"BLOCK_N": columns}
        if fits(case, device, own) is None and _at_once(case, device, own):
            return own
    return None


def _at_once(case, device, config):
    """Whether all blocks run at the same time, in clusters that do not fill all multiprocessors."""
    resident = (shared_memory(device) + RESERVED) // (sum(memory(case, config)) + STATIC_BYTES + RESERVED)
    return grid(case, config) <= 7 / 8 * resident * multiprocessors(device)


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
