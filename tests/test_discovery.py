"""What is found in folders of kernels, how a file's constants are read, and what is said of a file that is none."""

from __future__ import annotations

import sys

import pytest
from conftest import FIXTURES

from fusebench import discovery
from fusebench.backends import protocol
from fusebench.discovery import Implementation, find_kernels, read_implementation, roots_of
from fusebench.errors import UsageError

KERNEL = (FIXTURES / "kernels" / "double" / "kernel.py").read_text()
PROGRAM = 'BACKEND = "torch"\nVARIANTS = {"default": ()}\n'


def made(root, **files):
    """A root with files: `double__kernel` is double/kernel.py."""
    for name, text in files.items():
        file = root.joinpath(*name.split("__")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def read(tmp_path, text, name="it"):
    return read_implementation("double", made(tmp_path, **{name: text}) / f"{name}.py")


def refused(*roots):
    with pytest.raises(UsageError) as error:
        find_kernels(roots)
    return str(error.value)


def test_a_file_that_was_edited_is_read_again(tmp_path):
    """What is kept of a file hangs on its text, not on its name, time or size."""
    found = [read(tmp_path, PROGRAM.replace("default", name)).variants for name in ("default", "another", "default")]
    assert [list(variants) for variants in found] == [["default"], ["another"], ["default"]]
    assert "imports jax" in read(tmp_path, "import jax\n" + PROGRAM).broken and not read(tmp_path, PROGRAM).broken


# Folders


def test_a_root_is_ours_and_then_the_others(tmp_path):
    mine, single = made(tmp_path / "mine", a__kernel=KERNEL), made(tmp_path / "single", kernel=KERNEL)
    assert roots_of() == [discovery.HOME] and discovery.HOME.name == "implementations"
    assert roots_of([mine, str(single)]) == [discovery.HOME, mine.resolve(), single.resolve()]
    assert roots_of([], mine) == [mine]


def test_a_path_without_kernels_is_named(tmp_path):
    with pytest.raises(
        UsageError, match=r"nosuch: no such folder; expected a folder of kernels \(DIR/<kernel>/kernel\.py\)"
    ):
        roots_of([tmp_path / "nosuch"])
    (tmp_path / "notes.txt").touch()
    with pytest.raises(
        UsageError, match=r": no kernel there; expected DIR/<kernel>/kernel\.py or DIR/<kernel>/<implementation>\.py"
    ):
        roots_of([tmp_path])
    with pytest.raises(UsageError, match=r"^path=: no such folder"):
        roots_of([""])  # which would be the folder that one is in
    roots = roots_of([made(tmp_path, notes__list="")])  # Python files, but of no kernel that there is
    with pytest.raises(UsageError, match=r": no kernel there; expected DIR/<kernel>/kernel\.py"):
        discovery.check_roots(roots, {"double"})
    made(tmp_path, double__mine="")
    discovery.check_roots(roots, {"double"})


def test_a_path_is_one_whether_or_not_it_is_relative(tmp_path, monkeypatch):
    made(tmp_path / "mine", a__kernel=KERNEL)
    monkeypatch.chdir(tmp_path)
    assert roots_of(["mine"])[1] == (tmp_path / "mine").resolve()


def test_kernels_and_implementations_are_found_by_their_files(tmp_path):
    root = made(
        tmp_path, b__kernel=KERNEL, b__flax=PROGRAM, b__cuda=PROGRAM, b___shared=PROGRAM, a__kernel=KERNEL, _hidden__kernel=KERNEL, c__flax=PROGRAM
    )  # fmt: skip
    (root / ".git").mkdir()
    (root / ".git" / "x.py").touch()
    (root / "empty").mkdir()
    (root / "file.py").touch()
    found = find_kernels([root])
    assert list(found) == ["a", "b"], "c has no kernel.py"
    assert list(found["b"].implementations) == ["cuda", "flax"] and found["a"].implementations == {}
    assert (found["b"].name, found["b"].folder) == ("b", root / "b") and found["b"].mathematics.batch == "N"
    assert found["b"].dimensions == ("N",) and found["b"].options == {}
    assert (found["b"].implementations["flax"].kernel, found["b"].implementations["flax"].file) == (
        "b",
        root / "b" / "flax.py",
    )


def test_a_later_root_adds_implementations(tmp_path):
    first, second = (
        made(tmp_path / "1", double__kernel=KERNEL, double__flax=PROGRAM),
        made(tmp_path / "2", double__cuda=PROGRAM),
    )
    assert list(find_kernels([first, second])["double"].implementations) == ["flax", "cuda"]
    assert list(find_kernels([first, first])["double"].implementations) == ["flax"], "one folder twice is one"
    assert find_kernels([first, second])["double"].folder == first / "double"


def test_one_kernel_s_own_folder_is_a_root(tmp_path):
    root = made(tmp_path, double__kernel=KERNEL, double__flax=PROGRAM, other__kernel=KERNEL)
    assert list(find_kernels([root / "double"])) == ["double"]


def test_two_files_of_one_name_are_named(tmp_path):
    first, second = (
        made(tmp_path / "1", double__kernel=KERNEL, double__flax=PROGRAM),
        made(tmp_path / "2", double__flax=PROGRAM),
    )
    said = refused(first, second)
    assert (
        said
        == f"{second / 'double' / 'flax.py'} and {first / 'double' / 'flax.py'} are both double's flax: give one another name"
    )


def test_modules_of_an_earlier_search_are_forgotten(tmp_path):
    first, second = (
        made(tmp_path / "1", double__kernel=KERNEL),
        made(tmp_path / "2", double__kernel=KERNEL.replace('"N"', '"Q"').replace("'N'", "'Q'")),
    )
    assert find_kernels([first])["double"].dimensions == ("N",)
    assert find_kernels([second])["double"].dimensions == ("Q",)
    assert sys.modules["implementations"].__path__ == [str(second)]
    discovery.use_roots([second / "double", first, second])
    assert (
        sys.modules["implementations"].__path__ == [str(second), str(first)]
        and "implementations.double" not in sys.modules
    )
    assert discovery.load_implementation("double", "kernel").BATCH == "Q"


# kernel.py


@pytest.mark.parametrize(
    "line", ["special.erf(x)", "scipy.special.erf(x)", "erf(x)", "mish(x)", "np.where(x > 0, np.log1p(x), 0)", "r.compute(np.exp(x))"]
)  # fmt: skip
def test_an_elementary_function_goes_through_r_function(tmp_path, line):
    """Also one of SciPy's, and one that a function of the kernel's own calls; `inputs` may have what it likes."""
    head = "from scipy import special\nimport scipy.special\nfrom scipy.special import erf\n" + KERNEL
    head += f"\n\ndef mish(x):\n    return x * np.tanh(x)\n\n\ndef inputs(case, rng):\n    x = 1.0\n    return {line}\n"
    body = "\n\ndef formula(case, r, x):\n    return "
    assert "stands outside of r.function" in refused(made(tmp_path, double__kernel=f"{head}{body}{line}\n"))
    made(tmp_path, double__kernel=f"{head}{body}r.function({line})\n")
    assert list(find_kernels([tmp_path])) == ["double"]


def test_what_a_kernel_py_is_made_of_is_in_numpy_as_well(tmp_path):
    root = made(
        tmp_path, double__kernel="from implementations.double import _more\n" + KERNEL, double___more="import jax\n"
    )
    assert refused(root).endswith(
        "kernel.py: _more.py, of which it is made: it imports jax: a reference is in NumPy and SciPy alone, so that it is no framework's"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise KeyError('x')\n", " does not import: KeyError: 'x'"), ("import sys\nsys.exit(3)\n", " does not import: SystemExit: 3"),
        ("x = (\n", " does not import: SyntaxError: "), ("DIMENSIONS = ('N',)\n", " lacks BATCH, CASES, inputs, formula, flops, moved_bytes ("),
        (KERNEL + "DIMENSIONS = 'N'\n", ": DIMENSIONS is 'N'; expected a tuple of names, such as (\"M\", \"N\")"),
        (KERNEL + "DIMENSIONS = ()\n", ": DIMENSIONS is (); expected a tuple"), (KERNEL + "DIMENSIONS = ('',)\n", ": DIMENSIONS is ('',); expected"),
        (KERNEL + "BATCH = 'M'\n", ": BATCH is 'M', not one of DIMENSIONS: N"),
        (KERNEL + "CASES = {}\n", ": CASES is {}; expected named sizes, such as {'odd': {'N': 7}}"),
        (KERNEL + "CASES = {'': {'N': 1}}\n", ": CASES is {'': {'N': 1}}; expected named sizes"),
        (KERNEL + "CASES = {'odd': {'N': 1, 'M': 2}}\n", ": case odd has N, M; expected N"),
        (KERNEL + "CASES = {'odd': {'N': 0}}\n", ": case odd is {'N': 0}; expected positive integers"),
        (KERNEL + "DIMENSIONS = ('N', 'M')\nCASES = {'odd': {'N': 7, 'M': 0}}\n", ": case odd is {'N': 7, 'M': 0}; expected positive integers"),
        (KERNEL + "CASES = {'odd': {'N': True}}\n", ": case odd is {'N': True}; expected positive integers"),
        (KERNEL + "OPTIONS = {'a': ()}\n", ": OPTIONS is {'a': ()}; expected options with their values"),
        (KERNEL + "OPTIONS = {'a': 'bc'}\n", ": OPTIONS is {'a': 'bc'}; expected options with their values"),
        (KERNEL + "PRECISIONS = ('tf64',)\n", ": PRECISIONS is ('tf64',); expected some of ieee, tf32"),
        (KERNEL + "ROWS = 'x'\n", ": ROWS is 'x'; expected axes by name, such as {\"x\": 0, \"y\": 0}"),
        (KERNEL + "ROWS = {'x': '0'}\n", ": ROWS is {'x': '0'}; expected axes by name"), (KERNEL + "ROWS = {'x': True}\n", ": ROWS is {'x': True}; expected"),
        (KERNEL + "ROW_AXIS = True\n", ": ROW_AXIS is True; expected an integer"),
        (KERNEL + "OWN_DTYPES = {'a': 'half'}\n", ": OWN_DTYPES is {'a': 'half'}; expected names of inputs, or names with one of float32, float16, "),
        (KERNEL + "OWN_DTYPES = {'a': ''}\n", ": OWN_DTYPES is {'a': ''}; expected"), (KERNEL + "OUTPUTS = 'y'\n", ": OUTPUTS is 'y'; expected a tuple of names"),
        (KERNEL + "LAUNCHES = {'a': 0}\n", ": LAUNCHES is {'a': 0}; expected variants with positive integers"),
        (KERNEL + "LAUNCHES = {'a': True}\n", ": LAUNCHES is {'a': True}; expected variants"),
        (KERNEL + "LAUNCHES = {'a': 'M'}\n", ": LAUNCHES is {'a': 'M'}; expected variants with positive integers, dimensions or functions of a case"),
        (KERNEL + "PUBLISHED = 'odd'\n", ": PUBLISHED is 'odd'; expected cases, such as ({\"case\": \"odd\", \"dtype\": \"float32\"},)"),
        (KERNEL + "PUBLISHED = ('odd',)\n", ": PUBLISHED has 'odd': expected a case and any of dtype, precision, options"),
        (KERNEL + "PUBLISHED = ({'case': 'odd', 'M': 3},)\n", ": PUBLISHED has {'case': 'odd', 'M': 3}: expected a case and any of"),
        (KERNEL + "PUBLISHED = ({'case': 'nosuch'},)\n", ": PUBLISHED has {'case': 'nosuch'}: case is none of "),
        (KERNEL + "PUBLISHED = ({'case': ['odd']},)\n", ": PUBLISHED has {'case': ['odd']}: case is none of "),
        (KERNEL + "PUBLISHED = ({'case': 'small', 'dtype': 'half'},)\n", ": PUBLISHED has {'case': 'small', 'dtype': 'half'}: dtype is none of float32, "),
        (KERNEL + "PUBLISHED = ({'case': 'small', 'precision': 'no'},)\n", ": PUBLISHED has {'case': 'small', 'precision': 'no'}: precision is none of ieee"),
        (KERNEL + "PUBLISHED = ({'case': 'small', 'options': {'a': 'b'}},)\n", ": PUBLISHED has {'case': 'small', 'options': {'a': 'b'}}: expected options of OPTIONS"),
        (KERNEL + "PARTS = {'a': 1}\n", ": PARTS is {'a': 1}; expected formulas by name"), (KERNEL + "hard = 3\n", ": hard is 3; expected a function"),
        (KERNEL + "weights = 3\n", ": weights is 3; expected a function"), (KERNEL + "flops = 3\n", ": flops is 3; expected a function"),
        (KERNEL + "inputs = formula = 3\n", ": inputs is 3; expected a function"), (KERNEL + "moved_bytes = 3\n", ": moved_bytes is 3; expected a function"),
        (KERNEL + "formula = 3\n", ": formula is 3; expected a function"),
    ],
)  # fmt: skip
def test_what_in_a_kernel_is_not_as_the_contract_has_it_is_named(tmp_path, text, said):
    root = made(tmp_path, double__kernel=text)
    assert refused(root).startswith(f"{root / 'double' / 'kernel.py'}{said}")


@pytest.mark.parametrize(
    "line",
    [
        "OPTIONS = {'a': ['b', 'c']}",
        "PRECISIONS = ()",
        "ROWS = ()",
        "ROWS = {'x': -2, 'y': 0}",
        "ROW_AXIS = -2",
        "PARTS = {}",
        "LAUNCHES = {'default': 2}",
        "OWN_DTYPES = ('x',)",
        "OUTPUTS = ('y',); OWN_DTYPES = {'y': 'int64', 'x': 'float32'}",
        "OPTIONS = {'a': ('b', 'c')}; PUBLISHED = ({'case': 'small', 'dtype': 'float16', 'options': {'a': 'c'}},)",
        "BATCH = 'N'",
    ],
)
def test_what_a_kernel_may_have(tmp_path, line):
    assert "double" in find_kernels([made(tmp_path, double__kernel=f"{KERNEL}\n{line}\n")])


# Implementations


def test_the_constants_of_a_file_are_read(tmp_path):
    text = """
BACKEND: str = "jax"
VARIANTS = {"default": (), "in_place": ("product", "bias")}
REQUIRES = {"triton": "triton>=3", "numpy": "numpy"}
IN_PLACE = {"in_place": ("x",)}
COMPUTES = "product"
FUSED = True
WITHOUT_GPU = "interpreted"
OTHER = 1 / 0
"""
    assert read(tmp_path, text) == Implementation(
        "double", "it", tmp_path / "it.py", "jax", {"default": (), "in_place": ("product", "bias")}, {"triton": "triton>=3", "numpy": "numpy"},
        {"in_place": ("x",)}, "interpreted", "product", fused=True,
        refused={"cpu": {}, "cuda": {}},
    )  # fmt: skip


def test_variants_may_share_what_they_overwrite(tmp_path):
    text = (
        'BACKEND = "torch"\nVARIANTS = {"a": (), "b": (), "c": ()}\nIN_PLACE = {("a", "b"): ("x",), "c": ("x", "y")}\n'
    )
    assert read(tmp_path, text).in_place == {"a": ("x",), "b": ("x",), "c": ("x", "y")}


def test_what_a_file_may_leave_out(tmp_path):
    found = read(tmp_path, PROGRAM)
    assert (found.requires, found.in_place, found.without_gpu, found.computes, found.fused, found.broken) == (
        {}, {}, "timed", "", False, "",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('VARIANTS = {"default": ()}\n', "it.py sets no BACKEND"), ('BACKEND = "torch"\n', "it.py sets no VARIANTS"),
        (PROGRAM + 'BACKEND = "tensorflow"\n', "it.py is no implementation: BACKEND is 'tensorflow', not one of jax, numpy, torch"),
        (PROGRAM + 'WITHOUT_GPU = "no"\n', "it.py is no implementation: WITHOUT_GPU is 'no', not one of timed, interpreted, emulated, unavailable"),
        (PROGRAM + "VARIANTS = {}\n", 'VARIANTS must map each variant to a tuple of points, such as {"default": ("product",)}'),
        (PROGRAM + 'VARIANTS = {"a": "bc"}\n', "VARIANTS must map each variant"), (PROGRAM + 'REQUIRES = {"a": ""}\n', "REQUIRES must map modules to packages"),
        (PROGRAM + 'IN_PLACE = {("default", "other"): ("x",)}\n', "IN_PLACE must map variants"), (PROGRAM + 'IN_PLACE = {(): ("x",)}\n', "IN_PLACE must map variants"),
        (PROGRAM + 'IN_PLACE = {"default": "x"}\n', "IN_PLACE must map variants"), (PROGRAM + 'IN_PLACE = {"other": ("x",)}\n', "IN_PLACE must map variants"),
        (PROGRAM + "FUSED = 1\n", "it.py is no implementation: FUSED is 1; expected True or False"),
        (PROGRAM + "COMPUTES = f()\n", "COMPUTES must be a literal, because it is read without an import"),
        (PROGRAM + "x = (\n", "it.py cannot be read: "), (PROGRAM + "\x00", "it.py cannot be read: "),
        (PROGRAM + "def f():\n    import jax.numpy\n", "it imports jax.numpy, but its BACKEND is torch"),
        (PROGRAM + "from flax import linen\n", "it imports flax, but its BACKEND is torch"),
        (PROGRAM.replace("torch", "jax") + "import torch\n", "it imports torch, but its BACKEND is jax"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_broken_and_says_why(tmp_path, text, said):
    found = read(tmp_path, text)
    assert said in found.broken and found.name == "it" and found.file == tmp_path / "it.py"
    assert found.unavailable("cpu") == found.unavailable("cuda") == found.broken


def test_two_names_in_one_assignment_and_the_last_value_count(tmp_path):
    assert read(tmp_path, PROGRAM + 'BACKEND = OTHER = "jax"\n').backend == "jax"
    assert read(tmp_path, PROGRAM + "from . import _x\nimport numpy as np\n").broken == ""


IMPORTED = "from implementations.double._tiles import TUNABLES\n"


def test_a_constant_may_stand_in_another_file_of_implementations(tmp_path):
    tiles = 'TUNABLES = {"default": {"num_warps": (4, 8)}}\nraise RuntimeError("it is read, not imported")\n'
    root = made(tmp_path, double___tiles=tiles, double__it=PROGRAM + IMPORTED)
    assert read_implementation("double", root / "double" / "it.py").tunables == {"default": {"num_warps": (4, 8)}}
    made(tmp_path, double___more=IMPORTED, double__it=PROGRAM + IMPORTED.replace("_tiles", "_more"))
    assert read_implementation("double", root / "double" / "it.py").tunables == {"default": {"num_warps": (4, 8)}}
    attention = (
        PROGRAM.replace('"default"', '"flash"') + "from implementations._shared.triton.attention import TUNABLES\n"
    )
    assert "whole_row" in read(tmp_path, attention).broken, "what is no variant here is still named"


@pytest.mark.parametrize(
    ("tiles", "imported", "said"),
    [
        ("", IMPORTED, "TUNABLES comes from _tiles.py, which sets none"),
        ("TUNABLES = f()\n", IMPORTED, "TUNABLES must be a literal, because it is read without an import"),
        (IMPORTED, IMPORTED, "it.py cannot be read: maximum recursion depth exceeded"),
        ("", IMPORTED.replace("_tiles", "nosuch"), "comes from 'implementations.double.nosuch', which is no file of"),
        ("", IMPORTED.replace("double._tiles", "double"), "comes from 'implementations.double', which is no file of"),
        ("", "from numpy import x as TUNABLES\n", "x comes from 'numpy', which is no file of implementations"),
        ("", "from . import TUNABLES\n", "TUNABLES comes from '', which is no file of implementations"),
    ],
)
def test_a_constant_that_another_file_does_not_have_is_named(tmp_path, tiles, imported, said):
    root = made(tmp_path, double___tiles=tiles, double__it=PROGRAM + imported)
    assert said in read_implementation("double", root / "double" / "it.py").broken


def test_what_is_missing_is_named_with_the_command_that_installs_it():
    def made(**more):
        return Implementation("k", "it", discovery.HOME, **more)

    needs = "needs no_such_module: pip install its-package"
    assert (
        made(requires={"no_such_module": "its-package"}).missing()
        == needs
        == made(requires={"no_such_module": "its-package"}).unavailable("cuda")
    )
    assert made(requires={"no_such.sub": "x"}).missing() == "needs no_such.sub: pip install x"
    assert made(requires={"numpy": "numpy"}).missing() is None and made().unavailable("cpu") is None
    assert made(without_gpu="unavailable").unavailable("cpu") == "needs an NVIDIA GPU"
    assert (
        made(without_gpu="unavailable").unavailable("cuda")
        is None
        is made(without_gpu="interpreted").unavailable("cpu")
    )
    assert made(broken="broken", without_gpu="unavailable").unavailable("cpu") == "broken"


def test_the_back_end_itself_may_be_missing(monkeypatch):
    described = protocol.Description("torch", ("torch",), {"no_such_torch": "torch"})
    monkeypatch.setattr(protocol, "found", lambda: {"torch": described})
    assert Implementation("k", "it", discovery.HOME).missing() == "needs no_such_torch: pip install torch"


def test_what_a_variant_overwrites_is_what_its_case_has_of_it():
    found = Implementation("k", "i", FIXTURES / "i.py", in_place={"own": ("W1", "W2")})
    assert found.places_in_place("own", ["x", "W1"]) == [1] and found.places_in_place("other", ["x"]) == []
    with pytest.raises(ValueError, match="IN_PLACE names W1, W2, but the inputs are x"):
        found.places_in_place("own", ["x"])


@pytest.mark.parametrize(
    ("body", "cpu", "cuda"),
    [
        ('if variant == "fast" and device.type == "cpu":\n  return "needs a GPU"\n return None', "needs a GPU", None),
        (
            'T = case.size("T")\n if variant != "fast":\n  return None\n if device.type != "cuda":\n  return "no"',
            "no",
            None,
        ),
        ('return None if device.type == "cuda" or variant not in ("fast",) else "no"', "no", None),
        ('if variant in {"fast"}:\n  return "never"', "never", "never"),
        ('if not variant == "default":\n  return "never"', "never", "never"),
        ('return 3 if variant == "fast" else None', None, None),  # no reason
        ('return "no" if "cuda" != device.type != "cpu" else None', None, None),
        ('variant += "er"\n if variant == "fast":\n  return "no"', None, None),
        (
            'if case.dtype == "float32":\n  return None\n if device.type == "cpu":\n  return "no"',
            None,
            None,
        ),  # float32 runs
        ('if variant == "slow" and case.mode:\n  return "no"', None, None),
        ('return f"no {variant}"', None, None),
        ('for _ in ():\n  pass\n return "no"', None, None),
        ('return "no" if variant < 3 else None', None, None),
        ('return "no" if variant in 3 else None', None, None),
    ],
)
def test_what_skip_says_of_a_variant_whatever_the_case_is_read_without_running_it(tmp_path, body, cpu, cuda):
    text = (
        f'BACKEND = "torch"\nVARIANTS = {{"default": (), "fast": ()}}\n\n\ndef skip(case, variant, device):\n {body}\n'
    )
    found = read(tmp_path, f'raise SystemExit("it ran")\n{text}')
    assert (found.refusals("cpu").get("fast"), found.refusals("cuda").get("fast")) == (cpu, cuda) and not found.broken
    emulated = read(tmp_path, f'WITHOUT_GPU = "emulated"\n{text}')
    assert emulated.refusals("cpu").get("fast") == cuda, "it takes itself to be on a GPU"
