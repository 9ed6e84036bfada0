"""How CUDA kernels are launched, by a stand-in for the driver."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("cuda.core")
from stand_in_driver import PROGRAM, on

from fusebench.backends import cuda


def test_a_program_is_loaded_for_the_device_that_it_runs_on(driver):
    assert cuda.load(PROGRAM).name == "copy<float>"
    assert driver.cubins == [
        (Path("copy.cu"), "sm_80", ["copy<float>"], ("A=1",)),
        (b"code", {"copy<float>": b"_Z4copy"}),
    ]
    assert driver.set == ["torch's 0", 0], "Torch makes the context that all share"
    cuda.load(PROGRAM, 1)
    assert driver.cubins[2][1] == "sm_90a" and driver.set[2:] == ["torch's 1", 1]


def test_without_a_gpu_nothing_is_asked_of_cuda_core(driver, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"^copy<float> of copy\.cu needs an NVIDIA GPU and its driver$"):
        cuda.Launcher(PROGRAM, 1, 32)
    assert not driver.cubins and not driver.set


def double(value):
    """A number's bytes as those of an int."""
    return int(np.float64(value).view(np.int64))


def test_a_launch_hands_over_pointers_and_numbers_on_torchs_stream(driver):
    launch = cuda.Launcher(PROGRAM, (2, 3), 128, 1024)
    x, y = on(0, torch.ones(8)), on(0, torch.ones(8))
    launch(x, 3, y, 0.5)
    driver.stream = 0xDEF0
    launch(y, -4, x, np.float32(1.5))
    first, second = driver.launched
    assert (first.grid, first.block, first.memory, first.attributes) == ((2, 3, 1), (128, 1, 1), 1024, 0)
    assert first.function == 0xF00 and first.extra == 0
    assert first.values == [x.data_ptr(), 3, y.data_ptr(), double(0.5)]
    assert second.values == [y.data_ptr(), -4, x.data_ptr(), int(np.float32(1.5).view(np.int32))]
    assert (first.stream, second.stream) == (0xABC0, 0xDEF0), "the stream that is Torch's at the time of the call"
    assert first.address == second.address, "the same memory, rewritten"


def test_a_number_is_the_same_whatever_was_passed_before(driver):
    launch, x = cuda.Launcher(PROGRAM, 1, 32), on(0, torch.ones(8))
    numbers = [1, 1.0, True, 0.0, -0.0, 0, 2**40, np.int32(-1)]
    for number in numbers:
        launch(x, number)
    seen = [call.values[1] for call in driver.launched]
    assert seen == [1, double(1), 1, 0, double(-0.0), 0, 2**40, 2**32 - 1]


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, None, "3"])
def test_an_argument_that_is_no_number_is_named(driver, number):
    with pytest.raises(TypeError, match="expected a tensor, an int of 64 bits, a float or a NumPy scalar"):
        cuda.Launcher(PROGRAM, 1, 32)(on(0, torch.ones(8)), number)
    assert not driver.launched


def test_a_launch_follows_its_first_tensor(driver):
    launch, x, y = cuda.Launcher(PROGRAM, 1, 32, 49153), on(1, torch.ones(8)), on(0, torch.ones(8))
    assert [c[1] for c in driver.cubins[::2]] == ["sm_80"]
    for first in (x, x, y):
        launch(0.5, first, first)
    assert [call.device for call in driver.launched] == [1, 1, 0] and driver.now == 0
    assert [call.stream for call in driver.launched] == [0xABC1, 0xABC1, 0xABC0], "Torch's stream of that device"
    assert [c[1] for c in driver.cubins[::2]] == ["sm_80", "sm_90a"], "loaded once for each device"
    assert [function for function, *_ in driver.allowed] == [0xF00, 0xF01], "each device has a function of its own"
    assert [call.function for call in driver.launched] == [0xF01, 0xF01, 0xF00]
    cuda.Launcher(PROGRAM, 1, 32)(x)
    last = driver.launched[-1]
    assert (last.grid, last.block, last.memory) == ((1, 1, 1), (32, 1, 1), 0), "none unless it is asked for"


def test_calls_that_overlap_have_memory_of_their_own(driver, monkeypatch):
    """The driver reads a call's parameters while other threads run."""
    from cuda.bindings import driver as real

    x, y = on(0, torch.ones(8)), on(0, torch.ones(8))
    record, inside = real.cuLaunchKernelEx, []

    def slow(*arguments):
        if not inside:
            inside.append(True)
            thread = threading.Thread(target=launch, args=(y, 2))
            thread.start()
            thread.join()
        return record(*arguments)

    monkeypatch.setattr(real, "cuLaunchKernelEx", slow)
    launch = cuda.Launcher(PROGRAM, 1, 32)
    launch(x, 1)
    inner, outer = driver.launched
    assert inner.values == [y.data_ptr(), 2] and outer.values == [x.data_ptr(), 1]
    launch(x, 3), launch(y, 4)
    assert {call.address for call in driver.launched[2:]} <= {inner.address, outer.address}, "which is used again"


def test_a_thread_without_a_context_gets_one(driver):
    from cuda.bindings.driver import CUresult

    launch, x = cuda.Launcher(PROGRAM, 1, 32), on(0, torch.ones(8))
    driver.results, driver.set = [CUresult.CUDA_ERROR_INVALID_CONTEXT], []
    launch(x)
    assert len(driver.launched) == 2 and driver.set == ["context of 0"]
    driver.results = [CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES]
    with pytest.raises(
        RuntimeError, match=r"^copy<float> of copy\.cu was not launched \(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES\)$"
    ):
        launch(x)


def test_a_launch_goes_to_the_first_gpu_from_another_one(driver):
    launch, x = cuda.Launcher(PROGRAM, 1, 32), on(0, torch.ones(8))
    driver.now = 1
    launch(x)
    assert [call.device for call in driver.launched] == [0] and driver.now == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((torch.ones(8),), "the first tensor is on the CPU: expected one on a GPU"),
        ((on(0, torch.ones(8)), torch.ones(8)), "argument 1 is on cpu, the first one on cuda:0"),
        ((on(0, torch.ones(8)), on(1, torch.ones(8))), "argument 1 is on .*, the first one on cuda:0"),
        ((on(0, torch.ones(8)), on(0, torch.ones(4, 4).T)), "argument 1 is not contiguous; pass a copy of it"),
        (
            (on(0, torch.ones(8)), on(0, torch.ones(8).half())),
            "argument 1 is torch.float16; the kernel takes torch.float32",
        ),
        ((on(0, torch.ones(8)), 0, on(0, torch.ones(8))), "argument 2 is torch.float32; the kernel takes torch.int32"),
    ],
)
def test_tensors_that_the_kernel_would_misread_are_refused(driver, arguments, said):
    launch = cuda.Launcher(PROGRAM, 1, 32, dtypes=("tf32", "float32", "int32"))
    with pytest.raises(ValueError, match=said):
        launch(*arguments)
    assert not driver.launched


def test_where_no_dtypes_are_named_those_of_the_first_call_hold(driver):
    launch = cuda.Launcher(PROGRAM, 1, 32, dtypes=("float32",))
    launch(on(0, torch.ones(8)), 3, on(0, torch.ones(8).half()))
    with pytest.raises(ValueError, match=r"argument 2 is .*float32; the kernel takes .*float16"):
        launch(on(0, torch.ones(8)), 3, on(0, torch.ones(8)))
    assert len(driver.launched) == 1


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4])
def test_a_tensor_that_is_not_aligned_is_refused(driver, offset):
    whole = on(0, torch.ones(16))
    assert whole.data_ptr() % 16 == 0
    for arguments in ((whole, whole[offset:]), (whole[offset:], 7, whole)):
        launch = cuda.Launcher(PROGRAM, 1, 32)
        if offset % 4:
            with pytest.raises(ValueError, match="a multiple of 16 bytes"):
                launch(*arguments)
        else:
            launch(*arguments)
    assert len(driver.launched) == (0 if offset % 4 else 2)


@pytest.mark.parametrize(("size", "asked"), [(0, False), (48 * 1024, True), (48 * 1024 + 1, True)])
def test_dynamic_shared_memory_is_asked_for(driver, size, asked):
    """Also 48 KiB, which with what the kernel declares are more than a block has unasked."""
    from cuda.bindings.driver import CUfunction_attribute

    driver.now = 1
    cuda.Launcher(PROGRAM, 1, 32, size)
    most = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert driver.allowed == [(0xF01, most, size)] * asked


def test_shared_memory_that_the_device_does_not_have_is_named(driver):
    from cuda.bindings.driver import CUresult

    driver.error = CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(RuntimeError, match=r"less than 300000 bytes of shared memory \(CUDA_ERROR_INVALID_VALUE\)"):
        cuda.Launcher(PROGRAM, 1, 32, 300000)


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_launch_makes_and_returns_its_output(driver, gpu):
    launch = cuda.Launcher(PROGRAM, 1, 32, dtypes=("float32", "float16", "int32", "float16"))
    call = launch.returning({3: (4, 2)}, (7, 0.5), absent=(2,))
    x, b = on(gpu, torch.ones(8)), on(gpu, torch.ones(8).half())
    for _ in range(3):
        y = call(x, b)
        assert (tuple(y.shape), y.dtype, y.get_device(), y.is_contiguous()) == ((4, 2), torch.float16, gpu, True)
        ran = driver.launched[-1]
        assert ran.values == [x.data_ptr(), b.data_ptr(), 0, y.data_ptr(), 7, double(0.5)]
        assert (ran.device, ran.stream) == (gpu, 0xABC0 + gpu)
    assert len(driver.launched) == 3 and driver.now == 0
    assert call(x, b) is not call(x, b), "each call has an output of its own"
    with pytest.raises(ValueError, match=r"argument 1 is torch.float32; the kernel takes torch.float16"):
        call(x, x)
    with pytest.raises(ValueError, match=r"argument 0 is 3; expected a tensor"):
        call(3, b)
    with pytest.raises(TypeError, match="positional argument"):
        call(x)


def test_several_outputs_are_returned_in_order(driver):
    call = cuda.Launcher(PROGRAM, 1, 32, dtypes=("float32",) * 3).returning({0: (2,), 2: (3, 0)})
    first, second = call(on(0, torch.ones(8)))
    assert (first.shape, second.shape) == ((2,), (3, 0)) and driver.launched[0].values[0] == first.data_ptr()
