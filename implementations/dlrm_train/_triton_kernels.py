"""The kernels of dlrm_train in Triton; _triton_step.py says in which order they are launched.

What a launch overwrites comes twice, as JAX has it: the second pointer is the same or none, and nothing is written through it.
"""

import triton
import triton.language as tl

from implementations._shared.triton.matmul import multiply


@triton.jit
def hashed(id, feature, offsets, F: tl.constexpr):
    """The table rows of ids: (id + 1) mod V_f, and the row of NaN for an id that is none."""
    begin = tl.load(offsets + feature)
    size = tl.load(offsets + feature + 1) - begin
    valid = (id >> 32) == 0
    return tl.where(valid, begin + (tl.where(valid, id, 0) + 1) % size, tl.load(offsets + F))


@triton.jit(do_not_specialize=["M"])
def forward_layer(
    h, W, b, M, y,
    K: tl.constexpr, N: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y = h @ W + b, with a ReLU behind it or not."""
    across: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    rows = (tl.program_id(0) // across) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (tl.program_id(0) % across) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    here, there = rows < M, columns < N
    at = rows.to(tl.int64)[:, None] * K
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        inside = start + k < K
        x = tl.load(h + at + (start + k)[None, :], mask=here[:, None] & inside[None, :], other=0.0)
        w = tl.load(
            W + (start + k).to(tl.int64)[:, None] * N + columns[None, :],
            mask=inside[:, None] & there[None, :],
            other=0.0,
        )
        acc = multiply(x, w.to(x.dtype), acc, PRECISION)
    z = acc + tl.load(b + columns, mask=there, other=0.0).to(y.dtype.element_ty).to(tl.float32)[None, :]
    if RELU:
        z = tl.where(z < 0, 0.0, z)
    tl.store(y + rows.to(tl.int64)[:, None] * N + columns[None, :], z, mask=here[:, None] & there[None, :])


@triton.jit
def update_tile(
    tile, M, h, dz, W, b, dW, db,
    K: tl.constexpr, N: tl.constexpr, RATE: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """A tile of hᵀ @ dz and of the step by it; the first tiles of columns have the bias as well."""
    across: tl.constexpr = (N + BLOCK - 1) // BLOCK
    k = (tile // across) * BLOCK + tl.arange(0, BLOCK)
    n = (tile % across) * BLOCK + tl.arange(0, BLOCK)
    in_k, in_n = k < K, n < N
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, M, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        here = (m < M)[:, None]
        x = tl.load(h + m.to(tl.int64)[:, None] * K + k[None, :], mask=here & in_k[None, :], other=0.0)
        d = tl.load(dz + m.to(tl.int64)[:, None] * N + n[None, :], mask=here & in_n[None, :], other=0.0)
        acc = multiply(tl.trans(x), d, acc, PRECISION)
        total += tl.sum(d.to(tl.float32), axis=0)
    at = k.to(tl.int64)[:, None] * N + n[None, :]
    mask = in_k[:, None] & in_n[None, :]
    tl.store(dW + at, acc, mask=mask)
    tl.store(W + at, tl.load(W + at, mask=mask) - RATE * acc, mask=mask)
    if tile < across:
        tl.store(db + n, total, mask=in_n)
        tl.store(b + n, tl.load(b + n, mask=in_n) - RATE * total, mask=in_n)


@triton.jit(do_not_specialize=["M"])
def backward_layer(
    h, W, dz, M, h2, dz2, W2, b2, W2_new, b2_new, dh, dW, db,
    K: tl.constexpr, N: tl.constexpr, RELU: tl.constexpr, K2: tl.constexpr, N2: tl.constexpr, RATE: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dh = dz @ Wᵀ, 0 where the layer's input h is, in the first programs; in the others the update of another layer."""
    across: tl.constexpr = (K + BLOCK_N - 1) // BLOCK_N
    own = tl.cdiv(M, BLOCK_M) * across
    if tl.program_id(0) < own:
        rows = (tl.program_id(0) // across) * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = (tl.program_id(0) % across) * BLOCK_N + tl.arange(0, BLOCK_N)
        here, there = rows < M, columns < K
        n = tl.arange(0, BLOCK_K)
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, N, BLOCK_K):
            inside = start + n < N
            d = tl.load(
                dz + rows.to(tl.int64)[:, None] * N + (start + n)[None, :],
                mask=here[:, None] & inside[None, :],
                other=0.0,
            )
            w = tl.load(
                W + columns.to(tl.int64)[:, None] * N + (start + n)[None, :],
                mask=there[:, None] & inside[None, :],
                other=0.0,
            )
            acc = multiply(d, tl.trans(w.to(d.dtype)), acc, PRECISION)
        at, mask = rows.to(tl.int64)[:, None] * K + columns[None, :], here[:, None] & there[None, :]
        if RELU:
            acc = tl.where(tl.load(h + at, mask=mask, other=0.0) > 0, acc, 0.0)
        tl.store(dh + at, acc, mask=mask)
    else:
        update_tile(tl.program_id(0) - own, M, h2, dz2, W2, b2, dW, db, K2, N2, RATE, PRECISION, BLOCK_N, BLOCK_K)


@triton.jit(do_not_specialize=["M"])
def update_layer(
    M, h2, dz2, W2, b2, W2_new, b2_new, dW, db,
    K2: tl.constexpr, N2: tl.constexpr, RATE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The update of a layer alone."""
    update_tile(tl.program_id(0), M, h2, dz2, W2, b2, dW, db, K2, N2, RATE, PRECISION, BLOCK_N, BLOCK_K)


@triton.jit
def stacked(
    dense, ids, tables, offsets, sample, F: tl.constexpr, D: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """The sample's vectors (BLOCK_F, BLOCK_D), the dense one first, in the dtype of the case."""
    v, d = tl.arange(0, BLOCK_F), tl.arange(0, BLOCK_D)
    feature = tl.minimum(tl.maximum(v - 1, 0), F - 1)
    rows = hashed(tl.load(ids + sample * F + feature), feature, offsets, F)
    sparse = (v > 0) & (v <= F)
    looked_up = tl.load(tables + rows[:, None] * D + d[None, :], mask=sparse[:, None] & (d < D)[None, :], other=0.0)
    first = tl.load(dense + sample * D + d, mask=d < D, other=0.0)
    return tl.where((v == 0)[:, None], first[None, :], looked_up.to(first.dtype))


@triton.jit
def cross(
    dense, ids, tables, offsets, y,
    F: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A sample's dense vector and the dots of its vectors, the lower triangle row by row."""
    sample = tl.program_id(0).to(tl.int64)
    x = stacked(dense, ids, tables, offsets, sample, F, D, BLOCK_F, BLOCK_D)
    products = multiply(x, tl.trans(x), tl.zeros([BLOCK_F, BLOCK_F], tl.float32), PRECISION)
    i, j, d = tl.arange(0, BLOCK_F)[:, None], tl.arange(0, BLOCK_F)[None, :], tl.arange(0, BLOCK_D)
    row = y + sample * (D + F * (F + 1) // 2)
    tl.store(row + d, tl.load(dense + sample * D + d, mask=d < D), mask=d < D)
    tl.store(row + D + i * (i - 1) // 2 + j, products, mask=(j < i) & (i <= F))


@triton.jit
def uncross(
    dense, ids, tables, offsets, dy, ddense, dvectors,
    F: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The gradients by a sample's vectors: the gradients of the dots as a symmetric matrix, times the vectors."""
    sample = tl.program_id(0).to(tl.int64)
    x = stacked(dense, ids, tables, offsets, sample, F, D, BLOCK_F, BLOCK_D)
    i, j, d = tl.arange(0, BLOCK_F)[:, None], tl.arange(0, BLOCK_F)[None, :], tl.arange(0, BLOCK_D)
    high, low = tl.maximum(i, j), tl.minimum(i, j)
    row = dy + sample * (D + F * (F + 1) // 2)
    pairs = tl.load(row + D + high * (high - 1) // 2 + low, mask=(high > low) & (high <= F), other=0.0)
    made = multiply(pairs, x, tl.zeros([BLOCK_F, BLOCK_D], tl.float32), PRECISION)
    own = tl.load(row + d, mask=d < D, other=0.0).to(tl.float32)
    made = tl.where(i == 0, made + own[None, :], made)
    inside = (d < D)[None, :]
    tl.store(ddense + sample * D + i * 0 + d[None, :], made, mask=(i == 0) & inside)
    tl.store(dvectors + (sample * F + i - 1) * D + d[None, :], made, mask=(i > 0) & (i <= F) & inside)


@triton.jit(do_not_specialize=["M"])
def head(
    h, W, b, labels, M, dh, dz, losses, K: tl.constexpr, RELU: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """The logit of some rows, its loss and its gradient, and the gradient behind the layer below, 0 where its output is."""
    rows, k = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    here, at = rows < M, rows.to(tl.int64)[:, None] * K
    z = tl.zeros([BLOCK_M], tl.float32)
    for start in range(0, K, BLOCK_K):
        inside = start + k < K
        w = tl.load(W + start + k, mask=inside, other=0.0).to(h.dtype.element_ty).to(tl.float32)
        x = tl.load(h + at + (start + k)[None, :], mask=here[:, None] & inside[None, :], other=0.0).to(tl.float32)
        z += tl.sum(x * w[None, :], axis=1)
    z += tl.load(b).to(h.dtype.element_ty).to(tl.float32)
    y = tl.load(labels + rows, mask=here, other=0.0)
    small = tl.exp(-tl.abs(z))
    rest = tl.where(small < 1e-4, small - 0.5 * small * small, tl.log(1 + small))
    loss = tl.where(z > 0, z, 0.0 * z) - z * y + rest
    tl.store(losses + tl.program_id(0), tl.sum(tl.where(here, loss, 0.0), axis=0))
    d = ((tl.where(z >= 0, 1.0, small) / (1 + small) - y) / M).to(dz.dtype.element_ty)
    tl.store(dz + rows, d, mask=here)
    for start in range(0, K, BLOCK_K):
        inside = start + k < K
        w = tl.load(W + start + k, mask=inside, other=0.0).to(h.dtype.element_ty).to(tl.float32)
        mask = here[:, None] & inside[None, :]
        made = d.to(tl.float32)[:, None] * w[None, :]
        if RELU:
            made = tl.where(tl.load(h + at + (start + k)[None, :], mask=mask, other=0.0) > 0, made, 0.0)
        tl.store(dh + at + (start + k)[None, :], made, mask=mask)


@triton.jit(do_not_specialize=["M", "count", "parts"])
def scatter(
    ids, offsets, dvectors, losses, M, count, parts, tables, tables_new, loss,
    F: tl.constexpr, D: tl.constexpr, RATE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The step of the table rows that were looked up, by atomic additions: some come more often than once. The first program sums the loss."""
    lookups, d = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    at = tl.minimum(lookups, count - 1)
    rows = hashed(tl.load(ids + at), at % F, offsets, F)
    mask = (lookups < count)[:, None] & (d < D)[None, :]
    step = -RATE * tl.load(dvectors + at[:, None] * D + d[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.atomic_add(tables + rows[:, None] * D + d[None, :], step, mask=mask, sem="relaxed")
    if tl.program_id(0) == 0:
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, parts, BLOCK):
            part = start + tl.arange(0, BLOCK)
            total += tl.load(losses + part, mask=part < parts, other=0.0)
        tl.store(loss, tl.sum(total, axis=0) / M)
