"""One child process in a session of its own: started, timed, ended, and nothing of it left behind.

Knows no plan and no trace. A pass that does not end is asked for its stack (SIGUSR2, by faulthandler) and
then killed with every process of its session; the trace survives that by itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# Between two looks at a child: short against a pass, long against the cost of a look.
POLL_S = 0.1
# A child that has written its result and does not exit is held up by something of the script's own (a
# thread, an upload). Its measurement is complete; it is waited for this long.
EXIT_GRACE_S = 10.0
# For the stack that a hung child is asked for to reach its stderr.
STACK_GRACE_S = 0.5
# multiprocessing's resource tracker and forkserver end when their pipe closes.
LEFT_GRACE_S = 1.0
# A killed process is gone within milliseconds, unless it hangs in the kernel (a dead network file system).
GONE_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child ended."""

    started_ns: int
    """On the trace's clock, just before the process was started."""
    wall_s: float
    exit_code: int | None
    """None where it had to be killed."""
    timed_out: bool
    killed: int
    """Processes of its session that had to be killed, itself included."""


def run_child(
    command: list[str],
    *,
    folder: Path,
    done: Path,
    environment: Mapping[str, str],
    timeout_s: float,
    tick: Callable[[int, float], None] | None = None,
) -> ChildEnd:
    """Run a command to its end or to its time limit.

    Args:
        command: What to run.
        folder: ``stdout.txt`` and ``stderr.txt`` are written here.
        done: File whose appearance means that the child has all it was started for.
        environment: Whole environment of the child.
        timeout_s: Its time limit.
        tick: Called at every look with the session's id and the time so far.

    Returns:
        How it ended. On KeyboardInterrupt everything is killed and the interrupt goes on.
    """
    started_ns = time.perf_counter_ns()
    finished_s: float | None = None
    with (folder / "stdout.txt").open("wb") as out, (folder / "stderr.txt").open("wb") as err:
        child: subprocess.Popen[bytes] | None = None
        try:
            with _interrupts_held():
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=dict(environment),
                    start_new_session=True,
                )
            while True:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(POLL_S)
                now_s = (time.perf_counter_ns() - started_ns) / 1e9
                if child.returncode is not None:
                    left = _after(child.pid)
                    return ChildEnd(started_ns, now_s, child.returncode, False, left)
                if tick is not None:
                    tick(child.pid, now_s)
                if finished_s is None and done.exists():
                    finished_s = now_s
                if finished_s is not None and now_s - finished_s > EXIT_GRACE_S:
                    killed = _end(child)
                    return ChildEnd(started_ns, now_s, None, False, killed)
                if finished_s is None and now_s > timeout_s:
                    with suppress(ProcessLookupError):
                        child.send_signal(signal.SIGUSR2)
                    time.sleep(STACK_GRACE_S)
                    killed = _end(child)
                    return ChildEnd(started_ns, now_s, None, True, killed)
        except BaseException:
            if child is not None:
                with _interrupts_held():  # a second Ctrl-C waits until nobody is left
                    _end(child)
            raise


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Lets Ctrl-C, SIGTERM and SIGHUP wait for the end of the block, where they have handlers.

    An interrupt within Popen comes after the fork, and nobody would know of the child then.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread only
        return
    came: list[int] = []
    held = {
        number: signal.signal(number, lambda one, frame: came.append(one))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if callable(signal.getsignal(number))
    }
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for came_meanwhile in came:
            signal.raise_signal(came_meanwhile)


def _after(session: int) -> int:
    """End what an ended child left behind; helpers that notice its end by themselves get a moment for it."""
    deadline_s = time.monotonic() + LEFT_GRACE_S
    while session_members(session) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return kill_session(session)


def _end(child: subprocess.Popen[bytes]) -> int:
    # Before it is waited for: its PID names the session as long as it is not reaped.
    killed = kill_session(child.pid)
    child.wait()
    return killed


def session_members(session: int) -> list[int]:
    """PIDs of the processes of a session, its leader included."""
    members = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(int(name)) == session and not _is_zombie(int(name)):
                members.append(int(name))
    return members


def kill_session(session: int) -> int:
    """Kill every process of a session and wait until they are gone; returns how many there were.

    Looked at again until nobody is left: a fork that was under way at one look is there at the next.
    """
    killed: set[int] = set()
    deadline_s = time.monotonic() + GONE_WITHIN_S
    while members := session_members(session):
        for pid in members:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed.update(members)
        if time.monotonic() > deadline_s:
            break
        time.sleep(0.005)
    return len(killed)


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")


def child_command(spec: Path) -> list[str]:
    """The command of one pass."""
    return [sys.executable, "-m", "traceml_lite.experiment.child", str(spec)]
