"""Gradients that sum over all rows, of large cases: the reference on the device evaluates the whole formula, the judge sees what is drawn
of each gradient, and a GPU compares all of it."""

from __future__ import annotations

import numpy as np
import pytest
from test_formulas import KERNELS
from test_reference import Pool, Worker

from fusebench import discovery
from fusebench.case_data import CaseData
from fusebench.cases import make_case
from fusebench.contract import Cell
from fusebench.dtypes import numpy_dtype
from fusebench.inputs import save
from fusebench.parity import pieces, reference, rows
from fusebench.parity.elements import stored
from fusebench.parity.judge import Judge
from fusebench.parity.rounding import evaluate
from fusebench.parity.tensor import Random
from fusebench.settings import Clock, Settings
from fusebench.workers import protocol
from fusebench.workers.pool import WorkerLost

LORA = {"M": 20, "K": 40, "N": 24, "R": 8}
TABLES = {"M": 30, "F": 3, "V": 200, "D": 8}


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    """The reference imports kernel.py by name, and other tests look for kernels elsewhere."""
    discovery.use_roots([discovery.HOME])
    for name, value in {"JUDGED_ELEMENTS": 50, "DRAWN_ELEMENTS": 200}.items():
        monkeypatch.setattr(f"fusebench.parity.view.{name}", value)


@pytest.fixture
def verdict(tmp_path, monkeypatch):
    """The verdict on the right outputs of a kernel, of which one element has another value: verdict(kernel, sizes, …)."""

    def judged(name, sizes, dtype="float32", mode="backward", device="cuda", wrong=None, worker=None):
        kernel = KERNELS[name]
        case = make_case(kernel, sizes, dtype, mode=mode)
        data = CaseData(
            kernel.mathematics, Cell(case, "torch_eager", "default"), tmp_path, Settings(device, rows_seed=1), Clock()
        )
        with monkeypatch.context() as m:
            m.setattr("fusebench.parity.view.JUDGED_ELEMENTS", np.inf)
            judge = Judge(kernel.mathematics, case, data.sets[0])
        outputs = [
            stored(o, judge.dtype(n)).astype(numpy_dtype(judge.dtype(n))) for n, o in enumerate(judge.reference())
        ]
        if wrong is not None:
            number, place, factor = wrong
            outputs[number][place] *= np.float32(factor)
        pool = Pool(worker or Worker())
        found = data.judge(save(outputs, tmp_path, "output"), (), "", 0, pool)
        return found, data.judges[0, ""], outputs

    return judged


@pytest.mark.parametrize(("name", "sizes", "mode"), [
    ("lora_linear", LORA, "backward"), ("lora_linear", LORA | {"M": 1}, "forward_backward"), ("embedding", TABLES, "backward"),
    ("padded_attention", {"B": 1, "H": 2, "T": 24, "D": 16}, "backward"), ("dlrm_train", "odd", "forward"),
])  # fmt: skip
def test_a_gpu_compares_every_element(verdict, name, sizes, mode):
    found, judge, outputs = verdict(name, sizes, mode=mode)
    assert judge.view.most and found.ok and not found.unseen, found.reason()
    assert found.checked == sum(o.size for o in outputs)


def test_one_wrong_element_that_was_not_drawn_is_found(verdict):
    _, judge, outputs = verdict("lora_linear", LORA)
    assert judge.view.most[1] == (0, 8) and judge.drawn[1].size == 8, "of dW (K, N) 8 of 40 rows"
    row = next(r for r in range(outputs[1].shape[0]) if r not in judge.drawn[1])
    found, _, _ = verdict("lora_linear", LORA, wrong=(1, (row, 3), 1 + 2.0**-12))
    assert (
        not found.ok and found.output == 1 and found.index == (row, 3) and found.checked == sum(o.size for o in outputs)
    )
    found, _, _ = verdict("lora_linear", LORA, device="cpu", wrong=(1, (row, 3), 1 + 2.0**-12))
    assert found.ok and "elements were compared, in rows that were drawn afterwards" in found.unseen


def test_a_row_of_a_table_that_a_step_leaves_may_not_change(verdict):
    _, judge, outputs = verdict("dlrm_train", "odd", mode="forward")
    number, table = next(
        (n, a)
        for n in judge.view.most
        for a in judge.arrays.values()
        if (same := _left(outputs[n], a)).any() and not same.all()
    )
    row = int(np.flatnonzero(_left(outputs[number], table))[-1])
    found, _, _ = verdict("dlrm_train", "odd", mode="forward", wrong=(number, (row, 0), 1 + 2.0**-20))
    assert not found.ok and found.output == number and found.index == (row, 0)


def _left(output, before):
    """Which rows of a table are as they were."""
    same = np.shape(output) == np.shape(before) and output.ndim == 2
    return (output == before).all(axis=1) if same else np.zeros(1, bool)


def test_of_tables_rows_that_got_a_gradient_are_drawn(verdict):
    """Few of the rows of a large table do, and where nothing is computed nothing can be wrong by rounding."""
    _, judge, outputs = verdict("embedding", TABLES | {"V": 4000})
    (axis, most), drawn = judge.view.most[0], judge.drawn[0]
    assert outputs[0].shape[axis] >= 4000 and most - 5 < len(drawn) <= most
    hit = [bool(np.take(outputs[0], row, axis).any()) for row in drawn]
    assert most // 2 <= sum(hit) < most


def test_what_is_told_is_half_of_what_is_drawn_where_it_is_so_much():
    told = np.zeros(1000, bool)
    told[[3, 500, 501, 777]] = True
    drawn = rows.telling(told, 20, 0)
    assert {3, 500, 501, 777} <= set(drawn) and len(drawn) <= 20 and list(drawn) == sorted(drawn)
    told[:900] = True
    assert len(rows.telling(told, 20, 0)) <= 20 and rows.telling(told, 20, 0)[-1] == 999, "edges too"
    assert list(rows.telling(np.ones(30, bool), 12, 5)) == list(rows.chosen(30, 12, 5))


def test_the_draw_of_another_run_is_another():
    told = np.arange(1000) % 3 == 0
    assert list(rows.telling(told, 20, 0)) != list(rows.telling(told, 20, 1))


def test_a_large_case_of_few_rows_is_evaluated_on_a_gpu(verdict):
    """One row of a wide product: NumPy on one core would take seconds."""
    sizes, workers = {"M": 1, "K": 64, "N": 80}, {"cuda": Worker(), "cpu": Worker()}
    for device, worker in workers.items():
        found, judge, _ = verdict("lola", sizes, mode="forward", device=device, worker=worker)
        assert found.ok and judge.large and found.checked == 80 and not found.unseen
    assert [type(m) for m in workers["cuda"].asked] == [protocol.EvaluateRows, protocol.Release]
    assert workers["cpu"].asked == [], "a CPU has nothing faster"


@pytest.mark.parametrize(("status", "raised"), [("skipped", WorkerLost), ("failed", RuntimeError)])
def test_without_the_reference_a_gradient_is_not_judged(verdict, status, raised):
    class Lost:
        def ask(self, request, expected, timeout_s):
            raise WorkerLost(status, "it does not start")

    with pytest.raises(raised, match="no reference of a gradient that sums over all rows: it does not start"):
        verdict("lora_linear", LORA, worker=Lost())


# Slices, which are independent: they are looked at as rows are

HEADS = {"B": 2, "H": 9, "T": 24, "D": 16}


@pytest.fixture
def evaluated_heads(monkeypatch):
    """Of each evaluation of a formula how many heads it had, but for those that only show how large results are."""
    heads = []

    def counted(formula, case, r, inputs):
        heads.append(inputs[0].shape[1])
        return evaluate(formula, case, r, inputs)

    monkeypatch.setattr("fusebench.parity.evaluations.evaluate", counted)
    return heads


@pytest.mark.parametrize("chunk", [2, 99])
def test_many_draws_are_made_of_few_heads_and_few_of_all(verdict, monkeypatch, evaluated_heads, chunk):
    monkeypatch.setitem(pieces.CHUNK_ELEMENTS, "cpu", chunk * 2 * 24 * 24)
    monkeypatch.setitem(reference.DRAWS, "cpu", ((4, np.inf),))
    found, judge, outputs = verdict("padded_attention", HEADS)
    del evaluated_heads[0]  # what made the outputs
    assert found.ok and found.checked == sum(o.size for o in outputs) and not found.unseen
    assert judge.view.judged[0] == 0 and len(judge.view.judged) == 2, "the first, and one that nobody knows before"
    assert sum(evaluated_heads) == 17 * 2 + 5 * 9, "16 draws and the exact value of two, 4 draws of all nine"
    assert max(evaluated_heads) == min(9, chunk)


@pytest.mark.parametrize(("device", "number", "head"), [("cuda", 0, 0), ("cuda", 1, 4), ("cuda", 2, 8), ("cpu", 2, 3)])
def test_one_wrong_element_of_any_head_is_found(verdict, device, number, head):
    """In the last row of the last batch, whichever heads were drawn."""
    place = (1, head, 23, 15)
    found, _, outputs = verdict("padded_attention", HEADS, device=device, wrong=(number, place, 1.001))
    assert not found.ok and (found.output, found.index) == (number, place), found.reason()
    assert found.ratio > 1 and found.got == outputs[number][place]


def test_a_cpu_looks_at_heads_that_are_drawn_and_unlike_and_says_of_how_many_it_did_not(verdict, monkeypatch):
    monkeypatch.setattr("fusebench.parity.view.CPU_ELEMENTS", 3000)
    worker = Worker()
    found, _, _ = verdict("padded_attention", HEADS, device="cpu", worker=worker)
    asked = next(m.asked for m in worker.asked if isinstance(m, protocol.CheckRows))
    seen = len({*asked.rows, *asked.unlike})
    assert found.ok and 2 <= seen < 9 and found.unseen == f"without a GPU, {9 - seen} of 9 slices have no reference"
    worse, _, _ = verdict("padded_attention", HEADS, device="cpu", wrong=(1, (0, 5, 23, 0), np.nan))
    assert not worse.ok and worse.index == (0, 5, 23, 0), "what is not finite is unlike the others"


def test_heads_that_few_draws_call_wrong_get_a_second_look_if_they_are_not_many(verdict, monkeypatch):
    looks, usual = [], reference.reach_of_few

    def counted(neighbours, exact, own, draws, *more):
        looks.append((draws, exact.shape[1]))
        return usual(neighbours, exact, own, draws, *more)

    monkeypatch.setattr(reference, "reach_of_few", counted)
    for places, heads in [((0, slice(2, 6), 20, 3), 4), ((0, slice(2, 7), 20, 3), 0)]:
        looks.clear()
        found, _, _ = verdict("padded_attention", HEADS, wrong=(2, places, 1.01))
        assert not found.ok and looks.count((reference.SECOND_LOOK_DRAWS, heads)) == (3 if heads else 0)


def test_what_a_draw_shares_is_the_same_in_all_slices():
    first, second, other = Random("cpu", 1, 7), Random("cpu", 2, 7), Random("cpu", 3)
    assert first.host.random() == second.host.random() != other.host.random()
    assert not np.array_equal(*(r.random((8,), np.float32).tensor.numpy() for r in (first, second)))
