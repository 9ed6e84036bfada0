"""lora_mlp in CUDA C++ (_shared/cuda/lora.py): the kernels of lora_linear, layer by layer.

default         a launch for each layer, lora_linear's `fused`
two_launches    lora_linear's of that name, where x @ A of a layer is a launch of its own and the layer behind it is multiplied by warpgroups

In the backward modes the launches of lora_backward.cuh for each layer, with tiles of their own choice."""

from itertools import islice
from pathlib import Path

from fusebench.launchers import chained
from implementations._shared.cuda import lora
from implementations._shared.cuda import lora_backward as backward
from implementations._shared.cuda import lora_backward_choice as choice
from implementations._shared.cuda.launch import in_turn
from implementations.lora_mlp import _layers

BACKEND = "torch"
FUSED = True
VARIANTS = {"default": ("scaled_xa", "hidden"), "two_launches": ("xa", "scaled_xa", "hidden")}
BACKWARD = {"default": ("xa", "scaled_xa", "sum", "hidden", "dz", "dxa", "dhidden")}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (  # of kernels that other folders have too, which expect the same on all targets
    {"variant": "default", "case": "synthetic_2048", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_launches", "case": "block", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,HGMMA>=8,waits_in_groups=0"},
)  # fmt: skip
TUNABLES = {  # as lora_linear has them, of each layer
    "default": {
        ("layer1_BLOCK_M", "layer2_BLOCK_M", "layer3_BLOCK_M", "layer4_BLOCK_M"): (16, 64, 128),
        ("layer1_BLOCK_N", "layer2_BLOCK_N", "layer3_BLOCK_N", "layer4_BLOCK_N"): (64, 128, 256),
        ("layer1_num_stages", "layer2_num_stages", "layer3_num_stages", "layer4_num_stages"): (2, 3, 4),
    },
    "two_launches": {
        ("layer1_up_KERNEL", "layer2_up_KERNEL", "layer3_up_KERNEL", "layer4_up_KERNEL"): ("tensor", "few_rows", "warpgroup", "split", "turned", "simt"),
        ("layer1_up_BLOCK_M", "layer2_up_BLOCK_M", "layer3_up_BLOCK_M", "layer4_up_BLOCK_M"): (16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256),
        ("layer1_up_BLOCK_N", "layer2_up_BLOCK_N", "layer3_up_BLOCK_N", "layer4_up_BLOCK_N"): (16, 32, 64, 128, 192, 256),
        ("layer1_up_num_stages", "layer2_up_num_stages", "layer3_up_num_stages", "layer4_up_num_stages"): (1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
        ("layer1_up_CLUSTER", "layer2_up_CLUSTER", "layer3_up_CLUSTER", "layer4_up_CLUSTER"): (1, 2, 4, 8),
        ("layer1_up_SCHEDULE", "layer2_up_SCHEDULE", "layer3_up_SCHEDULE", "layer4_up_SCHEDULE"): ("tiles", "strips", "stream_k"),
    },
}  # fmt: skip
FILE = Path(__file__).with_suffix(".cu")
BACKWARD_FILE = Path(__file__).with_name("cuda_backward.cu")


def skip(case, variant, device):
    return _layers.skip(lora, case, variant, device)


def prepare(case, variant, x, scale, *arrays):
    """What lora_linear has of W and B of each layer: in rows of whole vectors, or turned for tf32, where warpgroups want them so."""
    if variant != "two_launches":
        return ()
    own = zip(_layers.layers(case), _layers.by_layer(arrays), strict=True)
    return tuple(array for layer, (W, _, _, B) in own for array in lora.prepared(layer, W, B))


def config(case, variant, device):
    return _layers.config(lora, case, variant, device) if case.mode == "forward" else {}


def fits(case, variant, device, config):
    return _layers.fits(lora, case, variant, device, config) if case.mode == "forward" else None


def launches(case, variant, device, config):
    """One launch for each layer, or two. What a layer writes, the next one reads. Backward those of the layers from the last, in
    forward_backward behind those of each that leave what these read."""
    found, layers = [], _layers.layers(case)
    if case.mode != "forward":
        kept = [launch for layer in layers for launch in backward.kept_launches(BACKWARD_FILE, layer, device)]
        behind = [
            launch
            for layer in reversed(layers)
            for launch in backward.launches(
                BACKWARD_FILE, layer, device, choice.config(layer, device), layer is not layers[-1]
            )
        ]
        return tuple(behind if case.mode == "backward" else [*kept, *behind])
    for number, layer in enumerate(layers, 1):
        found += lora.launches(FILE, layer, _layers.OF_LORA[variant], device, _layers.of_layer(number, config))
    # `down` begins when the layer before has ended, so that `up`, which may begin before its end, can read x at once
    return tuple(found) if variant == "two_launches" else in_turn(*found)


def build(case, variant, device, config):
    """call(x (M, N0), scale (), W1, b1, A1, B1, W2, …, then what `prepare` made) → (M, N of the last layer)."""
    if case.mode != "forward":
        layers = _layers.layers(case)
        of_layers = [
            backward.build(BACKWARD_FILE, layer, device, choice.config(layer, device), layer is not layers[-1])
            for layer in layers
        ]
        return chained(_layers.differentiated(case, of_layers))
    layers, described = _layers.layers(case), launches(case, variant, device, config)
    if variant == "two_launches":
        pairs = zip(layers, _layers.by_launches(variant, described), strict=True)
        runs = [lora.in_two_launches(layer, *own) for layer, own in pairs]
        prepared = [lora.prepared_count(layer) for layer in layers]
    else:
        sizes = [layer.size("M", "K", "N", "R") for layer in layers]
        runs = [d.returning({6: (M, N)}, (M, K, N, R)) for d, (M, K, N, R) in zip(described, sizes, strict=True)]
        prepared = [0] * len(runs)
    count = _layers.OF_A_LAYER * len(layers)

    def call(x, scale, *arrays):
        rest = iter(arrays[count:])
        for run, own, beside in zip(runs, _layers.by_layer(arrays[:count]), prepared, strict=True):
            x = run(x, scale, *own, *islice(rest, beside))
        return x

    return chained(call)
