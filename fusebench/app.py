"""The Hydra application that `bench` and `parity` are: overrides checked, configuration composed, cells run, tables shown."""

from __future__ import annotations

import fcntl
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from fusebench import cases, config, discovery, records, report
from fusebench.contract import Cell
from fusebench.discovery import Kernel
from fusebench.errors import UsageError
from fusebench.run import Run, run
from fusebench.settings import Settings

RESULTS = Path("results")
INTERRUPTED = 130  # as shells have it for Ctrl-C


def run_app(command: str, arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit code: 0 if every cell is ok or skipped, 1 if not, 2 for bad input; with -m,
    of all its jobs together."""
    codes: list[int] = []
    try:
        overrides = config.parse(arguments)
        resumed = _resumed(command, overrides)
        roots = discovery.roots_of(_paths(resumed) if resumed else config.paths_of(overrides))
        kernels = discovery.find_kernels(roots)
        config.check(command, overrides, kernels)
        config.store(command, kernels)
        OmegaConf.register_new_resolver("run_dir", partial(_run_dir, command), replace=True, use_cache=True)
        if not resumed and not config.only_shows(arguments):
            for composed in config.compose_jobs(command, arguments, overrides):
                _check(composed, kernels)  # a wrong name in the last job of a sweep must not cost the first ones
            RESULTS.mkdir(exist_ok=True)
    except UsageError as error:
        return config.fail(error)
    except OSError as error:
        return config.fail(UsageError(f"results cannot be written here: {error}"))

    def task(composed: DictConfig) -> None:
        try:
            folder = Path(HydraConfig.get().runtime.output_dir)
            codes.append(_run(command, composed, folder, roots, kernels))
        except UsageError as error:
            codes.append(config.fail(error))
        except OSError as error:  # a full disk: what was measured is kept, and the run can go on later
            print(f"fusebench: the run ends here: {error}; go on with resume={folder}", file=sys.stderr)
            codes.append(1)
        if codes[-1] == INTERRUPTED:
            sys.exit(INTERRUPTED)  # the other jobs of a multirun as well

    sys.argv = [f"fusebench {command}", *arguments]
    try:
        hydra.main(version_base="1.3", config_path=str(config.CONF), config_name=command)(task)()
    except SystemExit as end:  # Hydra's own errors end with 1, which here means a cell that is not well
        return end.code if end.code == INTERRUPTED else 2 if end.code else 0
    return max(codes, default=0)


def _run(command: str, composed: DictConfig, folder: Path, roots: Sequence[Path], kernels: Mapping[str, Kernel]) -> int:
    begin = time.perf_counter()
    chosen = config.as_plain(composed)
    if chosen["resume"] is not None:
        chosen = config.as_plain(OmegaConf.load(folder / f"{command}.yaml"))  # type: ignore[arg-type]
    device, cells = _check(chosen, kernels)
    folder.mkdir(parents=True, exist_ok=True)
    if composed.resume is None:
        kept = chosen | {key: _absolute(chosen[key]) for key in ("path", "shapes")}
        (folder / f"{command}.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(kept)))
    lock = (folder / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"another process is at work in {folder}: wait for it, or start a run of its own") from error
    finished = records.read(folder)
    done = {r["cell"] for r in finished}
    settings = Settings(
        device, config.plan(chosen, device), chosen["timeout_s"], chosen["threads"], chosen["worker"]["inline"],
        chosen["worker"]["python"],
    )  # fmt: skip
    with report.progress() as bar:
        task = bar.add_task("starting", total=len(cells), completed=len(done))
        this = Run(
            kernels,
            roots,
            folder,
            settings,
            on_phase=lambda c, phase: bar.update(task, description=f"{c.label} {c.case.id}: {phase}"),
        )
        try:
            for record in run(this, [c for c in cells if c.id not in done]):
                finished.append(record)
                bar.advance(task)
        except KeyboardInterrupt:
            bar.stop()
            count = f"{len(records.read(folder))} of {len(cells)}"
            print(f"interrupted: {count} cells are kept; go on with resume={folder}", file=sys.stderr)
            return INTERRUPTED
    report.show(finished, timed=command == "bench")
    report.footer(finished, this.clock, time.perf_counter() - begin, folder)
    return 0 if all(r["status"] in ("ok", "skipped") for r in finished) else 1


def _check(chosen: Mapping[str, Any], kernels: Mapping[str, Kernel]) -> tuple[str, list[Cell]]:
    """The device and the cells of a configuration. Raises UsageError for whatever in it cannot be done."""
    for key in ("time_s", "timeout_s"):
        if not 0 < chosen.get(key, 1) < math.inf:
            raise UsageError(f"{key} is {chosen[key]!r}: expected a number of seconds above 0")
    cores = len(os.sched_getaffinity(0))
    if chosen["threads"] is not None and not 1 <= chosen["threads"] <= cores:
        raise UsageError(
            f"threads is {chosen['threads']}: expected a number from 1 to {cores}, the cores that are ours here"
        )
    device = config.resolve_device(chosen["device"])
    config.plan(chosen, device)
    return device, cases.select_cells(kernels, chosen)


def _resumed(command: str, overrides: Sequence[Any]) -> Path | None:
    """The configuration of the run to go on with, or None. Raises UsageError if it is none, or if other keys are set beside it."""
    value = next((o.value() for o in overrides if o.key_or_group == "resume"), None)
    if value is None:
        return None
    if others := [
        o.input_line for o in overrides if o.key_or_group != "resume" and not o.key_or_group.startswith("hydra")
    ]:
        raise UsageError(f"resume={value} goes on with that run as it was configured: leave out {' '.join(others)}")
    file = Path(_run_dir(command, str(value))) / f"{command}.yaml"
    if not file.is_file():
        runs = ", ".join(p.parent.name for p in sorted(RESULTS.glob(f"*/{command}.yaml"))[-5:])
        raise UsageError(f"resume={value}: no {command} run there; the latest in {RESULTS}/ are: {runs or 'none'}")
    return file


def _paths(file: Path) -> list[str]:
    return [str(p) for p in cases.as_list(OmegaConf.to_container(OmegaConf.load(file))["path"]) if p is not None]  # type: ignore[call-overload, index]


def _absolute(value: Any) -> Any:
    """Paths as a resumed run must find them, whichever folder it is started from."""
    if value is None:
        return None
    return [str(Path(p).resolve()) for p in value] if isinstance(value, list) else str(Path(value).resolve())


def _run_dir(command: str, resume: str | None) -> str:
    """Where a run's records go: a folder of its own, named by the moment, or the one that is resumed."""
    if resume in (None, "null", "None"):
        return str(RESULTS / datetime.now().strftime("%Y-%m-%d_%H-%M-%S.%f")[:-3])
    if resume == "latest":
        runs = (file.parent for file in RESULTS.glob(f"**/{command}.yaml"))
        return str(max(runs, key=lambda folder: folder.stat().st_mtime, default=RESULTS / "latest"))
    return str(resume) if Path(str(resume)).is_dir() else str(RESULTS / str(resume))
