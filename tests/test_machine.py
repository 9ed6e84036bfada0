"""What this machine is, and what its datasheet says."""

from __future__ import annotations

import importlib.metadata
import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fusebench import machine
from fusebench.contract import Device
from fusebench.machine import DeviceInfo


@pytest.mark.parametrize(
    ("name", "gbps", "l2", "half", "tf32", "single"),
    [
        ("NVIDIA H200", 4800, 63e6, 989.5, 494.7, 66.9),
        ("NVIDIA H100 80GB HBM3", 3352, 52.5e6, 989.5, 494.7, 66.9),
        ("NVIDIA A100-SXM4-80GB", 2039, 42e6, 312, 156, 19.5),
        ("NVIDIA A100-SXM4-40GB", 1555, 42e6, 312, 156, 19.5),
    ],
)
def test_datasheets(name, gbps, l2, half, tf32, single):
    """Vendors' pages: bandwidth, dense peaks of the SXM cards, L2 in bytes."""
    expected = {"GB/s": gbps, "L2": l2, "float16": half, "bfloat16": half, "tf32": tf32, "float32": single}
    assert machine.datasheet(name) == expected
    assert machine.datasheet(f"{name} MIG 1g.18gb") == expected


@pytest.mark.parametrize("name", ["NVIDIA GH200 480GB", "NVIDIA H2000", "NVIDIA H100 PCIe", "some CPU", ""])
def test_another_card_has_no_datasheet(name):
    assert machine.datasheet(name) is None


def test_the_processor_is_named_as_linux_does(monkeypatch):
    text = "processor\t: 0\nmodel name\t: Some CPU @ 2:5 GHz\nmodel name\t: Other\n"
    monkeypatch.setattr(Path, "read_text", lambda self: text if str(self) == "/proc/cpuinfo" else "")
    assert machine.cpu_name() == "Some CPU @ 2:5 GHz"


@pytest.mark.parametrize(("processor", "name"), [("arm", "arm"), ("", "CPU")])
def test_a_processor_without_a_name(monkeypatch, processor, name):
    def fails(self):
        raise OSError

    monkeypatch.setattr(platform, "processor", lambda: processor)
    monkeypatch.setattr(Path, "read_text", lambda self: "processor : 0\n")
    assert machine.cpu_name() == name
    monkeypatch.setattr(Path, "read_text", fails)
    assert machine.cpu_name() == name


def test_packages_are_those_that_are_installed(monkeypatch):
    def version(name):
        if name == "triton":
            raise importlib.metadata.PackageNotFoundError
        return f"{name} 1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = machine.packages.__wrapped__()
    assert set(found) == set(machine.PACKAGES) - {"triton"} and found["torch"] == "torch 1"
    assert {"torch", "triton", "jax", "jaxlib", "flax", "jax-triton", "cuda-core", "numpy", "fusebench"} <= set(
        machine.PACKAGES
    )


# The commit


@pytest.fixture
def repository(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        return subprocess.run(
            ["git", "-C", tmp_path, *identity, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    return tmp_path, git("rev-parse", "HEAD")


def test_the_commit_is_marked_where_files_differ(repository):
    folder, head = repository
    commit = machine.git_commit.__wrapped__
    assert commit(folder) == head and commit(folder / "a") == head
    (folder / "a" / "new").write_text("x")
    assert commit(folder) == head + "+" == commit(folder / "a"), "new files count"
    assert commit(folder / "b") == head, "those elsewhere do not"
    assert commit(folder, "b") == head and commit(folder, "b", "a") == head + "+"


def test_outside_a_checkout_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert machine.git_commit.__wrapped__(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert machine.git_commit.__wrapped__(tmp_path) is None, "nor without git"


# Memory


def test_the_peak_is_in_bytes(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda self: "VmPeak:\t 9 kB\nVmHWM:\t    1234 kB\nVmRSS:\t 5 kB\n")
    assert machine.peak_rss() == 1234 * 1024
    monkeypatch.setattr(Path, "read_text", lambda self: "Name: x\n")
    assert machine.peak_rss() is None


def test_without_proc_there_is_no_peak(monkeypatch):
    def fails(*_):
        raise OSError

    monkeypatch.setattr(Path, "read_text", fails)
    monkeypatch.setattr(Path, "write_text", fails)
    assert machine.reset_peak_rss() is None and machine.peak_rss() is None


@pytest.mark.parametrize(("highest", "present", "peak"), [(9000, 8000, 9000 * 1024), (90000, 8000, None)])
def test_a_request_that_does_nothing_is_noticed(monkeypatch, highest, present, peak):
    monkeypatch.setattr(Path, "read_text", lambda self: f"VmHWM:\t {highest} kB\nVmRSS:\t {present} kB\n")
    monkeypatch.setattr(Path, "write_text", lambda *_: 1)
    assert machine.reset_peak_rss() == peak, "some containers take it, and go on counting from the start"


def test_the_peak_is_that_since_the_reset():
    before = machine.reset_peak_rss()
    if before is None:
        pytest.skip("this system does not let a process begin the count of its peak")
    with mmap.mmap(-1, 64 * 2**20) as held:  # pages of its own, whatever earlier tests have left to the allocator
        held.write(bytes(64 * 2**20))
        grown = machine.peak_rss() - before
    assert 60 * 2**20 < grown < 200 * 2**20
    after = machine.reset_peak_rss()
    assert after is None or after < before + 40 * 2**20


# The device of a record


@pytest.mark.parametrize(("kind", "driver"), [("cuda", "580.1"), ("cpu", platform.release())])
def test_the_device_of_a_record(monkeypatch, kind, driver):
    monkeypatch.setattr(machine, "gpu", lambda: {"name": "NVIDIA H200", "driver": "580.1"})
    monkeypatch.setattr(os, "cpu_count", lambda: 48)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5})
    assert machine.describe(Device(kind, "a name", (9, 0), 132)) == DeviceInfo(
        kind, "a name", capability=(9, 0), driver=driver, multiprocessors=132, cores=48, threads=3
    )


def test_a_device_that_no_worker_has_described_has_its_type_alone():
    assert DeviceInfo("cuda") == DeviceInfo("cuda", "", (0, 0), "", multiprocessors=0, cores=0, threads=0)


def test_a_gpu_without_a_driver_s_word_has_none(monkeypatch):
    monkeypatch.setattr(machine, "gpu", lambda: None)
    assert machine.describe(Device("cuda", "x")).driver == ""


def test_without_a_handle_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(machine, "gpu_handle", lambda: None)
    assert machine.gpu.__wrapped__() is None
    assert machine.gpu_bytes.__wrapped__() == 0


def test_a_gpu_s_memory_is_what_the_driver_says_in_bytes(monkeypatch):
    pynvml = pytest.importorskip("pynvml")
    monkeypatch.setattr(machine, "gpu_handle", lambda: "handle")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda gpu: {"handle": SimpleNamespace(total=2**37)}[gpu])
    assert machine.gpu_bytes.__wrapped__() == 2**37
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda gpu: (_ for _ in ()).throw(pynvml.NVMLError(3)))
    assert machine.gpu_bytes.__wrapped__() == 0


def test_other_programs_on_a_gpu_are_those_that_this_process_did_not_start(monkeypatch):
    pynvml = pytest.importorskip("pynvml")
    monkeypatch.setattr(machine, "gpu_handle", lambda: None)
    assert machine.others_on_gpu() == 0
    monkeypatch.setattr(machine, "gpu_handle", lambda: "handle")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        numbers = (os.getpid(), child.pid, 1, 2, 2)
        running = {"handle": [SimpleNamespace(pid=number) for number in numbers]}
        monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", running.get)
        assert machine.others_on_gpu() == 2
    finally:
        child.communicate(b"\n")
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda gpu: (_ for _ in ()).throw(pynvml.NVMLError(3))
    )
    assert machine.others_on_gpu() == 0


def test_the_first_of_the_visible_gpus_is_asked(monkeypatch):
    pynvml = pytest.importorskip("pynvml")
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: SimpleNamespace(index=index))
    for visible, index in ((None, 0), (" 2 ,1", 2)):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert machine.gpu_handle.__wrapped__().index == index
