"""What CUDA launches for products, by rows, columns and layouts, by sizes, dtypes and devices. Needs no GPU."""

import functools
import itertools
import random
import re

import pytest
import torch

pytest.importorskip("cuda.core")
from cuda_kernels import A100, B200, DTYPES, H200, KERNELS, mlp, module_of

from fusebench.backends.cuda import sources_of
from fusebench.cases import make_case


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
    ("sizes", "kernel"),
    [((300, 2048, 2048), "turned"), ((500, 1000, 5000), "warpgroup"), ((500, 2000, 5000), "warpgroup")],
)
def test_two_products_have_turned_tiles_where_few_rounds_of_them_are_enough(sizes, kernel):
    case = make_case(KERNELS["splacc"], dict(zip("MKN", sizes, strict=True)), "bfloat16")
    assert module_of("splacc").config(case, "two_accumulators", H200)["KERNEL"] == kernel


@pytest.mark.parametrize("mode", ["forward", "backward", "forward_backward"])
@pytest.mark.parametrize("name", ["lola", "splacc", "geglu", "lora_linear", "lora_mlp", "fused_mlp"])
def test_whatever_the_sizes_a_launch_is_of_a_kernel_that_its_file_has(name, mode):
    """Few columns and deep, odd and many rows: sizes that no named case has."""
    module, rng = module_of(name), random.Random(name + mode)
    variants = [*module.VARIANTS] if mode == "forward" else [*module.BACKWARD]
    for _ in range(25):
        M, K, N = (rng.choice([1, 8, rng.randint(1, 130), rng.randint(100, 4100), 64, 1024]) for _ in "MKN")
        sizes = (
            mlp(M, *(rng.choice([K, N, 17, 256]) for _ in range(rng.randint(2, 4))))
            if "mlp" in name
            else {"M": M, "K": K, "N": N}
        )
        rank = {"R": rng.choice([4, 8, 17])} if "lora" in name else {}
        dtype, precision = rng.choice(DTYPES)
        case = make_case(KERNELS[name], sizes | rank, dtype, precision, {"w_layout": rng.choice(["kn", "nk"])}, mode)
        for device, variant in itertools.product((H200, A100), variants):
            if module.skip(case, variant, device):
                continue
            for launch in module.launches(case, variant, device, module.config(case, variant, device)):
                kernel = launch.program.name.partition("<")[0].rpartition("::")[2]
                assert re.search(rf"\b{kernel}\(", text_of(launch.program.file)), (case.id, device.name, launch.program)


@functools.cache
def text_of(file):
    """A .cu file and what it includes of ours."""
    return "\n".join(source.read_text() for source in sources_of(file))
