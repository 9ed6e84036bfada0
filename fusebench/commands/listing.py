"""`fusebench list`: kernel × implementation with variants, and why any is unavailable on this machine; all of one with kernel=NAME."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from rich.markup import escape
from rich.table import Column, Table

from fusebench import discovery, machine, patterns
from fusebench.commands import details, runs
from fusebench.discovery import Implementation, Kernel
from fusebench.errors import UsageError
from fusebench.terminal import by_words, console, print_whole

KEYS = {"path": "path=DIR", "kernel": "kernel=NAME"}
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
    """Prints a table a kernel, or with --json {kernel: {implementation: {"variants": […], "unavailable": reason or null, "refused":
    {variant: reason}}}}; with kernel=NAME
    all of these kernels. Raises UsageError."""
    parser = argparse.ArgumentParser("fusebench list", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="print kernel × implementation as a Markdown table")
    parser.add_argument(
        "keys",
        nargs="*",
        metavar="KEY=VALUE",
        help="path=DIR, a folder of kernels outside this repository; kernel=NAME shows all of these kernels",
    )
    options, unknown_flags = parser.parse_known_args(arguments)
    keys: dict[str, list[str]] = {"path": [], "kernel": []}
    for word in [*unknown_flags, *options.keys]:
        key, _, value = word.partition("=")
        if key not in KEYS or not value:
            expected = ", ".join(["--json", "--markdown", *KEYS.values()])
            raise UsageError(f"unexpected {word!r}: fusebench list takes {expected}")
        keys[key] += runs.words(value) if key == "kernel" else [value]
    broken: dict[str, UsageError] = {}
    roots = discovery.roots_of(keys["path"])
    kernels = discovery.find_kernels(roots, broken)
    discovery.check_roots(roots, {*kernels, *broken})
    discovery.check_broken(broken, keys["kernel"] or [*kernels], kernels)
    if keys["kernel"]:
        kernels = {name: kernels[name] for name in patterns.choose("kernel", keys["kernel"], kernels)}
    if options.markdown:
        print(markdown(kernels))
        return 0
    device = "cuda" if machine.gpu() else "cpu"
    if keys["kernel"]:
        described = {name: details.describe(kernel, device) for name, kernel in kernels.items()}
        if options.json:
            print(json.dumps(described, indent=2))
            return 0
        for name, own in described.items():
            details.show(name, own)
        return 0
    found = {
        name: {
            i.name: {
                "variants": list(i.variants),
                "unavailable": i.unavailable(device),
                "refused": dict(i.refusals(device)),
            }
            for i in kernel.implementations.values()
        }
        for name, kernel in kernels.items()
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    _print(kernels, device)
    return 0


def _here(found: Implementation, device: str) -> str:
    """Whether it runs here, and which of its variants do not."""
    if reason := found.unavailable(device):
        return reason
    refusals = found.refusals(device)
    reasons = {why: [v for v in refusals if refusals[v] == why] for why in refusals.values()}
    if len(refusals) == len(found.variants) and len(reasons) == 1:
        return min(reasons)
    here = f"{found.untimed(device)}: parity only" if found.untimed(device) else "yes"
    return "; ".join([here, *(f"not {', '.join(own)}: {why}" for why, own in reasons.items())])


def _print(kernels: Mapping[str, Kernel], device: str) -> None:
    out, headings = console(), ("kernel", "implementation", "variants", "here")
    rows = [headings]
    for name, kernel in kernels.items():
        for i in kernel.implementations.values():
            rows.append((name, i.name, ", ".join(i.variants), _here(i, device)))
    columns = [list(column) for column in zip(*rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    room = out.width - (3 * len(headings) + 1) - widths[0] - widths[1]  # for variants and here, within the frame
    columns[3] = by_words(columns[3], max(room // 2, room - widths[2]))
    columns[2] = by_words(columns[2], room - max(len(line) for text in columns[3] for line in text.splitlines()))
    table = Table(*(Column(heading, no_wrap=True) for heading in headings))
    for cells in list(zip(*columns, strict=True))[1:]:
        table.add_row(*map(escape, cells))
    print_whole(out, table)
