"""The launches of two products side by side, whose sums a gate makes one of: splacc and geglu.

two_accumulators   one launch
two_launches       rows of x that are no whole vectors of 16 bytes, which products are slow to read, are copied into rows that are, and
                   `prepare` does the same with W; the last tiles may be shared (SCHEDULE=stream_k)
"""

from implementations._shared.cuda import matmul
from implementations._shared.cuda.launch import TYPES, Launch, in_turn, instance, unsupported
from implementations._shared.gpu import multiprocessors, rows_are_aligned

TILES = matmul.TENSOR_TILES + matmul.WARPGROUP_TILES + matmul.SIMT_SPLIT_TILES
SCHEDULES = {"two_accumulators": ("tiles", "strips"), "two_launches": tuple(matmul.SCHEDULES)}
COPIERS = 256  # threads of a block of whole_rows


def skip(case, variant, device):
    return unsupported(device)


def copies_rows(case, variant):
    return variant == "two_launches" and not rows_are_aligned(case, case.sizes["K"])


def product(case, variant):
    """The case of the products as the kernel reads them."""
    return matmul.of_whole_rows(case, turned=True) if variant == "two_launches" else matmul.prepared_case(case)


def prepared(case, variant, W):
    """W as `product` has it where that is not as it came: () or (W,)."""
    return matmul.prepared(case, product(case, variant), W)


def config(case, variant, device):
    return matmul.config(product(case, variant), device, TILES, parts=2, schedules=SCHEDULES[variant])


def fits(case, variant, device, config):
    if matmul.schedule_of(config) not in SCHEDULES[variant]:
        return f"{variant} has SCHEDULE={' and '.join(SCHEDULES[variant])}: nobody clears flags before it"
    return matmul.fits(product(case, variant), device, config, parts=2, tiles=TILES)


def launches(file, case, variant, device, config, arguments=(), dtypes=()):
    """`two_accumulators_<KERNEL>` of `file`, in two_launches behind whole_rows. `dtypes` are those of what follows x and W."""
    own, x = product(case, variant), (matmul.operand(case),) * 2
    shared = ("float32", "int32") if config["KERNEL"] == "warpgroup" else ()
    kernel = matmul.launch(
        file, "two_accumulators", own, device, config, arguments, parts=2, dtypes=(*x, *dtypes, *shared)
    )
    if variant != "two_launches":
        return (kernel,)
    vectors = case.sizes["M"] * own.sizes["K"] * case.itemsize // 16 if copies_rows(case, variant) else 1
    grid = max(1, min(-(-vectors // COPIERS), 8 * multiprocessors(device)))
    program = instance(file, "whole_rows", TYPES[case.dtype])
    return in_turn(Launch(program, grid, COPIERS, dtypes=(case.dtype, case.dtype, "int32")), kernel)


def call(case, variant, described, y):
    """A function of x, W, what else the kernel takes, and what `prepared` made, which returns y, at that place of the kernel's tensors."""
    *first, last = described
    own, (sums, flags) = product(case, variant), last.exchange or (None, (0,))
    made = {y: case.size("M", "N")} | ({y + 1: sums} if sums else {})
    absent = (y + 1, y + 2) if last.boxes and not sums else ()
    products, is_prepared = last.returning(made, own.size("M", "K", "N"), absent=absent), matmul.is_prepared(case, own)
    if not first:
        return (lambda x, W, *more: products(x, more[-1], *more[:-1])) if is_prepared else products

    copied, cleared = {1: own.size("M", "K")} if copies_rows(case, variant) else {}, {2: flags} if sums else {}
    missing = [place for place in (1, 2) if place not in copied | cleared]
    before = first[0].returning(copied | cleared, (*case.size("M", "K"), *flags), absent=missing)

    def both(x, W, *more):
        found = before(x)
        found = found if isinstance(found, tuple) else (found,)
        whole, cleared_flags = (found[0], found[1:]) if copied else (x, found if cleared else ())
        *rest, W = more if is_prepared else (*more, W)
        result = products(whole, W, *rest, *cleared_flags)
        return result[0] if sums else result

    return both
