"""Products with two matrices at once, for gates: x (M, K) times left and right (K, N), which lie side by side in W.

    two_accumulators   a program multiplies a tile of x with the same columns of both halves: two dots a step of K.
    interleaved        the columns of the halves alternate (`interleave` prepares W so): one dot, as wide as both, whose
                       sums are split in pairs at the end. A thread has both of a pair, so the split moves nothing.

K and N are those of the layer and compile-time constants: masks and strides fold away where the tiles divide them. M may
change from call to call without compiling anew.
"""

import functools

import triton
import triton.language as tl

from implementations._shared.gpu import rows_are_aligned
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit, most_stages
from implementations._shared.triton.matmul import grouped, narrowed

TUNABLES = {
    ("two_accumulators", "interleaved"): {
        "BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64, 128), "BLOCK_K": (16, 32, 64, 128), "GROUP": (4, 8, 16),
        "num_warps": (4, 8), "num_stages": (2, 3, 4),
    },
}  # fmt: skip


def interleave(W, case):
    """W with the columns of its halves alternating, for Torch and JAX; Torch's need not be contiguous."""
    K, N = case.size("K", "N")
    if prepared_as(case) == "kn":
        return W.reshape(K, 2, N).swapaxes(1, 2).reshape(K, 2 * N)
    W = W if case.options["w_layout"] == "nk" else W.T
    return W.reshape(2, N, K).swapaxes(0, 1).reshape(2 * N, K)


def prepared_as(case):
    """The layout of interleaved weights: as they are stored, but with K contiguous for TF32, whose elements tensor cores read
    in no other way. Triton would transpose each tile, four bytes at a time."""
    return "nk" if case.dtype == "float32" and case.precision == "tf32" else case.options["w_layout"]


def launch(kernel, inputs, constexprs, case, variant, config):
    """The one launch of `kernel`, whose arguments are `inputs`, M, y, the layer's constants, `constexprs` and the tile."""
    M, K, N = case.size("M", "K", "N")
    pointer = TYPES[case.dtype]
    signature = dict.fromkeys(inputs, pointer) | {"M": "i32", "y": pointer}
    interleaved = variant == "interleaved"
    layout = prepared_as(case) if interleaved else case.options["w_layout"]
    options = {"K": K, "N": N, "NK": layout == "nk", "INTERLEAVED": interleaved}
    options |= {"PRECISION": case.precision} | constexprs
    grid = (triton.cdiv(M, config["BLOCK_M"]) * triton.cdiv(N, config["BLOCK_N"]),)
    return launch_with(config, kernel, signature, options, grid)


def config(case, variant, device):
    """The tunables: rows, columns of y (W's tile has twice as many) and K of a tile, its warps and its stages: the widest tile
    that leaves no multiprocessor without a program."""
    M, K, N = case.size("M", "K", "N")
    BLOCK_M = max(16, min(128, triton.next_power_of_2(M)))  # a dot has 16 rows at least
    # 128 rows × (128 + 128) columns load the fewest bytes per FLOP; their sums are half of the registers of 8 warps
    if case.dtype != "float32":
        BLOCK_N, BLOCK_K = 128, 64  # 64 elements are the 128 bytes of one swizzle
    elif case.precision == "tf32":
        BLOCK_N, BLOCK_K = 128, 32  # again 128 bytes
    else:
        BLOCK_N, BLOCK_K = 64, 16  # without tensor cores a thread multiplies 8 × 8 from registers: twice as many spill
    if device.capability[0] != 9:
        BLOCK_N = 64  # what else is in registers there, operands or, at the end, copies of the sums, would spill
    if not rows_are_aligned(case, K, N):
        BLOCK_N, BLOCK_K = 32, min(BLOCK_K, 32)  # rows do not start on 16 bytes: room for a pointer to each element
    BLOCK_N = narrowed(BLOCK_N, 16, M, BLOCK_M, N, device)
    num_warps, most = 4 if BLOCK_M < 128 else 8, 4  # one warpgroup for every 64 rows
    if (
        BLOCK_M <= 32 and BLOCK_N == 64
    ):  # a stream over W: geglu 1×4096→11008 in bfloat16 took 72.4 µs on an H100, with 4 warps and 4 stages 75
        num_warps, most = 8 if BLOCK_M == 16 else 4, 3
    # 8 row blocks together keep their x and the W that passes by in L2
    tile = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K, "GROUP": 8}
    num_stages = most_stages(device, most, functools.partial(shared_bytes, case, tile))
    return tile | {"num_warps": num_warps, "num_stages": num_stages}


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    shared = shared_bytes(case, config, config["num_stages"])
    sums = 2 * config["BLOCK_M"] * config["BLOCK_N"]
    return misfit(device, config, ("BLOCK_M", "BLOCK_N", "BLOCK_K"), sums, shared)


def shared_bytes(case, tile, num_stages):
    """Shared memory: a slab of x and one of each half of W a stage, and some to rearrange."""
    return num_stages * (tile["BLOCK_M"] + 2 * tile["BLOCK_N"]) * tile["BLOCK_K"] * case.itemsize + (4 << 10)


@triton.jit
def place(M, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """The rows (int64) of y that are this program's, the first of its columns, all of them, and which are inside."""
    row_block, column_block = grouped(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    rows = (row_block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    first = column_block * BLOCK_N
    columns = first + tl.arange(0, BLOCK_N)
    return (
        rows,
        first,
        columns,
        (columns < N) | (N % BLOCK_N == 0),
    )  # a constant where the tile divides N: no mask is left


@triton.jit
def columns_of(W, n, k, WIDTH: tl.constexpr, K: tl.constexpr, NK: tl.constexpr):
    """Pointers to the elements k (BLOCK_K,) of columns n of W, which has WIDTH columns: (BLOCK_K, columns)."""
    if NK:
        return W + n.to(tl.int64)[None, :] * K + k[:, None]
    else:
        return W + k.to(tl.int64)[:, None] * WIDTH + n[None, :]


@triton.jit
def products(
    x, W, M, rows, first,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, INTERLEAVED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """(x @ left, x @ right) of these rows and the columns from `first`, (BLOCK_M, BLOCK_N) float32 each. W is interleaved, or is not."""
    k = tl.arange(0, BLOCK_K)
    # rows past M read the last row again, and are not stored: their loads need no mask
    x_tile = x + tl.minimum(rows, M - 1)[:, None] * K + k[None, :]
    step: tl.constexpr = BLOCK_K if NK else BLOCK_K * 2 * N
    if INTERLEAVED:
        both = 2 * first + tl.arange(0, 2 * BLOCK_N)
        both_inside = (both < 2 * N) | (N % BLOCK_N == 0)
        both_tile = columns_of(W, both, k, 2 * N, K, NK)
        acc = tl.zeros([BLOCK_M, 2 * BLOCK_N], tl.float32)
        for start in range(0, K, BLOCK_K):
            k_inside = (start + k < K) | (K % BLOCK_K == 0)
            xs = tl.load(x_tile, mask=k_inside[None, :], other=0.0)
            w = tl.load(both_tile, mask=k_inside[:, None] & both_inside[None, :], other=0.0)
            acc = tl.dot(xs, w, acc, input_precision=PRECISION)
            x_tile += BLOCK_K
            both_tile += step
        left, right = split_pairs(acc)
    else:
        columns = first + tl.arange(0, BLOCK_N)
        inside = (columns < N) | (N % BLOCK_N == 0)
        left_tile = columns_of(W, columns, k, 2 * N, K, NK)
        right_tile = columns_of(W, columns + N, k, 2 * N, K, NK)
        left = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        right = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, K, BLOCK_K):
            k_inside = (start + k < K) | (K % BLOCK_K == 0)
            xs = tl.load(x_tile, mask=k_inside[None, :], other=0.0)
            w_inside = k_inside[:, None] & inside[None, :]
            w_left = tl.load(left_tile, mask=w_inside, other=0.0)
            w_right = tl.load(right_tile, mask=w_inside, other=0.0)
            left = tl.dot(xs, w_left, left, input_precision=PRECISION)
            right = tl.dot(xs, w_right, right, input_precision=PRECISION)
            x_tile += BLOCK_K
            left_tile += step
            right_tile += step
    return left, right


@triton.jit
def split_pairs(acc):
    """Columns 0, 2, 4, … and columns 1, 3, 5, … of acc (rows, columns)."""
    return tl.split(tl.reshape(acc, [acc.shape[0], acc.shape[1] // 2, 2]))


@triton.jit
def store_tile(y, tile, M, rows, columns, inside, N: tl.constexpr):
    """Stores what of the tile is inside of y (M, N)."""
    y_tile = y + rows[:, None] * N + columns[None, :]
    tl.store(y_tile, tile.to(y.dtype.element_ty), mask=(rows < M)[:, None] & inside[None, :])
