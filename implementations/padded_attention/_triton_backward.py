"""padded_attention's backward modes in Triton: what triton.py and jax_triton.py launch there, and the choice of tiles.

Forward, one launch: the flash form (_shared/triton/attention.py), which leaves y and the logarithm of each row's sum behind, lse (B, H, T)
float32, in units of 1 / log2(e). Probabilities are made again from it: exp2(scores - lse). With ds = p * (dp - delta), dp = dy vᵀ and
delta = sum(dy * y) of each row:

    queries     a program has a tile of rows and goes through the tokens that they see: dq = scale * ds k.
    tokens      a program has a tile of tokens and goes through the rows that see them: dv = pᵀ dy, dk = scale * dsᵀ q.

flash         two launches: `queries` stores delta (B, H, T) for `tokens`.
one_launch    one, in which programs of both kinds take turns; `tokens` sums delta again, from y. For few heads, which leave
              multiprocessors idle.

Nothing is summed by atomic additions: each gradient has one program. Tiles begin at token n_padd, so that padding is never read; its gradients
are 0, which the programs of the same places in memory store.
"""

import functools
import math

import triton
import triton.language as tl

from implementations._shared.gpu import is_ieee, multiprocessors, rows_are_aligned
from implementations._shared.triton import attention
from implementations._shared.triton.attention import LOG2_E, attended, first_visible, store_rows, tokens_of
from implementations._shared.triton.launch import TYPES, by_launch, launch_with, prefixed
from implementations._shared.triton.limits import first_reason, misfit, most_stages, narrowed_to_fit
from implementations._shared.triton.matmul import padded


def config(case, variant, device):
    """The tunables: of each launch a tile of BLOCK_M rows (or tokens) and BLOCK_N of what it goes through at a time."""
    if variant == "one_launch":
        return tile(case, device, "both")
    return prefixed({"queries": tile(case, device, "queries"), "tokens": tile(case, device, "tokens")})


def tile(case, device, launch):
    """The tile of a launch, its warps and stages. What a program sums, of `tokens` twice as much, and two blocks of scores stand in
    registers.

    Warpgroups multiply 64 rows. Triton 3.6 on Hopper computes wrongly with one of them where rows start anywhere (fused_mlp): there
    tiles of 32 rows go without.
    """
    B, H, T, D = case.size("B", "H", "T", "D")
    wide = padded(D)
    if case.dtype != "float32":
        BLOCK_M, BLOCK_N = (128, 64) if wide <= 64 or (wide <= 128 and launch == "queries") else (128, 32)
        if wide > 128:
            BLOCK_M, BLOCK_N = 32, 32
        elif device.capability < (9, 0):  # operands pass through registers
            BLOCK_M, BLOCK_N = (128, 32) if wide <= 64 else (64, 32)
    elif case.precision == "tf32":
        BLOCK_M, BLOCK_N = (64, 32) if wide <= 64 else (32, 32)
    else:  # without tensor cores operands pass through registers: more would spill
        BLOCK_M, BLOCK_N = (32, 32) if wide <= 32 else (32, 16)
    if not rows_are_aligned(case, D):
        BLOCK_M = min(BLOCK_M, 32)
    BLOCK_M = min(BLOCK_M, padded(T))
    kinds = 2 if launch == "both" else 1
    while BLOCK_M > 16 and kinds * B * H * triton.cdiv(T, BLOCK_M) < multiprocessors(device) // 2:
        BLOCK_M //= 2
    chosen = {"BLOCK_M": BLOCK_M, "BLOCK_N": min(BLOCK_N, padded(T))}
    num_stages = most_stages(device, 3 if wide <= 64 else 2, functools.partial(tile_bytes, case, chosen))
    in_registers = is_ieee(case) or (case.dtype != "float32" and device.capability < (9, 0))
    num_warps = 8 if BLOCK_M == 128 or (in_registers and wide * kinds > 64) else 4
    own = chosen | {"num_warps": num_warps, "num_stages": num_stages}
    return narrowed_to_fit(own, ("BLOCK_M", "BLOCK_N"), functools.partial(tile_misfit, case, device))


def tile_bytes(case, chosen, num_stages):
    """Shared memory of a program: two tiles that stay, a block of two others a stage, and room to rearrange."""
    rows = 2 * chosen["BLOCK_M"] + num_stages * 2 * chosen["BLOCK_N"]
    return rows * padded(case.sizes["D"]) * case.itemsize + (16 << 10)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    if variant == "one_launch":
        return tile_misfit(case, device, config)
    return first_reason({name: tile_misfit(case, device, own) for name, own in by_launch(config).items()})


def tile_misfit(case, device, own):
    """Why a launch cannot have a tile, or None."""
    if own["BLOCK_M"] >= 64 and not rows_are_aligned(case, case.sizes["D"]) and not is_ieee(case):
        return f"BLOCK_M={own['BLOCK_M']}: Triton computes wrongly with rows that start anywhere; 32 is right"
    values = own["BLOCK_M"] * (padded(case.sizes["D"]) + 2 * own["BLOCK_N"])
    return misfit(device, own, ("BLOCK_M", "BLOCK_N"), values, tile_bytes(case, own, own["num_stages"]))


def options(case):
    """The compile-time arguments that all launches share."""
    _, H, T, D = case.size("B", "H", "T", "D")
    return {"H": H, "T": T, "D": D, "BLOCK_D": padded(D), "SCALE": LOG2_E / math.sqrt(D), "PRECISION": case.precision}


def forward_launch(case, device):
    """`flash_kept`, with the tile of mode=forward."""
    B, H, T, _ = case.size("B", "H", "T", "D")
    pointer, chosen = TYPES[case.dtype], attention.flash_config(case, device)
    signature = dict.fromkeys(("q", "k", "v"), pointer) | {"n_padd": "*i32", "y": pointer, "lse": "*fp32"}
    return launch_with(chosen, flash_kept, signature, options(case), (B * H * triton.cdiv(T, chosen["BLOCK_M"]),))


def backward_launches(case, variant, config):
    """`queries` and `tokens`, or `both`."""
    B, H, T, D = case.size("B", "H", "T", "D")
    pointer, own = TYPES[case.dtype], options(case) | {"SLOPE": 1 / math.sqrt(D)}
    read = dict.fromkeys(("q", "k", "v"), pointer) | {"n_padd": "*i32"}
    behind = {"y": pointer, "lse": "*fp32", "dy": pointer}

    def launch(chosen, kernel, signature, kinds=1):
        return launch_with(chosen, kernel, signature, own, (kinds * B * H * triton.cdiv(T, chosen["BLOCK_M"]),))

    if variant == "one_launch":
        return (launch(config, both, read | behind | dict.fromkeys(("dq", "dk", "dv"), pointer), 2),)
    chosen = by_launch(config)
    first = launch(chosen["queries"], queries, read | behind | {"dq": pointer, "delta": "*fp32"})
    signature = read | {"lse": "*fp32", "dy": pointer, "delta": "*fp32", "dk": pointer, "dv": pointer}
    return first, launch(chosen["tokens"], tokens, signature)


@triton.jit
def flash_kept(
    q, k, v, n_padd, y, lse,
    H: tl.constexpr, T: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of a head."""
    TILES: tl.constexpr = (T + BLOCK_M - 1) // BLOCK_M
    head = tl.program_id(0) // TILES
    first = (TILES - 1 - tl.program_id(0) % TILES) * BLOCK_M
    n = first_visible(n_padd, head // H, T)
    start = head.to(tl.int64) * (T * D)
    rows, d = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    acc, total, highest = attended(
        q + start, k + start, v + start, rows, first, d, n, T, D, BLOCK_D, SCALE, PRECISION, BLOCK_M, BLOCK_N
    )
    store_rows(y + start, tl.where(rows[:, None] < n, 0.0, acc / total[:, None]), rows, d, T, D)
    tl.store(lse + head.to(tl.int64) * T + rows, highest + tl.log2(total), mask=(rows >= n) & (rows < T))


@triton.jit
def clear(x, first, n, d, T: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr):
    """0 in those of the tokens first … first + BLOCK_M that are padding."""
    places = first + tl.arange(0, BLOCK_M)
    zeros = tl.zeros([BLOCK_M, d.shape[0]], tl.float32).to(x.dtype.element_ty)
    tl.store(x + places.to(tl.int64)[:, None] * D + d[None, :], zeros, mask=(places < n)[:, None] & (d < D)[None, :])


@triton.jit
def row_sums(y, dy, rows, d, T: tl.constexpr, D: tl.constexpr):
    """delta of the rows, from loads of its own (lola's _triton_kernels.py says why a dot and a sum share none)."""
    products = tokens_of(y, rows, d, T, D, True).to(tl.float32) * tokens_of(dy, rows, d, T, D, True).to(tl.float32)
    return tl.sum(products, 1)


@triton.jit
def advance_queries(
    acc, q, dy, sums, inner, k, v, rows, start, d,
    T: tl.constexpr, D: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """dq / scale after the tokens start … start + BLOCK_N."""
    places = start + tl.arange(0, BLOCK_N)
    keys = tokens_of(k, places, d, T, D, MASKED)
    s = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
    p = tl.exp2(s * SCALE - sums[:, None])
    if MASKED:
        p = tl.where(places[None, :] <= rows[:, None], p, 0.0)
    dp = tl.dot(dy, tl.trans(tokens_of(v, places, d, T, D, MASKED)), input_precision=PRECISION)
    ds = p * (dp - inner[:, None])
    return tl.dot(ds.to(keys.dtype), keys, acc, input_precision=PRECISION)


@triton.jit
def queries_tile(
    q, k, v, n, y, lse, dy, dq, delta, tile,
    T: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr,
    SLOPE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """dq of a tile of a head; its delta is stored if it is KEPT."""
    d = tl.arange(0, BLOCK_D)
    clear(dq, tile * BLOCK_M, n, d, T, D, BLOCK_M)
    first = n + tile * BLOCK_M
    if first < T:
        rows = first + tl.arange(0, BLOCK_M)
        inner = row_sums(y, dy, rows, d, T, D)
        if KEPT:
            tl.store(delta + rows, inner, mask=rows < T)
        sums = tl.load(lse + rows, mask=rows < T, other=0.0)
        q_tile, dy_tile = tokens_of(q, rows, d, T, D, True), tokens_of(dy, rows, d, T, D, True)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        diagonal = n + (first + 1 - n) // BLOCK_N * BLOCK_N  # all rows see the whole of the blocks before
        for j in range(n, diagonal, BLOCK_N):
            acc = advance_queries(
                acc, q_tile, dy_tile, sums, inner, k, v, rows, j, d, T, D, SCALE, PRECISION, BLOCK_N, False
            )
        for j in range(diagonal, tl.minimum(first + BLOCK_M, T), BLOCK_N):
            acc = advance_queries(
                acc, q_tile, dy_tile, sums, inner, k, v, rows, j, d, T, D, SCALE, PRECISION, BLOCK_N, True
            )
        store_rows(dq, acc * SLOPE, rows, d, T, D)


@triton.jit
def advance_tokens(
    dk, dv, keys, values, q, y, lse, dy, delta, places, start, d,
    T: tl.constexpr, D: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """dk / scale and dv after the rows start … start + BLOCK_N. Rows past T have dy = 0 and delta = 0, and add nothing."""
    rows = start + tl.arange(0, BLOCK_N)
    q_block = tokens_of(q, rows, d, T, D, True)
    st = tl.dot(keys, tl.trans(q_block), input_precision=PRECISION)
    pt = tl.exp2(st * SCALE - tl.load(lse + rows, mask=rows < T, other=0.0)[None, :])
    if MASKED:
        pt = tl.where(places[:, None] <= rows[None, :], pt, 0.0)
    dy_block = tokens_of(dy, rows, d, T, D, True)
    dv = tl.dot(pt.to(dy_block.dtype), dy_block, dv, input_precision=PRECISION)
    dpt = tl.dot(values, tl.trans(dy_block), input_precision=PRECISION)
    inner = tl.load(delta + rows, mask=rows < T, other=0.0) if KEPT else row_sums(y, dy, rows, d, T, D)
    dst = pt * (dpt - inner[None, :])
    return tl.dot(dst.to(q_block.dtype), q_block, dk, input_precision=PRECISION), dv


@triton.jit
def tokens_tile(
    q, k, v, n, y, lse, dy, dk, dv, delta, tile,
    T: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr,
    SLOPE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """dk and dv of a tile of a head; delta is read if it was KEPT, else y."""
    d = tl.arange(0, BLOCK_D)
    clear(dk, tile * BLOCK_M, n, d, T, D, BLOCK_M)
    clear(dv, tile * BLOCK_M, n, d, T, D, BLOCK_M)
    first = n + tile * BLOCK_M
    if first < T:
        places = first + tl.arange(0, BLOCK_M)
        keys, values = tokens_of(k, places, d, T, D, True), tokens_of(v, places, d, T, D, True)
        by_keys = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        by_values = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        # all rows from here on see the whole tile
        below = first + (BLOCK_M + BLOCK_N - 1) // BLOCK_N * BLOCK_N
        for i in range(first, tl.minimum(below, T), BLOCK_N):
            by_keys, by_values = advance_tokens(
                by_keys, by_values, keys, values, q, y, lse, dy, delta, places, i, d,
                T, D, SCALE, PRECISION, BLOCK_N, True, KEPT,
            )  # fmt: skip
        for i in range(below, T, BLOCK_N):
            by_keys, by_values = advance_tokens(
                by_keys, by_values, keys, values, q, y, lse, dy, delta, places, i, d,
                T, D, SCALE, PRECISION, BLOCK_N, False, KEPT,
            )  # fmt: skip
        store_rows(dk, by_keys * SLOPE, places, d, T, D)
        store_rows(dv, by_values, places, d, T, D)


@triton.jit
def queries(
    q, k, v, n_padd, y, lse, dy, dq, delta,
    H: tl.constexpr, T: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr,
    SLOPE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq and delta, the longest rows first."""
    TILES: tl.constexpr = (T + BLOCK_M - 1) // BLOCK_M
    head, tile = tl.program_id(0) // TILES, TILES - 1 - tl.program_id(0) % TILES
    start, row = head.to(tl.int64) * (T * D), head.to(tl.int64) * T
    queries_tile(
        q + start, k + start, v + start, first_visible(n_padd, head // H, T), y + start, lse + row, dy + start, dq + start,
        delta + row, tile, T, D, BLOCK_D, SCALE, PRECISION, SLOPE, BLOCK_M, BLOCK_N, True,
    )  # fmt: skip


@triton.jit
def tokens(
    q, k, v, n_padd, lse, dy, delta, dk, dv,
    H: tl.constexpr, T: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr,
    SLOPE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dk and dv, the tokens that most rows see first."""
    TILES: tl.constexpr = (T + BLOCK_M - 1) // BLOCK_M
    head, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    start, row = head.to(tl.int64) * (T * D), head.to(tl.int64) * T
    tokens_tile(
        q + start, k + start, v + start, first_visible(n_padd, head // H, T), dy, lse + row, dy + start, dk + start, dv + start,
        delta + row, tile, T, D, BLOCK_D, SCALE, PRECISION, SLOPE, BLOCK_M, BLOCK_N, True,
    )  # fmt: skip


@triton.jit
def both(
    q, k, v, n_padd, y, lse, dy, dq, dk, dv,
    H: tl.constexpr, T: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr,
    SLOPE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Programs of both kinds in turns."""
    TILES: tl.constexpr = (T + BLOCK_M - 1) // BLOCK_M
    head, place = tl.program_id(0) // (2 * TILES), tl.program_id(0) % (2 * TILES)
    n = first_visible(n_padd, head // H, T)
    start, row = head.to(tl.int64) * (T * D), head.to(tl.int64) * T
    if place % 2 == 0:
        tokens_tile(
            q + start, k + start, v + start, n, y + start, lse + row, dy + start, dk + start, dv + start,
            lse, place // 2, T, D, BLOCK_D, SCALE, PRECISION, SLOPE, BLOCK_M, BLOCK_N, False,
        )  # fmt: skip
    else:
        queries_tile(
            q + start, k + start, v + start, n, y + start, lse + row, dy + start, dq + start,
            lse, TILES - 1 - place // 2, T, D, BLOCK_D, SCALE, PRECISION, SLOPE, BLOCK_M, BLOCK_N, False,
        )  # fmt: skip
