"""What must hold of a kernel.py, and what in one is not as the contract (contract.py) has it."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from fusebench import syntax
from fusebench.backends import protocol
from fusebench.contract import DTYPES, OWN_DTYPES, PRECISIONS, Published

CONSTANTS = (
    "DIMENSIONS", "BATCH", "CASES", "OPTIONS", "PRECISIONS", "ROWS", "ROW_AXIS", "OUTPUTS", "OWN_DTYPES", "PARTS", "LAUNCHES", "PUBLISHED",
    "GRADIENTS", "SLICES",
)  # fmt: skip
NEEDED = ("DIMENSIONS", "BATCH", "CASES", "inputs", "formula", "flops", "moved_bytes")
FUNCTIONS = {  # with their arguments
    "inputs": ("case", "rng"), "weights": ("case", "rng"), "formula": ("case", "r", "*inputs"), "hard": ("case",),
    "edges": ("case", "kind", "rng"), "shape_problem": ("case", "shapes"), "flops": ("case",), "moved_bytes": ("case",), "upstream": ("case", "rng"), "gradient": ("case", "r", "*inputs"),
}  # fmt: skip
BACKWARD = ("GRADIENTS", "upstream", "gradient")  # all of them, or none
ELEMENTARY = (  # what programs compute by an approximation; of SciPy all is
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan",
    "arctan2", "arcsinh", "arccosh", "arctanh", "cbrt",
)  # fmt: skip


def problem(module: types.ModuleType, files: Sequence[Path]) -> str:
    """The first mistake in a kernel.py that was imported, or "". `files` are the others of its folder that it is made of."""
    return (
        syntax.misspelt(vars(module), CONSTANTS)
        or constants_problem(module)
        or next(filter(None, (text_problem(module.__name__, file) for file in files)), "")
    )


def text_problem(module: str, file: Path) -> str:
    """What in the text of a kernel.py, or of a file that the `module` imports, is not as the contract has it, or "". Raises
    SyntaxError and what else parsing does."""
    tree = syntax.parse(file)
    where = "" if file.name == "kernel.py" else f"{file.name}, of which it is made: "
    if framework := next((name for name in syntax.imported(tree, module) if protocol.foreign(name, "numpy")), None):
        return f"{where}it imports {framework}: a reference is in NumPy and SciPy alone, so that it is no framework's"
    if sibling := syntax.sibling_import(tree, module):
        return where + sibling
    if file.name == "kernel.py" and (wrong := syntax.misshapen(tree, FUNCTIONS)):
        return wrong
    for call in _unmarked(tree):
        name = ast.unparse(call.func)
        return (
            f"{where}{name} in line {call.lineno} stands outside of r.function, so that no program is allowed its error: write "
            f"r.function({name}(…)), or math.{name.rpartition('.')[2]} of a number that is exact"
        )
    return ""


@functools.lru_cache(syntax.KEPT)
def _unmarked(tree: ast.Module) -> list[ast.Call]:
    """The calls that no r.function is around, in functions that have an `r`, of elementary functions and of the file's own without
    an `r` that call one."""
    elementary, own = _elementary(tree), {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    marking = [node for node in own.values() if "r" in (a.arg for a in [*node.args.posonlyargs, *node.args.args])]
    for name, node in own.items():
        if node not in marking and any(True for _ in _calls(node, elementary)):
            elementary.add(name)
    return [call for node in marking for call in _calls(node, elementary)]


def _elementary(tree: ast.Module) -> set[str]:
    """What the file calls elementary functions by: `np.exp`, `erf`; `special.` is all that begins with it."""
    names = set()
    for node in ast.walk(tree):
        module = node.module if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            called = alias.asname or alias.name
            if isinstance(node, ast.Import) and alias.name == "numpy":
                names |= {f"{called}.{name}" for name in ELEMENTARY}
            elif (module, alias.name) == ("scipy", "special") or alias.name == "scipy.special":
                names.add(f"{called}.")
            elif module == "scipy.special" or (module == "numpy" and alias.name in ELEMENTARY):
                names.add(called)
    return names


def _calls(node: ast.AST, names: Collection[str]) -> Iterator[ast.Call]:
    """The calls of these functions within the node, but for what stands within an `r.function(…)`."""
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called == "r.function":
            return
        if called in names or f"{called.rpartition('.')[0]}." in names:
            yield node
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, names)


def constants_problem(module: types.ModuleType) -> str:
    """What in the constants of a kernel.py is not as the contract has it, or ""."""
    dimensions = module.DIMENSIONS
    if not are_names(dimensions) or not dimensions:
        return f'DIMENSIONS is {dimensions!r:.60}; expected a tuple of names, such as ("M", "N")'

    def is_count(n: Any) -> bool:
        return n in tuple(dimensions) if isinstance(n, str) else callable(n) or (type(n) is int and n > 0)

    if module.BATCH not in tuple(dimensions):
        return f"BATCH is {module.BATCH!r:.60}, not one of DIMENSIONS: {', '.join(dimensions)}"
    if not maps(module.CASES, lambda sizes: isinstance(sizes, dict)) or not module.CASES:
        return f"CASES is {module.CASES!r:.60}; expected named sizes, such as {{'odd': {dict.fromkeys(dimensions, 7)}}}"
    for case, sizes in module.CASES.items():
        if set(sizes) != set(dimensions):
            return f"case {case} has {', '.join(map(str, sizes))}; expected {', '.join(dimensions)}"
        if not all(type(size) is int and size > 0 for size in sizes.values()):
            return f"case {case} is {sizes!r:.60}; expected positive integers"
    checks: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
        (
            "OPTIONS",
            'options with their values as text, such as {"eps": ("1e-5", "1e-6")}',
            lambda v: maps(v, lambda names: are_names(names) and len(names) > 0),
        ),
        ("PRECISIONS", f"some of {', '.join(PRECISIONS)}", lambda v: are_names(v) and set(v) <= set(PRECISIONS)),
        ("ROWS", 'axes by name, such as {"x": 0, "y": 0}', lambda v: are_names(v) or maps(v, lambda axis: type(axis) is int)),
        ("ROW_AXIS", "an integer", lambda v: type(v) is int),
        ("OUTPUTS", "a tuple of names", lambda v: are_names(v) or maps(v, are_names)),
        ("OWN_DTYPES", f"names of inputs, or names with one of {', '.join(OWN_DTYPES)}", lambda v: are_names(v) or maps(v, OWN_DTYPES.__contains__)),
        ("PARTS", "formulas by name", lambda v: maps(v, callable)),
        ("LAUNCHES", "variants with positive integers, dimensions or functions of a case, or tuples of these", lambda v: maps(v, lambda n: all(map(is_count, n if isinstance(n, tuple) else (n,))))),
        ("GRADIENTS", 'a tuple of names of inputs, such as ("x", "W")', lambda v: are_names(v) and len(v) > 0),
        ("SLICES", "an axis, such as 1", lambda v: type(v) is int and v >= 0),
        ("PUBLISHED", 'cases, such as ({"case": "odd", "dtype": "float32"},)', lambda v: isinstance(v, tuple | list)),
        *((name, "a function", callable) for name in FUNCTIONS),
    )  # fmt: skip
    for name, expected, valid in checks:
        if hasattr(module, name) and not valid(getattr(module, name)):
            return f"{name} is {getattr(module, name)!r:.60}; expected {expected}"
    present = [name for name in BACKWARD if hasattr(module, name)]
    if absent := [name for name in BACKWARD if present and name not in present]:
        return f"it has {', '.join(present)}, but no {', '.join(absent)}: backward modes need all of them"
    for entry in getattr(module, "PUBLISHED", ()):
        if problem := _published_problem(entry, module):
            return f"PUBLISHED has {entry!r:.100}: {problem}"
    return ""


def _published_problem(entry: Any, module: types.ModuleType) -> str:
    """What is wrong with one entry of PUBLISHED, or ""."""
    keys = tuple(Published.__dataclass_fields__)
    if not isinstance(entry, dict) or "case" not in entry or set(entry) - set(keys):
        return f"expected a case and any of {', '.join(keys[1:])}"
    values = (("case", module.CASES), ("dtype", DTYPES), ("precision", getattr(module, "PRECISIONS", PRECISIONS)))
    for key, known in values:
        if entry.get(key) is not None and entry[key] not in tuple(known):
            return f"{key} is none of {', '.join(known)}"
    options, known = entry.get("options", {}), getattr(module, "OPTIONS", {})
    if not maps(options, is_name) or not all(value in known.get(name, ()) for name, value in options.items()):
        return "expected options of OPTIONS, with one of their values"
    figures, device = entry.get("figures", {}), entry.get("device", "")
    if not isinstance(device, str) or not isinstance(figures, dict) or not all(map(_are_figures, figures.items())):
        return 'expected figures in µs by method and implementation, such as {"do_bench": {"flax:module": 298.0}}, and a device'
    return ""


def _are_figures(item: tuple[Any, Any]) -> bool:
    """Whether it is a method with positive figures by label, where "" is what nobody named."""
    method, figures = item
    if not isinstance(method, str) or not isinstance(figures, dict):
        return False
    return all(isinstance(label, str) and type(us) in (int, float) and us > 0 for label, us in figures.items())


def is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def are_names(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(map(is_name, value))


def are_values(value: Any) -> bool:
    return isinstance(value, tuple | list) and bool(value) and all(isinstance(v, bool | int | str) for v in value)


def maps(value: Any, holds: Callable[[Any], bool]) -> bool:
    """Whether it maps names to what `holds`."""
    return isinstance(value, dict) and all(map(is_name, value)) and all(map(holds, value.values()))
