"""embedding in Triton: what triton.py and jax_triton.py both launch, and the choice of their tiles.

modulus, naive, improved    those of _shared/triton/lookup.py.
atomic, deterministic       of the backward modes alone: two ways to add up the gradient of the tables (_triton_backward.py). Their forward pass
                            is modulus or improved, which leaves the row of each look-up behind.
"""

import triton
import triton.language as tl

from implementations._shared.triton import lookup
from implementations._shared.triton.launch import launch_with
from implementations._shared.triton.lookup import copy_own, found_rows, hashed_rows, own_lookups
from implementations.embedding import _triton_backward as backward

TUNABLES = {
    ("modulus", "improved"): {"BLOCK": (16, 32, 64, 128, 256), "BLOCK_D": (8, 16, 32, 64, 128, 256), "num_warps": (1, 2, 4, 8)},
    "naive": {
        "BLOCK": (16, 32, 64, 128), "BLOCK_LIST": (64, 128, 256), "BLOCK_D": (8, 16, 32, 64, 128), "num_warps": (2, 4, 8),
        "num_stages": (1, 2, 3, 4),
    },
    "atomic": {
        "add_BLOCK": (16, 32, 64, 128), "add_SPAN": (1, 2, 4, 8, 16, 32), "add_HOT": (16, 32, 64), "add_BLOCK_D": (16, 32, 64, 128),
        "add_num_warps": (1, 2, 4, 8), "add_num_stages": (1, 2, 3),
    },
    "deterministic": {
        "walk_RUNS": (4, 8, 16, 32, 64, 128), "walk_LENGTH": (16, 32, 64, 128), "walk_BLOCK_D": (16, 32, 64, 128),
        "walk_num_warps": (1, 2, 4, 8),
    },
}  # fmt: skip


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    if variant not in backward.VARIANTS:
        return lookup.skip(case, variant, device)
    if case.mode == "forward":
        return f"{variant} is for backward modes: modulus and improved are its forward pass"
    F, V = case.size("F", "V")
    return "rows are counted in 32 bits" if F * V >= 2**31 else None


def config(case, variant, device):
    """The tunables of a variant; in the backward modes they are those of the backward launches."""
    return (lookup if case.mode == "forward" else backward).config(case, variant, device)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    return (lookup if case.mode == "forward" else backward).fits(case, variant, device, config)


def launches(case, variant, device, config):
    """The one launch of every variant, in the backward modes those of _triton_backward.py, in mode=forward_backward behind the one that
    leaves rows."""
    if case.mode == "forward":
        return lookup.launches(case, variant, device, config)
    behind = backward.launches(case, variant, device, config)
    return behind if case.mode == "backward" else (kept_launch(case, device), *behind)


def forward_of(case):
    """The variant of mode=forward that hashes as the case says."""
    return "modulus" if case.options["hashing"] == "modulus" else "improved"


def kept_launch(case, device):
    """The forward launch of the backward modes, with the tile of mode=forward."""
    variant = forward_of(case)
    chosen = lookup.config(case, variant, device)
    (same,) = lookup.launches(case, variant, device, chosen)
    kernel = modulus_kept if variant == "modulus" else improved_kept
    options = {name: value for name, value in same.constexprs.items() if name not in chosen}
    return launch_with(chosen, kernel, same.signature | {"kept": "*i32"}, options, same.grid)


@triton.jit(do_not_specialize=["count"])
def modulus_kept(
    ids, tables, offsets, count, y, kept,
    F: tl.constexpr, D: tl.constexpr, ELEMENTS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """`modulus`, which leaves the rows behind."""
    lookups = own_lookups(D, BLOCK, ELEMENTS)
    at = tl.minimum(lookups, count - 1)
    rows = hashed_rows(tl.load(ids + at), at % F, offsets, F)
    tl.store(kept + lookups, rows.to(tl.int32), mask=lookups < count)
    copy_own(tables, rows, y, lookups, count, D, BLOCK_D, ELEMENTS)


@triton.jit(do_not_specialize=["count"])
def improved_kept(
    ids, tables, offsets, keys, positions, count, y, kept,
    F: tl.constexpr, D: tl.constexpr, STEPS: tl.constexpr, ELEMENTS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """`improved`, which leaves the rows behind."""
    lookups = own_lookups(D, BLOCK, ELEMENTS)
    at = tl.minimum(lookups, count - 1)
    rows = found_rows(tl.load(ids + at), at % F, offsets, keys, positions, F, STEPS)
    tl.store(kept + lookups, rows.to(tl.int32), mask=lookups < count)
    copy_own(tables, rows, y, lookups, count, D, BLOCK_D, ELEMENTS)
