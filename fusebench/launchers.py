"""What an implementation may import of the harness, in one place and with a version.

`compare @REVISION @.` and asv run kernels of older commits on today's harness, so that a name that was given once stays, with its
meaning. What is added or has new parameters is a new version; tests/test_replay.py runs kernels of each.

    1   fusebench.backends.cuda.Launch and Program, fusebench.backends.jax_triton.triton_call; build(case, variant, device)
    2   this module; a Launcher follows its tensors' device and checks `dtypes`; build(case, variant, device, config) where
        there are TUNABLES
    3   Launcher.returning; TritonLauncher
    4   Launcher(…, overlaps=True)
    5   capability
    6   chained

    Program(file, name, defines=())         one kernel of a .cu file
    Launcher(program, grid, block, …)       it, ready to be queued on Torch's current stream (backends/cuda.py), or, where Torch has no
                                            GPU, to run on CPU tensors (emulator/launcher.py)
    TritonLauncher(queue, grid)             the same for a Triton kernel (backends/triton_launcher.py)
    triton_call(*arguments, kernel=, …)     a Triton kernel in JAX (backends/jax_triton.py)
    chained(call)                           a call of several launches, queued as one (backends/chains.py)
    capability(tensor)                      the compute capability of the device on which a tensor's launches run
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusebench.backends import cuda
from fusebench.backends.calls import Argument
from fusebench.backends.chains import chained
from fusebench.backends.cuda import Program
from fusebench.backends.triton_launcher import TritonLauncher

__all__ = ["VERSION", "Launcher", "Program", "TritonLauncher", "capability", "chained", "triton_call"]

VERSION = 6


class Launcher(cuda.Launcher):
    """`backends.cuda.Launcher`; where Torch has no GPU, its calls are the emulator's."""

    def _load(self, index: int) -> Any:
        return super()._load(index) if self._torch.cuda.is_available() else None

    def _straight(self, arguments: Sequence[Argument]) -> Callable[..., Any]:
        if self._torch.cuda.is_available():
            return super()._straight(arguments)
        from fusebench.emulator import launcher

        return launcher.straight(self.program, self._sizes, arguments, self.overlaps)


def triton_call(*arguments: Any, **options: Any) -> Any:
    """`backends.jax_triton.triton_call`, which imports JAX."""
    from fusebench.backends import jax_triton

    return jax_triton.triton_call(*arguments, **options)


def capability(tensor: Any) -> tuple[int, int]:
    """The compute capability of a Torch tensor's device; of a tensor on the CPU, that of the emulated one. Raises ValueError where the
    environment asks to emulate what is none."""
    if tensor.is_cuda:
        import torch

        major, minor = torch.cuda.get_device_capability(tensor.device)
        return major, minor
    from fusebench.emulator.device import emulated

    return emulated().capability
