"""What an instruction becomes in Python: one statement, or several, for the threads that the name `at` stands for.

Each function returns None for an instruction that is not of its kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fusebench.emulator.arithmetic import FUNCTIONS, TYPES
from fusebench.emulator.ptx import Address, Instruction, Operand

if TYPE_CHECKING:
    from fusebench.emulator.translate import Translator

BINARY = {"and": "&", "or": "|", "xor": "^"}
SPACES = {"global", "shared", "local", "const", "param", "shared::cta", "shared::cluster"}


# By opcode, a modifier before it where it decides; what stands in braces is an operand, with its type where that is not the instruction's.
INTEGERS = {
    "mul.wide": "A.widened({a}, {b})", "mad.wide": "A.widened({a}, {b}) + {c:wide}", "mul.hi": "A.high({a}, {b})",
    "mad.hi": "A.high({a}, {b}) + {c}", "div": "A.divided({a}, {b})", "rem": "A.remainder({a}, {b})", "min": "np.minimum({a}, {b})",
    "max": "np.maximum({a}, {b})", "shl": "A.shift_left({a}, {b:u32})", "shr": "A.shift_right({a}, {b:u32})",
    "bfi": "A.insert_bits({a}, {b}, {c:u32}, {d:u32})", "bfe": "A.extract_bits({a}, {b:u32}, {c:u32})",
    "dp2a.lo": "A.dot_of_two({a}, {b}, {c})", "prmt": "A.permuted({a}, {b}, {c:u32})", "lop3": "A.looked_up({a}, {b}, {c}, {d:literal})", "shf.l.wrap": "A.funnel_left({a}, {b}, {c:u32} & np.uint32(31))",
    "shf.r.wrap": "A.funnel_right({a}, {b}, {c:u32} & np.uint32(31))", "shf.l.clamp": "A.funnel_left({a}, {b}, {c:u32})",
    "shf.r.clamp": "A.funnel_right({a}, {b}, {c:u32})", "popc": "np.bitwise_count({a}).astype('u4')", "brev": "A.reversed_bits({a})",
    "clz": "A.leading_zeros({a})", "bfind": "A.highest_bit({a})", "bfind.shiftamt": "A.highest_bit({a}, shift=True)",
}  # fmt: skip
FLOATS = {
    "fma": "A.fma({a}, {b}, {c}, '{rounding}')", "div": "{a} / {b}", "min": "np.fmin({a}, {b})", "max": "np.fmax({a}, {b})",
    "min.NaN": "np.minimum({a}, {b})", "max.NaN": "np.maximum({a}, {b})", "copysign": "A.sign_of({a}, {b})",
    "add.directed": "A.rounded({a}.astype('f8') + {b}, {a}.dtype, '{rounding}')",
    "sub.directed": "A.rounded({a}.astype('f8') - {b}, {a}.dtype, '{rounding}')",
    **{name: f"A.FUNCTIONS['{name}']({{a}})" for name in FUNCTIONS},
}  # fmt: skip
BOTH = {
    "mov": "{a}", "add": "{a} + {b}", "sub": "{a} - {b}", "mul": "{a} * {b}", "mad": "{a} * {b} + {c}", "and": "{a} & {b}", "or": "{a} | {b}",
    "xor": "{a} ^ {b}", "not": "~{a}", "neg": "-{a}", "abs": "np.abs({a})", "selp": "np.where({c:pred}, {a}, {b})",
}  # fmt: skip
PACKED = {
    "add": "np.add",
    "sub": "np.subtract",
    "mul": "np.multiply",
    "max": "np.fmax",
    "min": "np.fmin",
    "fma": "A.fma",
}


@dataclass(frozen=True)
class Word:
    """An operand in one of the texts above: its type stands behind the colon."""

    t: Translator
    operand: Operand
    kind: str
    at: str
    flushed: bool = False

    def __format__(self, kind: str) -> str:
        if kind == "literal":
            return str(int(str(self.operand), 0))
        value = self.t.value(self.operand, twice(self.kind) if kind == "wide" else kind or self.kind, self.at)
        return f"A.flushed({value})" if self.flushed else value


def twice(kind: str) -> str:
    """The type of the whole product of two of these."""
    return f"{kind[0]}{int(kind[1:]) * 2}"


def calculated(t: Translator, i: Instruction, at: str) -> str | list[str] | None:
    """What computes registers from registers."""
    op, how, kind = i.parts[0], i.parts[1:-1], i.parts[-1]
    if op == "mov" and any(isinstance(o, tuple) for o in i.operands):
        return vector_move(t, i, at)
    if op == "cvta":
        return t.store(i.operands[0], kind, f"m.generic({t.value(i.operands[1], kind, at)}, '{i.opcode}')", at)
    if op == "mapa":
        address, rank = (t.value(o, "u32", at) for o in i.operands[1:])
        return t.store(i.operands[0], "u32", f"m.of_rank({address}, {rank})", at)
    if op == "cvt":
        return conversion(t, i, at)
    if op == "setp":
        return comparison(t, i, at)
    if kind.endswith("x2") and op in PACKED:
        values = ", ".join(t.value(o, "u32", at) for o in i.operands[1:])
        return t.store(i.operands[0], "u32", f"A.packed('{kind}', {PACKED[op]}, {values})", at)
    if kind not in TYPES:
        return None
    floating = TYPES[kind].kind not in "iub"
    rounding = next((h for h in how if h in ("rn", "rz", "rm", "rp")), "rn")
    known = BOTH | (FLOATS if floating else INTEGERS)
    modifiers = [".".join(how), *how] + (["directed"] if rounding != "rn" else [])
    text = next((known[name] for m in modifiers if (name := f"{op}.{m}") in known), known.get(op))
    if text is None:
        return None
    flushes = floating and "ftz" in how
    given = {name: Word(t, o, kind, at, flushes) for name, o in zip("abcd", i.operands[1:], strict=False)}
    written = text.format(rounding=rounding, **given)
    if flushes:
        written = f"A.flushed({written})"
    if "sat" in how and floating:
        written = f"np.clip({written}, 0, 1)"
    to = twice(kind) if "wide" in how else "u32" if op in ("popc", "clz", "bfind") else kind
    return t.store(i.operands[0], to, written, at)


def vector_move(t: Translator, i: Instruction, at: str) -> str | list[str]:
    to, of = i.operands
    width = int(i.parts[-1][1:])
    if isinstance(of, tuple):
        part = width // len(of)
        text = " | ".join(
            f"{t.value(w, f'u{part}', at)}.astype('u{width // 8}') << np.uint{width}({n * part})"
            for n, w in enumerate(of)
        )
        return t.store(to, f"u{width}", text, at)
    assert isinstance(to, tuple)
    part = width // len(to)
    source = t.value(of, f"u{width}", at)
    return [
        f"whole = {source}",
        *(
            t.store(w, f"u{part}", f"(whole >> np.uint{width}({n * part})).astype('u{part // 8}')", at)
            for n, w in enumerate(to)
            if w != "_"
        ),
    ]


def conversion(t: Translator, i: Instruction, at: str) -> str:
    how, to, of = i.parts[1:-2], i.parts[-2], i.parts[-1]
    if to.endswith("x2"):
        narrow = to.removesuffix("x2")
        upper, lower = (
            f"A.converted({t.value(o, of, at)}, '{narrow}', '{of}', {how}).view('u2').astype('u4')"
            for o in i.operands[1:3]
        )
        return t.store(i.operands[0], "u32", f"{upper} << np.uint32(16) | {lower}", at)
    text = f"A.converted({t.value(i.operands[1], of, at)}, '{to}', '{of}', {how})"
    return t.store(i.operands[0], to, text, at)


def comparison(t: Translator, i: Instruction, at: str) -> list[str]:
    compare, *rest, kind = i.parts[1:]
    text = f"A.COMPARISONS['{compare}']({t.value(i.operands[1], kind, at)}, {t.value(i.operands[2], kind, at)})"
    lines = [f"found = {text}"]
    join = next((BINARY[r] for r in rest if r in BINARY), None)
    first, _, second = str(i.operands[0]).partition("|")
    other = t.value(i.operands[3], "pred", at) if join else ""
    lines.append(t.store(first, "pred", f"found {join} {other}" if join else "found", at))
    if second:
        lines.append(t.store(second, "pred", f"~found {join} {other}" if join else "~found", at))
    return lines


def memory(t: Translator, i: Instruction, at: str) -> str | list[str] | None:
    op, parts = i.parts[0], i.parts
    if op not in ("ld", "ldu", "st", "atom", "red") or "async" in parts:
        return None
    kind = parts[-1]
    space = next((p for p in parts if p in SPACES), "generic")
    count = next((int(p[1:]) for p in parts if re.fullmatch(r"v[248]", p)), 1)
    if op in ("ld", "ldu"):
        address, to = i.operands[1], i.operands[0]
        if space == "param":
            assert isinstance(address, Address)
            loaded = [f"v = m.parameter('{address.base}', {address.offset}, T['{kind}'], {count})"]
        else:
            loaded = [f"v = m.memory.load({at}, '{space}', {t.address(address, at)}, T['{kind}'], {count})"]
        return loaded + [t.store(own, kind, f"v[{n}]", at) for n, own in enumerate(words(to)) if own != "_"]
    if op == "st":
        values = ", ".join(t.value(w, kind, at) for w in words(i.operands[1]))
        return f"m.memory.store({at}, '{space}', {t.address(i.operands[0], at)}, T['{kind}'], ({values},))"
    operation = next(p for p in parts if p in ("add", "min", "max", "exch", "cas", "inc", "or", "and", "xor"))
    place, given = (i.operands[1], i.operands[2:]) if op == "atom" else (i.operands[0], i.operands[1:])
    own = [w for v in given for w in words(v)]
    text = ", ".join(t.value(w, kind, at) for w in own)
    call = f"m.memory.update({at}, '{space}', {t.address(place, at)}, T['{kind}'], '{operation}', ({text},), {count})"
    return t.store(i.operands[0], kind, call, at) if op == "atom" else call


def together(t: Translator, i: Instruction, at: str) -> str | list[str] | None:
    """What a warp does together, and what happens beside the threads: `Machine` has a method for each."""
    o = i.operands
    if i.opcode.startswith("shfl.sync"):
        first, _, second = str(o[0]).partition("|")
        arguments = ", ".join(t.value(w, "u32", at) for w in o[1:4])
        lines = [
            f"v, inside = m.warps.shuffled({at}, '{i.parts[2]}', {arguments})",
            t.store(first, "u32", "v", at),
        ]
        return [*lines, t.store(second, "pred", "inside", at)] if second else lines
    if i.opcode.startswith("bar.warp"):
        return f"m.warps.meets[{at}] = False"
    if i.opcode.startswith("vote.sync"):
        kind = i.parts[-1]
        call = f"m.warps.voted({at}, '{i.parts[2]}', {t.value(o[1], 'pred', at)})"
        return t.store(o[0], "u32" if kind == "b32" else "pred", call, at)
    if i.opcode.startswith("redux.sync"):
        kind = i.parts[-1]
        return t.store(o[0], kind, f"m.warps.reduced({at}, '{i.parts[2]}', {t.value(o[1], kind, at)})", at)
    if i.opcode.startswith("elect.sync"):
        return t.store(str(o[0]).partition("|")[2], "pred", f"m.special['laneid'][{at}] == 0", at)
    if i.opcode.startswith("ldmatrix"):
        registers = ", ".join(t.register(w) for w in words(o[0]))
        return f"m.products.ldmatrix({at}, ({registers},), {t.address(o[1], at)}, {'trans' in i.parts})"
    if i.opcode.startswith("stmatrix"):
        registers = ", ".join(t.register(w, "u32") for w in words(o[1]))
        return f"m.products.stmatrix({at}, ({registers},), {t.address(o[0], at)}, {'trans' in i.parts})"
    if i.opcode.startswith("mma.sync"):
        to, a, b, c = ("(" + ", ".join(t.register(w, "u32") for w in words(o[n])) + ",)" for n in range(4))
        return f"m.products.mma({at}, '{i.parts[3]}', '{i.parts[-3]}', {to}, {a}, {b}, {c}, '{i.parts[-1]}')"
    if i.opcode.startswith("wgmma"):
        return warpgroup(t, i, at)
    if i.opcode.startswith("cp.async.commit_group"):
        return f"m.copies.commit({at}, 'cp')"
    if i.opcode.startswith("cp.async.wait_all"):
        return f"m.copies.commit({at}, 'cp'); m.copies.wait({at}, 'cp', 0)"
    if i.opcode.startswith("cp.async.wait_group"):
        return f"m.copies.wait({at}, 'cp', {int(str(o[0]))})"
    if i.opcode.startswith("cp.async.bulk.commit_group"):
        return f"m.copies.commit({at}, 'bulk')"
    if i.opcode.startswith("cp.async.bulk.wait_group"):
        return f"m.copies.wait({at}, 'bulk', {int(str(o[0]))})"
    if i.opcode.startswith("cp.async.bulk"):
        return bulk(t, i, at)
    if i.opcode.startswith("cp.async"):
        given = t.value(o[3], "u32", at) if len(o) > 3 else "None"
        return f"m.copies.copy({at}, {t.address(o[0], at)}, {t.address(o[1], at)}, {int(str(o[2]))}, {given})"
    if i.opcode.startswith("st.async"):
        kind = i.parts[-1]
        text = ", ".join(t.value(w, kind, at) for w in words(o[1]))
        return f"m.copies.send({at}, {t.address(o[0], at)}, T['{kind}'], ({text},), {t.address(o[2], at)})"
    if i.opcode.startswith("mbarrier.init"):
        return f"m.mbarriers.init({at}, {t.address(o[0], at)}, {t.value(o[1], 'u32', at)})"
    if i.opcode.startswith("mbarrier.inval"):
        return []
    if i.opcode.startswith(("mbarrier.arrive", "mbarrier.expect_tx")):
        place = next(w for w in o if isinstance(w, Address))
        behind = o[o.index(place) + 1 :]
        number = t.value(behind[0], "u32", at) if behind else "1"
        expects = "expect_tx" in i.opcode
        arrives = "0" if i.opcode.startswith("mbarrier.expect_tx") else "1" if expects or not behind else number
        return f"m.mbarriers.arrive({at}, {t.address(place, at)}, {arrives}, {number if expects else 0})"
    return None


def warpgroup(t: Translator, i: Instruction, at: str) -> str:
    o = i.operands
    if i.parts[1] == "commit_group":
        return f"m.copies.commit({at}, 'wgmma')"
    if i.parts[1] == "wait_group":
        return f"m.copies.wait({at}, 'wgmma', {int(str(o[0]))})"
    shape, kind = i.parts[4], i.parts[-1]
    sums = "(" + ", ".join(t.register(w, "f32") for w in words(o[0])) + ",)"
    left = (
        "(" + ", ".join(f"{t.register(w)}[{at}]" for w in o[1]) + ",)"
        if isinstance(o[1], tuple)
        else t.value(o[1], "u64", at)
    )
    adds = t.value(o[3], "pred", at)
    signs = [int(str(w), 0) for w in o[4:]]
    columns = signs[2:] if len(signs) > 2 else [0, 0]
    transposed = (columns[0], columns[1]) if len(columns) == 2 else (0, columns[0])
    return f"m.products.wgmma({at}, '{shape}', '{kind}', {sums}, {left}, {t.value(o[2], 'u64', at)}, {adds}, {tuple(signs[:2])}, {transposed})"


def bulk(t: Translator, i: Instruction, at: str) -> str:
    o = i.operands
    if "tensor" in i.parts:
        to, of, barrier = o[0], o[1], o[2]
        assert isinstance(of, Address)
        if "shared::cluster" not in i.parts[:6]:
            raise t.unknown(i)
        base = t.address(Address(of.base, of.offset), at)
        places = ", ".join(t.value(w, "s32", at) for w in of.coordinates)
        ranks = t.value(o[3], "u16", at) if "multicast::cluster" in i.parts else "None"
        return f"m.copies.box({at}, {t.address(to, at)}, {base}, ({places},), {t.address(barrier, at)}, {ranks})"
    if i.opcode.startswith("cp.async.bulk.shared::cluster.global"):
        return f"m.copies.bulk_load({at}, {t.address(o[0], at)}, {t.address(o[1], at)}, {t.value(o[2], 'u32', at)}, {t.address(o[3], at)})"
    if i.opcode.startswith("cp.async.bulk.global.shared::cta"):
        return f"m.copies.bulk_store({at}, {t.address(o[0], at)}, {t.address(o[1], at)}, {t.value(o[2], 'u32', at)})"
    raise t.unknown(i)


def words(operand: Operand) -> tuple[str, ...]:
    """The registers of a vector, or the one that it is. Raises ValueError for an address."""
    if isinstance(operand, Address):
        raise ValueError(f"[{operand.base}] is no register")
    return operand if isinstance(operand, tuple) else (operand,)
