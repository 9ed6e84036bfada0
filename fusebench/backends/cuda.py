"""CUDA C++ without nvcc or a host compiler: NVRTC through cuda-core, launched on Torch's current stream.

`compile_cubin` needs neither a GPU nor a driver. `load` and `Launch` do; cuda-core deadlocks when it is asked for a
device without a driver, so nothing here asks before Torch has found one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

# kernels anywhere may include "_shared/cuda/device.cuh"; one beside their folder, such as an old commit's, comes first
SHARED = Path(__file__).resolve().parents[2] / "implementations"
STANDARD = "c++17"
VERSIONED = ("cuda_runtime_api.h", "cuda/std/__cccl/version.h")  # of CUDA's headers, those that say which they are
PACKAGES = "nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt"
DEFAULT_SHARED_MEMORY = 48 * 1024  # what a block gets without asking for more


class CompileError(RuntimeError):
    """NVRTC refused a source file; the message has its log."""


@dataclass(frozen=True)
class Program:
    """One kernel of a `.cu` file: `name` is a name expression such as "copy<float>", or an extern "C" name."""

    file: Path
    name: str
    defines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture, and the symbol of each name expression in it."""

    code: bytes
    symbols: dict[str, str]


def compile_cubin(path: str | Path, arch: str, names: Sequence[str], defines: Iterable[str] = ()) -> Cubin:
    """Compiles `path` for `arch` ("sm_90a") with the kernels `names`; `defines` are "NAME" or "NAME=VALUE".

    Results are kept on disk, keyed by everything they depend on; without a writable cache it compiles each time.
    """
    path, names, defines = Path(path), list(names), list(defines)
    if (noted := _noted.get()) is not None:
        noted |= {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in _sources(path)}
    key, store = _key(path, arch, names, defines), _store()
    try:
        header, _, code = store[key].partition(b"\n")
        return Cubin(code, json.loads(header))
    except (KeyError, OSError, TypeError, ValueError):  # not there, not readable, no cache at all, or damaged
        pass
    cubin = _compile(path, arch, names, defines)
    try:
        store[key] = json.dumps(cubin.symbols).encode() + b"\n" + cubin.code
    except (OSError, TypeError):
        pass
    return cubin


_noted: ContextVar[dict[Path, str] | None] = ContextVar("noted", default=None)


@contextlib.contextmanager
def noting_sources() -> Iterator[dict[Path, str]]:
    """Within it, what is compiled, or taken from the cache, notes its files and their SHA-256: a record names them."""
    noted: dict[Path, str] = {}
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


def architecture(capability: Sequence[int]) -> str:
    """What is compiled for devices of that compute capability. Hopper's has the instructions that no later one has."""
    major, minor = capability
    return f"sm_{major}{minor}a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def load(program: Program, index: int = 0) -> Any:
    """The program as a cuda-core kernel on CUDA device `index`."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(f"{program.name} of {program.file.name} needs an NVIDIA GPU and its driver")
    from cuda.core import Device, ObjectCode

    arch = architecture(torch.cuda.get_device_capability(index))
    cubin = compile_cubin(program.file, arch, [program.name], program.defines)
    torch.cuda.current_stream(index)  # Torch makes the context that all share
    Device(index).set_current()
    symbols = {name: symbol.encode() for name, symbol in cubin.symbols.items()}
    return ObjectCode.from_cubin(cubin.code, symbol_mapping=symbols).get_kernel(program.name)


class Launch:
    """A kernel with its grid, block and dynamic shared memory fixed: `launch(*arguments)` queues it on Torch's stream.

    Arguments are tensors, or numbers: an int is passed as 64 bits, a float as a double; for others use NumPy scalars.
    Kernels read 16-byte vectors, so that every tensor must start at a multiple of 16 bytes, as Torch's own do. The first
    ones reach the kernel as tensor maps where there are `boxes`, one of each: the sizes of what a copy of the copy engine
    brings (see `tensor_map`).
    """

    def __init__(
        self,
        program: Program,
        grid: Any,
        block: int,
        shared_memory: int = 0,
        boxes: Sequence[tuple[int, ...]] = (),
        index: int = 0,
    ):
        self.kernel = load(program, index)
        import torch
        from cuda.core import LaunchConfig, launch

        if shared_memory > DEFAULT_SHARED_MEMORY:
            _allow_shared_memory(self.kernel, shared_memory, index)
        self.config = LaunchConfig(grid=grid, block=block, shmem_size=shared_memory)
        self.index, self._launch, self._tensor = index, launch, torch.Tensor
        self.boxes = tuple(boxes)
        self._raw_stream = torch._C._cuda_getCurrentRawStream  # what torch.compile's own launchers call

    def __call__(self, *arguments: Any) -> None:
        values: list[Any] = [tensor_map(*pair) for pair in zip(arguments, self.boxes, strict=False)]
        bits = 0
        for argument in arguments[len(values) :]:
            if isinstance(argument, self._tensor):
                argument = argument.data_ptr()
                bits |= argument
            values.append(argument)
        if bits & 15:
            raise ValueError("a tensor does not start at a multiple of 16 bytes; pass a copy of it")
        self._launch(_stream(self._raw_stream(self.index), self.index), self.config, self.kernel, *values)


def tensor_map(tensor: Any, box: tuple[int, ...]) -> Any:
    """The tensor as Hopper's copy engine sees it: 16-bit elements in boxes of those sizes, swizzled, for which the last size is 64
    elements (128 bytes). Leading dimensions that the box has none for are taken as one. Nothing waits for the device.

    Raises ValueError for a tensor that is not contiguous: rows apart are another matrix to a kernel's ordinary loads.
    """
    if not tensor.is_contiguous():
        raise ValueError("a tensor is not contiguous; pass a copy of it")
    return _tensor_map(tensor.data_ptr(), tuple(tensor.shape), box)


@lru_cache(maxsize=1024)
def _tensor_map(pointer: int, shape: tuple[int, ...], box: tuple[int, ...]) -> Any:
    """A map says where memory lies and how, whatever is there, so that one that was made before serves; it keeps nobody's memory."""
    from cuda.core import TensorMapDescriptorOptions
    from cuda.core.utils import StridedMemoryView

    Swizzle = type(TensorMapDescriptorOptions.swizzle)  # no public module of cuda-core has its name
    leading = len(shape) - len(box) + 1
    view = StridedMemoryView.from_any_interface(
        _Memory(pointer, (math.prod(shape[:leading]), *shape[leading:])), stream_ptr=-1
    )
    return view.as_tensor_map(box, swizzle=Swizzle.SWIZZLE_128B)


class _Memory:
    """Contiguous memory on the device, by CUDA's array interface: elements of 16 bits."""

    def __init__(self, pointer: int, shape: tuple[int, ...]):
        strides = tuple(2 * math.prod(shape[i + 1 :]) for i in range(len(shape)))
        self.__cuda_array_interface__ = {
            "version": 3, "data": (pointer, False), "shape": shape, "strides": strides, "typestr": "<u2", "stream": None,
        }  # fmt: skip


class _TorchStream:
    """cuda-core's protocol for the streams of others."""

    def __init__(self, pointer: int):
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


@cache
def _stream(pointer: int, index: int) -> Any:
    """cuda-core's object for one of Torch's streams; Torch never gives its pooled streams back, so it stays valid."""
    from cuda.core import Device

    return Device(index).create_stream(_TorchStream(pointer))


def _allow_shared_memory(kernel: Any, size: int, index: int) -> None:
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (error,) = driver.cuKernelSetAttribute(attribute, size, kernel.handle, driver.CUdevice(index))
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"this device gives a block less than {size} bytes of shared memory ({error.name})")


def _compile(path: Path, arch: str, names: list[str], defines: list[str]) -> Cubin:
    from cuda.core import Program as Source
    from cuda.core import ProgramOptions

    options = ProgramOptions(
        name=path.name, arch=arch, std=STANDARD, include_path=[str(p) for p in (path.parent, path.parent.parent, SHARED, *header_folders())],
        define_macro=[tuple(d.split("=", 1)) if "=" in d else d for d in defines] or None,
    )  # fmt: skip
    try:
        source = Source(path.read_text(encoding="utf-8"), "c++", options)
        compiled = source.compile("cubin", name_expressions=tuple(names))
    except Exception as error:  # cuda-core's own classes differ from version to version
        missing = re.search(r'(?:could not|cannot) open source file "([^"]+)"', str(error))
        hint = f"\n{missing[1]} was not found: pip install {PACKAGES}, or set CUDA_HOME" if missing else ""
        if "NotFound" in type(error).__name__:
            hint = "\nNVRTC itself was not found: pip install nvidia-cuda-nvrtc"
        first = next((line for line in str(error).splitlines() if ": error:" in line), type(error).__name__)
        raise CompileError(f"{first.strip()} ({path.name} for {arch})\n{error}{hint}") from error
    symbols = {k: v.decode() if isinstance(v, bytes) else v for k, v in compiled.symbol_mapping.items()}
    return Cubin(bytes(compiled.code), symbols)


def header_folders() -> list[Path]:
    """Where CUDA's headers are: in NVIDIA's wheels, whose layout varies, or in a toolkit. Our own kernels need none."""
    layouts = ("cu[0-9]*/include", "cu[0-9]*/include/cccl", "cuda_runtime/include", "cuda_cccl/include")
    sites = [Path(entry) for entry in sys.path if entry and Path(entry).is_dir()]
    wheels = [folder for site in sites for layout in layouts for folder in sorted(site.glob(f"nvidia/{layout}"))]
    toolkits = [t for t in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda") if t]
    return list(dict.fromkeys(wheels or [Path(t) / sub for t in toolkits for sub in ("include", "include/cccl")]))


@cache
def _store() -> Any:
    """cuda-core's on-disk cache in the user's cache folder, or None where that cannot be written."""
    try:
        from cuda.core.utils import FileStreamProgramCache

        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return FileStreamProgramCache(root / "fusebench" / "cuda", max_size_bytes=256 * 2**20)
    except (ImportError, OSError, RuntimeError):
        return None


def _key(path: Path, arch: str, names: list[str], defines: list[str]) -> str:
    from cuda.bindings import nvrtc

    tools = [str(nvrtc.nvrtcVersion()), version("cuda-core"), STANDARD]
    digest = hashlib.sha256(
        "\0".join([*tools, arch, *names, "-D", *defines, "-I", *map(str, header_folders())]).encode()
    )
    versions = [file for folder in header_folders() for name in VERSIONED if (file := folder / name).is_file()]
    for file in (*_sources(path), *versions):
        digest.update(b"\0" + file.read_bytes())
    return digest.hexdigest()


def _sources(path: Path) -> list[Path]:
    """The file and all of our own headers that it includes, directly or not."""
    found = [path]
    for file in found:  # grows while it is read
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE):
            folders = (file.parent, path.parent, path.parent.parent, SHARED)
            inner = next((p for folder in folders if (p := folder / name).is_file()), None)
            if inner and inner not in found:
                found.append(inner)
    return found
