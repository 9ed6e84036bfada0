"""What a user is told when the input is wrong: one line that names it, what was expected and what would work."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable


class UsageError(ValueError):
    """Bad input. The command line prints its one line and exits with 2; the library raises it."""


class StorageError(OSError):
    """The disk does not take what was written. The run ends there, because no cell is at fault; what is on record is kept."""


def unknown(what: str, name: object, known: Iterable[str]) -> UsageError:
    """`unknown kernel 'lolla': did you mean lola? There are: launch, lola`; what is "case of lola" is `unknown case 'nope' of lola`."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1) or [n for n in names if name and n.startswith(str(name))]
    hint = f": did you mean {near[0]}?" if near else "."
    kind, of, owner = what.partition(" of ")
    return UsageError(f"unknown {kind} {str(name)!r}{of}{owner}{hint} There are: {', '.join(names) or 'none'}")


def fail(error: UsageError) -> int:
    """Prints the one line of bad input and returns its exit code."""
    print(f"fusebench: {' '.join(str(error).splitlines())}", file=sys.stderr)
    return 2
