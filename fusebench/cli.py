"""The command `fusebench`: dispatches to one small app per command. Loads no framework, and Hydra only for those that use it."""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "bench": "time kernels: fusebench bench kernel=lola implementation=[triton,torch_eager] dtype=bfloat16 batch=64",
    "parity": "check them against the float64 reference: fusebench parity kernel=lola dtype=all",
    "list": "show kernels, implementations and variants, and what is unavailable here (--json)",
}


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
    """Runs one command and returns the exit code: 0 all well, 1 a cell is not, 2 bad input."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(version("fusebench"))
        return 0
    command = arguments[0]
    if command not in COMMANDS:
        from fusebench.errors import unknown

        print(f"fusebench: {unknown('command', command, COMMANDS)}", file=sys.stderr)
        return 2
    rest = arguments[1:]
    if command in ("bench", "parity") and "--resume" in rest:  # Hydra would refuse a flag that it does not know
        at = rest.index("--resume")
        named = at + 1 < len(rest) and "=" not in rest[at + 1] and not rest[at + 1].startswith("-")
        rest[at : at + 1 + named] = [f"resume={rest[at + 1] if named else 'latest'}"]
    return importlib.import_module(f"fusebench.commands.{command}").main(rest)


if __name__ == "__main__":
    sys.exit(main())
