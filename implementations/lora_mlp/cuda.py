"""lora_mlp in CUDA C++: a launch for each layer with its adapter, the kernel of lora_linear's `fused` (_shared/cuda/lora.cuh).
In the backward modes the launches of lora_backward.cuh for each layer, with tiles of their own choice."""

from pathlib import Path

from implementations._shared.cuda import lora
from implementations._shared.cuda import lora_backward as backward
from implementations._shared.cuda.launch import in_turn
from implementations.lora_mlp import _layers

BACKEND = "torch"
FUSED = True
VARIANTS = {"default": ("scaled_xa", "hidden")}
BACKWARD = {"default": ("xa", "scaled_xa", "sum", "hidden", "dz", "dxa", "dhidden")}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (  # of kernels that other folders have too, which expect the same on all targets
    {"variant": "default", "case": "synthetic_2048", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,tensor_core>=1"},
)  # fmt: skip
TUNABLES = {  # as lora_linear has them, of each layer
    "default": {
        "layer1_BLOCK_M": (16, 64, 128), "layer1_BLOCK_N": (64, 128, 256), "layer1_num_stages": (2, 3, 4),
        "layer2_BLOCK_M": (16, 64, 128), "layer2_BLOCK_N": (64, 128, 256), "layer2_num_stages": (2, 3, 4),
        "layer3_BLOCK_M": (16, 64, 128), "layer3_BLOCK_N": (64, 128, 256), "layer3_num_stages": (2, 3, 4),
        "layer4_BLOCK_M": (16, 64, 128), "layer4_BLOCK_N": (64, 128, 256), "layer4_num_stages": (2, 3, 4),
    },
}  # fmt: skip
FILE = Path(__file__).with_suffix(".cu")
BACKWARD_FILE = Path(__file__).with_name("cuda_backward.cu")


def skip(case, variant, device):
    return _layers.skip(lora, case, device)


def config(case, variant, device):
    return _layers.config(lora, case, device) if case.mode == "forward" else {}


def fits(case, variant, device, config):
    return _layers.fits(lora, case, device, config) if case.mode == "forward" else None


def launches(case, variant, device, config):
    """A launch for each layer. What a layer writes, the next one reads. Backward those of the layers from the last, in
    forward_backward behind those of each that leave what these read."""
    found, layers = [], _layers.layers(case)
    if case.mode != "forward":
        kept = [launch for layer in layers for launch in backward.kept_launches(BACKWARD_FILE, layer, device)]
        behind = [
            launch
            for layer in reversed(layers)
            for launch in backward.launches(
                BACKWARD_FILE, layer, device, backward.config(layer, device), layer is not layers[-1]
            )
        ]
        return tuple(behind if case.mode == "backward" else [*kept, *behind])
    for number, layer in enumerate(layers, 1):
        found += lora.launches(FILE, layer, "fused", device, _layers.of_layer(number, config))
    return in_turn(*found)


def build(case, variant, device, config):
    """call(x (M, N0), scale (), W1, b1, A1, B1, W2, …) → (M, N of the last layer)."""
    if case.mode != "forward":
        layers = _layers.layers(case)
        of_layers = [
            backward.build(BACKWARD_FILE, layer, device, backward.config(layer, device), layer is not layers[-1])
            for layer in layers
        ]
        return _layers.differentiated(case, of_layers)
    sizes = [layer.size("M", "K", "N", "R") for layer in _layers.layers(case)]
    described = launches(case, variant, device, config)
    runs = [d.returning({6: (M, N)}, (M, K, N, R)) for d, (M, K, N, R) in zip(described, sizes, strict=True)]

    def call(x, scale, *arrays):
        for run, own in zip(runs, _layers.by_layer(arrays), strict=True):
            x = run(x, scale, *own)
        return x

    return call
