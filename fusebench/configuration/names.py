"""Which keys and presets a command has: a wrong one is answered with the nearest that exist, before anything is composed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from fusebench.cases import as_list
from fusebench.configuration import schema
from fusebench.configuration.command_line import flags, last, swept
from fusebench.discovery import Kernel
from fusebench.errors import UsageError, unknown


def check(command: str, arguments: Sequence[str], overrides: Sequence[Override], kernels: Mapping[str, Kernel]) -> None:
    """Raises UsageError for a key that the command does not have, naming the nearest that exist."""
    if flags(arguments).shell_completion:
        return  # its words are Hydra's own: install=bash
    folders = [schema.CONF, *(Path(d) for d in [flags(arguments).config_dir] if d is not None)]
    plain = list(schema.SCHEMAS[command].__dataclass_fields__)
    shapes, options = schema.dimension_names(kernels), schema.option_names(kernels)
    keys = [*plain, "worker", "worker.inline", *(f"worker.python.{n}" for n in schema.python_names(kernels))]
    keys += ["experiment", *(f"shape.{d}" for d in shapes), *(f"option.{o}" for o in options)]
    tunables = schema.tunable_names(kernels)
    keys += [f"config.{t}" for t in tunables]
    for override in overrides:
        key = override.key_or_group
        if override.is_delete():
            raise UsageError(f"{override.input_line}: no key can be taken away; {key}=null or another value sets it")
        if key.split(".")[0].split("/")[0] == "hydra":
            continue  # Hydra's own
        if override.package is not None:
            raise UsageError(f"{override.input_line}: no key has an @; expected {key}=VALUE")
        if key not in keys:
            named = _named(kernels, overrides)
            of = f" of {', '.join(named)}" if named else ""
            for prefix, what, names in (
                ("shape.", "dimension", schema.dimension_names),
                ("option.", "option", schema.option_names),
                ("config.", "tunable", schema.tunable_names),
            ):
                if key.startswith(prefix):
                    raise unknown(f"{what}{of}", key.removeprefix(prefix), names(named or kernels))
            shown = [*plain, "worker", "worker.python.NAME", "experiment", "shape.DIM", "option.NAME", "config.NAME"]
            raise unknown("key", key, shown)
        for group in ("experiment", "worker"):
            if key == group and override.value() is not None:
                for value in _values(override):
                    _check_group(group, str(value), folders)
    check_sizes(overrides)


def _named(kernels: Mapping[str, Kernel], overrides: Sequence[Override]) -> dict[str, Kernel]:
    """The kernels that are asked for by name."""
    words = map(str, as_list(last("kernel", overrides)))
    return {word: kernels[word] for word in words if word in kernels}


def check_sizes(overrides: Sequence[Override]) -> None:
    """Raises UsageError where the sizes are asked for twice, by name and by a file."""
    shapes, case = last("shapes", overrides), last("case", overrides)
    if shapes is not None and case is not None:
        raise UsageError(f"shapes={shapes} has the sizes of all cases: leave out case=, or shapes=")


def _check_group(group: str, value: str, folders: Sequence[Path]) -> None:
    names = sorted(f.stem for folder in folders for f in (folder / group).glob("*.yaml"))
    if value not in names:
        raise unknown(group, value, names)


def _values(override: Override) -> list[Any]:
    return swept(override) if override.is_sweep_override() else [override.value()]
