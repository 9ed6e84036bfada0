"""The tunables of lora_backward.cuh, the backward pass of a linear layer with an adapter: what multiplies, the choice of tiles, and what fits.

`case` is one layer, as in lora.py. KERNEL is `tensor` or, IEEE float32, `simt`, one launch of all products; `warpgroup` or, IEEE float32,
`apart`, one of each; of few rows `few`, one of each, dx by warps that share N, or `whole`, one launch of everything. The others are the tiles
of the two large products, dx and dW. `whole` has one tile, and takes dx_num_stages alone.
"""

import itertools
from dataclasses import replace

from implementations._shared.cuda import matmul, matmul_choice
from implementations._shared.cuda.launch import of_launch, prefixed, too_large
from implementations._shared.gpu import filled_up, is_ieee, multiprocessors, rows_are_aligned, usual_kernel

NARROW_STAGES = 4  # of dA, dB and db
# Rows from which each product has a launch, and in tf32: 300×2048→2048 took an H200 60.3 µs by warpgroups, by `tensor` 58.7, with 1000 rows 83 and 155
MANY_ROWS, MANY_ROWS_IN_TF32 = 256, 320
DEEP = 1024  # N from which warps share that of few rows of float: with 500 128×1048 took 35.5 µs so, in one launch 26.5, 2×215→3523 33.6 and 86.9
MANY_PRODUCTS = 2**30  # the same: fewer are done before three launches have begun
EACH = "warpgroup", "apart", "few"  # values of KERNEL with a launch for each product
WHOLE_ROWS, WHOLE_RANK = 64, 32  # the most that `whole` takes
WHOLE_THREADS, WHOLE_LANES, WHOLE_PART = 384, 256, 32  # as in lora_few_rows.cuh: of them READERS, and ROWS
WHOLE_ODD = 32  # as MOST_ODD there
WHOLE_STAGED = 4 * WHOLE_PART * 72  # elements of the writers' units in shared memory
TILES = tuple(t for t in matmul.TENSOR_TILES if t.columns < 256)  # three kinds of tiles in one kernel


def filled(case):
    """The case with rows of whole vectors, which the products read."""
    sizes = {name: filled_up(case, case.sizes[name]) for name in ("K", "N", "R")}
    return replace(case, sizes={**case.sizes, **sizes})


def filled_products(case, kernel):
    """The cases of the products as launches of their own read them. M, which is the K of dW, lies across the rows of both of its operands, so that
    any will do; but warpgroups have those of tf32 turned, and M filled up."""
    own = matmul.gradients(filled(case))
    dW = own["dW"]
    if turns(case, kernel):
        dW = matmul.turned(dW)
    return own | {"dW": replace(dW, sizes={**dW.sizes, "K": filled_up(case, dW.sizes["K"])})}


def turns(case, kernel):
    """Whether a launch turns the operands of dW."""
    return kernel == "warpgroup" and matmul.operand(case) == "tf32"


def config(case, device):
    """The tunables of both products."""
    # 64 KiB of W are under way on a multiprocessor by two stages; a third cost 3 µs on an H200
    whole = _one_launch(case, device) | {"KERNEL": "whole", "dx_num_stages": 2}
    if fits(case, device, whole) is None:
        return whole
    if few := _few(case, device):
        return few
    M, K, N = case.size("M", "K", "N")
    kernel = "apart" if is_ieee(case) else "warpgroup" if all(_by_warpgroups(case, device)) else None
    many = MANY_ROWS_IN_TF32 if matmul.operand(case) == "tf32" else MANY_ROWS
    if not kernel or many > M or M * K * N < MANY_PRODUCTS:
        return _one_launch(case, device)
    own = filled_products(case, kernel)
    return {"KERNEL": kernel} | _without_kernels(
        {of: matmul_choice.config(own[of], device, _tiles_of_each(case, of, kernel)) for of in own}
    )


def _without_kernels(configs):
    """The tunables of both products, which KERNEL says the kinds of."""
    for of in configs.values():
        del of["KERNEL"]
    return prefixed("dx", configs["dx"]) | prefixed("dW", configs["dW"])


def _few(case, device):
    """Those with KERNEL=few, or None where there are more rows or dx is not deep. It is not chosen for 16 bits: 64×4096→4096 took an H200 45 µs so, by `whole` 40,
    and 128 rows 57, by `tensor` 47."""
    M, N = case.size("M", "N")
    if case.itemsize == 2 or _misfit_of_few(case) or M >= MANY_ROWS or N < DEEP:
        return None
    own = filled_products(case, "few")
    dx = matmul_choice.few_rows_config(own["dx"], device, _tiles_of_each(case, "dx", "few"))
    if dx is None:
        return None
    dW = matmul_choice.config(own["dW"], device, _tiles_of_each(case, "dW", "few"))
    return {"KERNEL": "few"} | _without_kernels({"dx": dx, "dW": dW})


def _tiles_of_each(case, of, kernel):
    """Those of dx or dW beside matmul.SIMT_TILES, where each is a launch: blocks do not share the K of a left operand that is read across its rows."""
    if kernel == "warpgroup":
        return matmul.WARPGROUP_TILES
    if of == "dW":
        return () if is_ieee(case) else matmul.TENSOR_TILES
    if kernel == "few":
        return matmul.FLOAT_FEW_ROWS_TILES if is_ieee(case) else matmul.FEW_ROWS_TILES
    return matmul.SIMT_SPLIT_TILES


def _one_launch(case, device):
    """The tunables of `products`."""
    own = matmul.gradients(case)
    pairs = [(dx, dW) for dx, dW in itertools.product(TILES, TILES) if dx.threads == dW.threads]
    pairs.sort(key=lambda pair: _work(own["dx"], pair[0], device) + _work(own["dW"], pair[1], device))
    # more stages than slabs wait for nothing, and leave room for fewer blocks
    slabs = {f"{of}_num_stages": max(2, -(-own[of].sizes["K"] // matmul.slab(case))) for of in own}
    choices = []
    for (dx, dW), n in itertools.product(pairs, (4, 3, 2)):
        found = {"KERNEL": usual_kernel(case)}
        for of, tile in (("dx", dx), ("dW", dW)):
            found |= prefixed(of, {"BLOCK_M": tile.rows, "BLOCK_N": tile.columns, "CLUSTER": 1})
        choices.append(found | {name: min(n, most) for name, most in slabs.items()})
    return next((c for c in choices if fits(case, device, c) is None), choices[0])


def _by_warpgroups(case, device):
    """Whether warpgroups can multiply each product, of rows of whole vectors."""
    return (matmul.multiplies_by_warpgroups(own, device) for own in filled_products(case, "warpgroup").values())


def _work(product, tile, device):
    """What the busiest multiprocessor has of a product in such tiles."""
    M, K, N = product.size("M", "K", "N")
    return (
        -(-matmul.blocks(tile, M, N) // multiprocessors(device))
        * tile.rows
        * tile.columns
        * tile.cost
        * max(K, matmul.slab(product))
    )


def tile_of(config, of):
    """The tile of dx or dW in a config of one launch, or None where there is no such instance."""
    own = of_launch(of, config)
    return next((t for t in TILES if (t.rows, t.columns, 1) == (own["BLOCK_M"], own["BLOCK_N"], own["CLUSTER"])), None)


def fits(case, device, config):
    """Why a config cannot run, or None."""
    own, kernel = matmul.gradients(case), config["KERNEL"]
    if kernel in EACH:
        if kernel == "warpgroup" and not all(_by_warpgroups(case, device)):
            return matmul.NO_WARPGROUPS
        if kernel == "few" and (reason := _misfit_of_few(case)):
            return reason
        own = filled_products(case, kernel)
        reasons = (
            matmul.fits(own[of], device, of_each(case, of, config), tiles=_tiles_of_each(case, of, kernel))
            for of in own
        )
        return next(filter(None, reasons), None)
    if kernel == "whole":
        return _misfit_of_whole(case, device, config)
    if kernel != usual_kernel(case):
        return "IEEE float32 is multiplied by KERNEL=simt, apart or few, everything else by tensor, warpgroup, few or whole"
    tiles = [tile_of(config, of) for of in own]
    if None in tiles:
        return f"the tiles of dx and dW are {', '.join(f'{t.rows}×{t.columns}' for t in TILES)} in clusters of 1"
    if tiles[0].threads != tiles[1].threads:
        return f"a block of dx has {tiles[0].threads} threads, one of dW {tiles[1].threads}: all have the same"
    if (stages := min(config["dx_num_stages"], config["dW_num_stages"])) < 2:
        return f"num_stages is {stages}: one is read while another is written"
    return too_large(products_bytes(case, config), device)


def of_each(case, of, config):
    """The tunables of dx or dW, where each is a launch."""
    kernel = config["KERNEL"]
    if kernel == "few":
        kernel = "few_rows" if of == "dx" else usual_kernel(case)
    return of_launch(of, config) | {"KERNEL": "simt" if kernel == "apart" else kernel}


def _misfit_of_few(case):
    """Why `few` cannot multiply the case, or None."""
    if case.options["w_layout"] == "nk":
        return "KERNEL=few reads A as W (K, N): w_layout=kn"
    if case.itemsize == 2 and filled(case) != case:
        return "KERNEL=few takes K, N and R of whole vectors of 16 bytes in 16 bits"
    return None


def _is_whole(case):
    """Whether `whole` can make the layer's gradients."""
    M, R = case.size("M", "R")
    return M <= WHOLE_ROWS and R <= WHOLE_RANK and case.itemsize == 2 and case.options["w_layout"] == "kn"


def _misfit_of_whole(case, device, config):
    """Why `whole` cannot run with a config, or None."""
    if not _is_whole(case):
        return f"KERNEL=whole takes at most {WHOLE_ROWS} rows of 16 bits, R up to {WHOLE_RANK}, w_layout=kn"
    if case.sizes["M"] > WHOLE_ODD and filled(case) != case:
        return f"KERNEL=whole takes K, N and R that are no whole vectors of 16 bytes with at most {WHOLE_ODD} rows"
    if (stages := config["dx_num_stages"]) < 2:
        return f"dx_num_stages is {stages}: one is read while another is written"
    usual = _one_launch(case, device) | {"KERNEL": "whole", "dx_num_stages": stages}
    if other := [f"{name}={value}" for name, value in config.items() if value != usual[name]]:
        return f"KERNEL=whole takes dx_num_stages alone, not {other[0]}"
    return too_large(whole_bytes(case, config), device)


def whole_tile(case):
    """Rows and columns of xa that it has, powers of two."""
    M, R = case.size("M", "R")
    return max(16, 1 << (M - 1).bit_length()), max(8, 1 << (R - 1).bit_length())


def whole_bytes(case, config):
    """Shared memory of a block of `whole`: of a stage 128 bytes of each row for each reading warp, and rows of A; and units of dW that it does
    not write in whole vectors."""
    rows, rank = whole_tile(case)
    more = WHOLE_PART * filled(case).sizes["R"] + (0 if rows_are_aligned(case, case.sizes["N"]) else WHOLE_STAGED)
    stage = (WHOLE_PART + rank + rows) * 128 * WHOLE_LANES // 32
    return config["dx_num_stages"] * stage + more * case.itemsize


def rank_columns(case):
    """Columns of the tile of dA: a power of two."""
    return max(16, 1 << (case.sizes["R"] - 1).bit_length())


def narrow_bytes(case, threads):
    return max(NARROW_STAGES * (threads // 2 + rank_columns(case)) * 128, threads * 4)


def products_bytes(case, config):
    """Shared memory of a block of `products`."""
    own = {of: tile_of(config, of) for of in ("dx", "dW")}
    large = (matmul.tile_bytes(tile, 1, config[f"{of}_num_stages"], case.itemsize) for of, tile in own.items())
    return max(*large, narrow_bytes(case, own["dx"].threads))
