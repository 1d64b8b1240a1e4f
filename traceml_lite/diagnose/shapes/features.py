"""What the shape functions look at: the waits in order of delivery and the fetches in order of rank.

Each run is brought into one form here, once: epochs found, start-up set apart, fetches sorted by rank and
numbered within their worker, workers filled in where ordered delivery fixes them. Nothing here concludes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceml_lite.records.run import IN_CONSUMER, UNKNOWN_WORKER, LoaderTrace, Table
from traceml_lite.stats.tails import StallThreshold, median, stall_threshold_ns

Int = NDArray[np.int64]
Mask = NDArray[np.bool_]

# A column with fewer measured elements than this cannot stand for the run.
MEASURED_SHARE = 0.8
# torch's own default, where a trace does not tell.
DEFAULT_PREFETCH = 2


@dataclass(frozen=True, slots=True, eq=False)
class Fetches:
    """The fetches of the deliveries, by (iterator, epoch, rank)."""

    ns: Int
    """Duration in the worker."""
    start_ns: Int
    end_ns: Int
    rank: Int
    """Place in the sampler's order, within the epoch."""
    worker: Int
    """Worker, -1 the consumer, -2 unknown."""
    turn: Int
    """How many fetches the same worker had done before in this epoch."""
    restarts: Int
    """Index of the first fetch of each (iterator, epoch)."""
    delivery: Int
    """Index of the delivery, into the arrays of ``Features``."""


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """One loader's run, in the form that the shape functions share."""

    n: int
    workers: int | None
    """``num_workers``; None when neither the configuration nor the worker column tells."""
    prefetch: int
    in_order: bool | None
    wait_ns: Int
    starved_ns: Int
    """The part of each wait in which the batch was still being fetched: what remains is hand-over, or a
    consumer that had no CPU. The whole wait where fetch times are missing."""
    wait_queue_ns: Int | None
    """Run-queue delay of the loop's own thread in each wait, -1 where missing; None if unmeasured."""
    step_ns: Int
    """-1 where missing; all -1 when the run has no steps."""
    ask_ns: Int
    """When each delivery was asked for: measured, or the sum of waits and steps before it."""
    step_median_ns: float
    """Median of the measured steps; nan without any."""
    epoch_starts: Int
    """Index of the first delivery of each (iterator, epoch)."""
    in_epoch: Int
    """Deliveries since the start of the epoch."""
    first_round: int
    """Deliveries whose wait only fills the pipe: the first of each worker, at least one."""
    fill: int
    """Deliveries dispatched before the first was asked for: workers times prefetch, at least one."""
    steady: Mask
    """Deliveries behind the first round of their epoch."""
    threshold: StallThreshold
    """Stall threshold of the steady waits."""
    stalled: Mask
    """Waits above it."""
    fetches: Fetches | None
    fetch_missing: str
    """Why there are no fetch times; empty when there are."""
    cpu_demand: float
    """Share of the fetches' time in which they computed or wanted to; nan where it was not measured."""
    worker_measured: bool
    """The worker column was measured, not filled in from the rank."""
    iter_ns: int
    """Time that ``iter()`` took before the first epoch, in which workers are made; 0 if unknown."""

    @property
    def round(self) -> int:
        """Deliveries in one round over the workers, at least one."""
        return max(1, self.workers or 1)

    @property
    def total_ns(self) -> float:
        """Time of the whole run, as far as measured."""
        return float(self.wait_ns.sum(dtype=np.float64) + np.maximum(self.step_ns, 0).sum(dtype=np.float64))

    def share_of_time(self, part_ns: Int, where: Mask) -> float:
        """Share of the selected deliveries' own time that a part of it takes, in [0, 1]; 0 without any."""
        return self.shares_of_time((part_ns,), where)[0]

    def shares_of_time(self, parts_ns: Sequence[Int], where: Mask) -> tuple[float, ...]:
        """The same of several parts of the same deliveries."""
        stepped = float(np.maximum(self.step_ns[where], 0).sum(dtype=np.float64))
        waited = [float(values[where].sum(dtype=np.float64)) for values in (self.wait_ns, *parts_ns)]
        total = waited[0] + stepped
        return tuple(part / total if total > 0 else 0.0 for part in waited[1:])


def _measured(table: Table, name: str, least: int = 0) -> Int | None:
    column = table.get(name)
    if column is None or not len(column):
        return None
    values = np.asarray(column, dtype=np.int64)
    return values if np.count_nonzero(values >= least) >= MEASURED_SHARE * values.size else None


def _epoch_starts(table: Table, n: int) -> Int:
    fresh = np.zeros(n, dtype=np.bool_)
    fresh[0] = True
    for name in ("iterator", "epoch"):
        column = table.get(name)
        if column is not None:
            fresh[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(fresh).astype(np.int64)


def _turns(segment: Int, worker: Int, rank: Int, workers: int | None) -> Int:
    """Number of each fetch within its worker and epoch, given fetches in order of rank."""
    if workers and np.array_equal(worker, rank % workers):
        return rank // workers
    key = segment * (int(worker.max()) + 3) + worker + 2
    if key.max() < np.iinfo(np.int16).max:
        key = key.astype(np.int16)  # numpy sorts 16-bit keys by radix, in linear time
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    fresh = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    places = np.arange(key.size)
    turn = np.empty(key.size, dtype=np.int64)
    turn[order] = places - np.maximum.accumulate(np.where(fresh, places, 0))
    return turn


def _fetches(
    table: Table,
    segment: Int,
    in_epoch: Int,
    asked: Int,
    waits: Int,
    workers: int | None,
    in_order: bool | None,
) -> tuple[Fetches | None, str, bool]:
    start, end = _measured(table, "fetch_start_ns"), _measured(table, "fetch_end_ns")
    if workers == 0 and (start is None or end is None):
        # Without workers the consumer fetches while it waits: the wait is the fetch.
        start, end = asked, asked + waits
    if start is None or end is None:
        return None, table.why_absent("fetch_start_ns"), False
    rank = _measured(table, "rank")
    if rank is None:
        if in_order is False:
            return None, "fetch times without ranks, and delivery is not in the order of the ranks", False
        rank = in_epoch
    kept = np.flatnonzero((start >= 0) & (end >= start) & (rank >= 0))
    if kept.size < 4:
        return None, "fewer than four fetches were measured", False
    order = kept
    position, epoch = rank[kept], segment[kept]
    if ((np.diff(position) <= 0) & (np.diff(epoch) == 0)).any():
        order = kept[np.lexsort((position, epoch))]
    rank, epoch = rank[order], segment[order]
    # Ranks of a trace may run on over epochs; here they start at 0 in each.
    heads = np.flatnonzero(np.concatenate([[True], np.diff(epoch) != 0]))
    rank = rank - np.repeat(rank[heads], np.diff(np.append(heads, rank.size)))
    column = table.get("worker")
    measured = column is not None and bool((column != UNKNOWN_WORKER).mean() >= MEASURED_SHARE)
    if measured and column is not None:
        worker = np.asarray(column, dtype=np.int64)[order]
    elif workers == 0:
        worker = np.full(order.size, IN_CONSUMER, dtype=np.int64)
    elif workers is not None and in_order:
        worker = rank % workers
    else:
        worker = np.full(order.size, UNKNOWN_WORKER, dtype=np.int64)
    return (
        Fetches(
            ns=end[order] - start[order],
            start_ns=start[order],
            end_ns=end[order],
            rank=rank,
            worker=worker,
            turn=_turns(epoch, worker, rank, workers),
            restarts=heads,
            delivery=order,
        ),
        "",
        measured,
    )


def _starved(waits: Int, asked: Int, fetches: Fetches | None) -> Int:
    if fetches is None:
        return waits
    starved: Int = waits.copy()
    at = fetches.delivery
    starved[at] = np.minimum(np.maximum(fetches.end_ns - asked[at], 0), waits[at])
    return starved


def _cpu_demand(table: Table) -> float:
    """CPU time and run-queue delay over fetch time, in the fetches in which CPU time was read."""
    start, end, cpu = (table.get(name) for name in ("fetch_start_ns", "fetch_end_ns", "cpu_ns"))
    if start is None or end is None or cpu is None:
        return float("nan")
    read = (start >= 0) & (end > start) & (cpu >= 0)
    queue = table.get("run_queue_ns")
    wanted = cpu + (0 if queue is None else np.maximum(queue, 0))
    total = float((end - start)[read].sum(dtype=np.float64))
    return float(wanted[read].sum(dtype=np.float64)) / total if total > 0 else float("nan")


def _worker_count(table: Table, configured: int | None) -> int | None:
    if configured is not None:
        return configured
    column = table.get("worker")
    if column is None or not (column > UNKNOWN_WORKER).any():
        return None
    return int(column.max()) + 1


def extract(loader: LoaderTrace, stall_ns: int | None = None) -> Features | None:
    """Bring one loader's deliveries into the common form.

    Args:
        loader: The loader; only ``wait_ns`` is required of its deliveries.
        stall_ns: The user's own stall threshold, nanoseconds, if any.

    Returns:
        The features, or None when there are no deliveries with a wait.
    """
    table = loader.deliveries
    if "wait_ns" not in table or not len(table):
        return None
    keep = table["wait_ns"] >= 0
    forwarded = table.get("fast_forward")
    if forwarded is not None:
        keep = keep & (forwarded != 1)
    if not keep.all():
        table = table.take(keep)
    n = len(table)
    if not n:
        return None
    waits = np.asarray(table["wait_ns"], dtype=np.int64)
    column = table.get("step_ns")
    steps = np.asarray(column, dtype=np.int64) if column is not None else np.full(n, -1, dtype=np.int64)
    known = steps[steps >= 0]
    workers = _worker_count(table, loader.config.num_workers)
    prefetch = loader.config.prefetch_factor or DEFAULT_PREFETCH
    starts = _epoch_starts(table, n)
    lengths = np.diff(np.append(starts, n))
    in_epoch = np.arange(n, dtype=np.int64) - np.repeat(starts, lengths)
    segment = np.repeat(np.arange(starts.size, dtype=np.int64), lengths)
    first_round = max(1, workers or 1)
    steady = in_epoch >= first_round
    if np.count_nonzero(steady) < min(4, n):
        steady = in_epoch >= 1 if n > starts.size else np.ones(n, dtype=np.bool_)
    asked = _measured(table, "ask_ns")
    if asked is None:
        asked = np.cumsum(waits + np.maximum(steps, 0)) - waits - np.maximum(steps, 0)
    fetches, missing, measured = _fetches(
        table, segment, in_epoch, asked, waits, workers, loader.config.in_order
    )
    starved = _starved(waits, asked, fetches)
    threshold = stall_threshold_ns(starved[steady], known, stall_ns)
    queued = table.get("wait_run_queue_ns")
    if queued is not None:
        queued = np.asarray(queued, dtype=np.int64) if (queued >= 0).any() else None
    return Features(
        n=n,
        workers=workers,
        prefetch=prefetch,
        in_order=loader.config.in_order,
        wait_ns=waits,
        starved_ns=starved,
        wait_queue_ns=queued,
        step_ns=steps,
        ask_ns=asked,
        step_median_ns=median(known) if known.size else float("nan"),
        epoch_starts=starts,
        in_epoch=in_epoch,
        first_round=first_round,
        fill=max(1, (workers or 1) * prefetch) if workers != 0 else 1,
        steady=steady,
        threshold=threshold,
        stalled=starved > threshold.value_ns,
        fetches=fetches,
        fetch_missing=missing,
        cpu_demand=_cpu_demand(table),
        worker_measured=measured,
        iter_ns=next((t for e in loader.events if (t := e.data.get("iter_ns")) is not None), 0),
    )
