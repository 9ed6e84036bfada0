"""Which launches a call makes, and what goes from one to another: it is followed with stand-ins for its tensors, and launches nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusebench.backends.parameters import Parameters


class Untraceable(Exception):
    """The call does something with a tensor beside launches."""


@dataclass(frozen=True)
class Step:
    """One launch: what it is given the addresses of, by their places among its arguments; the shapes of those that are tensor maps; the numbers
    that it is given, by place; what it has `kept` for its next calls, by device; and what it is called."""

    tensors: Mapping[int, Address]
    maps: Mapping[int, Any]
    numbers: Mapping[int, Any]
    kept: Mapping[int, list[Parameters]]
    name: str


@dataclass(frozen=True)
class Address:
    """So many bytes behind the begin of a tensor that is given, or allocated."""

    tensor: StandIn
    offset: int = 0

    def __add__(self, more: int) -> Address:
        return Address(self.tensor, self.offset + more)


@dataclass(eq=False)
class StandIn:
    """A contiguous tensor as far as its dtype and shape, in the call that made these `steps`; a view of another where it has an `origin`."""

    dtype: Any
    shape: Any
    steps: list[Step] = field(repr=False)
    origin: Address | None = None

    @property
    def nbytes(self) -> int:
        return self.numel() * int(self.dtype.itemsize)

    def __bool__(self) -> bool:
        raise Untraceable("its value is asked for")

    def __eq__(self, other: object) -> bool:
        raise Untraceable("its value is asked for")

    __hash__ = object.__hash__

    def numel(self) -> int:
        return math.prod(self.shape)

    def data_ptr(self) -> Address:
        return self.origin or Address(self)

    def view(self, *shape: int) -> StandIn:
        known = math.prod(size for size in shape if size != -1)
        sizes = tuple(self.numel() // known if size == -1 else size for size in shape)
        return StandIn(self.dtype, sizes, self.steps, self.data_ptr())

    def __getitem__(self, part: Any) -> StandIn:
        """Rows that lie one behind the other."""
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise Untraceable(f"a part {part!r} of a tensor")
        begin, end, _ = part.indices(self.shape[0])
        row = int(self.dtype.itemsize) * math.prod(self.shape[1:])
        return StandIn(self.dtype, (max(0, end - begin), *self.shape[1:]), self.steps, self.data_ptr() + begin * row)

    def is_contiguous(self) -> bool:
        return True

    def new_empty(self, *shape: Any, dtype: Any = None) -> StandIn:
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        return StandIn(dtype or self.dtype, tuple(sizes), self.steps)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, given: Any = (), options: Any = None) -> StandIn:
        """Of Torch's functions the one that only allocates."""
        import torch

        if function is not torch.empty_like or set(options or ()) > {"dtype"}:
            raise Untraceable(f"torch.{function.__name__}")
        of: StandIn = given[0]
        return of.new_empty(of.shape, **(options or {}))


def steps_of(given: Sequence[Any]) -> list[Step] | None:
    """What the call has launched so far of which these arguments are stand-ins. None where they are none."""
    return next((value.steps for value in given if isinstance(value, StandIn)), None)


def traced(call: Callable[..., Any], given: Sequence[Any]) -> tuple[list[Any], list[Step], Any]:
    """What the call is given, with stand-ins for its tensors, also in tuples and lists; its launches in order; and what it returns of
    stand-ins. Raises Untraceable where it does more than to launch and to allocate."""
    steps: list[Step] = []
    try:
        stand_ins = [_stand_in(value, steps) for value in given]
        return stand_ins, steps, call(*stand_ins)
    except Exception as error:  # the call itself has run: what it minds now is that these are no tensors
        raise Untraceable(str(error)) from error


def _stand_in(value: Any, steps: list[Step]) -> Any:
    import torch

    if isinstance(value, tuple | list):
        return type(value)(_stand_in(inner, steps) for inner in value)
    return StandIn(value.dtype, value.shape, steps) if isinstance(value, torch.Tensor) else value
