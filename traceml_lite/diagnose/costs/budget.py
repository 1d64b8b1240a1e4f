"""The time a loop lost to its loader, delivery by delivery: starting, fetching, handing over.

A batch whose fetch has ended and that is not there yet is not by itself a slow handover: while its worker
is already fetching the next one without a pause, batches come as fast as they are fetched, and the
handover is only a delay in the pipe. It costs the loop when the worker had to stand idle meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceml_lite.diagnose.costs.facts import Budget, Floats, Ints, known
from traceml_lite.records.run import LoaderTrace, Table

# A worker that fetches without a rest still spends up to a third of its time between two fetches, when they
# are short: taking the next index, waking the thread that sends the batch. Where the handover was the limit,
# workers stood idle for 0.7 to 0.95 of the time (12 workloads on two cores).
PAUSE_SHARE = 0.3
# Workers that queue for CPUs do so between fetches as well: with run-queue delay at 0.9 of a fetch their
# pauses were up to 0.65 of the time.
PAUSE_PER_QUEUE = 0.4
PAUSE_NS = 300_000
# A sampled trace lacks fetches, so pauses cannot be seen; above this load of the pool there are none.
FULL_LOAD = 0.9
# What handing over a batch of one small tensor takes: 0.6 to 1.3 ms here, in unpickling and in passing the
# descriptor of its shared memory. No loader with workers is without it.
HANDOVER_FLOOR_NS = 1_200_000
# The same where the loop's CPU had slept during the step: its caches are cold and the host has to wake it.
# 3.5 to 4.6 ms behind steps of 40 ms on an idle virtual machine, four fifths of it the loop's own CPU time.
HANDOVER_COLD_NS = 6_000_000
# Handing over is excused up to this share of the loop's time; in a faster loop even the floor has a name.
FLOOR_SHARE_MAX = 0.15


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Each delivery's wait, in three parts that add up to it; nanoseconds, shape ``(n,)``."""

    wait_ns: Ints
    step_ns: Ints | None
    """-1 where the step is not known."""
    starting_ns: Ints
    """Before the first fetch of its worker had begun."""
    fetching_ns: Ints
    handover_ns: Ints
    for_fetch_ns: Ints
    """Waiting, of this delivery or another, during which this delivery's fetch was running."""


def waits_of(loader: LoaderTrace) -> Waits:
    """The split of every delivery's wait. Without fetch times, the whole wait counts as fetching."""
    table = loader.deliveries
    wait, step = known(table, "wait_ns"), known(table, "step_ns")
    waits = np.zeros(len(table), np.int64) if wait is None else np.maximum(wait, 0)
    nothing = np.zeros_like(waits)
    end, start, ask, got = (
        known(table, name) for name in ("fetch_end_ns", "fetch_start_ns", "ask_ns", "got_ns")
    )
    if end is None or start is None or ask is None:
        return Waits(waits, step, nothing, waits, nothing, waits)
    seen = (end >= 0) & (start >= 0) & (ask >= 0)
    own = np.where(seen, np.clip(end - ask, 0, waits), waits)
    fetching, for_fetch = own, own
    if got is not None:
        busy, running = _worker_kept_busy(loader, start, end, got)
        fetching = np.where(seen & busy, waits, own)
        for_fetch = own + np.bincount(running, fetching - own, len(own)).astype(np.int64)
    starting, number = nothing, known(table, "delivery")
    if number is not None:
        # The first fetch of each worker cannot begin before the worker runs; later ones wait their turn.
        first = seen & (number < max(1, loader.config.num_workers or 0))
        starting = np.where(first, np.clip(start - ask, 0, fetching), 0)
    return Waits(waits, step, starting, fetching - starting, waits - fetching, for_fetch)


def _worker_kept_busy(
    loader: LoaderTrace, start: Ints, end: Ints, got: Ints
) -> tuple[NDArray[np.bool_], Ints]:
    """Whether each delivery's worker went on fetching until it was delivered.

    Returns:
        The mask, and the row whose fetch the worker was at when the batch was delivered: often the one that
        held it up, as a thread that computes keeps the one that sends from running.
    """
    table = loader.deliveries
    worker = known(table, "worker")
    count = loader.config.num_workers or 0
    busy, running = np.zeros(len(table), bool), np.arange(len(table))
    if count < 1 or worker is None:
        return busy, running
    done = (start >= 0) & (end > start)
    if loader.sampled is not None:
        total = _loop_ns(table)
        load = float((end - start)[done].mean()) * len(table) / (count * total) if total > 0 else 0.0
        return (done if load >= FULL_LOAD else busy), running
    allowed = PAUSE_SHARE + PAUSE_PER_QUEUE * _queue_share(table, start, end, done)
    for number in range(count):
        rows = np.flatnonzero(done & (worker == number))
        if not rows.size:
            continue
        # Ordered delivery has a worker's fetches in order already, where a stable sort takes one look.
        rows = rows[np.argsort(start[rows], kind="stable")]
        begun, over, delivered = start[rows], end[rows], got[rows]
        latest = np.searchsorted(begun, delivered, side="right") - 1
        running[rows] = rows[latest]
        since = delivered - over
        if (begun[1:] >= over[:-1]).all():
            # One fetch at a time, as in one process: what was fetched before each end is a running sum.
            length = over - begun
            before = np.cumsum(length)
            fetched = before[latest] - np.maximum(over[latest] - delivered, 0) - before
        else:
            starts, ends = merged(begun, over)
            fetched = covered_before(delivered, starts, ends) - covered_before(over, starts, ends)
        busy[rows] = since - fetched <= np.maximum(allowed * since, PAUSE_NS)
    # Right after the fetch there was no time to stand idle in; whether the worker did is seen later.
    return busy & (got - end > 2 * PAUSE_NS), running


def _queue_share(table: Table, start: Ints, end: Ints, done: NDArray[np.bool_]) -> float:
    """Run-queue delay over fetch time; 0 where it was not read."""
    queue = known(table, "run_queue_ns")
    if queue is None:
        return 0.0
    read = done & (queue >= 0)
    total = float((end - start)[read].sum())
    return min(1.0, float(queue[read].sum()) / total) if total > 0 else 0.0


def _loop_ns(table: Table) -> float:
    ask, got = known(table, "ask_ns"), known(table, "got_ns")
    return 0.0 if ask is None or got is None else float(got.max() - ask[ask >= 0].min())


def merged(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Overlapping intervals joined, in order of time."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.flatnonzero(np.r_[True, starts[1:] > ends[:-1]])
    return starts[first], ends[np.r_[first[1:] - 1, len(ends) - 1]]


def covered_before(moments: Ints, starts: Ints, ends: Ints) -> Floats:
    """Time before each moment that lies inside the (disjoint, ordered) intervals."""
    before = np.r_[0, np.cumsum(ends - starts)]
    index = np.searchsorted(starts, moments, side="right")
    last = np.maximum(index - 1, 0)
    inside = np.clip(moments - starts[last], 0, ends[last] - starts[last])
    covered: Floats = (before[last] + np.where(index > 0, inside, 0)).astype(np.float64)
    return covered


def budget_of(
    waits: Waits, rows: NDArray[np.bool_], outside_ns: float, starved_share: float | None
) -> Budget:
    """The sums over some deliveries.

    Args:
        waits: The split waits of all deliveries.
        rows: Mask of those that are summed.
        outside_ns: Time of ``iter()`` and of ``StopIteration`` that belongs to them.
        starved_share: Share of waiting in which the consumer itself had no CPU, where it was measured.
    """
    # A delivery whose step is unknown (the last of a broken-off epoch) would count as pure waiting.
    kept = rows if waits.step_ns is None else rows & (waits.step_ns >= 0)
    count = int(kept.sum())
    wait = float(waits.wait_ns.sum(where=kept))
    step = 0.0 if waits.step_ns is None else float(waits.step_ns.sum(where=kept))
    handover = float(waits.handover_ns.sum(where=kept))
    # A blocked thread does not queue for a CPU; it does when the batch has come and it wants to go on.
    starved = min(handover, wait * (starved_share or 0.0))
    handover -= starved
    loop = wait + step + outside_ns
    return Budget(
        start_ns=outside_ns + float(waits.starting_ns.sum(where=kept)),
        fetch_ns=float(waits.fetching_ns.sum(where=kept)),
        handover_ns=handover,
        starved_ns=starved,
        excused_ns=min(handover, HANDOVER_COLD_NS * count, FLOOR_SHARE_MAX * loop),
        loop_ns=loop,
    )


def outside_ns(loader: LoaderTrace) -> float:
    """Time of ``iter()`` and of ``StopIteration``: making, starting and joining workers."""
    values = (event.data.get(name) for event in loader.events for name in ("iter_ns", "stop_ns"))
    return float(sum(value for value in values if isinstance(value, int | float) and value > 0))
