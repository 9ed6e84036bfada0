"""Every implementation that can run here agrees with the float64 formula, over chosen and drawn sizes."""

from __future__ import annotations

import itertools

import pytest
from conftest import DEVICE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusebench.cases import make_case
from fusebench.contract import DTYPES, Cell

# 1, primes, and sizes just beside a block's edge; 300 columns are more than any tile has
LOLA_SIZES = ((1, 1, 1), (1, 131, 203), (2, 64, 17), (33, 127, 300), (129, 65, 64))
COMPILED_SIZES = ((1, 131, 203), (37, 131, 203))  # torch.compile takes seconds for each
LAUNCH_SIZES = (1, 127, 1024, 4099)


def cells_of(kernels, kernel, sizes, dtypes, options=({},), without=()):
    """All implementations and variants of a kernel over the sizes, dtypes and options."""
    found = kernels[kernel]
    for size, dtype, option in itertools.product(sizes, dtypes, options):
        case = make_case(found, dict(zip(found.dimensions, size, strict=True)), dtype, "ieee", option)
        for implementation in found.implementations.values():
            if implementation.name not in without:
                yield from (Cell(case, implementation.name, variant) for variant in implementation.variants)


def assert_right(records):
    """No cell is anything but ok or skipped, and some are ok."""
    bad = [f"{r['cell']}: {r['status']}: {r['reason']}" for r in records if r["status"] not in ("ok", "skipped")]
    assert not bad, "\n".join(bad)
    assert any(r["status"] == "ok" for r in records)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lola_is_right_for_chosen_sizes(kernels, run_cells, dtype):
    assert_right(run_cells(list(cells_of(kernels, "lola", LOLA_SIZES, [dtype], without=["torch_compile"]))))


@pytest.mark.parametrize("dtype", DTYPES)
def test_launch_is_right_for_chosen_sizes(kernels, run_cells, dtype):
    records = run_cells(
        list(cells_of(kernels, "launch", [(n,) for n in LAUNCH_SIZES], [dtype], without=["torch_compile"]))
    )
    assert_right(records)
    assert all(r["parity"]["max_abs"] == 0 for r in records if "parity" in r), "a copy rounds nothing"


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf", "relu", "none"])
@pytest.mark.parametrize("layout", ["kn", "nk"])
def test_lola_is_right_for_every_option(kernels, run_cells, activation, layout):
    options = [{"activation": activation, "w_layout": layout}]
    assert_right(
        run_cells(list(cells_of(kernels, "lola", [(5, 70, 41)], ["float32"], options, without=["torch_compile"])))
    )


def test_torch_compile_is_right_for_two_sizes(kernels, run_cells):
    cells = cells_of(kernels, "lola", COMPILED_SIZES, ["float32"])
    assert_right(run_cells([c for c in cells if c.implementation == "torch_compile"]))


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    M=st.integers(1, 70), K=st.integers(1, 200), N=st.integers(1, 200), dtype=st.sampled_from(DTYPES), nk=st.booleans()
)
def test_lola_is_right_for_drawn_sizes(kernels, run_cells, M, K, N, dtype, nk):
    options = [{"w_layout": "nk" if nk else "kn"}]
    assert_right(run_cells(list(cells_of(kernels, "lola", [(M, K, N)], [dtype], options, without=["torch_compile"]))))


@pytest.mark.skipif(DEVICE == "cuda", reason="says what happens without a GPU")
def test_without_a_gpu_triton_is_interpreted_and_never_timed(kernels, run_cells):
    cells = [
        c for c in cells_of(kernels, "launch", [(100,)], ["float32"]) if c.implementation in ("triton", "jax_triton")
    ]
    for record in run_cells(cells, time_s=0.01):
        assert record["status"] == "skipped" and "interpreted" in record["reason"]
        assert record["parity"]["ratio"] <= 1 and "timing" not in record
