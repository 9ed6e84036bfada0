"""lola's backward modes in CUDA C++: the launches of cuda_backward.cu, which says what they are. The tunables are layer_backward.py's."""

from dataclasses import dataclass
from pathlib import Path

from implementations._shared.cuda import (
    layer_backward,
    linear_gradients,
    matmul,
    matmul_choice,
    matmul_split,
    matmul_turned,
)
from implementations._shared.cuda.launch import TYPES, Launch, in_turn, instance
from implementations._shared.gpu import multiprocessors, rows_are_aligned

FILE = Path(__file__).with_name("cuda_backward.cu")
THREADS = 256
LANES = 8, 4, 2  # vectors side by side that a block of column sums has
BUSY = 0.94  # the share of multiprocessors that then have one
CLUSTER_LANES = 32, 16, 8  # the same where the blocks of a cluster share the rows of W
SHARERS, SHARE = 8, 64  # at most, and the rows that one has at least
# Bytes of W for each microsecond that column sums apart take longer, less what a product takes longer that is the first to read W
APART_RATE = 1.4e6
# Microseconds that the launch of the statistics adds to `summed_turned`. An H200 took for both modes, by `kept_few_rows` and so: 48×1024→4096 25.8 µs and
# 21.9, 64×4096→4096 52.2 and 51.0, 100×2048→1024 23.2 and 23.7
STATISTICS = 1.0
MANY_ROWS, MOST_OF_A_WARP = 512, 4096  # from which a warp has a row, and elements up to which it has
# with its statistics a tile of 64×64 has no registers left
FEW_ROWS_TILES = [t for t in matmul.FEW_ROWS_TILES if (t.rows, t.columns) != (64, 64)]


def few_rows_config(case, device):
    """That of `kept_few_rows`, or None where there are more rows, or the products of backward want other rows than x and W have."""
    as_they_are = layer_backward.whole_rows(case, device).sizes == case.sizes and rows_are_aligned(case, _pitch(case))
    if case.itemsize != 2 or not as_they_are:
        return None
    return matmul_choice.few_rows_config(case, device, FEW_ROWS_TILES, beside=statistics_bytes)


def statistics_bytes(tile):
    """Bytes of a block's statistics; for warpgroups of the rows of two tiles, since those of columns count with the tile."""
    m, n = tile.rows, tile.columns
    if tile.kind == "warpgroup":
        return 2 * 8 * m
    return 4 * (3 * m + n + tile.shares * (tile.warps_n * 2 * m + tile.warps_m * n))


def forward_launches(case, device):
    """Those of the forward pass that keeps what backward wants: one, or the statistics and the product."""
    return _form(case, device).launches(case, device)


def _form(case, device):
    """The form of the forward pass. Its `call` makes a function of x, W and b, which returns y and (n, 1 / deviations, z, the column sums, W as the
    products of backward read it, b)."""
    few, summed = few_rows_config(case, device), summed_config(case, device)
    if few and (
        summed is None or matmul_choice.time_of(case, few, 1, device) < STATISTICS + _summed_time(case, device, summed)
    ):
        return AtOnce(few)
    return WithSums(summed) if summed else Apart()


@dataclass(frozen=True)
class AtOnce:
    """One launch, `kept_few_rows`, of a config."""

    config: dict

    def launches(self, case, device):
        activation, dtypes = case.options["activation"].upper(), (*(case.dtype,) * 6, "float32", "float32")
        own = matmul.launch(
            FILE, "kept", case, device, self.config, (activation,), beside=statistics_bytes, dtypes=dtypes
        )
        return (own,)

    def call(self, case, device):
        M, K, N = case.size("M", "K", "N")
        (launch,) = self.launches(case, device)
        kept = launch.returning({3: (M, N), 4: (M, N), 5: (M, K), 6: (M,), 7: (N,)}, (M, K, N))

        def forward(x, W, b):
            z, y, n, rstd, colsum = kept(x, W, b)
            return y, (n, rstd, z, colsum, W, b)

        return forward


@dataclass(frozen=True)
class WithSums:
    """`statistics` of rows, and `summed_turned` of a config, which sums up the columns of W."""

    config: dict

    def launches(self, case, device):
        activation, dtypes = case.options["activation"].upper(), (*(case.dtype,) * 5, "float32")
        whole = layer_backward.whole_rows(case, device)
        linear = matmul_turned.launch(
            FILE, "summed", whole, device, self.config, (activation,), dtypes=dtypes, summed=True
        )
        return in_turn(_statistics_launch(case, device, columns=False), linear)

    def call(self, case, device):
        M, K, N = case.size("M", "K", "N")
        first, linear = self.launches(case, device)
        rows = first.returning({2: layer_backward.whole_rows(case, device).size("M", "K"), 3: (M,)}, absent=(4, 5))
        summed = linear.returning({3: (M, N), 4: (M, N), 5: (N,)}, (M, K, N))

        def forward(x, W, b):
            n, rstd = rows(x, W)
            z, y, colsum = summed(n, W, b)
            return y, (n, rstd, z, colsum, W, b)

        return forward


@dataclass(frozen=True)
class Apart:
    """`statistics` of rows and columns, which may copy W, and the product."""

    def launches(self, case, device):
        T, activation = TYPES[case.dtype], case.options["activation"].upper()
        linear = layer_backward.linear(FILE, case, device, f"Activated<{T}, {activation}>")
        return in_turn(_statistics_launch(case, device), linear)

    def call(self, case, device):
        (M, K, N), whole = case.size("M", "K", "N"), layer_backward.whole_rows(case, device)
        first, linear = self.launches(case, device)
        copied = whole is not case and not rows_are_aligned(case, _pitch(case))
        made = {2: whole.size("M", "K"), 3: (M,), 4: (N,)}
        W_rows = {5: (linear_gradients.weights_shape(case)[0], _pitch(whole))} if copied else {}
        statistics = first.returning(made | W_rows, absent=() if copied else (5,))
        product = linear.returning({3: (M, N), 4: (M, N)}, (M, K, N))

        def forward(x, W, b):
            n, rstd, colsum, *copies = statistics(x, W)
            W = copies[0] if copied else W
            z, y = product(n, W, b)
            return y, (n, rstd, z, colsum, W, b)

        return forward


def summed_config(case, device):
    """That of `summed_turned`, or None where column sums of their own and another product are expected to be faster."""
    by_warpgroups = layer_backward.way(case, device) == "few" or linear_gradients.is_possible(case, device)
    if not by_warpgroups or not rows_are_aligned(case, _pitch(case)):
        return None  # who copies W sums it up, too
    whole = layer_backward.whole_rows(case, device)
    own = matmul_turned.config(whole, device, summed=True)
    if own is None:
        return None
    K, N = case.size("K", "N")
    other = matmul_split.time_of_either(whole, layer_backward.linear_config(case, device), 1, device)
    other += K * N * case.itemsize / APART_RATE
    return own if _summed_time(case, device, own) < other else None


def _summed_time(case, device, config):
    """Microseconds of `summed_turned`."""
    return matmul_turned.time(layer_backward.whole_rows(case, device), config, 1, device, summed=True)


def _statistics_launch(case, device, columns=True):
    """The launch that makes n of rows, and sums up `columns`."""
    M, K, N = case.size("M", "K", "N")
    whole, dtype, nk = layer_backward.whole_rows(case, device), case.dtype, case.options["w_layout"] == "nk"
    lanes, sharers, across = column_blocks(case, device) if columns else (LANES[0], 1, 0)
    warps = 1 if M >= MANY_ROWS and K <= MOST_OF_A_WARP else THREADS // 32  # that have a row
    aligned = rows_are_aligned(case, K), rows_are_aligned(case, K if nk else N)
    name, layout = ("statistics_shared", (lanes, sharers)) if sharers > 1 else ("statistics", (nk, lanes))
    program = instance(FILE, name, TYPES[dtype], *aligned, *layout, warps)
    sizes = M, K, N, whole.sizes["K"], _pitch(whole), across
    dtypes = dtype, dtype, dtype, "float32", "float32", dtype
    rows = -(-M * warps * 32 // THREADS)
    return Launch(program, -(-(across + rows) // sharers) * sharers, THREADS, dtypes=dtypes, sizes=sizes)


def column_blocks(case, device):
    """Vectors of columns side by side that a block sums, as many as leave every multiprocessor a block; how many blocks, a cluster, share the rows
    of W; and how many blocks there are, which copy whole rows of W, too. Where W is (N, K), a warp has a column."""
    K, N = case.size("K", "N")
    if case.options["w_layout"] == "nk":
        return LANES[0], 1, -(-N // (THREADS // 32))
    vectors = -(-_pitch(layer_backward.whole_rows(case, device)) * case.itemsize // 16)
    sharers, choices = 1, LANES
    if device.capability >= (9, 0) and K >= 2 * SHARE:
        sharers, choices = min(SHARERS, 1 << (K // SHARE).bit_length() - 1), CLUSTER_LANES
    across = {lanes: -(-vectors // lanes) * sharers for lanes in choices}
    lanes = next((n for n in choices if across[n] >= BUSY * multiprocessors(device)), choices[-1])
    return lanes, sharers, across[lanes]


def _pitch(case):
    """Elements of a row of W."""
    return linear_gradients.weights_shape(case)[1]


def launches(case, device, config):
    """`pull_back`, and those of the products (layer_backward.py)."""
    dtype, arguments = case.dtype, (TYPES[case.dtype], case.options["activation"].upper())
    given = dtype, dtype, "float32", dtype
    pull_back = layer_backward.pull_launch(FILE, case, device, "pull_back", arguments, given)
    return in_turn(pull_back, *layer_backward.launches(FILE, case, device, config, "Denormed"))


def build(case, device, config):
    """(forward, backward)."""
    forward = _form(case, device).call(case, device)
    first, *behind = launches(case, device, config)
    pull_back = layer_backward.pulling(first, case, device, behind, rows=True, columns=True)
    products = layer_backward.gradients(case, device, behind, rows=True, columns=True)

    def backward(residuals, dy):
        n, rstd, z, colsum, W, b = residuals
        dz, row_parts, db, column_parts, flags = pull_back(z, b, colsum, dy)
        return *products(dz, W, n, rstd, row_parts, db, column_parts, flags), db

    return forward, backward
