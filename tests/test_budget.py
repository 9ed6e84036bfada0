"""From noisy draws to a budget: by hand, against what docs/numerics.md derives, and by fresh draws of the model itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import toys

from fusebench.parity import budget
from fusebench.parity.budget import Neighbours, derive, prediction, quantile
from fusebench.parity.elements import spacing, stored
from fusebench.parity.noise import Noisy
from fusebench.parity.rounding import Exact, Stored

INF, NAN = np.inf, np.nan
MOST = 16 + 240  # draws of an element's own, and those that its group is worth at the most


def derived(exact, own, staged=None, dtype="float32", elements=0):
    """From 16 draws that are off by +own and -own in turn."""
    exact, own = np.asarray(exact, float), np.asarray(own, float)
    draws = [exact + (own if i % 2 else -own) for i in range(16)]
    return derive(exact, draws, exact if staged is None else staged, dtype, elements)


def one_at(size, at, value=1.0):
    array = np.zeros(size)
    array[at] = value
    return array


# Quantiles


@pytest.mark.parametrize(
    ("freedom", "elements", "deviations"), [(1e9, 1, 4.4172), (16, 1, 6.3300), (256, 8, 4.9660), (24, 100, 7.4867), (16, 0, 6.3300)]
)  # fmt: skip
def test_one_of_all_elements_is_beyond_its_quantile_once_in_100_000_outputs(freedom, elements, deviations):
    """Two-sided quantiles of Student's t, from tables."""
    assert quantile(freedom, elements) == pytest.approx(deviations, abs=1e-4)


def test_quantiles_know_how_few_draws_a_deviation_is_from(monkeypatch):
    """Once in 100 here: of normal numbers, in units of deviations from 16 draws each."""
    monkeypatch.setattr(budget, "ALARMS", 0.01)
    rng, n = np.random.default_rng(0), 200_000
    deviation = np.sqrt(np.mean(rng.standard_normal((16, n)) ** 2, axis=0))
    beyond = np.mean(np.abs(rng.standard_normal(n)) > quantile(16, 1) * deviation)
    assert beyond == pytest.approx(0.01, rel=0.1)
    assert np.mean(np.abs(rng.standard_normal(n)) > quantile(1e9, 1) * deviation) > 0.015, "as if it were known"


@pytest.mark.parametrize(("draws", "deviations"), [(16, 6.7018), (4, 67.5257), (2, 77970)])
def test_a_further_draw_is_within_the_prediction_interval(draws, deviations):
    assert prediction(draws) == pytest.approx(deviations, rel=1e-3)


# One element


@pytest.mark.parametrize("elements", [0, 8, 100_000])
def test_an_element_may_be_off_by_its_quantile_and_what_is_stored(elements):
    """The judged rows may be a few of many: the quantile is for all elements."""
    exact = np.arange(1.0, 9.0)
    found = derived(exact, np.full(8, 0.5), exact + one_at(8, 3, -0.25), elements=elements)
    np.testing.assert_allclose(found.reach, 0.5 * quantile(16 + 16 * 7, max(8, elements)) + one_at(8, 3, 0.25))
    np.testing.assert_allclose(found.limit - found.reach, spacing(exact + found.reach, "float32") / 2)
    np.testing.assert_allclose(found.deviation, 0.5, rtol=1e-6)


def test_the_last_rounding_has_a_deviation_too():
    found = derived(np.full(8, 1.0), np.full(8, 0.5), dtype="bfloat16")
    np.testing.assert_allclose(found.deviation, math.sqrt(0.25 + 2.0**-14 / 12))
    np.testing.assert_allclose(
        derived(np.full(8, 1.0), np.zeros(8), dtype="bfloat16").deviation, 2.0**-7 / math.sqrt(12)
    )


@pytest.mark.parametrize(
    ("at", "group"), [(50, range(48, 64)), (0, range(16)), (15, range(16)), (16, range(16, 32)), (83, range(80, 96)),
                      (90, range(80, 100)), (99, range(96, 100))]
)  # fmt: skip
def test_neighbours_are_groups_of_16_in_value(at, group):
    """Those left over at the end are held against the last 16, some of which are in a group of their own."""
    order = np.random.default_rng(0).permutation(100)
    exact = np.arange(1.0, 101.0)
    found = Neighbours(exact[order][None]).mean(one_at(100, at, 16.0)[order][None])[0][np.argsort(order)]
    expected = np.zeros(100)
    expected[group] = 1
    np.testing.assert_allclose(found, expected)


def test_the_noisiest_quarter_of_a_group_counts_where_draws_are_few():
    exact = np.arange(64.0)
    own = np.zeros(64)
    own[[1, 4, 9, 14, 15]] = 9.0, 8.0, 7.0, 6.0, 5.0
    expected = np.repeat([7.5, 0, 0, 0], 16)
    np.testing.assert_allclose(Neighbours(exact).noisiest(own), expected)
    np.testing.assert_allclose(Neighbours(exact[:5]).noisiest(own[:5]), 9.0), "of five elements one"


def test_neighbours_are_of_the_same_row_where_it_is_long():
    """A row of 64 is; shorter ones are taken together."""
    for width, alone in ((64, True), (63, False)):
        exact = np.arange(2.0 * width).reshape(width, 2).T + 1  # the rows alternate in value
        found = Neighbours(exact).mean(np.stack([np.ones(width), np.zeros(width)]))
        np.testing.assert_allclose(found, np.stack([np.ones(width), np.zeros(width)]) if alone else 0.5, atol=1 / 15)


def test_a_few_elements_are_neighbours_of_one_another():
    np.testing.assert_allclose(Neighbours(np.array([1.0, 2.0, 3.0])).mean(np.array([3.0, 0.0, 0.0])), 1.0)
    assert derived(np.zeros((0, 3)), np.zeros((0, 3))).reach.shape == (0, 3)
    assert derived(np.array(2.0), np.array(1.0)).reach == pytest.approx(quantile(16, 1))
    assert Neighbours(np.zeros((0, 3))).noisiest(np.zeros((0, 3))).shape == (0, 3)


def test_neighbours_that_err_alike_count_for_all_of_their_draws():
    """Every element has the same variance, as far as 16 draws can tell: each takes its group's."""
    rng = np.random.default_rng(1)
    exact = np.arange(1.0, 1601.0)
    draws = [exact + rng.standard_normal(1600) for _ in range(16)]
    found = derive(exact, draws, exact, "float32")
    assert np.ptp(found.deviation) < 0.35 and found.deviation.mean() == pytest.approx(1, abs=0.02)
    assert found.reach.mean() == pytest.approx(quantile(MOST, 1600), rel=0.03)


def test_neighbours_that_do_not_err_alike_count_for_little():
    """Every other element errs ten times as much, the louder ones keep their own."""
    rng = np.random.default_rng(1)
    exact, size = np.arange(1.0, 1601.0), np.tile([0.1, 1.0], 800)
    draws = [exact + size * rng.standard_normal(1600) for _ in range(16)]
    found = derive(exact, draws, exact, "float32")
    quiet, loud = (found.deviation[size == s].mean() for s in (0.1, 1.0))
    assert 0.8 < loud <= 1.05 and quiet < 0.5
    assert 5 < found.reach[size == 1].mean() / loud < 14, "by the quantile of about 18 draws"


@pytest.mark.parametrize("loud", [2, 4, 40])
@pytest.mark.parametrize("quiet", [1e-2, 1e-5])
def test_neighbours_that_are_quite_unlike_an_element_do_not_widen_what_it_may_do(loud, quiet):
    """One in `loud` has an open step, whose noise is that of no other's. Where such are few, and where the others move by next to nothing,
    their own draws say how far these may be off."""
    exact, size = np.arange(1.0, 641.0), np.where(np.arange(640) % loud == 0, 1.0, quiet)
    draws = [exact + size * noise for noise in np.random.default_rng(1).standard_normal((16, 640))]
    found = derive(exact, draws, exact, "float32")
    alone = quiet < 1e-3 or loud > 2
    assert (found.reach[size < 1].max() < 20 * quiet) == alone and found.alike >= 2
    assert found.reach[size == 1].min() > 3


@pytest.mark.parametrize("moved", [0.0, 1e-41])
def test_a_zero_is_owed_the_noise_of_the_least_values_beside_it(moved):
    """Behind a relu that noise opens once in a hundred draws: in all of these the smallest numbers alone rounded there."""
    exact = np.concatenate([np.zeros(8), np.arange(1.0, 633.0)])
    size = np.where(exact == 0, moved, np.where(np.arange(640) % 3, 1.0, 1e-2))
    draws = [exact + size * noise for noise in np.random.default_rng(1).standard_normal((16, 640))]
    assert derive(exact, draws, exact, "float32").reach[:8].min() > 1


def test_one_that_is_unlike_its_neighbours_keeps_half_of_its_own_variance():
    found = derived(np.arange(1.0, 65.0), one_at(64, 5))
    assert found.deviation[5] ** 2 == pytest.approx(max(16 / 32, 31 / 256), rel=1e-6)
    assert found.deviation[0] ** 2 == pytest.approx(15 / 256, rel=1e-6), "and its group has the rest"
    assert found.deviation[16] < 1e-3


@pytest.mark.parametrize(("more", "weight"), [(0.0, 256), (0.5, 4), (1.0, 2), (3.0, 2 / 3), (0.05, 40)])
def test_how_alike_neighbours_are_is_what_chance_leaves(more, weight):
    """own ÷ neighbours' varies by 2 ÷ draws from chance alone."""
    ratio = 1 + math.sqrt(2 / 16 + more) * np.tile([1.0, -1.0], 8) if more < 0.8 else np.array([1e-9, 2.0, 2 - 1e-9])
    if more >= 0.8:
        ratio = 10 + math.sqrt(2 / 16 + more) * np.tile([1.0, -1.0], 8)
    assert budget.prior_draws(ratio, np.ones(ratio.size), 16) == pytest.approx(weight)


def test_what_hardly_moves_says_nothing_of_its_neighbours():
    own = np.concatenate([np.full(16, 1e-7), np.ones(16)])
    assert budget.prior_draws(own, np.ones(32), 16) == 256 and budget.prior_draws(np.zeros(4), np.zeros(4), 16) == 16
    assert budget.prior_draws(np.where(own < 1, 1e-5, 1.0), np.ones(32), 16) < 20


def test_the_end_of_a_relu_is_owed_the_variance_beside_it():
    """A zero that noise did not cross has the mean variance of the 16 least values that are none."""
    exact = np.concatenate([np.zeros(50), -np.arange(1.0, 51.0)])  # by size, not by sign

    def of_zeros(own, values=exact):
        return Neighbours(np.asarray(values)).mean(np.asarray(own, float))

    own = np.concatenate([np.zeros(50), np.ones(8), np.zeros(42)])
    assert set(of_zeros(own)[:50]) == {0.5, 9 / 16}, "14 zeros are in a group with -1 and -2"
    assert (of_zeros(np.concatenate([np.zeros(66), np.ones(34)]))[:50] == 0).all()
    assert set(of_zeros(np.concatenate([np.ones(50), np.zeros(50)]))[:50]) == {1, 14 / 16}, "no less than its own"
    assert (of_zeros(np.ones(40), np.zeros(40)) == 1).all(), "nothing but zeros"
    rows = of_zeros(np.stack([np.zeros(100), np.concatenate([np.zeros(50), np.ones(50)])]), np.tile(exact, (2, 1)))
    assert (rows[0] == 0).all() and (rows[1] == 1).all(), "each row for itself"
    infinite = np.concatenate([[INF, NAN], np.zeros(50), np.arange(1.0, 17.0)])
    np.testing.assert_allclose(of_zeros(np.concatenate([np.zeros(52), np.ones(16)]), infinite)[2:52], 1.0)


# Few draws


def test_an_element_that_is_noisy_alone_is_held_to_the_noisiest_of_its_row():
    """Such as one of GELU near 0 beside those of its flat side: its own draws are few, and the others' say nothing of it."""
    exact, own = np.arange(128.0)[None] + np.zeros((2, 1)), np.ones((2, 128)) * 1e-6
    own[0, 64:], own[0, 20] = 25.0, 1e-3
    neighbours = Neighbours(exact)
    bound = neighbours.bound(own, neighbours.noisiest(own))
    assert bound[0, 20] == 25.0 and bound[0, 21] == pytest.approx((1e-3 + 3e-6) / 4)
    np.testing.assert_allclose(bound[1], 1e-6, err_msg="of its own row")
    np.testing.assert_allclose(bound[0, 64:], 25.0)
    few = neighbours.bound(np.where(own == 1e-3, 1.5e-6, own), own * 0 + 1e-6)
    assert few[0, 20] == 1e-6, "up to 1.5 times the noisiest is chance"
    assert Neighbours(np.zeros((0, 3))).bound(np.zeros((0, 3)), np.zeros((0, 3))).shape == (0, 3)


def test_few_draws_are_held_to_the_noisiest_neighbours_and_to_what_16_showed():
    exact, own = np.arange(64.0), np.repeat([1.0, 4.0], 32)
    found = budget.reach_of_few(Neighbours(exact), exact, own, 4, exact + one_at(64, 3, 0.5), 2.25, 1000)
    expected = quantile(64, 1000) * np.sqrt(2.25 * own) + one_at(64, 3, 0.5)
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize(("draws", "share"), [(4, 0.2), (16, 0.5)])
def test_one_of_few_draws_that_is_unlike_its_neighbours_keeps_some_of_its_own(draws, share):
    """Its noisiest neighbours are a quarter its own: it is one of four."""
    exact = np.arange(1.0, 65.0)
    found = budget.reach_of_few(Neighbours(exact), exact, one_at(64, 5), draws, exact, 1.0, 1)
    assert found[5] == pytest.approx(quantile(16 * draws, 1) * math.sqrt(max(0.25, share)))
    assert found[16] == 0


def test_excess_is_what_16_draws_show_beyond_chance():
    own, noisiest = np.ones(100), np.ones(100)
    assert budget.excess(own, noisiest, 16) == 1 and budget.excess(own, np.zeros(100), 16) == 1
    # one of 100 sums of 16 squares is beyond 52.245 once in 1000 times
    assert budget.excess(toys.edit(own, 7, 3.26), noisiest, 16) == 1
    assert budget.excess(toys.edit(own, 7, 6.6), noisiest, 16) == pytest.approx(6.6 * 16 / 52.245, rel=1e-4)
    assert derived(np.arange(1.0, 65.0), one_at(64, 5)).excess == pytest.approx(4 * 16 / 47.239, rel=1e-3)


# All elements together


def test_all_together_may_be_what_the_draws_are():
    """A draw is held against the deviation of the other 15, and 4 elements may be one deviation worse."""
    exact, staged = np.zeros(50), 3.0
    draws = [np.full(50, s).astype(np.float32).astype(float) for s in np.linspace(-1.2, 1.8, 16)]
    sizes = np.array([d[0] for d in draws])
    found = derive(exact, draws, np.full(50, staged), "float32")
    deviation = math.sqrt(np.mean(sizes**2))
    normal = sizes / np.sqrt((np.sum(sizes**2) - sizes**2) / 15)
    np.testing.assert_allclose(found.deviation, deviation)
    wide = prediction(16)
    assert found.rms_limit == pytest.approx(staged / deviation + wide * np.abs(normal).std(ddof=1) + 4 / 50)
    width = wide * normal.std(ddof=1) + 4 / 50
    assert found.mean_limits == pytest.approx((normal.mean() - width, staged / deviation + width))
    below = derive(exact, draws, np.full(50, -0.001), "float32")
    assert below.rms_limit == pytest.approx(np.abs(normal).mean() + wide * np.abs(normal).std(ddof=1) + 4 / 50)
    assert below.mean_limits == pytest.approx((-0.001 / deviation - width, normal.mean() + width), rel=1e-5)


def test_draws_are_looked_at_as_they_are_stored():
    exact = np.full(50, 1.0)
    found = derive(exact, [exact + 2.0**-9] * 16, exact, "bfloat16")  # a quarter of a spacing: stored it is gone
    assert found.rms_limit == found.mean_limits[1] == 4 / 50


def test_where_overflow_may_leave_something_is_known_by_its_sign():
    exact = np.array([65504.0, -65504.0, 1.0, 2.0])
    draws = [exact.copy() for _ in range(16)]
    draws[3] = np.array([65521.0, -65504.0, 1.0, 2.0])
    staged = np.array([65504.0, -INF, 1.0, NAN])
    found = derive(exact, draws, staged, "float16").nonfinite
    where = {str(k): v.tolist() for k, v in found.items()}
    assert where == {
        "inf": [True, False, False, False],
        "-inf": [False, True, False, False],
        "nan": [False, False, False, True],
    }
    assert not derive(exact, [exact] * 16, exact, "float16").nonfinite
    infinite = np.array([INF])
    assert list(derive(infinite, [infinite] * 16, infinite, "float16").nonfinite) == [INF]


def test_overflow_is_no_size_of_an_error():
    exact = np.array([1.0, 2.0])
    assert (derive(exact, [exact] * 15 + [INF * exact], INF * exact, "float16").reach == 0).all()


def test_errors_are_zero_where_both_are_the_same_and_infinite_where_one_is_not_finite():
    got = np.array([1.5, INF, -INF, NAN, INF, NAN, 1.0, INF, 1.0])
    expected = np.array([1.0, INF, -INF, NAN, -INF, 1.0, NAN, 1.0, INF])
    assert budget.errors(got, expected).tolist() == [0.5, 0, 0, 0, INF, INF, INF, INF, INF]
    may = {INF: np.array([False] * 7 + [True, False]), NAN: np.array([False] * 5 + [True] + [False] * 3)}
    assert budget.errors(got, expected, may).tolist() == [0.5, 0, 0, 0, INF, 0, INF, 0, INF]


def test_together_counts_finite_errors_in_deviations():
    found = budget.together(np.array([3.0, -4.0, 0.0, INF]), np.array([1.0, 2.0, 0.0, 1.0]))
    assert (found.rms, found.mean) == pytest.approx((math.sqrt(13 / 4), 0.25))
    found = budget.together(np.array([2.0, 0.0]), np.array([0.0, 0.0]))
    assert (found.rms, found.mean) == pytest.approx((math.sqrt(2), 1.0))
    found = budget.together(np.zeros(0), np.zeros(0))
    assert (found.rms, found.mean) == (0, 0)


def test_figures_of_chunks_are_those_of_all_elements():
    error, deviation = np.arange(9.0), np.linspace(1, 2, 9)
    parts = [budget.together(error[at], deviation[at]) for at in (slice(0, 2), slice(2, 9))]
    found, expected = parts[0] + parts[1], budget.together(error, deviation)
    assert (found.count, found.rms, found.mean) == (9, pytest.approx(expected.rms), pytest.approx(expected.mean))


# Fresh draws of the model itself


def product(r, a, b):
    return r.round("output", r.compute(r.round("product", r.dot(a, b)) + 1.0))


def softmax(r, x):
    e = r.function(np.exp(r.compute(x - x.max(axis=1, keepdims=True))))
    return r.function(e / r.sum(e, axis=1, keepdims=True), 1.0)


@pytest.mark.parametrize(
    ("formula", "dtype", "points"),
    [(product, "bfloat16", ("product",)), (product, "float32", ()), (softmax, "float32", ()), (softmax, "float16", ())],
)
def test_a_fresh_draw_of_the_model_is_accepted(formula, dtype, points):
    """200 of them, each one stored: neither an element nor all together are beyond what the model's own draws allow."""
    rng = np.random.default_rng(2)
    given = [toys.store(a, dtype).astype(float) for a in (rng.standard_normal((24, 40)), rng.standard_normal((40, 24)))]
    arguments = given if formula is product else given[:1]
    case = toys.case(dtype)

    def made(seed, count):
        r = Noisy(case, points, np.random.default_rng(seed))
        return [formula(r.next_draw(), *arguments) for _ in range(count)]

    exact = formula(Exact(), *arguments)
    found = derive(exact, made(0, 16), formula(Stored(case, points), *arguments), dtype)
    rejected = 0
    for seed in range(1, 201):
        got = stored(made(seed, 1)[0], dtype)
        of_all = budget.together(got - exact, found.deviation)
        together = of_all.rms <= found.rms_limit and found.mean_limits[0] <= of_all.mean <= found.mean_limits[1]
        rejected += not (together and np.all(np.abs(got - exact) <= found.limit))
    assert rejected <= 1


# Elements that nothing rounds


def test_elements_that_nothing_rounds_say_nothing_of_others_of_their_value():
    """Table rows that a step copies stand among those that it changes."""
    exact = stored(np.random.default_rng(3).standard_normal((200, 4)), "float32")
    own = np.zeros((200, 4))
    own[::20] = np.random.default_rng(4).uniform(0.5, 2, (10, 4)) * 1e-3
    moving = own > 0
    found, alone = derived(exact, own, elements=800), derived(exact[moving], own[moving], elements=800)
    assert np.allclose(found.limit[moving], alone.limit) and np.allclose(found.deviation[moving], alone.deviation)
    assert np.array_equal(found.limit[~moving], spacing(exact[~moving], "float32") / 2)
    assert found.rms_limit == pytest.approx(alone.rms_limit * math.sqrt(0.05))


def test_zeros_are_no_elements_that_nothing_rounds():
    exact, own = np.zeros((40, 4)), np.zeros((40, 4))
    exact[::2], own[::2] = 1.0, 1e-3
    assert (derived(exact, own).reach[1::2] > 1e-3).all(), "a relu's end, which noise did not happen to cross"


def test_what_overflow_may_reach_says_nothing_of_all_together():
    """Half of the elements overflow in some draw: a program that is finite there may be off by half a spacing, and is no alarm."""
    exact = np.arange(1.0, 17.0) + 0.4
    draws = [exact + 0.01 * np.random.default_rng(n).standard_normal(16) for n in range(16)]
    for drawn in draws:
        drawn[::2] = NAN
    found = derive(exact, draws, exact, "float16")
    assert np.isinf(found.deviation[::2]).all() and np.isfinite(found.deviation[1::2]).all()
    same = derive(exact[1::2], [d[1::2] for d in draws], exact[1::2], "float16")
    assert found.rms_limit > 4 / 16 and same.rms_limit > 4 / 8
    error = budget.together(np.full(16, 0.5), found.deviation)
    assert error.squares == pytest.approx(budget.together(np.full(8, 0.5), found.deviation[1::2]).squares)


def test_what_nothing_moves_is_rounded_as_it_is_stored():
    """Elements of which no draw differs, in an output with others: their own rounding is known, and is the same for every right program."""
    exact = np.array([0.1, 0.7, 1.3, 1.9, 2.5, 3.1, NAN, NAN])  # where nothing else is finite nothing else moves
    found = derive(exact, [exact] * 16, exact, "float32")
    right = budget.together(budget.errors(stored(exact, "float32"), exact), found.deviation)
    few = 4 / 2  # of the two NaN, the only elements that are left
    assert found.rms_limit == pytest.approx(math.hypot(right.rms, few * math.sqrt(2 / 8))) and right.rms > 0.8
    assert (
        found.mean_limits == pytest.approx((right.mean - few * 2 / 8, right.mean + few * 2 / 8)) and right.mean < -0.4
    )
    assert (found.limit[:6] == spacing(exact[:6], "float32") / 2).all()
