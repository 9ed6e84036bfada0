"""What the text of a file of `implementations` says, without an import: names, modules, functions and their parameters."""

from __future__ import annotations

import ast
import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

PACKAGE = "implementations"
NEAR = 0.85  # of difflib's likeness: PRECISION and PRECISIONS have 0.95, ROW and ROWS 0.86
KEPT = 512  # texts and what was found in them: kernels share files, each of which is asked about many times (all of ours: 17 MB)


def parse(file: Path) -> ast.Module:
    """What the file says now; to be read only. Raises SyntaxError, UnicodeDecodeError, OSError, and RecursionError or MemoryError
    for nested brackets."""
    return _parsed(file.read_text(encoding="utf-8"), str(file))


@functools.lru_cache(KEPT)
def _parsed(text: str, name: str) -> ast.Module:
    if "\0" in text:
        raise SyntaxError("it has null bytes")  # ValueError in Python 3.11
    return ast.parse(text, name)


def assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that a file sets by an assignment of its own, with what they are set to."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((t.id, node.value) for t in targets if isinstance(t, ast.Name))


def assigned(tree: ast.Module) -> list[str]:
    """The names that a file sets by an assignment or an import."""
    aliases = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    return [*(alias.asname or alias.name for alias in aliases), *(name for name, _ in assignments(tree))]


def misspelt(names: Iterable[str], constants: Sequence[str]) -> str:
    """Says of the first upper-case name that looks like one of the constants, which is not set itself, or ""."""
    absent = [constant for constant in constants if constant not in names]
    own = [name for name in names if name.isupper() and name[0] != "_" and name not in constants]
    for name in own:
        if near := difflib.get_close_matches(name, absent, n=1, cutoff=NEAR):
            return (
                f"it sets {name}: did you mean {near[0]}? A name of your own begins with an underscore, such as _{name}"
            )
    return ""


def imported(tree: ast.Module, module: str) -> Iterator[str]:
    """The modules that the statements of `module` import, wherever they stand: `from a import b` may mean a, and a.b."""
    for node in _import_statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            above = module.split(".")[: -node.level] if node.level else []
            whole = ".".join([*above, *filter(None, [node.module])])
            yield whole
            yield from (f"{whole}.{alias.name}" for alias in node.names)


@functools.lru_cache(KEPT)
def _import_statements(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def sibling_import(tree: ast.Module, module: str) -> str:
    """Says which sibling the module imports, or "". What imports the reference fails as it is loaded."""
    own = f"{'.'.join(module.split('.')[:2])}."
    for name in imported(tree, module):
        sibling = name.removeprefix(own).split(".")[0] if name.startswith(own) else "_"
        if sibling[0] != "_" and sibling != "kernel":
            shared = f"a file that begins with an underscore, such as _{sibling}.py"
            return f"it imports its sibling {sibling}: what they share stands in {shared}"
    return ""


def misshapen(tree: ast.Module, expected: Mapping[str, Sequence[str]]) -> str:
    """Says of the first of the functions by name which does not take those arguments what it takes instead, or "". `*inputs` are one
    argument or more."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in expected:
            own, wanted = node.args, expected[node.name]
            places = [*own.posonlyargs, *own.args]
            required = any(default is None for default in own.kw_defaults)
            too_few = len(wanted) > len(places) and own.vararg is None
            too_many = len(places) - len(own.defaults) > len(wanted) and wanted[-1][0] != "*"
            if required or too_few or too_many:
                return f"it has {node.name}({ast.unparse(own)}); expected {node.name}({', '.join(wanted)})"
    return ""
