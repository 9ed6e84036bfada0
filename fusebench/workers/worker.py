"""The child process that builds and times cells of one framework: `python -m fusebench.workers.worker` with one end of a pipe.

It reads one message at a time (protocol.py) and answers each with one. An implementation in it cannot import a kernel.py, and so not
borrow the answer.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fusebench import discovery, memory
from fusebench.timing import cupti
from fusebench.workers import below, guard, protocol
from fusebench.workers.answers import answer
from fusebench.workers.bench import Bench

PROFILES = "FUSEBENCH_PROFILES"  # set where the parent is going to time cells
OTHERS = {"reference": "Reference", "compiler": "Compiler"}  # that hold no cell


def main() -> None:
    """Serves messages until the parent closes the pipe or dies."""
    backend, device, fd, *roots = sys.argv[1:]
    below.die_with_parent()  # its SIGKILL must leave no orphan, not even one in an endless loop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    if device == "cpu" and sys.platform == "linux":
        os.sched_setaffinity(0, [int(core) for core in os.environ["FUSEBENCH_CORES"].split(",")])
    pipe, own = Connection(int(fd)), os.getpid()
    memory.be_killed_first()
    try:
        discovery.use_roots([Path(root) for root in roots])
        if backend in OTHERS:
            bench: Any = getattr(importlib.import_module(f"fusebench.workers.{backend}"), OTHERS[backend])(device)
        else:
            sys.meta_path.insert(0, guard.Guard(backend, [Path(root) for root in roots]))
            bench = Bench(backend, device)
            if device == "cuda" and os.environ.get(PROFILES):
                cupti.start()  # takes seconds, which are no cell's
        pipe.send_bytes(protocol.encode(bench.info()))
    except Exception as error:  # the parent shows the line; the log has the traceback
        traceback.print_exc()
        pipe.send_bytes(protocol.encode(protocol.Refused("failed", f"{type(error).__name__}: {error}")))
        return
    while True:
        try:
            request = protocol.decode_request(pipe.recv_bytes())
        except EOFError:
            os._exit(0)  # frameworks' own exit handlers may hang on a broken device
        try:
            reply = answer(bench, request)
        except BaseException:  # what is left of them, such as an error that cannot be described
            traceback.print_exc()
            os._exit(1)
        below.leave_to(own)
        pipe.send_bytes(protocol.encode(reply))
        if isinstance(reply, protocol.Refused) and reply.fatal:
            os._exit(1)


if __name__ == "__main__":
    main()
