"""Configs of the CUDA implementations: what they take, what fits, what is launched, and what calls hand over. Needs no GPU."""

import itertools
import re

import numpy as np
import pytest
import torch

pytest.importorskip("cuda.core")
from cuda_kernels import DTYPES, H200, KERNELS, RTX3090, SHARED_BYTES, module_of

from fusebench.cases import make_case

MODES = "forward", "backward"
# whose gradients have tiles that the blocks of clusters share, as those of no named case do
MORE = {
    name: {"of_clusters": {"M": 200, "K": 1024, "N": N}}
    for name, N in (("lola", 4096), ("splacc", 2048), ("geglu", 2048))
}


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
    moves = "KERNEL", "BLOCK_M", "BLOCK_N", "WARPS_M", "WARPS_N"
    missing = {(v, t) for v in tunables for t in tunables[v]} - differs - alone
    assert all(tunable.endswith(moves) for _, tunable in missing), missing


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
        ("fused_mlp", ("bottom", "float16"), "default", {"KERNEL": "few_rows"}, "KERNEL=few_rows is for IEEE float32"),
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
        ("padded_attention", ("wide_heads", "bfloat16"), "flash", {"KERNEL": "tensor"}, "D is 256: a warp has registers for rows of 128 elements"),
        ("shcsa", ("wide_head", "bfloat16"), "whole_rows", {"attention_KERNEL": "tensor", "attention_SPLIT": 1}, "D is 256: a warp has registers for rows of 128 elements"),
        ("shcsa", ("wide_head", "bfloat16"), "padded_attention", {"attention_KERNEL": "tensor", "attention_BLOCK_M": 16, "attention_WARPS_M": 1}, "D is 256: a warp has"),
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
