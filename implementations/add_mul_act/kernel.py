"""add_mul_act: y = act(x + multiplier * z + b), the bias added to every row.

x, z (M, N), multiplier (), b (N,) → y (M, N), all of one dtype. The multiplier is a run-time value on the device. The sums
are taken in the order written: in another, what cancels would cancel differently.
"""

import numpy as np

from implementations._shared.numpy.formulas import ACTIVATIONS, activate, pulled_back

DIMENSIONS = ("M", "N")
BATCH = "M"
OPTIONS = {
    "activation": ("relu", *(a for a in ACTIVATIONS if a != "relu")),
    "multiplier": ("drawn", "0.5", "2.3"),  # a value, in every call; drawn is another one in each
}
PRECISIONS = ("ieee",)  # there is no matrix product
ROWS = {"x": 0, "z": 0, "y": 0}
CASES = {
    "small": {"M": 128, "N": 512},  # limited by the latency of one launch
    "large": {"M": 65536, "N": 4096},  # limited by memory
    "tiny": {"M": 8, "N": 10},  # rows that are no multiple of 16 bytes
    "one": {"M": 1, "N": 1},
    "odd": {"M": 37, "N": 203},  # no block divides it
    "tall": {"M": 5000, "N": 3},  # several rows in one vector of 16 bytes
    "wide": {"M": 3, "N": 5000},  # several blocks in one row
    "column": {"M": 4099, "N": 1},
    "square": {"M": 8, "N": 8},
}
PUBLISHED = (
    {"case": "small"},
    {"case": "tiny"},
    {"case": "square"},
    {"case": "square", "options": {"multiplier": "2.3"}},
)


def inputs(case, rng):
    """x, z (M, N): standard normal; multiplier (): as the option says, drawn between 1/4 and 3/4."""
    multiplier = case.options["multiplier"]
    M, N = case.size("M", "N")
    return {
        "x": rng.standard_normal((M, N), dtype=np.float32),
        "z": rng.standard_normal((M, N), dtype=np.float32),
        "multiplier": np.array(rng.uniform(0.25, 0.75) if multiplier == "drawn" else multiplier, np.float32),
    }


def weights(case, rng):
    """b (N,): standard normal."""
    return {"b": rng.standard_normal(case.sizes["N"], dtype=np.float32)}


def hard(case):
    """Extreme values in x alone: the largest number plus another one is past float32, where a program overflows before a
    negative bias can bring the sum back, which float64 does. Backward no subnormals: XLA flushes them on CPUs, and with them relu's
    slope. With gelu_erf no extreme values and no infinities either:
    Torch's erf of them on the CPU is NaN, and it doubles before it halves. A multiplier that an option names keeps its value."""
    every = ["large_mean", "equal", "nan", "large", "small", "zeros", "wide", *["subnormal"] * (case.mode == "forward")]
    kinds = dict.fromkeys(every, ("x", "z", "b"))
    if case.options["multiplier"] == "drawn":
        kinds |= {"zeros": ("x", "z", "b", "multiplier"), "scalar": ("multiplier",)}
    return kinds if case.options["activation"] == "gelu_erf" else kinds | {"inf": ("x", "z", "b"), "extreme": ("x",)}


def formula(case, r, x, z, multiplier, b):
    """(y,) in float64. Points: `product`, `sum` and `bias`, after each of the three operations before the activation."""
    product = r.round("product", multiplier * z)
    biased = r.round("bias", r.round("sum", x + product) + b)
    return (activate(case.options["activation"], biased, r),)


GRADIENTS = ("x", "z", "b")


def upstream(case, rng):
    """y's, standard normal."""
    return {"y": rng.standard_normal(case.size("M", "N"), dtype=np.float32)}


def gradient(case, r, x, z, multiplier, b, dy):
    """(dx, dz, db) in float64: dy * act', that times the multiplier, and its sum over the rows. Points: those of the formula, and `dsum`,
    dy * act' where it goes on to dz and db."""
    product = r.round("product", multiplier * z)
    biased = r.round("bias", r.round("sum", x + product) + b)
    size = np.abs(x) + np.abs(multiplier * z) + np.abs(b)  # 0 where all three are: there noise opens no relu
    dx = pulled_back(case.options["activation"], biased, dy, r, size)
    through = r.round("dsum", dx)
    return r.compute(dx), r.compute(multiplier * through), r.sum(through, axis=0)


def flops(case):
    """A product, two sums and the activation, counted as one operation, for each element; backward its slope and three products or sums."""
    M, N = case.size("M", "N")
    return {"forward": 4, "backward": 4, "forward_backward": 8}[case.mode] * M * N


def moved_bytes(case):
    """x, z, the multiplier and b read once, y written once. Backward dy and what the slope takes, a bit an element at the least, and the
    multiplier are read, and dx, dz and db written; both: all of them, each once."""
    M, N = case.size("M", "N")
    each = {"forward": 3, "backward": 3, "forward_backward": 6}[case.mode]
    return (each * M * N + (2 * N if case.mode == "forward_backward" else N) + 1) * case.itemsize
