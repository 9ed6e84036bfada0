"""The launches of _weights.cuh: dW of those layers of fused_mlp that have few tiles of it, as 13-512 has, by all multiprocessors. `layers` are their
cases (_cuda_backward.py)."""

from itertools import chain

from implementations._shared.cuda import layer_backward
from implementations._shared.cuda.launch import TYPES, Launch, instance
from implementations._shared.cuda.linear_gradients import weights_shape
from implementations._shared.gpu import is_ieee, multiprocessors

SIDE, MOST_LAYERS, STAGES = 64, 4, 3  # as in _weights.cuh
BLOCKS, IEEE_BLOCKS = 3, 6  # that a multiprocessor has at once
LEAST_SHARE = 128  # rows of the batch: fewer take less time than the launch that adds up one part more
SUM_THREADS, VECTOR = 256, 4  # of floats


def is_narrow(layer, device):
    """Whether dW, which would be a launch of its own, has a tile for each multiprocessor at most."""
    return layer_backward.way(layer, device) == "apart" and _tiles([layer]) <= multiprocessors(device)


def shares(layers, device):
    """(Rows of the batch that a block has, how many such shares there are.)"""
    M = layers[0].sizes["M"]
    at_once = (IEEE_BLOCKS if is_ieee(layers[0]) else BLOCKS) * multiprocessors(device)
    most = max(1, at_once // _tiles(layers))
    rows = max(LEAST_SHARE, -(-M // most // SIDE) * SIDE)
    return rows, -(-M // rows)


def _tiles(layers):
    return sum(-(-rows // SIDE) * -(-columns // SIDE) for rows, columns in map(weights_shape, layers))


def _elements(layers):
    """Of a share's parts."""
    return sum(-(-rows * columns // VECTOR) * VECTOR for rows, columns in map(weights_shape, layers))


def launches(file, layers, device):
    """`weights_of_layers` of `file` and, where blocks share the rows of the batch, `sum_weights`; none of no layers."""
    if not layers:
        return ()
    dtype, shapes, absent = layers[0].dtype, [weights_shape(layer) for layer in layers], MOST_LAYERS - len(layers)
    (share, count), ieee = shares(layers, device), is_ieee(layers[0])
    program = instance(file, "weights_of_layers", TYPES[dtype], ieee, STAGES)
    threads, memory = (SIDE, 0) if ieee else (2 * SIDE, STAGES * 2 * SIDE * 128)
    dtypes = (dtype,) * 3 * MOST_LAYERS + ("float32",)
    sizes = layers[0].sizes["M"], share, *chain.from_iterable(shapes), *(0,) * 2 * absent
    products = Launch(program, _tiles(layers) * count, threads, memory, dtypes=dtypes, sizes=sizes)
    if count == 1:
        return (products,)
    program, dtypes = instance(file, "sum_weights", TYPES[dtype]), ("float32", *(dtype,) * MOST_LAYERS)
    sizes = count, *(rows * columns for rows, columns in shapes), *(0,) * absent
    return products, Launch(program, -(-_elements(layers) // SUM_THREADS), SUM_THREADS, dtypes=dtypes, sizes=sizes)


def call(described, layers, device):
    """A function of x and dz of each layer, which returns a list of dW."""
    shapes, missing = [weights_shape(layer) for layer in layers], range(len(layers), MOST_LAYERS)
    first, turned = 2 * MOST_LAYERS, layers[0].options["w_layout"] == "nk"
    made = {first + i: shape for i, shape in enumerate(shapes)}
    absent = [place for i in missing for place in (2 * i, 2 * i + 1, first + i)]
    if len(described) == 1:
        products, total = described[0].returning(made, absent=(*absent, first + MOST_LAYERS)), None
    else:
        shares_of_all = {first + MOST_LAYERS: (shares(layers, device)[1], _elements(layers))}
        products = described[0].returning(shares_of_all, absent=(*absent, *made))
        total = described[1].returning(dict(enumerate(shapes, 1)), absent=[1 + i for i in missing])

    def weigh(pairs):
        operands = (array for x, dz in pairs for array in ((dz, x) if turned else (x, dz)))
        found = products(*operands)
        found = total(found) if total else found
        return list(found) if len(shapes) > 1 else [found]

    return weigh
