"""What compute-sanitizer's logs say, in the words of the versions of CUDA 12 and 13."""

from __future__ import annotations

import textwrap

import pytest

from fusebench.sanitizer.log import Place, parse, place


def log(text, *below):
    """A log with a report, as the tool writes it."""
    lines = ["COMPUTE-SANITIZER", *textwrap.dedent(text).strip().splitlines(), *below]
    return "\n".join("=========" + (f" {line}" if line else "") for line in lines) + "\n"


BEYOND = """
Invalid __global__ write of size 4 bytes
    at void mirror<float>(const T1 *, T1 *, const T1 *, int, int)+0x4b0 in /k/mirrored/cuda.cu:24
    by thread (0,0,0) in block (2,0,0)
    Access to 0x7f3c7ec001bc is out of bounds
    and is 1 bytes after the nearest allocation at 0x7f3c7ec00000 of size 444 bytes

"""
RACE = """
Error: Race reported between Write access at void mirror<float>(const T1 *, T1 *, const T1 *, int, int)+0x3f0 in cuda.cu:14
    and Read access at void mirror<float>(const T1 *, T1 *, const T1 *, int, int)+0x4a0 in cuda.cu:21 [128 hazards]
    and Read access at void mirror<float>(const T1 *, T1 *, const T1 *, int, int)+0x4c0 in cuda.cu:21 [1,004 hazards]

"""
DIVERGENT = """
Barrier error detected. Divergent thread(s) in block.
    at outlineSync()+0x11f0 in test.cu:42
    by thread (32,0,0) in block (0,0,0)
        Device Frame: myKernel(int *, int *)+0xe40 in test.cu:60

"""
UNREAD = """
Uninitialized __global__ memory read of size 4 bytes
    at mirror(float *)+0x70
    by thread (31,0,0) in block (1,0,0)
    Address 0x7f3c7ec000fc

"""


def test_a_bad_access():
    found = parse(log(BEYOND, "ERROR SUMMARY: 1 error"))
    (report,) = found.reports
    assert report.kind == "Invalid __global__ write of size 4 bytes" and report.count == 1 and not report.on_host
    function = "void mirror<float>(const T1 *, T1 *, const T1 *, int, int)"
    assert report.place == Place(function, "/k/mirrored/cuda.cu", 24, "0x4b0")
    assert report.details.startswith(
        "by thread (0,0,0) in block (2,0,0); Access to 0x7f3c7ec001bc is out of bounds; and "
    )
    assert (found.errors, found.hidden, found.warnings, found.trouble) == (1, 0, (), ())


def test_a_race_has_the_places_of_all_who_take_part():
    (report,) = parse(log(RACE, "RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)")).reports
    assert (report.kind, report.severity, report.count) == ("race between write and read", "error", 1132)
    assert report.place.line == 14 and [other.line for other in report.others] == [21, 21]


@pytest.mark.parametrize(
    ("text", "kind", "severity"),
    [
        (RACE.replace("Read", "Write"), "race between writes", "error"),
        (RACE.replace("Error:", "WARNING:"), "race between write and read", "warning"),
        ("Error: Potential WAW hazard detected at __shared__ 0x0 in block (0,0,0) :\n    Write Thread (0,0,0) at WAW()+0x2f0 in r.cu:20\n"
         "    Write Thread (1,0,0) at WAW()+0x300 in r.cu:21\n    Current Value : 1, Incoming Value : 2", "WAW hazard", "error"),
        ("Warning: (Warp Level Programming) Potential RAW hazard detected at __shared__ 0x8c in block (0,0,0) :\n"
         "    Write Thread (35,0,0) at WAW()+0x90 in r.cu:20\n    Read Thread (32,0,0) at WAW()+0x120 in r.cu:21", "RAW hazard", "warning"),
    ],
)  # fmt: skip
def test_kinds_of_races(text, kind, severity):
    (report,) = parse(log(text)).reports
    assert (report.kind, report.severity) == (kind, severity) and report.place.line and report.others[0].line


def test_a_barrier_has_the_calls_that_led_to_it():
    (report,) = parse(log(DIVERGENT, "ERROR SUMMARY: 1 error")).reports
    assert (
        report.kind == "Barrier error detected. Divergent thread(s) in block"
        and report.place.function == "outlineSync()"
    )
    assert [(f.function, f.line) for f in report.frames] == [("myKernel(int *, int *)", 60)]


def test_an_uninitialised_read():
    (report,) = parse(log(UNREAD)).reports
    assert report.kind == "Uninitialized __global__ memory read of size 4 bytes"
    assert report.place == Place("mirror(float *)", "", 0, "0x70") and "31,0,0" in report.details


def test_what_the_host_did_is_of_no_kernel():
    text = """
    Host API memory access error at host access to 0x77cfa2a7dc00 of size 3,840 bytes
        Uninitialized access to 0x77cfa2a7dce0 on access by cudaMemcpy source
    """
    (report,) = parse(log(text, "ERROR SUMMARY: 1 error")).reports
    assert report.on_host and report.kind == "Host API memory access error of size 3,840 bytes"


def test_a_clean_log():
    for summary in ("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"):
        found = parse(log(summary))
        assert found.errors == 0 and not (found.reports or found.warnings or found.trouble)


def test_a_log_that_is_cut_off_has_no_summary():
    found = parse(log(BEYOND)[:-120])
    assert len(found.reports) == 1 and found.errors is None
    assert parse("").errors is None


def test_what_was_counted_but_not_printed():
    summary = (
        "ERROR SUMMARY: 12,257 errors",
        "ERROR SUMMARY: 2,257 errors were not printed. Use --print-limit option to adjust",
    )
    found = parse(log(UNREAD, *summary))
    assert (found.errors, found.hidden) == (12257, 2257)


def test_what_the_tool_says_of_itself():
    overflow = "Warning: Detected overflow of tracked cuda::barrier structures. Results might be incorrect."
    ended = "Error: Target application terminated before first instrumented API call"
    found = parse(log(overflow, ended, "Something of a later version"))
    assert found.warnings == (overflow.removeprefix("Warning: "), "Something of a later version")
    assert found.trouble == (ended.removeprefix("Error: "),) and found.errors is None


def test_lines_of_the_program_are_passed_over():
    assert parse("hello\n" + log(BEYOND).replace("=========     by", "worker: at work\n=========     by")) == parse(
        log(BEYOND)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("copy(float *)+0x90 in cuda.cu:12", Place("copy(float *)", "cuda.cu", 12, "0x90")),
        ("copy+0x90", Place("copy", "", 0, "0x90")), ("unaligned():0x160 in demo.cu:6", Place("unaligned()", "demo.cu", 6, "0x160")),
        ("0x150 in /a b/52.cl:30:sum(const int *, int)", Place("sum(const int *, int)", "/a b/52.cl", 30, "0x150")),
        ("0x150 in void our::f<int=256>(unsigned int*)", Place("void our::f<int=256>(unsigned int*)", "", 0, "0x150")),
        ("0x79d8", Place("", "", 0, "0x79d8")), ("copy", Place("copy")),
        ("T::operator+(T const&)+0x10 in /x/t.cuh:3", Place("T::operator+(T const&)", "/x/t.cuh", 3, "0x10")),
    ],
)  # fmt: skip
def test_a_place_in_the_words_of_each_version(text, expected):
    assert place(text) == expected


def test_errors_of_several_summaries_are_added():
    """A later one without any takes nothing back."""
    assert parse(log("ERROR SUMMARY: 3 errors", "ERROR SUMMARY: 0 errors")).errors == 3
