"""Tunables: what an implementation takes, what the command line sets, and what does not fit."""

from __future__ import annotations

import itertools

import pytest

from fusebench import cases, discovery
from fusebench.cases import make_case
from fusebench.configuration import jobs, schema
from fusebench.contract import DTYPES, Cell, Device
from fusebench.errors import UsageError


def selected(kernels, *overrides):
    schema.register("bench", kernels)
    chosen = jobs.compose_job("bench", ["kernel=double", *overrides])
    return cases.select_cells(kernels, chosen)


def run_one(kernels, run_cells, **tunables):
    cell = Cell(make_case(kernels["double"], "small"), "torch_chunked", "default", config=tunables)
    (record,) = run_cells([cell])
    return record


def test_without_a_word_an_implementation_takes_its_own_config(kernels, run_cells):
    record = run_one(kernels, run_cells)
    assert record.status == "ok" and record.label == "torch_chunked"
    assert record.build.config == {"CHUNK": min(256, record.case.sizes["N"]), "order": "forward"}


def test_a_tunable_that_is_set_runs_and_stands_in_the_cell(kernels, run_cells):
    record = run_one(kernels, run_cells, CHUNK=7)
    assert record.status == "ok" and record.build.config == {"CHUNK": 7, "order": "forward"}
    assert record.label == "torch_chunked CHUNK=7"
    assert record.id == f"double/{record.case.id}/torch_chunked/CHUNK=7/seed=0"


def test_a_config_that_does_not_fit_is_skipped_with_the_reason(kernels, run_cells):
    record = run_one(kernels, run_cells, CHUNK=2048)
    assert (record.status, record.reason) == (
        "skipped", "a chunk has 1024 elements at most (CHUNK=2048, order=forward)"
    )  # fmt: skip


def test_values_multiply_for_the_variants_that_have_the_tunable(kernels):
    cells = selected(kernels, "implementation=[torch_chunked,torch_eager:plus]", "config.CHUNK=[32,64]")
    assert [c.label for c in cells] == [
        "torch_chunked CHUNK=32", "torch_chunked CHUNK=64", "torch_chunked:whole", "torch_eager:plus",
    ]  # fmt: skip


def test_the_command_that_shows_a_cell_again_has_its_config(kernels):
    (cell,) = selected(kernels, "implementation=torch_chunked:default", "config.CHUNK=32", "config.order=backward")
    words = cases.command(kernels["double"], cell, "cpu").split()
    again = [w for w in words[2:] if not w.startswith(("device", "kernel"))]
    assert selected(kernels, *again) == [cell]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("config.CHUNK=many", "config.CHUNK is 'many': expected a value such as 64, 256"),
        ("config.order=3", "config.order is 3: expected a value such as forward, backward"),
    ],
)
def test_a_value_of_another_kind_is_refused(kernels, override, said):
    with pytest.raises(UsageError, match=said):
        selected(kernels, "implementation=torch_chunked", override)


def test_a_tunable_that_no_chosen_variant_has_is_refused(kernels):
    with pytest.raises(UsageError, match="unknown tunable of the chosen implementations 'CHUNK'"):
        selected(kernels, "implementation=torch_eager", "config.CHUNK=64")


@pytest.mark.parametrize(
    "tunables",
    ["3", "{'default': 3}", "{'default': {'CHUNK': ()}}", "{'nosuch': {'CHUNK': (1,)}}", "{'default': {'x': (1.5,)}}"],
)
def test_tunables_of_another_form_break_their_file_alone(tmp_path, tunables):
    file = tmp_path / "it.py"
    file.write_text(f'BACKEND = "torch"\nVARIANTS = {{"default": ()}}\nTUNABLES = {tunables}\n')
    assert "TUNABLES must map variants to tunables" in discovery.read_implementation("double", file).broken


@pytest.mark.parametrize("implementation", ["triton", "jax_triton"])
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_lola_s_own_configs_have_all_tunables_and_fit(kernels, implementation, precision):
    module = discovery.load_implementation("lola", implementation)
    found = kernels["lola"].implementations[implementation]
    for device in (Device("cuda", "sm_80", (8, 0), 108), Device("cuda", "sm_90", (9, 0), 132)):
        for name, dtype in itertools.product(kernels["lola"].mathematics.cases, DTYPES):
            case = make_case(kernels["lola"], name, dtype, precision)
            for variant in (v for v in found.variants if not module.skip(case, v, device)):
                own = module.config(case, variant, device)
                assert set(own) == set(found.tunables[variant]), (case.id, variant)
                assert module.fits(case, variant, device, own) is None, (case.id, variant)


def test_a_tile_that_shared_memory_does_not_hold_is_refused_before_compiling(kernels):
    module, device = discovery.load_implementation("lola", "triton"), Device("cuda", "sm_90", (9, 0), 132)
    case = make_case(kernels["lola"], "batch", "bfloat16")
    large = module.config(case, "multirow", device) | {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_stages": 5}
    assert module.fits(case, "multirow", device, large) == "its stages take 248 KB of shared memory; a block has 227"
    assert module.fits(case, "multirow", device, large | {"num_stages": 4}) is None
