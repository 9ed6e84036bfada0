"""A multilayer perceptron as one Triton kernel, and the choice of its tiles. `case` is one of fused_mlp, or a part of a model's.

A program takes a tile of rows through all layers, two at a time: a block of columns of the first layer's output, once its
ReLU is done, is at once a block of K for the second, whose sums alone stay in registers. So of every other layer no more
than a block ever exists, and the rest of what is on chip are x's rows, where they fit, and one layer's output.

    layers 1 and 2:   sums2 += relu(x @ W1[:, block] + b1[block]) @ W2[block, :]      for all blocks of N1
    layers 3 and 4:   sums4 += relu(h2 @ W3[:, block] + b3[block]) @ W4[block, :]     with h2 = relu(sums2 + b2)

A last layer without a partner is stored block by block. Columns past a layer's width are set to 0 before they are
multiplied: an inf in x makes them NaN (inf * 0), and NaN * 0 would reach every output of the row.

Widths are compile-time constants: masks fold away where the tiles divide them. M may change without compiling anew.
"""

import functools

import triton
import triton.language as tl

from implementations._shared.gpu import is_ieee, multiprocessors, shared_memory
from implementations._shared.triton.elementwise import activate
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit, most_stages, narrowed_to_fit
from implementations._shared.triton.matmul import multiply, padded

TUNABLES = {  # BLOCK3 is that of three layers and four
    "default": {
        "BLOCK_M": (16, 32, 64, 128), "BLOCK_K": (16, 32, 64, 128, 256, 512), "BLOCK1": (16, 32, 64, 128),
        "BLOCK3": (16, 32, 64), "num_warps": (4, 8, 16), "num_stages": (1, 2, 3, 4),
    },
}  # fmt: skip
WIDEST = 1024  # of layers 2 and 4, whose sums 16 rows still have room for in the registers


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    for layer in (2, 4):
        if case.sizes["LAYERS"] >= layer and case.sizes[f"N{layer}"] > WIDEST:
            return f"layer {layer} is wider than {WIDEST}: the sums of 16 rows do not fit in the registers"
    return None


def launches(case, variant, device, config, pitch=None):
    """The one launch. `pitch` is how many elements a row of x takes, N0 unless told otherwise; those past N0 are 0."""
    M, layers = case.size("M", "LAYERS")
    pointer = TYPES[case.dtype]
    signature = {"x": pointer}
    for i in range(1, layers + 1):
        signature |= {f"W{i}": pointer, f"b{i}": pointer}
    signature |= {"M": "i32", "y": pointer}
    options = {f"N{i}": case.sizes[f"N{i}"] for i in range(layers + 1)}
    options |= {
        "X0": pitch or case.sizes["N0"],
        "NK": case.options["w_layout"] == "nk",
        "LAST": case.options["last"],
        "PRECISION": case.precision,
    }
    options |= {f"PADDED{i}": padded(case.sizes[f"N{i}"]) for i in (2, 4) if i <= layers}
    kernel = (one_layer, two_layers, three_layers, four_layers)[layers - 1]
    return (launch_with(config, kernel, signature, options, (triton.cdiv(M, config["BLOCK_M"]),)),)


def config(case, variant, device, pitch=None):
    """The tunables: as many rows as leave no multiprocessor without a program, since every program reads all weights."""
    M, layers, N0, N1, N3 = case.size("M", "LAYERS", "N0", "N1", "N3")
    P0, (P2, P4) = padded(N0), sums_of(case)
    ieee = is_ieee(case)
    BLOCK_M = 32 if ieee else 128 if case.itemsize == 2 else 64
    if (pitch or N0) * case.itemsize % 16:  # of which `fits` says more
        BLOCK_M, P0 = min(BLOCK_M, 64), max(P0, 32)
    while BLOCK_M > 16 and (
        triton.cdiv(M, BLOCK_M) < 0.9 * multiprocessors(device) or BLOCK_M * max(P2, P4) > 128 * 256
    ):
        BLOCK_M //= 2
    # of 16 rows and 256 sums each an H200 took 23.6 µs with 4 warps in tf32, 28.6 with 8; 12.5 and 13.1 in bfloat16
    sums = BLOCK_M * max(P2, P4)
    num_warps = 8 if BLOCK_M >= 64 or sums > 16 * 256 or (ieee and sums == 16 * 256) else 4
    # x's rows stay on chip where they leave room for the weights that pass by
    whole = 128 << 10 if BLOCK_M == 128 else 16 << 10
    BLOCK_K = P0 if BLOCK_M * P0 * case.itemsize <= whole and not (ieee and P0 > 64) else 128 // case.itemsize
    BLOCK1 = 32 if ieee else 128 // case.itemsize
    if BLOCK_K < P0:  # x passes once for each block
        BLOCK1 *= 2 if BLOCK_M <= 64 else 1
    tile = {"BLOCK_M": BLOCK_M, "BLOCK_K": BLOCK_K, "BLOCK1": BLOCK1}
    while tile["BLOCK1"] > 16 and shared_bytes(case, device, tile, 2) > shared_memory(device):
        tile["BLOCK1"] //= 2
    if layers > 2:
        tile["BLOCK3"] = min(64 if P2 * 64 * case.itemsize <= 32 << 10 else 32 if P2 <= 256 else 16, padded(N3))
    num_stages = most_stages(device, 4, functools.partial(shared_bytes, case, device, tile))
    tile["BLOCK1"] = min(tile["BLOCK1"], padded(N1))
    own = tile | {"num_warps": num_warps, "num_stages": num_stages}
    sides = [name for name in ("BLOCK3", "BLOCK1", "BLOCK_M", "BLOCK_K") if name in tile]
    return narrowed_to_fit(own, sides, functools.partial(fits, case, variant, device, pitch=pitch))


def sums_of(case):
    """The tiles' columns of layers 2 and 4, whose sums a program holds; 16 for a layer that is not there."""
    return [padded(case.sizes[f"N{i}"]) if i <= case.sizes["LAYERS"] else 16 for i in (2, 4)]


def fits(case, variant, device, config, pitch=None):
    """Why a config cannot run, or None."""
    BLOCK_M, BLOCK_K, num_warps, N0 = config["BLOCK_M"], config["BLOCK_K"], config["num_warps"], case.sizes["N0"]
    # Triton 3.6 on Hopper computes wrongly where rows of x that start anywhere meet warpgroups of 64 rows each: two must share
    # 64 rows (seen on an H200: errors as large as the outputs with 128 rows of 8 warps, and with 64 of 4)
    anywhere = device.capability[0] == 9 and (pitch or N0) * case.itemsize % 16 and not is_ieee(case)
    if anywhere and (BLOCK_K < 32 or (BLOCK_M >= 64 and num_warps * 16 <= BLOCK_M)):
        return f"rows of x that start anywhere need BLOCK_K=32 at least and num_warps={max(8, BLOCK_M // 8)}, or BLOCK_M=32 at most"
    blocks = [config["BLOCK1"], *([config["BLOCK3"]] if "BLOCK3" in config else [])]
    values = BLOCK_M * max(max(sums_of(case)) + max(blocks), BLOCK_K * case.itemsize // 4)
    shared = shared_bytes(case, device, config, config["num_stages"])
    return misfit(device, config, [name for name in config if name.startswith("BLOCK")], values, shared)


def shared_bytes(case, device, tile, num_stages):
    """Shared memory: x's rows, if they stay, what passes between layers where wgmma does not take it from registers, and the
    weights of layers 1 and 2 a stage; or those of layers 3 and 4. In one stage nothing waits: layer 1 makes room for layer 2."""
    layers, N0 = case.size("LAYERS", "N0")
    BLOCK_M, BLOCK_K, BLOCK1, (P2, P4) = tile["BLOCK_M"], tile["BLOCK_K"], tile["BLOCK1"], sums_of(case)
    before_hopper = device.capability < (9, 0)
    held = BLOCK_M * BLOCK_K if N0 <= BLOCK_K else 0
    if num_stages == 1:
        passing = (BLOCK_M if before_hopper else 0) * BLOCK1 + max(BLOCK_K, P2) * BLOCK1
    else:
        passing = (BLOCK_M if before_hopper else 0) * max(BLOCK1, P2 if layers > 2 else 0)
        passing += num_stages * (BLOCK_K + P2) * BLOCK1
    if N0 > BLOCK_K:
        passing = max(passing, num_stages * (BLOCK_M + BLOCK1) * BLOCK_K + P2 * BLOCK1)
    later = max(1, num_stages - before_hopper) * (P2 + P4) * tile.get("BLOCK3", 0)
    return max(held + passing, later) * case.itemsize + (3 << 10)


@triton.jit
def weights(
    W, k0, n0, K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr
):
    """The tile of W from (k0, n0), (BLOCK_K, BLOCK_N), 0 outside of W."""
    k, n = k0 + tl.arange(0, BLOCK_K), n0 + tl.arange(0, BLOCK_N)
    # each is a constant where the tile divides the size, and the mask folds away
    inside = ((k < K) | (K % BLOCK_K == 0))[:, None] & ((n < N) | (N % BLOCK_N == 0))[None, :]
    if NK:
        place = n.to(tl.int64)[None, :] * K + k[:, None]
    else:
        place = k.to(tl.int64)[:, None] * N + n[None, :]
    return tl.load(W + place, mask=inside, other=0.0)


@triton.jit
def hidden(z, b, n0, N: tl.constexpr, BLOCK_N: tl.constexpr, dtype: tl.constexpr):
    """relu(z + b) as the next layer multiplies it: of the storage dtype, and 0 past the layer's width."""
    n = n0 + tl.arange(0, BLOCK_N)
    inside = (n < N) | (N % BLOCK_N == 0)
    z += tl.load(b + n, mask=inside, other=0.0).to(tl.float32)[None, :]
    return tl.where(inside[None, :], activate(z, "relu"), 0.0).to(dtype)


@triton.jit
def store(y, z, b, rows, n0, M, N: tl.constexpr, BLOCK_N: tl.constexpr, LAST: tl.constexpr):
    """The last layer's output, columns n0 … n0 + BLOCK_N - 1."""
    n = n0 + tl.arange(0, BLOCK_N)
    inside = (n < N) | (N % BLOCK_N == 0)
    z = activate(z + tl.load(b + n, mask=inside, other=0.0).to(tl.float32)[None, :], LAST)
    tl.store(y + rows[:, None] * N + n[None, :], z.to(y.dtype.element_ty), mask=(rows < M)[:, None] & inside[None, :])


@triton.jit
def x_rows(x, rows, k0, M, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """The tile of x, whose rows have K elements, from column k0. Rows past M are the last row again, and are not stored."""
    k = k0 + tl.arange(0, BLOCK_K)
    return tl.load(
        x + tl.minimum(rows, M - 1)[:, None] * K + k[None, :], mask=((k < K) | (K % BLOCK_K == 0))[None, :], other=0.0
    )


@triton.jit
def first_layer(
    x, x_tile, W1, rows, n0, M, X0: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK1: tl.constexpr,
):  # fmt: skip
    """x @ W1 of BLOCK1 columns; x_tile are the rows of x as far as BLOCK_K goes."""
    z = tl.zeros([BLOCK_M, BLOCK1], tl.float32)
    if N0 <= BLOCK_K:
        z = multiply(x_tile, weights(W1, 0, n0, N0, N1, NK, BLOCK_K, BLOCK1), z, PRECISION)
    else:
        for k0 in range(0, N0, BLOCK_K):
            tile = x_rows(x, rows, k0, M, X0, BLOCK_K)
            z = multiply(tile, weights(W1, k0, n0, N0, N1, NK, BLOCK_K, BLOCK1), z, PRECISION)
    return z


@triton.jit
def two_sums(
    x, W1, b1, W2, rows, M, X0: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, NK: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK1: tl.constexpr, PADDED2: tl.constexpr,
):  # fmt: skip
    """relu(x @ W1 + b1) @ W2, (BLOCK_M, PADDED2)."""
    x_tile = x_rows(x, rows, 0, M, X0, BLOCK_K)
    acc = tl.zeros([BLOCK_M, PADDED2], tl.float32)
    for n0 in range(0, N1, BLOCK1):
        z = first_layer(x, x_tile, W1, rows, n0, M, X0, N0, N1, NK, PRECISION, BLOCK_M, BLOCK_K, BLOCK1)
        h = hidden(z, b1, n0, N1, BLOCK1, x.dtype.element_ty)
        acc = multiply(h, weights(W2, n0, 0, N1, N2, NK, BLOCK1, PADDED2), acc, PRECISION)
    return acc


@triton.jit
def rows_of_program(BLOCK_M: tl.constexpr):
    return (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)


@triton.jit(do_not_specialize=["M"])
def one_layer(
    x, W1, b1, M, y,
    X0: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, NK: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK1: tl.constexpr,
):  # fmt: skip
    rows = rows_of_program(BLOCK_M)
    x_tile = x_rows(x, rows, 0, M, X0, BLOCK_K)
    for n0 in range(0, N1, BLOCK1):
        z = first_layer(x, x_tile, W1, rows, n0, M, X0, N0, N1, NK, PRECISION, BLOCK_M, BLOCK_K, BLOCK1)
        store(y, z, b1, rows, n0, M, N1, BLOCK1, LAST)


@triton.jit(do_not_specialize=["M"])
def two_layers(
    x, W1, b1, W2, b2, M, y,
    X0: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr,
    NK: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK1: tl.constexpr, PADDED2: tl.constexpr,
):  # fmt: skip
    rows = rows_of_program(BLOCK_M)
    z = two_sums(x, W1, b1, W2, rows, M, X0, N0, N1, N2, NK, PRECISION, BLOCK_M, BLOCK_K, BLOCK1, PADDED2)
    store(y, z, b2, rows, 0, M, N2, PADDED2, LAST)


@triton.jit(do_not_specialize=["M"])
def three_layers(
    x, W1, b1, W2, b2, W3, b3, M, y,
    X0: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, N3: tl.constexpr,
    NK: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK1: tl.constexpr, PADDED2: tl.constexpr, BLOCK3: tl.constexpr,
):  # fmt: skip
    rows = rows_of_program(BLOCK_M)
    sums2 = two_sums(x, W1, b1, W2, rows, M, X0, N0, N1, N2, NK, PRECISION, BLOCK_M, BLOCK_K, BLOCK1, PADDED2)
    h2 = hidden(sums2, b2, 0, N2, PADDED2, x.dtype.element_ty)
    for n0 in range(0, N3, BLOCK3):
        z = tl.zeros([BLOCK_M, BLOCK3], tl.float32)
        z = multiply(h2, weights(W3, 0, n0, N2, N3, NK, PADDED2, BLOCK3), z, PRECISION)
        store(y, z, b3, rows, n0, M, N3, BLOCK3, LAST)


@triton.jit(do_not_specialize=["M"])
def four_layers(
    x, W1, b1, W2, b2, W3, b3, W4, b4, M, y,
    X0: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, N3: tl.constexpr, N4: tl.constexpr,
    NK: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK1: tl.constexpr, PADDED2: tl.constexpr, BLOCK3: tl.constexpr,
    PADDED4: tl.constexpr,
):  # fmt: skip
    rows = rows_of_program(BLOCK_M)
    sums2 = two_sums(x, W1, b1, W2, rows, M, X0, N0, N1, N2, NK, PRECISION, BLOCK_M, BLOCK_K, BLOCK1, PADDED2)
    h2 = hidden(sums2, b2, 0, N2, PADDED2, x.dtype.element_ty)
    sums4 = tl.zeros([BLOCK_M, PADDED4], tl.float32)
    for n0 in range(0, N3, BLOCK3):
        z = tl.zeros([BLOCK_M, BLOCK3], tl.float32)
        z = multiply(h2, weights(W3, 0, n0, N2, N3, NK, PADDED2, BLOCK3), z, PRECISION)
        h3 = hidden(z, b3, n0, N3, BLOCK3, x.dtype.element_ty)
        sums4 = multiply(h3, weights(W4, n0, 0, N3, N4, NK, BLOCK3, PADDED4), sums4, PRECISION)
    store(y, sums4, b4, rows, 0, M, N4, PADDED4, LAST)
