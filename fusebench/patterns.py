"""Names that are chosen by patterns: `soft*`, `all`, and `~cuda` for what is left out, wherever a key takes names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from fusebench.errors import UsageError, unknown

NEAREST = 3  # names that are suggested for a pattern which matches none


def choose(what: str, words: Sequence[object], known: Iterable[str]) -> list[str]:
    """The names that the words mean, each once, in the order of the words; without any but `~` words, all names less those.

    Raises UsageError for a word that matches no known name, with the nearest, and where nothing is left.
    """
    names = list(known)
    wanted, unwanted = split(words)
    found = [name for word in wanted for name in matching(what, word, names)]
    left_out = {name for word in unwanted for name in matching(what, word, names)}
    return left(what, words, [name for name in dict.fromkeys(found) if name not in left_out])


def split(words: Sequence[object]) -> tuple[list[str], list[str]]:
    """What is wanted, which is `all` where no word says so, and what is not, without the `~` in front."""
    texts = [str(word) for word in words]
    return [t for t in texts if t[:1] != "~"] or ["all"], [t[1:] for t in texts if t[:1] == "~"]


def left(what: str, words: Sequence[object], names: list[str]) -> list[str]:
    """The names. Raises UsageError for none."""
    if not names:
        raise UsageError(f"{what}=[{','.join(map(str, words))}] leaves none")
    return names


def is_pattern(word: str) -> bool:
    """Whether it may mean several names, or none."""
    return word == "all" or word[:1] == "~" or "*" in word or "?" in word


def matching(what: str, word: str, known: Sequence[str]) -> list[str]:
    """The known names that one word means. Raises UsageError for none, with the nearest."""
    if word == "all":
        return list(known)
    if not is_pattern(word):
        if word not in known:
            raise unknown(what, word, known)
        return [word]
    if found := [name for name in known if fnmatchcase(name, word)]:
        return found
    bare = word.replace("*", "").replace("?", "")
    near = difflib.get_close_matches(bare, known, n=NEAREST, cutoff=0.5)
    hint = f": did you mean {', '.join(near)}?" if near else "."
    raise UsageError(f"no {what} matches {word!r}{hint} There are: {', '.join(sorted(known)) or 'none'}")
