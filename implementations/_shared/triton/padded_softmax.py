"""Causal softmax with padding in Triton: kernels that padded_softmax and shcsa launch, and the choice of their tiles.

    row         a program has one whole row in its registers. It reads what is visible, once, and writes the whole row.
    online      a program has one row of any length, in blocks. A first pass over the visible blocks keeps a running maximum
                and sum for each place in the block; a second reads them again, last block first, because that is what L2
                still holds, and writes all blocks.

Long rows begin first, so that short ones fill the end of the launch. Loads are masked by whole vectors of 16 bytes, which
the visible range may cut anywhere; what they bring beside it, NaN or not, is replaced. T is a compile-time constant, n_padd
is read from the device.
"""

import triton
import triton.language as tl

from implementations._shared.gpu import reads_padding
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit
from implementations._shared.triton.softmax import LONGEST, LOWEST

TUNABLES = {
    "row": {"num_warps": (1, 2, 4, 8, 16, 32)},
    "online": {"BLOCK": (64, 128, 256, 512, 1024, 2048, 4096, 8192), "num_warps": (1, 2, 4, 8, 16)},
}


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    if variant == "row" and case.sizes["T"] > LONGEST:
        return f"a row of more than {LONGEST} elements does not fit in a program's registers: online takes it"
    return None


def config(case, variant, device):
    """The tunables of a variant: warps for 16 elements a thread, 32 in the longest rows of `row`. `online` has columns of a
    block as well; a row of less than four blocks takes smaller ones."""
    whole = triton.next_power_of_2(case.sizes["T"])
    if variant == "row":
        return {"num_warps": min(16 if whole <= 16384 else 32, max(1, whole // 512))}
    block = min(4096, max(64, whole // 4))
    return {"BLOCK": block, "num_warps": max(1, block // 512)}


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    # whole rows, or a maximum, a sum and an element for each place in a block
    values = triton.next_power_of_2(case.sizes["T"]) if variant == "row" else 3 * config["BLOCK"]
    return misfit(device, config, values=values)


def launches(case, variant, device, config):
    """The one launch of every variant: a program a row."""
    T = case.sizes["T"]
    pointer = TYPES[case.dtype]
    options = {"T": T, "VECTOR": 16 // case.itemsize}
    if variant == "row":
        options |= {"BLOCK": triton.next_power_of_2(T), "EARLY": reads_padding(case)}
    signature = {"att": pointer, "n_padd": "*i32", "y": pointer}
    return (launch_with(config, row if variant == "row" else online, signature, options, (T,)),)


@triton.jit
def visible_scores(
    att, columns, n, i, T: tl.constexpr, VECTOR: tl.constexpr, POLICY: tl.constexpr, EARLY: tl.constexpr
):
    """The scores (BLOCK,) of row i, which begins at att, in float32, -inf where hidden; and what is visible. EARLY: padding is read too, by a
    load that does not wait for n."""
    vectors = columns // VECTOR
    touched = (vectors <= i // VECTOR) & (columns < T)
    if not EARLY:
        touched &= vectors >= n // VECTOR
    visible = (columns >= n) & (columns <= i)
    v = tl.load(att + columns, mask=touched, other=float("-inf"), eviction_policy=POLICY).to(tl.float32)
    return tl.where(visible, v, float("-inf")), visible


@triton.jit
def row(att, n_padd, y, T: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr, VECTOR: tl.constexpr):
    """Row T - 1 - program. What is read leaves L2 first, which keeps y for whoever reads it next."""
    i = T - 1 - tl.program_id(0)
    n = tl.maximum(tl.load(n_padd), 0)
    columns = tl.arange(0, BLOCK)
    start = i.to(tl.int64) * T
    v, visible = visible_scores(att + start, columns, n, i, T, VECTOR, "evict_first", EARLY)
    e = tl.exp(v - tl.max(v, 0))  # NaN in a row that sees nothing, or nothing but -inf; the former is all hidden
    z = tl.where(visible, e * (1.0 / tl.sum(e, 0)), 0.0)
    tl.store(y + start + columns, z.to(y.dtype.element_ty), mask=columns < T)


@triton.jit
def online(att, n_padd, y, T: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """Row T - 1 - program."""
    i = T - 1 - tl.program_id(0)
    n = tl.maximum(tl.load(n_padd), 0)
    place = tl.arange(0, BLOCK)
    att += i.to(tl.int64) * T
    y += i.to(tl.int64) * T
    # from the lowest finite number a first -inf is as far as from any other: -inf - -inf would be NaN
    highest = tl.full([BLOCK], LOWEST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(n // BLOCK * BLOCK, i + 1, BLOCK):
        v, _ = visible_scores(att, start + place, n, i, T, VECTOR, "", False)
        rescale = tl.exp(-tl.abs(v - highest))  # of the sum if v is the new maximum, else of v
        total = tl.where(v > highest, total * rescale + 1.0, total + rescale)
        highest = tl.maximum(highest, v)
    m = tl.max(highest, 0)
    inverse = 1.0 / tl.sum(total * tl.exp(highest - m), 0)  # +inf here makes the whole row NaN, as exp(inf - inf)
    LAST: tl.constexpr = (T - 1) // BLOCK * BLOCK
    for passed in range(0, T, BLOCK):
        columns = LAST - passed + place
        v, visible = visible_scores(att, columns, n, i, T, VECTOR, "", False)
        z = tl.where(visible, tl.exp(v - m) * inverse, 0.0)
        tl.store(y + columns, z.to(y.dtype.element_ty), mask=columns < T)
