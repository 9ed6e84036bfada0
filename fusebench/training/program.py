"""The implementations that a training run calls, built in this process: the step of the training kernel, and the forward pass that
the held-out rows go through."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusebench import discovery
from fusebench.contract import Case, Device
from fusebench.data.auc import Auc
from fusebench.data.reading import Batch
from fusebench.discovery import Kernel
from fusebench.dtypes import numpy_dtype
from fusebench.errors import UsageError
from fusebench.training.model import Model, of_inference
from fusebench.workers.configs import choose
from fusebench.workers.pool import environment

EVALUATED = 2048  # rows at a time
PLAIN = {
    "torch": "torch_eager",
    "jax": "flax",
}  # the forward pass where an implementation of the step has none of its own


@dataclass(frozen=True)
class Chosen:
    """A variant of an implementation, and what it is built for."""

    kernel: Kernel
    name: str
    variant: str
    case: Case
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.name}:{self.variant}"


@dataclass(frozen=True)
class Session:
    """A back end in this process, on a device."""

    backend: Any
    device: Device
    name: str


def start(kernel: Kernel, implementation: str, device: str, precision: str) -> Session:
    """Loads the framework of an implementation. Raises UsageError where that, or the device, cannot be had."""
    found = kernel.implementations[implementation]
    if reason := found.unavailable(device):
        raise UsageError(f"implementation={implementation}: {reason}")
    if untimed := found.untimed(device):
        raise UsageError(
            f"implementation={implementation} is {untimed} without a GPU, where a step takes minutes: torch_eager, torch_compile and flax "
            "train on a CPU"
        )
    asked = environment(device, sys.executable, sorted(os.sched_getaffinity(0)))
    os.environ.update(
        {name: asked[name] for name in ("XLA_PYTHON_CLIENT_PREALLOCATE", "CUDA_DEVICE_ORDER", "TF_CPP_MIN_LOG_LEVEL")}
    )
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        backend = importlib.import_module(f"fusebench.backends.{found.backend}")
        described = backend.start(device)
    except (ImportError, RuntimeError) as error:
        raise UsageError(f"implementation={implementation}: {error}") from error
    backend.configure(precision)
    return Session(backend, described, found.backend)


def chosen(session: Session, kernel: Kernel, implementation: str, variant: str, case: Case) -> Chosen:
    """The variant that is named, or else the first that can do the case. Raises UsageError where none can."""
    found = kernel.implementations[implementation]
    if variant and variant not in found.variants:
        raise UsageError(f"implementation={implementation}:{variant}: it has the variants {', '.join(found.variants)}")
    module, reasons = discovery.load_implementation(kernel.name, implementation), []
    for one in [variant] if variant else found.variants:
        reason = getattr(module, "skip", lambda *_: None)(case, one, session.device)
        if reason is None and found.tunables.get(one):
            config = choose(module, found, case, one, session.device, {}, True)
            reason = config.refusal
            if reason is None:
                return Chosen(kernel, implementation, one, case, config.config)
        if reason is None:
            return Chosen(kernel, implementation, one, case)
        reasons.append(f"{one}: {reason}")
    raise UsageError(
        f"implementation={implementation} cannot train this model in {case.dtype}: {'; '.join(dict.fromkeys(reasons))}"
    )


def forward_pass(session: Session, kernel: Kernel, step: Chosen) -> Chosen:
    """What the held-out rows go through: the implementation of `kernel` with the name of the step's, or where that has none, or cannot
    do the case, the plain one of its framework."""
    case = of_inference(step.case, kernel.name, EVALUATED)
    plain = PLAIN[session.name]
    names = [n for n in dict.fromkeys((step.name, plain)) if n in kernel.implementations]
    for name in names:
        own = kernel.implementations[name]
        hashing = step.variant.removesuffix("_in_place")
        variant = hashing if hashing in own.variants else ""
        if own.unavailable(session.device.type) is None:
            try:
                return chosen(session, kernel, name, variant, case)
            except UsageError:
                if name == names[-1]:
                    raise
    raise UsageError(f"no implementation of {kernel.name} can evaluate the held-out rows here")


def _build(session: Session, what: Chosen) -> Any:
    module = discovery.load_implementation(what.kernel.name, what.name)
    tunables = what.kernel.implementations[what.name].tunables.get(what.variant)
    return module.build(what.case, what.variant, session.device, *([what.config] if tunables else []))


class Trainer:
    """The step, called again and again: its new parameters are the next one's."""

    def __init__(self, session: Session, model: Model, step: Chosen, forward: Chosen):
        self.session, self.model, self.chosen, self.forward = session, model, step, forward
        own = step.kernel.mathematics.own_dtypes
        self.dtypes = {name: numpy_dtype(own.get(name, step.case.dtype) or "float32") for name in ("dense", "labels")}
        self.arrays = {name: self._own(array) for name, array in model.weights.items()}
        module = discovery.load_implementation(step.kernel.name, step.name)
        prepare = getattr(module, "prepare", lambda *_: ())
        self.prepared = list(prepare(step.case, step.variant, *self._inputs(_zeros(step.case)), *self.arrays.values()))
        self.call, self.predict = _build(session, step), _build(session, forward)

    def _inputs(self, batch: Batch) -> list[Any]:
        made = (batch.dense.astype(self.dtypes["dense"]), batch.ids, batch.labels[:, 0].astype(self.dtypes["labels"]))
        return [self.session.backend.put(array, self.session.device) for array in made]

    def step(self, batch: Batch) -> Any:
        """One step on a batch of the case's size; its loss, on the device."""
        outputs = self.call(*self._inputs(batch), *self.arrays.values(), *self.prepared)
        for name, place in zip(self.model.parameters, self.model.places, strict=True):
            self.arrays[name] = outputs[place]
        return outputs[0]

    def losses(self, kept: Sequence[Any]) -> list[float]:
        """The losses as numbers, once the device is there."""
        return [float(self.session.backend.get(loss)) for loss in kept]

    def parameters(self) -> dict[str, np.ndarray]:
        """The parameters as they are now, in the host's memory."""
        return {name: np.array(self.session.backend.get(self.arrays[name])) for name in self.model.parameters}

    def restore(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Goes on from those parameters."""
        for name in self.model.parameters:
            self.arrays[name] = self._own(parameters[name])

    def _own(self, array: np.ndarray) -> Any:
        """The array on the device, in memory that a step may overwrite: on a CPU frameworks share NumPy's."""
        return self.session.backend.copy(self.session.backend.put(array, self.session.device))

    def auc(self, rows: Batch) -> float:
        """The area under the ROC curve of those rows, by the forward pass in the case's dtype. Raises ValueError for a probability that is
        not within 0 … 1."""
        backend, case = self.session.backend, self.forward.case
        found, dtype = Auc(), numpy_dtype(case.dtype)
        weights = {
            name: backend.put(backend.get(array).astype(dtype), self.session.device)
            if name in self.model.parameters
            else array
            for name, array in self.arrays.items()
        }
        module = discovery.load_implementation(self.forward.kernel.name, self.forward.name)
        prepare, prepared = getattr(module, "prepare", None), None
        for begin in range(0, len(rows.labels), EVALUATED):
            count = min(EVALUATED, len(rows.labels) - begin)
            place = np.minimum(begin + np.arange(EVALUATED), len(rows.labels) - 1)
            inputs = [backend.put(a, self.session.device) for a in (rows.dense[place].astype(dtype), rows.ids[place])]
            if prepared is None:
                prepared = list(prepare(case, self.forward.variant, *inputs, *weights.values())) if prepare else []
            probability = backend.get(self.predict(*inputs, *weights.values(), *prepared))
            found.add(rows.labels[begin : begin + count], probability[:count].astype(np.float64))
        return found.value()


def _zeros(case: Case) -> Batch:
    """A batch of the case's size, for `prepare`, which looks at weights alone."""
    M, F, N0 = case.size("M", "F", "N0")
    return Batch(np.zeros((M, N0), np.float32), np.zeros((M, F), np.int64), np.zeros((M, 1), np.float32))
