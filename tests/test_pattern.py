"""Which elements are wrong, in words, and what a user is told of them."""

from __future__ import annotations

import numpy as np
import pytest
from samples import parity

from fusebench.cases import make_case
from fusebench.inputs import make_sets
from fusebench.parity.judge import Judge
from fusebench.parity.pattern import describe


def wrong(shape, *places):
    mask = np.zeros(shape, bool)
    for place in places:
        mask[place] = True
    return mask


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (wrong((4, 6)), "no element"),
        (wrong((4, 6), (1, 2)), "one element"),
        (wrong((4, 6), ...), "every element"),
        (wrong((100, 6), slice(64, None)), "216 of 600 elements: rows ≥ 64"),
        (wrong((4, 100), (slice(None), slice(96, None))), "16 of 400 elements: columns ≥ 96"),
        (wrong((4, 100), (slice(None), -1)), "4 of 400 elements: the last column"),
        (wrong((4, 100), (2,)), "100 of 400 elements: row 2"),
        (wrong((9,), slice(0, None, 2)), "5 of 9 elements: every 2nd element from 0"),
        (wrong((4, 9), (slice(None), slice(1, None, 3))), "12 of 36 elements: every 3rd column from 1"),
        (wrong((100, 100), (slice(32, 64), slice(0, 16))), "512 of 10000 elements: rows 32 … 63, columns ≤ 15"),
        (wrong((3, 4, 5), (1, slice(2, None))), "10 of 60 elements: index of axis 0 1, rows ≥ 2"),
        (wrong((9, 9), (0, 0), (3, 7), (8, 1)), "3 of 81 elements, scattered"),
        (wrong((9, 9), (0,), (8,), (3, 3)), "19 of 81 elements, scattered"),
        (wrong((9,), 3, 4), "2 of 9 elements: elements 3 … 4"),
        (wrong((9,), 0, 1), "2 of 9 elements: elements ≤ 1"),
        (wrong((9,), 7, 8), "2 of 9 elements: elements ≥ 7"),
        (wrong((9,), 1, 3, 5, 7), "4 of 9 elements: every 2nd element from 1"),
        (wrong((9,), 3, 7), "2 of 9 elements: every 4th element from 3"),
        (wrong((9,), 0, 2, 4, 6), "4 of 9 elements, scattered"),
        (wrong((9,), 2, 4, 6, 8), "4 of 9 elements, scattered"),
        (wrong((9,), 0, 3, 5, 8), "4 of 9 elements, scattered"),
        (wrong((9,), 0, 1, 4), "3 of 9 elements, scattered"),
        (wrong((8,), 0, 2, 4, 6), "4 of 8 elements: every 2nd element from 0"),
        (wrong((3, 4, 5), (slice(1, None),)), "40 of 60 elements: indices of axis 0 ≥ 1"),
        (wrong((2, 3, 4, 5), (slice(None), 1)), "40 of 120 elements: index of axis 1 1"),
        (wrong((4, 4), (slice(0, 2), slice(0, 2)), (slice(2, 4), slice(2, 4))), "8 of 16 elements, everywhere"),
        (wrong((4, 4), *((i, i) for i in range(4)), *((i, 3 - i) for i in range(1, 4))), "7 of 16 elements, scattered"),
        (
            wrong((8, 8), *((4 + i, 4 + j) for i in range(4) for j in (i, i - 4 + 1 if i == 3 else i + 1))),
            "8 of 64 elements: rows ≥ 4, columns ≥ 4",
        ),
    ],
)
def test_patterns_have_words(mask, words):
    assert describe(mask) == words


def test_rows_keep_their_numbers_where_a_part_is_looked_at():
    numbers = [np.array([0, 640, 999])]
    assert describe(wrong((3, 4), (1,)), numbers) == "4 of 12 elements: row 640"
    assert describe(wrong((3, 4), (2,)), numbers) == "4 of 12 elements: the last row"
    assert describe(wrong((3, 4), (slice(1, None),)), numbers) == "8 of 12 elements: rows ≥ 640"
    assert describe(wrong((3, 4), (slice(0, 2),)), numbers) == "8 of 12 elements: rows ≤ 640"
    assert describe(wrong((4, 4), (slice(1, 3),)), [np.array([0, 5, 640, 999])]) == "8 of 16 elements: rows 5 … 640"
    chosen = [np.array([0, 1, 7, 9])]  # every 2nd of the chosen rows is no rule
    assert describe(wrong((4, 4), (slice(None, None, 2),)), chosen) == "8 of 16 elements, scattered"
    assert describe(wrong((4, 5), (slice(None), slice(2, None))), [*chosen, None]) == "12 of 20 elements: columns ≥ 2"


def test_a_wrong_block_is_told_with_its_figures(kernels):
    case = make_case(kernels["add_relu"], {"M": 80, "N": 70})
    arrays = make_sets(kernels["add_relu"].mathematics, case, 0, 1)[0]
    output = np.maximum(arrays["x"] + arrays["b"], np.float32(0))
    output[64:] = 7
    reason = Judge(kernels["add_relu"].mathematics, case, arrays).judge([output], ()).reason()
    for words in (
        "× budget at output 0[",
        "got 7, expected",
        "ulps off",
        "absolute",
        "relative",
        "1120 of 5600 elements: rows ≥ 64",
    ):
        assert words in reason


@pytest.mark.parametrize("ratio", [1.01, 1.5, 40.0])
def test_an_error_beyond_the_budget_is_said_whatever_it_is(ratio):
    said = f"error is {ratio:g} × budget at output 0[2, 1]: got 1.2345678, expected 1.25 ± 0.0006, 5 ulps off"
    assert parity(ratio).reason().startswith(said)
