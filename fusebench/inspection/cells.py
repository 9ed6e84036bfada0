"""The cells of a request, compiled one after another, and what is expected of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusebench import modes
from fusebench.cases import make_case
from fusebench.contract import Cell
from fusebench.discovery import Implementation, Kernel
from fusebench.inspection import expectation
from fusebench.inspection.compiled import Ask, Compiled, compile_cell
from fusebench.inspection.disassembler import Listings
from fusebench.inspection.expectation import Expectation
from fusebench.inspection.targets import Target
from fusebench.workers.stages import NotInspected, compile_stages


@dataclass(frozen=True)
class Inspected:
    """What became of a cell: its launches, or the reason why there are none; and where it is not as expected."""

    cell: Cell
    launches: Sequence[Compiled] = ()
    reason: str = ""
    failed: bool = False
    expected: Sequence[Expectation] = ()

    def unmet(self) -> list[str]:
        return [said for one in self.expected if self.launches and (said := one.met_by(self.launches))]


def inspect(
    cells: Sequence[Cell], kernels: Mapping[str, Kernel], target: Target, expect: Sequence[Expectation] | None = None,
    on_begin: Callable[[Cell], None] = lambda cell: None, ask: Ask = compile_stages, ptx: bool = False,
    fits: bool = True,
) -> Iterator[Inspected]:  # fmt: skip
    """Each cell compiled by `ask`, that of CUDA C++ to `ptx` too, configs that do not fit only without `fits`. `expect` stands for what the implementations expect of themselves. Machine code is disassembled when it is
    first looked at, that of all cells so far together."""
    listings = Listings()
    for cell in cells:
        on_begin(cell)
        kernel = kernels[cell.case.kernel]
        implementation = kernel.implementations[cell.implementation]
        try:
            _check_mode(kernel, implementation, cell)
            launches = compile_cell(cell, implementation, target, listings, ask, ptx, fits)
        except NotInspected as error:
            yield Inspected(cell, reason=str(error), failed=error.failed)
        else:
            wanted = own_expectations(cell, kernel, target) if expect is None else expect
            yield Inspected(cell, launches, expected=wanted)


def _check_mode(kernel: Kernel, implementation: Implementation, cell: Cell) -> None:
    """Raises NotInspected where the variant has not the mode of its case."""
    reason = modes.reason(kernel.name, kernel.mathematics, implementation.backward, cell.case, cell.variant)
    if reason and not implementation.broken:
        raise NotInspected(f"skipped: {reason}")


def own_expectations(cell: Cell, kernel: Kernel, target: Target) -> list[Expectation]:
    """What the cell's implementation expects of it for that arch, where no tunable is set. Raises UsageError for an EXPECT with a case
    or a figure that does not exist."""
    found: list[Expectation] = []
    for own in kernel.implementations[cell.implementation].expect:
        case = make_case(kernel, own.case, own.dtype, own.precision, own.options, own.mode)
        if (own.variant, own.arch, case.id) == (cell.variant, target.arch, cell.case.id) and not cell.config:
            found += expectation.parse(own.expect)
    return found
