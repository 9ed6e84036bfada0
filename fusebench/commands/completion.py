"""Completion in the shell: `eval "$(fusebench -sc install=bash)"`. Hydra has it for an application with one command; here the
command in the line that is completed says whose keys they are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from fusebench.commands.app import run_app
from fusebench.commands.compare import run_compare
from fusebench.configuration import schema


def complete(arguments: Sequence[str], commands: Iterable[str]) -> int:
    """Prints what `install=SHELL` or `uninstall=SHELL` lets the shell run, or for `query=SHELL` the words that may stand at the end
    of the line in COMP_LINE."""
    command = "bench"
    if any(argument.startswith("query=") for argument in arguments):
        line = os.environ.get("COMP_LINE", "")
        words = line.split()[1:] + [""] * line.endswith(" ")
        command, *rest = words or [""]
        if not rest:
            print(" ".join(name for name in commands if name.startswith(command)))
            return 0
        if command not in schema.SCHEMAS:
            return 0
        keys = [word for word in rest[:-1] if "=" in word and word[0] != "-"]  # flags and sides are not Hydra's
        # a list, which bench and compare have without it, would be completed as `kernel.`, and that as `kernel.0=`
        os.environ["COMP_LINE"] = " ".join(["fusebench", "kernel=all", *keys, rest[-1]])
    shown = ["--shell-completion", *arguments]
    return run_compare(shown) if command == "compare" else run_app(command, shown)
