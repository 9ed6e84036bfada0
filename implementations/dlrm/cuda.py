"""dlrm in CUDA C++: the kernels of fused_mlp, interaction and embedding, from _shared/cuda.

    dot     bottom (dense perceptron) → interaction, which hashes and looks up for itself → top (prediction)
    outer   bottom → sparse (look-up) → outer, total (the prediction's first layer, by outer_product.py)
            → top (its other layers, if there are any)

bottom and top are a launch for each layer, or one (perceptrons.py).

With `naive`, which compares every id with a whole list, a block has samples of one feature: there look-up and dots are two launches,
behind a copy of the known values.
"""

from itertools import chain, islice
from pathlib import Path

from fusebench.launchers import chained
from implementations._shared import dlrm
from implementations._shared.cuda import interactions, lookup, outer_product, perceptron_layers, perceptrons
from implementations._shared.cuda.launch import in_turn, of_launch, prefixed, unsupported
from implementations._shared.dlrm import (
    first_layer,
    interaction_case,
    is_outer,
    looks_up_apart,
    pairs_skip,
    sparse_case,
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
        ("bottom_KERNEL", "top_KERNEL"): ("layers", "tensor", "simt", "few_rows"),
        ("bottom_BLOCK_M", "top_BLOCK_M"): (4, 8, 16, 32, 64, 128), ("bottom_BLOCK_N", "top_BLOCK_N"): (64, 128, 256),
        ("bottom_CLUSTER", "top_CLUSTER"): (1, 2, 4, 8), ("bottom_num_stages", "top_num_stages"): (2, 3, 4, 6, 8),
        ("bottom_PREFETCH", "top_PREFETCH"): ("none", "next"),
        ("bottom_layer1_KERNEL", "bottom_layer2_KERNEL", "bottom_layer3_KERNEL", "bottom_layer4_KERNEL",
         "top_layer1_KERNEL", "top_layer2_KERNEL", "top_layer3_KERNEL"): ("tensor", "one_slab", "few_rows", "warpgroup", "split", "turned", "simt"),
        ("bottom_layer1_BLOCK_M", "bottom_layer2_BLOCK_M", "bottom_layer3_BLOCK_M", "bottom_layer4_BLOCK_M",
         "top_layer1_BLOCK_M", "top_layer2_BLOCK_M", "top_layer3_BLOCK_M"): (16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256),
        ("bottom_layer1_BLOCK_N", "bottom_layer2_BLOCK_N", "bottom_layer3_BLOCK_N", "bottom_layer4_BLOCK_N",
         "top_layer1_BLOCK_N", "top_layer2_BLOCK_N", "top_layer3_BLOCK_N"): (16, 32, 64, 128, 192, 256),
        ("bottom_layer1_CLUSTER", "bottom_layer2_CLUSTER", "bottom_layer3_CLUSTER", "bottom_layer4_CLUSTER",
         "top_layer1_CLUSTER", "top_layer2_CLUSTER", "top_layer3_CLUSTER"): (1, 2, 4, 8),
        ("bottom_layer1_num_stages", "bottom_layer2_num_stages", "bottom_layer3_num_stages", "bottom_layer4_num_stages",
         "top_layer1_num_stages", "top_layer2_num_stages", "top_layer3_num_stages"): (1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
        "interaction_BLOCK_M": (1, 2, 4, 8), "interaction_BLOCK_K": (16, 32, 64, 128, 256, 512), "interaction_BLOCK_F": (32, 64, 128, 256, 512),
        "interaction_num_warps": (1, 2, 4, 8),
        "outer_BLOCK_M": (16, 64, 128), "outer_BLOCK_N": (64, 128), "outer_PARTS": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), "outer_num_stages": (2, 3, 4),
    },
    ("modulus", "improved"): {"sparse_LOOKUPS": (8, 16, 32, 56, 64, 112, 128), "sparse_num_warps": (2, 4, 8)},
    "naive": {"sparse_SAMPLES": (4, 8, 16), "sparse_num_warps": (4, 8, 16)},
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")
LAYERS_FILE = Path(__file__).with_name("cuda_layers.cu")


def skip(case, variant, device):
    if reason := unsupported(device) or dlrm.skip(case, variant, device):
        return reason
    if not is_outer(case) and (reason := pairs_skip(interaction_case(case))):
        return reason
    return None


def prepare(case, variant, *inputs):
    """The W of the perceptrons as their layers' launches want them, those of bottom first; and what look-ups want."""
    from implementations._shared.torch.lookup import prepared_for_kernels

    given = dlrm.by_part(case, inputs)
    of_layers = [
        W
        for name, part in dlrm.perceptrons(case).items()
        for W in perceptron_layers.prepared(part, _arrays(case, name, given), _pitch(case, name))
    ]
    return *of_layers, *prepared_for_kernels(variant, given.offsets, given.known)


def _arrays(case, name, given):
    """W, b, W, b, … of a perceptron that is launched."""
    if name == "bottom":
        return given.bottom
    return given.top[2:] if is_outer(case) else given.top


def _pitch(case, name):
    """Elements that a row of x of a perceptron takes, or None for as many as it has: the interaction leaves whole vectors."""
    return dlrm.interaction_pitch(case) if name == "top" and not is_outer(case) else None


def config(case, variant, device):
    chosen = {}
    for name, part in dlrm.perceptrons(case).items():
        chosen |= prefixed(name, perceptrons.config(perceptrons.of_pitch(part, _pitch(case, name)), device))
    if is_outer(case):
        chosen |= prefixed("outer", outer_product.config(interaction_case(case), first_layer(case)[0], device))
    else:
        chosen |= prefixed("interaction", interactions.config(interaction_case(case), device))
    if looks_up_apart(case, variant):
        chosen |= prefixed("sparse", lookup.config(sparse_case(case), variant, device))
    return chosen


def fits(case, variant, device, config):
    parts = {name: perceptrons.of_pitch(part, _pitch(case, name)) for name, part in dlrm.perceptrons(case).items()}
    reasons = {name: perceptrons.fits(part, device, of_launch(name, config)) for name, part in parts.items()}
    if is_outer(case):
        reasons["outer"] = outer_product.fits(interaction_case(case), device, of_launch("outer", config))
    else:
        reasons["interaction"] = interactions.fits(interaction_case(case), device, of_launch("interaction", config))
    if looks_up_apart(case, variant):
        reasons["sparse"] = lookup.fits(variant, of_launch("sparse", config))
    return next((f"{launch}: {reason}" for launch, reason in reasons.items() if reason), None)


def _row_of_interaction(case, config):
    """Elements from one sample's row of the interaction to the next. `few_rows` takes rows behind one another."""
    return dlrm.interaction_width(case) if config["top_KERNEL"] == "few_rows" else dlrm.interaction_pitch(case)


def _perceptron(case, name, device, config):
    """The launches of a perceptron."""
    part = dlrm.perceptrons(case)[name]
    return perceptrons.launches(FILE, LAYERS_FILE, part, device, of_launch(name, config), _pitch(case, name))


def _launches_by_part(case, variant, device, config):
    """The launches of each part, in turn: bottom, sparse, interaction and top, of which there may be none."""
    bottom, sparse, top = _perceptron(case, "bottom", device, config), (), ()
    if looks_up_apart(case, variant):
        sparse = (lookup.launch(FILE, sparse_case(case), variant, of_launch("sparse", config)),)
    if "top" in dlrm.perceptrons(case):
        top = _perceptron(case, "top", device, config)
    if is_outer(case):
        own = of_launch("outer", config)
        interaction = outer_product.launches(FILE, interaction_case(case), *first_layer(case), own)
    else:
        row, own = _row_of_interaction(case, config), of_launch("interaction", config)
        interaction = (interactions.launch(FILE, interaction_case(case), own, "" if sparse else variant, row),)
    parts = bottom, sparse, interaction, top
    ordered = iter(in_turn(*chain(*parts)))
    return [tuple(islice(ordered, len(part))) for part in parts]


def launches(case, variant, device, config):
    return tuple(chain(*_launches_by_part(case, variant, device, config)))


def build(case, variant, device, config):
    """call(dense (M, N0), ids (M, F), weights …) → (M, 1)."""
    bottom, sparse, interaction, top = _launches_by_part(case, variant, device, config)
    given_by_part = dlrm.parts_of(case)
    parts, counts = dlrm.perceptrons(case), {}
    for name, part in parts.items():
        counts[name] = len(perceptron_layers.prepared_layers(part, _pitch(case, name)))
    of_bottom, of_layers = counts["bottom"], sum(counts.values())
    dense = perceptrons.call(bottom, parts["bottom"], of_launch("bottom", config))
    look_up = lookup.call(*sparse, sparse_case(case), variant) if sparse else None
    interact = _interaction(case, variant, interaction, config)
    predict = perceptrons.call(top, parts["top"], of_launch("top", config), _pitch(case, "top")) if top else None

    def call(*arguments):
        given = given_by_part(arguments)
        vector = dense(given.dense, *given.bottom, *given.prepared[:of_bottom])
        looked_up = given.ids, given.tables, given.offsets, *given.prepared[of_layers:]
        y = interact(vector, (look_up(*looked_up),) if look_up else looked_up, given.top)
        return predict(y, *_arrays(case, "top", given), *given.prepared[of_bottom:of_layers]) if predict else y

    return chained(call)


def _interaction(case, variant, described, config):
    """A function of the dense vectors, the sparse ones or what they are looked up by, and the prediction's arrays."""
    if is_outer(case):
        columns, _ = first_layer(case)
        first = outer_product.call(described, interaction_case(case), columns, of_launch("outer", config))
        return lambda vector, sparse, arrays: first(vector, *sparse, *arrays[:2])
    hashing, row = "" if looks_up_apart(case, variant) else variant, _row_of_interaction(case, config)
    interact = interactions.call(*described, interaction_case(case), hashing, row)
    return lambda vector, sparse, arrays: interact(vector, *sparse)
