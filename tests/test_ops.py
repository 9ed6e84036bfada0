"""The functions of fusebench.ops: values and gradients called, compiled and jitted, the examples of the README, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

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
    assert tuple(ran[framework, name]) == (hows + more if name == "softmax" else hows)
    for how in ran[framework, name]:
        assert max(ran[framework, name][how]) < 2e-6, how


@pytest.mark.parametrize(
    ("example", "printed"),
    zip(
        EXAMPLES,
        ("torch.Size([64, 128]) torch.Size([128, 256]) torch.Size([256])", "(64, 128) (128, 256) (256,)"),
        strict=True,
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
    with pytest.raises(UsageError, match=r"lola: b is float16; expected float32, as x is"):
        ops.lola(x, torch.zeros(5, 4), torch.zeros(4, dtype=torch.float16))
    for given, said in (
        ((x, torch.zeros(5, 4), 1.0), "lola: an input is a float; expected tensors"),
        ((), "lola: got no inputs"),
        ((x.double(), torch.zeros(5, 4).double(), torch.zeros(4).double()), "lola: got inputs of float64; expected float32"),
        ((torch.zeros(0, 5), torch.zeros(5, 4), torch.zeros(4)), r"lola: an input has the shape \(0, 5\); expected at least 1"),
        ((x, torch.zeros(5, 4, device="meta"), torch.zeros(4)), "lola: the inputs are on cpu, meta; expected one device"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            ops.lola(*given)
    with pytest.raises(UsageError, match="unknown option 'activatoin' of lola: did you mean activation"):
        ops.lola(x, torch.zeros(5, 4), torch.zeros(4), activatoin="relu")
    with pytest.raises(UsageError, match="unknown value 're lu' of option activation of lola: did you mean relu"):
        ops.lola(x, torch.zeros(5, 4), torch.zeros(4), activation="re lu")
    for transformed in (torch.func.vmap(ops.softmax), lambda x: torch.func.jvp(ops.softmax, (x,), (x,))):
        with pytest.raises(
            UsageError, match=r"softmax: torch.func \(grad, vmap, jvp\) and forward mode are not supported"
        ):
            transformed(torch.zeros(2, 3, 5))


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
