"""Tunables: what an implementation takes, what the command line sets, and what does not fit."""

from __future__ import annotations

import itertools
import math
import random
import re

import pytest

from fusebench import cases, discovery
from fusebench.cases import make_case
from fusebench.configuration import jobs, schema
from fusebench.contract import DTYPES, Cell, Device
from fusebench.errors import UsageError

FOUND = discovery.find_kernels(discovery.roots_of())


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


def test_a_config_of_other_names_than_the_tunables_fails(kernels, run_cells):
    (record,) = run_cells([Cell(make_case(kernels["double"], "small"), "torch_misnamed", "default")])
    said = "config() of torch_misnamed.py gives CHUNKS, which TUNABLES does not name"
    assert (record.status, record.reason) == ("failed", said)


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
    with pytest.raises(UsageError, match="unknown tunable 'CHUNK' of the chosen implementations"):
        selected(kernels, "implementation=torch_eager", "config.CHUNK=64")


@pytest.mark.parametrize(
    "tunables",
    [
        "3",
        "{'default': 3}",
        "{'default': {'CHUNK': ()}}",
        "{'nosuch': {'CHUNK': (1,)}}",
        "{'default': {'x': (1.5,)}}",
        "{('default', 'nosuch'): {'CHUNK': (1,)}}",
        "{(): {'CHUNK': (1,)}}",
        "{(('default',),): {'CHUNK': (1,)}}",
    ],
)
def test_tunables_of_another_form_break_their_file_alone(tmp_path, tunables):
    file = tmp_path / "it.py"
    file.write_text(f'BACKEND = "torch"\nVARIANTS = {{"default": ()}}\nTUNABLES = {tunables}\n')
    assert "TUNABLES must map variants to tunables" in discovery.read_implementation("double", file).broken


def test_variants_share_tunables_and_have_others_of_their_own(tmp_path):
    file = tmp_path / "it.py"
    constants = 'BACKEND = "torch"\nVARIANTS = {"a": (), "b": (), "c": ()}\n'
    file.write_text(constants + 'TUNABLES = {("a", "b"): {"x": (1, 2)}, "a": {"y": (3,)}}\n')
    assert discovery.read_implementation("double", file).tunables == {"a": {"x": (1, 2), "y": (3,)}, "b": {"x": (1, 2)}}
    file.write_text(constants + 'TUNABLES = {"a": {("x", "y"): (1, 2), ("y", "z"): (3,)}}\n')
    assert "TUNABLES names y of a twice" in discovery.read_implementation("double", file).broken
    file.write_text(constants + 'TUNABLES = {"a": {("x", "y"): (1, 2), "z": (3,)}}\n')
    assert discovery.read_implementation("double", file).tunables == {"a": {"x": (1, 2), "y": (1, 2), "z": (3,)}}
    file.write_text(constants + 'TUNABLES = {("a", "b"): {"x": (1, 2)}, "b": {"x": (3,)}}\n')
    assert "TUNABLES names x of b twice" in discovery.read_implementation("double", file).broken


# Triton's implementations

TRITON = [(k, i) for k, kernel in FOUND.items() for i in ("triton", "jax_triton") if i in kernel.implementations]
DEVICES = [Device("cuda", f"sm_{a}{b}", (a, b), n) for a, b, n in ((8, 0, 108), (9, 0, 132), (10, 0, 148))]


def options_of(kernel):
    """The default options, and each other value of each."""
    return [{}, *({name: value} for name, values in kernel.options.items() for value in values[1:])]


def every_case(kernel, names=None, mode="forward"):
    for name, dtype, option in itertools.product(names or kernel.mathematics.cases, DTYPES, options_of(kernel)):
        for precision in kernel.mathematics.precisions if dtype == "float32" else ("ieee",):
            yield make_case(kernel, name, dtype, precision, option, mode)


def own_configs(name, implementation, devices, names=None, mode="forward"):
    """(module, case, variant, device, its own config) of all cells that the implementation does not skip, of variants with tunables."""
    module = discovery.load_implementation(name, implementation)
    skip = getattr(module, "skip", lambda *_: None)
    found = FOUND[name].implementations[implementation]
    variants = found.tunables if mode == "forward" else found.backward
    for case in every_case(FOUND[name], names, mode):
        for variant, device in itertools.product(variants, devices):
            if skip(case, variant, device) is None:
                yield module, case, variant, device, module.config(case, variant, device)


def odd(kernel):
    """The odd cases, the one with the fewest operations first."""
    names = [name for name in kernel.mathematics.cases if name.startswith("odd")]
    return sorted(names, key=lambda name: kernel.mathematics.flops(make_case(kernel, name)))


@pytest.mark.parametrize(("name", "implementation"), TRITON)
def test_own_configs_are_of_the_tunables_and_fit(name, implementation):
    tunables = FOUND[name].implementations[implementation].tunables
    for module, case, variant, device, own in own_configs(name, implementation, DEVICES):
        assert own and set(own) <= set(tunables[variant]), (case.id, variant)
        assert module.fits(case, variant, device, own) is None, (case.id, variant, device.name)


@pytest.mark.parametrize("name", [n for n, i in TRITON if i == "triton" and FOUND[n].implementations[i].backward])
def test_own_configs_of_backward_are_of_the_tunables_and_fit(name):
    tunables = FOUND[name].implementations["triton"].tunables
    for module, case, variant, device, own in own_configs(name, "triton", DEVICES, mode="backward"):
        # layers that are chained choose for themselves there
        assert own or name == "lora_mlp", (case.id, variant)
        assert set(own) <= set(tunables[variant]), (case.id, variant)
        assert module.fits(case, variant, device, own) is None, (case.id, variant, device.name)


@pytest.mark.parametrize("name", [name for name, implementation in TRITON if implementation == "triton"])
def test_what_cannot_run_is_refused_before_compiling_with_numbers(name):
    for module, case, variant, device, own in own_configs(name, "triton", DEVICES[1:2], odd(FOUND[name])):
        warps = [tunable for tunable in own if tunable.endswith("num_warps")]
        absurd = [{tunable: 0} for tunable in own] + [{tunable: 64} for tunable in warps]
        absurd += [{tunable: 3} for tunable in own if "BLOCK" in tunable] + [dict.fromkeys(own, 2**20)]
        for changed in absurd:
            reason = module.fits(case, variant, device, own | changed)
            assert reason and re.search(r"\d", reason), (case.id, variant, changed)


def grid_cells(name, implementation, count):
    """Cells of the odd case with `count` configs drawn from TUNABLES, for each variant and each set of tunables that it uses. jax_triton
    launches what triton does: one variant with each set of tunables shows that it takes a config."""
    tunables, seen = FOUND[name].implementations[implementation].tunables, set()
    for module, case, variant, _, own in own_configs(name, implementation, DEVICES[:1], odd(FOUND[name])):
        kind = (variant, *own) if implementation == "triton" else (*own,)
        if kind in seen or case.precision != "ieee":  # no tensor core takes TF32 on a CPU
            continue
        seen.add(kind)
        draw = random.Random(f"{name} {variant}")
        drawn = [tuple((tunable, draw.choice(tunables[variant][tunable])) for tunable in own) for _ in range(1000)]
        different = map(dict, dict.fromkeys(drawn))
        fitting = (some for some in different if all(module.fits(case, variant, d, some) is None for d in DEVICES))
        # the interpreter takes as long for a small tile as for a large one
        largest = sorted(itertools.islice(fitting, 20), key=lambda some: math.prod(some.values()))[-count:]
        yield from (Cell(case, implementation, variant, config=some) for some in largest)


# variants of a gradient that have no forward pass of their own
BACKWARD_ALONE = {
    "embedding": {"atomic", "deterministic"}, "padded_attention": {"one_launch"},
    "fused_mlp": {"recompute"}, "geglu": {"recompute"}, "splacc": {"recompute"},
}  # fmt: skip


@pytest.mark.parametrize(("name", "implementation"), TRITON)
def test_other_configs_of_the_tunables_are_right(name, implementation, run_cells):
    cells = list(grid_cells(name, implementation, count=2 if implementation == "triton" else 1))
    forward = set(FOUND[name].implementations[implementation].tunables) - BACKWARD_ALONE.get(name, set())
    assert cells and {cell.variant for cell in cells} <= forward
    assert implementation == "jax_triton" or {cell.variant for cell in cells} == forward
    records = run_cells(cells)
    assert [r for r in records if r.status != "ok"] == []
    assert [r.build.config for r in records] == [cell.config for cell in cells]


def test_a_tunable_that_a_case_has_no_use_for_is_skipped(kernels, run_cells):
    case = make_case(kernels["interaction"], "odd")
    (record,) = run_cells([Cell(case, "triton", "default", config={"BLOCK_I": 16})])
    assert record.status == "skipped"
    assert record.reason.startswith("this case has no use for BLOCK_I; its tunables are BLOCK_F, BLOCK_D, num_warps")


def test_a_tile_that_shared_memory_does_not_hold_is_refused_before_compiling(kernels):
    module, device = discovery.load_implementation("lola", "triton"), DEVICES[1]
    case = make_case(kernels["lola"], "batch", "bfloat16")
    large = module.config(case, "multirow", device) | {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_stages": 5}
    assert module.fits(case, "multirow", device, large) == "its tiles take 248 KB of shared memory; a block has 227"
    assert module.fits(case, "multirow", device, large | {"num_stages": 4}) is None


@pytest.mark.parametrize(
    ("M", "tile"), [(1024, (128, 256)), (1200, (64, 128)), (1500, (64, 128)), (3000, (128, 256)), (4000, (128, 256))]
)
def test_lola_takes_small_tiles_where_wide_ones_would_leave_multiprocessors_idle(kernels, M, tile):
    # tiles of 128 × 256 on 132 multiprocessors: 128, 160 (two rounds for 1.2), 192 (for 1.5), 384 and 512 of them
    module, case = (
        discovery.load_implementation("lola", "triton"),
        make_case(kernels["lola"], {"M": M, "K": 1024, "N": 4096}, "bfloat16"),
    )
    config = module.config(case, "multirow_ws", DEVICES[1])
    assert (config["BLOCK_M"], config["BLOCK_N"]) == tile


@pytest.mark.parametrize(
    ("name", "case", "variant", "changed", "said"),
    [
        ("fused_mlp", "bottom", "default", {"BLOCK_M": 128, "num_warps": 8}, "rows of x that start anywhere need "),
        ("fused_mlp", "bottom", "default", {"BLOCK_K": 16}, "rows of x that start anywhere need BLOCK_K=32"),
        ("lora_linear", "odd_rank", "fused", {"BLOCK_K": 64}, "BLOCK_K=64 takes K = 64 in one pass, which ptxas 12.8 compiles wrongly"),
    ],
)  # fmt: skip
def test_what_triton_computes_wrongly_on_hopper_is_refused_there(kernels, name, case, variant, changed, said):
    module, case = discovery.load_implementation(name, "triton"), make_case(kernels[name], case, "bfloat16")
    for device, refused in zip(DEVICES, (False, True, False), strict=True):
        reason = module.fits(case, variant, device, module.config(case, variant, device) | changed)
        assert (reason or "").startswith(said) == refused, (device.name, reason)


def test_a_config_is_what_the_compiler_gets(kernels):
    module, device = discovery.load_implementation("lora_linear", "triton"), DEVICES[1]
    case = make_case(kernels["lora_linear"], "batch", "bfloat16")
    config = module.config(case, "two_launches", device) | {"down_BLOCK_K": 64, "up_num_stages": 2, "up_BLOCK_M": 32}
    down, up = module.launches(case, "two_launches", device, config)
    assert (down.constexprs["BLOCK_K"], up.num_stages, up.constexprs["BLOCK_M"]) == (64, 2, 32)
    assert up.grid == (32 * -(-case.sizes["N"] // up.constexprs["BLOCK_N"]),)
