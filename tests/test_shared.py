"""A kernel is made of its own folder and of `_shared` alone, and whoever looks at its sources sees both."""

from __future__ import annotations

import ast
import re
import sys

import pytest

from fusebench import discovery, sources
from fusebench.cases import make_case
from fusebench.contract import Cell
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
    sorted([*HOME.glob("*/kernel.py"), *HOME.glob("_shared/numpy/*.py"), HOME / "_shared" / "dlrm.py"]),
    ids=lambda f: str(f.relative_to(HOME)),
)
def test_mathematics_needs_numpy_and_scipy_alone(file):
    # _shared/dlrm.py has no arithmetic: it says which part of a model has which sizes and arrays, to formulas and programs alike
    assert [used for used in uses(file) if not used.startswith(("_shared/numpy/", "_shared/dlrm"))] == []
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


def test_what_is_compiled_names_its_files_and_those_that_it_includes():
    pytest.importorskip("cuda.core")
    from fusebench.backends.cuda import compile_cubin, noting_sources

    with noting_sources() as noted:
        for _ in range(2):  # compiled, and taken from the cache
            compile_cubin(HOME / "launch" / "cuda.cu", "sm_90", [])
    found = sources.named(noted)
    used = {"launch/cuda.cu", *uses(HOME / "launch" / "cuda.cu")}
    assert used <= set(found) and "_shared/cuda/flash.cuh" not in found
    assert all(found[name] == sources.digest(HOME / name) for name in found)
    compile_cubin(HOME / "softmax" / "cuda.cu", "sm_90", [])
    assert sources.named(noted) == found, "what is compiled later is another cell's"


def test_a_record_names_the_files_of_its_cell_alone(kernels, run_cells):
    case = make_case(kernels["softmax"], "one")
    cells = [
        Cell(case, name, variant)
        for name, variant in (("triton", "row"), ("torch_compile", "default"), ("torch_eager", "default"))
    ]
    triton, compiled, eager = (set(r.source.files) - set(kernels["softmax"].sources) for r in run_cells(cells))
    assert {"softmax/triton.py", "_shared/triton/launch.py", "_shared/triton/softmax.py"} <= triton
    autograd = "_shared/torch/autograd.py"
    assert compiled == {"softmax/torch_compile.py", "_shared/torch/compile.py", autograd}
    assert eager == {"softmax/torch_eager.py", autograd}
    assert not {name for name in triton if name.startswith(("_shared/cuda", "_shared/torch", "_shared/numpy"))}
    assert (
        "softmax/kernel.py" in kernels["softmax"].sources and "_shared/numpy/formulas.py" in kernels["softmax"].sources
    )


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
