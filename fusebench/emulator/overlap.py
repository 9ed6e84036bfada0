"""Whether a kernel that may begin while the launch before it ends waits for it in time.

What the copy engine brings by tensor maps, and threads by cp.async, is looked at when it happens (copies.py): of tensors that no launch of
the call has written, it may come early.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fusebench.emulator.ptx import Instruction, Kernel

WAITS = "griddepcontrol.wait"
# with no space in its name, an address is generic, and may be of global memory
TOUCHES = re.compile(
    r"(ld|st|atom|red)\b(?!.*\.(param|shared|local|const)\b)|cp\.(async\.bulk|reduce)\b(?!.*\.(commit|wait|mbarrier)|.*\.tensor\..*\.shared::cluster\.global)"
)
LEAVES = re.compile(r"(ret|exit|trap|bra)\b")


def too_early(kernel: Kernel) -> Instruction | None:
    """The first instruction found that touches global memory on a way from the kernel's begin on which nobody has waited, or None."""
    seen: set[int] = set()
    ahead = [0]
    while ahead:
        number = ahead.pop()
        if number in seen or number >= len(kernel.blocks):
            continue
        seen.add(number)
        for instruction in kernel.blocks[number]:
            if instruction.opcode == WAITS and not instruction.guard:
                break
            if TOUCHES.match(instruction.opcode):
                return instruction
        else:
            ahead += _behind(kernel, number)
    return None


def _behind(kernel: Kernel, number: int) -> Iterator[int]:
    """The basic blocks that can come after one."""
    last = kernel.blocks[number][-1] if kernel.blocks[number] else None
    if last is not None and last.opcode.startswith("bra"):
        label = str(last.operands[0])
        yield kernel.labels.get(label, kernel.labels.get(label.partition("@")[0], number + 1))
    if last is None or last.guard or not LEAVES.match(last.opcode):
        yield number + 1
