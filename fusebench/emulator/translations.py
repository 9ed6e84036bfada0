"""What a kernel's PTX is in Python, kept beside the PTX in the user's cache: to read and to translate a kernel takes longer than to run it in a
small case, and every worker would do it anew."""

from __future__ import annotations

import hashlib
import marshal
from dataclasses import astuple, dataclass
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import Any

from fusebench.backends.cuda import keep, kept
from fusebench.emulator import ptx
from fusebench.emulator.overlap import too_early
from fusebench.emulator.ptx import Variable
from fusebench.emulator.translate import Translator

# an edit of the emulator may translate otherwise; as it is imported, because an edit may come while it runs
SOURCES = [file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py"))]
DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Translation:
    """A kernel: the code of each basic block's function, what these see (translate.py), by the number of a block at whose begin lanes of a warp meet
    the register that they bring to an exchange, "" at a barrier; the place of what touches global memory before the launch before has ended, if
    something does; and what else `ptx.Kernel` has."""

    codes: list[CodeType]
    registers: dict[str, tuple[str, int, str]]
    constants: dict[str, tuple[str, int | float]]
    meetings: dict[int, str]
    early: tuple[int, int] | None
    parameters: list[tuple[str, int]]
    variables: list[Variable]
    cluster: int
    files: dict[int, str]


def translation(text: str, name: str) -> Translation:
    """Of the kernel of a module, by its name in the source. Raises ValueError as `ptx.read` does."""
    key = _key(text, name)
    digest, found = (v := kept(key) or b"")[:DIGEST_BYTES], v[DIGEST_BYTES:]
    if hashlib.sha256(found).digest() != digest:  # marshal is not safe with damaged files
        found = marshal.dumps(_made(text, name))
        keep(key, hashlib.sha256(found).digest() + found)
    fields = marshal.loads(found)
    return Translation(**fields | {"variables": [Variable(*v) for v in fields["variables"]]})


def _made(text: str, name: str) -> dict[str, Any]:
    """The fields of its translation, each as marshal takes it."""
    kernel = ptx.read(text, name)
    translator, early = Translator(kernel), too_early(kernel)
    codes = translator.codes()
    firsts = {n: block[0] for n, block in enumerate(kernel.blocks) if block}
    shuffles = {n: str(i.operands[1]) for n, i in firsts.items() if i.opcode.startswith("shfl")}
    barriers = {n: "" for n, i in firsts.items() if i.opcode.startswith("bar.warp")}
    return {
        "codes": codes, "registers": translator.registers, "constants": translator.constants, "meetings": shuffles | barriers,
        "early": early and early.place, "parameters": kernel.parameters, "variables": [astuple(v) for v in kernel.variables],
        "cluster": kernel.cluster, "files": kernel.files,
    }  # fmt: skip


def _key(text: str, name: str) -> str:
    """Of all that a translation depends on."""
    digest = hashlib.sha256(MAGIC_NUMBER)
    for part in (*SOURCES, name.encode(), text.encode()):
        digest.update(hashlib.sha256(part).digest())
    return f"translation {digest.hexdigest()}"
