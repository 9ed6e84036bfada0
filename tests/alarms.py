"""False alarms: correct programs on random cells, all of which the judge must accept.

    python tests/alarms.py --cells 10000       judges them and shows every alarm, and how near the others came
    python tests/alarms.py --cells 2500 --first 7500     the last quarter of these
    python tests/alarms.py --cell 4711         one cell again
    python tests/alarms.py --formula           cells of all modes, of programs that evaluate the formula in float32
    python tests/alarms.py --table             errors by mean/std of the inputs, up to 1000, where nothing is judged
    python tests/alarms.py --cells 3000 --times 4    the float32 cells with their errors times 4: how many are rejected

A cell is a kernel, sizes, dtype, precision, options, inputs (hard ones, or plain ones with a mean of up to 100 standard
deviations, or with deviations from 1e-4 to 1e4) and a program: one of programs/<kernel>.py, or Torch's own operators. One in 4
of those that have long sums has some of up to 131 072 terms. The seed and its number decide it.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import programs
from programs import of_formula

from fusebench import discovery, hard
from fusebench.cases import make_case
from fusebench.contract import DTYPES, MODES, PRECISIONS, Case, Device, Mathematics
from fusebench.dtypes import numpy_dtype
from fusebench.inputs import make_sets
from fusebench.parity.elements import spacing
from fusebench.parity.judge import Judge, Verdict
from fusebench.parity.rounding import FLUSHED

CPU = Device("cpu", "cpu")
LARGEST = 64  # of a dimension, unless the kernel's programs say otherwise
LONGEST, LONG_SHARE = 131_072, 1 / 4  # of the kernel's LONG dimension, and how many cells have a long one
LONG_ELEMENTS = 2**19  # of an input of such a cell: the longer its rows, the fewer
MOST_LAYERS, MOST_TERMS = (
    4,
    2**14,
)  # of a program made of a formula: of perceptrons, and what sums one by one has time for
FEW_TERMS = 1000  # a sum in lanes or pairwise errs about as a sequential one may
MEANS = (0, 1, 10, 100, 1000)  # of --table, in standard deviations


@dataclass(frozen=True)
class Result:
    """A judged cell: its number, what it was, and the verdict."""

    number: int
    case: Case
    program: str
    inputs: str
    verdict: Verdict

    @property
    def line(self) -> str:
        return f"cell {self.number}: {self.case.kernel}/{self.case.id} {self.program}, {self.inputs}"

    @property
    def terms(self) -> int:
        """Of the long sums, in kernels that have any."""
        return self.case.sizes.get(everything()[1][self.case.kernel].long, 0)

    @property
    def shares(self) -> tuple[float, float, float]:
        """How much of its limit each test used: the worst element, beyond its last rounding, the root mean square, the mean."""
        v = self.verdict
        low, high = v.mean_limits
        width, middle = (high - low) / 2, (high + low) / 2
        with np.errstate(invalid="ignore"):
            half = float(spacing(np.abs(v.expected) + v.budget, self.case.dtype)) / 2
        reach = v.budget - half
        if not reach > 1e-9 * half:  # nothing is rounded but the output: its elements are right or wrong
            return max(0.0, v.ratio - 1), 0.0, 0.0
        return (
            max(0.0, v.ratio * v.budget - half) / reach,
            v.rms / v.rms_limit if v.rms_limit else 0.0,
            abs(v.mean - middle) / width if width else 0.0,
        )


@cache
def everything() -> tuple[dict[str, discovery.Kernel], dict[str, programs.Programs]]:
    kernels = discovery.find_kernels([discovery.HOME])
    return kernels, programs.find(kernels)


def size(rng: np.random.Generator, largest: int) -> int:
    """1, a few, a multiple of 16, or anything; each of these often."""
    kind = rng.random()
    if kind < 0.1:
        return 1
    if kind < 0.25:
        return int(rng.integers(2, min(8, largest) + 1))
    if kind < 0.45:
        return min(largest, 16 * int(rng.integers(1, largest // 16 + 2)))
    return int(np.exp(rng.uniform(0, np.log(largest + 1))))


def draw_sizes(rng: np.random.Generator, kernel: discovery.Kernel, found: programs.Programs) -> dict[str, int]:
    largest = {d: found.largest.get(d, LARGEST) for d in kernel.dimensions}
    if not found.long or rng.random() >= LONG_SHARE:
        return {d: size(rng, most) for d, most in largest.items()}
    exponent = rng.uniform(np.log2(largest[found.long]), np.log2(LONGEST))
    long = int(2 ** (np.ceil(exponent) if rng.random() < 0.25 else exponent))  # one in 4 is a power of 2
    others = {d: size(rng, max(1, min(most, LONG_ELEMENTS // long))) for d, most in largest.items()}
    return {**others, found.long: long}


def draw_case(
    rng: np.random.Generator, kernel: discovery.Kernel, found: programs.Programs, mode: str = "forward"
) -> Case:
    return make_case(
        kernel,
        draw_sizes(rng, kernel, found),
        str(rng.choice(DTYPES)),
        str(rng.choice(PRECISIONS)),
        {name: str(rng.choice(values)) for name, values in kernel.options.items()},
        mode,
    )


def draw_inputs(rng: np.random.Generator, mathematics: Mathematics, case: Case) -> tuple[str, dict[str, np.ndarray]]:
    """What the inputs are, in words, and the inputs."""
    seed = int(rng.integers(2**31))
    kind = str(rng.choice(hard.kinds(mathematics, case))) if rng.random() < 0.4 else "plain"
    if kind != "plain":
        return kind, make_sets(mathematics, case, seed, 1, kind)[0]
    if rng.random() < 0.25:
        deviation = float(10 ** rng.uniform(-4, 4))
        return f"deviation {deviation:.3g}", scaled(
            mathematics, case, make_sets(mathematics, case, seed, 1)[0], deviation
        )
    mean = 0.0 if rng.random() < 0.4 else float(10 ** rng.uniform(-1, 2))
    return f"mean/std {mean:.3g}", moved(mathematics, case, make_sets(mathematics, case, seed, 1)[0], mean)


def moved(mathematics: Mathematics, case: Case, arrays: dict[str, np.ndarray], mean: float) -> dict[str, np.ndarray]:
    """The inputs that may have a large mean, moved by that many standard deviations."""
    may = mathematics.hard(case).get("large_mean", ()) if mathematics.hard else tuple(arrays)
    return {n: _moved(a, mean, case.dtype) if n in may and mean else a for n, a in arrays.items()}


def _moved(array: np.ndarray, mean: float, dtype: str) -> np.ndarray:
    if array.dtype != numpy_dtype(dtype) or not array.ndim:
        return array
    wide = array.astype(np.float32)
    finite = wide[np.isfinite(wide)]
    return (wide + mean * (finite.std() or 1.0)).astype(array.dtype) if finite.size else array


def scaled(
    mathematics: Mathematics, case: Case, arrays: dict[str, np.ndarray], deviation: float
) -> dict[str, np.ndarray]:
    """The inputs with the first one that may be as small as can be of another standard deviation: logits, or what is multiplied."""
    may = mathematics.hard(case).get("subnormal", ()) if mathematics.hard else tuple(arrays)
    return {n: _scaled(a, deviation, case.dtype) if n in may[:1] else a for n, a in arrays.items()}


def _scaled(array: np.ndarray, deviation: float, dtype: str) -> np.ndarray:
    if array.dtype != numpy_dtype(dtype) or not array.ndim:
        return array
    wide = array.astype(np.float32)
    finite = wide[np.isfinite(wide)]
    with np.errstate(over="ignore"):
        return (wide * (deviation / ((finite.std() if finite.size else 0.0) or 1.0))).astype(array.dtype)


def draw_kernel(rng: np.random.Generator) -> tuple[discovery.Kernel, Case]:
    """A kernel and a case of it that some program computes: dlrm_train has none in float16."""
    kernels, found = everything()
    while True:
        kernel = kernels[str(rng.choice(sorted(found), p=_weights(found)))]
        case = draw_case(rng, kernel, found[kernel.name])
        if candidates(kernel, case):
            return kernel, case


def candidates(kernel: discovery.Kernel, case: Case, inputs: str = "") -> dict[str, programs.Program]:
    """The correct programs for the case, those of Torch among them where it is installed."""
    found = {n: p for n, p in everything()[1][kernel.name].correct.items() if p.where(case)}
    if inputs == "inf" and case.options.get("activation") == "gelu_erf":
        return found  # Torch's GELU of inf is NaN on CPUs with AVX-512 (2.13): not a correct program
    if inputs in hard.OPEN_IN_GRADIENTS and case.dtype != "float32" and "tf32" in kernel.mathematics.precisions:
        return found  # nor are oneDNN's products of 16 bits, which on some CPUs let NaN, inf and overflows reach other rows (Torch 2.11)
    if importlib.util.find_spec("torch") and (eager := kernel.implementations.get("torch_eager")):
        module = discovery.load_implementation(kernel.name, "torch_eager")
        skip = getattr(module, "skip", lambda *_: None)
        # oneDNN multiplies bfloat16 by instructions (AVX512_BF16) that flush subnormals
        flushed = (FLUSHED,) if case.dtype == "bfloat16" else ()
        found |= {
            f"torch_eager:{variant}": programs.Program(_torch(module, variant), (*points, *flushed))
            for variant, points in eager.variants.items()
            if not skip(case, variant, CPU)
        }
    return found


def _torch(module: Any, variant: str) -> programs.Run:
    def run(case: Case, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        import torch

        from fusebench.backends import torch as backend

        torch.set_num_threads(1)
        tensors = [backend.put(a.copy(), CPU) for a in arrays]
        prepared = module.prepare(case, variant, *tensors) if hasattr(module, "prepare") else ()
        outputs = module.build(case, variant, CPU)(*tensors, *prepared)
        return tuple(backend.get(o) for o in (outputs if isinstance(outputs, tuple) else (outputs,)))

    return run


def judge(number: int, seed: int = 0) -> Result:
    """The cell of that number."""
    rng = np.random.default_rng([seed, number])
    kernel, case = draw_kernel(rng)
    inputs, arrays = draw_inputs(rng, kernel.mathematics, case)
    programs_ = candidates(kernel, case, inputs)
    name = str(rng.choice(sorted(programs_)))
    outputs = programs.run(programs_[name].run, case, arrays)
    verdict = Judge(kernel.mathematics, case, arrays, seed, kind=inputs if inputs in hard.KINDS else "plain").judge(
        outputs, programs_[name].points
    )
    return Result(number, case, name, inputs, verdict)


def judge_formula(number: int, seed: int = 0) -> Result:
    """The cell of that number in any mode, of a program made of the formula."""
    rng = np.random.default_rng([seed, number, 1])
    kernels, found = everything()
    while True:
        kernel, mode = kernels[str(rng.choice(sorted(found)))], str(rng.choice(MODES))
        if mode == "forward" or kernel.mathematics.gradient is not None:
            case = draw_case(rng, kernel, found[kernel.name], mode)
            if case.sizes.get("LAYERS", 1) <= MOST_LAYERS and max(case.sizes.values()) <= MOST_TERMS:
                break
    inputs, arrays = draw_inputs(rng, kernel.mathematics, case)
    judge = Judge(kernel.mathematics, case, arrays, seed, kind=inputs if inputs in hard.KINDS else "plain")
    order = of_formula.draw(rng, judge)
    return Result(number, case, order.name, inputs, judge.judge(of_formula.run(order, judge), order.points))


def enlarged(number: int, seed: int, times: float) -> tuple[int, int, bool] | None:
    """The terms of the long sums of the cell of that number, its elements, and whether it is rejected with its errors multiplied; None for another one than
    IEEE float32 on plain inputs, of which the judge sees all, and for one without errors."""
    rng = np.random.default_rng([seed, number])
    kernel, case = draw_kernel(rng)
    if case.dtype != "float32" or case.precision != "ieee":
        return None
    arrays = make_sets(kernel.mathematics, case, number, 1)[0]
    programs_ = candidates(kernel, case)
    program = programs_[str(rng.choice(sorted(programs_)))]
    judge = Judge(kernel.mathematics, case, arrays, seed)
    if judge.partial:
        return None
    outputs = programs.run(program.run, case, arrays)
    errors = [o.astype(np.float64) - exact for o, exact in zip(outputs, judge.reference(), strict=True)]
    if not any((np.isfinite(e) & (e != 0)).any() for e in errors):
        return None
    larger = [
        np.where(np.isfinite(e), exact + times * e, o).astype(np.float32)
        for o, e, exact in zip(outputs, errors, judge.reference(), strict=True)
    ]
    terms = case.sizes.get(everything()[1][kernel.name].long, 0)
    return terms, sum(o.size for o in outputs), not judge.judge(larger, program.points).ok


def report_enlarged(asked: argparse.Namespace) -> str:
    """The share of cells that is rejected with larger errors, of outputs of any size and of large ones."""
    with _processes(asked.processes) as pool:
        found = [f for f in pool.starmap(enlarged, ((n, asked.seed, asked.times) for n in range(asked.cells)), 25) if f]
    lines = []
    for least, terms in ((1, LONGEST), (1000, LONGEST), (1000, FEW_TERMS)):
        rejected = [r for most, size, r in found if size >= least and most <= terms]
        lines.append(
            f"{least} elements or more, sums of up to {terms} terms: {sum(rejected)} of {len(rejected)} rejected with "
            f"{asked.times:g} times the error"
        )
    return "\n".join(lines)


def _weights(found: dict[str, programs.Programs]) -> np.ndarray:
    """Kernels with more programs are drawn more often."""
    counts = np.sqrt([len(found[name].correct) for name in sorted(found)])
    return counts / counts.sum()


def judge_all(
    numbers: Iterable[int], seed: int, processes: int, one: Callable[[int, int], Result] = judge
) -> Iterator[Result]:
    with _processes(processes) as pool:
        yield from pool.imap(_of, ((one, n, seed) for n in numbers), chunksize=25)


def _processes(count: int) -> Any:
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")  # of the processes that follow
    return multiprocessing.get_context("spawn").Pool(count)


def _of(asked: tuple[Callable[[int, int], Result], int, int]) -> Result:
    one, number, seed = asked
    return one(number, seed)


def report(results: list[Result]) -> str:
    """Counts, alarms, and the quantiles of how much of each limit was used."""
    alarms = [r for r in results if not r.verdict.ok]
    lines = [f"{r.line}\n    {r.verdict.reason()}" for r in alarms]
    counts = Counter(r.case.kernel for r in results)
    lines.append(", ".join(f"{kernel} {count}" for kernel, count in sorted(counts.items())))
    shares = np.array([r.shares for r in results if np.isfinite(r.shares).all()])
    is_32 = np.array([r.case.dtype == "float32" for r in results if np.isfinite(r.shares).all()], bool)
    lines.append(f"{'share of the limit used':36}   median     99 %   99.9 %  largest")
    for bits, chosen in (("float32", shares[is_32]), ("16 bits", shares[~is_32])) if len(shares) else ():
        if not len(chosen):
            continue
        for name, column in zip(("worst element", "root mean square", "mean"), chosen.T, strict=True):
            quantiles = np.quantile(column, [0.5, 0.99, 0.999, 1])
            lines.append(f"{f'{bits}, {name}':36}" + "".join(f"{q:9.3f}" for q in quantiles))
    terms = [r.terms for r in results]
    lines.append(f"{sum(t > 4096 for t in terms)} cells with sums of more than 4096 terms, of up to {max(terms)}")
    nearest = sorted((r for r in results if r.verdict.ok), key=lambda r: -max(r.shares))[:5]
    lines += ["nearest to an alarm:", *(f"  {max(r.shares):.3f} {r.line}" for r in nearest)]
    different = len({(r.case.kernel, r.case.id, r.program, r.inputs) for r in results})
    lines.append(f"{len(results)} cells ({different} different), {len(alarms)} false alarms")
    return "\n".join(lines)


def table(seed: int) -> Iterator[str]:
    """The worst error of each kernel's correct programs by the mean of its inputs, in spacings of the reference and in
    budgets: at 1000 standard deviations inputs of 16 bits have little left to compute with."""
    yield f"{'kernel':18}{'dtype':10}" + "".join(f"{f'mean/std {m}':>22}" for m in MEANS)
    kernels, found = everything()
    for name in found:
        kernel = kernels[name]
        sizes = {d: min(found[name].largest.get(d, LARGEST), 61) for d in kernel.dimensions}
        for dtype in DTYPES:
            case = make_case(kernel, sizes, dtype)
            plain = make_sets(kernel.mathematics, case, seed, 1)[0]
            shown = []
            for mean in MEANS:
                arrays = moved(kernel.mathematics, case, plain, mean)
                judge = Judge(kernel.mathematics, case, arrays, seed)
                verdicts = [
                    judge.judge(programs.run(p.run, case, arrays), p.points) for p in candidates(kernel, case).values()
                ]
                worst = max(verdicts, key=lambda v: v.max_abs)
                shown.append(f"{worst.max_abs:.1e} ({max(v.ratio for v in verdicts):.2f})")
            yield f"{name:18}{dtype:10}" + "".join(f"{s:>22}" for s in shown)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cell", type=int, help="the number of one cell to judge again")
    parser.add_argument("--formula", action="store_true", help="of all modes, of programs made of the formula")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--times", type=float, help="judge float32 cells with their errors multiplied")
    parser.add_argument("--table", action="store_true", help="largest error (and ÷ budget) by mean/std")
    asked = parser.parse_args()
    if asked.table:
        for line in table(asked.seed):
            print(line, flush=True)
        return 0
    if asked.times:
        print(report_enlarged(asked))
        return 0
    began = time.monotonic()
    numbers = [asked.cell] if asked.cell is not None else range(asked.first, asked.first + asked.cells)
    results = list(judge_all(numbers, asked.seed, asked.processes, judge_formula if asked.formula else judge))
    print(f"{report(results)}, {time.monotonic() - began:.0f} s")
    return 1 if any(not r.verdict.ok for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
