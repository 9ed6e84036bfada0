"""inspect's reading of PTX and SASS, on listings written by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fusebench.errors import UsageError
from fusebench.inspection import expectation, figures, listing, opcodes, ptx, sass, versus

LISTING = """
	.section	.text.other,"ax",@progbits
other:
        /*0000*/                   EXIT ;
//--------------------- .text.kernel --------------------------
	.section	.text.kernel,"ax",@progbits
	.sectionflags	@"SHF_BARRIERS=1"
	.align	128
        .global         kernel
kernel:
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   S2R R0, SR_TID.X ;
.L_outer:
        /*0020*/              @!P0 IADD3 R0, R0, 0x1, RZ ;
.L_wait:
        /*0030*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2 ;
        /*0040*/              @!P0 BRA `(.L_late) ;
.L_inner:
        /*0050*/                   LDG.E.128 R4, desc[UR6][R2.64] ;
        /*0060*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR24].tnspB, R24 ;
        /*0070*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR28].tnspB, R24, gsb0 ;
        /*0080*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0090*/               @P1 BRA `(.L_inner) ;
        /*00a0*/                   MUFU.EX2 R8, R8 ;
        /*00b0*/                   STL [R1+0x4], R8 ;
        /*00c0*/              @UP0 UISETP.NE.AND UP1, UPT, UR4, URZ, UPT ;
        /*00d0*/              @!P2 BRA `(.L_outer) ;
        /*00e0*/                   LDS.128 R4, [R2] ;
        /*00f0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0100*/                   EXIT ;
.L_late:
        /*0110*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2 ;
        /*0120*/              @!P0 BRA `(.L_late) ;
        /*0130*/                   BRA `(.L_inner) ;
.L_end:
        /*0140*/                   BRA `(.L_end);
        /*0150*/                   NOP;
        /*0160*/                   NOP;
"""


def test_a_kernel_is_read_without_its_padding_and_without_others():
    code = sass.parse(LISTING, "kernel")
    assert len(code.instructions) == 20
    assert code.instructions[2] == sass.Instruction(0x20, "IADD3", "R0, R0, 0x1, RZ", "@!P0")
    assert code.instructions[-1].label == ".L_inner"
    with pytest.raises(ValueError, match="no kernel missing"):
        sass.parse(LISTING, "missing")


def test_classes_sum_to_the_instructions():
    code = sass.parse(LISTING, "kernel")
    assert opcodes.by_class(code.instructions) == {
        "tensor core": 2, "global": 1, "shared": 1, "arithmetic": 2, "special function": 1, "barrier": 4, "branch": 6, "other": 3,
    }  # fmt: skip


def test_the_hottest_loop_is_the_innermost_that_does_more_than_wait():
    loop = sass.parse(LISTING, "kernel").hottest_loop()
    assert [i.address for i in loop] == [0x50, 0x60, 0x70, 0x80, 0x90]


def body(*lines):
    """A kernel of these lines: `label:` or an instruction."""
    text, address = ['\t.section\t.text.k,"ax",@progbits'], 0
    for line in lines:
        if line.endswith(":"):
            text.append(line)
        else:
            text.append(f"        /*{address:04x}*/  {line} ;")
            address += 16
    return sass.parse("\n".join(text), "k")


def test_code_that_lies_behind_the_end_and_goes_back_is_no_loop():
    code = body("FADD R0, R0, R0", "@P0 BRA `(.late)", ".on:", "EXIT", ".late:", "FADD R0, R0, R1", "BRA `(.on)")
    assert code.hottest_loop() == ()


def test_a_loop_that_waits_alone_is_not_the_hottest():
    spin = [".b:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2", *["NOP"] * 9, "@P1 BRA `(.b)"]
    code = body(".a:", "FADD R0, R0, R0", "@P0 BRA `(.a)", *spin, "EXIT")
    assert [i.opcode for i in code.hottest_loop()] == ["FADD", "BRA"]
    spin[2] = "STS [R0], R1"
    code = body(".a:", "FADD R0, R0, R0", "@P0 BRA `(.a)", *spin, "EXIT")
    assert len(code.hottest_loop()) == 11


def test_of_two_loops_the_one_with_products_is_hotter_than_the_longer_one():
    long = [".a:", *["FADD R0, R0, R0"] * 9, "@P0 BRA `(.a)"]
    code = body(*long, ".b:", "HMMA.16816.F32 R0, R4, R8, R0", "@P1 BRA `(.b)", "EXIT")
    assert [i.opcode for i in code.hottest_loop()] == ["HMMA.16816.F32", "BRA"]
    assert len(body(*long, ".b:", "LDG.E R0, [R2]", "@P1 BRA `(.b)", "EXIT").hottest_loop()) == 10


def test_of_loops_with_as_many_products_the_shortest_is_hotter():
    """Causal attention has one loop for whole tiles and one with a mask for those on the diagonal."""
    product, mask = "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24", ["ISETP.GT.AND P2, PT, R0, R1, PT"] * 9
    whole, masked = [".a:", product, product, "@P0 BRA `(.a)"], [".b:", product, *mask, product, "@P1 BRA `(.b)"]
    for order in ([*whole, *masked], [*masked, *whole]):
        assert len(body(*order, "EXIT").hottest_loop()) == 3
    more = [".c:", *[product] * 3, *mask, "@P3 BRA `(.c)"]
    assert len(body(*whole, *more, "EXIT").hottest_loop()) == 13


def test_a_branch_on_a_uniform_predicate_may_go_on():
    code = body(".a:", "FMUL R0, R0, R0", "BRA.U UP0, `(.b)", "BRA `(.a)", ".b:", "EXIT")
    assert [i.opcode for i in code.hottest_loop()] == ["FMUL", "BRA.U", "BRA"]


def test_a_join_goes_where_its_bssy_says():
    lines = (".a:", "BSSY B0, `(.join)", "@P0 BRA `(.side)", "BSYNC B0", ".join:", "@P1 BRA `(.a)", "EXIT")
    code = body(*lines, ".side:", "MUFU.RCP R0, R0", "BSYNC B0")
    assert "MUFU.RCP" in [i.opcode for i in code.hottest_loop()]


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("HGMMA.64x256x16.F32.BF16", "tensor core"),
        ("UTCHMMA.2CTA", "tensor core"),
        ("QGMMA.64x64x32.F32", "tensor core"),
        ("LDGSTS.E.BYPASS.128", "global"),
        ("UTMALDG.2D", "global"),
        ("ATOMG.E.ADD", "global"),
        ("ATOMS.ADD", "shared"),
        ("LDSM.16.MT88.4", "shared"),
        ("IMAD.MOV.U32", "arithmetic"),
        ("UIADD3", "arithmetic"),
        ("F2FP.BF16.F32.PACK_AB", "arithmetic"),
        ("HFMA2.BF16_V2", "arithmetic"),
        ("PLOP3.LUT", "arithmetic"),
        ("MUFU.TANH", "special function"),
        ("WARPGROUP.DEPBAR.LE", "barrier"),
        ("LDGDEPBAR", "barrier"),
        ("DEPBAR.LE", "barrier"),
        ("UCGABAR_WAIT", "barrier"),
        ("UTCBAR", "barrier"),
        ("BRA.U", "branch"),
        ("CALL.REL.NOINC", "branch"),
        ("BSSY.RECONVERGENT", "branch"),
        ("SHFL.BFLY", "other"),
        ("LDL.128", "other"),
        ("ULDC.64", "other"),
        ("NOP", "other"),
    ],
)
def test_classes(opcode, kind):
    assert opcodes.class_of(opcode) == kind


def test_waits_within_a_group_of_products():
    apart = body("HGMMA R0, gdesc[UR0], R0", "HGMMA R0, gdesc[UR0], R0, gsb0", "WARPGROUP.DEPBAR.LE gsb0, 0x0", "EXIT")
    serial = body("HGMMA R0, gdesc[UR0], R0", "WARPGROUP.DEPBAR.LE gsb0, 0x0", "HGMMA R0, gdesc[UR0], R0, gsb0", "EXIT")
    assert (figures.waits_in_groups(apart.instructions), figures.waits_in_groups(serial.instructions)) == (0, 1)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (("ULDC.64 UR4, c[0x0][0x238]", "LDG.E R0, desc[UR4][R2.64]"), 0),
        (("ULDC UR4, c[0x0][0x238]", "LDG.E R0, desc[UR4][R2.64]"), 1),  # UR5
        (("MOV R4, UR6",), 1),
        (("@UP0 UMOV UR6, URZ", "R2UR P0, UR7, R1", "UIADD3 UR8, UP0, UR6, UR7, URZ"), 0),
        (
            ("UIADD3 UR18, UP0, UR7, 0x20, URZ", "UIADD3.X UR19, UR7, -0x3ffffff0, URZ, UP0, !UPT"),
            1,
        ),  # as ptxas 12.8 made it
        (
            (
                "UMOV UR8, URZ",
                "UIADD3.64 UR10, UR8, 0x2, URZ",
                "HGMMA.64x32x16.F32.BF16 R24, gdesc[UR8].tnspB, RZ, !UPT",
            ),
            1,
        ),  # UR9
        (("ULDC.128 UR4, c[0x0][0x238]", "UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR5], tmem[UR4], idesc[UR7], UPT"), 0),
        (("UIADD3.64 UR10, URZ, 0x2, URZ", "HGMMA.64x32x16.F32.BF16 R24, R40, gdesc[UR8].tnspB, R24, gsb0"), 0),
    ],
)
def test_uniform_registers_that_nothing_writes(text, number):
    assert figures.value([SimpleNamespace(code=body(*text, "EXIT"))], "unset_registers") == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (("FFMA R4, R0, R1, R4",), 1),
        (("FFMA R4, R0, R2, R4",), 2),
        (("FFMA R5, R0, R2, R7",), 1),  # it is of no account which register is written
        (("FFMA R4, R0, 2, R4",), 1),
        (("FFMA R5, -R0, c[0x0][0x210], R5",), 0),
        (("FFMA R5, R0.reuse, R2, R5", "FFMA R7, R0, R4, R7"), 1),
        (("FFMA R5, R0.reuse, R3, R5", "IADD3 R9, R9, R9, RZ", "FFMA R6, R0, R1, R6"), 1),
        (("FFMA R5, R2, R0.reuse, R5", "FFMA R7, R0, R4, R7"), 2),  # not at the same place
        (("FFMA R5, R0.reuse, R2, R5", "FFMA R7, R0, R4, R7", "FFMA R9, R0, R6, R9"), 2),  # for one product
        (("FADD R4, R0, R2",), 0),
    ],
)
def test_products_wait_for_operands_of_one_bank(text, number):
    assert figures.value([SimpleNamespace(code=body(*text, "EXIT"))], "bank_conflicts") == number


def test_waits_for_what_is_loaded_from_shared_memory():
    load, other = "LDS.128 R8, [R0]", ["FADD R4, R0, R1"] * 20
    assert load_waits_of(load, "FFMA R4, R11, R2, R5") == 33 - 1
    assert load_waits_of(load, *other, "FFMA R4, R11, R2, R5") == 33 - 1 - 20
    assert load_waits_of(load, *other, "FFMA R4, R12, R1, R5") == 0, "a register that it does not fill"
    assert load_waits_of("LDS R8, [R0]", "FADD R4, R9, R2", "FFMA R4, R8, R1, R5") == 33 - 2
    assert load_waits_of(load, "LDS.64 R12, [R0]", "FFMA R4, R8, R1, R5", "FFMA R4, R12, R1, R5") == 33 - 2, (
        "both are on their way"
    )


def test_a_loop_waits_for_what_the_round_before_loaded():
    lines = (".a:", "FADD R4, R8, R1", *["FADD R4, R0, R1"] * 5, "LDS R8, [R0]", "@P0 BRA `(.a)", "EXIT")
    code = SimpleNamespace(code=body(*lines))
    assert figures.value([code], "loop.load_waits") == 33 - 2
    assert figures.value([code], "load_waits") == 0


def load_waits_of(*lines):
    return figures.value([SimpleNamespace(code=body(*lines, "EXIT"))], "load_waits")


def test_what_is_issued_beside_products():
    code = body(
        "HGMMA R0, gdesc[UR0], R0", "MUFU.RCP R9, R9", "HGMMA R0, gdesc[UR0], R0, gsb0", "MUFU.EX2 R9, R9", "FADD R9, R9, R9",
        "WARPGROUP.DEPBAR.LE gsb0, 0x0", "MUFU.EX2 R8, R8", "EXIT",
    )  # fmt: skip
    assert [i.opcode for i in figures.beside_products(code.instructions)] == ["MUFU.EX2", "FADD"]


def test_a_wait_may_leave_a_group_under_way():
    code = body(
        "HGMMA R0, gdesc[UR0], R0, gsb0", "HGMMA R8, gdesc[UR0], R8, gsb0", "WARPGROUP.DEPBAR.LE gsb0, 0x1", "MUFU.EX2 R9, R9",
        "WARPGROUP.DEPBAR.LE gsb0, 0x0", "FADD R9, R9, R9", "EXIT",
    )  # fmt: skip
    assert [i.opcode for i in figures.beside_products(code.instructions)] == ["MUFU.EX2"]
    none = body("WARPGROUP.DEPBAR.LE gsb0, 0x1", "MUFU.EX2 R9, R9", "EXIT")
    assert figures.beside_products(none.instructions) == [], "and begins none"


PTX = """
.version 8.7
.target sm_90a
.visible .func (.param .b32 out) helper(.param .b32 in) { ret; }
.visible .entry kernel(
	.param .u64 kernel_param_0
)
.maxntid 384, 1, 1
{
	.reg .pred 	%p<26>;
	.loc	1 279 0                         // kernel.py:279:0
$L__BB0_1:
	ld.param.b64 	%rd1, [kernel_param_0];  /* a comment; with a semicolon */
	@!%p1 bra $L__BB0_1;
	{
	.reg .b32 temporary;
	wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16
		{%f1, %f2},
		%rd1;
	}
	mov.f32 %f1, 0f3F19999A; mov.f32 %f2, 0fBF800000;
	mov.f32 %f4, 0f00000000;
	mov.f64 %fd1, 0d3FF8000000000000;
	@%p2 st.global.v2.f32 [%rd1], {%f1, %f2};
	.pragma "nounroll";
	call.uni (out), helper, (in);
	ret;
}
"""


def test_ptx_has_no_braces_labels_or_directives_for_instructions():
    found = ptx.parse(PTX)
    assert [i.opcode for i in found] == [
        "ret", "ld.param.b64", "bra", "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", "mov.f32", "mov.f32", "mov.f32",
        "mov.f64", "st.global.v2.f32", "call.uni", "ret",
    ]  # fmt: skip
    assert found[2].predicate == "@!%p1" and str(found[8]) == "@%p2 st.global.v2.f32 [%rd1], {%f1, %f2}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mov.f32 %f1, 0f3F19999A", "mov.f32 %f1, 0.6"),
        ("0fBF800000 0f7F800000 0fFF800000 0f7FC00000 0f80000000", "-1.0 inf -inf nan -0.0"),
        ("0d3FF8000000000000", "1.5"),
        ("0d3F19999A, 0x3F19999A, 0f3F19999", "0d3F19999A, 0x3F19999A, 0f3F19999"),
    ],
)
def test_floats_are_decoded(text, shown):
    assert ptx.with_decimal_floats(text) == shown


def test_a_run_is_a_line_and_a_count():
    assert list(listing.collapsed(ptx.parse(PTX)))[4:6] == ["mov.f32 %f1, 0f3F19999A", "… 2 more mov.f32"]
    two = [sass.Instruction(0, "NOP"), sass.Instruction(16, "NOP")]
    assert list(listing.collapsed(two)) == ["NOP", "NOP"]


@pytest.mark.parametrize("threshold", [1, 2, 3, 99])
def test_a_histogram_sums_to_the_instructions(threshold):
    found = ptx.parse(PTX)
    counts = listing.histogram(found, threshold)
    assert sum(n for _, n in counts) == len(found) == 11
    assert counts[0] == (("mov.f32", 3) if threshold <= 3 else ("8 other opcodes", 11))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spills", "'spills' is no expectation"),
        ("spills=few", "'spills=few' is no expectation"),
        ("spils=0", "did you mean spills?"),
        ("spills=0,,HGMMA>0", "'' is no expectation"),
    ],
)
def test_what_is_no_expectation(text, said):
    with pytest.raises(UsageError) as caught:
        expectation.parse(text)
    assert said in str(caught.value) and "\n" not in str(caught.value)


class Launch:
    """A launch of the listing above, as `figures` sees one."""

    code = sass.parse(LISTING, "kernel")
    shared = 1024

    class resources:
        registers, stack = 168, 8


@pytest.mark.parametrize(
    ("text", "unmet"),
    [
        ("spills=1, HGMMA>=2, HGMMA.BF16==2", ""),
        ("spills=0", "expected spills=0, found 1"),
        ("MUFU.TANH!=0", "expected MUFU.TANH!=0, found 0"),
        ("loop.HGMMA=2,loop.MUFU=0,loop.instructions<=5", ""),
        ("registers<=128", "expected registers<=128, found 168"),
        ("launches=1,stack<9,shared_bytes>1023,tensor_core=2,special_function=1,waits_in_groups=0", ""),
        ("HGMMA.F16>0", "expected HGMMA.F16>0, found 0"),
    ],
)
def test_expectations(text, unmet):
    assert "".join(one.met_by([Launch()]) for one in expectation.parse(text)) == unmet


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("@!P0 IMAD.MOV.U32 R12, RZ, RZ, R13.reuse", "@!P IMAD.MOV.U32 R, RZ, RZ, R"),
        ("UISETP.NE.AND UP1, UPT, UR4, URZ, UPT", "UISETP.NE.AND UP, UPT, UR, URZ, UPT"),
        ("BRA `(.L_x_12)", "BRA `(label)"),
        ("@%p1 bra $L__BB0_1", "@%p bra label"),
        ("MOV R20, 32@lo((k + .L_x_7@srel))", "MOV R, 32@lo((k + label@srel))"),
        ("CALL.REL.NOINC `($__internal_3_$__cuda_sm20_div_s64)", "CALL.REL.NOINC `($__internal_$__cuda_sm20_div_s64)"),
        ("ISETP.LT.AND P0, PT, R2, R3, PT", "ISETP.LT.AND P, PT, R, R, PT"),
        ("ISETP.LE.AND P0, PT, R2, R3, PT", "ISETP.LE.AND P, PT, R, R, PT"),
        ("LOP3.LUT R0, R1, 0x7, RZ, 0xc0, !PT", "LOP3.LUT R, R, 0x7, RZ, 0xc0, !PT"),
        ("ld.global.L1::evict_last.b32 %r1, [%rd2]", "ld.global.L1::evict_last.b32 %r, [%rd]"),
        ("ld.global.L2::cache_hint.b32 %r1, [%rd2], %rd3", "ld.global.L2::cache_hint.b32 %r, [%rd], %rd"),
        ("SHF.L.U32 R0, R1, 0x2, RZ", "SHF.L.U32 R, R, 0x2, RZ"),
        ("LDC R1, c[0x0][0x28]", "LDC R, c[0x0][0x28]"),
        ("STL [R1+0x10], R8", "STL [R+0x10], R"),
    ],
)
def test_names_that_make_no_difference(line, shown):
    assert versus.normalised(line) == shown


def test_kernels_of_a_revision_are_of_the_repository_that_path_names(monkeypatch, tmp_path):
    """The first root is our own; afterwards imports find the working tree again."""
    asked, roots = [], [tmp_path / "ours", tmp_path / "theirs", tmp_path / "more"]
    monkeypatch.setattr(versus.revision, "repository", lambda found: asked.append(found) or tmp_path)
    monkeypatch.setattr(versus.revision, "resolve", lambda checkout, wanted: f"{checkout.name}:{wanted}")
    monkeypatch.setattr(versus.revision, "export", lambda checkout, commit, roots, folder: [commit])
    monkeypatch.setattr(versus.discovery, "find_kernels", lambda roots: {"of": roots})
    monkeypatch.setattr(versus.discovery, "use_roots", asked.append)
    exported = [f"{tmp_path.name}:v1"]
    assert versus.with_kernels("v1", {}, roots, lambda kernels, roots: [kernels, roots]) == [{"of": exported}, exported]
    assert asked == [roots[1:], roots]
    assert versus.with_kernels(".", {"of": "here"}, roots, lambda kernels, roots: [kernels, roots]) == [
        {"of": "here"},
        roots,
    ]
