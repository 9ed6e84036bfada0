"""The contract: what a kernel folder and an implementation file must offer.

`implementations/<kernel>/kernel.py` is the mathematics; it imports NumPy and SciPy alone:

    DIMENSIONS = ("M", "K", "N")         names of the sizes, each a positive integer
    BATCH = "M"                          the dimension that `batch=` sets
    CASES = {"batch": {"M": 1024, …}}    named cases, append-only; the first is the default
    OPTIONS = {"w_layout": ("kn", "nk")} options with their values, the default first (may be absent)
    PRECISIONS = ("ieee", "tf32")        how its float32 products can be asked for (absent: these two; ("ieee",) if it has none)
    ROWS = {"x": 0, "y": 0}              the axis of independent rows: of each input that has them, then of each output, in order,
                                         by a name of its own (absent: no rows; one output stands for all)
    SLICES = 1                           an axis that all float inputs and all outputs have, along which they are independent in every
                                         mode, such as heads: large cases are evaluated slice by slice (absent: none)
    OUTPUTS = ("y", "loss")              names of the outputs, in order (absent: they need none); where they depend on an option, by its
                                         values: {"until=rows": ("rows",), …}
    OWN_DTYPES = {"loss": "float32"}     outputs of another dtype than the case's, and float inputs that are rounded to another;
                                         ("labels",) are inputs that keep the dtype that they are made with (absent: none)
    def inputs(case, rng): …             {name: array} that differ from call to call, floats as float32; `rng` is NumPy's (drawing.py)
    def weights(case, rng): …            {name: array} that stay the same between calls (may be absent)
    def formula(case, r, *inputs): …     the outputs in float64; `r` names the rounding points (rounding.py)
    LAUNCHES = {"two_launches": 2}       variant → how many launches a fused implementation makes in a call: a number, the dimension
                                         that says so, such as "LAYERS", a function of the case, or a tuple of those among which
                                         a config chooses (absent: one)
    PUBLISHED = ({"case": "batch", "dtype": "float32", "precision": "tf32", "options": {"w_layout": "nk"}}, …)
                                         the cases whose figures the kernel's authors published; what is left out is float32,
                                         ieee and the default. "figures": {"do_bench": {"flax:module": 298.0}} are theirs in µs, by
                                         method and implementation, "" where they do not say; "device" is theirs (absent: none)
    PARTS = {"product": product}         other formulas, of a part of the kernel, for implementations that say so (may be absent)
    def hard(case): …                    {kind of hard inputs: names of the inputs and weights that get it} (hard.py; absent: all kinds, all float inputs, no weights)
    def edges(case, kind, rng): …        what `inputs` draws, with its integers at the `lower_edge`, the `upper_edge` or `between`, and for what `hard` names of DRAWN (hard.py; absent: no integers)
    def shape_problem(case, shapes): …   what is wrong with {name: shape} of the inputs that the sizes do not say, or "", where shapes depend on more
                                         than sizes: for fusebench.ops (may be absent)
    def flops(case): …                   floating-point operations of one call, in the mode of the case
    def moved_bytes(case): …             compulsory traffic: every input read once, every output written once

What follows stands where it can be differentiated; without it there is the mode `forward` alone:

    GRADIENTS = ("x", "W", "b")          the inputs and weights that have gradients: all floats but scalars, in the order of the
                                         formula; those that a case lacks have none
    def upstream(case, rng): …           {output: array}, in order: the gradients of what is behind the kernel by its outputs
    def gradient(case, r, *inputs, *upstream): …  the gradients by GRADIENTS in float64, with rounding points as in formula

`implementations/<kernel>/<implementation>.py` is one framework's program. Its upper-case constants are literals, because
discovery reads them without importing the file:

    BACKEND = "torch"                    or another module of fusebench/backends: whose arrays it takes, which worker runs it
    VARIANTS = {"default": ("product",)} variant → the formula's points that it rounds to the storage dtype
    REQUIRES = {"triton": "triton"}      module → what to `pip install` for it, beyond the back end (may be absent)
    IN_PLACE = {"in_place": ("x",)}      variant → the inputs that its call overwrites, of those that the case has (may be absent: none).
                                         A key may be a tuple of variants
    COMPUTES = "product"                 which of the kernel's PARTS it is, shown as such in tables (absent: the whole kernel)
    TUNABLES = {"multirow": {"BLOCK_M": (64, 128), "num_warps": (4, 8)}}  variant → its tunables, with the values that are worth
                                         a try (may be absent: none). A key may be a tuple of variants, or of tunables with the same
                                         values, and the literal may stand in another file: from implementations.<kernel>._tiles
                                         import TUNABLES
    WITHOUT_GPU = "timed"                or "interpreted" (parity only), "emulated" (CUDA, parity only) or "unavailable" (may be absent: "timed")
    FUSED = True                         its call is the launches of its own kernels, and computes with no operator of the back end's
                                         framework beside them: the harness watches for those (may be absent: False)
    BACKWARD = {"default": ("product",)} variant → the gradient's points that it rounds to the storage dtype, for those with backward
                                         modes (may be absent: none)
    EXPECT = ({"variant": "default", "case": "batch", "dtype": "bfloat16", "arch": "sm_90a", "expect": "spills=0,HGMMA>=1"}, …)
                                         what `inspect` is to find in its machine code; a tuple of variants, archs, … means each of
                                         them, "options" may name others than the default's, "mode" a backward one (may be absent)
    def skip(case, variant, device): …   why it cannot do this cell, or None (may be absent)
    def prepare(case, variant, *inputs)  a tuple made once from the weights alone, such as column sums (may be absent)
    def build(case, variant, device): …  → call(*inputs, *prepared) → one output or a tuple of them
                                         in the backward modes, which case.mode says, → (forward, backward):
                                         forward(*inputs, *prepared) → (outputs, residuals), backward(residuals, *upstream) → gradients

Where TUNABLES stands, tiles and their like are chosen in one place, and `config.num_warps=8` on the command line sets another:

    def config(case, variant, device)    {tunable: value}: what it takes unless told otherwise; of the variant's tunables, those
                                         that this case has a use for
    def fits(case, variant, device, config)      why this config cannot run here, before compiling, or None (may be absent)
    def launches(case, variant, device, config)  the programs that build launches, in order, for tools (may be absent)
    def build(case, variant, device, config)     with a value for each of these

Only `call` is timed; it must be pure and may return before the device is done. In mode=backward that is `backward`, each call on
residuals of a forward call of its own, which it may overwrite; in mode=forward_backward both as one call. Inputs come in the order of `inputs`, then
`weights`. Nothing in these folders times, prints, asserts or reads configuration; an implementation that cannot do what it
is asked for says so in `skip` and never does something else instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

DTYPES = ("float32", "float16", "bfloat16")
OWN_DTYPES = (
    *DTYPES,
    "int32",
    "int64",
    "bool",
)  # that an output may have whatever the case's is; floats for inputs too
PRECISIONS = ("ieee", "tf32")
Tunable = bool | int | str
MODES = ("forward", "backward", "forward_backward")
STATUSES = ("ok", "skipped", "wrong", "failed", "crashed", "timeout", "implausible")
PASSED = ("ok", "skipped")


@dataclass(frozen=True)
class Case:
    """A kernel with everything fixed but the implementation.

    `sizes` maps each of the kernel's dimensions to a positive integer, `options` each of its options to a value. `id` is what
    records, tables and asv call it, made by `cases.make_case`: `batch/bfloat16`, or its sizes where it has no name.
    `precision` says how a float32 product is computed; 16-bit products always accumulate in float32, so there it is "ieee".
    `mode` is one of MODES.
    """

    kernel: str
    sizes: Mapping[str, int]
    dtype: str
    precision: str = "ieee"
    options: Mapping[str, str] = field(default_factory=dict)
    mode: str = "forward"
    id: str = ""

    def size(self, *dimensions: str) -> tuple[int, ...]:
        """The sizes in the order asked for: `M, K, N = case.size("M", "K", "N")`."""
        return tuple(self.sizes[d] for d in dimensions)

    @property
    def itemsize(self) -> int:
        """Bytes of one element of the storage dtype."""
        return 4 if self.dtype == "float32" else 2


@dataclass(frozen=True)
class Cell:
    """One case on one implementation and variant, with the seed and the kind (hard.py) of its inputs. `config` has the tunables
    that are set to other values than the implementation's own choice."""

    case: Case
    implementation: str
    variant: str
    seed: int = 0
    inputs: str = "plain"
    config: Mapping[str, Tunable] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """`triton:multirow_ws`, or the bare implementation where it has only the variant "default", with `num_warps=8` behind it
        for each tunable that is set."""
        name = self.implementation if self.variant == "default" else f"{self.implementation}:{self.variant}"
        return " ".join([name, *(f"{n}={v}" for n, v in sorted(self.config.items()))])

    @property
    def id(self) -> str:
        """Unique within a run; a resumed run repeats no cell whose id is on record."""
        kind = "" if self.inputs == "plain" else f"/inputs={self.inputs}"
        return f"{self.case.kernel}/{self.case.id}/{self.label.replace(' ', '/')}/seed={self.seed}{kind}"


@dataclass(frozen=True)
class Device:
    """What an implementation may know of where it runs. `capability` is (9, 0) on an H200 and (0, 0) on a CPU."""

    type: str
    name: str
    capability: tuple[int, int] = (0, 0)
    multiprocessors: int = 0


@dataclass(frozen=True)
class Published:
    """A named case whose figures the kernel's authors published, with all that belongs to it; options left out are the default's.

    `figures` are µs by how they were measured, then by label: `{"do_bench": {"triton:multirow": 199.0}}`; of the device, the method
    and the implementation "" is one that they do not name.
    """

    case: str
    dtype: str = "float32"
    precision: str = "ieee"
    options: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    device: str = ""


@dataclass(frozen=True)
class Expected:
    """What is expected of the machine code of a variant, for an arch, of a named case in a mode; options left out are the default's."""

    variant: str
    case: str
    arch: str
    expect: str
    dtype: str = "float32"
    precision: str = "ieee"
    options: Mapping[str, str] = field(default_factory=dict)
    mode: str = "forward"


def _no_weights(case: Case, rng: Any) -> dict[str, Any]:
    return {}


def _no_problem(case: Case, shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ""


Launches = int | str | Callable[[Case], int]  # a number, the dimension that says so, or a function of the case


@dataclass(frozen=True)
class Mathematics:
    """A kernel.py as everything else sees it: its constants and functions under the names above, in lower case, what it left
    out filled in. `rows` are the axes of the inputs that have rows, and of the outputs. `own_dtypes` has "" for an input that
    keeps the dtype that it is made with.
    """

    dimensions: tuple[str, ...]
    batch: str
    cases: Mapping[str, Mapping[str, int]]
    inputs: Callable[..., dict[str, Any]]
    formula: Callable[..., Any]
    flops: Callable[[Case], int]
    moved_bytes: Callable[[Case], int]
    weights: Callable[..., dict[str, Any]] = _no_weights
    hard: Callable[[Case], Mapping[str, Any]] | None = None
    edges: Callable[..., dict[str, Any]] | None = None
    shape_problem: Callable[..., str] = _no_problem
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    precisions: tuple[str, ...] = PRECISIONS
    rows: Mapping[str, int] = field(default_factory=dict)
    slices: int | None = None
    own_dtypes: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    outputs_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parts: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    launches: Mapping[str, Launches | tuple[Launches, ...]] = field(default_factory=dict)
    gradients: tuple[str, ...] = ()
    upstream: Callable[..., dict[str, Any]] = _no_weights
    gradient: Callable[..., Any] | None = None
    published: tuple[Published, ...] = ()

    @property
    def multiplies(self) -> bool:
        """Whether it computes a matrix product: a kernel that has none says so in PRECISIONS."""
        return "tf32" in self.precisions

    def launches_of(self, variant: str, case: Case) -> set[int]:
        """How many launches a fused implementation makes in a call of that variant; several numbers, where its config chooses."""
        counts = self.launches.get(variant, 1)
        return {
            count(case) if callable(count) else case.sizes[count] if isinstance(count, str) else count
            for count in (counts if isinstance(counts, tuple) else (counts,))
        }

    def work(self, case: Case) -> tuple[int, int]:
        """The FLOPs and bytes of one call. Raises ValueError where kernel.py says what no call has."""

        def amount(name: str, value: Any) -> int:
            if not (isinstance(value, Real) and 0 <= float(value) < math.inf):
                raise ValueError(
                    f"{name} of kernel.py of {case.kernel} returns {value!r:.60} for {case.id}: expected a number of at least 0"
                )
            return int(value)  # type: ignore[call-overload]

        return amount("flops", self.flops(case)), amount("moved_bytes", self.moved_bytes(case))

    def formula_of(self, part: str) -> Callable[..., Any]:
        """The kernel's formula, or that of a part of it. Raises ValueError for a part that it does not have."""
        if not part:
            return self.formula
        if part not in self.parts:
            raise ValueError(f"COMPUTES names {part!r}; PARTS of kernel.py has {', '.join(self.parts) or 'none'}")
        return self.parts[part]

    def output_dtype(self, number: int, case: Case) -> str:
        """The dtype in which output `number` is stored, and by whose spacing it is judged."""
        options = (f"{option}={value}" for option, value in case.options.items())
        names = next((self.outputs_by[of] for of in options if of in self.outputs_by), self.outputs)
        name = names[number] if number < len(names) else None
        return self.own_dtypes.get(name, case.dtype) if name else case.dtype

    def output_axis(self, number: int, inputs: Collection[str]) -> int | None:
        """The axis of the rows of output `number`, where `inputs` are the names of all inputs; None for an output that OUTPUTS
        names and ROWS does not."""
        if number < len(self.outputs):
            return self.rows.get(self.outputs[number])
        axes = [axis for name, axis in self.rows.items() if name not in inputs] or [0]
        return axes[number if len(axes) > 1 else 0]
