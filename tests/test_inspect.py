"""The command inspect on real kernels, compiled without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from expected import cells_of

from fusebench import discovery
from fusebench.backends import cuda
from fusebench.cases import make_case
from fusebench.contract import Cell
from fusebench.errors import UsageError
from fusebench.inspection import (
    cells,
    compiled,
    disassembler,
    elf,
    generated,
    listing,
    opcodes,
    ptx,
    sass,
    targets,
    traced,
)
from fusebench.inspection.opcodes import CLASSES
from fusebench.workers import stages as worker_stages

pytest.importorskip("cuda.core")
pytest.importorskip("triton")


@pytest.fixture
def answered(answered):
    """The command within this process, as for a debugger: to start another takes seconds."""
    return lambda command, *words: answered(command, "worker=inline", *words)


COPY = ("inspect", "kernel=launch", "implementation=[cuda,triton,torch_eager]", "dtype=float32")


def test_a_case_is_a_table_over_its_implementations(answered, tmp_path):
    done = answered(*COPY, f"out={tmp_path}/stages", "expect=spills=0,launches=1")
    assert done.returncode == 0 and not done.stderr
    assert "2 of 3 cells compiled" in done.stdout
    assert "torch_eager: names no launches" in done.stdout and "4 of 4 expectations met" in done.stdout
    (figures,) = (tmp_path / "stages").glob("launch/*/cuda_sm_90a/[0-9]_*.json")
    said = json.loads(figures.read_text())
    assert sum(said["whole"][kind] for kind in CLASSES) == said["whole"]["instructions"] > 0
    assert {f.suffix for f in (tmp_path / "stages").glob("launch/*/triton_sm_90a/[0-9]_*")} == {
        ".ttir", ".ttgir", ".llir", ".ptx", ".sass", ".cubin", ".json",
    }  # fmt: skip
    assert not (tmp_path / "results").exists()


def test_a_variant_without_tunables_is_asked_for_none(kernels):
    # the other variants' fits() would look for their tunables in its empty config
    module, case = discovery.load_implementation("lola", "jax_triton"), make_case(kernels["lola"], "batch", "bfloat16")
    assert (
        worker_stages.chosen_config(module, Cell(case, "jax_triton", "unjitted"), targets.target("sm_90a").device) == {}
    )


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


KERNELS = discovery.find_kernels(discovery.roots_of())
OWN = [i for k in KERNELS.values() for i in k.implementations.values() if i.name in ("triton", "cuda")]


@pytest.mark.parametrize("implementation", OWN, ids=[f"{i.kernel}-{i.name}" for i in OWN])
def test_every_kernel_says_what_it_expects(implementation):
    assert {e.variant for e in implementation.expect if "spills=0" in e.expect} == set(implementation.variants)


@pytest.fixture(scope="module")
def inspected(request):
    """A function of implementation and arch: its cells, compiled. The first to ask has those of all the chosen tests of its language and
    arch compiled, so that they are disassembled together."""
    name = "test_the_kernels_are_as_they_expect["
    chosen = [item.callspec.params for item in request.session.items if item.name.startswith(name)]
    found = {}

    def of(asked, arch):
        if (asked.kernel, asked.name, arch) not in found:
            alike = [p["implementation"] for p in chosen if (p["implementation"].name, p["arch"]) == (asked.name, arch)]
            found.update({(i.kernel, i.name, arch): [] for i in alike})
            wanted = [cell for i in alike for cell in cells_of(KERNELS[i.kernel], i, arch)]
            for one in list(cells.inspect(wanted, KERNELS, targets.target(arch))):
                found[one.cell.case.kernel, one.cell.implementation, arch].append(one)
        return found[asked.kernel, asked.name, arch]

    return of


ARCHS = "sm_90a", "sm_80", "sm_100a"
# one of six, in turns over kernels, languages and archs, and the others where there is time
TARGETS = [
    pytest.param(i, arch, id=f"{i.kernel}-{i.name}-{arch}", marks=() if (n + 2 * a) % 6 == 0 else pytest.mark.thorough)
    for a, arch in enumerate(ARCHS)
    for n, i in enumerate(OWN)
]


@pytest.mark.parametrize(("implementation", "arch"), TARGETS)
def test_the_kernels_are_as_they_expect(inspected, implementation, arch):
    """Real machine code of every variant, as far as it runs on the arch: its own expectations, no line of the listing lost, and counts
    that sum to its instructions."""
    if not (wanted := cells_of(KERNELS[implementation.kernel], implementation, arch)):
        pytest.skip(f"runs nowhere below {arch}")
    assert [found.cell for found in inspected(implementation, arch)] == wanted
    for found in inspected(implementation, arch):
        label = f"{found.cell.case.id} {found.cell.label}"
        assert found.expected and not found.reason and not found.unmet(), label
        for made in found.launches:
            code = made.code.instructions
            assert made.shared <= (163 if arch == "sm_80" else 227) << 10, label
            assert [i.address for i in code] == list(range(0, 16 * len(code), 16)), label
            assert 0 <= len(made.resources.code) - 16 * len(code) <= 16 * 16, label  # what is filled up
            assert sum(opcodes.by_class(code).values()) == sum(n for _, n in listing.histogram(code)) == len(code)
            assert counted(listing.collapsed(code)) == len(code)
            assert made.threads in range(32, 1025, 32), label
            if implementation.name == "triton":
                virtual = ptx.parse(made.stage("ptx"))
                assert counted(listing.collapsed(virtual)) == len(virtual) > 0, label


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", ["cuda", "triton"])
def test_what_is_disassembled_together_reads_as_it_does_alone(name, arch):
    """softmax's kernels branch, call functions and inline others; launch's are there twice, as two dtypes of one name."""
    words = (("softmax", "odd", "float32"), ("launch", "odd", "float32"), ("launch", "odd", "float16"))
    asked = [cells.make_case(KERNELS[kernel], case, dtype) for kernel, case, dtype in words]
    wanted = [cells.Cell(c, name, next(iter(KERNELS[c.kernel].implementations[name].variants))) for c in asked]
    found = [made for one in list(cells.inspect(wanted, KERNELS, targets.target(arch))) for made in one.launches]
    assert len(found) == 3
    for made in found:
        alone = sass.parse(disassembler.disassemble(made.cubin), made.symbol)
        assert list(located(made.code)) == list(located(alone)) and made.code.hottest_loop() == alone.hottest_loop()
    assert found[0].listing != disassembler.disassemble(found[0].cubin), "they were read together"


def test_of_what_triton_is_given_pointers_alone_are_taken_to_be_aligned():
    """A size that is said to be a multiple of 16 would be compiled to accesses that a launch with another one does not make."""
    cell = Cell(make_case(KERNELS["launch"], "odd", "float32"), "triton", "default")
    (made,) = compiled.compile_cell(cell, KERNELS["launch"].implementations["triton"], targets.target("sm_90a"))
    given = next(line for line in made.stage("ttir").splitlines() if "tt.func" in line).split("%")[1:]
    kinds = {("!tt.ptr" in one, "tt.divisibility" in one) for one in given}
    assert kinds == {(True, True), (False, False)}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_static_shared_memory_is_what_the_kernel_declares(tmp_path, arch):
    """Without what the system keeps for itself from Hopper on."""
    file = tmp_path / "kernel.cu"
    file.write_text(
        'extern "C" __global__ void kernel(float* x) { __shared__ float s[96]; s[threadIdx.x] = *x; __syncthreads(); *x = s[0]; }'
    )
    assert elf.resources(cuda.compile_cubin(file, arch, ["kernel"], ()).code, "kernel").shared == 4 * 96


def located(code):
    """The instructions with the addresses where they may go in place of labels, which are counted anew in each listing."""
    for i in code.instructions:
        yield i.address, i.predicate, i.opcode, i.operands.replace(i.label, ""), code.labels.get(i.label), i.line


@pytest.mark.parametrize("cubins", [[b"", b"no cubin"], [b"\x7fELF\x02" + bytes(200)] * 2])
def test_what_is_no_cubin_is_not_read_together(cubins):
    listings = disassembler.Listings()
    for cubin in cubins:
        listings.add(cubin)
    with pytest.raises(ValueError, match="nvdisasm"):
        listings.of(cubins[0])


def counted(lines):
    """How many instructions the lines stand for."""
    return sum(int(line.split()[1]) if line.startswith("… ") else 1 for line in lines)


def test_a_config_that_does_not_fit_has_its_reason(kernels):
    case = cells.make_case(kernels["lola"], "batch", "bfloat16")
    cell = cells.Cell(case, "triton", "multirow", config={"BLOCK_M": 4096})
    with pytest.raises(worker_stages.NotInspected, match="skipped: "):
        compiled.compile_cell(cell, kernels["lola"].implementations["triton"], targets.target("sm_90a"))


def test_a_variant_that_has_not_the_mode_is_not_shown_in_its_place(answered):
    done = answered("inspect", "kernel=launch", "implementation=cuda", "mode=backward")
    assert done.returncode == 1 and "kernel.py of launch has no gradient" in done.stdout
    done = answered("inspect", "kernel=softmax", "implementation=triton:persistent", "case=odd", "mode=backward")
    assert done.returncode == 1 and "computes forward alone; BACKWARD of its file names row, online" in done.stdout


def test_with_fits_false_a_config_that_does_not_fit_is_shown(answered):
    words = [
        "inspect",
        "kernel=softmax",
        "implementation=triton:row",
        "case=odd",
        "config.ROWS=64",
        "config.num_warps=1",
    ]
    refused, shown = answered(*words), answered(*words, "fits=false")
    assert refused.returncode == 1 and "skipped: " in refused.stdout
    assert shown.returncode == 0 and "1 of 1 cell compiled" in shown.stdout


def test_a_tunable_that_the_case_does_not_use_is_refused(kernels):
    """What ran with another config would not be what was asked for."""
    cell = Cell(make_case(kernels["lola"], "batch", "bfloat16"), "triton", "multirow", config={"WIDTH": 3})
    with pytest.raises(worker_stages.NotInspected, match=r"skipped: this case has no use for config\.WIDTH"):
        compiled.compile_cell(cell, kernels["lola"].implementations["triton"], targets.target("sm_90a"))


def test_a_file_that_does_not_import_has_failed(monkeypatch):
    def load(kernel, name):
        raise ImportError("no module of that name")

    monkeypatch.setattr(worker_stages, "load_implementation", load)
    with pytest.raises(worker_stages.NotInspected, match="does not import: ImportError: no module") as caught:
        worker_stages.load("launch", "triton")
    assert caught.value.failed


def test_two_sides_differ_in_figures_opcodes_and_lines(answered):
    done = answered("inspect", "kernel=launch", "implementation=cuda", "vs=dtype=float16", "stage=sass")
    assert done.returncode == 0 and "2 of 2 cells compiled" in done.stdout
    figures, _, lines = done.stdout.partition("--- A")
    assert "instructions" in figures and "copy<float> | copy<float16>" in figures
    assert any(line.startswith("+") and "STG.E.U16 desc[UR][R.64]" in line for line in lines.splitlines())


def test_the_same_code_is_said_to_be_so(answered):
    done = answered("inspect", "kernel=launch", "implementation=cuda", "vs=@.")
    assert done.returncode == 0 and "same machine code" in done.stdout and "B - A" not in done.stdout


def test_both_sides_have_their_arch_where_that_differs(answered):
    done = answered("inspect", "kernel=launch", "implementation=cuda", "vs=arch=sm_80")
    assert "\nA  launch floor/float32 cuda sm_90a\nB  launch floor/float32 cuda sm_80\n" in done.stdout


def test_one_is_no_plural(answered):
    done = answered("inspect", "kernel=launch", "implementation=cuda", "dtype=float16", "expect=spills=0")
    assert done.stdout.endswith("\n1 of 1 cell compiled, 1 of 1 expectation met\n")


@pytest.mark.parametrize(
    ("vs", "said"),
    [
        ("cuda:nix", "unknown variant 'nix' of cuda"),
        ("arch=sm_9", "did you mean sm_90?"),
        ("size=3", "unknown key 'size' of vs=size=3"),
        ("config.nix=3", "unknown config key 'nix' of vs=config.nix=3"),
        ("@no-such-revision", "unknown revision 'no-such-revision'"),
        ("cuda@no-such-revision~1 dtype=float16", "unknown revision 'no-such-revision~1'"),
        ("cuda@", "no revision behind @"),
        ("", "vs= is empty; expected IMPLEMENTATION[:VARIANT][@REVISION], KEY=VALUE, or several in quotes"),
        ("' '", "vs= is empty; "),
        ("torch_eager", "both sides must have the same number of cells; here cuda, there none"),
    ],
)
def test_a_side_that_does_not_exist(answered, vs, said):
    done = answered("inspect", "kernel=launch", "implementation=cuda", f"vs={vs}")
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("implementation=cuda", "stage=ttgir"), "no launch has the stage ttgir; there are ptx, sass"),
        (("implementation=torch_eager", "stage=ptx"), "no cell was compiled"),
        (("implementation=triton", "config.num_warps=64"), "no cell was compiled"),
    ],
)
def test_nothing_to_show_is_no_success(answered, words, said):
    kernel = "softmax" if "config.num_warps=64" in words else "launch"
    done = answered("inspect", f"kernel={kernel}", "case=all", *words)
    assert done.returncode == 1 and done.stderr == f"nothing to show: {said}\n", done.stdout + done.stderr


def test_a_side_that_is_skipped_has_its_reason(answered):
    done = answered("inspect", "kernel=softmax", "case=odd", "implementation=triton:row", "vs=config.num_warps=7")
    said = "here triton:row, there none; triton:row num_warps=7: skipped: num_warps=7 is no power of two"
    assert done.returncode == 2 and said in done.stderr


def test_a_stage_that_one_side_lacks_is_no_traceback(answered):
    done = answered("inspect", "kernel=launch", "implementation=triton", "vs=cuda", "stage=ttgir")
    assert done.returncode == 1 and "\nB: its compiler has no ttgir: it has ptx, sass\n" in done.stdout
    assert done.stderr == "nothing to show: no launch has the stage ttgir; there are ptx, sass\n"


@pytest.mark.parametrize("word", ["lines=true", "opcodes=true"])
def test_two_sides_are_not_shown_by_line(answered, word):
    done = answered("inspect", "kernel=launch", "implementation=cuda", "stage=sass", "vs=dtype=float16", word)
    assert done.returncode == 2 and f"{word} with vs=dtype=float16: two sides are shown by figures" in done.stderr


def test_an_opcode_that_there_is_not_is_bad_input(answered):
    done = answered("inspect", "kernel=launch", "implementation=cuda", "expect=loop.HGMA.BF16=0,spills=0")
    assert done.returncode == 2 and "expect: unknown opcode 'HGMA': did you mean HGMMA?" in done.stderr
    assert answered("inspect", "kernel=launch", "implementation=cuda", "expect=SHFL=0,UMOV>=0").returncode == 0


@pytest.mark.parametrize("named", [(), ("implementation=[triton_planted,cuda]",)])
def test_a_broken_file_is_shown_and_is_a_failure(answered, tmp_path, named):
    folder = tmp_path / "own" / "double"
    folder.mkdir(parents=True)
    (folder / "cuda.py").write_text("def build(:\n")
    fixtures = Path(__file__).parent / "fixtures"
    path = f"path=[{fixtures}/kernels,{fixtures}/planted_configs,{tmp_path}/own]"
    done = answered("inspect", "kernel=double", path, *named)
    assert done.returncode == 1 and "\ncuda: cuda.py cannot be read: " in done.stdout and "1 failed" in done.stdout


def test_sides_of_many_cells_are_told_by_what_one_has_more_of(answered):
    done = answered("inspect", "kernel=launch", "implementation=cuda", "case=[floor,odd]", "dtype=all", "vs=case=odd")
    said = "both sides must have the same number of cells; here 6 (3 more of cuda), there cuda, cuda, cuda"
    assert done.returncode == 2 and said in done.stderr


def test_a_folder_that_cannot_be_is_refused_before_anything_is_compiled(answered, tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "inspect", lambda *_: pytest.fail("a cell is compiled"))
    (tmp_path / "file").touch()
    done = answered(*COPY, f"out={tmp_path}/file/stages")
    assert done.returncode == 2 and f"expected a folder that can be written; {tmp_path}/file cannot" in done.stderr
    done = answered(*COPY, "out=")
    assert done.returncode == 2 and "out= is empty; expected a folder" in done.stderr, "not the folder it stands in"


def test_a_revision_that_does_not_exist_is_refused_before_anything_is_compiled(answered, monkeypatch):
    monkeypatch.setattr(cells, "inspect", lambda *_: pytest.fail("a cell is compiled"))
    assert answered(*COPY, "vs=@no-such-revision").returncode == 2


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
    assert f"\nlola odd/bfloat16 flax:module: {stage}\n" in done.stdout
    assert (
        f"no such stage: {', '.join(traced.STAGES)} are of implementations in JAX, and this one is in torch"
        in done.stdout
    )
    assert before == (jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision)
    done = answered("inspect", *words, f"stage={stage}", "expect=spills=0")
    assert done.returncode == 2 and "expect= with stage=" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("implementation=torch_eager", "stage=jaxpr"), "stage=jaxpr with implementation=torch_eager: it is a stage of JAX: expected flax"),
        (("implementation=flax", "stage=graphs"), "stage=graphs with implementation=flax: it is a stage of torch.compile: expected torch_compile"),
        (("mode=backward", "stage=hlo"), "stage=hlo with mode=backward: expected mode=forward"),
    ],
)  # fmt: skip
def test_a_stage_that_no_cell_has_is_bad_input(answered, words, said):
    done = answered("inspect", "kernel=lola", "case=odd", *words)
    assert done.returncode == 2 and said in done.stderr and not done.stdout


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


@pytest.mark.parametrize(("stage", "said"), [("generated", "AOT ID"), ("graphs", "1  graphs, of"), ("fx", "relu")])
def test_stages_of_torch_compile(answered, stage, said):
    torch = pytest.importorskip("torch")
    before = torch.get_float32_matmul_precision()
    words = ("kernel=add_relu", "case=odd", "implementation=[torch_compile,torch_eager:default,flax]")
    done = answered("inspect", *words, f"stage={stage}")
    assert done.returncode == 0 and said in done.stdout
    assert "compiles nothing" in done.stdout and "is in jax" in done.stdout
    assert torch.get_float32_matmul_precision() == before


BREAKS = '''
"""add_relu with a graph break, and with a length that every call finds longer."""

import torch

BACKEND = "torch"
VARIANTS = {"default": ()}


def build(case, variant, device):
    calls = []

    @torch.compile
    def added(x, b):
        y = x + b
        torch._dynamo.graph_break()
        return torch.relu(y) + 0 * len(calls)

    def call(x, b):
        calls.append(1)
        return added(x, b)

    return call
'''


def test_a_planted_graph_break_and_recompile_are_found(tmp_path, capfd):
    pytest.importorskip("torch")
    (tmp_path / "add_relu").mkdir()
    (tmp_path / "add_relu" / "torch_compile_breaks.py").write_text(BREAKS)
    own = discovery.find_kernels(discovery.roots_of([tmp_path]))["add_relu"]
    cell = cells.Cell(cells.make_case(own, "odd", "float32"), "torch_compile_breaks", "default")
    found = generated.traces(cell, own.implementations["torch_compile_breaks"], own)
    counts = found["graphs"].split("\n")
    assert counts[0].split() == ["2", "graphs,", "of", "3", "calls", "of", "operators"] and counts[1].split() == [
        "1",
        "graph",
        "breaks",
    ]
    assert "torch_compile_breaks.py:16" in found["graphs"] and "     1  recompiled in a second call" in found["graphs"]
    assert "len(calls) == 1" in found["graphs"]
    assert (
        found["fx"].count("def forward") == 2
        and "torch.relu(l_y_)" in found["fx"]
        and "TENSOR_MATCH" in found["guards"]
    )
    assert found["generated"].count("def call(") == 2
    assert "TRACED GRAPH" not in "".join(capfd.readouterr())
