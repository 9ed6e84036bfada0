"""compute-sanitizer's command line and environment: each option that a check relies on, for each tool."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples import table_of, untimed

from fusebench.errors import UsageError
from fusebench.sanitizer import check, table, tool
from fusebench.sanitizer.log import Log, Place, Reported
from fusebench.sanitizer.own import Own

OPTIONS = [
    "--launch-timeout",
    "--target-processes",
    "--print-limit",
    "--show-backtrace",
    "--strip-paths",
    "--report-api-errors",
    "--padding",
    "--racecheck-report",
    "--racecheck-num-workers",
    "--port",
    "--kernel-name",
]
OWN = Own(True, frozenset({"copy"}), ("kns=4copy", "kne=copy"), (Path("/our"),))
SHARED = {
    "--launch-timeout": "0", "--target-processes": "application-only", "--print-limit": "10000", "--show-backtrace": "device",
    "--strip-paths": "no", "--port": str(49152 + 2 * 16),
}  # fmt: skip
MORE = {
    "memcheck": {"--report-api-errors": "no", "--padding": "512"},
    "racecheck": {"--racecheck-report": "analysis", "--racecheck-num-workers": "3"},
}


@pytest.mark.parametrize("name", tool.TOOLS)
def test_each_tool_is_asked_for_all_that_a_check_relies_on(name):
    made = tool.Sanitizer("/bin/it", "2025", frozenset(OPTIONS)).command(name, OWN, Path("/run/50%.log"), 2, 3, ["python", "-m", "it"])  # fmt: skip
    at = made.index("--")
    assert made[:5] == ["/bin/it", "--tool", name, "--log-file", "/run/50%%.log"] and made[at + 1 :] == [
        "python",
        "-m",
        "it",
    ]
    pairs = list(zip(made[5:at:2], made[6:at:2], strict=True))
    watched = [] if name == "initcheck" else [("--kernel-name", "kns=4copy"), ("--kernel-name", "kne=copy")]
    assert sorted(pairs) == sorted([*SHARED.items(), *MORE.get(name, {}).items(), *watched])


def test_an_option_of_a_later_version_is_left_out():
    made = tool.Sanitizer("/bin/it", "2023", frozenset({"--port"})).command("memcheck", OWN, Path("a"), 0, 1, [])
    assert made[5:7] == ["--port", "49152"] and "--padding" not in made and "512" not in made


def test_a_program_that_is_none_is_named_by_the_beginning_of_what_it_says(tmp_path):
    program = tmp_path / "it"
    program.write_text("#!/bin/sh\nprintf 'x%.0s' $(seq 300)\n")
    program.chmod(0o700)
    with pytest.raises(UsageError, match=rf"it is no compute-sanitizer, or does not run: its --help is '{'x' * 80}'$"):
        tool.find(str(program))


def test_every_array_is_an_allocation_of_its_own(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_mine=1")
    env = tool.variables("python", [4, 5, 6])
    assert env["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1" and env["XLA_PYTHON_CLIENT_ALLOCATOR"] == "cuda_async"
    assert env["XLA_FLAGS"] == "--xla_mine=1 --xla_gpu_autotune_level=0"
    monkeypatch.delenv("XLA_FLAGS")
    assert tool.variables("python", [4])["XLA_FLAGS"] == "--xla_gpu_autotune_level=0"
    assert {env[f"{name}_NUM_THREADS"] for name in ("OMP", "OPENBLAS", "MKL")} == {"3"}


# What a report becomes


def test_a_finding_is_of_the_outermost_call_and_names_both_sides_of_a_race():
    found = Reported("race", Place("inner(int)", "/our/lola/cuda.cu", 12), (Place("void copy<4>(int)", offset="0x90"),), (Place("a()"), Place("copy(float *)")), "warning", 3, "by thread 0")  # fmt: skip
    made = check.finding(found, OWN, "memcheck")
    assert (made.kernel, made.place, made.others) == ("copy", "lola/cuda.cu:12", ("copy+0x90",))
    assert (made.of, made.severity, made.count, made.example) == ("ours", "warning", 3, "by thread 0")
    assert (
        check.named(Place("f(int)", "/elsewhere/it.cuh", 3), OWN) == "it.cuh:3"
        and check.named(Place("f(int)"), OWN) == "f"
    )


def test_findings_of_one_place_are_added_up_and_keep_the_first_example():
    one, other = (check.Finding("race", "copy", place, count=2, example=place) for place in ("a:1", "b:2"))
    again = check.Finding("race", "copy", "a:1", count=5, example="later")
    assert [(f.place, f.count, f.example) for f in check.together([one, other, again])] == [("a:1", 7, "a:1"), ("b:2", 2, "b:2")]  # fmt: skip


@pytest.mark.parametrize(
    ("log", "trouble", "status", "notes"),
    [
        (Log(errors=0), "", "ok", ()),
        (Log(), "", "crashed", ()),
        (
            Log(errors=5, hidden=3, warnings=("w",), trouble=("t",)),
            "",
            "ok",
            ("w", "3 of 5 errors were counted, but not printed", "t"),
        ),
        (Log(errors=0), "it ended without a record", "crashed", ()),
    ],
)
def test_what_a_log_makes_of_a_check(log, trouble, status, notes):
    record = untimed()
    made = check.concluded(check.Check("id", "memcheck", record), log, OWN, trouble)
    assert (made.status, made.notes, made.errors) == (status, notes, log.errors)
    assert [f.count for f in made.findings] == ([5] if log.errors else []) and made.passed == (
        status == "ok" and not log.errors
    )


def test_a_cell_that_one_tool_alone_skipped_has_a_row(capsys):
    clean, skipped, wide = (
        untimed("cuda"),
        untimed("cuda", "skipped", reason="too wide"),
        untimed("triton", "skipped", reason="too wide"),
    )
    checks = [
        check.Check("a", "memcheck", clean),
        check.Check("b", "racecheck", skipped),
        check.Check("c", "memcheck", wide),
    ]
    table.show(checks, ["memcheck", "racecheck"])
    out = capsys.readouterr().out
    assert table_of(out, "implementation") == [{"implementation": "cuda", "memcheck": "clean", "racecheck": "skipped"}]
    assert "skipped  too wide  cuda, triton\n" in out
    table.footer(checks, tool.Sanitizer("/bin/it", "2025", frozenset()), 1.5, "results/it")
    assert (
        capsys.readouterr().out
        == "3 checks of 2 cells: 1 clean, 2 skipped\n/bin/it 2025, 1.5 s\nrecords: results/it/records.jsonl\n"
    )
