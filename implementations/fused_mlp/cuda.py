"""fused_mlp in CUDA C++ (perceptron.cuh, hopper/perceptron.cuh and hopper/perceptron_few_rows.cuh describe the algorithms): one launch.

KERNEL says which: a tile of rows is one block's (`mlp`), or, on GPUs that have them, shared by the blocks of a cluster (`mlp_cluster`), in
`tensor` and `simt`; `warpgroup` is Hopper's for 16 bits and the widths that it takes (`mlp_warpgroup`), `few_rows` that for float32 and rows so
few that latency is all there is (`mlp_few_rows`).
"""

from pathlib import Path

from implementations._shared.cuda import perceptron, perceptron_few_rows, perceptron_warpgroup
from implementations._shared.gpu import is_ieee

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
)  # fmt: skip
TUNABLES = {
    "default": {
        "KERNEL": ("tensor", "warpgroup", "simt", "few_rows"),
        "BLOCK_M": (4, 8, 16, 32, 64, 128),
        "BLOCK_N": (64, 128, 256),
        "CLUSTER": (1, 2, 4, 8),
        "num_stages": (2, 3, 4, 5, 6, 7, 8, 9),
    },
}

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    return perceptron.skip(case, device)


def prepare(case, variant, x, *layers):
    """W of (N, K) as (K, N), where Hopper's kernel could take the case."""
    return perceptron_warpgroup.prepared(case, layers)


def config(case, variant, device):
    own = perceptron_warpgroup.config(case, device) or perceptron_few_rows.config(case, device)
    return own or {"KERNEL": _own_kernel(case)} | perceptron.config(case, device)


def fits(case, variant, device, config):
    if config["KERNEL"] == "warpgroup":
        return perceptron_warpgroup.fits(case, device, config)
    if config["KERNEL"] == "few_rows":
        return perceptron_few_rows.fits(case, device, config)
    if config["KERNEL"] != _own_kernel(case):
        own = _own_kernel(case)
        return f"KERNEL={own} multiplies {case.dtype} in precision {case.precision}, not {config['KERNEL']}"
    return perceptron.fits(case, device, config)


def _own_kernel(case):
    return "simt" if is_ieee(case) else "tensor"


def launches(case, variant, device, config):
    if config["KERNEL"] == "warpgroup":
        return (perceptron_warpgroup.launch(FILE, case, device, config),)
    if config["KERNEL"] == "few_rows":
        return (perceptron_few_rows.launch(FILE, case, config),)
    return (perceptron.launch(FILE, case, config),)


def build(case, variant, device, config):
    """call(x (M, N0), W1, b1, W2, b2, …, then what `prepare` made) → (M, N of the last layer)."""
    (described,) = launches(case, variant, device, config)
    if config["KERNEL"] == "warpgroup":
        return perceptron_warpgroup.call(described, case)
    call, given = perceptron.call(described, case), 1 + 2 * case.sizes["LAYERS"]
    return (lambda *arguments: call(*arguments[:given])) if perceptron_warpgroup.is_turned(case) else call
