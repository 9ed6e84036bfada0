"""What the CUDA implementations of attention kernels share: tiles of _attention.cuh and the shared memory that they take."""

from dataclasses import dataclass

from implementations._cuda import SHARED_MEMORY, TYPES

LARGEST_D = 128


@dataclass(frozen=True)
class Tile:
    """Attention<…> of _attention.cuh: WM × WN warps, each with 16 FM rows and KEYS tokens at a time."""

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

    @property
    def arguments(self):
        """As template arguments."""
        return f"{self.FM}, {self.WM}, {self.WN}, {self.KEYS}, {self.STAGES}"

    def pitch(self, case):
        """Bytes of a row in shared memory."""
        return padded(case.sizes["D"]) * case.itemsize + 16

    def beside(self, case):
        """Bytes of weights that pass through shared memory: IEEE float32 alone."""
        return self.WM * self.WN * 16 * self.FM * (self.KEYS + 4) * 4 if is_ieee(case) else 0

    def ring(self, case, tiles):
        """Bytes of the stages, of `tiles` tiles of tokens each, which are used again to put warps' results together."""
        merge = self.WN * self.rows * (padded(case.sizes["D"]) + 6) * 4 if self.WN > 1 else 0
        return max(self.STAGES * tiles * self.tokens * self.pitch(case), merge)


def head(case, ALIGNED):
    """The template arguments before the tile: T, IEEE, ALIGNED, DP."""
    return f"{TYPES[case.dtype]}, {flag(is_ieee(case))}, {flag(ALIGNED)}, {padded(case.sizes['D'])}"


def flag(value):
    """As C++ writes it."""
    return str(bool(value)).lower()


def is_ieee(case):
    """Whether products are computed without tensor cores."""
    return case.dtype == "float32" and case.precision == "ieee"


def padded(D):
    """D made up to a multiple of 16."""
    return -(-D // 16) * 16


def limit(device):
    """Bytes of shared memory that a block can have; a little is left to static arrays."""
    return (SHARED_MEMORY.get(tuple(device.capability), 99) << 10) - 2048


def reason(case, device):
    """Why no variant can run the case, or None."""
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    if device.capability < (8, 0):
        return "needs compute capability 8.0 (bfloat16 and asynchronous copies)"
    if case.sizes["D"] > LARGEST_D:
        return f"rows of more than {LARGEST_D} elements do not fit in a warp's registers"
    if case.sizes["T"] >= 2**30:
        return "tokens are counted in 32 bits"
    return None
