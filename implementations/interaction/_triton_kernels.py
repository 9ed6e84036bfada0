"""interaction in Triton: the kernels that triton.py and jax_triton.py both launch, and the choice of their tiles.

dot     the kernel of _shared/triton/interactions.py.
outer   a program has one sample and a tile of its outer product.
"""

import triton
import triton.language as tl

from implementations._shared.dlrm import pairs_skip
from implementations._shared.triton import interactions
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit
from implementations.interaction import _limits
from implementations.interaction import _triton_backward as backward
from implementations.interaction._vectors import side_by_side

TUNABLES = {  # BLOCK_F and BLOCK_D are those of form=dot, BLOCK_I and BLOCK_J those of form=outer, backward BLOCK_I alone
    "default": {
        "BLOCK_F": (16, 32, 64), "BLOCK_D": (16, 32, 64, 128), "BLOCK_I": (1, 2, 4, 8, 16, 32, 64), "BLOCK_J": (64, 128, 256, 512),
        "num_warps": (1, 2, 4, 8), "num_stages": (1, 2, 3, 4),
    },
}  # fmt: skip


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    behind = None if case.mode == "forward" else backward.skip(case, variant, device)
    return behind or pairs_skip(case) or _limits.skip(case, variant, device)


def config(case, variant, device):
    """The tunables of a form: its tile and warps; `outer`, which has no loop, has no stages. In the backward modes they are those of
    the backward launch."""
    return backward.config(case) if case.mode != "forward" else forward_config(case)


def forward_config(case):
    """The tunables of a form in mode=forward."""
    return interactions.config(case) if case.options["form"] == "dot" else outer_config(case)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    if case.mode != "forward":
        return backward.fits(case, device, config)
    if case.options["form"] == "outer":
        return misfit(device, config, values=config["BLOCK_I"] * config["BLOCK_J"])
    return interactions.fits(case, device, config)


def launches(case, variant, device, config):
    """The one launch of either form, in mode=forward_backward that and the one backward."""
    if case.mode != "forward":
        behind = backward.launches(case, config)
        return behind if case.mode == "backward" else (*forward_launches(case, forward_config(case)), *behind)
    return forward_launches(case, config)


def forward_launches(case, config):
    """The one launch of either form in mode=forward."""
    if case.options["form"] == "dot":
        return (interactions.launch(case, config),)
    M, F, D = case.size("M", "F", "D")
    signature, N = dict.fromkeys(("dense", "sparse", "y"), TYPES[case.dtype]), (F + 1) * D
    tiles = triton.cdiv(N, config["BLOCK_I"]) * triton.cdiv(N, config["BLOCK_J"])
    return (launch_with(config, outer, signature, {"F": F, "D": D}, (M * tiles,)),)


def outer_config(case):
    """The tile of `outer` and its warps: 8192 elements, long in the direction in which y is contiguous."""
    F, D = case.size("F", "D")
    BLOCK_J = min(512, triton.next_power_of_2((F + 1) * D))
    BLOCK_I = min(8192 // BLOCK_J, triton.next_power_of_2((F + 1) * D))
    return {"BLOCK_I": BLOCK_I, "BLOCK_J": BLOCK_J, "num_warps": 4 if BLOCK_I * BLOCK_J >= 2048 else 1}


@triton.jit
def outer(
    dense, sparse, y,
    F: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """A tile of the outer product of one sample. Neighbouring programs write neighbouring memory."""
    N: tl.constexpr = (F + 1) * D
    ACROSS: tl.constexpr = (N + BLOCK_J - 1) // BLOCK_J
    TILES: tl.constexpr = ACROSS * ((N + BLOCK_I - 1) // BLOCK_I)
    sample = (tl.program_id(0) // TILES).to(tl.int64)
    tile = tl.program_id(0) % TILES
    i = tile // ACROSS * BLOCK_I + tl.arange(0, BLOCK_I)
    j = tile % ACROSS * BLOCK_J + tl.arange(0, BLOCK_J)
    dense += sample * D
    sparse += sample * F * D
    product = side_by_side(dense, sparse, i, D, N)[:, None] * side_by_side(dense, sparse, j, D, N)[None, :]
    y_tile = y + sample * N * N + i.to(tl.int64)[:, None] * N + j[None, :]
    tl.store(y_tile, product.to(y.dtype.element_ty), mask=(i < N)[:, None] & (j < N)[None, :], cache_modifier=".cs")
