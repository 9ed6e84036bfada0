"""What torch.compile makes of a cell. Its call runs twice on this machine's device, because it compiles as it first runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusebench.contract import Cell, Device
from fusebench.discovery import Implementation, Kernel
from fusebench.inputs import make_sets
from fusebench.inspection.compiled import NotInspected, load

STAGES = ("generated", "graphs")


def trace(cell: Cell, implementation: Implementation, kernel: Kernel, stage: str) -> str:
    """The code that Inductor generates, or how many graphs it is of, what broke them and what compiled again in a second call. Torch's
    settings are left as they were. Raises NotInspected."""
    if reason := implementation.broken or implementation.missing():
        raise NotInspected(reason)
    if implementation.backend != "torch":
        raise NotInspected(f"is in {implementation.backend}: {', '.join(STAGES)} are those of torch.compile")
    if cell.case.mode != "forward":
        raise NotInspected(f"{', '.join(STAGES)} are those of mode=forward")
    import torch
    import torch._dynamo

    from fusebench.backends import torch as backend

    precision, recompiles = torch.get_float32_matmul_precision(), torch._dynamo.config.error_on_recompile
    module = load(implementation)
    device = backend.start("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and implementation.without_gpu != "timed":
        raise NotInspected("skipped: needs an NVIDIA GPU")
    if (skip := getattr(module, "skip", None)) and (reason := skip(cell.case, cell.variant, device)):
        raise NotInspected(f"skipped: {reason}")
    backend.configure(cell.case.precision)
    try:
        inputs = [_arguments(module, cell, kernel, device, number) for number in (0, 1)]
        call = module.build(cell.case, cell.variant, device, *_config(module, cell, device))
        return _trace(call, inputs, stage)
    except NotInspected:
        raise
    except Exception as error:  # whatever a kernel's author wrote, or torch.compile found in it
        first = next(filter(None, str(error).splitlines()), "")
        raise NotInspected(f"{type(error).__name__}: {first}", failed=True) from error
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


def _trace(call: Callable[..., Any], inputs: Sequence[Sequence[Any]], stage: str) -> str:
    from torch._dynamo.utils import counters
    from torch._inductor.utils import run_and_get_code

    counters.clear()
    _, codes = run_and_get_code(call, *inputs[0])
    if not codes:
        raise NotInspected("compiles nothing: it runs operator by operator")
    if stage == "generated":
        return "\n".join(codes)
    graphs, operators = counters["stats"]["unique_graphs"], counters["stats"]["calls_captured"]
    breaks = dict(counters["graph_break"])
    call(*inputs[1])
    again = counters["stats"]["unique_graphs"] - graphs
    lines = [
        f"{graphs:6}  graphs, of {operators} calls of operators",
        f"{sum(breaks.values()):6}  graph breaks",
        *(f"{count:6}    {' '.join(reason.split())}" for reason, count in breaks.items()),
        f"{again:6}  recompiled in a second call on other inputs",
        f"{counters['inductor']['extern_calls']:6}  calls of a library's kernels",
    ]
    return "\n".join(lines)
