"""The command `fusebench`: dispatches to one small app per command. Loads no framework, and Hydra only for those that use it."""

from __future__ import annotations

import importlib
import signal
import sys
from typing import Any

import fusebench
from fusebench.errors import StorageError, UsageError, fail, unknown
from fusebench.terminal import print_no_more, print_what_can_be_encoded

COMMANDS = {
    "bench": "time kernels: fusebench bench kernel=lola implementation=[triton,torch_eager] dtype=bfloat16 batch=64",
    "compare": "which of two sides is faster: fusebench compare triton@HEAD~1 triton kernel=lola --fail-slower 3%",
    "parity": "check them against the float64 reference: fusebench parity kernel=lola dtype=all",
    "sanitize": "look for races and bad accesses with compute-sanitizer: fusebench sanitize kernel=lola dtype=all jobs=4",
    "inspect": "what the compiler made of kernels, without a GPU: fusebench inspect kernel=lola dtype=bfloat16 arch=sm_90a",
    "profile": "trace their calls for Perfetto; kernels, gaps, syncs, memory, counters: fusebench profile kernel=lola case=large",
    "diff": "how far the outputs of two sides are apart, beside float64: fusebench diff kernel=lola a=triton b=torch_eager",
    "tune": "search their tunables, and keep the fastest config: fusebench tune kernel=softmax implementation=cuda dtype=bfloat16",
    "show": "tables of earlier runs, merged, chosen, sorted, beside a baseline: fusebench show latest baseline=RUN out=table.csv",
    "performance": "our fastest implementation of each case beside the fastest other one: fusebench performance RUN out=docs/performance.md",
    "plot": "an SVG of time against a size, and a roofline: fusebench plot latest x=shape.M out=lola.svg",
    "list": "show kernels, implementations and variants, and what is unavailable here; all of one: fusebench list kernel=lola",
    "asv": "track latency and parity error over the history: fusebench asv kernel=softmax implementation=[torch_eager,triton]",
    "data": "write synthetic rows in Criteo's schema, or read and check real ones: fusebench data criteo rows=1000000 out=criteo",
    "train": "train the recommendation model with one's own step: fusebench train dlrm implementation=torch_compile steps=2000",
    "new": "write the files of a kernel or of an implementation: fusebench new implementation softmax torch_fast",
    "yardsticks": "show what this device was measured to do: copy, read, products, launch (device=cpu, fresh=true, --json)",
}
# those that read their arguments themselves, without Hydra, by their module in commands/
OWN_ARGUMENTS = {
    "asv": "asv",
    "data": "data",
    "list": "listing",
    "new": "new",
    "performance": "performance",
    "plot": "plot",
    "show": "show",
    "train": "train",
    "yardsticks": "yardsticks",
}

FLAGS = {
    "--quiet": "quiet=true", "-q": "quiet=true", "--verbose": "verbose=true", "-v": "verbose=true", "--dry-run": "dry_run=true"
}  # fmt: skip
# those that prepare or run Hydra's app in a way of their own; bench and parity are the app itself
OWN_APPS = ("compare", "diff", "inspect", "profile", "sanitize", "tune")


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: fusebench COMMAND [KEY=VALUE …]",
            "",
            *lines,
            "",
            "fusebench COMMAND --help shows the keys of a command.",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0 all well, 1 a cell is not, 2 bad input, 130 interrupted."""
    # ends as tidily as Ctrl-C, also where a script that runs this in the background lets SIGINT be ignored
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print_what_can_be_encoded()
    try:
        code = _dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()  # here, where a full disk can still be told of
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        print_no_more()
        return 0
    except OSError as error:  # what was printed found no room, or a file that was there is gone
        print_no_more()
        print(f"fusebench: {error.filename or 'the output'}: {error.strerror or error}", file=sys.stderr)
        return 1


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    command, *rest = arguments
    if "--version" in arguments:
        print(fusebench.__version__)
        return 0
    if command in ("-sc", "--shell-completion"):
        from fusebench.commands.completion import complete

        return complete(rest, COMMANDS)
    if command not in COMMANDS:
        print(f"fusebench: {unknown('command', command, COMMANDS)}", file=sys.stderr)
        return 2
    if command in OWN_ARGUMENTS:
        return _run_own(importlib.import_module(f"fusebench.commands.{OWN_ARGUMENTS[command]}"), rest)
    rest = [FLAGS.get(word, word) for word in _resume_as_key(rest)]
    if command == "compare":
        rest = _fail_slower_as_key(rest)
    if command in OWN_APPS:
        run = getattr(importlib.import_module(f"fusebench.commands.{command}"), f"run_{command}")
        return int(run(rest))
    from fusebench.commands.app import run_app

    return run_app(command, rest)


def _run_own(module: Any, arguments: list[str]) -> int:
    """A command of OWN_ARGUMENTS, or its HELP; that of `list` is argparse's."""
    if hasattr(module, "HELP") and {"--help", "-h"} & set(arguments):
        print(module.HELP)
        return 0
    try:
        return int(module.main(arguments))
    except UsageError as error:
        return fail(error)
    except StorageError as error:  # what was printed before stays
        print(f"fusebench: {error}", file=sys.stderr)
        return 1


def _resume_as_key(arguments: list[str]) -> list[str]:
    """`--resume [RUN]` as the key that it stands for: Hydra refuses flags that it does not know."""
    arguments = [a.removeprefix("--") if a.startswith("--resume=") else a for a in arguments]
    if "--resume" not in arguments:
        return arguments
    at = arguments.index("--resume")
    after = arguments[at + 1 : at + 2]
    named = bool(after) and "=" not in after[0] and not after[0].startswith("-")
    return [*arguments[:at], f"resume={after[0] if named else 'latest'}", *arguments[at + 1 + named :]]


def _fail_slower_as_key(arguments: list[str]) -> list[str]:
    """`--fail-slower 3%` as the key that it stands for."""
    flag = "--fail-slower"
    arguments = [f"fail_slower={a.removeprefix(flag + '=')}" if a.startswith(f"{flag}=") else a for a in arguments]
    if flag not in arguments:
        return arguments
    at = arguments.index(flag)
    return [*arguments[:at], f"fail_slower={' '.join(arguments[at + 1 : at + 2])}", *arguments[at + 2 :]]


if __name__ == "__main__":
    sys.exit(main())
