"""Every Triton and CUDA kernel compiles for real targets without a GPU: for sm_90 in every dtype and precision, in sizes that
no tile divides and in the default case. test_inspect.py compiles each variant for sm_90a, and without a GPU some for sm_80 and sm_100a, and reads its code: a
program that it compiles, or a Triton program that differs from another in sizes alone, is not compiled here again. Of the two dtypes of
16 bits Triton's is bfloat16 (its interpreter runs float16, in test_parity.py and test_backward.py), CUDA's in odd sizes float16
(test_inspect.py compiles bfloat16).

This process never interprets Triton: the switch is read when a kernel is decorated, and the workers alone set it.
"""

from __future__ import annotations

import importlib
import itertools
import re

import expected
import pytest
from conftest import DEVICE
from delays import delayed_sources
from turns import in_turns

from fusebench import discovery
from fusebench.backends.cuda import SHARED
from fusebench.cases import make_case
from fusebench.contract import Device
from fusebench.inputs import make_sets

triton = pytest.importorskip("triton")

# Multiprocessors and shared memory of an A100, an H200 and a B200
DEVICES = {
    arch: Device("cuda", f"sm_{arch}", divmod(arch, 10), sms) for arch, sms in ((80, 108), (90, 132), (100, 148))
}
ARCHS = {80: "sm_80", 90: "sm_90a", 100: "sm_100a"}  # as test_inspect has them
SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
HALVES = (("bfloat16", "ieee"), ("float16", "ieee"))
DTYPES = (("float32", "ieee"), ("float32", "tf32"), *HALVES[::-1])
KERNELS = discovery.find_kernels(discovery.roots_of())


def cells_of(module, arch):
    """The cases and variants to compile for: the odd case in all dtypes and the default case in one for Hopper; for the others the
    default case, or the odd one where a variant is for no other."""
    name = module.__name__.split(".")[1]
    kernel, skip = KERNELS[name], getattr(module, "skip", lambda *_: None)
    names = list(kernel.mathematics.cases)
    odd = next(n for n in names if n.startswith("odd"))
    wanted = [(names[0], *DTYPES[-1])] + [(odd, *d) for d in (DTYPES if arch == 90 else DTYPES[-1:])]
    cases = {case.id: case for case in (make_case(kernel, *w) for w in wanted)}.values()
    for variant in module.VARIANTS:
        possible = [case for case in cases if skip(case, variant, DEVICES[arch]) is None]
        yield from ((case, variant) for case in (possible if arch == 90 else possible[:1]))


def launched(module, case, variant, device):
    """What an implementation launches unless told otherwise."""
    return module.launches(case, variant, device, module.config(case, variant, device))


def compile_triton(launch, arch):
    """The compiled kernel of one launch; pointers are aligned to 16 bytes, as the frameworks' are."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = launch.kernel.arg_names
    signature = {n: "constexpr" if n in launch.constexprs else launch.signature[n] for n in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n].startswith("*")}
    source = ASTSource(launch.kernel, signature, {(names.index(n),): v for n, v in launch.constexprs.items()}, aligned)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def with_backward(implementation):
    """Each kernel and variant that the implementation has in backward modes; lora_mlp launches lora_linear's, layer by layer."""
    found = (
        (name, kernel.implementations.get(implementation)) for name, kernel in KERNELS.items() if name != "lora_mlp"
    )
    return [(name, variant) for name, own in found if own for variant in own.backward]


def on_archs(pairs):
    """The kernels and variants for each arch; without a GPU, on two cores, for one besides Hopper, in turns, and the first variant alone."""
    if DEVICE == "cuda":
        return [(*pair, arch) for pair in pairs for arch in DEVICES]
    first = dict(reversed(pairs))
    return [(*pair, 90) for pair in pairs] + [(*pair, (80, 100)[n % 2]) for n, pair in enumerate(first.items())]


@pytest.fixture(scope="module")
def unlike():
    """A function of launches and an arch: the launches whose program no test has compiled yet for that arch, or one like it."""
    compiled = {arch: expected.programs(KERNELS, ARCHS[arch]) for arch in DEVICES}

    def of(launches, arch):
        for launch in launches:
            if (program := expected.program(launch)) not in compiled[arch]:
                compiled[arch].add(program)
                yield launch

    return of


@pytest.mark.parametrize(("name", "variant", "arch"), in_turns(on_archs(with_backward("triton"))))
def test_triton_compiles_backward(unlike, name, variant, arch):
    module = importlib.import_module(f"implementations.{name}.triton")
    cases = list(KERNELS[name].mathematics.cases)
    wanted = [(cases[0], *HALVES[0]), *([("odd", *DTYPES[0])] if arch == 90 else [])]
    for case in (make_case(KERNELS[name], *w, mode="forward_backward") for w in wanted):
        launches = launched(module, case, variant, DEVICES[arch])
        assert launches
        for launch in unlike(launches, arch):
            result = compile_triton(launch, arch)
            assert result.asm["cubin"] and result.metadata.shared <= SHARED_BYTES[arch], case.id


@pytest.mark.parametrize(
    ("M", "R", "launches"), [(1, 16, 1), (64, 64, 1), (65, 16, 2), (64, 72, 2), (32, 5, 1), (33, 5, 2)]
)
def test_lora_of_few_rows_is_one_launch_backward_in_triton(M, R, launches):
    module = importlib.import_module("implementations.lora_linear.triton")
    sizes = {"M": M, "K": 512, "N": 1024, "R": R}
    case = make_case(KERNELS["lora_linear"], sizes, "bfloat16", options={"activation": "silu"}, mode="backward")
    found = launched(module, case, "two_launches", DEVICES[90])
    assert len(found) == launches
    assert module.fits(case, "two_launches", DEVICES[90], module.config(case, "two_launches", DEVICES[90])) is None
    if launches == 1:
        assert compile_triton(found[0], 90).metadata.shared <= SHARED_BYTES[90]


@pytest.mark.parametrize("arch", [90])
@pytest.mark.parametrize("name", in_turns(k for k in KERNELS if "triton" in KERNELS[k].implementations))
def test_triton_compiles(unlike, name, arch):
    module = importlib.import_module(f"implementations.{name}.triton")
    cells = list(cells_of(module, arch))
    assert cells
    of_one_half = {variant for case, variant in cells if case.dtype == HALVES[0][0]}
    for case, variant in (c for c in cells if c[0].dtype != HALVES[1][0] or c[1] not in of_one_half):
        for launch in unlike(launched(module, case, variant, DEVICES[arch]), arch):
            result = compile_triton(launch, arch)
            assert f".target sm_{arch}" in result.asm["ptx"] and result.asm["cubin"]
            assert result.metadata.shared <= SHARED_BYTES[arch], f"{case.id} {variant}"


@pytest.mark.parametrize("name", [k for k in KERNELS if "pallas" in KERNELS[k].implementations])
def test_pallas_lowers_to_triton(name):
    """As far as JAX goes without a GPU: to Triton's own representation."""
    jax = pytest.importorskip("jax")
    module = importlib.import_module(f"implementations.{name}.pallas")
    with jax.enable_x64(True):  # as the back end has it
        for case, variant in cells_of(module, 90):
            arrays = make_sets(KERNELS[name].mathematics, case, 0, 1)[0].values()
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
            call = module.build(case, variant, DEVICES[90], module.config(case, variant, DEVICES[90]))
            lowered = call.trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
            assert "__gpu$xla.gpu.triton" in lowered, f"{case.id} {variant}"


COPIES = {("embedding", "naive"): 1, ("dlrm", "naive"): 1}  # beside the kernels


@pytest.mark.parametrize("name", KERNELS)
def test_what_launches_its_own_kernels_declares_that_it_is_fused(name):
    found = KERNELS[name].implementations
    assert all(found[own].fused for own in ("triton", "jax_triton", "cuda") if own in found)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_declares_how_many_launches_a_fused_implementation_makes(name):
    mathematics = KERNELS[name].mathematics
    for implementation in ("triton", "cuda"):
        if implementation not in KERNELS[name].implementations:
            continue
        module = importlib.import_module(f"implementations.{name}.{implementation}")
        for case, variant in cells_of(module, 90):
            count = len(launched(module, case, variant, DEVICES[90])) + COPIES.get((name, variant), 0)
            assert count in mathematics.launches_of(variant, case), f"{case.id} {implementation}:{variant}"


def test_lola_uses_the_tensor_cores_of_hopper(kernels):
    from implementations.lola._triton_kernels import config, launches

    for case in [make_case(kernels["lola"], "batch", *d) for d in DTYPES[1:]]:
        (launch,) = launches(case, "multirow_ws", DEVICES[90], config(case, "multirow_ws", DEVICES[90]))
        assert "wgmma.mma_async" in compile_triton(launch, 90).asm["ptx"], case.id


@pytest.fixture(scope="module")
def inspected():
    """The CUDA programs that test_inspect compiles for Hopper."""
    return {launch.program for launch in expected.launches(KERNELS, "cuda", "sm_90a")}


@pytest.mark.parametrize("arch", [90])
@pytest.mark.parametrize("name", in_turns(k for k in KERNELS if "cuda" in KERNELS[k].implementations))
def test_cuda_compiles(inspected, name, arch):
    pytest.importorskip("cuda.core")
    from fusebench.backends.cuda import compile_cubin

    module = importlib.import_module(f"implementations.{name}.cuda")
    cells, found = list(cells_of(module, arch)), {}
    of_one_half = {variant for case, variant in cells if case.dtype == HALVES[1][0]}
    for case, variant in (c for c in cells if c[0].id != f"odd/{HALVES[0][0]}" or c[1] not in of_one_half):
        for launch in launched(module, case, variant, DEVICES[arch]):
            program = launch.program
            found.setdefault((program.file, program.defines), []).extend([program.name] * (program not in inspected))
    assert found
    for (file, defines), names in ((unit, names) for unit, names in found.items() if names):
        cubin = compile_cubin(file, ARCHS[arch], list(dict.fromkeys(names)), defines)
        assert cubin.code[:4] == b"\x7fELF" and set(cubin.symbols) >= set(names)


@pytest.mark.parametrize(("name", "variant", "arch"), in_turns(on_archs(with_backward("cuda"))))
def test_cuda_compiles_backward_without_spills(name, variant, arch):
    pytest.importorskip("cuda.core")
    from fusebench.backends.cuda import compile_cubin
    from fusebench.inspection import elf

    module, device = importlib.import_module(f"implementations.{name}.cuda"), DEVICES[arch]
    cases, options = list(KERNELS[name].mathematics.cases), KERNELS[name].mathematics.options
    wanted = [(cases[0], *DTYPES[-1], chosen) for chosen in each_option(options)]
    wanted += [("odd", *DTYPES[0], {}), ("odd", *DTYPES[2], {})] if arch == 90 else []
    possible = [make_case(KERNELS[name], *w, mode="backward") for w in wanted]
    possible = [case for case in possible if module.skip(case, variant, device) is None]
    # a variant may be for long rows alone
    possible = possible or [make_case(KERNELS[name], "wide", *DTYPES[-1], mode="backward")]
    for case in possible if module.skip(possible[0], variant, device) is None else ():
        for launch in launched(module, case, variant, device):
            program = launch.program
            # as test_inspect has it, which may have compiled it
            cubin = compile_cubin(program.file, ARCHS[arch], [program.name], program.defines, lines=True)
            stack = elf.resources(cubin.code, cubin.symbols[program.name]).stack
            assert stack == 0 and launch.shared_memory <= SHARED_BYTES[arch], f"{case.id} {program.name}"


@pytest.mark.parametrize(("name", "variant"), with_backward("cuda"))
def test_cuda_launches_backward_behind_forward(name, variant):
    pytest.importorskip("cuda.core")
    module, kernel = importlib.import_module(f"implementations.{name}.cuda"), KERNELS[name]
    for case_name in ("odd", "wide" if "wide" in kernel.mathematics.cases else "odd"):
        cases = {mode: make_case(kernel, case_name, mode=mode) for mode in ("backward", "forward_backward")}
        if module.skip(cases["backward"], variant, DEVICES[90]) is None:
            behind, both = (launched(module, case, variant, DEVICES[90]) for case in cases.values())
            most = 6 * cases["backward"].sizes.get("LAYERS", 1)
            assert 1 <= len(behind) <= most and both[-len(behind) :] == behind and len(both) > len(behind)


def each_option(options):
    """The first value of each option, and each other value alone."""
    first = {name: values[0] for name, values in options.items()}
    return [first, *({**first, name: value} for name, values in options.items() for value in values[1:])]


@pytest.mark.parametrize("name", [k for k in KERNELS if "cuda" in KERNELS[k].implementations])
def test_where_shared_memory_is_small_a_kernel_has_a_tile_that_fits_or_a_reason(name):
    pytest.importorskip("cuda.core")
    module, device = importlib.import_module(f"implementations.{name}.cuda"), Device("cuda", "sm_86", (8, 6), 84)
    for case in (make_case(KERNELS[name], c, *d) for c in KERNELS[name].mathematics.cases for d in DTYPES):
        for variant in module.VARIANTS:
            assert module.skip(case, variant, device) or launched(module, case, variant, device), case.id


@pytest.mark.parametrize(
    "name, case", [("lola", "large"), ("splacc", "large"), ("geglu", "large"), ("padded_attention", "wide")]
)
def test_hopper_multiplies_16_bits_by_warpgroups(name, case):
    pytest.importorskip("cuda.core")
    from fusebench.backends.cuda import compile_cubin

    module, programs = importlib.import_module(f"implementations.{name}.cuda"), {}
    unseen = {}  # by test_inspect, in one layout
    for layout in ("kn", "nk") if name != "padded_attention" else (None,):
        for dtype in ("float16", "bfloat16"):
            large = make_case(KERNELS[name], case, dtype, options={"w_layout": layout} if layout else {})
            for variant in (v for v in module.VARIANTS if module.skip(large, v, DEVICES[90]) is None):
                launch = launched(module, large, variant, DEVICES[90])[-1]
                if "warpgroup" in launch.program.name:
                    programs[launch.program.name] = launch
                    unseen |= {launch.program.name: None} if dtype == "float16" and layout != "kn" else {}
                    assert launch.shared_memory <= SHARED_BYTES[90]
                    assert launch.boxes and all(box[-1] == 64 and max(box) <= 256 for box in launch.boxes)
    assert len(programs) >= (2 if name == "padded_attention" else 4)
    (file,) = {launch.program.file for launch in programs.values()}
    cubin = compile_cubin(file, "sm_90a", list(unseen))
    assert unseen and set(cubin.symbols) == set(unseen)


@pytest.mark.parametrize("arch", DEVICES)
def test_no_layer_of_an_mlp_is_written_over_what_is_still_read(arch):
    """Follows perceptron.cuh's choice between its two places in shared memory. A block of its own may overwrite its input in one pass,
    when all have read it; blocks of a cluster, and a layer of several passes, may not."""
    from implementations._shared.cuda import perceptron

    module, kernel = importlib.import_module("implementations.fused_mlp.cuda"), KERNELS["fused_mlp"]
    apart = 0
    for name, dtype in itertools.product(kernel.mathematics.cases, DTYPES):
        case = make_case(kernel, name, *dtype)
        if module.skip(case, "default", DEVICES[arch]) is not None:
            continue
        # of KERNEL=tensor or simt, whichever is chosen: others keep layers in registers, have two places that differ in all of them, or global memory
        launch = perceptron.launch(module.FILE, case, perceptron.config(case, DEVICES[arch]))
        rows, wide, *warps_and_stages = map(int, re.findall(r"\b\d+\b", launch.program.name))
        stages, cluster = (*warps_and_stages[4:], 1)[:2]
        place = stages * (rows + wide) * 128
        other, before = place + launch.sizes[-1], range(0)
        for number, width in enumerate(perceptron.widths(case)[1:-1]):
            columns = -(-width * case.itemsize // 128) * 128 // case.itemsize
            over_its_input = cluster == 1 and columns <= wide
            if number > 0 and not over_its_input:
                place, other = other, place
            made = range(place, place + rows * columns * case.itemsize)
            assert made.stop <= launch.shared_memory, f"{case.id}: {launch}"
            if number > 0 and not over_its_input:
                assert made.start >= before.stop or made.stop <= before.start, f"{case.id}: {launch}"
                apart += 1
            before = made
    assert apart


@pytest.mark.parametrize(
    ("M", "widths", "rows"),
    [
        (300, (13, 512, 128, 64, 3), 64),
        (70000, (200, 392, 120, 16), 128),
        (70000, (512, 512, 256, 1), 128),
        (1000, (367, 512, 256, 1), 64),
        (70000, (479, 512, 256, 1), 128),
    ],
)
def test_mlps_in_registers_compile_without_spills_or_serial_products(M, widths, rows):
    """Widths of no named case among them: how many products there are follows from them."""
    pytest.importorskip("cuda.core")
    from fusebench.backends.cuda import compile_cubin
    from fusebench.inspection import disassembler, figures, sass
    from implementations._shared.cuda import perceptron_warpgroup

    sizes = {"M": M, "LAYERS": len(widths) - 1} | {f"N{i}": n for i, n in enumerate((*widths, 1, 1)[:5])}
    case = make_case(KERNELS["fused_mlp"], sizes, "bfloat16")
    own = {"KERNEL": "warpgroup", "BLOCK_M": rows, "BLOCK_N": 128, "CLUSTER": 2, "num_stages": 3}
    assert perceptron_warpgroup.fits(case, DEVICES[90], own) is None
    launch = perceptron_warpgroup.launch(SHARED / "fused_mlp" / "cuda.cu", case, DEVICES[90], own)
    assert launch.shared_memory <= SHARED_BYTES[90]
    assert launch.boxes and all(box[-1] == 64 and max(box) <= 256 for box in launch.boxes)
    cubin = compile_cubin(launch.program.file, "sm_90a", [launch.program.name])
    (symbol,) = cubin.symbols.values()
    code = sass.parse(disassembler.disassemble(cubin.code), symbol).instructions
    first, second = (1 if widths[0] <= 16 else 4), 128 // 16
    third = widths[2] // 16 if len(widths) == 5 and rows == 128 else 0
    assert figures.spills(code) == 0 and figures.waits_in_groups(code) == 0
    assert sum(i.opcode.startswith("HGMMA") for i in code) == first + second + third


@pytest.mark.parametrize(
    "own",
    [
        {"dense_BLOCK_M": rows, "dense_BLOCK_N": columns, "dense_SPLIT": split, "dense_num_stages": 3}
        for rows, columns, split in ((128, 128, 8), (128, 128, 2), (128, 128, 1), (64, 128, 1), (64, 64, 8))
    ]
    + [
        {"attention_BLOCK_M": rows, "attention_BLOCK_N": tokens, "attention_WARPS_M": rows // 16, "attention_SPLIT": split}
        for rows, tokens, split in ((128, 128, 8), (128, 64, 8), (64, 64, 2), (64, 128, 1))
    ],
    ids=lambda own: "-".join(map(str, own.values())),
)  # fmt: skip
def test_blocks_that_share_a_tile_compile_without_spills_or_serial_products(own):
    pytest.importorskip("cuda.core")
    from fusebench.backends.cuda import compile_cubin
    from fusebench.inspection import disassembler, figures, sass
    from implementations.shcsa import cuda

    case = make_case(KERNELS["shcsa"], "wide", "bfloat16", options={"w_layout": "nk"})
    config = cuda.config(case, "padded_attention", DEVICES[90]) | own
    assert cuda.fits(case, "padded_attention", DEVICES[90], config) is None
    dense, flash = cuda.launches(case, "padded_attention", DEVICES[90], config)
    program = (dense if "dense_SPLIT" in own else flash).program
    cubin = compile_cubin(program.file, "sm_90a", [program.name])
    code = sass.parse(disassembler.disassemble(cubin.code), cubin.symbols[program.name]).instructions
    assert figures.spills(code) == 0 and figures.waits_in_groups(code) == 0
    assert any(i.opcode.startswith("HGMMA") for i in code)


def test_what_a_kernel_adds_to_a_launch_is_named():
    from implementations._shared.cuda.launch import Launch

    with pytest.raises(TypeError, match="positional"):
        Launch(None, 1, 128, 0, 1024)


def test_delayed_sources_compile(tmp_path):
    pytest.importorskip("cuda.core")
    from fusebench.backends.cuda import compile_cubin

    folder = delayed_sources(tmp_path)
    names = {
        "fused_mlp": "mlp_cluster<float, true, false, NONE, 16, 128, 1, 4, 1, 4, 4, 4>",
        "splacc": "two_accumulators_warpgroup<bfloat16, false, 128, 256, 4, 2>",
        "padded_attention": "token_gradients_warpgroup<bfloat16, true, 64, 64, 64, 3>",
    }
    for kernel, name in names.items():
        file = "cuda_backward_hopper.cu" if kernel == "padded_attention" else "cuda.cu"
        prompt, delayed = (compile_cubin(f / kernel / file, "sm_90a", [name]) for f in (SHARED, folder))
        assert delayed.code != prompt.code, kernel


def test_a_cuda_file_that_does_not_compile_is_named_with_its_log(tmp_path):
    pytest.importorskip("cuda.core")
    from fusebench.backends.cuda import CompileError, compile_cubin

    (tmp_path / "broken.cu").write_text('extern "C" __global__ void f() { nonsense; }\n')
    with pytest.raises(CompileError, match=r"(?s)broken\.cu.*nonsense"):
        compile_cubin(tmp_path / "broken.cu", "sm_90", ["f"])
