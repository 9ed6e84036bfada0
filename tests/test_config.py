"""Keys and their values: what is checked, composed and refused before anything runs."""

from __future__ import annotations

import os

import pytest
from conftest import FIXTURES
from omegaconf import OmegaConf

from fusebench import discovery, machine
from fusebench.configuration import command_line, jobs, names, schema, values
from fusebench.errors import UsageError, fail
from fusebench.timing.plan import Plan

FOUND = discovery.find_kernels(discovery.roots_of([FIXTURES / "kernels", FIXTURES / "tunables"]))
KERNELS = {
    name: FOUND[name] for name in ("launch", "lola", "double")
}  # Hydra takes longer the more dimensions there are


@pytest.fixture(autouse=True, scope="module")
def stored():
    for command in schema.SCHEMAS:
        schema.register(command, KERNELS)


def refused(what, *arguments):
    with pytest.raises(UsageError) as error:
        what(*arguments)
    return str(error.value)


def check(*words, command="bench"):
    names.check(command, words, command_line.parse(words), KERNELS)


# Keys


@pytest.mark.parametrize(
    "word",
    ["kernel=x", "time_s=1", "shape.K=3", "option.w_layout=nk", "worker=inline", "worker.inline=true", "worker.python.flax=x", "worker.python.jax=x",
     "experiment=quick", "experiment=null", "hydra.run.dir=x", "hydra/launcher=x", "resume=latest"],
)  # fmt: skip
def test_keys_that_there_are(word):
    check(word)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("kernl=lola", "unknown key 'kernl': did you mean kernel? There are: baseline, batch, "),
        ("shape.Q=1", "unknown dimension 'Q'. There are: "), ("option.layout=1", "unknown option 'layout': did you mean w_layout? There are: "),
        ("shape=1", "unknown key 'shape': "), ("worker.python.nosuch=1", "unknown key 'worker.python.nosuch': did you mean worker.python.NAME? There are: "),
        ("experiment=quik", "unknown experiment 'quik': did you mean quick? There are: dlrm_story, h200_neighbours, h200_peers, lora_story, published, published_lola_batched_row, "),
        ("worker=inlin", "unknown worker 'inlin': did you mean inline? There are: inline, process"),
        ("~kernel", "~kernel: no key can be taken away; kernel=null or another value sets it"),
        ("~kernel=lola", "~kernel=lola: no key can be taken away; kernel=null"),
    ],
)  # fmt: skip
def test_a_key_that_there_is_not_is_named_with_the_nearest(word, said):
    assert refused(check, word).startswith(said)


def test_parity_has_no_time():
    assert refused(lambda: check("time_s=1", command="parity")).startswith("unknown key 'time_s': ")


def test_values_of_a_sweep_are_each_checked():
    check("-m", "experiment=quick,published")
    assert "unknown experiment 'x'" in refused(check, "-m", "experiment=quick,x")


def test_presets_of_one_s_own_folder_are_known(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nkernel: launch\nseed: 9\n")
    check("--config-dir", str(tmp_path), "experiment=mine")
    composed = jobs.compose_job("bench", ["experiment=mine"], ["--config-dir", str(tmp_path)])
    assert (composed["kernel"], composed["seed"]) == ("launch", 9)
    assert "unknown experiment 'mine'" in refused(check, "experiment=mine")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lola"], "unexpected 'lola': expected KEY=VALUE, such as kernel=lola"), (["seed=1", "kernel=["], "kernel=[: [ and ] do not match; expected kernel=VALUE"),
        (["kernel='lola"], "kernel='lola: a quote is not closed"), (['kernel="lola'], 'kernel="lola: a quote is not closed'),
        (["batch=(1"], "batch=(1: ( and ) do not match"), (["option={a"], "option={a: { and } do not match"),
        (["batch=1,"], "batch=1,: a value is missing beside a comma"), (["batch=[,1]"], "batch=[,1]: a value is missing beside a comma"),
        (["--config-name=x"], "--config-name: the configuration is this command's own; your presets go into --config-dir"),
        (["--config-path=x"], "--config-path: the configuration is"), (["--experimental-rerun=x"], "--experimental-rerun: the configuration is"),
        (["--config-dir=nosuch"], "--config-dir nosuch: no such folder; expected one with experiment/NAME.yaml"),
    ],
)  # fmt: skip
def test_words_that_are_no_overrides(words, said):
    assert said in refused(command_line.parse, words)


def test_the_last_value_of_a_key_counts():
    overrides = command_line.parse(["seed=1", "kernel=a", "seed=2"])
    assert (
        command_line.last("seed", overrides) == 2
        and command_line.last("kernel", overrides) == "a"
        and command_line.last("batch", overrides) is None
    )


@pytest.mark.parametrize(
    ("words", "paths"),
    [([], []), (["path=null"], []), (["path=a"], ["a"]), (["path=[a,3]"], ["a", "3"]), (["path=a", "path=b"], ["b"])],
)
def test_the_folders_of_path(words, paths):
    assert command_line.paths_of(command_line.parse(words)) == paths


def test_what_may_stand_beside_resume():
    words = ["resume=latest", "hydra.run.dir=x", "seed=3", "shape.K=2", "pairs=4", "-m"]
    assert command_line.conflicts_with_resume(command_line.parse(words), words) == [
        "seed=3",
        "shape.K=2",
        "pairs=4",
        "--multirun",
    ]
    assert command_line.conflicts_with_resume(command_line.parse(words[:-1]), words[:-1], ("pairs", "shape")) == [
        "seed=3"
    ]


@pytest.mark.parametrize(
    ("words", "shows"),
    [(["kernel=a"], False), (["--cfg", "job"], True), (["--help"], True), (["--hel"], True), (["--hydra-help"], True), (["--info"], True), (["-sc", "install=bash"], True), (["-m"], False)],
)  # fmt: skip
def test_what_only_shows_something(words, shows):
    assert command_line.only_shows(words) == shows


# Composing


@pytest.mark.parametrize(
    ("command", "defaults"),
    [
        ("bench", {"kernel": ["launch", "lola"], "case": None, "inputs": None, "retry": None, "baseline": None, "time_s": 0.5, "target": 0.01, "regime": "auto", "cache": "auto"}),
        ("parity", {"kernel": "all", "case": "odd", "inputs": None, "retry": None}),
        ("compare", {"kernel": ["launch", "lola"], "case": None, "time_s": 0.05, "target": 0, "regime": "auto", "cache": "auto", "pairs": 10, "rounds": 16, "confidence": 0.99, "fail_slower": None, "resamples": 0}),
    ],
)  # fmt: skip
def test_the_defaults_of_each_command(command, defaults):
    composed = jobs.compose_job(command, [])
    shared = {"implementation": "all", "dtype": "float32", "precision": "ieee", "mode": "forward", "batch": None, "shapes": None, "device": "auto", "path": None, "seed": 0,
              "inputs": "plain", "published": False, "story": None, "rows_seed": None, "timeout_s": 300, "threads": None, "resume": None,
              "out_dir": None, "tuned": True, "fits": True, "dry_run": False, "quiet": False, "verbose": False}  # fmt: skip
    folded = ("shape", "option", "config", "worker", "experiment")
    assert {k: v for k, v in composed.items() if k not in folded} == shared | defaults
    assert composed["worker"]["inline"] is False and not any(composed["worker"]["python"].values())
    assert set(composed["shape"]) == {d for k in KERNELS.values() for d in k.dimensions} and not any(
        composed["shape"].values()
    )
    assert set(composed["option"]) == {o for k in KERNELS.values() for o in k.options}
    implementations = [i for k in KERNELS.values() for i in k.implementations.values()]
    tunables = {t for i in implementations for own in i.tunables.values() for t in own}
    assert tunables and composed["config"] == dict.fromkeys(tunables)
    assert set(composed["worker"]["python"]) == {"torch", "jax", "numpy", *(i.name for i in implementations)}


def test_a_preset_and_what_is_written_beside_it():
    composed = jobs.compose_job("bench", ["experiment=quick", "time_s=2", "worker=inline", "shape.K=[1,2]"])
    assert (composed["case"], composed["time_s"], composed["worker"]["inline"], composed["shape"]["K"]) == (
        ["odd"],
        2.0,
        True,
        [1, 2],
    )
    assert jobs.compose_job("bench", ["experiment=quick"])["time_s"] == 0.1
    published = jobs.compose_job("bench", ["experiment=published", "dtype=float16"])
    assert (published["published"], published["case"], published["dtype"]) == (True, "all", "float16")


def test_a_value_of_another_type_is_one_line():
    assert refused(jobs.compose_job, "bench", ["time_s=many"]) == "time_s=many: expected a number"
    assert refused(jobs.compose_job, "bench", ["quiet=perhaps"]) == "quiet=perhaps: expected true or false"
    assert refused(jobs.compose_job, "tune", ["trials=1.5"]) == "trials=1.5: expected an integer"
    assert refused(jobs.compose_job, "bench", ["kernel=a,b"], (), "do this instead") == "do this instead"


def test_a_list_without_brackets_is_answered_with_what_to_write():
    words = ["kernel=lola,launch"]
    said = refused(lambda: list(jobs.compose_jobs("bench", words, command_line.parse(words))))
    assert (
        said == "kernel=lola,launch: write kernel=[lola,launch] for a list in one run, or add --multirun for a run each"
    )


def test_the_jobs_of_a_multirun():
    words = ["-m", "seed=1,2", "kernel=lola", "batch=3,4", "hydra.sweep.dir=x"]
    expected = [
        ["seed=1", "kernel=lola", "batch=3"],
        ["seed=1", "kernel=lola", "batch=4"],
        ["seed=2", "kernel=lola", "batch=3"],
        ["seed=2", "kernel=lola", "batch=4"],
    ]
    assert jobs.job_lines(words, command_line.parse(words)) == expected
    words = ["seed=1", "batch=[3,4]"]
    assert jobs.job_lines(words, command_line.parse(words)) == [words]


@pytest.mark.parametrize(("count", "right"), [(command_line.MOST_JOBS, True), (command_line.MOST_JOBS + 1, False)])
def test_a_multirun_has_no_end_of_jobs(count, right):
    words = ["-m", f"seed=range(0,{count})"]
    if right:
        assert len(jobs.job_lines(words, command_line.parse(words))) == count == 10_000
    else:
        said = refused(jobs.job_lines, words, command_line.parse(words))
        assert said == f"--multirun would start {count} jobs or more: expected 10000 at most"


@pytest.fixture
def composed(monkeypatch):
    """The overrides of each job that Hydra composes in full."""
    calls, compose = [], jobs.compose
    monkeypatch.setattr(
        jobs, "compose", lambda *a, overrides, **k: calls.append(overrides) or compose(*a, overrides=overrides, **k)
    )
    return calls


def found_jobs(*words):
    return list(jobs.compose_jobs("bench", words, command_line.parse(words)))


def test_ten_thousand_jobs_are_checked_without_composing_each(composed):
    found = found_jobs("-m", "seed=range(0,100)", f"shape.K={','.join(map(str, range(1, 101)))}")
    assert composed == [["seed=0", "shape.K=1"]]
    assert [(c["seed"], c["shape"]["K"]) for c in found] == [(s, k) for s in range(100) for k in range(1, 101)]
    assert found[0]["shape"] is not found[1]["shape"], "what one job has another does not share"


@pytest.mark.parametrize(
    ("words", "in_full"),
    [
        (["seed=1,2,3", "batch=8"], 1),
        (["time_s=1,0.25,1e-3", "seed=1,2"], 1),  # a whole number where the schema has a float
        (["kernel=lola,launch", "worker.python.flax=a,b", "config.CHUNK=16,32"], 1),
        (["worker.inline=true,false"], 1),
        (["batch=true,2"], 1),  # refused later, as it is written
        (["dtype='float32',\"bfloat16\"", "device='cpu','auto'"], 4),
        (["batch=[1,2],[3]", "kernel=[lola],launch"], 4),
        (["batch=[1,2],3,4", "seed=1,2"], 2),  # both jobs with the list
        (["batch=3,null", "threads=null,1"], 3),  # of a null only the first job's is known
        (["experiment=quick,published"], 2),
        (["experiment=quick,published", "time_s=2,3"], 4),
        (["worker=process,inline"], 2),
        (["seed=1,2", "batch=${seed}"], 2),
        (["seed=1,2", "batch=3,${seed}"], 3),  # the first job, and both with ${seed}
        (["seed=1,2", "seed=3"], 2),  # the last one counts
        (["seed=1,2", "seed=3,4"], 4),
    ],
)  # fmt: skip
def test_the_jobs_of_a_sweep_are_what_hydra_composes(composed, words, in_full):
    words = ["-m", *words]
    found, alone = found_jobs(*words), len(composed)
    assert found == [jobs.compose_job("bench", line) for line in jobs.job_lines(words, command_line.parse(words))]
    assert alone == in_full


def test_a_preset_that_refers_to_a_swept_key_is_composed_for_each_job(tmp_path, composed):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nbatch: ${shape.K}\n")
    found = found_jobs("-m", "experiment=mine", "shape.K=3,5", "--config-dir", str(tmp_path))
    assert [c["batch"] for c in found] == [3, 5] and len(composed) == 2


def test_a_value_of_another_type_in_a_later_job_is_one_line():
    assert "many" in refused(found_jobs, "-m", "time_s=1,many")


@pytest.mark.parametrize("word", ["seed=range(0,3),-1", "seed=1,choice(2,3)"])
def test_a_sweep_within_a_sweep_is_one_line(word):
    said = refused(found_jobs, "-m", word)
    assert said == f"{word}: no list of values; expected seed=VALUE,VALUE or one range, seed=range(1,4)"


def test_lines_of_hydra_s_own_are_left_out():
    error = ValueError(
        "what is wrong\n  full_key: x\nobject_type=y\n\nreference_type=z\nSet the environment variable\nmore"
    )
    error.__cause__ = KeyError("why")
    assert command_line.one_line(error) == "what is wrong; more; 'why'"
    assert command_line.one_line(ValueError("what")) == "what"


def test_a_value_that_refers_to_nothing_is_refused():
    assert "nosuch" in refused(jobs.as_plain, OmegaConf.create({"a": "${nosuch}"}))
    assert refused(jobs.as_plain, OmegaConf.create({"a": "???"}))
    assert jobs.as_plain(OmegaConf.create({"a": "${b}", "b": [1]})) == {"a": [1], "b": [1]}


# Values


@pytest.mark.parametrize(
    ("gpu", "asked", "device"),
    [
        (None, "auto", "cpu"),
        ({}, "auto", "cpu"),
        ({"name": "x"}, "auto", "cuda"),
        ({"name": "x"}, "cpu", "cpu"),
        ({"name": "x"}, "cuda", "cuda"),
    ],
)
def test_the_device(monkeypatch, gpu, asked, device):
    monkeypatch.setattr(machine, "gpu", lambda: gpu)
    assert values.resolve_device(asked) == device


def test_a_device_that_is_not_here(monkeypatch):
    monkeypatch.setattr(machine, "gpu", lambda: None)
    assert (
        refused(values.resolve_device, "cuda")
        == "device=cuda: no NVIDIA driver with a GPU answers here; device=cpu and device=auto work"
    )
    assert refused(values.resolve_device, "gpu") == "unknown device 'gpu': did you mean cpu? There are: auto, cpu, cuda"


def test_threads(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    assert [values.check_threads(v) for v in (None, "null", 1, "3", 3)] == [None, None, 1, 3, 3]
    for value in (0, 4, "x", "-1", 1.5, ""):
        assert (
            refused(values.check_threads, value)
            == f"threads is {value}: expected a number from 1 to 3, the cores that are ours here"
        )


def test_the_plan_of_a_configuration():
    chosen = {"time_s": 0.25, "target": 0.5, "regime": "sustained", "cache": "auto"}
    assert values.plan(chosen, "cpu") == Plan(0.25, 0.5, "sustained", "warm")
    assert values.plan(chosen | {"regime": "auto"}, "cuda") == Plan(0.25, 0.5, "queued", "cold")
    assert values.plan({}, "cpu") == Plan(time_s=0)
    assert "regime=queued" in refused(values.plan, chosen | {"regime": "queued"}, "cpu")


def test_bad_input_is_one_line_and_two(capsys):
    assert fail(UsageError("one\ntwo")) == 2
    assert capsys.readouterr().err == "fusebench: one two\n"


@pytest.fixture
def stored_again():
    yield
    schema.register("bench", KERNELS)


def test_a_command_knows_the_dimensions_of_the_kernels_it_was_last_registered_for(stored_again):
    for known in ("lola", "launch", "lola"):
        for _ in range(2):  # the second finds it done
            schema.register("bench", {known: KERNELS[known]})
        shape = jobs.compose_job("bench", [f"kernel={known}"])["shape"]
        assert sorted(shape) == sorted(KERNELS[known].dimensions)


@pytest.mark.parametrize("path", ["/tmp/wd ünï/r", "it's (x)/r,1", "a=b/{c}", "größe", "plain/run-1", "C:/x", "~/runs"])
@pytest.mark.parametrize("key", ["resume", "out_dir", "path", "shapes", "baseline"])
def test_a_path_is_taken_as_it_is(key, path):
    (override,) = command_line.parse([f"{key}={path}"])
    assert override.value() == path
    (again,) = command_line.parse([f"{key}='{path}'".replace("it's", "it\\'s")])
    assert again.value() == path, "and as Hydra has it"


def test_paths_may_be_a_list_and_other_words_may_have_any_letters():
    assert command_line.paths_of(command_line.parse(["path=[a,'b c']"])) == ["a", "b c"]
    (override,) = command_line.parse(["implementation=größe"])
    assert override.value() == "größe"
    (swept,) = command_line.parse(["batch=1,2"])
    assert swept.is_sweep_override()
