"""Configs of the CUDA implementations: what they take, what fits, what is launched, and what calls hand over. Needs no GPU."""

from __future__ import annotations

import importlib
import itertools
import re

import numpy as np
import pytest
import torch

pytest.importorskip("cuda.core")
from fusebench import discovery
from fusebench.cases import make_case
from fusebench.contract import Device

KERNELS = {n: k for n, k in discovery.find_kernels(discovery.roots_of()).items() if "cuda" in k.implementations}
DTYPES = (("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee"), ("bfloat16", "ieee"))
A100, H200, B200 = (
    Device("cuda", f"sm_{c[0]}{c[1]}", c, sms) for c, sms in (((8, 0), 108), ((9, 0), 132), ((10, 0), 148))
)
RTX3090 = Device("cuda", "sm_86", (8, 6), 82)  # 99 KiB of shared memory
MODES = "forward", "backward"
# whose gradients have tiles that the blocks of clusters share, as those of no named case do
MORE = {
    name: {"of_clusters": {"M": 200, "K": 1024, "N": N}}
    for name, N in (("lola", 4096), ("splacc", 2048), ("geglu", 2048))
}
SHARED_BYTES = {A100: 163 << 10, H200: 227 << 10, B200: 227 << 10, RTX3090: 99 << 10}


def module_of(name):
    return importlib.import_module(f"implementations.{name}.cuda")


def cells(name, device, wanted=lambda case: True, modes=("forward",)):
    """Every variant of every named case, and of MORE, in every dtype, precision, layout, form and hashing, that the device can run."""
    kernel, module = KERNELS[name], module_of(name)
    has = {"forward": module.VARIANTS, "backward": kernel.implementations["cuda"].backward}
    options = {
        key: values
        for key, values in kernel.options.items()
        if key in ("w_layout", "form", "interaction", "hashing", "until")
    }
    named = {**kernel.mathematics.cases, **MORE.get(name, {})}
    for case_name, dtype, *chosen in itertools.product(named, DTYPES, *options.values()):
        if dtype[1] in kernel.mathematics.precisions and wanted(case_name):
            for mode in modes:
                case = make_case(
                    kernel, named[case_name], *dtype, options=dict(zip(options, chosen, strict=True)), mode=mode
                )
                for variant in has[mode]:
                    if module.skip(case, variant, device) is None:
                        yield case, variant


def tunables_of(name):
    return KERNELS[name].implementations["cuda"].tunables


@pytest.mark.parametrize("device", SHARED_BYTES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", KERNELS)
def test_own_configs_fit_and_are_among_the_tunables(name, device):
    module, tunables = module_of(name), tunables_of(name)
    assert set(tunables) == set(module.VARIANTS)
    for case, variant in cells(name, device, modes=MODES):
        own = module.config(case, variant, device)
        assert set(own) <= set(tunables[variant]), (case.id, variant)
        assert module.fits(case, variant, device, own) is None, (case.id, variant, own)
        assert all(value in tunables[variant][tunable] for tunable, value in own.items()), (case.id, variant, own)


@pytest.mark.parametrize("name", KERNELS)
def test_every_value_of_a_tunable_has_a_launch_or_a_reason(name):
    module, tunables, told, differs = module_of(name), tunables_of(name), [], set()
    for device in (H200, RTX3090):
        for case, variant in cells(name, device, modes=MODES):
            own = module.config(case, variant, device)
            usual = module.launches(case, variant, device, own)
            for tunable, value in ((t, v) for t in own for v in tunables[variant][t]):
                config = own | {tunable: value}
                if reason := module.fits(case, variant, device, config):
                    told.append(reason)
                    continue
                launches = module.launches(case, variant, device, config)
                if launches != usual:
                    differs.add((variant, tunable))
                for launch in launches:
                    assert launch.shared_memory <= SHARED_BYTES[device] and 32 <= launch.block <= 1024, (
                        case.id,
                        config,
                    )
    assert all(any(letter.isdigit() for letter in reason) or "KERNEL" in reason for reason in told), set(told)
    alone = {(v, t) for v in tunables for t, values in tunables[v].items() if len(values) == 1}
    # a tunable that one value fits with the others as they are moves with them
    moves = {"KERNEL", "BLOCK_M", "BLOCK_N", "WARPS_M", "WARPS_N"}
    missing = {(v, t) for v in tunables for t in tunables[v]} - differs - alone
    assert all(tunable.split("_", 1)[-1] in moves or tunable in moves for _, tunable in missing), missing


@pytest.mark.parametrize("name", KERNELS)
def test_values_without_an_instance_are_refused(name):
    module = module_of(name)
    for case, variant in cells(name, H200):
        own = module.config(case, variant, H200)
        for tunable, value in ((t, v) for t in own for v in ((0, -1, 2**20) if t != "KERNEL" else ("none",))):
            assert module.fits(case, variant, H200, own | {tunable: value}), (case.id, variant, tunable, value)


@pytest.mark.parametrize(
    ("name", "case", "variant", "config", "said"),
    [
        ("lola", ("large", "bfloat16"), "multirow", {"num_stages": 5}, "a block takes 270448 bytes of shared memory; it may have 232448"),
        ("lola", ("batch", "bfloat16"), "multirow", {"CLUSTER": 3}, "128×256 in clusters of 2, 128×256 in clusters of 1, 128×256 in clusters of 4"),
        ("lola", ("large", "bfloat16"), "multirow", {"BLOCK_M": 64}, "the tiles of KERNEL=warpgroup are 128×256 in clusters of 2"),
        ("lola", ("odd", "bfloat16"), "multirow", {"KERNEL": "warpgroup", "BLOCK_M": 128, "BLOCK_N": 128}, "KERNEL=warpgroup is for Hopper"),
        ("lola", ("batch", "float32"), "multirow", {"KERNEL": "tensor"}, "IEEE float32 is multiplied by KERNEL=simt"),
        ("lola", ("batch", "float32"), "multirow", {"CLUSTER": 2, "SCHEDULE": "strips"}, "SCHEDULE=strips is for tiles of 128×256"),
        ("lola", ("batch", "bfloat16"), "multirow", {"SCHEDULE": "strips"}, "SCHEDULE is strips: there are instances for tiles"),
        ("splacc", ("batch", "float32"), "two_accumulators", {"BLOCK_M": 32, "BLOCK_N": 64}, "the tiles of KERNEL=simt are .*32×64 in clusters of 2"),
        ("lola", ("token", "bfloat16"), "row", {"KERNEL": "registers", "WIDTH": 32, "num_warps": 4}, "a block of 128 threads has a column each, not 256"),
        ("lola", ("wide_token", "bfloat16"), "row", {"UNROLL": 32}, "a block takes .* bytes of shared memory; it may have"),
        ("lola", ("one", "bfloat16"), "row", {"KERNEL": "ring"}, "KERNEL=ring begins with a vector of 16 bytes of x"),
        ("geglu", ("large", "float16"), "two_accumulators", {"num_stages": 1}, "num_stages is 1: one is read while another is written"),
        ("lola", ("odd", "bfloat16"), "multirow", {"KERNEL": "few_rows", "BLOCK_M": 16}, "KERNEL=few_rows copies whole vectors of 16 bytes, which rows of K = 131"),
        ("lola", ("token", "bfloat16"), "multirow", {"BLOCK_M": 128}, "the tiles of KERNEL=few_rows are 16×16"),
        ("lola", ("odd", "float32"), "multirow", {"KERNEL": "few_rows", "BLOCK_M": 16, "BLOCK_N": 16, "CLUSTER": 1}, "which rows of K = 131 and N = 203 do not have"),
        ("lola", ("odd", "float32", "ieee", {"w_layout": "nk"}), "two_launches", {"KERNEL": "few_rows", "BLOCK_M": 64, "BLOCK_N": 64}, "64×64 has no registers for four elements"),
        ("splacc", ("token", "bfloat16"), "two_accumulators", {"KERNEL": "split", "BLOCK_M": 128, "BLOCK_N": 128}, "KERNEL=split: M from 65, N from 64"),
        ("geglu", ("small", "bfloat16"), "two_accumulators", {"KERNEL": "split", "BLOCK_M": 64, "BLOCK_N": 64}, "KERNEL=split has 64 columns of each of 2"),
        ("lola", ("batch", "bfloat16"), "two_launches", {"KERNEL": "turned", "BLOCK_M": 72}, "KERNEL=turned has tiles of 64, 80, … 256 × 64 or 128, in clusters of 1 or 2"),
        ("splacc", ("batch", "bfloat16"), "two_accumulators", {"KERNEL": "turned", "BLOCK_M": 144, "CLUSTER": 1}, "no registers for the sums of 144 rows of 2 products"),
        ("splacc", ("odd", "bfloat16"), "two_accumulators", {"KERNEL": "turned", "BLOCK_M": 64, "BLOCK_N": 128, "CLUSTER": 1}, "KERNEL=turned is for 16 bits on Hopper"),
        ("softmax", ("wide", "float32"), "row", {"LANES": 128}, "a row is 8192 vectors of 16 bytes; 128 lanes hold 1024 in registers"),
        ("softmax", ("longest", "float32"), "cluster", {"CLUSTER": 2}, "a block takes 524288 bytes of shared"),
        ("softmax", ("longest", "float32"), "cluster", {"num_warps": 2}, "num_warps is 2"),
        ("fused_mlp", ("synthetic", "float32"), "default", {"KERNEL": "simt", "BLOCK_M": 128, "BLOCK_N": 256, "CLUSTER": 1}, "a block takes .* bytes of shared"),
        ("fused_mlp", ("synthetic", "float32"), "default", {"KERNEL": "simt", "BLOCK_N": 64}, "the tiles are 128×256, 64×256, 64×128, 32×128, 16×128"),
        ("fused_mlp", ("synthetic_2048", "float32", "tf32"), "default", {"KERNEL": "warpgroup"}, "KERNEL=warpgroup is for 16 bits and x of up to 1408"),
        ("fused_mlp", ("odd", "bfloat16"), "default", {"KERNEL": "warpgroup"}, "KERNEL=warpgroup takes N in eights, but those of x and the last layer"),
        ("fused_mlp", ("two_layers", "bfloat16"), "default", {"KERNEL": "warpgroup"}, "KERNEL=warpgroup is for three or four layers"),
        ("fused_mlp", ("bottom_2048", "bfloat16"), "default", {"KERNEL": "warpgroup", "BLOCK_M": 16}, "are 128×128 in clusters of 1 or 2, and 64×128"),
        ("fused_mlp", ("synthetic", "float32"), "default", {"KERNEL": "few_rows", "BLOCK_M": 8, "BLOCK_N": 64, "num_stages": 4}, "a block takes 234128 bytes"),
        ("fused_mlp", ("bottom", "float32"), "default", {"CLUSTER": 4}, "KERNEL=few_rows: 4 blocks make 256 columns of a layer, not 512"),
        ("fused_mlp", ("bottom", "float32"), "default", {"num_stages": 8}, "KERNEL=few_rows: num_stages is 8: there are instances for 4"),
        ("fused_mlp", ("bottom", "float16"), "default", {"BLOCK_M": 4}, "KERNEL=few_rows: BLOCK_M is 4: there are instances for 16, 32"),
        ("fused_mlp", ("bottom_2048", "float16"), "default", {"KERNEL": "few_rows", "BLOCK_M": 16, "CLUSTER": 4, "BLOCK_N": 64, "num_stages": 4}, "4 blocks make 256 columns"),
        ("fused_mlp", ("wide", "bfloat16"), "default", {"layer2_CLUSTER": 3}, "layer2: the tiles of KERNEL=warpgroup are"),
        ("fused_mlp", ("wide", "bfloat16"), "default", {"layer1_KERNEL": "simt"}, "layer1: "),
        ("fused_mlp", ("wide", "bfloat16"), "default", {"layer1_KERNEL": "one_slab"}, "layer1: KERNEL=one_slab is for K of up to 64"),
        ("fused_mlp", ("wide", "bfloat16"), "default", {"KERNEL": "three_and_one"}, "KERNEL=three_and_one is for four layers"),
        ("fused_mlp", ("bottom", "bfloat16"), "default", {"KERNEL": "three_and_one"}, "KERNEL=warpgroup has all four layers in one launch"),
        ("fused_mlp", ("wide", "bfloat16"), "default", {"layer1_KERNEL": "split", "layer1_BLOCK_M": 192}, "layer1: KERNEL=split has tiles of 64 or 128 × 64 or"),
        ("fused_mlp", ("wide", "float32", "tf32"), "default", {"layer2_KERNEL": "turned"}, "layer2: KERNEL=turned is for 16 bits"),
        ("fused_mlp", ("bottom_2048", "bfloat16"), "default", {"KERNEL": "simt"}, "KERNEL=tensor multiplies bfloat16 in precision ieee, not simt"),
        ("padded_attention", ("wide", "bfloat16"), "flash", {"BLOCK_N": 64}, "KERNEL=warpgroup has tiles of its own, BLOCK_M×BLOCK_N, for D=128: 128×128, 64×128;"),
        ("padded_attention", ("wide_heads", "bfloat16"), "flash", {"BLOCK_N": 128}, "BLOCK_M×BLOCK_N, for D=256: 128×64, 64×64;"),
        ("padded_attention", ("odd", "bfloat16"), "flash", {"WARPS_M": 2}, "BLOCK_M is 16: each of 2 WARPS_M has 16 or 32 rows"),
("interaction", ("main", "float32"), "default", {"BLOCK_K": 24}, "BLOCK_K is 24: there are instances for 16, 32, 64, 128"),
        ("shcsa", ("wide", "bfloat16"), "padded_attention", {"dense_num_stages": 99}, "dense: a block takes .* bytes of shared memory"),
        ("shcsa", ("wide", "bfloat16"), "padded_attention", {"dense_SPLIT": 16}, "dense: KERNEL=warpgroup has tiles .* SPLIT 1, 2, 4, 8"),
        ("shcsa", ("wide", "float32"), "padded_attention", {"dense_SPLIT": 3}, "dense: SPLIT is 3: KERNEL=warpgroup and simt share K, in 2, 4 or 8"),
        ("shcsa", ("wide", "bfloat16"), "padded_attention", {"dense_num_stages": 2}, "num_stages is 2: the sums of other blocks take the place of 3"),
        ("shcsa", ("published", "bfloat16"), "padded_attention", {"attention_BLOCK_M": 128, "attention_WARPS_M": 8, "attention_BLOCK_N": 64, "attention_SPLIT": 8}, "are 49152 bytes, whose place 57344 of other"),
        ("add_relu", ("small", "float32"), "default", {"num_warps": 33}, "num_warps is 33: there are instances for 1 to 32"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_before_compiling(name, case, variant, config, said):
    module, case = module_of(name), make_case(KERNELS[name], *case)
    chosen = module.config(case, variant, H200) | config
    reason = module.fits(case, variant, H200, chosen)
    assert reason and re.search(said, reason), reason


@pytest.mark.parametrize(
    ("case", "device", "said"),
    [
        (("wide", "bfloat16"), H200, ""),
        (("batch", "bfloat16"), H200, r"BLOCK_M×BLOCK_N: 128×128, 64×128; not 128×64"),
        (("odd", "bfloat16"), H200, r"not 128×64"),
        (({"B": 2, "H": 8, "T": 1000, "D": 101}, "bfloat16"), H200, ""),
        (({"B": 2, "H": 8, "T": 120, "D": 101}, "bfloat16"), H200, "KERNEL=warpgroup is for Hopper"),
        (("wide", "float32"), H200, "KERNEL=warpgroup is for Hopper"),
        (("wide", "bfloat16"), A100, "KERNEL=warpgroup is for Hopper"),
    ],
)  # fmt: skip
def test_gradients_of_attention_by_warpgroups_are_for_hopper(case, device, said):
    module, case = module_of("padded_attention"), make_case(KERNELS["padded_attention"], *case, mode="backward")
    config = {f"{launch}_{t}": v for launch in ("queries", "tokens") for t, v in (("KERNEL", "warpgroup"), ("BLOCK_M", 128), ("BLOCK_N", 64))}  # fmt: skip
    reason = module.fits(case, "flash", device, config)
    assert re.search(said, reason) if said else reason is None, reason


@pytest.mark.parametrize(
    ("name", "sizes", "kernel", "blocks"),
    [
        ("lola", (2, 1024, 4096), "few_rows", 128), ("lola", (64, 1024, 4096), "few_rows", 128), ("lola", (100, 768, 3072), "warpgroup", 24),
        ("lola", (129, 1024, 4096), "warpgroup", 64), ("lola", (16, 1001, 4096), "tensor", 64), ("splacc", (16, 512, 2048), "few_rows", 128), ("splacc", (16, 2048, 2048), "split", 64),
        ("splacc", (128, 4096, 4096), "split", 128), ("geglu", (64, 2048, 2048), "split", 64), ("geglu", (1024, 1024, 4096), "warpgroup", 132),
    ],
)  # fmt: skip
def test_few_rows_are_given_to_about_all_multiprocessors(name, sizes, kernel, blocks):
    module, case = module_of(name), make_case(KERNELS[name], dict(zip("MKN", sizes, strict=True)), "bfloat16")
    variant = "multirow" if name == "lola" else "two_accumulators"
    own = module.config(case, variant, H200)
    (launch,) = module.launches(case, variant, H200, own)
    assert (own["KERNEL"], launch.grid) == (kernel, blocks)


@pytest.mark.parametrize(
    ("name", "variant", "sizes", "kernel", "tile"),
    [
        ("lola", "multirow_ws", (2, 1024, 4096), "few_rows", (16, 32)), ("lola", "multirow_ws", (64, 1024, 4096), "few_rows", (32, 64)),
        ("lola", "two_launches", (64, 1024, 4096), "few_rows", (64, 32)), ("lola", "two_launches", (100, 1024, 4096), "few_rows", (64, 64)),
        ("lola", "multirow_ws", (200, 1024, 4096), "simt", (64, 64)),
        ("lola", "multirow_ws", (16, 1001, 3000), "few_rows", (16, 32)), ("lola", "two_launches", (16, 1001, 3001), "few_rows", (16, 32)),
        ("splacc", "two_accumulators", (128, 2048, 2048), "few_rows", (64, 64)), ("splacc", "two_accumulators", (300, 2048, 2048), "simt", (64, 64)),
    ],
)  # fmt: skip
def test_few_rows_of_float32_are_shared_by_warps_where_that_is_faster(name, variant, sizes, kernel, tile):
    module, case = module_of(name), make_case(KERNELS[name], dict(zip("MKN", sizes, strict=True)), "float32", "ieee")
    own = module.config(case, variant, H200)
    assert (own["KERNEL"], (own["BLOCK_M"], own["BLOCK_N"])) == (kernel, tile)


@pytest.mark.parametrize("T", [1024, 2028, 2048, 4096])
def test_few_tiles_of_rows_are_shared_out_to_many_blocks(T):
    module, case = module_of("shcsa"), make_case(KERNELS["shcsa"], {"T": T, "C": 4096, "D": 128}, "bfloat16")
    own = module.config(case, "padded_attention", H200)
    for launch in module.launches(case, "padded_attention", H200, own):
        assert 64 <= launch.grid <= 132 and "warpgroup" in launch.program.name
        assert max(map(max, launch.boxes)) <= 256


@pytest.mark.parametrize(
    ("T", "D", "rows", "stages", "grid"),
    [
        (8192, 64, 64, 3, 128 * 4), (2000, 64, 32, 2, 63 * 4), (1500, 64, 16, 2, 94 * 4), (3000, 64, 64, 3, 47 * 4), (4096, 256, 64, 3, 2 * 64 * 4), (3001, 100, 64, 2, 47 * 4),
        (2000, 300, 64, 3, 3 * 32 * 4), (1001, 130, 32, 2, 2 * 32 * 4), (16385, 64, 64, 2, 257 * 4),
    ],
)  # fmt: skip
def test_rows_share_what_is_read_of_v_and_more_than_128_columns_are_shared_out(T, D, rows, stages, grid):
    """Scores that pass through shared memory leave room for two blocks of a multiprocessor."""
    module, case = module_of("padded_softmax_v"), make_case(KERNELS["padded_softmax_v"], {"T": T, "D": D}, "bfloat16")
    own = module.config(case, "cluster", H200)
    (launch,) = module.launches(case, "cluster", H200, own)
    assert (own["BLOCK_M"], own["num_stages"], launch.grid) == (rows, stages, grid)
    assert rows == 16 or 2 * (launch.shared_memory + 3072) <= 228 << 10


@pytest.mark.parametrize(
    ("D", "T", "dtype", "device", "pitch"),
    [
        (101, 1000, "bfloat16", H200, 104), (127, 1000, "float16", H200, 128), (33, 1000, "bfloat16", H200, 64), (66, 128, "bfloat16", H200, 72),
        (104, 1000, "bfloat16", H200, 0), (32, 1000, "bfloat16", H200, 0), (40, 1000, "bfloat16", H200, 0), (101, 63, "bfloat16", H200, 0),
        (101, 1000, "float32", H200, 0), (101, 1000, "bfloat16", A100, 0), (101, 1000, "bfloat16", B200, 0),
    ],
)  # fmt: skip
def test_rows_that_are_no_whole_vectors_are_copied_for_hoppers_attention(D, T, dtype, device, pitch):
    """To whole vectors, and no less than a box has; backward those of dy."""
    module, kernel = module_of("padded_attention"), KERNELS["padded_attention"]
    for mode, behind, tensors in (("forward", 1, 3), ("backward", 2, 1)):
        case = make_case(kernel, {"B": 2, "H": 8, "T": T, "D": D}, dtype, mode=mode)
        *copy, first = module.launches(case, "flash", device, module.config(case, "flash", device))[
            : 1 - behind or None
        ]
        assert bool(copy) == bool(pitch)
        if copy:
            assert (first.program.name.split("<")[0], first.overlaps) == (
                {1: "flash_warpgroup", 2: "query_gradients_warpgroup"}[behind],
                True,
            )
            assert copy[0].program.name == f"whole_rows<{dtype}, {tensors}, {pitch}, 4>" and not copy[0].overlaps
            vectors = 16 * T * pitch // 8
            assert 0 <= copy[0].grid // tensors * 1024 - vectors < 1024


@pytest.mark.parametrize(
    ("D", "T", "dtype", "device", "mode", "runs"),
    [
        (256, 64, "bfloat16", H200, "forward", True), (129, 64, "float16", H200, "forward", True), (257, 4096, "bfloat16", H200, "forward", False),
        (256, 63, "bfloat16", H200, "forward", False), (256, 4096, "float32", H200, "forward", False), (256, 4096, "bfloat16", A100, "forward", False),
        (256, 4096, "bfloat16", H200, "backward", False), (128, 63, "float32", A100, "backward", True),
    ],
)  # fmt: skip
def test_attention_of_more_than_128_columns_is_for_hoppers_warpgroups_alone(D, T, dtype, device, mode, runs):
    module = module_of("padded_attention")
    case = make_case(KERNELS["padded_attention"], {"B": 1, "H": 2, "T": T, "D": D}, dtype, mode=mode)
    reason = module.skip(case, "flash", device)
    if runs:
        assert reason is None
        assert module.fits(case, "flash", device, module.config(case, "flash", device)) is None
    else:
        assert reason.startswith(f"D is {D}: rows of more than 128 elements")


@pytest.mark.parametrize("device", SHARED_BYTES, ids=lambda d: d.name)
def test_softmax_of_given_scores_times_v_has_a_config_for_any_sizes(device):
    kernel, module = KERNELS["padded_softmax_v"], module_of("padded_softmax_v")
    for T, D, dtype in itertools.product((131, 3001, 4096), (1, 100, 128, 130, 700), DTYPES):
        case = make_case(kernel, {"T": T, "D": D}, *dtype)
        for variant in module.VARIANTS:
            if module.skip(case, variant, device) is None:
                own = module.config(case, variant, device)
                assert module.fits(case, variant, device, own) is None
            else:
                assert variant == "whole_row" or device.capability < (9, 0)


@pytest.mark.parametrize("layout", ["kn", "nk"])
def test_wide_layers_of_an_mlp_are_launches_of_their_own(layout):
    """Where hidden layers are no whole vectors, too; one launch where rows are few and layers narrow."""
    module = module_of("fused_mlp")
    for widths, M, kernels in (
        ((1024, 1024, 1024, 1, 1), 2048, ["warpgroup", "warpgroup"]),
        ((256, 1001, 515, 128, 1), 8192, ["warpgroup", "warpgroup", "turned"]),
        ((768, 3072, 768, 1, 1), 300, ["turned", "split"]),
        ((1024, 1024, 1024, 1, 1), 16, ["few_rows", "few_rows"]),
    ):
        count = len(kernels)
        sizes = {"M": M, "LAYERS": count} | {f"N{i}": n for i, n in enumerate(widths)}
        case = make_case(KERNELS["fused_mlp"], sizes, "bfloat16", options={"w_layout": layout})
        own = module.config(case, "default", H200)
        assert [own[f"layer{i + 1}_KERNEL"] for i in range(count)] == kernels
        assert len(module.launches(case, "default", H200, own)) == count
        for layer in module.layers.layers(case)[:-1]:
            assert layer.product.sizes["N"] % 8 == 0
    small = {"LAYERS": 3, "N0": 64, "N1": 128, "N2": 64, "N3": 1, "N4": 1}  # a block has all weights
    for sizes, kernel in (
        ("bottom_65536", "warpgroup"),
        ("odd", "layers"),  # whose hidden layers are no whole vectors
        ("bottom", "few_rows"),
        (small | {"M": 1024}, "few_rows"),
        (small | {"M": 4096}, "warpgroup"),
    ):
        case = make_case(KERNELS["fused_mlp"], sizes, "bfloat16", options={"w_layout": layout})
        assert module.config(case, "default", H200)["KERNEL"] == kernel


@pytest.mark.parametrize("layout", ["kn", "nk"])
def test_three_layers_of_many_rows_are_in_registers_before_a_fourth(layout):
    """Where the third is too wide for the fourth to be there, too; few rows, or hidden layers of no whole vectors, are a launch each."""
    module, widths = module_of("fused_mlp"), {"LAYERS": 4, "N0": 100, "N1": 400, "N2": 200, "N3": 80, "N4": 10}
    for changed, kernel in (
        ({}, "three_and_one"),
        ({"M": 2000}, "layers"),
        ({"N3": 81}, "layers"),
        ({"N3": 64}, "warpgroup"),
    ):
        case = make_case(
            KERNELS["fused_mlp"], {"M": 20000} | widths | changed, "bfloat16", options={"w_layout": layout}
        )
        own = module.config(case, "default", H200)
        assert (own["KERNEL"], module.fits(case, "default", H200, own)) == (kernel, None)
        names = [launch.program.name.partition("<")[0] for launch in module.launches(case, "default", H200, own)]
        assert kernel != "three_and_one" or names == ["mlp_warpgroup", "layer_split"]


@pytest.mark.parametrize(("dtype", "precision"), [("bfloat16", "ieee"), ("float32", "tf32")])
def test_a_layer_of_few_columns_is_not_read_by_elements(dtype, precision):
    """Where its y alone has no whole vectors, the copy engine brings x and W, of which there are fewer columns than a box has."""
    module = module_of("fused_mlp")
    sizes = {"M": 2000, "LAYERS": 3, "N0": 512, "N1": 1024, "N2": 264, "N3": 1, "N4": 1}
    case = make_case(KERNELS["fused_mlp"], sizes, dtype, precision)
    own = module.config(case, "default", H200)
    assert own["layer3_KERNEL"] == "split" and module.fits(case, "default", H200, own) is None
    tensor = own | {"layer3_KERNEL": "tensor", "layer3_BLOCK_M": 16, "layer3_BLOCK_N": 64, "layer3_CLUSTER": 1}
    tiles, last = tensor | {"layer3_num_stages": 4}, own | {"layer3_BLOCK_N": 128}
    assert module.fits(case, "default", H200, tiles) is None
    assert "N from 128" in module.fits(case, "default", H200, last)


@pytest.fixture
def handed(monkeypatch):
    """The arguments of each launch, whose tensors have the dtypes that it names; on the CPU, where no kernel computes anything."""
    from implementations._shared.cuda import launch as shared

    seen = []

    class Launcher:
        def __init__(self, program, grid, block, shared_memory, boxes, dtypes, **_):
            self.dtypes = dtypes

        def __call__(self, *arguments):
            tensors = [(place, a) for place, a in enumerate(arguments) if isinstance(a, torch.Tensor)]
            assert all(a.is_contiguous() for _, a in tensors)
            own = ["float32" if self.dtypes[place] == "tf32" else self.dtypes[place] for place, _ in tensors]
            assert [str(a.dtype) for _, a in tensors] == [f"torch.{dtype}" for dtype in own]
            seen.append(arguments)

        def returning(self, outputs, numbers=(), absent=()):
            """As the real one: whoever calls hands over the tensors that are neither made nor absent."""
            dtypes = [getattr(torch, "float32" if name == "tf32" else name) for name in self.dtypes]

            def call(*given):
                made, rest = {p: torch.empty(shape, dtype=dtypes[p]) for p, shape in outputs.items()}, iter(given)
                tensors = [made[p] if p in made else 0 if p in absent else next(rest) for p in range(len(dtypes))]
                assert not [*rest]
                self(*tensors, *numbers)
                found = tuple(made[place] for place in sorted(made))
                return found if len(found) > 1 else found[0]

            return call

    monkeypatch.setattr(shared, "Launcher", Launcher)
    return seen


def tensors_of(name, case):
    """The inputs of a case by their names."""
    mathematics, rng = KERNELS[name].mathematics, np.random.default_rng(0)
    arrays = {**mathematics.inputs(case, rng), **mathematics.weights(case, rng)}
    tensors = {n: torch.from_numpy(np.asarray(a)) for n, a in arrays.items()}
    own = {n: getattr(torch, mathematics.own_dtypes.get(n, case.dtype) or "float32") for n in arrays}
    return {n: t.to(own[n]) if t.is_floating_point() else t for n, t in tensors.items()}


@pytest.mark.parametrize("name", KERNELS)
def test_calls_hand_over_what_the_launches_say(name, handed):
    """And no operator of Torch computes anything."""
    from fusebench.backends.torch import watch

    module = module_of(name)
    for case, variant in cells(name, H200, lambda case: case.startswith("odd") or case == "one"):
        tensors = tensors_of(name, case).values()
        prepared = getattr(module, "prepare", lambda *_: ())(case, variant, *tensors)
        config = module.config(case, variant, H200)
        before = len(handed)
        _, beside = watch(module.build(case, variant, H200, config), [*tensors, *prepared])
        assert not beside, (case.id, variant, beside)
        assert len(handed) - before == len(module.launches(case, variant, H200, config)), (case.id, variant)
    assert handed


@pytest.mark.parametrize("name", [n for n, k in KERNELS.items() if k.implementations["cuda"].backward])
def test_gradients_have_the_shapes_of_what_they_are_of(name, handed):
    module, mathematics = module_of(name), KERNELS[name].mathematics
    for case, variant in cells(name, H200, lambda case: case.startswith("odd") or case == "small", modes=("backward",)):
        tensors = tensors_of(name, case)
        prepared = getattr(module, "prepare", lambda *_: ())(case, variant, *tensors.values())
        forward, backward = module.build(case, variant, H200, module.config(case, variant, H200))
        y, residuals = forward(*tensors.values(), *prepared)
        before = len(handed)
        found = backward(residuals, torch.empty_like(y))
        expected = [tensors[n] for n in mathematics.gradients if n in tensors]
        shapes = [(g.shape, g.dtype) for g in (found if isinstance(found, tuple | list) else (found,))]
        assert shapes == [(t.shape, t.dtype) for t in expected], (case.id, variant)
        assert len(handed) - before == len(module.launches(case, variant, H200, module.config(case, variant, H200)))
    assert handed


@pytest.mark.parametrize(
    "sizes", [(1024, 1024, 4096), (4096, 4096, 4096), (128, 256, 264), (777, 1000, 3001), (8192, 768, 3072)]
)
def test_both_gradients_are_shared_out_evenly(sizes):
    """By the whole tiles that every cluster makes, and its piece of what is left."""
    from implementations._shared.cuda import linear_gradients

    case = make_case(KERNELS["lola"], dict(zip("MKN", sizes, strict=True)), "bfloat16", mode="backward")
    config = linear_gradients.config(case, H200)
    for cluster in (1, 2):
        shared, whole = (
            linear_gradients.shares(case, H200, config | {"CLUSTER": cluster, "SCHEDULE": schedule})
            for schedule in ("stream_k", "tiles")
        )
        rows, columns, clusters = config["BLOCK_M"] * cluster, config["BLOCK_N"], 132 // cluster
        M, K, N = sizes
        slabs = sum(-(-a // rows) * -(-b // columns) * -(-deep // 64) for a, b, deep in ((M, K, N), (K, N, M)))
        assert slabs / clusters <= shared.slabs <= slabs / clusters + 1 + 2 * shared.snap
        assert whole.slabs >= shared.slabs - 2 * shared.snap


@pytest.mark.parametrize(
    ("name", "sizes", "dtype", "count"),
    [
        ("lola", (1024, 1024, 4096), "bfloat16", 2), ("lola", (777, 1000, 3001), "bfloat16", 2), ("lola", (1, 1024, 4096), "bfloat16", 2),
        ("lola", (100, 1024, 4096), "bfloat16", 2), ("lola", (100, 1001, 4096), "bfloat16", 2), ("lola", (1024, 1024, 4096), "float32", 3), ("geglu", (64, 1024, 4096), "float16", 2),
        ("splacc", (2048, 4096, 4096), "bfloat16", 2), ("splacc", (777, 1000, 1501), "bfloat16", 2),
    ],
)  # fmt: skip
def test_a_layers_backward_call_is_two_launches_where_both_products_are_one(name, sizes, dtype, count):
    module, variant = module_of(name), "multirow" if name == "lola" else "two_accumulators"
    case = make_case(KERNELS[name], dict(zip("MKN", sizes, strict=True)), dtype, mode="backward")
    assert len(module.launches(case, variant, H200, module.config(case, variant, H200))) == count


@pytest.mark.parametrize(
    ("name", "sizes", "cluster"),
    [
        ("lola", (200, 1024, 4096), 4), ("lola", (256, 768, 3072), 4), ("splacc", (200, 1024, 2048), 4), ("lola", (512, 512, 2048), 4),
        ("lola", (500, 1024, 4096), 2), ("splacc", (400, 1024, 2048), 2), ("lola", (400, 768, 2048), 2),
        ("lola", (777, 1000, 3000), 0), ("lola", (1024, 1024, 4096), 0), ("lola", (256, 4096, 4096), 0),
    ],
)  # fmt: skip
def test_tiles_of_dx_are_shared_beside_those_of_dW_where_they_are_few(name, sizes, cluster):
    """On an H200 each was the fastest there."""
    module, variant = module_of(name), "multirow" if name == "lola" else "two_accumulators"
    case = make_case(KERNELS[name], dict(zip("MKN", sizes, strict=True)), "bfloat16", mode="backward")
    config = module.config(case, variant, H200)
    (products,) = module.launches(case, variant, H200, config)[1:]
    assert products.program.name.startswith("gradients_beside<" if cluster else "gradients_together<")
    assert config.get("beside_CLUSTER", 0) == cluster


BY_WARPGROUPS = "linear_warpgroup<", "linear_split<"


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("lola", (200, 264, 264)), ("lola", (130, 257, 301)), ("geglu", (200, 264, 133)), ("splacc", (200, 264, 133)), ("splacc", (777, 1000, 3001))],
)  # fmt: skip
def test_rows_longer_than_what_is_in_them_are_multiplied_by_warpgroups(name, sizes):
    """The kernels of tensor cores, which an H100 found reading beside them, count on rows without gaps."""
    module, variant = module_of(name), "multirow" if name == "lola" else "two_accumulators"
    for layout in ("kn", "nk"):
        shape = dict(zip("MKN", sizes, strict=True))
        case = make_case(KERNELS[name], shape, "bfloat16", options={"w_layout": layout}, mode="forward_backward")
        names = [p.program.name for p in module.launches(case, variant, H200, module.config(case, variant, H200))]
        (linear,) = [own for own in names if own.startswith("linear_")]
        assert linear.startswith(BY_WARPGROUPS) and any(own.startswith("gradients_together<") for own in names)


@pytest.mark.parametrize(
    ("name", "sizes", "few"),
    [
        ("lola", (100, 1001, 3000), True), ("lola", (1, 1000, 3001), True), ("geglu", (96, 598, 4608), True), ("splacc", (128, 292, 6752), True),
        ("lola", (100, 60, 3000), False), ("lola", (100, 1001, 127), False), ("splacc", (129, 292, 6752), False),
    ],
)  # fmt: skip
def test_few_rows_of_no_whole_vectors_are_filled_up_where_warpgroups_multiply_them(name, sizes, few):
    module, variant = module_of(name), "multirow" if name == "lola" else "two_accumulators"
    for layout in ("kn", "nk"):
        shape, options = dict(zip("MKN", sizes, strict=True)), {"w_layout": layout}
        case = make_case(KERNELS[name], shape, "bfloat16", options=options, mode="forward_backward")
        names = [p.program.name for p in module.launches(case, variant, H200, module.config(case, variant, H200))]
        assert any(own.startswith("gradients_few_rows<") for own in names) == few
        assert not few or any(own.startswith(BY_WARPGROUPS) for own in names)


@pytest.mark.parametrize(
    ("name", "sizes", "dtype", "one"),
    [
        ("geglu", (1, 1024, 4096), "bfloat16", True), ("splacc", (1, 1000, 3001), "float16", True), ("geglu", (8, 1000, 512), "bfloat16", True),
        # too many rows, or elements, for each block to make them; float32 has a launch of each product; too many columns of dx for one tile each
        ("geglu", (9, 1000, 512), "bfloat16", False), ("splacc", (4, 1024, 1025), "bfloat16", False), ("geglu", (1, 1024, 4096), "float32", False),
        ("splacc", (1, 16384, 64), "bfloat16", False),
    ],
)  # fmt: skip
def test_blocks_make_the_gradient_before_the_gate_for_themselves_where_there_is_little_of_it(name, sizes, dtype, one):
    module = module_of(name)
    for layout in ("kn", "nk"):
        shape, options = dict(zip("MKN", sizes, strict=True)), {"w_layout": layout}
        case = make_case(KERNELS[name], shape, dtype, options=options, mode="backward")
        chosen = module.config(case, "two_accumulators", H200)
        assert module.fits(case, "two_accumulators", H200, chosen) is None
        names = [p.program.name for p in module.launches(case, "two_accumulators", H200, chosen)]
        assert (len(names) == 1 and names[0].startswith("gated_few_rows<")) == one


@pytest.mark.parametrize("columns", (113, 114, 127, 128, 129, 240, 241, 256, 1000, 6002))
def test_strips_have_all_columns_wherever_a_row_begins(columns):
    """Those of a row that begins amid a sector begin, and end, at the sector's begin."""
    from implementations._shared.cuda import gated_few_rows

    found = gated_few_rows.strips(columns)
    starts = {row * columns % gated_few_rows.SECTOR for row in range(gated_few_rows.SECTOR)}
    assert all(found * gated_few_rows.COLUMNS - start >= columns for start in starts)
    assert (found - 1) * gated_few_rows.COLUMNS - 15 < columns


@pytest.mark.parametrize("sizes", [(1, 1024, 4096), (8, 1000, 501), (1, 1024, 2048)])
def test_blocks_of_few_gated_rows_run_at_once(sizes):
    module, variant = module_of("splacc"), "two_accumulators"
    case = make_case(KERNELS["splacc"], dict(zip("MKN", sizes, strict=True)), "bfloat16", mode="backward")
    (launch,) = module.launches(case, variant, H200, module.config(case, variant, H200))
    assert launch.grid <= 2 * 132


@pytest.mark.parametrize(
    ("sizes", "begins"),
    [
        ((1, 1024, 2048), ["kept_few_rows", "gated_few_rows"]), ((64, 1024, 2048), ["kept_few_rows", "pull_gate", "gradients_few_rows"]),
        ((1, 1000, 3001), ["whole_rows", "linear_split", "gated", "gated_few_rows"]),  # these rows of W are copied
        ((200, 1024, 2048), ["linear_split", "gated", "pull_gate", "gradients_beside"]),
        ((1024, 1024, 2048), ["linear_warpgroup", "gated", "pull_gate", "gradients_together"]),
    ],
)  # fmt: skip
def test_a_gated_step_has_one_launch_forward_where_rows_are_few_and_whole(sizes, begins):
    shape = dict(zip("MKN", sizes, strict=True))
    case = make_case(KERNELS["geglu"], shape, "bfloat16", mode="forward_backward")
    module, variant = module_of("geglu"), "two_accumulators"
    launches = module.launches(case, variant, H200, module.config(case, variant, H200))
    assert [p.program.name.partition("<")[0] for p in launches] == begins


@pytest.mark.parametrize(
    ("sizes", "begins"),
    [
        ((1, 1024, 4096), ["kept_few_rows"]), ((64, 1024, 4096), ["kept_few_rows"]), ((48, 1001, 3001), ["statistics_shared", "linear_split"]),
        ((1024, 1024, 4096), ["statistics", "summed_warpgroup"]), ((200, 1024, 4096), ["statistics", "summed_warpgroup"]),
        ((300, 4096, 512), ["statistics_shared", "linear_split"]),  # of few tiles, each of which has to be added up
    ],
)  # fmt: skip
def test_lolas_forward_pass_before_gradients_is_one_launch_or_two(sizes, begins):
    case = make_case(KERNELS["lola"], dict(zip("MKN", sizes, strict=True)), "bfloat16", mode="forward_backward")
    module = module_of("lola")
    launches = module.launches(case, "multirow", H200, module.config(case, "multirow", H200))
    assert [p.program.name.partition("<")[0] for p in launches][: len(begins)] == begins
    assert launches[len(begins)].program.name.startswith("pull_back<")


@pytest.mark.parametrize(("K", "N"), [(1024, 4096), (1001, 3001), (515, 131), (64, 9001), (64, 70)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_that_sum_columns_copy_whole_rows_of_W(K, N, dtype):
    from implementations._shared.cuda import layer_backward
    from implementations.lola import _cuda_backward

    case = make_case(KERNELS["lola"], {"M": 600, "K": K, "N": N}, dtype, mode="forward_backward")
    lanes, sharers, blocks = _cuda_backward.column_blocks(case, H200)
    columns = blocks // sharers * lanes * 16 // case.itemsize
    assert blocks % sharers == 0 and columns >= layer_backward.whole_rows(case, H200).sizes["N"]
    assert columns - N < (64 + lanes * 16 // case.itemsize)


def test_a_training_step_of_few_rows_has_little_memory_beside_its_outputs(monkeypatch):
    """The arrays between its launches are mostly where gradients will be."""
    from implementations._shared.cuda import launch as shared

    made = {}

    class Launcher:
        def __init__(self, *_, **__):
            pass

        def __call__(self, *arguments):
            tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
            made.update({a.untyped_storage().data_ptr(): a.untyped_storage().nbytes() for a in tensors})

    monkeypatch.setattr(shared, "Launcher", Launcher)
    module, mathematics = module_of("dlrm_train"), KERNELS["dlrm_train"].mathematics
    case = make_case(KERNELS["dlrm_train"], mathematics.cases["main"] | {"V": 10}, "bfloat16")
    rng = np.random.default_rng(0)
    arrays = {**mathematics.inputs(case, rng), **mathematics.weights(case, rng)}
    tensors = [torch.from_numpy(np.asarray(a)) for a in arrays.values()]
    tensors[0] = tensors[0].bfloat16()
    config = module.config(case, "modulus_two_launches", H200)
    outputs = module.build(case, "modulus_two_launches", H200, config)(*tensors)
    for a in tensors:
        made.pop(a.untyped_storage().data_ptr(), None)
    returned = {a.untyped_storage().data_ptr(): a.untyped_storage().nbytes() for a in outputs}
    beside = sum(size for place, size in made.items() if place not in returned)
    assert beside < 0.15 * sum(made.values())


@pytest.mark.parametrize(
    "name, variant", [("lola", "multirow_ws"), ("splacc", "two_accumulators"), ("geglu", "two_accumulators")]
)
def test_hopper_multiplies_tf32_and_odd_columns_from_weights_that_are_prepared(name, variant):
    module, odd = module_of(name), {"M": 777, "K": 1000, "N": 3001}
    for sizes, dtype, precision in ((odd, "float16", "ieee"), (odd | {"N": 3000}, "float32", "tf32")):
        case = make_case(KERNELS[name], sizes, dtype, precision)
        (launch,) = module.launches(case, variant, H200, module.config(case, variant, H200))
        kernel = "turned" if dtype == "float16" and name != "lola" else "warpgroup"
        assert f"_{kernel}<" in launch.program.name
        W = torch.zeros((sizes["K"], sizes["N"] * (1 if name == "lola" else 2)), dtype=getattr(torch, dtype))
        *_, prepared = module.prepare(case, variant, *(None, W, None)[: 2 if name == "splacc" else 3])
        assert prepared.shape == (W.shape[1], 1024 if kernel == "turned" else 1000) and prepared.is_contiguous()
        kept = make_case(KERNELS[name], sizes, dtype, precision, {"w_layout": "nk"})
        assert len(module.prepare(kept, variant, *(None, W.T, None)[: 2 if name == "splacc" else 3])) == (
            name == "lola" or kernel == "turned"
        )


@pytest.mark.parametrize(
    "N, layout, shape",
    [(3008, "kn", None), (3001, "kn", (3001, 1024)), (3001, "nk", (3001, 1024))],
    ids=["W as it is", "W turned", "W filled up"],
)
def test_two_launches_of_lola_take_rows_that_are_no_whole_vectors(N, layout, shape):
    module, case = (
        module_of("lola"),
        make_case(KERNELS["lola"], {"M": 200, "K": 1001, "N": N}, "bfloat16", "ieee", {"w_layout": layout}),
    )
    W = torch.ones((1001, N) if layout == "kn" else (N, 1001), dtype=torch.bfloat16)
    colsum, *prepared = module.prepare(case, "two_launches", None, W, None)
    assert colsum.tolist() == [1001.0] * N and [tuple(p.shape) for p in prepared] == ([shape] if shape else [])
    assert all(p[:, 1001:].count_nonzero() == 0 and p[:, :1001].eq(1).all() for p in prepared)
    first, last = module.launches(case, "two_launches", H200, module.config(case, "two_launches", H200))
    assert "row_statistics<bfloat16, false, 4>" in first.program.name and "normed_turned" in last.program.name


@pytest.mark.parametrize(
    ("name", "variant", "K", "N", "layout", "shape"),
    [
        ("lola", "multirow_ws", 72, 77, "kn", (72, 80)), ("lola", "multirow_ws", 75, 77, "kn", None), ("lola", "multirow_ws", 72, 77, "nk", None),
        ("lola", "two_launches", 75, 77, "kn", (96, 80)), ("lola", "two_launches", 96, 80, "kn", None), ("lola", "two_launches", 75, 77, "nk", (77, 96)),
        ("splacc", "two_accumulators", 72, 77, "kn", (72, 160)), ("splacc", "two_launches", 75, 77, "kn", (76, 160)),
        ("geglu", "two_launches", 75, 76, "kn", (76, 152)), ("geglu", "two_launches", 72, 77, "nk", None),
    ],
)  # fmt: skip
def test_rows_of_W_in_ieee_float32_are_filled_up_to_whole_vectors(name, variant, K, N, layout, shape):
    module, parts = module_of(name), 1 if name == "lola" else 2
    case = make_case(KERNELS[name], {"M": 70, "K": K, "N": N}, "float32", "ieee", {"w_layout": layout})
    W = torch.arange(1.0, 1 + K * N * parts).reshape((K, N * parts) if layout == "kn" else (N * parts, K))
    given = (None, W) if name == "splacc" else (None, W, None)
    prepared = [p for p in module.prepare(case, variant, *given) if p.dim() == 2]
    assert [tuple(p.shape) for p in prepared] == ([shape] if shape else [])
    for filled in prepared:
        own = filled[:K].unflatten(1, (parts, -1))[..., :N].flatten(1) if layout == "kn" else filled[:, :K]
        assert own.equal(W) and filled.count_nonzero() == W.numel()


@pytest.mark.parametrize(
    ("M", "N", "dtype", "parts", "blocks"),
    [
        (128, 512, "bfloat16", 1, 16), (37, 203, "bfloat16", 1, 1), (1, 100001, "bfloat16", 1, 391),  # one launch
        (5000, 333, "bfloat16", 216, 297), (1000, 1000, "float32", 42, 336), (65536, 4096, "bfloat16", 24, 384),
        (1000000, 3, "bfloat16", 367, 367), (3, 100001, "float32", 3, 2344),
    ],
)  # fmt: skip
def test_sums_of_columns_have_few_parts(M, N, dtype, parts, blocks):
    """Of few rows none, and otherwise no more than there are blocks."""
    case, module = make_case(KERNELS["add_mul_act"], {"M": M, "N": N}, dtype, mode="backward"), module_of("add_mul_act")
    first, *behind = module.launches(case, "default", H200, module.config(case, "default", H200))
    assert first.grid == blocks and [launch.sizes for launch in behind] == [(parts, N)] * (parts > 1)
    assert all(launch.overlaps for launch in behind)


def test_a_block_has_no_more_columns_than_places():
    case, module = (
        make_case(KERNELS["add_mul_act"], {"M": 5000, "N": 2049}, "bfloat16", mode="backward"),
        module_of("add_mul_act"),
    )
    config = module.config(case, "default", H200) | {"gradient_LANES": 256}
    assert module.fits(case, "default", H200, config) == "LANES=256: a block has 2048 elements side by side, a row 2049"


def test_small_blocks_do_not_begin_while_the_launch_before_them_ends():
    """They would all go to the multiprocessors that it leaves first: dx of lola took twice as long."""
    case, module = make_case(KERNELS["lola"], "batch", "float32", mode="backward"), module_of("lola")
    _, dx, dW = module.launches(case, "multirow", H200, module.config(case, "multirow", H200))
    assert (dx.block, dx.overlaps) == (64, False) and (dW.block, dW.overlaps) == (256, True)


def test_clusters_of_four_that_do_not_all_run_at_once_are_not_chosen():
    """64 of 1000×1024 with two blocks a multiprocessor, where 62 run at once, took an H200 320 µs, others 220."""
    case, module = make_case(KERNELS["lola"], {"M": 1000, "K": 4096, "N": 1024}, "float32"), module_of("lola")
    config = module.config(case, "two_launches", H200)
    assert (config["BLOCK_M"], config["CLUSTER"]) != (128, 4)


@pytest.mark.parametrize(
    ("name", "variant", "M", "K", "of_product"),
    [
        ("lola", "two_launches", 2049, 4104, 4160), ("lola", "two_launches", 2049, 4160, 4160), ("lola", "two_launches", 200, 1032, 1032),
        ("splacc", "two_launches", 2049, 4104, 4160), ("splacc", "two_accumulators", 2049, 4104, 4160),
    ],
)  # fmt: skip
def test_rows_of_a_large_product_are_copied_into_whole_lines(name, variant, M, K, of_product):
    """Where the copy takes less time than they save; W is where it is turned, too."""
    module, N = module_of(name), 4096
    case = make_case(KERNELS[name], {"M": M, "K": K, "N": N}, "bfloat16", "ieee", {"w_layout": "nk"})
    W = torch.ones((N if name == "lola" else 2 * N, K), dtype=torch.bfloat16)
    prepared = [p for p in module.prepare(case, variant, None, W, *([None] if name == "lola" else [])) if p.dim() == 2]
    assert [tuple(p.shape) for p in prepared] == ([(len(W), of_product)] if of_product != K else [])
    *_, product = module.launches(case, variant, H200, module.config(case, variant, H200))
    assert ("_warpgroup<" if M > 200 else "_turned<") in product.program.name


@pytest.mark.parametrize("device", [A100, H200, B200], ids=["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", ["splacc", "geglu"])
def test_every_device_multiplies_rows_that_are_no_whole_lines(name, device):
    """On Hopper alone W has rows of whole lines beside shorter ones of x."""
    module = module_of(name)
    for variant, layout in itertools.product(("two_accumulators", "two_launches"), ("kn", "nk")):
        case = make_case(KERNELS[name], {"M": 500, "K": 1000, "N": 5000}, "bfloat16", "ieee", {"w_layout": layout})
        own = module.config(case, variant, device)
        assert module.fits(case, variant, device, own) is None
        assert (own["KERNEL"] == "tensor") == (device is not H200)


@pytest.mark.parametrize(
    ("sizes", "options", "device", "launches"),
    [
        ({"M": 1}, {}, H200, ["few_rows::whole"]), ({"M": 64}, {}, H200, ["few_rows::whole"]), ({"M": 32}, {}, A100, ["few_rows::whole"]),
        ({"M": 2}, {"activation": "silu"}, H200, ["pulled", "few_rows::whole"]), ({"M": 65}, {}, H200, ["few", "products"]),
        ({"M": 2, "R": 33}, {}, H200, ["few", "products"]),
        ({"M": 2, "N": 1028}, {"activation": "silu"}, H200, ["pulled", "few_rows::whole"]), ({"M": 1, "R": 17}, {}, H200, ["few_rows::whole"]),
        ({"M": 1, "N": 1028}, {}, H200, ["filled", "few_rows::whole"]),  # dy's rows
        ({"M": 2}, {"w_layout": "nk"}, H200, ["few", "products"]), ({"M": 64}, {}, A100, ["few", "products"]), ({"M": 1}, {}, RTX3090, ["few", "products"]),
    ],
)  # fmt: skip
def test_lora_of_few_rows_is_one_launch_backward(sizes, options, device, launches):
    sizes = {"K": 512, "N": 1024, "R": 16} | sizes
    case = make_case(KERNELS["lora_linear"], sizes, "bfloat16", options=options, mode="backward")
    module = module_of("lora_linear")
    config = module.config(case, "two_launches", device)
    found = module.launches(case, "two_launches", device, config)
    assert [launch.program.name.partition("<")[0] for launch in found] == launches
    assert (module.fits(case, "two_launches", device, config | {"KERNEL": "whole"}) is None) == (
        "few_rows::whole" in launches
    )


@pytest.mark.parametrize(
    ("sizes", "device", "begins"),
    [
        # rows of whole vectors are read as they came; others, copied once, by warpgroups, and elsewhere by elements
        ((48, 1000, 3000, 16), H200, ["down_by_parts", "up_split"]), ((48, 1000, 3001, 16), H200, ["filled", "down_by_parts", "up_split"]),
        ((2000, 1000, 3001, 16), H200, ["filled", "down_by_parts", "up_warpgroup"]), ((48, 1000, 3001, 16), A100, ["filled", "down", "up"]),
    ],
)  # fmt: skip
def test_loras_forward_pass_before_gradients_reads_rows_filled_up(sizes, device, begins):
    case = make_case(KERNELS["lora_linear"], dict(zip("MKNR", sizes, strict=True)), "bfloat16", mode="forward_backward")
    module = module_of("lora_linear")
    launches = module.launches(case, "two_launches", device, module.config(case, "two_launches", device))
    assert [p.program.name.partition("<")[0] for p in launches][: len(begins)] == begins


@pytest.mark.parametrize(
    ("sizes", "dtype", "device", "launches"),
    [
        ({}, "bfloat16", H200, ["down_by_parts", "up_warpgroup"]), ({"R": 13}, "float16", H200, ["down_by_parts", "up_warpgroup"]),
        ({"M": 8192}, "bfloat16", H200, ["down_by_parts", "up_warpgroup"]), ({"M": 16384}, "bfloat16", H200, ["down", "up_warpgroup"]), ({}, "float32", H200, ["down_by_parts", "up_simt"]),
        ({"M": 127}, "bfloat16", H200, ["down_by_parts", "up_split"]), ({"M": 512}, "float16", H200, ["down_by_parts", "up_warpgroup"]),
        ({"M": 63}, "bfloat16", H200, ["down_by_parts", "up_split"]), ({"M": 8, "N": 2048}, "bfloat16", H200, ["down_by_parts", "up_few_rows"]), ({"M": 33}, "float32", A100, ["down", "up_few_rows"]), ({"N": 1001}, "bfloat16", H200, ["down_by_parts", "up_warpgroup"]),
        ({"K": 4095}, "float16", H200, ["down_by_parts", "up_warpgroup"]), ({"K": 63}, "bfloat16", H200, ["down", "up"]),
        ({"K": 4095}, "float32", H200, ["down_by_parts", "up_simt"]), ({"K": 4095}, "bfloat16", A100, ["down", "up"]),
        ({}, "bfloat16", A100, ["down", "up"]),
    ],
)  # fmt: skip
def test_lora_multiplies_by_warpgroups_where_they_can(sizes, dtype, device, launches):
    case = make_case(KERNELS["lora_linear"], {"M": 2048, "K": 4096, "N": 4096, "R": 16} | sizes, dtype)
    module = module_of("lora_linear")
    config = module.config(case, "two_launches", device)
    assert module.fits(case, "two_launches", device, config) is None
    found = module.launches(case, "two_launches", device, config)
    assert [launch.program.name.partition("<")[0] for launch in found] == launches
    tile = {"up_KERNEL": "warpgroup", "up_BLOCK_M": 128, "up_BLOCK_N": 128, "up_num_stages": 3, "up_CLUSTER": 1}
    by_warpgroups = module.fits(case, "two_launches", device, config | tile) is None
    assert by_warpgroups == (launches[-1] != "up" and dtype != "float32")


@pytest.mark.parametrize(
    ("sizes", "device", "mode", "up"),
    [
        ({}, H200, "forward", "up_warpgroup"), ({"M": 1024, "K": 1024, "N": 1024}, H200, "forward", "up_split"),
        ({"K": 4095, "N": 4097}, H200, "forward", "up_warpgroup"), ({"M": 32}, H200, "forward", "up_few_rows"), ({"M": 64}, H200, "forward", "up_split"), ({"M": 8, "N": 2048}, H200, "forward", "up_few_rows"),
        ({"K": 63}, H200, "forward", "up"), ({"N": 127}, H200, "forward", "up"), ({}, A100, "forward", "up"),
        ({}, H200, "forward_backward", "up"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("layout", ["kn", "nk"])
def test_lora_in_tf32_multiplies_by_warpgroups_what_prepare_has_turned(sizes, device, mode, up, layout):
    """Which is nothing in modes with gradients, even where W is (N, K): B is not."""
    sizes, options = {"M": 2048, "K": 4096, "N": 4096, "R": 16} | sizes, {"w_layout": layout, "activation": "none"}
    case = make_case(KERNELS["lora_linear"], sizes, "float32", "tf32", options, mode)
    module = module_of("lora_linear")
    config = module.config(case, "two_launches", device)
    if mode == "forward":
        assert module.fits(case, "two_launches", device, config) is None
        tile = {"up_BLOCK_M": 64, "up_BLOCK_N": 64, "up_CLUSTER": 2, "up_num_stages": 3, "up_SCHEDULE": "tiles"}
        for own in ({"up_KERNEL": "warpgroup", "up_BLOCK_M": 128, "up_BLOCK_N": 128}, {"up_KERNEL": "split"}):
            reason = module.fits(case, "two_launches", device, tile | own)
            assert (reason is None) == (up != "up"), own
    found = module.launches(case, "two_launches", device, config)[1]
    assert found.program.name.partition("<")[0] == up
    assert found.dtypes[:6] == (*("tf32" if found.boxes else "float32",) * 4, "float32", "float32")


@pytest.mark.parametrize(
    ("M", "device", "tile", "cluster", "schedule"),
    [
        (2048, H200, (128, 256), 1, "tiles"), (3136, H200, (128, 256), 1, "strips"),  # 25 rows of tiles are more than whole rounds
        (256, H200, (64, 64), 2, "tiles"), (256, A100, (64, 64), 1, "tiles"),  # clusters are Hopper's
    ],
)  # fmt: skip
def test_lora_on_the_float32_units_has_strips_and_clusters(M, device, tile, cluster, schedule):
    case = make_case(KERNELS["lora_linear"], {"M": M, "K": 4096, "N": 4096, "R": 16}, "float32")
    module = module_of("lora_linear")
    config = module.config(case, "two_launches", device)
    names = ("KERNEL", "BLOCK_M", "BLOCK_N", "CLUSTER", "SCHEDULE")
    assert tuple(config[f"up_{name}"] for name in names) == ("simt", *tile, cluster, schedule)
    tensor = {"up_KERNEL": "tensor", "up_BLOCK_M": 128, "up_BLOCK_N": 128, "up_CLUSTER": 1, "up_SCHEDULE": "tiles"}
    assert "multiplied by up_KERNEL=simt" in module.fits(case, "two_launches", device, config | tensor)


@pytest.mark.parametrize(
    ("K", "N", "layout", "shapes"),
    [
        (128, 264, "kn", []), (133, 264, "kn", [(264, 192)]), (128, 259, "kn", [(259, 128), (5, 264)]), (133, 259, "kn", [(259, 192), (5, 264)]),
        (133, 320, "kn", []),
        (128, 264, "nk", []), (133, 264, "nk", [(264, 192)]), (128, 259, "nk", [(5, 264)]), (133, 259, "nk", [(259, 192), (5, 264)]),
    ],
)  # fmt: skip
def test_lora_fills_up_rows_that_are_no_whole_vectors(K, N, layout, shapes):
    module, sizes = module_of("lora_linear"), {"M": 300, "K": K, "N": N, "R": 5}
    case = make_case(KERNELS["lora_linear"], sizes, "bfloat16", options={"w_layout": layout})
    W = torch.ones((K, N) if layout == "kn" else (N, K), dtype=torch.bfloat16)
    arrays = None, None, W, None, None, torch.ones((5, N), dtype=torch.bfloat16)
    found = module.prepare(case, "two_launches", *arrays)
    assert [tuple(a.shape) for a in found] == shapes
    assert [a.count_nonzero() for a in found] == [N * K if len(a) == N else 5 * N for a in found]
    down, up = module.launches(case, "two_launches", H200, module.config(case, "two_launches", H200))
    assert ("down<bfloat16, false, false" in down.program.name) == (K % 8 > 0)
    begins_early, by_rows_of_K = up.program.name.split(", ")[2:4]
    assert begins_early == str(K % 8 == 0).lower(), "while x is not copied by the launch before"
    assert by_rows_of_K == str(layout == "nk" or N % (64 if K % 8 else 8) > 0).lower(), (
        "rows of whole lines, as those of x"
    )
    backward = make_case(KERNELS["lora_linear"], sizes, "bfloat16", options={"w_layout": layout}, mode="backward")
    assert module.prepare(backward, "two_launches", *arrays) == () == module.prepare(case, "fused", *arrays)


@pytest.mark.parametrize("layout", ["kn", "nk"])
@pytest.mark.parametrize(
    ("K", "N", "of_W"), [(128, 264, None), (133, 320, (320, 160)), (130, 259, (259, 160)), (63, 264, None)]
)
def test_lora_turns_what_warpgroups_read_of_tf32(K, N, layout, of_W):
    """W but where it lies so, and always B, with zeros behind its rows of 5."""
    module, sizes, options = module_of("lora_linear"), {"M": 300, "K": K, "N": N, "R": 5}, {"w_layout": layout}
    W = torch.randn((K, N) if layout == "kn" else (N, K))
    arrays = None, None, W, None, None, torch.randn(5, N)
    case = make_case(KERNELS["lora_linear"], sizes, "float32", "tf32", options)
    found = module.prepare(case, "two_launches", *arrays)
    of_W = of_W or ((N, K) if layout == "kn" else None)
    assert [tuple(a.shape) for a in found] == ([] if K < 64 else [*([of_W] if of_W else []), (N, 8)])
    for made, rows in zip(reversed(found), (arrays[-1].T, W.T if layout == "kn" else W), strict=False):
        assert made.is_contiguous() and made[:, : rows.shape[1]].equal(rows) and not made[:, rows.shape[1] :].any()
    backward = make_case(KERNELS["lora_linear"], sizes, "float32", "tf32", options, "backward")
    assert module.prepare(backward, "two_launches", *arrays) == () == module.prepare(case, "fused", *arrays)


def test_lora_of_few_rows_reads_whole_vectors_of_x_as_it_came():
    """Since nobody has copied x for them: `down` does for warpgroups and in IEEE float32."""
    module, few = module_of("lora_linear"), {"KERNEL": "few_rows", "BLOCK_M": 16, "BLOCK_N": 32, "num_stages": 2}
    for precision, reads in (("ieee", True), ("tf32", False)):
        case = make_case(KERNELS["lora_linear"], {"M": 37, "K": 331, "N": 200, "R": 5}, "float32", precision)
        reason = module.fits(case, "two_launches", H200, {f"up_{n}": v for n, v in (few | {"CLUSTER": 1}).items()})
        assert reads == (reason is None) or "copies whole vectors" in reason


@pytest.mark.parametrize("device", [A100, H200])
@pytest.mark.parametrize(("dtype", "precision"), [("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee")])
@pytest.mark.parametrize("widths", [(768, 9000, 768), (71, 15000, 10)])
def test_layers_of_a_perceptron_too_wide_for_one_launch_have_one_each(device, dtype, precision, widths):
    sizes = {"M": 300, "LAYERS": 2, **{f"N{i}": n for i, n in enumerate(widths)}, "N3": 1, "N4": 1}
    case, module = make_case(KERNELS["fused_mlp"], sizes, dtype, precision), module_of("fused_mlp")
    assert module.skip(case, "default", device) is None
    config = module.config(case, "default", device)
    assert config["KERNEL"] == "layers" and module.fits(case, "default", device, config) is None
    other = {"KERNEL": "simt" if (dtype, precision) == ("float32", "ieee") else "tensor"}
    assert "shared memory" in module.fits(case, "default", device, config | other)
