"""What a worker starts with: its environment, its interpreter and its cores."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from test_pool import DONE, reply, write

from fusebench.workers import pool as module
from fusebench.workers import protocol
from fusebench.workers.cores import Cores
from fusebench.workers.pool import Pool, WorkerLost, environment, harness_for, interpreter

BOTH = {
    "PYTHONUNBUFFERED": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "TORCHINDUCTOR_COMPILE_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "TRITON_DEFAULT_FP_FUSION": "1", "OTHER": "kept",
}  # fmt: skip
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@pytest.fixture
def bare(monkeypatch):
    """An environment with nothing in it but one variable of the user's."""
    for name in list(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTHER", "kept")


def of(device, cores):
    """The environment of a worker in this interpreter, without pytest's own mark in it."""
    found = environment(device, sys.executable, cores)
    return {name: value for name, value in found.items() if not name.startswith("PYTEST")}


@pytest.mark.parametrize(("cores", "count", "named"), [([0, 3, 4], "3", "0,3,4"), ([4], "1", "4")])
def test_every_variable_of_a_cpu_workers_environment(bare, cores, count, named):
    cpu = {"TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "FUSEBENCH_CORES": named}
    cpu |= dict.fromkeys(THREADS, count)
    assert of("cpu", cores) == BOTH | cpu | {"PYTHONPATH": str(Path(__file__).parents[1])}
    assert "PYTHONPATH" not in os.environ


def test_every_variable_of_a_gpu_workers_environment(bare):
    assert of("cuda", [2]) == BOTH | {"PYTHONPATH": str(Path(__file__).parents[1])}


def test_what_the_user_sets_is_kept_where_figures_do_not_depend_on_it(bare, monkeypatch):
    theirs = dict.fromkeys((*BOTH, *THREADS, "TRITON_INTERPRET", "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"), "theirs")
    for name, value in (theirs | {"PYTHONPATH": "/a:/b"}).items():
        monkeypatch.setenv(name, value)
    found = environment("cpu", sys.executable, [0])
    kept = {name for name, value in found.items() if value == "theirs"}
    assert kept == {"TF_CPP_MIN_LOG_LEVEL", "TRITON_DEFAULT_FP_FUSION", "OTHER"}
    assert found["PYTHONPATH"] == f"{module.HARNESS}:/a:/b"


def test_another_interpreter_finds_the_harness_and_nothing_that_lies_beside_it():
    """Beside an installed harness lie this interpreter's packages, which are not the other's."""
    folder = harness_for("/another/python")
    assert folder != module.HARNESS == harness_for(sys.executable)
    assert sorted(f.name for f in folder.iterdir()) == ["fusebench", "implementations"]
    assert all((folder / name).resolve() == module.HARNESS / name for name in ("fusebench", "implementations"))
    assert harness_for("/another/python") == folder, "one for all its workers"
    assert environment("cuda", "/another/python", [])["PYTHONPATH"].split(os.pathsep)[0] == str(folder)


def test_another_interpreter_imports_the_harness():
    program = "import fusebench.workers.protocol, implementations; print(fusebench.__file__)"
    env = environment("cpu", "/another/python", [0])
    done = subprocess.run([sys.executable, "-c", program], env=env, cwd="/", capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).resolve() == module.HARNESS / "fusebench" / "__init__.py"
    assert Path(done.stdout.strip()).is_relative_to(harness_for("/another/python"))


def test_a_harness_without_kernels_beside_it_is_found_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "fusebench").mkdir()
    monkeypatch.setattr(module, "HARNESS", tmp_path)
    assert [f.name for f in harness_for.__wrapped__("/another/python").iterdir()] == ["fusebench"]


@pytest.mark.parametrize(
    ("pythons", "expected"),
    [
        ({}, sys.executable), ({"torch": None, "triton": None}, sys.executable), ({"torch": "t"}, "t"),
        ({"triton": "k"}, "k"), ({"triton": "k", "torch": "t"}, "k"), ({"jax": "j", "flax": "f"}, sys.executable),
    ],
)  # fmt: skip
def test_an_implementations_own_interpreter_comes_first(pythons, expected):
    assert interpreter(pythons, "triton", "torch") == expected


def test_the_constants_of_a_pool():
    assert (module.START_S, module.END_S, module.LOOK_S) == (180, 10, 1)
    assert (module.LOG_BYTES, module.HELD_BYTES, module.HELD_SHARE) == (64 * 2**20, 2**31, 1 / 8)


def test_a_socket_is_not_left_open_by_what_does_not_start(pool, monkeypatch):
    pairs, make = [], socket.socketpair
    monkeypatch.setattr(socket, "socketpair", lambda: pairs.append(make()) or pairs[-1])
    with pytest.raises(WorkerLost):
        pool.start("mine", "/nowhere/python")
    assert [end.fileno() for end in pairs[0]] == [-1, -1]


# Its cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of four cores for this process, whose locks no other process has."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 5, 7} if pid == 0 else set())


def taken(count):
    """The cores that a run gets now, and gives back."""
    cores = Cores(count)
    cores.release()
    return cores.numbers


def test_runs_that_go_on_at_one_time_have_cores_of_their_own(machine):
    first, second = Cores(2), Cores(1)
    assert (first.numbers, second.numbers) == ([1, 4], [5])
    assert taken(2) == [1, 7], "the last that is free, and the first of those that are taken"
    first.release()
    assert taken(3) == [1, 4, 7]


def test_a_run_on_all_cores_takes_none_away(machine):
    whole = Cores(4)
    assert whole.numbers == taken(9) == [1, 4, 5, 7]
    one, another = Cores(1), Cores(1)
    assert (one.numbers, another.numbers) == ([1], [4])


def test_a_core_whose_lock_is_another_users_is_left_to_them(machine, tmp_path):
    (tmp_path / "fusebench-core-1.lock").mkdir()  # what cannot be opened
    assert taken(1) == [4]


def test_the_end_of_a_process_gives_its_cores_back(machine, tmp_path):
    program = (
        "import os, sys, tempfile; tempfile.tempdir = sys.argv[1]; os.sched_getaffinity = lambda pid: {1, 4, 5, 7}\n"
        "from fusebench.workers.cores import Cores\n"
        "cores = Cores(2); print(cores.numbers, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=module.HARNESS
    ) as other:
        assert other.stdout.readline() == "[1, 4]\n"
        assert taken(2) == [5, 7]
        other.kill()
    assert taken(2) == [1, 4]


def test_pools_that_work_in_turns_are_on_the_same_cores(machine, tmp_path):
    with Pool("cpu", [], tmp_path, 2) as judges:
        with Pool("cpu", [], tmp_path, beside=judges) as side:
            assert side.cores is judges.cores and side.cores.numbers == [1, 4]
        assert taken(1) == [5], "the side has left them to the judges"
    with Pool("cpu", [], tmp_path, 1) as later:
        assert later.cores.numbers == [1]


def test_a_pool_computes_on_all_cores_unless_told_otherwise(machine, tmp_path):
    assert Pool("cpu", [], tmp_path).cores.numbers == [1, 4, 5, 7]


def test_a_worker_is_told_its_cores(machine, tmp_path):
    with Pool("cpu", [], tmp_path, 2) as pool:
        worker = pool.get("mine", write(tmp_path))
        worker.ask(reply(DONE, "print(os.environ['FUSEBENCH_CORES'], flush=True)"), protocol.Repeated, 20)
        assert worker.log.read_text() == "1,4\n"
