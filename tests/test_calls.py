"""What is called and timed in each mode, with which arguments, and calls that another process times as a whole."""

from __future__ import annotations

import gc
import importlib
import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from fusebench.backends import numpy as backend
from fusebench.contract import Device
from fusebench.dtypes import numpy_dtype
from fusebench.timing.samples import Ring
from fusebench.workers import late, protocol
from fusebench.workers.batch import CallBatch
from fusebench.workers.calls import EXPECTED, Places, of
from fusebench.workers.configs import choose
from fusebench.workers.outputs import Unfit

X, W, G, PREPARED = (np.full(4, n, np.float32) for n in (1, 2, 3, 4))
PLACES = Places(inputs=2, upstream=1, prepared=1)


def forward(x, w, prepared):
    assert (x is X, w is W, prepared is PREPARED) == (True,) * 3
    return x * w, (x, x * w)


def backward(residuals, g):
    x, product = residuals
    return [g * product, g * x]


def test_a_backward_call_gets_the_residuals_of_a_forward_call_that_is_made_before():
    calls = of((forward, backward), "backward", PLACES, backend)
    ready = calls.ready([X, W, G, PREPARED])
    assert ready[:4] == [X, W, G, PREPARED] and len(ready) == 5 and ready[4][0] is X
    first = ready[4]
    assert calls.ready(ready) is ready and len(ready) == 5 and ready[4] is not first, "those take the place of others"
    assert [gradient.tolist() for gradient in calls.call(*ready)] == [[6.0] * 4, [3.0] * 4]


def test_residuals_take_the_memory_that_the_arguments_do_not_have():
    calls = of((forward, backward), "backward", PLACES, backend)
    ring, saved = calls.on(Ring([[X, W, G, PREPARED]], frozenset(), np.copy), [X, W, G, PREPARED], backend)
    assert saved == ring.ready_bytes == 4 * 4, "x is an input"
    assert len(ring[0]) == 5


def test_a_forward_call_is_what_was_built():
    assert of(forward, "forward", PLACES, backend).call is forward


def test_forward_and_backward_in_one_call():
    calls = of((forward, backward), "forward_backward", PLACES, backend)
    ring = Ring([[X, W, G, PREPARED]], frozenset(), np.copy)
    assert calls.on(ring, [], backend) == (ring, None)
    assert [array.tolist()[0] for array in calls.call(*ring[0])] == [2.0, 6.0, 3.0]


def test_a_compiler_uses_upstream_gradients_after_the_outputs():
    """Which in training follow from them: else XLA makes both in one pass."""
    jax = pytest.importorskip("jax")
    from fusebench.backends import jax as compiled

    both = (lambda x: (jax.numpy.sin(x), x)), (lambda x, g: g * jax.numpy.cos(x))
    program = of(both, "forward_backward", Places(inputs=1, upstream=1), compiled).call
    first, second = (jax.numpy.full(4, v, "float32") for v in (1, 2))
    text = program.lower(first, second).as_text()
    (barrier,) = re.findall(r"(%\d+):2 = stablehlo.optimization_barrier (%\d+), %arg1", text)
    assert f"{barrier[1]} = stablehlo.sine %arg0" in text and f"stablehlo.multiply {barrier[0]}#1, " in text
    assert [value.tolist()[0] for value in program(first, second)] == pytest.approx([np.sin(1), 2 * np.cos(1)])


@pytest.mark.parametrize(
    "built", [forward, (forward,), (forward, backward, backward), (forward, 3), [forward, backward]]
)
def test_a_backward_mode_needs_a_pair_of_calls(built):
    with pytest.raises(Unfit) as refused:
        of(built, "backward", PLACES, backend)
    assert str(refused.value) == EXPECTED.format(type(built).__name__)


def test_a_batch_has_its_inputs_before_the_clock_starts_and_is_called_once(monkeypatch):
    events = []
    backend = SimpleNamespace(wait=lambda values: events.append(("wait", list(values))))
    batch = CallBatch(backend, lambda arguments, output: events.append(("taken", arguments, output)))
    assert batch.run() == protocol.Ran(), "nothing, where nothing was made ready"
    events.clear()
    monkeypatch.setattr("fusebench.draws.below", lambda below: below - 2)
    ring = Ring([[1], [2]], frozenset(), abs)
    assert batch.make_ready(lambda x: events.append(x) or -x, ring, 5, {}) == protocol.Ready(5)
    assert events == [("wait", [[1], [2], [1], [1], [1]])]
    assert batch.run() == protocol.Ran()
    called = [[x, ("wait", [-x])] for x in (1, 2, 1, 1, 1)]
    called[3].append(("taken", [1], -1))
    assert events[1:] == [event for own in called for event in own], "copied as its work ends; no output is kept"
    events.clear()
    batch.run()
    assert events == [], "what was called is forgotten"


def test_each_call_of_a_batch_gets_floats_that_none_has_seen_and_everything_else_as_it_is():
    """A set's floats with an unseen one's, in another share for each call; one call gets the unseen ones."""
    x, w, ids = np.array([1, 0, 2, 3], np.float32), np.full(4, 2, np.float32), np.arange(4)
    new, others = np.array([0, 1, -2, 0], np.float32), np.arange(4) + 9
    batch, got = CallBatch(backend, lambda arguments, output: (None, [arguments, output])), []
    ring = Ring([[x, w, ids], [10 * x, w, ids]], frozenset({0, 2}), np.copy)
    assert (
        batch.make_ready(lambda *arguments: got.append(arguments) or len(got), ring, 6, {0: new, 2: others}).calls == 6
    )
    batch.run()
    drawn = next(number for number, (_, _, places) in enumerate(got) if places[0] == 9)
    assert [a.tolist() for a in got[drawn]] == [new.tolist(), w.tolist(), others.tolist()] and got[drawn][1] is w
    fault, (arguments, output) = batch.unseen
    assert fault is None and arguments[0] is got[drawn][0] and output == drawn + 1
    shares = {number: float(call[0][1]) for number, call in enumerate(got) if number != drawn}
    assert len(set(shares.values())) == 5 and 0 < min(shares.values()) < max(shares.values()) <= 0.5
    for number, share in shares.items():
        mixed, weights, places = got[number]
        assert (
            mixed == pytest.approx(ring.sets[number % 2][0] * (1 - share) + new * share, rel=1e-6, abs=1e-6)
            and mixed.dtype == np.float32
        )
        assert weights is w and places.tolist() == ids.tolist() and places is not ids
    assert x.tolist() == [1, 0, 2, 3]


@pytest.mark.parametrize(
    ("asked", "config", "refusal"),
    [
        ({"BLOCK": 8}, {"BLOCK": 8, "num_warps": 4}, None),
        ({"WIDTH": 3, "DEPTH": 2}, {}, "this case has no use for DEPTH; its tunables are BLOCK, num_warps"),
    ],
)
def test_tunables_that_are_set_are_over_those_of_the_implementation(asked, config, refusal):
    module = SimpleNamespace(config=lambda case, variant, device: {"BLOCK": 4, "num_warps": 4})
    found = SimpleNamespace(tunables={"row": {"BLOCK": (4, 8), "num_warps": (4,)}})
    choice = choose(module, found, None, "row", None, asked, True)
    assert (choice.config, choice.refusal) == (config, refusal)


def test_an_upstream_gradient_is_made_when_forward_has_returned():
    """What there is before are bits that another array's are needed for."""
    g = np.array([1.5, -2, np.nan, -np.inf], np.float32)
    hidden = late.hide(backend, None, g, {})
    assert hidden.shape == g.shape and hidden.nbytes == g.nbytes and not (hidden.parts[0].view(np.float32) == g).any()
    ring, seen = Ring([[X, W, hidden, PREPARED]], frozenset({2}), partial(late.copied, backend)), []

    def forward(*inputs):
        seen.append([one[2] for one in gc.get_referrers(X) if type(one) is list and len(one) == 4])
        return X, X

    calls = of((forward, lambda residuals, g: g), "backward", PLACES, backend)
    ready, saved = calls.on(ring, ring[0], backend)
    assert saved == 0 and seen[0] and all(isinstance(one, late.Late) for one in seen[0])
    first, second = ready[0][2], ready[0][2]
    assert first.tobytes() == second.tobytes() == g.tobytes() and first is not second


def test_each_call_of_a_batch_draws_the_share_of_its_upstream_gradient_when_forward_has_returned():
    g, new = np.zeros(4, np.float32), np.ones(4, np.float32)
    hidden, unseen = (late.hide(backend, None, a, {}) for a in (g, new))
    ring = Ring([[X, hidden]], frozenset({0, 1}), partial(late.copied, backend))
    calls = of((lambda x: (x, x), lambda residuals, g: g), "backward", Places(1, 1), backend)
    ring, _ = calls.on(ring, ring[0], backend)
    batch, got = CallBatch(backend, lambda arguments, output: (None, [output])), []
    batch.make_ready(lambda *arguments: got.append(arguments) or arguments[1], ring, 5, {0: 2 * X, 1: unseen})
    batch.run()
    shares = [(float(x[0]) - 1, float(dy[0])) for x, dy, _ in got]
    assert batch.unseen[1][0].tolist() == new.tolist() and (1, 1) in shares
    assert all(0 < dy <= 0.5 and dy != x for x, dy in shares if (x, dy) != (1, 1)) and len(set(shares)) == 5


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 5), ()])
def test_a_hidden_array_is_made_bit_for_bit_in_every_back_end(name, dtype, shape):
    module = importlib.import_module(f"fusebench.backends.{name}")
    array = np.random.default_rng(0).standard_normal(shape).astype(numpy_dtype(dtype))
    made = module.get(late.made(late.hide(module, Device("cpu", ""), array, {})))
    assert made.dtype == array.dtype and made.shape == shape and made.tobytes() == array.tobytes()
