"""`fusebench performance`: ours beside the fastest other implementation, as Markdown between marks of a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fusebench import cli
from fusebench.commands import performance
from fusebench.errors import UsageError


def cell(label, time, case="odd/float32", kernel="softmax", around=0.1, computes="", **more):
    found = {
        "kernel": kernel,
        "case": case,
        "label": label,
        "implementation": label.split(":")[0],
        "status": "ok",
        "time_s": time,
    }
    found |= {
        "low_s": time and time * (1 - around),
        "high_s": time and time * (1 + around),
        "yardstick_share": None,
        "host_s": None,
    }
    return found | {"computes": computes} | more


def table_of(*cells):
    """The cells of each row under a heading, without the heads of tables."""
    lines = [line for line in performance.tables(cells).splitlines() if line]
    return [
        line if line[0] == "#" else line.strip("| ").split(" | ")
        for line in lines
        if not line.startswith(("| case", "| ---"))
    ]


def test_the_fastest_of_ours_stands_beside_the_fastest_other_one():
    (heading, row) = table_of(
        cell("torch_eager", 8e-6), cell("triton:row", 5e-6), cell("flax", 4e-6), cell("cuda:row", 2e-6, yardstick_share=0.5, host_s=3e-6)
    )  # fmt: skip
    assert heading == "### softmax"
    assert row == [
        "odd/float32", "cuda:row", "2 µs", "flax", "4 µs", "0.500 (0.409 … 0.611)", "", "50%", "3 µs", "triton:row 5 µs, torch_eager 8 µs",
    ]  # fmt: skip


def test_a_part_of_a_kernel_is_no_peer():
    (_, row) = table_of(cell("cublas", 1e-6, computes="product"), cell("torch_eager", 3e-6), cell("cuda:row", 2e-6))
    assert row[3] == "torch_eager" and row[6] == "1 µs"


@pytest.mark.parametrize("nothing", [None, float("nan")])
def test_what_has_no_time_has_no_row(nothing):
    rows = table_of(
        cell("cuda:row", nothing),
        cell("flax", 2e-6, low_s=nothing, high_s=nothing),
        cell("cuda:row", nothing, "one/float32"),
    )
    assert rows[1][:5] == ["odd/float32", "none", "", "flax", "2 µs"] and len(rows) == 2
    with pytest.raises(UsageError, match="no cell of these runs has a time"):
        performance.tables([cell("cuda:row", nothing)])


def test_a_median_without_an_interval_is_taken_as_known():
    (_, row) = table_of(cell("cuda:row", 2e-6, low_s=None, high_s=None), cell("flax", 4e-6))
    assert row[5] == "0.500 (0.455 … 0.556)"


def test_each_kernel_has_a_table_and_each_case_a_row():
    rows = table_of(cell("cuda", 1e-6), cell("cuda", 1e-6, kernel="lola"), cell("cuda", 2e-6, "one/float32"))
    assert [row if row[0] == "#" else row[0] for row in rows] == [
        "### softmax", "odd/float32", "one/float32", "### lola", "odd/float32",
    ]  # fmt: skip


def test_what_is_written_by_hand_stays(tmp_path):
    file = tmp_path / "performance.md"
    performance.write(file, "first")
    assert file.read_text() == f"{performance.BEGIN}\nfirst\n{performance.END}\n"
    file.write_text(f"# By hand\n{file.read_text()}what was tried\n")
    performance.write(file, "second")
    assert file.read_text() == f"# By hand\n{performance.BEGIN}\nsecond\n{performance.END}\nwhat was tried\n"


def test_a_file_without_marks_stays_as_it_is(tmp_path):
    file = tmp_path / "performance.md"
    file.write_text(f"{performance.END}{performance.BEGIN}")
    with pytest.raises(UsageError, match="expected a file with both, or a new one"):
        performance.write(file, "text")
    assert file.read_text() == f"{performance.END}{performance.BEGIN}"
    with pytest.raises(UsageError, match="cannot be written"):
        performance.write(tmp_path / "none" / "performance.md", "text")


def test_bad_input_is_exit_code_2(capsys):
    assert all(cli.main(["performance", word]) == code for word, code in (("kernel", 2), ("--out", 2), ("--help", 0)))
    assert performance.HELP in capsys.readouterr().out


@pytest.mark.parametrize(("page", "experiment"), [("performance", "h200_peers"), ("neighbours", "h200_neighbours")])
def test_a_pages_rows_are_cases_of_its_experiment(answered, page, experiment):
    """So that who runs the experiment can make the page again."""
    text = (Path(__file__).parent.parent / "docs" / f"{page}.md").read_text()
    tables = text.split(performance.BEGIN)[1].split(performance.END)[0]
    rows = {
        (kernel, case)
        for kernel, table in re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", tables, re.DOTALL | re.MULTILINE)
        for case in re.findall(r"^\| (\S+/\S+) \|", table, re.MULTILINE)
    }
    asked = answered("bench", f"experiment={experiment}", "dry_run=true")
    assert asked.returncode == 0, asked.stderr
    cases = set(re.findall(r"^(\w+)  (\S+/\S+)  ", asked.stdout, re.MULTILINE))
    assert len(rows) > 50 and rows <= cases, sorted(rows - cases)
