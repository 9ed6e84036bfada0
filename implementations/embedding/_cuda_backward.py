"""embedding's backward modes in CUDA C++ (cuda_backward.cu).

deterministic   sorts the look-ups by table row, and sums in one order whatever ran first: count, place for each digit, sum, finish.
atomic          atomic additions of what a block has of each row: two launches, three with tables of 16 bits.

Nothing is kept of the forward call: ids are hashed again. The tunables are PART, the look-ups that a block counts and places; CHUNK,
those that a block sums; AHEAD, the rows of dy that a thread asks for at once; and num_warps of a block that sums.
"""

from math import gcd
from pathlib import Path

from fusebench.launchers import Program
from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of
from implementations._shared.gpu import multiprocessors

FILE = Path(__file__).with_name("cuda_backward.cu")
PARTS = (1024, 2048, 4096, 8192, 16384, 32768)
CHUNKS = (128, 256, 512, 1024, 2048)
AHEAD = (2, 4, 8)
RUN = 32  # look-ups that a group of lanes sums, where there are enough
LARGEST_DIGIT = 10  # bits
THREADS = 256  # of a block of count, place, clear and narrow; at most of one that sums
BLOCKS = 8  # of a multiprocessor in clear and narrow
CLEARING = 2  # blocks of a multiprocessor that write zeros beside count and place


def skip(case, device):
    """Why it cannot run the case, or None."""
    M, F, V = case.size("M", "F", "V")
    if device.capability < (8, 0):
        return "needs compute capability 8.0 (bfloat16)"
    return "look-ups and rows are counted in 32 bits" if M * F >= 2**30 or V >= 2**30 else None


def lanes(case):
    """Elements that a thread loads at once, and threads that have a row of dy."""
    D = case.sizes["D"]
    width = gcd(16 // case.itemsize, D)
    return width, min(32, 1 << (D // width - 1).bit_length())


def config(case, variant, device):
    """The largest parts and chunks that leave every multiprocessor two, chunks of `deterministic` with runs of at most RUN."""
    M, F = case.size("M", "F")

    def largest(sizes):
        return next((n for n in reversed(sizes) if F * -(-M // n) >= 2 * multiprocessors(device)), sizes[0])

    if variant == "atomic":
        chunk = largest(CHUNKS)
        return {"CHUNK": chunk, "num_warps": min(8, chunk // 32), "AHEAD": AHEAD[-1]}
    group = lanes(case)[1]
    chunk = largest([n for n in CHUNKS if n * group <= RUN * THREADS])
    num_warps = max(2, min(4, chunk * group // RUN // 32))
    return {"PART": largest(PARTS), "CHUNK": chunk, "num_warps": num_warps, "AHEAD": AHEAD[-1]}


def fits(variant, config):
    """Why a config cannot run, or None."""
    if variant != "atomic" and (reason := not_one_of("PART", config["PART"], PARTS)):
        return reason
    if reason := not_one_of("CHUNK", config["CHUNK"], CHUNKS) or not_one_of("AHEAD", config["AHEAD"], AHEAD):
        return reason
    return not_one_of("num_warps", config["num_warps"], [w for w in (2, 4, 8) if 32 * w <= config["CHUNK"]])


def pieces(case, size):
    """Parts or chunks of so many of a feature's look-ups."""
    return -(-case.sizes["M"] // size)


def digits(case):
    """How many digits a row has, and their bits. Rows are 0 … V, of which V is an id's that is out of range."""
    bits = case.sizes["V"].bit_length()
    passes = -(-bits // LARGEST_DIGIT)
    return passes, max(THREADS.bit_length() - 1, -(-bits // passes))


def hashing(case):
    """The variant of mode=forward that hashes as the case says."""
    return "modulus" if case.options["hashing"] == "modulus" else "improved"


def launches(case, variant, device, config):
    """Those of the variant in their order; `place` as often as a row has digits."""
    F, improved = case.sizes["F"], hashing(case) == "improved"
    T, dtype, threads = TYPES[case.dtype], case.dtype, 32 * config["num_warps"]
    width, group = lanes(case)
    tiles, blocks = F * pieces(case, config["CHUNK"]), BLOCKS * multiprocessors(device)
    if variant == "atomic":
        log = config["CHUNK"].bit_length() - 1
        key = "unsigned" if (case.sizes["V"] + 2) << log < 2**32 else "unsigned long long"
        program = instance(FILE, "sum_atomically", key, T, width, group, F, improved, threads, log, config["AHEAD"])
        clear = Launch(Program(FILE, "clear"), blocks, THREADS, dtypes=("float32",))
        add = Launch(program, tiles, threads, dtypes=("int64", "int64", "int32", "int32", dtype, "float32"))
        narrow = Launch(instance(FILE, "narrow", T), blocks, THREADS, dtypes=("float32", dtype))
        return (clear, add) if dtype == "float32" else (clear, add, narrow)
    passes, bits = digits(case)
    sorters = F * pieces(case, config["PART"]) + CLEARING * multiprocessors(device)
    program = instance(FILE, "count", F, improved, bits, config["PART"])
    count = Launch(program, sorters, THREADS, dtypes=("int64", "int64", "int32", "int32", "int64", "int32", dtype))
    program = instance(FILE, "place", F, bits, config["PART"])
    place = Launch(program, sorters, THREADS, dtypes=("int64", "int64", "int32", "int64", dtype))
    shape = T, width, group, F, bits, threads, config["CHUNK"]
    dtypes = "int64", "int64", "int64", dtype, "float32", "float32", dtype
    add = Launch(instance(FILE, "sum", *shape, config["AHEAD"]), tiles, threads, dtypes=dtypes)
    dtypes = "int64", "int64", "int64", "float32", "float32", dtype
    return count, *[place] * passes, add, Launch(instance(FILE, "finish", *shape), tiles + 1, threads, dtypes=dtypes)


def gradient(case, variant, device, config):
    """A function (ids, offsets, keys, positions, tables, dy) → dtables; keys and positions are 0 where there are none."""
    bound = [launch.bind() for launch in launches(case, variant, device, config)]
    return (_atomic if variant == "atomic" else _deterministic)(case, config, bound)


def _deterministic(case, config, bound):
    import torch

    count, *places, add, finish = bound
    M, F, D = case.size("M", "F", "D")
    passes, bits = digits(case)
    counted, tiles = passes * F * pieces(case, config["PART"]) << bits, F * pieces(case, config["CHUNK"])

    def call(ids, offsets, keys, positions, tables, dy):
        a, b = (torch.empty(F * M, dtype=torch.int64, device=dy.device) for _ in range(2))
        counts = torch.empty(counted, dtype=torch.int32, device=dy.device)
        heads, tails = (torch.empty((tiles, D), dtype=torch.float32, device=dy.device) for _ in range(2))
        dtables = torch.empty_like(tables)
        words = dtables.nbytes // 2
        count(ids, offsets, keys, positions, a, counts, dtables, M, passes, words)
        for n, place in enumerate(places):
            place(*((b, a) if n % 2 else (a, b)), counts, offsets, dtables, M, n, passes, words)
        add(a, b, offsets, dy, heads, tails, dtables, M, D)
        finish(a, b, offsets, heads, tails, dtables, M, D)
        return dtables

    return call


def _atomic(case, config, bound):
    import torch

    clear, add, *narrow = bound
    M, D = case.size("M", "D")

    def call(ids, offsets, keys, positions, tables, dy):
        sums = torch.empty_like(tables, dtype=torch.float32)
        clear(sums, sums.numel() * 2)
        add(ids, offsets, keys, positions, dy, sums, M, D)
        if not narrow:
            return sums
        dtables = torch.empty_like(tables)
        narrow[0](sums, dtables, sums.numel())
        return dtables

    return call
