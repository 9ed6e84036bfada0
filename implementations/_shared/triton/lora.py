"""Linear layers with low-rank adapters in Triton, act(x @ W + b + scale * (x @ A) @ B): kernels that lora_linear and lora_mlp launch,
and the choice of their tiles. `case` has the sizes M, K, N and R and the options `activation` and `w_layout` of one layer.

    fused    a program has a tile of rows and of columns. In one pass over K it feeds the tensor cores x @ W and, beside it,
             x @ A, which has few columns. At the end x @ A, scaled, is multiplied by its columns of B onto the same sums.
    down     x @ A alone, a tile of rows a program: the first launch of `two_launches`.
    up       the second one: x @ W, and at the end the tile's rows of x @ A by its columns of B.

K, N and R are those of the layer and compile-time constants: masks fold away where the tiles divide them. M may change from
call to call without compiling anew, and scale is read by every program.
"""

import functools

import triton
import triton.language as tl

from implementations._shared.gpu import is_ieee, rows_are_aligned
from implementations._shared.triton.elementwise import activate
from implementations._shared.triton.launch import TYPES, by_launch, launch_with, prefixed
from implementations._shared.triton.limits import first_reason, misfit, most_stages, narrowed_to_fit
from implementations._shared.triton.matmul import grouped, multiply, narrowed, padded

LARGEST_RANK = 256


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    if case.sizes["R"] > LARGEST_RANK:
        return f"a program holds its rows of x @ A: at most {LARGEST_RANK} columns, not R = {case.sizes['R']}"
    return None


def config(case, variant, device):
    """The tunables of a variant: the tile, warps and stages of `fused`, or those of `down` and of `up`."""
    product = product_config(case, device, variant == "fused")
    return product if variant == "fused" else prefixed({"down": down_config(case, device), "up": product})


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    if variant == "fused":
        return product_misfit(case, device, True, config)
    configs = by_launch(config)
    up_reason = product_misfit(case, device, False, configs["up"])
    return first_reason({"down": down_misfit(case, device, configs["down"]), "up": up_reason})


def launches(case, variant, device, config):
    """One launch (`fused`), or `down` and `up`. The inputs of `up` begin with what `down` made."""
    M, K, N, R = case.size("M", "K", "N", "R")
    pointer = TYPES[case.dtype]
    product = config if variant == "fused" else by_launch(config)["up"]
    options = {"K": K, "N": N, "R": R, "BLOCK_R": padded(R), "PRECISION": case.precision}
    layer = {"NK": case.options["w_layout"] == "nk", "ACTIVATION": case.options["activation"]}
    grid = (triton.cdiv(M, product["BLOCK_M"]) * triton.cdiv(N, product["BLOCK_N"]),)
    names = ("x", "scale", "W", "b", "A", "B") if variant == "fused" else ("xa", "x", "scale", "W", "b", "B")
    signature = dict.fromkeys(names, pointer) | {"M": "i32", "y": pointer}
    main = launch_with(product, fused if variant == "fused" else up, signature, options | layer, grid)
    if variant == "fused":
        return (main,)
    tile = by_launch(config)["down"]
    signature = {"x": pointer, "A": pointer, "M": "i32", "xa": pointer}
    options = {name: options[name] for name in ("K", "R", "BLOCK_R", "PRECISION")}
    return launch_with(tile, down, signature, options, (triton.cdiv(M, tile["BLOCK_M"]),)), main


def kept_launches(case, device):
    """`down`, and `up` or, before an activation, `up_and_z`: what a backward pass follows."""
    own = prefixed({"down": down_config(case, device), "up": product_config(case, device, False)})
    first, second = launches(case, "two_launches", device, own)
    if case.options["activation"] == "none":
        return first, second
    pointer = TYPES[case.dtype]
    names = {name: kind for name, kind in second.signature.items() if name != "y"}
    return first, second._replace(kernel=up_and_z, signature=names | {"z": pointer, "y": pointer})


def product_config(case, device, fused):
    """The tunables of `fused` and `up`: the widest tile that leaves no multiprocessor without a program."""
    M, K, N, R = case.size("M", "K", "N", "R")
    ieee = is_ieee(case)
    BLOCK_M = max(16, min(128, triton.next_power_of_2(M)))  # a dot has 16 rows at least
    # 256 columns load the fewest bytes per FLOP, and sum x @ A the fewest times; wide ranks leave no registers for them
    BLOCK_N = 256 if case.itemsize == 2 and (R <= 16 or not fused) and device.capability < (10, 0) else 128
    # 128 bytes of one swizzle; ieee multiplies from registers
    BLOCK_K = 64 if case.itemsize == 2 else 16 if ieee else 32
    if ieee and R > 16:
        BLOCK_N = (
            64  # a thread loads all R of its rows and columns at once for the last product, where it may spill some
        )
    if not rows_are_aligned(case, K, N):
        BLOCK_N, BLOCK_K = 64, min(BLOCK_K, 32)  # room for a pointer to each element
    if fused and is_one_pass(case, BLOCK_M, BLOCK_K):
        BLOCK_K = 32
    BLOCK_N = narrowed(BLOCK_N, 32, M, BLOCK_M, N, device)
    num_warps = 4 if BLOCK_M < 128 else 8
    tile = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K, "GROUP": 8}
    num_stages = most_stages(device, 4, functools.partial(product_bytes, case, fused, tile))
    own = tile | {"num_warps": num_warps, "num_stages": num_stages}
    return narrowed_to_fit(own, ("BLOCK_M", "BLOCK_N"), functools.partial(product_misfit, case, device, fused))


def is_one_pass(case, BLOCK_M, BLOCK_K):
    """Whether `fused` would pass over K once with warpgroups and 16 bits, in 64 of K or more. One pass is no loop, and A's slab takes the
    place of W's in shared memory. There ptxas 12.8, which Triton 3.6 and 3.7 have, forgets to write a register that says where A begins:
    `fusebench inspect` counts it as unset_registers. On an H200 the errors were as large as the outputs wherever that count was 1 (64 or
    128 rows, K = 64, R = 8 or 13, any warps and stages), and none where it was 0 (32 rows; BLOCK_K=32; K = 13)."""
    return case.itemsize == 2 and BLOCK_M >= 64 and BLOCK_K >= 64 and case.sizes["K"] <= BLOCK_K


def product_misfit(case, device, fused, config):
    """Why `fused` or `up` cannot have this config, or None."""
    if fused and device.capability[0] == 9 and is_one_pass(case, config["BLOCK_M"], config["BLOCK_K"]):
        return f"BLOCK_K={config['BLOCK_K']} takes K = {case.sizes['K']} in one pass, which ptxas 12.8 compiles wrongly; 32 is right"
    values = config["BLOCK_M"] * (config["BLOCK_N"] + padded(case.sizes["R"]))
    shared = product_bytes(case, fused, config, config["num_stages"])
    return misfit(device, config, ("BLOCK_M", "BLOCK_N", "BLOCK_K"), values, shared)


def product_bytes(case, fused, tile, num_stages):
    """Shared memory: a slab of x and one of W a stage, with `fused` one of A, and beside them the last product and some. In one
    stage nothing waits: the slabs make room for the last product."""
    rows, BLOCK_R = tile["BLOCK_M"] + tile["BLOCK_N"], padded(case.sizes["R"])
    stage, last = (rows + (BLOCK_R if fused else 0)) * tile["BLOCK_K"], rows * BLOCK_R
    elements = max(stage, last) if num_stages == 1 else num_stages * stage + last
    return elements * case.itemsize + (8 << 10)


def down_config(case, device):
    """The tunables of `down`, which reads x once and is over when x has passed: many programs of few rows."""
    tile = {"BLOCK_M": 16, "BLOCK_K": 256 // case.itemsize if case.sizes["R"] <= 64 else 32}
    num_stages = most_stages(device, 4, functools.partial(down_bytes, case, tile))
    return tile | {"num_warps": 4, "num_stages": num_stages}


def down_bytes(case, tile, num_stages):
    """Shared memory of `down`: a slab of x and one of A a stage."""
    return num_stages * (tile["BLOCK_M"] + padded(case.sizes["R"])) * tile["BLOCK_K"] * case.itemsize


def down_misfit(case, device, config):
    """Why `down` cannot have this config, or None."""
    BLOCK_M, BLOCK_R = config["BLOCK_M"], padded(case.sizes["R"])
    shared = down_bytes(case, config, config["num_stages"])
    return misfit(device, config, ("BLOCK_M", "BLOCK_K"), BLOCK_M * BLOCK_R, shared)


@triton.jit
def tile_of_y(
    xa, x, scale, W, b, A, B, M, kept, y,
    K: tl.constexpr, N: tl.constexpr, R: tl.constexpr, NK: tl.constexpr, ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """The body of `fused` (xa is None) and of `up` (A is None); `kept` gets z, unless it is None."""
    row_block, column_block = grouped(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    rows = (row_block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = tl.minimum(rows, M - 1)  # rows past M are the last row again, and are not stored: their loads need no mask
    columns = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    n_inside = (columns < N) | (N % BLOCK_N == 0)  # a constant where the tile divides N, and the mask folds away
    k, r = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_R)
    r_inside = (r < R) | (R == BLOCK_R)
    x_tile = x + inside[:, None] * K + k[None, :]
    if NK:
        W_tile = W + columns.to(tl.int64)[None, :] * K + k[:, None]
    else:
        W_tile = W + k.to(tl.int64)[:, None] * N + columns[None, :]
    if xa is None:
        A_tile = A + k[:, None] * R + r[None, :]

    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    low = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    for start in range(0, K, BLOCK_K):
        k_inside = (start + k < K) | (K % BLOCK_K == 0)
        xs = tl.load(x_tile, mask=k_inside[None, :], other=0.0)
        w = tl.load(W_tile, mask=k_inside[:, None] & n_inside[None, :], other=0.0)
        acc = multiply(xs, w, acc, PRECISION)
        if xa is None:
            a = tl.load(A_tile, mask=k_inside[:, None] & r_inside[None, :], other=0.0)
            low = multiply(xs, a, low, PRECISION)
            A_tile += BLOCK_K * R
        x_tile += BLOCK_K
        W_tile += BLOCK_K if NK else BLOCK_K * N

    if xa is not None:
        low = tl.load(xa + inside[:, None] * R + r[None, :], mask=r_inside[None, :], other=0.0).to(tl.float32)
    # Columns past R are inf * 0 where x has an inf: they must not meet B.
    low = tl.where(r_inside[None, :], low * tl.load(scale).to(tl.float32), 0.0)
    up_tile = B + r.to(tl.int64)[:, None] * N + columns[None, :]
    up_tile = tl.load(up_tile, mask=r_inside[:, None] & n_inside[None, :], other=0.0)
    acc = multiply(low.to(x.dtype.element_ty), up_tile, acc, PRECISION)
    bias = tl.load(b + columns, mask=n_inside, other=0.0).to(tl.float32)
    z = acc + bias[None, :]
    place, mask = rows[:, None] * N + columns[None, :], (rows < M)[:, None] & n_inside[None, :]
    if kept is not None:
        stored = z.to(kept.dtype.element_ty)
        tl.store(kept + place, stored, mask=mask)
        z = stored.to(tl.float32)
    tl.store(y + place, activate(z, ACTIVATION).to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["M"])
def fused(
    x, scale, W, b, A, B, M, y,
    K: tl.constexpr, N: tl.constexpr, R: tl.constexpr, NK: tl.constexpr, ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """A tile of y in one pass over x, W and A."""
    tile_of_y(
        None, x, scale, W, b, A, B, M, None, y,
        K, N, R, NK, ACTIVATION, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K, BLOCK_R, GROUP,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def up(
    xa, x, scale, W, b, B, M, y,
    K: tl.constexpr, N: tl.constexpr, R: tl.constexpr, NK: tl.constexpr, ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """A tile of y in one pass over x and W, given x @ A (M, R)."""
    tile_of_y(
        xa, x, scale, W, b, None, B, M, None, y,
        K, N, R, NK, ACTIVATION, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K, BLOCK_R, GROUP,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def up_and_z(
    xa, x, scale, W, b, B, M, z, y,
    K: tl.constexpr, N: tl.constexpr, R: tl.constexpr, NK: tl.constexpr, ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """`up`, and z, of which y is the activation as it is stored."""
    tile_of_y(
        xa, x, scale, W, b, None, B, M, z, y,
        K, N, R, NK, ACTIVATION, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K, BLOCK_R, GROUP,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def down(
    x, A, M, xa,
    K: tl.constexpr, R: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of x @ A."""
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    k, r = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_R)
    r_inside = (r < R) | (R == BLOCK_R)
    x_tile = x + tl.minimum(rows, M - 1)[:, None] * K + k[None, :]
    A_tile = A + k[:, None] * R + r[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    for start in range(0, K, BLOCK_K):
        k_inside = (start + k < K) | (K % BLOCK_K == 0)
        xs = tl.load(x_tile, mask=k_inside[None, :], other=0.0)
        a = tl.load(A_tile, mask=k_inside[:, None] & r_inside[None, :], other=0.0)
        acc = multiply(xs, a, acc, PRECISION)
        x_tile += BLOCK_K
        A_tile += BLOCK_K * R
    tl.store(
        xa + rows[:, None] * R + r[None, :], acc.to(xa.dtype.element_ty), mask=(rows < M)[:, None] & r_inside[None, :]
    )
