"""shcsa in CUDA C++: cuda.cu has a Dense kernel, scores and a softmax, and includes flash.cuh's kernels.

padded_attention    dense → flash                                                      2 launches
padded_softmax_v    dense → scores → flash_of_scores                                   3
padded_softmax      dense → scores → softmax of what is visible → weights times v      4
plain_softmax       dense → scores, -inf where hidden → softmax → weights times v      4
"""

import dataclasses
import math
from pathlib import Path

from implementations._shared.cuda import attention, matmul
from implementations._shared.cuda.launch import TYPES, Plan, instance
from implementations._shared.gpu import rows_are_aligned

BACKEND = "torch"
VARIANTS = {
    "padded_attention": ("bias", "probabilities"),
    "padded_softmax_v": ("bias", "scaled", "probabilities"),
    "padded_softmax": ("bias", "scaled", "probabilities"),
    "plain_softmax": ("bias", "scaled", "probabilities"),
}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")
SCORES = attention.AttentionTile(1, 4, 2, 32)  # 64 × 64, as cuda.cu has it
LANES, VECTORS = 128, 8  # that hold a row of att in `softmax`, and how many vectors of it each


def skip(case, variant, device):
    if variant == "padded_attention":
        return attention.skip_flash(of_sizes(case, B=1, H=1, T=case.sizes["T"], D=case.sizes["D"]), device)
    return attention.skip(case, device)


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan.program for plan in plans(case, variant, device)]


def plans(case, variant, device):
    """What a call launches, in order."""
    T, C, D = case.size("T", "C", "D")
    dense = matmul.plan(FILE, "dense", of_sizes(case, M=T, K=C, N=3 * D), device)
    if variant == "padded_attention":
        return [dense, attention.flash(FILE, of_sizes(case, B=1, H=1, T=T, D=D), device)]
    whole = rows_are_aligned(case, T)
    program = instance(FILE, "scores", *attention.head(case), whole, variant == "plain_softmax")
    memory = (SCORES.rows + SCORES.tokens) * SCORES.pitch(case) + SCORES.rows * (SCORES.tokens + 8) * case.itemsize
    scores = Plan(program, (-(-T // SCORES.rows)) ** 2, SCORES.threads, memory)
    if variant == "padded_softmax_v":
        return [dense, scores, attention.flash_of_scores(FILE, case, device)]
    held = -(-T * case.itemsize // (16 * LANES))
    masked = variant == "padded_softmax"
    program = instance(FILE, "softmax", TYPES[case.dtype], whole, masked, held if held <= VECTORS else 0)
    values = attention.flash_of_scores(FILE, case, device, normalised=True)
    return [dense, scores, Plan(program, T, LANES), values]


def of_sizes(case, **sizes):
    """The case with the sizes that a shared choice of tiles goes by."""
    return dataclasses.replace(case, sizes=sizes)


def build(case, variant, device):
    """call(x (T, C), n_padd () int32, W, b (3 D,)) → (T, D)."""
    import numpy as np

    T, C, D = case.size("T", "C", "D")
    dense, *others = (plan.bind() for plan in plans(case, variant, device))
    scale = 1 / math.sqrt(D)
    attention_scale, scale = np.float32(scale * math.log2(math.e)), np.float32(scale)
    part = D * case.itemsize  # bytes from q to k, and from k to v

    def projected(x, W, b):
        qkv = x.new_empty((T, 3 * D))
        dense(x, W, b, qkv, T, C, 3 * D)
        return qkv, qkv.data_ptr()

    def padded_attention(x, n_padd, W, b):
        qkv, q = projected(x, W, b)
        y = x.new_empty((T, D))
        others[0](qkv, q + part, q + 2 * part, n_padd, y, 1, T, D, 3 * D, attention_scale)
        return y

    def by_scores(x, n_padd, W, b):
        scores, *softmax, last = others
        qkv, q = projected(x, W, b)
        att, y = x.new_empty((T, T)), x.new_empty((T, D))
        scores(qkv, q + part, n_padd, att, T, D, 3 * D, scale)
        for launch in softmax:
            weights = x.new_empty((T, T))
            launch(att, n_padd, weights, T)
            att = weights
        last(att, q + 2 * part, n_padd, y, T, D, 3 * D)
        return y

    run = padded_attention if variant == "padded_attention" else by_scores

    def call(x, n_padd, W, b):
        if not (x.is_contiguous() and W.is_contiguous()):
            raise ValueError("x or W is not contiguous; pass x.contiguous()")
        return run(x, n_padd, W, b)

    return call
