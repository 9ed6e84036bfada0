"""The reference on the device: every row of a case too large for the CPU, in float64, a chunk of rows at a time.

It runs in a worker of its own, which alone may import a kernel.py. The formula is the same NumPy text: `Tensor` gives NumPy's
functions and operators Torch's meaning.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fusebench import inputs
from fusebench.backends import torch as backend
from fusebench.contract import Case, Device
from fusebench.parity.judge import formula_of
from fusebench.parity.rounding import FORMATS, Exact

CHUNK_ELEMENTS = 1.0e8  # of intermediate results: 0.8 GB in float64, and some of them live at a time
FLOPS_PER_ELEMENT = 32  # a guess at how many FLOPs stand behind each


class Reference:
    """What the worker of the reference does for the parent: the counterpart of worker.Bench."""

    def __init__(self, device: str):
        self.device = device

    def hello(self) -> dict[str, Any]:
        return {"device": {"type": self.device}, "packages": {}, "python": "", "flushes_subnormals": False}

    def check(
        self, case: dict[str, Any], row_inputs: list[bool], axis: int, files: list[list[str]], outputs: list[list[str]],
        screens: list[list[float]], part: str, folder: str,
    ) -> dict[str, Any]:  # fmt: skip
        """Compares all rows of the outputs with the formula. `screens` say how far an element may be off
        (Judge.screens). Returns, for the worst element, what a Verdict says of it, and how many elements are off."""
        the_case, where = Case(**case), Path(folder)
        module = importlib.import_module(f"implementations.{the_case.kernel}.kernel")
        arrays, got = (inputs.load(those, where, mapped=True) for those in (files, outputs))
        whole = [None if rows else self._argument(np.array(a)) for a, rows in zip(arrays, row_inputs, strict=True)]
        height = next(a.shape[axis] for a, rows in zip(arrays, row_inputs, strict=True) if rows)
        chunk = _rows_at_once(module.flops(the_case), module.moved_bytes(the_case) // the_case.itemsize, height)
        worst: dict[str, Any] = {"ratio": 0.0, "beyond": 0, "max_abs": 0.0}
        for first in range(0, height, chunk):
            rows = np.arange(first, min(first + chunk, height))
            chosen = [
                self._argument(_slice(a, rows, axis)) if w is None else w for a, w in zip(arrays, whole, strict=True)
            ]
            exact = formula_of(module, part)(the_case, Exact(rows), *chosen)
            exact = exact if isinstance(exact, tuple | list) else (exact,)
            for number, (e, o) in enumerate(zip(exact, got, strict=True)):
                output = self._put(_slice(o, rows, axis))
                reach, size = screens[number]
                _merge(worst, number, first, axis, output, _of(e, output), reach, size, the_case.dtype)
        return {"status": "ok", **worst}

    def usable(self) -> bool:
        return True

    def release(self) -> dict[str, Any]:
        if self.device == "cuda":
            torch.cuda.empty_cache()
            return {"held_bytes": torch.cuda.memory_reserved()}
        return {"held_bytes": 0}

    def _argument(self, array: np.ndarray) -> Any:
        """What the formula gets: floats on the device; integers stay, because masks and indices are little work."""
        return array if array.dtype.kind in "iub" else Tensor(self._put(array))

    def _put(self, array: np.ndarray) -> torch.Tensor:
        """The array on the device, floats in float64: made wide there, because the host takes seconds for a gigabyte."""
        tensor = backend.put(array, Device(self.device, ""))
        return tensor if array.dtype.kind in "iub" else tensor.double()


def _slice(array: np.ndarray, rows: np.ndarray, axis: int) -> np.ndarray:
    """The rows, which follow one another, along an axis."""
    at = [slice(None)] * array.ndim
    at[axis] = slice(int(rows[0]), int(rows[-1]) + 1)
    return np.array(array[tuple(at)])  # a copy: Torch warns of memory that may not be written to


def _rows_at_once(flops: int, elements: int, height: int) -> int:
    """How many rows of a case to evaluate in one chunk."""
    return max(1, min(height, int(CHUNK_ELEMENTS * height / max(elements, flops / FLOPS_PER_ELEMENT, 1))))


def _merge(
    worst: dict[str, Any], number: int, first: int, axis: int, got: torch.Tensor, exact: torch.Tensor, screen: float, size: float, dtype: str
) -> None:  # fmt: skip
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
    worst["beyond"] += int((ratio > 1).sum())
    worst["max_abs"] = max(worst["max_abs"], float(error.max()) if error.numel() else 0.0)
    at = int(ratio.argmax()) if ratio.numel() else 0
    if ratio.numel() and float(ratio.view(-1)[at]) > worst["ratio"]:
        index = [int(i) for i in np.unravel_index(at, tuple(ratio.shape))]
        place = tuple(index)
        index[axis] += first
        worst.update(
            ratio=float(ratio[place]), index=index, got=float(got[place]), expected=float(exact[place]),
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
    "erf": torch.erf, "erfc": torch.erfc, "expit": torch.sigmoid, "absolute": torch.abs, "sign": torch.sign,
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
    "copysign": lambda self, a, b: Tensor(torch.copysign(self._operand(a), self._operand(b))),
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
