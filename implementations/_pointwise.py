"""How kernels that do one step for each element share out their work, in Triton and in CUDA.

They see x as M * N elements in a row, so that every 16-byte vector is aligned whatever N is. A vector needs its first column
alone, one division, to know its biases.
"""

VECTOR_BYTES = 16


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


def rows(elements, N, stride):
    """The arguments of _pointwise.cuh's `Rows` in order; a thread's vectors are `stride` elements apart."""
    return elements, N, stride % N, (2**63 - 1) // N
