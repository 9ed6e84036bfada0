"""A recording of JAX on a CPU by jax.profiler, read from the trace.json.gz that every version of it writes."""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from fusebench.backends.events import OPERATOR, RANGE, Event, Recording, Work, ordered


def record(work: Work) -> Recording:
    """What XLA ran while `work` did."""
    names: set[str] = set()

    @contextlib.contextmanager
    def mark(name: str) -> Iterator[None]:
        names.add(name)
        with jax.profiler.TraceAnnotation(name):
            yield

    options: dict[str, Any] = {}
    if hasattr(jax.profiler, "ProfileOptions"):  # JAX 0.7 and later
        options["profiler_options"] = chosen = jax.profiler.ProfileOptions()
        chosen.python_tracer_level = 0  # it would cost each Python function a microsecond
    with tempfile.TemporaryDirectory() as folder:
        origin_ns = time.time_ns()
        with jax.profiler.trace(folder, **options):
            work(mark)
        (file,) = Path(folder).rglob("*.trace.json.gz")
        with gzip.open(file, "rt", encoding="utf-8", errors="replace") as opened:
            return read(json.load(opened), names, origin_ns)


def read(trace: Mapping[str, Any], ours: set[str], origin_ns: int) -> Recording:
    """The recording of a trace that jax.profiler wrote: our ranges, by their names, and XLA's operators. Its own clock begins with
    the recording."""
    written = trace["traceEvents"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in written if e.get("name") == "thread_name"}
    events = []
    for e in written:
        if e.get("ph") != "X":
            continue
        name, kind = e["name"], RANGE if e["name"] in ours else OPERATOR
        if kind == OPERATOR and "hlo_op" not in e.get("args", {}):
            continue
        begin = float(e["ts"]) / 1e6
        track = str(threads.get((e["pid"], e["tid"]), e["tid"])).split("/")[0]
        events.append(Event(name, kind, begin, begin + float(e.get("dur", 0)) / 1e6, f"{track} {e['tid']}"))
    return Recording(tuple(ordered(events)), (), origin_ns)
