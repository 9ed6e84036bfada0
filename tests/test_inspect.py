"""The command inspect on real kernels, compiled without a GPU."""

from __future__ import annotations

import json

import pytest

from fusebench import discovery
from fusebench.errors import UsageError
from fusebench.inspection import cells, compiled, disassembler, targets, traced
from fusebench.inspection.opcodes import CLASSES

pytest.importorskip("cuda.core")
pytest.importorskip("triton")
COPY = ("inspect", "kernel=launch", "implementation=[cuda,triton,torch_eager]", "dtype=float32")


def test_a_case_is_a_table_over_its_implementations(answered, tmp_path):
    done = answered(*COPY, f"out={tmp_path}/stages", "expect=spills=0,launches=1")
    assert done.returncode == 0 and not done.stderr
    assert "2 of 3 cells compiled" in done.stdout
    assert "torch_eager: names no launches" in done.stdout and "4 of 4 expectations met" in done.stdout
    (figures,) = (tmp_path / "stages").glob("launch/*/cuda/*.json")
    said = json.loads(figures.read_text())
    assert sum(said["whole"][kind] for kind in CLASSES) == said["whole"]["instructions"] > 0
    assert {f.suffix for f in (tmp_path / "stages").glob("launch/*/triton/*")} == {
        ".ttir", ".ttgir", ".llir", ".ptx", ".sass", ".cubin", ".json",
    }  # fmt: skip
    assert not (tmp_path / "results").exists()


def test_what_is_not_as_expected_sets_the_exit_code(answered):
    done = answered(*COPY, "expect=HGMMA>=1,spills=0")
    assert done.returncode == 1 and "cuda: expected HGMMA>=1, found 0" in done.stdout
    assert answered("inspect", "kernel=launch", "implementation=torch_eager", "expect=spills=0").returncode == 1


def test_a_stage_is_printed(answered):
    done = answered(*COPY, "stage=ptx")
    assert done.returncode == 0 and "ld.param" in done.stdout and "instructions" not in done.stdout
    done = answered(*COPY, "stage=sass", "opcodes=true", "threshold=2")
    assert done.returncode == 0 and "other opcodes" in done.stdout and "EXIT" in done.stdout
    assert "its compiler has no ttir: it has ptx, sass" in answered(*COPY, "stage=ttir").stdout


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("arch=sm_9", "unknown arch 'sm_9': did you mean sm_90?"),
        ("stage=ptxx", "unknown stage 'ptxx': did you mean ptx?"),
        ("expect=spils=0", "did you mean spills?"),
        ("opcodes=true", "expected stage=ptx or stage=sass"),
        ("threshold=0", "threshold is 0: expected a positive integer"),
        ("config.BLOCK=x", "config.BLOCK is 'x': expected a value"),
        ("resume=latest", "fusebench: "),
    ],
)
def test_bad_input_is_one_line(answered, word, said):
    done = answered("inspect", "kernel=launch", word)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_without_a_disassembler_one_line_says_what_to_install(answered, monkeypatch):
    monkeypatch.setattr(disassembler, "_places", lambda: iter(()))
    disassembler.find.cache_clear()
    disassembler.disassemble.cache_clear()
    try:
        done = answered("inspect", "kernel=launch", "implementation=cuda")
    finally:
        disassembler.find.cache_clear()
    assert done.returncode == 2 and "pip install nvidia-cuda-nvdisasm" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "arch", "capability"),
    [
        ("sm_80", "sm_80", (8, 0)),
        ("sm_90", "sm_90a", (9, 0)),
        ("sm_90a", "sm_90a", (9, 0)),
        ("sm_100a", "sm_100a", (10, 0)),
    ],
)
def test_targets(name, arch, capability):
    found = targets.target(name)
    assert found.arch == arch and found.device.capability == capability and found.device.multiprocessors


def test_a_target_that_is_none():
    with pytest.raises(UsageError, match="sm_80"):
        targets.target("sm_70")


def own(kernels):
    """(kernel, implementation, what is expected) of all implementations that say so."""
    return [(k, i, e) for k in kernels.values() for i in k.implementations.values() for e in i.expect]


EXPECTED = own(discovery.find_kernels(discovery.roots_of()))


@pytest.mark.parametrize(
    ("kernel", "implementation", "expected"), EXPECTED, ids=[f"{i.kernel}-{i.name}-{e.variant}-{e.case}" for _, i, e in EXPECTED]
)  # fmt: skip
def test_the_kernels_are_as_they_expect(kernel, implementation, expected):
    case = cells.make_case(kernel, expected.case, expected.dtype, expected.precision, expected.options)
    cell = cells.Cell(case, implementation.name, expected.variant)
    (found,) = cells.inspect([cell], {kernel.name: kernel}, targets.target(expected.arch))
    assert found.expected and not found.reason and not found.unmet()


def test_a_config_that_does_not_fit_has_its_reason(kernels):
    case = cells.make_case(kernels["lola"], "batch", "bfloat16")
    cell = cells.Cell(case, "triton", "multirow", config={"BLOCK_M": 4096})
    with pytest.raises(compiled.NotInspected, match="skipped: "):
        compiled.compile_cell(cell, kernels["lola"].implementations["triton"], targets.target("sm_90a"))


def test_two_sides_differ_in_figures_opcodes_and_lines(answered):
    done = answered("inspect", "kernel=launch", "implementation=cuda", "vs=dtype=float16", "stage=sass")
    assert done.returncode == 0 and "2 of 2 cells compiled" in done.stdout
    figures, _, lines = done.stdout.partition("--- A")
    assert "instructions" in figures and "copy<float> | copy<float16>" in figures
    assert any(line.startswith("+") and "STG.E.U16 desc[UR][R.64]" in line for line in lines.splitlines())


def test_the_same_code_is_said_to_be_so(answered):
    done = answered("inspect", "kernel=launch", "implementation=cuda", "vs=@.")
    assert done.returncode == 0 and "same machine code" in done.stdout and "B - A" not in done.stdout


@pytest.mark.parametrize(
    ("vs", "said"),
    [
        ("cuda:nix", "unknown variant of cuda 'nix'"),
        ("arch=sm_9", "did you mean sm_90?"),
        ("size=3", "unknown key of vs=size=3 'size'"),
        ("config.nix=3", "unknown key of vs=config.nix=3: config 'nix'"),
        ("@no-such-revision", "unknown revision 'no-such-revision'"),
        ("cuda@", "no revision behind @"),
        ("torch_eager", "the sides must have as many cells; here cuda, there none"),
    ],
)
def test_a_side_that_does_not_exist(answered, vs, said):
    done = answered("inspect", "kernel=launch", "implementation=cuda", f"vs={vs}")
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("shapes", "prepared 0    bfloat16[131, 203]"),
        ("jaxpr", "dot_general"),
        ("stablehlo", "stablehlo.dot_general"),
        ("hlo", "ENTRY"),
    ],
)
def test_stages_of_jax(answered, stage, said):
    jax = pytest.importorskip("jax")
    pytest.importorskip("flax")
    before = jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision
    words = ("kernel=lola", "case=odd", "dtype=bfloat16", "implementation=[flax:module,torch_eager]")
    done = answered("inspect", *words, f"stage={stage}")
    assert done.returncode == 0 and said in done.stdout and "FileNames" not in done.stdout
    assert f"is in torch: {', '.join(traced.STAGES)} are JAX's" in done.stdout
    assert before == (jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision)
    done = answered("inspect", *words, f"stage={stage}", "expect=spills=0")
    assert done.returncode == 2 and "expect= with stage=" in done.stderr


@pytest.mark.parametrize(
    ("literal", "said"),
    [
        ('{"variant": "default"}', "EXPECT must be a tuple such as"),
        ('({"variant": "default", "case": "odd", "arch": "sm_90a"},)', "EXPECT must be a tuple such as"),
        (
            '({"variant": "default", "case": "odd", "arch": "sm_90a", "expect": "spills=0", "size": "3"},)',
            "must be a tuple",
        ),
        (
            '({"variant": "nix", "case": "odd", "arch": "sm_90a", "expect": "spills=0"},)',
            "EXPECT names the variant 'nix'",
        ),
    ],
)
def test_an_expectation_that_is_none_breaks_its_file_alone(tmp_path, literal, said):
    (tmp_path / "own.py").write_text(
        f'BACKEND = "torch"\nVARIANTS = {{"default": ()}}\nEXPECT = {literal}\ndef build(case, variant, device): ...\n'
    )
    assert said in discovery.read_implementation("lola", tmp_path / "own.py").broken


@pytest.mark.parametrize(("stage", "said"), [("generated", "AOT ID"), ("graphs", "1  graphs, of")])
def test_stages_of_torch_compile(answered, stage, said):
    torch = pytest.importorskip("torch")
    before = torch.get_float32_matmul_precision()
    words = ("kernel=add_relu", "case=odd", "implementation=[torch_compile,torch_eager:default,flax]")
    done = answered("inspect", *words, f"stage={stage}")
    assert done.returncode == 0 and said in done.stdout
    assert "compiles nothing" in done.stdout and "is in jax" in done.stdout
    assert torch.get_float32_matmul_precision() == before
