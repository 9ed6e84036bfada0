"""What a GPU does in one pass over memory, compiled for the host: the same values, and the same noise, as NumPy's text."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch
import toys

from fusebench.dtypes import FORMATS
from fusebench.parity import jitted
from fusebench.parity.elements import deviation_of_sum, drawn_on_gpu, larger, spacing, stored, summed
from fusebench.parity.noise import Noisy
from fusebench.parity.rounding import Exact
from fusebench.parity.tensor import Random, Tensor

CODES = [
    getattr(jitted, name) for name in ("SPACING", "STORED", "COMPUTED", "ROUNDED", "LARGER", "DEVIATION", "SUMMED")
]
HEAD = """
#include <cmath>
#include <cstring>
using namespace std;
static long long __double_as_longlong(double x) { long long bits; memcpy(&bits, &x, 8); return bits; }
static double __longlong_as_double(long long bits) { double x; memcpy(&x, &bits, 8); return x; }
"""


def signature(code):
    """The name of a function, and how many arguments it has."""
    name, arguments = re.search(r"T (\w+)\((.*?)\)", code).groups()
    return name, arguments.count("T ")


def loop(code):
    """A C function that calls it for each of n elements."""
    name, count = signature(code)
    values = ", ".join(f"a[{k}][i]" for k in range(count))
    return f'extern "C" void all_{name}(long n, double** a, double* out) {{ for (long i = 0; i < n; i++) out[i] = {name}<double>({values}); }}'


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("jitted")
    (folder / "all.cpp").write_text("\n".join([HEAD, *CODES, *map(loop, CODES)]))
    subprocess.run(
        ["g++", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "all.cpp", "-o", "all.so"], cwd=folder, check=True
    )
    return ctypes.CDLL(str(folder / "all.so"))


@pytest.fixture
def on_gpu(library, monkeypatch):
    """Tensors here count as on a GPU."""

    def compiled(code, names):
        function = getattr(library, f"all_{signature(code)[0]}")

        def call(*tensors, **scalars):
            values = [*(t.double() for t in tensors), *(torch.tensor(scalars[n], dtype=torch.float64) for n in names)]
            values = [v.contiguous() for v in torch.broadcast_tensors(*values)]
            out = torch.empty_like(values[0])
            pointers = (ctypes.c_void_p * len(values))(*(v.data_ptr() for v in values))
            function(ctypes.c_long(out.numel()), pointers, ctypes.c_void_p(out.data_ptr()))
            return out

        return call

    monkeypatch.setattr(jitted, "_compiled", compiled)
    monkeypatch.setattr(Tensor, "is_cuda", True)


def values_of(dtype):
    """Ties, edges, subnormals, what is not finite, and ordinary ones."""
    mantissa, smallest, highest = FORMATS[dtype]
    near_1 = 1 + 2.0**-mantissa * np.arange(0, 4, 0.25)
    edges = np.array(
        [2.0**smallest, 2.0 ** (smallest - mantissa), highest, 1.001 * highest, 2 * highest, 0.0, np.inf, np.nan]
    )
    found = np.concatenate([near_1, edges, 2.0**smallest * near_1 / 8, np.random.default_rng(1).standard_normal(1000)])
    return np.stack([found, -found])


def tensor(array):
    return Tensor(torch.from_numpy(np.array(array)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_spacings_and_stored_values_are_numpy_s(on_gpu, dtype):
    values = values_of(dtype)
    np.testing.assert_array_equal(spacing(tensor(values), dtype, 0.7).tensor, spacing(values, dtype, 0.7))
    np.testing.assert_array_equal(stored(tensor(values), dtype).tensor, stored(values, dtype))


class Given:
    """A generator with the same numbers, as arrays or as tensors."""

    def __init__(self, wrapped):
        self.wrapped, self.generator = wrapped, np.random.default_rng(4)

    def random(self, shape, dtype):
        return self.wrapped(self.generator.random(shape, dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("points", [(), ("p",), ("subnormals",)])
def test_the_noise_of_a_place_is_numpy_s(on_gpu, dtype, points):
    """In the first draw, whose values the noise of all has its size from on a CPU."""
    values, case = values_of(dtype), toys.case(dtype)

    def noisy(make, value):
        r = Noisy(case, points, Given(make))
        with np.errstate(all="ignore"):
            return r.round("p", value), r.compute(value), r.function(value)

    for got, expected in zip(noisy(tensor, tensor(values)), noisy(np.asarray, values), strict=True):
        np.testing.assert_allclose(got.tensor, expected, rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize("how", ["computed", "rounded"])
def test_noise_takes_beyond_the_largest_number_what_rounding_may(on_gpu, how):
    """An operation overflows by its noise; what is stored overflows by its value."""
    highest = FORMATS["bfloat16"][2]
    values, noise = np.array([highest, -highest, highest, 2 * highest]), np.array([0.4, 0.4, -0.4, -0.4], np.float32)
    values = values * (1 if how == "computed" else 1 - 2.0**-20)  # what is in the dtype would stay
    unit = spacing(values, "bfloat16")
    got = drawn_on_gpu(how, tensor(values), tensor(noise), "bfloat16").tensor.numpy()
    moved = values + noise.astype(float) * unit
    expected = [np.inf, moved[1], moved[2], np.inf] if how == "computed" else [*moved[:3], np.inf]
    np.testing.assert_allclose(got, expected, rtol=1e-15)


def test_the_noise_of_sums_is_numpy_s(on_gpu):
    rng = np.random.default_rng(3)
    total, squares, in_order = rng.standard_normal((3, 500)) ** 2
    for a in (total, squares, in_order):
        a[rng.integers(0, 500, 30)] = np.nan
        a[rng.integers(0, 500, 30)] = np.inf
    for function in (
        lambda t, s, o: deviation_of_sum(t, s, o, 7, 2.0**-5, 0.01), lambda t, s, o: larger(t, -2 * s, 0.1), lambda t, s, o: larger(t, t, 1.0),
        lambda t, s, o: summed(t, s, 0.3, o, t + 1),
    ):  # fmt: skip
        with np.errstate(all="ignore"):
            expected = function(total, squares, in_order)
        np.testing.assert_allclose(function(*map(tensor, (total, squares, in_order))).tensor, expected, rtol=1e-14)


def formula(r, x, W):
    """Every kind of noise of large values."""
    e = r.function(np.exp(r.compute(x - x.max(axis=1, keepdims=True))))
    p = r.round("p", e / r.sum(e, axis=1, keepdims=True))
    return r.round("output", r.dot(p, W))


@pytest.mark.parametrize(("dtype", "precision"), [("float32", "ieee"), ("float32", "tf32"), ("bfloat16", "ieee")])
def test_noise_on_a_gpu_has_the_same_size(on_gpu, dtype, precision):
    rng = np.random.default_rng(5)
    arrays, case, sizes = (rng.standard_normal((9, 40)), rng.standard_normal((40, 70))), toys.case(dtype, precision), []
    for make, wrapped in ((np.random.default_rng, np.asarray), (lambda seed: Random("cpu", seed), tensor)):
        given = [wrapped(a) for a in arrays]
        exact, rounds = formula(Exact(), *given), [Noisy(case, ("p",), make(seed)) for seed in range(8)]
        errors = [formula(r.next_draw(), *given) - exact for r in rounds for _ in range(16)]
        sizes.append(np.std([e.tensor.numpy() if isinstance(e, Tensor) else e for e in errors]))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)
