"""What CUDA launches for lora_linear, by sizes, dtypes and devices. Needs no GPU."""

import pytest
import torch

pytest.importorskip("cuda.core")
from cuda_kernels import A100, H200, KERNELS, RTX3090, module_of

from fusebench.cases import make_case


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
    ("sizes", "precision", "layout", "launches"),
    [
        ((2, 215, 3523, 32), "ieee", "kn", ["filled", "few", "inputs_few_rows", "weights_simt", "narrow"]),
        ((8, 4096, 4096, 16), "tf32", "kn", ["few", "inputs_few_rows", "weights_tensor", "narrow"]),
        # dx is not deep; A, (K, R), is no such operand beside W (N, K)
        ((128, 1048, 500, 16), "ieee", "kn", ["few", "products"]), ((8, 4096, 4096, 16), "tf32", "nk", ["few", "products"]),
    ],
)  # fmt: skip
def test_loras_dx_of_few_rows_of_float_is_by_warps_that_share_its_depth(sizes, precision, layout, launches):
    shape, options = dict(zip("MKNR", sizes, strict=True)), {"w_layout": layout}
    case = make_case(KERNELS["lora_linear"], shape, "float32", precision, options=options, mode="backward")
    module = module_of("lora_linear")
    found = module.launches(case, "two_launches", H200, module.config(case, "two_launches", H200))
    assert [launch.program.name.partition("<")[0] for launch in found] == launches


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
        ({"M": 8192}, "bfloat16", H200, ["down_by_parts", "up_warpgroup"]), ({"M": 16384}, "bfloat16", H200, ["down", "up_warpgroup"]), ({}, "float32", H200, ["down_simt_by_parts", "up_simt"]),
        ({"M": 127}, "bfloat16", H200, ["down_by_parts", "up_split"]), ({"M": 512}, "float16", H200, ["down_by_parts", "up_warpgroup"]),
        ({"M": 63}, "bfloat16", H200, ["down_by_parts", "up_split"]), ({"M": 8, "N": 2048}, "bfloat16", H200, ["down_by_parts", "up_few_rows"]), ({"M": 33}, "float32", A100, ["down_simt", "up_few_rows"]), ({"M": 33, "R": 5}, "float32", A100, ["down", "up_few_rows"]), ({"N": 1001}, "bfloat16", H200, ["down_by_parts", "up_warpgroup"]),
        ({"K": 4095}, "float16", H200, ["down_by_parts", "up_warpgroup"]), ({"K": 63}, "bfloat16", H200, ["down", "up"]),
        ({"K": 4095}, "float32", H200, ["down_simt_by_parts", "up_simt"]), ({"K": 4095}, "bfloat16", A100, ["down", "up"]),
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
        ({"K": 63}, H200, "forward", "up"), ({"N": 127}, H200, "forward", "up_split"), ({}, A100, "forward", "up"),
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
            takes = case.sizes["N"] >= 128 or own["up_KERNEL"] == "split"  # a box of W is narrower
            assert (reason is None) == (up != "up" and takes), own
    found = module.launches(case, "two_launches", device, config)[1]
    assert found.program.name.partition("<")[0] == up
    assert found.dtypes[:6] == (*("tf32" if found.boxes else "float32",) * 4, "float32", "float32")


@pytest.mark.parametrize(("rows", "precision", "of_each"), [(255, "ieee", True), (256, "ieee", True), (255, "tf32", False), (300, "tf32", False), (320, "tf32", True), (300, "", True)])  # fmt: skip
def test_loras_gradients_of_many_rows_have_a_launch_for_each_product(rows, precision, of_each):
    case = make_case(KERNELS["lora_linear"], {"M": rows, "K": 2048, "N": 2048, "R": 16}, *(("float32", precision) if precision else ("bfloat16",)), mode="backward")  # fmt: skip
    module = module_of("lora_linear")
    launches = module.launches(case, "two_launches", H200, module.config(case, "two_launches", H200))
    names = [launch.program.name.partition("<")[0] for launch in launches]
    assert ("products" not in names) == of_each and ("turned_operands" in names) == (of_each and precision == "tf32")


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


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((900, 8192, 1024), (64, 256)), ((768, 5504, 1024), (128, 256)),
        # a smaller x, and fewer rows and columns of y
        ((768, 5440, 1024), (128, 128)), ((300, 14080, 1024), (128, 128)), ((1000, 11008, 512), (64, 128)),
    ],
)  # fmt: skip
def test_lora_reads_a_large_x_by_few_tiles(sizes, tile):
    case = make_case(KERNELS["lora_linear"], dict(zip("MKN", sizes, strict=True)) | {"R": 16}, "bfloat16")
    own = module_of("lora_linear").config(case, "two_launches", H200)
    assert (own["up_KERNEL"], own["up_BLOCK_M"], own["up_BLOCK_N"]) == ("split", *tile)
