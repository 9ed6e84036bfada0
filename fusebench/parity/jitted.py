"""What the noise asks of every element, in one pass over a GPU's memory where NumPy's text takes up to ten: half of the reference's time.

The same values as rounding.py's text (tests/test_jitted.py). `torch.cuda.jiterator` compiles each once, in a tenth of a second, and keeps it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

# the exponent's bits are those of the largest power of 2 that is at most |x|; of what is not finite all are set
SPACING = """
template <typename T> T spacing(T x, T times, T smallest) {
    const long long bits = __double_as_longlong(x) & 0x7FF0000000000000LL;
    return bits == 0x7FF0000000000000LL ? 0.0 : fmax(__longlong_as_double(bits), smallest) * times;
}
"""
STORED = """
template <typename T> T stored(T x, T times, T smallest, T highest) {
    const long long bits = __double_as_longlong(x) & 0x7FF0000000000000LL;
    if (bits == 0x7FF0000000000000LL) return x;
    const T unit = fmax(__longlong_as_double(bits), smallest) * times;
    const T rounded = rint(x / unit) * unit;
    return fabs(rounded) > highest ? copysign(__longlong_as_double(0x7FF0000000000000LL), rounded) : rounded;
}
"""
# noise of so many spacings, and past the largest number an infinity
COMPUTED = """
template <typename T> T computed(T x, T noise, T times, T smallest, T highest) {
    const long long bits = __double_as_longlong(x) & 0x7FF0000000000000LL;
    if (bits == 0x7FF0000000000000LL) return x;
    const T drawn = x + noise * (fmax(__longlong_as_double(bits), smallest) * times);
    return fabs(drawn) > highest ? copysign(__longlong_as_double(0x7FF0000000000000LL), drawn) : drawn;
}
"""
# noise of one spacing; what is past the largest number already is stored
ROUNDED = """
template <typename T> T rounded(T x, T noise, T times, T smallest, T highest) {
    const long long bits = __double_as_longlong(x) & 0x7FF0000000000000LL;
    if (bits == 0x7FF0000000000000LL) return x;
    const T unit = fmax(__longlong_as_double(bits), smallest) * times;
    if (fabs(x) <= highest) return x + noise * unit;
    const T nearest = rint(x / unit) * unit;
    return fabs(nearest) > highest ? copysign(__longlong_as_double(0x7FF0000000000000LL), nearest) : nearest;
}
"""
LARGER = """
template <typename T> T larger(T a, T b) { return fabs(a) > fabs(b) ? a : b; }
"""
# of a sum in so many steps, from its squares and from those of its partial sums; NaN wins
VARIANCE = """
template <typename T> T variance(T total, T squares, T in_order, T steps) {
    const T at_random = total * total / 3 + squares / 6;
    return steps / 3 * (at_random > in_order || isnan(at_random) ? at_random : in_order);
}
"""


def spacing(values: torch.Tensor, times: float, smallest: float) -> torch.Tensor:
    """`times` the largest power of 2 that is at most |value|, or that is `smallest`; 0 where the value is not finite."""
    return _compiled(SPACING, ("times", "smallest"))(values, times=times, smallest=smallest)


def stored(values: torch.Tensor, times: float, smallest: float, highest: float) -> torch.Tensor:
    """The values rounded to multiples of their spacing, ties to even; infinite beyond `highest`."""
    return _compiled(STORED, ("times", "smallest", "highest"))(values, times=times, smallest=smallest, highest=highest)


def computed(values: torch.Tensor, noise: torch.Tensor, times: float, smallest: float, highest: float) -> torch.Tensor:
    """The values moved by `noise` times their `spacing`; infinite where that is beyond `highest`."""
    return _compiled(COMPUTED, ("times", "smallest", "highest"))(
        values, noise, times=times, smallest=smallest, highest=highest
    )


def rounded(values: torch.Tensor, noise: torch.Tensor, times: float, smallest: float, highest: float) -> torch.Tensor:
    """The same of values that are up to `highest`; those beyond `stored`."""
    return _compiled(ROUNDED, ("times", "smallest", "highest"))(
        values, noise, times=times, smallest=smallest, highest=highest
    )


def larger(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`a` where that is the larger in magnitude, else `b`."""
    return _compiled(LARGER, ())(a, b)


def variance(total: torch.Tensor, squares: torch.Tensor, in_order: torch.Tensor, steps: float) -> torch.Tensor:
    """`elements.variance_of_sum`."""
    return _compiled(VARIANCE, ("steps",))(total, squares, in_order, steps=steps)


@cache
def _compiled(code: str, names: tuple[str, ...]) -> Any:
    return torch.cuda.jiterator._create_jit_fn(code, **dict.fromkeys(names, 0.0))
