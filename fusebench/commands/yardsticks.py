"""`fusebench yardsticks`: what this device was measured to do, measured now where no earlier run has left it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

from fusebench import machine, report
from fusebench.configuration.values import resolve_device
from fusebench.discovery import roots_of
from fusebench.errors import UsageError, unknown
from fusebench.terminal import console, print_table
from fusebench.timing import yardstick, yardstick_cache
from fusebench.timing.summary import seconds
from fusebench.timing.yardstick import Missing, Rate
from fusebench.workers import yardsticks
from fusebench.workers.cores import check_threads
from fusebench.workers.pool import Pool, WorkerLost

TIMEOUT_S = 300.0  # of one rate
HELP = f"""usage: fusebench yardsticks [KEY=VALUE …] [--json]

What this device was measured to do, by PyTorch, with its share of the datasheet's peak where we have one. Rates that an
earlier run has left are shown with their date; the others are measured now and kept in {yardstick_cache.FILE}, in the folder
FUSEBENCH_CACHE or ~/.cache/fusebench.

  device=cuda   cpu, cuda, or auto (the default), which takes the GPU where there is one
  threads=1     on the CPU: those of runs with as many threads; by default one for each core
  fresh=true    measures all of them anew
  --json        prints JSON"""


def main(arguments: list[str]) -> int:
    """Prints the table, or with --json {"key": …, "device": {…}, "yardsticks": {name: entry}}; 1 if a rate cannot be measured. Raises
    UsageError."""
    device, threads, fresh, as_json = _options(arguments)
    names = yardstick.every(device)
    with (
        tempfile.TemporaryDirectory() as log,
        Pool(device, roots_of(), Path(log), threads) as pool,
        report.progress() as bar,
    ):
        task = bar.add_task("starting", total=len(names))
        try:
            worker = pool.get("torch", sys.executable)
            key, rates = yardsticks.find(
                worker, names, TIMEOUT_S, fresh, lambda name: bar.update(task, description=name, advance=1)
            )
        except WorkerLost as lost:
            print(f"fusebench: the yardsticks could not be measured: {lost.reason}", file=sys.stderr)
            return 1
        described = worker.info.device if worker.info else machine.DeviceInfo(device)
    rows = {name: _row(name, rates[name], described) for name in names}
    if as_json:
        print(json.dumps(msgspec.to_builtins({"key": key, "device": described, "yardsticks": rows}), indent=2))
    else:
        out = console()
        out.print(f"[bold]{escape(key)}[/]", highlight=False)
        _print(out, rows)
    reasons = [f"{name} could not be measured: {row.reason}" for name, row in rows.items() if isinstance(row, Missing)]
    print("".join(f"fusebench: {line}\n" for line in reasons), end="", file=sys.stderr)
    return 1 if reasons else 0


def _options(arguments: list[str]) -> tuple[str, int | None, bool, bool]:
    """The device, the threads if they were given, and whether `fresh=true` and `--json` were. Raises UsageError for anything else."""
    given = {"device": "auto", "threads": "null", "fresh": "false"}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if argument == "--json":
            continue
        if not equals or argument.startswith("-"):
            raise UsageError(
                f"unexpected {argument!r}: fusebench yardsticks takes device=, threads=, fresh=true and --json"
            )
        if key not in given:
            raise unknown("key", key, given)
        given[key] = value
    if given["fresh"] not in ("true", "false"):
        raise UsageError(f"fresh={given['fresh']}: expected true or false")
    threads = check_threads(given["threads"])
    return resolve_device(given["device"]), threads, given["fresh"] == "true", "--json" in arguments


@dataclass(frozen=True)
class RateOfPeak(Rate):
    """A rate with its share of the datasheet's peak, None where there is none."""

    datasheet_share: float | None = None


def _row(name: str, rate: Rate | Missing, device: machine.DeviceInfo) -> RateOfPeak | Missing:
    if isinstance(rate, Missing):
        return rate
    peaks = machine.datasheet(device.name)
    share = None
    if peaks and name != "launch_s":
        _, *product = name.split("/")
        share = rate.value / (peaks["tf32" if product[-1] == "tf32" else product[0]] if product else peaks["GB/s"])
    return RateOfPeak(rate.value, rate.n, rate.date, share)


def _print(out: Console, rows: Mapping[str, RateOfPeak | Missing]) -> None:
    cells = []
    for name, row in rows.items():
        if isinstance(row, Missing):  # said below the table
            continue
        what, *product = name.split("/")
        label = " ".join(["product", *product]) if product else what.rpartition("_")[0]
        unit = "TFLOP/s" if product else "GB/s"
        rate = seconds(row.value) if what == "launch_s" else f"{row.value:.4g} {unit}"
        share = row.datasheet_share
        cells.append((label, rate, f"{share:.0%}" if share else "", str(row.n), row.date))
    print_table(out, ("yardstick",), ("rate", "of the datasheet", "n", "measured"), cells, ("n", "measured"))
