"""The workers of a simulated DataLoader and the cores they share, as events in time.

A fetch is storage time (no core), then a lock that one worker holds at a time, then CPU time on K cores
shared equally (processor sharing: with n runnable workers each gets min(1, K/n) of a core). This file knows
nothing about ranks, order or the consumer; `model` does. Not modelled: memory bandwidth, the page cache,
hyper-threads, the scheduler's time slices.

Times are floats in nanoseconds inside the simulation; `model` rounds them once, at the end.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

_IO, _LOCK, _CPU, _END = range(4)


class Job:
    """One fetch on its way through a worker: what it needs, and when each part of it happened."""

    __slots__ = (
        "cpu", "cpu_wall", "dispatched", "done", "due", "end", "io", "lock", "phase", "rank", "running",
        "since", "slot", "start", "stop", "token",
    )  # fmt: skip

    def __init__(
        self, rank: int, slot: int, io: float = 0.0, lock: float = 0.0, cpu: float = 0.0, stop: bool = False
    ) -> None:
        self.rank = rank
        self.slot = slot
        self.io = io
        self.lock = lock
        self.cpu = cpu
        # The worker's shard is used up: this task is answered by StopIteration.
        self.stop = stop
        self.dispatched = self.start = self.end = math.nan
        self.done = False
        self.phase = _IO
        # End of the present phase, on the clock or (CPU) on the pool's ``_served``; while it stands still,
        # what is left of it.
        self.due = 0.0
        # Whether the present phase makes progress: neither paused nor waiting for the lock.
        self.running = False
        # Changes with every change of state; an event that carries an older one is void.
        self.token = 0
        # Time spent in the CPU phase, on a core or waiting for one, and since when.
        self.cpu_wall = 0.0
        self.since = 0.0

    @property
    def run_queue(self) -> float:
        """Time it was runnable and had no core."""
        return max(0.0, self.cpu_wall - self.cpu)


class Pool:
    """Workers with a task queue each, the cores, the lock, and the results on their way to the consumer.

    Args:
        slots: Number of workers.
        cores: Cores they share; ``math.inf`` for no limit.
        put_ns: From the end of a fetch until the consumer can take its result, per result and worker.
        now: Start of the simulated time.
        ready: When each worker has started and can take its first task; empty for at once.
        pauses: ``(begin, end, worker or None for all)``: the worker stands still in between.
    """

    def __init__(
        self,
        slots: int,
        cores: float,
        put_ns: float,
        *,
        now: float = 0.0,
        ready: Sequence[float] = (),
        pauses: Sequence[tuple[float, float, int | None]] = (),
    ) -> None:
        self.now = now
        self._cores = cores
        self._put = put_ns
        self._queues: list[deque[Job]] = [deque() for _ in range(slots)]
        self._jobs: list[Job | None] = [None] * slots
        self._halts = [0] * slots
        self._feeder_free = [0.0] * slots
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._runnable: list[tuple[float, int, Job, int]] = []
        self._active = 0
        # CPU time that every runnable job has been given since the start. All run at one rate, so a job that
        # enters with demand d ends when this has grown by d, whoever else comes and goes meanwhile.
        self._served = 0.0
        self._lock_holder: Job | None = None
        self._lock_queue: deque[Job] = deque()
        self._sequence = 0
        self._outbox: list[tuple[float, int, Job]] = []
        # A worker that has not started yet is a paused one.
        for begin, end, which in [(now, at, slot) for slot, at in enumerate(ready)] + list(pauses):
            if end <= now:
                continue
            for slot in range(slots) if which is None else (which,):
                if begin <= now:
                    self._halt(slot)
                else:
                    self._at(begin, partial(self._halt, slot))
                self._at(end, partial(self._release, slot))

    def submit(self, job: Job, arrives: float) -> None:
        """Put a task into its worker's queue; the worker can take it from ``arrives`` on."""
        job.dispatched = self.now
        self._at(arrives, partial(self._arrive, job))

    def visible(self) -> int:
        """Results that the consumer could take at this moment."""
        return sum(1 for at, _, _ in self._outbox if at <= self.now)

    def advance(self, until: float) -> None:
        """Let time pass up to ``until``."""
        while (at := self._next_time()) <= until:
            self._step(at)
        self._move(until)

    def next_message(self) -> tuple[float, Job]:
        """The result that comes first, and when it can be taken; time passes no further than that."""
        # A fetch that ends later cannot be visible earlier, so the head is final once no event precedes it.
        while not self._outbox or self._next_time() < self._outbox[0][0]:
            self._step(self._next_time())
        at, _, job = heapq.heappop(self._outbox)
        return at, job

    def run(self, cpu: float) -> Job:
        """Give the consumer ``cpu`` of CPU time from now on, among the workers; the job when it is done."""
        job = Job(-1, -1, cpu=cpu)
        self._begin(job)
        while not job.done:
            self._step(self._next_time())
        return job

    # -- time ------------------------------------------------------------------------------------------

    def _at(self, at: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._timers, (at, self._sequence, action))

    def _rate(self) -> float:
        return min(1.0, self._cores / self._active) if self._active else 1.0

    def _next_time(self) -> float:
        while self._runnable and self._runnable[0][2].token != self._runnable[0][3]:
            heapq.heappop(self._runnable)
        timer = self._timers[0][0] if self._timers else math.inf
        if not self._runnable:
            return timer
        return min(timer, self.now + max(0.0, self._runnable[0][0] - self._served) / self._rate())

    def _move(self, to: float) -> None:
        if to > self.now:
            self._served += (to - self.now) * self._rate()
            self.now = to

    def _step(self, at: float) -> None:
        if at == math.inf:
            raise RuntimeError("the simulated loader waits for a batch that nobody fetches")
        timed = bool(self._timers) and self._timers[0][0] <= at
        self._move(at)
        if timed:
            heapq.heappop(self._timers)[2]()
        else:
            job = heapq.heappop(self._runnable)[2]
            # Exactly, not up to rounding, so that two jobs due together end together.
            self._served = max(self._served, job.due)
            self._next_phase(job)

    # -- one worker ------------------------------------------------------------------------------------

    def _arrive(self, job: Job) -> None:
        self._queues[job.slot].append(job)
        self._take(job.slot)

    def _take(self, slot: int) -> None:
        if self._jobs[slot] is None and self._queues[slot] and not self._halts[slot]:
            self._jobs[slot] = job = self._queues[slot].popleft()
            self._begin(job)

    def _begin(self, job: Job) -> None:
        job.start = self.now
        job.due = job.io
        self._go_on(job)

    def _go_on(self, job: Job) -> None:
        """Let the present phase run, with ``job.due`` left of it."""
        job.token += 1
        job.running = True
        if job.phase == _CPU:
            job.due += self._served
            job.since = self.now
            self._active += 1
            self._sequence += 1
            heapq.heappush(self._runnable, (job.due, self._sequence, job, job.token))
        else:
            job.due += self.now
            self._at(job.due, partial(self._timed_out, job, job.token))

    def _stand_still(self, job: Job) -> None:
        """The opposite of ``_go_on``."""
        job.token += 1
        job.running = False
        if job.phase == _CPU:
            job.due -= self._served
            job.cpu_wall += self.now - job.since
            self._active -= 1
        else:
            job.due -= self.now

    def _timed_out(self, job: Job, token: int) -> None:
        if job.token == token:
            self._next_phase(job)

    def _next_phase(self, job: Job) -> None:
        self._stand_still(job)
        if job.phase == _LOCK:
            self._lock_holder = None
            if self._lock_queue:
                self._hold_lock(self._lock_queue.popleft())
        job.phase += 1
        if job.phase == _LOCK and job.lock > 0:
            if self._lock_holder is None:
                self._hold_lock(job)
            else:
                self._lock_queue.append(job)
        elif job.phase <= _CPU and job.cpu > 0:
            job.phase = _CPU
            job.due = job.cpu
            self._go_on(job)
        else:
            self._finish(job)

    def _hold_lock(self, job: Job) -> None:
        self._lock_holder = job
        job.due = job.lock
        if not self._halts[job.slot]:
            self._go_on(job)

    def _finish(self, job: Job) -> None:
        job.phase = _END
        job.end = self.now
        job.done = True
        if job.slot < 0:
            return
        # The queue's feeder thread pickles one result after another while the worker fetches the next batch.
        visible = max(self.now, self._feeder_free[job.slot]) + self._put
        self._feeder_free[job.slot] = visible
        self._sequence += 1
        heapq.heappush(self._outbox, (visible, self._sequence, job))
        self._jobs[job.slot] = None
        self._take(job.slot)

    # -- pauses ----------------------------------------------------------------------------------------

    def _halt(self, slot: int) -> None:
        self._halts[slot] += 1
        job = self._jobs[slot]
        if job is not None and job.running:
            self._stand_still(job)

    def _release(self, slot: int) -> None:
        self._halts[slot] -= 1
        job = self._jobs[slot]
        if self._halts[slot]:
            return
        if job is None:
            self._take(slot)
        elif job.phase != _LOCK or self._lock_holder is job:
            self._go_on(job)
