"""Keeps the harness alive where a case does not fit: a limit under which too large an allocation raises MemoryError.

Without it Linux promises more memory than there is, and kills a process once the promise is taken up.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

OOM_SCORE = 1000  # the highest oom_score_adj: the kernel ends this process before any other


def free_bytes() -> int | None:
    """Host memory that can still be taken, in bytes: the kernel's estimate, less where a control group (v2) allows less.
    None where /proc does not tell."""
    available = kilobytes(Path("/proc/meminfo"), "MemAvailable")
    if available is None:
        return None
    try:
        group = Path("/sys/fs/cgroup") / Path("/proc/self/cgroup").read_text().partition("::/")[2].strip()
        used = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["anon"]
        return min(available * 1024, int((group / "memory.max").read_text()) - int(used))
    except (OSError, ValueError, KeyError):  # no such group, or "max"
        return available * 1024


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Within it this process may take what is free now. Raises MemoryError, with that figure, for more."""
    free, held = free_bytes(), kilobytes(Path("/proc/self/status"), "VmData")
    if free is None or held is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = held * 1024 + max(0, free)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if soft == resource.RLIM_INFINITY else min(soft, limit), hard))
    try:
        yield
    except MemoryError as error:
        raise MemoryError(
            f"the case needs more host memory than the {free / 1e9:.3g} GB that are free: {error}"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def be_killed_first() -> None:
    """Makes the kernel end this process, and what it starts, rather than the harness when memory runs out. Linux only."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))


def kilobytes(file: Path, name: str) -> int | None:
    """What a file of /proc says of that name; None where it does not."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
