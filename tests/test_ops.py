"""The functions of fusebench.ops: values and gradients called, compiled and jitted, the examples of the README, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_command_line import REPOSITORY

from fusebench import discovery
from fusebench.errors import UsageError
from fusebench.ops.shapes import sizes_of

KERNELS = discovery.find_kernels([discovery.HOME])
BY = {"torch": "triton", "jax": "jax_triton"}
WITH = {
    framework: [n for n, k in KERNELS.items() if i in k.implementations and k.implementations[i].backward]
    for framework, i in BY.items()
}
EXAMPLES = [
    s
    for s in re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    if "fusebench.ops" in s
]


def interpreted(*words):
    """What a process prints in which Triton is interpreted; this one may compile."""
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")]),
    }
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def ran():
    """What tests/training.py says, by framework and kernel."""
    lines = map(json.loads, interpreted(str(Path(__file__).with_name("training.py"))).splitlines())
    found = {}
    for line in lines:
        found.setdefault((line["framework"], line["kernel"]), {})[line["how"]] = line["far"]
    return found


@pytest.mark.parametrize(("framework", "name"), [(f, name) for f, own in WITH.items() for name in own])
def test_values_and_gradients_are_those_of_the_formula(ran, framework, name):
    hows = {"torch": ("called", "compiled"), "jax": ("jitted",)}[framework]
    more = {"torch": ("checkpointed", "second"), "jax": ("vmapped", "second")}[framework]
    scalar = ("scalar",) if name in ("add_mul_act", "lora_linear", "lora_mlp") else ()
    assert tuple(ran[framework, name]) == hows + (more if name == "softmax" else scalar)
    for how in ran[framework, name]:
        assert max(ran[framework, name][how]) < 2e-6, how


@pytest.mark.parametrize(
    ("example", "printed"),
    list(
        zip(
            EXAMPLES,
            ("torch.Size([64, 128]) torch.Size([128, 256]) torch.Size([256])", "(64, 128) (128, 256) (256,)"),
            strict=True,
        )
    ),
    ids=["torch", "jax"],
)
def test_an_example_of_the_readme_trains(example, printed):
    assert interpreted("-c", example.replace('"cuda"', '"cpu"')).strip() == printed


def test_sizes_follow_from_shapes():
    assert sizes_of(KERNELS["geglu"], [(3, 5), (14, 5), (14,)], {"w_layout": "nk"}) == {"M": 3, "K": 5, "N": 7}
    sizes = sizes_of(KERNELS["fused_mlp"], [(2, 3), (3, 4), (4,), (4, 5), (5,)], {})
    assert sizes == {"M": 2, "LAYERS": 2, "N0": 3, "N1": 4, "N2": 5, "N3": 1, "N4": 1}


def test_a_size_that_no_shape_shows_is_asked_for_by_name():
    shapes = [(3, 2), (50, 4), (3,)]
    assert sizes_of(KERNELS["embedding"], shapes, {"V": 40}) == {"M": 3, "F": 2, "V": 40, "D": 4}
    with pytest.raises(UsageError, match="embedding: no shape shows V; expected it by name, such as V=1000"):
        sizes_of(KERNELS["embedding"], shapes, {})


@pytest.mark.parametrize(
    ("name", "shapes", "said"),
    [
        ("lola", [(5, 8), (6, 8), (8,)], r"lola: W has the shape \(6, 8\); expected \(K, N\) with K=8, N=8"),
        ("lola", [(5, 8), (8, 6)], r"lola: got 2 inputs of the shapes \(5, 8\), \(8, 6\); expected x \(M, K\), W \(K, N\), b \(N\)"),
        ("softmax", [(5,)], r"softmax: got 1 input of the shape \(5,\); expected x \(R, C\)"),
        ("softmax", [], r"softmax: got 0 inputs; expected x \(R, C\)"),
        ("geglu", [(5, 8), (8, 7), (7,)], r"geglu: W has the shape \(8, 7\); expected \(K, 2 \* N\) with K=8, N=3"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_go_together_are_refused_with_the_input(name, shapes, said):
    with pytest.raises(UsageError, match=said):
        sizes_of(KERNELS[name], shapes, {})


def test_what_cannot_run_is_refused_in_one_line(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    torch = pytest.importorskip("torch")
    from fusebench.ops import torch as ops

    x = torch.zeros(3, 5)
    with pytest.raises(AttributeError, match=r"no attribute 'lolla': kernels are .*lola"):
        ops.lolla  # noqa: B018
    with pytest.raises(UsageError, match="the inputs are on the CPU; expected a GPU, or TRITON_INTERPRET=1"):
        ops.softmax(x)
    with pytest.raises(UsageError, match="the inputs are on the CPU"):  # an option with the name of an input
        ops.add_mul_act(x, x, torch.tensor(0.5), torch.zeros(5), multiplier="0.5")
    with pytest.raises(UsageError, match=r"lola: b is float16; expected float32, as x is"):
        ops.lola(x, torch.zeros(5, 4), torch.zeros(4, dtype=torch.float16))
    for given, said in (
        ((x, torch.zeros(5, 4), 1.0), "lola: b is a float; expected a tensor"),
        ((x, torch.zeros(5, 4), torch.zeros(4), 1.0), "lola: input 4 is a float; expected a tensor"),
        ((x, torch.zeros(5, 4).to_sparse(), torch.zeros(4)), "lola: W is torch.sparse_coo; expected a dense tensor"),
        ((), "lola: got no inputs; expected them by position, in the order x, W, b"),
        ((x.double(), torch.zeros(5, 4).double(), torch.zeros(4).double()), "lola: x is float64; expected one of float32, float16, bfloat16"),
        ((torch.zeros(0, 5), torch.zeros(5, 4), torch.zeros(4)), r"lola: an input has the shape \(0, 5\); expected at least 1"),
        ((x, torch.zeros(5, 4, device="meta"), torch.zeros(4)), "lola: the inputs are on cpu, meta; expected one device"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            ops.lola(*given)
    with pytest.raises(UsageError, match="unknown option 'activatoin' of lola: did you mean activation"):
        ops.lola(x, torch.zeros(5, 4), torch.zeros(4), activatoin="relu")
    with pytest.raises(UsageError, match="unknown value 're lu' of option activation of lola: did you mean relu"):
        ops.lola(x, torch.zeros(5, 4), torch.zeros(4), activation="re lu")
    with pytest.raises(UsageError, match="lola: b is an input; expected it by position, in the order x, W, b"):
        ops.lola(x, torch.zeros(5, 4), b=torch.zeros(4))
    with pytest.raises(UsageError, match="lola: got no inputs; expected them by position, in the order x, W, b"):
        ops.lola(x=x, W=torch.zeros(5, 4), b=torch.zeros(4))
    for transformed in (torch.func.vmap(ops.softmax), lambda x: torch.func.jvp(ops.softmax, (x,), (x,))):
        with pytest.raises(
            UsageError, match=r"softmax: torch.func \(grad, vmap, jvp\) and forward mode are not supported"
        ):
            transformed(torch.zeros(2, 3, 5))


def test_a_dtype_that_kernel_py_does_not_make_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    torch = pytest.importorskip("torch")
    from fusebench.ops import torch as ops

    x, W, b = torch.zeros(3, 5), torch.zeros(5, 4), torch.zeros(4)
    q, n_padd = torch.zeros(2, 1, 3, 5), torch.zeros(2, dtype=torch.int32)
    ids, tables, offsets, known = torch.zeros(2, 3).long(), torch.zeros(21, 4), torch.zeros(4).long(), torch.zeros(20)
    for call, said in (
        (lambda: ops.lola(x.int(), W, b), "lola: x is int32; expected float32, as W is"),
        (lambda: ops.lola(x.long(), W.half(), b.half()), "lola: x is int64; expected float16, as W is"),
        (lambda: ops.lola(x, W, b.bool()), "lola: b is bool; expected float32, as x is"),
        (lambda: ops.lola(x, W.to(torch.complex64), b), "lola: W is complex64; expected float32, as x is"),
        (lambda: ops.padded_attention(q, q, q, n_padd.float()), "padded_attention: n_padd is float32; expected int32"),
        (lambda: ops.padded_attention(q, q, q, n_padd.long()), "padded_attention: n_padd is int64; expected int32"),
        (lambda: ops.padded_attention(q.byte(), q, q, n_padd), "padded_attention: q is uint8; expected float32, as k is"),
        (lambda: ops.embedding(ids.int(), tables, offsets, V=11), "embedding: ids is int32; expected int64"),
        (lambda: ops.embedding(ids.float(), tables.half(), offsets, V=11), "embedding: ids is float32; expected int64"),
        (lambda: ops.embedding(ids, tables, offsets.int(), V=11), "embedding: offsets is int32; expected int64"),
        (lambda: ops.embedding(ids, tables, offsets, known.int(), V=11, hashing="lookup"), "embedding: known is int32; expected int64"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=f"^{said}$"):
            call()


def test_what_jax_cannot_take_is_refused_in_one_line():
    jax = pytest.importorskip("jax")
    from fusebench.ops import jax as ops

    x, W, b = np.zeros((3, 5), np.float32), np.zeros((5, 4), np.float32), np.zeros(4, np.float32)
    ids, tables, offsets = np.zeros((2, 3), np.int64), np.zeros((21, 4), np.float32), np.zeros(4, np.int64)
    for call, said in (
        (lambda: ops.lola(x.astype(np.int32), W, b), "lola: x is int32; expected float32, as W is"),
        (lambda: ops.lola(x, W, 1.0), "lola: b is a float; expected an array of JAX or NumPy"),
        (lambda: ops.lola(x, W, b=b), "lola: b is an input; expected it by position, in the order x, W, b"),
        (lambda: ops.lola(x=x, W=W, b=b), "lola: W is an input; expected it by position, in the order x, W, b"),
        (lambda: ops.embedding(ids, tables, offsets, V=11), "embedding: ids is int32; expected int64, which JAX has with jax_enable_x64"),
    ):  # fmt: skip
        with jax.enable_x64(False), pytest.raises(UsageError, match=f"^{said}$"):
            call()


@pytest.mark.parametrize(
    ("shapes", "V", "said"),
    [
        ({"offsets": 3}, 11, r"offsets has the shape \(3,\); expected \(F \+ 1\) with F=3"),
        ({}, 6, "tables has 21 rows; expected 9 to 19 with F=3, V=6: those of all features and one more, for ids out of range"),
        ({}, 19, "tables has 21 rows; expected 22 to 58 with F=3, V=19: .*"),
        ({"known": 21}, 11, r"known has the shape \(21,\); expected \(20,\), as tables has 21 rows"),
        ({}, 7, "the inputs are on the CPU; .*"),
        ({}, 18, "the inputs are on the CPU; .*"),
    ],
)  # fmt: skip
def test_shapes_of_tables_that_do_not_go_together_are_refused(monkeypatch, shapes, V, said):
    """Nothing but the device is wrong of the last ones: one table of V rows at the least, F tables of V rows at the most."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    torch = pytest.importorskip("torch")
    from fusebench.ops import torch as ops

    lengths = {"offsets": 4, "known": 20} | shapes
    offsets, known = (torch.zeros(lengths[name], dtype=torch.int64) for name in ("offsets", "known"))
    with pytest.raises(UsageError, match=f"^embedding: {said}$"):
        ops.embedding(torch.zeros(6, 3, dtype=torch.int64), torch.zeros(21, 4), offsets, known, V=V, hashing="lookup")


def test_torch_compile_shows_the_sentence_of_a_refusal(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    torch = pytest.importorskip("torch")
    from fusebench.ops import torch as ops

    x, W, b = torch.zeros(3, 5), torch.zeros(5, 4), torch.zeros(4)
    compiled = torch.compile(ops.lola, fullgraph=True, backend="eager")
    for inputs, options, said in (
        ((x, W, b), {"activation": "re lu"}, "unknown value 're lu' of option activation of lola: did you mean relu"),
        ((x, W, b), {"activatoin": "relu"}, "unknown option 'activatoin' of lola: did you mean activation"),
        ((x, W, b), {"precision": "fp8"}, "unknown precision 'fp8'"),
        ((x.int(), W, b), {}, "lola: x is int32; expected float32, as W is"),
    ):
        with pytest.raises(RuntimeError, match=re.escape(said)):
            compiled(*inputs, **options)


def test_help_has_the_inputs_with_their_shapes():
    pytest.importorskip("torch")
    from fusebench.ops import torch as ops

    assert (
        ops.lola.__doc__.startswith("lola: ") and "x (M, K), W (K, N) or (N, K), b (N,) → y (M, N)" in ops.lola.__doc__
    )


def test_a_function_is_pickled_by_its_name():
    pytest.importorskip("torch")
    from fusebench.ops import torch as ops

    assert pickle.loads(pickle.dumps(ops.lola)) is ops.lola
