"""Hard inputs by default: an implementation that is wrong on them is wrong in every case, and is looked at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import FIXTURES
from samples import Pool, Worker

from fusebench import discovery, hard
from fusebench.cases import make_case
from fusebench.contract import Cell
from fusebench.hard_check import aligned_case, odd_case, small_case
from fusebench.run import run
from fusebench.settings import Run, Settings
from fusebench.timing.plan import Plan
from fusebench.workers.bench import Bench
from fusebench.workers.pool import InlinePool
from fusebench.workers.protocol import BuildCell, Refused, TryCell

ROOTS = discovery.roots_of([FIXTURES / "faults"])
KERNELS = discovery.find_kernels([FIXTURES / "faults"])
EVERY = hard.kinds(KERNELS["rectified"].mathematics, make_case(KERNELS["rectified"], "odd"))[1:]  # of floats


class Watched(InlinePool):
    """Workers in this process, and what they were asked."""

    def get(self, backend, python, beside=False):
        worker = super().get(backend, python, beside)
        if not hasattr(self, "asked"):
            self.asked = []
            ask = worker.ask
            worker.ask = lambda request, *rest: (self.asked.append(request), ask(request, *rest))[1]
        return worker


def done(tmp_path, *cells, on_hard=True, kernels=KERNELS):
    """The records of the cells, and what the worker was asked."""
    this = Run(kernels, ROOTS, tmp_path, Settings("cpu", Plan(0.0), inline=True, hard=on_hard))
    pool = Watched("cpu", ROOTS)
    return list(run(this, cells, pool)), pool.asked


def cell(kernel, name, case="small", **more):
    return Cell(make_case(KERNELS[kernel], case), name, "default", **more)


@pytest.mark.parametrize("case", ["small", "odd"])
@pytest.mark.parametrize(
    ("kernel", "fault", "twin", "kind"),
    [
        ("rectified", "loses_nan", "keeps_nan", "nan"),
        ("exponentials", "without_maximum", "with_maximum", "large_mean"),
        ("exponentials", "prepares_answer", "with_maximum", "large_mean"),
        ("exponentials", "from_zero", "with_maximum", "negative"),
    ],
)
def test_what_is_right_on_plain_inputs_alone_is_wrong(tmp_path, kernel, fault, twin, kind, case):
    (wrong, right), _ = done(tmp_path, cell(kernel, fault, case), cell(kernel, twin, case))
    assert wrong.status == "wrong" and wrong.reason.startswith(f"{kind} inputs, case odd/float32: ")
    again = f"fusebench parity kernel={kernel} implementation={fault}:default case=odd dtype=float32"
    assert wrong.reproduce.startswith(again) and f" inputs={kind} " in wrong.reproduce
    assert right.status == "ok" and right.parity.hard == EVERY
    assert kind not in wrong.parity.hard


def test_inputs_plain_leaves_them_out_and_so_do_cells_with_hard_inputs_of_their_own(tmp_path):
    (record,), asked = done(tmp_path, cell("rectified", "loses_nan"), on_hard=False)
    assert record.status == "ok" and record.parity.hard == () and not any(isinstance(m, TryCell) for m in asked)
    (record,), asked = done(tmp_path, cell("rectified", "loses_nan", inputs="inf"))
    assert record.status == "ok" and not any(isinstance(m, TryCell) for m in asked)


def test_an_implementation_is_looked_at_once_in_each_case_and_as_it_was_built(tmp_path):
    cells = [cell("rectified", "keeps_nan", case, seed=seed) for seed in (0, 1) for case in ("odd", "small")]
    records, asked = done(tmp_path, *cells)
    assert [r.status for r in records] == ["ok"] * 4 and {r.parity.hard for r in records} == {EVERY}
    assert sum(isinstance(m, BuildCell) for m in asked) == 4, "the small case is one like itself"
    assert sum(isinstance(m, TryCell) for m in asked) == 2 * len(EVERY)


def test_hard_inputs_are_those_of_the_seed_that_the_command_to_see_them_again_has(tmp_path):
    (right, wrong), asked = done(
        tmp_path, cell("rectified", "keeps_nan", "odd"), cell("rectified", "loses_nan", "odd", seed=1)
    )
    assert (right.status, wrong.status) == ("ok", "wrong") and " seed=1" in wrong.reproduce
    files = [Path(m.folder, m.files[0].file) for m in asked if isinstance(m, TryCell)]
    assert len(files) == len(set(files)), "none has the inputs of the other seed"


def test_a_wrong_implementation_is_built_in_no_other_case(tmp_path):
    records, asked = done(tmp_path, *[cell("rectified", "loses_nan", seed=seed) for seed in (0, 1)])
    assert [r.status for r in records] == ["wrong", "wrong"] and records[0].reason == records[1].reason
    assert {m.case.id for m in asked if isinstance(m, BuildCell)} == {"odd/float32"}


def test_an_exception_on_hard_inputs_names_them(tmp_path):
    (record,), _ = done(tmp_path, cell("rectified", "raises_on_nan"))
    assert record.status == "failed" and record.reason.startswith("nan inputs, case odd/float32: ValueError: NaN")
    assert "raises_on_nan.py" in record.traceback


def test_what_does_not_build_in_the_odd_case_alone_has_failed_there(tmp_path):
    lost = Refused("failed", "it does not build", "at line 3")
    pool = Pool(Worker({BuildCell: lambda asked: lost if asked.case.id.startswith("odd") else {}}))
    this = Run(KERNELS, ROOTS, tmp_path, Settings("cpu", Plan(0.0), hard=True))
    (record,) = run(this, [cell("fault", "a_fine")], pool)
    said = (record.status, record.reason, record.traceback)
    assert said == ("failed", "case odd/float32: it does not build", "at line 3")


@pytest.mark.parametrize("case", ["small", {"M": 1280, "N": 1024}])
def test_what_is_wrong_only_where_vectors_divide_a_row_is_found_on_such_a_case(tmp_path, case):
    (record,), _ = done(tmp_path, cell("rectified", "not_odd", case))
    like = "small" if case == "small" else "M=64,N=1024"
    assert record.status == "wrong" and record.reason.startswith(f"nan inputs, case {like}/float32: ")
    (right,), _ = done(tmp_path, cell("rectified", "keeps_nan", case))
    assert right.status == "ok" and right.parity.hard == EVERY


def test_beside_the_odd_case_itself_stands_one_that_vectors_divide(tmp_path):
    cases = {"uneven": {"M": 100, "N": 70}, "even": {"M": 1280, "N": 1024}, "odd": {"M": 7, "N": 13}}
    mathematics = replace(KERNELS["rectified"].mathematics, cases=cases)
    kernel = replace(KERNELS["rectified"], mathematics=mathematics)
    odd = make_case(kernel, "odd", "float16")
    assert aligned_case(kernel, odd).id == "M=64,N=64/float16"
    assert aligned_case(KERNELS["rectified"], odd).id == "odd/float16", "it has no case of that size"
    kernels = KERNELS | {"rectified": kernel}
    cells = [Cell(make_case(kernel, "odd"), name, "default") for name in ("only_even", "keeps_nan")]
    (wrong, right), _ = done(tmp_path, *cells, kernels=kernels)
    assert wrong.status == "wrong" and wrong.reason.startswith("nan inputs, case M=64,N=64/float32: ")
    assert right.status == "ok" and right.parity.hard == EVERY


@pytest.mark.parametrize(
    ("cases", "like"),
    [
        ({"uneven": {"M": 1280, "N": 70}, "short": {"M": 1280, "N": 9}}, "M=64,N=9"),  # 9 is less than a vector
        ({"nearly": {"M": 1000, "N": 128}}, "M=104,N=128"),  # what is left of whole tiles stays, and so do two of them
    ],
)
def test_the_case_that_vectors_divide_is_cut_to_one_tile_and_what_is_left(cases, like):
    mathematics = replace(KERNELS["rectified"].mathematics, cases=cases | {"odd": {"M": 7, "N": 13}})
    kernel = replace(KERNELS["rectified"], mathematics=mathematics)
    assert aligned_case(kernel, make_case(kernel, "odd", "float16")).id == f"{like}/float16"


@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_outputs_and_gradients_are_looked_at_on_both_cases(tmp_path, mode):
    kernels = discovery.find_kernels(ROOTS)
    odd = make_case(kernels["softmax"], "odd", mode=mode)
    (record,), asked = done(tmp_path, Cell(odd, "torch_eager", "default"), kernels=kernels)
    built = {request.case.id for request in asked if isinstance(request, BuildCell)}
    assert record.status == "ok" and odd.id in built and len(built) == 2


def test_what_cannot_do_one_of_the_cases_is_right_by_the_other(tmp_path, monkeypatch):
    build = Bench.build

    def built(bench, asked):
        return Refused("skipped", "too small") if asked.case.id.startswith("M=64") else build(bench, asked)

    monkeypatch.setattr(Bench, "build", built)
    (record,), _ = done(tmp_path, cell("rectified", "keeps_nan", {"M": 1280, "N": 1024}))
    assert record.status == "ok" and record.parity.hard == EVERY


def test_files_of_hard_inputs_that_somebody_else_wrote_fail_the_cell(tmp_path, monkeypatch):
    try_on = Bench.try_on

    def tried(bench, asked):
        file = Path(asked.folder) / asked.files[0].file
        file.write_bytes(file.read_bytes())
        return try_on(bench, asked)

    monkeypatch.setattr(Bench, "try_on", tried)
    (record,), _ = done(tmp_path, cell("rectified", "keeps_nan"))
    assert record.status == "failed" and record.reason.endswith(
        "of the run was changed while it ran: no cell may write there"
    )


@pytest.mark.parametrize("name", ["keeps_weight", "keeps_identity"])
def test_hard_inputs_come_with_other_weights_in_the_arrays_of_the_first(tmp_path, name):
    (record,), _ = done(tmp_path, cell("weighted", name))
    assert record.status == "wrong" and record.reason.startswith("large_mean inputs, case small/float32: ")
    (plain,), _ = done(tmp_path, cell("weighted", name), on_hard=False)
    assert plain.status == "ok", "in which all calls have the same"


@pytest.mark.parametrize("case", ["small", "odd"])
@pytest.mark.parametrize(
    ("variant", "kind"),
    [
        ("no_padding", "lower_edge"),
        ("negative_id", "lower_edge"),
        ("all_padding", "upper_edge"),
        ("much_padding", "between"),
    ],
)
def test_what_is_wrong_at_the_edge_of_an_integer_alone_is_wrong(tmp_path, variant, kind, case):
    at = make_case(KERNELS["limits"], case)
    (wrong, right), _ = done(tmp_path, *[Cell(at, "mistaken", name) for name in (variant, "honest")])
    assert wrong.status == "wrong" and wrong.reason.startswith(f"{kind} inputs, case odd/float32: ")
    assert f" inputs={kind} " in wrong.reproduce and kind not in wrong.parity.hard
    assert right.status == "ok" and right.parity.hard == hard.kinds(KERNELS["limits"].mathematics, at)[1:]
    floats = replace(KERNELS["limits"].mathematics, edges=None)
    kernels = KERNELS | {"limits": replace(KERNELS["limits"], mathematics=floats)}
    (without,), _ = done(tmp_path, Cell(at, "mistaken", variant), kernels=kernels)
    assert without.status == "ok" and without.parity.hard == EVERY


def test_a_case_is_made_small_so_that_the_same_numbers_divide_it():
    kernel, rectified = KERNELS["rectified"], KERNELS["rectified"].mathematics

    def cut(operations, **sizes):
        """Where a case takes so many operations for each element."""
        flops = lambda case: operations * case.sizes["M"] * case.sizes["N"]  # noqa: E731
        costly = replace(kernel, mathematics=replace(rectified, flops=flops))
        return small_case(costly, make_case(kernel, sizes, "float16", mode="forward")).sizes

    case = make_case(kernel, {"M": 128, "N": 50257}, "float16")
    assert (
        small_case(kernel, case).sizes == {"M": 128, "N": 320 + 50257 % 64}
        and small_case(kernel, case).dtype == "float16"
    )
    assert small_case(kernel, itself := make_case(kernel, {"M": 300, "N": 500}, "float16")) is itself
    assert cut(1, M=10**6 + 5, N=1000) == {"M": 64 + (10**6 + 5) % 64, "N": 1000}, "the batch alone"
    assert cut(700, M=10**6 + 5, N=5000) == {"M": 320 + (10**6 + 5) % 64, "N": 320 + 5000 % 64}
    assert cut(1, M=100, N=10**4) == {"M": 100, "N": 320 + 10**4 % 64}, "little is moved of what may be a long table"
    assert cut(10**4, M=100, N=5000) == {"M": 2, "N": 320 + 5000 % 64}
    assert cut(10**6, M=100, N=5000) == {"M": 100, "N": 64 + 5000 % 64}, "whatever it takes"


def test_kinds_that_the_kernel_does_not_define_are_left_out(tmp_path):
    mathematics = replace(KERNELS["rectified"].mathematics, hard=lambda case: {"inf": ("x",)})
    kernels = KERNELS | {"rectified": replace(KERNELS["rectified"], mathematics=mathematics)}
    (record,), _ = done(tmp_path, cell("rectified", "loses_nan"), kernels=kernels)
    assert record.status == "ok" and record.parity.hard == ("inf",)


def test_the_odd_case_has_the_dtype_of_the_cell_and_a_kernel_without_one_its_smallest():
    case = make_case(KERNELS["rectified"], "small", "float16")
    assert odd_case(KERNELS["rectified"], case).id == odd_case(KERNELS["rectified"], case, few=True).id == "odd/float16"
    large = {"odd": {"M": 9, "N": 9}}
    kernel = replace(KERNELS["rectified"], mathematics=replace(KERNELS["rectified"].mathematics, cases=large))
    assert odd_case(kernel, case, few=True).sizes == {"M": 7, "N": 9}, "interpreted"
    cases = {"large": {"M": 9, "N": 9}, "little": {"M": 2, "N": 2}}
    kernel = replace(KERNELS["rectified"], mathematics=replace(KERNELS["rectified"].mathematics, cases=cases))
    assert odd_case(kernel, case).id == "little/float16"


def test_sums_that_overflow_are_left_out_unless_the_kernel_defines_them(tmp_path):
    mathematics = replace(KERNELS["rectified"].mathematics, precisions=("ieee", "tf32"))
    kernels = KERNELS | {"rectified": replace(KERNELS["rectified"], mathematics=mathematics)}
    (record,), _ = done(tmp_path, cell("rectified", "keeps_nan"), kernels=kernels)
    assert record.status == "ok" and record.parity.hard == tuple(kind for kind in EVERY if kind != "extreme")
