"""What the judge makes of rounding that is declared, and of what is not; test_mistakes.py and test_alarms.py have the programs."""

from __future__ import annotations

import numpy as np
import pytest

from fusebench.cases import make_case
from fusebench.contract import Case
from fusebench.dtypes import numpy_dtype
from fusebench.inputs import make_sets
from fusebench.parity.judge import Judge
from fusebench.parity.noise import Noisy

STAGED, FUSED = ("layernorm", "product", "bias"), ()


def store(a, dtype):
    return np.asarray(a).astype(numpy_dtype(dtype)).astype(np.float64)


def lola(x, W, b, *, dtype=None):
    """lola in float64; `dtype` rounds each stage to storage."""
    keep = (lambda a: store(a, dtype)) if dtype else (lambda a: a)
    deviation = x - x.mean(axis=1, keepdims=True)
    normed = keep(deviation / np.sqrt((deviation**2).mean(axis=1, keepdims=True) + 1e-5))
    z = keep(keep(normed @ W) + b)
    return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))


def truncated(a):
    """The upper 19 bits: what a tensor core reads of a float32 in tf32."""
    return (a.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


@pytest.fixture(scope="module")
def judged(kernels):
    """Judges of lola by dtype and precision, with the inputs in float64."""
    made = {}

    def judge_of(dtype="float32", precision="ieee", sizes=(37, 131, 203)):
        key = (dtype, precision, sizes)
        if key not in made:
            case = make_case(kernels["lola"], dict(zip("MKN", sizes, strict=True)), dtype, precision)
            inputs = make_sets(kernels["lola"].mathematics, case, 0, 1)[0]
            made[key] = (
                Judge(kernels["lola"].mathematics, case, inputs),
                [a.astype(np.float64) for a in inputs.values()],
                numpy_dtype(dtype),
            )
        return made[key]

    return judge_of


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


def test_a_point_of_other_options_may_be_declared(kernels):
    case = make_case(kernels["lola"], {"M": 5, "K": 7, "N": 3}, "bfloat16", options={"activation": "relu"})
    inputs = make_sets(kernels["lola"].mathematics, case, 0, 1)[0]
    judge = Judge(kernels["lola"].mathematics, case, inputs)
    x, W, b = (a.astype(np.float64) for a in inputs.values())
    deviation = x - x.mean(axis=1, keepdims=True)
    y = np.maximum(deviation / np.sqrt((deviation**2).mean(axis=1, keepdims=True) + 1e-5) @ W + b, 0)
    assert judge.judge([y.astype(numpy_dtype("bfloat16"))], ("activation",)).ok
    assert "the point 'tanh'" in judge.judge([y.astype(numpy_dtype("bfloat16"))], ("tanh",)).problem


def test_open_steps_of_others_do_not_widen_a_gradient_by_weights(kernels):
    """Behind a relu, in TF32: db is a sum of upstream gradients. Half of its elements have no sum near 0 among theirs, and may hardly be off."""
    case = make_case(kernels["lola"], "odd", "float32", "tf32", {"activation": "relu"}, "backward")
    inputs = make_sets(kernels["lola"].mathematics, case, 0, 1)[0]
    judge = Judge(kernels["lola"].mathematics, case, inputs)
    *others, db = (np.asarray(a).astype(np.float32) for a in judge.reference())
    assert judge.judge([*others, db], ()).ok
    missed = sum(judge.judge([*others, db + np.float32(0.01) * (np.arange(db.size) == n)], ()).ok for n in range(20))
    assert missed <= 12


def noise_of_a_product(a, b, draws=400):
    """Standard deviation, over noisy evaluations, of the float32 product of a (M, K) and b (K, N)."""
    noisy = Noisy(Case("", {}, "float32"), (), np.random.default_rng(0))
    return np.std([noisy.next_draw().dot(a, b) for _ in range(draws)], axis=0)


def sequential_error(a, b):
    """What float32 sums in the order of K are off by, (M, N)."""
    products = (a.T[:, :, None] * b[:, None, :]).astype(np.float32)
    return np.cumsum(products, axis=0, dtype=np.float32)[-1].astype(np.float64) - products.astype(np.float64).sum(
        axis=0
    )


@pytest.mark.parametrize(
    "terms",
    [
        pytest.param(lambda rng: rng.standard_normal((1, 200)), id="random"),
        pytest.param(lambda rng: np.ones((1, 200)) * 1.1, id="equal"),
        pytest.param(lambda rng: np.sort(rng.standard_normal((1, 200))), id="far out and back"),
        pytest.param(lambda rng: np.concatenate([[50.0], rng.standard_normal(199)])[None], id="a large one first"),
    ],
)
def test_noise_of_sums_is_that_of_sums_in_order(terms):
    rng = np.random.default_rng(1)
    a, b = terms(rng), np.repeat(rng.uniform(1, 2, 2000)[None], 200, axis=0)
    spread = np.sqrt(np.mean(sequential_error(a, b) ** 2 / np.mean(noise_of_a_product(a, b[:, :50]) ** 2)))
    assert 0.3 < spread < 1.3


@pytest.mark.parametrize("C", [65_536, 131_072])
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_a_sequential_sum_of_many_terms_is_accepted(kernels, C, scale):
    """With logits of 1e-3 the terms are nearly equal: each addition between two powers of 2 errs by the same amount."""
    kernel = kernels["softmax"].mathematics
    case = make_case(kernels["softmax"], {"R": 2, "C": C})
    logits = (np.random.default_rng(0).standard_normal((2, C)) * scale).astype(np.float32)
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    y = e / np.cumsum(e, axis=1, dtype=np.float32)[:, -1:]
    verdict = Judge(kernel, case, {"x": logits}).judge([y], ())
    assert verdict.ok, verdict.reason()


def right_gradients_of_attention(q, k, v, n_padd, dy):
    """Probabilities by a logarithm of their sum that was rounded to float32, and dy * y of a y that was not made with it."""
    kept = (np.arange(q.shape[-2]) >= n_padd[:, None])[:, None, :, None]
    q, k, v, dy = (np.where(kept, a.astype(float), 0) for a in (q, k, v, dy))
    scale, seen = 1 / np.sqrt(q.shape[-1]), np.tri(q.shape[-2], dtype=bool) & kept & kept.swapaxes(-1, -2)
    scores = q @ k.swapaxes(-1, -2) * scale
    most = np.where(kept, np.where(seen, scores, -np.inf).max(axis=-1, keepdims=True), 0)
    e = np.where(seen, np.exp(np.where(seen, scores - most, 0)), 0)
    total = np.where(kept, e.sum(axis=-1, keepdims=True), 1)
    lse = (most + np.log(total)).astype(np.float32)
    p = np.where(seen, np.exp(np.where(seen, scores - lse, 0)), 0)
    ds = p * (dy @ v.swapaxes(-1, -2) - (dy * (e / total @ v)).sum(axis=-1, keepdims=True)) * scale
    return [g.astype(np.float32) for g in (ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dy)]


def test_a_gradient_of_attention_may_take_y_as_it_was_before_the_logarithm_was_rounded(kernels):
    mathematics = kernels["padded_attention"].mathematics
    case = make_case(kernels["padded_attention"], "heads", mode="backward")
    for seed in range(4):
        arrays = make_sets(mathematics, case, seed, 1, "negative")[0]
        verdict = Judge(mathematics, case, arrays, seed, kind="negative").judge(
            right_gradients_of_attention(*arrays.values()), ()
        )
        assert verdict.ok, verdict.reason()


@pytest.mark.parametrize(("dtype", "times"), [("float16", 1 + 0.9 * 2.0**-11), ("bfloat16", 1 + 0.9 * 2.0**-8)])
def test_weights_may_be_stored_before_they_are_divided_by_their_sum(kernels, dtype, times):
    """A token that sees itself alone has the weight 1, but what is stored may be just above: there rounding is as coarse as can be."""
    mathematics = kernels["padded_softmax_v"].mathematics
    case = make_case(kernels["padded_softmax_v"], "short", dtype)
    for seed in range(20):
        arrays = make_sets(mathematics, case, seed, 1, "large")[0]
        att, v, n_padd = (a.astype(float) for a in arrays.values())
        seen = np.tri(len(att), dtype=bool) & (np.arange(len(att)) >= n_padd)
        most = np.where(seen, att, -np.inf).max(axis=1, keepdims=True)
        weights = times * np.where(seen, np.exp(np.where(seen, att - most, 0)), 0)
        y = store(weights, dtype) @ np.nan_to_num(v) / np.maximum(weights.sum(axis=1, keepdims=True), 1)
        judge = Judge(mathematics, case, arrays, seed, kind="large")
        verdict = judge.judge([y.astype(numpy_dtype(dtype))], ("probabilities",))
        assert verdict.ok, verdict.reason()
