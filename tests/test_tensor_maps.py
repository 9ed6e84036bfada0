"""What reaches a kernel as a tensor map, by a stand-in for the driver."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("cuda.core")
from stand_in_driver import PROGRAM, on

from fusebench.backends import cuda, tensor_maps


@pytest.fixture
def maps(monkeypatch):
    """What the driver is asked to make a tensor map of."""
    maps = []

    def encode(address, kind, rank, pointer, sizes, strides, box, steps, interleave, swizzle, promotion, fill):
        assert address.value % 64 == 0
        rank = rank.value
        maps.append(SimpleNamespace(
            address=address.value, kind=kind, pointer=pointer.value, sizes=sizes[:rank], strides=strides[: rank - 1], box=box[:rank],
            steps=steps[:rank], swizzle=swizzle, rest=(interleave, promotion, fill),
        ))  # fmt: skip
        return maps.error

    maps = type("Maps", (list,), {"error": 0})()
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
    (made,) = maps  # one map serves as long as the memory lies there
    for call in driver.launched:
        assert call.places[0] == made.address and call.values[1] == y.data_ptr()
    # the innermost dimension comes first, whose stride is not given
    assert made.pointer == x.data_ptr() and made.sizes == list(flat[::-1]) and made.box == list(box[::-1])
    assert made.strides == [2 * s for s in torch.zeros(flat).stride()[-2::-1]] and made.steps == [1] * len(box)
    assert made.kind == CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 and made.rest == (0, 0, 0)
    assert made.swizzle == CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B
    with pytest.raises(ValueError, match="not contiguous"):
        launch(x.transpose(0, 1), y)
    other = on(1, torch.zeros(shape, dtype=torch.bfloat16))
    launch(other, y)
    assert driver.launched[-1].places[0] == maps[-1].address != made.address


def test_maps_of_memory_that_recurs_are_kept(driver, maps):
    launch = cuda.Launcher(PROGRAM, 1, 32, boxes=[(2, 64), (2, 64)])
    x, y = (on(0, torch.zeros((4, 128)).half()) for _ in range(2))
    for first, second in ((x, y), (y, x), (x, y), (x, x)):
        launch(first, second)
        at = [next(m.pointer for m in maps if m.address == place) for place in driver.launched[-1].places]
        assert at == [first.data_ptr(), second.data_ptr()]
    assert len(maps) == 4, "one for each place of each tensor"


def test_a_tensor_of_another_shape_at_the_same_address_has_a_map_of_its_own(driver, maps):
    launch, x = cuda.Launcher(PROGRAM, 1, 32, boxes=[(2, 64)]), on(0, torch.zeros((4, 128)).half())
    for shape in ((4, 128), (2, 256), (2, 2, 128), (4, 128)):
        launch(on(0, x.view(shape)))
        assert maps[-1].sizes == [shape[-1], 512 // shape[-1]] and driver.launched[-1].places[0] == maps[-1].address
    assert len({m.pointer for m in maps}) == 1


def test_a_launch_keeps_few_maps(driver, maps):
    launch = cuda.Launcher(PROGRAM, 1, 32, boxes=[(2, 64)])
    tensors = [on(0, torch.zeros((4, 128)).half()) for _ in range(tensor_maps.KEPT + 1)]
    for tensor in (*tensors, tensors[-1]):
        launch(tensor)
    assert len(maps) == len(tensors) and driver.launched[-1].places[0] == maps[-1].address
    launch(tensors[0])
    assert len(maps) == len(tensors) + 1, "it was dropped with the others"


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
    assert {m.address: m.pointer for m in maps} == {outer.places[0]: x.data_ptr(), inner.places[0]: y.data_ptr()}


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
    (made,) = maps
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
