"""What CUDA launches for attention, with given scores too, by sizes, dtypes and devices. Needs no GPU."""

import itertools
import re

import pytest

pytest.importorskip("cuda.core")
from cuda_kernels import A100, B200, DTYPES, H200, KERNELS, SHARED_BYTES, module_of

from fusebench.cases import make_case


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


@pytest.mark.parametrize("T", [1024, 2028, 2048, 4096])
def test_few_tiles_of_rows_are_shared_out_to_many_blocks(T):
    module, case = module_of("shcsa"), make_case(KERNELS["shcsa"], {"T": T, "C": 4096, "D": 128}, "bfloat16")
    own = module.config(case, "padded_attention", H200)
    for launch in module.launches(case, "padded_attention", H200, own):
        assert 64 <= launch.grid <= 132 and "warpgroup" in launch.program.name
        assert max(map(max, launch.boxes)) <= 256


@pytest.mark.parametrize(
    ("sizes", "dtype", "device", "kernel", "split"),
    [
        # as many blocks as there are multiprocessors, of long rows of 64 columns twice as many
        ((1, 1, 1024, 64), "bfloat16", H200, "flash_split", 4), ((4, 1, 1024, 64), "bfloat16", H200, "flash_split", 2), ((1, 1, 4096, 64), "float16", H200, "flash_split", 4),
        ((1, 1, 256, 128), "bfloat16", H200, "flash_split", 4), ((1, 12, 1024, 64), "bfloat16", H200, "flash_warpgroup", 1), ((1, 1, 1000, 200), "bfloat16", H200, "flash_split", 4),
        ((1, 1, 1024, 32), "bfloat16", H200, "flash", 1), ((1, 1, 1024, 64), "bfloat16", A100, "flash", 1),
        ((1, 1, 1024, 64), "float32", H200, "flash_cluster", 4), ((1, 4, 1024, 64), "float32", H200, "flash_cluster", 2), ((4, 4, 512, 64), "float32", H200, "flash", 1),
        ((1, 1, 2120, 128), "float32", H200, "flash_cluster", 2), ((1, 1, 1024, 64), "float32", A100, "flash", 1),
    ],
)  # fmt: skip
def test_blocks_share_the_tokens_of_few_heads(sizes, dtype, device, kernel, split):
    module, sizes = module_of("padded_attention"), dict(zip("BHTD", sizes, strict=True))
    case = make_case(KERNELS["padded_attention"], sizes, dtype)
    own = module.config(case, "flash", device)
    (launch,) = module.launches(case, "flash", device, own)
    tiles = sizes["B"] * sizes["H"] * -(-sizes["T"] // own["BLOCK_M"])
    assert (launch.program.name.partition("<")[0], own["SPLIT"], launch.grid) == (kernel, split, tiles * split)
    assert module.fits(case, "flash", device, own | {"SPLIT": 3})


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
            few = {1: "flash_split", 2: "query_gradients_warpgroup"}[behind]
            many = few.replace("split", "warpgroup")
            assert (first.program.name.split("<")[0], first.overlaps) == (few if T == 128 else many, True)
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
    case = make_case(KERNELS["padded_attention"], {"B": 1, "H": 200, "T": T, "D": D}, dtype, mode=mode)
    reason = module.skip(case, "flash", device)
    if runs:
        assert reason is None
        assert module.fits(case, "flash", device, module.config(case, "flash", device)) is None
    else:
        assert reason.startswith(f"D is {D}: a warp has registers for rows of 128 elements")


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
