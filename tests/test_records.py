"""Records on disk: what a new one says of its cell, which code it names, what is synchronised, and what reading refuses."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import platform
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow.parquet
import pytest
from conftest import FIXTURES
from samples import STATES, case, parity, timed, timing, untimed

from fusebench import discovery, machine, provenance, sources
from fusebench.contract import Case, Cell
from fusebench.errors import StorageError, UsageError
from fusebench.machine import DeviceInfo
from fusebench.records import arrow, store
from fusebench.records.record import SCHEMA, Environment, PairRecord, Parity, Record, Spread


@dataclass(frozen=True)
class Note:
    """A small record."""

    text: str
    schema: int = SCHEMA


FIRST, SECOND = (f'{{"text": "{text}", "schema": {SCHEMA}}}\n' for text in "ab")


def test_a_new_record_says_which_cell_it_is_of(monkeypatch):
    monkeypatch.setattr(machine, "packages", lambda: {"torch": "2"})
    monkeypatch.setattr(machine, "git_commit", lambda folder, *parts: f"{folder.name} {parts}")
    the_case = case(dtype="float16", id="M=3,K=5,N=7/float16")
    cell = Cell(the_case, "triton", "multirow", 4, "nan", {"num_warps": 8})
    record = provenance.new_record(cell, "cuda")
    began = datetime.fromisoformat(record.began)
    assert began.tzinfo is UTC and abs((datetime.now(UTC) - began).total_seconds()) < 3600
    home = Path(provenance.__file__).parents[1].name
    assert record == Record(
        id="lola/M=3,K=5,N=7/float16/triton:multirow/num_warps=8/seed=4/inputs=nan", label="triton:multirow num_warps=8", cell=cell, status="ok",
        environment=Environment(DeviceInfo("cuda"), {"torch": "2"}, sys.version.split()[0], platform.node(),
                                f"{home} ('fusebench', 'implementations')"),
        began=record.began,
    )  # fmt: skip
    assert (record.time_s, record.timeout_s) == (0, 0), "until it runs"
    assert (record.case, record.kernel, record.device, record.schema) == (the_case, "lola", DeviceInfo("cuda"), SCHEMA)
    assert the_case == Case("lola", {"M": 3, "K": 5, "N": 7}, "float16", "ieee", {}, "forward", "M=3,K=5,N=7/float16")


@pytest.mark.parametrize(
    ("variant", "inputs", "label", "end"),
    [("default", "plain", "flax", "flax/seed=0"), ("pieces", "plain", "flax:pieces", "flax:pieces/seed=0"), ("default", "inf", "flax", "flax/seed=0/inputs=inf")],
)  # fmt: skip
def test_a_cell_s_name(variant, inputs, label, end):
    cell = Cell(case(), "flax", variant, 0, inputs)
    assert (cell.label, cell.id) == (label, f"lola/batch/float32/ieee/{end}")


def test_cells_that_differ_in_anything_have_other_names():
    made = [Cell(case(), "a", "b"), Cell(case(), "a", "c"), Cell(case(), "b", "b"), Cell(case(), "a", "b", 1), Cell(case(), "a", "b", 0, "nan"),
            Cell(case("splacc"), "a", "b"), Cell(case(id="odd/float32"), "a", "b"), Cell(case(), "a", "b", config={"x": 1}),
            Cell(case(), "a", "b", config={"x": 2})]  # fmt: skip
    assert len({c.id for c in made}) == len(made)


# Which code was measured

KERNEL = (FIXTURES / "kernels" / "double" / "kernel.py").read_text()
FILES = {
    "lola/kernel.py": KERNEL + "\nfrom implementations._shared.numpy import formulas\n",
    "lola/mine.py": "import implementations._shared.launch\nfrom . import _bodies\nX = 1\n",
    "lola/_bodies.py": "from implementations._shared.launch import grid\n",
    "lola/other.py": "",
    "_shared/launch.py": "grid = 1\ndef late():\n    from implementations._shared import rows\n    import implementations._shared.never\n",
    "_shared/rows.py": "",
    "_shared/never.py": "",
    "_shared/numpy/formulas.py": "",
}
MINE = {"lola/mine.py", "lola/_bodies.py", "_shared/launch.py"}
MATHEMATICS = {"lola/kernel.py", "_shared/numpy/formulas.py"}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        file = tmp_path / "implementations" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "implementations"


@pytest.fixture
def kernel(root):
    return discovery.find_kernels([root])["lola"]


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_module_is_made_of_what_it_imported(kernel):
    module = discovery.load_implementation("lola", "mine")
    assert sources.of_module(module.__name__) == {name: digest(FILES[name]) for name in MINE}
    assert set(kernel.sources) == MATHEMATICS
    sys.modules["implementations._shared.launch"].late()
    assert set(sources.of_module(module.__name__)) == {*MINE, "_shared/rows.py", "_shared/never.py"}


def test_where_an_error_was_raised_is_named_below_the_root_of_its_file(root, kernel):
    """A root may lie anywhere; the innermost of its files counts."""
    (root / "lola" / "mine.py").write_text("def f(g):\n    return g({})\n")
    module = discovery.load_implementation("lola", "mine")
    with pytest.raises(TypeError) as caught:
        module.f(json.loads)
    assert sources.place(caught.value) == "lola/mine.py:2"
    assert sources.place(ValueError("never raised")) == ""


def test_what_was_read_before_an_edit_is_what_was_loaded(root, kernel):
    read = {}
    name = discovery.load_implementation("lola", "mine").__name__
    before = sources.of_module(name, read)
    (root / "_shared" / "launch.py").write_text("grid = 2\n")
    assert sources.of_module(name, read) == before and set(read) == {root / file for file in MINE}
    assert sources.of_module(name)["_shared/launch.py"] == digest("grid = 2\n")


def test_the_source_is_the_file_and_what_was_loaded(root, kernel):
    file = root / "lola" / "mine.py"
    early = provenance.source_of(file, kernel.sources)
    assert (early.file, early.git_commit, set(early.files)) == (str(file), None, {"lola/mine.py", *MATHEMATICS})
    discovery.load_implementation("lola", "mine")
    late = provenance.with_files(early, sources.of_module("implementations.lola.mine"))
    assert set(late.files) == MINE | MATHEMATICS and late.sha256 != early.sha256


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["edit", "take away"])
def test_a_change_of_what_was_loaded_is_another_source_and_no_other_change_is(root, kernel, name, change):
    file = root / "lola" / "mine.py"
    discovery.load_implementation("lola", "mine")
    made_of = sources.of_module("implementations.lola.mine")
    found = provenance.with_files(provenance.source_of(file, kernel.sources), made_of)
    assert provenance.changed(found, file, [root]) == ""
    (root / name).write_text("changed") if change == "edit" else (root / name).unlink()
    assert provenance.changed(found, file, [root]) == (name if name in MINE | MATHEMATICS else "")


def test_a_file_that_is_gone_has_no_source(root):
    assert provenance.source_of(root / "lola" / "nosuch.py", {}) is None
    assert provenance.changed(None, root / "lola" / "nosuch.py", [root]) == ""
    assert provenance.changed(None, root / "lola" / "mine.py", [root]) == "mine.py"


def test_a_file_outside_all_roots_has_its_whole_path(root, kernel, tmp_path):
    outside = tmp_path / "elsewhere.cuh"
    outside.write_text("x")
    files = sources.named({outside: "1", root / "lola" / "cuda.cu": "2", sources.PROJECT / "_shared" / "gpu.py": "3"})
    assert files == {str(outside.resolve()): "1", "lola/cuda.cu": "2", "_shared/gpu.py": "3"}


# Writing


def test_a_record_is_one_line_and_comes_back_as_it_was(tmp_path):
    first, second = untimed("a"), untimed("b", reason="two\nlines, é", status="failed")
    store.append(tmp_path, first)
    store.append(tmp_path, second)
    assert store.read(tmp_path, Record) == [first, second]
    text = (tmp_path / "records.jsonl").read_text()
    assert text.count("\n") == 2 and text.endswith("\n")


def full():
    """A record with something in every part."""
    how = {"host": [1e-5], "launches": 3, "kernels": ["a", "b", "c"], "wall": 1.2e-4, "states": STATES}
    verdicts = Parity(parity(0.5), parity(0.25), parity(0.75), Spread(3, 0.5, 2, 9))
    source = provenance.source_of(Path(__file__), {})
    record = timed(
        "triton:row", how=how, verdicts=verdicts, points=("product",), source=source, work=(2 * 10**9, 10**6)
    )
    return replace(record, build=replace(record.build, config={"BLOCK": 64, "fast": True, "kind": "row"}))


def test_a_record_with_every_part_comes_back_as_it_was(tmp_path):
    record = full()
    assert all(getattr(record, part) for part in ("source", "work", "build", "parity", "timing", "rates"))
    assert all(getattr(record.timing, part) for part in ("clocks", "state", "host", "kernels"))
    pair = PairRecord(record, "triton against cuda", "A", 3, (record.timing, timing()), "B", lost=True)
    store.append(tmp_path, record)
    store.append(tmp_path, pair, "pairs.jsonl")
    assert store.read(tmp_path, Record) == [record]
    assert store.read(tmp_path, PairRecord, "pairs.jsonl") == [pair]


def test_another_name_is_another_file(tmp_path):
    store.append(tmp_path, Note("a"), "pairs.jsonl")
    assert (tmp_path / "pairs.jsonl").read_text() == FIRST and store.read(tmp_path, Note) == []


def test_a_record_is_synchronised_after_it_is_written_and_before_append_returns(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fsync", lambda file: seen.append((tmp_path / store.FILE).read_text()))
    store.append(tmp_path, Note("a"))
    store.append(tmp_path, Note("b"))
    assert seen == [FIRST, FIRST + SECOND]


def test_a_record_that_could_not_be_synchronised_is_taken_away(tmp_path, monkeypatch):
    store.append(tmp_path, Note("a"))

    def fails(file):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StorageError, match=r"records\.jsonl cannot be written: Input/output error"):
        store.append(tmp_path, Note("b"))
    assert store.read(tmp_path, Note) == [Note("a")]


class Watched:
    """A file whose writes take as much as `takes` says, and which counts the bytes that are read of it."""

    def __init__(self, file, takes=len):
        self.file, self.takes, self.read_bytes = file, takes, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, line):
        return self.file.write(line[: self.takes(line)])

    def read(self, size=-1):
        content = self.file.read(size)
        self.read_bytes += len(content)
        return content

    def __getattr__(self, name):
        return getattr(self.file, name)


def watch(monkeypatch, takes=len):
    """The files that are opened from now on."""
    opened, files = Path.open, []

    def watched(*arguments, **options):
        files.append(Watched(opened(*arguments, **options), takes))
        return files[-1]

    monkeypatch.setattr(Path, "open", watched)
    return files


def test_a_line_that_the_disk_takes_half_of_is_taken_away(tmp_path, monkeypatch):
    store.append(tmp_path, Note("a"))
    watch(monkeypatch, lambda line: len(line) // 2)
    with pytest.raises(StorageError, match="No space left on device"):
        store.append(tmp_path, Note("b"))
    monkeypatch.undo()
    assert (tmp_path / store.FILE).read_text() == FIRST


@pytest.mark.parametrize("length", [0, 1, store.TAIL - 1, store.TAIL, store.TAIL + 1, 3 * store.TAIL])
@pytest.mark.parametrize("before", ["", FIRST])
def test_a_line_that_was_left_unfinished_is_cut_off_however_long_it_is(tmp_path, before, length):
    (tmp_path / store.FILE).write_text(before + "x" * length)
    store.append(tmp_path, Note("b"))
    assert (tmp_path / store.FILE).read_text() == before + SECOND


def test_appending_reads_the_end_of_the_file_alone(tmp_path, monkeypatch):
    before = FIRST * (10 * store.TAIL // len(FIRST))
    (tmp_path / store.FILE).write_text(before)
    files = watch(monkeypatch)
    store.append(tmp_path, Note("b"))
    monkeypatch.undo()
    assert [file.read_bytes for file in files] == [store.TAIL]
    assert (tmp_path / store.FILE).read_text() == before + SECOND


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"nosuch/records\.jsonl cannot be written: No such file"):
        store.append(tmp_path / "nosuch", Note("a"))


def test_numbers_that_json_has_no_word_for_are_written_as_their_names(tmp_path):
    verdict = parity(math.inf, got=-math.inf, expected=math.nan, max_abs=1.5)
    store.append(tmp_path, untimed(parity=Parity(verdict)))
    written = json.loads((tmp_path / store.FILE).read_text(), parse_constant=pytest.fail)["parity"]["first"]
    assert [written[key] for key in ("ratio", "got", "expected", "max_abs")] == ["inf", "-inf", "nan", 1.5]
    (found,) = store.read(tmp_path, Record)
    read = found.parity.first
    assert (read.ratio, read.got, read.max_abs) == (math.inf, -math.inf, 1.5) and math.isnan(read.expected)


# Reading


def test_no_file_has_no_records(tmp_path):
    assert store.read(tmp_path, Record) == []


def test_a_line_that_is_not_finished_is_no_record_yet(tmp_path):
    (tmp_path / store.FILE).write_text(FIRST + SECOND[:-1])
    assert store.read(tmp_path, Note) == [Note("a")]


def refused(folder, kind=Record):
    with pytest.raises(UsageError) as error:
        store.read(folder, kind)
    return str(error.value)


@pytest.mark.parametrize("line", ["{", "[1]", "3", "null", "[" * 100_000])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    (tmp_path / store.FILE).write_text(FIRST + line + "\n")
    said = refused(tmp_path, Note)
    assert said.startswith(f"{tmp_path / store.FILE} line 2 is no record: {line[:40]!r} (") and "\n" not in said


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / store.FILE).mkdir()
    assert refused(tmp_path) == f"{tmp_path / store.FILE} cannot be read: Is a directory"


@pytest.mark.parametrize("schema", [99, 1, 2, 3, None, "4"])
def test_records_of_another_schema_are_named(tmp_path, schema):
    store.append(tmp_path, untimed())
    store.append(tmp_path, replace(untimed(), schema=schema))
    where = tmp_path / store.FILE
    assert refused(tmp_path) == f"{where} line 2 has the schema {schema!r}, not {SCHEMA}: start a run of its own"


def test_a_record_of_an_older_version_is_named_by_its_schema_whatever_else_it_has(tmp_path):
    (tmp_path / store.FILE).write_text('{"schema": 1, "cell": "lola/odd", "case": {}}\n')
    assert "line 1 has the schema 1, not" in refused(tmp_path)


@pytest.mark.parametrize(
    ("keys", "value"),
    [("id", 3), ("label", 3), ("cell", "x"), ("cell.case", "x"), ("cell.case.kernel", []), ("cell.case.id", None), ("cell.implementation", {}),
     ("cell.seed", "x"), ("cell.inputs", None), ("status", None), ("reason", 3), ("environment.device", "cpu"), ("timing", 3), ("parity", None)],
)  # fmt: skip
def test_a_key_that_is_not_as_it_must_be_is_named(tmp_path, keys, value):
    record = msgspec.to_builtins(untimed())
    *outer, key = keys.split(".")
    place = record
    for name in outer:
        place = place[name]
    place[key] = value
    (tmp_path / store.FILE).write_text(json.dumps(record) + "\n")
    said = refused(tmp_path)
    assert said.startswith(f"{tmp_path / store.FILE} line 1 is no record: ") and f"`$.{keys}`" in said


@pytest.mark.parametrize("key", ["id", "label", "cell", "status", "environment", "began"])
def test_a_key_that_a_record_lacks_is_named(tmp_path, key):
    record = msgspec.to_builtins(untimed())
    del record[key]
    (tmp_path / store.FILE).write_text(json.dumps(record) + "\n")
    assert f"missing required field `{key}`" in refused(tmp_path)


# As a table


def test_the_columns_of_a_table_are_the_fields_of_the_record():
    schema = arrow.schema(Record)
    assert schema.names == [field.name for field in dataclasses.fields(Record)]
    found = {name: str(schema.field(name).type) for name in ("id", "reason", "time_s", "work", "schema")}
    assert found == {
        "id": "string", "reason": "string", "time_s": "double", "work": "struct<flops: int64, moved_bytes: int64>", "schema": "int64",
    }  # fmt: skip
    cell = schema.field("cell").type
    assert [str(cell.field("case").type.field(name).type) for name in ("kernel", "sizes")] == ["string", "map<string, int64>"]  # fmt: skip
    timing = schema.field("timing").type
    assert [str(timing.field(name).type) for name in ("samples", "target_missed")] == ["list<item: double>", "bool"]
    assert str(timing.field("state").type.field("sm_mhz").type) == "list<item: double>"


def test_a_table_goes_through_parquet_and_has_what_the_records_have(tmp_path):
    records = [full(), untimed("flax", "failed", reason="raised"), untimed(parity=Parity(parity(math.inf)))]
    made = arrow.table(records)
    pyarrow.parquet.write_table(made, tmp_path / "it.parquet")
    found = pyarrow.parquet.read_table(tmp_path / "it.parquet")
    assert found.equals(made) and found.schema.equals(arrow.schema(Record))
    rows = found.to_pylist(maps_as_pydicts="strict")
    assert rows[0]["build"].pop("config") == {"BLOCK": "64", "fast": "True", "kind": "row"}, "of several types, so text"
    expected = [msgspec.to_builtins(record) for record in records]
    del expected[0]["build"]["config"]
    for row, other in zip(rows, expected, strict=True):
        assert json.loads(store.encode(row)) == json.loads(store.encode(other))


def test_the_records_of_pairs_make_a_table_too():
    pair = PairRecord(full(), "triton against cuda", "A", 3, (timing(), timing()))
    (row,) = arrow.table([pair]).to_pylist()
    assert [turn["median"] for turn in row["turns"]] == [timing().median] * 2 and row["record"]["label"] == "triton:row"


def test_no_records_make_no_table():
    with pytest.raises(ValueError, match="a table needs one at least"):
        arrow.table([])


def test_a_field_that_no_column_can_hold_is_named():
    @dataclass
    class Odd:
        thing: complex

    with pytest.raises(TypeError, match="no Arrow type for <class 'complex'>"):
        arrow.schema(Odd)
