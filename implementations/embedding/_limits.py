"""Which cells of embedding cannot be run, the same for all implementations. Imports no framework."""

COMPARISONS = 4e9  # of ids with known values that a CPU does in some seconds


def skip(case, variant, device):
    """Why the variant cannot do the case, or None. `modulus` does one hashing; `naive` and `improved` are two ways to do the
    other."""
    if (variant == "modulus") != (case.options["hashing"] == "modulus"):
        return f"{variant} is for option.hashing={'modulus' if variant == 'modulus' else 'lookup'}"
    M, V = case.size("M", "V")
    if variant == "naive" and device.type == "cpu" and M * V > COMPARISONS:
        return f"naive compares {M} ids with {V} known values: minutes on a CPU"
    return None
