"""What one cell left behind: the record, its parts, and the record of one side of a pair. All of them frozen.

Times are in seconds, sizes in bytes, clocks in MHz, power in W, energy in J, rates in GB/s and TFLOP/s. One
JSON object a line has the same names (store.py), an Arrow table too (arrow.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fusebench.contract import Case, Cell, Tunable
from fusebench.machine import DeviceInfo
from fusebench.parity.verdict import Verdict
from fusebench.timing.summary import Timing, percent, seconds, significant
from fusebench.timing.yardstick import Rates as Yardsticks

SCHEMA = 5  # a record of another one is refused; also raised when a seed gives other inputs
BASELINE = "torch_eager"  # what tables show speed-ups over


@dataclass(frozen=True)
class Source:
    """Which code was measured: the implementation's `file`; each of the `files` of `implementations` that it and kernel.py are made
    of, Python that was loaded and CUDA sources that were compiled, by name (sources.py) with its SHA-256, and one `sha256` of
    them all; and the commit that the file is of, with `+` behind it where it differs; None outside a repository."""

    file: str
    sha256: str
    files: Mapping[str, str]
    git_commit: str | None = None


@dataclass(frozen=True)
class Environment:
    """Where it ran: the device, the versions of packages and Python in the worker, the host, and the harness's commit."""

    device: DeviceInfo
    packages: Mapping[str, str]
    python: str
    host: str
    git_commit: str | None = None


@dataclass(frozen=True)
class Work:
    """What one call has to do: the kernel's FLOPs, and its compulsory bytes; None is not known."""

    flops: int | None
    moved_bytes: int | None


@dataclass(frozen=True)
class Build:
    """What stands before the first timed call: seconds of `prepare` and of the first call, compilation included, less the time of
    a later call; bytes that the build and the first call took at the most
    beyond the inputs, None where that is not known; bytes of its outputs; the points that the variant rounds at;
    all its tunables; `config_from` says where these are from, "set" (one was asked for), "tuned" (from tuned.json) or "default" (the
    implementation's own), "" without any, and `config_note` why an entry of tuned.json was not taken, or which size it is of, or why
    a config that was set does not fit (`fits=false`); in mode=backward the bytes that the residuals of a forward call keep beyond its
    inputs, None in others."""

    prepare_s: float
    compile_s: float
    peak_memory_bytes: int | None
    written_bytes: int
    points: tuple[str, ...] = ()
    config: Mapping[str, Tunable] = field(default_factory=dict)
    config_from: str = ""
    config_note: str = ""
    saved_bytes: int | None = None


@dataclass(frozen=True)
class Spread:
    """How far calls on the same inputs are apart: how many elements differ and the largest difference, at the most; how many `calls`
    differ from the first, `of` how many."""

    elements: int
    max_abs: float
    calls: int
    of: int


@dataclass(frozen=True)
class Parity:
    """The verdicts on the first output, on that of a repeated call, and on the last timed one; None where there was none. `nondeterministic`
    is None where all calls on the same inputs gave the same bits. `rows_seed` is what chose the rows where not all were judged alike.
    `hard` names the kinds of hard inputs on which the implementation is right in the odd case, where it was tried."""

    first: Verdict | None = None
    repeated: Verdict | None = None
    timed: Verdict | None = None
    nondeterministic: Spread | None = None
    rows_seed: int | None = None
    hard: tuple[str, ...] = ()

    @property
    def verdicts(self) -> list[Verdict]:
        return [v for v in (self.first, self.repeated, self.timed) if v is not None]

    @property
    def worst(self) -> Verdict | None:
        """That of the judged outputs which decides, or None where none was judged: one that is wrong, or has the largest error ÷ budget."""
        return max(self.verdicts, key=lambda v: (not v.ok, v.ratio), default=None)

    @property
    def ratio(self) -> float | None:
        """The largest error ÷ budget of all judged outputs, or None where none was judged."""
        return max((v.ratio for v in self.verdicts), default=None)


@dataclass(frozen=True)
class Rates:
    """What follows from the time: TFLOP/s, GB/s, the best possible time by the yardsticks, the share of it that was reached
    (1 is all of it; it may be more), and the bound, which no such device can beat. None is not known."""

    tflops: float | None
    gbps: float | None
    yardsticks: Yardsticks | None = None
    best_s: float | None = None
    yardstick_share: float | None = None
    bound_s: float | None = None


@dataclass(frozen=True)
class Figure:
    """A time in seconds that the kernel's authors published for the case and the implementation `label`, on which device and by
    which method; "" is what they do not name."""

    time_s: float
    label: str
    device: str
    method: str


@dataclass(frozen=True)
class Record:
    """One cell of one run. `status` is one of contract.STATUSES; `reason` says why it is not `ok`, and `reproduce` is the command
    that shows a wrong cell again. `computes` names the part of the kernel, "" for the whole. Parts that the cell did not
    come to are None. `changed` is what it changed in its worker's process, such as the number of threads: the next cell got another. `retried` says why a first attempt was given up: its profile lacked records, or a second clock contradicted it. `published` are its authors'
    figures. `began` and `ended` are moments in UTC, in ISO 8601."""

    id: str
    label: str
    cell: Cell
    status: str
    environment: Environment
    began: str
    ended: str = ""
    reason: str | None = None
    traceback: str = ""
    reproduce: str = ""
    computes: str = ""
    source: Source | None = None
    time_s: float = 0.0
    timeout_s: float = 0.0
    work: Work | None = None
    build: Build | None = None
    parity: Parity = field(default_factory=Parity)
    timing: Timing | None = None
    rates: Rates | None = None
    changed: tuple[str, ...] = ()
    retried: str | None = None
    published: tuple[Figure, ...] = ()
    schema: int = SCHEMA

    @property
    def case(self) -> Case:
        return self.cell.case

    @property
    def kernel(self) -> str:
        return self.cell.case.kernel

    @property
    def device(self) -> DeviceInfo:
        return self.environment.device

    def __repr__(self) -> str:
        """What ran where, its time and the rates that are known, a line each; the fields have the rest."""
        name = " ".join(dict.fromkeys((self.kernel, self.case.id, self.label)))
        lines = [f"{name} on {self.device.name or self.device.type}: {self.status}"]
        lines += [self.reason] if self.reason else []
        if timing := self.timing:
            around = "" if timing.uncertainty is None else f" ± {percent(timing.uncertainty)}"
            how = f"{timing.regime}, {timing.cache} caches, {len(timing.samples)} samples"
            lines.append(f"{seconds(timing.median)}{around}  {how}")
            lines += [f"machine busy: {timing.remedy} helps"] if timing.machine_busy else []
        if rates := self.rates:
            known = [
                f"{significant(n)} {unit}"
                for n, unit in ((rates.tflops, "TFLOP/s"), (rates.gbps, "GB/s"))
                if n is not None
            ]
            known += [f"best {seconds(rates.best_s)}"] if rates.best_s else []
            lines += [", ".join(known)] if known else []
        return "\n  ".join(lines)


@dataclass(frozen=True)
class PairRecord:
    """One side of one pair of a comparison: its record, whose `timing` is None, and a timing for each turn. Where a side was not
    ok, `ended_by` in both records of the pair names it, and `lost` says that it cost this pair alone."""

    record: Record
    comparison: str
    side: str
    pair: int
    turns: tuple[Timing, ...] = ()
    ended_by: str | None = None
    lost: bool = False
    schema: int = SCHEMA
