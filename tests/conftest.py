"""What the tests share: the GPU marker, the project's kernels, and worker processes that stay for the whole session."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore

import fusebench.run as running
from fusebench import cli, discovery, machine, progress
from fusebench.commands import diff, yardsticks
from fusebench.contract import Cell
from fusebench.profiling import run as profiling
from fusebench.run import run
from fusebench.settings import Run, Settings
from fusebench.timing.plan import Plan
from fusebench.workers.pool import Pool

FIXTURES = Path(__file__).parent / "fixtures"
DEVICE = "cuda" if machine.gpu() else "cpu"
CLAIMS = os.environ.pop("FUSEBENCH_TEST_CLAIMS", None)  # of this process alone: a test may run pytest
CORES = sorted(os.sched_getaffinity(0))  # of both processes of `make test`


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough",
        action="store_true",
        help="without a GPU: run what is left out otherwise, and nothing else (turns.py)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU; skips elsewhere")
    config.addinivalue_line("markers", "thorough: without a GPU left out, but with --thorough")
    if CLAIMS is not None:
        _keep_to_a_half()
    os.environ.pop("COLUMNS", None)
    # Hydra copies the schemas of all commands whenever it composes one, and then once more that which it takes
    ConfigStore.__deepcopy__ = lambda store, memo: store  # type: ignore[attr-defined]
    os.environ["FUSEBENCH_CACHE"] = tempfile.mkdtemp(prefix="fusebench-")  # the user's yardsticks are left alone
    # with AMX Torch's bfloat16 product is wrong (docs/numerics.md, What it found)
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    # hard inputs run the same programs over and over: JAX may keep what it compiled
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(os.environ["FUSEBENCH_CACHE"]) / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def _keep_to_a_half() -> None:
    """Leaves every second core to the other process of `make test`: threads of both on one core wait for each other, which took 14 % longer."""
    own = CORES[0::2] if _claimed("cores") else CORES[1::2]
    for thread in Path("/proc/self/task").iterdir():  # those of libraries too, which are imported
        os.sched_setaffinity(int(thread.name), own or CORES)


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["FUSEBENCH_CACHE"], ignore_errors=True)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """A file may import from the project's implementations, whatever roots the one before it used."""
    package = sys.modules.get("implementations")
    if isinstance(collector, pytest.Module) and str(discovery.HOME) not in getattr(package, "__path__", ()):
        discovery.use_roots([discovery.HOME])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if DEVICE == "cpu":
        thorough = config.getoption("thorough")
        found: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for item in items:
            found[(item.get_closest_marker("thorough") is not None) == thorough].append(item)
        items[:] = found[True]
        config.hook.pytest_deselected(items=found[False])
    for item in items:
        if item.get_closest_marker("gpu") and DEVICE == "cpu":
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """True, which leaves the test out, where the other process of `make test` was first to come to its file."""
    return None if CLAIMS is None or _claimed(item.path.name) else True


@functools.cache
def _claimed(file: str) -> bool:
    """Whether this process is the first to ask for the file."""
    try:
        (Path(str(CLAIMS)) / file).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@pytest.fixture(scope="session")
def roots() -> list[Path]:
    """The project's kernels and the fixtures'."""
    return _roots()


def _roots() -> list[Path]:
    return discovery.roots_of([FIXTURES / folder for folder in ("kernels", "extra", "faults", "tunables", "profiled")])


@pytest.fixture(scope="session")
def kernels(at_first: tuple[dict[str, discovery.Kernel], dict[str, Any]]) -> dict[str, discovery.Kernel]:
    return at_first[0]


@pytest.fixture(scope="session")
def pool(roots: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool(DEVICE, roots, tmp_path_factory.mktemp("workers")) as workers:
        yield workers


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A driver without a GPU (stand_in_driver.py)."""
    import stand_in_driver

    yield from stand_in_driver.driver(monkeypatch)


def _importable() -> dict[str, Any]:
    """Which kernels can be imported is the process's: the package that says where they lie, and what is loaded of it."""
    return {n: m for n, m in sys.modules.items() if n == "implementations" or n.startswith("implementations.")}


def _make_importable(kept: dict[str, Any]) -> None:
    for name in _importable():
        package, _, module = name.rpartition(".")
        if name not in kept and package in kept:  # `from package import module` would find what is forgotten here
            vars(kept[package]).pop(module, None)
        del sys.modules[name]
    sys.modules.update(kept)


@pytest.fixture(scope="session")
def at_first() -> tuple[dict[str, discovery.Kernel], dict[str, Any]]:
    """The kernels of `roots`, and what is importable then. A file may have fixtures of its own for these names."""
    return discovery.find_kernels(_roots()), _importable()


@pytest.fixture(scope="module", autouse=True)
def same_start(at_first: tuple[dict[str, discovery.Kernel], dict[str, Any]]) -> None:
    """Each file starts with the same kernels, whatever fixtures of the file before it chose."""
    _make_importable(at_first[1])


@pytest.fixture(autouse=True)
def same_process() -> Iterator[None]:
    """A test leaves the process as it was: the kernels that can be imported, and the environment, which an inline worker sets."""
    kernels, environment = _importable(), dict(os.environ)
    yield
    if _importable() != kernels:
        _make_importable(kernels)
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)


@pytest.fixture
def charts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures of matplotlib that are written, one after the other."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    made: list[Any] = []
    write = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *to, **how: (made.append(figure), write(figure, *to, **how))[1]
    )
    return made


@pytest.fixture
def answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """What a command says that starts no worker, run in this process, in a folder of its own: `answered("list", "--json")`."""

    def run_it(*arguments: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(progress, "EVERY_S", float("inf"))  # on a busy machine a line would stand in what it says
        capfd.readouterr()
        try:
            code = cli.main([*map(str, arguments)])
        except SystemExit as end:  # argparse's and Hydra's
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return run_it


@pytest.fixture
def on_shared_workers(answered: Callable[..., Any], pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`answered` for commands that start workers: theirs are the session's, which have imported their frameworks. Not for `compare`,
    whose processes are its own, nor for kernels of other folders than the project's and the fixtures'."""

    class Lent:
        def __new__(cls, device: str, *more: Any, **named: Any) -> Any:
            """On another device than the session's, such as the CPU beside a GPU, a command has workers of its own."""
            return super().__new__(cls) if device == pool.device else Pool(device, *more, **named)

        def __init__(self, *_: object, **__: object):
            """Whatever else is asked for, it is the session's pool."""

        def __enter__(self) -> Pool:
            return pool

        def __exit__(self, *_: object) -> None:
            """It stays."""

        def __getattr__(self, name: str) -> Any:
            return getattr(pool, name)

    for module in (running, diff, profiling, yardsticks):
        monkeypatch.setattr(module, "Pool", Lent)
    return answered


@pytest.fixture
def run_cells(
    kernels: dict[str, discovery.Kernel], roots: list[Path], pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[dict[str, Any]]]:
    """Runs cells on the session's workers and returns their records: `run_cells(cells, time_s=0)`, with `hard=True` on hard inputs too."""
    monkeypatch.setattr(os, "fsync", lambda file: None)  # 5 ms a record, which no test needs after a power cut

    def run_them(
        cells: Sequence[Cell], time_s: float = 0.0, timeout_s: float = 300.0, hard: bool = False
    ) -> list[dict[str, Any]]:
        settings = Settings(DEVICE, Plan(time_s), timeout_s, hard=hard)
        return list(run(Run(kernels, roots, tmp_path / "run", settings), cells, pool))

    return run_them
