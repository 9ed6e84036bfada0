"""Files that this process alone writes: which of them somebody else has changed since, such as an implementation in its worker."""

from __future__ import annotations

from pathlib import Path


class Untouched:
    """The state of files when they were noted. A change of content or of the file itself moves the time of its inode, which no
    process can set back."""

    def __init__(self) -> None:
        self.known: dict[Path, tuple[int, ...] | None] = {}

    def note(self, *files: Path) -> None:
        """What these files are now is right; one that is not there is to stay so."""
        self.known.update((file, _state(file)) for file in files)

    def changed(self) -> list[str]:
        """The names of those that are not what they were."""
        return [file.name for file, before in self.known.items() if _state(file) != before]


def _state(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
