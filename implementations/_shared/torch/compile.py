"""torch.compile as every `torch_compile.py` uses it: one graph, compiled once, or an error."""

import torch
import torch._dynamo


def compiled(function, mode=None):
    """`function` compiled for the shapes of its first call. Raises on a graph break and on a second compilation, so that
    what is timed never quietly becomes eager."""
    torch._dynamo.config.error_on_recompile = True
    return torch.compile(function, fullgraph=True, dynamic=False, mode=mode)
