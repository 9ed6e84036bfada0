"""The command `diff`: how far the outputs of two cells are apart, beside how far each is from float64. Nothing is timed."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusebench import cases, discovery, folder, report
from fusebench.commands import app, dry_run, show
from fusebench.commands.compare import SideKernels, find_sources
from fusebench.comparison import differences, outputs, sides
from fusebench.comparison.differences import ComparedOutput
from fusebench.comparison.outputs import Outputs, Runner
from fusebench.configuration import command_line, names, values
from fusebench.configuration.request import Request
from fusebench.contract import Cell
from fusebench.discovery import Kernel
from fusebench.errors import StorageError, UsageError
from fusebench.records import store
from fusebench.settings import Clock, Run, Settings
from fusebench.terminal import counted, while_it_is_read
from fusebench.workers.pool import InlinePool, Pool

GROUPS = (*sides.OWN_GROUPS, "config.")  # that a side may set
FILES = (".csv", ".json", ".parquet")


def run_diff(arguments: Sequence[str]) -> int:
    """Runs the command. Exit code: 0 if both sides of each pair are right or skipped, however far they are apart; 1 if one is not, or if
    no two outputs could be compared; 2 for bad input; 130 interrupted."""
    arguments = command_line.with_quotes(arguments, ("a", "b"))
    return app.run_app("diff", arguments, _run, _code_of, _complete, _show_dry)


def _complete(chosen: Mapping[str, Any], kernels: Mapping[str, Kernel]) -> Mapping[str, Any]:
    """The configuration with side A's implementation, checked with its own keys. Raises UsageError."""
    if missing := [key for key in ("a", "b") if chosen[key] is None]:
        raise UsageError(
            f"{missing[0]}= is missing: expected two sides, such as a=triton b=torch_eager, each {sides.EXPECTED}"
        )
    if chosen["out"] is not None:
        folder.check_file("out", chosen["out"], FILES)
    specs = _specs(chosen)
    if chosen["worker"]["inline"] and len({spec.revision for spec in specs}) > 1:
        raise UsageError("worker=inline: kernels of two revisions need processes of their own; worker=process")
    if not any(spec.revision for spec in specs):  # those of a revision are looked at when its kernels are there
        a, b = (_cells(spec, chosen, kernels) for spec in specs)
        sides.pairs(a, b)
        return sides.with_lines(chosen, specs[0].lines)
    return chosen


def _specs(chosen: Mapping[str, Any]) -> list[sides.SideSpec]:
    return [sides.parse(name, _text(chosen[key]), GROUPS) for name, key in (("A", "a"), ("B", "b"))]


def _text(value: Any) -> str:
    """A side as a text: a list is one of implementations."""
    return f"implementation=[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _cells(spec: sides.SideSpec, chosen: Mapping[str, Any], kernels: Mapping[str, Kernel]) -> list[Cell]:
    """The cells of a side. Raises UsageError."""
    try:
        names.check("diff", (), command_line.parse(spec.lines), kernels)
        return cases.select_cells(kernels, sides.with_lines(chosen, spec.lines))
    except UsageError as error:
        raise UsageError(f"side {spec.name} ({spec.text}): {error}") from error


def _pairs(sources: Sequence[SideKernels], chosen: Mapping[str, Any]) -> list[tuple[Cell, Cell]]:
    a, b = (_cells(source.spec, chosen, source.kernels) for source in sources)
    return sides.pairs(a, b)


def _show_dry(kernels: Mapping[str, Kernel], roots: Sequence[Path], requests: Sequence[Request]) -> None:
    with contextlib.ExitStack() as stack:
        for asked in requests:
            sources = _sources(asked, stack)
            trees = [(source.kernels, source.roots) for source in sources]
            dry_run.show_pairs(trees, _pairs(sources, asked.chosen), [asked.chosen] * 2)


def _sources(asked: Request, stack: contextlib.ExitStack) -> list[SideKernels]:
    """The kernels of the sides; those of a revision are there until the stack is left."""
    paths = [str(path) for path in cases.as_list(asked.chosen["path"]) if path is not None]
    found = find_sources(_specs(asked.chosen), paths, stack)
    discovery.use_roots([Path(root) for root in asked.roots])
    return found


def _run(asked: Request, run_folder: Path, kernels: Mapping[str, Kernel], resumed: bool) -> int:
    """One job, in its folder. Raises UsageError before anything has run, and StorageError when the disk takes no more."""
    begin, chosen = time.perf_counter(), asked.chosen
    clock, settings = Clock(), values.settings(chosen)
    with contextlib.ExitStack() as stack:
        sources = _sources(asked, stack)
        pairs = _pairs(sources, chosen)
        stack.enter_context(folder.held(run_folder))
        folder.keep({**chosen, "device": settings.device}, run_folder, asked.command)
        found = _compare(sources, pairs, settings, clock, run_folder, chosen["quiet"])
        if found is None:
            return app.INTERRUPTED
    with while_it_is_read():
        if not chosen["quiet"]:
            differences.show(found)
        if chosen["out"] is not None:
            show.write(differences.frame(found), Path(chosen["out"]))
        print(
            f"\n{_counts(found)}; {time.perf_counter() - begin:.1f} s, of which start-up {clock.start_up:.1f}; {run_folder}/"
        )
    if not any(row.difference for row in found):
        print("nothing compared: no pair has an output of both sides, of one shape", file=sys.stderr)
    return _code_of(run_folder)


def _compare(
    sources: Sequence[SideKernels], pairs: Sequence[tuple[Cell, Cell]], settings: Settings, clock: Clock, run_folder: Path, quiet: bool
) -> list[ComparedOutput] | None:  # fmt: skip
    """The rows of all pairs, each on disk before the next pair; None if it was interrupted. Raises StorageError."""
    found: list[ComparedOutput] = []
    with contextlib.ExitStack() as stack, report.progress(quiet) as bar:
        task = bar.add_task("starting", total=len(pairs))

        def on_phase(cell: Cell, phase: str) -> None:
            bar.update(task, description=f"{cell.label} {cell.case.id}: {phase}")

        runners: dict[str | None, Runner] = {}
        for source in sources:
            if source.commit not in runners:
                this = Run(
                    source.kernels, source.roots, run_folder / f"side-{source.spec.name}", settings, clock, on_phase
                )
                pool = _pool(this, [r.pool for r in runners.values()])
                stack.enter_context(pool)
                runners[source.commit] = stack.enter_context(outputs.runner(this, pool, source.commit))
        known: dict[tuple[str | None, str], Outputs] = {}
        try:
            for cells in pairs:
                keys = [(source.commit, cell.id) for source, cell in zip(sources, cells, strict=True)]
                known = {key: kept for key, kept in known.items() if key in keys}  # outputs may be large
                for key, cell in zip(keys, cells, strict=True):
                    if key not in known:
                        known[key] = runners[key[0]].outputs(cell)
                        store.append(run_folder, known[key].record)
                made = differences.rows(cells, [known[key] for key in keys], [key[0] for key in keys])
                for row in made:
                    store.append(run_folder, row, differences.FILE)
                found += made
                bar.advance(task)
        except KeyboardInterrupt:
            bar.stop()
            print(
                f"interrupted: {counted(len(found), 'row')} written to {run_folder / differences.FILE}", file=sys.stderr
            )
            return None
        except StorageError:
            bar.stop()
            raise
    return found


def _pool(this: Run, others: Sequence[Pool | InlinePool]) -> Pool | InlinePool:
    """The workers of a tree of kernels, on the same cores as the others'."""
    this.folder.mkdir(parents=True, exist_ok=True)
    if this.settings.inline:
        return InlinePool(this.settings.device, this.roots, this.settings.threads)
    beside = next((pool for pool in others if isinstance(pool, Pool)), None)
    return Pool(this.settings.device, this.roots, this.folder, this.settings.threads, beside=beside)


def _counts(found: Sequence[ComparedOutput]) -> str:
    compared = [row for row in found if row.difference]
    same = sum(row.difference is not None and not row.difference.differing for row in compared)
    return f"{counted(len(compared), 'output')} compared, {same} of them the same, {sum(row.fails for row in found)} with a side that is not right"


def _code_of(run_folder: Path) -> int:
    """1 if a side of any row in the folder is wrong or did not come to its end, or if no row has two outputs, else 0."""
    found = list(store.read(run_folder, ComparedOutput, differences.FILE))
    return int(any(row.fails for row in found) or not any(row.difference for row in found))
