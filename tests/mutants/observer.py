"""A pytest plugin that notes how long each test takes and which lines of the harness it runs in this process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

SECONDS: dict[str, float] = {}
UNFIT: set[str] = set()  # a test that fails or skips guards nothing
LINES = coverage.Coverage(data_file=None, source=["fusebench"])
USERS: dict[str, set[str]] = {}  # by fixture, the tests that have it
WITHIN: list[str] = []  # the test that runs, and the shared fixtures that are made for it just now


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what needs the workers of the session: they take seconds to start, and their lines are not seen here."""
    kept = [item for item in items if not _shares_workers(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
    LINES.start()


def _shares_workers(item: pytest.Item) -> bool:
    """Whether it asks for the session's pool; a test file may have one of its own."""
    info = getattr(item, "_fixtureinfo", None)
    return any(fixture.scope == "session" for fixture in info.name2fixturedefs.get("pool", ())[-1:]) if info else False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    for fixtures in getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).values():
        for fixture in fixtures:
            USERS.setdefault(_context(fixture), set()).add(item.nodeid)
    WITHIN[:] = [item.nodeid]
    LINES.switch_context(item.nodeid)
    begin = time.perf_counter()
    result = yield
    SECONDS[item.nodeid] = time.perf_counter() - begin
    return result


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
    """What a shared fixture runs is passed by all tests that have it, not by the first one alone."""
    if fixturedef.scope == "function":
        return (yield)
    WITHIN.append(_context(fixturedef))
    LINES.switch_context(WITHIN[-1])
    try:
        return (yield)
    finally:
        WITHIN.pop()
        LINES.switch_context(WITHIN[-1])


def _context(fixture: pytest.FixtureDef[Any]) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not report.passed:
        UNFIT.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        return
    LINES.stop()
    data, lines = LINES.get_data(), {}
    for file in data.measured_files():
        by_line = data.contexts_by_lineno(file)
        lines[str(Path(file).relative_to(Path.cwd()))] = {
            line: sorted(set().union(*(USERS.get(c, {c}) for c in contexts)) - UNFIT - {""})
            for line, contexts in by_line.items()
        }
    Path(os.environ["MUTANTS_OBSERVED"]).write_text(json.dumps({"seconds": SECONDS, "tests": lines}))
