"""embedding's gradient in Triton where its cases do not go: ids out of range, a second digit of the sort, rows of many runs; the same bits
each time. In a process of its own, because the switch of Triton's interpreter is read when a kernel is decorated."""

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
from fusebench.inputs import make_sets

name, dtype, rows = sys.argv[1:]
kernel, module = discovery.find_kernels([discovery.HOME])["embedding"], importlib.import_module("implementations.embedding.triton")
quicken()
device = Device(name, "", torch.cuda.get_device_capability() if name == "cuda" else (0, 0), 132)
case = make_case(kernel, {"M": int(rows), "F": 2, "V": 1100, "D": 3}, dtype, mode="backward")
arrays = make_sets(kernel.mathematics, case, 0, 1)[0]
arrays["ids"][::50, 0], arrays["ids"][7, :] = -1, 2**32
ids, tables, offsets, dy = (torch.as_tensor(a.astype(np.float32) if a.dtype.kind == "f" else a) for a in arrays.values())
tables, dy = tables.to(getattr(torch, dtype)), dy.to(getattr(torch, dtype))
rows = torch.where((ids >> 32) == 0, (ids + 1) % (offsets[1:] - offsets[:-1]) + offsets[:-1], offsets[-1])
expected = torch.zeros(tables.shape, dtype=torch.float64).index_add_(0, rows.flatten(), dy.double().flatten(0, 1)).numpy()
found = {}
for variant in module.BACKWARD:
    forward, backward = module.build(case, variant, device, module.config(case, variant, device))
    own = [a.to(name) for a in (ids, tables, offsets)]
    times = []
    for _ in range(1 if name == "cpu" else 10):
        _, residuals = forward(*own)
        times.append(backward(residuals, dy.to(name))[0].cpu().float().numpy())
    worst = float(np.max(np.abs(times[0] - expected) / (1 + np.abs(expected))))
    found[variant] = worst, float(np.abs(expected[-1]).max()), all(np.array_equal(times[0], other) for other in times)
print(json.dumps(found))
"""


ROWS = {"cpu": 100, "cuda": 6000}  # the interpreter takes seconds


@pytest.mark.parametrize(("dtype", "most"), [("float16", 1e-3)] + [("float32", 1e-5)] * (DEVICE == "cuda"))
def test_rows_of_many_runs_and_ids_out_of_range(dtype, most):
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))}
    if DEVICE == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, DEVICE, dtype, str(ROWS[DEVICE])],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert set(found) == {"atomic", "deterministic"}
    for variant, (worst, last_row, _) in found.items():
        assert worst < most and last_row > 0, variant
    assert found["deterministic"][2]
