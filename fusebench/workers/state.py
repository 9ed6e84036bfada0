"""What an implementation may change in its process beside its results, and what the next cell would inherit."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

from fusebench.workers import process

# Beside what modules of the harness import, whole modules and classes.
MODULES = ("builtins", "gc", "math", "numpy.random", "numpy.lib.format", "msgspec.msgpack", "msgspec.structs", "torch._C",
           "torch.nn.functional", "torch.profiler", "torch.autograd.profiler", "jax.lax", "jax.profiler")  # fmt: skip
CLASSES = (("torch", "Tensor"), ("jax._src.array", "ArrayImpl"))
# Modes of Torch that are entered see every function and operator of it; of a default device there is a setting.
STACKS = (
    ("torch.overrides", "_get_current_function_mode_stack"),
    ("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack"),
)
HARNESS, IMPLEMENTATIONS = "fusebench.", "implementations."
OWN = ("torch.manual_seed", "torch.Storage")  # Torch's compiler, and its default dtype, replace them themselves
REPLACED = "it replaced {}, which results and clocks depend on"
WORDS = 60  # letters of a value that are shown
SHOWN = 6  # of the changes of a cell: to replace a module is hundreds


def read(backend: Any) -> dict[str, Any]:
    """The state of the process and the framework's settings, by name."""
    return {**process.read(), **backend.settings()}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """What differs, a few words for each; of what was not there before, variables alone are a change."""
    found = [
        f"{name} {_short(old)} → {_short(after.get(name))}" for name, old in before.items() if after.get(name) != old
    ]
    if before:
        found += [
            f"{name} set to {after[name]}" for name in after if name.startswith("variable ") and name not in before
        ]
    return _few(found)


@dataclass(frozen=True)
class Functions:
    """The functions that results and clocks depend on, by name, and the code of those that have some."""

    values: Mapping[str, Any]
    codes: Mapping[str, Any]

    def same(self, name: str, after: Functions) -> bool:
        """Whether it is the same function; methods of a class are made anew each time that one asks for them, and are equal."""
        was, is_ = self.values[name], after.values.get(name)
        if self.codes.get(name) is not after.codes.get(name):
            return False
        return was is is_ or (type(was) is type(is_) and not isinstance(was, type) and bool(was == is_))


def functions(own: str = "") -> Functions:
    """The functions of Python, the frameworks, the harness and the implementations' other modules than `own`. Some thousand: nothing is
    made for each that Python's collection of garbage would look at."""
    values = dict(_functions(own))
    with_code = (FunctionType, MethodType)
    return Functions(values, {name: value.__code__ for name, value in values.items() if type(value) in with_code})


def replaced(before: Functions, after: Functions) -> tuple[str, ...]:
    """The names of those that are not what they were. What was not there before was not replaced, but in the harness and in classes,
    where it may stand before one of Python's, or that of a base."""
    codes, now, codes_now = before.codes, after.values, after.codes
    unlike = [n for n, was in before.values.items() if now.get(n) is not was or codes.get(n) is not codes_now.get(n)]
    found = [name for name in unlike if not before.same(name, after)]
    if new := now.keys() - before.values.keys():
        owners = {name.rpartition(".")[0] for name in before.values if name.startswith((HARNESS, "__main__."))}
        owners |= {name for name, was in before.values.items() if isinstance(was, type)}
        found += sorted(n for n in new if n.rpartition(".")[0] in owners and type(now[n]) is not ModuleType)
    return _few(found)


def _short(value: Any) -> str:
    """A value in a few words."""
    words = str(value)
    return words if len(words) <= WORDS else f"{words[:WORDS]}…"


def _few(found: list[str]) -> tuple[str, ...]:
    return tuple(found if len(found) <= SHOWN else [*found[:SHOWN], f"{len(found) - SHOWN} more"])


def _functions(own: str) -> Iterator[tuple[str, Any]]:
    modules = list(sys.modules.items())
    main = getattr(sys.modules["__main__"], "__spec__", None)
    program = ("__main__",) if main and main.name.startswith(HARNESS) else ()  # a worker's is the harness's
    harness = [(name, module) for name, module in modules if name.startswith(HARNESS) or name in program]
    whole = {name: sys.modules[name] for name in MODULES if name in sys.modules}
    whole |= {name: module for name, module in modules if name.startswith(IMPLEMENTATIONS) and name != own}
    classes = dict[type, None]()
    for module, name in CLASSES:
        if class_ := getattr(sys.modules.get(module), name, None):
            yield from ((f"{module}.{name}.{method}", getattr(class_, method, None)) for method in dir(class_))
    for module, name in STACKS:
        if entered := getattr(sys.modules.get(module), name, None):
            yield f"the modes of {module}", tuple(m for m in entered() if type(m).__name__ != "DeviceContext")
    for module, code in harness:
        for name, value in list(vars(code).items()):
            if callable(value) or isinstance(value, ModuleType):
                yield f"{module}.{name}", value
            if isinstance(value, ModuleType):
                whole[value.__name__] = value
            elif isinstance(value, type):
                classes |= dict.fromkeys(value.__mro__)
    for module, code in whole.items():
        for name, value in list(vars(code).items()) if not module.startswith(HARNESS) else ():
            if callable(value) and (shown := f"{module}.{name}") not in OWN:
                yield shown, value
    for class_ in classes:
        shown = f"{class_.__module__}.{class_.__qualname__}"
        yield shown, class_
        yield from ((f"{shown}.{name}", value) for name, value in list(vars(class_).items()) if _is_code(value))


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, property | classmethod | staticmethod)
