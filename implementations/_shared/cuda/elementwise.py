"""The launch of kernels on elementwise.cuh."""

from implementations._shared.cuda.launch import TYPES, Plan, instance
from implementations._shared.gpu import VECTOR_BYTES, multiprocessors, rows_are_aligned, share


def plan(file, template, case, device, arguments=(), inputs=1):
    """The launch of `template` of `file`, which reads `inputs` matrices (M, N). The template's arguments are the type,
    `arguments`, ALIGNED, UNROLL and BLOCK; the kernel's last ones are those of `Rows`."""
    M, N = case.size("M", "N")
    unroll, block = share(M * N, case.itemsize, multiprocessors(device), inputs)
    stride = block * VECTOR_BYTES // case.itemsize  # elements from one vector of a thread to its next
    program = instance(file, template, TYPES[case.dtype], *arguments, rows_are_aligned(case, N), unroll, block)
    rows = M * N, N, stride % N, (2**63 - 1) // N
    return Plan(program, -(-M * N // (unroll * stride)), block, sizes=rows)
