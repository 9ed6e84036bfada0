"""What the judge accepts and rejects: rounding passes, wrong programs do not. Everything here is NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from scipy.special import erf

from fusebench.cases import make_case
from fusebench.inputs import make_sets, numpy_dtype
from fusebench.parity import Judge
from fusebench.rounding import spacing

STAGED, FUSED = ("layernorm", "product", "bias"), ()


def store(a, dtype):
    return np.asarray(a).astype(numpy_dtype(dtype)).astype(np.float64)


def lola(x, W, b, *, eps=1e-5, ddof=0, after=True, tanh=True, dtype=None, colsum=None):
    """lola in float64, with one thing wrong at a time; `dtype` rounds each stage to storage."""
    keep = (lambda a: store(a, dtype)) if dtype else (lambda a: a)
    rstd = 1 / np.sqrt(x.var(axis=1, keepdims=True, ddof=ddof) + eps)
    if colsum is not None:
        product = (x @ W - x.mean(axis=1, keepdims=True) * colsum) * (1 if not after else rstd)
    else:
        product = keep(keep((x - x.mean(axis=1, keepdims=True)) * (1 if not after else rstd)) @ W)
    z = keep(product + b) if after else (product + b) * rstd
    return 0.5 * z * (1 + (np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)) if tanh else erf(z / np.sqrt(2))))


def edit(a, at, value):
    a = a.copy()
    a[at] = value
    return a


def truncated(a):
    """The upper 19 bits: what a tensor core reads of a float32 in tf32."""
    return (a.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


MISTAKES = {
    "bias before the division": lambda x, W, b: lola(x, W, b, after=False),
    "bias forgotten": lambda x, W, b: lola(x, W, 0 * b),
    "eps of 1e-3": lambda x, W, b: lola(x, W, b, eps=1e-3),
    "unbiased variance": lambda x, W, b: lola(x, W, b, ddof=1),
    "erf for tanh": lambda x, W, b: lola(x, W, b, tanh=False),
    "mean not taken off": lambda x, W, b: lola(np.hstack([x, -x]), np.vstack([W, 0 * W]), b),
    "last K left out": lambda x, W, b: lola(x, edit(W, -1, 0), b),
    "colsum in float16": lambda x, W, b: lola(
        x, W, b, colsum=np.add.accumulate(W.astype(np.float16), 0, np.float16)[-1].astype(float)
    ),
    "last row missing": lambda x, W, b: edit(lola(x, W, b), -1, 0),
    "last column missing": lambda x, W, b: edit(lola(x, W, b), (slice(None), -1), 0),
    "columns shifted": lambda x, W, b: np.roll(lola(x, W, b), 1, axis=1),
    "rows swapped": lambda x, W, b: lola(x[::-1], W, b),
    "W transposed": lambda x, W, b: lola(x, W.T.reshape(W.shape), b),
    "tf32 where ieee was asked": lambda x, W, b: lola(x, truncated(W), b),
    "zeros": lambda x, W, b: 0 * lola(x, W, b),
    "NaN": lambda x, W, b: edit(lola(x, W, b), (3, 5), np.nan),
    "infinity": lambda x, W, b: edit(lola(x, W, b), (3, 5), np.inf),
    "one element off by a part in ten thousand": lambda x, W, b: edit(
        lola(x, W, b), (3, 5), lola(x, W, b)[3, 5] * 1.0001
    ),
    "no activation": lambda x, W, b: lola(x, W, b) + 1e-3,
}


@pytest.fixture(scope="module")
def judged(kernels):
    """Judges of lola by dtype and precision, with the inputs in float64."""
    made = {}

    def judge_of(dtype="float32", precision="ieee", sizes=(37, 131, 203)):
        key = (dtype, precision, sizes)
        if key not in made:
            case = make_case(kernels["lola"], dict(zip("MKN", sizes, strict=True)), dtype, precision)
            inputs = make_sets(kernels["lola"].module, case, 0, 1)[0]
            made[key] = (
                Judge(kernels["lola"].module, case, inputs),
                [a.astype(np.float64) for a in inputs.values()],
                numpy_dtype(dtype),
            )
        return made[key]

    return judge_of


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_program_is_rejected(judged, mistake):
    judge, inputs, dtype = judged()
    verdict = judge.judge([MISTAKES[mistake](*inputs).astype(dtype)], FUSED)
    assert not verdict.ok


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_staged_rounding_is_accepted_where_it_is_declared(judged, dtype):
    judge, inputs, numpy_type = judged(dtype)
    assert judge.judge([lola(*inputs, dtype=dtype).astype(numpy_type)], STAGED).ok


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_fused_code_does_not_borrow_the_staged_budget(judged, dtype):
    judge, inputs, numpy_type = judged(dtype)
    assert not judge.judge([lola(*inputs, dtype=dtype).astype(numpy_type)], FUSED).ok


def test_float32_arithmetic_is_accepted_as_fused(judged):
    judge, (x, W, b), _ = judged()
    narrow = [a.astype(np.float32) for a in (x, W, b)]
    x, W, b = narrow
    deviation = x - x.mean(axis=1, keepdims=True)
    z = (deviation / np.sqrt((deviation**2).mean(axis=1, keepdims=True) + np.float32(1e-5))) @ W + b
    y = np.float32(0.5) * z * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (z + np.float32(0.044715) * z**3)))
    assert judge.judge([y], FUSED).ok


def test_truncated_tf32_is_accepted_as_tf32_alone(judged):
    judge, (x, W, b), dtype = judged(precision="tf32")
    shifted = x - x.mean(axis=1, keepdims=True)
    y = lola(truncated(shifted) + 0, truncated(W), b).astype(dtype)
    assert judge.judge([y], FUSED).ok
    assert not judged()[0].judge([y], FUSED).ok


def test_shape_dtype_and_count_of_outputs_are_checked(judged):
    judge, inputs, dtype = judged()
    right = lola(*inputs).astype(dtype)
    assert judge.judge([right], FUSED).ok
    for outputs, problem in (
        ([right[:-1]], "shape"),
        ([right.astype(np.float64)], "dtype"),
        ([right, right], "2 outputs"),
    ):
        verdict = judge.judge(outputs, FUSED)
        assert not verdict.ok and problem in verdict.problem


def test_the_worst_element_is_named(judged):
    judge, inputs, dtype = judged()
    verdict = judge.judge([edit(lola(*inputs), (31, 7), 9.0).astype(dtype)], FUSED)
    assert verdict.index == (31, 7) and verdict.got == 9.0 and verdict.expected == pytest.approx(lola(*inputs)[31, 7])


def test_large_cases_are_judged_on_sampled_rows_and_screened_elsewhere(judged):
    judge, inputs, dtype = judged(sizes=(600, 1024, 1024))
    assert judge.sampled is not None and judge.all_rows
    right = lola(*inputs).astype(dtype)
    assert judge.judge([right], FUSED).ok
    unsampled = next(r for r in range(600) if r not in judge.sampled)
    verdict = judge.judge([edit(right, unsampled, 0)], FUSED)
    assert not verdict.ok and verdict.index[0] == unsampled


@pytest.mark.parametrize(
    ("dtype", "type_"), [("float32", np.float32), ("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)]
)
def test_spacing_is_that_of_the_dtype(dtype, type_):
    for value in (1.0, 1.5, 3.0, 1000.0, 2.0**-14, 0.0):
        v = np.array(value, dtype=type_)
        assert spacing(np.array([value]), dtype)[0] == float(np.nextafter(v, type_(np.inf)) - v)
