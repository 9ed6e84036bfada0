"""A command's line as the user wrote it: Hydra's flags, and the overrides with their values."""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

import fusebench
from fusebench.cases import as_list, literal
from fusebench.errors import UsageError

NAMES = ("kernel", "implementation", "case", "dtype", "precision", "inputs", "mode", "tools")  # keys that take names
TEXTS = ("expect", "vs")  # keys that take a text, in which Hydra's grammar has no say
PATHS = ("path", "resume", "out_dir", "baseline", "shapes", "out")  # nor in a path; `path` may be a list of them
MOST_JOBS = 10_000  # of one multirun: each is composed beforehand


def parse(arguments: Sequence[str]) -> list[Override]:
    """The overrides among the arguments of a command, flags left out. Raises UsageError for one that does not parse."""
    given = flags(arguments)
    for name in ("config_name", "config_path", "experimental_rerun"):
        if getattr(given, name) is not None:
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag}: the configuration is this command's own; your presets go into --config-dir")
    if given.config_dir is not None and not Path(given.config_dir).is_dir():
        raise UsageError(f"--config-dir {given.config_dir}: no such folder; expected one with experiment/NAME.yaml")
    words = [quoted(word) for word in given.overrides]
    if stray := [w for w in words if w.startswith("=") or ("=" not in w and not w.startswith("~"))]:
        raise UsageError(f"unexpected {stray[0]!r}: expected KEY=VALUE, such as kernel=lola")
    parser, found = OverridesParser.create(), []
    for word in words:
        try:
            found += parser.parse_overrides([word])
        except HydraException as error:
            raise UsageError(_unreadable(word)) from error
    return found


def _unreadable(word: str) -> str:
    """What is wrong with a word that Hydra's grammar does not read, without the grammar's own terms."""
    key, _, value = word.partition("=")
    if not re.fullmatch(r"[+~]*[\w./@:-]+", key):
        return f"{word:.80}: {key:.40} is no key; expected KEY=VALUE, such as kernel=lola"
    open_ = [pair for pair in ("[]", "()", "{}") if value.count(pair[0]) != value.count(pair[1])]
    if open_:
        why = f"{open_[0][0]} and {open_[0][1]} do not match"
    elif value.count("'") % 2 or value.count('"') % 2:
        why = "a quote is not closed"
    elif re.search(r"(^|[\[,])\s*(,|\]|$)", value):
        why = "a value is missing beside a comma"
    else:
        why = f"{value:.40} is no value; other text stands in quotes, {shlex.quote(f'{key}={literal(value)}'):.80}"
    return f"{word:.80}: {why}; expected {key}=VALUE, or {key}=[VALUE,VALUE] for several"


def quoted(argument: str) -> str:
    """The argument with names that are left out, `~cuda`, quoted: Hydra's grammar has no bare ~ in a value. And the text
    of a key that takes one, a path, and a word with letters that the grammar does not know."""
    key, equals, value = argument.partition("=")
    bare = value not in ("", "null") and value[0] not in "'\"["
    if bare and key in TEXTS:
        return f"{key}='{value}'"
    if bare and key in PATHS:
        rest = value.replace(",", "") if key == "out_dir" else value  # it takes no list, and says so of a sweep
        return f"{key}={value if literal(rest) == rest else literal(value)}"
    if bare and not value.isascii() and not re.search(r"['\"(){}\[\],]", value):
        return f"{key}={literal(value)}"
    return key + equals + re.sub(r"(?<![^\[,])~[\w*?:]+", r"'\g<0>'", value) if key in NAMES else argument


def last(key: str, overrides: Sequence[Override]) -> Any:
    """The value of a key; where it is set twice Hydra takes the last one. None where it is not set."""
    return next((o.value() for o in reversed(overrides) if o.key_or_group == key), None)


def paths_of(overrides: Sequence[Override]) -> list[str]:
    """The folders that `path=` names."""
    value = last("path", overrides)
    return [] if value is None else [str(p) for p in as_list(value)]


def conflicts_with_resume(
    overrides: Sequence[Override], arguments: Sequence[str], allowed: Sequence[str] = ()
) -> list[str]:
    """What stands beside `resume=` that a run which goes on as it was configured does not take: all but the `allowed` keys."""
    keys = ("resume", "hydra", *allowed)
    others = [str(o.input_line) for o in overrides if o.key_or_group.split(".")[0] not in keys]
    return others + ["--multirun"] * flags(arguments).multirun


def only_shows(arguments: Sequence[str]) -> bool:
    """Whether Hydra will print something instead of running."""
    given = flags(arguments)
    return bool(given.help or given.hydra_help or given.cfg or given.info or given.shell_completion)


def flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments as Hydra is going to read them, whichever way flags and keys are mixed. Raises UsageError for a flag that Hydra
    does not have."""
    preset = [
        a for a in arguments if a.split("=")[0] == "--experiment"
    ]  # which argparse takes for --experimental-rerun
    given, stray = _hydra_flags().parse_known_intermixed_args([a for a in arguments if a not in preset])
    if stray := preset + stray:
        key, _, value = stray[0].lstrip("-").partition("=")
        raise UsageError(
            f"unknown flag {stray[0]}: a key has no dashes, {key}={value or 'VALUE'}; --help shows the keys"
        )
    return given


def keys_first(arguments: Sequence[str]) -> list[str]:
    """The same arguments in an order that Hydra takes: its flags stand before all keys or behind them."""
    others, keys = list(arguments), flags(arguments).overrides
    for key in keys:
        others.remove(key)
    return [*map(quoted, keys), *others]


# in OmegaConf's words
KINDS = {
    "to Integer": "an integer", "to Float": "a number", "valid bool": "true or false", "is not Optional": "a value",
    "Cannot merge DictConfig": "a value or a list",
}  # fmt: skip


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _hydra_flags() -> argparse.ArgumentParser:
    """The flags that Hydra 1.3 documents: it has no public parser for them."""
    parser = _Parser(add_help=False, allow_abbrev=True)
    parser.add_argument("overrides", nargs="*")
    for name, short in (
        ("help", "-h"),
        ("resolve", None),
        ("run", "-r"),
        ("multirun", "-m"),
        ("shell-completion", "-sc"),
    ):
        parser.add_argument(*filter(None, (f"--{name}", short)), action="store_true")
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("--version", action="version", version=fusebench.__version__)
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument(
        "--info",
        "-i",
        nargs="?",
        const="all",
        choices=["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"],
    )
    for name, short in (("package", "-p"), ("config-path", "-cp"), ("config-name", "-cn"), ("config-dir", "-cd")):
        parser.add_argument(f"--{name}", short)
    parser.add_argument("--experimental-rerun")
    return parser


def swept(override: Override) -> list[str]:
    """The values of a sweep, one more than a multirun may have at most. Raises UsageError for one that has no list of them."""
    try:
        return list(itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1))
    # Hydra's for intervals and globs, OmegaConf's for a sweep within a sweep, Python's for a range that stands still
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        key = override.key_or_group
        raise UsageError(
            f"{override.input_line}: no list of values; expected {key}=VALUE,VALUE or one range, {key}=range(1,4)"
        ) from error


def one_line(error: Exception) -> str:
    """The lines of a Hydra error that say what is wrong, without the hints for its own developers."""
    text = f"{error}\n{error.__cause__ or ''}"
    wrong_type = re.search(rf"merging override (.*)\n.*({'|'.join(KINDS)})", text)
    if wrong_type:
        return f"{wrong_type[1]}: expected {KINDS[wrong_type[2]]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(
        line
        for line in lines
        if not line.startswith(("full_key", "object_type", "reference_type", "Set the environment"))
    )


def with_quotes(arguments: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The arguments, with quotes around the values of those keys that need some for Hydra: `b=triton@HEAD~1`. Values with quotes of
    their own, lists, and several with commas between (outside of brackets) are left alone."""
    done = []
    for word in arguments:
        key, sign, value = word.partition("=")
        bare = sign and value and value[0] not in "'\"[" and not set(re.sub(r"\[[^][]*\]", "", value)) & set(",'\\")
        done.append(f"{key}='{value}'" if key in keys and bare and value != "null" else word)
    return done
