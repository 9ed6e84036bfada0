"""Strategies on recorded grids: what they find with how many evaluations. No process and no clock.

A grid is what `fusebench tune strategy=grid out=FILE.json` writes; those in fixtures/grids are recorded. Beside them stand three that a
model of tiles gives, over the tunables of real kernels and what of them fits on an H200.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from functools import cache

import pytest
from conftest import FIXTURES

from fusebench import discovery
from fusebench.cases import make_case
from fusebench.contract import Device
from fusebench.tuning import strategies
from fusebench.workers import configs, protocol

H200 = Device("cuda", "sm_90", (9, 0), 132)
MODELLED = {
    "lola": ("multirow_ws", "batch", ("M", "K", "N")),
    "geglu": ("two_accumulators", "batch", ("M", "K", "N")),
    "splacc": ("interleaved", "batch", ("M", "K", "N")),
}
RECORDED = sorted((FIXTURES / "grids").glob("*.json"))
SEEDS = range(5)


def modelled_seconds(config, M, K, N, seed):
    """A product by tiles: waves of programs, operands from L2, latency that stages and warps hide, spills of tiles too large for
    their warps, and up to 4 % of what no model knows. A constant of the config, so that the grid has one best time."""
    m, n, k, warps, stages = (config[x] for x in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"))
    programs = math.ceil(M / m) * math.ceil(N / n)
    resident = max(1, min(4, 227 * 1024 // ((m + n) * k * 2 * stages + 8192), 2048 // (32 * warps)))
    waves = math.ceil(programs / (132 * resident)) * resident
    steps = math.ceil(K / k)
    flops = m * n * k * 2 / (7.5e12 * min(1, m / 64, (n / 128) ** 0.5))
    loads = (m + n) * k * 2 / (36e9 * (1 + 0.05 * math.log2(config["GROUP"])))
    latency = 6e-7 / (stages * min(2, resident) * (1 + 0.3 * (warps == 8)))
    spill = 1 + max(0, m * n / (32 * warps) / 128 - 1)
    noise = 1 + 0.04 * random.Random(f"{sorted(config.items())} {seed}").random()
    return (4e-6 + waves * steps * max(flops, loads, latency) * spill) * noise


@cache
def grid_of(name):
    """(space, default, {key: seconds or None}) of a modelled kernel or a recorded file."""
    if name in MODELLED:
        variant, case, dimensions = MODELLED[name]
        kernel = discovery.find_kernels(discovery.roots_of())[name]
        module = discovery.load_implementation(name, "triton")
        implementation = kernel.implementations["triton"]
        made = make_case(kernel, case, "float16")
        asked = protocol.AskFits(made, "triton", variant, implementation.tunables[variant], 10**6)
        answer = configs.fitting(module, implementation, asked, H200)
        times = {strategies.key(c): modelled_seconds(c, *made.size(*dimensions), name) for c in answer.fitting}
        return answer.space, answer.default, times
    rows = json.loads((FIXTURES / "grids" / f"{name}.json").read_text())
    configs_of = [{k.removeprefix("config."): v for k, v in row.items() if k.startswith("config.")} for row in rows]
    space = {n: tuple(dict.fromkeys(c[n] for c in configs_of)) for n in configs_of[0]}
    default = next(c for c, row in zip(configs_of, rows, strict=True) if row["is_default"])
    tried = zip(configs_of, rows, strict=True)
    return space, default, {strategies.key(c): row["time_s"] for c, row in tried if row["tried"]}


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


@pytest.mark.parametrize(
    ("name", "seed"), [*itertools.product([*MODELLED, *(f.stem for f in RECORDED)], SEEDS)], ids=lambda v: str(v)
)
def test_optuna_reaches_95_percent_of_the_best_with_a_tenth_of_the_grid(name, seed):
    pytest.importorskip("optuna")
    times = grid_of(name)[2]
    found, count = best_of(optuna(name, seed), times, len(times) // 10)
    assert count <= len(times) / 10 and found <= min(filter(None, times.values())) / 0.95


@pytest.mark.parametrize("name", MODELLED)
def test_what_is_simulated_is_no_easy_ground(name):
    times = sorted(filter(None, grid_of(name)[2].values()))
    good = sum(t <= times[0] / 0.95 for t in times)
    assert len(times) > 300 and good <= len(times) // 50, "few are good"


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
