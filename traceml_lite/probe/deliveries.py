"""The consumer's half: one record per delivery, into the iterator's own ring.

An ``IteratorRecorder`` belongs to one iterator and knows no torch; the hooks call it. It holds no reference
to the iterator, so that an abandoned one goes away, and ends its workers, exactly when it would have.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceml_lite.probe.core import DeliveryCore
from traceml_lite.records.run import IN_CONSUMER, MISSING, UNKNOWN_WORKER
from traceml_lite.store.layout import (
    DELIVERIES,
    DELIVERY_STEP_OFFSET,
    FETCH,
    FETCHES,
    ring_slots,
)
from traceml_lite.store.ring import PREEMPTED_NS, Ring, RingReader

if TYPE_CHECKING:
    from traceml_lite.probe.fetch import FetchRecorder
    from traceml_lite.probe.session import Session

_now = time.perf_counter_ns
_thread_cpu = time.thread_time_ns
_process_cpu = time.process_time_ns

# Rings are emptied into the trace's files once in so many deliveries, or in a third of them where counters
# are read anyhow; the host is read then, too, if it is nearly due. What takes 0.1 ms and more thus comes
# together, rarely enough to stay out of the 99th percentile. A ring holds more than what is not emptied.
DRAIN_EVERY = 800
HOST_EARLY_NS = 500_000_000
_DELIVERY_RING = 1024  # a power of two
# The consumer's own counters cost some 15 us a delivery, more with cold caches. They are read around the
# first deliveries of a turn and then around one in every 200 ms, which is every one where steps are long;
# where iterations take less than 2 ms, around one in so many, which keeps them out of the 99th percentile.
FIRST_READ = 32
READ_EVERY_NS = 200_000_000
SHORT_NS, READ_EVERY_SHORT = 2_000_000, 512
# Worker number of the consumer's own ring, to tell it from the ring of fetches with num_workers=0.
_CONSUMER_RING = UNKNOWN_WORKER


class IteratorRecorder(DeliveryCore):
    """State and ring of one iterator; what runs for every delivery is in ``core``.

    Attributes:
        iterator: Its number in the trace.
        loader: Number of its loader.
        workers: How many workers it has.
        made_ns: When its construction, or its latest turn, began.
        ready_ns: When that was over.
        own: Recorder of the fetches made here, with ``num_workers=0``.
    """

    __slots__ = (
        "_closed_turn", "_read_due_ns", "_readers", "_readings", "_ring", "_sampled", "_session", "iterator",
        "loader", "made_ns", "own", "ready_ns", "workers",
    )  # fmt: skip

    def __init__(self, session: Session, iterator: int, loader: int, workers: int, made_ns: int) -> None:
        self._session = session
        self.iterator = iterator
        self.loader = loader
        self.workers = workers
        self.made_ns = made_ns
        self.ready_ns: int | None = None
        self.own: FetchRecorder | None = None
        self._closed_turn = False
        self._readings: tuple[int, int, int] | None = None
        self._read_due_ns = 0
        self._sampled = True
        self._ring = Ring(
            str(session.live / f"{iterator}.deliveries"),
            _DELIVERY_RING,
            iterator=iterator,
            worker=_CONSUMER_RING,
        )
        self._readers = [RingReader(self.ring_path(worker)) for worker in range(workers)]
        self.begin(
            self._ring.memory, _DELIVERY_RING, iterator, workers, session.sequence, DRAIN_EVERY, PREEMPTED_NS
        )

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
        for rank in range(self.sent, sent):
            info = task_info.get(rank)
            if info is not None:
                self.give(rank, info[0], now_ns)
        self.sent = sent

    def asked(self, now_ns: int) -> None:
        """Read the consumer's counters at an ask: the end of a step, the beginning of a wait.

        Called only while ``reading``. The step's own length is the next ask minus got, computed when read.
        """
        now = self._read()
        before = self._readings
        if before is not None:
            self._fill_step(
                now_ns - self.last_got_ns,
                now[0] - before[0], now[1] - before[1], _difference(now[2], before[2]),
            )  # fmt: skip
        self._readings = now

    def stopped(self, asked_ns: int, stop_ns: int) -> None:
        """``next`` raised StopIteration."""
        if self._deliveries() and not self._closed_turn:
            # Its length alone: the counters are there already, if they were read at this ask.
            self._fill_step(asked_ns - self.last_got_ns)
        self._end_turn("epoch_end", {"stop_ns": stop_ns - asked_ns})

    def failed(self, error: BaseException, asked_ns: int, rank: int, processes: list[Any]) -> None:
        """``next`` raised something else; the processes are those of the workers."""
        self.drain(keep_last=False)
        # A rank that is not awaited is the last delivered one: this error belongs to no batch.
        worker = IN_CONSUMER if not self.workers and rank != MISSING else None
        by_worker = self.take(rank)
        worker = worker if by_worker is None else by_worker
        self._session.event(
            "error", self.iterator, epoch=self.epoch, deliveries=self._deliveries(),
            rank=None if worker is None else rank, type=type(error).__name__, worker=worker,
            after_ns=_now() - asked_ns,
        )  # fmt: skip
        self.report_gone(processes)

    def report_gone(self, processes: list[Any]) -> None:
        """Write an event for each worker that is dead, with the batch it had in hand."""
        by_task = self.open_tasks()
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
        self.new_turn()
        self.epoch = MISSING
        self._closed_turn = False
        self._readings = None
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
        self.queue_room = None
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
        return self.committed - self.first

    def _fill_step(self, *fields: int) -> None:
        """Complete the newest record with the step behind it, unless it has left the ring (an error did).

        Args:
            *fields: The first of the record's fields from ``step_ns`` on; the others stay as they are.
        """
        if self.committed > self.drained:
            place = self._ring.offset(self.committed - 1) + DELIVERY_STEP_OFFSET
            struct.pack_into(f"<{len(fields)}q", self._ring.memory, place, *fields)

    def _read(self) -> tuple[int, int, int]:
        return _thread_cpu(), _process_cpu(), self._session.run_queue_ns()

    def read_wait(self, number: int, asked_ns: int, got_ns: int) -> None:
        """Read the consumer's counters behind a wait, and put off the next reading."""
        if number == self.first:
            self._begin_epoch(asked_ns)
        before = self._readings
        now = self._read()
        if before is not None:
            self.wait_cpu_ns = now[0] - before[0]
            self.wait_run_queue_ns = _difference(now[2], before[2])
        # The step of a sampled delivery is read to its end, at the next ask.
        self._readings = now if self._sampled else None
        iteration_ns = got_ns - self.last_got_ns
        often_ns = READ_EVERY_SHORT * iteration_ns if iteration_ns < SHORT_NS else 0
        self._read_due_ns = got_ns + max(READ_EVERY_NS, often_ns)
        self.due_ns = 0

    def look(self, got_ns: int) -> None:
        """What is due only now and then: the next reading, a drain, the host."""
        before_ns = _thread_cpu()
        was_read, sampled = self.reading, self._sampled
        self._sampled = got_ns >= self._read_due_ns or self._deliveries() < FIRST_READ
        self.reading = sampled or self._sampled
        session = self._session
        waiting = self.committed - self.drained
        drained = waiting > (DRAIN_EVERY // 3 if was_read else DRAIN_EVERY)
        if drained:
            self.drain(keep_last=True)
        if got_ns > session.host_due_ns - (HOST_EARLY_NS if was_read or drained else 0):
            session.sample_host()
        self.due_ns = min(self._read_due_ns, session.host_due_ns)
        # The CPU time of this thread: it may have waited for the disk.
        self.own_ns += _thread_cpu() - before_ns
        self._ring.publish(self.committed, self.own_ns)

    def _begin_epoch(self, asked_ns: int) -> None:
        # Numbered at the first delivery: some frameworks make iterators that never deliver.
        self.epoch = self._session.next_epoch(self.loader)
        self._session.event(
            "epoch_start", self.iterator, epoch=self.epoch, turn=self.turn,
            iter_ns=None if self.ready_ns is None else self.ready_ns - self.made_ns, first_ask_ns=asked_ns,
        )  # fmt: skip

    def _end_turn(self, kind: str, data: dict[str, Any]) -> None:
        if self.committed > self.drained or not self._closed_turn:
            self.drain(keep_last=False)
        if self._closed_turn:
            return
        self._closed_turn = True
        if self._deliveries() or kind == "epoch_end":
            self._session.event(
                kind, self.iterator, epoch=self.epoch, deliveries=self._deliveries(), turn=self.turn, **data
            )

    def drain(self, *, keep_last: bool) -> None:
        """Move whole records from the rings to the trace's files.

        Args:
            keep_last: Leave the newest delivery, whose step is still running, in the ring.
        """
        until = self.committed - 1 if keep_last else self.committed
        spans, _ = ring_slots(until, self.drained, _DELIVERY_RING)
        with memoryview(self._ring.memory) as memory:
            for offset, length in spans:
                with memory[offset : offset + length] as part:
                    self._session.append(DELIVERIES, part)
        # They stay in the ring until they are overwritten: whoever reads rings and then files misses nothing.
        self.drained = max(self.drained, until)
        for worker, reader in enumerate(self._readers):
            before = reader.header
            records, _ = reader.take()
            self._session.append(FETCHES, records)
            header = reader.header
            if header is not None and before is None:
                self._session.worker_seen(self, worker, header)
            if header is not None:
                self._session.count_worker(self, worker, header.own_ns, reader.lost)
        self._session.count_consumer(self, self.own_ns)


def _difference(after: int, before: int) -> int:
    return MISSING if MISSING in (after, before) else after - before


def own_fetch_ring(recorder: IteratorRecorder) -> Ring:
    """The ring for fetches that the consumer makes itself (``num_workers=0``)."""
    return Ring(recorder.watch_own_fetches(), _DELIVERY_RING, iterator=recorder.iterator, worker=IN_CONSUMER)


def worker_ring_capacity(workers: int, prefetch: int) -> int:
    """Records a worker may write between two drains: of DRAIN_EVERY deliveries and all it may be ahead."""
    needed = DRAIN_EVERY + 2 * max(prefetch, 1) * max(workers, 1)
    return max(512, 1 << (needed - 1).bit_length())
