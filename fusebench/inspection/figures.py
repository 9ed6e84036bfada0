"""The figures of one compiled launch, under the names that tables and expectations have for them."""

from __future__ import annotations

from collections.abc import Sequence

from fusebench.inspection.compiled import Compiled
from fusebench.inspection.float_units import bank_conflicts, load_waits
from fusebench.inspection.opcodes import CLASSES, by_class, class_of, matches
from fusebench.inspection.sass import Instruction
from fusebench.inspection.uniform import unset

LOCAL = ("LDL", "STL")  # what moves a register to a thread's own memory and back
PLAIN = ("launches", "registers", "spills", "stack", "shared_bytes", "instructions")
CLASS_NAMES = {name.replace(" ", "_"): name for name in CLASSES}
WAITS = "waits_in_groups"
UNSET = "unset_registers"
CONFLICTS, LATE = "bank_conflicts", "load_waits"
SCOPES = ("loop", "beside")
NAMES = (*PLAIN, *CLASS_NAMES, WAITS, UNSET, CONFLICTS, LATE)


def spills(instructions: Sequence[Instruction]) -> int:
    """Loads and stores of local memory: of spilled registers, and of arrays that a thread indexes."""
    return sum(i.opcode.split(".")[0] in LOCAL for i in instructions)


def waits_in_groups(instructions: Sequence[Instruction]) -> int:
    """Waits for products between two that belong to one group of wgmma: where the compiler serialises them."""
    count, waits, open_group = 0, 0, False
    for i in instructions:
        name = i.opcode.split(".")[0]
        if name == "HGMMA":
            count += waits if open_group else 0
            open_group, waits = "gsb" not in i.operands, 0
        elif name == "WARPGROUP" and "DEPBAR" in i.opcode:
            waits += 1
    return count


def beside_products(instructions: Sequence[Instruction]) -> list[Instruction]:
    """What is issued while a committed group of wgmma is under way: from its last product to the wait that leaves none."""
    found: list[Instruction] = []
    groups = 0
    for i in instructions:
        name = i.opcode.split(".")[0]
        if name == "HGMMA":
            groups += "gsb" in i.operands
        elif name == "WARPGROUP" and "DEPBAR" in i.opcode:
            groups = min(groups, int(i.operands.rsplit(",", 1)[-1], 0))  # WARPGROUP.DEPBAR.LE gsb0, 0x1 leaves one
        elif groups:
            found.append(i)
    return found


def value(compiled: Sequence[Compiled], name: str) -> int:
    """A figure of a cell: the sum over its launches, of registers, stack and shared memory the largest. `loop.NAME` counts in the
    hottest loops alone, `beside.NAME` there what is issued while products are under way; any other name is an opcode, with as many
    modifiers as it names: MUFU.EX2."""
    scope = next((word for word in SCOPES if name.startswith(f"{word}.")), "")
    name = name.removeprefix(f"{scope}.")
    parts: list[Sequence[Instruction]] = [c.code.hottest_loop() if scope else c.code.instructions for c in compiled]
    parts = [beside_products(part) if scope == "beside" else part for part in parts]
    if name == "launches":
        return len(compiled)
    if name == "registers":
        return max(c.resources.registers for c in compiled)
    if name == "stack":
        return max(c.resources.stack for c in compiled)
    if name == "shared_bytes":
        return max(c.shared for c in compiled)
    if name == LATE:
        return sum(load_waits(part, loop=scope == "loop") for part in parts)
    return sum(_count(part, name) for part in parts)


def _count(instructions: Sequence[Instruction], name: str) -> int:
    if name == "spills":
        return spills(instructions)
    if name == "instructions":
        return len(instructions)
    if name == WAITS:
        return waits_in_groups(instructions)
    if name == CONFLICTS:
        return bank_conflicts(instructions)
    if name == UNSET:
        return len(unset(instructions))
    if name in CLASS_NAMES:
        return sum(class_of(i.opcode) == CLASS_NAMES[name] for i in instructions)
    return sum(matches(i.opcode, name) for i in instructions)


def row(compiled: Compiled) -> dict[str, int]:
    """What a table shows of the whole kernel, beside its classes."""
    code = compiled.code.instructions
    return {
        "registers": compiled.resources.registers, "spills": spills(code), "stack": compiled.resources.stack,
        "shared_bytes": compiled.shared, "instructions": len(code), **by_class(code),
    }  # fmt: skip
