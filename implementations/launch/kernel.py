"""launch: a copy of N elements, y = x: the floor of what one launch costs in each framework.

x (N,) → y (N,), a new array.
"""

import numpy as np

DIMENSIONS = ("N",)
BATCH = "N"
PRECISIONS = ("ieee",)  # a copy multiplies nothing
ROWS = {"x": 0, "y": 0}
CASES = {"floor": {"N": 1024}, "one": {"N": 1}, "odd": {"N": 4099}}
# The published call fills what it returns with zeros first
PUBLISHED = ({"case": "floor", "device": "A100-class", "figures": {"unsynchronised loop": {"triton": 29.0}}},)


def inputs(case, rng):
    """x (N,): standard normal."""
    return {"x": rng.standard_normal(case.sizes["N"], dtype=np.float32)}


def formula(case, r, x):
    """(x,) in float64. A copy rounds nowhere."""
    return (x,)


def flops(case):
    """None: a copy computes nothing."""
    return 0


def moved_bytes(case):
    """x read once, y written once."""
    return 2 * case.sizes["N"] * case.itemsize
