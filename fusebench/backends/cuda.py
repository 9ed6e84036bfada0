"""CUDA C++ without nvcc or a host compiler: NVRTC through cuda-core, launched on Torch's current stream.

`compile_cubin` needs neither a GPU nor a driver. `load` and `Launcher` do; cuda-core deadlocks when it is asked for a
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

import numpy as np

# kernels anywhere may include "_shared/cuda/device.cuh"; one beside their folder, such as an old commit's, comes first
SHARED = Path(__file__).resolve().parents[2] / "implementations"
STANDARD = "c++17"
VERSIONED = ("cuda_runtime_api.h", "cuda/std/__cccl/version.h")  # of CUDA's headers, those that say which they are
PACKAGES = "nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt"
LINEINFO = (
    "FUSEBENCH_LINEINFO"  # where it is set, machine code says which lines it is of: the code itself stays the same
)
DEFAULT_SHARED_MEMORY = 48 * 1024  # what a block gets without asking for more
SWIZZLES = {128: "SWIZZLE_128B", 64: "SWIZZLE_64B", 32: "SWIZZLE_32B"}  # by the bytes of a box's rows


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


def compile_cubin(
    path: str | Path, arch: str, names: Sequence[str], defines: Iterable[str] = (), lines: bool = False
) -> Cubin:
    """Compiles `path` for `arch` ("sm_90a") with the kernels `names`; `defines` are "NAME" or "NAME=VALUE". With `lines`, or
    where LINEINFO is set, the cubin says of which lines its code is.

    Results are kept on disk, keyed by everything they depend on; without a writable cache it compiles each time.
    """
    path, names, defines = Path(path), list(names), list(defines)
    if (noted := _noted.get()) is not None:
        noted |= {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in sources_of(path)}
    lines = lines or bool(os.environ.get(LINEINFO))
    key, store = _key(path, arch, names, defines, lines), _store()
    try:
        header, _, code = store[key].partition(b"\n")
        return Cubin(code, json.loads(header))
    except (KeyError, OSError, TypeError, ValueError):  # not there, not readable, no cache at all, or damaged
        pass
    cubin = _compile(path, arch, names, defines, lines)
    try:
        store[key] = json.dumps(cubin.symbols).encode() + b"\n" + cubin.code
    except (OSError, TypeError):
        pass
    return cubin


def compile_ptx(path: Path, arch: str, name: str, defines: Iterable[str] = ()) -> str:
    """The PTX from which `compile_cubin` makes that kernel's machine code, with the lines that it is of. It needs no driver either.
    Raises CompileError."""
    defines = list(defines)
    key, store = _key(path, arch, [name, "PTX with lines"], defines, lines=True), _store()
    try:
        return str(bytes(store[key]).decode())
    except (KeyError, OSError, TypeError, ValueError):
        pass
    ptx = _ptx(path, arch, name, defines)
    try:
        store[key] = ptx.encode()
    except (OSError, TypeError):
        pass
    return ptx


def _ptx(path: Path, arch: str, name: str, defines: list[str]) -> str:
    """Through NVRTC itself: cuda-core asks a driver where PTX is wanted."""
    from cuda.bindings import nvrtc

    error, program = nvrtc.nvrtcCreateProgram(path.read_bytes(), str(path.resolve()).encode(), 0, [], [])
    error, *_ = nvrtc.nvrtcAddNameExpression(program, name.encode())
    folders = (path.parent, path.parent.parent, SHARED, *header_folders())
    options = [
        f"--gpu-architecture={arch}",
        f"--std={STANDARD}",
        "--generate-line-info",
        *(f"-I{f}" for f in folders),
        *(f"-D{d}" for d in defines),
    ]
    error, *_ = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"{path.name} does not compile to PTX for {arch} ({error.name})")
    _, size = nvrtc.nvrtcGetPTXSize(program)
    buffer = b" " * size  # which is written into
    nvrtc.nvrtcGetPTX(program, buffer)
    nvrtc.nvrtcDestroyProgram(program)
    return buffer.rstrip(b"\0").decode()


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
    from cuda.core import ObjectCode

    arch = architecture(torch.cuda.get_device_capability(index))
    cubin = compile_cubin(program.file, arch, [program.name], program.defines)
    torch.cuda.current_stream(index)  # Torch makes the context that all share
    with torch.cuda.device(index):
        _device(index)
        symbols = {name: symbol.encode() for name, symbol in cubin.symbols.items()}
        return ObjectCode.from_cubin(cubin.code, symbol_mapping=symbols).get_kernel(program.name)


class Launcher:
    """A kernel with its grid, block and dynamic shared memory fixed: `launcher(*arguments)` queues it on the device of the first
    tensor, on Torch's current stream there. It is loaded at once for Torch's current device, for others when they are met.

    Arguments are tensors, at the same places in every call, or numbers: an int is passed as 64 bits, a float as a double; for
    others use NumPy scalars. Kernels take memory as it lies there, in vectors of 16 bytes. So every tensor must be contiguous,
    start at a multiple of 16 bytes, as Torch's own do, be on the same device, and have the dtype that `dtypes` names for its
    place ("tf32" is float32), or else that of the first call. The first arguments reach the kernel as tensor maps where there
    are `boxes`, one of each: the sizes of what a copy of the copy engine brings.

    Raises RuntimeError without a GPU, CompileError, and ValueError for other tensors.
    """

    def __init__(
        self,
        program: Program,
        grid: Any,
        block: int,
        shared_memory: int = 0,
        boxes: Sequence[tuple[int, ...]] = (),
        dtypes: Sequence[str] = (),
    ):
        import torch

        self.program, self.shared_memory, self.dtypes = program, shared_memory, tuple(dtypes)
        self.boxes = [(place, box, self.dtypes[place : place + 1] == ("tf32",)) for place, box in enumerate(boxes)]
        self._torch = torch
        self._tensors: tuple[tuple[int, Any], ...] = ()  # their places and dtypes: the first call shows them
        self._kernels: dict[int, Any] = {}  # by device
        self._load(torch.cuda.current_device() if torch.cuda.is_available() else 0)
        from cuda.core import LaunchConfig, launch

        self.config, self._launch = LaunchConfig(grid=grid, block=block, shmem_size=shared_memory), launch
        self._current_device = torch._C._cuda_getDevice
        self._raw_stream = torch._C._cuda_getCurrentRawStream  # what torch.compile's own launchers call

    def __call__(self, *arguments: Any) -> None:
        tensors = self._tensors or self._find_tensors(arguments)
        index = arguments[tensors[0][0]].get_device()
        if index != self._current_device():
            return self._elsewhere(index, arguments)
        values, bits = list(arguments), 0
        for place, dtype in tensors:
            tensor = arguments[place]
            if tensor.dtype is not dtype or tensor.get_device() != index or not tensor.is_contiguous():
                raise ValueError(_fault(place, tensor, dtype, index))
            values[place] = pointer = tensor.data_ptr()
            bits |= pointer
        if bits & 15:
            raise ValueError("a tensor does not start at a multiple of 16 bytes; pass a copy of it")
        for place, box, tf32 in self.boxes:
            values[place] = _tensor_map(values[place], arguments[place].shape, tensors[place][1], box, tf32, index)
        kernel = self._kernels.get(index) or self._load(index)
        self._launch(_stream(self._raw_stream(index), index), self.config, kernel, *values)

    def _elsewhere(self, index: int, arguments: tuple[Any, ...]) -> None:
        """The same while device `index` is the current one, by which the driver knows what its default stream is of."""
        if index < 0:
            raise ValueError("the first tensor is on the CPU: expected one on a GPU")
        with self._torch.cuda.device(index):
            self(*arguments)

    def _find_tensors(self, arguments: tuple[Any, ...]) -> Any:
        names = [*self.dtypes, *[""] * len(arguments)]
        self._tensors = tuple(
            (place, getattr(self._torch, "float32" if name == "tf32" else name) if name else tensor.dtype)
            for place, (tensor, name) in enumerate(zip(arguments, names, strict=False))
            if isinstance(tensor, self._torch.Tensor)
        )
        return self._tensors

    def _load(self, index: int) -> Any:
        kernel = load(self.program, index)
        if self.shared_memory > DEFAULT_SHARED_MEMORY:
            _allow_shared_memory(kernel, self.shared_memory, index)
        self._kernels[index] = kernel
        return kernel


def _fault(place: int, tensor: Any, dtype: Any, index: int) -> str:
    """What is wrong with an argument."""
    if tensor.dtype is not dtype:
        return f"argument {place} is {tensor.dtype}; the kernel takes {dtype}"
    if tensor.get_device() != index:
        return f"argument {place} is on {tensor.device}, the first one on cuda:{index}"
    return f"argument {place} is not contiguous; pass a copy of it"


Launch = Launcher  # as kernels call it that were written for version 1 of the contract (launchers.py)


@lru_cache(maxsize=1024)
def _tensor_map(pointer: int, shape: tuple[int, ...], dtype: Any, box: tuple[int, ...], tf32: bool, index: int) -> Any:
    """A contiguous tensor as Hopper's copy engine sees it, in boxes of those sizes, with elements of its own dtype, or of float32
    rounded to `tf32` on the way. Rows of a box of 128, 64 or 32 bytes are swizzled. Leading dimensions that the box has none for
    are taken as one. Nothing waits for the device. Raises ValueError for a dtype that the copy engine does not know.

    A map says where memory lies and how, whatever is there, so that one that was made before serves; it keeps nobody's memory.
    """
    import ml_dtypes  # by what needs it alone: scripts of `inspect out=` have this file beside them
    from cuda.core import TensorMapDescriptorOptions
    from cuda.core.utils import StridedMemoryView

    own = sys.modules[
        TensorMapDescriptorOptions.__module__
    ]  # no public module of cuda-core has the names of its choices
    bits, elements = {
        "torch.float16": ("<u2", np.float16), "torch.bfloat16": ("<u2", ml_dtypes.bfloat16), "torch.float32": ("<f4", np.float32),
    }.get(str(dtype), ("|u1", np.uint8) if dtype.itemsize == 1 else ("", None))  # fmt: skip
    if elements is None:
        raise ValueError(f"a tensor of {dtype} cannot be a tensor map: expected 8 bits, float16, bfloat16 or float32")
    leading = len(shape) - len(box) + 1
    view = StridedMemoryView.from_any_interface(
        _Memory(pointer, (math.prod(shape[:leading]), *shape[leading:]), bits), stream_ptr=-1
    )
    swizzle = getattr(own.TensorMapSwizzle, SWIZZLES.get(box[-1] * dtype.itemsize, "NONE"))
    return view.as_tensor_map(box, data_type=own.TensorMapDataType.TFLOAT32 if tf32 else elements, swizzle=swizzle)


class _Memory:
    """Contiguous memory on the device, by CUDA's array interface, which has no bfloat16: elements of as many `bits`."""

    def __init__(self, pointer: int, shape: tuple[int, ...], bits: str):
        strides = tuple(int(bits[2:]) * math.prod(shape[i + 1 :]) for i in range(len(shape)))
        self.__cuda_array_interface__ = {
            "version": 3, "data": (pointer, False), "shape": shape, "strides": strides, "typestr": bits, "stream": None,
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
    return _device(index).create_stream(_TorchStream(pointer))


def _device(index: int) -> Any:
    """cuda-core's object for a device, made current in this thread, without which it does nothing."""
    from cuda.core import Device

    device = Device(index)
    device.set_current()
    return device


def _allow_shared_memory(kernel: Any, size: int, index: int) -> None:
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (error,) = driver.cuKernelSetAttribute(attribute, size, kernel.handle, driver.CUdevice(index))
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"this device gives a block less than {size} bytes of shared memory ({error.name})")


def _compile(path: Path, arch: str, names: list[str], defines: list[str], lines: bool = False) -> Cubin:
    from cuda.core import Program as Source
    from cuda.core import ProgramOptions

    options = ProgramOptions(
        name=str(path.resolve()) if lines else path.name, lineinfo=lines or None, arch=arch, std=STANDARD, include_path=[str(p) for p in (path.parent, path.parent.parent, SHARED, *header_folders())],
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


def _key(path: Path, arch: str, names: list[str], defines: list[str], lines: bool = False) -> str:
    from cuda.bindings import nvrtc

    tools = [str(nvrtc.nvrtcVersion()), version("cuda-core"), STANDARD]
    place = [LINEINFO, str(path.resolve())] if lines else []
    digest = hashlib.sha256(
        "\0".join([*tools, *place, arch, *names, "-D", *defines, "-I", *map(str, header_folders())]).encode()
    )
    versions = [file for folder in header_folders() for name in VERSIONED if (file := folder / name).is_file()]
    for file in (*sources_of(path), *versions):
        digest.update(b"\0" + file.read_bytes())
    return digest.hexdigest()


def sources_of(path: Path) -> list[Path]:
    """The file and all of our own headers that it includes, directly or not."""
    found = [path]
    for file in found:  # grows while it is read
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE):
            folders = (file.parent, path.parent, path.parent.parent, SHARED)
            inner = next((p for folder in folders if (p := folder / name).is_file()), None)
            if inner and inner not in found:
                found.append(inner)
    return found
