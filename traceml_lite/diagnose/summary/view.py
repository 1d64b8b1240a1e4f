"""One loader's columns made ready for counting: masks, epochs, the steady state, the fetches.

Each column is looked at in place; nothing is copied that need not be, as a run may hold ten million
deliveries. This module decides which rows count and why, and computes no figure itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite.records.results import Estimate
from traceml_lite.records.run import FETCH_DONE, IN_CONSUMER, LoaderTrace, Table
from traceml_lite.records.summary import Measured, NotMeasured

# torch's own default where workers exist and the option is not known.
DEFAULT_PREFETCH_FACTOR = 2

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Fetches:
    """Finished fetches of one loader."""

    table: Table
    rows: Mask | None
    """Rows of the table that are finished fetches; None is all of them."""
    count: int

    @property
    def start_ns(self) -> Ints:
        """Start of each, measured in all."""
        return self._selected(self.table["fetch_start_ns"])

    @property
    def end_ns(self) -> Ints:
        """End of each, measured in all."""
        return self._selected(self.table["fetch_end_ns"])

    def column(self, name: str) -> NDArray[Any] | NotMeasured:
        """A column over the finished fetches; element -1 is "not measured"."""
        found = self.table.get(name)
        if found is None:
            return NotMeasured(self.table.why_absent(name))
        if name == "run_queue_ns":
            # The counter is read just outside the fetch, so a delay beside a short one may exceed it.
            took_ns = np.maximum(self.end_ns - self.start_ns, 0)
            delay_ns: NDArray[Any] = np.minimum(self._selected(found), took_ns)
            return delay_ns
        return self._selected(found)

    def _selected(self, column: NDArray[Any]) -> NDArray[Any]:
        selected: NDArray[Any] = column if self.rows is None else column[self.rows]
        return selected


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Deliveries to the training loop, epoch after epoch, and the fetches behind them."""

    trace: LoaderTrace
    table: Table
    n: int
    fast_forwarded: int
    wait_ns: Ints
    step_ns: Ints | NotMeasured
    """Element -1 where the step of one delivery was not measured."""
    delivery: Ints
    """Delivery number within its epoch, from 0."""
    group: Ints
    """Number of the (iterator, epoch) each delivery belongs to, ascending."""
    groups: int
    warm_up: Measured
    steady: slice | Mask
    """Deliveries after the first W·F of their epoch."""
    n_steady: int
    fetches: Fetches | NotMeasured
    weight: NDArray[np.float64] | NotMeasured | None
    """How many deliveries each kept one stands for; None where every delivery was kept."""
    even: slice | NDArray[Any]
    """Rows of the steady state (of the whole run where there is none) in which each delivery counts alike.

    In a sampled trace the long waits are all there and the short ones are not: of the long ones as few are
    taken as of the short ones were kept. Where it is not known how it was sampled, these are all rows.
    """

    def column(self, name: str) -> NDArray[Any] | NotMeasured:
        """A column over all deliveries of the view."""
        found = self.table.get(name)
        return NotMeasured(self.table.why_absent(name)) if found is None else found

    def columns(self, *names: str) -> list[NDArray[Any]] | NotMeasured:
        """Several columns, or why the first missing one is."""
        missing = next((name for name in names if name not in self.table), None)
        if missing is not None:
            return NotMeasured(f"needs {missing}: {self.table.why_absent(missing)}")
        return [self.table[name] for name in names]

    @property
    def workers(self) -> int | None:
        """num_workers, None where not known."""
        return self.trace.config.num_workers

    @property
    def capacity(self) -> int | None:
        """W·F where both are known: no more batches are queued, in work or ready at any time."""
        config = self.trace.config
        if not config.num_workers or config.prefetch_factor is None:
            return None
        return config.num_workers * config.prefetch_factor

    @property
    def block(self) -> int:
        """Deliveries per block of a bootstrap: what the queue holds, in whole rounds of the pool.

        With many deliveries longer, by the n^(1/3) rule of Künsch (1989), for dependence not known of.
        """
        rounds = max(1, int(self.warm_up.value)) if isinstance(self.warm_up, Estimate) else 1
        return rounds * -(-int(np.ceil(self.n ** (1 / 3))) // rounds)

    def stands_for(self, rows: slice | NDArray[Any]) -> int:
        """How many deliveries the selected rows stand for: their number, unless the trace is sampled."""
        if self.weight is None or isinstance(self.weight, NotMeasured):
            return len(self.wait_ns[rows])
        return round(float(self.weight[rows].sum()))

    @property
    def same_epoch(self) -> Mask:
        """Shape ``(n - 1,)``: whether delivery i + 1 follows delivery i in the same epoch, none missing."""
        mask: Mask = (np.diff(self.group) == 0) & (np.diff(self.delivery) == 1)
        return mask


def look(trace: LoaderTrace) -> View:
    """Make the view of one loader.

    Args:
        trace: The loader; its deliveries may be empty.

    Returns:
        The view, without the batches that a resumed loader delivered inside iter().
    """
    table, fast_forwarded = _without_fast_forward(trace.deliveries)
    n = len(table) if "wait_ns" in table else 0
    zeros = np.zeros(n, dtype=np.int64)
    iterator, epoch = table.get("iterator"), table.get("epoch")
    key = zeros if iterator is None or epoch is None else (iterator.astype(np.int64) << 32) + epoch
    jumps = np.diff(key)
    if (jumps < 0).any():
        # Two iterators of one loader that run at the same time: each epoch's deliveries are put together.
        table = table.take(np.argsort(key, kind="stable"))
        key = np.sort(key, kind="stable")
        jumps = np.diff(key)
    group = np.concatenate(([0], np.cumsum(jumps != 0))) if n else zeros
    delivery = table.get("delivery")
    if delivery is None:
        starts = np.flatnonzero(np.concatenate(([True], jumps != 0))) if n else zeros
        delivery = np.arange(n) - starts[group]
    warm_up = _warm_up(trace)
    warm = int(warm_up.value) if isinstance(warm_up, Estimate) else 0
    steady: slice | Mask = slice(None)
    n_steady = n
    if warm and n:
        steady = delivery >= warm
        n_steady = int(np.count_nonzero(steady))
    weight = _weight(trace, table, n, fast_forwarded)
    even = evenly(weight, n, steady if n_steady else slice(None))
    return View(
        trace=trace,
        table=table,
        n=n,
        fast_forwarded=fast_forwarded,
        wait_ns=table["wait_ns"] if n else zeros,
        step_ns=_steps(table, group, delivery) if n else NotMeasured("no delivery"),
        delivery=delivery,
        group=group,
        groups=int(group[-1]) + 1 if n else 0,
        warm_up=warm_up,
        steady=steady,
        n_steady=n_steady,
        fetches=_fetches(trace, table, None if weight is None else evenly(weight, n, slice(None))),
        weight=weight,
        even=even,
    )


def _weight(
    trace: LoaderTrace, table: Table, n: int, fast_forwarded: int
) -> NDArray[np.float64] | NotMeasured | None:
    if trace.sampled is None or not n:
        return None
    if trace.sampled_floor_ns is None:
        return NotMeasured("the trace is sampled and does not say which waits were kept in full")
    short = table["wait_ns"] < trace.sampled_floor_ns
    kept = int(np.count_nonzero(short))
    left = trace.delivered - fast_forwarded - (n - kept)
    return np.where(short, max(left / kept, 1.0) if kept else 1.0, 1.0)


def evenly(
    weight: NDArray[np.float64] | NotMeasured | None, n: int, span: slice | Mask, draws: int | None = None
) -> slice | NDArray[Any]:
    """Rows of a span at even distances along what they stand for.

    Args:
        weight: How many deliveries each row stands for; without it every row is taken.
        n: Rows there are.
        span: Which of them.
        draws: How many; by default so few that no row is taken twice.

    Returns:
        The span itself, or numbers of rows.
    """
    if weight is None or isinstance(weight, NotMeasured):
        return span
    rows, up_to = np.arange(n)[span], np.cumsum(weight[span])
    draws = draws or max(1, int(up_to[-1] / weight[span].max()))
    even: NDArray[Any] = rows[np.searchsorted(up_to, (np.arange(draws) + 0.5) * (up_to[-1] / draws))]
    return even


def _without_fast_forward(table: Table) -> tuple[Table, int]:
    skipped = table.get("fast_forward")
    if skipped is None or not (skipped == 1).any():
        return table, 0
    return table.take(skipped != 1), int((skipped == 1).sum())


def _warm_up(trace: LoaderTrace) -> Measured:
    workers, factor = trace.config.num_workers, trace.config.prefetch_factor
    if workers is None:
        return NotMeasured("num_workers is not known")
    if workers == 0:
        return Estimate(0.0, method="no workers, nothing is prefetched")
    if factor is None:
        return Estimate(
            float(workers * DEFAULT_PREFETCH_FACTOR),
            method=f"prefetch_factor is not known; torch's default, {DEFAULT_PREFETCH_FACTOR}, assumed",
        )
    return Estimate(float(workers * factor), method="num_workers x prefetch_factor")


def _steps(table: Table, group: Ints, delivery: Ints) -> Ints | NotMeasured:
    steps = table.get("step_ns")
    if steps is not None:
        return steps if (steps >= 0).any() else NotMeasured("no step of this run ended")
    ask, got = table.get("ask_ns"), table.get("got_ns")
    if ask is None or got is None:
        return NotMeasured(table.why_absent("step_ns"))
    derived = np.full(len(got), -1, dtype=np.int64)
    follows = (np.diff(group) == 0) & (np.diff(delivery) == 1)
    derived[:-1] = np.where(follows, ask[1:] - got[:-1], -1)
    return derived if (derived >= 0).any() else NotMeasured("one delivery only: no step ended")


def _fetches(
    trace: LoaderTrace, deliveries: Table, even: slice | NDArray[Any] | None
) -> Fetches | NotMeasured:
    """Every finished fetch; of a sampled trace those of an even sample of the deliveries."""
    own = trace.fetches
    if even is None and len(own) and "fetch_start_ns" in own and "fetch_end_ns" in own:
        done = own["fetch_end_ns"] >= 0
        if "state" in own:
            done &= own["state"] == FETCH_DONE
        return _finished(own, done)
    start, end = deliveries.get("fetch_start_ns"), deliveries.get("fetch_end_ns")
    if start is None or end is None:
        missing = "fetch_end_ns" if end is None else "fetch_start_ns"
        return NotMeasured(deliveries.why_absent(missing) if len(deliveries) else "no delivery")
    done = (end >= 0) & (start >= 0)
    if even is not None:
        chosen = np.zeros(len(done), dtype=np.bool_)
        chosen[even] = True
        done &= chosen
    return _finished(deliveries, done)


def _finished(table: Table, done: Mask) -> Fetches | NotMeasured:
    count = int(np.count_nonzero(done))
    if not count:
        return NotMeasured("no fetch was seen to end")
    return Fetches(table, None if count == len(done) else done, count)


def fetched_by_consumer(view: View) -> bool:
    """Whether the consumer makes its batches itself, so that nothing can be ready before it asks."""
    if view.workers is not None:
        return view.workers == 0
    worker = view.table.get("worker")
    return worker is not None and bool((worker == IN_CONSUMER).all())
