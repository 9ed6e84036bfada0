"""geglu in CUDA C++ (cuda.cu, which describes the algorithms): one launch."""

from pathlib import Path

from implementations._shared.cuda import matmul
from implementations._shared.cuda.launch import unsupported

BACKEND = "torch"
FUSED = True
VARIANTS = {"two_accumulators": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": "two_accumulators", "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_accumulators", "case": "large", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=1,waits_in_groups=0,STG.128>=4"},
    {"variant": "two_accumulators", "case": "batch", "precision": "tf32", "arch": "sm_90a",
     "expect": "spills=0,HGMMA=4,waits_in_groups=0"},
    {"variant": "two_accumulators", "case": "batch", "precision": "tf32", "arch": ("sm_80", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
)  # fmt: skip
TUNABLES = {
    "two_accumulators": {
        "KERNEL": ("tensor", "warpgroup", "simt"), "BLOCK_M": (16, 64, 128), "BLOCK_N": (64, 128, 256),
        "num_stages": (2, 3, 4), "CLUSTER": (1, 2, 4),
    },
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    return unsupported(device)


def prepare(case, variant, x, W, b):
    """W with K contiguous where the products want it so (`matmul.prepared_layout`), else nothing."""
    return matmul.prepared(case, W)


def config(case, variant, device):
    return matmul.config(matmul.prepared_case(case), device, matmul.TENSOR_TILES + matmul.WARPGROUP_TILES, parts=2)


def fits(case, variant, device, config):
    return matmul.fits(matmul.prepared_case(case), device, config, parts=2)


def launches(case, variant, device, config):
    arguments, own = [case.options["activation"].upper()], matmul.prepared_case(case)
    dtypes = (*(matmul.operand(case),) * 2, case.dtype, case.dtype)
    return (matmul.launch(FILE, variant, own, device, config, arguments, parts=2, dtypes=dtypes),)


def build(case, variant, device, config):
    """call(x (M, K), W, b (2N,), then what `prepare` made) → (M, N)."""
    M, K, N = case.size("M", "K", "N")
    (launch,) = launches(case, variant, device, config)
    call = launch.returning({3: (M, N)}, (M, K, N))
    if matmul.prepared_layout(case) == case.options["w_layout"]:
        return call
    return lambda x, W, b, prepared: call(x, prepared, b)
