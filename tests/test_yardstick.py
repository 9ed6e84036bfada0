"""Yardsticks: what follows from them for a kernel, how they are measured, kept and shown; what the bound catches."""

from __future__ import annotations

import json

import pytest
from conftest import DEVICE

import fusebench
from fusebench.backends import torch as backend
from fusebench.cases import make_case
from fusebench.cli import main
from fusebench.contract import Cell, Device
from fusebench.run import Run, add_rates, run
from fusebench.settings import Settings
from fusebench.timing import yardstick, yardstick_cache
from fusebench.timing.plan import Plan

H200 = {"name": "NVIDIA H200"}
RATES = {
    "copy_gbps": 4.0,
    "read_gbps": 5.0,
    "launch_s": 1e-6,
    "matrix_tflops": 0.5,
}  # 4 and 5 bytes a ns, 0.5 FLOP a ps


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The file of a cache of the test's own."""
    monkeypatch.setenv("FUSEBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / yardstick_cache.FILE


class Worker:
    """Stands in for Torch's worker: each measurement has a rate of its own, one higher than the last."""

    def __init__(self, key="card", fails=()):
        self.key, self.fails, self.asked = key, fails, []

    def ask(self, message, timeout_s):
        if message["do"] == "yardstick_key":
            return {"key": self.key}
        self.asked.append(message["name"])
        if message["name"] in self.fails:
            return {"status": "failed", "reason": "OutOfMemoryError: no"}
        return {"value": float(len(self.asked)), "n": 1}


NAMES = ["copy_gbps", "launch_s"]


@pytest.mark.parametrize(
    ("flops", "moved", "written", "seconds"),
    [
        (0, 8e6, 4e6, 2e-3),  # a copy takes what the copy took
        (0, 8e6, 0, 1.6e-3),  # a sum what the sum took
        (0, 9e6, 2e6, 2e-3),  # 4 MB as a copy, the other 5 MB read
        (0, 8e6, 6e6, 2e-3),  # there is no rate of writing alone
        (0, 8, 4, 1e-6),  # nothing is faster than a launch
        (1e9, 8e6, 4e6, 2e-3),
        (1e10, 8e6, 4e6, 2e-2),  # the product takes longer than its traffic
    ],
)
def test_the_best_time_is_the_longest_of_launch_traffic_and_product(flops, moved, written, seconds):
    assert yardstick.best(flops, moved, written, RATES) == pytest.approx(seconds)


def test_without_rates_there_is_no_best_time():
    assert yardstick.best(1, 1, 1, {}) is None
    assert yardstick.as_rates({"copy_gbps": {"value": 1.0, "n": 1, "date": ""}}, NAMES) == {}
    assert yardstick.as_rates({n: {"reason": "no"} for n in NAMES}, NAMES) == {}


def test_only_what_multiplies_needs_a_matrix_rate():
    assert not [n for n in yardstick.needed("float16", "ieee", 0) if "matrix" in n]
    assert "matrix_tflops/float32/tf32" in yardstick.needed("float32", "tf32", 1)
    assert "matrix_tflops/float32/tf32" not in yardstick.every("cpu")


def test_the_bound_is_what_the_datasheet_allows():
    assert yardstick.bound(0, 4_800_000_000 + 63_000_000, "float32", "ieee", H200) == pytest.approx(1e-3)
    assert yardstick.bound(989_500_000_000, 0, "bfloat16", "ieee", H200) == pytest.approx(1e-3)
    assert yardstick.bound(66_900_000_000, 0, "float32", "ieee", H200) == pytest.approx(1e-3)
    assert yardstick.bound(989_500_000_000, 0, "float32", yardstick.UNKNOWN, H200) == pytest.approx(1e-3)
    assert yardstick.bound(10**12, 4_863_000_000, "int64", "ieee", H200) == pytest.approx(1e-3)
    assert yardstick.bound(1, 1, "float32", "ieee", {"name": "some CPU"}) is None
    assert yardstick.bound(0, 10**10, "float32", "ieee", {"name": "NVIDIA H200 MIG 1g.18gb"}) > 0
    assert yardstick.bound(0, 10**10, "float32", "ieee", {"name": "NVIDIA GH200 480GB"}) is None, "another card"


def timed(flops, moved, seconds, device=H200):
    """A record as it is before its rates, of a kernel in bfloat16."""
    case = {"dtype": "bfloat16", "precision": "ieee"}
    record = {"status": "ok", "case": case, "device": device, "flops": flops, "moved_bytes": moved}
    return record | {"written_bytes": moved // 2, "timing": {"median": seconds, "clocks": None}}


@pytest.mark.parametrize(
    ("flops", "moved", "honest_s"),
    [(0, 2 * 2**30, 2 * 2**30 / 4.1e12), (2 * 8192**3, 3 * 2**27, 2 * 8192**3 / 750e12)],
    ids=["copy at 4.1 TB/s", "product at 750 TFLOP/s"],
)
def test_half_the_work_is_implausible(flops, moved, honest_s):
    honest, half = timed(flops, moved, honest_s), timed(flops, moved, honest_s / 2)
    for record in (honest, half):
        add_rates(record, {})
    assert honest["status"] == "ok" and half["status"] == "implausible"
    assert "no such card can beat" in half["reason"] and honest["bound_s"] == half["bound_s"]


def test_half_the_work_passes_where_nothing_is_known_or_l2_holds_it():
    for record in (timed(0, 2 * 2**30, 1e-9, {"name": "some CPU"}), timed(0, 2**20, 1e-6)):
        add_rates(record, {})
        assert record["status"] == "ok"


@pytest.mark.parametrize("name", yardstick.every("cpu"))
def test_every_rate_is_measured(monkeypatch, name):
    monkeypatch.setattr(yardstick, "BYTES", {"cpu": 2**20})
    entry = yardstick.measure(backend, Device("cpu", "test"), name, 0.01)
    assert 0 < entry["value"] < (1 if name == "launch_s" else 1e6)
    assert entry["n"] == {"copy_gbps": 2**18, "read_gbps": 2**18, "launch_s": 1}.get(name, entry["n"])


def test_a_slow_product_is_measured_small():
    class Crawling:
        def product_call(self, n, dtype, device):
            return (lambda: backend.wait(__import__("time").sleep(0.03 if n >= 1024 else 0))), ()

        wait, configure = staticmethod(backend.wait), staticmethod(backend.configure)

    assert yardstick.measure(Crawling(), Device("cpu", "test"), "matrix_tflops/float16/ieee", 0.01)["n"] == 1024


def test_a_rate_is_measured_once(cache):
    worker = Worker()
    first = yardstick_cache.find(worker, NAMES[:1], 1)[1]
    both = yardstick_cache.find(worker, NAMES, 1)[1]
    assert worker.asked == NAMES and both["copy_gbps"] == first["copy_gbps"] and both["launch_s"]["value"] == 2
    assert (
        yardstick_cache.read("card") == both
        and both["copy_gbps"]["date"].startswith("20")
        and [f.name for f in cache.parent.iterdir()] == [cache.name]
    )


def test_another_device_or_fresh_is_measured_anew(cache):
    assert yardstick_cache.find(Worker(), NAMES, 1)[1] == yardstick_cache.find(Worker(), NAMES, 1)[1]
    for worker, fresh in ((Worker("other card"), False), (Worker(), True)):
        yardstick_cache.find(worker, NAMES, 1, fresh)
        assert worker.asked == NAMES
    assert set(json.loads(cache.read_text())) == {"card", "other card"}


def test_the_key_names_what_a_rate_holds_for():
    device = {"type": "cuda", "name": "NVIDIA H200", "driver": "580.1"}
    other = [(device | {"name": "B200"}, "2.11", 2), (device | {"driver": "590"}, "2.11", 2), (device, "2.12", 2)]
    assert yardstick.key(device, "2.11", 2) not in [yardstick.key(*o) for o in other]
    assert yardstick.key(device, "2.11", 2) == yardstick.key(device, "2.11", 4), "a GPU's rates are not the CPU's"
    assert yardstick.key(device | {"type": "cpu"}, "2.11", 2) != yardstick.key(device | {"type": "cpu"}, "2.11", 4)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[" * 100_000, '{"card": 1}', '{"card": {"copy_gbps": 3}}', '{"card": {"copy_gbps": {"value": -1.0, "n": 1, "date": ""}}}',
     '{"card": {"copy_gbps": {"value": Infinity, "n": 1, "date": ""}}}', '{"card": {"copy_gbps": {"value": 1.0}}}', b"\xff\xfe"],
    ids=range(10),
)  # fmt: skip
def test_a_broken_file_is_measured_anew_with_one_line(cache, capsys, text):
    cache.parent.mkdir()
    cache.write_bytes(text if isinstance(text, bytes) else text.encode())
    worker = Worker()
    assert yardstick_cache.find(worker, NAMES, 1)[1]["launch_s"]["value"] == 2 and worker.asked == NAMES
    (line,) = capsys.readouterr().err.splitlines()
    assert str(cache) in line and "anew" in line
    assert yardstick_cache.read("card")["launch_s"]["value"] == 2 and not capsys.readouterr().err, "it is mended"


def test_a_folder_that_cannot_be_written_costs_only_the_keeping(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUSEBENCH_CACHE", str(tmp_path / "file" / "cache"))
    assert yardstick_cache.find(Worker(), NAMES, 1)[1]["launch_s"]["value"] == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 2 and "not kept" in lines[-1] and "FUSEBENCH_CACHE" in lines[-1]


def test_a_write_that_fails_leaves_the_old_file(cache, monkeypatch, capsys):
    yardstick_cache.find(Worker(), NAMES[:1], 1)
    before = cache.read_text()
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    yardstick_cache.find(Worker(), NAMES, 1)
    assert cache.read_text() == before and "disk full" in capsys.readouterr().err
    assert [f.name for f in cache.parent.iterdir()] == [cache.name]


def test_a_rate_that_cannot_be_measured_has_its_reason_and_is_not_kept(cache):
    found = yardstick_cache.find(Worker(fails=NAMES[:1]), NAMES, 1)[1]
    assert "OutOfMemory" in found["copy_gbps"]["reason"] and found["launch_s"]["value"] == 2
    assert list(yardstick_cache.read("card")) == ["launch_s"]


def test_the_cache_lies_where_the_user_s_caches_do(tmp_path, monkeypatch):
    monkeypatch.delenv("FUSEBENCH_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert yardstick_cache.folder() == tmp_path / "xdg" / "fusebench"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/void")
    assert yardstick_cache.folder() == tmp_path / ".cache" / "fusebench"


def test_records_and_the_command_tell_the_same(kernels, roots, tmp_path, capsys):
    cell = Cell(make_case(kernels["lola"], "odd"), "torch_eager", "default")
    (r,) = run(Run(kernels, roots, tmp_path / "run", Settings(DEVICE, Plan(0.02))), [cell])
    assert r["best_s"] / r["timing"]["median"] == pytest.approx(r["yardstick_share"])
    assert r["written_bytes"] == 4 * r["case"]["sizes"]["M"] * r["case"]["sizes"]["N"]
    assert main(["yardsticks", f"device={DEVICE}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["yardsticks"]
    assert (
        list(shown) == yardstick.every(DEVICE) and shown["copy_gbps"]["date"] == r["yardstick"]["measured"]["copy_gbps"]
    )
    assert shown["matrix_tflops/float32/ieee"]["value"] == r["yardstick"]["matrix_tflops"]
    assert main(["yardsticks", f"device={DEVICE}"]) == 0
    printed = capsys.readouterr().out
    assert f"{shown['read_gbps']['value']:.4g} GB/s" in printed and shown["launch_s"]["date"] in printed


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU the threads are not part of the key")
def test_the_command_shows_the_rates_of_a_number_of_threads(cache, capsys):
    assert main(["yardsticks", "device=cpu", "threads=1", "--json"]) == 0
    assert ", 1 threads, " in json.loads(capsys.readouterr().out)["key"]


def test_measure_uses_what_earlier_runs_left(cache):
    import torch

    x = torch.ones(1000)
    assert fusebench.measure(torch.neg, x, time_s=0.01, moved_bytes=8000)["best_s"] is None
    device = fusebench.measure(torch.neg, x, time_s=0.01)["device"]
    entries = {n: {"value": RATES[n], "n": 1, "date": "2026"} for n in ("copy_gbps", "read_gbps", "launch_s")}
    yardstick_cache.keep(yardstick.key(device, *backend.versions()), entries)
    record = fusebench.measure(torch.neg, x, time_s=0.01, moved_bytes=8000)
    assert record["best_s"] == pytest.approx(2e-6) and record["written_bytes"] == 4000


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
