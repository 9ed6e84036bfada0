"""What a training run leaves for its reader: a line of JSON for each stretch of steps, and the curve of loss and AUC."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fusebench import atomic, svg
from fusebench.errors import StorageError, UsageError

FILE, CURVE = "train.jsonl", "curve.svg"


@dataclass(frozen=True)
class Line:
    """`loss` is the mean of the steps since the line before, `auc` that of the held-out rows, None where it was not asked for;
    `seconds` are those of the steps alone, since the run or what resumed it began."""

    step: int
    loss: float
    auc: float | None
    rows: int
    seconds: float
    implementation: str


def append(line: Line, folder: Path) -> None:
    """Raises StorageError where the disk does not take it."""
    try:
        with (folder / FILE).open("a", encoding="utf-8") as out:
            out.write(json.dumps(asdict(line)) + "\n")
    except OSError as error:
        raise StorageError(f"{folder / FILE} cannot be written: {error.strerror or error}") from error


def read(folder: Path) -> list[Line]:
    """The lines; one that a killed process left unfinished is none."""
    try:
        text = (folder / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / FILE} cannot be read: {error}") from error
    found = []
    for number, one in enumerate(text.splitlines(), 1):
        try:
            found.append(Line(**json.loads(one)))
        except (ValueError, TypeError) as error:
            if number < len(text.splitlines()):
                raise UsageError(f"{folder / FILE}: line {number} is no line of a training log: {error}") from error
    return found


def cut(folder: Path, step: int) -> list[Line]:
    """The lines up to a step, to which the file is cut: what a killed run did after its checkpoint is done again."""
    lines = [line for line in read(folder) if line.step <= step]
    try:
        with atomic.replacing(folder / FILE) as part:
            part.write_text("".join(json.dumps(asdict(line)) + "\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{folder / FILE} cannot be written: {error.strerror or error}") from error
    return lines


def draw(lines: Sequence[Line], folder: Path) -> Path:
    """Writes the curve. Raises StorageError where the disk does not take it."""
    evaluated = [(line.step, line.auc) for line in lines if line.auc is not None]
    try:
        with svg.figure(folder / CURVE, (8, 4.5)) as figure:
            axes = figure.subplots()
            axes.plot([line.step for line in lines], [line.loss for line in lines], color="C0", label="loss")
            axes.set(xlabel="step", ylabel="loss (mean cross-entropy)")
            axes.grid(True, alpha=0.3)
            other = axes.twinx()
            other.plot(
                [step for step, _ in evaluated], [auc for _, auc in evaluated], "C1o-", markersize=3, label="AUC"
            )
            other.set(ylabel="AUC of the held-out rows")
            axes.legend(handles=[*axes.get_lines(), *other.get_lines()], loc="center right", fontsize="small")
            axes.set_title(", ".join(dict.fromkeys(line.implementation for line in lines)))
    except OSError as error:
        raise StorageError(f"{folder / CURVE} cannot be written: {error.strerror or error}") from error
    return folder / CURVE
