"""The kernels of a multilayer perceptron, the choice among them, and their launches. `case` is one of fused_mlp, or a part of a model's.

KERNEL=layers are as many launches as layers (perceptron_layers.py), which nearly all cases take. In one launch a tile of rows is one block's
(perceptron.cuh), or, on GPUs that have them, shared by the blocks of a cluster, in `tensor` and `simt`; `few_rows` is that for few rows in IEEE float32
(hopper/perceptron_few_rows.cuh).
"""

from dataclasses import replace

from implementations._shared.cuda import perceptron, perceptron_few_rows, perceptron_layers
from implementations._shared.cuda.launch import not_one_of, not_usual
from implementations._shared.gpu import usual_kernel

# Tunables of one launch, and the values that a config has for whoever sets another KERNEL than `layers`
IN_ONE = {
    "BLOCK_M": (4, 8, 16, 32, 64, 128), "BLOCK_N": (64, 128, 256), "CLUSTER": (1, 2, 4, 8), "num_stages": tuple(range(2, 10)),
}  # fmt: skip
# What one launch took in what perceptron.py expects, by which it chooses among tiles, by the bytes of an element: on an H100 2.1 to 2.7 in eight shapes from
# 1×13-512-256-64-16 to 8192×256-1024-512-128 in bfloat16, and on an H200 2.1 in 64-64-64 and 3.3 in 367-512-256-1; 3.5 in tf32 and 2.9 in IEEE float32
ONE_LAUNCH = {2: 2.8, 4: 3.0}
ODD = 2  # times that where hidden layers have no whole vectors: 37×13-131-67-5 in bfloat16 20.1 µs, with a launch for each layer 9.0
# Rows up to which KERNEL=few_rows may be faster than layers: 128×13-512-256-64-16 took an H200 8.8 µs, by layers 10.3; with 256 rows 14.3 and 15.8, with 512
# 23.1 and 16.5. Kernels like it for tf32 and 16 bits were slower than layers: 10.1 and 8.8 µs, 9.0 and 8.6
MOST_AT_ONCE = 256
# where 16 rows of the widest layers do not fit in shared memory: what a config has for those who set another KERNEL
TOO_WIDE = {"BLOCK_M": 16, "BLOCK_N": 128, "CLUSTER": 1, "num_stages": 2}


def of_pitch(case, pitch):
    """The case with as many columns of x as a row takes, by which a config is chosen."""
    return replace(case, sizes={**case.sizes, "N0": pitch or case.sizes["N0"]})


def config(case, device):
    """The config that is expected to be the fastest."""
    return fastest(choices(case, device))


def fastest(choices):
    """The config of the least clocks."""
    return min(choices, key=lambda choice: choice[0])[1]


def choices(case, device):
    """The configs of all kernels that can run the case, each behind the clocks that it is expected to take; `layers` first."""
    in_one, apart = perceptron.candidates(case, device), perceptron_layers.config(case, device)
    own = perceptron.config(case, device) if in_one else TOO_WIDE  # also for those who set another KERNEL than `layers`
    found = [(perceptron_layers.clocks(case, device, apart), {"KERNEL": "layers"} | own | apart)]
    if in_one:
        one = ONE_LAUNCH[case.itemsize] * perceptron.clocks(case, device, perceptron.tile_of(own), own["CLUSTER"])
        one *= ODD if perceptron_layers.are_filled(case) else 1
        found.append((one, {"KERNEL": usual_kernel(case)} | own))
    if case.sizes["M"] <= MOST_AT_ONCE and (few := perceptron_few_rows.config(case, device)):
        found.append((perceptron_few_rows.clocks(case, few), few))
    return found


def _completed(case, device, config):
    """A config with KERNEL=layers, also where that was set alone."""
    return config if "layer1_KERNEL" in config else perceptron_layers.config(case, device) | config


def fits(case, device, config):
    """Why a config cannot run, or None."""
    if config["KERNEL"] == "layers":
        unused = (not_one_of(name, config[name], known) for name, known in IN_ONE.items())
        reason = next(filter(None, unused), None)
        return reason or perceptron_layers.fits(case, device, _completed(case, device, config))
    if config["KERNEL"] == "few_rows":
        return perceptron_few_rows.fits(case, device, config)
    return not_usual(case, config["KERNEL"]) or perceptron.fits(case, device, config)


def launches(file, layers_file, case, device, config, pitch=None):
    """The launches of `layers_file` (perceptron_layers.cuh), or the one of `file`, which includes the other kernels. `pitch`, which few_rows does not
    take, is how many elements a row of x takes, N0 unless told otherwise; those past N0 are 0."""
    if config["KERNEL"] == "layers":
        config = _completed(of_pitch(case, pitch), device, config)
        return perceptron_layers.launches(layers_file, case, device, config, pitch)
    if config["KERNEL"] == "few_rows":
        return (perceptron_few_rows.launch(file, case, config),)
    return (perceptron.launch(file, case, config, pitch),)


def call(described, case, config, pitch=None):
    """A function of x (M, N0), W1, b1, W2, b2, … and what perceptron_layers.py has `prepared`, which returns (M, N of the last layer)."""
    if config["KERNEL"] == "layers":
        return perceptron_layers.call(described, case, pitch)
    run, given = perceptron.call(*described, case), 1 + 2 * case.sizes["LAYERS"]
    return (lambda *arguments: run(*arguments[:given])) if perceptron_layers.prepared_layers(case, pitch) else run
