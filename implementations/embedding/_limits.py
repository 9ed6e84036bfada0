"""Which cells of embedding cannot be run, the same for all implementations. Imports no framework."""

COMPARISONS = 4e9  # of ids with known values that a CPU does in some seconds


def skip(case, variant, device):
    """Why the variant cannot do the case, or None: `modulus` is one hashing, `naive` and `improved` are two ways of the other."""
    if (variant == "modulus") != (case.options["hashing"] == "modulus"):
        wanted = "modulus" if variant == "modulus" else "lookup"
        return f"{variant} is a way to do hashing={wanted}: option.hashing={wanted} runs it"
    M, V = case.size("M", "V")
    if variant == "naive" and device.type == "cpu" and M * V > COMPARISONS:
        return f"naive compares {M} ids with {V} known values: minutes on a CPU"
    return None
