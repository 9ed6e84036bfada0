"""padded_softmax_v in CUDA C++ (cuda.cu, which describes the algorithms), one launch in either variant.

flash: blocks of scores with a running maximum. whole_row: all scores of 16 rows in shared memory.
"""

from implementations.padded_softmax_v._cuda_plan import plan, skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "torch"
VARIANTS = {"flash": ("probabilities",), "whole_row": ("probabilities",)}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan(case, variant, device).program]


def build(case, variant, device):
    """call(att (T, T), v (T, D), n_padd () int32) → (T, D)."""
    import torch

    from fusebench.backends.cuda import Launch

    T, D = case.size("T", "D")
    planned = plan(case, variant, device)
    launch = Launch(planned.program, planned.grid, planned.block, planned.shared_memory)

    def call(att, v, n_padd):
        if not (att.is_contiguous() and v.is_contiguous()):
            raise ValueError("att or v is not contiguous; pass att.contiguous()")
        y = torch.empty_like(v)
        launch(att, v, n_padd, y, T, D, D)
        return y

    return call
