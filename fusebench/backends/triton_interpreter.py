"""Triton's interpreter without what it repeats for nothing, half of its time and more, and with NumPy as it is today."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any


def quicken() -> None:
    """Takes out of the interpreter, if it is loaded, what it does again and again; what kernels compute stays the same.

    It exchanges the functions of `triton.language` for its own at each call of a device function, `tl.sum` among them, and not only
    at each launch: a walk over some thousand names each time. It looks for an overflow behind each integer operation, in
    seven others, which compiled kernels do not. It checks and wraps the shape of each block and of its type, and makes a table of all
    dtypes to look one up. Its numbers are arrays of one element, which Triton before 3.7 asks NumPy to take for Python's: NumPy 2.4 refuses.
    A release of Triton in which these have other names is left as it is.
    """
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    scope, patch = (getattr(interpreter, name, None) for name in ("_LangPatchScope", "_patch_lang"))
    if scope is not None and patch is not None and patch.__module__ != __name__:
        interpreter._patch_lang = _once_a_launch(interpreter, scope, patch)
        if (of_tensors := getattr(interpreter, "_patch_lang_tensor", None)) is not None:
            interpreter._patch_lang_tensor = _with_items(of_tensors)
    builder: Any = getattr(interpreter, "interpreter_builder", None)
    if getattr(getattr(builder, "options", None), "sanitize_overflow", False):
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    if (dtype_of := getattr(interpreter, "_get_np_dtype", None)) is not None and dtype_of.__module__ != __name__:
        interpreter._get_np_dtype = _by_name(interpreter.tl, dtype_of)
        _keep_shapes(interpreter.tl.core)


def _once_a_launch(interpreter: Any, scope: Any, patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`patch`, which does nothing where it was called before in this launch for the same modules of the language."""
    done = set[frozenset[int]]()
    # of the language, by a function's globals and how many there are
    modules: dict[int, tuple[int, frozenset[int]]] = {}

    class Scope(scope):
        """What is put back when a launch ends; device functions leave that to their kernel."""

        def restore(self) -> None:
            done.clear()
            super().restore()

    def patch_once(function: Any) -> Any:
        names = function.__globals__
        count, seen = modules.get(id(names), (0, frozenset()))
        if count != len(names):
            language = sys.modules["triton.language"], sys.modules["triton.language.core"]
            seen = frozenset(id(value) for value in names.values() if any(value is m for m in language))
            modules[id(names)] = len(names), seen
        if seen in done:
            return Scope()
        done.add(seen)
        return patch(function)

    interpreter._LangPatchScope = Scope
    return patch_once


def _with_items(patch: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """`patch`, which lets Python count by a number of Triton, whatever shape its array has."""

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda value: int(value.handle.data.item()))

    return patch_tensor


def _by_name(language: Any, dtype_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`dtype_of`, which gives NumPy's dtype for Triton's, asked once for each."""
    known: dict[str, Any] = {}
    block, pointer = language.block_type, language.pointer_type

    def dtype_by_name(dtype: Any) -> Any:
        element = dtype.element_ty if isinstance(dtype, block) else dtype
        if isinstance(element, pointer):
            return dtype_of(element)
        if (found := known.get(element.name)) is None:
            found = known[element.name] = dtype_of(element)
        return found

    return dtype_by_name


def _keep_shapes(core: Any) -> None:
    """Has blocks of one shape share it: a shape is checked and wrapped once, and blocks that share theirs need no broadcast."""
    from triton.language.semantic import TritonSemantic

    block, tensor, constexpr, lists = core.block_type, core.tensor, core.constexpr, (list, core.tuple)
    specimen = block(core.int32, [4])
    if {*vars(specimen)} != {"element_ty", "shape", "numel", "name"} or {*vars(tensor(None, specimen))} != {
        "handle", "shape", "numel", "type", "dtype",
    }:  # fmt: skip
        return
    type_init, init, broadcast = block.__init__, tensor.__init__, TritonSemantic.broadcast_impl_value
    types: dict[tuple[int, ...], tuple[Any, int, str]] = {}
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}
    scalar = tensor(None, core.int32)

    def block_init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([s.value if type(s) is constexpr else s for s in shape])
        plain = type(shape) in lists and {*map(type, sizes)} == {int}  # 4.0 is refused, and equals 4
        if (known := types.get(sizes)) is None or not plain:
            type_init(self, element_ty, shape)
            types[sizes] = self.shape, self.numel, str(self.shape)
            return
        self.element_ty = element_ty
        self.shape, self.numel, text = known
        self.name = f"<{text}, {element_ty}>"

    def tensor_init(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        if not type.is_block():
            self.shape, self.numel = scalar.shape, scalar.numel
            return
        sizes = tuple(type.shape)
        if (known := shapes.get(sizes)) is None:
            init(self, handle, type)
            known = shapes[sizes] = self.shape, self.numel
        self.shape, self.numel = known

    def broadcast_value(self: Any, lhs: Any, rhs: Any) -> Any:
        return (lhs, rhs) if lhs.shape is rhs.shape else broadcast(self, lhs, rhs)

    block.__init__, tensor.__init__, TritonSemantic.broadcast_impl_value = block_init, tensor_init, broadcast_value
