"""tuned.json: which entry a case takes, when none, and what the record says of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from conftest import FIXTURES

from fusebench import discovery, sources, tuned
from fusebench.cases import make_case
from fusebench.contract import Case, Device
from fusebench.errors import UsageError
from fusebench.tuned import Entry
from fusebench.workers import configs, protocol

CASE = Case("lola", {"M": 1024, "K": 1024, "N": 4096}, "float16", "ieee", {"w_layout": "kn"})


def entry(config=None, M=1024, **changed):
    made = Entry(
        "triton",
        "multirow",
        "a card",
        "float16",
        "ieee",
        {**CASE.sizes, "M": M},
        CASE.options,
        config or {"m": M},
        1.0,
        2.0,
    )
    return replace(made, **changed)


def found(entries, case=CASE, implementation="triton", variant="multirow", device="a card"):
    one = tuned.find(entries, case, implementation, variant, device)
    return one and one.config["m"]


def test_the_sizes_themselves_go_before_near_ones():
    assert found([entry(M=1000), entry(M=1024), entry(M=1025)]) == 1024


def test_the_nearest_is_by_octaves_and_not_by_differences():
    assert found([entry(M=728), entry(M=1400)]) == 1400, "1400 is 0.45 octaves away, 728 is 0.49"


def test_of_two_that_are_equally_near_the_larger_is_taken():
    case, pair = replace(CASE, sizes={**CASE.sizes, "M": 960}), [entry(M=768), entry(M=1200)]
    assert found(pair, case) == found(pair[::-1], case) == 1200


# 1024 · √2 is 1448.2, 1024 ÷ √2 is 724.1
@pytest.mark.parametrize(("M", "taken"), [(1448, 1448), (728, 728), (1456, None), (720, None)])
def test_a_size_that_differs_by_more_than_the_root_of_two_is_too_far(M, taken):
    assert found([entry(M=M)]) == taken


def test_each_dimension_may_differ_by_as_much():
    assert found([entry(M=1400, sizes={"M": 1400, "K": 1400, "N": 5600})]) == 1400, "1.36 octaves together"


@pytest.mark.parametrize(("M", "taken"), [(1032, 1032), (1028, None), (1023, None)])
def test_rows_that_begin_anywhere_say_nothing_of_whole_vectors(M, taken):
    assert found([entry(M=M)]) == taken


def test_whole_vectors_say_nothing_of_rows_that_begin_anywhere():
    assert found([entry(M=1024)], replace(CASE, sizes={**CASE.sizes, "M": 1028})) is None


def test_octaves_of_all_dimensions_are_added():
    both = entry({"m": 1}, sizes={"M": 1280, "K": 1280, "N": 4096})
    assert found([both, entry({"m": 2}, M=1440)]) == 2


@pytest.mark.parametrize(
    "changed",
    [{"dtype": "bfloat16"}, {"precision": "tf32"}, {"options": {"w_layout": "nk"}}, {"device": "another"}, {"variant": "row"},
     {"implementation": "jax_triton"}, {"sizes": {"M": 1024}}, {"mode": "backward"}],
)  # fmt: skip
def test_an_entry_of_anything_else_is_none(changed):
    assert found([entry(**changed)]) is None


def test_entries_replace_those_of_the_same_key_and_stand_a_line_each(tmp_path):
    tuned.write(tmp_path, [entry(), entry(M=2048)])
    tuned.write(tmp_path, [entry({"m": 7}), entry(dtype="bfloat16")])
    kept = tuned.read(tmp_path)
    assert {(e.dtype, e.sizes["M"]): e.config["m"] for e in kept} == {
        ("float16", 1024): 7, ("float16", 2048): 2048, ("bfloat16", 1024): 1024
    }  # fmt: skip
    text = (tmp_path / tuned.FILE).read_text()
    assert text.count('\n{"implementation"') == 3 and len(json.loads(text)) == 1, "their files are the same"
    tuned.write(tmp_path, [])
    assert (tmp_path / tuned.FILE).read_text() == text and [f.name for f in tmp_path.iterdir()] == [tuned.FILE]


def test_a_folder_without_a_file_has_no_entries(tmp_path):
    assert tuned.read(tmp_path) == []


def test_entries_of_one_implementation_at_one_time_have_their_files_in_common(tmp_path):
    """An entry that was tuned after a change has the files as they are then; the others stay stale."""
    old, new = {"b.cu": "1", "a.py": "2"}, {"a.py": "3", "b.cu": "1"}
    tuned.write(tmp_path, [entry(files=old), entry(M=2048, files=old), entry(M=512, files=old)])
    tuned.write(tmp_path, [entry({"m": 7}, M=2048, files=new)])
    assert {e.sizes["M"]: e.files for e in tuned.read(tmp_path)} == {512: old, 1024: old, 2048: new}
    groups = json.loads((tmp_path / tuned.FILE).read_text())
    assert sorted((g["files"]["a.py"], len(g["entries"])) for g in groups) == [("2", 2), ("3", 1)]


@pytest.mark.parametrize("text", ["", "{", "{}", '[{"variant": "row"}]', "[3]", '[{"files": {}}]'])
def test_a_file_that_is_none_is_named_and_left_alone(tmp_path, text):
    (tmp_path / tuned.FILE).write_text(text)
    with pytest.raises(UsageError, match=r"tuned\.json cannot be read: .*; repair it, or remove it and tune again"):
        tuned.read(tmp_path)


# What a worker makes of it


@pytest.fixture
def choose(tmp_path):
    """A function from entries and what is asked for to the choice of the planted implementation, for N = 100."""
    folder = tmp_path / "double"
    folder.mkdir()
    shutil.copy(FIXTURES / "kernels" / "double" / "kernel.py", folder)
    shutil.copy(FIXTURES / "planted_configs" / "double" / "torch_planted.py", folder)
    kernel = discovery.find_kernels([tmp_path])["double"]
    module = discovery.load_implementation("double", "torch_planted")
    case, implementation = make_case(kernel, "small"), kernel.implementations["torch_planted"]
    files = {"double/torch_planted.py": sources.digest(folder / "torch_planted.py")}

    def chosen(config, asked=None, take=True, multiprocessors=0, **changed):
        made = Entry("torch_planted", "default", "cpu", "float32", "ieee", {"N": 100}, {}, config, 1.0, 2.0, files)
        (folder / tuned.FILE).unlink(missing_ok=True)
        tuned.write(folder, [replace(made, **changed)])
        device = Device("cpu", "cpu", multiprocessors=multiprocessors)
        return configs.choose(module, implementation, case, "default", device, asked or {}, take)

    chosen.folder, chosen.module, chosen.implementation, chosen.case = folder, module, implementation, case
    return chosen


OTHER = {"NUMBER": 0, "how": "right"}
OWN = {"NUMBER": 2, "how": "right"}


@pytest.mark.parametrize(
    ("multiprocessors", "tuned_at", "origin"),
    [
        (84, 84, "default"),  # one full round where it was tuned; at 100 a second round for 20 blocks
        (51, 102, "tuned"),  # two rounds, both full
        (63, 126, "default"),  # 100 of 126 places: 79 %
        (62, 124, "tuned"),  # 100 of 124: 81 %
        (80, 90, "tuned"),  # it idled as much where it was tuned
        (80, 100, "tuned"),  # tuned at this size: that was measured
        (0, 84, "tuned"),  # of a device that does not say how many it has
    ],
)
def test_one_whose_blocks_leave_multiprocessors_idle_here_is_passed_over(
    choose, monkeypatch, multiprocessors, tuned_at, origin
):
    grids = lambda case, variant, device, config: [SimpleNamespace(grid=(case.sizes["N"], 1))]  # noqa: E731
    monkeypatch.setattr(choose.module, "launches", grids, raising=False)
    assert choose(OTHER, sizes={"N": tuned_at}, multiprocessors=multiprocessors).origin == origin


@pytest.mark.parametrize(("tuned_at", "origin"), [(84, "default"), (92, "tuned")])
def test_of_a_persistent_grid_which_is_always_full_its_tiles_are_counted(choose, monkeypatch, tuned_at, origin):
    described = lambda case, *_: [SimpleNamespace(grid=9), SimpleNamespace(grid=84, tiles=case.sizes["N"])]  # noqa: E731
    monkeypatch.setattr(choose.module, "launches", described, raising=False)
    assert choose(OTHER, sizes={"N": tuned_at}, multiprocessors=84).origin == origin


def test_behind_one_that_is_passed_over_the_next_is_taken():
    nearest, next_one = entry(M=1000), entry(M=800)
    taken = tuned.find([next_one, nearest], CASE, "triton", "multirow", "a card", lambda one: one is not nearest)
    assert taken is next_one


def test_a_tuned_config_is_taken(choose):
    assert choose(OTHER) == configs.Choice(OTHER, "tuned")


def test_that_of_another_size_says_so(choose):
    assert choose(OTHER, sizes={"N": 84}) == configs.Choice(OTHER, "tuned", "tuned at N=84")


def test_a_default_that_nothing_beat_is_the_default(choose):
    assert choose({}) == configs.Choice(OWN, "default")


def test_one_that_is_set_stands_over_the_default_and_not_over_the_tuned_one(choose):
    assert choose({"NUMBER": 0, "how": "wrong"}, {"NUMBER": 3}) == configs.Choice({"NUMBER": 3, "how": "right"}, "set")


def test_tuned_false_takes_none(choose):
    assert choose(OTHER, take=False) == configs.Choice(OWN, "default")


def test_a_stale_entry_is_refused_aloud(choose):
    refused = choose(OTHER, files={"double/torch_planted.py": "0" * 64})
    said = "the default, because tuned.json is stale: double/torch_planted.py has changed since; tune it again"
    assert refused == configs.Choice(OWN, "default", said)


def test_one_of_a_file_that_is_gone_is_stale_too(choose):
    assert "is stale: double/_gone.py has changed since" in choose(OTHER, files={"double/_gone.py": "0" * 64}).note


def test_one_with_other_tunables_is_refused_aloud(choose):
    assert choose({"NUMBER": 0}).note == "the default, because tuned.json has NUMBER, and this case NUMBER, how"


def test_one_that_does_not_fit_here_is_refused_aloud(choose):
    said = choose({"NUMBER": 0, "how": "misfit"}).note
    assert said == "the default, because the tuned config does not fit: it says so itself (NUMBER=0, how=misfit)"


def test_a_damaged_file_costs_nothing_but_the_tuned_config(choose):
    choose(OTHER)
    (choose.folder / tuned.FILE).write_text("{")
    choice = configs.choose(
        choose.module, choose.implementation, choose.case, "default", Device("cpu", "cpu"), {}, True
    )
    assert choice.config == OWN and choice.note.startswith("the default, because ") and "cannot be read" in choice.note


# Which configs fit


def asked(choose, most=100, seed=5, **space):
    question = protocol.AskFits(choose.case, "torch_planted", "default", space, most, seed=seed)
    return configs.fitting(choose.module, choose.implementation, question, Device("cpu", "cpu"))


def test_what_fits_and_what_does_not_comes_with_the_reason(choose):
    answer = asked(choose, NUMBER=(0, 1), how=("right", "misfit"))
    assert answer.default == OWN and answer.total == 4
    assert answer.fitting == ({"NUMBER": 0, "how": "right"}, {"NUMBER": 1, "how": "right"})
    assert answer.misfits == tuple(({"NUMBER": n, "how": "misfit"}, "it says so itself") for n in (0, 1))


def test_a_tunable_that_the_case_has_no_use_for_is_left_out_of_the_space(choose):
    answer = asked(choose, NUMBER=(0, 1), BLOCK=(1, 2, 3))
    assert answer.space == {"NUMBER": (0, 1)} and [dict(c) for c in answer.fitting] == [
        {"NUMBER": 0, "how": "right"},
        {"NUMBER": 1, "how": "right"},
    ]


def test_of_a_large_space_different_configs_are_drawn(choose):
    answer = asked(choose, most=50, NUMBER=tuple(range(5000)), how=("right", "wrong"))
    assert answer.total == 10_000 and len({tuple(c.items()) for c in answer.fitting}) == 50
    assert asked(choose, most=50, NUMBER=tuple(range(5000)), how=("right", "wrong")) == answer, "by the seed"
    assert asked(choose, most=50, seed=6, NUMBER=tuple(range(5000)), how=("right", "wrong")).fitting != answer.fitting


def test_a_space_of_nothing_that_the_case_uses_is_refused(choose):
    assert asked(choose, BLOCK=(1, 2)).reason == "this case has no use for a tunable of the space"


H200 = Device("cuda", "NVIDIA H200", (9, 0), 132)
COMMITTED = [
    pytest.param(kernel, one, id=f"{kernel.name} {one.implementation}:{one.variant} {one.dtype} {list(one.sizes.values())}")
    for kernel in discovery.find_kernels([discovery.HOME]).values()
    for one in tuned.read(kernel.folder)
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "one"), COMMITTED)
def test_an_entry_of_this_project_is_of_a_case_that_it_fits(kernel, one):
    """Whether it is stale only its next run may say: who changes a kernel need not have the card."""
    case = make_case(kernel, dict(one.sizes), one.dtype, one.precision, dict(one.options), one.mode)
    assert one.device == H200.name and 0 < one.time_s <= one.default_s and one.files
    assert not {*one.files} & {*kernel.sources}, "what its formula is made of makes no machine code"
    module = discovery.load_implementation(kernel.name, one.implementation)
    own = module.config(case, one.variant, H200)
    assert not one.config or (set(one.config) == set(own) and one.config != own), "an empty config is the default"
    assert module.fits(case, one.variant, H200, one.config or own) is None


def test_there_are_entries_for_the_kernels_that_are_measured_beside_others():
    assert {kernel.name for kernel, _ in (p.values for p in COMMITTED)} >= {"lola", "splacc", "geglu", "fused_mlp", "padded_attention", "softmax"}  # fmt: skip
