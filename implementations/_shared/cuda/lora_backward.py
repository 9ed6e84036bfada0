"""The launches of lora_backward.cuh, the backward pass of a linear layer with an adapter, and the choice of their tiles.

`case` is one layer, as in lora.py. The tunables: KERNEL, what multiplies (`tensor` or, IEEE float32, `simt`: one launch of all
products; `warpgroup`: one of each; `whole`: one launch of everything, of few rows), and the tiles of the two large products, dx and
dW. `whole` has one tile, and takes dx_num_stages alone.
"""

import itertools
from dataclasses import replace

from implementations._shared.cuda import lora, matmul
from implementations._shared.cuda.launch import TYPES, Launch, instance, of_launch, prefixed, too_large
from implementations._shared.gpu import is_ieee, multiprocessors, rows_are_aligned

THREADS, RANKS = 256, 4  # as in `few`
FEW = 4096  # of elements of dxa: more of them share rows of dz and B in tiles
NARROW_STAGES = 4  # of dA, dB and db
MANY_ROWS = 256  # from which warpgroups multiply
WHOLE_ROWS, WHOLE_RANK = 64, 32  # the most that `whole` takes
WHOLE_THREADS, WHOLE_LANES, WHOLE_PART = 384, 256, 32  # as in lora_few_rows.cuh: of them READERS, and ROWS
TILES = tuple(t for t in matmul.TENSOR_TILES if t.columns < 256)  # three kinds of tiles in one kernel


def products(case):
    """The cases of dx = dz @ Wᵀ and of dW, which is of a transposed left operand."""
    M, K, N = case.size("M", "K", "N")
    nk = case.options["w_layout"] == "nk"
    dW = matmul.product(case, N, M, K) if nk else matmul.product(case, K, M, N)
    return {"dx": matmul.product(case, M, N, K, not nk), "dW": dW}


def config(case, device):
    """The tunables of both products."""
    own = products(case)
    # 64 KiB of W are under way on a multiprocessor by two stages; a third cost 3 µs on an H200
    whole = _one_launch(case, device) | {"KERNEL": "whole", "dx_num_stages": 2}
    if fits(case, device, whole) is None:
        return whole
    if case.sizes["M"] >= MANY_ROWS and all(_by_warpgroups(case, own, device)):
        found = {of: matmul.config(own[of], device, matmul.WARPGROUP_TILES) for of in own}
        return {"KERNEL": "warpgroup"} | {
            f"{of}_{name}": value for of, c in found.items() for name, value in c.items() if name != "KERNEL"
        }
    return _one_launch(case, device)


def _one_launch(case, device):
    """The tunables of `products`."""
    own = products(case)
    pairs = [(dx, dW) for dx, dW in itertools.product(TILES, TILES) if dx.threads == dW.threads]
    dx, dW = min(pairs, key=lambda pair: _work(own["dx"], pair[0], device) + _work(own["dW"], pair[1], device))
    found = {"KERNEL": "simt" if is_ieee(case) else "tensor"}
    for of, tile in (("dx", dx), ("dW", dW)):
        found |= prefixed(of, {"BLOCK_M": tile.rows, "BLOCK_N": tile.columns, "CLUSTER": 1})
    # more stages than slabs wait for nothing, and leave room for fewer blocks
    slabs = {f"{of}_num_stages": max(2, -(-own[of].sizes["K"] // matmul.slab(case))) for of in own}
    choices = (found | {name: min(n, most) for name, most in slabs.items()} for n in (4, 3, 2))
    return next(c for c in choices if fits(case, device, c) is None)


def _by_warpgroups(case, own, device):
    """Whether warpgroups can multiply each product; the copy engine wants rows of whole vectors, of a transposed operand too."""
    yield matmul.multiplies_by_warpgroups(own["dx"], device) and rows_are_aligned(case, case.sizes["R"])
    yield matmul.multiplies_by_warpgroups(own["dW"], device) and rows_are_aligned(own["dW"], own["dW"].sizes["M"])


def _work(product, tile, device):
    """What the busiest multiprocessor has of a product in such tiles."""
    M, K, N = product.size("M", "K", "N")
    return (
        -(-matmul.blocks(tile, M, N) // multiprocessors(device))
        * tile.rows
        * tile.columns
        * tile.cost
        * max(K, matmul.slab(product))
    )


def tile_of(config, of):
    """The tile of dx or dW in a config of one launch, or None where there is no such instance."""
    own = of_launch(of, config)
    return next((t for t in TILES if (t.rows, t.columns, 1) == (own["BLOCK_M"], own["BLOCK_N"], own["CLUSTER"])), None)


def fits(case, device, config):
    """Why a config cannot run, or None."""
    own, kernel = products(case), config["KERNEL"]
    if kernel == "warpgroup":
        if not all(_by_warpgroups(case, own, device)):
            return f"{matmul.NO_WARPGROUPS}, and R in eights"
        reasons = (matmul.fits(own[of], device, of_launch(of, config) | {"KERNEL": kernel}) for of in own)
        return next(filter(None, reasons), None)
    if kernel == "whole":
        return _misfit_of_whole(case, device, config)
    if kernel != ("simt" if is_ieee(case) else "tensor"):
        return "IEEE float32 is multiplied by KERNEL=simt, everything else by tensor or warpgroup"
    tiles = [tile_of(config, of) for of in own]
    if None in tiles:
        return f"the tiles of dx and dW are {', '.join(f'{t.rows}×{t.columns}' for t in TILES)} in clusters of 1"
    if tiles[0].threads != tiles[1].threads:
        return f"a block of dx has {tiles[0].threads} threads, one of dW {tiles[1].threads}: all have the same"
    if (stages := min(config["dx_num_stages"], config["dW_num_stages"])) < 2:
        return f"num_stages is {stages}: one is read while another is written"
    return too_large(_products_bytes(case, config), device)


def is_few(case):
    """Whether dxa has so few elements that each is summed by a block."""
    return case.sizes["M"] * case.sizes["R"] <= FEW


def launches(file, case, device, config):
    """`few`, or `low` behind `pulled` where there is an activation; then `products`, or dx, dW and `narrow`. `file` includes
    lora_backward.cuh."""
    (K, N), own, dtype = case.size("K", "N"), products(case), case.dtype
    if config["KERNEL"] == "whole":
        first = () if case.options["activation"] == "none" else (_elementwise(file, "pulled", case),)
        return *first, _whole(file, case, device, config)
    first = _low(file, case)
    if config["KERNEL"] == "warpgroup":
        return *first, *_by_warpgroups_launches(file, case, device, config)
    nk, tiles = case.options["w_layout"] == "nk", [tile_of(config, of) for of in own]
    shapes = [
        (t.rows, t.columns, t.warps_m, t.warps_n, config[f"{of}_num_stages"]) for of, t in zip(own, tiles, strict=True)
    ]
    arguments = *lora.common(case), nk, *shapes[0], *shapes[1], _rank_columns(case), NARROW_STAGES
    threads = tiles[0].threads
    grid = sum(matmul.blocks(tile, *own[of].size("M", "N")) for of, tile in zip(own, tiles, strict=True))
    grid += _narrow_blocks(K, N, threads)
    program, memory = instance(file, "products", *arguments), _products_bytes(case, config)
    return *first, Launch(program, grid, threads, memory, dtypes=(dtype,) * 12)


def _is_whole(case):
    """Whether `whole` can make the layer's gradients."""
    M, K, N, R = case.size("M", "K", "N", "R")
    few = M <= WHOLE_ROWS and R <= WHOLE_RANK and case.itemsize == 2
    return few and rows_are_aligned(case, K, N) and case.options["w_layout"] == "kn"


def _misfit_of_whole(case, device, config):
    """Why `whole` cannot run with a config, or None."""
    if not _is_whole(case):
        return f"KERNEL=whole takes at most {WHOLE_ROWS} rows of 16 bits, R up to {WHOLE_RANK}, K and N in eights, w_layout=kn"
    if (stages := config["dx_num_stages"]) < 2:
        return f"dx_num_stages is {stages}: one is read while another is written"
    usual = _one_launch(case, device) | {"KERNEL": "whole", "dx_num_stages": stages}
    if other := [f"{name}={value}" for name, value in config.items() if value != usual[name]]:
        return f"KERNEL=whole takes dx_num_stages alone, not {other[0]}"
    return too_large(_whole_bytes(case, config), device)


def _whole_tile(case):
    """Rows and columns of xa that it has, powers of two."""
    M, R = case.size("M", "R")
    return max(16, 1 << (M - 1).bit_length()), max(8, 1 << (R - 1).bit_length())


def _whole_bytes(case, config):
    """Shared memory of a block of `whole`: of a stage 128 bytes of each row for each reading warp, and rows of A."""
    rows, rank = _whole_tile(case)
    stage = (WHOLE_PART + rank + rows) * 128 * WHOLE_LANES // 32
    return config["dx_num_stages"] * stage + WHOLE_PART * case.sizes["R"] * case.itemsize


def _whole(file, case, device, config):
    """The launch of all gradients of few rows."""
    (K, N), dtype = case.size("K", "N"), case.dtype
    program = instance(file, "few_rows::whole", TYPES[dtype], *_whole_tile(case), config["dx_num_stages"])
    parts = -(-K // WHOLE_PART)
    grid = min(multiprocessors(device), max(parts, (parts + 1) * -(-N // 256)))
    return Launch(program, grid, WHOLE_THREADS, _whole_bytes(case, config), dtypes=(dtype,) * 12)


def _rank_columns(case):
    """Columns of the tile of dA: a power of two."""
    return max(16, 1 << (case.sizes["R"] - 1).bit_length())


def _narrow_blocks(K, N, threads):
    """Of dA, and of dB and db: a warp has 16 rows."""
    return -(-K // (threads // 2)) + -(-N // (threads // 2))


def _narrow_bytes(case, threads):
    return max(NARROW_STAGES * (threads // 2 + _rank_columns(case)) * 128, threads * 4)


def _products_bytes(case, config):
    """Shared memory of a block of `products`."""
    own = {of: tile_of(config, of) for of in ("dx", "dW")}
    large = (matmul.tile_bytes(tile, 1, config[f"{of}_num_stages"], case.itemsize) for of, tile in own.items())
    return max(*large, _narrow_bytes(case, own["dx"].threads))


def _low(file, case):
    """The launches of dz and dxa."""
    M, N, R = case.size("M", "N", "R")
    dtype, activation, aligned = case.dtype, case.options["activation"].upper(), rows_are_aligned(case, N)
    if is_few(case):
        program = instance(file, "few", TYPES[dtype], activation, aligned)
        return (Launch(program, M * -(-R // RANKS), THREADS, dtypes=(dtype,) * 6),)
    tile, stages = lora.DOWN, lora.DOWN_STAGES
    columns, warps = lora.rank_columns(case, tile), lora.low_warps(tile)
    program = instance(file, "low", TYPES[dtype], is_ieee(case), aligned, tile.rows, columns, *warps, stages)
    memory = stages * (tile.rows + columns) * 128
    low = Launch(program, -(-M // tile.rows), tile.threads, memory, dtypes=(dtype,) * 4)
    return (low,) if activation == "NONE" else (_elementwise(file, "pulled", case), low)


def _elementwise(file, kernel, case):
    """The launch of `pulled` or of `activated`, a vector a thread."""
    program = instance(file, kernel, TYPES[case.dtype], case.options["activation"].upper())
    vectors = -(-case.sizes["M"] * case.sizes["N"] * case.itemsize // 16)
    return Launch(program, -(-vectors // THREADS), THREADS, dtypes=(case.dtype,) * (3 if kernel == "pulled" else 2))


def _by_warpgroups_launches(file, case, device, config):
    """dx, dW and `narrow`."""
    (K, N), own, dtype, kernel = case.size("K", "N"), products(case), case.dtype, {"KERNEL": "warpgroup"}
    of_dx, of_dW = of_launch("dx", config), of_launch("dW", config)
    dx = matmul.launch(file, "inputs", own["dx"], device, of_dx | kernel, dtypes=(dtype,) * 5)
    deep = matmul.slab(case)
    adapter = (of_dx["BLOCK_M"], deep), (of_dx["BLOCK_N"] // of_dx["CLUSTER"], deep)
    dW = matmul.launch(file, "weights", own["dW"], device, of_dW | kernel, dtypes=(dtype,) * 3, transposed=True)
    threads = 128
    program = instance(file, "narrow", *lora.common(case), _rank_columns(case), threads // 32, NARROW_STAGES)
    memory = _narrow_bytes(case, threads)
    narrow = Launch(program, _narrow_blocks(K, N, threads), threads, memory, dtypes=(dtype,) * 8)
    return replace(dx, boxes=(*dx.boxes, *adapter)), dW, narrow


def kept_launches(file, case, device):
    """The forward pass of backward modes: `down`, `up` to z and, where there is an activation, `activated`."""
    straight = _straight(case)
    found = lora.launches(file, straight, "two_launches", device, lora.config(straight, "two_launches", device))
    return found if case.options["activation"] == "none" else (*found, _elementwise(file, "activated", case))


def _straight(case):
    """The case of z, without an activation."""
    return replace(case, options={**case.options, "activation": "none"})


def build(file, case, device, config):
    """(forward, backward) of a layer: forward(x, scale, W, b, A, B) → y and what backward needs; backward(that, dy) → dx, dW, db, dA, dB."""
    M, N = case.size("M", "N")
    down, up, *activated = kept_launches(file, case, device)
    layer = lora.in_two_launches(case, down, up, keeps=True)
    activated = [launch.returning({1: (M, N)}, (M * N,)) for launch in activated]
    small, large = _bound(case, launches(file, case, device, config), config["KERNEL"] == "whole")

    def forward(x, scale, W, b, A, B):
        z, xa = layer(x, scale, W, b, A, B)
        if not activated:
            return z, (x, scale, W, A, B, xa)
        return activated[0](z), (x, scale, W, A, B, xa, z)

    def backward(residuals, dy):
        x, scale, W, A, B, xa, *z = residuals
        dz, *dxa = small(dy, scale, B, *z)
        dx, dW, dA, dB, db = large(dz, W, x, A, B, xa, scale, *dxa)
        return dx, dW, db, dA, dB

    return forward, backward


def _bound(case, described, whole):
    """Two functions: (dy, scale, B and, where there is an activation, z) → dz and, unless `whole`, dxa; and (dz, W, x, A, B, xa, scale,
    dxa unless `whole`) → dx, dW, dA, dB, db."""
    sizes = M, K, N, R = case.size("M", "K", "N", "R")
    linear, nk = case.options["activation"] == "none", case.options["w_layout"] == "nk"
    of_W, adapter = (N, K) if nk else (K, N), ((K, R), (R, N), (N,))
    few = is_few(case) and not whole
    pulled = None if linear or few else described[0].returning({2: (M, N)}, (M * N,))
    described = described if pulled is None else described[1:]

    def all_at_once(launch):
        return launch.returning(dict(enumerate(((M, K), of_W, *adapter), 7)), sizes)

    if whole:
        (last,) = described
        return (lambda dy, scale, B, z=None: (pulled(z, dy) if pulled else dy,)), all_at_once(last)
    first, *last = described
    if not few:
        low = first.returning({3: (M, R)}, (M, N, R))
    elif linear:
        low = first.returning({5: (M, R)}, (N, R))
    else:
        low = first.returning({4: (M, N), 5: (M, R)}, (N, R))

    def small(dy, scale, B, z=None):
        if few:
            return (dy, low(dy, dy, scale, B, dy)) if linear else low(z, dy, scale, B)
        dz = pulled(z, dy) if pulled else dy
        return dz, low(dz, scale, B)

    if len(last) == 1:
        products = all_at_once(last[0])
        return small, lambda dz, W, x, A, B, xa, scale, dxa: products(dz, W, x, A, xa, scale, dxa)
    inputs, weights, narrow = last
    inputs = inputs.returning({4: (M, K)}, (M, N, K, R))
    weights = weights.returning({2: of_W}, (N, M, K) if nk else (K, M, N))
    narrow = narrow.returning(dict(enumerate(adapter, 5)), sizes)

    def large(dz, W, x, A, B, xa, scale, dxa):
        return inputs(dz, W, dxa, A), weights(dz, x) if nk else weights(x, dz), *narrow(x, dxa, dz, xa, scale)

    return small, large
