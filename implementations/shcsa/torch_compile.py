"""shcsa through torch.compile: Inductor fuses scale, mask and softmax between the three library products.

`default` takes Inductor's heuristics; `max_autotune` lets it search tiles, without CUDA graphs, which would copy the inputs. Where rows are no
whole vectors, Inductor stores the padded product of the Dense before it adds the bias.
"""

import math

import torch
import torch.nn.functional as F

from implementations._shared.torch.compile import compiled

BACKEND = "torch"
VARIANTS = {
    "default": ("product", "bias", "scores", "probabilities"),
    "max_autotune": ("product", "bias", "scores", "probabilities"),
}


def skip(case, variant, device):
    if variant == "max_autotune" and device.type == "cpu":
        return "max_autotune searches GPU kernels"
    return None


def build(case, variant, device):
    """call(x (T, C), n_padd () int32, W, b (3 D,)) → (T, D)."""
    D, transposed = case.sizes["D"], case.options["w_layout"] == "nk"

    def shcsa(x, n_padd, W, b):
        q, k, v = F.linear(x, W if transposed else W.T, b).split(D, dim=1)
        tokens = torch.arange(x.shape[0], device=x.device)
        padding = tokens < n_padd
        hidden = (tokens > tokens[:, None]) | padding
        scores = (torch.mm(q, k.T).float() * (1 / math.sqrt(D))).masked_fill(hidden, float("-inf"))
        probabilities = torch.softmax(scores, dim=-1).masked_fill(hidden, 0).to(x.dtype)
        return torch.mm(probabilities, v.masked_fill(padding[:, None], 0))

    return compiled(shcsa, "max-autotune-no-cudagraphs" if variant == "max_autotune" else None)
