"""Triton's interpreter without what it repeats for nothing: half of its time and more."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any


def quicken() -> None:
    """Takes two things out of the interpreter, if it is loaded; what kernels compute stays the same.

    It exchanges the functions of `triton.language` for its own at each call of a device function, `tl.sum` among them, and not only
    at each launch: a walk over some thousand names each time. And it looks for an overflow behind each integer operation, in
    seven others, which compiled kernels do not. A release of Triton in which these have other names is left as it is.
    """
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    scope, patch = (getattr(interpreter, name, None) for name in ("_LangPatchScope", "_patch_lang"))
    if scope is not None and patch is not None and patch.__module__ != __name__:
        interpreter._patch_lang = _once_a_launch(interpreter, scope, patch)
    builder: Any = getattr(interpreter, "interpreter_builder", None)
    if getattr(getattr(builder, "options", None), "sanitize_overflow", False):
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _once_a_launch(interpreter: Any, scope: Any, patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`patch`, which does nothing where it was called before in this launch for the same modules of the language."""
    done = set[frozenset[int]]()

    class Scope(scope):
        """What is put back when a launch ends; device functions leave that to their kernel."""

        def restore(self) -> None:
            done.clear()
            super().restore()

    def patch_once(function: Any) -> Any:
        language = sys.modules["triton.language"], sys.modules["triton.language.core"]
        seen = frozenset(id(value) for value in function.__globals__.values() if any(value is m for m in language))
        if seen in done:
            return Scope()
        done.add(seen)
        return patch(function)

    interpreter._LangPatchScope = Scope
    return patch_once
