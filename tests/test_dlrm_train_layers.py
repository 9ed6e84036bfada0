"""dlrm_train in CUDA with a launch for each layer: the steps that take it, and that it is right on the emulator."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.core")
from conftest import DEVICE

from fusebench import discovery
from fusebench.cases import make_case
from fusebench.contract import Cell, Device
from implementations.dlrm_train import cuda

KERNEL = discovery.find_kernels(discovery.roots_of())["dlrm_train"]
H200, B200 = (Device("cuda", f"sm_{c[0]}{c[1]}", c, sms) for c, sms in (((9, 0), 132), ((10, 0), 148)))
LAYERS = {"KERNEL": "layers"}


def sizes(M, F, D, LAYERS, *widths):
    names = "N0", "N1", "N2", "N3", "P1", "P2"
    return {"M": M, "F": F, "V": 30, "D": D, "LAYERS": LAYERS} | dict(zip(names, widths, strict=True))


@pytest.mark.parametrize(
    ("case", "dtype", "device", "taken"),
    [
        ("main", "bfloat16", H200, "pass"),
        ("small", "bfloat16", H200, "pass"),
        ("large", "bfloat16", H200, "layers"),
        ("large", "float32", H200, "pass"),
        ("large", "bfloat16", B200, "pass"),
    ],
)
def test_only_many_rows_have_a_launch_for_each_layer(case, dtype, device, taken):
    made = make_case(KERNEL, case, dtype)
    assert cuda.config(made, "modulus_two_launches", device)["KERNEL"] == taken


def test_widths_of_no_whole_vectors_are_refused():
    made = make_case(KERNEL, sizes(9, 3, 16, 2, 13, 40, 1, 1, 48, 1), "bfloat16")
    config = cuda.config(made, "modulus_two_launches", H200) | LAYERS
    assert "multiples of 16" in cuda.fits(made, "modulus_two_launches", H200, config)


@pytest.mark.skipif(DEVICE != "cpu", reason="the emulator's")
@pytest.mark.parametrize(
    ("of", "variant"),
    [
        # all kinds of products; rows that end within a tile; the gradient of the dots in the place of a later one
        (sizes(141, 17, 48, 3, 13, 64, 128, 1, 128, 256), "modulus"),
        (sizes(70, 31, 48, 1, 9, 1, 1, 1, 1, 1), "modulus"),  # the head alone behind as many vectors as a warp takes
        (sizes(33, 1, 16, 2, 16, 32, 1, 1, 48, 1), "improved"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value['LAYERS']} layers",
)
def test_a_launch_for_each_layer(run_cells, of, variant):
    hashing = "lookup" if variant == "improved" else "modulus"
    case = make_case(KERNEL, of, "bfloat16", options={"hashing": hashing})
    (record,) = run_cells([Cell(case, "cuda", f"{variant}_two_launches", config=LAYERS)])
    assert record.status == "ok", record.reason
