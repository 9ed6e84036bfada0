"""What the command line says of the mistakes that a kernel's author makes first."""

from __future__ import annotations

import pytest
from test_command_line import fusebench, records_of

KERNEL = '''"""mine: y = 3 x - (3 x + 1 / 3). x (N,) → y (N,)."""

import numpy as np

DIMENSIONS = ("N",)
BATCH = "N"
CASES = {"odd": {"N": 999}}


def inputs(case, rng):
    return {"x": rng.standard_normal(case.sizes["N"], dtype=np.float32)}


def formula(case, r, x):
    return (r.compute(r.round("product", 3 * x) - r.round("shift", 3 * x + 1 / 3)),)


def flops(case):
    return 2 * case.sizes["N"]


def moved_bytes(case):
    return 2 * case.sizes["N"] * case.itemsize
'''
PROGRAM = """BACKEND = "torch"
VARIANTS = {"default": ("shift",)}


def build(case, variant, device):
    return lambda x: 3 * x - (3 * x.float() + 1 / 3).to(x.dtype)
"""


@pytest.fixture
def parity(tmp_path):
    """A function from texts of the kernel and of its program to what `parity` makes of them, in float16."""

    def run(kernel=KERNEL, program=PROGRAM):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "kernel.py").write_text(kernel)
        (tmp_path / "mine" / "torch_eager.py").write_text(program)
        words = ("kernel=mine", f"path={tmp_path / 'mine'}", "dtype=float16", "device=cpu", "inputs=plain")
        return fusebench("parity", *words, cwd=tmp_path)

    return run


def test_points_that_are_not_declared_are_named(parity):
    done = parity()
    assert done.returncode == 1 and "1 cell: 1 wrong" in done.stdout, done.stdout + done.stderr
    assert "; points of the formula that VARIANTS does not declare: product  torch_eager" in done.stdout


def test_nothing_is_said_of_points_that_are_declared(parity):
    done = parity(program=PROGRAM.replace('("shift",)', '("shift", "product")'))
    assert done.returncode == 0 and "VARIANTS" not in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("change", "said", "line"),
    [
        (('2 * case.sizes["N"]\n', '2 * case.sizes["M"]\n'), "KeyError: 'M'", 'case.sizes["M"]'),
        (("r.compute(r", "np.linalg.inv(r"), "LinAlgError: ", "np.linalg.inv"),
    ],
)
def test_a_mistake_in_kernel_py_has_its_file_and_line(parity, change, said, line):
    text = KERNEL.replace(*change)
    done = parity(kernel=text)
    number = next(n for n, words in enumerate(text.splitlines(), 1) if line in words)
    assert done.returncode == 1 and said in done.stdout and f"(at mine/kernel.py:{number})" in done.stdout, done.stderr
    assert "records.jsonl (the field traceback of 1 cell has where it failed)" in done.stdout


def test_a_mistake_in_build_has_its_file_and_line(parity, tmp_path):
    done = parity(program=PROGRAM.replace("    return lambda", '    size = case.sizes["M"]\n    return lambda'))
    assert "KeyError: 'M' (at mine/torch_eager.py:6)" in done.stdout, done.stdout + done.stderr
    assert "records.jsonl (the field traceback of 1 cell has where it failed)" in done.stdout
    (record,) = records_of(tmp_path)
    assert "KeyError: 'M'" in record.traceback and 'torch_eager.py", line 6' in record.traceback


def test_a_kernel_py_that_does_not_import_has_its_line(parity):
    done = parity(kernel=KERNEL.replace("BATCH", "BATCH = undefined\nBATCH"))
    assert done.returncode == 2 and "NameError: name 'undefined' is not defined (at mine/kernel.py:6)" in done.stderr


@pytest.mark.parametrize(
    ("name", "meant"), [("PRECISION", "PRECISIONS"), ("ROW", "ROWS"), ("OPTION", "OPTIONS"), ("OUTPUT", "OUTPUTS")]
)
def test_a_misspelt_constant_of_kernel_py_is_named(parity, name, meant):
    done = parity(kernel=KERNEL.replace("BATCH", f"{name} = ()\nBATCH"))
    assert done.returncode == 2 and f"mine/kernel.py: it sets {name}: did you mean {meant}? " in done.stderr


@pytest.mark.parametrize(
    ("name", "meant"), [("INPLACE", "IN_PLACE"), ("TUNABLE", "TUNABLES"), ("WITHOUTGPU", "WITHOUT_GPU")]
)
def test_a_misspelt_constant_of_an_implementation_is_named(parity, name, meant):
    done = parity(program=f"{name} = {{}}\n{PROGRAM}")
    said = f"torch_eager.py cannot be read: it sets {name}: did you mean {meant}? A name of your own begins with an underscore"
    assert done.returncode == 1 and said in done.stdout, done.stdout + done.stderr


def test_a_name_that_is_like_none_of_the_contract_is_free(parity):
    names = "BLOCK = 128\nEPS = 1e-5\n_PRECISION = 3\n"
    done = parity(kernel=names + KERNEL, program=names + PROGRAM.replace('("shift",)', '("shift", "product")'))
    assert done.returncode == 0, done.stdout + done.stderr
