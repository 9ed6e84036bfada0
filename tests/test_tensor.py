"""NumPy's operators and functions on Torch's tensors: the same values as on arrays, and so the same formula, noise and budget."""

from __future__ import annotations

import operator
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import torch
import toys
from toys import edit

from fusebench.dtypes import FORMATS
from fusebench.parity import budget
from fusebench.parity.elements import (
    add_product,
    centred,
    deviation_of_sum,
    drawn_on_gpu,
    finite,
    larger,
    spacing,
    stored,
    summed,
)
from fusebench.parity.noise import Noisy
from fusebench.parity.rounding import Exact, Stored
from fusebench.parity.sums import of_segments
from fusebench.parity.tensor import FUNCTIONS, SCALARS, UFUNCS, Random, Tensor

INF, NAN = np.inf, np.nan

A = np.random.default_rng(2).uniform(0.2, 2, (3, 4, 5))
B = np.random.default_rng(3).uniform(0.2, 2, (3, 4, 5))
SPECIAL = np.array([-INF, -1.5, -0.0, 0.0, 1.5, INF, NAN])


def same(function, *arrays):
    """The function gives the same on tensors as on arrays."""
    got, expected = function(*map(wrapped, arrays)), function(*arrays)
    for g, e in zip(*([x] if not isinstance(x, list) else x for x in (got, expected)), strict=True):
        assert g.tensor.numpy().dtype == e.dtype, "the same dtype"
        np.testing.assert_allclose(g.tensor.numpy(), e, rtol=1e-14)


def wrapped(array):
    return Tensor(torch.from_numpy(array.copy()))


@pytest.mark.parametrize("name", sorted(UFUNCS | SCALARS))
def test_ufuncs_are_numpy_s(name):
    ufunc = getattr(np, name, None) or getattr(scipy.special, name)
    if name.startswith("logical") or name.startswith("bitwise") or name == "invert":
        arrays = (A > 1, B > 1)
    elif name == "matmul":
        arrays = (A, B.swapaxes(1, 2).copy())
    else:
        arrays = (A, edit(B, (0, 0), A[0, 0]))  # some are equal
    same(ufunc, *arrays[: ufunc.nin])
    if name in ("isnan", "isfinite", "isinf", "sign", "absolute", "negative", "floor", "rint", "copysign"):
        same(ufunc, *[SPECIAL] * ufunc.nin)
    if name in ("maximum", "minimum", "equal", "less", "less_equal", "greater", "hypot"):
        same(ufunc, SPECIAL, SPECIAL[::-1].copy())


@pytest.mark.parametrize("name", sorted(set(SCALARS) - {"bitwise_and", "bitwise_or"}))
@pytest.mark.parametrize("scalar", [2, 1.5, np.float64(0.7), NAN])
def test_python_s_scalars_stand_on_either_side(name, scalar):
    """In float64, as everything is: an array of integers beside a Python float too."""
    ufunc = getattr(np, name)
    with np.errstate(all="ignore"):
        same(lambda a: ufunc(a, scalar), A)
        if not (name in ("maximum", "minimum") and scalar != scalar):
            same(lambda a: ufunc(scalar, a), A)
        if name not in ("maximum", "minimum", "power", "floor_divide", "remainder") and isinstance(scalar, float):
            same(lambda a: ufunc(a, scalar), np.arange(1, 9))


def test_a_remainder_has_the_sign_of_its_divisor():
    same(lambda a: np.remainder(a, 3), np.array([-4.0, -1.0, 0.0, 5.0]))
    same(lambda a: np.floor_divide(a, 3), np.array([-4.0, -1.0, 0.0, 5.0]))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a + 1, lambda a, b: 1.5 - a, lambda a, b: a**2, lambda a, b: a @ b.swapaxes(-1, -2), lambda a, b: -a, lambda a, b: abs(a),
        lambda a, b: a[1], lambda a, b: a[:, None, 1:], lambda a, b: a[..., np.array([2, 0])], lambda a, b: a[a > 1] * 2,
        lambda a, b: a[:, np.array([2, 0]), np.array([1, 1])], lambda a, b: a[0].T, lambda a, b: a.T,
        lambda a, b: a.sum(axis=1), lambda a, b: a.sum(axis=(0, 2), keepdims=True), lambda a, b: a.mean(axis=-1, keepdims=True),
        lambda a, b: a.max(axis=0), lambda a, b: a.min(axis=2, keepdims=True), lambda a, b: (a > 1.9).any(axis=1),
        lambda a, b: a.max(axis=0, keepdims=True), lambda a, b: a.min(axis=2), lambda a, b: (a > 1.9).any(axis=1, keepdims=True),
        lambda a, b: a.mean(axis=0), lambda a, b: a.reshape(3, -1), lambda a, b: a.reshape((4, 15)), lambda a, b: a.swapaxes(0, 2),
        lambda a, b: a.transpose(1, 2, 0), lambda a, b: a.astype(np.int32), lambda a, b: (a > 1).astype(np.float64),
        lambda a, b: np.where(a > 1, a, b), lambda a, b: np.where(a > 1, a, 0.0), lambda a, b: np.where(a > 1, -np.inf, b),
        lambda a, b: np.where(a > 1, 2, b), lambda a, b: np.isneginf(-a / 0.0), lambda a, b: np.concatenate([a, b]),
        lambda a, b: np.concatenate([a, b], axis=1), lambda a, b: np.stack([a, b]), lambda a, b: np.stack([a, b], axis=2),
        lambda a, b: np.column_stack([a[0], b[0]]), lambda a, b: np.vstack([a[0], b[0]]), lambda a, b: np.split(a[:, :, :4], 2, axis=2),
        lambda a, b: np.split(a, 3), lambda a, b: np.copysign(a, b - 1), lambda a, b: np.take(a, np.array([2, 0]), axis=1),
        lambda a, b: np.take(a, np.array([2, 0]), axis=0), lambda a, b: np.sum(a, axis=1), lambda a, b: np.sum(a, axis=1, keepdims=True),
        lambda a, b: np.amax(a, axis=1), lambda a, b: np.mean(a, axis=0), lambda a, b: np.mean(a, axis=0, keepdims=True), lambda a, b: np.max(a, axis=0),
        lambda a, b: np.max(a, axis=0, keepdims=True), lambda a, b: np.any(a > 1.9, axis=0), lambda a, b: np.any(a > 1.9, axis=0, keepdims=True),
        lambda a, b: np.reshape(a, (12, 5)), lambda a, b: np.swapaxes(a, 0, 1), lambda a, b: a * np.arange(5), lambda a, b: np.arange(5.0) * a,
        lambda a, b: np.searchsorted(np.cumsum(np.ones(5)), b[0, 0]) + 0 * a if isinstance(a, np.ndarray) else
            np.searchsorted(wrapped(np.cumsum(np.ones(5))), b[0, 0]) + 0 * a,
        lambda a, b: a.reshape(-1), lambda a, b: a.reshape(60), lambda a, b: a.reshape([12, 5]), lambda a, b: np.hypot(a, 0.1),
        lambda a, b: np.copysign(0.1, b - 1), lambda a, b: np.where(a > 1, 0.1, 0.2), lambda a, b: np.where(a > 1, 2, 3),
        lambda a, b: np.where(a > 1, a.astype(np.int64), 2), lambda a, b: np.where(a > 1, 2, a.astype(np.int64)),
        lambda a, b: np.where(a > 1, a.astype(np.int64), 0.1), lambda a, b: np.where(a > 1, a.astype(np.int64), b),
        lambda a, b: np.searchsorted(a[0, 0] * 0 + 1, b[0, 0] * 0 + 1, side="right"), lambda a, b: np.searchsorted(a[0, 0] * 0 + 1, b[0, 0] * 0 + 1),
    ],
)  # fmt: skip
def test_functions_are_numpy_s(function):
    with np.errstate(all="ignore"):
        same(function, A, B)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: np.cumsum(a, axis=1), lambda a, b: np.argsort(a, axis=1), lambda a, b: np.argsort(a), lambda a, b: np.sort(a, axis=0),
        lambda a, b: np.sort(a), lambda a, b: np.take_along_axis(a, np.argsort(b, axis=2), axis=2), lambda a, b: put(a, b),
        lambda a, b: np.sort(np.take_along_axis(a, np.argpartition(a, 2, axis=1)[:, :3], axis=1), axis=1),
        lambda a, b: np.empty_like(a) * 0 == 7, lambda a, b: (a > 1).all(axis=1), lambda a, b: (a > 1.5) | (b > 1.5),
    ],
)  # fmt: skip
def test_functions_of_the_rule_are_numpy_s(function):
    same(function, A, B)


def put(a, b):
    a = a * 1
    np.put_along_axis(a, np.argsort(b, axis=2)[:, :, :2], b[:, :, :2], axis=2)
    return a


@pytest.mark.parametrize("starts", [[0, 3], [0, 0, 2, 2, 3], [1, 2]], ids=["one", "some of none", "not from the first"])
def test_sums_of_segments_are_numpy_s(starts):
    same(lambda values: of_segments(values, np.array(starts)), A[:, 0])


def test_a_segment_is_summed_of_its_own_rows_alone():
    values = np.array([[2.0**40], [np.inf], [2.0**-40], [2.0**-41]])
    assert of_segments(values, np.array([0, 2, 4, 4])).tolist() == [[np.inf], [2.0**-40 + 2.0**-41], [0]]


def test_reductions_without_an_axis_take_all():
    t = wrapped(A)
    for name in ("sum", "mean", "max", "min"):
        assert float(getattr(t, name)().tensor) == pytest.approx(getattr(A, name)())
    assert bool(wrapped(A > 1.9).any().tensor)


def test_a_tensor_has_the_shape_of_an_array():
    t = wrapped(A)
    assert (t.shape, t.ndim, t.size, len(t), t.dtype) == (A.shape, 3, 60, 3, np.float64)
    assert (np.shape(t), np.ndim(t), np.size(t)) == (A.shape, 3, 60)
    assert wrapped(np.arange(3)).dtype == np.int64 and isinstance(np.sum(t, axis=0), Tensor)


def test_what_is_not_known_is_named():
    t = wrapped(A)
    for attempt in (
        lambda: np.cbrt(t),
        lambda: np.add.reduce(t),
        lambda: np.add(t, t, where=np.array(True)),
        lambda: np.median(t),
    ):
        with pytest.raises(NotImplementedError, match="the reference on the device knows no"):
            attempt()
    assert operator.attrgetter("tensor")(t).dtype == torch.float64


# NumPy's generator


def test_random_numbers_are_of_the_shape_and_dtype_that_are_asked_for():
    random = Random("cpu", 3)
    for shape in ((2, 3), (1,), (4, 1, 2)):
        for drawn in (random.random(shape, np.float32), random.standard_normal(shape, np.float32)):
            assert drawn.shape == shape and drawn.dtype == np.float32 and isinstance(drawn, Tensor)
    assert random.random((2,), np.float64).dtype == np.float64


def test_random_numbers_are_uniform_and_normal():
    random = Random("cpu", 3)
    uniform, normal = (f((100_000,), np.float32).tensor.numpy() for f in (random.random, random.standard_normal))
    assert 0 <= uniform.min() < 1e-3 and 0.999 < uniform.max() < 1
    assert uniform.mean() == pytest.approx(0.5, abs=0.005) and uniform.std() == pytest.approx(12**-0.5, rel=0.01)
    assert normal.mean() == pytest.approx(0, abs=0.02) and normal.std() == pytest.approx(1, rel=0.02)


def test_random_numbers_are_the_seed_s():
    first, again, other = (Random("cpu", seed).random((9,), np.float32).tensor.tolist() for seed in (3, 3, 4))
    assert first == again != other


# The same formula, noise and budget


class Same:
    """NumPy's random numbers as tensors."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)

    def random(self, shape, dtype):
        return wrapped(self.generator.random(shape, dtype))

    def standard_normal(self, shape, dtype):
        return wrapped(self.generator.standard_normal(shape, dtype))


def formula(r, x, W):
    """Every kind of noise."""
    e = r.function(np.exp(r.compute(x - x.max(axis=1, keepdims=True))))
    p = r.round("p", r.function(e / r.sum(e, axis=1, keepdims=True), 1.0))
    z = r.round("product", r.dot(p, W))
    z = r.one_pass("one_pass", z, p, W, x[:, :1] * 0 + 0.5) + r.narrow("narrow", x[:, :1]) + r.sum(x, axis=1)[:, None]
    return r.round("output", np.maximum(z, 0.0))


X = np.random.default_rng(5).standard_normal((6, 40))
W = np.random.default_rng(6).standard_normal((40, 70))


@pytest.mark.parametrize("draws", [4, 16])
@pytest.mark.parametrize(
    ("dtype", "precision", "points"),
    [("float32", "ieee", ()), ("float32", "tf32", ("subnormals",)), ("bfloat16", "ieee", ("p", "product", "one_pass", "narrow")),
     ("float16", "ieee", ("one_pass",))],
)  # fmt: skip
def test_a_formula_and_its_noise_are_the_same(dtype, precision, points, draws):
    """From the same random numbers, draw by draw."""
    case = toys.case(dtype, precision)
    arrays, tensors = (X, W), (wrapped(X), wrapped(W))
    for evaluation in (Exact, lambda: Stored(case, points)):
        np.testing.assert_allclose(formula(evaluation(), *tensors).tensor, formula(evaluation(), *arrays), rtol=1e-12)
    here = Noisy(case, points, np.random.default_rng(2), draws=draws)
    there = Noisy(case, points, Same(2), draws=draws)
    exact = formula(Exact(), *arrays)
    for _ in range(draws + 1):
        expected, got = formula(here, *arrays), formula(there, *tensors).tensor.numpy()
        assert np.abs(expected - exact).max() > 1e-7
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-13)
        here.next_draw(), there.next_draw()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_noise_by_torch_s_generator_has_the_same_size(dtype):
    case, points = toys.case(dtype), ("p", "product")
    sizes = []
    for make, arguments in (
        (np.random.default_rng, (X, W)),
        (lambda seed: Random("cpu", seed), (wrapped(X), wrapped(W))),
    ):
        rounds = [
            Noisy(case, points, make(seed)) for seed in range(8)
        ]  # in one of which a few numbers make much of the noise
        exact = formula(Exact(), *arguments)
        errors = [formula(r.next_draw(), *arguments) - exact for r in rounds for _ in range(16)]
        errors = np.array([e.tensor.numpy() if isinstance(e, Tensor) else e for e in errors])
        sizes.append(errors.std())
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


@pytest.mark.parametrize("shape", [(3, 200), (200, 3), (64,), (7,), (2, 3, 65)])
@pytest.mark.parametrize("zeros", [False, True])
def test_the_budget_of_few_draws_is_the_same(shape, zeros):
    """Which of many zeros is in a group with other values is the sort's to decide."""
    rng = np.random.default_rng(8)
    exact, own, staged = rng.standard_normal(shape), rng.uniform(0, 2, shape), rng.standard_normal(shape)
    if zeros:
        own, exact = np.where(exact > 0, own, 0.0), np.maximum(exact, 0.0)
        staged = exact
    given = [wrapped(a) for a in (exact, own, staged)]
    reach = budget.reach_of_few(budget.Neighbours(exact), exact, own, 4, staged, 1.5, 1000)
    of_tensors = budget.reach_of_few(budget.Neighbours(given[0]), given[0], given[1], 4, given[2], 1.5, 1000)
    for expected, got in (
        (reach, of_tensors.tensor),
        *(
            (budget.limit_of(exact, reach, d), budget.limit_of(given[0], of_tensors, d).tensor)
            for d in ("float32", "bfloat16")
        ),
    ):
        got, expected = (np.sort(a, axis=None) if zeros else a for a in (got.numpy(), expected))
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_storing_is_the_same(dtype):
    values = np.concatenate([SPECIAL, A.ravel() * 1e5, A.ravel() * 1e-7, [1e-45, 65519.9, 65520.0, 3.39e38]])
    np.testing.assert_array_equal(stored(wrapped(values), dtype).tensor, stored(values, dtype))
    np.testing.assert_array_equal(spacing(wrapped(values), dtype).tensor, spacing(values, dtype))


def test_every_function_that_is_known_is_tested():
    """By its name, in this file."""
    text = Path(__file__).read_text()
    assert not [name for name in FUNCTIONS if f"np.{name}(" not in text]


# What a tensor does in one pass over memory

LEADING = [(), (3,), (2, 3)]


@pytest.mark.parametrize("leading", LEADING)
def test_a_sum_with_a_product_is_numpy_s(leading):
    random = np.random.default_rng(5)
    total, a, b = (random.standard_normal((*leading, *shape)) for shape in ((4, 5), (4, 12), (12, 5)))
    same(lambda t, a, b: add_product(t, a[..., 3:9], b[..., 3:9, :]), total, a, b)


def test_a_sum_with_a_product_of_other_leading_dimensions_is_numpy_s():
    random = np.random.default_rng(6)  # whole numbers, whose sums are the same in any order
    whole = (random.integers(-9, 10, shape).astype(float) for shape in ((2, 3, 4, 5), (2, 3, 4, 7), (7, 5)))
    same(add_product, *whole)


def test_what_is_not_finite_is_0():
    same(finite, SPECIAL)


def test_centred_noise_is_uniform_and_has_what_is_shared():
    noise = centred(Random("cpu", 1), (100_000,), 0.0)
    assert -0.5 <= float(noise.min()) < -0.4999 and 0.4999 < float(noise.max()) <= 0.5
    assert abs(float(noise.mean())) < 0.004 and abs(float((noise**2).mean()) - 1 / 12) < 0.001  # 4 σ
    moved_by = centred(Random("cpu", 1), (100_000,), 0.25)
    np.testing.assert_array_equal(moved_by.tensor.numpy(), noise.tensor.numpy() + np.float32(0.25))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_on_a_gpu_spacings_and_stored_values_are_numpy_s(dtype):
    mantissa, smallest, highest = FORMATS[dtype]
    near_1 = 1 + 2.0**-mantissa * np.arange(0, 4, 0.25)  # ties among them
    edges = np.array(
        [
            2.0**smallest,
            2.0 ** (smallest - mantissa),
            2.0 ** (smallest - mantissa - 1),
            highest,
            1.001 * highest,
            2 * highest,
        ]
    )
    values = np.concatenate(
        [near_1, edges, 2.0**smallest * near_1 / 8, SPECIAL, np.random.default_rng(1).standard_normal(10_000)]
    )
    values = np.concatenate([values, -values]).reshape(2, -1)
    on_gpu = Tensor(torch.from_numpy(values).cuda())
    assert on_gpu.is_cuda
    np.testing.assert_array_equal(spacing(on_gpu, dtype, 0.7).tensor.cpu().numpy(), spacing(values, dtype, 0.7))
    np.testing.assert_array_equal(stored(on_gpu, dtype).tensor.cpu().numpy(), stored(values, dtype))
    noise = np.random.default_rng(2).uniform(-0.5, 0.5, values.shape).astype(np.float32)
    for how in ("computed", "rounded"):  # the noise is float32, the values float64
        got = drawn_on_gpu(how, on_gpu, Tensor(torch.from_numpy(noise).cuda()), dtype).tensor.cpu().numpy()
        within = np.abs(values) <= highest / 2
        moved = values[within] + noise[within].astype(float) * spacing(values[within], dtype)
        if how == "rounded":  # what the dtype holds stays
            moved = np.where(stored(values[within], dtype) == values[within], values[within], moved)
        np.testing.assert_allclose(got[within], moved, rtol=1e-14, atol=1e-300)
    with np.errstate(all="ignore"):
        for function in (
            lambda v: deviation_of_sum(v, 2.0 * v, 3.0 * v, 5, 0.1, 0.2),
            lambda v: larger(v, -0.5 * v, 0.1),
            lambda v: summed(v, v, 0.3, v, v),
        ):
            # where terms cancel, a fused multiply-add differs by more than that of what is left
            np.testing.assert_allclose(function(on_gpu).tensor.cpu().numpy(), function(values), rtol=1e-13, atol=1e-14)
