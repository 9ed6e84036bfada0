"""How the kernels of interaction with form=outer in Triton read the vectors of a sample."""

import triton
import triton.language as tl


@triton.jit
def side_by_side(dense, sparse, n, D: tl.constexpr, N: tl.constexpr):
    """The elements n of the sample's dense and sparse vectors side by side, as float32; 0 from N on."""
    start = tl.where(n < D, dense, sparse - D)
    return tl.load(start + n, mask=n < N, other=0.0).to(tl.float32)
