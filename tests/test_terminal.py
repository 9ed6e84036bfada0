"""How wide the tables are and what they leave out: the terminal's width, wherever one of the three streams has it."""

from __future__ import annotations

import io
import os

import pytest
from rich.console import Console

from fusebench import terminal


@pytest.fixture
def terminals(monkeypatch):
    """Makes the descriptors named in `columns` terminals of that width, and no other."""

    def width_of(columns):
        def size(descriptor):
            if descriptor not in columns:
                raise OSError(25, "Inappropriate ioctl for device")
            return os.terminal_size((columns[descriptor], 40))

        monkeypatch.delenv("COLUMNS", raising=False)
        monkeypatch.setattr(os, "get_terminal_size", size)
        return terminal.console().width

    return width_of


@pytest.mark.parametrize(
    ("columns", "width"),
    [
        ({1: 70, 2: 80, 0: 90}, 70), ({2: 80, 0: 90}, 80), ({0: 90}, 90), ({}, 10_000),
        ({1: 0, 2: 80}, 80), ({1: 0, 2: 0, 0: 0}, 10_000),
    ],
)  # fmt: skip
def test_the_width_is_that_of_the_first_stream_that_has_one(terminals, columns, width):
    """stdout, then stderr, then stdin; what is piped has none, and some terminals say 0."""
    assert terminals(columns) == width


@pytest.mark.parametrize(("columns", "width"), [("120", 120), ("1", 1), ("0", 70), ("-5", 70), ("wide", 70), ("", 70)])
def test_columns_that_are_set_count_first(terminals, monkeypatch, columns, width):
    terminals({1: 70})
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal.console().width == width


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(0, "cell", "0 cells"), (1, "cell", "1 cell"), (2, "cell", "2 cells"), (1, "launch", "1 launch"), (3, "launch", "3 launches")],
)  # fmt: skip
def test_a_noun_goes_with_its_number(number, noun, text):
    assert terminal.counted(number, noun) == text


LEFT, RIGHT, ROWS = ["name", "kind"], ["time", "±"], [("a", "first", "1.5", "2"), ("long", "b", "10.25", "3")]
WIDE = """
 name   kind     time   ±
 ────────────────────────
 a      first     1.5   2
 long   b       10.25   3
"""
CLOSE = """
 name  kind    time  ±
 ─────────────────────
 a     first    1.5  2
 long  b      10.25  3
"""
WITHOUT_KIND = """
 name    time   ±
 ────────────────
 a        1.5   2
 long   10.25   3
"""
FIGURES_ALONE = """
 name   time
 ───────────
 a       1.5
 long  10.25
"""


@pytest.mark.parametrize(
    ("columns", "table", "left_out"),
    [
        (60, WIDE, ""), (26, WIDE, ""), (25, CLOSE, ""), (23, CLOSE, ""), (22, WITHOUT_KIND, "kind"), (18, WITHOUT_KIND, "kind"),
        (13, FIGURES_ALONE, "kind, ±"), (11, FIGURES_ALONE, "kind, ±"),
    ],
)  # fmt: skip
def test_gaps_get_narrower_before_columns_are_left_out(columns, table, left_out):
    """Those of the least importance first; what is not there is not named, and figures are never cut."""
    out = Console(file=io.StringIO(), width=columns, height=25)
    terminal.print_table(out, LEFT, RIGHT, ROWS, ["nosuch", "kind", "±"])
    lines = [line.rstrip() for line in out.file.getvalue().splitlines()]
    rows = table.strip("\n").splitlines()
    assert lines[: len(rows) + 2] == ["", *rows, ""]
    said = " ".join(" ".join(lines[len(rows) + 2 :]).split())
    assert said == (f"left out in {columns} columns: {left_out}" if left_out else "")
    assert out.width == columns, "what is printed next is as wide as the terminal"


def test_what_is_left_out_is_said_in_one_shade():
    out = Console(file=io.StringIO(), width=13, height=25, force_terminal=True, color_system="standard")
    terminal.print_table(out, LEFT, RIGHT, ROWS, ["kind"])
    (line,) = [line for line in out.file.getvalue().splitlines() if "left out" in line]
    assert line.startswith("\x1b[2m") and line.count("\x1b[") == 2


def test_a_reader_that_has_gone_is_told_to_the_caller(monkeypatch):
    """rich would end the process itself."""

    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Gone())
    with pytest.raises(BrokenPipeError):
        terminal.console().print("text")


def test_texts_have_lines_as_long_as_the_longest_word_of_any():
    assert (
        terminal.by_words(["a" * 10, "bb cc dd ee"], 4) == ["a" * 10, "bb cc dd\nee"] and terminal.by_words([], 4) == []
    )
    assert terminal.by_words(["bb-cc dd"], 6) == ["bb-cc\ndd"]
