"""`fusebench list`: kernel × implementation with variants, and why any is unavailable on this machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from rich.markup import escape
from rich.table import Column, Table

from fusebench import discovery, machine
from fusebench.discovery import Kernel
from fusebench.errors import UsageError, fail
from fusebench.terminal import by_words, console, print_whole

FRAMEWORKS = ("flax", "torch_eager", "torch_compile", "triton", "jax_triton", "cuda")


def markdown(kernels: Mapping[str, Kernel]) -> str:
    """Kernel × implementation with variants, ✓ for the variant "default". The last column has libraries' kernels."""
    rows = [["kernel", *FRAMEWORKS, "others"], ["---"] * (len(FRAMEWORKS) + 2)]
    for name, kernel in kernels.items():
        found = {
            i.name: ", ".join("✓" if v == "default" else v for v in i.variants) for i in kernel.implementations.values()
        }
        others = [i if found[i] == "✓" else f"{i}: {found[i]}" for i in found if i not in FRAMEWORKS]
        rows.append([name, *(found.get(f, "") for f in FRAMEWORKS), "; ".join(others)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main(arguments: list[str]) -> int:
    """Prints a table a kernel, or with --json {kernel: {implementation: {"variants": […], "unavailable": reason or null}}}."""
    parser = argparse.ArgumentParser("fusebench list", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="print kernel × implementation as a Markdown table")
    parser.add_argument("path", nargs="*", metavar="path=DIR", help="folders of kernels outside this repository")
    options, unknown = parser.parse_known_args(arguments)
    try:
        stray = unknown + [p for p in options.path if not p.startswith("path=")]
        if stray:
            raise UsageError(f"unexpected {stray[0]!r}: fusebench list takes --json, --markdown and path=DIR")
        kernels = discovery.find_kernels(discovery.roots_of(p.removeprefix("path=") for p in options.path))
    except UsageError as error:
        return fail(error)
    if options.markdown:
        print(markdown(kernels))
        return 0
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
    _print(kernels, device)
    return 0


def _print(kernels: Mapping[str, Kernel], device: str) -> None:
    out, headings = console(), ("kernel", "implementation", "variants", "here")
    rows = [headings]
    for name, kernel in kernels.items():
        for i in kernel.implementations.values():
            here = "interpreted: parity only" if device == "cpu" and i.without_gpu == "interpreted" else "yes"
            rows.append((name, i.name, ", ".join(i.variants), i.unavailable(device) or here))
    columns = [list(column) for column in zip(*rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    room = out.width - (3 * len(headings) + 1) - widths[0] - widths[1]  # for variants and here, within the frame
    columns[3] = by_words(columns[3], max(room // 2, room - widths[2]))
    columns[2] = by_words(columns[2], room - max(len(line) for text in columns[3] for line in text.splitlines()))
    table = Table(*(Column(heading, no_wrap=True) for heading in headings))
    for cells in list(zip(*columns, strict=True))[1:]:
        table.add_row(*map(escape, cells))
    print_whole(out, table)
