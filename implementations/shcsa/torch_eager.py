"""shcsa as PyTorch's own operators.

- `unfused`: Linear, product, scale, mask, softmax, 0 where nothing is visible, product.
- `padded_attention`: Linear, then scaled_dot_product_attention with the mask of what is visible. Torch takes the fastest of
  its kernels that knows such masks. Rows that see nothing are set to 0 after it, padding of k and v before.

The causal half of the mask is made once; padding is compared on the device, so that the host never waits for n_padd.
"""

import math

import torch
import torch.nn.functional as F

BACKEND = "torch"
VARIANTS = {
    "unfused": ("bias", "scores", "scaled", "probabilities"),
    "padded_attention": ("bias", "scores", "scaled", "probabilities"),
}


def build(case, variant, device):
    """call(x (T, C), n_padd () int32, W, b (3 D,)) → (T, D)."""
    T, D = case.size("T", "D")
    transposed = case.options["w_layout"] == "nk"
    tokens = torch.arange(T, device=device.type)
    future = tokens > tokens[:, None]

    def unfused(x, n_padd, W, b):
        q, k, v = F.linear(x, W if transposed else W.T, b).split(D, dim=1)
        padding = tokens < n_padd
        hidden = future | padding
        scores = torch.mm(q, k.T).mul_(1 / math.sqrt(D)).masked_fill_(hidden, float("-inf"))
        probabilities = torch.softmax(scores, dim=-1).masked_fill_(hidden, 0)
        return torch.mm(probabilities, v.masked_fill(padding[:, None], 0))

    def padded_attention(x, n_padd, W, b):
        padding = (tokens < n_padd)[:, None]
        qkv = F.linear(x, W if transposed else W.T, b).masked_fill_(padding, 0)
        q, k, v = qkv.view(1, 1, T, 3 * D).split(D, dim=3)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=~(future | padding.T))
        return y.view(T, D).masked_fill_(padding, 0)

    return unfused if variant == "unfused" else padded_attention
