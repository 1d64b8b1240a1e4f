"""What stood ready when the consumer asked, how finished batches reached it, and in which order.

Ready at ask is derived, not recorded: fetches that had ended at the ask, minus batches delivered before.
It needs worker and consumer to share one clock, which is checked here and not taken for granted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite.diagnose.summary.numbers import mean_of_measured, quantile_estimates, ratio_estimate
from traceml_lite.diagnose.summary.view import Fetches, Mask, View, fetched_by_consumer
from traceml_lite.records.results import Estimate
from traceml_lite.records.summary import Measured, NotMeasured, Order, Supply

# A fetch cannot end after its batch was delivered. Stamps of one clock may cross by the time of a stamp and
# a context switch; a millisecond is far above that, and far below the offset of two unrelated clocks.
CLOCK_TOLERANCE_NS = 1_000_000
# Above this share of impossible orders the clocks are not one.
MAX_IMPOSSIBLE_SHARE = 0.01


def supply(view: View, stalled: Mask | None) -> Supply:
    """The supply side of the steady state (of the whole run where there is none)."""
    span = view.even
    ready = _ready_at_ask(view)
    lag = _lag(view)
    mean: Measured
    none: Measured
    awaited: Measured
    other: Measured
    if isinstance(ready, NotMeasured):
        mean = none = awaited = other = ready
    else:
        ones = np.ones(len(ready[span]), dtype=np.int8)
        mean = ratio_estimate(ready[span], ones, view.block, what="no delivery")
        none = ratio_estimate((ready[span] <= 0).astype(np.int8), ones, view.block, what="no delivery")
        awaited, other = _at_stalls(view, ready, stalled)
    queue, held = view.column("queue_size"), view.column("held_back")
    p50: Measured
    p95: Measured
    longest: Measured
    lag_share: Measured
    if isinstance(lag, NotMeasured):
        p50 = p95 = longest = lag_share = lag
    else:
        p50, p95, longest = _lag_quantiles(lag[span])
        lag_share = _lag_share(view, lag)
    return Supply(
        capacity_batches=view.warm_up,
        ready_at_ask_batches=mean,
        none_ready_share=none,
        stalls_awaited_ready_share=awaited,
        stalls_other_ready_share=other,
        queue_batches=queue if isinstance(queue, NotMeasured) else mean_of_measured(queue[span]),
        queue_empty_share=queue if isinstance(queue, NotMeasured) else _zero_share(queue[span]),
        held_back_batches=held if isinstance(held, NotMeasured) else mean_of_measured(held[span]),
        p50_lag_ns=p50,
        p95_lag_ns=p95,
        max_lag_ns=longest,
        lag_share_of_waiting=lag_share,
    )


def _lag_quantiles(lag_ns: NDArray[np.int64]) -> tuple[Measured, ...]:
    known = lag_ns[lag_ns >= 0]
    return quantile_estimates(known, (0.5, 0.95, 1.0)) if len(known) else (NotMeasured("no fetch"),) * 3


def _lag_share(view: View, lag_ns: NDArray[np.int64]) -> Measured:
    if isinstance(view.weight, NotMeasured):
        return view.weight
    rows: NDArray[Any] = lag_ns >= 0
    if view.n_steady and not isinstance(view.steady, slice):
        rows &= view.steady
    lag, waits = lag_ns[rows], view.wait_ns[rows]
    if view.weight is not None:
        lag, waits = lag * view.weight[rows], waits * view.weight[rows]
    return ratio_estimate(lag, waits, view.block, what="nothing waited")


def _zero_share(column: NDArray[Any]) -> Measured:
    there = column >= 0
    n = int(np.count_nonzero(there))
    if not n:
        return NotMeasured("measured in no element")
    return Estimate(int(np.count_nonzero(column == 0)) / n, n=n, method="share of asks")


def _at_stalls(view: View, ready: NDArray[Any], stalled: Mask | None) -> tuple[Measured, Measured]:
    """Shares of the stalls at which the batch that came was ready, and at which only others were."""
    needed = view.columns("fetch_end_ns", "ask_ns")
    if isinstance(needed, NotMeasured):
        return needed, needed
    end, ask = needed
    rows = np.flatnonzero(stalled & (end >= 0)) if stalled is not None else np.zeros(0, dtype=np.intp)
    if view.n_steady and not isinstance(view.steady, slice):
        rows = rows[view.steady[rows]]
    n = len(rows)
    if not n:
        return NotMeasured("no stall"), NotMeasured("no stall")
    itself = end[rows] <= ask[rows]
    others = ~itself & (ready[rows] > 0)
    return (
        Estimate(int(np.count_nonzero(itself)) / n, n=n, method="share of stalls"),
        Estimate(int(np.count_nonzero(others)) / n, n=n, method="share of stalls"),
    )


def _clock_fault(view: View) -> NotMeasured | None:
    """Why worker and consumer times cannot be compared, None when they can."""
    end, got = view.table.get("fetch_end_ns"), view.table.get("got_ns")
    if end is None or got is None:
        return None
    late = int(np.count_nonzero(end > got + CLOCK_TOLERANCE_NS))
    if late > MAX_IMPOSSIBLE_SHARE * view.n:
        return NotMeasured(
            f"clocks of workers and consumer do not agree: {late} of {view.n} batches "
            "seem fetched after they were delivered"
        )
    return None


def _ready_at_ask(view: View) -> NDArray[np.int64] | NotMeasured:
    """Batches fetched and not delivered at each ask, shape ``(n,)``."""
    if fetched_by_consumer(view):
        return NotMeasured("num_workers=0: the consumer fetches each batch itself")
    ask = view.column("ask_ns")
    if isinstance(ask, NotMeasured):
        return NotMeasured(f"needs ask_ns: {ask.reason}")
    if isinstance(view.fetches, NotMeasured):
        return view.fetches
    if view.trace.sampled is not None:
        return NotMeasured("the trace is sampled: fetches of deliveries that were not kept are missing")
    if view.fast_forwarded and view.fetches.table is view.table:
        return NotMeasured("fetches of the batches fast-forwarded inside iter() are not known")
    fault = _clock_fault(view)
    if fault is not None:
        return fault
    ends, of_group = _ends_by_group(view, view.fetches)
    ready = np.empty(view.n, dtype=np.int64)
    starts = np.searchsorted(view.group, np.arange(view.groups + 1))
    fetch_starts = np.searchsorted(of_group, np.arange(view.groups + 1))
    for g in range(view.groups):
        rows = slice(starts[g], starts[g + 1])
        group_ends = np.sort(ends[fetch_starts[g] : fetch_starts[g + 1]])
        ready[rows] = np.searchsorted(group_ends, ask[rows], side="right") - view.delivery[rows]
    limit = view.capacity
    if limit is not None and np.count_nonzero(ready > limit) > MAX_IMPOSSIBLE_SHARE * view.n:
        return NotMeasured(
            f"more than W·F = {limit} batches seem fetched and not delivered: "
            "the fetch times do not fit these deliveries or this num_workers"
        )
    return np.maximum(ready, 0, out=ready)


def _ends_by_group(view: View, fetches: Fetches) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """End of each fetch and the group of deliveries that it belongs to, groups ascending.

    A delivered batch whose fetch was not seen counts as ready from its delivery on: the latest it can be.
    """
    joined, got = view.table.get("fetch_end_ns"), view.table.get("got_ns")
    if fetches.table is view.table and joined is not None:
        return (
            joined if fetches.rows is None or got is None else np.where(joined >= 0, joined, got)
        ), view.group
    of_group, ours = _groups_of(view, fetches)
    ends = fetches.end_ns[ours]
    if joined is not None and got is not None and (unseen := joined < 0).any():
        ends = np.concatenate((ends, got[unseen]))
        of_group = np.concatenate((of_group, view.group[unseen]))
    if not (np.diff(of_group) < 0).any():
        return ends, of_group
    by_group = np.argsort(of_group, kind="stable")
    return ends[by_group], of_group[by_group]


def _groups_of(view: View, fetches: Fetches) -> tuple[NDArray[np.int64], Mask]:
    """Group of each fetch that belongs to one, and which fetches do."""
    iterator, epoch = fetches.column("iterator"), fetches.column("epoch")
    if isinstance(iterator, NotMeasured) or isinstance(epoch, NotMeasured):
        everything = np.ones(fetches.count, dtype=np.bool_)
        return np.zeros(fetches.count, dtype=np.int64), everything
    key = (iterator.astype(np.int64) << 32) + epoch
    first = np.searchsorted(view.group, np.arange(view.groups))
    group_key = (view.table["iterator"][first].astype(np.int64) << 32) + view.table["epoch"][first]
    of_group = np.searchsorted(group_key, key)
    of_group[of_group == view.groups] = 0
    ours = group_key[of_group] == key
    return of_group[ours], ours


def _lag(view: View) -> NDArray[np.int64] | NotMeasured:
    """From the later of ask and end of fetch to the consumer having the batch; -1 where not known."""
    if fetched_by_consumer(view):
        return NotMeasured("num_workers=0: the consumer fetches each batch itself")
    needed = view.columns("fetch_end_ns", "ask_ns", "got_ns")
    fault = _clock_fault(view)
    if isinstance(needed, NotMeasured):
        return needed
    if fault is not None:
        return fault
    end, ask, got = needed
    lag = np.maximum(got - np.maximum(ask, end), 0)
    return np.where(end >= 0, lag, -1)


def order(view: View) -> Order | NotMeasured:
    """Overtakings over the whole run, each epoch by itself."""
    ranks = view.column("rank")
    if isinstance(ranks, NotMeasured):
        return ranks
    if not view.n:
        return NotMeasured("no delivery")
    known = ranks >= 0
    group = view.group
    if not known.all():
        ranks, group = ranks[known], group[known]
    n = len(ranks)
    if not ((np.diff(ranks) < 0) & (np.diff(group) == 0)).any():
        return Order(0, 0, 0, 0, n) if n else NotMeasured("measured in no element")
    if view.trace.sampled is not None:
        return NotMeasured("the trace is sampled: who passed whom needs every delivery")
    places = np.empty(n, dtype=np.int64)
    # Ranks used up by an iterable's end leave holes: places are counted among the ranks that came.
    places[np.lexsort((ranks, group))] = np.arange(n)
    lowest_after = np.minimum.accumulate(places[::-1])[::-1]
    passed = np.append(lowest_after[1:] < places[:-1], False)
    highest_before = np.maximum.accumulate(places)
    were_passed = np.insert(highest_before[:-1] > places[1:], 0, False)
    return Order(
        overtakings=int(np.count_nonzero(passed | were_passed)),
        passed=int(np.count_nonzero(passed)),
        were_passed=int(np.count_nonzero(were_passed)),
        farthest_places=int(np.abs(places - np.arange(n)).max()),
        deliveries=n,
    )
