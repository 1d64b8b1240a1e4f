"""What holds for every test: nothing of ours is left behind."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run: a rare counterexample belongs to whoever looks for one, with
# HYPOTHESIS_PROFILE=search, and not to whoever's change is being checked.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# A job in the background starts with SIGINT ignored, and so would what tests start and then interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A worker that was told to end may need this long on a busy machine before it is gone.
_GRACE_S = 10.0
# Long-lived helpers that multiprocessing itself starts once per process and keeps.
_KEPT = ("resource_tracker", "forkserver")


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No child process, no file in /dev/shm and no open file of a trace outlives a test."""
    children, shared = _children(), _shared()
    yield
    if _children() - children or _open_traces():
        # What only the garbage collector would end is looked for only then: a collection with torch loaded
        # takes a tenth of a second, and there are many tests.
        gc.collect()
    deadline = time.monotonic() + _GRACE_S
    while (new := _children() - children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not new, f"processes left behind: {[_command(pid) for pid in new]}"
    left = {name for name in _shared() - shared if "traceml" in name}
    assert not left, f"shared memory left behind: {left}"
    assert not _open_traces(), f"files of a trace still open: {_open_traces()}"


def _children() -> set[int]:
    """Children of this process that are not helpers of multiprocessing's own."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(int(pid) for pid in (task / "children").read_text().split())
        except OSError:
            continue  # a thread that has just ended
    return {pid for pid in found if not any(word in _command(pid) for word in _KEPT)}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return f"{pid} (gone)"


def _shared() -> set[str]:
    try:
        return set(os.listdir("/dev/shm"))
    except OSError:
        return set()


def _open_traces() -> list[str]:
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target.endswith((".bin", ".jsonl", ".deliveries")):
            found.append(target)
    return found


@pytest.fixture
def trace_path(tmp_path: Path) -> Path:
    """Where a test records to."""
    return tmp_path / "trace"
