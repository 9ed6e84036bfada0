"""Stories: which cells a preset's steps are, what each part has of a step's time, and the table from the records."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from fusebench import discovery
from fusebench.commands import story as table
from fusebench.configuration import jobs, request, schema, story
from fusebench.errors import UsageError

KERNELS = discovery.find_kernels(discovery.roots_of())
DLRM = {
    "steps": [
        {"step": "naive", "case": "odd", "implementation": "torch_eager:naive", "option": {"hashing": "lookup"}},
        {"step": "modulus", "case": "odd", "implementation": "torch_eager:modulus"},
    ],
    "parts": {
        "of": "dlrm_parts",
        "shares": {
            "hashing": "hashing", "embedding": "embedding", "interaction": "interaction", "MLPs": ["dense", "prediction"],
        },
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def keys():
    schema.register("bench", KERNELS)


def composed(*arguments, **changed):
    return jobs.compose_job("bench", list(arguments)) | changed


def told(*arguments, **changed):
    return story.read(KERNELS, composed(*arguments, **changed))


def test_the_story_of_adapters_has_each_framework_forward_and_backward():
    steps = told("experiment=lora_story").steps
    labels = ["torch_eager", "torchscript", "torch_compile", "triton", "jax_triton", "flax:module", "cuda"]
    assert [s.cell.label for s in steps] == 3 * labels
    assert [s.cell.case.mode for s in steps[::7]] == ["forward", "backward", "forward_backward"]
    assert {(s.cell.case.kernel, s.cell.case.dtype) for s in steps} == {("lora_mlp", "bfloat16")}
    assert {s.name for s in steps[:7]} == {s.name for s in steps[7:14]} and not any(s.parts for s in steps)


def test_the_story_of_the_model_goes_from_naive_hashing_to_fused_kernels():
    found = told("experiment=dlrm_story")
    assert [(s.cell.label, s.cell.case.id) for s in found.steps] == [
        ("torch_eager:naive", "small/float32/ieee/hashing=lookup"),
        ("torch_eager:improved", "small/float32/ieee/hashing=lookup"),
        ("torch_eager:modulus", "small/float32/ieee"),
        ("torch_compile:modulus", "small/float32/ieee"),
        ("torch_eager:modulus", "main/float32/ieee"),
        ("torch_compile:modulus", "main/float32/ieee"),
        ("triton:modulus", "main/float32/ieee"),
        ("triton:modulus_split", "main/float32/ieee"),
        ("cuda:modulus", "main/float32/ieee"),
    ]  # fmt: skip
    assert set(found.shares) == {"hashing", "embedding", "interaction", "MLPs"} and found.last == "prediction"
    for step in found.steps:
        if step.cell.variant == "modulus_split":  # dlrm_parts has none
            assert not step.parts
            continue
        assert list(step.parts) == ["dense", "hashing", "embedding", "interaction"]
        for part, cell in step.parts.items():
            same = {n: v for n, v in cell.case.options.items() if n != "until"}
            assert (cell.label, cell.case.sizes, same) == (
                step.cell.label,
                step.cell.case.sizes,
                step.cell.case.options,
            )
            assert cell.case.options["until"] == part
    assert len(found.cells) == 8 * 5 + 1 == len({c.id for c in found.cells})


def test_the_request_of_a_story_has_its_cells_and_that_of_a_part_its_own():
    for words in (("experiment=lora_story",), ("experiment=lora_story", "implementation=triton")):
        asked = request.build("bench", [], composed(*words), KERNELS)
        assert asked.cells == tuple(told(*words).cells) and asked.cells
    assert {cell.implementation for cell in asked.cells} == {"triton"}


def test_other_keys_hold_for_all_steps_and_implementation_chooses_among_them():
    both = told("experiment=dlrm_story", "dtype=[float16,bfloat16]", "implementation=torch_eager", "batch=64").steps
    assert [s.name for s in both] == 2 * ["naive hashing", "improved hashing", "modulus", "larger MLPs"]
    assert [s.cell.case.dtype for s in both] == 4 * ["float16"] + 4 * ["bfloat16"]
    assert {s.cell.case.sizes["M"] for s in both} == {64}
    outer = told("experiment=dlrm_story", "option.interaction=outer").steps
    assert {s.cell.case.options["interaction"] for s in outer} == {"outer"}
    assert outer[0].cell.case.options["hashing"] == "lookup"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("case=main",), "case=main: the steps of the story have cases of their own: leave it out, or set case=null"),
        (("implementation=jax_triton",), "no cells: the story has no step with implementation=jax_triton"),
        (("implementation=tritn",), "unknown implementation 'tritn': did you mean triton"),
    ],
)
def test_what_a_story_has_no_step_for_is_refused(arguments, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        told("experiment=dlrm_story", *arguments)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("lora", "story is 'lora'; expected steps: ["),
        ({}, "story is {}; expected steps"),
        ({"steps": [{"implementation": "flax"}]}, "story has the steps"),
        ({"steps": [{"step": "a", "kernle": "lola"}]}, "unknown key 'kernle' of the step 'a' of the story: did you mean kernel"),
        ({"steps": [{"step": "a", "shape": [{"M": 2}]}]}, "the step 'a' of the story has the shape [{'M': 2}]; expected {NAME: VALUE, …}"),
        ({"steps": [{"step": "a"}], "parts": {"of": "dlrm_parts"}}, "story has the parts"),
        ({"steps": [{"step": "a"}], "parts": {"of": "x", "shares": {"a": "b"}}}, "unknown kernel 'x'"),
        ({**DLRM, "parts": {"of": "dlrm_parts", "shares": {"a": "hashing", "b": "rest"}}}, "no share has the part dense, embedding, interaction of dlrm_parts"),
        ({**DLRM, "parts": {"of": "dlrm_parts", "shares": {"a": ["dense", "hashing", "embedding", "interaction"]}}}, "expected each of dense, hashing, embedding, interaction once, and one more"),
    ],
)  # fmt: skip
def test_a_story_that_cannot_be_told_is_refused_in_a_line(value, said):
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        told("kernel=dlrm", story=value)
    assert "\n" not in str(refused.value)


def shares(**times):
    found = told("kernel=dlrm", story=DLRM)
    return table.shares(found, found.steps[1], times, 10.0)


def test_shares_are_what_each_part_adds_and_sum_to_the_step():
    found = shares(dense=2.0, hashing=3.0, embedding=3.5, interaction=6.0)
    assert found == pytest.approx({"hashing": 0.1, "embedding": 0.05, "interaction": 0.25, "MLPs": 0.2 + 0.4})
    assert sum(found.values()) == pytest.approx(1)


def test_parts_in_one_piece_have_one_share():
    assert shares(dense=2.0, interaction=6.0) == {
        "MLPs": pytest.approx(0.6), "interaction": pytest.approx(0.4), "hashing": "interaction", "embedding": "interaction",
    }  # fmt: skip
    behind = shares(dense=2.0, hashing=3.0, embedding=3.5)
    assert behind["interaction"] == "MLPs" and behind["MLPs"] == pytest.approx(0.2 + 0.65)
    assert shares() == {}


def test_the_table_is_what_the_records_say(run_cells, capsys):
    found = told("kernel=dlrm", story=DLRM)
    records = {r.id: r for r in run_cells(found.cells, time_s=0.02)}
    assert {r.status for r in records.values()} == {"ok"}
    table.show(found, list(records.values()), KERNELS)
    lines = capsys.readouterr().out.splitlines()
    heading = next(line for line in lines if "hashing" in line and "MLPs" in line)
    device = records[found.steps[0].cell.id].device.name
    assert any(line.startswith(f"dlrm  on {device}") for line in lines)
    starts = [m.start() for m in re.finditer(r"\S+( \S+)*", heading)]
    names = re.split(r"\s{2,}", heading.strip())
    rows = [line for line in lines if line.strip().startswith(("naive", "modulus"))]
    assert len(starts) == len(names) and cell_len(heading) == len(heading) and len(rows) == 2
    first = records[found.steps[0].cell.id].timing.median
    for step, line in zip(found.steps, rows, strict=True):
        shown = dict(zip(names, re.split(r"\s{2,}", line.strip()), strict=True))
        whole = records[step.cell.id].timing.median
        dense, hashing, embedding, interaction = (records[c.id].timing.median for c in step.parts.values())
        assert (shown["step"], shown["implementation"]) == (step.name, step.cell.label)
        assert shown["samples/s"] == format(float(f"{37 / whole:.3g}"), ".15g")
        assert shown["× naive"] == f"{first / whole:.2f}"
        expected = {
            "hashing": hashing - dense, "embedding": embedding - hashing, "interaction": interaction - embedding,
            "MLPs": whole - interaction + dense,
        }  # fmt: skip
        for name, seconds in expected.items():
            assert float(shown[name].rstrip("%")) == pytest.approx(100 * seconds / whole, abs=0.051)


def test_a_step_without_a_time_is_named_with_its_reason(run_cells, capsys):
    value = {"steps": [*DLRM["steps"], {"step": "wrong hashing", "case": "odd", "implementation": "torch_eager:naive"}]}
    found = told("kernel=dlrm", story=value)
    table.show(found, run_cells(found.cells, time_s=0.02), KERNELS)
    out = capsys.readouterr().out
    assert "skipped  wrong hashing  torch_eager:naive" in out and "naive is for option.hashing=lookup" in out


@pytest.mark.parametrize("command", ["bench", "parity", "profile", "sanitize"])
@pytest.mark.parametrize("preset", ["dlrm_story", "lora_story", "h200_peers", "h200_neighbours"])
def test_every_story_of_ours_is_for_every_command_that_takes_one(answered, command, preset):
    """parity and sanitize have a case of their own unless told otherwise, which steps with cases refuse."""
    done = answered(command, f"experiment={preset}", "dry_run=true")
    assert done.returncode == 0 and " cells: " in done.stdout, done.stderr
