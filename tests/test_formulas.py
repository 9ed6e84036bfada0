"""Every kernel's formula against its mathematics written another way: plain loops, SciPy, or Torch in float64.

Sizes are small, and no two of a case are equal, so that an axis taken for another shows.
"""

from __future__ import annotations

import importlib
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.special import expit
from scipy.stats import norm

from fusebench import discovery
from fusebench.cases import make_case
from fusebench.contract import PRECISIONS
from fusebench.inputs import make_sets
from fusebench.modes import sums_rows
from fusebench.parity.rounding import Exact
from implementations._shared.numpy import formulas

KERNELS = discovery.find_kernels([discovery.HOME])
FUSED_MLP = importlib.import_module("implementations.fused_mlp.kernel")


def act(name, z):
    return {
        "none": lambda: z,
        "relu": lambda: torch.relu(torch.from_numpy(z)).numpy(),
        "sigmoid": lambda: expit(z),
        "tanh": lambda: np.sinh(z) / np.cosh(z),
        "silu": lambda: z / (1 + np.exp(-z)),
        "gelu_tanh": lambda: torch.nn.functional.gelu(torch.from_numpy(z), approximate="tanh").numpy(),
        "gelu_erf": lambda: z * norm.cdf(z),
    }[name]()


def product(o, x, W):
    """x (M, K) times W, (K, N) or (N, K), term by term."""
    W = W if o.get("w_layout", "kn") == "kn" else [[row[k] for row in W] for k in range(len(W[0]))]
    return np.array([[math.fsum(row[k] * W[k][n] for k in range(len(row))) for n in range(len(W[0]))] for row in x])


def add_relu(o, x, b):
    return np.array([[max(v, 0.0) for v in (row + b)] for row in x])


def add_mul_act(o, x, z, multiplier, b):
    return act(
        o["activation"],
        np.array([[x[i, j] + float(multiplier) * z[i, j] + b[j] for j in range(len(b))] for i in range(len(x))]),
    )


def embedding(o, ids, tables, offsets, known=None):
    y = np.empty((*ids.shape, tables.shape[1]))
    for (m, f), value in np.ndenumerate(ids):
        first, last = int(offsets[f]), int(offsets[f + 1]) - 1
        if o["hashing"] == "modulus":
            row = first + (int(value) + 1) % (last + 1 - first)
        else:
            listed = known[first:last].tolist()
            row = first + listed.index(value) if value in listed else last
        y[m, f] = tables[row]
    return y


def fused_mlp(o, x, *layers):
    for i in range(0, len(layers), 2):
        x = product(o, x, layers[i]) + layers[i + 1]
        x = act("relu" if i + 2 < len(layers) else o["last"], x)
    return x


def dlrm(o, dense, ids, tables, offsets, *rest):
    known = rest[-1] if o["hashing"] == "lookup" else None
    layers = rest[:-1] if o["hashing"] == "lookup" else rest
    bottom = next(n for n in range(2, len(layers) + 1, 2) if layers[n - 2].shape[1] == tables.shape[1])
    x = fused_mlp({"last": "none"}, dense, *layers[:bottom])
    crossed = interaction({"form": o["interaction"]}, x, embedding(o, ids, tables, offsets, known))
    return fused_mlp({"last": "sigmoid"}, crossed, *layers[bottom:])


def dlrm_parts(o, dense, ids, tables, offsets, *rest):
    """The outputs side by side, rows as floats."""
    known = rest[-1] if o["hashing"] == "lookup" else None
    layers = rest[:-1] if o["hashing"] == "lookup" else rest
    bottom = next(n for n in range(2, len(layers) + 1, 2) if layers[n - 2].shape[1] == tables.shape[1])
    x, numbered = fused_mlp({"last": "none"}, dense, *layers[:bottom]), np.arange(len(tables))[:, None]
    rows, sparse = (embedding(o, ids, of, offsets, known) for of in (numbered, tables))
    if o["until"] == "interaction":
        return interaction({"form": o["interaction"]}, x, sparse)
    return {"dense": x, "hashing": beside([x, rows]), "embedding": beside([x, sparse])}[o["until"]]


def beside(arrays):
    """Arrays of the same rows in one; flat where they are not of the same rows."""
    shapes = [np.shape(a) for a in arrays]
    if all(shapes) and len({shape[0] for shape in shapes}) == 1:
        return np.concatenate([np.reshape(a, (len(a), -1)) for a in arrays], axis=1)
    return np.concatenate([np.reshape(a, (-1,)) for a in arrays], axis=0)


def mlp_products(o, x, *layers):
    for W in layers[::2]:
        x = product(o, x, W)
    return x


def geglu(o, x, W, b):
    return gated(o, product(o, x, W) + b)


def gated(o, Z):
    N = Z.shape[1] // 2
    return np.array([[row[n] * act(o["activation"], row[N + n : N + n + 1])[0] for n in range(N)] for row in Z])


def interaction(o, dense, sparse):
    rows = []
    for vectors in ([d, *s] for d, s in zip(dense, sparse, strict=True)):
        if o["form"] == "outer":
            x = [v for vector in vectors for v in vector]
            rows.append([a * b for a in x for b in x])
        else:
            pairs = [(i, j) for i in range(len(vectors)) for j in range(i)]
            rows.append([*vectors[0], *(math.fsum(vectors[i] * vectors[j]) for i, j in pairs)])
    return np.array(rows)


def launch(o, x):
    return x


def lola(o, x, W, b):
    normed = torch.nn.functional.layer_norm(torch.from_numpy(x), x.shape[1:], eps=1e-5).numpy()
    return act(o["activation"], product(o, normed, W) + b)


def lora_linear(o, x, scale, W, b, A, B):
    return act(o["activation"], product(o, x, W) + b + float(scale) * product({}, product({}, x, A), B))


def lora_mlp(o, x, scale, *arrays):
    for i in range(0, len(arrays), 4):
        layer = o | {"activation": "relu" if i + 4 < len(arrays) else o["last"]}
        x = lora_linear(layer, x, scale, *arrays[i : i + 4])
    return x


def softmax(o, x):
    return torch.softmax(torch.from_numpy(x), dim=-1).numpy()


def padded_softmax(o, att, n_padd):
    """Row by row over what it sees alone, n_padd <= j <= i."""
    y, n = np.zeros_like(att), int(n_padd)
    for i in range(n, len(att)):
        y[i, n : i + 1] = softmax(o, att[i, n : i + 1])
    return y


def padded_softmax_v(o, att, v, n_padd):
    y, n = np.zeros_like(v), int(n_padd)
    for i in range(n, len(att)):
        y[i] = softmax(o, att[i, n : i + 1]) @ v[n : i + 1]
    return y


def padded_attention(o, q, k, v, n_padd):
    y = np.empty_like(q)
    for b, h in np.ndindex(q.shape[:2]):
        scores = q[b, h] @ k[b, h].T / math.sqrt(q.shape[-1])
        y[b, h] = padded_softmax_v(o, scores, v[b, h], n_padd[b])
    return y


def shcsa(o, x, n_padd, W, b):
    q, k, v = np.split(product(o, x, W) + b, 3, axis=1)
    return padded_softmax_v(o, q @ k.T / math.sqrt(q.shape[1]), v, n_padd)


def splacc(o, A, B):
    C = product(o, A, B)
    N = C.shape[1] // 2
    return np.array([[expit(row[n]) * math.tanh(row[N + n]) for n in range(N)] for row in C])


WHOLE = [add_mul_act, add_relu, dlrm, dlrm_parts, embedding, fused_mlp, geglu, interaction, launch, lola, lora_linear, lora_mlp, padded_attention,
         padded_softmax, padded_softmax_v, shcsa, softmax, splacc]  # fmt: skip
PARTS = {
    ("fused_mlp", "products"): mlp_products,
    ("geglu", "product"): lambda o, x, W, b: product(o, x, W),
    ("geglu", "without_bias"): lambda o, x, W, b: geglu(o, x, W, 0),
    ("lola", "product"): lambda o, x, W, b: product(o, x, W),
    ("lora_linear", "product"): lambda o, x, scale, W, b, A, B: product(o, x, W),
    ("splacc", "product"): product,
}
FORMULAS = {(f.__name__, ""): f for f in WHOLE} | PARTS
# padding is at most 8 tokens: more tokens than that, so that some see something
SIZES = {
    "M": 3, "K": 5, "N": 4, "R": 2, "F": 3, "D": 6, "V": 40, "T": 11, "B": 2, "H": 3, "C": 7, "LAYERS": 3,
    "N0": 5, "N1": 7, "N2": 4, "N3": 2, "N4": 6, "P1": 8, "P2": 9,
}  # fmt: skip
OF_KERNEL = {"softmax": {"R": 70, "C": 5}, "embedding": {"M": 40}, "launch": {"N": 9}}


def cases(name):
    """Every combination of the kernel's options, in float32 with either way to multiply."""
    kernel = KERNELS[name]
    sizes = {d: (SIZES | OF_KERNEL.get(name, {}))[d] for d in kernel.dimensions}
    for values in itertools.product(*kernel.options.values()):
        options = dict(zip(kernel.options, values, strict=True))
        for precision in PRECISIONS:
            yield make_case(kernel, sizes, "float32", precision, options)
    if "LAYERS" in sizes:
        for layers in (1, 2, 4):
            yield make_case(kernel, sizes | {"LAYERS": layers})


def given(kernel, case, seed=0):
    """The arguments of the formula."""
    (arrays,) = make_sets(kernel.mathematics, case, seed, 1)
    return [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in arrays.values()]


def evaluated(kernel, case, arguments, part="", r=None):
    with np.errstate(all="ignore"):
        outputs = kernel.mathematics.formula_of(part)(case, r or Exact(), *arguments)
    return outputs[0] if len(outputs) == 1 else beside(outputs)


@pytest.mark.parametrize(("name", "part"), FORMULAS, ids=str)
def test_a_formula_is_its_mathematics(name, part):
    kernel = KERNELS[name]
    for case in cases(name):
        arguments = given(kernel, case)
        expected = FORMULAS[name, part](case.options, *arguments)
        np.testing.assert_allclose(
            evaluated(kernel, case, arguments, part), expected, rtol=1e-11, atol=1e-14, err_msg=f"{name} {case.id}"
        )


def test_every_part_has_its_mathematics_here():
    known = {(k.name, part) for k in KERNELS.values() for part in k.mathematics.parts}
    assert known >= set(PARTS)
    assert {k for k, _ in FORMULAS} <= set(KERNELS)


@pytest.mark.parametrize(
    "name", [n for n, k in KERNELS.items() if k.mathematics.rows and not sums_rows(k.mathematics, "forward")]
)
def test_rows_alone_decide_the_same_rows(name):
    kernel = KERNELS[name]
    rows = kernel.mathematics.rows
    for case in cases(name):
        arrays = make_sets(kernel.mathematics, case, 0, 1)[0]
        arguments = given(kernel, case)
        axes, output_axis = [rows.get(n) for n in arrays], kernel.mathematics.output_axis(0, arrays)
        (height,) = {a.shape[axis] for a, axis in zip(arguments, axes, strict=True) if axis is not None}
        chosen = np.array([0, height - 1] if height < 5 else [1, 2, height - 1])
        part = [a if axis is None else np.take(a, chosen, axis) for a, axis in zip(arguments, axes, strict=True)]
        whole = evaluated(kernel, case, arguments)
        assert whole.shape[output_axis] == height
        np.testing.assert_allclose(
            evaluated(kernel, case, part, r=Exact(chosen)),
            np.take(whole, chosen, output_axis),
            rtol=1e-12,
            err_msg=case.id,
        )


class Recorder(Exact):
    """Which points a formula comes to, and how far off its functions are taken to be."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def dot(self, a, b):
        self.steps.append("dot")
        return super().dot(a, b)

    def sum(self, value, axis, keepdims=False, point=""):
        self.steps.append(f"sum {point}".strip())
        return super().sum(value, axis, keepdims, point)

    def compute(self, value):
        self.steps.append("compute")
        return value

    def function(self, value, spacings=4.0):
        self.steps.append(f"function {spacings:g}")
        return value

    def round(self, point, value):
        self.steps.append(point)
        return super().round(point, value)

    def narrow(self, point, value):
        self.steps.append(f"narrow {point}")
        return super().narrow(point, value)

    def one_pass(self, point, value, a, b, scale):
        self.steps.append(point)
        return super().one_pass(point, value, a, b, scale)


STEP = ["activation"]
SOFTMAX = ["shifted", "function 4", "exponentials", "sum", "total", "function 4", "inverse", "compute"]
ATTENTION = ["narrow query", "dot", "scores", "scaled", *SOFTMAX, "probabilities", "dot"]
LINEAR = ["dot", "product", "bias"]
ADAPTED = ["dot", "xa", "scaled_xa", "dot", "xab", *LINEAR, "scaled", "sum"]
SIGMOID = ["function 4", *STEP, *STEP, "function 4", *STEP]
GELU_ERF = [*STEP, *STEP, *STEP, "function 3", *STEP, *STEP]
GELU_TANH = [*STEP * 7, "function 4", *STEP * 3]
# what programs round where, by kernel and option: the names that VARIANTS may declare
STEPS = {
    ("add_relu", ""): ["compute"],
    ("add_mul_act", "activation=none"): ["product", "sum", "bias"],
    ("dlrm", ""): [*[*LINEAR, "hidden"] * 3, "narrow cast", "dot", "interaction", *[*LINEAR, "hidden"] * 2, *LINEAR, *SIGMOID],
    ("dlrm_parts", ""): [*[*LINEAR, "hidden"] * 2, *LINEAR],
    ("dlrm_parts", "until=hashing"): [*[*LINEAR, "hidden"] * 2, *LINEAR],
    ("dlrm_parts", "until=interaction"): [*[*LINEAR, "hidden"] * 3, "dot"],
    ("embedding", ""): [],
    ("fused_mlp", ""): [*LINEAR, "hidden", *LINEAR, "hidden", *LINEAR],
    ("fused_mlp", "last=sigmoid"): [*LINEAR, "hidden", *LINEAR, "hidden", *LINEAR, *SIGMOID],
    ("geglu", ""): [*LINEAR, *GELU_ERF, "gate", "compute"],
    ("interaction", "form=dot"): ["dot"],
    ("interaction", "form=outer"): [],
    ("launch", ""): [],
    ("lola", "activation=none"): ["sum", "compute", "compute", "sum", "function 4", "layernorm", "dot", "one_pass", "product",
                                  "bias", "output"],
    ("lora_linear", "activation=none"): ADAPTED,
    ("lora_linear", "activation=tanh"): [*ADAPTED, "function 4", *STEP],
    ("lora_mlp", ""): [*ADAPTED, "hidden", *ADAPTED, "hidden", *ADAPTED],
    ("lora_mlp", "last=sigmoid"): [*ADAPTED, "hidden", *ADAPTED, "hidden", *ADAPTED, *SIGMOID],
    ("padded_attention", ""): ATTENTION,
    ("padded_softmax", ""): SOFTMAX,
    ("padded_softmax_v", ""): [*SOFTMAX, "probabilities", "dot"],
    ("shcsa", ""): [*LINEAR, *ATTENTION],
    ("softmax", ""): SOFTMAX,
    ("splacc", ""): ["dot", "product", *SIGMOID, "sigmoid", "function 4", *STEP, "tanh", "compute"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "option"), STEPS, ids=str)
def test_a_formula_names_what_its_programs_round(name, option):
    kernel, r = KERNELS[name], Recorder()
    case = next(cases(name))
    case = make_case(kernel, case.sizes, options=dict([option.split("=")]) if option else {})
    evaluated(kernel, case, given(kernel, case), r=r)
    assert sorted(r.steps) == sorted(STEPS[name, option])


@pytest.mark.parametrize("name", formulas.ACTIVATIONS)
def test_activations_are_their_mathematics(name):
    z = np.array([-40.0, -6.0, -1.5, -0.0, 0.0, 1e-5, 0.7, 3.0, 40.0, np.nan])
    r = Recorder()
    expected = act(name, z)
    np.testing.assert_allclose(
        formulas.activate(name, z, r), expected, rtol=1e-12, atol=1e-300 if name != "gelu_erf" else 1e-15
    )
    assert r.steps == {"none": [], "relu": [], "sigmoid": SIGMOID, "tanh": ["function 4", *STEP], "silu": SIGMOID}.get(
        name, r.steps
    )
    assert name not in ("gelu_tanh", "gelu_erf") or sorted(r.steps) == sorted(
        GELU_ERF if name == "gelu_erf" else GELU_TANH
    )


def test_an_unknown_activation_is_named():
    with pytest.raises(ValueError, match="activation 'swish': expected one of none, relu, sigmoid, tanh, gelu_tanh"):
        formulas.activate("swish", np.zeros(1), Exact())


def test_the_bias_is_a_term_of_the_sum_in_ieee_float32_alone():
    """There some libraries begin with it."""

    class Terms(Exact):
        def dot(self, a, b):
            self.K = a.shape[1]
            return a @ b

    x, W, b = np.ones((2, 5)), np.ones((5, 3)), np.arange(3.0)
    for dtype, precision, K in (("float32", "ieee", 6), ("float32", "tf32", 5), ("bfloat16", "ieee", 5)):
        r = Terms()
        case = make_case(KERNELS["lola"], "one", dtype, precision)
        np.testing.assert_array_equal(formulas.linear(case, x, W, b, r), x @ W + b)
        assert r.K == K


@pytest.mark.parametrize("hashing", ["modulus", "lookup"])
def test_ids_beyond_32_bits_get_the_row_of_nan(hashing):
    kernel = KERNELS["embedding"]
    case = next(c for c in cases("embedding") if c.options["hashing"] == hashing)
    ids, *tables = given(kernel, case)
    ids = ids.copy()
    ids[0, 0], ids[1, 1], ids[2, 2], ids[3, 0] = -1, 2**32, 2**32 - 1, 0
    y = evaluated(kernel, case, [ids, *tables])
    assert np.isnan(y[0, 0]).all() and np.isnan(y[1, 1]).all() and np.isfinite(y).sum() == y.size - 2 * y.shape[2]
    np.testing.assert_array_equal(y[2:], embedding(case.options, ids[2:], *tables))


def test_a_number_of_layers_beyond_4_is_an_error():
    sizes = {d: SIZES[d] for d in KERNELS["fused_mlp"].dimensions}
    assert FUSED_MLP.widths(make_case(KERNELS["fused_mlp"], sizes | {"LAYERS": 4})) == (5, 7, 4, 2, 6)
    with pytest.raises(ValueError, match="LAYERS is 5: expected 1 to 4"):
        FUSED_MLP.widths(make_case(KERNELS["fused_mlp"], sizes | {"LAYERS": 5}))
