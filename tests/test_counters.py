"""Hardware counters of `fusebench profile`: ncu's listing beside the kernels, by a program that says what a test has it say."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import replace

import numpy as np
import pytest
from conftest import FIXTURES
from samples import untimed

from fusebench.backends.events import KERNEL
from fusebench.cases import make_case
from fusebench.configuration import request
from fusebench.configuration.request import Request
from fusebench.contract import Cell
from fusebench.errors import UsageError
from fusebench.profiling import counters, ncu, run
from fusebench.profiling.kernels import KernelTotal
from fusebench.profiling.run import Profile
from fusebench.records import store
from fusebench.records.record import Record, Work
from fusebench.settings import Run, Settings
from fusebench.tracing import calls

PROFILED = FIXTURES / "profiled"
LISTING = """==PROF== Connected to process 12
"ID","Process ID","Kernel Name","Block Size","dram__bytes_read.sum","dram__bytes_write.sum","sm__warps_active.avg.pct_of_peak_sustained_active","sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed","smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio","smsp__average_warps_issue_stalled_wait_per_issue_active.ratio"
"","","","","byte","byte","%","%","inst","inst"
"0","12","void our::halve<float, (int)4>(const float *, float *, int)","(128, 1, 1)","1,048,576","524288","81.5","0","8.13","1.2"
"1","12","triton_gemm","(128, 1, 1)","1000","24","25","62.5","n/a","3"
"2","12","triton_gemm","(128, 1, 1)","1000","24","35","61.5","2","4"
"""


def test_counters_are_read_from_ncus_listing_and_stand_beside_the_kernels():
    counted = counters.parse(LISTING)
    assert [c.name for c in counted][1:] == ["triton_gemm"] * 2
    assert counted[0].counters == {
        "dram_bytes": 1572864, "occupancy_percent": 81.5, "tensor_percent": 0, "stalled_long_scoreboard": 8.13, "stalled_wait": 1.2,
    }  # fmt: skip
    made = [
        KernelTotal(name, KERNEL, 1, 1.0, 0.0, 0.0)
        for name in ("void our::halve<float, 4>(float const*, float*, int)", "triton_gemm", "other")
    ]
    halve, gemm, other = counters.beside(made, counted, ())
    assert halve.counters["dram_bytes"] == 1572864 and not other.counters
    assert (gemm.counters["dram_bytes"], gemm.counters["occupancy_percent"], gemm.counters["tensor_percent"]) == (
        2048,
        30,
        62,
    )
    assert counters.stalls(halve.counters) == "long_scoreboard 8.1, wait 1.2"
    assert counters.elsewhere(made, counted) == () and counters.elsewhere(made[:1], counted) == ("triton_gemm",)
    assert counters.parse("==ERROR== nothing") == [] and counters.stalls({}) == ""
    reads_alone = counters.parse(LISTING.replace("dram__bytes_write", "another"))[0].counters
    assert "dram_bytes" not in reads_alone and reads_alone["occupancy_percent"] == 81.5


def test_kernels_of_one_template_are_told_apart_by_their_order():
    kineto_has = [
        "void at::(anonymous namespace)::each<4, Add>(int)",
        "void at::(anonymous namespace)::each<4, Mul>(int)",
    ]
    ncu_has = ["void at::<unnamed>::each<(int)4, AddImpl>(int)", "each"]
    counted = [counters.Counted(name, {"dram_bytes": size}) for name, size in zip(ncu_has, (1.0, 5.0), strict=True)]
    rows = [KernelTotal(name, KERNEL, 1, 1.0, 0.0, 0.0) for name in reversed(kineto_has)]
    assert [r.counters["dram_bytes"] for r in counters.beside(rows, counted, kineto_has)] == [5, 1]
    assert [r.counters["dram_bytes"] for r in counters.beside(rows, counted, kineto_has[:1])] == [6, 6], (
        "nothing tells them apart"
    )


def test_counters_of_a_kernel_that_was_chosen_under_ncu_alone_are_no_others():
    rows = [KernelTotal("gemm_128", KERNEL, 1, 1.0, 0.0, 0.0)]
    counted = [counters.Counted("gemm_256", {"dram_bytes": 1.0})]
    assert not counters.beside(rows, counted, ["gemm_128"])[0].counters


def test_metrics_are_those_that_the_device_has():
    listed = "Device some GPU\ndram__bytes_read  Counter  byte  # of bytes\ndram__bytes_write  Counter\nsm__warps_active Counter\n"
    listed += "sm__inst_executed_pipe_tensor  Counter\nsmsp__average_warps_issue_stalled_gmma_per_issue_active  Ratio\n"
    asked = ncu.metrics(listed)
    assert asked == (
        *ncu.DRAM, ncu.OCCUPANCY, "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed",
        "smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio",
    )  # fmt: skip
    assert set(ncu.DRAM) < set(ncu.metrics("==ERROR== no device"))


FAKE = """#!{python} -ISB
import sys
from pathlib import Path
here = Path(__file__).parent
if "--version" in sys.argv:
    print((here / "version").read_text())
elif "--import" in sys.argv:
    print(Path(sys.argv[sys.argv.index("--import") + 1]).read_text())
elif "--export" in sys.argv:
    (here / "arguments").write_text("\\n".join(sys.argv))
    print((here / "says").read_text())
    if (here / "listing").exists():
        Path(sys.argv[sys.argv.index("--export") + 1] + ".ncu-rep").write_text((here / "listing").read_text())
    sys.exit(0 if (here / "listing").exists() else 1)
"""


@pytest.fixture
def fake(tmp_path):
    """The folder of an ncu: the files beside it are what it says."""
    folder = tmp_path / "ncu"
    folder.mkdir()
    (folder / "ncu").write_text(FAKE.format(python=sys.executable))
    (folder / "ncu").chmod(stat.S_IRWXU)
    (folder / "version").write_text("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 1)")
    (folder / "says").write_text("==PROF== Connected")
    return folder


@pytest.fixture
def counted(fake, kernels, roots, tmp_path):
    """What is left of two profiles that are counted by the fake ncu, and the sweep."""
    (tmp_path / "run").mkdir()
    chosen = {"device": "cpu", "worker": {"inline": False, "python": {}}}
    this = Run(kernels, roots, tmp_path / "run", Settings("cpu", timeout_s=60))

    def count():
        cell = Cell(make_case(kernels["halved"], "small"), "torch_eager", "plain")
        record = replace(untimed(), id=cell.id, label=cell.label, cell=cell, work=Work(1, 2**20))
        rows = (
            KernelTotal("void our::halve<float, 8>(int)", KERNEL, 1, 1.0, 0.0, 0.0),
            KernelTotal("copy", "copy", 1, 1.0, 0.0, 0.0),
        )
        sweep = run.Sweep(this, Request("profile", (), chosen, (cell,)), 1, True, ncu.find(str(fake / "ncu")))
        profiles = [
            Profile(cell.id, record, rows=rows),
            Profile("second", record, rows=rows),
            Profile("failed", record),
        ]
        return sweep, list(run.count(sweep, profiles))

    return count


def test_counters_come_from_a_program_under_ncu(fake, counted, tmp_path):
    (fake / "listing").write_text(LISTING)
    sweep, (profile, second) = counted()
    assert profile.rows[0].counters["dram_bytes"] == 1572864 and not profile.rows[1].counters
    assert profile.counters["dram_bytes"] == 1574912 and profile.dram_share == pytest.approx(1574912 / 2**20)
    assert (profile.report, second.report) == ("counters/0001.ncu-rep", "counters/0002.ncu-rep")
    assert (sweep.this.folder / profile.report).is_file() and not profile.no_counters
    words = (fake / "arguments").read_text().splitlines()
    assert (
        words[words.index("--clock-control") + 1] == "none" and words[words.index("--profile-from-start") + 1] == "off"
    )
    assert words[words.index("-Pm") + 1] == "fusebench.profiling.cell"
    assert [p.id for p in store.read(sweep.this.folder, Profile)] == [profile.id, second.id]


def test_the_program_under_ncu_makes_one_call_and_leaves_the_record_of_its_cell(kernels, tmp_path, monkeypatch):
    from fusebench.profiling import cell as program

    seen = []
    monkeypatch.setattr(calls, "count", lambda backend, call, ring: seen.append(backend.get(call(*ring[0]))))
    monkeypatch.setattr(program.memory, "be_killed_first", lambda: seen.append(np.empty(0)))
    chosen = {
        "device": "cpu",
        "timeout_s": 9.0,
        "threads": None,
        "rows_seed": 3,
        "inputs": "plain",
        "worker": {"inline": True, "python": {}},
    }
    cell = Cell(make_case(kernels["halved"], "small"), "numpy", "default")
    asked = Request("profile", (str(PROFILED),), chosen, (cell,))
    (tmp_path / "request.json").write_bytes(request.encode(asked))
    environment = dict(os.environ)
    program.main(str(tmp_path / "request.json"), str(tmp_path), str(os.getpid()))
    os.environ.clear()
    os.environ.update(environment)
    (record,) = store.read(tmp_path, Record)
    assert (record.id, record.status, record.reason) == (cell.id, "ok", None) and record.parity.first is None
    assert [a.shape for a in seen] == [(0,), (4096,)], "it offers itself to the kernel, then makes one call"


@pytest.mark.parametrize(
    ("says", "reason", "everywhere"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission",
            "keeps them for administrators (ERR_NVGPUCTRPERM)",
            True,
        ),
        (
            "==ERROR== Failed to initialize the profiler: LibraryNotLoaded",
            "Failed to initialize the profiler: LibraryNotLoaded",
            True,
        ),
        ("Traceback\nKeyError: 'x'", "ncu read none: KeyError: 'x'", False),
    ],
)
def test_what_keeps_ncu_from_counting_is_said_in_a_line(fake, counted, says, reason, everywhere):
    (fake / "says").write_text(says)
    sweep, profiles = counted()
    assert len(profiles) == 2 and all(reason in p.no_counters and "\n" not in p.no_counters for p in profiles)
    assert isinstance(sweep.ncu, ncu.NoCounters) == everywhere, "then the second cell is not tried"
    assert profiles[0].rows and not profiles[0].counters


def test_a_listing_without_a_number_counts_nothing(fake, counted):
    (fake / "listing").write_text("\n".join(LISTING.splitlines()[:2]))
    _, (profile, second) = counted()
    assert (
        "ncu read none: " in profile.no_counters == second.no_counters and not profile.counters and not profile.report
    )


def test_no_ncu_or_one_that_does_not_run(fake, monkeypatch):
    monkeypatch.setattr(ncu, "_places", lambda: ["no-such-ncu"])
    with pytest.raises(ncu.NoCounters, match="neither on PATH nor in CUDA_HOME/bin: ncu=PATH says where it is"):
        ncu.find(None)
    with pytest.raises(UsageError, match="ncu=no-such-ncu: no such program"):
        ncu.find("no-such-ncu")
    (fake / "version").write_text("gone")
    with pytest.raises(ncu.NoCounters, match="is no ncu, or does not run: its --version is 'gone'"):
        ncu.find(str(fake / "ncu"))
