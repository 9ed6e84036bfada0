"""`fusebench COMMAND --help`: a line for each key, with its value, from the comments in conf/."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from fusebench import cases
from fusebench.configuration import command_line, schema
from fusebench.discovery import Kernel
from fusebench.folder import WHOLE
from fusebench.terminal import console

WIDEST = 120  # columns
USAGE = {
    "bench": "fusebench bench [KEY=VALUE …] [--resume [RUN]] [-m]: time implementations",
    "parity": "fusebench parity [KEY=VALUE …] [--resume [RUN]] [-m]: check them against the float64 reference",
    "sanitize": "fusebench sanitize [KEY=VALUE …] [--resume [RUN]] [-m]: look for races and bad accesses (docs/sanitize.md)",
    "inspect": "fusebench inspect [KEY=VALUE …] [-m]: what the compiler made of kernels, without a GPU (docs/inspect.md)",
    "profile": "fusebench profile [KEY=VALUE …] [-m]: trace calls, with their kernels, gaps, syncs, memory and counters (docs/profile.md)",
    "diff": "fusebench diff a=SIDE b=SIDE [KEY=VALUE …] [-m]: how far the outputs of two sides are apart (docs/inspect.md)",
    "tune": "fusebench tune kernel=NAME [KEY=VALUE …] [--resume [RUN]] [-m]: search the tunables of implementations (docs/tuning.md)",
    "compare": """fusebench compare A B [KEY=VALUE …] [--fail-slower 3%] [-m]: which of two sides is faster
       fusebench compare resume=RUN [pairs=20] [confidence=0.99] [fail_slower=3%]

A side is IMPLEMENTATION[:VARIANT][@REVISION], overrides in quotes, or both: triton@HEAD~1, @., "flax dtype=float16".""",
}
NAMES = "Names may be patterns, and ~ leaves some out: kernel=soft*, implementation=[all,~cuda], implementation=cuda:multi*."
TUNABLES = "with kernel=NAME --help, and `fusebench list kernel=NAME`, those of a kernel"
FLAGS = {
    "-m, --multirun": "a job for each combination of values with commas between: dtype=float32,float16",
    "--cfg job": "shows the configuration",
    "--config-dir DIR": "a folder with presets of yours, DIR/experiment/NAME.yaml",
    "-q, --quiet; -v, --verbose; --dry-run": "the keys of these names",
    "--hydra-help": "what else Hydra has",
}


def show(command: str, kernels: Mapping[str, Kernel], overrides: Sequence[Any]) -> None:
    """Prints the usage, the keys and the flags; with `kernel=` among the overrides the names of those kernels alone, and their
    tunables, of which all kernels together have hundreds."""
    chosen = command_line.last("kernel", overrides)
    names = cases.chosen("kernel", chosen, kernels) if chosen is not None else list(kernels)
    own = {name: kernels[name] for name in names}
    tunables = schema.tunable_names(own) if len(own) < len(kernels) else []
    out = console()
    width = min(out.width, WIDEST)
    print(f"usage: {USAGE[command]}\n\n{textwrap.fill(NAMES, width)}\n")
    for rows in (_keys(command, own, tunables), FLAGS):
        column = max(len(name) for name in rows if len(name) <= 24) + 4
        for name, text in rows.items():
            first = f"  {name}".ljust(column) if len(name) + 4 <= column else f"  {name}\n{' ' * column}"
            lines = textwrap.wrap(text, max(width - column, 24), break_long_words=False) or [""]
            print(first + f"\n{' ' * column}".join(lines))
        print()


def _keys(command: str, kernels: Mapping[str, Kernel], tunables: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE with what it means: the values are the command's own."""
    values: dict[str, str] = {}
    meanings: dict[str, str] = {}
    for file in ("base", command):
        for line in (schema.CONF / f"{file}.yaml").read_text(encoding="utf-8").splitlines():
            if found := re.fullmatch(r"(\w+): +(\S.*?)(?: +# (.*))?", line):
                key, value, meaning = found.groups()
                values[key], meanings[key] = value, meaning or meanings.get(key, "")
    own = {
        "shape.DIM=SIZE": ("a dimension, on top of the case", schema.dimension_names(kernels)),
        "option.NAME=VALUE": ("an option of the kernels", schema.option_names(kernels)),
        "config.NAME=VALUE": ("a tunable of the implementations", tunables or [TUNABLES]),
        "experiment=NAME": ("a preset", sorted(file.stem for file in (schema.CONF / "experiment").glob("*.yaml"))),
    }
    taken = [key for key in schema.SCHEMAS[command].__dataclass_fields__ if key != "resume" or command not in WHOLE]
    known = {f"{key}={values[key]}": meanings[key] for key in taken}
    known |= {key: f"{what}: {', '.join(names)}" for key, (what, names) in own.items() if names}
    return known | {
        "worker=inline": "everything in this process, for a debugger, ncu or compute-sanitizer",
        "worker.python.NAME=PATH": "another interpreter for one implementation or back end",
    }
