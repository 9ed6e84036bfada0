"""Simulated devices: clocks that simulated work alone moves, so that every figure of the clock is known beforehand."""

from __future__ import annotations

import itertools

from fusebench.contract import Device
from fusebench.timing import cupti, state
from fusebench.timing.cupti import Kernel
from fusebench.timing.measure import measure
from fusebench.timing.state import State

GPU = Device("cuda", "simulated", (9, 0))
CPU = Device("cpu", "simulated")
LAUNCH_S, WAIT_S, FLUSH_S, COPY_S = 5e-6, 8e-6, 100e-6, 1e-6
WATTS = 500
ENDLESS = 10_000  # waits: no test needs half of them
PLACES = ((0,), (1,), (2,))  # three input sets: the argument says which


class Array:
    """An array of that many bytes, whose content a call may change."""

    def __init__(self, content=0, nbytes=1000):
        self.content, self.nbytes = content, nbytes

    def copy(self):
        return Array(self.content, self.nbytes)


class SimulatedGpu:
    """A back end whose kernels take the time that they are told, in order, on a device that the host runs ahead of.

    `log` has a letter for each thing that the host does: [ and ] around a profile, f flush, w wait (several in a row are one),
    c copy, s a reading of the state, z a rest, and of a call its first argument.
    """

    def __init__(self, monkeypatch, seen=lambda kernels: kernels, states=()):
        self.host, self.device, self.kernels, self.calls, self.waits, self.log = 0.0, 0.0, [], 0, 0, ""
        self.states, self.flush_host_s, self.late_s = list(states), LAUNCH_S, itertools.repeat(0.0)
        self.profiling, self.profiler_s, self.copy_s, self.rest_s = False, 0.0, COPY_S, 1.0
        self.seen, self.forgotten = seen, []
        monkeypatch.setattr("time.perf_counter", lambda: self.host)
        monkeypatch.setattr("time.perf_counter_ns", lambda: round(self.host * 1e9))
        monkeypatch.setattr(cupti, "record", self.record)
        monkeypatch.setattr(state, "read", self.read)
        monkeypatch.setattr(state, "energy_j", lambda: self.host * WATTS)
        monkeypatch.setattr(state, "cool_down", self.rest)

    def record(self, work):
        self.kernels = [k for k in self.kernels if k.end > self.host]  # the profiler sees what still runs
        self.profiling = True
        self.log += "["
        work()
        self.log += "]"
        self.profiling = False
        return self.seen(list(self.kernels))

    def read(self, device):
        assert device == "cuda"
        self.log += "s"
        return self.states.pop(0) if self.states else State(sm_mhz=1980)

    def rest(self):
        self.log += "z"
        self.host += self.rest_s

    def launch(self, name, seconds, host_s=LAUNCH_S):
        self.host += host_s + (self.profiler_s if self.profiling else 0.0)
        start = max(self.host, self.device)
        self.device = start + seconds
        self.kernels.append(Kernel(name, start, self.device))

    def flush(self):
        self.log += "f"
        self.launch("flush", FLUSH_S, self.flush_host_s)

    def wait(self, outputs):
        self.log += "" if self.log.endswith("w") else "w"
        self.host = max(self.host, self.device) + WAIT_S + next(self.late_s)
        self.waits += 1
        assert self.waits < ENDLESS, "the sampling does not end"

    def forget_l2(self):
        self.forgotten.append(len(self.log))

    def copy(self, array):
        self.log += "c"
        self.launch("copy", self.copy_s)
        return array.copy()

    def samples(self, call, plan, ring=PLACES):
        def counted(*arguments):
            self.calls += 1
            self.log += str(arguments[0]) if arguments and isinstance(arguments[0], int) else "a"
            return call(*arguments)

        return measure(self, counted, ring, GPU, plan)

    def measure(self, call, plan, ring=PLACES):
        return self.samples(call, plan, ring).summary()


def two_kernels(gpu, seconds=200e-6, host_s=LAUNCH_S):
    """A call of two kernels that take `seconds` together."""

    def call(_):
        gpu.launch("first", seconds / 2, host_s)
        gpu.launch("second", seconds / 2, host_s)

    return call


class SimulatedCpu:
    """A back end whose calls may return before their work is done, which `wait` then waits for."""

    def __init__(self, monkeypatch):
        self.now, self.pending, self.waits, self.log, self.queued = 0.0, 0.0, 0, "", 0.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)
        monkeypatch.setattr("time.perf_counter_ns", lambda: round(self.now * 1e9))
        monkeypatch.setattr(state, "read", self.read)
        monkeypatch.setattr(state, "waited_s", lambda: self.queued)

    def read(self, device):
        assert device == "cpu"
        self.log += "s"
        return State(load=self.now)

    def work(self, seconds, later_s=0.0):
        """Takes the thread `seconds`, and other threads `later_s` more."""
        self.now += seconds
        self.pending += later_s

    def queue(self, seconds, threads=1):
        """So many threads wait for a core, and the call for them."""
        self.now += seconds
        self.queued += seconds * threads

    def wait(self, outputs):
        self.log += "" if self.log.endswith("w") else "w"
        self.now, self.pending = self.now + self.pending, 0.0
        self.waits += 1
        assert self.waits < ENDLESS, "the sampling does not end"

    def flush(self):
        raise AssertionError("a CPU has no L2 of a GPU")

    def copy(self, array):
        self.log += "c"
        self.work(COPY_S, COPY_S)
        return array.copy()

    def samples(self, call, plan, ring=PLACES):
        def logged(*arguments):
            self.log += str(arguments[0]) if arguments and isinstance(arguments[0], int) else "a"
            return call(*arguments)

        return measure(self, logged, ring, CPU, plan)

    def measure(self, call, plan, ring=PLACES):
        return self.samples(call, plan, ring).summary()
