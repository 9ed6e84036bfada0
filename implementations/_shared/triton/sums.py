"""Sums of columns in Triton, always in the same order."""

import triton
import triton.language as tl

from implementations._shared.triton.launch import TYPES, launch_with

FEW_COLUMNS = 4096  # below which a program of `sum_rows` has 8, a sector of 32 bytes: with 32 most multiprocessors would have none


@triton.jit
def column_sums(a, columns, inside, first, behind, N: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sums of these columns of a (rows, N) over the rows first … behind - 1, in float32."""
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first, behind, ROWS):
        rows = start + tl.arange(0, ROWS).to(tl.int64)
        mask = (rows < behind)[:, None] & inside[None, :]
        total += tl.load(a + rows[:, None] * N + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    return tl.sum(total, 0)


def launch(case, parts, N):
    """`sum_rows` of (parts, N) in float32 → (N,) of the case's dtype."""
    columns, most = (8, 512) if N < FEW_COLUMNS else (32, 256)
    options = {"N": N, "COUNT": parts, "ROWS": min(most, triton.next_power_of_2(parts)), "COLUMNS": columns}
    signature = {"parts": "*fp32", "total": TYPES[case.dtype]}
    return launch_with({"num_warps": 4}, sum_rows, signature, options, (triton.cdiv(N, columns),))


@triton.jit
def sum_rows(parts, total, N: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Some columns of the sum of parts (COUNT, N)."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = column_sums(parts, columns, columns < N, 0, COUNT, N, ROWS, COLUMNS)
    tl.store(total + columns, sums.to(total.dtype.element_ty), mask=columns < N)
