"""`fusebench plot`: time against a size, and a roofline, of earlier runs as an SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fusebench import svg
from fusebench.commands import runs
from fusebench.errors import UsageError, unknown
from fusebench.records import query
from fusebench.terminal import counted

KEYS = {"x": "shape.", "y": "time_s", "out": "plot.svg"}
LABELS = {
    "time_s": "time, s",
    "tflops": "TFLOP/s",
    "gbps": "GB/s",
    "host_s": "host, s",
    "speedup": "times as fast as torch_eager",
}
MOST = 12  # panels: more are too small to be read
HELP = f"""usage: fusebench plot [RUN …] x=shape.M [KEY=VALUE …]

A row of panels for each kernel, dtype and precision with their options: time against a size, with the 95 % interval of each median,
and the roofline, TFLOP/s against FLOPs a byte, under this device's yardsticks. RUN is as in fusebench show.

  x=shape.M       what stands on the x axis: a dimension, or another column of numbers
  y=time_s        or {", ".join(list(LABELS)[1:])}
  out=plot.svg    the file
  kernel=soft*    only these rows, as in fusebench show"""
Values = Sequence[float]


@dataclass(frozen=True)
class Line:
    """What one implementation shows in a panel: points by x, with the 95 % interval of a time; FLOPs a byte and TFLOP/s."""

    label: str
    x: Values
    y: Values
    low: Values
    high: Values
    intensity: Values
    tflops: Values


@dataclass(frozen=True)
class Panel:
    """One kernel in one dtype: its lines, and the yardsticks of the device in GB/s and TFLOP/s, None where unknown."""

    title: str
    lines: Sequence[Line]
    read_gbps: float | None
    matrix_tflops: float | None


def main(arguments: list[str]) -> int:
    """Writes the SVG and says where. Raises UsageError."""
    asked = runs.parse(arguments, KEYS)
    y, file = asked.keys.get("y", "time_s"), Path(asked.keys.get("out", KEYS["out"]))
    if y not in LABELS:
        raise unknown("y", y, LABELS)
    if file.suffix != ".svg":
        raise UsageError(f"out={file}: expected a file that ends in .svg")
    table = asked.table()
    x = asked.keys.get("x") or _varying(table)
    found = panels(table, x, y)
    draw(found, x, LABELS[y], file)
    print(f"{counted(len(found), 'panel')}: {file}")
    return 0


def panels(table: pa.Table, x: str, y: str) -> list[Panel]:
    """What is drawn of the rows. Raises UsageError for an x that is no column of numbers, and where no row has a time."""
    if x not in table.column_names:
        known = [f.name for f in table.schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)]
        raise unknown("x", x, known)
    numbers = pa.types.is_integer(table[x].type) or pa.types.is_floating(table[x].type)
    if not numbers:
        raise UsageError(f"x={x}: expected a column of numbers, such as {_varying(table)}")
    table = query.sort(table.filter(pc.and_(table[y].is_valid(), table[x].is_valid())), [])
    if not table.num_rows:
        raise UsageError(f"no cell has both {x} and {y}: nothing to draw")
    groups: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    several = len(table["run"].unique()) > 1
    for row in table.to_pylist():
        options = [f"{n.removeprefix('option.')}={row[n]}" for n in row if n.startswith("option.") and row[n]]
        precision = [row["precision"]] if row["dtype"] == "float32" else []
        inputs = [f"{row['inputs']} inputs"] * (row["inputs"] != "plain")
        title = " ".join([row["kernel"], row["dtype"], *precision, *options, *inputs, "on", row["device"]])
        label = f"{row['label']} ({row['run']})" if several else row["label"]
        groups.setdefault(title, {}).setdefault(label, []).append(row)
    if len(groups) > MOST:
        raise UsageError(
            f"{len(groups)} panels, of which {MOST} can be read: choose by kernel=, dtype= or option.NAME="
        )
    return [
        Panel(title, [_line(label, own, x, y) for label, own in lines.items()], *_yardsticks([r for own in lines.values() for r in own]))
        for title, lines in groups.items()
    ]  # fmt: skip


def _line(label: str, found: Sequence[Mapping[str, Any]], x: str, y: str) -> Line:
    points = sorted(found, key=lambda row: row[x])
    ends = ("low_s", "high_s") if y == "time_s" else (y, y)
    low, high = ([row[y] if row[end] is None else row[end] for row in points] for end in ends)
    roof = [
        (r["flops"] / r["moved_bytes"], r["tflops"]) for r in points if r["flops"] and r["moved_bytes"] and r["tflops"]
    ]
    return Line(
        label, [r[x] for r in points], [r[y] for r in points], low, high, [i for i, _ in roof], [t for _, t in roof]
    )


def _yardsticks(found: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    read, product = ([r[name] for r in found if r[name]] for name in ("read_gbps", "matrix_tflops"))
    return max(read, default=None), max(product, default=None)


def _varying(table: pa.Table) -> str:
    """The dimension with the most sizes, which is what a plot is most likely of."""
    sizes = {name: pc.count_distinct(table[name]).as_py() for name in table.column_names if name.startswith("shape.")}
    return max(sizes, key=lambda name: sizes[name], default="seed")


def draw(found: Sequence[Panel], x: str, y: str, file: Path) -> None:
    """Writes the panels. Raises UsageError where matplotlib is missing, and where the file cannot be written."""
    svg.check_matplotlib("plot needs")
    try:
        with svg.figure(file, (13, 4.5 * len(found))) as figure:
            for (times, roof), panel in zip(figure.subplots(len(found), 2, squeeze=False), found, strict=True):
                _draw_sizes(times, panel, x, y)
                _draw_roofline(roof, panel)
    except OSError as error:
        raise UsageError(f"out={file} cannot be written: {error.strerror or error}") from error


def _draw_sizes(axes: Any, panel: Panel, x: str, y: str) -> None:
    for number, line in enumerate(panel.lines):
        (drawn,) = axes.plot(line.x, line.y, marker="os^vD*"[number % 6], markersize=4, label=line.label)
        axes.fill_between(line.x, line.low, line.high, alpha=0.2, color=drawn.get_color(), linewidth=0)
    axes.set(title=panel.title, xlabel=x, ylabel=y, yscale="log")
    if all(value > 0 for line in panel.lines for value in line.x):
        axes.set_xscale("log", base=2)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize="small")


def _draw_roofline(axes: Any, panel: Panel) -> None:
    """Where a call's FLOPs are known. The roof is min(reading rate × FLOPs a byte, product rate): a yardstick, which may be beaten."""
    intensities = [i for line in panel.lines for i in line.intensity]
    if not intensities:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no roofline: no cell has FLOPs", ha="center", va="center", transform=axes.transAxes)
        return
    for number, line in enumerate(panel.lines):
        axes.plot(
            line.intensity, line.tflops, marker="os^vD*"[number % 6], markersize=4, linestyle="", label=line.label
        )
    low, high = min(intensities) / 4, max(intensities) * 4
    if panel.read_gbps:
        top, slope = panel.matrix_tflops or math.inf, panel.read_gbps / 1000
        ridge = min(max(top / slope, low), high)
        climb = [min(slope * i, top) for i in (low, ridge)]
        axes.plot([low, ridge], climb, color="black", linewidth=1, label=f"read {panel.read_gbps:.4g} GB/s")
        if ridge < high:
            label = f"product {top:.4g} TFLOP/s"
            axes.plot([ridge, high], [top, top], color="black", linestyle="--", linewidth=1, label=label)
    axes.set(title="roofline of yardsticks", xlabel="FLOPs a byte", ylabel="TFLOP/s", xscale="log", yscale="log")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize="small")
