"""The backward modes of a layer with a gate, geglu and splacc (gated_backward.cuh): a file has the gate, the products are layer_backward.py's,
of x @ W with all 2N columns. Forward, two launches, or more where rows of x or W are copied to whole vectors: Z and y. Backward: dZ, then dx,
dW and db; of very few rows one launch (gated_few_rows.py)."""

from dataclasses import replace

from implementations._shared.cuda import gated_few_rows, layer_backward, linear_gradients
from implementations._shared.cuda.launch import TYPES, Launch, in_turn, instance
from implementations._shared.gpu import rows_are_aligned

PARTS = 2


def layer(case):
    """The case of Z = x @ W."""
    return replace(case, sizes={**case.sizes, "N": PARTS * case.sizes["N"]})


def config(case, device):
    """The tunables of the products of backward."""
    return _products(case, device).config(layer(case), device)


def fits(case, device, config):
    """Why a config cannot run, or None."""
    return _products(case, device).fits(layer(case), device, config)


def _products(case, device):
    """The module that has them."""
    return gated_few_rows if gated_few_rows.is_possible(layer(case), device) else layer_backward


def _gate(case):
    """The gate as a template's argument."""
    activation = case.options.get("activation")
    return f"Gate<{TYPES[case.dtype]}{f', {activation.upper()}' if activation else ''}>"


def _copies(file, case, device):
    """The copies of x and W to rows of whole vectors: None where they are as they came, else (a launch, its result's shape)."""
    own = layer(case)
    whole, rows = layer_backward.whole_rows(own, device), linear_gradients.weights_shape(own)
    shapes = (own.size("M", "K"), whole.size("M", "K")), (rows, (rows[0], linear_gradients.weights_shape(whole)[1]))
    return [
        None
        if whole is own or rows_are_aligned(case, given[1])
        else (layer_backward.rows_copy(file, case, device, *given, copied[1]), copied)
        for given, copied in shapes
    ]


def _forward(file, case, device):
    """(The copies, the launches of Z and of y.)"""
    (M, N), own, dtype = case.size("M", "N"), layer(case), case.dtype
    down, across = layer_backward.pulled_blocks(own, N)
    program = instance(file, "gated", TYPES[dtype], _gate(case), rows_are_aligned(case, N))
    sizes = M, N, layer_backward.pulled_rows(case)
    y = Launch(program, down * across, layer_backward.THREADS, dtypes=(dtype, dtype), sizes=sizes)
    copies = _copies(file, case, device)
    in_order = in_turn(*(c[0] for c in copies if c), layer_backward.linear(file, own, device), y)
    made = iter(in_order)
    return [c and (next(made), c[1]) for c in copies], in_order[-2:]


def launches(file, case, device, config, bias):
    """Those of the call, in the order in which they are launched."""
    own, dtype = layer(case), case.dtype
    if gated_few_rows.is_possible(own, device):
        behind = (gated_few_rows.launch(file, own, device, config, _gate(case)),)
    else:
        pull = layer_backward.pull_launch(file, own, device, "pull_gate", (TYPES[dtype], _gate(case)), (dtype, dtype), PARTS)
        behind = in_turn(pull, *layer_backward.launches(file, own, device, config, columns=bias, parts=PARTS))
    if case.mode == "backward":
        return behind
    copies, before = _forward(file, case, device)
    return *(c[0] for c in copies if c), *before, *behind


def build(file, case, device, config, bias):
    """(forward, backward) of x, W and, where there is a `bias`, b."""
    (M, K, N), own = case.size("M", "K", "N"), layer(case)
    copies, (linear, gated) = _forward(file, case, device)
    of_x, of_W = (c and c[0].returning({1: c[1]}, absent=(2,)) for c in copies)
    linear = linear.returning({3: (M, PARTS * N)}, (M, K, PARTS * N), absent=() if bias else (2,))
    gated = gated.returning({1: (M, N)})
    first, *behind = launches(file, replace(case, mode="backward"), device, config, bias)

    def forward(x, W, *b):
        x, W = of_x(x) if of_x else x, of_W(W) if of_W else W
        Z = linear(x, W, *b)
        return gated(Z), (x, W, Z)

    if not behind:
        gradients = gated_few_rows.gradients(first, own, bias)
        return forward, lambda residuals, dy: gradients(residuals[2], dy, residuals[1], residuals[0])

    pull = layer_backward.pulling(first, own, device, behind, rows=False, columns=bias, parts=PARTS)
    products = layer_backward.gradients(own, device, behind, rows=False, columns=bias, parts=PARTS)

    def backward(residuals, dy):
        x, W, Z = residuals
        dZ, row_parts, db, column_parts, flags = pull(Z, dy)
        dx, dW = products(dZ, W, x, None, row_parts, db, column_parts, flags)
        return (dx, dW, db) if bias else (dx, dW)

    return forward, backward
