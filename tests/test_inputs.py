"""Input sets and hard inputs: what is drawn, rounded, changed and shared, and how it comes back from the files."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import toys

from fusebench import drawing, hard, inputs
from fusebench.contract import DTYPES, Case
from fusebench.errors import StorageError
from fusebench.inputs import Stored

LARGEST = {
    "float32": float(np.finfo(np.float32).max),
    "float16": 65504.0,
    "bfloat16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max),
}
FLOATS = tuple(kind for kind in hard.KINDS if kind not in (*hard.EDGES, *hard.NAMED, "upstream"))
NORMAL = {"float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}


def case(dtype="float32"):
    return Case("k", {"N": 8}, dtype)


def drawn(case, rng):
    return {
        "x": rng.standard_normal((6, 8), dtype=np.float32),
        "n": rng.integers(0, 9, 3),
        "s": np.float32(rng.uniform(1, 2)),
    }


def mathematics(**names):
    """What inputs are made of; no test here comes to a formula."""
    return toys.kernel(toys.copied, **names)


MATHEMATICS = mathematics(inputs=drawn, weights=lambda case, rng: {"w": rng.standard_normal(5, dtype=np.float32)})


def changed(kind, dtype="float32", made_of=MATHEMATICS, seed=(0, 1), **arrays):
    arrays = arrays or drawn(case(), np.random.default_rng(3))
    return hard.change(made_of, case(dtype), kind, arrays, seed)


# Sets


def test_sets_have_the_inputs_first_and_the_same_weights():
    sets = inputs.make_sets(MATHEMATICS, case(), 0, 3)
    assert [list(s) for s in sets] == [["x", "n", "s", "w"]] * 3
    assert all(s["w"] is sets[0]["w"] for s in sets) and len({s["x"].tobytes() for s in sets}) == 3


def test_a_seed_gives_the_same_set_again_and_another_one_another():
    def content(seed, count=2):
        return [{n: a.tobytes() for n, a in s.items()} for s in inputs.make_sets(MATHEMATICS, case(), seed, count)]

    first, again, other = content(0), content(0, 3), content(1)
    assert again[:2] == first and all(other[i][name] != first[i][name] for i in (0, 1) for name in ("x", "s", "w"))


def test_weights_and_inputs_are_drawn_from_different_numbers():
    """The first set is not drawn from the weights' generator."""
    made_of = mathematics(inputs=lambda case, rng: {"x": rng.random(4)}, weights=lambda case, rng: {"w": rng.random(4)})
    first, second = inputs.make_sets(made_of, case("float32"), 0, 2)
    assert len({tuple(a.tolist()) for a in (first["x"], second["x"], first["w"])}) == 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_floats_have_the_dtype_of_the_case_and_integers_their_own(dtype):
    (arrays,) = inputs.make_sets(MATHEMATICS, case(dtype), 0, 1)
    assert [str(arrays[n].dtype) for n in ("x", "n", "s", "w")] == [dtype, "int64", dtype, dtype]
    assert np.dtype(inputs.numpy_dtype(dtype)).itemsize == case(dtype).itemsize


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["plain", "nan"])
def test_a_kernel_s_own_dtypes_are_kept(dtype, kind):
    """Of an input and of a weight; those beside them are rounded, and all are made hard."""
    names = {"x": np.float32, "scale": np.float32, "wide": np.float64}

    def arrays(case, rng):
        return {name: rng.standard_normal((3, 4)).astype(of) for name, of in names.items()}

    def weights(case, rng):
        return {f"w_{name}": array for name, array in arrays(case, rng).items()}

    own = ("scale", "wide", "w_scale")
    made_of = mathematics(inputs=arrays, weights=weights, OWN_DTYPES=own)
    (made,) = inputs.make_sets(made_of, case(dtype), 0, 1, kind)
    kept = {"scale": "float32", "wide": "float64", "w_scale": "float32"}
    assert {name: str(a.dtype) for name, a in made.items()} == dict.fromkeys(made, dtype) | kept
    if kind == "plain":
        drawn = arrays(None, drawing.generator(0, 1)) | weights(None, drawing.generator(0, 0))
        assert all(made[name].tobytes() == drawn[name].tobytes() for name in own)
    assert [name for name, a in made.items() if np.isnan(a.astype(float)).any()] == (
        list(names) if kind == "nan" else []
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_input_may_have_a_dtype_of_its_own_in_every_case(dtype):
    def arrays(case, rng):
        return {"x": rng.standard_normal(9), "master": rng.standard_normal(9), "n": rng.integers(9, size=3)}

    (made,) = inputs.make_sets(mathematics(inputs=arrays, OWN_DTYPES={"master": "float32"}), case(dtype), 0, 1)
    assert [str(made[n].dtype) for n in ("x", "master", "n")] == [dtype, "float32", "int64"]


def test_an_output_may_have_a_dtype_of_its_own_in_every_case():
    plain = mathematics(OUTPUTS=("y", "loss"))
    made_of = mathematics(
        OUTPUTS=("y", "loss", "order"), OWN_DTYPES={"loss": "float32", "order": "int64", "x": "float32"}
    )
    assert [plain.output_dtype(number, case("float16")) for number in range(2)] == ["float16"] * 2
    assert [made_of.output_dtype(number, case("float16")) for number in range(4)] == [
        "float16",
        "float32",
        "int64",
        "float16",
    ]
    assert mathematics(OWN_DTYPES=("y",), OUTPUTS=()).output_dtype(0, case("bfloat16")) == "bfloat16"


def test_hard_sets_differ_from_set_to_set_and_have_weights_of_their_own():
    plain, made = (inputs.make_sets(MATHEMATICS, case(), 0, 2, kind) for kind in ("plain", "nan"))
    places = [np.argwhere(np.isnan(s["x"])).tolist() for s in made]
    assert (
        places[0] != places[1]
        and not np.isnan(made[0]["w"]).any()
        and made[0]["w"] is made[1]["w"]
        and made[0]["w"].tobytes() != plain[0]["w"].tobytes()
    )
    again = inputs.make_sets(MATHEMATICS, case(), 0, 1, "nan")[0]["x"]
    np.testing.assert_array_equal(again, made[0]["x"])


def test_a_kernel_without_weights_has_none():
    (arrays,) = inputs.make_sets(mathematics(inputs=drawn), case(), 0, 1)
    assert list(arrays) == ["x", "n", "s"]


# Hard inputs


def test_plain_inputs_are_left_alone():
    arrays = drawn(case(), np.random.default_rng(3))
    assert all(a is arrays[n] for n, a in changed("plain", **arrays).items())


def test_large_means_are_a_hundred_deviations():
    before = drawn(case(), np.random.default_rng(3))["x"]
    np.testing.assert_allclose(changed("large_mean")["x"] - before, 100 * before.std(), rtol=1e-4)


def test_a_mean_is_taken_of_what_is_finite():
    x = np.array([[1.0, 3.0, -np.inf, np.nan]], np.float32)
    np.testing.assert_array_equal(
        changed("large_mean", x=x)["x"], np.array([[101.0, 103.0, -np.inf, np.nan]], np.float32)
    )
    masked = np.full((2, 3), -np.inf, np.float32)
    np.testing.assert_array_equal(changed("large_mean", x=masked)["x"], masked)


def test_equal_rows_have_the_first_value_throughout():
    before, after = drawn(case(), np.random.default_rng(3))["x"], changed("equal")["x"]
    np.testing.assert_array_equal(after, np.repeat(before[:, :1], 8, axis=1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_subnormals_are_below_the_smallest_normal_number_and_not_zero(dtype):
    after = changed("subnormal", dtype)["x"].astype(inputs.numpy_dtype(dtype)).astype(np.float64)
    assert (
        np.abs(after).max() < NORMAL[dtype] and np.abs(after).max() > NORMAL[dtype] / 16 and (after != 0).mean() > 0.9
    )
    before = drawn(case(), np.random.default_rng(3))["x"]
    np.testing.assert_allclose(
        changed("subnormal", dtype)["x"] / NORMAL[dtype] * 16,
        before,
        rtol=1e-4 if dtype == "float16" else 1e-3,
        atol=1e-5,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes_are_within_a_factor_of_two_of_the_largest_number_and_keep_their_sign(dtype):
    before, after = drawn(case(), np.random.default_rng(3))["x"], changed("extreme", dtype)["x"]
    assert (
        (np.abs(after) >= 0.5 * LARGEST[dtype]).all()
        and (np.abs(after) <= LARGEST[dtype]).all()
        and (np.sign(after) == np.sign(before)).all()
    )
    assert np.isfinite(after.astype(inputs.numpy_dtype(dtype)).astype(np.float64)).all() and len(np.unique(after)) > 40


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_values_are_the_plain_ones_times_a_power_of_two(dtype):
    plain = inputs.make_sets(MATHEMATICS, case(dtype), 0, 1)[0]["x"]
    made = inputs.make_sets(MATHEMATICS, case(dtype), 0, 1, "large")[0]["x"]
    assert made.tobytes() == (32 * plain).tobytes() and made.dtype == plain.dtype


def test_what_is_named_twice_is_multiplied_twice():
    before = drawn(case(), np.random.default_rng(3))["x"]
    twice = mathematics(inputs=drawn, hard=lambda case: {"large": ("x", "x")})
    np.testing.assert_array_equal(changed("large", made_of=twice)["x"], 1024 * before)


@pytest.mark.parametrize(("kind", "factor"), [("small", 2.0**-8), ("wide", 2.0**20)])
def test_small_and_wide_values_are_the_plain_ones_times_a_power_of_two(kind, factor):
    before = drawn(case(), np.random.default_rng(3))["x"]
    np.testing.assert_array_equal(changed(kind)["x"], np.float32(factor) * before)


def test_float16_which_does_not_hold_them_has_no_wide_values():
    assert "wide" in hard.kinds(MATHEMATICS, case("bfloat16"))
    assert set(hard.kinds(MATHEMATICS, case())) - set(hard.kinds(MATHEMATICS, case("float16"))) == {"wide"}


def test_zeros_are_whole_rows_and_half_of_the_others_and_keep_what_is_not_finite():
    before = np.random.default_rng(3).standard_normal((600, 80), dtype=np.float32)
    before[:, 7], before[:, 8] = np.nan, -np.inf
    after = changed("zeros", x=before)["x"]
    assert np.isnan(after[:, 7]).all() and (after[:, 8] == -np.inf).all()
    finite = np.delete(after, [7, 8], axis=1)
    assert (finite[::3] == 0).all() and 0.48 < (finite[1::3] == 0).mean() < 0.52
    kept = finite != 0
    np.testing.assert_array_equal(finite[kept], np.delete(before, [7, 8], axis=1)[kept])
    assert (np.signbit(after) == np.signbit(before))[after == 0].all()


def test_scalars_are_negative_and_past_a_share_or_zero():
    named = mathematics(inputs=drawn, hard=lambda case: {"scalar": ("s",), "zeros": ("x", "s")})
    before = drawn(case(), np.random.default_rng(3))
    after = changed("scalar", made_of=named)
    assert after["s"] == -6 * before["s"] and after["s"].shape == () and after["s"].dtype == np.float32
    np.testing.assert_array_equal(after["x"], before["x"])
    assert changed("zeros", made_of=named)["s"] == 0


@pytest.mark.parametrize(("dtype", "far"), [("float32", 2.0**20), ("bfloat16", 2.0**20), ("float16", 2.0**7)])
def test_negative_values_are_far_below_0_in_steps_that_16_bits_hold(dtype, far):
    before = np.random.default_rng(3).standard_normal((60, 80), dtype=np.float32)
    before[:, 7], before[:, 8], before[:, 9] = np.nan, -np.inf, np.inf
    after = changed("negative", dtype, x=before)["x"]
    assert np.isnan(after[:, 7]).all() and (after[:, 8] == -np.inf).all() and (after[:, 9] == np.inf).all()
    finite = np.delete(after, [7, 8, 9], axis=1)
    assert finite.max() == -far and finite.min() > -3 * far and (finite % (far / 16) == 0).all()
    assert len(np.unique(finite)) > 10
    np.testing.assert_array_equal(finite.astype(inputs.numpy_dtype(dtype)).astype(np.float32), finite)


def test_what_is_named_twice_has_one_positive_value_a_row_beside_negative_ones():
    named = mathematics(inputs=drawn, hard=lambda case: {"negative": ("q", "q", "k")})
    rng = np.random.default_rng(3)
    q, k = (rng.standard_normal((6, 8), dtype=np.float32) for _ in range(2))
    after = changed("negative", made_of=named, q=q, k=k)
    one = after["q"] > 0
    assert (one.sum(axis=1) == 1).all() and not after["q"][~one].any()
    np.testing.assert_array_equal(after["q"][one], 16 * (1 + np.abs(q[one])))
    assert (after["q"] @ after["k"].T < 0).all()


def test_what_is_named_three_times_is_as_far_below_0_as_no_mask_but_float32_tells_its_scores_apart():
    named = mathematics(inputs=drawn, hard=lambda case: {"negative": ("q", "q", "q", "k")})
    q, k = (np.random.default_rng(n).standard_normal((60, 128), dtype=np.float32) for n in range(2))
    after = changed("negative", made_of=named, q=q, k=k)
    assert ((after["q"] > 0).sum(axis=1) == 1).all()
    scores = after["q"] @ after["k"].T / 128**0.5
    assert scores.max() < -1e4 - 1000 and np.spacing(np.abs(scores).max()) <= 2**-5


def test_large_equal_rows_and_a_column_of_nan_are_made_where_they_are_named():
    named = mathematics(inputs=drawn, hard=lambda case: {"equal_large": ("x",), "nan_column": ("x",)})
    before = drawn(case(), np.random.default_rng(3))["x"]
    np.testing.assert_array_equal(changed("equal_large", made_of=named)["x"], np.repeat(64 * before[:, :1], 8, axis=1))
    gone = np.isnan(changed("nan_column", made_of=named)["x"])
    assert gone.any(axis=0).sum() == 1 and gone.all(axis=0).sum() == 1
    assert hard.kinds(named, case()) == ("plain", "equal_large", "nan_column")
    assert hard.kinds(named, replace(case(), mode="backward")) == ("plain", "upstream", "equal_large")


def test_a_kernel_draws_the_integers_beside_a_column_of_nan_and_repeated_ones():
    def edges(case, kind, rng):
        return drawn(case, rng) | {"n": np.full(3, ["nan_column", "repeated"].index(kind))}

    named = mathematics(inputs=drawn, edges=edges, hard=lambda case: {"nan_column": ("x",), "repeated": ()})
    for number, kind in enumerate(("nan_column", "repeated")):
        (made,) = inputs.make_sets(named, case(), 0, 1, kind)
        assert made["n"].tolist() == [number] * 3 and np.isnan(made["x"]).any() == (kind == "nan_column")


@pytest.mark.parametrize(("dtype", "factors"), [("bfloat16", (2.0**17, 2.0**-24)), ("float16", (32, 1 / 32))])
def test_upstream_gradients_are_hard_in_the_backward_modes_and_what_is_before_them_stays(dtype, factors):
    def upstream(case, rng):
        return {"y": rng.standard_normal((6, 8), dtype=np.float32)}

    named = mathematics(inputs=drawn, upstream=upstream, hard=lambda case: {"equal": ("x",)})
    backward = replace(case(dtype), mode="backward")
    assert hard.kinds(named, backward) == ("plain", "equal", "upstream")
    assert hard.kinds(named, case(dtype)) == ("plain", "equal")
    plain, made = (inputs.make_sets(named, backward, 0, 2, kind) for kind in ("plain", "upstream"))
    for number in range(2):
        before, after = (s[number]["gradient of y"].astype(np.float32) for s in (plain, made))
        np.testing.assert_array_equal(after, np.resize(np.float32([*factors, 0]), (6, 1)) * before)
        assert made[number]["x"].tobytes() == plain[number]["x"].tobytes()


def test_upstream_gradients_are_drawn_from_numbers_of_their_own_and_have_the_dtypes_of_their_outputs():
    """Not those of the inputs, although both are drawn in the same way."""
    same = {"inputs": drawn, "upstream": lambda case, rng: {"y": drawn(case, rng)["x"]}}
    (made,) = inputs.make_sets(
        mathematics(**same, OWN_DTYPES={"y": "float32"}), replace(case("bfloat16"), mode="backward"), 0, 1
    )
    assert (made["x"].dtype.name, made["gradient of y"].dtype.name) == ("bfloat16", "float32")
    assert not np.array_equal(made["gradient of y"].astype(made["x"].dtype), made["x"])


def test_every_third_row_has_one_nan():
    after = np.isnan(changed("nan")["x"])
    assert after.sum(axis=1).tolist() == [1, 0, 0, 1, 0, 0]


def test_every_third_row_has_one_infinity_of_each_sign():
    after = changed("inf")["x"]
    assert (after == np.inf).sum(axis=1).tolist() == [1, 0, 0, 1, 0, 0]
    assert (after == -np.inf).sum(axis=1).tolist() == [0, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("kind", [kind for kind in FLOATS if kind not in ("plain", "zeros")])
def test_scalars_and_integers_and_the_kernel_s_own_array_stay(kind):
    arrays = drawn(case(), np.random.default_rng(3))
    before = {n: a.copy() for n, a in arrays.items()}
    after = changed(kind, **arrays)
    assert list(after) == ["x", "n", "s"] and after["s"] == before["s"] and (after["n"] == before["n"]).all()
    assert (
        after["x"].shape == (6, 8) and after["x"].dtype == np.float32 and after["x"].tobytes() != before["x"].tobytes()
    )
    np.testing.assert_array_equal(arrays["x"], before["x"])


def test_rows_are_of_the_last_axis():
    after = changed("nan", x=np.zeros((2, 3, 8), np.float32))["x"]
    assert np.isnan(after).sum(axis=2).tolist() == [[1, 0, 0], [1, 0, 0]]


def test_a_kernel_says_which_inputs_get_it():
    made_of = mathematics(hard=lambda case: {"nan": ("b",), "equal": ("a", "b")})
    arrays = {n: np.arange(6, dtype=np.float32).reshape(2, 3) for n in "ab"}
    after = changed("nan", made_of=made_of, **arrays)
    assert after["a"] is arrays["a"] and np.isnan(after["b"]).any()
    assert hard.kinds(made_of, case()) == ("plain", "equal", "nan") and hard.kinds(MATHEMATICS, case()) == FLOATS


def test_edges_are_drawn_by_the_kernel_rounded_and_not_changed_again():
    """By the numbers of the set; its weights are those of the kind, and what `hard` names is left alone."""

    def edges(case, kind, rng):
        return drawn(case, rng) | {"n": np.full(3, hard.EDGES.index(kind))}

    named = mathematics(inputs=drawn, weights=MATHEMATICS.weights, edges=edges, hard=lambda case: {"nan": ("x", "w")})
    assert hard.kinds(named, case()) == ("plain", "nan", *hard.EDGES)
    plain = inputs.make_sets(named, case("float16"), 0, 2)
    for number, kind in enumerate(hard.EDGES):
        made = inputs.make_sets(named, case("float16"), 0, 2, kind)
        assert [s["n"].tolist() for s in made] == [[number] * 3] * 2 and made[0]["w"] is made[1]["w"]
        assert all(one["x"].tobytes() == of["x"].tobytes() for one, of in zip(made, plain, strict=True))
        assert made[0]["w"].tobytes() != plain[0]["w"].tobytes() and not np.isnan(made[0]["w"]).any()


def test_a_gradient_has_edges_too():
    edged = mathematics(inputs=drawn, edges=lambda case, kind, rng: drawn(case, rng))
    backward = replace(case(), mode="backward")
    floats = ("plain", "large_mean", "equal", "subnormal", "large", *hard.EDGES, "small", "zeros", "wide")
    assert hard.kinds(edged, backward) == (*floats, "upstream", "negative")


def test_two_kinds_choose_other_places():
    assert not np.array_equal(np.isnan(changed("nan")["x"]), changed("inf")["x"] == np.inf)
    assert not np.array_equal(np.isnan(changed("nan")["x"]), np.isnan(changed("nan", seed=(0, 2))["x"]))


# Files


@pytest.mark.parametrize("dtype", [*DTYPES, "float8_e4m3fn", "float8_e5m2", "int64", "bool"])
def test_an_array_comes_back_bit_for_bit(tmp_path, dtype):
    array = np.array([[1.5, -0.0, 3e-8], [6e4, 7.25, 2.0]]).astype(inputs.numpy_dtype(dtype))
    files = inputs.save([array, array[:, 1]], tmp_path, "input")
    assert files == [Stored("input0.npy", dtype), Stored("input1.npy", dtype)]
    for mapped in (False, True):
        whole, part = inputs.load(files, tmp_path, mapped)
        assert whole.dtype == array.dtype and whole.tobytes() == array.tobytes() and whole.shape == (2, 3)
        assert part.tobytes() == array[:, 1].tobytes()


def test_a_scalar_comes_back_as_one(tmp_path):
    (array,) = inputs.load(inputs.save([np.asarray(3.0, ml_dtypes.bfloat16)], tmp_path, "s"), tmp_path)
    assert array.shape == () and float(array) == 3.0


def test_one_array_is_one_file_and_is_read_once(tmp_path):
    sets = inputs.make_sets(MATHEMATICS, case("bfloat16"), 0, 3)
    files = inputs.save_sets(sets, tmp_path)
    assert [len(f) for f in files] == [4, 4, 4] and len({f[3].file for f in files}) == 1
    assert len(list(tmp_path.iterdir())) == 3 * 3 + 1 == len({f for of in files for f in of})
    for arrays, of in zip(sets, files, strict=True):
        for array, back in zip(arrays.values(), inputs.load(of, tmp_path), strict=True):
            assert back.tobytes() == np.asarray(array).tobytes() and back.dtype == array.dtype
    first, second = inputs.load([files[0][3], files[1][3]], tmp_path)
    assert first is second


def test_mapped_arrays_are_read_only_where_they_lie(tmp_path):
    files = inputs.save([np.arange(4.0)], tmp_path, "a")
    (mapped,) = inputs.load(files, tmp_path, mapped=True)
    (own,) = inputs.load(files, tmp_path)
    assert not mapped.flags.writeable and own.flags.writeable


def test_a_full_disk_is_told(tmp_path):
    (tmp_path / "nosuch").touch()  # a file, in which nothing can be written
    with pytest.raises(StorageError, match=r"nosuch/input0\.npy cannot be written: "):
        inputs.save([np.zeros(1)], tmp_path / "nosuch", "input")


def test_a_folder_that_was_taken_away_is_made_again(tmp_path):
    stored = inputs.save([np.ones(3, np.float32)], tmp_path / "gone" / "too", "input")
    assert inputs.load(stored, tmp_path / "gone" / "too")[0].tolist() == [1, 1, 1]
