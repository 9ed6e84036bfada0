"""padded_attention in CUDA C++ (cuda.cu, which describes the algorithms), one launch in either variant.

flash: blocks of tokens with a running maximum. whole_row: all scores of 16 rows in shared memory, for short sequences.
"""

import math

from implementations.padded_attention._cuda_plan import plan, skip  # noqa: F401 (`skip` is part of the contract)

BACKEND = "torch"
VARIANTS = {"flash": ("probabilities",), "whole_row": ("probabilities",)}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "unavailable"


def programs(case, variant, device):
    """What `build` compiles; needs no GPU."""
    return [plan(case, variant, device).program]


def build(case, variant, device):
    """call(q, k, v (B, H, T, D), n_padd (B,) int32) → (B, H, T, D)."""
    import numpy as np
    import torch

    from fusebench.backends.cuda import Launch

    _, H, T, D = case.size("B", "H", "T", "D")
    planned = plan(case, variant, device)
    launch = Launch(planned.program, planned.grid, planned.block, planned.shared_memory, planned.boxes)
    scale = np.float32(math.log2(math.e) / math.sqrt(D))

    def call(q, k, v, n_padd):
        if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
            raise ValueError("q, k or v is not contiguous; pass q.contiguous()")
        y = torch.empty_like(q)
        launch(q, k, v, n_padd, y, H, T, D, D, scale)
        return y

    return call
