"""Which expectations (EXPECT) of the project's kernels the tests compile, and what they leave to other tests to compile."""

from __future__ import annotations

import importlib

from conftest import DEVICE

from fusebench.cases import make_case
from fusebench.contract import Cell
from fusebench.inspection import targets

MAIN = "sm_90a"


def chosen(implementation):
    """All expectations for Hopper. For another arch, where a dtype of a variant is expected to be the same in several cases, the last of
    them, which is the largest: what is longer code there is longer code on Hopper. On a machine without a GPU, whose cores take minutes for
    all of them, the last of each mode."""
    last = {}
    for number, e in enumerate(implementation.expect):
        kind = e.variant, e.dtype, e.precision, *sorted(e.options.items()), e.mode, e.expect
        if e.arch != MAIN and DEVICE == "cpu":
            kind = (e.mode,)
        last[e.arch, kind, e.case if e.arch == MAIN else ""] = number
    return [implementation.expect[number] for number in sorted(last.values())]


def cells_of(kernel, implementation, arch):
    """The cells that the chosen expectations for the arch are of: several may be of one."""
    found = {}
    for e in (e for e in chosen(implementation) if e.arch == arch):
        case = make_case(kernel, e.case, e.dtype, e.precision, e.options, e.mode)
        found[case.id, e.variant] = Cell(case, implementation.name, e.variant)
    return list(found.values())


def program(launch):
    """What a Triton launch compiles, as far as its code differs in kind: sizes above 1 are alike, whatever they are."""
    sizes = {n: min(v, 2) if type(v) is int else v for n, v in launch.constexprs.items()}
    return (
        launch.kernel.fn.__module__,
        launch.kernel.fn.__qualname__,
        repr(sorted(launch.signature.items())),
        repr(sorted(sizes.items())),
    )


def launches(kernels, language, arch):
    """What test_inspect compiles for the arch and looks at, in that language."""
    target = targets.target(arch)
    for name, kernel in kernels.items():
        if (implementation := kernel.implementations.get(language)) is None:
            continue
        module = importlib.import_module(f"implementations.{name}.{language}")
        for cell in cells_of(kernel, implementation, arch):
            config = module.config(cell.case, cell.variant, target.device)
            yield from module.launches(cell.case, cell.variant, target.device, config)


def programs(kernels, arch):
    """The Triton programs that test_inspect compiles for the arch and looks at."""
    return {program(launch) for launch in launches(kernels, "triton", arch)}
