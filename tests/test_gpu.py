"""What only a GPU can show: CUPTI times, one launch where a kernel is fused, sizes beyond the interpreter, a real bad access."""

from __future__ import annotations

import pytest
from test_parity import assert_right, cells_of

from fusebench.cases import make_case
from fusebench.contract import DTYPES, Cell
from fusebench.cupti import record

pytestmark = pytest.mark.gpu

FUSED = ("triton", "jax_triton", "cuda")


@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_kernels_are_one_launch_by_cupti(kernels, run_cells, dtype):
    cells = [
        c for c in cells_of(kernels, "lola", [(64, 256, 512), (1, 256, 512)], [dtype]) if c.implementation in FUSED
    ]
    cells += cells_of(kernels, "launch", [(1024,)], [dtype])
    records = run_cells(cells, time_s=0.05)
    assert_right(records)
    timed = [r for r in records if r["status"] == "ok"]
    assert {r["timing"]["launches"] for r in timed} == {1}, [(r["label"], r["timing"]["kernels"]) for r in timed]
    for r in timed:
        assert r["timing"]["timer"] == "cupti" and r["timing"]["busy_median"] <= r["timing"]["median"] * 1.0001
        assert r["timing"]["host_median"] > 0 and r["device"]["driver"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("layout", ["kn", "nk"])
def test_large_and_odd_sizes_are_right(kernels, run_cells, dtype, precision, layout):
    if dtype != "float32" and precision == "tf32":
        pytest.skip("16-bit products have one precision")
    labels = [(n, v) for n in ("triton", "cuda") for v in kernels["lola"].implementations[n].variants]
    labels = [*(label for label in labels if label[1] != "batched_row"), ("jax_triton", "multirow_ws")]
    cells = []
    for sizes in ("batch", {"M": 515, "K": 1031, "N": 2053}, {"M": 1, "K": 4099, "N": 1025}):
        case = make_case(kernels["lola"], sizes, dtype, precision, {"w_layout": layout})
        cells += [Cell(case, name, variant) for name, variant in labels]
    assert_right(run_cells(cells))


def test_flax_and_torch_agree_on_the_clock(kernels, run_cells):
    cells = [Cell(make_case(kernels["launch"], "floor"), name, "default") for name in ("flax", "torch_eager")]
    medians = [r["timing"]["median"] for r in run_cells(cells, time_s=0.1)]
    assert max(medians) < 3 * min(medians), "one copy kernel of 4 KB each"


def test_a_recorder_that_records_nothing_fails():
    with pytest.raises(RuntimeError, match="CUPTI recorded no kernel"):
        record(lambda: None)
