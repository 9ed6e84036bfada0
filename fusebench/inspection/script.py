"""Runs one kernel on one case, without fusebench: cell.json beside it says which. It makes the inputs from their seed, runs the
call, compares its outputs with the float64 reference in reference.npz, and prints a time.

    python run.py [--device cpu|cuda] [--save outputs.npz] [--calls 100]

It needs NumPy and the kernel's framework: torch or jax, triton, for CUDA C++ cuda-core.
`implementations/` has the kernel's own sources, `harness/` what launches them and draws the inputs. On a machine without a
GPU Triton interprets its kernels, but for those in bfloat16, which do not run there; those of CUDA are emulated, which needs
ml_dtypes as well. Exit code: 0, or 1 where an output is farther from the reference than its error budget.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
UNTIMED = {"interpreted": "in Triton's interpreter", "emulated": "in the emulator"}  # on a CPU
WARM_UP, SECONDS = 3, 0.5  # calls that are not timed; how long others are, at the most


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    arguments.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if has_gpu() else "cpu")
    arguments.add_argument("--save", type=Path, help="an .npz file that gets the outputs, bfloat16 as its bits")
    arguments.add_argument("--calls", type=int, default=100, help="timed calls, at the most")
    asked = arguments.parse_args()
    if asked.device == "cuda" and not has_gpu():
        arguments.error("--device cuda: there is no NVIDIA GPU here; --device cpu works")
    if asked.calls < 1:
        arguments.error(f"--calls {asked.calls}: expected a positive integer")
    if asked.save and (
        asked.save.is_dir() or not asked.save.parent.is_dir() or not os.access(asked.save.parent, os.W_OK)
    ):
        arguments.error(f"--save {asked.save}: expected a file that can be written, in a folder that is there")
    cell = json.loads((HERE / "cell.json").read_text())
    if asked.device == "cpu" and (reason := wrong_without_gpu(cell)):
        print(f"{cell['kernel']} {cell['case']['id']} {cell['label']} does not run: {reason}")
        return 0
    prepare_process(asked.device)
    framework = Torch(asked.device) if cell["backend"] == "torch" else Jax(asked.device)
    framework.configure(cell["case"]["precision"])
    module, case, device = loaded(cell, framework)
    if hasattr(module, "skip") and (reason := module.skip(case, cell["variant"], device)):
        print(f"{cell['label']} cannot run on {device.name}: {reason}")
        return 1
    inputs = [framework.put(array, dtype) for array, dtype in made_inputs(cell, case)]
    prepared = list(module.prepare(case, cell["variant"], *inputs)) if hasattr(module, "prepare") else []
    config = chosen_config(cell, module, case, device)
    call = module.build(case, cell["variant"], device, *([] if config is None else [config]))
    arguments_of = [*inputs, *prepared]

    def fresh() -> list[Any]:  # what a call overwrites is a copy
        return [framework.copy(a) if n in cell["in_place"] else a for n, a in enumerate(arguments_of)]

    begin = time.perf_counter()
    output = call(*fresh())
    framework.wait(output)
    first_s = time.perf_counter() - begin
    outputs = [framework.get(o) for o in (output if isinstance(output, list | tuple) else [output])]
    if asked.save:
        np.savez(asked.save, *outputs)
    print(f"{cell['kernel']} {cell['case']['id']} {cell['label']} on {device.name}" + (f", {config}" if config else ""))
    good = compared(cell, outputs)
    untimed = UNTIMED.get(cell["without_gpu"], "") if asked.device == "cpu" else ""
    print(f"first call {first_s:.3g} s" + (f", {untimed}: no time of the kernel" if untimed else ""))
    if not untimed:
        calls = [fresh() for _ in range(asked.calls if cell["in_place"] else 1)]
        print(timed(framework, call, calls, asked.calls))
    return 0 if good else 1


def has_gpu() -> bool:
    """Whether a driver finds a GPU; no framework is asked, because they are told before they are imported."""
    try:
        count = ctypes.c_int()
        driver = ctypes.CDLL("libcuda.so.1")
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except OSError:
        return False


def wrong_without_gpu(cell: dict[str, Any]) -> str:
    """Why the cell's outputs would be wrong on a CPU although its kernel is right, or ""."""
    interpreted = cell["without_gpu"] == "interpreted" and "triton" in cell["requires"]
    wrong = interpreted and cell["case"]["dtype"] == "bfloat16"
    return "interpreted on the CPU, where Triton computes bfloat16 wrongly" if wrong else ""


def prepare_process(device: str) -> None:
    """What has to be set before a framework is imported."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    os.environ.pop("TRITON_INTERPRET", None)
    if device == "cpu":
        os.environ.update(TRITON_INTERPRET="1", JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="")
    sys.path.insert(0, str(HERE))


def loaded(cell: dict[str, Any], framework: Any) -> tuple[Any, Any, Any]:
    """The implementation's module, the case and the device, as the implementation sees them."""
    contract = importlib.import_module("harness.contract")
    module = importlib.import_module(f"implementations.{cell['kernel']}.{cell['implementation']}")
    device = contract.Device(*framework.device())
    if device.type == "cpu" and cell["without_gpu"] == "emulated":
        device = importlib.import_module("harness.emulator.device").emulated()
    return module, contract.Case(**cell["case"]), device


def chosen_config(cell: dict[str, Any], module: Any, case: Any, device: Any) -> dict[str, Any] | None:
    """The tunables: those that were inspected on a device of that compute capability, elsewhere the implementation's own choice with
    what the cell sets. None where it has none."""
    if not cell["tunables"]:
        return None
    if cell["config"] is not None and list(device.capability) == cell["capability"]:
        return dict(cell["config"])
    return {**module.config(case, cell["variant"], device), **cell["set"]}


def made_inputs(cell: dict[str, Any], case: Any) -> list[tuple[np.ndarray, str]]:
    """The inputs and weights with their dtypes; bfloat16 as its bits. Says so where they are not those of the reference."""
    drawing = importlib.import_module("harness.drawing")
    kernel = importlib.import_module(f"implementations.{cell['kernel']}.kernel")
    weights = kernel.weights(case, drawing.generator(cell["seed"], 0)) if hasattr(kernel, "weights") else {}
    arrays = {**kernel.inputs(case, drawing.generator(cell["seed"], 1)), **weights}
    found, digest = [], hashlib.sha256()
    for name, dtype in cell["dtypes"].items():
        array = np.asarray(arrays[name])
        array = bits_of_bfloat16(array) if dtype == "bfloat16" else array.astype(dtype)
        digest.update(np.ascontiguousarray(array).data)
        found.append((array, dtype))
    if digest.hexdigest() != cell["inputs_sha256"]:
        print(
            "another NumPy drew other inputs than those that reference.npz is of: errors mean nothing", file=sys.stderr
        )
    return found


def bits_of_bfloat16(array: np.ndarray) -> np.ndarray:
    """float32 rounded to the nearest bfloat16, ties to even, as 16 bits each."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), 0x7FC0 | (bits >> 16), rounded).astype(np.uint16)


def compared(cell: dict[str, Any], outputs: Sequence[np.ndarray]) -> bool:
    """Prints each output's largest error and its share of the error budget; whether all are within theirs. Of a large case some rows
    have a reference."""
    good = True
    with np.load(HERE / "reference.npz") as reference:
        for number, (got, dtype) in enumerate(zip(outputs, cell["output_dtypes"], strict=True)):
            exact, limit = reference[f"exact{number}"], reference[f"limit{number}"]
            values = wide(got, dtype)
            rows = reference.get("rows")
            values = values if rows is None else np.take(values, rows, cell["row_axes"][number])
            # NumPy gives a number, to which nothing can be assigned, for the difference of two arrays without axes, such as losses
            values, exact, limit = map(np.atleast_1d, (values, exact, limit))
            with np.errstate(invalid="ignore"):
                error = np.abs(values - exact)
            error[(values == exact) | (np.isnan(values) & np.isnan(exact))] = 0
            error[np.isnan(error)] = np.inf
            ratio = np.where(error == 0, 0.0, error / np.maximum(limit, np.finfo(float).tiny))
            share = float(ratio.max(initial=0.0))
            digest = hashlib.sha256(np.ascontiguousarray(got).data).hexdigest()[:12]
            some = "" if rows is None else f", {len(rows)} rows of it"
            print(f"{cell['outputs'][number]}  {dtype}{list(got.shape)}{some}: largest error {error.max(initial=0.0):.3g}, "
                  f"error/budget {share:.3g}, sha256 {digest}")  # fmt: skip
            good = good and share <= 1
    return good


def wide(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def timed(framework: Any, call: Callable[..., Any], arguments: Sequence[Sequence[Any]], most: int) -> str:
    """The median of calls one by one, each waited for: on a GPU the launch is in it, and the L2 cache is warm."""
    samples: list[float] = []
    end = time.perf_counter() + SECONDS
    for number in range(WARM_UP + most):
        if len(arguments) > 1 and number >= len(arguments):
            break
        begin = time.perf_counter()
        framework.wait(call(*arguments[number if len(arguments) > 1 else 0]))
        samples.append(time.perf_counter() - begin)
        if number >= WARM_UP and time.perf_counter() > end:
            break
    kept = samples[WARM_UP:] or samples
    queued = framework.queued(call, arguments[0], most) if len(arguments) == 1 else None
    text = f"median {np.median(kept) * 1e6:.4g} µs of {len(kept)} calls, each waited for"
    return text if queued is None else f"{text}; {queued * 1e6:.4g} µs a call on the GPU where they are queued"


class Torch:
    def __init__(self, device: str):
        import torch

        self.torch, self.type = torch, device

    def configure(self, precision: str) -> None:
        self.torch.set_float32_matmul_precision("highest" if precision == "ieee" else "high")
        self.torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        self.torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    def device(self) -> tuple[Any, ...]:
        if self.type == "cpu":
            return "cpu", "cpu"
        found = self.torch.cuda.get_device_properties(0)
        return "cuda", found.name, (found.major, found.minor), found.multi_processor_count

    def put(self, array: np.ndarray, dtype: str) -> Any:
        if dtype == "bfloat16":
            return self.torch.from_numpy(array.view(np.int16)).view(self.torch.bfloat16).to(self.type)
        return self.torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape)).to(self.type)

    def get(self, tensor: Any) -> np.ndarray:
        tensor = tensor.detach().cpu().contiguous()
        if tensor.dtype == self.torch.bfloat16:
            bits: np.ndarray = tensor.view(self.torch.int16).numpy().view(np.uint16)
            return bits
        return np.asarray(tensor.numpy())

    def copy(self, tensor: Any) -> Any:
        return tensor.clone()

    def wait(self, outputs: Any) -> None:
        if self.type == "cuda":
            self.torch.cuda.synchronize()

    def queued(self, call: Callable[..., Any], arguments: Sequence[Any], calls: int) -> float | None:
        """Seconds of a call on the GPU, between events around many."""
        if self.type == "cpu":
            return None
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call(*arguments)
        end.record()
        self.torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / calls


class Jax:
    def __init__(self, device: str):
        import jax

        self.jax, self.type = jax, device

    def configure(self, precision: str) -> None:
        self.jax.config.update("jax_enable_x64", True)
        highest = "highest" if precision == "ieee" else "tensorfloat32"
        self.jax.config.update("jax_default_matmul_precision", highest)

    def device(self) -> tuple[Any, ...]:
        if self.type == "cpu":
            return "cpu", "cpu"
        found = self.jax.devices()[0]
        major, minor = map(int, str(found.compute_capability).split("."))
        return "cuda", found.device_kind, (major, minor), getattr(found, "core_count", 0)

    def put(self, array: np.ndarray, dtype: str) -> Any:
        return self.jax.device_put(array.view(self.jax.numpy.bfloat16) if dtype == "bfloat16" else array)

    def get(self, array: Any) -> np.ndarray:
        found = np.asarray(array)
        return found.view(np.uint16) if str(array.dtype) == "bfloat16" else found

    def copy(self, array: Any) -> Any:
        return self.jax.numpy.array(array, copy=True)

    def wait(self, outputs: Any) -> None:
        self.jax.block_until_ready(outputs)

    def queued(self, call: Callable[..., Any], arguments: Sequence[Any], calls: int) -> float | None:
        return None


if __name__ == "__main__":
    sys.exit(main())
