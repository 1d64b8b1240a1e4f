"""Waiting and pace over a span of the run, and the stalls: how much, which deliveries, at what gaps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite.diagnose.summary.numbers import (
    inverse,
    median_estimate,
    quantile_estimates,
    ratio_estimate,
)
from traceml_lite.diagnose.summary.view import Mask, View, evenly
from traceml_lite.records.results import Estimate
from traceml_lite.records.run import UNKNOWN_WORKER
from traceml_lite.records.summary import Gaps, Measured, NotMeasured, Place, Stalls, Waits
from traceml_lite.stats.tails import stall_threshold_ns

# A list of stalls is read for its pattern; twelve show one, and fit a line.
MAX_PLACES = 12
MAX_GAPS = 5
NS_PER_S = 1e9
# Draws that set the threshold of a sampled trace: one stall in ten thousand is still drawn 26 times.
MAX_DRAWS = 1 << 18


def place(view: View, at: int) -> Place:
    """Which delivery stands at row ``at`` of the view."""

    def read(name: str, missing: int) -> int | None:
        found = view.table.get(name)
        return None if found is None or found[at] == missing else int(found[at])

    return Place(
        delivery=int(view.delivery[at]),
        epoch=read("epoch", -1) or 0,
        iterator=read("iterator", -1) or 0,
        rank=read("rank", -1),
        worker=read("worker", UNKNOWN_WORKER),
    )


def steady_waits(view: View) -> Waits | NotMeasured:
    """Waiting after the first W·F deliveries of each epoch."""
    if view.n and not view.n_steady and isinstance(view.warm_up, Estimate):
        return NotMeasured(
            f"no epoch has more than W·F = {int(view.warm_up.value)} deliveries, so there is no steady state"
        )
    return _waits(view, view.steady, view.n_steady)


def all_waits(view: View) -> Waits | NotMeasured:
    """Waiting over the whole run, starts of epochs included."""
    return _waits(view, slice(None), view.n)


def _waits(view: View, span: slice | Mask, n: int) -> Waits | NotMeasured:
    if not n:
        return NotMeasured("no delivery")
    waits = view.wait_ns[span]
    at = int(np.argmax(waits))
    row = at if isinstance(span, slice) else int(np.flatnonzero(span)[at])
    p50: Measured
    p95: Measured
    p99: Measured
    total: Measured
    if isinstance(view.weight, NotMeasured):
        p50 = p95 = p99 = total = view.weight
    else:
        weight = None if view.weight is None else view.weight[span]
        p50, p95, p99 = quantile_estimates(waits, (0.5, 0.95, 0.99), weight)
        waited = waits if weight is None else waits * weight
        total = Estimate(float(waited.sum(dtype=np.float64)), n=n, method="sum")
    share, pace, free = _shares(view, span, waits)
    return Waits(
        deliveries=n,
        wait_share=share,
        total_wait_ns=total,
        p50_wait_ns=p50,
        p95_wait_ns=p95,
        p99_wait_ns=p99,
        max_wait_ns=Estimate(float(waits[at]), n=n, method="largest"),
        longest=place(view, row),
        deliveries_per_s=pace,
        deliveries_per_s_without_waiting=free,
        samples_per_s=_samples_per_s(pace, view.trace.config.batch_size),
    )


def _shares(view: View, span: slice | Mask, waits: NDArray[Any]) -> tuple[Measured, Measured, Measured]:
    """Share of waiting, deliveries per second, and the same without waiting."""
    if isinstance(view.step_ns, NotMeasured):
        return (view.step_ns,) * 3
    if isinstance(view.weight, NotMeasured):
        return (view.weight,) * 3
    steps = view.step_ns[span]
    stepped = steps >= 0
    ones: NDArray[Any] = np.ones(len(steps), dtype=np.int8) if view.weight is None else view.weight[span]
    if not stepped.all():
        waits, steps, ones = waits[stepped], steps[stepped], ones[stepped]
    if not len(steps):
        missing = NotMeasured("no step of this span ended")
        return missing, missing, missing
    if view.weight is not None:
        waits, steps = waits * ones, steps * ones
    both = waits + steps
    return (
        ratio_estimate(waits, both, view.block, what="no time passed"),
        inverse(ratio_estimate(both, ones, view.block, what="no delivery"), NS_PER_S),
        inverse(ratio_estimate(steps, ones, view.block, what="no delivery"), NS_PER_S),
    )


def _samples_per_s(pace: Measured, batch_size: int | None) -> Measured:
    if batch_size is None:
        return NotMeasured("batch_size is not known")
    return pace if isinstance(pace, NotMeasured) else _times(pace, batch_size)


def _times(pace: Estimate, factor: int) -> Estimate:
    low = None if pace.low is None else pace.low * factor
    high = None if pace.high is None else pace.high * factor
    return Estimate(pace.value * factor, low, high, pace.level, pace.n, pace.method)


def stalls(view: View, given_ns: int | None) -> tuple[Stalls, Mask] | NotMeasured:
    """The stalls of the whole run, and the mask of the deliveries that they are.

    The automatic threshold is set on the steady state, so that a slow start does not hide what comes after.
    """
    if not view.n:
        return NotMeasured("no delivery")
    if view.n == 1 and given_ns is None:
        return NotMeasured("one delivery: there is no other wait to tell a stall from")
    rows = evenly(view.weight, view.n, view.steady if view.n_steady else slice(None), MAX_DRAWS)
    steps = None
    if not isinstance(view.step_ns, NotMeasured):
        steps = view.step_ns[rows]
        steps = steps[steps >= 0]
    threshold = stall_threshold_ns(view.wait_ns[rows], steps, given_ns)
    mask: Mask = view.wait_ns > threshold.value_ns
    found_rows = np.flatnonzero(mask)
    n = view.stands_for(mask)
    in_steady = n if isinstance(view.steady, slice) else view.stands_for(mask & view.steady)
    carried: Measured
    if isinstance(view.weight, NotMeasured):
        carried = view.weight
    else:
        waited = view.wait_ns if view.weight is None else view.wait_ns * view.weight
        carried = ratio_estimate(np.where(mask, waited, 0), waited, view.block, what="nothing waited")
    found = Stalls(
        threshold_ns=threshold.value_ns,
        threshold_source=threshold.method,
        n=n,
        deliveries=view.stands_for(slice(None)),
        n_warm_up=n - in_steady,
        share_of_waiting=carried,
        places=tuple(place(view, int(row)) for row in found_rows[:MAX_PLACES]),
        gaps=_gaps(view, found_rows, threshold.value_ns),
    )
    return found, mask


def _gaps(view: View, rows: NDArray[np.intp], threshold_ns: int) -> Gaps | NotMeasured:
    floor_ns = view.trace.sampled_floor_ns
    if view.trace.sampled is not None and (floor_ns is None or threshold_ns < floor_ns):
        return NotMeasured("the trace is sampled and not every stall of this length was kept")
    if len(rows) < 2:
        return NotMeasured("a gap needs two stalls")
    same = np.diff(view.group[rows]) == 0
    gaps = np.diff(view.delivery[rows])[same]
    if not len(gaps):
        return NotMeasured("no epoch has two stalls")
    values, counts = np.unique(gaps, return_counts=True)
    first = np.lexsort((values, -counts))[:MAX_GAPS]
    got = view.column("got_ns")
    return Gaps(
        n=len(gaps),
        median_batches=median_estimate(gaps),
        common=tuple((int(values[i]), int(counts[i])) for i in first),
        median_interval_ns=got if isinstance(got, NotMeasured) else median_estimate(np.diff(got[rows])[same]),
    )
