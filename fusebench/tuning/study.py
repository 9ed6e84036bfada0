"""One tuned cell: its space, which configs of it fit, and the search, each config a cell of its own on the path of every run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fusebench.cell import Trial
from fusebench.contract import Cell, Device, Tunable
from fusebench.discovery import Implementation, Kernel
from fusebench.errors import UsageError
from fusebench.inspection.targets import Target
from fusebench.records.record import Record
from fusebench.run import ended, one_case
from fusebench.settings import Run
from fusebench.tuning import ahead, strategies
from fusebench.tuning.strategies import Config, Key
from fusebench.workers import protocol
from fusebench.workers.pool import Pool, WorkerLost

MOST = 50_000  # configs that are looked at one by one: of a larger space so many are drawn
SHARE = 10  # of the fitting configs, the one in so many that random and optuna try without trials=
FEWEST = 20


@dataclass(frozen=True)
class Study:
    """A cell whose tunables are varied: `cell` has none set, `space` the values of each."""

    cell: Cell
    space: Mapping[str, tuple[Tunable, ...]]

    @property
    def name(self) -> str:
        return f"{self.cell.case.kernel} {self.cell.case.id} {self.cell.label}"

    def with_config(self, config: Config) -> Cell:
        return replace(self.cell, config=dict(sorted(config.items())))

    def has(self, cell: Cell) -> bool:
        """Whether a cell is one of this study."""
        return replace(cell, config={}) == self.cell


@dataclass(frozen=True)
class Search:
    """How studies search: the strategy by its name, how many configs at the most (None: all of a grid, else one in ten), the
    seed of what is drawn, and whether configs have to fit."""

    strategy: str
    trials: int | None
    seed: int
    fits: bool = True

    def candidates(self, fits: protocol.Fits) -> Sequence[Config]:
        """The configs that may be tried: those that do not fit, if at all, behind the others."""
        return fits.fitting if self.fits else (*fits.fitting, *(config for config, _ in fits.misfits))

    def budget(self, fits: protocol.Fits) -> int:
        """How many configs are tried: the candidates, and the default, which `config.NAME=` may have left out of the space."""
        candidates = self.candidates(fits)
        there = len(candidates) + (fits.default not in candidates)
        if self.trials is not None:
            return min(self.trials, there)
        return there if self.strategy == "grid" else min(there, max(FEWEST, len(candidates) // SHARE))


@dataclass
class Found:
    """What a study came to: which configs fit, and the records of those that ran. `refusal` says why none was tried."""

    study: Study
    fits: protocol.Fits | None = None
    refusal: str = ""
    records: dict[Key, Record] = field(default_factory=dict)

    @property
    def untried(self) -> list[tuple[Config, str]]:
        """The configs that do not fit and were not tried, with the reason."""
        misfits = self.fits.misfits if self.fits else ()
        return [(config, reason) for config, reason in misfits if strategies.key(config) not in self.records]

    def misfit(self, config: Config) -> str:
        """Why a config does not fit, "" where it does."""
        return next((reason for one, reason in self.fits.misfits if one == config), "") if self.fits else ""

    @property
    def default(self) -> Config:
        assert self.fits
        return self.fits.default

    @property
    def ranked(self) -> list[Record]:
        """Those that have a time, the fastest first."""
        return sorted((r for r in self.records.values() if seconds(r) is not None), key=lambda r: seconds(r) or 0.0)


def studies(kernels: Mapping[str, Kernel], cells: Sequence[Cell]) -> list[Study]:
    """The studies of a request: cells that differ in their configs alone are one, whose space has the values that were set, and all
    of TUNABLES for what was not. Variants without tunables are left out. Raises UsageError where none has any."""
    grouped: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        grouped.setdefault((cell.case.kernel, replace(cell, config={}).id), []).append(cell)
    found = []
    for own in grouped.values():
        cell = replace(own[0], config={})
        tunables = kernels[cell.case.kernel].implementations[cell.implementation].tunables.get(cell.variant, {})
        if not tunables:  # another variant of the implementation may have some
            continue
        asked = {name: tuple(dict.fromkeys(c.config[name] for c in own)) for name in own[0].config}
        found.append(Study(cell, {**tunables, **asked}))
    if not found:
        names = ", ".join(dict.fromkeys(f"{cell.case.kernel} {replace(cell, config={}).label}" for cell in cells))
        raise UsageError(f"{names}: no TUNABLES, so nothing to tune; fusebench list kernel={cells[0].case.kernel} shows who has some")  # fmt: skip
    return found


def implementation_of(this: Run, study: Study) -> Implementation:
    return this.kernels[study.cell.case.kernel].implementations[study.cell.implementation]


def seconds(record: Record) -> float | None:
    """The time of a config, None where it has none that counts."""
    return record.timing.median if record.status == "ok" and record.timing else None


def ask_fits(this: Run, pool: Pool, study: Study, search: Search, device: Device | None = None) -> protocol.Fits | str:
    """Which configs of a study fit, in one message; or why none can. `device` is another than the worker's."""
    trial = Trial(this, study.cell)
    if trial.interpreted and not device:
        return f"{trial.implementation.without_gpu} on the CPU, never timed: tuning needs an NVIDIA GPU; dry_run=true shows how many configs fit"
    if refusal := trial.implementation.broken or (trial.skip_reason_anywhere() if device else trial.skip_reason()):
        return refusal
    asked = _question(study, study.space, search.seed, device)
    try:
        answer = pool.get(*trial.worker_key).ask(asked, protocol.Fits, this.settings.timeout_s)
    except WorkerLost as lost:
        pool.drop(*trial.worker_key)
        return lost.reason
    if isinstance(answer, protocol.Refused):
        return answer.reason
    if not search.candidates(answer):
        return f"none of {len(answer.misfits)} configs fits: {answer.misfits[0][1]}, as the first one; config.X= sets other values"
    if search.strategy == "grid" and answer.total > MOST and search.trials is None:
        return f"{answer.total} configs, too many for strategy=grid: strategy=optuna or random tries some, config.X= sets tunables"
    return answer


def _question(
    study: Study, space: Mapping[str, tuple[Tunable, ...]], seed: int, device: Device | None = None
) -> protocol.AskFits:
    return protocol.AskFits(
        study.cell.case, study.cell.implementation, study.cell.variant, space, MOST, seed, device
    )  # fmt: skip


def compile_ahead(
    this: Run, pool: Pool, found: Sequence[Found], search: Search, jobs: int, target: Target | None = None
) -> Iterator[ahead.Compilation]:
    """Compiles what the searches of some studies are going to try, as far as that is known, `jobs` configs at a time, and yields what
    became of each. One that does not compile is a record then. For a `target` that is not this machine's device each is one: nothing
    will run.

    Raises StorageError where the disk takes no more.
    """
    own: dict[str, tuple[Found, Cell]] = {}
    where = target
    for one in found:
        if jobs and one.fits and ahead.possible(implementation_of(this, one.study), one.fits):
            where = where or ahead.target_of(one.fits.device)
            for config in _planned(one, search, jobs):
                if strategies.key(config) not in one.records:
                    cell = one.study.with_config(config)
                    own[cell.id] = one, cell
    if not own or not where:
        return
    for outcome in ahead.compile_all(this, pool, [cell for _, cell in own.values()], where, jobs):
        status, reason, cell = outcome.status, outcome.reason, outcome.cell
        if target and outcome.status == "ok":
            status, reason = "skipped", f"compiled for {target.arch} in {outcome.seconds:.2f} s: arch= runs nothing"
        if status != "ok":
            own[cell.id][0].records[strategies.key(cell.config)] = ended(this, cell, status, reason, outcome.traceback)
        yield outcome


def _planned(found: Found, search: Search, jobs: int) -> Sequence[Config]:
    """The configs that a search tries. Of Optuna nobody knows: all candidates, where `jobs` processes compile them in the time in which one
    compiles those that are tried."""
    assert found.fits
    candidates, budget = search.candidates(found.fits), search.budget(found.fits)
    if search.strategy == "optuna":
        return candidates if len(candidates) <= jobs * budget else ()
    order = candidates if search.strategy == "grid" else list(strategies.shuffled(candidates, search.seed))
    first = {strategies.key(config): config for config in itertools.chain([found.default], order)}
    return list(itertools.islice(first.values(), budget))


def run(this: Run, pool: Pool, found: Found, search: Search) -> Iterator[Record]:
    """Tries the default and then what the strategy chooses, in `found`, whose records so far are not run again. Yields each record once
    it is on disk. Raises StorageError where the disk takes no more."""
    assert found.fits
    known = {key: seconds(record) for key, record in found.records.items()}
    with one_case(this, found.study.cell, pool) as run_cell:

        def evaluate(config: Config) -> float | None:
            record = run_cell(found.study.with_config(config))
            found.records[strategies.key(config)] = record
            return seconds(record)

        strategy = strategies.after(found.default, _strategy(this, pool, found, search))
        for config in strategies.search(strategy, known, evaluate, search.budget(found.fits)):
            yield found.records[strategies.key(config)]


def _strategy(this: Run, pool: Pool, found: Found, search: Search) -> strategies.Strategy:
    fits = found.fits
    assert fits
    candidates = search.candidates(fits)
    if search.strategy == "grid":
        return strategies.grid(candidates)
    if search.strategy == "random":
        return strategies.shuffled(candidates, search.seed)
    known = {strategies.key(config): True for config in fits.fitting}
    known |= {strategies.key(config): False for config, _ in fits.misfits}

    def does_fit(config: Config) -> bool:
        key = strategies.key(config)
        if not search.fits:
            return True
        if key not in known:  # of a space of which only some were drawn
            one = _question(found.study, {name: (config[name],) for name in fits.space}, 0)
            worker_key = Trial(this, found.study.cell).worker_key
            try:
                answer = pool.get(*worker_key).ask(one, protocol.Fits, this.settings.timeout_s)
            except WorkerLost:
                pool.drop(*worker_key)
                return False
            known[key] = isinstance(answer, protocol.Fits) and bool(answer.fitting)
        return known[key]

    return strategies.optuna(fits.space, candidates, does_fit, found.default, search.seed)
