"""The keys of the commands and their types; what discovery knows adds the names of dimensions, options, tunables and interpreters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from fusebench import discovery
from fusebench.backends import protocol
from fusebench.discovery import Kernel

CONF = next(p for p in (Path(__file__).parents[1] / "conf", discovery.HOME.parent / "conf") if p.is_dir())


@dataclass
class BaseConfig:
    """The keys that all commands share, and their types; conf/base.yaml and the command's own file give the values. `register` adds
    `shape`, `option`, `config` and `worker`, whose keys discovery knows."""

    kernel: Any = MISSING
    implementation: Any = MISSING
    case: Any = MISSING
    published: bool = MISSING
    story: Any = MISSING
    dtype: Any = MISSING
    precision: Any = MISSING
    mode: Any = MISSING
    batch: Any = MISSING
    shapes: str | None = MISSING
    device: str = MISSING
    path: Any = MISSING
    seed: Any = MISSING
    inputs: Any = MISSING
    timeout_s: float = MISSING
    tuned: bool = MISSING
    fits: bool = MISSING
    threads: int | None = MISSING
    rows_seed: int | None = MISSING
    resume: str | None = MISSING
    out_dir: str | None = MISSING
    dry_run: bool = MISSING
    quiet: bool = MISSING
    verbose: bool = MISSING


@dataclass
class TimedConfig(BaseConfig):
    """How a cell is sampled: the fields of timing/plan.py's Plan."""

    time_s: float = MISSING
    target: float = MISSING
    regime: str = MISSING
    cache: str = MISSING


@dataclass
class BenchConfig(TimedConfig):
    """`retry` names statuses whose cells run again in a run that goes on, `baseline` a run that is shown beside this one."""

    baseline: str | None = MISSING
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


@dataclass
class SanitizeConfig(ParityConfig):
    """Nothing is timed: `jobs` cells at a time run under the `tools` of the compute-sanitizer at that path."""

    tools: Any = MISSING
    jobs: Any = MISSING
    sanitizer: str | None = MISSING


@dataclass
class InspectConfig(BaseConfig):
    """Nothing runs: cells are compiled for `arch`, and what the compiler made of them is shown."""

    arch: Any = MISSING
    stage: str | None = MISSING
    opcodes: bool = MISSING
    lines: bool = MISSING
    threshold: Any = MISSING
    expect: Any = MISSING
    vs: str | None = MISSING
    out: str | None = MISSING


@dataclass
class ProfileConfig(BaseConfig):
    """`calls` are traced, of that `regime`; `counters` are read by the ncu at that path."""

    calls: Any = MISSING
    regime: str = MISSING
    counters: bool = MISSING
    ncu: str | None = MISSING


@dataclass
class DiffConfig(BaseConfig):
    """Nothing is timed: the outputs of the sides `a` and `b` are compared, and their rows written to the file `out`."""

    a: Any = MISSING
    b: Any = MISSING
    out: str | None = MISSING


@dataclass
class TuneConfig(TimedConfig):
    """`strategy`, `trials` and `search_seed` say what is tried, `jobs` how many compile ahead, for `arch`, `confirm`, `pairs`, `rounds` and `confidence` how the fastest is compared,
    `save`, `out` and `heatmap` where results go."""

    strategy: str = MISSING
    trials: int | None = MISSING
    search_seed: int = MISSING
    compile_timeout_s: float = MISSING
    jobs: Any = MISSING
    arch: str | None = MISSING
    confirm: bool = MISSING
    pairs: Any = MISSING
    rounds: Any = MISSING
    confidence: float = MISSING
    save: bool = MISSING
    out: str | None = MISSING
    heatmap: str | None = MISSING
    retry: Any = MISSING


SCHEMAS: dict[str, type[BaseConfig]] = {
    "bench": BenchConfig, "compare": CompareConfig, "parity": ParityConfig, "sanitize": SanitizeConfig,
    "inspect": InspectConfig, "profile": ProfileConfig, "diff": DiffConfig, "tune": TuneConfig,
}  # fmt: skip


def register(command: str, kernels: Mapping[str, Kernel]) -> None:
    """Registers the schema of a command. The dimensions and options known from discovery are its keys, so they need no `+`."""
    names = (dimension_names(kernels), option_names(kernels), tunable_names(kernels), python_names(kernels))
    if _registered(command) == names:  # as long as composing a job takes would be spent on the same again
        return
    dimensions, options, tunables, pythons = names
    shape = make_dataclass("Shape", [(d, Any, None) for d in dimensions])
    option = make_dataclass("Option", [(o, Any, None) for o in options])
    config = make_dataclass("Tunables", [(t, Any, None) for t in tunables])
    python = make_dataclass("Python", [(n, str | None, None) for n in pythons])
    worker = make_dataclass("Worker", [("inline", bool, False), ("python", python, field(default_factory=python))])
    schema = make_dataclass(
        "Schema",
        [("shape", shape, field(default_factory=shape)), ("option", option, field(default_factory=option)),
         ("config", config, field(default_factory=config)),
         ("worker", worker, field(default_factory=worker))],
        bases=(SCHEMAS[command],),
    )  # fmt: skip
    ConfigStore.instance().store(name=f"{command}_schema", node=schema)


def _registered(command: str) -> tuple[list[str], ...]:
    """The names of dimensions, options, tunables and interpreters in the command's schema, if it has one."""
    if (stored := ConfigStore.instance().repo.get(f"{command}_schema.yaml")) is None:
        return ()
    node = stored.node
    return tuple(list(map(str, some)) for some in (node.shape, node.option, node.config, node.worker.python))


def dimension_names(kernels: Mapping[str, Kernel]) -> list[str]:
    return sorted({d for k in kernels.values() for d in k.dimensions})


def option_names(kernels: Mapping[str, Kernel]) -> list[str]:
    return sorted({o for k in kernels.values() for o in k.options})


def tunable_names(kernels: Mapping[str, Kernel]) -> list[str]:
    implementations = [i for k in kernels.values() for i in k.implementations.values()]
    return sorted({name for i in implementations for own in i.tunables.values() for name in own})


def python_names(kernels: Mapping[str, Kernel]) -> list[str]:
    named = {i for k in kernels.values() for i in k.implementations if discovery.is_importable_name(i)}
    return sorted({*protocol.found(), *named})
