"""Every implementation that can run here agrees with the float64 formula: a new file is tested by being there.

Over each kernel's small named cases, its options, its hard inputs, and drawn sizes. jax_triton launches triton's kernels, so
it gets the odd case alone; torch.compile takes seconds a cell and gets one of each kernel.
"""

from __future__ import annotations

import itertools
import math

import pytest
from conftest import DEVICE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusebench import discovery, hard
from fusebench.cases import make_case
from fusebench.contract import DTYPES, Cell

KERNELS = sorted(discovery.find_kernels(discovery.roots_of()))
SMALL_FLOPS, SMALL_BYTES = 4e6, 1e6  # what Triton's interpreter does in a second
SLOW = ("torch_compile",)

ONE_OF_EACH = (*SLOW, "jax_triton")


def small(kernel, case):
    return kernel.module.flops(case) <= SMALL_FLOPS and kernel.module.moved_bytes(case) <= SMALL_BYTES


def small_names(kernel):
    return [name for name in kernel.module.CASES if small(kernel, make_case(kernel, name))]


def cells_of(kernel, sizes, dtypes, options=({},), without=(), inputs=("plain",)):
    """All implementations and variants of a kernel over the sizes (or names of cases), dtypes, options and kinds of inputs."""
    for size, dtype, option in itertools.product(sizes, dtypes, options):
        case = make_case(kernel, size, dtype, "ieee", option)
        for kind in (k for k in inputs if k in hard.kinds(kernel.module, case)):
            for implementation in kernel.implementations.values():
                if implementation.name not in without:
                    yield from (Cell(case, implementation.name, v, inputs=kind) for v in implementation.variants)


def assert_right(records):
    """No cell is anything but ok or skipped, and some are ok."""
    bad = [f"{r['cell']}: {r['status']}: {r['reason']}" for r in records if r["status"] not in ("ok", "skipped")]
    assert not bad, "\n".join(bad)
    assert any(r["status"] == "ok" for r in records)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_small_cases(kernels, run_cells, name, dtype):
    kernel = kernels[name]
    names = small_names(kernel)
    assert len(names) >= 3, "a kernel has small cases for this test: one, odd, …"
    cells = cells_of(kernel, names, [dtype], without=SLOW)
    assert_right(run_cells([c for c in cells if c.implementation != "jax_triton" or c.case.id.startswith("odd/")]))


@pytest.mark.parametrize("name", KERNELS)
def test_options(kernels, run_cells, name):
    kernel = kernels[name]
    options = [{option: value} for option, values in kernel.options.items() for value in values[1:]]
    if options:
        names = [n for n in small_names(kernel) if n.startswith("odd")][:1]
        assert_right(run_cells(list(cells_of(kernel, names, ["float32"], options, without=ONE_OF_EACH))))


@pytest.mark.parametrize("name", KERNELS)
def test_hard_inputs(kernels, run_cells, name):
    names = [n for n in small_names(kernels[name]) if n.startswith("odd")][:1]
    cells = [
        *cells_of(kernels[name], names, ["float32"], without=ONE_OF_EACH, inputs=hard.KINDS[1:]),
        *cells_of(kernels[name], names, ["float16"], without=(*ONE_OF_EACH, "flax"), inputs=hard.KINDS[1:]),
    ]
    assert_right(run_cells(cells))


@pytest.mark.parametrize("name", KERNELS)
def test_torch_compile(kernels, run_cells, name):
    names = [n for n in small_names(kernels[name]) if n.startswith("odd")][:1]
    cells = [c for c in cells_of(kernels[name], names, ["float32"]) if c.implementation in SLOW]
    assert_right(run_cells(cells))


@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_drawn_sizes(kernels, run_cells, name, data):
    kernel = kernels[name]
    largest = max(2, round(SMALL_FLOPS ** (1 / max(3, len(kernel.dimensions)))))
    sizes = {d: data.draw(st.integers(1, largest), label=d) for d in kernel.dimensions}
    case = make_case(kernel, sizes, data.draw(st.sampled_from(DTYPES), label="dtype"))
    if math.prod(sizes.values()) and small(kernel, case):
        assert_right(run_cells(list(cells_of(kernel, [sizes], [case.dtype], without=ONE_OF_EACH))))


def test_a_copy_rounds_nothing(kernels, run_cells):
    cells = cells_of(kernels["launch"], ["odd"], DTYPES, without=SLOW)
    assert all(r["parity"]["max_abs"] == 0 for r in run_cells(list(cells)) if "parity" in r)


@pytest.mark.skipif(DEVICE == "cuda", reason="says what happens without a GPU")
def test_without_a_gpu_triton_is_interpreted_and_never_timed(kernels, run_cells):
    cells = [
        c for c in cells_of(kernels["launch"], ["one"], ["float32"]) if c.implementation in ("triton", "jax_triton")
    ]
    for record in run_cells(cells, time_s=0.01):
        assert record["status"] == "skipped" and "interpreted" in record["reason"]
        assert record["parity"]["ratio"] <= 1 and "timing" not in record
