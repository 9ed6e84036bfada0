"""What searches came to: a data frame of all configs, a table of the fastest, a heat map over two tunables."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.markup import escape

from fusebench import folder, svg
from fusebench.contract import STATUSES, Tunable
from fusebench.errors import UsageError
from fusebench.records.record import Record
from fusebench.terminal import console, print_table
from fusebench.timing.summary import seconds as text_of
from fusebench.tuning.confirm import Decision
from fusebench.tuning.study import Found, Search, seconds

SHOWN = 10  # of the fastest configs
REASONS = 8  # that are listed
OF_SEVERAL = " (the first of them)"
COLUMNS = {
    "kernel": pa.string(), "case": pa.string(), "implementation": pa.string(), "variant": pa.string(), "dtype": pa.string(),
    "precision": pa.string(), "device": pa.string(), "status": pa.string(), "time_s": pa.float64(), "low_s": pa.float64(),
    "high_s": pa.float64(), "compile_s": pa.float64(), "error_budget": pa.float64(), "is_default": pa.bool_(), "tried": pa.bool_(),
    "reason": pa.string(),
}  # fmt: skip


def frame(found: Sequence[Found]) -> pa.Table:
    """A row for each config that was tried, and for each that does not fit, the fastest of each study first; `config.NAME` are
    its tunables."""
    rows = [row for one in found for row in _rows(one)]
    own: dict[str, pa.DataType] = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith("config."):
                number = isinstance(value, int) and not isinstance(value, bool)
                own[name] = pa.int64() if number and own.get(name) != pa.string() else pa.string()
    texts = {name for name, of in own.items() if of == pa.string()}
    plain = [{n: str(v) if n in texts and v is not None else v for n, v in row.items()} for row in rows]
    return pa.Table.from_pylist(plain, schema=pa.schema({**COLUMNS, **own}))


def _rows(found: Found) -> list[dict[str, Any]]:
    cell = found.study.cell
    same = {
        "kernel": cell.case.kernel, "case": cell.case.id, "implementation": cell.implementation, "variant": cell.variant,
        "dtype": cell.case.dtype, "precision": cell.case.precision,
    }  # fmt: skip
    default = dict(found.default) if found.fits else None
    ranked = found.ranked
    tried = [*ranked, *(r for r in found.records.values() if seconds(r) is None)]
    rows = []
    for record in tried:
        low, high = (record.timing and record.timing.interval) or (None, None)
        rows.append({
            **same, "device": record.device.name, "status": record.status, "time_s": seconds(record), "low_s": low, "high_s": high,
            "compile_s": record.build and record.build.compile_s, "error_budget": record.parity.ratio,
            "is_default": dict(record.cell.config) == default, "tried": True, "reason": record.reason,
            **_columns(record.cell.config),
        })  # fmt: skip
    for config, reason in found.untried:
        more = {"status": "skipped", "is_default": False, "tried": False, "reason": reason}
        rows.append({**same, **more, **_columns(config)})
    return rows


def _columns(config: Any) -> dict[str, Any]:
    return {f"config.{name}": value for name, value in config.items()}


def show(found: Sequence[Found], decisions: Sequence[Decision], timed: bool) -> None:
    """Prints, for each study, the fastest configs beside the default, what became of the others, and, of searches that were `timed` to
    their end, which config is kept."""
    out = console()
    kept = {decision.found.study.name: decision for decision in decisions}
    for one in found:
        out.print(f"\n[bold]{escape(one.study.name)}[/]  {_counts(one)}", highlight=False)
        _print_fastest(one)
        for reason, count in _reasons(one):
            out.print(f"{count} × {reason}", highlight=False, markup=False)
        if decision := kept.get(one.study.name):
            name = "the default" if decision.is_default else _named(decision.kept)
            out.print(f"kept: {name}: {decision.why}", highlight=False, markup=False)
        elif timed and one.records:
            out.print("kept: nothing, no config has a time", highlight=False)


def _counts(found: Found) -> str:
    if found.fits is None:
        return f"skipped  {escape(found.refusal)}"
    counts = collections.Counter(record.status for record in found.records.values())
    said = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    looked = len(found.fits.fitting) + len(found.fits.misfits)
    of = f"{found.fits.total} configs" + (f", {looked} of them drawn" if looked < found.fits.total else "")
    tried = f"; {len(found.records)} tried: {said}" if said else ""
    return f"{of}: {len(found.fits.fitting)} fit{tried}"


def _print_fastest(found: Found) -> None:
    ranked = found.ranked
    if not ranked:
        return
    default = dict(found.default)
    shown = ranked[:SHOWN] + [r for r in ranked[SHOWN:] if dict(r.cell.config) == default]
    names = list(found.default)
    base = next((seconds(r) for r in ranked if dict(r.cell.config) == default), None)
    rows = []
    for record in shown:
        timing, time_s = record.timing, seconds(record)
        assert timing and time_s
        around = "" if timing.uncertainty is None else f"{timing.uncertainty:.1%}"
        beside = f"{base / time_s:.2f}" if base else ""
        compiled = text_of(record.build.compile_s) if record.build else ""
        mark = "default" if dict(record.cell.config) == default else ""
        rows.append((*(str(record.cell.config[n]) for n in names), mark, text_of(time_s), around, beside, compiled))
    print_table(console(), (*names, ""), ("time", "±", "× default", "compile"), rows, ("compile", "±"))


def _reasons(found: Found) -> list[tuple[str, int]]:
    """Why configs have no time, with how many: of reasons that differ in their numbers alone the first one."""
    counted: dict[str, list[str]] = {}
    said = [f"{r.status}  {r.reason}" for r in found.records.values() if seconds(r) is None]
    said += [f"does not fit  {reason}" for _, reason in found.untried]
    for text in said:
        counted.setdefault("".join(c for c in text.split(" (")[0] if not c.isdigit()), []).append(text)
    most = sorted(counted.values(), key=len, reverse=True)
    return [(texts[0] + OF_SEVERAL * (len(set(texts)) > 1), len(texts)) for texts in most[:REASONS]]


def _named(record: Record) -> str:
    return " ".join(f"{name}={value}" for name, value in record.cell.config.items())


# Heat maps


def check_heatmap(file: str | None) -> Path | None:
    """The file of the heat map. Raises UsageError where it cannot be drawn."""
    if file is None:
        return None
    path = folder.check_file("heatmap", file, [".svg"])
    svg.check_matplotlib("heatmap needs")
    return path


def check_axes(found: Sequence[Found], search: Search, file: str | None) -> None:
    """Raises UsageError where a heat map is asked for, and no study has two tunables to draw it over."""
    if file is not None and all(len(_varied(one, search)) < 2 for one in found):
        has = "; ".join(f"{one.study.name} has {' '.join(_varied(one, search)) or 'none'}" for one in found if one.fits)
        raise UsageError(
            f"heatmap={file}: expected a study with two tunables of several values each, and {has}: leave it out, "
            "or set values by config.NAME=[…]"
        )


def _varied(found: Found, search: Search) -> list[str]:
    """The tunables that have several values in the configs that may be tried."""
    if not found.fits:
        return []
    tried = [found.default, *search.candidates(found.fits)]
    return [name for name in found.default if len({config[name] for config in tried}) > 1]


def draw(found: Sequence[Found], file: Path) -> bool:
    """Writes a panel for each study with times: the two tunables that change the time most, and at each place the best time over
    all others. False where no study has times at several values of two tunables. Raises UsageError where the file cannot be written."""
    drawn = [(one, axes) for one in found if one.ranked and len(axes := axes_of(one)) == 2]
    if not drawn:
        return False
    try:
        with svg.figure(file, (7, 4.5 * len(drawn))) as figure:
            panels = figure.subplots(len(drawn), 1, squeeze=False)[:, 0]
            for axes, (one, (x, y)) in zip(panels, drawn, strict=True):
                figure.colorbar(_draw_panel(axes, one, x, y), ax=axes, label="best time, s")
    except OSError as error:
        raise UsageError(f"heatmap={file} cannot be written: {error.strerror or error}") from error
    return True


def _draw_panel(axes: Any, found: Found, x: str, y: str) -> Any:
    """The image of one study."""
    xs, ys, times = grid_of(found, x, y)
    axes.set(title=found.study.name, xlabel=x, ylabel=y)
    image = axes.imshow(times, origin="lower", aspect="auto", cmap="viridis_r")
    axes.set_xticks(range(len(xs)), map(str, xs))
    axes.set_yticks(range(len(ys)), map(str, ys))
    for row, line in enumerate(times):
        for column, value in enumerate(line):
            text = "" if math.isnan(value) else text_of(value)
            axes.text(column, row, text, ha="center", va="center", fontsize="small")
    return image


def axes_of(found: Found) -> list[str]:
    """The two tunables over whose values the best time differs most, the first one first."""
    effect = {}
    for name in found.default:
        best: dict[Tunable, float] = {}
        for record in reversed(found.ranked):
            best[record.cell.config[name]] = seconds(record) or math.nan
        if len(best) > 1:
            effect[name] = max(best.values()) / min(best.values())
    return sorted(effect, key=lambda name: -effect[name])[:2]


def grid_of(found: Found, x: str, y: str) -> tuple[list[Tunable], list[Tunable], list[list[float]]]:
    """The values of two tunables, and the best time at each pair of them, NaN where none was tried."""
    xs, ys = (sorted({r.cell.config[name] for r in found.ranked}, key=_order) for name in (x, y))
    best: dict[tuple[Tunable, Tunable], float] = {}
    for record in reversed(found.ranked):
        best[record.cell.config[x], record.cell.config[y]] = seconds(record) or math.nan
    return xs, ys, [[best.get((a, b), math.nan) for a in xs] for b in ys]


def _order(value: Tunable) -> tuple[bool, Any]:
    return isinstance(value, str), value
