"""padded_attention's flash in CUDA C++: its kernels by KERNEL, `warpgroup` on Hopper, and their tiles. Of few heads of few rows SPLIT blocks, a
cluster, share the tokens of a tile. Rows that are no whole vectors, which the copy engine does not take, a launch before it copies to such.
Backward modes launch it too, and have the logarithms of each row's sum of exponentials left; no blocks share tokens there.
"""

import math
from dataclasses import replace
from pathlib import Path

from implementations._shared.cuda import attention, flash_split
from implementations._shared.cuda.launch import TYPES, Launch, in_turn, instance, too_large
from implementations._shared.gpu import filled_up, multiprocessors, rows_are_aligned

FOLDER = Path(__file__).parent
# rows × tokens of each number of columns: 64 rows are for heads that do not fill the card
WARPGROUP_TILES = {
    64: ((128, 128), (64, 128), (192, 128)), 128: ((128, 128), (64, 128)), 192: ((128, 64), (64, 64)), 256: ((128, 64), (64, 64)),
}  # fmt: skip
LARGEST_D = max(WARPGROUP_TILES)
COPIED_D = 33  # from which on rows are copied: less than half of a panel would be elements
COPIERS, VECTORS = 256, 4  # threads of a block of whole_rows, and vectors of each


def skip(case, device):
    """Why no kernel can run the case, or None: rows of more than 128 elements are for warpgroups alone."""
    if not (wide := attention.too_wide(case)):
        return attention.skip_flash(case, device)
    misfit = fits(case, device, _by_warpgroups(case, device))
    return f"{wide}; {misfit}" if misfit else attention.skip_scores(case, device)


def config(case, device):
    """The config of a forward pass."""
    own = alone(case, device)
    if own["KERNEL"] == "warpgroup":
        shared = flash_split.config(_in_panels(case), device)
    else:
        shared = attention.shared_config(case, device)
    return shared if shared and shared["SPLIT"] > 1 else own


def alone(case, device):
    """The config where no blocks share tokens."""
    chosen = _by_warpgroups(case, device)
    return chosen if fits(case, device, chosen) is None else attention.flash_config(case, device)


def _in_panels(case):
    """The case with D as warpgroups have it."""
    return replace(case, sizes={**case.sizes, "D": warpgroup_columns(case)})


def _by_warpgroups(case, device):
    """The config of flash_warpgroup that is best where it fits."""
    (B, H, T), columns = case.size("B", "H", "T"), min(warpgroup_columns(case), LARGEST_D)
    if columns == 64 and 4 * multiprocessors(device) <= B * H * -(-T // 192):
        return warpgroup(192, 128)  # an H200 took 646 µs at 8×16×4096×64 in bfloat16, 704 with 128 rows
    rows = 64 if T < 128 else attention.warpgroup_rows(case, device, B * H)  # no box is longer than the sequence
    return warpgroup(*next(tile for tile in WARPGROUP_TILES[columns] if tile[0] == rows))


def warpgroup(rows, tokens):
    """The config of flash_warpgroup with that tile."""
    return {
        "KERNEL": "warpgroup", "BLOCK_M": rows, "BLOCK_N": tokens, "WARPS_M": rows // 16, "WARPS_N": 1, "num_stages": 2, "SPLIT": 1,
    }  # fmt: skip


def fits(case, device, config):
    """Why a config cannot run, or None."""
    if config["KERNEL"] != "warpgroup":
        return attention.flash_fits(case, device, config)
    if config["SPLIT"] == 1:
        return no_warpgroups(case, device, config)
    tokens = max(config["BLOCK_M"], config["BLOCK_N"])
    return not_of_warpgroups(case, device, tokens, LARGEST_D) or flash_split.fits(_in_panels(case), device, config)


def no_warpgroups(case, device, config):
    """Why flash_warpgroup cannot be compiled for the device or take the case, or None: no box is larger than what it is of."""
    tile = config["BLOCK_M"], config["BLOCK_N"]
    known = WARPGROUP_TILES.get(warpgroup_columns(case))
    if known and (tile not in known or {**config, "num_stages": 2} != warpgroup(*tile)):
        tiles = ", ".join(f"{rows}×{tokens}" for rows, tokens in known)
        return (
            f"KERNEL=warpgroup has tiles of its own, BLOCK_M×BLOCK_N, for D={case.sizes['D']}: {tiles}; "
            "WARPS_M=BLOCK_M/16, WARPS_N=1"
        )
    if reason := not_of_warpgroups(case, device, max(tile), LARGEST_D):
        return reason
    if config["num_stages"] < 2:
        return f"num_stages is {config['num_stages']}: one is read while another is written"
    return too_large(warpgroup_bytes(case, config), device)


def not_of_warpgroups(case, device, tokens, largest_D=attention.LARGEST_D):
    """Why no kernel of warpgroups takes the case, or None. Its tiles have up to `tokens` rows or tokens, and rows up to `largest_D` elements. Rows that
    are no whole vectors are copied."""
    T, D = case.size("T", "D")
    least = 64 if rows_are_aligned(case, D) else COPIED_D
    if tuple(device.capability) == (9, 0) and case.itemsize == 2 and least <= D <= largest_D and tokens <= T:
        return None
    return (
        f"KERNEL=warpgroup is for Hopper (9.0), 16 bits, D from 64 to {largest_D}, of other than eights from {COPIED_D}, "
        f"T from {tokens}"
    )


def warpgroup_bytes(case, config):
    """Shared memory of a block: q, and stages of k and of v with their barriers."""
    row = warpgroup_columns(case) * 2
    return config["BLOCK_M"] * row + 2 * config["num_stages"] * (config["BLOCK_N"] * row + 16)


def warpgroup_columns(case):
    """D made up to whole panels of 64."""
    return -(-case.sizes["D"] // 64) * 64


def copies_rows(case, config):
    """Whether what kernels of warpgroups read must be copied first."""
    return config["KERNEL"] == "warpgroup" and not rows_are_aligned(case, case.sizes["D"])


def copied_shape(case):
    """Of q, k and v in rows of whole vectors, and no less than a box has."""
    B, H, T, D = case.size("B", "H", "T", "D")
    return B, H, T, max(64, filled_up(case, D))


def copy_launch(case, count=3):
    """`whole_rows` of q, k and v, or of less: `count` tensors and their copies, in the places of three each."""
    B, H, T, pitch = copied_shape(case)
    vectors = B * H * T * pitch * case.itemsize // 16
    program = instance(FOLDER / "cuda.cu", "whole_rows", TYPES[case.dtype], count, pitch, VECTORS)
    grid, sizes = count * -(-vectors // (COPIERS * VECTORS)), (B * H * T, case.sizes["D"])
    return Launch(program, grid, COPIERS, dtypes=(case.dtype,) * 6, sizes=sizes)


def launches(case, config):
    """The copy of rows, where there is one, and `launch`'s."""
    own = launch(case, config)
    return in_turn(copy_launch(case), own) if copies_rows(case, config) else (own,)


def copy(case):
    """A function of q, k and v, which returns their copies."""
    return copy_launch(case).returning(dict.fromkeys((3, 4, 5), copied_shape(case)))


def build(case, config):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D)."""
    import numpy as np

    B, H, T, D = case.size("B", "H", "T", "D")
    attend = launches(case, config)[-1].returning(
        {4: (B, H, T, D)}, (H, T, D, D, np.float32(math.log2(math.e) / math.sqrt(D)))
    )
    if not copies_rows(case, config):
        return attend
    of_rows = copy(case)
    return lambda q, k, v, n_padd: attend(*of_rows(q, k, v), n_padd)


def launch(case, config, logarithms=False):
    """Of q, k, v, n_padd, y and, where they are to be left, logarithms (B, H, T) float32."""
    B, H, T = case.size("B", "H", "T")
    dtypes = *(case.dtype,) * 3, "int32", case.dtype, *(("float32",) if logarithms else ())
    suffix, kind = ("_logarithms", "_backward") if logarithms else ("", "")
    if config["KERNEL"] != "warpgroup":
        return attention.flash(FOLDER / f"cuda{kind}.cu", case, config, dtypes, f"flash{suffix}")
    file = FOLDER / (f"cuda{kind}_hopper.cu" if logarithms else "cuda.cu")
    rows, tokens, stages, split = (config[name] for name in ("BLOCK_M", "BLOCK_N", "num_stages", "SPLIT"))
    boxes, grid = ((1, rows, 64), (1, tokens, 64), (1, tokens, 64)), B * H * -(-T // rows) * split
    if split > 1:
        tile, memory = (rows, tokens, stages, split, case.sizes["D"]), flash_split.memory(_in_panels(case), config)
        program = instance(file, "flash_split", TYPES[case.dtype], warpgroup_columns(case), *tile)
    else:
        tile, memory = (rows, tokens, stages), warpgroup_bytes(case, config)
        aligned = rows_are_aligned(case, case.sizes["D"])
        program = instance(file, f"flash_warpgroup{suffix}", TYPES[case.dtype], aligned, warpgroup_columns(case), *tile)
    return Launch(program, grid, rows * 2 + 128, memory, dtypes=dtypes, boxes=boxes)
