"""add_mul_act's backward modes in Triton: dx = dy * act'(…), dz = multiplier * dx, db = the sum of dx over the rows.

A program has some columns of a share of the rows, PARTS shares in all, and sums dx over them. With one share that is db; more leave
their sums to `sum_rows` (_shared/triton/sums.py), a second launch, which adds them up in order. The slopes of relu, sigmoid and tanh
come from y as it is stored, the other ones from the inputs again: nothing but y is kept.
"""

import triton
import triton.language as tl

from implementations._shared.gpu import multiprocessors
from implementations._shared.triton import sums
from implementations._shared.triton.launch import TYPES, by_launch, launch_with, prefixed
from implementations._shared.triton.limits import first_reason, misfit
from implementations._shared.triton.slopes import slope, slope_from_value

FROM_Y = ("relu", "sigmoid", "tanh")


def from_y(case):
    """Whether the slope comes from y."""
    return case.options["activation"] in FROM_Y


def config(case, device):
    """The tunables: rows and columns of a tile, and the shares of the rows. Few rows are one share, and one launch does."""
    M, N = case.size("M", "N")
    if M <= 256:
        ROWS = min(128, triton.next_power_of_2(M))
        COLUMNS = min(triton.next_power_of_2(N), max(32, 2048 // ROWS))
        while COLUMNS > 32 and triton.cdiv(N, COLUMNS) < multiprocessors(device):
            COLUMNS //= 2
        PARTS = 1
    else:
        COLUMNS = min(512, triton.next_power_of_2(N))
        ROWS = 2048 // COLUMNS
        # 8 programs of 4 warps on each multiprocessor, and as many again
        most = max(1, 16 * multiprocessors(device) // triton.cdiv(N, COLUMNS))
        PARTS = min(triton.next_power_of_2(triton.cdiv(M, ROWS)), triton.next_power_of_2(most + 1) // 2)
    num_warps = max(1, min(4, ROWS * COLUMNS // 256))
    return prefixed({"gradient": {"ROWS": ROWS, "COLUMNS": COLUMNS, "PARTS": PARTS, "num_warps": num_warps}})


def fits(case, device, config):
    """Why a config cannot run, or None."""
    own = by_launch(config)["gradient"]
    return first_reason({"gradient": misfit(device, own, values=4 * own["ROWS"] * own["COLUMNS"])})


def launches(case, config):
    """`gradient`, and `sum_rows` where there are parts."""
    N = case.sizes["N"]
    pointer, own = TYPES[case.dtype], by_launch(config)["gradient"]
    signature = dict.fromkeys(("x", "z", "multiplier", "b", "dy"), pointer) | {"M": "i32", "dx": pointer, "dz": pointer}
    signature["db"] = pointer if own["PARTS"] == 1 else "*fp32"
    options = {"N": N, "ACTIVATION": case.options["activation"], "FROM_Y": from_y(case)}
    grid = (triton.cdiv(N, own["COLUMNS"]) * own["PARTS"],)
    first = launch_with(own, gradient, signature, options, grid)
    return (first,) if own["PARTS"] == 1 else (first, sums.launch(case, own["PARTS"], N))


@triton.jit(do_not_specialize=["M"])
def gradient(
    x, z, multiplier, b, dy, M, dx, dz, db,
    N: tl.constexpr, ACTIVATION: tl.constexpr, FROM_Y: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """A share of the rows of some columns; db is (PARTS, N). With FROM_Y x is y, and z and b are not read."""
    blocks = tl.cdiv(N, COLUMNS)
    part = tl.program_id(0) // blocks
    columns = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (columns < N) | (N % COLUMNS == 0)
    each = tl.cdiv(tl.cdiv(M, ROWS), PARTS) * ROWS
    first, behind = part * each, tl.minimum(part * each + each, M)
    scale = tl.load(multiplier).to(tl.float32)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first, behind, ROWS):
        rows = start + tl.arange(0, ROWS).to(tl.int64)
        at, mask = rows[:, None] * N + columns[None, :], (rows < behind)[:, None] & inside[None, :]
        through = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        if FROM_Y:
            through *= slope_from_value(tl.load(x + at, mask=mask, other=0.0).to(tl.float32), ACTIVATION)
        elif ACTIVATION != "none":
            before = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
            before += scale * tl.load(z + at, mask=mask, other=0.0).to(tl.float32)
            before += tl.load(b + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
            through *= slope(before, ACTIVATION)
        tl.store(dx + at, through.to(dx.dtype.element_ty), mask=mask)
        tl.store(dz + at, (scale * through).to(dz.dtype.element_ty), mask=mask)
        total += through
    tl.store(db + part * N + columns, tl.sum(total, 0).to(db.dtype.element_ty), mask=inside)
