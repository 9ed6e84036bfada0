"""Strategies on recorded grids: what they find with how many evaluations. No process and no clock.

fixtures/grids has what `fusebench tune strategy=grid` measured: of each config its tunables, the time in µs and its status, the default
first.
"""

from __future__ import annotations

import csv
import itertools
import random
from functools import cache

import pytest
from conftest import FIXTURES

from fusebench.tuning import strategies, surrogate

RECORDED = sorted(file.stem for file in (FIXTURES / "grids").glob("*.csv"))
SEEDS = range(5)


@cache
def grid_of(name):
    """(space, default, {key: µs or None}) of a recorded grid."""
    _, *lines = (FIXTURES / "grids" / f"{name}.csv").read_text().splitlines()
    times = {}
    for row in csv.DictReader(lines):
        us, _ = row.pop("us"), row.pop("status")
        times[strategies.key({n: int(v) for n, v in row.items()})] = float(us) if us else None
    default = dict(next(iter(times)))
    return {n: tuple(sorted({dict(k)[n] for k in times})) for n in default}, default, times


def best_of(strategy, times, trials):
    """The best time that a search finds, and how many configs it ran."""
    asked = []
    for config in strategies.search(strategy, {}, lambda c: times[strategies.key(c)], trials):
        asked.append(strategies.key(config))
    assert len(set(asked)) == len(asked), "none is run twice"
    return min(filter(None, map(times.get, asked))), len(asked)


def optuna(name, seed):
    space, default, times = grid_of(name)
    fitting = [dict(key) for key in times]
    chosen = strategies.optuna(space, fitting, lambda c: strategies.key(c) in times, default, seed)
    return strategies.after(default, chosen)


@pytest.mark.parametrize(("name", "seed"), [*itertools.product(RECORDED, SEEDS)], ids=str)
def test_optuna_reaches_95_percent_of_the_best_with_a_tenth_of_the_grid(name, seed):
    pytest.importorskip("optuna")
    times = grid_of(name)[2]
    found, count = best_of(optuna(name, seed), times, len(times) // 10)
    assert count <= len(times) / 10 and found <= min(filter(None, times.values())) / 0.95


@pytest.mark.parametrize("name", RECORDED)
def test_what_is_simulated_is_no_easy_ground(name):
    times = sorted(filter(None, grid_of(name)[2].values()))
    good = sum(t <= times[0] / 0.95 for t in times)
    assert len(RECORDED) >= 3 and len(times) > 200 and good <= len(times) // 50, "few are good"


def test_the_surrogate_looks_where_its_times_point():
    space = {"x": tuple(range(9)), "y": tuple(range(9))}
    configs = [{"x": x, "y": y} for x in range(9) for y in range(9)]
    model = surrogate.over(space, configs)
    times = {row: 1.0 + (c["x"] - 6) ** 2 + (c["y"] - 2) ** 2 for row, c in enumerate(configs)}
    known = {row: times[row] for row in random.Random(0).sample(range(81), 10)}
    for _ in range(8):
        row = model.next(known, [row for row in times if row not in known])
        known[row] = times[row]
    assert min(known.values()) == 1.0


def test_of_many_times_the_surrogate_is_fitted_to_the_fastest(monkeypatch):
    model = surrogate.over({"x": tuple(range(20))}, [{"x": x} for x in range(20)])
    times = {x: 1.0 + abs(x - 13) for x in range(0, 20, 2)}
    fastest = {x: times[x] for x in sorted(times, key=times.__getitem__)[:4]}
    left = list(range(1, 20, 2))
    alone = model.next(fastest, left)
    assert alone == 13 != model.next(dict(sorted(times.items(), key=lambda one: -one[1])[:4]), left)
    monkeypatch.setattr(surrogate, "MOST", 4)
    assert model.next(times, left) == alone


def test_optuna_ends_when_all_that_fit_were_tried():
    pytest.importorskip("optuna")
    space, default = {"x": (1, 2, 3), "how": ("a", "b")}, {"x": 1, "how": "a"}
    fitting = [{"x": x, "how": how} for x in (1, 2, 3) for how in "ab" if (x, how) != (3, "b")]
    times = {strategies.key(c): None if c["x"] == 2 else float(c["x"]) for c in fitting}
    chosen = strategies.optuna(space, fitting, lambda c: strategies.key(c) in times, default, 0)
    assert best_of(chosen, times, 1000) == (1.0, 5)


def test_the_same_seed_asks_the_same_and_another_does_not():
    fitting = [{"x": x} for x in range(100)]
    draws = [list(strategies.shuffled(fitting, seed)) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2] and sorted(c["x"] for c in draws[0]) == list(range(100))


def test_what_is_known_counts_as_a_trial_and_is_not_run():
    fitting = [{"x": x} for x in range(10)]
    known = {strategies.key({"x": x}): 1.0 for x in (0, 1, 2)}
    ran = [c["x"] for c in strategies.search(strategies.grid(fitting), known, lambda c: 1.0, 5)]
    assert ran == [3, 4]
