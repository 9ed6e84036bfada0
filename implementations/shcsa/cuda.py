"""shcsa in CUDA C++: cuda.cu has a Dense kernel, scores and a softmax, and includes flash.cuh's kernels.

padded_attention    dense → flash                                                      2 launches
whole_rows          the same with rows of whole vectors of 16 bytes: `prepare` puts zeros behind those of W and the parts of b, so that q, k
                    and v have D made up, and rows of x are copied first where they are no such                   2 or 3
padded_softmax_v    dense → scores → flash_of_scores                                   3
padded_softmax      dense → scores → softmax of what is visible → weights times v      4
plain_softmax       dense → scores, -inf where hidden → softmax → weights times v      4

On Hopper the blocks of a cluster share the sums of a tile: SPLIT of them the tokens in flash, or, but for KERNEL=tensor, K in dense.
"""

import dataclasses
import math
from pathlib import Path

from fusebench.launchers import chained
from implementations._shared.cuda import attention, flash_split, matmul, matmul_choice, matmul_split
from implementations._shared.cuda.launch import TYPES, Launch, in_turn, instance, of_launch, prefixed
from implementations._shared.gpu import filled_up, multiprocessors, rows_are_aligned

BACKEND = "torch"
FUSED = True
VARIANTS = {
    "padded_attention": ("bias", "probabilities"),
    "whole_rows": ("bias", "probabilities"),
    "padded_softmax_v": ("bias", "scaled", "probabilities"),
    "padded_softmax": ("bias", "scaled", "probabilities"),
    "plain_softmax": ("bias", "scaled", "probabilities"),
}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": ("padded_attention", "padded_softmax_v", "padded_softmax", "plain_softmax"), "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "padded_attention", "case": ("published", "wide", "wide_head"), "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=1,waits_in_groups=0"},
    {"variant": "whole_rows", "case": "odd", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0,tensor_core>=1"},
    {"variant": "padded_attention", "case": "published", "dtype": "float32", "arch": ("sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {  # `values` multiplies weights, or what it makes of scores, with v
    ("padded_attention", "whole_rows", "padded_softmax_v", "padded_softmax", "plain_softmax"): {
        "dense_KERNEL": ("tensor", "warpgroup", "simt"), "dense_BLOCK_M": (16, 64, 128), "dense_BLOCK_N": (64, 128, 256),
        "dense_num_stages": (2, 3, 4, 5, 6), "dense_SPLIT": (1, 2, 4, 8),
    },
    ("padded_attention", "whole_rows"): {
        "attention_KERNEL": ("tensor", "warpgroup", "simt"), "attention_SPLIT": (1, 2, 4, 8),
        "attention_BLOCK_M": (16, 32, 64, 128), "attention_BLOCK_N": (16, 32, 64, 128, 256), "attention_WARPS_M": (1, 2, 4, 8),
        "attention_WARPS_N": (1, 2, 4, 8), "attention_num_stages": (2, 3, 4),
    },
    ("padded_softmax_v", "padded_softmax", "plain_softmax"): {
        "values_BLOCK_M": (16, 32, 64, 128), "values_BLOCK_N": (32, 64, 128, 256, 512), "values_WARPS_M": (1, 2, 4, 8),
        "values_WARPS_N": (1, 2, 4, 8), "values_num_stages": (2, 3, 4),
    },
}  # fmt: skip

FLASH = ("padded_attention", "whole_rows")
FILE = Path(__file__).with_suffix(".cu")
SCORES = attention.AttentionTile(1, 4, 2, 32)  # 64 × 64, as cuda.cu has it
DENSE_TILES = (*matmul.TILES, *(t for t in matmul.SIMT_SPLIT_TILES if (t.rows, t.columns) == (64, 64)))
LANES, VECTORS = 128, 8  # that hold a row of att in `softmax`, and how many vectors of it each


def skip(case, variant, device):
    if variant not in FLASH:
        return attention.skip(case, device)
    if not (wide := attention.too_wide(case)):
        return attention.skip_flash(one_head(case), device)
    if (reason := attention.skip_scores(case, device)) or flash_split.config(one_head(case, variant), device):
        return reason
    widths, least = ", ".join(map(str, flash_split.WIDTHS)), min(flash_split.TOKENS)
    return (
        f"{wide}; on Hopper, in 16 bits, from {least} tokens, D may be one of {widths}, to which whole_rows makes it up"
    )


def prepare(case, variant, x, n_padd, W, b):
    """For whole_rows W and b of q, k and v made up, with zeros behind each."""
    if variant != "whole_rows":
        return ()
    from torch.nn.functional import pad

    (C, D), own = case.size("C", "D"), dense_case(case, variant)
    behind = width(case, variant) - D
    parts = (W if case.options["w_layout"] == "nk" else W.T).reshape(3, D, C)
    rows = pad(parts, (0, own.sizes["K"] - C, 0, behind)).flatten(0, 1)
    stored = rows if own.options["w_layout"] == "nk" else rows.T
    return stored.contiguous(), pad(b.view(3, D), (0, behind)).flatten()


def width(case, variant):
    """Columns of each of q, k and v: D, or D made up to what kernels of warpgroups have, or to whole vectors."""
    D = case.sizes["D"]
    if variant != "whole_rows":
        return D
    of_warpgroups = flash_split.WIDTHS if case.itemsize == 2 else ()
    return next((columns for columns in of_warpgroups if columns >= D), filled_up(case, D))


def copies_rows(case, variant):
    return dense_case(case, variant).sizes["K"] != case.sizes["C"]


def config(case, variant, device):
    product = dense_case(case, variant)
    dense = matmul_split.config(product, device)
    if dense is None or dense_fits(product, device, dense):
        dense = dense_config(product, device)
    if variant in FLASH:
        own = flash_split.config(one_head(case, variant), device) or flash_config(one_head(case), device)
        last = prefixed("attention", own)
    else:
        last = prefixed("values", attention.scores_config(case, device))
    return prefixed("dense", dense) | last


def flash_config(case, device):
    """The config of flash."""
    return attention.shared_config(case, device) or attention.flash_config(case, device)


def dense_config(case, device):
    """A config of matmul.py's, whose tiles have no clusters here. In IEEE float32 the K of few tiles is shared out to three blocks for each
    multiprocessor at the most: with the attention behind it, 1024×768→192 took 34.4 µs on an H200 by eight blocks, 36.6 by four, 48.2 by two."""
    own = matmul_choice.config(case, device)
    M, N = case.size("M", "N")
    blocks = -(-M // own["BLOCK_M"]) * -(-N // own["BLOCK_N"])
    own = {name: value for name, value in own.items() if name != "CLUSTER"}
    splits = (n for n in (8, 4, 2) if n * blocks <= 3 * multiprocessors(device))
    configs = (own | {"SPLIT": n} for n in splits)
    return next((c for c in configs if dense_fits(case, device, c) is None), own | {"SPLIT": 1})


def fits(case, variant, device, config):
    if reason := dense_fits(dense_case(case, variant), device, of_launch("dense", config)):
        return f"dense: {reason}"
    if variant in FLASH:
        own = of_launch("attention", config)
        return flash_fits(flash_case(case, variant, own), device, own)
    return attention.scores_fit(case, device, of_launch("values", config))


def dense_fits(case, device, config):
    if config["KERNEL"] == "warpgroup":
        if case.sizes["N"] % 2:
            return f"KERNEL=warpgroup stores two columns at once, which N = {case.sizes['N']} leaves one of"
        return matmul_split.fits(case, device, config)
    split = config["SPLIT"]
    if split != 1 and (config["KERNEL"] != "simt" or split not in matmul_split.SPLITS):
        return f"SPLIT is {split}: KERNEL=warpgroup and simt share K, in 2, 4 or 8"
    return matmul.fits(case, device, in_clusters(config), tiles=DENSE_TILES)


def in_clusters(config):
    """A config as matmul.py has it, whose blocks of a cluster share K."""
    return config | {"CLUSTER": config["SPLIT"]}


def flash_fits(case, device, config):
    if config["KERNEL"] == "warpgroup":
        return flash_split.fits(case, device, config)
    return attention.flash_fits(case, device, config)


def launches(case, variant, device, config):
    T, dtype = case.sizes["T"], case.dtype
    product, own = dense_case(case, variant), of_launch("dense", config)
    if own["KERNEL"] == "warpgroup":
        dense = matmul_split.launch(FILE, "dense", product, own, (*(matmul.operand(case),) * 2, dtype, dtype))
    else:
        dense = matmul.launch(FILE, "dense", product, device, in_clusters(own), dtypes=(dtype,) * 4)
    if variant in FLASH:
        before = (matmul.row_copy(FILE, dense_case(case), product, device),) if copies_rows(case, variant) else ()
        return in_turn(*before, dense, flash_launch(case, variant, of_launch("attention", config)))
    whole = rows_are_aligned(case, T)
    program = instance(FILE, "scores", *attention.head(case), whole, variant == "plain_softmax")
    memory = (SCORES.rows + SCORES.tokens) * SCORES.pitch(case) + SCORES.rows * (SCORES.tokens + 8) * case.itemsize
    grid = (-(-T // SCORES.rows)) ** 2
    scores = Launch(program, grid, SCORES.threads, memory, dtypes=(dtype, dtype, "int32", dtype))
    if variant == "padded_softmax_v":
        return in_turn(dense, scores, attention.flash_of_scores(FILE, case, of_launch("values", config)))
    held = -(-T * case.itemsize // (16 * LANES))
    masked = variant == "padded_softmax"
    program = instance(FILE, "softmax", TYPES[dtype], whole, masked, held if held <= VECTORS else 0)
    softmax = Launch(program, T, LANES, dtypes=(dtype, "int32", dtype))
    values = attention.flash_of_scores(FILE, case, of_launch("values", config), normalised=True)
    return in_turn(dense, scores, softmax, values)


def flash_case(case, variant, config):
    """The attention as the kernel of a config reads it: that of warpgroups has rows made up, the others a pitch of rows."""
    return one_head(case, variant) if config["KERNEL"] == "warpgroup" else one_head(case)


def flash_launch(case, variant, config):
    """That of the attention."""
    head, dtype = flash_case(case, variant, config), case.dtype
    if config["KERNEL"] == "warpgroup":
        return flash_split.launch(FILE, head, config, (dtype, dtype, "int32", dtype), case.sizes["D"])
    return attention.flash(FILE, head, config, (dtype, dtype, dtype, "int32", dtype))


def dense_case(case, variant="padded_attention"):
    """The Dense layer's product as a variant's kernel reads it, by which its tile is chosen."""
    T, C = case.size("T", "C")
    own = dataclasses.replace(case, sizes={"M": T, "K": C, "N": 3 * width(case, variant)})
    if variant != "whole_rows":
        return own
    return matmul.prepared_case(dataclasses.replace(own, sizes={**own.sizes, "K": filled_up(case, C)}))


def one_head(case, variant="padded_attention"):
    """The attention that follows it."""
    return dataclasses.replace(case, sizes={"B": 1, "H": 1, "T": case.sizes["T"], "D": width(case, variant)})


def build(case, variant, device, config):
    """call(x (T, C), n_padd () int32, W, b (3 D,), then what `prepare` made) → (T, D)."""
    import numpy as np

    T, C, D = case.size("T", "C", "D")
    product, filled = dense_case(case, variant).size("M", "K", "N"), width(case, variant)
    described, copied = launches(case, variant, device, config), copies_rows(case, variant)
    first, *behind = described[copied:]
    dense, others = first.returning({3: (T, 3 * filled)}, product), [launch.bind() for launch in behind]
    copy = described[0].returning({1: product[:2]}, (T, C, product[1], 0), absent=(2,)) if copied else lambda x: x
    scale = 1 / math.sqrt(D)
    attention_scale, scale = np.float32(scale * math.log2(math.e)), np.float32(scale)
    part = filled * case.itemsize  # bytes from q to k, and from k to v

    def by_flash(x, n_padd, *weights):
        qkv, y = dense(copy(x), *weights[-2:]), x.new_empty((T, D))
        if config["attention_KERNEL"] == "warpgroup":
            others[0](qkv, qkv, n_padd, y, T, attention_scale)
            return y
        q = qkv.data_ptr()
        others[0](qkv, q + part, q + 2 * part, n_padd, y, 1, T, D, 3 * filled, attention_scale)
        return y

    def by_scores(x, n_padd, W, b):
        scores, *softmax, last = others
        qkv, att, y = dense(x, W, b), x.new_empty((T, T)), x.new_empty((T, D))
        q = qkv.data_ptr()
        scores(qkv, q + part, n_padd, att, T, D, 3 * D, scale)
        for launch in softmax:
            weights = x.new_empty((T, T))
            launch(att, n_padd, weights, T)
            att = weights
        last(att, q + 2 * part, n_padd, y, T, D, 3 * D)
        return y

    return chained(by_flash if variant in FLASH else by_scores)
