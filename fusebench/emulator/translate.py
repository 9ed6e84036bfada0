"""Each basic block of a kernel as the code of a Python function of threads: one statement on NumPy arrays for an instruction of all of them.

    def block_3(m, at):
        r12_u32[at] = r3_u32[at] + r4_u32[at]
        return m.branch(at, p1_pred[at], 7, 4)

`at` is an index array of threads, or a slice; a register is an array with an element a thread, seen as what an instruction takes it for.
"""

from __future__ import annotations

import re
import struct
from types import CodeType

from fusebench.emulator import statements
from fusebench.emulator.arithmetic import TYPES
from fusebench.emulator.overlap import WAITS
from fusebench.emulator.ptx import ALWAYS, ENDS, OF_A_WARP, OF_A_WARPGROUP, Address, Instruction, Kernel, Operand

# A store is seen by all at once, and registers are enough: nothing is to be done.
NOTHING = re.compile(
    r"(fence|membar|prefetch|setmaxnreg|nanosleep|griddepcontrol\.launch_dependents|wgmma\.fence|discard|applypriority)\b"
)


class Translator:
    """Writes the functions, and what they see: `registers` by their Python names, each with its own name, its bits and as what type it is seen, and
    `constants` with their types."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.registers: dict[str, tuple[str, int, str]] = {}
        self.constants: dict[str, tuple[str, int | float]] = {}

    def codes(self) -> list[CodeType]:
        """The code of each basic block's function; that of a block with an instruction that is not known raises ValueError."""
        return [self._code(number) for number in range(len(self.kernel.blocks))]

    def _code(self, number: int) -> CodeType:
        try:
            text = self._block(number, self.kernel.blocks[number])
        except ValueError as unknown:  # which matters where threads come to it
            text = f"def block_{number}(m, at): raise ValueError({str(unknown)!r})"
        return next(c for c in compile(text, "<ptx>", "exec").co_consts if isinstance(c, CodeType))

    # ---- operands

    def register(self, name: str, kind: str | None = None) -> str:
        """The Python name of a register, seen as `kind`."""
        bits = self.kernel.bits(name)
        kind = kind or ("pred" if not bits else f"u{bits}")
        own = f"{name.strip('%').replace('@', '_in_').replace('$', '_')}_{kind}"
        self.registers[own] = name, bits, kind
        return own

    def constant(self, value: int | float, kind: str) -> str:
        """A typed constant."""
        own = f"constant_{len(self.constants)}"
        self.constants[own] = kind, value
        return own

    def value(self, operand: Operand, kind: str, at: str = "at") -> str:
        """The expression of an operand of an instruction of type `kind`."""
        assert isinstance(operand, str), operand
        if operand.startswith("!"):
            return f"~{self.value(operand[1:], kind, at)}"
        if found := re.fullmatch(r"0([fFdD])([0-9A-Fa-f]+)", operand):
            number = struct.unpack(">f" if found[1] in "fF" else ">d", bytes.fromhex(found[2]))[0]
            if TYPES[kind].kind in "iu":
                number = int(found[2], 16)
            return self.constant(number, kind)
        if re.fullmatch(r"-?(0[xX][0-9A-Fa-f]+|\d+)U?", operand):
            number = int(operand.rstrip("U"), 0)
            return self.constant(number, "u8" if kind == "pred" else kind) if kind != "pred" else str(bool(number))
        if operand.startswith("%") and (special := operand.strip("%").replace(".", "_")) in SPECIAL:
            text = f"m.special['{special}'][{at}]"
            return text if kind in ("u32", "b32") else f"{text}.astype(T['{kind}'])"
        if self._known(operand):
            bits = self.kernel.bits(operand)
            wanted = TYPES[kind].itemsize * 8
            if kind == "pred" or bits == wanted or not bits:
                return f"{self.register(operand, kind)}[{at}]"
            return f"{self.register(operand)}[{at}].astype('u{wanted // 8}').view(T['{kind}'])"
        return f"m.address_of('{operand}', T['{kind}'])"

    def _known(self, name: str) -> bool:
        try:
            self.kernel.bits(name)
        except KeyError:
            return False
        return True

    def store(self, operand: Operand, kind: str, expression: str, at: str) -> str:
        """The statement that sets a register."""
        assert isinstance(operand, str), operand
        if operand == "_":
            return expression
        bits = self.kernel.bits(operand)
        if not bits or bits == TYPES[kind].itemsize * 8:
            return f"{self.register(operand, kind)}[{at}] = {expression}"
        letter = "s" if TYPES[kind].kind == "i" else "u"
        if TYPES[kind].kind not in "iu":  # bits of a float in a wider register
            expression = f"({expression}).view('u{TYPES[kind].itemsize}')"
        return f"{self.register(operand, f'{letter}{bits}')}[{at}] = {expression}"

    def address(self, operand: Operand, at: str = "at") -> str:
        """An address: an array of 64-bit integers, one a thread."""
        assert isinstance(operand, Address), operand
        if self._known(operand.base):
            return f"{self.register(operand.base)}[{at}].astype('i8') + {operand.offset}"
        if re.fullmatch(r"\d+", operand.base):
            return f"np.full(m.count({at}), {int(operand.base) + operand.offset}, 'i8')"
        return f"np.full(m.count({at}), m.address_of('{operand.base}', T['s64']) + {operand.offset}, 'i8')"

    # ---- statements

    def _block(self, number: int, block: list[Instruction]) -> str:
        lines, place = [f"def block_{number}(m, at):"], None
        for i in block:
            lanes = 128 if OF_A_WARPGROUP.match(i.opcode) else 32 if OF_A_WARP.match(i.opcode) else 0
            if lanes and not any(f"m.warps.whole({number}, at, {lanes})" in line for line in lines):
                lines += [f"    at = m.warps.whole({number}, at, {lanes})", "    if at is None: return ()"]
            if i.place != place:
                place = i.place
                lines.append(f"    m.place = {place}")
            if ENDS.match(i.opcode) or (ALWAYS.match(i.opcode) and i.parts[0] == "mbarrier"):
                return "\n".join([*lines, f"    {self._ending(i, number)}"])
            if i.guard:
                lines.append(f"    own = m.where(at, {self._guard(i)})")
                lines.append("    if own is not None:")
                lines += [f"        {w}" for w in self._statements(i, "own")] or ["        pass"]
            else:
                lines += [f"    {w}" for w in self._statements(i, "at")]
        return "\n".join([*lines, f"    return (({number + 1}, at),)"])

    def _guard(self, i: Instruction) -> str:
        return f"{'~' if i.negated else ''}{self.register(i.guard, 'pred')}[at]"

    def _ending(self, i: Instruction, number: int) -> str:
        """The last statement of a basic block: who goes on, and where."""
        op, o, following = i.parts[0], i.operands, number + 1
        if op == "bra":
            label = str(o[0])
            target = self.kernel.labels.get(label, self.kernel.labels.get(label.partition("@")[0]))
            return (
                f"return m.branch(at, {self._guard(i)}, {target}, {following})"
                if i.guard
                else f"return (({target}, at),)"
            )
        if op in ("ret", "exit"):
            return f"return m.leave(at, {self._guard(i) if i.guard else None}, {following})"
        if i.guard:  # what threads wait for is not of some of them
            raise self.unknown(i)
        if op == "trap":
            return "m.fail('trap')"
        if op == "mbarrier":
            done = self.register(str(o[0]), "pred")
            return f"return m.mbarriers.wait({number}, at, {self.address(o[1])}, {self.value(o[2], 'u32')}, {done}, {following})"
        if i.parts[1] == "cluster":
            return f"return m.barriers.cluster_{i.parts[2]}(at, {following})"
        if i.parts[1] == "red":
            votes = f"('{i.parts[2]}', {self.register(str(o[0]))}, {self.value(o[-1], 'pred')})"
            count = self.value(o[2], "u32") if len(o) > 3 else "None"
            return f"return m.barriers.sync(at, {self.value(o[1], 'u32')}, {count}, {following}, {votes})"
        if i.parts[1] not in ("sync", "arrive"):
            raise self.unknown(i)
        count = self.value(o[1], "u32") if len(o) > 1 else "None"
        return f"return m.barriers.{i.parts[1]}(at, {self.value(o[0], 'u32')}, {count}, {following})"

    def _statements(self, i: Instruction, at: str) -> list[str]:
        if NOTHING.match(i.opcode):
            return []
        if i.opcode == WAITS:
            return [f"m.waited[{at}] = True"]
        for form in (statements.calculated, statements.memory, statements.together):
            written = form(self, i, at)
            if written is not None:
                return [written] if isinstance(written, str) else written
        raise self.unknown(i)

    def unknown(self, i: Instruction) -> ValueError:
        """What is raised for an instruction that no kernel had before."""
        file, line = i.place
        name = self.kernel.files.get(file, "").rpartition("/")[2]
        return ValueError(f"{name}:{line}: the emulator does not know {i.opcode}")


# special registers that `Machine` has as arrays of 32 bits, one a thread
SPECIAL = {
    *(f"{name}_{axis}" for name in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid") for axis in "xyz"),
    "laneid", "warpid", "cluster_ctarank", "cluster_nctarank", "smid", "nsmid",
}  # fmt: skip
