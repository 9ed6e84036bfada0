"""Which cells of interaction no implementation can do. Imports no framework."""

OUTPUT_BYTES = 2**36  # of y: more than two of them do not fit an H200


def skip(case, variant, device):
    """Why nobody can run the case, or None."""
    if case.options["form"] == "dot":
        return None
    if case.precision == "tf32":
        return "outer multiplies element by element, where tf32 means nothing: precision=ieee runs it"
    M, F, D = case.size("M", "F", "D")
    written = M * ((F + 1) * D) ** 2 * case.itemsize
    return f"outer would write {written / 2**30:.0f} GiB" if written > OUTPUT_BYTES else None
