"""dlrm in Triton: what a call launches, all of it kernels of _shared/triton, and the choice of their tiles.

    dot     bottom (dense perceptron) → interaction, which hashes and looks up for itself → top (prediction)      3 launches
    outer   bottom → sparse (look-up) → outer, total (the prediction's first layer, by outer_product.py)
            → top (its other layers, if there are any)                                                           5

With `naive`, which compares every id with a whole list, programs have samples of one feature: there look-up and dots are two
launches.
"""

from implementations._shared import dlrm
from implementations._shared.dlrm import dense_case, interaction_case, later_layers_case, prediction_case, sparse_case
from implementations._shared.triton import interactions, lookup, outer_product, perceptron
from implementations._shared.triton.launch import by_launch, prefixed
from implementations._shared.triton.limits import first_reason

TUNABLES = {  # `sparse`, `outer` and `total` are launches of interaction=outer alone, `sparse` of naive as well
    ("modulus", "improved", "naive"): {
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
    "naive": {"sparse_BLOCK_LIST": (64, 128, 256), "sparse_num_stages": (1, 2, 3, 4)},
}  # fmt: skip


def is_outer(case):
    return case.options["interaction"] == "outer"


def looks_up_apart(case, variant):
    """Whether the look-up is a launch of its own: outer products read each vector many times."""
    return variant == "naive" or is_outer(case)


def top_case(case):
    """The perceptron behind the interaction: all of the prediction, or what is left of it behind the first layer; None if nothing."""
    return later_layers_case(case) if is_outer(case) else prediction_case(case)


def perceptrons(case):
    """The perceptrons that a call launches, by launch."""
    parts = {"bottom": dense_case(case), "top": top_case(case)}
    return {name: part for name, part in parts.items() if part}


def pitches(case):
    """How many elements a row of their inputs takes, of those perceptrons whose input this model writes with a pitch of its own."""
    return {} if is_outer(case) else {"top": dlrm.interaction_pitch(case)}


def columns_of_first(case):
    """How wide the prediction's first layer is."""
    return prediction_case(case).sizes["N1"]


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    if reason := dlrm.skip(case, variant, device) or lookup.skip(sparse_case(case), variant, device):
        return reason
    reasons = {name: perceptron.skip(part, variant, device) for name, part in perceptrons(case).items()}
    return first_reason(reasons)


def config(case, variant, device):
    """The tunables of a variant: those of each of its launches."""
    configs = {
        name: perceptron.config(part, variant, device, pitches(case).get(name))
        for name, part in perceptrons(case).items()
    }
    pairs = interaction_case(case)
    if is_outer(case):
        configs["outer"] = outer_product.config(pairs, columns_of_first(case), device)
        configs["total"] = outer_product.total_config(outer_product.shares_of(pairs, configs["outer"]))
    else:
        configs["interaction"] = interactions.config(pairs)
    if looks_up_apart(case, variant):
        configs["sparse"] = lookup.config(sparse_case(case), variant, device)
    return prefixed(configs)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    configs, pairs = by_launch(config), interaction_case(case)
    reasons = {
        name: perceptron.fits(part, variant, device, configs[name], pitches(case).get(name))
        for name, part in perceptrons(case).items()
    }
    if is_outer(case):
        reasons["outer"] = outer_product.fits(pairs, device, configs["outer"])
        if reasons["outer"] is None:
            shares = outer_product.shares_of(pairs, configs["outer"])
            reasons["total"] = outer_product.total_fits(device, configs["total"], shares)
    else:
        reasons["interaction"] = interactions.fits(pairs, device, configs["interaction"])
    if looks_up_apart(case, variant):
        reasons["sparse"] = lookup.fits(sparse_case(case), variant, device, configs["sparse"])
    return first_reason(reasons)


def launches(case, variant, device, config):
    """The launches of a call, in order. The outputs of each are inputs of later ones."""
    return tuple(named_launches(case, variant, device, config).values())


def named_launches(case, variant, device, config):
    """The same by their names."""
    configs, pairs = by_launch(config), interaction_case(case)
    mlps = {
        name: perceptron.launches(part, variant, device, configs[name], pitches(case).get(name))[0]
        for name, part in perceptrons(case).items()
    }
    made = {"bottom": mlps["bottom"]}
    if looks_up_apart(case, variant):
        (made["sparse"],) = lookup.launches(sparse_case(case), variant, device, configs["sparse"])
    if is_outer(case):
        activation = "relu" if "top" in mlps else "sigmoid"
        made["outer"], made["total"] = outer_product.launches(
            pairs, columns_of_first(case), activation, configs["outer"], configs["total"]
        )
    elif variant == "naive":
        made["interaction"] = interactions.launch(pairs, configs["interaction"], pitch=pitches(case)["top"])
    else:
        made["interaction"] = interactions.launch(
            pairs, configs["interaction"], variant, case.sizes["V"], pitches(case)["top"]
        )
    return made | {name: mlps[name] for name in ("top",) if name in mlps}


def run_model(case, given, launched, empty, shares, to_device):
    """y (M, 1). `launched` are the launches by name, each a function of its inputs and of what it fills, which it returns.
    `empty(shape, dtype)` describes that, in the dtype of the weights by None; `shares` is how many sums `total` adds; `to_device`
    moves the known values of `naive`."""
    (M, F, D), P = case.size("M", "F", "D"), columns_of_first(case)
    vector, found = launched["bottom"](given.dense, *given.bottom, M, empty((M, D))), None
    if "sparse" in launched:
        prepared, count = given.prepared, M * F
        if len(prepared) == 1:  # naive
            prepared, count = (to_device(prepared[0]),), M
        found = launched["sparse"](given.ids, given.tables, given.offsets, *prepared, count, empty((M, F, D)))
    if "outer" in launched:
        W, b, *layers = given.top
        sums = launched["outer"](vector, found, W, M, empty((shares, M, P), "float32"))
        first = launched["total"](sums, b, M * P, empty((M, P)))
        return launched["top"](first, *layers, M, empty((M, 1))) if layers else first
    sparse = (given.ids, given.tables, given.offsets, *given.prepared) if found is None else (found,)
    crossed = launched["interaction"](vector, *sparse, empty((M, dlrm.interaction_pitch(case))))
    return launched["top"](crossed, *given.top, M, empty((M, 1)))


def shares_of(launches):
    """How many sums there are of each element of the first layer, among launches by name; 0 where it is not apart."""
    return launches["total"].constexprs["SHARES"] if "total" in launches else 0
