"""How Triton and CUDA kernels are called: the cache of compiled code, what is handed to a driver, and to jax-triton."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import jax
import numpy as np
import pytest
import torch

pytest.importorskip("cuda.core")
from fusebench.backends import calls, cuda, jax_triton, parameters
from fusebench.backends.triton_launcher import TritonLauncher

# The cache of machine code


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """root/kernel/main.cu with the headers that it includes, and a shared folder elsewhere."""
    for name, text in {
        "root/kernel/main.cu": '#include "near.cuh"\n  #  include   "above.cuh"\n#include "shared.cuh"\n#include <mma.h>\n// #include "no.cuh"\n',
        "root/kernel/near.cuh": '#include "inner.cuh"\n#include "near.cuh"\n',
        "root/kernel/inner.cuh": "",
        "root/above.cuh": '#include "near.cuh"\n#include "missing.cuh"\n',
        "shared/shared.cuh": '#include "beside.cuh"\n',
        "shared/beside.cuh": "",
        "shared/above.cuh": "the one that is nearer comes first",
        "root/kernel/no.cuh": "",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(cuda, "SHARED", tmp_path / "shared")
    monkeypatch.setattr(cuda, "header_folders", lambda: [Path("/headers")])
    return tmp_path


def test_a_kernel_is_made_of_its_own_headers_each_once(sources):
    found = [str(f.relative_to(sources)) for f in cuda.sources_of(sources / "root/kernel/main.cu")]
    assert found[0] == "root/kernel/main.cu" and sorted(found[1:]) == [
        "root/above.cuh", "root/kernel/inner.cuh", "root/kernel/near.cuh", "shared/beside.cuh", "shared/shared.cuh",
    ]  # fmt: skip


def test_everything_that_machine_code_depends_on_is_in_its_key(sources, monkeypatch):
    file = sources / "root/kernel/main.cu"
    plain = (file, "sm_80", ["copy<float>"], ["A=1"])
    keys = [cuda._key(*plain)]
    assert cuda._key(*plain) == keys[0] and len(keys[0]) == 64
    keys += [cuda._key(file, "sm_90a", ["copy<float>"], ["A=1"]), cuda._key(file, "sm_80", ["copy<float>", "x"], ["A=1"]),
             cuda._key(file, "sm_80", ["copy<float>"], []), cuda._key(file, "sm_80", ["copy<float>"], ["A=2"]),
             cuda._key(file, "sm_80", ["copy<float>", "A=1"], []), cuda._key(file, "sm_80", ["A=1"], ["copy<float>"]),
             cuda._key(*plain, True)]  # fmt: skip
    for header in ("root/kernel/main.cu", "root/kernel/inner.cuh", "root/above.cuh", "shared/beside.cuh"):
        (sources / header).write_text((sources / header).read_text() + "// changed\n")
        keys.append(cuda._key(*plain))
    monkeypatch.setattr(cuda, "header_folders", lambda: [Path("/other")])
    keys.append(cuda._key(*plain))
    from cuda.bindings import nvrtc

    monkeypatch.setattr(nvrtc, "nvrtcVersion", lambda: (0, 99, 1))
    keys.append(cuda._key(*plain))
    monkeypatch.setattr(cuda, "version", lambda package: f"another {package}")
    keys.append(cuda._key(*plain))
    monkeypatch.setattr(cuda, "STANDARD", "c++20")
    keys.append(cuda._key(*plain))
    monkeypatch.setattr(cuda, "header_folders", lambda: [file.parent / "toolkit"])
    (file.parent / "toolkit").mkdir()
    for text in ("#define CUDART_VERSION 13000", "#define CUDART_VERSION 13010"):
        (file.parent / "toolkit" / "cuda_runtime_api.h").write_text(text)
        keys.append(cuda._key(*plain))
    assert len(set(keys)) == len(keys)


@pytest.fixture
def compiled(sources, monkeypatch):
    """A function that compiles into some store, and the list of what was really compiled."""
    done = []
    monkeypatch.setattr(
        cuda, "_compile", lambda *a: done.append(a) or cuda.Cubin(b"co\nde", {"copy<float>": "_Z4copy"})
    )

    def compile_into(store):
        monkeypatch.setattr(cuda, "_store", lambda: store)
        return cuda.compile_cubin(str(sources / "root/kernel/main.cu"), "sm_80", ("copy<float>",), iter(["A=1"]))

    compile_into.done = done
    return compile_into


def test_what_is_compiled_is_kept(compiled, sources):
    store = {}
    first = compiled(store)
    assert compiled(store) == first == cuda.Cubin(b"co\nde", {"copy<float>": "_Z4copy"})
    assert compiled.done == [(sources / "root/kernel/main.cu", "sm_80", ["copy<float>"], ["A=1"], False)]
    (key,) = store
    for damaged in (b"", b"{\n", b"no JSON\ncode"):
        store[key] = damaged
        assert compiled(store) == first and store[key] == b'{"copy<float>": "_Z4copy"}\nco\nde'
    assert len(compiled.done) == 4


def test_without_a_cache_it_is_compiled_each_time(compiled):
    class Full(dict):
        def __setitem__(self, key, value):
            raise OSError

    for store in (None, Full()):
        assert compiled(store) == compiled(store)
    assert len(compiled.done) == 4


def test_the_cache_lies_in_the_users_folder(monkeypatch, tmp_path):
    from cuda.core import utils

    made = []
    monkeypatch.setattr(utils, "FileStreamProgramCache", lambda *a, **k: made.append((a, k)) or "store")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cuda._store.__wrapped__() == "store"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "me")
    cuda._store.__wrapped__()
    places = (tmp_path, tmp_path / "me" / ".cache")
    assert made == [((place / "fusebench" / "cuda",), {"max_size_bytes": 2**28}) for place in places]

    def unwritable(*_, **__):
        raise OSError

    monkeypatch.setattr(utils, "FileStreamProgramCache", unwritable)
    assert cuda._store.__wrapped__() is None


@pytest.mark.parametrize(
    ("capability", "arch"), [((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((10, 0), "sm_100"), ((12, 1), "sm_121"), ((8, 9), "sm_89")]
)  # fmt: skip
def test_only_hopper_has_instructions_of_its_own(capability, arch):
    assert cuda.architecture(capability) == arch


def test_headers_are_those_of_the_wheels_before_a_toolkits(tmp_path, monkeypatch):
    site = tmp_path / "site"
    wheels = [
        site / "nvidia" / name
        for name in ("cu13/include", "cu13/include/cccl", "cuda_runtime/include", "cuda_cccl/include")
    ]
    monkeypatch.setattr(sys, "path", ["", str(site), str(tmp_path / "nowhere"), str(site)])
    monkeypatch.setenv("CUDA_HOME", "/mine")
    monkeypatch.setenv("CUDA_PATH", "/theirs")
    toolkits = [Path(t) / sub for t in ("/mine", "/theirs", "/usr/local/cuda") for sub in ("include", "include/cccl")]
    site.mkdir()
    assert cuda.header_folders() == toolkits
    monkeypatch.delenv("CUDA_HOME"), monkeypatch.setenv("CUDA_PATH", "")
    assert cuda.header_folders() == toolkits[4:]
    for wheel in wheels:
        wheel.mkdir(parents=True)
    (site / "nvidia" / "cublas" / "include").mkdir(parents=True)
    assert cuda.header_folders() == wheels


# Compiling, by a stand-in for NVRTC


@pytest.fixture
def nvrtc(monkeypatch):
    """cuda.core's Program, which keeps what it was given and raises `error` if there is one."""
    from cuda import core

    given = SimpleNamespace(error=None)

    class Program:
        def __init__(self, *arguments):
            given.arguments = arguments

        def compile(self, *arguments, **keywords):
            given.compiled = arguments, keywords
            if given.error:
                raise given.error
            return SimpleNamespace(code=bytearray(b"code"), symbol_mapping={"a": b"_Za", "b": "_Zb"})

    monkeypatch.setattr(core, "Program", Program)
    monkeypatch.setattr(core, "ProgramOptions", lambda **options: options)
    return given


def test_what_nvrtc_is_given(sources, nvrtc):
    file = sources / "root/kernel/main.cu"
    found = cuda._compile(file, "sm_80", ["a", "b"], ["DEBUG", "N=3", "TEXT=x=y"])
    assert found == cuda.Cubin(b"code", {"a": "_Za", "b": "_Zb"}) and type(found.code) is bytes
    text, language, options = nvrtc.arguments
    assert (text, language) == (file.read_text(), "c++") and nvrtc.compiled == (
        ("cubin",),
        {"name_expressions": ("a", "b")},
    )
    folders = [str(p) for p in (sources / "root/kernel", sources / "root", sources / "shared", "/headers")]
    assert options == {
        "name": "main.cu", "arch": "sm_80", "std": "c++17", "include_path": folders,
        "define_macro": ["DEBUG", ("N", "3"), ("TEXT", "x=y")], "lineinfo": None,
    }  # fmt: skip
    cuda._compile(file, "sm_80", ["a"], [])
    assert nvrtc.arguments[2]["define_macro"] is None
    cuda._compile(file, "sm_80", ["a"], [], lines=True)
    assert nvrtc.arguments[2]["lineinfo"] is True and nvrtc.arguments[2]["name"] == str(file.resolve())


class NotFoundError(Exception):
    """By its name what cuda-core raises for a library that is not there."""


@pytest.mark.parametrize(
    ("error", "first", "hint"),
    [
        (ValueError("log\n main.cu(3): error: no such name \nmore"), "main.cu(3): error: no such name", ""),
        (ValueError("nothing to show"), "ValueError", ""),
        (ValueError('main.cu(1): error: could not open source file "mma.h"'), 'main.cu(1): error: could not open source file "mma.h"',
         f"\nmma.h was not found: pip install {cuda.PACKAGES}, or set CUDA_HOME"),
        (ValueError('x: error: cannot open source file "cub/cub.cuh" (no)'), 'x: error: cannot open source file "cub/cub.cuh" (no)',
         f"\ncub/cub.cuh was not found: pip install {cuda.PACKAGES}, or set CUDA_HOME"),
        (NotFoundError("libnvrtc"), "NotFoundError", "\nNVRTC itself was not found: pip install nvidia-cuda-nvrtc"),
    ],
)  # fmt: skip
def test_what_does_not_compile_is_told_in_its_first_line(sources, nvrtc, error, first, hint):
    nvrtc.error = error
    with pytest.raises(cuda.CompileError) as caught:
        cuda._compile(sources / "root/kernel/main.cu", "sm_80", ["a"], [])
    assert str(caught.value) == f"{first} (main.cu for sm_80)\n{error}{hint}" and caught.value.__cause__ is error


# Launching, by a stand-in for the driver


@pytest.fixture
def driver(monkeypatch):
    """cuda.core and two of Torch's GPUs as far as a launch needs them; keeps what was asked of them."""
    from cuda import core
    from cuda.bindings import driver as real

    ok = real.CUresult.CUDA_SUCCESS
    seen = SimpleNamespace(
        launched=[], set=[], cubins=[], allowed=[], results=[], error=ok, now=0, stream=0xABC0, sizes={}
    )

    class Device:
        def __init__(self, index):
            self.index = index

        def set_current(self):
            seen.set.append(self.index)

    class ObjectCode:
        @staticmethod
        def from_cubin(code, symbol_mapping):
            seen.cubins.append((code, symbol_mapping))
            return SimpleNamespace(get_kernel=lambda name: SimpleNamespace(name=name, handle=0xF00))

    @contextlib.contextmanager
    def device(index):
        before, seen.now = seen.now, index
        yield
        seen.now = before

    def launched(config, function, address, extra):
        """Notes what lies in the memory that it is given; its parameters end with a null pointer."""
        places = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))
        count = next(i for i in range(100) if not places[i])
        grid, block = (tuple(getattr(config, f"{of}Dim{d}") for d in "XYZ") for of in ("grid", "block"))
        seen.launched.append(SimpleNamespace(
            device=seen.now, function=int(function), stream=int(config.hStream), grid=grid, block=block, extra=extra,
            memory=config.sharedMemBytes, attributes=config.numAttrs, places=places[:count],
            values=[ctypes.c_int64.from_address(places[i]).value for i in range(count)], address=address,
        ))  # fmt: skip
        return (seen.results.pop() if seen.results else ok,)

    def size_of(function, place):
        """Of a parameter, by the driver."""
        sizes = seen.sizes.get(int(function), [])
        return (ok, 8 * place, sizes[place]) if place < len(sizes) else (real.CUresult.CUDA_ERROR_INVALID_VALUE, 0, 0)

    def empty(shape, strides, dtype):
        return on(seen.now, torch.empty_strided(shape, strides, dtype=dtype))

    monkeypatch.setattr(core, "Device", Device)
    monkeypatch.setattr(core, "ObjectCode", ObjectCode)
    monkeypatch.setattr(real, "cuLaunchKernelEx", launched)
    monkeypatch.setattr(real, "cuKernelGetFunction", lambda kernel: (ok, real.CUfunction(int(kernel) + seen.now)))
    monkeypatch.setattr(
        real, "cuFuncSetAttribute", lambda *a: seen.allowed.append((int(a[0]), *a[1:])) or (seen.error,)
    )
    monkeypatch.setattr(real, "cuFuncGetParamInfo", size_of)
    monkeypatch.setattr(real, "CUdevice", lambda index: index)
    monkeypatch.setattr(real, "cuDevicePrimaryCtxRetain", lambda device: (ok, f"context of {device}"))
    monkeypatch.setattr(real, "cuCtxSetCurrent", lambda context: seen.set.append(context) or (ok,))
    monkeypatch.setattr(calls, "_empty", lambda torch: empty)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0) if index == 1 else (8, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: seen.set.append(f"torch's {index}"))
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: seen.now)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: seen.now, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: seen.stream + index, raising=False)
    made = lambda *a: seen.cubins.append(a) or cuda.Cubin(b"code", {"copy<float>": "_Z4copy"})  # noqa: E731
    monkeypatch.setattr(cuda, "compile_cubin", made)
    parameters.tensor_map.cache_clear()
    yield seen
    parameters.tensor_map.cache_clear()


class Tensor(torch.Tensor):
    """A tensor of the CPU that says that it is on a GPU."""

    gpu = 0

    def get_device(self):
        return self.gpu

    def new_empty(self, *shape, **options):
        return on(self.gpu, super().new_empty(*shape, **options))


def on(gpu, tensor):
    found = tensor.as_subclass(Tensor)
    found.gpu = gpu
    return found


PROGRAM = cuda.Program(Path("copy.cu"), "copy<float>", ("A=1",))


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
    assert not driver.allowed


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


@pytest.mark.parametrize(("size", "asked"), [(48 * 1024, False), (48 * 1024 + 1, True)])
def test_more_than_48_kib_of_shared_memory_are_asked_for(driver, size, asked):
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
    monkeypatch.setattr(parameters, "libcuda", lambda: SimpleNamespace(cuTensorMapEncodeTiled=encode))
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


# Triton on a GPU, by a stand-in for what its kernels return


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


# Calls that make what they return


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


# jax-triton


class Kernel:
    """A Triton kernel of the interpreter: adds what it is given into its last pointer, in place where they are one."""

    arg_names = ("x", "n", "y", "out", "second", "BLOCK")

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        def launch(*arguments, **meta):
            self.calls.append((grid, arguments, meta))
            *inputs, out = arguments
            out.copy_(sum(float(v) if np.ndim(v) == 0 else v.to(torch.float32) for v in inputs))

        return launch


X, Y = np.arange(3, dtype=np.float32), np.full(3, 10, np.float32)
SHAPE = jax.ShapeDtypeStruct((3,), np.float32)


def test_the_interpreter_gets_scalars_arrays_and_an_output_in_their_places():
    kernel = Kernel()
    call = jax.jit(
        lambda x, y: jax_triton.triton_call(x, 0.5, y, 2, kernel=kernel, out_shape=SHAPE, grid=(7,), BLOCK=4)
    )
    assert np.asarray(call(X, Y)).tolist() == [12.5, 13.5, 14.5]
    ((grid, arguments, meta),) = kernel.calls
    assert grid == (7,) and meta == {"BLOCK": 4}, "neither warps nor stages mean anything there"
    assert type(arguments[1]) is np.float32 and arguments[3] == 2 and len(arguments) == 5


def test_an_aliased_output_is_its_input_in_the_interpreter():
    kernel = Kernel()
    call = lambda x: jax_triton.triton_call(x, kernel=kernel, out_shape=[SHAPE], grid=(1,), input_output_aliases={0: 0})  # noqa: E731
    (found,) = call(jax.numpy.asarray(X))
    ((_, (given, out), _),) = kernel.calls
    assert given is out and np.asarray(found).tolist() == X.tolist() and X.tolist() == [0, 1, 2]


@pytest.fixture
def outer(monkeypatch):
    """jax-triton's own `triton_call` of a version, on a device that it lowers for."""
    seen = []

    def install(outputs):
        monkeypatch.setattr(
            jax_triton, "_jax_triton", lambda: (lambda *a, **k: seen.append((a, k)) or "lowered", outputs)
        )
        return seen

    return install


@pytest.mark.parametrize("outputs", ["out_shape", "out_type"])
def test_both_names_of_the_outputs_are_known(outer, outputs):
    seen = outer(outputs)
    kernel = Kernel()
    found = jax_triton.triton_call(
        X, 0.1, 3, kernel=kernel, out_shape=SHAPE, grid=(7, 2), compute_capability=90, BLOCK=4
    )
    ((arguments, keywords),) = seen
    assert found == "lowered" and arguments[0] is X and arguments[2] == 3
    assert type(arguments[1]) is np.float32 and arguments[1] == np.float32(0.1), (
        "jax-triton takes a Python float for float64"
    )
    assert keywords == {
        "kernel": kernel, "grid": (7, 2), outputs: SHAPE, "num_warps": 4, "num_stages": 3, "compute_capability": 90, "BLOCK": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("outputs", "options"),
    [("out_shape", {"input_output_aliases": {1: 0}}), ("out_type", {"input_output_aliases": {2: 0}, "out": None})],
)
def test_aliases_are_told_as_the_version_counts(outer, monkeypatch, outputs, options):
    seen = outer(outputs)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with warnings.catch_warnings(record=True):
        jax_triton.triton_call(
            X,
            3,
            Y,
            kernel=Kernel(),
            out_shape=[SHAPE, SHAPE],
            grid=(1,),
            num_warps=8,
            num_stages=2,
            input_output_aliases={2: 0},
        )
    ((_, keywords),) = seen
    assert keywords.items() >= options.items() and (keywords["num_warps"], keywords["num_stages"]) == (8, 2)
    assert ("out" in keywords) == (outputs == "out_type") and "second" not in keywords


@pytest.mark.parametrize(("named", "has"), [("out_shape", True), ("out_type", False)])
def test_jax_triton_is_loaded_as_it_is_needed(monkeypatch, named, has):
    """0.3 empties TRITON_CACHE_DIR at its import, and 0.4 reads a constant that older Tritons lack."""
    driver = SimpleNamespace(TMA_TF32=5) if has else SimpleNamespace()
    names = {}
    exec(f"def triton_call(*args, kernel, {named}, grid): pass", names)

    class Theirs(ModuleType):
        def __getattr__(self, name):
            if name != "triton_call":
                raise AttributeError(name)
            monkeypatch.setenv("TRITON_CACHE_DIR", "")
            return names["triton_call"]

    for name in ("triton", "triton.backends", "triton.backends.nvidia", "triton.backends.nvidia.driver"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["triton.backends.nvidia"].driver = driver
    monkeypatch.setitem(sys.modules, "jax_triton", Theirs("jax_triton"))
    for before in ("/mine", None):
        monkeypatch.setenv("TRITON_CACHE_DIR", before) if before else monkeypatch.delenv("TRITON_CACHE_DIR")
        assert jax_triton._jax_triton.__wrapped__() == (names["triton_call"], named)
        assert os.environ.get("TRITON_CACHE_DIR") == before
    assert vars(driver) == {"TMA_TF32": 5 if has else 11}
