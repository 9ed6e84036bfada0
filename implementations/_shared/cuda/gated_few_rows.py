"""The launch of gated_few_rows.cuh: dx, dW and db of a layer with a gate, of few rows of 16 bits. `case` is that of Z = x @ W, whose N are all
columns; the tunables are few_… of layer_backward.py."""

from implementations._shared.cuda import layer_backward, linear_gradients
from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, of_launch, prefixed, too_large
from implementations._shared.cuda.matmul import slab
from implementations._shared.gpu import multiprocessors, shared_memory

# Of dy, that each block of dx makes dz of: 60 instructions an element, of which a multiprocessor does four warps' a cycle, are 1.1 µs of so many. A
# launch that makes dz, and for which the next one waits, takes 2 to 3. 1×1024→4096 took an H200 13.2 µs so, 14.8 to 16.8 with that launch;
# 8×1024→1024, twice as many, 10.3, and 9×1024→896 with it 7.9 to 9.4.
ELEMENTS = 4096
ROWS = 8  # in registers of a thread of dW, and of a fragment of dz
WARPS, TILE_ROWS = 8, 16  # that share dz @ W; as their sums lie in shared memory
TILE_COLUMNS, STAGES = tuple(tile.columns for tile in layer_backward.FEW_TILES if tile.rows == TILE_ROWS), (4, 3, 2, 1)
COLUMNS, LEAST_ROWS, MOST_ROWS, SECTOR = 128, 32, 512, 16  # of dW of a block; elements of a sector of memory


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
    """Shared memory of a block: the warps' slabs of W, their sums, and dz; or a float for each row and each column of dW
    that it multiplies, with one in eight to spare of columns."""
    M, N = case.size("M", "N")
    slabs = -(-N // (slab(case) * WARPS)) * WARPS
    dz = M * (slabs * slab(case) + 16 // case.itemsize) * case.itemsize
    inputs = WARPS * (stages * columns * 128 + M * (columns + 8) * 4) + dz
    return max(inputs, M * ((COLUMNS + SECTOR) * 9 // 8 + MOST_ROWS) * 4)


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
    """Rows of dW: so many that all blocks, of which `inputs` make dx, run at once, two on each multiprocessor."""
    rows, columns = linear_gradients.weights_shape(case)
    down = max(1, (2 * multiprocessors(device) - inputs) // strips(columns))
    return min(max(-(-rows // down), LEAST_ROWS), MOST_ROWS)


def strips(columns):
    """Blocks side by side that have all columns of rows of dW, which begin up to a sector before theirs where rows are no whole sectors."""
    return -(-(columns + (SECTOR - 1 if columns % SECTOR else 0)) // COLUMNS)


def launch(file, case, device, config, gate):
    """Of Z, dy, W, x, dx, dW and db."""
    own, (rows, columns) = of_launch("few", config), linear_gradients.weights_shape(case)
    whole, (M, K, N), dtype = layer_backward.whole_rows(case, device), case.size("M", "K", "N"), case.dtype
    halves = N // 2 % (slab(case) * WARPS) == 0
    arguments = case.options["w_layout"] == "kn", halves, M, own["BLOCK_N"], WARPS, own["num_stages"]
    program = instance(file, "gated_few_rows", TYPES[dtype], gate, *arguments)
    inputs = -(-K // own["BLOCK_N"])
    each = rows_of_a_block(case, inputs, device)
    grid = inputs + -(-rows // each) * strips(columns)
    memory = _bytes(case, own["BLOCK_N"], own["num_stages"])
    sizes = K, N // 2, *whole.size("K", "N"), each
    return Launch(program, grid, WARPS * 32, memory, dtypes=(dtype,) * 7, sizes=sizes)


def gradients(launch, case, columns):
    """A function of Z, dy, W and x, which returns dx, dW and, where sums of `columns` are wanted, db."""
    made = {4: case.size("M", "K"), 5: linear_gradients.weights_shape(case)} | (
        {6: (case.sizes["N"],)} if columns else {}
    )
    return launch.returning(made, absent=() if columns else (6,))
