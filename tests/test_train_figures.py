"""What `fusebench train` says of a run: its rates, losses and AUC computed another way, the values that it begins with, what is on the
disk when it ends, and its exit codes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats
from samples import Now
from test_data import small
from test_train import SMALL, data, lines, train  # noqa: F401 (a fixture)

from fusebench import discovery
from fusebench.cases import make_case
from fusebench.cli import main
from fusebench.commands import train as command
from fusebench.data import reading, synthesis, writing
from fusebench.data.schema import Feature
from fusebench.errors import StorageError, UsageError
from fusebench.parity.rounding import Exact, evaluate
from fusebench.training import checkpoint, log, loop, model, program
from fusebench.training.loop import Every, Loop
from fusebench.training.rows import Rows

BAR = SimpleNamespace(add_task=lambda *_, **__: 0, update=lambda *_, **__: None)


class Trainer:
    """A step queues work of 2 s, which the device has done when its loss is read; an AUC takes 100 s, a checkpoint 1000. The loss of
    step n is n."""

    def __init__(self, now):
        self.now, self.queued, self.made = now, 0, 0
        self.chosen = SimpleNamespace(label="ours:fast")
        self.forward = SimpleNamespace(label="ours:forward")
        self.model = SimpleNamespace(described=dict, weights={"tables": np.zeros((41, 1))})

    def step(self, batch):
        self.queued += 1
        self.made += 1
        return self.made

    def losses(self, kept):
        self.now.now += 2.0 * self.queued
        self.queued = 0
        return list(map(float, kept))

    def auc(self, rows):
        self.now.now += 100.0
        return 0.5 + self.made / 1000

    def parameters(self):
        self.now.now += 1000.0
        return {"tables": np.full(1, self.made)}


@pytest.fixture
def run(tmp_path, monkeypatch):
    now = Now()
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=now))
    rows = SimpleNamespace(batch=10, batches=7, held_out=30, training=lambda done: iter(range(done, 10**6)))
    return Loop(Trainer(now), rows, None, tmp_path, {}, {}, [])


def test_losses_are_means_and_seconds_are_those_of_the_steps(run):
    run.train(10, Every(log=3, evaluate=4, checkpoint=6), BAR)
    found = [json.loads(line) for line in (run.folder / log.FILE).read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in found] == [(3, 2.0), (4, 4.0), (6, 5.5), (8, 7.5), (9, 9.0), (10, 10.0)]  # fmt: skip
    assert [line["seconds"] for line in found] == [2.0 * line["step"] for line in found]
    assert [line["rows"] for line in found] == [10 * line["step"] for line in found]
    assert [line["auc"] for line in found] == [None, 0.504, None, 0.508, None, 0.51]
    assert checkpoint.load(run.folder).step == 10 == run.saved and run.shown() == "loss 10.0000, AUC 0.5100"


def test_the_progress_has_every_step_with_the_last_loss_and_auc(run):
    shown = []
    bar = SimpleNamespace(add_task=lambda text, **of: shown.append(of), update=lambda task, **of: shown.append(of))
    run.train(4, Every(log=2, evaluate=4, checkpoint=4), bar)
    words = ["steps", "loss 1.5000", "loss 1.5000", "loss 3.5000, AUC 0.5040"]
    assert shown == [{"total": 4, "completed": 0}, *({"description": said, "advance": 1} for said in words)]


def test_rates_are_of_the_steps_since_the_line_before(run, capsys):
    assert command._run(run, 8, Every(log=8, evaluate=4, checkpoint=8), run.folder, "main float32") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "ours:fast, main float32: 40 table rows, batches of 10, 7 in an epoch; AUC of 30 held-out rows by ours:forward"  # fmt: skip
    # 10 rows a step, 2 s a step
    assert said[1:3] == ["step 4: loss 2.5000, AUC 0.5040, 5 rows/s", "step 8: loss 6.5000, AUC 0.5080, 5 rows/s"]
    assert said[-3:] == [f"curve: {run.folder / log.CURVE}", f"log: {run.folder / log.FILE}", f"checkpoint: {run.folder / checkpoint.FILE}, step 8"]  # fmt: skip


def test_a_run_that_goes_on_shows_its_own_steps_and_rates(run, capsys):
    run.lines = [log.Line(4, 1.0, 0.5, 40, 3.0, "ours:fast")]
    run.done = run.saved = run.trainer.made = 4
    assert command._run(run, 6, Every(log=6, evaluate=6, checkpoint=6), run.folder, "main float32") == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert said == ["step 6: loss 5.5000, AUC 0.5060, 5 rows/s"]


def test_an_interrupted_run_says_how_to_go_on(run, capsys, monkeypatch):
    step = run.trainer.step
    monkeypatch.setattr(run.trainer, "step", lambda batch: step(batch) if run.done < 6 else (_ for _ in ()).throw(KeyboardInterrupt))  # fmt: skip
    assert command._run(run, 9, Every(log=3, evaluate=9, checkpoint=4), run.folder, "main float32") == 130
    out, err = capsys.readouterr()
    assert err == f"interrupted; resume=true out={run.folder} goes on from step 4\n" and "step 4\n" in out
    assert checkpoint.load(run.folder).step == 4


def test_without_a_checkpoint_nothing_is_said_of_going_on(run, capsys, monkeypatch):
    monkeypatch.setattr(run.trainer, "losses", lambda kept: [float("inf")])
    assert command._run(run, 9, Every(log=3, evaluate=9, checkpoint=9), run.folder, "main float32") == 1
    out, err = capsys.readouterr()
    assert "no checkpoint yet" in out and "resume" not in err and "the loss is inf between the steps 1 and 3" in err


def test_a_full_disk_is_exit_code_1(data, tmp_path, monkeypatch, capsys):  # noqa: F811
    def full(*_):
        raise StorageError("the disk is full")

    monkeypatch.setattr(checkpoint, "save", full)
    assert train(data, tmp_path / "out", steps=1) == 1
    assert capsys.readouterr().err == "fusebench: the disk is full\n"


def test_a_checkpoint_is_on_the_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(("fsync", os.fstat(file).st_size)), fsync(file)))
    monkeypatch.setattr(Path, "replace", lambda path, to: (done.append(("replace", to.name)), replace(path, to))[1])
    checkpoint.save(checkpoint.Checkpoint(1, {}, {}, {}, {"a": np.zeros(3)}), tmp_path)
    assert done == [("fsync", (tmp_path / checkpoint.FILE).stat().st_size), ("replace", checkpoint.FILE)] and [
        f.name for f in tmp_path.iterdir()
    ] == [checkpoint.FILE]


def test_rows_of_one_label_have_no_auc(tmp_path):
    table = small(64)
    labels = [0] * 32 + [1] * 32
    pq.write_table(table.set_column(0, "labels", pa.array(labels, pa.int64())), tmp_path / "mine.parquet")
    source = reading.open_file(tmp_path / "mine.parquet")
    with pytest.raises(
        UsageError, match="the first 32 rows, which are held out, all have the label 0: an AUC needs both"
    ):
        Rows(source, 16, 32, log1p=True).test()
    assert Rows(source, 16, 48, log1p=True).test().labels.sum() == 16


# The model


def test_the_auc_is_that_of_the_formula_on_the_held_out_rows(data, tmp_path):  # noqa: F811
    """Of more rows than go through the forward pass at a time, and not a multiple of them."""
    held = 4992
    assert held > 2 * program.EVALUATED and held % program.EVALUATED
    assert train(data, tmp_path, f"held_out={held}", steps=3) == 0
    found, kept = lines(tmp_path)[-1], checkpoint.load(tmp_path)
    kernel = discovery.find_kernels(discovery.roots_of())["dlrm"]
    parts = list(reading.open_file(data).batches(64, log1p=True))[: held // 64]
    dense, ids, labels = (np.concatenate([getattr(p, name) for p in parts]) for name in ("dense", "ids", "labels"))
    rows = np.array(kept.model["table rows"])
    sizes = {d: kept.model[d] for d in kernel.dimensions}
    arrays = {"dense": dense, "ids": ids, "tables": kept.parameters["tables"], "offsets": np.concatenate([[0], np.cumsum(rows)])}  # fmt: skip
    arrays |= {n: a for n, a in kept.parameters.items() if n != "tables"}
    wide = [a if a.dtype.kind in "iu" else a.astype(float) for a in arrays.values()]
    (y,) = evaluate(kernel.mathematics.formula, make_case(kernel, sizes | {"M": held}), Exact(), wide)
    ranks, ones = scipy.stats.rankdata(y[:, 0]), labels[:, 0] == 1
    area = (ranks[ones].sum() - ones.sum() * (ones.sum() + 1) / 2) / (ones.sum() * (~ones).sum())
    assert found["auc"] == pytest.approx(area, abs=2e-4)


def test_a_model_begins_as_the_published_one(data):  # noqa: F811
    kernel = discovery.find_kernels(discovery.roots_of())["dlrm_train"]
    features = tuple(Feature(n, np.arange(1, n + 1)) for n in (3, 399, *[9] * 24))
    case = make_case(kernel, kernel.mathematics.cases["main"])
    made = model.make(kernel.mathematics, case, features, 0)
    assert np.diff(made.weights["offsets"]).tolist() == [4, 400, *[10] * 24] == made.described()["table rows"]
    tables = np.split(made.weights["tables"], made.weights["offsets"][1:])
    for table, rows in zip(tables[:-1], (4, 400, *[10] * 24), strict=True):
        assert table.shape[0] == rows and 0.8 / rows**0.5 < np.abs(table).max() <= 1 / rows**0.5
    assert np.isnan(tables[-1]).all() and abs(np.concatenate(tables[:-1]).mean()) < 0.01
    for name, array in made.weights.items():
        if "_W" in name and array.size > 1000:
            assert array.std() == pytest.approx((2 / sum(array.shape)) ** 0.5, rel=0.1), name
        elif "_b" in name:
            assert not array.any(), name
    other = model.make(kernel.mathematics, case, features, 1)
    assert not np.array_equal(other.weights["top_W1"], made.weights["top_W1"])
    assert [kernel.mathematics.outputs[n] for n in made.places][:3] == ["new_tables", "new_W1", "new_b1"]
    assert len(made.places) == len(made.parameters) == 1 + 2 * 7 and made.parameters[:2] == ("tables", "bottom_W1")


def test_the_synthetic_set_has_the_rows_and_the_seed_that_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(command, "_run", lambda loop, *_: seen.append(loop.rows) or 0)
    words = ["train", "dlrm", "implementation=torch_eager", "steps=12", "cardinality=50", "seed=5", *SMALL]
    assert main([*words, "out=first"]) == 0
    count = 12 * 64 + 76  # an epoch, and a tenth of it that is held out
    (place,) = Path("results/data").iterdir()
    assert place.name == f"criteo-{count}-50-5" and reading.open_file(place).rows == count
    assert (seen[0].held_out, seen[0].batches, seen[0].log1p) == (64, 12, True)
    writing.write(Path("again"), synthesis.plant(50), count, 5, lambda rows: None)
    ours, theirs = (next(reading.open_file(p).batches(count)) for p in (place, Path("again")))
    assert np.array_equal(ours.ids, theirs.ids)
    written = (place / "criteo.parquet").stat().st_mtime_ns
    assert main([*words, "out=second"]) == 0 and (place / "criteo.parquet").stat().st_mtime_ns == written


def test_the_curve_has_the_losses_and_the_aucs(tmp_path):
    made = [
        log.Line(step, 1 / step, 0.5 + step / 100 if step % 2 == 0 else None, 10, 1.0, "ours:fast")
        for step in (1, 2, 3, 4)
    ]
    text = log.draw(made, tmp_path).read_text()
    assert {"step", "loss (mean cross-entropy)", "AUC of the held-out rows", "AUC", "ours:fast"} <= set(
        re.findall(r">([^<>\n]+)<", text)
    )
    assert len(re.findall(r"<use ", text[text.index('id="line2d', text.index("AUC of the held-out rows")) :])) >= 2


def test_the_curve_is_drawn_through_the_losses_and_the_aucs_by_step(tmp_path, charts):
    """An AUC of 0 is one; where none was asked for is no point."""
    aucs = {2: 0.0, 4: 0.75}
    log.draw([log.Line(step, 2 / step, aucs.get(step), 10, 1.0, "ours:fast") for step in (1, 2, 4, 8)], tmp_path)
    losses, area = charts[0].axes
    assert losses.get_lines()[0].get_xydata().tolist() == [[1, 2], [2, 1], [4, 0.5], [8, 0.25]]
    assert area.get_lines()[0].get_xydata().tolist() == [[2, 0], [4, 0.75]]
    assert (losses.get_ylabel(), area.get_ylabel()) == ("loss (mean cross-entropy)", "AUC of the held-out rows")


def test_a_line_that_is_none_is_named_but_for_the_last(tmp_path):
    whole = [log.Line(step, 1.0, None, 10, 1.0, "ours:fast") for step in (1, 2)]
    for line in whole:
        log.append(line, tmp_path)
    file = tmp_path / log.FILE
    file.write_text(f'{file.read_text()}{{"step": 3')
    assert log.read(tmp_path) == whole, "a killed process left it unfinished"
    file.write_text("{}\n" + file.read_text())
    with pytest.raises(UsageError, match=r"train\.jsonl: line 1 is no line of a training log"):
        log.read(tmp_path)


def test_a_curve_that_the_disk_does_not_take_is_named(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(StorageError, match=r"curve\.svg cannot be written: No space left on device"):
        log.draw([log.Line(1, 1.0, 0.5, 10, 1.0, "ours:fast")], tmp_path)


def test_help_says_how_many_rows_there_are_unless_told(capsys):
    assert main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    assert "one epoch, 1000000 at the most" in out and "a tenth, 20000 at the most" in out


def test_each_stretch_is_a_hundredth_or_a_tenth_of_the_steps_unless_told(data, tmp_path, monkeypatch):  # noqa: F811
    seen = []
    monkeypatch.setattr(command, "_run", lambda loop, steps, every, *_: seen.append(every) or 0)
    for steps, expected in ((2000, Every(20, 200, 200)), (5, Every(1, 1, 1)), (111, Every(1, 12, 12))):
        assert train(data, tmp_path / str(steps), steps=steps) == 0 and seen[-1] == expected
    assert train(data, tmp_path / "told", "log_every=7", "evaluate_every=3", "checkpoint_every=2") == 0
    assert seen[-1] == Every(7, 3, 2)


def test_a_run_has_the_cores_the_precision_and_the_dtype_that_are_asked_for(data, tmp_path, monkeypatch):  # noqa: F811
    """Parameters stay float32 for the step; the forward pass has them in the dtype, as it is measured."""
    torch = pytest.importorskip("torch")
    seen = {}

    def run(loop, *_):
        seen["cores"], seen["precision"] = len(os.sched_getaffinity(0)), torch.get_float32_matmul_precision()
        for name in ("call", "predict"):
            made = getattr(loop.trainer, name)
            monkeypatch.setattr(
                loop.trainer, name, lambda *given, name=name, made=made: (seen.update({name: given}), made(*given))[1]
            )
        loop.trainer.step(next(loop.rows.training(0)))
        loop.trainer.auc(loop.test)
        seen["held out"] = loop.test.labels
        return 0

    monkeypatch.setattr(command, "_run", run)
    before = torch.get_float32_matmul_precision()
    try:
        assert train(data, tmp_path, "precision=tf32", "held_out=65", steps=1) == 0
        assert (seen["cores"], seen["precision"], len(seen["held out"])) == (1, "high", 128), "whole batches of 64"
        assert train(data, tmp_path, "dtype=bfloat16", steps=1) == 0
    finally:
        torch.set_float32_matmul_precision(before)
    names = {name: [str(array.dtype).removeprefix("torch.") for array in seen[name]] for name in ("call", "predict")}
    # dense, ids, labels, tables, offsets, layers; of the forward pass without labels
    assert names["call"][:5] == ["bfloat16", "int64", "float32", "float32", "int64"] and set(names["call"][5:]) == {
        "float32"
    }
    assert names["predict"][:4] == ["bfloat16", "int64", "bfloat16", "int64"] and set(names["predict"][4:]) == {
        "bfloat16"
    }
    assert [len(seen[name][0]) for name in ("call", "predict")] == [64, program.EVALUATED]


def test_a_run_sets_the_environment_of_workers(monkeypatch):
    expected = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "JAX_PLATFORMS": "cpu",
    }
    for name in expected:
        monkeypatch.setenv(name, "2" if name == "TF_CPP_MIN_LOG_LEVEL" else "before")
    kernel = discovery.find_kernels(discovery.roots_of())["dlrm"]
    session = program.start(kernel, "torch_eager", "cpu", "ieee")
    assert {name: os.environ[name] for name in expected} == expected
    assert session.name == "torch" and session.device.type == "cpu"
