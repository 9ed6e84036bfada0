"""`inspect out=`: the folder of a cell runs without fusebench, and gives the bits that the harness got."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from fusebench.cases import make_case
from fusebench.comparison import outputs
from fusebench.contract import Cell
from fusebench.inspection import cells, script, stages, targets
from fusebench.settings import Run, Settings
from fusebench.timing.plan import Plan
from fusebench.workers.stages import NotInspected

CELLS = (
    "torch_eager:default",
    "torch_compile:default",
    "flax:default",
    "triton:default",
    "jax_triton:default",
    "cuda:default",
)
# beside add_relu in float16: a kernel whose first output is a number, and what Triton's interpreter would compute wrongly
MORE = {
    "loss": ("dlrm_train", "float32", "torch_eager", "modulus"),
    "bfloat16": ("add_relu", "bfloat16", "triton", "default"),
}
# one process for all: frameworks take seconds to import
DRIVER = """
import runpy, sys
for folder in sys.argv[1:]:
    print("#", folder)
    path, sys.argv = list(sys.path), [folder + "/run.py", "--save", folder + "/outputs.npz", "--calls", "3"]
    try:
        runpy.run_path(folder + "/run.py", run_name="__main__")
    except SystemExit as ended:
        print("ended with", ended.code)
    sys.path[:] = path
    for name in [n for n in sys.modules if n.split(".")[0] in ("implementations", "harness")]:
        del sys.modules[name]
assert not [n for n in sys.modules if n.split(".")[0] == "fusebench"]
"""


@pytest.fixture(scope="module")
def saved(kernels, roots, tmp_path_factory):
    """The folders of the cells by implementation, or by their names in MORE, with the cells."""
    for module in ("torch", "jax", "triton", "cuda.core"):
        pytest.importorskip(module)
    folder, kernel, target = tmp_path_factory.mktemp("scripts"), kernels["add_relu"], targets.target("sm_90a")
    case = make_case(kernel, "odd", "float16")
    labels = [label.split(":") for label in CELLS if label.split(":")[0] in kernel.implementations]
    chosen = {name: Cell(case, name, variant) for name, variant in labels}
    chosen = {name: c for name, c in chosen.items() if not kernel.implementations[name].missing()}
    for name, (of, dtype, *label) in MORE.items():
        chosen[name] = Cell(make_case(kernels[of], "odd", dtype), *label)
    before = os.environ.pop("TRITON_INTERPRET", None)
    missing = stages.save(list(cells.inspect(chosen.values(), kernels, target)), kernels, target, folder)
    if before:
        os.environ["TRITON_INTERPRET"] = before
    assert not missing
    return {n: (folder / stages.place_of(c, target), c) for n, c in chosen.items()}


@pytest.fixture(scope="module")
def printed(saved, tmp_path_factory):
    """What the scripts print, by implementation, where fusebench cannot be imported."""
    blocked = tmp_path_factory.mktemp("blocked")
    (blocked / "fusebench").mkdir()
    (blocked / "fusebench" / "__init__.py").write_text("raise ImportError('fusebench is not to be imported')")
    environment = {**os.environ, "PYTHONPATH": str(blocked), "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
    folders = [str(folder) for folder, _ in saved.values()]
    call = [sys.executable, "-c", DRIVER, *folders]
    done = subprocess.run(call, env=environment, cwd=blocked, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    parts = done.stdout.split("# ")[1:]
    return dict(zip(saved, parts, strict=True))


@pytest.mark.parametrize("name", [label.split(":")[0] for label in CELLS])
def test_a_script_gives_the_bits_that_the_harness_got(name, saved, printed, kernels, roots, pool, tmp_path):
    if name not in saved:
        pytest.skip(f"{name} is not installed")
    if pool.device != "cpu":
        pytest.skip("the scripts ran on the CPU")
    folder, cell = saved[name]
    with outputs.runner(Run(kernels, roots, tmp_path, Settings("cpu", Plan(0))), pool) as runner:
        found = runner.outputs(cell)
    assert found.record.status == "ok", found.record.reason
    with np.load(folder / "outputs.npz") as kept:
        assert np.array_equal(kept["arr_0"].view(np.uint16), found.arrays[0].view(np.uint16))
    (own,) = found.own
    assert float(re.search(r"error/budget ([\d.e-]+)", printed[name])[1]) == pytest.approx(own.ratio, rel=1e-2)
    untimed = "triton" in name or name == "cuda"
    assert ("no time of the kernel" in printed[name]) == untimed != ("median" in printed[name])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "cuda"], "--device cuda: there is no NVIDIA GPU here; --device cpu works"),
        (["--calls", "0"], "--calls 0: expected a positive integer"),
        (["--save", "nope/x.npz"], "--save nope/x.npz: expected a file that can be written, in a folder that is there"),
        (["--save", "."], "--save .: expected a file"),
        (["--save", f"{__file__}/x.npz"], "x.npz: expected a file that can be written, in a folder that is there"),
    ],
)
def test_what_a_script_cannot_do_is_refused_in_one_line(monkeypatch, capsys, words, said):
    monkeypatch.setattr(script, "has_gpu", lambda: False)
    monkeypatch.setattr(sys, "argv", ["run.py", *words])
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_an_output_that_is_a_number_is_compared(printed):
    assert re.search(r"^loss  float32\[\]: largest error [\d.e-]+, error/budget 0", printed["loss"], re.MULTILINE)
    assert "new_b6" in printed["loss"] and "ended with 0" in printed["loss"]


def test_what_the_interpreter_computes_wrongly_does_not_run(printed):
    said = "interpreted on the CPU, where Triton computes bfloat16 wrongly"
    assert f"add_relu odd/bfloat16 triton does not run: {said}\nended with 0\n" in printed["bfloat16"]
    assert "largest error" not in printed["bfloat16"]


def test_without_a_gpu_cuda_is_emulated(saved, printed):
    assert "cuda on emulated sm_90a" in printed["cuda"] and "in the emulator: no time of the kernel" in printed["cuda"]


def test_the_folder_has_all_stages_and_names_no_fusebench(saved):
    for name, (folder, _) in saved.items():
        files = {file.name for file in folder.iterdir()}
        assert {"run.py", "cell.json", "reference.npz"} <= files
        stages_of = {
            "flax": "stablehlo.mlir",
            "torch_compile": "generated.py",
            "triton": "1_kernel.sass",
            "cuda": "1_kernel.ptx",
        }
        kind = stages_of.get(name, "run.py").rpartition(".")[2]
        assert any(file.endswith(kind) for file in files)
        own = [f for f in folder.rglob("*.py") if f.name not in ("run.py", "generated.py", "fx.py")]
        assert not [f for f in own if re.search(r"^\s*(?:from|import) fusebench", f.read_text(), re.MULTILINE)]
        assert not re.search(r"^\s*(?:from|import) fusebench", (folder / "run.py").read_text(), re.MULTILINE)


def test_the_config_of_the_target_is_kept(saved):
    folder, _cell = saved["triton"]
    said = json.loads((folder / "cell.json").read_text())
    assert said["capability"] == [9, 0] and said["config"]["num_warps"] and said["set"] == {}


def test_bfloat16_is_rounded_to_nearest_even():
    import ml_dtypes

    bits = np.random.default_rng(0).integers(0, 2**32, 10_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = np.append(values[~np.isnan(values)], np.float32([1.00390625, 1.01171875, np.inf, -np.inf, 3.4e38]))
    with np.errstate(over="ignore"):
        assert np.array_equal(script.bits_of_bfloat16(values), values.astype(ml_dtypes.bfloat16).view(np.uint16))
    assert np.isnan(script.wide(script.bits_of_bfloat16(np.float32([np.nan, -np.nan])), "bfloat16")).all()


def test_a_changed_output_is_outside_of_its_budget(saved, monkeypatch, capsys):
    folder, _ = saved["torch_eager"]
    monkeypatch.setattr(script, "HERE", folder)
    said = json.loads((folder / "cell.json").read_text())
    with np.load(folder / "reference.npz") as reference:
        right = reference["exact0"].astype(np.float16)
    assert script.compared(said, [right])
    wrong = right.copy()
    wrong[0, 0] = np.nan
    assert not script.compared(said, [wrong]) and "error/budget inf" in capsys.readouterr().out


def test_arches_and_seeds_have_folders_of_their_own(kernels, tmp_path):
    case = make_case(kernels["add_relu"], "odd", "float32")
    for arch, seeds in (("sm_80", [0]), ("sm_90a", [0]), ("sm_90a", [0, 1])):
        found = [cells.Inspected(Cell(case, "torch_eager", "default", seed)) for seed in seeds]
        assert not stages.save(found, kernels, targets.target(arch), tmp_path)
    told = {p.parent.name: json.loads(p.read_text())["seed"] for p in tmp_path.glob("*/*/*/cell.json")}
    at = "torch_eager_sm_90a"
    assert told == {"torch_eager_sm_80": 0, at: 0, f"{at}_seed_0": 0, f"{at}_seed_1": 1}


def test_what_an_earlier_call_wrote_goes_and_nothing_else(kernels, tmp_path):
    cell, target = (
        Cell(make_case(kernels["add_relu"], "odd", "float32"), "torch_eager", "default"),
        targets.target("sm_80"),
    )
    place = tmp_path / stages.place_of(cell, target)
    (place / "harness").mkdir(parents=True)
    old, kept = (
        ("1_renamed.cubin", "1_renamed.json", "graphs.txt", "harness/gone.py"),
        ("outputs.npz", "2026_notes.txt"),
    )
    for name in (*old, *kept):
        (place / name).touch()
    assert not stages.save([cells.Inspected(cell)], kernels, target, tmp_path)
    assert not [name for name in old if (place / name).exists()] and all((place / name).exists() for name in kept)
    assert stages.save([cells.Inspected(cell, reason="it hangs", failed=True)], kernels, target, tmp_path) == [
        "torch_eager: it hangs"
    ]
    assert {path.name for path in place.iterdir()} == set(kept), (
        "what is left of an earlier call would be taken for today's"
    )


def test_stages_that_cannot_be_had_are_told_apart_from_the_script(kernels, tmp_path, monkeypatch):
    def traces(*_):
        raise NotInspected("skipped: needs an NVIDIA GPU")

    monkeypatch.setattr(stages.generated, "traces", traces)
    cell, target = (
        Cell(make_case(kernels["add_relu"], "odd", "float32"), "torch_compile", "default"),
        targets.target("sm_80"),
    )
    missing = stages.save([cells.Inspected(cell)], kernels, target, tmp_path)
    assert missing == ["torch_compile, stages generated, fx, graphs, guards: skipped: needs an NVIDIA GPU"]
    assert (tmp_path / stages.place_of(cell, target) / "run.py").exists()


def test_what_cannot_run_there_is_named(kernels, tmp_path):
    cell = Cell(make_case(kernels["lola"], "odd", "float32"), "triton", "row")
    target = targets.target("sm_90a")
    found = cells.Inspected(cell, reason="skipped: row takes one token")
    assert stages.save([found], kernels, target, tmp_path) == ["triton:row: skipped: row takes one token"]
    assert not list(tmp_path.iterdir())
