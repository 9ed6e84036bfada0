"""What code is made for: an architecture, and a device of it as implementations see one. No GPU is asked."""

from __future__ import annotations

from dataclasses import dataclass

from fusebench.backends.cuda import architecture
from fusebench.contract import Device
from fusebench.errors import unknown

# compute capability → multiprocessors of a common card of it, by which grids are chosen: A100, RTX 3090, L40S, H200, B200, RTX 5090
MULTIPROCESSORS = {80: 108, 86: 82, 89: 142, 90: 132, 100: 148, 120: 170}
DEFAULT = "sm_90a"


@dataclass(frozen=True)
class Target:
    """`arch` is what CUDA C++ is compiled for, as the harness compiles it for that device."""

    arch: str
    device: Device


def target(name: str) -> Target:
    """The target of `sm_80`, or of `sm_90a` where there are instructions of one architecture alone. Raises UsageError."""
    own = {architecture(divmod(number, 10)): number for number in MULTIPROCESSORS}
    own |= {f"sm_{number}": number for number in MULTIPROCESSORS}
    own |= {f"sm_{number}a": number for number in MULTIPROCESSORS if number >= 90}
    if name not in own:
        raise unknown("arch", name, own)
    number = own[name]
    capability = divmod(number, 10)
    arch = name if name.endswith("a") else architecture(capability)
    return Target(arch, Device("cuda", name, capability, MULTIPROCESSORS[number]))
