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
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fusebench import discovery, machine
from fusebench.backends import protocol
from fusebench.discovery import Kernel
from fusebench.errors import UsageError, unknown
from fusebench.timing.plan import Plan

MOST_JOBS = 10_000  # of one multirun: each is composed beforehand
CONF = next(p for p in (Path(__file__).parent / "conf", discovery.HOME.parent / "conf") if p.is_dir())


@dataclass
class BaseConfig:
    """The keys that all commands share, and their types; conf/base.yaml and the command's own file give the values. `store` adds
    `shape`, `option`, `config` and `worker`, whose keys discovery knows."""

    kernel: Any = MISSING
    implementation: Any = MISSING
    case: Any = MISSING
    published: bool = MISSING
    dtype: Any = MISSING
    precision: Any = MISSING
    batch: Any = MISSING
    shapes: str | None = MISSING
    device: str = MISSING
    path: Any = MISSING
    seed: Any = MISSING
    inputs: Any = MISSING
    timeout_s: float = MISSING
    threads: int | None = MISSING
    resume: str | None = MISSING


@dataclass
class TimedConfig(BaseConfig):
    """How a cell is sampled: the fields of timing/plan.py's Plan."""

    time_s: float = MISSING
    target: float = MISSING
    regime: str = MISSING
    cache: str = MISSING


@dataclass
class BenchConfig(TimedConfig):
    """`retry` names statuses whose cells run again in a run that goes on."""

    retry: Any = MISSING


@dataclass
class CompareConfig(TimedConfig):
    """`time_s` is the sampling budget of one turn of one side, in seconds; comparison/statistics.py says what the others are."""

    pairs: Any = MISSING
    rounds: Any = MISSING
    confidence: Any = MISSING
    fail_slower: Any = MISSING
    resamples: Any = MISSING


@dataclass
class ParityConfig(BaseConfig):
    """Nothing is timed."""

    retry: Any = MISSING


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
    tunables = make_dataclass("Tunables", [(t, Any, None) for t in _tunables(kernels)])
    python = make_dataclass("Python", [(n, str | None, None) for n in _python_keys(kernels)])
    worker = make_dataclass("Worker", [("inline", bool, False), ("python", python, field(default_factory=python))])
    schema = make_dataclass(
        "Schema",
        [("shape", shape, field(default_factory=shape)), ("option", option, field(default_factory=option)),
         ("config", tunables, field(default_factory=tunables)),
         ("worker", worker, field(default_factory=worker))],
        bases=(SCHEMAS[command],),
    )  # fmt: skip
    ConfigStore.instance().store(name=f"{command}_schema", node=schema)


def parse(arguments: Sequence[str]) -> list[Override]:
    """The overrides among the arguments of a command, flags left out. Raises UsageError for one that does not parse."""
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
    parser, found = OverridesParser.create(), []
    for word in words:
        try:
            found += parser.parse_overrides([word])
        except HydraException as error:
            raise UsageError(f"{word:.80}: {one_line(error)}") from error
    return found


def only_shows(arguments: Sequence[str]) -> bool:
    """Whether Hydra will print something instead of running."""
    given = flags(arguments)
    return bool(given.help or given.hydra_help or given.cfg or given.info or given.shell_completion)


def flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments as Hydra is going to read them. Raises UsageError for a flag that Hydra does not have, or that stands between
    keys, where Hydra takes none."""
    return _hydra_flags().parse_args(list(arguments))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; flags stand before all keys or behind them")


def _hydra_flags() -> argparse.ArgumentParser:
    """The flags that Hydra 1.3 documents: it has no public parser for them."""
    parser = _Parser(add_help=False, allow_abbrev=True)
    parser.add_argument("overrides", nargs="*")
    for name, short in (
        ("help", "-h"),
        ("resolve", None),
        ("run", "-r"),
        ("multirun", "-m"),
        ("shell-completion", "-sc"),
    ):
        parser.add_argument(*filter(None, (f"--{name}", short)), action="store_true")
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("--version", action="version", version=f"Hydra {version('hydra-core')}")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument(
        "--info",
        "-i",
        nargs="?",
        const="all",
        choices=["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"],
    )
    for name, short in (("package", "-p"), ("config-path", "-cp"), ("config-name", "-cn"), ("config-dir", "-cd")):
        parser.add_argument(f"--{name}", short)
    parser.add_argument("--experimental-rerun")
    return parser


def compose_jobs(command: str, arguments: Sequence[str], overrides: Sequence[Override]) -> Iterator[dict[str, Any]]:
    """The configuration of each job that Hydra is going to start. Raises UsageError where one does not compose.

    Hydra composes a job in 30 ms. Where all that a sweep varies are values, to which nothing in the configuration refers, one
    job is composed, and the values of the others are set in it.
    """
    hint = _ambiguous(overrides, arguments)
    lines = job_lines(arguments, overrides)
    own = [o for o in overrides if not o.key_or_group.startswith("hydra")]
    swept = [place for place, o in enumerate(own) if o.is_sweep_override()]
    whole = composed(command, lines[0], arguments, hint)
    first = as_plain(whole)
    keys = [o.key_or_group for o in own]
    plain = {
        line: value for place in swept if keys.count(keys[place]) == 1 for line, value in _plain_values(own[place])
    }
    refers = "${" in str(OmegaConf.to_container(whole, resolve=False))
    yield first
    known: dict[str, Any] = {}
    for line in lines[1:]:
        varied = [line[place] for place in swept]
        for word in varied:
            if word not in known:
                known[word] = None if refers or word not in plain else _typed(whole, word.split("=")[0], plain[word])
        if all(known[word] is not None for word in varied):
            yield _with_values(first, {word.split("=")[0]: known[word].value for word in varied})
        else:
            yield compose_job(command, line, arguments, hint)


@dataclass(frozen=True)
class _Typed:
    """A value as the schema has it."""

    value: Any


def _plain_values(override: Override) -> Iterator[tuple[str, Any]]:
    """The lines of a swept key that set a plain value, each with it; none of a group, whose choice is a file."""
    key = override.key_or_group
    if (CONF / key).is_dir() or override.package or "/" in key or override.is_add() or override.is_delete():
        return
    for text, value in zip(_swept(override), override.sweep_iterator(), strict=False):
        if isinstance(value, int | float | str) and "$" not in text:
            yield f"{key}={text}", value


def _typed(whole: DictConfig, key: str, value: Any) -> _Typed | None:
    """The value as the schema has it, or None where it does not take it: composed in full, the job says why."""
    try:
        OmegaConf.update(whole, key, value, force_add=False)
        return _Typed(OmegaConf.select(whole, key))
    except OmegaConfBaseException:
        return None


def _with_values(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the values of some keys; it shares the rest."""
    changed = dict(config)
    for key, value in values.items():
        *path, name = key.split(".")
        place = changed
        for part in path:
            place[part] = dict(place[part])
            place = place[part]
        place[name] = value
    return changed


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
    try:
        return as_plain(composed(command, lines, arguments, hint))
    except UsageError as error:
        raise UsageError(hint or str(error)) from error


def composed(command: str, lines: Sequence[str], arguments: Sequence[str] = (), hint: str = "") -> DictConfig:
    """`compose_job` with what refers to other keys unresolved."""
    given = flags(arguments)
    where = [] if given.config_dir is None else [_search_path(given.config_dir)]
    within = GlobalHydra.instance().is_initialized()  # in a job, Hydra is at work already
    with contextlib.nullcontext() if within else initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            return compose(command, overrides=[*lines, *where])
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
    tunables = _tunables(kernels)
    keys += [f"config.{t}" for t in tunables]
    for override in overrides:
        key = override.key_or_group
        if override.is_delete():
            raise UsageError(f"{override.input_line}: no key can be taken away; {key}=null or another value sets it")
        if key.split(".")[0].split("/")[0] == "hydra":
            continue  # Hydra's own
        if key not in keys:
            for prefix, what, known in (
                ("shape.", "dimension", shapes),
                ("option.", "option", options),
                ("config.", "tunable", tunables),
            ):
                if key.startswith(prefix):
                    raise unknown(what, key.removeprefix(prefix), known)
            shown = [*plain, "worker", "worker.python.NAME", "experiment", "shape.DIM", "option.NAME", "config.NAME"]
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
    except OmegaConfBaseException as error:  # on the way to write a range as a value
        raise UsageError(
            f"{override.input_line}: a sweep within a sweep; expected values with commas between, or one range"
        ) from error


def _dimensions(kernels: Mapping[str, Kernel]) -> list[str]:
    return sorted({d for k in kernels.values() for d in k.dimensions})


def _options(kernels: Mapping[str, Kernel]) -> list[str]:
    return sorted({o for k in kernels.values() for o in k.options})


def _tunables(kernels: Mapping[str, Kernel]) -> list[str]:
    implementations = [i for k in kernels.values() for i in k.implementations.values()]
    return sorted({name for i in implementations for own in i.tunables.values() for name in own})


def _python_keys(kernels: Mapping[str, Kernel]) -> list[str]:
    return sorted({*protocol.found(), *(i for k in kernels.values() for i in k.implementations)})


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
