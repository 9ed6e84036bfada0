"""What the noise asks of every element, in one pass over a GPU's memory where NumPy's text takes seven or ten: half of the reference's time.

The same values as rounding.py's text (tests/test_gpu.py). `torch.cuda.jiterator` compiles each once, in a tenth of a second, and keeps it.
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


def spacing(values: torch.Tensor, times: float, smallest: float) -> torch.Tensor:
    """`times` the largest power of 2 that is at most |value|, or that is `smallest`; 0 where the value is not finite."""
    return _compiled(SPACING, ("times", "smallest"))(values, times=times, smallest=smallest)


def stored(values: torch.Tensor, times: float, smallest: float, highest: float) -> torch.Tensor:
    """The values rounded to multiples of their spacing, ties to even; infinite beyond `highest`."""
    return _compiled(STORED, ("times", "smallest", "highest"))(values, times=times, smallest=smallest, highest=highest)


@cache
def _compiled(code: str, names: tuple[str, ...]) -> Any:
    return torch.cuda.jiterator._create_jit_fn(code, **dict.fromkeys(names, 0.0))
