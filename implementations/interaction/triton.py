"""interaction in Triton, one launch in either form: _triton_kernels.py says how they work."""

from implementations.interaction import _triton_backward as backward
from implementations.interaction import _triton_kernels as kernels
from implementations.interaction._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ()}
EXPECT = (
    {"variant": "default", "case": "main", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "default", "case": ("main", "large"), "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "default", "case": "main", "dtype": ("float32", "bfloat16"), "options": {"form": "outer"}, "mode": "backward",
     "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip
BACKWARD = {"default": ()}


def build(case, variant, device, chosen):
    """call(dense (M, D), sparse (M, F, D)) → (M, D + F (F + 1) / 2) or (M, ((F + 1) D)²)."""
    if case.mode == "forward":
        return _call(case, chosen)
    call, (launch,) = _call(case, kernels.forward_config(case)), backward.launches(case, chosen)
    run = launch.returning(case.size("M", "D"), case.size("M", "F", "D"))
    return lambda dense, sparse: (call(dense, sparse), (dense, sparse)), lambda inputs, dy: run(*inputs, dy)


def _call(case, chosen):
    (launch,) = kernels.forward_launches(case, chosen)
    M, F, D = case.size("M", "F", "D")
    width = D + F * (F + 1) // 2 if case.options["form"] == "dot" else ((F + 1) * D) ** 2
    return launch.returning((M, width))
