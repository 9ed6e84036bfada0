"""Hardware counters of kernels, read from what `ncu --csv --page raw` prints, and put beside the rows of a profile."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fusebench.profiling import ncu
from fusebench.profiling.kernels import KernelTotal
from fusebench.sanitizer.own import base_name, plain_name

DRAM, TENSOR, OCCUPANCY = "dram_bytes", "tensor_percent", "occupancy_percent"
UNNAMED = "unnamed"  # a namespace without a name, of which each profiler has a way to write it
STALL = "stalled_"  # before the reason: warps of a scheduler that wait for it, on average, whenever it issues


@dataclass(frozen=True)
class Counted:
    """The counters of one kernel: bytes to and from DRAM, percent of the tensor cores' and of the warps' peak, stalls by reason."""

    name: str
    counters: Mapping[str, float] = field(default_factory=dict)


def parse(listing: str) -> list[Counted]:
    """The kernels in the order in which they ran. Lines of ncu's own or of the program's before the heading are passed over; a
    metric without a number is left out."""
    lines = listing.splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return []
    table = list(csv.DictReader(line for line in lines[first:] if line.startswith('"')))
    return [_counted(row) for row in table if str(row["ID"]).isdecimal()]  # the row below the heading has the units


def beside(rows: Sequence[KernelTotal], counted: Sequence[Counted], launched: Sequence[str]) -> list[KernelTotal]:
    """The rows with the counters of the kernels of their names: bytes are added up, the others are means. The profilers write template
    arguments in ways of their own: where `launched`, the names in the order in which they ran, has the same functions, it says which is
    which, and otherwise the name does, first as a whole, then without namespace and arguments."""
    keys = [_keys(one.name) for one in counted]
    if [key[1] for key in keys] == [_keys(name)[1] for name in launched]:
        keys = [_keys(name) for name in launched]
    found: dict[str, list[Counted]] = {}
    for own, one in zip(keys, counted, strict=True):
        for key in dict.fromkeys(own):
            found.setdefault(key, []).append(one)
    return [
        replace(row, counters=together(next((found[key] for key in _keys(row.name) if key in found), [])))
        for row in rows
    ]


def elsewhere(rows: Sequence[KernelTotal], counted: Sequence[Counted]) -> tuple[str, ...]:
    """The counted kernels that are of no row: a compiler or a library that tries kernels out may choose others under ncu."""
    known = {_keys(row.name)[1] for row in rows}
    return tuple(dict.fromkeys(base for one in counted if (base := _keys(one.name)[1]) not in known))


def together(counted: Sequence[Counted]) -> dict[str, float]:
    """The counters of several kernels as one."""
    values: dict[str, list[float]] = {}
    for one in counted:
        for name, value in one.counters.items():
            values.setdefault(name, []).append(value)
    return {name: sum(own) if name == DRAM else sum(own) / len(own) for name, own in values.items()}


def stalls(counters: Mapping[str, float], most: int = 2) -> str:
    """The reasons that most warps wait for: `long_scoreboard 8.1, wait 1.2`."""
    own = sorted(
        ((v, name.removeprefix(STALL)) for name, v in counters.items() if name.startswith(STALL)), reverse=True
    )
    return ", ".join(f"{name} {value:.1f}" for value, name in own[:most] if value >= 0.05)


def _counted(row: Mapping[str, str]) -> Counted:
    numbers = {name: number for name, text in row.items() if (number := _number(text)) is not None}
    counters = {STALL + found[1]: numbers[name] for name in numbers if (found := ncu.STALL.match(name.split(".")[0]))}
    dram = [numbers[name] for name in ncu.DRAM if name in numbers]
    known = {OCCUPANCY: numbers.get(ncu.OCCUPANCY), DRAM: sum(dram) if len(dram) == len(ncu.DRAM) else None}
    known[TENSOR] = next((numbers[name] for name in ncu.TENSOR if name in numbers), None)
    return Counted(row["Kernel Name"], {name: value for name, value in known.items() if value is not None} | counters)


def _number(text: str | None) -> float | None:
    try:
        return float(str(text).replace(",", ""))
    except ValueError:
        return None


def _keys(name: str) -> tuple[str, str]:
    """The function with its namespace and template arguments, and without them."""
    named = name.replace("(anonymous namespace)", UNNAMED).replace("<unnamed>", UNNAMED)
    return re.sub(r"\s", "", plain_name(named)), base_name(named)
