"""PyTorch as a back end: its arrays, its synchronisation, its L2 flush, its memory. protocol.py says what each does."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.utils._config_module import _UNSET_SENTINEL as UNSET
from torch.utils._python_dispatch import TorchDispatchMode

from fusebench.backends import kineto, persisting
from fusebench.backends.events import Recording, Work
from fusebench.contract import Device
from fusebench.machine import cpu_name

MODULES = ("torch",)
REQUIRES = {"torch": "torch"}
MUTABLE = True
ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
EXPECTED = ("error_on_recompile",)  # to be set by who compiles
ASSEMBLER = "TRITON_PTXAS_PATH"
_assembler_at_start = os.environ.get(ASSEMBLER)
NO_SWITCHES = ("_set_thread_name",)
CHUNK_ELEMENTS = 2**24  # 128 MB in float64
FLUSH_BYTES = 256 * 2**20  # five times an H200's L2
_scratch: dict[str, torch.Tensor] = {}
_before = {"bytes": 0}


def start(device: str) -> Device:
    """Takes hold of `device` ("cpu" or "cuda") and describes it.

    Raises RuntimeError where Torch sees no GPU.
    """
    if device == "cpu":
        return Device("cpu", cpu_name())
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device (is this a CPU build of torch?)")
    properties = torch.cuda.get_device_properties(0)
    return Device("cuda", properties.name, (properties.major, properties.minor), properties.multi_processor_count)


def configure(precision: str) -> None:
    """Fresh compilers, and float32 products in IEEE float32 or TF32: Torch and JAX default differently."""
    _forget_compiled()
    _forget_assembler()
    torch.set_float32_matmul_precision("highest" if precision == "ieee" else "high")
    # cuBLAS may split a 16-bit sum over K into partial sums of 16 bits; the contract says float32
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    if torch.cuda.is_initialized():
        persisting.forbid()


def settings() -> dict[str, Any]:
    """Threads, defaults, the switches of precision and determinism, hooks of all modules, and what was set of Torch's compiler."""
    matmul = torch.backends.cuda.matmul
    asked = {
        "torch threads": torch.get_num_threads,
        "torch threads between operators": torch.get_num_interop_threads,
        "torch default dtype": torch.get_default_dtype,
        "torch default device": torch.get_default_device,
        "torch float32 matmul precision": torch.get_float32_matmul_precision,
        "torch matmul.allow_tf32": lambda: matmul.allow_tf32,
        "torch gradients": torch.is_grad_enabled,
        "torch inference mode": torch.is_inference_mode_enabled,
        "torch anomaly detection": torch.is_anomaly_enabled,
        "torch hooks of saved tensors": lambda: torch._C._autograd._top_saved_tensors_default_hooks(True),
        "torch profiler": lambda: torch.autograd._profiler_enabled(),
        "torch autocast": lambda: [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
        "torch sparse invariants": torch.sparse.check_sparse_tensor_invariants.is_enabled,
        "torch swaps parameters": torch.__future__.get_swap_module_params_on_conversion,
        "torch opt_einsum": lambda: torch.backends.opt_einsum.enabled,
        "torch attention": lambda: [getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in ATTENTION],
        "torch compiler's stance": _stance,
        **{f"torch {name.strip('_')}": get for name, get in _switches().items()},
        "torch compiler's configuration": _set_by_hand,
    }
    if torch.cuda.is_initialized():
        asked["persisting L2 bytes"] = persisting.raised
    modules = vars(torch.nn.modules.module)
    hooks = {
        n: len(found) for n, found in modules.items() if n.startswith("_global_") and isinstance(found, dict) and found
    }
    return {name: _setting(get) for name, get in asked.items()} | {"torch hooks of modules": hooks}


@functools.cache
def _switches() -> dict[str, Callable[[], Any]]:
    """What of Torch's own switches one can set and get, by name: those whose value is a plain one."""
    found = {}
    for name, kind in itertools.product((n for n in dir(torch._C) if n.startswith("_set_")), ("_get_", "_is_")):
        get = getattr(torch._C, name.replace("_set_", kind, 1), None)
        if callable(get) and name not in NO_SWITCHES:
            with contextlib.suppress(Exception):  # one of something else, which it is to be given
                if isinstance(get(), bool | int | str | None):
                    found[name.removeprefix("_set_")] = get
    return found


def _stance() -> str:
    """That of Torch's compiler, the default one where it is not loaded."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return getattr(getattr(frames, "_stance", None), "stance", "default")


def _set_by_hand() -> list[str]:
    """What was set in this process of the modules that hold a configuration, as far as they are loaded."""
    set_, modules = [], [(n, m) for n, m in sys.modules.copy().items() if type(m).__name__.startswith("ConfigModule")]
    for module, configuration in modules:
        for name, entry in vars(configuration)["_config"].items():
            found = getattr(entry, "user_override", UNSET)
            value = found.get(UNSET) if isinstance(found, ContextVar) else found
            if value is not UNSET and value != entry.default and name not in EXPECTED:
                set_.append(f"{module}.{name}={value}")
    return set_


def _setting(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except Exception:  # of Torch's old names where a new one says something else, and of a release that lacks it
        return "mixed"


def put(array: np.ndarray, device: Device) -> torch.Tensor:
    """The same bits on the device."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device.type)
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape)).to(device.type)


def get(tensor: torch.Tensor) -> np.ndarray:
    """The same bits in NumPy."""
    tensor = tensor.detach().cpu().contiguous()
    # NumPy itself has no bfloat16, nor any float8
    own = getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch."), None)
    if own is None:
        return tensor.numpy()
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8).numpy().view(own)


def copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same bits in memory of its own."""
    return tensor.clone()


def overwrite(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`tensor` with the bits of `value`, in the memory that it has."""
    tensor.detach().copy_(value)  # a call may have asked for its gradient
    return tensor


def move_rows(tensor: torch.Tensor, axis: int, shift: int, exchanged: tuple[int, int]) -> torch.Tensor:
    """`tensor` rolled along the axis, then with two rows exchanged, in memory of its own."""
    moved = tensor.roll(shift, axis)
    a, b = (moved.select(axis, row) for row in exchanged)
    kept = a.clone()
    a.copy_(b)
    b.copy_(kept)
    return moved


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same bits, compared where they are."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.reshape(-1).view(bits), b.reshape(-1).view(bits))


def apart(a: torch.Tensor, b: torch.Tensor) -> tuple[int, float, float]:
    """How many elements differ, and the largest difference, also as a share; a chunk at a time, because all in float64 may not fit in a GPU's
    memory."""
    elements, largest, share = 0, 0.0, 0.0
    for x, y in zip(*(array.detach().reshape(-1).split(CHUNK_ELEMENTS) for array in (a, b)), strict=True):
        x, y = x.double(), y.double()
        other = ~((x == y) | (x.isnan() & y.isnan()))
        if differing := int(other.sum()):
            x, y = x[other], y[other]
            difference = (x - y).abs()
            found, part = float(difference.max()), float((difference / torch.maximum(x.abs(), y.abs())).max())
            elements, largest = elements + differing, max(largest, math.inf if math.isnan(found) else found)
            share = max(share, math.inf if math.isnan(part) else part)
    return elements, largest, share


def unmasked(bits: torch.Tensor, mask: torch.Tensor, dtype: str) -> torch.Tensor:
    return (bits ^ mask).view(getattr(torch, dtype))


def half(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor times one half: shows whether subnormals survive."""
    return tensor * 0.5


def half_of_product(tensor: torch.Tensor) -> torch.Tensor:
    return tensor @ (0.5 * torch.eye(len(tensor), dtype=tensor.dtype, device=tensor.device))


def mixed(tensor: torch.Tensor, other: torch.Tensor, share: float) -> torch.Tensor:
    return tensor * share + other * (1 - share) if tensor.is_floating_point() else tensor


class _Operators(TorchDispatchMode):
    """Notes the operators that compute, which allocations and views do not."""

    QUIET = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "view", "_unsafe_view", "reshape", "detach",
             "alias", "t", "transpose", "permute", "expand", "select", "slice", "squeeze", "unsqueeze", "as_strided",
             "lift_fresh", "_to_copy", "clone", "copy_", "_local_scalar_dense", "is_pinned", "set_")  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch._dynamo is to leave this mode alone: that loads it, seconds that would count as the cell's compilation."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name not in self.QUIET and name not in self.names:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


def watch(call: Any, arguments: Sequence[Any]) -> tuple[Any, list[str]]:
    """The output of a call, and the Torch operators that it computed with."""
    with _Operators() as operators:
        output = call(*arguments)
    return output, [f"torch's {name}" for name in operators.names]


def in_one(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call itself: eager Torch makes no program of it, and what is compiled is compiled before."""
    return call


def in_order(outputs: Any, upstream: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """Eager Torch has that order, and forward and backward are compiled apart."""
    return outputs, upstream


def saved(residuals: Any) -> list[torch.Tensor]:
    """The tensors in lists, tuples and dictionaries, and those that the graph of autograd behind them keeps."""
    found, seen, left = [], set[int](), [residuals]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            found.append(one)
            left.append(one.grad_fn)
        elif isinstance(one, dict):
            left += one.values()
        elif isinstance(one, tuple | list):
            left += one
        elif isinstance(one, torch.autograd.graph.Node):
            left += [node for node, _ in one.next_functions]
            left += [getattr(one, name) for name in dir(one) if name.startswith("_saved_") or name == "saved_tensors"]
    return found


def is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def fault(value: Any, device: Device) -> str | None:
    """What is no torch.Tensor itself, finished, strided, on the device; None for one that is."""
    if type(value) is not torch.Tensor:
        return type(value).__name__
    if own := [name for name in vars(value) if hasattr(torch.Tensor, name)]:
        return f"a tensor with a {own[0]} of its own"
    if value.device.type != device.type or value.layout is not torch.strided:
        return f"a {value.layout} tensor on {value.device} rather than {device.type}"
    return "a tensor that is still to be conjugated or negated" if value.is_conj() or value.is_neg() else None


def memory(tensor: torch.Tensor) -> tuple[int, int]:
    """Where its storage begins and ends."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def device_of(tensor: torch.Tensor) -> str:
    """Its type. Raises ValueError for a GPU that is not the first: flush, wait and state are the first one's."""
    if tensor.device.type == "cuda" and (tensor.device.index or torch.cuda.current_device()):
        raise ValueError(f"{tensor.device}: only the first visible GPU can be timed; CUDA_VISIBLE_DEVICES chooses it")
    return tensor.device.type


def wait(outputs: Any) -> None:
    """Returns when the device has finished all it was given."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def flush() -> None:
    """Queues a kernel on the current stream that overwrites more than the L2 holds, and that no kernel under test uses."""
    if "flush" not in _scratch:
        _scratch["flush"] = torch.zeros(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    _scratch["flush"].bitwise_not_()


def forget_l2() -> None:
    """No line of L2 persists any more."""
    persisting.reset()


def reset_peak() -> None:
    """Begins the count of `peak_bytes`."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
        _before["bytes"] = torch.cuda.memory_allocated()


def peak_bytes() -> int | None:
    """Device memory at its highest since `reset_peak` beyond what was held then, or None on the CPU."""
    return torch.cuda.max_memory_allocated() - _before["bytes"] if torch.cuda.is_initialized() else None


def held_bytes() -> int | None:
    """Bytes of the tensors on the GPU; None on the CPU."""
    return torch.cuda.memory_allocated() if torch.cuda.is_initialized() else None


def record(work: Work) -> Recording:
    """By torch.profiler, with Torch's operators and allocations."""
    return kineto.record(work, "cuda" if torch.cuda.is_initialized() else "cpu")


def versions() -> tuple[str, int]:
    """Torch's version, with its build, and the threads that it computes with on the CPU."""
    return str(torch.__version__), torch.get_num_threads()


def release() -> int:
    """Gives unused device memory back and returns the bytes still held."""
    _forget_compiled()
    if not torch.cuda.is_initialized():
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def copy_call(elements: int, device: Device) -> tuple[Any, Sequence[Any]]:
    """A copy of `elements` float32 and its arguments, for the yardstick."""
    source = torch.ones(elements, device=device.type)
    return torch.Tensor.copy_, (torch.empty_like(source), source)


def read_call(elements: int, device: Device) -> tuple[Any, Sequence[Any]]:
    """A sum of `elements` float32, which reads all and writes one, and its argument, for the yardstick."""
    return torch.sum, (torch.ones(elements, device=device.type),)


def launch_call(device: Device) -> tuple[Any, Sequence[Any]]:
    """A call that writes one float32 and its arguments, for the yardstick. A zero would be a memset on the GPU, no kernel."""
    return torch.Tensor.fill_, (torch.empty(1, device=device.type), 1.0)


def product_call(n: int, dtype: str, device: Device) -> tuple[Any, Sequence[Any]]:
    """An n×n×n product of random data and its arguments, for the yardstick; on zeros it would run faster."""
    a, b = (torch.randn(n, n, device=device.type).to(getattr(torch, dtype)) for _ in range(2))
    return torch.mm, (a, b)


def _forget_compiled() -> None:
    if "torch._dynamo" in sys.modules:  # to load it for nothing takes seconds
        torch.compiler.reset()


def _forget_assembler() -> None:
    """Torch's compiler for GPUs points Triton at Torch's own ptxas, once in a process and for all that is compiled later: the programs of
    Triton that follow get theirs again, and what Torch compiles next gets Torch's."""
    compiling = sys.modules.get("torch._inductor.runtime.compile_tasks")
    if pointing := getattr(compiling, "_set_triton_ptxas_path", None):
        pointing.cache_clear()
    if _assembler_at_start is None:
        os.environ.pop(ASSEMBLER, None)
    else:
        os.environ[ASSEMBLER] = _assembler_at_start
