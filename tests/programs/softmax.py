"""softmax of rows, and what the kernels with a softmax inside share."""

import itertools

import ml_dtypes
import numpy as np

from programs import Mistake, Program
from programs.arithmetic import (
    SUMS,
    edit,
    first_again,
    flush,
    fp8,
    given,
    half,
    in_halves,
    is_16,
    is_32,
    keep,
    lanes,
    pairwise,
    rounded_to,
    same,
    store,
    wide,
)

LOG2E = np.float32(1.4426950408889634)
STEPS = ("shifted", "exponentials", "total", "inverse")


def highest(scores):
    """The row's maximum, NaN if it has one; 0 where all is -inf, so that the difference is -inf and not NaN."""
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    return np.where(np.isneginf(top), np.float32(0), top)


def exp2(a):
    return np.exp2(a * LOG2E)


def softmax(scores, total=pairwise, exp=np.exp, top=highest, inverse=False):
    """Softmax over the last axis of float32 scores; what is hidden is -inf. A row of nothing but -inf is 0/0: NaN."""
    exponentials = exp(scores - top(scores))
    if inverse:
        return exponentials * (1 / total(exponentials))
    return exponentials / total(exponentials)


def online(scores, block=32, values=None, exp=np.exp, rescale=True, safe=True, skipped=0, least=-np.inf):
    """One pass in blocks, what is summed so far scaled down whenever the maximum rises; with `values`, the weighted values."""
    top = np.full((*scores.shape[:-1], 1), least, np.float32)
    total, weighted = np.zeros_like(top), 0
    for begin in range(0, scores.shape[-1] - skipped, block):
        part = scores[..., begin : begin + block]
        raised = np.maximum(top, part.max(axis=-1, keepdims=True))
        finite = np.where(np.isneginf(raised), np.float32(0), raised) if safe else raised
        shrink = exp(top - finite) if rescale else np.float32(1)
        exponentials = exp(part - finite)
        total = total * shrink + pairwise(exponentials)
        if values is not None:
            weighted = weighted * shrink + exponentials @ values[..., begin : begin + block, :]
        top = raised
    if values is not None:
        return weighted / total
    return exp(scores - np.where(np.isneginf(top), np.float32(0), top)) / total


def merged(scores, parts=3):
    """Parts of the row apart, each with its own maximum, and their sums merged."""
    ends = np.linspace(0, scores.shape[-1], min(parts, scores.shape[-1]) + 1).astype(int)
    top, total = highest(scores), 0
    for part in (scores[..., i:j] for i, j in itertools.pairwise(ends)):
        own = highest(part)
        total = total + pairwise(np.exp(part - own)) * np.exp(np.minimum(own, top) - top)
    return np.exp(scores - top) / total


def seldom_raised(scores, block=16, values=None, by=8.0, weighed=same):
    """One pass in blocks; the maximum is raised, and what is summed scaled down, only where it rises by more than `by`."""
    top = np.full((*scores.shape[:-1], 1), -np.inf, np.float32)
    total, weighted = np.zeros_like(top), 0
    for begin in range(0, scores.shape[-1], block):
        part = scores[..., begin : begin + block]
        most = part.max(axis=-1, keepdims=True)
        top_before, much = top, np.isnan(most) | (most > top + np.float32(by)) | np.isneginf(top)
        top = np.where(much, np.maximum(top, most), top)
        finite = np.where(np.isneginf(top), np.float32(0), top)
        shrink, exponentials = np.exp(top_before - finite), np.exp(part - finite)
        total = total * shrink + pairwise(exponentials)
        if values is not None:
            weighted = weighted * shrink + weighed(exponentials) @ values[..., begin : begin + block, :]
    if values is not None:
        return weighted / total
    return np.exp(scores - np.where(np.isneginf(top), np.float32(0), top)) / total


def by_newton(scores):
    """Times an inverse of 12 bits and a Newton step."""
    exponentials = np.exp(scores - highest(scores))
    total = pairwise(exponentials)
    rough = rounded_to(1 / total, 12)
    return exponentials * np.where(np.isfinite(total), rough * (2 - total * rough), rough)


def each_step(case, scores):
    """Every intermediate stored."""
    exponentials = keep(case, np.exp(keep(case, scores - highest(scores))))
    return exponentials * keep(case, 1 / keep(case, pairwise(exponentials)))


def program(of_rows, **hooks):
    return lambda case, x: store(case, of_rows(wide(x), **hooks))


def flushed(case, x):
    return flush(softmax(flush(x)))


CORRECT = {
    **{f"whole rows, {n}": Program(program(softmax, total=t)) for n, t in SUMS.items()},
    "by exp2": Program(program(softmax, exp=exp2)),
    "times the inverse": Program(program(softmax, inverse=True)),
    "online": Program(program(online)),
    "online, blocks of 7": Program(program(online, block=7)),
    "online by exp2": Program(program(online, exp=exp2)),
    "parts merged": Program(program(merged)),
    "maximum raised by 8": Program(program(seldom_raised)),
    "inverse by a Newton step": Program(program(by_newton)),
    "each step": Program(lambda case, x: store(case, each_step(case, wide(x))), STEPS, is_16),
    "subnormals flushed": Program(flushed, ("subnormals",), is_32),
}

LARGEST = {"R": 40, "C": 500}
LONG = "C"
ODD, SQUARE = {"R": 37, "C": 131}, {"R": 40, "C": 40}
W, O = "whole rows, pairwise", "online"


def polynomial(degree):
    """exp by 2^n times a polynomial of the rest."""
    at = np.cos(np.pi * (np.arange(200) + 0.5) / 200) / 2
    factors = np.polynomial.polynomial.polyfit(at, 2.0**at, degree).astype(np.float32)

    def exp(a):
        power = np.maximum(a * LOG2E, np.float32(-200))
        whole, value = np.rint(power), np.zeros_like(power)
        for factor in factors[::-1]:
            value = value * (power - whole) + factor
        return np.ldexp(value, whole.astype(int))

    return exp


def changed(change, of_rows=softmax):
    return lambda case, x: store(case, change(of_rows(wide(x))))


def local(scores, block=64):
    """Each block normalised by itself."""
    return np.concatenate([softmax(scores[:, i : i + block]) for i in range(0, scores.shape[1], block)], axis=1)


def first_block_top(scores):
    return highest(scores[:, :32])


def from_zero(scores):
    """A maximum that begins at 0."""
    return np.maximum(highest(scores), np.float32(0))


def padded_with(value, block=64):
    """Columns past the end read as `value`, and summed."""

    def rows(scores):
        padding = np.full((scores.shape[0], -scores.shape[1] % block), value, np.float32)
        return softmax(np.hstack([scores, padding]))[:, : scores.shape[1]]

    return rows


def by_logarithm(scores):
    """exp(x - log(sum exp)): the logarithm added to a large maximum loses its last bits."""
    top = highest(scores)
    return np.exp(scores - (top + np.log(pairwise(np.exp(scores - top)))))


def cubic_exp(a):
    """2^fraction by a polynomial of third degree, as a fast approximation has it."""
    t = np.maximum(a * LOG2E, -126)
    fraction = t - np.floor(t)
    return np.ldexp(
        1 + fraction * (0.69583282 + fraction * (0.22606716 + fraction * 0.07802448)), np.floor(t).astype(int)
    )


def without(column):
    """What a carry lost between blocks leaves."""
    return lambda e: pairwise(np.delete(e, column, axis=-1))


MISTAKES = {
    "x by way of float16": Mistake(given(program(softmax), 0, half), W, ODD, "bfloat16", inputs="wide"),
    "log2(e) of 16 bits": Mistake(program(softmax, exp=lambda a: np.exp2(a * np.float32(1.4453125))), W, ODD, "bfloat16"),
    "log2(e) of six digits": Mistake(program(softmax, exp=lambda a: np.exp2(a * np.float32(1.44269))), W, ODD),
    "exp 0 below -12": Mistake(program(softmax, exp=lambda a: np.where(a < -12, np.float32(0), np.exp(a))), W, ODD, "float16"),
    "one term lost between blocks": Mistake(program(softmax, total=without(64)), W, ODD),
    "one term lost between blocks, bfloat16": Mistake(program(softmax, total=without(64)), W, ODD, "bfloat16"),
    "last term counted twice": Mistake(program(softmax, total=lambda e: pairwise(e) + e[:, -1:]), W, ODD, "float16"),
    "last row that of the row before": Mistake(changed(lambda y: edit(y, -1, y[-2])), W, ODD, "bfloat16"),
    "one block of exponentials in 8 bits": Mistake(
        program(softmax, exp=lambda a: edit(np.exp(a), np.s_[:, 32:48], fp8(np.exp(a)[:, 32:48]))), W, ODD, "bfloat16"),
    "inverse of 20 bits": Mistake(
        program(lambda x: np.exp(x - highest(x)) * rounded_to(1 / pairwise(np.exp(x - highest(x))), 20)), W, ODD),
    "total stored, not declared": Mistake(
        lambda case, x: store(case, softmax(wide(x), total=lambda e: keep(case, pairwise(e)))), W, ODD, "bfloat16"),
    "maximum not taken off": Mistake(program(softmax, top=lambda s: np.float32(0)), W, ODD, inputs="large_mean"),
    "maximum of the first block": Mistake(program(softmax, top=first_block_top), W, ODD, inputs="extreme"),
    "maximum of all rows": Mistake(program(softmax, top=lambda s: np.nanmax(s)), W, ODD, inputs="inf"),
    "maximum without NaN, which becomes 0": Mistake(changed(lambda y: np.nan_to_num(y)), W, ODD, inputs="nan"),
    "maximum that begins at 0": Mistake(program(softmax, top=from_zero), W, ODD, inputs="negative"),
    "maximum that begins at 0, float16": Mistake(program(softmax, top=from_zero), W, ODD, "float16", inputs="negative"),
    "columns past the end read as -1e6": Mistake(program(padded_with(-1e6)), W, ODD, "bfloat16", inputs="negative"),
    "not normalised": Mistake(program(softmax, total=lambda e: np.float32(1)), W, ODD),
    "normalised in each block": Mistake(program(local), W, ODD),
    "exp by a polynomial of degree 3": Mistake(program(softmax, exp=polynomial(3)), W, ODD, "float16"),
    "exp by a polynomial of degree 4": Mistake(program(softmax, exp=polynomial(4)), W, ODD),
    "small terms missing from the sum": Mistake(
        program(softmax, total=lambda e: pairwise(np.where(e < 1e-5, np.float32(0), e))), W, ODD),
    "last 16 columns from bfloat16": Mistake(
        program(lambda x: softmax(edit(x, np.s_[:, -16:], wide(x[:, -16:].astype(ml_dtypes.bfloat16))))), W, ODD, "float16"),
    "last element missing from the sum": Mistake(program(softmax, total=lambda e: pairwise(e[:, :-1])), W, ODD),
    "last block missing from the sum": Mistake(program(softmax, total=lambda e: pairwise(e[:, :128])), W, ODD),
    "columns past the end read as 0": Mistake(program(padded_with(0)), W, ODD),
    "columns past the end read as the last": Mistake(
        lambda case, x: store(case, softmax(np.hstack([wide(x), wide(x)[:, -1:]]))[:, :-1]), W, ODD),
    "sum in float16": Mistake(program(softmax, total=in_halves), W, ODD, "float16"),
    "sum in float16 of float32": Mistake(program(softmax, total=in_halves), W, ODD),
    "exponentials in float16": Mistake(
        program(softmax, exp=lambda a: wide(np.exp(a).astype(np.float16))), W, ODD),
    "exponentials in 8 bits": Mistake(program(softmax, exp=lambda a: fp8(np.exp(a))), W, ODD, "bfloat16"),
    "last 16 columns missing from the sum": Mistake(program(softmax, total=lambda e: pairwise(e[:, :-16])), W, ODD, "bfloat16"),
    "exponentials stored, not declared": Mistake(
        lambda case, x: store(case, softmax(wide(x), exp=lambda a: keep(case, np.exp(a)))), W, ODD, "bfloat16"),
    "difference stored, not declared": Mistake(
        lambda case, x: store(case, softmax(wide(x), exp=lambda a: np.exp(keep(case, a)))), W, ODD, "float16"),
    "exp2 for exp": Mistake(program(softmax, exp=np.exp2), W, ODD),
    "log2(e) of three digits": Mistake(program(softmax, exp=lambda a: np.exp2(a * np.float32(1.443))), W, ODD),
    "log2(e) in float16": Mistake(program(softmax, exp=lambda a: np.exp2(a * np.float32(np.float16(LOG2E)))), W, ODD),
    "exp by a cubic": Mistake(program(softmax, exp=cubic_exp), W, ODD),
    "logarithm added to a large maximum": Mistake(program(by_logarithm), W, ODD, inputs="large_mean"),
    "logarithm of the result": Mistake(changed(np.log), W, ODD),
    "earlier blocks not scaled down": Mistake(program(online, rescale=False), O, ODD),
    "-inf less -inf": Mistake(program(online, safe=False), O, ODD),
    "last block missing from the online sum": Mistake(program(online, skipped=3), O, ODD),
    "a row of -inf made 0": Mistake(changed(lambda y: np.where(np.isnan(y), np.float32(0), y)), W, ODD),
    "a row of -inf made uniform": Mistake(
        changed(lambda y: np.where(np.isnan(y), np.float32(1 / y.shape[1]), y)), W, ODD),
    "-inf as -1e4": Mistake(lambda case, x: store(case, softmax(np.maximum(wide(x), -1e4))), W, ODD),
    "along the columns": Mistake(lambda case, x: store(case, softmax(wide(x).T).T), W, SQUARE),
    "transposed": Mistake(changed(lambda y: y.T.copy()), W, SQUARE),
    "last row missing": Mistake(changed(lambda y: edit(y, -1, 0)), W, ODD),
    "last column missing": Mistake(changed(lambda y: edit(y, np.s_[:, -1], 0)), W, ODD),
    "one element too many in a row": Mistake(
        lambda case, x: store(case, softmax(wide(x).ravel()[(np.arange(37)[:, None] * 132 + np.arange(131)) % x.size])), W, ODD),
    "temperature of 1.001": Mistake(lambda case, x: store(case, softmax(wide(x) / np.float32(1.001))), W, ODD),
    "all a part in a million off": Mistake(changed(lambda y: y * np.float32(1 + 1e-6)), W, ODD),
    "first output again": Mistake(first_again(program(softmax)), W, ODD, calls=2),
    "sum of another row": Mistake(program(softmax, total=lambda e: np.roll(pairwise(e), 1, axis=0)), W, ODD),
    "one lane's sum missing": Mistake(program(softmax, total=lambda e: lanes(edit(e, np.s_[:, 31::32], 0))), W, ODD),
    "bits dropped at the end": Mistake(
        lambda case, x: store(case, (softmax(wide(x)).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)), W, ODD,
        "bfloat16"),
    "sum never ends: running total as is": Mistake(
        program(softmax, total=lambda e: np.cumsum(e, axis=1, dtype=np.float32)), W, ODD),
}  # fmt: skip
