"""The launches of lora_backward.cuh, the backward pass of a linear layer with an adapter, and the choice of their tiles.

`case` is one layer, as in lora.py. The tunables: KERNEL, what multiplies (`tensor` or, IEEE float32, `simt`: one launch of all
products; `warpgroup` or, IEEE float32, `apart`: one of each; of few rows `few`: one of each, dx by warps that share N, or `whole`: one launch of
everything), and the tiles of the two large products, dx and dW. `whole` has one tile, and takes dx_num_stages alone. Matrices whose rows are no whole vectors of 16 bytes are copied
by the forward pass, dy by the backward pass (`filled`).
"""

import itertools
import math
from dataclasses import replace

from implementations._shared.cuda import lora, matmul, matmul_choice, matmul_split, weights
from implementations._shared.cuda.launch import TYPES, Launch, in_turn, instance, of_launch, prefixed, too_large
from implementations._shared.gpu import filled_up, is_ieee, multiprocessors, rows_are_aligned, usual_kernel

THREADS, RANKS = 256, 4  # as in `few`
FEW = 4096  # of elements of dxa: more of them share rows of dz and B in tiles
NARROW_STAGES = 4  # of dA, dB and db
NARROW_RESIDENT = 4  # blocks of them that a multiprocessor has at once
# Rows from which each product has a launch, and in tf32: 300×2048→2048 took an H200 60.3 µs by warpgroups, by `tensor` 58.7, with 1000 rows 83 and 155
MANY_ROWS, MANY_ROWS_IN_TF32 = 256, 320
DEEP = 1024  # N from which warps share that of few rows of float: with 500 128×1048 took 35.5 µs so, in one launch 26.5, 2×215→3523 33.6 and 86.9
MANY_PRODUCTS = 2**30  # the same: fewer are done before three launches have begun
EACH = "warpgroup", "apart", "few"  # values of KERNEL with a launch for each product
WHOLE_ROWS, WHOLE_RANK = 64, 32  # the most that `whole` takes
WHOLE_THREADS, WHOLE_LANES, WHOLE_PART = 384, 256, 32  # as in lora_few_rows.cuh: of them READERS, and ROWS
WHOLE_ODD = 32  # as MOST_ODD there
WHOLE_STAGED = 4 * WHOLE_PART * 72  # elements of the writers' units in shared memory
TILES = tuple(t for t in matmul.TENSOR_TILES if t.columns < 256)  # three kinds of tiles in one kernel


def filled(case):
    """The case with rows of whole vectors, which the products read."""
    sizes = {name: filled_up(case, case.sizes[name]) for name in ("K", "N", "R")}
    return replace(case, sizes={**case.sizes, **sizes})


def filled_products(case, kernel):
    """The cases of the products as launches of their own read them. M, which is the K of dW, lies across the rows of both of its operands, so that
    any will do; but warpgroups have those of tf32 turned, and M filled up."""
    own = matmul.gradients(filled(case))
    dW = own["dW"]
    if _turns(case, kernel):
        dW = matmul.turned(dW)
    return own | {"dW": replace(dW, sizes={**dW.sizes, "K": filled_up(case, dW.sizes["K"])})}


def _turns(case, kernel):
    """Whether a launch turns the operands of dW."""
    return kernel == "warpgroup" and matmul.operand(case) == "tf32"


def config(case, device):
    """The tunables of both products."""
    # 64 KiB of W are under way on a multiprocessor by two stages; a third cost 3 µs on an H200
    whole = _one_launch(case, device) | {"KERNEL": "whole", "dx_num_stages": 2}
    if fits(case, device, whole) is None:
        return whole
    if few := _few(case, device):
        return few
    M, K, N = case.size("M", "K", "N")
    kernel = "apart" if is_ieee(case) else "warpgroup" if all(_by_warpgroups(case, device)) else None
    many = MANY_ROWS_IN_TF32 if matmul.operand(case) == "tf32" else MANY_ROWS
    if not kernel or many > M or M * K * N < MANY_PRODUCTS:
        return _one_launch(case, device)
    own = filled_products(case, kernel)
    return {"KERNEL": kernel} | _without_kernels(
        {of: matmul_choice.config(own[of], device, _tiles_of_each(case, of, kernel)) for of in own}
    )


def _without_kernels(configs):
    """The tunables of both products, which KERNEL says the kinds of."""
    for of in configs.values():
        del of["KERNEL"]
    return prefixed("dx", configs["dx"]) | prefixed("dW", configs["dW"])


def _few(case, device):
    """Those with KERNEL=few, or None where there are more rows or dx is not deep. It is not chosen for 16 bits: 64×4096→4096 took an H200 45 µs so, by `whole` 40,
    and 128 rows 57, by `tensor` 47."""
    M, N = case.size("M", "N")
    if case.itemsize == 2 or _misfit_of_few(case) or M >= MANY_ROWS or N < DEEP:
        return None
    own = filled_products(case, "few")
    dx = matmul_choice.few_rows_config(own["dx"], device, _tiles_of_each(case, "dx", "few"))
    if dx is None:
        return None
    dW = matmul_choice.config(own["dW"], device, _tiles_of_each(case, "dW", "few"))
    return {"KERNEL": "few"} | _without_kernels({"dx": dx, "dW": dW})


def _tiles_of_each(case, of, kernel):
    """Those of dx or dW beside matmul.SIMT_TILES, where each is a launch: blocks do not share the K of a left operand that is read across its rows."""
    if kernel == "warpgroup":
        return matmul.WARPGROUP_TILES
    if of == "dW":
        return () if is_ieee(case) else matmul.TENSOR_TILES
    if kernel == "few":
        return matmul.FLOAT_FEW_ROWS_TILES if is_ieee(case) else matmul.FEW_ROWS_TILES
    return matmul.SIMT_SPLIT_TILES


def _one_launch(case, device):
    """The tunables of `products`."""
    own = matmul.gradients(case)
    pairs = [(dx, dW) for dx, dW in itertools.product(TILES, TILES) if dx.threads == dW.threads]
    pairs.sort(key=lambda pair: _work(own["dx"], pair[0], device) + _work(own["dW"], pair[1], device))
    # more stages than slabs wait for nothing, and leave room for fewer blocks
    slabs = {f"{of}_num_stages": max(2, -(-own[of].sizes["K"] // matmul.slab(case))) for of in own}
    choices = []
    for (dx, dW), n in itertools.product(pairs, (4, 3, 2)):
        found = {"KERNEL": usual_kernel(case)}
        for of, tile in (("dx", dx), ("dW", dW)):
            found |= prefixed(of, {"BLOCK_M": tile.rows, "BLOCK_N": tile.columns, "CLUSTER": 1})
        choices.append(found | {name: min(n, most) for name, most in slabs.items()})
    return next((c for c in choices if fits(case, device, c) is None), choices[0])


def _by_warpgroups(case, device):
    """Whether warpgroups can multiply each product, of rows of whole vectors."""
    return (matmul.multiplies_by_warpgroups(own, device) for own in filled_products(case, "warpgroup").values())


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
    own, kernel = matmul.gradients(case), config["KERNEL"]
    if kernel in EACH:
        if kernel == "warpgroup" and not all(_by_warpgroups(case, device)):
            return matmul.NO_WARPGROUPS
        if kernel == "few" and (reason := _misfit_of_few(case)):
            return reason
        own = filled_products(case, kernel)
        reasons = (
            matmul.fits(own[of], device, _of_each(case, of, config), tiles=_tiles_of_each(case, of, kernel))
            for of in own
        )
        return next(filter(None, reasons), None)
    if kernel == "whole":
        return _misfit_of_whole(case, device, config)
    if kernel != usual_kernel(case):
        return "IEEE float32 is multiplied by KERNEL=simt, apart or few, everything else by tensor, warpgroup, few or whole"
    tiles = [tile_of(config, of) for of in own]
    if None in tiles:
        return f"the tiles of dx and dW are {', '.join(f'{t.rows}×{t.columns}' for t in TILES)} in clusters of 1"
    if tiles[0].threads != tiles[1].threads:
        return f"a block of dx has {tiles[0].threads} threads, one of dW {tiles[1].threads}: all have the same"
    if (stages := min(config["dx_num_stages"], config["dW_num_stages"])) < 2:
        return f"num_stages is {stages}: one is read while another is written"
    return too_large(_products_bytes(case, config), device)


def _misfit_of_few(case):
    """Why `few` cannot multiply the case, or None."""
    if case.options["w_layout"] == "nk":
        return "KERNEL=few reads A as W (K, N): w_layout=kn"
    if case.itemsize == 2 and filled(case) != case:
        return "KERNEL=few takes K, N and R of whole vectors of 16 bytes in 16 bits"
    return None


def is_few(case):
    """Whether dxa has so few elements that each is summed by a block."""
    return case.sizes["M"] * case.sizes["R"] <= FEW


def filled_shapes(case):
    """What `filled` makes of x, W, A and B in the forward pass: place among its tensors → shape."""
    M, K, N, R = case.size("M", "K", "N", "R")
    of_K, of_N, of_R = (filled(case).sizes[name] for name in ("K", "N", "R"))
    nk = case.options["w_layout"] == "nk"
    of_W = (nk and of_K != K) or (not nk and of_N != N)
    # A has a row for each column of x
    wanted = of_K != K, of_W, of_R != R or of_K != K, of_N != N
    shapes = (M, of_K), (N, of_K) if nk else (K, of_N), (of_K, of_R), (R, of_N)
    return {place: shape for place, (shape, is_wanted) in enumerate(zip(shapes, wanted, strict=True), 6) if is_wanted}


def filled_dz(case):
    """The same in the backward pass, of dz where that is dy."""
    of_N = filled(case).sizes["N"]
    is_wanted = case.options["activation"] == "none" and of_N != case.sizes["N"]
    return {5: (case.sizes["M"], of_N)} if is_wanted else {}


def _pulls(case, whole):
    """Whether dz is a launch of its own: `few` makes it beside dxa, in rows of whole vectors."""
    return case.options["activation"] != "none" and (
        whole or not is_few(case) or not rows_are_aligned(case, case.sizes["N"])
    )


def launches(file, case, device, config, follows=False):
    """`filled` where rows of dy are no whole vectors, `pulled` where there is an activation and `few` does not do it; then `few`, or `low`, and
    `products`, or dx, dW and `narrow`; or `whole`. `file` includes lora_backward.cuh. The first may begin while what it `follows` ends."""
    whole = config["KERNEL"] == "whole"
    first = [_filled(file, case, device, dz)] if (dz := filled_dz(case)) else []
    first += [_elementwise(file, "pulled", case)] if _pulls(case, whole) else []
    if whole:
        found = in_turn(*first, _whole(file, case, device, config))
    else:
        behind = _launch_of_each if config["KERNEL"] in EACH else _products
        found = in_turn(*first, _low(file, case, device), *behind(file, case, device, config))
    return (replace(found[0], overlaps=follows), *found[1:])


def _filled(file, case, device, shapes):
    """The launch of the copies."""
    program = instance(file, "filled", TYPES[case.dtype], case.options["w_layout"] == "nk")
    vectors = max(math.prod(shape) for shape in shapes.values()) * case.itemsize // 16
    grid = max(1, min(-(-vectors // THREADS), 8 * multiprocessors(device)))
    return Launch(program, grid, THREADS, dtypes=(case.dtype,) * 10)


def _products(file, case, device, config):
    """The one launch of all of them."""
    (K, N), own = case.size("K", "N"), matmul.gradients(case)
    nk, tiles = case.options["w_layout"] == "nk", [tile_of(config, of) for of in own]
    shapes = [
        (t.rows, t.columns, t.warps_m, t.warps_n, config[f"{of}_num_stages"]) for of, t in zip(own, tiles, strict=True)
    ]
    arguments = TYPES[case.dtype], is_ieee(case), rows_are_aligned(case, K, N), nk, *shapes[0], *shapes[1]
    threads = tiles[0].threads
    grid = sum(matmul.blocks(tile, *own[of].size("M", "N")) for of, tile in zip(own, tiles, strict=True))
    grid += _narrow_blocks(K, N, threads)
    program = instance(file, "products", *arguments, _rank_columns(case), NARROW_STAGES)
    return (Launch(program, grid, threads, _products_bytes(case, config), dtypes=(case.dtype,) * 12),)


def _is_whole(case):
    """Whether `whole` can make the layer's gradients."""
    M, R = case.size("M", "R")
    return M <= WHOLE_ROWS and R <= WHOLE_RANK and case.itemsize == 2 and case.options["w_layout"] == "kn"


def _misfit_of_whole(case, device, config):
    """Why `whole` cannot run with a config, or None."""
    if not _is_whole(case):
        return f"KERNEL=whole takes at most {WHOLE_ROWS} rows of 16 bits, R up to {WHOLE_RANK}, w_layout=kn"
    if case.sizes["M"] > WHOLE_ODD and filled(case) != case:
        return f"KERNEL=whole takes K, N and R that are no whole vectors of 16 bytes with at most {WHOLE_ODD} rows"
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
    """Shared memory of a block of `whole`: of a stage 128 bytes of each row for each reading warp, and rows of A; and units of dW that it does
    not write in whole vectors."""
    rows, rank = _whole_tile(case)
    more = WHOLE_PART * filled(case).sizes["R"] + (0 if rows_are_aligned(case, case.sizes["N"]) else WHOLE_STAGED)
    stage = (WHOLE_PART + rank + rows) * 128 * WHOLE_LANES // 32
    return config["dx_num_stages"] * stage + more * case.itemsize


def _whole(file, case, device, config):
    """The launch of all gradients of few rows."""
    (K, N), dtype = case.size("K", "N"), case.dtype
    aligned = rows_are_aligned(case, N)
    program = instance(file, "few_rows::whole", TYPES[dtype], aligned, *_whole_tile(case), config["dx_num_stages"])
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


def _low(file, case, device):
    """The launch of dxa, and of dz where `few` makes that."""
    (M, N), dtype = case.size("M", "N"), case.dtype
    if is_few(case):
        activation = "NONE" if _pulls(case, whole=False) else case.options["activation"].upper()
        program = instance(file, "few", TYPES[dtype], activation)
        return Launch(program, M * (filled(case).sizes["R"] // RANKS), THREADS, dtypes=(dtype,) * 6)
    tile, stages = lora.DOWN, lora.DOWN_STAGES
    columns, warps = lora.rank_columns(case, tile), lora.low_warps(tile)
    rows, arguments = -(-M // tile.rows), (TYPES[dtype], is_ieee(case), tile.rows, columns, *warps, stages)
    parts = lora.sharers(case, device, rows, N)
    program = instance(file, "low_by_parts", *arguments, parts) if parts > 1 else instance(file, "low", *arguments)
    memory = stages * (tile.rows + columns) * 128
    return Launch(program, rows * parts, tile.threads, memory, dtypes=(dtype,) * 4)


def _elementwise(file, kernel, case):
    """The launch of `pulled` or of `activated`, a vector a thread."""
    (M, N), pulls = case.size("M", "N"), kernel == "pulled"
    arguments = TYPES[case.dtype], case.options["activation"].upper()
    program = instance(file, kernel, *arguments, *([rows_are_aligned(case, N)] if pulls else []))
    vectors = -(-M * (filled_up(case, N) if pulls else N) * case.itemsize // 16)
    return Launch(program, -(-vectors // THREADS), THREADS, dtypes=(case.dtype,) * (3 if pulls else 2))


def _of_each(case, of, config):
    """The tunables of dx or dW, where each is a launch."""
    kernel = config["KERNEL"]
    if kernel == "few":
        kernel = "few_rows" if of == "dx" else usual_kernel(case)
    return of_launch(of, config) | {"KERNEL": "simt" if kernel == "apart" else kernel}


def _launch_of_each(file, case, device, config):
    """dx, dW, before which warpgroups have operands of tf32 turned, and `narrow`."""
    kernel, dtype, operand = config["KERNEL"], case.dtype, matmul.operand(case)
    own, turned = filled_products(case, kernel), _turns(case, kernel)
    of_dx, of_dW = (_of_each(case, of, config) for of in own)
    dx = matmul.launch(file, "inputs", own["dx"], device, of_dx, dtypes=(*(operand,) * 4, dtype))
    dW = matmul.launch(
        file, "weights", own["dW"], device, of_dW, dtypes=(operand, operand, dtype), transposed=not turned
    )
    if dx.boxes:  # the adapter's, too
        dx = replace(dx, boxes=(*dx.boxes, *matmul.boxes(case, of_dx["BLOCK_M"], of_dx["BLOCK_N"] // of_dx["CLUSTER"])))
    before = (weights.turning(file, filled(case), own["dW"]),) if turned else ()
    return *before, dx, dW, _narrow(file, case, device)


def _narrow(file, case, device):
    """The launch of dA, dB and db alone."""
    M, K, N = case.size("M", "K", "N")
    threads = 128
    blocks = _narrow_blocks(K, N, threads)
    parts = lora.sharers(case, device, blocks, M, NARROW_RESIDENT)
    arguments = TYPES[case.dtype], is_ieee(case), _rank_columns(case), threads // 32, NARROW_STAGES
    program = instance(file, *(("narrow_by_parts", *arguments, parts) if parts > 1 else ("narrow", *arguments)))
    return Launch(program, blocks * parts, threads, _narrow_bytes(case, threads), dtypes=(case.dtype,) * 8)


def kept_launches(file, case, device):
    """The forward pass of backward modes: `filled` where rows are no whole vectors, `down`, `up` to z and, where there is an activation,
    `activated`."""
    shapes, straight = filled_shapes(case), replace(case, options={**case.options, "activation": "none"})
    if _reads_filled(case, device):
        straight = filled(straight)
        own = _filled_config(straight, device)
    else:
        own = lora.config(straight, "two_launches", device)
    found = lora.launches(file, straight, "two_launches", device, own)
    first = (_filled(file, case, device, shapes),) if shapes else ()
    last = () if case.options["activation"] == "none" else (_elementwise(file, "activated", case),)
    return *first, *found, *last


def _reads_filled(case, device):
    """Whether the forward pass reads what `filled` has made, by warpgroups, whose tensor maps know how long rows are."""
    return case.itemsize == 2 and filled(case) != case and lora.multiplies_by_warpgroups(filled(case), device)


def _filled_config(case, device):
    """The tunables of `up` then."""
    whole = matmul_choice.config(case, device, lora.up_tiles(case), schedules=matmul.SCHEDULES)
    return prefixed("up", matmul_split.or_split(case, whole, device, columns=matmul_split.WIDE))


def build(file, case, device, config, follows=False):
    """(forward, backward) of a layer: forward(x, scale, W, b, A, B) → y and what backward needs; backward(that, dy) → dx, dW, db, dA, dB.
    `follows`: behind the launches of another layer."""
    (M, N), shapes = case.size("M", "N"), filled_shapes(case)
    described = list(kept_launches(file, case, device))
    fill = _bound_filled(described.pop(0), case, shapes) if shapes else None
    down, up, *activated = described
    read = _reads_filled(case, device)
    layer = lora.in_two_launches(
        replace(case, sizes={**filled(case).sizes, "N": N}) if read else case, down, up, keeps=True
    )
    activated = [launch.returning({1: (M, N)}, (M * N,)) for launch in activated]
    gradients = _bound(case, launches(file, case, device, config, follows), config["KERNEL"])

    def forward(x, scale, W, b, A, B):
        given = x, W, A, B
        if fill:
            made = fill(*(given[place - 6] for place in shapes))
            found = dict(zip(shapes, made if len(shapes) > 1 else (made,), strict=True))
            given = [found.get(place, own) for place, own in enumerate(given, 6)]
        if read:
            x, W, A, B = given
        z, xa = layer(x, scale, W, b, A, B)
        x, W, A, B = given
        if not activated:
            return z, (x, scale, W, A, B, xa)
        return activated[0](z), (x, scale, W, A, B, xa, z)

    def backward(residuals, dy):
        dx, dW, dA, dB, db = gradients(dy, *residuals)
        return dx, dW, db, dA, dB

    return forward, backward


def _bound_filled(launch, case, shapes):
    """A function of the matrices that are filled up, which returns their copies."""
    others = [place for place in range(5, 10) if place not in shapes]
    absent = [*others, *(place - 5 for place in others)]
    return launch.returning(shapes, case.size("M", "K", "N", "R"), absent=absent)


def _bound(case, described, kernel):
    """A function of dy, x, scale, W, A, B, x @ A and, where there is an activation, z: → dx, dW, dA, dB, db."""
    sizes = M, K, N, R = case.size("M", "K", "N", "R")
    whole, linear, nk = kernel == "whole", case.options["activation"] == "none", case.options["w_layout"] == "nk"
    adapter, of_W, steps = ((K, R), (R, N), (N,)), (N, K) if nk else (K, N), list(described)
    of_dz, of_dxa = (M, filled_up(case, N)), (M, filled_up(case, R))
    shapes = filled_dz(case)
    fill = _bound_filled(steps.pop(0), case, shapes) if shapes else None
    pulled = steps.pop(0).returning({2: of_dz}, (M, N)) if _pulls(case, whole) else None
    with_slopes = not (linear or pulled)  # `few` makes dz
    if whole:
        low = None
    elif is_few(case):
        low = steps.pop(0).returning(({4: of_dz} if with_slopes else {}) | {5: of_dxa}, (N, R))
    else:
        low = steps.pop(0).returning({3: of_dxa}, (M, N, R))

    def small(dz, scale, B, z):
        """dz and, unless `whole`, dxa."""
        if whole:
            return (dz,)
        if not is_few(case):
            return dz, low(dz, scale, B)
        return low(z, dz, scale, B) if with_slopes else (dz, low(dz, dz, scale, B, dz))

    if len(steps) == 1:
        more = (filled_up(case, K), of_dz[1]) if whole else ()
        large = steps[0].returning(dict(enumerate(((M, K), of_W, *adapter), 7)), (*sizes, *more))
    else:
        *of_turning, inputs, weigh, narrow = steps
        inputs = inputs.returning({4: (M, K)}, (M, N, K, R))
        of_dW = filled_products(case, kernel)["dW"]
        turn = of_turning and weights.turned_by(of_turning[0], filled(case), of_dW)
        depth = of_dW.sizes["K"] if turn else M
        weigh = weigh.returning({2: of_W}, (N, depth, K) if nk else (K, depth, N))
        narrow = narrow.returning(dict(enumerate(adapter, 5)), sizes)

    def call(dy, x, scale, W, A, B, xa, z=None):
        dy = fill(dy) if fill else dy
        dz, *dxa = small(pulled(z, dy) if pulled else dy, scale, B, z)
        if whole:
            return large(dz, W, x, A, B, xa, scale)
        if len(steps) == 1:
            return large(dz, W, x, A, xa, scale, *dxa)
        of_dz, of_x = turn(dz, x) if turn else (dz, x)
        dx, dW = inputs(dz, W, *dxa, A), weigh(of_dz, of_x) if nk else weigh(of_x, of_dz)
        return dx, dW, *narrow(x, *dxa, dz, xa, scale)

    return call
