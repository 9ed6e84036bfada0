"""What compute-sanitizer wrote, read: its findings with their places, its own counts, its warnings, and what kept it from working.

A report is a headline and lines that are indented below it, each behind `=========`. Versions differ in how they write a place:
`copy(float *)+0x90 in cuda.cu:12` since CUDA 12.3, `0x90 in cuda.cu:12:copy(float *)` or `0x90 in copy(float *)` before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

LINE = re.compile(r"^={8,9}(?: (.*))?$")
BELOW = ("at ", "by ", "and ", "in ", "Address ", "Access ", "Device Frame", "Host Frame", "Saved host backtrace")
SUMMARY = re.compile(r"^(?:ERROR|RACECHECK|INITCHECK|SYNCCHECK|LEAK) SUMMARY: ([\d,]+) (.*)")
RACE = re.compile(r"^(\w+): Race reported between (\w+) access at (.+)")
OTHER_RACER = re.compile(r"^and (\w+) access at (.+)")
HAZARD = re.compile(r"^(\w+): (?:\(.*?\) )?Potential (\w+) hazard detected")
RACER = re.compile(r"^(?:Read|Write|Atomic) Thread \(.*?\) at (.+)")
HAZARDS = re.compile(r" ?\[([\d,]+) hazards?\]$")
# what the tool says of itself or of the program as a whole, and no place in a kernel
TROUBLE = re.compile(
    r"^(?:Error: |Internal|Target application|Unable|Failed|Fatal|No attachable process|Could not|.*process didn't terminate)", re.I
)  # fmt: skip
HOST = re.compile(r"^(?:Host API|Program hit|CUDA API Error|Leaked|Unused)")
PLACES = (
    re.compile(r"^(?P<function>.+?)(?:\+|:)(?P<offset>0x[0-9a-f]+)(?: in (?P<file>.+):(?P<line>\d+))?$"),
    re.compile(r"^(?P<offset>0x[0-9a-f]+) in (?P<file>.+?):(?P<line>\d+):(?P<function>.+)$"),
    re.compile(r"^(?P<offset>0x[0-9a-f]+)(?: in (?P<function>.+))?$"),
)


@dataclass(frozen=True)
class Place:
    """Where in a program: the function, demangled, the file's path and line where they are known, and the offset of the
    instruction in the function."""

    function: str = ""
    file: str = ""
    line: int = 0
    offset: str = ""


@dataclass(frozen=True)
class Reported:
    """One report: what was found, where, by which other accesses where two are at odds, in which calls (`frames`), and how often;
    `details` are the lines of the log that say which thread and address, and `on_host` is true where no kernel has a part in it."""

    kind: str
    place: Place = field(default_factory=Place)
    others: tuple[Place, ...] = ()
    frames: tuple[Place, ...] = ()
    severity: str = "error"
    count: int = 1
    details: str = ""
    on_host: bool = False


@dataclass(frozen=True)
class Log:
    """All that a log says. `errors` is the tool's own count, None where it did not come to its summary; of these `hidden` were not
    printed."""

    reports: tuple[Reported, ...] = ()
    errors: int | None = None
    hidden: int = 0
    warnings: tuple[str, ...] = ()
    trouble: tuple[str, ...] = ()


def parse(text: str) -> Log:
    """Reads a log, also one that was cut off; lines of the program's own among it are passed over."""
    reports: list[Reported] = []
    warnings: list[str] = []
    trouble: list[str] = []
    errors, hidden = None, 0
    for headline, below in _blocks(text):
        if summary := SUMMARY.match(headline):
            number, what = _number(summary[1]), summary[2]
            if "not printed" in what:
                hidden += number
            elif not headline.startswith("LEAK"):
                errors = (errors or 0) + number
        elif found := _report(headline, below):
            reports.append(found)
        elif headline.startswith("Warning"):
            warnings.append(headline.removeprefix("Warning: "))
        elif TROUBLE.match(headline):
            trouble.append(" ".join([headline.removeprefix("Error: "), *below]))
        elif headline != "COMPUTE-SANITIZER":
            warnings.append(headline)
    return Log(tuple(reports), errors, hidden, tuple(dict.fromkeys(warnings)), tuple(dict.fromkeys(trouble)))


def _blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """The headlines, each with the lines below it."""
    headline, below = "", []
    for line in text.splitlines():
        if not (found := LINE.match(line)):
            continue
        said = found[1] or ""
        if said.strip() and (said[0] == " " or said.startswith(BELOW)) and headline:
            below.append(said.strip())
            continue
        if headline:
            yield headline, below
        headline, below = said.strip(), []
    if headline:
        yield headline, below


def _report(headline: str, below: list[str]) -> Reported | None:
    """The report of a block, or None where it is none."""
    frames = tuple(place(line.split(":", 1)[1].strip()) for line in below if line.startswith("Device Frame:"))
    details = "; ".join(line for line in below if line.startswith(("by ", "Access ", "Address ", "and is ", "Uninit")))
    if race := RACE.match(headline):
        racers = [(race[2], race[3]), *((o[1], o[2]) for o in map(OTHER_RACER.match, below) if o)]
        count = sum(_number(h[1]) for _, where in racers if (h := HAZARDS.search(where))) or 1
        first, *others = [place(HAZARDS.sub("", where)) for _, where in racers]
        accesses = " and ".join(dict.fromkeys(access.lower() for access, _ in racers))
        kind = f"race between {accesses}" if " and " in accesses else f"race between {accesses}s"
        return Reported(kind, first, tuple(others), (), _severity(race[1]), count)
    if hazard := HAZARD.match(headline):
        first, *others = [place(r[1]) for r in map(RACER.match, below) if r] or [Place()]
        return Reported(f"{hazard[2]} hazard", first, tuple(others), (), _severity(hazard[1]), 1)
    if HOST.match(headline):
        return Reported(_without_addresses(headline), details=details, on_host=True)
    if at := next((line.removeprefix("at ") for line in below if line.startswith("at ")), None):
        return Reported(_without_addresses(headline), place(at), (), frames, details=details)
    return None


def place(text: str) -> Place:
    """Where `copy(float *)+0x90 in cuda.cu:12` is, in whichever way it is written."""
    found = next((m for m in (pattern.match(text.strip()) for pattern in PLACES) if m), None)
    if found is None:
        return Place(function=text.strip())
    parts = {key: value or "" for key, value in found.groupdict().items()}
    return Place(parts.get("function", ""), parts.get("file", ""), int(parts.get("line") or 0), parts["offset"])


def _without_addresses(headline: str) -> str:
    """The headline as it reads for every address, so that reports of one kind count as one."""
    return re.sub(r" at (?:host access to )?0x[0-9a-f]+", "", headline).rstrip(". ")


def _severity(word: str) -> str:
    return "warning" if word.lower() == "warning" else "error"


def _number(text: str) -> int:
    return int(text.replace(",", ""))
