"""TorchScript as every `torchscript.py` uses it: torch.jit.script, called until its profile is taken and its graph optimised."""

import torch
import torch.nn.functional as F

WATCHED = 3  # calls until the compiled graph runs: two that are profiled, and one that compiles


def activate(name: str, z: torch.Tensor) -> torch.Tensor:
    """The activation `name`. TorchScript takes no functions as values, so that operators.ACTIVATIONS cannot be looked up; it
    removes the branches, because the name is a constant of the module."""
    if name == "relu":
        return F.relu(z)
    if name == "sigmoid":
        return torch.sigmoid(z)
    if name == "tanh":
        return torch.tanh(z)
    if name == "gelu_tanh":
        return F.gelu(z, approximate="tanh")
    if name == "gelu_erf":
        return F.gelu(z)
    if name == "silu":
        return F.silu(z)
    return z


def scripted(module):
    """A call of the scripted module. The profiling executor watches the first two calls and compiles what later ones run, which may
    round elsewhere: so the first call is preceded by those."""
    run, watched = torch.jit.script(module), []

    def call(*inputs):
        while len(watched) < WATCHED:
            watched.append(run(*inputs).shape)
        return run(*inputs)

    return call
