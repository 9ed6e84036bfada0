"""fused_mlp in CUDA C++ (perceptron.cuh, hopper/perceptron.cuh, hopper/perceptron_few_rows.cuh and perceptron_few_rows_half.cuh describe the
algorithms): one launch, or one for each layer, or two for four of them.

KERNEL says which: a tile of rows is one block's (`mlp`), or, on GPUs that have them, shared by the blocks of a cluster (`mlp_cluster`), in
`tensor` and `simt`; `warpgroup` is Hopper's for 16 bits and the widths that it takes (`mlp_warpgroup`), `few_rows` that for rows so few that
latency is all there is (`mlp_few_rows`, `mlp_few_rows_half`). `layers` are as many launches as layers, for wide ones (_cuda_layers.py);
`three_and_one` are two, of which the first is `warpgroup`'s (_cuda_three_and_one.py).
"""

from pathlib import Path

from implementations._shared.cuda import perceptron, perceptron_few_rows_half, perceptron_warpgroup
from implementations._shared.cuda.launch import not_one_of, unsupported
from implementations._shared.cuda.perceptron_latency import comes_first, few_rows
from implementations._shared.gpu import is_ieee
from implementations.fused_mlp import _cuda_layers as layers
from implementations.fused_mlp import _cuda_three_and_one as three_and_one

BACKEND = "torch"
FUSED = True
VARIANTS = {"default": ("hidden",)}
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
)  # fmt: skip
TUNABLES = {
    "default": {
        "KERNEL": ("tensor", "warpgroup", "simt", "few_rows", "layers", "three_and_one"),
        "BLOCK_M": (4, 8, 16, 32, 64, 128), "BLOCK_N": (64, 128, 256), "CLUSTER": (1, 2, 4, 8),
        "num_stages": (2, 3, 4, 5, 6, 7, 8, 9),
        # those of KERNEL=layers; and of layer 4 those of three_and_one
        "PREFETCH": ("none", "next"),
        "layer1_KERNEL": ("tensor", "one_slab", "few_rows", "warpgroup", "split", "turned", "simt"),
        "layer1_BLOCK_M": (16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256),
        "layer1_BLOCK_N": (16, 32, 64, 128, 192, 256), "layer1_CLUSTER": (1, 2, 4, 8),
        "layer1_num_stages": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
        "layer2_KERNEL": ("tensor", "one_slab", "few_rows", "warpgroup", "split", "turned", "simt"),
        "layer2_BLOCK_M": (16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256),
        "layer2_BLOCK_N": (16, 32, 64, 128, 192, 256), "layer2_CLUSTER": (1, 2, 4, 8),
        "layer2_num_stages": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
        "layer3_KERNEL": ("tensor", "one_slab", "few_rows", "warpgroup", "split", "turned", "simt"),
        "layer3_BLOCK_M": (16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256),
        "layer3_BLOCK_N": (16, 32, 64, 128, 192, 256), "layer3_CLUSTER": (1, 2, 4, 8),
        "layer3_num_stages": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
        "layer4_KERNEL": ("tensor", "one_slab", "few_rows", "warpgroup", "split", "turned", "simt"),
        "layer4_BLOCK_M": (16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256),
        "layer4_BLOCK_N": (16, 32, 64, 128, 192, 256), "layer4_CLUSTER": (1, 2, 4, 8),
        "layer4_num_stages": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
    },
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")
# What one launch took on an H100 in what perceptron.py expects, by which it chooses among tiles, by the bytes of an element: 2.1 to 2.7 in eight shapes from
# 1×13-512-256-64-16 to 8192×256-1024-512-128 in bfloat16. In float32 what one launch
# took beside several on an H200: 30.8 and 37.6 µs with 1024 rows of 13-512-256-64-16, 47.9 and 42.1 with 2048, 90.2 and 83.4 with 8192
ONE_LAUNCH = {2: 2.4, 4: 3.0}
MOST_AT_ONCE = 256  # rows that KERNEL=few_rows takes first in IEEE float32: 14.3 µs on an H200, and by layers 14.0; 512 rows 22.9 and 16.8
# where 16 rows of the widest layers do not fit in shared memory: what a config has for those who set another KERNEL
TOO_WIDE = {"BLOCK_M": 16, "BLOCK_N": 128, "CLUSTER": 1, "num_stages": 2}
ODD = 2  # times that where hidden layers have no whole vectors: 37×13-131-67-5 in bfloat16 20.1 µs, with a launch for each layer 9.0


def skip(case, variant, device):
    return unsupported(device)  # layers of any width have launches of their own


def prepare(case, variant, x, *arrays):
    """W of (N, K) as (K, N), where Hopper's kernel could take the case; the W of layers as their launches want them; and those of the
    first three layers as Hopper's kernel does, where it could take these alone."""
    of_layers = *layers.prepared(case, arrays), *three_and_one.prepared(case, arrays)
    return *perceptron_warpgroup.prepared(case, arrays), *of_layers


def config(case, variant, device):
    few, many = few_rows(case).config(case, device), perceptron_warpgroup.config(case, device)
    by_layers = is_ieee(case) and case.sizes["M"] > MOST_AT_ONCE and layers.are_wide(case)
    if few and comes_first(case) and not by_layers and not (many and perceptron_warpgroup.is_small(case)):
        return few
    if many:
        return many
    in_one, apart = perceptron.candidates(case, device), layers.config(case, device)
    own = perceptron.config(case, device) if in_one else TOO_WIDE
    choices = []
    if in_one:
        one = ONE_LAUNCH[case.itemsize] * perceptron.clocks(case, device, perceptron.tile_of(own), own["CLUSTER"])
        one *= ODD if layers.are_filled(case) else 1
        choices.append((one, {"KERNEL": _own_kernel(case)} | own))
    if layers.are_wide(case) or not in_one:  # `own` is for those who set another KERNEL
        choices.append((layers.clocks(case, device, apart), {"KERNEL": "layers"} | own | apart))
        if in_registers := perceptron_warpgroup.of_tile(case, device):
            choices.append((perceptron_warpgroup.clocks(case, device, in_registers), apart | in_registers))
        if both := three_and_one.config(case, device):
            choices.append((three_and_one.clocks(case, device, both), apart | both))
    if few and case.itemsize == 2:
        choices.append((perceptron_few_rows_half.clocks(case, device, few), few))
    return min(choices, key=lambda choice: choice[0])[1]


def _of_layers(case, device, config):
    """A config with KERNEL=layers, also where that was set alone."""
    return config if "layer1_KERNEL" in config else layers.config(case, device) | config


def _of_both(case, device, config):
    """The same of KERNEL=three_and_one."""
    return config if "layer4_KERNEL" in config else three_and_one.of_last(case, device) | config


def fits(case, variant, device, config):
    if config["KERNEL"] == "layers":
        unused = (
            not_one_of(n, config[n], TUNABLES["default"][n]) for n in ("BLOCK_M", "BLOCK_N", "CLUSTER", "num_stages")
        )
        return next(filter(None, unused), None) or layers.fits(case, device, _of_layers(case, device, config))
    if config["KERNEL"] == "three_and_one":
        reason = three_and_one.no_such_case(case)
        return reason or three_and_one.fits(case, device, _of_both(case, device, config))
    if config["KERNEL"] == "warpgroup":
        return perceptron_warpgroup.fits(case, device, config)
    if config["KERNEL"] == "few_rows":
        return few_rows(case).fits(case, device, config)
    if config["KERNEL"] != _own_kernel(case):
        own = _own_kernel(case)
        return f"KERNEL={own} multiplies {case.dtype} in precision {case.precision}, not {config['KERNEL']}"
    return perceptron.fits(case, device, config)


def _own_kernel(case):
    return "simt" if is_ieee(case) else "tensor"


def launches(case, variant, device, config):
    if config["KERNEL"] == "layers":
        return layers.launches(case, device, _of_layers(case, device, config))
    if config["KERNEL"] == "three_and_one":
        return three_and_one.launches(FILE, case, device, _of_both(case, device, config))
    if config["KERNEL"] == "warpgroup":
        return (perceptron_warpgroup.launch(FILE, case, device, config),)
    if config["KERNEL"] == "few_rows":
        return (few_rows(case).launch(FILE, case, config),)
    return (perceptron.launch(FILE, case, config),)


def build(case, variant, device, config):
    """call(x (M, N0), W1, b1, W2, b2, …, then what `prepare` made) → (M, N of the last layer)."""
    described, count = launches(case, variant, device, config), case.sizes["LAYERS"]
    given, turned = 1 + 2 * count, count if perceptron_warpgroup.is_turned(case) else 0
    if config["KERNEL"] == "layers":
        call = layers.call(described, case)
        return (lambda *arguments: call(*arguments[:given], *arguments[given + turned :])) if turned else call
    if config["KERNEL"] == "three_and_one":
        return three_and_one.call(described, case)
    if config["KERNEL"] == "warpgroup":
        call, taken = perceptron_warpgroup.call(*described, case), given + turned
    else:
        call, taken = perceptron.call(*described, case), given
    of_layers = sum(layers.is_prepared(case, number) for number in range(1, count + 1))
    more = turned + given + of_layers + three_and_one.is_turned(case) > taken
    return (lambda *arguments: call(*arguments[:taken])) if more else call
