"""Deliveries and fetches of a trace, joined and split by loader.

A worker serves its queue first in, first out, so its k-th fetch is the k-th task it was given: the join is
on (iterator, turn, worker, k), where a turn is one pass of an iterator (persistent workers make many).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite.records.run import (
    DELIVERY_COLUMNS,
    FETCH_COLUMNS,
    FETCH_DONE,
    FETCH_KEY_COLUMNS,
    IN_CONSUMER,
    MISSING,
    DatasetKind,
    Event,
    LoaderConfig,
    LoaderTrace,
    Table,
)
from traceml_lite.store.columns import Columns, chosen
from traceml_lite.store.layout import FLAG_FAST_FORWARD

_NOTHING = np.zeros(0, dtype=np.int64)


def build_loaders(
    deliveries: Columns,
    fetches: Columns,
    events: Sequence[Event],
    absent: Mapping[str, str],
    sampled: str | None,
    sampled_floor_ns: int | None = None,
) -> tuple[LoaderTrace, ...]:
    """One ``LoaderTrace`` per loader, most deliveries first.

    Args:
        deliveries: Columns of ``layout.DELIVERY``.
        fetches: Columns of ``layout.FETCH``.
        events: All events of the trace.
        absent: Fetch columns nothing was read of, with the reason.
        sampled: Sentence for ``LoaderTrace.sampled``.
        sampled_floor_ns: For ``LoaderTrace.sampled_floor_ns``.
    """
    loader_of: dict[int, int] = {}
    configs: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.kind == "iterator" and event.iterator is not None:
            loader_of[event.iterator] = event.data["loader"]
            configs.setdefault(event.data["loader"], dict(event.data["config"]))
    delivery_loader = _mapped(deliveries["iterator"], loader_of)
    fetch_loader = _mapped(fetches["iterator"], loader_of)
    traces = []
    names: Counter[str] = Counter()
    for loader in configs:
        mine = _where(deliveries, delivery_loader == loader)
        fetched = _where(fetches, fetch_loader == loader)
        if (np.diff(mine["sequence"]) < 0).any():
            order = np.argsort(mine["sequence"], kind="stable")
            mine = chosen(mine, order)
        config = _config(configs[loader])
        own = tuple(e for e in events if e.iterator is not None and loader_of.get(e.iterator) == loader)
        name = f"{config.loader.rpartition('.')[2]} over {config.dataset.rpartition('.')[2]}"
        names[name] += 1
        traces.append(
            LoaderTrace(
                # Train and validation often share a class; the second of a name has its number beside it.
                name=name if names[name] == 1 else f"{name} #{names[name]}",
                config=config,
                deliveries=_deliveries(mine, fetched, absent),
                fetches=_fetches(fetched, mine, absent),
                events=own,
                sampled=sampled,
                sampled_floor_ns=sampled_floor_ns,
                delivered=_delivered(mine, own, sampled),
            )
        )
    return tuple(sorted(traces, key=lambda t: -len(t.deliveries)))


def _mapped(iterators: NDArray[Any], loader_of: Mapping[int, int]) -> NDArray[np.int64]:
    """Loader of each row; iterators whose event was not written (a full disk) go to no loader."""
    heads = _heads(iterators)
    loaders = np.array([loader_of.get(i, MISSING) for i in iterators[heads].tolist()], dtype=np.int64)
    return np.repeat(loaders, np.diff(np.append(heads, len(iterators))))


def _heads(values: NDArray[Any]) -> NDArray[np.int64]:
    """Where a value differs from the one before it: iterators and turns come in a few long stretches."""
    return np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]])) if len(values) else _NOTHING


def _where(rows: Columns, mask: NDArray[np.bool_]) -> Columns:
    """Those of the mask, without a copy where it is all of them, as with the one loader of most scripts."""
    return rows if mask.all() else chosen(rows, mask)


def _config(data: dict[str, Any]) -> LoaderConfig:
    known = {f.name for f in fields(LoaderConfig)}
    data = {k: v for k, v in data.items() if k in known}
    data["dataset_kind"] = DatasetKind(data.get("dataset_kind", "unknown"))
    return LoaderConfig(**data)


def _delivered(mine: Columns, events: Sequence[Event], sampled: str | None) -> int:
    if sampled is None:
        return len(mine["sequence"])
    # Each turn of an iterator says at its end how many it delivered; of one still open the last number
    # kept tells about how many.
    counts = {
        (e.iterator, e.data.get("turn")): int(e.data["deliveries"])
        for e in events
        if e.kind in ("epoch_end", "closed")
    }
    for iterator, turn, number in zip(
        mine["iterator"].tolist(), mine["turn"].tolist(), mine["delivery"].tolist(), strict=True
    ):
        counts[iterator, turn] = max(counts.get((iterator, turn), 0), number + 1)
    return sum(counts.values())


def _keys(rows: Columns, iterators: NDArray[Any], turns: int, workers: int, ks: int) -> NDArray[Any]:
    iterator = np.searchsorted(iterators, rows["iterator"]).astype(np.int64)
    worker = rows["worker"].astype(np.int64) - IN_CONSUMER
    keys: NDArray[np.int64] = ((iterator * turns + rows["turn"]) * workers + worker) * ks + rows["k"]
    return keys


def _match(mine: Columns, fetched: Columns) -> NDArray[np.int64]:
    """For each delivery the row of its fetch, or -1."""
    if not len(mine["k"]) or not len(fetched["k"]):
        return np.full(len(mine["k"]), MISSING, dtype=np.int64)
    iterators = np.unique(fetched["iterator"])
    turns = int(max(fetched["turn"].max(), mine["turn"].max())) + 1
    workers = int(max(fetched["worker"].max(), mine["worker"].max())) - IN_CONSUMER + 1
    ks = int(max(fetched["k"].max(), mine["k"].max())) + 1
    keys = _keys(fetched, iterators, turns, workers, ks)
    order = np.argsort(keys, kind="stable")
    known = (mine["k"] >= 0) & (mine["worker"] >= IN_CONSUMER)
    wanted = np.where(known, _keys(mine, iterators, turns, workers, ks), MISSING)
    place = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    rows = order[place]
    # searchsorted maps an unknown iterator to a neighbour, so the iterator is compared again.
    hit = (keys[rows] == wanted) & (fetched["iterator"][rows] == mine["iterator"])
    return np.where(hit, rows, MISSING)


def _column(
    values: NDArray[Any], name: str, reason: str, into: dict[str, Any], absent: dict[str, str]
) -> None:
    """Put a column into a table, or, when nothing of it was measured, its reason."""
    if len(values) and values[0] == MISSING and (values == MISSING).all() and name != "worker":
        absent[name] = reason
    else:
        into[name] = values


def _deliveries(mine: Columns, fetched: Columns, reasons: Mapping[str, str]) -> Table:
    columns: dict[str, Any] = {}
    absent: dict[str, str] = {}
    rows = _match(mine, fetched)
    hit = rows >= 0
    # A row of its own for all that have no fetch, behind the others.
    rows[~hit] = len(fetched["k"])
    behind = {}
    for spec in FETCH_COLUMNS:
        part = fetched[spec.name].astype(spec.dtype, copy=False)
        behind[spec.name] = np.append(part, part.dtype.type(MISSING))[rows]
    dispatch_ns = mine["dispatch_ns"].copy()
    # The probe knows a dispatch to the return of the next() that made it, some 20 us late: by then an idle
    # worker may have begun.
    np.minimum(dispatch_ns, behind["fetch_start_ns"], out=dispatch_ns, where=hit)
    derived = {
        "wait_ns": mine["got_ns"] - mine["ask_ns"],
        "fast_forward": (mine["flags"] & FLAG_FAST_FORWARD).astype("u1"),
        "dispatch_ns": dispatch_ns,
    }
    for spec in DELIVERY_COLUMNS:
        values = derived[spec.name] if spec.name in derived else mine[spec.name]
        _column(values.astype(spec.dtype, copy=False), spec.name, _why_delivery(spec.name), columns, absent)
    for spec in FETCH_COLUMNS:
        reason = reasons.get(spec.name, "no fetch was recorded for these deliveries")
        _column(behind[spec.name], spec.name, reason, columns, absent)
    return Table(columns, absent)


def _fetches(fetched: Columns, mine: Columns, reasons: Mapping[str, str]) -> Table:
    if not len(fetched["k"]):
        return Table({}, {c.name: "no fetch was recorded" for c in (*FETCH_KEY_COLUMNS, *FETCH_COLUMNS)})
    columns: dict[str, Any] = {}
    absent: dict[str, str] = {}
    turns = _turn_key(mine)
    heads = _heads(turns)
    epoch_of = dict(zip(turns[heads].tolist(), mine["epoch"][heads].tolist(), strict=True))
    turns = _turn_key(fetched)
    heads = _heads(turns)
    # A turn without a delivery has no epoch of its own yet; it counts as the iterator's turn.
    epochs = np.array([epoch_of.get(key, key & 0xFFFFFFFF) for key in turns[heads].tolist()], dtype="i4")
    epochs = np.repeat(epochs, np.diff(np.append(heads, len(turns))))
    for spec in (*FETCH_KEY_COLUMNS, *FETCH_COLUMNS):
        values = epochs if spec.name == "epoch" else fetched[spec.name].astype(spec.dtype, copy=False)
        _column(values, spec.name, reasons.get(spec.name, "not recorded"), columns, absent)
    done = fetched["state"] >= FETCH_DONE
    for name in ("fetch_end_ns", "cpu_ns"):
        if name in columns:
            columns[name] = np.where(done, columns[name], MISSING)
    return Table(columns, absent)


def _turn_key(rows: Columns) -> NDArray[np.int64]:
    """Iterator and turn as one number: numpy sorts that many times faster than a pair."""
    key: NDArray[np.int64] = (rows["iterator"].astype(np.int64) << 32) | rows["turn"]
    return key


def _why_delivery(name: str) -> str:
    if name in ("queue_size", "held_back", "dispatch_ns"):
        return "there is no queue with num_workers=0, or the loader was timed from outside"
    if name.endswith("run_queue_ns"):
        return "/proc/thread-self/schedstat cannot be read"
    if name.startswith(("step", "wait")):
        return "no step was measured"
    return "not recorded"
