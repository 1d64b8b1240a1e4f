"""The page cache as a condition: which data files a pass read, how much of them is in memory, changing it.

No root is needed: ``posix_fadvise`` drops the clean pages of a file that one may read, and ``mincore`` tells
whether it worked. Pages that another process has mapped stay, and the share that is reported says so.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import site
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from traceml_lite.probe.files import MAX_FILES

# Files of the software itself: evicting them would time the interpreter's start, not the data.
_SOFTWARE_SUFFIXES = (".py", ".pyc", ".so", ".pth", ".pyd", ".txt.gz")
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/usr/", "/lib", "/etc/", "/run/", "/bin/", "/opt/cuda")
# Warming may fill at most this share of the memory that is available, or it would evict what it has read.
WARM_SHARE_OF_MEMORY = 0.5
# Shares of the files' bytes in memory from which, and up to which, the cache is called warm or cold.
WARM_FROM, COLD_TO = 0.95, 0.05


@dataclass(frozen=True, slots=True)
class CacheState:
    """How much of the data files was in memory when a pass began."""

    state: str
    """``"warm"``, ``"cold"``, ``"partly"``, ``"unknown"`` (could not be read), ``"no files"``."""
    files: int
    total_bytes: int
    resident: float | None
    """Share of the bytes in the page cache, in [0, 1]."""


def data_files(paths: Iterable[str], *, without: Sequence[Path] = ()) -> list[str]:
    """The data files among paths: regular files that belong neither to the software nor to ``without``."""
    own = [str(Path(place).resolve()) for place in without]
    software = {sys.prefix, sys.base_prefix, sys.exec_prefix, *site.getsitepackages()}
    kept = []
    for path in dict.fromkeys(paths):
        if path.endswith(_SOFTWARE_SUFFIXES) or ".so." in path or path.startswith(_SYSTEM):
            continue
        if any(path.startswith(f"{place}/") for place in (*software, *own)):
            continue
        if os.path.isfile(path):
            kept.append(path)
    return kept


def with_siblings(paths: Sequence[str]) -> list[str]:
    """The files and those beside them with the same suffix: what later deliveries will read.

    A short first pass sees few files of a data set of many; the others lie beside them.
    """
    found = dict.fromkeys(paths)
    for folder, suffix in sorted({(os.path.dirname(p), os.path.splitext(p)[1]) for p in paths}):
        if not suffix or len(found) >= MAX_FILES:
            continue
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if len(found) < MAX_FILES and entry.name.endswith(suffix) and entry.is_file():
                    found[entry.path] = None
    return list(found)


def held_files(pids: Iterable[int]) -> set[str]:
    """Paths that processes have open or mapped right now; nothing for one that may not be looked at."""
    found: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        with suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                fields = line.rstrip("\n").split(None, 5)
                if len(fields) == 6 and fields[5].startswith("/"):
                    found.add(fields[5])
    return {path for path in found if path.startswith("/") and not path.endswith(" (deleted)")}


def evict(paths: Iterable[str]) -> None:
    """Drop the pages of these files from the page cache, as far as nobody else has them mapped."""
    for path in paths:
        with suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def warm(paths: Sequence[str], *, available_bytes: int) -> bool:
    """Read the files once into the page cache; returns False, and reads nothing, where they would not fit."""
    total = 0
    for path in paths:
        with suppress(OSError):
            total += os.path.getsize(path)
    if total > WARM_SHARE_OF_MEMORY * available_bytes:
        return False
    buffer = bytearray(1 << 20)
    for path in paths:
        with suppress(OSError), open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return True


def available_bytes() -> int:
    """Memory that can be used without swapping; 0 where it cannot be read."""
    with suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as text:
        for line in text:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def cache_state(paths: Sequence[str]) -> CacheState:
    """How much of these files is in memory now."""
    total = resident = files = 0
    for path in paths:
        counted = _resident(path)
        if counted is None:
            continue
        files += 1
        total += counted[0]
        resident += counted[1]
    if not paths:
        return CacheState("no files", 0, 0, None)
    if total == 0:
        return CacheState("unknown", files, 0, None)
    share = resident / total
    state = "warm" if share >= WARM_FROM else "cold" if share <= COLD_TO else "partly"
    return CacheState(state, files, total, share)


def _resident(path: str) -> tuple[int, int] | None:
    """(bytes, bytes in memory) of a file, to the page; None where it cannot be told."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        size = os.fstat(fd).st_size
        if size == 0:
            return 0, 0
        place = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if place in (None, ctypes.c_void_p(-1).value):
            return None
        pages = -(-size // mmap.PAGESIZE)
        vector = (ctypes.c_ubyte * pages)()
        try:
            if libc.mincore(place, size, ctypes.byref(vector)) != 0:
                return None
        finally:
            libc.munmap(place, size)
        held = int((np.frombuffer(bytes(vector), dtype=np.uint8) & 1).sum())
        return size, min(size, held * mmap.PAGESIZE)
    finally:
        os.close(fd)
