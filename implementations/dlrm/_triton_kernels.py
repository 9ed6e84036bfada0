"""dlrm in Triton: what a call launches, all of it kernels of _shared/triton, and the choice of their tiles.

    dot     bottom (dense perceptron) → interaction, which hashes and looks up for itself → top (prediction)      3 launches
    outer   bottom → sparse (look-up) → outer (each program a share of the first layer's sums, the products made on the way)
            → total (the shares added, bias, activation) → top, the other layers, if there are any                5

With `naive`, which compares every id with a whole list, programs have samples of one feature: there look-up and dots are two
launches.
"""

from implementations._shared import dlrm
from implementations._shared.dlrm import dense_case, interaction_case, prediction_case, sparse_case
from implementations._shared.triton import interactions, lookup, perceptron
from implementations._shared.triton.launch import by_launch, prefixed
from implementations._shared.triton.limits import first_reason

TUNABLES = {
    ("modulus", "improved", "naive"): {
        "bottom_BLOCK_M": (16, 32, 64, 128), "bottom_BLOCK_K": (16, 32, 64, 128, 256, 512), "bottom_BLOCK1": (16, 32, 64, 128),
        "bottom_BLOCK3": (16, 32, 64), "bottom_num_warps": (4, 8), "bottom_num_stages": (1, 2, 3, 4),
        "interaction_BLOCK_F": (16, 32, 64), "interaction_BLOCK_D": (16, 32, 64, 128), "interaction_num_warps": (1, 2, 4),
        "interaction_num_stages": (1, 2, 3),
        "top_BLOCK_M": (16, 32, 64, 128), "top_BLOCK_K": (16, 32, 64, 128, 256, 512), "top_BLOCK1": (16, 32, 64, 128),
        "top_BLOCK3": (16, 32, 64), "top_num_warps": (4, 8), "top_num_stages": (1, 2, 3, 4),
    },
    "naive": {
        "sparse_BLOCK": (16, 32, 64, 128), "sparse_BLOCK_LIST": (64, 128, 256), "sparse_BLOCK_D": (8, 16, 32, 64, 128),
        "sparse_num_warps": (2, 4, 8), "sparse_num_stages": (1, 2, 3, 4),
    },
}  # fmt: skip


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    if case.options["interaction"] == "outer":
        return "outer is not written yet"
    if reason := dlrm.skip(case, variant, device) or lookup.skip(sparse_case(case), variant, device):
        return reason
    for name, part in (("dense", dense_case(case)), ("prediction", prediction_case(case))):
        if reason := perceptron.skip(part, variant, device):
            return f"{name}: {reason}"
    return None


def config(case, variant, device):
    """The tunables of a variant: those of each of its launches."""
    configs = {
        "bottom": perceptron.config(dense_case(case), variant, device),
        "interaction": interactions.config(interaction_case(case)),
        "top": perceptron.config(prediction_case(case), variant, device),
    }
    if variant == "naive":
        configs["sparse"] = lookup.config(sparse_case(case), variant, device)
    return prefixed(configs)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    configs = by_launch(config)
    reasons = {
        "bottom": perceptron.fits(dense_case(case), variant, device, configs["bottom"]),
        "interaction": interactions.fits(interaction_case(case), device, configs["interaction"]),
        "top": perceptron.fits(prediction_case(case), variant, device, configs["top"]),
    }
    if variant == "naive":
        reasons["sparse"] = lookup.fits(sparse_case(case), variant, device, configs["sparse"])
    return first_reason(reasons)


def launches(case, variant, device, config):
    """The launches of a call, in order. The outputs of each are inputs of later ones."""
    configs = by_launch(config)
    (bottom,) = perceptron.launches(dense_case(case), variant, device, configs["bottom"])
    (top,) = perceptron.launches(prediction_case(case), variant, device, configs["top"])
    if variant == "naive":
        (sparse,) = lookup.launches(sparse_case(case), variant, device, configs["sparse"])
        return bottom, sparse, interactions.launch(interaction_case(case), configs["interaction"]), top
    return bottom, interactions.launch(interaction_case(case), configs["interaction"], variant, case.sizes["V"]), top
