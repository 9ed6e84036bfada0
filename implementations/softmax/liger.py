"""softmax by Liger's Triton kernel: a program a row, the whole row in its registers, float32 inside."""

from liger_kernel.ops.softmax import LigerSoftmaxFunction

from implementations._shared.torch.autograd import in_mode

BACKEND = "torch"
REQUIRES = {"triton": "triton", "liger_kernel": "liger-kernel"}
WITHOUT_GPU = "unavailable"
VARIANTS = {"default": ()}
# Its backward kernel computes with what it loaded, without a cast: every product, sum and difference has 16 bits.
BACKWARD = {"default": ("probabilities", "weighted", "partial", "inner", "difference")}
LONGEST = 65536  # columns: what Liger's calculate_settings allows a program


def skip(case, variant, device):
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    if case.sizes["C"] > LONGEST:
        return f"Liger, up to 0.8.5, refuses rows of more than {LONGEST} columns"
    return None


def build(case, variant, device):
    """call(x (R, C)) → (R, C)."""
    return in_mode(case, LigerSoftmaxFunction.apply, (0,))
