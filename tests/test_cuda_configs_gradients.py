"""What CUDA launches for the gradients of layers, by sizes, dtypes and devices. Needs no GPU."""

import numpy as np
import pytest
import torch

pytest.importorskip("cuda.core")
from cuda_kernels import A100, H200, KERNELS, mlp, module_of

from fusebench.cases import make_case


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
        ("lola", (777, 1000, 3000), 0), ("lola", (1024, 1024, 4096), 0), ("lola", (300, 4096, 4096), 0),
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


@pytest.mark.parametrize(
    ("name", "sizes", "precision", "begins"),
    [
        # of 16 bits, by what an H200 found: a launch each of large products, of few rows one, and clusters beside the tiles of dW between the two
        ("geglu", (128, 4096, 4096), None, ["pull_gate", "inputs_split", "weights_warpgroup"]),
        ("geglu", (100, 4096, 4096), None, ["pull_gate", "inputs_split", "weights_warpgroup"]),  # 100 rows of dW's depth are no whole vectors
        ("lola", (128, 2048, 8192), None, ["pull_back", "gradients_few_rows"]), ("geglu", (100, 1024, 4096), None, ["pull_gate", "gradients_beside"]),
        ("geglu", (72, 768, 3072), None, ["pull_gate", "gradients_few_rows"]), ("lola", (128, 2048, 2048), None, ["pull_back", "gradients_few_rows"]),
        # rows of x that are no whole vectors have no tensor map
        ("lola", (150, 96, 136), None, ["pull_back", "inputs_tensor", "weights_warpgroup"]), ("lola", (200, 99, 256), None, ["pull_back", "inputs_tensor", "weights_tensor"]),
        # of float: dx of few rows by warps that share its depth, rows filled up; dW of many rows and few tiles by blocks that do
        ("lola", (2, 300, 3456), "ieee", ["pull_back", "inputs_few_rows_split", "weights_simt"]),
        ("geglu", (216, 384, 2169), "ieee", ["pull_gate", "inputs_few_rows", "weights_simt"]),
        ("geglu", (8, 397, 1235), "tf32", ["pull_gate", "inputs_few_rows", "weights_tensor"]),
        ("lola", (1500, 192, 345), "tf32", ["pull_back", "turned_operands", "inputs_split", "weights_split"]),
    ],
)  # fmt: skip
def test_products_of_a_layers_gradients_follow_from_its_sizes(name, sizes, precision, begins):
    module, variant = module_of(name), "multirow" if name == "lola" else "two_accumulators"
    shape, dtype = dict(zip("MKN", sizes, strict=True)), "float32" if precision else "bfloat16"
    case = make_case(KERNELS[name], shape, dtype, precision or "ieee", mode="backward")
    launches = module.launches(case, variant, H200, module.config(case, variant, H200))
    assert [p.program.name.partition("<")[0] for p in launches] == begins


BY_WARPGROUPS = "linear_warpgroup<", "linear_split<", "summed_turned<"


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
        (linear,) = [own for own in names if own.startswith(("linear_", "summed_"))]
        assert linear.startswith(BY_WARPGROUPS) and any(own.startswith("gradients_together<") for own in names)


@pytest.mark.parametrize(
    ("name", "sizes", "few"),
    [
        ("lola", (100, 1001, 3000), True), ("lola", (1, 1000, 3001), True), ("geglu", (96, 398, 4608), True), ("splacc", (128, 292, 5752), True),
        ("lola", (100, 60, 3000), False), ("lola", (100, 1001, 127), False), ("splacc", (129, 292, 5752), False),
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
        ((1, 1024, 512), ["kept_few_rows", "gated_few_rows"]), ((16, 1024, 1024), ["kept_few_rows", "pull_gate", "gradients_few_rows"]),
        ((1, 1000, 3001), ["whole_rows", "linear_split", "gated", "gated_few_rows"]),  # these rows of W are copied
        ((64, 4096, 2048), ["kept_split", "pull_gate", "gradients_few_rows"]),
        ((200, 1024, 2048), ["kept_turned", "pull_gate", "gradients_beside"]),
        ((1024, 1024, 2048), ["kept_warpgroup", "pull_gate", "gradients_together"]),
    ],
)  # fmt: skip
def test_a_gated_step_has_one_launch_forward_where_rows_are_whole(sizes, begins):
    shape = dict(zip("MKN", sizes, strict=True))
    case = make_case(KERNELS["geglu"], shape, "bfloat16", mode="forward_backward")
    module, variant = module_of("geglu"), "two_accumulators"
    launches = module.launches(case, variant, H200, module.config(case, variant, H200))
    assert [p.program.name.partition("<")[0] for p in launches] == begins


@pytest.mark.parametrize(
    ("sizes", "begins"),
    [
        ((1, 1024, 4096), ["kept_few_rows"]), ((64, 1024, 4096), ["statistics", "summed_turned"]), ((32, 768, 3072), ["kept_few_rows"]), ((48, 1001, 3001), ["statistics_shared", "linear_split"]),
        ((1024, 1024, 4096), ["statistics", "summed_turned"]), ((200, 1024, 4096), ["statistics", "summed_turned"]),
        ((50, 1000, 7000), ["statistics", "summed_turned"]),
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


@pytest.mark.parametrize(
    ("sizes", "dtype", "device", "narrow"),
    [
        # DLRM's dense features: of 512-256 both products are one launch on Hopper in 16 bits
        (mlp(2048, 13, 512, 256, 64, 16), "bfloat16", H200, 3), (mlp(2048, 13, 512, 256, 64, 16), "bfloat16", A100, 4),
        (mlp(2048, 13, 512, 256, 64, 16), "float32", H200, 4), (mlp(65536, 512, 512, 256, 1), "bfloat16", H200, 1),
        (mlp(2048, 1024, 1024, 1024), "float32", H200, 0), (mlp(2048, 1024, 1024, 1024), "bfloat16", H200, 0),
        (mlp(100, 512, 512, 256), "bfloat16", H200, 0),  # few rows
    ],
)  # fmt: skip
def test_all_narrow_layers_of_a_perceptron_have_one_launch_for_their_weights(sizes, dtype, device, narrow):
    """Whose blocks share the rows of the batch where that gives multiprocessors more of them, as many as run at once."""
    from implementations.fused_mlp import _cuda_backward, _cuda_weights

    case, module = make_case(KERNELS["fused_mlp"], sizes, dtype, mode="backward"), module_of("fused_mlp")
    own = [layer for layer in _cuda_backward.layers(case) if _cuda_weights.is_narrow(layer, device)]
    assert len(own) == narrow
    launches = module.launches(case, "default", device, {})
    names = [launch.program.name.partition("<")[0] for launch in launches]
    assert names.count("weights_of_layers") == (narrow > 0)
    if narrow:
        rows, count = _cuda_weights.shares(own, device)
        assert rows * (count - 1) < sizes["M"] <= rows * count and rows % 64 == 0
        assert names.count("sum_weights") == (count > 1)
        products = launches[names.index("weights_of_layers")]
        assert products.grid <= 6 * device.multiprocessors


def test_a_column_of_dz_has_few_parts_however_many_rows_there_are():
    """Since a thread adds them up one behind another."""
    from implementations._shared.cuda import layer_backward

    for M in (1, 128, 2048, 4200, 8400, 16384, 16385, 65536, 1_000_000):
        for parts in (1, 2):  # of lola, and of geglu
            case = make_case(KERNELS["lola"], {"M": M, "K": 64, "N": 64 * parts}, "bfloat16", mode="backward")
            assert layer_backward.pulled_blocks(case, H200, parts)[0] <= 256
