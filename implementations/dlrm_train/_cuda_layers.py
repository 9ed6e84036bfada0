"""dlrm_train in CUDA with a launch for each layer, forward and back (cuda_layers.cu): KERNEL=layers of cuda.py, for so many rows that tiles of
them would read the weights too often. `update` of cuda.cu is behind them, as it is behind `pass`.

Each product has its own tile (_shared/cuda/matmul.py), which follows from its sizes.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from implementations._shared import dlrm
from implementations._shared.cuda import interactions, matmul, matmul_choice
from implementations._shared.cuda.launch import TYPES, Launch, instance
from implementations._shared.gpu import multiprocessors
from implementations.dlrm_train import _cuda_arrays as arrays
from implementations.dlrm_train import _step

FILE = Path(__file__).with_name("cuda_layers.cu")
SAMPLES = 8  # of a block of `cross` and of `uncross`
STAGED_BYTES = (
    48 << 10
)  # of the rows that a block of `cross` writes: beyond, they are stored where they belong, element by element
STEPS = 2  # of D that a warp of `cross` has on their way: floats take twice the registers of what is multiplied
HEAD_ROWS = 64  # of a block of `head`
# Estimates: microseconds from one launch to the next, and bytes of memory in one. At main's sizes in bfloat16 an H200 took 101, 104 and 108 µs with
# 128, 256 and 512 rows, update included, and `pass` 71.5, 123 and 158 in as many clusters as two rounds hold; at large 1.94 ms
LAUNCH, BYTES = 3.0, 2.5e6


class Product(NamedTuple):
    """A launch of a product: its case, the epilogue, and the type of what that wants."""

    case: Any
    epilogue: str
    wanted: str


def skip(case, device):
    """Why layers cannot be launches here, or None."""
    F, D = case.size("F", "D")
    layers = _step.layers_of(case)[0]
    if tuple(device.capability) != (9, 0) or case.itemsize != 2:
        return "KERNEL=layers is for Hopper (9.0) and 16 bits"
    if F > 31 or D % 16 or any(N % 16 for _, N in layers[:-1]):
        return "KERNEL=layers takes up to 31 features, and widths of layers, and D, that are multiples of 16"
    return None


def _forward(case):
    """The products of all layers but the last, of one column."""
    layers, bottom = _step.layers_of(case)
    T, found = TYPES[case.dtype], []
    for number, (K, N) in enumerate(layers[:-1], 1):
        own = matmul.product(case, case.sizes["M"], arrays.whole(K, 16), N)
        found.append(Product(own, f"Activated<{T}, {'NONE' if number == bottom else 'RELU'}>", "float32"))
    return found


def _backward(case):
    """The products that make the gradients by the inputs of all layers but the first and the last, in the order of the layers."""
    layers, bottom = _step.layers_of(case)
    T, found = TYPES[case.dtype], []
    for layer, (K, N) in list(enumerate(layers))[1:-1]:
        own = matmul.product(case, case.sizes["M"], N, arrays.whole(K, 16), nk=True)
        found.append(Product(own, f"{'PassedWhole' if layer == bottom else 'Passed'}<{T}>", case.dtype))
    return found


def _chosen(product, device):
    """The tile of a product."""
    return matmul_choice.config(product, device, (*matmul.TENSOR_TILES, *matmul.products_tiles(product)))


def _launch(product, device):
    dtype = product.case.dtype
    dtypes = dtype, dtype, product.wanted, dtype
    return matmul.launch(
        FILE, "product", product.case, device, _chosen(product.case, device), (product.epilogue,), dtypes=dtypes
    )


def time(case, device):
    """Microseconds that the launches before `update` are expected to take."""
    (M, F, D), itemsize = case.size("M", "F", "D"), case.itemsize
    products = [p.case for p in (*_forward(case), *_backward(case))]
    total = (len(products) + 4) * LAUNCH
    for product in products:
        moved = M * (product.sizes["K"] + 2 * product.sizes["N"]) * itemsize
        total += max(matmul_choice.time_of(product, _chosen(product, device), 1, device), moved / BYTES)
    # both launches between the perceptrons read the tables' rows; rows of dots are written, read and come back as gradients
    crossed = arrays.pitches(case)[case.sizes["LAYERS"]][0]
    return total + M * (F * D * (8 + itemsize) + 4 * crossed * itemsize) / BYTES


def head_blocks(case):
    """How many blocks leave a part of the loss."""
    return -(-case.sizes["M"] // HEAD_ROWS)


def launches(case, variant, device):
    """begin, layers of the first perceptron, cross, layers of the second, head, and all but `head` back, with uncross for cross."""
    M, F, D = case.size("M", "F", "D")
    layers, bottom = _step.layers_of(case)
    T, dtype, pitch = TYPES[case.dtype], case.dtype, arrays.pitches(case)[bottom][0]
    sizes = M, *(np.int32(n) for n in (F, D, pitch))
    of_dots = dlrm.interaction_case(case)
    staged = SAMPLES * pitch * case.itemsize
    if staged > STAGED_BYTES:
        staged = 0
    grid = 2 * multiprocessors(device)
    begin = Launch(
        instance(FILE, "begin", T), grid, arrays.THREADS,
        dtypes=(dtype, *arrays.PARAMETERS, dtype, dtype), sizes=arrays.sizes(case, lends=False),
    )  # fmt: skip
    improved = _step.hashing(variant) == "improved"
    steps = min(STEPS, -(-D // interactions.step(of_dots)))
    cross = Launch(
        instance(FILE, "cross", T, improved, staged > 0, F // 8 + 1, steps, SAMPLES), -(-M // SAMPLES), 32 * SAMPLES, staged,
        dtypes=(dtype, "int64", "float32", "int64", "int32", "int32", "int32", dtype), sizes=sizes,
    )  # fmt: skip
    head = Launch(
        instance(FILE, "head", T, len(layers) > bottom + 1, HEAD_ROWS), head_blocks(case), arrays.THREADS,
        dtypes=(dtype, "float32", "float32", "float32", dtype, dtype, "float32"), sizes=(M, np.int32(layers[-1][0])),
    )  # fmt: skip
    uncross = Launch(
        instance(FILE, "uncross", T, F // 16 + 1, SAMPLES), -(-M // SAMPLES), 32 * SAMPLES, SAMPLES * pitch * case.itemsize,
        dtypes=(dtype, dtype, "float32", "int32", dtype, dtype), sizes=sizes,
    )  # fmt: skip
    forward = [_launch(p, device) for p in _forward(case)]
    backward = [_launch(p, device) for p in _backward(case)]
    back = backward[bottom - 1 :][::-1], backward[: bottom - 1][::-1]
    return (begin, *forward[:bottom], cross, *forward[bottom:], head, *back[0], uncross, *back[1])


def call(described, case):
    """A function of the arguments by part, the labels, the workspace, the gradients that `update` makes, and what it fills beside the workspace:
    the table rows, the parts of the loss, and dvectors."""
    M, (layers, bottom) = case.sizes["M"], _step.layers_of(case)
    last, pitches = len(layers) - 1, arrays.pitches(case)
    runs = [launch.bind() for launch in described]
    sizes = [product.case.size("M", "K", "N") for product in (*_forward(case), *_backward(case))]
    forward, backward = sizes[:last], [None, *sizes[last:]]  # by layer
    crossed = pitches[bottom][0]
    # the gradient of the dots has the place of one that comes later, where that is large enough
    spare = next((n for n in range(bottom - 1) if pitches[n][1] >= crossed), None)

    def run(given, labels, workspace, gradients, rows, losses, dvectors):
        parameters, left = arrays.parameters(given), iter(zip(runs, described, strict=True))
        placed = _matrices(workspace, [(M, width) for widths in pitches for width in widths])
        h, dz = placed[::2], placed[1::2]
        cast = workspace.new_empty(sum(K * N for K, N in pitches[:-1]))
        W = _matrices(cast, pitches[:-1])
        (dcrossed,) = _matrices(
            workspace.new_empty(M * crossed) if spare is None else dz[spare].view(-1), [(M, crossed)]
        )

        def launch(*arguments):
            function, own = next(left)
            function(*arguments, *own.sizes)

        def forth(n, y):
            launch(h[n], W[n], parameters[2 * n + 1], y, *forward[n])

        def back(n):
            launch(dz[n], W[n], h[n], dcrossed if n == bottom else dz[n - 1], *backward[n])

        launch(given.dense, *parameters, workspace, cast)
        vectors = dz[bottom - 1]  # the dense ones have the place of their gradient until that comes
        for n in range(bottom):
            forth(n, vectors if n + 1 == bottom else h[n + 1])
        launch(vectors, given.ids, given.tables, given.offsets, *(given.prepared or (0, 0)), rows, h[bottom])
        for n in range(bottom, last):
            forth(n, h[n + 1])
        of_head = parameters[2 * last : 2 * last + 2]
        launch(h[last], *of_head, labels, dz[last], dcrossed if last == bottom else dz[last - 1], losses)
        for n in range(last - 1, bottom - 1, -1):
            back(n)
        launch(h[bottom], dcrossed, given.tables, rows, dz[bottom - 1], dvectors)
        for n in range(bottom - 1, 0, -1):
            back(n)

    return run


def _matrices(memory, shapes):
    """One behind the other."""
    found, end = [], 0
    for rows, columns in shapes:
        found.append(memory[end : end + rows * columns].view(rows, columns))
        end += rows * columns
    return found
