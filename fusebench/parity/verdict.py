"""What the judge says of an output, and what it asks the reference on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fusebench.contract import Case
from fusebench.parity import pattern
from fusebench.parity.elements import spacing
from fusebench.parity.rounding import FLUSHED

# A gradient that was to be so small may have been a subnormal times something.
NEARLY_SUBNORMAL = 2.0**-118


@dataclass(frozen=True)
class Verdict:
    """How far an output is off. `ratio` is the largest error ÷ budget of an element, `ulps` its error in spacings.

    `rms` and `mean` are of error ÷ standard deviation over all elements, with their limits. The worst element is at `index`
    of output number `output`, which has a `name` where there are several; `pattern` says which elements are beyond their budget, `unseen` why some rows were not compared,
    `undeclared` which points of the formula make a difference and are not declared.
    """

    ratio: float
    max_abs: float
    max_rel: float
    ulps: float
    index: tuple[int, ...]
    got: float
    expected: float
    budget: float
    output: int
    checked: int
    rms: float = 0.0
    rms_limit: float = 0.0
    mean: float = 0.0
    mean_limits: tuple[float, float] = (0.0, 0.0)
    pattern: str = ""
    unseen: str = ""
    problem: str = ""
    some_rows: bool = False  # whether rows were chosen
    undeclared: tuple[str, ...] = ()
    name: str = ""

    @property
    def ok(self) -> bool:
        return self.each_ok and Together(self.rms, self.rms_limit, self.mean, self.mean_limits).ok

    @property
    def each_ok(self) -> bool:
        """Whether every element is within its budget: all that can be asked where values repeat, as hard inputs have them, because
        equal elements err alike, and not as independent draws do."""
        return not self.problem and self.ratio <= 1

    def reason(self) -> str:
        """One line: how far off, where, what was got and what was expected."""
        if self.problem:
            return self.problem
        points = f"; points of the formula that VARIANTS does not declare: {', '.join(self.undeclared)}"
        hint = points if self.undeclared else ""
        if self.got == 0 and 0 < abs(self.expected) < NEARLY_SUBNORMAL:
            hint += f"; a program that makes zero of float32's subnormals, as __expf does, declares the point {FLUSHED}"
        if self.ratio > 1:
            return (
                f"error is {self.ratio:.3g} × budget at {self.name or f'output {self.output}'}{list(self.index)}: got {self.got:.9g}, expected "
                f"{self.expected:.9g} ± {self.budget:.2g}, {self.ulps:.3g} ulps off; largest differences {self.max_abs:.2g} "
                f"absolute, {self.max_rel:.2g} relative; beyond their budget: {self.pattern}{hint}"
            )
        low, high = self.mean_limits
        return (
            f"every element is within its budget, but not all together: error ÷ its standard deviation has the root mean "
            f"square {self.rms:.4g} (right: at most {self.rms_limit:.4g}) and the mean {self.mean:.4g} ({low:.4g} to {high:.4g}){hint}"
        )


def worst_of(
    output: int, got: np.ndarray, expected: np.ndarray, error: np.ndarray, limit: np.ndarray, dtype: str,
    places: Mapping[int, np.ndarray],
) -> Verdict:  # fmt: skip
    """The verdict on the elements of an output, one by one, which are those numbers along those axes of the whole."""
    if not got.size:
        return Verdict(0.0, 0.0, 0.0, 0.0, (), 0.0, 0.0, 0.0, output, 0)
    size = np.abs(error)
    with np.errstate(all="ignore"):
        ratio = np.where(size == 0, 0.0, size / np.where(limit > 0, limit, np.finfo(float).tiny))
        relative = np.where(size == 0, 0.0, size / np.where(expected == 0, np.inf, np.abs(expected)))
        relative = np.where(np.isnan(relative), np.inf, relative)  # something finite where NaN is expected
    place = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    numbers = [places.get(axis, places.get(axis - got.ndim)) for axis in range(got.ndim)]
    index = tuple(int(at if chosen is None else chosen[at]) for at, chosen in zip(place, numbers, strict=True))
    step = float(spacing(expected[place], dtype)) or float("nan")
    return Verdict(
        float(ratio[place]), float(size.max()), float(relative.max()), float(size[place]) / step, index,
        float(got[place]), float(expected[place]), float(limit[place]), output, got.size,
        pattern=pattern.describe(ratio > 1, numbers) if ratio[place] > 1 else "",
    )  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What to compare: the formula of `case`, or of a `part` of its kernel, for a program that rounds at `points`.

    `row_axes` are the axes of the rows of the inputs, None for those without, `output_axes` those of the outputs, which
    are stored in `dtypes`. `rows` are the numbers of the rows to look at, None for all; `unlike` those of others that this output
    alone asks for. `excess`, `alike` and `widths` are those of each output's budget (budget.py); without the latter two elements
    are looked at one by one. `drawn`, where a formula needs all rows of its inputs: of each output the axis, and how many numbers along
    it come back, drawn by `drawn_seed` (rows.telling), None for all. `whole`: such a formula's outputs are compared in one go.
    `sliced`: rows are slices (SLICES of kernel.py), in each of which the formula has all rows.
    """

    case: Case
    part: str
    points: tuple[str, ...]
    row_axes: tuple[int | None, ...]
    output_axes: tuple[int, ...]
    dtypes: tuple[str, ...]
    excess: tuple[float, ...]
    seed: int
    rows: tuple[int, ...] | None = None
    unlike: tuple[int, ...] = ()
    alike: tuple[float, ...] = ()
    widths: tuple[tuple[float, float], ...] = ()
    drawn: tuple[tuple[int, int] | None, ...] = ()
    drawn_seed: int = 0
    whole: bool = False
    sliced: bool = False


@dataclass(frozen=True)
class Together:
    """All elements of an output, as a Verdict has them."""

    rms: float
    rms_limit: float
    mean: float
    mean_limits: tuple[float, float]

    @property
    def ok(self) -> bool:
        return self.rms <= self.rms_limit and self.mean_limits[0] <= self.mean <= self.mean_limits[1]


@dataclass(frozen=True)
class Worst:
    """What the reference on the device found: the worst element, as a Verdict describes it, how many elements are `beyond` their
    budget, in which rows (how many, the first, the last), how many elements it looked at, and each output's `together` if asked."""

    ratio: float = 0.0
    max_abs: float = 0.0
    ulps: float = 0.0
    index: tuple[int, ...] = ()
    got: float = 0.0
    expected: float = 0.0
    budget: float = 0.0
    output: int = 0
    beyond: int = 0
    rows: tuple[int, int, int] = (0, 0, 0)
    checked: int = 0
    together: tuple[Together, ...] = ()

    @property
    def where(self) -> str:
        """Which elements are beyond their budget, in words."""
        count, first, last = self.rows
        elements = "one element" if self.beyond == 1 else f"{self.beyond} elements"
        return f"{elements} of row {first}" if count == 1 else f"{elements} of {count} rows, {first} to {last}"
