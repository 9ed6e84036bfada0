"""What reaches a kernel as a tensor map, by a stand-in for the driver."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("cuda.core")
from stand_in_driver import PROGRAM, on

from fusebench.backends import cuda, tensor_maps


@pytest.fixture
def maps(monkeypatch):
    """What the driver is asked to make a tensor map of. It writes the address to the word `at`, turned by `turn` bits."""

    def encode(address, kind, rank, pointer, sizes, strides, box, steps, interleave, swizzle, promotion, fill):
        assert address.value % 64 == 0
        rank = rank.value
        words = (ctypes.c_uint64 * 16).from_address(address.value)
        words[:] = [hash((kind, *sizes[:rank], *box[:rank], swizzle)) % 2**64] * 16
        words[maps.at] = pointer.value << maps.turn
        maps.append(SimpleNamespace(
            address=address.value, kind=kind, pointer=pointer.value, sizes=sizes[:rank], strides=strides[: rank - 1], box=box[:rank],
            steps=steps[:rank], swizzle=swizzle, rest=(interleave, promotion, fill),
        ))  # fmt: skip
        return maps.error

    maps = type("Maps", (list,), {"error": 0, "at": 0, "turn": 0})()
    monkeypatch.setattr(tensor_maps, "libcuda", lambda: SimpleNamespace(cuTensorMapEncodeTiled=encode))
    return maps


@pytest.mark.parametrize(
    ("shape", "box", "flat"),
    [((4, 128), (2, 64), (4, 128)), ((2, 3, 4, 128), (2, 64), (24, 128)), ((2, 3, 4, 128), (1, 2, 64), (6, 4, 128))],
)
def test_the_first_arguments_reach_the_kernel_as_tensor_maps(driver, maps, shape, box, flat):
    from cuda.bindings.driver import CUtensorMapDataType, CUtensorMapSwizzle

    x, y = on(1, torch.zeros(shape, dtype=torch.bfloat16)), on(1, torch.ones(8))
    launch = cuda.Launcher(PROGRAM, 1, 32, boxes=[box])
    for _ in range(2):
        launch(x, y)
    made = maps[-1]
    for call in driver.launched:
        assert call.places[0] == made.address and call.values == [x.data_ptr(), y.data_ptr()]
    # the innermost dimension comes first, whose stride is not given
    assert made.pointer == x.data_ptr() and made.sizes == list(flat[::-1]) and made.box == list(box[::-1])
    assert made.strides == [2 * s for s in torch.zeros(flat).stride()[-2::-1]] and made.steps == [1] * len(box)
    assert made.kind == CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 and made.rest == (0, 0, 0)
    assert made.swizzle == CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B
    with pytest.raises(ValueError, match="not contiguous"):
        launch(x.transpose(0, 1), y)


def test_a_map_follows_its_tensor_to_another_address_without_the_driver(driver, maps):
    launch = cuda.Launcher(PROGRAM, 1, 32, boxes=[(2, 64), (2, 64)])
    x, y = (on(0, torch.zeros((4, 128)).half()) for _ in range(2))
    launch(x, y)
    asked = len(maps)
    for first, second in ((x, y), (y, x), (x, x)):
        launch(first, second)
        assert driver.launched[-1].values == [first.data_ptr(), second.data_ptr()]
    assert len(maps) == asked


def test_a_tensor_of_another_shape_at_the_same_address_is_described_anew(driver, maps):
    launch, x = cuda.Launcher(PROGRAM, 1, 32, boxes=[(2, 64)]), on(0, torch.zeros((4, 128)).half())
    for shape in ((4, 128), (2, 256), (2, 2, 128), (4, 128)):
        launch(on(0, x.view(shape)))
        assert maps[-1].sizes == [shape[-1], 512 // shape[-1]] and driver.launched[-1].places[0] == maps[-1].address
        assert driver.launched[-1].values == [x.data_ptr()]


@pytest.mark.parametrize(("at", "turn"), [(1, 0), (0, 4)])
def test_a_driver_that_lays_out_maps_otherwise_makes_one_for_each_call(driver, maps, at, turn):
    """The address in another word, or not as it is: a call must not write it to the first word."""
    maps.at, maps.turn = at, turn
    launch, tensors = (
        cuda.Launcher(PROGRAM, 1, 32, boxes=[(2, 64)]),
        [on(0, torch.zeros((4, 128)).half()) for _ in "ab"],
    )
    for tensor in (*tensors, *tensors):
        launch(tensor)
        words = (ctypes.c_uint64 * 16).from_address(driver.launched[-1].places[0])
        assert maps[-1].pointer == tensor.data_ptr() and words[at] == tensor.data_ptr() << turn


def test_calls_that_overlap_have_maps_of_their_own(driver, maps, monkeypatch):
    from cuda.bindings import driver as real

    x, y = (on(0, torch.zeros((4, 128)).half()) for _ in range(2))
    launch, record, inside = cuda.Launcher(PROGRAM, 1, 32, boxes=[(2, 64)]), real.cuLaunchKernelEx, []

    def slow(*arguments):
        if not inside:
            inside.append(True)
            thread = threading.Thread(target=launch, args=(y,))
            thread.start()
            thread.join()
        return record(*arguments)

    monkeypatch.setattr(real, "cuLaunchKernelEx", slow)
    launch(x)
    inner, outer = driver.launched
    assert (inner.values, outer.values) == ([y.data_ptr()], [x.data_ptr()]) and inner.places != outer.places


@pytest.mark.parametrize(
    ("dtype", "declared", "box", "elements", "swizzle"),
    [
        ("float16", "float16", 64, "FLOAT16", "128B"), ("float32", "float32", 32, "FLOAT32", "128B"),
        ("float32", "tf32", 32, "TFLOAT32", "128B"), ("uint8", "uint8", 128, "UINT8", "128B"),
        ("float8_e4m3fn", "float8_e4m3fn", 64, "UINT8", "64B"), ("bfloat16", "bfloat16", 16, "BFLOAT16", "32B"),
        ("bfloat16", "bfloat16", 8, "BFLOAT16", "NONE"),
    ],
)  # fmt: skip
def test_a_tensor_map_has_its_tensors_elements(driver, maps, dtype, declared, box, elements, swizzle):
    from cuda.bindings import driver as real

    x = on(0, torch.zeros((4, 128)).to(getattr(torch, dtype)))
    cuda.Launcher(PROGRAM, 1, 32, boxes=[(2, box)], dtypes=[declared])(x)
    made = maps[-1]
    assert made.kind == getattr(real.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{elements}")
    assert made.swizzle == getattr(real.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}")
    assert made.strides == [128 * x.element_size()]


def test_elements_that_the_copy_engine_does_not_know_are_refused(driver, maps):
    with pytest.raises(ValueError, match=r"a tensor of torch.int64 cannot be a tensor map: expected 8 bits, float16"):
        cuda.Launcher(PROGRAM, 1, 32, boxes=[(2, 64)])(on(0, torch.zeros((4, 128), dtype=torch.int64)))
    assert not maps


def test_a_tensor_map_that_the_driver_refuses_is_named(driver, maps):
    maps.error = 1
    with pytest.raises(ValueError, match=r"no tensor map of \(4, 3\) torch.float16 in boxes of \(2, 64\) \(error 1\)"):
        cuda.Launcher(PROGRAM, 1, 32, boxes=[(2, 64)])(on(0, torch.zeros((4, 3), dtype=torch.float16)))
    assert not driver.launched
