"""lola in Triton: the kernels that triton.py and jax_triton.py both launch, and the choice of their tiles.

    row_kernel      a program has one row and a block of columns. It takes the statistics of the row first, while the first
                    batch of W is on its way, and then sums (x - mean) * W: two passes over x, which is small and cached, and
                    one over W. While a thread uses one batch, the next one comes.
    multirow,       a program has a tile of rows and a tile of columns. While it feeds the tensor cores it sums the
    multirow_ws     statistics, shifted by s, the mean of the row's first block. At the end, with d = mean - s:
                    (x - s) @ W - d * colsum(W).  `multirow_ws` is given colsum(W), `multirow` sums it.
    …_f16acc        the same as the published kernels multiply: operands and accumulator are float16, for float32 inputs too.

float32 products take x - s, which float32 holds; 16-bit products must take x itself, so there s is 0 in the product alone.
What is summed comes from loads of its own, one block ahead, wherever the tensor cores read the tile from shared memory:
Triton 3.6 overwrites a tile that both a dot and a sum use while the dot still reads it (seen on an H200: errors of 3,
different each time).
K and N are those of the layer and compile-time constants: masks and strides fold away where the tiles divide them. M may
change from call to call without compiling anew.
"""

import functools

import triton
import triton.language as tl

from implementations._shared.gpu import filled_up, is_ieee, multiprocessors, rows_are_aligned, weight_row
from implementations._shared.triton.elementwise import activate
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit, most_stages
from implementations._shared.triton.matmul import grouped, last_round_idles, narrowed, nearest_tf32
from implementations.lola import _triton_backward as backward

TUNABLES = {
    ("row", "batched_row"): {
        "UNROLL": (1, 2, 4, 8, 16), "BLOCK_K": (4, 8, 16, 32, 64, 128, 256), "BLOCK_N": (8, 16, 32, 64, 128, 256),
        "num_warps": (2, 4, 8, 16),
    },
    ("multirow", "multirow_ws", "multirow_f16acc", "multirow_ws_f16acc"): {
        "BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (32, 64, 128, 256), "BLOCK_K": (16, 32, 64, 128, 256, 512), "GROUP": (4, 8, 16),
        "num_warps": (4, 8), "num_stages": (2, 3, 4),
    },
    "multirow": {  # those of the launches of mode=backward
        "rows_BLOCK": (256, 512, 1024, 2048, 4096), "rows_num_warps": (1, 2, 4, 8),
        "products_DX_M": (32, 64, 128), "products_DX_N": (32, 64, 128, 256), "products_DX_K": (16, 32, 64),
        "products_DW_M": (32, 64, 128), "products_DW_N": (32, 64, 128, 256), "products_DW_K": (16, 32, 64),
        "products_num_warps": (4, 8), "products_num_stages": (2, 3, 4),
    },
}  # fmt: skip
# Up to so many rows and so long a K, with so many programs a multiprocessor: BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages. Times on an
# H100 beside those of tiles for many rows, of 1024→4096 unless another is named
FEW_ROWS = (
    (32, 2048, 1, (16, 64, 256, 4, 3)),  # 16 rows 8.5 µs and 11.1, 32 rows 8.6 and 11.7
    (32, 1 << 20, 1, (16, 32, 512, 4, 3)),  # 16×4096→4096 23.1 µs and 37.6
    (64, 1 << 20, 2, (16, 64, 128, 4, 4)),  # 9.5 µs and 14.0
    (128, 1 << 20, 1, (64, 64, 128, 8, 3)),  # 11.2 µs and 14.4
    (256, 1 << 20, 1, (64, 128, 128, 8, 3)),  # 13.3 µs and 17.6
)
EPS = tl.constexpr(1e-5)
HALF_SUMS = ("multirow_f16acc", "multirow_ws_f16acc")
WITH_COLSUM = ("multirow_ws", "multirow_ws_f16acc")  # the variants that get the column sums of W


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    if variant == "row" and case.sizes["M"] != 1:
        return "row takes one token; batched_row takes many"
    if variant in ("row", "batched_row") and case.precision == "tf32":
        return "multiplies in IEEE float32, without tensor cores: precision=ieee runs it"
    if variant in HALF_SUMS and case.dtype == "bfloat16":
        return "multiplies and sums in float16, which does not hold the range of bfloat16"
    return None


def config(case, variant, device):
    """The tunables of a variant: its tile, warps and stages."""
    if case.mode != "forward":
        return backward.config(case, device)
    if variant in ("row", "batched_row"):
        return row_config(case, variant, device)
    return multirow_config(case, device, variant in WITH_COLSUM)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    if case.mode != "forward":
        return backward.fits(case, device, config)
    if variant in ("row", "batched_row"):
        batch = config["UNROLL"] * config["BLOCK_K"] * config["BLOCK_N"] * case.itemsize // 4
        return misfit(device, config, values=2 * batch)
    BLOCK_M, BLOCK_N, BLOCK_K = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    sums = BLOCK_M * BLOCK_N + (0 if variant in WITH_COLSUM else BLOCK_N * BLOCK_K)  # of the products, and of W
    shared = shared_bytes(case, config, config["num_stages"])
    return misfit(device, config, ("BLOCK_M", "BLOCK_N", "BLOCK_K"), sums, shared)


def launches(case, variant, device, config):
    """The one launch of every variant; in mode=backward the two of `multirow`, in forward_backward the two before them as well."""
    if case.mode != "forward":
        behind = backward.backward_launches(case, config)
        return behind if case.mode == "backward" else (*backward.forward_launches(case, device), *behind)
    M, K, N = case.size("M", "K", "N")
    pointer = TYPES[case.dtype]
    by_row, prepared = variant in ("row", "batched_row"), variant in WITH_COLSUM
    kernel = row_kernel if by_row else multirow_ws if prepared else multirow
    signature = {"x": pointer, "W": pointer, "b": pointer} | ({"colsum": "*fp32"} if prepared else {})
    signature |= {"M": "i32", "y": pointer}
    options = {"K": K, "N": N, "NK": case.options["w_layout"] == "nk", "ACTIVATION": case.options["activation"]}
    if by_row:
        options["PITCH"] = pitch(case, variant)
    else:
        options |= {
            "PRECISION": case.precision,
            "VECTOR": 16 // case.itemsize,  # 16 bytes, which a thread loads at once
            "HALF_SUMS": variant in HALF_SUMS,
        }
    grid = ((M if by_row else triton.cdiv(M, config["BLOCK_M"])) * triton.cdiv(N, config["BLOCK_N"]),)
    return (launch_with(config, kernel, signature, options, grid),)


def pitch(case, variant):
    """Elements from one row of W to the next: whole vectors, to which `prepare` fills up rows for `row`."""
    return filled_up(case, weight_row(case)) if variant == "row" else weight_row(case)


def row_config(case, variant, device):
    """The config of `row_kernel`: a thread loads one vector of 16 bytes of each tile of W, and has two batches of UNROLL on their way."""
    K, N = case.size("K", "N")
    vector, num_warps, sms = 16 // case.itemsize, 8, multiprocessors(device)
    if case.options["w_layout"] == "nk":
        BLOCK_K, BLOCK_N, batch = 16 * vector, 16, 4
    else:
        # the longest reads of a row of W with about two programs a multiprocessor: on an H200 in bfloat16 1×5120→20480 took 60.4 µs with
        # 128 bytes, 64.9 with 64, and 1×8192→32768 134.5 µs with 256 bytes, 136.5 with 512 in one program
        widths = (32, 16, 8)
        width = next((w for w in widths if triton.cdiv(N, w * vector) >= 1.9 * sms), 4)
        # where there are few programs, larger batches: in float32 1×1024→4096 took 8.1 µs by 8, 9.2 by 4, and 9.1 with all 16 at once
        batch = 8 if width < 32 and triton.cdiv(N, width * vector) <= 2 * sms else 4
        BLOCK_K, BLOCK_N = 32 * num_warps // width, width * vector
    if not rows_are_aligned(case, pitch(case, variant)):
        batch = max(1, 2 * batch // vector)  # vectors are loaded element by element, with a pointer for each
    tiles = triton.next_power_of_2(triton.cdiv(K, BLOCK_K))
    return {"UNROLL": min(tiles, batch), "BLOCK_K": BLOCK_K, "BLOCK_N": BLOCK_N, "num_warps": num_warps}


def shared_bytes(case, tile, num_stages):
    """Shared memory: a slab of x and one of W a stage, and some for the reductions."""
    return num_stages * (tile["BLOCK_M"] + tile["BLOCK_N"]) * tile["BLOCK_K"] * case.itemsize + (8 << 10)


def multirow_config(case, device, prepared):
    """The config of `multirow` or, `prepared`, `multirow_ws`: the widest that leaves no multiprocessor without a program."""
    M, K, N = case.size("M", "K", "N")
    if prepared and case.dtype != "float32" and rows_are_aligned(case, K, N) and (few := few_rows_config(case, device)):
        return few
    BLOCK_M = max(16, min(128, triton.next_power_of_2(M)))  # a dot has 16 rows at least
    if case.dtype != "float32":
        # 256 columns load the fewest bytes per FLOP, but their float32 sums take half the registers: not beside the sums
        # of W, nor on Blackwell, where the end of the kernel would spill. 64 elements are the 128 bytes of one swizzle
        BLOCK_N, BLOCK_K = 256 if prepared and device.capability < (10, 0) else 128, 64
    elif case.precision == "tf32":
        BLOCK_N, BLOCK_K = 128, 32  # again 128 bytes
    else:
        BLOCK_N, BLOCK_K = 128, 16  # without tensor cores a thread multiplies 8 × 8 from registers
    if not rows_are_aligned(case, K, N):
        BLOCK_N, BLOCK_K = 64, min(BLOCK_K, 32)  # room for a pointer to each element
    BLOCK_N = narrowed(BLOCK_N, 32, M, BLOCK_M, N, device)
    # one warpgroup for every 64 rows; without tensor cores a thread does better with twice the tile
    num_warps, most = 4 if BLOCK_M < 128 or is_ieee(case) else 8, 4
    if (BLOCK_M, BLOCK_N) == (128, 256) and last_round_idles(M, BLOCK_M, N, BLOCK_N, device):
        # a quarter of the tile, two of them on a multiprocessor: on an H200 37.5 µs instead of 47.1 at 1200×1024→4096,
        # 47.8 instead of 47.0 at 1500, where 192 tiles fill two rounds of 132 to 73 %
        BLOCK_M, BLOCK_N, most = 64, 128, 3
    if prepared and case.precision == "tf32" and case.dtype == "float32":
        num_warps, most = 4, 3  # an H200 took 150 µs at 1024×1024→4096, 171 with 8 warps and 4 stages
    # 8 row blocks together keep their x and the W that passes by in L2
    tile = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K, "GROUP": 8}
    num_stages = most_stages(device, most, functools.partial(shared_bytes, case, tile))
    return tile | {"num_warps": num_warps, "num_stages": num_stages}


def few_rows_config(case, device):
    """The config of `multirow_ws` in 16 bits where few rows make so few programs that all run at once, or None: all is latency there, so
    that much of K is on its way."""
    M, K, N = case.size("M", "K", "N")
    for rows, longest, programs, config in FEW_ROWS:
        if rows >= M and longest >= K:
            tile = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"), config, strict=True)) | {
                "GROUP": 8
            }
            at_once = triton.cdiv(M, tile["BLOCK_M"]) * triton.cdiv(N, tile["BLOCK_N"]) <= programs * multiprocessors(
                device
            )
            shared = shared_bytes(case, tile, tile["num_stages"])
            return tile if at_once and misfit(device, tile, shared=shared) is None else None
    return None


@triton.jit
def moments(total, squares, K: tl.constexpr):
    """Mean and 1 / sqrt(variance + eps) from the sums of K values and of their squares."""
    mean = total / K
    variance = squares / K - mean * mean
    return mean, tl.rsqrt(tl.where(variance < 0, 0.0, variance) + EPS)  # keeps NaN, which a maximum with 0 loses


@triton.jit
def load_tiles(
    x_tile, W_tile, left, k, n_inside,
    MASKED: tl.constexpr, STRIDE: tl.constexpr, UNROLL: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """UNROLL tiles of x and W along K: ((x, w), …); where `MASKED`, 0 behind the `left` that there are."""
    batch = ()
    for i in tl.static_range(0, UNROLL * BLOCK_K, BLOCK_K):
        if MASKED:
            x = tl.load(x_tile + i, mask=i + k < left, other=0.0)
            w = tl.load(W_tile + i * STRIDE, mask=(i + k < left) & n_inside, other=0.0)
        else:
            x = tl.load(x_tile + i)
            w = tl.load(W_tile + i * STRIDE, mask=n_inside, other=0.0)
        batch += ((x, w),)  # type: ignore[assignment]  # in Triton a tuple grows
    return batch


@triton.jit
def request(x_tile, W_tile, left, k, n_inside, STRIDE: tl.constexpr, UNROLL: tl.constexpr, BLOCK_K: tl.constexpr):
    """Asks for a batch, UNROLL tiles of x and W.

    The branch saves masks, and keeps requests in their place: within a block of instructions the compiler puts them behind
    the products that come next, in the registers which those free, so that only one batch is on its way.
    """
    if left >= UNROLL * BLOCK_K:
        batch = load_tiles(x_tile, W_tile, left, k, n_inside, False, STRIDE, UNROLL, BLOCK_K)
    else:
        batch = load_tiles(x_tile, W_tile, left, k, n_inside, True, STRIDE, UNROLL, BLOCK_K)
    return batch


@triton.jit
def add_products(acc, batch, mean):
    """acc + the sum of (x - mean) * w, where w is 0 past K."""
    for i in tl.static_range(len(batch)):
        x, w = batch[i]
        acc += (x.to(tl.float32) - mean) * w.to(tl.float32)
    return acc


@triton.jit(do_not_specialize=["M"])
def row_kernel(
    x, W, b, M, y,
    K: tl.constexpr, N: tl.constexpr, PITCH: tl.constexpr, NK: tl.constexpr, ACTIVATION: tl.constexpr,
    UNROLL: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One row, BLOCK_N columns. Neighbouring programs have the same columns of W and different rows. Behind the end of a row of W are
    zeros, up to PITCH.

    A thread sums in its own registers, and threads exchange their sums only once, at the end. Tiles of x that have fewer
    elements than the program has threads are loaded by the threads that multiply them; of larger ones each thread would load
    its part, and all would wait for one another to exchange them.
    """
    row = (tl.program_id(0) % M).to(tl.int64)
    columns = (tl.program_id(0) // M) * BLOCK_N + tl.arange(0, BLOCK_N)
    STEP: tl.constexpr = UNROLL * BLOCK_K
    STRIDE: tl.constexpr = 1 if NK else PITCH
    THERE: tl.constexpr = N if NK else PITCH
    k = tl.arange(0, BLOCK_K)[None, :] if NK else tl.arange(0, BLOCK_K)[:, None]
    n = columns[:, None] if NK else columns[None, :]
    n_inside = (n < THERE) | (THERE % BLOCK_N == 0)
    x += row * K
    x_tile = x + k
    W_tile = W + k.to(tl.int64) * STRIDE + n.to(tl.int64) * (PITCH if NK else 1)

    # before W what the products wait for: the start of the row, whose mean each warp takes for itself, and as much of the row
    # as threads hold
    PART: tl.constexpr = min(8 * BLOCK_K * BLOCK_N, triton.next_power_of_2(K))
    start_of_row, part = tl.arange(0, 32), tl.arange(0, PART)
    first = tl.load(x + start_of_row, mask=start_of_row < K, other=0.0)
    values = tl.load(x + part, mask=part < K, other=0.0)
    bias = tl.load(b + columns, mask=columns < N, other=0.0)
    # K; were it a constant there would be no branch, and the compiler would put the request behind the statistics
    left = tl.where(M > 0, K, 0)
    one = request(x_tile, W_tile, left, k, n_inside, STRIDE, UNROLL, BLOCK_K)

    shift = tl.sum(first.to(tl.float32), 0) / min(K, 32)
    total = tl.zeros([PART], tl.float32)
    squares = tl.zeros([PART], tl.float32)
    for start in range(0, K, PART):
        deviation = tl.where(start + part < K, values.to(tl.float32) - shift, 0.0)
        total += deviation
        squares += deviation * deviation
        values = tl.load(x + start + PART + part, mask=start + PART + part < K, other=0.0)
    total, squares = tl.split(tl.sum(tl.join(total, squares), 0))  # threads exchange both at once
    mean, rstd = moments(total, squares, K)
    mean += shift

    acc = tl.zeros([BLOCK_N, BLOCK_K] if NK else [BLOCK_K, BLOCK_N], tl.float32)
    for start in range(STEP, K + STEP, 2 * STEP):
        other = request(x_tile + STEP, W_tile + STEP * STRIDE, K - start, k, n_inside, STRIDE, UNROLL, BLOCK_K)
        acc = add_products(acc, one, mean)
        x_tile += 2 * STEP
        W_tile += 2 * STEP * STRIDE
        one = request(x_tile, W_tile, K - STEP - start, k, n_inside, STRIDE, UNROLL, BLOCK_K)
        acc = add_products(acc, other, mean)
    z = activate(tl.sum(acc, 1 if NK else 0) * rstd + bias.to(tl.float32), ACTIVATION)
    tl.store(y + row * N + columns, z.to(y.dtype.element_ty), mask=columns < N)


@triton.jit
def multirow_tiles(
    x, W, b, colsum, M, y,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, VECTOR: tl.constexpr, GROUP: tl.constexpr, HALF_SUMS: tl.constexpr,
):  # fmt: skip
    """The body of `multirow` (colsum is None) and `multirow_ws`."""
    row_block, column_block = grouped(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    rows = (row_block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    columns = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    # rows past M read the last row again, and are not stored: their loads need no mask
    x_tile = x + tl.minimum(rows, M - 1)[:, None] * K + k[None, :]
    if NK:
        W_tile = W + columns.to(tl.int64)[None, :] * K + k[:, None]
    else:
        W_tile = W + k.to(tl.int64)[:, None] * N + columns[None, :]
    n_inside = (columns < N) | (N % BLOCK_N == 0)  # a constant where the tile divides N, and the mask folds away

    HALF: tl.constexpr = x.dtype.element_ty != tl.float32
    ahead = tl.load(x_tile, mask=k[None, :] < K, other=0.0)
    shift = tl.sum(ahead.to(tl.float32), 1) / min(K, BLOCK_K)
    # a thread sums the VECTOR elements that it loads at once; threads exchange their sums only after the loop
    total = tl.zeros([BLOCK_M, BLOCK_K // VECTOR], tl.float32)
    squares = tl.zeros([BLOCK_M, BLOCK_K // VECTOR], tl.float32)
    W_sum = tl.zeros([BLOCK_K, BLOCK_N], tl.float32)
    if colsum is None:
        W_ahead = tl.load(W_tile, mask=(k < K)[:, None] & n_inside[None, :], other=0.0)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float16 if HALF_SUMS else tl.float32)
    for start in range(0, K, BLOCK_K):
        k_inside = (start + k < K) | (K % BLOCK_K == 0)
        xs = tl.load(x_tile, mask=k_inside[None, :], other=0.0)
        w = tl.load(W_tile, mask=k_inside[:, None] & n_inside[None, :], other=0.0)
        source = ahead if HALF else xs
        shifted = tl.where(k_inside[None, :], source.to(tl.float32) - shift[:, None], 0.0)
        in_vectors = tl.reshape(shifted, [BLOCK_M, BLOCK_K // VECTOR, VECTOR])
        total += tl.sum(in_vectors, 2)
        squares += tl.sum(in_vectors * in_vectors, 2)
        if HALF_SUMS:
            factor = xs if HALF else shifted.to(tl.float16)
            acc = tl.dot(factor, w.to(tl.float16), acc, out_dtype=tl.float16)
        elif HALF:
            acc = tl.dot(xs, w, acc)
        elif PRECISION == "tf32":
            acc = tl.dot(nearest_tf32(shifted), w, acc, input_precision="tf32")
        else:
            acc = tl.dot(shifted, w, acc, input_precision="ieee")
        if colsum is None:
            W_sum += W_ahead.to(tl.float32)
        x_tile += BLOCK_K
        W_tile += BLOCK_K if NK else BLOCK_K * N
        k_ahead = start + BLOCK_K + k < K
        if HALF:
            ahead = tl.load(x_tile, mask=k_ahead[None, :], other=0.0)
        if colsum is None:
            W_ahead = tl.load(W_tile, mask=k_ahead[:, None] & n_inside[None, :], other=0.0)

    if HALF_SUMS:
        acc = acc.to(tl.float32)
    mean, rstd = moments(tl.sum(total, 1), tl.sum(squares, 1), K)
    if x.dtype.element_ty != tl.float32:
        mean += shift
    if colsum is None:
        sums = tl.sum(W_sum, 0)
    else:
        sums = tl.load(colsum + columns, mask=n_inside, other=0.0)
    bias = tl.load(b + columns, mask=n_inside, other=0.0).to(tl.float32)
    z = activate((acc - mean[:, None] * sums[None, :]) * rstd[:, None] + bias[None, :], ACTIVATION)
    y_tile = y + rows[:, None] * N + columns[None, :]
    tl.store(y_tile, z.to(y.dtype.element_ty), mask=(rows < M)[:, None] & n_inside[None, :])


@triton.jit(do_not_specialize=["M"])
def multirow(
    x, W, b, M, y,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, VECTOR: tl.constexpr, GROUP: tl.constexpr, HALF_SUMS: tl.constexpr,
):  # fmt: skip
    """A tile of y in one pass over x and W."""
    multirow_tiles(
        x, W, b, None, M, y, K, N, NK, ACTIVATION, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K, VECTOR, GROUP, HALF_SUMS
    )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def multirow_ws(
    x, W, b, colsum, M, y,
    K: tl.constexpr, N: tl.constexpr, NK: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, VECTOR: tl.constexpr, GROUP: tl.constexpr, HALF_SUMS: tl.constexpr,
):  # fmt: skip
    """A tile of y in one pass over x and W, with colsum(W) prepared (N,) in float32."""
    multirow_tiles(
        x, W, b, colsum, M, y, K, N, NK, ACTIVATION, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K, VECTOR, GROUP, HALF_SUMS
    )  # fmt: skip
