"""fused_mlp in CUDA C++ (perceptron.cuh, perceptron_layers.cuh, hopper/perceptron.cuh and hopper/perceptron_few_rows.cuh describe the
algorithms): a launch for each layer, one launch, or two for four of them.

KERNEL says which: those of perceptrons.py, `layers`, `tensor`, `simt` and `few_rows`; `warpgroup` is one launch for Hopper, 16 bits and the widths that it
takes (`mlp_warpgroup`), and `three_and_one` two, of which the first is `warpgroup`'s (_cuda_three_and_one.py).

The backward modes have a launch for each layer forward, and several for each backward, with tiles of their own choice (_cuda_backward.py).
"""

from pathlib import Path

from fusebench.launchers import chained
from implementations._shared.cuda import perceptron_layers, perceptron_warpgroup, perceptrons
from implementations._shared.cuda.launch import unsupported
from implementations.fused_mlp import _cuda_backward as backward
from implementations.fused_mlp import _cuda_three_and_one as three_and_one

BACKEND = "torch"
FUSED = True
VARIANTS = {"default": ("hidden",)}
BACKWARD = {"default": ("hidden", "value", "dz")}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": "default", "case": "bottom", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "default", "case": "bottom_65536", "dtype": ("bfloat16", "float16"), "arch": "sm_90a",
     "expect": "spills=0,waits_in_groups=0,HGMMA=25"},  # 1, 8 and 16 of layers 1, 2 and 3
    {"variant": "default", "case": ("synthetic_65536", "synthetic_2048", "top"), "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,waits_in_groups=0,HGMMA=12"},
    {"variant": "default", "case": "bottom_2048", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,waits_in_groups=0,HGMMA=9"},
    # 4 × 4 products of each of four elements of K in the loop, and of one behind it
    {"variant": "default", "case": "bottom", "dtype": "float32", "precision": "ieee", "arch": ("sm_90a", "sm_100a"),
     "expect": "spills=0,FFMA>=80,LDS.128>=10,LDGSTS.128>=2"},
    {"variant": "default", "case": "wide", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,launches=2,HGMMA>=8,waits_in_groups=0"},
    {"variant": "default", "case": "wide", "dtype": "bfloat16", "arch": ("sm_80", "sm_100a"), "expect": "spills=0,launches=2,tensor_core>=1"},
    {"variant": "default", "case": "wide", "dtype": "float32", "precision": ("ieee", "tf32"), "arch": ("sm_80", "sm_90a"), "expect": "spills=0"},
    # the blocks of a cluster share K of the first layer, and of the last, which has one column
    {"variant": "default", "case": ("synthetic", "top_outer"), "dtype": "float32", "precision": "tf32", "arch": "sm_90a",
     "expect": "spills=0,waits_in_groups=0,launches=3,HGMMA=8"},
    # 13 columns of x are one slab, whose elements are all asked for before one is stored to shared memory
    {"variant": "default", "case": "bottom_2048", "dtype": "float32", "precision": "tf32", "arch": "sm_90a", "expect": "spills=0,waits_in_groups=0,launches=4"},
    {"variant": "default", "case": "bottom_2048", "dtype": "float32", "precision": "tf32", "arch": "sm_80", "expect": "spills=0,launches=4"},
    # layer by layer, dz and the products; and dW of the narrow ones, with the parts that are left of it
    {"variant": "default", "case": "bottom_2048", "dtype": "bfloat16", "mode": "backward", "arch": "sm_90a", "expect": "spills=0,launches=10,HGMMA>=12,waits_in_groups=0"},
    {"variant": "default", "case": "bottom_2048", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_100a"), "expect": "spills=0,launches=10,tensor_core>=1"},
    {"variant": "default", "case": "bottom_2048", "dtype": "float32", "precision": ("ieee", "tf32"), "mode": "forward_backward", "arch": "sm_90a", "expect": "spills=0"},
    {"variant": "default", "case": "odd", "dtype": "float32", "precision": "ieee", "mode": "backward", "arch": ("sm_80", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    "default": {
        "KERNEL": ("layers", "tensor", "simt", "few_rows", "warpgroup", "three_and_one"),
        "BLOCK_M": (4, 8, 16, 32, 64, 128), "BLOCK_N": (64, 128, 256), "CLUSTER": (1, 2, 4, 8),
        "num_stages": (2, 3, 4, 5, 6, 7, 8, 9),
        "PREFETCH": ("none", "next"),  # those of KERNEL=layers; and of layer 4 those of three_and_one
        ("layer1_KERNEL", "layer2_KERNEL", "layer3_KERNEL", "layer4_KERNEL"): ("tensor", "one_slab", "few_rows", "warpgroup", "split", "turned", "simt"),
        ("layer1_BLOCK_M", "layer2_BLOCK_M", "layer3_BLOCK_M", "layer4_BLOCK_M"): (16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256),
        ("layer1_BLOCK_N", "layer2_BLOCK_N", "layer3_BLOCK_N", "layer4_BLOCK_N"): (16, 32, 64, 128, 192, 256),
        ("layer1_CLUSTER", "layer2_CLUSTER", "layer3_CLUSTER", "layer4_CLUSTER"): (1, 2, 4, 8),
        ("layer1_num_stages", "layer2_num_stages", "layer3_num_stages", "layer4_num_stages"): (1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
    },
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")
LAYERS_FILE = backward.LAYERS_FILE


def skip(case, variant, device):
    return unsupported(device)  # layers of any width have launches of their own


def prepare(case, variant, x, *arrays):
    """W of (N, K) as (K, N), where Hopper's kernel could take the case; the W of layers as their launches want them; and those of the
    first three layers as Hopper's kernel does, where it could take these alone. Nothing in the backward modes: a step is about to change W."""
    if case.mode != "forward":
        return ()
    of_layers = *perceptron_layers.prepared(case, arrays), *three_and_one.prepared(case, arrays)
    return *perceptron_warpgroup.prepared(case, arrays), *of_layers


def config(case, variant, device):
    if case.mode != "forward":
        return {}
    if in_registers := perceptron_warpgroup.config(case, device):
        return in_registers
    choices = perceptrons.choices(case, device)
    _, layers = choices[0]  # for whoever sets KERNEL=layers
    if one := perceptron_warpgroup.of_tile(case, device):
        choices.append((perceptron_warpgroup.clocks(case, device, one), one))
    if two := three_and_one.config(case, device):
        choices.append((three_and_one.clocks(case, device, two), layers | two))
    return perceptrons.fastest(choices)


def _of_both(case, device, config):
    """A config with KERNEL=three_and_one, also where that was set alone."""
    return config if "layer4_KERNEL" in config else three_and_one.of_last(case, device) | config


def fits(case, variant, device, config):
    if case.mode != "forward":
        return None
    if config["KERNEL"] == "three_and_one":
        reason = three_and_one.no_such_case(case)
        return reason or three_and_one.fits(case, device, _of_both(case, device, config))
    if config["KERNEL"] == "warpgroup":
        return perceptron_warpgroup.fits(case, device, config)
    return perceptrons.fits(case, device, config)


def launches(case, variant, device, config):
    if case.mode != "forward":
        return backward.launches(case, device)
    if config["KERNEL"] == "three_and_one":
        return three_and_one.launches(FILE, LAYERS_FILE, case, device, _of_both(case, device, config))
    if config["KERNEL"] == "warpgroup":
        return (perceptron_warpgroup.launch(FILE, case, device, config),)
    return perceptrons.launches(FILE, LAYERS_FILE, case, device, config)


def build(case, variant, device, config):
    """call(x (M, N0), W1, b1, W2, b2, …, then what `prepare` made) → (M, N of the last layer)."""
    if case.mode != "forward":
        return chained(backward.build(case, device))
    described, count = launches(case, variant, device, config), case.sizes["LAYERS"]
    given, turned = 1 + 2 * count, count if perceptron_warpgroup.is_turned(case) else 0
    of_layers, more = len(perceptron_layers.prepared_layers(case)), three_and_one.is_turned(case)
    if config["KERNEL"] == "three_and_one":
        return chained(three_and_one.call(described, case))
    if config["KERNEL"] == "warpgroup":
        call, taken = perceptron_warpgroup.call(*described, case), given + turned
        return (lambda *arguments: call(*arguments[:taken])) if of_layers or more else call
    call, end = perceptrons.call(described, case, config), given + turned + of_layers
    if not (turned or more):
        return chained(call)
    return chained(lambda *arguments: call(*arguments[:given], *arguments[given + turned : end]))
