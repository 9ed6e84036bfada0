"""Whatever the command line and the files that it names hold, the answer is a run or a line, never a traceback of ours.

No worker starts here: every cell fails at once. FUSEBENCH_FUZZ=5000 tries that many examples a test, other ones each time.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from pathlib import Path

import pytest
import samples
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fusebench import cases, cli, discovery
from fusebench.configuration import schema
from fusebench.records import store
from fusebench.workers import pool

TRIES = int(os.environ.get("FUSEBENCH_FUZZ", "0"))
KERNELS = discovery.find_kernels([discovery.HOME])


def fuzz(examples):
    """`examples` of them, the same each time."""
    return settings(
        max_examples=TRIES or examples, derandomize=not TRIES, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate] if TRIES else list(Phase),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    """No process starts, and a request for ten thousand cells runs three."""

    def start(self, backend, python, beside=False):
        raise pool.WorkerLost("failed", "no worker starts in this test")

    select, find = cases.select_cells, discovery.find_kernels
    for kind in (pool.Pool, pool.InlinePool):
        monkeypatch.setattr(kind, "start", start)
        monkeypatch.setattr(kind, "get", start)
    monkeypatch.setattr(pool, "environment", lambda *_: {})
    monkeypatch.setattr(cases, "select_cells", lambda *arguments: select(*arguments)[:3])
    monkeypatch.setattr(
        discovery, "find_kernels", lambda roots, broken=None: KERNELS | (find(roots[1:]) if roots[1:] else {})
    )
    monkeypatch.setattr(os, "fsync", lambda file: None)


def told(*arguments, **files):
    """Runs the command in a folder with these files, checks what it says, and returns its exit code and what it said."""
    out, before = io.StringIO(), Path.cwd()
    with tempfile.TemporaryDirectory() as home:
        os.chdir(home)
        try:
            for name, content in files.items():
                file = Path(home, *name.split("__"))
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                try:
                    code = cli.main([str(a) for a in arguments])
                except SystemExit as end:  # argparse's
                    code = end.code
        finally:
            os.chdir(before)
    said = out.getvalue()
    assert code in (0, 1, 2, 130), said
    assert "Traceback" not in said and "Error executing job" not in said, said
    if code == 2:
        hydras = "usage:" in said or "not found in config" in said  # about flags
        assert hydras or sum(line.startswith("fusebench: ") for line in said.splitlines()) == 1, said
    return code, said


# The command line

SHAPES = sorted({d for k in KERNELS.values() for d in k.dimensions})
OPTIONS = sorted({o for k in KERNELS.values() for o in k.options})
KEYS = [
    *schema.BenchConfig.__dataclass_fields__, *(f"shape.{d}" for d in SHAPES), *(f"option.{o}" for o in OPTIONS),
    "shape", "option", "worker", "worker.inline", "worker.python", "worker.python.flax", "experiment",
]  # fmt: skip
STRANGE_KEYS = [
    "nosuch", "kernel.x", "kernel[0]", "shape.Q", "option.x", "bench_schema", "_self_", "defaults", "hydra", "hydra.run.dir",
    "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.job.chdir", "hydra.job.name", "hydra.mode", "hydra.verbose", "hydra/launcher",
    "hydra/help", "hydra.searchpath", "hydra.output_subdir", "hydra.sweeper.params", "worker@x", "experiment@_global_", "é", "_target_",
]  # fmt: skip
VALUES = [
    "lola", "launch", "all", "[launch,lola]", "triton", "torch_eager", "triton:multirow_ws", "odd", "batch", "float32", "bfloat16",
    "tf32", "plain", "nan", "quick", "published", "inline", "process", "cpu", "cuda", "auto", "latest",
    "", "null", "true", "0", "1", "-1", "3", "1.5", "1e3", "1e400", "inf", "-inf", "99999999999999999999999", "0x10", "1_000", "1e18",
    "[]", "[[]]", "[null]", "[1,2]", "[[1,2],[3]]", "{}", "{a:1}", "{M:3}", "[{a:1}]", "{a:{b:[1]}}", "a,b", "1,2", "range(1,3)",
    "range(0,1e12)", "choice(a,b)", "interval(0,1)", "glob(*)", "sort(1,2)", "shuffle(a,b)", "int(3)", "str(3)", "float(nan)",
    "'quoted'", '"two words"', "'", "\\'", "a b", "a=b", "a:b", ":", "é", "日本", "\u202e", "\\", "%s", "{", "]", "[", "(",
    "${x}", "${kernel}", "${oc.env:HOME}", "${oc.env:NOSUCH}", "${run_dir:null}", "${", "???", "${seed}", "${hydra:job.name}",
    ".", "..", "/", "/dev/null", "/proc/self", "/nosuch/x", "~", "*", "*.csv", "x" * 300, "/" + "y" * 5000, "mine.csv", "mine", "binary",
    "@x", "!!python/object:os.system", "&a", "*a", "-", "--", "2024-01-01", "None", "b'x'",
]  # fmt: skip
FLAGS = [
    "-m", "--multirun", "--cfg=job", "--cfg", "job", "--cfg=hydra", "--cfg=all", "--resolve", "--info", "--info=defaults", "--help", "-h",
    "--hydra-help", "--version", "-cd", "--config-dir", "--config-dir=mine", "--config-name=parity", "-cn", "--config-path=.", "--package",
    "-p=shape", "--package=nosuch", "--run", "-r", "--shell-completion", "-sc", "--experimental-rerun=x", "--resume", "--resume=nosuch", "--nosuch", "-x",
    "--", "-", "", "--json", "--markdown", "stray", "path=mine", "path=nosuch", "path=", "binary",
]  # fmt: skip

values = st.sampled_from(VALUES) | st.text(max_size=8) | st.integers().map(str) | st.floats().map(str)
values |= st.lists(values, max_size=3).map(lambda items: f"[{','.join(items)}]")
overrides = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "", "", "", "", "+", "++", "~"]),
    st.sampled_from(KEYS) | st.sampled_from(KEYS) | st.sampled_from(STRANGE_KEYS) | st.text(max_size=5),
    st.sampled_from(["=", "=", "=", "="]) | st.sampled_from(["", "==", ":", "@x="]),
    values,
)
good = st.sampled_from(
    ["kernel=lola", "case=odd", "implementation=torch_eager", "dtype=all", "device=cpu", "batch=3", "-m"]
)
arguments = st.lists(overrides | good | overrides | st.sampled_from(FLAGS), max_size=5)


@given(st.sampled_from(sorted(cli.COMMANDS)), arguments)
@fuzz(25)
def test_no_command_line_ends_in_a_traceback(command, arguments):
    told(command, *arguments, **{"mine.csv": "M,K,N\n1,2,3\n", "binary": bytes(range(256))})


@given(st.sampled_from(sorted(cli.COMMANDS)), st.sampled_from(KEYS), values)
@fuzz(25)
def test_no_value_of_a_key_ends_in_a_traceback(command, key, value):
    told(command, f"{key}={value}", **{"mine.csv": "M,K,N\n1,2,3\n", "binary": bytes(range(256))})


# Files that the command line names

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(VALUES)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
garbage = st.binary(max_size=60) | st.text(max_size=60)


def in_yaml(value):
    return json.dumps(value, default=str)  # of which YAML is a superset


rows = st.lists(
    st.dictionaries(st.sampled_from(["M", "K", "N", "Q", ""]), scalars | st.just(3), max_size=4) | trees, max_size=3
)
tables = st.lists(
    st.lists(st.sampled_from(["M", "K", "N", "1", "2", "", "x", '"', "-1", "1e9", "é", "\x00", " "]), max_size=4).map(",".join),
    max_size=4,
).map("\n".join)  # fmt: skip


@given(
    st.sampled_from(["csv", "yaml", "yml", "txt"]), garbage | rows.map(in_yaml) | tables | tables.map("M,K,N\n".__add__)
)
@fuzz(25)
def test_no_file_of_sizes_ends_in_a_traceback(suffix, content):
    told("parity", "kernel=lola", f"shapes=mine.{suffix}", **{f"mine.{suffix}": content})


KERNEL = (discovery.HOME.parent / "tests" / "fixtures" / "faults" / "fault" / "kernel.py").read_text()
PROGRAM = (discovery.HOME.parent / "tests" / "fixtures" / "faults" / "fault" / "a_fine.py").read_text()
literals = trees.map(repr) | st.sampled_from(
    ["()", '("N",)', '"N"', "x", "1 / 0", "lambda: 0", "{1: 2}", '{"a": ("b",)}', "b'x'"]
)


def with_constant(text, name, value):
    """The file with one of its constants, or a new one, at its end set to `value`."""
    return f"{text}\n{name} = {value}\n"


def broken(text, names):
    """The file in some way spoilt."""
    cut = st.integers(0, len(text)).map(lambda end: text[:end])
    without = st.sampled_from(text.splitlines()).map(lambda line: text.replace(line, "", 1))
    inserted = st.tuples(
        st.integers(0, len(text)), st.text(max_size=4) | st.sampled_from(["\x00", "\udcff", "((((" * 100, "\t"])
    )
    inserted = inserted.map(lambda at: text[: at[0]] + at[1] + text[at[0] :])
    return (
        garbage | cut | without | inserted | st.builds(with_constant, st.just(text), st.sampled_from(names), literals)
    )


kernels = broken(
    KERNEL, ["DIMENSIONS", "BATCH", "CASES", "OPTIONS", "PRECISIONS", "ROWS", "ROW_AXIS", "PARTS", "inputs", "formula", "flops", "moved_bytes", "hard"]
)  # fmt: skip
programs = broken(PROGRAM, ["BACKEND", "VARIANTS", "REQUIRES", "IN_PLACE", "COMPUTES", "WITHOUT_GPU", "build", "skip"])


@given(st.sampled_from(["bench", "parity", "list"]), st.just(KERNEL) | kernels, st.just(PROGRAM) | programs)
@fuzz(25)
def test_no_folder_of_kernels_ends_in_a_traceback(command, kernel, program):
    chosen = [] if command == "list" else ["kernel=spoilt"]
    told(
        command,
        "path=mine",
        *chosen,
        mine__spoilt__kernel__py="",
        **{"mine__spoilt__kernel.py": kernel, "mine__spoilt__it.py": program},
    )


GOOD_RECORD = json.loads(store.encode(samples.untimed("torch_eager", "skipped", reason="x")))
lines = (
    st.just(json.dumps(GOOD_RECORD)) | trees.map(in_yaml) | garbage
    | st.tuples(st.sampled_from(sorted(GOOD_RECORD)), trees).map(lambda change: json.dumps(GOOD_RECORD | dict([change])))
)  # fmt: skip
kept = st.dictionaries(
    st.sampled_from([*schema.BenchConfig.__dataclass_fields__, "shape", "option", "config", "worker", "x"]),
    trees,
    max_size=4,
)
kept = kept.map(lambda changes: in_yaml({"kernel": "launch"} | changes)) | garbage | trees.map(in_yaml)


def as_bytes(text):
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


@given(
    st.sampled_from(["resume=latest", "--resume", "resume=results/it"]),
    kept | st.just("kernel: launch"),
    st.lists(lines, max_size=3),
)
@fuzz(25)
def test_no_run_to_go_on_with_ends_in_a_traceback(how, kept, lines):
    content = b"\n".join(map(as_bytes, lines))
    told("bench", how, **{"results__it__bench.yaml": kept, "results__it__records.jsonl": content})


@given(
    st.sampled_from(["experiment=it", "+experiment=it", "experiment=nosuch"]),
    kept.map(lambda text: b"# @package _global_\n" + as_bytes(text)) | kept,
)
@fuzz(25)
def test_no_preset_of_ones_own_ends_in_a_traceback(how, preset):
    told("bench", "-cd=mine", how, **{"mine__experiment__it.yaml": preset})


# What the fuzz found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BACKEND", "[]"),
        ("VARIANTS", "{1: ()}"),
        ("REQUIRES", "{1: 2}"),
        ("IN_PLACE", "{'default': 'x'}"),
        ("build", "(" * 300),
    ],
)
def test_a_spoilt_implementation_costs_itself_alone(name, value):
    files = {"mine__spoilt__kernel.py": KERNEL, "mine__spoilt__it.py": with_constant(PROGRAM, name, value)}
    code, said = told("parity", "path=mine", "kernel=spoilt", **files)
    assert code == 1 and f"failed  it.py {'cannot be read' if name == 'build' else 'is no implementation'}: " in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DIMENSIONS", "3"), ("DIMENSIONS", "()"), ("BATCH", "[]"), ("CASES", "[]"), ("CASES", "{}"), ("CASES", "{'odd': 3}"),
        ("CASES", "{'odd': {'N': 0}}"), ("OPTIONS", "{'a': ()}"), ("PRECISIONS", "('tf64',)"), ("ROWS", "3"), ("ROW_AXIS", "'x'"),
        ("PARTS", "{'a': 1}"), ("inputs", "3"), ("hard", "{}"),
    ],
)  # fmt: skip
def test_a_spoilt_kernel_is_named(name, value):
    code, said = told(
        "bench", "path=mine", "kernel=spoilt", **{"mine__spoilt__kernel.py": with_constant(KERNEL, name, value)}
    )
    assert code == 2 and "kernel.py" in said and (name in said or "case odd" in said)


def test_a_kernel_that_raises_costs_its_cells():
    files = {"mine__spoilt__kernel.py": KERNEL + "def flops(case):\n    return 1 / 0\n", "mine__spoilt__it.py": PROGRAM}
    code, said = told("parity", "path=mine", "kernel=spoilt", "batch=[1,2]", **files)
    assert code == 1 and said.count("ZeroDivisionError") == 2 and "2 failed" in said


def test_a_preset_that_is_no_yaml_is_named():
    code, said = told("bench", "-cd=mine", "experiment=it", **{"mine__experiment__it.yaml": "kernel: \x1f"})
    assert code == 2 and "it.yaml" in said


def test_a_preset_of_ones_own_is_taken():
    preset = "# @package _global_\nkernel: launch\nimplementation: torch_eager\n"
    code, said = told("parity", "-cd=mine", "experiment=it", **{"mine__experiment__it.yaml": preset})
    assert code == 1 and "1 cell: 1 failed" in said


@pytest.mark.parametrize(
    "change", [{"cell": {}}, {"timing": {}}, {"parity": {"first": {"ratio": "x"}}}, {"schema": 1}, {"label": 3}]
)
def test_a_spoilt_record_is_named(change):
    files = {
        "results__it__bench.yaml": "kernel: launch",
        "results__it__records.jsonl": json.dumps(GOOD_RECORD | change) + "\n",
    }
    code, said = told("bench", "resume=it", **files)
    assert code == 2 and "records.jsonl" in said


@pytest.mark.parametrize(
    ("sweep", "named"), [("seed=interval(0,1)", "interval(0,1)"), ("seed=range(0,1e9)", "10000 at most")]
)
def test_a_sweep_without_a_usable_list_is_named(sweep, named):
    code, said = told("bench", "-m", "kernel=launch", sweep)
    assert code == 2 and named in said


sides = st.sampled_from(
    ["torch_eager", "flax:module", "flax dtype=float16", "@.", "torch_eager@.", "@nosuch", "@", "@@", ":", "kernel=lola", "'", "x=", "\x00", "@\x00", ""]
) | st.text(max_size=6)  # fmt: skip
own_keys = st.builds(
    "{}={}".format, st.sampled_from(["pairs", "rounds", "confidence", "fail_slower", "resamples"]), values
)


@given(sides, sides, st.lists(own_keys | overrides | good | st.sampled_from(FLAGS) | sides, max_size=3))
@fuzz(25)
def test_no_two_sides_end_in_a_traceback(a, b, others):
    told("compare", a, b, *others)
