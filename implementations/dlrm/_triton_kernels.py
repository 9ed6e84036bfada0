"""dlrm in Triton: what a call launches, all of it kernels of _shared/triton, and the choice of their tiles.

    dot     bottom (dense perceptron) → interaction, which hashes and looks up for itself → top (prediction)      3 launches
    outer   bottom → sparse (look-up) → outer, total (the prediction's first layer, by outer_product.py)
            → top (its other layers, if there are any)                                                           5

modulus_split, improved_split: few rows leave most multiprocessors without a program, so each perceptron is three launches (few_rows.py):
bottomshare, bottomsum (its first two layers) and bottom (the others).

With `naive`, which compares every id with a whole list, programs have samples of one feature: there look-up and dots are two
launches.
"""

import math

from implementations._shared import dlrm
from implementations._shared.dlrm import (
    first_layer,
    interaction_case,
    is_outer,
    looks_up_apart,
    perceptrons,
    sparse_case,
    top_case,
)
from implementations._shared.triton import few_rows, interactions, lookup, outer_product, perceptron
from implementations._shared.triton.launch import by_launch, prefixed
from implementations._shared.triton.limits import first_reason

TUNABLES = {  # `sparse`, `outer` and `total` are launches of interaction=outer alone, `sparse` of naive as well
    ("modulus", "improved", "naive", "modulus_split", "improved_split"): {
        "bottom_BLOCK_M": (16, 32, 64, 128), "bottom_BLOCK_K": (16, 32, 64, 128, 256, 512), "bottom_BLOCK1": (16, 32, 64, 128),
        "bottom_BLOCK3": (16, 32, 64), "bottom_num_warps": (4, 8), "bottom_num_stages": (1, 2, 3, 4),
        "interaction_BLOCK_F": (16, 32, 64), "interaction_BLOCK_D": (16, 32, 64, 128), "interaction_num_warps": (1, 2, 4),
        "interaction_num_stages": (1, 2, 3),
        "outer_BLOCK_M": (16, 32, 64, 128), "outer_BLOCK_N": (16, 32, 64, 128), "outer_BLOCK_J": (16, 32, 64, 128),
        "outer_PARTS": (1, 2, 4, 8, 16, 32), "outer_num_warps": (4, 8), "outer_num_stages": (1, 2, 3, 4),
        "total_BLOCK": (32, 64, 128, 256), "total_num_warps": (1, 2, 4, 8),
        "top_BLOCK_M": (16, 32, 64, 128), "top_BLOCK_K": (16, 32, 64, 128, 256, 512), "top_BLOCK1": (16, 32, 64, 128),
        "top_BLOCK3": (16, 32, 64), "top_num_warps": (4, 8), "top_num_stages": (1, 2, 3, 4),
        "sparse_BLOCK": (16, 32, 64, 128, 256), "sparse_BLOCK_D": (8, 16, 32, 64, 128, 256), "sparse_num_warps": (1, 2, 4, 8),
    },
    ("modulus_split", "improved_split"): {
        "bottomshare_BLOCK_M": (16, 32), "bottomshare_BLOCK_K": (32, 64, 128), "bottomshare_BLOCK1": (16, 32, 64),
        "bottomshare_BLOCK2": (32, 64, 128, 256), "bottomshare_num_warps": (2, 4, 8), "bottomshare_num_stages": (1, 2, 3, 4),
        "bottomsum_BLOCK": (32, 64, 128, 256), "bottomsum_num_warps": (1, 2, 4, 8),
        "topshare_BLOCK_M": (16, 32), "topshare_BLOCK_K": (32, 64, 128), "topshare_BLOCK1": (16, 32, 64),
        "topshare_BLOCK2": (32, 64, 128, 256), "topshare_num_warps": (2, 4, 8), "topshare_num_stages": (1, 2, 3, 4),
        "topsum_BLOCK": (32, 64, 128, 256), "topsum_num_warps": (1, 2, 4, 8),
    },
    "naive": {"sparse_BLOCK_LIST": (64, 128, 256), "sparse_num_stages": (1, 2, 3, 4)},
}  # fmt: skip


def hashing_of(variant):
    """modulus, improved or naive."""
    return variant.removesuffix("_split")


def split_perceptrons(case, variant):
    """Those that begin with the launches of few_rows.py, by name."""
    parts = perceptrons(case).items() if variant.endswith("_split") else ()
    return {name: part for name, part in parts if part.sizes["LAYERS"] > 1}


def whole_perceptrons(case, variant):
    """The cases that perceptron.py's kernel launches by name: perceptrons, or what few_rows.py leaves of them."""
    split = split_perceptrons(case, variant)
    found = {n: few_rows.later_case(part) if n in split else part for n, part in perceptrons(case).items()}
    return {name: part for name, part in found.items() if part}


def pitch_of(case, name, part=None):
    """How many elements a row of the input of perceptron `name` takes, or None for as many as it has: the interaction writes rows that
    begin at 16 bytes, of which `part`, where a launch has a part of the perceptron alone, has to be the first."""
    first = part is None or part == perceptrons(case)[name]
    return dlrm.interaction_pitch(case) if name == "top" and first and not is_outer(case) else None


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    hashing = hashing_of(variant)
    if reason := dlrm.skip(case, hashing, device) or lookup.skip(sparse_case(case), hashing, device):
        return reason
    if hashing != variant and case.sizes["LAYERS"] == 1:
        return f"one layer has no second whose weights are shared out: {hashing} is the same"
    reasons = {name: perceptron.skip(part, variant, device) for name, part in whole_perceptrons(case, variant).items()}
    return first_reason(reasons)


def config(case, variant, device):
    """The tunables of a variant: those of each of its launches."""
    configs, pairs = {}, interaction_case(case)
    for name, part in split_perceptrons(case, variant).items():
        configs[f"{name}share"] = few_rows.config(part, device)
        configs[f"{name}sum"] = outer_product.total_config(few_rows.shares_of(part, configs[f"{name}share"]))
    for name, part in whole_perceptrons(case, variant).items():
        configs[name] = perceptron.config(part, variant, device, pitch_of(case, name, part))
    if is_outer(case):
        configs["outer"] = outer_product.config(pairs, first_layer(case)[0], device)
        configs["total"] = outer_product.total_config(outer_product.shares_of(pairs, configs["outer"]))
    else:
        configs["interaction"] = interactions.config(pairs)
    if looks_up_apart(case, variant):
        configs["sparse"] = lookup.config(sparse_case(case), hashing_of(variant), device)
    return prefixed(configs)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    configs, pairs, reasons = by_launch(config), interaction_case(case), {}
    for name, part in whole_perceptrons(case, variant).items():
        reasons[name] = perceptron.fits(part, variant, device, configs[name], pitch_of(case, name, part))
    for name, part in split_perceptrons(case, variant).items():
        own = configs[f"{name}share"]
        reasons[f"{name}share"] = few_rows.fits(part, device, own, pitch_of(case, name))
        if reasons[f"{name}share"] is None:
            shares = few_rows.shares_of(part, own)
            reasons[f"{name}sum"] = outer_product.total_fits(device, configs[f"{name}sum"], shares)
    if is_outer(case):
        reasons["outer"] = outer_product.fits(pairs, device, configs["outer"])
        if reasons["outer"] is None:
            shares = outer_product.shares_of(pairs, configs["outer"])
            reasons["total"] = outer_product.total_fits(device, configs["total"], shares)
    else:
        reasons["interaction"] = interactions.fits(pairs, device, configs["interaction"])
    if looks_up_apart(case, variant):
        reasons["sparse"] = lookup.fits(sparse_case(case), hashing_of(variant), device, configs["sparse"])
    return first_reason(reasons)


def launches(case, variant, device, config):
    """The launches of a call, in order. The outputs of each are inputs of later ones."""
    return tuple(named_launches(case, variant, device, config).values())


def named_launches(case, variant, device, config):
    """The same by their names."""
    configs, pairs = by_launch(config), interaction_case(case)
    made = perceptron_launches(case, "bottom", variant, device, configs)
    if looks_up_apart(case, variant):
        (made["sparse"],) = lookup.launches(sparse_case(case), hashing_of(variant), device, configs["sparse"])
    if is_outer(case):
        made["outer"], made["total"] = outer_product.launches(
            pairs, *first_layer(case), configs["outer"], configs["total"]
        )
    else:
        hashing, pitch = "" if variant == "naive" else hashing_of(variant), dlrm.interaction_pitch(case)
        made["interaction"] = interactions.launch(pairs, configs["interaction"], hashing, case.sizes["V"], pitch)
    return made | (perceptron_launches(case, "top", variant, device, configs) if top_case(case) else {})


def perceptron_launches(case, name, variant, device, configs):
    """The launches of one perceptron by their names."""
    made, part = {}, split_perceptrons(case, variant).get(name)
    if part:
        own, last = configs[f"{name}share"], part.sizes["LAYERS"] == 2
        activation, (M, N2) = part.options["last"] if last else "relu", part.size("M", "N2")
        made[f"{name}share"] = few_rows.launch(part, own, pitch_of(case, name))
        made[f"{name}sum"] = outer_product.total_launch(
            case.dtype, M, N2, few_rows.shares_of(part, own), activation, configs[f"{name}sum"]
        )
    if part := whole_perceptrons(case, variant).get(name):
        (made[name],) = perceptron.launches(part, variant, device, configs[name], pitch_of(case, name, part))
    return made


def outputs_of(case, variant, launches):
    """What each of the launches makes, by its name: (the shape, the numbers behind its inputs by their names)."""
    (M, F, D), P = case.size("M", "F", "D"), first_layer(case)[0]
    shapes = {
        "bottom": (M, D),
        "sparse": (M, F, D),
        "interaction": (M, dlrm.interaction_pitch(case)),
        "total": (M, P),
        "top": (M, 1),
    }
    shapes |= {f"{name}sum": (M, part.sizes["N2"]) for name, part in split_perceptrons(case, variant).items()}
    for sums, added in (("bottomshare", "bottomsum"), ("topshare", "topsum"), ("outer", "total")):
        if added in launches:
            shapes[sums] = (launches[added].constexprs["SHARES"], *shapes[added])
    counts = {name: M * F if name == "sparse" else math.prod(shapes[name]) for name in launches}
    return {
        name: (shapes[name], {n: v for n, v in (("M", M), ("count", counts[name])) if n in launch.signature})
        for name, launch in launches.items()
    }


def run_model(given, launched, to_device):
    """y (M, 1). `launched` are the launches by name, each a function of its arrays that returns what it makes; `to_device` moves the
    known values of `naive`."""

    def through(name, x, layers):
        if f"{name}share" in launched:
            W1, b1, W2, b2, *layers = layers
            x = launched[f"{name}sum"](launched[f"{name}share"](x, W1, b1, W2), b2)
        return launched[name](x, *layers) if layers else x

    vector, sparse = (
        through("bottom", given.dense, given.bottom),
        (given.ids, given.tables, given.offsets, *given.prepared),
    )
    if "sparse" in launched:
        *arrays, last = sparse
        sparse = (launched["sparse"](*arrays, to_device(last) if len(given.prepared) == 1 else last),)  # naive has one
    if "outer" in launched:
        W, b, *layers = given.top
        return through("top", launched["total"](launched["outer"](vector, *sparse, W), b), layers)
    return through("top", launched["interaction"](vector, *sparse), given.top)
