"""What an implementation changes in its process is seen by name, and what a library does itself is not."""

from __future__ import annotations

import _thread
import gc
import importlib
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextvars import ContextVar
from multiprocessing.connection import Connection
from types import ModuleType, SimpleNamespace

import numpy as np
import psutil
import pytest
from conftest import CORES

from fusebench.backends import cuda
from fusebench.timing import samples
from fusebench.workers import outputs, process, state


def names():
    """What names stand for now."""
    found = state.Names()
    found.look()
    return found


@pytest.fixture
def backend():
    return SimpleNamespace(settings=lambda: {"precision": "ieee"})


def test_nothing_changed_is_no_change(backend):
    assert state.changes(state.read(backend), state.read(backend)) == ()


@pytest.mark.parametrize("function", ["time.perf_counter", "numpy.matmul", "os.urandom", "fusebench.draws.below"])
def test_a_replaced_function_is_named(monkeypatch, function):
    before = names()
    monkeypatch.setattr(function, lambda *_: 0)
    assert before.replaced() == (function,)


def test_a_function_that_says_it_is_equal_to_all_is_another_one(monkeypatch):
    class Sly:
        __hash__ = None

        def __eq__(self, other):
            return True

        def __call__(self):
            return 0

    before = names()
    monkeypatch.setattr("time.time", Sly())
    assert before.replaced() == ("time.time",)


def test_a_function_that_is_gone_was_replaced_and_a_new_one_was_not(monkeypatch):
    before = names()
    monkeypatch.setattr(sys.modules["numpy"], "of_my_own", len, raising=False)
    assert before.replaced() == ()
    after = names()
    monkeypatch.undo()
    assert after.replaced() == ("numpy.of_my_own",)


def test_the_cores_and_the_threads_of_the_process_are_settings_too(backend, monkeypatch):
    before = state.read(backend)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {5, 3})
    count = _thread._count()
    monkeypatch.setattr("_thread._count", lambda: count + 1)
    backend.settings = lambda: {"precision": "tf32"}
    cores, threads, precision = state.changes(before, state.read(backend))
    assert cores == f"CPU affinity {before['CPU affinity']} → [3, 5]"
    assert threads.startswith("live threads ") and precision == "precision ieee → tf32"


@pytest.mark.parametrize(("module", "more"), [("torch._inductor.compile_worker.pool", 0), ("mine", 1)])
def test_a_thread_of_a_compiler_is_no_change_and_another_is(backend, monkeypatch, module, more):
    """Whatever the compiler's is called: it is known by the module whose function it runs."""
    running, begun, end = [], threading.Event(), threading.Event()
    monkeypatch.setattr("_thread._count", lambda: 7 + len(running))
    names = {"__name__": module, "begun": begun, "end": end}
    exec("def work():\n    begun.set()\n    end.wait()", names)
    before = state.read(backend)
    running.append(threading.Thread(target=names["work"]))
    running[0].start()
    begun.wait()
    try:
        assert state.read(backend)["live threads"] == before["live threads"] + more
    finally:
        end.set()
        running[0].join()


def test_a_constant_may_not_be_replaced_and_a_cache_may(monkeypatch):
    before = names()
    monkeypatch.setattr("random._inst", None)
    assert before.replaced() == ()
    monkeypatch.setattr("numpy.pi", 3)
    assert before.replaced() == ("numpy.pi",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fusebench.workers.bench.LATER_CALLS", 0),
        ("fusebench.timing.plan.Plan.calls", 6),
        ("math", ModuleType("math")),
    ],
)
def test_constants_of_the_harness_and_modules_themselves_are_among_the_names(monkeypatch, name, value):
    before = names()
    if name in sys.modules:
        monkeypatch.setitem(sys.modules, name, value)
    else:
        monkeypatch.setattr(name, value)
    assert before.replaced() == (name,)


def test_what_a_constant_of_the_harness_holds_is_compared(monkeypatch):
    before = names()
    monkeypatch.setitem(importlib.import_module("fusebench.workers.worker").OTHERS, "mine", "Mine")
    assert before.replaced() == ("fusebench.workers.worker.OTHERS",)


def test_what_libraries_keep_in_the_harness_s_classes_is_no_change(monkeypatch):
    """msgspec keeps what it knows of a dataclass there."""
    before, class_ = names(), importlib.import_module("fusebench.tuned").Entry
    monkeypatch.setattr(class_, "__msgspec_cache__", object(), raising=False)
    assert before.replaced() == ()
    monkeypatch.setattr(class_, "__eq__", lambda self, other: True)
    assert before.replaced() == ("fusebench.tuned.Entry.__eq__",)


def test_the_values_that_a_function_takes_by_default_are_compared(monkeypatch):
    before = names()
    monkeypatch.setattr(outputs.fault, "__defaults__", (0,))
    assert before.replaced() == ("fusebench.workers.outputs.fault",)


def _other(*_, **__): ...


@pytest.mark.parametrize(
    ("behind", "name"),
    [
        (lambda: samples._rank.__wrapped__, "fusebench.timing.samples._rank"),
        (lambda: samples.Ring.copied_bytes.fget, "fusebench.timing.samples.Ring.copied_bytes"),
        (lambda: np.percentile._implementation, "numpy.lib._function_base_impl.percentile"),
    ],
)
def test_other_code_in_a_function_behind_a_name_replaces_it_whatever_it_says_it_is_of(monkeypatch, behind, name):
    before, function = names(), behind()
    monkeypatch.setattr(function, "__code__", _other.__code__)
    assert before.replaced() == (name,)
    monkeypatch.setattr(function, "__module__", "implementations.some.program")
    assert before.replaced("implementations.some.program") == (name,)


def test_what_a_closure_of_the_harness_holds_and_defaults_by_name_are_compared(monkeypatch):
    before = names()
    monkeypatch.setattr(cuda.noting_sources.__closure__[0], "cell_contents", _other)
    assert before.replaced() == ("fusebench.backends.cuda.noting_sources",)
    monkeypatch.undo()
    monkeypatch.setitem(np.percentile._implementation.__kwdefaults__, "weights", 0)
    assert before.replaced() == ("numpy.lib._function_base_impl.percentile",)


def test_a_class_of_a_module_and_bases_of_a_class_stand_before_what_is_in_them(monkeypatch):
    before = names()

    class Own(ModuleType):
        time = _other

    monkeypatch.setattr(time, "__class__", Own)
    assert before.replaced(Own.__module__) == ("the class or bases of time",), "though the module says it is of Own's"
    monkeypatch.undo()
    bases = Connection.__bases__
    try:
        Connection.__bases__ = (type("Own", bases, {}),)
        found = before.replaced()
    finally:
        Connection.__bases__ = bases
    assert found == ("the class or bases of multiprocessing.connection.Connection",)


def test_what_python_calls_amid_the_harness_s_lines_is_no_program_s():
    before = names()
    assert before.replaced() == ()
    profile, trace = sys.getprofile(), sys.gettrace()
    try:
        sys.setprofile(_other)
        found = before.replaced()
        sys.setprofile(profile)
        sys.settrace(_other)
        found += before.replaced()
    finally:
        sys.setprofile(profile)
        sys.settrace(trace)
    assert found == ("the function of sys.setprofile", "the function of sys.settrace")
    assert before.replaced() == ()


def test_a_tool_that_monitors_the_harness_is_no_program_s(monkeypatch):
    before = names()
    monkeypatch.setattr(sys, "monitoring", SimpleNamespace(get_tool=lambda n: "own" if n == 3 else None), raising=False)
    assert before.replaced() == ("the tools of sys.monitoring",)


def test_a_method_of_a_library_s_class_may_not_be_replaced_but_by_its_own_compiler(monkeypatch):
    torch = pytest.importorskip("torch")
    before = names()
    own = compile("def step(self): pass", f"{os.sep}torch{os.sep}_dynamo{os.sep}eval_frame.py", "exec")
    made = {}
    exec(own, made)
    monkeypatch.setattr(torch.optim.SGD, "step", made["step"])
    assert before.replaced() == ()
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: x)
    assert before.replaced() == ("torch.nn.modules.linear.Linear.forward",)


def test_a_program_that_torch_s_compiler_loads_from_its_cache_replaces_nothing(monkeypatch):
    """Seen on an H200: flex_attention failed when it was run for the second time on a machine."""
    torch = pytest.importorskip("torch")
    made = pickle.dumps(torch.fx.symbolic_trace(torch.nn.Linear(2, 2)))
    class_ = sys.modules["torch.fx.graph_module"]._CodeOnlyModule
    monkeypatch.setattr(class_, "forward", class_.forward, raising=False)
    before = names()
    pickle.loads(made)
    assert before.replaced() == ()


def test_a_module_that_is_imported_takes_its_place_in_its_package(monkeypatch):
    """torch.onnx has symbolic_helper of a private part, until its own module of that name is imported, as Liger does."""
    package, private, own = (ModuleType(name) for name in ("torch.some", "torch._some.helper", "torch.some.helper"))
    package.helper = private
    monkeypatch.setitem(sys.modules, package.__name__, package)
    before = names()
    monkeypatch.setattr(package, "helper", own)
    assert before.replaced() == ("torch.some.helper",), "of which an import finds nothing"
    monkeypatch.setitem(sys.modules, own.__name__, own)
    assert before.replaced() == ()


def test_what_was_loaded_since_is_looked_at_in_the_next_cell(monkeypatch):
    found, module = names(), ModuleType("implementations.some.program")
    module.build = len
    monkeypatch.setitem(sys.modules, module.__name__, module)
    module.build = max
    assert found.replaced() == ()
    for build in (len, min):
        found.look()
        assert found.replaced() == (), "what somebody else changed between two cells is not the next one's"
        module.build = build
        assert found.replaced() == ("implementations.some.program.build",)


def test_a_method_of_a_tensor_may_not_be_replaced(monkeypatch):
    pytest.importorskip("torch")
    before = names()
    for function in ("torch.Tensor.sum", "torch.nn.functional.relu"):
        monkeypatch.setattr(function, lambda *_: 0)
    assert set(before.replaced()) == {"torch.Tensor.sum", "torch.nn.functional.relu"}


def test_a_framework_that_is_not_loaded_has_no_functions():
    """In a process of its own: here other tests have loaded them."""
    program = "from fusebench.workers import state, worker; n = state.Names(); n.look(); "
    program += "print(*(f'{o}.{name}' for o, (_, held) in n.held.items() for name in held), sep='\\n')"
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    found = said.splitlines()
    assert "time.time" in found and "numpy.matmul" in found
    assert not [name for name in found if name.startswith(("torch.", "jax."))]


def test_a_setting_is_shown_with_both_values_and_many_are_cut_short():
    assert state.changes({"a": 1, "b": 2}, {"a": 1, "b": 3}) == ("b 2 → 3",)
    assert state.changes(dict.fromkeys("abcdef", 1), {})[-1] == "f 1 → None", "six are shown"
    assert state.changes(dict.fromkeys("abcdefg", 1), {})[-1] == "1 more"
    assert state.changes(dict.fromkeys("abcdefgh", 1), {})[-2:] == ("f 1 → None", "2 more")
    assert state.changes({"a": "x" * 60}, {"a": "y" * 61}) == (f"a {'x' * 60} → {'y' * 60}…",)


def test_of_what_was_not_there_before_variables_alone_are_a_change():
    assert state.changes({"a": 1}, {"a": 1, "b": 2, "variable C": "3"}) == ("variable C set to 3",)
    assert state.changes({}, {"variable C": "3"}) == (), "nothing was read before"


def test_memory_and_open_files_may_grow_by_what_caches_take():
    before, eighth = {"MiB of memory": 900, "open files": 40}, max(2048, psutil.virtual_memory().total // 2**23)
    assert state.changes(before, {"MiB of memory": 900 + eighth, "open files": 240}) == ()
    assert state.changes(before, {"MiB of memory": 10, "open files": 4}) == ()
    assert state.changes(before, {"MiB of memory": 901 + eighth, "open files": 241}) == (
        f"MiB of memory 900 → {901 + eighth}", "open files 40 → 241",
    )  # fmt: skip


def test_hooks_of_all_modules_and_the_compiler_s_stance_are_changes(monkeypatch):
    torch = pytest.importorskip("torch")
    module = importlib.import_module("fusebench.backends.torch")
    before = module.settings()
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    stance = SimpleNamespace(_stance=SimpleNamespace(stance="force_eager"))
    monkeypatch.setitem(sys.modules, "torch._dynamo.eval_frame", stance)
    try:
        assert set(state.changes(before, module.settings())) == {
            "torch compiler's stance default → force_eager",
            "torch hooks of modules {} → {'_global_forward_hooks': 1}",
        }
    finally:
        hook.remove()


def test_flax_s_configuration_is_compared_where_it_is_loaded(monkeypatch):
    pytest.importorskip("jax")
    module = importlib.import_module("fusebench.backends.jax")
    flax = SimpleNamespace(config=SimpleNamespace(_values={"flax_profile": True}))
    monkeypatch.setitem(sys.modules, "flax", flax)
    before = module.settings()
    flax.config._values["flax_profile"] = False
    assert state.changes(before, module.settings()) == ("flax.config flax_profile True → False",)


class Lazy(list):
    def __iter__(self):
        raise AssertionError("it was looked at")


def test_a_list_that_is_iterated_in_its_own_way_is_no_list():
    assert outputs.as_list([1, 2]) == [1, 2] and outputs.as_list((1,)) == [1] and outputs.as_list(3) == [3]
    (one,) = outputs.as_list(Lazy())
    assert type(one) is Lazy


@pytest.mark.parametrize(
    ("a", "b", "shared"),
    [([(0, 4)], [(4, 8)], False), ([(0, 5)], [(4, 8)], True), ([(5, 6)], [(4, 8)], True), ([(4, 4)], [(0, 8)], False), ([], [(0, 1)], False)],
)  # fmt: skip
def test_memory_is_shared_where_spans_overlap(a, b, shared):
    assert outputs.overlap(a, b) is shared and outputs.overlap(b, a) is shared


@pytest.mark.parametrize("name", ["torch", "jax", "numpy"])
def test_an_array_has_memory_of_its_own(name):
    backend = pytest.importorskip(f"fusebench.backends.{name}")
    device = SimpleNamespace(type="cpu")
    a = backend.put(np.arange(64, dtype=np.float32), device)
    b = backend.copy(a)
    ((begin, end),) = outputs.spans(backend, a)
    assert end - begin == a.nbytes and not outputs.overlap([(begin, end)], outputs.spans(backend, b))
    assert outputs.fault(backend, (a, b), device, []) is None
    assert "the memory of an input" in outputs.fault(backend, (b, a), device, [(begin, end)])


# What the next program would inherit


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("torch autocast [False, False] → [True, False]", lambda torch: torch.set_autocast_enabled("cpu", True)),
        ("torch anomaly detection False → True", lambda torch: torch.set_anomaly_enabled(True)),
        ("torch sparse invariants False → True", lambda torch: torch.sparse.check_sparse_tensor_invariants.enable()),
        (
            "torch swaps parameters False → True",
            lambda torch: torch.__future__.set_swap_module_params_on_conversion(True),
        ),
        ("torch mkldnn_enabled True → False", lambda torch: setattr(torch.backends.mkldnn, "enabled", False)),
    ],
)
def test_what_was_switched_in_torch_is_a_change(name, change):
    torch = pytest.importorskip("torch")
    module = importlib.import_module("fusebench.backends.torch")
    before = module.settings()
    held = change(torch)
    try:
        assert state.changes(before, module.settings()) == (name,)
    finally:
        del held
        torch.set_autocast_enabled("cpu", False)
        torch.set_anomaly_enabled(False)
        torch.sparse.check_sparse_tensor_invariants.disable()
        torch.__future__.set_swap_module_params_on_conversion(False)
        torch.backends.mkldnn.enabled = True


def test_what_was_set_of_torch_s_compiler_is_a_change(monkeypatch):
    """Whatever version keeps it: as a value, or for each thread."""
    pytest.importorskip("torch")
    module = importlib.import_module("fusebench.backends.torch")
    of_a_thread = ContextVar("of_a_thread", default=module.UNSET)
    entries = {
        "left": SimpleNamespace(user_override=module.UNSET, default=1),
        "as_it_was": SimpleNamespace(user_override=1, default=1),
        "max_autotune": SimpleNamespace(user_override=True, default=False),
        "per_thread": SimpleNamespace(user_override=of_a_thread, default=3),
        "error_on_recompile": SimpleNamespace(user_override=True, default=False),
    }
    configuration = type("ConfigModule", (ModuleType,), {})("torch.some.config")
    configuration._config = entries
    monkeypatch.setitem(sys.modules, "torch.some.config", configuration)

    def found():
        set_ = module.settings()["torch compiler's configuration"]
        return [one.removeprefix("torch.some.config.") for one in set_ if one.startswith("torch.some.config")]

    assert found() == ["max_autotune=True"]
    of_a_thread.set(4)
    assert found() == ["max_autotune=True", "per_thread=4"]


def test_modes_of_torch_that_see_every_operator_replace_it():
    torch = pytest.importorskip("torch")
    modes = importlib.import_module("torch.overrides")
    before = names()
    with torch.device("cpu"):
        assert before.replaced() == (), "a default device is a setting"
    with modes.TorchFunctionMode():
        assert before.replaced() == ("the modes of torch.overrides",)


def test_float_flags_limits_and_python_s_own_switches_are_read():
    before = process.read()
    limit = resource.getrlimit(resource.RLIMIT_CORE)
    handler, mask = signal.signal(signal.SIGUSR1, signal.SIG_IGN), os.umask(0o027)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0 if limit[0] else limit[0], limit[1]))
        with np.errstate(over="raise"), warnings.catch_warnings():
            warnings.simplefilter("error")
            gc.callbacks.append(len)
            after = process.read()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        gc.callbacks.remove(len)
        signal.signal(signal.SIGUSR1, handler)
        os.umask(mask)
        resource.setrlimit(resource.RLIMIT_CORE, limit)
    wanted = {
        "umask",
        "signals held back",
        "SIGUSR1 handler",
        "numpy over errors",
        "warnings as errors",
        "callbacks of garbage collection",
    }
    wanted |= {"limit RLIMIT_CORE"} if limit[0] else set()
    assert {n for n in before if before[n] != after[n]} - {"MiB of memory", "open files"} == wanted
    assert before["subnormals"] == "kept" and before["rounding"] == (1 / 3, -1 / 3)


CHANGES = {
    "os.nice(1)": ["niceness"],
    "signal.setitimer(signal.ITIMER_REAL, 600)": ["timer ITIMER_REAL"],
    "signal.setitimer(signal.ITIMER_PROF, 600)": ["timer ITIMER_PROF"],
    "resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))": ["limit RLIMIT_NOFILE"],
    "os.dup2(os.open('/dev/zero', os.O_RDONLY), 0)": ["file of stdin"],
    "os.close(2)": ["file of stderr"],
    "sys.stdin.close()": ["sys.stdin"],
    "sys.stderr = None": ["sys.stderr"],
    "os.chdir('/')": ["working folder"],
    "os.environ.update(TRITON_CACHE_DIR='x', CUDA_MODULE_LOADING='LAZY', MINE='1')": [],
    "os.environ.update(LD_PRELOAD='x')": ["variable LD_PRELOAD"],
    "gc.set_threshold(1, 1, 1)": ["garbage collection"],
    "sys.setswitchinterval(1)": ["thread switches"],
    "sys.setrecursionlimit(5000)": [],
    "sys.setrecursionlimit(500)": ["recursion limit"],
    "threading.settrace(ignore)": ["tracing"],
    "threading.setprofile(ignore)": ["profiling"],
    "sys.path.insert(0, 'mine')": ["import path"],
    "sys.path.insert(0, 'site-packages/its')": [],
    "sys.meta_path.insert(0, Mine())": ["importers"],
    "sys.meta_path.append(Mine())": [],
    "sys.path_hooks.insert(0, Mine)": ["importers of folders"],
    "sys.path_hooks.append(Mine)": [],
    "tempfile.tempdir = '/'": ["temporary folder"],
    "np.setbufsize(16384)": ["numpy buffer"],
    "np.seterrcall(ignore)": ["numpy handler of errors"],
    "faulthandler.enable(sys.stdout)": ["fault handler"],
    "children.append(waits())": ["live processes"],
    "children.append(waits('torch/_inductor'))": [],
    "threading.Thread(target=threading.Event().wait, daemon=True).start()": ["live threads"],
}  # fmt: skip


def test_what_a_program_leaves_in_its_process_is_named():
    """In a process of its own, one change after the other."""
    program = """
import faulthandler, gc, json, os, resource, signal, subprocess, sys, tempfile, threading
import numpy as np
from fusebench.workers import process
class Mine: ...
def ignore(*_): ...
def waits(*words): return subprocess.Popen(["sh", "-c", "read line", *words], stdin=subprocess.PIPE)  # for the end of this process
children, found = [], {}
for change in json.loads(sys.argv[1]):
    before = process.read()
    exec(change)
    after = process.read()
    found[change] = [name for name in before | after if before.get(name) != after.get(name) and name not in sys.argv[2:]]
print(json.dumps(found))
"""
    besides = [
        *state.ALLOWED,
        "threads with cores, niceness or policy of their own",
    ]  # of NumPy's pool beside this thread
    words = ["-c", program, json.dumps([*CHANGES]), *besides]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert json.loads(done.stdout) == CHANGES


def test_a_watchdog_that_would_end_the_process_is_ended():
    program = """
import faulthandler, time
from fusebench.workers import process
faulthandler.dump_traceback_later(0.1, exit=True)
process.end_watchdogs()
time.sleep(0.2)
print("alive")
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "alive\n"


def test_subnormals_that_are_flushed_are_seen():
    """By a library that was compiled with -ffast-math, or by Torch."""
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        assert process.read()["subnormals"] == "flushed"
    finally:
        torch.set_flush_denormal(False)


def test_variables_that_compilers_set_are_nobody_s_change(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    theirs = ("_TORCHINDUCTOR_PYOBJECT", "TRITON_PTXAS_PATH", "CUDA_ROOT", "KMP_INIT_AT_FORK")
    for name in theirs:
        monkeypatch.setenv(name, "1")
    found = process.read()
    assert found["variable OMP_WAIT_POLICY"] == "active" and not found.keys() & {f"variable {n}" for n in theirs}


def test_a_thread_with_cores_of_its_own_is_seen():
    if len(CORES) == 1:
        pytest.skip("there is one core")
    before, bound, end = process.read(), threading.Event(), threading.Event()

    def work():
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, [min(own)] if len(own) > 1 else CORES)
        bound.set()
        end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    bound.wait()
    try:
        name = "threads with cores, niceness or policy of their own"
        assert len(process.read()[name]) == len(before[name]) + 1
    finally:
        end.set()
        thread.join()


def test_a_name_that_is_new_in_the_harness_or_in_a_class_stands_before_another(monkeypatch):
    before = names()
    monkeypatch.setattr(sys.modules["fusebench.workers.outputs"], "max", min, raising=False)
    monkeypatch.setattr("multiprocessing.connection.Connection.send_bytes", len)
    assert set(before.replaced()) == {
        "fusebench.workers.outputs.max",
        "multiprocessing.connection.Connection.send_bytes",
    }


def test_functions_of_other_implementations_are_compared_and_its_own_are_not(monkeypatch):
    module = ModuleType("implementations.some.program")
    module.build = len
    monkeypatch.setitem(sys.modules, module.__name__, module)
    before = names()
    module.build = max
    assert before.replaced() == ("implementations.some.program.build",)
    assert before.replaced(module.__name__) == ()
