"""What `fits` prunes against the compiler's verdict, for drawn configs on an H200: shared memory and registers. No GPU is asked."""

from __future__ import annotations

import random

import pytest
from test_ahead_of_time import DEVICES, KERNELS, SHARED_BYTES, compile_triton

from fusebench import discovery
from fusebench.cases import make_case
from fusebench.inspection import elf
from fusebench.workers import configs, protocol

H200, LIMIT = DEVICES[90], SHARED_BYTES[90]
REGISTERS = 65_536  # of a multiprocessor
NEAR = 12 << 10  # bytes beside the tiles that `fits` counts in
TILES = {
    "BLOCK_M": (16, 64),
    "BLOCK_N": (32, 64),
    "BLOCK_K": (64, 128),
    "GROUP": (8,),
    "num_warps": (4,),
    "num_stages": (2, 8),
}
ROWS = {"ROWS": (1, 2, 16), "num_warps": (1, 8)}


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """Kernels are loaded for the compiler, whatever an earlier file of the process interpreted."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    discovery.use_roots([discovery.HOME])


def asked(name, implementation, variant, case, dtype, space):
    """The implementation's module, the case, and what `fits` says of the configs of a space."""
    module = discovery.load_implementation(name, implementation)
    made = make_case(KERNELS[name], case, dtype)
    found = KERNELS[name].implementations[implementation]
    space = space or found.tunables[variant]
    return (
        module,
        made,
        configs.fitting(module, found, protocol.AskFits(made, implementation, variant, space, 10**6), H200),
    )


def drawn(configs_of, count, seed=3):
    return random.Random(seed).sample(list(configs_of), count)


@pytest.mark.parametrize(("name", "variant"), [("splacc", "two_accumulators"), ("lola", "multirow_ws")])
def test_shared_memory_of_triton_is_what_the_compiler_takes(name, variant):
    module, case, answer = asked(name, "triton", variant, "batch", "bfloat16", TILES)
    misfits = [config for config, reason in answer.misfits if "KB of shared memory" in reason]
    for config, fits in [*((c, True) for c in drawn(answer.fitting, 1)), (drawn(misfits, 1)[0], False)]:
        (launch,) = module.launches(case, variant, H200, config)
        shared = compile_triton(launch, 90).metadata.shared
        assert shared <= LIMIT if fits else shared > LIMIT - NEAR, config


def test_registers_that_fits_counts_hold_what_the_compiler_puts_there():
    """The other way round takes ptxas half a minute a config: to spill is slow."""
    module, case, answer = asked("softmax", "triton", "row", "published", "float32", ROWS)
    assert [reason for _, reason in answer.misfits] == ["each thread holds 512 values; it has 255 registers"]
    for config in drawn(answer.fitting, 1):
        (launch,) = module.launches(case, "row", H200, config)
        made = compile_triton(launch, 90)
        assert elf.resources(made.asm["cubin"], made.metadata.name).stack == 0, config


@pytest.mark.parametrize(("name", "variant"), [("lola", "multirow_ws"), ("splacc", "two_accumulators")])
def test_what_fits_of_cuda_has_the_memory_and_the_registers_that_it_takes(name, variant):
    pytest.importorskip("cuda.core")
    from fusebench.backends.cuda import compile_cubin

    module, case, answer = asked(name, "cuda", variant, "batch", "bfloat16", {})
    assert answer.misfits, "some do not"
    for config in drawn(answer.fitting, 3):
        for launch in module.launches(case, variant, H200, config):
            program = launch.program
            cubin = compile_cubin(program.file, "sm_90a", [program.name], program.defines)
            found = elf.resources(cubin.code, cubin.symbols[program.name])
            assert launch.shared_memory + found.shared <= LIMIT, config
            assert found.registers * launch.block <= REGISTERS, config
