"""Plausible slips of a maintainer, as changes of a module's syntax tree: one small change a mutant.

`find` yields each slip of a module, `ast.unparse` writes the changed module. Left alone is what does not act (docstrings,
annotations, the words of messages) and what only says that something never happens (`strict=True`).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

SWAPPED: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,), ast.FloorDiv: (ast.Mult,), ast.Mod: (ast.Mult,),
    ast.Pow: (ast.Mult,), ast.And: (ast.Or,), ast.Or: (ast.And,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil", "median": "mean"}
SYMMETRIC = (
    "min",
    "max",
    "isclose",
    "array_equal",
    "cast",
    "shares_memory",
    "equal",
    "_same",
    "apart",
    "overlap",
    "swapaxes",
    "suppress",
    "minimum",
    "maximum",
)
CLOCKS = ("monotonic()", "perf_counter()")  # a measured time never meets its limit exactly
UNSEEN = ("frozen", "strict", "slots", "check", "parents", "exist_ok")  # keywords that only say what must never happen


@dataclass(frozen=True)
class Slip:
    """One change: where it stands, what it changes, and the module's text with it. `acts` are the lines on which it shows: its own,
    those of the function for a default, None for any of the module where it acts at the import."""

    line: int
    column: int
    before: str
    after: str
    function: str
    acts: range | None
    write: Callable[[], str]

    @property
    def change(self) -> str:
        return f"{self.before}  →  {self.after}"


def find(text: str) -> Iterator[Slip]:
    """The slips of a module, in the order of its lines."""
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and _is_text(node.value)}
    for path, function in _paths(tree):
        node = _at(tree, path)
        if id(node) in docstrings or (isinstance(node, ast.Expr) and id(node.value) in docstrings):
            continue
        for number, changed in enumerate(_changes(node)):
            write = lambda p=path, n=number: _written(text, p, n)  # noqa: E731
            yield Slip(node.lineno, node.col_offset, _short(node), _short(changed), function, _acts(tree, path), write)


def _written(text: str, path: tuple[Any, ...], number: int) -> str:
    tree = ast.parse(text)
    changed = list(_changes(_at(tree, path)))[number]
    parent, (name, place) = _at(tree, path[:-1]), path[-1]
    if place is None:
        setattr(parent, name, changed)
    else:
        getattr(parent, name)[place] = changed
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _paths(tree: ast.AST, path: tuple[Any, ...] = (), function: str = "") -> Iterator[tuple[tuple[Any, ...], str]]:
    """The way to each node that a slip may change, and the function that it stands in."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "type_params") or getattr(tree, "arg", "") in UNSEEN:
            continue
        for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                inner = child.name if isinstance(child, ast.FunctionDef | ast.ClassDef) else ""
                within = ".".join(filter(None, (function, inner)))
                yield (*path, (name, place)), within
                yield from _paths(child, (*path, (name, place)), within)


def _acts(tree: Any, path: tuple[Any, ...]) -> range | None:
    """The lines on which a slip at the end of the path shows."""
    node = _at(tree, path)
    for step in path:
        if isinstance(tree, ast.FunctionDef | ast.Lambda):
            first, last = (node.lineno, node.lineno) if step[0] == "body" else (tree.lineno, tree.end_lineno)
            return range(first, (last or first) + 1)
        tree = _at(tree, (step,))
    return None


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for name, place in path:
        tree = getattr(tree, name) if place is None else getattr(tree, name)[place]
    return tree


def _changes(node: Any) -> Iterator[ast.AST]:
    """What a slip may make of the node."""
    match node:
        case ast.Compare(ops=[op]):
            others = SWAPPED.get(type(op), ())
            if any(clock in ast.unparse(node) for clock in CLOCKS):
                others = others[-1:]
            yield from (_with(node, ops=[other()]) for other in others)
        case ast.BinOp(op=op) if not _is_text(node.left) and not _is_text(node.right):
            yield from (_with(node, op=other()) for other in SWAPPED.get(type(op), ()))
        case ast.BoolOp(op=op):
            yield from (_with(node, op=other()) for other in SWAPPED[type(op)])
        case ast.AugAssign(op=op):
            yield from (_with(node, op=other()) for other in SWAPPED.get(type(op), ()))
        case ast.UnaryOp(op=ast.Not()) | ast.UnaryOp(op=ast.USub()):
            yield node.operand
        case ast.IfExp():
            yield _with(node, body=node.orelse, orelse=node.body)
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield ast.Constant(node.value + 1)
        case ast.Constant(value=float()):
            yield ast.Constant(node.value * 2 if node.value else 1.0)
        case ast.Name(id=name, ctx=ast.Load()) if name in NAMES:
            yield _with(node, id=NAMES[name])
        case ast.Attribute(attr=name) if name in NAMES:
            yield _with(node, attr=NAMES[name])
        case ast.Call(func=called, args=[first, second, *rest]) if ast.unparse(called).split(".")[-1] not in SYMMETRIC:
            if not any(isinstance(a, ast.Starred) for a in (first, second)) and ast.dump(first) != ast.dump(second):
                yield _with(node, args=[second, first, *rest])
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Continue() | ast.Delete():
            yield ast.Pass()
        case ast.If(test=test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Slice():
            yield from (_with(node, **{end: None}) for end in ("lower", "upper") if getattr(node, end) is not None)


def _with(node: Any, **fields: Any) -> Any:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _short(node: Any) -> str:
    """The first line of what the node reads as."""
    if isinstance(node, ast.Slice):
        return f"[{ast.unparse(node)}]"
    lines = ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).splitlines() or [""]
    return lines[0] if len(lines[0]) <= 110 else lines[0][:109] + "…"
