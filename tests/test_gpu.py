"""What only a GPU can show: CUPTI times, launches, sizes beyond the interpreter and beyond 2^31 elements, the reference there."""

from __future__ import annotations

import itertools
import json

import pytest
from delays import delayed_sources
from test_parity import KERNELS, assert_right, cells_of, small_names

import fusebench
from fusebench import discovery, machine
from fusebench.cases import make_case
from fusebench.cli import main
from fusebench.contract import DTYPES, Cell
from fusebench.inputs import make_sets
from fusebench.parity.judge import Judge
from fusebench.timing.cupti import record

pytestmark = pytest.mark.gpu


def build(module, case, variant, device):
    """The call of an implementation with its own config."""
    config = [module.config(case, variant, device)] if hasattr(module, "TUNABLES") else []
    return module.build(case, variant, device, *config)


def on_a_gpu(name, variant, sizes, dtype, implementation="cuda", gpu=0):
    """The call of an implementation that was built while the first GPU was current, inputs on GPU `gpu`, and what it returns
    on the first."""
    from fusebench.backends import torch as backend

    kernel, device = discovery.find_kernels(discovery.roots_of())[name], backend.start("cuda")
    case, module = make_case(kernel, sizes, dtype), discovery.load_implementation(name, implementation)
    (arrays,) = make_sets(kernel.mathematics, case, 0, 1)
    arguments = [backend.put(a, device) for a in arrays.values()]
    arguments += getattr(module, "prepare", lambda *_: ())(case, variant, *arguments)
    call = build(module, case, variant, device)
    return call, [a.to(f"cuda:{gpu}") for a in arguments], call(*arguments)


# one without and one with tensor maps, three of several launches, of which one is handed its outputs; in Triton one kernel and two
LAUNCHED = [
    ("fused_mlp", "default", "bottom_2048", "bfloat16"),
    ("add_relu", "default", "odd", "float32"),
    ("shcsa", "padded_attention", "odd", "float16"),
    ("splacc", "two_accumulators", "batch", "bfloat16"),
    ("lola", "two_launches", "batch", "float16"),
    ("launch", "default", "floor", "float32", "triton"),
    ("geglu", "two_accumulators", "odd", "bfloat16", "triton"),
    ("shcsa", "padded_attention", "odd", "float16", "triton"),
]


@pytest.mark.parametrize("cell", LAUNCHED, ids=lambda cell: "-".join((cell[0], *cell[4:])))
def test_a_launch_is_queued_on_torchs_current_stream(cell):
    import torch

    call, arguments, expected = on_a_gpu(*cell)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(*arguments)  # memory of this stream
        torch.cuda._sleep(200_000_000)  # a tenth of a second
        y = call(*arguments)
        done = torch.cuda.Event()
        done.record()
    assert not done.query(), "it waits behind what the stream has to do"
    torch.cuda.synchronize()
    assert torch.equal(y, expected)


@pytest.mark.parametrize("cell", LAUNCHED, ids=lambda cell: "-".join((cell[0], *cell[4:])))
def test_a_launch_is_captured_in_a_graph(cell):
    import torch

    call, arguments, expected = on_a_gpu(*cell)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call(*arguments)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, expected)


@pytest.mark.parametrize("cell", LAUNCHED, ids=lambda cell: "-".join((cell[0], *cell[4:])))
def test_threads_launch_at_once(cell):
    """Each on a stream of its own. A thread that has not used the GPU yet has no context."""
    import threading

    import torch

    call, arguments, expected = on_a_gpu(*cell)
    torch.cuda.synchronize()
    found = []

    def calls():
        with torch.cuda.stream(torch.cuda.Stream()):
            outputs = [call(*arguments) for _ in range(50)]
            torch.cuda.current_stream().synchronize()
            found.append(all(torch.equal(y, expected) for y in outputs))

    bare = []
    threads = [
        threading.Thread(target=lambda: bare.append(call(*arguments))),
        *(threading.Thread(target=calls) for _ in range(4)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert found == [True] * 4 and torch.equal(bare[0], expected)


def test_tensor_maps_follow_tensors_to_other_addresses():
    """Seventy of them, and memory that is used again for other values."""
    import torch

    call, (A, B, *prepared), expected = on_a_gpu("splacc", "two_accumulators", "batch", "bfloat16")
    alive = [A.clone() for _ in range(70)]
    assert all(torch.equal(call(own, B, *prepared), expected) for own in (*alive, *alive))
    zero = torch.zeros_like(expected)
    for _ in range(3):
        own = A.clone()
        assert torch.equal(call(own, B, *prepared), expected)
        own.zero_()
        assert torch.equal(call(own, B, *prepared), zero)
        del own


@pytest.mark.parametrize("implementation", ["cuda", "triton"])
def test_wrong_arguments_are_refused_before_a_launch(implementation):
    call, (x, b), expected = on_a_gpu("add_relu", "default", "odd", "float32", implementation)
    for arguments, said in (((x.cpu(), b), "on the CPU"), ((x, b.cpu()), "argument 1 is on cpu"), ((x.T, b), "not contiguous"), ((x, 1), "argument 1 is 1; expected a tensor")):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            call(*arguments)
    assert call(x, b).equal(expected), "and the next call is right again"


@pytest.mark.parametrize("cell", LAUNCHED, ids=lambda cell: "-".join((cell[0], *cell[4:])))
def test_a_launch_runs_where_its_tensors_are(cell):
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    call, arguments, expected = on_a_gpu(*cell, gpu=1)
    y = call(*arguments)
    assert y.device.index == 1 and torch.cuda.current_device() == 0
    assert torch.equal(y.cpu(), expected.cpu())


CHAINED = [
    ("lola", "two_launches", "batch", "float16"),
    ("geglu", "two_accumulators", "odd", "bfloat16"),
    ("lora_linear", "two_launches", "odd", "float32"),
    ("fused_mlp", "default", "bottom_2048", "bfloat16"),
    ("shcsa", "padded_softmax", "odd", "float16"),
    ("dlrm", "modulus", "main", "bfloat16"),
    ("shcsa", "padded_softmax_v", "odd", "float16", "triton"),
    ("dlrm", "modulus_split", "main", "float32", "triton"),
]


@pytest.mark.parametrize("cell", CHAINED, ids=lambda cell: "-".join((cell[0], *cell[4:])))
def test_calls_of_several_launches_have_one_allocation_beside_their_output(cell):
    """And return the same bits as the first call, which was not put together yet, wherever their tensors lie."""
    import torch

    call, arguments, expected = on_a_gpu(*cell)
    allocations = lambda: torch.cuda.memory_stats()["allocation.all.allocated"]  # noqa: E731
    for _ in range(3):
        arguments = [argument.clone() for argument in arguments]
        before = allocations()
        y = call(*arguments)
        assert allocations() - before <= 2 and torch.equal(y, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_fused_kernels_make_the_launches_that_kernel_py_declares(kernels, run_cells, name, dtype):
    odd = next(n for n in small_names(kernels[name]) if n.startswith("odd"))
    fused = {i.name for i in kernels[name].implementations.values() if i.fused}
    assert fused, "no implementation declares FUSED"
    cells = [c for c in cells_of(kernels[name], [odd], [dtype]) if c.implementation in fused]
    records = run_cells(cells, time_s=0.02)
    assert_right(records)
    for r in (r for r in records if r.status == "ok"):
        expected = kernels[name].mathematics.launches_of(r.cell.variant, r.case)
        assert r.timing.launches in expected, (r.label, r.timing.kernels)
        assert r.timing.timer == "cupti" and r.timing.busy_median <= r.timing.median * 1.0001
        assert r.timing.host_median > 0 and r.device.driver


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("layout", ["kn", "nk"])
def test_large_and_odd_sizes_are_right(kernels, run_cells, dtype, precision, layout):
    if dtype != "float32" and precision == "tf32":
        pytest.skip("16-bit products have one precision")
    labels = [(n, v) for n in ("triton", "cuda") for v in kernels["lola"].implementations[n].variants]
    labels = [*(label for label in labels if label[1] != "batched_row"), ("jax_triton", "multirow_ws")]
    cells = []
    for sizes in ("batch", {"M": 515, "K": 1031, "N": 2053}, {"M": 1, "K": 4099, "N": 1025}):
        case = make_case(kernels["lola"], sizes, dtype, precision, {"w_layout": layout})
        cells += [Cell(case, name, variant) for name, variant in labels]
    assert_right(run_cells(cells))


WIDE = {"KERNEL": "warpgroup", "BLOCK_M": 128, "BLOCK_N": 256, "num_stages": 3}
SCHEDULED = [  # a last round of few tiles, of many, and fewer tiles than blocks, or slabs; rows of whole vectors and others
    (name, {"M": M, "K": K, "N": N, **more}, {f"{launch}{tunable}": value for tunable, value in config.items()})
    for name, launch, more in (("lola", "", {}), ("lora_linear", "up_", {"R": 17}), ("splacc", "", {}), ("geglu", "", {}))
    for M, K, N, cluster in ((2049, 520, 4104, 1), (1034, 4096, 2048, 2), (257, 131, 520, 1), (1025, 2049, 2056, 2))
    for config in (WIDE | {"CLUSTER": cluster, "SCHEDULE": schedule} for schedule in ("stream_k", "strips"))
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["lola", "lora_linear", "splacc", "geglu"])
def test_tiles_that_blocks_share_and_strips_are_right(kernels, run_cells, name, dtype):
    """Whatever block is late: the same bits in every call."""
    cells = [
        Cell(make_case(kernels[name], sizes, dtype), "cuda", "two_launches", config=config)
        for other, sizes, config in SCHEDULED
        if other == name
    ]
    records = run_cells(cells)
    assert_right(records)
    assert not any(r.parity.nondeterministic for r in records if r.status == "ok")


@pytest.mark.parametrize(("dtype", "precision"), [*((dtype, "ieee") for dtype in DTYPES), ("float32", "tf32")])
@pytest.mark.parametrize("layout", ["kn", "nk"])
def test_adapters_of_any_rank_are_right(kernels, run_cells, dtype, precision, layout):
    """Ranks that a copy of the adapter's slab does not end with, few and many rows of x @ A, and both modes."""
    sizes = [
        (300, 1000, 1000, 13),
        (2049, 4104, 520, 17),
        (130, 64, 256, 1),
        (513, 4096, 512, 100),
        (128, 2056, 264, 64),
    ]
    cells = [
        Cell(make_case(kernels["lora_linear"], dict(zip("MKNR", own, strict=True)), dtype, precision, {"w_layout": layout}, mode), "cuda", "two_launches")
        for own in sizes for mode in ("forward", "forward_backward")
    ]  # fmt: skip
    assert_right(run_cells(cells))


@pytest.mark.parametrize("dtype", DTYPES)
def test_mlps_of_the_published_widths_are_right(kernels, run_cells, dtype):
    """Layers of several passes, and clusters of 2, 4 and 8 blocks: no small case has them."""
    names = ("bottom", "bottom_2048", "top", "synthetic_2048", "wide")
    cases = [make_case(kernels["fused_mlp"], name, dtype) for name in names]
    assert_right(run_cells([Cell(case, "cuda", "default") for case in cases]))


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_mlps_in_registers_are_right_where_no_tile_divides_them(kernels, run_cells, dtype):
    widths = (
        {"LAYERS": 4, "N0": 13, "N1": 520, "N2": 248, "N3": 56, "N4": 17},
        {"LAYERS": 3, "N0": 40, "N1": 392, "N2": 120, "N3": 3, "N4": 1},
        *({"LAYERS": 3, "N0": n, "N1": 392, "N2": 248, "N3": 1, "N4": 1} for n in (367, 370, 380)),
    )
    cells = []
    for sizes in widths:
        for M, rows, cluster in ((999, 64, 4), (3001, 64, 2), (17001, 128, 2)):
            config = {"KERNEL": "warpgroup", "BLOCK_M": rows, "BLOCK_N": 128, "CLUSTER": cluster, "num_stages": 2}
            case = make_case(kernels["fused_mlp"], {"M": M} | sizes, dtype)
            cells.append(Cell(case, "cuda", "default", config=config))
    # three layers, and a fourth behind them
    before = {"LAYERS": 4, "N0": 100, "N1": 400, "N2": 200, "N3": 80, "N4": 10}
    for M, rows, layout in itertools.product((999, 17001), (64, 128), ("kn", "nk")):
        config = {"KERNEL": "three_and_one", "BLOCK_M": rows, "BLOCK_N": 128, "CLUSTER": 2, "num_stages": 3}
        case = make_case(kernels["fused_mlp"], {"M": M} | before, dtype, options={"w_layout": layout})
        cells.append(Cell(case, "cuda", "default", config=config))
    assert_right(run_cells(cells))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_layers_of_mlps_are_right_where_no_tile_divides_them(kernels, run_cells, dtype, precision):
    """Hidden layers of no whole vectors, last ones of less than a tile, few rows and many, and both layouts."""
    if dtype != "float32" and precision == "tf32":
        pytest.skip("tf32 is of float32")
    widths = (367, 1001, 515, 130), (1024, 1020, 258), (72, 77, 40, 33, 5), (13, 1001, 515, 1)
    cells = []
    for sizes, M, layout in itertools.product(widths, (3, 100, 2063), ("kn", "nk")):
        padded = dict(zip(("N0", "N1", "N2", "N3", "N4"), (*sizes, 1, 1), strict=False))
        options = {"w_layout": layout, "last": "relu"}
        case = make_case(kernels["fused_mlp"], {"M": M, "LAYERS": len(sizes) - 1} | padded, dtype, precision, options)
        cells.append(Cell(case, "cuda", "default", config={"KERNEL": "layers"}))
    assert_right(run_cells(cells))


def test_mlps_of_few_rows_are_right_where_no_tile_divides_them(kernels, run_cells):
    """Rows and columns that no tile divides, layers of which some blocks have no part, one layer alone, and both layouts."""
    widths = (13, 512, 256, 64, 16), (5, 7, 150, 3, 65), (100, 1, 200, 2, 300), (13, 131, 67, 5), (70, 41)
    tiles = (8, 64, 8), (16, 128, 8), (4, 128, 4)
    cells = []
    for sizes, (rows, columns, cluster), layout in itertools.product(widths, tiles, ("kn", "nk")):
        padded = dict(zip(("N0", "N1", "N2", "N3", "N4"), (*sizes, 1, 1, 1), strict=False))
        options = {"w_layout": layout, "last": "sigmoid"}
        case = make_case(kernels["fused_mlp"], {"M": 37, "LAYERS": len(sizes) - 1} | padded, options=options)
        config = {"KERNEL": "few_rows", "BLOCK_M": rows, "BLOCK_N": columns, "CLUSTER": cluster, "num_stages": 4}
        cells.append(Cell(case, "cuda", "default", config=config))
    assert_right(run_cells(cells))


@pytest.mark.parametrize(
    ("name", "variant", "sizes", "dtype"),
    [
        ("fused_mlp", "default", "odd", "float32"),  # 4 blocks, one of which has no columns
        ("fused_mlp", "default", "bottom", "bfloat16"),  # 8 blocks
        ("fused_mlp", "default", "bottom", "float32"),  # 8 blocks, which wait for bytes and not for each other
        ("fused_mlp", "default", "synthetic_2048", "bfloat16"),  # 4 blocks, tensor cores
        ("softmax", "cluster", "long", "float32"),
        ("softmax", "cluster", "aligned", "bfloat16"),
        ("padded_softmax_v", "cluster", "published", "float32"),  # blocks that read what others leave
        ("splacc", "two_accumulators", "batch", "bfloat16"),  # slabs that the copy engine brings to both blocks
        ("geglu", "two_accumulators", "batch", "bfloat16"),
        ("lola", "two_launches", "batch", "bfloat16"),
    ],
)
def test_blocks_of_a_cluster_may_be_out_of_step(kernels, tmp_path, monkeypatch, name, variant, sizes, dtype):
    from fusebench.backends import torch as backend

    device, case = backend.start("cuda"), make_case(kernels[name], sizes, dtype)
    if device.capability < (9, 0):
        pytest.skip("clusters need compute capability 9.0")
    backend.configure("ieee")
    module = discovery.load_implementation(name, "cuda")
    # two sets in turn: what the call before has left in shared memory must not pass for this one's
    sets = [
        [backend.put(a, device) for a in arrays.values()] for arrays in make_sets(kernels[name].mathematics, case, 0, 2)
    ]
    sets = [[*s, *getattr(module, "prepare", lambda *_: ())(case, variant, *s)] for s in sets]
    in_step = build(module, case, variant, device)
    monkeypatch.setattr(module, "FILE", delayed_sources(tmp_path) / name / "cuda.cu")
    assert_same(in_step, build(module, case, variant, device), sets)


def assert_same(in_step, delayed, sets, calls=400):
    from fusebench.backends import torch as backend

    expected = [in_step(*s) for s in sets]

    def same(a, b):
        pairs = zip(a, b, strict=True) if isinstance(a, tuple) else [(a, b)]
        return all(backend.same(one, other) for one, other in pairs)

    wrong = sum(not same(delayed(*sets[i % 2]), expected[i % 2]) for i in range(calls))
    assert wrong == 0, f"{wrong} of {calls} calls"


@pytest.mark.parametrize(("D", "rows", "keys"), [(64, 64, 128), (64, 128, 128), (128, 128, 64)])
def test_producers_and_consumers_of_attention_may_be_out_of_step(kernels, tmp_path, monkeypatch, D, rows, keys):
    """Of both launches of its gradients. racecheck says that the consumers' reads of what a producer's warp has stored are not ordered."""
    from fusebench.backends import torch as backend
    from implementations.padded_attention import _cuda_backward

    device = backend.start("cuda")
    if device.capability != (9, 0):
        pytest.skip("warpgroups need compute capability 9.0")
    case = make_case(kernels["padded_attention"], {"B": 2, "H": 12, "T": 1000, "D": D}, "bfloat16", mode="backward")
    config = {"queries_KERNEL": "warpgroup", "queries_BLOCK_M": rows, "queries_BLOCK_N": keys}
    config |= {"tokens_KERNEL": "warpgroup", "tokens_BLOCK_M": rows, "tokens_BLOCK_N": 64}
    sets = make_sets(kernels["padded_attention"].mathematics, case, 0, 2)

    def gradients():
        forward, backward = _cuda_backward.build(case, device, config)
        return lambda *arrays: backward(forward(*arrays[:-1])[1], arrays[-1])

    in_step = gradients()
    monkeypatch.setattr(
        _cuda_backward, "HOPPER", delayed_sources(tmp_path) / "padded_attention" / _cuda_backward.HOPPER.name
    )
    assert_same(in_step, gradients(), [[backend.put(a, device) for a in arrays.values()] for arrays in sets])


@pytest.mark.parametrize("implementation", ["triton", "cuda"])
@pytest.mark.parametrize(("name", "sizes"), [("softmax", (16400, 131072)), ("add_relu", (524291, 4099))])
def test_more_than_2_31_elements(kernels, name, sizes, implementation):
    """The inputs are made on the device, and rows on both sides of element 2^31 are judged as a case of their own."""
    import torch

    from fusebench.backends import torch as backend

    kernel, device = kernels[name], backend.start("cuda")
    first, second = kernel.dimensions
    case = make_case(kernel, {first: sizes[0], second: sizes[1]}, "bfloat16")
    module = discovery.load_implementation(name, implementation)
    skip = getattr(module, "skip", lambda *_: None)
    variant = next(v for v in kernel.implementations[implementation].variants if skip(case, v, device) is None)
    x = torch.randn(sizes, dtype=torch.bfloat16, device="cuda")
    weights = [torch.randn(sizes[1], dtype=torch.bfloat16, device="cuda")] if name == "add_relu" else []
    y = build(module, case, variant, device)(x, *weights)
    crossing = 2**31 // sizes[1]
    rows = [0, crossing - 1, crossing, crossing + 1, sizes[0] - 1]
    few = make_case(kernel, {first: len(rows), second: sizes[1]}, "bfloat16")
    arrays = dict(zip(("x", "b"), [backend.get(x[rows]), *map(backend.get, weights)], strict=False))
    verdict = Judge(kernel.mathematics, few, arrays).judge(
        [backend.get(y[rows])], kernel.implementations[implementation].variants[variant]
    )
    assert verdict.ok, verdict.reason()


def test_all_rows_of_a_large_case_are_seen(kernels, run_cells):
    (r,) = run_cells([Cell(make_case(kernels["lola"], "batch", "bfloat16"), "torch_eager", "default")])
    assert r.status == "ok" and r.parity.first.checked == 1024 * 4096 and not r.parity.first.unseen


def test_flax_and_torch_agree_on_the_clock(kernels, run_cells):
    cells = [Cell(make_case(kernels["launch"], "floor"), name, "default") for name in ("flax", "torch_eager")]
    medians = [r.timing.median for r in run_cells(cells, time_s=0.1)]
    assert max(medians) < 3 * min(medians), "one copy kernel of 4 KB each"


@pytest.mark.parametrize("what", ["copy", "product"])
def test_half_the_work_is_implausible(what):
    """The whole work is plausible, half of it reported as the whole is not."""
    import torch

    if what == "copy":
        arguments = torch.ones(2**28, device="cuda"), torch.empty(2**28, device="cuda")
        halves = [a[: 2**27] for a in arguments]
        work = {"moved_bytes": 2 * arguments[0].nbytes}
        call = torch.Tensor.copy_
    else:
        arguments = [torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        halves = [arguments[0][:, :4096], arguments[1][:4096]]
        work = {"flops": 2 * 8192**3, "moved_bytes": 3 * arguments[0].nbytes}
        call = torch.mm
    whole, half = (fusebench.measure(call, *a, time_s=0.1, **work) for a in (arguments, halves))
    assert whole.status == "ok" and half.status == "implausible", (whole.timing, half.timing)
    assert half.timing.median < half.rates.bound_s < whole.timing.median


def test_yardsticks_lie_below_the_datasheet_s_peaks(capsys):
    assert main(["yardsticks", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    if machine.datasheet(shown["device"]["name"]) is None:
        pytest.skip("no datasheet of this card")
    shares = {name: entry["datasheet_share"] for name, entry in shown["yardsticks"].items() if name != "launch_s"}
    assert all(0.4 < share < 1 for share in shares.values()), shares
    assert "matrix_tflops/float32/tf32" in shares and shown["yardsticks"]["launch_s"]["value"] < 1e-4


def test_a_recorder_that_records_nothing_fails():
    with pytest.raises(RuntimeError, match="CUPTI recorded no kernel"):
        record(lambda: None)
