"""The figures of the memory guard, from files in the place of /proc and /sys."""

from __future__ import annotations

import resource

import pytest

from fusebench import memory

GB = 10**9
INFINITE = resource.RLIM_INFINITY


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A function that writes a file of this machine's, such as `system("/proc/meminfo", text)`."""
    monkeypatch.setattr(memory, "Path", lambda path: tmp_path / path.lstrip("/"))

    def write(path, text):
        file = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write


@pytest.fixture
def limits(monkeypatch):
    """The limit of the data segment as it is set; none at first."""
    kept = [(INFINITE, INFINITE)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: kept[-1] if which == resource.RLIMIT_DATA else None)
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: kept.append(pair))
    return kept


def test_what_is_free_is_the_kernels_estimate(system):
    system("/proc/meminfo", "MemTotal: 9000 kB\nMemAvailableToo: 1 kB\nMemAvailable:  2000 kB\n")
    assert memory.free_bytes() == 2000 * 1024


def test_without_proc_nothing_is_known(system):
    assert memory.free_bytes() is None
    system("/proc/meminfo", "MemTotal: 9000 kB\n")
    assert memory.free_bytes() is None


@pytest.mark.parametrize(
    ("most", "stat", "free"),
    [
        ("1500000\n", "file 7\nanon 500000\n", 1_000_000),
        ("max\n", "anon 500000\n", 2048000),
        ("9000000\n", "anon 500000\n", 2048000),  # the machine has less
        ("400000\n", "anon 500000\n", -100_000),
        ("1500000\n", "file 7\n", 2048000),
    ],
)
def test_a_control_group_may_allow_less(system, most, stat, free):
    system("/proc/meminfo", "MemAvailable: 2000 kB\n")
    system("/proc/self/cgroup", "0::/user/mine\n")
    system("/sys/fs/cgroup/user/mine/memory.max", most)
    system("/sys/fs/cgroup/user/mine/memory.stat", stat)
    assert memory.free_bytes() == free


@pytest.mark.parametrize(
    ("free", "before", "limit"),
    [
        (GB, (INFINITE, INFINITE), (3000 * 1024 + GB, INFINITE)),
        (GB, (2 * GB, 5 * GB), (3000 * 1024 + GB, 5 * GB)),
        (GB, (10**6, 5 * GB), (10**6, 5 * GB)),
        (-5, (INFINITE, 7 * GB), (3000 * 1024, 7 * GB)),
    ],
)
def test_the_limit_is_what_is_held_and_what_is_free(system, limits, monkeypatch, free, before, limit):
    system("/proc/self/status", "VmPeak: 1 kB\nVmData:\t 3000 kB\n")
    monkeypatch.setattr(memory, "free_bytes", lambda: free)
    limits.append(before)
    with memory.limited():
        assert limits[-1] == limit
    assert limits[-1] == before
    with pytest.raises(ValueError), memory.limited():
        raise ValueError
    assert limits[-1] == before, "however the block ends"


def test_too_large_an_allocation_is_told_with_what_is_free(system, limits, monkeypatch):
    system("/proc/self/status", "VmData: 1 kB\n")
    monkeypatch.setattr(memory, "free_bytes", lambda: 2_346_000_000)
    said = "^the case needs more host memory than the 2.35 GB that are free: of 9 GB$".replace(".", r"\.")
    with pytest.raises(MemoryError, match=said) as caught, memory.limited():
        raise MemoryError("of 9 GB")
    assert isinstance(caught.value.__cause__, MemoryError)


@pytest.mark.parametrize(("free", "status"), [(None, "VmData: 1 kB\n"), (GB, "VmPeak: 1 kB\n")])
def test_where_nothing_is_known_nothing_is_limited(system, limits, monkeypatch, free, status):
    system("/proc/self/status", status)
    monkeypatch.setattr(memory, "free_bytes", lambda: free)
    with memory.limited():
        assert len(limits) == 1
    assert len(limits) == 1


def test_a_worker_offers_itself_to_the_kernel(system):
    memory.be_killed_first()  # nothing happens where there is no such file
    file = system("/proc/self/oom_score_adj", "0")
    memory.be_killed_first()
    assert file.read_text() == "1000"
