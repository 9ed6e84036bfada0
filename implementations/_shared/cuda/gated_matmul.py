"""The launches of two products side by side, whose sums a gate makes one of: splacc and geglu.

two_accumulators   one launch
two_launches       rows of x that are no whole vectors of 16 bytes, or of a large product no whole lines of L2, which products are slow to
                   read, are copied into rows that are, and `prepare` does the same with W; the last tiles may be shared (SCHEDULE=stream_k)
"""

from dataclasses import replace

from fusebench.launchers import capability
from implementations._shared.cuda import gated_backward, gated_products, matmul
from implementations._shared.cuda.gated_products import PARTS, TILES
from implementations._shared.cuda.launch import in_turn, unsupported
from implementations._shared.gpu import rows_are_aligned

EXPECT = (
    {"variant": "two_accumulators", "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_accumulators", "case": "token", "dtype": "bfloat16", "arch": ("sm_80", "sm_100a"), "expect": "spills=0,tensor_core>=16"},
    # blocks that share K
    {"variant": "two_accumulators", "case": "token", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,HGMMA>=4,waits_in_groups=0"},
    {"variant": "two_accumulators", "case": "large", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=1,waits_in_groups=0,STG.128>=4"},
    {"variant": "two_accumulators", "case": "batch", "precision": "tf32", "arch": "sm_90a",
     "expect": "spills=0,HGMMA=4,waits_in_groups=0"},
    {"variant": "two_launches", "case": "large", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,HGMMA>=1,waits_in_groups=0,loop.R2UR=0"},
    {"variant": "two_accumulators", "case": "batch", "precision": "tf32", "arch": ("sm_80", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_accumulators", "case": "batch", "dtype": "bfloat16", "mode": "backward", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=8,waits_in_groups=0"},
    {"variant": "two_accumulators", "case": "batch", "dtype": "bfloat16", "mode": "forward_backward", "arch": "sm_90a", "expect": "spills=0"},
    {"variant": "two_accumulators", "case": "batch", "precision": "tf32", "mode": "backward", "arch": "sm_90a", "expect": "spills=0"},
    {"variant": "two_accumulators", "case": "batch", "dtype": "bfloat16", "mode": "backward", "arch": "sm_80",
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_accumulators", "case": "batch", "dtype": "bfloat16", "mode": "backward", "arch": "sm_100a", "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_accumulators", "case": "token", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=8,STG.128>=1"},
    # the blocks of a cluster share K
    {"variant": "two_accumulators", "case": "odd", "dtype": "float32", "arch": "sm_90a", "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    ("two_accumulators", "two_launches"): {
        "KERNEL": ("tensor", "few_rows", "warpgroup", "split", "turned", "simt"),
        "BLOCK_M": (16, 32, 64, 80, 96, 112, 128, 192),
        "BLOCK_N": (16, 32, 64, 128, 192, 256), "num_stages": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), "CLUSTER": (1, 2, 4, 8),
    },
    "two_accumulators": {
        "SCHEDULE": ("tiles", "strips"),
        # those of the products of mode=backward: of both by warpgroups, of few rows, or of dx and dW (layer_backward.py)
        "both_BLOCK_M": (128, 192), "both_BLOCK_N": (128, 192, 256), "both_num_stages": (2, 3, 4), "both_CLUSTER": (1, 2),
        "both_SCHEDULE": ("tiles", "stream_k"),
        "beside_BLOCK_M": (64, 128), "beside_BLOCK_N": (64, 128), "beside_num_stages": (3, 4, 5, 6), "beside_CLUSTER": (1, 2, 4, 8),
        "few_BLOCK_M": (16, 32), "few_BLOCK_N": (16, 32, 64), "few_num_stages": (1, 2, 3, 4),
        "dx_KERNEL": ("tensor", "few_rows", "warpgroup", "split", "simt"), "dx_BLOCK_M": (16, 32, 64, 128), "dx_BLOCK_N": (16, 32, 64, 128, 256),
        "dx_num_stages": (1, 2, 3, 4, 5, 6), "dx_CLUSTER": (1, 2, 4, 8),
        "dW_KERNEL": ("tensor", "warpgroup", "split", "simt"), "dW_BLOCK_M": (16, 64, 128), "dW_BLOCK_N": (64, 128, 256), "dW_num_stages": (2, 3, 4, 5, 6),
        "dW_CLUSTER": (1, 2, 4),
    },
    "two_launches": {"SCHEDULE": ("tiles", "strips", "stream_k")},
}  # fmt: skip

SCHEDULES = {"two_accumulators": ("tiles", "strips"), "two_launches": tuple(matmul.SCHEDULES)}


def skip(case, variant, device):
    return unsupported(device)


def copies_rows(case, variant):
    return _own(case, variant).sizes["K"] != case.sizes["K"]


def _own(case, variant):
    """The case of the products with x as it is copied, if it is."""
    return matmul.of_whole_rows(case, parts=PARTS) if variant == "two_launches" else matmul.prepared_case(case)


def product(case, variant, capability):
    """The case of the products as the kernel reads them. K is W's: where Hopper's copy engine reads a turned one, its rows are whole lines of L2,
    and those of x end before."""
    own = _own(case, variant)
    if not _wants_turned(own):
        return own
    line = matmul.slab(case) if tuple(capability) == (9, 0) else 1
    return replace(matmul.turned(own), sizes={**own.sizes, "K": -(-own.sizes["K"] // line) * line})


def _tiles(case, variant, device):
    """Those of the kernels that read x and W as `product` has them: where x has shorter rows, by the copy engine alone."""
    shorter = product(case, variant, device.capability).sizes["K"] != _own(case, variant).sizes["K"]
    return [t for t in TILES if t.kind not in ("tensor", "few_rows")] if shorter else TILES


def _wants_turned(case):
    """Whether turned tiles or those of 192×192 may be best, the latter with 96 columns of either half: of W (N, K) alone, of (K, N) they would be one panel and a half.
    They are not where all tiles of 128 rows, in clusters of two, are whole."""
    return (
        case.itemsize == 2
        and matmul.holds_boxes(case)
        and rows_are_aligned(case, case.sizes["K"])
        and case.sizes["M"] > 64
        and case.sizes["M"] % 256 > 0
        and max(case.size("M", "K", "N")) < 2**30 - 128
    )


def prepared(case, variant, W):
    """W as `product` has it where that is not as it came: () or (W,). None in the backward modes: a step is about to change W."""
    if case.mode != "forward":
        return ()
    return matmul.prepared(case, product(case, variant, capability(W)), W, parts=PARTS)


def config(case, variant, device):
    """The fastest, by the estimates."""
    if case.mode != "forward":
        return gated_backward.config(case, device)
    own = product(case, variant, device.capability)
    return gated_products.config(own, device, _tiles(case, variant, device), SCHEDULES[variant])


def fits(case, variant, device, config):
    if case.mode != "forward":
        return gated_backward.fits(case, device, config)
    if matmul.schedule_of(config) not in SCHEDULES[variant]:
        return f"{variant} has SCHEDULE={' and '.join(SCHEDULES[variant])}: nobody clears flags before it"
    own = product(case, variant, device.capability)
    return gated_products.fits(own, device, config, _tiles(case, variant, device))


def launches(file, case, variant, device, config, arguments=(), dtypes=()):
    """`two_accumulators_<KERNEL>` of `file`, in two_launches behind whole_rows. `dtypes` are those of what follows x and W."""
    own, x = product(case, variant, device.capability), (matmul.operand(case),) * 2
    shared = ("float32", "int32") if config["KERNEL"] == "warpgroup" else ()
    kernel = gated_products.launch(file, "two_accumulators", own, device, config, (*x, *dtypes, *shared), arguments)
    if variant != "two_launches":
        return (kernel,)
    return in_turn(matmul.row_copy(file, case, _own(case, variant), device), kernel)


def call(case, variant, device, described, y):
    """A function of x, W, what else the kernel takes, and what `prepared` made, which returns y, at that place of the kernel's tensors."""
    *first, last = described
    own, (sums, flags) = product(case, variant, device.capability), last.exchange or (None, (0,))
    made = {y: case.size("M", "N")} | ({y + 1: sums} if sums else {})
    absent = () if sums else tuple(range(y + 1, len(last.dtypes)))
    products, is_prepared = last.returning(made, own.size("M", "K", "N"), absent=absent), matmul.is_prepared(case, own)
    if not first:
        return (lambda x, W, *more: products(x, more[-1], *more[:-1])) if is_prepared else products

    copy = _own(case, variant).size("M", "K")
    copied, cleared = {1: copy} if copies_rows(case, variant) else {}, {2: flags} if sums else {}
    missing = [place for place in (1, 2) if place not in copied | cleared]
    before = first[0].returning(copied | cleared, (*case.size("M", "K"), copy[1], *flags), absent=missing)

    def both(x, W, *more):
        found = before(x)
        found = found if isinstance(found, tuple) else (found,)
        whole, cleared_flags = (found[0], found[1:]) if copied else (x, found if cleared else ())
        *rest, W = more if is_prepared else (*more, W)
        result = products(whole, W, *rest, *cleared_flags)
        return result[0] if sums else result

    return both
