"""CUDA kernels on a machine without a GPU: the emulator computes what a device computes, and finds what a device may do wrong.

test_parity.py and test_backward.py judge every CUDA implementation in odd sizes, test_emulated_kernels.py and test_emulated_gradients.py those that they do not take.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import DEVICE

from fusebench import discovery
from fusebench.backends import torch as torch_backend
from fusebench.backends.cuda import CompileError, Program
from fusebench.cases import make_case
from fusebench.emulator.device import ARCH, emulated
from fusebench.emulator.launcher import TensorMap
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


def test_rows_of_no_whole_vectors_have_no_tensor_map():
    """The driver makes none of them."""
    TensorMap(torch.zeros(4, 104, dtype=torch.bfloat16), (8, 64), False, False)
    with pytest.raises(Fault, match=r"no tensor map of \(4, 99\)"):
        TensorMap(torch.zeros(4, 99, dtype=torch.bfloat16), (8, 64), False, False)


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
