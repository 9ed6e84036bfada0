"""Which files of `implementations` a module was made of: itself, and what it imports of there, directly or not.

A file has a name below its root, `lola/_triton_kernels.py`, which is the same in every checkout and on every machine.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

from fusebench import syntax

PACKAGE = syntax.PACKAGE
PROJECT = Path(__file__).resolve().parent.parent / PACKAGE  # whose shared headers kernels elsewhere may include


def of_module(name: str, read: MutableMapping[Path, str] | None = None) -> dict[str, str]:
    """The files of a loaded module, by name, with their SHA-256. Digests in `read` are of files as they were when they were
    first looked at, which is nearer to when they were loaded; new ones join them."""
    read = {} if read is None else read
    made_of = files(name)
    for file in made_of:
        if file not in read:
            read[file] = digest(file)
    return named({file: read[file] for file in made_of})


def files(name: str) -> list[Path]:
    """The files of a loaded module: its own, and those of the package that it imports, directly or not, as far as they are loaded."""
    return [Path(str(sys.modules[module].__file__)) for module in _modules(name)]


def place(error: BaseException) -> str:
    """Where in a file of `implementations` the error was raised, or what raised it was called: `softmax/kernel.py:12`, or ""."""
    roots = [Path(root).resolve() for root in getattr(sys.modules.get(PACKAGE), "__path__", ())]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename).resolve()
        if any(file.is_relative_to(root) for root in [*roots, PROJECT]):
            return f"{_name(file, [*roots, PROJECT])}:{frame.lineno}"
    return ""


def named(digests: Mapping[Path, str]) -> dict[str, str]:
    """The digests by the files' names below their roots."""
    roots = [Path(root).resolve() for root in getattr(sys.modules.get(PACKAGE), "__path__", ())]
    return {_name(file.resolve(), [*roots, PROJECT]): found for file, found in digests.items()}


def changed(files: Mapping[str, str], roots: Iterable[Path]) -> str:
    """The first of the files that is not there any more, or not as it was, or ""."""
    places = [*roots, PROJECT]
    for name, before in files.items():
        file = next((place / name for place in places if (place / name).is_file()), None)
        if file is None or digest(file) != before:
            return name
    return ""


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def together(files: Mapping[str, str]) -> str:
    """One SHA-256 of all of them."""
    return hashlib.sha256("\n".join(f"{name} {files[name]}" for name in sorted(files)).encode()).hexdigest()


def _name(file: Path, roots: Sequence[Path]) -> str:
    root = next((root for root in roots if file.is_relative_to(root)), None)
    return str(file if root is None else file.relative_to(root).as_posix())


def _modules(name: str) -> list[str]:
    """The module and those of the package that it imports, as far as they are loaded."""
    found = [name]
    for module in found:  # grows while it is read
        file = getattr(sys.modules.get(module), "__file__", None)
        wanted = [] if file is None else imports(Path(file), module)
        found += [n for n in dict.fromkeys(wanted) if n not in found and getattr(sys.modules.get(n), "__file__", None)]
    return found


def imports(file: Path, module: str) -> Iterator[str]:
    """What of the package a module's import statements may name: `from a import b` may mean the module a.b."""
    yield from (n for n in syntax.imported(syntax.parse(file), module) if n.startswith(f"{PACKAGE}."))
