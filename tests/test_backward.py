"""The backward modes: gradients that are right by differences, cells of every framework, what is judged, kept and refused."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import programs
import pytest
import torch
from conftest import DEVICE
from programs import gradients, layer_gradients
from test_mistakes import worse
from test_parity import few, interpreted

from fusebench import cases, discovery, hard, modes
from fusebench.cases import make_case
from fusebench.contract import MODES, Cell
from fusebench.errors import UsageError
from fusebench.inputs import make_sets
from fusebench.parity import view
from fusebench.parity.judge import Judge
from fusebench.parity.noise import Noisy
from fusebench.parity.rounding import Exact, evaluate
from fusebench.parity.tensor import Random, Tensor
from implementations._shared.numpy import formulas

KERNELS = discovery.find_kernels([discovery.HOME])
WITH = [name for name, kernel in KERNELS.items() if kernel.mathematics.gradient]
COMPILED = ("torch_compile",)  # seconds a cell
STEP = 1e-6


def with_options(name):
    options = KERNELS[name].options
    return [(name, {}), *((name, {o: v}) for o, values in options.items() for v in values[1:])]


def exact_inputs(kernel, case):
    """The inputs in float64, what is not finite made 0."""
    (arrays,) = make_sets(kernel.mathematics, case, 0, 1)
    wide = {n: a if a.dtype.kind in "iub" else a.astype(np.float64) for n, a in arrays.items()}
    return {n: a if a.dtype.kind in "iub" else np.where(np.isfinite(a), a, 0.0) for n, a in wide.items()}


@pytest.mark.parametrize(("name", "options"), [*itertools.chain(*map(with_options, WITH))], ids=str)
def test_a_gradient_is_what_differences_of_the_formula_say(name, options):
    kernel = KERNELS[name]
    mathematics, sizes = kernel.mathematics, few(kernel)
    case = make_case(kernel, sizes, options=options, mode="backward")
    arrays = exact_inputs(kernel, case)
    names = [n for n in arrays if not n.startswith(modes.UPSTREAM)]
    behind = [a for n, a in arrays.items() if n not in names]

    def inner(changed):
        with np.errstate(all="ignore"):
            outputs = evaluate(mathematics.formula, case, Exact(), [changed[n] for n in names])
        return sum(float((o * d).sum()) for o, d in zip(outputs, behind, strict=True))

    with np.errstate(all="ignore"):
        found = evaluate(mathematics.gradient, case, Exact(), list(arrays.values()))
    rng = np.random.default_rng(1)
    for wanted, gradient in zip([n for n in mathematics.gradients if n in arrays], found, strict=True):
        assert gradient.shape == arrays[wanted].shape
        along = rng.standard_normal(arrays[wanted].shape)
        up, down = (inner(arrays | {wanted: arrays[wanted] + sign * STEP * along}) for sign in (1, -1))
        expected, size = (up - down) / (2 * STEP), float(np.abs(gradient * along).sum())
        assert abs(float((gradient * along).sum()) - expected) <= 1e-6 * size + 1e-9, wanted


@pytest.mark.parametrize("name", WITH)
def test_every_float_has_a_gradient_and_every_output_an_upstream_one(name):
    mathematics, case = KERNELS[name].mathematics, make_case(KERNELS[name], few(KERNELS[name]), mode="backward")
    (arrays,) = make_sets(mathematics, case, 0, 1)
    own = {n: a for n, a in arrays.items() if not n.startswith(modes.UPSTREAM)}
    assert {n for n in mathematics.gradients if n in own} == {
        n for n, a in own.items() if a.dtype.kind == "f" and a.ndim
    }
    with np.errstate(all="ignore"):
        outputs = evaluate(
            mathematics.formula, case, Exact(), list(exact_inputs(KERNELS[name], case).values())[: len(own)]
        )
    assert [o.shape for o in outputs] == [a.shape for n, a in arrays.items() if n not in own]


@pytest.mark.parametrize(("name", "options"), [*itertools.chain(*map(with_options, WITH))], ids=str)
def test_the_reference_on_the_device_takes_every_gradient(name, options):
    mathematics, case = (
        KERNELS[name].mathematics,
        make_case(KERNELS[name], "odd", options=options, mode="forward_backward"),
    )
    arrays = exact_inputs(KERNELS[name], case).values()
    formula, points = modes.formula(mathematics, case.mode), ("dz",)
    tensors = [a if a.dtype.kind in "iub" else Tensor(torch.tensor(a)) for a in arrays]
    with np.errstate(all="ignore"):
        here, there = evaluate(formula, case, Exact(), list(arrays)), evaluate(formula, case, Exact(), tensors)
        noisy = evaluate(formula, case, Noisy(case, points, Random("cpu", 0)), tensors)
    for ours, theirs, drawn in zip(here, there, noisy, strict=True):
        assert np.allclose(ours, theirs.tensor.numpy(), 1e-9, 1e-12, equal_nan=True)
        assert np.allclose(ours, drawn.tensor.numpy(), 1e-3, 1e-3, equal_nan=True)


def cells_of(name, dtypes, wanted, without=()):
    kernel = KERNELS[name]
    for dtype, mode in itertools.product(dtypes, wanted):
        case = make_case(kernel, few(kernel), dtype, mode=mode)
        for i in kernel.implementations.values():
            for variant in i.backward if i.name not in without else ():
                cell = Cell(case, i.name, variant)
                if mode == "backward" or not interpreted(kernel, cell):
                    yield cell


def assert_right(records):
    fine = (
        "max_autotune searches GPU kernels",
        "needs an NVIDIA GPU",
        "float32 already",
        "needs ",
        "bfloat16 wrongly",
        "is for option.",
        "on the CPU flex_attention",
    )
    bad = [r for r in records if r.status != "ok" and not (r.status == "skipped" and any(f in r.reason for f in fine))]
    assert not bad, "\n".join(f"{r.id} {r.status}: {r.reason}" for r in bad)
    assert any(r.status == "ok" for r in records)


@pytest.mark.parametrize("name", WITH)
def test_backward_of_all_frameworks(run_cells, name):
    dtypes = ("float32", "float16", "bfloat16") if DEVICE == "cuda" else ("float32",)
    assert_right(run_cells(list(cells_of(name, dtypes, ["backward"], COMPILED))))


@pytest.mark.parametrize("name", WITH)
def test_backward_of_16_bits_and_of_both_in_one_call(run_cells, name):
    # what is compiled or interpreted takes seconds
    without = (*COMPILED, "flax", "triton", "jax_triton") if DEVICE == "cpu" and name != "softmax" else COMPILED
    assert_right(run_cells(list(cells_of(name, ["bfloat16"], ["forward_backward"], without))))


@pytest.mark.parametrize("name", WITH if DEVICE == "cuda" else ["softmax", "embedding"])
def test_backward_of_torch_compile(run_cells, name):
    cells = [c for c in cells_of(name, ["float32"], ["backward"]) if c.implementation in COMPILED]
    assert not cells or assert_right(run_cells(cells)) is None


CORRECT = gradients.CORRECT | layer_gradients.CORRECT
MISTAKES = gradients.MISTAKES | layer_gradients.MISTAKES
PLANTED = {(kernel, name): mistake for kernel, own in MISTAKES.items() for name, mistake in own.items()}


@pytest.mark.parametrize("planted", PLANTED, ids=": ".join)
def test_a_mistake_in_a_gradient_is_rejected_and_nothing_but_the_mistake(planted):
    kernel, mistake = planted[0], PLANTED[planted]
    correct = CORRECT[kernel][mistake.of]
    found = programs.situation(KERNELS[kernel], mistake)
    right, verdict = found.of(correct)
    assert verdict.ok, f"the program without the mistake: {verdict.reason()}"
    wrong = [programs.run(mistake.run, found.case, arrays) for arrays in found.sets][-1]
    verdict = found.judge.judge(wrong, correct.points)
    assert not verdict.problem and not verdict.ok
    if verdict.ratio > 1:
        n = verdict.output
        assert worse(verdict.index, wrong[n], right[n], found.judge.reference()[n])


@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_an_erf_that_is_off_near_0_by_what_torch_is_near_1_is_no_mistake(mode):
    """Torch's GELU on a CPU was called wrong of small numbers, and so was what torch.compile made of it."""
    kernel = KERNELS["add_mul_act"]
    case = make_case(kernel, "odd", options={"activation": "gelu_erf"}, mode=mode)
    (arrays,) = make_sets(kernel.mathematics, case, 0, 1, "small")
    x, z, multiplier, b, *dy = (a.astype(np.float64) for a in arrays.values())
    value = x + multiplier * z + b
    off = np.random.default_rng(0).uniform(-5, 5, value.shape) * 2.0**-24  # of half of erf
    if mode == "forward":
        made = [formulas.activate("gelu_erf", value, Exact()) + value * off]
    else:
        slope = formulas.pulled_back("gelu_erf", value, dy[0], Exact()) + dy[0] * off
        made = [slope, slope * multiplier, slope.sum(axis=0)]
    verdict = Judge(kernel.mathematics, case, arrays, kind="small").judge([m.astype(np.float32) for m in made], ())
    assert verdict.each_ok, verdict.reason()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_relu_that_is_open_at_0_is_beyond_the_budget_of_single_elements(dtype):
    """Hard inputs are judged element by element in each run: a sum of zeros has no noise that opens it."""
    case = make_case(KERNELS["add_mul_act"], "odd", dtype, mode="backward")
    (arrays,) = make_sets(KERNELS["add_mul_act"].mathematics, case, 0, 1, "zeros")
    judge = Judge(KERNELS["add_mul_act"].mathematics, case, arrays, kind="zeros")
    verdicts = [
        judge.judge(programs.run(layer_gradients.add_mul_act(slope=slope), case, arrays), ())
        for slope in (layer_gradients.positive, lambda z: (z >= 0).astype(np.float32))
    ]
    assert [v.each_ok for v in verdicts] == [True, False], [v.reason() for v in verdicts]


@pytest.mark.parametrize(("kernel", "name"), [(k, n) for k, own in CORRECT.items() for n in own])
@pytest.mark.parametrize(
    ("dtype", "precision"), [("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee"), ("bfloat16", "ieee")]
)
def test_right_gradients_pass(kernel, name, dtype, precision):
    program = CORRECT[kernel][name]
    if precision not in KERNELS[kernel].mathematics.precisions:
        pytest.skip("has no products")
    assert_accepted(program, make_case(KERNELS[kernel], "odd", dtype, precision, mode="backward"))


def assert_accepted(program, case):
    """The verdict on a correct program of a case that it is for, on three input sets."""
    if not program.where(case):
        pytest.skip("is for other dtypes")
    for seed in range(3):
        _, verdict = programs.situation_of(KERNELS[case.kernel], case, seed).of(program)
        assert verdict.ok, verdict.reason()


@pytest.mark.parametrize(
    ("kernel", "sizes", "options"),
    [("padded_attention", {"B": 16, "H": 2, "T": 2, "D": 8}, {"padding": "none"}), ("padded_attention", {"B": 16, "H": 2, "T": 2, "D": 8}, {"padding": "one"}),
     ("lola", {"M": 37, "K": 1, "N": 5}, {}), ("lola", {"M": 37, "K": 2, "N": 33}, {}), ("lola", {"M": 64, "K": 3, "N": 9}, {"activation": "none"})],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(
    ("dtype", "precision"), [("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee"), ("bfloat16", "ieee")]
)
def test_what_is_left_of_two_sums_that_cancel_is_no_mistake(kernel, sizes, options, dtype, precision):
    """A token that sees itself alone has dprobabilities - delta, a row of one column dn - mean(dn): 0, of sums that programs compute apart."""
    case = make_case(KERNELS[kernel], sizes, dtype, precision, options, "backward")
    for program in CORRECT[kernel].values():
        if program.where(case):
            assert_accepted(program, case)


def test_the_mode_is_part_of_a_case_and_of_the_command_that_shows_it_again():
    config = {"kernel": "softmax", "case": "odd", "shapes": None, "shape": {}, "option": {}, "batch": None, "dtype": "float16",
              "precision": "ieee", "mode": "all", "implementation": "flax:float32", "seed": 0, "inputs": "plain"}  # fmt: skip
    cells = cases.select_cells(KERNELS, config)
    assert [c.case.mode for c in cells] == list(MODES)
    assert [c.case.id for c in cells] == ["odd/float16", "odd/float16/backward", "odd/float16/forward_backward"]
    assert "mode=backward" in cases.command(KERNELS["softmax"], cells[1], "cpu")
    assert "mode=" not in cases.command(KERNELS["softmax"], cells[0], "cpu")
    with pytest.raises(UsageError, match="mode=forward: leave out mode=backward"):
        cases.select_cells(KERNELS, config | {"published": True, "mode": "backward"})
    with pytest.raises(UsageError, match="unknown mode 'backwards'"):
        cases.select_cells(KERNELS, config | {"mode": "backwards"})


def test_what_computes_forward_alone_is_skipped_with_the_reason(run_cells):
    without = make_case(KERNELS["launch"], "one", mode="backward")
    with_ = make_case(KERNELS["softmax"], "one", mode="backward")
    records = run_cells([Cell(without, "torch_eager", "default"), Cell(with_, "triton", "persistent")])
    assert [r.status for r in records] == ["skipped", "skipped"]
    assert "has no gradient" in records[0].reason and "BACKWARD of its file names row, online" in records[1].reason


def test_a_sigmoid_that_is_a_subnormal_may_be_rounded_as_one(run_cells):
    """Torch stores that of -16 in float16, whose own steps would overflow: the budget was that of a sigmoid of 0."""
    case = make_case(KERNELS["splacc"], {"M": 64, "K": 64, "N": 64}, "float16", mode="backward")
    (record,) = run_cells([Cell(case, "torch_eager", "default", inputs="large_mean")])
    assert record.status == "ok", record.reason


def test_a_gradient_leaves_open_what_nan_and_infinities_give():
    case = make_case(KERNELS["softmax"], "odd", mode="backward")
    kinds = hard.kinds(KERNELS["softmax"].mathematics, case)
    floats = ("plain", "large_mean", "equal", "subnormal", "large", "small", "zeros", "wide")
    assert kinds == (*floats, "upstream", "negative")


def test_inputs_that_a_mode_has_not_are_skipped_with_its_reason(run_cells):
    kernel, backward = KERNELS["softmax"], make_case(KERNELS["softmax"], "odd", mode="backward")
    forward = make_case(kernel, "odd")
    records = run_cells(
        [Cell(case, "torch_eager", "default", inputs=i) for case, i in ((backward, "nan"), (forward, "upstream"))]
    )
    assert [r.status for r in records] == ["skipped"] * 2
    assert records[0].reason == "the gradient of softmax leaves open what nan inputs give in float32"
    assert records[1].reason == "upstream inputs are for the backward modes: forward has no upstream gradients"


@pytest.mark.parametrize(
    ("kernel", "stores"), [("geglu", "two_accumulators"), ("splacc", "two_accumulators"), ("fused_mlp", "default")]
)
def test_a_variant_that_recomputes_keeps_nothing_but_the_inputs(run_cells, kernel, stores):
    case = make_case(KERNELS[kernel], "one", "float32", mode="backward")
    cells = [Cell(case, name, variant) for name in ("triton", "jax_triton") for variant in (stores, "recompute")]
    records = run_cells(cells)
    assert [r.status for r in records] == ["ok"] * 4
    kept, again, kept_in_jax, again_in_jax = (r.build.saved_bytes for r in records)
    assert kept == kept_in_jax > 0 == again == again_in_jax


def test_a_record_says_what_residuals_keep(run_cells):
    case = make_case(KERNELS["softmax"], "odd", mode="backward")
    cells = [Cell(case, implementation, "default") for implementation in ("torch_eager", "flax")]
    cells.append(Cell(replace(case, mode="forward", id="odd/float32"), "torch_eager", "default"))
    records = run_cells(cells)
    assert [r.status for r in records] == ["ok"] * 3
    y, statistics = 37 * 131 * 4, 2 * 37 * 4  # x is an input
    eager, flax, forward = (r.build.saved_bytes for r in records)
    assert (eager, forward) == (y, None) and y <= flax <= y + statistics


@pytest.mark.parametrize("mode", MODES)
def test_inputs_are_the_same_in_every_mode_and_upstream_differs_from_set_to_set(mode):
    kernel = KERNELS["lola"]
    a, b = make_sets(kernel.mathematics, make_case(kernel, "odd", "bfloat16", mode=mode), 3, 2)
    forward = make_sets(kernel.mathematics, make_case(kernel, "odd", "bfloat16"), 3, 2)[0]
    assert all(np.array_equal(a[n].view(np.uint16), forward[n].view(np.uint16)) for n in forward)
    behind = [n for n in a if n not in forward]
    assert behind == ([] if mode == "forward" else ["gradient of y"])
    assert all(a[n].dtype.name == "bfloat16" and not np.array_equal(a[n], b[n]) for n in behind)


@pytest.fixture
def of_large(monkeypatch):
    """A judge to whom lola's odd case is a large one."""
    monkeypatch.setattr(view, "JUDGED_FLOPS", 1e5)
    monkeypatch.setattr(view, "DRAWN_ELEMENTS", 3000)
    case = make_case(KERNELS["lola"], "odd", mode="backward")
    (arrays,) = make_sets(KERNELS["lola"].mathematics, case, 0, 1)
    return Judge(KERNELS["lola"].mathematics, case, arrays, rows_seed=5)


def test_of_a_large_case_all_rows_are_evaluated_and_some_elements_compared(of_large):
    right = programs.run(gradients.CORRECT["lola"][gradients.F].run, of_large.case, of_large.arrays)
    verdict = of_large.judge(right, ())
    assert verdict.ok and verdict.some_rows and of_large.view.judged is None
    seen = 22 * 131 + 14 * 203 + 203  # of dx, dW and db
    assert verdict.checked == seen and f"{seen} of {37 * 131 + 131 * 203 + 203} elements" in of_large.undrawn()


@pytest.mark.parametrize("name", ["last row missing from dW", "LayerNorm's mean forgotten", "last row missing from db"])
def test_a_mistake_shows_in_the_elements_that_are_drawn(of_large, name):
    wrong = programs.run(gradients.MISTAKES["lola"][name].run, of_large.case, of_large.arrays)
    verdict = of_large.judge(wrong, ())
    assert not verdict.ok and not verdict.problem
    output = wrong[verdict.output]
    assert verdict.ratio <= 1 or verdict.got == pytest.approx(float(output[tuple(verdict.index)]))


def test_numpy_makes_no_more_draws_of_what_it_would_need_all_rows_for(of_large, monkeypatch):
    right = programs.run(gradients.CORRECT["lola"][gradients.F].run, of_large.case, of_large.arrays)
    assert of_large.judge(right, ()).ok
    monkeypatch.setattr(Judge, "_mean_limits", lambda *_: (1.0, 2.0))
    monkeypatch.setattr(Judge, "_evaluate", lambda *_: pytest.fail("evaluated again"))
    verdict = of_large.judge(right, ())
    assert verdict.each_ok and not verdict.ok


def test_a_point_that_no_gradient_has_is_named(of_large):
    right = programs.run(gradients.CORRECT["lola"][gradients.F].run, of_large.case, of_large.arrays)
    assert re.match(
        "BACKWARD names the point 'nosuch'; the formula has .*dn, dz", of_large.judge(right, ("nosuch",)).problem
    )
