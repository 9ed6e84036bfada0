"""The tables of `profile`, `tune`, `inspect` and `performance`, from known figures to the printed cell."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from samples import GPU, RATES, Now, case, table_of, timed, untimed
from test_data import small
from test_inspect_listings import LISTING, body

from fusebench import discovery, drawing
from fusebench import tuned as tuned_file
from fusebench.backends.events import KERNEL, Held
from fusebench.cases import make_case
from fusebench.cli import main
from fusebench.commands import data as data_command
from fusebench.commands import details, diff, performance, plot, tune
from fusebench.commands import story as story_table
from fusebench.configuration import story
from fusebench.contract import Case, Cell, Device
from fusebench.data import synthesis
from fusebench.errors import UsageError
from fusebench.inspection import expectation, figures, lines, sass, script, targets, versus
from fusebench.inspection import table as inspected
from fusebench.inspection.cells import Inspected
from fusebench.profiling import memory as curves
from fusebench.profiling import table as profiled
from fusebench.profiling.kernels import KernelTotal, Span
from fusebench.profiling.run import Profile
from fusebench.records import store
from fusebench.settings import Clock, Settings
from fusebench.timing.summary import seconds
from fusebench.tracing.syncs import Sync
from fusebench.tuning import confirm, results, strategies
from fusebench.tuning.confirm import Decision
from fusebench.tuning.study import Found, Study
from fusebench.workers.protocol import Fits

US, MIB = 1e-6, 2**20


@pytest.fixture(autouse=True)
def wide(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.chdir(tmp_path)


# profile

LAUNCH = {"grid": "132×1×1", "block": "256×1×1", "registers": 168, "shared_bytes": 3 * 2**14}
COUNTERS = {"dram_bytes": 3.0 * MIB, "tensor_percent": 61.24, "occupancy_percent": 24.96, "stalled_wait": 0.51, "stalled_long": 8.14, "stalled_no": 0.3}  # fmt: skip
ROWS = (
    KernelTotal("gemm", KERNEL, 2, 80 * US, 0.0, 5 * US, LAUNCH, COUNTERS),
    KernelTotal("gelu", KERNEL, 1, 15 * US, 6 * US, 0.0, {}, {}),
)
SPAN = Span(100 * US, 90 * US, 10 * US, 5 * US, 3, 6 * US, "gelu")


def profile(**more):
    record = untimed("torch_eager", work=(10**6, 2 * MIB))
    made = Profile("id", record, (SPAN,) * 3, SPAN, 1, ROWS, memory_of="allocator", peak_bytes=3 * MIB, counters={"dram_bytes": 3.0 * MIB})  # fmt: skip
    return replace(made, **more)


def test_a_profile_of_a_gpu_is_the_figures_of_its_rows(capsys):
    waits = (Sync("cudaStreamSynchronize", "lola/torch_eager.py:12", "y.item()", 2, 3 * US),)
    profiled.show([profile(syncs=waits)], "cuda")
    out = capsys.readouterr().out
    assert (
        "call 2 of 3: 100 µs: busy 90 µs in 3 launches, 10 µs in gaps (the longest 6 µs, before gelu), 5 µs overlapped, "
        "DRAM ÷ compulsory bytes 1.50\n"
    ) in out
    first, second = table_of(out, "kernel")
    assert first == {
        "kernel": "gemm", "count": "2", "time": "80 µs", "share": "80%", "gap before": "", "overlap": "5 µs", "grid": "132×1×1",
        "block": "256×1×1", "registers": "168", "shared": "48 KiB", "DRAM ÷ compulsory": "1.50", "tensor %": "61.2", "occupancy %": "25.0",
        "stalled on": "long 8.1, wait 0.5",
    }  # fmt: skip
    assert {n: v for n, v in second.items() if v} == {"kernel": "gelu", "count": "1", "time": "15 µs", "share": "15%", "gap before": "6 µs"}  # fmt: skip
    assert table_of(out, "the host waits at") == [
        {"the host waits at": "lola/torch_eager.py:12", "line": "y.item()", "in": "cudaStreamSynchronize", "count": "2", "time": "3 µs"}
    ]  # fmt: skip
    assert "memory: 3 MiB at the peak of a call beyond what was held before it, by the framework's allocations\n" in out


def test_a_profile_of_a_cpu_has_operators_and_no_launches(capsys):
    quiet = Span(50 * US, 50 * US, 0.0, 0.0, 1)
    rows = (KernelTotal("aten::mul", "operator", 1, 50 * US, 0.0, 0.0),)
    profiled.show([profile(span=quiet, spans=(quiet,), shown=0, rows=rows, counters={}, peak_bytes=None)], "cpu")
    out = capsys.readouterr().out
    assert "call 1 of 1: 50 µs: busy 50 µs in 1 operator, no gaps, no overlaps\n" in out
    (row,) = table_of(out, "operator, without what it calls")
    assert row == {"operator, without what it calls": "aten::mul", "count": "1", "time": "50 µs", "share": "100%", "gap before": "", "overlap": ""}  # fmt: skip
    assert "memory: its peak is not known" in out and "host waits" not in out


def test_rows_that_take_next_to_nothing_stand_together(capsys):
    rows = [KernelTotal(f"k{n}", KERNEL, 1, (20 - n) * US, 0.0, 0.0) for n in range(15)]
    profiled.show([profile(rows=tuple(rows), syncs=())], "cuda")
    out = capsys.readouterr().out
    shown = table_of(out, "kernel")
    assert [r["kernel"] for r in shown] == [*(f"k{n}" for n in range(12)), "3 others"]
    assert (shown[-1]["count"], shown[-1]["time"]) == ("3", seconds((8 + 7 + 6) * US))
    assert "the host waits for nothing within a call\n" in out
    tiny = [ROWS[0], *(KernelTotal(f"t{n}", KERNEL, 1, 0.01 * US, 0.0, 0.0) for n in range(2))]
    profiled.show([profile(rows=tuple(tiny))], "cuda")
    assert [r["kernel"] for r in table_of(capsys.readouterr().out, "kernel")] == ["gemm", "2 others"]
    profiled.show([profile(rows=tuple(tiny[:2]))], "cuda")
    assert [r["kernel"] for r in table_of(capsys.readouterr().out, "kernel")] == ["gemm", "t0"], (
        "a single one has a name"
    )


def test_what_was_not_profiled_has_its_reason(capsys, tmp_path):
    failed, skipped = untimed("triton", "failed", reason="no memory"), untimed("flax", "skipped", reason="too wide")
    made = [
        profile(span=None),
        profile(record=failed),
        profile(record=skipped),
        profile(counted_elsewhere=("cutlass",)),
    ]
    profiled.show(made, "cuda")
    out = capsys.readouterr().out
    assert (
        "its framework names no operators" in out
        and "failed  no memory\n" in out
        and "skipped  too wide  flax\n" in out
    )
    assert "under ncu other kernels were chosen, and counted: cutlass" in out
    profiled.footer(made, ["no ncu", "no ncu"], 1.25, tmp_path, "memory: it.svg")
    out = capsys.readouterr().out
    assert "4 cells: 2 ok, 1 failed, 1 skipped, 1.2 s\nno hardware counters: no ncu\ntrace" in out
    assert out.endswith(f"memory: it.svg\nrecords: {tmp_path}/records.jsonl\n")


def test_long_names_are_cut_and_small_stalls_are_left_out(capsys):
    rows = (
        KernelTotal("k" * 57, KERNEL, 1, 9 * US, 0.0, 0.0, {}, {"stalled_wait": 0.06, "stalled_long": 0.04}),
        KernelTotal("m" * 56, KERNEL, 1, 8 * US, 0.0, 0.0),
    )
    profiled.show([profile(rows=rows, syncs=())], "cuda")
    first, second = table_of(capsys.readouterr().out, "kernel")
    assert (first["kernel"], second["kernel"]) == ("k" * 55 + "…", "m" * 56) and first["stalled on"] == "wait 0.1"


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536 * 1024, "1.5 MiB"), (3 * 2**30, "3 GiB")]
)
def test_bytes_have_the_largest_unit_that_they_fill(count, shown, capsys):
    profiled.show([profile(peak_bytes=count)], "cuda")
    assert f"memory: {shown} at the peak" in capsys.readouterr().out


def test_the_curve_of_memory_is_in_ms_and_mib(monkeypatch, tmp_path):
    axes = pytest.importorskip("matplotlib.axes").Axes
    drawn = []
    monkeypatch.setattr(axes, "step", lambda self, x, y, where, label: drawn.append((list(x), list(y), where, label)))
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)
    monkeypatch.setattr("matplotlib.figure.Figure.legend", lambda *_, **__: None)
    held = (Held(0.0, 0), Held(0.002, 3 * MIB))
    assert curves.draw([("one", held), ("still", held[:1])], tmp_path / "m.svg")
    assert drawn == [([0, 2], [0, 3], "post", "one")]
    drawn.clear()
    assert curves.draw([(str(n), held) for n in range(20)], tmp_path / "m.svg") and len(drawn) == curves.MOST


# tune


def tuned(number, time_s, status="ok", **more):
    record = timed("triton:row", [time_s * f for f in (0.97, 0.98, 1.0, 1.0, 1.02, 1.03)], status=status)
    record = replace(record, build=replace(record.build, compile_s=0.5 + number), cell=replace(record.cell, config={"BLOCK": number}))  # fmt: skip
    return replace(record, **more)


def configs(text):
    """The rows of the table of a search, whose mark of the default has no heading."""
    lines = text[text.index("BLOCK  ") :].splitlines()
    return [
        re.split("  +", line.strip())
        for line in lines[2 : lines.index("1 × wrong  output 0 is off (3 of 4)")]
        if line.strip()
    ]


@pytest.fixture
def search():
    records = [
        tuned(32, 4e-3),
        tuned(64, 2e-3),
        tuned(128, 1e-3),
        tuned(256, 1e-3, "wrong", reason="output 0 is off (3 of 4)"),
    ]
    fits = Fits({"BLOCK": 64}, {"BLOCK": (32, 64, 128, 256, 512)}, 9, tuple(r.cell.config for r in records),
                (({"BLOCK": 512}, "it needs 300 KiB (BLOCK=512)"),), Device("cuda", "some GPU"), False)  # fmt: skip
    study = Study(replace(records[0].cell, config={}), fits.space)
    return Found(study, fits, records={strategies.key(r.cell.config): r for r in records})


def test_a_search_is_shown_by_its_fastest_beside_the_default(search, capsys):
    best = search.ranked[0]
    results.show([search], [Decision(search, best, False, "50.0% faster", 1e-3, 2e-3)], timed=True)
    out = capsys.readouterr().out
    assert f"{search.study.name}  9 configs, 5 of them drawn: 4 fit; 4 tried: 3 ok, 1 wrong\n" in out
    assert configs(out) == [
        ["128", "1 ms", "3.0%", "2.00", "128 s"], ["64", "default", "2 ms", "3.0%", "1.00", "64.5 s"], ["32", "4 ms", "3.0%", "0.50", "32.5 s"],
    ]  # fmt: skip
    assert "1 × wrong  output 0 is off (3 of 4)\n" in out and "1 × does not fit  it needs 300 KiB (BLOCK=512)\n" in out
    assert out.endswith("kept: BLOCK=128: 50.0% faster\n")


def test_of_reasons_that_differ_in_numbers_the_first_one_is_said_to_be_that(search, capsys):
    misfits = [({"BLOCK": n}, f"it needs {n} KiB") for n in (512, 1024)] + [({"BLOCK": n}, "too odd") for n in (3, 5)]
    search.fits = msgspec.structs.replace(search.fits, misfits=tuple(misfits))
    results.show([search], [], timed=True)
    out = capsys.readouterr().out
    assert (
        "\n2 × does not fit  it needs 512 KiB (the first of them)\n" in out and "\n2 × does not fit  too odd\n" in out
    )


def test_a_heat_map_has_the_best_time_at_each_pair_of_the_tunables_that_matter_most(search, charts, tmp_path):
    """1 ms × 2 for the larger A, × 6, 1 or 3 for B and × 1.1 for the worse C. A = 128 with B = 8 has no time."""
    values = {"C": (0, 1), "A": (16, 128), "B": (1, 2, 8)}
    found = {}
    for config in (dict(zip(values, one, strict=True)) for one in itertools.product(*values.values())):
        time_s = 1e-3 * {16: 1, 128: 2}[config["A"]] * {1: 6, 2: 1, 8: 3}[config["B"]] * (1 + config["C"] / 10)
        bad = config["A"] * config["B"] == 1024
        record = timed("triton:row", [time_s] * 6, status="failed" if bad else "ok")
        found[strategies.key(config)] = replace(record, cell=replace(record.cell, config=config))
    search.records, search.fits = found, msgspec.structs.replace(search.fits, default={"C": 0, "A": 16, "B": 1})
    results.draw([search], tmp_path / "map.svg")
    axes, bar = charts[0].axes
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == (search.study.name, "B", "A")
    assert bar.get_ylabel() == "best time, s" and axes.images[0].origin == "lower"
    assert axes.images[0].get_array().filled(0) == pytest.approx(np.array([[6e-3, 1e-3, 3e-3], [12e-3, 2e-3, 0]]))
    assert [[label.get_text() for label in of.get_ticklabels()] for of in (axes.xaxis, axes.yaxis)] == [
        ["1", "2", "8"],
        ["16", "128"],
    ]
    written = {text.get_position(): text.get_text() for text in axes.texts}
    assert written == {(0, 0): "6 ms", (1, 0): "1 ms", (2, 0): "3 ms", (0, 1): "12 ms", (1, 1): "2 ms", (2, 1): ""}


def test_only_the_fastest_are_shown_and_the_default(search, capsys):
    for number in range(1000, 1020):
        search.records[strategies.key({"BLOCK": number})] = tuned(number, 1e-4 * number / 1000)
    results.show([search], [Decision(search, search.ranked[0], True, "a tie", 1.0, 1.0)], timed=True)
    out = capsys.readouterr().out
    assert [row[0] for row in configs(out)] == [
        *(str(n) for n in range(1000, 1010)),
        "64",
    ] and "kept: the default: a tie" in out


def test_what_has_tunables_is_tuned_unless_told():
    chosen = {"kernel": "ours", "worker": {"inline": False}, "strategy": "grid", "trials": None, "pairs": 5, "confirm": True, "rounds": 1, "search_seed": 0,
              "jobs": None, "arch": None, "heatmap": None, "out": None, "implementation": None}  # fmt: skip
    own = {"cuda": SimpleNamespace(tunables={"row": {}, "online": {}}), "flax": SimpleNamespace(tunables={})}
    kernels = {
        name: SimpleNamespace(name=name, implementations=i)
        for name, i in (("ours", own), ("theirs", {"flax": own["flax"]}))
    }
    assert tune._complete(chosen, kernels)["implementation"] == ["cuda:row", "cuda:online"]
    with pytest.raises(UsageError, match="no implementation of theirs has TUNABLES: nothing to tune"):
        tune._complete(chosen | {"kernel": "theirs"}, kernels)


def test_a_study_without_a_decision_keeps_nothing(search, capsys):
    results.show([search], [], timed=True)
    assert "kept: nothing, no config has a time\n" in capsys.readouterr().out
    results.show([search], [], timed=False)
    results.show([Found(search.study, refusal="interpreted")], [], timed=True)
    assert "kept" not in (out := capsys.readouterr().out) and "skipped  interpreted\n" in out


def test_a_frame_has_a_row_for_each_config(search):
    rows = results.frame([search]).to_pylist()
    assert [(r["config.BLOCK"], r["time_s"], r["status"], r["is_default"], r["tried"]) for r in rows] == [
        (128, 1e-3, "ok", False, True), (64, 2e-3, "ok", True, True), (32, 4e-3, "ok", False, True), (256, None, "wrong", False, True),
        (512, None, "skipped", False, False),
    ]  # fmt: skip
    first = rows[0]
    assert (first["low_s"], first["high_s"]) == pytest.approx((0.97e-3, 1.03e-3)) and first["compile_s"] == 128.5
    assert (first["error_budget"], first["device"], first["kernel"], first["variant"]) == (0.5, GPU.name, "lola", "row")
    assert [r["reason"] for r in rows[3:]] == ["output 0 is off (3 of 4)", "it needs 300 KiB (BLOCK=512)"]


# inspect


def compiled(code, name="kernel<4>", registers=40, stack=0, shared=1024, digest="one", grid=(132, 2)):
    resources = SimpleNamespace(registers=registers, stack=stack)
    return SimpleNamespace(
        name=name, code=code, resources=resources, shared=shared, grid=grid, threads=256, digest=digest
    )


WHOLE = sass.parse(LISTING, "kernel")
SHORT = body("LDG.E R0, [R2]", "STL [R1], R0", "LDL R0, [R1]", "EXIT")


def test_launches_and_loops_are_rows_with_their_own_figures(capsys):
    one = Inspected(untimed("cuda:fast").cell, [compiled(WHOLE), compiled(SHORT, "tail", 24, digest="two", grid=(7,))])
    same = Inspected(untimed("cuda:same").cell, one.launches)
    other = Inspected(untimed("triton").cell, [compiled(SHORT, digest="two")], expected=expectation.parse("spills=0,registers<=40"))  # fmt: skip
    none = Inspected(untimed("flax").cell, reason="names no launches")
    inspected.show([one, same, other, none], targets.target("sm_90a"))
    out = capsys.readouterr().out
    rows = table_of(out, "implementation")
    assert [(r["implementation"], r["launch"], r["of"], r["blocks"], r["threads"]) for r in rows[:3]] == [
        ("cuda:fast", "kernel", "whole", "132×2", "256"), ("", "", "loop", "", ""), ("", "tail", "whole", "7", "256"),
    ]  # fmt: skip
    names = (
        "registers",
        "spills",
        "shared bytes",
        "instructions",
        "tensor core",
        "global",
        "shared",
        "barrier",
        "branch",
    )
    assert [tuple(r[n] for n in names) for r in rows[:3]] == [
        ("40", "1", "1024", "20", "2", "1", "1", "4", "6"), ("", "0", "", "5", "2", "1", "0", "1", "1"), ("24", "2", "1024", "4", "0", "1", "0", "0", "1"),
    ]  # fmt: skip
    assert "same machine code: cuda:fast, cuda:same\n" in out and "triton: expected spills=0, found 2\n" in out
    assert "flax: names no launches\n" in out and out.count("expected") == 1
    third = Inspected(untimed("cuda:third").cell, [one.launches[0], compiled(SHORT, "tail", digest="three")])
    assert inspected.same_code([one, third]) == [], "of two launches the first alone"


def test_a_figure_of_several_launches_is_their_sum_or_the_largest():
    both = [compiled(WHOLE, registers=40, stack=8, shared=100), compiled(SHORT, registers=24, stack=16, shared=50)]
    found = {n: figures.value(both, n) for n in ("launches", "registers", "stack", "shared_bytes", "spills", "instructions", "HGMMA", "loop.HGMMA", "loop.instructions", "tensor_core", "beside.instructions")}  # fmt: skip
    assert found == {
        "launches": 2, "registers": 40, "stack": 16, "shared_bytes": 100, "spills": 3, "instructions": 24, "HGMMA": 2, "loop.HGMMA": 2,
        "loop.instructions": 5, "tensor_core": 2, "beside.instructions": 0,
    }  # fmt: skip


def test_a_wait_between_two_groups_of_products_serialises_nothing():
    group = ["HGMMA R0, gdesc[UR0], R0", "HGMMA R0, gdesc[UR0], R0, gsb0", "WARPGROUP.DEPBAR.LE gsb0, 0x0"]
    assert figures.value([compiled(body(*group, *group, "EXIT"))], "waits_in_groups") == 0
    assert figures.value([compiled(body(group[0], group[2], *group, "EXIT"))], "waits_in_groups") == 1


def test_two_sides_are_a_b_and_b_less_a():
    said = list(versus.lines(compiled(WHOLE), compiled(SHORT, registers=24, digest="two"), None))
    rows = {line[:24].strip(): line[24:].split() for line in said}
    assert rows[""] == ["A", "B", "B", "-", "A"]
    assert rows["registers"] == ["40", "24", "-16"] and rows["instructions"] == ["20", "4", "-16"]
    assert rows["spills"] == ["1", "2", "+1"] and rows["shared_bytes"] == ["1024", "1024"]
    assert rows["loop instructions"] == ["5", "0", "-5"] and rows["LDL"] == ["0", "1", "+1"]
    named = [line[:24].strip() for line in said]
    assert named.index("registers") < named.index("shared_bytes"), "those that differ first"
    assert list(versus.lines(compiled(WHOLE), compiled(WHOLE), "sass")) == ["same machine code (one)"]


def test_of_opcodes_beyond_those_that_differ_most_their_number_is_told():
    names = [f"OP{chr(65 + n)} R0" for n in range(versus.MOST_OPCODES + 2)]
    many = body(*[name for n, name in enumerate(names) for _ in range(30 - n)], "EXIT")
    said = list(versus.lines(compiled(body("EXIT")), compiled(many, digest="two"), None))
    assert f"2 more opcodes differ, by {30 - versus.MOST_OPCODES} or less" in said


def test_lines_of_source_stand_by_their_instructions_in_the_loop_and_then_in_the_whole():
    placed = [sass.Instruction(16 * n, "FADD", line=line) for n, line in enumerate("aabbbcddd")]
    loop = [i for i in placed if i.line in "ad"][:3]
    found = lines.counted(placed, loop, 0)
    assert [(n.name, n.whole, n.loop) for n in found] == [("a", 2, 2), ("d", 3, 1), ("b", 3, 0), ("c", 1, 0)]
    assert [line.classes["arithmetic"] for line in found] == [2, 1, 0, 0]
    assert [(line.name, line.whole) for line in lines.counted(placed, [], 3)] == [
        ("b", 3),
        ("d", 3),
        ("2 other lines", 3),
    ]


def test_instructions_stand_below_their_line(tmp_path):
    placed = [sass.Instruction(16 * n, "FADD", line=line) for n, line in enumerate(["", "k/a.cu:2", "k/a.cu:2"])]
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "a.cu").write_text("one\n  x += y;\n")
    said = [line for line in lines.annotated(placed, [tmp_path]) if not line.startswith("    ")]
    assert said == [lines.UNKNOWN, "k/a.cu:2  x += y;"]


def test_lines_are_shown_with_what_they_have_in_the_loop(capsys):
    placed = [replace(i, line="k/a.cu:1" if i.address < 0x60 else "k/a.cu:2") for i in WHOLE.instructions]
    code = SimpleNamespace(instructions=placed, hottest_loop=lambda: placed[5:10])
    inspected.show_lines([Inspected(untimed("cuda").cell, [compiled(code, "kernel")])], 1, [])
    out = capsys.readouterr().out
    assert "cuda: kernel by line, classes of the loop" in out
    rows = [(r["line"], r["whole"], r["loop"]) for r in table_of(out, "line")]
    assert rows == [("k/a.cu:2", "14", "4"), ("k/a.cu:1", "6", "1")]


def test_a_script_says_that_its_inputs_are_others_than_those_of_the_reference(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "harness.drawing", drawing)
    cell = {"kernel": "launch", "seed": 3, "dtypes": {"x": "float32"}}
    of = Case("launch", {"N": 5}, "float32")
    x = discovery.find_kernels([discovery.HOME])["launch"].mathematics.inputs(of, drawing.generator(3, 1))["x"]
    for digest, said in ((hashlib.sha256(x.tobytes()).hexdigest(), []), ("0", ["another NumPy drew other inputs"])):
        ((found, dtype),) = script.made_inputs(cell | {"inputs_sha256": digest}, of)
        assert (found == x).all() and dtype == "float32"
        assert [line.partition(" than")[0] for line in capsys.readouterr().err.splitlines()] == said


def test_a_script_shows_the_median_of_calls_behind_the_warm_up(monkeypatch):
    now = Now()
    monkeypatch.setattr(script, "time", SimpleNamespace(perf_counter=now))
    takes = iter([*[9.0] * script.WARM_UP, *(1e-3 * n for n in (3, 1, 2, 5, 4))])

    def wait(output):
        now.now += next(takes)

    monkeypatch.setattr(script, "SECONDS", 1e6)
    said = script.timed(SimpleNamespace(wait=wait, queued=lambda *_: 7 * US), lambda x: x, [("x",)], 5)
    assert said == "median 3000 µs of 5 calls, each waited for; 7 µs a call on the GPU where they are queued"


def test_a_script_times_queued_calls_by_events():
    torch, said = pytest.importorskip("torch"), []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            said.append("record")

        def elapsed_time(self, end):
            return 6.0  # ms

    framework = script.Torch("cpu")
    assert framework.queued(lambda: None, (), 3) is None and torch
    framework.type = "cuda"
    framework.torch = SimpleNamespace(cuda=SimpleNamespace(Event=Event, synchronize=lambda: said.append("wait")))
    assert framework.queued(lambda: said.append("call"), (), 3) == pytest.approx(2e-3)
    assert said == ["record", "call", "call", "call", "record", "wait"]


def test_a_target_has_the_multiprocessors_of_a_common_card():
    found = {
        a: targets.target(a).device.multiprocessors for a in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
    }
    devices = [targets.target(a).device for a in ("sm_80", "sm_86", "sm_90a", "sm_120a")]
    assert [device.capability for device in devices] == [(8, 0), (8, 6), (9, 0), (12, 0)]
    assert found == {"sm_80": 108, "sm_86": 82, "sm_89": 142, "sm_90a": 132, "sm_100a": 148, "sm_120a": 170}


# performance


def saved(folder, *records):
    folder.mkdir(parents=True)
    for record in records:
        store.append(folder, record)


def test_performance_is_made_from_the_records_of_runs(tmp_path, capsys):
    of = case(id="odd/float32", M=3, K=5, N=7)
    times = [t * US for t in (38, 39, 40, 40, 41, 42)]
    days = {"began": "2026-11-20T10:00:00+00:00", "ended": "2026-11-23T10:00:00+00:00"}
    ours = timed("cuda:row", times, of=of, work=(10**9, 1000), **days)
    saved(tmp_path / "results/a", replace(ours, timing=replace(ours.timing, host_median=3 * US)))
    peer = timed("torch_eager", [2 * t for t in times], of=of, **(days | {"began": "2026-11-21T10:00:00+00:00"}))
    part = timed("cublas", [t / 2 for t in times], of=of, computes="product", **days)
    saved(tmp_path / "results/b", peer, part, untimed("flax", "skipped", reason="no", of=of, **days))
    assert main(["performance", "a", "b"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Measured on {GPU.name}, 2026-11-20.\n\n### lola\n\n| case | ours | time | best other |")
    (row,) = [line.strip("| ").split(" | ") for line in said.splitlines() if line.startswith("| odd/float32")]
    assert row[:7] == ["odd/float32", "cuda:row", "40 µs", "torch_eager", "80 µs", "0.500 (0.452 … 0.553)", "20 µs"]
    # 1 GFLOP at the 50 TFLOP/s of RATES are 20 µs
    assert RATES.matrix_tflops == 50.0 and row[7:9] == ["50%", "3 µs"]
    assert main(["performance", "a", "b", "out=it.md", "implementation=torch_eager"]) == 0
    written = (tmp_path / "it.md").read_text()
    assert written.startswith(f"{performance.BEGIN}\nMeasured on ") and "| none |" in written
    assert capsys.readouterr().out == ""


# data, and what tune keeps


def test_a_file_that_is_read_has_its_share_of_clicks_and_batches(tmp_path, capsys):
    pq.write_table(small(5), tmp_path / "mine.parquet")
    assert main(["data", "criteo", f"file={tmp_path / 'mine.parquet'}", "batch=2"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{tmp_path / 'mine.parquet'}: 5 rows, 40.0% clicks; no metadata beside it"
    assert second.startswith("read in 3 batches of 2 in ")
    assert main(["data", "criteo", f"file={tmp_path / 'mine.parquet'}", "batch=5"]) == 0
    assert "\nread in 1 batch of 5 in " in capsys.readouterr().out


def test_the_share_of_clicks_and_the_auc_that_are_written_are_those_of_the_rows(tmp_path, capsys):
    assert main(["data", "criteo", "rows=1000", f"out={tmp_path}", "cardinality=20"]) == 0
    block = next(synthesis.draw(synthesis.plant(20), 1000, 0))
    data, metadata, area = capsys.readouterr().out.splitlines()
    size = (tmp_path / "criteo.parquet").stat().st_size
    assert data.endswith(f": 1000 rows, {block.labels.mean():.1%} clicks, {size / 1e6:.4g} MB")
    assert metadata.endswith(": 26 id columns with 3 … 20 known values")
    ones, zeros = (block.probability[block.labels == label] for label in (1, 0))
    pairs = (ones[:, None] > zeros).mean() + (ones[:, None] == zeros).mean() / 2
    assert float(area.rpartition(" ")[2]) == pytest.approx(pairs, abs=6e-4)


def test_a_reading_rate_is_in_millions_of_rows(tmp_path, monkeypatch, capsys):
    pq.write_table(small(5), tmp_path / "mine.parquet")
    wall, cpu = iter((1.0, 1.0005)), iter((2.0, 2.002))
    monkeypatch.setattr(
        data_command, "time", SimpleNamespace(perf_counter=lambda: next(wall), process_time=lambda: next(cpu))
    )
    assert main(["data", "criteo", f"file={tmp_path / 'mine.parquet'}"]) == 0
    assert capsys.readouterr().out.endswith("in 0.0005 s, 0.002 s of CPU time: 0.01 million rows/s\n")


def test_a_tuned_json_that_cannot_be_written_is_named_and_leaves_nothing(search, tmp_path, monkeypatch):
    decision = Decision(search, search.ranked[0], False, "faster", 1e-3, 2e-3)
    implementation = SimpleNamespace(file=tmp_path / "triton.py")
    this = SimpleNamespace(kernels={"lola": SimpleNamespace(implementations={"triton": implementation})}, roots=[])
    monkeypatch.setattr(
        confirm,
        "entry",
        lambda *_: tuned_file.Entry("triton", "row", "card", "float32", "ieee", {"M": 3}, {}, {}, 1.0, 2.0),
    )
    assert confirm.save([decision], this) == [f"1 config saved in {tmp_path / tuned_file.FILE}"]
    (tmp_path / tuned_file.FILE).unlink()
    (tmp_path / tuned_file.FILE).mkdir()
    monkeypatch.setattr(tuned_file, "read", lambda folder: [])
    (said,) = confirm.save([decision], this)
    assert said.startswith(f"{tmp_path / tuned_file.FILE} was not written: ")
    assert [file.name for file in tmp_path.iterdir()] == [tuned_file.FILE], "nothing of it stays"


# story, list, plot


def test_a_story_has_the_figures_of_its_records(capsys):
    kernels = discovery.find_kernels([discovery.HOME])
    of = make_case(kernels["softmax"], {"R": 64, "C": 5})
    cells = [Cell(of, name, "default") for name in ("torch_eager", "flax")]
    told = story.Story(tuple(map(story.Step, ("first", "second"), cells)))
    # medians of 100 and 50 µs, whose means are others
    first, second = (
        timed("x", [t * US for t in own], rates=RATES)
        for own in ((99, 100, 100, 100, 101, 400), (49, 50, 50, 50, 51, 300))
    )
    records = []
    for cell, record in zip(cells, (first, second), strict=True):
        timing = replace(record.timing, host_median=7 * US, launches=3)
        build = replace(record.build, saved_bytes=2_000_000, peak_memory_bytes=3_500_000)
        records.append(replace(record, id=cell.id, label=cell.label, cell=cell, timing=timing, build=build))
    story_table.show(told, records, kernels)
    rows = table_of(capsys.readouterr().out, "step")
    names = ("step", "implementation", "samples/s", "host", "launches", "saved", "peak memory", "× first")
    assert [tuple(row[n] for n in names) for row in rows] == [
        ("first", "torch_eager", "640000", "7 µs", "3", "2 MB", "3.5 MB", "1.00"), ("second", "flax", "1280000", "7 µs", "3", "2 MB", "3.5 MB", "2.00"),
    ]  # fmt: skip


def test_a_part_of_a_story_that_failed_has_its_reason(capsys):
    kernels = discovery.find_kernels([discovery.HOME])
    whole, part = (Cell(make_case(kernels["softmax"], {"R": r, "C": 5}), "flax", "default") for r in (64, 32))
    told = story.Story((story.Step("first", whole, {"dense": part}),))
    record, failed = timed("x"), untimed("x", "failed", reason="no memory")
    made = [replace(r, id=c.id, label=c.label, cell=c) for r, c in ((record, whole), (failed, part))]
    story_table.show(told, made, kernels)
    assert "failed" in (out := capsys.readouterr().out) and "no memory" in out


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("command", ["data", "train", "performance", "plot", "show"])
def test_help_is_asked_for_by_either_flag(command, flag, capsys):
    assert main([command, flag]) == 0 and capsys.readouterr().out.startswith(f"usage: fusebench {command}")


def test_a_kernel_without_a_gradient_has_one_mode():
    kernels = discovery.find_kernels([discovery.HOME])
    found = {name: details.describe(kernels[name], "cpu")["modes"] for name in ("launch", "softmax")}
    assert found == {"launch": ["forward"], "softmax": ["forward", "backward", "forward_backward"]}


def test_a_roof_is_the_reading_rate_times_flops_a_byte_up_to_the_product_rate():
    drawn = []
    axes = SimpleNamespace(
        plot=lambda x, y, **how: drawn.append((how["label"], list(x), list(y))),
        set=lambda **_: None,
        grid=lambda *_, **__: None,
        legend=lambda **_: None,
    )
    line = plot.Line("cuda", [1], [1.0], [1.0], [1.0], [8.0, 16.0], [20.0, 40.0])
    plot._draw_roofline(axes, plot.Panel("it", [line], 4000.0, 48.0))
    assert drawn == [
        ("cuda", [8, 16], [20, 40]),
        ("read 4000 GB/s", [2, 12], [8, 48]),  # 2 FLOPs a byte at 4 TB/s are 8 TFLOP/s
        ("product 48 TFLOP/s", [12, 64], [48, 48]),
    ]


def test_points_of_a_plot_have_flops_a_byte_and_intervals():
    rows = [
        {
            "x": m,
            "time_s": 2e-3 * m,
            "low_s": None if m == 2 else 1e-3,
            "high_s": 5e-3,
            "flops": 100 * m,
            "moved_bytes": 50,
            "tflops": 3.0,
        }
        for m in (2, 1)
    ]
    line = plot._line("cuda", [*rows, {**rows[0], "x": 3, "flops": None}], "x", "time_s")
    assert (line.x, line.y) == ([1, 2, 3], [2e-3, 4e-3, 4e-3]) and line.low[:2] == [1e-3, 4e-3]
    assert (line.intensity, line.tflops) == ([2, 4], [3, 3])


# diff


def test_the_outputs_of_a_side_that_stands_in_several_rows_are_made_once(monkeypatch, tmp_path):
    made = []

    class Runner:
        def outputs(self, cell):
            made.append(cell.label)
            return SimpleNamespace(record=cell.label)

    seen = []
    monkeypatch.setattr(diff.outputs, "runner", lambda this, pool, commit: contextlib.nullcontext(Runner()))
    monkeypatch.setattr(diff, "_pool", lambda this, others: contextlib.nullcontext())
    monkeypatch.setattr(diff.store, "append", lambda *_: None)
    monkeypatch.setattr(
        diff.differences, "rows", lambda cells, known, commits: seen.append([k.record for k in known]) or []
    )
    a, b, x = (untimed(label).cell for label in ("cuda", "triton", "torch_eager"))
    source = SimpleNamespace(commit=None, kernels={}, roots=[], spec=SimpleNamespace(name="a"))
    assert diff._compare([source, source], [(a, x), (b, x)], Settings("cpu"), Clock(), tmp_path, True) == []
    assert made == ["cuda", "torch_eager", "triton"] and seen == [["cuda", "torch_eager"], ["triton", "torch_eager"]]
