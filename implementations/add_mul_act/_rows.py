"""What add_mul_act's gradients in CUDA and in Triton both go by. Imports no framework."""

from math import gcd

from implementations._shared.gpu import VECTOR_BYTES


def slope_is_from_y(case):
    """Whether the slope comes from y as it is stored, else from the inputs again."""
    return case.options["activation"] in ("relu", "sigmoid", "tanh")


def rows_of_a_group(case):
    """The fewest rows that are whole vectors of 16 bytes together, so that each such group begins at one, whatever N is."""
    size = VECTOR_BYTES // case.itemsize
    return size // gcd(case.sizes["N"], size)
