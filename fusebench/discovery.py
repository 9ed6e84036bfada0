"""Finds the kernels and implementations that exist, from their folders and files alone.

A root holds one folder a kernel; `path=DIR` adds roots. Implementation files are read, not imported: their upper-case
constants are literals (contract.py), so nothing here loads torch, jax or triton, and a broken file costs only itself.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusebench.errors import UsageError

HOME = Path(__file__).resolve().parent.parent / "implementations"
BACKENDS = {"torch": {"torch": "torch"}, "jax": {"jax": "jax"}}  # back end → module → what to pip install


@dataclass(frozen=True)
class Implementation:
    """One implementation file, as its constants describe it. `broken` says why it cannot be used at all, or is empty."""

    kernel: str
    name: str
    file: Path
    backend: str = "torch"
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"default": ()})
    requires: Mapping[str, str] = field(default_factory=dict)
    without_gpu: str = "timed"
    broken: str = ""

    def missing(self) -> str | None:
        """Names the first package that this interpreter lacks for it, with the command that would install it."""
        for module, package in {**BACKENDS.get(self.backend, {}), **self.requires}.items():
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


@dataclass(frozen=True)
class Kernel:
    """One kernel folder: its mathematics (`module`, the imported kernel.py) and its implementations by name."""

    name: str
    folder: Path
    module: Any
    implementations: Mapping[str, Implementation]

    @property
    def dimensions(self) -> tuple[str, ...]:
        return tuple(self.module.DIMENSIONS)

    @property
    def options(self) -> dict[str, tuple[str, ...]]:
        return dict(getattr(self.module, "OPTIONS", {}))


def roots_of(paths: Iterable[str | Path] = (), home: Path | None = None) -> list[Path]:
    """The folders to search: the project's own, then each of `paths` (a folder of kernels, or one kernel's folder)."""
    roots = [home or HOME]
    for path in map(Path, paths):
        if not path.is_dir():
            raise UsageError(f"path={path}: no such folder; expected a folder of kernels (DIR/<kernel>/kernel.py)")
        folder = path.resolve()
        if not any(folder.glob("*.py")) and not any(folder.glob("*/*.py")):
            raise UsageError(
                f"path={path}: no kernel there; expected DIR/<kernel>/kernel.py or DIR/<kernel>/<implementation>.py"
            )
        roots.append(folder)
    return roots


def find_kernels(roots: Sequence[Path]) -> dict[str, Kernel]:
    """All kernels under the roots, by name; a later root may add implementations to a kernel of an earlier one."""
    folders: dict[str, list[Path]] = {}
    for folder in (f for root in roots for f in _kernel_folders(root)):
        folders.setdefault(folder.name, []).append(folder)
    use_roots(roots)
    kernels = {}
    for name, parts in sorted(folders.items()):
        home = next((part for part in parts if (part / "kernel.py").exists()), None)
        if home is None:
            continue
        files = [file for part in parts for file in sorted(part.glob("*.py"))]
        found = [read_implementation(name, f) for f in files if f.stem != "kernel" and not f.stem.startswith("_")]
        try:
            module = importlib.import_module(f"implementations.{name}.kernel")
            missing = [
                need
                for need in ("DIMENSIONS", "BATCH", "CASES", "inputs", "formula", "flops", "moved_bytes")
                if not hasattr(module, need)
            ]
        except Exception as error:  # whatever a kernel's author wrote: name the file, not our import
            raise UsageError(f"{home / 'kernel.py'} does not import: {type(error).__name__}: {error}") from error
        if missing:
            raise UsageError(
                f"{home / 'kernel.py'} lacks {', '.join(missing)} (fusebench/contract.py says what each is)"
            )
        kernels[name] = Kernel(name, home, module, {i.name: i for i in found})
    return kernels


def use_roots(roots: Sequence[Path]) -> None:
    """Makes `implementations.<kernel>.<file>` importable from all roots; the kernel folders need no `__init__.py`."""
    parents = list(dict.fromkeys(str(r.parent if (r / "kernel.py").exists() else r) for r in roots))
    for name in [n for n in sys.modules if n == "implementations" or n.startswith("implementations.")]:
        del sys.modules[name]
    package = types.ModuleType("implementations")
    package.__path__ = parents
    sys.modules["implementations"] = package
    importlib.invalidate_caches()


def read_implementation(kernel: str, file: Path) -> Implementation:
    """Reads the constants of one implementation file; a file that cannot be read becomes a `broken` implementation."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        constants = {
            target.id: ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name) and target.id in ("BACKEND", "VARIANTS", "REQUIRES", "WITHOUT_GPU")
        }
        backend, variants = constants["BACKEND"], constants["VARIANTS"]
        if backend not in BACKENDS:
            raise ValueError(f"BACKEND is {backend!r}, not one of {', '.join(BACKENDS)}")
        return Implementation(
            kernel, file.stem, file, backend, {v: tuple(points) for v, points in variants.items()},
            constants.get("REQUIRES", {}), constants.get("WITHOUT_GPU", "timed"),
        )  # fmt: skip
    except KeyError as error:
        return Implementation(kernel, file.stem, file, broken=f"{file.name} sets no {error.args[0]}")
    except (SyntaxError, ValueError, AttributeError, TypeError, OSError) as error:
        return Implementation(kernel, file.stem, file, broken=f"{file.name} cannot be read: {error}")


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
