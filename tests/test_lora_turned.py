"""lora_linear's second launch in tiles of any multiple of 16 rows (hopper/adapted_turned.cuh): where it is chosen, what is refused, and in the
emulator that it is right."""

from __future__ import annotations

import importlib

import pytest
from conftest import DEVICE

pytest.importorskip("cuda.core")
from fusebench import discovery
from fusebench.cases import make_case
from fusebench.contract import Cell, Device

LORA = discovery.find_kernels(discovery.roots_of())["lora_linear"]
MODULE = importlib.import_module("implementations.lora_linear.cuda")
A100, H200 = (Device("cuda", f"sm_{c[0]}{c[1]}", c, sms) for c, sms in (((8, 0), 108), ((9, 0), 132)))
TURNED = {"KERNEL": "turned", "BLOCK_M": 64, "BLOCK_N": 128, "CLUSTER": 1, "num_stages": 3, "SCHEDULE": "tiles"}


def of_up(**more):
    return {f"up_{name}": value for name, value in (TURNED | more).items()}


def case_of(M, K, N, R, dtype="bfloat16", layout="kn", mode="forward", activation="none"):
    options = {"w_layout": layout, "activation": activation}
    return make_case(LORA, {"M": M, "K": K, "N": N, "R": R}, dtype, options=options, mode=mode)


@pytest.mark.parametrize(
    ("sizes", "layout", "kernel", "rows"),
    [
        ((853, 4096, 2560, 16), "kn", "turned", 144), ((853, 4096, 2560, 16), "nk", "turned", 144), ((700, 4096, 4096, 17), "kn", "turned", 176),
        ((2048, 4096, 4096, 16), "kn", "warpgroup", 128), ((127, 4096, 4096, 16), "kn", "split", 64),
    ],
)  # fmt: skip
def test_rows_that_whole_tiles_do_not_share_out_are_turned(sizes, layout, kernel, rows):
    case = case_of(*sizes, layout=layout)
    config = MODULE.config(case, "two_launches", H200)
    assert (config["up_KERNEL"], config["up_BLOCK_M"]) == (kernel, rows)
    assert MODULE.fits(case, "two_launches", H200, config) is None
    _, up = MODULE.launches(case, "two_launches", H200, config)
    assert up.program.name.startswith(f"up_{kernel}<bfloat16, NONE, true, {'true' if layout == 'nk' else 'false'}, ")
    assert len(up.boxes) == 4 and up.overlaps


def test_modes_with_gradients_have_no_turned_tiles():
    """Their file is compiled without them."""
    case = case_of(853, 4096, 2560, 16, mode="forward_backward")
    found = MODULE.launches(case, "two_launches", H200, MODULE.config(case, "two_launches", H200))
    assert "up_warpgroup" in found[1].program.name and not any("turned" in launch.program.name for launch in found)


@pytest.mark.parametrize(
    ("case", "device", "config", "reason"),
    [
        (case_of(300, 128, 264, 16), A100, {}, "KERNEL=warpgroup is for Hopper"),
        (case_of(300, 128, 264, 16, "float32"), H200, {}, "KERNEL=warpgroup is for Hopper"),
        (case_of(300, 128, 264, 16), H200, {"BLOCK_M": 72}, "KERNEL=turned has tiles of 64, 80, … 256 × 64 or 128"),
        (case_of(300, 128, 264, 16), H200, {"SCHEDULE": "stream_k"}, "up_SCHEDULE=stream_k is for up_KERNEL=warpgroup"),
        (case_of(300, 128, 264, 16), H200, {"num_stages": 10, "BLOCK_M": 256}, "bytes of shared memory"),
    ],
)
def test_a_turned_tile_that_cannot_run_is_refused(case, device, config, reason):
    assert reason in MODULE.fits(case, "two_launches", device, of_up(**config))


@pytest.mark.skipif(DEVICE == "cuda", reason="is for machines without a GPU")
@pytest.mark.parametrize(
    ("case", "config"),
    [
        # a last tile of one row; a warpgroup without columns; W stored otherwise than B; several tiles a block; two slabs of the adapter
        (case_of(81, 200, 328, 8, activation="relu"), {"BLOCK_M": 80}),
        (case_of(333, 200, 456, 17, "float16", "nk"), {"BLOCK_M": 176, "CLUSTER": 2}),
        (case_of(700, 128, 640, 32), {"BLOCK_M": 96, "BLOCK_N": 64, "CLUSTER": 2}),
        (case_of(130, 72, 264, 64, "float16", activation="silu"), {"BLOCK_M": 240, "BLOCK_N": 64, "num_stages": 2}),
        (case_of(141, 264, 136, 100, layout="nk"), {"BLOCK_M": 144}),
        # rows of x, W, B and y that are no whole vectors; fewer rows than a tile
        (case_of(201, 333, 515, 16), {"BLOCK_M": 208, "CLUSTER": 2}),
        (case_of(3, 75, 395, 5, "float16"), {"BLOCK_N": 64, "num_stages": 4}),
    ],
)  # fmt: skip
def test_turned_tiles_of_an_adapter_are_right(run_cells, case, config):
    (record,) = run_cells([Cell(case, "cuda", "two_launches", config=of_up(**config))])
    assert record.status == "ok", record.reason
