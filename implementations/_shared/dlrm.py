"""The recommendation model in parts, for kernel.py files and implementations alike: the case of each part, as the kernel of that part
has it, and which arrays belong to which. Imports no framework.

    dense       perceptron of LAYERS layers, N0 → N1 … → D, ReLU between them
    sparse      F look-ups of D values
    interaction dot or outer of the F + 1 vectors
    prediction  perceptron of LAYERS layers, 3 at most, → P1 → P2 → 1
"""

from dataclasses import replace
from typing import Any, NamedTuple

MOST_VECTORS = 46340  # of which F (F + 1) is below 2³¹
OUTER_BYTES = (
    2**36
)  # of the outer products, or of the weights that multiply them: more than two of either do not fit an H200
LEARNING_RATE = 0.1  # of a training step
COMPARISONS = 4e9  # of ids with known values that a CPU does in some seconds


class Arrays(NamedTuple):
    """The arguments of a call by their part: ids (M, F), perceptrons (W, b, W, b, …), `known` only with hashing=lookup, and what was
    prepared from the weights."""

    dense: Any
    ids: Any
    tables: Any
    offsets: Any
    bottom: tuple[Any, ...]
    top: tuple[Any, ...]
    known: Any
    prepared: tuple[Any, ...]


def by_part(case, arguments):
    """The arguments of a call, or of `prepare`, in the order of kernel.py."""
    return parts_of(case)(tuple(arguments))


def parts_of(case):
    """`by_part` of all calls of a case, from a tuple: where the parts begin is settled beforehand."""
    bottom = 4 + 2 * case.sizes["LAYERS"]
    top = bottom + 2 * layers_of_prediction(case)
    last = top + (case.options["hashing"] == "lookup")

    def parts(arguments):
        known = arguments[top] if last > top else None
        return Arrays(*arguments[:4], arguments[4:bottom], arguments[bottom:top], known, arguments[last:])

    return parts


def layers_of_prediction(case):
    """How many layers the prediction has."""
    return min(case.sizes["LAYERS"], 3)


def interaction_width(case):
    """Columns of the interaction, which the prediction multiplies."""
    F, D = case.size("F", "D")
    return D + F * (F + 1) // 2 if case.options["interaction"] == "dot" else ((F + 1) * D) ** 2


def interaction_pitch(case):
    """Elements that a row of the interaction takes where a kernel writes it for another: whole vectors of 16 elements, whatever its
    columns are, so that every row begins at a multiple of 16 bytes. Those past the columns are 0."""
    return -(-interaction_width(case) // 16) * 16


def perceptron(case, last, *widths):
    """The case of fused_mlp with these widths and the activation `last`."""
    padded = (*widths, 1, 1, 1, 1)[:5]
    sizes = {"M": case.sizes["M"], "LAYERS": len(widths) - 1} | {f"N{i}": n for i, n in enumerate(padded)}
    return replace(case, kernel="fused_mlp", sizes=sizes, options={"last": last, "w_layout": "kn"})


def dense_case(case):
    """The dense perceptron's. Raises ValueError for a number of layers that is not 1 to 4."""
    layers = case.sizes["LAYERS"]
    if layers > 4:
        raise ValueError(f"LAYERS is {layers}: expected 1 to 4")
    return perceptron(case, "none", *case.size("N0", "N1", "N2", "N3")[:layers], case.sizes["D"])


def prediction_case(case, last="sigmoid"):
    """The prediction's, which ends in a probability, or with last=none in its logit."""
    hidden = case.size("P1", "P2")[: layers_of_prediction(case) - 1]
    return perceptron(case, last, interaction_width(case), *hidden, 1)


def later_layers_case(case, last="sigmoid"):
    """The prediction's behind its first layer, or None where there are no others."""
    part = prediction_case(case, last)
    widths = part.size("N1", "N2", "N3")[: part.sizes["LAYERS"]]
    return perceptron(case, last, *widths) if len(widths) > 1 else None


def is_outer(case):
    return case.options["interaction"] == "outer"


def looks_up_apart(case, variant):
    """Whether kernels look up in a launch of its own: outer products read each vector many times, and `naive` compares an id with a list."""
    return variant == "naive" or is_outer(case)


def top_case(case):
    """The perceptron that kernels launch behind the interaction: all of the prediction, or, since outer products are multiplied as they are
    made, what is left of it behind the first layer; None if nothing."""
    return later_layers_case(case) if is_outer(case) else prediction_case(case)


def perceptrons(case):
    """The perceptrons that kernels launch, by name."""
    parts = {"bottom": dense_case(case), "top": top_case(case)}
    return {name: part for name, part in parts.items() if part}


def first_layer(case):
    """Columns and activation of the prediction's first layer."""
    part = prediction_case(case)
    return part.sizes["N1"], "relu" if part.sizes["LAYERS"] > 1 else part.options["last"]


def sparse_case(case):
    """That of embedding."""
    sizes = {name: case.sizes[name] for name in ("M", "F", "V", "D")}
    return replace(case, kernel="embedding", sizes=sizes, options={"hashing": case.options["hashing"]})


def interaction_case(case):
    """That of interaction."""
    sizes = {name: case.sizes[name] for name in ("M", "F", "D")}
    return replace(case, kernel="interaction", sizes=sizes, options={"form": case.options["interaction"]})


def hashing_skip(case, variant, device):
    """Why the variant cannot do the case's hashing, or None. `modulus` does one hashing; `naive` and `improved` are two ways to do the
    other."""
    if (variant == "modulus") != (case.options["hashing"] == "modulus"):
        return f"{variant} is for option.hashing={'modulus' if variant == 'modulus' else 'lookup'}"
    M, V = case.size("M", "V")
    if variant == "naive" and device.type == "cpu" and M * V > COMPARISONS:
        return f"naive compares {M} ids with {V} known values: minutes on a CPU"
    return None


def outer_skip(M, width, itemsize):
    """Why nobody can write M rows of an outer product that wide, or None."""
    written = M * width * itemsize
    return f"outer would write {written / 2**30:.0f} GiB" if written > OUTER_BYTES else None


def pairs_skip(case):
    """Why no kernel here can write the dots of the case, one of interaction, or None."""
    F = case.sizes["F"]
    if case.options["form"] == "dot" and F > MOST_VECTORS:
        return f"pairs of {F} vectors are counted in 32 bits: {MOST_VECTORS} at most"
    return None


def skip(case, variant, device):
    """Why no implementation can run the model, or None."""
    if case.options["interaction"] == "outer":
        M, LAYERS, P1 = case.size("M", "LAYERS", "P1")
        width, columns = interaction_width(case), P1 if LAYERS > 1 else 1
        if reason := outer_skip(M, width, case.itemsize):
            return reason
        if width * columns * case.itemsize > OUTER_BYTES:
            return f"outer has a first layer of {width} × {columns} weights: {width * columns * case.itemsize / 2**30:.0f} GiB"
    return hashing_skip(case, variant, device)
