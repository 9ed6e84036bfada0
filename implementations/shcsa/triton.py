"""shcsa in Triton: a Dense kernel and shared ones; _triton_kernels.py says which, and how many launches.

padded_attention, padded_softmax_v, padded_softmax, plain_softmax: the kernel that does what comes behind q, k and v.
"""

import torch

from implementations.shcsa._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {
    "padded_attention": ("bias", "probabilities"),
    "padded_softmax_v": ("bias", "scaled", "probabilities"),
    "padded_softmax": ("bias", "scaled", "probabilities"),
    "plain_softmax": ("bias", "scaled", "probabilities"),
}
EXPECT = (
    {"variant": ("padded_attention", "padded_softmax_v", "padded_softmax", "plain_softmax"), "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
)  # fmt: skip


def build(case, variant, device, chosen):
    """call(x (T, C), n_padd () int32, W, b (3 D,)) → (T, D)."""
    T, D = case.size("T", "D")
    dense, *others = [launch.bind() for launch in launches(case, variant, device, chosen)]

    def projected(x, W, b):
        q, k, v = (x.new_empty((T, D)) for _ in range(3))
        dense(x, W, b, q, k, v)
        return q, k, v

    def padded_attention(x, n_padd, W, b):
        q, k, v = projected(x, W, b)
        y = torch.empty_like(q)
        others[0](q, k, v, n_padd, y)
        return y

    def by_scores(x, n_padd, W, b):
        scores, *rest = others
        q, k, v = projected(x, W, b)
        att, y = x.new_empty((T, T)), torch.empty_like(q)
        scores(q, k, n_padd, att)
        if variant != "padded_softmax_v":
            softmax, rest = rest[0], rest[1:]
            weights = torch.empty_like(att)
            softmax(att, T if variant == "plain_softmax" else n_padd, weights)
            att = weights
        rest[0](att, v, n_padd, y)
        return y

    run = padded_attention if variant == "padded_attention" else by_scores

    def call(x, n_padd, W, b):
        if not (x.is_contiguous() and W.is_contiguous()):
            raise ValueError("x or W is not contiguous; pass x.contiguous()")
        return run(x, n_padd, W, b)

    return call
