"""The tiles of kernels on matmul_mma.cuh, matmul_few_rows.cuh, matmul_simt.cuh and hopper/matmul.cuh, and their launch.

The tunables are KERNEL (`tensor`, `few_rows`, `simt` or `warpgroup`), BLOCK_M and BLOCK_N of a block's tile, num_stages and CLUSTER; an
implementation that has but one kernel for a case leaves KERNEL and CLUSTER out. SCHEDULE is of warpgroups (hopper/schedule.cuh): `tiles`;
`strips`, by which what a little more than whole tiles leaves is made in smaller ones; or `stream_k`, by which the last tiles are shared
among all blocks, and whose flags a launch before it must clear. The blocks of a cluster of KERNEL=simt share the K of a tile.
"""

import math
from dataclasses import dataclass, replace

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, too_large
from implementations._shared.gpu import is_ieee, multiprocessors, rows_are_aligned


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
SIMT_TILES = (MatmulTile("simt", 128, 256, 0.96), MatmulTile("simt", 128, 128, 1.0), MatmulTile("simt", 64, 64, 1.12))
# Of kernels that have <name>_simt_split: with few tiles, multiprocessors would idle, or have too few warps to hide what they wait for
SIMT_SPLIT_TILES = tuple(
    replace(tile, cluster=split) for tile in (*SIMT_TILES, MatmulTile("simt", 32, 64, 1.05)) for split in (2, 4, 8)
)
# On an H200 a cluster gained 3 % where blocks make many tiles, since two bring W once, and lost as much where they make one.
WARPGROUP_TILES = tuple(
    MatmulTile("warpgroup", 128, columns, cost, cluster=cluster)
    for columns, cost, cluster in ((256, 0.4, 2), (256, 0.405, 1), (256, 0.41, 4), (128, 0.52, 2), (128, 0.525, 1))
)
TILES = TENSOR_TILES + SIMT_TILES + WARPGROUP_TILES
# Kernels name these, which have their own cost (`_few_rows_time`): all of a block's warps have the whole tile in registers
FEW_ROWS_TILES = tuple(MatmulTile("few_rows", m, n, 1.0, 1, 1, shares=8) for m in (16, 32, 64) for n in (16, 32, 64))
# For sums with nothing beside them: 132 multiprocessors make 1034×4096 of them at once. lola in bfloat16 took 22.6 µs on an H200 there, with
# 128×256 and strips 28.4; splacc 1034×2048→2048 30.8 in clusters of two on an H100, by one block 37.0
SQUARE_TILES = (
    MatmulTile("warpgroup", 192, 192, 0.43),
    MatmulTile("warpgroup", 192, 192, 0.42, cluster=2),
)
SCHEDULES = {"tiles": "WholeTiles", "strips": "Strips", "stream_k": "SharedTiles"}  # and their types in schedule.cuh
PANEL = 64  # columns of W, or rows of a transposed x, that a copy brings for each k
# Slabs in shared memory, floats behind a row of one, and rows of a strip, as in matmul_simt.cuh
SIMT_STAGES, SIMT_PAD, SIMT_STRIP = 3, 4, 32
COPIERS = 256  # threads of a block of whole_rows
L2_BYTES = 40 << 20  # of W that stay there beside x and y


def slab(case):
    """Elements of K of a pipeline stage: 128 bytes."""
    return 128 // case.itemsize


def operand(case):
    """The dtype of x and W: tensor cores want float32 rounded to tf32, which the copy engine does on the way."""
    return "tf32" if case.dtype == "float32" and not is_ieee(case) else case.dtype


def prepared_layout(case):
    """How W is best stored, which `prepare` may see to: (N, K) for tf32, which tensor cores read in no other way, and where only then
    rows of it are whole vectors."""
    M, K, N = case.size("M", "K", "N")
    turned = operand(case) == "tf32" or (
        case.itemsize == 2 and M > 1 and not rows_are_aligned(case, N) and rows_are_aligned(case, K)
    )
    return "nk" if turned else case.options["w_layout"]


def prepared_case(case):
    """The case of the product with W as `prepare` left it."""
    return replace(case, options={**case.options, "w_layout": prepared_layout(case)})


def of_whole_rows(case, parts=1):
    """The case of the product whose rows of x, which a launch before it copies, are whole lines of the L2 cache, of IEEE float32 whole
    vectors of 16 bytes; those of W, too, where `prepare` fills them up: it is turned where its rows of N are none, or where it has several
    `parts`, whose kernels read it as deep as x."""
    K, N = case.size("K", "N")
    if rows_are_aligned(case, K) and not _lines_pay(case, parts):
        return prepared_case(case)
    whole = 16 // case.itemsize if is_ieee(case) else slab(case)
    layout = "nk" if parts > 1 or N % whole else case.options["w_layout"]
    return replace(
        case, sizes={**case.sizes, "K": -(-K // whole) * whole}, options={**case.options, "w_layout": layout}
    )


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
    """Whether W is stored otherwise in `own`, the case of the product: turned, or rows of K with zeros behind them."""
    layout = own.options["w_layout"]
    return layout != case.options["w_layout"] or (layout == "nk" and own.sizes["K"] != case.sizes["K"])


def prepared(case, own, W):
    """() or (W as it is stored in `own`,)."""
    if not is_prepared(case, own):
        return ()
    import torch

    rows = W if case.options["w_layout"] == "nk" else W.T
    return (torch.nn.functional.pad(rows, (0, own.sizes["K"] - case.sizes["K"])).contiguous(),)


def turned(case):
    """The case of the product with W stored (N, K)."""
    return replace(case, options={**case.options, "w_layout": "nk"})


def product(case, M, K, N, nk=False):
    """The case of another product of a kernel: x (M, K) with W (K, N), or with (N, K) where `nk`."""
    return replace(case, sizes={"M": M, "K": K, "N": N}, options={**case.options, "w_layout": "nk" if nk else "kn"})


def config(case, device, tiles=TENSOR_TILES, parts=1, beside=lambda tile: 0, schedules=("tiles",)):
    """The config of the best of `tiles` that fit, of a product of x (M, K) with `parts` matrices (K, N) side by side. `beside` is
    how many bytes of shared memory the kernel has with a tile beside its own. SCHEDULE is named where there are several."""
    if few := few_rows_config(case, device, tiles, parts, beside):
        return few | ({"SCHEDULE": "tiles"} if len(schedules) > 1 else {})
    found = {}
    for tile in (t for t in (*tiles, *SIMT_TILES) if (t.kind == "simt") == is_ieee(case) and t.kind != "few_rows"):
        for stages in (SIMT_STAGES,) if tile.kind == "simt" else (4, 3, 2):  # more wait for nothing
            own = {
                "KERNEL": tile.kind, "BLOCK_M": tile.rows, "BLOCK_N": tile.columns, "num_stages": stages,
                "CLUSTER": tile.cluster,
            }  # fmt: skip
            if fits(case, device, own, parts, beside, tiles) is None:
                found.setdefault(tile, own)
    choices = [
        (tile, s)
        for tile, own in found.items()
        for s in schedules
        if fits(case, device, own | {"SCHEDULE": s}, parts, beside, tiles) is None
    ]
    tile, schedule = best(choices, case, parts, device)
    return found[tile] | ({"SCHEDULE": schedule} if len(schedules) > 1 else {})


def fits(case, device, config, parts=1, beside=lambda tile: 0, tiles=TILES):
    """Why a config cannot run, or None. `tiles` are those that the kernel has, and SIMT_TILES."""
    tile, stages = tile_of(case, config), config["num_stages"]
    if tile not in (*tiles, *SIMT_TILES):
        kind = kind_of(case, config)
        known = ", ".join(
            f"{t.rows}×{t.columns} in clusters of {t.cluster}"
            for t in dict.fromkeys((*tiles, *SIMT_TILES))
            if t.kind == kind
        )
        return f"the tiles of KERNEL={kind} are {known or 'none'}"
    if (tile.kind == "simt") != is_ieee(case):
        return "IEEE float32 is multiplied by KERNEL=simt, everything else by tensor or warpgroup"
    if reason := not_one_of("SCHEDULE", schedule_of(config), SCHEDULES) or _schedule_fits(tile, schedule_of(config)):
        return reason
    if tile.kind == "simt":
        if tile.rows == 32 and not rows_are_aligned(case, *case.size("K", "N")):
            return "a tile of 32×64 has no registers for rows of single elements: K and N are whole vectors of 16 bytes"
        return _simt_fits(tile, stages, schedule_of(config), device)
    if tile.kind == "warpgroup" and not multiplies_by_warpgroups(case, device):
        return NO_WARPGROUPS
    if tile.kind == "few_rows" and not rows_are_aligned(case, *case.size("K", "N")):
        K, N = case.size("K", "N")
        return f"KERNEL=few_rows copies whole vectors of 16 bytes, which rows of K = {K} and N = {N} do not have"
    if stages < (1 if tile.kind == "few_rows" else 2):
        return f"num_stages is {stages}: one is read while another is written, but of few rows, where other warps write meanwhile"
    if tile.kind == "warpgroup" and case.options["w_layout"] == "kn" and columns_of_a_box(tile, parts) % PANEL:
        return f"a block brings {columns_of_a_box(tile, parts)} columns of W at once, which are panels of {PANEL} where W is (K, N)"
    if schedule_of(config) == "stream_k" and 2 * multiprocessors(device) * (case.sizes["K"] // slab(case) + 4) >= 2**31:
        return (
            f"SCHEDULE=stream_k counts the slabs of two rounds of tiles in 31 bits, which K = {case.sizes['K']} exceeds"
        )
    return too_large(tile_bytes(tile, parts, stages, case.itemsize) + beside(tile), device)


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

    The template's arguments are the type (not of simt), `arguments`, ALIGNED (not of warpgroup), NK, and the tile.
    """
    M, K, N = case.size("M", "K", "N")
    tile, stages, nk = tile_of(case, config), config["num_stages"], case.options["w_layout"] == "nk"
    template, aligned, shape = (
        f"{kernel}_{tile.kind}",
        rows_are_aligned(case, M if transposed else K, N),
        (tile.rows, tile.columns),
    )
    grid = blocks(tile, M, N, parts)
    if tile.kind == "simt":
        schedule = schedule_of(config)
        more = "_strips" if schedule == "strips" else "_split" if tile.cluster > 1 else ""
        sharers = (tile.cluster,) if tile.cluster > 1 else ()
        program = instance(file, template + more, *arguments, aligned, nk, *shape, *sharers)
        memory = simt_bytes(tile, schedule) if more else 0
        return Launch(program, simt_blocks(tile, schedule, M, N, parts), tile.threads, memory, dtypes=dtypes)
    head, memory = (TYPES[case.dtype], *arguments), tile_bytes(tile, parts, stages, case.itemsize) + beside(tile)
    if tile.kind == "tensor":
        program = instance(file, template, *head, aligned, nk, *shape, tile.warps_m, tile.warps_n, stages)
        return Launch(program, grid, tile.threads, memory, dtypes=dtypes)
    if tile.kind == "few_rows":
        program = instance(file, template, *head, nk, *shape, tile.shares, stages)
        return Launch(program, grid, tile.threads, memory, dtypes=dtypes)
    schedule, deep = schedule_of(config), slab(case)
    most = max(1, multiprocessors(device) // tile.cluster) * tile.cluster
    program = instance(
        file, template, *head, nk, *shape, stages, tile.cluster, *([SCHEDULES[schedule]] if schedule != "tiles" else [])
    )
    grid = most if schedule == "stream_k" else min(sum(tiles_of(tile, schedule, M, N, parts)) * tile.cluster, most)
    small = schedule == "strips"  # and boxes that small tiles have too
    rows = PANEL if small else tile.rows, deep
    columns = PANEL if small else columns_of_a_box(tile, parts), deep
    rows, columns = (deep, PANEL) if transposed else rows, columns if nk else (deep, PANEL)
    exchange = ((grid * tile.rows * tile.columns,), (grid * tile.rows // 16,)) if schedule == "stream_k" else ()
    return Launch(program, grid, tile.threads, memory, dtypes=dtypes, boxes=(rows, columns), exchange=exchange)


def columns_of_a_box(tile, parts):
    """Columns of W that one copy brings for a whole tile, where W is (N, K): of one part, by one block of the cluster."""
    return tile.columns // max(parts, tile.cluster)


def kind_of(case, config):
    """The kind of kernel: the only one that multiplies the case where the config does not say."""
    return config.get("KERNEL", "simt" if is_ieee(case) else "tensor")


def tile_of(case, config):
    """The tile of a config, or None where there is no such instance."""
    wanted = kind_of(case, config), config["BLOCK_M"], config["BLOCK_N"], config.get("CLUSTER", 1)
    tiles = (*TILES, *SIMT_SPLIT_TILES, *SQUARE_TILES, *FEW_ROWS_TILES)
    return next((t for t in tiles if (t.kind, t.rows, t.columns, t.cluster) == wanted), None)


NO_WARPGROUPS = (
    "KERNEL=warpgroup is for Hopper (9.0), 16 bits, or tf32 with W (N, K); M from 128, K from 64, N from 256; rows of x and W of whole "
    "vectors of 16 bytes; all sizes below 2**31"
)


def holds_boxes(case):
    """Whether no box of warpgroups is larger than what it is of."""
    M, K, N = case.size("M", "K", "N")
    return M >= 128 and K >= PANEL and N >= 256


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


def best(choices, case, parts, device):
    """The tile and the schedule with the least work on the busiest multiprocessor."""
    (M, N), sms, slabs = case.size("M", "N"), multiprocessors(device), math.ceil(case.sizes["K"] / slab(case))

    def work(choice):
        tile, schedule = choice
        clusters = max(1, sms // tile.cluster)
        if tile.kind == "simt":
            return simt_work(tile, schedule, M, case.sizes["K"], N, parts, sms)
        whole, small = tiles_of(tile, schedule, M, N, parts)
        if whole == 0:
            return math.inf  # strips alone
        rounds, once = math.ceil(whole / clusters), 1.0
        if schedule == "stream_k":
            # Fitted to an H200: of 2049×4104→4104 137 µs after 149, 8192×4096→16384 1483 after 1511, 1034×1024→4096 31.6 after 36.3;
            # but 4096×4096→4096 took 210, whole tiles 201. The more blocks share a tile, the more sums its last one adds. 3 % are less
            # than it is worth that a row's result does not depend on its place
            rounds = whole / clusters
            rounds += (0.25 + 7 / slabs) * math.ceil(max(1, 1 / rounds))
            once = 1.08 if tile.cluster == 1 else 1.03
        elif tile.kind == "warpgroup":
            less = -whole % clusters  # clusters with a whole tile less, which have two small ones for it
            after = max(small - 2 * less, 0)
            rounds += math.ceil(after / clusters) * _small_rounds(case, parts)
            once = 1.02 if tile.cluster > 1 and rounds <= 1 else 1.0
            if tile.cluster == 1 and not stays_in_cache(case, parts):
                # each block brings all of W that it multiplies: geglu 4137×4096→11008 took 1140 µs on an H100, with 22 rounds of these;
                # 4096 rows in clusters of two took 43 µs a round on an H200, which for 23 of them are 1000
                once = 1.1
            if tile.cluster == 1 and case.sizes["K"] % slab(case):
                # a row of a box lies in two lines of the L2 cache, and nobody else brings W: lola 2049×4104→4104 took 177 µs, in
                # clusters of two 147; geglu 4097×4097→11009 1.49 ms after 1.12
                once = 1.15
        return rounds * tile.rows * tile.columns * tile.cost * once

    return min(choices, key=work)


# Estimates for a multiprocessor, which makes 128 products a cycle: bytes that it reads of its neighbours in one; cycles until the blocks of
# a cluster have met; how much longer four warps take for what eight do, and with fewer it grows as eight over their number. They and the
# tiles' costs are fitted to 80 times of ten shapes on an H100, from 16×1024→4096 to 1034×2048→2048×2, to within 13 %; what is chosen by them
# took at most 5 % longer than the fastest
SIMT_NEIGHBOUR_BYTES, SIMT_WAIT, SIMT_LATENCY = 6, 3000, 0.125
SIMT_WARPS = 12  # that the registers of a multiprocessor hold, all of which wait at once


def simt_work(tile, schedule, M, K, N, parts, sms):
    """About how many products the busiest multiprocessor could make in the time that it takes for its tiles, whose warps four schedulers
    share."""
    warps, deep = tile.threads // 32, -(-K // tile.cluster)
    most = -(-simt_blocks(tile, schedule, M, N, parts) // sms) * warps
    alone = 1 + SIMT_LATENCY * max(8 / most - 1, 0)
    work = -(-most // 4) * 4 * (tile.rows * tile.columns / warps) * deep * tile.cost * alone
    if schedule == "strips" and parts == 2:
        work *= 0.98  # where no strip is left, too: 345 µs at 1024×2048→2048 on an H100, 352 in whole tiles
    if tile.cluster == 1:
        return work
    exchanged = most / warps * tile.rows * tile.columns * 4 * (1 - 1 / tile.cluster)
    waits = -(-most // SIMT_WARPS)
    return work + 128 * (waits * SIMT_WAIT + exchanged / SIMT_NEIGHBOUR_BYTES)


def _small_rounds(case, parts):
    """The time of a small tile beside a whole one's: on an H200 21 µs beside 50 at 2049×4160→4096, 10.8 beside 26 in splacc 1034×2048→2048.
    Where W does not stay in the L2 cache, a strip reads all of it again: geglu 4137×4096→11008 took an H100 980 µs, 1009 in whole tiles of 44."""
    return 0.42 if stays_in_cache(case, parts) else 1.3


def stays_in_cache(case, parts):
    """Whether all of W stays in the L2 cache from one row of tiles to the next."""
    K, N = case.size("K", "N")
    return K * N * parts * case.itemsize <= L2_BYTES


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
    rows = tile.rows * (1 if tile.kind == "simt" else tile.cluster)
    return -(-M // rows) * tile.cluster * -(-N // (tile.columns // parts))


SIMT_STATIC = 8 << 10  # bytes of shared memory for what a kernel sums up beside


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


# Fitted to 45 times of few rows on an H100, to within 21 %: bytes of a nanosecond that the L2 cache hands out, and that arrive at one
# multiprocessor; nanoseconds for a sum of a tile, and for each of its products
L2_RATE, SM_RATE, SUM_TIME, PRODUCT_TIME = 9000, 127, 0.24, 3.6e-4
FEW_ROWS = 128  # up to which x, which each block reads with its W, costs less than a larger tile's idle multiprocessors
FEW_ROWS_OF_SHORT_K = (
    256,
    1024,
)  # and the same up to this K: lola 200×512→512 took 4.9 µs on an H100, in tiles of 128×128 8.5


def few_rows_config(case, device, tiles, parts=1, beside=lambda tile: 0):
    """The config with KERNEL=few_rows, or None where larger tiles are expected to be faster."""
    (M, K, N), sms, found = case.size("M", "K", "N"), multiprocessors(device), {}
    rows, short_k = FEW_ROWS_OF_SHORT_K
    if rows < M or (FEW_ROWS < M and short_k < K):
        return None
    for tile in (t for t in tiles if t.kind == "few_rows"):
        # a second round begins with nothing on its way: splacc 16×4096→11008 took 110 µs, Triton's tiles 73
        if blocks(tile, M, N, parts) > sms:
            continue
        own = {"KERNEL": tile.kind, "BLOCK_M": tile.rows, "BLOCK_N": tile.columns, "CLUSTER": tile.cluster}
        needed = -(-case.sizes["K"] // (slab(case) * tile.shares))  # stages, with which all of K is on its way at once
        for stages in range(min(4, needed), 0, -1):
            config = own | {"num_stages": stages}
            if fits(case, device, config, parts, beside, tiles) is None:
                found.setdefault(tile, config)
    return found[min(found, key=lambda tile: _few_rows_time(case, tile, parts))] if found else None


def _few_rows_time(case, tile, parts):
    """Nanoseconds: what all blocks bring through the L2 cache, and what each multiprocessor does for its one tile."""
    M, K, N = case.size("M", "K", "N")
    count, each = blocks(tile, M, N, parts), (min(M, tile.rows) + tile.columns) * K * case.itemsize
    products = PRODUCT_TIME * K * case.itemsize / 2
    return each * (count / L2_RATE + 1 / SM_RATE) + tile.rows * tile.columns * (SUM_TIME + products)
