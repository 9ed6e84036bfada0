"""lola's backward modes in CUDA C++: the launches of cuda_backward.cu, which says what they are. The tunables are layer_backward.py's."""

from pathlib import Path

from implementations._shared.cuda import layer_backward, linear_gradients
from implementations._shared.cuda.launch import TYPES, Launch, in_turn, instance
from implementations._shared.gpu import rows_are_aligned

FILE = Path(__file__).with_name("cuda_backward.cu")
THREADS = 256
LANES = 8  # vectors side by side that a block of column sums has


def forward_launches(case, device):
    """`normalise`, `column_sums`, the product z, `activated`."""
    M, K, N = case.size("M", "K", "N")
    whole, T, dtype = layer_backward.whole_rows(case, device), TYPES[case.dtype], case.dtype
    nk, vector = case.options["w_layout"] == "nk", 16 // case.itemsize
    normalise = instance(FILE, "normalise", T, rows_are_aligned(case, K))
    sums = instance(FILE, "column_sums", T, rows_are_aligned(case, K if nk else N), nk)
    columns = THREADS // 32 if nk else LANES * vector
    activated = instance(FILE, "activated", T, case.options["activation"].upper())
    return in_turn(
        Launch(normalise, M, THREADS, dtypes=(dtype, dtype, "float32"), sizes=(K, whole.sizes["K"])),
        Launch(sums, -(-N // columns), THREADS, dtypes=(dtype, "float32", dtype), sizes=(K, N, _pitch(whole))),
        layer_backward.linear(FILE, case, device),
        Launch(activated, -(-M * N // (THREADS * vector)), THREADS, dtypes=(dtype, dtype), sizes=(M * N,)),
    )


def _pitch(case):
    """Elements of a row of W."""
    return linear_gradients.weights_shape(case)[1]


def launches(case, device, config):
    """`pull_back`, and both products, or dx and dW."""
    dtype, arguments = case.dtype, (TYPES[case.dtype], case.options["activation"].upper())
    given = dtype, dtype, "float32", dtype
    pull_back = layer_backward.pull_launch(FILE, case, device, "pull_back", arguments, given)
    return in_turn(pull_back, *layer_backward.launches(FILE, case, device, config, "Denormed"))


def build(case, device, config):
    """(forward, backward)."""
    M, K, N = case.size("M", "K", "N")
    whole = layer_backward.whole_rows(case, device)
    copied = whole is not case and not rows_are_aligned(case, _pitch(case))
    normalise, column_sums, linear, activated = forward_launches(case, device)
    normalise = normalise.returning({1: whole.size("M", "K"), 2: (M,)})
    W_rows = {2: (linear_gradients.weights_shape(case)[0], _pitch(whole))} if copied else {}
    column_sums = column_sums.returning({1: (N,)} | W_rows, absent=() if copied else (2,))
    linear, activated = linear.returning({3: (M, N)}, (M, K, N)), activated.returning({1: (M, N)})

    def forward(x, W, b):
        n, rstd = normalise(x)
        colsum, W = column_sums(W) if copied else (column_sums(W), W)
        z = linear(n, W, b)
        return activated(z), (n, rstd, z, colsum, W, b)

    first, *behind = launches(case, device, config)
    pull_back = layer_backward.pulling(first, case, device, behind, rows=True, columns=True)
    products = layer_backward.gradients(case, device, behind, rows=True, columns=True)

    def backward(residuals, dy):
        n, rstd, z, colsum, W, b = residuals
        dz, row_parts, db, column_parts, flags = pull_back(z, b, colsum, dy)
        return *products(dz, W, n, rstd, row_parts, db, column_parts, flags), db

    return forward, backward
