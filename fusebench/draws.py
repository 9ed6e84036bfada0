"""Numbers that no implementation is to know before they count: which calls are judged, and how inputs are mixed.

They come from the system, through a name that is watched: the generators of `secrets` and `random` are objects, of which methods can be
replaced where no name of a module or class changes. Each draw asks for as many bytes, which tell nothing of what it is for.
"""

from __future__ import annotations

import os

BYTES = 16  # far more than any bound needs, so that what is left of a division is as good as even


def below(bound: int) -> int:
    """A whole number from 0 up to the bound, which is left out."""
    return int.from_bytes(os.urandom(BYTES), "little") % bound


def share() -> float:
    """A number from 0 up to 1, which is left out."""
    return below(2**53) / 2**53
