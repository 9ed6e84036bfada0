"""What the worker of the reference does for the parent: the counterpart of bench.Bench."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from fusebench import inputs
from fusebench.machine import DeviceInfo
from fusebench.parity import jitted, reference
from fusebench.workers import protocol


class Reference:
    """Compares rows of outputs with the formula, on the device."""

    def __init__(self, device: str):
        self.device = device
        self.folder = ""  # of the case in hand
        self.budgets: dict[Any, dict[Any, Any]] = {}  # of its outputs, by the files of their inputs
        if device == "cpu":
            torch.set_num_threads(1)  # chunks of rows run beside one another
        else:
            torch.ones(8, 8, dtype=torch.float64, device=device) @ torch.ones(8, 8, dtype=torch.float64, device=device)
            jitted.begin()
            reference.rehearse(device)
            torch.cuda.synchronize()  # the context, cuBLAS and what is compiled are there when the worker is: they take seconds

    def known(self, asked: protocol.CheckRows | protocol.EvaluateRows) -> dict[Any, Any]:
        """What was computed for these inputs; what was for another case is given up."""
        if self.folder != asked.folder:
            self.folder, self.budgets = asked.folder, {}
        return self.budgets.setdefault(asked.files, {})

    def info(self) -> protocol.WorkerInfo:
        return protocol.WorkerInfo(DeviceInfo(self.device), {}, "", ())

    def do(self, request: protocol.Request) -> protocol.Message:
        match request:
            case protocol.CheckRows():
                arrays, got = (
                    inputs.load(f, Path(request.folder), mapped=True) for f in (request.files, request.outputs)
                )
                return protocol.CheckedRows(
                    reference.check(request.asked, arrays, got, self.device, self.known(request))
                )
            case protocol.EvaluateRows():
                return self.evaluate(request)
            case protocol.Release():
                return self.release()
        raise ValueError(f"the reference does no {type(request).__name__}")

    def evaluate(self, request: protocol.EvaluateRows) -> protocol.EvaluatedRows:
        self.known(request)
        folder = Path(request.folder)
        arrays = inputs.load(request.files, folder, mapped=True)
        if self.device == "cpu" and (request.asked.rows is None or request.asked.sliced):  # all rows at once
            torch.set_num_threads(len(os.sched_getaffinity(0)))
        outputs, found, drawn = reference.evaluated(request.asked, arrays, self.device, request.draws)
        if self.device == "cpu":
            torch.set_num_threads(1)
        files = tuple(inputs.save(outputs, folder, "evaluated"))
        return protocol.EvaluatedRows(files, tuple(sorted(found.seen)), drawn, found.by_number)

    def usable(self) -> bool:
        return True

    def release(self) -> protocol.Released:
        if self.device == "cuda":
            torch.cuda.empty_cache()
            return protocol.Released(torch.cuda.memory_reserved())
        return protocol.Released()
