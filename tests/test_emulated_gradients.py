"""Gradients by CUDA kernels on the emulator that no other test has: those of Hopper alone, and configs of larger cards."""

from __future__ import annotations

import pytest
from conftest import DEVICE
from cuda_kernels import mlp, module_of
from turns import in_turns

from fusebench.cases import make_case
from fusebench.contract import Cell
from fusebench.emulator.device import emulated

EMULATED = emulated()
pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="is for machines without a GPU")


@pytest.mark.parametrize(("F", "D"), [(40, 100), (33, 131), (47, 129)])
def test_gradients_of_dots_of_many_vectors_are_right(run_cells, kernels, F, D):
    """Columns that are multiplied in several parts, or brought in several, and vectors in odd places."""
    case = make_case(kernels["interaction"], {"M": 3, "F": F, "D": D}, "bfloat16", mode="backward")
    (record,) = run_cells([Cell(case, "cuda", "default")])
    assert record.status == "ok", record.reason


OF_SUMS = [
    # rows of blocks whose places are a whole line or not, and what fills no vector; groups of 8 rows, of 1 and of 2
    ({"M": 300, "N": 205}, "bfloat16", "silu", {"gradient_LANES": 32, "gradient_UNROLL": 1}),
    ({"M": 301, "N": 40}, "float16", "relu", {"gradient_LANES": 4, "gradient_UNROLL": 3, "gradient_BLOCKS": 2}),
    ({"M": 131, "N": 70}, "float32", "gelu_tanh", {"gradient_LANES": 16, "gradient_UNROLL": 2}),
    # blocks that begin at any column, some behind the last; fewer columns than threads, and a single one
    ({"M": 301, "N": 77}, "bfloat16", "tanh", {"gradient_LANES": 256, "gradient_UNROLL": 2}),
    ({"M": 37, "N": 1001}, "float32", "none", {"gradient_LANES": 256, "gradient_UNROLL": 1}),
    ({"M": 4099, "N": 1}, "bfloat16", "sigmoid", {"gradient_LANES": 256, "gradient_UNROLL": 1}),
    # fewer rows than a group
    ({"M": 3, "N": 1001}, "bfloat16", "gelu_erf", {"gradient_LANES": 8, "gradient_UNROLL": 4}),
]


@pytest.mark.parametrize(("sizes", "dtype", "activation", "config"), OF_SUMS)
def test_sums_of_columns_are_right_however_blocks_share_them(run_cells, kernels, sizes, dtype, activation, config):
    case = make_case(kernels["add_mul_act"], sizes, dtype, options={"activation": activation}, mode="backward")
    (record,) = run_cells([Cell(case, "cuda", "default", config=config)])
    assert record.status == "ok", record.reason


@pytest.mark.parametrize(
    ("T", "D", "dtype"),
    [(131, 65, "bfloat16"), (129, 39, "float16"), (70, 77, "bfloat16")],  # of the last one, dk and dv by mma.sync
)
def test_gradients_of_attention_read_copies_of_rows_that_are_no_whole_vectors(run_cells, kernels, T, D, dtype):
    case = make_case(kernels["padded_attention"], {"B": 2, "H": 1, "T": T, "D": D}, dtype, mode="backward")
    (record,) = run_cells([Cell(case, "cuda", "flash")])
    assert record.status == "ok", record.reason


OF_GRADIENTS = {"KERNEL": "warpgroup"} | {
    f"{of}_{name}": value
    for of in ("dx", "dW")
    for name, value in {"BLOCK_M": 128, "BLOCK_N": 128, "num_stages": 3, "CLUSTER": 1}.items()
}
APART = OF_GRADIENTS | {"KERNEL": "apart"}


@pytest.mark.parametrize(
    ("sizes", "options", "dtype", "config"),
    [
        ({"M": 130, "K": 259, "N": 257, "R": 5}, {"activation": "tanh"}, "bfloat16", OF_GRADIENTS),
        ({"M": 131, "K": 257, "N": 264, "R": 17}, {"w_layout": "nk"}, "float16", OF_GRADIENTS),
        ({"M": 3, "K": 45, "N": 301, "R": 5}, {}, "bfloat16", {"KERNEL": "whole"}),
        ({"M": 20, "K": 70, "N": 331, "R": 16}, {"activation": "silu"}, "float16", {"KERNEL": "whole"}),
        ({"M": 70, "K": 45, "N": 75, "R": 6}, {"activation": "silu", "w_layout": "nk"}, "float32", {}),
        ({"M": 16, "K": 64, "N": 77, "R": 16}, {"w_layout": "nk"}, "float32", {}),  # few rows, where rows of B are no whole vectors
        ({"M": 70, "K": 24, "N": 517, "R": 61}, {}, "bfloat16", {}),  # two blocks share N
        ({"M": 520, "K": 131, "N": 140, "R": 17}, {}, "bfloat16", OF_GRADIENTS),  # blocks share M of what is narrow
        ({"M": 203, "K": 133, "N": 131, "R": 5}, {"activation": "silu"}, "tf32", OF_GRADIENTS),  # dz and x are turned
        # a launch for each product: tiles with rows and columns to spare; a cluster that shares the depth of dx
        ({"M": 131, "K": 70, "N": 75, "R": 5}, {"activation": "tanh"}, "float32", APART | {"dW_BLOCK_M": 64, "dW_BLOCK_N": 64}),
        ({"M": 267, "K": 70, "N": 139, "R": 17}, {"w_layout": "nk"}, "float32", APART | {"dx_BLOCK_M": 32, "dx_BLOCK_N": 64, "dx_CLUSTER": 4}),
    ],
)  # fmt: skip
def test_gradients_of_an_adapter_read_rows_filled_up(run_cells, kernels, sizes, options, dtype, config):
    """And write those of the gradients as they are."""
    of_floats = ("float32", "tf32") if dtype == "tf32" else (dtype,)
    case = make_case(kernels["lora_linear"], sizes, *of_floats, options=options, mode="backward")
    (record,) = run_cells([Cell(case, "cuda", "two_launches", config=config)])
    assert record.status == "ok", record.reason


BOTH = {"both_BLOCK_M": 128, "both_BLOCK_N": 256, "both_num_stages": 3, "both_CLUSTER": 1, "both_SCHEDULE": "stream_k"}
BY_WARPGROUPS = {"dW_KERNEL": "warpgroup", "dW_BLOCK_M": 128, "dW_BLOCK_N": 128, "dW_num_stages": 3}
OF_SIMT = {"dx_KERNEL": "simt", "dx_BLOCK_N": 64, "dx_num_stages": 3}
GRADIENTS = [
    # pieces that begin amid tiles of dx and of dW; rows and columns that are copied to whole vectors; a cluster whose last block has no rows
    ("lola", {"M": 200, "K": 256, "N": 512}, "multirow", "bfloat16", "kn", BOTH),
    ("lola", {"M": 200, "K": 203, "N": 328}, "multirow", "float16", "nk", BOTH | {"both_CLUSTER": 2}),
    ("lola", {"M": 200, "K": 205, "N": 331}, "multirow", "bfloat16", "kn", BOTH | {"both_BLOCK_M": 192, "both_BLOCK_N": 192, "both_num_stages": 4}),
    # tiles that are not shared; the second half of dZ begins at no whole vector, and what is behind it is 0
    ("geglu", {"M": 150, "K": 261, "N": 173}, "two_accumulators", "bfloat16", "kn", BOTH | {"both_BLOCK_N": 128, "both_SCHEDULE": "tiles"}),
    ("splacc", {"M": 150, "K": 264, "N": 172}, "two_accumulators", "float16", "nk", BOTH),
    # blocks that share the depth of a tile of dx beside those of dW, the last of which have no tile; rows of 803 elements are copied, those of 125 filled up
    ("lola", {"M": 130, "K": 128, "N": 803}, "multirow", "bfloat16", "kn", {"beside_BLOCK_M": 64, "beside_BLOCK_N": 128, "beside_CLUSTER": 2, "beside_num_stages": 3}),
    ("lola", {"M": 150, "K": 125, "N": 1200}, "multirow", "float16", "nk", {"beside_BLOCK_M": 128, "beside_BLOCK_N": 128, "beside_CLUSTER": 4, "beside_num_stages": 3}),
    ("splacc", {"M": 150, "K": 125, "N": 400}, "two_accumulators", "bfloat16", "kn", {"beside_BLOCK_M": 64, "beside_BLOCK_N": 64, "beside_CLUSTER": 4, "beside_num_stages": 3}),
    ("geglu", {"M": 150, "K": 128, "N": 600}, "two_accumulators", "bfloat16", "nk", {"beside_BLOCK_M": 128, "beside_BLOCK_N": 128, "beside_CLUSTER": 1, "beside_num_stages": 4}),
    # column sums beside the product, of both widths of its tiles, of which the last are partly outside
    ("lola", {"M": 260, "K": 200, "N": 776}, "multirow", "bfloat16", "kn", {}),
    ("lola", {"M": 260, "K": 136, "N": 776}, "multirow", "float16", "nk", {}),
    ("lola", {"M": 260, "K": 136, "N": 1032}, "multirow", "bfloat16", "nk", {}),
    ("lola", {"M": 260, "K": 200, "N": 1032}, "multirow", "bfloat16", "kn", {}),
    # few rows: tiles of dx beside those of dW
    ("lola", {"M": 5, "K": 136, "N": 328}, "multirow", "bfloat16", "kn", {"few_BLOCK_M": 16, "few_BLOCK_N": 32, "few_num_stages": 1}),
    ("geglu", {"M": 37, "K": 136, "N": 164}, "two_accumulators", "float16", "nk", {"few_BLOCK_M": 32, "few_BLOCK_N": 16, "few_num_stages": 2}),
    # the same of rows that are filled up: those of dx are whole pairs or not, those of dW single elements, pairs, or vectors
    ("lola", {"M": 5, "K": 135, "N": 328}, "multirow", "bfloat16", "kn", {"few_BLOCK_M": 16, "few_BLOCK_N": 32, "few_num_stages": 1}),
    ("lola", {"M": 37, "K": 131, "N": 331}, "multirow", "float16", "nk", {"few_BLOCK_M": 32, "few_BLOCK_N": 64, "few_num_stages": 1}),
    ("geglu", {"M": 37, "K": 134, "N": 163}, "two_accumulators", "bfloat16", "kn", {"few_BLOCK_M": 32, "few_BLOCK_N": 16, "few_num_stages": 2}),
    ("splacc", {"M": 5, "K": 136, "N": 161}, "two_accumulators", "float16", "nk", {"few_BLOCK_M": 16, "few_BLOCK_N": 16, "few_num_stages": 3}),
    ("splacc", {"M": 9, "K": 136, "N": 161}, "two_accumulators", "float16", "nk", {"few_BLOCK_M": 16, "few_BLOCK_N": 16, "few_num_stages": 3}),
    # blocks that make dz: of single elements, more than a block asks for at once; rows of W filled up; slabs that reuse the ring
    ("geglu", {"M": 1, "K": 131, "N": 301}, "two_accumulators", "bfloat16", "kn", {"few_BLOCK_M": 16, "few_BLOCK_N": 32, "few_num_stages": 1}),
    ("geglu", {"M": 8, "K": 24, "N": 520}, "two_accumulators", "float16", "nk", {"few_BLOCK_M": 16, "few_BLOCK_N": 16, "few_num_stages": 1}),
    ("splacc", {"M": 3, "K": 133, "N": 101}, "two_accumulators", "bfloat16", "nk", {"few_BLOCK_M": 16, "few_BLOCK_N": 64, "few_num_stages": 1}),
    ("splacc", {"M": 1, "K": 264, "N": 72}, "two_accumulators", "float16", "kn", {"few_BLOCK_M": 16, "few_BLOCK_N": 16, "few_num_stages": 2}),
    # the same of whole slabs of both halves, which are made by pairs; of rows of dW at any element
    ("splacc", {"M": 2, "K": 133, "N": 512}, "two_accumulators", "bfloat16", "kn", {"few_BLOCK_M": 16, "few_BLOCK_N": 16, "few_num_stages": 1}),
    ("geglu", {"M": 8, "K": 72, "N": 512}, "two_accumulators", "bfloat16", "nk", {"few_BLOCK_M": 16, "few_BLOCK_N": 16, "few_num_stages": 1}),
    ("geglu", {"M": 1, "K": 115, "N": 301}, "two_accumulators", "float16", "nk", {"few_BLOCK_M": 16, "few_BLOCK_N": 16, "few_num_stages": 1}),
    # in float32 rows of n, W and dz are filled up
    ("lola", {"M": 70, "K": 135, "N": 203}, "multirow", "float32", "kn", {}),
    ("lola", {"M": 67, "K": 134, "N": 201}, "multirow", "float32", "nk", OF_SIMT | {"dx_BLOCK_M": 64, "dx_CLUSTER": 2}),
    ("geglu", {"M": 69, "K": 133, "N": 75}, "two_accumulators", "float32", "nk", {}),
    ("splacc", {"M": 66, "K": 70, "N": 77}, "two_accumulators", "float32", "kn", {}),
    # in 16 bits, dW with a launch of its own: by warpgroups, of an odd number of rows; and where rows of x are no whole vectors by `tensor`
    ("lola", {"M": 150, "K": 96, "N": 136}, "multirow", "bfloat16", "kn", BY_WARPGROUPS), ("splacc", {"M": 137, "K": 104, "N": 264}, "two_accumulators", "float16", "kn", BY_WARPGROUPS),
    ("lola", {"M": 200, "K": 99, "N": 256}, "multirow", "bfloat16", "kn", {"dW_KERNEL": "tensor", "dW_BLOCK_M": 64, "dW_BLOCK_N": 64, "dW_num_stages": 2}),
    # a cluster shares the depth of dx, in float32
    ("lola", {"M": 37, "K": 136, "N": 204}, "multirow", "float32", "kn", OF_SIMT | {"dx_BLOCK_M": 32, "dx_CLUSTER": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "sizes", "variant", "dtype", "layout", "config"), in_turns(GRADIENTS))
def test_gradients_of_a_layer_are_right(run_cells, kernels, name, sizes, variant, dtype, layout, config):
    case = make_case(kernels[name], sizes, dtype, options={"w_layout": layout}, mode="backward")
    (record,) = run_cells([Cell(case, "cuda", variant, config=config)])
    assert record.status == "ok", record.reason


OF_TILES = {"dx_KERNEL": "split", "dx_BLOCK_M": 64, "dx_BLOCK_N": 64, "dx_num_stages": 3, "dx_CLUSTER": 2, "dW_KERNEL": "warpgroup", "dW_BLOCK_M": 128, "dW_BLOCK_N": 128, "dW_num_stages": 2}  # fmt: skip
TURNED = [
    # whole tiles of dW; rows of no whole vectors; W that lies turned itself; M that is no whole vectors; few tiles of dW, whose depth blocks share
    ("lola", {"M": 70, "K": 136, "N": 520}, "multirow", "kn", OF_TILES, ["pull_back", "turned_operands", "inputs_split", "weights_warpgroup"]),
    ("splacc", {"M": 131, "K": 133, "N": 261}, "two_accumulators", "kn", OF_TILES, ["pull_gate", "turned_operands", "inputs_split", "weights_warpgroup"]),
    ("geglu", {"M": 257, "K": 136, "N": 132}, "two_accumulators", "nk", {}, ["pull_gate", "turned_operands", "inputs_tensor", "weights_warpgroup"]),
    ("splacc", {"M": 130, "K": 72, "N": 140}, "two_accumulators", "kn", {}, ["pull_gate", "turned_operands", "inputs_few_rows", "weights_split"]),
    ("lola", {"M": 301, "K": 131, "N": 135}, "multirow", "kn", {}, ["pull_back", "turned_operands", "inputs_warpgroup", "weights_split"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "sizes", "variant", "layout", "config", "launched"), in_turns(TURNED))
def test_gradients_in_tf32_are_of_operands_that_a_launch_turns(
    run_cells, kernels, name, sizes, variant, layout, config, launched
):
    case = make_case(kernels[name], sizes, "float32", "tf32", {"w_layout": layout}, "backward")
    module = module_of(name)
    launches = module.launches(case, variant, EMULATED, module.config(case, variant, EMULATED) | config)
    assert [launch.program.name.partition("<")[0] for launch in launches] == launched
    (record,) = run_cells([Cell(case, "cuda", variant, config=config)])
    assert record.status == "ok", record.reason


OF_FEW_ROWS = [  # of float, in rows of no whole vectors
    ("geglu", {"M": 9, "K": 97, "N": 135}, "tf32", "kn", "inputs_few_rows"), ("splacc", {"M": 40, "K": 66, "N": 77}, "tf32", "nk", "inputs_few_rows"),
    ("lola", {"M": 3, "K": 70, "N": 301}, "ieee", "kn", "inputs_few_rows"), ("lola", {"M": 20, "K": 45, "N": 131}, "ieee", "nk", "inputs_few_rows"),
    ("lora_linear", {"M": 7, "K": 45, "N": 1030, "R": 5}, "ieee", "kn", "inputs_few_rows"),
    ("lora_linear", {"M": 35, "K": 66, "N": 1027, "R": 35}, "tf32", "kn", "inputs_few_rows"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "sizes", "precision", "layout", "launched"), in_turns(OF_FEW_ROWS))
def test_warps_share_the_depth_of_dx_of_few_rows(run_cells, kernels, name, sizes, precision, layout, launched):
    """In both modes: forward, x and W are filled up as well."""
    variant = {"lola": "multirow", "lora_linear": "two_launches"}.get(name, "two_accumulators")
    for mode in ("backward", "forward_backward"):
        case = make_case(kernels[name], sizes, "float32", precision, {"w_layout": layout}, mode)
        module = module_of(name)
        launches = module.launches(case, variant, EMULATED, module.config(case, variant, EMULATED))
        assert any(launch.program.name.startswith(f"{launched}<") for launch in launches)
        (record,) = run_cells([Cell(case, "cuda", variant)])
        assert record.status == "ok", record.reason


KEPT = [
    ("geglu", {"M": 130, "K": 1096, "N": 72}, "bfloat16", "kn", "kept_split<", ", 2>"),
    ("splacc", {"M": 300, "K": 264, "N": 64}, "float16", "nk", "kept_split<", ", 1>"),
    ("splacc", {"M": 203, "K": 72, "N": 136}, "bfloat16", "kn", "kept_turned<", ", 1>"),
    ("geglu", {"M": 75, "K": 64, "N": 520}, "float16", "nk", "kept_turned<", ", 1>"),
    ("geglu", {"M": 330, "K": 64, "N": 328}, "bfloat16", "kn", "kept_warpgroup<", "2, Strips>"),  # whole tiles and small ones
    ("splacc", {"M": 330, "K": 64, "N": 328}, "float16", "nk", "kept_warpgroup<", ", 192, 192, 4, 1>"),
    ("geglu", {"M": 37, "K": 136, "N": 72}, "bfloat16", "nk", "kept_few_rows<", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "sizes", "dtype", "layout", "begins", "ends"), in_turns(KEPT))
def test_a_gated_layer_is_right_with_what_its_gradients_need(
    run_cells, kernels, name, sizes, dtype, layout, begins, ends
):
    """By each of the kernels that make Z and y in one launch."""
    case = make_case(kernels[name], sizes, dtype, options={"w_layout": layout}, mode="forward_backward")
    module, variant = module_of(name), "two_accumulators"
    first, *_ = module.launches(case, variant, EMULATED, module.config(case, variant, EMULATED))
    assert first.program.name.startswith(begins) and first.program.name.endswith(ends)
    (record,) = run_cells([Cell(case, "cuda", variant)])
    assert record.status == "ok", record.reason


OF_LAYERS = [
    # narrow layers, whose dW is of rows of single elements and of whole vectors, and of blocks that share the rows of the batch
    (mlp(300, 13, 72, 35, 16), "bfloat16", "ieee", "kn", "sigmoid", ["weights_of_layers", "sum_weights"]),
    (mlp(150, 13, 72, 35, 16), "float32", "ieee", "nk", "relu", ["weights_of_layers", "sum_weights"]),
    (mlp(300, 13, 75, 40), "float32", "tf32", "nk", "none", ["weights_of_layers", "sum_weights"]),
    (mlp(37, 13, 131, 67, 5), "float16", "ieee", "nk", "none", ["weights_of_layers"]),
    # layers of both products in one launch, of few rows too; hidden layers in other rows than their own, which the one below has otherwise
    (mlp(200, 200, 136, 203, 150), "bfloat16", "ieee", "kn", "none", ["gradients_together"]),
    (mlp(130, 133, 131, 64, 7), "float16", "ieee", "nk", "sigmoid", ["weights_of_layers", "sum_weights"]),
    (mlp(5, 131, 328, 135), "bfloat16", "ieee", "kn", "relu", ["gradients_few_rows"]),
    (mlp(70, 203, 201), "float32", "ieee", "kn", "none", ["weights_simt"]),  # wide, for a card with 8 multiprocessors: dW is a launch of its own
    (mlp(130, 200, 328, 3), "float32", "tf32", "kn", "none", ["weights_warpgroup", "weights_of_layers", "sum_weights"]),  # and of turned operands
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "dtype", "precision", "layout", "last", "ends"), in_turns(OF_LAYERS))
def test_gradients_of_a_perceptron_are_right(run_cells, kernels, sizes, dtype, precision, layout, last, ends):
    """With y, of a forward pass that keeps its hidden layers."""
    case = make_case(
        kernels["fused_mlp"], sizes, dtype, precision, {"w_layout": layout, "last": last}, "forward_backward"
    )
    launches = module_of("fused_mlp").launches(case, "default", EMULATED, {})
    names = [launch.program.name.partition("<")[0] for launch in launches]
    assert names.count("pull_layer") == case.sizes["LAYERS"]
    assert names[-len(ends) :] == ends
    (record,) = run_cells([Cell(case, "cuda", "default")])
    assert record.status == "ok", record.reason
