"""The control flow of a kernel: basic blocks, dominators, and natural loops.

Compilers put code that is rarely run, such as the repeats of a wait, behind the kernel's end, from where it branches back. So not
every branch to an earlier address is a loop: it is one where the address that it goes to dominates it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusebench.inspection.sass import Code, Instruction

ENDS = ("EXIT", "RET", "BRX", "BRXU", "JMX", "KILL")  # nothing follows, where they have no predicate
GOES = ("BRA", "JMP")
CONDITIONAL = ("DIV", "CONV")  # modifiers of a BRA that may go on


def innermost(code: Code, leave_out: Callable[[Sequence[Instruction]], bool]) -> list[list[int]]:
    """The loops that hold no other, each as the numbers of its instructions. Those to leave out count as no loop."""
    starts, follows = _blocks(code)
    ends = [*starts[1:], len(code.instructions)]
    loops: dict[int, set[int]] = {}
    for source, target in _back_edges(follows):
        loops.setdefault(target, {target}).update(_body(source, target, follows))
    bodies = [[n for b in sorted(blocks) for n in range(starts[b], ends[b])] for blocks in loops.values()]
    kept = [body for body in bodies if not leave_out([code.instructions[n] for n in body])]
    return [body for body in kept if not any(set(other) < set(body) for other in kept)]


def _blocks(code: Code) -> tuple[list[int], list[list[int]]]:
    """The first instruction of each basic block, and the blocks that may follow it."""
    instructions = code.instructions
    number = {i.address: n for n, i in enumerate(instructions)}
    leaders = {0, *(number[a] for a in code.labels.values() if a in number)}
    leaders |= {n + 1 for n, i in enumerate(instructions[:-1]) if _name(i) in (*GOES, *ENDS, "BSYNC")}
    starts = sorted(leaders)
    block = {start: n for n, start in enumerate(starts)}
    follows: list[list[int]] = []
    joins: dict[str, str] = {}  # the register of a BSSY → where its BSYNC goes
    for begin, end in zip(starts, [*starts[1:], len(instructions)], strict=True):
        for i in instructions[begin:end]:
            if _name(i) == "BSSY":
                joins[i.operands.split(",")[0]] = i.label
        last = instructions[end - 1]
        label = joins.get(last.operands, "") if _name(last) == "BSYNC" else last.label if _name(last) in GOES else ""
        targets = [number[code.labels[label]]] if code.labels.get(label) in number else []
        if not _always_leaves(last) and end < len(instructions):
            targets.append(end)
        follows.append(sorted({block[t] for t in targets}))
    return starts, follows


def _name(instruction: Instruction) -> str:
    return instruction.opcode.split(".")[0]


def _always_leaves(instruction: Instruction) -> bool:
    if instruction.predicate and not instruction.predicate.endswith("PT"):
        return False
    if _name(instruction) == "BSYNC":
        return False  # nothing is lost where it goes on: what it waits for begins there
    if _name(instruction) in GOES:
        modifiers = instruction.opcode.split(".")[1:]
        before = instruction.operands.split("`")[0].strip()  # `BRA P1, …` and `BRA.DIV UR4, …` may go on as well
        return not before and not any(m in CONDITIONAL for m in modifiers)
    return _name(instruction) in ENDS


def _back_edges(follows: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """(block, block that dominates it and may follow it)."""
    dominators = _dominators(follows)
    for source, targets in enumerate(follows):
        yield from ((source, target) for target in targets if dominators[source] >> target & 1)


def _dominators(follows: Sequence[Sequence[int]]) -> list[int]:
    """The dominators of each block, itself among them, as the bits of a number. Every block that none leads to is an entry."""
    count = len(follows)
    before: list[list[int]] = [[] for _ in range(count)]
    for source, targets in enumerate(follows):
        for target in targets:
            before[target].append(source)
    entries = {0, *(n for n in range(count) if not before[n])}
    everything = (1 << count) - 1
    found = [1 << n if n in entries else everything for n in range(count)]
    changed = True
    while changed:
        changed = False
        for n in range(count):
            if n in entries:
                continue
            common = everything
            for source in before[n]:
                common &= found[source]
            if (now := common | 1 << n) != found[n]:
                found[n], changed = now, True
    return found


def _body(source: int, target: int, follows: Sequence[Sequence[int]]) -> set[int]:
    """The blocks from which `source` is reached without going through `target`."""
    before: dict[int, list[int]] = {}
    for n, targets in enumerate(follows):
        for t in targets:
            before.setdefault(t, []).append(n)
    body, waiting = {target, source}, [source] if source != target else []
    while waiting:
        for n in before.get(waiting.pop(), []):
            if n not in body:
                body.add(n)
                waiting.append(n)
    return body
