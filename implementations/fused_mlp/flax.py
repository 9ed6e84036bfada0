"""fused_mlp in Flax.

- `module`: a linen module of Dense layers, as most users write it.
- `transposed`: the same with the kernels kept as (N, K), so that the products read them by rows of K.
"""

import jax
import jax.numpy as jnp

from implementations._shared.jax.autograd import differentiated
from implementations._shared.jax.operators import ACTIVATIONS, dense, transposed_product
from implementations._shared.jax.perceptron import Perceptron, parameters

BACKEND = "jax"
REQUIRES = {"flax": "flax"}
VARIANTS = {"module": ("product", "bias", "activation"), "transposed": ("product", "bias", "activation")}
BACKWARD = {"module": ("product", "bias", "activation", "dz", "dhidden")}


def prepare(case, variant, x, *layers):
    """(W1, W2, …) in the variant's layout; nothing in backward modes, where they are trained."""
    if case.mode != "forward":
        return ()
    kept = case.options["w_layout"] == ("nk" if variant == "transposed" else "kn")
    return tuple(jnp.array(W if kept else W.T) for W in layers[::2])


def build(case, variant, device):
    """call(x (M, N0), W1, b1, W2, b2, …, W1, W2, … in the variant's layout) → (M, N of the last layer), jitted."""
    layers, last = case.sizes["LAYERS"], case.options["last"]
    module = Perceptron(case.size("N1", "N2", "N3", "N4")[:layers], last, jnp.dtype(case.dtype))

    def apply(x, *arrays):
        biases, Ws = arrays[1 : 2 * layers : 2], arrays[2 * layers :]
        return module.apply({"params": parameters(Ws, biases)}, x)

    def transposed(x, *arrays):
        biases, Ws = arrays[1 : 2 * layers : 2], arrays[2 * layers :]
        for i, (W, b) in enumerate(zip(Ws, biases, strict=True)):
            x = transposed_product(x, W) + b
            x = ACTIVATIONS[last](x) if i + 1 == layers else jax.nn.relu(x)
        return x

    def trained(x, *arrays):
        for i, (W, b) in enumerate(zip(arrays[::2], arrays[1::2], strict=True), 1):
            x = ACTIVATIONS[last if i == layers else "relu"](dense(case, x, W, b))
        return x

    if case.mode != "forward":
        return differentiated(trained, tuple(range(2 * case.sizes["LAYERS"] + 1)))
    return jax.jit(transposed if variant == "transposed" else apply)
