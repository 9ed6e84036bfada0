"""asv's environment `checkout`: the Python that runs asv, with its packages, and a checkout of the measured commit.

asv's own environments would install torch anew for each commit. Only `implementations` is taken from the checkout; harness and
suite are the working tree's (suite.py). asv loads this file as a plugin, named in asv.conf.json.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from asv import util
from asv.console import log
from asv.environment import Environment, EnvironmentUnavailable
from asv.machine import Machine, MachineCollection

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

    def find_executable(self, executable: str) -> str:
        return sys.executable if executable == "python" else super().find_executable(executable)

    def run(self, args: list[str], **options: Any) -> Any:
        return self.run_executable("python", args, **options)
