"""The pairs of a comparison: whose turn it is, what counts, what a side that breaks costs. Workers are stand-ins; the judge is real."""

from __future__ import annotations

import types
from dataclasses import replace
from pathlib import Path

import pytest
import samples
from conftest import FIXTURES
from stand_in import Pools

from fusebench import discovery
from fusebench.case_data import SETS
from fusebench.cases import make_case
from fusebench.comparison import pairs
from fusebench.comparison.pairs import Match, Side, run_pairs
from fusebench.comparison.verdicts import outcome
from fusebench.contract import Cell
from fusebench.errors import StorageError
from fusebench.records import store
from fusebench.records.record import PairRecord
from fusebench.settings import Run, Settings
from fusebench.timing.plan import Plan
from fusebench.timing.summary import Clocks
from fusebench.workers.pool import WorkerLost
from fusebench.workers.protocol import Refused, Released, TimeCell

ROOTS = [FIXTURES / "kernels"]


@pytest.fixture(scope="module")
def double():
    return discovery.find_kernels(ROOTS)["double"]


@pytest.fixture
def compared(double, tmp_path, monkeypatch):
    """A function that runs pairs of `plus` and `times` with a plan for the workers, and returns the pools and the matches."""

    def run_them(plan=lambda *_: None, count=2, rounds=2, matches=1, known=None, kernels=(None, None), commits=(None, None), seeds=(0, 0)):  # fmt: skip
        pools = Pools(plan)
        monkeypatch.setattr(pairs, "Pool", pools)
        settings = Settings("cpu", Plan(0.25), 7.0, threads=3)
        sides = tuple(
            Side(name, Run({"double": kernel or double}, ROOTS, tmp_path / f"side-{name}", settings), commit)
            for name, kernel, commit in zip("AB", kernels, commits, strict=True)
        )
        cases = [make_case(double, {"N": 50 + n}) for n in range(matches)]
        made = [
            Match(tuple(Cell(c, "torch_eager", v, s) for v, s in zip(("plus", "times"), seeds, strict=True)))
            for c in cases
        ]
        for match in made:
            match.pairs.update(known or {})
        pools.yielded = [m.id for m in run_pairs(sides, made, count, rounds, tmp_path)]
        return pools, made

    return run_them


def turns(events):
    """The sides in their order, by pair: ["ABBA", …]."""
    numbers = sorted({number for _, _, number in events})
    return ["".join(side for side, _, n in events if n == number) for number in numbers]


# Whose turn it is


def test_the_sides_take_turns_as_thue_and_morse_have_it(compared):
    pools, _ = compared(count=3, rounds=8)
    assert turns(pools.of("build")) == ["AB", "BA", "AB"], "A does not always begin"
    sequence = (
        "ABBABAAB" + "BAABABBA"
    )  # each half is the other with the letters swapped; a drift that bends falls on both alike
    swapped = sequence.translate(str.maketrans("AB", "BA"))
    timed = turns(pools.of("time"))
    assert [t[2:] for t in timed] == [sequence, swapped, sequence] and [t[:2] for t in timed] == ["BA", "AB", "BA"]


def test_the_turn_that_warms_up_does_not_count(compared):
    medians = {"A": [9.0, 1.0, 2.0, 3.0], "B": [8.0, 4.0, 5.0, 6.0]}
    plan = lambda side, number, do, turn: {"median": medians[side][turn + 1] + 10 * number} if do == "time" else None  # noqa: E731
    _, (match,) = compared(plan, rounds=3)
    assert [[[t.median for t in r.turns] for r in match.pairs[n]] for n in (0, 1)] == [
        [[1, 2, 3], [4, 5, 6]], [[11, 12, 13], [14, 15, 16]],
    ]  # fmt: skip
    assert all(side.record.timing is None for pair in match.pairs.values() for side in pair)


def test_a_later_and_a_timed_output_are_judged_in_the_first_pair(compared):
    pools, (match,) = compared(rounds=3)
    assert turns(pools.of("repeat")) == ["AB"]
    judged = [
        (number, side)
        for side, number, message, _ in pools.messages
        if isinstance(message, TimeCell) and message.folder
    ]
    assert judged == [(0, "B"), (0, "A")], "the last turn alone, which was that of B and A"
    parities = [[side.record.parity for side in match.pairs[n]] for n in (0, 1)]
    assert all(p.first and p.repeated and p.timed for p in parities[0])
    assert all(p.first and p.repeated is p.timed is None for p in parities[1])


def test_the_first_pair_that_is_not_lost_is_judged(compared):
    _, (match,) = compared(breaks("time", LOST), count=3)
    judged = {n: pair[0].record.parity for n, pair in match.pairs.items() if not pair[0].lost}
    assert [bool(judged[n].repeated and judged[n].timed) for n in (1, 2)] == [True, False]


def test_a_pairs_processes_are_up_before_anything_is_built_and_end_together(compared, tmp_path):
    pools, matches = compared(count=1, matches=2)
    sides = [(side, do) for side, do, _ in pools.events]
    assert sides[:4] == [("A", "start"), ("B", "start"), ("A", "get"), ("B", "get")]
    assert sides[-5:] == [("A", "stop"), ("B", "stop"), ("B", "leave"), ("A", "leave"), ("judges", "leave")]
    assert turns(pools.of("release")) == ["ABAB"] and [e[1] for e in pools.events].count("stop") == 2, (
        "let go of after each match"
    )
    assert pools.yielded == [m.id for m in matches]
    sides = [("cpu", ROOTS, tmp_path / f"side-{name}", None, "judges") for name in "AB"]
    assert pools.made == [("cpu", ROOTS, tmp_path, 3, None), *sides], "both sides on the cores of the judges"
    assert (tmp_path / "side-A").is_dir()
    plans = [m.plan for _, _, m, _ in pools.messages if isinstance(m, TimeCell)]
    assert {p.time_s for p in plans} == {0.25} and {t for *_, t in pools.messages} == {7.0}


def test_what_a_side_changed_in_its_process_is_on_record_and_in_the_notes(compared):
    changes = breaks("release", Released(0, ("torch threads 2 → 1",)), "B", pair=1)
    _, (match,) = compared(changes, count=2)
    assert [[side.record.changed for side in match.pairs[n]] for n in (0, 1)] == [
        [(), ()],
        [(), ("torch threads 2 → 1",)],
    ]
    assert outcome(match, 0.99, None, 0).notes[0] == "side B changed its process: torch threads 2 → 1"


def test_a_side_that_replaced_a_function_ends_the_comparison(compared):
    _, (match,) = compared(breaks("release", Released(0, (), ("time.perf_counter",)), "B"), count=2)
    assert match.end.side == "B" and match.end.record.status == "failed"
    assert "it replaced time.perf_counter" in match.end.record.reason and len(match.pairs) == 1


def test_every_pair_is_on_record_before_the_next_begins(compared, tmp_path):
    _, (match,) = compared(count=2, commits=("0123abc", None))
    lines = store.read(tmp_path, PairRecord)
    assert [(r.pair, r.side) for r in lines] == [(0, "A"), (0, "B"), (1, "A"), (1, "B")]
    assert lines == [side for number in (0, 1) for side in match.pairs[number]]
    assert lines[0].record.source.git_commit == "0123abc" != lines[1].record.source.git_commit
    assert {(r.comparison, r.ended_by, r.lost) for r in lines} == {(match.id, None, False)}
    assert match.id == "double/N=50/float32/torch_eager:plus/seed=0 | double/N=50/float32/torch_eager:times/seed=0"
    assert not list(tmp_path.glob(".inputs-*"))


def test_pairs_on_record_are_not_made_again(compared):
    _, (match,) = compared(count=1)
    pools, (again,) = compared(count=3, known=match.pairs)
    assert turns(pools.of("build")) == ["BA", "AB"], "pairs 1 and 2, each with the side that begins it"
    assert sorted(again.pairs) == [0, 1, 2] and again.pairs[0] is match.pairs[0]
    assert not compared(count=1, known=match.pairs)[0].of("start")


# What a side that breaks costs


def breaks(do, what, side="A", pair=0, turn=0):
    """A plan in which a side raises that or replies so once."""

    def plan(its, number, doing, at):
        if (its, number, doing) == (side, pair, do) and (do != "time" or at == turn):
            if isinstance(what, BaseException):
                raise what
            return what
        return None

    return plan


LOST, HUNG = WorkerLost("crashed", "exit code 7"), WorkerLost("timeout", "no answer")
FAILED = Refused("failed", "too hot")


@pytest.mark.parametrize(
    ("do", "what", "status", "reason", "lost"),
    [
        ("build", LOST, "crashed", "exit code 7", True),
        ("build", HUNG, "timeout", "no answer", True),
        ("build", FAILED, "failed", "too hot", False),
        ("build", Refused("skipped", "only on Sundays"), "skipped", "only on Sundays", False),
        ("build", Refused("wrong", "changed"), "wrong", "changed", False),
        ("repeat", LOST, "crashed", "exit code 7", True),
        ("time", LOST, "crashed", "exit code 7", True),
        ("time", FAILED, "failed", "too hot", True),
        ("time", Refused("wrong", "a timed call changed"), "wrong", "a timed call changed", False),
    ],
)
@pytest.mark.parametrize("side", "AB")
def test_what_a_side_that_is_not_ok_costs(compared, side, do, what, status, reason, lost):
    pools, (match,) = compared(breaks(do, what, side), count=2)
    pair = match.pairs[0]
    bad, other = pair["AB".index(side)], pair["BA".index(side)]
    assert (bad.record.status, bad.record.reason) == (status, reason)
    assert (other.record.status, other.record.reason) == ("skipped", f"side {side} {status}: {reason}")
    assert all(r.ended_by == side and r.lost == lost and r.turns == () for r in pair)
    assert (1 in match.pairs) == lost, "what is not right now will not be right later"
    assert match.lost == lost and match.bad == [bad] and len(match.made) == lost
    assert bool(match.end) != lost
    assert ((side, "drop", 0) in pools.events) == isinstance(what, WorkerLost)
    assert bool(bad.record.reproduce) == (status == "wrong")


def test_a_wrong_output_ends_the_comparison_with_the_way_to_see_it_again(compared, monkeypatch):
    from fusebench.case_data import CaseData

    judge = CaseData.judge
    monkeypatch.setattr(CaseData, "judge", lambda self, outputs, *a: replace(judge(self, outputs, *a), problem="NaN" if outputs[0].file.startswith("B") else ""))  # fmt: skip
    pools, (match,) = compared()
    assert match.end.side == "B" and match.end.record.reproduce.startswith("fusebench parity kernel=double")
    assert not pools.of("time") and len(match.pairs) == 1


@pytest.mark.parametrize("what", ["clocks", "bound"])
def test_a_time_that_cannot_be_ends_the_comparison_or_where_clocks_differ_its_pair(compared, monkeypatch, what):
    if what == "clocks":
        clocks = Clocks("contradicts", 1.0, 1.0, 1.0, 0.0, 0.0, "the clocks contradict each other")
        plan = lambda side, number, do, turn: (  # noqa: E731
            {"timing": {"clocks": clocks}}
            if (side, do, turn) == ("B", "time", 1) else None
        )  # fmt: skip
    else:
        from fusebench.timing import yardstick

        monkeypatch.setattr(yardstick, "bound", lambda *_: 0.5)
        plan = lambda side, number, do, turn: {"median": 0.25} if (side, do, turn) == ("B", "time", 0) else None  # noqa: E731
    _, (match,) = compared(plan)
    assert match.end.side == "B" and match.end.record.status == "implausible"
    assert match.end.lost == (what == "clocks")
    assert ("contradict" if what == "clocks" else "no such card can beat") in match.end.record.reason
    assert match.pairs[0][0].turns == match.pairs[0][1].turns == ()


def test_a_disk_that_is_full_costs_no_pair(compared, tmp_path):
    with pytest.raises(StorageError, match=r"^double/N=50/float32/torch_eager:plus/seed=0: no room$"):
        compared(breaks("time", StorageError("no room"), pair=1))
    assert [r.pair for r in store.read(tmp_path, PairRecord)] == [0, 0]


def test_one_match_that_ends_leaves_the_others(compared):
    def plan(side, number, do, turn):
        if do == "build" and number == 0 and len(builds) < 1:
            builds.append(side)
            return Refused("failed", "no")
        return None

    builds = []
    pools, (first, second) = compared(plan, count=2, matches=2)
    assert first.end and len(first.pairs) == 1 and len(second.made) == 2
    assert turns(pools.of("build")) == ["AAB", "BA"]


def pair_of(status, lost, side="A"):
    records = [samples.untimed(status=status if name == side else "ok") for name in "AB"]
    bad = None if status == "ok" else side
    return tuple(PairRecord(r, "", name, 0, (), bad, lost) for name, r in zip("AB", records, strict=True))


@pytest.mark.parametrize(
    ("statuses", "ends"),
    [
        (["lost"], False), (["lost", "lost"], True), (["ok", "lost"], False), (["ok", "lost", "lost"], True),
        (["ok", "ok", "lost", "lost"], False), (["ok", "ok", "lost", "lost", "lost"], True), (["ok", "wrong"], True), (["ok"], False),
        ([], False),
    ],
)  # fmt: skip
def test_pairs_that_are_lost_more_often_than_not_end_a_comparison(statuses, ends):
    match = Match(((), ()), {n: pair_of(s, s == "lost") for n, s in enumerate(statuses)})
    assert bool(match.end) == ends
    assert match.lost == statuses.count("lost") and len(match.made) == statuses.count("ok")


def test_what_is_not_right_ends_before_what_was_lost():
    match = Match(((), ()), {0: pair_of("crashed", True), 1: pair_of("wrong", False, "B"), 2: pair_of("timeout", True)})
    assert (match.end.record.status, match.end.side) == ("wrong", "B")
    del match.pairs[1]
    assert match.end.record.status == "timeout", "the last one tells"


# What can run but not be compared


def kernel_with(double, text):
    """The kernel with a kernel.py of its own, such as an old commit's."""
    module = types.ModuleType("kernel")
    exec(text, module.__dict__)
    return replace(double, mathematics=discovery.normalised(module))


SOURCE = (FIXTURES / "kernels" / "double" / "kernel.py").read_text()


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("", "", True),
        ("rng.standard_normal(", "-rng.standard_normal(", False),
        ('{"x": ', '{"z": ', False),
        ("dtype=np.float32)", "dtype=np.float32).view(np.int32)", False),
        ("dtype=np.float32)", "dtype=np.float32)[:49]", False),
    ],
)
def test_two_revisions_have_to_make_the_same_inputs(compared, double, old, new, same):
    other = kernel_with(double, SOURCE.replace(old, new) if old else SOURCE)
    pools, (match,) = compared(kernels=(None, other), count=1)
    assert bool(match.made) == same
    if not same:
        bad = match.pairs[0][0]
        reason = "kernel.py of the two revisions makes different inputs: not the same work"
        assert (bad.record.status, bad.record.reason) == ("skipped", reason)
        assert match.end is bad and not pools.of("build")


def test_the_same_nan_is_the_same_input(compared, double):
    nan = SOURCE.replace("dtype=np.float32)", "dtype=np.float32) * np.float32('nan')")
    _, (match,) = compared(kernels=(kernel_with(double, nan), kernel_with(double, nan)), count=1)
    assert match.made


def test_one_input_of_several_that_differs_is_enough(compared, double):
    two = SOURCE.replace('{"x": ', '{"w": np.ones(2, np.float32), "x": ').replace("(case, r, x)", "(case, r, w, x)")
    other = two.replace("rng.standard_normal(", "-rng.standard_normal(")
    _, (match,) = compared(kernels=(kernel_with(double, two), kernel_with(double, other)), count=1)
    assert not match.made and match.pairs[0][0].record.status == "skipped"


def test_sides_with_seeds_of_their_own_are_meant_to_differ(compared, double):
    _, (match,) = compared(seeds=(0, 1), kernels=(None, kernel_with(double, SOURCE)), count=1)
    assert match.made


def test_inputs_are_made_once_for_all_pairs(compared, double):
    made, mathematics = [], double.mathematics
    counted = replace(mathematics, inputs=lambda case, rng: made.append(1) or mathematics.inputs(case, rng))
    kernel = replace(double, mathematics=counted)
    compared(count=3, kernels=(kernel, kernel))
    assert len(made) == SETS


def test_a_file_that_changes_between_the_pairs_ends_the_comparison(compared, double, tmp_path):
    ours = double.implementations["torch_eager"]
    file = tmp_path / "double" / "torch_eager.py"
    file.parent.mkdir()
    file.write_text("as it was")

    def plan(side, number, do, turn):
        if (number, do) == (1, "time"):
            file.write_text("another")

    theirs = replace(double, implementations={"torch_eager": replace(ours, file=file)})
    _, (match,) = compared(plan, count=4, kernels=(None, theirs))
    assert len(match.made) == 2 and sorted(match.pairs) == [0, 1, 2]
    assert (match.end.side, match.end.record.status) == ("B", "failed")
    reason = "double/torch_eager.py, of which torch_eager:times is made, was changed between the pairs"
    assert match.end.record.reason == reason


def test_what_is_interpreted_is_not_timed(compared, double):
    theirs = {"torch_eager": replace(double.implementations["torch_eager"], without_gpu="interpreted")}
    pools, (match,) = compared(kernels=(None, replace(double, implementations=theirs)))
    assert (match.end.side, match.end.record.status) == ("B", "skipped")
    assert match.end.record.reason == "interpreted on the CPU: never timed"
    assert turns(pools.of("build")) == ["A"] and not pools.of("time")


def test_the_records_of_a_side_whose_file_is_gone_say_so(compared, double, tmp_path):
    theirs = {"torch_eager": replace(double.implementations["torch_eager"], file=Path("/nowhere/x.py"))}
    _, (match,) = compared(kernels=(None, replace(double, implementations=theirs)), commits=(None, "abc"), count=1)
    assert match.pairs[0][1].record.source is None and match.made
