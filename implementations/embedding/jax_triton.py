"""embedding in JAX through jax-triton: triton.py's kernels and variants."""

import jax
import jax.numpy as jnp

from implementations._shared.jax.autograd import jitted
from implementations._shared.jax.launch import run
from implementations._shared.jax.lookup import prepared_for_kernels
from implementations.embedding import _triton_backward as backward
from implementations.embedding import _triton_kernels as kernels
from implementations.embedding._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)
from implementations.embedding._triton_sorted import shapes

BACKEND = "jax"
REQUIRES = {"triton": "triton", "jax_triton": "jax-triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {"modulus": (), "naive": (), "improved": (), "atomic": (), "deterministic": ()}
BACKWARD = {"atomic": (), "deterministic": ()}


def prepare(case, variant, ids, tables, offsets, known=None):
    return prepared_for_kernels(kernels.forward_of(case) if variant in BACKWARD else variant, offsets, known)


def build(case, variant, device, chosen):
    """call(ids (M, F), tables, offsets, …) → (M, F, D), jitted."""
    if case.mode != "forward":
        return _differentiated(case, variant, device, chosen)
    (launch,) = launches(case, variant, device, chosen)
    shape = case.size("M", "F", "D")
    count = shape[0] if variant == "naive" else shape[0] * shape[1]

    def call(ids, tables, offsets, known=None, *prepared):
        return run(launch, ids, tables, offsets, *prepared, count, out=jax.ShapeDtypeStruct(shape, tables.dtype))

    return jax.jit(call)


def _differentiated(case, variant, device, chosen):
    """(forward, backward), both jitted; the rows of the look-ups are kept."""
    look_up, (M, F, D) = kernels.kept_launch(case, device), case.size("M", "F", "D")
    behind = backward.launches(case, variant, device, chosen)

    def forward(ids, tables, offsets, known=None, *prepared):
        shapes = [jax.ShapeDtypeStruct((M, F, D), tables.dtype), jax.ShapeDtypeStruct((M, F), jnp.int32)]
        y, rows = run(look_up, ids, tables, offsets, *prepared, M * F, out=shapes)
        return y, (rows, tables, offsets)

    def added(residuals, dy):
        rows, tables, offsets = residuals
        clear, add, *narrow = behind
        wide = jax.ShapeDtypeStruct(tables.shape, jnp.float32)
        sums = run(clear, tables.size, out=wide)
        sums = run(add, rows, offsets, dy, M, sums, out=wide, aliases={4: 0})
        if not narrow:
            return (sums,)
        return (run(narrow[0], sums, tables.size, out=jax.ShapeDtypeStruct(tables.shape, tables.dtype)),)

    def in_order(residuals, dy):
        rows, tables, offsets = residuals
        clear, *sorting, walk, finish, last_row = behind
        counts, totals, items, heads, lost = shapes(case, chosen)
        counts, totals = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in (counts, totals))
        items, like = jax.ShapeDtypeStruct(items, jnp.int64), jax.ShapeDtypeStruct(tables.shape, tables.dtype)
        heads, lost = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (heads, lost))
        found = rows  # the first digit reads no items
        for count, scan, place in zip(*[iter(sorting)] * 3, strict=True):
            here = run(count, rows, found, offsets, M, out=counts)
            before, total = run(scan, here, M, out=[counts, totals])
            found = run(place, rows, found, offsets, M, before, total, out=items)
        dtables = run(clear, tables.size, out=like)
        *partial, found_lost, dtables = run(
            walk, found, offsets, M, dy, dtables, out=[heads, heads, lost, like], aliases={4: 3}
        )
        found_lost, dtables = run(
            finish, found, offsets, M, *partial, found_lost, dtables, out=[lost, like], aliases={5: 0, 6: 1}
        )
        return (run(last_row, found, offsets, M, found_lost, dtables, out=like, aliases={4: 0}),)

    return jitted(forward, added if variant == "atomic" else in_order)
