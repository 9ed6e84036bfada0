"""Which elements are wrong, in words, and what a user is told of them."""

from __future__ import annotations

import numpy as np
import pytest

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
    ],
)
def test_patterns_have_words(mask, words):
    assert describe(mask) == words


def test_rows_keep_their_numbers_where_a_part_is_looked_at():
    assert describe(wrong((3, 4), (1,)), [np.array([0, 640, 999])]) == "4 of 12 elements: row 640"


def test_a_wrong_block_is_told_with_its_figures(kernels):
    case = make_case(kernels["add_relu"], {"M": 80, "N": 70})
    arrays = make_sets(kernels["add_relu"].module, case, 0, 1)[0]
    output = np.maximum(arrays["x"] + arrays["b"], np.float32(0))
    output[64:] = 7
    reason = Judge(kernels["add_relu"].module, case, arrays).judge([output], ()).reason()
    for words in (
        "× budget at output 0[",
        "got 7, expected",
        "ulps off",
        "absolute",
        "relative",
        "1120 of 5600 elements: rows ≥ 64",
    ):
        assert words in reason
