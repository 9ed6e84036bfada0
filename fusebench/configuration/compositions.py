"""What Hydra composes for a command, each line of words once.

Hydra composes the same line up to five times: our check of it, the mode that it runs in, the run; of a sweep, each job before all of
them and once more when it begins. A composition takes 0.1 s, a copy of it less than a tenth of that.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.types import RunMode
from omegaconf import DictConfig

MODES = {f"hydra.mode={mode.name}": mode for mode in RunMode}  # words that Hydra adds itself, before it composes again


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Within it, what Hydra composed is kept by its words, and copied for who asks again. A line that changes Hydra's own keys is
    composed each time."""
    compose = ConfigLoaderImpl.load_configuration
    known: dict[tuple[Any, ...], DictConfig] = {}

    def load(
        loader: ConfigLoaderImpl, config_name: str | None, overrides: list[str], run_mode: RunMode, **checks: bool
    ) -> DictConfig:
        words = [word for word in overrides if word not in MODES]
        if any("hydra" in word.partition("=")[0] for word in words):
            return compose(loader, config_name, overrides, run_mode, **checks)
        line = (str(loader.get_search_path()), config_name, *words)
        # what composes as a run, where no value may be missing or swept, is the same in a multirun
        key = (RunMode.RUN, *line) if (RunMode.RUN, *line) in known else (run_mode, *line)
        if key not in known:
            known[key] = compose(loader, config_name, words, run_mode, **checks)
        config = copy.deepcopy(known[key])
        for word in overrides:
            if word in MODES:
                config.hydra.mode = MODES[word]
                config.hydra.overrides.hydra.append(word)
        return config

    ConfigLoaderImpl.load_configuration = load  # type: ignore[assignment]
    try:
        yield
    finally:
        ConfigLoaderImpl.load_configuration = compose  # type: ignore[method-assign]
