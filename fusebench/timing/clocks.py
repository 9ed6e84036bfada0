"""Two clocks, CUPTI's records and the wall, held against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fusebench.timing.summary import Clocks

RESOLUTION_S = 0.5e-6  # of the two clocks against each other


@dataclass(frozen=True)
class Check:
    """One isolated call, or a run of sustained ones, on both clocks, in seconds: its wall time, the span and the busy time of its
    kernels by CUPTI, and the gap, what the wall clock showed more than CUPTI for the flushes just before."""

    wall: float
    span: float
    busy: float
    gap: float


def agreement(checks: Sequence[Check], profiles: Sequence[tuple[float, float]], host: float, run: int) -> Clocks | None:
    """What the second clock says of the isolated calls: None where there were none.

    Hard: neither busy time nor span may exceed the wall time around the same call, and over all profiles, each up to where they differ
    least, the two clocks must advance by the same within 5 % and a millisecond a profile. Where the GPU's time is over five times the
    host's, the wall may exceed the span by the host's time and the gap, each at most doubled, and 2 %: more is work that
    CUPTI's records do not show. Elsewhere the host's time hides what the GPU does, and the second clock says n/a; so it does where
    the host was too busy: where most checks would let pass a call of twice the time.
    """
    if not checks:
        return None
    wall, span, busy, gap = map(float, np.median([(c.wall, c.span, c.busy, c.gap) for c in checks], axis=0))
    found = Clocks("agrees", wall, span, busy, gap, host)
    for c in checks:
        took = max(c.span, c.busy)
        if took > c.wall * 1.001 + RESOLUTION_S:
            reason = (
                f"CUPTI saw kernels for {took * 1e6:.2f} µs in a call that took {c.wall * 1e6:.2f} µs by the wall clock"
            )
            return replace(found, says="contradicts", reason=reason)
    walls, extents = (sum(column) for column in zip(*profiles, strict=True))
    if abs(walls - extents) > 0.05 * walls + 1e-3 * len(profiles):
        reason = f"while the wall clock advanced by {walls * 1e3:.3g} ms, CUPTI's did by {extents * 1e3:.3g} ms"
        return replace(found, says="contradicts", reason=reason)
    if found.span <= 5 * host * run:
        return replace(found, says="n/a")

    telling = [c for c in checks if 2 * (host + c.gap) < c.span]
    if 2 * len(telling) <= len(checks):
        return replace(found, says="n/a")

    def unexplained(c: Check) -> float:
        return c.wall - c.span - 2 * (host + c.gap) - 0.02 * c.span

    # the least of them: what CUPTI does not see is missing in each, a busy host delays some
    least = min(telling, key=unexplained)
    if unexplained(least) > 0:
        reason = (
            f"the wall clock shows {least.wall * 1e6:.2f} µs, CUPTI's kernels {least.span * 1e6:.2f} µs; launching and waiting "
            f"explain {(host + least.gap) * 1e6:.2f} µs"
        )
        return replace(found, says="contradicts", reason=reason)
    return found
