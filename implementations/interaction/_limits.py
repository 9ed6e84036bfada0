"""Which cells of interaction no implementation can do. Imports no framework."""

from implementations._shared.dlrm import outer_skip


def skip(case, variant, device):
    """Why nobody can run the case, or None."""
    if case.options["form"] == "dot":
        return None
    if case.precision == "tf32":
        return "outer multiplies element by element, where tf32 means nothing: precision=ieee runs it"
    M, F, D = case.size("M", "F", "D")
    return outer_skip(M, ((F + 1) * D) ** 2, case.itemsize)
