"""What an implementation may not import: the reference, whose answer it would borrow, and another framework than its own."""

from __future__ import annotations

import importlib.abc
import os
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType

from fusebench.backends.protocol import foreign

# What stands in the names of kernels of Torch, its compiler, cuBLAS, cuDNN and CUTLASS, and of XLA where it computes.
LIBRARIES = re.compile(
    r"\bat::native|cublas|cudnn|cutlass::|\bcub::|nvjet|xmma|triton_(poi|red|per|tem|mm)_|gemm_fusion"
    r"|(add|subtract|multiply|divide|maximum|minimum|exponential|tanh|logistic|rsqrt|select|compare|reduce|dot)\w*_fusion"
)
QUIET = re.compile(
    r"copy_kernel|CatArray|FillFunctor"
)  # of Torch's, those that move or fill, as watching lets them pass


def foreign_kernels(names: Iterable[str]) -> list[str]:
    """Those of the kernels, by the names that CUPTI shows, that a library launched and that compute."""
    return sorted(name for name in names if LIBRARIES.search(name) and not QUIET.search(name))


class Guard(importlib.abc.MetaPathFinder):
    """Stands in front of a worker's importers. A library may import what it likes; a file under the roots may not."""

    def __init__(self, backend: str, roots: Sequence[Path]):
        self.backend = backend
        self.roots = [f"{root.resolve()}{os.sep}" for root in roots]

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """None, which lets the next importer look. Raises ImportError for what an implementation may not have."""
        reference = name.startswith("implementations.") and name.endswith(".kernel")
        if reference or name.startswith("implementations._shared.numpy"):  # what formulas are made of
            raise ImportError(f"{name} is the reference: an implementation may not import it")
        if foreign(name, self.backend) and self._asked_by_implementation():
            raise ImportError(f"{name} is another framework than {self.backend}, which this implementation declares")
        return None

    def _asked_by_implementation(self) -> bool:
        frame: FrameType | None = sys._getframe()
        while frame and ("importlib" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
            frame = frame.f_back
        return frame is not None and any(frame.f_code.co_filename.startswith(root) for root in self.roots)
