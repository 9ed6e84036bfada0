"""Which rows are looked at where not all can be: edges of blocks, some at random, and those unlike the others."""

from __future__ import annotations

import numpy as np
import pytest
from toys import copied, edit, kernel, store

from fusebench.parity import rows

INF, NAN = np.inf, np.nan


def test_edges_are_both_sides_of_the_first_and_the_last_block_of_each_size():
    assert rows.edges(300)[:2] == [0, 299]
    assert set(rows.edges(300)) == {0, 299, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 287, 288}


@pytest.mark.parametrize("shape", [(3,), (3, 2), (2, 3)])
def test_what_no_dtype_stores_was_computed(shape):
    """Where the first and the last are 0.1, which float16 does not have, and the one between them is 0.5, which it has."""
    axis = shape.index(3)
    exact = np.broadcast_to(
        np.array([0.1, 0.5, 0.1]).reshape([3 if n == axis else 1 for n in range(len(shape))]), shape
    )
    assert rows.computed(exact, axis, "float16").tolist() == [True, False, True]


def test_no_other_row_is_an_edge():
    """The last block begins with the last row here."""
    first = {0, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256}
    assert set(rows.edges(513)) == first | {511, 512}


def test_an_odd_row_is_an_edge():
    assert [rows.chosen(300, 1, seed).tolist() for seed in range(3)] == [[0]] * 3


def test_the_first_row_of_the_last_whole_block_is_an_edge_where_the_block_divides_the_height():
    assert {512 - block for block in rows.BLOCKS} <= set(rows.edges(512))
    assert {512, 511} <= set(rows.edges(513)), "and where it does not, the last whole one's end and what is left"


@pytest.mark.parametrize("height", [0, 1, 2, 15, 16, 17, 64, 65])
def test_edges_are_rows(height):
    found = rows.edges(height)
    assert len(found) == len(set(found)) and all(0 <= r < height for r in found)
    assert {0, height - 1} <= set(found) if height else not found


@pytest.mark.parametrize(("height", "most"), [(300, 20), (300, 8), (300, 150), (300, 300), (300, 400), (5, 8), (1, 8)])
def test_as_many_rows_are_chosen_as_are_asked_for(height, most):
    found = rows.chosen(height, most, 0)
    assert len(found) == min(height, most) == len(set(found.tolist())) and (np.diff(found) > 0).all()
    assert {0, height - 1} <= set(found.tolist())


def test_edges_and_random_rows_are_chosen_in_turn():
    """Of 8 rows 4 are edges: no seed looks at edges alone, and every seed at others."""
    edges = set(rows.edges(100_000))
    for most in (8, 16):
        shares = [len(edges & set(rows.chosen(100_000, most, seed).tolist())) for seed in range(20)]
        assert all(most / 2 <= n <= most / 2 + 1 for n in shares)
    assert edges <= set(rows.chosen(100_000, 100, 3).tolist())


def test_every_row_may_be_chosen_and_the_seed_decides():
    assert set().union(*(rows.chosen(40, 8, seed).tolist() for seed in range(200))) == set(range(40))
    np.testing.assert_array_equal(rows.chosen(1000, 50, 7), rows.chosen(1000, 50, 7))
    assert len(set(rows.chosen(1000, 50, 7).tolist()) & set(rows.chosen(1000, 50, 8).tolist())) < 40


@pytest.mark.parametrize(
    ("named", "outputs", "axes"),
    [
        ({"x": 0, "y": 0}, (), [0, 0]), ({"x": 1, "y": -1}, (), [-1, -1]), ({"x": 1}, (), [0, 0]), ({"x": 0, "a": 1, "b": 2}, (), [1, 2]),
        ({"x": 0, "a": 1, "b": 2}, ("a", "b", "total"), [1, 2, None]),
        ({"x": 0, "a": 1, "b": 2}, ("a", "total", "b"), [1, None, 2]), ({"x": 0, "y": 1}, ("y", "total"), [1, None]),
    ],
)  # fmt: skip
def test_outputs_have_the_rows_that_are_named_for_them(named, outputs, axes):
    """One name is for all of them, none means the first axis; an output that has a name and is not among the rows has none."""
    mathematics = kernel(copied, rows=named, OUTPUTS=outputs)
    assert [mathematics.output_axis(number, ["x"]) for number in range(len(axes))] == axes


# Rows unlike the others

RNG = np.random.default_rng(0)
OUTPUT = store(RNG.standard_normal((50, 33)), "bfloat16")


@pytest.mark.parametrize("row", [0, 1, 17, 18, 49])
@pytest.mark.parametrize(
    "spoilt",
    [
        pytest.param(lambda a, r: edit(a, r, NAN), id="NaN"),
        pytest.param(lambda a, r: edit(a, (r, 5), NAN), id="one NaN"),
        pytest.param(lambda a, r: edit(a, (r, 5), -INF), id="one infinity"),
        pytest.param(lambda a, r: edit(a, r, 0), id="zeros"),
        pytest.param(lambda a, r: edit(a, (r, slice(20, None)), 0), id="zeros in a part"),
        pytest.param(lambda a, r: edit(a, r, 100 * a[r].astype(np.float32)), id="large"),
        pytest.param(lambda a, r: edit(a, r, a[r].astype(np.float32) / 100), id="small"),
        pytest.param(lambda a, r: edit(a, r, a[r - 1 if r else 1]), id="repeated"),
    ],
)
@pytest.mark.parametrize("chunk", [2**22, 70, 100])
def test_a_row_that_is_unlike_the_others_is_found(monkeypatch, row, spoilt, chunk):
    """Of a repeated one at the top the second is found; whether all rows are read at once or two or three at a time."""
    monkeypatch.setattr(rows, "AT_A_TIME", chunk)
    found = rows.suspicious(spoilt(OUTPUT, row), 0, 8)
    assert row in found[:3] or (row == 0 and 1 in found[:3])
    assert len(found) == len(set(found)) <= 8


def test_rows_lie_along_any_axis():
    output = np.stack([OUTPUT, OUTPUT], axis=1).astype(np.float32)  # (50, 2, 33)
    for axis in (0, 1, 2, -1):
        turned = np.moveaxis(edit(output, (23, 1, 4), NAN), 0, axis)
        assert rows.suspicious(turned, axis, 3)[0] == 23


def test_what_is_not_finite_in_every_row_is_no_reason():
    output = edit(OUTPUT, (slice(None), 3), NAN)
    assert 31 in rows.suspicious(edit(output, (31, slice(None)), 0), 0, 2)


def test_no_more_rows_are_named_than_there_are():
    assert set(rows.suspicious(OUTPUT[:3], 0, 8)) <= {0, 1, 2}
    assert rows.suspicious(np.zeros((4, 1), np.float16), 0, 8) == [0], "which has none before it to repeat"
    assert len(rows.suspicious(OUTPUT, 0, 5)) == 5 and len(rows.suspicious(OUTPUT, 0, 1)) == 1


def test_a_value_that_happens_to_be_repeated_does_not_hide_a_large_row():
    """Each kind of suspicion has its turn: they have no common measure."""
    output = OUTPUT.astype(np.float32)
    for r in range(1, 20):
        output[r, 7] = output[r - 1, 7]
    assert 44 in rows.suspicious(edit(output, 44, 100 * output[44]), 0, 2)
    assert 44 in rows.suspicious(edit(edit(output, 44, 100 * output[44]), (3, 3), NAN), 0, 2)


def test_an_output_of_one_value_a_row_has_rows():
    assert rows.suspicious(edit(OUTPUT[:, 0], 40, NAN), 0, 1) == [40]


def test_an_empty_output_has_no_row_unlike_the_others():
    assert rows.suspicious(np.zeros((0, 3), np.float32), 0, 8) == []
    assert rows.suspicious(np.zeros((3, 0), np.float32), 0, 8) == []
