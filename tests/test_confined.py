"""Mistakes in some rows of a large case (confined.py): every 24th of the planted ones."""

from __future__ import annotations

import confined
import pytest

from fusebench.parity import reference, view


@pytest.fixture
def as_large(monkeypatch):
    monkeypatch.setattr(view, "JUDGED_ELEMENTS", view.JUDGED_ELEMENTS)  # so that both are put back
    monkeypatch.setattr(reference, "DRAWS", reference.DRAWS)
    monkeypatch.setattr(confined.programs, "_situations", {})
    confined.as_large(4)


def test_mistakes_in_few_rows_are_rejected(as_large):
    found = list(confined.look_at_all(every=24))
    assert len({f.kernel for f in found}) >= 8
    for place in confined.PLACES:
        rejected = [f.rejected for f in found if f.place == place]
        assert len(rejected) >= 15 and sum(rejected) >= 0.9 * len(rejected), place
