"""The Hydra application that `bench` and `parity` are, and `sanitize` in part: overrides checked, configuration composed, cells run, tables shown."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fusebench import cases, discovery, folder, provenance, report
from fusebench.commands import dry_run, keys, runs, show
from fusebench.commands import story as story_table
from fusebench.configuration import command_line, compositions, jobs, names, request, schema, story, values
from fusebench.configuration.request import Request, Requests
from fusebench.contract import PASSED
from fusebench.discovery import Kernel
from fusebench.errors import StorageError, UsageError, fail
from fusebench.records import store
from fusebench.records.record import Record
from fusebench.records.store import FILE
from fusebench.run import run
from fusebench.settings import Run
from fusebench.terminal import counted, while_it_is_read

OF_THIS_TIME = ("retry", "quiet", "verbose")  # keys that may be set beside resume=
INTERRUPTED = 130  # as shells have it for Ctrl-C
T = TypeVar("T")


Job = Callable[[DictConfig, Path], int]  # from the configuration of a job and its folder to its exit code
Kernels = Mapping[str, Kernel]
RunJob = Callable[[Request, Path, Kernels, bool], int]  # from a job's request, its folder, and whether it goes on
Complete = Callable[[Mapping[str, Any], Kernels], Mapping[str, Any]]
ShowDry = Callable[[Kernels, Sequence[Path], Sequence[Request]], None]


@dataclass(frozen=True)
class Prepared:
    """A command line that was checked: the arguments that Hydra is to see, what is kept of a run or a sweep that goes on, the job, and
    the words that start a sweep of the same."""

    arguments: Sequence[str]
    resumed: Path | None
    job: Job
    words: Sequence[str]


def run_app(
    command: str, arguments: Sequence[str], run_job: RunJob | None = None, code_of: Callable[[Path], int] | None = None,
    complete: Complete = lambda chosen, kernels: chosen, show_dry: ShowDry = dry_run.show,
) -> int:  # fmt: skip
    """Runs the command and returns its exit code: 0 if every cell is ok or skipped, 1 if not, 2 for bad input; with -m,
    of all its jobs together.

    A command of another kind brings how it runs a job and how the exit code follows from a folder; `complete` checks the keys
    that are its own, and fills in what depends on the kernels; `show_dry` shows what would run.
    """
    show_sweep = show.show_sweep if run_job is None else lambda folders: None
    return start(
        command,
        arguments,
        lambda: _prepare(command, arguments, run_job or _run, complete, show_dry),
        code_of or _code_of,
        show_sweep,
    )


def _prepare(
    command: str, arguments: Sequence[str], run_job: RunJob, complete: Complete, show_dry: ShowDry
) -> Prepared:
    overrides = command_line.parse(arguments)
    kept = resumed = _resumed(command, overrides, arguments)
    if sweep := kept is not None and kept.name == folder.sweep_file(command):
        own = [str(o.input_line) for o in overrides if o.key_or_group != "resume"]
        arguments, resumed = [*folder.load_sweep(kept), *own], None
        overrides = command_line.parse(arguments)
    roots = discovery.roots_of(_paths(resumed) if resumed else command_line.paths_of(overrides))
    broken: dict[str, UsageError] = {}
    kernels = discovery.find_kernels(roots, broken)
    discovery.check_roots(roots, {*kernels, *broken})
    discovery.check_broken(broken, _kernel_words(resumed, overrides), kernels)
    names.check(command, arguments, overrides, kernels)
    if command_line.flags(arguments).help:
        keys.show(command, kernels, overrides)
        sys.exit(0)
    schema.register(command, kernels)
    any_kernel = all(o.key_or_group != "kernel" for o in overrides)

    def built(chosen: Mapping[str, Any]) -> Request:
        narrowed = cases.with_the_case(kernels, chosen) if any_kernel else chosen
        return request.build(command, roots, complete(narrowed, kernels), kernels)

    requests = Requests(built)
    if not resumed and not command_line.only_shows(arguments):
        for chosen in jobs.compose_jobs(command, arguments, overrides):
            check_files(chosen, overrides)
            values.settings(chosen)
            requests.add(chosen)  # a wrong name in the last job of a sweep must not cost the first ones
            if chosen.get("baseline") is not None:
                runs.find([chosen["baseline"]])
    if dry := [asked for asked in requests.known.values() if asked.chosen["dry_run"]]:
        show_dry(kernels, roots, dry)
        sys.exit(0)

    def job(composed: DictConfig, run_folder: Path) -> int:
        begun = resumed or run_folder / f"{command}.yaml"
        if resumed or (sweep and begun.is_file()):
            return run_job(requests.of(_resume(begun, composed)), run_folder, kernels, True)
        chosen = jobs.as_plain(composed)
        return run_job(requests.of(chosen | {"retry": None} if sweep else chosen), run_folder, kernels, False)

    return Prepared(arguments, kept, job, arguments)


@compositions.kept()
def start(
    command: str, arguments: Sequence[str], prepare: Callable[[], Prepared], code_of: Callable[[Path], int],
    show_sweep: Callable[[Sequence[Path]], None],
) -> int:  # fmt: skip
    """Lets Hydra start the jobs of a command and returns the largest exit code.

    `prepare` checks everything; where there is only something to show it exits, and whatever it raises leaves nothing behind.
    `show_sweep` shows the jobs of a multirun together, by their folders. `code_of` reads the exit code of a job off its folder: a
    launcher may run the job in another process, or on another machine.
    """
    moment = folder.moment()
    OmegaConf.register_new_resolver("run_dir", lambda _: str(moment), replace=True)
    sys.argv = [f"fusebench {command}", *arguments]
    try:
        this = _begin(command, prepare())
    except SystemExit as end:  # --version, --help, dry_run=true
        return int(end.code or 0)
    except UsageError as error:
        return fail(error)
    except BrokenPipeError:
        raise
    except OSError as error:  # a path that is too long, a folder that may not be read
        return fail(UsageError(str(error)))
    codes: list[int] = []
    try:
        if (code := _through_hydra(command, this, codes)) is not None:
            return code
    finally:
        if this.new:
            folder.remove_empty(this.new)
    if not this.shows and 2 not in codes:  # what cannot be read was said
        found = set(this.folder.glob(this.pattern)) - this.others
        folders = sorted({file.parent for file in found}, key=runs.order)
        codes += [code_of(folder) for folder in folders]
        if len(folders) > 1 and not this.quiet:
            show_sweep(folders)
        if this.multirun and INTERRUPTED in codes:
            kept = f"{len(folders)} of {counted(this.jobs, 'job')} with records"
            more = "" if command in folder.WHOLE else _to_go_on(this.folder.resolve(), command)
            print(f"interrupted: {kept}{more}", file=sys.stderr)
    return max(codes, default=0)


@dataclass(frozen=True)
class _Begun:
    """What Hydra is about to run, or only to show: `folder` is the run's or the sweep's, `new` where it was made for it, `others` are the
    records that lay there before, `jobs` says how many there are."""

    job: Job
    resumed: Path | None
    multirun: bool
    shows: bool
    quiet: bool
    folder: Path
    new: Path | None
    jobs: int
    others: frozenset[Path]

    @property
    def pattern(self) -> str:
        """Of the records below the folder."""
        return f"**/{FILE}" if self.multirun else FILE


def _begin(command: str, prepared: Prepared) -> _Begun:
    """Hands Hydra its arguments and the folder, in which what starts a sweep again is kept. Raises UsageError."""
    arguments, resumed = prepared.arguments, prepared.resumed
    sys.argv[1:] = command_line.keys_first(arguments)
    flags, shows = command_line.flags(arguments), command_line.only_shows(arguments)
    if flags.shell_completion:
        sys.argv[0] = "fusebench"  # what the shell completes
    overrides = command_line.parse(arguments)
    named = command_line.last("hydra.sweep.dir" if flags.multirun else "hydra.run.dir", overrides)
    named = named or command_line.last("out_dir", overrides)
    if named is not None and any(o.key_or_group == "out_dir" and o.is_sweep_override() for o in overrides):
        raise UsageError("out_dir has several values: a sweep lies in one folder, in which each job has its own")
    elsewhere = named or any(o.key_or_group in ("hydra.run.dir", "hydra.sweep.dir") for o in overrides)
    new = None if resumed or elsewhere or shows else folder.new()
    place = resumed.parent if resumed else Path(str(named)) if named else new or folder.moment()
    OmegaConf.register_new_resolver("run_dir", lambda _: str(place), replace=True)
    if flags.multirun and not resumed and not shows and "$" not in str(place):
        folder.keep_sweep(prepared.words, place, command)
    quiet = bool(command_line.last("quiet", overrides))
    count = 1 if shows else len(jobs.job_lines(arguments, overrides))
    this = _Begun(prepared.job, resumed, flags.multirun, shows, quiet, place, new, count, frozenset())
    # of earlier runs in a folder that was named
    return this if resumed else replace(this, others=frozenset(place.glob(this.pattern)))


def _through_hydra(command: str, this: _Begun, codes: list[int]) -> int | None:
    """Has Hydra run the jobs, whose exit codes are added, or show what it was asked for. Returns the exit code where that is not for the
    jobs to say."""
    stopped: list[BaseException] = []

    def task(composed: DictConfig) -> None:
        try:
            own = HydraConfig.get().runtime.output_dir
            codes.append(this.job(composed, this.folder if this.resumed and not this.multirun else Path(own)))
        except UsageError as error:
            codes.append(fail(error))
        except BaseException as error:  # for the handlers below: Hydra would print it in its own way, at length
            stopped.append(error)
            sys.exit(1)
        if codes[-1] == INTERRUPTED:
            sys.exit(INTERRUPTED)  # the other jobs of a multirun as well

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises what it would print
    try:
        hydra.main(version_base="1.3", config_path=str(schema.CONF), config_name=command)(task)()
    except SystemExit as end:
        if stopped and isinstance(stopped[0], StorageError):
            print(f"fusebench: the run ends here: {stopped[0]}", file=sys.stderr)
            return 1
        if stopped and not (this.multirun and isinstance(stopped[0], KeyboardInterrupt)):
            raise stopped[0] from None
        if not stopped and end.code != INTERRUPTED:
            return 2 if end.code else 0
        codes.append(INTERRUPTED)
    except KeyboardInterrupt:  # between two jobs
        if not this.multirun:
            raise
        codes.append(INTERRUPTED)
    except BrokenPipeError:  # what --help and --cfg print; cli.main has seen to it
        raise
    except OSError as error:  # Hydra makes the folder that was named
        return fail(folder.unwritable(Path(error.filename or this.folder), error))
    # from Hydra's own part, which our keys, checked above, do not reach: a `hydra.…` key or a flag
    except Exception as error:
        return fail(UsageError(command_line.one_line(error)))
    return None


def check_files(composed: Mapping[str, Any], overrides: Sequence[Any]) -> None:
    """Raises UsageError where a preset sets what is for the command line alone."""
    for key in ("path", "resume", "out_dir"):
        if composed.get(key) is not None and command_line.last(key, overrides) is None:
            raise UsageError(f"a file sets {key}={composed[key]}: that is for the command line alone")


def _run(asked: Request, run_folder: Path, kernels: Mapping[str, Kernel], resumed: bool) -> int:
    """One job, in its folder. Raises UsageError before anything is measured, and StorageError when the disk takes no more."""
    begin = time.perf_counter()
    with in_folder(asked, run_folder, kernels, resumed) as this:
        finished = unchanged(
            this, [r for r in store.latest(run_folder, Record) if r.status not in asked.retry], lambda record: record
        )
        ended = _measure(this, asked, finished)
    order = {cell.id: number for number, cell in enumerate(asked.cells)}
    finished.sort(key=lambda r: order.get(r.id, len(order)))  # what ran again stands in its case's table
    with while_it_is_read():  # the exit code is that of the records, read or not
        if not asked.chosen.get("quiet"):
            if asked.chosen.get("story") is not None and asked.command == "bench":
                story_table.show(story.read(kernels, asked.chosen), finished, kernels)
            else:
                report.show(finished, timed=asked.command == "bench", published=bool(asked.chosen["published"]))
            if asked.chosen.get("baseline") is not None and finished:
                show.show_beside(run_folder, asked.chosen["baseline"])
        report.footer(finished, this.clock, time.perf_counter() - begin, run_folder)
    return interrupted(ended) if ended else _code_of(run_folder)


@contextlib.contextmanager
def in_folder(asked: Request, run_folder: Path, kernels: Kernels, resumed: bool) -> Iterator[Run]:
    """The run of a job, whose folder no other process writes to within it, with its configuration kept there unless the job is refused.
    Raises UsageError."""
    check_retry(asked, resumed)
    settings = values.settings(asked.chosen)
    with folder.held(run_folder):
        if not resumed:
            # "auto" may be another device where the run goes on: times of two never stand in one table
            folder.keep({**asked.chosen, "device": settings.device}, run_folder, asked.command)
        try:
            yield Run(kernels, [Path(root) for root in asked.roots], run_folder, settings)
        except UsageError:
            if not resumed:
                folder.forget(run_folder, asked.command)
            raise


def goes_on(ended: BaseException, kept: str, run_folder: Path, command: str) -> str:
    """What an interrupted run says, with what is `kept` of it. Raises StorageError where a full disk ended it: later jobs of a multirun
    would meet the same one."""
    kept += " on record" + _to_go_on(folder.whole(run_folder, command), command)
    if isinstance(ended, StorageError):
        raise StorageError(f"{ended}; {kept}") from ended
    return f"interrupted: {kept}"


def _to_go_on(run_folder: Path, command: str) -> str:
    return f"; to go on: fusebench {command} {shlex.quote(f'resume={run_folder}')}"


def interrupted(said: str) -> int:
    """Says what `goes_on` gave, and returns the exit code. In a multirun one line says so of all jobs (`start`)."""
    if not (HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN):
        print(said, file=sys.stderr)
    return INTERRUPTED


def check_retry(asked: Request, resumed: bool) -> None:
    """Raises UsageError for `retry=` in a run of its own."""
    if asked.retry and not resumed:
        value = asked.chosen["retry"]
        raise UsageError(f"retry={value}: it goes with resume=, which names the run whose cells are to run again")


def unchanged(this: Run, found: Sequence[T], record_of: Callable[[T], Record]) -> list[T]:
    """What was found of cells whose files are as they were then. Says which have changed: no table shows two versions of one."""
    kept: list[T] = []
    changed: dict[tuple[str, Path], str] = {}
    for one in found:
        record = record_of(one)
        kernel = this.kernels.get(record.kernel)
        implementation = kernel and kernel.implementations.get(record.cell.implementation)
        name = ""
        if record.source and implementation:
            of = (record.source.sha256, implementation.file)
            if of not in changed:
                changed[of] = provenance.changed(record.source, implementation.file, this.roots)
            name = changed[of]
        kept += [] if name else [one]
    if count := len(found) - len(kept):
        names = list(dict.fromkeys(filter(None, changed.values())))
        files = f"{names[0]} and {len(names) - 1} more have" if len(names) > 1 else f"{names[0]} has"
        cells = f"{count} cells on record ran: they run again" if count > 1 else "one cell on record ran: it runs again"
        print(f"{files} changed since {cells}", file=sys.stderr)
    return kept


def _code_of(run_folder: Path) -> int:
    """0 if the last record of every cell in the folder is ok or skipped, else 1."""
    return 0 if all(r.status in PASSED for r in store.latest(run_folder, Record)) else 1


def _measure(this: Run, asked: Request, finished: list[Record]) -> str:
    """Adds the records of the cells that have none yet; says how it goes on where it was interrupted, else "". Raises StorageError."""
    done, cells = {r.id for r in finished}, asked.cells
    with report.progress(asked.chosen.get("quiet", False)) as bar:
        task = bar.add_task("starting", total=len(cells), completed=len(done))
        this.on_phase = lambda c, phase: bar.update(task, description=f"{c.label} {c.case.id}: {phase}")
        try:
            for record in run(this, [c for c in cells if c.id not in done]):
                finished.append(record)
                bar.advance(task)
                if asked.chosen.get("verbose"):
                    print(report.ended(record, len(finished), len(cells)), file=sys.stderr, flush=True)
        except (KeyboardInterrupt, StorageError) as error:
            bar.stop()
            return goes_on(
                error,
                f"{len(store.latest(this.folder, Record))} of {counted(len(cells), 'cell')}",
                this.folder,
                asked.command,
            )
    return ""


def _resumed(command: str, overrides: Sequence[Any], arguments: Sequence[str]) -> Path | None:
    """The configuration of the run to go on with, or None. Raises UsageError if it is none, or if other keys are set beside it."""
    value = command_line.last("resume", overrides)
    if value is None:
        return None
    if command in folder.WHOLE:
        raise UsageError(f"resume={value}: {command} runs as a whole, and no run of it goes on: start it anew")
    found = folder.find(command, str(value))
    if others := command_line.conflicts_with_resume(overrides, arguments, OF_THIS_TIME):
        raise UsageError(f"resume={value} goes on with that run as it was configured: leave out {' '.join(others)}")
    return found


def _paths(file: Path) -> list[str]:
    return [str(p) for p in cases.as_list(folder.load(file).get("path")) if p is not None]


def _kernel_words(resumed: Path | None, overrides: Sequence[Any]) -> list[Any]:
    """What chooses the kernels of all jobs, as far as a command line tells."""
    given = [o for o in overrides if o.key_or_group == "kernel"][-1:]
    if given and given[0].is_sweep_override():
        each = (command_line.parse([f"kernel={text}"])[0].value() for text in command_line.swept(given[0]))
        return [word for value in each for word in cases.as_list(value)]
    value = folder.load(resumed).get("kernel") if resumed else command_line.last("kernel", overrides)
    return ["all"] if value is None else cases.as_list(value)


def _resume(file: Path, composed: DictConfig) -> dict[str, Any]:
    """The configuration of the run to go on with; a key that it lacks, because it is newer, has its default. OF_THIS_TIME
    are keys that are not the run's."""
    try:
        kept = jobs.as_plain(OmegaConf.merge(composed, folder.load(file)))  # type: ignore[arg-type]
        return kept | {key: value for key, value in jobs.as_plain(composed).items() if key in OF_THIS_TIME}
    except OmegaConfBaseException as error:
        raise UsageError(f"{file} is no configuration of this command: {command_line.one_line(error)}") from error
