"""Finds the kernels and implementations that exist, from their folders and files alone.

A root holds one folder a kernel; `path=DIR` adds roots. Implementation files are read, not imported: their upper-case
constants are literals (contract.py), so nothing here loads torch, jax or triton, and a broken file costs only itself.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import itertools
import keyword
import re
import sys
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fusebench import kernel_file, patterns, sources, syntax
from fusebench.backends import protocol
from fusebench.contract import PRECISIONS, Expected, Mathematics, Published, Tunable
from fusebench.errors import UsageError
from fusebench.kernel_file import are_names, are_values, is_name, maps

HOME = Path(__file__).resolve().parent.parent / "implementations"
WITHOUT_GPU = ("timed", "interpreted", "emulated", "unavailable")
UNTIMED = ("interpreted", "emulated")  # without a GPU: parity only
CONSTANTS = (  # of the contract, read as literals
    "BACKEND", "VARIANTS", "REQUIRES", "IN_PLACE", "COMPUTES", "TUNABLES", "FUSED", "WITHOUT_GPU", "EXPECT", "BACKWARD",
)  # fmt: skip
NO_KERNEL = "no kernel there; expected DIR/<kernel>/kernel.py or DIR/<kernel>/<implementation>.py"
EXPECT_EXAMPLE = (
    '({"variant": "default", "case": "batch", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0"},)'
)
FUNCTIONS = {  # of an implementation, with their arguments; those of the tunables have the config as well
    "build": ("case", "variant", "device"), "skip": ("case", "variant", "device"), "config": ("case", "variant", "device"),
    "fits": ("case", "variant", "device", "config"), "launches": ("case", "variant", "device", "config"),
}  # fmt: skip


@dataclass(frozen=True)
class Implementation:
    """One implementation file, as its constants describe it. `refused` has, by device, the variants that its `skip` refuses there
    whatever the case is, with the reason. `broken` says why it cannot be used at all, or is empty."""

    kernel: str
    name: str
    file: Path
    backend: str = "torch"
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"default": ()})
    requires: Mapping[str, str] = field(default_factory=dict)
    in_place: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    without_gpu: str = "timed"
    computes: str = ""
    tunables: Mapping[str, Mapping[str, tuple[Tunable, ...]]] = field(default_factory=dict)
    fused: bool = False
    expect: tuple[Expected, ...] = ()
    backward: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broken: str = ""

    def points(self, variant: str, mode: str) -> tuple[str, ...]:
        """The points that a variant rounds at in that mode."""
        own = {"forward": (self.variants,), "backward": (self.backward,)}.get(mode, (self.variants, self.backward))
        return tuple(dict.fromkeys(point for points in own for point in points[variant]))

    def places_in_place(self, variant: str, names: Sequence[str]) -> list[int]:
        """Among all inputs of a case, by name, the places of those that the variant's call overwrites. Raises ValueError where it has
        none of them."""
        own = self.in_place.get(variant, ())
        places = [names.index(name) for name in own if name in names]
        if own and not places:
            raise ValueError(f"IN_PLACE names {', '.join(own)}, but the inputs are {', '.join(names)}")
        return places

    def missing(self) -> str | None:
        """Names the first package that this interpreter lacks for it, with the command that would install it."""
        for module, package in {**protocol.found()[self.backend].requires, **self.requires}.items():
            if not _importable(module):
                return f"needs {module}: pip install {package}"
        return None

    def unavailable(self, device: str) -> str | None:
        """Why it cannot run on this machine with `device` "cpu" or "cuda", or None."""
        if self.broken:
            return self.broken
        if device == "cpu" and self.without_gpu == "unavailable":
            return "needs an NVIDIA GPU"
        return self.missing()

    def untimed(self, device: str) -> str:
        """In a word, why it is judged and never timed with `device` "cpu" or "cuda", or ""."""
        return self.without_gpu if device == "cpu" and self.without_gpu in UNTIMED else ""

    def refusals(self, device: str) -> Mapping[str, str]:
        """By variant, why it runs no case with `device` "cpu" or "cuda"; what is emulated takes itself to be on a GPU."""
        emulated = self.untimed(device) == "emulated"
        return self.refused.get("cuda" if emulated else device, {})


@dataclass(frozen=True)
class Kernel:
    """One kernel folder: its mathematics, which is kernel.py, and its implementations by name."""

    name: str
    folder: Path
    mathematics: Mathematics
    implementations: Mapping[str, Implementation]
    sources: Mapping[str, str] = field(default_factory=dict)  # of kernel.py: sources.of_module

    @property
    def dimensions(self) -> tuple[str, ...]:
        return self.mathematics.dimensions

    @property
    def options(self) -> Mapping[str, tuple[str, ...]]:
        return self.mathematics.options


def roots_of(paths: Iterable[str | Path] = (), project: Path | None = None) -> list[Path]:
    """The folders to search: the project's own, then each of `paths` (a folder of kernels, or one kernel's folder)."""
    roots = [project or HOME]
    for path in paths:
        if not str(path) or not Path(path).is_dir():  # Path("") is the folder that one is in
            raise UsageError(f"path={path}: no such folder; expected a folder of kernels (DIR/<kernel>/kernel.py)")
        folder = Path(path).resolve()
        if not any(folder.glob("*.py")) and not any(folder.glob("*/*.py")):
            raise UsageError(f"path={path}: {NO_KERNEL}")
        roots.append(folder)
    return roots


def find_kernels(roots: Sequence[Path], broken: dict[str, UsageError] | None = None) -> dict[str, Kernel]:
    """All kernels under the roots, by name; a later root may add implementations to a kernel of an earlier one.

    Raises UsageError for two files that claim one name, and for a kernel.py that is not one: into `broken`, where that is given.
    """
    folders: dict[str, list[Path]] = {}
    for folder in (f for root in roots for f in _kernel_folders(root)):
        folders.setdefault(folder.name, []).append(folder)
    use_roots(roots)
    kernels = {}
    for name, parts in sorted(folders.items()):
        files: dict[str, Path] = {}
        for file in (f for part in dict.fromkeys(parts) for f in sorted(part.glob("*.py")) if f.name[0] not in "._"):
            if file.stem in files:
                raise UsageError(f"{file} and {files[file.stem]} are both {name}'s {file.stem}: give one another name")
            files[file.stem] = file
        if kernel_file := files.pop("kernel", None):
            try:
                mathematics = _mathematics(name, kernel_file)
            except UsageError as error:
                if broken is None:
                    raise
                broken[name] = error
                continue
            found = {stem: read_implementation(name, file) for stem, file in files.items()}
            made_of = sources.of_module(f"implementations.{name}.kernel")
            kernels[name] = Kernel(name, kernel_file.parent, mathematics, found, made_of)
    return kernels


def check_roots(roots: Sequence[Path], names: Collection[str]) -> None:
    """Raises UsageError where a root behind the project's own has nothing for a kernel of these names: other Python files are none."""
    for root in roots[1:]:
        if not any(own.name in names for own in _kernel_folders(root)):
            raise UsageError(f"path={root}: {NO_KERNEL}")


def check_broken(broken: Mapping[str, UsageError], words: Sequence[object], kernels: Iterable[str]) -> None:
    """Raises that of a kernel that the `words` choose; of the others it says that they are left out."""
    if not broken:
        return
    for name in patterns.choose("kernel", words, [*kernels, *broken]):
        if name in broken:
            others = "" if name in words else "; to name other kernels by kernel= leaves it out"
            raise UsageError(f"{broken[name]}{others}") from broken[name]
    for error in broken.values():
        print(f"fusebench: left out: {error}", file=sys.stderr)


def _mathematics(name: str, file: Path) -> Mathematics:
    """The kernel.py, imported, checked and normalised."""
    problem = ""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):  # to import it says why
        problem = kernel_file.text_problem(f"implementations.{name}.kernel", file)
    if problem:
        raise UsageError(f"{file}: {problem}")
    try:
        module = importlib.import_module(f"implementations.{name}.kernel")
    except (Exception, SystemExit) as error:  # whatever a kernel's author wrote: name the file, not our import
        where = f" (at {place})" if (place := sources.place(error)) else ""
        raise UsageError(f"{file} does not import: {type(error).__name__}: {error}{where}") from error
    if missing := [need for need in kernel_file.NEEDED if not hasattr(module, need)]:
        raise UsageError(f"{file} lacks {', '.join(missing)} (fusebench/contract.py says what each is)")
    made_of = [path for path in sources.files(module.__name__)[1:] if path.parent == file.parent]
    if problem := kernel_file.problem(module, made_of):
        raise UsageError(f"{file}: {problem}")
    return normalised(module)


def normalised(module: Any) -> Mathematics:
    """What a kernel.py, or an object with the same names, says. A commit from before axes had names may give ROWS as a tuple of
    inputs, and one ROW_AXIS for all."""
    rows, outputs = getattr(module, "ROWS", {}), getattr(module, "OUTPUTS", ())
    by_option = outputs if isinstance(outputs, Mapping) else {}
    if not isinstance(rows, Mapping):
        axis = getattr(module, "ROW_AXIS", 0)
        rows = {**dict.fromkeys(rows, axis), "": axis}
    functions = {name: getattr(module, name) for name in kernel_file.FUNCTIONS if hasattr(module, name)}
    return Mathematics(
        dimensions=tuple(module.DIMENSIONS), batch=module.BATCH, cases=module.CASES, rows=rows, **functions,
        slices=getattr(module, "SLICES", None),
        options={name: tuple(values) for name, values in getattr(module, "OPTIONS", {}).items()},
        precisions=tuple(getattr(module, "PRECISIONS", PRECISIONS)),
        own_dtypes=_own_dtypes(module),
        outputs=() if by_option else tuple(outputs),
        outputs_by={option: tuple(names) for option, names in by_option.items()},
        parts=dict(getattr(module, "PARTS", {})),
        launches=dict(getattr(module, "LAUNCHES", {})),
        gradients=tuple(getattr(module, "GRADIENTS", ())),
        published=tuple(Published(**entry) for entry in getattr(module, "PUBLISHED", ())),
    )  # fmt: skip


def _own_dtypes(module: Any) -> dict[str, str]:
    """Names with their dtypes, "" where an input keeps the dtype that it is made with."""
    own = getattr(module, "OWN_DTYPES", ())
    return dict(own) if isinstance(own, Mapping) else dict.fromkeys(own, "")


def use_roots(roots: Sequence[Path]) -> None:
    """Makes `implementations.<kernel>.<file>` importable from all roots; the kernel folders need no `__init__.py`."""
    parents = list(dict.fromkeys(map(str, parents_of(roots))))
    for name in [n for n in sys.modules if n == "implementations" or n.startswith("implementations.")]:
        del sys.modules[name]
    package = types.ModuleType("implementations")
    package.__path__ = parents
    sys.modules["implementations"] = package
    importlib.invalidate_caches()


def parents_of(roots: Sequence[Path]) -> list[Path]:
    """The folders that hold the kernel folders of the roots: a root may be one kernel's folder."""
    return [root.parent if (root / "kernel.py").exists() else root for root in roots]


def read_implementation(kernel: str, file: Path) -> Implementation:
    """Reads the constants of one implementation file; a file that cannot be read becomes a `broken` implementation."""
    if not is_importable_name(file.stem):
        why = f"{file.name} has no name that can be imported: rename it, such as to {_nearest_name(file.stem)}.py"
        return Implementation(kernel, file.stem, file, broken=why)
    try:
        return Implementation(kernel, file.stem, file, **_declared(kernel, file))
    except KeyError as error:
        why = f"sets no {error.args[0]}: one that is no implementation begins with an underscore, _{file.name}"
    # the last two from nested brackets
    except (SyntaxError, UnicodeDecodeError, OSError, RecursionError, MemoryError) as error:
        why = f"cannot be read: {error}"
    except ValueError as error:  # what it says is not what contract.py asks for
        why = f"is no implementation: {error}"
    return Implementation(kernel, file.stem, file, broken=f"{file.name} {why}")


def _declared(kernel: str, file: Path) -> dict[str, Any]:
    """The fields of an implementation that follow from its file. Raises KeyError with a constant that it lacks, ValueError for what
    contract.py does not allow, and what reading and parsing do."""
    tree = syntax.parse(file)
    constants = _constants(file, tree)
    if problem := syntax.misspelt(syntax.assigned(tree), CONSTANTS):
        raise ValueError(problem)
    backend, variants = constants["BACKEND"], constants["VARIANTS"]
    requires, without_gpu = constants.get("REQUIRES", {}), constants.get("WITHOUT_GPU", "timed")
    for name, value, known in (("BACKEND", backend, protocol.found()), ("WITHOUT_GPU", without_gpu, WITHOUT_GPU)):
        if value not in tuple(known):
            raise ValueError(f"{name} is {value!r}, not one of {', '.join(known)}")
    if not maps(variants, are_names) or not variants:
        raise ValueError('VARIANTS must map each variant to a tuple of points, such as {"default": ("product",)}')
    if not maps(requires, is_name):
        raise ValueError('REQUIRES must map modules to packages, such as {"triton": "triton"}')
    in_place = _in_place(constants.get("IN_PLACE", {}), variants)
    module = f"{syntax.PACKAGE}.{kernel}.{file.stem}"
    if other := next((name for name in syntax.imported(tree, module) if protocol.foreign(name, backend)), None):
        raise ValueError(f"it imports {other}, but its BACKEND is {backend}")
    if problem := syntax.sibling_import(tree, module):
        raise ValueError(problem)
    tunables = _tunables(constants.get("TUNABLES", {}), variants)
    expected = {**FUNCTIONS, "build": (*FUNCTIONS["build"], "config")} if tunables else FUNCTIONS
    if problem := syntax.misshapen(tree, expected):
        raise ValueError(problem)
    refused = {d: {v: why for v in variants if (why := syntax.refused(tree, v, d))} for d in ("cpu", "cuda")}
    fused, backward = constants.get("FUSED", False), constants.get("BACKWARD", {})
    if not isinstance(fused, bool):
        raise ValueError(f"FUSED is {fused!r:.60}; expected True or False")
    if not maps(backward, are_names) or set(backward) - set(variants):
        raise ValueError('BACKWARD must map variants to tuples of points, such as {"default": ("product",)}')
    return {
        "backend": backend, "variants": variants, "requires": requires, "in_place": in_place, "without_gpu": without_gpu,
        "computes": str(constants.get("COMPUTES", "")), "tunables": tunables, "fused": fused,
        "expect": _expected(constants.get("EXPECT", ()), variants), "backward": backward,
        "refused": refused,
    }  # fmt: skip


def _expected(literal: Any, variants: Mapping[str, Any]) -> tuple[Expected, ...]:
    """EXPECT, checked as far as it can be without its kernel. A tuple of values stands for an entry with each of them."""
    known = {one.name for one in fields(Expected)}
    entries: Iterable[Any] = literal if isinstance(literal, tuple) else [None]
    found: list[Expected] = []
    for entry in entries:
        given = entry if isinstance(entry, dict) else {}
        values = {k: v if isinstance(v, tuple) else (v,) for k, v in given.items()}
        texts = all(v and all(isinstance(one, str) for one in v) for k, v in values.items() if k != "options")
        if not texts or set(given) - known or not {"variant", "case", "arch", "expect"} <= set(given):
            raise ValueError(f"EXPECT must be a tuple such as {EXPECT_EXAMPLE}; not {entry!r:.60}")
        if unknown := [variant for variant in values["variant"] if variant not in variants]:
            raise ValueError(f"EXPECT names the variant {unknown[0]!r}, which VARIANTS lacks")
        found += [Expected(**dict(zip(values, each, strict=True))) for each in itertools.product(*values.values())]
    return tuple(found)


def is_importable_name(name: str) -> bool:
    """Whether a file of that name is a module that an import statement can name."""
    return name.isidentifier() and not keyword.iskeyword(name)


def _nearest_name(name: str) -> str:
    words = re.sub(r"\W+", "_", name).strip("_")
    return words if is_importable_name(words) else f"torch_{words}"


def _in_place(literal: Any, variants: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """IN_PLACE by variant. A key may be a tuple of variants."""
    entries: Iterable[tuple[Any, Any]] = literal.items() if isinstance(literal, dict) else [(None, None)]
    found = {variant: own for key, own in entries for variant in _each(key)}
    if not maps(found, are_names) or found.keys() - variants.keys():
        raise ValueError('IN_PLACE must map variants to tuples of inputs, such as {"in_place": ("x",)}')
    return found


def _tunables(literal: Any, variants: Mapping[str, Any]) -> dict[str, dict[str, tuple[Tunable, ...]]]:
    """TUNABLES by variant. A key may be a tuple of variants; a variant that stands in several keys has the tunables of each. So may the name of
    a tunable: all of them have the same values."""
    found: dict[str, dict[str, tuple[Tunable, ...]]] = {}
    entries: Iterable[tuple[Any, Any]] = literal.items() if isinstance(literal, dict) else [(None, None)]
    for key, given in entries:
        pairs = [(name, v) for names, v in given.items() for name in _each(names)] if isinstance(given, dict) else []
        own, named = dict(pairs) if isinstance(given, dict) else given, [name for name, _ in pairs]
        for variant in _each(key):
            if variant not in variants or not maps(own, are_values):
                example = '{"default": {"num_warps": (4, 8)}} or {("row", "online"): {"num_warps": (4, 8)}}'
                raise ValueError(
                    f"TUNABLES must map variants to tunables with values, such as {example}; not {variant!r:.40}"
                )
            before = found.setdefault(variant, {})
            if twice := [name for name in named if name in before or named.count(name) > 1]:
                raise ValueError(f"TUNABLES names {min(twice)} of {variant} twice; one of them is enough")
            found[variant] |= own
    return found


def _each(key: Any) -> tuple[Any, ...]:
    """The names of a key, which may be a tuple of several."""
    return key if isinstance(key, tuple) and key else (key,)


def _constants(file: Path, tree: ast.Module) -> dict[str, Any]:
    """The literals that the file gives to the names of the contract, by itself or by an import from another file of
    `implementations`, which is read as well. Raises ValueError where one is no literal."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (name := alias.asname or alias.name) in CONSTANTS:
                    found[name] = _constant_elsewhere(file, node.module or "", alias.name)
    for name, value in syntax.assignments(tree):
        if name in CONSTANTS:
            try:
                found[name] = ast.literal_eval(value)  # type: ignore[arg-type]
            except (ValueError, TypeError) as error:
                raise ValueError(f"{name} must be a literal, because it is read without an import") from error
    return found


def _constant_elsewhere(file: Path, module: str, name: str) -> Any:
    """The literal `name` of the file of `module`, which stands under the root of `file` or under our own."""
    package, *path = module.split(".")
    sources = [root.joinpath(*path).with_suffix(".py") for root in (file.parent.parent, HOME) if path]
    source = next((s for s in sources if s.is_file()), None)
    if package != "implementations" or source is None:
        raise ValueError(
            f"{name} comes from {module!r}, which is no file of implementations; it is read without an import"
        )
    constants = _constants(source, syntax.parse(source))
    if name not in constants:
        raise ValueError(f"{name} comes from {source.name}, which sets none")
    return constants[name]


def load_implementation(kernel: str, name: str) -> types.ModuleType:
    """Imports the implementation's file, with whatever frameworks it imports; for workers."""
    return importlib.import_module(f"implementations.{kernel}.{name}")


def _kernel_folders(root: Path) -> list[Path]:
    if (root / "kernel.py").exists():
        return [root]
    return [f for f in sorted(root.iterdir()) if f.is_dir() and f.name[0] not in "._" and any(f.glob("*.py"))]


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
