"""In the places of a back end and of worker processes, for tests of what stands around them.

`StandIn` is a back end of NumPy arrays with a clock of its own, whose work ends later than its calls return, for `Bench`.
An implementation of it says how long it takes: `work(host, device)`. What it queues ends when it is waited for.
`Pools` has the workers of a comparison; `light_python` runs workers without a framework.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np

from fusebench import inputs
from fusebench.backends import numpy as on_host
from fusebench.case_data import SETS
from fusebench.contract import DTYPES, Device
from fusebench.machine import DeviceInfo
from fusebench.records.record import Build
from fusebench.timing.plan import Plan
from fusebench.timing.samples import Samples
from fusebench.workers import protocol

NAME = "fusebench.backends.stand_in"
HEAD = f'''import sys
work = sys.modules["{NAME}"].work
BACKEND = "torch"
'''


class StandIn(ModuleType):
    """Registered as a module of its own, because `Bench` imports its back end by name."""

    MUTABLE = True

    def __init__(self, device="cpu"):
        super().__init__(NAME)
        self.now, self.queued = 1000.0, 0.0
        self.events = []
        self.device = Device(device, "stand-in")
        self.operators, self.lost, self.held, self.peak = [], False, 123, 4567
        self.flushes = ()

    def perf_counter(self):
        return self.now

    def work(self, host, device=0.0):
        self.now += host
        self.queued += device

    def start(self, device):
        self.events.append(f"start {device}")
        return self.device

    def configure(self, precision):
        self.events.append(f"configure {precision}")

    def settings(self):
        return {}

    def reset_peak(self):
        self.events.append("reset_peak")

    def peak_bytes(self):
        self.events.append("peak_bytes")
        return self.peak

    def put(self, array, device):
        assert device is self.device
        self.events.append("put")
        self.queued += 1000
        return array.copy()

    def get(self, array):
        if self.lost:
            raise RuntimeError("the device is lost")
        return np.asarray(array)

    def half(self, array):
        return array * np.float32(0 if self.flushes == DTYPES else 0.5)

    def half_of_product(self, array):
        return array * array.dtype.type(0 if "bfloat16" in self.flushes else 0.5)

    saved = staticmethod(on_host.saved)
    mixed = staticmethod(on_host.mixed)
    unmasked = staticmethod(on_host.unmasked)

    def copy(self, array):
        return array.copy()

    def overwrite(self, array, value):
        array[...] = value
        return array

    def same(self, a, b):
        return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()

    def apart(self, a, b):
        return on_host.apart(a, b)

    def watch(self, call, arguments):
        self.events.append("watch")
        return call(*arguments), self.operators

    def is_array(self, value):
        return isinstance(value, np.ndarray)

    def fault(self, value, device):
        return None if type(value) is np.ndarray else type(value).__name__

    def memory(self, array):
        return np.lib.array_utils.byte_bounds(array)

    def wait(self, outputs):
        self.events.append("wait")
        self.now, self.queued = self.now + self.queued, 0.0

    def release(self):
        self.events.append("release")
        return self.held

    def versions(self):
        return "1.2", 3


def install(monkeypatch, device="cpu"):
    """A stand-in that `Bench("stand_in", …)` finds, and whose clock is the process's."""
    backend = StandIn(device)
    monkeypatch.setitem(sys.modules, NAME, backend)
    monkeypatch.setattr("time.perf_counter", backend.perf_counter)
    monkeypatch.setattr("time.perf_counter_ns", lambda: round(backend.now * 1e9))
    return backend


def light_python(folder):
    """An interpreter for `worker.python.torch=`, whose workers load no framework (light_worker.py)."""
    file = folder / "light-python"
    program = Path(__file__).with_name("light_worker.py")
    file.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    file.chmod(0o755)
    return str(file)


class Pools:
    """What stands in the place of `pairs.Pool`: workers that double in NumPy, and whatever a test plants in them.

    `plan(side, pair, do, turn)` may raise what a worker raises, or return another reply, the fields that are to be others, or
    for "time" a `median` and fields of its `timing`. `events` are the side, what it was asked for and the pair.
    """

    def __init__(self, plan=lambda *_: None):
        self.plan, self.events, self.made, self.messages = plan, [], [], []

    def __call__(self, device, roots, folder, threads=None, beside=None, timed=False):
        self.made.append((device, list(roots), folder, threads, beside and beside.side))
        return _Pool(self, folder.name[-1] if folder.name.startswith("side-") else "judges")

    def of(self, *wanted):
        """The events of these kinds, each as its side alone, pair by pair."""
        return [e for e in self.events if e[1] in wanted]


class _Pool:
    def __init__(self, pools, side):
        self.pools, self.side, self.workers = pools, side, {}
        self.number = sum(made[2].name == f"side-{side}" for made in pools.made) - 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pools.events.append((self.side, "leave", self.number))

    def start(self, backend, python):
        self.pools.events.append((self.side, "start", self.number))

    def get(self, backend, python, beside=False):
        self.pools.events.append((self.side, "get", self.number))
        return self.workers.setdefault((backend, python), _Worker(self))

    def drop(self, *home):
        self.pools.events.append((self.side, "drop", self.number))
        self.workers.pop(home, None)

    def stop(self):
        self.pools.events.append((self.side, "stop", self.number))


# what the tests call the messages
WORDS = {
    protocol.BuildCell: "build", protocol.RepeatCell: "repeat", protocol.TimeCell: "time", protocol.Release: "release",
}  # fmt: skip


class _Worker:
    def __init__(self, pool):
        self.pool, self.held_bytes, self.turn, self.sets = pool, 0, -1, None
        self.info = protocol.WorkerInfo(DeviceInfo("cpu", "stand-in"), {}, "3", ())

    def ask(self, request, expected, timeout_s):
        pools, side, number, do = self.pool.pools, self.pool.side, self.pool.number, WORDS[type(request)]
        pools.events.append((side, do, number))
        pools.messages.append((side, number, request, timeout_s))
        if do == "release":
            planted, self.turn = pools.plan(side, number, do, self.turn), -1
            return planted or protocol.Released()
        if do == "build":
            self.sets = request.sets
        outputs = ()
        if request.folder:
            (x,) = inputs.load(self.sets[0 if do == "build" else -1], Path(request.folder))
            outputs = tuple(inputs.save([2 * x], Path(request.folder), f"{side}-{do}"))
        planted = pools.plan(side, number, do, self.turn) or {}
        self.turn += do == "time"
        if isinstance(planted, protocol.Message):
            return planted
        if do == "build":
            reply = protocol.Built(Build(0.0, 1.0, 1, 400), outputs)
        elif do == "repeat":
            reply = protocol.Repeated(None, outputs)
        else:
            median = planted.pop("median", 1.0)
            timing = Samples("wall", Plan(regime="isolated", cache="warm"), [median] * 6).summary()
            reply = protocol.Timed(
                replace(timing, **planted.pop("timing", {})), differing=((SETS - 1, outputs),) if outputs else ()
            )
        return msgspec.structs.replace(reply, **planted)

    get = ask
