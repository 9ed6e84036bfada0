"""shcsa in CUDA C++: a Dense kernel (cuda.cu) and those of its siblings.

padded_attention    dense → padded_attention's flash                                   2 launches
padded_softmax_v    dense → scores → padded_softmax_v's flash                          3
padded_softmax      dense → scores → softmax of what is visible → weights times v      4
plain_softmax       dense → scores, -inf where hidden → softmax → weights times v      4
"""

import dataclasses
import math
from pathlib import Path

from fusebench.backends.cuda import Program
from implementations import _tile
from implementations._attention import TYPES, Tile, flag, head, reason
from implementations.padded_attention import _cuda_plan as padded_attention
from implementations.padded_softmax_v import _cuda_plan as padded_softmax_v

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
SCORES = Tile(1, 4, 2, 32)  # 64 × 64, as cuda.cu has it
LANES, VECTORS = 128, 8  # that hold a row of att in `softmax`, and how many vectors of it each


def skip(case, variant, device):
    return reason(case, device)


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan.program for plan in plans(case, variant, device)]


def plans(case, variant, device):
    """What a call launches, in order."""
    T, C, D = case.size("T", "C", "D")
    dense = _tile.plan(FILE, "dense", dataclasses.replace(case, sizes={"M": T, "K": C, "N": 3 * D}), device)
    if variant == "padded_attention":
        return [dense, padded_attention.plan(of(case, B=1, H=1, T=T, D=D), "flash", device, whole=False)]
    inner = of(case, T=T, D=D)
    whole = flag(T * case.itemsize % 16 == 0)
    name = f"scores<{head(case, D * case.itemsize % 16 == 0)}, {whole}, {flag(variant == 'plain_softmax')}>"
    memory = (SCORES.rows + SCORES.tokens) * SCORES.pitch(inner) + SCORES.rows * (SCORES.tokens + 8) * case.itemsize
    planned = [dense, _tile.Plan(Program(FILE, name), (-(-T // SCORES.rows)) ** 2, SCORES.threads, memory)]
    if variant == "padded_softmax_v":
        return [*planned, padded_softmax_v.plan(inner, "flash", device)]
    held = -(-T * case.itemsize // (16 * LANES))
    name = (
        f"softmax<{TYPES[case.dtype]}, {whole}, {flag(variant == 'padded_softmax')}, {held if held <= VECTORS else 0}>"
    )
    softmax = _tile.Plan(Program(FILE, name), T, LANES)
    return [*planned, softmax, padded_softmax_v.plan(inner, "flash", device, ready=True)]


def of(case, **sizes):
    """The case of a sibling, for its choice of tiles."""
    return dataclasses.replace(case, sizes=sizes)


def build(case, variant, device):
    """call(x (T, C), n_padd () int32, W, b (3 D,)) → (T, D)."""
    import numpy as np

    from fusebench.backends.cuda import Launch

    T, C, D = case.size("T", "C", "D")
    planned = plans(case, variant, device)
    dense, *others = [Launch(p.program, p.grid, p.block, p.shared_memory) for p in planned]
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
