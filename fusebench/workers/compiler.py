"""The child that compiles ahead of time: it fills the caches on disk from which workers load, or returns what compilers made of a cell.
It never asks for a GPU."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from fusebench import discovery
from fusebench.backends import cuda
from fusebench.contract import Device
from fusebench.machine import DeviceInfo
from fusebench.workers import protocol, stages

INTS = {"i32": 3, "i64": 2**40 + 1}  # of these types, and not divisible by 16, of which code could make use
DTYPES = {
    "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32", "i16": "int16",
    "i8": "int8", "i1": "bool", "u8": "uint8",
}  # fmt: skip


class Compiler:
    """Compiles what implementations launch, for any device."""

    def __init__(self, device: str) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the card is for those who time

    def info(self) -> protocol.WorkerInfo:
        return protocol.WorkerInfo(DeviceInfo("cpu"), {}, sys.version.split()[0], ())

    def do(self, request: protocol.Request) -> protocol.Message:
        match request:
            case protocol.Load():
                discovery.load_implementation(request.kernel, request.implementation)
                return protocol.Loaded()
            case protocol.CompileAhead():
                return self.compile(request)
            case protocol.CompileStages():
                return stages.compile_stages(request)
            case protocol.Release():
                return protocol.Released()
        raise ValueError(f"the compiler does no {type(request).__name__}")

    def compile(self, asked: protocol.CompileAhead) -> protocol.CompiledAhead:
        """Compiles all launches of a cell."""
        begin = time.perf_counter()
        module = discovery.load_implementation(asked.case.kernel, asked.implementation)
        for launch in module.launches(asked.case, asked.variant, asked.device, asked.config):
            if hasattr(launch, "program"):
                _compile_cuda(launch, asked.arch)
            else:
                _compile_triton(launch, asked.device)
        return protocol.CompiledAhead(time.perf_counter() - begin)

    def usable(self) -> bool:
        return True

    def release(self) -> None:
        """Nothing is held."""


def _compile_cuda(launch: Any, arch: str) -> None:
    program = launch.program
    cuda.compile_cubin(Path(program.file), arch, [program.name], program.defines)


def _compile_triton(launch: Any, device: Device) -> None:
    """Has Triton do all that a first call does before it launches: the entry in its cache is then the one that such a call looks for."""
    import torch
    from triton.runtime.driver import driver
    from triton.runtime.jit import MockTensor

    driver.set_active(_Target(device))
    values = {
        name: INTS[of] if of in INTS else MockTensor(getattr(torch, DTYPES[of.removeprefix("*")]))
        for name, of in launch.signature.items()
    }
    arguments = {name: launch.constexprs.get(name, values.get(name)) for name in launch.kernel.arg_names}
    launch.kernel.warmup(grid=launch.grid, num_warps=launch.num_warps, num_stages=launch.num_stages, **arguments)


class _Target:
    """What Triton asks its driver for where it compiles and does not launch."""

    def __init__(self, device: Device):
        self.target = stages.triton_target(device)

    def get_current_device(self) -> int:
        return int(self.target.arch)  # by which it keeps what it knows of a device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self.target
