"""launch in Triton: one kernel, one launch."""

from implementations.launch._triton_kernels import TUNABLES, config, fits, launches  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ()}
EXPECT = (
    {"variant": "default", "case": "floor", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip


def build(case, variant, device, chosen):
    (launch,), N = launches(case, variant, device, chosen), case.sizes["N"]
    return launch.returning((N,), N=N)
