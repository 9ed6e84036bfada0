"""Device functions of matrix products, and the choice of their tiles."""

import triton
import triton.language as tl

from implementations._shared.gpu import multiprocessors


def padded(size):
    """The power of two that a tile needs for this size; a dot has 16 at least."""
    return max(16, triton.next_power_of_2(size))


def narrowed(BLOCK_N, least, M, BLOCK_M, N, device):
    """BLOCK_N, or what of it leaves no multiprocessor without a program; `least` at least.

    A tenth of the multiprocessors may idle: 128 programs on an H200's 132 beat two uneven rounds of smaller ones.
    """
    while least < BLOCK_N and triton.cdiv(M, BLOCK_M) * triton.cdiv(N, BLOCK_N) < 0.9 * multiprocessors(device):
        BLOCK_N //= 2
    return BLOCK_N


def last_round_idles(M, BLOCK_M, N, BLOCK_N, device):
    """Whether the tiles, one on each multiprocessor at a time, leave so many idle in their last round that small tiles, which multiply
    about 0.76 times as fast, would be faster. lola with 1024→4096 in bfloat16 on an H100, 128 × 256 against 64 × 128: with 1448 rows, 0.73 of
    the places taken, 49.5 and 48.6 µs; with 1620 rows, 0.79 of them, 49.0 and 54.9."""
    tiles, places = triton.cdiv(M, BLOCK_M) * triton.cdiv(N, BLOCK_N), multiprocessors(device)
    return tiles > places and tiles < 0.76 * triton.cdiv(tiles, places) * places


@triton.jit
def grouped(pid, rows, columns, GROUP: tl.constexpr):
    """The pid-th of rows × columns blocks, in bands of GROUP rows: programs that run together share x and W in L2."""
    first = pid // (GROUP * columns) * GROUP
    height = tl.minimum(rows - first, GROUP)
    place = pid % (GROUP * columns)
    return first + place % height, place // height


@triton.jit
def nearest_tf32(v):
    """v rounded to TF32. Tensor cores drop the low 13 bits instead, always towards 0, and such errors add up over K."""
    return ((v.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def multiply(a, b, acc, PRECISION: tl.constexpr):
    """acc + a @ b, where PRECISION is that of float32."""
    if a.dtype == tl.float32:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    else:
        acc = tl.dot(a, b, acc)
    return acc
