"""Configuration → cases → cells: which kernels, sizes, dtypes and implementations a request means, checked name by name."""

from __future__ import annotations

import csv
import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusebench import hard, patterns
from fusebench.contract import DTYPES, MODES, PRECISIONS, Case, Cell, Tunable
from fusebench.discovery import Kernel
from fusebench.errors import UsageError, unknown

ODD = "odd"
LARGEST = 2**53  # of a size
WHY_ODD = "which every kernel has, for parity: add one to CASES that no tile divides and that is small, or name another by case="


def select_cells(kernels: Mapping[str, Kernel], config: Mapping[str, Any]) -> list[Cell]:
    """The cells that a configuration asks for, those of one case together.

    Keys as in conf/bench.yaml; each takes one value, a list, or (for names) `all`. Raises UsageError for any name that does
    not exist and any size that is not a positive integer.
    """
    names = chosen("kernel", config["kernel"], kernels)
    asked = [kernels[n] for n in names]
    check_keys("dimension", config["shape"], {d for k in asked for d in k.dimensions}, names)
    check_keys("option", config["option"], {o for k in asked for o in k.options}, names)
    tunables = {
        name: some(value, f"config.{name}") for name, value in config.get("config", {}).items() if value is not None
    }
    if config["case"] is not None:
        config = {**config, "case": _named_cases(asked, config)}
    variants = choose_variants(asked, config["implementation"])
    seeds = [positive("seed", seed, least=0) for seed in some(config["seed"], "seed")]
    kinds = some("plain" if config["inputs"] is None else config["inputs"], "inputs")
    wanted = chosen("inputs", kinds, hard.KINDS)
    every = any(map(patterns.is_pattern, map(str, kinds)))
    _check_tunables(asked, variants, tunables)
    cells = [
        Cell(case, implementation, variant, seed, kind, chosen_config)
        for kernel in asked
        for case in select_cases(kernel, config)
        for seed in seeds
        for kind in wanted
        if not every or kind in hard.kinds(kernel.mathematics, case)
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
        request = ", ".join(map(str, as_list(config["implementation"])))
        case = ", ".join(map(str, as_list(config["case"])))
        raise UsageError(f"no cells: no kernel has both a case={case} and an implementation={request}")
    return cells


def with_the_case(kernels: Mapping[str, Kernel], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of a request that names no kernel: of a preset's or the command's own list those that have one of the cases."""
    listed, case = some(config["kernel"], "kernel"), config["case"]
    if (
        case is None
        or any(patterns.is_pattern(str(w)) for w in [*listed, *some(case, "case")])
        or config.get("published")
        or config["shapes"] is not None
    ):
        return config
    wanted = set(map(str, as_list(case)))
    having = [k for k in listed if k in kernels and wanted & set(kernels[k].mathematics.cases)]
    return {**config, "kernel": having} if having else config


def _named_cases(kernels: Sequence[Kernel], config: Mapping[str, Any]) -> list[str]:
    """The cases that are asked for. Every one must be of a chosen kernel, and every kernel that was chosen by its name must have
    one of them."""
    known = list({c: None for k in kernels for c in k.mathematics.cases})
    if ODD in some(config["case"], "case") and ODD not in known:
        names = ", ".join(k.name for k in kernels)
        raise UsageError(f"{names} has no case {ODD}, {WHY_ODD}. There are: {', '.join(known)}")
    wanted = chosen(f"case of {', '.join(k.name for k in kernels)}", config["case"], known)
    words = [str(word) for word in as_list(config["kernel"])]
    if any(map(patterns.is_pattern, words)) or config.get("published") or config["shapes"] is not None:
        return wanted
    for kernel in kernels:
        own = kernel.mathematics.cases
        if not set(wanted) & set(own) and ODD in wanted:
            raise UsageError(f"{kernel.name} has no case {ODD}, {WHY_ODD}. There are: {', '.join(own)}")
        if not set(wanted) & set(own):
            raise UsageError(
                f"{kernel.name} has no case {', '.join(wanted)}: leave it out of kernel={','.join(words)}, "
                f"or add one of its own to case=: {', '.join(own)}"
            )
    return wanted


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
        wanted = next(iter(named)) if config["case"] is None else config["case"]
        starts = [dict(named[c]) for c in named_of(wanted, named)]
    changes: dict[str, list[int]] = {}
    for dimension in kernel.dimensions:
        value = config["shape"].get(dimension)
        key = f"shape.{dimension}"
        if value is None and dimension == kernel.mathematics.batch:
            key, value = "batch", config["batch"]
        if value is not None:
            changes[dimension] = [size(key, v) for v in some(value, key)]
    asked = {name: config["option"].get(name) for name in kernel.options}
    options = [
        [(n, v) for v in some(kernel.options[n][0] if o is None else o, f"option.{n}")] for n, o in asked.items()
    ]
    dtypes, precisions = chosen("dtype", config["dtype"], DTYPES), chosen("precision", config["precision"], PRECISIONS)
    cases: dict[str, Case] = {}
    for start, sizes, dtype, precision, option, mode in itertools.product(
        starts, itertools.product(*changes.values()), dtypes, precisions, itertools.product(*options), _modes(config)
    ):
        case = make_case(kernel, start | dict(zip(changes, sizes, strict=True)), dtype, precision, dict(option), mode)
        cases.setdefault(case.id, case)  # tf32 says nothing of 16-bit data or of a copy: one case, not two
    return list(cases.values())


def _modes(config: Mapping[str, Any]) -> list[str]:
    return chosen("mode", config.get("mode", MODES[0]), MODES)


def _published(kernel: Kernel, config: Mapping[str, Any]) -> list[Case]:
    """The kernel's published cases, each with its dtype, precision and options, where the configuration asks for these too."""
    sizes = {"batch": config["batch"], "shapes": config["shapes"]} | {
        f"shape.{d}": n for d, n in config["shape"].items()
    }
    if own := [f"{key}={value}" for key, value in sizes.items() if value is not None]:
        raise UsageError(f"published=true: the published cases have sizes of their own: leave out {' '.join(own)}")
    if (modes := _modes(config)) != ["forward"]:
        raise UsageError(f"published=true: the published figures are of mode=forward: leave out mode={','.join(modes)}")
    names = None if config["case"] is None else named_of(config["case"], kernel.mathematics.cases)
    dtypes, precisions = chosen("dtype", config["dtype"], DTYPES), chosen("precision", config["precision"], PRECISIONS)
    asked = {
        name: [option_value(v, kernel.options[name]) for v in some(value, f"option.{name}")]
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
    mode: str = "forward",
) -> Case:
    """A checked case: `sizes` is one of the kernel's named cases or all its sizes, options left out have their defaults.

    Its id is stable over the history, because a default that is added later does not stand in it. Raises UsageError.
    """
    known: Mapping[str, Mapping[str, int]] = kernel.mathematics.cases
    if isinstance(sizes, str):
        sizes = known[check_name(f"case of {kernel.name}", sizes, known)]
    check_name("dtype", dtype, DTYPES)
    check_name("precision", precision, PRECISIONS)
    check_name("mode", mode, MODES)
    asked: dict[str, str] = {}
    for name, value in (options or {}).items():
        known_values = kernel.options[check_name(f"option of {kernel.name}", name, kernel.options)]
        asked[name] = option_value(value, known_values)
        check_name(f"value of option {name} of {kernel.name}", asked[name], known_values)
    products = dtype == "float32" and kernel.mathematics.multiplies
    precision = precision if products else "ieee"
    filled = {name: asked.get(name, values[0]) for name, values in kernel.options.items()}
    changed = [f"{n}={v}" for n, v in filled.items() if v != kernel.options[n][0]]
    listed = ",".join(f"{d}={n}" for d, n in sizes.items())
    named = next((name for name, theirs in known.items() if theirs == sizes), listed)
    other = [] if mode == "forward" else [mode]
    case_id = "/".join([named, dtype, *([precision] if products else []), *changed, *other])
    return Case(kernel.name, dict(sizes), dtype, precision, filled, mode, case_id)


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
    kernel: Kernel, cell: Cell, device: str, paths: Sequence[object] = (), timed: Sequence[str] = (), rows_seed: int | None = None,
    fits: bool = True,
) -> str:  # fmt: skip
    """The command line that checks just this cell again; with the keys in `timed` it is timed as well, with `rows_seed` the same
    rows are judged; without `fits` a config that does not fit runs."""
    case, name = cell.case, cell.case.id.split("/")[0]
    named = kernel.mathematics.cases.get(name) == case.sizes
    words = [f"case={name}"] if named else [f"shape.{d}={n}" for d, n in case.sizes.items()]
    words += [f"dtype={case.dtype}", f"precision={case.precision}"]
    words += [f"option.{n}={v}" for n, v in case.options.items() if v != kernel.options[n][0]]
    words += [] if case.mode == "forward" else [f"mode={case.mode}"]
    words += [f"config.{n}={v}" for n, v in cell.config.items()]
    words += [f"seed={cell.seed}", f"inputs={cell.inputs}", f"device={device}"]
    words += [f"path=[{','.join(map(literal, paths))}]"] if paths else []
    words += [] if rows_seed is None else [f"rows_seed={rows_seed}"]
    words += [] if fits else ["fits=false"]
    what = "bench" if timed else "parity"
    where = (f"kernel={case.kernel}", f"implementation={cell.implementation}:{cell.variant}")
    return shlex.join(["fusebench", what, *where, *words, *timed])


def literal(path: object) -> str:
    """The path as Hydra reads it, also in a list."""
    text = str(path)
    return text if re.fullmatch(r"[\w./-]+", text, re.ASCII) else "'" + text.replace("'", "\\'") + "'"


def read_shapes(path: Path, kernel: Kernel) -> list[dict[str, int]]:
    """Sizes from a CSV file (a header of dimensions, a row a case) or a YAML file (a list of mappings), checked."""
    if not path.is_file():
        raise UsageError(
            f"shapes={path}: {'a folder' if path.is_dir() else 'no such file'}; expected a .csv or .yaml file with the columns {', '.join(kernel.dimensions)}"
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
    if path.suffix == ".csv" and not rows:
        header, row = ",".join(kernel.dimensions), ",".join("64" for _ in kernel.dimensions)
        raise UsageError(
            f"shapes={path}: no sizes; expected the header {header} and lines of sizes below it, such as {row}"
        )
    if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
        raise UsageError(f"shapes={path}: expected a list of sizes, such as {_example(kernel)}")
    sizes = []
    for number, row in enumerate(rows, 1):
        if set(row) != set(kernel.dimensions):
            names, known = ", ".join(map(str, row)), ", ".join(kernel.dimensions)
            raise UsageError(f"shapes={path}: row {number} has {names}, but {kernel.name} has the dimensions {known}")
        sizes.append({d: size(f"shapes={path}: size {d} of row {number}", row[d]) for d in kernel.dimensions})
    return sizes


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # spreadsheets put a byte order mark in front
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"shapes={path}: cannot be read as text: {error}") from error


def chosen(what: str, value: Any, known: Iterable[str]) -> list[str]:
    """The names that a value means, each once: one or a list of names, patterns, `all` and `~` names that are left out. Raises
    UsageError for what matches none."""
    return patterns.choose(what, some(value, what.partition(" of ")[0]), known)


def named_of(value: Any, known: Iterable[str]) -> list[str]:
    """Of the names that a value means those that are known."""
    own = list(known)
    return [
        name
        for word in dict.fromkeys(some(value, "case"))
        for name in (own if word == "all" else [word])
        if name in own
    ]


def some(value: Any, key: str) -> list[Any]:
    """The value or values of a key as a list of at least one. Raises UsageError for an empty one."""
    values = as_list(value)
    if not values:
        raise UsageError(f"{key}=[] chooses nothing; expected a value or a list of values")
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


def choose_variants(kernels: Sequence[Kernel], value: Any) -> dict[str, list[tuple[str, str]]]:
    """kernel → the (implementation, variant) that a value means, in a stable order, each once: `triton`, `triton:multirow_ws`,
    `cuda:multi*`, `~flax`. Raises UsageError for what no kernel has."""
    wanted, unwanted = (
        [_request(kernels, word) for word in words] for words in patterns.split(some(value, "implementation"))
    )
    left_out = {pair for request in unwanted for pair in request}
    found = {
        kernel.name: [
            (name, variant)
            for name, variant in dict.fromkeys(pair for request in wanted for pair in request)
            if variant in _variants(kernel, name) and (name, variant) not in left_out
        ]
        for kernel in kernels
    }
    patterns.left("implementation", as_list(value), [pair[0] for pairs in found.values() for pair in pairs])
    return found


def _request(kernels: Sequence[Kernel], word: str) -> list[tuple[str, str]]:
    """The (implementation, variant) of all kernels that one word means."""
    name, _, variant = word.partition(":")
    names = patterns.matching("implementation", name, list({i: None for k in kernels for i in k.implementations}))
    own = {n: list({v: None for k in kernels for v in _variants(k, n)}) for n in names}
    if variant:
        known = list({v: None for variants in own.values() for v in variants})
        asked = patterns.matching(f"variant of {name}", variant, known)
        own = {n: [v for v in variants if v in asked] for n, variants in own.items()}
    return [(n, v) for n, variants in own.items() for v in variants]


def _variants(kernel: Kernel, implementation: str) -> Iterable[str]:
    found = kernel.implementations.get(implementation)
    return found.variants if found else ()


def size(what: str, value: Any) -> int:
    """The value as a size of a case. Raises UsageError for anything else."""
    number = positive(what, value)
    if number > LARGEST:
        raise UsageError(f"{what} is {value!r}: no machine has memory for more than {LARGEST}")
    return number


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


def _example(kernel: Kernel) -> str:
    return "- {" + ", ".join(f"{d}: 64" for d in kernel.dimensions) + "}"
