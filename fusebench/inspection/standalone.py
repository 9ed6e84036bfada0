"""A folder that runs one cell without fusebench: script.py as run.py, the cell, its float64 reference, the kernel's own sources, and
copies of the harness's modules that launch it and draw its inputs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import fusebench
from fusebench import inputs, sources
from fusebench.backends import cuda
from fusebench.contract import Case, Cell
from fusebench.discovery import Implementation, Kernel
from fusebench.dtypes import numpy_dtype
from fusebench.inspection.targets import Target
from fusebench.parity.judge import Judge
from fusebench.workers.stages import NotInspected, chosen_config, load

ROOT = Path(fusebench.__file__).parent
HARNESS = (
    "contract.py",
    "drawing.py",
    "launchers.py",
    "backends/calls.py",
    "backends/chains.py",
    "backends/cuda.py",
    "backends/jax_triton.py",
    "backends/parameters.py",
    "backends/stand_ins.py",
    "backends/tensor_maps.py",
    "backends/triton_launcher.py",
    *(f"emulator/{file.name}" for file in sorted((ROOT / "emulator").glob("*.py"))),
)
FOLDERS = ("implementations", "harness")
_OURS = re.compile(r"\bfusebench\.(?=launchers|backends|contract|drawing|emulator)")


@dataclass
class References:
    """The inputs and judges of cases, which cells share."""

    known: dict[tuple[Any, ...], Judge] = field(default_factory=dict)

    def of(self, kernel: Kernel, cell: Cell, part: str) -> Judge:
        key = (cell.case.kernel, cell.case.id, cell.seed, part)
        if key not in self.known:
            (arrays,) = inputs.make_sets(kernel.mathematics, cell.case, cell.seed, 1)
            self.known = {
                key: Judge(kernel.mathematics, cell.case, arrays, cell.seed, part=part)
            }  # one: they are large
        return self.known[key]


def write(
    folder: Path, cell: Cell, kernel: Kernel, target: Target, references: References, programs: Iterable[Path]
) -> None:
    """Writes the cell's folder; `programs` are the CUDA sources that it compiles. Raises NotInspected where the cell cannot run
    anywhere, OSError."""
    implementation = kernel.implementations[cell.implementation]
    if reason := implementation.broken or implementation.missing():
        raise NotInspected(reason)
    if cell.case.mode != "forward":
        raise NotInspected(f"no script: scripts are of mode=forward, and this is mode={cell.case.mode}")
    module = load(implementation.kernel, implementation.name)
    judge = references.of(kernel, cell, implementation.computes)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("script.py"), folder / "run.py")
    _copy_sources(folder, [module.__name__, f"{module.__name__.rpartition('.')[0]}.kernel"], programs)
    _copy_harness(folder)
    described = _described(cell, kernel, implementation, judge) | _config(cell, implementation, module, target)
    _write_reference(folder, judge, implementation.variants[cell.variant])
    (folder / "cell.json").write_text(json.dumps(described, indent=1), encoding="utf-8")


def _described(cell: Cell, kernel: Kernel, implementation: Implementation, judge: Judge) -> dict[str, Any]:
    """What script.py reads of the cell."""
    names, case = list(judge.arrays), cell.case
    numbers = range(len(judge.reference()))
    axes = [kernel.mathematics.output_axis(number, names) for number in numbers]
    outputs = kernel.mathematics.outputs
    digest = hashlib.sha256()
    for array in judge.arrays.values():
        digest.update(np.ascontiguousarray(array).view(_bits(array)).data)
    return {
        "kernel": case.kernel, "implementation": cell.implementation, "variant": cell.variant, "label": cell.label,
        "backend": implementation.backend, "without_gpu": implementation.without_gpu,
        "requires": list(implementation.requires), "seed": cell.seed,
        "case": dataclasses.asdict(_plain(case)), "dtypes": {name: a.dtype.name for name, a in judge.arrays.items()},
        "inputs_sha256": digest.hexdigest(),
        "in_place": implementation.places_in_place(cell.variant, names),
        "outputs": [outputs[n] if n < len(outputs) else f"output {n}" for n in numbers],
        "output_dtypes": [judge.dtype(n) for n in numbers], "row_axes": axes,
    }  # fmt: skip


def _plain(case: Case) -> Case:
    return dataclasses.replace(case, sizes=dict(case.sizes), options=dict(case.options))


def _bits(array: np.ndarray) -> Any:
    return np.uint16 if array.dtype == numpy_dtype("bfloat16") else array.dtype


def _config(
    cell: Cell, implementation: Implementation, module: ModuleType, target: Target
) -> dict[str, Mapping[str, Any] | Sequence[int] | bool | None]:
    """The tunables of the cell on the target, None where it does not run there."""
    try:
        config = chosen_config(module, cell, target.device)
    except NotInspected:
        config = None
    has = bool(implementation.tunables)
    return {"tunables": has, "config": config, "set": dict(cell.config), "capability": target.device.capability}


def _write_reference(folder: Path, judge: Judge, points: Sequence[str]) -> None:
    arrays: dict[str, np.ndarray] = {} if judge.view.judged is None else {"rows": np.asarray(judge.view.judged)}
    for number, (exact, budget) in enumerate(zip(judge.reference(), judge.allowed(points), strict=True)):
        arrays |= {f"exact{number}": exact, f"limit{number}": np.broadcast_to(budget.limit, exact.shape)}
    np.savez_compressed(folder / "reference.npz", **arrays)  # type: ignore[arg-type]


def _copy_sources(folder: Path, modules: Sequence[str], programs: Iterable[Path]) -> None:
    """The files of the modules and of CUDA programs, as they lie below their roots."""
    files = [file for name in modules for file in sources.files(name)]
    files += [file for program in programs for file in cuda.sources_of(program)]
    for name, file in sources.named({file: str(file) for file in files}).items():
        _copy(Path(file), folder / "implementations" / name)
    (folder / "implementations" / "__init__.py").write_text("")


def _copy_harness(folder: Path) -> None:
    for name in HARNESS:
        _copy(ROOT / name, folder / "harness" / name)


def _copy(file: Path, to: Path) -> None:
    """The file; in Python, with the harness's modules by the names that their copies have."""
    to.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".py":
        to.write_text(_OURS.sub("harness.", file.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        shutil.copyfile(file, to)
