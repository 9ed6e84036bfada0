"""inspect's lines of source: which line of Python or CUDA C++ instructions are of, on listings and on real kernels."""

from __future__ import annotations

import pytest

from fusebench.cases import make_case
from fusebench.contract import Cell
from fusebench.inspection import compiled, lines, ptx, sass, targets
from fusebench.inspection.opcodes import CLASSES

SASS = """
	.section	.text.k,"ax",@progbits
k:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
	//## File "/somewhere/implementations/softmax/cuda.cu", line 21
        /*0010*/                   S2R R0, SR_TID.X ;
.L_loop:
	//## File "/else/implementations/_shared/cuda/softmax.cuh", line 165 inlined at "/else/implementations/softmax/cuda.cu", line 22
	//## File "/else/implementations/softmax/cuda.cu", line 22
        /*0020*/                   FADD R0, R0, R0 ;
        /*0030*/                   MUFU.EX2 R0, R0 ;
	//## File "/else/implementations/softmax/cuda.cu", line 21
        /*0040*/               @P0 BRA `(.L_loop) ;
        /*0050*/                   EXIT ;
"""
PTX = """
.visible .entry k()
{
	.file	1 "/a/b" "c.py"
	.file	2 "/x/implementations/softmax/triton.py"
	mov.u32 %r1, %tid.x;
	.loc	1 83 9                          // c.py:83:9
$L__BB0_1:
	.loc	2 84 5, function_name $L__info_string0, inlined_at 1 83 9
	add.f32 %f1, %f1, %f2;
	@%p1 bra $L__BB0_1;
	ret;
}
.file 3 "/y/implementations/lola/cuda.cu"
"""


def test_an_instruction_of_an_inlined_function_is_of_its_own_line():
    code = sass.parse(SASS, "k")
    inner, caller = "_shared/cuda/softmax.cuh:165", "softmax/cuda.cu:21"
    assert [i.line for i in code.instructions] == ["", caller, inner, inner, caller, caller]


def test_ptx_has_the_lines_of_its_loc_directives():
    found = ptx.parse(PTX)
    assert [(i.opcode, i.line) for i in found] == [
        ("mov.u32", ""), ("add.f32", "softmax/triton.py:84"), ("bra", "softmax/triton.py:84"), ("ret", "softmax/triton.py:84"),
    ]  # fmt: skip


@pytest.mark.parametrize("threshold", [1, 2, 99])
def test_the_lines_sum_to_the_instructions(threshold):
    code = sass.parse(SASS, "k")
    found = lines.counted(code.instructions, code.hottest_loop(), threshold)
    assert sum(line.whole for line in found) == 6 and sum(line.loop for line in found) == 3
    assert sum(sum(line.classes.values()) for line in found) == 3
    assert found[0].name == ("3 other lines" if threshold == 99 else "_shared/cuda/softmax.cuh:165")


def test_without_a_loop_the_classes_are_of_the_whole():
    (line,) = lines.counted([sass.Instruction(0, "EXIT")], [])
    assert (line.name, line.whole, line.loop, line.classes["branch"]) == (lines.UNKNOWN, 1, 0, 1)


def test_a_line_of_a_file_that_is_not_there_has_no_text(tmp_path):
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "cuda.cu").write_text("one\n  two\n")
    assert [lines.text(f"k/cuda.cu:{n}", (tmp_path,)) for n in (1, 2, 3)] == ["one", "two", ""]
    assert lines.text("gone.py:3", (tmp_path,)) == lines.text("7 other lines", (tmp_path,)) == ""


@pytest.mark.parametrize("stage", ["sass", "ptx"])
@pytest.mark.parametrize(("name", "file"), [("cuda", "launch/cuda.cu"), ("triton", "launch/_triton_kernels.py")])
def test_real_code_is_of_its_own_file(kernels, name, file, stage):
    pytest.importorskip("cuda.core" if name == "cuda" else "triton")
    cell = Cell(make_case(kernels["launch"], "odd", "float32"), name, "default")
    (made,) = compiled.compile_cell(cell, kernels["launch"].implementations[name], targets.target("sm_90a"))
    found = made.code.instructions if stage == "sass" else ptx.parse(made.stage("ptx"))
    named = [i.line.split(":")[0] for i in found]  # the others are of what it inlines
    assert file in named and named.count("") < len(found) / 4


def test_lines_say_nothing_of_the_machine_code():
    pytest.importorskip("cuda.core")
    from fusebench.backends.cuda import compile_cubin
    from fusebench.inspection import elf
    from implementations.softmax import cuda

    cubins = [compile_cubin(cuda.FILE, "sm_90a", ["row<float, true, 32, 4>"], lines=wanted) for wanted in (True, False)]
    assert cubins[0].code != cubins[1].code
    assert len({elf.resources(c.code, *c.symbols.values()).code for c in cubins}) == 1


def test_a_table_of_the_lines_and_a_listing_below_them(answered):
    pytest.importorskip("triton")
    words = ("inspect", "kernel=softmax", "case=odd", "implementation=triton:row", "lines=true")
    done = answered(*words, "threshold=20")
    assert done.returncode == 0 and "row by line" in done.stdout and "other lines" in done.stdout
    assert "_shared/triton/softmax.py:" in done.stdout and "tl.exp(" in done.stdout
    assert all(kind in done.stdout for kind in CLASSES)
    done = answered(*words, "stage=sass")
    assert done.returncode == 0 and "\n    MUFU.EX2 " in done.stdout and "e = tl.exp(" in done.stdout
    done = answered(*words, "stage=ttir")
    assert done.returncode == 2 and "lines=true with stage=ttir" in done.stderr
