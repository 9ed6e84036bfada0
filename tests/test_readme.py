"""Every command of the README runs, and its table of keys is that of the configuration."""

from __future__ import annotations

import re
import shlex

import pytest
from test_command_line import REPOSITORY
from test_show import records, save

TEXT = (REPOSITORY / "README.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
SCRIPTS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("fusebench ")]


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """The runs that the README shows."""
    monkeypatch.chdir(tmp_path)
    save("before", *records())
    save("tuned", *records(0.9))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_runs(saved, answered, on_shared_workers, command):
    words = shlex.split(command)[1:]
    if words[0] == "plot":
        pytest.importorskip("matplotlib")
    quick = {
        "bench": ["time_s=0.02", "inputs=plain"],
        "compare": ["time_s=0.01", "pairs=1", "rounds=1", "fail_slower=null"],  # which needs five pairs
        "train": ["case=small", "batch=32", "threads=1"],
    }.get(words[0], [])
    if words[0] == "parity" and "inputs=" not in command:
        quick.append("inputs=plain")
    if "experiment=quick" in words:
        quick.append("batch=2")  # Triton is interpreted, a row at a time
    if "case=all" in words:
        quick.append("implementation=[all,~torch_compile]")  # seconds a cell
    if words[0] == "compare" and "dry_run=true" not in words:
        done = answered(*words, *quick)  # whose processes are its own
    else:
        done = on_shared_workers(*words, *quick)
    assert done.returncode == 0, done.stdout + done.stderr


def test_make_targets_of_the_readme_exist():
    makefile = (REPOSITORY / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", "\n".join(BLOCKS), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_script_of_the_readme_runs(capsys):
    exec(SCRIPTS[0], {})
    median, rate = map(float, capsys.readouterr().out.split())
    assert median > 0 and rate > 0


def test_pandas_reads_records_in_three_lines(saved, capsys):
    pytest.importorskip("pandas")
    script = SCRIPTS[1]
    assert len([line for line in script.splitlines() if line]) == 3
    exec(script, {})
    out = capsys.readouterr().out
    assert "M=64/float32" in out and "triton:multirow" in out and "0.000090" in out


def test_the_keys_of_the_readme_are_those_of_bench():
    from fusebench.configuration.schema import SCHEMAS

    table = re.findall(r"^\| `.*", TEXT.split("| key | means |")[1].split("## How")[0], re.MULTILINE)
    named = set(re.findall(r"`([a-z_]+)(?:\.[\w.]+)?=", "\n".join(table)))
    fields = set(SCHEMAS["bench"].__dataclass_fields__) | {"experiment", "shape", "option", "config", "worker"}
    assert named <= fields and fields - named <= {"seed", "timeout_s"}


def test_the_table_of_kernels_is_that_of_the_folders(answered):
    table = TEXT.split("<!-- fusebench list --markdown -->\n")[1].split("\n<!-- end -->")[0]
    assert table.strip() == answered("list", "--markdown").stdout.strip()
