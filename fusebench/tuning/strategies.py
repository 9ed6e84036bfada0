"""In which order configs are tried. A strategy is a generator: it yields a config, and is sent its seconds, None where it has no time.

It is a function of its arguments and of what it is sent: a search that goes on is the same search, with what is on record for answers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from fusebench.contract import Tunable
from fusebench.errors import UsageError
from fusebench.tuning import surrogate

NAMES = ("grid", "random", "optuna")
Config = Mapping[str, Tunable]
Key = tuple[tuple[str, Tunable], ...]
Strategy = Generator[Config, float | None, None]
STARTUP = 8  # random configs before the samplers have something to go by
TPE_EVERY = 5  # proposals, of which one is the TPE sampler's
MOST_REPEATS = 20  # known or unfit configs in a row, after which one is drawn from those that are left


def key(config: Config) -> Key:
    """What tells configs apart."""
    return tuple(sorted(config.items()))


def grid(fitting: Sequence[Config]) -> Strategy:
    """All of them, in order."""
    for config in fitting:  # noqa: UP028 (a list takes no answers)
        yield config


def shuffled(fitting: Sequence[Config], seed: int) -> Strategy:
    """All of them, in an order drawn by the seed."""
    yield from grid(random.Random(seed).sample(fitting, len(fitting)))


def after(first: Config, then: Strategy) -> Strategy:
    """A config, and then what the strategy chooses, which may be the same."""
    yield first
    yield from then


def optuna(
    space: Mapping[str, Sequence[Tunable]], fitting: Sequence[Config], fits: Callable[[Config], bool], default: Config, seed: int
) -> Strategy:  # fmt: skip
    """Configs that an Optuna study proposes: drawn ones first, then four in five by a Gaussian process over those that fit
    (surrogate.py), one by the TPE sampler; those that do not fit are left out, each is proposed once. It ends when all `fitting` were.

    Values are proposed by their place in the space, which is their order, and judged by the logarithm of the time.
    Raises UsageError where Optuna is missing.
    """
    library = load_optuna()
    sampler = library.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP, multivariate=True, group=False)
    study = library.create_study(sampler=sampler)
    order = random.Random(seed).sample(fitting, len(fitting))
    rows = {key(config): row for row, config in enumerate(order)}
    left, model = dict.fromkeys(rows), surrogate.over(space, order)
    answers: dict[Key, float | None] = {}
    sides = {name: len(values) for name, values in space.items()}

    def enqueue(config: Config) -> None:
        if all(config.get(name) in values for name, values in space.items()):
            study.enqueue_trial({name: list(values).index(config[name]) for name, values in space.items()})

    enqueue(default)
    repeats = 0
    while left:
        times = {rows[asked]: seconds for asked, seconds in answers.items() if seconds is not None and asked in rows}
        if repeats >= MOST_REPEATS:
            enqueue(order[rows[next(iter(left))]])
        elif len(answers) >= STARTUP and len(answers) % TPE_EVERY and len(times) > 1:
            enqueue(order[model.next(times, [rows[asked] for asked in left])])
        trial = study.ask()
        places = {name: trial.suggest_int(name, 0, side - 1) for name, side in sides.items()}
        config = {**default, **{name: space[name][place] for name, place in places.items()}}
        asked = key(config)
        new = asked not in answers
        if new:
            left.pop(asked, None)
            answers[asked] = (yield config) if fits(config) else None
            new = fits(config)
        seconds = answers[asked]
        repeats = 0 if new else repeats + 1
        if seconds is None:
            study.tell(trial, state=library.trial.TrialState.PRUNED)
        else:
            study.tell(trial, math.log(seconds))


def load_optuna() -> Any:
    """Optuna, silent. Raises UsageError where it is missing."""
    import warnings

    try:
        import optuna as library
    except ImportError as error:
        raise UsageError(
            "strategy=optuna needs optuna: pip install optuna, or the extra tune of fusebench; "
            "strategy=random and strategy=grid work without"
        ) from error
    library.logging.set_verbosity(library.logging.ERROR)
    warnings.filterwarnings("ignore", category=library.exceptions.ExperimentalWarning)
    return library


def search(
    strategy: Strategy, known: MutableMapping[Key, float | None], run: Callable[[Config], float | None], trials: int
) -> Iterator[Config]:
    """Has the strategy's configs run, as many as `trials`, and yields each that was run. What is `known` already counts and is not
    run again; what is run becomes known."""
    proposed: set[Key] = set()
    try:
        config = next(strategy)
        while True:
            if key(config) not in proposed and len(proposed) >= trials:
                return
            proposed.add(key(config))
            if key(config) not in known:
                known[key(config)] = run(config)
                yield config
            config = strategy.send(known[key(config)])
    except StopIteration:
        return
