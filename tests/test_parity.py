"""Every implementation that can run here agrees with the float64 formula: a new file is tested by being there.

Over each kernel's small named cases, its options, its hard inputs, and drawn sizes. jax_triton launches triton's kernels, so
it gets the odd case alone; torch.compile takes seconds a cell and gets one of each kernel.

On a card every combination runs. Without one, where Triton is interpreted and CUDA emulated, and most time goes into these and into
JAX's compiler, each variant gets the odd case in float32 and one dtype of 16 bits, with --thorough in the other, and each other thing once: the other named cases in one dtype (in turns over the variants, JAX the
smallest alone), hard inputs of each kind in one, the dtypes in turns over kinds and kernels, the values of an option in turns over the variants, a
single size drawn at random; and what is not about
sizes gets small ones, a tall case 301 rows.
"""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest
from conftest import DEVICE
from turns import in_turns, left_out

from fusebench import discovery, hard, hard_check
from fusebench.cases import make_case
from fusebench.contract import DTYPES, Cell

FOUND = discovery.find_kernels(discovery.roots_of())
KERNELS = sorted(FOUND)
OF_KERNELS = [name for name in KERNELS if FOUND[name].options]  # those that have options
SMALL_FLOPS, SMALL_BYTES = 4e6, 1e6  # what Triton's interpreter does in a second
SLOW = ("torch_compile",)

ONE_OF_EACH = (*SLOW, "jax_triton")
FEW_ROWS, FEW = 7, 67  # rows of a batch; another size, which is a block and a bit
MANY_ROWS = 301
DRAWN, DRAWN_FLOPS = (3, SMALL_FLOPS) if DEVICE == "cuda" else (1, SMALL_FLOPS / 4)  # sizes of a kernel


def small(kernel, case):
    return kernel.mathematics.flops(case) <= SMALL_FLOPS and kernel.mathematics.moved_bytes(case) <= SMALL_BYTES


def small_names(kernel):
    return [name for name in kernel.mathematics.cases if small(kernel, make_case(kernel, name))]


def odd_name(kernel):
    return next(name for name in small_names(kernel) if name.startswith("odd"))


def few(kernel):
    """The odd case; without a GPU with smaller sizes, for what does not hang on them."""
    name, mathematics = odd_name(kernel), kernel.mathematics
    if DEVICE == "cuda":
        return name
    sizes = {d: min(size, FEW) for d, size in mathematics.cases[name].items()}
    single, double = (mathematics.flops(make_case(kernel, sizes | {mathematics.batch: n})) for n in (10, 20))
    if len(sizes) > 1 and double <= 2 * single:  # rows on their own, and no sequence
        sizes[mathematics.batch] = min(sizes[mathematics.batch], FEW_ROWS)
    return sizes


def interpreted(kernel, cell):
    """Whether an interpreter or an emulator stands for the GPU."""
    return DEVICE == "cpu" and kernel.implementations[cell.implementation].without_gpu in ("interpreted", "emulated")


def jitted(kernel, cell):
    return kernel.implementations[cell.implementation].backend == "jax"


def cells_of(kernel, sizes, dtypes, options=({},), without=(), inputs=("plain",)):
    """All implementations and variants of a kernel over the sizes (or names of cases), dtypes, options and kinds of inputs."""
    for size, dtype, option in itertools.product(sizes, dtypes, options):
        case = make_case(kernel, size, dtype, "ieee", option)
        for kind in (k for k in inputs if k in hard.kinds(kernel.mathematics, case)):
            for implementation in kernel.implementations.values():
                if implementation.name not in without:
                    yield from (Cell(case, implementation.name, v, inputs=kind) for v in implementation.variants)


def assert_right(records):
    """Each cell is ok, or skipped for a reason that holds for it, and some are ok."""
    bad = [f"{r.id}: {r.status}: {r.reason}" for r in records if r.status != "ok" and not may_skip(r)]
    assert not bad, "\n".join(bad)
    fine = {r.cell.implementation for r in records if r.status == "ok"}
    if all(
        "float16 needs a scaled loss" in (r.reason or "") or r.cell.implementation not in FRAMEWORKS for r in records
    ):
        return  # which no implementation can
    assert fine
    if DEVICE == "cpu":
        lazy = {r.cell.implementation for r in records if not reason_known(r)} - fine
        assert not lazy, f"{lazy} skip all that they are asked for"


def option(name, *values):
    return lambda r: r.case.options.get(name) in values


def variant(*names):
    return lambda r: r.cell.variant in names


def size_above(dimension, most):
    return lambda r: r.case.sizes[dimension] > most


def dtype(*names):
    return lambda r: r.case.dtype in names


def by(*names):
    return lambda r: r.cell.implementation in names


def both(*conditions):
    return lambda r: all(condition(r) for condition in conditions)


def on_cpu(r):
    return DEVICE == "cpu"


def named_otherwise(case):
    return lambda r: not r.case.id.startswith(f"{case}/")


FRAMEWORKS = (
    "flax",
    "torch_eager",
    "torch_compile",
    "triton",
    "jax_triton",
)  # they run, or are interpreted, on any machine
# Why a cell may be skipped → where that is true. What is skipped for another reason is a mistake here, but in a file that
# somebody added (a name that is not one of ours): that has to run something.
SKIPS = {
    "needs fbgemm_gpu": lambda r: r.cell.implementation == "fbgemm",
    "needs an NVIDIA GPU": both(on_cpu, lambda r: r.cell.implementation not in FRAMEWORKS),
    "cuDNN needs an NVIDIA GPU": both(on_cpu, variant("cudnn")),
    "interpreted on the CPU, where Triton computes bfloat16 wrongly": both(on_cpu, by("triton", "jax_triton"), dtype("bfloat16")),
    "interpreted on the CPU, where so many comparisons": both(on_cpu, by("triton"), variant("naive"), named_otherwise("odd")),
    "max_autotune searches GPU kernels": both(on_cpu, variant("max_autotune")),
    "on the CPU flex_attention": both(on_cpu, by("flex_attention")),
    "modulus is for option.hashing=modulus": both(variant("modulus", "modulus_split", "modulus_in_place", "modulus_two_launches"), option("hashing", "lookup")),
    "naive is for option.hashing=lookup": both(variant("naive"), option("hashing", "modulus")),
    "improved is for option.hashing=lookup": both(variant("improved", "improved_split", "improved_in_place", "improved_two_launches"), option("hashing", "modulus")),
    "one layer has no second": both(variant("modulus_split", "improved_split"), lambda r: r.case.sizes["LAYERS"] == 1),
    "float16 needs a scaled loss": both(lambda r: r.case.kernel == "dlrm_train", dtype("float16")),
    "written for option.interaction=dot alone": both(by("triton", "jax_triton", "cuda"), option("interaction", "outer")),
    "hashing, look-up and interaction are one launch": both(by("triton", "cuda"), option("until", "hashing", "embedding")),
    "outer products and the first layer behind them are one launch": both(by("triton"), option("interaction", "outer")),
    "is for backward modes": both(
        by("triton", "jax_triton", "cuda"), variant("one_launch", "atomic", "deterministic", "recompute")
    ),
    "row is for M = 1": both(by("cuda"), variant("row"), size_above("M", 1)),
    "and for Hopper's warpgroups": both(by("cuda"), variant("two_launches"), lambda r: r.case.dtype != "float32" or r.case.precision == "tf32"),
    "needs no cluster": both(by("cuda"), variant("cluster"), lambda r: r.case.sizes["C"] < 4096),
    "multiplies up to 32 vectors on tensor cores": both(by("cuda"), variant("persistent")),
    "samples that are no multiple of 16 bytes": both(by("cuda"), variant("persistent")),
    "outer products read a sample once anyway": both(by("cuda"), variant("persistent"), option("form", "outer")),
    "row takes one token": both(variant("row"), size_above("M", 1)),
    "IEEE float32 multiplies from registers": both(by("triton", "jax_triton"), variant("whole_row"), dtype("float32")),
    "float32 already: default is the same program": both(by("flax"), variant("float32"), dtype("float32")),
    "a row of more than 128 KiB": both(by("cuda"), variant("row"), size_above("C", 32768)),
    "a row of more than 32768 elements": both(variant("row", "persistent"), size_above("C", 32768)),
    "written for gelu_tanh alone": both(by("torch_addmm"), option("activation", "gelu_erf", "relu", "none")),
}  # fmt: skip


def reason_known(r):
    return any(reason in (r.reason or "") for reason in SKIPS)


def may_skip(r):
    """Whether the cell was skipped, and rightly."""
    if r.status != "skipped":
        return False
    conditions = [holds for reason, holds in SKIPS.items() if reason in r.reason]
    ours = DEVICE == "cpu" and r.cell.implementation in (*FRAMEWORKS, "cuda")
    return any(holds(r) for holds in conditions) if conditions else not ours


# of the two dtypes of 16 bits each kernel has one, and the other where there is time
ODD = [
    left_out((name, dtype)) if dtype == ("float16", "bfloat16")[number % 2] else (name, dtype)
    for number, name in enumerate(KERNELS)
    for dtype in DTYPES
]


@pytest.mark.parametrize(("name", "dtype"), ODD)
def test_the_odd_case(kernels, run_cells, name, dtype, monkeypatch):
    kernel = kernels[name]
    if DEVICE == "cpu":  # where a second case is compiled by JAX alone, for as long as the first
        monkeypatch.setattr(hard_check, "aligned_case", hard_check.odd_case)
    cells = list(cells_of(kernel, [odd_name(kernel)], [dtype], without=ONE_OF_EACH))
    at_once = [c for c in cells if compiled_once(kernel, c)]
    hard_as_well = run_cells(at_once, hard=True)
    assert all(r.parity.hard for r in hard_as_well if r.status == "ok")
    assert_right(run_cells([c for c in cells if c not in at_once]) + hard_as_well)


def compiled_once(kernel, cell):
    """Whether all hard inputs are for one cell, because JAX compiles it for each: where it is not the card that has minutes."""
    return DEVICE == "cpu" and jitted(kernel, cell) and cell.case.dtype == "float32"


@pytest.mark.parametrize("name", KERNELS)
def test_other_small_cases(kernels, run_cells, name):
    kernel = kernels[name]
    names = [n for n in small_names(kernel) if n != odd_name(kernel)]
    assert len(names) >= 2, "a kernel has small cases for this test: one, odd, …"
    for number, case in enumerate(names):
        dtypes, sizes, batch = DTYPES, dict(kernel.mathematics.cases[case]), kernel.mathematics.batch
        if DEVICE == "cpu":  # Triton's interpreter has no bfloat16, and takes milliseconds a row
            dtypes, sizes[batch] = [("float32", "float16")[number % 2]], min(sizes[batch], MANY_ROWS)
        cells = cells_of(kernel, [sizes], dtypes, without=ONE_OF_EACH)
        assert_right(run_cells([c for c in cells if case == "one" or takes_case(kernel, c, number)]))


def takes_case(kernel, cell, number):
    """Whether the cell's implementation takes this case beside `one`: without a card JAX takes none, and what is interpreted or emulated every
    second, variants in turns."""
    if DEVICE == "cuda" or not (jitted(kernel, cell) or interpreted(kernel, cell)):
        return True
    return not jitted(kernel, cell) and in_turn(kernel, cell, number)


@pytest.mark.parametrize("name", KERNELS)
def test_jax_triton(kernels, run_cells, name):
    cells = cells_of(kernels[name], [few(kernels[name])], DTYPES)
    assert_right(run_cells([c for c in cells if c.implementation == "jax_triton"]))


@pytest.mark.parametrize("name", OF_KERNELS)
def test_options(kernels, run_cells, name):
    kernel = kernels[name]
    options = [{option: value} for option, values in kernel.options.items() for value in values[1:]]
    cells = []
    for number, option in enumerate(options):
        of_value = cells_of(kernel, [few(kernel)], ["float32"], [option], without=ONE_OF_EACH)
        cells += [c for c in of_value if not interpreted(kernel, c) or takes_turn(kernel, c, number, option)]
    records = run_cells(cells)
    assert_right(records)
    ran = [r.case.options for r in records if r.status == "ok"]
    assert all(any(o[n] == v for o in ran) for changed in options for n, v in changed.items()), (
        "each value ran somewhere"
    )


def takes_turn(kernel, cell, number, option):
    """Whether a variant takes this value of an option: every second one, if there are two beside the default."""
    (values,) = (kernel.options[name] for name in option)
    return len(values) <= 2 or in_turn(kernel, cell, number)


def in_turn(kernel, cell, number):
    return (number + list(kernel.implementations[cell.implementation].variants).index(cell.variant)) % 2 == 0


@pytest.mark.parametrize("name", in_turns(KERNELS))
def test_hard_inputs(kernels, run_cells, name):
    kernel = kernels[name]
    cells = []
    for number, kind in enumerate(hard.KINDS[1:], KERNELS.index(name)):
        for dtype, without in (("float32", ONE_OF_EACH), ("float16", (*ONE_OF_EACH, "flax"))):
            turn = dtype == ("float32", "float16")[number % 2]
            of_kind = cells_of(kernel, [few(kernel)], [dtype], without=without, inputs=[kind])
            cells += [cell for cell in of_kind if turn or not interpreted(kernel, cell)]
    assert_right(run_cells([cell for cell in cells if not compiled_once(kernel, cell)]))


@pytest.mark.parametrize("name", in_turns(KERNELS))
def test_torch_compile(kernels, run_cells, name):
    cells = [c for c in cells_of(kernels[name], [odd_name(kernels[name])], ["float32"]) if c.implementation in SLOW]
    if name == "dlrm_parts":  # hashing alone is another program than before a look-up
        hashed = cells_of(kernels[name], [odd_name(kernels[name])], ["float32"], [{"until": "hashing"}])
        cells += [c for c in hashed if c.implementation in SLOW and c.variant == "modulus"]
    # half a minute a variant on a CPU, which differ in the tables' part alone
    slower = DEVICE == "cpu" and name == "dlrm_train"
    assert_right(run_cells([c for c in cells if not (slower and c.variant.endswith("_in_place"))]))


def test_torch_compile_stores_what_gelu_takes_for_its_gradient(kernels, run_cells):
    sizes, option = {"M": 5, "N": 67}, {"activation": "gelu_tanh"}
    case = make_case(kernels["add_mul_act"], sizes, "bfloat16", options=option, mode="backward")
    assert_right(run_cells([Cell(case, "torch_compile", "default")]))


@pytest.mark.parametrize("name", KERNELS)
def test_drawn_sizes(kernels, run_cells, name):
    kernel, rng = kernels[name], np.random.default_rng(zlib.crc32(name.encode()))
    largest = max(2, round(DRAWN_FLOPS ** (1 / max(3, len(kernel.dimensions)))))
    most = {d: min(largest, max(sizes[d] for sizes in kernel.mathematics.cases.values())) for d in kernel.dimensions}
    for dtype in rng.choice(DTYPES[:2] if DEVICE == "cpu" else DTYPES, DRAWN):
        sizes = {d: int(rng.integers(1, n + 1)) for d, n in most.items()}
        while not small(kernel, make_case(kernel, sizes, dtype)):
            sizes = {d: -(-n // 2) for d, n in sizes.items()}
        assert_right(run_cells(list(cells_of(kernel, [sizes], [str(dtype)], without=ONE_OF_EACH))))


def test_a_copy_rounds_nothing(kernels, run_cells):
    cells = cells_of(kernels["launch"], ["odd"], DTYPES, without=SLOW)
    records = [r for r in run_cells(list(cells)) if r.status == "ok"]
    assert len({(r.label, r.case.dtype) for r in records}) >= 3 * 2
    assert all(r.parity.first.max_abs == 0 for r in records)


@pytest.mark.skipif(DEVICE == "cuda", reason="says what happens without a GPU")
def test_without_a_gpu_triton_is_interpreted_and_never_timed(kernels, run_cells):
    cells = [
        c for c in cells_of(kernels["launch"], ["one"], ["float32"]) if c.implementation in ("triton", "jax_triton")
    ]
    records = run_cells(cells, time_s=0.01)
    assert {r.cell.implementation for r in records} == {"triton", "jax_triton"}
    for record in records:
        assert record.status == "skipped" and "interpreted" in record.reason
        assert record.parity.first.ratio <= 1 and record.timing is None
