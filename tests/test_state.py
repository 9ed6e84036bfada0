"""The state of the device while it is timed: what NVML and Linux say, in which units, and what a record keeps of it."""

from __future__ import annotations

import os
from types import SimpleNamespace

import psutil
import pynvml
import pytest

from fusebench import machine
from fusebench.timing import state
from fusebench.timing.state import SLOWDOWNS, State
from fusebench.timing.summary import StateRange


@pytest.fixture
def nvml(monkeypatch):
    """A GPU that answers; `nvml[name] = error` makes one of its answers that."""
    answers = {
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0,
        "nvmlDeviceGetPowerUsage": 612_345,  # mW
        "nvmlDeviceGetTotalEnergyConsumption": 1_234_567,  # mJ
        "nvmlDeviceGetClockInfo": {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201},
        "nvmlDeviceGetTemperature": {pynvml.NVML_TEMPERATURE_GPU: 41},
    }

    def answer(name):
        def asked(gpu, *of):
            assert gpu == "handle"
            found = answers[name]
            if isinstance(found, Exception):
                raise found
            return found[of[0]] if of else found

        return asked

    monkeypatch.setattr(machine, "gpu_handle", lambda: "handle")
    for name in answers:
        monkeypatch.setattr(pynvml, name, answer(name))
    return answers


def test_a_gpu_s_state_is_in_mhz_watts_and_degrees(nvml):
    assert state.read("cuda") == State(
        sm_mhz=1980, memory_mhz=3201, power_w=612.345, temperature_c=41, power_capped=False, slowdown=None
    )
    assert state.energy_j() == 1234.567


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (pynvml.nvmlClocksThrottleReasonHwSlowdown, "hardware slowdown"),
        (pynvml.nvmlClocksThrottleReasonSwThermalSlowdown, "thermal slowdown"),
        (pynvml.nvmlClocksThrottleReasonHwThermalSlowdown, "hardware thermal slowdown"),
        (pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown, "power brake"),
    ],
)
def test_a_slowdown_is_named(nvml, reason, name):
    nvml["nvmlDeviceGetCurrentClocksThrottleReasons"] = reason
    assert (state.read("cuda").slowdown, state.read("cuda").power_capped) == (name, False)


def test_several_slowdowns_are_all_named(nvml):
    nvml["nvmlDeviceGetCurrentClocksThrottleReasons"] = 2**63 - 1
    assert state.read("cuda") == State(1980, 3201, 612.345, 41, True, ", ".join(SLOWDOWNS.values()))


def test_a_power_cap_and_an_idle_card_are_no_slowdown(nvml):
    for reason, capped in (
        (pynvml.nvmlClocksThrottleReasonSwPowerCap, True),
        (pynvml.nvmlClocksThrottleReasonGpuIdle, False),
        (pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting, False),
        (pynvml.nvmlClocksThrottleReasonSyncBoost, False),
    ):
        nvml["nvmlDeviceGetCurrentClocksThrottleReasons"] = reason
        assert (state.read("cuda").slowdown, state.read("cuda").power_capped) == (None, capped)


@pytest.mark.parametrize("error", [pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED), OSError()], ids=["nvml", "os"])
@pytest.mark.parametrize(
    ("question", "unknown"),
    [
        ("nvmlDeviceGetCurrentClocksThrottleReasons", {"power_capped", "slowdown"}),
        ("nvmlDeviceGetPowerUsage", {"power_w", "slowdown"}),
        ("nvmlDeviceGetClockInfo", {"sm_mhz", "memory_mhz", "slowdown"}),
        ("nvmlDeviceGetTemperature", {"temperature_c", "slowdown"}),
    ],
)
def test_what_a_gpu_does_not_answer_is_not_known(nvml, question, unknown, error):
    nvml[question] = error
    read = state.read("cuda")
    gpu_s = ("sm_mhz", "memory_mhz", "power_w", "temperature_c", "power_capped", "slowdown")
    assert {name for name in gpu_s if getattr(read, name) is None} == unknown


def test_without_nvml_nothing_is_known(nvml, monkeypatch):
    nvml["nvmlDeviceGetTotalEnergyConsumption"] = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert state.energy_j() is None
    monkeypatch.setattr(machine, "gpu_handle", lambda: None)
    assert state.energy_j() is None and state.read("cuda") == State()


@pytest.fixture
def linux(monkeypatch):
    """A CPU of which Linux tells all; `linux(frequency)` makes psutil answer that, or raise it."""

    def answer(frequency):
        def asked():
            if isinstance(frequency, Exception):
                raise frequency
            return frequency

        monkeypatch.setattr(psutil, "cpu_freq", asked)

    monkeypatch.setattr(os, "getloadavg", lambda: (1.2345, 2.0, 3.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 3, 5} if process == 0 else set())
    return answer


@pytest.mark.parametrize(
    ("frequency", "mhz"),
    [(SimpleNamespace(current=2599.7, max=9000), 2600), (None, None), (OSError(), None), (NotImplementedError(), None)],
)
def test_a_cpu_s_state_is_its_frequency_load_and_threads(linux, frequency, mhz):
    """The load is that of the last minute, the threads those that the process may use."""
    linux(frequency)
    assert state.read("cpu") == State(cpu_mhz=mhz, load=1.23, threads=3)


def test_a_record_keeps_the_lowest_and_the_highest():
    readings = [
        State(1980, 3201, 300.0, 40, False, None, 2600.0, 1.5, 2),
        State(1755, 3201, 700.0, 55, True, "power brake", 3000.0, 0.5, 2),
        State(1890, 3201, None, None, None, None, 2000.0, 1.0, 2),
    ]
    assert state.summary(readings) == StateRange(
        sm_mhz=(1755, 1980), memory_mhz=(3201, 3201), power_w=(300.0, 700.0), temperature_c=(40, 55),
        power_capped=True, cpu_mhz=(2000.0, 3000.0), load=(0.5, 1.5), threads=(2, 2),
    )  # fmt: skip
    assert state.summary([State(power_capped=False), State(power_capped=False)]) == StateRange(power_capped=False)
    assert state.summary([State(load=0.0)]) == StateRange(load=(0.0, 0.0)), "zero is known"
    assert state.summary([State(), State()]) == state.summary([]) == StateRange()


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"index0": "48K\n", "index3": "107520K\n", "index2": "2048K\n"}, 105 * 2**20),
        ({"index0": "32K", "index3": "36M"}, 36 * 2**20),
        ({"index0": "32768"}, 2**15),
        ({}, 64 * 2**20),
    ],
)
def test_the_last_cache_is_the_largest(monkeypatch, tmp_path, sizes, expected):
    for name, size in sizes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "size").write_text(size)
        (tmp_path / name / "level").write_text("9")
    asked = []
    monkeypatch.setattr(state, "Path", lambda path: asked.append(path) or tmp_path)
    assert state.cache_bytes() == expected and asked == ["/sys/devices/system/cpu/cpu0/cache"]


def test_a_gpu_that_was_slowed_down_rests_for_a_second(monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    state.cool_down()
    assert slept == [1.0]
