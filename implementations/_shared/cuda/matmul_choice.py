"""The choice of a config for kernels on matmul_mma.cuh, matmul_few_rows.cuh, matmul_simt.cuh and hopper/matmul.cuh (matmul.py), and the
estimates of time by which tiles and schedules are chosen."""

import math

from implementations._shared.cuda import matmul
from implementations._shared.gpu import clusters_at_once, is_ieee, multiprocessors, rows_are_aligned, weight_row

# of each kind, the most of which that fit are best: by warpgroups 128×128 took 38.2 µs with six at 1536×4096→1408 on an H200, with four 40.2
STAGES = {"warpgroup": (6, 5, 4, 3, 2), "tensor": (4, 3, 2), "simt": (matmul.SIMT_STAGES,)}


def config(case, device, tiles=matmul.TENSOR_TILES, parts=1, beside=lambda tile: 0, schedules=("tiles",), before=0):
    """The config of the best of `tiles` that fit, of a product of x (M, K) with `parts` matrices (K, N) side by side. `beside` is
    how many bytes of shared memory the kernel has with a tile beside its own; `before` is how many blocks of another launch may be there when it
    begins. SCHEDULE is named where there are several."""
    few = few_rows_config(case, device, tiles, parts, beside, before)
    if few and len(schedules) > 1:
        few |= {"SCHEDULE": "tiles"}
    if few and not is_ieee(case):
        return few
    found = {}
    for tile in (
        t for t in (*tiles, *matmul.SIMT_TILES) if (t.kind == "simt") == is_ieee(case) and t.kind != "few_rows"
    ):
        for stages in STAGES[tile.kind]:
            own = {
                "KERNEL": tile.kind, "BLOCK_M": tile.rows, "BLOCK_N": tile.columns, "num_stages": stages,
                "CLUSTER": tile.cluster,
            }  # fmt: skip
            if matmul.fits(case, device, own, parts, beside, tiles) is None:
                found.setdefault(tile, own)
    if any(tile.kind == "warpgroup" for tile in found):
        # else tensor's tiles were 7 % faster at most, and slower by far where rows are odd
        narrow = [tile for tile in found if (tile.kind, tile.rows, tile.columns) == ("tensor", 16, 64)]
        wanted = narrow if parts == 1 and _reads_W_alone(case) else [tile for tile in found if tile.kind != "tensor"]
        found = {tile: found[tile] for tile in wanted} or found
    choices = [
        (tile, s)
        for tile, own in found.items()
        for s in schedules
        if matmul.fits(case, device, own | {"SCHEDULE": s}, parts, beside, tiles) is None
    ]
    tile, schedule = _best(choices, case, parts, device)
    time = _time(case, tile, schedule, parts, device)
    if few and few_simt_time(case, matmul.tile_of(case, few), parts, device, beside, before) < time:
        return few
    return found[tile] | ({"SCHEDULE": schedule} if len(schedules) > 1 else {})


def _reads_W_alone(case):
    """Whether W is nearly all that is read, by vectors of 16 bits: several blocks a multiprocessor, of 64 columns each, have more of it on its
    way than one of warpgroups. An H200 took for lola M×5120→20480 in tiles of 16×64, and by warpgroups: 61.9 µs and 85.2 with 1 row, 60.0 and
    79.4 with 16, 63.0 and 76.7 with 32, but 110 and 68.7 with 64. Two products side by side were slower so: geglu 16×4096→11008 122 and 79."""
    M, K, N = case.size("M", "K", "N")
    return case.itemsize == 2 and M <= 32 and rows_are_aligned(case, K, N)


def _best(choices, case, parts, device):
    """The tile and the schedule of the least time."""
    return min(choices, key=lambda choice: _time(case, *choice, parts, device))


def time_of(case, config, parts, device):
    """Microseconds that a product takes in a config."""
    return _time(case, matmul.tile_of(case, config), matmul.schedule_of(config), parts, device)


def _time(case, tile, schedule, parts, device):
    if tile.kind == "simt":
        return simt_time(case, tile, schedule, parts, device)
    if tile.kind == "few_rows":
        if is_ieee(case):
            return few_simt_time(case, tile, parts, device)
        return max(few_rows_time(case, tile, parts), weights_time(case, parts)) / 1000
    return tensor_time(case, tile, schedule, parts, device)


# ---- tensor cores --------------------------------------------------------------------------------------------------------
#
# Microseconds, fitted to 1800 times of 39 shapes in bfloat16 on an H200, of lola, splacc and geglu in all tiles and schedules: what is chosen
# takes 3 % longer than the fastest on average. SLAB is of a slab of K in a tile of AREA elements that cost 1, END of what follows the sums of
# such a tile of one product, and of two side by side, whose gate leaves half of the elements to store.
SLAB, AREA, END = 1.8, 128 * 256, {1: 3.8, 2: 2.7}
IDLE = 0.28  # of a slab's time, where it has the memory and the clock for itself: by the share of multiprocessors that idle
# what a launch of clusters takes longer, and a slab's share, of which a block brings a part
CLUSTERED, IN_CLUSTER = 1.3, 0.956
# and of tiles of 128×128 where W, of which there is more than of x, comes from memory: lola 900×4096→2048 took 37.3 µs, in clusters of two 33.7, splacc
# 500×1000→5000 26.9; beyond so many rows it was 4 to 8 % slower at splacc, geglu
FEW_ROWS_IN_CLUSTER, OF_ROWS = 0.92, 1024
NO_LINES = 0.065  # of a slab whose 384 rows are no whole lines of the L2 cache, each of which is then in two
# What x and W may take to stay in the L2 cache; and beyond that, microseconds of a slab, of which a block brings 384 rows, if it is not the first
L2_BYTES, BEYOND_L2 = 45 << 20, 0.03
# SCHEDULE=stream_k: a launch more to clear its flags, what tiles of AREA take to be added up by one block for each sharer, and of a slab's time
# what no block of a cluster brings for another: no two of them read the same slab at one time. A row's result depends on its place then, as
# with strips, which has to be worth 4 %
CLEARED, ADDED, APART, WORTH = 5.3, 2.2, 1.05, 1.04
SMALL_SLAB = 0.287  # a tile of 64×128 of a strip
# KERNEL=split: what its launch takes longer, END beside that of others, and bytes of the others' sums that a block reads in a microsecond
SPLIT, SPLIT_END, NEIGHBOUR_RATE = 0.7, 1.2, 48000


def unhurried(busy):
    """A slab's time beside that with all multiprocessors at work, of which the share `busy` is."""
    return 1 - IDLE * (1 - min(1, busy))


def tensor_time(case, tile, schedule, parts, device):
    """Microseconds from the first tile's beginning to the last one's end, with KERNEL=tensor or warpgroup."""
    M, K, N = case.size("M", "K", "N")
    slabs, area = math.ceil(K / matmul.slab(case)), tile.rows * tile.columns / AREA
    clusters = clusters_at_once(device, tile.cluster)
    whole, small = matmul.tiles_of(tile, schedule, M, N, parts)
    if whole == 0:
        return math.inf  # strips alone
    products = slabs * slab_time(case, (tile.rows, tile.columns), tile.cost, parts, tile.cluster)
    rounds, end, begun = whole / clusters, END[parts] * area, CLUSTERED if tile.cluster > 1 else 0
    if schedule == "stream_k":
        sharers = math.ceil(max(1, 1 / rounds))
        alone = rounds * products * (APART if tile.cluster == 1 else 1) + math.ceil(rounds) * end
        return WORTH * (begun + alone + CLEARED + ADDED * sharers * area)
    # a cluster that has a whole tile less than others has small ones for it
    of_small = slabs * SMALL_SLAB
    free = -whole % clusters * math.floor((products + end) / of_small)
    after = math.ceil(max(small - free, 0) / clusters)
    of_whole = math.ceil(rounds) * (products * unhurried(rounds) + end)
    return (WORTH if schedule == "strips" else 1) * (begun + of_whole + after * of_small)


def split_time(case, shape, cost, split, parts, device):
    """The same with KERNEL=split, whose `split` blocks share the K of a tile, rows by columns."""
    M, N = case.size("M", "N")
    rounds = math.ceil(M / shape[0]) * math.ceil(parts * N / shape[1]) / clusters_at_once(device, split)
    return SPLIT + math.ceil(rounds) * split_tile_time(case, shape, cost, split, parts, rounds)


def split_tile_time(case, shape, cost, split=1, parts=1, busy=1):
    """Microseconds of one such tile, when the share `busy` of multiprocessors is at work."""
    K, (rows, columns) = case.sizes["K"], shape
    slabs = math.ceil(K / (matmul.slab(case) * split))
    exchanged = rows * columns * 4 * (split - 1) / split / NEIGHBOUR_RATE
    end = SPLIT_END * END[parts] * rows * columns / AREA
    return slabs * slab_time(case, shape, cost, parts) * unhurried(busy) + end + exchanged


def slab_time(case, shape, cost, parts, cluster=1):
    """Microseconds of a slab of a tile, rows by columns, the columns of whose W are brought by the blocks of a cluster together."""
    K, (rows, columns), line = case.sizes["K"], shape, matmul.slab(case)
    brought = columns / cluster
    own = SLAB * cost * rows * columns / AREA * (_in_cluster(case, shape) if cluster > 1 else 1)
    own += NO_LINES * (rows * (K % line > 0) + brought * (weight_row(case) % line > 0)) / 384
    return own + beyond_l2(case, rows, brought, parts)


def _in_cluster(case, shape):
    return FEW_ROWS_IN_CLUSTER if shape == (128, 128) and case.sizes["M"] <= OF_ROWS else IN_CLUSTER


def beyond_l2(case, rows, brought, parts):
    """Microseconds more of a slab of which a block brings so many rows and columns, where not all of x and W stays in the L2 cache."""
    M, K, N = case.size("M", "K", "N")
    stays = rows >= M or (M + N * parts) * K * case.itemsize <= L2_BYTES
    return 0 if stays else BEYOND_L2 * (rows + brought) / 384


# ---- IEEE float32 --------------------------------------------------------------------------------------------------------


# Estimates for a multiprocessor, fitted to 40 times on an H200 of seven products from 777×1000→3001 to 1000×4096→1024, to within 22 %; what they
# choose was the fastest of each. Products of it in a microsecond; how much longer they take for each time that the warps at once are fewer than
# its registers hold; and microseconds of an element of a tile from its sum to memory or to another block
CLOCK = 1755  # cycles of a microsecond
PRODUCTS = 128 * CLOCK
SIMT_LATENCY, SIMT_WARPS, SIMT_END = 0.17, 12, 5.3e-4
# More where a scheduler has one warp: 2048×512→512 by 256 blocks took 37 µs, by 256 clusters of two 30
SIMT_ALONE = 0.04
# of few rows, which wait for W: 24 times of up to 128 rows, 0.9 to 1.7 times what these say, and 1.2 with 216
SIMT_FEW, SIMT_FEW_ROWS = 1.25, 256


def simt_time(case, tile, schedule, parts, device):
    """Microseconds that the busiest multiprocessor takes for its tiles, round by round of as many as it has at once."""
    M, K, N = case.size("M", "K", "N")
    count, beside = matmul.simt_blocks(tile, schedule, M, N, parts), matmul.simt_beside(case, tile)
    rounds, rest = divmod(count // tile.cluster, clusters_at_once(device, tile.cluster, beside))
    rest = -(-rest * tile.cluster // multiprocessors(device))
    if rounds and rest and beside == 2:
        rest = 2  # a multiprocessor that is through first takes both places
    depth = matmul.simt_depth(tile)
    products = tile.rows * tile.columns * -(-K // (tile.cluster * depth)) * depth * tile.cost / PRODUCTS
    end = tile.rows * tile.columns * SIMT_END

    def round_of(blocks):
        warps = -(-blocks * tile.threads // 128) * 4  # were all schedulers as busy as the busiest
        latency = 1 + SIMT_LATENCY * max(SIMT_WARPS / max(warps, 1) - 1, 0) + (SIMT_ALONE if warps <= 4 else 0)
        return warps * 32 / tile.threads * (products * latency + end)

    time = rounds * round_of(beside) + round_of(rest) + (CLUSTERED if tile.cluster > 1 else 0)
    if schedule == "strips" and parts == 2:
        time *= 0.98  # where no strip is left, too: 345 µs at 1024×2048→2048 on an H100, 352 in whole tiles
    return time * (SIMT_FEW if M <= SIMT_FEW_ROWS else 1)


# ---- few rows ------------------------------------------------------------------------------------------------------------

# Fitted to 45 times of few rows on an H100, to within 21 %: bytes of a nanosecond that the L2 cache hands out, and that arrive at one
# multiprocessor; nanoseconds for a sum of a tile, and for each of its products. And bytes of W that such tiles bring from memory, a few of each row,
# where the copy engine brings twice as many: splacc 16×1024→4096 took an H200 12 µs, by blocks that share K 8.9
L2_RATE, SM_RATE, SUM_TIME, PRODUCT_TIME, W_RATE = 9000, 127, 0.24, 3.6e-4, 2100
FEW_ROWS = 128  # up to which x, which each block reads with its W, costs less than a larger tile's idle multiprocessors
FEW_ROWS_OF_SHORT_K = (
    256,
    1024,
)  # and the same up to this K: lola 200×512→512 took 4.9 µs on an H100, in tiles of 128×128 8.5


def few_rows_config(case, device, tiles, parts=1, beside=lambda tile: 0, before=0):
    """The config with KERNEL=few_rows, or None where larger tiles are expected to be faster."""
    (M, K, N), found, (rows, short_k) = case.size("M", "K", "N"), {}, FEW_ROWS_OF_SHORT_K
    if not is_ieee(case) and (rows < M or (FEW_ROWS < M and short_k < K)):
        return None
    # in float32, of three or four, a multiprocessor has no place for a second block: lola 16×4096→4096 took 28.7 µs with two, 37.7 and 29.5 with
    # one and three
    most = 2 if is_ieee(case) else 4
    for tile in (t for t in tiles if t.kind == "few_rows"):
        # a second round begins with nothing on its way: splacc 16×4096→11008 took 110 µs in bfloat16, Triton's tiles 73
        at_most = FEW_SIMT_MOST // (tile.rows * tile.columns) if is_ieee(case) else 1
        if matmul.blocks(tile, M, N, parts) > at_most * multiprocessors(device):
            continue
        own = {"KERNEL": tile.kind, "BLOCK_M": tile.rows, "BLOCK_N": tile.columns, "CLUSTER": tile.cluster}
        if matmul.tile_of(case, own) != tile:
            continue  # another number of warps has it
        # stages with which all of K is on its way at once
        needed = -(-K // (matmul.slab(case) * tile.shares * tile.cluster))
        for stages in range(min(most, needed), 0, -1):
            config = own | {"num_stages": stages}
            if matmul.fits(case, device, config, parts, beside, tiles) is None:
                found.setdefault(tile, config)

    def time(tile):
        if is_ieee(case):
            time = few_simt_time(case, tile, parts, device, beside, before)
            return time / (1 if tile.cluster == 1 else 1 - SPLIT_GAIN)
        return few_rows_time(case, tile, parts)

    return found[min(found, key=time)] if found else None


def few_rows_time(case, tile, parts):
    """Nanoseconds: what all blocks bring through the L2 cache, and what each multiprocessor does for its one tile."""
    M, K, N = case.size("M", "K", "N")
    count, each = matmul.blocks(tile, M, N, parts), (min(M, tile.rows) + tile.columns) * K * case.itemsize
    products = PRODUCT_TIME * K * case.itemsize / 2
    return each * (count / L2_RATE + 1 / SM_RATE) + tile.rows * tile.columns * (SUM_TIME + products)


def weights_time(case, parts):
    """Nanoseconds in which KERNEL=few_rows brings W from memory, whatever its tile."""
    K, N = case.size("K", "N")
    return parts * K * N * case.itemsize / W_RATE


# The same in IEEE float32, fitted to 50 times on an H200 of lola, splacc and geglu with 16 to 128 rows, to within 15 %: microseconds before the
# first product and after the last, and bytes of W that all multiprocessors bring in a microsecond
FEW_SIMT_START, FEW_SIMT_RATE = 3.5, 2.5e6
# and less of W (N, K), whose rows are as long in tiles of any width, where a multiprocessor has no second block: 64 MiB took 40 µs in tiles of 16×32, of
# 16×16 29.6
FEW_SIMT_ALONE = 0.7
# What an element costs beside the largest tile of SIMT_TILES: by what its product reads of shared memory; more in a wide tile, and where lola
# shifts x there, by columns
FEW_SIMT_COST, FEW_SIMT_READ, FEW_SIMT_WIDE, FEW_SIMT_SHIFT = 0.85, 2.6, 0.15, 26
# What clusters whose blocks share K take longer, by their number of blocks: from 100 times on an H200, where clusters of eight were never the best; and the
# least gain by these estimates for which they are taken in the place of single blocks: lola 32×4096→1024 took 26 µs in clusters of two, which gained 5 %, by single blocks 20,
# but 16×3072→256 of splacc, which gain 21 %, 8.2 and 11.7
FEW_SIMT_SPLIT, SPLIT_GAIN = {1: 0.0, 2: 2.1, 4: 3.5}, 0.1
# And of tiles of 512 elements, of which a multiprocessor holds two, where blocks of the launch before leave too few multiprocessors without a block: some
# tiles double up. lola 64×1024→1024 took 13.0 µs so in 128 tiles of 32×16 behind 8 blocks, in 256 of 16×16 10.3; dx of 100×300→3456 33 µs in 76 of 32×16
# behind 108
FEW_SIMT_DOUBLED = 1.4
# Elements that a multiprocessor makes at most, one tile after another or two at once; larger products are made otherwise: 2048×512→512 by four
# tiles of 64×32 took 38 µs, by clusters of matmul_simt.cuh 30
FEW_SIMT_MOST = 4096


def few_simt_time(case, tile, parts, device, beside=lambda tile: 0, before=0):
    """Microseconds: the busiest multiprocessor's products and what is read of W, which are made at one time but for a part."""
    (M, K, N), sms = case.size("M", "K", "N"), multiprocessors(device)
    count = matmul.blocks(tile, M, N, parts)
    down = 8 if tile.rows >= tile.columns else 4  # lanes of a warp, as SimtWarp of matmul_few_rows.cuh has them
    rows, columns = tile.rows // down, tile.columns * down // 32
    cost = FEW_SIMT_COST + FEW_SIMT_READ * (rows + columns) / (rows * columns) + (FEW_SIMT_WIDE if down == 4 else 0)
    cost += FEW_SIMT_SHIFT / tile.columns if beside(tile) else 0
    deep = matmul.slab(case) * tile.shares  # what all warps of a block multiply at one time
    own = -(-K // (deep * tile.cluster)) * deep  # of K
    # clusters that do not lie beside one another double up, also where there are blocks enough for each multiprocessor
    rounds = max(-(-count // sms), -(-count // tile.cluster // clusters_at_once(device, tile.cluster)))
    products = rounds * tile.rows * tile.columns * own * cost / PRODUCTS
    each = (min(M, tile.rows) + tile.columns) * own * case.itemsize
    rate = FEW_SIMT_RATE * (FEW_SIMT_ALONE if case.options["w_layout"] == "nk" and count <= sms else 1)
    read = max(parts * K * N * case.itemsize / rate, rounds * each / SM_RATE / 1000)
    time = FEW_SIMT_START + max(products, read) + min(products, read) / 4 + FEW_SIMT_SPLIT[tile.cluster]
    doubles = tile.cluster == 1 and tile.rows * tile.columns == 512 and count <= sms < count + before
    return time * (FEW_SIMT_DOUBLED if doubles else 1)
