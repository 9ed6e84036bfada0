"""fused_mlp's backward modes in Triton: what triton.py and jax_triton.py launch there, and the choice of tiles.

Forward, a launch for each layer, because every hidden layer stays in memory. Backward a launch for each layer too, from the last:
from dz, the gradient by what the layer's activation gets, come dW, db and, through the ReLU of the layer below, that layer's dz
(_shared/triton/linear_gradients.py). A layer with a small W and many rows takes a second one, which adds up the parts of dW and db. A last
activation takes one before all: dz from dy and y.
"""

from itertools import pairwise

import triton
import triton.language as tl

from implementations._shared.triton import layer, linear_gradients
from implementations._shared.triton.launch import TYPES, by_launch, launch_with, prefixed
from implementations._shared.triton.limits import first_reason, misfit
from implementations._shared.triton.slopes import slope_from_value

MOST_PARTS = 64  # of a layer's dW


def widths(case):
    """The pairs (K, N) of the layers."""
    sizes = case.size("N0", "N1", "N2", "N3", "N4")[: case.sizes["LAYERS"] + 1]
    return list(pairwise(sizes))


def config(case, device):
    """The tunables of the launches of backward: `layer1` …, and `last` where there is an activation."""
    chosen = {
        f"layer{i}": linear_gradients.config(case, device, K, N, MOST_PARTS, widest=128)
        for i, (K, N) in enumerate(widths(case), 1)
    }
    return prefixed(chosen | ({"last": {"BLOCK": 1024, "num_warps": 4}} if case.options["last"] != "none" else {}))


def fits(case, device, config):
    """Why a config cannot run, or None."""
    own = by_launch(config)
    reasons = {"last": misfit(device, own["last"], values=3 * own["last"]["BLOCK"]) if "last" in own else None}
    for i, (K, N) in enumerate(widths(case), 1):
        reasons[f"layer{i}"] = linear_gradients.fits(case, device, own[f"layer{i}"], K, N)
    return first_reason(reasons)


def forward_launches(case, device):
    """`layer` of each layer."""
    pairs, last = widths(case), case.options["last"]
    return [layer.launch(case, device, K, N, last if i == len(pairs) else "relu") for i, (K, N) in enumerate(pairs, 1)]


def backward_launches(case, config):
    """(`last_gradient` or None, [(the launch of a layer, the one of its parts or None), …] from the last layer to the first)."""
    own, pairs = by_launch(config), widths(case)
    layers = []
    for i, (K, N) in reversed(list(enumerate(pairs, 1))):
        tile = own[f"layer{i}"]
        parts = linear_gradients.parts_launch(case, tile, K, N) if tile["SPLIT"] > 1 else None
        layers.append((linear_gradients.launch(case, tile, K, N, below=i > 1), parts))
    if "last" not in own:
        return None, layers
    pointer, count = TYPES[case.dtype], case.sizes["M"] * pairs[-1][1]
    signature = {"y": pointer, "dy": pointer, "count": "i32" if count < 2**31 else "i64", "dz": pointer}
    grid = (triton.cdiv(count, own["last"]["BLOCK"]),)
    return launch_with(own["last"], last_gradient, signature, {"ACTIVATION": case.options["last"]}, grid), layers


def gradient_launches(case, config):
    """Those of backward_launches, in order."""
    first, layers = backward_launches(case, config)
    return tuple(launch for launch in (first, *(one for both in layers for one in both)) if launch)


@triton.jit(do_not_specialize=["count"])
def last_gradient(y, dy, count, dz, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK of the `count` elements of dz."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(y + at, mask=at < count, other=0.0).to(tl.float32)
    behind = tl.load(dy + at, mask=at < count, other=0.0).to(tl.float32)
    tl.store(dz + at, (behind * slope_from_value(value, ACTIVATION)).to(dz.dtype.element_ty), mask=at < count)
