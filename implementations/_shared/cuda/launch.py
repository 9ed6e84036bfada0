"""What the CUDA implementations of all kernels share: the description of a launch."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from fusebench.launchers import Launcher, Program
from implementations._shared.gpu import shared_memory, usual_kernel

# storage dtype → its name in device.cuh
TYPES = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16"}


@dataclass(frozen=True)
class Launch:
    """What is compiled and how it is launched. `dtypes` are those of its first arguments, where they are tensors ("tf32": float32
    that the copy engine rounds); `boxes` are those of its first arguments that are tensor maps; `sizes` are its last arguments,
    where they depend on which kernel was chosen; `exchange` is the shapes of what blocks that share tiles leave for each other: of sums, in
    float32, and of flags, in int32, which begin as 0; `overlaps` says that it may begin while the launch before it ends (`in_turn`), `alone` that it never does; `tiles`, of
    a persistent grid, how many blocks there would be with a tile each."""

    program: Program
    grid: int
    block: int
    shared_memory: int = 0
    _: KW_ONLY  # so that no value is taken for another field's
    dtypes: tuple[str, ...] = ()
    boxes: tuple[tuple[int, ...], ...] = ()
    sizes: tuple[Any, ...] = ()
    exchange: tuple[tuple[int, ...], ...] = ()
    overlaps: bool = False
    alone: bool = False
    tiles: int = 0

    def bind(self):
        """A function of the kernel's arguments, which runs on the device of its first tensor."""
        return Launcher(
            self.program, self.grid, self.block, self.shared_memory, self.boxes, self.dtypes, overlaps=self.overlaps
        )

    def returning(self, outputs, numbers=(), absent=()):
        """A function of the tensors that `dtypes` names but those of `outputs` (place → shape), which it makes and returns. Behind the
        tensors the kernel gets `numbers` and `sizes`, in the places of those that are `absent` a 0."""
        return self.bind().returning(outputs, (*numbers, *self.sizes), absent)


def in_turn(*launches):
    """The launches of one call. Each but the first, and those that want to be alone, may begin while the one before it ends: its kernel begins
    with `wait_for_previous_launch` (device.cuh). Worth it where kernels are short: blocks that wait hold registers and shared memory."""
    return launches[0], *(replace(launch, overlaps=not launch.alone) for launch in launches[1:])


def instance(file, template, *arguments):
    """The kernel template of `file` with these arguments, as C++ writes them."""
    words = (str(a).lower() if isinstance(a, bool) else str(a) for a in arguments)
    return Program(file, f"{template}<{', '.join(words)}>")


def prefixed(launch, config):
    """A config with the name of its launch before each tunable, where a call is several launches."""
    return {f"{launch}_{tunable}": value for tunable, value in config.items()}


def of_launch(launch, config):
    """The tunables of one launch among those of several, without its name."""
    return {name.removeprefix(f"{launch}_"): v for name, v in config.items() if name.startswith(f"{launch}_")}


def unsupported(device):
    """Why no kernel on device.cuh runs on the device, or None."""
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    if device.capability < (8, 0):
        return "needs compute capability 8.0 (bfloat16 and asynchronous copies)"
    return None


def too_large(needed, device, static=0):
    """Why a block cannot have so many bytes of dynamic shared memory beside its `static` ones, or None."""
    limit = shared_memory(device) - static
    if needed <= limit:
        return None
    return f"a block takes {needed} bytes of shared memory; it may have {limit}"


def not_usual(case, kernel):
    """Why a value of KERNEL that warps multiply by is not the case's, or None."""
    if kernel == (own := usual_kernel(case)):
        return None
    return f"KERNEL={own} multiplies {case.dtype} in precision {case.precision}, not {kernel}"


def not_one_of(name, value, values):
    """Why a tunable cannot have that value, or None."""
    if value in values:
        return None
    known = f"{values[0]} to {values[-1]}" if isinstance(values, range) else ", ".join(map(str, values))
    return f"{name} is {value}: there are instances for {known}"
