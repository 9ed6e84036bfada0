"""fused_mlp in CUDA with a launch for each layer (cuda_layers.cu): KERNEL=layers of cuda.py, for layers so wide that a block would read
more weights for its rows than it has products to make of them.

Each layer is a product with its own tile (_shared/cuda/matmul.py, or matmul_split.py with KERNEL=split, whose CLUSTER blocks share the K of a
tile, or matmul_turned.py with KERNEL=turned); the tunables of layer 2 begin with layer2_. Hidden layers lie in global
memory with rows of whole vectors of 16 bytes, and weights as `prepared`: filled up with zeros to the same, and turned where the products
want it so. Many rows of x that are no whole vectors are copied to such rows first, by one launch more.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from implementations._shared.cuda import matmul, matmul_choice, matmul_split, matmul_turned
from implementations._shared.cuda.launch import TYPES, Launch, in_turn, instance, not_one_of, of_launch, prefixed
from implementations._shared.cuda.perceptron import widths
from implementations._shared.gpu import filled_up, is_ieee, rows_are_aligned

FILE = Path(__file__).with_name("cuda_layers.cu")
PREFETCHED = "none", "next"  # PREFETCH: whether a launch brings the weights of the next one to the L2 cache
MOST_PREFETCHED = 8 << 20  # bytes, of a cache that has x and hidden layers, too
COPIED = 64  # columns of x that are no whole vectors, and are read one by one all the same
LEAST_WEIGHTS = 1 << 16  # elements of the widest layer; fewer have not been compared on a card
# Estimates, in clocks: from the end of one launch to the first product of the next, of few rows or on the float32 units, whose estimates have
# no more than products and what is read, and of others, whose estimates have their end, too; bytes that all multiprocessors read or write in
# one of memory, and of the L2 cache
LAUNCH_CLOCKS, SHORT_LAUNCH_CLOCKS, MEMORY_BYTES, CACHE_BYTES = 3500, 2100, 1700, 3000
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


def are_wide(case):
    """Whether launches of their own may be worth it for the layers, of which there are several."""
    if case.sizes["LAYERS"] == 1 or _reads_elements(case):
        return False
    return are_filled(case) or max(K * N for K, N in pairwise(widths(case))) >= LEAST_WEIGHTS


def are_filled(case):
    """Whether a hidden layer has no whole vectors, so that its rows and the weights of the next are filled up."""
    return not rows_are_aligned(case, *widths(case)[1:-1])


def _reads_elements(case):
    """Whether x comes one element at a time, for each block of columns again: 32×367-512-256-1 took 24 µs, in one launch 12."""
    N0 = case.sizes["N0"]
    return not rows_are_aligned(case, N0) and N0 > COPIED and not copies_rows(case)


def copies_rows(case):
    """Whether x is copied: its elements would be read one by one, several times by blocks of several columns."""
    M, N0 = case.size("M", "N0")
    return not rows_are_aligned(case, N0) and N0 > COPIED and M >= 128


def layers(case):
    """The layers of a case."""
    sizes, nk = widths(case), case.options["w_layout"] == "nk"
    first = filled_up(case, sizes[0]) if copies_rows(case) else sizes[0]
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
    """Whether layer_one_slab is for a product: with tensor cores, no more than a slab of K, and rows that lie anywhere."""
    K = product.sizes["K"]
    return not is_ieee(product) and matmul.slab(product) >= K and not rows_are_aligned(product, K)


def is_prepared(case, number):
    """Whether W of a layer (from 1) is stored otherwise than it is given."""
    product, sizes = layers(case)[number - 1].product, widths(case)
    given = case.options["w_layout"], sizes[number - 1], sizes[number]
    return (product.options["w_layout"], *product.size("K", "N")) != given


def prepared(case, arrays):
    """The W of those layers that store it otherwise. `arrays` are W1, b1, W2, b2, …"""
    import torch

    made = []
    for number, (layer, W) in enumerate(zip(layers(case), arrays[::2], strict=True), 1):
        if is_prepared(case, number):
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
    if found["KERNEL"] == "tensor" and _is_one_slab(product):
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
    (M, K, N), kernel, launch = product.size("M", "K", "N"), config["KERNEL"], LAUNCH_CLOCKS
    if kernel == "turned":
        time = matmul_turned.time(product, config, 1, device)
    else:
        time = matmul_split.time_of_either(product, _of_tensor(config), 1, device)
    if kernel == "few_rows" and is_ieee(product):
        time -= matmul_choice.FEW_SIMT_START
    elif kernel not in ("few_rows", "simt"):
        launch = SHORT_LAUNCH_CLOCKS
    moved = (M * K + K * N + M * N) * product.itemsize
    rate = CACHE_BYTES if M * max(K, N) * product.itemsize <= matmul_choice.L2_BYTES // 2 else MEMORY_BYTES
    return launch + max(time * matmul_choice.CLOCK, moved / rate)


def launches(case, device, config):
    """The launches of all layers, behind one that copies x where it does. What one writes, the next one reads."""
    found, of = [], layers(case)
    if copies_rows(case):
        given = matmul.product(case, *case.size("M", "N0", "N1"))
        found.append(matmul.row_copy(FILE, given, of[0].product, device))
    for number, (layer, behind) in enumerate(zip(of, [*of[1:], None], strict=True), 1):
        bytes_of_next = math.prod(behind.product.size("K", "N")) * case.itemsize if behind else 0
        wanted = config["PREFETCH"] == "next" and bytes_of_next <= MOST_PREFETCHED
        found.append(layer_launch(layer, device, of_launch(f"layer{number}", config), bytes_of_next if wanted else 0))
    return in_turn(*found)


def layer_launch(layer, device, config, bytes_of_next=0):
    """The launch of a layer, which brings so many bytes of the next one's weights to the L2 cache."""
    product, kernel, arguments = layer.product, config["KERNEL"], (layer.activation, layer.is_filled)
    operand = matmul.operand(product) if kernel in BY_COPY_ENGINE else product.dtype
    dtypes = operand, operand, *(product.dtype,) * 3
    if kernel == "one_slab":
        launch = _one_slab(layer, _of_tensor(config), dtypes)
    else:
        launch = matmul_turned.launch_of_any(FILE, "layer", product, device, config, dtypes, arguments)
    return replace(launch, sizes=(layer.width, bytes_of_next))


def _one_slab(layer, config, dtypes):
    """The same of layer_one_slab, which has one stage."""
    product, tile = layer.product, matmul.tile_of(layer.product, config)
    (M, N), shape = product.size("M", "N"), (tile.rows, tile.columns, tile.warps_m, tile.warps_n)
    arguments = layer.activation, layer.is_filled, rows_are_aligned(product, N), *shape
    program = instance(FILE, "layer_one_slab", TYPES[product.dtype], *arguments)
    memory = matmul.tile_bytes(tile, 1, 1, product.itemsize)
    return Launch(program, matmul.blocks(tile, M, N), tile.threads, memory, dtypes=dtypes)


def call(described, case):
    """A function of x (M, N0), W1, b1, W2, b2, … and what was `prepared`, which returns (M, N of the last layer)."""
    products, count = [layer.product for layer in layers(case)], case.sizes["LAYERS"]
    copied = len(described) - count
    *before, last = [({3: p.size("M", "N")}, p.size("M", "K", "N")) for p in products]
    runs = [d.returning(*own) for d, own in zip(described[copied:-1], before, strict=True)]
    end = described[-1].returning(*last, absent=(4,))
    (M, K), pitch = case.size("M", "N0"), products[0].sizes["K"]
    copy = described[0].returning({1: (M, pitch)}, (M, K, pitch, 0), absent=(2,)) if copied else None
    # places of W among the arguments behind x
    places, more = [], 2 * count
    for number in range(1, count + 1):
        if is_prepared(case, number):
            places.append(more)
            more += 1
        else:
            places.append(2 * number - 2)

    def run(x, *arrays):
        x = copy(x) if copy else x
        for i, layer in enumerate(runs):
            x = layer(x, arrays[places[i]], arrays[2 * i + 1], arrays[places[i + 1]])
        return end(x, arrays[places[-1]], arrays[2 * count - 1])

    return run
