"""The choice of threads for kernels on softmax.cuh, and what belongs to the variants `row` and `online`.

Their tunables are LANES of a row and num_warps of a block.
"""

from implementations._shared.cuda.launch import not_one_of

VECTORS = 8  # that a thread may hold: 32 of the 64 registers that leave room for 1024 threads
ROW_THREADS = 1024
RESIDENT_THREADS = 2048  # of a multiprocessor


def vectors(columns, case):
    """How many vectors of 16 bytes a row has, its edges left out: at most."""
    return columns * case.itemsize // 16


def fits_in_registers(count):
    """Whether a block's registers hold a row of `count` vectors."""
    return count <= ROW_THREADS * VECTORS


def row_lanes(count, rows, multiprocessors):
    """Lanes of a row of `count` vectors, of so many rows.

    One each up to a warp, which needs no barrier and takes up to 8 each; 4 lanes at least, to share the edges. Beyond, 4 each,
    whose registers leave room for enough blocks to read while others compute, until that would take more than 512 lanes. Few rows
    leave room for up to 256: padded_softmax of 1024 rows of 256 vectors took an H200 7.07 µs with 32 lanes, 3.71 with 256.
    """
    if count <= 32 * VECTORS:
        lanes = min(32, power_of_two(max(4, count)))
    else:
        lanes = max(128, min(512, power_of_two(-(-count // 4))))
        if count > lanes * VECTORS:
            lanes = ROW_THREADS
    for more in (128, 256):
        if 32 <= lanes < min(more, count) and rows * more <= multiprocessors * RESIDENT_THREADS:
            lanes = more
    return lanes


def online_warps(count):
    """Warps of a block that reads `count` vectors twice: four a thread. An H200 took with 4, 8, 16 and 32 warps 7.1, 9.4, 14.4 and 34.8 µs
    for 195 vectors, 50.3, 46.5, 45.1 and 87.4 for 1024, and 431, 424, 385 and 332 for 4096."""
    return max(4, min(32, power_of_two(-(-count // 128))))


def power_of_two(n):
    """The least that is not below n."""
    return 1 << (n - 1).bit_length()


def row_fits(columns, config, case):
    """Why the lanes of a config cannot hold a row, or None."""
    lanes, count = config["LANES"], vectors(columns, case)
    if reason := not_one_of("LANES", lanes, (4, 8, 16, 32, 128, 256, 512, 1024)):
        return reason
    if count > lanes * VECTORS:
        return f"a row is {count} vectors of 16 bytes; {lanes} lanes hold {lanes * VECTORS} in registers"
    return None


def row_shape(columns, config, case):
    """Threads of a block of `row`, and vectors of a lane."""
    lanes = config["LANES"]
    return max(128, lanes), max(1, -(-vectors(columns, case) // lanes))
