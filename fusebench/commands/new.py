"""`fusebench new`: the files of a kernel or of an implementation, with the names of the contract in place (fusebench/templates/)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import Template

from fusebench import discovery
from fusebench.cases import make_case
from fusebench.contract import Case
from fusebench.discovery import Kernel
from fusebench.errors import UsageError, unknown
from fusebench.inputs import make_sets
from fusebench.parity.judge import Judge, every_point

TEMPLATES = Path(__file__).parent.parent / "templates"
# beginnings of an implementation's name → its template; the longer one of two that fit
FRAMEWORKS = {
    "torch": "torch", "torch_compile": "torch_compile", "jax": "jax", "flax": "jax", "triton": "triton",
    "jax_triton": "jax_triton", "cuda": "cuda",
}  # fmt: skip
TYPES = {"int32": "*i32", "int64": "*i64", "bool": "*i1"}  # of what does not have the case's dtype, in Triton
HELP = f"""usage: fusebench new kernel NAME [path=DIR]
       fusebench new implementation KERNEL NAME [framework=…] [path=DIR]

Writes the files of a kernel or of an implementation with every name of the contract in place. What is left to write says so:
until then its cells fail with the file's name. No file is overwritten.

  NAME            of an implementation: it begins with its framework, such as torch_fast or triton_split_k
  framework=…     {", ".join(dict.fromkeys(FRAMEWORKS.values()))}: what NAME does not say
  path=DIR        a folder of kernels outside this repository, which commands get by path=DIR; it is made if there is none

fusebench/contract.py and CONTRIBUTING.md say what each name means."""


@dataclass(frozen=True)
class Asked:
    """What the command line asks for. `kernel` is the new one's name, or the one that gets an implementation."""

    what: str
    kernel: str
    implementation: str
    framework: str
    path: Path | None


def main(arguments: list[str]) -> int:
    """Prints the files that it has written, and the command that tries them. Raises UsageError."""
    asked = _asked(arguments)
    written = new_kernel(asked) if asked.what == "kernel" else new_implementation(asked)
    print("\n".join(map(str, written)))
    path = f" path={asked.path}" if asked.path else ""
    name = asked.implementation or "torch_eager"
    print(f"Then: fusebench parity kernel={asked.kernel} implementation={name} dtype=all{path}")
    if asked.what == "kernel" and not asked.path:
        print(f"The tests ask for tests/programs/{asked.kernel}.py: correct and wrong programs of the kernel in NumPy")
    return 0


def _asked(arguments: list[str]) -> Asked:
    """What the arguments say. Raises UsageError for those that make no sense."""
    keys = dict(a.split("=", 1) for a in arguments if "=" in a)
    words = [a for a in arguments if "=" not in a]
    if wrong := sorted(set(keys) - {"path", "framework"}):
        raise unknown("key", wrong[0], ("path", "framework"))
    lengths = {"kernel": 2, "implementation": 3}
    if not words or words[0] not in lengths or len(words) != lengths[words[0]]:
        said = " ".join(words) or "nothing"
        raise UsageError(f"new {said}: expected new kernel NAME, or new implementation KERNEL NAME (--help says more)")
    what, kernel, *rest = words
    name, path = (rest[0] if rest else ""), (Path(keys["path"]) if "path" in keys else None)
    for made in filter(None, (kernel, name)):
        if not discovery.is_importable_name(made) or made.startswith("_"):
            raise UsageError(f"{made!r} is no name that can be imported, such as rmsnorm or torch_fast")
    if what == "kernel" and "framework" in keys:
        raise UsageError("framework=: a kernel has none; fusebench new implementation KERNEL NAME takes it")
    return Asked(what, kernel, name, _framework(name, keys.get("framework")) if name else "", path)


def _framework(name: str, asked: str | None) -> str:
    """The template of an implementation. Raises UsageError where neither its name nor `framework=` says which."""
    if asked is not None:
        if asked not in FRAMEWORKS:
            raise unknown("framework", asked, FRAMEWORKS)
        return FRAMEWORKS[asked]
    fits = [known for known in FRAMEWORKS if name == known or name.startswith(f"{known}_")]
    if not fits:
        known = ", ".join(dict.fromkeys(FRAMEWORKS.values()))
        raise UsageError(f"{name!r} does not begin with its framework: name one by framework=, of {known}")
    return FRAMEWORKS[max(fits, key=len)]


def new_kernel(asked: Asked) -> list[Path]:
    """kernel.py and torch_eager.py of a kernel x (M, N) → y (M, N), which its author changes."""
    folder = (asked.path or discovery.HOME) / asked.kernel
    if asked.kernel in discovery.find_kernels(discovery.roots_of()):
        raise UsageError(
            f"there is a kernel {asked.kernel}: fusebench new implementation {asked.kernel} NAME adds to it"
        )
    words = {"kernel": asked.kernel, "name": "torch_eager", "points": "none", "options": ""}
    call = {"arguments": "x", "signature": "x (M, N)", "outputs": "y (M, N)"}
    return _write(folder, {"kernel.py": ("kernel", words), "torch_eager.py": ("torch", words | call)})


def new_implementation(asked: Asked) -> list[Path]:
    """The file of an implementation in its kernel's folder, or in that of the same name under `path`; for CUDA two."""
    known = asked.path if asked.path and (asked.path / asked.kernel / "kernel.py").exists() else None
    kernels = discovery.find_kernels(discovery.roots_of([known] if known else []))
    if asked.kernel not in kernels:
        raise unknown("kernel", asked.kernel, kernels)
    kernel = kernels[asked.kernel]
    folder = asked.path / asked.kernel if asked.path else kernel.folder
    words = _words(kernel) | {"name": asked.implementation}
    files = {f"{asked.implementation}.py": (asked.framework, words)}
    if asked.framework == "cuda":
        files[f"{asked.implementation}.cu"] = ("cuda_source", words)
    return _write(folder, files)


def _words(kernel: Kernel) -> dict[str, str]:
    """What the templates say of a kernel: its arguments with their shapes, outputs, options and rounding points, as in its
    case `odd`."""
    mathematics = kernel.mathematics
    case = make_case(kernel, "odd" if "odd" in mathematics.cases else next(iter(mathematics.cases)), "float32")
    (arrays,) = make_sets(mathematics, case, 0, 1)
    try:
        shapes = [output.shape for output in Judge(mathematics, case, arrays).reference()]
        points = every_point(mathematics, case)
    except NotImplementedError:  # a formula that is still to be written
        shapes, points = [next(iter(arrays.values())).shape], set()
    outputs = [f"{n} {_shape(s, case)}" for n, s in zip(mathematics.outputs or ("y",), shapes, strict=False)]
    own = {n: a.dtype.name for n, a in arrays.items() if a.dtype.name in TYPES}
    options = "".join(f"\n    # case.options[{n!r}]: {', '.join(v)}" for n, v in kernel.options.items())
    return {
        "kernel": kernel.name,
        "arguments": ", ".join(arrays),
        "first": next((n for n in arrays if n not in own), next(iter(arrays))),
        "signature": ", ".join(f"{n} {_shape(a.shape, case)}" for n, a in arrays.items()),
        "outputs": ", ".join(outputs),
        "options": options.replace("'", '"'),
        "points": ", ".join(sorted(points)) or "none",
        "count": " * ".join(_sizes(shapes[0], case)) or "1",
        "shape": _tuple(_sizes(shapes[0], case)),
        "types": ", ".join(f'"{n}": "{TYPES[own[n]]}"' if n in own else f'"{n}": TYPES[case.dtype]' for n in arrays),
        "dtypes": ", ".join(f'"{own[n]}"' if n in own else "case.dtype" for n in arrays),
        "parameters": ", ".join(f"const {_in_c(own.get(n))}* {n}" for n in arrays),
    }


def _in_c(dtype: str | None) -> str:
    return {"int32": "int", "int64": "long long", "bool": "bool", None: "T"}[dtype]


def _dimension(size: int, case: Case) -> str:
    """The dimension of that size, or the size itself where none or several have it."""
    names = [name for name, known in case.sizes.items() if known == size]
    return names[0] if len(names) == 1 and size > 1 else str(size)


def _shape(shape: tuple[int, ...], case: Case) -> str:
    return _tuple([_dimension(size, case) for size in shape])


def _tuple(words: list[str]) -> str:
    """The words as a tuple is written."""
    return f"({', '.join(words)}{',' if len(words) == 1 else ''})"


def _sizes(shape: tuple[int, ...], case: Case) -> list[str]:
    """The sizes of a shape, as expressions of the case."""
    sizes = [_dimension(size, case) for size in shape]
    return [f'case.sizes["{size}"]' if size in case.sizes else size for size in sizes]


def _write(folder: Path, files: dict[str, tuple[str, dict[str, str]]]) -> list[Path]:
    """Writes all files, or none. Raises UsageError where one is there, or cannot be written."""
    if there := next((folder / name for name in files if (folder / name).exists()), None):
        raise UsageError(f"{there} is there already: take another name")
    texts = {
        folder / name: Template((TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")).substitute(words)
        for name, (template, words) in files.items()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}; name a folder that can be written by path=DIR") from error
    return list(texts)
