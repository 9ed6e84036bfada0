"""A process in which Triton is interpreted: every function of fusebench.ops, called directly, compiled and differentiated, beside the
formulas. Prints one JSON object a line: what ran and how far it was from the reference, as a share of the largest element."""

from __future__ import annotations

import functools
import json
import os

os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from test_parity import few

from fusebench import discovery, modes
from fusebench.cases import make_case
from fusebench.inputs import make_sets
from fusebench.ops import jax as of_jax
from fusebench.ops import torch as of_torch
from fusebench.parity.rounding import Exact, evaluate

ONE = "softmax"  # where what is the same for every kernel is tried
SECOND = "its gradient cannot be differentiated again"
SCALAR = "the kernel computes no gradient of "
KERNELS = discovery.find_kernels([discovery.HOME])


def arrays_of(name):
    """(own inputs, upstream gradients, the reference's outputs, its gradients, the places of these, sizes by name)."""
    kernel = KERNELS[name]
    case = make_case(kernel, few(kernel), mode="backward")
    (arrays,) = make_sets(kernel.mathematics, case, 0, 1)
    arrays = {n: np.where(np.isfinite(a), a, 0).astype(a.dtype) for n, a in arrays.items()}
    own = {n: a for n, a in arrays.items() if not n.startswith(modes.UPSTREAM)}
    behind = [a for n, a in arrays.items() if n not in own]
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays.values()]
    outputs = evaluate(kernel.mathematics.formula, case, Exact(), wide[: len(own)])
    gradients = evaluate(kernel.mathematics.gradient, case, Exact(), wide)
    places = [[*own].index(n) for n in kernel.mathematics.gradients if n in own]
    sizes = {"V": case.sizes["V"]} if name == "embedding" else {}  # the one size that no shape shows
    return list(own.values()), behind, outputs, gradients, places, sizes


def say(framework, name, how, got, expected):
    far = [float(np.abs(np.asarray(g, np.float64) - e).max() / max(1.0, np.abs(e).max())) for g, e in zip(got, expected, strict=True)]  # fmt: skip
    print(json.dumps({"framework": framework, "kernel": name, "how": how, "far": far}), flush=True)


def refused(framework, name, how, said, *calls):
    """Prints 0 for each call that is refused with what is `said`."""
    far = []
    for call in calls:
        try:
            call()
            told = "no error"
        except Exception as error:  # torch.compile has an error of its own, with our sentence
            told = str(error)
        far.append(0.0 if f"{name}: {said}" in told else 1.0)
    print(json.dumps({"framework": framework, "kernel": name, "how": how, "far": far}), flush=True)


def scalars(own, places):
    """The places of floats that have no gradient."""
    return [n for n, a in enumerate(own) if a.dtype.kind == "f" and n not in places]


def by_torch(name):
    import torch
    import torch.utils.checkpoint

    own, behind, outputs, gradients, places, sizes = arrays_of(name)
    inputs = [torch.from_numpy(np.array(a)).requires_grad_(n in places) for n, a in enumerate(own)]
    function, upstream = getattr(of_torch, name), [torch.from_numpy(np.array(a)) for a in behind]
    calls = {"called": function, "compiled": torch.compile(function, fullgraph=True, backend="aot_eager")}
    if name == ONE:
        calls["checkpointed"] = functools.partial(torch.utils.checkpoint.checkpoint, function, use_reentrant=False)
    for how, call in calls.items():
        made = call(*inputs, **sizes)
        made = made if isinstance(made, tuple) else (made,)
        found = torch.autograd.grad(made, [inputs[n] for n in places], upstream)
        say("torch", name, how, [m.detach().numpy() for m in made] + [f.numpy() for f in found], [*outputs, *gradients])
    if name == ONE:
        (again,) = torch.autograd.grad(function(*inputs).sum(), inputs, create_graph=True)
        refused("torch", name, "second", SECOND, lambda: torch.autograd.grad(again.sum(), inputs))
    if fixed := scalars(own, places):
        wanted = [i.detach().requires_grad_(n in fixed) for n, i in enumerate(inputs)]
        refused("torch", name, "scalar", SCALAR, *(functools.partial(call, *wanted) for call in calls.values()))


def by_jax(name):
    import jax

    own, behind, outputs, gradients, places, sizes = arrays_of(name)

    jax.config.update("jax_enable_x64", True)  # ids reach 2³²-1; floats keep their dtype

    @jax.jit
    def run(*inputs):
        def of_wanted(*floats):
            given = list(inputs)
            for place, value in zip(places, floats, strict=True):
                given[place] = value
            return getattr(of_jax, name)(*given, **sizes)

        made, back = jax.vjp(of_wanted, *(inputs[n] for n in places))
        return made, back(behind[0] if len(behind) == 1 else tuple(behind))

    made, found = run(*own)
    made = made if isinstance(made, tuple | list) else (made,)
    say("jax", name, "jitted", [*made, *found], [*outputs, *gradients])
    if name == ONE:
        function = getattr(of_jax, name)
        by_row = jax.vmap(lambda x, dy: jax.vjp(function, x)[1](dy)[0])(own[0][:, None], behind[0][:, None])
        say("jax", name, "vmapped", [by_row[:, 0]], gradients)
        refused("jax", name, "second", SECOND, lambda: jax.hessian(lambda x: function(x).sum())(own[0]))
    for place in scalars(own, places):
        by_scalar = jax.grad(lambda *inputs: getattr(of_jax, name)(*inputs).sum(), place)
        calls = (functools.partial(call, *own) for call in (by_scalar, jax.jit(by_scalar)))
        refused("jax", name, "scalar", SCALAR, *calls)


if __name__ == "__main__":
    for framework, module, run in (("torch", of_torch, by_torch), ("jax", of_jax, by_jax)):
        for name in dir(module):
            try:
                run(name)
            except Exception as error:  # the next one is told all the same
                print(json.dumps({"framework": framework, "kernel": name, "how": repr(error)[:2000], "far": [1.0]}))
