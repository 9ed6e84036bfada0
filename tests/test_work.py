"""FLOPs and compulsory bytes of every kernel, counted: the formula's operations by numbers that count, its bytes from the arrays.

A size is another prime for each dimension, so that two which are taken for one another show.
"""

from __future__ import annotations

import functools
import importlib
import itertools

import numpy as np
import pytest

from fusebench import discovery, hard, inputs
from fusebench.cases import make_case
from fusebench.contract import DTYPES, Case
from fusebench.parity.rounding import Exact

KERNELS = discovery.find_kernels(discovery.roots_of())
EMBEDDING = importlib.import_module("implementations.embedding.kernel")
PRIMES = (3, 2, 5, 7, 13, 17, 19, 11, 23, 29, 31)
LAYERS = (1, 2, 3, 4)
TOKENS = 11  # the T of every sequence: more than its padding
SEEDS = range(60)  # enough to draw the least and the most padding


def cases_of(name):
    """Small cases of a kernel: its dimensions in primes, every value of every option with the defaults of the others."""
    kernel = KERNELS[name]
    sizes = {d: TOKENS if d == "T" else n for d, n in zip(kernel.dimensions, PRIMES, strict=False)}
    options = [{}, *({option: v} for option, values in kernel.options.items() for v in values[1:])]
    for layers in LAYERS if "LAYERS" in sizes else (None,):
        for option in options:
            yield make_case(kernel, sizes | ({"LAYERS": layers} if layers else {}), options=option)


ALL = [pytest.param(name, case, id=f"{name}-{case.id}") for name in KERNELS for case in cases_of(name)]


class Number:
    """Counts what is done with it."""

    count = 0

    def _counted(self, _):
        Number.count += 1
        return self

    __add__ = __mul__ = __sub__ = __truediv__ = _counted

    def function(self):
        return self._counted(None)


X = Number()


def product(rows, inner, columns):
    """x (rows, inner) @ w (inner, columns): a sum that begins at zero."""
    for _ in range(rows * columns):
        total = X
        for _ in range(inner):
            total = total + X * X


def most_padding(case):
    """The most padding that is ever drawn."""
    return _most_padding(case.kernel, case.sizes["T"], case.options["padding"])


@functools.cache
def _most_padding(name, tokens, padding):
    kernel = KERNELS[name]
    case = make_case(kernel, dict.fromkeys(kernel.dimensions, 1) | {"T": tokens}, options={"padding": padding})
    return max(int(np.max(kernel.mathematics.inputs(case, np.random.default_rng(seed))["n_padd"])) for seed in SEEDS)


def visible(case):
    """The positions (i, j) that a sequence with the most padding sees."""
    T, padding = case.sizes["T"], most_padding(case)
    return [(i, j) for i in range(T) for j in range(T) if padding <= j <= i]


def softmax(elements):
    for _ in range(elements):
        X.function()  # the maximum
        shifted = X - X
        X + shifted.function()
        X / X


def attend(case, products):
    """That many sums over D for each visible position."""
    for _ in visible(case):
        product(1, case.sizes["D"], products)


def fused_mlp(case):
    widths = [case.sizes[f"N{i}"] for i in range(case.sizes["LAYERS"] + 1)]
    for K, N in itertools.pairwise(widths):
        product(case.sizes["M"], K, N)


def dlrm_widths(case):
    """Those of the dense perceptron, and of the prediction behind the interaction."""
    layers, (F, D) = case.sizes["LAYERS"], case.size("F", "D")
    interaction = D + F * (F + 1) // 2 if case.options["interaction"] == "dot" else ((F + 1) * D) ** 2
    bottom = [*(case.sizes[f"N{i}"] for i in range(layers)), D]
    return bottom, [interaction, *case.size("P1", "P2")[: min(layers, 3) - 1], 1]


def dlrm(case):
    for widths in dlrm_widths(case):
        for K, N in itertools.pairwise(widths):
            product(case.sizes["M"], K, N)
    interaction(case, case.options["interaction"])


def dlrm_parts(case):
    for K, N in itertools.pairwise(dlrm_widths(case)[0]):
        product(case.sizes["M"], K, N)
    if case.options["until"] == "interaction":
        interaction(case, case.options["interaction"])


def lora_linear(case):
    M, K, N, R = case.size("M", "K", "N", "R")
    product(M, K, N)
    product(M, K, R)
    product(M, R, N)


def lora_mlp(case):
    for K, N in itertools.pairwise(widths_of(case)):
        M, R = case.size("M", "R")
        product(M, K, N)
        product(M, K, R)
        product(M, R, N)


def interaction(case, form=None):
    M, F, D = case.size("M", "F", "D")
    if (form or case.options["form"]) == "outer":
        for _ in itertools.product(range(M), range((F + 1) * D), range((F + 1) * D)):
            X * X
    else:
        for _ in itertools.product(range(M), itertools.combinations(range(F + 1), 2)):
            product(1, D, 1)


def padded_attention(case):
    for _ in range(case.sizes["B"] * case.sizes["H"]):
        attend(case, 2)


def shcsa(case):
    T, C, D = case.size("T", "C", "D")
    for _ in range(T - most_padding(case)):
        product(1, C, 3 * D)  # a token that is padding needs no query, key or value
    attend(case, 2)


def pointwise(*operations):
    def count(case):
        for _ in np.ndindex(case.size("M", "N")):
            for operation in operations:
                operation(X)

    return count


def plus(x):
    return x + x


def times(x):
    return x * x


# What docs say of each kernel: products count, what is far less than them does not.
FLOPS = {
    "add_mul_act": pointwise(times, plus, plus, Number.function),
    "add_relu": pointwise(plus, Number.function),
    "dlrm": dlrm,
    "dlrm_parts": dlrm_parts,
    "embedding": lambda case: None,
    "fused_mlp": fused_mlp,
    "geglu": lambda case: product(case.sizes["M"], case.sizes["K"], 2 * case.sizes["N"]),
    "interaction": interaction,
    "launch": lambda case: None,
    "lola": lambda case: product(*case.size("M", "K", "N")),
    "lora_linear": lora_linear,
    "lora_mlp": lora_mlp,
    "padded_attention": padded_attention,
    "padded_softmax": lambda case: softmax(len(visible(case))),
    "padded_softmax_v": lambda case: attend(case, 1),
    "shcsa": shcsa,
    "softmax": lambda case: softmax(case.sizes["R"] * case.sizes["C"]),
    "splacc": lambda case: product(case.sizes["M"], case.sizes["K"], 2 * case.sizes["N"]),
}


@pytest.mark.parametrize(("name", "case"), [p for p in ALL if p.values[0] in FLOPS])
def test_flops_are_those_of_the_formula(name, case):
    Number.count = 0
    FLOPS[name](case)
    assert KERNELS[name].mathematics.flops(case) == Number.count


def evaluated(case):
    """Its arrays by name, in the storage dtype, with the most padding that is drawn, and its outputs."""
    module = KERNELS[case.kernel].mathematics
    (arrays,) = inputs.make_sets(module, case, 0, 1)
    if "n_padd" in arrays:
        arrays["n_padd"] = np.full_like(arrays["n_padd"], most_padding(case))
    wide = [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in arrays.values()]
    with np.errstate(all="ignore"):
        outputs = module.formula(case, Exact(), *wide)
    return arrays, outputs


def read(case, name, array):
    """The bytes of an input that must be read: what no output can depend on need not."""
    if case.kernel == "dlrm_parts" and (
        name.startswith("top_") or (name == "ids" and case.options["until"] == "dense")
    ):
        return 0  # the call ends before
    if case.kernel == "embedding" or name in ("tables", "offsets", "known"):
        return array.nbytes if name == "ids" else 0  # which rows are read, and how often, is a matter of the ids
    if name == "att":
        return len(visible(case)) * array.itemsize
    if "padding" in case.options and name in ("q", "k", "v", "x"):
        tokens = array.shape[-2]
        return array.nbytes * (tokens - most_padding(case)) // tokens
    return array.nbytes


def written_size(case, number, output):
    """The bytes of an element of an output; 0 of new tables, of which a step writes the rows that were looked up."""
    module = KERNELS[case.kernel].mathematics
    if "new_tables" in module.outputs[number : number + 1]:
        return 0
    return (
        output.itemsize if output.dtype.kind == "i" else inputs.numpy_dtype(module.output_dtype(number, case)).itemsize
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "case"), ALL)
def test_bytes_are_those_of_what_must_be_read_and_written(name, case, dtype):
    case = make_case(KERNELS[name], case.sizes, dtype, options=case.options)
    arrays, outputs = evaluated(case)
    written = sum(o.size * written_size(case, number, o) for number, o in enumerate(outputs))
    counted = sum(read(case, n, a) for n, a in arrays.items()) + written
    assert KERNELS[name].mathematics.moved_bytes(case) == counted


@pytest.mark.parametrize(
    ("padding", "drawn"), [("few", {4, 5, 6, 7, 8}), ("none", {0}), ("one", {1}), ("most", {10}), ("all", {11}), ("any", {*range(12)})]
)  # fmt: skip
@pytest.mark.parametrize("name", [n for n, k in KERNELS.items() if "padding" in k.options])
def test_padding_is_drawn_as_the_option_says(name, padding, drawn):
    kernel = KERNELS[name]
    if padding not in kernel.options["padding"]:
        assert name == "padded_softmax" and padding == "any"
        return
    case = make_case(kernel, dict.fromkeys(kernel.dimensions, 3) | {"T": TOKENS}, options={"padding": padding})
    found = [kernel.mathematics.inputs(case, np.random.default_rng(seed))["n_padd"] for seed in SEEDS]
    assert {int(n) for array in found for n in np.ravel(array)} == drawn
    assert all(array.dtype == np.int32 and array.shape == ((3,) if "B" in case.sizes else ()) for array in found)


@pytest.mark.parametrize("name", [n for n, k in KERNELS.items() if "padding" in k.options])
@pytest.mark.parametrize("padding", ["few", "none", "one", "most", "all"])
def test_a_sequence_shorter_than_its_padding_is_all_padding(name, padding):
    kernel = KERNELS[name]
    case = make_case(kernel, dict.fromkeys(kernel.dimensions, 2) | {"T": 1}, options={"padding": padding})
    assert most_padding(case) == {"none": 0, "most": 0}.get(padding, 1)
    with np.errstate(all="ignore"):
        assert kernel.mathematics.flops(case) >= 0 and kernel.mathematics.moved_bytes(case) > 0


@pytest.mark.parametrize("name", [n for n, k in KERNELS.items() if "padding" in k.options])
@pytest.mark.parametrize("n_padd", [-1, 12])
def test_padding_that_no_sequence_can_have_is_an_error(name, n_padd):
    kernel = KERNELS[name]
    case = make_case(kernel, dict.fromkeys(kernel.dimensions, 3) | {"T": TOKENS})
    (arrays,) = inputs.make_sets(kernel.mathematics, case, 0, 1)
    arrays["n_padd"] = np.full_like(arrays["n_padd"], n_padd)
    with pytest.raises(ValueError, match=rf"n_padd is .*{n_padd}.*expected 0 to T = {TOKENS}"):
        kernel.mathematics.formula(case, Exact(), *arrays.values())


# Names, shapes and dtypes of each kernel's arrays in their order, from the table in its docs. A shape with `w_layout=nk` is the other way round.
ARRAYS = {
    "add_mul_act": "x MN, z MN, multiplier, b N -> MN",
    "add_relu": "x MN, b N -> MN",
    "dlrm": "dense, ids, tables, offsets, known",
    "embedding": "ids MF, tables, offsets, known -> MFD",
    "fused_mlp": "x, W1, b1, W2, b2, W3, b3, W4, b4",
    "geglu": "x MK, W K2N, b 2N -> MN",
    "interaction": "dense MD, sparse MFD ->",
    "launch": "x N -> N",
    "lola": "x MK, W KN, b N -> MN",
    "lora_linear": "x MK, scale, W KN, b N, A KR, B RN -> MN",
    "lora_mlp": "x, scale, W1, b1, A1, B1, W2, b2, A2, B2, W3, b3, A3, B3, W4, b4, A4, B4",
    "padded_attention": "q BHTD, k BHTD, v BHTD, n_padd B -> BHTD",
    "padded_softmax": "att TT, n_padd -> TT",
    "padded_softmax_v": "att TT, v TD, n_padd -> TD",
    "shcsa": "x TC, n_padd, W C3D, b 3D -> TD",
    "softmax": "x RC -> RC",
    "splacc": "A MK, B K2N -> MN",
}


def shape_of(text, case):
    """`K2N` as (K, 2 N)."""
    factor, shape = 1, []
    for letter in text:
        if letter.isdigit():
            factor = int(letter)
        else:
            shape.append(factor * case.sizes[letter])
            factor = 1
    return tuple(shape)


def widths_of(case):
    return [case.sizes[f"N{i}"] for i in range(case.sizes["LAYERS"] + 1)]


def expected_arrays(case):
    """{name: shape} and the output's shape, None where this test leaves it to the bytes."""
    if case.kernel in ("fused_mlp", "lora_mlp"):
        widths, R = widths_of(case), case.sizes.get("R")
        shapes = {"x": (case.sizes["M"], widths[0])} | ({"scale": ()} if R else {})
        for i, (K, N) in enumerate(itertools.pairwise(widths), 1):
            shapes |= {f"W{i}": (K, N), f"b{i}": (N,)} | ({f"A{i}": (K, R), f"B{i}": (R, N)} if R else {})
        return shapes, (case.sizes["M"], widths[-1])
    if case.kernel == "dlrm":
        M, F, D, N0 = case.size("M", "F", "D", "N0")
        rows = sum(EMBEDDING.cardinalities(case))
        shapes = {"dense": (M, N0), "ids": (M, F), "tables": (rows + 1, D), "offsets": (F + 1,)}
        for part, widths in zip(("bottom", "top"), dlrm_widths(case), strict=True):
            for i, (K, N) in enumerate(itertools.pairwise(widths), 1):
                shapes |= {f"{part}_W{i}": (K, N), f"{part}_b{i}": (N,)}
        return shapes | ({"known": (rows,)} if case.options["hashing"] == "lookup" else {}), (M, 1)
    left, _, right = ARRAYS[case.kernel].partition("->")
    words = [part.split() for part in left.split(",")]
    shapes = {name: shape_of(shape[0] if shape else "", case) for name, *shape in words}
    if case.kernel == "embedding":
        rows = sum(EMBEDDING.cardinalities(case))
        shapes |= {"tables": (rows + 1, case.sizes["D"]), "offsets": (case.sizes["F"] + 1,), "known": (rows,)}
        if case.options["hashing"] == "modulus":
            del shapes["known"]
    if case.kernel == "interaction":
        M, F, D = case.size("M", "F", "D")
        return shapes, (M, ((F + 1) * D) ** 2 if case.options["form"] == "outer" else D + (F + 1) * F // 2)
    return shapes, shape_of(right.strip(), case)


@pytest.mark.parametrize(("name", "case"), [p for p in ALL if p.values[0] in ARRAYS])
def test_arrays_have_the_names_and_shapes_of_the_kernel(name, case):
    module = KERNELS[name].mathematics
    shapes, output = expected_arrays(case)
    if case.options.get("w_layout") == "nk":
        shapes = {n: s[::-1] if n.startswith("W") or (n == "B" and name == "splacc") else s for n, s in shapes.items()}
    (arrays,) = inputs.make_sets(module, case, 0, 1)
    assert list(arrays) == list(shapes) and {n: a.shape for n, a in arrays.items()} == shapes
    wide = [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in arrays.values()]
    with np.errstate(all="ignore"):
        (y,) = module.formula(case, Exact(), *wide)
    assert y.shape == output


@pytest.mark.parametrize("name", [n for n, k in KERNELS.items() if "w_layout" in k.options])
def test_both_layouts_are_the_same_layer(name):
    kernel = KERNELS[name]
    kn, nk = (next(c for c in cases_of(name) if c.options["w_layout"] == layout) for layout in ("kn", "nk"))
    (arrays,) = inputs.make_sets(kernel.mathematics, kn, 0, 1)
    turned = {n: a.T if n.startswith("W") or (n == "B" and name == "splacc") else a for n, a in arrays.items()}
    with np.errstate(all="ignore"):
        got = [kernel.mathematics.formula(c, Exact(), *a.values())[0] for c, a in ((kn, arrays), (nk, turned))]
    np.testing.assert_allclose(*got, rtol=1e-6)


# The kinds of hard inputs and which inputs get them; `+` in float16 alone, `-` in the others.
HARD = {
    "add_mul_act": "large_mean equal subnormal nan inf large small wide: x z b; zeros: x z b multiplier; scalar: multiplier; extreme: x",
    "dlrm": "large_mean nan inf large small wide: dense; equal subnormal zeros: dense tables",
    "dlrm_parts": "large_mean equal subnormal nan inf small zeros wide: dense",
    "embedding": "large_mean equal subnormal nan inf extreme: tables; repeated:",
    "fused_mlp": "large_mean equal subnormal nan inf large small zeros wide: x",
    "geglu": "large_mean equal subnormal nan inf large small zeros wide extreme+: x",
    "interaction": "large_mean equal subnormal nan inf large small zeros wide: dense sparse",
    "lola": "large_mean equal subnormal nan inf small zeros wide equal_large extreme+: x; large: W b",
    "lora_linear": "large_mean equal subnormal nan inf large small wide extreme+: x; zeros: x scale; scalar: scale",
    "lora_mlp": "large_mean equal subnormal nan inf large small wide: x; zeros: x scale; scalar: scale",
    "padded_attention": "large_mean wide nan_column extreme+: v; negative: q q k; small zeros: q k v; equal: q v; subnormal: q k; nan: q; large+: q; large-: q q k",
    "padded_softmax_v": "large_mean wide nan_column extreme+: v; negative: att; small zeros: att v; equal: att v; subnormal nan inf: att; large+: att; large-: att att att att",
    "shcsa": "equal subnormal small zeros: x; large+: b; large-: x x",
    "splacc": "large_mean equal subnormal nan inf large small zeros wide extreme+: A",
}

# those with integers that differ from call to call
EDGES = (
    "dlrm", "dlrm_parts", "dlrm_train", "embedding", "padded_attention", "padded_softmax", "padded_softmax_v", "shcsa",
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kind_of_hard_inputs_that_a_kernel_can_have_is_tried(name, dtype):
    kernel = KERNELS[name]
    case = make_case(kernel, "odd", dtype)
    edges = hard.EDGES if name in EDGES else ()
    left_open = {"wide"} if dtype == "float16" else set()
    if kernel.mathematics.hard is None:
        left_out = ({*hard.EDGES} - {*edges}) | left_open | {*hard.NAMED, "upstream"}
        assert name not in HARD
        assert hard.kinds(kernel.mathematics, case) == tuple(kind for kind in hard.KINDS if kind not in left_out)
        return
    found = kernel.mathematics.hard(case)
    (arrays,) = inputs.make_sets(kernel.mathematics, case, 0, 1)
    for names in found.values():
        assert set(names) <= set(arrays)
    expected = {"plain", *found, *edges} - left_open
    assert hard.kinds(kernel.mathematics, case) == tuple(k for k in hard.KINDS if k in expected)
    if name in HARD:
        expected = {}
        for part in HARD[name].split(";"):
            kinds, names = part.split(":")
            left_out = "-" if dtype == "float16" else "+"
            expected |= {k.rstrip("+-"): names.split() for k in kinds.split() if k[-1] != left_out}
        assert {kind: list(names) for kind, names in found.items()} == expected


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_with_integer_inputs_have_edges(name):
    case = make_case(KERNELS[name], "odd")
    drawn = KERNELS[name].mathematics.inputs(case, np.random.default_rng(0))
    assert any(np.asarray(a).dtype.kind in "iu" for a in drawn.values()) == (name in EDGES)


@pytest.mark.parametrize("name", [n for n in EDGES if "padding" in KERNELS[n].options])
@pytest.mark.parametrize("padding", ["few", "all"])
def test_padding_has_its_edges_whatever_the_option_says(name, padding):
    """And what is visible has no NaN."""
    case = make_case(KERNELS[name], "odd", options={"padding": padding})
    for kind, n_padd in (("lower_edge", 0), ("upper_edge", case.sizes["T"])):
        for arrays in inputs.make_sets(KERNELS[name].mathematics, case, 0, 2, kind):
            assert (arrays["n_padd"] == n_padd).all() and arrays["n_padd"].dtype == np.int32
            with np.errstate(all="ignore"):
                wide = [a if a.dtype.kind == "i" else a.astype(float) for a in arrays.values()]
                (y,) = KERNELS[name].mathematics.formula(case, Exact(), *wide)
            assert np.isfinite(y).all() and (y != 0).any() == (n_padd == 0)
    found = [a["n_padd"] for a in inputs.make_sets(KERNELS[name].mathematics, case, 0, 9, "between")]
    assert len(set(np.ravel(found).tolist())) > 4 and max(map(np.max, found)) > case.sizes["T"] / 2


@pytest.mark.parametrize("name", ["dlrm", "dlrm_train", "embedding"])
def test_ids_have_their_edges_in_a_few_samples_too(name):
    """Each value in as many samples, but for dlrm_train, whose gradients they would make NaN, those past the edge too, one in a sample."""
    kernel = KERNELS[name]
    case = make_case(kernel, {**kernel.mathematics.cases["odd"], "M": 7})
    V = EMBEDDING.cardinalities(case)
    for kind, inside, past in (
        ("lower_edge", {0, *(V - 1), *(V - 2)}, [-(2**63), -(2**31), -1]),
        ("upper_edge", {2**31 - 1, 2**31, 2**32 - 1}, [2**32, 2**33, 2**62, 2**63 - 1]),
    ):
        (arrays,) = inputs.make_sets(kernel.mathematics, case, 0, 1, kind)
        ids = arrays["ids"]
        beyond = (ids < 0) | (ids >= 2**32)
        assert ids.shape == (7, 5) and ids.dtype == np.int64 and {0, *ids[~beyond].tolist()} == inside | {0}
        assert sorted({*ids[beyond].tolist()}) == ([] if name == "dlrm_train" else past)
        assert (beyond.sum(axis=1) <= 1).all()


@pytest.mark.parametrize("hashing", ["modulus", "lookup"])
def test_between_the_edges_ids_reach_all_of_a_table_and_one_of_them_over_and_over(hashing):
    kernel = KERNELS["embedding"]
    case = make_case(kernel, {**kernel.mathematics.cases["odd"], "M": 4000}, options={"hashing": hashing})
    (arrays,) = inputs.make_sets(kernel.mathematics, case, 0, 1, "between")
    found = EMBEDDING.rows(*(arrays[name] for name in ("ids", "offsets", "known") if name in arrays))
    assert (found[1::2] == found[0]).all()
    missed = np.setdiff1d(np.arange(arrays["offsets"][-1]), found)
    assert len(missed) == 0 if hashing == "modulus" else len(missed) < 16, "duplicates and the row of unknown ids"


def test_gelu_erf_has_no_infinite_inputs():
    """Torch's erf of them on the CPU is NaN."""
    kernel = KERNELS["add_mul_act"]
    case = make_case(kernel, "odd", options={"activation": "gelu_erf"})
    every = set(kernel.mathematics.hard(make_case(kernel, "odd")))
    assert every - {*kernel.mathematics.hard(case)} == {"inf", "extreme"}


def test_an_element_has_the_bytes_of_its_dtype():
    for dtype in DTYPES:
        assert Case("launch", {"N": 1}, dtype).itemsize == inputs.numpy_dtype(dtype).itemsize
