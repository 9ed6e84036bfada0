"""`fusebench list` and `fusebench yardsticks`: each cell and key of what they print."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from samples import CPU, GPU, Worker, table_of

from fusebench import discovery, machine, report
from fusebench.cli import main
from fusebench.commands import listing, yardsticks
from fusebench.contract import MODES
from fusebench.discovery import Implementation, Kernel
from fusebench.timing import yardstick, yardstick_cache
from fusebench.timing.yardstick import Rate
from fusebench.workers.pool import WorkerLost
from fusebench.workers.protocol import AskYardstickKey, MeasureRate, Refused


def implementation(name, variants=("default",), **more):
    return Implementation("k", name, Path(f"{name}.py"), variants=dict.fromkeys(variants, ()), **more)


MADE = [
    implementation("zlib", ("default",)), implementation("torch_eager", ("default", "in_place"), requires={}),
    implementation("triton", ("row", "online"), without_gpu="interpreted"), implementation("cuda", without_gpu="unavailable"),
    implementation("alib", ("flash", "math"), refused={"cpu": {"flash": "needs tensor cores"}, "cuda": {}}), implementation("liger", requires={"no_such_module": "a-package"}),
    implementation("odd", broken="odd.py cannot be read"),
]  # fmt: skip
KERNELS = {
    "b_kernel": Kernel("b_kernel", Path("b"), None, {i.name: i for i in MADE}),
    "a_kernel": Kernel("a_kernel", Path("a"), None, {"flax": implementation("flax")}),
}


@pytest.fixture
def roots(monkeypatch):
    """The folders that were searched."""
    asked = []
    monkeypatch.setattr(discovery, "find_kernels", lambda roots, broken=None: asked.append(roots) or KERNELS)
    return asked


@pytest.fixture(params=["cpu", "cuda"])
def device(request, monkeypatch):
    monkeypatch.setattr(machine, "gpu", lambda: {"name": "x"} if request.param == "cuda" else None)
    return request.param


def test_the_table_says_what_is_here(roots, device, capsys):
    assert main(["list"]) == 0
    lines = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("│")
    ]
    assert lines == [
        ["b_kernel", "zlib", "default", "yes"],
        ["b_kernel", "torch_eager", "default, in_place", "yes"],
        ["b_kernel", "triton", "row, online", "interpreted: parity only" if device == "cpu" else "yes"],
        ["b_kernel", "cuda", "default", "needs an NVIDIA GPU" if device == "cpu" else "yes"],
        ["b_kernel", "alib", "flash, math", "yes; not flash: needs tensor cores" if device == "cpu" else "yes"],
        ["b_kernel", "liger", "default", "needs no_such_module: pip install a-package"],
        ["b_kernel", "odd", "default", "odd.py cannot be read"],
        ["a_kernel", "flax", "default", "yes"],
    ]
    assert roots == [[discovery.HOME]]


@pytest.mark.parametrize("columns", ["60", "40", "10"])
def test_a_narrow_list_breaks_no_word(roots, monkeypatch, capsys, columns):
    def words():
        assert main(["list"]) == 0
        return sorted(re.findall(r"[\w:.,-]+", capsys.readouterr().out))

    whole = words()
    monkeypatch.setenv("COLUMNS", columns)
    assert words() == whole


def test_a_list_fits_into_the_terminal(roots, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["list"]) == 0
    assert 50 < max(map(len, capsys.readouterr().out.splitlines())) <= 60


def test_the_json_says_the_same(roots, device, capsys):
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["b_kernel", "a_kernel"] and list(found["b_kernel"]) == [i.name for i in MADE]
    assert found["b_kernel"]["triton"] == {"variants": ["row", "online"], "unavailable": None, "refused": {}}
    assert found["b_kernel"]["alib"]["refused"] == ({"flash": "needs tensor cores"} if device == "cpu" else {})
    assert found["b_kernel"]["cuda"]["unavailable"] == ("needs an NVIDIA GPU" if device == "cpu" else None)
    assert found["b_kernel"]["liger"]["unavailable"] == "needs no_such_module: pip install a-package"


def test_the_markdown_table(roots, capsys):
    assert main(["list", "--markdown", "--json"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| kernel | flax | torch_eager | torch_compile | triton | jax_triton | cuda | others |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| b_kernel |  | ✓, in_place |  | row, online |  | ✓ | zlib; alib: flash, math; liger; odd |",
        "| a_kernel | ✓ |  |  |  |  |  |  |",
    ]
    assert listing.markdown({}).count("\n") == 1


def test_folders_of_one_s_own_are_searched(roots, tmp_path, capsys):
    mine = [tmp_path / "x", tmp_path / "y"]
    for folder in mine:
        (folder / "b_kernel").mkdir(parents=True)
        (folder / "b_kernel" / "flax.py").touch()
    assert main(["list", "--json", *(f"path={folder}" for folder in mine)]) == 0
    assert roots == [[discovery.HOME, *(folder.resolve() for folder in mine)]]


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("kernel=c_kernl", "unknown kernel 'c_kernl': did you mean b_kernel? There are: a_kernel, b_kernel"),
        ("kernel=x*", "no kernel matches 'x*'. There are: a_kernel, b_kernel"),
        ("path=nosuch", "path=nosuch: no such folder"),
        ("--nosuch", "unexpected '--nosuch': fusebench list takes --json, --markdown, path=DIR, kernel=NAME"),
    ],
)
def test_a_wrong_argument_of_list(roots, capsys, argument, said):
    assert main(["list", argument]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"fusebench: {said}") and captured.err.count("\n") == 1 and not captured.out


def test_all_of_a_kernel(capsys):
    assert main(["list", "kernel=lol?", "--json"]) == 0
    ((name, found),) = json.loads(capsys.readouterr().out).items()
    assert (name, found["dimensions"], found["batch"], found["modes"]) == ("lola", ["M", "K", "N"], "M", list(MODES))
    assert (
        found["options"]["w_layout"] == ["kn", "nk"]
        and found["rows"] == {"x": 0, "y": 0}
        and found["precisions"] == ["ieee", "tf32"]
    )
    assert (
        found["cases"]["odd"]["sizes"] == {"M": 37, "K": 131, "N": 203} and found["cases"]["odd"]["moved_bytes"] > 10**5
    )
    assert "batch/bfloat16/w_layout=nk" in found["published"] and found["about"].startswith("lola: ")
    variants = found["implementations"]["triton"]["variants"]
    assert variants["multirow"]["points"] == ["one_pass"] and 64 in variants["multirow"]["tunables"]["BLOCK_M"]


def test_all_of_a_kernel_in_tables(capsys, monkeypatch):
    monkeypatch.setattr(machine, "gpu", lambda: None)
    assert main(["list", "kernel=[lola,softmax]"]) == 0
    text = capsys.readouterr().out
    lola, softmax = text.split("\nsoftmax  ")
    for line in (
        "option.w_layout    kn, nk",
        "row axes           x 0, y 0",
        "precision          ieee, tf32",
        "mode               forward, backward, forward_backward",
        "gradients          x, W, b",
    ):
        assert f"  {line}\n" in lola
    case = next(row for row in table_of(lola, "case") if row["case"] == "odd")
    assert (case["M"], case["K"], case["N"]) == ("37", "131", "203") and case["FLOPs"]
    rows = {row["implementation"]: row for row in table_of(lola, "implementation")}
    assert (
        rows["cuda:row"]["here"] == "emulated: parity only" and rows["triton:row"]["here"] == "interpreted: parity only"
    )
    assert rows["flax:module"]["rounding points"] == "layernorm, product, bias, activation"
    assert (
        rows["cuda:row"]["backward"] == ""
        and rows["cuda:multirow"]["backward"] == "one_pass, layernorm, bias, dz, normed"
    )
    assert "\njax_triton:row, jax_triton:batched_row, triton:row" in lola, "those with the same tunables share a line"
    assert "config.BLOCK_M=16,32,64,128" in lola and "shape.R, shape.C; batch= sets R" in softmax


# Yardsticks


@pytest.fixture
def rates(monkeypatch, tmp_path):
    """The pool that the command makes, and the worker in it."""
    monkeypatch.setenv("FUSEBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(yardsticks, "resolve_device", lambda value: {"auto": "cpu"}.get(value, value))
    monkeypatch.setattr(yardsticks, "check_threads", lambda value: None if value == "null" else int(value))
    worker = Worker()
    made = []

    def pool(device, roots, folder, threads):
        worker.info = msgspec.structs.replace(
            worker.info, device=replace(GPU if device == "cuda" else CPU, **described)
        )
        made.append((device, roots, folder.is_dir(), threads))
        return contextlib.nullcontext(SimpleNamespace(get=lambda backend, python: worker))

    described = {}
    monkeypatch.setattr(yardsticks, "Pool", pool)
    return SimpleNamespace(worker=worker, made=made, device=described, asked=lambda: _rates_asked(worker))


def _rates_asked(worker):
    return [m.name for m in worker.asked if isinstance(m, MeasureRate)]


def test_each_rate_has_its_unit(rates, capsys):
    rates.device["name"] = "NVIDIA H200"
    values = {"copy_gbps": 4123.44, "read_gbps": 4321.0, "launch_s": 2.5e-6, "matrix_tflops/float32/ieee": 33.45, "matrix_tflops/float32/tf32": 400.0,
              "matrix_tflops/float16/ieee": 700.0, "matrix_tflops/bfloat16/ieee": 989.5}  # fmt: skip
    sizes = {name: 100 + n for n, name in enumerate(values)}
    rates.worker.answers[MeasureRate] = lambda asked: {"value": values[asked.name], "n": sizes[asked.name]}
    assert main(["yardsticks", "device=cuda"]) == 0
    captured = capsys.readouterr()
    rows = {r["yardstick"]: r for r in table_of(captured.out, "yardstick")}
    assert captured.out.startswith("card\n") and not captured.err
    assert {label: (r["rate"], r["of the datasheet"], r["n"]) for label, r in rows.items()} == {
        "copy": ("4123 GB/s", "86%", "100"), "read": ("4321 GB/s", "90%", "101"), "launch": ("2.5 µs", "", "102"),
        "product float32 ieee": ("33.45 TFLOP/s", "50%", "103"), "product float32 tf32": ("400 TFLOP/s", "81%", "104"),
        "product float16 ieee": ("700 TFLOP/s", "71%", "105"), "product bfloat16 ieee": ("989.5 TFLOP/s", "100%", "106"),
    }  # fmt: skip
    assert {bool(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", r["measured"])) for r in rows.values()} == {
        True
    }
    assert rates.made == [("cuda", [discovery.HOME], True, None)] and set(rates.worker.timeouts) == {300.0}


def test_the_json_has_key_device_and_entries(rates, capsys):
    assert main(["yardsticks", "--json", "threads=2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        found["key"] == "card"
        and found["device"] == json.loads(msgspec.json.encode(CPU))
        and list(found["yardsticks"]) == yardstick.every("cpu")
    )
    entry = found["yardsticks"]["copy_gbps"]
    assert (entry["value"], entry["n"], entry["datasheet_share"]) == (4.0, 1, None) and entry["date"]
    assert rates.made == [("cpu", [discovery.HOME], True, 2)]


def test_what_an_earlier_run_left_is_not_measured_again_but_afresh(rates, capsys):
    names = yardstick.every("cpu")
    yardstick_cache.keep("card", dict.fromkeys(names[:-1], Rate(7.0, 3, "2020")))
    assert main(["yardsticks", "--json"]) == 0
    assert rates.asked() == names[-1:]
    assert json.loads(capsys.readouterr().out)["yardsticks"]["copy_gbps"]["date"] == "2020"
    rates.worker.asked.clear()
    assert main(["yardsticks", "fresh=true"]) == 0 and rates.asked() == names


def test_a_rate_that_cannot_be_measured_is_said_below(rates, capsys):
    lacks = Refused("failed", "no memory")
    rates.worker.answers[MeasureRate] = lambda asked: lacks if asked.name == "read_gbps" else {}
    assert main(["yardsticks"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "fusebench: read_gbps could not be measured: no memory\n"
    shown = {r["yardstick"] for r in table_of(captured.out, "yardstick")}
    assert "copy" in shown and "read" not in shown


def test_a_worker_that_is_lost_is_said(rates, capsys):
    rates.worker.answers[AskYardstickKey] = WorkerLost("crashed", "it is gone")
    assert main(["yardsticks"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "fusebench: the yardsticks could not be measured: it is gone\n" and not captured.out


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("fresh=yes", "fresh=yes: expected true or false"),
        ("devise=cpu", "unknown key 'devise': did you mean device? There are: device, fresh, threads"),
        ("-x=1", "unexpected '-x=1': fusebench yardsticks takes device=, threads=, fresh=true and --json"),
        ("stray", "unexpected 'stray': fusebench yardsticks takes"),
    ],
)
def test_a_wrong_argument_of_yardsticks(rates, capsys, argument, said):
    assert main(["yardsticks", argument]) == 2
    assert capsys.readouterr().err.startswith(f"fusebench: {said}") and not rates.made


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_yardsticks_measures_nothing(rates, capsys, flag):
    assert main(["yardsticks", flag]) == 0
    assert capsys.readouterr().out.startswith("usage: fusebench yardsticks") and not rates.made


def test_progress_names_the_rate_in_hand(rates, monkeypatch):
    seen = []

    class Bar:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def add_task(self, description, total):
            seen.append((description, total))
            return 5

        def update(self, task, description, advance):
            seen.append((task, description, advance))

    monkeypatch.setattr(report, "progress", Bar)
    assert main(["yardsticks"]) == 0
    names = yardstick.every("cpu")
    assert seen == [("starting", len(names)), *((5, name, 1) for name in names)]
