"""The backward modes of a layer with a gate, geglu and splacc (gated_backward.cuh): a file has the gate, the products are layer_backward.py's,
of x @ W with all 2N columns. Forward, one launch, Z and y, where a kernel makes both (`_kept`); else two, or more where rows of x or W are copied to whole vectors. Backward:
dZ, then dx, dW and db; of very few rows one launch (gated_few_rows.py)."""

from dataclasses import replace

from implementations._shared.cuda import gated_few_rows, gated_products, layer_backward
from implementations._shared.cuda.gated_products import PARTS
from implementations._shared.cuda.launch import TYPES, Launch, in_turn, instance
from implementations._shared.gpu import rows_are_aligned


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


def _forward(file, case, device):
    """(The copies, the launches of Z and of y, or the one of both.)"""
    if kept := _kept(file, case, device):
        return (None, None), (kept,)
    (M, N), own, dtype = case.size("M", "N"), layer(case), case.dtype
    down, across = layer_backward.pulled_blocks(own, device, PARTS)
    program = instance(file, "gated", TYPES[dtype], _gate(case), rows_are_aligned(case, N))
    sizes = M, N, layer_backward.pulled_rows(own, device, PARTS)
    y = Launch(program, down * across, layer_backward.THREADS, dtypes=(dtype, dtype), sizes=sizes)
    copies = layer_backward.copies(file, own, device)
    in_order = in_turn(*(c[0] for c in copies if c), layer_backward.linear(file, own, device), y)
    made = iter(in_order)
    return [c and (next(made), c[1]) for c in copies], in_order[-2:]


def _kept(file, case, device):
    """`kept_<KERNEL>`: x, W, b or none, Z, y. None where no kernel makes both: in float32, of rows that are no whole vectors,
    and in tiles of KERNEL=tensor."""
    if case.itemsize != 2 or not rows_are_aligned(case, *case.size("K", "N")):
        return None
    chosen = gated_products.config(case, device)
    if chosen["KERNEL"] == "tensor":
        return None
    return gated_products.launch(file, "kept", case, device, chosen, (case.dtype,) * 5, (_gate(case),))


def launches(file, case, device, config, bias):
    """Those of the call, in the order in which they are launched."""
    own, dtype = layer(case), case.dtype
    if gated_few_rows.is_possible(own, device):
        behind = (gated_few_rows.launch(file, own, device, config, _gate(case)),)
    else:
        pull = layer_backward.pull_launch(
            file, own, device, "pull_gate", (TYPES[dtype], _gate(case)), (dtype, dtype), PARTS
        )
        behind = in_turn(pull, *layer_backward.launches(file, own, device, config, columns=bias, parts=PARTS))
    if case.mode == "backward":
        return behind
    copies, before = _forward(file, case, device)
    return *(c[0] for c in copies if c), *before, *behind


def build(file, case, device, config, bias):
    """(forward, backward) of x, W and, where there is a `bias`, b."""
    own, forward = layer(case), _forward_call(file, case, device, bias)
    first, *behind = launches(file, replace(case, mode="backward"), device, config, bias)
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


def _forward_call(file, case, device, bias):
    """A function of x, W and b, which returns y and (x, W, Z), the former two as the products of backward read them."""
    (M, K, N), absent = case.size("M", "K", "N"), () if bias else (2,)
    copies, (first, *gate) = _forward(file, case, device)
    if not gate:
        both = first.returning({3: (M, PARTS * N), 4: (M, N)}, (M, K, N), absent=absent)

        def at_once(x, W, *b):
            Z, y = both(x, W, *b)
            return y, (x, W, Z)

        return at_once

    of_x, of_W = (c and c[0].returning({1: c[1]}, absent=(2,)) for c in copies)
    linear = first.returning({3: (M, PARTS * N)}, (M, K, PARTS * N), absent=(*absent, 4))
    gated = gate[0].returning({1: (M, N)})

    def forward(x, W, *b):
        x, W = of_x(x) if of_x else x, of_W(W) if of_W else W
        Z = linear(x, W, *b)
        return gated(Z), (x, W, Z)

    return forward
