"""The launches of lora_backward.cuh, the backward pass of a linear layer with an adapter, by the tunables of lora_backward_choice.py.

`case` is one layer, as in lora.py. Matrices whose rows are no whole vectors of 16 bytes are copied by the forward pass, dy by the backward pass
(`filled`).
"""

import math
from dataclasses import replace

from implementations._shared.cuda import lora, matmul, matmul_choice, matmul_split, weights
from implementations._shared.cuda import lora_backward_choice as choice
from implementations._shared.cuda.launch import TYPES, Launch, in_turn, instance, prefixed
from implementations._shared.cuda.lora_backward_choice import filled, filled_products
from implementations._shared.gpu import filled_up, is_ieee, multiprocessors, rows_are_aligned

THREADS, RANKS = 256, 4  # as in `few`
FEW = 4096  # of elements of dxa: more of them share rows of dz and B in tiles
NARROW_RESIDENT = 4  # blocks of dA, dB and db that a multiprocessor has at once


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
        behind = _launch_of_each if config["KERNEL"] in choice.EACH else _products
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
    nk, tiles = case.options["w_layout"] == "nk", [choice.tile_of(config, of) for of in own]
    shapes = [
        (t.rows, t.columns, t.warps_m, t.warps_n, config[f"{of}_num_stages"]) for of, t in zip(own, tiles, strict=True)
    ]
    arguments = TYPES[case.dtype], is_ieee(case), rows_are_aligned(case, K, N), nk, *shapes[0], *shapes[1]
    threads = tiles[0].threads
    grid = sum(matmul.blocks(tile, *own[of].size("M", "N")) for of, tile in zip(own, tiles, strict=True))
    grid += _narrow_blocks(K, N, threads)
    program = instance(file, "products", *arguments, choice.rank_columns(case), choice.NARROW_STAGES)
    return (Launch(program, grid, threads, choice.products_bytes(case, config), dtypes=(case.dtype,) * 12),)


def _whole(file, case, device, config):
    """The launch of all gradients of few rows."""
    (K, N), dtype = case.size("K", "N"), case.dtype
    aligned = rows_are_aligned(case, N)
    program = instance(
        file, "few_rows::whole", TYPES[dtype], aligned, *choice.whole_tile(case), config["dx_num_stages"]
    )
    parts = -(-K // choice.WHOLE_PART)
    grid = min(multiprocessors(device), max(parts, (parts + 1) * -(-N // 256)))
    return Launch(program, grid, choice.WHOLE_THREADS, choice.whole_bytes(case, config), dtypes=(dtype,) * 12)


def _narrow_blocks(K, N, threads):
    """Of dA, and of dB and db: a warp has 16 rows."""
    return -(-K // (threads // 2)) + -(-N // (threads // 2))


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


def _launch_of_each(file, case, device, config):
    """dx, dW, before which warpgroups have operands of tf32 turned, and `narrow`."""
    kernel, dtype, operand = config["KERNEL"], case.dtype, matmul.operand(case)
    own, turned = filled_products(case, kernel), choice.turns(case, kernel)
    of_dx, of_dW = (choice.of_each(case, of, config) for of in own)
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
    arguments = TYPES[case.dtype], is_ieee(case), choice.rank_columns(case), threads // 32, choice.NARROW_STAGES
    program = instance(file, *(("narrow_by_parts", *arguments, parts) if parts > 1 else ("narrow", *arguments)))
    return Launch(program, blocks * parts, threads, choice.narrow_bytes(case, threads), dtypes=(case.dtype,) * 8)


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
