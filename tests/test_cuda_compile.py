"""How CUDA C++ becomes machine code: what its cache depends on, and what NVRTC is given."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("cuda.core")
from fusebench.backends import cuda

# The cache of machine code


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """root/kernel/main.cu with the headers that it includes, and a shared folder elsewhere."""
    for name, text in {
        "root/kernel/main.cu": '#include "near.cuh"\n  #  include   "above.cuh"\n#include "shared.cuh"\n#include <mma.h>\n// #include "no.cuh"\n',
        "root/kernel/near.cuh": '#include "inner.cuh"\n#include "near.cuh"\n',
        "root/kernel/inner.cuh": "",
        "root/above.cuh": '#include "near.cuh"\n#include "missing.cuh"\n',
        "shared/shared.cuh": '#include "beside.cuh"\n',
        "shared/beside.cuh": "",
        "shared/above.cuh": "the one that is nearer comes first",
        "root/kernel/no.cuh": "",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(cuda, "SHARED", tmp_path / "shared")
    monkeypatch.setattr(cuda, "header_folders", lambda: [Path("/headers")])
    return tmp_path


def test_a_kernel_is_made_of_its_own_headers_each_once(sources):
    found = [str(f.relative_to(sources)) for f in cuda.sources_of(sources / "root/kernel/main.cu")]
    assert found[0] == "root/kernel/main.cu" and sorted(found[1:]) == [
        "root/above.cuh", "root/kernel/inner.cuh", "root/kernel/near.cuh", "shared/beside.cuh", "shared/shared.cuh",
    ]  # fmt: skip


def test_everything_that_machine_code_depends_on_is_in_its_key(sources, monkeypatch):
    file = sources / "root/kernel/main.cu"
    plain = (file, "sm_80", ["copy<float>"], ["A=1"])
    keys = [cuda._key(*plain)]
    assert cuda._key(*plain) == keys[0] and len(keys[0]) == 64
    keys += [cuda._key(file, "sm_90a", ["copy<float>"], ["A=1"]), cuda._key(file, "sm_80", ["copy<float>", "x"], ["A=1"]),
             cuda._key(file, "sm_80", ["copy<float>"], []), cuda._key(file, "sm_80", ["copy<float>"], ["A=2"]),
             cuda._key(file, "sm_80", ["copy<float>", "A=1"], []), cuda._key(file, "sm_80", ["A=1"], ["copy<float>"]),
             cuda._key(*plain, True)]  # fmt: skip
    for header in ("root/kernel/main.cu", "root/kernel/inner.cuh", "root/above.cuh", "shared/beside.cuh"):
        (sources / header).write_text((sources / header).read_text() + "// changed\n")
        keys.append(cuda._key(*plain))
    monkeypatch.setattr(cuda, "header_folders", lambda: [Path("/other")])
    keys.append(cuda._key(*plain))
    from cuda.bindings import nvrtc

    monkeypatch.setattr(nvrtc, "nvrtcVersion", lambda: (0, 99, 1))
    keys.append(cuda._key(*plain))
    monkeypatch.setattr(cuda, "version", lambda package: f"another {package}")
    keys.append(cuda._key(*plain))
    monkeypatch.setattr(cuda, "STANDARD", "c++20")
    keys.append(cuda._key(*plain))
    monkeypatch.setattr(cuda, "header_folders", lambda: [file.parent / "toolkit"])
    (file.parent / "toolkit").mkdir()
    for text in ("#define CUDART_VERSION 13000", "#define CUDART_VERSION 13010"):
        (file.parent / "toolkit" / "cuda_runtime_api.h").write_text(text)
        keys.append(cuda._key(*plain))
    assert len(set(keys)) == len(keys)


def test_checkouts_with_the_same_text_share_what_is_compiled(tmp_path, monkeypatch):
    """Each has an environment of its own, whose headers say which they are."""
    keys = {}
    for checkout, text in (("one", "1"), ("two", "1"), ("other", "2")):
        file, headers = tmp_path / checkout / "implementations/copy/main.cu", tmp_path / checkout / "site/include"
        file.parent.mkdir(parents=True), headers.mkdir(parents=True)
        file.write_text("// a kernel\n"), (headers / "cuda_runtime_api.h").write_text(text)
        monkeypatch.setattr(cuda, "header_folders", lambda headers=headers: [headers])
        monkeypatch.delenv(cuda.LINEINFO, raising=False)
        keys[checkout] = [cuda._key(file, "sm_80", ["copy"], [], lines) for lines in (False, True)]
        monkeypatch.setenv(cuda.LINEINFO, "1")
        keys[checkout].append(cuda._key(file, "sm_80", ["copy"], [], lines=True))
    assert keys["one"][:2] == keys["two"][:2], "lines are looked for below implementations"
    assert keys["one"][2] != keys["two"][2], "tools from outside open the file that a line names"
    assert not set(keys["one"]) & set(keys["other"]), "of other headers nothing is shared"


@pytest.fixture
def compiled(sources, monkeypatch):
    """A function that compiles into some store, and the list of what was really compiled."""
    done = []
    monkeypatch.setattr(
        cuda, "_compile", lambda *a: done.append(a) or cuda.Cubin(b"co\nde", {"copy<float>": "_Z4copy"})
    )

    def compile_into(store):
        monkeypatch.setattr(cuda, "_store", lambda: store)
        return cuda.compile_cubin(str(sources / "root/kernel/main.cu"), "sm_80", ("copy<float>",), iter(["A=1"]))

    compile_into.done = done
    return compile_into


def test_what_is_compiled_is_kept(compiled, sources):
    store = {}
    first = compiled(store)
    assert compiled(store) == first == cuda.Cubin(b"co\nde", {"copy<float>": "_Z4copy"})
    assert compiled.done == [(sources / "root/kernel/main.cu", "sm_80", ["copy<float>"], ["A=1"], False)]
    (key,) = store
    for damaged in (b"", b"{\n", b"no JSON\ncode"):
        store[key] = damaged
        assert compiled(store) == first and store[key] == b'{"copy<float>": "_Z4copy"}\nco\nde'
    assert len(compiled.done) == 4


def test_without_a_cache_it_is_compiled_each_time(compiled):
    class Full(dict):
        def __setitem__(self, key, value):
            raise OSError

    for store in (None, Full()):
        assert compiled(store) == compiled(store)
    assert len(compiled.done) == 4


def test_the_cache_lies_in_the_users_folder(monkeypatch, tmp_path):
    from cuda.core import utils

    made = []
    monkeypatch.setattr(utils, "FileStreamProgramCache", lambda *a, **k: made.append((a, k)) or "store")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cuda._store.__wrapped__() == "store"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "me")
    cuda._store.__wrapped__()
    places = (tmp_path, tmp_path / "me" / ".cache")
    assert made == [((place / "fusebench" / "cuda",), {"max_size_bytes": 2**30}) for place in places]

    def unwritable(*_, **__):
        raise OSError

    monkeypatch.setattr(utils, "FileStreamProgramCache", unwritable)
    assert cuda._store.__wrapped__() is None


@pytest.mark.parametrize(
    ("capability", "arch"), [((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((10, 0), "sm_100"), ((12, 1), "sm_121"), ((8, 9), "sm_89")]
)  # fmt: skip
def test_only_hopper_has_instructions_of_its_own(capability, arch):
    assert cuda.architecture(capability) == arch


def test_headers_are_those_of_the_wheels_before_a_toolkits(tmp_path, monkeypatch):
    site = tmp_path / "site"
    wheels = [
        site / "nvidia" / name
        for name in ("cu13/include", "cu13/include/cccl", "cuda_runtime/include", "cuda_cccl/include")
    ]
    monkeypatch.setattr(sys, "path", ["", str(site), str(tmp_path / "nowhere"), str(site)])
    monkeypatch.setenv("CUDA_HOME", "/mine")
    monkeypatch.setenv("CUDA_PATH", "/theirs")
    toolkits = [Path(t) / sub for t in ("/mine", "/theirs", "/usr/local/cuda") for sub in ("include", "include/cccl")]
    site.mkdir()
    assert cuda.header_folders() == toolkits
    monkeypatch.delenv("CUDA_HOME"), monkeypatch.setenv("CUDA_PATH", "")
    assert cuda.header_folders() == toolkits[4:]
    for wheel in wheels:
        wheel.mkdir(parents=True)
    (site / "nvidia" / "cublas" / "include").mkdir(parents=True)
    assert cuda.header_folders() == wheels


# Compiling, by a stand-in for NVRTC


@pytest.fixture
def nvrtc(monkeypatch):
    """cuda.core's Program, which keeps what it was given and raises `error` if there is one."""
    from cuda import core

    given = SimpleNamespace(error=None)

    class Program:
        def __init__(self, *arguments):
            given.arguments = arguments

        def compile(self, *arguments, **keywords):
            given.compiled = arguments, keywords
            if given.error:
                raise given.error
            return SimpleNamespace(code=bytearray(b"code"), symbol_mapping={"a": b"_Za", "b": "_Zb"})

    monkeypatch.setattr(core, "Program", Program)
    monkeypatch.setattr(core, "ProgramOptions", lambda **options: options)
    return given


def test_what_nvrtc_is_given(sources, nvrtc):
    file = sources / "root/kernel/main.cu"
    found = cuda._compile(file, "sm_80", ["a", "b"], ["DEBUG", "N=3", "TEXT=x=y"])
    assert found == cuda.Cubin(b"code", {"a": "_Za", "b": "_Zb"}) and type(found.code) is bytes
    text, language, options = nvrtc.arguments
    assert (text, language) == (file.read_text(), "c++") and nvrtc.compiled == (
        ("cubin",),
        {"name_expressions": ("a", "b")},
    )
    folders = [str(p) for p in (sources / "root/kernel", sources / "root", sources / "shared", "/headers")]
    assert options == {
        "name": "main.cu", "arch": "sm_80", "std": "c++17", "include_path": folders,
        "define_macro": ["DEBUG", ("N", "3"), ("TEXT", "x=y")], "lineinfo": None,
    }  # fmt: skip
    cuda._compile(file, "sm_80", ["a"], [])
    assert nvrtc.arguments[2]["define_macro"] is None
    cuda._compile(file, "sm_80", ["a"], [], lines=True)
    assert nvrtc.arguments[2]["lineinfo"] is True and nvrtc.arguments[2]["name"] == str(file.resolve())


class NotFoundError(Exception):
    """By its name what cuda-core raises for a library that is not there."""


@pytest.mark.parametrize(
    ("error", "first", "hint"),
    [
        (ValueError("log\n main.cu(3): error: no such name \nmore"), "main.cu(3): error: no such name", ""),
        (ValueError("nothing to show"), "ValueError", ""),
        (ValueError('main.cu(1): error: could not open source file "mma.h"'), 'main.cu(1): error: could not open source file "mma.h"',
         f"\nmma.h was not found: pip install {cuda.PACKAGES}, or set CUDA_HOME"),
        (ValueError('x: error: cannot open source file "cub/cub.cuh" (no)'), 'x: error: cannot open source file "cub/cub.cuh" (no)',
         f"\ncub/cub.cuh was not found: pip install {cuda.PACKAGES}, or set CUDA_HOME"),
        (NotFoundError("libnvrtc"), "NotFoundError", "\nNVRTC itself was not found: pip install nvidia-cuda-nvrtc"),
    ],
)  # fmt: skip
def test_what_does_not_compile_is_told_in_its_first_line(sources, nvrtc, error, first, hint):
    nvrtc.error = error
    with pytest.raises(cuda.CompileError) as caught:
        cuda._compile(sources / "root/kernel/main.cu", "sm_80", ["a"], [])
    assert str(caught.value) == f"{first} (main.cu for sm_80)\n{error}{hint}" and caught.value.__cause__ is error
