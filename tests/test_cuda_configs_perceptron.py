"""What CUDA launches for fused_mlp's layers, by sizes, dtypes and devices. Needs no GPU."""

import pytest

pytest.importorskip("cuda.core")
from cuda_kernels import A100, H200, KERNELS, module_of

from fusebench.cases import make_case


@pytest.mark.parametrize("layout", ["kn", "nk"])
def test_wide_layers_of_an_mlp_are_launches_of_their_own(layout):
    """Where hidden layers are no whole vectors, and narrow ones of few rows, too; but not where Hopper's kernel has them in registers."""
    module = module_of("fused_mlp")
    for widths, M, kernels in (
        ((1024, 1024, 1024, 1, 1), 2048, ["warpgroup", "warpgroup"]),
        ((256, 1001, 515, 128, 1), 8192, ["warpgroup", "warpgroup", "turned"]),
        ((768, 3072, 768, 1, 1), 300, ["turned", "split"]),
        ((1024, 1024, 1024, 1, 1), 16, ["few_rows", "few_rows"]),
        ((445, 1493, 896, 1, 1), 5, ["few_rows", "few_rows"]),  # x is copied
        ((64, 128, 64, 1, 1), 1024, ["turned", "tensor"]),
    ):
        count = len(kernels)
        sizes = {"M": M, "LAYERS": count} | {f"N{i}": n for i, n in enumerate(widths)}
        case = make_case(KERNELS["fused_mlp"], sizes, "bfloat16", options={"w_layout": layout})
        own = module.config(case, "default", H200)
        assert [own[f"layer{i + 1}_KERNEL"] for i in range(count)] == kernels
        assert len(module.launches(case, "default", H200, own)) == count + (widths[0] % 8 > 0)
        for layer in module.perceptron_layers.layers(case)[:-1]:
            assert layer.product.sizes["N"] % 8 == 0
    small = {"LAYERS": 3, "N0": 64, "N1": 128, "N2": 64, "N3": 1, "N4": 1}  # a block has all weights
    for sizes, kernel in (
        ("bottom_65536", "warpgroup"),
        ("odd", "layers"),  # whose hidden layers are no whole vectors
        ("bottom", "warpgroup"),
        (small | {"M": 1024}, "warpgroup"),
        (small | {"M": 4096}, "warpgroup"),
    ):
        case = make_case(KERNELS["fused_mlp"], sizes, "bfloat16", options={"w_layout": layout})
        own = module.config(case, "default", H200)
        assert own["KERNEL"] == kernel
        assert module.fits(case, "default", H200, own | {"KERNEL": "layers"}) is None


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
