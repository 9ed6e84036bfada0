"""Records and workers made by hand, from known samples: the one place where the tests say what a record looks like."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from fusebench import inputs, provenance
from fusebench.cell import rated
from fusebench.contract import Case, Cell
from fusebench.machine import DeviceInfo
from fusebench.parity.verdict import Verdict
from fusebench.records.record import Build, Parity, Work
from fusebench.timing.clocks import Check
from fusebench.timing.plan import Plan
from fusebench.timing.samples import Samples
from fusebench.timing.state import State
from fusebench.timing.yardstick import Rates
from fusebench.workers import protocol
from fusebench.workers.pool import WorkerLost

US = 1e-6
CPU = DeviceInfo("cpu", "some CPU", driver="6.1", cores=4, threads=2)
GPU = DeviceInfo("cuda", "some GPU", (9, 0), "580", 132, 4, 2)
# 100 and 125 bytes a ns, 50 FLOPs a ps, a launch of 2 µs
RATES = Rates(100.0, 125.0, 2e-6, {"copy_gbps": "2026"}, matrix_tflops=50.0, n=8192)
# Median 100 µs, and the 95 % interval of six samples is from the least to the greatest: 94 to 108 µs, so ± 7 %.
TIMES = [x * US for x in (96, 94, 99, 101, 102, 108)]


def case(kernel="lola", dtype="float32", precision="ieee", id="batch/float32/ieee", **sizes):
    return Case(kernel, sizes or {"M": 3, "K": 5, "N": 7}, dtype, precision, {}, id=id)


def untimed(label="torch_eager", status="ok", device=GPU, of=None, seed=0, inputs="plain", work=(0, 0), **more):
    """The record of a cell whose case is `of`, without figures; `work` is FLOPs and compulsory bytes."""
    implementation, _, variant = label.partition(":")
    cell = Cell(of or case(), implementation, variant or "default", seed, inputs)
    made = provenance.new_record(cell, device.type)
    environment = replace(made.environment, device=device)
    return replace(made, status=status, environment=environment, work=Work(*work), **more)


def timing(times=TIMES, regime="queued", cache="cold", target=0.01, wall=None, **more):
    """A summary of samples, in seconds; `wall` is what the second clock showed for one isolated call of 100 µs by CUPTI."""
    samples = Samples("cupti", Plan(0.5, target, regime, cache), list(times), **more)
    if wall is not None:
        samples.check, samples.profiles = [Check(wall, 100 * US, 90 * US, 0.0)], [(1.0, 1.0)]
    return samples.summary()


def timed(
    label="torch_eager", times=TIMES, rates=RATES, how=None, status="ok", written_bytes=0, points=(), verdicts=None, **more
):  # fmt: skip
    """The record of a cell that was timed, with its rates; `how` goes to `timing`."""
    build = Build(0.0, 0.0, None, written_bytes, points)
    record = untimed(label, build=build, parity=verdicts or Parity(parity(0.5)), **more)
    record = rated(replace(record, timing=timing(times, **(how or {}))), rates)
    return record if status == "ok" else replace(record, status=status, reason="why")


def parity(ratio, **more):
    """A verdict as a record keeps it."""
    figures = {
        "max_abs": 3e-4, "max_rel": 2e-3, "ulps": 5.0, "index": (2, 1), "got": 1.2345678, "expected": 1.25, "budget": 6e-4,
        "output": 0, "checked": 21, "rms_limit": 1.0, "mean_limits": (-1.0, 1.0),
    }  # fmt: skip
    return Verdict(ratio=ratio, **(figures | more))


STATES = [
    State(sm_mhz=1980, power_w=300.0, temperature_c=40, power_capped=False),
    State(sm_mhz=1500, power_w=700.0, temperature_c=60, power_capped=True),
]


# Printed tables


def table_of(text, first):
    """The rows of the printed table whose first heading is `first`: {heading: cell}. A cell stands flush with its heading."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if re.match(rf" *{re.escape(first)}(  |$)", line))
    headings = list(_cells(lines[at]))
    rows = []
    for line in lines[at + 2 :]:
        if not line.strip():
            break
        row = dict.fromkeys((h.group() for h in headings), "")
        for cell in _cells(line):
            (heading,) = [h.group() for h in headings if h.start() == cell.start() or h.end() == cell.end()]
            row[heading] = cell.group()
        rows.append(row)
    return rows


def _cells(line):
    return re.finditer(r"\S+(?: \S+)*", line)


# A pool without processes


class Worker:
    """Stands in for a worker of the fixture kernels `double` and `fault`, y = 2 x. `answers` says what else it replies to a kind
    of message: fields of the reply that are replaced, another reply, an exception that is raised, or a function of the message
    that gives one of them. `takes_s` moves `now`, a clock of the test's."""

    def __init__(self, answers=None, times=TIMES, device=CPU, clock=None, takes_s=None):
        self.answers, self.times, self.clock, self.takes_s = answers or {}, times, clock, takes_s or {}
        self.info = protocol.WorkerInfo(device, {"numpy": "2"}, "3.12.1", ())
        self.asked, self.timeouts, self.held_bytes, self.used = [], [], 0, False

    def ask(self, request, expected, timeout_s):
        self.asked.append(request)
        self.timeouts.append(timeout_s)
        if self.clock is not None:
            self.clock.now += self.takes_s.get(type(request), 0.0)
        change = self.answers.get(type(request), {})
        change = change(request) if callable(change) else change
        if isinstance(change, Exception):
            raise change
        reply = change if isinstance(change, protocol.Message) else self.reply(request)
        reply = msgspec.structs.replace(reply, **change) if isinstance(change, dict) else reply
        assert isinstance(reply, expected | protocol.Refused)
        return reply

    def get(self, request, expected, timeout_s):
        reply = self.ask(request, expected, timeout_s)
        if isinstance(reply, protocol.Refused):
            raise WorkerLost(reply.status, reply.reason)
        return reply

    def reply(self, request):
        match request:
            case protocol.BuildCell():
                self.sets, self.folder = request.sets, Path(request.folder)
                return protocol.Built(Build(0.25, 3.0, 10**6, 28), self.save(0, "first"))
            case protocol.RepeatCell():
                return protocol.Repeated(None, self.save(-1, "repeated"))
            case protocol.TimeCell():
                differing = ((len(self.sets) - 1, self.save(-1, "timed")),) if request.folder else ()
                return protocol.Timed(timing(self.times, "isolated", "warm"), differing=differing)
            case protocol.Release():
                return protocol.Released(12)
            case protocol.AskYardstickKey():
                return protocol.YardstickKey("card")
            case protocol.MeasureRate():
                known = {"copy_gbps": 4.0, "read_gbps": 5.0, "launch_s": 1e-6}
                return protocol.MeasuredRate(known.get(request.name, 0.5), 1)

    def save(self, number, stem):
        (x,) = inputs.load(self.sets[number], self.folder)
        return tuple(inputs.save([2 * x], self.folder, stem))


class Pool:
    """Hands out the same worker for everything, and counts."""

    def __init__(self, worker=None, lost=()):
        self.worker, self.lost = worker or Worker(), lost
        self.rates, self.events = {}, []

    def start(self, *home):
        self.events.append(("start", *home))

    def get(self, *home, beside=False):
        self.events.append(("get", *home))
        if home[0] in self.lost:
            raise WorkerLost("crashed", "it is gone")
        return self.worker

    def drop(self, *home):
        self.events.append(("drop", *home))


class Now:
    """A clock that only the test moves: `monkeypatch.setattr("time.perf_counter", Now())`."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


def wrong(worker, number, stem):
    """Output files of `worker` that are right for the input set of that number alone."""
    (x,) = inputs.load(worker.sets[number], worker.folder)
    return tuple(inputs.save([np.float32(2) * x], worker.folder, stem))
