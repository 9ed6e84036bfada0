"""What a record keeps of the samples of a call."""

from __future__ import annotations

from dataclasses import dataclass

BUSY = 0.5  # of the samples: the median is one of those that waited
UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


@dataclass(frozen=True)
class Clocks:
    """What the second clock says: `agrees`, `contradicts` with the reason, or `n/a`. Medians in seconds of the isolated calls:
    by the wall, from the first kernel to the last by CUPTI, the kernels' busy time, what a wait costs (clocks.py), and the
    host's time of a call."""

    says: str
    wall: float
    span: float
    busy: float
    gap: float
    host: float
    reason: str | None = None


@dataclass(frozen=True)
class TimedBatch:
    """What the parent's clock says of calls on a CPU (workers/second_clock.py): the seconds that so many of them took together, and
    those that the median allows."""

    calls: int
    seconds: float
    allowed: float

    @property
    def contradicts(self) -> bool:
        return self.seconds > self.allowed


@dataclass(frozen=True)
class StateRange:
    """Lowest and highest of each reading of the device's state (state.py), None where nothing was read; and whether the card
    was at its power limit in any of them."""

    sm_mhz: tuple[float, float] | None = None
    memory_mhz: tuple[float, float] | None = None
    power_w: tuple[float, float] | None = None
    temperature_c: tuple[float, float] | None = None
    cpu_mhz: tuple[float, float] | None = None
    load: tuple[float, float] | None = None
    threads: tuple[int, int] | None = None
    power_capped: bool | None = None


@dataclass(frozen=True)
class Timing:
    """Samples in seconds, one a call (sustained: the mean of each `run` of calls), and what follows from them.

    `timer` is "cupti" or "wall". `interval` is of the median, at 95 %, and `uncertainty` half of it ÷ the median, None where
    there are too few samples. `busy` is the union of each call's kernels, `host` what a call costs the calling thread.
    `energy_j` is of one call, `discarded` counts samples of a slowed-down card, `waiting` is the share of the samples on a CPU in
    which threads waited for a core, None where that is not known.
    """

    timer: str
    regime: str
    cache: str
    samples: tuple[float, ...]
    median: float
    q1: float
    q3: float
    interval: tuple[float, float] | None
    uncertainty: float | None
    target: float
    target_missed: bool
    run: int
    busy: tuple[float, ...]
    busy_median: float | None
    host: tuple[float, ...]
    host_median: float | None
    clocks: Clocks | None
    launches: int | None
    kernels: tuple[str, ...]
    discarded: int
    energy_j: float | None
    state: StateRange
    waiting: float | None = None  # older records have none
    batch: TimedBatch | None = None

    @property
    def machine_busy(self) -> bool:
        """Whether other processes had the cores in so many samples that the median is no more the call's."""
        return self.waiting is not None and self.waiting >= BUSY

    @property
    def remedy(self) -> str:
        """What helps where the machine is busy: a call of one thread waits for no other."""
        return "an idle machine" if self.state.threads == (1, 1) else "threads=1 or an idle machine"


def significant(value: float) -> str:
    """Three digits of a figure, without an exponent where it is large: `0.197`, `7.52`, `1290`, `3030000`."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{float(f'{value:.3g}'):.0f}"


def percent(share: float) -> str:
    """`1.2%`; how much it is beyond ten times says nothing."""
    return f"{share:.1%}" if share < 10 else "> 1000%"


def seconds(value: float) -> str:
    """Three significant digits with a unit: `17.4 µs`."""
    unit, scale = next(((u, s) for u, s in UNITS if value >= 0.9995 * s), UNITS[-1])
    return f"{value / scale:.3g} {unit}" if value < 999.5 else f"{value:.0f} s"
