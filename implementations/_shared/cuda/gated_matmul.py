"""The launches of two products side by side, whose sums a gate makes one of: splacc and geglu.

two_accumulators   one launch
                   KERNEL=split is hopper/matmul_split.cuh, whose CLUSTER blocks share the K of a tile
two_launches       rows of x that are no whole vectors of 16 bytes, or of a large product no whole lines of L2, which products are slow to
                   read, are copied into rows that are, and `prepare` does the same with W; the last tiles may be shared (SCHEDULE=stream_k)
"""

from implementations._shared.cuda import gated_backward, matmul, matmul_choice, matmul_split
from implementations._shared.cuda.launch import in_turn, unsupported
from implementations._shared.gpu import rows_are_aligned

TILES = (
    *matmul.TENSOR_TILES, *matmul.FEW_ROWS_TILES, *matmul.WARPGROUP_TILES, *matmul.SQUARE_TILES, *matmul.SIMT_SPLIT_TILES,
)  # fmt: skip
SCHEDULES = {"two_accumulators": ("tiles", "strips"), "two_launches": tuple(matmul.SCHEDULES)}


def skip(case, variant, device):
    return unsupported(device)


def copies_rows(case, variant):
    return product(case, variant).sizes["K"] != case.sizes["K"]


def product(case, variant):
    """The case of the products as the kernel reads them."""
    own = matmul.of_whole_rows(case, parts=2) if variant == "two_launches" else matmul.prepared_case(case)
    return matmul.turned(own) if _wants_turned(own) else own


def _wants_turned(case):
    """Whether tiles of 192×192 may be best, with 96 columns of either half: of W (N, K) alone, of (K, N) they would be one panel and a half.
    They are not where all tiles of 128 rows, in clusters of two, are whole."""
    return (
        case.itemsize == 2
        and matmul.holds_boxes(case)
        and rows_are_aligned(case, case.sizes["K"])
        and case.sizes["M"] > 64
        and case.sizes["M"] % 256 > 0
    )


def prepared(case, variant, W):
    """W as `product` has it where that is not as it came: () or (W,). None in the backward modes: a step is about to change W."""
    if case.mode != "forward":
        return ()
    return matmul.prepared(case, product(case, variant), W)


def config(case, variant, device):
    """The fastest, by the estimates, of whole tiles and of those whose K blocks share."""
    if case.mode != "forward":
        return gated_backward.config(case, device)
    own = product(case, variant)
    whole = matmul_choice.config(own, device, TILES, parts=2, schedules=SCHEDULES[variant])
    return matmul_split.or_split(own, whole, device, parts=2)


def fits(case, variant, device, config):
    if case.mode != "forward":
        return gated_backward.fits(case, device, config)
    if matmul.schedule_of(config) not in SCHEDULES[variant]:
        return f"{variant} has SCHEDULE={' and '.join(SCHEDULES[variant])}: nobody clears flags before it"
    own = product(case, variant)
    if config["KERNEL"] != "split":
        return matmul.fits(own, device, config, parts=2, tiles=TILES)
    if matmul.schedule_of(config) != "tiles":
        return f"SCHEDULE={config['SCHEDULE']} is for KERNEL=warpgroup"
    return matmul_split.fits(own, device, matmul_split.of_cluster(config), parts=2)


def launches(file, case, variant, device, config, arguments=(), dtypes=()):
    """`two_accumulators_<KERNEL>` of `file`, in two_launches behind whole_rows. `dtypes` are those of what follows x and W."""
    own, x = product(case, variant), (matmul.operand(case),) * 2
    shared = ("float32", "int32") if config["KERNEL"] == "warpgroup" else ()
    name, dtypes = "two_accumulators", (*x, *dtypes, *shared)
    if config["KERNEL"] == "split":
        kernel = matmul_split.launch(file, name, own, matmul_split.of_cluster(config), dtypes, arguments, parts=2)
    else:
        kernel = matmul.launch(file, name, own, device, config, arguments, parts=2, dtypes=dtypes)
    if variant != "two_launches":
        return (kernel,)
    return in_turn(matmul.row_copy(file, case, own, device), kernel)


def call(case, variant, described, y):
    """A function of x, W, what else the kernel takes, and what `prepared` made, which returns y, at that place of the kernel's tensors."""
    *first, last = described
    own, (sums, flags) = product(case, variant), last.exchange or (None, (0,))
    made = {y: case.size("M", "N")} | ({y + 1: sums} if sums else {})
    absent = () if sums else tuple(range(y + 1, len(last.dtypes)))
    products, is_prepared = last.returning(made, own.size("M", "K", "N"), absent=absent), matmul.is_prepared(case, own)
    if not first:
        return (lambda x, W, *more: products(x, more[-1], *more[:-1])) if is_prepared else products

    copied, cleared = {1: own.size("M", "K")} if copies_rows(case, variant) else {}, {2: flags} if sums else {}
    missing = [place for place in (1, 2) if place not in copied | cleared]
    before = first[0].returning(copied | cleared, (*case.size("M", "K"), own.sizes["K"], *flags), absent=missing)

    def both(x, W, *more):
        found = before(x)
        found = found if isinstance(found, tuple) else (found,)
        whole, cleared_flags = (found[0], found[1:]) if copied else (x, found if cleared else ())
        *rest, W = more if is_prepared else (*more, W)
        result = products(whole, W, *rest, *cleared_flags)
        return result[0] if sums else result

    return both
