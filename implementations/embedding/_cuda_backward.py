"""embedding's backward modes in CUDA C++ (cuda_backward.cu).

deterministic   sorts the look-ups by table row, and sums in one order whatever ran first: sort, sum, finish. SORT=radix sorts in several
                launches: count, and place for each digit. SORT=own is for few samples, in one launch: a block finds the look-ups of its
                rows among all of them.
atomic          atomic additions of what a block has of each row: two launches, three with tables of 16 bits.

Nothing is kept of the forward call: ids are hashed again. The tunables are SORT; CLUSTER, the blocks that sort a feature, and SORTERS, the
threads of each; PART, the look-ups that a block of SORT=radix counts and places; CHUNK, those that a block sums; AHEAD, the rows of dy that
a thread asks for at once; and num_warps of a block that sums. On Hopper sum and finish are made ready before the launch before them ends.
"""

from math import gcd
from pathlib import Path

from fusebench.launchers import Program
from implementations._shared.cuda.launch import TYPES, Launch, instance, not_one_of, too_large
from implementations._shared.gpu import multiprocessors

FILE = Path(__file__).with_name("cuda_backward.cu")
SORTS = ("own", "cluster", "radix")
CLUSTERS = (1, 2, 4, 8)
SORTERS = (256, 512, 1024)
PARTS = (1024, 2048, 4096, 8192, 16384, 32768)
CHUNKS = (128, 256, 512, 1024, 2048)
AHEAD = (2, 4, 8)
RUN = 32  # look-ups that a group of lanes sums, where there are enough
LARGEST_DIGIT = 10  # bits
THREADS = 256  # of a block of count, place, clear and narrow; at most of one that sums
BLOCKS = 8  # of a multiprocessor in clear and narrow
CLEARING = 2  # blocks of a multiprocessor that write zeros beside count and place
SHARE = 512  # look-ups that a block of a cluster has at least, for which another block's barriers are worth it
# where clusters leave multiprocessors idle, the look-ups of a block that take as long as three launches for all of them, 30 µs each
LARGEST_SHARE = 32768
OWNERS = 1024  # threads of a multiprocessor for SORT=own
ZEROS = 8192  # bytes of shared memory from which the copy engine clears


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
    cluster = next((n for n in reversed(CLUSTERS) if n * SHARE <= M), CLUSTERS[0])
    busy = F * cluster >= multiprocessors(device) or M // cluster <= LARGEST_SHARE
    sorters = 1024 if M // cluster > SHARE * 8 else 512 if M // cluster > SHARE * 4 else 256
    clustered = device.capability >= (9, 0) and busy and not too_large(sorter_bytes(case, {"SORTERS": sorters}), device)
    return {
        "SORT": "cluster" if clustered else "radix",
        "CLUSTER": cluster,
        "SORTERS": sorters,
        "PART": largest(PARTS),
        "CHUNK": chunk,
        "num_warps": num_warps,
        "AHEAD": _ahead(F * pieces(case, chunk), 32 * num_warps, device),
    } | _own(M)


def _own(M):
    """What a config has instead for few samples, which one block can sort: with 2048 of 26 features SORT=own took 30.3 µs on an H100,
    SORT=cluster 23.5; with 1024 of D = 64 28.3 and 44.7. On an H200 1000×8 with D = 128 took 18.9 µs with AHEAD=8, 20.4 with 4."""
    chunk = next((n for n in CHUNKS if M <= n <= 1024), None)
    return {"SORT": "own", "CHUNK": chunk, "num_warps": min(16, chunk // 32), "AHEAD": AHEAD[-1]} if chunk else {}


def _ahead(tiles, threads, device):
    """The most rows of dy at once; fewer where only the threads of fewer registers have room for all tiles (`sum`)."""
    room = {ahead: (768 if ahead > 4 else 1024) // threads * multiprocessors(device) for ahead in AHEAD}
    return 4 if room[AHEAD[-1]] < tiles <= room[4] else AHEAD[-1]


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    if variant != "atomic" and (reason := _sort_fits(case, device, config)):
        return reason
    if reason := not_one_of("CHUNK", config["CHUNK"], CHUNKS) or not_one_of("AHEAD", config["AHEAD"], AHEAD):
        return reason
    most = min(16 if config.get("SORT") == "own" else 8, config["CHUNK"] // 32)
    return not_one_of("num_warps", config["num_warps"], [w for w in (2, 4, 8, 16) if w <= most])


def _sort_fits(case, device, config):
    if config["SORT"] == "own" and config["CHUNK"] < case.sizes["M"]:
        return f"SORT=own has all {case.sizes['M']} samples in a CHUNK, not {config['CHUNK']}"
    if config["SORT"] == "cluster" and device.capability < (9, 0):
        return "SORT=cluster needs compute capability 9.0"
    return (
        not_one_of("SORT", config["SORT"], SORTS)
        or not_one_of("CLUSTER", config["CLUSTER"], CLUSTERS)
        or not_one_of("SORTERS", config["SORTERS"], SORTERS)
        or not_one_of("PART", config["PART"], PARTS)
        or (too_large(sorter_bytes(case, config), device) if config["SORT"] == "cluster" else None)
    )


def pieces(case, size):
    """Parts or chunks of so many of a feature's look-ups."""
    return -(-case.sizes["M"] // size)


def digits(case):
    """How many digits a row has, and their bits. Rows are 0 … V, of which V is an id's that is out of range."""
    bits = case.sizes["V"].bit_length()
    passes = -(-bits // LARGEST_DIGIT)
    return passes, max(THREADS.bit_length() - 1, -(-bits // passes))


def sorter_bytes(case, config):
    """Shared memory of a block of SORT=cluster (Sorter): zeros, counts of each warp and of the block, and sums of the warps."""
    warps, bins = config["SORTERS"] // 32, 1 << digits(case)[1]
    return ZEROS + 4 * (warps * bins + bins + warps)


def hashing(case):
    """The variant of mode=forward that hashes as the case says."""
    return "modulus" if case.options["hashing"] == "modulus" else "improved"


def launches(case, variant, device, config):
    """Those of the variant in their order."""
    F, improved = case.sizes["F"], hashing(case) == "improved"
    T, dtype, threads = TYPES[case.dtype], case.dtype, 32 * config["num_warps"]
    width, group = lanes(case)
    tiles, blocks = F * pieces(case, config["CHUNK"]), BLOCKS * multiprocessors(device)
    log = config["CHUNK"].bit_length() - 1
    key = "unsigned" if (case.sizes["V"] + 2) << log < 2**32 else "unsigned long long"
    sorted_by_blocks = key, T, width, group, F, improved, threads, log, config["AHEAD"]
    if variant == "atomic":
        program = instance(FILE, "sum_atomically", *sorted_by_blocks)
        clear = Launch(Program(FILE, "clear"), blocks, THREADS, dtypes=("float32",))
        add = Launch(program, tiles, threads, dtypes=("int64", "int64", "int32", "int32", dtype, "float32"))
        narrow = Launch(instance(FILE, "narrow", T), blocks, THREADS, dtypes=("float32", dtype))
        return (clear, add) if dtype == "float32" else (clear, add, narrow)
    if config["SORT"] == "own":
        program = instance(FILE, "own_rows", *sorted_by_blocks)
        blocks = max(F + 1, OWNERS // threads * multiprocessors(device))
        return (Launch(program, blocks, threads, dtypes=("int64", "int64", "int32", "int32", dtype, dtype)),)
    bits = digits(case)[1]
    shape = T, width, group, F, bits, threads, config["CHUNK"]
    dtypes = "int64", "int64", "int64", dtype, "float32", "float32", dtype
    program = instance(FILE, "sum", *shape, config["AHEAD"])
    add = Launch(program, tiles, threads, dtypes=dtypes, overlaps=True)
    dtypes = "int64", "int64", "int64", "float32", "float32", dtype
    finish = Launch(instance(FILE, "finish", *shape), tiles + 1, threads, dtypes=dtypes, overlaps=True)
    return *_sorting(case, device, config), add, finish


def _sorting(case, device, config):
    """Those that sort; `place` as often as a row has digits."""
    F, improved = case.sizes["F"], hashing(case) == "improved"
    passes, bits = digits(case)
    inputs = "int64", "int64", "int32", "int32"
    if config["SORT"] == "cluster":
        cluster, threads = config["CLUSTER"], config["SORTERS"]
        blocks = max(F * cluster, multiprocessors(device) // cluster * cluster)  # all write zeros
        program = instance(FILE, "sort", F, improved, bits, cluster, threads)
        dtypes = *inputs, "int64", "int64", case.dtype
        return (Launch(program, blocks, threads, sorter_bytes(case, config), dtypes=dtypes),)
    blocks = F * pieces(case, config["PART"]) + CLEARING * multiprocessors(device)
    program = instance(FILE, "count", F, improved, bits, config["PART"])
    count = Launch(program, blocks, THREADS, dtypes=(*inputs, "int64", "int32", case.dtype))
    program = instance(FILE, "place", F, bits, config["PART"])
    place = Launch(program, blocks, THREADS, dtypes=("int64", "int64", "int32", "int64", case.dtype))
    return count, *[place] * passes


def gradient(case, variant, device, config):
    """A function (ids, offsets, keys, positions, tables, dy) → dtables; keys and positions are 0 where there are none."""
    bound = [launch.bind() for launch in launches(case, variant, device, config)]
    of_variant = _atomic if variant == "atomic" else _of_own_rows if config["SORT"] == "own" else _deterministic
    return of_variant(case, config, bound)


def _of_own_rows(case, config, bound):
    import torch

    (own_rows,) = bound
    M, D = case.size("M", "D")

    def call(ids, offsets, keys, positions, tables, dy):
        dtables = torch.empty_like(tables)
        own_rows(ids, offsets, keys, positions, dy, dtables, M, D)
        return dtables

    return call


def _deterministic(case, config, bound):
    import torch

    *sorting, add, finish = bound
    M, F, D = case.size("M", "F", "D")
    tiles = F * pieces(case, config["CHUNK"])
    sort = (_sort_by_cluster if config["SORT"] == "cluster" else _sort_by_digits)(case, config, sorting)

    def call(ids, offsets, keys, positions, tables, dy):
        a, b = (dy.new_empty(F * M, dtype=torch.int64) for _ in range(2))
        heads, tails = (dy.new_empty((tiles, D), dtype=torch.float32) for _ in range(2))
        dtables = torch.empty_like(tables)
        sort(ids, offsets, keys, positions, a, b, dtables)
        add(a, b, offsets, dy, heads, tails, dtables, M, D)
        finish(a, b, offsets, heads, tails, dtables, M, D)
        return dtables

    return call


def _sort_by_cluster(case, config, bound):
    """A function that sorts the items into a or b, and clears dtables."""
    (sort,) = bound
    M = case.sizes["M"]
    return lambda *arrays: sort(*arrays, M, arrays[-1].nbytes)


def _sort_by_digits(case, config, bound):
    """The same in several launches."""
    import torch

    count, *places = bound
    M, F = case.size("M", "F")
    passes, bits = digits(case)
    counted = passes * F * pieces(case, config["PART"]) << bits

    def call(ids, offsets, keys, positions, a, b, dtables):
        counts = ids.new_empty(counted, dtype=torch.int32)
        words = dtables.nbytes // 2
        count(ids, offsets, keys, positions, a, counts, dtables, M, passes, words)
        for n, place in enumerate(places):
            place(*((b, a) if n % 2 else (a, b)), counts, offsets, dtables, M, n, passes, words)

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
