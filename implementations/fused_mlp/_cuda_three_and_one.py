"""fused_mlp in CUDA with two launches for four layers: KERNEL=three_and_one of cuda.py, where hopper/perceptron.cuh takes the first three, but
with no fourth behind them, since the third is too wide for it, or the fourth.

The tunables of the first launch are those of KERNEL=warpgroup (perceptron_warpgroup.py), and of the second one those of layer 4
(_shared/cuda/perceptron_layers.py).
"""

from dataclasses import replace

from implementations._shared.cuda import perceptron_layers as layers
from implementations._shared.cuda import perceptron_warpgroup
from implementations._shared.cuda.launch import in_turn, of_launch, prefixed
from implementations._shared.cuda.perceptron import widths
from implementations._shared.gpu import rows_are_aligned

# What three layers take longer where the third is wider than 64 columns: 1000 and 20000 rows of 100-400-200-80-10 took an H200 21.6 and 43.4 µs, by layers
# 15.0 and 59.0
WIDER_CLOCKS = 14000


def first(case):
    """The case of the first three layers."""
    return replace(case, sizes={**case.sizes, "LAYERS": 3, "N4": 1}, options={**case.options, "last": "relu"})


def no_such_case(case):
    """Why there is no instance for the case on any device, or None."""
    if case.sizes["LAYERS"] != 4 or not rows_are_aligned(case, case.sizes["N3"]):
        return "KERNEL=three_and_one is for four layers, of which the third has whole vectors of 16 bytes"
    if perceptron_warpgroup.no_such_case(case) is None:
        return "KERNEL=warpgroup has all four layers in one launch"
    return perceptron_warpgroup.no_such_case(first(case))


def is_turned(case):
    """Whether `prepare` turns W of the first three layers for it."""
    return no_such_case(case) is None and perceptron_warpgroup.is_turned(first(case))


def prepared(case, arrays):
    """() or the W of the first three layers as (K, N). `arrays` are W1, b1, W2, b2, …"""
    return perceptron_warpgroup.prepared(first(case), arrays[:6]) if is_turned(case) else ()


def config(case, device):
    """The config, or None where it cannot run."""
    if no_such_case(case):
        return None
    own = perceptron_warpgroup.of_tile(first(case), device)
    return own and own | {"KERNEL": "three_and_one"} | of_last(case, device)


def of_last(case, device):
    """The tunables of layer 4."""
    return prefixed("layer4", layers.layer_config(layers.layers(case)[3].product, device))


def clocks(case, device, config):
    """Clocks that both launches are expected to take."""
    last = layers.layer_clocks(layers.layers(case)[3].product, device, of_launch("layer4", config))
    wider = WIDER_CLOCKS if case.sizes["N3"] > 64 else 0
    return perceptron_warpgroup.clocks(first(case), device, config) + wider + last


def fits(case, device, config):
    """Why a config cannot run, or None."""
    if reason := no_such_case(case) or perceptron_warpgroup.fits(first(case), device, config):
        return reason
    reason = layers.layer_fits(layers.layers(case)[3].product, device, of_launch("layer4", config))
    return reason and f"layer4: {reason}"


def launches(file, layers_file, case, device, config):
    """The launch of mlp_warpgroup of `file`, and that of layer 4 of `layers_file`, which reads what it writes."""
    last = layers.layer_launch(layers_file, layers.layers(case)[3], device, of_launch("layer4", config))
    return in_turn(perceptron_warpgroup.launch(file, first(case), device, config), last)


def call(described, case):
    """A function of x (M, N0), W1, b1, W2, b2, …, what perceptron_layers.py has `prepared`, and this module, which returns (M, N4)."""
    one, product = perceptron_warpgroup.call(described[0], first(case)), layers.layers(case)[3].product
    end = described[1].returning({3: (case.sizes["M"], widths(case)[-1])}, product.size("M", "K", "N"), absent=(4,))
    places = layers.prepared_layers(case)
    W4 = 9 + places.index(4) if 4 in places else 7
    turned = 9 + len(places)

    def run(*arguments):
        return end(one(*arguments[:7], *arguments[turned:]), arguments[W4], arguments[8])

    return run
