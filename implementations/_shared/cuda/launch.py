"""What the CUDA implementations of all kernels share: the description of a launch."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

from fusebench.backends.cuda import Launch, Program

# storage dtype → its name in device.cuh
TYPES = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16"}


@dataclass(frozen=True)
class Plan:
    """What is compiled and how it is launched. `boxes` are those of its first arguments that are tensor maps; `sizes` are its
    last arguments, where they depend on which kernel was chosen."""

    program: Program
    grid: int
    block: int
    shared_memory: int = 0
    _: KW_ONLY  # so that no value is taken for another field's
    boxes: tuple[tuple[int, ...], ...] = ()
    sizes: tuple[Any, ...] = ()

    def bind(self):
        """The loaded kernel, as a function of its arguments alone."""
        return Launch(self.program, self.grid, self.block, self.shared_memory, self.boxes)


def instance(file, template, *arguments):
    """The kernel template of `file` with these arguments, as C++ writes them."""
    words = (str(a).lower() if isinstance(a, bool) else str(a) for a in arguments)
    return Program(file, f"{template}<{', '.join(words)}>")


def unsupported(device):
    """Why no kernel on device.cuh runs on the device, or None."""
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    if device.capability < (8, 0):
        return "needs compute capability 8.0 (bfloat16 and asynchronous copies)"
    return None
