"""What the command line says of the mistakes that a kernel's author makes first."""

from __future__ import annotations

import pytest
from test_command_line import fusebench

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
        words = ("kernel=mine", f"path={tmp_path / 'mine'}", "dtype=float16", "device=cpu")
        return fusebench("parity", *words, cwd=tmp_path)

    return run


def test_points_that_are_not_declared_are_named(parity):
    done = parity()
    assert done.returncode == 1 and "1 cell: 1 wrong" in done.stdout, done.stdout + done.stderr
    assert "; points of the formula that VARIANTS does not declare: product  torch_eager" in done.stdout


def test_nothing_is_said_of_points_that_are_declared(parity):
    done = parity(program=PROGRAM.replace('("shift",)', '("shift", "product")'))
    assert done.returncode == 0 and "VARIANTS" not in done.stdout, done.stdout + done.stderr
