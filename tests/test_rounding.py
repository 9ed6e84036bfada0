"""The noise of each point and what follows from it, against what docs/numerics.md derives, on more draws than the judge takes."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import toys
from programs.arithmetic import in_storage, keep

from fusebench.contract import DTYPES
from fusebench.dtypes import numpy_dtype
from fusebench.parity.elements import spacing, stored
from fusebench.parity.noise import Noisy
from fusebench.parity.rounding import COMPUTED, Exact, Stored

DRAWS = 320  # of noise that is balanced 16 make a round
HALF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}  # half a spacing at 1
INF, NAN = np.inf, np.nan


def noisy(dtype="float32", precision="ieee", points=(), draws=16):
    return Noisy(toys.case(dtype, precision), points, np.random.default_rng(5), draws=draws)


def drawn(r, evaluate, draws=DRAWS):
    """The values of that many draws, stacked."""
    return np.stack([evaluate(r.next_draw()) for _ in range(draws)])


def parts(errors):
    """The standard deviations of what differs between the elements of a draw, and of what they share: (draws, elements)."""
    own = np.sqrt(np.mean(errors.var(axis=1, ddof=1)))
    return own, np.sqrt(max(0.0, errors.mean(axis=1).var(ddof=1) - own**2 / errors.shape[1]))


UNIFORM = 1 / math.sqrt(12)  # standard deviation of a uniform number from -1/2 to 1/2


# Formats


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_stored_as_the_dtype_stores_them(dtype):
    """The cast of NumPy and ml_dtypes is the judge; float64 to bfloat16 goes by way of float32 there, so these are float32."""
    finfo = ml_dtypes.finfo(numpy_dtype(dtype))
    rng = np.random.default_rng(0)
    edges = np.array([float(finfo.max), float(finfo.tiny), float(finfo.smallest_subnormal), 1.0, 2.0, 0.0])
    values = np.concatenate(
        [rng.standard_normal(500), 10.0 ** rng.uniform(-45, 38, 500), edges, 3 * edges / 2, edges / 2, INF * edges[:1]]
    )
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
        beside = [np.nextafter(values, np.float32(to)) for to in (INF, -INF)]
    ties = 1 + HALF[dtype] * np.arange(1, 40)  # halfway between two neighbours: to the even one
    values = np.concatenate([values, ties, *beside]).astype(np.float64)
    values = np.concatenate([values, -values, [NAN]])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            stored(values, dtype), values.astype(np.float32).astype(numpy_dtype(dtype)).astype(float)
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_storage_rounds_once_and_overflows_from_half_a_spacing_past_the_largest_number(dtype):
    finfo = ml_dtypes.finfo(numpy_dtype(dtype))
    largest, half = float(finfo.max), float(finfo.max) * 2.0 ** -(finfo.nmant + 2)
    assert stored(np.array([largest, largest + 0.99 * half]), dtype).tolist() == [largest, largest]
    assert stored(np.array([largest + 1.2 * half, -2 * largest]), dtype).tolist() == [INF, -INF]
    tie = 1 + HALF[dtype]
    assert stored(np.array([tie, np.nextafter(tie, 2)]), dtype).tolist() == [1.0, 1 + 2 * HALF[dtype]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_spacing_is_the_distance_to_the_next_number(dtype):
    finfo = ml_dtypes.finfo(numpy_dtype(dtype))
    tiny = float(finfo.tiny)
    values = np.array(
        [1.0, 1.99, 2.0, -3.0, tiny, 1.9 * tiny, 2 * tiny, tiny / 2, float(finfo.smallest_subnormal), 0.0, 1e-300]
    )
    near = np.abs(toys.store(values, dtype))
    below = np.where(near.astype(float) > np.abs(values), np.nextafter(near, near.dtype.type(0)), near)
    expected = np.nextafter(below, near.dtype.type(INF)).astype(float) - below.astype(float)
    np.testing.assert_array_equal(spacing(values, dtype), expected)
    assert spacing(np.array([INF, -INF, NAN]), dtype).tolist() == [0, 0, 0]


# The reference, and what declared points store


def test_the_reference_leaves_everything_alone():
    r, x = Exact(), np.random.default_rng(0).standard_normal((3, 4))
    for got in (r.compute(x), r.function(x), r.round("a", x), r.narrow("b", x), r.one_pass("c", x, x, x, x)):
        assert got is x
    np.testing.assert_array_equal(r.dot(x, x.T), x @ x.T)
    np.testing.assert_array_equal(r.sum(x, 1, True), x.sum(1, keepdims=True))
    assert r.sum(x, 0).shape == (4,) and r.seen == {"a", "b", "c"}
    assert r.rows(3).tolist() == [0, 1, 2] and Exact(np.array([4, 9])).rows(2).tolist() == [4, 9]


def test_what_is_declared_is_stored_and_nothing_else():
    r, x = Stored(toys.case("bfloat16"), ("a",), np.array([3])), np.full(5, 1.001)
    assert (r.round("a", x) == 1).all() and (r.narrow("a", x) == 1).all()
    assert r.round("b", x) is x and r.narrow("b", x) is x and r.compute(x) is x and r.function(x) is x
    assert r.rows(1).tolist() == [3] and noisy().rows(2).tolist() == [0, 1]


# The noise of a point


@pytest.mark.parametrize("evaluate", [lambda r, x: r.compute(x), lambda r, x: r.round("other", x)])
def test_a_float32_operation_errs_by_half_a_spacing_of_its_own(evaluate):
    errors = drawn(noisy("bfloat16", points=("a",)), lambda r: evaluate(r, np.full(400, 1.5)) - 1.5) / 2.0**-23
    own, shared = parts(errors)
    assert own == pytest.approx(UNIFORM, rel=0.02) and 0.49 < np.abs(errors).max() <= 0.5
    assert shared < 0.3 * UNIFORM / 20 and abs(errors.mean()) < 0.01, "it is rounded correctly: elements share nothing"


@pytest.mark.parametrize(
    ("evaluate", "spacings"), [(lambda r, x: r.function(x), 2), (lambda r, x: r.function(x, 12.0), 12)]
)
def test_functions_err_by_themselves_and_all_alike(evaluate, spacings):
    errors = drawn(noisy("bfloat16", points=("a",)), lambda r: evaluate(r, np.full(400, 1.5)) - 1.5) / 2.0**-23
    own, shared = parts(errors)
    assert own == pytest.approx(spacings * UNIFORM, rel=0.02) and shared == pytest.approx(spacings * UNIFORM, rel=0.1)
    assert abs(errors.mean()) < 0.15 * spacings
    assert 0.9 * spacings < np.abs(errors).max() <= spacings, "half of it its own, half shared"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("point", ["round", "narrow"])
def test_a_stored_point_errs_by_half_a_spacing_of_its_own(dtype, point):
    errors = drawn(noisy(dtype, points=("a",)), lambda r: getattr(r, point)("a", np.full(400, 3.0003)) - 3.0003) / (
        4 * HALF[dtype]
    )
    own, _ = parts(errors)
    assert own == pytest.approx(UNIFORM, rel=0.02) and np.abs(errors).max() <= 0.5
    assert errors.mean(axis=1).std() < 2 * UNIFORM / 20, "elements share nothing"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_stored_point_errs_by_the_spacing_on_the_side_of_a_power_of_two_that_noise_took_it_to(dtype):
    beside = np.full(400, 1 - 2.0**-30)
    errors = drawn(noisy(dtype, points=("a",)), lambda r: r.round("a", r.compute(beside)) - 1) / HALF[dtype]
    assert (np.abs(errors).max(axis=0) > 0.9).all(), "each of the elements is above 1 in some draws"
    assert (errors**2).mean() == pytest.approx((1 + 1 / 4) / 2 / 3, rel=0.03), (
        "in half of them, and below in the others"
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_storing_what_is_in_the_dtype_rounds_nothing(dtype):
    """As of an upstream gradient that a relu lets through: noise there would hide what a program loses behind it."""
    x = np.array([1.5, 0.0, -3.0, INF, 2.0**-24 if dtype == "float16" else 2.0**-133, 1.5 + HALF[dtype]])
    r = noisy(dtype, points=("a",))
    draws = drawn(r, lambda r: r.round("a", x), 16)
    assert (draws[:, :5] == x[:5]).all() and (draws[:, 5] != x[5]).all()
    draws = drawn(noisy(dtype, points=("a",)), lambda r: r.round("a", r.compute(x)), 16)
    assert (draws[:, 0] != x[0]).all(), "what a step before lost is rounded"


def test_a_narrow_point_that_is_not_declared_moves_nothing():
    x = np.full(5, 1.5)
    assert noisy("bfloat16").narrow("a", x) is x


def test_a_stored_point_overflows_where_its_dtype_does():
    r, x = noisy("float16", points=("a",)), np.array([65504.0, 65519.0, 65521.0, -7e4, 6e4])
    draws = drawn(r, lambda r: r.round("a", x), 50)
    assert (draws[:, 2] == INF).all() and (draws[:, 3] == -INF).all() and np.isfinite(draws[:, 4]).all()
    assert (draws[:, 1] == 65504).all() and np.isfinite(draws[:, 0]).all()


def test_an_operation_overflows_where_float32_does():
    largest = float(np.finfo(np.float32).max)
    draws = drawn(noisy("bfloat16"), lambda r: r.compute(np.array([largest, -largest, 0.99 * largest, INF, NAN])), 60)
    for column, sign in ((0, 1), (1, -1)):
        assert {sign * INF} < set(draws[:, column]), "sometimes"
    assert np.isfinite(draws[:, 2]).all() and (draws[:, 3] == INF).all() and np.isnan(draws[:, 4]).all()


def test_subnormals_are_flushed_where_that_is_declared():
    x = np.array([2.0**-127, -(2.0**-127), 2.0**-126, 1.0])
    flushed = noisy(points=("subnormals",)).compute(x)
    assert (flushed[:2] == 0).all() and (flushed[2:] != 0).all()
    assert (noisy().compute(x) != 0).all()


# Noise of what a whole row or output shares: balanced over the draws


def test_subnormal_operands_of_a_product_are_flushed_too():
    """Each of 64 terms is lost, and what they come to is a normal number."""
    a, b = np.full((1, 64), 1e-39), np.ones((64, 1))
    flushed, kept = noisy(points=("subnormals",)).dot(a, b), noisy().dot(a, b)
    assert (abs(flushed) < 2.0**-140).all() and (kept > 2.0**-126).all()


def of_rows(r, shape=(500, 1), places=1):
    """The noise of a float32 operation on a value of that shape, in spacings, at some places of a formula: (draws, places, …)."""
    draws = []
    for _ in range(r.draws):
        draws.append([(r.compute(np.full(shape, 1.5)) - 1.5) / 2.0**-23 for _ in range(places)])
        r.next_draw()
    return np.array(draws)


@pytest.mark.parametrize("draws", [4, 8, 16])
@pytest.mark.parametrize("shape", [(500, 1), (3, 1, 1), (1,), ()])
def test_what_a_row_shares_has_exactly_its_variance_in_the_draws(draws, shape):
    errors = of_rows(noisy(draws=draws), shape, 20)
    np.testing.assert_allclose(np.mean(errors**2, axis=0), 1 / 12, rtol=1e-6)
    assert np.abs(errors).max() < 0.5


def test_stored_values_and_sums_of_rows_are_balanced_too():
    r, x, rows = (
        noisy("bfloat16", points=("a",)),
        np.full((50, 1), 1.5003),
        np.random.default_rng(0).uniform(1, 2, (50, 7)),
    )
    stored_, sums = [], []
    for _ in range(r.draws):
        stored_.append((r.round("a", x) - x) / 2.0**-7)
        sums.append(r.sum(rows, axis=1, keepdims=True) - rows.sum(axis=1, keepdims=True))
        r.next_draw()
    np.testing.assert_allclose(np.mean(np.square(stored_), axis=0), 1 / 12, rtol=1e-6)
    partial = np.mean(np.cumsum(rows, axis=1) ** 2, axis=1, keepdims=True)
    np.testing.assert_allclose(
        np.sqrt(np.mean(np.square(sums), axis=0)), 2.0**-24 * np.sqrt(7 / 3 * partial), rtol=1e-6
    )


@pytest.mark.parametrize(("draws", "share"), [(4, 1.05), (8, 0.95), (16, 0.8)])
def test_balanced_noise_of_two_places_has_nothing_in_common(draws, share):
    """Independent noise would have products with the standard deviation 1/12/√draws; past 15 places signs repeat, shifted."""
    errors = of_rows(noisy(draws=draws), places=18)[..., 0]
    products = [np.mean(errors[:, a] * errors[:, b], axis=0) for a in range(18) for b in range(a)]
    assert np.abs(np.mean(products)) < 0.01 / 12
    assert np.mean([p.std() for p in products]) < share / 12 / math.sqrt(draws)
    assert max(np.abs(p).max() for p in products) < 1.001 / 12, "of 16 draws no two places are the same"
    assert np.abs(errors.mean(axis=(0, 2))).max() < 0.05, "no place errs to one side in all rows"


def test_rows_do_not_err_alike():
    """With the same signs in all of them, their mean would scatter too little from draw to draw, or too much."""
    errors = of_rows(noisy())[:, 0, :, 0]
    together = np.corrcoef(errors.T)[np.triu_indices(500, 1)]
    assert abs(together.mean()) < 0.01 and np.abs(together).mean() < 0.25
    scatter = [
        np.std(of_rows(Noisy(toys.case(), (), np.random.default_rng(n)), (60, 1)).mean(axis=2), ddof=1)
        for n in range(60)
    ]
    assert min(scatter) > 0.5 * math.sqrt(1 / 12 / 60) and np.mean(scatter) == pytest.approx(
        math.sqrt(1 / 12 / 60), rel=0.05
    )


def test_a_round_of_draws_begins_anew():
    """Sizes and signs are those of the first round: so variance is exact in any whole number of rounds."""
    r = noisy(draws=4)
    first, second = of_rows(r), of_rows(r)
    np.testing.assert_array_equal(first, second)
    r, value = noisy(draws=4), np.full(9, 1.5)
    assert not np.array_equal(r.compute(value), r.next_draw().compute(value)), "of elements each is fresh"


# The noise of a sum


def spread(errors):
    return np.sqrt(np.mean(errors**2, axis=0))


def random_order(K, total, squares):
    """K/3 times the mean square of partial sums in random order: of the k-th, (k/K) Q + k (k - 1) / (K (K - 1)) (S² - Q)."""
    k = np.arange(1, K + 1)
    mean = (k[:, None] / K * squares + (k * (k - 1) / (K * (K - 1)))[:, None] * (total**2 - squares)).mean(axis=0)
    return K / 3 * mean


@pytest.mark.parametrize("what", ["dot", "sum"])
def test_float32_sums_err_as_in_random_order(what):
    """Of terms that alternate: in the order of memory no partial sum is far from 0."""
    rng, K = np.random.default_rng(1), 96
    a = (np.tile([1.0, -1.0], K // 2) + 0.03 * rng.standard_normal(K))[None]
    b = rng.uniform(1, 1.2, (1, 40)) * np.ones((K, 1))
    terms = a.T * b
    evaluate = (lambda r: r.dot(a, b)[0]) if what == "dot" else (lambda r: r.sum(terms, axis=0))
    errors = drawn(noisy(), lambda r: evaluate(r) - terms.sum(axis=0))
    expected = 2.0**-24 * np.sqrt(random_order(K, terms.sum(axis=0), (terms**2).sum(axis=0)))
    assert np.mean(spread(errors) / expected) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(("K", "mean"), [(100, 0.0), (4096, 0.0), (4096, 0.1)])
def test_a_sum_in_the_storage_dtype_errs_as_threads_and_pairs_do(K, mean):
    """However near to 0 it ends: what its partial sums lost is not in proportion to it."""
    case, rng = toys.case("bfloat16"), np.random.default_rng(1)
    terms = keep(case, rng.standard_normal((400, K)).astype(np.float32) + np.float32(mean)).astype(float)
    lost = in_storage(case, terms.astype(np.float32)).astype(float) - terms.sum(axis=1, keepdims=True)
    r = noisy("bfloat16", points=("added",))
    noise = drawn(r, lambda r: r.sum(terms, 1, True, "added"), 16) - terms.sum(axis=1, keepdims=True)
    assert 0.9 < noise.std() / lost.std() < 1.6
    few = drawn(noisy("bfloat16"), lambda r: r.sum(terms, 1, True, "added"), 16) - terms.sum(axis=1, keepdims=True)
    assert few.std() < noise.std() / 1e3, "who does not declare it adds in float32"


def test_each_row_of_a_sum_errs_by_its_own_size():
    rows = np.sort(np.random.default_rng(2).standard_normal(64)) * np.array([[1.0], [1e-3]])
    large, small = spread(drawn(noisy(), lambda r: r.sum(rows, axis=1) - rows.sum(axis=1)))
    assert large / small == pytest.approx(1000, rel=0.15)


@pytest.mark.parametrize("what", ["dot", "sum"])
def test_the_order_of_memory_counts_where_its_partial_sums_are_larger(what):
    K = 64
    a = np.sort(np.random.default_rng(2).standard_normal(K))[None]  # first far down, then back up
    b = np.ones((K, 1))
    evaluate = (lambda r: r.dot(a, b)[0]) if what == "dot" else (lambda r: r.sum(a, axis=1))
    errors = drawn(noisy(), lambda r: evaluate(r) - a.sum(), 16)
    partial = np.cumsum(a[0])[3::4] if what == "dot" else np.cumsum(a[0])  # 16 of a product are looked at
    assert spread(errors)[0] == pytest.approx(2.0**-24 * math.sqrt(K / 3 * np.mean(partial**2)), rel=1e-3)


@pytest.mark.parametrize("what", ["dot", "sum"])
@pytest.mark.parametrize("K", [4, 5, 6, 7, 40])
def test_errors_of_equal_terms_add_up(what, K):
    """They repeat between two powers of 2: the variance is (u K S)²/45, or that of random errors for fewer than 7 terms."""
    a, b = np.full((1, K), 1.1), np.ones((K, 1))
    evaluate = (lambda r: r.dot(a, b)[0]) if what == "dot" else (lambda r: r.sum(a, axis=1))
    errors = drawn(noisy(), lambda r: evaluate(r) - 1.1 * K, 16)
    total, in_order = 1.1 * K, K / 3 * np.mean((1.1 * np.arange(1, K + 1)) ** 2)
    expected = max(in_order, (K * total) ** 2 / 45)
    assert spread(errors)[0] == pytest.approx(2.0**-24 * math.sqrt(expected), rel=1e-3)


@pytest.mark.parametrize("what", ["dot", "sum"])
@pytest.mark.parametrize(("spacings", "add_up"), [(0.0, True), (0.9, True), (1.1, False), (1000, False)])
def test_errors_of_terms_that_differ_by_less_than_a_spacing_of_their_total_add_up(what, spacings, add_up):
    K = 1024
    off = np.random.default_rng(2).permutation(np.linspace(-1, 1, K))[None]
    a, b = 1 + off / off.std() * spacings * 2.0**-13, np.ones((K, 1))
    evaluate = (lambda r: r.dot(a, b)[0]) if what == "dot" else (lambda r: r.sum(a, axis=1))
    errors = drawn(noisy(), lambda r: evaluate(r) - K, 16)
    partial = np.cumsum(a[0])[63::64] if what == "dot" else np.cumsum(a[0])
    expected = math.sqrt((K * K) ** 2 / 45) if add_up else math.sqrt(K / 3 * np.mean(partial**2))
    assert spread(errors)[0] == pytest.approx(2.0**-24 * expected, rel=1e-3)


@pytest.mark.parametrize(("values", "repeats"), [(4, 255), (64, 15), (1024, 0)])
def test_errors_of_terms_with_the_same_value_add_up(values, repeats):
    K, rng = 1024, np.random.default_rng(3)
    a = rng.permutation(np.tile(rng.uniform(1, 2, values), K // values))[None]
    errors = drawn(noisy(), lambda r: r.sum(r.function(a), axis=1) - a.sum(), 64)
    expected = max(K * repeats * a.sum() ** 2 / 45, K / 3 * np.mean(np.cumsum(a[0]) ** 2))
    assert spread(errors)[0] == pytest.approx(2.0**-24 * math.sqrt(expected), rel=0.2)


def test_zeros_of_a_sum_do_not_count_as_equal():
    x = np.where(np.arange(1024) % 8, 0.0, np.random.default_rng(3).uniform(1, 2, 1024))[None]
    errors = drawn(noisy(), lambda r: r.sum(x, axis=1) - x.sum(), 16)
    expected = 1024 / 3 * max(np.mean(np.cumsum(x[0]) ** 2), x.sum() ** 2 / 3 + (x**2).sum() / 6)
    assert spread(errors)[0] == pytest.approx(2.0**-24 * math.sqrt(expected), rel=1e-3)


def test_terms_of_tensor_cores_are_cut_off_however_equal_they_are():
    a, b = np.full((1, 1024), 1.0), np.ones((1024, 40))
    own, _ = parts(drawn(noisy("float16"), lambda r: r.dot(a, b)[0] - 1024, 64))
    assert own < 2.0**-22 * 1024 * math.sqrt(128 / 3)


def test_a_sum_keeps_its_axis_where_that_is_asked():
    x = np.ones((2, 3))
    assert noisy().sum(x, 1).shape == (2,) and noisy().sum(x, 1, keepdims=True).shape == (2, 1)
    assert noisy().sum(x, 0).shape == (3,)


def test_each_element_of_a_product_errs_for_itself():
    a, b = np.ones((1, 64)) * 1.1, np.ones((64, 500))
    own, _ = parts(drawn(noisy(), lambda r: r.dot(a, b)[0] - 70.4, 50))
    both = drawn(noisy(), lambda r: r.dot(a, b)[0] - 70.4, 50).mean(axis=1).std()
    assert both < 0.2 * own


@pytest.mark.parametrize(("dtype", "precision"), [("float16", "ieee"), ("bfloat16", "ieee"), ("float32", "tf32")])
def test_tensor_cores_cut_off_where_they_align(dtype, precision):
    """Steps of 8, at 2^-22 of the partial sum; half of what they cut off adds up towards 0, alike in all elements."""
    K, N = 64, 300
    rng = np.random.default_rng(3)
    a, b = np.full((1, K), 3.0), 5 * rng.uniform(0.9, 1.1, (K, N))
    exact = (a @ b)[0]
    errors = drawn(noisy(dtype, precision), lambda r: r.dot(a, b)[0] - exact) / exact
    own, shared = parts(errors)
    unit, steps = 2.0**-22, K / 8
    # partial sums in the order of memory, looked at 16 times, have the mean square S²/3 and a little more
    square = np.mean((np.arange(4, K + 1, 4) / K) ** 2)
    expected, systematic = unit**2 * steps / 3 * square, unit * steps / 2
    common = 0.0
    if (
        precision == "tf32"
    ):  # two operands each lose from 0 to 2^-10: a mean of half that, a variance of its square / 12; what a loses is in all columns
        expected += 2.0**-20 / 12 / K
        common = 2.0**-20 / 12 / K
        systematic += 2.0**-10
    assert own == pytest.approx(math.sqrt(expected), rel=0.06)
    assert shared == pytest.approx(math.hypot(systematic / math.sqrt(3), math.sqrt(common)), rel=0.1), (
        "uniform from all to none, either way"
    )
    assert np.abs(errors.mean(axis=1)).max() < 1.05 * systematic + math.sqrt(3 * common)


def test_what_tensor_cores_cut_off_adds_up_along_the_way_to_a_sum_near_zero():
    K, N = 64, 300
    a, b = np.ones((1, K)), np.repeat([[1.0], [-1.0]], K // 2, axis=0) * np.ones((K, N))
    _, shared = parts(drawn(noisy("float16"), lambda r: r.dot(a, b)[0]))
    mean = 16.0  # of the partial sums, which rise to 32 and fall to 0
    assert shared == pytest.approx(2.0**-22 * K / 8 / 2 * mean / math.sqrt(3), rel=0.1)


def test_tensor_cores_take_part_of_a_step_as_a_whole_one():
    one, nine = (np.ones((1, K)) for K in (8, 9))
    spreads = [
        spread(drawn(noisy("float16"), lambda r, a=a: r.dot(a, np.ones((a.shape[1], 50))) - a.shape[1])).mean()
        for a in (one, nine)
    ]
    assert spreads[1] / 9 > 1.3 * spreads[0] / 8


def test_what_is_cut_off_goes_one_way_in_all_products_of_a_draw():
    a = np.ones((1, 800))
    b = np.ones((800, 20))
    pairs = drawn(noisy("bfloat16"), lambda r: np.array([r.dot(a, b).mean(), r.dot(a, b).mean()]) - 800, 60)
    assert np.corrcoef(pairs.T)[0, 1] > 0.9
    plain = drawn(noisy(), lambda r: np.array([r.dot(a, b).mean(), r.dot(a, b).mean()]) - 800, 60)
    assert abs(np.corrcoef(plain.T)[0, 1]) < 0.4


@pytest.mark.parametrize(("mean", "shared"), [(0.0, 0.0), (50.0, 1 / 2)])
def test_what_operands_of_tf32_lose_is_shared_where_the_others_have_a_mean(mean, shared):
    """What an operand loses is in a whole column: of the other ones' mean that is the same in all rows. No element is further off by it."""
    rng = np.random.default_rng(3)
    a, b = mean + rng.standard_normal((300, 16)), rng.standard_normal((16, 40))
    product = a @ b
    errors = drawn(noisy("float32", "tf32"), lambda r: r.dot(a, b) - product, 480)
    truncation = (errors * product).sum(axis=(1, 2)) / (product**2).sum()  # the share that all elements lose
    errors = (errors - truncation[:, None, None] * product) / (2.0**-10 * np.sqrt((a**2) @ (b**2) / 6))
    assert np.median(spread(errors)) == pytest.approx(1, abs=0.05)
    assert np.median(spread(errors.mean(axis=1)) ** 2) == pytest.approx(shared, abs=0.1)


def test_other_rows_have_their_noise_where_one_is_not_finite():
    a, b = np.ones((3, 8)), np.ones((8, 5))
    a[0] = [INF, -INF, *[NAN] * 6]
    with np.errstate(invalid="ignore"):
        draws = drawn(noisy("float32", "tf32"), lambda r: r.dot(a, b)[1:] - 8, 64)
    assert spread(draws).min() > 8 * 2.0**-12


def test_tf32_loses_all_of_a_subnormal():
    a, b = np.array([[2.0**-130, 0.0]]), np.ones((2, 1))
    errors = drawn(noisy("float32", "tf32"), lambda r: r.dot(a, b)[0] - 2.0**-130, 600)
    assert spread(errors)[0] / 2.0**-135 == pytest.approx(math.sqrt(1 / 6), rel=0.1)
    none = drawn(noisy("float32", "tf32"), lambda r: r.dot(np.zeros((1, 2)), b)[0], 20)
    assert np.abs(none).max() < 2.0**-147, "a zero loses nothing"
    normal = drawn(noisy("float32", "tf32"), lambda r: r.dot(a * 16, b)[0] - 2.0**-126, 600)
    assert spread(normal)[0] / 2.0**-136 == pytest.approx(math.sqrt(1 / 6 + 1 / 3), rel=0.1), (
        "the smallest normal number"
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_products_below_the_smallest_number_are_lost(dtype):
    """Half of the smallest subnormal at each of K steps, at most."""
    a, b = np.full((1, 48), 2.0**-100), np.full((48, 1), 2.0**-100)
    errors = drawn(noisy(dtype), lambda r: r.dot(a, b)[0], 800)
    assert spread(errors)[0] / 2.0**-150 == pytest.approx(4, rel=0.06)


def test_noise_follows_the_sums_of_its_own_formula():
    """Sizes are kept from draw to draw, in the order of the formula: the second sum does not get those of the first."""

    def evaluate(r):
        return np.array([r.sum(np.full(100, 1000.0), 0) - 1e5, r.sum(np.full(100, 1.0), 0) - 100])

    large, small = spread(drawn(noisy(), evaluate))
    assert large / small == pytest.approx(1000, rel=0.2)


def test_an_infinite_product_stays_infinite():
    with np.errstate(invalid="ignore"):
        got = noisy("float16").dot(np.array([[INF, 1.0], [-INF, 1.0], [NAN, 1.0]]), np.ones((2, 1)))[:, 0]
    assert got[0] == INF and got[1] == -INF and np.isnan(got[2])


def test_a_cancelling_identity_is_owed_the_sum_that_cancels_in_16_bits_alone():
    a, b, scale = np.full((1, 64), 10.0), np.random.default_rng(4).uniform(0.9, 1.1, (64, 200)), np.array([[-3.0]])
    value = np.ones((1, 200))
    point = ("one_pass", value, a, b, scale)
    for r in (noisy("float16"), noisy("float32", points=("one_pass",)), noisy("float32", "tf32", ("one_pass",))):
        assert r.one_pass(*point) is value
    errors = drawn(noisy("float16", points=("one_pass",)), lambda r: r.one_pass(*point) - 1)
    alone = drawn(noisy("float16"), lambda r: r.dot(a, b) - a @ b)
    assert spread(errors).mean() == pytest.approx(3 * spread(alone).mean(), rel=0.1)


# Points that count in float32 too


def test_a_program_that_does_not_sum_in_float16_is_owed_nothing():
    a, b, value = np.full((1, 64), 10.0), np.ones((64, 20)), np.ones((1, 20))
    for dtype in DTYPES:
        r = noisy(dtype, points=("one_pass",))
        assert r.half_sums(value, a, b, np.ones((1, 1))) is value
        assert r.fast_variance(value, a, np.ones((1, 1))) is value
    exact = Exact()
    assert exact.half_sums(value, a, b, np.ones((1, 1))) is value and exact.fast_variance(value, a, a) is value
    assert exact.seen == {"half_sums", "fast_variance"} < set(COMPUTED)


def test_a_float16_accumulator_rounds_once_for_eight_terms():
    a, b, scale = np.full((1, 64), 10.0), np.random.default_rng(4).uniform(0.9, 1.1, (64, 200)), np.array([[-3.0]])
    r = noisy("float16", points=("half_sums",))
    errors = drawn(r, lambda r: r.half_sums(np.ones((1, 200)), a, b, scale) - 1)
    of_float32 = spread(drawn(noisy(), lambda r: r.dot(a, b) - a @ b)).mean()
    assert spread(errors).mean() == pytest.approx(3 * 2**13 / math.sqrt(8) * of_float32, rel=0.05)
    narrowed = noisy(points=("half_sums",))  # float32 operands are rounded too
    more = drawn(narrowed, lambda r: r.half_sums(np.ones((1, 200)), a, b, scale) - 1)
    operands = 3 * 2.0**-11 * math.sqrt(2 / 3 * 6400)
    assert spread(more).mean() == pytest.approx(math.hypot(spread(errors).mean(), operands), rel=0.05)


def test_a_float16_accumulator_loses_subnormals_and_overflows():
    a, b, scale = np.full((1, 16), 1e-9), np.full((16, 500), 1e-3), np.ones((1, 1))
    r = noisy("float16", points=("half_sums",))
    lost = drawn(r, lambda r: r.half_sums(a @ b, a, b, scale) - a @ b)
    assert spread(lost).mean() == pytest.approx(2.0**-25 * math.sqrt(2 / 3), rel=0.05)
    large = np.array([[30000.0, -30000.0, 20000.0]]), np.ones((3, 2)) * [1.0, 0.5]
    r = noisy("float16", points=("half_sums",))
    found = drawn(r, lambda r: r.half_sums(np.zeros((1, 2)), *large, scale)[0], 16)
    first = found[:, 0]
    assert [np.sum(first == INF), np.sum(first == -INF), np.sum(np.isnan(first)), np.sum(np.isfinite(first))] == [
        1,
        1,
        1,
        13,
    ]
    assert np.isfinite(found[:, 1]).all(), "40 000 at the most"


@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_a_fast_variance_errs_by_the_squares_that_cancel(mean):
    a = np.random.default_rng(6).standard_normal((50, 64)) + mean
    means, variance = a.mean(axis=1, keepdims=True), a.var(axis=1, keepdims=True)
    r = noisy(points=("fast_variance",))
    found = drawn(r, lambda r: r.fast_variance(variance, a, means))
    unit = 2.0**-24 * (a**2).mean(axis=1, keepdims=True)
    assert (found >= 0).all() and 0.5 < np.mean(spread(found - variance) / unit) < 5


# Steps


def test_steps_that_rounding_may_cross_are_crossed_by_each_element_in_half_of_the_draws():
    value, size = np.array([0.0] * 400 + [1.0, -1.0]), np.ones(402)
    found = drawn(noisy(), lambda r: r.positive(value, size), 16)
    assert (found[:, :400].sum(axis=0) == 8).all() and (found[:, 400] == 1).all() and (found[:, 401] == 0).all()
    assert (drawn(noisy(), lambda r: r.positive(np.array([0.0, 1e-9]), np.zeros(2)), 16) == 0).all(), "sums of zeros"
    assert ((found[:, :400].sum(axis=1) > 150) & (found[:, :400].sum(axis=1) < 250)).all(), "not by all together"


def test_steps_of_a_relu_that_may_go_either_way_do_not_cancel_in_a_sum():
    """Two rows at the step, whose shares have opposite signs: a program may have one of them without the other."""
    z, shares = np.full((2, 1), 0.001), np.array([[3.0], [-3.0]])
    r = noisy("bfloat16", points=("sum",))
    sums = drawn(r, lambda r: (r.positive(z, np.ones((2, 1))) * shares).sum(), r.draws)
    assert set(sums) == {-3.0, 0.0, 3.0}


@pytest.mark.parametrize(("dtype", "points", "unit"), [("bfloat16", ("sum",), 2.0**-7), ("float32", (), 2.0**-22)])
def test_sums_just_below_0_pass_a_relu_in_half_of_the_draws(dtype, points, unit):
    """By less than noise: a true program may have one of them above 0, which no draw of its noise may show."""
    z = np.array([[1.0, -3.9 * unit, -4.1 * unit, -1.0, *[1.0] * 996]])
    found = drawn(noisy(dtype, points=points), lambda r: r.relu(z), 16)[:, 0]
    assert sorted(set(found[:, 1])) == [0, pytest.approx(unit / 4, rel=2e-3)] and (found[:, 1] > 0).sum() == 8
    assert (found[:, 2:4] == 0).all() and (found[:, [0, 4]] == 1).all()
    assert (Exact().relu(z) == np.maximum(z, 0)).all()


def test_a_relu_on_the_way_keeps_nan_and_infinities_open_nothing():
    z = np.array([[np.nan, 1.0, -1.0], [np.inf, -np.inf, -1.0]])
    for r in (Exact(), noisy()):
        np.testing.assert_array_equal(r.relu(z), [[np.nan, 1.0, 0.0], [np.inf, 0.0, 0.0]])


def test_a_step_that_rounding_cannot_cross_stays_where_it_is():
    z, r = np.array([[0.5, -0.5], [2.0, -3.0]]), noisy("bfloat16", points=("sum",))
    assert (drawn(r, lambda r: r.positive(z, np.ones((2, 1))), r.draws) == (z > 0)).all()


@pytest.mark.parametrize("draws", [4, 16])
def test_what_is_computed_in_either_of_two_ways_errs_by_no_less_than_one(draws):
    """A difference in which the errors of one way cancel, and those of the other do not."""
    case, a = toys.case("float32", "tf32"), np.random.default_rng(0).uniform(1, 2, (200, 1))
    assert Exact().either(a, a + 1) is a
    r, squares = Noisy(case, (), np.random.default_rng(1), draws=draws), []
    for _ in range(draws):
        error = np.random.default_rng(2 + r.draw).standard_normal(a.shape)
        squares.append((a + error - r.either(a + error, a)) ** 2)
        r.next_draw()
    assert np.mean(squares) > 1
    assert np.mean([s.max() == 0 for s in squares]) == 0.5, "half of the draws have the first way"
