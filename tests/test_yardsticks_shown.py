"""Yardsticks from PyTorch to the printed table: what is really measured, what a record takes over, what the command shows."""

from __future__ import annotations

import json
import re
import sys

import msgspec
import pytest
import samples
from conftest import DEVICE
from simulated import CPU, SimulatedCpu

import fusebench
from fusebench.backends import torch as backend
from fusebench.cases import make_case
from fusebench.cli import main
from fusebench.commands import yardsticks
from fusebench.contract import Cell
from fusebench.machine import DeviceInfo
from fusebench.timing import yardstick, yardstick_cache
from fusebench.timing.yardstick import Rate
from fusebench.workers.pool import WorkerLost
from fusebench.workers.protocol import AskYardstickKey, MeasureRate, Refused, YardstickKey


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("FUSEBENCH_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "value", "n", "shapes", "dtype"),
    [
        ("copy_gbps", 2 * 2**20 / 1e-3 / 1e9, 2**18, [(2**18,), (2**18,)], "float32"),
        ("read_gbps", 2**20 / 1e-3 / 1e9, 2**18, [(2**18,)], "float32"),
        ("launch_s", 1e-3, 1, [(1,)], "float32"),
        ("matrix_tflops/float32/ieee", 2 * 256**3 / 1e-3 / 1e12, 256, [(256, 256)] * 2, "float32"),
        ("matrix_tflops/float16/ieee", 2 * 256**3 / 1e-3 / 1e12, 256, [(256, 256)] * 2, "float16"),
        ("matrix_tflops/bfloat16/ieee", 2 * 256**3 / 1e-3 / 1e12, 256, [(256, 256)] * 2, "bfloat16"),
    ],
)
def test_every_rate_is_that_of_torch_s_call(monkeypatch, name, value, n, shapes, dtype):
    """Torch computes, while a simulated clock says that each call takes a millisecond."""
    import torch

    monkeypatch.setattr(yardstick, "BYTES", {"cpu": 2**20})
    monkeypatch.setattr(yardstick, "LARGEST_PRODUCT", 256)
    timed = []

    class Torch(SimulatedCpu):
        def __getattr__(self, asked):
            make = getattr(backend, asked)

            def made(*args):
                call, arguments = make(*args)

                def watched(*arguments):
                    self.work(0.0, 1e-3)
                    timed[:] = arguments, call(*arguments)

                return watched, arguments

            return made if asked.endswith("_call") else make

    found = yardstick.measure(Torch(monkeypatch), CPU, name, 0.004)
    arguments, output = timed
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    assert found == (pytest.approx(value), n)
    assert [tuple(t.shape) for t in tensors] == shapes and {str(t.dtype) for t in tensors} == {f"torch.{dtype}"}
    if name.startswith("matrix"):
        a, b = (t.double() for t in tensors)
        assert torch.allclose(output.double(), a @ b, rtol=0.02, atol=0.5) and a.std() > 0.5, "zeros would be faster"
    elif name == "copy_gbps":
        assert torch.equal(*tensors) and tensors[0].data_ptr() != tensors[1].data_ptr()
    else:
        assert output.item() == (2**18 if name == "read_gbps" else 1)


def test_records_and_the_command_tell_the_same(kernels, run_cells, pool, cache, monkeypatch, capsys):
    """Rates that an earlier run left, and one that is measured now."""
    monkeypatch.setattr(pool, "rates", {})
    worker = pool.get("torch", sys.executable)
    left = {name: Rate(10.0 + i, 512, f"{2001 + i}") for i, name in enumerate(yardstick.every(DEVICE))}
    del left["launch_s"]
    yardstick_cache.keep(worker.get(AskYardstickKey(), YardstickKey, 60).key, left)
    (r,) = run_cells([Cell(make_case(kernels["lola"], "odd"), "torch_eager", "default")], time_s=0.02)
    assert r.rates.best_s / r.timing.median == pytest.approx(r.rates.yardstick_share)
    assert r.build.written_bytes == 4 * r.case.sizes["M"] * r.case.sizes["N"]
    worker = pool.get("torch", sys.executable)  # one that has run cells gave way to a fresh one
    monkeypatch.setattr(yardsticks, "Pool", lambda *_: Command(worker))
    assert main(["yardsticks", f"device={DEVICE}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["yardsticks"]
    assert list(shown) == yardstick.every(DEVICE)
    for name in ("copy_gbps", "read_gbps", "launch_s", "matrix_tflops/float32/ieee"):
        what, rate = name.split("/")[0], shown[name]
        assert getattr(r.rates.yardsticks, what) == rate["value"] and r.rates.yardsticks.measured[what] == rate["date"]
        assert name == "launch_s" or left[name].value == rate["value"]


class Command:
    """The pool of the command, with that worker, and what was asked of it."""

    def __init__(self, worker):
        self.worker, self.asked = worker, []

    def __call__(self, *arguments):
        self.asked.append(arguments)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def get(self, name, python):
        assert name == "torch"
        return self.worker


H200 = DeviceInfo("cuda", "NVIDIA H200", driver="580")


class Worker(samples.Worker):
    """A GPU's worker, whose rates are these."""

    rates = {  # noqa: RUF012
        "copy_gbps": 4276.0, "read_gbps": 4186.4, "launch_s": 0.67e-6, "matrix_tflops/float32/ieee": 51.5,
        "matrix_tflops/float32/tf32": 409.0, "matrix_tflops/float16/ieee": 753.0, "matrix_tflops/bfloat16/ieee": 785.0,
    }  # fmt: skip

    def __init__(self, lacks=(), dies=False):
        super().__init__({AskYardstickKey: {"key": "the card [1]"}, MeasureRate: self.rate}, device=H200)
        self.lacks, self.dies, self.names = lacks, dies, []

    def rate(self, asked):
        self.names.append(asked.name)
        if self.dies:
            return WorkerLost("crashed", "ended by signal 9")
        if asked.name in self.lacks:
            return Refused("failed", "OutOfMemoryError: no")
        return {"value": self.rates[asked.name], "n": 8192}


@pytest.fixture
def command(monkeypatch, cache):
    monkeypatch.setattr(yardsticks, "resolve_device", lambda device: "cuda" if device == "auto" else device)
    command = Command(Worker())
    monkeypatch.setattr(yardsticks, "Pool", command)
    return command


def test_the_command_shows_each_rate_in_its_unit_with_its_share_of_the_datasheet(command, capsys):
    assert main(["yardsticks"]) == 0
    printed = capsys.readouterr().out
    rows = [re.split(r"\s{2,}|\s*[│|]\s*", line.strip(" │|")) for line in printed.splitlines()]
    date = yardstick_cache.read("the card [1]")["copy_gbps"].date
    for row in (
        ["copy", "4276 GB/s", "89%", "8192", date],
        ["read", "4186 GB/s", "87%", "8192", date],
        ["product float32 ieee", "51.5 TFLOP/s", "77%", "8192", date],
        ["product float32 tf32", "409 TFLOP/s", "83%", "8192", date],
        ["product float16 ieee", "753 TFLOP/s", "76%", "8192", date],
        ["product bfloat16 ieee", "785 TFLOP/s", "79%", "8192", date],
    ):
        assert row in rows, printed
    (launch,) = [row for row in rows if row[0] == "launch"]
    assert "670 ns" in launch or "0.67 µs" in launch
    assert "%" not in "".join(launch) and "the card [1]" in printed


def test_the_command_s_json_has_the_entries_with_their_shares(command, capsys):
    assert main(["yardsticks", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["key"], shown["device"]) == ("the card [1]", json.loads(msgspec.json.encode(H200)))
    assert {name: entry["value"] for name, entry in shown["yardsticks"].items()} == Worker.rates
    shares = {name: entry["datasheet_share"] for name, entry in shown["yardsticks"].items()}
    assert shares["launch_s"] is None and shares["copy_gbps"] == pytest.approx(4276 / 4800)
    assert shares["matrix_tflops/float32/tf32"] == pytest.approx(409 / 494.7)
    assert shares["matrix_tflops/float32/ieee"] == pytest.approx(51.5 / 66.9)


def test_the_command_measures_what_is_not_known_and_all_if_fresh(command):
    for arguments, count in (([], 7), ([], 0), (["fresh=false"], 0), (["fresh=true"], 7)):
        command.worker.names.clear()
        assert main(["yardsticks", *arguments]) == 0
        assert len(command.worker.names) == count


@pytest.mark.parametrize(
    ("arguments", "device", "threads"), [([], "cuda", None), (["device=cpu", "threads=1"], "cpu", 1)]
)
def test_the_command_measures_on_the_device_and_the_threads_that_are_asked_for(command, arguments, device, threads):
    assert main(["yardsticks", *arguments]) == 0
    ((asked_device, _, _, asked_threads),) = command.asked
    assert (asked_device, asked_threads) == (device, threads)
    assert command.worker.names == yardstick.every(device)


def test_a_rate_that_cannot_be_measured_is_said_below_the_table(command, capsys):
    command.worker = Worker(lacks=["read_gbps"])
    assert main(["yardsticks"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "fusebench: read_gbps could not be measured: OutOfMemoryError: no\n"
    assert "4276 GB/s" in captured.out and "read" not in captured.out


def test_a_worker_that_dies_is_said_in_one_line(command, capsys):
    command.worker = Worker(dies=True)
    assert main(["yardsticks"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "fusebench: the yardsticks could not be measured: ended by signal 9\n" and not captured.out


def test_measure_uses_what_earlier_runs_left(cache):
    import torch

    x = torch.ones(1000)
    first = fusebench.measure(torch.neg, x, time_s=0.01, moved_bytes=8000)
    assert first.rates.best_s is None
    rates = {"copy_gbps": Rate(4.0, 1, "2026"), "read_gbps": Rate(5.0, 1, "2026"), "launch_s": Rate(1e-6, 1, "2026")}
    yardstick_cache.keep(yardstick.key(first.device, *backend.versions()), rates)
    record = fusebench.measure(torch.neg, x, time_s=0.01, moved_bytes=8000)
    assert record.rates.best_s == pytest.approx(2e-6) and record.build.written_bytes == 4000


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("devise=cpu", "did you mean device"),
        ("device=tpu", "auto, cpu, cuda"),
        ("fresh=maybe", "true or false"),
        ("threads=0", "threads is 0"),
        ("threads=many", "threads is many"),
        ("--jsn", "'--jsn'"),
        ("cpu", "'cpu'"),
    ],
)
def test_a_wrong_argument_is_answered_by_one_line(capsys, argument, named):
    assert main(["yardsticks", argument]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1 and named in captured.err and not captured.out


def test_help_names_the_keys(capsys):
    assert main(["yardsticks", "--help"]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("device=", "threads=", "fresh=", "--json", "FUSEBENCH_CACHE"))
