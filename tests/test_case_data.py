"""The data that the cells of a case share: a set that comes behind the samples."""

from __future__ import annotations

import numpy as np
import pytest

from fusebench import discovery, inputs
from fusebench.case_data import UNSEEN, CaseData
from fusebench.cases import make_case
from fusebench.contract import Cell
from fusebench.parity.judge import Judge
from fusebench.settings import Clock, Settings

KERNELS = discovery.find_kernels(discovery.roots_of())


@pytest.fixture
def data(tmp_path):
    kernel = KERNELS["add_relu"]
    cell = Cell(make_case(kernel, {"M": 40, "N": 30}), "torch_eager", "default", seed=5)
    return CaseData(kernel.mathematics, cell, tmp_path, Settings("cpu", rows_seed=1), Clock())


def test_a_set_that_comes_behind_the_samples_has_the_weights_of_the_others_and_inputs_of_its_own(data):
    before = {stored.file for one in data.files for stored in one}
    assert {file.name for file in data.folder.iterdir()} == before, "until then it lies nowhere"
    x, b = inputs.load(data.unseen_files, data.folder)
    assert data.unseen_files[1] == data.files[0][1] and data.unseen_files[0].file not in before
    assert b.tolist() == data.sets[0]["b"].tolist() and x.tolist() == data.unseen["x"].tolist()
    assert all(not np.isin(x, one["x"]).any() for one in data.sets)
    again = inputs.make_sets(data.mathematics, data.case, 5, UNSEEN + 1)[UNSEEN]
    assert again["x"].tolist() == x.tolist() and len(data.files) == len(data.sets) == UNSEEN


def test_what_was_computed_of_it_is_held_against_the_formula(data):
    right = np.maximum(data.unseen["x"] + data.unseen["b"], np.float32(0))
    for output, ok in ((right, True), (np.zeros_like(right), False)):
        found = data.judge(inputs.save([output], data.folder, "unseen"), (), "", UNSEEN, pool=None)
        assert found.ok is ok


def test_of_a_large_case_some_rows_of_it_are_judged_and_nobody_is_asked_for_the_others(data, monkeypatch):
    monkeypatch.setattr("fusebench.parity.view.JUDGED_ELEMENTS", 400)
    judge = Judge(data.mathematics, data.case, data.unseen, data.seed, 1)
    data.judges[UNSEEN, ""] = judge
    judge.allowed(())  # which the reference on the device does elsewhere
    right = np.maximum(data.unseen["x"] + data.unseen["b"], np.float32(0))
    found = data.judge(inputs.save([right], data.folder, "unseen"), (), "", UNSEEN, pool=None)
    assert found.ok and found.checked == 8 * 30 and not found.unseen
    assert not data.judge(inputs.save([0 * right], data.folder, "unseen"), (), "", UNSEEN, pool=None).ok


def test_files_of_it_that_somebody_changed_are_written_again(data):
    first = inputs.load(data.unseen_files, data.folder)[0]
    (data.folder / data.unseen_files[0].file).write_bytes(b"mine")
    assert data.changed() == [data.unseen_files[0].file]
    assert inputs.load(data.unseen_files, data.folder)[0].tolist() == first.tolist() and not data.changed()
