"""fused_mlp in Triton, one launch: a tile of rows goes through all layers on chip. _shared/triton/perceptron.py says how."""

import torch

from fusebench.launchers import chained
from implementations._shared.recompute import recomputing
from implementations.fused_mlp import _triton_backward as backward
from implementations.fused_mlp._triton_kernels import TUNABLES, alone, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"default": ("hidden",), "recompute": ("hidden",)}
BACKWARD = {"default": ("hidden", "value", "dz"), "recompute": ("hidden", "value", "dz")}
EXPECT = (
    {"variant": "default", "case": "bottom", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": ("default", "recompute"), "case": "bottom", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip


def build(case, variant, device, chosen):
    """call(x (M, N0), W1, b1, W2, b2, …) → (M, N of the last layer)."""
    if case.mode != "forward":
        return chained(_differentiated(case, variant, device, chosen))
    (launch,) = launches(case, variant, device, chosen)
    M, layers = case.size("M", "LAYERS")
    return launch.returning((M, case.sizes[f"N{layers}"]), M=M)


def _differentiated(case, variant, device, chosen):
    """(forward, backward) of a launch for each layer and some more (_triton_backward.py)."""
    forwards = [launch.bind() for launch in backward.forward_launches(case, device)]
    last, layers = backward.backward_launches(case, chosen)
    last, bound = last and last.bind(), [(both.bind(), parts and parts.bind()) for both, parts in layers]
    M, widths = case.sizes["M"], backward.widths(case)

    def forward(x, *weights):
        values = [x]
        for run, (_, N), W, b in zip(forwards, widths, weights[::2], weights[1::2], strict=True):
            values.append(x.new_empty(M, N))
            run(values[-2], W, b, M, values[-1])
        return values[-1], (*values, *weights[::2])

    def gradient(residuals, dy):
        values, Ws = residuals[: len(widths) + 1], residuals[len(widths) + 1 :]
        dz, gradients = dy, []
        if last:
            dz = torch.empty_like(dy)
            last(values[-1], dy, dy.numel(), dz)
        for (run, add_up), x, W, number in zip(bound, values[-2::-1], Ws[::-1], range(len(widths), 0, -1), strict=True):
            dx, dW, db = torch.empty_like(x), torch.empty_like(W), dz.new_empty(dz.shape[1])
            if add_up:
                parts = dz.new_empty(chosen[f"layer{number}_SPLIT"], dW.numel() + db.numel(), dtype=torch.float32)
                run(dz, W, x, M, dx, parts)
                add_up(parts, dW, db)
            else:
                run(dz, W, x, M, dx, dW, db)
            dz, gradients = dx, [dW, db, *gradients]
        return dz, *gradients

    if variant == "recompute":
        return recomputing(alone(case, device).returning((M, widths[-1][1]), M=M), forward, gradient)
    return forward, gradient
