"""The worker's half: counters around each fetch, written into the worker's own ring.

Runs in worker processes (and in the consumer with ``num_workers=0``). It never raises into the fetch: when
something of it fails, recording stops and the fetch goes on.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable
from typing import Any

from traceml_lite.probe.counters import BLOCK_BYTES, IO_BYTES, SCHED_BYTES, Counters
from traceml_lite.records.run import FETCH_DONE, FETCH_RAISED, FETCH_STARTED, FETCH_STOPPED, MISSING
from traceml_lite.store.layout import FETCH_START_STRUCT, FETCH_STRUCT, RECORD_SIZE, RING_HEADER_SIZE
from traceml_lite.store.ring import Ring

_now = time.perf_counter_ns
_thread_cpu = time.thread_time_ns
_usage = resource.getrusage
_SELF = resource.RUSAGE_SELF
_pread = os.pread
_pack_start = FETCH_START_STRUCT.pack_into
_pack_fetch = FETCH_STRUCT.pack_into

# The resident set changes slowly and costs 4 us to read.
RESIDENT_EVERY_NS = 1_000_000_000
# rchar costs 4 us a fetch. For fetches shorter than this it is read on one in RCHAR_EVERY: the sum of a
# page-cache reader's bytes stays visible and the cost stays below 2 % of the fetch.
RCHAR_BELOW_NS = 200_000
RCHAR_EVERY = 16


class FetchRecorder:
    """Writes one record per fetch of one (iterator, worker).

    Attributes:
        turn: Which pass of the iterator this is; persistent workers make many.
        failed: Why recording stopped, or None.
    """

    __slots__ = (
        "_counters", "_iterator", "_k", "_last_resident_ns", "_last_wall_ns", "_pid", "_ring",
        "_worker", "failed", "turn",
    )  # fmt: skip

    def __init__(self, ring: Ring, *, iterator: int, worker: int, turn: int, rchar: bool) -> None:
        self._ring = ring
        self._iterator = iterator
        self._worker = worker
        self._pid = os.getpid()
        self._k = 0
        self._last_resident_ns = 0
        self._last_wall_ns = RCHAR_BELOW_NS
        self.turn = turn
        self.failed: str | None = None
        self._counters = Counters(rchar=rchar)
        if self._counters.absent:
            ring.say_absent(self._counters.absent, self._counters.errno)

    def next_turn(self) -> None:
        """The iterator starts another pass with the same worker."""
        self.turn += 1
        self._k = 0

    def note_cpus(self) -> None:
        """Note how many CPUs this process may run on now; workers are often pinned in worker_init_fn."""
        with contextlib.suppress(OSError, AttributeError, ValueError):
            self._ring.say_cpus(len(os.sched_getaffinity(0)))

    def close(self) -> None:
        """Stop recording and close the descriptors."""
        self.failed = self.failed or "closed"
        self._counters.close()

    def run(self, fetch: Callable[[Any], Any], index: Any, iterable: bool) -> Any:
        """Call ``fetch(index)`` between two readings of the counters; its outcome is unchanged.

        The hot path of a worker. All of it is spelt out here, because a Python call costs as much as a
        counter does.
        """
        if self.failed is not None:
            return fetch(index)
        try:
            entered_ns = _now()
            ring = self._ring
            place = RING_HEADER_SIZE + ring.committed % ring.capacity * RECORD_SIZE
            k = self._k
            # Before the fetch: it may well consume its index.
            samples = MISSING if iterable else _samples(index)
            # The start mark: what a killed worker leaves behind names the batch in flight.
            _pack_start(
                ring.memory, place, self._iterator, self.turn, self._pid, self._worker, FETCH_STARTED, k,
                entered_ns,
            )  # fmt: skip
            counters = self._counters
            io = counters.io
            if self._last_wall_ns < RCHAR_BELOW_NS and k % RCHAR_EVERY:
                io = -1
            asked_before = own_bytes = delay_before = 0
            if io >= 0:
                text = _pread(io, IO_BYTES, 0)
                asked_before, own_bytes = int(text[7 : text.index(b"\n")]), len(text)
            sched = counters.sched
            if sched >= 0:
                text = _pread(sched, SCHED_BYTES, 0)
                delay_before = int(text.split()[1])
                own_bytes += len(text)
            usage_before = _usage(_SELF)
            thread_before = _thread_cpu()
        except Exception as error:
            self.failed = repr(error)
            return fetch(index)
        state = FETCH_RAISED
        started_ns = _now()
        try:
            data = fetch(index)
            state = FETCH_DONE
            return data
        except StopIteration:
            state = FETCH_STOPPED
            raise
        finally:
            ended_ns = _now()
            try:
                thread_cpu = _thread_cpu()
                usage = _usage(_SELF)
                delay = rchar = MISSING
                if sched >= 0:
                    text = _pread(sched, SCHED_BYTES, 0)
                    delay = int(text.split()[1]) - delay_before
                    own_bytes += len(text)
                if io >= 0:
                    # The readings in between count as reads of this process too; this very one not yet.
                    text = _pread(io, IO_BYTES, 0)
                    rchar = max(0, int(text[7 : text.index(b"\n")]) - asked_before - own_bytes)
                resident = threads = MISSING
                if ended_ns - self._last_resident_ns > RESIDENT_EVERY_NS and not counters.absent & 4:
                    resident, threads = counters.resident()
                    self._last_resident_ns = ended_ns
                self._last_wall_ns = ended_ns - started_ns
                _pack_fetch(
                    ring.memory, place, self._iterator, self.turn, self._pid, self._worker, state, k,
                    started_ns, ended_ns,
                    int((usage[0] - usage_before[0] + usage[1] - usage_before[1]) * 1e9 + 0.5),
                    thread_cpu - thread_before, delay,
                    usage[6] - usage_before[6], usage[7] - usage_before[7],
                    usage[14] - usage_before[14], usage[15] - usage_before[15],
                    (usage[9] - usage_before[9]) * BLOCK_BYTES, rchar, resident,
                    samples, threads, MISSING, MISSING,
                )  # fmt: skip
                self._k = k + 1
                ring.commit(_now() - ended_ns + started_ns - entered_ns)
            except Exception as error:
                self.failed = repr(error)  # the batch is the user's: it goes out whatever became of ours


def _samples(index: Any) -> int:
    """Samples in a batch's index; 1 when there is no batching."""
    try:
        return len(index)
    except TypeError:
        return 1
