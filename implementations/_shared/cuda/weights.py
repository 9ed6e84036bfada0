"""What the launches of weights.cuh make dW = xᵀ @ dz of: x and dz as they lie, or, in tf32, which Hopper's warpgroups read by rows of its depth M alone,
as a launch before has turned them.

`case` is one of x (M, K) with W (K, N) or (N, K).
"""

from dataclasses import replace

from implementations._shared.cuda import matmul
from implementations._shared.cuda.launch import Launch, instance
from implementations._shared.cuda.linear_gradients import weights_shape
from implementations._shared.gpu import filled_up, rows_are_aligned

THREADS, SIDE = 256, 64  # of a block, and of the square that it turns


def of_turned(case, device):
    """The case of dW with turned operands, whose depth is M filled up to whole vectors; None where warpgroups do not multiply it so."""
    if matmul.operand(case) != "tf32":
        return None
    rows, columns = weights_shape(case)
    own = matmul.product(case, rows, filled_up(case, case.sizes["M"]), columns, nk=True)
    return own if matmul.multiplies_by_warpgroups(own, device) else None


def turning(file, case, turned):
    """The launch of `file` that turns dz and x: (dz, x, dz turned, x turned)."""
    (M, K, N), pitch = case.size("M", "K", "N"), turned.sizes["K"]
    program = instance(file, "turned_operands", rows_are_aligned(case, N), rows_are_aligned(case, K))
    grid = -(-pitch // SIDE) * (-(-N // SIDE) + -(-K // SIDE))
    return Launch(program, grid, THREADS, dtypes=(case.dtype,) * 4, sizes=(M, K, N, pitch))


def turned_by(launch, case, turned):
    """A function of dz and x, which returns both turned."""
    (K, N), pitch = case.size("K", "N"), turned.sizes["K"]
    return launch.returning({2: (N, pitch), 3: (K, pitch)})


def upright(own, device):
    """A case of dW of x as it lies as its launch takes it, and its tiles beside matmul.SIMT_TILES. Its depth lies across the rows of both operands, so that
    any will do for warpgroups."""
    across = replace(own, sizes={**own.sizes, "K": filled_up(own, own.sizes["K"])})
    of_boxes = own.itemsize == 2 and rows_are_aligned(own, own.sizes["M"])
    if of_boxes and matmul.multiplies_by_warpgroups(across, device):
        return across, matmul.WARPGROUP_TILES
    return own, matmul.TENSOR_TILES
