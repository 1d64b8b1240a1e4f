"""The two hot paths in Python: what runs around every ``next`` and around every fetch.

``compiled/`` does the same in C, and ``core`` takes it where it was built. This module is what it is
measured against, and what runs where there was no compiler; the tests of the probe run both. Neither knows
torch: the names that they read of an iterator come from the hooks.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, MethodType
from typing import Any

from traceml_lite.probe.counters import BLOCK_BYTES, IO_BYTES, SCHED_BYTES
from traceml_lite.records.run import (
    FETCH_DONE,
    FETCH_RAISED,
    FETCH_STARTED,
    FETCH_STOPPED,
    IN_CONSUMER,
    MISSING,
    UNKNOWN_WORKER,
)
from traceml_lite.store.layout import (
    DELIVERY_STRUCT,
    FETCH_START_STRUCT,
    FETCH_STRUCT,
    RECORD_SIZE,
    RING_COUNTS,
    RING_COUNTS_OFFSET,
    RING_HEADER_SIZE,
)

_now = time.perf_counter_ns
_thread_cpu = time.thread_time_ns
_usage = resource.getrusage
_SELF = resource.RUSAGE_SELF
_pread = os.pread
_ident = threading.get_ident
_pack_delivery = DELIVERY_STRUCT.pack_into
_pack_start = FETCH_START_STRUCT.pack_into
_pack_fetch = FETCH_STRUCT.pack_into
_pack_counts = RING_COUNTS.pack_into

# How the batches of a class of iterators come about: by workers and delivered in order, by workers and
# delivered as they come, in the consumer, in a way that is not known.
IN_ORDER, OVERTAKING, HERE, UNSEEN = 0, 1, 2, 3
NO_TASK = (UNKNOWN_WORKER, MISSING, MISSING)


class DeliveryCore:
    """State of one iterator that its ``next`` needs, and the writing of a delivery's record.

    Attributes:
        live: False once the iterator or the session has ended; ``next`` passes through then.
        reading: Whether the next ask reads the consumer's counters.
        constructing: True until the first batch that was not asked for by the iterator's own code; as a
            number it is ``FLAG_FAST_FORWARD``.
        asks: Batches asked for in this turn, counted with ``num_workers=0`` only.
        sent: Ranks below this one are known to be dispatched.
        last_index: Rank of the last message received, where batches may overtake.
        queue_room: Gives how many more messages the workers' queue takes, or None; where it is there, it
            is called in place of the queue's own ``qsize``.
        queue_limit: How many it takes in all.
        turn: Which pass of the iterator this is.
        epoch: Number of the epoch, for the record.
        wait_cpu_ns: CPU time of the consumer in the wait that ``read_wait`` has just read, else MISSING.
        wait_run_queue_ns: Its run-queue delay.
        committed: Deliveries recorded so far, over all turns.
        first: Number, over all turns, of the first delivery of this one.
        drained: Records below this one have been moved to the trace's files.
        last_got_ns: When the last batch was had.
        due_ns: ``look`` is called for the first delivery after this.
        own_ns: Time spent on bookkeeping so far.
    """

    __slots__ = (
        "_drain_every", "_given", "_iterator", "_mask", "_memory", "_preempted_ns", "_sequence", "_tasks",
        "_usual_ns", "asks", "committed", "constructing", "drained", "due_ns", "epoch", "first",
        "last_got_ns", "last_index", "live", "own_ns", "queue_limit", "queue_room", "reading", "sent",
        "turn", "wait_cpu_ns", "wait_run_queue_ns",
    )  # fmt: skip

    def begin(
        self,
        memory: Any,
        slots: int,
        iterator: int,
        workers: int,
        sequence: Iterator[int],
        drain_every: int,
        preempted_ns: int,
    ) -> None:
        """Take the ring to write into, and start from nothing.

        Args:
            memory: The ring's mapping.
            slots: Records it holds, a power of two.
            iterator: Its number in the trace.
            workers: How many workers the iterator has.
            sequence: Numbers the deliveries of the process.
            drain_every: ``look`` is called when so many records have not been drained.
            preempted_ns: Bookkeeping that took longer had lost the CPU; it counts as the one before.
        """
        self._memory = memory
        self._mask = slots - 1
        self._iterator = iterator
        self._sequence = sequence
        self._drain_every = drain_every
        self._preempted_ns = self._usual_ns = preempted_ns
        self.live = self.constructing = True
        self.committed = self.drained = self.own_ns = 0
        self.queue_room: Callable[[], int] | None = None
        self.queue_limit = self.turn = 0
        self.epoch = MISSING
        self._given = [0] * workers
        self._tasks: dict[int, tuple[int, int, int]] = {}
        self.new_turn()

    def new_turn(self) -> None:
        """The iterator begins another pass."""
        self.asks = self.sent = self.last_got_ns = self.due_ns = 0
        self.last_index = MISSING
        self.first = self.committed
        self.reading = True
        self.wait_cpu_ns = self.wait_run_queue_ns = MISSING
        self._given = [0] * len(self._given)
        self._tasks.clear()

    def give(self, rank: int, worker: int, dispatch_ns: int) -> None:
        """A task has been put into its worker's queue.

        Raises:
            IndexError: There is no such worker.
        """
        k = self._given[worker]
        self._given[worker] = k + 1
        self._tasks[rank] = (worker, k, dispatch_ns)

    def take(self, rank: int) -> int | None:
        """Take out the task that brought this rank: its worker, or None where it is not known."""
        task = self._tasks.pop(rank, None)
        return None if task is None else task[0]

    def open_tasks(self) -> dict[tuple[int, int], int]:
        """``(worker, k)`` of what was dispatched and not delivered, to its rank."""
        return {(worker, k): rank for rank, (worker, k, _) in self._tasks.items()}

    # -- what the recorder built upon this adds ---------------------------------------------------------

    def asked(self, now_ns: int) -> None:
        """Called at an ask while ``reading``."""
        raise NotImplementedError

    def read_wait(self, number: int, asked_ns: int, got_ns: int) -> None:
        """Called behind a wait while ``reading``, before the record is written."""
        raise NotImplementedError

    def look(self, got_ns: int) -> None:
        """Called behind a delivery while ``reading``, or when something is due."""
        raise NotImplementedError

    def dispatched(self, task_info: Any, sent: int, now_ns: int) -> None:
        """Called when more than one rank has been put into the workers' queues."""
        raise NotImplementedError

    def broken(self, doing: str, error: Exception) -> None:
        """Called with what failed of ours."""
        raise NotImplementedError

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
        """The consumer has its batch: write the record."""
        number = self.committed
        worker, k, dispatch_ns = task
        if self.reading:
            self.read_wait(number, asked_ns, got_ns)
        # The step behind it is filled in at the next ask, where its counters are read.
        _pack_delivery(
            self._memory, RING_HEADER_SIZE + (number & self._mask) * RECORD_SIZE, self._iterator, self.turn,
            self.epoch, worker, self.constructing, next(self._sequence), number - self.first, rank, k,
            asked_ns, got_ns, dispatch_ns, queue_size, held_back, self.wait_cpu_ns, self.wait_run_queue_ns,
            MISSING, MISSING, MISSING, MISSING,
        )  # fmt: skip
        self.wait_cpu_ns = self.wait_run_queue_ns = MISSING
        self.last_got_ns = got_ns
        self.committed = number + 1
        own_ns = _now() - got_ns + asked_ns - entered_ns
        if own_ns > self._preempted_ns:
            own_ns = self._usual_ns
        self._usual_ns = own_ns
        self.own_ns += own_ns
        _pack_counts(self._memory, RING_COUNTS_OFFSET, number + 1, self.own_ns)
        if self.reading or got_ns > self.due_ns or number >= self.drained + self._drain_every:
            self.look(got_ns)


def next_method(
    cls: type[Any],
    *,
    fetching: int,
    key: str,
    names: tuple[str, str, str, str, str],
    sized: bool,
    ended: Callable[[Any, Any, BaseException, int, int], None],
    constructing: Callable[[FrameType], bool],
) -> Any:
    """The ``__next__`` of a recording subclass of ``cls``.

    Args:
        cls: Its ``__next__`` makes the batch. It is looked up at each call: another tool may patch it.
        fetching: ``IN_ORDER``, ``OVERTAKING``, ``HERE`` or ``UNSEEN``.
        key: Attribute of an iterator that holds its ``DeliveryCore``.
        names: Attributes of an iterator that hold its data queue, its tasks, the number of them
            outstanding, the next rank to send and the next one to receive.
        sized: Whether the data queue can tell its size.
        ended: Called with ``(iterator, core, error, asked_ns, now_ns)`` when ``next`` raised.
        constructing: Whether the frame that asks for a batch is the class's own constructor.
    """
    queue_name, tasks_name, outstanding_name, send_name, received_name = names
    workers, unordered, here = fetching in (IN_ORDER, OVERTAKING), fetching == OVERTAKING, fetching == HERE

    def __next__(self: Any) -> Any:
        core: DeliveryCore = getattr(self, key)
        if not core.live:
            return cls.__next__(self)
        entered_ns = _now()
        rank = queue_size = held_back = MISSING
        try:
            if core.reading:
                core.asked(entered_ns)
            if workers:
                if core.queue_room is not None:
                    queue_size = core.queue_limit - core.queue_room()
                elif sized:
                    queue_size = getattr(self, queue_name).qsize()
                held_back = len(getattr(self, tasks_name)) - getattr(self, outstanding_name)
            elif here:
                rank = core.asks
                core.asks = rank + 1
        except Exception as error:
            core.broken("before a batch", error)
        asked_ns = _now()
        try:
            data = cls.__next__(self)
        except BaseException as error:
            ended(self, core, error, asked_ns, _now())
            raise
        got_ns = _now()
        try:
            task = NO_TASK
            if workers:
                # torch hands out the next task just before it returns a batch.
                sent, now_sent = core.sent, getattr(self, send_name)
                if now_sent == sent + 1:
                    core.give(sent, getattr(self, tasks_name)[sent][0], got_ns)
                    core.sent = now_sent
                elif now_sent != sent:
                    core.dispatched(getattr(self, tasks_name), now_sent, got_ns)
                rank = core.last_index if unordered else getattr(self, received_name) - 1
                task = core._tasks.pop(rank, NO_TASK)  # noqa: SLF001 (its own module)
            elif here:
                task = (IN_CONSUMER, rank, MISSING)
            if core.constructing:
                core.constructing = constructing(sys._getframe(1))  # noqa: SLF001 (the caller of next)
            core.delivered(entered_ns, asked_ns, got_ns, rank, task, queue_size, held_back)
        except Exception as error:
            core.broken("after a batch", error)
        return data

    return __next__


class FetchCore:
    """State of one worker that its fetches need, and the writing of a fetch's record.

    Attributes:
        turn: Which pass of the iterator this is; persistent workers make many.
        failed: Why recording stopped, or None.
    """

    __slots__ = (
        "_capacity", "_committed", "_exec_live", "_io", "_iterator", "_k", "_last_resident_ns",
        "_last_wall_ns", "_memory", "_own_ns", "_pid", "_preempted_ns", "_rchar_below_ns", "_rchar_every",
        "_resident_every_ns", "_sched", "_thread", "_usual_ns", "_worker", "failed", "turn",
    )  # fmt: skip

    def begin(
        self,
        memory: Any,
        capacity: int,
        iterator: int,
        worker: int,
        turn: int,
        *,
        rchar_below_ns: int,
        rchar_every: int,
        resident_every_ns: int,
        preempted_ns: int,
    ) -> None:
        """Take the ring to write into, and start from nothing.

        Args:
            memory: The ring's mapping.
            capacity: Records it holds.
            iterator: Number of the iterator in the trace.
            worker: Number of the worker.
            turn: Pass of the iterator that it starts with.
            rchar_below_ns: For fetches shorter than this, ``rchar`` is read on one in ``rchar_every`` only.
            rchar_every: See there.
            resident_every_ns: ``resident`` is called so often.
            preempted_ns: Bookkeeping that took longer had lost the CPU; it counts as the one before.
        """
        self._memory = memory
        self._capacity = capacity
        self._iterator, self._worker, self.turn = iterator, worker, turn
        self._rchar_below_ns, self._rchar_every = rchar_below_ns, rchar_every
        self._resident_every_ns = resident_every_ns
        self._preempted_ns = self._usual_ns = preempted_ns
        self._pid = os.getpid()
        self._k = self._committed = self._own_ns = self._last_resident_ns = 0
        self._last_wall_ns = rchar_below_ns
        self._sched = self._io = MISSING
        self._exec_live = False
        self._thread = _ident()
        self.failed: str | None = None

    def read_from(self, sched: int, io: int, exec_live: bool) -> None:
        """Read the counters of the calling thread from these descriptors; -1 is "not read".

        Args:
            sched: Of ``/proc/thread-self/schedstat``.
            io: Of ``/proc/self/io``.
            exec_live: Whether the first field of ``sched`` is the thread's CPU time up to the moment once
                ``getrusage`` has been called. Its own clock, one more system call, is read where not.
        """
        self._sched, self._io, self._exec_live = sched, io, exec_live
        self._thread = _ident()

    def next_turn(self) -> None:
        """The iterator starts another pass with the same worker."""
        self.turn += 1
        self._k = 0

    # -- what the recorder built upon this adds ---------------------------------------------------------

    def moved(self) -> None:
        """Called in another thread than before, or when reading failed: ``read_from`` new descriptors."""
        raise NotImplementedError

    def resident(self) -> tuple[int, int]:
        """Called now and then: resident set in bytes and number of threads; MISSING where not measured."""
        raise NotImplementedError

    def run(self, fetch: Callable[[Any], Any], index: Any, iterable: bool) -> Any:
        """Call ``fetch(index)`` between two readings of the counters; its outcome is unchanged.

        All of it is spelt out here, because a Python call costs as much as a counter does. The order of the
        readings keeps their own work outside of what is measured, as far as it can.
        """
        if self.failed is not None:
            return fetch(index)
        try:
            entered_ns = _now()
            if _ident() != self._thread:
                self.moved()
            place = RING_HEADER_SIZE + self._committed % self._capacity * RECORD_SIZE
            k = self._k
            # Before the fetch: it may well consume its index.
            samples = MISSING if iterable else _samples(index)
            # The start mark: what a killed worker leaves behind names the batch in flight.
            _pack_start(
                self._memory, place, self._iterator, self.turn, self._pid, self._worker, FETCH_STARTED, k,
                entered_ns,
            )  # fmt: skip
            io, sched = self._io, self._sched
            if self._last_wall_ns < self._rchar_below_ns and k % self._rchar_every:
                io = MISSING
            try:
                sched_before, asked_before, own_bytes, usage_before = _read_before(sched, io)
            except OSError:
                # A thread may have the number of one that has ended, whose files cannot be read any more.
                self.moved()
                io, sched = (self._io if io >= 0 else MISSING), self._sched
                sched_before, asked_before, own_bytes, usage_before = _read_before(sched, io)
            if not self._exec_live:
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
                thread_ns = 0
                if not self._exec_live:
                    thread_ns = _thread_cpu() - thread_before
                usage = _usage(_SELF)
                delay = rchar = MISSING
                if sched >= 0:
                    text = _pread(sched, SCHED_BYTES, 0)
                    after, before = text.split(), sched_before.split()
                    delay = int(after[1]) - int(before[1])
                    if self._exec_live:
                        thread_ns = int(after[0]) - int(before[0])
                    own_bytes += len(text)
                if io >= 0:
                    # The readings in between count as reads of this process too; this very one not yet.
                    text = _pread(io, IO_BYTES, 0)
                    rchar = max(0, int(text[7 : text.index(b"\n")]) - asked_before - own_bytes)
                resident = threads = MISSING
                if ended_ns - self._last_resident_ns > self._resident_every_ns:
                    resident, threads = self.resident()
                    self._last_resident_ns = ended_ns
                self._last_wall_ns = ended_ns - started_ns
                _pack_fetch(
                    self._memory, place, self._iterator, self.turn, self._pid, self._worker, state, k,
                    started_ns, ended_ns,
                    int((usage[0] - usage_before[0] + usage[1] - usage_before[1]) * 1e9 + 0.5),
                    thread_ns, delay,
                    usage[6] - usage_before[6], usage[7] - usage_before[7],
                    usage[14] - usage_before[14], usage[15] - usage_before[15],
                    (usage[9] - usage_before[9]) * BLOCK_BYTES, rchar, resident,
                    samples, threads, MISSING, MISSING,
                )  # fmt: skip
                self._k = k + 1
                self._committed += 1
                own_ns = _now() - ended_ns + started_ns - entered_ns
                if own_ns > self._preempted_ns:
                    own_ns = self._usual_ns
                self._usual_ns = own_ns
                self._own_ns += own_ns
                _pack_counts(self._memory, RING_COUNTS_OFFSET, self._committed, self._own_ns)
            except Exception as error:
                self.failed = repr(error)  # the batch is the user's: it goes out whatever became of ours


def _read_before(sched: int, io: int) -> tuple[bytes, int, int, Any]:
    """Text of schedstat, ``rchar``, what reading them adds to it, and the usage of the process."""
    sched_text, rchar, own_bytes = b"", 0, 0
    if io >= 0:
        text = _pread(io, IO_BYTES, 0)
        rchar, own_bytes = int(text[7 : text.index(b"\n")]), len(text)
    usage = _usage(_SELF)
    if sched >= 0:
        sched_text = _pread(sched, SCHED_BYTES, 0)
        own_bytes += len(sched_text)
    return sched_text, rchar, own_bytes, usage


def fetch_method(cls: type[Any], *, key: str, iterable: bool) -> Any:
    """The ``fetch`` of a recording subclass of a fetcher's class.

    Args:
        cls: Its ``fetch`` makes the batch.
        key: Attribute of a fetcher that holds its ``FetchCore``, or None.
        iterable: Whether it draws its samples itself, so that its index says nothing about them.
    """

    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        core: FetchCore | None = getattr(self, key)
        if core is None:
            return cls.fetch(self, possibly_batched_index)
        return core.run(MethodType(cls.fetch, self), possibly_batched_index, iterable)

    return fetch


def _samples(index: Any) -> int:
    """Samples in a batch's index; 1 when there is no batching."""
    try:
        return len(index)
    except TypeError:
        return 1
