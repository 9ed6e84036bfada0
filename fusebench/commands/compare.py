"""The command `compare`: two implementations, configurations or git revisions, interleaved in pairs of processes."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from fusebench import cases, discovery, folder, provenance, report
from fusebench.commands import app, dry_run, keys, show
from fusebench.comparison import revision, sides, verdicts
from fusebench.comparison.pairs import Match, Side, add_recorded, run_pairs
from fusebench.comparison.statistics import FEWEST
from fusebench.configuration import command_line, jobs, names, schema, values
from fusebench.configuration.request import Requests
from fusebench.contract import Cell
from fusebench.discovery import Kernel
from fusebench.errors import StorageError, UsageError
from fusebench.records import store
from fusebench.settings import Clock, Run
from fusebench.terminal import counted, while_it_is_read

AFTERWARDS = ("pairs", "confidence", "fail_slower", "resamples")  # keys that may be set anew beside resume=
SELF_CHECK_PAIRS = 30  # at least, for the figures of `resamples`


@dataclass(frozen=True)
class SideKernels:
    """Where the kernels of a side are from."""

    spec: sides.SideSpec
    kernels: Mapping[str, Kernel]
    roots: Sequence[Path]
    commit: str | None


@dataclass(frozen=True)
class Comparison:
    """What one job does, all of it checked."""

    device: str
    pairs: int
    rounds: int
    confidence: float
    fail_slower: float | None
    resamples: int
    chosen: tuple[Mapping[str, Any], Mapping[str, Any]]
    matches: Sequence[Match]


def run_compare(arguments: Sequence[str]) -> int:
    """Runs the command. Exit code: 0 if all was compared or skipped and nothing is surely slower than `fail_slower` allows; 1 if
    something is, if a side is wrong or does not run, or if `fail_slower` is set and nothing was compared; 2 for bad input; 130
    interrupted."""
    with contextlib.ExitStack() as stack:
        return app.start("compare", arguments, lambda: _prepare(arguments, stack), _code_of, show.show_comparisons)


def _prepare(arguments: Sequence[str], stack: contextlib.ExitStack) -> app.Prepared:
    """What app.start needs; the folders of old kernels stay until the stack is left."""
    words, rest, resumed = _resumed(arguments) or (*sides.split(arguments), None)
    shows = command_line.only_shows(rest)
    if not words and not shows:
        example = "compare triton cuda kernel=softmax"
        raise UsageError(f"compare takes two sides, before all else; expected {sides.EXPECTED}: {example}")
    overrides = command_line.parse(rest)
    paths = command_line.paths_of(overrides)
    sources = find_sources([sides.parse(*side) for side in zip("AB", words, strict=False)], paths, stack)
    known = {f"{s.spec.name}/{name}": k for s in sources for name, k in s.kernels.items()}
    known = known or discovery.find_kernels(discovery.roots_of(paths))
    names.check("compare", rest, overrides, known)
    if command_line.flags(rest).help:
        keys.show("compare", known, overrides)
        sys.exit(0)
    schema.register("compare", known)
    plans = Requests(lambda job: _comparison(sources, job["overrides"], rest))
    if not shows:
        for lines in jobs.job_lines(rest, overrides):
            plan = plans.add({"overrides": lines})
            if not resumed:
                app.check_files(plan.chosen[0], overrides)
    if dry := [plan for plan in plans.known.values() if plan.chosen[0]["dry_run"]]:
        for plan in dry:
            dry_run.show_pairs(
                [(s.kernels, s.roots) for s in sources], [match.cells for match in plan.matches], plan.chosen
            )
        sys.exit(0)

    def job(_: DictConfig, run_folder: Path) -> int:
        lines = [str(line) for line in HydraConfig.get().overrides.task]
        begun = resumed is not None and (run_folder / "compare.yaml").is_file()  # of a sweep some jobs may not have
        return _run(sources, plans.of({"overrides": lines}), lines, run_folder, begun)

    return app.Prepared(rest, resumed, job, [*map(_fixed, sources), *rest])


def _fixed(source: SideKernels) -> str:
    """A side as it is written, with the commit that it means now."""
    return source.spec.text.replace(f"@{source.spec.revision}", f"@{source.commit}")


def _resumed(arguments: Sequence[str]) -> tuple[list[str], list[str], Path] | None:
    """The sides, the arguments and the kept configuration of the comparison to go on with, or None. Raises UsageError."""
    if not any(a.startswith("resume=") for a in arguments):
        return None
    words, rest = sides.split(arguments)
    if any(word.startswith("resume=") for word in words):  # given twice
        words, rest = [], list(arguments)
    overrides = command_line.parse(rest)
    value = command_line.last("resume", overrides)
    if value is None:
        return None
    if wrong := [
        *map(shlex.quote, words),
        *command_line.conflicts_with_resume(overrides, arguments, (*AFTERWARDS, *app.OF_THIS_TIME)),
    ]:
        raise UsageError(
            f"resume={value} goes on with that comparison as it was: leave out {' '.join(wrong)}; "
            f"only {', '.join(AFTERWARDS)} can be set anew"
        )
    file = folder.find("compare", str(value))
    anew = {o.key_or_group for o in overrides}
    if file.name == folder.sweep_file("compare"):
        words, rest = sides.split(folder.load_sweep(file))
        own = [str(o.input_line) for o in overrides if o.key_or_group != "resume"]
        return words, [*(word for word in rest if word.split("=")[0] not in anew), *own], file
    kept = folder.load(file)
    for key in ("sides", "overrides"):
        if not isinstance(kept.get(key), list) or not all(isinstance(line, str) for line in kept[key]):
            raise UsageError(f"{file} is no configuration of this command: {key} is {kept.get(key)!r}")
    lines = [line for line in kept["overrides"] if line.split("=")[0] not in anew]
    # JSON's strings are quoted as Hydra reads them
    lines += [f"{key}={json.dumps(kept[key])}" for key in ("path", "shapes") if kept.get(key) is not None]
    return kept["sides"], [*lines, *arguments], file


def find_sources(
    specs: Sequence[sides.SideSpec], paths: Sequence[str], stack: contextlib.ExitStack
) -> list[SideKernels]:
    """The kernels of the sides: of the working tree, or of a commit that is written to a temporary folder."""
    roots = discovery.roots_of(paths)
    trees: dict[str | None, tuple[Mapping[str, Kernel], Sequence[Path]]] = {}
    found = []
    for spec in specs:
        commit = None
        if spec.revision is not None:
            checkout = revision.repository(paths)
            commit = revision.resolve(checkout, spec.revision)
        if commit not in trees:
            theirs = roots
            if commit is not None:
                copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fusebench-")))
                theirs = revision.export(checkout, commit, roots, copy)
            trees[commit] = (discovery.find_kernels(theirs), theirs)
            if commit is None:  # an old commit may lack the kernel that a path adds to
                discovery.check_roots(theirs, trees[commit][0])
        found.append(SideKernels(spec, *trees[commit], commit))
    return found


def _comparison(sources: Sequence[SideKernels], lines: Sequence[str], arguments: Sequence[str]) -> Comparison:
    """What the job with these overrides does. Raises UsageError for whatever in it cannot be done."""
    chosen, cells = [], []
    for source in sources:
        where = f"side {source.spec.name} ({source.spec.text}): "
        try:
            names.check("compare", (), command_line.parse(source.spec.lines), source.kernels)
            names.check_sizes(command_line.parse([*lines, *source.spec.lines]))
            own = jobs.compose_job("compare", [*lines, *source.spec.lines], arguments)
            if not any(line.split("=")[0] == "kernel" for line in lines):
                own = dict(cases.with_the_case(source.kernels, own))
            cells.append(cases.select_cells(source.kernels, own))
        except UsageError as error:
            raise UsageError(where + str(error)) from error
        chosen.append(own)
    both = chosen[0]
    if both["worker"]["inline"]:
        raise UsageError("worker=inline: compare needs processes of its own for each side; worker=process")
    device = values.settings(both).device
    confidence = _share("confidence", both["confidence"], "a share such as 0.99")
    if not 0.5 <= confidence < 1:
        raise UsageError(f"confidence is {both['confidence']!r}: expected at least 0.5 and less than 1")
    allowed = (
        None
        if both["fail_slower"] is None
        else _share("fail_slower", both["fail_slower"], "a share such as 3% or 0.03")
    )
    pairs, rounds = (cases.positive(key, both[key]) for key in ("pairs", "rounds"))
    if allowed is not None and pairs < FEWEST:
        raise UsageError(f"pairs={pairs}: fail_slower needs an interval, and that {FEWEST} pairs or more")
    resamples = cases.positive("resamples", both["resamples"], least=0)
    matches = sides.match(*cells)
    if resamples and (
        pairs < SELF_CHECK_PAIRS
        or any(m.cells[0] != m.cells[1] for m in matches)
        or len({s.commit for s in sources}) > 1
    ):
        raise UsageError(
            f"resamples={resamples}: expected a side against itself and pairs={SELF_CHECK_PAIRS} or more, such as "
            f"compare torch_eager torch_eager pairs={SELF_CHECK_PAIRS} resamples={resamples}"
        )
    return Comparison(device, pairs, rounds, confidence, allowed, resamples, (chosen[0], chosen[1]), matches)


def _share(key: str, value: Any, expected: str) -> float:
    """3% and 0.03 are the same. Raises UsageError for what is none of at least 0 and below 1."""
    text = str(value)
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if isinstance(value, bool) or not 0 <= share < 1:
        raise UsageError(f"{key} is {value!r}: expected {expected}")
    return share


def _run(
    sources: Sequence[SideKernels], plan: Comparison, lines: Sequence[str], run_folder: Path, resumed: bool
) -> int:
    """One job, in its folder: the pairs that are not on record yet, then the table. Raises UsageError and StorageError."""
    settings = values.settings(plan.chosen[0])  # of the machine that the job runs on
    a, b = ({**own, "rows_seed": settings.rows_seed} for own in plan.chosen)  # both sides have the same rows judged
    plan = replace(plan, chosen=(a, b), device=settings.device, matches=[Match(match.cells) for match in plan.matches])
    with folder.held(run_folder):
        if not resumed:
            others = [
                line
                for line in lines
                if line.split("=")[0] not in ("path", "shapes", "device", "out_dir", *app.OF_THIS_TIME)
            ]
            others.append(f"device={plan.device}")  # "auto" may be another one where the comparison goes on
            both = {key: plan.chosen[0][key] for key in ("path", "shapes")}
            folder.keep({"sides": [*map(_fixed, sources)], "overrides": others} | both, run_folder, "compare")
        add_recorded(run_folder, plan.matches)
        _check_unchanged(sources, plan.matches)
        return _measure(sources, plan, run_folder)


def _measure(sources: Sequence[SideKernels], plan: Comparison, run_folder: Path) -> int:
    begin = time.perf_counter()
    clock, quiet = Clock(), plan.chosen[0]["quiet"]
    with report.progress(quiet) as bar:
        task = bar.add_task(
            "starting", total=plan.pairs * len(plan.matches), completed=sum(len(m.pairs) for m in plan.matches)
        )

        def on_phase(cell: Cell, phase: str) -> None:
            bar.update(task, description=f"{cell.label} {cell.case.id}: {phase}")

        both = [
            Side(s.spec.name, Run(s.kernels, s.roots, run_folder / f"side-{s.spec.name}", values.settings({**own, "device": plan.device}), clock, on_phase), s.commit)
            for s, own in zip(sources, plan.chosen, strict=True)
        ]  # fmt: skip
        stopped: BaseException | None = None
        try:
            for match in run_pairs((both[0], both[1]), plan.matches, plan.pairs, plan.rounds, run_folder):
                bar.advance(task)
                if plan.chosen[0]["verbose"]:
                    print(f"[{len(match.pairs)}/{plan.pairs}] {match.id}", file=sys.stderr, flush=True)
        except (KeyboardInterrupt, StorageError) as error:
            bar.stop()
            stopped = error
    found = [verdicts.outcome(match, plan.confidence, plan.fail_slower, plan.resamples) for match in plan.matches]
    if not isinstance(stopped, StorageError):
        (run_folder / verdicts.FILE).unlink(missing_ok=True)
        for outcome in found:
            store.append(run_folder, outcome, verdicts.FILE)
    shown = [f"{s.spec.name}  {s.spec.text}" + (f"  (commit {s.commit[:10]})" if s.commit else "") for s in sources]
    with while_it_is_read():
        verdicts.show(found, shown)
        verdicts.footer(clock, time.perf_counter() - begin, run_folder)
    if stopped:
        kept = f"{min(len(m.pairs) for m in plan.matches)} of {counted(plan.pairs, 'pair')}"
        return app.interrupted(app.goes_on(stopped, kept, run_folder, "compare"))
    if plan.fail_slower is not None and not any(outcome.status == "ok" for outcome in found):
        print("fusebench: nothing was compared, so that fail_slower has nothing to pass", file=sys.stderr)
        return 1
    return _code_of(run_folder)


def _code_of(run_folder: Path) -> int:
    """1 if any comparison in the folder has failed, else 0."""
    return 1 if any(outcome.fails for outcome in store.read(run_folder, verdicts.Outcome, verdicts.FILE)) else 0


def _check_unchanged(sources: Sequence[SideKernels], matches: Sequence[Match]) -> None:
    """Raises UsageError if a file that an implementation is made of has changed since its pairs were recorded."""
    for match in matches:
        for pair in match.pairs.values():
            for record, cell, source in zip(pair, match.cells, sources, strict=True):
                file = source.kernels[cell.case.kernel].implementations[cell.implementation].file
                if name := provenance.changed(record.record.source, file, source.roots):
                    raise UsageError(
                        f"{name}, of which {cell.label} is made, has changed since the recorded pairs were measured: start a comparison anew"
                    )
