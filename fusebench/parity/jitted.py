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
# noise of one spacing; what is in the dtype stays, and what is past the largest number already is stored
ROUNDED = """
template <typename T> T rounded(T x, T noise, T times, T smallest, T highest) {
    const long long bits = __double_as_longlong(x) & 0x7FF0000000000000LL;
    if (bits == 0x7FF0000000000000LL) return x;
    const T unit = fmax(__longlong_as_double(bits), smallest) * times;
    const T nearest = rint(x / unit) * unit;
    if (fabs(x) <= highest) return nearest == x ? x : x + noise * unit;
    return fabs(nearest) > highest ? copysign(__longlong_as_double(0x7FF0000000000000LL), nearest) : nearest;
}
"""
# what is not finite moves nothing
LARGER = """
template <typename T> T larger(T a, T b, T times) {
    const T size = times * (fabs(a) > fabs(b) ? a : b);
    return isfinite(size) ? size : 0.0;
}
"""
# from the squares of a sum's terms and of its partial sums, of which NaN wins
DEVIATION = """
template <typename T> T deviation(T total, T squares, T in_order, T steps, T unit, T lost) {
    const T at_random = total * total / 3 + squares / 6;
    const T variance = steps / 3 * (at_random > in_order || isnan(at_random) ? at_random : in_order);
    const T size = hypot(unit * sqrt(variance), lost);
    return isfinite(size) ? size : 0.0;
}
"""
SUMMED = """
template <typename T> T summed(T total, T cut, T deviation, T noise, T share) {
    return total + cut * share + deviation * noise;
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
    """The same of values that are up to `highest` and no multiples of their spacing; those beyond `stored`."""
    return _compiled(ROUNDED, ("times", "smallest", "highest"))(
        values, noise, times=times, smallest=smallest, highest=highest
    )


def larger(a: torch.Tensor, b: torch.Tensor, times: float) -> torch.Tensor:
    """`elements.larger`."""
    return _compiled(LARGER, ("times",))(a, b, times=times)


def deviation(
    total: torch.Tensor, squares: torch.Tensor, in_order: torch.Tensor, steps: float, unit: float, lost: float
) -> torch.Tensor:
    """`elements.deviation_of_sum`."""
    return _compiled(DEVIATION, ("steps", "unit", "lost"))(total, squares, in_order, steps=steps, unit=unit, lost=lost)


def summed(
    total: torch.Tensor, cut: torch.Tensor, deviation: torch.Tensor, noise: torch.Tensor, share: float
) -> torch.Tensor:
    """`elements.summed`."""
    return _compiled(SUMMED, ("share",))(total, cut, deviation, noise, share=share)


def begin() -> None:
    """Compiles all of them, for what they are called with."""
    x, noise = torch.ones(8, dtype=torch.float64, device="cuda"), torch.ones(8, device="cuda")
    spacing(x, 1.0, 1.0), stored(x, 1.0, 1.0, 1.0)
    computed(x, noise, 1.0, 1.0, 1.0), rounded(x, noise, 1.0, 1.0, 1.0)
    larger(x, x, 1.0), deviation(x, x, x, 1.0, 1.0, 1.0), summed(x, x, x, noise, 1.0)


@cache
def _compiled(code: str, names: tuple[str, ...]) -> Any:
    return torch.cuda.jiterator._create_jit_fn(code, **dict.fromkeys(names, 0.0))
