"""The backward modes by Torch's autograd, as every implementation has them that writes no backward of its own."""

import torch


def in_mode(case, function, wanted):
    """What `build` returns of a function: itself, or in the backward modes its (forward, backward)."""
    return function if case.mode == "forward" else differentiated(function, wanted)


def differentiated(function, wanted):
    """(forward, backward) of `function`, as the contract has them: `wanted` are the places of the inputs that have gradients.

    forward(*inputs) → (outputs, residuals): the residuals are the graph of autograd, with what it saved. backward(residuals,
    *upstream) → the gradients, in the order of `wanted`; it frees the graph, as a training step does.
    """

    def forward(*inputs):
        given = [i.detach().requires_grad_() if place in wanted else i for place, i in enumerate(inputs)]
        with torch.enable_grad():
            made = function(*given)
        outputs = made if isinstance(made, tuple) else (made,)
        return tuple(o.detach() for o in outputs), (outputs, [given[place] for place in wanted])

    def backward(residuals, *upstream):
        return torch.autograd.grad(*residuals, upstream)

    return forward, backward
