"""One recording: the trace that is written, the iterators that are watched, the host beside them.

The session never raises into the training process. Whatever fails in it is counted, written to the trace
once per kind, and passed over.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from traceml_lite._errors import UsageError
from traceml_lite.probe import core
from traceml_lite.probe.counters import Counters
from traceml_lite.probe.deliveries import IteratorRecorder
from traceml_lite.probe.host import HostSampler, read_environment
from traceml_lite.records.run import MISSING
from traceml_lite.store.layout import LIVE, RingHeader
from traceml_lite.store.write import TraceWriter

_now = time.perf_counter_ns

DEFAULT_LIMIT_BYTES = 1 << 30
# Host facts change over seconds; a row costs about 0.1 ms.
HOST_EVERY_NS = 1_000_000_000
# A kind of event is written at most so often: an unbounded number of iterators must not fill the disk.
EVENTS_PER_KIND = 20_000

_active: Session | None = None


class Session:
    """A recording in this process. Made by ``record``; the hooks and recorders call its methods.

    Attributes:
        path: The trace directory.
        live: Where rings are made.
        rchar: Whether fetches read ``rchar``.
        host_due_ns: When the next row of host facts is due.
        sequence: Numbers the deliveries of this process over all iterators; atomic, as loaders may be
            consumed in several threads.
    """

    def __init__(self, path: Path, *, rchar: bool, limit_bytes: int) -> None:
        """Make the trace directory.

        Raises:
            OSError: It cannot be made or is not empty.
        """
        started = time.process_time_ns()
        self.path = path
        self.live = path / LIVE
        self.rchar = rchar
        self.host_due_ns = 0
        self.sequence = itertools.count()
        self._pid = os.getpid()
        self._id = uuid.uuid4().hex
        self._lock = threading.RLock()
        self._thread = threading.local()
        self._counters: list[Counters] = []
        self._recorders: dict[int, IteratorRecorder] = {}
        self._iterators = 0
        self._loaders: dict[Any, int] = {}
        self._epochs: Counter[int] = Counter()
        self._failures: Counter[str] = Counter()
        self._event_counts: Counter[str] = Counter()
        self._consumer_own_ns: dict[int, int] = {}
        self._worker_own_ns: dict[tuple[int, int], int] = {}
        self._lost: dict[tuple[int, int], int] = {}
        self._own_ns: Counter[str] = Counter()
        self._pids: dict[int, list[int]] = {}
        self._capabilities: dict[str, str | None] = {}
        self._environment_read = False
        self._closed = False
        self._host = HostSampler()
        environment = read_environment()
        self._writer = TraceWriter(
            path,
            limit_bytes=limit_bytes,
            manifest={
                "session": self._id,
                "environment": asdict(environment),
                "owner_start_ticks": _start_ticks(),
                "rchar": rchar,
                "core": core.NAME,
            },
        )
        self.event("session", None, session=self._id, host=socket.gethostname())
        self.sample_host()
        self._fixed_cpu_ns = time.process_time_ns() - started

    # -- what recorders need --------------------------------------------------------------------------

    @property
    def here(self) -> bool:
        """Whether this is the traced process and the recording runs: false in its forks."""
        return not self._closed and os.getpid() == self._pid

    def next_epoch(self, loader: int) -> int:
        """Number of the epoch that starts now, over all iterators of this loader."""
        with self._lock:
            epoch = self._epochs[loader]
            self._epochs[loader] += 1
            return epoch

    def run_queue_ns(self) -> int:
        """Run-queue delay of the calling thread so far, or MISSING."""
        counters = getattr(self._thread, "counters", None)
        if counters is None:
            counters = Counters(rchar=False)
            self._thread.counters = counters
            self._counters.append(counters)
        return MISSING if counters.absent & 1 else counters.run_queue()[0]

    def append(self, name: str, records: bytes | memoryview) -> None:
        """Append records to one of the trace's files."""
        with self.guarded("write the trace"):
            self._writer.append(name, records)
            done = self._writer.thin_if_over()
            if done is not None:
                self.event("thinned", None, **done)

    def event(self, kind: str, iterator: int | None, **data: Any) -> None:
        """Write an event."""
        self._event_counts[kind] += 1
        if self._event_counts[kind] > EVENTS_PER_KIND:
            return
        with self.guarded("write an event"):
            self._writer.event(kind, _now(), iterator, data)

    def sample_host(self) -> None:
        """Write a row of host facts."""
        self.host_due_ns = _now() + HOST_EVERY_NS
        with self.guarded("read the host"):
            pids = [pid for own in self._pids.values() for pid in own]
            self._writer.host_row(self._host.sample(pids))

    def made(self, recorder: IteratorRecorder, pids: list[int | None]) -> None:
        """An iterator is ready, or begins another turn."""
        with self._lock:
            self._pids[recorder.iterator] = [pid for pid in pids if pid]

    def forget(self, recorder: IteratorRecorder) -> None:
        """An iterator is gone."""
        with self._lock:
            self._recorders.pop(recorder.iterator, None)
            self._pids.pop(recorder.iterator, None)
            # Summed up here so that many short epochs do not make a growing table.
            self._own_ns["consumer"] += self._consumer_own_ns.pop(recorder.iterator, 0)
            for worker in [key for key in self._worker_own_ns if key[0] == recorder.iterator]:
                self._own_ns["worker"] += self._worker_own_ns.pop(worker)
                self._own_ns["lost"] += self._lost.pop(worker, 0)

    def worker_seen(self, recorder: IteratorRecorder, worker: int, header: RingHeader) -> None:
        """A worker's ring was read for the first time."""
        self.event(
            "worker_start",
            recorder.iterator,
            worker=header.worker,
            pid=header.pid,
            turn=recorder.turn,
            cpus_affinity=header.cpus or None,
        )
        if header.absent:
            self.event("absent", recorder.iterator, bits=header.absent, errno=header.errno)

    def count_worker(self, recorder: IteratorRecorder, worker: int, own_ns: int, lost: int) -> None:
        """Totals of one worker's ring so far."""
        self._worker_own_ns[recorder.iterator, worker] = own_ns
        if lost:
            self._lost[recorder.iterator, worker] = lost

    def count_consumer(self, recorder: IteratorRecorder, own_ns: int) -> None:
        """Total of the consumer's own time on one iterator so far."""
        self._consumer_own_ns[recorder.iterator] = own_ns

    # -- what the hooks need --------------------------------------------------------------------------

    def watch(self, describe: Callable[[], tuple[Any, Mapping[str, Any]]], made_ns: int) -> IteratorRecorder:
        """Start recording an iterator.

        Args:
            describe: Gives the loader's identity (hashable) and its configuration.
            made_ns: When its construction began.

        Raises:
            OSError: Its ring cannot be made.
        """
        identity, config = describe()
        with self._lock:
            if not self._environment_read:
                # torch is there by now; before, it may not have been imported.
                self._environment_read = True
                self._writer.update_manifest(environment=asdict(read_environment(sys.modules.get("torch"))))
            loader = self._loaders.setdefault(identity, len(self._loaders))
            iterator = self._iterators
            self._iterators += 1
        recorder = IteratorRecorder(self, iterator, loader, int(config.get("num_workers") or 0), made_ns)
        with self._lock:
            self._recorders[iterator] = recorder
        self.event("iterator", iterator, loader=loader, config=dict(config))
        return recorder

    def abandon(self) -> None:
        """In a fork of the traced process: iterators that it inherited are not recorded there."""
        for recorder in list(self._recorders.values()):
            recorder.abandon()

    def lacks(self, capability: str, reason: str) -> None:
        """Something cannot be seen in this run, and why."""
        if self._capabilities.get(capability) is None:
            self._capabilities[capability] = reason
            with self.guarded("write the manifest"):
                self._writer.update_manifest(capabilities=self._capabilities)

    @contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """Pass over what fails inside, but never over what a signal handler of the user's raised there."""
        try:
            yield
        except Exception as error:
            self.passed_over(doing, error)

    def passed_over(self, doing: str, error: Exception) -> None:
        """Count a failure of ours and write it once per kind; re-raise what a signal handler raised."""
        if _from_signal_handler(error.__traceback__):
            raise error
        kind = f"{doing}: {type(error).__name__}: {error}"
        self._failures[kind] += 1
        if self._failures[kind] == 1:
            with contextlib.suppress(OSError):
                self._writer.event(
                    "probe_error",
                    _now(),
                    None,
                    {"what": doing, "type": type(error).__name__, "message": str(error)},
                )

    @property
    def failures(self) -> Mapping[str, int]:
        """What of the probe failed so far, and how often."""
        return dict(self._failures)

    def close(self, how: str = "ended in order", **end: Any) -> None:
        """End the recording; idempotent and safe in a signal handler."""
        if self._closed or os.getpid() != self._pid:
            return
        for recorder in list(self._recorders.values()):
            with self.guarded("close an iterator"):
                recorder.close()
        if not self._loaders:
            found = "torch was imported" if "torch" in sys.modules else "torch was not imported"
            self._capabilities["deliveries"] = f"no DataLoader was iterated in this process; {found}"
        self.sample_host()
        self.event("script_end", None, **end)
        self._closed = True
        for counters in self._counters:
            counters.close()
        self._host.close()
        cost = {
            "consumer_ns": float(self._own_ns["consumer"] + sum(self._consumer_own_ns.values())),
            "worker_ns": float(self._own_ns["worker"] + sum(self._worker_own_ns.values())),
            "fixed_cpu_ns": float(self._fixed_cpu_ns),
            "records": float(next(self.sequence)),
            "dropped": float(self._own_ns["lost"] + sum(self._lost.values())),
        }
        with self.guarded("close the trace"):
            self._writer.close(
                ended={"how": how, "time_ns": _now(), **end},
                probe_cost=cost,
                capabilities=self._capabilities,
                failures=dict(self._failures),
                host_absent=dict(self._host.absent),
            )


def _from_signal_handler(traceback: TracebackType | None) -> bool:
    """Whether an exception was raised by one of the process's signal handlers.

    torch raises "DataLoader worker is killed" from its SIGCHLD handler, which may run in the middle of our
    code; that exception is the user's.
    """
    handlers = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        if code is not None:
            handlers.add(code)
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _start_ticks() -> str | None:
    """Start time of this process: with the PID it names a process for good."""
    try:
        return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def start(
    path: str | os.PathLike[str], *, rchar: bool = True, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> Session:
    """Begin to record every DataLoader iterated in this process.

    Args:
        path: Trace directory to make.
        rchar: Read ``rchar`` in fetches (4 us each).
        limit_bytes: Bound on the size of the trace.

    Returns:
        The session; end it with ``stop``.

    Raises:
        UsageError: A recording runs already.
        OSError: ``path`` is not empty or cannot be written.
    """
    global _active
    if _active is not None and _active.here:
        raise UsageError(
            f"a recording runs already (into {_active.path}); end it before another one starts, or record "
            "both loaders into one trace: they are kept apart there"
        )
    # The hooks load torch, which may not be wanted at all: they arm themselves on its import.
    from traceml_lite.probe.hooks import arm

    session = Session(Path(path), rchar=rchar, limit_bytes=limit_bytes)
    _active = session
    arm(session)
    return session


def stop(session: Session, how: str = "ended in order", **end: Any) -> None:
    """End a recording and take the hooks out again."""
    global _active
    from traceml_lite.probe.hooks import disarm

    disarm()
    session.close(how, **end)
    if _active is session:
        _active = None


@contextmanager
def record(
    path: str | os.PathLike[str], *, rchar: bool = True, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> Iterator[Session]:
    """Record every DataLoader iterated inside the ``with`` block; see ``start`` for the arguments."""
    session = start(path, rchar=rchar, limit_bytes=limit_bytes)
    try:
        yield session
    except BaseException as error:
        stop(session, f"ended by {type(error).__name__}", exception=type(error).__name__)
        raise
    else:
        stop(session)
