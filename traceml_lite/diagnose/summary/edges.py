"""Start-up and epoch boundaries: iter(), the first waits and StopIteration, apart from the steady state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite.diagnose.summary.numbers import median_estimate
from traceml_lite.diagnose.summary.view import View
from traceml_lite.records.results import Estimate
from traceml_lite.records.run import Event
from traceml_lite.records.summary import Edge, Edges, Measured, NotMeasured

MAX_ERRORS = 8

NO_EVENTS = NotMeasured("this trace holds no events of its iterators")


def edges(view: View) -> Edges:
    """What starting and ending epochs cost, the first one and the median of the later ones."""
    events = view.trace.events
    iters = _times(events, ("iterator", "epoch_start"), "iter_ns")
    stops = _times(events, ("epoch_end",), "stop_ns")
    keys = _keys(view, iters, stops)
    first_waits, warm_waits = _first_waits(view)
    closed = sum(event.kind == "closed" for event in events)
    return Edges(
        first=_edge(keys[:1], iters, stops, first_waits, warm_waits)
        if keys
        else NotMeasured("no epoch began"),
        later=_edge(keys[1:], iters, stops, first_waits, warm_waits)
        if keys[1:]
        else NotMeasured("one epoch only" if keys else "no epoch began"),
        broken_off=closed,
        errors=tuple(_words(e) for e in events if e.kind in ("error", "worker_gone"))[:MAX_ERRORS],
        share=_share(view, iters, stops, first_waits),
    )


Key = tuple[int, int]


def _times(events: Iterable[Event], kinds: tuple[str, ...], name: str) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for event in events:
        value = event.data.get(name)
        if event.kind in kinds and isinstance(value, int) and value >= 0:
            found.setdefault((event.iterator or 0, int(event.data.get("epoch") or 0)), value)
    return found


def _keys(view: View, iters: dict[Key, int], stops: dict[Key, int]) -> list[Key]:
    """Every (iterator, epoch) that delivered or ended, in order.

    An iterator that was made and never asked is none, as a StatefulDataLoader makes one for its state; only
    where nothing was delivered at all is the making of one what there is to tell.
    """
    keys = {_key(view, int(row)) for row in np.searchsorted(view.group, np.arange(view.groups))}
    return sorted(keys | set(stops) or set(iters))


def _key(view: View, row: int) -> Key:
    iterator, epoch = view.table.get("iterator"), view.table.get("epoch")
    return (0 if iterator is None else int(iterator[row]), 0 if epoch is None else int(epoch[row]))


def _first_waits(view: View) -> tuple[dict[Key, int], dict[Key, int]]:
    """Wait of each epoch's first delivery, and of its first W·F together."""
    first: dict[Key, int] = {}
    warm: dict[Key, int] = {}
    rows: NDArray[Any] = np.flatnonzero(view.delivery == 0)
    size = int(view.warm_up.value) if isinstance(view.warm_up, Estimate) else 0
    for row in rows:
        key = _key(view, int(row))
        first[key] = int(view.wait_ns[row])
        if size:
            together = slice(int(row), int(row) + size)
            warm[key] = int(view.wait_ns[together][view.group[together] == view.group[row]].sum())
    return first, warm


def _edge(
    keys: list[Key],
    iters: dict[Key, int],
    stops: dict[Key, int],
    first_waits: dict[Key, int],
    warm_waits: dict[Key, int],
) -> Edge:
    def median(values: dict[Key, int], missing: NotMeasured) -> Measured:
        known = [values[key] for key in keys if key in values]
        return median_estimate(known) if known else missing

    # Without one time of iter() the trace has no events; with some, this one is missing for its own sake.
    return Edge(
        epochs=len(keys),
        iter_ns=median(iters, NotMeasured("iter() was not timed") if iters else NO_EVENTS),
        first_wait_ns=median(first_waits, NotMeasured("no first delivery was kept")),
        warm_up_wait_ns=median(warm_waits, NotMeasured("no W·F deliveries that fill a queue")),
        stop_ns=median(
            stops, NotMeasured("no StopIteration was seen: left before its end") if iters else NO_EVENTS
        ),
    )


def _share(view: View, iters: dict[Key, int], stops: dict[Key, int], first_waits: dict[Key, int]) -> Measured:
    if not iters and not stops:
        return NO_EVENTS
    outside = sum(iters.values()) + sum(stops.values())
    looped = loop_ns(view)
    if isinstance(looped, NotMeasured):
        return looped
    total = outside + looped
    if total <= 0:
        return NotMeasured("no time passed")
    value = (outside + sum(first_waits.values())) / total
    return Estimate(value, n=len(first_waits), method="of all waits, steps, iter() and StopIteration")


def loop_ns(view: View) -> float | NotMeasured:
    """Waits and measured steps together: the time the loop is known to have spent."""
    if isinstance(view.weight, NotMeasured):
        return view.weight
    spent = view.wait_ns
    if not isinstance(view.step_ns, NotMeasured):
        spent = spent + np.maximum(view.step_ns, 0)
    return float(spent.sum() if view.weight is None else spent @ view.weight)


def _words(event: Event) -> str:
    data = event.data
    if event.kind == "worker_gone":
        text = f"worker {data.get('worker', '?')} (PID {data.get('pid', '?')}) died"
        rank, since = data.get("rank"), data.get("since_ns")
        if rank is None:
            return f"{text} between fetches"
        if isinstance(since, int):
            return f"{text} {(event.time_ns - since) / 1e9:.3g} s into rank {rank}"
        return f"{text} in rank {rank}"
    text = f"{data.get('type', 'an error')} in epoch {data.get('epoch', '?')}"
    text += f" after {data.get('deliveries', '?')} deliveries"
    if data.get("rank") is not None:
        text += f", rank {data['rank']}"
    if data.get("worker") is not None:
        text += f", worker {data['worker']}"
    return text
