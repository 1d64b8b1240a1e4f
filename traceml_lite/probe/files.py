"""Which files a process opened for reading, by Python's own audit hook.

Used in the child process of an experiment that wants a cold page cache: files that are opened, read and
closed again are seen here, those that are kept open or mapped are found in ``/proc`` from outside. Files
opened by C code alone and closed at once are seen by neither. An audit hook cannot be removed, so nothing
but a child process of our own installs it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

# Enough to name every shard of a data set; a data set of more files than this is evicted in part, and said.
MAX_FILES = 20_000


class OpenedFiles:
    """Appends each path opened for reading to a file per process; a fork goes on in a file of its own."""

    _installed_in: str | None = None

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._pid = -1
        self._fd = -1
        self._seen: set[str] = set()
        self._busy = False

    @classmethod
    def install(cls, folder: str) -> None:
        """Begin in this process; a second call, or one in a fork that inherited the hook, does nothing."""
        if cls._installed_in == folder:
            return
        cls._installed_in = folder
        Path(folder).mkdir(parents=True, exist_ok=True)
        sys.addaudithook(cls(folder).hook)

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Called by the interpreter for every audited event."""
        if event != "open" or self._busy:
            return
        path, _mode, flags = arguments
        if not isinstance(path, (str, bytes)) or not isinstance(flags, int):
            return
        if flags & os.O_ACCMODE != os.O_RDONLY or len(self._seen) >= MAX_FILES:
            return
        self._busy = True
        try:
            self._note(os.fsdecode(path))
        except OSError:
            pass  # a full disk here must not become an error of the script's open()
        finally:
            self._busy = False

    def _note(self, path: str) -> None:
        if path in self._seen:
            return
        self._seen.add(path)
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            name = os.path.join(self._folder, f"{self._pid}.txt")
            self._fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.write(self._fd, (os.path.abspath(path) + "\n").encode("utf-8", "surrogateescape"))


def read_opened(folder: Path) -> list[str]:
    """The paths that all processes of one pass left in ``folder``, without repetition, sorted."""
    seen: set[str] = set()
    for name in sorted(folder.glob("*.txt")):
        text = name.read_text(encoding="utf-8", errors="surrogateescape")
        # A process killed in mid-write leaves a last line without its end.
        seen.update(line for line in text.splitlines() if line)
    return sorted(seen)
