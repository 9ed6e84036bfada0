"""The backward modes in JAX: the pair of jitted functions, and by jax.vjp for what writes no backward of its own."""

from dataclasses import dataclass

import jax


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Residuals:
    """How residuals are put together: of each leaf its place among inputs and outputs, None for one that is neither."""

    tree: jax.tree_util.PyTreeDef
    places: tuple[int | None, ...]


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

    return jitted(forward, backward)


def jitted(forward, backward):
    """(forward, backward), both jitted. Inputs and outputs among the residuals are no arrays of their own: out of a jitted function they
    would come as copies."""

    @jax.jit
    def computed(*inputs):
        outputs, residuals = forward(*inputs)
        at_hand = {id(one): number for number, one in enumerate((*inputs, *jax.tree.leaves(outputs)))}
        leaves, tree = jax.tree.flatten(residuals)
        places = tuple(at_hand.get(id(leaf)) for leaf in leaves)
        return outputs, [leaf for leaf in leaves if id(leaf) not in at_hand], _Residuals(tree, places)

    def keeping(*inputs):
        outputs, made, residuals = computed(*inputs)
        at_hand, rest = (*inputs, *jax.tree.leaves(outputs)), iter(made)
        leaves = [next(rest) if place is None else at_hand[place] for place in residuals.places]
        return outputs, jax.tree.unflatten(residuals.tree, leaves)

    return keeping, jax.jit(backward)
