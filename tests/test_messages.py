"""What the command line says of the mistakes that a kernel's author makes first."""

from __future__ import annotations

import time

import pytest
from stand_in import light_python
from test_command_line import records_of

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
LIGHT = PROGRAM.replace("(3 * x.float() + 1 / 3).to(x.dtype)", "(3 * x + 1 / 3)")  # of a worker without a framework


@pytest.fixture
def parity(tmp_path, answered):
    """A function from texts of the kernel and of its program to what `parity` makes of them, in float16."""

    def run(kernel=KERNEL, program=PROGRAM):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "kernel.py").write_text(kernel)
        (tmp_path / "mine" / "torch_eager.py").write_text(program)
        words = ("kernel=mine", f"path={tmp_path / 'mine'}", "dtype=float16", "device=cpu", "inputs=plain")
        return answered("parity", *words)

    return run


@pytest.fixture
def told(tmp_path, answered):
    """A function from texts of the kernel, of its program and of more files in its folder to what `parity` says of them, in this
    process, with a worker that loads no framework."""

    def run(*words, kernel=KERNEL, program=LIGHT, **more):
        (tmp_path / "mine").mkdir(exist_ok=True)
        for name, text in {"kernel": kernel, "torch_eager": program, **more}.items():
            (tmp_path / "mine" / f"{name}.py").write_text(text)
        light = f"worker.python.torch={light_python(tmp_path)}"
        return answered(
            "parity",
            "kernel=mine",
            "implementation=torch_eager",
            f"path={tmp_path / 'mine'}",
            "device=cpu",
            light,
            *words,
        )

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


@pytest.mark.parametrize("change", [("3 * x)", "3 * x + np.random.rand())"), ("return (r", "x *= 2\n    return (r")])
def test_a_formula_that_gives_other_values_each_time_is_no_reference(told, change):
    done = told("dtype=float16", kernel=KERNEL.replace(*change))
    assert done.returncode == 1 and "1 cell: 1 failed" in done.stdout, done.stdout + done.stderr
    assert "the formula of kernel.py gives other values each time on the same inputs; expected the same" in done.stdout


@pytest.mark.parametrize(
    ("function", "change", "value"),
    [
        ("flops", ('return 2 * case.sizes["N"]\n', 'return -2.0 * case.sizes["N"]\n'), "-1998.0"),
        ("flops", ('return 2 * case.sizes["N"]\n', 'return float("nan")\n'), "nan"),
        ("moved_bytes", ('return 2 * case.sizes["N"] * case', "return np.inf * case"), "inf"),
    ],
)
def test_work_that_no_call_has_is_the_mistake_of_kernel_py(told, answered, tmp_path, function, change, value):
    done = told("dtype=float32", kernel=KERNEL.replace(*change))
    said = f"{function} of kernel.py of mine returns {value} for odd/float32/ieee: expected a number of at least 0"
    assert done.returncode == 1 and "1 cell: 1 failed" in done.stdout and said in done.stdout, done.stdout + done.stderr
    done = answered("list", "kernel=mine", f"path={tmp_path / 'mine'}")
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ('ROWS = {"x": 1, "y": 0}', "ROWS of kernel.py has axis 1 of x, whose shape is (999,): expected 0"),
        ('ROWS = {"x": 0, "y": -2}', "ROWS of kernel.py has axis -2 of output 0, whose shape is (999,): expected 0"),
        (
            'ROWS = {"z": 1, "y": 0}',
            "names z, y, not among the inputs (x): expected as many names as outputs, 1, beside these",
        ),
        ('OUTPUTS = ("y",)\nROWS = {"z": 0}', "names z, not among the inputs (x): expected outputs (y) beside these"),
    ],
)
def test_rows_that_no_input_or_output_has_are_the_mistake_of_kernel_py(told, names, said):
    done = told(kernel=KERNEL.replace("BATCH", f"{names}\nBATCH"))
    assert done.returncode == 1 and "1 cell: 1 failed" in done.stdout and said in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("before", ["return {", "return (r"])
def test_a_kernel_py_that_hangs_costs_its_cells(told, before):
    started = time.monotonic()
    done = told("timeout_s=1", kernel=KERNEL.replace(before, f"import time; time.sleep(60)\n    {before}"))
    assert done.returncode == 1 and "1 cell: 1 failed" in done.stdout, done.stdout + done.stderr
    assert "kernel.py took more than 1 s for its smallest case (timeout_s sets the limit)" in done.stdout
    assert time.monotonic() - started < 30


def test_a_formula_that_gives_nan_gives_the_same_each_time(told):
    done = told(kernel=KERNEL.replace("return (r", "x = x * np.nan\n    return (r"))
    assert "gives other values" not in done.stdout and "1 cell: " in done.stdout, done.stdout + done.stderr


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
    said = f"torch_eager.py is no implementation: it sets {name}: did you mean {meant}? A name of your own begins with an underscore"
    assert done.returncode == 1 and said in done.stdout, done.stdout + done.stderr


def test_a_name_that_is_like_none_of_the_contract_is_free(parity):
    names = "BLOCK = 128\nEPS = 1e-5\n_PRECISION = 3\n"
    done = parity(kernel=names + KERNEL, program=names + PROGRAM.replace('("shift",)', '("shift", "product")'))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("import numpy", "import torch\nimport numpy"), "it imports torch: a reference is in NumPy and SciPy alone"),
        (("import numpy", "from .other import f\nimport numpy"), "it imports its sibling other: what they share stands in a file that begins with an under"),
        (("3 * x) -", "np.exp(x)) -"), "np.exp in line 15 stands outside of r.function, so that no program is allowed its error: write r.function(np.exp("),
        (("r.compute(r", "np.tanh(x) + r.compute(r"), "np.tanh in line 15 stands outside of r.function"),
        (("BATCH =", 'OPTIONS = {"eps": (1e-5,)}\nBATCH ='), "expected options with their values as text, such as {\"eps\": (\"1e-5\", \"1e-6\")}"),
        (("def flops(case)", "def flops()"), "it has flops(); expected flops(case)"),
        (("(case, r, x)", "(case, x)"), "it has formula(case, x); expected formula(case, r, *inputs)"),
        (('"odd": {', '"big": {'), "mine has no case odd, which every kernel has, for parity: add one to CASES"),
    ],
)  # fmt: skip
def test_a_kernel_py_that_is_not_as_the_contract_has_it_is_refused_with_what_to_do(told, change, said):
    text = KERNEL.replace(*change)
    done = told(kernel=text, other=PROGRAM + "f = 1\n")
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1, (
        done.stdout + done.stderr
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("(case, variant, device)", "(case, variant)"), "it has build(case, variant); expected build(case, variant, device)"),
        (("(case, variant, device)", "(case, variant, *, device)"), "it has build(case, variant, *, device); expected build(case, variant, device)"),
        (("def build", "def skip(case):\n    return None\n\n\ndef build"), "it has skip(case); expected skip(case, variant, device)"),
        (("def build", 'TUNABLES = {"default": {"rows": (1, 2)}}\n\n\ndef build'), "it has build(case, variant, device); expected build(case, variant, device, config)"),
        (("BACKEND", "from implementations.mine.other import f\nBACKEND"), "it imports its sibling other: what they share stands in a file that begins with"),
        (("BACKEND", "from . import other\nBACKEND"), "it imports its sibling other: "),
        (("BACKEND =", "BACK ="), "torch_eager.py sets no BACKEND: one that is no implementation begins with an underscore, _torch_eager.py"),
    ],
)  # fmt: skip
def test_a_program_that_is_not_as_the_contract_has_it_costs_its_cells_alone(told, change, said):
    done = told(program=LIGHT.replace(*change), other=PROGRAM + "f = 1\n")
    assert done.returncode == 1 and said in done.stdout and "1 failed" in done.stdout, done.stdout + done.stderr


def test_what_a_file_with_an_underscore_has_is_for_all_of_the_kernel(told):
    both = "from implementations.mine._both import f\n"
    done = told(kernel=both + KERNEL, program=both + LIGHT, _both="f = 1\n")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_breakpoint_in_a_worker_says_where_a_debugger_works(told):
    done = told(program=LIGHT.replace("    return lambda", "    breakpoint()\n    return lambda"))
    assert done.returncode == 1 and "worker=inline runs all in this process" in done.stdout, done.stdout


def test_a_preset_without_its_package_says_what_its_first_line_is(told, tmp_path):
    (tmp_path / "presets" / "experiment").mkdir(parents=True)
    file = tmp_path / "presets" / "experiment" / "own.yaml"
    for first, code in (("", 2), ("# @package _global_\n", 0)):
        file.write_text(first + "seed: 3\n")
        done = told("experiment=own", f"--config-dir={tmp_path / 'presets'}")
        assert done.returncode == code and (
            f"the first line of {file} must be `# @package _global_`" in done.stderr
        ) == (code == 2)
