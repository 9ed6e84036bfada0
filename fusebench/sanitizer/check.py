"""What one cell under one tool left behind: the check, its findings, and how they follow from the log and from the program's record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fusebench.contract import PASSED, Cell
from fusebench.records.record import SCHEMA, Record
from fusebench.sanitizer.log import Log, Place, Reported
from fusebench.sanitizer.own import Own, base_name, plain_name


@dataclass(frozen=True)
class Finding:
    """What a tool reported of one place, `count` times. `kind` is the hazard or error in the tool's words, or "wrong under racecheck"
    for outputs that the judge rejected. `kernel` is the function, demangled, without its parameters; `place` a file and line where
    they are known, or else a function and the offset in it; `others` the places that a race is with. `of` says whose it is: "ours",
    "library" for a kernel of the framework, "host" for a copy or call of the host, in which no kernel has a part. `example` is the
    thread and the address of the first report."""

    kind: str
    kernel: str = ""
    place: str = ""
    others: tuple[str, ...] = ()
    of: str = "ours"
    severity: str = "error"
    count: int = 1
    example: str = ""


@dataclass(frozen=True)
class Check:
    """One cell under one tool. `record` is what the program under the tool left, of which the status says whether the cell was right;
    `errors` the tool's own count, None where it did not come to its end; `notes` what it said of itself; `sanitizer` its version;
    `log` the file in the run's folder that has the reports, "" where there was nothing to keep."""

    id: str
    tool: str
    record: Record
    findings: tuple[Finding, ...] = ()
    errors: int | None = None
    notes: tuple[str, ...] = ()
    sanitizer: str = ""
    log: str = ""
    schema: int = SCHEMA

    @property
    def cell(self) -> Cell:
        return self.record.cell

    @property
    def status(self) -> str:
        """That of the cell under the tool."""
        return self.record.status

    @property
    def ours(self) -> list[Finding]:
        return [f for f in self.findings if f.of == "ours"]

    @property
    def passed(self) -> bool:
        """Whether the cell is right under the tool, or cannot run, and nothing was found in a kernel of the implementation."""
        return self.status in PASSED and not self.ours


def check_id(cell: Cell, tool: str) -> str:
    """Unique within a run."""
    return f"{cell.id}/{tool}"


def concluded(check: Check, log: Log, own: Own, trouble: str = "") -> Check:
    """The check with what its log says. `trouble` is why the program left no record, for a tool that does not say more."""
    record, tool = check.record, check.tool
    ended = log.errors is not None
    if trouble:
        record = replace(record, status="crashed", reason="; ".join(log.trouble) or trouble)
    elif not ended and record.status == "ok":
        said = "; ".join(log.trouble) or "its log ends without a summary"
        record = replace(record, status="crashed", reason=f"{tool} did not come to its end: {said}")
    findings = together([finding(reported, own, tool) for reported in log.reports])
    if log.errors and not findings:  # a report in words that are not known here is a finding all the same
        findings = (Finding(f"{log.errors} reported, in words that are not known here", count=log.errors),)
    if record.status == "wrong":
        findings = (*findings, Finding(f"wrong under {tool}", example=str(record.reason)))
    hidden = (f"{log.hidden} of {log.errors} errors were counted, but not printed",) if log.hidden else ()
    notes = (*log.warnings, *hidden, *(log.trouble if ended else ()))
    return replace(check, record=record, findings=findings, errors=log.errors, notes=notes)


def finding(reported: Reported, own: Own, tool: str) -> Finding:
    """A report as a finding, with places as the record keeps them and whose it is."""
    of = "host" if reported.on_host else "ours" if own.has(reported, tool) else "library"
    kernel = reported.frames[-1].function if reported.frames else reported.place.function
    return Finding(
        reported.kind, plain_name(kernel), named(reported.place, own), tuple(named(p, own) for p in reported.others), of,
        reported.severity, reported.count, reported.details,
    )  # fmt: skip


def named(place: Place, own: Own) -> str:
    """`lola/cuda.cu:12` for a line of a kernel's folder, `file.cuh:12` for one elsewhere, `copy+0x90` where no line is known."""
    if place.file:
        return f"{own.file(place) or Path(place.file).name}:{place.line}"
    return f"{base_name(place.function)}+{place.offset}" if place.offset else plain_name(place.function)


def together(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Those of one kind and place as one, with their counts added and the first one's example, in the order of their first."""
    found: dict[Finding, Finding] = {}
    for one in findings:
        key = replace(one, count=0, example="")
        before = found.get(key)
        found[key] = replace(before, count=before.count + one.count) if before else one
    return tuple(found.values())
