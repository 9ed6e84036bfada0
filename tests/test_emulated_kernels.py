"""CUDA kernels on the emulator that no other test has: those of Hopper alone, and configs of larger cards."""

from __future__ import annotations

import pytest
from conftest import DEVICE
from cuda_kernels import mlp
from turns import in_turns

from fusebench.cases import make_case
from fusebench.contract import Cell

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="is for machines without a GPU")
HALF, OTHER_HALF, TF32, SINGLE = ("bfloat16", "ieee"), ("float16", "ieee"), ("float32", "tf32"), ("float32", "ieee")
HOPPER = [
    (
        "lola",
        {"M": 136, "K": 192, "N": 320},
        {"multirow": (HALF, TF32), "multirow_ws": (TF32,), "two_launches": (OTHER_HALF,)},
    ),
    ("splacc", {"M": 136, "K": 192, "N": 320}, {"two_accumulators": (HALF, TF32)}),
    ("geglu", {"M": 136, "K": 192, "N": 320}, {"two_accumulators": (OTHER_HALF, TF32)}),
    ("lora_linear", {"M": 136, "K": 256, "N": 320, "R": 16}, {"two_launches": (HALF, TF32)}),
    ("padded_attention", {"B": 1, "H": 2, "T": 200, "D": 64}, {"flash": (HALF, TF32)}),
    ("padded_softmax_v", {"T": 200, "D": 64}, {"cluster": (HALF, SINGLE)}),
    ("shcsa", {"T": 200, "C": 256, "D": 64}, {"padded_attention": (OTHER_HALF, TF32)}),
    ("softmax", {"R": 3, "C": 9000}, {"cluster": (HALF, SINGLE)}),
    ("fused_mlp", "bottom_small", {"default": (HALF, SINGLE, TF32)}),
]
CELLS = [(name, sizes, v, *d) for name, sizes, variants in HOPPER for v, dtypes in variants.items() for d in dtypes]


@pytest.mark.parametrize(("name", "sizes", "variant", "dtype", "precision"), CELLS)
def test_a_kernel_of_warpgroups_and_clusters_is_right(run_cells, kernels, name, sizes, variant, dtype, precision):
    (record,) = run_cells([Cell(make_case(kernels[name], sizes, dtype, precision), "cuda", variant)])
    assert record.status == "ok", record.reason


WIDE = {"KERNEL": "warpgroup", "BLOCK_M": 128, "BLOCK_N": 256, "num_stages": 3}
OF_UP = {f"up_{name}": value for name, value in WIDE.items()}
FEW = {"KERNEL": "few_rows", "BLOCK_M": 16, "BLOCK_N": 32, "CLUSTER": 1, "num_stages": 2}
OF_TILES = {"SCHEDULE": "tiles"}
OF_SCORES = {"CLUSTER": 4, "BLOCK_M": 64, "BLOCK_N": 64, "WARPS_M": 4, "WARPS_N": 2, "num_stages": 2}
SPLIT = {"KERNEL": "split", "BLOCK_M": 64, "BLOCK_N": 128, "CLUSTER": 4, "num_stages": 3, "SCHEDULE": "tiles"}
TURNED = {"KERNEL": "turned", "BLOCK_M": 64, "BLOCK_N": 128, "CLUSTER": 1, "num_stages": 3, "SCHEDULE": "tiles"}
STRIPS = {"KERNEL": "simt", "BLOCK_M": 128, "BLOCK_N": 256, "CLUSTER": 1, "num_stages": 3, "SCHEDULE": "strips"}
SHARED = STRIPS | {"BLOCK_M": 32, "BLOCK_N": 64, "CLUSTER": 4, "SCHEDULE": "tiles"}
OF_STRIPS, OF_SHARED = ({f"up_{name}": value for name, value in own.items()} for own in (STRIPS, SHARED))
OF_FEW, OF_SPLIT = ({f"up_{name}": value for name, value in own.items()} for own in (FEW, SPLIT))


OF_MLP = {"KERNEL": "warpgroup", "BLOCK_N": 128, "num_stages": 2}


def of_layers(*tiles):
    """A config of fused_mlp's layers, of each its kernel and tile."""
    names = "KERNEL", "BLOCK_M", "BLOCK_N", "CLUSTER", "num_stages"
    own = {f"layer{i}_{n}": v for i, tile in enumerate(tiles, 1) for n, v in zip(names, tile, strict=True)}
    return {"KERNEL": "layers"} | own


SQUARE = {"BLOCK_M": 192, "BLOCK_N": 192, "CLUSTER": 1, "SCHEDULE": "tiles", "num_stages": 4}
CONFIGS = [
    ("lora_linear", {"M": 136, "K": 128, "N": 392, "R": 17}, "two_launches", "bfloat16", "ieee", OF_UP | {"up_SCHEDULE": "stream_k", "up_CLUSTER": 1}),
    # strips below and beside, one alone, of one row and 128, of a cluster whose last block has none; with an odd number of slabs
    ("lora_linear", {"M": 328, "K": 75, "N": 773, "R": 70}, "two_launches", "bfloat16", "ieee", OF_UP | {"up_SCHEDULE": "strips", "up_CLUSTER": 2}),
    ("lora_linear", {"M": 160, "K": 128, "N": 296, "R": 5}, "two_launches", "float16", "ieee", OF_UP | {"up_SCHEDULE": "strips", "up_CLUSTER": 1}),
    ("lola", {"M": 129, "K": 136, "N": 520}, "two_launches", "float16", "ieee", WIDE | {"SCHEDULE": "strips", "CLUSTER": 1}),
    ("lola", {"M": 384, "K": 320, "N": 392}, "two_launches", "bfloat16", "ieee", WIDE | {"SCHEDULE": "strips", "CLUSTER": 4}),
    ("splacc", {"M": 328, "K": 131, "N": 276}, "two_launches", "bfloat16", "ieee", WIDE | {"SCHEDULE": "strips", "CLUSTER": 2}),
    ("geglu", {"M": 150, "K": 72, "N": 304}, "two_launches", "float32", "tf32", WIDE | {"SCHEDULE": "strips", "CLUSTER": 1}),
    # slabs of the adapter that are a warp's only ones, and others behind those of its product; W stored otherwise than B
    ("lora_linear", {"M": 37, "K": 136, "N": 40, "R": 70}, "two_launches", "bfloat16", "ieee", OF_FEW),
    ("lora_linear", {"M": 20, "K": 1096, "N": 72, "R": 5, "nk": 1}, "two_launches", "float16", "ieee", OF_FEW | {"up_BLOCK_M": 32, "up_num_stages": 1}),
    ("lora_linear", {"M": 9, "K": 1044, "N": 36, "R": 17, "nk": 1}, "two_launches", "float32", "tf32", OF_FEW | {"up_BLOCK_N": 16}),
    # on the float32 units: strips below, rows of single elements, blocks that share K
    ("lora_linear", {"M": 140, "K": 72, "N": 264, "R": 17}, "two_launches", "float32", "ieee", OF_STRIPS),
    ("lora_linear", {"M": 70, "K": 37, "N": 75, "R": 6, "nk": 1}, "two_launches", "float32", "ieee", OF_SHARED | {"up_BLOCK_M": 64}),
    ("lora_linear", {"M": 37, "K": 136, "N": 72, "R": 5, "nk": 1}, "two_launches", "float32", "ieee", OF_SHARED),
    # and rows that were filled up: of x, of W, of the halves of W and of B
    ("lola", {"M": 140, "K": 75, "N": 267}, "two_launches", "float32", "ieee", STRIPS),
    ("lola", {"M": 70, "K": 72, "N": 77}, "two_launches", "float32", "ieee", SHARED | {"BLOCK_M": 64, "CLUSTER": 2}),
    ("lola", {"M": 37, "K": 131, "N": 75, "nk": 1}, "two_launches", "float32", "ieee", SHARED),
    ("lola", {"M": 70, "K": 72, "N": 77}, "multirow_ws", "float32", "ieee", SHARED),
    ("splacc", {"M": 70, "K": 72, "N": 75}, "two_accumulators", "float32", "ieee", SHARED),
    ("geglu", {"M": 140, "K": 75, "N": 133}, "two_launches", "float32", "ieee", STRIPS),
    ("lora_linear", {"M": 70, "K": 75, "N": 203, "R": 6}, "two_launches", "float32", "ieee", OF_SHARED),
    # blocks that share K, of which the last has the adapter's slab alone; behind x as it was copied; two slabs of the adapter
    ("lora_linear", {"M": 70, "K": 264, "N": 200, "R": 16}, "two_launches", "bfloat16", "ieee", OF_SPLIT),
    ("lora_linear", {"M": 150, "K": 333, "N": 520, "R": 5}, "two_launches", "float16", "ieee", OF_SPLIT | {"up_BLOCK_N": 256, "up_CLUSTER": 2}),
    ("lora_linear", {"M": 140, "K": 200, "N": 264, "R": 70, "nk": 1}, "two_launches", "bfloat16", "ieee", OF_SPLIT | {"up_BLOCK_M": 128, "up_CLUSTER": 1}),
    # tf32, whose W and B are turned: by blocks that share K, in strips, and of tiles that blocks share; two slabs of the adapter; odd rows
    ("lora_linear", {"M": 70, "K": 131, "N": 203, "R": 33}, "two_launches", "float32", "tf32", OF_SPLIT | {"up_BLOCK_N": 64, "up_CLUSTER": 2}),
    ("lora_linear", {"M": 150, "K": 75, "N": 301, "R": 5, "nk": 1}, "two_launches", "float32", "tf32", OF_UP | {"up_SCHEDULE": "strips", "up_CLUSTER": 1}),
    ("lora_linear", {"M": 136, "K": 132, "N": 392, "R": 70}, "two_launches", "float32", "tf32", OF_UP | {"up_SCHEDULE": "stream_k", "up_CLUSTER": 2}),
    # blocks that share K behind LayerNorm: few rows, and columns of no whole vector
    ("lola", {"M": 20, "K": 264, "N": 301}, "two_launches", "bfloat16", "ieee", SPLIT | {"BLOCK_N": 64, "CLUSTER": 2}),
    ("lola", {"M": 330, "K": 136, "N": 776}, "two_launches", "bfloat16", "ieee", SQUARE),
    ("lora_linear", {"M": 201, "K": 75, "N": 395, "R": 70}, "two_launches", "float16", "ieee", OF_UP | {f"up_{n}": v for n, v in SQUARE.items()}),
    # any multiple of 16 rows, of which the last tile has one, or a warpgroup no columns; rows of y of no whole vectors; x brought by both blocks
    ("lola", {"M": 81, "K": 200, "N": 328}, "two_launches", "bfloat16", "ieee", TURNED | {"BLOCK_M": 80}),
    ("lola", {"M": 300, "K": 136, "N": 456}, "two_launches", "float16", "ieee", TURNED | {"BLOCK_M": 176, "CLUSTER": 2}),
    ("lola", {"M": 130, "K": 264, "N": 333, "nk": 1}, "two_launches", "bfloat16", "ieee", TURNED | {"BLOCK_M": 240, "BLOCK_N": 64}),
    ("splacc", {"M": 70, "K": 200, "N": 328}, "two_accumulators", "bfloat16", "ieee", TURNED | {"BLOCK_M": 96, "BLOCK_N": 256}),
    ("geglu", {"M": 130, "K": 133, "N": 299}, "two_launches", "float16", "ieee", TURNED | {"BLOCK_M": 128, "CLUSTER": 2}),
    # fewer slabs than warps; more than all warps have on their way; a last one that is not whole, beside rows and columns that are none
    ("lola", {"M": 3, "K": 136, "N": 40}, "multirow", "bfloat16", "ieee", FEW),
    ("lola", {"M": 70, "K": 1096, "N": 72}, "multirow_ws", "float16", "ieee", FEW | {"BLOCK_M": 64, "num_stages": 1}),
    ("lola", {"M": 37, "K": 1044, "N": 36}, "multirow", "float32", "tf32", FEW | {"BLOCK_M": 32, "BLOCK_N": 16}),
    ("splacc", {"M": 20, "K": 1096, "N": 40}, "two_accumulators", "bfloat16", "ieee", FEW),
    ("geglu", {"M": 70, "K": 540, "N": 52}, "two_accumulators", "float32", "tf32", FEW | {"BLOCK_M": 64}),
    ("geglu", {"M": 9, "K": 133, "N": 40}, "two_launches", "float16", "ieee", FEW | {"SCHEDULE": "tiles"}),
    # on the float32 units: rows of x that lie anywhere, and of W that were filled up; all arrangements of lanes; x shifted where it lies, or before
    ("lola", {"M": 37, "K": 331, "N": 76}, "multirow", "float32", "ieee", FEW | OF_TILES),
    ("lola", {"M": 20, "K": 1100, "N": 77}, "multirow_ws", "float32", "ieee", FEW | OF_TILES | {"BLOCK_N": 64}),
    ("lola", {"M": 70, "K": 332, "N": 40, "nk": 1}, "multirow", "float32", "ieee", FEW | OF_TILES | {"BLOCK_M": 32}),
    ("lola", {"M": 70, "K": 301, "N": 73}, "two_launches", "float32", "ieee", FEW | OF_TILES | {"BLOCK_M": 64}),
    ("splacc", {"M": 37, "K": 331, "N": 75}, "two_launches", "float32", "ieee", FEW | OF_TILES),
    ("geglu", {"M": 70, "K": 300, "N": 40, "nk": 1}, "two_accumulators", "float32", "ieee", FEW | OF_TILES | {"BLOCK_M": 32, "BLOCK_N": 64}),
    ("lora_linear", {"M": 37, "K": 331, "N": 73, "R": 70}, "two_launches", "float32", "ieee", OF_FEW | {"up_SCHEDULE": "tiles"}),
    ("lora_linear", {"M": 20, "K": 1100, "N": 40, "R": 5, "nk": 1}, "two_launches", "float32", "ieee", OF_FEW | {"up_BLOCK_N": 16, "up_SCHEDULE": "tiles"}),
    ("fused_mlp", mlp(37, 72, 300, 77, 40), "default", "float32", "ieee", {"KERNEL": "layers"}),
    # blocks that share K, and turned tiles: columns behind the width, one column alone, and rows of y of no whole vectors
    ("fused_mlp", mlp(130, 136, 303, 1), "default", "bfloat16", "ieee", of_layers(("split", 128, 64, 2, 3), ("split", 64, 64, 4, 3))),
    ("fused_mlp", mlp(130, 136, 303, 299) | {"nk": 1}, "default", "float16", "ieee", of_layers(("split", 128, 256, 1, 3), ("turned", 64, 128, 2, 3))),
    ("fused_mlp", mlp(150, 104, 515, 203), "default", "bfloat16", "ieee", of_layers(("turned", 112, 64, 1, 4), ("turned", 80, 64, 2, 5))),
    # no more than a slab of K, of rows that lie anywhere
    ("fused_mlp", mlp(130, 13, 303, 75), "default", "float32", "tf32", of_layers(("one_slab", 64, 128, 1, 1), ("split", 64, 64, 2, 3))),
    ("fused_mlp", mlp(130, 63, 303, 75) | {"nk": 1}, "default", "bfloat16", "ieee", of_layers(("one_slab", 128, 256, 1, 1), ("tensor", 16, 64, 1, 2))),
    # three layers in registers, and a fourth behind them: of one column, and of no whole vectors behind W that was turned
    ("fused_mlp", mlp(141, 75, 136, 120, 80, 1), "default", "bfloat16", "ieee", OF_MLP | {"KERNEL": "three_and_one", "BLOCK_M": 64, "CLUSTER": 2}),
    ("fused_mlp", mlp(262, 13, 136, 72, 128, 75) | {"nk": 1}, "default", "float16", "ieee", OF_MLP | {"KERNEL": "three_and_one", "BLOCK_M": 128, "CLUSTER": 2}),
    ("fused_mlp", mlp(130, 136, 303, 3), "default", "float32", "tf32", of_layers(("split", 64, 128, 4, 3), ("split", 64, 64, 8, 3))),
    # four warps, with two elements of K of W at one time
    ("lola", {"M": 70, "K": 301, "N": 73}, "two_launches", "float32", "ieee", FEW | OF_TILES | {"BLOCK_M": 64, "BLOCK_N": 64}),
    ("splacc", {"M": 37, "K": 300, "N": 75}, "two_accumulators", "float32", "ieee", FEW | OF_TILES | {"BLOCK_M": 64, "BLOCK_N": 64, "num_stages": 1}),
    ("lora_linear", {"M": 70, "K": 131, "N": 73, "R": 37}, "two_launches", "float32", "ieee", OF_FEW | {"up_BLOCK_M": 64, "up_BLOCK_N": 64, "up_SCHEDULE": "tiles"}),
    ("splacc", {"M": 150, "K": 264, "N": 136}, "two_accumulators", "float16", "ieee", SPLIT | {"BLOCK_M": 128, "CLUSTER": 2}),
    ("geglu", {"M": 70, "K": 264, "N": 200}, "two_accumulators", "float32", "tf32", SPLIT),
    ("splacc", {"M": 1, "K": 264, "N": 136}, "two_accumulators", "bfloat16", "ieee", SPLIT),
    ("geglu", {"M": 17, "K": 131, "N": 70}, "two_launches", "float16", "ieee", SPLIT | {"CLUSTER": 2}),
    # 96 columns of either half, whose W is turned; a cluster whose last block has no rows; tf32
    ("splacc", {"M": 330, "K": 136, "N": 264}, "two_accumulators", "bfloat16", "ieee", {"KERNEL": "warpgroup"} | SQUARE),
    ("geglu", {"M": 201, "K": 75, "N": 299}, "two_launches", "float16", "ieee", {"KERNEL": "warpgroup"} | SQUARE),
    ("geglu", {"M": 390, "K": 200, "N": 276}, "two_accumulators", "bfloat16", "ieee", {"KERNEL": "warpgroup"} | SQUARE | {"CLUSTER": 2}),
    ("splacc", {"M": 193, "K": 76, "N": 300}, "two_accumulators", "float32", "tf32", {"KERNEL": "warpgroup"} | SQUARE | {"CLUSTER": 2, "num_stages": 3}),
    # 17 rows of tiles, of which the last one belongs to the pass of the others; of clusters, 9
    ("lola", {"M": 2100, "K": 72, "N": 264}, "two_launches", "bfloat16", "ieee", WIDE | {"SCHEDULE": "tiles", "CLUSTER": 1}),
    ("splacc", {"M": 2100, "K": 72, "N": 264}, "two_accumulators", "float16", "ieee", WIDE | {"SCHEDULE": "tiles", "CLUSTER": 2}),
    # fewer slabs than clusters, of which some have no piece
    ("splacc", {"M": 328, "K": 131, "N": 276}, "two_launches", "bfloat16", "ieee", WIDE | {"SCHEDULE": "stream_k", "CLUSTER": 2}),
    ("lola", {"M": 136, "K": 128, "N": 264}, "two_launches", "float16", "ieee", WIDE | {"SCHEDULE": "stream_k", "CLUSTER": 1}),
    ("lora_linear", {"M": 137, "K": 333, "N": 520, "R": 5}, "two_launches", "bfloat16", "ieee", {}),
    ("lora_linear", {"M": 264, "K": 136, "N": 515, "R": 17}, "two_launches", "float16", "ieee", {}),
    ("lora_linear", {"M": 300, "K": 321, "N": 777, "R": 17}, "two_launches", "bfloat16", "ieee", OF_UP | {"up_SCHEDULE": "stream_k", "up_CLUSTER": 2}),
    ("lola", {"M": 136, "K": 520, "N": 520}, "two_launches", "bfloat16", "ieee", WIDE | {"SCHEDULE": "stream_k", "CLUSTER": 1}),
    ("lola", {"M": 600, "K": 112, "N": 648}, "two_launches", "float16", "ieee", WIDE | {"SCHEDULE": "stream_k", "CLUSTER": 2, "BLOCK_N": 128}),
    ("lola", {"M": 264, "K": 128, "N": 392}, "multirow", "bfloat16", "ieee", {"BLOCK_N": 256, "CLUSTER": 2}),
    ("splacc", {"M": 137, "K": 333, "N": 515}, "two_launches", "bfloat16", "ieee", {}),
    ("geglu", {"M": 137, "K": 333, "N": 515}, "two_launches", "float32", "tf32", {}),
    ("splacc", {"M": 264, "K": 320, "N": 392}, "two_launches", "float16", "ieee", WIDE | {"SCHEDULE": "stream_k", "CLUSTER": 2}),
    ("geglu", {"M": 300, "K": 133, "N": 512}, "two_launches", "bfloat16", "ieee", WIDE | {"SCHEDULE": "stream_k", "CLUSTER": 1}),
    ("shcsa", {"T": 333, "C": 101, "D": 40}, "padded_attention", "float32", "ieee", {"dense_SPLIT": 4, "attention_SPLIT": 4}),
    ("shcsa", {"T": 150, "C": 20, "D": 40}, "padded_attention", "float32", "ieee", {"dense_SPLIT": 8, "attention_SPLIT": 2}),
    ("shcsa", {"T": 150, "C": 36, "D": 40}, "padded_attention", "bfloat16", "ieee", {"attention_SPLIT": 8}),
    ("shcsa", {"T": 256, "C": 512, "D": 64}, "padded_attention", "bfloat16", "ieee", {"dense_SPLIT": 4, "attention_SPLIT": 2}),
    ("shcsa", {"T": 139, "C": 261, "D": 127}, "whole_rows", "bfloat16", "ieee", {"dense_KERNEL": "warpgroup", "attention_KERNEL": "warpgroup"}),
    ("shcsa", {"T": 139, "C": 136, "D": 201}, "whole_rows", "float16", "ieee", {}),
    ("shcsa", {"T": 264, "C": 128, "D": 192}, "padded_attention", "bfloat16", "ieee", {"attention_SPLIT": 8}),
    ("padded_attention", {"B": 1, "H": 2, "T": 201, "D": 256}, "flash", "float16", "ieee", {"BLOCK_M": 128, "WARPS_M": 8}),
    ("padded_attention", {"B": 2, "H": 1, "T": 139, "D": 130}, "flash", "bfloat16", "ieee", {}),
    # rows of q, k and v that are copied to whole vectors; heads whose rows of y begin anywhere
    ("padded_attention", {"B": 2, "H": 3, "T": 137, "D": 101}, "flash", "bfloat16", "ieee", {}),
    ("padded_attention", {"B": 1, "H": 3, "T": 193, "D": 38}, "flash", "float16", "ieee", {"BLOCK_M": 192, "WARPS_M": 12}),
    ("padded_softmax_v", {"T": 150, "D": 40}, "cluster", "float16", "ieee", {"CLUSTER": 8}),
    # rows of att that begin anywhere, 64 rows a block, columns shared out to two
    ("padded_softmax_v", {"T": 333, "D": 64}, "cluster", "bfloat16", "ieee", OF_SCORES | {"num_stages": 3, "BLOCK_N": 128}),
    ("padded_softmax_v", {"T": 213, "D": 101}, "cluster", "float16", "ieee", OF_SCORES | {"CLUSTER": 2}),
    ("padded_softmax_v", {"T": 213, "D": 150}, "cluster", "bfloat16", "ieee", OF_SCORES),
    ("padded_softmax_v", {"T": 149, "D": 131}, "cluster", "float32", "ieee", OF_SCORES | {"BLOCK_N": 32}),
    ("padded_softmax_v", {"T": 149, "D": 66}, "cluster", "float32", "tf32", OF_SCORES | {"BLOCK_N": 64, "WARPS_M": 2, "BLOCK_M": 32, "WARPS_N": 4}),
    ("softmax", {"R": 3, "C": 9000}, "cluster", "float32", "ieee", {"CLUSTER": 4, "num_warps": 32}),
    # rows of x that begin at multiples of 16 bytes every 8, 4 and 2 rows, and remainders of M of which some tiles have the last row
    ("fused_mlp", mlp(141, 75, 136, 120, 3), "default", "bfloat16", "ieee", OF_MLP | {"BLOCK_M": 64, "CLUSTER": 4}),
    ("fused_mlp", mlp(262, 70, 128, 128, 24, 5), "default", "float16", "ieee", OF_MLP | {"BLOCK_M": 64, "CLUSTER": 2}),
    ("fused_mlp", mlp(527, 121, 128, 72, 1), "default", "bfloat16", "ieee", OF_MLP | {"BLOCK_M": 128, "CLUSTER": 2}),
    ("fused_mlp", mlp(255, 68, 136, 128, 2), "default", "float16", "ieee", OF_MLP | {"BLOCK_M": 128, "CLUSTER": 1}),
]  # fmt: skip
OF_WARPGROUPS = {"KERNEL": "warpgroup", "BLOCK_M": 64, "BLOCK_N": 64, "WARPS_M": 4, "WARPS_N": 1, "num_stages": 2}
OF_WARPS = {"BLOCK_M": 16, "BLOCK_N": 64, "WARPS_M": 1, "WARPS_N": 4, "num_stages": 2}
CONFIGS += [  # blocks of a cluster that share tokens, of which some have none
    ("padded_attention", {"B": 2, "H": 1, "T": 150, "D": 72}, "flash", "bfloat16", "ieee", OF_WARPGROUPS | {"SPLIT": 4}),
    ("padded_attention", {"B": 1, "H": 2, "T": 133, "D": 131}, "flash", "float16", "ieee", OF_WARPGROUPS | {"SPLIT": 2}),
    ("padded_attention", {"B": 2, "H": 2, "T": 90, "D": 20}, "flash", "float32", "ieee", OF_WARPS | {"SPLIT": 4}),
    ("padded_attention", {"B": 2, "H": 1, "T": 150, "D": 37}, "flash", "bfloat16", "ieee", OF_WARPS | {"KERNEL": "tensor", "SPLIT": 8}),
]  # fmt: skip
OF_MODEL = {"F": 5, "V": 50, "D": 7, "LAYERS": 3, "N0": 13, "N1": 67, "N2": 40, "N3": 1, "P1": 41, "P2": 19}
OF_LATENCY = {"KERNEL": "few_rows", "BLOCK_M": 16, "BLOCK_N": 64, "CLUSTER": 4, "num_stages": 4}
CONFIGS += [  # rows of the interaction behind one another, of no whole vectors; perceptrons in one launch
    ("dlrm", OF_MODEL | {"M": 20}, "modulus", "float32", "ieee", {f"{of}_{n}": v for of in ("bottom", "top") for n, v in OF_LATENCY.items()}),
    *(("dlrm", OF_MODEL | {"M": 20}, "modulus", dtype, "ieee", {f"{of}_KERNEL": kernel for of in ("bottom", "top")})
      for dtype, kernel in (("float32", "simt"), ("bfloat16", "tensor"))),
    ("dlrm", OF_MODEL | {"M": 20, "N0": 77}, "modulus", "bfloat16", "ieee", {}),  # x is copied
]  # fmt: skip
OF_DOTS = {"BLOCK_M": 1, "BLOCK_K": 128, "BLOCK_F": 128, "num_warps": 8}
CONFIGS += [  # squares of both sides, bands, pieces of vectors and of a width, samples of a block, of dots on the tensor cores and beside them
    ("interaction", {"M": M, "F": F, "D": D}, "default", dtype, precision, OF_DOTS | config)
    for dtype, precision in (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee"))
    for M, F, D, config in (
        (5, 26, 36, {}),  # more warps than squares
        (5, 40, 50, {"num_warps": 4}),
        (5, 40, 49, {"num_warps": 1}),  # one square of a warp, of vectors in odd places
        (3, 60, 20, {"num_warps": 1}),
        (3, 67, 7, {"BLOCK_F": 32, "num_warps": 2}),  # bands, and pieces of single elements
        (2, 67, 44, {"BLOCK_K": 16, "num_warps": 1}),  # pieces of vectors, again for each pass
        (11, 31, 9, {"BLOCK_M": 8, "BLOCK_F": 32, "num_warps": 1}),
    )
]  # fmt: skip


@pytest.mark.parametrize(("name", "sizes", "variant", "dtype", "precision", "config"), in_turns(CONFIGS))
def test_a_config_for_larger_cards_is_right(run_cells, kernels, name, sizes, variant, dtype, precision, config):
    """What the emulated device has too few multiprocessors to choose."""
    sizes = dict(sizes)
    options = {"w_layout": "nk"} if sizes.pop("nk", 0) else None
    case = make_case(kernels[name], sizes, dtype, precision, options)
    (record,) = run_cells([Cell(case, "cuda", variant, config=config)])
    assert record.status == "ok", record.reason


@pytest.mark.parametrize("implementation", ["cuda", "triton"])
def test_tanh_gelu_of_small_sums_is_as_precise_as_a_tanh(run_cells, kernels, implementation):
    """A fast exponential is within every element's budget, but not within that of all together."""
    case = make_case(kernels["add_mul_act"], "odd", options={"activation": "gelu_tanh"})
    cells = [Cell(case, implementation, "default", inputs="small", seed=seed) for seed in (0, 1, 2)]
    assert [record.status for record in run_cells(cells)] == ["ok"] * 3


@pytest.mark.parametrize(("layout", "inputs"), [("kn", "nan"), ("nk", "inf")])
def test_an_mlp_keeps_what_is_not_finite_in_its_rows(run_cells, kernels, layout, inputs):
    """A box of x has elements of the rows before and behind."""
    case = make_case(kernels["fused_mlp"], mlp(75, 67, 128, 64, 1), "bfloat16", options={"w_layout": layout})
    config = OF_MLP | {"BLOCK_M": 64, "CLUSTER": 2}
    (record,) = run_cells([Cell(case, "cuda", "default", config=config, inputs=inputs)])
    assert record.status == "ok", record.reason


@pytest.mark.parametrize(
    ("layout", "inputs", "sizes", "tile"),
    [
        # vectors of all weights, and of none; layers of which some blocks have no part; one layer alone
        ("kn", "plain", mlp(37, 13, 512, 256, 64, 16), (16, 64, 8)),
        ("nk", "plain", mlp(19, 72, 264, 200, 1), (8, 128, 4)),
        ("kn", "inf", mlp(3, 17, 131, 2, 150), (4, 64, 4)),
        ("nk", "nan", mlp(35, 13, 67, 5, 40), (32, 64, 8)),
        ("nk", "plain", mlp(5, 70, 41), (16, 128, 8)),
    ],
)
def test_an_mlp_of_few_rows_is_right(run_cells, kernels, layout, inputs, sizes, tile):
    case = make_case(kernels["fused_mlp"], sizes, options={"w_layout": layout, "last": "relu"})
    config = dict(zip(("BLOCK_M", "BLOCK_N", "CLUSTER"), tile, strict=True)) | {"KERNEL": "few_rows", "num_stages": 4}
    (record,) = run_cells([Cell(case, "cuda", "default", config=config, inputs=inputs)])
    assert record.status == "ok", record.reason


@pytest.mark.parametrize(
    ("layout", "dtype", "precision", "inputs", "sizes"),
    [
        ("kn", "bfloat16", "ieee", "inf", mlp(136, 72, 261, 131, 7)),  # warpgroups, and tensor cores without them
        (
            "nk",
            "float32",
            "tf32",
            "plain",
            mlp(136, 75, 261, 131, 130),
        ),  # the last layer is narrower than 256, too; x is copied
        ("kn", "float32", "ieee", "inf", mlp(70, 13, 130, 35, 5)),
        ("kn", "bfloat16", "ieee", "inf", mlp(130, 67, 129, 5)),  # x is copied
        ("nk", "float16", "ieee", "nan", mlp(3, 72, 77, 40)),  # few rows
    ],
)
def test_layers_of_an_mlp_have_rows_of_whole_vectors(run_cells, kernels, layout, dtype, precision, inputs, sizes):
    """Behind a hidden layer's width there are zeros, also in rows of infinities."""
    case = make_case(kernels["fused_mlp"], sizes, dtype, precision, {"w_layout": layout, "last": "sigmoid"})
    (record,) = run_cells([Cell(case, "cuda", "default", config={"KERNEL": "layers"}, inputs=inputs)])
    assert record.status == "ok", record.reason


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("M", "LAYERS", "P1"), [(130, 2, 100), (37, 1, 1)])
def test_the_layer_behind_outer_products_shares_its_weights_out(run_cells, kernels, M, LAYERS, P1, dtype):
    """Vectors of whole 16 bytes, of which slabs begin at any; more tiles than one, and pieces with fewer slabs than others."""
    sizes = {"M": M, "F": 3, "V": 50, "D": 8, "LAYERS": LAYERS, "N0": 13, "N1": 16, "N2": 1, "N3": 1, "P1": P1, "P2": 1}
    case = make_case(kernels["dlrm"], sizes, dtype, options={"interaction": "outer"})
    (record,) = run_cells([Cell(case, "cuda", "modulus")])
    assert record.status == "ok", record.reason
