"""What is measured of a call: a plan, whose regime is never mixed with another.

`queued` is the device's time of a call that waits in the stream, so that the host's launch time does not enter; `isolated` the
wall clock of a call that an idle device is given; `sustained` calls back to back, as fast as host and device can.
docs/timing.md says why a figure may be believed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fusebench.errors import UsageError, unknown

MAX_SAMPLES = 1000
REGIMES = ("queued", "isolated", "sustained")
CACHES = ("cold", "warm")


@dataclass(frozen=True)
class Plan:
    """How a cell is sampled: for `time_s` seconds at most (0: not at all), until the 95 % interval of the median is within
    ± `target` of it (0: for the whole time). `regime` and `cache` are of REGIMES and CACHES; "auto" is `queued` with cold L2 on
    a GPU, `isolated` with warm caches on the CPU, and warm where calls are sustained. `calls` limits the samples."""

    time_s: float = 0.5
    target: float = 0.01
    regime: str = "auto"
    cache: str = "auto"
    calls: int = MAX_SAMPLES

    def on(self, device: str) -> Plan:
        """The plan with its "auto" decided for a device's type. Raises UsageError for a name or a number that cannot be, or not
        there."""
        for key, name, known in (("regime", self.regime, REGIMES), ("cache", self.cache, CACHES)):
            if name not in ("auto", *known):
                raise unknown(key, name, ("auto", *known))
        if not isinstance(self.time_s, (int, float)) or not 0 < self.time_s < math.inf:
            raise UsageError(f"time_s is {self.time_s!r}: expected a number of seconds above 0")
        if not 0 <= self.target < 1:
            raise UsageError(
                f"target is {self.target!r}: expected a share of the median, such as 0.01, or 0 for all of time_s"
            )
        regime = self.regime if self.regime != "auto" else "queued" if device == "cuda" else "isolated"
        cold = device == "cuda" and regime != "sustained"
        cache = self.cache if self.cache != "auto" else "cold" if cold else "warm"
        if regime == "queued" and device == "cpu":
            raise UsageError("regime=queued: a CPU has no stream to queue in; isolated and sustained work there")
        if regime == "sustained" and cache == "cold":
            raise UsageError(
                "cache=cold: sustained calls leave no room for a flush; cache=warm works, or regime=queued"
            )
        return replace(self, regime=regime, cache=cache)
