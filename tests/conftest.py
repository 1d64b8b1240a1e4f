"""What holds for every test: nothing of ours is left behind."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

# A worker that was told to end may need this long on a busy machine before it is gone.
_GRACE_S = 10.0
# Long-lived helpers that multiprocessing itself starts once per process and keeps.
_KEPT = ("resource_tracker", "forkserver")


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No child process, no file in /dev/shm and no open file of a trace outlives a test."""
    children, shared = _children(), _shared()
    yield
    gc.collect()
    deadline = time.monotonic() + _GRACE_S
    while (new := _children() - children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not new, f"processes left behind: {[_command(pid) for pid in new]}"
    left = {name for name in _shared() - shared if "traceml" in name}
    assert not left, f"shared memory left behind: {left}"
    traces = [target for target in _open_files() if target.endswith((".bin", ".jsonl", ".deliveries"))]
    assert not traces, f"files of a trace still open: {traces}"


def _children() -> set[int]:
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if not any(word in " ".join(child.cmdline()) for word in _KEPT):
                found.add(child.pid)
        except psutil.Error:
            continue
    return found


def _command(pid: int) -> str:
    try:
        return f"{pid} {' '.join(psutil.Process(pid).cmdline())}"
    except psutil.Error:
        return str(pid)


def _shared() -> set[str]:
    try:
        return set(os.listdir("/dev/shm"))
    except OSError:
        return set()


def _open_files() -> list[str]:
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            continue
    return found


@pytest.fixture
def trace_path(tmp_path: Path) -> Path:
    """Where a test records to."""
    return tmp_path / "trace"
