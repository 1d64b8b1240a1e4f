"""The worker's half: counters around each fetch, written into the worker's own ring.

Runs in worker processes (and in the consumer with ``num_workers=0``). What runs for every fetch is in
``core``; this is what happens once, or now and then. It never raises into the fetch: when something of it
fails, recording stops and the fetch goes on.
"""

from __future__ import annotations

import contextlib
import os

from traceml_lite.probe.core import FetchCore
from traceml_lite.probe.counters import Counters
from traceml_lite.records.run import MISSING
from traceml_lite.store.ring import PREEMPTED_NS, Ring

# The resident set changes slowly and costs 4 us to read.
RESIDENT_EVERY_NS = 1_000_000_000
# rchar costs 4 us a fetch. For fetches shorter than this it is read on one in RCHAR_EVERY: the sum of a
# page-cache reader's bytes stays visible and the cost stays below 2 % of the fetch.
RCHAR_BELOW_NS = 200_000
RCHAR_EVERY = 16


class FetchRecorder(FetchCore):
    """Writes one record per fetch of one (iterator, worker)."""

    __slots__ = ("_counters", "_rchar", "_ring")

    def __init__(self, ring: Ring, *, iterator: int, worker: int, turn: int, rchar: bool) -> None:
        self._ring = ring
        self._rchar = rchar
        self._counters = Counters(rchar=rchar)
        if self._counters.absent:
            ring.say_absent(self._counters.absent, self._counters.errno)
        self.begin(
            ring.memory,
            ring.capacity,
            iterator,
            worker,
            turn,
            rchar_below_ns=RCHAR_BELOW_NS,
            rchar_every=RCHAR_EVERY,
            resident_every_ns=RESIDENT_EVERY_NS,
            preempted_ns=PREEMPTED_NS,
        )
        self._read_here()

    def _read_here(self) -> None:
        self.read_from(self._counters.sched, self._counters.io, self._counters.exec_live())

    def moved(self) -> None:
        """Fetches go on in another thread, as any may take the batches with ``num_workers=0``."""
        self._counters.close()
        self._counters = Counters(rchar=self._rchar)
        self._read_here()

    def resident(self) -> tuple[int, int]:
        """Resident set in bytes and number of threads; MISSING where they cannot be read."""
        return (MISSING, MISSING) if self._counters.absent & 4 else self._counters.resident()

    def note_cpus(self) -> None:
        """Note how many CPUs this process may run on now; workers are often pinned in worker_init_fn."""
        with contextlib.suppress(OSError, AttributeError, ValueError):
            self._ring.say_cpus(len(os.sched_getaffinity(0)))

    def close(self) -> None:
        """Stop recording and close the descriptors."""
        self.failed = self.failed or "closed"
        self._counters.close()
