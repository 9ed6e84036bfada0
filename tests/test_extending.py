"""Adding a kernel is adding one folder, adding an implementation is adding one file: every command finds them, nothing else is edited."""

from __future__ import annotations

import json

import pytest
from conftest import FIXTURES
from test_command_line import records_of

KERNELS, EXTRA = FIXTURES / "kernels", FIXTURES / "extra"


def test_a_new_kernel_is_benched(tmp_path, on_shared_workers):
    done = on_shared_workers("bench", f"path={KERNELS}", "kernel=double", "batch=5", "dtype=float16", "time_s=0.02")
    assert done.returncode == 0, done.stderr
    assert [(r.label, r.status, r.case.sizes["N"]) for r in records_of(tmp_path)] == [
        ("torch_eager:plus", "ok", 5), ("torch_eager:times", "ok", 5)
    ]  # fmt: skip


def test_a_new_kernel_is_checked_when_its_own_folder_is_named(tmp_path, on_shared_workers):
    done = on_shared_workers("parity", f"path={KERNELS / 'double'}", "kernel=double")
    assert done.returncode == 0 and all(r.parity.first.ratio <= 1 for r in records_of(tmp_path))


def test_a_new_implementation_joins_its_kernel(tmp_path, on_shared_workers):
    done = on_shared_workers("parity", f"path={EXTRA}", "kernel=lola", "implementation=[torch_eager,torch_addmm]")
    assert done.returncode == 0, done.stderr
    assert [(r.label, r.status) for r in records_of(tmp_path)] == [("torch_eager", "ok"), ("torch_addmm", "ok")]


def test_they_are_listed_and_named_among_the_valid_overrides(answered):
    found = json.loads(answered("list", "--json", f"path={KERNELS}", f"path={EXTRA}").stdout)
    assert found["double"]["torch_eager"]["variants"] == ["plus", "times"] and "torch_addmm" in found["lola"]
    done = answered("bench", f"path=[{KERNELS},{EXTRA}]", "kernel=dubble")
    assert done.returncode == 2 and "double, embedding" in done.stderr
    done = answered("bench", f"path=[{KERNELS},{EXTRA}]", "implementation=torch_adm")
    assert done.returncode == 2 and "did you mean torch_addmm" in done.stderr


def test_two_files_of_one_name_are_refused(tmp_path, answered):
    (tmp_path / "mine" / "lola").mkdir(parents=True)
    (tmp_path / "mine" / "lola" / "torch_eager.py").write_text('BACKEND = "torch"\nVARIANTS = {"default": ()}\n')
    done = answered("parity", f"path={tmp_path / 'mine'}", "kernel=lola")
    assert done.returncode == 2 and done.stderr.count("torch_eager.py") == 2 and "another name" in done.stderr


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('BACKEND = "torch"\nVARIANTS = {}\n', "VARIANTS must map"),
        ('BACKEND = "torch"\nVARIANTS = {"default": "output"}\n', "VARIANTS must map"),
        ('BACKEND = "torch"\nVARIANTS = dict(default=())\n', "VARIANTS must be a literal"),
        ('BACKEND = "tensorflow"\nVARIANTS = {"default": ()}\n', "BACKEND is 'tensorflow'"),
        ('BACKEND = "torch"\nVARIANTS = {"default": ()}\nREQUIRES = ["x"]\n', "REQUIRES must map"),
        ('BACKEND = "torch"\nVARIANTS = {"default": ()}\nWITHOUT_GPU = "maybe"\n', "WITHOUT_GPU is 'maybe'"),
        ("BACKEND = 'torch'\n", "sets no VARIANTS"),
    ],
)
def test_a_wrong_constant_costs_its_file_alone(tmp_path, answered, text, named):
    (tmp_path / "mine" / "launch").mkdir(parents=True)
    (tmp_path / "mine" / "launch" / "odd_one.py").write_text(text)
    found = json.loads(answered("list", "--json", f"path={tmp_path / 'mine'}").stdout)["launch"]
    assert named in found["odd_one"]["unavailable"] and found["torch_eager"]["unavailable"] is None


def test_a_file_that_cannot_be_imported_by_its_name_is_named(tmp_path, answered):
    folder = tmp_path / "mine" / "launch"
    folder.mkdir(parents=True)
    for name in ("torch-fast.py", "class.py"):
        (folder / name).write_text('BACKEND = "torch"\nVARIANTS = {"default": ()}\n')
    (folder / ".#triton.py").symlink_to("somebody@somewhere.1234")  # an editor's lock: it leads nowhere
    found = json.loads(answered("list", "--json", f"path={tmp_path / 'mine'}").stdout)["launch"]
    assert ".#triton" not in found and found["torch_eager"]["unavailable"] is None
    done = answered("parity", f"path={tmp_path / 'mine'}", "kernel=launch", "implementation=[torch-fast,class]")
    assert done.returncode == 1 and done.stderr == ""
    for said in (
        "torch-fast.py has no name that can be imported: rename it, such as to torch_fast.py",
        "such as to torch_class.py",
    ):
        assert said in done.stdout  # fmt: skip


def test_a_formula_that_raises_costs_its_own_cells(tmp_path, answered):
    folder = tmp_path / "mine" / "half"
    folder.mkdir(parents=True)
    text = (KERNELS / "double" / "kernel.py").read_text()
    (folder / "kernel.py").write_text(
        text.replace("return (r.round", "raise ArithmeticError('half done')\n    return (r.round")
    )
    (folder / "torch_eager.py").write_text((KERNELS / "double" / "torch_eager.py").read_text())
    arguments = [f"path={tmp_path / 'mine'}", "kernel=[half,launch]", "implementation=torch_eager"]
    done = answered("parity", *arguments)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert [(r.kernel, r.status) for r in records_of(tmp_path)] == [("half", "failed")] * 2 + [("launch", "ok")]
    assert "half done" in records_of(tmp_path)[0].reason


def test_a_broken_kernel_file_is_named(tmp_path, answered):
    folder = tmp_path / "mine" / "half"
    folder.mkdir(parents=True)
    (folder / "kernel.py").write_text("DIMENSIONS = ('N',)\n")
    done = answered("bench", f"path={tmp_path / 'mine'}")
    assert done.returncode == 2 and "kernel.py lacks BATCH" in done.stderr


@pytest.mark.parametrize(
    ("kernel", "code"),
    [
        (["kernel=double"], 0), (["kernel=dou*"], 0), (["kernel=double,launch", "-m"], 0), (["kernel=[double,half]"], 2), (["kernel=half"], 2),
        (["kernel=double,half", "-m"], 2), (["kernel=all"], 2), ([], 2),
    ],
)  # fmt: skip
def test_a_broken_kernel_file_costs_itself_alone(tmp_path, answered, kernel, code):
    for name, text in (("half", "DIMENSIONS = ('N',)\n"), ("double", (KERNELS / "double" / "kernel.py").read_text())):
        (tmp_path / "mine" / name).mkdir(parents=True)
        (tmp_path / "mine" / name / "kernel.py").write_text(text)
    (tmp_path / "mine" / "double" / "torch_eager.py").write_text((KERNELS / "double" / "torch_eager.py").read_text())
    done = answered("bench", f"path={tmp_path / 'mine'}", *kernel, "implementation=torch_eager", "dry_run=true")
    said = f"{tmp_path}/mine/half/kernel.py lacks BATCH"
    assert done.returncode == code and said in done.stderr and done.stderr.count("\n") == 1, done.stdout + done.stderr
    assert ("left out: " in done.stderr) == ("double  " in done.stdout) == (code == 0)
    done = answered("list", "--json", f"path={tmp_path / 'mine'}")
    assert done.returncode == 0 and "double" in json.loads(done.stdout) and f"left out: {said}" in done.stderr
