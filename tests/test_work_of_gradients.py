"""FLOPs and compulsory bytes of the backward modes and of a training step, and launches, counted as `test_work` counts those of the forward pass."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from test_work import KERNELS, TOKENS, Number, X, cases_of, dlrm_widths, interaction, most_padding, product, visible

from fusebench import hard, inputs, modes
from fusebench.cases import make_case
from fusebench.contract import DTYPES
from fusebench.parity.rounding import Exact, evaluate

WITH = [name for name, kernel in KERNELS.items() if kernel.mathematics.gradient]
BOTH = ("backward", "forward_backward")
TRAIN = KERNELS["dlrm_train"]


def of_mode(name, mode, dtype="bfloat16"):
    for case in cases_of(name):
        yield make_case(KERNELS[name], case.sizes, dtype, options=case.options, mode=mode)


class Products(Exact):
    """Counts the multiplications and additions of matrix products."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def dot(self, a, b):
        self.count += 2 * a.shape[-1] * np.prod(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), dtype=int) * a.shape[-2] * b.shape[-1]  # fmt: skip
        return super().dot(a, b)


def products_of(case, function, arrays):
    r = Products()
    with np.errstate(all="ignore"):
        evaluate(function, case, r, arrays)
    return r.count


def arrays_of(case):
    """(own inputs, upstream gradients), by name, in the storage dtype."""
    (arrays,) = inputs.make_sets(KERNELS[case.kernel].mathematics, case, 0, 1)
    if "n_padd" in arrays:
        arrays["n_padd"] = np.full_like(arrays["n_padd"], most_padding(case))
    own = {n: a for n, a in arrays.items() if not n.startswith(modes.UPSTREAM)}
    return own, {n: a for n, a in arrays.items() if n not in own}


def wide(arrays):
    return [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in arrays]


@pytest.mark.parametrize("name", ["fused_mlp", "geglu", "lola", "lora_linear", "lora_mlp", "splacc"])
def test_flops_of_layers_are_the_products_that_a_gradient_adds(name):
    mathematics = KERNELS[name].mathematics
    for case in of_mode(name, "backward"):
        own, behind = map(list, map(dict.values, arrays_of(case)))
        whole, forward = products_of(case, mathematics.gradient, wide([*own, *behind])), products_of(case, mathematics.formula, wide(own))  # fmt: skip
        assert mathematics.flops(case) == whole - forward, case.id
        both = make_case(KERNELS[name], case.sizes, case.dtype, options=case.options, mode="forward_backward")
        assert mathematics.flops(both) == whole, case.id


# operations an element: of dy * y, its sum, the difference and the product; the activation's slope, dy by it, dz's product, db's sum
BEHIND = {
    "softmax": lambda case: 4 * int(np.prod(case.size("R", "C"))),
    "add_mul_act": lambda case: 4 * int(np.prod(case.size("M", "N"))),
    "embedding": lambda case: 0,
    # the gradients by both vectors of each product
    "interaction": lambda case: 2 * KERNELS["interaction"].mathematics.flops(make_case(KERNELS["interaction"], case.sizes, options=case.options)),
    # dy vᵀ, pᵀ dy, ds k, dsᵀ q
    "padded_attention": lambda case: 4 * 2 * case.sizes["D"] * case.sizes["B"] * case.sizes["H"] * len(visible(case)),
}  # fmt: skip


@pytest.mark.parametrize("name", BEHIND)
def test_flops_of_other_gradients(name):
    flops = KERNELS[name].mathematics.flops
    for case in itertools.chain.from_iterable(of_mode(name, mode) for mode in BOTH):
        forward = make_case(KERNELS[name], case.sizes, case.dtype, options=case.options)
        assert flops(case) == BEHIND[name](case) + (flops(forward) if case.mode == "forward_backward" else 0), case.id


def test_every_gradient_is_counted_here():
    assert set(WITH) == {"fused_mlp", "geglu", "lola", "lora_linear", "lora_mlp", "splacc", *BEHIND}


def read(case, name, array):
    """The bytes of an input, or of an upstream gradient, that must be read."""
    backward_alone = case.mode == "backward"
    if case.kernel == "embedding" and name in ("tables", "offsets", "known"):
        return 0  # which rows are read, and how often, is a matter of the ids
    if backward_alone and (name[0] == "b" or (case.kernel == "add_mul_act" and name in "xz")):
        return 0  # no gradient depends on a bias but by a slope, which takes a bit an element at the least
    if backward_alone and case.kernel == "softmax" and name == "x":
        return array.nbytes  # y in its place
    if case.kernel == "padded_attention" and array.ndim == 4:
        return array.nbytes * (TOKENS - most_padding(case)) // TOKENS
    return array.nbytes


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize("name", WITH)
def test_bytes_of_a_gradient_are_those_of_what_must_be_read_and_written(name, mode):
    mathematics = KERNELS[name].mathematics
    for case in itertools.chain.from_iterable(of_mode(name, mode, dtype) for dtype in DTYPES):
        own, behind = arrays_of(case)
        with np.errstate(all="ignore"):
            outputs = evaluate(mathematics.formula, case, Exact(), wide(own.values())) if mode != "backward" else ()
        gradients = [own[n] for n in mathematics.gradients if n in own]
        written = sum(a.nbytes for a in gradients) + sum(o.size for o in outputs) * case.itemsize
        assert mathematics.moved_bytes(case) == sum(read(case, n, a) for n, a in (own | behind).items()) + written, case.id  # fmt: skip


# The training step


@pytest.mark.parametrize("case", list(cases_of("dlrm_train")), ids=lambda case: case.id)
def test_flops_of_a_training_step(case):
    Number.count, M = 0, case.sizes["M"]
    for part, widths in enumerate(dlrm_widths(case)):
        for layer, (K, N) in enumerate(itertools.pairwise(widths)):
            product(M, K, N)
            product(K, M, N)  # dW
            if part or layer:
                product(M, N, K)  # dx; nobody asks for that of the dense features
            for _ in range((K + 1) * N):
                X - X * X  # W and b after the step
    for _ in range(3):
        interaction(case, case.options["interaction"])
    for _ in np.ndindex(case.size("M", "F", "D")):
        X - X * X  # of the tables
    assert TRAIN.mathematics.flops(case) == Number.count


@pytest.mark.parametrize("options", [{}, {"interaction": "outer"}, {"hashing": "lookup"}], ids=str)
def test_a_training_step_is_autograds(options):
    sizes = {"M": 6, "F": 3, "V": 5, "D": 4, "LAYERS": 3, "N0": 5, "N1": 7, "N2": 8, "N3": 2, "P1": 9, "P2": 3}
    case = make_case(TRAIN, sizes, options=options)
    (arrays,) = inputs.make_sets(TRAIN.mathematics, case, 0, 1)
    found = evaluate(TRAIN.mathematics.formula, case, Exact(), wide(arrays.values()))
    by_name = dict(zip(TRAIN.mathematics.outputs, found, strict=False))
    given = {n: torch.tensor(a).double() if a.dtype.kind == "f" else a for n, a in arrays.items()}
    layers = {part: [n for n in arrays if n.startswith(part)] for part in ("bottom", "top")}
    for name in (*layers["bottom"], *layers["top"]):
        given[name].requires_grad_()

    def perceptron(x, names):
        for at in range(0, len(names), 2):
            x = x @ given[names[at]] + given[names[at + 1]]
            x = torch.relu(x) if at + 2 < len(names) else x
        return x

    lookup = {n: arrays[n] for n in ("offsets", "known") if n in arrays}
    rows = np.empty(arrays["ids"].shape, int)
    for (m, f), value in np.ndenumerate(arrays["ids"]):
        first, last = lookup["offsets"][f], lookup["offsets"][f + 1] - 1
        known = lookup["known"][first:last].tolist() if "known" in lookup else []
        hashed = first + (value + 1) % (last + 1 - first)
        rows[m, f] = (first + known.index(value) if value in known else last) if "known" in lookup else hashed
    vectors = given["tables"][rows].requires_grad_()
    stack = torch.cat([perceptron(given["dense"], layers["bottom"])[:, None], vectors], dim=1)
    if case.options["interaction"] == "outer":
        flat = stack.flatten(1)
        crossed = (flat[:, :, None] * flat[:, None, :]).flatten(1)
    else:
        pairs = [(stack[:, i] * stack[:, j]).sum(1, keepdim=True) for i in range(sizes["F"] + 1) for j in range(i)]
        crossed = torch.cat([stack[:, 0], *pairs], dim=1)
    logit = perceptron(crossed, layers["top"])[:, 0]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, given["labels"])
    loss.backward()
    tables = given["tables"].index_add(0, torch.tensor(rows).flatten(), -0.1 * vectors.grad.flatten(0, 1))
    expected = {"loss": loss.detach(), "dvectors": vectors.grad, "new_tables": tables}
    for layer in range(len(layers["bottom"] + layers["top"]) // 2):
        for kind, name in zip("Wb", (layers["bottom"] + layers["top"])[2 * layer : 2 * layer + 2], strict=True):
            expected |= {f"d{kind}{layer + 1}": given[name].grad, f"new_{kind}{layer + 1}": (given[name] - 0.1 * given[name].grad).detach()}  # fmt: skip
    assert set(by_name) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(by_name[name], value.numpy(), rtol=1e-10, atol=1e-14, err_msg=name)


def test_the_loss_of_a_sure_prediction_is_finite():
    """The logarithm of a probability that was rounded to 0 would be infinite."""
    case = make_case(TRAIN, "one")
    (arrays,) = inputs.make_sets(TRAIN.mathematics, case, 0, 1)
    arrays |= {n: np.zeros_like(a) for n, a in arrays.items() if n.startswith("top_W")}
    for logit, label, expected in ((900.0, 0.0, 900.0), (900.0, 1.0, 0.0), (-900.0, 1.0, 900.0), (0.0, 1.0, np.log(2))):
        last = {"top_b1": np.full_like(arrays["top_b1"], logit), "labels": np.full_like(arrays["labels"], label)}
        found = evaluate(TRAIN.mathematics.formula, case, Exact(), wide((arrays | last).values()))
        assert found[0] == pytest.approx(expected, abs=1e-300)


def test_one_label_in_four_is_a_click():
    case = make_case(TRAIN, {**TRAIN.mathematics.cases["one"], "M": 20_000})
    labels = TRAIN.mathematics.inputs(case, np.random.default_rng(0))["labels"]
    assert labels.dtype == np.float32 and set(labels.tolist()) == {0.0, 1.0} and abs(labels.mean() - 0.25) < 0.01


def test_hard_inputs_of_a_training_step_have_gradients():
    kinds = {d: hard.kinds(TRAIN.mathematics, make_case(TRAIN, "odd", d)) for d in ("float32", "bfloat16")}
    assert kinds == {
        "float32": ("plain", "equal", "subnormal", *hard.EDGES, "small", "zeros"),
        "bfloat16": ("plain", "equal", *hard.EDGES, "zeros"),
    }
    assert {*TRAIN.mathematics.hard(make_case(TRAIN, "odd")).values()} == {("dense",)}


@pytest.mark.parametrize(
    ("name", "variant", "sizes", "launches"),
    [
        *(("dlrm_train", "modulus_in_place", {"LAYERS": layers}, 2 * (layers + min(layers, 3)) + 3) for layers in (1, 2, 3, 4)),
        # each perceptron, of three layers here, in one launch or in three, the first also behind a copy of its input
        *(("dlrm", variant, {}, {1 + bottom + top for bottom in (1, 3, 4) for top in (1, 3)}) for variant in ("modulus", "improved")),
        ("dlrm", "naive", {}, {3 + bottom + top for bottom in (1, 3, 4) for top in (1, 3)}), ("dlrm", "modulus_split", {}, 7), ("dlrm", "improved_split", {}, 7),
        *(("lora_mlp", variant, {"LAYERS": layers}, count * layers) for variant, count in (("default", 1), ("two_launches", 2)) for layers in (1, 4)),
        ("lora_linear", "two_launches", {}, 2), ("lola", "two_launches", {}, 2), ("embedding", "naive", {}, 2), ("softmax", "row", {}, 1),
    ],
)  # fmt: skip
def test_a_variant_launches_as_often_as_its_docs_say(name, variant, sizes, launches):
    mathematics = KERNELS[name].mathematics
    case = make_case(KERNELS[name], {**mathematics.cases["odd"], **sizes})
    assert mathematics.launches_of(variant, case) == (launches if isinstance(launches, set) else {launches})
