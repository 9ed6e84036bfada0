"""What a worker does with cells of one framework: builds, repeats, times and releases them, in a process of its own (worker.py), or in
the caller's for `worker=inline` and `fusebench.measure`. The reference is not its business: it never imports a kernel.py.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fusebench import discovery, draws, inputs, machine, sources
from fusebench.backends import cuda, triton_interpreter
from fusebench.contract import DTYPES, Device
from fusebench.dtypes import numpy_dtype
from fusebench.emulator.device import emulated
from fusebench.records.record import Build
from fusebench.timing import yardstick
from fusebench.timing.measure import measure
from fusebench.timing.plan import Plan
from fusebench.timing.samples import Ring, Samples, kept_place
from fusebench.workers import below, calls, configs, guard, outputs, process, protocol, state, traces
from fusebench.workers.arguments import Arguments
from fusebench.workers.batch import CallBatch
from fusebench.workers.outputs import as_list, overlap, spans, written_bytes
from fusebench.workers.repeats import Repeats

# Calls after the timed ones whose outputs are compared with the first ones: of a race that spoils one call in twenty they
# miss 4 %. Slow cells get this share of their sampling time, or the seconds in which calls of microseconds are all made.
LATER_CALLS, LATER_SHARE, LATER_S = 64, 0.2, 0.02
LEAST_LATER = 4
ALTERED = "an array that the harness copies and compares has become {}, expected a plain one of the framework"
BESIDE = "computes with {} beside its own kernels: FUSED says that it does not"


class Bench:
    """One back end taken hold of, and at most one cell in hand. Each method answers a message of protocol.py."""

    def __init__(self, backend: str, device: str):
        self.backend = importlib.import_module(f"fusebench.backends.{backend}")
        self.name, self.process = backend, os.getpid()
        self.device: Device = self.backend.start(device)
        self.call: Any = None
        self.arguments = Arguments(self.backend, self.device)
        self.own = ""  # the module of the cell in hand
        self.loaded: dict[str, Any] = {}  # modules of implementations
        self.read: dict[Path, str] = {}  # digests of the Python files that were loaded
        self.repeats = Repeats(self.backend)
        self.fused = False  # whether calls are watched for operators
        self.before: dict[str, Any] = {}  # the state of the process when the cell in hand began
        self.watched = state.Names()  # what results and clocks depend on
        self.batch = CallBatch(self.backend, self._taken)

    def info(self) -> protocol.WorkerInfo:
        python = sys.version.split()[0]
        return protocol.WorkerInfo(machine.describe(self.device), machine.packages(), python, self._flushes())

    def _flushes(self) -> tuple[str, ...]:
        """The dtypes in which subnormals are flushed: all of them where float32 is, in which the others are computed; bfloat16 where its
        products are, as by a CPU's instructions for them."""

        def lost(half: Callable[[Any], Any], dtype: str) -> bool:
            tiny = self.backend.put(np.full((64, 64), 2e-39, numpy_dtype(dtype)), self.device)
            return not np.all(self.backend.get(half(tiny)))

        if lost(self.backend.half, "float32"):
            return DTYPES
        in_products = self.device.type == "cpu" and lost(self.backend.half_of_product, "bfloat16")
        return ("bfloat16",) if in_products else ()

    def build(self, asked: protocol.BuildCell) -> protocol.Built | protocol.Refused:
        """Builds the cell and runs it once."""
        self.call = None
        case, variant, folder = asked.case, asked.variant, Path(asked.folder)
        self.backend.configure(case.precision)
        self.own = f"implementations.{case.kernel}.{asked.implementation}"
        if sys.modules.get(self.own) is not self.loaded.get(self.own):  # another implementation made it
            sys.modules.pop(self.own, None)
        triton_interpreter.quicken()  # what an earlier cell has loaded
        self.watched.look()
        self.before = state.read(self.backend)
        found = self._implementation(case.kernel, asked.implementation)
        reason = found.missing()
        if reason is None:
            module = self.loaded[self.own] = discovery.load_implementation(case.kernel, asked.implementation)
            triton_interpreter.quicken()
            sources.of_module(module.__name__, self.read)  # before anybody edits them
            device = self._device_of(found)
            reason = getattr(module, "skip", lambda *_: None)(case, variant, device)
        if not isinstance(reason, str | None):
            raise outputs.Unfit(f"skip() gave {type(reason).__name__}, expected the reason or None")
        if reason is None and not hasattr(module, "build"):
            raise outputs.Unfit(f"{asked.implementation}.py has no build(case, variant, device)")
        chosen = configs.Choice()
        if reason is None and found.tunables.get(variant):
            chosen = configs.choose(module, found, case, variant, device, asked.config, asked.tuned, asked.fits)
            reason = chosen.refusal
        config = chosen.config
        if reason:
            return protocol.Refused("skipped", str(reason))
        self.fused = found.fused
        prepare = functools.partial(getattr(module, "prepare", lambda *_: ()), case, variant)
        self.arguments = given = Arguments(self.backend, self.device, prepare)
        self.repeats = Repeats(self.backend)
        prepare_s = given.load(asked, found.places_in_place(variant, asked.names))
        self._check_plain()
        arguments, before = given.first()
        # under an interpreter, where a call takes seconds and is never timed, the first call is watched
        interpreted = found.fused and found.without_gpu == "interpreted" and self.device.type == "cpu"
        peak, begin = self.peak(), time.perf_counter()
        with cuda.noting_sources() as compiled:
            built = module.build(case, variant, device, *([config] if found.tunables else []))
            made = calls.of(built, case.mode, given.places, self.backend)
            self.call, (given.ring, saved) = made.call, made.on(given.ring, arguments, self.backend)
            output, operators = self.backend.watch(self.call, arguments) if interpreted else (self.call(*arguments), [])
            self.backend.wait(output)
        compile_s, peak_bytes = time.perf_counter() - begin, peak()
        if found.fused and not interpreted:
            operators = self.backend.watch(self.call, given.ring[0])[1]
        if operators:
            return protocol.Refused("failed", BESIDE.format(", ".join(operators)))
        if fault := self._fault(output, arguments):
            return protocol.Refused("failed", fault)
        if changed := given.changed(arguments, before):
            return protocol.Refused("wrong", f"the call changed {changed}; it must leave it alone")
        self.repeats.see(0, output)
        self._check_plain()
        points, files = found.points(variant, case.mode), self._save(self.repeats.first[0], folder, "first")
        made_of = sources.of_module(module.__name__, self.read) | sources.named(compiled)
        taken = Build(
            prepare_s, compile_s, peak_bytes, written_bytes(output), points, config, chosen.origin, chosen.note, saved
        )
        return protocol.Built(taken, files, made_of)

    def _device_of(self, found: discovery.Implementation) -> Device:
        """The device that an implementation is asked about: where it is emulated, the one that is emulated."""
        if found.untimed(self.device.type) != "emulated":
            return self.device
        return emulated()

    def repeat(self, asked: protocol.RepeatCell) -> protocol.Repeated | protocol.Refused:
        """Runs the cell in hand three times more: twice on the first set, to see whether the output is the same bit for bit, and on
        the last set written over the first one's buffers, which a call that remembers results does not notice."""
        self._check_plain()
        given = self.arguments
        if asked.rows is not None:
            given.move_rows(asked.rows)
        last = len(given.ring) - 1
        arguments = given.of(0)
        if given.late:  # what forward left for backward is this call's own, also when another has run since
            self.backend.wait(given.ring[last])
        self._call_finished(0, arguments)
        arguments = given.of(0, again=True)
        self._call_finished(0, arguments)
        given.overwrite(arguments, last)
        self._call_finished(last, arguments)
        self._check_plain()
        if changed := given.changed_shared():
            return protocol.Refused("wrong", f"a later call changed {changed}; it must leave it alone")
        saved = self._save(self.repeats.first[given.numbers[last]], Path(asked.folder), "repeated")
        return protocol.Repeated(self.repeats.found(), saved, self._differing(asked.folder))

    def try_on(self, asked: protocol.TryCell) -> protocol.Tried:
        """Runs the cell in hand on other inputs and weights."""
        arguments = self.arguments.of_files(asked.files, Path(asked.folder))
        try:
            output, operators = self.backend.watch(self.call, arguments) if self.fused else (self.call(*arguments), [])
            self.backend.wait(output)
        finally:
            self.arguments.restore()
        if operators:
            raise outputs.Unfit(f"a later call {BESIDE.format(', '.join(operators))}")
        if fault := self._fault(output, arguments):
            raise outputs.Unfit(fault)
        return protocol.Tried(self._save(output, Path(asked.folder), "tried"))

    def time(self, asked: protocol.TimeCell) -> protocol.Timed | protocol.Refused:
        """Times the cell in hand. The outputs of some timed calls, the last one on a set and on a CPU others that are drawn, and of
        some calls after them come back to be judged where they are not those of an earlier call on the same inputs; without a folder
        none does."""
        given = self.arguments
        ring = replace(given.ring, taken=self._taken) if asked.folder else given.ring
        samples = self.sample(self.call, ring, asked.plan)
        if asked.folder and (names := self.watched.replaced(self.own)):
            return protocol.Refused("failed", state.REPLACED.format(", ".join(names)))
        drawn = [
            (kept_place(given.ring), samples.arguments),
            *((place, arguments) for place, arguments, _ in samples.drawn),
        ]
        # before anything else looks at them, and before calls that come later could hide it
        if altered := given.altered(self.repeats.first.values()) or next(
            filter(None, (given.altered_of(a) for _, a in drawn)), None
        ):
            return protocol.Refused("failed", altered)
        if changed := next(filter(None, (given.changed_timed(*one) for one in drawn)), ""):
            return protocol.Refused("wrong", f"a timed call changed {changed}; it must leave it alone")
        if self.fused and (kernels := guard.foreign_kernels(samples.kernels_seen)):
            return protocol.Refused("failed", BESIDE.format(f"kernels of a library, {', '.join(kernels)[:300]},"))
        if not asked.folder:
            return protocol.Timed(samples.summary())
        faults = [fault for _, _, (fault, _) in samples.drawn] + [self._fault(samples.output, samples.arguments)]
        if fault := next(filter(None, faults), None):
            return protocol.Refused("failed", fault)
        for place, arguments, (_, copies) in (
            one for one in samples.drawn if given.numbers[one[0]] in self.repeats.first
        ):
            self.repeats.see(given.numbers[place], given.in_order(copies, arguments), given.move_of(arguments))
        kept = given.in_order(samples.output, samples.arguments)
        self.backend.wait(kept)
        timed, overwritten = spans(self.backend, samples.output), False
        end = time.perf_counter() + max(LATER_SHARE * asked.plan.time_s, LATER_S)
        sets, watched = (0, len(given.ring) - 1), draws.below(LEAST_LATER)
        for number in range(LATER_CALLS):
            again = given.mover is not None and number % 2 == 1  # rows at the same places twice: the same bits
            place = sets[(number // 2 if given.mover else number) % 2]
            output = self._call_finished(place, given.of(place, again), number == watched)
            overwritten |= overlap(timed, spans(self.backend, output))
            if number >= LEAST_LATER - 1 and time.perf_counter() > end:
                break
        # two outputs that live at once are in one buffer: what it held when its clock stopped may be another call's by now
        if not overwritten:
            self.repeats.see(given.numbers[kept_place(given.ring)], kept, given.move_of(samples.arguments))
        self._check_plain()
        if changed := given.changed_shared():
            return protocol.Refused("wrong", f"a later call changed {changed}; it must leave it alone")
        return protocol.Timed(samples.summary(), self.repeats.found(), self._differing(asked.folder))

    def fetch_unseen(self, asked: protocol.FetchUnseen) -> protocol.Tried:
        """What the call of the last batch gave that got inputs which none had seen."""
        fault, copies = self.batch.unseen
        self.batch.forget()
        if fault:
            raise outputs.Unfit(fault)
        return protocol.Tried(self._save(copies, Path(asked.folder), "unseen"))

    def _call_finished(self, number: int, arguments: Sequence[Any], watched: bool = True) -> Any:
        """The output of a call on that set of the ring, once it is finished and was compared with the first one on it."""
        if self.fused and watched:
            output, operators = self.backend.watch(self.call, arguments)
            if operators:
                raise outputs.Unfit(f"a later call {BESIDE.format(', '.join(operators))}")
        else:
            output = self.call(*arguments)
        self.backend.wait(output)
        if fault := self._fault(output, arguments):
            raise outputs.Unfit(fault)
        given = self.arguments
        seen = given.in_order(output, arguments) if given.mover else output
        self.repeats.see(given.numbers[number], seen, given.move_of(arguments))
        return output

    def _taken(self, arguments: Sequence[Any], output: Any) -> tuple[str | None, list[Any]]:
        """Why a call may not return that, or copies of its outputs, made."""
        if fault := self._fault(output, arguments):
            return fault, []
        copies = [self.backend.copy(o) for o in as_list(output)]
        self.backend.wait(copies)
        return None, copies

    def _fault(self, output: Any, arguments: Sequence[Any]) -> str | None:
        """Why a call on those arguments may not return that, or None."""
        if altered := self.arguments.altered_of(arguments):
            return altered
        return outputs.fault(self.backend, output, self.device, self.arguments.memory(arguments))

    def _check_plain(self) -> None:
        """Raises Unfit where an implementation altered an array of the harness."""
        if altered := self.arguments.altered(self.repeats.first.values()):
            raise outputs.Unfit(altered)

    def _differing(self, folder: str) -> protocol.Differing:
        return tuple(
            (set_, self._written(arrays, Path(folder), f"differing{number}-"))
            for number, (set_, arrays) in enumerate(self.repeats.take())
        )

    def sample(self, call: Any, ring: Ring | Sequence[Sequence[Any]], plan: Plan) -> Samples:
        """Times any callable on this back end."""
        return measure(self.backend, call, ring, self.device, plan)

    def peak(self) -> Callable[[], int | None]:
        """Begins to watch the memory of the device (on a CPU the process's). What it returns says how many bytes were taken at
        the most beyond those that are held now, or None where that is not known."""
        if self.device.type == "cuda":
            self.backend.reset_peak()
            return self.backend.peak_bytes
        held = machine.reset_peak_rss()
        return lambda: None if held is None else max(0, (machine.peak_rss() or held) - held)

    def usable(self) -> bool:
        """Whether the device still does what it is told."""
        try:
            self.backend.get(self.backend.put(np.ones(1, np.float32), self.device))
            return True
        except Exception:  # each framework has an error of its own for a lost device
            return False

    def release(self) -> protocol.Released:
        """Lets go of the cell in hand and says how much device memory stays held all the same, and what it changed in the process."""
        names = self.watched.replaced(self.own)  # before what undoes it goes with the call
        self.batch.forget()
        self.call, self.arguments = None, Arguments(self.backend, self.device)
        self.repeats = Repeats(self.backend)
        changed = state.changes(self.before, state.read(self.backend))
        process.end_watchdogs()
        return protocol.Released(self.backend.release(), changed, names)

    def yardstick_key(self) -> protocol.YardstickKey:
        """What the rates that this worker measures hold for; of Torch's worker, like the next."""
        return protocol.YardstickKey(yardstick.key(machine.describe(self.device), *self.backend.versions()))

    def rate(self, asked: protocol.MeasureRate) -> protocol.MeasuredRate:
        """One rate of this device, by its name in yardstick.py."""
        value, n = yardstick.measure(self.backend, self.device, asked.name, asked.budget_s)
        self.backend.release()
        return protocol.MeasuredRate(value, n)

    def do(self, request: protocol.Request) -> protocol.Message:
        """Does what a message asks."""
        match request:
            case protocol.BuildCell():
                return self.build(request)
            case protocol.RepeatCell():
                return self.repeat(request)
            case protocol.TryCell():
                return self.try_on(request)
            case protocol.TimeCell():
                return self.time(request)
            case protocol.TraceCell():
                return traces.answer(self, request)
            case protocol.MakeReady():
                self._check_plain()
                unseen = self.arguments.unseen(request.files, Path(request.folder))
                return self.batch.make_ready(self.call, self.arguments.ring, request.calls, unseen)
            case protocol.RunReady():
                return self.batch.run()
            case protocol.FetchUnseen():
                return self.fetch_unseen(request)
            case protocol.Release():
                return self.release()
            case protocol.AskFits():
                return configs.answer(
                    self._implementation(request.case.kernel, request.implementation), request, self.device
                )
            case protocol.AskYardstickKey():
                return self.yardstick_key()
            case protocol.MeasureRate():
                return self.rate(request)
            case (
                protocol.EvaluateRows()
                | protocol.CheckRows()
                | protocol.Load()
                | protocol.CompileAhead()
                | protocol.CompileStages()
            ):
                raise ValueError("the reference and the compiler have workers of their own")

    def _implementation(self, kernel: str, name: str) -> discovery.Implementation:
        package = sys.modules["implementations"]
        file = next(f for root in package.__path__ if (f := Path(root) / kernel / f"{name}.py").exists())
        return discovery.read_implementation(kernel, file)

    def _save(self, output: Any, folder: Path, stem: str) -> tuple[inputs.Stored, ...]:
        return self._written([self.backend.get(o) for o in as_list(output)], folder, stem)

    def _written(self, arrays: Sequence[np.ndarray], folder: Path, stem: str) -> tuple[inputs.Stored, ...]:
        below.leave_to(self.process)  # else a child would write the same files, later than they are read
        return tuple(inputs.save(arrays, folder, stem))
