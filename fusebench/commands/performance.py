"""`fusebench performance`: our fastest implementation of each case beside the fastest of others, from runs on record, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusebench.commands import runs
from fusebench.errors import UsageError
from fusebench.records import rows
from fusebench.timing.summary import seconds

OURS = ("cuda", "triton", "jax_triton")  # kernels of the project's own
KEYS = ("out",)
BEGIN, END = "<!-- figures: made by fusebench performance -->", "<!-- end of figures -->"
HELP = f"""usage: fusebench performance [RUN …] [KEY=VALUE …]

For each case of these runs ({", ".join(OURS)} are ours): our fastest implementation, the fastest other one, and ours ÷ other with the
95 % interval that those of the two medians allow. RUN is as for show; without one the latest.

  out=FILE              writes the tables between the marks in FILE, the rest of which stays; a new file has the tables alone
  kernel=soft*          only these rows, by any column that show has"""
HEAD = (
    "case",
    "ours",
    "time",
    "best other",
    "its time",
    "ours ÷ other",
    "product alone",
    "of the yardstick",
    "host",
    "others",
)
NEEDED = (
    "kernel",
    "case",
    "label",
    "implementation",
    "status",
    "time_s",
    "low_s",
    "high_s",
    "yardstick_share",
    "host_s",
    "computes",
)


@dataclass(frozen=True)
class Time:
    """A cell's median with its 95 % interval, in seconds."""

    label: str
    median: float
    low: float
    high: float
    share: float | None
    host: float | None


def main(arguments: list[str]) -> int:
    """Prints the tables, or writes them. Raises UsageError."""
    asked = runs.parse(arguments, KEYS)
    table = asked.table()
    found = zip(*(rows.values(table[name]) for name in NEEDED), strict=True)
    text = tables([dict(zip(NEEDED, row, strict=True)) for row in found])
    devices = sorted({value for value in rows.values(table["device"]) if value})
    began = min((value for value in rows.values(table["began"]) if value), default="")[:10]
    text = f"Measured on {', '.join(devices)}, {began}.\n{text}"
    if "out" in asked.keys:
        write(Path(asked.keys["out"]), text)
    else:
        print(text)
    return 0


def tables(cells: Sequence[Mapping[str, Any]]) -> str:
    """A heading and a table for each kernel, a row for each case. Raises UsageError where no case has a time."""
    parts: dict[str, list[str]] = {}
    for kernel, case in dict.fromkeys((cell["kernel"], cell["case"]) for cell in cells):
        timed = [c for c in cells if (c["kernel"], c["case"]) == (kernel, case) and c["time_s"] and c["time_s"] > 0]
        if timed:
            parts.setdefault(kernel, []).append(f"| {' | '.join(_row(case, timed))} |")
    if not parts:
        raise UsageError("no cell of these runs has a time: expected a run of fusebench bench")
    head = f"| {' | '.join(HEAD)} |\n|{' --- |' * len(HEAD)}"
    return "".join(f"\n### {kernel}\n\n{head}\n" + "\n".join(lines) + "\n" for kernel, lines in parts.items())


def _row(case: str, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    whole = [c for c in cells if not c["computes"]]
    ours = sorted((_time(c) for c in whole if c["implementation"] in OURS), key=lambda t: t.median)
    others = sorted((_time(c) for c in whole if c["implementation"] not in OURS), key=lambda t: t.median)
    parts = sorted((_time(c) for c in cells if c["computes"]), key=lambda t: t.median)
    first, peer = next(iter(ours), None), next(iter(others), None)
    share = f"{first.share:.0%}" if first and first.share else ""
    host = seconds(first.host) if first and first.host else ""
    behind = ", ".join(f"{t.label} {seconds(t.median)}" for t in [*ours[1:], *others[1:]])
    return [
        case, *_named(first), *_named(peer), ratio(first, peer) if first and peer else "", seconds(parts[0].median) if parts else "",
        share, host, behind,
    ]  # fmt: skip


def ratio(ours: Time, other: Time) -> str:
    """Ours ÷ other, and between which figures it is where both medians are within their intervals."""
    return f"{ours.median / other.median:.3f} ({ours.low / other.high:.3f} … {ours.high / other.low:.3f})"


def _named(time: Time | None) -> tuple[str, str]:
    return (time.label, seconds(time.median)) if time else ("none", "")


def _time(cell: Mapping[str, Any]) -> Time:
    """A median without an interval is taken as known."""
    median = cell["time_s"]
    low, high, share, host = (_known(cell[name]) for name in ("low_s", "high_s", "yardstick_share", "host_s"))
    return Time(cell["label"], median, low or median, high or median, share, host)


def _known(value: float | None) -> float | None:
    """The value, None for what a table has as null or NaN."""
    return value if value and value > 0 else None


def write(path: Path, text: str) -> None:
    """Puts the text between the marks in the file. Raises UsageError for a file that has no marks or cannot be written."""
    try:
        before, after = "", "\n"
        if path.exists():
            whole = path.read_text(encoding="utf-8")
            if BEGIN not in whole or END not in whole.partition(BEGIN)[2]:
                raise UsageError(
                    f"out={path} has no {BEGIN} with {END} behind it: expected a file with both, or a new one"
                )
            before, _, rest = whole.partition(BEGIN)
            after = rest.partition(END)[2]
        path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"out={path} cannot be written: {error.strerror}") from error
