"""What the parent and a worker say to each other: each message is a frozen type. On the pipe it is MessagePack, which has words
for NaN and the infinities.

The parent sends a request and gets its reply, or `Refused`. A worker says `WorkerInfo` or `Refused` once, when it is ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from fusebench.contract import Case, Device, Tunable
from fusebench.inputs import Stored
from fusebench.machine import DeviceInfo
from fusebench.parity.verdict import Asked, Worst
from fusebench.records.record import Build, Spread
from fusebench.timing.plan import Plan
from fusebench.timing.summary import Timing
from fusebench.tracing import calls


class Message(msgspec.Struct, frozen=True, tag=True):
    """One side's words; the tag on the pipe is the name of the class."""


R = TypeVar("R", bound=Message)


class WorkerInfo(Message, frozen=True):
    """What a worker is; `flushes`: the dtypes of cases in which its back end makes zero of float32 subnormals."""

    device: DeviceInfo
    packages: Mapping[str, str]
    python: str
    flushes: tuple[str, ...]


class Refused(Message, frozen=True):
    """What was asked for was not done: `status` is a cell's, or "storage" where the disk was full. After a `fatal` one the
    worker is dead. It may be done `again` by a fresh worker: the profiler lost records."""

    status: str
    reason: str
    traceback: str = ""
    fatal: bool = False
    again: bool = False


class BuildCell(Message, frozen=True):
    """Build a cell and run it once. `names` are those of the inputs, `sets` their files in `folder`, set by set; a file that is
    in all sets is a weight. `config` has the tunables that are set; where none is, those of the kernel's tuned.json are taken
    if they are to be (tuned.py). Without `fits` one that is set is built although it does not fit."""

    case: Case
    implementation: str
    variant: str
    names: tuple[str, ...]
    sets: tuple[tuple[Stored, ...], ...]
    folder: str
    config: Mapping[str, Tunable] = {}
    tuned: bool = True
    fits: bool = True


class Built(Message, frozen=True):
    """What the record keeps of it, with all seconds of the first call; the files of the first output, and the files of
    `implementations` that were loaded and compiled, by name with their SHA-256 (sources.py)."""

    build: Build
    outputs: tuple[Stored, ...]
    sources: Mapping[str, str] = {}


class AskFits(Message, frozen=True):
    """Which configs of a space fit? Of a space with more than `most` so many are drawn by the `seed`. `device` is another than the
    worker's, for which nothing is built."""

    case: Case
    implementation: str
    variant: str
    space: Mapping[str, tuple[Tunable, ...]]
    most: int
    seed: int = 0
    device: Device | None = None


class Fits(Message, frozen=True):
    """The implementation's own config; the space of those tunables that the case has a use for, and the number of its configs; of
    these, those that fit, and those that do not with the reason; the device that they were asked for; whether the implementation
    names its launches, so that they can be compiled ahead."""

    default: Mapping[str, Tunable]
    space: Mapping[str, tuple[Tunable, ...]]
    total: int
    fitting: tuple[Mapping[str, Tunable], ...]
    misfits: tuple[tuple[Mapping[str, Tunable], str], ...]
    device: Device
    launches: bool


class Load(Message, frozen=True):
    """Import an implementation, so that no time-out has its framework's start in it; for the worker of the compiler alone."""

    kernel: str
    implementation: str


class Loaded(Message, frozen=True):
    pass


class Compile(Message, frozen=True):
    """Compile what a cell with tunables in `config` launches on that device, CUDA C++ for `arch`; for the worker of the compiler alone."""

    case: Case
    implementation: str
    variant: str
    config: Mapping[str, Tunable]
    device: Device
    arch: str


class CompileAhead(Compile, frozen=True):
    """Into the caches on disk; all tunables are set."""


class CompiledAhead(Message, frozen=True):
    seconds: float


class CompileStages(Compile, frozen=True):
    """And return all stages, the `ptx` of CUDA C++ only if it is asked for; `fits` says whether a config that does not fit is refused."""

    ptx: bool = False
    fits: bool = True


class LaunchStages(msgspec.Struct, frozen=True):
    """One launch: its kernel's name and its symbol in the cubin, blocks and threads of a block, bytes of dynamic shared memory, the
    stages that are text; of CUDA C++ the file and its defines."""

    name: str
    symbol: str
    grid: tuple[int, ...]
    threads: int
    dynamic_shared: int
    cubin: bytes
    texts: Mapping[str, str]
    file: str = ""
    defines: tuple[str, ...] = ()


class CompiledStages(Message, frozen=True):
    """The launches, or why there are none; `failed` where that is a fault of the implementation."""

    launches: tuple[LaunchStages, ...] = ()
    reason: str = ""
    failed: bool = False


Differing = tuple[tuple[int, tuple[Stored, ...]], ...]  # input sets, and outputs that are not the first ones on them


class MoveRows(msgspec.Struct, frozen=True):
    """Rows may stand in any order: the axes of them, of inputs by their place and of outputs in order. `seed` draws the orders."""

    inputs: Mapping[int, int]
    outputs: tuple[int, ...]
    seed: int


class RepeatCell(Message, frozen=True):
    """Run the cell in hand on other inputs in the same memory, and twice on the same ones; with `rows`, these and all later calls
    get their rows in other orders."""

    folder: str
    rows: MoveRows | None = None


class Repeated(Message, frozen=True):
    """The output on the other inputs, and what calls on the same inputs gave that was not the same."""

    nondeterministic: Spread | None
    outputs: tuple[Stored, ...]
    differing: Differing = ()


class TryCell(Message, frozen=True):
    """Run the cell in hand once on the inputs and weights in `files`."""

    files: tuple[Stored, ...]
    folder: str


class Tried(Message, frozen=True):
    outputs: tuple[Stored, ...]


class TimeCell(Message, frozen=True):
    """Time the cell in hand. Without a `folder` the last timed output stays where it is."""

    plan: Plan
    folder: str = ""


class Timed(Message, frozen=True):
    """The times, and the outputs of the last timed call, of some that were drawn and of calls after them that were not those of an earlier call on the
    same inputs: none where all were."""

    timing: Timing
    nondeterministic: Spread | None = None
    differing: Differing = ()


class TraceCell(Message, frozen=True):
    """Trace so many calls of the cell in hand, `queued` or given to an idle device; or, if they are to be `counted`, make one between
    cuProfilerStart and cuProfilerStop."""

    name: str
    calls: int = 1
    queued: bool = False
    counted: bool = False


class Traced(Message, frozen=True):
    """What was recorded; None of a call that was counted."""

    traced: calls.Traced | None = None


class MakeReady(Message, frozen=True):
    """Have inputs for that many calls of the cell in hand ready: the parent's clock is going to time them as a whole. One of them gets those
    in `files`, which no call has seen."""

    calls: int
    files: tuple[Stored, ...]
    folder: str


class Ready(Message, frozen=True):
    """How many there are: no more than there is memory for."""

    calls: int


class RunReady(Message, frozen=True):
    """Make these calls, and answer when they are finished."""


class Ran(Message, frozen=True):
    pass


class FetchUnseen(Message, frozen=True):
    """What the last of such calls gave on the inputs that none had seen: Tried."""

    folder: str


class Release(Message, frozen=True):
    """Let go of the cell in hand."""


class Released(Message, frozen=True):
    """Device memory that stays held all the same, what the cell changed in the process, and the functions that it replaced
    (state.py)."""

    held_bytes: int = 0
    changed: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


class AskYardstickKey(Message, frozen=True):
    """What do rates that you measure hold for?"""


class YardstickKey(Message, frozen=True):
    key: str


class MeasureRate(Message, frozen=True):
    """Measure the rate of that name (yardstick.py) for `budget_s` seconds."""

    name: str
    budget_s: float


class MeasuredRate(Message, frozen=True):
    value: float
    n: int


class EvaluateRows(Message, frozen=True):
    """Evaluate the formula in the rows of `asked`, with so many noisy draws; for the worker of the reference alone."""

    asked: Asked
    files: tuple[Stored, ...]
    folder: str
    draws: int


class EvaluatedRows(Message, frozen=True):
    """A file for each output, which has in a first axis its exact value, that with the points rounded, and the draws; the points
    that the formula has; of each output the numbers that were drawn, None for all; and whether the formula asked for those of rows."""

    outputs: tuple[Stored, ...]
    points: tuple[str, ...]
    drawn: tuple[tuple[int, ...] | None, ...] = ()
    by_number: bool = False


class CheckRows(Message, frozen=True):
    """Compare the rows of the `outputs` with the formula on the inputs in `files`; for the worker of the reference alone."""

    asked: Asked
    files: tuple[Stored, ...]
    outputs: tuple[Stored, ...]
    folder: str


class CheckedRows(Message, frozen=True):
    worst: Worst


Request = (
    BuildCell | RepeatCell | TryCell | TimeCell | TraceCell | MakeReady | RunReady | FetchUnseen | Release | AskFits | AskYardstickKey
    | MeasureRate | EvaluateRows | CheckRows | Load | CompileAhead | CompileStages
)  # fmt: skip


def encode(message: Message) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_request(data: bytes) -> Request:
    return msgspec.msgpack.decode(data, type=Request)


def decode_reply(data: bytes, expected: type[R]) -> R | Refused:
    """Raises msgspec.MsgspecError for what is neither."""
    return msgspec.msgpack.decode(data, type=expected | Refused)
