"""The launch of gated_few_rows.cuh: dx, dW and db of a layer with a gate, of few rows of 16 bits. `case` is that of Z = x @ W, whose N are all
columns; the tunables are few_… of layer_backward.py."""

from implementations._shared.cuda import layer_backward, linear_gradients
from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, of_launch, prefixed, too_large
from implementations._shared.cuda.matmul import slab
from implementations._shared.gpu import multiprocessors, rows_are_aligned, shared_memory

# Each block of dx makes all of dz: 60 instructions an element of dy, of which a multiprocessor does four warps' a cycle, are 2.2 µs of so many. A
# launch that makes dz, and for which the next one waits, takes 2 to 3.
ELEMENTS = 8192
ROWS = 8  # in registers of a thread of dW, and of a fragment of dz
WARPS, TILE_ROWS = 8, 16  # that share dz @ W; as their sums lie in shared memory
TILE_COLUMNS, STAGES = tuple(tile.columns for tile in layer_backward.FEW_TILES if tile.rows == TILE_ROWS), (4, 3, 2, 1)
COLUMNS, LEAST_ROWS, MOST_ROWS = 128, 32, 512  # of dW of a block


def is_possible(case, device):
    """Whether dz is made where it is multiplied."""
    M, N = case.size("M", "N")
    return (
        M <= ROWS
        and M * N <= 2 * ELEMENTS
        and layer_backward.way(case, device) == "few"
        and bool(_stages(case, device))
    )


def config(case, device):
    """The columns of dx that gradients_few_rows would have, and as many slabs on their way as two blocks have shared memory for."""
    columns = layer_backward.config(case, device)["few_BLOCK_N"]
    return prefixed("few", {"BLOCK_M": TILE_ROWS, "BLOCK_N": columns, "num_stages": _stages(case, device)[0]})


def _stages(case, device):
    columns = layer_backward.config(case, device)["few_BLOCK_N"]
    needed = -(-case.sizes["N"] // (slab(case) * WARPS))
    return [s for s in STAGES if s <= needed and _too_large(case, columns, s, device) is None]


def _too_large(case, columns, stages, device):
    return too_large(_bytes(case, columns, stages), device, static=shared_memory(device) // 2)


def _bytes(case, columns, stages):
    """Shared memory of a block: the warps' slabs of W, where their sums lie afterwards, and dz; or a float for each row and each column of dW that it
    multiplies."""
    M, N = case.size("M", "N")
    dz = M * (-(-N // slab(case)) * slab(case) + 16 // case.itemsize) * case.itemsize
    warp = max(stages * columns * 128, TILE_ROWS * (columns + 8) * 4)
    return max(WARPS * warp + dz, M * (COLUMNS + MOST_ROWS) * 4)


def fits(case, device, config):
    """Why a config cannot run, or None."""
    own = of_launch("few", config)
    return (
        not_one_of("few_BLOCK_M", own["BLOCK_M"], (TILE_ROWS,))
        or not_one_of("few_BLOCK_N", own["BLOCK_N"], TILE_COLUMNS)
        or not_one_of("few_num_stages", own["num_stages"], STAGES)
        or _too_large(case, own["BLOCK_N"], own["num_stages"], device)
    )


def rows_of_a_block(case, inputs, device):
    """Rows of dW: so many that all blocks, of which `inputs` make dx, are on the multiprocessors at once, two of them on each."""
    rows, columns = linear_gradients.weights_shape(case)
    across = -(-columns // COLUMNS)
    down = max(1, (2 * multiprocessors(device) - inputs) // across)
    return min(max(-(-rows // down), LEAST_ROWS), MOST_ROWS)


def launch(file, case, device, config, gate):
    """Of Z, dy, W, x, dx, dW and db."""
    own, (rows, columns) = of_launch("few", config), linear_gradients.weights_shape(case)
    whole, (M, K, N), dtype = layer_backward.whole_rows(case, device), case.size("M", "K", "N"), case.dtype
    stored = 16 // case.itemsize if rows_are_aligned(case, columns) else 2 - columns % 2
    arguments = case.options["w_layout"] == "kn", M, 2 - N // 2 % 2, stored, own["BLOCK_N"], WARPS, own["num_stages"]
    program = instance(file, "gated_few_rows", TYPES[dtype], gate, *arguments)
    inputs = -(-K // own["BLOCK_N"])
    each = rows_of_a_block(case, inputs, device)
    grid = inputs + -(-rows // each) * -(-columns // COLUMNS)
    memory = _bytes(case, own["BLOCK_N"], own["num_stages"])
    sizes = K, N // 2, *whole.size("K", "N"), each
    return Launch(program, grid, WARPS * 32, memory, dtypes=(dtype,) * 7, sizes=sizes)


def gradients(launch, case, columns):
    """A function of Z, dy, W and x, which returns dx, dW and, where sums of `columns` are wanted, db."""
    made = {4: case.size("M", "K"), 5: linear_gradients.weights_shape(case)} | (
        {6: (case.sizes["N"],)} if columns else {}
    )
    return launch.returning(made, absent=() if columns else (6,))
