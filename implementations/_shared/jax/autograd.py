"""The backward modes by jax.vjp, as every implementation has them that writes no backward of its own."""

import jax


def in_mode(case, function, wanted):
    """What `build` returns of a function: the function jitted, or in the backward modes its (forward, backward)."""
    return jax.jit(function) if case.mode == "forward" else differentiated(function, wanted)


def differentiated(function, wanted):
    """(forward, backward) of `function`, as the contract has them, both jitted: `wanted` are the places of the inputs that have
    gradients.

    forward(*inputs) → (outputs, residuals): the residuals are what jax.vjp returns, closed over what it saved. backward(residuals,
    *upstream) → the gradients, in the order of `wanted`.
    """

    def forward(*inputs):
        def of_wanted(*floats):
            given = list(inputs)
            for place, value in zip(wanted, floats, strict=True):
                given[place] = value
            made = function(*given)
            return made if isinstance(made, tuple) else (made,)

        return jax.vjp(of_wanted, *(inputs[place] for place in wanted))

    def backward(residuals, *upstream):
        return residuals(upstream)

    return jax.jit(forward), jax.jit(backward)
