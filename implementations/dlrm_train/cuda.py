"""dlrm_train in CUDA C++: a step in place of two launches, which cuda.cu describes.

pass     a tile of BLOCK_M rows forward and back, by a cluster of CLUSTER blocks
update   all that sums over the batch: gradients of the layers and the step, the tables, the mean loss
"""

from pathlib import Path

import numpy as np

from implementations._shared import dlrm
from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, too_large, unsupported
from implementations._shared.gpu import is_ieee, multiprocessors
from implementations.dlrm_train import _step

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
)  # fmt: skip
TUNABLES = {
    ("modulus_two_launches", "improved_two_launches"): {"BLOCK_M": (16, 32, 64), "CLUSTER": (1, 2, 4, 8), "num_stages": (2, 3, 4, 6)},
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")
MOST, WARPS, THREADS, COLUMNS, SIDE = 7, 8, 256, 32, 64  # as in cuda.cu
STATIC_BYTES = 2048  # of shared memory, at most: the layers' own, and a float or two for each row
MOST_SCATTERING = 4096  # blocks of `update` that have table rows


def skip(case, variant, device):
    """Why no kernel here can run the case, or None."""
    if reason := unsupported(device) or _step.skip(case, variant, device):
        return reason
    if case.options["interaction"] == "outer":
        return "written for option.interaction=dot alone"
    M, F, V = case.size("M", "F", "V")
    if F * V >= 2**31 or M * F >= 2**31:
        return "look-ups and table rows are counted in 32 bits"
    return fits(case, variant, device, {"BLOCK_M": 16, "CLUSTER": 1, "num_stages": 2})


def prepare(case, variant, dense, ids, labels, *weights):
    from implementations._shared.torch.lookup import prepared_for_kernels

    given = dlrm.by_part(case, (dense, ids, *weights))
    return prepared_for_kernels(_step.hashing(variant), given.offsets, given.known)


def config(case, variant, device):
    """Few rows are shared by as large a cluster as leaves every block a multiprocessor; many take large tiles, because each tile reads all
    weights twice."""
    M = case.sizes["M"]
    shapes = [(16, cluster) for cluster in (8, 4, 2)] + [(rows, 1) for rows in (64, 32)]
    for rows, cluster in shapes:
        tiles = -(-M // rows) * cluster
        own = {"BLOCK_M": rows, "CLUSTER": cluster, "num_stages": 4}
        one_round = cluster > 1 and tiles <= multiprocessors(device)
        many = cluster == 1 and tiles >= 2 * multiprocessors(device)
        if (one_round or many) and fits(case, variant, device, own) is None:
            return own
    return {"BLOCK_M": 16, "CLUSTER": 1, "num_stages": 2}


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
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


def _whole(n, of):
    return -(-n // of) * of


def _pitch(case):
    """Elements of a row in shared memory: the widest layer's, such that the rows that a warp reads at once lie in different banks."""
    return _whole(max(max(sizes) for sizes in _step.layers_of(case)[0]), 64) + 16


def _vector_bytes(case):
    """Shared memory for a sample's vectors."""
    F, D = case.size("F", "D")
    return 4 * (F + 1) * (_whole(D, 16) + 4)


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


def _gradients(case):
    """Where each layer's dW and db begin in the array of all gradients, as whole vectors, and how many floats that has."""
    places, end = [], 0
    for K, N in _step.layers_of(case)[0]:
        places.append((end, end + _whole(K * N, 4)))
        end += _whole(K * N, 4) + _whole(N, 4)
    return places, end


def _between(case):
    """Of the arrays between the launches: their elements in memory of their own, the largest layer, and where the gradient of its weights begins, in
    whose place are the other layers' arrays, or -1 where these do not fit."""
    layers = _step.layers_of(case)[0]
    arrays = [case.sizes["M"] * (_whole(K, 16) + _whole(N, 16)) for K, N in layers]
    weights = [K * N for K, N in layers]
    largest = weights.index(max(weights))
    if (sum(arrays) - arrays[largest]) * case.itemsize > 4 * weights[largest]:
        return sum(arrays), largest, -1
    return arrays[largest], largest, _gradients(case)[0][largest][0]


def _sizes(case):
    """What both kernels have of the model's sizes."""
    layers, bottom = _step.layers_of(case)
    inputs = [K for K, _ in layers] + [0] * (MOST - len(layers))
    return (
        case.sizes["M"],
        len(layers),
        *inputs,
        *(np.int32(n) for n in (bottom, *case.size("F", "D"), *_between(case)[1:])),
    )


def launches(case, variant, device, config):
    """`pass` and `update`."""
    M, F, D = case.size("M", "F", "D")
    rows, cluster, stages = config["BLOCK_M"], config["CLUSTER"], config["num_stages"]
    T, dtype, simt = TYPES[case.dtype], case.dtype, is_ieee(case)
    arguments = T, simt, _step.hashing(variant) == "improved", rows // 16
    program = (
        instance(FILE, "pass", *arguments) if cluster == 1 else instance(FILE, "pass_cluster", *arguments, cluster)
    )
    parameters = ("float32",) * (2 * MOST)
    dtypes = (
        dtype,
        "int64",
        "float32",
        "float32",
        "int64",
        "int32",
        "int32",
        *parameters,
        dtype,
        "float32",
        "int32",
        "float32",
        dtype,
    )
    own = *_sizes(case), np.int32(_pitch(case)), np.int32(_at_once(case, rows, cluster))
    tiles = -(-M // rows)
    first = Launch(program, tiles * cluster, THREADS, _pass_bytes(case, rows, cluster), dtypes=dtypes, sizes=own)

    layers = _step.layers_of(case)[0]
    of_layers = sum(-(-K // SIDE) * -(-N // SIDE) + -(-N // SIDE) for K, N in layers)
    of_tables = min(MOST_SCATTERING, -(-M * F * -(-D // 4) // THREADS))
    dtypes = dtype, *parameters, "float32", "float32", "int32", dtype, "float32", "float32"
    own = dlrm.LEARNING_RATE, tiles, *_sizes(case)
    program = instance(FILE, "update", T, simt, stages)
    return first, Launch(program, of_layers + 1 + of_tables, THREADS, _update_bytes(stages), dtypes=dtypes, sizes=own)


def build(case, variant, device, config):
    """call(dense (M, N0), ids (M, F), labels (M,), weights …) → loss, dvectors, tables, dW, db, W, b of each layer."""
    import torch

    first, second = launches(case, variant, device, config)
    pass_rows, update = first.bind(), second.bind()
    (M, F, D), (layers, _) = case.size("M", "F", "D"), _step.layers_of(case)
    T, tiles, (workspace, *_) = getattr(torch, case.dtype), -(-M // config["BLOCK_M"]), _between(case)
    absent, (places, floats) = (0,) * (2 * (MOST - len(layers))), _gradients(case)

    def call(dense, ids, labels, *weights):
        given = dlrm.by_part(case, (dense, ids, *weights))
        tables, parameters = given.tables, (*given.bottom, *given.top)

        def made(*shape, dtype=torch.float32):
            return torch.empty(shape, dtype=dtype, device=dense.device)

        between, rows, losses = made(workspace, dtype=T), made(M * F + 1, dtype=torch.int32), made(tiles)
        loss, dvectors, gradients = made(), made(M, F, D, dtype=T), made(floats)
        prepared = given.prepared or (0, 0)
        pass_rows(
            dense, ids, labels, tables, given.offsets, *prepared, *parameters, *absent, between, gradients, rows, losses, dvectors, *first.sizes
        )  # fmt: skip
        update(between, *parameters, *absent, gradients, tables, rows, dvectors, losses, loss, *second.sizes)
        outputs = [loss, dvectors, tables]
        for n, ((K, N), (at_W, at_b)) in enumerate(zip(layers, places, strict=True)):
            dW, db = gradients[at_W : at_W + K * N].view(K, N), gradients[at_b : at_b + N]
            outputs += [dW, db, *parameters[2 * n : 2 * n + 2]]
        return tuple(outputs)

    return call
