"""dlrm in CUDA C++: the kernels of fused_mlp, interaction and embedding, from _shared/cuda.

    dot     bottom (dense perceptron) → interaction, which hashes and looks up for itself → top (prediction)      3 launches
    outer   bottom → sparse (look-up) → interaction → top                                                         4

With `naive`, which compares every id with a whole list, a block has samples of one feature: there look-up and dots are two launches,
behind a copy of the known values.
"""

from pathlib import Path

from implementations._shared import dlrm
from implementations._shared.cuda import interactions, lookup, perceptron
from implementations._shared.cuda.launch import in_turn, of_launch, prefixed, unsupported
from implementations._shared.dlrm import dense_case, interaction_case, prediction_case, sparse_case

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
    {"variant": ("naive", "improved"), "case": "main", "dtype": "bfloat16", "options": {"hashing": "lookup"},
     "arch": "sm_90a", "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    ("modulus", "improved", "naive"): {
        "bottom_BLOCK_M": (16, 32, 64, 128), "bottom_BLOCK_N": (128, 256), "bottom_CLUSTER": (1, 2, 4, 8), "bottom_num_stages": (2, 3, 4, 6, 8),
        "interaction_BLOCK_M": (1, 2, 4, 8, 16, 32), "interaction_BLOCK_K": (16, 32, 64, 128),
        "top_BLOCK_M": (16, 32, 64, 128), "top_BLOCK_N": (128, 256), "top_CLUSTER": (1, 2, 4, 8), "top_num_stages": (2, 3, 4, 6, 8),
    },
    ("modulus", "improved"): {"sparse_LOOKUPS": (8, 16, 32, 64, 128), "sparse_num_warps": (2, 4, 8)},
    "naive": {"sparse_SAMPLES": (4, 8, 16), "sparse_num_warps": (4, 8, 16)},
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")


def looks_up_apart(case, variant):
    """Whether the look-up is a launch of its own: outer products read each vector many times."""
    return variant == "naive" or case.options["interaction"] == "outer"


def skip(case, variant, device):
    if reason := unsupported(device) or dlrm.skip(case, variant, device) or interactions.skip(interaction_case(case)):
        return reason
    for name, part in (("dense", dense_case(case)), ("prediction", prediction_case(case))):
        if reason := perceptron.skip(part, device):
            return f"{name}: {reason}"
    return None


def prepare(case, variant, *inputs):
    from implementations._shared.torch.lookup import prepared_for_kernels

    given = dlrm.by_part(case, inputs)
    return prepared_for_kernels(variant, given.offsets, given.known)


def config(case, variant, device):
    chosen = prefixed("bottom", perceptron.config(dense_case(case), device))
    chosen |= prefixed("interaction", interactions.config(interaction_case(case), device))
    chosen |= prefixed("top", perceptron.config(prediction_case(case), device))
    if looks_up_apart(case, variant):
        chosen |= prefixed("sparse", lookup.config(sparse_case(case), variant, device))
    return chosen


def fits(case, variant, device, config):
    reasons = {
        "bottom": perceptron.fits(dense_case(case), device, of_launch("bottom", config)),
        "interaction": interactions.fits(interaction_case(case), device, of_launch("interaction", config)),
        "top": perceptron.fits(prediction_case(case), device, of_launch("top", config)),
    }
    if looks_up_apart(case, variant):
        reasons["sparse"] = lookup.fits(variant, of_launch("sparse", config))
    return next((f"{launch}: {reason}" for launch, reason in reasons.items() if reason), None)


def launches(case, variant, device, config):
    bottom = perceptron.launch(FILE, dense_case(case), of_launch("bottom", config))
    pitch = None if case.options["interaction"] == "outer" else dlrm.interaction_pitch(case)
    top = perceptron.launch(FILE, prediction_case(case), of_launch("top", config), pitch)
    own = of_launch("interaction", config)
    if not looks_up_apart(case, variant):
        return in_turn(bottom, interactions.launch(FILE, interaction_case(case), own, variant, pitch), top)
    sparse = lookup.launch(FILE, sparse_case(case), variant, of_launch("sparse", config))
    return in_turn(bottom, sparse, interactions.launch(FILE, interaction_case(case), own, pitch=pitch), top)


def build(case, variant, device, config):
    """call(dense (M, N0), ids (M, F), weights …) → (M, 1)."""
    bottom, *looked_up, interaction, top = launches(case, variant, device, config)
    dense, prediction = perceptron.call(bottom, dense_case(case)), perceptron.call(top, prediction_case(case))
    look_up = lookup.call(looked_up[0], sparse_case(case), variant) if looked_up else None
    outer = case.options["interaction"] == "outer"
    width = dlrm.interaction_width(case) if outer else dlrm.interaction_pitch(case)
    interact = interactions.call(interaction, interaction_case(case), "" if looked_up else variant, width)

    parts = dlrm.parts_of(case)

    def call(*arguments):
        given = parts(arguments)
        vector, sparse = dense(given.dense, *given.bottom), (given.ids, given.tables, given.offsets, *given.prepared)
        if look_up:
            sparse = (look_up(*sparse),)
        return prediction(interact(vector, *sparse), *given.top)

    return call
