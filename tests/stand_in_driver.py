"""In the place of cuda-core, the driver and two of Torch's GPUs: notes what launches hand over."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path
from types import SimpleNamespace

import torch

from fusebench.backends import calls, cuda


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
    yield seen


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
