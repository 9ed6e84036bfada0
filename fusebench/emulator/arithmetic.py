"""The arithmetic of PTX on NumPy arrays, where NumPy's own operator is not the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

Array = Any
TYPES: dict[str, Any] = {
    **{f"{letter}{bits}": np.dtype(f"{kind}{bits // 8}") for letter, kind in (("u", "u"), ("b", "u"), ("s", "i")) for bits in (8, 16, 32, 64)},
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "tf32": np.dtype(np.float32), "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64), "pred": np.dtype(bool),
}  # fmt: skip


def shift_left(a: Array, b: Array) -> Array:
    """A shift by the width or more gives 0."""
    bits = a.dtype.itemsize * 8
    return np.where(b < bits, a << np.minimum(b, bits - 1).astype(a.dtype), a.dtype.type(0))


def shift_right(a: Array, b: Array) -> Array:
    """The same; of a signed number it leaves the sign."""
    bits = a.dtype.itemsize * 8
    shifted = a >> np.minimum(b, bits - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(b < bits, shifted, a.dtype.type(0))


def high(a: Array, b: Array) -> Array:
    """The upper half of a product."""
    if a.dtype.itemsize < 8:
        product = widened(a, b)
        return (product >> product.dtype.type(a.dtype.itemsize * 8)).astype(a.dtype)
    products = np.asarray(a).astype(object) * np.asarray(b).astype(object)
    return np.asarray([(int(p) >> 64) & (2**64 - 1) for p in np.atleast_1d(products)], np.uint64).view(a.dtype)


def widened(a: Array, b: Array) -> Array:
    """The whole product, of twice the bits."""
    wide = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
    return a.astype(wide) * np.asarray(b).astype(wide)


def divided(a: Array, b: Array) -> Array:
    """Towards zero; by zero, all bits set."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        return np.where(b == 0, a.dtype.type(np.iinfo(a.dtype).max), a // safe)
    quotient = a // safe
    return np.where(b == 0, a.dtype.type(-1), quotient + ((quotient < 0) & (quotient * safe != a)).astype(a.dtype))


def remainder(a: Array, b: Array) -> Array:
    """What `divided` leaves."""
    return a - divided(a, b) * b


def fma(a: Array, b: Array, c: Array, rounding: str = "rn") -> Array:
    """a × b + c, rounded once. Raises ValueError for a rounding that no kernel needs."""
    if a.dtype == np.float64:
        return a * b + c
    return rounded(a.astype(np.float64) * b + c, a.dtype, rounding)


def rounded(exact: Array, dtype: Any, rounding: str) -> Array:
    """float64 in a narrower type: rn to nearest, rz towards zero, rm down, rp up. Raises ValueError for others."""
    near = exact.astype(dtype)
    if rounding == "rn":
        return near
    if rounding not in ("rz", "rm", "rp"):
        raise ValueError(f"rounding {rounding}")
    over = {"rm": near > exact, "rp": near < exact, "rz": np.abs(near) > np.abs(exact)}[rounding]
    towards = {"rm": -np.inf, "rp": np.inf, "rz": 0.0}[rounding]
    return np.where(over, np.nextafter(near, dtype.type(towards)), near)


def converted(a: Array, to: str, of: str, how: tuple[str, ...]) -> Array:
    """cvt: `how` are its modifiers (rn, rna, rzi, sat, relu, ftz)."""
    target, source = TYPES[to], TYPES[of]
    if to == "tf32":
        bits = a.view(np.uint32)
        return np.where(np.isfinite(a), ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32), a)
    if source.kind not in "iub" and target.kind in "iu":
        whole = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[how[0]](a.astype(np.float64))
        limits = np.iinfo(target)
        inside = np.clip(np.nan_to_num(whole, nan=0.0), float(limits.min), float(limits.max))
        return np.where(whole >= float(limits.max), limits.max, inside.astype(target)).astype(target)
    if target.kind in "iu" and "sat" in how:
        limits = np.iinfo(target)
        return np.clip(a, limits.min, limits.max).astype(target)
    value = a
    if source.kind not in "iub" and target == source:
        whole = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
        value = next((whole[h](a) for h in how if h in whole), a)
    elif target.kind not in "iub" and any(h in ("rz", "rm", "rp") for h in how):
        value = rounded(a.astype(np.float64), target, next(h for h in how if h in ("rz", "rm", "rp")))
    value = value.astype(target)
    if "sat" in how:
        value = np.where(np.isnan(value), target.type(0), np.clip(value, target.type(0), target.type(1)))
    if "relu" in how:
        value = np.where(value > 0, value, np.where(np.isnan(value), value, target.type(0)))
    return value


def packed(of: str, operation: Any, *operands: Array) -> Array:
    """An operation on both halves of 32 bits."""
    dtype = TYPES[of.removesuffix("x2")]
    halves = [np.ascontiguousarray(np.atleast_1d(o)).view(dtype).reshape(-1, 2).astype(np.float32) for o in operands]
    return np.ascontiguousarray(operation(*halves).astype(dtype)).view(np.uint32).reshape(-1)


def insert_bits(a: Array, b: Array, position: Array, length: Array) -> Array:
    """bfi: the low bits of a over those of b at a position."""
    one = b.dtype.type(1)
    length, position = (np.asarray(v).astype(b.dtype) for v in (length, position))
    mask = shift_left(shift_left(np.full_like(b, one), length) - one, position)
    return (shift_left(a, position) & mask) | (b & ~mask)


def extract_bits(a: Array, position: Array, length: Array) -> Array:
    """bfe, of unsigned numbers."""
    one = a.dtype.type(1)
    position, length = (np.asarray(v).astype(a.dtype) for v in (position, length))
    return shift_right(a, position) & (shift_left(np.full_like(a, one), length) - one)


def permuted(a: Array, b: Array, selector: Array) -> Array:
    """prmt: each byte of the result is one of the eight of (a, b), or its sign."""
    both = _together(a, b)
    result = np.zeros_like(both)
    for n in range(4):
        nibble = (np.asarray(selector) >> np.uint32(4 * n)).astype(np.uint64) & np.uint64(15)
        byte = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        byte = np.where(
            nibble & np.uint64(8) != 0, np.where(byte & np.uint64(128) != 0, np.uint64(255), np.uint64(0)), byte
        )
        result |= byte << np.uint64(8 * n)
    return result.astype(np.uint32)


def dot_of_two(a: Array, b: Array, c: Array) -> Array:
    """dp2a.lo, of unsigned numbers: both halves of a times the two low bytes of b, and c."""
    low, high_ = (
        (a & np.uint32(0xFFFF)) * (b & np.uint32(0xFF)),
        (a >> np.uint32(16)) * (b >> np.uint32(8) & np.uint32(0xFF)),
    )
    return low + high_ + c


def looked_up(a: Array, b: Array, c: Array, table: int) -> Array:
    """lop3: any function of three bits."""
    result = np.zeros_like(a)
    for n in range(8):
        if table >> n & 1:
            result = result | ((a if n & 4 else ~a) & (b if n & 2 else ~b) & (c if n & 1 else ~c))
    return result


def funnel_left(a: Array, b: Array, by: Array) -> Array:
    """shf.l: the upper 32 bits of the 64 that b and a are, shifted by up to 32."""
    return (_together(a, b) << np.minimum(by, np.uint32(32)).astype(np.uint64) >> np.uint64(32)).astype(np.uint32)


def funnel_right(a: Array, b: Array, by: Array) -> Array:
    """shf.r: the lower 32."""
    return (_together(a, b) >> np.minimum(by, np.uint32(32)).astype(np.uint64)).astype(np.uint32)


def _together(a: Array, b: Array) -> Array:
    return a.astype(np.uint64) | np.asarray(b).astype(np.uint64) << np.uint64(32)


def reversed_bits(a: Array) -> Array:
    """brev, of 32 bits."""
    bits = np.unpackbits(np.ascontiguousarray(a).view(np.uint8).reshape(-1, 4)[:, ::-1], axis=1)
    return np.packbits(bits[:, ::-1], axis=1)[:, ::-1].copy().view(np.uint32).reshape(-1)


def leading_zeros(a: Array) -> Array:
    """clz, of 32 bits."""
    return (32 - np.frexp(a.astype(np.float64))[1]).astype(np.uint32)


def highest_bit(a: Array, shift: bool = False) -> Array:
    """bfind, of unsigned numbers: where the highest bit is, or what brings it to the top; all bits set where there is none."""
    zeros = leading_zeros(a)
    return np.where(a == 0, np.uint32(2**32 - 1), zeros if shift else np.uint32(31) - zeros)


def sign_of(a: Array, b: Array) -> Array:
    """copysign in PTX's order: b with the sign of a."""
    return np.copysign(b, a)


def in_double(function: Any, a: Array) -> Array:
    """A function of float32 with no error but the last rounding."""
    return function(a.astype(np.float64)).astype(a.dtype)


def flushed(a: Array) -> Array:
    """What .ftz makes of float32: 0, with its sign, of what lies below the smallest normal number."""
    return np.where(np.abs(a) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), a), a)


FUNCTIONS = {
    "ex2": partial(in_double, np.exp2), "lg2": partial(in_double, np.log2), "sqrt": partial(in_double, np.sqrt),
    "rcp": partial(in_double, np.reciprocal), "rsqrt": partial(in_double, lambda a: 1 / np.sqrt(a)),
    "tanh": partial(in_double, np.tanh), "sin": partial(in_double, np.sin), "cos": partial(in_double, np.cos),
}  # fmt: skip


def _unordered(compare: Any) -> Any:
    return lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b)


COMPARISONS = {
    "eq": np.equal, "ne": lambda a, b: (a != b) & (a == a) & (b == b), "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
    "num": lambda a, b: (a == a) & (b == b), "nan": lambda a, b: (a != a) | (b != b),
    **{f"{n}u": _unordered(f) for n, f in (("eq", np.equal), ("lt", np.less), ("le", np.less_equal), ("gt", np.greater), ("ge", np.greater_equal))},
    "neu": np.not_equal,
}  # fmt: skip
