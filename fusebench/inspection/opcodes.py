"""The classes that opcodes of SASS belong to, and how instructions are counted by them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

CLASSES = ("tensor core", "global", "shared", "arithmetic", "special function", "barrier", "branch", "other")

# A name stands for the opcode before its first point, without the U of those that work on uniform registers.
_NAMES = {
    # the products themselves; WARPGROUP, which waits for them, is a barrier
    "tensor core": """HMMA HGMMA IMMA IGMMA BMMA BGMMA QMMA QGMMA DMMA OMMA UTCHMMA UTCQMMA UTCIMMA UTCOMMA""",
    # what reads or writes device memory, also by the copy engine and by generic addresses
    "global": """LD LDG LDGSTS LDGMC ST STG ATOM ATOMG RED REDG UBLKCP UBLKRED UBLKPF UTMALDG UTMASTG UTMAREDG UTMAPF
        UREDGR UREDG CCTL CCTLL SULD SUST TEX TLD""",
    "shared": "LDS LDSM LDSMM STS STSM STAS ATOMS REDAS REDS",
    "arithmetic": """FADD FADD2 FADD32I FHADD FHFMA FCHK FFMA FFMA2 FFMA32I FMNMX FMNMX3 FMUL FMUL2 FMUL32I FRND FSEL FSET FSETP FSWZADD
        HADD2 HADD2_32 HFMA2 HFMA2_MMA HMUL2 HMNMX2 HSET2 HSETP2 HADD HFMA HMUL HMNMX DADD DFMA DMUL DSETP DMNMX
        BMSK BREV FLO IABS IADD IADD2 IADD3 IADD32I IDP IDP4A IMAD IMADSP IMNMX IMNMX3 IMUL ISCADD ISETP ISET LEA LOP LOP3 LOP32I
        PLOP3 POPC PRMT SEL SGXT SHF SHL SHR VABSDIFF VABSDIFF4 VIADD VIADDMNMX VIMNMX VIMNMX3 VHMNMX PSETP CSETP
        F2F F2FP F2I F2IP I2F I2FP I2I I2IP""",
    "special function": "MUFU",
    "barrier": """BAR MEMBAR DEPBAR LDGDEPBAR ERRBAR CGAERRBAR FENCE SYNCS ARRIVES WARPSYNC WARPGROUP WARPGROUPSET CGABAR_ARV
        CGABAR_WAIT UTCBAR UTMACMDFLUSH ACQBULK ACQSHMINIT""",
    "branch": "BRA BRX BRXU JMP JMX JMXU CALL RET EXIT BREAK BSSY BSYNC BMOV KILL BPT RTT YIELD",
}
# Moves, constants, shuffles, votes, local and tensor memory: names that an expectation may have of the class "other".
_OTHER = """B2R CREDUX CS2R ELECT ENDCOLLECTIVE LDC LDCU LDL LDT LDTM LEPC MATCH MOV MOVM NANOSLEEP NOP P2R PMTRIG PREEXIT QSPC R2B R2P
    R2UR REDUX S2R S2UR SETCTAID SHFL STL STT STTM UTCATOMSWS UTCCP UTCSHIFT UTMACCTL UVIRTCOUNT SETMAXREG VOTE"""
_CLASS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
NAMES = frozenset({*_CLASS, *_OTHER.split()})
_WIDE = {"64": 2, "WIDE": 2, "128": 4, "256": 8}  # modifiers of what is more than one register long


class HasOpcode(Protocol):
    @property
    def opcode(self) -> str: ...


def class_of(opcode: str) -> str:
    """The class of an opcode with its modifiers, `HGMMA.64x256x16.F32`, and without its predicate."""
    name = opcode.split(".")[0]
    return _CLASS.get(name) or _CLASS.get(name.removeprefix("U"), "other")


def registers(opcode: str) -> int:
    """How many registers, one behind the other, an opcode with its modifiers fills: LDS.128."""
    return max(_WIDE.get(modifier, 1) for modifier in opcode.split("."))


def is_known(opcode: str) -> bool:
    """Whether there is such an opcode, as far as is known: a new architecture may have more."""
    name = opcode.split(".")[0]
    return name in NAMES or name.removeprefix("U") in NAMES


def by_class(instructions: Iterable[HasOpcode]) -> dict[str, int]:
    """How many instructions each class has; they sum to the number of instructions."""
    counts = Counter(class_of(i.opcode) for i in instructions)
    return {kind: counts[kind] for kind in CLASSES}


def matches(opcode: str, pattern: str) -> bool:
    """Whether an opcode is one of those that a name with some modifiers means: MUFU, MUFU.EX2, HGMMA.F32."""
    name, *modifiers = opcode.split(".")
    wanted, *required = pattern.split(".")
    return name == wanted and all(modifier in modifiers for modifier in required)
