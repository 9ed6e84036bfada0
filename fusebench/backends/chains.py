"""Several launches as one call: its tensors are checked once, and what the launches hand on lies in one allocation.

What a launch costs the calling thread beside the driver's own time, a call of several would pay for each of them, with an allocation for
each tensor between them. So the first call is traced (stand_ins.py), and the text of one straight-line function is put together, as
calls.py does for a single launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fusebench.backends.calls import compiled, of_the_driver, queueing, strides_of
from fusebench.backends.parameters import Parameters
from fusebench.backends.stand_ins import StandIn, Step, Untraceable, traced

APART = 512  # bytes: what launches hand on begins at multiples of them, as Torch's own memory does
TRIES = 3  # calls after which one that could not be put together is left as it is


def chained(built: Any) -> Any:
    """A function that returns what the call `built` does, or (forward, backward) of such. They take, by position, tensors and tuples and lists
    of them; whatever else they are given is the same object in every call.

    A call must launch the same for all tensors of the same dtypes and shapes, and of no tensors but those that it is given or allocates. The
    first one on a device shows what that is; later ones, of such tensors, go straight to the driver. What lies between the launches is there
    until the last one, where the call itself would free it earlier. A call that does more than to launch and to allocate runs as it is; so does
    one that has chained calls in it, which remain what they are.
    """
    return tuple(map(_chained, built)) if isinstance(built, tuple) else _chained(built)


def _chained(call: Callable[..., Any]) -> Callable[..., Any]:
    chain: _Chain | None = None
    run, tries = call, TRIES

    def other(*given: Any) -> Any:
        """The call as it is, after which its launches have what one of them all is put together from."""
        nonlocal chain, run, tries
        result = call(*given)
        if tries and (index := _device_of(given)) is not None:
            tries -= 1
            try:
                made = chain or _Chain(call, given, other)
                made.keep(given, index)
                chain, run, tries = made, made.run, TRIES
            except Untraceable:
                run = run if chain or tries else call
        return result

    run = other
    return lambda *given: run(*given)


class _State:
    """What one call at a time writes to: the parameters of its launches, and where in them (memory, place) an address belongs that lies so many
    bytes behind `base`."""

    def __init__(self, parameters: Sequence[Parameters], moves: Sequence[tuple[Any, int, int]]):
        self.parameters, self._moves, self.base, self.stream = parameters, moves, -1, -1

    def move(self, base: int) -> None:
        """To another allocation than the last call's."""
        for memory, place, offset in self._moves:
            memory[place] = base + offset
        self.base = base

    def queue_on(self, stream: int) -> None:
        """On another stream than the last call's."""
        for parameters in self.parameters:
            parameters.queue_on(stream)
        self.stream = stream


class _Chain:
    """A call that was traced. `run` is its straight-line function, which needs what `keep` takes. Raises Untraceable."""

    def __init__(self, call: Callable[..., Any], given: Sequence[Any], other: Callable[..., Any]):
        self._given, self._steps, result = traced(call, given)
        if len(self._steps) < 2:
            raise Untraceable("fewer than two launches")
        self._kept: dict[int, list[tuple[Any, ...]]] = {}
        # the offset of each tensor between the launches, by the identity of its stand-in
        self._between: dict[int, int] = {}
        self.run = self._straight(result, other)

    def keep(self, given: Sequence[Any], index: int) -> None:
        """Takes from its launches what one call at a time needs on that device, if it has none and the call before was one of such tensors. Raises
        Untraceable where a launch has kept nothing, or something else."""
        if self._kept.get(index) or not _alike(given, self._given):
            return
        taken: list[Parameters] = []
        try:
            for step in self._steps:
                taken.append(_parameters_of(step, index))
        except Untraceable:
            for step, own in zip(self._steps, taken, strict=False):
                step.kept[index].append(own)
            raise
        moves = [
            (*own.target(p), begin + address.offset)
            for step, own in zip(self._steps, taken, strict=True)
            for p, address in step.tensors.items()
            if (begin := self._between.get(id(address.tensor))) is not None
        ]
        memory = [own.maps[p].tensor for step, own in zip(self._steps, taken, strict=True) for p in step.maps]
        launches = [part for own in taken for part in (own.values, own.config, own.function, own.address)]
        self._kept.setdefault(index, []).append((_State(taken, moves), *memory, *launches))

    def _straight(self, result: Any, other: Callable[..., Any]) -> Callable[..., Any]:
        """As `calls.straight`, of all launches."""
        given = {id(leaf): name for name, leaf in _leaves(self._given) if isinstance(leaf, StandIn)}
        targets, tensors = self._targets()
        returned = {
            id(leaf.data_ptr().tensor if isinstance(leaf, StandIn) else leaf)
            for _, leaf in _leaves(result)
            if leaf is not None
        }
        if not returned <= given.keys() | tensors.keys() or not given.keys() & tensors.keys():
            raise Untraceable("it returns what no launch has, or no launch has what it is given")
        names: dict[str, Any] = {"kept": self._kept, "other": other, "room": (0,), **of_the_driver()}
        names |= {f"k_{name}": leaf for name, leaf in _leaves(self._given) if not isinstance(leaf, StandIn)}
        checks = [f"{name[2:]} is {name}" for name in names if name.startswith("k_")]
        pointers, writes, made = [], [], dict[int, str]()
        for name, leaf in _leaves(self._given):
            if isinstance(leaf, StandIn):  # also those that no launch has: their shapes may say what is launched
                names |= {f"d_{name}": leaf.dtype, f"s_{name}": leaf.shape}
                checks += [f"{name}.dtype is d_{name}", f"{name}.shape == s_{name}"]
        for key, tensor in tensors.items():
            if key in given:
                name = given[key]
                checks += [f"{name}.get_device() == index", f"{name}.is_contiguous()"]
                pointers.append(f"(p_{name} := {name}.data_ptr())")
            elif key in returned:
                made[key] = name = f"y{len(made)}"
                own = {"s": tuple(tensor.shape), "t": strides_of(tensor.shape), "d": tensor.dtype}
                names |= {f"{of}_{name}": value for of, value in own.items()}
                writes += [f"{name} = empty(s_{name}, t_{name}, d_{name})", f"p_{name} = {name}.data_ptr()"]
            else:
                (begin,) = names["room"]
                self._between[key], names["room"] = begin, (begin + -(-tensor.nbytes // APART) * APART,)
                continue
            writes += [
                f"{target} = p_{name} + {offset}" if offset else f"{target} = p_{name}"
                for target, offset in targets[key]
            ]
        if self._between:
            names["one"] = (1,)
            writes += ["between = empty(room, one, byte)", "base = between.data_ptr()", "if base != state.base:", "    state.move(base)"]  # fmt: skip
        memory = [f"m{i}_{p}" for i, step in enumerate(self._steps) for p in step.maps]
        memory += [f"{of}{i}" for i in range(len(self._steps)) for of in "vcfd"]
        names |= {f"n{i}": step.name for i, step in enumerate(self._steps)}
        queued = queueing(
            "state", [(f"c{i}, f{i}, d{i}", f"state.parameters[{i}]", f"n{i}") for i in range(len(self._steps))]
        )
        lines = [f"state, {', '.join(memory)} = own", *writes, *queued]
        first = next(given[key] for key in tensors if key in given)
        end, what = _expression(result, given | made), f"<a call of {len(self._steps)} launches>"
        unpacking = _unpacking("given", "a", self._given)
        return compiled("*given", first, checks, pointers, lines, end, names, what, unpacking)

    def _targets(self) -> tuple[dict[int, list[tuple[str, int]]], dict[int, StandIn]]:
        """Where the address of each tensor is written, and how many bytes behind its begin; and the tensors themselves, in the order in which
        they are met. Both by the identity of the stand-ins."""
        targets: dict[int, list[tuple[str, int]]] = {}
        tensors: dict[int, StandIn] = {}
        for i, step in enumerate(self._steps):
            for p, address in step.tensors.items():
                target = f"m{i}_{p}[0]" if p in step.maps else f"v{i}[{p}]"
                targets.setdefault(id(address.tensor), []).append((target, address.offset))
                tensors[id(address.tensor)] = address.tensor
        return targets, tensors


def _leaves(values: Sequence[Any] | Any, name: str = "a") -> Iterator[tuple[str, Any]]:
    """What a call is given or returns, without the tuples and lists, each with the name of its place."""
    if not isinstance(values, tuple | list):
        yield name, values
        return
    for i, value in enumerate(values):
        yield from _leaves(value, f"{name}_{i}")


def _unpacking(values: str, name: str, given: Sequence[Any]) -> Iterator[str]:
    """Lines that give each of `_leaves`, and what they are in, its name."""
    inner = [f"{name}_{i}" for i in range(len(given))]
    yield f"[{', '.join(inner)}] = {values}"
    for part, value in zip(inner, given, strict=True):
        if isinstance(value, tuple | list):
            yield from _unpacking(part, part, value)


def _expression(result: Any, names: dict[int, str]) -> str:
    """What a call returns, as Python."""
    if isinstance(result, tuple | list):
        inner = ", ".join(_expression(part, names) for part in result)
        return f"[{inner}]" if isinstance(result, list) else f"({inner},)" if result else "()"
    if result is None or result.origin is None:
        return "None" if result is None else names[id(result)]
    whole, offset = names[id(result.origin.tensor)], result.origin.offset // result.dtype.itemsize
    if not whole.startswith("y"):
        raise Untraceable("it returns a part of what it is given")
    return f"{whole}.as_strided({tuple(result.shape)}, {strides_of(result.shape)}, {offset})"


def _alike(given: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether a call was given tensors of such dtypes and shapes, and the same objects beside them."""
    now, then = dict(_leaves(given)), dict(_leaves(expected))
    return now.keys() == then.keys() and all(
        (getattr(leaf, "dtype", None), getattr(leaf, "shape", None)) == (wanted.dtype, wanted.shape)
        if isinstance(wanted := then[name], StandIn)
        else leaf is wanted
        for name, leaf in now.items()
    )


def _parameters_of(step: Step, index: int) -> Parameters:
    """What a launch has kept for that device, which is taken from it. Raises Untraceable where that is nothing, or not of this step."""
    if not step.kept.get(index):
        raise Untraceable("a launch has kept nothing")
    own = step.kept[index][-1]
    if any(own.maps[p].shape != shape for p, shape in step.maps.items()):
        raise Untraceable("a tensor map does not follow its tensor")
    if any((type(own.numbers[p]), repr(own.numbers[p])) != (type(n), repr(n)) for p, n in step.numbers.items()):
        raise Untraceable("a launch was given other numbers since")
    return step.kept[index].pop()


def _device_of(given: Sequence[Any]) -> int | None:
    """The GPU of the first tensor."""
    first = next((leaf for _, leaf in _leaves(given) if hasattr(leaf, "get_device")), None)
    index = -1 if first is None else int(first.get_device())
    return index if index >= 0 else None
