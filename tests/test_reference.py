"""The reference on the device: Torch's float64 gives what NumPy's does, for every kernel's formula, and finds what is wrong."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import toys
from test_formulas import KERNELS, cases, evaluated, given
from toys import copied, edit, part, step, store

from fusebench import discovery
from fusebench.case_data import SETS, CaseData
from fusebench.cases import make_case
from fusebench.contract import DTYPES, Cell
from fusebench.inputs import make_sets, save
from fusebench.machine import DeviceInfo
from fusebench.parity import jitted, pieces, reference
from fusebench.parity.elements import stored
from fusebench.parity.judge import Judge
from fusebench.parity.noise import Noisy
from fusebench.parity.pieces import Sized
from fusebench.parity.rounding import Exact, Stored
from fusebench.parity.tensor import Tensor
from fusebench.parity.verdict import Asked
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


def over_the_pipe(request, expected, worker=None):
    """What the reference's worker replies."""
    reply = (worker or Reference("cpu")).do(protocol.decode_request(protocol.encode(request)))
    return protocol.decode_reply(protocol.encode(reply), expected)


@pytest.fixture
def check(tmp_path, monkeypatch):
    """What the reference finds of a toy's outputs, of all rows unless it is asked otherwise: check(formula, x, outputs, …)."""

    def checked(
        formula, x, outputs, dtype="float32", axes=(0, 0), part="", points=(), excess=1.0, rows=None, unlike=(), worker=None,
        files=None, **arrays,
    ):  # fmt: skip
        names = dict(zip("xy", axes, strict=True))
        module = toys.module(formula, rows=names, PARTS={"twice": lambda case, r, x: 2 * x})
        monkeypatch.setitem(sys.modules, "implementations.toy.kernel", module)
        arrays = {"x": store(x, dtype), **arrays}
        files = files or save(list(arrays.values()), tmp_path, "input")
        asked = Asked(
            toys.case(dtype), part, points, tuple(names.get(n) for n in arrays), axes[1:] * len(outputs),
            (dtype,) * len(outputs), (excess,) * len(outputs), 3, rows, unlike,
        )  # fmt: skip
        got = save([store(o, dtype) for o in outputs], tmp_path, "output")
        request = protocol.CheckRows(asked, tuple(files), tuple(got), str(tmp_path))
        return over_the_pipe(request, protocol.CheckedRows, worker).worst

    return checked


@pytest.fixture
def chunks_of(monkeypatch):
    """Makes chunks of so many elements."""
    return lambda elements: monkeypatch.setitem(pieces.CHUNK_ELEMENTS, "cpu", elements)


X = np.random.default_rng(0).uniform(1, 2, (10, 3)).astype(np.float32)


@pytest.mark.parametrize("chunk", [1, 4, 5, 9, 99])
@pytest.mark.parametrize("axes", [(0, 0), (1, 1), (0, 1), (1, 0), (-1, -1)], ids=str)
def test_every_row_of_every_chunk_is_compared(check, chunks_of, chunk, axes):
    """Each one changed by a step is found, the first and the last of a chunk too; rows of x lie along the first of the axes,
    those of y along the second."""
    chunks_of(3 * chunk)
    x, y = (X if axis == 0 else X.T.copy() for axis in axes)
    formula, worker = copied if axes[0] == axes[1] else lambda case, r, x: (x.T,), Reference("cpu")
    for row in range(10):
        place = (row, 1) if axes[1] == 0 else (1, row)
        found = check(formula, x, [edit(y, place, step(y[place], "float32"))], axes=axes, worker=worker)
        assert (found.beyond, found.index, found.rows, found.checked) == (1, place, (1, row, row), 30)
        assert found.ratio == pytest.approx(2) and found.ulps == pytest.approx(1) and found.output == 0
        assert found.expected == y[place] and found.got > y[place] and found.max_abs == found.got - y[place]
        assert found.budget == 2.0**-24
    right = check(formula, x, [y], axes=axes, worker=worker)
    assert (right.ratio, right.max_abs, right.ulps, right.beyond, right.rows) == (0, 0, 0, 0, (0, 0, 0))
    assert (right.output, right.checked) == (0, 30)


@pytest.mark.parametrize(("width", "chunk"), [(1, 20), (5, 20), (8, 12), (20, 5), (1000, 1)])
def test_as_many_rows_at_once_as_memory_holds(check, chunks_of, width, chunk):
    """By the largest intermediate result."""
    chunks_of(100)
    seen = set()

    def formula(case, r, x):
        if not isinstance(r, Sized):
            seen.add(tuple(map(int, r.chosen)))
        assert x.shape == (len(r.chosen), 1) and x.dtype == np.float64
        np.testing.assert_array_equal(x.tensor.numpy()[:, 0], r.chosen)
        return (r.dot(x, np.ones((1, width)))[:, :1],)

    x = np.arange(20.0)[:, None]
    assert check(formula, x, [x]).beyond == 0
    assert sorted(seen) == [tuple(range(n, min(n + chunk, 20))) for n in range(0, 20, chunk)]


@pytest.mark.parametrize("kind", ["round", "function", "compute"])
def test_every_point_tells_how_large_a_result_is(check, chunks_of, kind):
    chunks_of(100)
    seen = set()

    def formula(case, r, x):
        seen.add(len(r.chosen))
        wide = x * np.ones((1, 20))
        return ((r.round("p", wide) if kind == "round" else getattr(r, kind)(wide))[:, :1],)

    x = np.arange(50.0)[:, None]
    check(formula, x, [x])
    assert seen == {4, 5}, "four rows to see how large they are"


@pytest.mark.parametrize(("most", "draws"), [(30, 16), (29, 4)])
def test_few_draws_are_made_of_large_outputs(check, monkeypatch, most, draws):
    monkeypatch.setitem(reference.DRAWS, "cpu", ((16, most), (4, np.inf)))
    kinds, numbers = [], []

    def formula(case, r, x):
        kinds.append(type(r))
        numbers.append(getattr(r, "draw", -1))
        return (r.round("part", x),)

    check(formula, X, [X], points=("part",), dtype="bfloat16")
    assert kinds == [Sized, Exact, Stored, *[Noisy] * draws]
    assert numbers == [-1, -1, -1, *range(draws)], "each is the next one: what a row shares is balanced over them"


def test_inputs_that_have_no_rows_are_whole_in_every_chunk(check, chunks_of):
    chunks_of(9)

    def formula(case, r, x, b, n):
        assert isinstance(b, Tensor) and b.dtype == np.float64 and n.dtype == np.int32 and n.shape == (1,)
        return (x * b + 0.0 * n[0],)

    b = np.array([1.0, 2.0, 4.0], np.float32)
    assert check(formula, X, [X * b], b=b, n=np.array([3], np.int32)).beyond == 0


@pytest.mark.parametrize("chunk", [3, 9, 99])
def test_the_worst_of_all_outputs_and_chunks_is_told(check, chunks_of, chunk):
    chunks_of(chunk)
    x = np.full((10, 3), 1.0)
    first, second = (edit(x, (9, 2), 1 + 2.0**-21), edit(2 * x, (4, 1), 2 + 2.0**-18))
    both = lambda case, r, x: (x, 2 * x)  # noqa: E731
    found = check(both, x, [edit(first, (0, 0), 1 - 2.0**-22), second])
    assert (found.output, found.index, found.beyond, found.checked) == (1, (4, 1), 3, 60)
    assert found.max_abs == 2.0**-18 and found.budget == 2.0**-23 and found.ulps == 16 and found.ratio == 2.0**5
    assert found.rows == (3, 0, 9) and found.where == "3 elements of 3 rows, 0 to 9"
    found = check(both, x, [first, 2 * x])
    assert (found.output, found.index, found.beyond) == (0, (9, 2), 1)


def test_a_part_is_compared_with_its_own_formula(check):
    assert check(copied, X, [2 * X], part="twice").beyond == 0 and check(copied, X, [X], part="twice").beyond == 30


def test_a_part_is_not_compared_with_what_is_kept_of_the_whole(check, tmp_path):
    x = np.repeat(X, 4, axis=0)  # more rows than get a second look
    same = {"worker": Reference("cpu"), "files": save([x], tmp_path, "same")}
    assert check(copied, x, [x], **same).beyond == check(copied, x, [2 * x], part="twice", **same).beyond == 0


@pytest.mark.parametrize("expected", [1.0, -1.0, INF, -INF, NAN])
@pytest.mark.parametrize("got", [1.0, -1.0, INF, -INF, NAN])
def test_what_is_not_finite_stands_where_the_formula_has_it(check, expected, got):
    x = edit(np.full((4, 3), 2.0), (2, 1), expected)
    found = check(lambda case, r, x: (r.compute(x),), x, [edit(x, (2, 1), got)])
    same = got == expected or (np.isnan(got) and np.isnan(expected))
    assert found.beyond == (not same)
    if not same:
        assert found.index == (2, 1) and found.ratio > 10
        assert found.max_abs == (2.0 if np.isfinite([got, expected]).all() else INF)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_overflow_is_right_within_reach_of_the_largest_number_and_to_its_side(check, dtype, sign):
    largest = float(torch.finfo(getattr(torch, dtype)).max)
    for value, infinite_may_be in ((0.9 * largest, False), (largest, True)):
        x = np.full((4, 3), sign * value)
        for wrong, beyond in ((sign * INF, not infinite_may_be), (-sign * INF, True), (NAN, True)):
            found = check(part_, x, [edit(store(x, dtype), (2, 1), wrong)], dtype, points=("part",))
            assert found.beyond == beyond


def part_(case, r, x):
    return (r.round("part", x),)


def test_what_overflow_on_the_way_leaves_is_right_where_it_may_be(check):
    """Twice 4e4 is infinite in float16: a difference of such is NaN."""

    def formula(case, r, x):
        y = r.round("part", 2 * x)
        return (y - y,)

    x = edit(np.full((4, 3), 2.0), (2, 1), 4e4)
    right = np.zeros((4, 3))
    for at, got, beyond in (((2, 1), NAN, 0), ((2, 1), 0, 0), ((2, 1), INF, 1), ((2, 2), NAN, 1)):
        assert check(formula, x, [edit(right, at, got)], "float16", points=("part",)).beyond == beyond
    assert check(formula, x, [edit(right, (2, 1), NAN)], "float16").beyond == 1, "a program that keeps it in float32"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_budget_is_that_of_the_judge(check, dtype):
    """As nearly as the loudest neighbours are what an element's own draws are."""
    x = store(np.random.default_rng(1).uniform(3.3, 6.1, (10, 64)), dtype)
    judge, right = toys.judge(part, x, dtype), store(x.astype(float) / np.pi, dtype)
    wrong = edit(right, (4, 5), 100 * right[4, 5])
    verdict = judge.judge([wrong], ("part",))
    (budget,) = judge.allowed(("part",))
    found = check(part, x, [wrong], dtype, points=judge.key(("part",)), excess=budget.excess)
    assert found.index == verdict.index == (4, 5) and found.expected == pytest.approx(verdict.expected)
    assert verdict.budget < found.budget < 1.6 * verdict.budget
    assert check(part, x, [right], dtype, points=judge.key(("part",))).ratio < 1


def test_what_rows_with_more_draws_showed_widens_the_budget(check):
    x = np.random.default_rng(1).uniform(3.3, 6.1, (10, 64))
    wrong = [edit(x / np.pi, (4, 5), 100)]
    once, four = (check(part, x, wrong, "bfloat16", points=("part",), excess=e).budget for e in (1.0, 4.0))
    assert 1.4 < four / once < 2


def test_each_element_is_held_to_the_noise_of_its_own_row(check):
    """A row of values 1000 times as large has 1000 times the noise, and lends it to no other."""
    x = np.random.default_rng(1).uniform(3.3, 6.1, (10, 64)) * np.where(np.arange(10) == 3, 1000, 1)[:, None]
    budgets = [
        check(part, x, [edit(x / np.pi, (row, 5), 1e6)], "bfloat16", points=("part",)).budget for row in range(10)
    ]
    assert 300 < budgets[3] / np.median(budgets) < 3000 and max(budgets[:3] + budgets[4:]) < 2 * np.median(budgets)


# Which rows


@pytest.mark.parametrize("chunk", [3, 6, 99])
def test_some_rows_and_those_unlike_the_others_are_looked_at(check, chunks_of, chunk):
    chunks_of(chunk)
    seen = []
    for row in range(10):
        found = check(copied, X, [edit(X, (row, 1), 9)], rows=(0, 2, 3, 7), unlike=(7, 9, 2, 8, 9))
        assert found.checked == 3 * 6 and found.beyond == (row in (0, 2, 3, 7, 8, 9))
        seen += [row] * found.beyond
        assert not found.beyond or (found.index, found.rows) == ((row, 1), (1, row, row))
    assert seen == [0, 2, 3, 7, 8, 9]


@pytest.mark.parametrize(
    ("rows", "height", "few"),
    [(1, 40, True), (32, 40, True), (33, 40, False), (33, 33 * 64, True), (34, 33 * 64, False)],
)
def test_rows_that_few_draws_call_wrong_get_a_second_look(check, monkeypatch, rows, height, few):
    """If they are not many: budgets of few draws are too narrow here, and too many wrong rows are no chance."""
    x, looks = np.random.default_rng(0).uniform(1, 2, (height, 3)).astype(np.float32), []
    usual = reference.reach_of_few

    def narrow(neighbours, exact, own, draws, *more):
        looks.append((draws, exact.shape[0]))
        reach = usual(neighbours, exact, own, draws, *more)
        return reach if draws == reference.SECOND_LOOK_DRAWS else 0.0 * reach

    monkeypatch.setattr(reference, "reach_of_few", narrow)
    off = edit(x, (slice(rows), 1), x[:rows, 1] * np.float32(1 + 2**-22))  # two spacings or more
    found = check(lambda case, r, x: (r.compute(x + 8) - 8,), x, [off])
    again = [n for draws, n in looks if draws == reference.SECOND_LOOK_DRAWS]
    assert again == ([rows] if few else []) and found.checked == x.size
    assert (found.beyond == 0 and 0 < found.ratio <= 1) == few
    worse = check(lambda case, r, x: (r.compute(x + 8) - 8,), x, [edit(x, (7, 1), 9)])
    assert worse.beyond == 1 and worse.index == (7, 1) and worse.rows == (1, 7, 7)


def test_budgets_are_kept_for_other_outputs_of_the_same_inputs(check, tmp_path, monkeypatch):
    worker, evaluated_ = Reference("cpu"), []
    monkeypatch.setattr(reference, "SECOND_LOOK_ROWS", 0)

    def formula(case, r, x):
        evaluated_.append(tuple(r.chosen))
        return (r.round("part", x),)

    def again(**more):
        evaluated_.clear()
        found = check(formula, X, [edit(X, (9, 1), 9)], worker=worker, **more)
        assert found.beyond == 1 and found.index == (9, 1)
        return len(evaluated_)

    files = save([X], tmp_path, "same")
    assert again(files=files) > 16 and again(files=files) == 0 and again(files=files, unlike=(3,)) == 0
    assert again(files=files, rows=(1, 9)) > 16 and again(files=files, rows=(1, 9)) == 0
    again(files=files, rows=(1, 9), unlike=(3, 5, 9))
    assert set(evaluated_) == {(3, 5)}, "those that one output asks for are its own"
    assert again(files=files, points=("part",)) > 16 and again(files=save([X], tmp_path, "other")) > 16
    assert again(files=files) == 0
    other = tmp_path / "folder"
    other.mkdir()
    for case_data in (str(other), str(tmp_path)):
        worker.known(protocol.CheckRows(None, (), (), case_data))
    assert again(files=files) > 16, "those of another case are given up"
    monkeypatch.setattr(reference, "KEPT_ELEMENTS", 29)
    files = save([X], tmp_path, "third")
    assert again(files=files) > 16 and again(files=files) > 16, "too large to keep"
    monkeypatch.setattr(reference, "KEPT_ELEMENTS", 30)
    assert again(files=files) > 16 and again(files=files) == 0


def test_the_worker_says_what_it_is():
    worker = Reference("cpu")
    assert worker.info() == protocol.WorkerInfo(DeviceInfo("cpu"), {}, "", ())
    assert worker.usable() and worker.do(protocol.Release()) == protocol.Released(0)
    with pytest.raises(ValueError, match="the reference does no RepeatCell"):
        worker.do(protocol.RepeatCell("folder"))


@pytest.fixture
def a_gpu(monkeypatch):
    """One that Torch's CPU stands for."""
    ones, waits = torch.ones, []
    monkeypatch.setattr(torch, "ones", lambda *size, device="cpu", **options: ones(*size, **options))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append("finished"))
    monkeypatch.setattr(jitted, "begin", lambda: waits.append("compiled"))
    monkeypatch.setattr(reference, "rehearse", lambda device: None)
    return waits


def test_on_a_gpu_memory_is_given_back_and_what_is_held_all_the_same_is_told(monkeypatch, a_gpu):
    given = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append("all that is free"))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 7 * len(given))
    assert Reference("cuda").do(protocol.Release()) == protocol.Released(7)
    assert Reference("cpu").do(protocol.Release()) == protocol.Released(0) and len(given) == 1


def test_a_chunk_on_a_cpu_has_one_thread_because_others_run_beside_it(monkeypatch, a_gpu):
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    assert Reference("cuda").device == "cuda" and not threads and a_gpu == ["compiled", "finished"], (
        "it has begun on the device"
    )
    assert Reference("cpu").device == "cpu" and threads == [1] and len(a_gpu) == 2


# The verdict after it; the reference's worker is one in this process, on the CPU


class Worker:
    def __init__(self, answer=None):
        self.asked, self.answer, self.reference = [], answer, Reference("cpu")

    def ask(self, request, expected, timeout_s):
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        return over_the_pipe(request, expected, self.reference)


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
    monkeypatch.setattr("fusebench.parity.view.JUDGED_ELEMENTS", 400)

    def made(device="cuda", rows_seed=0, sizes=TALL):
        kernel = KERNELS["add_relu"]
        cell = Cell(make_case(kernel, sizes), "torch_eager", "default")
        return CaseData(kernel.mathematics, cell, tmp_path, Settings(device, rows_seed=rows_seed), Clock())

    return made


def judged(data, pool, wrong=(), value=None, set_=1):
    """The verdict on an output in which some elements have another value, or are off by 9."""
    x, b = (data.sets[set_][n] for n in ("x", "b"))
    output = np.maximum(x + b, np.float32(0))
    if wrong != ():
        output[wrong] = output[wrong] + np.float32(9) if value is None else value
    return data.judge(save([output], data.folder, "output"), (), "", set_, pool)


def asked_for(pool):
    """The rows that the reference was to compare."""
    return next(m.asked.rows for m in pool.worker.asked if isinstance(m, protocol.CheckRows))


def unjudged(judge):
    return [r for r in range(200) if r not in judge.view.judged]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_all_rows_are_compared_with_what_the_formula_has(shared, device):
    data, worker = shared(device), Worker()
    pool = Pool(worker)
    verdict = judged(data, pool)
    assert verdict.ok and not verdict.unseen and verdict.checked == 200 * 7
    kinds = [protocol.EvaluateRows, protocol.Release, protocol.CheckRows, protocol.Release]
    assert [type(m) for m in worker.asked] == kinds and not pool.dropped
    evaluate, _, check_, _ = worker.asked
    (judge,) = data.judges.values()
    assert evaluate.asked.rows == tuple(judge.view.judged) and check_.asked.rows is None
    assert list(evaluate.files) == list(check_.files) == data.files[1]
    assert judged(data, pool) == verdict and [type(m) for m in worker.asked[4:]] == kinds[2:], "evaluated once"
    for row in (unjudged(judge)[0], unjudged(judge)[-1]):
        wrong = judged(data, pool, (row, 5))
        assert not wrong.ok and wrong.index == (row, 5) and wrong.checked == 200 * 7 and wrong.output == 0
        assert wrong.pattern == f"one element of row {row}" and np.isnan(wrong.max_rel)
        assert wrong.ratio > 1000 and wrong.max_abs == pytest.approx(9, rel=1e-6) and wrong.ulps > 1e6
        assert wrong.got == pytest.approx(wrong.expected + 9) and 0 < wrong.budget < 1e-4
    assert len(data.judges) == 1, "the judge of a set is made once"
    judged(data, pool, set_=0)
    assert len(data.judges) == 2


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("value", [NAN, INF, 0.0])
def test_a_row_that_is_not_judged_may_not_be_spoilt(shared, monkeypatch, device, value):
    """NaN, infinities or zeros: on a CPU that has the reference of a few rows too, because it is unlike the others."""
    monkeypatch.setattr("fusebench.parity.view.CPU_ELEMENTS", 400)
    data, pool = shared(device), Pool(Worker())
    right = judged(data, pool)
    asked = asked_for(pool)
    assert right.ok and (asked is None) == (device == "cuda")
    rows = [r for r in unjudged(data.judges[1, ""]) if asked is None or r not in asked]
    for row in (rows[0], rows[len(rows) // 2], rows[-1]):
        wrong = judged(data, pool, row, value)
        assert not wrong.ok and wrong.index[0] == row and f"of row {row}" in wrong.reason()


def test_what_is_not_finite_is_right_where_the_inputs_make_it_so(shared):
    data, pool = shared("cpu"), Pool(Worker())
    data.sets[1]["x"][100:103, 2] = NAN, INF, -INF
    assert judged(data, pool).ok
    assert not judged(data, pool, (101, 3), INF).ok


def test_what_is_wrong_already_is_not_looked_at_again(shared):
    worker = Worker()
    assert not judged(shared(), Pool(worker), (0, 0)).ok
    assert not any(isinstance(m, protocol.CheckRows) for m in worker.asked)


def test_a_case_that_is_judged_whole_needs_no_reference_on_the_device(shared):
    assert judged(shared(sizes={"M": 9, "N": 7}), None).ok


def test_other_runs_look_at_other_rows(shared, monkeypatch):
    monkeypatch.setattr("fusebench.parity.view.CPU_ELEMENTS", 400)
    seen = []
    for seed in (0, 0, 1):
        data, pool = shared("cpu", seed), Pool(Worker())
        judged(data, pool)
        seen.append((tuple(data.judges[1, ""].view.judged), asked_for(pool)))
    assert seen[0] == seen[1] and seen[0][0] != seen[2][0] and seen[0][1] != seen[2][1] and seen[0][0] != seen[0][1]


def test_rows_are_drawn_anew_for_each_run():
    seeds = {Settings().rows_seed for _ in range(20)}
    assert len(seeds) == 20 and all(0 <= s < 2**31 for s in seeds)


def test_rows_that_nobody_saw_are_told(shared, monkeypatch):
    lost = Pool(Worker(WorkerLost("crashed", "exit code 9")))
    verdict = judged(shared(), lost)
    assert verdict.ok and verdict.unseen == "the reference on the device: exit code 9" and len(lost.dropped) == 2
    failed = Pool(Worker(protocol.Refused("failed", "out of memory")))
    verdict = judged(shared(), failed)
    assert verdict.ok and verdict.unseen == "the reference on the device: out of memory" and not failed.dropped
    monkeypatch.setattr("fusebench.parity.view.CPU_ELEMENTS", 1000)
    pool = Pool(Worker())
    data = shared("cpu")
    verdict = judged(data, pool)
    asked = next(m.asked for m in pool.worker.asked if isinstance(m, protocol.CheckRows))
    seen = {*asked.rows, *asked.unlike, *data.judges[1, ""].view.judged}
    unseen = 200 - len(seen)
    assert verdict.checked == 7 * len(seen)
    assert verdict.ok and verdict.unseen == f"without a GPU, {unseen} of 200 rows have no reference" and unseen > 50


@pytest.mark.parametrize("dtype", DTYPES)
def test_judged_rows_have_the_same_budget_wherever_they_are_evaluated(tmp_path, monkeypatch, dtype):
    """The noise is another, of the same size: rms and its limit by a tenth, single elements by what 16 draws scatter."""
    monkeypatch.setattr("fusebench.parity.view.JUDGED_ELEMENTS", 400)
    kernel = KERNELS["lola"]
    case = make_case(kernel, {"M": 50, "K": 64, "N": 80}, dtype)
    data = CaseData(
        kernel.mathematics, Cell(case, "torch_eager", "default"), tmp_path, Settings("cuda", rows_seed=2), Clock()
    )
    here = Judge(kernel.mathematics, case, data.sets[1], rows_seed=data.settings.rows_seed)
    points = ("layernorm", "bias")
    (expected,) = here.allowed(points)
    whole = np.zeros((50, 80), store([0.0], dtype).dtype)
    data.judge(save([whole], tmp_path, "output"), points, "", 1, Pool(Worker()))
    there = data.judges[1, ""]
    assert there.knows(points) and there.points == here.points
    np.testing.assert_allclose(there.reference()[0], here.reference()[0], rtol=1e-12, atol=1e-14)
    (found,) = there.allowed(points)
    assert not np.array_equal(found.deviation, expected.deviation)
    assert np.sqrt(np.mean(found.deviation**2)) == pytest.approx(np.sqrt(np.mean(expected.deviation**2)), rel=0.1)
    assert np.median(found.limit) == pytest.approx(np.median(expected.limit), rel=0.1)
    assert found.rms_limit == pytest.approx(expected.rms_limit, rel=0.1)


def test_time_is_booked_where_it_goes(shared):
    data = shared()
    assert data.clock.inputs == data.clock.parity == 0
    judged(data, Pool(Worker()))
    assert data.clock.inputs > 0 and data.clock.parity > 0 and data.names == ["x", "b"] and len(data.sets) == SETS


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


# All elements together


@pytest.fixture
def of_all(monkeypatch):
    """The verdict on an output of a toy's 400 rows, of which the judge sees 8: of_all(wrong rows → output, device)."""
    monkeypatch.setitem(sys.modules, "implementations.toy.kernel", toys.module(part))
    x = store(np.random.default_rng(1).uniform(3.3, 6.1, (400, 64)), "bfloat16")
    judge = toys.judge(part, x, "bfloat16", flops=1e15)
    exact = x.astype(float) / np.pi

    def verdict(shift, device="cuda", known=None):
        output = store(stored(exact, "bfloat16") + shift(exact, judge), "bfloat16")
        verdict = judge.judge([output], ("part",))
        assert verdict.ok, "what the judge sees itself is right"
        asked = judge.ask([output], ("part",), device)
        return judge.widened(
            verdict, reference.check(asked, [x], [output], "cpu", {} if known is None else known), asked
        )

    return verdict


def a_step_up_in_some_unjudged_rows(exact, judge):
    """One element in eight, which by itself may be so far off."""
    up = np.zeros(exact.shape)
    up[:, ::8] = 2.0**-7
    up[judge.view.judged] = 0
    return up


@pytest.mark.parametrize("chunk", [64 * 50, 64 * 77, 1e9])
def test_on_a_gpu_all_rows_count_together(of_all, chunks_of, chunk):
    chunks_of(chunk)
    nothing = lambda exact, judge: 0.0  # noqa: E731
    right, known = of_all(nothing), {}
    assert right.ok and right.checked == 400 * 64 and right.rms > 0
    wrong = of_all(a_step_up_in_some_unjudged_rows, known=known)
    assert wrong.ratio <= 1 and not wrong.ok and "not all together" in wrong.reason()
    assert wrong.mean > wrong.mean_limits[1] and wrong.mean - right.mean == pytest.approx(
        0.125 * 2.0**-7 / 0.0032, rel=0.4
    )
    again = of_all(nothing, known=known)
    assert again.ok and again == right, "the figures of the draws are kept"


def test_without_a_gpu_the_judged_rows_alone_count_together(of_all):
    assert of_all(a_step_up_in_some_unjudged_rows, "cpu").ok


def test_fresh_draws_are_right_together(of_all):
    """Twenty outputs with the noise of the model in all rows but the judged ones."""
    for seed in range(20):
        rng = np.random.default_rng(seed)

        def noise(exact, judge, rng=rng):
            up = rng.uniform(-0.5, 0.5, exact.shape) * 2.0**-7 * np.exp2(np.floor(np.log2(exact)))
            up[judge.view.judged] = 0
            return np.where(up != 0, stored(exact + up, "bfloat16") - stored(exact, "bfloat16"), 0)

        assert of_all(noise).ok


# All of it on real kernels


def compared(kernel, case, arrays, output, points=()):
    """What the reference finds of all rows of the output, and the verdict after it."""
    judge = Judge(kernel.mathematics, case, arrays)
    asked = judge.ask([output], points, "cuda")
    found = reference.check(asked, list(arrays.values()), [output], "cpu", {})
    return found, judge.widened(judge.judge([output[:]], points), found, asked)


@pytest.mark.parametrize("wrong", [None, (150, 7)])
def test_all_rows_of_a_kernel_are_compared(chunks_of, wrong):
    chunks_of(2e4)  # several chunks
    kernel = KERNELS["lola"]
    case = make_case(kernel, {"M": 200, "K": 64, "N": 50}, "float16")
    arrays = make_sets(kernel.mathematics, case, 0, 1)[0]
    output = stored(Judge(kernel.mathematics, case, arrays).reference()[0], "float16").astype(np.float16)
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


def test_a_gpu_has_run_what_every_check_runs_before_the_first(monkeypatch, a_gpu):
    monkeypatch.setattr(reference, "rehearse", lambda device: a_gpu.append(f"rehearsed on {device}"))
    Reference("cuda")
    assert a_gpu == ["compiled", "rehearsed on cuda", "finished"]


def test_what_is_rehearsed_are_all_kinds_of_noise_and_the_comparison(monkeypatch):
    ran = []
    for kind in ("round", "function", "compute", "dot", "sum", "_of_product"):
        usual = getattr(Noisy, kind)
        monkeypatch.setattr(Noisy, kind, lambda *a, kind=kind, usual=usual, **k: ran.append(kind) or usual(*a, **k))
    monkeypatch.setattr(reference, "_compared", lambda *a: ran.append("compared"))
    reference.rehearse("cpu")
    assert {"round", "function", "compute", "dot", "sum", "_of_product", "compared"} == set(ran)
