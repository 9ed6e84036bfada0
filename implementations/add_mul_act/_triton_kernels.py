"""add_mul_act in Triton: the kernel that triton.py and jax_triton.py both launch, for both variants."""

import triton
import triton.language as tl

from implementations._shared.gpu import VECTOR_BYTES
from implementations._shared.triton import elementwise
from implementations._shared.triton.elementwise import activate, last_elements, tanh, whole_vectors
from implementations._shared.triton.launch import TYPES, launch_with
from implementations.add_mul_act import _triton_backward as backward

TUNABLES = {
    ("default", "in_place"): {"BLOCK": (128, 256, 512, 1024, 2048, 4096, 8192), "num_warps": (1, 2, 4, 8)},
    "default": {  # those of mode=backward
        "gradient_ROWS": (1, 2, 4, 8, 16, 32, 64, 128, 256), "gradient_COLUMNS": (8, 16, 32, 64, 128, 256, 512, 1024),
        "gradient_PARTS": (1, 4, 16, 64, 128, 256, 512), "gradient_num_warps": (1, 2, 4, 8),
    },
}  # fmt: skip
INPUTS = 2  # of as many elements as y


def config(case, variant, device):
    """The tunables: elements of a block, and its warps."""
    return elementwise.config(case, device, INPUTS) if case.mode == "forward" else backward.config(case, device)


def fits(case, variant, device, config):
    """Why a config cannot run, or None."""
    return (
        elementwise.fits(case, device, config, INPUTS)
        if case.mode == "forward"
        else backward.fits(case, device, config)
    )


def launches(case, variant, device, config):
    """One launch. `in_place` passes x as y. In mode=backward those of _triton_backward.py, in forward_backward both."""
    if case.mode != "forward":
        behind = backward.launches(case, config)
        return (
            behind
            if case.mode == "backward"
            else (forward_launch(case, elementwise.config(case, device, INPUTS)), *behind)
        )
    return (forward_launch(case, config),)


def forward_launch(case, config):
    """`add_mul_act`."""
    M, N = case.size("M", "N")
    pointer, vector = TYPES[case.dtype], VECTOR_BYTES // case.itemsize
    signature = dict.fromkeys(("x", "z", "multiplier", "b"), pointer)
    signature |= {"count": "i32" if M * N < 2**31 else "i64", "y": pointer}
    options = {"N": N, "ACTIVATION": case.options["activation"], "VECTOR": vector}
    grid = (triton.cdiv(M * N, config["BLOCK"]),)
    return launch_with(config, add_mul_act, signature, options, grid)


@triton.jit
def activate_sum(s, ACTIVATION: tl.constexpr, PRECISE: tl.constexpr):
    """The activation of sums. PRECISE, of float32: tanh GELU near 0 is made of a tanh, whose errors are lost beside 1. Those of an exponential and a
    quotient, which are small anywhere, are all that a small sum has."""
    value = activate(s, ACTIVATION)
    if PRECISE and ACTIVATION == "gelu_tanh":
        u = s * (0.7978845608028654 + 0.035677408136300125 * s * s)
        value = tl.where(tl.abs(u) < 1.0, 0.5 * s + 0.5 * s * tanh(u), value)
    return value


@triton.jit
def step(x, z, scale, b, y, i, columns, inside, ACTIVATION: tl.constexpr):
    """The elements at x + i and z + i, which are in these columns."""
    bias = tl.load(b + columns).to(tl.float32)
    total = tl.load(x + i, mask=inside, other=0.0).to(tl.float32)
    total += scale * tl.load(z + i, mask=inside, other=0.0).to(tl.float32)
    value = activate_sum(total + bias, ACTIVATION, y.dtype.element_ty == tl.float32)
    tl.store(y + i, value.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def add_mul_act(
    x, z, multiplier, b, count, y,
    N: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """BLOCK of the `count` elements of x, z and y; x and y may be the same array, and y is None for x."""
    if y is None:
        y = x
    start = tl.program_id(0).to(tl.int64) * BLOCK
    scale = tl.load(multiplier).to(tl.float32)
    i, columns, inside = whole_vectors(start, count, N, BLOCK, VECTOR)
    step(x + start, z + start, scale, b, y + start, i, columns, inside, ACTIVATION)
    if N % VECTOR != 0:  # noqa: SIM102 (one test when compiled, one in the kernel)
        if start + BLOCK > count:
            rest, rest_columns, rest_inside = last_elements(start, count, N, VECTOR)
            step(x + start, z + start, scale, b, y + start, rest, rest_columns, rest_inside, ACTIVATION)
