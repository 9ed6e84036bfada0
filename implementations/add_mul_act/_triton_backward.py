"""add_mul_act's backward modes in Triton: dx = dy * act'(…), dz = multiplier * dx, db = the sum of dx over the rows.

A group is as many rows as are whole vectors of 16 bytes together, which begin at such a vector whatever N is. The matrices are taken as rows of
groups: a program has some places of a share of the groups, PARTS shares in all, and sums dx over them. With one share of groups of one row
that is db; else the sums are rows of N as well, which `sum_rows` (_shared/triton/sums.py), a second launch, adds up in order. The slopes of relu,
sigmoid and tanh come from y as it is stored, the other ones from the inputs again: nothing but y is kept.
"""

import triton
import triton.language as tl

from implementations._shared.gpu import multiprocessors
from implementations._shared.triton import sums
from implementations._shared.triton.launch import TYPES, by_launch, launch_with, prefixed
from implementations._shared.triton.limits import first_reason, misfit
from implementations._shared.triton.slopes import slope, slope_from_value
from implementations.add_mul_act._rows import rows_of_a_group, slope_is_from_y

FEW_ROWS = 256


def group(case):
    """Rows of a group; of few rows 1, whose loads of no whole vectors take less time than a second launch."""
    return 1 if case.sizes["M"] <= FEW_ROWS else rows_of_a_group(case)


def parts(case, config):
    """Rows of N sums that `gradient` leaves."""
    return config["gradient_PARTS"] * group(case)


def config(case, device):
    """The tunables: groups and places of a tile, and the shares of the groups. Few rows are one share, and one launch does."""
    (M, N), sms = case.size("M", "N"), multiprocessors(device)
    if M <= FEW_ROWS:
        ROWS = min(128, triton.next_power_of_2(M))
        COLUMNS = min(triton.next_power_of_2(N), max(32, 2048 // ROWS))
        while COLUMNS > 32 and triton.cdiv(N, COLUMNS) < sms:
            COLUMNS //= 2
        PARTS = 1
    else:
        rows = group(case)
        places = rows * N
        # the widest that leave an eighth of the places empty at most; of few places all, else a sector of 32 bytes
        narrow = max(8, triton.next_power_of_2(places)) if places <= 32 else 32 // case.itemsize
        COLUMNS = next((c for c in (512, 256, 128, 64, 32, 16) if -places % c <= places // 8), narrow)
        ROWS, blocks = 2048 // COLUMNS, triton.cdiv(places, COLUMNS)
        # 8 programs of 4 warps on each multiprocessor, and as many again; fewer where their sums would be many rows, but 4 of them
        most = min(16 * sms // blocks, max(512 // rows, 4 * sms // blocks), 2048 // rows)
        tiles = triton.cdiv(M // rows, ROWS)
        PARTS = triton.cdiv(tiles, triton.cdiv(tiles, max(1, most)))
    num_warps = max(1, min(4, ROWS * COLUMNS // 256))
    return prefixed({"gradient": {"ROWS": ROWS, "COLUMNS": COLUMNS, "PARTS": PARTS, "num_warps": num_warps}})


def fits(case, device, config):
    """Why a config cannot run, or None."""
    own = by_launch(config)["gradient"]
    return first_reason({"gradient": misfit(device, own, values=4 * own["ROWS"] * own["COLUMNS"])})


def launches(case, config):
    """`gradient`, and `sum_rows` where there are parts."""
    N, rows, count = case.sizes["N"], group(case), parts(case, config)
    pointer, own = TYPES[case.dtype], by_launch(config)["gradient"]
    signature = dict.fromkeys(("x", "z", "multiplier", "b", "dy"), pointer) | {"M": "i32", "dx": pointer, "dz": pointer}
    signature["db"] = pointer if count == 1 else "*fp32"
    options = {"N": N, "GROUP": rows, "ACTIVATION": case.options["activation"], "FROM_Y": slope_is_from_y(case)}
    grid = (triton.cdiv(rows * N, own["COLUMNS"]) * own["PARTS"],)
    first = launch_with(own, gradient, signature, options, grid)
    return (first,) if count == 1 else (first, sums.launch(case, count, N))


@triton.jit
def step(x, z, scale, bias, dy, dx, dz, at, mask, ACTIVATION: tl.constexpr, FROM_Y: tl.constexpr):
    """dx and dz of the elements there; dx in float32."""
    through = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
    if FROM_Y:
        through *= slope_from_value(tl.load(x + at, mask=mask, other=0.0).to(tl.float32), ACTIVATION)
    elif ACTIVATION != "none":
        before = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        before += scale * tl.load(z + at, mask=mask, other=0.0).to(tl.float32)
        through *= slope(before + bias, ACTIVATION)
    tl.store(dx + at, through.to(dx.dtype.element_ty), mask=mask)
    tl.store(dz + at, (scale * through).to(dz.dtype.element_ty), mask=mask)
    return through


@triton.jit(do_not_specialize=["M"])
def gradient(
    x, z, multiplier, b, dy, M, dx, dz, db,
    N: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr, FROM_Y: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """A share of the groups at some of their places; db is (PARTS, GROUP, N). With FROM_Y x is y, and z and b are not read."""
    WIDTH: tl.constexpr = GROUP * N
    blocks = tl.cdiv(WIDTH, COLUMNS)
    part = tl.program_id(0) // blocks
    places = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (places < WIDTH) | (WIDTH % COLUMNS == 0)
    groups = M // GROUP
    each = tl.cdiv(tl.cdiv(groups, ROWS), PARTS) * ROWS
    first, behind = part * each, tl.minimum(part * each + each, groups)
    scale = tl.load(multiplier).to(tl.float32)
    bias = tl.zeros([COLUMNS], tl.float32)
    if not FROM_Y and ACTIVATION != "none":
        bias = tl.load(b + places % N, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first, behind, ROWS):
        rows = start + tl.arange(0, ROWS).to(tl.int64)
        at, mask = rows[:, None] * WIDTH + places[None, :], (rows < behind)[:, None] & inside[None, :]
        total += step(x, z, scale, bias[None, :], dy, dx, dz, at, mask, ACTIVATION, FROM_Y)
    sums = tl.sum(total, 0)
    if GROUP > 1:  # noqa: SIM102 (one test when compiled, one in the kernel)
        if part == PARTS - 1:  # rows that are no whole group, by elements
            at, mask = groups.to(tl.int64) * WIDTH + places, places < (M - groups * GROUP) * N
            sums += step(x, z, scale, bias, dy, dx, dz, at, mask, ACTIVATION, FROM_Y)
    tl.store(db + part * WIDTH + places, sums.to(db.dtype.element_ty), mask=inside)
