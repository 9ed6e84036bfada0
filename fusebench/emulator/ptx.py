"""PTX, as NVRTC writes it, in instructions that are grouped in basic blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

FILE = re.compile(r'^\s*\.file\s+(\d+) "(.*)"', re.MULTILINE)
LOCATION = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
ENTRY = re.compile(r"\.entry\s+(\w+)")
SKIPPED = (".file", ".version", ".target", ".address_size", ".pragma", ".section", "$L__info", ".b8", ".b32", ".b64")
LABEL = re.compile(r"([$\w]+):(?!:)\s*")
GUARD = re.compile(r"@(!?)([%\w]+)\s+")
DECLARED = re.compile(
    r"(\.(?:shared|local|global|const))\s+(?:\.align (\d+)\s+)?\.([busf]\d+)\s+([\w$]+)(?:\[(\d*)\])?(?:\s*=\s*(.*))?$"
)
PARAMETER = re.compile(
    r"\.param\s+(?:\.align \d+\s+)?\.([busf]\d+)\s+(?:\.ptr\s+(?:\.(?:global|shared|const|local)\s+)?(?:\.align \d+\s+)?)?(\w+)(?:\[(\d+)\])?"
)
# Before the first of these in a block another block begins, so that a warp, or a warpgroup, can be awaited there.
OF_A_WARP = re.compile(r"(bar\.warp|shfl|vote|match|redux|elect|mma|ldmatrix|stmatrix)\b")
OF_A_WARPGROUP = re.compile(r"wgmma\.mma_async\b")
ALWAYS = re.compile(r"(mbarrier\.(try_wait|test_wait)|shfl)\b")
ENDS = re.compile(r"(bra|ret|exit|trap|barrier)\b|bar\.(?!warp)")


@dataclass(frozen=True)
class Address:
    """[base + offset], with what else stands in the brackets: the coordinates of a tensor map's box."""

    base: str
    offset: int
    coordinates: tuple[str, ...] = ()


Operand = str | Address | tuple[str, ...]


@dataclass(frozen=True)
class Instruction:
    """One instruction: `guard` is the predicate under which it happens, `place` the number of its file and the line there."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: str
    negated: bool
    place: tuple[int, int]

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.opcode.split("."))


@dataclass(frozen=True)
class Variable:
    """Memory that the module declares: its space, size and alignment in bytes, and what it holds at first."""

    space: str
    name: str
    bytes: int
    alignment: int
    width: int = 1
    values: tuple[str, ...] = ()


@dataclass
class Kernel:
    """A kernel: its basic blocks, the block of each label, the bits of its registers (0 for predicates), parameters with their bytes,
    variables, how many blocks a cluster has, and the files of its source by their numbers."""

    blocks: list[list[Instruction]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, int] = field(default_factory=dict)
    parameters: list[tuple[str, int]] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    cluster: int = 1
    files: dict[int, str] = field(default_factory=dict)

    def bits(self, register: str) -> int:
        """Of a register, by its own name or by the one that it was declared with: %rd12 is of %rd<40>."""
        found = self.registers.get(register)
        return self.registers[register.rstrip("0123456789") + "<"] if found is None else found


def read(text: str, name: str) -> Kernel:
    """The kernel of a module by its name in the source, without template arguments. Raises ValueError where the module has no such
    kernel, or something in it is not understood."""
    reader = _Reader(name)
    for raw in text.splitlines():
        reader.line(raw.split("//")[0].strip())
    if not reader.kernel.blocks:
        raise ValueError(f"no kernel {name}")
    reader.kernel.files = {int(number): file for number, file in FILE.findall(text)}
    return reader.kernel


class _Reader:
    """Where the reading of a module has come to: `pending` is what has no end yet, `scopes` are the open ones of the body with the names
    that they declare."""

    def __init__(self, name: str):
        self.name, self.kernel = name, Kernel()
        self.pending, self.place = "", (0, 0)
        self.scopes: list[tuple[int, set[str]]] = []
        self.count = self.depth = 0
        self.wanted = False

    def line(self, words: str) -> None:
        if found := LOCATION.match(words):
            self.place = int(found[1]), int(found[2])
        elif words and not words.startswith(SKIPPED):
            self.pending = f"{self.pending} {words}".strip()
            while self.pending and self._next():
                pass

    def _next(self) -> bool:
        """Takes one statement, label or brace; False where the next has no end yet."""
        if not self.depth:
            return self._outside()
        first = self.pending[0]
        if first in "{}":
            self.pending = self.pending[1:].lstrip()
            self._brace(first == "{")
        elif found := LABEL.match(self.pending):
            self.pending = self.pending[found.end() :]
            if self.wanted:
                _begin(self.kernel)
                self.kernel.labels[_unique(found[1], self.scopes, label=True)] = len(self.kernel.blocks) - 1
        elif ";" in self.pending:
            statement, _, rest = self.pending.partition(";")
            self.pending = rest.lstrip()
            if self.wanted and statement.strip():
                _statement(self.kernel, statement.strip(), self.scopes, self.place)
        else:
            return False
        return True

    def _outside(self) -> bool:
        """A declaration, or all that comes before a body."""
        statement, end, rest = self.pending.partition(";")
        if end and "{" not in statement.partition("=")[0]:
            _declare(self.kernel, statement)
            self.pending = rest.lstrip()
            return True
        head, body, rest = self.pending.partition("{")
        if not body:
            return False
        entry = ENTRY.search(head)
        self.wanted = entry is not None and (entry[1] == self.name or f"{len(self.name)}{self.name}" in entry[1])
        if self.wanted:
            _head(self.kernel, head)
            self.kernel.blocks.append([])
        self.pending, self.depth = rest.lstrip(), 1
        return True

    def _brace(self, opens: bool) -> None:
        if opens:
            self.count += 1
            self.scopes.append((self.count, set()))
        elif self.scopes:
            self.scopes.pop()
        self.depth += 1 if opens else -1


def _head(kernel: Kernel, words: str) -> None:
    """Parameters, and the size of a cluster."""
    if found := re.search(r"\.reqnctapercluster\s*(\d+)", words):
        kernel.cluster = int(found[1])
    for kind, name, count in PARAMETER.findall(words):
        kernel.parameters.append((name, int(count or 1) * int(kind[1:]) // 8))


def _declare(kernel: Kernel, statement: str) -> bool:
    """Whether it is memory that is declared."""
    found = DECLARED.search(statement)
    if not found:
        return False
    space, alignment, kind, name, count, values = found.groups()
    width = int(kind[1:]) // 8
    size = width * int(count or (0 if count is not None else 1))
    words = tuple(w.strip() for w in values.strip("{} ").split(",")) if values else ()
    kernel.variables.append(Variable(space, name, size, int(alignment or width), width, words))
    return True


def _statement(kernel: Kernel, statement: str, scopes: list[tuple[int, set[str]]], place: tuple[int, int]) -> None:
    if statement.startswith(".reg"):
        kind, names = statement[4:].split(None, 1)
        bits = 0 if kind == ".pred" else int(kind[2:])
        for name in (n.strip() for n in names.split(",")):
            if scopes:
                scopes[-1][1].add(name)
            own = _unique(name, scopes)
            kernel.registers[own[: own.index("<") + 1] if "<" in own else own] = bits
        return
    if statement.startswith("."):
        if statement.startswith(".param"):
            raise ValueError("the emulator does not know calls of functions, such as printf and assert")
        if not _declare(kernel, statement):
            raise ValueError(f"{statement} is not understood")
        return
    guard, negated = "", False
    if found := GUARD.match(statement):
        guard, negated = _unique(found[2], scopes), bool(found[1])
        statement = statement[found.end() :]
    opcode, *rest = statement.split(None, 1)
    operands = tuple(_operand(o, scopes, opcode) for o in _apart(rest[0])) if rest else ()
    if ALWAYS.match(opcode) or any(
        p.match(opcode) and not any(p.match(other.opcode) for other in kernel.blocks[-1])
        for p in (OF_A_WARP, OF_A_WARPGROUP)
    ):
        _begin(kernel)
    kernel.blocks[-1].append(Instruction(opcode, operands, guard, negated, place))
    if ENDS.match(opcode):
        kernel.blocks.append([])


def _begin(kernel: Kernel) -> None:
    if kernel.blocks[-1]:
        kernel.blocks.append([])


def _unique(name: str, scopes: list[tuple[int, set[str]]], label: bool = False) -> str:
    """The name with the number of the scope that declares it: inline assembly has names of its own."""
    if label:
        return f"{name}@{scopes[-1][0]}" if scopes and not name.startswith("$") else name
    return next((f"{name}@{number}" for number, names in reversed(scopes) if name in names), name)


def _apart(words: str) -> list[str]:
    """Split at commas that stand in no brackets."""
    parts, depth = [""], 0
    for character in words:
        depth += (character in "{[") - (character in "}]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [p.strip() for p in parts]


def _operand(words: str, scopes: list[tuple[int, set[str]]], opcode: str) -> Operand:
    if words.startswith("{"):
        return tuple(_unique(w.strip(), scopes) for w in words.strip("{} ").split(","))
    if words.startswith("["):
        base, *coordinates = _apart(words[1:-1])
        name, _, offset = base.partition("+")
        inner = tuple(_unique(w.strip(), scopes) for c in coordinates for w in c.strip("{} ").split(","))
        return Address(_unique(name.strip(), scopes), int(offset or 0), inner)
    if opcode.startswith("bra"):
        return _unique(words, scopes, label=True)
    return "|".join(_unique(w, scopes) for w in words.split("|"))
