"""lora_linear in Flax.

- `module`: a linen Dense and two more without bias, the adapter as most users write it.
- `transposed`: the same with the frozen kernel kept as (N, K), so that the product reads W by rows of K.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from implementations._shared.jax.autograd import differentiated
from implementations._shared.jax.operators import ACTIVATIONS, dense, dot_general, product, transposed_product

BACKEND = "jax"
REQUIRES = {"flax": "flax"}
VARIANTS = {
    "module": ("product", "bias", "xa", "xab", "scaled", "sum", "activation"),
    "transposed": ("product", "bias", "xa", "xab", "scaled", "sum", "activation"),
}
BACKWARD = {
    "module": (
        "activation",
        "product",
        "bias",
        "xa",
        "xab",
        "scaled",
        "sum",
        "dz",
        "dscaled",
        "dxa",
        "straight",
        "through",
    ),
}


class LoraLinear(nn.Module):
    """Dense with a low-rank adapter whose scale is an argument."""

    features: int
    rank: int
    activation: str
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x, scale):
        straight = nn.Dense(self.features, dtype=self.dtype, dot_general=dot_general, name="frozen")(x)
        down = nn.Dense(self.rank, use_bias=False, dtype=self.dtype, dot_general=dot_general, name="A")(x)
        return ACTIVATIONS[self.activation](
            straight
            + scale * nn.Dense(self.features, use_bias=False, dtype=self.dtype, dot_general=dot_general, name="B")(down)
        )


def prepare(case, variant, x, scale, W, b, A, B):
    """(W in the variant's layout,); nothing in backward modes, where W is trained."""
    if case.mode != "forward":
        return ()
    return (jnp.array(W if case.options["w_layout"] == ("nk" if variant == "transposed" else "kn") else W.T),)


def build(case, variant, device):
    """call(x (M, K), scale (), W, b (N,), A (K, R), B (R, N), W in the variant's layout) → (M, N), jitted."""
    activation = case.options["activation"]
    module = LoraLinear(*case.size("N", "R"), activation, jnp.dtype(case.dtype))

    def apply(x, scale, _, b, A, B, W):
        params = {"frozen": {"kernel": W, "bias": b}, "A": {"kernel": A}, "B": {"kernel": B}}
        return module.apply({"params": params}, x, scale)

    def transposed(x, scale, _, b, A, B, W):
        return ACTIVATIONS[activation](transposed_product(x, W) + b + scale * product(product(x, A), B))

    def trained(x, scale, W, b, A, B):
        return ACTIVATIONS[activation](dense(case, x, W, b) + scale * product(product(x, A), B))

    if case.mode != "forward":
        return differentiated(trained, (0, 2, 3, 4, 5))
    return jax.jit(transposed if variant == "transposed" else apply)
