"""The choice of tiles for kernels on attention.cuh, and the launches of flash.cuh's kernels."""

from dataclasses import dataclass

from implementations._shared.cuda.launch import TYPES, Plan, instance, unsupported
from implementations._shared.gpu import is_ieee, multiprocessors, rows_are_aligned, shared_memory

LARGEST_D = 128


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
        return padded(case.sizes["D"]) * case.itemsize + 16

    def memory(self, case, tensors):
        """Shared memory of a block, in bytes: its rows; stages of tiles of tokens of so many tensors, which are used again to put
        warps' results together; and, in IEEE float32 alone, weights that pass through shared memory."""
        rows, weights = self.rows * self.pitch(case), self.WM * self.WN * 16 * self.FM * (self.KEYS + 4) * 4
        merge = self.WN * self.rows * (padded(case.sizes["D"]) + 6) * 4 if self.WN > 1 else 0
        stages = self.STAGES * tensors * self.tokens * self.pitch(case)
        return rows + max(stages, merge) + (weights if is_ieee(case) else 0)


def head(case):
    """The template arguments before the tile: T, IEEE, ALIGNED, DP."""
    D = case.sizes["D"]
    return TYPES[case.dtype], is_ieee(case), rows_are_aligned(case, D), padded(D)


def padded(D):
    """D made up to a multiple of 16."""
    return -(-D // 16) * 16


def fits(memory, device):
    """Whether a block can have so many bytes of shared memory; a little is left to static arrays."""
    return memory <= shared_memory(device) - 2048


def skip(case, device):
    """Why no kernel on attention.cuh can run the case, or None."""
    if reason := unsupported(device):
        return reason
    if case.sizes["D"] > LARGEST_D:
        return f"rows of more than {LARGEST_D} elements do not fit in a warp's registers"
    if case.sizes["T"] >= 2**30:
        return "tokens are counted in 32 bits"
    return None


def most_rows(tiles, tensors, case, device, heads=1, share=1.0):
    """The first of the fitting tiles that leaves every multiprocessor `share` of a block, or the one of the fewest rows, or None
    where none fits. Rows share what is read of tokens, so the tiles come with the most rows first."""
    fitting = [t for t in tiles if fits(t.memory(case, tensors), device)]
    enough = share * multiprocessors(device)
    blocks = ((t, heads * -(-case.sizes["T"] // t.rows)) for t in fitting)
    return next((t for t, count in blocks if count >= enough), min(fitting, key=lambda t: t.rows, default=None))


# ---- flash.cuh -----------------------------------------------------------------------------------------------------


def flash_tile(case, device):
    """The tile of `flash`, or None where none fits in shared memory.

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
    return most_rows([large, *(AttentionTile(*t) for t in small)], 2, case, device, B * H, share=0.9)


def skip_flash(case, device):
    """Why `flash` cannot run the case, or None."""
    if reason := skip(case, device):
        return reason
    if flash_tile(case, device) is None:
        return "16 rows and two tiles of k and v do not fit in a block's shared memory"
    return None


def flash(file, case, device):
    """The launch of `flash` of `file`: softmax(q kᵀ / √D) v for B H heads."""
    B, H, T = case.size("B", "H", "T")
    tile = flash_tile(case, device)
    program = instance(file, "flash", *head(case), tile.FM, tile.WM, tile.WN, tile.KEYS, tile.STAGES)
    return Plan(program, B * H * -(-T // tile.rows), tile.threads, tile.memory(case, 2))


def flash_of_scores(file, case, device, normalised=False):
    """The launch of `flash_of_scores` of `file`: softmax(att) v, or att v where att is `normalised` already.

    A warp has 2 KiB of att on its way and 2 KiB in hand; 16 warps on each of 132 multiprocessors are 4 MB, which is 4 TB/s
    times a latency of 1 µs.
    """
    T, D = case.size("T", "D")
    keys = 64 if case.itemsize == 2 else 32
    if padded(D) > 64:
        keys //= 2  # the sums take the registers
    tiles = [AttentionTile(*t) for t in ((1, 4, 2, keys), (1, 2, 4, keys), (1, 1, 8, keys), (1, 1, 4, keys // 2))]
    tile = most_rows(tiles, 1, case, device)
    shape = normalised, tile.WM, tile.WN, tile.KEYS, tile.STAGES
    program = instance(file, "flash_of_scores", *head(case), rows_are_aligned(case, T), *shape)
    return Plan(program, -(-T // tile.rows), tile.threads, tile.memory(case, 1))
