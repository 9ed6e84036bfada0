"""`fusebench new`: what it writes is found at once, fails by name until it is filled in, and is right then."""

from __future__ import annotations

import importlib
import json
import re

import pytest
from test_command_line import fusebench

from fusebench import discovery
from fusebench.cases import make_case
from fusebench.cli import main
from fusebench.commands.new import FRAMEWORKS
from fusebench.contract import Device

KERNELS = sorted(discovery.find_kernels(discovery.roots_of()))
TEMPLATES = sorted(set(FRAMEWORKS.values()))
TODO = re.compile(r"raise NotImplementedError\(.*\)")
# what makes y = x + x of each template
DOUBLED = {
    "torch": "return x + x", "torch_compile": "return x + x", "jax": "return x + x", "triton": "pass", "jax_triton": "pass", "cuda": "pass",
}  # fmt: skip


def new(*words):
    return main(["new", *words])


def fill(file, text):
    """Writes the line that a template leaves to its author."""
    old = file.read_text()
    changed, count = TODO.subn(text, old)
    assert count == 1
    file.write_text(changed.replace(".to(tl.float32)  # here", ".to(tl.float32) * 2  # here"))


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """A kernel `doubled` with an implementation of each template, written by the command and filled in, but for torch_later."""
    folder = tmp_path_factory.mktemp("mine")
    assert new("kernel", "doubled", f"path={folder}") == 0
    fill(folder / "doubled" / "kernel.py", "return (r.compute(x + x),)")
    for name in TEMPLATES:
        assert new("implementation", "doubled", f"{name}_new", f"path={folder}") == 0
        fill(folder / "doubled" / f"{name}_new.py", DOUBLED[name])
    source = folder / "doubled" / "cuda_new.cu"
    source.write_text(source.read_text().replace("(to_float(x[i]))", "(2 * to_float(x[i]))"))
    fill(folder / "doubled" / "torch_eager.py", "return 2 * x")
    assert new("implementation", "doubled", "torch_later", f"path={folder}") == 0
    return folder


def test_a_new_kernel_is_right_once_its_lines_are_written(mine, tmp_path):
    done = fusebench("parity", "kernel=doubled", "implementation=all", f"path={mine}", "worker=inline", cwd=tmp_path)
    (file,) = tmp_path.glob("results/*/records.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    got = {r["cell"]["implementation"]: r for r in records}
    later = got.pop("torch_later")
    assert (
        later["status"] == "failed" and "doubled/torch_later.py: return y (M, N), computed by torch" in later["reason"]
    )
    assert {r["status"] for r in got.values()} == {"ok"} and len(got) == len(TEMPLATES) + 1, done.stdout


def test_the_new_cuda_source_compiles(mine, monkeypatch):
    pytest.importorskip("cuda.core")
    from fusebench.backends import cuda

    roots = discovery.roots_of([mine])
    discovery.use_roots(roots)
    case = make_case(discovery.find_kernels(roots)["doubled"], "odd", "bfloat16")
    module, device = importlib.import_module("implementations.doubled.cuda_new"), Device("cuda", "sm_90", (9, 0), 132)
    (launch,) = module.launches(case, "default", device, module.config(case, "default", device))
    assert (launch.grid, launch.block, launch.sizes) == (59, 128, (37 * 203,))
    assert launch.program.name in cuda.compile_cubin(launch.program.file, "sm_90a", [launch.program.name]).symbols


@pytest.mark.parametrize(("kernel", "template"), list(zip(KERNELS, TEMPLATES * len(KERNELS), strict=False)))
def test_an_implementation_of_every_kernel_is_found(kernel, template, tmp_path, capsys):
    name = f"{template}_new"
    assert new("implementation", kernel, name, f"path={tmp_path}") == 0
    assert f"kernel={kernel} implementation={name} dtype=all path={tmp_path}" in capsys.readouterr().out
    found = discovery.find_kernels(discovery.roots_of([tmp_path]))[kernel].implementations
    assert found[name].broken == "" and name in found


def test_shapes_dtypes_and_options_are_those_of_the_kernel(tmp_path):
    assert new("implementation", "embedding", "triton_new", f"path={tmp_path}") == 0
    text = (tmp_path / "embedding" / "triton_new.py").read_text()
    assert '"""call(ids (M, F), tables (321, D), offsets (6,)) → y (M, F, D)."""' in text
    assert '# case.options["hashing"]: modulus, lookup' in text
    assert '"ids": "*i64", "tables": TYPES[case.dtype]' in text
    assert 'torch.empty((case.sizes["M"], case.sizes["F"], case.sizes["D"]), dtype=tables.dtype' in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "new nothing: expected new kernel NAME, or new implementation KERNEL NAME"),
        (("kernel",), "new kernel: expected"),
        (("kernal", "x"), "new kernal x: expected"),
        (("kernel", "a", "b"), "new kernel a b: expected"),
        (("kernel", "lola"), "there is a kernel lola: fusebench new implementation lola NAME adds to it"),
        (("kernel", "rms-norm"), "'rms-norm' is no name that can be imported"),
        (("kernel", "class"), "'class' is no name"),
        (("kernel", "_x"), "'_x' is no name"),
        (("kernel", "x", "framework=torch"), "framework=: a kernel has none"),
        (("implementation", "lolla", "torch_x"), "unknown kernel 'lolla': did you mean lola?"),
        (("implementation", "lola", "fast"), "'fast' does not begin with its framework: name one by framework=, of torch,"),
        (("implementation", "lola", "torchfast"), "'torchfast' does not begin with its framework"),
        (("implementation", "lola", "fast", "framework=tritn"), "unknown framework 'tritn': did you mean triton?"),
        (("implementation", "lola", "triton"), "lola/triton.py is there already: take another name"),
        (("implementation", "lola", "torch_x", "pth=x"), "unknown key 'pth': did you mean path?"),
    ],
)  # fmt: skip
def test_bad_input_is_named_and_nothing_is_written(words, says, capsys):
    before = sorted(discovery.HOME.rglob("*"))
    assert new(*words) == 2
    assert says in capsys.readouterr().err and sorted(discovery.HOME.rglob("*")) == before


def test_a_name_may_need_its_framework(tmp_path):
    assert new("implementation", "lola", "fast", "framework=jax", f"path={tmp_path}") == 0
    assert 'BACKEND = "jax"' in (tmp_path / "lola" / "fast.py").read_text()


def test_a_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert new("kernel", "doubled", f"path={tmp_path / 'file'}") == 2
    assert "file/doubled: Not a directory" in capsys.readouterr().err
