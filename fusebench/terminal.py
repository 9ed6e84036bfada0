"""Where the tables go: as wide as the terminal, in the characters that its encoding has. Colour is rich's: none by NO_COLOR, with
TERM=dumb, or where the output is no terminal."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

WIDEST = 10_000  # columns, where there is no terminal: a file has room for a line of any length
BLANK = "    \n"
ASCII_HEAD = box.Box(2 * BLANK + " -- \n" + 5 * BLANK, ascii=True)  # rich's own draws a frame
PLAIN = str.maketrans(
    {"µ": "u", "±": "+-", "×": "x", "÷": "/", "…": "...", "✓": "yes", "─": "-", "–": "-", "→": "->", "²": "2"}
)


def print_what_can_be_encoded() -> None:
    """Makes stdout and stderr write a character that their encoding lacks as plain ones, instead of raising."""
    codecs.register_error("fusebench", _encoded)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="fusebench")


def _encoded(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end].translate(PLAIN)
    return lacking.encode("ascii", "replace").decode(), error.end


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # cli.main ends it; rich would end the process, with exit code 1


def console() -> Console:
    """stdout, as wide as COLUMNS or its terminal says; without one no line is broken."""
    return _Console(width=_width(), height=25)  # with a height, or rich takes 80 columns in a dumb terminal


def _width() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    for descriptor in (1, 2, 0):  # stdout may go through tee or less to the terminal of the others
        try:
            if found := os.get_terminal_size(descriptor).columns:
                return found
        except OSError:
            pass  # it is no terminal
    return WIDEST


def print_table(
    out: Console, left: Sequence[str], right: Sequence[str], rows: Sequence[Sequence[str]], least: Sequence[str] = ()
) -> None:
    """Prints a table with these headings, `right` over figures. Where it is too wide, gaps get narrower, and then the columns of
    the `least` importance are left out, the first one first, and named. What is left is never cut: at worst the terminal wraps it."""
    headings, spare = [*left, *right], list(least)
    dropped: list[str] = []
    while True:
        kept = [n for n, heading in enumerate(headings) if heading not in dropped]
        for gap in (1, 0):
            table = Table(
                box=ASCII_HEAD if out.options.ascii_only else box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, gap)
            )
            for n in kept:
                table.add_column(_fitting(out, headings[n]), justify="left" if n < len(left) else "right", no_wrap=True)
            for row in rows:
                table.add_row(*(_fitting(out, row[n]) for n in kept))
            needed = out.measure(table, options=out.options.update(width=WIDEST)).maximum
            if needed <= out.width:
                break
        if needed <= out.width or not spare:
            break
        if (name := spare.pop(0)) in headings:
            dropped.append(name)
    print_whole(out, table)
    if dropped:
        out.print(f"[dim]left out in {out.width} columns: {', '.join(dropped)}[/]", highlight=False)


def print_whole(out: Console, table: Table) -> None:
    """Prints a table whose columns do not wrap; one that is too wide is wrapped by the terminal."""
    width = out.width
    out.width = max(width, out.measure(table, options=out.options.update(width=WIDEST)).maximum)
    out.print(table)
    out.width = width


def counted(number: int, noun: str) -> str:
    """`1 cell`, `2 cells`, `3 launches`."""
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{number} {noun if number == 1 else plural}"


def by_words(texts: Sequence[str], width: int) -> list[str]:
    """The texts in lines of that width, none of which breaks a word."""
    longest = max((len(word) for text in texts for word in text.split()), default=1)
    return [textwrap.fill(t, max(longest, width), break_long_words=False, break_on_hyphens=False) for t in texts]


@contextlib.contextmanager
def while_it_is_read() -> Iterator[None]:
    """Within it stdout may be closed by its reader, such as head, which has seen enough: what is printed from then on goes nowhere."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        print_no_more()


def print_no_more() -> None:
    """So that Python does not try once more at its end to write what found no reader or no room."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fitting(out: Console, text: str) -> str:
    """The text in characters of the output's encoding, before columns are measured."""
    try:
        text.encode(out.encoding)
    except UnicodeEncodeError:
        return text.translate(PLAIN)
    return text
