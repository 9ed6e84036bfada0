"""Configuration → cases → cells: which kernels, sizes, dtypes and implementations a request means, checked name by name."""

from __future__ import annotations

import csv
import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusebench import hard
from fusebench.contract import DTYPES, PRECISIONS, Case, Cell, Tunable
from fusebench.discovery import Kernel
from fusebench.errors import UsageError, unknown


def select_cells(kernels: Mapping[str, Kernel], config: Mapping[str, Any]) -> list[Cell]:
    """The cells that a configuration asks for, those of one case together.

    Keys as in conf/bench.yaml; each takes one value, a list, or (for names) `all`. Raises UsageError for any name that does
    not exist and any size that is not a positive integer.
    """
    names = [check_name("kernel", k, kernels) for k in chosen(config["kernel"], kernels)]
    asked = [kernels[n] for n in names]
    check_keys("dimension", config["shape"], {d for k in asked for d in k.dimensions}, names)
    check_keys("option", config["option"], {o for k in asked for o in k.options}, names)
    tunables = {name: some(value) for name, value in config.get("config", {}).items() if value is not None}
    if config["case"] is not None:
        _check_cases(asked, config)
    implementations = chosen(config["implementation"], {i: None for k in asked for i in k.implementations})
    for request in implementations:
        check_implementation(asked, request)
    seeds = [positive("seed", seed, least=0) for seed in some(config["seed"])]
    kinds = some("plain" if config["inputs"] is None else config["inputs"])
    wanted = [check_name("inputs", kind, hard.KINDS) for kind in chosen(kinds, hard.KINDS)]
    variants = {kernel.name: _variants(kernel, implementations) for kernel in asked}
    _check_tunables(asked, variants, tunables)
    cells = [
        Cell(case, implementation, variant, seed, kind, chosen_config)
        for kernel in asked
        for case in select_cases(kernel, config)
        for seed in seeds
        for kind in wanted
        if "all" not in kinds or kind in hard.kinds(kernel.mathematics, case)
        for implementation, variant in variants[kernel.name]
        for chosen_config in _configs(kernel.implementations[implementation].tunables.get(variant, {}), tunables)
    ]
    if not cells and config.get("published"):
        have = ", ".join(
            dict.fromkeys(
                f"{k.name}/{make_case(k, p.case, p.dtype, p.precision, p.options).id}"
                for k in asked
                for p in k.mathematics.published
            )
        )
        raise UsageError(f"no cells: no published case is asked for. Those of {', '.join(names)} are: {have or 'none'}")
    if not cells:
        request = ", ".join(implementations)
        raise UsageError(
            f"no cells: no kernel has both a case={', '.join(map(str, some(config['case'])))} and an implementation={request}"
        )
    return cells


def _check_cases(kernels: Sequence[Kernel], config: Mapping[str, Any]) -> None:
    """Every case must be one of a chosen kernel, and every kernel that was chosen by its name must have one of the cases."""
    wanted = chosen(config["case"], {c: None for k in kernels for c in k.mathematics.cases})
    names = ", ".join(k.name for k in kernels)
    for case in wanted:
        check_name(f"case of {names}", case, {c: None for k in kernels for c in k.mathematics.cases})
    if "all" in some(config["kernel"]) or config.get("published") or config["shapes"] is not None:
        return
    for kernel in kernels:
        own = kernel.mathematics.cases
        if not set(wanted) & set(own):
            raise UsageError(
                f"{kernel.name} has no case {', '.join(wanted)}: leave it out of kernel={','.join(map(str, some(config['kernel'])))}, "
                f"or add one of its own to case=: {', '.join(own)}"
            )


def _check_tunables(
    kernels: Sequence[Kernel], variants: Mapping[str, Sequence[tuple[str, str]]], asked: Mapping[str, Sequence[Any]]
) -> None:
    """Every tunable that is set must be one of a chosen variant, and its values of the kind that the variant names."""
    known: dict[str, tuple[Tunable, ...]] = {}
    for kernel in kernels:
        for implementation, variant in variants[kernel.name]:
            known |= kernel.implementations[implementation].tunables.get(variant, {})
    for name, values in asked.items():
        check_name("tunable of the chosen implementations", name, known)
        kinds = {type(value) for value in known[name]}
        for value in values:
            if type(value) not in kinds:
                tried = ", ".join(map(str, known[name]))
                raise UsageError(f"config.{name} is {value!r}: expected a value such as {tried}")


def _configs(own: Mapping[str, Any], asked: Mapping[str, Sequence[Any]]) -> list[dict[str, Tunable]]:
    """The combinations of the asked values of those tunables that a variant has; one without any where it has none of them."""
    mine = {name: values for name, values in asked.items() if name in own}
    return [dict(zip(mine, values, strict=True)) for values in itertools.product(*mine.values())]


def select_cases(kernel: Kernel, config: Mapping[str, Any]) -> list[Case]:
    """The cases of one kernel: its named cases or the rows of a shapes file, with `shape`, `batch` and `option` set on top,
    times the dtypes and precisions; or those of the published cases that all of these name."""
    if config.get("published"):
        return _published(kernel, config)
    named = kernel.mathematics.cases
    if config["shapes"] is not None:
        starts = read_shapes(Path(config["shapes"]), kernel)
    else:
        wanted = chosen(next(iter(named)) if config["case"] is None else config["case"], named)
        starts = [dict(named[c]) for c in wanted if c in named]
    changes: dict[str, list[int]] = {}
    for dimension in kernel.dimensions:
        value = config["shape"].get(dimension)
        if value is None and dimension == kernel.mathematics.batch:
            value = config["batch"]
        if value is not None:
            changes[dimension] = [positive(f"size {dimension}", v) for v in some(value)]
    asked = {name: config["option"].get(name) for name in kernel.options}
    options = [[(n, v) for v in some(kernel.options[n][0] if o is None else o)] for n, o in asked.items()]
    dtypes, precisions = chosen(config["dtype"], DTYPES), chosen(config["precision"], PRECISIONS)
    cases: dict[str, Case] = {}
    for start, sizes, dtype, precision, option in itertools.product(
        starts, itertools.product(*changes.values()), dtypes, precisions, itertools.product(*options)
    ):
        case = make_case(kernel, start | dict(zip(changes, sizes, strict=True)), dtype, precision, dict(option))
        cases.setdefault(case.id, case)  # tf32 says nothing of 16-bit data or of a copy: one case, not two
    return list(cases.values())


def _published(kernel: Kernel, config: Mapping[str, Any]) -> list[Case]:
    """The kernel's published cases, each with its dtype, precision and options, where the configuration asks for these too."""
    sizes = {"batch": config["batch"], "shapes": config["shapes"]} | {
        f"shape.{d}": n for d, n in config["shape"].items()
    }
    if own := [f"{key}={value}" for key, value in sizes.items() if value is not None]:
        raise UsageError(f"published=true: the published cases have sizes of their own: leave out {' '.join(own)}")
    names = None if config["case"] is None else chosen(config["case"], kernel.mathematics.cases)
    dtypes, precisions = chosen(config["dtype"], DTYPES), chosen(config["precision"], PRECISIONS)
    asked = {
        name: [option_value(v, kernel.options[name]) for v in some(value)]
        for name, value in config["option"].items()
        if value is not None and name in kernel.options
    }
    made = [(p.case, make_case(kernel, p.case, p.dtype, p.precision, p.options)) for p in kernel.mathematics.published]
    return [
        case
        for name, case in made
        if (names is None or name in names) and case.dtype in dtypes and case.precision in precisions
        if all(case.options[option] in values for option, values in asked.items())
    ]


def make_case(
    kernel: Kernel,
    sizes: Mapping[str, int] | str,
    dtype: str = "float32",
    precision: str = "ieee",
    options: Mapping[str, Any] | None = None,
) -> Case:
    """A checked case: `sizes` is one of the kernel's named cases or all its sizes, options left out have their defaults.

    Its id is stable over the history, because a default that is added later does not stand in it. Raises UsageError.
    """
    known: Mapping[str, Mapping[str, int]] = kernel.mathematics.cases
    if isinstance(sizes, str):
        sizes = known[check_name(f"case of {kernel.name}", sizes, known)]
    check_name("dtype", dtype, DTYPES)
    check_name("precision", precision, PRECISIONS)
    asked: dict[str, str] = {}
    for name, value in (options or {}).items():
        known_values = kernel.options[check_name(f"option of {kernel.name}", name, kernel.options)]
        asked[name] = option_value(value, known_values)
        check_name(f"value of option {name} of {kernel.name}", asked[name], known_values)
    products = dtype == "float32" and "tf32" in kernel.mathematics.precisions
    precision = precision if products else "ieee"
    filled = {name: asked.get(name, values[0]) for name, values in kernel.options.items()}
    changed = [f"{n}={v}" for n, v in filled.items() if v != kernel.options[n][0]]
    listed = ",".join(f"{d}={n}" for d, n in sizes.items())
    named = next((name for name, theirs in known.items() if theirs == sizes), listed)
    case_id = "/".join([named, dtype, *([precision] if products else []), *changed])
    return Case(kernel.name, dict(sizes), dtype, precision, filled, id=case_id)


def option_value(value: Any, known: Iterable[str]) -> str:
    """The value of an option as the kernel spells it. Options are text, but Hydra and YAML read `1e-5` as a number and `false` as a
    truth value: those are the text that reads the same. A value that the kernel does not have is returned as text."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, str) or text in known:
        return text
    return next((name for name in known if _reads_as(name, value)), text)


def _reads_as(text: str, value: Any) -> bool:
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    try:
        return isinstance(value, int | float) and (float(text) == value or text.lower() == str(value))
    except ValueError:
        return False


def command(
    kernel: Kernel, cell: Cell, device: str, paths: Sequence[object] = (), timed: Sequence[str] = (), rows_seed: int | None = None
) -> str:  # fmt: skip
    """The command line that checks just this cell again; with the keys in `timed` it is timed as well, with `rows_seed` the same
    rows are judged."""
    case, name = cell.case, cell.case.id.split("/")[0]
    named = kernel.mathematics.cases.get(name) == case.sizes
    words = [f"case={name}"] if named else [f"shape.{d}={n}" for d, n in case.sizes.items()]
    words += [f"dtype={case.dtype}", f"precision={case.precision}"]
    words += [f"option.{n}={v}" for n, v in case.options.items() if v != kernel.options[n][0]]
    words += [f"config.{n}={v}" for n, v in cell.config.items()]
    words += [f"seed={cell.seed}", f"inputs={cell.inputs}", f"device={device}"]
    words += [f"path=[{','.join(map(_quoted, paths))}]"] if paths else []
    words += [] if rows_seed is None else [f"rows_seed={rows_seed}"]
    what = "bench" if timed else "parity"
    where = (f"kernel={case.kernel}", f"implementation={cell.implementation}:{cell.variant}")
    return shlex.join(["fusebench", what, *where, *words, *timed])


def _quoted(path: object) -> str:
    """The path as Hydra reads it in a list."""
    text = str(path)
    return text if re.fullmatch(r"[\w./-]+", text, re.ASCII) else "'" + text.replace("'", "\\'") + "'"


def read_shapes(path: Path, kernel: Kernel) -> list[dict[str, int]]:
    """Sizes from a CSV file (a header of dimensions, a row a case) or a YAML file (a list of mappings), checked."""
    if not path.is_file():
        raise UsageError(
            f"shapes={path}: no such file; expected a .csv or .yaml file with the columns {', '.join(kernel.dimensions)}"
        )
    if path.suffix == ".csv":
        rows: Any = list(csv.DictReader(_text(path).splitlines(), skipinitialspace=True))
    elif path.suffix in (".yaml", ".yml"):
        import yaml

        try:
            rows = yaml.safe_load(_text(path))
        except yaml.YAMLError as error:
            raise UsageError(f"shapes={path}: not YAML: {' '.join(str(error).split())}") from error
    else:
        raise UsageError(f"shapes={path}: expected a file that ends in .csv, .yaml or .yml")
    if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
        raise UsageError(f"shapes={path}: expected a list of sizes, such as {_example(kernel)}")
    sizes = []
    for number, row in enumerate(rows, 1):
        if set(row) != set(kernel.dimensions):
            names, known = ", ".join(map(str, row)), ", ".join(kernel.dimensions)
            raise UsageError(f"shapes={path}: row {number} has {names}, but {kernel.name} has the dimensions {known}")
        sizes.append({d: positive(f"shapes={path}: size {d} of row {number}", row[d]) for d in kernel.dimensions})
    return sizes


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # spreadsheets put a byte order mark in front
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"shapes={path}: cannot be read as text: {error}") from error


def chosen(value: Any, known: Iterable[str]) -> list[str]:
    """The names a value means: `all`, one name or a list of names; each once, in the order given."""
    return list(dict.fromkeys(name for v in some(value) for name in (known if v == "all" else [str(v)])))


def some(value: Any) -> list[Any]:
    """The value or values as a list of at least one. Raises UsageError for an empty one."""
    values = as_list(value)
    if not values:
        raise UsageError(f"nothing was chosen by {value!r}; expected a value or a list of values")
    return values


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def check_name(what: str, name: str, known: Iterable[str]) -> str:
    if name not in known:
        raise unknown(what, name, known)
    return name


def check_keys(what: str, values: Mapping[str, Any], known: Iterable[str], kernels: Sequence[str]) -> None:
    """Every dimension or option that is set must belong to one of the chosen kernels."""
    for name, value in values.items():
        if value is not None and name not in known:
            raise unknown(f"{what} of {', '.join(kernels)}", name, known)


def check_implementation(kernels: Sequence[Kernel], request: str) -> None:
    """`triton` or `triton:multirow_ws` must exist for one of the chosen kernels."""
    name, _, variant = request.partition(":")
    having = [k.implementations[name] for k in kernels if name in k.implementations]
    if not having:
        raise unknown("implementation", name, {i for k in kernels for i in k.implementations})
    if variant and not any(variant in i.variants for i in having):
        raise unknown(f"variant of {name}", variant, {v for i in having for v in i.variants})


def positive(what: str, value: Any, least: int = 1) -> int:
    """The value as an integer of at least `least`. Raises UsageError for anything else."""
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise UsageError(
            f"{what} is {value!r}: expected {'a positive integer' if least else 'an integer of 0 or more'}"
        )
    return number


def _variants(kernel: Kernel, requests: Sequence[str]) -> list[tuple[str, str]]:
    """(implementation, variant) of each request that this kernel has, in a stable order, each once."""
    pairs: dict[tuple[str, str], None] = {}
    for request in requests:
        name, _, variant = request.partition(":")
        if implementation := kernel.implementations.get(name):
            pairs |= {(name, v): None for v in implementation.variants if variant in ("", v)}
    return list(pairs)


def _example(kernel: Kernel) -> str:
    return "- {" + ", ".join(f"{d}: 64" for d in kernel.dimensions) + "}"
