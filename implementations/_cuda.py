"""What the CUDA implementations of all kernels share."""

from dataclasses import dataclass

from fusebench.backends.cuda import Program

# storage dtype → its name in _device.cuh
TYPES = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16"}
# compute capability → KiB of shared memory that a block may have; 99 on all others
SHARED_MEMORY = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227}


@dataclass(frozen=True)
class Plan:
    """What is compiled and how it is launched; `boxes` are those of its first arguments that are tensor maps."""

    program: Program
    grid: int
    block: int
    shared_memory: int = 0
    boxes: tuple[tuple[int, ...], ...] = ()
