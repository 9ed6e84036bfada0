"""The choice of threads for kernels on softmax.cuh."""

VECTORS = 8  # that a thread may hold: 32 of the 64 registers that leave room for 1024 threads
ROW_THREADS = 1024


def vectors(columns, case):
    """How many vectors of 16 bytes a row has, its edges left out: at most."""
    return columns * case.itemsize // 16


def fits_in_registers(count):
    """Whether a block's registers hold a row of `count` vectors."""
    return count <= ROW_THREADS * VECTORS


def row_tile(count):
    """Lanes of a row of `count` vectors, and vectors of a lane.

    One each up to a warp, which needs no barrier and takes up to 8 each; 4 lanes at least, to share the edges. Beyond, 4 each,
    whose registers leave room for enough blocks to read while others compute, until that would take more than 512 lanes.
    """
    if count <= 32 * VECTORS:
        lanes = min(32, power_of_two(max(4, count)))
    else:
        lanes = max(128, min(512, power_of_two(-(-count // 4))))
        if count > lanes * VECTORS:
            lanes = ROW_THREADS
    return lanes, max(1, -(-count // lanes))


def power_of_two(n):
    """The least that is not below n."""
    return 1 << (n - 1).bit_length()
