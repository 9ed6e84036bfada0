"""What an implementation may change in its process beside its results, and what the next cell would inherit."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter, is_, methodcaller
from types import CodeType, FunctionType, ModuleType
from typing import Any

from fusebench.backends import protocol
from fusebench.workers import process

# Libraries whose public modules and classes are compared, beside all that modules of the harness import and what these are made of.
LIBRARIES = {module for one in protocol.found().values() for module in one.modules}
MODULES = ("builtins", "gc", "math", "msgspec.msgpack", "msgspec.structs", "torch._C", "torch._C._nn", "jax._src.array")
# Modes of Torch that are entered see every function and operator of it; of a default device there is a setting.
STACKS = (
    ("torch.overrides", "_get_current_function_mode_stack"),
    ("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack"),
)
# Where the function is that one of these types stands for: its code is what such a name runs.
BEHIND = {
    "property": "fget", "cached_property": "func", "classmethod": "__func__", "staticmethod": "__func__", "partial": "func", "function": "__wrapped__",
    "_lru_cache_wrapper": "__wrapped__", "_ArrayFunctionDispatcher": "_implementation", "PjitFunction": "__wrapped__",
}  # fmt: skip
HARNESS, IMPLEMENTATIONS = "fusebench.", "implementations."
# What Torch replaces itself: with its default dtype, and where its compiler loads a program from its cache.
THEIRS = ("torch.Storage", "torch.fx.graph_module._CodeOnlyModule.forward")
REPLACED = "it replaced {}, which results and clocks depend on"
WORDS = 60  # letters of a value that are shown
# By which these may grow: caches, compilers, libraries of a GPU, and the memory in which XLA copies large inputs to it.
ALLOWED = {
    "open files": 200,
    "MiB of memory": max(2048, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**23),
}
SHOWN = 6  # of the changes of a cell: to replace a module is hundreds
MADE_BY_PYTHON, FIXED = 1 << 9, 1 << 8  # flags of a type: whether it has attributes that can be set
GONE = object()
CODE, DEFAULTS, MODULE = attrgetter("__code__"), attrgetter("__defaults__"), attrgetter("__module__")
BASES, VALUES = attrgetter("__bases__"), methodcaller("values")
TOGETHER = 32  # modules and classes: of a group in which one has changed, each is looked at


def read(backend: Any) -> dict[str, Any]:
    """The state of the process and the framework's settings, by name."""
    return {**process.read(), **backend.settings()}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """What differs, a few words for each; of what was not there before, variables alone are a change."""
    found = [
        f"{n} {_short(old)} → {_short(after.get(n))}" for n, old in before.items() if _differs(n, old, after.get(n))
    ]
    if before:
        found += [
            f"{name} set to {after[name]}" for name in after if name.startswith("variable ") and name not in before
        ]
    return _few(found)


def _differs(name: str, old: Any, new: Any) -> bool:
    return new - old > ALLOWED[name] if name in ALLOWED and new is not None else bool(new != old)


class Names:
    """What the names of modules and classes stood for that results and clocks depend on: those of the harness, of what it imports, of
    the frameworks, and of implementations. All of it is looked at once, and then held against what they stand for now: some fifty thousand, so that
    nothing is made for each that Python's collection of garbage would look at. That takes 10 ms, so a worker does it once a cell: `look` takes note of what `replaced` found."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[Any, dict[str, Any]]] = {}  # of modules and classes by name
        self.made: dict[str, tuple[Any, Any]] = {}  # of which class each of them is, and on which bases
        self.groups: list[Group] = []  # of `held`, in its order
        self.unlike: set[str] | None = None  # those that `replaced` found to be otherwise since, if it was asked
        # by the module's or class's name
        self.functions_of: dict[str, list[FunctionType]] = {}
        self.cells_of: dict[str, list[tuple[str, Any]]] = {}  # where closures of the harness's hold functions
        self.functions: list[FunctionType] = []
        self.cells: list[tuple[str, Any, Any]] = []  # and those functions
        self.codes: list[CodeType] = []
        self.defaults: list[tuple[Any, ...] | None] = []
        self.modules: list[str | None] = []  # those that the functions are of
        self.keywords: list[
            tuple[int, dict[str, Any]]
        ] = []  # by a function's place, defaults of arguments that have to be named, copied
        self.constants_of: dict[str, list[tuple[str, Any]]] = {}
        self.constants: dict[str, tuple[Any, Any]] = {}  # of the harness, those that hold others, with copies
        self.amid: dict[str, tuple[Any, ...]] = {}  # what is called amid lines of the harness

    def look(self) -> None:
        """Takes note of what they stand for now, of what was loaded since too."""
        unlike = self.unlike
        if unlike is None or not _program():  # beside programs of others names change between cells, too
            unlike = {
                n for n, (o, held) in self.held.items() if not (_same(held, vars(o)) and _is_made(o, self.made[n]))
            }
        for name, owner in _owners(self.held):
            self.held[name] = owner, {}
            unlike.add(name)
        self.held |= {name: (self.held[name][0], vars(self.held[name][0]).copy()) for name in unlike}
        self.made |= {name: _made(self.held[name][0]) for name in unlike}
        names = list(self.held)
        groups = [names[n : n + TOGETHER] for n in range(0, len(names), TOGETHER)]
        known = [n < len(self.groups) and unlike.isdisjoint(group) for n, group in enumerate(groups)]
        self.groups = [
            self.groups[n] if known[n] else Group(group, self.held, self.made) for n, group in enumerate(groups)
        ]
        for name in unlike:
            self.functions_of[name] = found = _all_functions(self.held[name][1].values())
            self.cells_of[name] = [cell for f in found if str(f.__module__).startswith(HARNESS) for cell in _cells(f)]
        if unlike:
            self.functions = [f for functions in self.functions_of.values() for f in functions]
        self.cells = [(n, cell, _content(cell)) for cells in self.cells_of.values() for n, cell in cells]
        self.codes, self.defaults = list(map(CODE, self.functions)), list(map(DEFAULTS, self.functions))
        self.modules = list(map(MODULE, self.functions))
        self.keywords = [(n, f.__kwdefaults__.copy()) for n, f in enumerate(self.functions) if f.__kwdefaults__]
        self.unlike = None
        for name in unlike:
            if name.startswith(HARNESS):
                own = self.held[name][1].items()
                self.constants_of[name] = [(n, v) for n, v in own if n.isupper() and isinstance(v, dict | list | set)]
        self.constants = {f"{name}.{n}": (v, v.copy()) for name, own in self.constants_of.items() for n, v in own}
        self.amid = _amid()

    def replaced(self, own: str = "") -> tuple[str, ...]:
        """The names that stand for something else now, but for those of the module `own`. A new one replaces nothing, but in the harness, and
        where it stands before one of Python's, or that of a base."""
        found = []
        self.unlike = self.unlike or set()
        for owner_name in (name for group in self.groups if not group.is_same() for name in group.names):
            owner, held = self.held[owner_name]
            now = vars(owner)
            made = _is_made(owner, self.made[owner_name])
            if made and _same(held, now) and _loaded(owner_name, owner):
                continue
            self.unlike.add(owner_name)
            if owner_name != own and held.get("__module__") != own:
                found += [] if _loaded(owner_name, owner) else [owner_name]
                found += [] if made else [f"the class or bases of {owner_name}"]
                found += _unlike(owner_name, owner, held, now)
        edited: list[int] = []  # places of functions
        if not (
            all(map(is_, map(CODE, self.functions), self.codes))
            and all(map(is_, map(DEFAULTS, self.functions), self.defaults))
        ):
            codes, defaults = list(map(CODE, self.functions)), list(map(DEFAULTS, self.functions))
            as_held = zip(codes, self.codes, defaults, self.defaults, strict=True)
            edited = [n for n, (c, old, values, olds) in enumerate(as_held) if c is not old or values is not olds]
        edited += [n for n, held in self.keywords if not _same(held, self.functions[n].__kwdefaults__ or {})]
        found += [f"{self.modules[n]}.{self.functions[n].__qualname__}" for n in edited if self.modules[n] != own]
        found += [name for name, cell, value in self.cells if _content(cell) is not value]
        found += [name for name, (value, copy) in self.constants.items() if value != copy]
        found += [n for n, called in _amid().items() if list(map(id, called)) != list(map(id, self.amid.get(n, ())))]
        return _few([name for name in dict.fromkeys(found) if name not in (*THEIRS, own)])


class Group:
    """Some modules and classes, of which one look says whether all are as they were: one by one that took half as long again."""

    def __init__(
        self, names: list[str], held: Mapping[str, tuple[Any, dict[str, Any]]], made: Mapping[str, tuple[Any, Any]]
    ):
        self.names, self.owners = names, [held[n][0] for n in names]
        self.values = [value for n in names for value in held[n][1].values()]
        self.sizes = [len(held[n][1]) for n in names]
        self.types = [made[n][0] for n in names]
        self.classes = [owner for owner in self.owners if isinstance(owner, type)]
        self.bases = [made[n][1] for n in names if isinstance(held[n][0], type)]
        self.modules = {
            n: owner
            for n, owner in zip(names, self.owners, strict=True)
            if not (isinstance(owner, type) or n.startswith(IMPLEMENTATIONS))
        }

    def is_same(self) -> bool:
        now = list(map(vars, self.owners))
        return (
            self.sizes == list(map(len, now))
            and all(map(is_, self.values, chain.from_iterable(map(VALUES, now))))
            and all(map(is_, self.types, map(type, self.owners)))
            and all(map(is_, self.bases, map(BASES, self.classes)))
            and all(map(is_, self.modules.values(), map(sys.modules.get, self.modules)))
        )


def _short(value: Any) -> str:
    """A value in a few words."""
    words = str(value)
    return words if len(words) <= WORDS else f"{words[:WORDS]}…"


def _few(found: list[str]) -> tuple[str, ...]:
    return tuple(found if len(found) <= SHOWN else [*found[:SHOWN], f"{len(found) - SHOWN} more"])


def _same(held: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return len(now) == len(held) and all(map(is_, held.values(), now.values()))


def _made(owner: Any) -> tuple[Any, Any]:
    """The class of a module or class, and the bases of one: either may put others before what stands in itself."""
    return type(owner), owner.__bases__ if isinstance(owner, type) else None


def _is_made(owner: Any, made: tuple[Any, Any]) -> bool:
    # a module that loads itself when it is asked for becomes a plain one, whose class puts nothing before
    known = type(owner) is made[0] or type(owner) is ModuleType
    return known and (made[1] is None or owner.__bases__ is made[1])


def _all_functions(values: Iterable[Any]) -> list[FunctionType]:
    return [f for value in values if type(value).__name__ in BEHIND for f in _functions(value)]


def _functions(value: Any) -> Iterator[FunctionType]:
    """The function that a name stands for, and those behind it, such as the one whose answers are kept."""
    while value is not None:
        if type(value) is FunctionType:
            yield value
        value = getattr(value, BEHIND.get(type(value).__name__, ""), None)


def _cells(function: FunctionType) -> Iterator[tuple[str, Any]]:
    name = f"{function.__module__}.{function.__qualname__}"
    for cell in function.__closure__ or ():
        if type(_content(cell)) is FunctionType:
            yield name, cell


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _loaded(name: str, owner: Any) -> bool:
    """Whether a module is the one that an import finds; of implementations the worker looks itself."""
    return isinstance(owner, type) or name.startswith(IMPLEMENTATIONS) or sys.modules.get(name) is owner


def _unlike(owner_name: str, owner: Any, held: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    plain = type(owner) is ModuleType or isinstance(owner, type)  # a module of a class of its own has a state
    ours = plain and owner_name.startswith((HARNESS, "__main__"))
    bases = [vars(base) for base in owner.__mro__[1:]] if isinstance(owner, type) else [vars(builtins)]
    for name, was in held.items():
        value = now.get(name, GONE)
        counts = (ours and name[:2] != "__") or (_matters(owner_name, name, was) and not _by_itself(owner_name, value))
        # an import has put the package's own module of that name in its place
        imported = isinstance(was, ModuleType) and sys.modules.get(f"{owner_name}.{name}") is value
        if value is not was and counts and not imported:
            yield f"{owner_name}.{name}"
    for name in now.keys() - held.keys():
        value = now[name]
        stands_before = any(name in base for base in bases) and not _by_itself(owner_name, value)
        if _is_code(value) and (ours or stands_before):
            yield f"{owner_name}.{name}"


def _matters(owner_name: str, name: str, value: Any) -> bool:
    """Whether a name that stood for this and stands for something else now is a change: caches and counters of libraries are not, which
    lie deeper than such as math.pi."""
    constant = "." not in owner_name and name[0] != "_" and isinstance(value, bool | int | float | str)
    return _is_code(value) or isinstance(value, ModuleType) or constant or type(value).__name__ == "dtype"


def _by_itself(owner_name: str, value: Any) -> bool:
    """Whether a library's own private parts have put it there, as Torch's compiler wraps its optimisers when it is loaded."""
    private = f"{os.sep}{owner_name.partition('.')[0]}{os.sep}_"
    return type(value) is FunctionType and private in value.__code__.co_filename


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, property | classmethod | staticmethod)


def _owners(held: Mapping[str, tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """The modules that are not held, and their classes, by name."""
    program = _program()
    modules = {name: module for name, module in sys.modules.copy().items() if issubclass(type(module), ModuleType)}
    ours = {name: module for name, module in modules.items() if name.startswith(HARNESS) or name in program}
    imported = {v.__name__ for module in ours.values() for v in vars(module).copy().values() if type(v) is ModuleType}
    for name, module in modules.items():
        wanted = _of_library(name) or name.startswith(IMPLEMENTATIONS) or name in ours or name in imported
        if wanted and held.get(name, (None,))[0] is not module:
            yield name, module
            for value in vars(module).copy().values():
                if issubclass(type(value), type):
                    yield from (one for one in _classes(value, name in ours) if one[0] not in held)


def _program() -> tuple[str, ...]:
    """The module that was started, if it is the harness's, as a worker's is."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return ("__main__",) if main and main.name.startswith(HARNESS) else ()


def _classes(class_: type, with_bases: bool) -> Iterator[tuple[str, type]]:
    """The class, and its bases, as far as they can be changed and are a library's, or used by the harness."""
    for one in class_.__mro__ if with_bases else (class_,):
        settable, module = one.__flags__ & MADE_BY_PYTHON and not one.__flags__ & FIXED, str(one.__module__)
        if settable and (with_bases or _of_library(module) or module.startswith((HARNESS, IMPLEMENTATIONS))):
            yield f"{module}.{one.__qualname__}", one


def _of_library(module: str) -> bool:
    """Whether it is a public module of a library, or a private one that results depend on."""
    return module in MODULES or (module.partition(".")[0] in LIBRARIES and "._" not in module)


def _amid() -> dict[str, tuple[Any, ...]]:
    """What is called amid lines of the harness, so that it could compute before a clock is started: modes of Torch that are entered, by where they
    are kept, and functions that Python calls of itself in this thread."""
    found: dict[str, tuple[Any, ...]] = {
        "the function of sys.setprofile": _there(sys.getprofile()),
        "the function of sys.settrace": _there(sys.gettrace()),
        "the tools of sys.monitoring": _tools(),
    }
    for module, name in STACKS:
        if entered := getattr(sys.modules.get(module), name, None):
            found[f"the modes of {module}"] = tuple(m for m in entered() if type(m).__name__ != "DeviceContext")
    return found


def _tools() -> tuple[Any, ...]:
    """The names of those that have a number, from Python 3.12 on."""
    monitoring = getattr(sys, "monitoring", None)
    return () if monitoring is None else tuple(filter(None, map(monitoring.get_tool, range(6))))


def _there(function: Any) -> tuple[Any, ...]:
    return () if function is None else (function,)
