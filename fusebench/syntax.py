"""What the text of a file of `implementations` says, without an import: names, modules, functions and their parameters."""

from __future__ import annotations

import ast
import difflib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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


def refused(tree: ast.Module, variant: str, device: str) -> str | None:
    """What `skip` says of a variant on a device "cpu" or "cuda" whatever the case is, as far as its first tests tell, which are about
    these two alone. They are read and never run: what a file says is for workers to do."""
    body = next((n.body for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "skip"), [])
    known = {"variant": variant, "device.type": device}
    try:
        returned = _returned(body, known)
    except (KeyError, TypeError):  # a test of the case, or none that can be made
        return None
    return returned if isinstance(returned, str) else None


def _returned(body: Sequence[ast.stmt], known: Mapping[str, str]) -> object:
    """What the statements return, None where they return nothing. Raises KeyError where that depends on what is not known."""
    for statement in body:
        if isinstance(statement, ast.If):
            branch = statement.body if _value(statement.test, known) else statement.orelse
            if branch:  # which returns, as in all of ours, or is not known
                return _returned(branch, known)
        elif isinstance(statement, ast.Return):
            return statement.value and _value(statement.value, known)
        elif not isinstance(statement, ast.Assign | ast.Expr):
            raise KeyError(statement)
    return None


COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


def _value(node: ast.expr, known: Mapping[str, str]) -> Any:
    """The value of an expression of names that are known. Raises KeyError for any other."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() | ast.Attribute():
            return known[ast.unparse(node)]
        case ast.Tuple() | ast.List() | ast.Set():
            return [_value(one, known) for one in node.elts]
        case ast.UnaryOp(op=ast.Not()):
            return not _value(node.operand, known)
        case ast.BoolOp():
            decides = isinstance(node.op, ast.Or)
            return decides if any(bool(_value(one, known)) == decides for one in node.values) else not decides
        case ast.IfExp():
            return _value(node.body if _value(node.test, known) else node.orelse, known)
        case ast.Compare(ops=[compared]) if type(compared) in COMPARED:
            return COMPARED[type(compared)](_value(node.left, known), _value(node.comparators[0], known))
    raise KeyError(ast.unparse(node))
