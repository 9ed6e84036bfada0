"""What the judge makes of one thing at a time: an element, all of them together, rows, infinities, several outputs.

A kernel here is one line. What it says is told through verdicts, so that another rule can be held to the same.
"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import toys
from toys import copied, edit, part, step, store

from fusebench.contract import DTYPES
from fusebench.parity.budget import quantile
from fusebench.parity.judge import Judge
from fusebench.parity.verdict import Asked, Together, Verdict, Worst

RNG = np.random.default_rng(3)
BITS = {"float32": 24, "float16": 11, "bfloat16": 8}  # of the significand
INF, NAN = np.inf, np.nan


# A single element


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", ["1", "1.5", "-3", "largest", "smallest normal", "subnormal", "0"])
def test_a_copy_is_judged_to_the_last_bit(dtype, value):
    finfo = ml_dtypes.finfo(store(0, dtype).dtype)
    known = {"largest": finfo.max, "smallest normal": finfo.tiny, "subnormal": 8 * float(finfo.smallest_subnormal)}
    x = np.full((1, 5), float(known.get(value, 0) or value))
    judge = toys.judge(copied, x, dtype)
    right = store(x, dtype)
    assert judge.judge([right], ()).ok
    apart = -1 if value == "largest" else 1
    verdict = judge.judge([edit(right, (0, 3), step(right[0, 3], dtype, apart))], ())
    assert not verdict.ok
    assert verdict.ratio == pytest.approx(2) and verdict.ulps == pytest.approx(1) and verdict.index == (0, 3)
    gap = abs(float(step(right[0, 3], dtype, apart)) - float(right[0, 3]))
    assert verdict.max_abs == pytest.approx(gap, abs=0) and verdict.budget == pytest.approx(gap / 2, abs=0)


def budgets(judge, right, places, points=("part",)):
    """What each of those elements may be off by, from verdicts in which it is the worst."""
    found = []
    for place in places:
        verdict = judge.judge([edit(right, place, 100 * right[place])], points)
        assert verdict.index == place
        found.append(verdict.budget)
    return np.array(found)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_stored_intermediate_may_move_an_element_by_its_quantile_of_its_rounding(dtype):
    x = store(RNG.uniform(3.3, 6.1, (1, 600)), dtype)
    judge, right = toys.judge(part, x, dtype), store(x.astype(float) / np.pi, dtype)
    spacing = 2.0 ** (1 - BITS[dtype])
    exact = x.astype(float)[0] / np.pi
    repeats = np.abs(store(exact, dtype).astype(float) - exact)  # what the rounding of these very values does
    found = budgets(judge, right, [(0, i) for i in range(0, 600, 6)])
    expected = quantile(200, 600) * spacing / np.sqrt(12) + repeats[::6] + spacing / 2
    assert found.mean() == pytest.approx(expected.mean(), rel=0.05)
    assert np.corrcoef(found, repeats[::6])[0, 1] > 0.4, "the rounding of these very values is a term of its own"


def exponential(case, r, x):
    return (r.function(np.exp(x)),)


def test_who_flushes_subnormals_is_told_the_point_to_declare():
    x = store(np.linspace(-95, 0, 400).reshape(4, 100), "float32")
    judge, kept = toys.judge(exponential, x), np.exp(x)
    flushed = np.where(kept < np.finfo(np.float32).tiny, np.float32(0), kept)
    assert judge.judge([kept], ()).ok and judge.judge([flushed], ("subnormals",)).ok
    verdict = judge.judge([flushed], ())
    assert not verdict.ok and verdict.reason().endswith("declares the point subnormals")
    lost = judge.judge([np.where(kept < 1e-20, np.float32(0), kept)], ())
    assert "subnormals" not in lost.reason(), "nothing is told of what float32 holds"


def test_a_point_that_is_not_declared_is_owed_float32_alone():
    x = store(RNG.uniform(3.3, 6.1, (1, 600)), "bfloat16")
    judge, right = toys.judge(part, x, "bfloat16"), store(x.astype(float) / np.pi, "bfloat16")
    found = budgets(judge, right, [(0, i) for i in range(0, 600, 60)], ())
    np.testing.assert_allclose(found, 2.0**-8, rtol=1e-3)  # half a spacing of bfloat16, and little of float32's
    wrong = edit(right, (0, 3), step(right[0, 3], "bfloat16", 2))
    assert not judge.judge([wrong], ()).ok and judge.judge([wrong], ("part",)).ratio <= 1


def test_the_budget_grows_where_the_value_may_pass_a_power_of_two():
    """Half a spacing at the largest value within reach, not at the exact one."""
    x = np.full((1, 64), 6.25)  # divided by pi it is 1.9894
    right = store(x / np.pi, "bfloat16")
    (found,) = budgets(toys.judge(part, x, "bfloat16"), right, [(0, 0)])
    repeats = abs(float(right[0, 0]) - 6.25 / np.pi)
    assert found == pytest.approx(quantile(200, 64) * 2.0**-7 / np.sqrt(12) + repeats + 2.0**-7, rel=0.1)


def test_the_worst_element_is_told_with_its_figures():
    x = np.array([[1.0, 2.0, -4.0, 0.0, 8.0]])
    wrong = store([[1.0, 2.5, -4.25, 2.0**-40, 8.0]], "float32")
    verdict = toys.judge(copied, x).judge([wrong], ())
    assert (verdict.output, verdict.index, verdict.got, verdict.expected) == (0, (0, 3), 2.0**-40, 0.0)
    assert verdict.ulps == pytest.approx(2.0**109) and verdict.ratio == pytest.approx(2.0**110)
    assert verdict.max_abs == 0.5 and verdict.max_rel == 0.25, "the largest anywhere; a part of 0 is no share"
    assert verdict.checked == 5 and verdict.pattern == "3 of 5 elements: columns 1 … 3"


def test_a_right_output_has_no_pattern():
    verdict = toys.judge(copied, [[1.0, 2.0]]).judge([store([[1.0, 2.0]], "float32")], ())
    assert (verdict.ratio, verdict.max_abs, verdict.max_rel, verdict.ulps, verdict.pattern) == (0, 0, 0, 0, "")


def test_an_empty_output_is_right():
    assert toys.judge(copied, np.zeros((0, 5))).judge([np.zeros((0, 5), np.float32)], ()).ok
    verdict = toys.judge(copied, np.zeros((0, 5))).judge([np.zeros((0, 5), np.float32)], ())
    assert (verdict.ratio, verdict.max_abs, verdict.max_rel, verdict.ulps, verdict.checked) == (0, 0, 0, 0, 0)


# NaN and infinities


@pytest.mark.parametrize("expected", [1.0, -1.0, INF, -INF, NAN])
@pytest.mark.parametrize("got", [1.0, -1.0, INF, -INF, NAN])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_not_finite_stands_where_the_formula_has_it(expected, got, dtype):
    x = np.full((3, 4), 2.0)
    x[1, 2] = expected
    verdict = toys.judge(copied, x, dtype).judge([store(edit(x, (1, 2), got), dtype)], ())
    same = got == expected or (np.isnan(got) and np.isnan(expected))
    assert verdict.ok == same
    if not same:
        assert verdict.index == (1, 2) and verdict.ratio > 100 and "× budget" in verdict.reason()
        finite = np.isfinite(got) and np.isfinite(expected)
        assert verdict.max_rel == (2.0 if finite else INF) and verdict.max_abs == (2.0 if finite else INF)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [1.0, 1.4])
def test_overflow_is_accepted_where_rounding_may_overflow_and_to_its_side_alone(sign, size):
    """65504 is float16's largest number; a stored third of 3 × 65504 may come out above it by noise, of 3 × 46 789 not."""

    def formula(case, r, x):
        return (r.round("part", r.compute(3 * x) / 3) * (1 + 2.0**-12),)

    x = np.full((1, 8), sign * 65504 / size)
    judge = toys.judge(formula, x, "float16")
    right = store(x, "float16")
    assert judge.judge([right], ("part",)).ratio <= 1
    assert (judge.judge([edit(right, (0, 3), sign * INF)], ("part",)).ratio <= 1) == (size == 1.0)
    for got in (-sign * INF, NAN):
        assert not judge.judge([edit(right, (0, 3), got)], ("part",)).ok


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_past_the_largest_number_is_infinite(dtype, sign):
    largest = float(ml_dtypes.finfo(store(0, dtype).dtype).max)
    x = np.full((1, 4), sign * largest)
    twice = toys.judge(lambda case, r, x: (2 * x,), x, dtype)
    assert twice.judge([store(sign * INF * np.ones((1, 4)), dtype)], ()).ok
    assert not twice.judge([store(x, dtype)], ()).ok and not twice.judge([store(-sign * INF * x * x, dtype)], ()).ok
    just = toys.judge(
        lambda case, r, x: (x * (1 + 2.0 ** -(BITS[dtype] + 1)),), x, dtype
    )  # a quarter of a spacing past it
    assert just.judge([store(x, dtype)], ()).ok


# All elements together


def parts(draws):
    """A judge of that toy in bfloat16, and an output that is off by that noise, in standard deviations of its rounding."""
    x = store(RNG.uniform(3.3, 6.1, (1, 4096)), "bfloat16")
    exact = x.astype(float) / np.pi
    return toys.judge(part, x, "bfloat16"), store(exact + draws * 2.0**-7 / np.sqrt(12), "bfloat16")


UNIFORM = np.random.default_rng(4).uniform(-np.sqrt(3), np.sqrt(3), (1, 4096))


@pytest.mark.parametrize(
    ("noise", "says"),
    [
        (UNIFORM, "right"),
        (1.5 * UNIFORM, "root mean square"),
        (0 * UNIFORM, "right"),
        (0.7 * UNIFORM + 0.5, "mean"),
        (0.7 * UNIFORM - 0.5, "mean"),
        (UNIFORM + 0.1, "right"),
        (UNIFORM - 0.1, "right"),
    ],
)
def test_small_errors_show_together(noise, says):
    judge, output = parts(noise)
    verdict = judge.judge([output], ("part",))
    assert verdict.ratio <= 1, "no element is beyond its own budget"
    assert verdict.ok == (says == "right")
    low, high = verdict.mean_limits
    assert (verdict.rms > verdict.rms_limit) == (says == "root mean square")
    assert not low <= verdict.mean <= high if says == "mean" else low <= verdict.mean <= high
    assert verdict.ok or "not all together" in verdict.reason()


@pytest.mark.parametrize(
    ("kind", "ok"),
    [("plain", False), ("nan", False), ("equal", True), ("equal_large", True), ("negative", True)],
)
def test_what_errs_alike_in_whole_rows_is_looked_at_one_by_one(kind, ok):
    """On equal inputs, or where scores tie: a row is as one element, and of a few rows the root mean square may be anything."""
    judge, output = parts(1.5 * UNIFORM)
    judge.kind = kind
    verdict = judge.judge([output], ("part",))
    assert verdict.each_ok and verdict.ok is ok
    assert (verdict.mean_limits == (-verdict.rms_limit, verdict.rms_limit)) == (kind != "plain"), "where values repeat"


def test_all_together_is_measured_in_standard_deviations():
    judge, output = parts(UNIFORM)
    verdict = judge.judge([output], ("part",))
    # the noise of the point and that of the last rounding are of one size
    assert verdict.rms == pytest.approx(1, abs=0.03) and verdict.mean == pytest.approx(0, abs=0.03)
    assert 1.03 < verdict.rms_limit < 1.1, "6.7 standard deviations of the root mean square of 4096 draws"
    assert 0.07 < verdict.mean_limits[1] < 0.2 and -0.2 < verdict.mean_limits[0] < -0.07


@pytest.mark.parametrize(
    ("change", "ok"),
    [
        ({}, True),
        ({"ratio": 1.0}, True),
        ({"ratio": 1.001}, False),
        ({"rms": 2.0}, True),
        ({"rms": 2.001}, False),
        ({"mean": -0.5}, True),
        ({"mean": -0.501}, False),
        ({"mean": 0.75}, True),
        ({"mean": 0.751}, False),
        ({"problem": "shape"}, False),
        ({"unseen": "rows"}, True),
    ],
)
def test_each_limit_counts_on_its_own_side(change, ok):
    figures = dict.fromkeys(("ratio", "max_abs", "max_rel", "ulps", "got", "expected", "budget"), 0.0)
    limits = {"rms": 1.0, "rms_limit": 2.0, "mean_limits": (-0.5, 0.75)}
    assert Verdict(**figures | {"index": (), "output": 0, "checked": 9} | limits | change).ok == ok


def test_a_verdict_on_elements_alone_has_no_other_limit():
    verdict = Verdict(0.5, 0, 0, 0, (), 0, 0, 0, 0, 9)
    assert verdict.ok and (verdict.rms, verdict.rms_limit, verdict.mean, verdict.mean_limits) == (0, 0, 0, (0, 0))
    assert verdict.pattern == verdict.unseen == verdict.problem == ""


def test_the_reason_says_what_was_found():
    verdict = Verdict(2.5, 0.5, 0.25, 40.0, (3, 4), 7.0, 6.5, 0.2, 1, 99, pattern="the last row")
    assert verdict.reason() == (
        "error is 2.5 × budget at output 1[3, 4]: got 7, expected 6.5 ± 0.2, 40 ulps off; largest differences 0.5 absolute, "
        "0.25 relative; beyond their budget: the last row"
    )
    together = Verdict(1.0, 0, 0, 0, (), 0, 0, 0, 0, 9, rms=1.5, rms_limit=1.25, mean=0.1, mean_limits=(-0.2, 0.3))
    assert together.reason().endswith("square 1.5 (right: at most 1.25) and the mean 0.1 (-0.2 to 0.3)")
    assert Verdict(9, 0, 0, 0, (), 0, 0, 0, 0, 0, problem="2 outputs").reason() == "2 outputs"


# Several outputs


def pair(case, r, x):
    return r.round("part", x / np.pi), 2 * x


@pytest.mark.parametrize("wrong", [None, 0, 1])
def test_each_output_is_judged(wrong):
    x = store(RNG.uniform(3.3, 6.1, (4, 100)), "bfloat16")
    outputs = [store(x.astype(float) / np.pi, "bfloat16"), store(2 * x.astype(float), "bfloat16")]
    if wrong is not None:
        outputs[wrong] = edit(outputs[wrong], (2, 7), step(outputs[wrong][2, 7], "bfloat16", 20))
    verdict = toys.judge(pair, x, "bfloat16").judge(outputs, ("part",))
    assert verdict.ok == (wrong is None)
    if wrong is not None:
        assert (verdict.output, verdict.index) == (wrong, (2, 7)) and f"output {wrong}[2, 7]" in verdict.reason()


def test_an_output_does_not_borrow_the_other_s_budget():
    x = store(RNG.uniform(3.3, 6.1, (4, 100)), "bfloat16")
    outputs = [store(x.astype(float) / np.pi, "bfloat16"), store(2 * x.astype(float), "bfloat16")]
    judge = toys.judge(pair, x, "bfloat16")
    moved = [edit(o, (2, 7), step(o[2, 7], "bfloat16", 1)) for o in outputs]
    assert judge.judge([moved[0], outputs[1]], ("part",)).ok
    assert not judge.judge([outputs[0], moved[1]], ("part",)).ok


def test_what_all_elements_of_a_second_output_show_is_not_hidden_by_the_first():
    """The first output is right but takes a larger share of its budget than any element of the second, all of which are off."""
    judge, output = parts(0.7 * UNIFORM + 0.5)
    x = judge.arrays["x"]
    judge = toys.judge(lambda case, r, x: (x, r.round("part", x / np.pi)), x, "bfloat16")
    verdict = judge.judge([x, output], ("part",))
    assert not verdict.ok and verdict.output == 1 and verdict.ratio <= 1
    judge = toys.judge(lambda case, r, x: (r.round("part", x / np.pi), x * (1 + 2.0**-10)), x, "bfloat16")
    verdict = judge.judge([output, store(x.astype(float) * (1 + 2.0**-10), "bfloat16")], ("part",))
    assert not verdict.ok and verdict.output == 0


# What is no comparison at all


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ([], "0 outputs, expected 1"),
        ([np.zeros((3, 4), np.float32)] * 2, "2 outputs, expected 1"),
        ([np.zeros((3, 5), np.float32)], "shape (3, 5), expected (3, 4)"),
        ([np.zeros((4, 4), np.float32)], "shape (4, 4), expected (3, 4)"),
        ([np.zeros(12, np.float32)], "shape (12,), expected (3, 4)"),
        ([np.zeros((3, 4))], "dtype float64, expected float32"),
        ([np.zeros((3, 4), np.float16)], "dtype float16, expected float32"),
    ],
)
def test_outputs_of_another_number_shape_or_dtype_are_wrong(outputs, problem):
    verdict = toys.judge(copied, np.zeros((3, 4))).judge(outputs, ())
    assert not verdict.ok and verdict.reason() == problem and verdict.checked == 0


def test_a_point_that_no_option_has_is_named():
    def formula(case, r, x):
        return (r.round("a", x) if case.options["o"] == "1" else r.narrow("b", x),)

    module = toys.kernel(formula, OPTIONS={"o": ("1", "2")}, inputs=lambda case, rng: {"x": np.zeros((1, 2))})
    the_case = toys.Case("toy", {"N": 2}, "float32", options={"o": "1"})
    judge = Judge(module, the_case, {"x": np.zeros((1, 2), np.float32)})
    zeros = [np.zeros((1, 2), np.float32)]
    assert judge.judge(zeros, ("a",)).ok and judge.judge(zeros, ("b",)).ok, "another option has the other point"
    assert judge.judge(zeros, ("subnormals",)).ok, "a point of back ends, which no formula names"
    verdict = judge.judge(zeros, ("a", "c"))
    assert verdict.reason() == "VARIANTS names the point 'c'; the formula has a, b"
    bare = toys.judge(copied, np.zeros((1, 2)), inputs=lambda case, rng: {"x": np.zeros((1, 2))})
    assert bare.judge(zeros, ("c",)).reason() == "VARIANTS names the point 'c'; the formula has none"


def test_a_formula_without_outputs_is_a_mistake_of_the_kernel():
    with pytest.raises(ValueError, match="toy: the formula returned no output"):
        toys.judge(lambda case, r, x: (), np.zeros((1, 2))).reference()


def test_a_part_is_judged_by_its_own_formula():
    parts = {"twice": lambda case, r, x: 2 * x}
    module, arrays = toys.kernel(copied, PARTS=parts), {"x": np.ones((1, 2), np.float32)}
    judge = Judge(module, toys.case(), arrays, part="twice")
    assert judge.judge([np.full((1, 2), 2, np.float32)], ()).ok
    assert not judge.judge([np.ones((1, 2), np.float32)], ()).ok
    with pytest.raises(ValueError, match=r"COMPUTES names 'thrice'; PARTS of kernel.py has twice$"):
        Judge(module, toys.case(), arrays, part="thrice").reference()
    with pytest.raises(ValueError, match=r"has none$"):
        Judge(toys.kernel(copied), toys.case(), arrays, part="thrice").reference()


def test_integers_reach_the_formula_as_they_are():
    arrays = {"x": np.ones((2, 2), np.float32), "n": np.array([2**53 + 1], np.int64), "m": np.array([True, False])}

    def formula(case, r, x, n, m):
        assert x.dtype == np.float64 and n.dtype == np.int64 and m.dtype == bool and n[0] == 2**53 + 1
        return (x,)

    assert Judge(toys.kernel(formula), toys.case(), arrays).judge([np.ones((2, 2), np.float32)], ()).ok


def test_a_verdict_is_the_same_whoever_was_judged_before():
    """The noise of a case hangs on its seed alone, and that of another seed is another."""
    x = store(RNG.uniform(3.3, 6.1, (4, 100)), "bfloat16")
    right = store(x.astype(float) / np.pi, "bfloat16")
    first, second = (toys.judge(part, x, "bfloat16") for _ in range(2))
    second.judge([right], ())
    assert first.judge([right], ("part",)) == second.judge([right], ("part",))
    other = toys.judge(part, x, "bfloat16", seed=1).judge([right], ("part",))
    assert other.budget != first.judge([right], ("part",)).budget


def test_in_float32_declared_points_are_owed_nothing_more():
    x = RNG.uniform(3.3, 6.1, (4, 100)).astype(np.float32)
    judge, right = toys.judge(part, x), (x.astype(float) / np.pi).astype(np.float32)
    assert judge.judge([right], ("part",)) == judge.judge([right], ())


# Rows


def noticed(judge, right, rows):
    """Which rows are judged: those where an element is seen to be 5 steps off."""
    return [r for r in rows if not judge.judge([edit(right, (r, 0), step(right[r, 0], "bfloat16", 5))], ("part",)).ok]


def tall(height, **more):
    x = store(np.full((height, 2), 3.7), "bfloat16")
    return toys.judge(part, x, "bfloat16", **more), store(x.astype(float) / np.pi, "bfloat16")


@pytest.mark.parametrize("size", [{"flops": 2.5e8}, {"moved": 8e5}])
def test_a_case_is_judged_whole_up_to_its_limit_and_in_rows_beyond(size):
    judge, right = tall(200, **size)
    assert judge.view.judged is None and len(noticed(judge, right, range(200))) == 200
    judge, right = tall(200, **{k: 2.05 * v for k, v in size.items()})
    assert noticed(judge, right, range(200)) == judge.view.judged.tolist() and len(judge.view.judged) == 97
    assert judge.judge([right], ("part",)).ok


def test_edges_of_blocks_are_judged_and_others_in_every_run():
    judge, right = tall(300, flops=5e8)
    edges = {0, 299, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 287, 288}
    found = set(noticed(judge, right, range(300)))
    assert edges <= found and len(found) == 150, "edges, and random ones beside them"
    assert set(tall(300, flops=5e8)[0].view.judged) == found == set(tall(300, seed=9, flops=5e8)[0].view.judged)
    other = set(tall(300, rows_seed=1, flops=5e8)[0].view.judged)
    assert edges <= other and len(other - found) > 20, "another seed of the rows looks at others"


@pytest.mark.parametrize(("flops", "count"), [(2.5e8 * 10, 30), (2.5e8 * 25, 12), (2.5e8 * 1000, 8), (2.5e8 * 5, 60)])
def test_as_many_rows_are_judged_as_fit(flops, count):
    judge, right = tall(300, flops=flops)
    found = noticed(judge, right, range(300))
    assert len(found) == count and {0, 299} <= set(found)


@pytest.mark.parametrize(("height", "judged"), [(8, 8), (9, 8)])
def test_a_few_rows_are_all_judged(height, judged):
    judge, right = tall(height, flops=1e10)
    assert len(noticed(judge, right, range(height))) == judged


def test_a_kernel_without_independent_rows_is_judged_whole():
    judge, right = tall(300, flops=1e10, rows={})
    assert len(noticed(judge, right, range(300))) == 300 and judge.view.judged is None


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_rows_lie_along_their_axis(axis):
    x = store(np.full((300, 2), 3.7), "bfloat16")
    x = x if axis == 0 else x.T.copy()
    judge = toys.judge(part, x, "bfloat16", flops=1e10, rows={"x": axis, "y": axis})
    right = store(x.astype(float) / np.pi, "bfloat16")
    assert judge.judge([right], ("part",)).ok
    for row in judge.view.judged:
        place = (row, 0) if axis == 0 else (0, row)
        verdict = judge.judge([edit(right, place, step(right[place], "bfloat16", 5))], ("part",))
        assert not verdict.ok and verdict.index == place and verdict.checked == 16
        assert verdict.pattern == "one element"


def test_rows_of_an_output_may_lie_along_another_axis_than_those_of_its_input():
    """Rows of x are columns of y: neither a count of rows nor an index is of the other axis."""
    x = store(np.full((3, 300), 3.7), "bfloat16")
    judge = toys.judge(turned, x, "bfloat16", flops=1e10, rows={"x": 1, "y": 0})
    right = store(x.T.astype(float) / np.pi, "bfloat16")
    assert judge.judge([right], ("part",)).ok and judge.view.height == 300 and judge.view.axis(0) == 0
    assert judge.judge([right.T], ("part",)).reason() == "shape (3, 300), expected (300, 3)"
    for row in range(300):
        verdict = judge.judge([edit(right, (row, 2), 100)], ("part",))
        assert verdict.ok == (row not in judge.view.judged) and (verdict.ok or verdict.index == (row, 2))


def test_each_output_has_its_own_axis_of_rows():
    x = store(np.full((300, 3), 3.7), "bfloat16")
    right = store(x.astype(float) / np.pi, "bfloat16")
    judge = toys.judge(
        lambda case, r, x: (*part(case, r, x), *turned(case, r, x)), x, "bfloat16", flops=1e10, rows={"x": 0, "y": 0, "z": 1}
    )  # fmt: skip
    assert judge.judge([right, right.T], ("part",)).ok
    for row in judge.view.judged:
        for number, place in ((0, (row, 1)), (1, (1, row))):
            outputs = [right, right.T.copy()]
            outputs[number] = edit(outputs[number], place, 100)
            verdict = judge.judge(outputs, ("part",))
            assert not verdict.ok and (verdict.output, verdict.index) == (number, place)


def turned(case, r, x):
    """A row of x is a column of y."""
    return (r.round("part", x.T / np.pi),)


def test_the_budget_of_some_rows_is_that_of_all_elements():
    """One of all elements is beyond its quantile once in so many outputs, however few of them are judged."""
    limits = []
    for moved in (0, 1e12):
        x = store(np.full((3000, 2), 3.7), "bfloat16")
        judge = toys.judge(part, x, "bfloat16", moved=moved)
        (found,) = judge.allowed(("part",))
        limits.append(np.median(found.reach) / np.median(np.hypot(found.deviation, 0)))
    assert limits[1] == pytest.approx(limits[0], rel=0.1), "with few rows there are fewer draws"


# Outputs of a dtype of their own


def several(x, **size):
    """The judge and the right outputs of a kernel with rows in the storage dtype, their sums in float32, one of all rows that has
    none, and integers."""

    def formula(case, r, x):
        y = r.round("part", x / np.pi)
        return y, y.sum(axis=1), r.sum(r.sum(y, axis=1), axis=0), x.argmax(axis=1)

    judge = toys.judge(
        formula, x, "bfloat16", rows={"x": 0, "y": 0, "sums": 0, "order": 0}, OUTPUTS=("y", "sums", "total", "order"),
        OWN_DTYPES={"sums": "float32", "total": "float32", "order": "int64"}, **size,
    )  # fmt: skip
    y = judge.reference()
    return judge, [store(y[0], "bfloat16"), *(o.astype(np.float32) for o in y[1:3]), y[3].astype(np.int64)]


def test_each_output_is_judged_in_the_dtype_that_it_is_stored_in():
    judge, right = several(store(RNG.uniform(1, 2, (20, 8)), "bfloat16"))
    assert judge.judge(right, ()).ok
    for number, change in ((1, 2e-3), (2, 2e-2), (3, 1)):  # less than a spacing of bfloat16
        place = (4,) if right[number].ndim else ()
        outputs = list(right)
        outputs[number] = np.array(edit(right[number], place, right[number][place] + change))
        verdict = judge.judge(outputs, ())
        assert not verdict.ok and verdict.output == number
    assert (
        judge.judge([right[0], right[1].astype(np.float64), *right[2:]], ()).problem
        == "dtype float64, expected float32"
    )
    assert judge.judge([*right[:3], right[3].astype(np.int32)], ()).problem == "dtype int32, expected int64"


def test_an_output_without_rows_needs_them_all():
    assert several(store(RNG.uniform(1, 2, (300, 8)), "bfloat16"), flops=1e15)[0].view.judged is None


def test_of_a_large_case_with_an_output_without_rows_each_output_is_drawn_from(monkeypatch):
    """Though all rows are evaluated, which that output needs."""
    monkeypatch.setattr("fusebench.parity.view.DRAWN_ELEMENTS", 80)
    x = store(RNG.uniform(1, 2, (300, 8)), "bfloat16")
    right, judge = several(x)[1], several(x, flops=1e15)[0]
    assert {number: len(chosen) for number, chosen in judge.drawn.items()} == {0: 10, 1: 80, 3: 80}
    verdict = judge.judge(right, ())
    assert verdict.ok and verdict.checked == 10 * 8 + 80 + 1 + 80 and "241 of 3001 elements" in judge.undrawn()
    row = int(judge.drawn[1][3])
    outputs = [right[0], edit(right[1], row, right[1][row] + 0.1), *right[2:]]
    assert judge.judge(outputs, ()).index == (row,) and not judge.judge(outputs, ()).ok
    assert judge.judge([right[0][:299], *right[1:]], ()).problem == "shape (299, 8), expected (300, 8)"
    other = several(x, flops=1e15, rows_seed=1)[0].drawn
    assert all(set(other[number]) != set(chosen) for number, chosen in judge.drawn.items()), "in another run others"


# What the reference on the device is asked


def test_a_gpu_sees_all_rows():
    judge, right = tall(300, flops=1e15, rows_seed=5, seed=4)
    (allowed,) = judge.allowed(("part",))
    assert judge.ask([right], ("part", "part"), "cuda") == Asked(
        judge.case,
        "",
        judge.key(("part", "part")),
        (0,),
        (0,),
        (judge.case.dtype,),
        (allowed.excess,),
        4,
        None,
        (),
        (allowed.alike,),
        (allowed.widths,),
    )


@pytest.mark.parametrize(("size", "count"), [
    ({"flops": 1e10}, None), ({"moved": 8e6}, None), ({"flops": 1.025e10}, 292), ({"moved": 1.6e7}, 150), ({"flops": 1e15}, 8),
])  # fmt: skip
def test_a_cpu_sees_as_many_rows_as_it_can_and_those_unlike_the_others(size, count):
    judge, right = tall(300, **size)
    output = edit(edit(right, (170, 1), NAN), (171, slice(None)), 0)
    asked = judge.ask([output], ("part",), "cpu")
    if count is None:
        assert asked.rows is None and asked.unlike == ()
        return
    assert len(asked.rows) == len(set(asked.rows)) == count and {0, 299} <= set(asked.rows)
    assert {170, 171} <= set(asked.unlike) and len(asked.unlike) <= 8
    other = tall(300, rows_seed=1, **size)[0].ask([output], ("part",), "cpu").rows
    assert count == 8 or other != asked.rows
    assert tall(300, **size)[0].ask([output], ("part",), "cpu").rows == asked.rows


def test_rows_that_the_judge_saw_are_not_all_that_the_cpu_sees():
    judge, right = tall(3000, flops=1e12)
    assert set(judge.ask([right], ("part",), "cpu").rows) - set(judge.view.judged)


def test_each_output_asks_for_its_own_unlike_rows():
    x = store(np.full((300, 2), 3.7), "bfloat16")
    judge = toys.judge(pair, x, "bfloat16", flops=1e15)
    right = [store(x.astype(float) / np.pi, "bfloat16"), store(2 * x.astype(float), "bfloat16")]
    asked = judge.ask([edit(right[0], (150, 1), INF), edit(right[1], (151, 0), 99)], ("part",), "cpu")
    assert {150, 151} <= set(asked.unlike) and asked.output_axes == (0, 0)
    assert len(asked.excess) == 2 and min(asked.excess) >= 1


def test_in_float32_the_reference_is_asked_about_no_points():
    x = np.full((300, 2), 3.7)
    judge = toys.judge(part, x, flops=1e15)
    assert judge.ask([store(x, "float32")], ("part",), "cuda").points == ()
    assert judge.ask([store(x, "float32")], ("part", "subnormals"), "cuda").points == ("subnormals",)


def test_a_verdict_is_widened_by_what_was_found_of_more_rows():
    judge, right = tall(300, flops=1e10)
    verdict = judge.judge([right], ("part",))
    everything = judge.ask([right], ("part",), "cuda")
    right_everywhere = judge.widened(verdict, Worst(0.9, 0.1, 2.0, (5, 1), checked=600), everything)
    assert right_everywhere.ok and right_everywhere.ratio == 0.9 and right_everywhere.checked == 600
    assert (right_everywhere.rms, right_everywhere.index) == (verdict.rms, verdict.index)
    assert 0 < judge.widened(verdict, Worst(checked=600), everything).ratio == verdict.ratio, "the larger one stays"
    figures = [Together(rms, 1.0, 0.0, (-1.0, 1.0)) for rms in (0.25, 0.5)]
    second = judge.widened(replace(verdict, output=1), Worst(together=tuple(figures)), everything)
    assert second.ok and (second.output, second.rms) == (1, 0.5), "the figures are those of the output that is shown"
    found = Worst(1.01, 0.1, 2.0, (5, 1), 3.0, 2.9, 0.05, 1, 3, (2, 5, 9), 600)
    wrong = judge.widened(verdict, found, everything)
    assert not wrong.ok and (wrong.ratio, wrong.index, wrong.output, wrong.checked) == (1.01, (5, 1), 1, 600)
    assert (wrong.max_abs, wrong.ulps, wrong.got, wrong.expected, wrong.budget) == (0.1, 2.0, 3.0, 2.9, 0.05)
    assert np.isnan(wrong.max_rel) and wrong.pattern == "3 elements of 2 rows, 5 to 9"


def test_every_row_that_was_looked_at_counts_once():
    """Judged here, asked for, or asked for because it looks suspicious."""
    judge, right = tall(300, flops=1e10)
    verdict, few = judge.judge([right], ("part",)), tuple(map(int, judge.view.judged))
    assert len(few) == 8 and verdict.checked == 16
    others = [r for r in range(300) if r not in few]
    for rows, unlike, seen in (
        (few, (), 8),
        (few[:3], (), 8),
        (others[:5], (), 13),
        (few[:2], [*few[:1], *others[:2]], 10),
    ):
        asked = replace(judge.ask([right], ("part",), "cuda"), rows=tuple(rows), unlike=tuple(unlike))
        found = Worst(checked=2 * len({*rows, *unlike}))
        assert judge.unseen(asked) == 300 - seen and judge.widened(verdict, found, asked).checked == 2 * seen


@pytest.mark.parametrize(
    ("beyond", "rows", "words"),
    [
        (1, (1, 7, 7), "one element of row 7"),
        (2, (1, 7, 7), "2 elements of row 7"),
        (9, (4, 0, 12), "9 elements of 4 rows, 0 to 12"),
    ],
)
def test_where_elements_are_wrong_is_told_in_words(beyond, rows, words):
    assert Worst(2.0, beyond=beyond, rows=rows).where == words
