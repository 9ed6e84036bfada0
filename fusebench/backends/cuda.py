"""CUDA C++ without nvcc or a host compiler: NVRTC through cuda-core, launched on Torch's current stream.

`compile_cubin` needs neither a GPU nor a driver. `load` and `Launcher` do; cuda-core deadlocks when it is asked for a
device without a driver, so nothing here asks before Torch has found one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fusebench.backends.calls import Argument, Fixed, Given, Made, Number, arrived, straight
from fusebench.backends.parameters import Parameters
from fusebench.backends.tensor_maps import TensorMap

KERNELS = "implementations"  # the folder that each checkout has its kernels in
# kernels anywhere may include "_shared/cuda/device.cuh"; one beside their folder, such as an old commit's, comes first
SHARED = Path(__file__).resolve().parents[2] / KERNELS
STANDARD = "c++17"
VERSIONED = ("cuda_runtime_api.h", "cuda/std/__cccl/version.h")  # of CUDA's headers, those that say which they are
PACKAGES = "nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt"
# where it is set, machine code says which lines it is of: the code itself stays the same
LINEINFO = "FUSEBENCH_LINEINFO"
STORE_BYTES = 2**30  # of cubins on disk, some thousand: behind that, each one more takes a look at all


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
    key = _key(path, arch, names, defines, lines)
    header, _, code = (kept(key) or b"").partition(b"\n")
    try:
        return Cubin(code, json.loads(header))
    except ValueError:  # not there, or damaged
        pass
    cubin = _compile(path, arch, names, defines, lines)
    keep(key, json.dumps(cubin.symbols).encode() + b"\n" + cubin.code)
    return cubin


def compile_ptx(path: Path, arch: str, name: str, defines: Iterable[str] = ()) -> str:
    """The PTX from which `compile_cubin` makes that kernel's machine code, with the lines that it is of. It needs no driver either.
    Raises CompileError."""
    defines = list(defines)
    key = _key(path, arch, [name, "PTX with lines"], defines, lines=True)
    try:
        return (kept(key) or b"\xff").decode()
    except ValueError:  # not there, or damaged
        pass
    ptx = _ptx(path, arch, name, defines)
    keep(key, ptx.encode())
    return ptx


def kept(key: str) -> bytes | None:
    """What the user's cache has of that key: what is compiled, and what the emulator makes of it. None where it has nothing, or cannot be read."""
    try:
        return bytes(_store()[key])
    except (KeyError, OSError, TypeError):  # TypeError: there is no cache at all
        return None


def keep(key: str, value: bytes) -> None:
    """Puts it there, whole or not at all, where that can be written."""
    with contextlib.suppress(OSError, TypeError):
        _store()[key] = value


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
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size  # which is written into
        nvrtc.nvrtcGetProgramLog(program, log)
        raise _refused(log.rstrip(b"\0 ").decode(), error.name, path, arch)
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
    are `boxes`, one of each: the sizes of what a copy of the copy engine brings. Where it `overlaps`, it may begin on Hopper and later
    while the launch before it in the stream ends; the kernel waits for it by griddepcontrol.wait, before it touches global memory.

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
        *,
        overlaps: bool = False,
    ):
        import torch

        self.program, self.shared_memory, self.boxes, self.dtypes = program, shared_memory, tuple(boxes), tuple(dtypes)
        self.overlaps = overlaps
        self._torch, self._sizes = torch, (grid, block, shared_memory)
        self._functions: dict[int, Any] = {}  # by device
        self._kernels: list[Any] = []  # whose code they are
        self._call: Callable[..., Any] | None = None  # the first call shows what the arguments are
        self._load(torch.cuda.current_device() if torch.cuda.is_available() else 0)

    def __call__(self, *arguments: Any) -> None:
        if self._call is None:
            tensor = self._torch.Tensor
            self._call = self._straight(
                [self._given(p, a.dtype) if isinstance(a, tensor) else Number() for p, a in enumerate(arguments)]
            )
        self._call(*arguments)

    def returning(
        self, outputs: Mapping[int, tuple[int, ...]], numbers: Sequence[Any] = (), absent: Sequence[int] = ()
    ) -> Callable[..., Any]:
        """A function of the tensors that `dtypes` names but those of `outputs` (place → shape), which it makes and returns. Behind the
        tensors the kernel gets `numbers`, and 0 for the `absent` ones. It is the cheapest way to launch."""
        tensors: list[Argument] = [self._given(place) for place in range(len(self.dtypes))]
        for place, shape in outputs.items():
            tensors[place] = Made(self._given(place).dtype, tuple(shape))
        for place in absent:
            tensors[place] = Fixed(0)
        return self._straight([*tensors, *map(Fixed, numbers)])

    def _given(self, place: int, dtype: Any = None) -> Given:
        """The tensor at a place, of `dtype` where none is named."""
        name = self.dtypes[place] if place < len(self.dtypes) else ""
        own = getattr(self._torch, "float32" if name == "tf32" else name) if name else dtype
        return Given(own, self.boxes[place] if place < len(self.boxes) else None, name == "tf32")

    def _straight(self, arguments: Sequence[Argument]) -> Callable[..., Any]:
        kept: dict[int, list[Parameters]] = {}

        def other(*given: Any) -> Any:
            """The same call where it is not as the last ones were. Raises ValueError for tensors that the kernel would misread."""
            came = arrived(arguments, given)
            if came.unusual:
                raise ValueError(came.unusual)
            index = came.index
            if not kept.get(index):
                function = self._functions.get(index) or self._load(index)
                maps = {
                    p: TensorMap(a.dtype, a.box, a.tf32)
                    for p, a in enumerate(arguments)
                    if isinstance(a, Given) and a.box
                }
                overlaps = self.overlaps and self._torch.cuda.get_device_capability(index) >= (9, 0)
                kept.setdefault(index, []).append(Parameters(function, came.numbers, *self._sizes, maps, overlaps))
            with self._torch.cuda.device(index):  # by which the driver knows what its default stream is of
                return call(*given)

        call = straight(arguments, kept, other, f"{self.program.name} of {self.program.file.name}")
        return call

    def _load(self, index: int) -> Any:
        kernel = load(self.program, index)
        self._kernels.append(kernel)
        with self._torch.cuda.device(index):
            self._functions[index] = function = _function(kernel)
            if self.shared_memory:  # with what a kernel declares, less than 48 KiB may be more than a block has unasked
                _allow_shared_memory(function, self.shared_memory)
        return function


Launch = Launcher  # as kernels call it that were written for version 1 of the contract (launchers.py)


def _device(index: int) -> Any:
    """cuda-core's object for a device, made current in this thread, without which it does nothing."""
    from cuda.core import Device

    device = Device(index)
    device.set_current()
    return device


def _function(kernel: Any) -> Any:
    """The kernel in the current context. The driver would take the kernel itself, and look this up in every launch."""
    from cuda.bindings import driver

    error, function = driver.cuKernelGetFunction(driver.CUkernel(int(kernel.handle)))
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"a kernel that was loaded is not there ({error.name})")
    return function


def _allow_shared_memory(function: Any, size: int) -> None:
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (error,) = driver.cuFuncSetAttribute(function, attribute, size)
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
        lost = "NotFound" in type(error).__name__
        said = f"{error}\nNVRTC itself was not found: pip install nvidia-cuda-nvrtc" if lost else str(error)
        raise _refused(said, type(error).__name__, path, arch) from error
    symbols = {k: v.decode() if isinstance(v, bytes) else v for k, v in compiled.symbol_mapping.items()}
    return Cubin(bytes(compiled.code), symbols)


def _refused(log: str, error: str, path: Path, arch: str) -> CompileError:
    """What is raised for the log of a compilation: its first error, or what `error` is called, comes first."""
    missing = re.search(r'(?:could not|cannot) open source file "([^"]+)"', log)
    hint = f"\n{missing[1]} was not found: pip install {PACKAGES}, or set CUDA_HOME" if missing else ""
    first = next((line for line in log.splitlines() if re.search(r": (catastrophic )?error:", line)), error)
    return CompileError(f"{first.strip()} ({path.name} for {arch})\n{log}{hint}")


def header_folders() -> list[Path]:
    """Where CUDA's headers are: in NVIDIA's wheels, whose layout varies, or in a toolkit. Our own kernels need none."""
    layouts = ("cu[0-9]*/include", "cu[0-9]*/include/cccl", "cuda_runtime/include", "cuda_cccl/include")
    sites = [Path(entry) for entry in sys.path if entry and Path(entry).is_dir()]
    wheels = [folder for site in sites for layout in layouts for folder in sorted(site.glob(f"nvidia/{layout}"))]
    return list(dict.fromkeys(wheels or [t / sub for t in toolkits() for sub in ("include", "include/cccl")]))


def toolkits() -> list[Path]:
    """Where a CUDA toolkit may be installed, the likeliest first."""
    named = os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"
    return [Path(folder) for folder in named if folder]


@cache
def _store() -> Any:
    """cuda-core's on-disk cache in the user's cache folder, or None where that cannot be written."""
    try:
        from cuda.core.utils import FileStreamProgramCache

        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return FileStreamProgramCache(root / "fusebench" / "cuda", max_size_bytes=STORE_BYTES)
    except (ImportError, OSError, RuntimeError):
        return None


def _key(path: Path, arch: str, names: list[str], defines: list[str], lines: bool = False) -> str:
    from cuda.bindings import nvrtc

    tools = [str(nvrtc.nvrtcVersion()), version("cuda-core"), STANDARD]
    place = [LINEINFO, _place(path)] if lines else []
    headers = {folder: [f for name in VERSIONED if (f := folder / name).is_file()] for folder in header_folders()}
    versions = [file for known in headers.values() for file in known]
    unknown = [str(folder) for folder, known in headers.items() if not known]  # their path has to stand for them
    digest = hashlib.sha256("\0".join([*tools, *place, arch, *names, "-D", *defines, "-I", *unknown]).encode())
    for file in (*sources_of(path), *versions):
        digest.update(b"\0" + file.read_bytes())
    return digest.hexdigest()


def _place(path: Path) -> str:
    """Where a file lies, as far as who reads its lines cares: ours look below `implementations` alone, which every checkout has; tools
    from outside, for which LINEINFO is set, open the file."""
    whole = path.resolve()
    below = None if os.environ.get(LINEINFO) else below_kernels(whole.parts)
    return str(whole) if below is None else "/".join(below)


def below_kernels(parts: tuple[str, ...]) -> tuple[str, ...] | None:
    """Those of a path's parts that are below `implementations`, the same in every checkout; None where it is in none."""
    return parts[len(parts) - parts[::-1].index(KERNELS) :] if KERNELS in parts else None


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
