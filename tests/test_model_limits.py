"""The recommendation model in parts (implementations/_shared/dlrm.py): what it refuses, how its interaction is stored, which cases are
published."""

from __future__ import annotations

import importlib
import re

import pytest

from fusebench import discovery
from fusebench.cases import make_case
from fusebench.contract import Device

KERNELS = discovery.find_kernels([discovery.HOME])
PARTS = importlib.import_module("implementations._shared.dlrm")
CPU, GPU = Device("cpu", "cpu"), Device("cuda", "card")


def case(dtype="float32", options=None, **sizes):
    kernel = KERNELS["dlrm"]
    return make_case(kernel, {**kernel.mathematics.cases["odd"], **sizes}, dtype, options=options or {})


def test_outer_products_beyond_64_gib_are_refused():
    """An H200 has 141 GB: there is room for two of them. Wide is 26 + 1 vectors of 32: 864² columns."""
    columns, outer = 864**2, {"interaction": "outer"}
    most = 2**36 // (columns * 2)
    fits, beyond = (case("bfloat16", outer, M=m, F=26, D=32, P1=1) for m in (most, most + 1))
    assert PARTS.skip(fits, "modulus", GPU) is None
    assert PARTS.skip(beyond, "modulus", GPU) == "outer would write 64 GiB"
    assert "outer would write 128 GiB" in PARTS.skip(
        case("float32", outer, M=most + 1, F=26, D=32, P1=1), "modulus", GPU
    )
    assert PARTS.skip(case("bfloat16", None, M=most + 1, F=26, D=32), "modulus", GPU) is None, "dot has no such width"


def test_weights_of_outer_products_beyond_64_gib_are_refused():
    columns, outer = 864**2, {"interaction": "outer"}
    most = 2**36 // (columns * 2)
    fits, beyond = (case("bfloat16", outer, M=1, F=26, D=32, P1=p) for p in (most, most + 1))
    assert PARTS.skip(fits, "modulus", GPU) is None
    assert re.fullmatch(
        rf"outer has a first layer of {columns} × {most + 1} weights: 64 GiB", PARTS.skip(beyond, "modulus", GPU)
    )
    assert PARTS.skip(case("bfloat16", outer, M=1, F=26, D=32, P1=most + 1, LAYERS=1), "modulus", GPU) is None, (
        "1 column"
    )


@pytest.mark.parametrize(
    ("variant", "hashing", "reason"),
    [
        ("modulus", "modulus", None), ("naive", "lookup", None), ("improved", "lookup", None),
        ("modulus", "lookup", "modulus is for option.hashing=modulus"), ("naive", "modulus", "naive is for option.hashing=lookup"),
        ("improved", "modulus", "improved is for option.hashing=lookup"),
    ],
)  # fmt: skip
def test_a_variant_does_one_hashing(variant, hashing, reason):
    assert PARTS.skip(case(options={"hashing": hashing}), variant, GPU) == reason


def test_naive_comparisons_that_take_a_cpu_minutes_are_refused_there_alone():
    lookup = {"hashing": "lookup"}
    fits, beyond = (case(options=lookup, M=m, V=4_000_000) for m in (1000, 1001))
    assert PARTS.hashing_skip(fits, "naive", CPU) is None
    assert (
        PARTS.hashing_skip(beyond, "naive", CPU)
        == "naive compares 1001 ids with 4000000 known values: minutes on a CPU"
    )
    assert PARTS.hashing_skip(beyond, "naive", GPU) is None and PARTS.hashing_skip(beyond, "improved", CPU) is None


@pytest.mark.parametrize(("F", "D", "pitch"), [(26, 16, 368), (5, 7, 32), (1, 15, 16), (1, 16, 32)])
def test_rows_of_an_interaction_begin_at_whole_vectors(F, D, pitch):
    of = case(F=F, D=D)
    assert PARTS.interaction_width(of) == D + F * (F + 1) // 2 <= PARTS.interaction_pitch(of) == pitch


def test_parts_of_the_model_are_cases_of_their_kernels():
    of = case("bfloat16", M=9, F=5, D=7, LAYERS=3, N0=13, N1=67, N2=33, P1=41, P2=19)
    sizes = {name: getattr(PARTS, f"{name}_case")(of).sizes for name in ("dense", "prediction", "later_layers", "sparse", "interaction")}  # fmt: skip
    assert sizes == {
        "dense": {"M": 9, "LAYERS": 3, "N0": 13, "N1": 67, "N2": 33, "N3": 7, "N4": 1},
        "prediction": {"M": 9, "LAYERS": 3, "N0": 22, "N1": 41, "N2": 19, "N3": 1, "N4": 1},
        "later_layers": {"M": 9, "LAYERS": 2, "N0": 41, "N1": 19, "N2": 1, "N3": 1, "N4": 1},
        "sparse": {"M": 9, "F": 5, "V": of.sizes["V"], "D": 7},
        "interaction": {"M": 9, "F": 5, "D": 7},
    }
    assert PARTS.dense_case(of).options["last"] == "none" and PARTS.prediction_case(of).options["last"] == "sigmoid"
    assert PARTS.later_layers_case(case(LAYERS=1)) is None
    with pytest.raises(ValueError, match="LAYERS is 5: expected 1 to 4"):
        PARTS.dense_case(case(LAYERS=5))


def test_the_model_is_published_small_and_large_with_either_interaction():
    found = {n: [(p.case, p.options.get("interaction", "dot")) for p in KERNELS[n].mathematics.published] for n in ("dlrm", "dlrm_train")}  # fmt: skip
    assert set(map(tuple, found.values())) == {
        (("small", "outer"), ("main", "outer"), ("main", "dot"), ("large", "dot"))
    }
