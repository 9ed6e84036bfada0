"""The structured configs of the commands, and the checks that answer a wrong override with one line and exit code 2."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fusebench import discovery, machine
from fusebench.discovery import Kernel
from fusebench.errors import UsageError, unknown
from fusebench.timing.plan import Plan

MOST_JOBS = 10_000  # of one multirun: each is composed beforehand
CONF = next(p for p in (Path(__file__).parent / "conf", discovery.HOME.parent / "conf") if p.is_dir())


@dataclass
class BaseConfig:
    """What `bench` and `parity` share; conf/*.yaml gives the values, these the types. `store` adds `shape`, `option` and
    `worker`, whose keys discovery knows."""

    kernel: Any = "all"
    implementation: Any = "all"
    case: Any = None
    dtype: Any = "float32"
    precision: Any = "ieee"
    batch: Any = None
    shapes: str | None = None
    device: str = "auto"
    path: Any = None
    seed: Any = 0
    inputs: Any = "plain"
    timeout_s: float = 300.0
    threads: int | None = None
    resume: str | None = None


@dataclass
class BenchConfig(BaseConfig):
    """How a cell is sampled: the fields of timing/plan.py's Plan."""

    time_s: float = 0.5
    target: float = 0.01
    regime: str = "auto"
    cache: str = "auto"


@dataclass
class CompareConfig(BenchConfig):
    """`time_s` is the sampling budget of one turn of one side, in seconds; comparison/statistics.py says what the others are."""

    pairs: Any = 10
    rounds: Any = 16
    confidence: Any = 0.99
    fail_slower: Any = None
    resamples: Any = 0


@dataclass
class ParityConfig(BaseConfig):
    """Nothing is timed."""


SCHEMAS: dict[str, type[BaseConfig]] = {"bench": BenchConfig, "compare": CompareConfig, "parity": ParityConfig}


def last(key: str, overrides: Sequence[Override]) -> Any:
    """The value of a key; where it is set twice Hydra takes the last one. None where it is not set."""
    return next((o.value() for o in reversed(overrides) if o.key_or_group == key), None)


def paths_of(overrides: Sequence[Override]) -> list[str]:
    """The folders that `path=` names."""
    value = last("path", overrides)
    return [] if value is None else [str(p) for p in (value if isinstance(value, list) else [value])]


def beside_resume(overrides: Sequence[Override], arguments: Sequence[str], allowed: Sequence[str] = ()) -> list[str]:
    """What stands beside `resume=` that a run which goes on as it was configured does not take: all but the `allowed` keys."""
    keys = ("resume", "hydra", *allowed)
    others = [str(o.input_line) for o in overrides if o.key_or_group.split(".")[0] not in keys]
    return others + ["--multirun"] * flags(arguments).multirun


def store(command: str, kernels: Mapping[str, Kernel]) -> None:
    """Registers the schema of a command. The dimensions and options known from discovery are its keys, so they need no `+`."""
    shape = make_dataclass("Shape", [(d, Any, None) for d in _dimensions(kernels)])
    option = make_dataclass("Option", [(o, Any, None) for o in _options(kernels)])
    python = make_dataclass("Python", [(n, str | None, None) for n in _python_keys(kernels)])
    worker = make_dataclass("Worker", [("inline", bool, False), ("python", python, field(default_factory=python))])
    schema = make_dataclass(
        "Schema",
        [("shape", shape, field(default_factory=shape)), ("option", option, field(default_factory=option)),
         ("worker", worker, field(default_factory=worker))],
        bases=(SCHEMAS[command],),
    )  # fmt: skip
    ConfigStore.instance().store(name=f"{command}_schema", node=schema)


def parse(arguments: Sequence[str]) -> list[Override]:
    """The overrides among the arguments of a command, flags left out. Raises UsageError for one that does not parse, and
    SystemExit for a flag that does not."""
    given = flags(arguments)
    for name in ("config_name", "config_path", "experimental_rerun"):
        if getattr(given, name) is not None:
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag}: the configuration is this command's own; your presets go into --config-dir")
    if given.config_dir is not None and not Path(given.config_dir).is_dir():
        raise UsageError(f"--config-dir {given.config_dir}: no such folder; expected one with experiment/NAME.yaml")
    words = given.overrides
    if stray := [w for w in words if "=" not in w and not w.startswith("~")]:
        raise UsageError(f"unexpected {stray[0]!r}: expected KEY=VALUE, such as kernel=lola")
    try:
        return OverridesParser.create().parse_overrides(words)
    except HydraException as error:
        raise UsageError(one_line(error)) from error


def only_shows(arguments: Sequence[str]) -> bool:
    """Whether Hydra will print something instead of running."""
    given = flags(arguments)
    return bool(given.help or given.hydra_help or given.cfg or given.info or given.shell_completion)


def flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments as Hydra is going to read them."""
    return get_args_parser().parse_args(list(arguments))


def compose_jobs(command: str, arguments: Sequence[str], overrides: Sequence[Override]) -> Iterator[dict[str, Any]]:
    """The configuration of each job that Hydra is going to start. Raises UsageError where one does not compose."""
    hint = _ambiguous(overrides, arguments)
    for job in job_lines(arguments, overrides):
        yield compose_job(command, job, arguments, hint)


def job_lines(arguments: Sequence[str], overrides: Sequence[Override]) -> list[list[str]]:
    """The overrides of each job that Hydra is going to start, as they are written. Raises UsageError for too many jobs."""
    own = [o for o in overrides if not o.key_or_group.startswith("hydra")]
    lines = [str(o.input_line) for o in own]
    given = flags(arguments)
    if given.multirun:
        choices = [
            [f"{o.key_or_group}={v}" for v in _swept(o)] if o.is_sweep_override() else [line]
            for o, line in zip(own, lines, strict=True)
        ]
        if (count := math.prod(map(len, choices))) > MOST_JOBS:
            raise UsageError(f"--multirun would start {count} jobs or more: expected {MOST_JOBS} at most")
        return [list(job) for job in itertools.product(*choices)]
    return [lines]


def compose_job(command: str, lines: Sequence[str], arguments: Sequence[str] = (), hint: str = "") -> dict[str, Any]:
    """The configuration that these overrides give, with the flags among the arguments. Raises UsageError, with the hint if there
    is one, where they do not compose."""
    given = flags(arguments)
    where = [] if given.config_dir is None else [_search_path(given.config_dir)]
    within = GlobalHydra.instance().is_initialized()  # in a job, Hydra is at work already
    with contextlib.nullcontext() if within else initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            return as_plain(compose(command, overrides=[*lines, *where]))
        except Exception as error:  # Hydra's, OmegaConf's or a YAML reader's: of what the user wrote
            raise UsageError(hint or one_line(error)) from error


def _search_path(folder: str) -> str:
    """What `--config-dir` means, as an override."""
    quoted = str(Path(folder).resolve()).replace("\\", "\\\\").replace("'", "\\'")
    return f"hydra.searchpath=['file://{quoted}']"


def _ambiguous(overrides: Sequence[Override], arguments: Sequence[str]) -> str:
    """What to write instead of a bare `kernel=a,b`, or ""."""
    multirun = flags(arguments).multirun
    for o in overrides:
        if o.is_sweep_override() and not multirun:
            key, values = str(o.input_line).split("=", 1)
            return f"{o.input_line}: write {key}=[{values}] for a list in one run, or add --multirun for a run each"
    return ""


def one_line(error: Exception) -> str:
    """The lines of a Hydra error that say what is wrong, without the hints for its own developers."""
    text = f"{error}\n{error.__cause__ or ''}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(
        line
        for line in lines
        if not line.startswith(("full_key", "object_type", "reference_type", "Set the environment"))
    )


def check(command: str, arguments: Sequence[str], overrides: Sequence[Override], kernels: Mapping[str, Kernel]) -> None:
    """Raises UsageError for a key that the command does not have, naming the nearest that exist."""
    folders = [CONF, *(Path(d) for d in [flags(arguments).config_dir] if d is not None)]
    plain = list(SCHEMAS[command].__dataclass_fields__)
    shapes, options = _dimensions(kernels), _options(kernels)
    keys = [*plain, "worker", "worker.inline", *(f"worker.python.{n}" for n in _python_keys(kernels))]
    keys += ["experiment", *(f"shape.{d}" for d in shapes), *(f"option.{o}" for o in options)]
    for override in overrides:
        key = override.key_or_group
        if override.is_delete():
            raise UsageError(f"{override.input_line}: no key can be taken away; {key}=null or another value sets it")
        if key.split(".")[0].split("/")[0] == "hydra":
            continue  # Hydra's own
        if key not in keys:
            for prefix, what, known in (("shape.", "dimension", shapes), ("option.", "option", options)):
                if key.startswith(prefix):
                    raise unknown(what, key.removeprefix(prefix), known)
            shown = [*plain, "worker", "worker.python.NAME", "experiment", "shape.DIM", "option.NAME"]
            raise unknown("key", key, shown)
        for group in ("experiment", "worker"):
            if key == group and override.value() is not None:
                for value in _values(override):
                    _check_group(group, str(value), folders)


def _check_group(group: str, value: str, folders: Sequence[Path]) -> None:
    names = sorted(f.stem for folder in folders for f in (folder / group).glob("*.yaml"))
    if value not in names:
        raise unknown(group, value, names)


def _values(override: Override) -> list[Any]:
    return _swept(override) if override.is_sweep_override() else [override.value()]


def _swept(override: Override) -> list[str]:
    """The values of a sweep, one more than a multirun may have at most. Raises UsageError for one that has no list of them."""
    try:
        return list(itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1))
    except HydraException as error:
        raise UsageError(f"{override.input_line}: {one_line(error)}") from error


def _dimensions(kernels: Mapping[str, Kernel]) -> list[str]:
    return sorted({d for k in kernels.values() for d in k.dimensions})


def _options(kernels: Mapping[str, Kernel]) -> list[str]:
    return sorted({o for k in kernels.values() for o in k.options})


def _python_keys(kernels: Mapping[str, Kernel]) -> list[str]:
    return sorted({*discovery.BACKENDS, *(i for k in kernels.values() for i in k.implementations)})


def resolve_device(value: str) -> str:
    """`auto` becomes "cuda" where the driver sees a GPU, else "cpu". Raises UsageError for another name or a missing GPU."""
    if value not in ("auto", "cpu", "cuda"):
        raise unknown("device", value, ("auto", "cpu", "cuda"))
    if value == "cuda" and machine.gpu() is None:
        raise UsageError("device=cuda: no NVIDIA driver with a GPU answers here; device=cpu and device=auto work")
    return ("cuda" if machine.gpu() else "cpu") if value == "auto" else value


def check_threads(value: int | str | None) -> int | None:
    """The number of threads, or None for one for each core. Raises UsageError for more than there are cores, or for none."""
    cores = len(os.sched_getaffinity(0))
    if value in (None, "null"):
        return None
    if not str(value).isdecimal() or not 1 <= int(value) <= cores:
        raise UsageError(f"threads is {value}: expected a number from 1 to {cores}, the cores that are ours here")
    return int(value)


def plan(chosen: Mapping[str, Any], device: str) -> Plan:
    """How the cells of a configuration are timed. Raises UsageError for a name or a number that cannot be, or not there."""
    if "time_s" not in chosen:
        return Plan(time_s=0)
    return Plan(chosen["time_s"], chosen["target"], chosen["regime"], chosen["cache"]).on(device)


def as_plain(config: DictConfig) -> dict[str, Any]:
    """The configuration as plain Python. Raises UsageError where an interpolation or a missing value does not resolve."""
    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise UsageError(one_line(error)) from error


def fail(error: UsageError) -> int:
    """Prints the one line of bad input and returns its exit code."""
    print(f"fusebench: {' '.join(str(error).splitlines())}", file=sys.stderr)
    return 2
