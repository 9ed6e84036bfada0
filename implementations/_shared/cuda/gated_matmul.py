"""The launches of two products side by side, whose sums a gate makes one of: splacc and geglu.

two_accumulators   one launch
two_launches       rows of x that are no whole vectors of 16 bytes, which products are slow to read, are copied into rows that are, and
                   `prepare` does the same with W; the last tiles may be shared (SCHEDULE=stream_k)
"""

from dataclasses import replace

from implementations._shared.cuda import matmul
from implementations._shared.cuda.launch import TYPES, Launch, instance, unsupported
from implementations._shared.gpu import multiprocessors, rows_are_aligned

TILES = matmul.TENSOR_TILES + matmul.WARPGROUP_TILES
COPIERS = 256  # threads of a block of whole_rows


def skip(case, variant, device):
    return unsupported(device)


def copies_rows(case, variant):
    return variant == "two_launches" and not rows_are_aligned(case, case.sizes["K"])


def product(case, variant):
    """The case of the products as the kernel reads them."""
    if not copies_rows(case, variant):
        return matmul.prepared_case(case)
    vector = 16 // case.itemsize
    sizes = {**case.sizes, "K": -(-case.sizes["K"] // vector) * vector}
    return replace(case, sizes=sizes, options={**case.options, "w_layout": "nk"})


def prepared(case, variant, W):
    """W as `product` has it where that is not as it came: () or (W,)."""
    if not copies_rows(case, variant):
        return matmul.prepared(case, W)
    import torch

    more = product(case, variant).sizes["K"] - case.sizes["K"]
    turned = W if case.options["w_layout"] == "nk" else W.T
    return (torch.nn.functional.pad(turned, (0, more)).contiguous(),)


def config(case, variant, device):
    schedules = matmul.SCHEDULES if variant == "two_launches" else ("tiles",)
    return matmul.config(product(case, variant), device, TILES, parts=2, schedules=schedules)


def fits(case, variant, device, config):
    return matmul.fits(product(case, variant), device, config, parts=2)


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
    return Launch(program, grid, COPIERS, dtypes=(case.dtype, case.dtype, "int32")), kernel


def call(case, variant, described, config, y):
    """A function of x, W, what else the kernel takes, and what `prepared` made, which returns y, at that place of the kernel's tensors."""
    own, made = product(case, variant), {y: case.size("M", "N")}
    turned = own.options["w_layout"] != case.options["w_layout"] or copies_rows(case, variant)
    absent = (y + 1, y + 2) if config["KERNEL"] == "warpgroup" else ()
    sizes, exchange = own.size("M", "K", "N"), matmul.exchange(described[-1], config)
    if variant != "two_launches":
        gated = described[-1].returning(made, sizes, absent=absent)
        return (lambda x, W, *more: gated(x, more[-1], *more[:-1])) if turned else gated

    copied, cleared = (
        {1: own.size("M", "K")} if copies_rows(case, variant) else {},
        {} if exchange is None else {2: exchange[1]},
    )
    missing = [place for place in (1, 2) if place not in copied | cleared]
    first = described[0].returning(
        copied | cleared, (*case.size("M", "K"), *(exchange[1] if exchange else (0,))), absent=missing
    )
    last = described[-1].returning(
        made | ({y + 1: exchange[0]} if exchange else {}), sizes, absent=() if exchange else absent
    )

    def both(x, W, *more):
        before = first(x)
        before = before if isinstance(before, tuple) else (before,)
        whole, flags = (before[0], before[1:]) if copied else (x, before if cleared else ())
        *rest, W = (*more[:-1], more[-1]) if turned else (*more, W)
        result = last(whole, W, *rest, *flags)
        return result[0] if exchange else result

    return both
