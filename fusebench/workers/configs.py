"""Which config a cell is built with, and which of a space fit: asked of an implementation's `config` and `fits`, in its worker."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fusebench import discovery, tuned
from fusebench.contract import Case, Device, Tunable
from fusebench.discovery import Implementation
from fusebench.errors import UsageError
from fusebench.tuned import Entry
from fusebench.workers import protocol
from fusebench.workers.outputs import Unfit

MOST_BLOCKS = 2**31 - 1, 2**16 - 1, 2**16 - 1  # of a grid's axes, as CUDA has them


@dataclass(frozen=True)
class Choice:
    """A config with where it is from, "set", "tuned" or "default", and what there is to say of that; or why it cannot run."""

    config: Mapping[str, Tunable] = field(default_factory=dict)
    origin: str = ""
    note: str = ""
    refusal: str | None = None


def choose(
    module: Any, found: Implementation, case: Case, variant: str, device: Device, asked: Mapping[str, Tunable], take_tuned: bool,
    fits: bool = True,
) -> Choice:  # fmt: skip
    """The config of a cell: what is asked for over the implementation's own, or else that of tuned.json, or its own. Without
    `fits` one that is asked for is taken although it does not fit.

    Raises Unfit where config() gives other names than TUNABLES has.
    """
    own = _own(module, found, case, variant, device)
    if asked:
        config = {**own, **asked}
        if unused := set(asked) - set(own):
            return Choice(refusal=_unused(min(unused), own))
        misfit = _misfit(module, case, variant, device, config)
        return Choice(config, "set", f"does not fit: {misfit}" if misfit else "", refusal=misfit if fits else None)
    note = ""
    if take_tuned:
        tuned_config, note = _tuned(module, found, case, variant, device, own)
        if tuned_config:
            return Choice(tuned_config, "tuned", note)
    refusal = _misfit(module, case, variant, device, own) or _too_many_blocks(module, case, variant, device, own)
    return Choice(own, "default", note, refusal)


def _own(module: Any, found: Implementation, case: Case, variant: str, device: Device) -> dict[str, Tunable]:
    own: dict[str, Tunable] = module.config(case, variant, device)
    if unknown := set(own) - set(found.tunables[variant]):
        raise Unfit(f"config() of {found.file.name} gives {min(unknown)}, which TUNABLES does not name")
    return own


def _tuned(
    module: Any, found: Implementation, case: Case, variant: str, device: Device, own: Mapping[str, Tunable]
) -> tuple[Mapping[str, Tunable], str]:
    """The config of tuned.json, {} where there is none to be taken, and what is to be said of it."""
    try:
        entry = tuned.find(
            tuned.read(found.file.parent), case, found.name, variant, device.name, partial(_suits, module, own, case, variant, device)
        )  # fmt: skip
    except UsageError as error:
        return {}, f"the default, because {error}"
    if entry is None:
        return {}, ""
    roots = [found.file.parent.parent, *map(Path, sys.modules["implementations"].__path__)]
    if changed := entry.stale(roots):
        return {}, f"the default, because {tuned.FILE} is stale: {changed} has changed since; tune it again"
    if entry.config and set(entry.config) != set(own):
        return {}, f"the default, because {tuned.FILE} has {', '.join(entry.config)}, and this case {', '.join(own)}"
    if entry.config and (misfit := _misfit(module, case, variant, device, entry.config)):
        return {}, f"the default, because the tuned config does not fit: {misfit}"
    other = "" if dict(entry.sizes) == dict(case.sizes) else ", ".join(f"{n}={v}" for n, v in entry.sizes.items())
    return entry.config, f"tuned at {other}" if other and entry.config else ""


def _suits(module: Any, own: Mapping[str, Tunable], case: Case, variant: str, device: Device, entry: Entry) -> bool:
    """Whether an entry of other sizes keeps the multiprocessors as busy at the case's. Without launches() nothing is known of it; and
    an entry that cannot be taken is not passed over here, but refused aloud."""
    if not hasattr(module, "launches") or set(entry.config) != set(own):
        return True

    def blocks(at: Case) -> int:
        described = module.launches(at, variant, device, entry.config)
        if tiles := sum(getattr(launch, "tiles", 0) for launch in described):
            return tiles  # of persistent grids, which are always full
        return sum(math.prod(_grid(launch)) for launch in described)

    return not tuned.idles(blocks(case), blocks(replace(case, sizes=entry.sizes)), device.multiprocessors)


def answer(found: Implementation, asked: protocol.AskFits, own: Device) -> protocol.Fits | protocol.Refused:
    """What a worker on the device `own` answers; nothing is compiled."""
    device = asked.device or own
    if reason := found.missing():
        return protocol.Refused("skipped", reason)
    module = discovery.load_implementation(asked.case.kernel, asked.implementation)
    if reason := getattr(module, "skip", lambda *_: None)(asked.case, asked.variant, device):
        return protocol.Refused("skipped", str(reason))
    return fitting(module, found, asked, device)


def fitting(
    module: Any, found: Implementation, asked: protocol.AskFits, device: Device
) -> protocol.Fits | protocol.Refused:
    """The answer to `AskFits`. Raises Unfit where config() gives other names than TUNABLES has."""
    own = _own(module, found, asked.case, asked.variant, device)
    space = {name: values for name, values in asked.space.items() if name in own}
    if not space:
        return protocol.Refused("skipped", "this case has no use for a tunable of the space")
    total = math.prod(map(len, space.values()))
    fits, misfits = [], []
    for config in _drawn(space, total, asked.most, asked.seed):
        whole = {**own, **config}
        reason = _misfit(module, asked.case, asked.variant, device, whole, named=False)
        if reason is None:
            fits.append(whole)
        else:
            misfits.append((whole, reason))
    return protocol.Fits(own, space, total, tuple(fits), tuple(misfits), device, hasattr(module, "launches"))


def _drawn(space: Mapping[str, tuple[Tunable, ...]], total: int, most: int, seed: int) -> Iterator[dict[str, Tunable]]:
    """All configs of a space in order, or `most` of them where there are more."""
    for number in range(total) if total <= most else sorted(random.Random(seed).sample(range(total), most)):
        config: dict[str, Tunable] = {}
        for name, values in reversed(list(space.items())):
            number, place = divmod(number, len(values))
            config[name] = values[place]
        yield dict(reversed(list(config.items())))


def _grid(launch: Any) -> tuple[int, ...]:
    grid = launch.grid if isinstance(launch.grid, tuple) else (launch.grid,)
    return tuple(map(int, grid))


def _too_many_blocks(
    module: Any, case: Case, variant: str, device: Device, config: Mapping[str, Tunable]
) -> str | None:  # fmt: skip
    """Why no grid can be that large, or None: whatever the config, a case of so many rows or heads needs several launches."""
    if device.type != "cuda" or not hasattr(module, "launches"):
        return None
    for launch in module.launches(case, variant, device, config):
        for axis, count, most in zip("xyz", _grid(launch), MOST_BLOCKS, strict=False):
            if count > most:
                return f"a launch has {count} blocks along {axis}: CUDA has {most} at most"
    return None


def _misfit(
    module: Any, case: Case, variant: str, device: Device, config: Mapping[str, Tunable], named: bool = True
) -> str | None:
    """Why the config does not fit, `named` with the config behind it, or None."""
    misfit = getattr(module, "fits", lambda *_: None)(case, variant, device, config)
    listed = f" ({', '.join(f'{n}={v}' for n, v in config.items())})" if named else ""
    return f"{misfit}{listed}" if misfit else None


def _unused(name: str, own: Mapping[str, Tunable]) -> str:
    return f"this case has no use for {name}; its tunables are {', '.join(own) or 'none'}"
