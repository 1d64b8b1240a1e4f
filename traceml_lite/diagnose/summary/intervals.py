"""Slow against fast intervals: what the workers did between consecutive deliveries.

An interval runs from one delivery to the next of the same epoch and is slow when it ended in a stall. A
fetch that overlaps several intervals counts in each by the share of its time, all workers together. This
shows what goes along with slowness; it does not show what causes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite.diagnose.summary.numbers import median_estimate
from traceml_lite.diagnose.summary.view import Fetches, Mask, View
from traceml_lite.records.summary import Contrast, ContrastRow, Measured, NotMeasured

# (key, column, unit) of each row, in the order of a report.
COUNTERS: tuple[tuple[str, str, str], ...] = (
    ("worker_cpu_ns", "cpu_ns", "ns"),
    ("worker_run_queue_ns", "run_queue_ns", "ns"),
    ("worker_read_bytes", "read_bytes", "bytes"),
    ("worker_rchar", "rchar", "bytes"),
    ("worker_major_faults", "major_faults", "count"),
)
# A counter that is missing in more fetches than this would be understated, not just less precise.
MAX_MISSING_SHARE = 0.1


def contrast(view: View, stalled: Mask | None) -> Contrast | NotMeasured:
    """Medians over slow and over fast intervals.

    Args:
        view: The loader's deliveries.
        stalled: Which deliveries are stalls, shape ``(n,)``; None where stalls were not found.

    Returns:
        The rows side by side, or why there are none.
    """
    got = view.column("got_ns")
    if isinstance(got, NotMeasured):
        return NotMeasured(f"needs got_ns: {got.reason}")
    if isinstance(view.fetches, NotMeasured):
        return view.fetches
    if view.trace.sampled is not None:
        return NotMeasured("the trace is sampled: work for deliveries that were not kept is missing")
    if stalled is None or view.n < 2:
        return NotMeasured("needs two deliveries")
    whole = view.same_epoch
    slow, fast = whole & stalled[1:], whole & ~stalled[1:]
    n_slow, n_fast = int(np.count_nonzero(slow)), int(np.count_nonzero(fast))
    if not n_slow or not n_fast:
        which = "slow" if not n_slow else "fast"
        return NotMeasured(f"no interval is {which}, so there is nothing to set side by side")
    work = _Work(view.fetches, got)
    lengths = np.diff(got)
    rows = [_row("interval_ns", "ns", lengths, slow, fast)]
    for key, column, unit in COUNTERS:
        amounts = work.between(column)
        if isinstance(amounts, NotMeasured):
            rows.append(ContrastRow(key, unit, amounts, amounts))
            continue
        rows.append(_row(key, unit, np.rint(amounts), slow, fast))
        if key == "worker_cpu_ns":
            cores = np.divide(amounts, lengths, out=np.zeros(len(lengths)), where=lengths > 0)
            rows.append(_row("worker_cores", "cores", cores, slow, fast))
    return Contrast(n_slow, n_fast, tuple(rows))


def _row(key: str, unit: str, amounts: NDArray[Any], slow: Mask, fast: Mask) -> ContrastRow:
    slow_median: Measured = median_estimate(amounts[slow])
    return ContrastRow(key, unit, slow_median, median_estimate(amounts[fast]))


class _Work:
    """Worker counters as functions of time: each fetch spends its amount evenly from start to end."""

    def __init__(self, fetches: Fetches, at_ns: NDArray[np.int64]) -> None:
        start, end = fetches.start_ns, fetches.end_ns
        self._fetches = fetches
        # A fetch of no length still did its work: it gets one nanosecond to do it in.
        self._length = np.maximum(end - start, 1)
        edges = np.concatenate((start, start + self._length))
        self._order = np.argsort(edges, kind="stable")
        edges = edges[self._order]
        self._spans = np.diff(edges)
        self._at = np.clip(np.searchsorted(edges, at_ns, side="right") - 1, 0, len(edges) - 1)
        self._into = np.clip(at_ns - edges[self._at], 0, None)
        # Room for one counter at a time: filling fresh pages for each takes as long as the sums.
        self._pace = np.empty(len(edges))
        self._rate = np.empty(len(edges))
        self._spent = np.zeros(len(edges))

    def between(self, name: str) -> NDArray[np.float64] | NotMeasured:
        """Amount of a counter spent between consecutive times, shape ``(len(at_ns) - 1,)``."""
        column = self._fetches.column(name)
        if isinstance(column, NotMeasured):
            return column
        missing = column < 0
        if np.count_nonzero(missing) > MAX_MISSING_SHARE * len(column):
            return NotMeasured(f"missing in {int(np.count_nonzero(missing))} of {len(column)} fetches")
        if not (column > 0).any():
            return np.zeros(len(self._at) - 1)
        pace, rate, spent = self._pace, self._rate, self._spent
        starting, ending = pace[: len(column)], pace[len(column) :]
        np.divide(column, self._length, out=starting)
        starting[missing] = 0.0
        np.negative(starting, out=ending)
        np.cumsum(np.take(pace, self._order, out=rate, mode="clip"), out=rate)
        np.cumsum(np.multiply(rate[:-1], self._spans, out=pace[:-1]), out=spent[1:])
        until = rate[self._at]
        until *= self._into
        until += spent[self._at]
        return np.maximum(np.diff(until), 0.0)
