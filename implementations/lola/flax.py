"""lola in Flax and plain JAX.

- `module`: a linen module of LayerNorm and Dense, as most users write it.
- `default_layernorm`: the same with Flax's own choice of variance, mean(x²) - mean(x)², which cancels where |mean| is large.
- `transposed`: the module with the kernel kept as (N, K), so that the product reads W by rows of K.
- `pieces`: the one-pass identity of kernel.py, for one row and vmapped over the batch. A float32 row is shifted by its mean,
  so that nothing cancels; 16 bits cannot hold the shifted row, so there the product takes x itself.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from implementations._shared.jax.autograd import differentiated
from implementations._shared.jax.operators import ACTIVATIONS, add_bias, dot_general, product, transposed_product

BACKEND = "jax"
REQUIRES = {"flax": "flax"}
VARIANTS = {
    "module": ("layernorm", "product", "bias", "activation"),
    "default_layernorm": ("fast_variance", "layernorm", "product", "bias", "activation"),
    "transposed": ("layernorm", "product", "bias", "activation"),
    "pieces": ("one_pass",),
}
BACKWARD = {"module": ("layernorm", "product", "bias", "activation", "dz", "dn")}


class Lola(nn.Module):
    """LayerNorm without scale and shift (two-pass variance, as Torch's, unless it is to be `fast`), Dense, activation."""

    features: int
    activation: str
    dtype: jnp.dtype
    fast: bool = False

    @nn.compact
    def __call__(self, x):
        normed = nn.LayerNorm(
            epsilon=1e-5, use_bias=False, use_scale=False, use_fast_variance=self.fast, dtype=self.dtype
        )(x)
        return ACTIVATIONS[self.activation](nn.Dense(self.features, dtype=self.dtype, dot_general=dot_general)(normed))


def prepare(case, variant, x, W, b):
    """(W in the variant's layout,), and its float32 column sums for `pieces`; nothing in backward modes, where W is trained."""
    if case.mode != "forward":
        return ()
    stored = case.options["w_layout"]
    W = jnp.array(W if stored == ("nk" if variant == "transposed" else "kn") else W.T)
    return (W, W.astype(jnp.float32).sum(axis=0)) if variant == "pieces" else (W,)


def build(case, variant, device):
    """call(x (M, K), W, b (N,), *prepared) → (M, N), jitted."""
    activate = ACTIVATIONS[case.options["activation"]]
    fast = variant == "default_layernorm"
    module = Lola(case.sizes["N"], case.options["activation"], jnp.dtype(case.dtype), fast)

    def apply(x, _, b, W):
        return module.apply({"params": {"Dense_0": {"kernel": W, "bias": b}}}, x)

    def of_stored(x, W, b):
        normed = nn.LayerNorm(
            epsilon=1e-5, use_bias=False, use_scale=False, use_fast_variance=False, dtype=x.dtype
        ).apply({}, x)
        multiply = product if case.options["w_layout"] == "kn" else transposed_product
        return activate(add_bias(multiply(normed, W), b))

    if case.mode != "forward":
        return differentiated(of_stored, (0, 1, 2))

    def transposed(x, _, b, W):
        normed = nn.LayerNorm(
            epsilon=1e-5, use_bias=False, use_scale=False, use_fast_variance=False, dtype=x.dtype
        ).apply({}, x)
        return activate(transposed_product(normed, W) + b)

    def pieces(x, _, b, W, colsum):
        def row(x_row):
            wide = x_row.astype(jnp.float32)
            mean = wide.mean()
            shifted = wide - mean
            rest = shifted.mean()  # what rounding left of the mean
            rstd = jax.lax.rsqrt(jnp.maximum((shifted**2).mean() - rest**2, 0) + 1e-5)
            if x_row.dtype == jnp.float32:
                multiplied, shift = shifted, rest
            else:
                multiplied, shift = x_row, mean
            product = jnp.dot(multiplied, W, preferred_element_type=jnp.float32)
            return activate((product - shift * colsum) * rstd + b).astype(x_row.dtype)

        return jax.vmap(row)(x)

    return jax.jit({"transposed": transposed, "pieces": pieces}.get(variant, apply))  # both modules are `apply`
