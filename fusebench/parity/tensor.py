"""A Torch tensor that NumPy's operators and functions work on, and NumPy's generator on Torch's device: so the text of a formula,
and of the rule, is the same on every device."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fusebench.parity import jitted

REPEATED_BYTES = 2**18  # 32 768 positions; so are at most 64 MB kept


class Tensor(np.lib.mixins.NDArrayOperatorsMixin):
    """Floats are float64, as the reference has them."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    def _value(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.tensor
        if isinstance(value, np.ndarray):
            return _there(value, self.tensor.device)
        return value.item() if isinstance(value, np.generic) else value

    def _operand(self, value: Any) -> torch.Tensor:
        """A tensor, in float64 where it is a Python float."""
        value = self._value(value)
        if isinstance(value, torch.Tensor):
            return value
        kind = type(value)  # a copy of a scalar to the device would wait for all that is queued there; filling does not
        dtype = {float: torch.float64, bool: torch.bool, int: torch.int64}[kind]
        return torch.full((), value, dtype=dtype, device=self.tensor.device)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Tensor:
        name = ufunc.__name__
        if method == "__call__" and not options:
            if name in SCALARS:  # scalars stay on the host: a copy to the device would wait for it
                return Tensor(SCALARS[name](*_widened([self._value(o) for o in operands])))
            if name in UFUNCS:
                return Tensor(UFUNCS[name](*map(self._operand, operands)))
        raise NotImplementedError(f"the reference on the device knows no {name}.{method} {options or ''}")

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

    def __float__(self) -> float:
        return float(self.tensor)

    def __bool__(self) -> bool:
        return bool(self.tensor)

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

    def all(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return self._reduce("all", axis, keepdims)

    def power(self) -> Tensor:
        """The largest power of 2 that is at most |value|, infinite where the value is not finite."""
        return Tensor((self.tensor.double().contiguous().view(torch.int64) & 0x7FF0000000000000).view(torch.float64))

    @property
    def is_cuda(self) -> bool:
        """Whether it is on a GPU, where what follows is one pass over memory."""
        return bool(self.tensor.is_cuda)

    def spacing(self, times: float, smallest: float) -> Tensor:
        """`times` `power`, of which `smallest` is the least; 0 where the value is not finite. On a GPU."""
        return Tensor(jitted.spacing(self.tensor.double(), times, smallest))

    def stored(self, times: float, smallest: float, highest: float) -> Tensor:
        """The values rounded to multiples of their `spacing`; infinite beyond `highest`. On a GPU."""
        return Tensor(jitted.stored(self.tensor.double(), times, smallest, highest))

    def computed(self, noise: Tensor, times: float, smallest: float, highest: float) -> Tensor:
        """The values moved by `noise` times their `spacing`; infinite beyond `highest`. On a GPU."""
        return Tensor(jitted.computed(self.tensor.double(), noise.tensor, times, smallest, highest))

    def rounded(self, noise: Tensor, times: float, smallest: float, highest: float) -> Tensor:
        """The same of values that are up to `highest`; those beyond `stored`. On a GPU."""
        return Tensor(jitted.rounded(self.tensor.double(), noise.tensor, times, smallest, highest))

    def larger(self, other: Tensor, times: float) -> Tensor:
        """`elements.larger`. On a GPU."""
        return Tensor(jitted.larger(self.tensor, other.tensor, times))

    def deviation_of_sum(self, squares: Tensor, in_order: Tensor, steps: float, unit: float, lost: float) -> Tensor:
        """`elements.deviation_of_sum`. On a GPU."""
        return Tensor(jitted.deviation(self.tensor, squares.tensor, in_order.tensor, steps, unit, lost))

    def summed(self, cut: Tensor, share: float, deviation: Tensor, noise: Tensor) -> Tensor:
        """`elements.summed`. On a GPU."""
        return Tensor(jitted.summed(self.tensor, cut.tensor, deviation.tensor, noise.tensor, share))

    def sum_of_squares(self, axis: int, keepdims: bool) -> Tensor:
        """In one pass over memory."""
        return Tensor(torch.linalg.vector_norm(self.tensor, dim=axis, keepdim=keepdims) ** 2)

    def finite(self) -> Tensor:
        """The values, 0 where they are not finite, in one pass over memory."""
        return Tensor(torch.nan_to_num(self.tensor, nan=0.0, posinf=0.0, neginf=0.0))

    def add_product(self, a: Any, b: Any) -> Tensor:
        """self += a @ b in one pass over memory; all have the same leading dimensions, or none."""
        sums, left, right = (
            value.tensor.flatten(0, -3) if value.ndim > 2 else value.tensor[None] for value in (self, a, b)
        )
        return Tensor(sums.baddbmm_(left, right).view(self.tensor.shape))

    def moved(self, size: Any, noise: Any) -> Tensor:
        """self + size × noise in one pass over memory."""
        return Tensor(torch.addcmul(self.tensor, self._operand(size), self._operand(noise)))

    def of_segments(self, starts: np.ndarray) -> Tensor:
        """The sums of rows starts[n] … starts[n + 1] - 1 for each n, 0 of none."""
        rows, lengths = self.tensor[int(starts[0]) : int(starts[-1])], self._value(np.diff(starts))
        return Tensor(torch.segment_reduce(rows.contiguous(), "sum", lengths=lengths, axis=0, unsafe=True))

    def reshape(self, *shape: Any) -> Tensor:
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return Tensor(self.tensor.reshape(tuple(sizes)))

    def swapaxes(self, a: int, b: int) -> Tensor:
        return Tensor(self.tensor.transpose(a, b))

    def transpose(self, *axes: int) -> Tensor:
        return Tensor(self.tensor.permute(*axes))

    def astype(self, dtype: Any) -> Tensor:
        return Tensor(self.tensor.to(getattr(torch, np.dtype(dtype).name)))


class Random:
    """The methods of NumPy's generator that the noise asks for, on a device. What is one number for all elements has a seed of its own
    if one is given, so that it can be the same in parts of them."""

    def __init__(self, device: str, seed: int, shared: int | None = None):
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.host = np.random.default_rng(seed if shared is None else shared)

    def random(self, shape: Sequence[int], dtype: Any) -> Tensor:
        """Uniform in [0, 1)."""
        return self._drawn(torch.rand, shape, dtype)

    def centred(self, shape: Sequence[int], dtype: Any, shared: float) -> Tensor:
        """Uniform in [-1/2, 1/2) about `shared`, in one pass over memory."""
        noise = torch.empty(*shape, dtype=getattr(torch, np.dtype(dtype).name), device=self.device)
        return Tensor(noise.uniform_(shared - 0.5, shared + 0.5, generator=self.generator))

    def standard_normal(self, shape: Sequence[int], dtype: Any) -> Tensor:
        return self._drawn(torch.randn, shape, dtype)

    def _drawn(self, draw: Callable[..., torch.Tensor], shape: Sequence[int], dtype: Any) -> Tensor:
        kind = getattr(torch, np.dtype(dtype).name)
        return Tensor(draw(*shape, dtype=kind, device=self.device, generator=self.generator))


def _there(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """The array on the device. Of small ones, such as positions, a formula has the same ones over and over, and each copy would wait for
    all that is queued on a GPU."""
    array = np.ascontiguousarray(array)
    if device.type == "cpu" or array.nbytes > REPEATED_BYTES:
        return torch.as_tensor(array, device=device)
    return _copied(array.tobytes(), array.dtype, array.shape, device)


@lru_cache(maxsize=256)
def _copied(data: bytes, dtype: np.dtype, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.as_tensor(np.frombuffer(data, dtype).reshape(shape).copy(), device=device)


def _widened(operands: list[Any]) -> list[Any]:
    """The operands, integer tensors in float64 where they meet a Python float: Torch would make them float32."""
    if not any(isinstance(o, float) for o in operands):
        return operands
    return [o.double() if isinstance(o, torch.Tensor) and not o.is_floating_point() else o for o in operands]


def _power(a: Any, exponent: Any) -> Any:
    return a * a if isinstance(exponent, int) and exponent == 2 else operator.pow(a, exponent)


def _where(self: Tensor, condition: Any, a: Any, b: Any) -> Tensor:
    condition = self._operand(condition)
    values = [self._value(v) for v in (a, b)]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if not tensors:
        return Tensor(torch.where(condition, *map(self._operand, values)))
    wide = torch.float64 if any(isinstance(v, float) or _is_float(v) for v in values) else tensors[0].dtype
    return Tensor(torch.where(condition, *(v.to(wide) if isinstance(v, torch.Tensor) else v for v in values)))


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _bounded(name: str, side: str) -> Callable[..., torch.Tensor]:
    """np.maximum or np.minimum; NaN wins, as there."""

    def bounded(a: Any, b: Any) -> torch.Tensor:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return getattr(torch, name)(a, b)
        tensor, scalar = (a, b) if isinstance(a, torch.Tensor) else (b, a)
        return tensor.clamp(**{side: scalar})

    return bounded


def _joined(name: str) -> Callable[..., Tensor]:
    def join(self: Tensor, parts: Sequence[Any], axis: int = 0) -> Tensor:
        return Tensor(getattr(torch, name)([self._operand(p) for p in parts], dim=axis))

    return join


def _put_along_axis(self: Tensor, array: Any, indices: Any, values: Any, axis: int) -> None:
    array.tensor.scatter_(axis, self._operand(indices), self._operand(values))


def _least(self: Tensor, a: Any, kth: int, axis: int = -1) -> Tensor:
    """np.argpartition, up to the `kth` alone."""
    return Tensor(torch.topk(self._operand(a), kth + 1, dim=axis, largest=False, sorted=False).indices)


# These take Python's scalars beside tensors.
SCALARS: dict[str, Callable[..., torch.Tensor]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv, "power": _power,
    "remainder": operator.mod, "floor_divide": operator.floordiv, "equal": operator.eq, "not_equal": operator.ne,
    "less": operator.lt, "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_,
    "maximum": _bounded("maximum", "min"), "minimum": _bounded("minimum", "max"),
}  # fmt: skip
UFUNCS: dict[str, Callable[..., torch.Tensor]] = {
    "negative": torch.neg, "square": torch.square, "matmul": torch.matmul,
    "exp": torch.exp, "exp2": torch.exp2, "log": torch.log, "log1p": torch.log1p, "tanh": torch.tanh, "sqrt": torch.sqrt,
    "erf": torch.erf, "erfc": torch.erfc, "expit": torch.sigmoid, "absolute": torch.abs, "copysign": torch.copysign,
    "sign": lambda x: torch.where(x.isnan(), x, torch.sign(x)),  # torch.sign of NaN is 0
    "rint": torch.round, "floor": torch.floor, "hypot": torch.hypot,
    "isnan": torch.isnan, "isfinite": lambda x: x - x == 0,  # torch.isfinite takes ten times as long on a CPU
    "isinf": torch.isinf,
    "logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_not": torch.logical_not,
    "invert": torch.bitwise_not,
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
    "max": lambda self, a, axis=None, keepdims=False, initial=None: a.max(axis, keepdims) if a.size else initial,
    "amax": lambda self, a, axis=None, keepdims=False: a.max(axis, keepdims),
    "any": lambda self, a, axis=None, keepdims=False: a.any(axis, keepdims),
    "reshape": lambda self, a, shape: a.reshape(shape),
    "swapaxes": lambda self, a, x, y: a.swapaxes(x, y),
    "shape": lambda self, a: a.shape,
    "size": lambda self, a: a.size,
    "ndim": lambda self, a: a.ndim,
    "searchsorted": lambda self, a, v, side="left": Tensor(
        torch.searchsorted(self._operand(a), self._operand(v), right=side == "right")
    ),
    "cumsum": lambda self, a, axis: Tensor(torch.cumsum(self._operand(a), dim=axis)),
    "argsort": lambda self, a, axis=-1: Tensor(torch.argsort(self._operand(a), dim=axis)),
    "sort": lambda self, a, axis=-1: Tensor(torch.sort(self._operand(a), dim=axis).values),
    "argpartition": _least,
    "take_along_axis": lambda self, a, indices, axis: Tensor(
        torch.take_along_dim(self._operand(a), self._operand(indices), dim=axis)
    ),
    "put_along_axis": _put_along_axis,
    "empty_like": lambda self, a: Tensor(torch.empty_like(self._operand(a))),
}  # fmt: skip
