"""`experiment=published`: which cells it is, and what the kernels' authors published of them beside our own times."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from conftest import DEVICE
from samples import CPU, case, table_of, timed, untimed

from fusebench import cases, discovery, kernel_file, provenance, report
from fusebench.cases import make_case
from fusebench.configuration import jobs, schema
from fusebench.contract import Cell
from fusebench.records import store
from fusebench.records.record import Figure, Record

KERNELS = discovery.find_kernels(discovery.roots_of())
ENTRIES = [(name, entry) for name, kernel in KERNELS.items() for entry in kernel.mathematics.published]


@pytest.fixture(autouse=True)
def keys():
    schema.register("bench", KERNELS)


def cells(*arguments):
    return cases.select_cells(KERNELS, jobs.compose_job("bench", ["experiment=published", *arguments]))


def published_cells(kernel):
    return list(dict.fromkeys(c.case.id for c in cells() if c.case.kernel == kernel))


def test_it_is_all_kernels_that_have_published_cases():
    found = {cell.case.kernel for cell in cells()}
    assert found == {name for name, _ in ENTRIES}
    assert found == set(KERNELS) - {"dlrm_parts", "geglu", "lora_linear", "lora_mlp"}
    assert {c.case.kernel for c in cells("kernel=lola")} == {"lola"}


def test_every_implementation_runs_each_case_as_it_was_published():
    assert published_cells("splacc") == [
        f"batch/float32/{precision}/w_layout=nk/scale=none" for precision in ("ieee", "tf32")
    ]
    assert published_cells("softmax") == ["published/float32"]
    assert published_cells("padded_attention") == ["published/float32/ieee"]
    assert published_cells("add_mul_act") == [
        "small/float32", "tiny/float32", "square/float32", "square/float32/multiplier=2.3",
    ]  # fmt: skip
    assert {"top/float32/ieee/last=sigmoid", "top_outer/float32/ieee/last=sigmoid"} <= set(published_cells("fused_mlp"))
    labels = {c.label for c in cells("kernel=lola", "dtype=float16")}
    assert labels == {
        n if v == "default" else f"{n}:{v}" for n, i in KERNELS["lola"].implementations.items() for v in i.variants
    }


@pytest.mark.parametrize(("name", "entry"), ENTRIES, ids=lambda e: e if isinstance(e, str) else e.case)
def test_a_figure_is_of_a_variant_that_exists(name, entry):
    labels = {label for figures in entry.figures.values() for label in figures} - {""}
    for implementation, _, variant in (label.partition(":") for label in labels):
        assert (variant or "default") in KERNELS[name].implementations[implementation].variants


def figures_of(kernel, label, *words, config=None, **options):
    implementation, _, variant = label.partition(":")
    cell = Cell(
        make_case(KERNELS[kernel], *words, options=options), implementation, variant or "default", config=config or {}
    )
    return provenance.published(KERNELS[kernel], cell)


def test_a_cell_gets_the_figures_of_its_case_and_variant():
    loop, bench = "unsynchronised loop", "do_bench"
    assert figures_of("lola", "torch_eager", "token") == (
        Figure(pytest.approx(73.9e-6), "torch_eager", "A100-class", loop),
    )
    row = [(f.time_s, f.method) for f in figures_of("lola", "triton:row", "wide_token")]
    assert row == [(pytest.approx(733e-6), loop), (pytest.approx(810e-6), bench)]
    assert figures_of("lola", "flax:module", "batch", "float32", "ieee") == ()
    assert [f.time_s for f in figures_of("lola", "flax:module", "batch", "float32", "tf32")] == [pytest.approx(502e-6)]
    assert [f.label for f in figures_of("lola", "cuda:row", "token_2048")] == [""], "nobody says of what it is"
    assert figures_of("lola", "torch_eager", "odd") == ()
    assert figures_of("splacc", "torch_eager", "batch", w_layout="nk") == (), "its inputs are scaled"
    tuned = figures_of("lola", "triton:multirow_f16acc", "batch", "float16", config={"num_warps": 8})
    assert [f.time_s for f in tuned] == [pytest.approx(199e-6)], "whatever its config"


OURS = Figure(73.9e-6, "torch_eager", "A100-class", "unsynchronised loop")
TWICE = (Figure(733e-6, "triton:row", "A100-class", "unsynchronised loop"), Figure(810e-6, "triton:row", "A100-class", "do_bench"))  # fmt: skip
NAMELESS = Figure(70.2e-6, "", "", "")


def shown(capsys, *records, published=True):
    capsys.readouterr()
    report.show(records, published=published)
    return capsys.readouterr().out


def test_the_figure_stands_beside_ours_with_its_device_and_method(capsys):
    records = (
        timed("torch_eager", published=(OURS, NAMELESS)),
        timed("flax:module", published=(NAMELESS,)),
        replace(untimed("triton:row", status="skipped", published=(*TWICE, NAMELESS)), reason="interpreted"),
    )
    said = shown(capsys, *records)
    rows = table_of(said, "implementation")
    assert [row["published"] for row in rows] == ["73.9 µs", ""]
    assert [line for line in said.splitlines() if line.startswith("published ")] == [
        "published on A100-class, by unsynchronised loop: torch_eager 73.9 µs, triton:row 733 µs; on a device that is not said, by a "
        "method that is not said: an implementation that is not said 70.2 µs; on A100-class, by do_bench: triton:row 810 µs"
    ]
    assert table_of(shown(capsys, timed("triton:row", published=TWICE)), "implementation")[0]["published"] == "733 µs / 810 µs"  # fmt: skip


def test_without_published_the_table_is_as_ever(capsys):
    assert "published" not in shown(capsys, timed(published=(OURS,)), published=False)
    assert "published" not in shown(capsys, timed())


def test_a_record_keeps_its_figures(tmp_path):
    record = untimed(of=case(), published=(OURS, NAMELESS), device=CPU)
    store.append(tmp_path, record)
    assert store.read(tmp_path, Record)[0].published == (OURS, NAMELESS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"figures": {"do_bench": 3.0}}, {"figures": {"do_bench": {"triton": "3"}}}, {"figures": {"do_bench": {"triton": 0}}},
        {"figures": {"do_bench": {"triton": True}}}, {"figures": [("do_bench", {})]}, {"figures": {1: {"triton": 2.0}}}, {"device": 100},
    ],
)  # fmt: skip
def test_wrong_figures_are_named(wrong):
    entry = {"case": "odd", **wrong}
    module = SimpleNamespace(CASES={"odd": {"N": 1}})
    assert kernel_file._published_problem(entry, module).startswith(
        "expected figures in µs by method and implementation"
    )
    assert not kernel_file._published_problem({"case": "odd", "figures": {"": {"": 3}}}, module)


def test_the_command_shows_the_figures(on_shared_workers):
    words = ("kernel=lola", "case=token", "implementation=torch_eager", f"device={DEVICE}", "time_s=0.02")
    done = on_shared_workers("bench", "experiment=published", *words)
    assert done.returncode == 0, done.stderr
    assert table_of(done.stdout, "implementation")[0]["published"] == "73.9 µs"
    assert "published on A100-class, by unsynchronised loop: torch_eager 73.9 µs" in done.stdout.splitlines()
