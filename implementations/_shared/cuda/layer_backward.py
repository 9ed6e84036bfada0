"""The launches of a layer's backward modes (layer_backward.cuh), z = x @ W + b, and the choice of their tiles.

`case` is one of x (M, K) with W (K, N) or (N, K), N being all columns of z. Products are made in one of four ways: `both` in one launch of
Hopper's warpgroups that share out all slabs, or `beside` each other, with dx by the blocks of clusters; `few` rows in one launch; or `apart`, in a launch each. The
tunables are those of the way's launches: both_…, beside_…, few_…, or dx_… and dW_….
"""

import math
from dataclasses import replace

from implementations._shared.cuda import linear_gradients, matmul, matmul_choice, matmul_split, matmul_turned, weights
from implementations._shared.cuda.launch import TYPES, Launch, instance, of_launch, prefixed
from implementations._shared.gpu import (
    clusters_at_once,
    filled_up,
    is_ieee,
    multiprocessors,
    rows_are_aligned,
    shared_memory,
)

THREADS = 256  # of a block that makes some of dz
FEW_TILES = tuple(
    tile for tile in matmul.FEW_ROWS_TILES if tile.rows < 64
)  # two blocks of 256 threads have registers for no larger one
WEIGHTS_SIDE = 128  # of a tile of dW of few rows
BESIDE_SIDE, BESIDE_SPLITS = 128, (4, 2)  # of tiles of `beside`
# microseconds before the first product of a tile of dx there, of a tile of dW half of that; and what others at work cost one of dx
BESIDE_BEGIN, BESIDE_OTHERS = 2.0, 1.13
# microseconds that `both` takes longer than linear_gradients.py says of such cases, where all slabs are shared out
SHARED_BEGIN = 4.0
# Rows at most, and K² N, from which products are `apart`; elements of W, and products, beyond which `beside` is faster than `few`
LARGE_ROWS, LARGE, MANY_WEIGHTS, MANY_PRODUCTS = 256, 2**36, 2**22, 420_000_000
# Rows in the time of a block of dz before its first one: an H200 took for lola's of 1024×4096 12.8 µs with 32 rows a block, 11.6 with 64
PULL_BEGIN = 11
MOST_PARTS = 256  # of the sum of a column, one behind another
NUMBERS = "M", "K", "N"


def way(case, device):
    """`both`, `beside`, `few` or `apart`."""
    possible = linear_gradients.is_possible(case, device)
    if possible and _are_large(case):
        return "apart"
    if possible and _are_many(case) and _beside(case, device):
        return "beside"
    if _few(case, device):
        return "few"
    if not possible:
        return "apart"
    return "beside" if _beside(case, device) else "both"


def _are_large(case):
    """Whether dx and dW of a few hundred rows each keep all multiprocessors busy, in launches of whole tiles: geglu 128×4096→4096 took an H200 63.0 µs so, in
    one launch 77.3; lola 128×2048→8192, whose dx has half of its tiles, 51.0 and 45.4."""
    M, K, N = case.size("M", "K", "N")
    return matmul.PANEL < M <= LARGE_ROWS and K * K * N >= LARGE and rows_are_aligned(case, K, N)


def _are_many(case):
    """Whether `beside` is faster than `few`, where both are possible: geglu 100×1024→4096 took 24.0 µs so, by `few` 28.3; lola 128×2048→2048 18.0 and 17.5."""
    M, K, N = case.size("M", "K", "N")
    return K * N > MANY_WEIGHTS and M * K * N > MANY_PRODUCTS


def whole_rows(case, device):
    """The case with K and N filled up, as rows of dz are then, and those of what a launch copies or makes: to whole lines of L2 for `both` and
    `beside`, of `few` rows and in float32 to whole vectors, else not."""
    how = way(case, device)
    if how in ("both", "beside"):
        return _of_lines(case)
    return _of_vectors(case) if how == "few" or case.itemsize == 4 else case


def _tiles(case):
    """Those of `linear` and of dx; few rows of 16 bits have launches of their own."""
    if is_ieee(case):
        return matmul.FLOAT_TILES
    tiles = matmul.WARPGROUP_TILES + matmul.TENSOR_TILES
    return tiles + matmul.FEW_ROWS_TILES if case.itemsize == 4 else tiles


def _tiles_of_dx(case):
    """Those of dx, whose depth the blocks of a cluster may share, too."""
    return _tiles(case) + (matmul.FLOAT_SPLIT_TILES if is_ieee(case) else ())


def _of_vectors(case):
    return _filled(case, 16 // case.itemsize)


def _of_lines(case):
    return _filled(case, matmul.slab(case))


def _filled(case, whole):
    """`case` with K and N filled up to multiples of `whole`, itself where they are."""
    sizes = case.sizes | {name: -(-case.sizes[name] // whole) * whole for name in ("K", "N")}
    return case if sizes == case.sizes else replace(case, sizes=sizes)


def _few(case, device):
    """The tile of dx of few rows, or None: dW is made of one slab or two."""
    if case.itemsize != 2 or case.sizes["M"] > matmul_choice.FEW_ROWS:
        return None
    whole = _of_vectors(case)
    if whole is not case and not (matmul.holds_boxes(case) and matmul.multiplies_by_warpgroups(whole, device)):
        return None  # `linear` reads rows that are filled up by warpgroups alone
    dx = matmul.gradients(whole)["dx"]
    for tiles in (_of_two_stages(dx, device), FEW_TILES):
        found = matmul_choice.config(dx, device, (*tiles, *matmul.TENSOR_TILES), beside=_half(device))
        if found["KERNEL"] == "few_rows":
            return {name: found[name] for name in ("BLOCK_M", "BLOCK_N", "num_stages")}
    return None


def _products_of_lines(case):
    """The cases of dx and of dW by warpgroups, which read rows of whole lines; how many of them dW sums up does not matter."""
    own = matmul.gradients(_of_lines(case))
    depth = filled_up(case, case.sizes["M"])
    return own | {"dW": replace(own["dW"], sizes={**own["dW"].sizes, "K": depth})}


def _beside(case, device):
    """The tunables of `beside`, or None where `both` is expected to be faster, as it is wherever it shares out whole tiles."""
    whole = _of_lines(case)
    both = linear_gradients.config(whole, device)
    if both["SCHEDULE"] == "tiles":
        return None
    side = {"BLOCK_M": BESIDE_SIDE, "BLOCK_N": BESIDE_SIDE, "num_stages": 6}
    choices = [side | {"CLUSTER": split} for split in BESIDE_SPLITS]
    choices = [own for own in choices if _fits_beside(case, device, own) is None]
    best = min(choices, key=lambda own: _beside_time(whole, device, own), default=None)
    if best and _beside_time(whole, device, best) < SHARED_BEGIN + linear_gradients.time(whole, device, both):
        return best
    return None


def _beside_time(case, device, config):
    """Microseconds: of a tile of dx, or of all blocks, where the last one ends half a tile of dW after the others."""
    shape, split, own = (config["BLOCK_M"], config["BLOCK_N"]), config["CLUSTER"], _products_of_lines(case)
    dx, dW = _beside_tiles(case, config)
    cost, places = matmul_split.COSTS[shape], clusters_at_once(device, split) * split
    of_dx = BESIDE_BEGIN + matmul_choice.split_tile_time(own["dx"], shape, cost, split)
    of_dW = BESIDE_BEGIN / 2 + matmul_choice.split_tile_time(own["dW"], shape, cost)
    alone = math.ceil(dx * split / places) * of_dx * BESIDE_OTHERS
    return max(alone, (dx * split * of_dx + dW * of_dW) / places + of_dW / 2)


def _fits_beside(case, device, config):
    """Why such a config cannot run, or None."""
    dx = matmul_split.of_cluster(config | {"KERNEL": "beside"})
    return matmul_split.fits(_products_of_lines(case)["dx"], device, dx)


def _of_two_stages(dx, device):
    """The tiles that ask for a stage while they multiply another: geglu 64×1024→4096 took an H100 25.1 µs in 16×32, 31.6 in 32×32 of one stage."""
    own = {"KERNEL": "few_rows", "CLUSTER": 1, "num_stages": 2}
    return [
        tile
        for tile in FEW_TILES
        if matmul.fits(
            dx, device, own | {"BLOCK_M": tile.rows, "BLOCK_N": tile.columns}, beside=_half(device), tiles=FEW_TILES
        )
        is None
    ]


def _half(device):
    """As `beside`: two blocks share a multiprocessor."""
    return lambda tile: shared_memory(device) // 2


def config(case, device):
    """The tunables of the products."""
    own, how = matmul.gradients(whole_rows(case, device)), way(case, device)
    if how == "both":
        return prefixed("both", linear_gradients.config(case, device))
    if how == "beside":
        return prefixed("beside", _beside(case, device))
    if how == "few":
        return prefixed("few", _few(case, device))
    before = math.prod(pulled_blocks(case, device, 1))
    dx = _or_split(own["dx"], matmul_choice.config(own["dx"], device, _tiles_of_dx(case), before=before), device)
    of_dW, tiles = _weights(case, device)
    if case.itemsize == 2 and case.sizes["M"] <= LARGE_ROWS:
        # of few slabs, which blocks of a cluster hardly bring for one another: geglu 128×4096→11008 took an H200 146 µs in clusters of two, 141 without
        tiles = [tile for tile in tiles if tile.cluster == 1]
    dW = matmul_choice.config(of_dW, device, tiles)
    if weights.of_turned(case, device):
        dW = _or_split(of_dW, dW, device)
    return prefixed("dx", dx) | prefixed("dW", dW)


def _or_split(product, whole, device):
    """As matmul_split.or_split, without SCHEDULE, of which there is one."""
    found = matmul_split.or_split(product, whole, device)
    return {name: value for name, value in found.items() if name != "SCHEDULE"}


def fits(case, device, config):
    """Why a config cannot run, or None."""
    own, how = matmul.gradients(whole_rows(case, device)), way(case, device)
    if how == "both":
        return linear_gradients.fits(case, device, of_launch("both", config))
    if how == "few":
        return matmul.fits(own["dx"], device, _few_config(config), beside=_half(device), tiles=FEW_TILES)
    if how == "beside":
        return _fits_beside(case, device, of_launch("beside", config))
    dx, dW = of_launch("dx", config), of_launch("dW", config)
    reason = _fits_one(own["dx"], device, dx, _tiles_of_dx(case))
    of_dW, tiles = _weights(case, device)
    if dW["KERNEL"] == "split" and not weights.of_turned(case, device):
        return "KERNEL=split multiplies dW of turned operands, which Hopper (9.0) has in tf32"
    return reason or _fits_one(of_dW, device, dW, tiles)


def _fits_one(product, device, config, tiles):
    """The same of dx or dW, where each is a launch."""
    if config["KERNEL"] == "split":
        return matmul_split.fits(product, device, matmul_split.of_cluster(config))
    return matmul.fits(product, device, config, tiles=tiles)


def _weights(case, device):
    """The case of a dW with a launch of its own, and its tiles."""
    if turned := weights.of_turned(case, device):
        return turned, matmul.WARPGROUP_TILES
    return weights.upright(matmul.gradients(whole_rows(case, device))["dW"], device)


def _few_config(config):
    return of_launch("few", config) | {"KERNEL": "few_rows", "CLUSTER": 1}


def linear(file, case, device, made_of=None):
    """`linear_…` of `file`: x, W, b or none, z, and what the epilogue `made_of` makes of it or none."""
    own, dtype, chosen = whole_rows(case, device), case.dtype, linear_config(case, device)
    operands = (matmul.operand(case),) * 2
    arguments, dtypes = (made_of or f"Biased<{TYPES[dtype]}>",), (*operands, dtype, dtype, dtype)
    return matmul_turned.launch_of_any(file, "linear", own, device, chosen, dtypes, arguments)


def linear_config(case, device):
    """That of `linear`."""
    own = whole_rows(case, device)
    # rows of 16 bits that are longer than what is in them are known to tensor maps alone
    tiles = _tiles(case) if own is case or case.itemsize == 4 else matmul.WARPGROUP_TILES
    chosen = matmul_choice.config(own, device, tiles)
    if case.itemsize == 2 and chosen["KERNEL"] == "warpgroup":
        return matmul_split.or_split(own, chosen, device, columns=matmul_split.WIDE)
    return chosen


def copies(file, case, device):
    """The copies of x and W, by `file`, to rows as `whole_rows` has them: None where they are as they came, else (a launch, its result's shape)."""
    whole, rows = whole_rows(case, device), linear_gradients.weights_shape(case)
    shapes = (
        (case.size("M", "K"), whole.size("M", "K")),
        (rows, (rows[0], linear_gradients.weights_shape(whole)[1])),
    )
    return [
        None
        if whole is case or rows_are_aligned(case, given[1])
        else (rows_copy(file, case, device, *given, copied[1]), copied)
        for given, copied in shapes
    ]


def rows_copy(file, case, device, rows, length, pitch):
    """`whole_rows` of `file`, of a matrix with so many rows: its copy with rows of `pitch` elements."""
    grid = min(-(-rows * pitch * case.itemsize // (16 * THREADS)), 8 * multiprocessors(device))
    program = instance(file, "whole_rows", TYPES[case.dtype], rows_are_aligned(case, length))
    return Launch(program, grid, THREADS, dtypes=(case.dtype, case.dtype, "int32"), sizes=(rows, length, pitch, 0))


# ---- dz ------------------------------------------------------------------------------------------------------------------


def pull_launch(file, case, device, kernel, arguments, given, parts=1):
    """`kernel` of `file`, which calls pull() of pulled.cuh: `given` are the dtypes of its inputs, behind which come dz, parts of the sums of
    rows, db, parts of its sums, and flags. ALIGNED is the last of the template's arguments."""
    N, dtype = case.sizes["N"] // parts, case.dtype
    down, across = pulled_blocks(case, device, parts)
    program = instance(file, kernel, *arguments, rows_are_aligned(case, N))
    return Launch(program, down * across, THREADS, dtypes=(*given, dtype, "float32", dtype, "float32", "int32"))


def pulled_rows(case, device, parts):
    """Rows of dz that a block makes: as many as its threads have on their way at once, or more, so that a column's sum has no more parts than MOST_PARTS."""
    across, at_once = _pulled_across(case, parts), 2 * multiprocessors(device)

    def time(rows):
        return math.ceil(math.ceil(case.sizes["M"] / rows) * across / at_once) * (PULL_BEGIN + rows)

    least = -(-case.sizes["M"] // MOST_PARTS)
    if least > 64:
        return -(-least // 64) * 64
    return min((rows for rows in (16, 32, 64) if rows >= max(32 // parts, least)), key=time)


def pulled_blocks(case, device, parts):
    """Blocks that make dz of (M, N), all columns of its `parts`: one below another, and side by side."""
    return -(-case.sizes["M"] // pulled_rows(case, device, parts)), _pulled_across(case, parts)


def _pulled_across(case, parts):
    return -(-(case.sizes["N"] // parts) // (32 * 16 // case.itemsize))


def pulling(launch, case, device, behind, rows, columns, parts=1):
    """A function of what `launch` of dz is given, which returns dz, and where there are any, else None: parts of the sums of `rows`, db of
    `columns`, its parts, and flags of the products `behind`."""
    (M, N), whole = case.size("M", "N"), whole_rows(case, device)
    down, across = pulled_blocks(case, device, parts)
    exchange = behind[0].exchange
    flags = exchange[1] if exchange else (0,)
    shapes = [
        whole.size("M", "N"),
        rows and (M, across, 2),
        columns and (N,),
        columns and down > 1 and (down, N),
        exchange and flags,
    ]
    if case.mode == "forward_backward":
        launch = replace(launch, overlaps=True)  # of the forward pass's last one
    first = len(launch.dtypes) - len(shapes)
    made = {first + i: shape for i, shape in enumerate(shapes) if shape}
    absent = [first + i for i, shape in enumerate(shapes) if not shape]
    run = launch.returning(
        made, (M, N // parts, whole.sizes["N"], pulled_rows(case, device, parts), *flags), absent=absent
    )

    def call(*given):
        found = run(*given)
        found = dict(zip(made, found if isinstance(found, tuple) else (found,), strict=True))
        return [found.get(first + i) for i in range(len(shapes))]

    return call


# ---- products ------------------------------------------------------------------------------------------------------------


def launches(file, case, device, config, epilogue="StoredGradient", columns=True, parts=1, weighs=True):
    """The launches behind dz: of both products, or of dx and of dW, and before them of turned operands. `epilogue` is the template of F; `columns` says
    that db is wanted, `weighs` that dW is, which is elsewhere only where it has a launch of its own."""
    own, dtype, how = matmul.gradients(whole_rows(case, device)), case.dtype, way(case, device)
    down, across = pulled_blocks(case, device, parts)
    down = down if columns else 0
    made_of = f"{epilogue}<{TYPES[dtype]}>"
    given = dtype, "float32", "float32", "float32", dtype  # n, rstd, parts of rows and of columns, db
    if how == "both":
        dtypes = *given, dtype, dtype, "float32", "int32"
        both = linear_gradients.launch(file, case, device, of_launch("both", config), (made_of,), dtypes)
        return (replace(both, sizes=(whole_rows(case, device).sizes["K"], across, down, *both.sizes)),)
    if how == "few":
        whole = whole_rows(case, device)
        return (_few_launch(file, case, whole, _few_config(config), made_of, (*given, dtype, dtype), (across, down)),)
    if how == "beside":
        sizes = whole_rows(case, device).sizes["K"], across, down
        return (_beside_launch(file, case, of_launch("beside", config), made_of, (*given, dtype, dtype), sizes),)
    chosen, dtypes = of_launch("dx", config), (*(matmul.operand(case),) * 2, *given, dtype)
    dx = matmul_turned.launch_of_any(file, "inputs", own["dx"], device, chosen, dtypes, (made_of,))
    dx, chosen = replace(dx, sizes=(across, down)), of_launch("dW", config)
    if not weighs:
        return (dx,)
    if turned := weights.of_turned(case, device):
        dW = matmul_turned.launch_of_any(file, "weights", turned, device, chosen, ("tf32", "tf32", dtype))
        return weights.turning(file, whole_rows(case, device), turned), dx, dW
    of_dW, _ = _weights(case, device)
    return dx, matmul.launch(file, "weights", of_dW, device, chosen, dtypes=(dtype,) * 3, transposed=True)


def _few_launch(file, case, whole, config, made_of, dtypes, sizes):
    dx, upright = matmul.gradients(case)["dx"], case.options["w_layout"] == "kn"
    tile = matmul.tile_of(dx, config)
    rows, columns = linear_gradients.weights_shape(case)
    stored = whole is not case, case.sizes["K"] % 2 == 0, rows_are_aligned(case, columns)
    program = instance(
        file, "gradients_few_rows", TYPES[case.dtype], made_of, *stored, upright, tile.rows, tile.columns, tile.shares, config["num_stages"]
    )  # fmt: skip
    grid = matmul.blocks(tile, *dx.size("M", "N")) + -(-rows // WEIGHTS_SIDE) * -(-columns // WEIGHTS_SIDE)
    memory = max(matmul.tile_bytes(tile, 1, config["num_stages"], case.itemsize), 2 * 2 * WEIGHTS_SIDE * 128)
    sizes = *whole.size("K", "N"), *sizes
    return Launch(program, grid, tile.threads, memory, dtypes=((case.dtype,) * 4 + dtypes), sizes=sizes)


def _beside_launch(file, case, config, made_of, dtypes, sizes):
    rows, columns, stages, split = (config[name] for name in ("BLOCK_M", "BLOCK_N", "num_stages", "CLUSTER"))
    upright, panels = case.options["w_layout"] == "kn", (64, matmul.PANEL)
    tiles_dx, tiles_dW = _beside_tiles(case, config)
    return Launch(
        instance(file, "gradients_beside", TYPES[case.dtype], made_of, upright, rows, columns, stages, split),
        (tiles_dx + -(-tiles_dW // split)) * split,
        rows * 2 + 128,
        matmul_split.memory(config),
        dtypes=((case.dtype,) * 4 + dtypes),
        boxes=(*matmul.boxes(case, rows, columns), panels, panels),
        sizes=sizes,
    )


def _beside_tiles(case, config):
    """How many there are of dx and of dW."""
    shapes = case.size("M", "K"), linear_gradients.weights_shape(case)
    return [-(-m // config["BLOCK_M"]) * -(-n // config["BLOCK_N"]) for m, n in shapes]


def gradients(case, device, behind, rows, columns, parts=1, weighs=True):
    """A function of dz, W, x, 1 / deviations or None, and the rest of what `pulling` returns, which returns dx and dW, or None for the latter."""
    nk, how, shape = case.options["w_layout"] == "nk", way(case, device), linear_gradients.weights_shape(case)
    down = pulled_blocks(case, device, parts)[0]
    # n, rstd, parts of rows, parts of columns and db: which of them there are
    there = rows, rows, rows, columns and down > 1, columns
    apart, turned = how == "apart", weighs and weights.of_turned(case, device)
    first = 2 if apart else 4
    absent = [first + i for i, given in enumerate(there) if not given]
    if apart:
        own, (*of_turning, of_dx, of_dW) = matmul.gradients(case), behind if weighs else (*behind, None)
        inputs = of_dx.returning({7: case.size("M", "K")}, own["dx"].size(*NUMBERS), absent=absent)
        weigh = of_dW and of_dW.returning({2: shape}, (turned or own["dW"]).size(*NUMBERS))
        turn = turned and weights.turned_by(of_turning[0], whole_rows(case, device), turned)
    else:
        made = {9: case.size("M", "K"), 10: shape}
        if behind[0].exchange:
            made[11] = behind[0].exchange[0]
        elif how == "both":
            absent += [11, 12]
        both = behind[0].returning(made, case.size(*NUMBERS), absent=absent)

    def call(dz, W, x, rstd, row_parts, db, column_parts, flags):
        given = [a for a, is_there in zip((x, rstd, row_parts, column_parts, db), there, strict=True) if is_there]
        operands = (dz, x) if nk else (x, dz)
        if turned:
            dz_turned, x_turned = turn(dz, x)
            operands = (dz_turned, x_turned) if nk else (x_turned, dz_turned)
        if apart:
            return inputs(dz, W, *given), weigh and weigh(*operands)
        return both(dz, W, *operands, *given, *([] if flags is None else [flags]))[:2]

    return call
