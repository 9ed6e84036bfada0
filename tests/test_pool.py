"""The parent's side of the workers, on a tiny program in a worker's place: no framework is loaded."""

from __future__ import annotations

import ast
import os
import signal
import struct
import sys
import time
from pathlib import Path

import pytest
import stand_in
from test_resume import wait_until

from fusebench import discovery
from fusebench.contract import Case
from fusebench.errors import StorageError
from fusebench.inputs import Stored
from fusebench.machine import DeviceInfo
from fusebench.records.record import Spread
from fusebench.workers import pool as module
from fusebench.workers import protocol
from fusebench.workers.pool import InlinePool, Pool, Unasked, Worker, WorkerLost, harness_for
from fusebench.workers.protocol import Refused

# In the place of a Python: takes a worker's arguments and does as it is told by the folder of a RepeatCell (`told`); it begins
# with what it was given. A back end "broken" does not start.
PROGRAM = """#!{python} -SI
import os, sys, time
from multiprocessing.connection import Connection
ignored, name, backend, device, fd, *roots = sys.argv[1:]
pipe = Connection(int(fd))
if backend == "silent":
    time.sleep(60)
if backend == "gone":
    print("no device")
    sys.exit(3)
if backend == "broken":
    pipe.send_bytes({broken!r})
pipe.send_bytes({info!r})
given = [ignored, name, backend, device, roots, os.environ["PYTHONPATH"], os.getsid(0),
         os.path.samestat(os.fstat(0), os.stat("/dev/null"))]
while True:
    message = pipe.recv_bytes()
    exec(message[message.index(b"#do ") + 4:].partition(b"#end")[0])
"""
HELLO = protocol.WorkerInfo(DeviceInfo("cpu", "mine"), {}, "3", ())


def write(folder):
    """The program as an executable file."""
    replies = {"broken": Refused("failed", "ImportError: no jax"), "info": HELLO}
    file = folder / "python"
    file.write_text(PROGRAM.format(python=sys.executable, **{n: protocol.encode(r) for n, r in replies.items()}))
    file.chmod(0o755)
    return str(file)


def told(code):
    """A request that has the program execute that code."""
    return protocol.RepeatCell(f"#do {code}#end")


def reply(message, first="pass"):
    """A request that the program answers with that message."""
    return told(f"{first}; pipe.send_bytes({protocol.encode(message)!r})")


@pytest.fixture
def python(tmp_path):
    return write(tmp_path)


@pytest.fixture
def pool(tmp_path):
    with Pool("cpu", [Path("/here"), Path("/there")], tmp_path) as workers:
        yield workers


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    """A worker for the tests that leave it alive, and its pool and log."""
    folder = tmp_path_factory.mktemp("lasting")
    with Pool("cpu", [Path("/here"), Path("/there")], folder) as workers:
        yield workers, write(folder), folder / "worker-mine.log"


DONE = protocol.Repeated(None, ())


def test_a_worker_is_started_once_with_what_it_needs(lasting):
    pool, python, log = lasting
    worker = pool.get("mine", python)
    assert worker.info == HELLO
    worker.ask(reply(DONE, "print(given, flush=True)"), protocol.Repeated, 20)
    *argv, path, session, stdin = ast.literal_eval(log.read_text())
    assert argv == ["-Pm", "fusebench.workers.worker", "mine", "cpu", ["/here", "/there"]]
    assert path.split(os.pathsep)[0] == str(harness_for(python))
    assert session == worker.process.pid and stdin
    assert pool.get("mine", python) is worker and worker.log == log
    pool.start("mine", python)
    assert pool.workers == {("mine", python): worker}


def test_a_folder_of_our_name_where_a_run_begins_is_not_taken_for_the_harness(tmp_path, monkeypatch):
    (tmp_path / "fusebench").mkdir()
    (tmp_path / "fusebench/__init__.py").write_text("raise RuntimeError('another fusebench')")
    monkeypatch.chdir(tmp_path)
    with Pool("cpu", [tmp_path], tmp_path) as pool:
        assert pool.get("numpy", sys.executable).info.device.type == "cpu"


def test_messages_and_answers_go_over_the_pipe_and_prints_to_the_log(lasting):
    pool, python, log = lasting
    worker = pool.get("mine", python)
    worker.ask(reply(DONE), protocol.Repeated, 20)
    before = len(log.read_bytes())
    spread = protocol.Repeated(Spread(3, float("inf"), 2, 9), (Stored("a.npy", "float32"),))
    assert (
        worker.ask(
            reply(spread, "print('{}', flush=True); print('oh', file=sys.stderr, flush=True)"), protocol.Repeated, 20
        )
        == spread
    )
    assert log.read_bytes()[before:] == b"{}\noh\n"


def test_a_request_arrives_as_it_was_sent(lasting):
    """The program sends it back, as nothing does that it is an answer to."""
    pool, python, _ = lasting
    case = Case("double", {"N": 3}, "float32", options={"layout": "kn"}, id="small/float32")
    sets = ((Stored("x.npy", "float32"), Stored("w.npy", "bfloat16")),)
    sent = protocol.BuildCell(
        case, "torch", "#do pipe.send_bytes(message)#end", ("x", "w"), sets, "", {"B": 64, "fast": True}
    )
    assert b"#do" in protocol.encode(sent)
    assert pool.get("mine", python).ask(sent, protocol.BuildCell, 20) == sent


@pytest.mark.parametrize(
    "code", [f"pipe.send_bytes({protocol.encode(protocol.Ran())!r})", "pipe.send_bytes(b'no words')"]
)
def test_another_answer_than_was_asked_for_ends_a_worker(pool, python, code):
    worker = pool.get("mine", python)
    with pytest.raises(Unasked, match="another answer than it was asked for") as caught:
        worker.ask(told(code), protocol.Repeated, 20)
    assert caught.value.status == "failed" and worker.process.poll() is not None


def test_an_answer_before_the_question_ends_a_worker(pool, python):
    worker = pool.get("mine", python)
    assert worker.ask(reply(DONE, f"pipe.send_bytes({protocol.encode(DONE)!r})"), protocol.Repeated, 20) == DONE
    assert worker.pipe.poll(20)
    with pytest.raises(Unasked):
        worker.ask(reply(DONE), protocol.Repeated, 20)
    assert worker.process.poll() is not None


@pytest.mark.parametrize(
    ("device", "timed", "expected"), [("cuda", True, "1"), ("cuda", False, "no"), ("cpu", True, "1")]
)
def test_a_worker_hears_whether_cells_are_going_to_be_timed(tmp_path, python, device, timed, expected):
    with Pool(device, [], tmp_path, timed=timed) as pool:
        worker = pool.get("mine", python)
        worker.ask(
            reply(DONE, "import os; print(os.environ.get('FUSEBENCH_PROFILES', 'no'), flush=True)"),
            protocol.Repeated,
            20,
        )
        assert worker.log.read_text().splitlines()[-1] == expected


def test_a_disk_that_keeps_a_worker_from_its_work_ends_the_run(lasting):
    pool, python, _ = lasting
    worker = pool.get("mine", python)
    with pytest.raises(StorageError, match=r"^x\.npy cannot be written$"):
        worker.ask(reply(Refused("storage", "StorageError: x.npy cannot be written")), protocol.Repeated, 20)
    assert worker.ask(reply(DONE), protocol.Repeated, 20) == DONE


def test_a_refusal_is_an_answer_or_costs_the_message_where_none_is_meant_to_be(lasting):
    pool, python, _ = lasting
    refused = Refused("failed", "no such tile", "of it")
    worker = pool.get("mine", python)
    assert worker.ask(reply(refused), protocol.Repeated, 20) == refused
    with pytest.raises(WorkerLost, match=r"^no such tile$") as caught:
        worker.get(reply(refused), protocol.Repeated, 20)
    assert caught.value.status == "failed"
    assert worker.get(reply(DONE), protocol.Repeated, 20) == DONE


def lost(pool, python, do, timeout_s=20.0):
    """What a message costs."""
    worker = pool.get("mine", python)
    with pytest.raises(WorkerLost) as caught:
        worker.ask(told(do), protocol.Repeated, timeout_s)
    worker.process.wait(10)
    assert worker.pipe.closed
    return caught.value.status, caught.value.reason


@pytest.mark.parametrize(
    ("do", "status", "reason"),
    [
        ("os._exit(7)", "crashed", "the worker ended: exit code 7"),
        ("os._exit(0)", "crashed", "the worker ended: exit code 0"),
        ("print('a\\n  why  \\n ', flush=True); os._exit(3)", "crashed", "the worker ended: exit code 3 (why)"),
        ("print('x' * 300, flush=True); os._exit(3)", "crashed", f"the worker ended: exit code 3 ({'x' * 200})"),
        ("print('noise', flush=True); os.kill(os.getpid(), 11)", "crashed", "the worker ended: killed by SIGSEGV"),
        ("os.kill(os.getpid(), 9)", "crashed", "the worker ended: killed by SIGKILL; the kernel does that when memory runs out"),
        ("os.kill(os.getpid(), 40)", "crashed", "the worker ended: killed by signal 40"),
        (f"pipe.send_bytes({protocol.encode(Refused('failed', 'lost', fatal=True))!r}); time.sleep(60)", "crashed", "lost"),
    ],
)  # fmt: skip
def test_a_worker_that_is_lost_says_how(pool, python, do, status, reason):
    assert lost(pool, python, do) == (status, reason)


def is_gone(pid):
    """Whether a process has ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] in "ZX"
    except OSError:
        return True


def test_a_worker_that_does_not_answer_is_ended_with_what_it_started(pool, python, tmp_path):
    do = f"import subprocess; p = subprocess.Popen(['sleep', '60']); open('{tmp_path}/pid', 'w').write(str(p.pid)); time.sleep(60)"
    found = lost(pool, python, do, 0.25)
    assert found == ("timeout", "no answer within 0.25 s (timeout_s sets the limit)")
    if (tmp_path / "pid").exists() and (pid := (tmp_path / "pid").read_text()):  # else it was ended before
        wait_until(lambda: is_gone(pid), 10)


def test_a_pipe_that_is_closed_is_no_answer(pool, python, monkeypatch):
    monkeypatch.setattr(module, "END_S", 0.05)
    with pytest.raises(WorkerLost, match=r"^the worker ended: it closed its pipe \(bye\)$"):
        pool.get("mine", python).ask(
            told("print('bye', flush=True); pipe.close(); time.sleep(60)"), protocol.Repeated, 20
        )


def test_a_group_is_only_killed_while_its_leader_is_not_waited_for(pool, python, monkeypatch):
    """Until then its number is given to no other process, and what it started may live on."""
    kill, killed = os.killpg, []
    worker = pool.get("mine", python)

    def look(group, sent):
        killed.append((group, worker.process.returncode, Path(f"/proc/{group}/stat").read_text().split()[2]))
        kill(group, sent)

    monkeypatch.setattr(os, "killpg", look)
    child = "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); os._exit(3)"
    status, reason = lost(pool, python, child)
    assert status == "crashed" and reason.startswith("the worker ended: exit code 3 (")
    assert killed == [(worker.process.pid, None, "Z")], "ended, and not waited for yet"
    wait_until(lambda: is_gone(reason.partition("(")[2].rstrip(")")), 10)


def test_what_was_waited_for_is_not_killed_again(pool, python, monkeypatch):
    worker = pool.get("mine", python)
    lost(pool, python, "os._exit(3)")
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("its number may be another's by now"))
    pool.stop()
    pool.drop("mine", python)
    assert worker.process.returncode == 3


def test_a_message_to_a_dead_worker_costs_the_next_cell_alone(pool, python):
    worker = pool.get("mine", python)
    worker.process.kill()
    worker.process.wait()
    with pytest.raises(WorkerLost, match="killed by SIGKILL"):
        worker.ask(reply(DONE), protocol.Repeated, 20)
    assert worker.process.returncode == -signal.SIGKILL
    pool.drop("mine", python)
    assert pool.get("mine", python).process.pid != worker.process.pid


def test_only_what_the_present_message_printed_explains_its_end(pool, python):
    worker = pool.get("mine", python)
    worker.ask(reply(DONE, "print('an old story', flush=True)"), protocol.Repeated, 20)
    assert lost(pool, python, "os._exit(4)") == ("crashed", "the worker ended: exit code 4")


def test_of_much_that_was_printed_the_end_counts(pool, python):
    assert lost(pool, python, "print('x' * 2**17 + '\\nwhy', flush=True); os._exit(4)")[1].endswith("exit code 4 (why)")


def test_a_worker_that_ends_is_lost_at_once_though_its_child_holds_the_pipe(pool, python):
    assert lost(pool, python, "os.fork() or time.sleep(60); os._exit(4)") == (
        "crashed",
        "the worker ended: exit code 4",
    )


@pytest.mark.parametrize("bytes_", [b"\x7f\xff\xff\xff", b"\0\0\1\0begun"])
def test_a_part_of_an_answer_is_not_waited_for(pool, python, monkeypatch, bytes_):
    """An impossible length, and what begins like an answer."""
    monkeypatch.setattr(module, "PART_S", 1)
    status, reason = lost(pool, python, f"os.write(pipe.fileno(), {bytes_!r}); time.sleep(60)", 50.0)
    assert status == "failed" and "another answer than it was asked for" in reason


def test_an_answer_may_come_in_parts(pool, python):
    whole = struct.pack("!i", len(protocol.encode(DONE))) + protocol.encode(DONE)
    do = f"os.write(pipe.fileno(), {whole[:6]!r}); time.sleep(0.1); os.write(pipe.fileno(), {whole[6:]!r})"
    assert pool.get("mine", python).ask(told(do), protocol.Repeated, 20.0) == DONE


# The log


def test_a_log_that_somebody_took_away_costs_nothing(pool, python):
    worker = pool.get("mine", python)
    worker.log.unlink()
    assert worker.ask(reply(DONE), protocol.Repeated, 20.0) == DONE
    assert lost(pool, python, "os._exit(4)") == ("crashed", "the worker ended: exit code 4")


@pytest.mark.parametrize(("size", "left"), [(0, 0), (1, -1)])
def test_a_log_of_more_than_64_mib_is_cut_to_half_of_that(tmp_path, size, left):
    log = tmp_path / "log"
    log.touch()
    os.truncate(log, 64 * 2**20 + size)
    Worker(None, None, log)._cut_log()
    assert log.stat().st_size == (64 * 2**20 if left == 0 else 32 * 2**20)


def test_a_log_is_looked_at_every_second_until_the_time_is_over(tmp_path, monkeypatch):
    now, polls, cuts = [100.0], [], []

    class Silent:
        def poll(self, seconds):
            polls.append(seconds)
            now[0] += seconds
            return False

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "has_ended", lambda process: False)
    worker = Worker(None, Silent(), tmp_path / "log")
    monkeypatch.setattr(Worker, "_cut_log", lambda self: cuts.append(now[0]))
    monkeypatch.setattr(Worker, "kill", lambda self: polls.append("killed"))
    with pytest.raises(WorkerLost, match=r"no answer within 2\.5 s"):
        worker.receive(protocol.Repeated, 2.5)
    assert polls == [1.0, 1.0, 0.5, "killed"] and cuts == [101.0, 102.0, 102.5]


def test_two_interpreters_of_one_back_end_have_logs_of_their_own(pool, tmp_path):
    (tmp_path / "other").mkdir()
    pythons = [write(tmp_path), write(tmp_path / "other")]
    logs = [pool.get("mine", python).log.name for python in (*pythons, pythons[0])]
    assert logs == ["worker-mine.log", "worker-mine-2.log", "worker-mine.log"]
    pool.drop("mine", pythons[1])
    assert pool.get("mine", pythons[1]).log.name == "worker-mine-2.log"
    assert pool.get("other", pythons[1]).log.name == "worker-other.log"


# Starting


def test_a_back_end_that_does_not_start_is_not_tried_for_every_cell(pool, python, tmp_path):
    for _ in range(2):
        with pytest.raises(WorkerLost) as caught:
            pool.get("broken", python)
        assert caught.value.status == "failed"
        assert caught.value.reason == "the broken worker does not start: ImportError: no jax"
    assert not pool.workers and not pool.started


def test_a_worker_that_ends_before_it_says_hello_is_lost(pool, python):
    with pytest.raises(WorkerLost, match=r"exit code 3 \(no device\)$"):
        pool.get("gone", python)


def test_a_worker_that_never_says_hello_is_given_up(pool, python, monkeypatch):
    monkeypatch.setattr(module, "START_S", 0.05)
    with pytest.raises(WorkerLost, match=r"no answer within 0\.05 s"):
        pool.get("silent", python)


@pytest.mark.parametrize(
    ("device", "hint"), [("cpu", ""), ("cuda", " (it did before: does nvidia-smi still show the GPU?)")]
)
def test_a_gpu_that_was_there_before_is_asked_after(tmp_path, python, device, hint):
    with Pool(device, [], tmp_path) as pool:
        pool.get("mine", python)
        pool.drop("mine", python)
        assert not pool.workers
        Path(python).write_text("#!/bin/sh\nexit 3\n")
        with pytest.raises(WorkerLost) as caught:
            pool.get("mine", python)
    assert (caught.value.status, caught.value.reason) == ("crashed", f"the worker ended: exit code 3{hint}")


def test_an_interpreter_that_is_none_is_named(pool):
    with pytest.raises(WorkerLost, match=r"^the mine worker does not start: .*No such file.*nowhere") as caught:
        pool.start("mine", "/nowhere/python")
    assert caught.value.status == "failed" and not pool.workers


def test_a_log_that_cannot_be_written_ends_the_run(tmp_path, python):
    with Pool("cpu", [], tmp_path / "nowhere") as pool, pytest.raises(StorageError, match=r"worker-mine\.log"):
        pool.start("mine", python)


def test_leaving_a_pool_ends_all_its_workers(tmp_path, python):
    with Pool("cpu", [], tmp_path) as pool:
        workers = [pool.get(name, python) for name in ("one", "two")]
        assert all(w.process.poll() is None for w in workers)
    assert [w.process.returncode for w in workers] == [-9, -9] and all(w.pipe.closed for w in workers)
    workers[0].stop()  # of what has ended


def test_all_workers_are_told_to_end_before_one_is_waited_for(tmp_path):
    """A GPU's process takes seconds to go: they go side by side."""
    told_to = []

    class Slow:
        def __init__(self, name):
            self.name = name

        def stop(self):
            told_to.append(f"stop {self.name}")

        def kill(self):
            told_to.append(f"wait for {self.name}")

    with Pool("cpu", [], tmp_path) as pool:
        pool.workers = {("a", "python"): Slow("a"), ("b", "python"): Slow("b")}
    assert told_to == ["stop a", "stop b", "wait for a", "wait for b"]


def test_idle_workers_with_much_memory_make_room_for_others(tmp_path, monkeypatch):
    """On a GPU frameworks keep what they took."""

    class Idle:
        def __init__(self, held):
            self.held_bytes, self.info = held, {"i": "am"}

        def kill(self):
            ended.append(self)

    keys = [("jax", "p"), ("torch", "p"), ("torch", "q")]
    for beside, left in (({}, [keys[0], keys[2]]), ({"beside": False}, [keys[0], keys[2]]), ({"beside": True}, keys)):
        pool, ended = Pool("cpu", [], tmp_path), []
        pool.workers = {k: Idle(held) for k, held in zip(keys, (2**40, 2 * 2**30 + 1, 2 * 2**30), strict=True)}
        gone = [pool.workers[keys[1]]] if left != keys else []
        assert pool.get("jax", "p", **beside).info == {"i": "am"}
        assert sorted(pool.workers) == sorted(left) and ended == gone


@pytest.mark.parametrize(
    ("device", "memory", "most"),
    [("cuda", 0, 2**31), ("cuda", 2**34, 2**31), ("cuda", 2**37, 2**34), ("cpu", 2**37, 2**31)],
)
def test_of_a_large_card_an_idle_worker_may_hold_an_eighth(tmp_path, monkeypatch, device, memory, most):
    monkeypatch.setattr(module, "gpu_bytes", lambda: memory)
    assert Pool(device, [], tmp_path).most_held == most


# Within this process


def test_an_inline_pool_holds_each_back_end_once(monkeypatch, tmp_path):
    stand_in.install(monkeypatch)
    roots = []
    monkeypatch.setattr(discovery, "use_roots", roots.append)
    monkeypatch.setattr(module, "environment", lambda *a: {"FUSEBENCH_TEST": repr(a)})
    monkeypatch.setenv("FUSEBENCH_TEST", "")
    with InlinePool("cpu", [tmp_path], 3) as pool:
        pool.start("stand_in", "python")
        assert pool.workers == {} and pool.rates == {}
        worker = pool.get("stand_in", "python")
        assert pool.get("stand_in", "another") is worker and worker.info.device.name == "stand-in"
        assert worker.used is False, "no other process could take its place"
        assert worker.ask(protocol.Release(), protocol.Released, 1) == protocol.Released(123) and worker.held_bytes == 0
        nothing = protocol.RepeatCell("")  # before anything was built
        assert worker.ask(nothing, protocol.Repeated, 1).status == "failed"
        with pytest.raises(WorkerLost, match=r"^IndexError") as caught:
            worker.get(nothing, protocol.Repeated, 1)
        assert caught.value.status == "failed"
        pool.drop("stand_in", "python")
        assert pool.get("stand_in", "python") is worker
        for backend, status, reason in [
            (
                "reference",
                "skipped",
                "the reference on the device has a process of its own, which worker=inline does not start",
            ),
            ("nosuch", "failed", "the nosuch back end does not start: No module named 'fusebench.backends.nosuch'"),
        ]:
            with pytest.raises(WorkerLost) as caught:
                pool.get(backend, "python")
            assert (caught.value.status, caught.value.reason) == (status, reason)
    given = ("cpu", sys.executable, sorted(os.sched_getaffinity(0))[:3])
    assert roots == [[tmp_path]] and os.environ["FUSEBENCH_TEST"] == repr(given)
