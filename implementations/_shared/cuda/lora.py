"""The launches of lora.cuh's kernels, a linear layer with a low-rank adapter, and the choice of their tiles.

`case` has the sizes M, K, N and R and the options `activation` and `w_layout` of one layer. The variants:

fused           one launch: x @ A is summed beside x @ W
two_launches    x @ A first, then the layer with it: `down` and `up`, whose tunables have its name before them. up_KERNEL=warpgroup is
                hopper/adapted.cuh, turned hopper/adapted_turned.cuh, whose tiles have any multiple of 16 rows, split hopper/adapted_split.cuh,
                where up_CLUSTER blocks share K, few_rows adapted_few_rows.cuh, and simt adapted_simt.cuh. Forward, where rows are no whole vectors of 16 bytes,
                warpgroups and simt, and few_rows in IEEE float32, read x as `down` has copied it, and W and B as `prepare` has; in tf32
                warpgroups read W and B turned, by `prepare`, whatever their rows are
"""

from dataclasses import replace

from implementations._shared.cuda import matmul, matmul_choice, matmul_split, matmul_turned
from implementations._shared.cuda.launch import (
    TYPES,
    Launch,
    in_turn,
    instance,
    of_launch,
    prefixed,
    too_large,
    unsupported,
)
from implementations._shared.cuda.matmul import TENSOR_TILES, MatmulTile, blocks
from implementations._shared.gpu import filled_up, is_ieee, multiprocessors, rows_are_aligned, usual_kernel

LARGEST_RANK = 128
DOWN = MatmulTile("tensor", 32, 0, 1.0, 2, 2)  # x @ A alone: few rows, so that there are many blocks to read x
# of larger ranks, or many rows: each block reads all of A's rows that it multiplies. An H200 took in all for 8192×4096→256 with R = 16 51.7 µs in
# place of 64.2, 2048×4096→512 26.9 in place of 31.1; with 1000 rows and R = 32 31.3 in place of 30.6
WIDE_DOWN = MatmulTile("tensor", 64, 0, 1.0, 4, 1)
MANY_ROWS = 2048
DOWN_STAGES = 4
# On the float32 units, where rows of A are whole vectors (lora_down_simt.cuh): warps of a block, as many as fit, each with two slabs, and columns of A of a block
SIMT_DOWN_WARPS, SIMT_DOWN_STAGES, SIMT_DOWN_COLUMNS = (8, 4), 2, 32
# Of tiles of few rows that nearly all multiprocessors have: with more stages `up` has no room to ask for W while `down` runs. 1×4096→4096 took an H200
# 16.1 µs in bfloat16, with four stages 18.0; 8×4096→4096 25.2 and 27.8 in tf32
STAGES_BESIDE_DOWN = 2
# Rows up to which W is read so, by bytes of an element: 16×4096→4096 took 16.5 µs in bfloat16, by blocks that share K 19.0, but with 32 rows 17.5 and
# 16.7; in tf32, whose W is turned for these, 32 rows took 25.8 and 29.9
FEW_ROWS = {2: 16, 4: 32}
# Tiles whose K blocks share have 256 columns where x has more bytes than this, so that they read it half as often: `down` reads it, too, at the same time.
# And rows and columns of y from which such tiles are enough for all multiprocessors. 900×8192→1024 took an H200 38.4 µs in tiles of 64×256, in 128×128
# 54.1; 700×11008→1024 46.8 and 48.2; 1024×4096→1024, whose x is just no larger, 24.5 and 25.2; but 512×8192→1024 34.9 and 33.3
LARGE_X, LARGE_Y = 8 << 20, (640, 1024)
SIMT_SCHEDULES = "tiles", "strips"


def skip(case, variant, device):
    """Why the kernels cannot run this cell, or None."""
    if reason := unsupported(device):
        return reason
    if case.sizes["R"] > LARGEST_RANK:
        return f"a block holds its rows of x @ A: at most {LARGEST_RANK} columns, not R = {case.sizes['R']}"
    return None


def common(case):
    """Type, SIMT, and whether rows of x, W and B, and those of A, start on 16 bytes."""
    K, N, R = case.size("K", "N", "R")
    return TYPES[case.dtype], is_ieee(case), rows_are_aligned(case, K, N), rows_are_aligned(case, R)


def low_warps(tile):
    """The arrangement of the tile's warps on x @ A: 16 rows each, and where there are more warps, 16 columns beside them."""
    down = tile.rows // 16
    return down, tile.threads // 32 // down


def rank_columns(case, tile):
    """Columns of the tile of x @ A: a power of two."""
    return max(16 * low_warps(tile)[1], 1 << (case.sizes["R"] - 1).bit_length())


def config(case, variant, device):
    """The tile with the least work on the busiest multiprocessor; few rows in their own."""
    if variant == "two_launches" and (own := _fastest(case, device)):
        return prefixed("up", own)
    M, N = case.size("M", "N")
    found = {}
    for tile in TENSOR_TILES:
        shape = {"BLOCK_M": tile.rows, "BLOCK_N": tile.columns}
        choices = (named(case, variant, shape | {"num_stages": stages}) for stages in (4, 3, 2))
        if own := next((c for c in choices if fits(case, variant, device, c) is None), None):
            found[tile] = own

    def work(tile):
        rounds = -(-blocks(tile, M, N) // multiprocessors(device))
        low = rank_columns(case, tile) if variant == "fused" else 0
        return rounds * tile.rows * (tile.columns + low) * tile.cost

    return found[min(found, key=work)]


def _fastest(case, device):
    """The fastest, by the estimates, of IEEE float32's tiles, or of tiles of few rows, or whole ones, of those whose K blocks share, and of turned ones; None where tiles of
    `tensor` are all."""
    if is_ieee(case):
        tiles = matmul.FLOAT_TILES if _has_whole_rows_of_B(case) else matmul.SIMT_SPLIT_TILES
        return matmul_choice.config(product(case), device, tiles, schedules=SIMT_SCHEDULES)
    own, found, by_warpgroups = product(case), None, multiplies_by_warpgroups(case, device)
    if few := matmul_choice.few_rows_config(case, device, matmul.FEW_ROWS_TILES):
        found = few | {"SCHEDULE": "tiles"}
        if 2 * matmul.blocks(matmul.tile_of(case, few), *case.size("M", "N")) >= multiprocessors(device):
            found["num_stages"] = min(found["num_stages"], STAGES_BESIDE_DOWN)
            if case.sizes["M"] <= FEW_ROWS[case.itemsize]:
                return found
    elif by_warpgroups:
        found = matmul_choice.config(own, device, up_tiles(own), schedules=matmul.SCHEDULES)
    if case.itemsize == 2 or is_prepared(case):
        found = matmul_split.or_split(own, found, device, columns=matmul_split.WIDE, narrow=True)
        if found and found["KERNEL"] == "split" and _reads_much_of_x(case):
            found = matmul_split.or_split(own, None, device, columns=(256,)) or found
    # lora_backward.cuh, whose modes have this launch too, is compiled without turned tiles
    return matmul_turned.or_turned(own, found, device) if by_warpgroups and case.mode == "forward" else found


def _reads_much_of_x(case):
    (M, K, N), (rows, columns) = case.size("M", "K", "N"), LARGE_Y
    return case.itemsize == 2 and M * K * case.itemsize > LARGE_X and rows <= M and columns <= N


def tile_of(config):
    """The tile of a config, or None where there is no such instance."""
    return next((t for t in TENSOR_TILES if (t.rows, t.columns) == (config["BLOCK_M"], config["BLOCK_N"])), None)


def named(case, variant, config):
    """The config of `fused`, or of `up`, which `two_launches` ends with and which has other kernels beside it."""
    return config if variant == "fused" else prefixed("up", config | {"KERNEL": "tensor", "CLUSTER": 1})


def multiplies_by_warpgroups(case, device):
    """Whether `up` can be hopper/adapted.cuh's, which takes B as it came in 16 bits alone."""
    takes_B = is_prepared(case) or (case.itemsize == 2 and rows_are_aligned(case, case.sizes["N"]))
    return takes_B and matmul.multiplies_by_warpgroups(product(case), device)


def is_prepared(case):
    """Whether `prepare` may see to W and B, and `down` copy x, for warpgroups and IEEE float32. Backward modes read them as they came."""
    return case.mode == "forward" and (is_ieee(case) or case.sizes["K"] >= matmul.PANEL)


def product(case):
    """The case of x @ W as warpgroups and the float32 units read it."""
    return matmul.of_whole_rows(case) if is_prepared(case) else case


def few_rows_product(case):
    """The case of x @ W as few_rows reads them: but in IEEE float32 as they came."""
    return product(case) if is_ieee(case) else case


def up_tiles(case):
    """The tiles of x @ W of which a block brings whole panels of columns, as B is stored in 16 bits."""
    return [t for t in matmul.products_tiles(case) if matmul.own_columns(t, 1) % matmul.PANEL == 0]


def prepared(case, W, B):
    """What `up` reads in place of W, and of B, where their rows are no whole vectors, or tf32 wants them turned: none, one or both."""
    of_W = matmul.prepared(case, product(case), W)
    if not prepares_B(case):
        return of_W
    import torch

    rows = B.T if is_turned(case) else B
    return *of_W, torch.nn.functional.pad(rows, (0, -rows.shape[1] % (16 // case.itemsize))).contiguous()


def prepared_count(case):
    """How many arrays `prepared` makes."""
    return matmul.is_prepared(case, product(case)) + prepares_B(case)


def is_turned(case):
    """Whether `prepared` has B as (N, R), which is as tf32 is multiplied by warpgroups."""
    return is_prepared(case) and matmul.operand(case) == "tf32"


def prepares_B(case):
    """Whether `prepared` has B: turned, or with rows filled up to whole vectors."""
    return is_turned(case) or (is_prepared(case) and not rows_are_aligned(case, case.sizes["N"]))


def _has_whole_rows_of_B(case):
    """Whether rows of B as `up` reads it on the float32 units are whole vectors."""
    return prepares_B(case) or rows_are_aligned(case, case.sizes["N"])


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    own = config if variant == "fused" else of_launch("up", config)
    kernel = own.get("KERNEL")
    if kernel in ("warpgroup", "turned") and not multiplies_by_warpgroups(case, device):
        return matmul.NO_WARPGROUPS
    if kernel == "warpgroup":
        return matmul.fits(product(case), device, own, tiles=up_tiles(product(case)))
    if kernel in ("turned", "split", "few_rows") and matmul.schedule_of(own) != "tiles":
        return f"up_SCHEDULE={own['SCHEDULE']} is for up_KERNEL=warpgroup"
    if kernel == "turned":
        return matmul_turned.fits(product(case), device, own)
    if kernel == "split":
        return _split_fits(case, device, own)
    if kernel == "few_rows" and not _has_whole_rows_of_B(case):
        return f"up_KERNEL=few_rows copies whole vectors of 16 bytes, which rows of B do not have with N = {case.sizes['N']}"
    if kernel == "few_rows":
        return matmul.fits(few_rows_product(case), device, own, tiles=matmul.ALL_FEW_ROWS_TILES)
    if variant == "two_launches":
        if kernel != usual_kernel(case):
            return "IEEE float32 is multiplied by up_KERNEL=simt, everything else by the others"
        if kernel == "simt":
            return matmul.fits(product(case), device, own, tiles=matmul.SIMT_SPLIT_TILES)
        if own["CLUSTER"] != 1:
            return "up_KERNEL=tensor has no clusters"
    if variant == "two_launches" and matmul.schedule_of(own) != "tiles":
        return "up_SCHEDULE=stream_k is for up_KERNEL=warpgroup"
    tile, stages, R = tile_of(own), own["num_stages"], case.sizes["R"]
    if tile is None:
        return f"the tiles are {', '.join(f'{t.rows}×{t.columns}' for t in TENSOR_TILES)}"
    if tile.columns == 256 and (is_ieee(case) or (variant == "fused" and R > 16)):
        return f"256 columns leave no registers for IEEE float32, nor for more than 16 columns of x @ A beside them (R = {R})"
    if stages < 2:
        return f"num_stages is {stages}: one is read while another is written"
    return too_large(layer_bytes(case, variant, tile, stages), device)


def _split_fits(case, device, config):
    """Why a config with KERNEL=split cannot run, or None."""
    if case.itemsize == 4 and not is_prepared(case):
        return "up_KERNEL=split takes tf32 with W and B turned: in mode=forward, K from 64"
    return matmul_split.fits(
        product(case), device, matmul_split.of_cluster(config), known=matmul_split.WIDE, narrow=True
    )


def layer_bytes(case, variant, tile, stages):
    """Shared memory of a block of `fused` or `up`."""
    low = rank_columns(case, tile) if variant == "fused" else 0
    return max(stages * (tile.rows + tile.columns + low) * 128, tile.rows * (tile.columns + 8) * case.itemsize)


def launches(file, case, variant, device, config):
    """One launch (`fused`), or `down` and `up`, of `file`, which includes lora.cuh or hopper/adapted.cuh."""
    fused, T = variant == "fused", case.dtype
    own = config if fused else of_launch("up", config)
    activation = case.options["activation"].upper()
    if own.get("KERNEL") in ("warpgroup", "turned", "split"):
        arguments = activation, product(case).sizes["K"] == case.sizes["K"]  # x is not copied
        dtypes = *(matmul.operand(case),) * 4, T, T
        if own["KERNEL"] == "warpgroup":
            dtypes = *dtypes, "float32", "int32"  # of tiles that are shared
        up = matmul_turned.launch_of_any(file, "up", product(case), device, own, dtypes, arguments)
        # of t, as of x; of B, where that is turned as of W
        boxes = up.boxes[0], up.boxes[1] if is_turned(case) else (matmul.slab(case), matmul.PANEL)
        return in_turn(down(file, case, device), replace(up, boxes=(*up.boxes, *boxes)))
    if not fused and own["KERNEL"] == "simt":
        arguments = activation, _has_whole_rows_of_B(case)
        up = matmul.launch(file, "up", product(case), device, own, arguments, dtypes=(T,) * 6)
        return in_turn(down(file, case, device), up)
    if not fused and own["KERNEL"] == "few_rows":
        read = few_rows_product(case)
        arguments = activation, read.sizes["K"] == case.sizes["K"]  # x is not copied
        up = matmul.launch(file, "up", read, device, own, arguments, dtypes=(T,) * 6)
        return in_turn(down(file, case, device), up)
    tile, stages = tile_of(own), own["num_stages"]
    dtype, simt, aligned, rank_aligned = common(case)
    shape, nk = (tile.rows, tile.columns, tile.warps_m, tile.warps_n), case.options["w_layout"] == "nk"
    grid, memory = blocks(tile, *case.size("M", "N")), layer_bytes(case, variant, tile, stages)
    if not fused:
        up = Launch(
            instance(file, "up", dtype, activation, aligned, nk, *shape, stages),
            grid,
            tile.threads,
            memory,
            dtypes=(T,) * 6,
        )
        return in_turn(down(file, case, device), up)
    of_low = rank_columns(case, tile), *low_warps(tile), stages
    program = instance(file, "fused", dtype, simt, activation, aligned, rank_aligned, nk, *shape, *of_low)
    return (Launch(program, grid, tile.threads, memory, dtypes=(T,) * 7),)


def down(file, case, device):
    """The launch of x @ A alone, the first of `two_launches`, which may copy x into rows of whole vectors beside it."""
    M, K, R = case.size("M", "K", "R")
    if is_ieee(case) and rows_are_aligned(case, R):
        return _down_simt(file, case, device)
    tile = WIDE_DOWN if R > 32 or (case.itemsize == 2 and M >= MANY_ROWS) else DOWN
    columns, rows = rank_columns(case, tile), -(-M // tile.rows)
    parts = sharers(case, device, rows, K)
    arguments = TYPES[case.dtype], is_ieee(case), rows_are_aligned(case, K), rows_are_aligned(case, R)
    shape = tile.rows, columns, *low_warps(tile), DOWN_STAGES
    program = instance(file, "down", *arguments, *shape)
    if parts > 1:
        program = instance(file, "down_by_parts", *arguments, *shape, parts)
    memory = DOWN_STAGES * (tile.rows + columns) * 128
    return Launch(program, rows * parts, tile.threads, memory, dtypes=(*(case.dtype,) * 6, "int32"))


def _down_simt(file, case, device):
    """The same on the float32 units: each warp has the block's whole tile, and slabs of its own."""
    M, K, R = case.size("M", "K", "R")
    rows, columns = 16 if M <= 16 else 32, 16 if R <= 16 else SIMT_DOWN_COLUMNS
    blocks = -(-M // rows) * -(-R // columns)
    parts = sharers(case, device, blocks, K // 2, wanted=1)  # whose warps have a slab each, but of few slabs
    sums = rows * columns * 4 if parts > 1 else 0
    of_warp = max(SIMT_DOWN_STAGES * (rows + columns) * 128, rows * (columns + 8) * 4)
    warps = next(n for n in SIMT_DOWN_WARPS if not too_large(n * of_warp + sums, device))
    shape = rows_are_aligned(case, K), rows, columns, warps, SIMT_DOWN_STAGES
    program = instance(file, "down_simt", *shape)
    if parts > 1:
        program = instance(file, "down_simt_by_parts", *shape, parts)
    return Launch(program, blocks * parts, 32 * warps, warps * of_warp + sums, dtypes=(*(case.dtype,) * 6, "int32"))


def sharers(case, device, rows, deep, wanted=1.5):
    """How many blocks, a cluster, share `deep` elements of each of `rows` tiles: on Hopper and later, where there would else be fewer than are
    `wanted` of a multiprocessor to read them."""
    parts, enough = 1, wanted * multiprocessors(device)
    while device.capability >= (9, 0) and parts < min(8, deep // (4 * matmul.slab(case))) and rows * parts < enough:
        parts *= 2
    return parts


def in_two_launches(case, first, last, keeps=False):
    """A function of (x, scale, W, b, A, B, then what `prepared` made) that runs `down` and `up`: → y, and with `keeps` x @ A too.

    x @ A and what `up` takes, scale * x @ A, have rows of whole vectors with zeros behind R; warpgroups and IEEE float32 take x as `down`
    has copied it.
    """
    M, K, N, R = case.size("M", "K", "N", "R")
    reads_prepared = bool(last.boxes) or is_ieee(case)
    own, (sums, flags) = product(case) if reads_prepared else case, last.exchange or (None, (0,))
    low = M, filled_up(case, R)
    columns, other_W, other_B = own.sizes["K"], matmul.is_prepared(case, own), reads_prepared and prepares_B(case)
    copied = columns != K
    made = ({3: low} if keeps else {}) | {4: low}
    made |= ({5: (M, columns)} if copied else {}) | ({6: flags} if sums else {})
    down = first.returning(made, (M, K, R, *flags), absent=[place for place in (3, 5, 6) if place not in made])
    result = {5: (M, N)} | ({6: sums} if sums else {})
    up = last.returning(result, (M, columns, N, R), absent=() if sums else range(6, len(last.dtypes)))

    def call(x, scale, W, b, A, B, *prepared):
        found = down(x, A, scale) if len(made) > 1 else (down(x, A, scale),)
        *xa, t = found[: keeps + 1]
        x, *cleared = found[keeps + 1 :] if copied else (x, *found[keeps + 1 :])
        y = up(x, prepared[0] if other_W else W, t, prepared[-1] if other_B else B, b, *cleared)
        y = y[0] if sums else y
        return (y, *xa) if keeps else y

    return call
