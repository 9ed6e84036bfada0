"""The command `fusebench` itself: which command gets which arguments, and the exit code whatever happens."""

from __future__ import annotations

import importlib.metadata
import io
import os
import signal
import sys

import pytest

from fusebench import cli
from fusebench.commands import (
    app,
    asv,
    compare,
    data,
    diff,
    inspect,
    listing,
    new,
    plot,
    profile,
    sanitize,
    show,
    train,
    yardsticks,
)


@pytest.fixture(autouse=True)
def handler():
    """The handler of SIGTERM that was there before."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def called(monkeypatch):
    """What each command was called with."""
    seen = []
    monkeypatch.setattr(app, "run_app", lambda command, arguments: seen.append((command, arguments)) or 3)
    monkeypatch.setattr(compare, "run_compare", lambda arguments: seen.append(("compare", arguments)) or 4)
    monkeypatch.setattr(sanitize, "run_sanitize", lambda arguments: seen.append(("sanitize", arguments)) or 8)
    monkeypatch.setattr(inspect, "run_inspect", lambda arguments: seen.append(("inspect", arguments)) or 11)
    monkeypatch.setattr(profile, "run_profile", lambda arguments: seen.append(("profile", arguments)) or 12)
    monkeypatch.setattr(diff, "run_diff", lambda arguments: seen.append(("diff", arguments)) or 14)
    monkeypatch.setattr(listing, "main", lambda arguments: seen.append(("list", arguments)) or 5)
    monkeypatch.setattr(show, "main", lambda arguments: seen.append(("show", arguments)) or 9)
    monkeypatch.setattr(plot, "main", lambda arguments: seen.append(("plot", arguments)) or 10)
    monkeypatch.setattr(yardsticks, "main", lambda arguments: seen.append(("yardsticks", arguments)) or 6)
    monkeypatch.setattr(asv, "main", lambda arguments: seen.append(("asv", arguments)) or 13)
    monkeypatch.setattr(data, "main", lambda arguments: seen.append(("data", arguments)) or 15)
    monkeypatch.setattr(new, "main", lambda arguments: seen.append(("new", arguments)) or 7)
    monkeypatch.setattr(train, "main", lambda arguments: seen.append(("train", arguments)) or 16)
    return seen


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("bench", 3),
        ("parity", 3),
        ("compare", 4),
        ("list", 5),
        ("yardsticks", 6),
        ("new", 7),
        ("sanitize", 8),
        ("show", 9),
        ("plot", 10),
        ("inspect", 11),
        ("profile", 12),
        ("asv", 13),
        ("diff", 14),
        ("data", 15),
        ("train", 16),
    ],
)
def test_each_command_gets_its_arguments_and_gives_its_code(called, command, code):
    assert cli.main([command, "a=b", "--json"]) == code and called == [(command, ["a=b", "--json"])]
    assert command in cli.COMMANDS


def test_without_arguments_they_are_those_of_the_process(called, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fusebench", "bench", "x=1"])
    assert cli.main() == 3 and called == [("bench", ["x=1"])]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--resume"], ["resume=latest"]), (["--resume", "it"], ["resume=it"]), (["--resume=it"], ["resume=it"]), (["--resume", "-m"], ["resume=latest", "-m"]),
        (["--resume", "seed=1"], ["resume=latest", "seed=1"]), (["a=b", "--resume", "it", "c=d"], ["a=b", "resume=it", "c=d"]), (["a=b"], ["a=b"]),
    ],
)  # fmt: skip
def test_resume_is_a_flag_too(called, given, meant):
    cli.main(["bench", *given])
    cli.main(["compare", *given])
    assert called == [("bench", meant), ("compare", meant)]
    cli.main(["list", *given])
    assert called[-1] == ("list", given), "of the commands that have runs"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["a", "--fail-slower", "3%", "b"], ["a", "fail_slower=3%", "b"]), (["--fail-slower=3%"], ["fail_slower=3%"]), (["--fail-slower"], ["fail_slower="]),
        (["a", "b"], ["a", "b"]),
    ],
)  # fmt: skip
def test_the_limit_of_compare_is_a_flag_too(called, given, meant):
    cli.main(["compare", *given])
    cli.main(["bench", *given])
    assert called == [("compare", meant), ("bench", given)]


def test_the_flags_that_are_keys(called):
    assert cli.main(["bench", "-q", "--verbose", "--dry-run", "a=b"]) == 3
    assert called == [("bench", ["quiet=true", "verbose=true", "dry_run=true", "a=b"])]


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["-h"], 0), (["--help"], 0), (["help"], 0)])
def test_usage(capsys, arguments, code):
    assert cli.main(arguments) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["usage: fusebench COMMAND [KEY=VALUE …]", ""] and lines[-2:] == [
        "",
        "fusebench COMMAND --help shows the keys of a command.",
    ]
    assert lines[2:-2] == [f"  {name:11}  {text}" for name, text in cli.COMMANDS.items()]


def test_the_version(capsys):
    assert cli.main(["--version"]) == 0 and capsys.readouterr().out.strip() == importlib.metadata.version("fusebench")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_the_version_of_a_command_is_ours(called, capsys, command):
    assert cli.main([command, "kernel=lola", "--version"]) == 0 and not called
    assert capsys.readouterr().out.strip() == importlib.metadata.version("fusebench")


def test_an_unknown_command(capsys):
    assert cli.main(["bnch"]) == 2
    assert (
        capsys.readouterr().err
        == "fusebench: unknown command 'bnch': did you mean bench? There are: asv, bench, compare, data, diff, inspect, list, new, parity, performance, plot, profile, sanitize, show, train, tune, yardsticks\n"
    )


@pytest.fixture
def ends(monkeypatch):
    """A command that ends with an error; the process's own output is left alone."""
    closed = []
    monkeypatch.setattr(cli, "print_no_more", lambda: closed.append(True))

    def end(error):
        def raises(command, arguments):
            raise error

        monkeypatch.setattr(app, "run_app", raises)
        return cli.main(["bench"]), len(closed)

    return end


@pytest.mark.parametrize(
    ("error", "code", "closed", "said"),
    [
        (KeyboardInterrupt(), 130, 0, "interrupted\n"), (BrokenPipeError(), 0, 1, ""),
        (OSError(28, "No space left on device"), 1, 1, "fusebench: the output: No space left on device\n"),
    ],
)  # fmt: skip
def test_however_it_ends_there_is_a_code(ends, capsys, error, code, closed, said):
    assert ends(error) == (code, closed) and capsys.readouterr().err == said


def test_output_that_finds_no_room_is_told_before_the_end(called, monkeypatch, capsys):
    class Full:
        def flush(self):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(cli, "print_no_more", lambda: None)
    with monkeypatch.context() as within:
        within.setattr("sys.stdout", Full())
        assert cli.main(["bench"]) == 1
    assert "No space left" in capsys.readouterr().err


def test_nothing_more_is_printed_at_the_end(monkeypatch, tmp_path):
    file = (tmp_path / "out").open("w+")
    monkeypatch.setattr("sys.stdout", file)
    cli.print_no_more()
    os.write(file.fileno(), b"lost")
    assert (tmp_path / "out").read_text() == ""


def test_what_an_encoding_lacks_is_printed_in_plain_characters(monkeypatch):
    """On both streams, whatever the command prints."""

    def says(command, arguments):
        print("17 µs ± 1 %")
        print("3 × …", file=sys.stderr)
        return 0

    streams = [io.TextIOWrapper(io.BytesIO(), "ascii") for _ in range(2)]
    monkeypatch.setattr("sys.stdout", streams[0])
    monkeypatch.setattr("sys.stderr", streams[1])
    monkeypatch.setattr(app, "run_app", says)
    assert cli.main(["bench"]) == 0
    streams[1].flush()
    assert [s.buffer.getvalue() for s in streams] == [b"17 us +- 1 %\n", b"3 x ...\n"]


def test_a_signal_to_end_is_an_interrupt(called, monkeypatch, capsys):
    def killed(command, arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    monkeypatch.setattr(app, "run_app", killed)
    assert cli.main(["bench"]) == 130 and capsys.readouterr().err == "interrupted\n"
