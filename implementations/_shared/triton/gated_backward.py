"""The backward modes of kernels with a gate in Triton, geglu and splacc: Z = x @ W (+ b), y = f(left half, right half).

Forward, one launch: a tile of both halves of Z (M, 2N), which it leaves behind, and of y. Backward two: a block of dZ, then dx, dW and db
(linear_gradients.py). `recompute` leaves no Z behind: forward is the launch of mode=forward, and backward makes Z first. GATE names the kernel, because Triton takes no functions as values.
"""

import triton
import triton.language as tl

from implementations._shared.triton import gated_matmul, linear_gradients
from implementations._shared.triton.elementwise import activate, tanh
from implementations._shared.triton.gated_matmul import place, products, store_tile
from implementations._shared.triton.launch import TYPES, by_launch, launch_with, prefixed
from implementations._shared.triton.limits import first_reason, misfit
from implementations._shared.triton.slopes import slope

TUNABLES = {
    ("two_accumulators", "interleaved"): {
        "BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64, 128), "BLOCK_K": (16, 32, 64, 128), "GROUP": (4, 8, 16),
        "num_warps": (4, 8), "num_stages": (2, 3, 4),
    },
    ("two_accumulators", "recompute"): {  # those of the launches of mode=backward
        "dz_BLOCK": (256, 512, 1024, 2048), "dz_num_warps": (1, 2, 4, 8),
        "products_DX_M": (32, 64, 128), "products_DX_N": (32, 64, 128, 256), "products_DX_K": (16, 32, 64),
        "products_DW_M": (32, 64, 128), "products_DW_N": (32, 64, 128, 256), "products_DW_K": (16, 32, 64),
        "products_num_warps": (4, 8), "products_num_stages": (2, 3, 4),
    },
}  # fmt: skip


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    if variant == "recompute" and case.mode == "forward":
        return "recompute is for backward modes: two_accumulators is its forward pass"
    return None


def launches(case, variant, device, config, gate, alone):
    """Those of the backward modes; `alone(case, device)` is the launch of mode=forward."""
    behind, first = backward_launches(case, config, gate), forward_launch(case, device, gate)
    if variant == "recompute":
        behind, first = (first, *behind), alone(case, device)
    return behind if case.mode == "backward" else (first, *behind)


def config(case, variant, device):
    """The tunables of a variant, in the backward modes those of the two launches of backward."""
    if case.mode == "forward":
        return gated_matmul.config(case, variant, device)
    block = min(1024, max(64, triton.next_power_of_2(case.sizes["N"])))
    own = {"dz": {"BLOCK": block, "num_warps": max(1, block // 256)}}
    return prefixed(own | {"products": linear_gradients.config(case, device, case.sizes["K"], 2 * case.sizes["N"])})


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    if case.mode == "forward":
        return gated_matmul.fits(case, variant, device, config)
    own = by_launch(config)
    first = misfit(device, own["dz"], values=5 * own["dz"]["BLOCK"])
    second = linear_gradients.fits(case, device, own["products"], case.sizes["K"], 2 * case.sizes["N"])
    return first_reason({"dz": first, "products": second})


def forward_launch(case, device, gate):
    """The launch that leaves Z behind; its tile is the one of mode=forward."""
    M, K, N = case.size("M", "K", "N")
    chosen, pointer = gated_matmul.config(case, "two_accumulators", device), TYPES[case.dtype]
    signature = {"x": pointer, "W": pointer, "b": pointer, "M": "i32", "Z": pointer, "y": pointer}
    options = {"K": K, "N": N, "NK": case.options["w_layout"] == "nk", "PRECISION": case.precision} | _gate(case, gate)
    grid = (triton.cdiv(M, chosen["BLOCK_M"]) * triton.cdiv(N, chosen["BLOCK_N"]),)
    return launch_with(chosen, gated_tile, signature, options, grid)


def backward_launches(case, config, gate):
    """`gate_block`, and the gradients of x and of W, for geglu of b as well."""
    M, K, N = case.size("M", "K", "N")
    own, pointer = by_launch(config), TYPES[case.dtype]
    signature = {"Z": pointer, "dy": pointer, "dZ": pointer}
    grid = (M, triton.cdiv(N, own["dz"]["BLOCK"]))
    first = launch_with(own["dz"], gate_block, signature, {"N": N} | _gate(case, gate), grid)
    return first, linear_gradients.launch(case, own["products"], K, 2 * N, bias=gate == "geglu")


def _gate(case, gate):
    return {"GATE": gate, "ACTIVATION": case.options.get("activation", "none")}


@triton.jit(do_not_specialize=["M"])
def gated_tile(
    x, W, b, M, Z, y,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr, GATE: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A tile of y and the two of Z that it is made of, as they are stored. splacc has no b, and reads none."""
    rows, first, columns, inside = place(M, N, BLOCK_M, BLOCK_N, GROUP)
    left, right = products(x, W, M, rows, first, K, N, NK, False, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K)
    if GATE == "geglu":
        left += tl.load(b + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
        right += tl.load(b + N + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    left, right = left.to(Z.dtype.element_ty), right.to(Z.dtype.element_ty)
    store_tile(Z, left, M, rows, columns, inside, 2 * N)
    store_tile(Z + N, right, M, rows, columns, inside, 2 * N)
    left, right = left.to(tl.float32), right.to(tl.float32)
    if GATE == "geglu":
        gated = left * activate(right, ACTIVATION)
    else:
        gated = tl.sigmoid(left) * tanh(right)
    store_tile(y, gated, M, rows, columns, inside, N)


@triton.jit
def gate_block(Z, dy, dZ, N: tl.constexpr, GATE: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK columns of both halves of a row of dZ."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, at = columns < N, 2 * row * N + columns
    left = tl.load(Z + at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(Z + N + at, mask=inside, other=0.0).to(tl.float32)
    behind = tl.load(dy + row * N + columns, mask=inside, other=0.0).to(tl.float32)
    if GATE == "geglu":
        by_left, by_right = behind * activate(right, ACTIVATION), behind * left * slope(right, ACTIVATION)
    else:
        s, t = tl.sigmoid(left), tanh(right)
        by_left, by_right = behind * t * s * (1 - s), behind * s * (1 - t * t)
    tl.store(dZ + at, by_left.to(dZ.dtype.element_ty), mask=inside)
    tl.store(dZ + N + at, by_right.to(dZ.dtype.element_ty), mask=inside)
