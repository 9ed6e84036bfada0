"""Rows elsewhere in each call: what remembers or recognises inputs is wrong, what is right stays so."""

from __future__ import annotations

import importlib
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from conftest import FIXTURES

from fusebench import discovery
from fusebench.backends import numpy as plain
from fusebench.cases import make_case
from fusebench.contract import Cell, Device
from fusebench.inputs import make_sets
from fusebench.parity.judge import Judge
from fusebench.run import run
from fusebench.settings import Run, Settings
from fusebench.timing.plan import Plan
from fusebench.workers.guard import foreign_kernels
from fusebench.workers.pool import InlinePool
from fusebench.workers.repeats import Repeats
from fusebench.workers.rows import Move, Mover

ROOTS = discovery.roots_of([FIXTURES / "faults"])
KERNELS = discovery.find_kernels([FIXTURES / "faults"])
CPU = Device("cpu", "test")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A function from a kernel's implementation to its record, timed without yardsticks, in this process."""
    pool = InlinePool("cpu", ROOTS)
    pool.rates = dict.fromkeys(("copy_gbps", "read_gbps", "launch_s", "ieee_tflops", "matrix_tflops", "float32_tflops"))

    def done(kernel, name, **settings):
        cell = Cell(make_case(KERNELS[kernel], "small"), name, "default")
        folder = tmp_path_factory.mktemp("rows")
        this = Run(KERNELS, ROOTS, folder, Settings("cpu", Plan(0.05), inline=True, **settings))
        return next(iter(run(this, [cell], pool)))

    return done


@pytest.mark.parametrize("name", ["by_content", "by_first_element"])
def test_what_knows_its_inputs_by_a_few_elements_is_wrong(results, name):
    record = results("exponentials", name)
    assert record.status == "wrong" and record.timing is None
    assert " rows_seed=" in record.reproduce


@pytest.mark.parametrize("name", ["with_maximum", "edge_tile"])
def test_what_is_right_is_right_wherever_its_rows_stand(results, name):
    record = results("exponentials", name, rows_seed=7)
    assert record.status == "ok" and record.timing is not None
    assert record.parity.nondeterministic is None and record.parity.rows_seed == 7


def test_outputs_that_waver_are_still_seen(results):
    record = results("exponentials", "wavers")
    assert record.status == "ok" and 0 < record.parity.nondeterministic.max_abs < 1e-6


def test_rows_whose_numbers_matter_stay_where_they_are(results):
    record = results("numbered", "fine")
    assert record.status == "ok" and record.parity.rows_seed is None


def judged(kernel, **mathematics):
    case = make_case(KERNELS[kernel], "odd")
    changed = replace(KERNELS[kernel].mathematics, **mathematics)
    return Judge(changed, case, make_sets(changed, case, 0, 1)[0]).movable_rows()


def test_which_rows_may_stand_in_any_order():
    assert judged("exponentials") == ({0: 0}, (0,)) and judged("numbered") is None and judged("fault") is None
    assert judged("exponentials", outputs=("loss",)) is None, "an output that sums over rows"
    one_row = {"odd": {"M": 1, "N": 3}}
    assert (
        Judge(
            KERNELS["exponentials"].mathematics,
            replace(make_case(KERNELS["exponentials"], "odd"), sizes=one_row["odd"]),
            {"x": np.ones((1, 3), np.float32)},
        ).movable_rows()
        is None
    )


@pytest.mark.parametrize("move", [Move(0, (0, 0), 5), Move(2, (1, 4), 5), Move(4, (3, 3), 5), Move(1, (0, 4), 5)])
@pytest.mark.parametrize("axis", [0, -2, 1])
def test_a_move_and_the_one_back_leave_each_row_where_it_was(move, axis):
    array = np.arange(50.0).reshape((5, 10) if axis == 0 else (2, 5, 5))
    there = plain.move_rows(array, axis, move.shift, move.exchanged)
    again = plain.move_rows(there, axis, move.back().shift, move.back().exchanged)
    assert np.array_equal(again, array) and not np.shares_memory(there, array)
    assert sorted(there.ravel().tolist()) == array.ravel().tolist()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "int32", "bool"])
@pytest.mark.parametrize("name", ["torch", "jax", "jax as on a GPU"])
def test_every_back_end_moves_rows_alike(monkeypatch, name, dtype):
    name, _, elsewhere = name.partition(" ")
    backend = importlib.import_module(f"fusebench.backends.{name}")
    if name == "jax":
        backend.jax.config.update("jax_enable_x64", True)
    if elsewhere:
        monkeypatch.setattr(backend, "_on_host", lambda: False)
    array = np.arange(24).reshape(2, 4, 3).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    here = backend.put(array, CPU)
    for axis, shift, exchanged in ((1, 3, (0, 2)), (-2, 1, (3, 3)), (0, 1, (1, 0))):
        moved = backend.move_rows(here, axis, shift, exchanged)
        expected = plain.move_rows(array, axis, shift, exchanged)
        assert np.array_equal(backend.get(moved), expected) and np.array_equal(backend.get(here), array)
        assert backend.memory(moved) != backend.memory(here)


def test_a_mover_moves_what_has_rows_copies_what_varies_and_leaves_weights():
    mover = Mover(plain, frozenset({0, 2}), {0: 0}, (0,), seed=3)
    x, w, scale = np.arange(12.0).reshape(6, 2), np.ones(2), np.ones(1)
    arguments = mover.place([x, w, scale])
    assert type(arguments) is list, "JAX waits for no other"
    assert arguments[1] is w and arguments[2] is not scale and np.array_equal(arguments[2], scale)
    (y,) = mover.restored(3 * arguments[0], mover.move_of(arguments))
    assert np.array_equal(y, 3 * x) and not np.array_equal(arguments[0], x)
    again = mover.place([x, w, scale], mover.move_of(arguments))
    assert np.array_equal(again[0], arguments[0])
    assert len({mover.move_of(mover.place([x, w, scale])) for _ in range(20)}) > 10, "each call has its own"
    (short,) = mover.restored(np.ones((3, 2)), mover.move_of(arguments))
    assert short.shape == (3, 2), "the judge says what is wrong with it"


A = np.arange(4, dtype=np.float32)


def test_another_place_is_judged_and_is_a_spread_only_if_it_changes_there():
    repeats = Repeats(plain)
    repeats.see(0, A, "here")
    assert repeats.see(0, A, "there") and not repeats.see(0, A + 1, "elsewhere")
    assert not repeats.see(0, A + 1, "elsewhere") and repeats.found() is None
    assert [(s, o[0].tolist()) for s, o in repeats.take()] == [(0, (A + 1).tolist())]
    assert not repeats.see(0, A + 2, "elsewhere") and repeats.found().calls == 1
    assert repeats.see(0, A, "elsewhere") and repeats.found().calls == 2, "not what it was there before"


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, 3ul>",
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128>",
        "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64",
        "triton_red_fused_native_layer_norm_0",
        "loop_add_multiply_fusion",
        "input_reduce_fusion_1",
        "gemm_fusion_dot_1",
    ],
)
def test_kernels_of_libraries_are_known_by_their_names(name):
    assert foreign_kernels([name, "add_relu"]) == [name]


@pytest.mark.parametrize(
    "name",
    [
        "multirow_ws",
        "void mlp_cluster<float, true, false, 16, 128>(float const*)",
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>",
        "loop_convert_fusion",
        "wrapped_transpose",
        "_attention_forward",
    ],
)
def test_kernels_of_ones_own_and_copies_are_let_pass(name):
    assert foreign_kernels([name]) == []
