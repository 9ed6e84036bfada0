"""The rooms of docs/architecture.md: a module imports from its own room and from those below, never from one above."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from fusebench.backends import protocol

FUSEBENCH = Path(__file__).resolve().parents[1] / "fusebench"
# from the ground up; a room is a folder or a module
FLOORS = (
    ("errors", "contract", "dtypes", "memory", "atomic", "draws"),
    ("backends", "machine", "launchers", "data", "emulator"),
    (
        "discovery",
        "kernel_file",
        "syntax",
        "sources",
        "drawing",
        "hard",
        "modes",
        "inputs",
        "patterns",
        "cases",
        "tuned",
    ),
    ("timing", "parity"),
    ("tracing",),
    ("records",),
    ("settings", "provenance", "folder", "terminal", "svg", "progress", "untouched"),
    ("workers",),
    ("case_data",),
    ("cell",),
    ("hard_check",),
    ("run", "report", "library", "ops"),
    ("configuration",),
    ("comparison", "inspection", "sanitizer", "profiling", "tracking", "training"),
    ("tuning",),
    ("commands",),
    ("cli",),
    ("__main__", "__init__"),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def imports(file):
    """The modules of fusebench that a file imports, as paths below `fusebench`."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fusebench":
            inside = node.module.split(".")[1:]
            yield from ([*inside, alias.name] for alias in node.names)


def room(path):
    return path[0].removesuffix(".py")


@pytest.mark.parametrize("file", sorted(FUSEBENCH.rglob("*.py")), ids=lambda f: str(f.relative_to(FUSEBENCH)))
def test_a_module_imports_from_its_own_room_and_those_below(file):
    own = FLOOR[room(file.relative_to(FUSEBENCH).parts)]
    above = [".".join(path) for path in imports(file) if FLOOR[room(path)] > own]
    assert not above


@pytest.mark.parametrize("name", sorted(protocol.found()))
def test_a_back_end_offers_all_that_the_protocol_asks_for(name):
    module = (FUSEBENCH / "backends" / f"{name}.py").read_text()
    offered = {node.name for node in ast.parse(module).body if isinstance(node, ast.FunctionDef)}
    asked = {name for name in vars(protocol.Backend) if not name.startswith("_")}
    assert asked <= offered


def test_the_back_ends_are_those_of_the_folder():
    assert set(protocol.found()) == {"torch", "jax", "numpy"}


def test_the_page_names_every_room():
    page = (FUSEBENCH.parent / "docs" / "architecture.md").read_text()
    rooms = [
        f"{f.name}/" * f.is_dir() or f.name for f in FUSEBENCH.iterdir() if f.name not in ("__init__.py", "__pycache__")
    ]
    assert [name for name in sorted(rooms) if not re.search(rf"(?<!\w){re.escape(name)}", page)] == []
