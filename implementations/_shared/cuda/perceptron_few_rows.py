"""The tiles of hopper/perceptron_few_rows.cuh, in IEEE float32, and its launch. `case` is one of fused_mlp, or a part of a model's.

The tunables are those of perceptron.py with KERNEL=few_rows: BLOCK_M rows are a cluster's, BLOCK_N columns of a layer at most a block's, with four
threads each. num_stages is 4 always: of each layer all weights are on their way at once.
"""

from itertools import pairwise

from implementations._shared.cuda.launch import Launch, instance, not_one_of, too_large
from implementations._shared.cuda.perceptron import STATIC_BYTES, widths
from implementations._shared.gpu import is_ieee, multiprocessors, shared_memory

ROWS, COLUMNS, CLUSTERS, STAGES = (4, 8, 16, 32), (64, 128), (4, 8), 4
PHASES = 4  # the sums of a column are added up four at a time
RESERVED = 1024  # bytes of each block's shared memory
LEAST_WEIGHTS = 1 << 16  # elements; fewer a block reads for itself before it hears of another
# Estimates, in clocks, fitted to five perceptrons on an H200: of the launch, of a layer, of each of a block's weights, and of a column of x; and how much
# longer it takes with other tiles than 16 rows
CLOCKS, OTHER_TILES = (2600, 2000, 0.24, 7), 1.65


def config(case, device):
    """The config that is expected to be the fastest, or None where another kernel is better."""
    if not is_ieee(case) or sum(K * N for K, N in pairwise(widths(case))) < LEAST_WEIGHTS:
        return None
    # the fewer blocks, the less of the weights is read twice: of 128 rows of 13-512-256-64-16 an H200 took 8.8 µs with 16 rows, 9.3 with 8,
    # 12.7 with 4; and up to 22.9 with 128 columns. But clusters of 8 do not fill all multiprocessors: of 256 rows an H100 took 16.6 µs with 16,
    # 14.9 with 8, and 14.4 with 32, which twice the threads share. 512 rows took 23.2 µs with 8 one after another, 51.7 by KERNEL=simt
    shape = {"KERNEL": "few_rows", "CLUSTER": 8, "num_stages": STAGES}
    for rows, columns, part in ((16, 64, 7 / 8), (32, 128, 7 / 8), (8, 64, 3)):
        own = shape | {"BLOCK_M": rows, "BLOCK_N": columns}
        if fits(case, device, own) is None and _at_once(case, device, own, part):
            return own
    return None


def clocks(case, config):
    """What the launch is expected to take."""
    launch, layer, weight, column = CLOCKS
    *_, weights = memory(case, config)
    total = launch + layer * case.sizes["LAYERS"] + weight * weights / 4 + column * case.sizes["N0"]
    return total * (1 if config["BLOCK_M"] == 16 else OTHER_TILES)


def _at_once(case, device, config, part):
    """Whether all blocks run at the same time, on that part of the multiprocessors, or within so many rounds: later ones wait, and many rows
    read the weights often."""
    resident = (shared_memory(device) + RESERVED) // (sum(memory(case, config)) + STATIC_BYTES + RESERVED)
    return grid(case, config) <= part * resident * multiprocessors(device)


def fits(case, device, config):
    """Why a config with KERNEL=few_rows cannot run, or None."""
    if device.capability < (9, 0) or not is_ieee(case):
        return "KERNEL=few_rows is for IEEE float32, and its clusters need compute capability 9.0"
    choices = (("BLOCK_M", ROWS), ("BLOCK_N", COLUMNS), ("CLUSTER", CLUSTERS), ("num_stages", (STAGES,)))
    if reason := next((r for name, known in choices if (r := not_one_of(name, config[name], known))), None):
        return f"KERNEL=few_rows: {reason}"
    cluster, widest = config["CLUSTER"], max(widths(case)[1:])
    if widest > (most := cluster * config["BLOCK_N"]):
        return f"KERNEL=few_rows: {cluster} blocks make {most} columns of a layer, not {widest}"
    if phases(config, _share(widest, cluster)) < PHASES:
        return f"KERNEL=few_rows: {4 * config['BLOCK_N']} threads share the K of {config['BLOCK_M']} rows in less than {PHASES} parts"
    return too_large(sum(memory(case, config)), device, STATIC_BYTES)


def phases(config, own):
    """In how many parts K is shared among the threads of a block that has so many columns of a layer: 4 × 4 sums are a thread's."""
    return 4 * config["BLOCK_N"] >> (own // 4 * (config["BLOCK_M"] // 4) - 1).bit_length()


def _share(N, cluster):
    """Columns of a layer of N that a block has, filled up to vectors."""
    return -(-N // (4 * cluster)) * 4


def memory(case, config):
    """Bytes of shared memory: the two places that layers read from and sum up in, and the weights, with a row for the biases."""
    rows, cluster, sizes = config["BLOCK_M"], config["CLUSTER"], widths(case)
    sums = 4 * (4 * config["BLOCK_N"] + max(2, rows // 4)) * 16
    first, second = (max((sums, *(rows * n * 4 for n in sizes[i:-1:2]))) for i in (0, 1))
    return first, second, sum((K + 1) * _share(N, cluster) * 4 for K, N in pairwise(sizes))


def grid(case, config):
    return -(-case.sizes["M"] // config["BLOCK_M"]) * config["CLUSTER"]


def launch(file, case, config):
    """The launch of mlp_few_rows of `file` with a config that fits."""
    rows, columns, cluster = config["BLOCK_M"], config["BLOCK_N"], config["CLUSTER"]
    arguments = case.options["w_layout"] == "nk", case.options["last"].upper(), rows, columns, cluster
    first, second, weights = memory(case, config)
    # the last arguments are where the second place and the weights lie behind the first place
    return Launch(
        instance(file, "mlp_few_rows", *arguments), grid(case, config), 4 * columns, first + second + weights,
        dtypes=(case.dtype,) * 10, sizes=(first, first + second),
    )  # fmt: skip
