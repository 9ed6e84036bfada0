"""Mistakes in gradients as implementations (fixtures/gradients), on the way that every cell goes: all are wrong, their honest twins are not."""

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

ROOTS = discovery.roots_of([FIXTURES / "gradients"])
KERNELS = discovery.find_kernels(ROOTS)
PLANTED = ("lola", "padded_attention", "embedding", "lora_linear", "lora_mlp")
OPTIONS = {"lola": {"activation": "none"}, "lora_linear": {"activation": "none"}, "lora_mlp": {"last": "none"}}


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    with Pool(DEVICE, ROOTS, tmp_path_factory.mktemp("gradients")) as pool:
        yield pool


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"] if DEVICE == "cuda" else ["float32"])
@pytest.mark.parametrize("kernel", PLANTED)
def test_a_mistake_in_a_gradient_is_wrong_and_its_honest_twin_is_not(pool, tmp_path, kernel, dtype):
    case = make_case(KERNELS[kernel], "odd", dtype, options=OPTIONS.get(kernel, {}), mode="backward")
    cells = [Cell(case, "mistaken", v) for v in KERNELS[kernel].implementations["mistaken"].variants]
    settings = Settings(DEVICE, Plan(0.0), hard=True)
    records = {r.cell.variant: r for r in run(Run(KERNELS, ROOTS, tmp_path, settings), cells, pool)}
    assert (honest := records.pop("honest")).status == "ok", honest.reason
    assert records and {r.status for r in records.values()} == {"wrong"}, {v: r.status for v, r in records.items()}
    named = {"lola": ("dW", "W"), "padded_attention": ("dq_mask", "q"), "lora_linear": ("dB_scale", "B")}
    if kernel in named:
        variant, name = named[kernel]
        assert f" at gradient of {name}[" in records[variant].reason


@pytest.mark.parametrize(("name", "variant"), [("ahead", "listed"), ("ahead_jax", "listed"), ("ahead", "everywhere")])
def test_the_untimed_forward_finds_no_upstream_gradient_to_compute_with(pool, tmp_path, name, variant):
    """Right all the same: its backward then takes the time that it takes."""
    case = make_case(KERNELS["softmax"], "odd", mode="backward")
    settings = Settings(DEVICE, Plan(0.02, regime="isolated"))
    (record,) = run(Run(KERNELS, ROOTS, tmp_path, settings), [Cell(case, name, variant)], pool)
    assert record.status == "ok", record.reason
    assert record.timing.median >= 1e-3


def test_residuals_that_all_calls_share_are_wrong(pool, tmp_path):
    case = make_case(KERNELS["softmax"], "odd", mode="backward")
    cells = [Cell(case, "residuals", variant) for variant in ("own", "shared")]
    own, shared = run(Run(KERNELS, ROOTS, tmp_path, Settings(DEVICE, Plan(0.0))), cells, pool)
    assert own.status == "ok", own.reason
    assert shared.status == "wrong", shared.reason
