"""Mistakes in some rows of large cases, as implementations (fixtures/confined), on the way that every cell goes: the judge looks at some
rows itself, and the others are the reference's, in a process of its own."""

from __future__ import annotations

import pytest
from conftest import DEVICE, FIXTURES

from fusebench import discovery
from fusebench.cases import make_case
from fusebench.contract import Cell
from fusebench.run import run
from fusebench.settings import Run, Settings
from fusebench.timing.plan import Plan
from fusebench.workers.pool import Pool

ROOTS = discovery.roots_of([FIXTURES / "confined"])
KERNELS = discovery.find_kernels(ROOTS)
# just large enough that the judge does not look at all rows, and no multiple of a tile
SMALL = {
    "softmax": {"R": 1511, "C": 139},
    "lola": {"M": 1411, "K": 149, "N": 131},
    "padded_attention": {"B": 1, "H": 1, "T": 613, "D": 167},
}
BENCHMARKED = {"softmax": "published", "lola": "batch", "padded_attention": "gpt2"}
# without a card; the last of each is one of its own
FEW = {"softmax": "nan_row", "lola": "bf16x3_row", "padded_attention": "next_tile"}


@pytest.fixture(scope="module")
def statuses(tmp_path_factory):
    """A function from a kernel, sizes and dtype to each variant's record."""
    folder = tmp_path_factory.mktemp("confined")
    with Pool(DEVICE, ROOTS, folder) as pool:

        def run_them(kernel, sizes, dtype):
            case = make_case(KERNELS[kernel], sizes, dtype)
            few = ("honest", "fp8_row", "short_tile", "short_all_but_8", FEW[kernel])
            variants = few if DEVICE == "cpu" else KERNELS[kernel].implementations["confined"].variants
            cells = [Cell(case, "confined", v) for v in variants]
            this = Run(KERNELS, ROOTS, folder / f"{kernel}-{dtype}-{sizes}"[:60], Settings(DEVICE, Plan(0.0)))
            return {r.cell.variant: r for r in run(this, cells, pool)}

        yield run_them


def assert_told_apart(records):
    honest = records.pop("honest")
    assert honest.status == "ok", honest.reason
    assert all(v.some_rows for v in honest.parity.verdicts) and not any(v.unseen for v in honest.parity.verdicts)
    accepted = [name for name, r in records.items() if r.status != "wrong" and r.status != "skipped"]
    assert not accepted and sum(r.status == "wrong" for r in records.values()) >= 4


@pytest.mark.parametrize(("kernel", "dtype"), [("softmax", "float32"), ("lola", "float32"), ("padded_attention", "bfloat16")])  # fmt: skip
def test_mistakes_in_some_rows_are_wrong_and_their_honest_twin_is_not(statuses, kernel, dtype):
    assert_told_apart(statuses(kernel, SMALL[kernel], dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernel", BENCHMARKED)
def test_so_are_those_in_cases_that_are_benchmarked(statuses, kernel, dtype):
    assert_told_apart(statuses(kernel, BENCHMARKED[kernel], dtype))
