"""A kernel is translated for the emulator once: what is kept serves later processes, until the PTX or the emulator is another, or the file is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusebench.backends import cuda
from fusebench.emulator import ptx, translations

SOURCE = Path(__file__).parent / "fixtures" / "emulated" / "operations.cu"


@pytest.fixture
def text():
    return cuda.compile_ptx(SOURCE, "sm_90a", "integers")


@pytest.fixture
def store(monkeypatch):
    """The cache, by key, empty at first."""
    kept: dict[str, bytes] = {}
    monkeypatch.setattr(cuda, "_store", lambda: kept)
    return kept


@pytest.fixture
def translated(text, monkeypatch):
    """A function that translates, and the names of the kernels that were really read."""
    read, names = ptx.read, []
    monkeypatch.setattr(ptx, "read", lambda text, name: names.append(name) or read(text, name))

    def translate(text=text, name="integers"):
        return translations.translation(text, name)

    translate.names = names
    return translate


def test_it_is_made_once(translated, store):
    first = translated()
    assert translated() == first and len(first.codes) > 1 and first.registers and first.parameters
    assert translated.names == ["integers"] and len(store) == 1


def test_another_process_uses_it(text, tmp_path):
    program = (
        "import sys; from fusebench.emulator import ptx, translations\n"
        "if sys.argv[1]: ptx.read = None\n"  # whoever translates now fails
        "print(len(translations.translation(sys.stdin.read(), 'integers').codes))"
    )
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", program, kept],
            input=text,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for kept in ("", "kept")
    ]
    assert int(said[0]) > 1 and said[0] == said[1]


def test_a_broken_one_is_made_again(translated, store):
    first = translated()
    (key,) = store
    whole = store[key]
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for broken in (b"", whole[:20], whole[:-1], flipped, b"\0" * len(whole)):
        store[key] = broken
        assert translated() == first and store[key] == whole
    assert len(translated.names) == 6


def test_an_edited_emulator_and_other_ptx_have_their_own(translated, store, text, monkeypatch):
    translated()
    assert translated(text.replace(".loc", ".loc ")) == translated()
    assert len(store) == len(translated.names) == 2
    *others, last = translations.SOURCES
    monkeypatch.setattr(translations, "SOURCES", [*others, last + b"# edited\n"])
    translated()
    assert len(store) == len(translated.names) == 3


def test_without_a_cache_it_is_made_each_time(translated, monkeypatch):
    monkeypatch.setattr(cuda, "_store", lambda: None)
    assert translated() == translated() and len(translated.names) == 2
