"""How Triton kernels are launched on a GPU, by a stand-in for the driver and for what Triton compiles."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("cuda.core")
from stand_in_driver import on

from fusebench.backends.triton_launcher import TritonLauncher


class Queue:
    """In the place of a Triton kernel with its grid: looks up a compiled kernel and launches it, as Triton does. The code that it
    compiles has a parameter for every argument but an int of 1, and two for scratch memory."""

    def __init__(self, driver):
        self.driver, self.calls, self.metadata, self.types = driver, [], {}, {}

    def __call__(self, *arguments):
        self.calls.append((self.driver.now, arguments))
        function = 0x700 + len(self.calls)
        types = {f"a{place}": self.types.get(place, type_of(a)) for place, a in enumerate(arguments)}
        sizes = [{"i32": 4, "i64": 8, "fp32": 4}.get(kind, 8) for kind in types.values() if kind != "constexpr"]
        self.driver.sizes[function] = [*sizes, 8, 8]
        names = [
            "num_ctas",
            "num_warps",
            "shared",
            "launch_cooperative_grid",
            "launch_pdl",
            "global_scratch_size",
            "profile_scratch_size",
        ]
        metadata = dict(zip(names, (1, 4, 512, False, False, 0, 0), strict=True)) | self.metadata
        signature = types | {"BLOCK": "constexpr"}
        return SimpleNamespace(
            function=function, metadata=SimpleNamespace(**metadata), src=SimpleNamespace(signature=signature)
        )


def type_of(argument):
    """As Triton names it."""
    if isinstance(argument, torch.Tensor):
        return "*fp32"
    if isinstance(argument, float):
        return "fp32"
    return "constexpr" if argument == 1 else "i32" if argument < 2**31 else "i64"


@pytest.fixture
def frozen(driver):
    queue = Queue(driver)
    return TritonLauncher(queue, (7, 2)), queue


def single(value):
    """A number's bytes in float32 as those of an int."""
    return int(np.float32(value).view(np.uint32))


def test_triton_looks_a_kernel_up_once(frozen, driver):
    launch, queue = frozen
    x, y = on(0, torch.ones(8)), on(0, torch.ones(8).half())
    for _ in range(3):
        launch(x, 1000, 0.5, y)
    assert len(queue.calls) == 1, "and queues that first launch itself"
    for ran in driver.launched:
        assert (ran.function, ran.stream, ran.grid, ran.block, ran.memory) == (
            0x701,
            0xABC0,
            (7, 2, 1),
            (128, 1, 1),
            512,
        )
        assert ran.values == [x.data_ptr(), 1000, single(0.5), y.data_ptr(), 0, 0], "and no scratch memory"
    assert len(driver.launched) == 2
    launch(on(0, torch.zeros(8)), 1000, 0.5, y)
    assert len(queue.calls) == 1 and driver.launched[-1].values[0] != x.data_ptr(), "pointers may be others"


def test_what_triton_compiles_in_is_no_parameter(frozen, driver):
    launch, queue = frozen
    x, y = on(0, torch.ones(8)), on(0, torch.ones(8))
    for _ in range(2):
        launch(1, x, 2**40, y)
    (ran,) = driver.launched
    assert ran.values == [x.data_ptr(), 2**40, y.data_ptr(), 0, 0] and len(queue.calls) == 1


@pytest.mark.parametrize(
    "change",
    [{1: 1}, {1: 1000.0}, {2: 1.5}, {0: on(0, torch.ones(8).half())}, {0: on(0, torch.ones(16))[1:9]}],
    ids=str,
)
def test_triton_looks_again_where_it_compiles_other_code(frozen, driver, change):
    launch, queue = frozen
    usual = [on(0, torch.ones(8)), 1000, 0.5, on(0, torch.ones(8))]
    launch(*usual)
    other = [change.get(place, argument) for place, argument in enumerate(usual)]
    launch(*other)
    assert len(queue.calls) == 2 and not driver.launched
    assert all(a is b for a, b in zip(queue.calls[1][1], other, strict=True))
    launch(*usual)
    launch(*usual)
    assert driver.launched, "it is kept again"
    assert driver.launched[-1].values[1:3] == [1000, single(0.5)]


def test_equal_numbers_are_the_same_code(frozen, driver):
    launch, queue = frozen
    x = on(0, torch.ones(8))
    for number in (0.0, -0.0, 0.0):
        launch(x, number, int("123456"))
    assert len(queue.calls) == 1 and [ran.values[1] for ran in driver.launched] == [single(-0.0), 0]


@pytest.mark.parametrize(
    ("metadata", "types"),
    [({"num_ctas": 2}, {}), ({"launch_pdl": True}, {}), ({"launch_cooperative_grid": True}, {}), ({"global_scratch_size": 8}, {}),
     ({"profile_scratch_size": 8}, {}), ({}, {1: "fp64"}), ({}, {1: "i16"})],
    ids=str,
)  # fmt: skip
def test_triton_launches_itself_what_takes_more_than_parameters(frozen, driver, metadata, types):
    launch, queue = frozen
    queue.metadata, queue.types = metadata, types
    for _ in range(3):
        launch(on(0, torch.ones(8)), 1000)
    assert len(queue.calls) == 3 and not driver.launched


def test_triton_launches_follow_their_first_tensor(frozen, driver):
    launch, queue = frozen
    x, y = on(1, torch.ones(8)), on(0, torch.ones(8))
    for first in (x, x, y, y):
        launch(3, first)
    assert [now for now, _ in queue.calls] == [1, 0] and driver.now == 0, "looked up once for each device"
    assert [(ran.function, ran.device, ran.stream) for ran in driver.launched] == [
        (0x701, 1, 0xABC1),
        (0x702, 0, 0xABC0),
    ]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("second", "said"),
    [
        (on(1, torch.ones(8)), "argument 1 is on .*, the first one on cuda:0"),
        (on(0, torch.ones(4, 4).T), "argument 1 is not contiguous; pass a copy of it"),
    ],
)
def test_tensors_that_a_triton_kernel_would_misread_are_refused(frozen, driver, second, said, kept):
    launch, queue = frozen
    if kept:
        launch(on(0, torch.ones(8)), on(0, torch.ones(8)))
    with pytest.raises(ValueError, match=said):
        launch(on(0, torch.ones(8)), second)
    assert len(queue.calls) == kept and not driver.launched
    with pytest.raises(ValueError, match="the first tensor is on the CPU: expected one on a GPU"):
        launch(torch.ones(8), second)


def test_a_triton_launch_makes_and_returns_its_output(driver):
    queue = Queue(driver)
    call = TritonLauncher(queue, (3,)).returning(["*fp32", "i32", "*bf16", "*fp32"], [(2, 3), (4,)], [5])
    for gpu in (0, 0, 1, 1, 0):
        x = on(gpu, torch.ones(8))
        y, z = call(x)
        assert (y.dtype, z.dtype) == (torch.bfloat16, torch.float32) and (y.shape, z.shape) == ((2, 3), (4,))
        assert y.get_device() == z.get_device() == gpu
    assert [now for now, _ in queue.calls] == [0, 1] and [ran.device for ran in driver.launched] == [0, 1, 0]
    assert driver.launched[-1].values == [x.data_ptr(), 5, y.data_ptr(), z.data_ptr(), 0, 0]
    _, (given, number, first, second) = queue.calls[0]
    assert number == 5 and isinstance(given, torch.Tensor) and first.dtype == torch.bfloat16 and second.shape == (4,)
