"""The first two layers of a perceptron with few rows and many weights, in Triton. `case` is one of fused_mlp, or a part of a model's.

A tile of rows that goes through all layers in one program (perceptron.py) streams all weights through one multiprocessor, and few rows
are few programs. Here a program has a tile of rows and BLOCK1 columns of layer 1: it makes them, and multiplies them with their rows of
W2 at once. Each weight is read by as many programs as there are tiles of rows.

    share   relu(x @ W1[:, block] + b1[block]) @ W2[block, :] → sums (shares, M, N2), float32
    total   of outer_product.py: the shares added, bias and activation
"""

import functools

import triton
import triton.language as tl

from implementations._shared.dlrm import perceptron as perceptron_case
from implementations._shared.gpu import is_ieee, multiprocessors
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit, narrowed_to_fit
from implementations._shared.triton.matmul import multiply, padded
from implementations._shared.triton.perceptron import first_layer, hidden, weights, x_rows

ROWS = 16  # of a tile


def later_case(case):
    """The case of the layers behind, or None where there are none."""
    widths = case.size("N2", "N3", "N4")[: case.sizes["LAYERS"] - 1]
    return perceptron_case(case, case.options["last"], *widths) if len(widths) > 1 else None


def config(case, device):
    """The tunables of `share`: as many columns a program as leave no multiprocessor without one."""
    M, N0, N1, N2 = case.size("M", "N0", "N1", "N2")
    tiles, BLOCK1 = triton.cdiv(M, ROWS), 64
    while BLOCK1 > 16 and tiles * triton.cdiv(N1, BLOCK1) < 0.9 * multiprocessors(device):
        BLOCK1 //= 2
    BLOCK_K = min(64 if is_ieee(case) else 128, max(32, padded(N0)))
    BLOCK2 = min(64 if is_ieee(case) else 128, padded(N2))
    own = {"BLOCK_M": ROWS, "BLOCK_K": BLOCK_K, "BLOCK1": BLOCK1, "BLOCK2": BLOCK2, "num_warps": 4, "num_stages": 3}
    return narrowed_to_fit(own, ("BLOCK2", "BLOCK1", "BLOCK_K"), functools.partial(fits, case, device))


def fits(case, device, config, pitch=None):
    """Why a config of `share` cannot run, or None."""
    BLOCK_M, BLOCK_K, BLOCK1, BLOCK2 = (config[name] for name in ("BLOCK_M", "BLOCK_K", "BLOCK1", "BLOCK2"))
    anywhere = device.capability[0] == 9 and (pitch or case.sizes["N0"]) * case.itemsize % 16 and not is_ieee(case)
    if anywhere and (BLOCK_K < 32 or BLOCK_M >= 64):  # perceptron.py says why
        return "rows of x that start anywhere need BLOCK_K=32 at least and BLOCK_M=32 at most"
    slabs = max((BLOCK_M + BLOCK1) * BLOCK_K, BLOCK1 * BLOCK2) * config["num_stages"]
    shared = (slabs + BLOCK_M * BLOCK1 + BLOCK1 * BLOCK2) * case.itemsize
    values = BLOCK_M * (BLOCK1 + BLOCK2) + BLOCK_K * max(BLOCK_M, BLOCK1) // 2
    return misfit(device, config, [name for name in config if name.startswith("BLOCK")], values, shared)


def shares_of(case, config):
    """How many sums there are of each element of layer 2."""
    return triton.cdiv(case.sizes["N1"], config["BLOCK1"])


def launch(case, config, pitch=None):
    """The launch of `share`: (x, W1, b1, W2, M, sums). `pitch` is that of perceptron.launches."""
    M, N0, N1, N2 = case.size("M", "N0", "N1", "N2")
    pointer = TYPES[case.dtype]
    signature = {"x": pointer, "W1": pointer, "b1": pointer, "W2": pointer, "M": "i32", "sums": "*fp32"}
    options = {"X0": pitch or N0, "N0": N0, "N1": N1, "N2": N2, "NK": case.options["w_layout"] == "nk"}
    grid = triton.cdiv(M, config["BLOCK_M"]) * shares_of(case, config)
    return launch_with(config, share, signature, options | {"PRECISION": case.precision}, (grid,))


@triton.jit(do_not_specialize=["M"])
def share(
    x, W1, b1, W2, M, sums,
    X0: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, NK: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK1: tl.constexpr, BLOCK2: tl.constexpr,
):  # fmt: skip
    SHARES: tl.constexpr = (N1 + BLOCK1 - 1) // BLOCK1
    part = tl.program_id(0) % SHARES
    rows = (tl.program_id(0) // SHARES * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    x_tile = x_rows(x, rows, 0, M, X0, BLOCK_K)
    z = first_layer(x, x_tile, W1, rows, part * BLOCK1, M, X0, N0, N1, NK, PRECISION, BLOCK_M, BLOCK_K, BLOCK1)
    h = hidden(z, b1, part * BLOCK1, N1, BLOCK1, x.dtype.element_ty)
    to = sums + (part.to(tl.int64) * M + rows[:, None]) * N2
    for n0 in range(0, N2, BLOCK2):
        acc = tl.zeros([BLOCK_M, BLOCK2], tl.float32)
        acc = multiply(h, weights(W2, part * BLOCK1, n0, N1, N2, NK, BLOCK1, BLOCK2), acc, PRECISION)
        n = n0 + tl.arange(0, BLOCK2)
        tl.store(to + n[None, :], acc, mask=(rows < M)[:, None] & (n < N2)[None, :])
