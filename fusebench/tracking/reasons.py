"""Why cells are n/a: in asv's output together, and one by one in a file beside asv's results, which have no room for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

Key = tuple[str, ...]  # of a cell: kernel, label, and the parts of its case's id that commits share


def together(reasons: Mapping[Key, str]) -> list[str]:
    """A line for each reason, with the implementations and kernels whose cells it keeps from a figure."""
    whose: dict[str, dict[str, dict[str, None]]] = {}
    for (kernel, label, *_), reason in reasons.items():
        whose.setdefault(reason, {}).setdefault(label.split(":")[0], {})[kernel] = None
    lines = []
    for reason, found in whose.items():
        alike: dict[tuple[str, ...], list[str]] = {}
        for implementation, kernels in found.items():
            alike.setdefault(tuple(kernels), []).append(implementation)
        said = [f"{', '.join(own)} of {', '.join(kernels)}" for kernels, own in alike.items()]
        lines.append(f"{reason}: {'; '.join(said)}")
    return lines


def keep(file: Path, reasons: Mapping[Key, str], measured: Mapping[Key, object]) -> None:
    """Writes the reasons, a line a cell; those of cells that earlier runs of the commit left there stay unless they were measured now."""
    before = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    kept = {tuple(words[:-1]): words[-1] for words in (line.split("\t") for line in before)}
    now = {key: reason for key, reason in kept.items() if key not in measured} | dict(reasons)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "".join("\t".join((*key, " ".join(why.split()))) + "\n" for key, why in now.items()), encoding="utf-8"
    )
