"""The request of a job: built once, where the job is submitted, and the same after a journey to where it runs."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from conftest import FIXTURES
from samples import untimed

from fusebench import cases, discovery
from fusebench.cli import main
from fusebench.commands import app, compare
from fusebench.configuration import jobs, request, schema
from fusebench.configuration.request import Requests
from fusebench.errors import UsageError
from fusebench.records import store

ROOT = FIXTURES / "tunables"
KERNELS = discovery.find_kernels([FIXTURES / "kernels", ROOT])
WORDS = [
    "kernel=double",
    "implementation=[torch_chunked,torch_eager]",
    "case=odd",
    "dtype=all",
    "seed=[0,3]",
    "config.CHUNK=7",
]


@pytest.fixture(autouse=True)
def known(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(discovery, "find_kernels", lambda roots, broken=None: KERNELS)


@pytest.fixture
def selections(monkeypatch):
    """The configurations whose cells were selected."""
    seen, select = [], cases.select_cells
    monkeypatch.setattr(cases, "select_cells", lambda kernels, chosen: seen.append(chosen) or select(kernels, chosen))
    return seen


def built(*words, command="bench"):
    schema.register(command, KERNELS)
    return request.build(command, [ROOT], jobs.compose_job(command, words), KERNELS)


def test_a_request_has_the_cells_of_its_configuration():
    asked = built(*WORDS)
    assert list(asked.cells) == cases.select_cells(KERNELS, asked.chosen) and len(asked.cells) > 10
    assert (asked.command, asked.roots, asked.retry) == ("bench", (str(ROOT),), ())
    assert built("kernel=double", "retry=[crashed,wrong]").retry == ("crashed", "wrong")
    with pytest.raises(UsageError, match="unknown kernel 'nosuch'"):
        built("kernel=nosuch")


@pytest.mark.parametrize("command", ["bench", "parity"])
def test_a_request_is_the_same_after_a_journey(command):
    asked = built(*WORDS, command=command)
    for there in (pickle.loads(pickle.dumps(asked)), request.decode(request.encode(asked))):
        assert there == asked and [c.id for c in there.cells] == [c.id for c in asked.cells]


@pytest.mark.parametrize("command", ["bench", "parity"])
@pytest.mark.parametrize(
    ("words", "count"), [([], 1), (["seed=1,2,3", "-m"], 3), (["shape.N=range(1,4)", "worker=inline,process", "-m"], 6)]
)
def test_the_cells_of_a_job_are_selected_once(monkeypatch, selections, command, words, count):
    ran = []

    def run(this, cells):
        ran.append([cell.id for cell in cells])
        for cell in cells:
            record = untimed(cell.label, of=cell.case, seed=cell.seed)
            store.append(this.folder, record)
            yield record

    monkeypatch.setattr(app, "run", run)
    assert main([command, "kernel=double", "implementation=torch_eager:plus", "device=cpu", *words]) == 0
    assert len(selections) == len(ran) == count and all(len(cells) == 1 for cells in ran)


def test_the_cells_of_both_sides_of_a_comparison_are_selected_once(monkeypatch, selections):
    compared = []
    monkeypatch.setattr(compare, "_measure", lambda sources, plan, home: compared.append(plan) or 0)
    words = ["compare", "torch_eager:plus", "torch_eager:times", "kernel=double", "device=cpu", "seed=1,2", "-m"]
    assert main(words) == 0
    assert [plan.matches[0].cells[0].seed for plan in compared] == [1, 2] and len(selections) == 2 * 2


def test_a_job_that_was_not_foreseen_has_its_request_built_when_it_begins():
    seen = []
    requests = Requests(lambda chosen: seen.append(chosen) or dict(chosen))
    requests.add({"seed": 1, "path": Path("a")})
    assert requests.of({"path": Path("a"), "seed": 1})["seed"] == 1 and len(seen) == 1
    assert requests.of({"seed": 2})["seed"] == 2 and len(seen) == 2


def test_two_jobs_of_one_configuration_do_not_share_what_they_measured(monkeypatch):
    compared = []
    monkeypatch.setattr(compare, "_measure", lambda sources, plan, home: compared.append(plan.matches[0]) or 0)
    assert (
        main(["compare", "torch_eager:plus", "torch_eager:times", "kernel=double", "device=cpu", "seed=1,1", "-m"]) == 0
    )
    assert compared[0].cells == compared[1].cells and compared[0].pairs is not compared[1].pairs
