"""dlrm_train in Triton: the kernels of a step in place, and what a call launches.

    forward    a launch for each layer; `cross` between the perceptrons, which hashes, looks up and multiplies the vectors of a sample;
               `head`: the prediction's last layer, the loss and the gradient behind the layer below, whose rows it has at hand
    backward   a launch for each gradient behind a layer. Beside it in the same launch stands the update of the layer above, whose weights
               nobody needs any more: gradients, sums of biases and the step, which are far apart from each other otherwise
               `uncross` makes the gradients of a sample's vectors from its table rows, which `scatter` subtracts at the end

Each weight is read in float32 and cast where it is multiplied; what goes from launch to launch has the dtype of the case. Tiles have 32 rows at most:
one warpgroup computes wrongly with rows that start anywhere (fused_mlp), as those of 367 columns do.
"""

from itertools import pairwise

import triton
import triton.language as tl

from implementations._shared import dlrm
from implementations._shared.triton.launch import TYPES, launch_with
from implementations._shared.triton.limits import misfit
from implementations._shared.triton.matmul import multiply
from implementations.dlrm_train import _step

VARIANT = "modulus_in_place"
TUNABLES = {
    "modulus_in_place": {"BLOCK_M": (16, 32), "BLOCK_N": (16, 32, 64), "BLOCK_K": (32, 64, 128), "num_warps": (1, 2, 4), "num_stages": (1, 2, 3, 4)},
}  # fmt: skip
MOST_VECTORS, MOST_VALUES = 64, 128  # of a sample in one tile
LOOKUPS = 32  # of a program of `scatter`


def skip(case, variant, device):
    """Why Triton cannot run this cell, or None."""
    if reason := _step.skip(case, variant, device):
        return reason
    F, D = case.size("F", "D")
    if case.options["interaction"] == "outer":
        return "written for option.interaction=dot alone"
    if F + 1 > MOST_VECTORS or D > 2 * MOST_VALUES:
        return f"a sample's vectors are one tile: {MOST_VECTORS} of {2 * MOST_VALUES} values at most"
    return None


def config(case, variant, device):
    """The tunables: small tiles, because a batch of 128 has few of them."""
    large = case.sizes["M"] > 1024 or device.type == "cpu"
    return {
        "BLOCK_M": 32 if large else 16,
        "BLOCK_N": 64 if large else 32,
        "BLOCK_K": 64,
        "num_warps": 4 if large else 2,
        "num_stages": 3,
    }


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    sides = [config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")]
    shared = config["num_stages"] * 4 * (sides[0] + sides[1]) * sides[2]
    return misfit(device, config, ("BLOCK_M", "BLOCK_N", "BLOCK_K"), max(sides[0], sides[2]) * sides[1], shared)


def layers_of(case):
    """(K, N) of each layer, and how many of them are the dense perceptron's."""
    found = []
    for part in (dlrm.dense_case(case), dlrm.prediction_case(case)):
        widths = part.size("N0", "N1", "N2", "N3", "N4")[: part.sizes["LAYERS"] + 1]
        found += list(pairwise(widths))
    return found, case.sizes["LAYERS"]


def named_launches(case, variant, device, config):
    """The launches of a step by name: `layer0` …, `cross`, `head`, `back3` … (of the layer whose input it goes through), `uncross`, `update1` …,
    `scatter`, in their order."""
    (M, F, D), (layers, bottom) = case.size("M", "F", "D"), layers_of(case)
    pointer, made, last = TYPES[case.dtype], {}, len(layers) - 1
    BLOCK_M, BLOCK_N = config["BLOCK_M"], config["BLOCK_N"]
    precision = {"PRECISION": case.precision}

    def layer(n):
        K, N = layers[n]
        signature = {"h": pointer, "W": "*fp32", "b": "*fp32", "M": "i32", "y": pointer}
        options = {"K": K, "N": N, "RELU": n not in (bottom - 1, last), **precision}
        grid = (triton.cdiv(M, BLOCK_M) * triton.cdiv(N, BLOCK_N),)
        made[f"layer{n}"] = launch_with(config, forward_layer, signature, options, grid)

    def back(n, updated):
        K, N = layers[n]
        signature = {"h": pointer, "W": "*fp32", "dz": pointer, "M": "i32", "dh": pointer} | update_signature(pointer)
        other = layers[updated]
        options = {"K": K, "N": N, "RELU": n not in (0, bottom), "K2": other[0], "N2": other[1], **precision}
        options |= {"RATE": _step.LEARNING_RATE}
        tiles = triton.cdiv(M, BLOCK_M) * triton.cdiv(K, BLOCK_N) + update_tiles(other)
        made[f"back{n}"] = launch_with(config, backward_layer, signature, options, (tiles,))

    def update(n):
        K, N = layers[n]
        signature = {"M": "i32"} | update_signature(pointer)
        options = {"K2": K, "N2": N, **precision, "RATE": _step.LEARNING_RATE}
        made[f"update{n}"] = launch_with(config, update_layer, signature, options, (update_tiles(layers[n]),))

    def update_tiles(sizes):
        return triton.cdiv(sizes[0], BLOCK_N) * triton.cdiv(sizes[1], BLOCK_N)

    def update_signature(pointer):
        return {"h2": pointer, "dz2": pointer, "W2": "*fp32", "b2": "*fp32", "dW": "*fp32", "db": "*fp32"}

    vectors = {
        "F": F,
        "D": D,
        "BLOCK_F": max(16, triton.next_power_of_2(F + 1)),
        "BLOCK_D": max(16, triton.next_power_of_2(D)),
    }
    one = {"num_warps": 1 if vectors["BLOCK_F"] * vectors["BLOCK_D"] <= 1024 else 4}
    ids = {"ids": "*i64", "tables": "*fp32", "offsets": "*i64"}
    for n in range(bottom):
        layer(n)
    made["cross"] = launch_with(one, cross, {"dense": pointer, **ids, "y": pointer}, {**vectors, **precision}, (M,))
    for n in range(bottom, last):
        layer(n)
    K = layers[last][0]
    head_options = {
        "K": K,
        "RELU": last > bottom,
        "BLOCK_M": 4,
        "BLOCK_K": min(512, max(16, triton.next_power_of_2(K))),
    }
    made["head"] = launch_with(
        {"num_warps": 4}, head,
        {"h": pointer, "W": "*fp32", "b": "*fp32", "labels": "*fp32", "M": "i32", "dh": pointer, "dz": pointer, "losses": "*fp32"},
        head_options, (triton.cdiv(M, 4),),
    )  # fmt: skip
    pending = [last]
    for n in range(last - 1, bottom - 1, -1):
        back(n, pending.pop(0))
        pending.append(n)
    made["uncross"] = launch_with(
        one, uncross, {"dense": pointer, **ids, "dy": pointer, "ddense": pointer, "dvectors": pointer}, {**vectors, **precision}, (M,)
    )  # fmt: skip
    for n in range(bottom - 1, 0, -1):
        back(n, pending.pop(0))
        pending.append(n)
    for n in (*pending, 0) if last else (0,):
        update(n)
    made["scatter"] = launch_with(
        {"num_warps": 4}, scatter,
        {"ids": "*i64", "offsets": "*i64", "dvectors": pointer, "losses": "*fp32", "M": "i32", "count": "i32", "parts": "i32", "tables": "*fp32",
         "loss": "*fp32"},
        {"F": F, "D": D, "RATE": _step.LEARNING_RATE, "BLOCK": LOOKUPS, "BLOCK_D": vectors["BLOCK_D"]}, (triton.cdiv(M * F, LOOKUPS),),
    )  # fmt: skip
    return made


def launches(case, variant, device, config):
    """The launches of a call, in order."""
    return tuple(named_launches(case, variant, device, config).values())


def run_step(case, given, labels, launched, empty):
    """The outputs of a call. `launched` are the launches by name; `empty(shape, dtype)` is memory, of the case's dtype by None."""
    (M, F, D), (sizes, bottom) = case.size("M", "F", "D"), layers_of(case)
    last, weights = len(sizes) - 1, (*given.bottom, *given.top)
    W, b = weights[::2], weights[1::2]
    dW, db = ([empty(w.shape, "float32") for w in some] for some in (W, b))
    ids, parts = (given.ids, given.tables, given.offsets), triton.cdiv(M, 4)
    h, dz = [None] * len(sizes), [None] * len(sizes)

    def run(name, *arguments):
        launched[name](*arguments)
        return arguments[-1]

    def update(n):
        return h[n], dz[n], W[n], b[n], dW[n], db[n]

    x = given.dense
    for n in range(bottom):
        h[n], x = x, run(f"layer{n}", x, W[n], b[n], M, empty((M, sizes[n][1])))
    dense = x
    x = run("cross", dense, *ids, empty((M, sizes[bottom][0])))
    for n in range(bottom, last):
        h[n], x = x, run(f"layer{n}", x, W[n], b[n], M, empty((M, sizes[n][1])))
    h[last], dz[last] = x, empty((M, 1))
    losses, loss, dh = empty((parts,), "float32"), empty((), "float32"), empty((M, sizes[last][0]))
    launched["head"](x, W[last], b[last], labels, M, dh, dz[last], losses)
    pending = [last]
    for n in range(last - 1, bottom - 1, -1):
        dz[n], dh = dh, empty((M, sizes[n][0]))
        launched[f"back{n}"](h[n], W[n], dz[n], M, dh, *update(pending.pop(0)))
        pending.append(n)
    ddense, dvectors = empty((M, D)), empty((M, F, D))
    launched["uncross"](dense, *ids, dh, ddense, dvectors)
    dz[bottom - 1] = ddense
    for n in range(bottom - 1, 0, -1):
        dz[n - 1] = empty((M, sizes[n][0]))
        launched[f"back{n}"](h[n], W[n], dz[n], M, dz[n - 1], *update(pending.pop(0)))
        pending.append(n)
    for n in (*pending, 0) if last else (0,):
        launched[f"update{n}"](M, *update(n))
    launched["scatter"](given.ids, given.offsets, dvectors, losses, M, M * F, parts, given.tables, loss)
    outputs = [loss, dvectors, given.tables]
    for n in range(len(sizes)):
        outputs += [dW[n], db[n], W[n], b[n]]
    return tuple(outputs)


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
    h, W, dz, M, dh, h2, dz2, W2, b2, dW, db,
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
    M, h2, dz2, W2, b2, dW, db,
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
    ids, offsets, dvectors, losses, M, count, parts, tables, loss,
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
