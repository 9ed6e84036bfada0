"""What is an implementation's own: the kernels that are watched, and whose a finding is."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import FIXTURES

from fusebench import discovery
from fusebench.cases import make_case
from fusebench.contract import Device
from fusebench.sanitizer import own
from fusebench.sanitizer.log import Place, Reported

ROOTS = discovery.roots_of([FIXTURES / "sanitized"])
KERNELS = discovery.find_kernels(ROOTS)
H200 = Device("cuda", "NVIDIA H200", (9, 0), 132)
A100 = Device("cuda", "NVIDIA A100", (8, 0), 108)
MIRRORED = own.of(KERNELS["mirrored"].implementations["cuda"], ROOTS)


@pytest.fixture(autouse=True)
def importable():
    discovery.use_roots(ROOTS)


def of(kernel, implementation):
    return own.of(KERNELS[kernel].implementations[implementation], ROOTS)


@pytest.mark.parametrize(
    "name", [n for n, k in KERNELS.items() if "cuda" in k.implementations and k.implementations["cuda"].fused]
)
def test_every_launch_in_cuda_is_watched(name):
    kernel = KERNELS[name]
    module, implementation = discovery.load_implementation(name, "cuda"), kernel.implementations["cuda"]
    known = own.of(implementation, ROOTS)
    for variant, device in ((v, d) for v in implementation.variants for d in (H200, A100)):
        for dtype in ("float32", "bfloat16"):
            case = make_case(kernel, "odd", dtype)
            if module.skip(case, variant, device) is None:
                config = module.config(case, variant, device) if implementation.tunables else {}
                launched = {
                    launch.program.name.split("<")[0] for launch in module.launches(case, variant, device, config)
                }
                assert launched <= known.names
                assert all(f"kns={len(name)}{name}" in known.symbols for name in launched), "as C++ mangles it"


@pytest.mark.parametrize("name", [n for n, k in KERNELS.items() if "triton" in k.implementations])
def test_every_launch_in_triton_is_watched(name):
    for implementation in {"triton", "jax_triton"} & set(KERNELS[name].implementations):
        known = of(name, implementation)
        assert known.fused and known.names and f"kns={min(known.names)}" in known.symbols
        assert not any(symbol.startswith("kne=") for symbol in known.symbols), "nothing of cuda.cu"
    file = KERNELS[name].folder / "_triton_kernels.py"
    text = (file if file.exists() else KERNELS[name].implementations["triton"].file).read_text()
    own_names = {block.split("(")[0] for block in text.split("@triton.jit\ndef ")[1:]}
    assert own_names <= known.names


def test_of_a_library_nothing_is_watched_alone():
    known = of("lola", "torch_eager")
    assert not known.fused and not known.names and known.symbols == ()
    assert not known.has(
        Reported("race", Place("void at::native::softmax<float>(float *)", "", 0, "0x10")), "racecheck"
    )


def test_kernels_behind_any_attributes():
    text = """
    template <int N> __global__ void __launch_bounds__(F<N, (N > 1 ? 2 : 1)>(N), 2)
        tall(const float* x) {}
    extern "C" __global__ __launch_bounds__(128) void plain (int n) {}
    __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(32) grouped(int n) { }
    static __global__ void bare() {}
    """
    assert own.global_names(text) == ["tall", "plain", "grouped", "bare"]


@pytest.mark.parametrize(
    ("function", "plain", "base"),
    [
        ("void mlp<float, (bool)1, (int)16>(const T1 *, (unnamed) *)", "mlp<float, true, 16>", "mlp"),
        ("mirror", "mirror", "mirror"), ("mirror(int)", "mirror", "mirror"), ("void a::b<c::d>::e<(long)-3>(int (*)(int))", "a::b<c::d>::e<-3>", "e"),
        ("", "", ""), ("outlineSync()", "outlineSync", "outlineSync"), ("unsigned int f<g(int)>(int)", "f<g(int)>", "f"),
    ],
)  # fmt: skip
def test_names_as_a_reader_knows_them(function, plain, base):
    assert (own.plain_name(function), own.base_name(function)) == (plain, base)


@pytest.mark.parametrize(
    ("reported", "tool", "ours"),
    [
        (Reported("x", Place("void mirror<float>(float *)", "", 0, "0x1")), "initcheck", True),
        (Reported("x", Place("void at::fill<float>(float *)", "", 0, "0x1")), "initcheck", False),
        (Reported("x", Place("at::fill", str(FIXTURES / "sanitized/mirrored/cuda.cu"), 3)), "initcheck", True),
        (Reported("x", Place("at::fill", "cuda.cu", 3)), "initcheck", False),
        (Reported("x", Place("inlined"), frames=(Place("mirror<float>(float *)"),)), "initcheck", True),
        (Reported("x", Place("inlined"), others=(Place("mirror<float>(float *)"),)), "initcheck", True),
        (Reported("x", Place("__shfl_sync(int)", "/usr/include/sm_30.hpp", 3)), "racecheck", True),
        (Reported("x", on_host=True), "memcheck", False),
    ],
)  # fmt: skip
def test_whose_a_finding_is(reported, tool, ours):
    assert MIRRORED.has(reported, tool) is ours


def test_files_are_named_below_their_folder():
    assert MIRRORED.file(Place("f", str(FIXTURES / "sanitized/mirrored/cuda.cu"), 3)) == "mirrored/cuda.cu"
    assert MIRRORED.file(Place("f", str(discovery.HOME / "_shared/cuda/device.cuh"), 3)) == "_shared/cuda/device.cuh"
    assert MIRRORED.file(Place("f", "/usr/include/x.h", 3)) == "" and not Path("cuda.cu").is_absolute()
