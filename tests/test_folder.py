"""The folder of a run: its name, which one is the latest, what is kept there for a run that goes on, and who may write."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml

from fusebench import atomic, folder
from fusebench.errors import StorageError, UsageError

KEPT = {"kernel": "lola", "path": None, "shapes": None, "seed": 3}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def made(name, command="bench", age_s=0.0, text="kernel: lola\n"):
    """A run's folder with its configuration."""
    home = folder.RESULTS / name
    home.mkdir(parents=True)
    (home / f"{command}.yaml").write_text(text)
    then = 1_700_000_000 - age_s
    os.utime(home, (then, then))
    return home


@pytest.mark.parametrize("place", ["file/x.csv", "nosuch/x.csv", "folder.csv"])
def test_a_file_is_written_in_a_folder_that_is_there(place):
    Path("file").touch()
    Path("folder.csv").mkdir()
    with pytest.raises(UsageError, match=f"^out={place}: expected a file that can be written, in a folder that is"):
        folder.check_file("out", place, [".csv"])
    assert folder.check_file("out", "x.csv", [".csv"]) == Path("x.csv")


@pytest.mark.parametrize("empty", ["", " "])
def test_a_folder_without_a_name_is_none(empty):
    with pytest.raises(UsageError, match=r"^out= is empty; expected a folder"):
        folder.check_folder("out", empty)


def test_a_file_is_replaced_as_a_whole_by_one_beside_it_that_is_of_this_process():
    file = Path("some.txt")
    with atomic.replacing(file) as part:
        part.write_text("first")
        assert part.parent == file.parent and str(os.getpid()) in part.name and not file.exists()
    with pytest.raises(KeyboardInterrupt), atomic.replacing(file) as part:
        part.write_text("half of the sec")
        raise KeyboardInterrupt
    assert file.read_text() == "first" and list(Path.cwd().iterdir()) == [file.absolute()]


# Its name


def test_a_new_folder_is_named_by_the_millisecond():
    before = datetime.now() - timedelta(milliseconds=1)
    home = folder.new()
    named = datetime.strptime(home.name, "%Y-%m-%d_%H-%M-%S.%f")
    assert before <= named <= datetime.now() and home.parent == Path("results") and home.is_dir()
    assert len(home.name) == len("2026-01-02_03-04-05.678")


def test_a_run_that_meets_another_s_folder_waits_for_the_next_millisecond(monkeypatch):
    names, slept = iter("aab"), []
    monkeypatch.setattr(folder, "moment", lambda: Path("results") / next(names))
    monkeypatch.setattr("time.sleep", slept.append)
    assert [folder.new().name, folder.new().name] == ["a", "b"] and slept == [0.001]


def test_a_folder_that_cannot_be_made_is_named(monkeypatch):
    Path("results").write_text("mine")
    with pytest.raises(
        UsageError, match=r"^results cannot be written to results/.*: Not a directory; nothing was measured$"
    ):
        folder.new()


def test_a_folder_in_which_nothing_was_kept_goes_and_any_other_stays():
    empty, locked, full = made("empty"), made("locked"), made("full")
    for home in (empty, locked):
        (home / "bench.yaml").unlink()
    (locked / folder.LOCK).touch()
    folder.remove_empty(full)
    folder.remove_empty(empty)
    assert full.is_dir() and not empty.exists() and locked.exists()
    folder.remove_empty(locked)
    assert not locked.exists() and folder.RESULTS.is_dir()
    (full / "bench.yaml").unlink()
    folder.remove_empty(full)
    assert not folder.RESULTS.exists(), "and the last one takes results/ along"
    folder.remove_empty(full)


# Which one resume= means


def test_the_latest_run_is_the_one_that_was_changed_last():
    made("c_old", age_s=100), made("a_new", age_s=1), made("b_older", age_s=50), made("z_other", "parity")
    assert folder.find("bench", "latest") == Path("results/a_new/bench.yaml")
    assert folder.find("parity", "latest") == Path("results/z_other/parity.yaml")


def test_a_job_of_a_multirun_may_be_the_latest():
    made("a", age_s=10), made("b/1", age_s=1), made("b/0", age_s=5)
    assert folder.find("bench", "latest") == Path("results/b/1/bench.yaml")


def test_a_run_is_named_by_its_folder_or_by_its_name_under_results():
    made("mine"), Path("else/where").mkdir(parents=True)
    Path("else/where/bench.yaml").write_text("kernel: lola\n")
    assert folder.find("bench", "mine") == Path("results/mine/bench.yaml")
    assert folder.find("bench", "results/mine") == Path("results/mine/bench.yaml")
    assert folder.find("bench", "else/where") == Path("else/where/bench.yaml")


def test_a_run_that_is_not_there_is_answered_with_the_latest_five():
    for name in "gcabdef":
        made(name)
    made("parity_run", "parity")
    with pytest.raises(UsageError) as error:
        folder.find("bench", "nosuch")
    assert str(error.value) == "resume=nosuch: no bench run there; the latest in results/ are: c, d, e, f, g"


@pytest.mark.parametrize("resume", ["latest", "nosuch"])
def test_where_there_are_no_runs_it_says_so(resume):
    with pytest.raises(UsageError, match=f"resume={resume}: no bench run there; the latest in results/ are: none"):
        folder.find("bench", resume)


def test_a_run_of_another_command_is_none():
    made("mine", "parity")
    with pytest.raises(UsageError, match="no bench run there"):
        folder.find("bench", "mine")


# What is kept


def test_what_is_kept_comes_back_in_its_order():
    """Of a group of keys those that are set."""
    home = made("a")
    (home / "bench.yaml").unlink()
    chosen = {
        "kernel": "lola",
        "seed": [1, 2],
        "path": None,
        "shapes": None,
        "case": "größe",
        "option": {"b": None, "a": 1},
    }
    folder.keep(chosen, home, "bench")
    assert list(home.iterdir()) == [home / "bench.yaml"]
    chosen["option"] = {"a": 1}
    assert folder.load(home / "bench.yaml") == chosen and list(folder.load(home / "bench.yaml")) == list(chosen)
    assert "größe" in (home / "bench.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        ("path", "mine", "{}/mine"),
        ("path", ["mine", "/x"], ["{}/mine", "/x"]),
        ("shapes", "a.csv", "{}/a.csv"),
        ("shapes", None, None),
    ],
)
def test_paths_are_kept_so_that_they_hold_from_elsewhere(tmp_path, key, value, kept):
    home = made("a")
    (home / "bench.yaml").unlink()
    folder.keep(KEPT | {key: value}, home, "bench")
    where = [k.format(tmp_path) for k in kept] if isinstance(kept, list) else kept and kept.format(tmp_path)
    assert folder.load(home / "bench.yaml")[key] == where


@pytest.mark.parametrize("file", ["records.jsonl", "bench.yaml", "parity.yaml", "compare.yaml"])
def test_a_run_is_not_written_over(file):
    home = folder.RESULTS / "a"
    home.mkdir(parents=True)
    (home / file).touch()
    with pytest.raises(UsageError, match=r"^results/a holds a run already: resume=results/a goes on with it$"):
        folder.keep(KEPT, home, "bench")
    with pytest.raises(UsageError, match=r"^results/a holds a run already: expected another folder$"):
        folder.keep(KEPT, home, "profile")
    assert (home / file).read_text() == ""


def test_the_words_that_go_on_with_a_run_are_quoted_as_a_shell_reads_them():
    home = folder.RESULTS / "my run"
    home.mkdir(parents=True)
    (home / "bench.yaml").touch()
    with pytest.raises(UsageError, match=r"holds a run already: 'resume=results/my run' goes on with it$"):
        folder.keep(KEPT, home, "bench")


def test_a_configuration_is_kept_whole_or_not_at_all(monkeypatch):
    home = folder.RESULTS / "a"
    home.mkdir(parents=True)
    there = []

    def fails(self, target):
        there.append((self.name, yaml.safe_load(self.read_text())))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(
        UsageError, match="results cannot be written to results/a: No space left on device; nothing was measured"
    ):
        folder.keep(KEPT, home, "bench")
    assert there == [(f".bench.yaml.{os.getpid()}", KEPT)], "it is written beside its place first"
    assert not list(home.iterdir())
    with pytest.raises(UsageError, match="results cannot be written to nosuch: No such file or directory"):
        folder.keep(KEPT, Path("nosuch"), "bench")


@pytest.mark.parametrize("text", ["", "3", "[]", "{}", "{1: 2}", "{kernel: lola, 1: 2}", "kernel: [", "\x00", b"\xff"])
def test_a_kept_configuration_that_is_none_is_named(text):
    home = made("a", text="")
    (home / "bench.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(
        UsageError, match=r"results/a/bench\.yaml (cannot be read: |holds no configuration: expected the keys of a run)"
    ):
        folder.load(home / "bench.yaml")
    with pytest.raises(UsageError, match=r"cannot be read: .*No such file"):
        folder.load(home / "nosuch.yaml")


# Who may write


def test_a_folder_that_is_held_is_refused_to_others_and_free_afterwards():
    home = Path("results/deep/a")
    with folder.held(home):
        assert (home / folder.LOCK).is_file()
        with (
            pytest.raises(
                UsageError,
                match=r"^another process is at work in results/deep/a: wait for it, or start a run of its own$",
            ),
            folder.held(home),
        ):
            raise AssertionError
    with folder.held(home):
        pass


def test_a_folder_that_cannot_be_held_is_named():
    Path("file").touch()
    with (
        pytest.raises(UsageError, match="results cannot be written to file/a: Not a directory; nothing was measured"),
        folder.held(Path("file/a")),
    ):
        raise AssertionError


def test_what_happens_while_it_is_held_comes_through():
    with pytest.raises(KeyError), folder.held(Path("results/a")):
        raise KeyError


# Files of the moment


def test_input_files_go_with_the_run_and_those_of_killed_runs_before_it():
    home = Path("results/a")
    (home / ".inputs-left").mkdir(parents=True)
    (home / ".inputs-left" / "x.npy").touch()
    (home / "kept").mkdir()
    with folder.scratch(home) as files:
        assert files.parent == home and files.name.startswith(".inputs-") and not (home / ".inputs-left").exists()
        (files / "y.npy").touch()
    assert [f.name for f in home.iterdir()] == ["kept"]
    with pytest.raises(KeyError), folder.temporary(home) as files:
        raise KeyError
    assert not files.exists()


def test_a_disk_without_room_for_them_is_told():
    Path("file").touch()
    with pytest.raises(StorageError, match="Not a directory"), folder.scratch(Path("file/a")):
        raise AssertionError
    with pytest.raises(StorageError, match="No such file"), folder.temporary(Path("nosuch")):
        raise AssertionError
