"""A kernel is made of its own folder and of `_shared` alone, and whoever looks at its sources sees both."""

from __future__ import annotations

import ast
import re
import sys

import pytest

from fusebench import discovery, provenance
from fusebench.workers.guard import Guard

HOME = discovery.HOME
SOURCES = [f for f in sorted(HOME.rglob("*")) if f.suffix in (".py", ".cu", ".cuh")]


def uses(file):
    """What of `implementations` a source names, as paths from there: its modules, or the files that it includes."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        found = re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE)
        return [str((file.parent / n).relative_to(HOME)) if (file.parent / n).exists() else n for n in found]
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names += [f"{module}.{alias.name}" for alias in node.names]
    return [n.removeprefix("implementations").strip(".").replace(".", "/") for n in names if n[0] == "." or n.startswith("implementations")]  # fmt: skip


@pytest.mark.parametrize("file", SOURCES, ids=lambda f: str(f.relative_to(HOME)))
def test_a_source_uses_its_own_folder_and_the_shared_code_alone(file):
    own = file.relative_to(HOME).parts[0]
    assert [used for used in uses(file) if not used.startswith((f"{own}/", "_shared/"))] == []


@pytest.mark.parametrize(
    "file",
    sorted([*HOME.glob("*/kernel.py"), *HOME.glob("_shared/numpy/*.py")]),
    ids=lambda f: str(f.relative_to(HOME)),
)
def test_mathematics_needs_numpy_and_scipy_alone(file):
    assert [used for used in uses(file) if not used.startswith("_shared/numpy/")] == []
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    names = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    names += [n.module for n in nodes if isinstance(n, ast.ImportFrom)]
    outside = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert outside <= {"numpy", "scipy", "implementations"}


def test_an_implementation_cannot_import_what_formulas_are_made_of():
    guard = Guard("torch", [HOME])
    with pytest.raises(ImportError, match="is the reference"):
        guard.find_spec("implementations._shared.numpy.formulas")
    assert guard.find_spec("implementations._shared.torch.operators") is None


@pytest.mark.parametrize("name", ["cuda/hopper/pipeline.cuh", "triton/launch.py", "gpu.py"])
def test_a_record_notices_a_change_anywhere_in_the_shared_code(tmp_path, name):
    (tmp_path / "shcsa").mkdir()
    (tmp_path / "shcsa" / "cuda.py").write_text("")
    changed = tmp_path / "_shared" / name
    changed.parent.mkdir(parents=True)
    digests = set()
    for text in ("before", "after"):
        changed.write_text(text)
        digests.add(provenance.source_of(tmp_path / "shcsa" / "cuda.py").shared_sha256)
    assert len(digests) == 2


def test_a_compiled_kernel_is_kept_for_the_headers_that_it_was_made_of(tmp_path):
    pytest.importorskip("cuda.core")
    from fusebench.backends.cuda import compile_cubin

    (tmp_path / "mine").mkdir()
    (tmp_path / "_shared" / "cuda").mkdir(parents=True)
    source, header = tmp_path / "mine" / "cuda.cu", tmp_path / "_shared" / "cuda" / "number.cuh"
    source.write_text('#include "_shared/cuda/number.cuh"\nextern "C" __global__ void f(int* y) { *y = NUMBER; }\n')
    codes = set()
    for number in (1, 2):
        header.write_text(f"#define NUMBER {number}\n")
        codes.add(compile_cubin(source, "sm_90", ["f"]).code)
    assert len(codes) == 2
