"""dlrm_train in Triton: what a step in place launches, and the choice of tiles. The kernels are those of _triton_kernels.py.

    forward    a launch for each layer; `cross` between the perceptrons, which hashes, looks up and multiplies the vectors of a sample;
               `head`: the prediction's last layer, the loss and the gradient behind the layer below, whose rows it has at hand
    backward   a launch for each gradient behind a layer. Beside it in the same launch stands the update of the layer above, whose weights
               nobody needs any more: gradients, sums of biases and the step, which are far apart from each other otherwise
               `uncross` makes the gradients of a sample's vectors from its table rows, which `scatter` subtracts at the end

Each weight is read in float32 and cast where it is multiplied; what goes from launch to launch has the dtype of the case. Tiles have 32 rows at most:
one warpgroup computes wrongly with rows that start anywhere (fused_mlp), as those of 367 columns do.
"""

import triton

from implementations._shared import dlrm
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit
from implementations.dlrm_train import _step
from implementations.dlrm_train._step import layers_of
from implementations.dlrm_train._triton_kernels import (
    backward_layer,
    cross,
    forward_layer,
    head,
    scatter,
    uncross,
    update_layer,
)

VARIANT = "modulus_in_place"
TUNABLES = {
    "modulus_in_place": {"BLOCK_M": (16, 32), "BLOCK_N": (16, 32, 64), "BLOCK_K": (32, 64, 128), "num_warps": (1, 2, 4), "num_stages": (1, 2, 3, 4)},
}  # fmt: skip
MOST_VECTORS, MOST_VALUES = 64, 128  # of a sample in one tile
LOOKUPS, HEAD_ROWS = 32, 4  # of a program of `scatter` and of `head`


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    if reason := _step.skip(case, variant, device):
        return reason
    F, D = case.size("F", "D")
    if case.options["interaction"] == "outer":
        return "written for option.interaction=dot alone"
    if F + 1 > MOST_VECTORS or D > 2 * MOST_VALUES:
        return f"a sample's vectors are one tile: {MOST_VECTORS} of {2 * MOST_VALUES} values at most"
    return None


def config(case, variant, device):
    """The tunables: small tiles, because a batch of 128 has few of them."""
    large = case.sizes["M"] > 1024 or device.type == "cpu"
    return {
        "BLOCK_M": 32 if large else 16,
        "BLOCK_N": 64 if large else 32,
        "BLOCK_K": 64,
        "num_warps": 4 if large else 2,
        "num_stages": 3,
    }


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    sides = [config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")]
    shared = config["num_stages"] * 4 * (sides[0] + sides[1]) * sides[2]
    return misfit(device, config, ("BLOCK_M", "BLOCK_N", "BLOCK_K"), max(sides[0], sides[2]) * sides[1], shared)


def named_launches(case, variant, device, config):
    """The launches of a step by name: `layer0` …, `cross`, `head`, `back3` … (of the layer whose input it goes through), `uncross`, `update1` …,
    `scatter`, in their order."""
    (M, F, D), (layers, bottom) = case.size("M", "F", "D"), layers_of(case)
    pointer, made, last = TYPES[case.dtype], {}, len(layers) - 1
    BLOCK_M, BLOCK_N = config["BLOCK_M"], config["BLOCK_N"]
    precision = {"PRECISION": case.precision}
    updated_arrays = {"h2": pointer, "dz2": pointer, "W2": "*fp32", "b2": "*fp32", "W2_new": "*fp32", "b2_new": "*fp32"}

    def layer(n):
        K, N = layers[n]
        signature = {"h": pointer, "W": "*fp32", "b": "*fp32", "M": "i32", "y": pointer}
        options = {"K": K, "N": N, "RELU": n not in (bottom - 1, last), **precision}
        grid = (triton.cdiv(M, BLOCK_M) * triton.cdiv(N, BLOCK_N),)
        made[f"layer{n}"] = launch_with(config, forward_layer, signature, options, grid)

    def back(n, updated):
        K, N = layers[n]
        signature = {"h": pointer, "W": "*fp32", "dz": pointer, "M": "i32"} | updated_arrays
        signature |= {"dh": pointer, "dW": "*fp32", "db": "*fp32"}
        other = layers[updated]
        options = {"K": K, "N": N, "RELU": n not in (0, bottom), "K2": other[0], "N2": other[1], **precision}
        options |= {"RATE": dlrm.LEARNING_RATE}
        tiles = triton.cdiv(M, BLOCK_M) * triton.cdiv(K, BLOCK_N) + update_tiles(other)
        made[f"back{n}"] = launch_with(config, backward_layer, signature, options, (tiles,))

    def update(n):
        K, N = layers[n]
        signature = {"M": "i32"} | updated_arrays | {"dW": "*fp32", "db": "*fp32"}
        options = {"K2": K, "N2": N, **precision, "RATE": dlrm.LEARNING_RATE}
        made[f"update{n}"] = launch_with(config, update_layer, signature, options, (update_tiles(layers[n]),))

    def update_tiles(sizes):
        return triton.cdiv(sizes[0], BLOCK_N) * triton.cdiv(sizes[1], BLOCK_N)

    vectors = {
        "F": F,
        "D": D,
        "BLOCK_F": max(16, triton.next_power_of_2(F + 1)),
        "BLOCK_D": max(16, triton.next_power_of_2(D)),
    }
    one = {"num_warps": 1 if vectors["BLOCK_F"] * vectors["BLOCK_D"] <= 1024 else 4}
    ids = {"ids": "*i64", "tables": "*fp32", "offsets": "*i64"}
    for n in range(bottom):
        layer(n)
    made["cross"] = launch_with(one, cross, {"dense": pointer, **ids, "y": pointer}, {**vectors, **precision}, (M,))
    for n in range(bottom, last):
        layer(n)
    K = layers[last][0]
    head_options = {
        "K": K,
        "RELU": last > bottom,
        "BLOCK_M": HEAD_ROWS,
        "BLOCK_K": min(512, max(16, triton.next_power_of_2(K))),
    }
    made["head"] = launch_with(
        {"num_warps": 4}, head,
        {"h": pointer, "W": "*fp32", "b": "*fp32", "labels": "*fp32", "M": "i32", "dh": pointer, "dz": pointer, "losses": "*fp32"},
        head_options, (triton.cdiv(M, HEAD_ROWS),),
    )  # fmt: skip
    pending = [last]
    for n in range(last - 1, bottom - 1, -1):
        back(n, pending.pop(0))
        pending.append(n)
    made["uncross"] = launch_with(
        one, uncross, {"dense": pointer, **ids, "dy": pointer, "ddense": pointer, "dvectors": pointer}, {**vectors, **precision}, (M,)
    )  # fmt: skip
    for n in range(bottom - 1, 0, -1):
        back(n, pending.pop(0))
        pending.append(n)
    for n in (*pending, 0):
        update(n)
    made["scatter"] = launch_with(
        {"num_warps": 4}, scatter,
        {"ids": "*i64", "offsets": "*i64", "dvectors": pointer, "losses": "*fp32", "M": "i32", "count": "i32", "parts": "i32", "tables": "*fp32", "tables_new": "*fp32", "loss": "*fp32"},
        {"F": F, "D": D, "RATE": dlrm.LEARNING_RATE, "BLOCK": LOOKUPS, "BLOCK_D": vectors["BLOCK_D"]}, (triton.cdiv(M * F, LOOKUPS),),
    )  # fmt: skip
    return made


def launches(case, variant, device, config):
    """The launches of a call, in order."""
    return tuple(named_launches(case, variant, device, config).values())


def run_step(case, given, labels, run):
    """The outputs of a call. `run(name, inputs, overwritten, made)` is a launch: it takes inputs, then arrays that it overwrites, and
    returns these and the arrays that it makes, of the shapes and dtypes of `made`."""
    (M, F, D), (sizes, bottom) = case.size("M", "F", "D"), layers_of(case)
    last, weights = len(sizes) - 1, (*given.bottom, *given.top)
    W, b = list(weights[::2]), list(weights[1::2])
    count = len(sizes)
    dW, db, h, dz = ([None] * count for _ in range(4))
    ids = (given.ids, given.tables, given.offsets)

    def forward(n, x):
        h[n] = x
        return run(f"layer{n}", (x, W[n], b[n], M), (), [((M, sizes[n][1]), case.dtype)])[0]

    def launch(name, inputs, n, made=()):
        """A launch that updates layer n beside what it makes."""
        gradients = [(sizes[n], "float32"), (sizes[n][1:], "float32")]
        W[n], b[n], *found, dW[n], db[n] = run(name, (*inputs, h[n], dz[n]), (W[n], b[n]), [*made, *gradients])
        return found[0] if found else None

    def back(n, updated):
        return launch(f"back{n}", (h[n], W[n], dz[n], M), updated, [((M, sizes[n][0]), case.dtype)])

    x = given.dense
    for n in range(bottom):
        x = forward(n, x)
    dense = x
    (x,) = run("cross", (dense, *ids), (), [((M, sizes[bottom][0]), case.dtype)])
    for n in range(bottom, last):
        x = forward(n, x)
    h[last], parts = x, triton.cdiv(M, HEAD_ROWS)
    made = [((M, sizes[last][0]), case.dtype), ((M, 1), case.dtype), ((parts,), "float32")]
    dh, dz[last], losses = run("head", (x, W[last], b[last], labels, M), (), made)
    pending = [last]
    for n in range(last - 1, bottom - 1, -1):
        dz[n] = dh
        dh = back(n, pending.pop(0))
        pending.append(n)
    dz[bottom - 1], dvectors = run("uncross", (dense, *ids, dh), (), [((M, D), case.dtype), ((M, F, D), case.dtype)])
    for n in range(bottom - 1, 0, -1):
        dz[n - 1] = back(n, pending.pop(0))
        pending.append(n)
    for n in (*pending, 0):
        launch(f"update{n}", (M,), n)
    looked_up = (given.ids, given.offsets, dvectors, losses, M, M * F, parts)
    tables, loss = run("scatter", looked_up, (given.tables,), [((), "float32")])
    outputs = [loss, dvectors, tables]
    for n in range(count):
        outputs += [dW[n], db[n], W[n], b[n]]
    return tuple(outputs)
