"""The kernel folders as a git commit has them, for a comparison of two commits. The working tree is left alone."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from fusebench import discovery
from fusebench.errors import UsageError


def repository(paths: Sequence[str | Path]) -> Path:
    """The checkout that revisions are of: that of the first of `paths`, or of the project's own kernels. Raises UsageError."""
    folder = Path(paths[0]) if paths else discovery.HOME
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        raise UsageError(f"{folder} is in no git repository, so that it has no revisions; @. is the working tree")
    return Path(top.decode().strip()).resolve()


def resolve(checkout: Path, revision: str) -> str:
    """The commit that a revision names. Raises UsageError for one that does not exist."""
    commit = _git(checkout, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if commit is None:
        raise UsageError(
            f"unknown revision {revision!r} of {checkout}: expected a branch, tag or commit, such as @HEAD~1, or @. for the working tree"
        )
    return commit.decode().strip()


def export(checkout: Path, commit: str, roots: Sequence[Path], folder: Path) -> list[Path]:
    """Writes those of the roots that lie in the checkout to `folder` as the commit has them; returns the roots with these in
    their place. Raises UsageError where the commit lacks one."""
    found = []
    for root in roots:
        if not root.resolve().is_relative_to(checkout):
            found.append(root)
            continue
        inside = root.resolve().relative_to(checkout)
        archive = _git(checkout, "archive", "--format=tar", commit, "--", str(inside))
        if archive is None:
            raise UsageError(f"revision {commit[:10]} has no folder {inside}")
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        found.append(folder / inside)
    return found


def _git(folder: Path, *words: str) -> bytes | None:
    """What git prints, or None where it fails, is not there, or cannot be asked that."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True)
    except (OSError, ValueError):  # the latter for a null character
        return None
    return done.stdout if done.returncode == 0 else None
