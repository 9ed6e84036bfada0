"""`fusebench show`, `plot` and what `bench` shows of several runs: through the command line, of records that are made here."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest
from samples import TIMES, case, parity, table_of, timed, untimed

from fusebench.cli import main
from fusebench.comparison.statistics import Result
from fusebench.comparison.verdicts import Estimate, Outcome
from fusebench.profiling.run import Profile
from fusebench.records import store
from fusebench.records.record import Parity
from fusebench.sanitizer.check import Check, Finding, check_id

SIZES = (64, 256, 1024)


def records(factor=1.0, dtype="float32", sizes=SIZES, labels=("torch_eager", "triton:multirow"), **more):
    """A cell for each size and implementation: 100 µs for each 64 rows, the second implementation in half of that."""
    for m in sizes:
        of = case(dtype=dtype, id=f"M={m}/{dtype}", M=m, K=5, N=7)
        for number, label in enumerate(labels):
            times = [t * factor * m / 64 / (1 + number) for t in TIMES]
            yield timed(label, times, of=of, work=(10**6 * m, 2000 * m), **more)


def save(name, *made):
    folder = Path("results") / name
    folder.mkdir(parents=True)
    for record in made:
        store.append(folder, record)
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def shown(capsys):
    """What a command prints, and its rows."""

    def run_it(*words, first="case", command="show"):
        assert main([command, *words]) == 0, capsys.readouterr().err
        text = capsys.readouterr().out
        return text, table_of(text, first) if first else []

    return run_it


def test_a_run_is_one_table(shown):
    skipped = untimed("cuda:row", "skipped", reason="row is for M = 1", of=case(id="M=64/float32", M=64, K=5, N=7))
    save("a", *records(), skipped)
    text, rows = shown()
    assert text.startswith("\na  lola  some GPU\n"), "what is the same in all rows stands above them"
    assert [(r["case"], r["implementation"], r["time"]) for r in rows][:3] == [
        ("M=64/float32", "torch_eager", "100 µs"), ("M=64/float32", "triton:multirow", "50 µs"), ("M=256/float32", "torch_eager", "400 µs"),
    ]  # fmt: skip
    assert [r["× torch_eager"] for r in rows] == ["1.00", "2.00"] * 3 and "status" not in rows[0]
    assert rows[0]["±"] == "7.0%!" and rows[0]["TFLOP/s"] == "0.64" and rows[0]["error/budget"] == "0.5"
    assert "skipped  row is for M = 1  cuda:row\n" in text and text.endswith("7 cells: 6 ok, 1 skipped\n")


def test_the_last_record_of_a_cell_that_ran_again_counts(shown):
    first, second = next(records()), next(records(2.0))
    save("a", untimed("torch_eager", "crashed", reason="it died", of=first.case), second)
    text, rows = shown(first="implementation")
    assert [r["time"] for r in rows] == ["200 µs"] and "crashed" not in text and "1 cell: 1 ok" in text


def test_the_largest_of_a_cells_errors_is_shown(shown):
    verdicts = Parity(parity(0.25), parity(0.75), parity(0.5))
    save("a", timed(verdicts=verdicts, of=case(id="M=64/float32", M=64, K=5, N=7)))
    assert shown(first="implementation")[1][0]["error/budget"] == "0.75"


def test_a_speedup_is_over_the_baseline_on_the_same_inputs(shown):
    save("a", *records(sizes=(64,)), *records(3.0, sizes=(64,), inputs="nan"), *records(2.0, sizes=(64,), seed=1))
    assert [r["× torch_eager"] for r in shown(first="inputs")[1]] == ["1.00", "2.00"] * 3


def test_a_speedup_in_a_sweep_of_implementations_is_over_the_one_job_that_has_the_baseline(shown):
    for number, (label, factor, m) in enumerate(
        [("torch_eager", 1.0, 64), ("flax", 0.5, 64), ("torch_eager", 1.0, 256), ("torch_eager", 2.0, 256), ("flax", 0.5, 256)]
    ):  # fmt: skip
        save(f"sweep/{number}", *records(factor, sizes=(m,), labels=(label,)))
    faster = ["1.00", "", "1.00", "1.00", ""]
    for _ in range(2):  # runs of their own, then jobs of a sweep
        rows = sorted(shown("sweep", first="run")[1], key=lambda r: r["run"])
        assert [r["× torch_eager"] for r in rows] == faster, "of two jobs with a baseline neither is it"
        (Path("results/sweep") / "bench.sweep.yaml").touch()
        faster[1] = "2.00"


def test_the_error_on_plain_inputs_is_not_that_of_a_cell_that_is_wrong_on_hard_ones(shown):
    of = case(id="M=64/float32", M=64, K=5, N=7)
    right, beyond = untimed(of=of, parity=Parity(parity(0.5))), Parity(parity(0.5), parity(2.0))
    hard = untimed("flax", "wrong", reason="nan inputs, case odd: got 0", of=of, parity=Parity(parity(0.25)))
    save("a", right, hard, untimed("triton", "wrong", reason="too far off", of=of, parity=beyond))
    text, rows = shown(first="implementation")
    assert [(r["implementation"], r["status"], r["error/budget"]) for r in rows] == [
        ("torch_eager", "ok", "0.5"),
        ("triton", "wrong", "2"),
    ]
    assert "wrong  nan inputs, case odd: got 0  flax\n" in text


@pytest.mark.parametrize("how", [{"regime": "isolated"}, {"cache": "warm"}])
def test_a_baseline_in_another_regime_or_with_other_caches_is_none_in_a_sweep(shown, how):
    save("sweep/0", *records(sizes=(64,), labels=("torch_eager",)))
    save("sweep/1", *records(0.5, sizes=(64,), labels=("flax",), how=how))
    (Path("results/sweep") / "bench.sweep.yaml").touch()
    rows = sorted(shown("sweep", first="run")[1], key=lambda r: r["run"])
    assert rows[0].get("× torch_eager") == "1.00" and not rows[1]["× torch_eager"]


def test_the_first_variant_of_the_baseline_is_the_baseline(shown):
    save("a", *records(sizes=(64,), labels=("torch_eager", "torch_eager:other")))
    assert [r["× torch_eager"] for r in shown(first="implementation")[1]] == ["1.00", "2.00"]


@pytest.mark.parametrize(
    ("status", "figures"),
    [("wrong", {"rms": 2.0}), ("wrong", {"mean": 2.0}), ("wrong", {"mean": -2.0}), ("implausible", {})],
)
def test_a_cell_with_each_error_within_its_budget_has_it_where_it_is_wrong_on_plain_inputs_or_only_its_time_is(
    shown, status, figures
):
    of = case(id="M=64/float32", M=64, K=5, N=7)
    save("a", untimed(of=of, status=status, reason="why", parity=Parity(parity(0.25, **figures))))
    (row,) = shown(first="implementation")[1]
    assert row["error/budget"] == "0.25"


def test_a_median_of_stalled_samples_is_marked(shown):
    save("a", timed(times=[1e-6] * 4 + [99e-6] * 2, how={"target": 0}, of=case(id="M=64/float32", M=64, K=5, N=7)))
    text, (row,) = shown(first="implementation")
    assert row["±"] == "> 1000%!" and "\n! the median is not known as well as was asked for: a larger time_s" in text
    save("b", *records(sizes=(64,), how={"target": 0}))
    assert "!" not in shown("b", first="implementation")[0]


@pytest.mark.parametrize("command", ["compare", "sanitize", "profile"])
def test_a_run_that_another_command_shows_is_left_out_and_named(shown, command):
    (save("c") / f"{command}.yaml").write_text("sides: [x, y]\n")
    (Path("results/c") / store.FILE).touch()
    save("a", *records(sizes=(64,)))
    text, rows = shown("a", "c", first="implementation")
    assert len(rows) == 2
    assert text.endswith(f"results/c is a run of {command}, left out here: fusebench show results/c shows it\n")


def test_an_implausible_time_is_no_time(shown):
    save("a", *records(sizes=(64,)), timed("cuda", of=case(id="M=64/float32", M=64, K=5, N=7), status="implausible"))
    text, rows = shown(first="implementation")
    assert len(rows) == 2 and "implausible  why  cuda" in text


def test_runs_are_merged_and_told_apart(shown):
    save("a", *records(sizes=(64,)))
    save("b", *records(0.5, sizes=(64,)))
    _, rows = shown("a", "results/b/records.jsonl", first="run")
    assert [(r["run"], r["implementation"], r["time"]) for r in rows] == [
        ("a", "torch_eager", "100 µs"), ("b", "torch_eager", "50 µs"), ("a", "triton:multirow", "50 µs"), ("b", "triton:multirow", "25 µs")
    ]  # fmt: skip


def test_a_sweep_is_one_table_in_the_order_of_its_jobs(shown):
    for number in (0, 1, 2, 10):
        save(f"sweep/{number}", *records(sizes=(64 * (number + 1),), labels=("torch_eager",)))
    _, rows = shown("sweep", first="run")
    assert [(r["run"], r["case"]) for r in rows] == [(str(n), f"M={64 * (n + 1)}/float32") for n in (0, 1, 2, 10)]
    assert shown("latest", first="run")[1] == rows


def test_cells_that_were_only_judged_have_their_errors(shown):
    save("a", untimed("flax", parity=replace(next(records()).parity)))
    _, rows = shown(first="implementation")
    assert rows == [{"implementation": "flax", "error/budget": "0.5"}]


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["implementation=triton"], 6), (["implementation=triton:multi*"], 6), (["implementation=[all,~torch*]"], 6), (["dtype=bf*"], 6),
        (["case=M=64"], 4), (["case=M=64/b*"], 2), (["shape.M=64,1024", "implementation=torch_eager"], 4), (["status=ok"], 12), (["kernel=~lo?a,all"], 0),
    ],
)  # fmt: skip
def test_rows_are_chosen(capsys, words, count):
    save("a", *records(), *records(dtype="bfloat16"))
    code = main(["show", *words])
    captured = capsys.readouterr()
    assert (f"{count} cells: {count} ok" in captured.out) if count else (code == 2 and "leaves none" in captured.err)


def test_that_nothing_is_wrong_is_an_answer(capsys):
    save("a", *records())
    assert main(["show", "status=wrong"]) == 0 and "0 cells" in capsys.readouterr().out
    assert main(["show", "status=wrnog"]) == 2 and "did you mean wrong" in capsys.readouterr().err


def test_rows_are_sorted(shown):
    save("a", *records())
    assert [r["time"] for r in shown("sort=time_s")[1]] == ["50 µs", "100 µs", "200 µs", "400 µs", "800 µs", "1.6 ms"]
    rows = shown("sort=[-label,-time_s]")[1]
    assert [r["time"] for r in rows] == ["800 µs", "200 µs", "50 µs", "1.6 ms", "400 µs", "100 µs"]


def test_no_more_rows_are_printed_than_the_limit(shown):
    save("a", *records())
    text, rows = shown("limit=2")
    assert len(rows) == 2 and "2 of 6 rows: limit=6 prints all" in text and "6 cells: 6 ok" in text


def test_a_narrow_terminal_drops_columns_and_no_figures(shown, monkeypatch):
    save("a", *records())
    monkeypatch.setenv("COLUMNS", "80")
    text, rows = shown()
    assert max(map(len, text.splitlines())) <= 80 and rows[0]["time"] == "100 µs" and "left out in 80 columns: " in text


def test_a_baseline_stands_beside_a_run_with_the_change(shown):
    save("old", *records(sizes=(64, 256)))
    save("new", *records(1.1))
    text, rows = shown("new", "baseline=old")
    first = rows[0]
    assert (first["baseline"], first["time"], first["change"]) == ("100 µs", "110 µs", "+10.0%")
    low, high = (float(end.rstrip("%")) for end in first["95 % interval"].split(" … "))
    assert low < 10 < high and high - low < 30
    assert [r["change"] for r in rows] == ["+10.0%"] * 4 + [""] * 2, "what the baseline lacks has none"
    assert "fusebench compare measures" in text


def test_without_a_time_there_is_no_interval_to_speak_of(shown):
    of = case(id="M=64/float32", M=64, K=5, N=7)
    for name in ("old", "new"):
        save(name, untimed(of=of, parity=Parity(parity(0.25))))
    assert "interval" not in shown("new", "baseline=old", first="implementation")[0]


@pytest.mark.parametrize("how", [{"regime": "sustained", "cache": "warm"}, {"cache": "warm"}])
def test_a_baseline_of_another_regime_or_with_other_caches_is_none(capsys, how):
    save("old", *records(how=how))
    save("new", *records())
    assert main(["show", "new", "baseline=old"]) == 2 and "none of these cells" in capsys.readouterr().err


def test_every_kind_of_file_has_the_same_rows(shown):
    save("a", *records())
    for end in ("csv", "json", "parquet", "md"):
        assert shown("implementation=triton", "sort=-time_s", f"out=it.{end}", first=None)[0] == f"3 rows: it.{end}\n"
    (from_csv, *_), (from_json, *_) = (
        csv.DictReader(Path("it.csv").read_text().splitlines()),
        json.loads(Path("it.json").read_text()),
    )
    (from_parquet, *others) = pyarrow.parquet.read_table("it.parquet").to_pylist()
    assert from_json == from_parquet and len(others) == 2
    for row in (from_csv, from_json):
        assert (
            float(row["time_s"]) == pytest.approx(8e-4)
            and int(row["shape.M"]) == 1024
            and row["label"] == "triton:multirow"
        )
        assert float(row["speedup"]) == pytest.approx(2) and row["id"] == "lola/M=1024/float32/triton:multirow/seed=0"
    lines = Path("it.md").read_text().splitlines()
    assert lines[0].startswith("| kernel | case | implementation | time | ±") and len(lines) == 5
    assert lines[2].startswith("| lola | M=1024/float32 | triton:multirow | 800 µs | 7.0%!")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch"], "nosuch: no run with records there; the latest in results/ are: a"),
        (["kernl=x"], "unknown key 'kernl': did you mean kernel?"),
        (["kernel=lla"], "unknown kernel 'lla': did you mean lola?"),
        (
            ["implementation=tritn*"],
            "no implementation matches 'tritn*': did you mean triton? There are: torch_eager, triton",
        ),
        (["implementation=cuda"], "unknown implementation 'cuda'. There are: torch_eager, triton"),
        (["implementation=triton:rows"], "unknown implementation 'triton:rows': "),
        (["shape.Q=1"], "unknown column 'shape.Q'"),
        (["sort=tim"], "unknown column 'tim': did you mean time_s?"),
        (["out=a.xlsx"], "out=a.xlsx: expected a file that ends in .csv, .json, .md, .parquet"),
        (["out=no/such/a.csv"], "out=no/such/a.csv cannot be written"),
        (["limit=0"], "limit is '0': expected a positive integer"),
        (["baseline=nosuch"], "nosuch: no run"),
        (["--json"], "unexpected '--json'"),
        (["kernel="], "kernel=: expected a value"),
    ],
)
def test_bad_input_is_answered_by_one_line(capsys, words, said):
    save("a", *records())
    (Path("results") / "data").mkdir()  # rows of train: no run
    assert main(["show", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"fusebench: {said}") and captured.err.count("\n") == 1 and not captured.out


def test_without_any_run(capsys):
    assert (
        main(["show"]) == 2
        and "latest: no run with records there; the latest in results/ are: none" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("line", "said"), [("{}\n", "line 3 is no record"), ('{"schema": 0}\n', "line 3 is no record"), ("{", "")]
)
def test_a_line_that_is_no_record_is_named_and_one_that_was_cut_off_is_not(capsys, line, said):
    file = save("a", *records(sizes=(64,))) / store.FILE
    with file.open("a") as to:
        to.write(line)
    assert main(["show"]) == (2 if said else 0) and said in capsys.readouterr().err


def test_more_rows_than_are_decoded_at_a_time(shown, monkeypatch):
    from fusebench.records import rows

    monkeypatch.setattr(rows, "BATCH", 4)
    save("a", *records(), *records(dtype="bfloat16"))
    assert len(shown()[1]) == 12


# Plots


@pytest.fixture
def no_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_without_matplotlib_one_line_says_what_to_install(no_matplotlib, capsys):
    save("a", *records())
    assert main(["plot", "x=shape.M"]) == 2
    assert (
        capsys.readouterr().err
        == "fusebench: plot needs matplotlib: pip install matplotlib, or the extra plot of fusebench\n"
    )


def test_time_against_size_and_the_roofline(shown):
    pytest.importorskip("matplotlib")
    save("a", *records(), *records(dtype="bfloat16"))
    assert shown("x=shape.M", "out=it.svg", command="plot", first=None)[0] == "2 panels: it.svg\n"
    drawn = Path("it.svg").read_text()
    assert drawn.lstrip().startswith("<?xml") and "</svg>" in drawn
    for text in (
        "lola float32 ieee on some GPU",
        "lola bfloat16 on some GPU",
        "shape.M",
        "time, s",
        "triton:multirow",
        "TFLOP/s",
        "product 50 TFLOP/s",
    ):
        assert f">{text}<" in drawn, text
    shown("x=shape.M", "out=again.svg", command="plot", first=None)
    assert Path("again.svg").read_text() == drawn


def test_the_points_of_a_plot(monkeypatch, shown):
    from fusebench.commands import plot

    found = []
    monkeypatch.setattr(plot, "draw", lambda panels, x, y, file: found.append((panels, x, y)))
    save("a", *reversed([*records()]))
    shown(command="plot", first=None)
    (((panel,), x, _),) = found
    assert x == "shape.M", "the dimension that has several sizes"
    line = next(line for line in panel.lines if line.label == "torch_eager")
    assert list(line.x) == [64, 256, 1024] and line.y == pytest.approx([1e-4, 4e-4, 16e-4])
    assert line.low[0] < line.y[0] < line.high[0] and line.intensity == [500.0] * 3
    assert (panel.read_gbps, panel.matrix_tflops) == (125, 50)


def test_a_chart_has_each_median_within_its_interval_and_the_roof_over_the_rates(shown, charts):
    save("a", *records())
    shown("x=shape.M", command="plot", first=None)
    times, roof = charts[0].axes
    assert (times.get_title(), times.get_xlabel(), times.get_ylabel()) == (
        "lola float32 ieee on some GPU",
        "shape.M",
        "time, s",
    )
    assert (times.get_xscale(), times.get_yscale(), roof.get_xscale(), roof.get_yscale()) == ("log",) * 4
    assert [line.get_label() for line in times.get_lines()] == ["torch_eager", "triton:multirow"]
    for line, around, factor in zip(times.get_lines(), times.collections, (1.0, 0.5), strict=True):
        assert [tuple(point) for point in line.get_xydata()] == [
            (m, pytest.approx(factor * m / 64 * 100e-6)) for m in SIZES
        ]
        for m in SIZES:
            ends = [y for x, y in around.get_paths()[0].vertices if x == m]
            assert [min(ends), max(ends)] == pytest.approx([factor * m / 64 * end * 1e-6 for end in (94, 108)])
    # 10⁶ FLOPs for each row, 2000 bytes; 64 rows in 100 and in 50 µs
    assert [line.get_xydata().tolist() for line in roof.get_lines()[:2]] == [
        [pytest.approx([500, rate])] * 3 for rate in (0.64, 1.28)
    ]
    assert [line.get_label() for line in roof.get_lines()[2:]] == ["read 125 GB/s", "product 50 TFLOP/s"]
    assert (roof.get_xlabel(), roof.get_ylabel()) == ("FLOPs a byte", "TFLOP/s")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x=shape.Q"], "unknown x 'shape.Q'"), (["x=kernel"], "x=kernel: expected a column of numbers, such as shape.M"), (["y=time"], "unknown y 'time': did you mean time_s?"),
        (["x=shape.M", "y=host_s"], "no cell has both shape.M and host_s"), (["out=a.png"], "out=a.png: expected a file that ends in .svg"), (["kernel=x*"], "no kernel matches 'x*'"),
    ],
)  # fmt: skip
def test_a_plot_that_cannot_be(no_matplotlib, capsys, words, said):
    save("a", *records())
    assert main(["plot", *words]) == 2 and capsys.readouterr().err.startswith(f"fusebench: {said}")


def test_comparisons_are_shown_as_they_ended(capsys):
    result = Result(0.8, 0.78, 0.82, "faster", 10)
    estimate = Estimate(result, 0.99, (1e-4, 0.8e-4), (0.8,) * 10, "isolated warm")
    for name in ("a/0", "a/1"):
        folder = save(name)
        (folder / store.FILE).touch()
        (folder / "compare.yaml").write_text(f"sides: [flax, 'cuda@{'5ba4a2dbfe' * 4}']\n")
        outcome = Outcome(name, "lola", ("odd", "odd"), ("flax", "cuda"), 10, 0, estimate=estimate)
        store.append(folder, outcome, "comparison.jsonl")
    assert main(["show", "a"]) == 0
    text = capsys.readouterr().out
    rows = table_of(text, "kernel")
    assert text.startswith("\nA  flax\nB  cuda@5ba4a2dbfe\n") and text.count("B  cuda") == 1
    assert main(["plot", "a"]) == 2
    assert "a/0 is a run of compare, which has no rows of cells: fusebench show" in capsys.readouterr().err
    assert [(r["A"], r["B"], r["B ÷ A"], r["B is"]) for r in rows] == [("flax", "cuda", "0.800", "faster")] * 2
    assert (
        main(["show", "a", "kernel=lola"]) == 2
        and "is a run of compare, which is shown as it is" in capsys.readouterr().err
    )


def test_a_run_of_sanitize_is_shown_with_its_tools(capsys):
    folder = save("s")
    (folder / "sanitize.yaml").write_text("kernel: lola\n")
    made = untimed("cuda:row", "ok", of=case(id="odd/float32", M=3, K=5, N=7))
    for tool, found in (("memcheck", ()), ("racecheck", (Finding("a race", "kernel<float>", "cuda.cu:7"),))):
        store.append(folder, Check(check_id(made.cell, tool), tool, made, found))
    assert main(["show", "s"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("results/s is a run of sanitize: fusebench sanitize resume=results/s goes on with it\n")
    (row,) = table_of(text.split("found in")[0], "implementation")
    assert (row["implementation"], row["memcheck"], row["racecheck"]) == ("cuda:row", "clean", "1 finding")
    assert "a race" in text and "cuda.cu:7" in text
    assert main(["show", "s", "kernel=lola"]) == 2
    assert "is a run of sanitize, which is shown as it is: leave out all keys" in capsys.readouterr().err


def test_a_run_of_profile_is_shown_as_it_ended(capsys):
    folder = save("p")
    (folder / "profile.yaml").write_text("kernel: lola\n")
    made = untimed("cuda:row", "crashed", reason="SIGSEGV", of=case(id="odd/float32", M=3, K=5, N=7))
    store.append(folder, Profile(made.id, made))
    assert main(["show", "p"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("results/p is a run of profile\n") and "crashed  SIGSEGV" in text and "cuda:row" in text


def test_a_run_of_tune_says_which_command_shows_what_it_found(shown):
    (save("t", *records()) / "tune.yaml").write_text("kernel: lola\n")
    text, rows = shown("t")
    assert len(rows) == 6 and "is a run of tune, each config a cell: fusebench tune resume=" in text


def test_what_is_no_run_with_records_is_named(capsys):
    (save("begun") / "parity.yaml").write_text("kernel: lola\n")
    assert main(["show", "begun"]) == 2
    assert (
        capsys.readouterr().err
        == "fusebench: begun is a run of parity without a record: fusebench parity resume=begun goes on with it\n"
    )
    inspected = Path("stages/lola/odd_float32/cuda")
    inspected.mkdir(parents=True)
    (inspected / "1_kernel.cubin").touch()
    assert main(["show", "stages"]) == 2
    assert (
        "stages has what inspect wrote, a file a stage; fusebench inspect stage=sass prints one"
        in capsys.readouterr().err
    )
