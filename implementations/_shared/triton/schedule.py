"""Which tiles the programs of linear_gradients.py have: those of the shortest launch by a simple model of it."""

import functools
import itertools

import triton

from implementations._shared.gpu import multiprocessors
from implementations._shared.triton.limits import most_stages
from implementations._shared.triton.matmul import padded
from implementations._shared.triton.product import product_bytes, slab

# µs on an H200, of which the ratios alone count: a step costs some and its multiplications, a program its first loads and its stores,
# another launch its gap
STEP, MULTIPLIED, PROGRAM, STORED, LAUNCH = 0.1, 0.3 / (128 * 128), 1.0, 0.5 / (128 * 128), 3.0
PART = 2e-6  # an element of a part: written and read again in float32


def choose(case, device, K, N, aligned, most_parts=1, widest=256):
    """The tunables for x (M, K) and dz (M, N): both tiles, dx's with `widest` columns at most, the parts of dW where there may be
    more than one, warps and stages."""
    nk, wide = case.options["w_layout"] == "nk", 256 if device.capability[0] == 9 and case.itemsize == 2 else 128
    sides = (64, 128, wide) if aligned else (32, 64)
    chosen = _best(case.sizes["M"], K, N, nk, sides, slab(case, aligned), most_parts, widest, multiprocessors(device))
    largest = max(chosen["DX_M"] * chosen["DX_N"], chosen["DW_M"] * chosen["DW_N"])
    chosen = chosen | {"num_warps": 8 if largest >= 128 * 128 else 4}

    def shared(stages):
        return max(product_bytes(case, *(chosen[f"{of}_{side}"] for side in "MNK"), stages) for of in ("DX", "DW"))

    return chosen | {"num_stages": most_stages(device, 4, shared)}


@functools.lru_cache(4096)
def _best(M, K, N, nk, sides, k, most_parts, widest, sms):
    """The tiles and parts whose launch is shortest; of equals the first, which is the smallest."""
    rows, columns = (N, K) if nk else (K, N)
    few = {
        "DX_K": min(k * (2 if M <= 16 else 1), padded(N)),
        "DW_K": min(k, padded(M)),
    }  # one token: W passes by, and nothing else
    parts = [1 << i for i in range(most_parts.bit_length()) if 1 << i <= most_parts]
    inputs = _tiles(M, K, [side for side in sides if side <= widest])
    best = None
    for (dx_m, dx_n), (dw_m, dw_n), split in itertools.product(inputs, _tiles(rows, columns, sides), parts):
        dx = _cost(dx_m, dx_n, few["DX_K"], N)
        dW = _cost(dw_m, dw_n, few["DW_K"], triton.cdiv(M, split))
        of_dx = triton.cdiv(M, dx_m) * triton.cdiv(K, dx_n)
        of_dW = triton.cdiv(rows, dw_m) * triton.cdiv(columns, dw_n) * split
        time = _makespan(sms, *((of_dx, dx, of_dW, dW) if dx >= dW else (of_dW, dW, of_dx, dx)))
        time += (LAUNCH + PART * K * N * split) if split > 1 else 0
        if best is None or time < best[0]:
            best = (
                time,
                {"DX_M": dx_m, "DX_N": dx_n, "DW_M": dw_m, "DW_N": dw_n} | ({"SPLIT": split} if most_parts > 1 else {}),
            )
    return best[1] | few


def _tiles(rows, columns, sides):
    """Tiles of these sides, no side larger than the result asks for; 256 columns go with 128 rows, 32 rows where rows start anywhere."""
    tall = [m for m in sides if m <= 128] if sides[0] > 32 else [32]
    least = [(min(m, padded(rows)), min(n, padded(columns))) for m in tall for n in (32, *sides)]
    return list(dict.fromkeys((m, n) for m, n in least if n < 256 or m == 128))


def _cost(rows, columns, k, terms):
    """A program's time."""
    steps = triton.cdiv(terms, k)
    return PROGRAM + STORED * rows * columns + steps * (STEP + MULTIPLIED * max(64, rows) * columns * k / 64)


def _makespan(sms, first, long, second, short):
    """When `first` programs and then `second` ones are over, each begun where a multiprocessor is free."""
    whole, rest = divmod(first, sms)
    low, high = 0.0, (triton.cdiv(first, sms)) * long + triton.cdiv(second, sms) * short
    begun = [(sms - rest, whole * long), (rest, (whole + 1) * long)]
    latest = max(at for count, at in begun if count)
    for _ in range(16):
        middle = (low + high) / 2
        done = sum(count * max(0, int((middle - at) / short + 1e-9)) for count, at in begun)
        low, high = (low, middle) if done >= second and middle >= latest else (middle, high)
    return high
