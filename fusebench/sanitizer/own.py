"""The device kernels of an implementation, by name, found in its sources: what the tools are to watch, and whose a finding is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fusebench import discovery, sources
from fusebench.discovery import Implementation
from fusebench.sanitizer.log import Place, Reported

JIT = re.compile(r"(?:triton|gluon)\.jit\b")
GLOBAL = re.compile(r"\b__global__\b")
ATTRIBUTE = re.compile(r"\s*(?:__\w+__|void|static|inline)\b\s*")
NAME = re.compile(r"\s*(\w+)\s*\(")


@dataclass(frozen=True)
class Own:
    """What of a program is an implementation's: its device kernels, `symbols` by which the tools know them, and the folders of its
    sources. `fused` is that of the contract: all that a call launches is its own."""

    fused: bool
    names: frozenset[str] = frozenset()
    symbols: tuple[str, ...] = ()
    folders: tuple[Path, ...] = field(default_factory=tuple)

    def has(self, found: Reported, tool: str) -> bool:
        """Whether a report is of this implementation. Where kernels of the framework are not watched, all are."""
        if found.on_host:
            return False
        places = (found.place, *found.others, *found.frames)
        return any(base_name(p.function) in self.names or self.file(p) for p in places) or (
            self.fused and filters(tool)
        )

    def file(self, place: Place) -> str:
        """The name of the place's file below the folder that it is in, or "" for a file of somebody else."""
        path = Path(place.file)
        folder = next((f for f in self.folders if path.is_absolute() and path.is_relative_to(f)), None)
        return "" if folder is None else path.relative_to(folder).as_posix()


def filters(tool: str) -> bool:
    """Whether a tool may pass over the kernels of the framework. For initcheck, what these write would be uninitialised."""
    return tool != "initcheck"


def of(implementation: Implementation, roots: Sequence[Path]) -> Own:
    """What is that implementation's; of one that calls a library, no kernels."""
    folders = tuple(dict.fromkeys(f.resolve() for f in (implementation.file.parent.parent, *discovery.parents_of(roots), sources.PROJECT)))  # fmt: skip
    if not implementation.fused:
        return Own(False, folders=folders)
    triton = [name for file in _modules(implementation.file, folders) for name in _jitted(file)]
    cuda = [
        name for file in _cuda_files(implementation.file, folders) for name in global_names(file.read_text("utf-8"))
    ]
    # C++ mangles a name with its length in front, but for extern "C"
    symbols = [s for name in dict.fromkeys(cuda) for s in (f"kns={len(name)}{name}", f"kne={name}")]
    symbols += [f"kns={name}" for name in dict.fromkeys(triton)]
    return Own(True, frozenset([*triton, *cuda]), tuple(symbols), folders)


def global_names(text: str) -> list[str]:
    """The names of the `__global__` functions in a CUDA source."""
    found = []
    for match in GLOBAL.finditer(text):
        at = match.end()
        while attribute := ATTRIBUTE.match(text, at):
            at = attribute.end()
            if text[at : at + 1] == "(":
                at = _closing(text, at)
        if name := NAME.match(text, at):
            found.append(name[1])
    return found


def base_name(function: str) -> str:
    """The bare name of a demangled function: `copy` of `void our::copy<float, (int)4>(const T1 *)`."""
    return _outside(plain_name(function), ":")[-1].split("<")[0]


def plain_name(function: str) -> str:
    """A demangled function without its parameters and what it returns, and its arguments as they are written: `copy<float, 4>`."""
    text = function.strip()
    if text.endswith(")") and (opened := _opening(text)) > 0:
        text = text[:opened]
    text = _outside(text, " ")[-1] or text  # behind what it returns
    text = re.sub(r"\(bool\)([01])", lambda m: ("false", "true")[int(m[1])], text)
    return re.sub(r"\((?:unsigned |long ?|int|short|char)+\)(?=-?\d)", "", text)


def _outside(text: str, separator: str) -> list[str]:
    """The parts of the text between separators that no bracket encloses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<([") - (letter in ">)]")
        if letter == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _opening(text: str) -> int:
    """Where the parenthesis opens that the last character closes, or -1."""
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if depth == 0:
            return at
    return -1


def _closing(text: str, at: int) -> int:
    """Behind the parenthesis that closes the one at that place."""
    depth = 0
    for end in range(at, len(text)):
        depth += (text[end] == "(") - (text[end] == ")")
        if depth == 0:
            return end + 1
    return len(text)


def _modules(file: Path, folders: Sequence[Path]) -> list[Path]:
    """The file, and what it imports of the same package, directly or not."""
    found = [file]
    for one in found:  # grows while it is read
        for name in sources.imports(one, f"{sources.PACKAGE}.{one.parent.name}.{one.stem}"):
            parts = name.split(".")[1:]
            there = next((p for f in folders if (p := f.joinpath(*parts).with_suffix(".py")).is_file()), None)
            if there and there not in found:
                found.append(there)
    return found


def _jitted(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and any(JIT.match(ast.unparse(d)) for d in node.decorator_list):
            yield node.name


def _cuda_files(file: Path, folders: Sequence[Path]) -> list[Path]:
    """The CUDA sources that an implementation may compile, if it compiles any."""
    if '".cu"' not in file.read_text(encoding="utf-8"):
        return []
    shared = [f for folder in folders for f in sorted((folder / "_shared" / "cuda").rglob("*.cu*"))]
    return [*sorted(file.parent.glob("*.cu*")), *shared]
