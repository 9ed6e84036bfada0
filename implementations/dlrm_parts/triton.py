"""dlrm_parts in Triton: the first launches of dlrm's triton. Hashing, look-up and interaction are one launch, so that no call ends between
them; `naive`, which has more launches, is dlrm's alone."""

from fusebench.launchers import chained
from implementations._shared import dlrm
from implementations._shared.dlrm import dense_case, interaction_case, sparse_case
from implementations._shared.torch.lookup import prepared_for_kernels
from implementations._shared.triton import interactions, lookup, perceptron
from implementations._shared.triton.launch import by_launch, prefixed
from implementations._shared.triton.limits import first_reason

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"modulus": ("hidden",), "improved": ("hidden",)}
EXPECT = (  # of kernels that other folders have too, which expect the same on all targets
    {"variant": "modulus", "case": "main", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "improved", "case": "main", "dtype": "bfloat16", "options": {"hashing": "lookup"},
     "arch": "sm_90a", "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    ("modulus", "improved"): {
        "bottom_BLOCK_M": (16, 32, 64, 128), "bottom_BLOCK_K": (16, 32, 64, 128, 256, 512), "bottom_BLOCK1": (16, 32, 64, 128),
        "bottom_BLOCK3": (16, 32, 64), "bottom_num_warps": (4, 8), "bottom_num_stages": (1, 2, 3, 4),
        "interaction_BLOCK_F": (16, 32, 64), "interaction_BLOCK_D": (16, 32, 64, 128), "interaction_num_warps": (1, 2, 4),
        "interaction_num_stages": (1, 2, 3),
    },
}  # fmt: skip


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    if case.options["until"] in ("hashing", "embedding"):
        return "hashing, look-up and interaction are one launch"
    if case.options["until"] == "interaction" and case.options["interaction"] == "outer":
        return "outer products and the first layer behind them are one launch"
    if reason := dlrm.skip(case, variant, device) or lookup.skip(sparse_case(case), variant, device):
        return reason
    return perceptron.skip(dense_case(case), variant, device)


def prepare(case, variant, *inputs):
    given = dlrm.by_part(case, inputs)
    return prepared_for_kernels(variant, given.offsets, given.known)


def config(case, variant, device):
    """The tunables of each launch."""
    configs = {"bottom": perceptron.config(dense_case(case), variant, device)}
    if case.options["until"] == "interaction":
        configs["interaction"] = interactions.config(interaction_case(case))
    return prefixed(configs)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    configs = by_launch(config)
    reasons = {"bottom": perceptron.fits(dense_case(case), variant, device, configs["bottom"])}
    if "interaction" in configs:
        reasons["interaction"] = interactions.fits(interaction_case(case), device, configs["interaction"])
    return first_reason(reasons)


def launches(case, variant, device, config):
    """The dense perceptron, and with until=interaction what comes behind it."""
    configs = by_launch(config)
    bottom = perceptron.launches(dense_case(case), variant, device, configs["bottom"])
    if "interaction" not in configs:
        return bottom
    return *bottom, interactions.launch(interaction_case(case), configs["interaction"], variant, case.sizes["V"])


def build(case, variant, device, chosen):
    """call(dense (M, N0), ids (M, F), weights …) → the output up to the part."""
    bottom, *behind = launches(case, variant, device, chosen)
    M, D = case.size("M", "D")
    dense = bottom.returning((M, D), M=M)
    interact = [launch.returning((M, dlrm.interaction_width(case))) for launch in behind]

    parts = dlrm.parts_of(case)

    def call(*arguments):
        given = parts(arguments)
        vector = dense(given.dense, *given.bottom)
        if not interact:
            return vector
        return interact[0](vector, given.ids, given.tables, given.offsets, *given.prepared)

    return chained(call)
