"""CUDA kernels on a machine without a GPU: the emulator computes what a device computes, and finds what a device may do wrong.

test_parity.py and test_backward.py judge every CUDA implementation in odd sizes; here are those that only Hopper's warpgroups take.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import DEVICE
from turns import in_turns

from fusebench import discovery
from fusebench.backends import torch as torch_backend
from fusebench.backends.cuda import CompileError, Program
from fusebench.cases import make_case
from fusebench.contract import Cell
from fusebench.emulator.device import ARCH, emulated
from fusebench.emulator.machine import Fault
from fusebench.inputs import make_sets
from fusebench.launchers import Launcher

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="is for machines without a GPU")
CALLS = 6  # each chooses anew which warps run first, and whether copies are late


@pytest.fixture(scope="module")
def fixtures(request):
    return request.path.parent / "fixtures" / "emulated"


def called(fixtures, file, name, x, shape, *numbers, grid=1, block=256, kind=torch.float32):
    """The outputs of some calls of a kernel (x, y, numbers)."""
    launch, found = Launcher(Program(fixtures / file, name), grid, block), []
    for _ in range(CALLS):
        y = torch.zeros(shape, dtype=kind)
        launch(torch.from_numpy(x), y, *numbers)
        found.append(y.numpy())
    return found


# Operations, against NumPy


def signed(values):
    return np.asarray(values).astype(np.uint32).view(np.int32)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
def test_integers(fixtures, monkeypatch, arch):
    monkeypatch.setenv(ARCH, arch)
    draw = np.random.default_rng(1)
    a = draw.integers(-(2**31), 2**31, 333).astype(np.int32)
    b = draw.integers(-(2**31), 2**31, 333).astype(np.int32)
    a[:8], b[:8] = (0, -1, 1, -(2**31), 7, -7, 2**31 - 1, 5), (1, 1, -(2**31), 3, 32, 31, 0, -2)
    launch = Launcher(Program(fixtures / "operations.cu", "integers"), 3, 128)
    y = torch.zeros((333, 16), dtype=torch.int32)
    launch(torch.from_numpy(a), torch.from_numpy(b), y, 333)
    wide, other = a.astype(object), b.astype(object)
    u, v = a.view(np.uint32).astype(object), b.view(np.uint32).astype(object)
    shift = v & 31
    both = v << 32 | u
    quotient = [
        int(abs(p) // abs(q)) * (1 if (p < 0) == (q < 0) else -1) if q else 0 for p, q in zip(wide, other, strict=True)
    ]
    expected = [
        quotient,
        [p - d * q if q else 0 for p, q, d in zip(wide, other, quotient, strict=True)],
        (wide * other) >> 32,
        [bin(w).count("1") for w in u],
        [32 - int(w).bit_length() for w in u],
        [int(f"{w:032b}"[::-1], 2) for w in u],
        [w >> 32 & 255 | (w >> 8 & 255) << 8 | (w >> 16 & 255) << 16 | (w >> 56) << 24 for w in both],
        [(q << 32 | p) << s >> 32 & 0xFFFFFFFF for p, q, s in zip(u, v, shift, strict=True)],
        [(q << 32 | p) >> s & 0xFFFFFFFF for p, q, s in zip(u, v, shift, strict=True)],
        [p >> s for p, s in zip(wide, shift, strict=True)],
        [p >> s for p, s in zip(u, shift, strict=True)],
        np.minimum(a, b),
        ((u << 32 | v) * (v << 32 | u)) >> 71,
        (wide & other) ^ (~wide | 0x1234),
        (wide * other) >> 9,
        [(w & -w).bit_length() for w in u],
    ]
    for number, column in enumerate(expected):
        np.testing.assert_array_equal(y.numpy()[:, number], signed([int(w) & 0xFFFFFFFF for w in column]), f"{number}")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
def test_floats(fixtures, monkeypatch, arch):
    monkeypatch.setenv(ARCH, arch)
    draw = np.random.default_rng(2)
    a, b = draw.normal(scale=100, size=(2, 300)).astype(np.float32)
    a[:7], b[:7] = (np.nan, 1.0, np.inf, 1e30, -1e30, 0.5, -2.5), (1.0, np.nan, 2.0, -1e30, 1.0, -0.0, np.nan)
    launch = Launcher(Program(fixtures / "operations.cu", "floats"), 3, 128)
    y = torch.zeros((300, 12))
    launch(torch.from_numpy(a), torch.from_numpy(b), y, 300)
    with np.errstate(all="ignore"):
        limits = np.iinfo(np.int32)
        whole = [np.clip(np.nan_to_num(f(a.astype(float)), nan=0), limits.min, limits.max) for f in (np.trunc, np.rint)]
        down = a.astype(float) + b
        below = down.astype(np.float32)
        below = np.where(below > down, np.nextafter(below, np.float32(-np.inf)), below)
        expected = [
            (a.astype(float) * b - a), np.fmin(a, b), np.fmax(a, b), a / b, np.sqrt(np.abs(a)), *whole, np.rint(a), a.astype(np.float16),
            np.copysign(a, b), below, np.where(a < b, 1, np.where(a >= b, 2, 3)),
        ]  # fmt: skip
        expected = [np.asarray(e).astype(np.float32) for e in expected]
    for number, column in enumerate(expected):
        np.testing.assert_array_equal(y.numpy()[:, number], column, f"{number}")


def test_what_flushes_subnormals_makes_zero_of_them(fixtures):
    x = np.array([2.0**-126, 2.0**-127, -(2.0**-127.5), 3e38, -3e38, 1.5], np.float32)
    for y in called(fixtures, "operations.cu", "reciprocals", x, (6, 2), 6):
        kept, flushed = y.T
        np.testing.assert_allclose(kept, 1 / x.astype(float), rtol=2**-24, atol=2**-150)
        np.testing.assert_array_equal(flushed, [2.0**126, np.inf, -np.inf, 0, -0.0, kept[5]])
        assert np.signbit(flushed[4])


def test_lanes_of_a_warp(fixtures):
    x = np.random.default_rng(3).integers(0, 100, 96).astype(np.int32)
    (y, *_) = called(fixtures, "operations.cu", "lanes", x, (96, 8), block=96, kind=torch.int32)
    lane, warps = np.arange(32), x.reshape(3, 32)
    odd = int(np.sum(x & 1))
    expected = [
        warps[:, lane ^ 5],
        warps[:, np.where(lane % 8 >= 3, lane - 3, lane)],
        warps[:, np.where(lane % 16 < 14, lane + 2, lane)],
        warps[:, (lane + 1) % 32],
        np.repeat([[int(sum(int(b) << n for n, b in enumerate(w & 1)))] for w in warps], 32, 1),
        np.repeat((warps > 90).any(1, keepdims=True) + 2, 32, 1),
        np.repeat(warps.sum(1, keepdims=True), 32, 1),
        np.full((3, 32), odd + 1000),
    ]
    for number, column in enumerate(expected):
        np.testing.assert_array_equal(y[:, number], signed(column.reshape(-1)), f"{number}")


def test_atomic_operations(fixtures):
    x = np.random.default_rng(4).integers(0, 1000, 256).astype(np.int32)
    for y in called(fixtures, "operations.cu", "sums", x, 5, grid=4, block=64, kind=torch.int32):
        assert y.tolist() == [x.sum(), x.max(), np.bitwise_or.reduce(x), 256, 77]


# Faults, each beside a twin without


X = np.arange(256, dtype=np.float32)


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("name", ["backwards", "rows"])
def test_a_barrier_that_is_missing_shows(fixtures, name, right):
    numbers, x, expected = (
        ((), X, X[::-1]) if name == "backwards" else ((5,), np.outer(range(5), X).astype(np.float32), 10 * X[::-1])
    )
    found = called(fixtures, "faults.cu", f"{name}<{str(right).lower()}>", x, 256, *numbers)
    assert all(np.array_equal(y, expected) for y in found) == right


@pytest.mark.parametrize("right", [True, False])
def test_what_is_read_before_it_has_arrived_shows(fixtures, right):
    found = called(fixtures, "faults.cu", f"copied<{str(right).lower()}>", X, 256, block=64)
    assert all(np.array_equal(y, X) for y in found) == right


@pytest.mark.parametrize("size", [1, 18, 31, 46, 47, 48])
def test_a_copy_reads_no_more_bytes_than_it_is_given(fixtures, size):
    x = np.arange(1, size + 1, dtype=np.uint8)
    for y in called(fixtures, "faults.cu", "copied_in_part", x, 64, size, block=4, kind=torch.uint8):
        np.testing.assert_array_equal(y, np.pad(x, (0, 64 - size)))
    with pytest.raises(Fault, match=r"an access of . bytes to global memory"):
        called(fixtures, "faults.cu", "copied_in_part", x, 64, size + 1, block=4, kind=torch.uint8)


def test_blocks_of_a_cluster_that_wait_for_each_other_are_right(fixtures):
    for y in called(fixtures, "faults.cu", "exchanged<true, true>", X[:128], 128, grid=2, block=64):
        np.testing.assert_array_equal(y, np.concatenate([X[64:128], X[:64]]))


def test_a_block_that_reads_another_too_early_shows(fixtures):
    found = called(fixtures, "faults.cu", "exchanged<false, true>", X[:128], 128, grid=2, block=64)
    assert not all(np.array_equal(y, np.concatenate([X[64:128], X[:64]])) for y in found)


FAULTS = [
    ("exchanged<true, false>", 2, "an access to the shared memory of a block that has ended"),
    ("shifted<100>", 1, "an access of 4 bytes to global memory"),
    ("shifted_in_block<4>", 1, "an access of 4 bytes at 0x10c of 256 bytes of shared memory"),
    ("vectors<1>", 1, "an access of 16 bytes at an address that is no multiple of it"),
    ("lonely<false>", 1, "32 threads wait for ever: 16 for the rest of their warp"),
    ("divided<false>", 1, "threads wait for ever: 32 at barrier 1"),
    ("counted<0>", 1, "threads wait for ever: "),
    ("counted<2>", 1, "more arrivals at the mbarrier 0x0 of block 0 than it awaits"),
]


@pytest.mark.parametrize(("name", "grid", "said"), FAULTS, ids=[name for name, *_ in FAULTS])
def test_a_fault_is_named_with_its_line(fixtures, name, grid, said):
    with pytest.raises(Fault, match=rf"faults\.cu:\d+: .*{said}|device\.cuh:\d+: .*{said}"):
        called(fixtures, "faults.cu", name, X[:128].copy(), 128, grid=grid, block=64)


@pytest.mark.parametrize(
    "name", ["shifted<0>", "shifted_in_block<0>", "vectors<4>", "lonely<true>", "divided<true>", "counted<1>"]
)
def test_its_twin_has_none(fixtures, name):
    expected = {"vectors<4>": np.full(64, X[4] + X[7]), "lonely<true>": X[np.arange(64) ^ 1]}.get(name, X[:64])
    for y in called(fixtures, "faults.cu", name, X[:128].copy(), 64, block=64):
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(("all_wait", "overlaps"), [(True, True), (False, False), (False, True)])
def test_a_launch_that_overlaps_waits_before_it_touches_memory(fixtures, all_wait, overlaps):
    program = Program(fixtures / "faults.cu", f"following<{str(all_wait).lower()}>")
    launch, x, y = Launcher(program, 1, 64, overlaps=overlaps), torch.from_numpy(X[:64].copy()), torch.zeros(64)
    if all_wait or not overlaps:
        launch(x, y)
        assert torch.equal(x, y)
    else:
        with pytest.raises(Fault, match=r"faults\.cu:\d+: following<false> may begin while the launch before it ends"):
            launch(x, y)


@pytest.mark.parametrize(("waits", "written"), [(True, True), (False, False), (False, True)])
def test_an_asynchronous_copy_comes_early_only_of_what_no_launch_has_written(fixtures, waits, written):
    file, x, y, z = fixtures / "faults.cu", torch.from_numpy(X[:64].copy()), torch.zeros(64), torch.zeros(64)
    Launcher(Program(file, "following<true>"), 1, 64)(x, y)
    copies = Launcher(Program(file, f"copying<{str(waits).lower()}>"), 1, 64, overlaps=True)
    if waits or not written:
        copies(y if written else x, z)
        assert torch.equal(x, z)
    else:
        with pytest.raises(Fault, match="a copy of what a launch before this one, which may not have ended, writes"):
            copies(y, z)


@pytest.mark.parametrize("early", [False, True])
def test_a_copy_of_what_the_launch_before_writes_waits_for_it(kernels, monkeypatch, early):
    """x of odd K, which the first launch copies into rows of whole vectors; with K = 136 the products read x itself, and may begin."""
    module, cpu = discovery.load_implementation("lola", "cuda"), torch_backend.start("cpu")
    for K in (135, 136):
        case, device = make_case(kernels["lola"], {"M": 130, "K": K, "N": 264}, "bfloat16"), emulated()
        config = module.config(case, "two_launches", device)
        first, second = module.launches(case, "two_launches", device, config)
        assert f"GELU_TANH, {str(K == 136).lower()}, " in second.program.name
        name = second.program.name.replace("GELU_TANH, false", f"GELU_TANH, {str(early).lower()}")
        described = first, replace(second, program=replace(second.program, name=name))
        monkeypatch.setattr(module, "launches", lambda *_, found=described: found)
        call = module.build(case, "two_launches", device, config)
        (arrays,) = make_sets(kernels["lola"].mathematics, case, 0, 1)
        arguments = [torch_backend.put(a, cpu) for a in arrays.values()]
        arguments += module.prepare(case, "two_launches", *arguments)
        if early and K == 135:
            with pytest.raises(
                Fault, match="a copy of what a launch before this one, which may not have ended, writes"
            ):
                call(*arguments)
        else:
            assert call(*arguments).isfinite().all()
        monkeypatch.undo()


def test_a_tensor_that_is_not_contiguous_is_refused(fixtures):
    launch = Launcher(Program(fixtures / "faults.cu", "shifted<0>"), 1, 64)
    with pytest.raises(ValueError, match="argument 0 is not contiguous"):
        launch(torch.zeros((8, 8)).t(), torch.zeros(64))


def test_the_architecture_is_the_environments(monkeypatch):
    assert emulated().capability == (9, 0)
    monkeypatch.setenv(ARCH, "sm_80")
    assert emulated().capability == (8, 0)
    for none in ("hopper", "sm_12", "sm_999"):
        monkeypatch.setenv(ARCH, none)
        with pytest.raises(ValueError, match=f"^FUSEBENCH_EMULATE={none}: expected one of sm_80, .*, sm_120$"):
            emulated()


def test_an_architecture_that_is_none_ends_the_command(monkeypatch, answered):
    monkeypatch.setenv(ARCH, "hopper")
    done = answered("parity", "kernel=softmax", "case=odd", "device=cpu")
    said = f"fusebench: {ARCH}=hopper: expected one of sm_80, sm_86, sm_89, sm_90, sm_100, sm_120\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_an_instruction_that_is_not_known_is_named(fixtures):
    with pytest.raises(ValueError, match=r"^faults\.cu:\d+: the emulator does not know vabsdiff4\.u32\.u32\.u32$"):
        called(fixtures, "faults.cu", "unusual", X[:64].copy(), 64, block=64)


def test_a_call_of_a_function_is_named(tmp_path):
    file = tmp_path / "talks.cu"
    file.write_text('extern "C" __global__ void talks(float* y) { printf("%d", threadIdx.x); y[0] = 1; }')
    with pytest.raises(ValueError, match=r"^the emulator does not know calls of functions, such as printf and assert$"):
        Launcher(Program(file, "talks"), 1, 32)(torch.zeros(1))


def test_a_program_that_does_not_compile_says_why(tmp_path):
    file = tmp_path / "bad.cu"
    file.write_text('extern "C" __global__ void f(float* y) { y[0] = nothing; }')
    with pytest.raises(
        CompileError, match=r"^\S*bad\.cu\(1\): error: identifier \"nothing\" is undefined \(bad\.cu for sm_90a\)"
    ):
        Launcher(Program(file, "f"), 1, 32)(torch.zeros(1))


# Kernels that Hopper alone has


HALF, OTHER_HALF, TF32, SINGLE = ("bfloat16", "ieee"), ("float16", "ieee"), ("float32", "tf32"), ("float32", "ieee")
HOPPER = [
    (
        "lola",
        {"M": 136, "K": 192, "N": 320},
        {"multirow": (HALF, TF32), "multirow_ws": (TF32,), "two_launches": (OTHER_HALF,)},
    ),
    ("splacc", {"M": 136, "K": 192, "N": 320}, {"two_accumulators": (HALF, TF32)}),
    ("geglu", {"M": 136, "K": 192, "N": 320}, {"two_accumulators": (OTHER_HALF, TF32)}),
    ("lora_linear", {"M": 136, "K": 256, "N": 320, "R": 16}, {"two_launches": (HALF, TF32)}),
    ("padded_attention", {"B": 1, "H": 2, "T": 200, "D": 64}, {"flash": (HALF, TF32)}),
    ("padded_softmax_v", {"T": 200, "D": 64}, {"cluster": (HALF, SINGLE)}),
    ("shcsa", {"T": 200, "C": 256, "D": 64}, {"padded_attention": (OTHER_HALF, TF32)}),
    ("softmax", {"R": 3, "C": 9000}, {"cluster": (HALF, SINGLE)}),
    ("fused_mlp", "bottom_small", {"default": (HALF, SINGLE, TF32)}),
]
CELLS = [(name, sizes, v, *d) for name, sizes, variants in HOPPER for v, dtypes in variants.items() for d in dtypes]


@pytest.mark.parametrize(("name", "sizes", "variant", "dtype", "precision"), CELLS)
def test_a_kernel_of_warpgroups_and_clusters_is_right(run_cells, kernels, name, sizes, variant, dtype, precision):
    (record,) = run_cells([Cell(make_case(kernels[name], sizes, dtype, precision), "cuda", variant)])
    assert record.status == "ok", record.reason


WIDE = {"KERNEL": "warpgroup", "BLOCK_M": 128, "BLOCK_N": 256, "num_stages": 3}
OF_UP = {f"up_{name}": value for name, value in WIDE.items()}
FEW = {"KERNEL": "few_rows", "BLOCK_M": 16, "BLOCK_N": 32, "CLUSTER": 1, "num_stages": 2}
OF_TILES = {"SCHEDULE": "tiles"}
OF_SCORES = {"CLUSTER": 4, "BLOCK_M": 64, "BLOCK_N": 64, "WARPS_M": 4, "WARPS_N": 2, "num_stages": 2}
SPLIT = {"KERNEL": "split", "BLOCK_M": 64, "BLOCK_N": 128, "CLUSTER": 4, "num_stages": 3, "SCHEDULE": "tiles"}

TURNED = {"KERNEL": "turned", "BLOCK_M": 64, "BLOCK_N": 128, "CLUSTER": 1, "num_stages": 3, "SCHEDULE": "tiles"}

STRIPS = {"KERNEL": "simt", "BLOCK_M": 128, "BLOCK_N": 256, "CLUSTER": 1, "num_stages": 3, "SCHEDULE": "strips"}
SHARED = STRIPS | {"BLOCK_M": 32, "BLOCK_N": 64, "CLUSTER": 4, "SCHEDULE": "tiles"}
OF_STRIPS, OF_SHARED = ({f"up_{name}": value for name, value in own.items()} for own in (STRIPS, SHARED))
OF_FEW, OF_SPLIT = ({f"up_{name}": value for name, value in own.items()} for own in (FEW, SPLIT))


def mlp(M, *widths):
    """The sizes of fused_mlp with these widths."""
    padded = (*widths, 1, 1, 1)[:5]
    return {"M": M, "LAYERS": len(widths) - 1} | {f"N{i}": n for i, n in enumerate(padded)}


OF_MLP = {"KERNEL": "warpgroup", "BLOCK_N": 128, "num_stages": 2}


def of_layers(*tiles):
    """A config of fused_mlp's layers, of each its kernel and tile."""
    names = "KERNEL", "BLOCK_M", "BLOCK_N", "CLUSTER", "num_stages"
    own = {f"layer{i}_{n}": v for i, tile in enumerate(tiles, 1) for n, v in zip(names, tile, strict=True)}
    return {"KERNEL": "layers"} | own


SQUARE = {"BLOCK_M": 192, "BLOCK_N": 192, "CLUSTER": 1, "SCHEDULE": "tiles", "num_stages": 4}
CONFIGS = [
    ("lora_linear", {"M": 136, "K": 128, "N": 392, "R": 17}, "two_launches", "bfloat16", "ieee", OF_UP | {"up_SCHEDULE": "stream_k", "up_CLUSTER": 1}),
    # strips below and beside, one alone, of one row and 128, of a cluster whose last block has none; with an odd number of slabs
    ("lora_linear", {"M": 328, "K": 75, "N": 773, "R": 70}, "two_launches", "bfloat16", "ieee", OF_UP | {"up_SCHEDULE": "strips", "up_CLUSTER": 2}),
    ("lora_linear", {"M": 160, "K": 128, "N": 296, "R": 5}, "two_launches", "float16", "ieee", OF_UP | {"up_SCHEDULE": "strips", "up_CLUSTER": 1}),
    ("lola", {"M": 129, "K": 136, "N": 520}, "two_launches", "float16", "ieee", WIDE | {"SCHEDULE": "strips", "CLUSTER": 1}),
    ("lola", {"M": 384, "K": 320, "N": 392}, "two_launches", "bfloat16", "ieee", WIDE | {"SCHEDULE": "strips", "CLUSTER": 4}),
    ("splacc", {"M": 328, "K": 131, "N": 276}, "two_launches", "bfloat16", "ieee", WIDE | {"SCHEDULE": "strips", "CLUSTER": 2}),
    ("geglu", {"M": 150, "K": 72, "N": 304}, "two_launches", "float32", "tf32", WIDE | {"SCHEDULE": "strips", "CLUSTER": 1}),
    # slabs of the adapter that are a warp's only ones, and others behind those of its product; W stored otherwise than B
    ("lora_linear", {"M": 37, "K": 136, "N": 40, "R": 70}, "two_launches", "bfloat16", "ieee", OF_FEW),
    ("lora_linear", {"M": 20, "K": 1096, "N": 72, "R": 5, "nk": 1}, "two_launches", "float16", "ieee", OF_FEW | {"up_BLOCK_M": 32, "up_num_stages": 1}),
    ("lora_linear", {"M": 9, "K": 1044, "N": 36, "R": 17, "nk": 1}, "two_launches", "float32", "tf32", OF_FEW | {"up_BLOCK_N": 16}),
    # on the float32 units: strips below, rows of single elements, blocks that share K
    ("lora_linear", {"M": 140, "K": 72, "N": 264, "R": 17}, "two_launches", "float32", "ieee", OF_STRIPS),
    ("lora_linear", {"M": 70, "K": 37, "N": 75, "R": 6, "nk": 1}, "two_launches", "float32", "ieee", OF_SHARED | {"up_BLOCK_M": 64}),
    ("lora_linear", {"M": 37, "K": 136, "N": 72, "R": 5, "nk": 1}, "two_launches", "float32", "ieee", OF_SHARED),
    # and rows that were filled up: of x, of W, of the halves of W and of B
    ("lola", {"M": 140, "K": 75, "N": 267}, "two_launches", "float32", "ieee", STRIPS),
    ("lola", {"M": 70, "K": 72, "N": 77}, "two_launches", "float32", "ieee", SHARED | {"BLOCK_M": 64, "CLUSTER": 2}),
    ("lola", {"M": 37, "K": 131, "N": 75, "nk": 1}, "two_launches", "float32", "ieee", SHARED),
    ("lola", {"M": 70, "K": 72, "N": 77}, "multirow_ws", "float32", "ieee", SHARED),
    ("splacc", {"M": 70, "K": 72, "N": 75}, "two_accumulators", "float32", "ieee", SHARED),
    ("geglu", {"M": 140, "K": 75, "N": 133}, "two_launches", "float32", "ieee", STRIPS),
    ("lora_linear", {"M": 70, "K": 75, "N": 203, "R": 6}, "two_launches", "float32", "ieee", OF_SHARED),
    # blocks that share K, of which the last has the adapter's slab alone; behind x as it was copied; two slabs of the adapter
    ("lora_linear", {"M": 70, "K": 264, "N": 200, "R": 16}, "two_launches", "bfloat16", "ieee", OF_SPLIT),
    ("lora_linear", {"M": 150, "K": 333, "N": 520, "R": 5}, "two_launches", "float16", "ieee", OF_SPLIT | {"up_BLOCK_N": 256, "up_CLUSTER": 2}),
    ("lora_linear", {"M": 140, "K": 200, "N": 264, "R": 70, "nk": 1}, "two_launches", "bfloat16", "ieee", OF_SPLIT | {"up_BLOCK_M": 128, "up_CLUSTER": 1}),
    # tf32, whose W and B are turned: by blocks that share K, in strips, and of tiles that blocks share; two slabs of the adapter; odd rows
    ("lora_linear", {"M": 70, "K": 131, "N": 203, "R": 33}, "two_launches", "float32", "tf32", OF_SPLIT | {"up_BLOCK_N": 64, "up_CLUSTER": 2}),
    ("lora_linear", {"M": 150, "K": 75, "N": 301, "R": 5, "nk": 1}, "two_launches", "float32", "tf32", OF_UP | {"up_SCHEDULE": "strips", "up_CLUSTER": 1}),
    ("lora_linear", {"M": 136, "K": 132, "N": 392, "R": 70}, "two_launches", "float32", "tf32", OF_UP | {"up_SCHEDULE": "stream_k", "up_CLUSTER": 2}),
    # blocks that share K behind LayerNorm: few rows, and columns of no whole vector
    ("lola", {"M": 20, "K": 264, "N": 301}, "two_launches", "bfloat16", "ieee", SPLIT | {"BLOCK_N": 64, "CLUSTER": 2}),
    ("lola", {"M": 330, "K": 136, "N": 776}, "two_launches", "bfloat16", "ieee", SQUARE),
    ("lora_linear", {"M": 201, "K": 75, "N": 395, "R": 70}, "two_launches", "float16", "ieee", OF_UP | {f"up_{n}": v for n, v in SQUARE.items()}),
    # any multiple of 16 rows, of which the last tile has one, or a warpgroup no columns; rows of y of no whole vectors; x brought by both blocks
    ("lola", {"M": 81, "K": 200, "N": 328}, "two_launches", "bfloat16", "ieee", TURNED | {"BLOCK_M": 80}),
    ("lola", {"M": 300, "K": 136, "N": 456}, "two_launches", "float16", "ieee", TURNED | {"BLOCK_M": 176, "CLUSTER": 2}),
    ("lola", {"M": 130, "K": 264, "N": 333, "nk": 1}, "two_launches", "bfloat16", "ieee", TURNED | {"BLOCK_M": 240, "BLOCK_N": 64}),
    ("splacc", {"M": 70, "K": 200, "N": 328}, "two_accumulators", "bfloat16", "ieee", TURNED | {"BLOCK_M": 96, "BLOCK_N": 256}),
    ("geglu", {"M": 130, "K": 133, "N": 299}, "two_launches", "float16", "ieee", TURNED | {"BLOCK_M": 128, "CLUSTER": 2}),
    # fewer slabs than warps; more than all warps have on their way; a last one that is not whole, beside rows and columns that are none
    ("lola", {"M": 3, "K": 136, "N": 40}, "multirow", "bfloat16", "ieee", FEW),
    ("lola", {"M": 70, "K": 1096, "N": 72}, "multirow_ws", "float16", "ieee", FEW | {"BLOCK_M": 64, "num_stages": 1}),
    ("lola", {"M": 37, "K": 1044, "N": 36}, "multirow", "float32", "tf32", FEW | {"BLOCK_M": 32, "BLOCK_N": 16}),
    ("splacc", {"M": 20, "K": 1096, "N": 40}, "two_accumulators", "bfloat16", "ieee", FEW),
    ("geglu", {"M": 70, "K": 540, "N": 52}, "two_accumulators", "float32", "tf32", FEW | {"BLOCK_M": 64}),
    ("geglu", {"M": 9, "K": 133, "N": 40}, "two_launches", "float16", "ieee", FEW | {"SCHEDULE": "tiles"}),
    # on the float32 units: rows of x that lie anywhere, and of W that were filled up; all arrangements of lanes; x shifted where it lies, or before
    ("lola", {"M": 37, "K": 331, "N": 76}, "multirow", "float32", "ieee", FEW | OF_TILES),
    ("lola", {"M": 20, "K": 1100, "N": 77}, "multirow_ws", "float32", "ieee", FEW | OF_TILES | {"BLOCK_N": 64}),
    ("lola", {"M": 70, "K": 332, "N": 40, "nk": 1}, "multirow", "float32", "ieee", FEW | OF_TILES | {"BLOCK_M": 32}),
    ("lola", {"M": 70, "K": 301, "N": 73}, "two_launches", "float32", "ieee", FEW | OF_TILES | {"BLOCK_M": 64}),
    ("splacc", {"M": 37, "K": 331, "N": 75}, "two_launches", "float32", "ieee", FEW | OF_TILES),
    ("geglu", {"M": 70, "K": 300, "N": 40, "nk": 1}, "two_accumulators", "float32", "ieee", FEW | OF_TILES | {"BLOCK_M": 32, "BLOCK_N": 64}),
    ("lora_linear", {"M": 37, "K": 331, "N": 73, "R": 70}, "two_launches", "float32", "ieee", OF_FEW | {"up_SCHEDULE": "tiles"}),
    ("lora_linear", {"M": 20, "K": 1100, "N": 40, "R": 5, "nk": 1}, "two_launches", "float32", "ieee", OF_FEW | {"up_BLOCK_N": 16, "up_SCHEDULE": "tiles"}),
    ("fused_mlp", mlp(37, 72, 300, 77, 40), "default", "float32", "ieee", {"KERNEL": "layers"}),
    # blocks that share K, and turned tiles: columns behind the width, one column alone, and rows of y of no whole vectors
    ("fused_mlp", mlp(130, 136, 303, 1), "default", "bfloat16", "ieee", of_layers(("split", 128, 64, 2, 3), ("split", 64, 64, 4, 3))),
    ("fused_mlp", mlp(130, 136, 303, 299) | {"nk": 1}, "default", "float16", "ieee", of_layers(("split", 128, 256, 1, 3), ("turned", 64, 128, 2, 3))),
    ("fused_mlp", mlp(150, 104, 515, 203), "default", "bfloat16", "ieee", of_layers(("turned", 112, 64, 1, 4), ("turned", 80, 64, 2, 5))),
    # no more than a slab of K, of rows that lie anywhere
    ("fused_mlp", mlp(130, 13, 303, 75), "default", "float32", "tf32", of_layers(("one_slab", 64, 128, 1, 1), ("split", 64, 64, 2, 3))),
    ("fused_mlp", mlp(130, 63, 303, 75) | {"nk": 1}, "default", "bfloat16", "ieee", of_layers(("one_slab", 128, 256, 1, 1), ("tensor", 16, 64, 1, 2))),
    # three layers in registers, and a fourth behind them: of one column, and of no whole vectors behind W that was turned
    ("fused_mlp", mlp(141, 75, 136, 120, 80, 1), "default", "bfloat16", "ieee", OF_MLP | {"KERNEL": "three_and_one", "BLOCK_M": 64, "CLUSTER": 2}),
    ("fused_mlp", mlp(262, 13, 136, 72, 128, 75) | {"nk": 1}, "default", "float16", "ieee", OF_MLP | {"KERNEL": "three_and_one", "BLOCK_M": 128, "CLUSTER": 2}),
    ("fused_mlp", mlp(130, 136, 303, 3), "default", "float32", "tf32", of_layers(("split", 64, 128, 4, 3), ("split", 64, 64, 8, 3))),
    # four warps, with two elements of K of W at one time
    ("lola", {"M": 70, "K": 301, "N": 73}, "two_launches", "float32", "ieee", FEW | OF_TILES | {"BLOCK_M": 64, "BLOCK_N": 64}),
    ("splacc", {"M": 37, "K": 300, "N": 75}, "two_accumulators", "float32", "ieee", FEW | OF_TILES | {"BLOCK_M": 64, "BLOCK_N": 64, "num_stages": 1}),
    ("lora_linear", {"M": 70, "K": 131, "N": 73, "R": 37}, "two_launches", "float32", "ieee", OF_FEW | {"up_BLOCK_M": 64, "up_BLOCK_N": 64, "up_SCHEDULE": "tiles"}),
    ("splacc", {"M": 150, "K": 264, "N": 136}, "two_accumulators", "float16", "ieee", SPLIT | {"BLOCK_M": 128, "CLUSTER": 2}),
    ("geglu", {"M": 70, "K": 264, "N": 200}, "two_accumulators", "float32", "tf32", SPLIT),
    # 96 columns of either half, whose W is turned; a cluster whose last block has no rows; tf32
    ("splacc", {"M": 330, "K": 136, "N": 264}, "two_accumulators", "bfloat16", "ieee", {"KERNEL": "warpgroup"} | SQUARE),
    ("geglu", {"M": 201, "K": 75, "N": 299}, "two_launches", "float16", "ieee", {"KERNEL": "warpgroup"} | SQUARE),
    ("geglu", {"M": 390, "K": 200, "N": 276}, "two_accumulators", "bfloat16", "ieee", {"KERNEL": "warpgroup"} | SQUARE | {"CLUSTER": 2}),
    ("splacc", {"M": 193, "K": 76, "N": 300}, "two_accumulators", "float32", "tf32", {"KERNEL": "warpgroup"} | SQUARE | {"CLUSTER": 2, "num_stages": 3}),
    # 17 rows of tiles, of which the last one belongs to the pass of the others; of clusters, 9
    ("lola", {"M": 2100, "K": 72, "N": 264}, "two_launches", "bfloat16", "ieee", WIDE | {"SCHEDULE": "tiles", "CLUSTER": 1}),
    ("splacc", {"M": 2100, "K": 72, "N": 264}, "two_accumulators", "float16", "ieee", WIDE | {"SCHEDULE": "tiles", "CLUSTER": 2}),
    # fewer slabs than clusters, of which some have no piece
    ("splacc", {"M": 328, "K": 131, "N": 276}, "two_launches", "bfloat16", "ieee", WIDE | {"SCHEDULE": "stream_k", "CLUSTER": 2}),
    ("lola", {"M": 136, "K": 128, "N": 264}, "two_launches", "float16", "ieee", WIDE | {"SCHEDULE": "stream_k", "CLUSTER": 1}),
    ("lora_linear", {"M": 137, "K": 333, "N": 520, "R": 5}, "two_launches", "bfloat16", "ieee", {}),
    ("lora_linear", {"M": 264, "K": 136, "N": 515, "R": 17}, "two_launches", "float16", "ieee", {}),
    ("lora_linear", {"M": 300, "K": 321, "N": 777, "R": 17}, "two_launches", "bfloat16", "ieee", OF_UP | {"up_SCHEDULE": "stream_k", "up_CLUSTER": 2}),
    ("lola", {"M": 136, "K": 520, "N": 520}, "two_launches", "bfloat16", "ieee", WIDE | {"SCHEDULE": "stream_k", "CLUSTER": 1}),
    ("lola", {"M": 600, "K": 112, "N": 648}, "two_launches", "float16", "ieee", WIDE | {"SCHEDULE": "stream_k", "CLUSTER": 2, "BLOCK_N": 128}),
    ("lola", {"M": 264, "K": 128, "N": 392}, "multirow", "bfloat16", "ieee", {"BLOCK_N": 256, "CLUSTER": 2}),
    ("splacc", {"M": 137, "K": 333, "N": 515}, "two_launches", "bfloat16", "ieee", {}),
    ("geglu", {"M": 137, "K": 333, "N": 515}, "two_launches", "float32", "tf32", {}),
    ("splacc", {"M": 264, "K": 320, "N": 392}, "two_launches", "float16", "ieee", WIDE | {"SCHEDULE": "stream_k", "CLUSTER": 2}),
    ("geglu", {"M": 300, "K": 133, "N": 512}, "two_launches", "bfloat16", "ieee", WIDE | {"SCHEDULE": "stream_k", "CLUSTER": 1}),
    ("shcsa", {"T": 333, "C": 101, "D": 40}, "padded_attention", "float32", "ieee", {"dense_SPLIT": 4, "attention_SPLIT": 4}),
    ("shcsa", {"T": 150, "C": 20, "D": 40}, "padded_attention", "float32", "ieee", {"dense_SPLIT": 8, "attention_SPLIT": 2}),
    ("shcsa", {"T": 150, "C": 36, "D": 40}, "padded_attention", "bfloat16", "ieee", {"attention_SPLIT": 8}),
    ("shcsa", {"T": 256, "C": 512, "D": 64}, "padded_attention", "bfloat16", "ieee", {"dense_SPLIT": 4, "attention_SPLIT": 2}),
    ("shcsa", {"T": 139, "C": 261, "D": 127}, "whole_rows", "bfloat16", "ieee", {"dense_KERNEL": "warpgroup", "attention_KERNEL": "warpgroup"}),
    ("shcsa", {"T": 139, "C": 136, "D": 201}, "whole_rows", "float16", "ieee", {}),
    ("shcsa", {"T": 264, "C": 128, "D": 192}, "padded_attention", "bfloat16", "ieee", {"attention_SPLIT": 8}),
    ("padded_attention", {"B": 1, "H": 2, "T": 201, "D": 256}, "flash", "float16", "ieee", {"BLOCK_M": 128, "WARPS_M": 8}),
    ("padded_attention", {"B": 2, "H": 1, "T": 139, "D": 130}, "flash", "bfloat16", "ieee", {}),
    # rows of q, k and v that are copied to whole vectors; heads whose rows of y begin anywhere
    ("padded_attention", {"B": 2, "H": 3, "T": 137, "D": 101}, "flash", "bfloat16", "ieee", {}),
    ("padded_attention", {"B": 1, "H": 3, "T": 193, "D": 38}, "flash", "float16", "ieee", {"BLOCK_M": 192, "WARPS_M": 12}),
    ("padded_softmax_v", {"T": 150, "D": 40}, "cluster", "float16", "ieee", {"CLUSTER": 8}),
    # rows of att that begin anywhere, 64 rows a block, columns shared out to two
    ("padded_softmax_v", {"T": 333, "D": 64}, "cluster", "bfloat16", "ieee", OF_SCORES | {"num_stages": 3, "BLOCK_N": 128}),
    ("padded_softmax_v", {"T": 213, "D": 101}, "cluster", "float16", "ieee", OF_SCORES | {"CLUSTER": 2}),
    ("padded_softmax_v", {"T": 213, "D": 150}, "cluster", "bfloat16", "ieee", OF_SCORES),
    ("padded_softmax_v", {"T": 149, "D": 131}, "cluster", "float32", "ieee", OF_SCORES | {"BLOCK_N": 32}),
    ("padded_softmax_v", {"T": 149, "D": 66}, "cluster", "float32", "tf32", OF_SCORES | {"BLOCK_N": 64, "WARPS_M": 2, "BLOCK_M": 32, "WARPS_N": 4}),
    ("softmax", {"R": 3, "C": 9000}, "cluster", "float32", "ieee", {"CLUSTER": 4, "num_warps": 32}),
    # rows of x that begin at multiples of 16 bytes every 8, 4 and 2 rows, and remainders of M of which some tiles have the last row
    ("fused_mlp", mlp(141, 75, 136, 120, 3), "default", "bfloat16", "ieee", OF_MLP | {"BLOCK_M": 64, "CLUSTER": 4}),
    ("fused_mlp", mlp(262, 70, 128, 128, 24, 5), "default", "float16", "ieee", OF_MLP | {"BLOCK_M": 64, "CLUSTER": 2}),
    ("fused_mlp", mlp(527, 121, 128, 72, 1), "default", "bfloat16", "ieee", OF_MLP | {"BLOCK_M": 128, "CLUSTER": 2}),
    ("fused_mlp", mlp(255, 68, 136, 128, 2), "default", "float16", "ieee", OF_MLP | {"BLOCK_M": 128, "CLUSTER": 1}),
]  # fmt: skip


OF_MODEL = {"F": 5, "V": 50, "D": 7, "LAYERS": 3, "N0": 13, "N1": 67, "N2": 40, "N3": 1, "P1": 41, "P2": 19}
OF_LATENCY = {"KERNEL": "few_rows", "BLOCK_M": 16, "BLOCK_N": 64, "CLUSTER": 4, "num_stages": 4}
CONFIGS += [  # rows of the interaction behind one another, of no whole vectors
    ("dlrm", OF_MODEL | {"M": 20}, "modulus", dtype, "ieee", {f"{of}_{n}": v for of in ("bottom", "top") for n, v in OF_LATENCY.items()})
    for dtype in ("float32", "bfloat16")
]  # fmt: skip

OF_DOTS = {"BLOCK_M": 1, "BLOCK_K": 128, "BLOCK_F": 128, "num_warps": 8}
CONFIGS += [  # squares of both sides, bands, pieces of vectors and of a width, samples of a block, of dots on the tensor cores and beside them
    ("interaction", {"M": M, "F": F, "D": D}, "default", dtype, precision, OF_DOTS | config)
    for dtype, precision in (("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee"))
    for M, F, D, config in (
        (5, 26, 36, {}),  # more warps than squares
        (5, 40, 50, {"num_warps": 4}),
        (5, 40, 49, {"num_warps": 1}),  # one square of a warp, of vectors in odd places
        (3, 60, 20, {"num_warps": 1}),
        (3, 67, 7, {"BLOCK_F": 32, "num_warps": 2}),  # bands, and pieces of single elements
        (2, 67, 44, {"BLOCK_K": 16, "num_warps": 1}),  # pieces of vectors, again for each pass
        (11, 31, 9, {"BLOCK_M": 8, "BLOCK_F": 32, "num_warps": 1}),
    )
]  # fmt: skip


@pytest.mark.parametrize(("F", "D"), [(40, 100), (33, 131), (47, 129)])
def test_gradients_of_dots_of_many_vectors_are_right(run_cells, kernels, F, D):
    """Columns that are multiplied in several parts, or brought in several, and vectors in odd places."""
    case = make_case(kernels["interaction"], {"M": 3, "F": F, "D": D}, "bfloat16", mode="backward")
    (record,) = run_cells([Cell(case, "cuda", "default")])
    assert record.status == "ok", record.reason


OF_SUMS = [
    # rows of blocks whose places are a whole line or not, and what fills no vector; groups of 8 rows, of 1 and of 2
    ({"M": 300, "N": 205}, "bfloat16", "silu", {"gradient_LANES": 32, "gradient_UNROLL": 1}),
    ({"M": 301, "N": 40}, "float16", "relu", {"gradient_LANES": 4, "gradient_UNROLL": 3, "gradient_BLOCKS": 2}),
    ({"M": 131, "N": 70}, "float32", "gelu_tanh", {"gradient_LANES": 16, "gradient_UNROLL": 2}),
    # blocks that begin at any column, some behind the last; fewer columns than threads, and a single one
    ({"M": 301, "N": 77}, "bfloat16", "tanh", {"gradient_LANES": 256, "gradient_UNROLL": 2}),
    ({"M": 37, "N": 1001}, "float32", "none", {"gradient_LANES": 256, "gradient_UNROLL": 1}),
    ({"M": 4099, "N": 1}, "bfloat16", "sigmoid", {"gradient_LANES": 256, "gradient_UNROLL": 1}),
    # fewer rows than a group
    ({"M": 3, "N": 1001}, "bfloat16", "gelu_erf", {"gradient_LANES": 8, "gradient_UNROLL": 4}),
]


@pytest.mark.parametrize(("sizes", "dtype", "activation", "config"), OF_SUMS)
def test_sums_of_columns_are_right_however_blocks_share_them(run_cells, kernels, sizes, dtype, activation, config):
    case = make_case(kernels["add_mul_act"], sizes, dtype, options={"activation": activation}, mode="backward")
    (record,) = run_cells([Cell(case, "cuda", "default", config=config)])
    assert record.status == "ok", record.reason


@pytest.mark.parametrize(("name", "sizes", "variant", "dtype", "precision", "config"), in_turns(CONFIGS))
def test_a_config_for_larger_cards_is_right(run_cells, kernels, name, sizes, variant, dtype, precision, config):
    """What the emulated device has too few multiprocessors to choose."""
    sizes = dict(sizes)
    options = {"w_layout": "nk"} if sizes.pop("nk", 0) else None
    case = make_case(kernels[name], sizes, dtype, precision, options)
    (record,) = run_cells([Cell(case, "cuda", variant, config=config)])
    assert record.status == "ok", record.reason


@pytest.mark.parametrize(
    ("T", "D", "dtype"),
    [(131, 65, "bfloat16"), (129, 39, "float16"), (70, 77, "bfloat16")],  # of the last one, dk and dv by mma.sync
)
def test_gradients_of_attention_read_copies_of_rows_that_are_no_whole_vectors(run_cells, kernels, T, D, dtype):
    case = make_case(kernels["padded_attention"], {"B": 2, "H": 1, "T": T, "D": D}, dtype, mode="backward")
    (record,) = run_cells([Cell(case, "cuda", "flash")])
    assert record.status == "ok", record.reason


OF_GRADIENTS = {"KERNEL": "warpgroup"} | {
    f"{of}_{name}": value
    for of in ("dx", "dW")
    for name, value in {"BLOCK_M": 128, "BLOCK_N": 128, "num_stages": 3, "CLUSTER": 1}.items()
}


APART = OF_GRADIENTS | {"KERNEL": "apart"}


@pytest.mark.parametrize(
    ("sizes", "options", "dtype", "config"),
    [
        ({"M": 130, "K": 259, "N": 257, "R": 5}, {"activation": "tanh"}, "bfloat16", OF_GRADIENTS),
        ({"M": 131, "K": 257, "N": 264, "R": 17}, {"w_layout": "nk"}, "float16", OF_GRADIENTS),
        ({"M": 3, "K": 45, "N": 301, "R": 5}, {}, "bfloat16", {"KERNEL": "whole"}),
        ({"M": 20, "K": 70, "N": 331, "R": 16}, {"activation": "silu"}, "float16", {"KERNEL": "whole"}),
        ({"M": 70, "K": 45, "N": 75, "R": 6}, {"activation": "silu", "w_layout": "nk"}, "float32", {}),
        ({"M": 70, "K": 24, "N": 517, "R": 61}, {}, "bfloat16", {}),  # two blocks share N
        ({"M": 520, "K": 131, "N": 140, "R": 17}, {}, "bfloat16", OF_GRADIENTS),  # blocks share M of what is narrow
        # a launch for each product: tiles with rows and columns to spare; a cluster that shares the depth of dx
        ({"M": 131, "K": 70, "N": 75, "R": 5}, {"activation": "tanh"}, "float32", APART | {"dW_BLOCK_M": 64, "dW_BLOCK_N": 64}),
        ({"M": 267, "K": 70, "N": 139, "R": 17}, {"w_layout": "nk"}, "float32", APART | {"dx_BLOCK_M": 32, "dx_BLOCK_N": 64, "dx_CLUSTER": 4}),
    ],
)  # fmt: skip
def test_gradients_of_an_adapter_read_rows_filled_up(run_cells, kernels, sizes, options, dtype, config):
    """And write those of the gradients as they are."""
    case = make_case(kernels["lora_linear"], sizes, dtype, options=options, mode="backward")
    (record,) = run_cells([Cell(case, "cuda", "two_launches", config=config)])
    assert record.status == "ok", record.reason


BOTH = {"both_BLOCK_M": 128, "both_BLOCK_N": 256, "both_num_stages": 3, "both_CLUSTER": 1, "both_SCHEDULE": "stream_k"}
GRADIENTS = [
    # pieces that begin amid tiles of dx and of dW; rows and columns that are copied to whole vectors; a cluster whose last block has no rows
    ("lola", {"M": 200, "K": 256, "N": 512}, "multirow", "bfloat16", "kn", BOTH),
    ("lola", {"M": 200, "K": 203, "N": 328}, "multirow", "float16", "nk", BOTH | {"both_CLUSTER": 2}),
    ("lola", {"M": 200, "K": 205, "N": 331}, "multirow", "bfloat16", "kn", BOTH | {"both_BLOCK_M": 192, "both_BLOCK_N": 192, "both_num_stages": 4}),
    # tiles that are not shared; the second half of dZ begins at no whole vector, and what is behind it is 0
    ("geglu", {"M": 150, "K": 261, "N": 173}, "two_accumulators", "bfloat16", "kn", BOTH | {"both_BLOCK_N": 128, "both_SCHEDULE": "tiles"}),
    ("splacc", {"M": 150, "K": 264, "N": 172}, "two_accumulators", "float16", "nk", BOTH),
    # blocks that share the depth of a tile of dx beside those of dW, the last of which have no tile; rows of 1003 elements are copied, those of 131 filled up
    ("lola", {"M": 130, "K": 136, "N": 1003}, "multirow", "bfloat16", "kn", {"beside_BLOCK_M": 64, "beside_BLOCK_N": 128, "beside_CLUSTER": 2, "beside_num_stages": 3}),
    ("lola", {"M": 150, "K": 131, "N": 1200}, "multirow", "float16", "nk", {"beside_BLOCK_M": 128, "beside_BLOCK_N": 128, "beside_CLUSTER": 4, "beside_num_stages": 3}),
    ("splacc", {"M": 70, "K": 131, "N": 400}, "two_accumulators", "bfloat16", "kn", {"beside_BLOCK_M": 64, "beside_BLOCK_N": 64, "beside_CLUSTER": 4, "beside_num_stages": 3}),
    ("geglu", {"M": 150, "K": 136, "N": 600}, "two_accumulators", "bfloat16", "nk", {"beside_BLOCK_M": 128, "beside_BLOCK_N": 128, "beside_CLUSTER": 1, "beside_num_stages": 4}),
    # column sums beside the product, of both widths of its tiles, of which the last are partly outside
    ("lola", {"M": 260, "K": 200, "N": 776}, "multirow", "bfloat16", "kn", {}),
    ("lola", {"M": 260, "K": 136, "N": 776}, "multirow", "float16", "nk", {}),
    ("lola", {"M": 260, "K": 136, "N": 1032}, "multirow", "bfloat16", "nk", {}),
    ("lola", {"M": 260, "K": 200, "N": 1032}, "multirow", "bfloat16", "kn", {}),
    # few rows: tiles of dx beside those of dW
    ("lola", {"M": 5, "K": 136, "N": 328}, "multirow", "bfloat16", "kn", {"few_BLOCK_M": 16, "few_BLOCK_N": 32, "few_num_stages": 1}),
    ("geglu", {"M": 37, "K": 136, "N": 164}, "two_accumulators", "float16", "nk", {"few_BLOCK_M": 32, "few_BLOCK_N": 16, "few_num_stages": 2}),
    # the same of rows that are filled up: those of dx are whole pairs or not, those of dW single elements, pairs, or vectors
    ("lola", {"M": 5, "K": 135, "N": 328}, "multirow", "bfloat16", "kn", {"few_BLOCK_M": 16, "few_BLOCK_N": 32, "few_num_stages": 1}),
    ("lola", {"M": 37, "K": 131, "N": 331}, "multirow", "float16", "nk", {"few_BLOCK_M": 32, "few_BLOCK_N": 64, "few_num_stages": 1}),
    ("geglu", {"M": 37, "K": 134, "N": 163}, "two_accumulators", "bfloat16", "kn", {"few_BLOCK_M": 32, "few_BLOCK_N": 16, "few_num_stages": 2}),
    ("splacc", {"M": 5, "K": 136, "N": 161}, "two_accumulators", "float16", "nk", {"few_BLOCK_M": 16, "few_BLOCK_N": 16, "few_num_stages": 3}),
    ("splacc", {"M": 9, "K": 136, "N": 161}, "two_accumulators", "float16", "nk", {"few_BLOCK_M": 16, "few_BLOCK_N": 16, "few_num_stages": 3}),
    # blocks that make dz: of single elements, more than a block asks for at once; rows of W filled up; slabs that reuse the ring
    ("geglu", {"M": 1, "K": 131, "N": 301}, "two_accumulators", "bfloat16", "kn", {"few_BLOCK_M": 16, "few_BLOCK_N": 32, "few_num_stages": 1}),
    ("geglu", {"M": 8, "K": 24, "N": 520}, "two_accumulators", "float16", "nk", {"few_BLOCK_M": 16, "few_BLOCK_N": 16, "few_num_stages": 1}),
    ("splacc", {"M": 3, "K": 133, "N": 101}, "two_accumulators", "bfloat16", "nk", {"few_BLOCK_M": 16, "few_BLOCK_N": 64, "few_num_stages": 1}),
    ("splacc", {"M": 1, "K": 264, "N": 72}, "two_accumulators", "float16", "kn", {"few_BLOCK_M": 16, "few_BLOCK_N": 16, "few_num_stages": 2}),
    # the same of whole slabs of both halves, which are made by pairs; of rows of dW at any element
    ("splacc", {"M": 2, "K": 133, "N": 512}, "two_accumulators", "bfloat16", "kn", {"few_BLOCK_M": 16, "few_BLOCK_N": 16, "few_num_stages": 1}),
    ("geglu", {"M": 8, "K": 72, "N": 512}, "two_accumulators", "bfloat16", "nk", {"few_BLOCK_M": 16, "few_BLOCK_N": 16, "few_num_stages": 1}),
    ("geglu", {"M": 1, "K": 115, "N": 301}, "two_accumulators", "float16", "nk", {"few_BLOCK_M": 16, "few_BLOCK_N": 16, "few_num_stages": 1}),
    # in float32 rows of n, W and dz are filled up
    ("lola", {"M": 70, "K": 135, "N": 203}, "multirow", "float32", "kn", {}),
    ("lola", {"M": 67, "K": 134, "N": 201}, "multirow", "float32", "nk", {"dx_BLOCK_M": 64, "dx_BLOCK_N": 64, "dx_CLUSTER": 2}),
    ("geglu", {"M": 69, "K": 133, "N": 75}, "two_accumulators", "float32", "nk", {}),
    ("splacc", {"M": 66, "K": 70, "N": 77}, "two_accumulators", "float32", "kn", {}),
    # a cluster shares the depth of dx, in float32
    ("lola", {"M": 37, "K": 136, "N": 204}, "multirow", "float32", "kn", {"dx_BLOCK_M": 32, "dx_BLOCK_N": 64, "dx_CLUSTER": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "sizes", "variant", "dtype", "layout", "config"), in_turns(GRADIENTS))
def test_gradients_of_a_layer_are_right(run_cells, kernels, name, sizes, variant, dtype, layout, config):
    case = make_case(kernels[name], sizes, dtype, options={"w_layout": layout}, mode="backward")
    (record,) = run_cells([Cell(case, "cuda", variant, config=config)])
    assert record.status == "ok", record.reason


@pytest.mark.parametrize("implementation", ["cuda", "triton"])
def test_tanh_gelu_of_small_sums_is_as_precise_as_a_tanh(run_cells, kernels, implementation):
    """A fast exponential is within every element's budget, but not within that of all together."""
    case = make_case(kernels["add_mul_act"], "odd", options={"activation": "gelu_tanh"})
    cells = [Cell(case, implementation, "default", inputs="small", seed=seed) for seed in (0, 1, 2)]
    assert [record.status for record in run_cells(cells)] == ["ok"] * 3


@pytest.mark.parametrize(("layout", "inputs"), [("kn", "nan"), ("nk", "inf")])
def test_an_mlp_keeps_what_is_not_finite_in_its_rows(run_cells, kernels, layout, inputs):
    """A box of x has elements of the rows before and behind."""
    case = make_case(kernels["fused_mlp"], mlp(75, 67, 128, 64, 1), "bfloat16", options={"w_layout": layout})
    config = OF_MLP | {"BLOCK_M": 64, "CLUSTER": 2}
    (record,) = run_cells([Cell(case, "cuda", "default", config=config, inputs=inputs)])
    assert record.status == "ok", record.reason


@pytest.mark.parametrize(
    ("layout", "dtype", "inputs", "sizes", "tile"),
    [
        # vectors of all weights, and of none; layers of which some blocks have no part; one layer alone; K of no whole steps
        ("kn", "bfloat16", "plain", mlp(37, 13, 512, 256, 64, 16), (16, 64, 8)),
        ("nk", "float16", "plain", mlp(19, 72, 264, 200, 1), (32, 128, 4)),
        ("kn", "float16", "inf", mlp(3, 17, 131, 2, 150), (16, 64, 4)),
        ("nk", "bfloat16", "nan", mlp(35, 13, 67, 5, 40), (32, 64, 8)),
        ("nk", "bfloat16", "plain", mlp(5, 70, 41), (16, 128, 8)),
        ("kn", "float16", "plain", mlp(70, 64, 128, 64, 1), (32, 128, 1)),  # a block has all columns
        ("nk", "bfloat16", "plain", mlp(20, 40, 120, 200), (16, 128, 2)),
    ],
)
def test_an_mlp_of_few_rows_in_16_bits_is_right(run_cells, kernels, layout, dtype, inputs, sizes, tile):
    case = make_case(kernels["fused_mlp"], sizes, dtype, options={"w_layout": layout, "last": "relu"})
    config = dict(zip(("BLOCK_M", "BLOCK_N", "CLUSTER"), tile, strict=True)) | {"KERNEL": "few_rows", "num_stages": 4}
    (record,) = run_cells([Cell(case, "cuda", "default", config=config, inputs=inputs)])
    assert record.status == "ok", record.reason


@pytest.mark.parametrize(
    ("layout", "dtype", "precision", "inputs", "sizes"),
    [
        ("kn", "bfloat16", "ieee", "inf", mlp(136, 72, 261, 131, 7)),  # warpgroups, and tensor cores without them
        (
            "nk",
            "float32",
            "tf32",
            "plain",
            mlp(136, 75, 261, 131, 130),
        ),  # the last layer is narrower than 256, too; x is copied
        ("kn", "float32", "ieee", "inf", mlp(70, 13, 130, 35, 5)),
        ("kn", "bfloat16", "ieee", "inf", mlp(130, 67, 129, 5)),  # x is copied
        ("nk", "float16", "ieee", "nan", mlp(3, 72, 77, 40)),  # few rows
    ],
)
def test_layers_of_an_mlp_have_rows_of_whole_vectors(run_cells, kernels, layout, dtype, precision, inputs, sizes):
    """Behind a hidden layer's width there are zeros, also in rows of infinities."""
    case = make_case(kernels["fused_mlp"], sizes, dtype, precision, {"w_layout": layout, "last": "sigmoid"})
    (record,) = run_cells([Cell(case, "cuda", "default", config={"KERNEL": "layers"}, inputs=inputs)])
    assert record.status == "ok", record.reason


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("M", "LAYERS", "P1"), [(130, 2, 100), (37, 1, 1)])
def test_the_layer_behind_outer_products_shares_its_weights_out(run_cells, kernels, M, LAYERS, P1, dtype):
    """Vectors of whole 16 bytes, of which slabs begin at any; more tiles than one, and pieces with fewer slabs than others."""
    sizes = {"M": M, "F": 3, "V": 50, "D": 8, "LAYERS": LAYERS, "N0": 13, "N1": 16, "N2": 1, "N3": 1, "P1": P1, "P2": 1}
    case = make_case(kernels["dlrm"], sizes, dtype, options={"interaction": "outer"})
    (record,) = run_cells([Cell(case, "cuda", "modulus")])
    assert record.status == "ok", record.reason
