"""A linear layer with an adapter in Torch by the Triton kernels of _shared/triton: forward alone, or with what backward needs, and backward."""

from implementations._shared.triton import lora_backward as backward
from implementations._shared.triton.lora import kept_launches


def layer(case, *launches):
    """(x, scale, W, b, A, B) → y, by the launch of lora.py's `fused` or the two of `two_launches`."""
    *first, last = launches
    M, N, R = case.size("M", "N", "R")
    product = last.returning((M, N), M=M)
    if not first:
        return product
    down = first[0].returning((M, R), M=M)
    return lambda x, scale, W, b, A, B: product(down(x, A), x, scale, W, b, B)


def differentiated(case, device, chosen):
    """(forward, backward) of a layer, two launches each, or one backward; `chosen` is the config of lora_backward.py."""
    (M, K, N, R), linear = case.size("M", "K", "N", "R"), case.options["activation"] == "none"
    weights = (N, K) if case.options["w_layout"] == "nk" else (K, N)
    first, second = kept_launches(case, device)
    down, up = first.returning((M, R), M=M), second.returning(*[(M, N)] * (1 if linear else 2), M=M)
    *first, last = backward.launches(case, chosen)
    low = [launch.returning(*([] if linear else [(M, N)]), (M, R), M=M) for launch in first]
    products = last.returning((M, K), weights, (N,), (K, R), (R, N), M=M)

    def forward(x, scale, W, b, A, B):
        xa = down(x, A)
        made = up(xa, x, scale, W, b, B)
        *z, y = (made,) if linear else made
        return y, (x, scale, W, A, B, xa, *z)

    def gradient(residuals, dy):
        x, scale, W, A, B, xa, *z = residuals
        if not low:
            return products(*z, dy, W, x, A, B, xa, scale)
        dz, dxa = (dy, low[0](dy, scale, B)) if linear else low[0](*z, dy, scale, B)
        return products(dz, W, x, A, xa, scale, dxa)

    return forward, gradient
