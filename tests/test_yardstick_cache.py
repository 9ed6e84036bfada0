"""The file of yardsticks: a rate is measured once a device, driver and Torch, and a broken file costs a line and a measurement."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import pytest

from fusebench.timing import yardstick_cache
from fusebench.timing.yardstick import Missing
from fusebench.workers import protocol, yardsticks
from fusebench.workers.pool import WorkerLost

NAMES = ["copy_gbps", "launch_s"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The file of a cache of the test's own."""
    monkeypatch.setenv("FUSEBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / yardstick_cache.FILE


class Worker:
    """Stands in for Torch's worker: each measurement has a rate of its own, one higher than the last."""

    def __init__(self, key="card", fails=(), dies=()):
        self.key, self.fails, self.dies, self.asked, self.messages = key, fails, dies, [], []

    def get(self, request, expected, timeout_s):
        return self.ask(request, expected, timeout_s)

    def ask(self, request, expected, timeout_s):
        self.messages.append((request, timeout_s))
        if isinstance(request, protocol.AskYardstickKey):
            return protocol.YardstickKey(self.key)
        self.asked.append(request.name)
        if request.name in self.dies:
            raise WorkerLost("crashed", "gone")
        if request.name in self.fails:
            return protocol.Refused("failed", "OutOfMemoryError: no")
        return protocol.MeasuredRate(float(len(self.asked)), 7)


def test_a_rate_is_measured_once(cache):
    worker = Worker()
    first = yardsticks.find(worker, NAMES[:1], 1)[1]
    key, both = yardsticks.find(worker, NAMES, 1)
    assert worker.asked == NAMES and both["copy_gbps"] == first["copy_gbps"]
    assert (key, {name: (e.value, e.n) for name, e in both.items()}) == (
        "card",
        {"copy_gbps": (1.0, 7), "launch_s": (2.0, 7)},
    )
    assert yardstick_cache.read("card") == both and [f.name for f in cache.parent.iterdir()] == [cache.name]
    assert json.loads(cache.read_text()) == {"card": {name: asdict(rate) for name, rate in both.items()}}
    assert list(yardsticks.find(worker, NAMES[1:], 1)[1]) == NAMES[1:], "no more than is asked for"


def test_a_measurement_is_asked_for_with_its_budget_and_time_out_and_announced(cache):
    worker, heard = Worker(), []
    yardsticks.find(worker, NAMES, 12.5, on_name=lambda name: heard.append((name, len(worker.asked))))
    assert worker.messages == [(protocol.AskYardstickKey(), 12.5)] + [
        (protocol.MeasureRate(name, 0.2), 12.5) for name in NAMES
    ]
    assert heard == [("copy_gbps", 0), ("launch_s", 1)], "before each"
    yardsticks.find(worker, NAMES, 1, on_name=heard.append)
    assert len(heard) == 2, "what is known is not measured"


def test_a_rate_keeps_the_date_on_which_it_was_measured(cache):
    entry = yardsticks.find(Worker(), NAMES[:1], 1)[1]["copy_gbps"]
    date = datetime.fromisoformat(entry.date)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", entry.date)
    assert abs(datetime.now(UTC) - date) < timedelta(minutes=10)
    yardstick_cache.keep("card", {"copy_gbps": replace(entry, date="2001")})
    assert yardsticks.find(Worker(), NAMES, 1)[1]["copy_gbps"].date == "2001"


def test_another_device_or_fresh_is_measured_anew(cache):
    known = yardsticks.find(Worker(), NAMES, 1)[1]
    yardstick_cache.keep("card", {"read_gbps": known["copy_gbps"]})
    other, fresh = Worker("other card"), Worker(fails=NAMES[:1])
    assert yardsticks.find(other, NAMES, 1)[0] == "other card" and other.asked == NAMES
    found = yardsticks.find(fresh, NAMES, 1, True)[1]
    assert fresh.asked == NAMES and isinstance(found["copy_gbps"], Missing), "an older rate does not stand in"
    assert set(json.loads(cache.read_text())) == {"card", "other card"}
    assert set(yardstick_cache.read("card")) == {*NAMES, "read_gbps"}, "what was not measured now is kept"


def test_a_worker_that_dies_leaves_what_was_measured_before(cache):
    with pytest.raises(WorkerLost):
        yardsticks.find(Worker(dies=["read_gbps"]), [*NAMES, "read_gbps"], 1)
    assert list(yardstick_cache.read("card")) == NAMES
    with pytest.raises(WorkerLost):
        yardsticks.find(Worker("new", dies=NAMES), NAMES, 1)
    assert set(json.loads(cache.read_text())) == {"card"}, "nothing measured, nothing kept"


def test_a_rate_that_cannot_be_measured_has_its_reason_and_is_not_kept(cache):
    found = yardsticks.find(Worker(fails=NAMES[:1]), NAMES, 1)[1]
    assert found["copy_gbps"] == Missing("OutOfMemoryError: no") and found["launch_s"].value == 2
    assert list(yardstick_cache.read("card")) == ["launch_s"]


def file_of(**changed):
    """A file with one entry, right but for what is changed."""
    return json.dumps({"other": {}, "card": {"copy_gbps": {"value": 1.0, "n": 1, "date": "2001"} | changed}})


def test_an_entry_with_a_rate_a_size_and_a_date_is_used(cache):
    cache.parent.mkdir()
    cache.write_text(file_of())
    worker = Worker()
    assert yardsticks.find(worker, NAMES, 1)[1]["copy_gbps"].date == "2001" and worker.asked == ["launch_s"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[" * 100_000, '{"card": 1}', '{"card": {"copy_gbps": 3}}', b"\xff\xfe", '{"card": {"copy_gbps": {}}}',
     file_of(value=-1.0), file_of(value=0.0), file_of(value=float("inf")), file_of(value=float("nan")), file_of(value="1"), file_of(value=None),
     file_of(n=None), file_of(n=1.5), file_of(date=None), file_of(date=2001)],
    ids=range(18),
)  # fmt: skip
def test_a_broken_file_is_measured_anew_with_one_line(cache, capsys, text):
    cache.parent.mkdir()
    cache.write_bytes(text if isinstance(text, bytes) else text.encode())
    worker = Worker()
    assert yardsticks.find(worker, NAMES, 1)[1]["launch_s"].value == 2 and worker.asked == NAMES
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fusebench: {cache} cannot be used (") and "measured anew" in line
    assert yardstick_cache.read("card")["launch_s"].value == 2 and not capsys.readouterr().err, "it is mended"


def test_a_first_run_has_nothing_to_warn_of(cache, capsys):
    assert yardstick_cache.read("card") == {} and not cache.parent.exists()
    yardsticks.find(Worker(), NAMES, 1)
    assert yardstick_cache.read("another card") == {} and not capsys.readouterr().err


def test_a_folder_that_cannot_be_written_costs_only_the_keeping(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUSEBENCH_CACHE", str(tmp_path / "file" / "cache"))
    assert yardsticks.find(Worker(), NAMES, 1)[1]["launch_s"].value == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 2 and "not kept" in lines[-1] and "FUSEBENCH_CACHE" in lines[-1]


def test_a_write_that_fails_leaves_the_old_file(cache, monkeypatch, capsys):
    yardsticks.find(Worker(), NAMES[:1], 1)
    before = cache.read_text()
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("disk\nfull")))
    yardsticks.find(Worker(), NAMES, 1)
    (line,) = capsys.readouterr().err.splitlines()
    assert cache.read_text() == before and "disk full" in line
    assert [f.name for f in cache.parent.iterdir()] == [cache.name]


def test_a_new_file_that_is_gone_costs_only_the_keeping(cache, monkeypatch, capsys):
    def gone(new, old):
        new.unlink()
        raise OSError("no such file")

    monkeypatch.setattr("pathlib.Path.replace", gone)
    assert yardsticks.find(Worker(), NAMES, 1)[1]["launch_s"].value == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "not kept" in line and not list(cache.parent.iterdir())


def test_a_reader_beside_a_writer_sees_the_old_file_or_the_new_one(cache, monkeypatch):
    """The new one is whole before it takes the old one's place, in the same folder, where that is one step."""
    yardsticks.find(Worker(), NAMES[:1], 1)
    original, seen = type(cache).replace, []

    def watched(new, old):
        seen.append((set(json.loads(new.read_text())["card"]), set(json.loads(old.read_text())["card"])))
        assert (new.parent, old) == (cache.parent, cache) and new.name.startswith(f".{cache.name}.")
        return original(new, old)

    monkeypatch.setattr("pathlib.Path.replace", watched)
    yardsticks.find(Worker(), NAMES, 1)
    assert seen == [({*NAMES}, {NAMES[0]})]


def test_the_cache_lies_where_the_user_s_caches_do(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEBENCH_CACHE", str(tmp_path / "own"))
    assert yardstick_cache.folder() == tmp_path / "own"
    monkeypatch.setenv("FUSEBENCH_CACHE", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert yardstick_cache.folder() == tmp_path / "xdg" / "fusebench"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/void")
    assert yardstick_cache.folder() == tmp_path / ".cache" / "fusebench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert yardstick_cache.folder() == tmp_path / ".cache" / "fusebench"


def test_a_user_without_a_home_measures_each_time(monkeypatch, capsys):
    monkeypatch.delenv("FUSEBENCH_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    for _ in range(2):
        worker = Worker()
        assert yardsticks.find(worker, NAMES, 1)[1]["launch_s"].value == 2 and worker.asked == NAMES
        (line,) = capsys.readouterr().err.splitlines()
        assert "not kept" in line and "no home" in line
