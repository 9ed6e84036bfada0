"""What stands in the printed tables, read cell by cell under its heading, of records that follow from known samples."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console
from samples import CPU, GPU, STATES, TIMES, US, case, parity, table_of, timed, timing, untimed

from fusebench import report, terminal
from fusebench.machine import DeviceInfo
from fusebench.progress import Lines
from fusebench.records.record import Parity, Spread
from fusebench.settings import Clock
from fusebench.timing.summary import StateRange

WORK = {"work": (2_000_000_000, 3_000_000), "written_bytes": 1_000_000}
QUEUED = {"host": [12 * US], "launches": 3, "kernels": ["a", "b", "c"], "wall": 120 * US}


def shown(capsys, *records, timed=True):
    """What `show` prints of the records."""
    capsys.readouterr()
    report.show(records, timed=timed)
    return capsys.readouterr().out


def rows_of(capsys, *records, timed=True):
    return table_of(shown(capsys, *records, timed=timed), "implementation")


def cell_of(capsys, heading, *records):
    """The cell of the last record under that heading."""
    return rows_of(capsys, *records)[-1].get(heading)


# The table of times


def test_every_column_of_the_table_of_times(capsys):
    """2 GFLOP and 3 MB in 100 µs. 1 MB read and written at 100 GB/s takes 20 µs, the other MB at 125 GB/s 8 µs, the FLOPs at
    50 TFLOP/s 40 µs."""
    slow = timed("torch_eager", [2 * t for t in TIMES], how=QUEUED | {"wall": None}, **WORK)
    fast = timed("triton:multirow", how=QUEUED, **WORK)
    assert rows_of(capsys, slow, fast) == [
        {
            "implementation": "torch_eager", "status": "ok", "GPU time": "200 µs", "±": "7.0%!", "wall": "", "host": "12 µs", "launches": "3",
            "TFLOP/s": "10", "GB/s": "15", "best": "40 µs", "yardstick": "20%", "× torch_eager": "1.00", "error/budget": "0.5",
        },
        {
            "implementation": "triton:multirow", "status": "ok", "GPU time": "100 µs", "±": "7.0%!", "wall": "120 µs", "host": "12 µs",
            "launches": "3", "TFLOP/s": "20", "GB/s": "30", "best": "40 µs", "yardstick": "40%", "× torch_eager": "2.00", "error/budget": "0.5",
        },
    ]  # fmt: skip


def test_the_columns_stand_in_the_order_of_the_readme(capsys):
    (row,) = rows_of(capsys, timed(how=QUEUED, **WORK))
    assert list(row) == [
        "implementation", "status", "GPU time", "±", "wall", "host", "launches", "TFLOP/s", "GB/s", "best", "yardstick", "× torch_eager",
        "error/budget",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.0, "2 s"), (1.0, "1 s"), (0.99951, "1 s"), (0.9994, "999 ms"), (0.0123, "12.3 ms"), (1e-3, "1 ms"), (999.4e-6, "999 µs"),
        (999.6e-6, "1 ms"), (17.44e-6, "17.4 µs"), (1e-6, "1 µs"), (123.4e-9, "123 ns"), (5e-10, "0.5 ns"), (1234.0, "1234 s"),
        (999.4, "999 s"), (999.6, "1000 s"), (0.0, "0 ns"),
    ],
)  # fmt: skip
def test_a_time_has_three_digits_and_its_unit(seconds, text):
    assert report.seconds(seconds) == text


@pytest.mark.parametrize(
    ("figure", "text"),
    [(0.1968, "0.197"), (7.5, "7.5"), (309.4, "309"), (999.4, "999"), (999.6, "1000"), (1289.0, "1290"), (3.0312e6, "3030000"), (0.0, "0")],
)  # fmt: skip
def test_a_figure_has_three_digits_and_no_exponent(figure, text):
    assert report.significant(figure) == text


@pytest.mark.parametrize(
    ("regime", "device", "heading"),
    [
        ("queued", GPU, "GPU time"), ("isolated", GPU, "wall time"), ("sustained", GPU, "time a call"), ("isolated", CPU, "CPU time"),
        ("sustained", CPU, "CPU time"),
    ],
)  # fmt: skip
def test_the_heading_says_what_the_time_is_of(capsys, regime, device, heading):
    (row,) = rows_of(capsys, timed(how={"regime": regime}, device=device))
    assert row[heading] == "100 µs" and list(row)[2] == heading


@pytest.mark.parametrize(
    ("times", "target", "text"),
    [
        (TIMES, 0.01, "7.0%!"),
        (TIMES, 0.07, "7.0%"),
        (TIMES, 0.0699, "7.0%!"),
        (TIMES, 0, "7.0%"),  # none was asked for
        (TIMES[:5], 0.01, "?!"),  # fewer than six have no interval
        (TIMES[:5], 0, "?"),
        ([100 * US] * 6, 0.01, "0.0%"),
        ([1 * US] * 4 + [99 * US] * 2, 0.01, "> 1000%!"),
        ([1 * US] * 4 + [99 * US] * 2, 0, "> 1000%!"),  # stalled, whatever was asked for
        ([100 * US] * 5 + [310 * US], 0, "105.0%!"),
        ([100 * US] * 5 + [290 * US], 0, "95.0%"),  # wide, and still a median
    ],
)
def test_half_the_interval_stands_beside_the_median(capsys, times, target, text):
    record = timed(times=times, how={"target": target})
    assert cell_of(capsys, "±", record) == text
    said = shown(capsys, record)
    missed = f"! the median is not known to ± {target:.1%} yet: a larger time_s takes more samples"
    stalled = "! the median is not known, samples were stalled: torch_eager; measure again on an idle machine"
    assert (missed in said) == ("!" in text and target > 0) and (stalled in said) == ("!" in text and target == 0)


@pytest.mark.parametrize(("threads", "remedy"), [(2, "threads=1 or an idle machine"), (1, "an idle machine")])
def test_a_busy_machine_is_called_one(capsys, threads, remedy):
    def cell(label, waiting):
        record = timed(label, device=CPU, how={"regime": "isolated"})
        return replace(
            record, timing=replace(record.timing, waiting=waiting, state=StateRange(threads=(threads, threads)))
        )

    said = shown(capsys, cell("torch_eager", 0.25), cell("flax", 0.5), cell("triton", 0.999), cell("liger", None))
    assert f"machine busy: {remedy} helps; samples in which threads waited for a core: flax 50%, triton 100%\n" in said
    assert "machine busy" not in shown(capsys, cell("torch_eager", 0.49))
    assert f"machine busy: {remedy} helps" in repr(cell("flax", 0.5)) and "busy" not in repr(cell("flax", 0.4))


def test_an_even_number_of_samples_has_the_median_in_the_middle():
    found = timing([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    assert (found.median, found.q1, found.q3, found.interval) == (6.0, 2.5, 14.0, (1.0, 32.0))
    assert found.uncertainty == pytest.approx(31 / 2 / 6)


@pytest.mark.parametrize(
    ("wall", "host", "regime", "text"),
    [
        (120 * US, 12 * US, "queued", "120 µs"),
        (120 * US, 20 * US, "queued", "n/a"),  # the host's time hides the GPU's
        (None, 12 * US, "queued", None),
        (120 * US, 12 * US, "isolated", None),  # there the time is the wall's
    ],
)
def test_the_second_clock(capsys, wall, host, regime, text):
    assert cell_of(capsys, "wall", timed(how={"wall": wall, "host": [host], "regime": regime})) == text


@pytest.mark.parametrize(("how", "text"), [({"host": [30 * US, 31 * US, 71 * US]}, "31 µs"), ({}, None)])
def test_the_host_s_time_is_a_median(capsys, how, text):
    assert cell_of(capsys, "host", timed(how=how)) == text


def test_columns_without_a_figure_are_left_out(capsys):
    (row,) = rows_of(capsys, timed("flax", device=CPU, how={"regime": "isolated"}, rates=None, work=(0, 10**6)))
    assert list(row) == ["implementation", "status", "CPU time", "±", "GB/s", "error/budget"] and row["GB/s"] == "10"


def test_a_cell_without_a_figure_that_another_has_is_empty(capsys):
    first = timed("torch_eager", how={"launches": 2}, **WORK)
    second = timed("flax", rates=None, **(WORK | {"work": (0, 3_000_000)}))
    row = rows_of(capsys, first, second)[1]
    assert [row[h] for h in ("launches", "TFLOP/s", "best", "yardstick")] == [""] * 4 and row["GB/s"] == "30"


@pytest.mark.parametrize(
    ("baseline", "status", "text"),
    [
        ("torch_eager", "ok", "2.00"), ("torch_eager:other", "ok", "2.00"), ("torch_compile", "ok", None), ("torch_eager", "implausible", None)
    ],
)  # fmt: skip
def test_speed_ups_are_over_a_torch_eager_that_is_right(capsys, baseline, status, text):
    other = timed(baseline, [2 * t for t in TIMES], status=status)
    assert cell_of(capsys, "× torch_eager", other, timed("triton")) == text
    assert cell_of(capsys, "× torch_eager", timed("triton"), other) == (text and "1.00"), "wherever it stands"


def test_a_half_of_the_speed_is_less_than_one(capsys):
    assert cell_of(capsys, "× torch_eager", timed(), timed("flax", [3 * t for t in TIMES])) == "0.33"


def test_an_implausible_time_is_not_shown(capsys):
    bad = timed("triton", status="implausible", **WORK)
    row = rows_of(capsys, timed(**WORK), bad)[1]
    assert {h: c for h, c in row.items() if c} == {
        "implementation": "triton",
        "status": "implausible",
        "error/budget": "0.5",
    }
    assert "implausible  why  triton" in shown(capsys, timed(**WORK), bad)


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        ((0.25,), "0.25"), ((0.25, 0.75), "0.75"), ((0.25, None, 0.625), "0.62"), ((0.875, 0.5, 0.25), "0.88"), ((float("inf"),), "inf"),
    ],
)  # fmt: skip
def test_the_error_is_the_largest_of_all_outputs(capsys, verdicts, text):
    record = timed(verdicts=Parity(*(ratio and parity(ratio) for ratio in verdicts)))
    assert cell_of(capsys, "error/budget", record) == text


def test_a_part_of_a_kernel_says_so(capsys):
    assert cell_of(capsys, "implementation", timed("cublas", computes="x_product")) == "cublas (x product alone)"


def test_figures_stand_flush_right(capsys):
    lines = shown(capsys, timed(**WORK), timed("flax", [9 * US] * 6, **WORK)).splitlines()
    ends = {line.rindex(word) + len(word) for word in ("GPU time", "100 µs", "9 µs") for line in lines if word in line}
    assert len(ends) == 1 and {line.index("ok") for line in lines if "  ok  " in line} == {lines[3].index("status")}


# What stands around the table


def test_a_table_s_title_says_what_and_where(capsys):
    odd = case(id="M=3,K=5,N=7/bfloat16", M=3, K=5, N=7)
    assert "\nlola  M=3,K=5,N=7/bfloat16  M=3 K=5 N=7  on some GPU  queued, cold caches\n" in shown(
        capsys, timed(of=odd)
    )
    assert "  nan inputs  on some GPU  sustained, warm caches\n" in shown(
        capsys, timed(inputs="nan", how={"regime": "sustained", "cache": "warm"})
    )
    assert "M=3 K=5 N=7  on cuda\n" in shown(capsys, untimed(status="skipped", reason="x", device=DeviceInfo("cuda")))
    lost = untimed("cuda", "crashed", reason="x", device=DeviceInfo("cuda"))
    assert "  on some GPU  queued, cold caches\n" in shown(capsys, lost, timed()), "whichever of them knows"


def test_what_differs_in_anything_but_the_implementation_has_a_table_of_its_own(capsys):
    other = case(id="other")
    others = [timed(seed=1), timed(inputs="nan"), timed(of=other), timed(of=case("splacc"))]
    for different in others:
        out = shown(capsys, timed(), timed("flax"), different)
        assert out.count("on some GPU") == 2 and out.count("× torch_eager") == 2
        assert [r["implementation"] for r in table_of(out, "implementation")] == ["torch_eager", "flax"]


def test_cells_without_figures_stand_below_those_of_one_reason_together(capsys):
    out = shown(
        capsys, timed(), untimed("triton", "skipped", reason="no [bold] GPU"), untimed("cuda", "skipped", reason="no [bold] GPU"),
        untimed("flax", "failed", reason="raised"),
    )  # fmt: skip
    assert [re.split("  +", line.strip()) for line in out.splitlines()[-2:]] == [
        ["skipped", "no [bold] GPU", "triton, cuda"],
        ["failed", "raised", "flax"],
    ]


def test_a_skipped_cell_that_was_checked_says_how_far_off_it_was(capsys):
    checked = untimed("triton", "skipped", reason="interpreted", parity=Parity(parity(0.25)))
    assert "triton (error/budget 0.25)" in shown(capsys, checked)
    assert "error/budget" not in shown(capsys, untimed("triton", "skipped", reason="interpreted"))
    off = untimed("triton", "wrong", reason="off", parity=Parity(parity(0.25)))
    assert "budget 0.25" not in shown(capsys, off), "its reason says it"
    assert "budget 0.25" not in shown(capsys, checked, timed=False), "it has a column"


def test_each_wrong_cell_has_the_command_that_shows_it_again_on_one_line(capsys):
    commands = [f"fusebench parity {name} path=[/{'x' * 200}]" for name in "ab"]
    wrong = [untimed(name, "wrong", reason="off", reproduce=again) for name, again in zip("ab", commands, strict=True)]
    out = shown(capsys, *wrong, wrong[1], untimed("cuda", "failed", reason="no"), timed())
    assert [line for line in out.splitlines() if "fusebench" in line] == [f"again: {again}" for again in commands]


def test_rows_that_were_not_compared_and_wavering_outputs_are_told(capsys):
    unseen, other = (
        untimed(x, parity=Parity(parity(0.5, unseen=why))) for x, why in (("a", "no [room]"), ("c", "a reason"))
    )
    wavers = timed("b", verdicts=Parity(parity(0.5), nondeterministic=Spread(7, 0.0123, 2, 66)))
    out = shown(capsys, unseen, other, wavers)
    assert "\nnot every row was compared: a reason; no [room]\n" in out
    assert (
        "\nnondeterministic  b: 2 of 66 calls on the same inputs differ from the first, in up to 7 elements, by up to 0.012\n"
        in out
    )
    assert out.count("nondeterministic") == 1 and "not every row" not in shown(capsys, wavers)


def test_what_a_cell_changed_in_its_process_is_told(capsys):
    record = replace(timed("b"), changed=("torch threads 2 → 1", "time.perf_counter replaced"))
    assert "\nchanged its process  b: torch threads 2 → 1; time.perf_counter replaced\n" in shown(capsys, record)


def test_notes_below_a_table_have_one_colour(monkeypatch, capsys):
    """Figures and paths in them are not picked out."""
    monkeypatch.setattr(report, "console", lambda: Console(force_terminal=True, width=400, color_system="standard"))
    verdicts = Parity(parity(0.5, unseen="12 of 200 rows"), nondeterministic=Spread(7, 0.0123, 2, 66))
    record = replace(timed("b", verdicts=verdicts, how={"discarded": 12, "states": STATES}), changed=("threads 2 → 1",))
    out = shown(capsys, record)
    for words in (
        "not every row",
        "nondeterministic",
        "changed its process",
        "at the power limit",
        "samples discarded",
    ):
        (line,) = [line for line in out.splitlines() if words in line]
        assert "\x1b[" not in line


def test_the_state_of_the_card_is_told(capsys):
    capped, slowed = timed("a", how={"states": STATES}), timed("b", how={"discarded": 12, "states": STATES[:1]})
    assert (capped.timing.state.sm_mhz, capped.timing.state.power_w) == ((1500, 1980), (300.0, 700.0))
    out = shown(capsys, capped, slowed)
    assert "\nat the power limit of the card: a\n" in out
    assert "\nsamples discarded while the card was slowed down: b 12\n" in out
    none = shown(capsys, timed())
    assert "power limit" not in none and "discarded" not in none
    implausible = timed("a", how={"states": STATES}, status="implausible")
    assert "power limit" not in shown(capsys, timed(), implausible), "no time, no note"


# The table of parity


def test_every_column_of_the_table_of_parity(capsys):
    """All figures of a row are of one call, the worst one."""
    checked = untimed(parity=Parity(parity(0.25, got=7.0, max_abs=0.5), parity(0.75)))
    rows = rows_of(capsys, checked, untimed("flax", "failed", reason="x"), timed=False)
    assert rows == [
        {"implementation": "torch_eager", "status": "ok", "error/budget": "0.75", "max |error|": "0.0003", "worst at": "[2, 1]",
         "got": "1.234568", "expected": "1.25", "± budget": "0.0006"}
    ]  # fmt: skip


def test_what_is_wrong_in_all_elements_together_is_shown_before_a_larger_error(capsys):
    checked = untimed(status="wrong", parity=Parity(parity(0.75), parity(0.5, rms=2.0, got=7.0)))
    assert rows_of(capsys, checked, timed=False)[0]["got"] == "7"


@pytest.mark.parametrize("status", ["wrong", "failed", "crashed"])
def test_a_cell_that_fails_on_hard_inputs_alone_has_no_figures_of_plain_ones(capsys, status):
    bad = untimed("flax", status, reason="nan inputs, case odd: got 0", parity=Parity(parity(0.25)))
    out = shown(capsys, untimed(parity=Parity(parity(0.5))), bad, timed=False)
    assert [r["implementation"] for r in table_of(out, "implementation")] == ["torch_eager"] and "0.25" not in out
    assert f"{status}  nan inputs, case odd: got 0  flax\n" in out


def test_an_output_without_elements_to_compare_has_a_reason_alone(capsys):
    bad = untimed(
        "flax", "wrong", reason="output 0 has shape (2,)", parity=Parity(parity(float("inf"), problem="a shape"))
    )
    out = shown(capsys, untimed(parity=Parity(parity(0.5))), bad, timed=False)
    assert [r["implementation"] for r in table_of(out, "implementation")] == ["torch_eager"]
    assert "wrong  output 0 has shape (2,)  flax\n" in out


def test_parity_alone_shows_no_times(capsys):
    out = shown(capsys, timed(how={"target": 0.01}), timed=False)
    assert "100 µs" not in out and "time_s" not in out and "max |error|" in out


def test_infinities_and_nan_are_shown_as_such(capsys):
    strange = parity(float("inf"), got=float("nan"), expected=float("-inf"), max_abs=float("inf"))
    (row,) = rows_of(capsys, untimed(status="wrong", parity=Parity(strange)), timed=False)
    assert [row[h] for h in ("error/budget", "max |error|", "got", "expected")] == ["inf", "inf", "nan", "-inf"]


# The last lines


def footer(capsys, records, clock=None, wall_s=0.0):
    report.footer(records, clock or Clock(), wall_s, "results/it")
    return capsys.readouterr().out.splitlines()


def test_the_last_lines_count_the_cells_by_status_in_one_order(capsys):
    statuses = ["timeout", "ok", "implausible", "crashed", "failed", "wrong", "skipped", "ok"]
    lines = footer(capsys, [untimed(status=s) for s in statuses])
    assert lines[0] == "8 cells: 2 ok, 1 skipped, 1 wrong, 1 failed, 1 crashed, 1 timeout, 1 implausible"
    assert lines[2] == "records: results/it/records.jsonl" and len(lines) == 3
    assert footer(capsys, [untimed()])[0] == "1 cell: 1 ok" and len(footer(capsys, [])) == 2
    assert footer(capsys, [])[0] == "0 cells: none", "and no file, where nothing was written"


def test_the_last_line_counts_the_tracebacks(capsys):
    failed = untimed(status="failed", reason="x", traceback="Traceback …")
    for count, words in ((1, "1 cell has"), (2, "2 cells has")):
        last = footer(capsys, [untimed(), *[failed] * count])[-1]
        assert last == f"records: results/it/records.jsonl (the field traceback of {words} where it failed)"


def test_the_wall_time_is_shared_out(capsys):
    clock = Clock(start_up=1.04, inputs=2.0, compile=3.0, parity=4.0, timing=5.0)
    line = "wall time 20.0 s: start-up 1.0 s, inputs 2.0 s, compile 3.0 s, parity 4.0 s, timing 5.0 s, other 5.0 s"
    assert footer(capsys, [], clock, 20.0)[1] == line
    assert footer(capsys, [], clock, 10.0)[1].endswith("other 0.0 s"), "phases may overlap"


def test_the_path_of_the_records_is_not_broken_into_lines(capsys):
    report.footer([untimed()], Clock(), 0.0, "[mine]" * 40)
    assert f"records: {'[mine]' * 40}/records.jsonl" in capsys.readouterr().out


ALL = [
    "implementation", "status", "GPU time", "±", "wall", "host", "launches", "TFLOP/s", "GB/s", "best", "yardstick", "× torch_eager",
    "error/budget",
]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "left_out"),
    [
        ("200", ""), ("130", "launches"), ("110", "launches, wall, best"), ("80", "launches, wall, best, host, GB/s, TFLOP/s, yardstick"),
        ("40", "launches, wall, best, host, GB/s, TFLOP/s, yardstick"), ("0", ""), ("wide", ""),
    ],
)  # fmt: skip
def test_a_narrow_terminal_leaves_out_columns_and_cuts_no_figure(monkeypatch, capsys, columns, left_out):
    monkeypatch.setenv("COLUMNS", columns)
    records = timed(how=QUEUED, **WORK), timed("triton:multirow_ws", how=QUEUED, **WORK)
    out = shown(capsys, *records)
    (_, row) = table_of(out, "implementation")
    assert list(row) == [heading for heading in ALL if heading not in left_out.split(", ")]
    assert "…" not in out and all(row.values())
    assert (f"left out in {columns} columns: {left_out}" in " ".join(out.split())) == bool(left_out)
    if columns == "80":
        assert max(map(len, out.splitlines())) <= 80


def test_reasons_are_broken_between_words(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    labels = [f"jax_triton:{name}" for name in ("two_accumulators", "interleaved", "whole_row")]
    out = shown(capsys, *(untimed(label, "skipped", reason="a reason of several words") for label in labels))
    assert max(map(len, out.splitlines())) <= 60 and all(label in out for label in labels)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_an_encoding_gets_the_characters_that_it_has(monkeypatch, encoding):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding))
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(io.BytesIO(), encoding))
    terminal.print_what_can_be_encoded()
    report.show([timed(how=QUEUED, **WORK), untimed("flax", "failed", reason="3 × … ☃")])
    report.sys.stdout.flush()
    out = raw.getvalue().decode(encoding)
    us, around, times = ("us", "+-", "x") if encoding == "ascii" else ("µs", "±", "×")
    (row,) = table_of(out, "implementation")
    assert (row["GPU time"], row[around], row[f"{times} torch_eager"]) == (f"100 {us}", "7.0%!", "1.00")
    assert f"3 {times} {'… ☃' if encoding == 'utf-8' else '... ?'}  flax" in out


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_is_left_out_where_it_is_not_wanted(monkeypatch, capsys, variable, value):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32mok" in shown(capsys, timed())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv(variable, value)
    assert "[32m" not in shown(capsys, timed()) and report.console().width > 80


def test_progress_is_a_bar_in_a_terminal_alone(monkeypatch):
    assert isinstance(report.progress(), Lines) and report.progress(quiet=True).disable
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    bar = report.progress()
    assert bar.console.stderr and not bar.disable and bar.live.transient and report.progress(quiet=True).disable
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(report.progress(), Lines)


def test_progress_in_a_log_is_a_line_from_time_to_time(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with report.progress() as bar:
        task = bar.add_task("starting", total=3, completed=1)
        for at in (5, 11, 12, 22):
            now[0] = at
            bar.update(task, description=f"at {at}")
        bar.advance(task)
    captured = capsys.readouterr()
    assert captured.err == "1 of 3 done; at 11\n1 of 3 done; at 22\n" and not captured.out


@pytest.mark.parametrize(("status", "code"), [("ok", "32"), ("skipped", "2"), ("wrong", "1;31"), ("timeout", "1;31")])
def test_what_went_wrong_stands_out(monkeypatch, capsys, status, code):
    monkeypatch.setattr(report, "console", lambda: Console(force_terminal=True, width=170, color_system="standard"))
    assert f"\x1b[{code}m{status}\x1b[0m" in shown(capsys, timed(status=status))
