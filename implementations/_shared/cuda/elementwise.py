"""The launch of kernels on elementwise.cuh, and its tunables: UNROLL vectors of each input for a thread, num_warps of a block."""

from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of
from implementations._shared.gpu import VECTOR_BYTES, multiprocessors, rows_are_aligned, share


def config(case, device, inputs=1):
    """The most warps that leave no multiprocessor without a block, for a kernel that reads `inputs` matrices (M, N). One vector a
    thread: of 65536×4096 an H200 took 517 µs with it in float32, 555 with four; 259 and 274 in bfloat16."""
    M, N = case.size("M", "N")
    _, threads = share(M * N, case.itemsize, multiprocessors(device), inputs)
    return {"UNROLL": 1, "num_warps": threads // 32}


def fits(config):
    """Why a config cannot run, or None."""
    return not_one_of("UNROLL", config["UNROLL"], range(1, 9)) or not_one_of(
        "num_warps", config["num_warps"], range(1, 33)
    )


def launch(file, template, case, config, arguments=(), dtypes=()):
    """The launch of `template` of `file`. The template's arguments are the type,
    `arguments`, ALIGNED, UNROLL and BLOCK; the kernel's last ones are those of `Rows`."""
    M, N = case.size("M", "N")
    unroll, block = config["UNROLL"], 32 * config["num_warps"]
    stride = block * VECTOR_BYTES // case.itemsize  # elements from one vector of a thread to its next
    program = instance(file, template, TYPES[case.dtype], *arguments, rows_are_aligned(case, N), unroll, block)
    rows = M * N, N, stride % N, (2**63 - 1) // N
    return Launch(program, -(-M * N // (unroll * stride)), block, dtypes=dtypes, sizes=rows)
