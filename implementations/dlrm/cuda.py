"""dlrm in CUDA C++: the kernels of fused_mlp, interaction and embedding, from _shared/cuda.

    dot     bottom (dense perceptron) → interaction, which hashes and looks up for itself → top (prediction)      3 launches
    outer   bottom → sparse (look-up) → outer, total (the prediction's first layer, by outer_product.py)
            → top (its other layers, if there are any)                                                            5

KERNEL=few_rows of a perceptron is fused_mlp's for few rows (mlp_few_rows, mlp_few_rows_half).

With `naive`, which compares every id with a whole list, a block has samples of one feature: there look-up and dots are two launches,
behind a copy of the known values.
"""

from pathlib import Path

from implementations._shared import dlrm
from implementations._shared.cuda import interactions, lookup, outer_product, perceptron
from implementations._shared.cuda.launch import in_turn, not_one_of, of_launch, prefixed, unsupported
from implementations._shared.cuda.perceptron_latency import comes_first, few_rows
from implementations._shared.dlrm import (
    dense_case,
    first_layer,
    interaction_case,
    is_outer,
    looks_up_apart,
    pairs_skip,
    perceptrons,
    prediction_case,
    sparse_case,
    top_case,
)

BACKEND = "torch"
FUSED = True
VARIANTS = {
    "modulus": ("hidden", "interaction"),
    "improved": ("hidden", "interaction"),
    "naive": ("hidden", "interaction"),
}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (  # of kernels that other folders have too, which expect the same on all targets
    {"variant": "modulus", "case": "main", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "modulus", "case": "main", "dtype": "bfloat16", "options": {"interaction": "outer"}, "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=64"},
    {"variant": ("naive", "improved"), "case": "main", "dtype": "bfloat16", "options": {"hashing": "lookup"},
     "arch": "sm_90a", "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    ("modulus", "improved", "naive"): {
        "bottom_KERNEL": ("tiles", "few_rows"), "top_KERNEL": ("tiles", "few_rows"),
        "bottom_BLOCK_M": (4, 8, 16, 32, 64, 128), "bottom_BLOCK_N": (64, 128, 256), "bottom_CLUSTER": (1, 2, 4, 8), "bottom_num_stages": (2, 3, 4, 6, 8),
        "interaction_BLOCK_M": (1, 2, 4, 8), "interaction_BLOCK_K": (16, 32, 64, 128, 256, 512), "interaction_BLOCK_F": (32, 64, 128, 256, 512),
        "interaction_num_warps": (1, 2, 4, 8),
        "top_BLOCK_M": (4, 8, 16, 32, 64, 128), "top_BLOCK_N": (64, 128, 256), "top_CLUSTER": (1, 2, 4, 8), "top_num_stages": (2, 3, 4, 6, 8),
        "outer_BLOCK_M": (16, 64, 128), "outer_BLOCK_N": (64, 128), "outer_PARTS": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), "outer_num_stages": (2, 3, 4),
    },
    ("modulus", "improved"): {"sparse_LOOKUPS": (8, 16, 32, 56, 64, 112, 128), "sparse_num_warps": (2, 4, 8)},
    "naive": {"sparse_SAMPLES": (4, 8, 16), "sparse_num_warps": (4, 8, 16)},
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    if reason := unsupported(device) or dlrm.skip(case, variant, device):
        return reason
    if not is_outer(case) and (reason := pairs_skip(interaction_case(case))):
        return reason
    reasons = ((name, perceptron.skip(part, device)) for name, part in perceptrons(case).items())
    return next((f"{name}: {reason}" for name, reason in reasons if reason), None)


def prepare(case, variant, *inputs):
    from implementations._shared.torch.lookup import prepared_for_kernels

    given = dlrm.by_part(case, inputs)
    return prepared_for_kernels(variant, given.offsets, given.known)


def config(case, variant, device):
    chosen = {}
    for name, part in perceptrons(case).items():
        chosen |= prefixed(name, _perceptron_config(part, device))
    if is_outer(case):
        chosen |= prefixed("outer", outer_product.config(interaction_case(case), first_layer(case)[0], device))
    else:
        chosen |= prefixed("interaction", interactions.config(interaction_case(case), device))
    if looks_up_apart(case, variant):
        chosen |= prefixed("sparse", lookup.config(sparse_case(case), variant, device))
    return chosen


def fits(case, variant, device, config):
    parts = perceptrons(case).items()
    reasons = {name: _perceptron_fits(part, device, of_launch(name, config)) for name, part in parts}
    if is_outer(case):
        reasons["outer"] = outer_product.fits(interaction_case(case), device, of_launch("outer", config))
    else:
        reasons["interaction"] = interactions.fits(interaction_case(case), device, of_launch("interaction", config))
    if looks_up_apart(case, variant):
        reasons["sparse"] = lookup.fits(variant, of_launch("sparse", config))
    return next((f"{launch}: {reason}" for launch, reason in reasons.items() if reason), None)


def _perceptron_config(part, device):
    few = few_rows(part).config(part, device)
    if few and comes_first(part):
        return few
    return {"KERNEL": "tiles"} | perceptron.config(part, device)


def _perceptron_fits(part, device, config):
    own = few_rows(part) if config["KERNEL"] == "few_rows" else perceptron
    return not_one_of("KERNEL", config["KERNEL"], ("tiles", "few_rows")) or own.fits(part, device, config)


def _perceptron(part, config, pitch=None):
    """The launch of a perceptron, whose rows of x take `pitch` elements."""
    if config["KERNEL"] == "few_rows":
        return few_rows(part).launch(FILE, part, config)
    return perceptron.launch(FILE, part, config, pitch)


def _pitch(case, config):
    """Elements from one sample's row of the interaction to the next. `few_rows` takes rows behind one another."""
    whole_vectors = config["top_KERNEL"] == "tiles"
    return dlrm.interaction_pitch(case) if whole_vectors else dlrm.interaction_width(case)


def launches(case, variant, device, config):
    bottom = _perceptron(dense_case(case), of_launch("bottom", config))
    sparse = ()
    if looks_up_apart(case, variant):
        sparse = (lookup.launch(FILE, sparse_case(case), variant, of_launch("sparse", config)),)
    if is_outer(case):
        first = outer_product.launches(FILE, interaction_case(case), *first_layer(case), of_launch("outer", config))
        top = top_case(case)
        later = (_perceptron(top, of_launch("top", config)),) if top else ()
        return in_turn(bottom, *sparse, *first, *later)
    pitch, own = _pitch(case, config), of_launch("interaction", config)
    interaction = interactions.launch(FILE, interaction_case(case), own, "" if sparse else variant, pitch)
    return in_turn(bottom, *sparse, interaction, _perceptron(prediction_case(case), of_launch("top", config), pitch))


def build(case, variant, device, config):
    """call(dense (M, N0), ids (M, F), weights …) → (M, 1)."""
    bottom, *others = launches(case, variant, device, config)
    dense, parts = perceptron.call(bottom, dense_case(case)), dlrm.parts_of(case)
    apart = looks_up_apart(case, variant)
    look_up = lookup.call(others.pop(0), sparse_case(case), variant) if apart else None
    predict = (
        _behind_outer_products(case, others, config) if is_outer(case) else _behind_dots(case, variant, others, config)
    )

    def call(*arguments):
        given = parts(arguments)
        vector, sparse = dense(given.dense, *given.bottom), (given.ids, given.tables, given.offsets, *given.prepared)
        return predict(vector, (look_up(*sparse),) if look_up else sparse, given.top)

    return call


def _behind_dots(case, variant, described, config):
    """A function of the dense vectors, the sparse ones or what they are looked up by, and the prediction's arrays."""
    interaction, top = described
    hashing = "" if looks_up_apart(case, variant) else variant
    interact = interactions.call(interaction, interaction_case(case), hashing, _pitch(case, config))
    prediction = perceptron.call(top, prediction_case(case))
    return lambda vector, sparse, arrays: prediction(interact(vector, *sparse), *arrays)


def _behind_outer_products(case, described, config):
    """The same."""
    columns, _ = first_layer(case)
    first = outer_product.call(described[:2], interaction_case(case), columns, of_launch("outer", config))
    if not described[2:]:
        return lambda vector, sparse, arrays: first(vector, *sparse, *arrays)
    later = perceptron.call(described[2], top_case(case))
    return lambda vector, sparse, arrays: later(first(vector, *sparse, *arrays[:2]), *arrays[2:])
