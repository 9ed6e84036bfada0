"""NVIDIA's nvdisasm, which needs no GPU: from a wheel, a toolkit, or Triton's own package."""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fusebench.backends.cuda import toolkits
from fusebench.errors import UsageError
from fusebench.inspection import merged

PACKAGE = "nvidia-cuda-nvdisasm"
NAME = "nvdisasm"


@cache
def find() -> Path:
    """The newest that is installed. Raises UsageError where there is none."""
    for path in _places():
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise UsageError(f"{NAME} is not installed, and machine code is not read without it: pip install {PACKAGE}")


def _places() -> Iterator[Path]:
    for site in (Path(entry) for entry in sys.path if entry):
        yield from sorted(site.glob(f"nvidia/*/bin/{NAME}"))
    yield from (toolkit / "bin" / NAME for toolkit in toolkits())
    if on_path := shutil.which(NAME):
        yield Path(on_path)
    triton = importlib.util.find_spec("triton")
    if triton and triton.origin:
        yield Path(triton.origin).parent / "backends" / "nvidia" / "bin" / NAME


class Listings:
    """The listings of cubins that are added first and asked for later: all that wait are disassembled together, because the disassembler
    takes half a second to start."""

    def __init__(self) -> None:
        self._found: dict[bytes, str] = {}
        self._waiting: dict[bytes, None] = {}  # implementations that launch the same kernels have one cubin

    def add(self, cubin: bytes) -> None:
        if cubin not in self._found:
            self._waiting[cubin] = None

    def of(self, cubin: bytes) -> str:
        """The listing of a cubin. Raises UsageError without nvdisasm, ValueError for what it does not read."""
        self.add(cubin)
        if cubin in self._waiting:
            alike = [waiting for waiting in self._waiting if merged.architecture(waiting) == merged.architecture(cubin)]
            self._found |= _together(alike) if len(alike) > 1 else {}
            self._waiting = {other: None for other in self._waiting if other not in alike}
        if cubin not in self._found:
            self._found[cubin] = disassemble(cubin)
        return self._found[cubin]


def _together(cubins: list[bytes]) -> dict[bytes, str]:
    """Their listings; of what cannot be read together none."""
    try:
        texts = merged.split(disassemble(merged.merge(cubins)), len(cubins))
    except (ValueError, KeyError, struct.error):
        return {}
    return {cubin: text for cubin, text in zip(cubins, texts, strict=True) if "/*0000*/" in text}


def disassemble(cubin: bytes) -> str:
    """The listing of all code in the cubin, with the lines that it is of where the cubin has them. Raises UsageError without nvdisasm,
    ValueError for what it does not read."""
    with tempfile.TemporaryDirectory(prefix="fusebench-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([find(), "-c", "-gi", file], capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ValueError(f"{NAME}: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout
