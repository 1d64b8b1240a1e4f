"""The DataLoader's scheduling, step by step as torch 2.7 to 2.14 does it, on made-up or recorded demands.

It answers what the consumer would see for given demands per batch: every wait, who fetched what and when.
It has no clock and no randomness; the same input gives the same output. Read from ``_next_data``,
``_try_put_index``, ``_process_data`` and ``_reset`` of ``torch/utils/data/dataloader.py``: num_workers x
prefetch_factor indices are outstanding at all times, one is put for each batch delivered, round robin;
unordered delivery hands over the head of the result queue and skips workers that have their share.
Exceptions, timeouts and the pin-memory thread are not modelled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite.records.run import IN_CONSUMER, LoaderConfig, Run, from_arrays
from traceml_lite.simulate.pool import Job, Pool

# torch's default where prefetch_factor is not given.
DEFAULT_PREFETCH_FACTOR = 2


@dataclass(frozen=True, slots=True, eq=False)
class Demands:
    """What each batch costs, by its place in the sampler's order over the whole run, shape ``(n,)``, ns."""

    io_ns: NDArray[Any]
    """Time that needs no core: storage, network, sleep."""
    cpu_ns: NDArray[Any]
    """CPU time of the fetch."""
    step_ns: NDArray[Any]
    """Time of the consumer's step after the batch of this delivery number, outside any core."""
    lock_ns: NDArray[Any] | None = None
    """Time in a section that one worker at a time may be in, between the two."""
    step_cpu_ns: NDArray[Any] | None = None
    """CPU time of that step on the cores that the workers use, after ``step_ns``."""

    def __post_init__(self) -> None:
        n = len(self.io_ns)
        for name in ("io_ns", "cpu_ns", "step_ns", "lock_ns", "step_cpu_ns"):
            values = getattr(self, name)
            if values is None:
                continue
            if np.ndim(values) != 1 or len(values) != n:
                raise ValueError(f"{name}: expected shape ({n},), got {np.shape(values)}")
            if not (np.asarray(values) >= 0).all():
                raise ValueError(f"{name}: expected times of at least 0 ns")


@dataclass(frozen=True, slots=True)
class Host:
    """What the machine and the queues cost. The defaults are of the order measured on a Linux server."""

    cores: float = math.inf
    """Cores that the workers share; infinite means that CPU time never waits for a core."""
    dispatch_ns: float = 60_000.0
    """From putting an index until the worker has it."""
    put_ns: float = 250_000.0
    """From the end of a fetch until the consumer can take the result."""
    get_ns: float = 120_000.0
    """Consumer's time to take one result out of the queue."""
    spawn_ns: float = 0.0
    """Time to start one worker, one after another, inside ``iter()``."""
    boot_ns: float | Sequence[float] = 0.0
    """Time from its start until a worker can fetch (imports, unpickling), all at once or per worker."""
    epoch_ns: float = 0.0
    """Time from an epoch's last step to the next ``iter()``, with joining the old workers."""


@dataclass(frozen=True, slots=True, eq=False)
class Faults:
    """What makes workers or moments differ. The default is none of it."""

    pauses: Sequence[tuple[float, float, int | None]] = ()
    """``(begin_ns, end_ns, worker or None for all)``, from the first ``iter()`` on: it stands still."""
    worker_scale: Sequence[float] = ()
    """Factor on every demand of worker k; empty is 1 for all."""
    task_extra_ns: NDArray[Any] | None = None
    """Storage time on top for worker w's k-th task of an epoch, shape ``(workers, tasks)``; repeats."""
    worker_limit: Sequence[int] = ()
    """Batches that worker k's shard holds (an IterableDataset); empty is a map dataset without shards."""


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """What the consumer saw and the workers did.

    Attributes:
        columns: Columns of ``records.run`` by name, in delivery order, int64.
        config: The loader that was simulated.
        iter_ns: Time each ``iter()`` took, one per epoch.
    """

    columns: Mapping[str, NDArray[Any]]
    config: LoaderConfig
    iter_ns: tuple[int, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.columns["wait_ns"])

    @property
    def wait_ns(self) -> NDArray[np.int64]:
        """Time the consumer was blocked before each delivery."""
        return self.columns["wait_ns"]

    @property
    def fetch_ns(self) -> NDArray[np.int64]:
        """Duration of the fetch of each delivery, in its worker."""
        fetch: NDArray[np.int64] = self.columns["fetch_end_ns"] - self.columns["fetch_start_ns"]
        return fetch

    def run(self, source: str = "simulated") -> Run:
        """The same as a recorded run, as the analysis takes it."""
        columns: dict[str, Any] = dict(self.columns)
        run = from_arrays(source=source, **columns)
        return replace(run, loaders=(replace(run.main, config=self.config),))


def simulate(
    demands: Demands,
    config: LoaderConfig,
    *,
    host: Host | None = None,
    faults: Faults | None = None,
    capacity_rule: bool = True,
) -> Simulated:
    """Run the loader over the demands until every batch is delivered.

    Args:
        demands: One entry per batch over all epochs, in the sampler's order.
        config: ``num_workers``, ``prefetch_factor``, ``in_order`` and ``persistent_workers`` are used;
            ``batches`` is the length of an epoch (None: one epoch). ``num_workers`` None is 0.
        host: Cores and costs of the queues.
        faults: Pauses, slow workers, shards.
        capacity_rule: False deals unordered tasks by plain round robin, as torch 2.6 did.

    Returns:
        Columns of every delivery. An IterableDataset whose shards end early delivers fewer than the demands.

    Raises:
        ValueError: A negative number of workers or a prefetch factor below 1.
    """
    host, faults = host or Host(), faults or Faults()
    config = _resolved(config)
    rows: list[tuple[float, ...]] = []
    iter_ns: list[int] = []
    total = len(demands.io_ns)
    length = config.batches or total
    now, pool, first = 0.0, None, 0
    while first < total:
        epoch = _Epoch(demands, config, host, faults, first, min(first + length, total), capacity_rule)
        began = now
        if pool is None or not config.persistent_workers:
            if config.num_workers:
                now += host.spawn_ns * config.num_workers
            pool = _new_pool(config, host, faults, began, now)
        pool.advance(now)
        epoch.number = len(iter_ns)
        iter_ns.append(round(now - began))
        now = epoch.deliver(pool, rows) + host.epoch_ns
        first += length
    columns = _columns(rows)
    if demands.step_cpu_ns is None:
        del columns["step_cpu_ns"], columns["step_run_queue_ns"]
    return Simulated(MappingProxyType(columns), config, tuple(iter_ns))


def _resolved(config: LoaderConfig) -> LoaderConfig:
    workers = config.num_workers or 0
    prefetch = config.prefetch_factor
    if prefetch is None and workers:
        prefetch = DEFAULT_PREFETCH_FACTOR
    if workers < 0 or (workers and (prefetch or 0) < 1):
        raise ValueError(
            f"expected num_workers >= 0 and prefetch_factor >= 1, got {workers} and {config.prefetch_factor}"
        )
    in_order = True if config.in_order is None or not workers else config.in_order
    return replace(
        config, num_workers=workers, prefetch_factor=prefetch if workers else None, in_order=in_order
    )


def _new_pool(config: LoaderConfig, host: Host, faults: Faults, began: float, now: float) -> Pool:
    workers = config.num_workers or 0
    if not workers:
        return Pool(1, host.cores, 0.0, now=began, pauses=[p for p in faults.pauses if p[2] in (None, 0)])
    boot = host.boot_ns if isinstance(host.boot_ns, Sequence) else [host.boot_ns] * workers
    ready = [began + (k + 1) * host.spawn_ns + boot[k % len(boot)] for k in range(workers)]
    # The new workers are there from `began` on; `simulate` then lets the time of iter() pass.
    pauses = [p for p in faults.pauses if p[2] is None or p[2] < workers]
    return Pool(workers, host.cores, host.put_ns, now=began, ready=ready, pauses=pauses)


class _Epoch:
    """The consumer's side of one epoch: torch's iterator with its counters."""

    def __init__(
        self,
        demands: Demands,
        config: LoaderConfig,
        host: Host,
        faults: Faults,
        first: int,
        last: int,
        capacity_rule: bool,
    ) -> None:
        self.number = 0
        self._demands, self._host, self._faults = demands, host, faults
        self._first, self._last = first, last
        self._workers = config.num_workers or 0
        self._in_order = bool(config.in_order)
        self._capacity_rule = capacity_rule
        self._outstanding_limit = self._workers * (config.prefetch_factor or 0)
        self._sent = self._received = 0
        self._cycle = 0
        self._alive = [True] * self._workers
        self._tasks = [0] * self._workers
        self._given = [0] * self._workers
        # Rank to its worker and, once it is held back by order, to its result.
        self._info: dict[int, tuple[int, Job | None]] = {}
        self._held_back = 0

    def deliver(self, pool: Pool, rows: list[tuple[float, ...]]) -> float:
        """Deliver every batch of the epoch, append a row for each; when the consumer asks for one more."""
        now = pool.now
        for _ in range(self._outstanding_limit):
            self._put_index(pool, now)
        for delivery in range(self._last - self._first):
            asked = now
            pool.advance(now)
            ready, held_back = pool.visible(), self._held_back
            if self._workers:
                job, now = self._next_data(pool, now)
                if job is None:
                    break
            else:
                task = self._job(delivery, 0, delivery)
                pool.submit(task, now)
                now, job = pool.next_message()
            got = now
            step_run_queue = step_cpu = 0.0
            now += float(self._demands.step_ns[self._first + delivery])
            if self._demands.step_cpu_ns is not None:
                pool.advance(now)
                step_cpu = float(self._demands.step_cpu_ns[self._first + delivery])
                work = pool.run(step_cpu)
                now, step_run_queue = work.end, work.run_queue
            worker = job.slot if self._workers else IN_CONSUMER
            rows.append(
                (
                    self.number, delivery, job.rank, worker, asked, got, now, ready, held_back,
                    job.dispatched, job.start, job.end, job.cpu, job.run_queue, step_cpu, step_run_queue,
                )
            )  # fmt: skip
        return now

    def _next_data(self, pool: Pool, now: float) -> tuple[Job | None, float]:
        while True:
            while self._received < self._sent:
                known = self._info.get(self._received)
                if known is not None:
                    if known[1] is not None or self._alive[known[0]]:
                        break
                    del self._info[self._received]
                self._received += 1
            else:
                return None, now
            held = self._info[self._received][1]
            if held is not None:
                del self._info[self._received]
                self._received += 1
                self._held_back -= 1
                return self._delivered(pool, held, now), now
            at, job = pool.next_message()
            now = max(now, at) + self._host.get_ns
            if job.stop:
                self._alive[job.slot] = False
                self._tasks[job.slot] -= 1
                self._put_index(pool, now)
            elif job.rank == self._received:
                self._received += 1
                del self._info[job.rank]
                return self._delivered(pool, job, now), now
            elif not self._in_order:
                del self._info[job.rank]
                return self._delivered(pool, job, now), now
            else:
                self._info[job.rank] = (job.slot, job)
                self._held_back += 1

    def _delivered(self, pool: Pool, job: Job, now: float) -> Job:
        self._tasks[job.slot] -= 1
        self._put_index(pool, now)
        return job

    def _put_index(self, pool: Pool, now: float) -> None:
        # Shards know their own end, so an IterableDataset's indices never run out.
        if not self._faults.worker_limit and self._sent >= self._last - self._first:
            return
        for _ in range(self._workers):
            worker = self._cycle
            self._cycle = (self._cycle + 1) % self._workers
            if not self._alive[worker]:
                continue
            share = self._outstanding_limit // sum(self._alive)
            if self._in_order or not self._capacity_rule or self._tasks[worker] < share:
                break
        else:
            return
        pool.advance(now)
        limit = self._faults.worker_limit
        # A worker answers StopIteration once and passes over what is still in its queue.
        if not limit or self._given[worker] <= limit[worker % len(limit)]:
            pool.submit(self._job(self._sent, worker, self._given[worker]), now + self._host.dispatch_ns)
        self._info[self._sent] = (worker, None)
        self._tasks[worker] += 1
        self._given[worker] += 1
        self._sent += 1

    def _job(self, rank: int, worker: int, k: int) -> Job:
        """The task of a rank: worker ``worker``'s k-th of this epoch."""
        demands, faults = self._demands, self._faults
        limit = faults.worker_limit
        if limit and k >= limit[worker % len(limit)]:
            return Job(rank, worker, stop=True)
        at = self._first + rank % max(1, self._last - self._first)
        scale = float(faults.worker_scale[worker % len(faults.worker_scale)]) if faults.worker_scale else 1.0
        extra = 0.0
        if faults.task_extra_ns is not None:
            per_worker = faults.task_extra_ns[worker % len(faults.task_extra_ns)]
            extra = float(per_worker[k % len(per_worker)])
        lock = float(demands.lock_ns[at]) if demands.lock_ns is not None else 0.0
        return Job(
            rank,
            worker,
            io=float(demands.io_ns[at]) * scale + extra,
            lock=lock * scale,
            cpu=float(demands.cpu_ns[at]) * scale,
        )


_NAMES = (
    "epoch", "delivery", "rank", "worker", "ask_ns", "got_ns", "next_ask_ns", "queue_size", "held_back",
    "dispatch_ns", "fetch_start_ns", "fetch_end_ns", "cpu_ns", "run_queue_ns", "step_cpu_ns",
    "step_run_queue_ns",
)  # fmt: skip


def _columns(rows: list[tuple[float, ...]]) -> dict[str, NDArray[Any]]:
    table = np.rint(np.array(rows, dtype=np.float64).reshape(-1, len(_NAMES))).astype(np.int64)
    columns = {name: table[:, i].copy() for i, name in enumerate(_NAMES)}
    columns["wait_ns"] = columns["got_ns"] - columns["ask_ns"]
    columns["step_ns"] = columns.pop("next_ask_ns") - columns["got_ns"]
    columns["iterator"] = np.zeros(len(table), dtype=np.int64)
    columns["thread_cpu_ns"] = columns["cpu_ns"].copy()
    return columns
