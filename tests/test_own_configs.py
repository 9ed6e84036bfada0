"""The configs that implementations choose themselves fit at sizes that nobody names, on five architectures. Needs no GPU."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("cuda.core")
from fusebench import discovery
from fusebench.cases import make_case
from fusebench.inspection.targets import target
from fusebench.workers import configs

KERNELS = discovery.find_kernels([discovery.HOME])
DEVICES = [target(arch).device for arch in ("sm_80", "sm_86", "sm_90a", "sm_100a", "sm_120a")]
DTYPES = (("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee"), ("bfloat16", "ieee"))
FACTORS = (0.25, 0.5, 0.75, 0.99, 1, 1, 1, 1.01, 1.5, 2, 4)
CASES, MOST_BYTES, MOST_BLOCKS = 60, 6e10, 2**31


def drawn(kernel, rng):
    """A named case, each of its sizes perhaps another one near it, or any."""
    sizes = dict(rng.choice(list(kernel.mathematics.cases.values())))
    for name, size in sizes.items():
        if name == "LAYERS":
            continue
        near = max(1, int(size * rng.choice(FACTORS)) + rng.choice((0, 0, 1, -1)))
        sizes[name] = near if rng.random() < 0.7 else rng.choice((1, 3, 16, 65, 127, 129, 250, 512, 1021))
    dtype = rng.choice([d for d in DTYPES if d[1] in kernel.mathematics.precisions])
    options = {name: rng.choice(values) for name, values in kernel.options.items()}
    mode = rng.choice(("forward", "backward")) if kernel.mathematics.gradient else "forward"
    return make_case(kernel, sizes, *dtype, options=options, mode=mode)


def skipped(module, case, variant, device):
    return hasattr(module, "skip") and module.skip(case, variant, device)


def blocks(launch):
    x, *beside = launch.grid if isinstance(launch.grid, tuple) else (launch.grid,)
    return int(x), [int(n) for n in beside]


@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        (n, i)
        for n, k in KERNELS.items()
        for i in ("cuda", "triton")
        if i in k.implementations and k.implementations[i].tunables
    ],
)
def test_own_configs_fit_and_can_be_launched(name, implementation):
    kernel, rng = KERNELS[name], random.Random(f"{name} {implementation}")
    module, declared = discovery.load_implementation(name, implementation), kernel.implementations[implementation]
    cases = [drawn(kernel, rng) for _ in range(CASES)]
    for case in (case for case in cases if kernel.mathematics.moved_bytes(case) < MOST_BYTES):
        for variant in declared.variants if case.mode == "forward" else declared.backward:
            for device in DEVICES:
                if skipped(module, case, variant, device):
                    continue
                own = module.config(case, variant, device)
                assert (reason := module.fits(case, variant, device, own)) is None, (
                    case.id,
                    variant,
                    device.name,
                    reason,
                )
                for launch in module.launches(case, variant, device, own):
                    along, beside = blocks(launch)
                    assert 0 < along < MOST_BLOCKS and all(0 < n < 2**16 for n in beside), (
                        case.id,
                        variant,
                        device.name,
                    )


@pytest.mark.parametrize(
    ("name", "implementation", "variant", "sizes", "arch"),
    [
        # pairs of tiles that no stage makes fit in 99 KiB
        ("lora_linear", "cuda", "two_launches", {"M": 1024, "K": 1024, "N": 1024, "R": 65}, "sm_86"),
        ("lora_linear", "cuda", "two_launches", {"M": 2048, "K": 4096, "N": 4096, "R": 96}, "sm_120a"),
        # more values than a thread has registers
        ("lora_linear", "triton", "two_launches", {"M": 2048, "K": 4096, "N": 4096, "R": 129}, "sm_90a"),
        ("lora_linear", "triton", "fused", {"M": 2048, "K": 4096, "N": 4096, "R": 256}, "sm_90a"),
        # shared memory
        ("padded_attention", "triton", "flash", {"B": 4, "H": 16, "T": 4096, "D": 128}, "sm_120a"),
        ("padded_attention", "triton", "flash", {"B": 4, "H": 16, "T": 4096, "D": 256}, "sm_86"),
        ("embedding", "cuda", "deterministic", {"M": 65536, "F": 26, "V": 1_000_000, "D": 16}, "sm_120a"),
        ("fused_mlp", "triton", "default", {"M": 65536, "LAYERS": 3, "N0": 512, "N1": 512, "N2": 256, "N3": 16, "N4": 1}, "sm_86"),
    ],
    ids=lambda v: None if isinstance(v, dict) else v,
)  # fmt: skip
def test_own_configs_fit_where_the_first_choice_does_not(name, implementation, variant, sizes, arch):
    kernel, module = KERNELS[name], discovery.load_implementation(name, implementation)
    device, has = target(arch).device, kernel.implementations[implementation]
    modes = ["forward"] * (variant != "deterministic") + ["backward"] * (variant in has.backward)
    for dtype, mode in ((d, m) for d in DTYPES if d[1] in kernel.mathematics.precisions for m in modes):
        case = make_case(kernel, sizes, *dtype, mode=mode)
        if not skipped(module, case, variant, device):
            assert module.fits(case, variant, device, module.config(case, variant, device)) is None, case.id


@pytest.mark.parametrize("implementation", ["cuda", "triton"])
def test_pairs_of_vectors_that_32_bits_do_not_count_are_refused(implementation):
    module = discovery.load_implementation("interaction", implementation)
    reasons = [
        module.skip(
            make_case(KERNELS["interaction"], {"M": 1, "F": F, "D": 1}, "bfloat16"), "default", target("sm_90a").device
        )
        for F in (46340, 46341)
    ]
    assert reasons[0] is None and "46340 at most" in reasons[1]


@pytest.mark.parametrize("implementation", ["cuda", "triton"])
def test_more_blocks_than_a_grid_has_are_refused(implementation):
    kernel, device = KERNELS["padded_attention"], target("sm_90a").device
    module, declared = (
        discovery.load_implementation(kernel.name, implementation),
        kernel.implementations[implementation],
    )
    sizes = {"B": 2**16, "H": 2**15 - 1, "T": 1, "D": 1}
    choices = [
        configs.choose(module, declared, make_case(kernel, sizes | {"H": H}, "bfloat16"), "flash", device, {}, False)
        for H in (2**15 - 1, 2**15)
    ]
    assert choices[0].refusal is None
    assert choices[1].refusal == "a launch has 2147483648 blocks along x: CUDA has 2147483647 at most"
