"""Functions of each element that noise and budget are made of, on NumPy's arrays and on tensors, which do some in one pass over memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusebench.dtypes import FORMATS


def _fused(value: Any, name: str, on_gpu: bool = False) -> Any:
    """The method by which a tensor does it in one pass over memory, if `on_gpu` on a GPU alone; None where it has none, as NumPy's arrays."""
    return None if on_gpu and not getattr(value, "is_cuda", False) else getattr(value, name, None)


def moved(value: Any, size: Any, noise: Any) -> Any:
    """value + size × noise, where the size is finite: an infinity stays what it is."""
    fused = _fused(value, "moved")
    return value + size * noise if fused is None else fused(size, noise)


def add_product(total: Any, a: Any, b: Any) -> Any:
    """total + a @ b, perhaps in the memory of `total`."""
    fused = _fused(total, "add_product")
    return total + a @ b if fused is None or np.shape(a)[:-2] != np.shape(b)[:-2] else fused(a, b)


def centred(random: Any, shape: tuple[int, ...], shared: Any) -> Any:
    """Uniform in [-1/2, 1/2), and what all elements share."""
    fused = _fused(random, "centred")
    if fused is None:
        return random.random(shape, np.float32) + (shared - 0.5)
    return fused(shape, np.float32, float(shared))


def drawn_on_gpu(how: str, value: Any, noise: Any, dtype: str, spacings: float = 1.0) -> Any:
    """A value on a GPU with noise of so many spacings of the dtype there, `computed` or `rounded` (jitted.py)."""
    mantissa, smallest, highest = FORMATS[dtype]
    return getattr(value, how)(noise, spacings * 2.0**-mantissa, 2.0**smallest, highest)


def larger(a: Any, b: Any, times: float) -> Any:
    """So many times `a` where that is the larger in magnitude, else `b`; 0 where it is not finite."""
    fused = _fused(a, "larger", on_gpu=True)
    return fused(b, times) if fused else finite(times * np.where(np.abs(a) > np.abs(b), a, b))


def variance_of_sum(total: Any, squares: Any, in_order: Any, steps: int) -> Any:
    """What additions of relative error 1, uniform, make of a sum in so many steps, of terms with those `squares`: as in random order, or
    with the mean square `in_order` of its partial sums if that is more (docs/numerics.md)."""
    return steps / 3 * np.maximum(total**2 / 3 + squares / 6, in_order)


def deviation_of_sum(total: Any, squares: Any, in_order: Any, steps: int, unit: float, lost: float) -> Any:
    """The standard deviation of that sum where they have the relative error `unit` and `lost` is added; 0 where it is not finite."""
    if fused := _fused(total, "deviation_of_sum", on_gpu=True):
        return fused(squares, in_order, float(steps), unit, lost)
    return finite(np.hypot(unit * np.sqrt(variance_of_sum(total, squares, in_order, steps)), lost))


def summed(total: Any, cut: Any, share: Any, deviation: Any, noise: Any) -> Any:
    """total + cut × share + deviation × noise, where `share` is one number for all."""
    fused = _fused(total, "summed", on_gpu=True)
    if fused and isinstance(share, float):
        return fused(cut, float(share), deviation, noise)
    return moved(moved(total, cut, share), deviation, noise)


def sum_of_squares(value: Any, axis: int, keepdims: bool) -> Any:
    """Along an axis."""
    fused = _fused(value, "sum_of_squares")
    return (value**2).sum(axis=axis, keepdims=keepdims) if fused is None else fused(axis, keepdims)


def finite(value: Any) -> Any:
    """The value, 0 where it is not finite."""
    fused = _fused(value, "finite")
    return np.where(np.isfinite(value), value, 0.0) if fused is None else fused()


def spacing(values: Any, dtype: str, times: float = 1.0) -> Any:
    """The distance between neighbours of the dtype at each value (float64 in, float64 out), subnormals included, so many times; 0
    where the value is not finite, and for integers, which nothing rounds."""
    if dtype not in FORMATS:
        return 0.0 * values
    mantissa, smallest, _ = FORMATS[dtype]
    if fused := _fused(values, "spacing", on_gpu=True):
        return fused(times * 2.0**-mantissa, 2.0**smallest)
    power = _power(values)
    return np.where(power < np.inf, np.maximum(power, 2.0**smallest) * (times * 2.0**-mantissa), 0.0)


def _power(values: Any) -> Any:
    """The largest power of 2 that is at most |value|, infinite where the value is not finite."""
    if fused := _fused(values, "power"):
        return fused()
    bits = np.asarray(values, np.float64).view(np.int64) & 0x7FF0000000000000
    return bits.view(np.float64)


def stored(values: Any, dtype: str) -> Any:
    """The values rounded to the nearest of the dtype, ties to even, in float64; past the largest they are infinite. Integers stay."""
    if dtype not in FORMATS:
        return values
    if fused := _fused(values, "stored", on_gpu=True):
        mantissa, smallest, highest = FORMATS[dtype]
        return fused(2.0**-mantissa, 2.0**smallest, highest)
    unit = spacing(values, dtype)
    with np.errstate(all="ignore"):
        rounded = np.where(np.isfinite(values), np.rint(values / unit) * unit, values)
        return np.where(np.abs(rounded) > FORMATS[dtype][2], np.copysign(np.inf, rounded), rounded)


def tf32_size(operand: Any) -> Any:
    """What TF32's relative error applies to: a subnormal loses as much as the smallest normal number, and twice, because the
    mean of what it loses is not in proportion to it: the mean square is 1/3, not the variance 1/12."""
    small = (np.abs(operand) < 2.0**-126) & (operand != 0)
    return np.where(small, 2.0**-125, operand)


def hadamard(row: int, columns: Any) -> Any:
    """Elements ±1 of Sylvester's Hadamard matrix: by how many binary digits 1 row and column have in common."""
    common = sum(np.floor(columns / 2.0**bit) for bit in range(row.bit_length()) if row >> bit & 1)
    return 1.0 - 2.0 * np.remainder(common, 2)
