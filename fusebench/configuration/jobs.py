"""The jobs that a command line starts, each with its configuration, composed as Hydra is going to compose it."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fusebench.configuration.command_line import MOST_JOBS, flags, one_line, quoted, swept
from fusebench.configuration.schema import CONF
from fusebench.errors import UsageError


def compose_jobs(command: str, arguments: Sequence[str], overrides: Sequence[Override]) -> Iterator[dict[str, Any]]:
    """The configuration of each job that Hydra is going to start. Raises UsageError where one does not compose.

    Hydra takes a tenth of a second to compose a job. Where all that a sweep varies are values, to which nothing in the configuration
    refers, one job is composed, and the values of the others are set in it.
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
    for text, value in zip(swept(override), override.sweep_iterator(), strict=False):
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
            [f"{o.key_or_group}={v}" for v in swept(o)] if o.is_sweep_override() else [line]
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
            return compose(command, overrides=[*map(quoted, lines), *where])
        except Exception as error:  # Hydra's, OmegaConf's or a YAML reader's: of what the user wrote
            raise UsageError(hint or _preset_without_package(one_line(error), given.config_dir)) from error


def _preset_without_package(said: str, folder: str | None) -> str:
    """What Hydra said, or, where a preset's keys are taken for those of a group of its name, what the preset lacks."""
    named = re.match(r"In 'experiment/(.+?)'.*Key 'experiment' not in", said)
    if named is None:
        return said
    file = Path(folder or CONF) / "experiment" / f"{named[1]}.yaml"
    return f"experiment={named[1]}: the first line of {file} must be `# @package _global_`, so that its keys are the command's"


def as_plain(config: DictConfig) -> dict[str, Any]:
    """The configuration as plain Python. Raises UsageError where an interpolation or a missing value does not resolve."""
    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise UsageError(one_line(error)) from error


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
