"""The consumer's half: one record per delivery, into the iterator's own ring.

An ``IteratorRecorder`` belongs to one iterator and knows no torch; the hooks call it. It holds no reference
to the iterator, so that an abandoned one goes away, and ends its workers, exactly when it would have.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceml_lite.records.run import IN_CONSUMER, MISSING, UNKNOWN_WORKER
from traceml_lite.store.layout import (
    DELIVERIES,
    DELIVERY_BODY_OFFSET,
    DELIVERY_BODY_STRUCT,
    DELIVERY_STEP_OFFSET,
    DELIVERY_STRUCT,
    DELIVERY_WAIT_OFFSET,
    DELIVERY_WAIT_STRUCT,
    FETCH,
    FETCHES,
    RECORD_SIZE,
    RING_HEADER_SIZE,
    ring_slots,
)
from traceml_lite.store.ring import PREEMPTED_NS, Ring, RingReader

if TYPE_CHECKING:
    from traceml_lite.probe.fetch import FetchRecorder
    from traceml_lite.probe.session import Session

_now = time.perf_counter_ns
_pack_body = DELIVERY_BODY_STRUCT.pack_into
_BODY = RING_HEADER_SIZE + DELIVERY_BODY_OFFSET
_thread_cpu = time.thread_time_ns
_process_cpu = time.process_time_ns

# Rings are emptied into the trace's files once in so many deliveries; a drain costs some 10 us a worker. What
# was emptied stays readable until the next drain, so two drains and a look fit into a ring.
DRAIN_EVERY = 224
_DELIVERY_RING = 512
_SLOT = _DELIVERY_RING - 1  # a power of two less one: the slot of a number is its low bits
# What is due is looked at, and the own time measured, once in so many deliveries: a power of two.
LOOK_EVERY = 16
# The consumer's own counters cost some 15 us a delivery, more with cold caches. They are read around the
# first deliveries of a turn and then around one in every 200 ms, which is every one where steps are long;
# where iterations take less than 2 ms, around one in so many, which keeps them out of the 99th percentile.
FIRST_READ = 32
READ_EVERY_NS = 200_000_000
SHORT_NS, READ_EVERY_SHORT = 2_000_000, 512
NO_TASK = (UNKNOWN_WORKER, MISSING, MISSING)
# Worker number of the consumer's own ring, to tell it from the ring of fetches with num_workers=0.
_CONSUMER_RING = UNKNOWN_WORKER


class IteratorRecorder:
    """State and ring of one iterator.

    Attributes:
        tasks: Rank to ``(worker, k, dispatch_ns)`` of what was dispatched and not delivered.
        given: Tasks given to each worker in this turn.
        sent: Ranks below this one are known to be dispatched.
        asks: Batches asked for in this turn, counted with ``num_workers=0`` only.
        turn: Which pass of the iterator this is.
        live: False once the iterator or the session has ended; the hooks pass through then.
        last_index: Rank of the last message received, where batches may overtake.
        own: Recorder of the fetches made here, with ``num_workers=0``.
        reading: Whether the next ask reads the consumer's counters.
        constructing: True until the first batch that was not asked for by the iterator's own code; as a
            number it is ``FLAG_FAST_FORWARD``.
    """

    __slots__ = (
        "_blank", "_closed_turn", "_committed", "_count", "_drained", "_due_ns", "_emptied", "_epoch",
        "_first", "_last_got_ns", "_looked", "_memory", "_next_sequence", "_plain_ns", "_read_due_ns",
        "_readers", "_reading_ns", "_readings", "_ring", "_sampled", "_session", "asks", "constructing",
        "given", "iterator", "last_index", "live", "loader", "made_ns", "own", "reading", "ready_ns",
        "sent", "tasks", "turn", "workers",
    )  # fmt: skip

    def __init__(self, session: Session, iterator: int, loader: int, workers: int, made_ns: int) -> None:
        self._session = session
        self.iterator = iterator
        self.loader = loader
        self.workers = workers
        self.made_ns = made_ns
        self.ready_ns: int | None = None
        self.turn = 0
        self.tasks: dict[int, tuple[int, int, int]] = {}
        self.live = True
        self.last_index = MISSING
        self.constructing = True
        self.own: FetchRecorder | None = None
        self.sent = 0
        self.asks = 0
        self.given = [0] * workers
        self._epoch = MISSING
        self._committed = 0
        self._first = 0  # number, over all turns, of the first delivery of this one
        self._closed_turn = False
        self._last_got_ns = 0
        self._readings: tuple[int, int, int] | None = None
        self._read_due_ns = 0
        self._due_ns = 0
        self.reading = True
        self._sampled = True
        self._drained = 0
        self._ring = Ring(
            str(session.live / f"{iterator}.deliveries"),
            _DELIVERY_RING,
            iterator=iterator,
            worker=_CONSUMER_RING,
        )
        self._memory = self._ring.memory
        self._count = self._ring.count
        self._blank = memoryview(b"")
        self._emptied: list[tuple[int, int]] = []  # spans that have been drained and not been blanked yet
        self._looked = 0  # deliveries at the last look
        self._plain_ns, self._reading_ns = 0, PREEMPTED_NS  # bookkeeping of one without a reading, and with
        self._next_sequence = session.sequence.__next__
        self._readers = [RingReader(self.ring_path(worker)) for worker in range(workers)]

    def ring_prefix(self) -> str:
        """Path of the workers' rings without the worker's number."""
        return str(Path(self._session.live) / f"{self.iterator}.fetches.")

    def ring_path(self, worker: int) -> str:
        """Path of one worker's ring."""
        return f"{self.ring_prefix()}{worker}"

    def watch_own_fetches(self) -> str:
        """With ``num_workers=0``: the path for the ring of fetches made here."""
        path = f"{self.ring_prefix()}c"
        self._readers.append(RingReader(path))
        return path

    # -- called by the hooks, in the order of an iterator's life ---------------------------------------

    def dispatched(self, task_info: Any, sent: int, now_ns: int) -> None:
        """Ranks up to ``sent`` have been put into the workers' queues, at about ``now_ns``."""
        given = self.given
        for rank in range(self.sent, sent):
            info = task_info.get(rank)
            if info is not None:
                worker = info[0]
                self.tasks[rank] = (worker, given[worker], now_ns)
                given[worker] += 1
        self.sent = sent

    def asked(self, now_ns: int) -> None:
        """Read the consumer's counters at an ask: the end of a step, the beginning of a wait.

        Called only while ``reading``. The step's own length is the next ask minus got, computed when read.
        """
        now = self._read()
        before = self._readings
        if before is not None:
            self._fill_step(
                now_ns - self._last_got_ns,
                now[0] - before[0], now[1] - before[1], _difference(now[2], before[2]),
            )  # fmt: skip
        self._readings = now

    def delivered(
        self,
        entered_ns: int,
        asked_ns: int,
        got_ns: int,
        rank: int,
        task: tuple[int, int, int],
        queue_size: int,
        held_back: int,
    ) -> None:
        """The consumer has its batch: write the record.

        The hot path of the consumer. What is not needed for each delivery is left to ``_look``.
        """
        number = self._committed
        worker, k, dispatch_ns = task
        place = _BODY + (number & _SLOT) * RECORD_SIZE
        if self.reading:
            self._read_wait(number, asked_ns, got_ns)
        _pack_body(
            self._memory, place, worker, self.constructing, self._next_sequence(), number - self._first,
            rank, k, asked_ns, got_ns, dispatch_ns, queue_size, held_back,
        )  # fmt: skip
        self._last_got_ns = got_ns
        self._count[0] = self._committed = number + 1
        if got_ns > self._due_ns or not number % LOOK_EVERY:
            self._look(entered_ns, asked_ns, got_ns)

    def stopped(self, asked_ns: int, stop_ns: int) -> None:
        """``next`` raised StopIteration."""
        if self._deliveries() and not self._closed_turn:
            # Its length alone: the counters are there already, if they were read at this ask.
            self._fill_step(asked_ns - self._last_got_ns)
        self._end_turn("epoch_end", {"stop_ns": stop_ns - asked_ns})

    def failed(self, error: BaseException, asked_ns: int, rank: int, processes: list[Any]) -> None:
        """``next`` raised something else; the processes are those of the workers."""
        self.drain(keep_last=False)
        # A rank that is not awaited is the last delivered one: this error belongs to no batch.
        worker = IN_CONSUMER if not self.workers and rank != MISSING else None
        if rank in self.tasks:
            worker = self.tasks.pop(rank)[0]
        self._session.event(
            "error", self.iterator, epoch=self._epoch, deliveries=self._deliveries(),
            rank=None if worker is None else rank, type=type(error).__name__, worker=worker,
            after_ns=_now() - asked_ns,
        )  # fmt: skip
        self.report_gone(processes)

    def report_gone(self, processes: list[Any]) -> None:
        """Write an event for each worker that is dead, with the batch it had in hand."""
        by_task = {(worker, k): rank for rank, (worker, k, _) in self.tasks.items()}
        for number, process in enumerate(processes):
            code = getattr(process, "exitcode", None)
            if code in (None, 0):
                continue
            rank, since_ns = None, None
            _, mark = self._readers[number].take() if number < len(self._readers) else (b"", b"")
            if len(mark) == FETCH.itemsize:
                import numpy as np

                row = np.frombuffer(mark, dtype=FETCH)[0]
                if row["state"] == 0 and row["fetch_start_ns"] > 0 and row["turn"] == self.turn:
                    since_ns = int(row["fetch_start_ns"])
                    rank = by_task.get((number, int(row["k"])))
            self._session.event(
                "worker_gone", self.iterator, worker=number, pid=process.pid, exit_code=code, rank=rank,
                since_ns=since_ns,
            )  # fmt: skip

    def ready(self, start_pids: list[int | None]) -> None:
        """The iterator is made, or a persistent one has begun another turn."""
        self.ready_ns = _now()
        self._session.made(self, start_pids)

    def next_turn(self) -> None:
        """A persistent iterator is being reset for another epoch."""
        self._end_turn("closed", {})
        self.turn += 1
        self.made_ns = _now()
        self.tasks.clear()
        self.last_index = MISSING
        self.sent = 0
        self.asks = 0
        self.given = [0] * self.workers
        self._first = self._committed
        self._epoch = MISSING
        self._closed_turn = False
        self._last_got_ns = 0
        self._due_ns = 0
        self._readings = None
        self.reading = True
        self._sampled = True

    def broken(self, doing: str, error: Exception) -> None:
        """Something of ours failed: note it and stop recording this iterator; not ours is re-raised."""
        self.live = False
        self._session.passed_over(f"record an iterator ({doing})", error)

    def close(self) -> None:
        """The iterator is gone, or the session ends: empty the rings and remove them. Idempotent."""
        if not self.live:
            return
        self.live = False
        if not self._session.here:
            return
        self._end_turn("closed", {})
        if self.own is not None:
            self.own.close()
        self._ring.unlink()
        for reader in self._readers:
            reader.unlink()
        self._session.forget(self)

    def abandon(self) -> None:
        """In a fork of the traced process, where rings and descriptors are the parent's: record nothing."""
        self.live = False
        if self.own is not None:
            self.own.failed = "in a fork of the traced process"

    # -- inside -----------------------------------------------------------------------------------------

    def _deliveries(self) -> int:
        return self._committed - self._first

    def _fill_step(self, *fields: int) -> None:
        """Complete the newest record with the step behind it, unless it has left the ring (an error did).

        Args:
            *fields: The first of the record's fields from ``step_ns`` on; the others stay as they are.
        """
        if self._committed > self._drained:
            place = self._ring.offset(self._committed - 1) + DELIVERY_STEP_OFFSET
            struct.pack_into(f"<{len(fields)}q", self._memory, place, *fields)

    def _read(self) -> tuple[int, int, int]:
        return _thread_cpu(), _process_cpu(), self._session.run_queue_ns()

    def _read_wait(self, number: int, asked_ns: int, got_ns: int) -> None:
        """Read the consumer's counters behind a wait, and put off the next reading."""
        if number == self._first:
            self._begin_epoch(asked_ns)
        before = self._readings
        now = self._read()
        if before is not None:
            DELIVERY_WAIT_STRUCT.pack_into(
                self._memory, self._ring.offset(number) + DELIVERY_WAIT_OFFSET,
                now[0] - before[0], _difference(now[2], before[2]),
            )  # fmt: skip
        # The step of a sampled delivery is read to its end, at the next ask.
        self._readings = now if self._sampled else None
        iteration_ns = got_ns - self._last_got_ns
        often_ns = READ_EVERY_SHORT * iteration_ns if iteration_ns < SHORT_NS else 0
        self._read_due_ns = got_ns + max(READ_EVERY_NS, often_ns)
        self._due_ns = 0

    def _look(self, entered_ns: int, asked_ns: int, got_ns: int) -> None:
        """What is due only now and then: the next reading, a drain, the host; and what all of it costs."""
        own_ns = _now() - got_ns + asked_ns - entered_ns
        ring = self._ring
        ring.committed = committed = self._committed
        # A delivery with a reading counts for itself; one without, for all like it since the last look.
        plain = committed - self._looked
        self._looked = committed
        if self.reading:
            self._reading_ns = own_ns if own_ns < PREEMPTED_NS else self._reading_ns
            ring.spent((plain - 1) * self._plain_ns + self._reading_ns)
        else:
            self._plain_ns = own_ns if own_ns < PREEMPTED_NS else self._plain_ns
            ring.spent(plain * self._plain_ns)
        sampled = self._sampled
        self._sampled = got_ns >= self._read_due_ns or self._deliveries() < FIRST_READ
        self.reading = sampled or self._sampled
        session = self._session
        full, host_due = committed - self._drained >= DRAIN_EVERY, got_ns > session.host_due_ns
        if full or host_due:
            # Its cost is the CPU time of this thread: it may wait for the disk.
            before_ns = _thread_cpu()
            if full:
                self.drain(keep_last=True)
            if host_due:
                session.sample_host()
            ring.own_ns += _thread_cpu() - before_ns
        self._due_ns = min(self._read_due_ns, session.host_due_ns)

    def _begin_epoch(self, asked_ns: int) -> None:
        # Numbered at the first delivery: some frameworks make iterators that never deliver.
        self._epoch = self._session.next_epoch(self.loader)
        # All that does not change within a turn; the ring is empty now.
        rest = [MISSING] * 15
        blank = DELIVERY_STRUCT.pack(self.iterator, self.turn, self._epoch, UNKNOWN_WORKER, 0, *rest)
        self._blank = memoryview(blank * _DELIVERY_RING)
        self._memory[RING_HEADER_SIZE:] = self._blank
        self._emptied = []
        self._session.event(
            "epoch_start", self.iterator, epoch=self._epoch, turn=self.turn,
            iter_ns=None if self.ready_ns is None else self.ready_ns - self.made_ns, first_ask_ns=asked_ns,
        )  # fmt: skip

    def _end_turn(self, kind: str, data: dict[str, Any]) -> None:
        if self._committed > self._drained or not self._closed_turn:
            self.drain(keep_last=False)
        if self._closed_turn:
            return
        self._closed_turn = True
        if self._deliveries() or kind == "epoch_end":
            self._session.event(
                kind, self.iterator, epoch=self._epoch, deliveries=self._deliveries(), turn=self.turn, **data
            )

    def drain(self, *, keep_last: bool) -> None:
        """Move whole records from the rings to the trace's files.

        Args:
            keep_last: Leave the newest delivery, whose step is still running, in the ring.
        """
        for offset, length in self._emptied:
            self._memory[offset : offset + length] = self._blank[:length]
        until = self._committed - 1 if keep_last else self._committed
        spans, _ = ring_slots(until, self._drained, _DELIVERY_RING)
        parts = [self._memory[offset : offset + length] for offset, length in spans]
        self._session.append(DELIVERIES, b"".join(parts))
        self._drained = max(self._drained, until)
        # Blanked at the next drain only: whoever reads the rings and then the files misses nothing.
        self._emptied = spans
        for worker, reader in enumerate(self._readers):
            before = reader.header
            records, _ = reader.take()
            self._session.append(FETCHES, records)
            header = reader.header
            if header is not None and before is None:
                self._session.worker_seen(self, worker, header)
            if header is not None:
                self._session.count_worker(self, worker, header.own_ns, reader.lost)
        self._session.count_consumer(self, self._ring.own_ns)


def _difference(after: int, before: int) -> int:
    return MISSING if MISSING in (after, before) else after - before


def own_fetch_ring(recorder: IteratorRecorder) -> Ring:
    """The ring for fetches that the consumer makes itself (``num_workers=0``)."""
    return Ring(recorder.watch_own_fetches(), _DELIVERY_RING, iterator=recorder.iterator, worker=IN_CONSUMER)


def worker_ring_capacity(workers: int, prefetch: int) -> int:
    """Records a worker may write between two drains: of DRAIN_EVERY deliveries and all it may be ahead."""
    needed = DRAIN_EVERY + LOOK_EVERY + 2 * max(prefetch, 1) * max(workers, 1)
    return max(512, 1 << (needed - 1).bit_length())
