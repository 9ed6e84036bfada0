"""What a worker does with cells of one framework: builds, repeats, times and releases them, in a process of its own (worker.py), or in
the caller's for `worker=inline` and `fusebench.measure`. The reference is not its business: it never imports a kernel.py.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fusebench import discovery, draws, inputs, machine, modes, sources
from fusebench.backends import cuda, triton_interpreter
from fusebench.contract import DTYPES, Device
from fusebench.dtypes import numpy_dtype
from fusebench.emulator.device import emulated
from fusebench.records.record import Build
from fusebench.timing import yardstick
from fusebench.timing.measure import measure
from fusebench.timing.plan import Plan
from fusebench.timing.samples import Ring, Samples, kept_place
from fusebench.workers import below, calls, configs, guard, late, outputs, process, protocol, state, traces
from fusebench.workers.batch import CallBatch
from fusebench.workers.outputs import as_list, overlap, spans, written_bytes
from fusebench.workers.repeats import Repeats
from fusebench.workers.rows import Move, Mover

# Calls after the timed ones whose outputs are compared with the first ones: of a race that spoils one call in twenty they
# miss 4 %. Slow cells get this share of their sampling time.
LATER_CALLS, LATER_SHARE = 64, 0.2
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
        self.prepare: Callable[..., Any] = lambda *_: ()
        self.ring = Ring([], frozenset(), self.backend.copy)
        self.places = calls.Places(0)  # of the arguments
        self.late = range(0)  # places of the arguments that are made when forward has returned
        self.unchanged: list[int] = []  # places of the arguments that a call must leave alone
        self.own = ""  # the module of the cell in hand
        self.loaded: dict[str, Any] = {}  # modules of implementations
        self.read: dict[Path, str] = {}  # digests of the Python files that were loaded
        self.kept: dict[int, Any] = {}  # by place, copies of what all calls are given: weights, and what was prepared
        self.repeats = Repeats(self.backend)
        self.mover: Mover | None = None  # where rows may stand in any order
        self.last_move: Move | None = None
        self.numbers: Sequence[int] = ()  # of the sets in the ring
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
            chosen = configs.choose(module, found, case, variant, device, asked.config, asked.tuned)
            reason = chosen.refusal
        config = chosen.config
        if reason:
            return protocol.Refused("skipped", str(reason))
        self.fused, self.mover = found.fused, None
        upstream = modes.count_upstream(asked.names)
        self.places = calls.Places(len(asked.names) - upstream, upstream)
        self.late = range(self.places.inputs, len(asked.names)) if case.mode == "backward" else range(0)
        masks: late.Masks = {}
        behind = {files[place] for files in asked.sets for place in self.late}
        arrays = {
            f: self._put(inputs.load([f], folder)[0], masks if f in behind else None)
            for f in {f for s in asked.sets for f in s}
        }
        stored = [[arrays[file] for file in files] for files in asked.sets]
        in_place = found.places_in_place(variant, asked.names)
        varying = [place for place, files in enumerate(zip(*asked.sets, strict=True)) if files[0] != files[-1]]
        copied = frozenset([*varying, *in_place, *self.late])
        kept = [late.copied(self.backend, a) for a in stored[0]]  # before prepare sees them
        # what calls get copies of, prepare gets a copy of, too: what it makes of an array is not to be found in theirs
        given = [self.backend.copy(a) if place in copied else a for place, a in enumerate(self.places.own(stored[0]))]
        self.backend.wait([*arrays.values(), kept, given])
        begin = time.perf_counter()
        self.prepare = functools.partial(getattr(module, "prepare", lambda *_: ()), case, variant)
        prepared = calls.prepared(self.prepare(*given))
        self.places = replace(self.places, prepared=len(prepared))
        self.backend.wait(prepared)
        prepare_s = time.perf_counter() - begin
        del given
        self.ring = Ring([[*s, *prepared] for s in stored], copied, functools.partial(late.copied, self.backend))
        self.unchanged = [place for place in range(len(stored[0]) + len(prepared)) if place not in in_place]
        self.numbers, self.repeats = range(len(stored)), Repeats(self.backend)
        self.kept = dict(enumerate(kept))
        self._check_plain()
        arguments, kept = self.ring[0], kept + [self.backend.copy(a) for a in prepared]
        self.kept = {place: a for place, a in enumerate(kept) if place not in self.ring.copied}
        self.backend.wait([arguments, kept])
        # under an interpreter, where a call takes seconds and is never timed, the first call is watched
        interpreted = found.fused and found.without_gpu == "interpreted" and self.device.type == "cpu"
        peak, begin = self.peak(), time.perf_counter()
        with cuda.noting_sources() as compiled:
            built = module.build(case, variant, device, *([config] if found.tunables else []))
            made = calls.of(built, case.mode, self.places, self.backend)
            self.call, (self.ring, saved) = made.call, made.on(self.ring, arguments, self.backend)
            output, operators = self.backend.watch(self.call, arguments) if interpreted else (self.call(*arguments), [])
            self.backend.wait(output)
        compile_s, peak_bytes = time.perf_counter() - begin, peak()
        if found.fused and not interpreted:
            operators = self.backend.watch(self.call, self.ring[0])[1]
        if operators:
            return protocol.Refused("failed", BESIDE.format(", ".join(operators)))
        if fault := self._fault(output, arguments):
            return protocol.Refused("failed", fault)
        if changed := self._changed(arguments, kept):
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
        if asked.rows is not None:
            self._move_rows(asked.rows)
        last = len(self.ring) - 1
        self._call_finished(0, self._arguments(0))
        arguments = self._arguments(0, again=True)
        self._call_finished(0, arguments)
        others: Sequence[Any] = self._arguments(last) if self.mover else self.ring.sets[last]
        for place in sorted(self.ring.copied):
            arguments[place] = late.changed(others[place], functools.partial(self.backend.overwrite, arguments[place]))
        self.ring.made_ready(arguments)
        if self.mover and (move := self.mover.move_of(others)):
            self.mover.moves[id(arguments)] = move
        self._call_finished(last, arguments)
        self._check_plain()
        if changed := self._changed_shared():
            return protocol.Refused("wrong", f"a later call changed {changed}; it must leave it alone")
        saved = self._save(self.repeats.first[self.numbers[last]], Path(asked.folder), "repeated")
        return protocol.Repeated(self.repeats.found(), saved, self._differing(asked.folder))

    def try_on(self, asked: protocol.TryCell) -> protocol.Tried:
        """Runs the cell in hand on other inputs and weights."""
        arguments = [self.backend.put(a, self.device) for a in inputs.load(asked.files, Path(asked.folder))]
        arguments = self.ring.made_ready([*arguments, *self.prepare(*arguments[: self.places.inputs])])
        self.backend.wait(arguments)
        output, operators = self.backend.watch(self.call, arguments) if self.fused else (self.call(*arguments), [])
        self.backend.wait(output)
        if operators:
            raise outputs.Unfit(f"a later call {BESIDE.format(', '.join(operators))}")
        if fault := self._fault(output, arguments):
            raise outputs.Unfit(fault)
        return protocol.Tried(self._save(output, Path(asked.folder), "tried"))

    def time(self, asked: protocol.TimeCell) -> protocol.Timed | protocol.Refused:
        """Times the cell in hand. The outputs of some timed calls, the last one on a set and on a CPU others that are drawn, and of
        some calls after them come back to be judged where they are not those of an earlier call on the same inputs; without a folder
        none does."""
        ring = replace(self.ring, taken=self._taken) if asked.folder else self.ring
        samples = self.sample(self.call, ring, asked.plan)
        if asked.folder and (names := self.watched.replaced(self.own)):
            return protocol.Refused("failed", state.REPLACED.format(", ".join(names)))
        drawn = [
            (kept_place(self.ring), samples.arguments),
            *((place, arguments) for place, arguments, _ in samples.drawn),
        ]
        # before anything else looks at them, and before calls that come later could hide it
        if altered := self._altered() or next(filter(None, (self._altered_of(a) for _, a in drawn)), None):
            return protocol.Refused("failed", altered)
        if changed := next(filter(None, (self._changed_timed(*one) for one in drawn)), ""):
            return protocol.Refused("wrong", f"a timed call changed {changed}; it must leave it alone")
        if self.fused and (kernels := guard.foreign_kernels(samples.kernels_seen)):
            return protocol.Refused("failed", BESIDE.format(f"kernels of a library, {', '.join(kernels)[:300]},"))
        if not asked.folder:
            return protocol.Timed(samples.summary())
        faults = [fault for _, _, (fault, _) in samples.drawn] + [self._fault(samples.output, samples.arguments)]
        if fault := next(filter(None, faults), None):
            return protocol.Refused("failed", fault)
        for place, arguments, (_, copies) in (
            one for one in samples.drawn if self.numbers[one[0]] in self.repeats.first
        ):
            self.repeats.see(self.numbers[place], self._in_place(copies, arguments), self._move(arguments))
        kept = self._in_place(samples.output, samples.arguments)
        self.backend.wait(kept)
        timed, overwritten = spans(self.backend, samples.output), False
        end = time.perf_counter() + LATER_SHARE * asked.plan.time_s
        sets, watched = (0, len(self.ring) - 1), draws.below(LEAST_LATER)
        for number in range(LATER_CALLS):
            again = self.mover is not None and number % 2 == 1  # rows at the same places twice: the same bits
            arguments = self._arguments(sets[(number // 2 if self.mover else number) % 2], again)
            output = self._call_finished(
                sets[(number // 2 if self.mover else number) % 2], arguments, number == watched
            )
            overwritten |= overlap(timed, spans(self.backend, output))
            if number >= LEAST_LATER - 1 and time.perf_counter() > end:
                break
        # two outputs that live at once are in one buffer: what it held when its clock stopped may be another call's by now
        if not overwritten:
            self.repeats.see(self.numbers[kept_place(self.ring)], kept, self._move(samples.arguments))
        self._check_plain()
        if changed := self._changed_shared():
            return protocol.Refused("wrong", f"a later call changed {changed}; it must leave it alone")
        return protocol.Timed(samples.summary(), self.repeats.found(), self._differing(asked.folder))

    def _unseen(self, asked: protocol.MakeReady) -> dict[int, Any]:
        """By place, what differs from set to set, of the set in those files."""
        places = [place for place in sorted(self.ring.copied) if place < len(asked.files)]
        loaded = inputs.load([asked.files[place] for place in places], Path(asked.folder))
        masks: late.Masks = {}
        return {
            place: self._put(a, masks if place in self.late else None) for place, a in zip(places, loaded, strict=True)
        }

    def _put(self, array: np.ndarray, masks: late.Masks | None) -> Any:
        """The array on the device; with masks in a form that says nothing."""
        if masks is None:
            return self.backend.put(array, self.device)
        return late.hide(self.backend, self.device, array, masks)

    def fetch_unseen(self, asked: protocol.FetchUnseen) -> protocol.Tried:
        """What the call of the last batch gave that got inputs which none had seen."""
        fault, copies = self.batch.unseen
        self.batch.forget()
        if fault:
            raise outputs.Unfit(fault)
        return protocol.Tried(self._save(copies, Path(asked.folder), "unseen"))

    def _move_rows(self, rows: protocol.MoveRows) -> None:
        """From now on each call gets its rows in another order, of the first set or the last one. Both are judged, and any of the
        timed calls may be."""
        if not set(rows.inputs) <= self.ring.copied:
            return
        self.mover = Mover(self.backend, self.ring.copied, rows.inputs, rows.outputs, rows.seed)
        sets, self.numbers = [self.ring.sets[0], self.ring.sets[-1]], (0, len(self.ring) - 1)
        kept = int(self.mover.rng.integers(0, 2))
        self.ring = replace(self.ring, sets=sets, place=self.mover.place, kept=kept)

    def _arguments(self, number: int, again: bool = False) -> list[Any]:
        """Arguments of a call on that set of the ring, `again` with their rows where those of the last ones were."""
        if self.mover is None:
            return self.ring[number]
        arguments = self.mover.place(self.ring.sets[number], self.last_move if again else None)
        self.last_move = self.mover.move_of(arguments)
        return self.ring.made_ready(arguments)

    def _move(self, arguments: Sequence[Any]) -> Move | None:
        return self.mover.move_of(arguments) if self.mover else None

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
        seen = self._in_place(output, arguments) if self.mover else output
        self.repeats.see(self.numbers[number], seen, self._move(arguments))
        return output

    def _taken(self, arguments: Sequence[Any], output: Any) -> tuple[str | None, list[Any]]:
        """Why a call may not return that, or copies of its outputs, made."""
        if fault := self._fault(output, arguments):
            return fault, []
        copies = [self.backend.copy(o) for o in as_list(output)]
        self.backend.wait(copies)
        return None, copies

    def _in_place(self, output: Any, arguments: Sequence[Any]) -> list[Any]:
        """Copies of the outputs of a call, with their rows where they belong."""
        if self.mover is not None and (move := self.mover.move_of(arguments)) is not None:
            return self.mover.restored(output, move)
        return [self.backend.copy(o) for o in as_list(output)]

    def _fault(self, output: Any, arguments: Sequence[Any]) -> str | None:
        """Why a call on those arguments may not return that, or None."""
        if altered := self._altered_of(arguments):
            return altered
        own = [self.backend.memory(arguments[place]) for place in self.unchanged if place < self.places.inputs]
        return outputs.fault(self.backend, output, self.device, own)

    def _check_plain(self) -> None:
        """Raises Unfit where an implementation altered an array of the harness."""
        if altered := self._altered():
            raise outputs.Unfit(altered)

    def _altered(self) -> str | None:
        """What an implementation made of an array of the harness, which is none of the framework's own any more, or None: of the sets, which are
        copied for each call, of what they and outputs are compared with. All that is outside of every clock, where a class of
        its own could compute."""
        compared = [a for first in self.repeats.first.values() for a in first]
        found = (self._altered_of(own, range(len(own))) for own in (*self.ring.sets, compared))
        return next(filter(None, found), None) or self._altered_of(self.kept, list(self.kept))

    def _altered_of(self, arrays: Sequence[Any] | Mapping[int, Any], places: Sequence[int] | None = None) -> str | None:
        """The same of arguments, but for those that a call may overwrite or take."""
        for place in self.unchanged if places is None else places:
            altered = (outputs.altered(self.backend, a, self.device) for a in late.parts(arrays[place]))
            if found := next(filter(None, altered), None):
                return ALTERED.format(found)
        return None

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
        self.call, self.ring, self.kept = None, Ring([], frozenset(), self.backend.copy), {}
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
                return self.batch.make_ready(self.call, self.ring, request.calls, self._unseen(request))
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
            case protocol.EvaluateRows() | protocol.CheckRows() | protocol.Load() | protocol.CompileAhead():
                raise ValueError("the reference and the compiler have workers of their own")

    def _implementation(self, kernel: str, name: str) -> discovery.Implementation:
        package = sys.modules["implementations"]
        file = next(f for root in package.__path__ if (f := Path(root) / kernel / f"{name}.py").exists())
        return discovery.read_implementation(kernel, file)

    def _changed(self, arguments: Sequence[Any], kept: Sequence[Any]) -> str:
        """Which argument a call changed that it must leave alone, or ""."""
        for place in self.unchanged:
            if not self.backend.same(arguments[place], late.made(kept[place])):
                return f"its argument {place}"
        return ""

    def _changed_timed(self, place: int, arguments: Sequence[Any]) -> str:
        """Which argument of a timed call on that set of the ring was changed, or ""."""
        own: Sequence[Any] = self.ring.sets[place]
        if self.mover is not None and (move := self.mover.move_of(arguments)) is not None:
            own = self.mover.place(own, move)
        return self._changed(arguments, [self.kept.get(number, a) for number, a in enumerate(own)])

    def _changed_shared(self) -> str:
        """Which of the arrays that all calls are given was changed, or ""."""
        own = self.ring.sets[0]
        changed = (place for place, a in self.kept.items() if not self.backend.same(own[place], a))
        return next((f"its argument {place}" for place in changed), "")

    def _save(self, output: Any, folder: Path, stem: str) -> tuple[inputs.Stored, ...]:
        return self._written([self.backend.get(o) for o in as_list(output)], folder, stem)

    def _written(self, arrays: Sequence[np.ndarray], folder: Path, stem: str) -> tuple[inputs.Stored, ...]:
        below.leave_to(self.process)  # else a child would write the same files, later than they are read
        return tuple(inputs.save(arrays, folder, stem))
