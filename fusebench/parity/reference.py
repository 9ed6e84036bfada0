"""The reference on the device: every row of a case too large for the CPU, in float64, a chunk of rows at a time.

It runs in a worker of its own (workers/reference.py), which alone may import a kernel.py. The formula is the same NumPy text: `Tensor` gives NumPy's
functions and operators Torch's meaning.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fusebench.backends import torch as backend
from fusebench.contract import Case, Device
from fusebench.discovery import normalised
from fusebench.dtypes import FORMATS
from fusebench.parity.rounding import Exact
from fusebench.parity.verdict import Worst

CHUNK_ELEMENTS = 1.0e8  # of intermediate results: 0.8 GB in float64, and some of them live at a time
FLOPS_PER_ELEMENT = 32  # a guess at how many FLOPs stand behind each


def check(
    case: Case, arrays: Sequence[np.ndarray], row_axes: Sequence[int | None], got: Sequence[np.ndarray], output_axes: Sequence[int],
    screens: Sequence[tuple[float, float]], part: str, device: str,
) -> Worst:  # fmt: skip
    """Compares all rows of the outputs `got` with the formula, or that of a `part`, of the inputs `arrays`. `row_axes` are the
    axes of the rows of the inputs, None for those without, `output_axes` those of the outputs; `screens` say how
    far an element may be off (Judge.screens)."""
    mathematics = normalised(importlib.import_module(f"implementations.{case.kernel}.kernel"))
    whole = [_argument(np.array(a), device) if axis is None else None for a, axis in zip(arrays, row_axes, strict=True)]
    height = next(a.shape[axis] for a, axis in zip(arrays, row_axes, strict=True) if axis is not None)
    chunk = _rows_at_once(mathematics.flops(case), mathematics.moved_bytes(case) // case.itemsize, height)
    worst = Worst()
    for first in range(0, height, chunk):
        rows = np.arange(first, min(first + chunk, height))
        chosen = [
            w if axis is None else _argument(_slice(a, rows, axis), device)
            for a, w, axis in zip(arrays, whole, row_axes, strict=True)
        ]
        exact = mathematics.formula_of(part)(case, Exact(rows), *chosen)
        exact = exact if isinstance(exact, tuple | list) else (exact,)
        for number, (e, o) in enumerate(zip(exact, got, strict=True)):
            output = _put(_slice(o, rows, output_axes[number]), device)
            reach, size = screens[number]
            worst = _merged(worst, number, first, output_axes[number], output, _of(e, output), reach, size, case.dtype)
    return worst


def _argument(array: np.ndarray, device: str) -> Any:
    """What the formula gets: floats on the device; integers stay, because masks and indices are little work."""
    return array if array.dtype.kind in "iub" else Tensor(_put(array, device))


def _put(array: np.ndarray, device: str) -> torch.Tensor:
    """The array on the device, floats in float64: made wide there, because the host takes seconds for a gigabyte."""
    tensor = backend.put(array, Device(device, ""))
    return tensor if array.dtype.kind in "iub" else tensor.double()


def _slice(array: np.ndarray, rows: np.ndarray, axis: int) -> np.ndarray:
    """The rows, which follow one another, along an axis."""
    at = [slice(None)] * array.ndim
    at[axis] = slice(int(rows[0]), int(rows[-1]) + 1)
    return np.array(array[tuple(at)])  # a copy: Torch warns of memory that may not be written to


def _rows_at_once(flops: int, elements: int, height: int) -> int:
    """How many rows of a case to evaluate in one chunk."""
    return max(1, min(height, int(CHUNK_ELEMENTS * height / max(elements, flops / FLOPS_PER_ELEMENT, 1))))


def _merged(
    worst: Worst, number: int, first: int, axis: int, got: torch.Tensor, exact: torch.Tensor, screen: float, size: float, dtype: str
) -> Worst:  # fmt: skip
    """The worst element so far, and of another chunk, whose rows begin at `first`."""
    mantissa, smallest, highest = FORMATS[dtype]
    reach = screen * (exact.abs() / (size or 1.0)).clamp(min=1.0).nan_to_num(1.0, 1.0, 1.0)
    largest = (exact.abs() + reach).nan_to_num(0.0, 0.0, 0.0)
    exponent = torch.frexp(largest)[1].double() - 1
    step = torch.exp2(torch.where(largest == 0, smallest, exponent.clamp(min=smallest)) - mantissa)
    limit = reach + step / 2
    same = (got == exact) | (got.isnan() & exact.isnan())
    same |= (got == torch.inf) & (exact + reach > highest) | (got == -torch.inf) & (exact - reach < -highest)
    error = torch.where(same, 0.0, (got - exact).abs().nan_to_num(torch.inf, torch.inf, torch.inf))
    ratio = error / limit.clamp(min=torch.finfo(torch.float64).tiny)
    beyond = worst.beyond + int((ratio > 1).sum())
    worst = replace(worst, beyond=beyond, max_abs=max(worst.max_abs, float(error.max()) if error.numel() else 0.0))
    at = int(ratio.argmax()) if ratio.numel() else 0
    if not ratio.numel() or float(ratio.view(-1)[at]) <= worst.ratio:
        return worst
    place = tuple(int(i) for i in np.unravel_index(at, tuple(ratio.shape)))
    index = tuple(i + first if dimension == axis % len(place) else i for dimension, i in enumerate(place))
    return replace(
        worst, ratio=float(ratio[place]), index=index, got=float(got[place]), expected=float(exact[place]),
        budget=float(limit[place]), ulps=float(error[place] / step[place]), output=number,
    )  # fmt: skip


def _of(value: Any, like: torch.Tensor) -> torch.Tensor:
    tensor = value.tensor if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value), device=like.device)
    return tensor.double().contiguous()


class Tensor(np.lib.mixins.NDArrayOperatorsMixin):
    """A Torch tensor that NumPy's operators and functions work on."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    def _value(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.tensor
        return (
            torch.as_tensor(value, device=self.tensor.device) if isinstance(value, np.ndarray | np.generic) else value
        )

    def _operand(self, value: Any) -> torch.Tensor:
        """A tensor, in float64 where it is a Python float."""
        value = self._value(value)
        if isinstance(value, torch.Tensor):
            return value
        dtype = torch.float64 if isinstance(value, float) else None
        return torch.as_tensor(value, dtype=dtype, device=self.tensor.device)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Tensor:
        function = UFUNCS.get(ufunc.__name__)
        if function is None or method != "__call__" or options:
            raise NotImplementedError(f"the reference on the device knows no {ufunc.__name__}.{method} {options or ''}")
        return Tensor(function(*map(self._operand, operands)))

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        known = FUNCTIONS.get(function.__name__)
        if known is None:
            raise NotImplementedError(f"the reference on the device knows no np.{function.__name__}")
        return known(self, *args, **kwargs)

    def __getitem__(self, key: Any) -> Tensor:
        keys = tuple(map(self._value, key)) if isinstance(key, tuple) else self._value(key)
        return Tensor(self.tensor[keys])

    def __len__(self) -> int:
        return len(self.tensor)

    shape = property(lambda self: tuple(self.tensor.shape))
    ndim = property(lambda self: self.tensor.ndim)
    size = property(lambda self: self.tensor.numel())
    dtype = property(lambda self: np.dtype(str(self.tensor.dtype).removeprefix("torch.")))
    T = property(lambda self: Tensor(self.tensor.permute(*reversed(range(self.tensor.ndim)))))

    def _reduce(self, name: str, axis: Any, keepdims: bool) -> Tensor:
        axes = tuple(range(self.ndim)) if axis is None else axis
        return Tensor(getattr(torch, name)(self.tensor, dim=axes, keepdim=keepdims))

    def sum(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return self._reduce("sum", axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return self._reduce("mean", axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return self._reduce("amax", axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return self._reduce("amin", axis, keepdims)

    def any(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return self._reduce("any", axis, keepdims)

    def reshape(self, *shape: Any) -> Tensor:
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return Tensor(self.tensor.reshape(*sizes))

    def swapaxes(self, a: int, b: int) -> Tensor:
        return Tensor(self.tensor.transpose(a, b))

    def transpose(self, *axes: int) -> Tensor:
        return Tensor(self.tensor.permute(*axes))

    def astype(self, dtype: Any) -> Tensor:
        return Tensor(self.tensor.to(getattr(torch, np.dtype(dtype).name)))


def _where(self: Tensor, condition: Any, a: Any, b: Any) -> Tensor:
    a, b = self._operand(a), self._operand(b)
    return Tensor(torch.where(self._operand(condition), a, b.to(a.dtype) if not b.is_floating_point() else b))


def _joined(name: str) -> Callable[..., Tensor]:
    def join(self: Tensor, parts: Sequence[Any], axis: int = 0) -> Tensor:
        return Tensor(getattr(torch, name)([self._operand(p) for p in parts], dim=axis))

    return join


UFUNCS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.true_divide, "negative": torch.neg,
    "power": torch.pow, "square": torch.square, "matmul": torch.matmul, "remainder": torch.remainder, "floor_divide": torch.floor_divide,
    "exp": torch.exp, "exp2": torch.exp2, "log": torch.log, "log1p": torch.log1p, "tanh": torch.tanh, "sqrt": torch.sqrt,
    "erf": torch.erf, "erfc": torch.erfc, "expit": torch.sigmoid, "absolute": torch.abs, "copysign": torch.copysign,
    "sign": lambda x: torch.where(x.isnan(), x, torch.sign(x)),  # torch.sign of NaN is 0
    "maximum": torch.maximum, "minimum": torch.minimum, "isnan": torch.isnan, "isfinite": torch.isfinite, "isinf": torch.isinf,
    "equal": torch.eq, "not_equal": torch.ne, "less": torch.lt, "less_equal": torch.le, "greater": torch.gt,
    "greater_equal": torch.ge, "logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_not": torch.logical_not,
    "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or, "invert": torch.bitwise_not,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "where": _where,
    "isneginf": lambda self, x: Tensor(torch.isneginf(self._operand(x))),
    "concatenate": _joined("cat"),
    "stack": _joined("stack"),
    "column_stack": lambda self, parts: Tensor(torch.column_stack([self._operand(p) for p in parts])),
    "vstack": lambda self, parts: Tensor(torch.vstack([self._operand(p) for p in parts])),
    "split": lambda self, a, parts, axis=0: [Tensor(p) for p in torch.tensor_split(self._operand(a), parts, dim=axis)],
    "take": lambda self, a, indices, axis=0: Tensor(torch.index_select(self._operand(a), axis, self._operand(indices))),
    "sum": lambda self, a, axis=None, keepdims=False: a.sum(axis, keepdims),
    "mean": lambda self, a, axis=None, keepdims=False: a.mean(axis, keepdims),
    "max": lambda self, a, axis=None, keepdims=False: a.max(axis, keepdims),
    "amax": lambda self, a, axis=None, keepdims=False: a.max(axis, keepdims),
    "any": lambda self, a, axis=None, keepdims=False: a.any(axis, keepdims),
    "reshape": lambda self, a, shape: a.reshape(shape),
    "swapaxes": lambda self, a, x, y: a.swapaxes(x, y),
    "shape": lambda self, a: a.shape,
    "ndim": lambda self, a: a.ndim,
    "searchsorted": lambda self, a, v, side="left": Tensor(
        torch.searchsorted(self._operand(a), self._operand(v), right=side == "right")
    ),
}
