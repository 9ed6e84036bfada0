"""padded_softmax in CUDA C++ (cuda.cu, which describes the algorithms), one launch in either variant.

row: a row in the registers of some lanes or of a block. online: rows of any length, whose visible part is read twice.
"""

from pathlib import Path

from implementations._shared.cuda.launch import TYPES, Plan, instance, unsupported
from implementations._shared.cuda.softmax import fits_in_registers, row_tile, vectors
from implementations._shared.gpu import rows_are_aligned

BACKEND = "torch"
VARIANTS = {"row": (), "online": ()}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"

FILE = Path(__file__).with_suffix(".cu")
ONLINE_THREADS = 256


def skip(case, variant, device):
    if reason := unsupported(device):
        return reason
    if case.sizes["T"] >= 2**30:
        return "columns are counted in 32 bits"
    if variant == "row" and not fits_in_registers(vectors(case.sizes["T"], case)):
        return "a row of more than 128 KiB does not fit in a block's registers: online"
    return None


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan(case, variant).program]


def plan(case, variant):
    T = case.sizes["T"]
    head = TYPES[case.dtype], rows_are_aligned(case, T)
    if variant == "online":
        return Plan(instance(FILE, "online", *head, ONLINE_THREADS), T, ONLINE_THREADS)
    lanes, held = row_tile(vectors(T, case))
    block = max(128, lanes)
    return Plan(instance(FILE, "row", *head, lanes, held), -(-T * lanes // block), block)


def build(case, variant, device):
    """call(att (T, T), n_padd () int32) → (T, T)."""
    import torch

    launch, T = plan(case, variant).bind(), case.sizes["T"]

    def call(att, n_padd):
        if not att.is_contiguous():
            raise ValueError("att is not contiguous; pass att.contiguous()")
        y = torch.empty_like(att)
        launch(att, n_padd, y, T)
        return y

    return call
