"""What the implementations of dlrm_train share, whatever they are written in."""

from itertools import pairwise

from implementations._shared import dlrm

IN_PLACE = {
    ("modulus_in_place", "improved_in_place"): (
        "tables", "bottom_W1", "bottom_b1", "bottom_W2", "bottom_b2", "bottom_W3", "bottom_b3", "bottom_W4", "bottom_b4",
        "top_W1", "top_b1", "top_W2", "top_b2", "top_W3", "top_b3",
    ),
}  # fmt: skip


def in_place(variant):
    """Whether the variant overwrites the parameters."""
    return variant.endswith("_in_place")


def hashing(variant):
    """The variant of dlrm that hashes as this one does."""
    return variant.partition("_")[0]


def layers_of(case):
    """(K, N) of each layer, and how many of them are the dense perceptron's."""
    found = []
    for part in (dlrm.dense_case(case), dlrm.prediction_case(case)):
        widths = part.size("N0", "N1", "N2", "N3", "N4")[: part.sizes["LAYERS"] + 1]
        found += list(pairwise(widths))
    return found, case.sizes["LAYERS"]


def skip(case, variant, device):
    """Why no implementation can make the step, or None."""
    if case.dtype == "float16":
        return "float16 needs a scaled loss: gradients of a mean over a batch are subnormal there"
    return dlrm.skip(case, hashing(variant), device)
