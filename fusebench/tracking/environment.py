"""asv's environment `checkout`: the Python that runs asv, with its packages, and a checkout of the measured commit.

asv's own environments would install torch anew for each commit. Only `implementations` is taken from the checkout; harness and
suite are the working tree's (suite.py). asv loads this file as a plugin, named in asv.conf.json.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from asv import util
from asv.console import log
from asv.environment import Environment, EnvironmentUnavailable
from asv.machine import Machine, MachineCollection
from asv.results import get_filename

from fusebench import machine

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def setup() -> None:
    """Describes this machine as `asv machine --yes` does, where nobody has yet, so that `asv run` asks nothing."""
    name = Machine.get_unique_machine_name()
    try:
        MachineCollection.load(name)
    except util.UserError:
        MachineCollection.save(name, Machine.get_defaults())


class Checkout(Environment):
    """The device, of a CPU with FUSEBENCH_THREADS, tells series of figures apart; versions of the packages are kept beside them, and `publish` filters by them."""

    tool_name = "checkout"

    def __init__(self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: Any):
        if python != PYTHON:
            raise EnvironmentUnavailable(f"asv runs in Python {PYTHON}, not {python}")
        self.results_dir = conf.results_dir
        threads = os.environ.get("FUSEBENCH_THREADS")
        self.device = (machine.gpu() or {"name": f"CPU threads={threads}" if threads else "CPU"})["name"]
        versions = {k: v for k, v in machine.packages().items() if k in ("torch", "triton", "jax", "jax-triton")}
        super().__init__(conf, python, requirements | {"device": self.device} | versions, tagged_env_vars)

    @classmethod
    def matches(cls, python: str) -> bool:
        return python == PYTHON

    @property
    def name(self) -> str:
        return util.sanitize_filename(f"{self.tool_name}-py{self.python}-{self.device.replace(' ', '-')}")

    @property
    def dir_name(self) -> str:
        return self.tool_name

    @property
    def installed_commit_hash(self) -> None:
        """None: a checkout is made before every run, so that nothing which was changed in it is measured."""

    def check_presence(self) -> bool:
        """asv asks this once a run. There is nothing to install."""
        Path(self._path).mkdir(parents=True, exist_ok=True)
        ask = ["git", "status", "--porcelain", "implementations"]
        if changed := subprocess.run(ask, capture_output=True, text=True).stdout:
            log.warning(f"Not committed, so not measured:\n{changed.rstrip()}")
        return True

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        self.checkout_project(repo, commit_hash)

    def run(self, args: list[str], **options: Any) -> Any:
        """Runs a script of asv's, which finds in its environment what asv's own command line chose, and where results are kept. Of
        the sweep it shows dots as it goes on, and which cells are n/a and why."""
        history, commit = Path(self.results_dir).absolute(), self._global_env_vars.get("ASV_COMMIT")
        env = {
            **options.get("env", os.environ),
            "FUSEBENCH_BENCH": "\n".join(_patterns()),
            "FUSEBENCH_HISTORY": str(history),
        }
        if commit:
            named = get_filename(Machine.get_unique_machine_name(), commit, self.name)
            env["FUSEBENCH_REASONS"] = str((history / named).with_suffix(".na.txt"))
        swept = "setup_cache" in args
        done = self.run_executable("python", args, **options | {"env": env} | ({"dots": True} if swept else {}))
        if swept:
            lines = [line for line in done[0].splitlines() if line.startswith("n/a  ")]
            for line in lines:
                log.info(line)
            if lines:
                log.info("The sweep", reserve_space=True)  # asv says behind it how it went
        return done

    def find_executable(self, executable: str) -> str:
        return sys.executable if executable == "python" else super().find_executable(executable)


def _patterns() -> list[str]:
    """What asv's --bench chooses; asv does not tell an environment."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--bench", "-b", action="append", default=[])
    found: list[str] = parser.parse_known_args(sys.argv[1:])[0].bench
    return found
