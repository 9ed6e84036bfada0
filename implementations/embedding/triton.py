"""embedding in Triton, hashing and gather in one launch in every variant: _shared/triton/lookup.py says how they work.

modulus: the remainder. naive: the known values move to the device in every call and are compared one by one. improved: they
stay there, sorted, and are searched. atomic, in the backward modes: the gradient of the tables by atomic additions
(_triton_backward.py). deterministic: in one order, of sorted look-ups (_triton_sorted.py).
"""

import torch

from fusebench.launchers import chained
from implementations._shared.torch.lookup import prepared_for_kernels
from implementations.embedding import _triton_backward as backward
from implementations.embedding import _triton_kernels as kernels
from implementations.embedding._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)
from implementations.embedding._triton_sorted import shapes

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"modulus": (), "naive": (), "improved": (), "atomic": (), "deterministic": ()}
BACKWARD = {"atomic": (), "deterministic": ()}
EXPECT = (
    {"variant": "modulus", "case": "small", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
    {"variant": ("naive", "improved"), "case": "small", "options": {"hashing": "lookup"}, "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0"},
    {"variant": ("atomic", "deterministic"), "case": ("small", "large_wide"), "dtype": ("float32", "bfloat16"), "mode": "backward",
     "arch": ("sm_80", "sm_90a", "sm_100a"), "expect": "spills=0"},
)  # fmt: skip


def prepare(case, variant, ids, tables, offsets, known=None):
    return prepared_for_kernels(kernels.forward_of(case) if variant in BACKWARD else variant, offsets, known)


def build(case, variant, device, chosen):
    """call(ids (M, F), tables, offsets, …) → (M, F, D)."""
    if case.mode != "forward":
        return chained(_differentiated(case, variant, device, chosen))
    (launch,) = launches(case, variant, device, chosen)
    M, F, D = case.size("M", "F", "D")
    if variant == "naive":
        run = launch.returning((M, F, D), M=M)
        return lambda ids, tables, offsets, _, known: run(ids, tables, offsets, known.to(ids.device))
    run = launch.returning((M, F, D), count=M * F)
    return lambda ids, tables, offsets, _=None, *prepared: run(ids, tables, offsets, *prepared)


def _differentiated(case, variant, device, chosen):
    """(forward, backward); the rows of the look-ups are kept."""
    look_up, (M, F, D) = kernels.kept_launch(case, device).bind(), case.size("M", "F", "D")
    behind = [launch.bind() for launch in backward.launches(case, variant, device, chosen)]

    def forward(ids, tables, offsets, known=None, *prepared):
        y, rows = tables.new_empty(M, F, D), ids.new_empty(M, F, dtype=torch.int32)
        look_up(ids, tables, offsets, *prepared, M * F, y, rows)
        return y, (rows, tables, offsets)

    def added(residuals, dy):
        rows, tables, offsets = residuals
        clear, add, *narrow = behind
        sums = torch.empty_like(tables, dtype=torch.float32)
        clear(sums.numel(), sums)
        add(rows, offsets, dy, M, sums, sums)
        if not narrow:
            return (sums,)
        dtables = torch.empty_like(tables)
        narrow[0](sums, sums.numel(), dtables)
        return (dtables,)

    def in_order(residuals, dy):
        rows, tables, offsets = residuals
        clear, *sorting, walk, finish, last_row = behind
        counts, totals, items, heads, lost = shapes(case, chosen)
        dtables, found = torch.empty_like(tables), rows  # the first digit reads no items
        clear(dtables.numel(), dtables)
        for count, scan, place in zip(*[iter(sorting)] * 3, strict=True):
            here, before, total = (rows.new_empty(shape) for shape in (counts, counts, totals))
            count(rows, found, offsets, M, here)
            scan(here, M, before, total)
            placed = offsets.new_empty(items)
            place(rows, found, offsets, M, before, total, placed)
            found = placed
        heads, tails, lost = (dy.new_empty(shape, dtype=torch.float32) for shape in (heads, heads, lost))
        walk(found, offsets, M, dy, dtables, heads, tails, lost, dtables)
        finish(found, offsets, M, heads, tails, lost, dtables, lost, dtables)
        last_row(found, offsets, M, lost, dtables, dtables)
        return (dtables,)

    return forward, added if variant == "atomic" else in_order
