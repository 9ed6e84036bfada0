"""The tiles of kernels on attention.cuh, and the launches of flash.cuh's kernels.

The tunables are BLOCK_M rows and BLOCK_N tokens of a block's tile, the WARPS_M × WARPS_N warps that share them, and num_stages of
tokens. A kernel with 16 rows a block has no BLOCK_M and WARPS_M.
"""

from dataclasses import dataclass

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, not_usual, too_large, unsupported
from implementations._shared.gpu import is_ieee, multiprocessors, rows_are_aligned, usual_kernel

LARGEST_D = 128
CLUSTERS = (1, 2, 4, 8)
STATIC_BYTES = 2048  # of shared memory at most, beside the dynamic


@dataclass(frozen=True)
class AttentionTile:
    """Attention<…> of attention.cuh: WM × WN warps, each with 16 FM rows and KEYS tokens at a time."""

    FM: int
    WM: int
    WN: int
    KEYS: int
    STAGES: int = 2

    @property
    def rows(self):
        return 16 * self.FM * self.WM

    @property
    def tokens(self):
        return self.WN * self.KEYS

    @property
    def threads(self):
        return 32 * self.WM * self.WN

    def pitch(self, case):
        """Bytes of a row in shared memory."""
        return width(case) * case.itemsize + 16

    def memory(self, case, tensors):
        """Shared memory of a block, in bytes: its rows; stages of tiles of tokens of so many tensors, which are used again to put
        warps' results together; and, in IEEE float32 alone, weights that pass through shared memory."""
        rows, weights = self.rows * self.pitch(case), self.WM * self.WN * 16 * self.FM * (self.KEYS + 4) * 4
        merge = self.WN * self.rows * (width(case) + 6) * 4 if self.WN > 1 else 0
        stages = self.STAGES * tensors * self.tokens * self.pitch(case)
        return rows + max(stages, merge) + (weights if is_ieee(case) else 0)

    @property
    def config(self):
        return {
            "BLOCK_M": self.rows, "BLOCK_N": self.tokens, "WARPS_M": self.WM, "WARPS_N": self.WN, "num_stages": self.STAGES,
        }  # fmt: skip


SHARED = AttentionTile(1, 1, 4, 16)  # of blocks that share the tokens of 16 rows
# How many of them a multiprocessor has at most where two or four share, by whether they are those of up to 64 columns in IEEE float32. An H200 took alone, and
# with two and four of one head: 34.4, 23.7 and 18.0 µs at 1×1024×64, 59.5, 54.2 and 53.3 at 4×1024×64, 56.0, 57.6 and 74 at 16×512×64; 131, 77 and 97 at 1×2048×128;
# in tf32 18.8, 15.4 and 11.4 at 1×1024×64, 12.3, 12.0 and 14.8 at 4×512×64
MOST_SHARED_BLOCKS = {True: {4: 3, 2: 4}, False: {4: 2, 2: 2.1}}


def tile_of(config):
    """The tile of a config that fits."""
    warps_m, warps_n = config.get("WARPS_M", 1), config["WARPS_N"]
    rows = config.get("BLOCK_M", 16) // (16 * warps_m)
    return AttentionTile(rows, warps_m, warps_n, config["BLOCK_N"] // warps_n, config["num_stages"])


def head(case):
    """The template arguments before the tile: T, IEEE, ALIGNED, DP."""
    return TYPES[case.dtype], is_ieee(case), rows_are_aligned(case, case.sizes["D"]), width(case)


def column_parts(case):
    """How many blocks share the columns of some rows: as few as have no more than fit in a warp's registers."""
    return -(-case.sizes["D"] // LARGEST_D)


def width(case):
    """Columns of a block, made up to a multiple of 16."""
    return padded(-(-case.sizes["D"] // column_parts(case)))


def padded(D):
    """D made up to a multiple of 16."""
    return -(-D // 16) * 16


def misshapen(config, rows=(16, 32), tokens=16):
    """Why there is no tile of that shape, or None: each warp has 16 rows or as many as `rows` says, and multiples of `tokens`."""
    warps_m, warps_n, stages = config.get("WARPS_M", 1), config["WARPS_N"], config["num_stages"]
    if warps_m < 1 or warps_n < 1 or warps_m * warps_n > 16:
        return f"a block has 1 to 16 warps, not WARPS_M × WARPS_N = {warps_m} × {warps_n}"
    if config.get("BLOCK_M", 16) not in [warps_m * each for each in rows]:
        return f"BLOCK_M is {config['BLOCK_M']}: each of {warps_m} WARPS_M has {' or '.join(map(str, rows))} rows"
    if config["BLOCK_N"] not in range(tokens * warps_n, 64 * warps_n + 1, tokens * warps_n):
        return (
            f"BLOCK_N is {config['BLOCK_N']}: each of {warps_n} WARPS_N has a multiple of {tokens} tokens, at most 64"
        )
    return None if stages >= 2 else f"num_stages is {stages}: one is read while another is written"


def fits(case, device, config, tensors, beside=lambda tile: 0, **shape):
    """Why a kernel with stages of that many tensors cannot run a config, or None. `beside` is how many bytes of shared memory it has
    with a tile beside the tile's own, `shape` what its tiles are made of."""
    if reason := misshapen(config, **shape):
        return reason
    tile = tile_of(config)
    return too_large(tile.memory(case, tensors) + beside(tile), device, STATIC_BYTES)


def skip(case, device):
    """Why no kernel on attention.cuh that multiplies q and k can run the case, or None."""
    if reason := skip_scores(case, device):
        return reason
    return too_wide(case)


def too_wide(case):
    """Why a row of D elements is too wide for kernels that multiply by mma.sync or on the float32 units, or None."""
    D = case.sizes["D"]
    return f"D is {D}: a warp has registers for rows of {LARGEST_D} elements" if D > LARGEST_D else None


def skip_scores(case, device):
    """Why no kernel on attention.cuh whose scores are given can run the case, or None. Its blocks share columns."""
    if reason := unsupported(device):
        return reason
    if case.sizes["T"] >= 2**30:
        return "tokens are counted in 32 bits"
    return None


def warpgroup_rows(case, device, heads=1):
    """Rows of a block by warpgroups, 128 where such blocks nearly fill the card, else 64: of more than 128 columns a multiprocessor has one block, so
    that those have to be all at once."""
    (T, D), sms = case.size("T", "D"), multiprocessors(device)
    few = heads * -(-T // 64) <= sms if D > LARGEST_D else heads * -(-T // 128) < 0.9 * sms
    return 64 if few else 128


def most_rows(tiles, case, device, why_not, heads=1, share=1.0):
    """The config of the first tile for which `why_not` has no reason and that leaves every multiprocessor `share` of a block, or of
    the one of the fewest rows, or None where none fits. Rows share what is read of tokens, so the tiles come with the most rows
    first."""
    fitting = [t for t in tiles if why_not(case, device, t.config) is None]
    enough = share * multiprocessors(device)
    blocks = ((t, heads * -(-case.sizes["T"] // t.rows)) for t in fitting)
    tile = next((t for t, count in blocks if count >= enough), min(fitting, key=lambda t: t.rows, default=None))
    return tile and tile.config


# ---- flash.cuh -----------------------------------------------------------------------------------------------------


def flash_config(case, device):
    """The config of `flash` where no blocks share tokens, or None where none fits in shared memory.

    A warp multiplies 32 rows with what it loads from shared memory where registers allow, since 16 keep the tensor cores
    waiting for it. The last tiles are for few heads: their warps share rows, and take every so-many-th token.
    """
    B, H, D = case.size("B", "H", "D")
    if case.itemsize == 2:
        wide = padded(D) > 64
        large = AttentionTile(1, 8, 1, 64) if wide else AttentionTile(2, 4, 1, 64)
        small = [(1, 4, 2, 32), (1, 2, 4, 32), (1, 1, 8, 16 if wide else 32), (1, 1, 4, 16)]
    else:
        large = AttentionTile(1, 8, 1, 32)
        small = [(1, 4, 2, 16), (1, 2, 4, 16), (1, 1, 8, 16), (1, 1, 4, 16)]
    tiles = [large, *(AttentionTile(*t) for t in small)]
    found = most_rows(tiles, case, device, _alone_fits, B * H, share=0.9)
    return found and {"KERNEL": usual_kernel(case)} | found | {"SPLIT": 1}


def flash_fits(case, device, config):
    """Why `flash`, or `flash_cluster` where SPLIT blocks share tokens, cannot run a config, or None."""
    if reason := not_usual(case, config["KERNEL"]):
        return reason
    if config["SPLIT"] == 1:
        return _alone_fits(case, device, config)
    return flash_cluster_fits(case, device, config, config["SPLIT"])


def _alone_fits(case, device, config):
    return too_wide(case) or fits(case, device, config, tensors=2)


def skip_flash(case, device):
    """Why `flash` cannot run the case, or None."""
    if reason := skip(case, device):
        return reason
    if flash_config(case, device) is None:
        return "16 rows and two tiles of k and v do not fit in a block's shared memory"
    return None


def flash(file, case, config, dtypes=(), kernel="flash"):
    """The launch of `flash` of `file`, or of another `kernel` on flash_tile: softmax(q kᵀ / √D) v for B H heads. Of `flash_cluster` where
    SPLIT blocks of a cluster share the tokens of a tile."""
    B, H, T = case.size("B", "H", "T")
    tile, cluster = tile_of(config), config["SPLIT"]
    grid, memory = B * H * -(-T // tile.rows), tile.memory(case, 2)
    if cluster == 1:
        program = instance(file, kernel, *head(case), tile.FM, tile.WM, tile.WN, tile.KEYS, tile.STAGES)
        return Launch(program, grid, tile.threads, memory, dtypes=dtypes)
    program = instance(file, "flash_cluster", *head(case), cluster, tile.WM, tile.WN, tile.KEYS, tile.STAGES)
    memory += cluster_merge(tile, case, tensors=2)
    return Launch(program, cluster * grid, tile.threads, memory, dtypes=dtypes)


def shared_config(case, device):
    """The config of `flash_cluster`, or None where no blocks should share tokens: in 16 bits, 1×1024×32 took an H200 8.8 µs so, alone 8.3."""
    if case.itemsize == 2:
        return None
    (B, H, T, D), sms = case.size("B", "H", "T", "D"), multiprocessors(device)
    most = MOST_SHARED_BLOCKS[is_ieee(case) and D <= 64]
    blocks = B * H * -(-T // SHARED.rows)
    splits = (n for n in (4, 2) if n * blocks <= most[n] * sms and n * SHARED.tokens // 2 <= T)
    configs = ({"KERNEL": usual_kernel(case)} | SHARED.config | {"SPLIT": n} for n in splits)
    return next((own for own in configs if flash_fits(case, device, own) is None), None)


def flash_cluster_fits(case, device, config, cluster):
    """Why `flash_cluster` cannot run a config, or None."""
    if reason := not_one_of("a cluster", cluster, CLUSTERS):
        return reason
    if device.capability < (9, 0):
        return "thread-block clusters need compute capability 9.0"
    return too_wide(case) or fits(
        case, device, config, tensors=2, beside=lambda tile: cluster_merge(tile, case, 2), rows=(16,)
    )


def cluster_merge(tile, case, tensors):
    """Shared memory in which blocks put their results together, beyond a tile's own, which has it for several warps alone."""
    merge = tile.rows * (width(case) + 6) * 4
    return max(0, merge - tile.STAGES * tensors * tile.tokens * tile.pitch(case)) if tile.WN == 1 else 0


def scores_config(case, device):
    """The config of `flash_of_scores`.

    A warp has 2 KiB of att on its way and 2 KiB in hand; 16 warps on each of 132 multiprocessors are 4 MB, which is 4 TB/s
    times a latency of 1 µs.
    """
    keys = 64 if case.itemsize == 2 else 32
    if width(case) > 64:
        keys //= 2  # the sums take the registers
    few = max(keys // 2, 64 // case.itemsize)
    tiles = [AttentionTile(*t) for t in ((1, 4, 2, keys), (1, 2, 4, keys), (1, 1, 8, keys), (1, 1, 4, few))]
    return most_rows(tiles, case, device, scores_fit)


def scores_fit(case, device, config):
    """Why `flash_of_scores` cannot run a config, or None. A lane loads whole vectors of att, for groups of four lanes."""
    shape = {"rows": (16,), "tokens": 64 // case.itemsize}
    return fits(case, device, config, tensors=1, beside=lambda tile: scores_memory(tile, case), **shape)


def scores_memory(tile, case):
    """Shared memory for the vectors of att that cover a stage of scores, where rows begin anywhere."""
    if rows_are_aligned(case, case.sizes["T"]):
        return 0
    return tile.STAGES * tile.WM * tile.WN * 16 * (tile.KEYS * case.itemsize + 16)


def flash_of_scores(file, case, config, normalised=False):
    """The launch of `flash_of_scores` of `file`: softmax(att) v, or att v where att is `normalised` already."""
    T, tile, dtype = case.sizes["T"], tile_of(config), case.dtype
    shape = normalised, tile.WM, tile.WN, tile.KEYS, tile.STAGES
    program = instance(file, "flash_of_scores", *head(case), rows_are_aligned(case, T), *shape)
    dtypes = dtype, dtype, "int32", dtype
    grid, memory = -(-T // tile.rows) * column_parts(case), tile.memory(case, 1) + scores_memory(tile, case)
    return Launch(program, grid, tile.threads, memory, dtypes=dtypes)
