"""What the worker of the reference does for the parent: the counterpart of worker.Bench."""

from __future__ import annotations

from pathlib import Path

import torch

from fusebench import inputs
from fusebench.machine import DeviceInfo
from fusebench.parity import reference
from fusebench.workers import protocol


class Reference:
    """Compares all rows of outputs with the formula, on the device."""

    def __init__(self, device: str):
        self.device = device

    def info(self) -> protocol.WorkerInfo:
        return protocol.WorkerInfo(DeviceInfo(self.device), {}, "", False)

    def do(self, request: protocol.Request) -> protocol.Message:
        match request:
            case protocol.CheckRows():
                arrays, got = (
                    inputs.load(f, Path(request.folder), mapped=True) for f in (request.files, request.outputs)
                )
                worst = reference.check(
                    request.case,
                    arrays,
                    request.row_axes,
                    got,
                    request.output_axes,
                    request.screens,
                    request.part,
                    self.device,
                )
                return protocol.CheckedRows(worst)
            case protocol.Release():
                return self.release()
        raise ValueError(f"the reference does no {type(request).__name__}")

    def usable(self) -> bool:
        return True

    def release(self) -> protocol.Released:
        if self.device == "cuda":
            torch.cuda.empty_cache()
            return protocol.Released(torch.cuda.memory_reserved())
        return protocol.Released()
