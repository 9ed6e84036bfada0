"""The process around a worker's `Bench`, in this process, and the guard that refuses what an implementation may not import."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import stand_in
from test_bench import CASE

from fusebench import discovery, memory
from fusebench.machine import DeviceInfo
from fusebench.parity.verdict import Asked
from fusebench.workers import below, guard, protocol, worker
from fusebench.workers.bench import Bench
from fusebench.workers.protocol import Refused


@pytest.fixture
def backend(monkeypatch):
    return stand_in.install(monkeypatch)


class Ended(BaseException):
    """What os._exit is here."""


SAYS = protocol.WorkerInfo | protocol.Released | Refused  # what a worker sends here


class Pipe:
    def __init__(self, messages):
        self.messages, self.sent = [protocol.encode(m) for m in messages], []

    def recv_bytes(self):
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)

    def send_bytes(self, data):
        self.sent.append(msgspec.msgpack.decode(data, type=SAYS))


@pytest.fixture
def serve(monkeypatch, tmp_path):
    """A function that runs `main` on some messages and returns what it sent, its exit code and what it set of its process."""
    kept, package = list(sys.meta_path), sys.modules.get("implementations")

    def end(code):
        raise Ended(code)

    def serve(messages, backend="stand_in", device="cpu"):
        pipe, done = Pipe(messages), {}
        monkeypatch.setattr(sys, "argv", ["worker", backend, device, "77", str(tmp_path), "/else"])
        monkeypatch.setattr(worker, "Connection", lambda fd: done.update(fd=fd) or pipe)
        libc = SimpleNamespace(prctl=lambda *a: done.update(prctl=a))
        monkeypatch.setattr(below.ctypes, "CDLL", lambda name: libc)
        monkeypatch.setattr(signal, "signal", lambda *a: done.update(signal=a))
        monkeypatch.setattr(os, "sched_setaffinity", lambda *a: done.update(affinity=a))
        monkeypatch.setenv("FUSEBENCH_CORES", "2,5")
        monkeypatch.setattr(memory, "be_killed_first", lambda: done.update(first=True))
        monkeypatch.setattr(os, "_exit", end)
        monkeypatch.setattr(discovery, "use_roots", lambda roots: done.update(roots=roots))
        try:
            worker.main()
            done["code"] = None
        except Ended as ended:
            done["code"] = ended.args[0]
        done["guard"] = sys.meta_path[0] if isinstance(sys.meta_path[0], guard.Guard) else None
        sys.meta_path[:] = kept
        return pipe.sent, done

    yield serve
    sys.meta_path[:] = kept
    assert sys.modules.get("implementations") is package


RELEASE = protocol.Release()
OTHERS = protocol.CheckRows(Asked(CASE, "", (), (), (), (), (), 0), (), (), "")  # what this worker does not do


def test_a_worker_serves_until_its_pipe_ends(backend, serve, tmp_path):
    (info, first, refused, last), done = serve([RELEASE, OTHERS, RELEASE])
    assert isinstance(info, protocol.WorkerInfo) and first == last == protocol.Released(123)
    assert (refused.status, refused.reason) == (
        "failed",
        "ValueError: the reference and the compiler have workers of their own",
    )
    assert done["code"] == 0, "without the frameworks' exit handlers, which may hang"
    assert done["prctl"] == (1, 9), "it dies with its parent"
    assert done["signal"] == (signal.SIGINT, signal.SIG_IGN), "Ctrl-C is the parent's"
    assert done["affinity"] == (0, [2, 5]), "the cores that it was given"
    assert done["fd"] == 77 and done["first"] and done["roots"] == [tmp_path, Path("/else")]
    assert done["guard"].backend == "stand_in" and done["guard"].roots == [f"{tmp_path.resolve()}/", "/else/"]


def test_on_a_gpu_all_cores_are_its_own(backend, serve):
    assert "affinity" not in serve([], device="cuda")[1]


def test_a_worker_whose_device_is_lost_ends_behind_its_answer(backend, serve):
    backend.lost = True
    backend.half = backend.half_of_product = lambda array: np.ones(1)
    backend.get = lambda array: array if np.ndim(array) and array.dtype == np.float64 else 1 / 0
    (_, *answers), done = serve([OTHERS, RELEASE])
    assert len(answers) == 1 and answers[0].fatal and done["code"] == 1


def test_a_back_end_that_does_not_start_says_why(backend, serve, capsys):
    def no_device(_):
        raise RuntimeError("torch sees no CUDA device")

    backend.start = no_device
    sent, done = serve([RELEASE])
    assert sent == [Refused("failed", "RuntimeError: torch sees no CUDA device")] and done["code"] is None
    assert "Traceback" in capsys.readouterr().err, "the log has the rest"


def test_the_reference_has_no_guard_and_no_bench(backend, serve, monkeypatch):
    info, released = protocol.WorkerInfo(DeviceInfo("cuda"), {}, "", ()), protocol.Released(5)
    theirs = SimpleNamespace(info=lambda: info, do=lambda request: released if request == RELEASE else None)
    module = SimpleNamespace(Reference=lambda device: theirs if device == "cuda" else None)
    monkeypatch.setitem(sys.modules, "fusebench.workers.reference", module)
    sent, done = serve([RELEASE], "reference", "cuda")
    assert sent == [info, released] and done["guard"] is None


# The guard


@pytest.mark.parametrize(
    ("backend", "module", "refused"),
    [
        ("torch", "jax", True), ("torch", "jax.numpy", True), ("torch", "jaxlib", True), ("torch", "flax.linen", True),
        ("torch", "torch", False), ("torch", "torch.nn", False), ("torch", "numpy", False), ("torch", "jaxtyping", False),
        ("jax", "torch", True), ("jax", "torch.nn", True), ("jax", "jax", False), ("jax", "flax", False), ("jax", "jaxlib.x", False),
        ("torch", "cupy", True), ("jax", "cupy", True), ("torch", "numba.cuda", True), ("jax", "tensorflow", True),
        ("torch", "tvm", True), ("torch", "triton", False), ("jax", "jax_triton", False),
        ("numpy", "torch", True), ("numpy", "jax", True), ("numpy", "scipy.special", False), ("jax", "scipy", False),
    ],
)  # fmt: skip
def test_an_implementation_may_not_have_another_framework(tmp_path, backend, module, refused):
    found = guard.Guard(backend, [tmp_path])
    ask = "found = guard.find_spec(module)"
    inside, outside = (compile(ask, str(folder / "mine.py"), "exec") for folder in (tmp_path, tmp_path.parent))
    names = {"guard": found, "module": module}
    exec(outside, names)  # a library may
    assert names["found"] is None
    if refused:
        with pytest.raises(
            ImportError, match=f"^{module} is another framework than {backend}, which this implementation declares$"
        ):
            exec(inside, names)
    else:
        exec(inside, names)
        assert names["found"] is None


@pytest.mark.parametrize("name", ["lola.kernel", "_shared.numpy", "_shared.numpy.formulas"])
def test_the_reference_is_nobodys_to_import(tmp_path, name):
    found = guard.Guard("torch", [tmp_path])
    with pytest.raises(ImportError, match=rf"^implementations\.{name} is the reference: an implementation may not"):
        found.find_spec(f"implementations.{name}")


@pytest.mark.parametrize(
    "name",
    ["implementations.lola.triton", "implementations.lola.my_kernel", "elsewhere.kernel", "implementations._kernel",
     "implementations._shared.triton", "implementations._shared"],
)  # fmt: skip
def test_what_is_no_reference_may_be_imported(tmp_path, name):
    assert guard.Guard("torch", [tmp_path]).find_spec(name) is None


def test_a_file_of_any_root_is_an_implementation(tmp_path):
    found = guard.Guard("torch", [tmp_path / "ours", tmp_path / "theirs"])
    for root in ("ours", "theirs"):
        with pytest.raises(ImportError, match="another framework than torch"):
            exec(compile("guard.find_spec('jax')", str(tmp_path / root / "mine.py"), "exec"), {"guard": found})
    exec(compile("guard.find_spec('jax')", str(tmp_path / "ours-library" / "any.py"), "exec"), {"guard": found})


def test_the_guard_sees_through_the_import_machinery(tmp_path, monkeypatch):
    """A file asks by a statement or through importlib; frames of either lie between it and the guard."""
    monkeypatch.setattr(sys, "meta_path", [guard.Guard("torch", [tmp_path]), *sys.meta_path])
    for module in ("tensorflow", "cupy"):
        sys.modules.pop(module, None)
    for text in ("import tensorflow", "import importlib\nimportlib.import_module('cupy')"):
        with pytest.raises(ImportError, match="another framework than torch"):
            exec(compile(text, str(tmp_path / "mine.py"), "exec"), {})
        with pytest.raises(ModuleNotFoundError):
            exec(compile(text, "/library/theirs.py", "exec"), {})


def test_a_child_that_comes_back_from_a_call_ends_before_it_writes(backend, monkeypatch, tmp_path):
    """It would write the files of its parent's answer, perhaps while they are read."""
    bench = Bench("stand_in", "cpu")
    ended = []
    monkeypatch.setattr(os, "_exit", lambda code: ended.append((code, list(tmp_path.iterdir()))))
    bench._save(np.ones(2), tmp_path, "mine")
    assert ended == []
    monkeypatch.setattr(os, "getpid", lambda: bench.process + 1)
    (mine,) = tmp_path.iterdir()
    bench._save(np.ones(2), tmp_path, "child")
    assert ended == [(1, [mine])]
