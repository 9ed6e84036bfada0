"""lora_linear in one launch by warpgroups (lora_linear/_fused.cuh): where it is chosen, what is refused, and in the emulator that it is right."""

from __future__ import annotations

import importlib

import pytest
import torch
from conftest import DEVICE

pytest.importorskip("cuda.core")
from fusebench import discovery
from fusebench.cases import make_case
from fusebench.contract import Cell, Device

LORA = discovery.find_kernels(discovery.roots_of())["lora_linear"]
MODULE = importlib.import_module("implementations.lora_linear.cuda")
A100, H200 = (Device("cuda", f"sm_{c[0]}{c[1]}", c, sms) for c, sms in (((8, 0), 108), ((9, 0), 132)))
TILE = {"KERNEL": "warpgroup", "BLOCK_M": 128, "BLOCK_N": 128, "num_stages": 3}


def case_of(M, K, N, R, dtype="bfloat16", layout="kn", activation="none"):
    options = {"w_layout": layout, "activation": activation}
    return make_case(LORA, {"M": M, "K": K, "N": N, "R": R}, dtype, options=options)


@pytest.mark.parametrize(
    ("case", "device", "kernel"),
    [
        (case_of(5536, 4200, 320, 32), H200, "warpgroup"), (case_of(5536, 4200, 320, 32), A100, "tensor"), (case_of(8, 4096, 4096, 16), H200, "tensor"),
        (case_of(300, 1000, 1000, 17), H200, "tensor"), (case_of(300, 1000, 1000, 16, layout="nk"), H200, "tensor"),
        (case_of(300, 1000, 1000, 72), H200, "tensor"), (case_of(300, 1001, 1000, 16), H200, "tensor"),
        (case_of(300, 1000, 1000, 16, "float32"), H200, "simt"),
    ],
)  # fmt: skip
def test_one_launch_is_by_warpgroups_where_they_can(case, device, kernel):
    config = MODULE.config(case, "fused", device)
    assert config["KERNEL"] == kernel
    assert MODULE.fits(case, "fused", device, config) is None
    (launch,) = MODULE.launches(case, "fused", device, config)
    assert ("fused_warpgroup<" in launch.program.name) == (kernel == "warpgroup") == bool(launch.boxes)
    if kernel != "warpgroup" and case.sizes["M"] > 8:
        assert "KERNEL=warpgroup is for 16 bits on Hopper" in MODULE.fits(case, "fused", device, TILE)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"BLOCK_N": 256}, "KERNEL=warpgroup has tiles of 64 or 128"), ({"num_stages": 1}, "num_stages is 1"),
        ({"num_stages": 6}, "a block takes 265344 bytes of shared memory"), ({"KERNEL": "simt"}, "KERNEL is simt"),
    ],
)  # fmt: skip
def test_one_launch_that_cannot_run_is_refused(config, reason):
    assert reason in MODULE.fits(case_of(300, 128, 264, 16), "fused", H200, TILE | config)


@pytest.mark.skipif(DEVICE == "cuda", reason="is for machines without a GPU")
@pytest.mark.parametrize(
    ("case", "config"),
    [
        # tiles with rows and columns to spare, ranks that are no whole products, slabs of K that are not whole; several tiles a block
        (case_of(81, 200, 328, 8, activation="relu"), {}),
        (case_of(333, 136, 456, 24, "float16"), {"BLOCK_M": 64}),
        (case_of(700, 128, 320, 32), {"BLOCK_N": 64, "num_stages": 2}),
        (case_of(130, 72, 264, 64, "float16", activation="silu"), {"BLOCK_M": 64, "BLOCK_N": 64}),
        (case_of(141, 264, 136, 56, activation="tanh"), {}),
        (case_of(3, 64, 128, 16), {"BLOCK_M": 64}),
    ],
)
def test_one_launch_by_warpgroups_is_right(run_cells, case, config):
    (record,) = run_cells([Cell(case, "cuda", "fused", config=TILE | config)])
    assert record.status == "ok", record.reason


@pytest.mark.skipif(DEVICE == "cuda", reason="is for machines without a GPU")
def test_an_infinity_meets_no_column_beyond_the_rank():
    """Where it would meet a 0, and be a NaN."""
    case = case_of(64, 64, 128, 8)
    x, W, b, A, B = (
        torch.ones(shape, dtype=torch.bfloat16) for shape in ((64, 64), (64, 128), (128,), (64, 8), (8, 128))
    )
    x[3, 5] = float("inf")
    call = MODULE.build(case, "fused", H200, TILE | {"BLOCK_M": 64})
    y = call(x, torch.tensor(0.5, dtype=torch.bfloat16), W, b, A, B)
    assert (y[3] == float("inf")).all() and (y[:3] == 64 + 1 + 0.5 * 64 * 8).all()
