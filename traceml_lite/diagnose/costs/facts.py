"""What one loader's trace says about where its time went, before any cause is named.

A budget, so that causes can be weighed against each other: the time the consumer lost to the loader is
split into starting, waiting for a fetch to end, and handing the batch over; the fetches waited for are
split into CPU, helper threads, run-queue delay and being blocked. Nothing here judges.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from traceml_lite.diagnose.costs.host import HostFacts
from traceml_lite.records.run import Environment, LoaderConfig, Table

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Shares over a random sample of this many deliveries are within one percent of those over all. What needs
# neighbours in time (turns, steps beside fetches) looks at the first so many instead.
MAX_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Parts:
    """What the fetches were made of, as shares of their wall time; they add up to 1."""

    cpu: float
    """The fetching thread's own CPU time."""
    helper: float
    """Time in which the fetching thread stood still while other threads of its process computed."""
    run_queue: float
    """The fetching thread was runnable but had no CPU. 0 where it was not measured."""
    blocked: float
    """The rest: neither on a CPU nor waiting for one, as in I/O, a lock or a sleep."""


@dataclass(frozen=True, eq=False)
class Fetches:
    """The fetches behind the deliveries, one element each; only rows in which every counter was read.

    Without slots: what every cause asks for is computed once and kept.
    """

    wall_ns: Floats
    waited_ns: Floats
    """Waiting that counts as waiting for this fetch."""
    thread_ns: Floats
    process_ns: Floats
    """CPU time of all threads of the worker during the fetch."""
    run_queue_ns: Floats | None
    start_ns: Ints
    end_ns: Ints
    worker: Ints
    rows: Ints
    """Row of the delivery table each one belongs to."""
    behind_waits: bool
    """True when shares weigh each fetch by the waiting behind it, False when by its own length."""

    @cached_property
    def weight(self) -> Floats:
        """Share by which each fetch counts: its waiting or its length over all of that; they add up to 1."""
        weight = self.waited_ns if self.behind_waits else self.wall_ns
        shares: Floats = weight / weight.sum()
        return shares

    @property
    def noun(self) -> str:
        """What means and shares over these fetches are about: the table of workers has other means."""
        return "a fetch that was waited for" if self.behind_waits else "a fetch"

    @cached_property
    def blocked_ns(self) -> Floats:
        """Per fetch, the time it was neither on a CPU nor waiting for one, helper threads taken off."""
        rest = self.wall_ns - self.thread_ns - (0 if self.run_queue_ns is None else self.run_queue_ns)
        rest = np.maximum(rest, 0.0)
        return np.maximum(rest - np.maximum(self.process_ns - self.thread_ns, 0.0), 0.0)

    def share_of(self, part_ns: Floats) -> float:
        """Weighted mean of ``part / wall`` over the fetches, in [0, 1]."""
        return float((np.minimum(part_ns / self.wall_ns, 1.0) * self.weight).sum())

    def mean_of(self, values: NDArray[np.generic]) -> float:
        """Weighted mean of a per-fetch quantity; a missing element counts as absent, not as zero."""
        array = np.asarray(values, dtype=np.float64)
        if array.min(initial=0.0) >= 0.0:
            return float((array * self.weight).sum())
        known = array >= 0
        total = float(self.weight[known].sum())
        return float((array * self.weight)[known].sum()) / total if total > 0 else 0.0

    @cached_property
    def mean_wall_ns(self) -> float:
        """How long a fetch takes; weighted as all else."""
        return self.mean_of(self.wall_ns)

    @cached_property
    def parts(self) -> Parts:
        """The composition of the fetches that matter."""
        helper_ns = np.maximum(self.process_ns - self.thread_ns, 0.0)
        queue_ns = np.zeros_like(self.wall_ns) if self.run_queue_ns is None else self.run_queue_ns
        cpu_ns = np.minimum(self.thread_ns, self.wall_ns)
        queue_ns = np.minimum(queue_ns, self.wall_ns - cpu_ns)
        rest_ns = self.wall_ns - cpu_ns - queue_ns
        helper_ns = np.minimum(helper_ns, rest_ns)
        cpu, helper, queue = (self.share_of(part) for part in (cpu_ns, helper_ns, queue_ns))
        return Parts(cpu, helper, queue, max(0.0, 1.0 - cpu - helper - queue))


@dataclass(frozen=True, slots=True)
class Steps:
    """The consumer's side. Shares are of all time in the loop; ``None`` is "not measured"."""

    deliveries: int
    wait_ns: float
    step_ns: float | None
    wait_share: float
    """Share of the time in the loop spent waiting; 1 where steps were not measured."""
    starved_share: float | None
    """Share of step time in which the consumer's thread was runnable but had no CPU."""
    cpu_share: float | None
    """CPU time of the consumer's thread over step time."""
    process_cores: float | None
    """CPUs that the consumer's whole process used during its steps."""
    slowdown: float | None
    """Median step while the workers were busy over the median step while they were idle."""
    wait_starved_share: float | None
    """Share of waiting in which the consumer's thread was runnable but had no CPU."""
    unpickle_share: float | None
    """CPU time of the consumer's thread in its waits over waiting."""

    @property
    def starved_share_or_zero(self) -> float:
        """``starved_share`` for a sentence that is only written where it was measured."""
        return self.starved_share or 0.0


@dataclass(frozen=True, slots=True)
class Budget:
    """Where the time lost to the loader went, in nanoseconds, over the deliveries that are judged."""

    start_ns: float
    """Making iterators, starting and joining workers, and first batches before their fetch began."""
    fetch_ns: float
    """Waiting for fetches: the batch's own, or its worker was kept busy by the next."""
    handover_ns: float
    """Waiting although the worker stood idle: pickling, queue, pin-memory thread, unpickling."""
    starved_ns: float
    """Waiting although the batch was there: the consumer had no CPU to take it with."""
    excused_ns: float
    """The part of the handover that no loader with workers is without."""
    loop_ns: float
    """All time: waits, steps and starts."""

    @property
    def lost_ns(self) -> float:
        """What the loader cost the loop."""
        return self.start_ns + self.fetch_ns + self.handover_ns

    @property
    def lost_share(self) -> float:
        """Share of the loop's time that a better loader could win back, in [0, 1]."""
        return (self.lost_ns - self.excused_ns) / self.loop_ns if self.loop_ns > 0 else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class CostFacts:
    """All that the functions of this package look at."""

    config: LoaderConfig
    environment: Environment
    host: HostFacts
    deliveries: Table
    """The deliveries that are judged, with their fetches."""
    all_deliveries: Table
    fetches: Fetches | None
    why_no_fetches: str
    steps: Steps
    budget: Budget
    sampling: float
    """Judged deliveries for each one kept in ``fetches`` and ``deliveries``; 1 unless there are very many."""
    scope: str
    """Which deliveries are judged: ``"steady"`` or ``"boundary"``."""
    pool_cores: float | None
    """CPUs that the workers used together, over the span of the judged deliveries."""
    pool_runnable: float | None
    """Worker threads that were running or waiting for a CPU at a time, on average."""
    worker_threads: float | None
    """Median thread count of a worker."""
    worker_cpus: int | None
    """CPUs in the smallest affinity mask of a worker."""

    @property
    def workers(self) -> int:
        """Worker processes; 0 when the consumer fetches itself or when unknown."""
        return self.config.num_workers or 0

    @property
    def cpus(self) -> float | None:
        """CPUs the job may use."""
        return self.environment.cpus_usable


def known(table: Table, name: str) -> Ints | None:
    """A column as int64, or None when it is absent or has no measured element."""
    column = table.get(name)
    if column is None or not len(column):
        return None
    # Nearly always the first value was measured, and a long column need not be read through.
    if column[0] < 0 and not (column >= 0).any():
        return None
    return column.astype(np.int64, copy=False)


def why_unknown(table: Table, *names: str) -> str:
    """Why the first of these columns that is not usable is not."""
    for name in names:
        if name not in table:
            return f"{name}: {table.why_absent(name)}"
        if known(table, name) is None:
            return f"{name}: no value was read"
    return "no fetch has all counters"
