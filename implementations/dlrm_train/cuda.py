"""dlrm_train in CUDA C++: a step in two launches, which cuda.cu describes, or, of many rows, with a launch for each layer.

pass     a tile of BLOCK_M rows forward and back, by a cluster of CLUSTER blocks; with KERNEL=layers launches of _cuda_layers.py
update   all that sums over the batch: gradients of the layers and the step, the tables, the mean loss
"""

import math
from pathlib import Path

import numpy as np

from fusebench.launchers import chained
from implementations._shared import dlrm
from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, too_large, unsupported
from implementations._shared.gpu import clusters_at_once, is_ieee
from implementations.dlrm_train import _cuda_layers as layers
from implementations.dlrm_train import _step
from implementations.dlrm_train._cuda_arrays import PARAMETERS, THREADS, between, gradients, parameters, sizes, whole

BACKEND = "torch"
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
FUSED = True
VARIANTS = {
    "modulus_two_launches": ("cast", "hidden", "interaction", "dz", "dhidden", "dinteraction", "dvectors"),
    "improved_two_launches": ("cast", "hidden", "interaction", "dz", "dhidden", "dinteraction", "dvectors"),
}
IN_PLACE = {
    ("modulus_two_launches", "improved_two_launches"): (
        "tables", "bottom_W1", "bottom_b1", "bottom_W2", "bottom_b2", "bottom_W3", "bottom_b3", "bottom_W4", "bottom_b4",
        "top_W1", "top_b1", "top_W2", "top_b2", "top_W3", "top_b3",
    ),
}  # fmt: skip
EXPECT = (
    {"variant": "modulus_two_launches", "case": "main", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "modulus_two_launches", "case": "main", "dtype": "float32", "arch": "sm_90a", "expect": "spills=0"},
    {"variant": "improved_two_launches", "case": "main", "dtype": "bfloat16", "options": {"hashing": "lookup"}, "arch": "sm_90a",
     "expect": "spills=0"},
    {"variant": "modulus_two_launches", "case": "large", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,waits_in_groups=0,HGMMA>=4,launches=16"},
    {"variant": "modulus_two_launches", "case": "large", "dtype": "bfloat16", "arch": ("sm_80", "sm_100a"), "expect": "spills=0,tensor_core>=1"},
)  # fmt: skip
TUNABLES = {
    ("modulus_two_launches", "improved_two_launches"): {"KERNEL": ("pass", "layers"), "BLOCK_M": (16, 32, 64), "CLUSTER": (1, 2, 4, 8), "num_stages": (2, 3, 4, 6)},
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")
WARPS, COLUMNS, SIDE = 8, 32, 64  # as in cuda.cu
STATIC_BYTES = 2048  # of shared memory, at most: the layers' own, and a float or two for each row
MOST_SCATTERING = 4096  # blocks of `update` that have table rows
# Estimates of `pass`, from its times at main and large in bfloat16 on an H100: microseconds of a layer, forward or back; weights that a block
# reads in one, and products that it makes of its samples' vectors
LAYER, WEIGHTS, DOTS = 1.1, 4800, 11000


def skip(case, variant, device):
    """Why no kernel here can run the case, or None."""
    if reason := unsupported(device) or _step.skip(case, variant, device):
        return reason
    if case.options["interaction"] == "outer":
        return "written for option.interaction=dot alone"
    M, F, V = case.size("M", "F", "V")
    if F * V >= 2**31 or M * F >= 2**31:
        return "look-ups and table rows are counted in 32 bits"
    return _pass_fits(case, device, {"BLOCK_M": 16, "CLUSTER": 1, "num_stages": 2})


def prepare(case, variant, dense, ids, labels, *weights):
    from implementations._shared.torch.lookup import prepared_for_kernels

    given = dlrm.by_part(case, (dense, ids, *weights))
    return prepared_for_kernels(_step.hashing(variant), given.offsets, given.known)


def config(case, variant, device):
    """What an estimate says is faster; `own` is of `update`, too."""
    own = _pass_config(case, device)
    apart = layers.skip(case, device) is None and layers.time(case, device) < _pass_time(case, device, own)
    return {"KERNEL": "layers" if apart else "pass"} | own


def _pass_config(case, device):
    """Few rows are shared by as large a cluster as leaves every block a multiprocessor; many take large tiles, because each tile reads all
    weights twice."""
    M = case.sizes["M"]
    shapes = [(16, cluster) for cluster in (8, 4, 2)] + [(rows, 1) for rows in (64, 32)]
    for rows, cluster in shapes:
        tiles, at_once = -(-M // rows), clusters_at_once(device, cluster)
        own = {"BLOCK_M": rows, "CLUSTER": cluster, "num_stages": 4}
        one_round = cluster > 1 and tiles <= at_once
        many = cluster == 1 and tiles >= 2 * at_once
        if (one_round or many) and _pass_fits(case, device, own) is None:
            return own
    return {"BLOCK_M": 16, "CLUSTER": 1, "num_stages": 2}


def _pass_time(case, device, config):
    """Microseconds that `pass` is expected to take."""
    (M, F, D), rows, cluster = case.size("M", "F", "D"), config["BLOCK_M"], config["CLUSTER"]
    all_layers = _step.layers_of(case)[0]
    rounds = math.ceil(math.ceil(M / rows) / clusters_at_once(device, cluster))
    weights = 2 * sum(K * N for K, N in all_layers) / cluster / WEIGHTS
    return rounds * (2 * len(all_layers) * LAYER + weights + rows / cluster * 1.5 * (F + 1) ** 2 * D / DOTS)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    if reason := not_one_of("KERNEL", config["KERNEL"], ("pass", "layers")):
        return reason
    if config["KERNEL"] == "layers" and (reason := layers.skip(case, device)):
        return reason
    return _pass_fits(case, device, config)


def _pass_fits(case, device, config):
    """The same of `pass`, whose tunables are of `update`, too."""
    rows, cluster, stages = config["BLOCK_M"], config["CLUSTER"], config["num_stages"]
    if reason := not_one_of("BLOCK_M", rows, (16,) if is_ieee(case) else (16, 32, 64)):
        return reason
    if reason := not_one_of("CLUSTER", cluster, (1, 2, 4, 8)) or not_one_of("num_stages", stages, range(2, 9)):
        return reason
    if cluster > 1 and device.capability < (9, 0):
        return "thread-block clusters need compute capability 9.0"
    return too_large(_pass_bytes(case, rows, cluster), device, STATIC_BYTES) or too_large(
        _update_bytes(stages), device, 16 * THREADS + STATIC_BYTES
    )


def _pitch(case):
    """Elements of a row in shared memory: the widest layer's, such that the rows that a warp reads at once lie in different banks."""
    return whole(max(map(max, _step.layers_of(case)[0])), 64) + 16


def _vector_bytes(case):
    """Shared memory for a sample's vectors."""
    F, D = case.size("F", "D")
    return 4 * (F + 1) * (whole(D, 16) + 4)


def _sums_bytes(rows):
    """Shared memory for the sums of all warps."""
    return WARPS * rows * (COLUMNS + 4) * 4


def _at_once(case, rows, cluster):
    """How many samples' vectors a block has at once."""
    return min(rows // cluster, max(1, _sums_bytes(rows) // _vector_bytes(case)))


def _pass_bytes(case, rows, cluster):
    places = 2 * rows * _pitch(case) * case.itemsize
    return places + max(_sums_bytes(rows), _at_once(case, rows, cluster) * _vector_bytes(case))


def _update_bytes(stages):
    return stages * 2 * SIDE * 128


def launches(case, variant, device, config):
    """`pass`, or the launches in its place, and `update`."""
    if config["KERNEL"] == "layers":
        return (*layers.launches(case, variant, device), _update(case, config, layers.head_blocks(case)))
    tiles = -(-case.sizes["M"] // config["BLOCK_M"])
    return _pass(case, variant, config), _update(case, config, tiles)


def _pass(case, variant, config):
    rows, cluster, dtype = config["BLOCK_M"], config["CLUSTER"], case.dtype
    arguments = TYPES[dtype], is_ieee(case), _step.hashing(variant) == "improved", rows // 16
    program = (
        instance(FILE, "pass", *arguments) if cluster == 1 else instance(FILE, "pass_cluster", *arguments, cluster)
    )
    dtypes = (
        dtype, "int64", "float32", "float32", "int64", "int32", "int32", *PARAMETERS, dtype, "float32", "int32", "float32", dtype,
    )  # fmt: skip
    own = *sizes(case), np.int32(_pitch(case)), np.int32(_at_once(case, rows, cluster))
    grid = -(-case.sizes["M"] // rows) * cluster
    return Launch(program, grid, THREADS, _pass_bytes(case, rows, cluster), dtypes=dtypes, sizes=own)


def _update(case, config, parts):
    """`update`, behind launches that leave so many `parts` of the loss."""
    M, F, D = case.size("M", "F", "D")
    of_layers = sum(-(-K // SIDE) * -(-N // SIDE) + -(-N // SIDE) for K, N in _step.layers_of(case)[0])
    of_tables = min(MOST_SCATTERING, -(-M * F * -(-D // 4) // THREADS))
    dtypes = case.dtype, *PARAMETERS, "float32", "float32", "int32", case.dtype, "float32", "float32"
    own = dlrm.LEARNING_RATE, parts, *sizes(case, _lends(config))
    program = instance(FILE, "update", TYPES[case.dtype], is_ieee(case), config["num_stages"])
    return Launch(
        program, of_layers + 1 + of_tables, THREADS, _update_bytes(config["num_stages"]), dtypes=dtypes, sizes=own
    )


def _lends(config):
    """Whether arrays between the launches may lie where gradients come later: of few rows memory is mostly outputs."""
    return config["KERNEL"] == "pass"


def build(case, variant, device, config):
    """call(dense (M, N0), ids (M, F), labels (M,), weights …) → loss, dvectors, tables, dW, db, W, b of each layer."""
    import torch

    *described, last = launches(case, variant, device, config)
    update, apart = last.bind(), config["KERNEL"] == "layers"
    before = layers.call(described, case) if apart else _passing(*described)
    (M, F, D), all_layers = case.size("M", "F", "D"), _step.layers_of(case)[0]
    T, parts, workspace = getattr(torch, case.dtype), last.sizes[1], between(case, _lends(config))[0]
    places, floats = gradients(case)

    def call(dense, ids, labels, *weights):
        given = dlrm.by_part(case, (dense, ids, *weights))
        tables, all_parameters = given.tables, parameters(given)

        def made(*shape, dtype=torch.float32):
            return dense.new_empty(shape, dtype=dtype)

        arrays, rows, losses = made(workspace, dtype=T), made(M * F + 1, dtype=torch.int32), made(parts)
        loss, dvectors, found = made(), made(M, F, D, dtype=T), made(floats)
        before(given, labels, arrays, found, rows, losses, dvectors)
        update(arrays, *all_parameters, found, tables, rows, dvectors, losses, loss, *last.sizes)
        outputs = [loss, dvectors, tables]
        for n, ((K, N), (at_W, at_b)) in enumerate(zip(all_layers, places, strict=True)):
            dW, db = found[at_W : at_W + K * N].view(K, N), found[at_b : at_b + N]
            outputs += [dW, db, *all_parameters[2 * n : 2 * n + 2]]
        return tuple(outputs)

    return chained(call)


def _passing(launch):
    """A function as `layers.call` returns it."""
    run = launch.bind()

    def call(given, labels, arrays, found, rows, losses, dvectors):
        run(
            given.dense, given.ids, labels, given.tables, given.offsets, *(given.prepared or (0, 0)), *parameters(given), arrays, found,
            rows, losses, dvectors, *launch.sizes,
        )  # fmt: skip

    return call
