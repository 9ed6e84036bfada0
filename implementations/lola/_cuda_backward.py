"""lola's backward modes in CUDA C++: the launches of cuda_backward.cu, which says what they are, and the choice of tiles.

The tunables are those of the two products of the backward call, dx and dW.
"""

from pathlib import Path

from implementations._shared.cuda import matmul
from implementations._shared.cuda.launch import TYPES, Launch, in_turn, instance, of_launch, prefixed
from implementations._shared.gpu import rows_are_aligned

FILE = Path(__file__).with_name("cuda_backward.cu")
THREADS = 256
LANES = 8  # vectors side by side that a block of column sums has
ALL = matmul.WARPGROUP_TILES + matmul.TENSOR_TILES


def products(case):
    """The cases of the products z = n @ W, dn = dz @ Wᵀ and dW, which is of a transposed left operand."""
    M, K, N = case.size("M", "K", "N")
    nk = case.options["w_layout"] == "nk"
    dW = matmul.product(case, N, M, K) if nk else matmul.product(case, K, M, N)
    return {"z": matmul.product(case, M, K, N, nk), "dx": matmul.product(case, M, N, K, not nk), "dW": dW}


def config(case, device):
    """The tunables of both launches."""
    own = products(case)
    # the copy engine wants rows of whole vectors, of a transposed operand as well
    of_weights = ALL if rows_are_aligned(own["dW"], own["dW"].sizes["M"]) else matmul.TENSOR_TILES
    dx, dW = matmul.config(own["dx"], device, ALL), matmul.config(own["dW"], device, of_weights)
    return prefixed("dx", dx) | prefixed("dW", dW)


def fits(case, device, config):
    """Why a config cannot run, or None."""
    own = products(case)
    dW = of_launch("dW", config)
    if dW["KERNEL"] == "warpgroup" and not rows_are_aligned(own["dW"], own["dW"].sizes["M"]):
        return matmul.NO_WARPGROUPS
    return matmul.fits(own["dx"], device, of_launch("dx", config)) or matmul.fits(own["dW"], device, dW)


def forward_launches(case, device):
    """`normalise`, `column_sums`, the product z, `activated`."""
    M, K, N = case.size("M", "K", "N")
    T, dtype, nk, vector = TYPES[case.dtype], case.dtype, case.options["w_layout"] == "nk", 16 // case.itemsize
    operands = (matmul.operand(case),) * 2
    normalise = instance(FILE, "normalise", T, rows_are_aligned(case, K))
    sums = instance(FILE, "column_sums", T, rows_are_aligned(case, K if nk else N), nk)
    columns = THREADS // 32 if nk else LANES * vector
    activated = instance(FILE, "activated", T, case.options["activation"].upper())
    z = products(case)["z"]
    return in_turn(
        Launch(normalise, M, THREADS, dtypes=(dtype, dtype, "float32"), sizes=(K,)),
        Launch(sums, -(-N // columns), THREADS, dtypes=(dtype, "float32"), sizes=(K, N)),
        matmul.launch(FILE, "linear", z, device, matmul.config(z, device, ALL), dtypes=(*operands, dtype, dtype)),
        Launch(activated, -(-M * N // (THREADS * vector)), THREADS, dtypes=(dtype, dtype), sizes=(M * N,)),
    )


def launches(case, device, config):
    """`pull_back`, dx and dW."""
    M, N = case.size("M", "N")
    own, dtype, vector = products(case), case.dtype, 16 // case.itemsize
    program = instance(FILE, "pull_back", TYPES[dtype], case.options["activation"].upper(), rows_are_aligned(case, N))
    dtypes = dtype, dtype, "float32", dtype, dtype, "float32", dtype
    first = Launch(program, M + -(-N // (LANES * vector)), THREADS, dtypes=dtypes, sizes=(M, N))
    dtypes = *(matmul.operand(case),) * 2, dtype, "float32", "float32", dtype
    dx = matmul.launch(FILE, "inputs", own["dx"], device, of_launch("dx", config), dtypes=dtypes)
    dW = matmul.launch(
        FILE, "weights", own["dW"], device, of_launch("dW", config), dtypes=(dtype,) * 3, transposed=True
    )
    return in_turn(first, dx, dW)


def build(case, device, config):
    """(forward, backward)."""
    M, K, N = case.size("M", "K", "N")
    own, nk = products(case), case.options["w_layout"] == "nk"
    normalise, column_sums, linear, activated = forward_launches(case, device)
    normalise, column_sums = normalise.returning({1: (M, K), 2: (M,)}), column_sums.returning({1: (N,)})
    linear, activated = linear.returning({3: (M, N)}, (M, K, N)), activated.returning({1: (M, N)})
    pull_back, inputs, weights = launches(case, device, config)
    pull_back = pull_back.returning({4: (M, N), 5: (M, 2), 6: (N,)})
    inputs = inputs.returning({5: (M, K)}, own["dx"].size("M", "K", "N"))
    weights = weights.returning({2: (N, K) if nk else (K, N)}, own["dW"].size("M", "K", "N"))

    def forward(x, W, b):
        n, rstd = normalise(x)
        colsum, z = column_sums(W), linear(n, W, b)
        return activated(z), (n, rstd, z, colsum, W, b)

    def backward(residuals, dy):
        n, rstd, z, colsum, W, b = residuals
        dz, sums, db = pull_back(z, b, colsum, dy)
        return inputs(dz, W, n, rstd, sums), weights(dz, n) if nk else weights(n, dz), db

    return forward, backward
