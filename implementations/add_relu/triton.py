"""add_relu in Triton, one launch: _triton_kernels.py says how it works. `in_place` writes y where x was."""

from implementations.add_relu._triton_kernels import TUNABLES, config, fits, launches  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": (), "in_place": ()}
IN_PLACE = {"in_place": ("x",)}
EXPECT = (
    {"variant": ("default", "in_place"), "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0"},
)  # fmt: skip


def build(case, variant, device, chosen):
    """call(x (M, N), b (N,)) → (M, N); x itself where `in_place`."""
    (launch,) = launches(case, variant, device, chosen)
    M, N = case.size("M", "N")
    if variant != "in_place":
        return launch.returning((M, N), count=M * N)
    run = launch.bind()

    def call(x, b):
        if not (x.is_contiguous() and b.is_contiguous()):
            raise ValueError("x and b must be contiguous")
        run(x, b, M * N, x)
        return x

    return call
