"""A story: steps that are told in order, each some cells, in one table. `story` of a preset is

    steps:                     a list, each with a name and keys of the command, which go before those outside of the story
      - {step: eager, implementation: torch_eager}
      - {step: compiled, implementation: "torch_compile:default", option: {hashing: modulus}}
    parts:                     what a step's time is made of (may be absent)
      of: KERNEL               a kernel whose option `until` says how far its call goes, in order; what is left is the last part
      shares: {NAME: [part, …], …}

A step is measured for each mode, dtype and so on that the preset or the command line chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fusebench import cases
from fusebench.contract import Cell
from fusebench.discovery import Kernel
from fusebench.errors import UsageError, unknown

MAPPINGS = ("option", "shape", "config")  # of names to a value or a list of them
KEYS = ("kernel", "implementation", "case", "dtype", "precision", "mode", "batch", *MAPPINGS)
UNTIL = "until"  # the option of a kernel of parts


@dataclass(frozen=True)
class Step:
    """One cell of the story, by the name of its step, with the cells of its call up to each part, in order."""

    name: str
    cell: Cell
    parts: Mapping[str, Cell] = field(default_factory=dict)

    @property
    def round(self) -> tuple[Any, ...]:
        """What is the same for all steps that are compared with one another."""
        case = self.cell.case
        return case.dtype, case.precision, case.mode, self.cell.seed, self.cell.inputs


@dataclass(frozen=True)
class Story:
    """The steps, those of one mode, dtype, … together, and which parts each share is of; `last` is the part behind all others."""

    steps: tuple[Step, ...]
    shares: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    last: str = ""

    @property
    def cells(self) -> list[Cell]:
        """All that is to be measured, each once, those of one case together."""
        found = {cell.id: cell for step in self.steps for cell in (step.cell, *step.parts.values())}
        cases_of = list(dict.fromkeys((c.case.kernel, c.case.id) for c in found.values()))
        return sorted(found.values(), key=lambda c: cases_of.index((c.case.kernel, c.case.id)))


def read(kernels: Mapping[str, Kernel], chosen: Mapping[str, Any]) -> Story:
    """The story of a configuration that has one. Raises UsageError for what in it does not exist."""
    told = _told(chosen["story"])
    found = [
        Step(str(step["step"]), cell)
        for step in told["steps"]
        for cell in cases.select_cells(kernels, _with(chosen, step))
    ]
    if chosen["implementation"] != "all":  # some of the steps alone
        asked = cases.choose_variants(list(kernels.values()), chosen["implementation"])
        found = [s for s in found if (s.cell.implementation, s.cell.variant) in asked[s.cell.case.kernel]]
        if not found:
            raise UsageError(f"no cells: the story has no step with implementation={chosen['implementation']}")
    rounds = list(dict.fromkeys(step.round for step in found))
    found.sort(key=lambda step: rounds.index(step.round))
    if "parts" not in told:
        return Story(tuple(found))
    kernel = kernels[cases.check_name("kernel", told["parts"]["of"], kernels)]
    order = kernel.options.get(UNTIL, ())
    shares = {name: tuple(map(str, cases.as_list(parts))) for name, parts in told["parts"]["shares"].items()}
    named = [part for parts in shares.values() for part in parts]
    (last, *more) = [part for part in named if part not in order] or [""]
    if missing := [part for part in order if part not in named]:
        raise UsageError(f"story: no share has the part {', '.join(missing)} of {kernel.name}")
    if more or not last or len(named) != len(set(named)):
        have = ", ".join(order) or "none"
        raise UsageError(
            f"story: shares are of {', '.join(named)}; expected each of {have} once, and one more for what is left"
        )
    return Story(tuple(replace(step, parts=_parts(kernel, step.cell)) for step in found), shares, last)


def _parts(kernel: Kernel, cell: Cell) -> dict[str, Cell]:
    """The cells of the same call up to each of its parts, of an implementation that the kernel of parts has."""
    own = kernel.implementations.get(cell.implementation)
    if own is None or cell.variant not in own.variants:
        return {}
    case, options = cell.case, {name: value for name, value in cell.case.options.items() if name in kernel.options}
    made = {
        part: cases.make_case(kernel, dict(case.sizes), case.dtype, case.precision, {**options, UNTIL: part}, case.mode)
        for part in kernel.options[UNTIL]
    }
    return {part: Cell(of, cell.implementation, cell.variant, cell.seed, cell.inputs) for part, of in made.items()}


def _told(story: Any) -> Mapping[str, Any]:
    """The value of the key `story`, checked. Raises UsageError."""
    example = "expected steps: [{step: NAME, implementation: …}, …] and, if any, parts: {of: KERNEL, shares: {NAME: [part, …]}}"
    if not isinstance(story, Mapping) or not story.get("steps") or set(story) - {"steps", "parts"}:
        raise UsageError(f"story is {story!r:.60}; {example}")
    steps, parts = story["steps"], story.get("parts", {"of": "", "shares": {"": ""}})
    if not isinstance(steps, Sequence) or not all(isinstance(step, Mapping) and step.get("step") for step in steps):
        raise UsageError(f"story has the steps {steps!r:.60}; {example}")
    if not isinstance(parts, Mapping) or set(parts) != {"of", "shares"} or not isinstance(parts["shares"], Mapping):
        raise UsageError(f"story has the parts {parts!r:.60}; {example}")
    for step in steps:
        if others := [key for key in step if key not in ("step", *KEYS)]:
            raise unknown(f"key of the step {step['step']!r} of the story", others[0], KEYS)
        for key in MAPPINGS:
            if not isinstance(step.get(key, {}), Mapping):
                raise UsageError(
                    f"the step {step['step']!r} of the story has the {key} {step[key]!r:.60}; expected {{NAME: VALUE, …}}, where VALUE may be a list"
                )
    return story


def _with(chosen: Mapping[str, Any], step: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a step's cells. Raises UsageError for a key that both set."""
    found = {**chosen, "implementation": "all"}
    for key, value in step.items():
        if key in MAPPINGS:
            found[key] = {**chosen[key], **value}
        elif key == "case" and chosen["case"] is not None:
            raise UsageError(
                f"case={chosen['case']}: the steps of the story have cases of their own: leave it out, or set case=null"
            )
        elif key != "step":
            found[key] = value
    return found
