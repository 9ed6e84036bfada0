"""lora_mlp in Flax.

- `module`: a linen Dense and two more without bias for each layer, the adapter as most users write it.
- `transposed`: the same with the frozen kernels kept as (N, K), so that the products read them by rows of K.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from implementations._shared.jax.autograd import differentiated
from implementations._shared.jax.operators import ACTIVATIONS, dense, dot_general, product, transposed_product
from implementations.lora_mlp._layers import OF_A_LAYER, by_layer, widths

BACKEND = "jax"
REQUIRES = {"flax": "flax"}
VARIANTS = {
    "module": ("product", "bias", "xa", "xab", "scaled", "sum", "activation"),
    "transposed": ("product", "bias", "xa", "xab", "scaled", "sum", "activation"),
}
BACKWARD = {
    "module": (
        "activation", "product", "bias", "xa", "xab", "scaled", "sum", "dz", "dscaled", "dxa", "straight", "through", "dhidden",
    ),
}  # fmt: skip


class LoraMLP(nn.Module):
    """Dense layers of the given widths with adapters, ReLU between them, `last` after the last. The scale is an argument."""

    widths: tuple[int, ...]
    rank: int
    last: str
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x, scale):
        def layer(features, name, use_bias=False):
            return nn.Dense(features, use_bias=use_bias, dtype=self.dtype, dot_general=dot_general, name=name)

        for i, width in enumerate(self.widths, 1):
            z = layer(width, f"frozen{i}", use_bias=True)(x)
            z = z + scale * layer(width, f"B{i}")(layer(self.rank, f"A{i}")(x))
            x = ACTIVATIONS[self.last if i == len(self.widths) else "relu"](z)
        return x


def prepare(case, variant, x, scale, *arrays):
    """(W1, W2, …) in the variant's layout; nothing in backward modes, where they are trained."""
    if case.mode != "forward":
        return ()
    kept = case.options["w_layout"] == ("nk" if variant == "transposed" else "kn")
    return tuple(jnp.array(W if kept else W.T) for W, *_ in by_layer(arrays))


def build(case, variant, device):
    """call(x (M, N0), scale (), W1, b1, A1, B1, …, W1, W2, … in the variant's layout) → (M, N of the last layer), jitted."""
    layers, last = case.sizes["LAYERS"], case.options["last"]
    module = LoraMLP(widths(case)[1:], case.sizes["R"], last, jnp.dtype(case.dtype))

    def apply(x, scale, *arrays):
        own, Ws = by_layer(arrays[: OF_A_LAYER * layers]), arrays[OF_A_LAYER * layers :]
        params = {}
        for i, ((_, b, A, B), W) in enumerate(zip(own, Ws, strict=True), 1):
            params |= {f"frozen{i}": {"kernel": W, "bias": b}, f"A{i}": {"kernel": A}, f"B{i}": {"kernel": B}}
        return module.apply({"params": params}, x, scale)

    def chained(x, scale, own, straight):
        for i, arrays in enumerate(own, 1):
            _, _, A, B = arrays
            x = ACTIVATIONS[last if i == layers else "relu"](straight(i, x, arrays) + scale * product(product(x, A), B))
        return x

    def transposed(x, scale, *arrays):
        own, Ws = by_layer(arrays[: OF_A_LAYER * layers]), arrays[OF_A_LAYER * layers :]
        return chained(x, scale, own, lambda i, h, of: transposed_product(h, Ws[i - 1]) + of[1])

    def trained(x, scale, *arrays):
        return chained(x, scale, by_layer(arrays), lambda i, h, of: dense(case, h, of[0], of[1]))

    if case.mode != "forward":
        return differentiated(trained, (0, *range(2, 2 + OF_A_LAYER * layers)))
    return jax.jit(transposed if variant == "transposed" else apply)
