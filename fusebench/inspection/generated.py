"""What torch.compile makes of a cell. Its call runs twice on this machine's device, because it compiles as it first runs."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fusebench.contract import Cell, Device
from fusebench.discovery import Implementation, Kernel
from fusebench.inputs import make_sets
from fusebench.workers.stages import NotInspected, check_there, failed, load

STAGES = ("generated", "fx", "graphs", "guards")
_BROKEN = re.compile(r"user code at (\S+)")
COMPILES = "torch_compile"  # how the names of implementations begin that are meant for it


def trace(cell: Cell, implementation: Implementation, kernel: Kernel, stage: str) -> str:
    """One of `traces`. Raises NotInspected."""
    return traces(cell, implementation, kernel)[stage]


def traces(cell: Cell, implementation: Implementation, kernel: Kernel) -> dict[str, str]:
    """By stage: the code that Inductor generates; the graphs that it is of; how many they are, what broke them and what compiled again
    in a second call; what has to hold for them to be used again. Torch's settings are left as they were. Raises NotInspected."""
    check_there(implementation)
    if implementation.backend != "torch":
        raise NotInspected(
            f"no such stage: {', '.join(STAGES)} are of torch.compile, and this one is in {implementation.backend}"
        )
    if cell.case.mode != "forward":
        raise NotInspected(f"{', '.join(STAGES)} are those of mode=forward")
    import torch
    import torch._dynamo

    from fusebench.backends import torch as backend

    precision, recompiles = torch.get_float32_matmul_precision(), torch._dynamo.config.error_on_recompile
    module = load(implementation.kernel, implementation.name)
    device = backend.start("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and implementation.without_gpu != "timed":
        raise NotInspected("skipped: needs an NVIDIA GPU")
    if (skip := getattr(module, "skip", None)) and (reason := skip(cell.case, cell.variant, device)):
        raise NotInspected(f"skipped: {reason}")
    backend.configure(cell.case.precision)
    try:
        inputs = [_arguments(module, cell, kernel, device, number) for number in (0, 1)]
        call = module.build(cell.case, cell.variant, device, *_config(module, cell, device))
        return _traces(call, inputs)
    except NotInspected:
        raise
    except Exception as error:
        raise failed(error) from error
    finally:
        torch.set_float32_matmul_precision(precision)
        torch._dynamo.config.error_on_recompile = recompiles


def _config(module: Any, cell: Cell, device: Device) -> tuple[Any, ...]:
    return (module.config(cell.case, cell.variant, device) | dict(cell.config),) if hasattr(module, "config") else ()


def _arguments(module: Any, cell: Cell, kernel: Kernel, device: Device, number: int) -> list[Any]:
    """The inputs of one call, and what is prepared."""
    from fusebench.backends import torch as backend

    made = make_sets(kernel.mathematics, cell.case, cell.seed, number + 1)[number]
    inputs = [backend.put(array, device) for array in made.values()]
    prepared = module.prepare(cell.case, cell.variant, *inputs) if hasattr(module, "prepare") else ()
    return [*inputs, *prepared]


def _traces(call: Callable[..., Any], inputs: Sequence[Sequence[Any]]) -> dict[str, str]:
    from torch._dynamo.utils import counters
    from torch._inductor.utils import run_and_get_code

    counters.clear()
    with _noted("graph_code", "graph_breaks", "recompiles", "guards") as noted:
        _, codes = run_and_get_code(call, *inputs[0])
        if not codes:
            raise NotInspected("compiles nothing: it runs operator by operator")
        graphs, operators = counters["stats"]["unique_graphs"], counters["stats"]["calls_captured"]
        breaks, first = dict(counters["graph_break"]), len(noted["recompiles"])
        texts = {
            "generated": "\n".join(codes),
            "fx": "\n".join(noted["graph_code"]),
            "guards": "\n".join(noted["guards"]),
        }
        call(*inputs[1])
    places = dict.fromkeys(place for said in noted["graph_breaks"] for place in _BROKEN.findall(said))
    again = noted["recompiles"]
    lines = [
        f"{graphs:6}  graphs, of {operators} calls of operators",
        f"{sum(breaks.values()):6}  graph breaks",
        *(f"{count:6}    {' '.join(reason.split())}" for reason, count in breaks.items()),
        *(f"{'':6}    in {place}" for place in places),
        f"{first:6}  recompiled within the first call",
        f"{len(again) - first:6}  recompiled in a second call on other inputs",
        *(f"{'':6}    {' '.join(reason.split())}" for reason in again),
        f"{counters['inductor']['extern_calls']:6}  calls of a library's kernels",
    ]
    return {**texts, "graphs": "\n".join(lines)}


@contextlib.contextmanager
def _noted(*artifacts: str) -> Iterator[dict[str, list[str]]]:
    """What torch.compile logs within it, by the names of torch._logging's artifacts; none of it goes to stderr."""
    import torch._dynamo.convert_frame  # whose modules have loggers of their own for artifacts
    import torch._logging

    found: dict[str, list[str]] = {name: [] for name in artifacts}
    torch._logging.set_logs(**dict.fromkeys(artifacts, True))
    known = [name for name in logging.Logger.manager.loggerDict if name.rpartition(".__")[2] in artifacts]
    logs = [logging.getLogger(name) for name in known if name.startswith("torch")]
    before = [(log.handlers, log.propagate) for log in logs]
    for log in logs:
        log.handlers, log.propagate = [_Notes(found)], False
    try:
        yield found
    finally:
        for log, (handlers, propagate) in zip(logs, before, strict=True):
            log.handlers, log.propagate = handlers, propagate
        torch._logging.set_logs()


class _Notes(logging.Handler):
    """Keeps messages by the artifact that their logger is of."""

    def __init__(self, found: dict[str, list[str]]):
        super().__init__()
        self.found = found

    def emit(self, record: logging.LogRecord) -> None:
        kept = self.found.get(record.name.rpartition(".__")[2])
        if kept is not None:
            kept.append(record.getMessage())
