"""A perceptron with a launch for each layer (perceptron_layers.cuh): all multiprocessors share the columns of each layer, and the weights of a launch
are on their way while the one before it ends. `case` is one of fused_mlp, or a part of a model's, whose rows of x may take `pitch` elements, whole
vectors with zeros past N0.

Each layer is a product with its own tile (_shared/cuda/matmul.py, or matmul_split.py with KERNEL=split, whose CLUSTER blocks share the K of a
tile, or matmul_turned.py with KERNEL=turned); the tunables of layer 2 begin with layer2_. Hidden layers lie in global
memory with rows of whole vectors of 16 bytes, and weights as `prepared`: filled up with zeros to the same, and turned where the products
want it so. Rows of x that are no whole vectors are copied to such rows first, by one launch more.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from implementations._shared.cuda import matmul, matmul_choice, matmul_split, matmul_turned
from implementations._shared.cuda.launch import TYPES, Launch, in_turn, instance, not_one_of, of_launch, prefixed
from implementations._shared.cuda.perceptron import widths
from implementations._shared.gpu import filled_up, is_ieee, rows_are_aligned

PREFETCHED = "none", "next"  # PREFETCH: whether a launch brings the weights of the next one to the L2 cache
MOST_PREFETCHED = 8 << 20  # bytes, of a cache that has x and hidden layers, too
COPIED = 64  # columns of x that are no whole vectors, and are read one by one all the same
# Estimates, in clocks, fitted to 130 times of 60 perceptrons on an H200, nearly all to within 20 %: from the end of one launch to the first product of the
# next, of few rows, whose estimates have no more than products and what is read, on the float32 units, and of others, whose estimates have their
# end, too; bytes that all multiprocessors read or write in one of memory, and of the L2 cache
LAUNCH_CLOCKS, IEEE_LAUNCH_CLOCKS, SHORT_LAUNCH_CLOCKS, MEMORY_BYTES, CACHE_BYTES = 3500, 2500, 3000, 1700, 3000
BY_COPY_ENGINE = "warpgroup", "split", "turned"  # KERNEL of those that read x and W so


@dataclass(frozen=True)
class Layer:
    """A layer: the product as its launch computes it, how many columns it really has, and its activation."""

    product: Any
    width: int
    activation: str

    @property
    def is_filled(self):
        return self.product.sizes["N"] != self.width


def are_filled(case):
    """Whether a hidden layer has no whole vectors, so that its rows and the weights of the next are filled up."""
    return not rows_are_aligned(case, *widths(case)[1:-1])


def copies_rows(case, pitch=None):
    """Whether x is copied: its elements would be read one by one, for each block of columns again. 32×367-512-256-1 took 24 µs so, in one launch 12."""
    N0 = case.sizes["N0"]
    return not rows_are_aligned(case, pitch or N0) and N0 > COPIED


def layers(case, pitch=None):
    """The layers of a case."""
    sizes, nk = widths(case), case.options["w_layout"] == "nk"
    first = filled_up(case, sizes[0]) if copies_rows(case, pitch) else pitch or sizes[0]
    filled = first, *(filled_up(case, n) for n in sizes[1:-1]), sizes[-1]
    found = []
    for number, (K, N) in enumerate(pairwise(filled), 1):
        product = matmul.prepared_case(matmul.product(case, case.sizes["M"], K, N, nk))
        if _is_one_slab(product):
            product = matmul.turned(product)
        activation = case.options["last"].upper() if number == case.sizes["LAYERS"] else "RELU"
        found.append(Layer(product, sizes[number], activation))
    return found


def _is_one_slab(product):
    """Whether layer_one_slab is for a product, once W is (N, K): with tensor cores, no more than a slab of K, and rows that lie anywhere."""
    K = product.sizes["K"]
    return not is_ieee(product) and matmul.slab(product) >= K and not rows_are_aligned(product, K)


def prepared_layers(case, pitch=None):
    """The layers (from 1) whose W is stored otherwise than it is given, of each of which `prepared` makes an array."""
    found = []
    for number, (layer, sizes) in enumerate(zip(layers(case, pitch), pairwise(widths(case)), strict=True), 1):
        own = layer.product
        if own.options["w_layout"] != case.options["w_layout"] or own.size("K", "N") != sizes:
            found.append(number)
    return found


def prepared(case, arrays, pitch=None):
    """The W of those layers that store it otherwise. `arrays` are W1, b1, W2, b2, …"""
    import torch

    made, stored_otherwise = [], prepared_layers(case, pitch)
    for number, (layer, W) in enumerate(zip(layers(case, pitch), arrays[::2], strict=True), 1):
        if number in stored_otherwise:
            K, N = layer.product.size("K", "N")
            N = filled_up(case, N) if layer.product.options["w_layout"] == "filled" else N
            rows = W.T if case.options["w_layout"] == "nk" else W
            whole = torch.nn.functional.pad(rows, (0, N - rows.shape[1], 0, K - rows.shape[0]))
            made.append((whole.T if layer.product.options["w_layout"] == "nk" else whole).contiguous())
    return tuple(made)


def _tiles(product):
    """All of a product."""
    return (*matmul.TENSOR_TILES, *matmul.products_tiles(product), *matmul.ALL_FEW_ROWS_TILES, *matmul.SIMT_SPLIT_TILES)


def config(case, device):
    """The tunables of all layers."""
    found = {"PREFETCH": "next"}
    for number, layer in enumerate(layers(case), 1):
        found |= prefixed(f"layer{number}", layer_config(layer.product, device))
    return found


def layer_config(product, device):
    """The tunables of a layer's launch: those of the fastest, by the estimates, of whole tiles, of those whose K blocks share, and of turned ones."""
    own = matmul_choice.config(product, device, _tiles(product))
    if is_ieee(product):
        return own
    # not by elements one by one, of x and of W, where y alone has no whole vectors
    by_elements = own["KERNEL"] == "tensor" and not rows_are_aligned(product, *product.size("K", "N"))
    found = matmul_split.or_split(product, None if by_elements else own, device, columns=matmul_split.WIDE, narrow=True)
    found = matmul_turned.or_turned(product, found, device) or own
    if found["KERNEL"] == "tensor" and _is_one_slab(product) and product.options["w_layout"] == "nk":
        found = found | {"KERNEL": "one_slab", "num_stages": 1}
    return {name: value for name, value in found.items() if name != "SCHEDULE"}  # which is `tiles` of all


def fits(case, device, config):
    """Why the tunables of a layer cannot run, or None."""
    if reason := not_one_of("PREFETCH", config["PREFETCH"], PREFETCHED):
        return reason
    for number, layer in enumerate(layers(case), 1):
        own = of_launch(f"layer{number}", config)
        if reason := layer_fits(layer.product, device, own):
            return f"layer{number}: {reason}"
    return None


def layer_fits(product, device, config):
    """Why those of a layer cannot run, or None."""
    if config["KERNEL"] == "split":
        return matmul_split.fits(product, device, matmul_split.of_cluster(config), known=matmul_split.WIDE, narrow=True)
    if config["KERNEL"] == "turned":
        return matmul_turned.fits(product, device, config)
    if config["KERNEL"] == "one_slab":
        if not _is_one_slab(product):
            return f"KERNEL=one_slab is for K of up to {matmul.slab(product)} on tensor cores, of no whole vectors of 16 bytes"
        if reason := not_one_of("num_stages", config["num_stages"], (1,)):
            return f"KERNEL=one_slab: {reason}"
        config = _of_tensor(config)
    return matmul.fits(product, device, config, tiles=_tiles(product))


def _of_tensor(config):
    """A config with KERNEL=one_slab as that of `tensor`, whose tiles it has."""
    return config | {"KERNEL": "tensor", "num_stages": 2} if config["KERNEL"] == "one_slab" else config


def clocks(case, device, config):
    """Clocks that the launches are expected to take."""
    own = (of_launch(f"layer{number}", config) for number in range(1, case.sizes["LAYERS"] + 1))
    copied = 2 * math.prod(case.size("M", "N0")) * case.itemsize / CACHE_BYTES + LAUNCH_CLOCKS / 2
    total = sum(layer_clocks(layer.product, device, c) for layer, c in zip(layers(case), own, strict=True))
    return total + (copied if copies_rows(case) else 0)


def layer_clocks(product, device, config):
    """Clocks that a layer's launch is expected to take."""
    (M, K, N), kernel = product.size("M", "K", "N"), config["KERNEL"]
    launch = IEEE_LAUNCH_CLOCKS if is_ieee(product) else LAUNCH_CLOCKS if kernel == "few_rows" else SHORT_LAUNCH_CLOCKS
    if kernel == "turned":
        time = matmul_turned.time(product, config, 1, device)
    else:
        time = matmul_split.time_of_either(product, _of_tensor(config), 1, device)
    if kernel == "few_rows" and is_ieee(product):
        time -= matmul_choice.FEW_SIMT_START
    moved = (M * K + K * N + M * N) * product.itemsize
    rate = CACHE_BYTES if M * max(K, N) * product.itemsize <= matmul_choice.L2_BYTES // 2 else MEMORY_BYTES
    return launch + max(time * matmul_choice.CLOCK, moved / rate)


def launches(file, case, device, config, pitch=None):
    """The launches of all layers, of `file`, behind one that copies x where it does. What one writes, the next one reads."""
    found, of = [], layers(case, pitch)
    if copies_rows(case, pitch):
        given = matmul.product(case, *case.size("M", "N0", "N1"))
        found.append(matmul.row_copy(file, given, of[0].product, device))
    for number, (layer, behind) in enumerate(zip(of, [*of[1:], None], strict=True), 1):
        bytes_of_next = math.prod(behind.product.size("K", "N")) * case.itemsize if behind else 0
        wanted = config["PREFETCH"] == "next" and bytes_of_next <= MOST_PREFETCHED
        found.append(
            layer_launch(file, layer, device, of_launch(f"layer{number}", config), bytes_of_next if wanted else 0)
        )
    return in_turn(*found)


def layer_launch(file, layer, device, config, bytes_of_next=0):
    """The launch of a layer, of `file`, which brings so many bytes of the next one's weights to the L2 cache."""
    product, kernel, arguments = layer.product, config["KERNEL"], (layer.activation, layer.is_filled)
    operand = matmul.operand(product) if kernel in BY_COPY_ENGINE else product.dtype
    dtypes = operand, operand, *(product.dtype,) * 3
    if kernel == "one_slab":
        launch = _one_slab(file, layer, _of_tensor(config), dtypes)
    else:
        launch = matmul_turned.launch_of_any(file, "layer", product, device, config, dtypes, arguments)
    return replace(launch, sizes=(layer.width, bytes_of_next))


def _one_slab(file, layer, config, dtypes):
    """The same of layer_one_slab, which has one stage."""
    product, tile = layer.product, matmul.tile_of(layer.product, config)
    (M, N), shape = product.size("M", "N"), (tile.rows, tile.columns, tile.warps_m, tile.warps_n)
    arguments = layer.activation, layer.is_filled, rows_are_aligned(product, N), *shape
    program = instance(file, "layer_one_slab", TYPES[product.dtype], *arguments)
    memory = matmul.tile_bytes(tile, 1, 1, product.itemsize)
    return Launch(program, matmul.blocks(tile, M, N), tile.threads, memory, dtypes=dtypes)


def call(described, case, pitch=None):
    """A function of x (M, N0), W1, b1, W2, b2, … and what was `prepared`, which returns (M, N of the last layer)."""
    products, count = [layer.product for layer in layers(case, pitch)], case.sizes["LAYERS"]
    copied = len(described) - count
    *before, last = [({3: p.size("M", "N")}, p.size("M", "K", "N")) for p in products]
    runs = [d.returning(*own) for d, own in zip(described[copied:-1], before, strict=True)]
    end = described[-1].returning(*last, absent=(4,))
    (M, K), whole = case.size("M", "N0"), products[0].sizes["K"]
    copy = described[0].returning({1: (M, whole)}, (M, K, whole, 0), absent=(2,)) if copied else None
    places = list(range(0, 2 * count, 2))  # of W among the arguments behind x
    for more, number in enumerate(prepared_layers(case, pitch)):
        places[number - 1] = 2 * count + more

    def run(x, *arrays):
        x = copy(x) if copy else x
        for i, layer in enumerate(runs):
            x = layer(x, arrays[places[i]], arrays[2 * i + 1], arrays[places[i + 1]])
        return end(x, arrays[places[-1]], arrays[2 * count - 1])

    return run
