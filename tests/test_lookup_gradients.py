"""embedding's gradient in Triton and CUDA where its cases do not go: ids out of range, a second digit of the sort, rows of many runs; the
same bits each time. In a process of its own, because the switch of Triton's interpreter is read when a kernel is decorated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DEVICE

pytest.importorskip("triton")
PROGRAM = """
import importlib, json, sys
import numpy as np, torch
from fusebench import discovery
from fusebench.backends.triton_interpreter import quicken
from fusebench.cases import make_case
from fusebench.contract import Device
from fusebench.emulator.device import emulated
from fusebench.inputs import make_sets

name, dtype, rows, implementation = sys.argv[1:]
kernel, module = discovery.find_kernels([discovery.HOME])["embedding"], importlib.import_module("implementations.embedding." + implementation)
quicken()
device = Device(name, "", torch.cuda.get_device_capability() if name == "cuda" else (0, 0), 132)
if name == "cpu" and implementation == "cuda":
    device = emulated()
case = make_case(kernel, {"M": int(rows), "F": 2, "V": 1100, "D": 3}, dtype, mode="backward")
arrays = make_sets(kernel.mathematics, case, 0, 1)[0]
arrays["ids"][::50, 0], arrays["ids"][7, :] = -1, 2**32
ids, tables, offsets, dy = (torch.as_tensor(a.astype(np.float32) if a.dtype.kind == "f" else a) for a in arrays.values())
tables, dy = tables.to(getattr(torch, dtype)), dy.to(getattr(torch, dtype))
rows = torch.where((ids >> 32) == 0, (ids + 1) % (offsets[1:] - offsets[:-1]) + offsets[:-1], offsets[-1])
expected = torch.zeros(tables.shape, dtype=torch.float64).index_add_(0, rows.flatten(), dy.double().flatten(0, 1)).numpy()
found = {}
tuple_of = lambda given: given if isinstance(given, tuple) else (given,)
own = [a.to(name) for a in (ids, tables, offsets)]
of_cuda = [("deterministic", {"SORT": s, "CHUNK": 128, "num_warps": 2}) for s in ("cluster", "radix")] if implementation == "cuda" else []
for variant, changed in [*((variant, {}) for variant in module.BACKWARD), *of_cuda]:
    forward, backward = module.build(case, variant, device, module.config(case, variant, device) | changed)
    times = []
    for _ in range(1 if name == "cpu" else 10):
        _, residuals = forward(*own)
        (gradient,) = tuple_of(backward(residuals, dy.to(name)))
        times.append(gradient.cpu().float().numpy())
    worst = float(np.max(np.abs(times[0] - expected) / (1 + np.abs(expected))))
    found[" ".join([variant, *changed.get("SORT", "").split()])] = worst, float(np.abs(expected[-1]).max()), all(np.array_equal(times[0], other) for other in times)
print(json.dumps(found))
"""


ROWS = {"cpu": 100, "cuda": 6000}  # the interpreter takes seconds


@pytest.mark.parametrize("implementation", ["triton", "cuda"])
@pytest.mark.parametrize(("dtype", "most"), [("float16", 1e-3)] + [("float32", 1e-5)] * (DEVICE == "cuda"))
def test_rows_of_many_runs_and_ids_out_of_range(dtype, most, implementation):
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))}
    if DEVICE == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, DEVICE, dtype, str(ROWS[DEVICE]), implementation],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    sorts = {"deterministic cluster", "deterministic radix"} if implementation == "cuda" else set()
    assert set(found) == {"atomic", "deterministic"} | sorts
    for variant, (worst, last_row, same) in found.items():
        assert worst < most and last_row > 0, variant
        assert same or variant == "atomic"
