"""dlrm_parts in CUDA C++: the first launches of dlrm's cuda. Hashing, look-up and interaction are one launch, so that no call ends between
them; `naive` and `outer`, which have more launches, are dlrm's alone."""

from pathlib import Path

from fusebench.launchers import chained
from implementations._shared import dlrm
from implementations._shared.cuda import interactions, perceptron_layers, perceptrons
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
        "bottom_KERNEL": ("layers", "tensor", "simt", "few_rows"),
        "bottom_BLOCK_M": (4, 8, 16, 32, 64, 128), "bottom_BLOCK_N": (64, 128, 256), "bottom_CLUSTER": (1, 2, 4, 8), "bottom_num_stages": (2, 3, 4, 6, 8),
        "bottom_PREFETCH": ("none", "next"),
        ("bottom_layer1_KERNEL", "bottom_layer2_KERNEL", "bottom_layer3_KERNEL", "bottom_layer4_KERNEL"):
            ("tensor", "one_slab", "few_rows", "warpgroup", "split", "turned", "simt"),
        ("bottom_layer1_BLOCK_M", "bottom_layer2_BLOCK_M", "bottom_layer3_BLOCK_M", "bottom_layer4_BLOCK_M"):
            (16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256),
        ("bottom_layer1_BLOCK_N", "bottom_layer2_BLOCK_N", "bottom_layer3_BLOCK_N", "bottom_layer4_BLOCK_N"): (16, 32, 64, 128, 192, 256),
        ("bottom_layer1_CLUSTER", "bottom_layer2_CLUSTER", "bottom_layer3_CLUSTER", "bottom_layer4_CLUSTER"): (1, 2, 4, 8),
        ("bottom_layer1_num_stages", "bottom_layer2_num_stages", "bottom_layer3_num_stages", "bottom_layer4_num_stages"): (1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
        "interaction_BLOCK_M": (1, 2, 4, 8), "interaction_BLOCK_K": (16, 32, 64, 128, 256, 512), "interaction_BLOCK_F": (32, 64, 128, 256, 512),
        "interaction_num_warps": (1, 2, 4, 8),
    },
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")
LAYERS_FILE = Path(__file__).with_name("cuda_layers.cu")


def skip(case, variant, device):
    if case.options["until"] in ("hashing", "embedding"):
        return "hashing, look-up and interaction are one launch"
    if case.options["until"] == "interaction" and case.options["interaction"] == "outer":
        return "outer products have a look-up of their own"
    return unsupported(device) or dlrm.skip(case, variant, device) or pairs_skip(interaction_case(case))


def prepare(case, variant, *inputs):
    """The W of the perceptron as its layers' launches want them, and what look-ups want."""
    from implementations._shared.torch.lookup import prepared_for_kernels

    given = dlrm.by_part(case, inputs)
    of_layers = perceptron_layers.prepared(dense_case(case), given.bottom)
    return *of_layers, *prepared_for_kernels(variant, given.offsets, given.known)


def config(case, variant, device):
    chosen = prefixed("bottom", perceptrons.config(dense_case(case), device))
    if case.options["until"] == "interaction":
        chosen |= prefixed("interaction", interactions.config(interaction_case(case), device))
    return chosen


def fits(case, variant, device, config):
    if reason := perceptrons.fits(dense_case(case), device, of_launch("bottom", config)):
        return f"bottom: {reason}"
    if case.options["until"] == "interaction":
        reason = interactions.fits(interaction_case(case), device, of_launch("interaction", config))
        return f"interaction: {reason}" if reason else None
    return None


def launches(case, variant, device, config):
    bottom = perceptrons.launches(FILE, LAYERS_FILE, dense_case(case), device, of_launch("bottom", config))
    if case.options["until"] == "dense":
        return bottom
    return in_turn(
        *bottom, interactions.launch(FILE, interaction_case(case), of_launch("interaction", config), variant)
    )


def build(case, variant, device, config):
    """call(dense (M, N0), ids (M, F), weights …) → the output up to the part."""
    described, part = launches(case, variant, device, config), dense_case(case)
    count = len(described) - (case.options["until"] == "interaction")
    dense = perceptrons.call(described[:count], part, of_launch("bottom", config))
    width = dlrm.interaction_width(case)
    interact = [interactions.call(last, interaction_case(case), variant, width) for last in described[count:]]
    parts, of_layers = dlrm.parts_of(case), len(perceptron_layers.prepared_layers(part))

    def call(*arguments):
        given = parts(arguments)
        vector = dense(given.dense, *given.bottom, *given.prepared[:of_layers])
        if not interact:
            return vector
        return interact[0](vector, given.ids, given.tables, given.offsets, *given.prepared[of_layers:])

    return chained(call)
