"""lola in CUDA C++ (cuda.cu, which describes the algorithms): one launch in every variant but the last.

row             one token; the product is a stream over W, whose rows `prepare` fills up to whole vectors
multirow        a tile of rows; statistics, colsum(W) and product in one kernel
multirow_ws     the same with colsum(W) summed once beforehand
two_launches    and the statistics of rows in a launch before: worth it where many tiles would each sum up the same rows. It also
                copies x into rows of whole lines of L2 where K is odd, say; of float32 always, less a shift of each row

The backward modes are multirow's: two to four launches behind a forward call of one or two (_cuda_backward.py).
"""

from pathlib import Path

from fusebench.launchers import chained
from implementations._shared.cuda import layer_backward, matmul, matmul_choice, matmul_split, matmul_turned
from implementations._shared.cuda.launch import TYPES, Launch, in_turn, instance, not_one_of, too_large, unsupported
from implementations._shared.gpu import filled_up, is_ieee, multiprocessors, rows_are_aligned, weight_row
from implementations.lola import _cuda_backward as backward

BACKEND = "torch"
FUSED = True
VARIANTS = {"row": (), "multirow": ("one_pass",), "multirow_ws": ("one_pass",), "two_launches": ("one_pass",)}
BACKWARD = {"multirow": ("one_pass", "layernorm", "bias", "dz", "normed")}
REQUIRES = {"cuda.core": "cuda-core"}
WITHOUT_GPU = "emulated"
EXPECT = (
    {"variant": ("multirow", "multirow_ws"), "case": "batch", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": ("multirow", "multirow_ws"), "case": "token", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=16"},
    {"variant": ("multirow", "multirow_ws"), "case": "token", "precision": "tf32", "arch": ("sm_80", "sm_90a"), "expect": "spills=0,tensor_core>=16"},
    {"variant": "two_launches", "case": "batch", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,tensor_core>=1"},
    # two batches of W a thread, asked for before the loop and in it, none through the stack; of a large W a ring of them, and one copy of
    # each in the loop
    {"variant": "row", "case": "token", "dtype": ("float32", "bfloat16"), "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0,LDG.128>=8"},
    {"variant": "row", "case": "wide_token", "dtype": ("float32", "bfloat16"), "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,LDGSTS.128>=16"},
    {"variant": "multirow_ws", "case": "batch", "dtype": "bfloat16", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=1,waits_in_groups=0,STG.128>=4"},
    # one slab's products while the next one's rows are shifted, in other registers; and the last of an odd number of slabs
    {"variant": "multirow_ws", "case": "batch", "precision": "tf32", "arch": "sm_90a", "expect": "spills=0,HGMMA=12,waits_in_groups=0"},
    {"variant": ("multirow", "multirow_ws"), "case": "batch", "precision": "ieee", "dtype": "float32", "arch": ("sm_90a", "sm_100a"),
     "expect": "spills=0,LDS.128>=48"},
    # 108 multiprocessors take tiles of 64×64
    {"variant": ("multirow", "multirow_ws"), "case": "batch", "precision": "ieee", "dtype": "float32", "arch": "sm_80",
     "expect": "spills=0,LDS.128>=32"},
    {"variant": ("multirow", "multirow_ws"), "case": "batch", "precision": "tf32", "arch": ("sm_80", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "two_launches", "case": "large", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,HGMMA>=1,waits_in_groups=0,loop.R2UR=0"},
    {"variant": "two_launches", "case": "batch", "precision": "ieee", "dtype": "float32", "arch": ("sm_80", "sm_100a"),
     "expect": "spills=0,LDS.128>=32"},
    # sums are in the other register bank than x, and what a product takes of shared memory is asked for in time
    {"variant": "two_launches", "case": "batch", "precision": "ieee", "dtype": "float32", "arch": "sm_90a",
     "expect": "spills=0,LDS.128>=32,loop.bank_conflicts<=320,loop.load_waits<=40"},
    {"variant": "multirow", "case": "batch", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
    {"variant": "multirow", "case": "batch", "precision": "tf32", "mode": "backward", "arch": "sm_90a", "expect": "spills=0"},
    {"variant": "multirow", "case": "batch", "dtype": "bfloat16", "mode": "forward_backward", "arch": "sm_90a",
     "expect": "spills=0,HGMMA>=8,waits_in_groups=0"},
    {"variant": "multirow", "case": "token", "dtype": "bfloat16", "mode": "backward", "arch": ("sm_80", "sm_90a"),
     "expect": "spills=0,tensor_core>=16"},
    # few rows: four elements of K of x and of W, while four others are multiplied
    {"variant": "multirow_ws", "case": "token", "dtype": "float32", "precision": "ieee", "arch": ("sm_80", "sm_90a"),
     "expect": "spills=0,FFMA>=128,LDS.128>=16"},
    {"variant": "two_launches", "case": "odd", "dtype": "float32", "precision": "ieee", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,FFMA>=64,LDS.128>=16"},
    # the blocks of a cluster share K
    {"variant": ("multirow", "multirow_ws"), "case": "odd", "dtype": "float32", "arch": "sm_90a", "expect": "spills=0"},
)  # fmt: skip
TUNABLES = {
    # WIDTH: with (K, N) the threads side by side on a row of W, with (N, K) the columns of a warp
    # KERNEL, UNROLL: with (K, N) a thread has two batches of UNROLL vectors on their way to registers, or UNROLL to a ring in shared memory
    "row": {
        "KERNEL": ("registers", "ring"), "num_warps": (2, 4, 8, 16), "UNROLL": (4, 8, 12, 16, 20, 24),
        "WIDTH": (
            1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42, 44, 46, 48, 52, 56, 60, 64, 68, 72, 80,
            96, 112, 128,
        ),
    },
    ("multirow", "multirow_ws"): {
        "KERNEL": ("tensor", "few_rows", "warpgroup", "simt"), "BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64, 128, 256),
        "num_stages": (1, 2, 3, 4, 5, 6), "CLUSTER": (1, 2, 4, 8), "SCHEDULE": ("tiles", "strips"),
    },
    "multirow_ws": {"SUMS": ("producer", "consumer")},  # who adds up rows of 16 bits beside the products of warpgroups
    "multirow": {  # those of the products of mode=backward: of both by warpgroups, of few rows, or of dx and dW (layer_backward.py)
        "both_BLOCK_M": (128, 192), "both_BLOCK_N": (128, 192, 256), "both_num_stages": (2, 3, 4), "both_CLUSTER": (1, 2),
        "both_SCHEDULE": ("tiles", "stream_k"),
        "beside_BLOCK_M": (64, 128), "beside_BLOCK_N": (64, 128), "beside_num_stages": (3, 4, 5, 6), "beside_CLUSTER": (1, 2, 4, 8),
        "few_BLOCK_M": (16, 32), "few_BLOCK_N": (16, 32, 64), "few_num_stages": (1, 2, 3, 4),
        "dx_KERNEL": ("tensor", "few_rows", "warpgroup", "split", "simt"), "dx_BLOCK_M": (16, 32, 64, 128), "dx_BLOCK_N": (16, 32, 64, 128, 256),
        "dx_num_stages": (1, 2, 3, 4, 5, 6), "dx_CLUSTER": (1, 2, 4, 8),
        "dW_KERNEL": ("tensor", "warpgroup", "split", "simt"), "dW_BLOCK_M": (16, 64, 128), "dW_BLOCK_N": (64, 128, 256), "dW_num_stages": (2, 3, 4, 5, 6),
        "dW_CLUSTER": (1, 2, 4),
    },
    "two_launches": {
        "KERNEL": ("warpgroup", "split", "turned", "few_rows", "simt"),
        "BLOCK_M": (16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256), "BLOCK_N": (16, 32, 64, 128, 192, 256),
        "num_stages": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), "CLUSTER": (1, 2, 4, 8), "SCHEDULE": ("tiles", "strips", "stream_k"),
    },
}  # fmt: skip

FILE = Path(__file__).with_suffix(".cu")
STATIC_BYTES = 48 << 10  # of shared memory that a kernel may declare

# the larger ones, in which the statistics cost least beside the products; clusters only make blocks wait for each other's
TILES = [t for t in matmul.WARPGROUP_TILES if t.cluster == 1] + [
    t for t in matmul.TENSOR_TILES if (t.rows, t.columns) != (64, 128)
]
MORE_TILES = *backward.FEW_ROWS_TILES, *matmul.SIMT_SPLIT_TILES
TILES += MORE_TILES
ALL_TILES = matmul.TILES + MORE_TILES
FLOAT_TILES = matmul.FLOAT_TILES + matmul.FLOAT_SPLIT_TILES  # of two_launches in IEEE float32
STATISTICS_WARPS = 8  # of a block of row_statistics


def skip(case, variant, device):
    if reason := unsupported(device):
        return reason
    if variant == "row" and case.sizes["M"] != 1:
        return "row is for M = 1"
    if variant == "row" and case.dtype == "float32" and case.precision != "ieee":
        return "multiplies in IEEE float32, without tensor cores: precision=ieee runs it"
    if variant != "two_launches" or is_ieee(case):
        return None
    if not matmul.multiplies_by_warpgroups(_product(case, variant), device):
        return "is for IEEE float32, and for Hopper's warpgroups (9.0; K from 64, N from 128): multirow_ws"
    return None


PREPARED = ("multirow_ws", "two_launches")


def prepare(case, variant, x, W, b):
    """For `row` W with whole rows, where they are not. Else colsum(W): the float32 sum of W as rounded; and W with K contiguous where the
    products want it so (`matmul.prepared_layout`)."""
    import torch

    if variant == "row":
        beyond = _pitch(case) - weight_row(case)
        return (torch.nn.functional.pad(W, (0, beyond)),) if beyond else ()
    if variant not in PREPARED:
        return ()
    colsum = W.sum(1 if case.options["w_layout"] == "nk" else 0, dtype=torch.float32)
    return colsum, *matmul.prepared(case, _product(case, variant), W)


def _pitch(case):
    """Elements from one row of W to the next, as the kernels of `row` read it: whole vectors."""
    return filled_up(case, weight_row(case))


def _product(case, variant):
    """The case with x and W as the kernel reads them: W as `prepare` leaves it; x with rows of whole vectors in two_launches."""
    if variant == "two_launches":
        return matmul.of_whole_rows(case, copied=case.itemsize == 4)  # less a shift
    return matmul.prepared_case(case) if variant == "multirow_ws" else case


def _copies_rows(case, own):
    """Whether row_statistics leaves a copy of x, which the product `own` reads: in whole rows, and of float32 less a shift of each."""
    return own.sizes["K"] != case.sizes["K"] or case.itemsize == 4


def config(case, variant, device):
    if case.mode != "forward":
        return layer_backward.config(case, device)
    if variant == "row":
        return _row_config(case, device)
    if variant == "two_launches":
        own = _product(case, variant)
        if is_ieee(case):
            before = _statistics_launch(case, device).grid
            return matmul_choice.config(own, device, FLOAT_TILES, schedules=_schedules(case), before=before)
        tiles = matmul.products_tiles(own)
        whole = matmul_choice.config(own, device, tiles, beside=backward.statistics_bytes, schedules=matmul.SCHEDULES)
        return matmul_turned.or_turned(
            own, matmul_split.or_split(own, whole, device, columns=matmul_split.WIDE), device
        )
    own = matmul_choice.config(
        _product(case, variant), device, TILES, beside=backward.statistics_bytes, schedules=_schedules(case)
    )
    return own | {"SUMS": "consumer"} if _has_sums(case, variant, own) else own


def _schedules(case):
    """Those of one launch."""
    return ("tiles", "strips") if is_ieee(case) else ("tiles",)


def _has_sums(case, variant, config):
    return variant == "multirow_ws" and case.itemsize == 2 and config["KERNEL"] == "warpgroup"


def _row_config(case, device):
    """nk: the most columns a warp that still give all multiprocessors two blocks, as was best on an H200 at every size."""
    if case.options["w_layout"] == "nk":
        choices = [{"WIDTH": width, "num_warps": 8} for width in (4, 2, 1)]
        enough = 2 * multiprocessors(device)
        return next((c for c in choices if -(-case.sizes["N"] // _row_columns(case, c)) >= enough), choices[-1])
    # Of an H200: 133 µs and 150 at 1×8192→32768 in bfloat16, 252 and 263 in float32; but 13.2 and 12.3 at 1×1024→4096 in float32, where
    # registers hold all that a multiprocessor has of W, and 50 and 42 at 1×14336→4096 in bfloat16, where a row's part is 64 bytes
    share = case.sizes["K"] * case.sizes["N"] * case.itemsize / multiprocessors(device)
    return (_ring_config(case, device) if share > 256 << 10 else None) or _registers_config(case, device)


def _shares(case, width, device):
    """(blocks of the busiest multiprocessor, the share of the others' work in its own)."""
    blocks = -(-case.sizes["N"] // (width * 16 // case.itemsize))
    most = -(-blocks // multiprocessors(device))
    return most, blocks / (most * multiprocessors(device))


def _registers_config(case, device):
    """The longest contiguous reads that share columns out evenly, to within a tenth, or as evenly as any. All blocks of a
    multiprocessor run at once, so that none waits for another's end: 16 warps of them in 16 bits, whose 8 vectors a thread are 64 KiB, and 8
    in float32, whose 16 vectors are as much: 1×1024→4096 took 9.7 µs on an H100, with 16 warps 10.1; 1×768→3072 6.8 and 7.4.
    """
    widths = (32, 16, 8, 4)
    width = next(
        (w for w in widths if _shares(case, w, device)[1] >= 0.9),
        max(widths, key=lambda w: _shares(case, w, device)[1]),
    )
    least = max(2, width * (16 // case.itemsize) // 32)  # a thread a column
    most = 16 if case.itemsize == 2 else 8
    num_warps = max(least, next(n for n in (16, 8, 4, 2) if n * _shares(case, width, device)[0] <= most or n == 2))
    rows = num_warps * 32 // width  # of W at once
    # in 16 bits the sums of eight columns leave no registers for longer batches
    return {
        "KERNEL": "registers",
        "WIDTH": width,
        "UNROLL": 4 if case.itemsize == 2 or case.sizes["K"] <= 8 * rows else 8,
        "num_warps": num_warps,
    }


RING_WIDTHS = (
    *range(8, 48, 2),
    *range(48, 64, 4),
    64,
    72,
    80,
    96,
    112,
    128,
)  # those of WIDTH that read 128 bytes of a row of W or more


def _ring_config(case, device):
    """A block a multiprocessor, as near as may be, with 128 KiB of W on their way or all there is; None where x does not fit beside it, or
    no such blocks read enough of a row at once."""
    even = [w for w in RING_WIDTHS if _shares(case, w, device)[1] >= 0.9]
    if not even:
        return None
    fewest = min(_shares(case, w, device)[0] for w in even)
    width = min(
        (w for w in even if _shares(case, w, device)[0] == fewest), key=lambda w: (-_shares(case, w, device)[1], -w)
    )
    for unroll in (16, 12, 8, 4):
        config = {"KERNEL": "ring", "WIDTH": width, "UNROLL": unroll, "num_warps": 16}
        more = case.sizes["K"] <= (unroll - 4) * (512 // width)
        if not more and _row_fits(case, device, config) is None:
            return config
    return None


def _row_columns(case, config):
    """Columns of a block."""
    return config["WIDTH"] * (16 // case.itemsize if case.options["w_layout"] == "kn" else config["num_warps"])


def fits(case, variant, device, config):
    if case.mode != "forward":
        return layer_backward.fits(case, device, config)
    if variant == "row":
        return _row_fits(case, device, config)
    kernels = ("simt", "few_rows") if is_ieee(case) else ("warpgroup", "split", "turned")
    if variant == "two_launches" and (reason := not_one_of("KERNEL", config["KERNEL"], kernels)):
        return reason
    if reason := not_one_of("SUMS", config.get("SUMS", "producer"), ("producer", "consumer")):
        return reason
    if variant != "two_launches" and (reason := not_one_of("SCHEDULE", matmul.schedule_of(config), _schedules(case))):
        return reason
    own = _product(case, variant)
    if config["KERNEL"] in ("split", "turned"):
        if matmul.schedule_of(config) != "tiles":
            return f"SCHEDULE={config['SCHEDULE']} is for KERNEL=warpgroup"
        if config["KERNEL"] == "turned":
            return matmul_turned.fits(own, device, config)
        return matmul_split.fits(own, device, matmul_split.of_cluster(config), known=matmul_split.WIDE)
    if variant == "two_launches" and is_ieee(case):
        return matmul.fits(own, device, config, tiles=FLOAT_TILES)
    tiles = matmul.products_tiles(own) if variant == "two_launches" else ALL_TILES
    return matmul.fits(own, device, config, beside=backward.statistics_bytes, tiles=tiles)


def _row_fits(case, device, config):
    width, num_warps = config["WIDTH"], config["num_warps"]
    if reason := not_one_of("num_warps", num_warps, (1, 2, 4, 8, 16, 32)):
        return reason
    if case.options["w_layout"] == "nk":
        return not_one_of("WIDTH", width, (1, 2, 4))
    if reason := not_one_of("KERNEL", config["KERNEL"], ("registers", "ring")):
        return reason
    if config["KERNEL"] == "ring":
        return _ring_fits(case, device, config)
    if reason := not_one_of("UNROLL", config["UNROLL"], (4, 8)):
        return reason
    if reason := not_one_of("WIDTH", width, (4, 8, 16, 32)):
        return reason
    columns = _row_columns(case, config)
    if columns > 32 * num_warps:
        return f"a block of {32 * num_warps} threads has a column each, not {columns}"
    needed = num_warps * (2 * columns + 2) * 4
    return None if needed <= STATIC_BYTES else f"the sums take {needed} bytes of shared memory; they may {STATIC_BYTES}"


def _ring_fits(case, device, config):
    if case.sizes["K"] * case.itemsize < 16:
        return "KERNEL=ring begins with a vector of 16 bytes of x; KERNEL=registers takes any K"
    if reason := not_one_of("num_warps", config["num_warps"], (1, 2, 4, 8, 16)):
        return reason
    if reason := not_one_of("UNROLL", config["UNROLL"], range(4, 33, 4)):
        return reason
    if not 1 <= config["WIDTH"] <= 32 * config["num_warps"]:
        return f"a block of {32 * config['num_warps']} threads has no {config['WIDTH']} side by side"
    return too_large(_ring_bytes(case, config), device, static=8 * config["num_warps"])


def _ring_bytes(case, config):
    """Shared memory of a block: W on its way, 16 bytes a vector, and x less its mean as floats, filled up to whole batches of 4 rows a
    thread."""
    threads = 32 * config["num_warps"]
    rows = 4 * (threads // config["WIDTH"])
    return 16 * config["UNROLL"] * threads + 4 * rows * -(-case.sizes["K"] // rows)


def _statistics_launch(case, device):
    """The launch of row_statistics. Of rows that are no whole vectors, which the product waits for, several warps have one where there are few:
    160×6932→256 took 24.8 µs on an H200, with a warp for each row, and 14.5. Of others the product begins meanwhile."""
    (M, K), sharers = case.size("M", "K"), 1
    aligned, blocks, vectors = rows_are_aligned(case, K), -(-M // STATISTICS_WARPS), K * case.itemsize // 16
    while (
        not aligned
        and sharers * blocks <= 0.75 * multiprocessors(device)
        and sharers < min(STATISTICS_WARPS, vectors // 32)
    ):
        sharers *= 2
    program = instance(FILE, "row_statistics", TYPES[case.dtype], aligned, sharers)
    dtypes = case.dtype, case.dtype, "float32", "float32", "int32"
    return Launch(program, -(-M * sharers // STATISTICS_WARPS), 32 * STATISTICS_WARPS, dtypes=dtypes)


def launches(case, variant, device, config):
    if case.mode != "forward":
        behind = backward.launches(case, device, config)
        return behind if case.mode == "backward" else (*backward.forward_launches(case, device), *behind)
    T, activation = case.dtype, case.options["activation"].upper()
    if variant == "row":
        return (_row_launch(case, config, [TYPES[T], activation]),)
    if variant == "two_launches":
        statistics = _statistics_launch(case, device)
        operands = (matmul.operand(case),) * 2
        dtypes = *operands, T, "float32", "float32", "float32", T, "float32", "int32"
        own = _product(case, variant)
        if is_ieee(case):
            product = matmul.launch(FILE, "normed", own, device, config, (activation,), dtypes=dtypes[:7])
            return in_turn(statistics, product)
        arguments = activation, not _copies_rows(case, own)
        if config["KERNEL"] in ("split", "turned"):
            product = matmul_turned.launch_of_any(FILE, "normed", own, device, config, dtypes[:7], arguments)
            return in_turn(statistics, product)
        return in_turn(
            statistics,
            matmul.launch(
                FILE, "normed", own, device, config, arguments, beside=backward.statistics_bytes, dtypes=dtypes
            ),
        )
    # x is rounded by the kernel, once shifted
    arguments, dtypes = [activation, variant in PREPARED], (T, matmul.operand(case), T, "float32", T)
    by_consumers = config["KERNEL"] == "warpgroup" and (case.itemsize == 4 or config.get("SUMS") == "consumer")
    kernel, own = "counted" if by_consumers else "tile", _product(case, variant)
    return (
        matmul.launch(FILE, kernel, own, device, config, arguments, beside=backward.statistics_bytes, dtypes=dtypes),
    )


def _row_launch(case, config, arguments):
    layout, dtypes = case.options["w_layout"], (case.dtype,) * 4
    grid, threads = -(-case.sizes["N"] // _row_columns(case, config)), 32 * config["num_warps"]
    arguments += [config["WIDTH"], config["num_warps"]]
    if layout == "nk":
        return Launch(instance(FILE, "row_nk", *arguments), grid, threads, dtypes=dtypes)
    arguments.append(config["UNROLL"])
    if config["KERNEL"] == "registers":
        return Launch(instance(FILE, "row_kn", *arguments), grid, threads, dtypes=dtypes)
    return Launch(instance(FILE, "row_ring", *arguments), grid, threads, _ring_bytes(case, config), dtypes=dtypes)


def build(case, variant, device, config):
    """call(x (M, K), W, b (N,), then what `prepare` made) → (M, N)."""
    if case.mode != "forward":
        return chained(backward.build(case, device, config))
    M, K, N = case.size("M", "K", "N")
    *first, last = launches(case, variant, device, config)
    if variant == "row":
        row = last.returning({3: (1, N)}, (K, N, _pitch(case)))
        return row if _pitch(case) == weight_row(case) else lambda x, W, b, whole: row(x, whole, b)
    if variant not in PREPARED:
        return last.returning({4: (M, N)}, (M, K, N), absent=(3,))
    if variant == "two_launches":
        return chained(_two_launches(case, *first, last))
    tiles = last.returning({4: (M, N)}, (M, K, N))
    return lambda x, W, b, colsum, prepared=None: tiles(x, W if prepared is None else prepared, b, colsum)


def _two_launches(case, first, last):
    M, K, N = case.size("M", "K", "N")
    own = _product(case, "two_launches")
    columns = own.sizes["K"]
    copied, made = {1: (M, columns)} if _copies_rows(case, own) else {}, {2: (M,), 3: (M,)}
    uncopied = () if copied else (1,)
    deep = columns if case.itemsize == 4 else K
    if not last.exchange:
        statistics = first.returning({**copied, **made}, (M, K, 0), absent=(*uncopied, 4))
        product = last.returning({6: (M, N)}, (M, deep, N), absent=range(7, len(last.dtypes)))
    else:
        sums, flags = last.exchange
        statistics, shared = (
            first.returning({**copied, **made, 4: flags}, (M, K, *flags), absent=uncopied),
            last.returning({6: (M, N), 7: sums}, (M, deep, N)),
        )

        def product(*given):
            return shared(*given)[0]

    def call(x, W, b, colsum, prepared=None):
        whole, mean, rstd, *flags = statistics(x) if copied else (x, *statistics(x))
        return product(whole, W if prepared is None else prepared, b, mean, rstd, colsum, *flags)

    return call
