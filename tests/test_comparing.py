"""The command `compare` on stand-ins for its workers: what is measured, kept and printed, its exit code, what is refused, revisions."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
import yaml
from conftest import FIXTURES
from samples import untimed
from stand_in import Pools
from test_verdicts import KERNEL, A, B, match_of

from fusebench import discovery, provenance
from fusebench.cli import main
from fusebench.commands import compare
from fusebench.comparison import pairs, revision, sides, verdicts
from fusebench.comparison.pairs import Match
from fusebench.configuration import jobs, schema, values
from fusebench.errors import StorageError, UsageError
from fusebench.records import store
from fusebench.records.record import PairRecord
from fusebench.workers.pool import WorkerLost
from fusebench.workers.protocol import Refused, TimeCell


@pytest.fixture(scope="module")
def double():
    return discovery.find_kernels([FIXTURES / "kernels"])["double"]


@pytest.fixture
def planned(double):
    """A function from overrides of `compare A B` to its sources and its plan, without a command line."""
    kernels = {"double": double}
    schema.register("compare", kernels)

    def plan(*lines, a="torch_eager:plus", b="torch_eager:plus", commits=(None, None)):
        requests = [sides.parse(name, text) for name, text in zip("AB", (a, b), strict=True)]
        sources = [compare.SideKernels(r, kernels, [], c) for r, c in zip(requests, commits, strict=True)]
        return sources, compare._comparison(sources, [*KERNEL, *lines], ())

    return plan


@pytest.fixture(scope="module")
def five(double):
    """The sources and the plan of five pairs of plus and times, one round each."""
    schema.register("compare", {"double": double})
    requests = [sides.parse(*side) for side in (("A", "torch_eager:plus"), ("B", "torch_eager:times"))]
    sources = [compare.SideKernels(r, {"double": double}, [FIXTURES / "kernels"], None) for r in requests]
    return sources, compare._comparison(sources, [*KERNEL, "pairs=5", "rounds=1"], ())


def slower(by, status="ok"):
    """A plan for the workers in which B takes so many times as long, or has another status."""

    def plan(side, number, do, turn):
        if side == "B" and do == "time":
            return {"median": by + 0.001 * number}
        return Refused(status, "planted") if (side, do) == ("B", "build") and status != "ok" else None

    return plan


@pytest.fixture
def measured(five, tmp_path, monkeypatch, capsys):
    """A function that measures the plan of five pairs on stand-ins for the workers: exit code, stdout, stderr."""

    def measure(workers, **changes):
        sources, plan = five
        plan = replace(plan, matches=[Match(m.cells) for m in plan.matches], **changes)
        measure.pools = Pools(workers)
        monkeypatch.setattr(pairs, "Pool", measure.pools)
        code = compare._measure(sources, plan, tmp_path)
        return code, *capsys.readouterr()

    return measure


def outcomes(home):
    return store.read(home, verdicts.Outcome, verdicts.FILE)


@pytest.mark.parametrize(
    ("status", "limit", "code", "told"),
    [
        ("ok", None, 0, ""),
        ("ok", 0.3, 0, ""),
        ("ok", 0.1, 1, ""),
        ("skipped", None, 0, ""),
        ("skipped", 0.0, 1, "fusebench: nothing was compared, so that fail_slower has nothing to pass\n"),
        ("wrong", None, 1, ""),
        ("failed", 0.3, 1, "fusebench: nothing was compared, so that fail_slower has nothing to pass\n"),
    ],
)
def test_the_exit_code_follows_from_the_comparisons(measured, status, limit, code, told):
    found, _, err = measured(slower(1.2, status), fail_slower=limit)
    assert (found, err) == (code, told)


def test_what_was_measured_stands_in_the_footer(measured, tmp_path):
    _, out, _ = measured(slower(1.2))
    assert "\nA  torch_eager:plus\nB  torch_eager:times\n" in out
    wall, kept = out.splitlines()[-2:]
    assert wall.startswith("wall time ") and kept == f"records: {tmp_path}/records.jsonl, comparison.jsonl"
    assert outcomes(tmp_path)[0].estimate.ratios == pytest.approx([1.2, 1.201, 1.202, 1.203, 1.204])


def test_ctrl_c_keeps_the_pairs(measured, tmp_path):
    def plan(side, number, do, turn):
        if number == 2:
            raise KeyboardInterrupt

    code, out, err = measured(plan)
    assert (
        code == 130 and err == f"interrupted: 2 of 5 pairs on record; to go on: fusebench compare resume={tmp_path}\n"
    )
    assert outcomes(tmp_path)[0].pairs == 2 and "B ÷ A" in out


def test_a_full_disk_keeps_the_pairs_and_the_lines_of_before(measured, tmp_path):
    def plan(side, number, do, turn):
        if number == 1:
            raise StorageError("no room")

    (tmp_path / "comparison.jsonl").write_text("of before")
    kept = f"double/odd/float32/torch_eager:times/seed=0: no room; 1 of 5 pairs on record; to go on: fusebench compare resume={tmp_path}"
    with pytest.raises(StorageError) as caught:
        measured(plan)
    assert str(caught.value) == kept and (tmp_path / "comparison.jsonl").read_text() == "of before"


def test_only_whole_pairs_are_gone_on_from(measured, five, tmp_path):
    measured(slower(1.2), pairs=2)
    lines = (tmp_path / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "records.jsonl").write_text("".join(lines[:3]))
    (match,) = (Match(m.cells) for m in five[1].matches)
    other = Match(match.cells[::-1])
    compare.add_recorded(tmp_path, [match, other])
    assert list(match.pairs) == [0] and [r.side for r in match.pairs[0]] == ["A", "B"] and not other.pairs


def test_pairs_that_were_lost_are_gone_on_from_as_well(measured, five, tmp_path):
    def plan(side, number, do, turn):
        if number == 1 and side == "A":
            raise WorkerLost("crashed", "exit code 7")

    measured(plan, pairs=3)
    (match,) = (Match(m.cells) for m in five[1].matches)
    compare.add_recorded(tmp_path, [match])
    assert (sorted(match.pairs), match.lost, len(match.made)) == ([0, 1, 2], 1, 2)


@pytest.mark.parametrize("name", ["double/torch_eager.py", "double/kernel.py"])
@pytest.mark.parametrize("side", [0, 1])
def test_an_implementation_that_has_changed_needs_a_comparison_of_its_own(five, double, name, side):
    sources, plan = five
    source = provenance.source_of(double.implementations["torch_eager"].file, double.sources)
    match = Match(plan.matches[0].cells)
    pair = [PairRecord(untimed(source=source), match.id, name, 0) for name in "AB"]
    match.pairs[0] = tuple(pair)
    compare._check_unchanged(sources, [match])
    pair[side] = replace(pair[side], record=untimed(source=provenance.with_files(source, {name: "other"})))
    match.pairs[0] = tuple(pair)
    with pytest.raises(
        UsageError, match=rf"^{name}, of which torch_eager:\w+ is made, has changed since the recorded pairs"
    ):
        compare._check_unchanged(sources, [match])


@pytest.fixture
def command(tmp_path, monkeypatch, capfd):
    """A function that runs `compare` in a folder of its own, on stand-ins for the workers: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(discovery, "HOME", FIXTURES / "kernels")

    def run(*arguments, plan=lambda *_: None):
        run.pools = Pools(plan)
        monkeypatch.setattr(pairs, "Pool", run.pools)
        code = main(["compare", *arguments])
        return code, *capfd.readouterr()

    return run


def test_a_comparison_is_kept_shown_and_gone_on_with(command, tmp_path, monkeypatch):
    (tmp_path / "it's [mine].csv").write_text("N\n7\n")
    (tmp_path / "more").symlink_to(FIXTURES / "planted")
    code, out, err = command(
        "torch_eager:plus", "torch_eager:times", "kernel=double", "device=auto", 'shapes="it\'s [mine].csv"', "path=more",
        "pairs=5", "rounds=2", "fail_slower=10%", "seed=[3,4]", "time_s=0.125", "timeout_s=9", plan=slower(1.2),
    )  # fmt: skip
    (home,) = (tmp_path / "results").iterdir()
    assert code == 1 and err == "" and "all 2 comparisons: slower by at least" in out and "10.0% was allowed" in out
    assert [o.cases[0] for o in outcomes(home)] == ["odd/float32 seed=3", "odd/float32 seed=4"]
    assert len(store.read(home, PairRecord)) == 20
    timed = [m for _, _, m, _ in command.pools.messages if isinstance(m, TimeCell)]
    assert {m.plan.time_s for m in timed} == {0.125} and {t for *_, t in command.pools.messages} == {9.0}
    kept = yaml.safe_load((home / "compare.yaml").read_text())
    assert kept == {
        "sides": ["torch_eager:plus", "torch_eager:times"], "path": str(FIXTURES / "planted"), "shapes": str(tmp_path / "it's [mine].csv"),
        "overrides": ["kernel=double", "pairs=5", "rounds=2", "fail_slower=10%", "seed=[3,4]", "time_s=0.125", "timeout_s=9",
                      f"device={values.resolve_device('auto')}"],
    }  # fmt: skip

    # from elsewhere, with a pair more, another limit and another confidence
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, out, _ = command(f"resume={home}", "pairs=6", "fail_slower=null", "confidence=0.9", plan=slower(1.2))
    assert code == 0 and "90 % interval" in out and "allowed" not in out
    assert [o.pairs for o in outcomes(home)] == [6, 6], "the new lines stand in the place of the old ones"
    assert {number for _, do, number in command.pools.events if do == "build"} == {0}, (
        "one pair of processes was missing"
    )
    assert sorted(r.pair for r in store.read(home, PairRecord)) == sorted([0, 1, 2, 3, 4, 5] * 4)
    assert yaml.safe_load((home / "compare.yaml").read_text()) == kept


def test_a_sweep_of_comparisons_goes_on_with_all_its_jobs(command, tmp_path):
    """The second of two jobs was interrupted in its fourth pair, the ninth of all."""

    def interrupted(side, number, do, turn):
        if number == 8:
            raise KeyboardInterrupt

    words = (
        "torch_eager:plus",
        "torch_eager:times",
        "kernel=double",
        "case=odd",
        "seed=3,4",
        "pairs=5",
        "rounds=2",
        "-m",
    )
    code, _, err = command(*words, plan=interrupted)
    (home,) = (tmp_path / "results").iterdir()
    assert code == 130
    assert err == f"interrupted: 2 of 2 jobs with records; to go on: fusebench compare resume={home}\n"
    code, _, _ = command("resume=latest", "pairs=6")
    assert code == 0 and [o.pairs for job in "01" for o in outcomes(home / job)] == [6, 6]
    assert len([e for e in command.pools.events if e[1] == "build"]) == 2 * (1 + 3)
    assert yaml.safe_load((home / "1" / "compare.yaml").read_text())["overrides"][-2:] == [
        "rounds=2",
        f"device={values.resolve_device('auto')}",
    ]


def test_what_is_said_of_all_comparisons_is_said_once(command):
    sides = ("torch_eager:plus", "torch_eager:times", "kernel=double", "case=odd", "pairs=3", "rounds=2")
    _, out, _ = command(*sides, "seed=[3,4,5]")
    assert out.count("an interval needs 5 pairs") == 1 and "all 3 comparisons: an interval needs 5 pairs" in out


def test_what_is_said_of_some_comparisons_names_them(double, capsys):
    made = [verdicts.outcome(match_of(double, A[:n], B[:n]), 0.99, None, 0) for n in (3, 5)]
    verdicts.show([made[0], made[1], made[0]], [])
    name = "double odd/float32 torch_eager:plus | torch_eager:times"
    assert f"{name}; {name}: an interval needs 5 pairs" in " ".join(capsys.readouterr().out.split())


def test_sizes_by_name_and_from_a_file_are_refused_on_either_side(command, tmp_path):
    (tmp_path / "mine.csv").write_text("N\n7\n")
    code, _, err = command("torch_eager:plus", "torch_eager:times shapes=mine.csv", "kernel=double", "case=odd")
    assert code == 2 and "shapes=mine.csv has the sizes of all cases: leave out case=, or shapes=" in err


@pytest.fixture
def resumed(tmp_path, monkeypatch):
    """A function from what is kept, and the arguments beside `resume=`, to what the comparison goes on with."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "mine").mkdir(parents=True)
    file = tmp_path / "results" / "mine" / "compare.yaml"

    def resume(*arguments, **changes):
        kept = {"sides": ["a", "b"], "overrides": ["kernel=double", "pairs=5", "seed=1"], "path": None, "shapes": None}
        file.write_text(yaml.safe_dump(kept | changes))
        return compare._resumed(arguments)

    return resume


def test_a_comparison_goes_on_as_it_was(resumed, tmp_path):
    file = tmp_path / "results" / "mine" / "compare.yaml"
    words, lines, found = resumed("resume=mine", "pairs=9", "resamples=3")
    assert words == ["a", "b"] and found.resolve() == file
    assert lines == ["kernel=double", "seed=1", "resume=mine", "pairs=9", "resamples=3"]
    words, lines, _ = resumed("resume=latest", "resume=mine", path=["/it's [x]", "/b"], shapes="/c.csv")
    assert words == ["a", "b"] and lines[3:5] == ['path=["/it\'s [x]", "/b"]', 'shapes="/c.csv"']
    assert resumed("resume=null", "kernel=double") is None and resumed("a", "b") is None


@pytest.mark.parametrize(
    ("arguments", "left_out"),
    [
        (["resume=mine", "kernel=lola", "pairs=3"], "kernel=lola"),
        (["flax", "triton dtype=float16", "resume=mine"], "flax 'triton dtype=float16'"),
        (["resume=mine", "time_s=1", "-m"], "time_s=1 --multirun"),
    ],
)
def test_what_cannot_be_set_anew_is_named(resumed, arguments, left_out):
    with pytest.raises(UsageError) as caught:
        resumed(*arguments)
    only = "only pairs, confidence, fail_slower, resamples can be set anew"
    assert str(caught.value) == f"resume=mine goes on with that comparison as it was: leave out {left_out}; {only}"


@pytest.mark.parametrize(("key", "value"), [("sides", "plus"), ("sides", [1, "x"]), ("overrides", None)])
def test_a_kept_comparison_that_is_none_is_refused(resumed, key, value):
    with pytest.raises(UsageError) as caught:
        resumed("resume=mine", **{key: value})
    assert f"is no configuration of this command: {key} is {value!r}" in str(caught.value)


# What is asked of it


@pytest.mark.parametrize(
    ("value", "share"),
    [("3%", 0.03), (0.03, 0.03), ("0.5", 0.5), (0, 0.0), ("0%", 0.0), ("99.9%", 0.999), (True, None), ("100%", None), (1, None), (-0.1, None), ("nan", None), ("%", None)],
)  # fmt: skip
def test_a_share_is_a_number_or_percent(value, share):
    if share is None:
        with pytest.raises(UsageError, match=f"^key is {value!r}: expected a share$"):
            compare._share("key", value, "a share")
    else:
        assert compare._share("key", value, "a share") == pytest.approx(share)


def test_a_plan_is_what_was_asked_for(planned):
    _, plan = planned("pairs=7", "rounds=3", "confidence=95%", "fail_slower=4%", b="torch_eager:times seed=5")
    assert (plan.device, plan.pairs, plan.rounds, plan.confidence, plan.fail_slower, plan.resamples) == (
        "cpu",
        7,
        3,
        0.95,
        0.04,
        0,
    )
    assert [(m.cells[0].label, m.cells[1].label, m.cells[1].seed) for m in plan.matches] == [
        ("torch_eager:plus", "torch_eager:times", 5)
    ]
    assert [own["seed"] for own in plan.chosen] == [0, 5]
    _, plan = planned()
    assert (plan.pairs, plan.rounds, plan.confidence, plan.fail_slower) == (10, 16, 0.99, None)


@pytest.fixture
def composed(planned, five, monkeypatch):
    """`planned` from the keys themselves: to compose a configuration takes a quarter of a second."""
    whole = five[1].chosen[0] | {"pairs": 10, "rounds": 16}

    def plan(keys, **options):
        monkeypatch.setattr(jobs, "compose_job", lambda *_: whole | keys)
        return planned(**options)

    return plan


@pytest.mark.parametrize(
    ("keys", "options", "named"),
    [
        ({"confidence": 0.49}, {}, "confidence is 0.49: expected at least 0.5 and less than 1"),
        ({"confidence": 1}, {}, "confidence is 1: expected a share such as 0.99"),
        ({"fail_slower": 3}, {}, "fail_slower is 3: expected a share such as 3% or 0.03"),
        ({"pairs": 0}, {}, "pairs is 0: expected a positive integer"),
        ({"rounds": "many"}, {}, "rounds is 'many': expected a positive integer"),
        ({"resamples": -1}, {}, "resamples is -1: expected an integer of 0 or more"),
        ({"resamples": 5, "pairs": 29}, {}, "expected a side against itself and pairs=30 or more"),
        ({"resamples": 5, "pairs": 30, "implementation": "torch_eager"}, {"commits": (None, "abc")}, "compare torch_eager torch_eager pairs=30 resamples=5"),
        ({}, {"a": "torch_eager shape.Q=3"}, "side A (torch_eager shape.Q=3): unknown dimension 'Q'"),
        ({"kernel": "nosuch"}, {"b": "torch_eager"}, "side A (torch_eager:plus): unknown kernel 'nosuch'"),
        ({"worker": {"inline": True}}, {}, "worker=inline: compare needs processes of its own for each side; worker=process"),
        ({"time_s": 0.0}, {}, "time_s is 0.0: expected a number of seconds above 0"),
        ({"threads": 1000}, {}, "threads is 1000"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_before_anything_runs(composed, keys, options, named):
    with pytest.raises(UsageError) as caught:
        composed(keys, **options)
    assert named in str(caught.value)


def test_resamples_are_of_a_side_against_itself(planned):
    with pytest.raises(UsageError, match="resamples=5: expected a side against itself"):
        planned("resamples=5", "pairs=30", b="torch_eager:times")


@pytest.mark.parametrize("keys", [{"confidence": 0.5}, {"resamples": 5, "pairs": 30}, {"resamples": 0, "pairs": 1}])
def test_what_just_can_be_done_is(composed, keys):
    composed(keys | {"implementation": "torch_eager:plus"})


def test_how_a_side_is_run_is_its_own_settings(composed):
    python = {"inline": False, "python": {"torch": "python3"}}
    keys = {"time_s": 0.25, "timeout_s": 6.0, "threads": 1, "worker": python, "implementation": "torch_eager:plus"}
    _, plan = composed(keys)
    settings = values.settings(plan.chosen[0])
    assert (settings.device, settings.plan.time_s, settings.plan.regime, settings.timeout_s, settings.threads) == (
        "cpu",
        0.25,
        "isolated",
        6,
        1,
    )
    assert settings.pythons == {"torch": "python3"} and not settings.inline


# Revisions


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A repository of two commits, with kernels in a/ and b/, and what asks git there."""
    home = tmp_path_factory.mktemp("checkout").resolve()

    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
        return subprocess.run(
            ["git", "-C", str(home), *identity, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    for number in (1, 2):
        for name in ("a", "b") if number == 2 else ("a",):
            (home / name).mkdir(exist_ok=True)
            (home / name / "kernel.py").write_text(f"{name}{number}")
        git("add", ".")
        git("commit", "-qm", f"number {number}")
    (home / "a" / "kernel.py").write_text("not committed")
    return home, git


def test_a_revision_is_a_commit_of_the_first_folder(checkout, monkeypatch, tmp_path):
    home, git = checkout
    assert revision.repository([home / "a", tmp_path]) == home
    monkeypatch.setattr(discovery, "HOME", home / "b")
    assert revision.repository([]) == home
    assert revision.resolve(home, "HEAD~1") == git("rev-parse", "HEAD~1") and len(revision.resolve(home, "main")) == 40
    with pytest.raises(
        UsageError, match=r"is in no git repository, so that it has no revisions; @\. is the working tree"
    ):
        revision.repository([tmp_path])
    for wrong in ("nosuch", "--help", "HEAD:a", "a\0b"):
        with pytest.raises(
            UsageError, match=r"unknown revision .* expected a branch, tag or commit, such as @HEAD~1, or @\."
        ):
            revision.resolve(home, wrong)


def test_a_commits_folders_stand_in_the_place_of_the_working_trees(checkout, tmp_path):
    home, git = checkout
    inside, outside = tmp_path / "copy", tmp_path / "outside"
    inside.mkdir()
    found = revision.export(home, git("rev-parse", "HEAD"), [home / "a", outside, home / "b"], inside)
    assert found == [inside / "a", outside, inside / "b"]
    assert [(inside / name / "kernel.py").read_text() for name in "ab"] == ["a2", "b2"]
    assert (home / "a" / "kernel.py").read_text() == "not committed"
    with pytest.raises(UsageError, match=f"^revision {git('rev-parse', 'HEAD~1')[:10]} has no folder b$"):
        revision.export(home, git("rev-parse", "HEAD~1"), [home / "b"], inside)


def test_without_git_there_are_no_revisions(checkout, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="no git repository"):
        revision.repository([checkout[0]])
