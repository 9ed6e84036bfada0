"""The tiles of kernels on matmul_mma.cuh, matmul_few_rows.cuh, matmul_simt.cuh and hopper/matmul.cuh, and their launch.

The tunables are KERNEL (`tensor`, `few_rows`, `simt` or `warpgroup`), BLOCK_M and BLOCK_N of a block's tile, num_stages and CLUSTER; an
implementation that has but one kernel for a case leaves KERNEL and CLUSTER out. SCHEDULE is of warpgroups (hopper/schedule.cuh): `tiles`;
`strips`, by which what a little more than whole tiles leaves is made in smaller ones; or `stream_k`, by which the last tiles are shared
among all blocks, and whose flags a launch before it must clear. The blocks of a cluster of KERNEL=simt share the K of a tile.
"""

from dataclasses import dataclass, replace

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, too_large
from implementations._shared.gpu import (
    clusters_at_once,
    is_ieee,
    multiprocessors,
    rows_are_aligned,
    usual_kernel,
    weight_row,
)


@dataclass(frozen=True)
class MatmulTile:
    """A block's part of the product, the kind of kernel that multiplies it (a value of KERNEL), its arrangement of warps (of few rows,
    warps_m and warps_n are 1 and `shares` warps share K), how many neighbours in M, or with simt sharers of K, are a cluster, and what an
    element costs in it beside the largest tile of tensor cores."""

    kind: str
    rows: int
    columns: int
    cost: float
    warps_m: int = 0
    warps_n: int = 0
    cluster: int = 1
    shares: int = 1

    @property
    def threads(self):
        if self.kind == "warpgroup":
            return self.rows * 2 + 128  # a consumer warpgroup for every 64 rows, and one producer
        if self.kind == "simt":
            return self.rows * self.columns // (128 if self.columns >= 128 else 64)
        return self.warps_m * self.warps_n * self.shares * 32


# The larger a tile, the fewer bytes a product reads; the smaller, the more blocks there are for a small y. 16 rows are the
# least that tensor cores multiply: with few rows, W is all that is read, and wants many blocks.
TENSOR_TILES = (
    MatmulTile("tensor", 128, 256, 1.0, 2, 4), MatmulTile("tensor", 128, 128, 1.2, 2, 4), MatmulTile("tensor", 64, 128, 1.4, 2, 2),
    MatmulTile("tensor", 64, 64, 1.6, 2, 2), MatmulTile("tensor", 16, 64, 3.0, 1, 4),
)  # fmt: skip
SIMT_TILES = (MatmulTile("simt", 128, 256, 1.0), MatmulTile("simt", 128, 128, 1.02), MatmulTile("simt", 64, 64, 1.14))
# Of kernels that have <name>_simt_split: with few tiles, multiprocessors would idle, or have too few warps to hide what they wait for
SIMT_SPLIT_TILES = tuple(
    replace(tile, cluster=split) for tile in (*SIMT_TILES, MatmulTile("simt", 32, 64, 1.36)) for split in (2, 4, 8)
)
WARPGROUP_TILES = tuple(
    MatmulTile("warpgroup", 128, columns, cost, cluster=cluster)
    for columns, cost, cluster in ((256, 0.4, 2), (256, 0.4, 1), (256, 0.4, 4), (128, 0.48, 2), (128, 0.48, 1))
)
TILES = TENSOR_TILES + SIMT_TILES + WARPGROUP_TILES
# Kernels name these, which have their own cost (`few_rows_time`): all of a block's warps have the whole tile in registers
FEW_ROWS_TILES = tuple(MatmulTile("few_rows", m, n, 1.0, 1, 1, shares=8) for m in (16, 32, 64) for n in (16, 32, 64))
# in IEEE float32 half as many warps have the largest, each with twice the registers
FLOAT_FEW_ROWS_TILES = tuple(replace(t, shares=4) if t.rows == t.columns == 64 else t for t in FEW_ROWS_TILES)
ALL_FEW_ROWS_TILES = tuple(dict.fromkeys(FEW_ROWS_TILES + FLOAT_FEW_ROWS_TILES))
# The same whose K the blocks of a cluster share, too, of kernels that have <name>_few_rows_split
FLOAT_SPLIT_TILES = tuple(replace(t, cluster=split) for t in FLOAT_FEW_ROWS_TILES for split in (2, 4))
FLOAT_TILES = FLOAT_FEW_ROWS_TILES + SIMT_SPLIT_TILES  # of a product in IEEE float32 with nothing beside its sums
# For sums with nothing beside them: 132 multiprocessors make 1034×4096 of them at once. lola in bfloat16 took 22.6 µs on an H200 there, with
# 128×256 and strips 28.4; splacc 1034×2048→2048 30.8 in clusters of two on an H100, by one block 37.0
SQUARE_TILES = (
    MatmulTile("warpgroup", 192, 192, 0.39),
    MatmulTile("warpgroup", 192, 192, 0.39, cluster=2),
)
SCHEDULES = {"tiles": "WholeTiles", "strips": "Strips", "stream_k": "SharedTiles"}  # and their types in schedule.cuh
PANEL = 64  # columns of W, or of a transposed x, that a copy brings for each k
# Slabs in shared memory, floats behind a row of one, and rows of a strip, as in matmul_simt.cuh
SIMT_STAGES, SIMT_PAD, SIMT_STRIP = 3, 4, 32
COPIERS = 256  # threads of a block of whole_rows


def slab(case):
    """Elements of K of a pipeline stage: 128 bytes."""
    return 128 // case.itemsize


def operand(case):
    """The dtype of x and W: tensor cores want float32 rounded to tf32, which the copy engine does on the way."""
    return "tf32" if case.dtype == "float32" and not is_ieee(case) else case.dtype


def prepared_layout(case):
    """How W is best stored, which `prepare` may see to: (N, K) for tf32, which tensor cores read in no other way, and in 16 bits where only
    then rows of it are whole vectors; in IEEE float32 they are `filled`, because by (N, K) lola 777×1000→3001 took 178 to 218 µs in tiles
    of 128 rows on an H200."""
    K, N = case.size("K", "N")
    layout = case.options["w_layout"]
    if operand(case) == "tf32":
        return "nk"
    if rows_are_aligned(case, N) or not rows_are_aligned(case, K) or layout == "nk":
        return layout
    return "filled" if is_ieee(case) else "nk"


def prepared_case(case):
    """The case of the product with W as `prepare` left it."""
    return replace(case, options={**case.options, "w_layout": prepared_layout(case)})


def of_whole_rows(case, parts=1, copied=False):
    """The case of the product whose rows of x, which a launch before it copies, are whole lines of the L2 cache, of IEEE float32 in several
    `parts` whole vectors of 16 bytes; those of W, too, where `prepare` fills them up: it is turned where its rows of N are none, where it
    has several parts, whose kernels read it as deep as x, and for tf32; in IEEE float32 it keeps its layout. `copied`: x is, whatever its rows are."""
    K, N = case.size("K", "N")
    if not copied and rows_are_aligned(case, K) and not _lines_pay(case, parts):
        return prepared_case(case)
    whole = 16 // case.itemsize if is_ieee(case) and parts > 1 else slab(case)
    filled = -(-K // whole) * whole
    layout = case.options["w_layout"]
    if is_ieee(case):
        layout = "filled" if layout == "kn" and (filled != K or not rows_are_aligned(case, N)) else layout
    elif parts > 1 or N % whole or case.itemsize == 4:
        layout = "nk"
    return replace(case, sizes={**case.sizes, "K": filled}, options={**case.options, "w_layout": layout})


def _lines_pay(case, parts):
    """Whether rows of whole lines pay for the copy of x: a box of others takes a tenth longer (177 µs with K = 4104, 161 with 4160), and
    a product that reads the copy begins only when all of x was read, at 2.6 TB/s."""
    M, K, N = case.size("M", "K", "N")
    if is_ieee(case) or K % slab(case) == 0 or not holds_boxes(case):
        return False
    product = 2 * M * K * N * parts * case.itemsize / 2 / 6e14  # seconds, of 16 bits at 600 TFLOP/s
    return 0.1 * product > 2e-6 + M * K * case.itemsize / 2.6e12


def row_copy(file, case, own, device):
    """The launch of whole_rows of `file`, which copies x to rows as `own`, the case of the product behind it, has them where they are not as
    they came, and clears its flags."""
    copied = own.sizes["K"] != case.sizes["K"]
    vectors = case.sizes["M"] * own.sizes["K"] * case.itemsize // 16 if copied else 1
    grid = max(1, min(-(-vectors // COPIERS), 8 * multiprocessors(device)))
    program = instance(file, "whole_rows", TYPES[case.dtype], rows_are_aligned(case, case.sizes["K"]))
    return Launch(program, grid, COPIERS, dtypes=(case.dtype, case.dtype, "int32"))


def is_prepared(case, own):
    """Whether W is stored otherwise in `own`, the case of the product: turned, or rows with zeros behind them."""
    layout = own.options["w_layout"]
    return layout != case.options["w_layout"] or (layout == "nk" and own.sizes["K"] != case.sizes["K"])


def prepared(case, own, W, parts=1):
    """() or (W, of so many parts, as it is stored in `own`,)."""
    if not is_prepared(case, own):
        return ()
    from torch.nn.functional import pad

    deeper = own.sizes["K"] - case.sizes["K"]
    if own.options["w_layout"] == "filled":
        by_part = W.unflatten(1, (parts, -1))
        return (pad(by_part, (0, weight_row(own) - by_part.shape[2], 0, 0, 0, deeper)).flatten(1),)
    rows = W if case.options["w_layout"] == "nk" else W.T
    return (pad(rows, (0, deeper)).contiguous(),)


def turned(case):
    """The case of the product with W stored (N, K)."""
    return replace(case, options={**case.options, "w_layout": "nk"})


def product(case, M, K, N, nk=False):
    """The case of another product of a kernel: x (M, K) with W (K, N), or with (N, K) where `nk`."""
    return replace(case, sizes={"M": M, "K": K, "N": N}, options={**case.options, "w_layout": "nk" if nk else "kn"})


def gradients(case):
    """The cases of dx = dz @ Wᵀ and of dW, which is of a transposed left operand."""
    M, K, N = case.size("M", "K", "N")
    nk = case.options["w_layout"] == "nk"
    dW = product(case, N, M, K) if nk else product(case, K, M, N)
    return {"dx": product(case, M, N, K, not nk), "dW": dW}


def fits(case, device, config, parts=1, beside=lambda tile: 0, tiles=TILES):
    """Why a config cannot run, or None. `tiles` are those that the kernel has, and SIMT_TILES."""
    tile, stages = tile_of(case, config), config["num_stages"]
    if tile not in (*tiles, *SIMT_TILES):
        kind = kind_of(case, config)
        known = ", ".join(
            f"{t.rows}×{t.columns} in clusters of {t.cluster}"
            for t in dict.fromkeys((*tiles, *SIMT_TILES))
            if t.kind == kind and t in _instances(case)
        )
        return f"the tiles of KERNEL={kind} are {known or 'none'}"
    if tile.kind != "few_rows" and (tile.kind == "simt") != is_ieee(case):
        return (
            "IEEE float32 is multiplied by KERNEL=simt and few_rows, everything else by few_rows, tensor and warpgroup"
        )
    if reason := not_one_of("SCHEDULE", schedule_of(config), SCHEDULES) or _schedule_fits(tile, schedule_of(config)):
        return reason
    if tile.kind == "simt":
        if tile.rows == 32 and not rows_are_aligned(case, case.sizes["K"], weight_row(case)):
            return "a tile of 32×64 has no registers for rows of single elements: those of x and W are whole vectors of 16 bytes"
        return _simt_fits(tile, stages, schedule_of(config), device)
    if tile.kind == "warpgroup" and not multiplies_by_warpgroups(case, device):
        return NO_WARPGROUPS
    if tile.kind == "few_rows" and (reason := _few_rows_fit(case, tile)):
        return reason
    if tile.kind == "few_rows" and tile.cluster > 1 and device.capability < (9, 0):
        return "thread-block clusters need compute capability 9.0"
    if stages < (1 if tile.kind == "few_rows" else 2):
        return f"num_stages is {stages}: one is read while another is written, but of few rows, where other warps write meanwhile"
    if tile.kind == "warpgroup" and case.options["w_layout"] == "kn" and own_columns(tile, parts) % PANEL:
        return f"a block brings {own_columns(tile, parts)} columns of W at once, which are panels of {PANEL} where W is (K, N)"
    if schedule_of(config) == "stream_k" and 2 * multiprocessors(device) * (case.sizes["K"] // slab(case) + 4) >= 2**31:
        return (
            f"SCHEDULE=stream_k counts the slabs of two rounds of tiles in 31 bits, which K = {case.sizes['K']} exceeds"
        )
    return too_large(tile_bytes(tile, parts, stages, case.itemsize) + beside(tile), device)


def _few_rows_fit(case, tile):
    """The same of a tile of few rows."""
    if is_ieee(case) and tile.rows == tile.columns == 64 and case.options["w_layout"] == "nk":
        return "a tile of 64×64 has no registers for four elements of K of W, which (N, K) has beside one another"
    read = (weight_row(case),) if is_ieee(case) else case.size("K", "N")  # of floats x may lie anywhere
    if rows_are_aligned(case, *read):
        return None
    K, N = case.size("K", "N")
    return f"KERNEL=few_rows copies whole vectors of 16 bytes, which rows of K = {K} and N = {N} do not have"


def _simt_fits(tile, stages, schedule, device):
    """The same of a tile in IEEE float32."""
    if stages != SIMT_STAGES:
        return f"num_stages is {stages}: KERNEL=simt has {SIMT_STAGES}"
    if tile.cluster > 1 and device.capability < (9, 0):
        return "thread-block clusters need compute capability 9.0"
    if tile.cluster == 1 and schedule == "tiles":
        return None  # its shared memory is static
    return too_large(simt_bytes(tile, schedule), device, static=SIMT_STATIC)


def launch(
    file, kernel, case, device, config, arguments=(), parts=1, beside=lambda tile: 0, dtypes=(), transposed=False
):
    """The launch of `<kernel>_<KERNEL>` of `file` with a config that fits. `dtypes` are those of its arguments. `transposed` says that
    x is stored (K, M).

    The template's arguments are the type (not of simt), `arguments`, ALIGNED (not of warpgroup; with simt of what is read alone), NK, and
    the tile.
    """
    M, K, N = case.size("M", "K", "N")
    tile, stages, nk = tile_of(case, config), config["num_stages"], case.options["w_layout"] == "nk"
    template, shape = f"{kernel}_{tile.kind}", (tile.rows, tile.columns)
    aligned = rows_are_aligned(case, M if transposed else K, weight_row(case) if tile.kind == "simt" else N)
    grid = blocks(tile, M, N, parts)
    if tile.kind == "simt":
        schedule = schedule_of(config)
        more = "_strips" if schedule == "strips" else "_split" if tile.cluster > 1 else ""
        sharers = (tile.cluster,) if tile.cluster > 1 else ()
        program = instance(file, template + more, *arguments, aligned, nk, *shape, *sharers)
        memory = simt_bytes(tile, schedule) if more else 0
        # several blocks of a multiprocessor would all go to one that the launch before has left first
        alone = tile.threads < SIMT_THREADS
        return Launch(
            program, simt_blocks(tile, schedule, M, N, parts), tile.threads, memory, dtypes=dtypes, alone=alone
        )
    head, memory = (TYPES[case.dtype], *arguments), tile_bytes(tile, parts, stages, case.itemsize) + beside(tile)
    if tile.kind == "tensor":
        program = instance(file, template, *head, aligned, nk, *shape, tile.warps_m, tile.warps_n, stages)
        return Launch(program, grid, tile.threads, memory, dtypes=dtypes)
    if tile.kind == "few_rows":
        aligned = rows_are_aligned(case, K)  # rows of x
        sharers = (tile.cluster,) if tile.cluster > 1 else ()
        name = f"{template}_split" if sharers else template
        program = instance(file, name, *head, is_ieee(case), aligned, nk, *shape, tile.shares, stages, *sharers)
        return Launch(program, grid, tile.threads, memory, dtypes=dtypes)
    schedule, deep = schedule_of(config), slab(case)
    most = clusters_at_once(device, tile.cluster) * tile.cluster
    program = instance(
        file, template, *head, nk, *shape, stages, tile.cluster, *([SCHEDULES[schedule]] if schedule != "tiles" else [])
    )
    tiles = most if schedule == "stream_k" else sum(tiles_of(tile, schedule, M, N, parts)) * tile.cluster
    grid = min(tiles, most)
    of_x, of_W = boxes(case, tile.rows, own_columns(tile, parts), small=schedule == "strips")
    rows, columns = (deep, PANEL) if transposed else of_x, of_W if nk else (deep, PANEL)
    exchange = ((grid * tile.rows * tile.columns,), (grid * tile.rows // 16,)) if schedule == "stream_k" else ()
    return Launch(
        program, grid, tile.threads, memory, dtypes=dtypes, boxes=(rows, columns), exchange=exchange, tiles=tiles
    )


def own_columns(tile, parts):
    """Columns of W that a block of a cluster brings, of one part."""
    return tile.columns // max(parts, tile.cluster)


def boxes(case, rows, columns, small=False):
    """Boxes of x (M, K) and of W (N, K), of which a block brings so many rows and `columns` at once, as Copies of hopper/matmul.cuh has them; `small`
    where there are small tiles, too."""
    deep = slab(case)
    if case.itemsize == 4 and not small:
        return (rows, deep), (columns, deep)
    return (32 if case.itemsize == 2 else PANEL, deep), (32 if columns % PANEL else PANEL, deep)


def kind_of(case, config):
    """The kind of kernel: the only one that multiplies the case where the config does not say."""
    return config.get("KERNEL", usual_kernel(case))


def tile_of(case, config):
    """The tile of a config, or None where there is no such instance."""
    wanted = kind_of(case, config), config["BLOCK_M"], config["BLOCK_N"], config.get("CLUSTER", 1)
    return next((t for t in _instances(case) if (t.kind, t.rows, t.columns, t.cluster) == wanted), None)


def _instances(case):
    """The tiles of all kernels for such a case."""
    few = FLOAT_FEW_ROWS_TILES + FLOAT_SPLIT_TILES if is_ieee(case) else FEW_ROWS_TILES
    return *TILES, *SIMT_SPLIT_TILES, *SQUARE_TILES, *few


NO_WARPGROUPS = (
    "KERNEL=warpgroup is for Hopper (9.0), 16 bits, or tf32 with W (N, K); K from 64, N from 128; rows of x and W of whole "
    "vectors of 16 bytes; all sizes below 2**31"
)


def holds_boxes(case):
    """Whether W is no smaller than the boxes that bring it."""
    K, N = case.size("K", "N")
    return K >= PANEL and N >= 2 * PANEL


def multiplies_by_warpgroups(case, device):
    """Whether hopper/matmul.cuh can be compiled for the device and take the case, whose coordinates have 31 bits."""
    M, K, N = case.size("M", "K", "N")
    nk = case.options["w_layout"] == "nk"
    fits = holds_boxes(case) and max(M, K, 2 * N) < 2**31 - 256
    aligned = rows_are_aligned(case, *((K,) if nk else (K, N)))
    return (
        tuple(device.capability) == (9, 0) and aligned and fits and (case.itemsize == 2 or (nk and not is_ieee(case)))
    )


def _schedule_fits(tile, schedule):
    """Why a tile cannot be scheduled so, or None."""
    if schedule == "strips" and tile.kind == "simt":
        return (
            None
            if (tile.rows, tile.columns, tile.cluster) == (128, 256, 1)
            else "SCHEDULE=strips is for tiles of 128×256"
        )
    if schedule != "tiles" and tile.kind != "warpgroup":
        return f"SCHEDULE={schedule} is for KERNEL=warpgroup"
    if schedule == "strips" and (tile.rows, tile.columns) != (128, 256):
        return "SCHEDULE=strips is for tiles of 128×256, whose stages hold two slabs of small ones"
    return None


def products_tiles(case):
    """Those of a product by warpgroups with nothing beside its sums."""
    return (*WARPGROUP_TILES, *SQUARE_TILES) if case.itemsize == 2 else WARPGROUP_TILES


def tiles_of(tile, schedule, M, N, parts):
    """Whole tiles, and small ones of the strips below them and beside (hopper/schedule.cuh), of all clusters each."""
    rows, columns = tile.rows * tile.cluster, tile.columns // parts
    below, beside = (M % rows, N % columns) if schedule == "strips" else (0, 0)
    below, beside = below if below <= rows // 2 else 0, beside if beside <= columns // 2 else 0
    small = -(-below // PANEL) * -(-N // (columns // 2)) + (-(-(M - below) // PANEL) if beside else 0)
    return -(-(M - below) // rows) * -(-(N - beside) // columns), -(-small // tile.cluster)


def schedule_of(config):
    return config.get("SCHEDULE", "tiles")


def blocks(tile, M, N, parts=1):
    """How many blocks make the tiles that cover y (M, N), in whole clusters."""
    rows = tile.rows * (1 if tile.kind in ("simt", "few_rows") else tile.cluster)
    return -(-M // rows) * tile.cluster * -(-N // (tile.columns // parts))


SIMT_THREADS = 256  # of a multiprocessor, as matmul_simt.cuh's blocks are compiled
SIMT_MORE_THREADS = 384  # of tiles of 64×64, which have fewer registers, unless they read single elements
SIMT_STATIC = 8 << 10  # bytes of shared memory for what a kernel sums up beside


def simt_beside(case, tile):
    """How many blocks a multiprocessor has at once."""
    aligned = rows_are_aligned(case, case.sizes["K"], weight_row(case))
    return (SIMT_MORE_THREADS if aligned and tile.rows == tile.columns == 64 else SIMT_THREADS) // tile.threads


def simt_depth(tile):
    """Elements of K of a slab in matmul_simt.cuh."""
    return 8 if tile.rows * tile.columns > 2048 else 16


def simt_strip(tile):
    """The tile of what is left below whole ones: as large, of as many threads."""
    return replace(tile, rows=SIMT_STRIP, columns=tile.rows * tile.columns // SIMT_STRIP)


def simt_blocks(tile, schedule, M, N, parts):
    """How many blocks make y (M, N), in whole clusters. By strips, what is left below whole tiles is made in them if it is half a tile at most."""
    below = M % tile.rows if schedule == "strips" and M % tile.rows <= tile.rows // 2 else 0
    return blocks(tile, M - below, N, parts) + blocks(simt_strip(tile), below, N, parts)


def simt_bytes(tile, schedule="tiles"):
    """Dynamic shared memory of a block that shares K, its slabs and its sums but for those that it finishes; or of one that may make strips,
    whose slabs are the larger ones."""
    one = simt_strip(tile) if schedule == "strips" else tile
    slabs = SIMT_STAGES * simt_depth(one) * (one.rows + one.columns + 2 * SIMT_PAD)
    return 4 * (slabs + tile.rows * tile.columns * (tile.cluster - 1) // tile.cluster)


def tile_bytes(tile, parts, stages, itemsize):
    """Shared memory of a block: slabs of 128 bytes of K, whose place the tile of y takes before it is stored. For warpgroups the
    tile's rows lie beside the slabs, 128 bytes of each at a time, as does what belongs to the columns of two tiles, 8 bytes each; and
    two barriers of each slab and tile."""
    slabs = stages * (tile.rows + tile.columns) * 128
    if tile.kind == "few_rows":
        return tile.shares * max(slabs, tile.rows * (tile.columns + 8) * 4)
    if tile.kind == "warpgroup":
        return slabs + tile.rows * (128 + 8 * itemsize) + 2 * 8 * tile.columns // parts + (stages + 2) * 16
    return max(slabs, tile.rows * (tile.columns // parts + 8) * itemsize)
