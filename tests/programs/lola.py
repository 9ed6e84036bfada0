"""lola: LayerNorm, linear, activation."""

from dataclasses import replace
from functools import partial

import numpy as np
from scipy.special import erf

from programs import Mistake, Program
from programs.arithmetic import (
    PRODUCTS,
    SUMS,
    TENSOR_CORES,
    TF32,
    activate,
    activate_exp,
    activate_otherwise,
    backwards,
    bfloat16_cut,
    columns,
    edit,
    first_again,
    flush,
    fp8,
    gelu_tanh,
    given,
    half,
    half_steps,
    half_sums,
    in_halves,
    is_16,
    is_32,
    is_ieee,
    is_tf32,
    keep,
    library,
    loses_nan,
    normed,
    of,
    pairwise,
    rank_one,
    rounded_to,
    same,
    sequential,
    store,
    tf32_cut,
    tf32_nearest,
    three_of_bfloat16,
    wide,
)  # fmt: skip

STAGED = ("layernorm", "product", "bias")
EPS = np.float32(1e-5)


def read(case, x, W, b):
    """All in float32, W as (K, N)."""
    return wide(x), columns(case, W), wide(b)


def rstd_of(variance, eps=EPS):
    return 1 / np.sqrt(variance + eps)


def fused(case, x, W, b, product=library, total=pairwise, eps=EPS, ddof=0, act=activate, bias=same, weights=same,
          rstd=rstd_of, columns=same):  # fmt: skip
    """Mean, then variance, then the product of normed values; nothing is stored but the end."""
    x, W, b = read(case, x, W, b)
    K = x.shape[1]
    deviation = x - total(x) / K
    normed = deviation * rstd(total(deviation**2) / np.float32(max(K - ddof, 1)), eps)
    return store(case, act(case.options["activation"], product(columns(normed), weights(W)) + bias(b)))


def welford(x):
    """Mean and variance, one column after the other."""
    mean, squares = np.zeros((2, len(x), 1), np.float32)
    for k in range(x.shape[1]):
        deviation = x[:, k : k + 1] - mean
        mean = mean + deviation / np.float32(k + 1)
        squares = squares + deviation * (x[:, k : k + 1] - mean)
    return mean, squares / np.float32(x.shape[1])


def chan(x, block=32):
    """Mean and variance of blocks, merged."""
    count, mean, squares = 0, *np.zeros((2, len(x), 1), np.float32)
    for part in (x[:, k : k + block] for k in range(0, x.shape[1], block)):
        own = pairwise(part) / np.float32(part.shape[1])
        apart, total = own - mean, count + part.shape[1]
        mean = mean + apart * np.float32(part.shape[1] / total)
        squares = squares + pairwise((part - own) ** 2) + apart * apart * np.float32(count * part.shape[1] / total)
        count = total
    return mean, squares / np.float32(count)


def by_moments(case, x, W, b, moments=welford, product=library, act=activate, refined=False, normed=same):
    """Mean and variance in one pass; 1/sqrt perhaps from 12 bits and a Newton step."""
    x, W, b = read(case, x, W, b)
    mean, variance = moments(x)
    rstd = rstd_of(variance)
    if refined:
        rough = rounded_to(rstd, 12)
        better = rough * (np.float32(1.5) - np.float32(0.5) * (variance + EPS) * rough * rough)
        rstd = np.where(np.isfinite(variance) & np.isfinite(rough), better, rstd)
    return store(case, act(case.options["activation"], product(normed((x - mean) * rstd), W) + b))


def normed_after(case, x, W, b):
    """The shifted row multiplied, then times 1/deviation."""
    x, W, b = read(case, x, W, b)
    mean, variance = chan(x)
    return store(case, activate(case.options["activation"], ((x - mean) @ W) * rstd_of(variance) + b))


def bias_first(case, x, W, b):
    """The sum begins with the bias, as some libraries do."""
    x, W, b = read(case, x, W, b)
    deviation = x - pairwise(x) / x.shape[1]
    normed = deviation * rstd_of(pairwise(deviation**2) / x.shape[1])
    begun = np.hstack([np.ones((len(x), 1), np.float32), normed])
    return store(case, activate(case.options["activation"], rank_one(begun, np.vstack([b, W]))))


def staged(case, x, W, b, product=library, total=pairwise, act=activate):
    """One operator after the other, each result stored."""
    x, W, b = read(case, x, W, b)
    deviation = x - total(x) / x.shape[1]
    normed = keep(case, deviation * rstd_of(total(deviation**2) / x.shape[1]))
    return store(case, act(case.options["activation"], keep(case, keep(case, product(normed, W)) + b)))


def each_step(case, x, W, b):
    return staged(case, x, W, b, act=partial(activate, step=partial(keep, case)))


def normed_in_storage(case, x, W, b, product=library):
    """The normed rows stored, for the tensor cores; bias and activation in float32."""
    x, W, b = read(case, x, W, b)
    deviation = x - pairwise(x) / x.shape[1]
    normed = keep(case, deviation * rstd_of(pairwise(deviation**2) / x.shape[1]))
    return store(case, activate(case.options["activation"], product(normed, W) + b))


def clamped(square, mean):
    return np.maximum(square - mean * mean, np.float32(0))


def one_pass(case, x, W, b, product=library, total=pairwise, block=16, shift=True, colsum=None, variance=clamped,
             after=True, act=activate, squares=same):  # fmt: skip
    """The identity: sums of the row, shifted by the mean of its first block, beside the product, and W's column sums."""
    x, W, b = read(case, x, W, b)
    K = x.shape[1]
    first = total(x[:, :block]) / min(K, block) if shift else np.float32(0)
    shifted = x - first
    mean = total(shifted) / K
    rstd = rstd_of(variance(total(squares(shifted * shifted)) / K, mean))
    colsum = total(W.T).T if colsum is None else colsum(W)
    if case.dtype == "float32":
        core = product(shifted, W) - mean * colsum
    else:  # tensor cores take x itself: 16 bits do not hold the shifted row
        core = product(x, W) - (mean + first) * colsum
    return store(case, act(case.options["activation"], core * rstd + b if after else (core + b) * rstd))


def in_half(case):
    """Where products may be summed in float16. relu makes a finite number of an overflow, which no budget has."""
    return (case.dtype == "float16" or is_ieee(case)) and case.options["activation"] != "relu"


def fast_variance(case, x, W, b, eps=EPS, ddof=0):
    """The variance as mean(x²) - mean(x)² of the row as it is; the normed rows, and what follows, are stored."""
    x, W, b = read(case, x, W, b)
    K = x.shape[1]
    mean = pairwise(x) / K
    variance = clamped(pairwise(x * x) / np.float32(max(K - ddof, 1)), mean)
    normed = keep(case, (x - mean) * rstd_of(variance, eps))
    return store(case, activate(case.options["activation"], keep(case, keep(case, normed @ W) + b)))


def row_by_row(case, x, W, b):
    """One row at a time, K in lanes, as a kernel for one token does it."""
    return np.concatenate([fused(case, row, W, b, backwards_dot) for row in x[:, None, :]])


def backwards_dot(a, b):
    return backwards((a * b.T)[:, None, :])[..., 0].T if a.shape[0] == 1 else a @ b


def flushed(case, x, W, b):
    return store(case, flush(wide(fused(case, flush(wide(x)), flush(wide(W)), flush(wide(b))))))


CORRECT = {
    **{f"fused, {n}": Program(partial(fused, product=p), (), is_ieee) for n, p in PRODUCTS.items()},
    **{f"fused, rows {n}": Program(partial(fused, total=t), (), is_ieee) for n, t in SUMS.items()},
    **{f"fused, {n}": Program(partial(fused, product=p), (), is_tf32) for n, p in TF32.items()},
    "fused, 16 bits": Program(fused, (), is_16),
    "fused, by exp": Program(partial(fused, act=activate_exp)),
    "Welford": Program(by_moments, (), is_ieee),
    "Welford, stored": Program(lambda case, *a: by_moments(case, *a, normed=partial(keep, case)), ("layernorm",), is_16),
    "moments merged": Program(partial(by_moments, moments=chan), (), is_ieee),
    "1/sqrt by a Newton step": Program(partial(by_moments, moments=chan, refined=True), (), is_ieee),
    "normed after the product": Program(normed_after, (), is_ieee),
    "fused, by sigmoid and a rational erf": Program(partial(fused, act=activate_otherwise)),
    "bias first": Program(bias_first, (), is_ieee),
    "row by row": Program(row_by_row, (), is_ieee),
    "staged": Program(staged, STAGED, lambda case: not is_tf32(case)),
    "staged, lanes": Program(partial(staged, total=SUMS["lanes"]), STAGED),
    **{f"staged, {n}": Program(partial(staged, product=p), STAGED, is_16) for n, p in TENSOR_CORES.items()},
    "staged, tf32": Program(partial(staged, product=of(tf32_nearest)), STAGED, is_tf32),
    "each step": Program(each_step, (*STAGED, "activation"), is_16),
    "normed in storage": Program(normed_in_storage, ("layernorm",), is_16),
    **{f"normed in storage, {n}": Program(partial(normed_in_storage, product=p), ("layernorm",), is_16)
       for n, p in TENSOR_CORES.items()},
    "one pass": Program(one_pass, ("one_pass",)),
    **{f"one pass, {n}": Program(partial(one_pass, product=p), ("one_pass",), is_ieee) for n, p in PRODUCTS.items()},
    **{f"one pass, {n}": Program(partial(one_pass, product=p), ("one_pass",), is_16) for n, p in TENSOR_CORES.items()},
    **{f"one pass, {n}": Program(partial(one_pass, product=p), ("one_pass",), is_tf32) for n, p in TF32.items()},
    "one pass, rows sequential": Program(partial(one_pass, total=sequential, block=64), ("one_pass",)),
    "one pass, float16 sums of 8": Program(partial(one_pass, product=half_steps), ("half_sums",), in_half),
    "one pass, float16 sums of 16": Program(partial(one_pass, product=partial(half_steps, step=16)), ("half_sums",), in_half),
    "fast variance": Program(fast_variance, ("fast_variance", *STAGED), lambda case: not is_tf32(case)),
    "subnormals flushed": Program(flushed, ("subnormals",), is_32),
}  # fmt: skip

LARGEST = {"M": 48, "K": 400, "N": 130}
LONG = "K"
ODD = {"M": 37, "K": 131, "N": 203}
SQUARE = {"M": 48, "K": 48, "N": 48}
RELU, ERF = {"activation": "relu"}, {"activation": "gelu_erf"}


def near_constant(arrays):
    """Rows of one value, so large that the rounding of mean(x²) - mean(x)² passes eps."""
    return arrays | {"x": (np.zeros_like(arrays["x"]) + arrays["x"][:, :1] * 64).astype(arrays["x"].dtype)}


def kept_blocks(a, block):
    """Zero past the last whole block."""
    return edit(a, np.s_[..., a.shape[-1] // block * block :], 0)


def padded_variance(case, x, W, b):
    """K padded to a block with zeros, from which the mean is taken off before they are squared."""
    x, W, b = read(case, x, W, b)
    K = x.shape[1]
    mean = pairwise(x) / K
    squares = pairwise((x - mean) ** 2) + (-K % 64) * mean**2
    return store(case, activate("gelu_tanh", (x - mean) * rstd_of(squares / K) @ W + b))


def mean_over_padding(case, x, W, b):
    x, W, b = read(case, x, W, b)
    deviation = x - pairwise(x) / (x.shape[1] + -x.shape[1] % 64)
    return store(case, activate("gelu_tanh", deviation * rstd_of(pairwise(deviation**2) / x.shape[1]) @ W + b))


def wrong_stride(case, x, W, b, stride):
    """Rows of x as if they were `stride` apart; past the end, the start again."""
    at = (np.arange(x.shape[0])[:, None] * stride + np.arange(x.shape[1])) % x.size
    return fused(case, x.ravel()[at], W, b)


def product_of_normed_in_bfloat16(a, b):
    return bfloat16_cut(a) @ b


def approximate(variance, eps):
    """1/sqrt from the 12 bits of a fast instruction, without the Newton step."""
    exact = 1 / np.sqrt(variance + eps)
    return (exact.view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)


def twice_rounded(case, x, W, b):
    """Stored through float16 first."""
    return store(case, fused(case, x, W, b).astype(np.float16))


def cut_off(case, x, W, b):
    """Stored by dropping bits instead of rounding: the upper half of a float32."""
    as_float32 = replace(case, dtype="float32")
    return store(case, bfloat16_cut(fused(as_float32, x, W, b)))


def whole(result, change):
    return lambda case, *inputs: change(result(case, *inputs))


def clipped(z):
    return np.tanh(np.clip(z, -3, 3))


def newton(steps):
    """1/sqrt by so many Newton steps from the bits of the argument."""

    def rstd(variance, eps):
        a = variance + eps
        y = (np.uint32(0x5F3759DF) - (a.view(np.uint32) >> np.uint32(1))).view(np.float32)
        for _ in range(steps):
            y = y * (np.float32(1.5) - np.float32(0.5) * a * y * y)
        return y

    return rstd


def erf_of_three_terms(z):
    """Abramowitz and Stegun 7.1.25: off by up to 2.5e-5."""
    t = 1 / (1 + np.float32(0.47047) * np.abs(z))
    terms = ((np.float32(0.7478556) * t - np.float32(0.0958798)) * t + np.float32(0.3480242)) * t
    return np.copysign(1 - terms * np.exp(-z * z), z)


def of_11_bits(a):
    mantissa, exponent = np.frexp(a)
    return np.ldexp(np.rint(mantissa * 2048) / 2048, exponent).astype(np.float32)


def in_parts_stored(case, x, W, b):
    """K split in four, each part stored."""
    return fused(case, x, W, b, product=lambda a, w: sum(keep(case, a[:, i::4] @ w[i::4]) for i in range(4)))


def gelu(**constants):
    return lambda name, z: gelu_tanh(z, **constants)


def with_(**hooks):
    return partial(fused, **hooks)


def passed(**hooks):
    return partial(one_pass, **hooks)


F, S, O, O16 = "fused, library", "staged", "one pass", "one pass, tensor core of 8"


def stored_before_bias(case, x, W, b):
    x, W, b = read(case, x, W, b)
    deviation = x - keep(case, pairwise(x) / x.shape[1])
    return store(
        case, activate(case.options["activation"], deviation * rstd_of(pairwise(deviation**2) / x.shape[1]) @ W + b)
    )


def part_in(change, part):
    """A product of which some of K is changed first."""
    return lambda a, b: library(edit(a, np.s_[:, part], change(a[:, part])), edit(b, part, change(b[part])))


MISTAKES = {
    "x by way of float16": Mistake(given(fused, 0, half), "fused, 16 bits", ODD, "bfloat16", inputs="wide"),
    "eps of 1e-6 in bfloat16": Mistake(with_(eps=np.float32(1e-6)), "fused, 16 bits", ODD, "bfloat16", inputs="small"),
    "normed by the largest of a row": Mistake(given(fused, 0, normed), F, ODD, inputs="zeros"),
    "sqrt(2/pi) of four digits": Mistake(with_(act=lambda name, z: gelu_tanh(z, root=0.7978)), F, ODD),
    "sqrt(2/pi) of four digits, float16": Mistake(with_(act=lambda name, z: gelu_tanh(z, root=0.7978)), "fused, 16 bits", ODD, "float16"),
    "sqrt(2/pi) of six digits": Mistake(with_(act=lambda name, z: gelu_tanh(z, root=0.797885)), F, ODD),
    "0.0447": Mistake(with_(act=lambda name, z: gelu_tanh(z, cubic=0.0447)), F, ODD),
    "0.0447, bfloat16": Mistake(with_(act=lambda name, z: gelu_tanh(z, cubic=0.0447)), "fused, 16 bits", ODD, "bfloat16"),
    "sqrt(1/2) of four digits": Mistake(
        with_(act=lambda name, z: np.float32(0.5) * z * (1 + erf(np.float32(0.7071) * z))), "fused, 16 bits", ODD, "bfloat16", options=ERF),
    "gelu 0 below -4": Mistake(with_(act=lambda name, z: np.where(z < -4, np.float32(0), gelu_tanh(z))), "fused, 16 bits", ODD, "float16"),
    "bias of the neighbour in the last column": Mistake(with_(bias=lambda b: edit(b, -1, b[-2])), "fused, 16 bits", ODD, "bfloat16"),
    "one k lost between blocks": Mistake(
        with_(product=lambda a, b: np.delete(a, 64, 1) @ np.delete(b, 64, 0)), "fused, 16 bits", ODD, "bfloat16"),
    "one block of W in 8 bits": Mistake(
        with_(weights=lambda W: edit(W, np.s_[32:48], fp8(W[32:48] * 16) / 16)), "fused, 16 bits", ODD, "bfloat16"),
    "tf32 in 8 of K": Mistake(with_(product=part_in(tf32_nearest, slice(0, 8))), F, ODD),
    "tf32 in the last 3 of K": Mistake(with_(product=part_in(tf32_cut, slice(-3, None))), F, ODD),
    "a partial sum in float16": Mistake(
        with_(product=lambda a, b: wide((a[:, :64] @ b[:64]).astype(np.float16)) + a[:, 64:] @ b[64:]), F, ODD),
    "mean without the last": Mistake(with_(total=lambda a: pairwise(a[:, :-1])), "fused, 16 bits", ODD, "float16"),
    "mean stored, not declared": Mistake(stored_before_bias, "fused, 16 bits", ODD, "bfloat16"),
    "last row that of the row before": Mistake(whole(fused, lambda y: edit(y, -1, y[-2])), "fused, 16 bits", ODD, "float16"),
    "bias before the division": Mistake(passed(after=False), O, ODD),
    "bias forgotten": Mistake(with_(bias=np.zeros_like), F, ODD),
    "bias one column off": Mistake(with_(bias=lambda b: np.roll(b, 1)), F, ODD),
    "bias by row": Mistake(with_(bias=lambda b: b[:, None]), F, SQUARE),
    "bias twice in the last 16 columns": Mistake(
        with_(bias=lambda b: edit(b, np.s_[-16:], 2 * b[-16:])), "fused, 16 bits", ODD, "bfloat16"),
    "last K missing where a block of 64 has one": Mistake(
        with_(columns=lambda n: edit(n, np.s_[:, 128:], 0)), F, ODD | {"K": 129}),
    "1/sqrt by one Newton step": Mistake(with_(rstd=newton(1)), "fused, 16 bits", ODD, "bfloat16"),
    "1/sqrt by two Newton steps": Mistake(with_(rstd=newton(2)), F, ODD),
    "first row of a tile normed by the row before": Mistake(
        with_(rstd=lambda v, eps: edit(rstd_of(v), np.s_[16], rstd_of(v)[15])), "fused, 16 bits", ODD, "float16"),
    "erf of three terms": Mistake(
        with_(act=lambda name, z: z / 2 * (1 + erf_of_three_terms(z * np.float32(0.70710678)))), "fused, 16 bits", ODD,
        "bfloat16", options=ERF),
    "tanh of 11 bits": Mistake(with_(act=gelu(tanh=lambda u: of_11_bits(np.tanh(u)))), "fused, 16 bits", ODD, "bfloat16"),
    "parts of K stored, bfloat16": Mistake(in_parts_stored, "fused, 16 bits", ODD, "bfloat16"),
    "bias added twice": Mistake(with_(bias=lambda b: 2 * b), F, ODD),
    "last row missing": Mistake(whole(fused, lambda y: edit(y, -1, 0)), F, ODD),
    "last column missing": Mistake(whole(fused, lambda y: edit(y, np.s_[:, -1], 0)), F, ODD),
    "rows past the last whole block missing": Mistake(whole(fused, lambda y: edit(y, np.s_[32:], 0)), F, ODD),
    "last K missing": Mistake(with_(columns=lambda a: edit(a, np.s_[:, -1], 0)), F, ODD),
    "last K-block missing": Mistake(with_(columns=lambda a: kept_blocks(a, 64)), F, ODD),
    "first K-block twice": Mistake(with_(columns=lambda a: np.hstack([2 * a[:, :32], a[:, 32:]])), F, ODD),
    "K-block missing from the statistics": Mistake(with_(total=lambda a: pairwise(a[:, :128])), F, ODD),
    "K-block missing from the column sums": Mistake(passed(colsum=lambda W: W[:128].sum(axis=0)), O, ODD),
    "eps missing": Mistake(with_(eps=np.float32(0)), F, ODD, inputs="subnormal"),
    "eps missing, rows of one value": Mistake(with_(eps=np.float32(0)), F, ODD, inputs="equal"),
    "eps 1e-6": Mistake(with_(eps=np.float32(1e-6)), F, ODD),
    "eps 1e-6, float16": Mistake(with_(eps=np.float32(1e-6)), "fused, 16 bits", ODD, "float16", inputs="subnormal"),
    "eps outside the root": Mistake(with_(rstd=lambda v, eps: 1 / (np.sqrt(v) + eps)), F, ODD),
    "eps 1e-3": Mistake(with_(eps=np.float32(1e-3)), F, ODD),
    "unbiased variance": Mistake(with_(ddof=1), F, ODD),
    "unbiased variance, bfloat16": Mistake(with_(ddof=1), "fused, 16 bits", ODD, "bfloat16"),
    "standard deviation for its inverse": Mistake(with_(rstd=lambda v, eps: np.sqrt(v + eps)), F, ODD, inputs="large_mean"),
    "1/sqrt of 12 bits": Mistake(with_(rstd=approximate), F, ODD),
    "mean not taken off": Mistake(passed(colsum=lambda W: 0 * W[0]), O, ODD),
    "mean over padded K": Mistake(mean_over_padding, F, ODD),
    "variance over padded K": Mistake(padded_variance, F, ODD),
    "negative variance to NaN": Mistake(
        passed(shift=False, variance=lambda square, mean: square - mean * mean), "one pass, rows sequential", ODD, "float16",
        change=near_constant),
    "negative variance to NaN, float32": Mistake(
        passed(shift=False, variance=lambda square, mean: square - mean * mean), O, ODD, inputs="equal_large"),
    "no shift: squares cancel": Mistake(passed(shift=False), O, ODD, inputs="large_mean"),
    "no shift, tf32": Mistake(passed(shift=False, product=of(tf32_nearest)), "one pass, tf32 nearest", ODD, precision="tf32",
                              inputs="large_mean"),
    "column sums in float16": Mistake(passed(colsum=lambda W: in_halves(W.T).T), O, ODD, "float16", inputs="large_mean"),
    "column sums in bfloat16": Mistake(passed(colsum=lambda W: bfloat16_cut(W.sum(axis=0))), O, ODD, "bfloat16",
                                       inputs="large_mean"),
    "squares in float16": Mistake(passed(squares=lambda a: wide(a.astype(np.float16))), O, ODD),
    "statistics in float16": Mistake(with_(total=in_halves), "fused, 16 bits", ODD, "float16"),
    "erf for tanh": Mistake(with_(act=lambda name, z: activate("gelu_erf", z)), F, ODD),
    "tanh for erf": Mistake(with_(act=lambda name, z: activate("gelu_tanh", z)), F, ODD, options=ERF),
    "tanh for erf, bfloat16": Mistake(with_(act=lambda name, z: activate("gelu_tanh", z)), "fused, 16 bits", ODD, "bfloat16",
                                      options=ERF),
    "no activation": Mistake(with_(act=lambda name, z: z), F, ODD),
    "activation twice": Mistake(with_(act=lambda name, z: activate(name, activate(name, z))), F, ODD),
    "0.44715 for 0.044715": Mistake(with_(act=gelu(cubic=0.44715)), F, ODD),
    "sqrt(2/pi) of three digits": Mistake(with_(act=gelu(root=0.798)), F, ODD),
    "tanh cut off at 3": Mistake(with_(act=gelu(tanh=clipped)), F, ODD),
    "tanh by exponentials that overflow": Mistake(
        with_(act=gelu(tanh=lambda u: (np.exp(2 * u) - 1) / (np.exp(2 * u) + 1))), F, ODD, inputs="large"),
    "tanh in float16": Mistake(with_(act=gelu(tanh=lambda z: wide(np.tanh(z.astype(np.float16))))), F, ODD),
    "sigmoid form of gelu": Mistake(with_(act=lambda name, z: z / (1 + np.exp(-1.702 * z))), "fused, 16 bits", ODD, "bfloat16"),
    "relu loses NaN": Mistake(with_(act=loses_nan), F, ODD, options=RELU, inputs="nan"),
    "NaN made 0": Mistake(whole(fused, np.nan_to_num), F, ODD, inputs="nan"),
    "leaky relu": Mistake(with_(act=lambda name, z: np.where(z > 0, z, np.float32(0.01) * z)), F, ODD, options=RELU),
    "float16 sums of each term where a step has 8": Mistake(
        passed(product=half_sums), "one pass, float16 sums of 8", ODD, "float16"),
    "bfloat16 operands of float16 sums": Mistake(passed(product=of(bfloat16_cut, half_steps)), "one pass, float16 sums of 8", ODD),
    "float16 sums that are not declared": Mistake(passed(product=half_steps), O16, ODD, "float16"),
    "float16 sums that are not declared, float32": Mistake(passed(product=half_steps), O, ODD),
    "fast variance that is not declared": Mistake(fast_variance, S, ODD, inputs="large_mean"),
    "fast variance, eps 1e-3": Mistake(
        lambda case, *a: fast_variance(case, *a, eps=np.float32(1e-3)), "fast variance", ODD),
    "fast variance, unbiased": Mistake(lambda case, *a: fast_variance(case, *a, ddof=1), "fast variance", ODD),
    "float16 accumulation": Mistake(with_(product=half_sums), "fused, 16 bits", ODD, "float16"),
    "float16 accumulation of float32": Mistake(with_(product=half_sums), F, ODD),
    "tf32 where ieee was asked": Mistake(with_(product=of(tf32_cut)), F, ODD),
    "nearest tf32 where ieee was asked": Mistake(with_(product=of(tf32_nearest)), F, ODD),
    "tf32 weights where ieee was asked": Mistake(with_(weights=tf32_nearest), F, ODD),
    "bfloat16 where tf32 was asked": Mistake(with_(product=of(bfloat16_cut)), "fused, tf32 cut off", ODD, precision="tf32"),
    "three products of bfloat16 where ieee was asked": Mistake(with_(product=three_of_bfloat16), F, ODD),
    "normed rows in 8 bits": Mistake(with_(columns=fp8), "fused, 16 bits", ODD, "bfloat16"),
    "weights in 8 bits": Mistake(with_(weights=lambda W: fp8(W * 16) / 16), "fused, 16 bits", ODD, "float16"),
    "normed rows cut to bfloat16": Mistake(with_(product=product_of_normed_in_bfloat16), "fused, 16 bits", ODD, "bfloat16"),
    "partial sums stored, float16": Mistake(
        lambda case, *a: fused(case, *a, product=lambda p, q: keep(case, p[:, :64] @ q[:64]) + p[:, 64:] @ q[64:]),
        "fused, 16 bits", ODD, "float16"),
    "stored on the way but not declared": Mistake(staged, "fused, 16 bits", ODD, "bfloat16"),
    "stored on the way but not declared, float16": Mistake(staged, "fused, 16 bits", ODD, "float16"),
    "stored through float16": Mistake(twice_rounded, F, ODD),
    "bits dropped at the end": Mistake(cut_off, "fused, 16 bits", ODD, "bfloat16"),
    "zeros": Mistake(whole(fused, np.zeros_like), F, ODD),
    "one element a part in ten thousand off": Mistake(
        whole(fused, lambda y: edit(y, (3, 5), y[3, 5] * np.float32(1.0001))), F, ODD),
    "one element without its last K": Mistake(
        lambda case, x, W, b: edit(fused(case, x, W, b), (3, 5), fused(case, x, edit(W, -1, 0), b)[3, 5]), F, ODD),
    "all a part in a million off": Mistake(whole(fused, lambda y: y * np.float32(1 + 1e-6)), F, ODD),
    "columns shifted": Mistake(whole(fused, lambda y: np.roll(y, 1, axis=1)), F, ODD),
    "columns of a tile swapped": Mistake(whole(fused, lambda y: y[:, np.arange(y.shape[1]) ^ 1]), F, SQUARE),
    "rows the other way round": Mistake(lambda case, x, W, b: fused(case, x[::-1], W, b), F, ODD),
    "last tile of rows from the tile before": Mistake(whole(fused, lambda y: edit(y, np.s_[32:], y[16:21])), F, ODD),
    "transposed square output": Mistake(whole(fused, lambda y: y.T.copy()), F, SQUARE),
    "W transposed": Mistake(lambda case, x, W, b: fused(case, x, W.T.reshape(W.shape), b), F, ODD),
    "layout of W ignored": Mistake(lambda case, x, W, b: fused(case, x, W.T, b), F, SQUARE, options={"w_layout": "nk"}),
    "stride one too long": Mistake(lambda case, x, W, b: wrong_stride(case, x, W, b, x.shape[1] + 1), F, ODD),
    "stride of N": Mistake(lambda case, x, W, b: wrong_stride(case, x, W, b, W.shape[1]), F, ODD),
    "first output again": Mistake(first_again(fused), F, ODD, calls=2),
}  # fmt: skip
