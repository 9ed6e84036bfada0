"""The reference on the device: Torch's float64 gives what NumPy's does, for every kernel's formula, and finds what is wrong."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import toys
from test_formulas import KERNELS, cases, evaluated, given
from toys import copied, edit, step, store

from fusebench import discovery
from fusebench.case_data import CaseData
from fusebench.cases import make_case
from fusebench.contract import DTYPES, Cell
from fusebench.dtypes import numpy_dtype
from fusebench.inputs import make_sets, save
from fusebench.machine import DeviceInfo
from fusebench.parity import reference
from fusebench.parity.judge import Judge
from fusebench.parity.reference import Tensor
from fusebench.parity.rounding import spacing, stored
from fusebench.parity.verdict import Worst
from fusebench.settings import Clock, Settings
from fusebench.workers import protocol
from fusebench.workers.pool import WorkerLost
from fusebench.workers.reference import Reference

INF, NAN = np.inf, np.nan


@pytest.fixture(autouse=True)
def the_projects_kernels():
    """The reference imports kernel.py by name, and other tests look for kernels elsewhere."""
    discovery.use_roots([discovery.HOME])


def tensors(arguments):
    return [a if a.dtype.kind in "iub" else Tensor(torch.from_numpy(a.copy())) for a in arguments]


@pytest.mark.parametrize("name", KERNELS)
def test_torch_evaluates_every_formula(name):
    kernel = KERNELS[name]
    for case in cases(name):
        arguments = given(kernel, case)
        for part_ in ("", *kernel.mathematics.parts):
            expected = evaluated(kernel, case, arguments, part_)
            got = evaluated(kernel, case, tensors(arguments), part_)
            np.testing.assert_allclose(
                got.tensor.numpy(), expected, rtol=1e-12, atol=1e-14, err_msg=f"{name} {case.id}"
            )


# What it finds


def over_the_pipe(request, expected):
    """What the reference's worker replies."""
    reply = Reference("cpu").do(protocol.decode_request(protocol.encode(request)))
    return protocol.decode_reply(protocol.encode(reply), expected)


@pytest.fixture
def check(tmp_path, monkeypatch):
    """What the reference finds of all rows of a toy's outputs: check(formula, x, outputs, screens=…)."""

    def checked(
        formula, x, outputs, screens=((0.0, 1.0),), dtype="float32", axes=(0, 0), part="", flops=0, moved=0, **arrays
    ):
        rows = dict(zip("xy", axes, strict=True))
        module = toys.module(formula, flops, moved, rows, PARTS={"twice": lambda case, r, x: 2 * x})
        monkeypatch.setitem(sys.modules, "implementations.toy.kernel", module)
        arrays = {"x": store(x, dtype), **arrays}
        files = (
            save(list(arrays.values()), tmp_path, "input"),
            save([store(o, dtype) for o in outputs], tmp_path, "output"),
        )
        request = protocol.CheckRows(
            toys.case(dtype), *map(tuple, files), screens, tuple(rows.get(name) for name in arrays), axes[1:] * len(outputs), part,
            str(tmp_path),
        )  # fmt: skip
        return over_the_pipe(request, protocol.CheckedRows).worst

    return checked


X = np.random.default_rng(0).uniform(1, 2, (10, 3)).astype(np.float32)


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 9, 10, 99])
@pytest.mark.parametrize("axes", [(0, 0), (1, 1), (0, 1), (1, 0), (-1, -1)], ids=str)
def test_every_row_of_every_chunk_is_compared(check, monkeypatch, chunk, axes):
    """Each one changed by a step is found, the first and the last of a chunk too; rows of x lie along the first of the axes,
    those of y along the second."""
    monkeypatch.setattr(reference, "CHUNK_ELEMENTS", 3 * chunk)
    x, y = (X if axis == 0 else X.T.copy() for axis in axes)
    formula = copied if axes[0] == axes[1] else lambda case, r, x: (x.T,)
    for row in range(10):
        place = (row, 1) if axes[1] == 0 else (1, row)
        found = check(formula, x, [edit(y, place, step(y[place], "float32"))], axes=axes, moved=4 * x.size)
        assert (found.beyond, found.index) == (1, place)
        assert found.ratio == pytest.approx(2) and found.ulps == pytest.approx(1) and found.output == 0
        assert found.expected == y[place] and found.got > y[place] and found.max_abs == found.got - y[place]
        assert found.budget == 2.0**-24
    assert check(formula, x, [y], axes=axes, moved=4 * x.size) == Worst()


@pytest.mark.parametrize(
    ("size", "chunk"),
    [
        ({}, 50),
        ({"moved": 4e8}, 50),
        ({"moved": 4.1e8}, 48),
        ({"moved": 4e9}, 5),
        ({"flops": 3.2e9}, 50),
        ({"flops": 3.2e10}, 5),
        ({"flops": 1e16}, 1),
    ],
)
def test_as_many_rows_at_once_as_memory_holds(check, size, chunk):
    """10^8 elements of intermediate results: 0.8 GB of each in float64."""
    seen = []

    def formula(case, r, x):
        seen.append(r.chosen)
        assert x.shape == (len(r.chosen), 1) and x.dtype == np.float64
        np.testing.assert_array_equal(x.tensor.numpy()[:, 0], r.chosen)
        return (x,)

    x = np.arange(50.0)[:, None]
    assert check(formula, x, [x], **size).beyond == 0
    assert {len(rows) for rows in seen[:-1]} <= {chunk} and len(seen[0]) == chunk
    np.testing.assert_array_equal(np.concatenate(seen), np.arange(50))


def test_inputs_that_have_no_rows_are_whole_in_every_chunk(check, monkeypatch):
    monkeypatch.setattr(reference, "CHUNK_ELEMENTS", 9)

    def formula(case, r, x, b, n):
        assert isinstance(b, Tensor) and b.dtype == np.float64 and n.dtype == np.int32 and n.shape == (1,)
        return (x * b + 0.0 * n[0],)

    b = np.array([1.0, 2.0, 4.0], np.float32)
    assert check(formula, X, [X * b], b=b, n=np.array([3], np.int32), moved=4 * X.size).beyond == 0


def test_the_worst_of_all_outputs_and_chunks_is_told(check, monkeypatch):
    monkeypatch.setattr(reference, "CHUNK_ELEMENTS", 9)
    x = np.full((10, 3), 1.0)
    first, second = (edit(x, (9, 2), 1 + 2.0**-21), edit(2 * x, (4, 1), 2 + 2.0**-18))
    screens = ((2.0**-24, 1.0), (2.0**-22, 2.0))
    found = check(
        lambda case, r, x: (x, 2 * x), x, [edit(first, (0, 0), 1 - 2.0**-22), second], screens, moved=4 * x.size
    )
    assert (found.output, found.index, found.beyond) == (1, (4, 1), 3)
    assert found.max_abs == 2.0**-18 and found.budget == 2.0**-22 + 2.0**-23 and found.ulps == 16
    assert found.ratio == pytest.approx(2.0**-18 / (2.0**-22 + 2.0**-23))
    found = check(lambda case, r, x: (x, 2 * x), x, [first, 2 * x], screens, moved=4 * x.size)
    assert (found.output, found.index, found.beyond) == (0, (9, 2), 1)


def test_a_part_is_compared_with_its_own_formula(check):
    assert check(copied, X, [2 * X], part="twice").beyond == 0 and check(copied, X, [X], part="twice").beyond == 30


@pytest.mark.parametrize("expected", [1.0, -1.0, INF, -INF, NAN])
@pytest.mark.parametrize("got", [1.0, -1.0, INF, -INF, NAN])
def test_what_is_not_finite_stands_where_the_formula_has_it(check, expected, got):
    x = edit(np.full((4, 3), 2.0), (2, 1), expected)
    found = check(copied, x, [edit(x, (2, 1), got)], ((0.01, 2.0),))
    same = got == expected or (np.isnan(got) and np.isnan(expected))
    assert found.beyond == (not same)
    if not same:
        assert found.index == (2, 1) and found.ratio > 10
        assert found.max_abs == (2.0 if np.isfinite([got, expected]).all() else INF)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_overflow_is_right_within_reach_of_the_largest_number_and_to_its_side(check, dtype, sign):
    largest = float(torch.finfo(getattr(torch, dtype)).max)
    for value, infinite_may_be in ((0.98 * largest, False), (0.995 * largest, True), (largest, True)):
        x = np.full((4, 3), sign * value)
        screens = ((0.01 * largest, largest),)
        found = check(copied, x, [edit(store(x, dtype), (2, 1), sign * INF)], screens, dtype)
        assert found.beyond == (not infinite_may_be)
        for wrong in (-sign * INF, NAN):
            assert check(copied, x, [edit(store(x, dtype), (2, 1), wrong)], screens, dtype).beyond == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_screen_is_half_a_spacing_and_its_reach_which_grows_with_the_value(check, dtype):
    """For values of every size, subnormals and zero among them, up to the size that was judged and beyond."""
    rng = np.random.default_rng(1)
    smallest = float(torch.finfo(getattr(torch, dtype)).smallest_normal)
    x = store(
        np.concatenate([[0.0, smallest, smallest / 2, smallest * 1.99, 1.0, 0.999, -2.0], rng.normal(0, 4, 3)]), dtype
    )[:, None]
    for reach, size in ((0.0, 1.0), (smallest, 3.0), (0.1, 3.0), (0.1, 0.0)):
        for row, value in enumerate(x.astype(float)[:, 0]):
            far = reach * max(1.0, abs(value) / (size or 1.0))
            limit = far + spacing(np.array(abs(value) + far), dtype) / 2
            output = store(edit(x.astype(float), (row, 0), value + 64 * limit), dtype)
            if not np.isfinite(float(output[row, 0])):
                continue
            found = check(copied, x, [output], ((reach, size),), dtype)
            assert found.budget == pytest.approx(float(limit), rel=1e-12) and found.index == (row, 0)
            assert found.ratio == pytest.approx(abs(float(output[row, 0]) - value) / limit)


def test_the_worker_says_what_it_is():
    worker = Reference("cpu")
    assert worker.info() == protocol.WorkerInfo(DeviceInfo("cpu"), {}, "", False)
    assert worker.usable() and worker.do(protocol.Release()) == protocol.Released(0)
    with pytest.raises(ValueError, match="the reference does no RepeatCell"):
        worker.do(protocol.RepeatCell("folder"))


# The verdict after it, as a run on a GPU has it: the worker is one in this process, on the CPU


class Worker:
    def __init__(self, answer=None):
        self.asked, self.answer = [], answer

    def ask(self, request, expected, timeout_s):
        self.asked.append(type(request))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        return over_the_pipe(request, expected)


class Pool:
    def __init__(self, worker):
        self.worker, self.dropped = worker, []

    def get(self, *home, beside=False):
        assert beside and home[0] == "reference"
        return self.worker

    def drop(self, *home):
        self.dropped.append(home)


TALL = {"M": 200, "N": 7}  # more elements than are judged here


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """add_relu's inputs in a case whose rows are chosen, as a run on that device has them."""
    monkeypatch.setattr("fusebench.parity.judge.JUDGED_ELEMENTS", 1e3)

    def made(device="cuda"):
        kernel = KERNELS["add_relu"]
        return CaseData(
            kernel.mathematics,
            Cell(make_case(kernel, TALL), "torch_eager", "default"),
            tmp_path,
            Settings(device),
            Clock(),
        )

    return made


def judged(data, pool, wrong=None, set_=1):
    x, b = (data.sets[set_][n] for n in ("x", "b"))
    output = np.maximum(x + b, np.float32(0))
    if wrong:
        output[wrong] += np.float32(9)
    return data.judge(save([output], data.folder, "output"), (), "", set_, pool)


def unjudged(judge):
    return next(r for r in range(100, 200) if r not in judge.judged)


def test_on_a_gpu_all_rows_are_compared(shared):
    data, worker = shared(), Worker()
    pool = Pool(worker)
    verdict = judged(data, pool)
    assert verdict.ok and not verdict.unseen and verdict.checked == 200 * 7
    assert worker.asked == [protocol.CheckRows, protocol.Release] and not pool.dropped
    (judge,) = data.judges.values()
    row = unjudged(judge)
    wrong = judged(data, pool, (row, 5))
    assert (
        not wrong.ok
        and wrong.index == (row, 5)
        and wrong.pattern == "1 elements of all rows"
        and wrong.checked == 200 * 7
    )
    assert (
        wrong.ratio > 1000
        and wrong.max_abs == pytest.approx(9, rel=1e-6)
        and np.isnan(wrong.max_rel)
        and wrong.ulps > 1e6
    )
    assert wrong.got == pytest.approx(wrong.expected + 9) and wrong.output == 0 and 0 < wrong.budget < 1e-4
    assert len(data.judges) == 1, "the judge of a set is made once"
    judged(data, pool, set_=2)
    assert len(data.judges) == 2


def test_what_is_wrong_already_is_not_looked_at_again(shared):
    worker = Worker()
    assert not judged(shared(), Pool(worker), (0, 0)).ok and not worker.asked


def test_without_a_gpu_what_the_cpu_can_is_compared(shared):
    data = shared("cpu")
    verdict = judged(data, None)
    assert verdict.ok and not verdict.unseen
    row = unjudged(next(iter(data.judges.values())))
    assert judged(data, None, (row, 5)).index == (row, 5)


def test_rows_that_nobody_saw_are_told(shared, monkeypatch):
    monkeypatch.setattr("fusebench.parity.judge.REFERENCE_BYTES", 6e3)
    verdict = judged(shared("cpu"), None)
    assert verdict.ok and verdict.unseen == "without a GPU, rows beyond these have no reference"
    lost = Pool(Worker(WorkerLost("crashed", "exit code 9")))
    verdict = judged(shared(), lost)
    assert verdict.ok and verdict.unseen == "the reference on the device: exit code 9" and len(lost.dropped) == 1
    failed = Pool(Worker(protocol.Refused("failed", "out of memory")))
    verdict = judged(shared(), failed)
    assert verdict.ok and verdict.unseen == "the reference on the device: out of memory" and not failed.dropped


def test_time_is_booked_where_it_goes(shared):
    data = shared()
    assert data.clock.inputs == data.clock.parity == 0
    judged(data, Pool(Worker()))
    assert data.clock.inputs > 0 and data.clock.parity > 0 and data.names == ["x", "b"] and len(data.sets) == 3


def test_inputs_that_do_not_fit_are_tried_once(shared, monkeypatch):
    data, tried = shared(), []

    def too_large(*_):
        tried.append(1)
        raise MemoryError("9 GB")

    monkeypatch.setattr("fusebench.inputs.make_sets", too_large)
    for _ in range(2):
        with pytest.raises(MemoryError, match="9 GB"):
            _ = data.sets
    assert len(tried) == 1


# All of it on a real kernel


def compared(kernel, case, arrays, output):
    """What the reference on a device finds of all rows of the output, and the verdict after it."""
    judge = Judge(kernel.mathematics, case, arrays, on_device=True)
    found = reference.check(
        case, list(arrays.values()), judge.row_axes, [output], [judge.axis(0)], judge.screens(()), "", "cpu"
    )
    return found, judge.widened(judge.judge([output[:]], ()), found)


@pytest.mark.parametrize("wrong", [None, (150, 7)])
def test_all_rows_are_compared(monkeypatch, wrong):
    monkeypatch.setattr("fusebench.parity.reference.CHUNK_ELEMENTS", 2e4)  # several chunks
    kernel = KERNELS["lola"]
    case = make_case(kernel, {"M": 200, "K": 64, "N": 50}, "float16")
    arrays = make_sets(kernel.mathematics, case, 0, 1)[0]
    whole = Judge(kernel.mathematics, case, arrays)
    output = stored(whole.reference()[0], "float16").astype(numpy_dtype("float16"))
    if wrong:
        output[wrong] += 1
    found, verdict = compared(kernel, case, arrays, output)
    assert found.beyond == (1 if wrong else 0)
    assert verdict.ok == (wrong is None) and (wrong is None or verdict.index == wrong)


@pytest.mark.parametrize("wrong", [None, (150, 7)])
def test_overflow_is_right_where_the_formula_has_it(wrong):
    kernel = KERNELS["lola"]
    case = make_case(kernel, {"M": 200, "K": 64, "N": 60}, "float16", options={"activation": "none"})
    arrays = make_sets(kernel.mathematics, case, 0, 1)[0]
    arrays["W"] = arrays["W"] * np.float16(3e4)
    exact = Judge(kernel.mathematics, case, arrays).reference()[0]
    with np.errstate(over="ignore"):
        output = stored(exact, "float16").astype(np.float16)
    assert np.isinf(output).sum() > 100
    if wrong:
        output[wrong] = np.inf if abs(output[wrong]) < 1e4 else np.copysign(1e3, output[wrong])
    found, verdict = compared(kernel, case, arrays, output)
    assert found.beyond == (1 if wrong else 0)
    assert verdict.ok == (wrong is None) and (wrong is None or verdict.index == wrong)
