"""What Triton and CUDA kernels choose their tiles and grids by: figures of the device, properties of the case, and how
element-wise kernels share out their work.

Element-wise kernels see x as M * N elements in a row, so that every 16-byte vector is aligned whatever N is. A vector needs
the column of its first element alone, one division, to know its biases.
"""

VECTOR_BYTES = 16
# compute capability → KiB of shared memory that a block may have; 99 on all others
SHARED_KIB = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227}


def shared_memory(device):
    """Bytes of shared memory that a block may have."""
    return SHARED_KIB.get(tuple(device.capability), 99) << 10


def multiprocessors(device):
    """How many there are to share the work out to; an H200's where the device has none, as a CPU that interprets Triton."""
    return device.multiprocessors or 132


def clusters_at_once(device, size, beside=1):
    """How many clusters of `size` blocks, of which a multiprocessor has `beside`, run at once. One lies within a group of multiprocessors (GPC),
    whose number is even, but not a multiple of 4: of 4 blocks an H100 with 132 multiprocessors runs 30; one of 32 tiles in such clusters took
    1.4 times as long as one of 30."""
    whole = beside * multiprocessors(device) // size
    return max(1, whole if size <= 2 else whole * 12 // 13)


def is_ieee(case):
    """Whether products are computed in IEEE float32, which tensor cores do not have."""
    return case.dtype == "float32" and case.precision == "ieee"


def usual_kernel(case):
    """The value of KERNEL of what warps multiply on any GPU: on the float32 units, or the tensor cores."""
    return "simt" if is_ieee(case) else "tensor"


def rows_are_aligned(case, *sizes):
    """Whether rows of each of these many elements begin at multiples of 16 bytes and hold whole vectors."""
    return all(size * case.itemsize % VECTOR_BYTES == 0 for size in sizes)


def reads_padding(case):
    """Whether causal scores (T, T) are asked for before n_padd is there: that is faster by one latency of the memory, about 0.6 µs, in which
    2 MiB arrive, and padding is half of the scores at most."""
    return case.sizes["T"] ** 2 // 2 * case.itemsize <= 2 << 20


def weight_row(case):
    """Elements of a row of W as it is stored: N, or K where W is (N, K). The layout `filled` is (K, N) in rows of whole vectors, as some of
    `prepare` leave it."""
    layout = case.options["w_layout"]
    return filled_up(case, case.sizes["N"]) if layout == "filled" else case.sizes["N" if layout == "kn" else "K"]


def filled_up(case, size):
    """The least number of elements, from `size` on, that are whole vectors."""
    vector = VECTOR_BYTES // case.itemsize
    return -(-size // vector) * vector


def share(elements, itemsize, multiprocessors, inputs=1):
    """(vectors of each input for a thread, threads of a block): the most of both that still give every multiprocessor a
    block.

    A thread requests four vectors in all before it uses the first; 10 blocks of 128 such threads have 80 KiB in flight on a
    multiprocessor, three times what its share of 4 TB/s at a latency of 0.8 µs takes. More would spill in 16 bits, where a
    vector is eight numbers. Few elements are spread thin instead: then the latency of one load is all there is, and nobody
    should wait for a second.
    """
    vectors = -(-elements * itemsize // VECTOR_BYTES)
    choices = ((4 // inputs, 128), (2 // inputs, 128), (1, 128), (1, 64), (1, 32))
    return next((c for c in choices if vectors >= multiprocessors * c[0] * c[1]), choices[-1])
