"""What is called and timed in each mode, and with what: an implementation builds one call, or in the backward modes a forward and
a backward.

The arguments of a call are the inputs and weights, then the upstream gradients of a backward mode, then what was prepared. In the
mode `backward` a forward call that nobody times leaves its residuals behind them; the upstream gradients are made after it (late.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusebench.timing.samples import Ring
from fusebench.workers import late
from fusebench.workers.outputs import Unfit, as_list

EXPECTED = "build() gave {}; in a backward mode it gives (forward, backward)"


@dataclass(frozen=True)
class Places:
    """How many of the arguments are inputs and weights, how many upstream gradients, and how many were prepared."""

    inputs: int
    upstream: int = 0
    prepared: int = 0

    @property
    def count(self) -> int:
        return self.inputs + self.upstream + self.prepared

    def own(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """The inputs and weights."""
        return arguments[: self.inputs]

    def of_forward(self, arguments: Sequence[Any]) -> list[Any]:
        """The inputs, and what was prepared."""
        return [*arguments[: self.inputs], *arguments[self.inputs + self.upstream : self.count]]

    def behind(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """The upstream gradients."""
        return arguments[self.inputs : self.inputs + self.upstream]


@dataclass(frozen=True)
class Calls:
    """The call that is timed, and what makes arguments ready for it, where something has to."""

    call: Callable[..., Any]
    ready: Callable[[list[Any]], list[Any]] | None = None

    def on(self, ring: Ring, arguments: list[Any], backend: Any) -> tuple[Ring, int | None]:
        """The ring, from now on with arguments that are ready, as those at hand are then; and the bytes that residuals take."""
        if self.ready is None:
            return ring, None
        saved = saved_bytes(backend, self.ready(arguments))
        return replace(ring, ready=self.ready, ready_bytes=saved), saved


def prepared(made: Any) -> list[Any]:
    """What `prepare` returned, as a list. Raises Unfit for what is no tuple: of an array it would be the rows."""
    if not isinstance(made, tuple | list):
        raise Unfit(f"prepare() gave {type(made).__name__}, expected a tuple of arrays")
    return list(made)


def of(built: Any, mode: str, places: Places, backend: Any) -> Calls:
    """The calls of what `build` returned. Raises Unfit where that is not what the mode needs."""
    if mode == "forward" and not callable(built):
        raise Unfit(f"build() gave {type(built).__name__}, expected a function to call")
    if mode == "forward":
        return Calls(built)
    if not (isinstance(built, tuple) and len(built) == 2 and all(map(callable, built))):
        raise Unfit(EXPECTED.format(type(built).__name__))
    forward, backward = built

    def ready(arguments: list[Any]) -> list[Any]:
        _, residuals = forward(*places.of_forward(arguments))
        backend.wait(residuals)  # what forward has begun must not find them either
        begin, end = places.inputs, places.inputs + places.upstream
        arguments[begin:end] = map(late.made, arguments[begin:end])
        arguments[places.count :] = [residuals]  # in the place of others, if they have been made ready before
        return arguments

    def on_residuals(*arguments: Any) -> Any:
        return backward(arguments[-1], *places.behind(arguments))

    def both(*arguments: Any) -> tuple[Any, ...]:
        outputs, residuals = forward(*places.of_forward(arguments))
        outputs, upstream = backend.in_order(outputs, places.behind(arguments))
        return *as_list(outputs), *as_list(backward(residuals, *upstream))

    return Calls(on_residuals, ready) if mode == "backward" else Calls(backend.in_one(both))


def saved_bytes(backend: Any, arguments: Sequence[Any]) -> int:
    """Bytes of memory that the residuals, the last of the arguments, keep beyond the other ones."""
    *own, residuals = arguments
    known = {backend.memory(array) for array in own if backend.is_array(array)}
    kept = {backend.memory(array) for array in backend.saved(residuals)} - known
    return sum(end - begin for begin, end in kept)
