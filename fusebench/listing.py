"""`fusebench list`: kernel × implementation with variants, and why any is unavailable on this machine."""

from __future__ import annotations

import argparse
import json

from rich.table import Table

from fusebench import discovery, machine, report
from fusebench.config import fail
from fusebench.errors import UsageError


def main(arguments: list[str]) -> int:
    """Prints a table a kernel, or with --json {kernel: {implementation: {"variants": […], "unavailable": reason or null}}}."""
    parser = argparse.ArgumentParser("fusebench list", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("path", nargs="*", metavar="path=DIR", help="folders of kernels outside this repository")
    options = parser.parse_args(arguments)
    try:
        stray = [p for p in options.path if not p.startswith("path=")]
        if stray:
            raise UsageError(f"unexpected {stray[0]!r}: fusebench list takes --json and path=DIR")
        kernels = discovery.find_kernels(discovery.roots_of(p.removeprefix("path=") for p in options.path))
    except UsageError as error:
        return fail(error)
    device = "cuda" if machine.gpu() else "cpu"
    found = {
        name: {
            i.name: {"variants": list(i.variants), "unavailable": i.unavailable(device)}
            for i in kernel.implementations.values()
        }
        for name, kernel in kernels.items()
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    table = Table("kernel", "implementation", "variants", "here")
    for name, kernel in kernels.items():
        for i in kernel.implementations.values():
            here = "interpreted: parity only" if device == "cpu" and i.without_gpu == "interpreted" else "yes"
            table.add_row(name, i.name, ", ".join(i.variants), i.unavailable(device) or here)
    report.console().print(table)
    return 0
