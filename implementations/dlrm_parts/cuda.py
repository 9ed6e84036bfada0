"""dlrm_parts in CUDA C++: the first launches of dlrm's cuda. Hashing, look-up and interaction are one launch, so that no call ends between
them; `naive` and `outer`, which have more launches, are dlrm's alone."""

from pathlib import Path

from implementations._shared import dlrm
from implementations._shared.cuda import interactions, perceptron
from implementations._shared.cuda.launch import in_turn, of_launch, prefixed, unsupported
from implementations._shared.dlrm import dense_case, interaction_case, pairs_skip

BACKEND = "torch"
FUSED = True
VARIANTS = {"modulus": ("hidden",), "improved": ("hidden",)}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (  # of kernels that other folders have too, which expect the same on all targets
    {"variant": "modulus", "case": "main", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "improved", "case": "main", "dtype": "bfloat16", "options": {"hashing": "lookup"},
     "arch": "sm_90a", "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    ("modulus", "improved"): {
        "bottom_BLOCK_M": (16, 32, 64, 128), "bottom_BLOCK_N": (128, 256), "bottom_CLUSTER": (1, 2, 4, 8), "bottom_num_stages": (2, 3, 4, 6, 8),
        "interaction_BLOCK_M": (1, 2, 4, 8), "interaction_BLOCK_K": (16, 32, 64, 128, 256, 512), "interaction_BLOCK_F": (32, 64, 128, 256, 512),
        "interaction_num_warps": (1, 2, 4, 8),
    },
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")


def skip(case, variant, device):
    if case.options["until"] in ("hashing", "embedding"):
        return "hashing, look-up and interaction are one launch"
    if case.options["until"] == "interaction" and case.options["interaction"] == "outer":
        return "outer products have a look-up of their own"
    if reason := unsupported(device) or dlrm.skip(case, variant, device) or pairs_skip(interaction_case(case)):
        return reason
    return perceptron.skip(dense_case(case), device)


def prepare(case, variant, *inputs):
    from implementations._shared.torch.lookup import prepared_for_kernels

    given = dlrm.by_part(case, inputs)
    return prepared_for_kernels(variant, given.offsets, given.known)


def config(case, variant, device):
    chosen = prefixed("bottom", perceptron.config(dense_case(case), device))
    if case.options["until"] == "interaction":
        chosen |= prefixed("interaction", interactions.config(interaction_case(case), device))
    return chosen


def fits(case, variant, device, config):
    if reason := perceptron.fits(dense_case(case), device, of_launch("bottom", config)):
        return f"bottom: {reason}"
    if case.options["until"] == "interaction":
        reason = interactions.fits(interaction_case(case), device, of_launch("interaction", config))
        return f"interaction: {reason}" if reason else None
    return None


def launches(case, variant, device, config):
    bottom = perceptron.launch(FILE, dense_case(case), of_launch("bottom", config))
    if case.options["until"] == "dense":
        return (bottom,)
    return in_turn(bottom, interactions.launch(FILE, interaction_case(case), of_launch("interaction", config), variant))


def build(case, variant, device, config):
    """call(dense (M, N0), ids (M, F), weights …) → the output up to the part."""
    bottom, *behind = launches(case, variant, device, config)
    dense = perceptron.call(bottom, dense_case(case))
    interact = [interactions.call(b, interaction_case(case), variant, dlrm.interaction_width(case)) for b in behind]

    parts = dlrm.parts_of(case)

    def call(*arguments):
        given = parts(arguments)
        vector = dense(given.dense, *given.bottom)
        if not interact:
            return vector
        return interact[0](vector, given.ids, given.tables, given.offsets, *given.prepared)

    return call
