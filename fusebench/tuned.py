"""tuned.json in a kernel's folder: the best configs that `fusebench tune` found, and which of them a case takes.

An entry holds for one implementation and variant, device, dtype, precision, mode and the options of its case, at its sizes. A case of
other sizes takes the entry at the least distance, which is the sum over the dimensions of |log2(size ÷ tuned size)|; none where a
dimension differs by more than a factor of √2, or is a multiple of 8 in one alone: rows of whole vectors, which other tiles suit. Entries are
passed over whose blocks would fill their last round of multiprocessors worse than where they were tuned (`idles`). An entry is stale once a file of the implementation has changed since.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec

from fusebench import atomic, sources
from fusebench.contract import Case, Tunable
from fusebench.errors import UsageError

FILE = "tuned.json"
VECTOR = 8  # elements of 16 bits in 16 bytes: a size that is no multiple of it makes rows that begin anywhere
FARTHEST = 0.5  # octaves between a size and the tuned one: as far as from the middle of two that are an octave apart
IDLE = 0.2  # of the work places, beside those that idled where an entry was tuned: small tiles multiply a fifth slower, and fill them


@dataclass(frozen=True)
class Entry:
    """One tuned case. An empty `config` says that the implementation's own is as good as any that was tried. `time_s` and `default_s`
    are medians of pairs of processes, or of single runs where nothing was compared; `files` are those of the
    implementation, by name with their SHA-256 (sources.py)."""

    implementation: str
    variant: str
    device: str
    dtype: str
    precision: str
    sizes: Mapping[str, int]
    options: Mapping[str, str]
    config: Mapping[str, Tunable]
    time_s: float
    default_s: float
    files: Mapping[str, str] = field(default_factory=dict)
    mode: str = "forward"

    @property
    def key(self) -> tuple[object, ...]:
        """What there is one entry of."""
        return (*self._group, tuple(sorted(self.sizes.items())))

    @property
    def _group(self) -> tuple[object, ...]:
        options = tuple(sorted(self.options.items()))
        return self.implementation, self.variant, self.device, self.dtype, self.precision, self.mode, options

    def distance(self, sizes: Mapping[str, int]) -> float:
        """In octaves, summed over the dimensions; infinite where one is too far away, of other vectors, or not the kernel's any more."""
        if set(sizes) != set(self.sizes):
            return math.inf
        if any((size % VECTOR == 0) != (self.sizes[name] % VECTOR == 0) for name, size in sizes.items()):
            return math.inf
        each = [abs(math.log2(size / self.sizes[name])) for name, size in sizes.items()]
        return sum(each) if max(each, default=0.0) <= FARTHEST else math.inf

    def stale(self, roots: Sequence[Path]) -> str:
        """The name of a file that is not any more as it was when this was tuned, or ""."""
        return sources.changed(self.files, roots)


@dataclass(frozen=True)
class Group:
    """Entries of an implementation as it was at one time, which have its `files` in common, as they stand in the file."""

    files: Mapping[str, str]
    entries: Sequence[Entry]


def read(folder: Path) -> list[Entry]:
    """The entries of a kernel's folder, [] without a file. Raises UsageError for a file that is none."""
    file = folder / FILE
    try:
        groups = msgspec.json.decode(file.read_bytes(), type=list[Group])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(
            f"{file} cannot be read: {' '.join(str(error).split())}; repair it, or remove it and tune again"
        ) from error
    return [replace(entry, files=group.files) for group in groups for entry in group.entries]


def write(folder: Path, entries: Sequence[Entry]) -> None:
    """Adds the entries to those of the folder, in the place of those that they replace: the whole file or none of it, an entry and
    a file a line. Raises OSError and UsageError."""
    all_of = {entry.key: entry for entry in [*read(folder), *entries]}
    groups = dict[str, list[str]]()
    for entry in all_of.values():
        line = asdict(entry)
        groups.setdefault(json.dumps(line.pop("files"), indent=1, sort_keys=True), []).append(
            json.dumps(line, ensure_ascii=False)
        )
    texts = sorted(
        f'{{"files": {files}, "entries": [\n' + ",\n".join(sorted(g)) + "\n]}" for files, g in groups.items()
    )
    with atomic.replacing(folder / FILE) as partial:
        partial.write_text("[\n" + ",\n".join(texts) + "\n]\n", encoding="utf-8")


def find(
    entries: Sequence[Entry], case: Case, implementation: str, variant: str, device: str,
    suits: Callable[[Entry], bool] = lambda _: True,
) -> Entry | None:  # fmt: skip
    """The entry at the case's sizes, or the nearest one that suits; of two that are equally near the one with the larger sizes."""
    like = Entry(
        implementation, variant, device, case.dtype, case.precision, case.sizes, case.options, {}, math.nan, math.nan, {}, case.mode
    )  # fmt: skip
    own = [entry for entry in entries if entry._group == like._group]
    near = [entry for entry in own if entry.distance(case.sizes) < math.inf]
    near.sort(key=lambda e: (e.distance(case.sizes), -math.prod(e.sizes.values())))
    return next((entry for entry in near if entry.distance(case.sizes) == 0.0 or suits(entry)), None)


def idles(blocks: int, tuned_blocks: int, multiprocessors: int) -> bool:
    """Whether these many blocks, one on each multiprocessor at a time, leave more than a fifth of the work places empty that as many
    blocks as were tuned fill. Lola of 1200 rows has 160 tiles of 128 × 256: two rounds of 132 multiprocessors for 1.2 times the work of one."""

    def filled(count: int) -> float:
        return count / (math.ceil(count / multiprocessors) * multiprocessors)

    return multiprocessors > 0 and filled(blocks) < (1 - IDLE) * filled(tuned_blocks)
