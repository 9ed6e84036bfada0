"""How much padding the inputs of attention kernels have on the left, and how many positions are left visible: `padding` of
OPTIONS. NumPy alone, for kernel.py files."""

import numpy as np

PADDINGS = ("few", "none", "one", "most", "all", "any")


def bounds(padding, T):
    """The least and the most tokens of padding that may be drawn for a sequence of T."""
    least, most = {"few": (4, 8), "none": (0, 0), "one": (1, 1), "most": (T - 1, T - 1), "all": (T, T), "any": (0, T)}[
        padding
    ]
    return min(least, T), min(most, T)


def draw(padding, T, rng, shape=()):
    """n_padd of that shape, int32, each drawn for itself. `tiles`, which is no option but of hard inputs, is as often any as one of those
    at or beside a whole tile, 1 and T - 1."""
    if padding == "tiles":
        beside = [n for n in (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, T - 1) if 0 <= n <= T]
        drawn = np.where(rng.random(shape) < 0.5, rng.choice(beside, shape), rng.integers(0, T, shape, endpoint=True))
        return np.asarray(drawn, np.int32)
    least, most = bounds(padding, T)
    return np.asarray(rng.integers(least, most, shape, endpoint=True), np.int32)


def check(n_padd, T):
    """Raises ValueError for padding that no sequence of T tokens can have."""
    if isinstance(n_padd, np.ndarray | np.generic) and not ((n_padd >= 0) & (n_padd <= T)).all():
        raise ValueError(f"n_padd is {n_padd}: expected 0 to T = {T}")


def tokens(padding, T):
    """How many tokens see anything, with the most padding that may be drawn."""
    return T - bounds(padding, T)[1]


def positions(padding, T):
    """How many (i, j) are visible, with the most padding that may be drawn."""
    seen = tokens(padding, T)
    return seen * (seen + 1) // 2
