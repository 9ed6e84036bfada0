"""`fusebench train`: it learns, alike in every framework; what is interrupted goes on as if it had not been; bad input is named."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from fusebench import discovery, folder
from fusebench.cli import main
from fusebench.data import reading, synthesis, writing
from fusebench.errors import UsageError
from fusebench.training import checkpoint, log, program
from fusebench.training.rows import Rows, held_out

ROWS = 16_000
SMALL = ("case=small", "device=cpu", "batch=64", "threads=1")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    writing.write(folder / "criteo", synthesis.plant(1000), ROWS, 3, lambda rows: None)
    return folder / "criteo"


def train(data, out, *words, implementation="torch_eager", steps=20):
    return main(
        [
            "train",
            "dlrm",
            f"implementation={implementation}",
            f"steps={steps}",
            f"data={data}",
            f"out={out}",
            *SMALL,
            *words,
        ]
    )


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A folder with a run of 20 steps, a checkpoint after every 10."""
    out = tmp_path_factory.mktemp("train") / "out"
    assert train(data, out, "checkpoint_every=10", "evaluate_every=10", "log_every=5") == 0
    return out


def lines(out):
    return [json.loads(line) for line in (out / log.FILE).read_text().splitlines()]


def said(capsys, *words):
    """The one line of bad input."""
    capsys.readouterr()
    assert main(["train", *map(str, words)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("fusebench: ")
    return err


# It learns


def test_frameworks_reach_the_same_auc_in_a_short_run(data, tmp_path, capsys):
    found = {}
    for name in ("torch_eager", "flax"):
        assert train(data, tmp_path / name, "evaluate_every=200", implementation=name, steps=200) == 0
        out = capsys.readouterr().out
        last = lines(tmp_path / name)[-1]
        found[name] = last["auc"]
        assert f"step 200: loss {last['loss']:.4f}, AUC {last['auc']:.4f}" in out
        assert (tmp_path / name / log.CURVE).read_text().startswith("<?xml")
        assert last["implementation"] == f"{name}:modulus_in_place"
    assert found["torch_eager"] > 0.75
    assert abs(found["torch_eager"] - found["flax"]) < 0.01


@pytest.mark.gpu
def test_every_framework_reaches_the_same_auc_on_a_gpu(data, tmp_path):
    """Each in a process of its own: JAX chooses its device once."""
    found = {}
    for name in discovery.find_kernels([discovery.HOME])["dlrm_train"].implementations:
        words = ["train", "dlrm", f"implementation={name}", "steps=200", f"data={data}", f"out={tmp_path / name}"]
        command = [sys.executable, "-m", "fusebench", *words, "case=small", "batch=64", "evaluate_every=200"]
        subprocess.run(command, check=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
        found[name] = lines(tmp_path / name)[-1]["auc"]
    assert len(found) >= 6 and min(found.values()) > 0.75, found
    assert max(found.values()) - min(found.values()) < 0.01, found


def test_the_step_is_the_one_that_is_judged(data, tmp_path, monkeypatch):
    """A step in another implementation's place trains another model: this one leaves the parameters alone."""
    step = program.Trainer.step

    def idle(self, batch):
        kept = dict(self.arrays)
        loss = step(self, batch)
        self.arrays = kept
        return loss

    monkeypatch.setattr(program.Trainer, "step", idle)
    assert train(data, tmp_path, "checkpoint_every=1", implementation="torch_eager:modulus", steps=2) == 0
    first = checkpoint.load(tmp_path).parameters
    monkeypatch.undo()
    assert train(data, tmp_path, "resume=true", implementation="torch_eager:modulus", steps=3) == 0
    assert not np.array_equal(first["top_W1"], checkpoint.load(tmp_path).parameters["top_W1"])


def test_the_log_has_a_line_for_each_stretch_of_steps(trained):
    found = lines(trained)
    assert [line["step"] for line in found] == [5, 10, 15, 20]
    assert [line["auc"] is None for line in found] == [True, False, True, False]
    assert found[-1]["rows"] == 20 * 64 and 0 < found[0]["seconds"] <= found[-1]["seconds"]


def test_variants_in_place_and_not_make_the_same_parameters(data, trained, tmp_path):
    assert train(data, tmp_path, implementation="torch_eager:modulus") == 0
    ours, theirs = (checkpoint.load(out).parameters for out in (tmp_path, trained))
    assert all(np.array_equal(ours[name], theirs[name], equal_nan=True) for name in theirs)


def test_ids_share_rows_where_the_tables_are_the_cases(data, tmp_path):
    assert train(data, tmp_path, "shape.V=50", "shape.D=4", steps=2) == 0
    tables = checkpoint.load(tmp_path).parameters["tables"]
    assert tables.shape[1] == 4 and tables.shape[0] < 26 * 50


# It goes on


def test_a_run_that_goes_on_is_the_run_that_was_not_interrupted(data, trained, tmp_path):
    assert train(data, tmp_path, "checkpoint_every=10", steps=10) == 0
    assert main(["train", "dlrm", "steps=20", f"out={tmp_path}", "resume=true", "device=cpu"]) == 0
    whole, pieces = checkpoint.load(trained), checkpoint.load(tmp_path)
    assert pieces.step == whole.step == 20
    assert all(np.array_equal(pieces.parameters[n], a, equal_nan=True) for n, a in whole.parameters.items())


def test_another_implementation_may_go_on(data, trained, tmp_path):
    out = shutil.copytree(trained, tmp_path / "out")
    assert main(["train", "dlrm", "implementation=flax", "steps=22", f"out={out}", "resume=true", "device=cpu"]) == 0
    assert [line["implementation"] for line in lines(out)][-1] == "flax:modulus_in_place"


def test_what_a_killed_run_logged_after_its_checkpoint_is_done_again(trained, tmp_path):
    out = shutil.copytree(trained, tmp_path / "out")
    with (out / log.FILE).open("a") as file:
        file.write(json.dumps({**lines(out)[-1], "step": 25}) + "\n" + '{"step": 30, "lo')
    assert (
        main(
            [
                "train",
                "dlrm",
                "implementation=torch_eager",
                "steps=30",
                f"out={out}",
                "resume=true",
                "device=cpu",
                "log_every=10",
            ]
        )
        == 0
    )
    steps = [line["step"] for line in lines(out)]
    assert steps[:4] == [5, 10, 15, 20] and 25 not in steps and steps[-1] == 30 and steps == sorted(set(steps))


def test_a_checkpoint_is_whole_or_the_one_before(trained, tmp_path, monkeypatch):
    out = shutil.copytree(trained, tmp_path / "out")
    before = checkpoint.load(out)

    def killed(file, *arrays, **named):
        file.write(b"PK half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(checkpoint.Checkpoint(99, before.model, before.run, before.keys, before.parameters), out)
    assert checkpoint.load(out).step == before.step


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_checkpoint(data, tmp_path, monkeypatch, capsys):
    losses = program.Trainer.losses
    count = itertools.count(1)
    monkeypatch.setattr(
        program.Trainer, "losses", lambda self, kept: losses(self, kept) if next(count) < 3 else [float("nan")]
    )
    assert train(data, tmp_path, "log_every=5", "evaluate_every=20", "checkpoint_every=5") == 1
    assert "fusebench: the loss is nan between the steps" in capsys.readouterr().err
    assert checkpoint.load(tmp_path).step == 10


# The rows


def test_held_out_rows_are_never_trained_on_and_epochs_follow_one_another(data):
    rows = Rows(reading.open_file(data), 3000, 6000, log1p=True)
    test = rows.test()
    assert len(test.labels) == 6000 and rows.batches == 3
    first = list(itertools.islice(rows.training(0), 7))
    assert not any(np.array_equal(b.ids, test.ids[n : n + 3000]) for b in first for n in (0, 3000))
    assert all(np.array_equal(first[n].ids, first[n + 3].ids) for n in range(4)), "the next epoch"
    again = list(itertools.islice(rows.training(5), 2))
    assert [np.array_equal(a.ids, b.ids) for a, b in zip(first[5:], again, strict=True)] == [True, True]


def test_too_few_rows_are_named(data):
    with pytest.raises(UsageError, match="16000 rows: expected 16384 at least"):
        Rows(reading.open_file(data), 8192, 8192, log1p=True).check()


@pytest.mark.parametrize("held", [1, 63, 15_937, 16_000])
def test_held_out_rows_are_a_batch_at_least_and_leave_one(data, tmp_path, capsys, held):
    told = said(capsys, "dlrm", "implementation=torch_eager", "steps=1", f"data={data}", f"out={tmp_path}", *SMALL, f"held_out={held}")  # fmt: skip
    assert f"held_out={held}: rows are held out in whole batches of 64; expected 64 to 15936 of the 16000 rows" in told


@pytest.mark.parametrize(
    ("rows", "batch", "expected"), [(1000, 64, 64), (100, 64, 64), (10**6, 128, 19968), (10**6, 65536, 65536)]
)
def test_a_tenth_of_the_rows_is_held_out_in_whole_batches(rows, batch, expected):
    assert held_out(rows, batch, 20_000) == expected


# Bad input


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "expected train dlrm implementation=NAME steps=N"),
        (["dlmr", "implementation=flax", "steps=1"], "did you mean dlrm?"),
        (["dlrm", "steps=1"], "implementation= is missing"),
        (["dlrm", "implementation=flax"], "steps= is missing"),
        (["dlrm", "implementation=flaxx", "steps=1"], "did you mean flax?"),
        (["dlrm", "implementation=flax:modulo", "steps=1"], "it has the variants"),
        (["dlrm", "implementation=flax", "steps=0"], "steps is '0': expected a positive integer"),
        (["dlrm", "implementation=flax", "steps=1.5"], "steps is '1.5'"),
        (["dlrm", "implementation=flax", "steps=1", "stesp=2"], "did you mean steps?"),
        (["dlrm", "implementation=flax", "steps=1", "steps=2"], "steps= is there twice"),
        (["dlrm", "implementation=flax", "steps=1", "case=larg"], "did you mean large?"),
        (["dlrm", "implementation=flax", "steps=1", "case=odd"], "the case has F=5: the data has 26 columns of that kind"),
        (["dlrm", "implementation=flax", "steps=1", "shape.Q=3"], "'Q'"),
        (["dlrm", "implementation=flax", "steps=1", "shape.D=0"], "shape.D is '0'"),
        (["dlrm", "implementation=flax", "steps=1", "option.interaction=inner"], "There are: dot, outer"),
        (["dlrm", "implementation=flax", "steps=1", "dtype=float8"], "dtype"),
        (["dlrm", "implementation=flax", "steps=1", "dtype=float16"], "float16 needs a scaled loss"),
        (["dlrm", "implementation=flax", "steps=1", "batch=0"], "batch is '0'"),
        (["dlrm", "implementation=flax", "steps=1", "batch=9000"], "rows: expected"),
        (["dlrm", "implementation=flax", "steps=1", "threads=0"], "threads is 0: expected a number from 1 to"),
        (["dlrm", "implementation=flax", "steps=1", "log1p=yes"], "log1p=yes: expected true or false"),
        (["dlrm", "implementation=flax", "steps=1", "rows=5"], "rows= is of the synthetic set"),
        (["dlrm", "implementation=flax", "steps=1", "resume=true"], "resume=true"),
        (["dlrm", "implementation=flax", "steps=1", "checkpoint_every=0"], "checkpoint_every is '0'"),
        (["dlrm", "implementation=triton", "steps=1"], "implementation=triton is interpreted without a GPU"),
        (["dlrm", "implementation=cuda", "steps=1"], "implementation=cuda is emulated without a GPU"),
        (["dlrm", "implementation=flax", "steps=1", "data=nosuch.parquet"], "nosuch.parquet: there is no such file"),
    ],
)  # fmt: skip
def test_bad_input_is_named_and_nothing_is_written(words, says, data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    more = [f"data={data}"] if words[1:] and not any(word.startswith("data=") for word in words) else []
    assert says in said(capsys, *words, *more, *(["device=cpu"] if words[1:] else []))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("asked", ["out is in use", "holds a checkpoint"])
def test_a_folder_that_cannot_be_taken_is_refused_before_anything_is_loaded(asked, data, trained, monkeypatch, capsys):
    monkeypatch.setattr(reading, "open_file", lambda *_: pytest.fail("the rows are looked at"))
    words = ("dlrm", "implementation=torch_eager", "steps=40", f"data={data}", f"out={trained}")
    if asked == "holds a checkpoint":
        assert f"{trained} holds a checkpoint already: resume=true" in said(capsys, *words)
    else:
        with folder.held(trained):
            assert f"another process is at work in {trained}" in said(capsys, *words, "resume=true")


def test_a_checkpoint_of_other_sizes_or_data_is_named(trained, data, capsys):
    begin = ("dlrm", "implementation=torch_eager", "steps=30", f"out={trained}", "resume=true", "device=cpu")
    assert "has D 16, and this run 8" in said(capsys, *begin, "shape.D=8")
    assert "has M 64, and this run 32" in said(capsys, *begin, "batch=32")
    assert "has seed 0, and this run 1" in said(capsys, *begin, "seed=1")
    assert "is of step 20 already; expected more steps" in said(capsys, *begin[:2], "steps=20", *begin[3:])
    assert "steps=20: the checkpoint in" in said(capsys, "dlrm", f"out={trained}", "resume=true", "device=cpu")
    assert "holds a checkpoint already" in said(capsys, *begin[:4], f"data={data}", "device=cpu", *SMALL[::2])


def test_what_is_no_checkpoint_is_named(tmp_path, capsys):
    (tmp_path / checkpoint.FILE).write_bytes(b"PK nothing")
    begin = ("dlrm", "implementation=torch_eager", "steps=30", f"out={tmp_path}", "resume=true")
    assert "is no checkpoint" in said(capsys, *begin)
    np.savez(tmp_path / "checkpoint.npz", about=np.zeros(3))
    assert "is no checkpoint" in said(capsys, *begin)


def test_help_has_a_line_for_each_key(capsys):
    from fusebench.commands.train import KEYS

    assert main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {key}=" in out for key in KEYS)
