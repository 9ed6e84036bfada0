"""What Hydra composes once for a command, and what it composes again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf

import fusebench.commands.app as app
from fusebench import cli
from fusebench.configuration import compositions


@pytest.fixture
def composed(monkeypatch):
    """The words of each composition that Hydra makes."""
    made = []
    load = ConfigLoaderImpl._load_configuration_impl

    def counted(loader, *arguments, **named):
        made.append(list(named["overrides"]))
        return load(loader, *arguments, **named)

    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", counted)
    return made


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """What each job of a command finds: its own seed, Hydra's mode and words, its folder. No cell runs."""
    monkeypatch.chdir(tmp_path)
    found = []

    def see(this, asked, finished):
        own = HydraConfig.get()
        folder = Path(own.runtime.output_dir)
        found.append((asked.chosen["seed"], own.mode, list(own.overrides.hydra), list(own.overrides.task), folder.name))
        return ""

    monkeypatch.setattr(app, "_measure", see)
    return found


def test_a_run_is_composed_once(composed, jobs):
    assert cli.main(["bench", "kernel=launch", "seed=3", "quiet=true", "out_dir=mine"]) == 0
    assert composed == [["kernel=launch", "seed=3", "quiet=true", "out_dir=mine"]]
    assert jobs == [(3, RunMode.RUN, ["hydra.mode=RUN"], composed[0], "mine")]


def test_a_sweep_is_composed_once_and_each_of_its_jobs(composed, jobs):
    assert cli.main(["bench", "kernel=launch", "seed=3,4", "time_s=1", "-m"]) == 0
    lines = [["kernel=launch", f"seed={seed}", "time_s=1"] for seed in ("3", "4", "3,4")]
    assert sorted(composed) == sorted(lines)
    mode = ["hydra.mode=MULTIRUN"]
    assert jobs == [(3, RunMode.MULTIRUN, mode, lines[0], "0"), (4, RunMode.MULTIRUN, mode, lines[1], "1")]


def test_a_change_of_hydras_own_keys_is_composed_as_ever(composed, jobs):
    assert cli.main(["bench", "kernel=launch", "quiet=true", "hydra.run.dir=mine"]) == 0
    words = ["kernel=launch", "quiet=true", "hydra.run.dir=mine"]
    assert composed == [words[:2], words, [*words, "hydra.mode=RUN"]]
    assert jobs == [(0, RunMode.RUN, ["hydra.run.dir=mine", "hydra.mode=RUN"], words[:2], "mine")]


@pytest.fixture
def conf(tmp_path):
    (tmp_path / "main.yaml").write_text("defaults:\n  - part: ???\n  - _self_\nvalue: 1\n")
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "one.yaml").write_text("size: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        yield tmp_path


def test_a_composition_is_the_callers_own(conf, composed):
    with compositions.kept():
        first = compose("main", ["part=one"])
        first.part.size = 2
        OmegaConf.set_struct(first, False)
        second = compose("main", ["part=one"])
    assert len(composed) == 1
    assert OmegaConf.to_container(second) == {"part": {"size": 1}, "value": 1}
    assert OmegaConf.is_struct(second)


def test_other_words_and_another_order_are_composed_anew(conf, composed):
    with compositions.kept():
        values = [
            compose("main", ["part=one", *words]).value for words in (["value=2", "value=3"], ["value=3", "value=2"])
        ]
    assert (values, len(composed)) == ([3, 2], 2)


def test_what_composes_for_a_sweep_alone_is_no_run(conf):
    loader = GlobalHydra.instance().config_loader()
    with compositions.kept():
        loader.load_configuration(config_name="main", overrides=[], run_mode=RunMode.MULTIRUN)
        with pytest.raises(HydraException, match="You must specify 'part'"):
            compose("main", [])


def test_another_command_composes_what_may_have_changed(conf, composed):
    for size in (1, 5):
        (conf / "part" / "one.yaml").write_text(f"size: {size}\n")
        with compositions.kept():
            assert compose("main", ["part=one"]).part.size == size
    assert len(composed) == 2
