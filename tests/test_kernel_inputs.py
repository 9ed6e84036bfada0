"""The inputs of each kernel: their shapes, sizes and seeds, what sets share, and which of them each kind of hard inputs changes."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fusebench import discovery, hard, inputs
from fusebench.cases import make_case
from fusebench.contract import DTYPES

KERNELS = discovery.find_kernels([discovery.HOME])
EMBEDDING = importlib.import_module("implementations.embedding.kernel")
SIZES = {
    "M": 64, "K": 96, "N": 80, "R": 16, "F": 5, "D": 48, "V": 2000, "T": 128, "B": 2, "H": 3, "C": 64, "LAYERS": 3,
    "N0": 65, "N1": 96, "N2": 80, "N3": 48, "N4": 1, "P1": 64, "P2": 40,
}  # fmt: skip
# shape, mean and standard deviation of what is finite in the inputs, by kernel
NORMAL = (0, 1)
EXPECTED = {
    "add_mul_act": {"x": ((64, 80), *NORMAL), "z": ((64, 80), *NORMAL), "multiplier": ((), 0.5, 0), "b": ((80,), *NORMAL)},
    "add_relu": {"x": ((64, 80), *NORMAL), "b": ((80,), *NORMAL)},
    "dlrm": {
        "dense": ((64, 65), *NORMAL), "ids": ((64, 5), None, None), "tables": ((2560, 48), 0, 48**-0.25), "offsets": ((6,), None, None),
        "bottom_W1": ((65, 96), 0, 1 / math.sqrt(65)), "bottom_b1": ((96,), 0, 0.5), "bottom_W2": ((96, 80), 0, math.sqrt(2 / 96)),
        "bottom_b2": ((80,), 0, 0.5), "bottom_W3": ((80, 48), 0, math.sqrt(2 / 80)), "bottom_b3": ((48,), 0, 0.5),
        "top_W1": ((63, 64), 0, 1 / math.sqrt(63)), "top_b1": ((64,), 0, 0.5), "top_W2": ((64, 40), 0, math.sqrt(2 / 64)),
        "top_b2": ((40,), 0, 0.5), "top_W3": ((40, 1), 0, math.sqrt(2 / 40)), "top_b3": ((1,), 0, 0.5),
    },
    "embedding": {"ids": ((64, 5), None, None), "tables": ((2560, 48), *NORMAL), "offsets": ((6,), None, None)},
    "fused_mlp": {
        "x": ((64, 65), *NORMAL), "W1": ((65, 96), 0, 1 / math.sqrt(65)), "b1": ((96,), 0, 0.5),
        "W2": ((96, 80), 0, math.sqrt(2 / 96)), "b2": ((80,), 0, 0.5), "W3": ((80, 48), 0, math.sqrt(2 / 80)), "b3": ((48,), 0, 0.5),
    },
    "geglu": {"x": ((64, 96), *NORMAL), "W": ((96, 160), 0, 1 / math.sqrt(96)), "b": ((160,), *NORMAL)},
    "interaction": {"dense": ((64, 48), *NORMAL), "sparse": ((64, 5, 48), *NORMAL)},
    "launch": {"x": ((80,), *NORMAL)},
    "lola": {"x": ((64, 96), 0.5, 1), "W": ((96, 80), 0, 1 / math.sqrt(96)), "b": ((80,), *NORMAL)},
    "lora_linear": {
        "x": ((64, 96), *NORMAL), "scale": ((), 0.5, 0), "W": ((96, 80), 0, 1 / math.sqrt(96)), "b": ((80,), *NORMAL),
        "A": ((96, 16), 0, 1 / math.sqrt(96)), "B": ((16, 80), 0, 0.25),
    },
    "lora_mlp": {
        "x": ((64, 65), *NORMAL), "scale": ((), 0.5, 0),
        "W1": ((65, 96), 0, 1 / math.sqrt(65)), "b1": ((96,), 0, 0.5), "A1": ((65, 16), 0, 1 / math.sqrt(65)), "B1": ((16, 96), 0, 0.25),
        "W2": ((96, 80), 0, math.sqrt(2 / 96)), "b2": ((80,), 0, 0.5), "A2": ((96, 16), 0, math.sqrt(2 / 96)), "B2": ((16, 80), 0, 0.25),
        "W3": ((80, 48), 0, math.sqrt(2 / 80)), "b3": ((48,), 0, 0.5), "A3": ((80, 16), 0, math.sqrt(2 / 80)), "B3": ((16, 48), 0, 0.25),
    },
    "padded_attention": {
        "q": ((2, 3, 128, 48), 0, 1.5), "k": ((2, 3, 128, 48), *NORMAL), "v": ((2, 3, 128, 48), *NORMAL), "n_padd": ((2,), None, None),
    },
    "padded_softmax": {"att": ((128, 128), 0, 2), "n_padd": ((), None, None)},
    "padded_softmax_v": {"att": ((128, 128), 0, 2), "v": ((128, 48), *NORMAL), "n_padd": ((), None, None)},
    "shcsa": {"x": ((128, 64), *NORMAL), "n_padd": ((), None, None), "W": ((64, 144), 0, 1.5 / 8), "b": ((144,), 0, 0.5)},
    "softmax": {"x": ((256, 64), 0, 2)},
    "splacc": {"A": ((64, 96), *NORMAL), "B": ((96, 160), 0, 1 / math.sqrt(96))},
}  # fmt: skip
EXPECTED["dlrm_parts"] = EXPECTED["dlrm"]


def case_of(name, dtype="float32", options=None):
    kernel = KERNELS[name]
    return make_case(
        kernel,
        {d: SIZES[d] for d in kernel.dimensions} | ({"R": 256, "C": 64} if name == "softmax" else {}),
        dtype,
        options=options,
    )


def sets_of(name, count=1, seed=0, dtype="float32", kind="plain", options=None):
    return inputs.make_sets(KERNELS[name].mathematics, case_of(name, dtype, options), seed, count, kind)


@pytest.mark.parametrize("name", EXPECTED)
def test_inputs_have_their_shape_and_size(name):
    (arrays,) = sets_of(name)
    assert list(arrays) == list(EXPECTED[name]), "in the order of the formula"
    for array, (n, (shape, mean, deviation)) in zip(arrays.values(), EXPECTED[name].items(), strict=True):
        assert array.shape == shape, n
        if mean is None:
            assert array.dtype.kind == "i", n
            continue
        assert array.dtype == np.float32
        finite = array[np.isfinite(array)].astype(float)
        if array.ndim == 0:
            assert 0.25 <= finite[0] <= 0.75
        else:
            assert finite.mean() == pytest.approx(mean, abs=4 * deviation / math.sqrt(finite.size)), n
            assert finite.std() == pytest.approx(deviation, rel=4 / math.sqrt(2 * finite.size)), n


@pytest.mark.parametrize("name", ["add_mul_act", "lora_linear", "lora_mlp"])
def test_a_scalar_is_another_in_each_set_from_a_quarter_to_three(name):
    drawn = np.array([float(next(a for a in s.values() if a.ndim == 0)) for s in sets_of(name, 150)])
    assert len(set(drawn.tolist())) == 150 and 0.25 <= drawn.min() < 0.27 and 0.73 < drawn.max() <= 0.75


@pytest.mark.parametrize("name", EXPECTED)
def test_a_seed_decides_every_bit_and_sets_differ_but_for_their_weights(name):
    first, again, other = (sets_of(name, 3, seed) for seed in (0, 0, 1))
    weights = set(KERNELS[name].mathematics.weights(case_of(name), np.random.default_rng(0)))
    fixed = {"offsets"} | ({"n_padd"} & set(first[0]))  # sizes of tables, and 4 to 8 tokens of padding, may be the same
    for n in first[0]:
        for one, two in zip(first, again, strict=True):
            np.testing.assert_array_equal(
                one[n].view(np.uint8) if one[n].ndim else one[n], two[n].view(np.uint8) if one[n].ndim else two[n]
            )
        if n in weights:
            assert first[0][n] is first[1][n] is first[2][n]
        elif n not in fixed:
            assert all((first[i][n] != first[j][n]).any() for i, j in ((0, 1), (0, 2), (1, 2)))
        if n not in fixed:
            assert (first[0][n] != other[0][n]).any()


def test_the_first_sets_are_the_same_however_many_there_are():
    for one, two in zip(sets_of("lola", 2), sets_of("lola", 5)[:2], strict=True):
        assert all((one[n] == two[n]).all() for n in one)
    assert len(sets_of("lola", 5)) == 5


# What some kernels' inputs are known for


def test_softmax_has_masked_rows_among_the_others():
    x = sets_of("softmax")[0]["x"]
    for start in (0, 64, 128):
        gone = np.isneginf(x[start : start + 64])
        assert (
            not gone[2, :32].any()
            and gone[2, 32:].all()
            and gone[3, :32].all()
            and not gone[3, 32:].any()
            and gone[4].all()
        )
        assert gone.sum() == 128
    assert not np.isnan(x).any()


@pytest.mark.parametrize("name", ["padded_attention", "padded_softmax", "padded_softmax_v", "shcsa"])
def test_padding_holds_nan(name):
    arrays = sets_of(name, seed=2)[0]
    for b, n in enumerate(np.atleast_1d(arrays["n_padd"])):
        assert 4 <= n <= 8
        for key, array in arrays.items():
            if key in ("q", "k", "v", "x"):
                tokens = np.isnan(array[b] if name == "padded_attention" else array)
                tokens = tokens if name == "padded_attention" else tokens[None]
                assert tokens[:, :n:2].all() and not tokens[:, 1:n:2].any() and not tokens[:, n:].any(), key
    if "att" in arrays:
        n, gone = int(arrays["n_padd"]), np.isnan(arrays["att"])
        assert gone[:, :n:2].all() and gone[np.arange(127), np.arange(1, 128)].all(), "and beside what a row sees"
        gone[:, :n:2] = gone[np.arange(127), np.arange(1, 128)] = False
        assert not gone.any()


@pytest.mark.parametrize("name", ["padded_attention", "padded_softmax_v"])
def test_nothing_is_padding_beside_a_column_of_nan(name):
    """What a program takes from the tokens before padding would be NaN there, whatever it does with what is seen."""
    (arrays,) = sets_of(name, kind="nan_column", options={"padding": "all"})
    gone = np.isnan(arrays["v"]).reshape(-1, arrays["v"].shape[-1])
    assert not np.any(arrays["n_padd"]) and gone.any(axis=0).sum() == 1 and gone.all(axis=0).sum() == 1


def test_repeated_ids_are_one_sample_of_ids_all_over_the_tables():
    case = make_case(KERNELS["embedding"], {"M": 40, "F": 26, "V": 2000, "D": 1}, options={"hashing": "modulus"})
    ids = EMBEDDING.edges(case, "repeated", np.random.default_rng(0))["ids"]
    assert ids.shape == (40, 26) and (ids == ids[0]).all()
    assert ((ids[0] >= 0) & (ids[0] < EMBEDDING.cardinalities(case))).all() and len(np.unique(ids[0])) > 13


def test_ids_are_mostly_known_some_any_and_some_at_an_edge():
    case = make_case(KERNELS["embedding"], {"M": 20000, "F": 3, "V": 2000, "D": 1})
    assert EMBEDDING.cardinalities(case).tolist() == [13, 159, 2000]
    known = EMBEDDING.known_values(case)
    assert [len(v) for v in known] == [12, 158, 1999]
    for f, values in enumerate(known):
        assert values.dtype == np.int64 and values.min() >= 0 and values.max() <= 2**32 - 1
        assert values[-1] == values[1] and values[len(values) // 4] == values[2], "duplicates"
        assert ({0, 2**32 - 1} <= set(values.tolist())) == (f % 2 == 0)
    again = EMBEDDING.known_values(case)
    assert all((a == b).all() for a, b in zip(known, again, strict=True))
    ids = EMBEDDING.inputs(case, np.random.default_rng(0))["ids"]
    assert (
        ids.shape == (20000, 3)
        and ids.dtype == np.int64
        and ids[-1, -1] == 2**32 - 1
        and ids.min() == 0
        and ids.max() == 2**32 - 1
    )
    edges = np.isin(ids, [2**31 - 1, 2**31]).mean()  # two of the four, which no list has
    assert edges == pytest.approx(1 / 64, rel=0.15)
    unknown = np.mean([~np.isin(ids[:, f], [*known[f], 0, 2**31 - 1, 2**31, 2**32 - 1]) for f in range(3)])
    assert unknown == pytest.approx(31 / 32 / 16, rel=0.1)
    counts = [
        (ids[:, 2] == known[2][n]).mean() for n in (3, 30)
    ]  # value n as often as the logarithm of (n + 2) / (n + 1)
    assert counts[0] / counts[1] == pytest.approx(math.log(5 / 4) / math.log(32 / 31), rel=0.25)
    assert EMBEDDING.known_values(make_case(KERNELS["embedding"], "one"))[0].size == 0


def test_the_row_beyond_all_tables_is_nan():
    arrays = sets_of("embedding", options={"hashing": "lookup"})[0]
    cardinalities = EMBEDDING.cardinalities(case_of("embedding"))
    assert arrays["offsets"].tolist() == [0, *np.cumsum(cardinalities)] and arrays["offsets"].dtype == np.int64
    assert np.isnan(arrays["tables"][-1]).all() and np.isfinite(arrays["tables"][:-1]).all()
    ends = arrays["offsets"][1:] - 1
    assert (arrays["known"][ends] == -1).all() and (np.delete(arrays["known"], ends) >= 0).all()
    assert len(arrays["known"]) == arrays["offsets"][-1] == len(arrays["tables"]) - 1


# Named cases are append-only: what was measured keeps its name


def test_no_named_case_and_no_default_has_changed():
    for name, kept in json.loads((Path(__file__).parent / "fixtures" / "cases.json").read_text()).items():
        kernel = KERNELS[name]
        assert {o: kernel.options[o][0] for o in kept["options"]} == kept["options"]
        assert {c: kernel.mathematics.cases.get(c) for c in kept["cases"]} == kept["cases"]
        assert next(iter(kept["cases"])) == next(iter(kernel.mathematics.cases)), "the default"


@pytest.mark.parametrize("name", KERNELS)
def test_every_named_case_and_default_is_kept(name):
    kernel = KERNELS[name]
    kept = json.loads((Path(__file__).parent / "fixtures" / "cases.json").read_text()).get(name, {})
    assert set(kernel.mathematics.cases) <= set(kept.get("cases", ())), "add the new one to tests/fixtures/cases.json"
    assert set(kernel.options) <= set(kept.get("options", ())), "add the new one to tests/fixtures/cases.json"


# Hard inputs


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_kind_changes_what_the_kernel_says_and_nothing_else(name, dtype):
    """Weights too, where a kernel names them; of a kernel that says nothing all floats, and no weights."""
    kernel, case = KERNELS[name], case_of(name, dtype)
    drawn = kernel.mathematics.inputs(case, np.random.default_rng(0))
    given = {n for n, a in drawn.items() if np.asarray(a).dtype.kind != "i"}
    floats = replace(kernel.mathematics, edges=None)
    for kind in hard.kinds(floats, case)[1:]:
        inert = replace(kernel.mathematics, hard=lambda _, kind=kind: {kind: ()})
        plain = inputs.make_sets(inert, case, 0, 1, kind)[0]  # each kind has weights of its own
        made = inputs.make_sets(kernel.mathematics, case, 0, 1, kind)[0]
        changed = {
            n for n in plain if not np.array_equal(plain[n].astype(float), made[n].astype(float), equal_nan=True)
        }
        assert changed == (set(kernel.mathematics.hard(case)[kind]) if kernel.mathematics.hard else given), kind
