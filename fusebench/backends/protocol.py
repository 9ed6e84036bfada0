"""What a back end is: a module in this folder with the constants and functions of `Backend`. Nothing else lists back ends.

A module is read before it is imported: `MODULES` and `REQUIRES` are literals, so that its framework loads in a worker alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fusebench.backends.events import Recording, Work
from fusebench.contract import Device


class Backend(Protocol):
    """One framework's arrays, its synchronisation, its memory and its flush of the L2 cache."""

    MODULES: tuple[str, ...]
    """The top-level modules that belong to the framework: an implementation of another back end may not import them."""
    REQUIRES: dict[str, str]
    """Module → what to `pip install` for it."""
    MUTABLE: bool
    """Whether arrays can be written to: `overwrite` then returns the one that it was given."""

    def start(self, device: str) -> Device:
        """Takes hold of "cpu" or "cuda" and describes it. Raises RuntimeError where the framework does not see it."""
        ...

    def configure(self, precision: str) -> None:
        """Fresh compiler state, and how float32 products are computed: "ieee" or "tf32"."""
        ...

    def settings(self) -> dict[str, Any]:
        """What is set for the whole process and changes results or times, by name."""
        ...

    def put(self, array: np.ndarray, device: Device) -> Any:
        """The same bits on the device."""
        ...

    def get(self, array: Any) -> np.ndarray:
        """The same bits in NumPy."""
        ...

    def copy(self, array: Any) -> Any:
        """The same bits in memory of its own."""
        ...

    def overwrite(self, array: Any, value: Any) -> Any:
        """An array with the bits of `value`, in the memory of `array`, which may be no array any more."""
        ...

    def move_rows(self, array: Any, axis: int, shift: int, exchanged: tuple[int, int]) -> Any:
        """The array rolled along the axis by `shift`, then with two rows of these numbers exchanged, in memory of its own."""
        ...

    def same(self, a: Any, b: Any) -> bool:
        """Whether two arrays have the same shape, dtype and bits, compared where they are."""
        ...

    def apart(self, a: Any, b: Any) -> tuple[int, float, float]:
        """How many elements of two arrays of one shape differ, the largest difference, infinite where one is not finite and the other is not
        the same, and the largest one as a share of the larger of both elements; compared where they are."""
        ...

    def unmasked(self, bits: Any, mask: Any, dtype: str) -> Any:
        """The array of that dtype whose bits are those in which two arrays of integers differ, in memory of its own."""
        ...

    def half(self, array: Any) -> Any:
        """The array times one half: shows whether subnormals survive."""
        ...

    def half_of_product(self, array: Any) -> Any:
        """The square matrix times half of the unit matrix: shows whether they survive a product."""
        ...

    def mixed(self, array: Any, other: Any, share: float) -> Any:
        """That share of the array and the rest of the other, in its own dtype, in memory of its own; an array of integers as it is."""
        ...

    def watch(self, call: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, list[str]]:
        """The output of a call, and the framework's operators that it computed with."""
        ...

    def in_one(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call as one program, where the framework makes one of several."""
        ...

    def in_order(self, outputs: Any, upstream: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """Both as they are; a compiler that sees them in one program may use the upstream gradients after all outputs are made alone,
        since in training they follow from the outputs."""
        ...

    def saved(self, residuals: Any) -> list[Any]:
        """The arrays that the residuals of a forward call keep for its backward one, each once or more often."""
        ...

    def is_array(self, value: Any) -> bool: ...

    def fault(self, value: Any, device: Device) -> str | None:
        """What a call returned that is not a plain array on the device, or None. A subclass, or an array with methods of its own,
        may compute when it is looked at, which is after its clock has stopped."""
        ...

    def memory(self, array: Any) -> tuple[int, int]:
        """The addresses at which the memory begins and ends that the array is in."""
        ...

    def device_of(self, array: Any) -> str:
        """ "cpu" or "cuda". Raises ValueError for a GPU that is not the first visible one."""
        ...

    def wait(self, outputs: Any) -> None:
        """Returns when the device has finished what it was given."""
        ...

    def flush(self) -> None:
        """Queues a kernel that overwrites more than the L2 cache holds, and that no kernel under test uses."""
        ...

    def forget_l2(self) -> None:
        """No line of L2 outlives the next flush: those of a GPU that were to persist are ordinary ones again, and there can be none."""
        ...

    def reset_peak(self) -> None:
        """Begins the count of `peak_bytes`."""
        ...

    def peak_bytes(self) -> int | None:
        """Device memory at its highest since `reset_peak` beyond what was held then; None where that is not known."""
        ...

    def held_bytes(self) -> int | None:
        """Bytes of the device's memory in use now; None on a CPU."""
        ...

    def record(self, work: Work) -> Recording:
        """What host and device did while `work` ran, which waits for the device itself and marks ranges by name: on a GPU kernels,
        copies and the driver's calls, on a CPU the framework's operators."""
        ...

    def release(self) -> int:
        """Gives unused device memory back, and returns the bytes that are still held."""
        ...


@dataclass(frozen=True)
class Description:
    """What is known of a back end without an import."""

    name: str
    modules: tuple[str, ...]
    requires: Mapping[str, str]


@cache
def found() -> Mapping[str, Description]:
    """The back ends by name: the modules of this folder that set MODULES."""
    descriptions = {}
    for file in sorted(Path(__file__).parent.glob("*.py")):
        literals = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in ast.parse(file.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            if node.targets[0].id in ("MODULES", "REQUIRES")
        }
        if "MODULES" in literals:
            descriptions[file.stem] = Description(file.stem, tuple(literals["MODULES"]), literals["REQUIRES"])
    return descriptions


# Of frameworks that have no back end here, but that an implementation of another one might compute with all the same.
OTHERS = ("cupy", "numba", "tensorflow", "tvm")


def foreign(module: str, backend: str) -> bool:
    """Whether the module belongs to another framework than that of `backend`. NumPy's arrays are everyone's."""
    name = module.partition(".")[0]
    theirs = {m for d in found().values() if d.name not in (backend, "numpy") for m in d.modules}
    return name in theirs or name in OTHERS
