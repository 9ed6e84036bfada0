"""`fusebench data`: what it writes has the schema, the signal and the long tail; what it reads is checked and reaches frameworks whole."""

from __future__ import annotations

import errno
import json
import os
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fusebench.cli import main
from fusebench.data import auc, reading, synthesis, writing
from fusebench.data.schema import LAST_ID, METADATA_FILE, Feature, read_metadata
from fusebench.errors import UsageError

ROWS = 30_000
DENSE, SPARSE = [f"DENSE_{n}" for n in range(13)], [f"SPARSE_{n}" for n in range(26)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with two row groups, of 8192 rows and of the rest."""
    folder = tmp_path_factory.mktemp("data") / "new" / "criteo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthesis, "BLOCK", 8192)
        assert main(["data", "criteo", f"rows={ROWS}", f"out={folder}", "seed=3", "cardinality=1000"]) == 0
    return folder


@pytest.fixture(scope="module")
def table(written):
    return pq.read_table(written / "criteo.parquet")


def said(capsys, *words):
    """The one line of bad input."""
    capsys.readouterr()
    assert main(["data", "criteo", *map(str, words)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("fusebench: ")
    return err


def small(rows=5, **columns):
    """A table in the schema; columns of other values by name."""
    plain = {name: pa.array([n] * rows, pa.int64()) for n, name in enumerate(["labels", *DENSE, *SPARSE])}
    plain["labels"] = pa.array([0, 1] * (rows // 2) + [0] * (rows % 2))
    return pa.table(plain | columns)


@pytest.fixture
def save(tmp_path):
    def save(table, name="mine.parquet", **options):
        pq.write_table(table, tmp_path / name, **options)
        return tmp_path / name

    return save


def one_batch(file, **options):
    (batch,) = reading.open_file(file).batches(100, **options)
    return batch


# What is written


def test_the_schema_is_criteos(table, written):
    assert table.column_names == ["labels", *DENSE, *SPARSE] and table.num_rows == ROWS
    metadata = json.loads((written / METADATA_FILE).read_text())
    assert list(metadata) == SPARSE
    for name, feature in metadata.items():
        values = feature["tokenizer_values"]
        assert feature["cardinality"] == len(values) == len(set(values)) and min(values) > 0 and max(values) <= LAST_ID
        drawn = np.array(table[name].drop_null())
        assert 0.95 < np.isin(drawn, values).mean() < 1, "one in 32 is unknown"
    assert [metadata[f"SPARSE_{n}"]["cardinality"] for n in (0, 25)] == [3, 1000]


def test_values_are_missing_as_often_as_documented(table):
    dense = [table[name].null_count / ROWS for name in DENSE[:4]]
    sparse = [table[name].null_count / ROWS for name in SPARSE[:4]]
    assert dense == pytest.approx(synthesis.DENSE_MISSING, abs=0.01)
    assert sparse == pytest.approx(synthesis.SPARSE_MISSING, abs=0.01)


def test_ids_follow_a_long_tail(table):
    """Value number n of L comes as often as log(1 + 1/n) ÷ log(1 + L): the first of 1000 one time in 10, half of them seldom."""
    ids = np.array(table["SPARSE_25"].drop_null())
    _, counts = np.unique(ids, return_counts=True)
    shares = np.sort(counts)[::-1] / len(ids)
    assert shares[0] == pytest.approx(np.log(2) / np.log(1001) * 31 / 32, abs=0.01)
    assert shares[:10].sum() > 0.3 and shares[500:].sum() < 0.15


def test_each_known_value_has_its_share(table):
    ids = np.array(table["SPARSE_0"])
    known = synthesis.plant(1000).features[0].known
    shares = [(ids == value).mean() for value in known]
    assert shares == pytest.approx(
        np.log([2, 3 / 2, 4 / 3]) / np.log(4) * 31 / 32, abs=0.012
    )  # four deviations of 30 000 rows


def test_the_planted_probability_follows_from_what_a_reader_sees():
    signal = synthesis.plant(50)
    block = next(synthesis.draw(signal, 3000, 7))
    columns = block.rows.to_pydict()
    odds = np.full(3000, signal.bias)
    for name, mean, deviation, weight in zip(DENSE, signal.means, signal.deviations, signal.weights, strict=True):
        odds += weight / deviation * (np.log1p([count or 0 for count in columns[name]]) - mean)
    for name, feature, effects in zip(SPARSE, signal.features, signal.effects, strict=True):
        known = dict(zip(feature.known.tolist(), effects.tolist(), strict=True))
        odds += [known.get(value, 0.0) for value in columns[name]]
    assert block.probability == pytest.approx(1 / (1 + np.exp(-odds)), rel=1e-5)
    assert block.labels.tolist() == columns["labels"]


def test_the_signal_is_the_same_whenever_it_is_planted():
    """Files of last year and of today are of one signal."""
    signal = synthesis.plant(1000)
    assert signal.features[0].known.tolist() == [1364076727, 821347078, 2247144487]
    assert signal.means[:3] == pytest.approx([2.8548, 1.8369, 2.5381], abs=1e-4)
    assert signal.deviations[:2] == pytest.approx([1.3536, 1.1212], abs=1e-4)
    assert signal.weights[:2] == pytest.approx([-0.3981, 0.233], abs=1e-4) and signal.bias == pytest.approx(-2.776486)
    assert signal.effects[0] == pytest.approx([0.1958, -0.4251, 0.1273], abs=1e-4)


def test_clicks_are_one_in_four(table):
    assert 0.2 < np.array(table["labels"]).mean() < 0.3


def test_a_linear_model_finds_the_planted_signal_in_rows_of_another_seed(written, tmp_path, capsys):
    """Fitted to log(1 + count) and the commonest ids of one file by Newton's method, tried on the other."""
    assert main(["data", "criteo", "rows=10000", f"out={tmp_path / 'b'}", "seed=4", "cardinality=1000"]) == 0
    planted = float(capsys.readouterr().out.split()[-1])
    (trained,) = reading.open_file(written).batches(ROWS, log1p=True)
    (tried,) = reading.open_file(tmp_path / "b").batches(10_000, log1p=True)
    common = [np.array(feature.known[:3]) for feature in read_metadata(written / METADATA_FILE)]

    def design(batch):
        hot = [batch.ids[:, n, None] == values for n, values in enumerate(common)]
        return np.hstack([np.ones_like(batch.labels), batch.dense, *hot]).astype(np.float64)

    x, y, w = design(trained)[:12_000], trained.labels[:12_000, 0], np.zeros(14 + 78)
    for _ in range(6):
        p = 1 / (1 + np.exp(-x @ w))
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.eye(len(w))
        w += np.linalg.solve(hessian, x.T @ (y - p) - w)
    reached = auc.Auc()
    reached.add(tried.labels, 1 / (1 + np.exp(-design(tried) @ w)))
    assert 0.8 < reached.value() < planted + 0.01


def test_the_same_seed_gives_the_same_files_and_another_does_not(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert main(["data", "criteo", "rows=100", f"seed={seed}", "cardinality=5", f"out={tmp_path / name}"]) == 0
    a, b, c = ((tmp_path / name / "criteo.parquet").read_bytes() for name in "abc")
    assert a == b != c
    assert (tmp_path / "a" / METADATA_FILE).read_bytes() == (tmp_path / "c" / METADATA_FILE).read_bytes()


def test_it_says_what_it_wrote(tmp_path, capsys):
    assert main(["data", "criteo", "rows=100", f"out={tmp_path}"]) == 0
    data, metadata, planted = capsys.readouterr().out.splitlines()
    assert data.startswith(f"{tmp_path}/criteo.parquet: 100 rows, ") and " clicks, " in data
    assert metadata == f"{tmp_path}/metadata.json: 26 id columns with 3 … 100000 known values"
    assert planted.startswith("AUC of the planted signal, which no model passes: 0.")


def test_both_files_are_on_the_disk_before_either_takes_its_place(tmp_path, monkeypatch):
    done, replace = [], Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append("fsync"))
    monkeypatch.setattr(Path, "replace", lambda path, to: (done.append(to.name), replace(path, to))[1])
    writing.write(tmp_path, synthesis.plant(20), 10, 0, lambda rows: None)
    assert done == ["fsync", "fsync", METADATA_FILE, "criteo.parquet"], "where the data is, all is"


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch, capsys):
    def interrupted(*arguments):
        yield next(draw(*arguments))
        assert list(tmp_path.iterdir()), "it is written meanwhile"
        raise KeyboardInterrupt

    draw = synthesis.draw
    monkeypatch.setattr(writing, "draw", interrupted)
    assert main(["data", "criteo", "rows=100", f"out={tmp_path}"]) == 130
    assert capsys.readouterr().err == "interrupted\n" and list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fusebench.cli.print_no_more", lambda: None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        code = main(["data", "criteo", "rows=5000", "cardinality=100", f"out={tmp_path}"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    err = capsys.readouterr().err
    assert code == 1 and f"{tmp_path} cannot be written: " in err and os.strerror(errno.EFBIG) in err
    assert err.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_no_file_is_overwritten(written, capsys):
    before = (written / "criteo.parquet").stat().st_mtime_ns
    assert "criteo.parquet is there already: name another folder" in said(capsys, "rows=1", f"out={written}")
    assert (written / "criteo.parquet").stat().st_mtime_ns == before


def test_a_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert "file/x: Not a directory; name a folder" in said(capsys, "rows=1", f"out={tmp_path / 'file' / 'x'}")


# The command's words


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "data: expected data criteo rows=N out=DIR"),
        (["crito"], "unknown data set 'crito': did you mean criteo?"),
        (["criteo", "more"], "data criteo more: expected"),
        (["criteo", "--json"], "data criteo --json: expected"),
        (["criteo", "row=1", "out=x"], "unknown key 'row': did you mean rows?"),
        (["criteo", "out=x"], "rows= is missing"),
        (["criteo", "rows=1"], "out= is missing"),
        (["criteo", "batch=1"], "file= is missing"),
        (["criteo", "rows=1", "rows=2", "out=x"], "rows= is there twice: rows=1 and rows=2"),
        (["criteo", "rows=1", "out="], "out= is empty"),
        (["criteo", "rows=0", "out=x"], "rows=0: expected a whole number of at least 1"),
        (["criteo", "rows=1e6", "out=x"], "rows=1e6: expected a whole number"),
        (["criteo", "rows=1", "seed=-1", "out=x"], "seed=-1: expected a whole number of at least 0"),
        (["criteo", "rows=1", "cardinality=2", "out=x"], "cardinality=2: expected a whole number from 3 to 10000000"),
        (["criteo", "rows=1", "out=x", "file=y"], "rows= writes a data set and file= reads one"),
        (["criteo", "file=nowhere", "batch=0"], "batch=0: expected a whole number of at least 1"),
        (["criteo", "file=nowhere"], "nowhere: there is no such file"),
    ],
)  # fmt: skip
def test_bad_words_are_named_and_nothing_is_written(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["data", *words]) == 2
    assert says in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_help_has_a_line_for_each_key(capsys):
    from fusebench.commands.data import KEYS

    assert main(["data", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {key}=" in out for key in KEYS)


# What is read


def test_a_file_is_read_and_counted(written, capsys):
    assert main(["data", "criteo", f"file={written}", "batch=4096"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert f"criteo.parquet: {ROWS} rows, " in first and first.endswith("; 26 id columns have known values")
    assert second.startswith("read in 8 batches of 4096 in ") and second.endswith(" million rows/s")


@pytest.mark.parametrize("size", [1000, 4096, 20_000, ROWS, 10**12])
def test_batches_are_the_rows_of_the_file_in_order(written, table, size):
    batches = list(reading.open_file(written).batches(size))
    assert [len(b.ids) for b in batches[:-1]] == [size] * (len(batches) - 1) and len(batches) == -(-ROWS // size)
    expected = {
        "dense": np.stack([table[name].fill_null(0) for name in DENSE], axis=1).astype(np.float32),
        "ids": np.stack([table[name].fill_null(0) for name in SPARSE], axis=1).astype(np.int64),
        "labels": np.array(table["labels"]).astype(np.float32)[:, None],
    }
    for name, values in expected.items():
        got = np.concatenate([getattr(batch, name) for batch in batches])
        assert got.dtype == values.dtype and np.array_equal(got, values)


@pytest.mark.parametrize("size", [100, 128])
def test_batches_reach_torch_and_jax_without_a_copy(written, size):
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    source = reading.open_file(written)
    batches = [batch for _, batch in zip(range(3), source.batches(size), strict=False)]
    with jax.enable_x64(True):
        for batch in batches:
            for array in (batch.dense, batch.ids, batch.labels):
                assert array.flags.c_contiguous and array.flags.writeable
                at = array.ctypes.data
                assert torch.from_numpy(array).data_ptr() == at and torch.from_dlpack(array).data_ptr() == at
                taken = jax.numpy.from_dlpack(array, device=jax.devices("cpu")[0])
                assert taken.unsafe_buffer_pointer() == at and taken.dtype == array.dtype


def test_a_longer_file_takes_no_more_memory(save, table):
    def peak(table):
        file, before = save(table, row_group_size=8192), pa.total_allocated_bytes()
        held = max(pa.total_allocated_bytes() for _ in reading.open_file(file).batches(512))
        return held - before, file.stat().st_size

    short, size = peak(pa.concat_tables([table] * 3))
    long, _ = peak(pa.concat_tables([table] * 6))
    assert long - short < size / 2


def test_batches_share_no_memory(written):
    """So that one may be kept, or written to, while the next is made."""
    first, second, *_ = reading.open_file(written).batches(128)
    assert not np.shares_memory(first.ids, second.ids)


def test_columns_may_be_called_int_and_cat(save):
    names = ["label", *(f"int_{n}" for n in range(13)), *(f"cat_{n}" for n in range(26))]
    batch = one_batch(save(small().append_column("more", pa.array(["x"] * 5)).rename_columns([*names, "more"])))
    assert batch.dense[0].tolist() == list(range(1, 14)) and batch.ids[4].tolist() == list(range(14, 40))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0, None, LAST_ID, 2**31, 7], pa.uint32()), pa.array([0, None, LAST_ID, 2**31, 7], pa.int64()),
        pa.array([0, None, LAST_ID, 2**31, 7], pa.uint64()), pa.array([0, np.nan, LAST_ID, 2**31, 7], pa.float64()),
        pa.array([0, None, LAST_ID, 2**31, 7], pa.float64()), pa.array(["00000000", None, "ffffffff", "80000000", "00000007"]),
        pa.array(["00000000", "", "FFFFFFFF", "80000000", "00000007"], pa.large_string()),
        pa.array(["00000000", None, "ffffffff", "80000000", "00000007"]).dictionary_encode(),
    ],
    ids=lambda values: str(values.type)[:24],
)  # fmt: skip
def test_ids_of_every_type_are_the_same(save, values):
    """pandas writes integers with missing values as float64; Criteo's own files have hexadecimal text."""
    batch = one_batch(save(small(SPARSE_4=values), row_group_size=2))
    assert batch.ids[:, 4].tolist() == [0, 0, LAST_ID, 2**31, 7]


def test_a_missing_id_is_an_unknown_one(save, tmp_path):
    """0, unless the metadata has 0 for a known value."""
    features = [Feature(3, np.array([5, 0, 1])), *(Feature(1, np.array([9])) for _ in range(25))]
    (tmp_path / METADATA_FILE).write_text(writing.metadata_json(features))
    none = pa.array([None] * 5, pa.int8())
    batch = one_batch(save(small(SPARSE_0=none, SPARSE_1=none, SPARSE_2=pa.nulls(5))))
    assert batch.ids[0, :3].tolist() == [2, 0, 0]


def test_counts_are_raw_or_logarithms(save):
    counts = pa.array([None, -2.0, 0.0, float("nan"), 3.0])
    file = save(small(DENSE_1=counts))
    assert one_batch(file).dense[:, 1].tolist() == [0, -2, 0, 0, 3]
    assert one_batch(file, log1p=True).dense[:, 1] == pytest.approx([0, 0, 0, 0, np.log(4)])


def test_labels_may_be_booleans(save):
    assert one_batch(save(small(labels=pa.array([True, False, True, True, False])))).labels[:, 0].tolist() == [
        1,
        0,
        1,
        1,
        0,
    ]


WRONG_ID = "is no id: expected a whole number, 0 … 4294967295, or null"
WRONG_TEXT = "is no id: expected 8 hexadecimal digits, or null"


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("SPARSE_3", pa.array([1, 2, -1, 4, 5]), f"row 2 (of 0 …): -1 {WRONG_ID}"),
        ("SPARSE_3", pa.array([1, 2, 3, 4, 2**32]), f"row 4 (of 0 …): 4294967296 {WRONG_ID}"),
        ("SPARSE_3", pa.array([1, 2**63, 3, 4, 5], pa.uint64()), f"row 1 (of 0 …): 9223372036854775808 {WRONG_ID}"),
        ("SPARSE_3", pa.array([1.0, 2.5, 3, 4, 5]), f"row 1 (of 0 …): 2.5 {WRONG_ID}"),
        ("SPARSE_3", pa.array([1.0, 2, float("inf"), 4, 5]), f"row 2 (of 0 …): inf {WRONG_ID}"),
        ("SPARSE_3", pa.array(["00000000"] * 4 + ["0000000g"]), f"row 4 (of 0 …): '0000000g' {WRONG_TEXT}"),
        ("SPARSE_3", pa.array(["00000000", None, "123", None, "x"]), f"row 2 (of 0 …): '123' {WRONG_TEXT}"),
        ("SPARSE_3", pa.array([1.0] * 5, pa.float32()), "has the type float: expected integers, float64"),
        ("SPARSE_3", pa.array([[1]] * 5), "has the type list"),
        ("DENSE_12", pa.array(["1"] * 5), "has the type string: expected integers or floats"),
        ("DENSE_12", pa.array([1.0, 2, 3, float("inf"), 4]), "row 3 (of 0 …): inf is no finite float32"),
        ("DENSE_12", pa.array([1.0, 2, 3, -1e39, 4]), "row 3 (of 0 …): -1e+39 is no finite float32"),
        ("labels", pa.array([0, 1, 2, 0, 0]), "row 2 (of 0 …): 2 is no label: expected 0 or 1"),
        ("labels", pa.array([0, None, 1, 0, 0]), "row 1 (of 0 …): missing is no label"),
        ("labels", pa.array([0, 0.5, 1, 0, 0]), "row 1 (of 0 …): 0.5 is no label"),
        ("labels", pa.array(["0"] * 5), "has the type string: expected integers or floats"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_by_file_column_and_row(save, capsys, name, values, says):
    file = save(small(**{name: values}), row_group_size=2)
    line = said(capsys, f"file={file}")
    assert f"{file}: column {name}" in line and says in line


def test_the_row_is_that_of_the_file(written, save, table, capsys, monkeypatch):
    monkeypatch.setattr(reading, "CHUNK", 1000)
    ids = table["SPARSE_25"].fill_null(0).cast(pa.int64()).to_numpy().copy()
    ids[[17_000, 29_000]] = -7
    at = table.column_names.index("SPARSE_25")
    file = save(table.set_column(at, "SPARSE_25", pa.array(ids)))
    assert f"column SPARSE_25, row 17000 (of 0 …): -7 {WRONG_ID}" in said(capsys, f"file={file}", "batch=100")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.drop_columns(["SPARSE_7"]), "column SPARSE_7 is missing: expected labels, DENSE_0 … DENSE_12"),
        (lambda t: t.drop_columns(["labels"]), "column labels is missing"),
        (lambda t: t.drop_columns(DENSE), "columns DENSE_0 and 12 more are missing"),
        (lambda t: t.append_column("DENSE_0", t["DENSE_0"]), "column DENSE_0 is there 2 times"),
        (lambda t: t.slice(0, 0), "has no rows: expected 1 at least"),
    ],
)  # fmt: skip
def test_a_file_that_lacks_something_is_named(save, capsys, change, says):
    file = save(change(small()))
    line = said(capsys, f"file={file}")
    assert str(file) in line and says in line


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "is empty: expected parquet"), (b"a,b\n1,2\n" * 9, "as parquet: ")]
)
def test_a_file_that_is_no_parquet(tmp_path, capsys, content, says):
    (tmp_path / "x.parquet").write_bytes(content)
    line = said(capsys, f"file={tmp_path / 'x.parquet'}")
    assert str(tmp_path / "x.parquet") in line and says in line


def test_a_file_that_is_damaged_within(written, tmp_path, capsys):
    damaged = bytearray((written / "criteo.parquet").read_bytes())
    damaged[1000:200_000] = bytes(199_000)
    (tmp_path / "x.parquet").write_bytes(damaged)
    line = said(capsys, f"file={tmp_path / 'x.parquet'}")
    assert f"{tmp_path / 'x.parquet'} cannot be read beyond row 0: " in line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no JSON"), ("[]", "expected an object with SPARSE_0 … SPARSE_25"), ("{}", "SPARSE_0 is missing: expected SPARSE_0 … SPARSE_25"),
        ('{"SPARSE_0": 3}', "SPARSE_0: expected {\"cardinality\": n"),
        ('{"SPARSE_0": {"cardinality": 0, "tokenizer_values": []}}', "SPARSE_0: cardinality is 0: expected a whole number, 1 …"),
        ('{"SPARSE_0": {"cardinality": 1, "tokenizer_values": 1}}', "SPARSE_0: tokenizer_values is no list"),
        ('{"SPARSE_0": {"cardinality": 2, "tokenizer_values": [1, -1]}}', "SPARSE_0: value 1 of tokenizer_values is -1"),
        ('{"SPARSE_0": {"cardinality": 1, "tokenizer_values": [4294967296]}}', "is 4294967296: expected an id, 0 … 4294967295"),
    ],
)  # fmt: skip
def test_bad_metadata_is_named(save, tmp_path, capsys, text, says):
    (tmp_path / "its.json").write_text(text)
    line = said(capsys, f"file={save(small())}", f"metadata={tmp_path / 'its.json'}")
    assert f"{tmp_path / 'its.json'}" in line and says in line


def test_a_table_may_have_a_row_for_every_id(written, tmp_path):
    metadata = json.loads((written / METADATA_FILE).read_text())
    for rows, fits in ((LAST_ID + 1, True), (LAST_ID + 2, False)):
        metadata["SPARSE_25"]["cardinality"] = rows
        (tmp_path / METADATA_FILE).write_text(json.dumps(metadata))
        if fits:
            assert read_metadata(tmp_path / METADATA_FILE)[25].cardinality == rows
        else:
            with pytest.raises(UsageError, match=f"expected a whole number, 1 … {LAST_ID + 1}"):
                read_metadata(tmp_path / METADATA_FILE)


def test_metadata_that_is_not_there_is_named(save, tmp_path, capsys):
    line = said(capsys, f"file={save(small())}", f"metadata={tmp_path / 'no.json'}")
    assert "no.json cannot be read: No such file" in line


# The area under the curve


@pytest.mark.parametrize(
    ("labels", "probabilities", "area"),
    [
        ([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], 0.75), ([0, 1], [0.2, 0.2], 0.5), ([1, 0], [0.1, 0.9], 0), ([0, 1], [0, 1], 1),
        ([1, 1], [0.1, 0.9], float("nan")),
    ],
)  # fmt: skip
def test_the_area_is_the_share_of_pairs_in_order(labels, probabilities, area):
    found = auc.Auc()
    for label, probability in zip(labels, probabilities, strict=True):
        found.add(np.array([label]), np.array([probability]))
    assert found.value() == pytest.approx(area, nan_ok=True)


@pytest.mark.parametrize("probability", [float("nan"), -0.1, 1.1])
def test_what_is_no_probability_is_refused(probability):
    with pytest.raises(ValueError, match="not within 0 … 1"):
        auc.Auc().add(np.array([1]), np.array([probability]))
