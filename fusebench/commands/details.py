"""`fusebench list kernel=NAME`: all that a command line can ask of a kernel, and what its implementations declare."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from rich.markup import escape

from fusebench.cases import make_case
from fusebench.contract import MODES, Case
from fusebench.discovery import Kernel
from fusebench.errors import UsageError
from fusebench.terminal import console, print_table


def _work(kernel: Kernel, case: Case) -> dict[str, int]:
    try:
        flops, moved_bytes = kernel.mathematics.work(case)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return {"flops": flops, "moved_bytes": moved_bytes}


def describe(kernel: Kernel, device: str) -> dict[str, Any]:
    """The kernel in plain values: its cases with FLOPs and compulsory bytes in float32, and each variant with the points that it
    rounds at and its tunables."""
    mathematics = kernel.mathematics
    cases = {name: make_case(kernel, name) for name in mathematics.cases}
    about = ast.get_docstring(ast.parse((kernel.folder / "kernel.py").read_text(encoding="utf-8"))) or ""
    return {
        "about": about.split("\n\n")[0],
        "dimensions": list(kernel.dimensions),
        "batch": mathematics.batch,
        "options": {name: list(values) for name, values in kernel.options.items()},
        "precisions": list(mathematics.precisions),
        "modes": list(MODES if mathematics.gradient else MODES[:1]),
        "gradients": list(mathematics.gradients),
        "rows": dict(mathematics.rows),
        "outputs": list(mathematics.outputs),
        "parts": list(mathematics.parts),
        "cases": {name: {"sizes": dict(case.sizes), **_work(kernel, case)} for name, case in cases.items()},
        "published": [make_case(kernel, p.case, p.dtype, p.precision, p.options).id for p in mathematics.published],
        "implementations": {
            i.name: {
                "backend": i.backend,
                "computes": i.computes,
                "unavailable": i.unavailable(device),
                "untimed": i.untimed(device),
                "refused": dict(i.refusals(device)),
                "variants": {
                    variant: {
                        "points": list(points),
                        "tunables": {name: list(v) for name, v in i.tunables.get(variant, {}).items()},
                        "in_place": list(i.in_place.get(variant, ())),
                        "backward": list(i.backward[variant]) if variant in i.backward else None,
                    }
                    for variant, points in i.variants.items()
                },
            }
            for i in kernel.implementations.values()
        },
    }


def show(name: str, described: Mapping[str, Any]) -> None:
    """Prints what `describe` gave."""
    out = console()
    out.print(
        f"\n[bold]{name}[/]  {escape(' '.join(described['about'].removeprefix(f'{name}: ').split()))}", highlight=False
    )
    axes = ", ".join(f"{array or 'each output'} {axis}" for array, axis in described["rows"].items())
    said = {
        "dimensions": ", ".join(f"shape.{d}" for d in described["dimensions"]) + f"; batch= sets {described['batch']}",
        **{f"option.{option}": ", ".join(values) for option, values in described["options"].items()},
        "precision": ", ".join(described["precisions"]),
        "mode": ", ".join(described["modes"]),
        "gradients": ", ".join(described["gradients"]),
        "row axes": axes or "no rows are independent",
        "outputs": ", ".join(described["outputs"]),
        "parts": ", ".join(described["parts"]),
        "published": ", ".join(described["published"]),
    }
    for key, text in said.items():
        if text:
            out.print(f"  {key.ljust(max(map(len, said)))}  {text}", highlight=False, markup=False)
    dimensions = described["dimensions"]
    cases = [
        (case, *(str(own["sizes"][d]) for d in dimensions), f"{own['flops']:.3g}", f"{own['moved_bytes']:.3g}")
        for case, own in described["cases"].items()
    ]
    print_table(out, ("case",), (*dimensions, "FLOPs", "bytes"), cases)
    rows: list[tuple[str, ...]] = []
    has_gradient = len(described["modes"]) > 1
    tunables: dict[str, list[str]] = {}
    for implementation, own in described["implementations"].items():
        here = f"{own['untimed']}: parity only" if own["untimed"] else "yes"
        for variant, declared in own["variants"].items():
            label = implementation if variant == "default" else f"{implementation}:{variant}"
            behind = declared["backward"]  # "yes" where it rounds at no point
            backward = ["" if behind is None else ", ".join(behind) or "yes"] if has_gradient else []
            own_here = own["unavailable"] or own["refused"].get(variant) or here
            rows.append((label, ", ".join(declared["points"]), *backward, escape(own_here)))
            values = " ".join(f"config.{t}={','.join(map(str, v))}" for t, v in declared["tunables"].items())
            tunables.setdefault(values, []).append(label)
    headings = ("implementation", "rounding points", *(["backward"] if has_gradient else []), "here")
    print_table(out, headings, (), rows, ("rounding points",))
    for values, labels in tunables.items():
        if values:
            out.print(f"{', '.join(labels)}:  {values}", highlight=False, markup=False)
