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
from traceml_lite.store.layout import FLAG_FAST_FORWARD


def build_loaders(
    deliveries: NDArray[Any],
    fetches: NDArray[Any],
    events: Sequence[Event],
    absent: Mapping[str, str],
    sampled: str | None,
    sampled_floor_ns: int | None = None,
) -> tuple[LoaderTrace, ...]:
    """One ``LoaderTrace`` per loader, most deliveries first.

    Args:
        deliveries: Records of ``layout.DELIVERY``.
        fetches: Records of ``layout.FETCH``.
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
        mine = deliveries[delivery_loader == loader]
        mine = mine[np.argsort(mine["sequence"], kind="stable")]
        fetched = fetches[fetch_loader == loader]
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
    unique, inverse = np.unique(iterators, return_inverse=True)
    table = np.array([loader_of.get(int(i), MISSING) for i in unique], dtype=np.int64)
    return table[inverse] if len(unique) else np.zeros(0, dtype=np.int64)


def _config(data: dict[str, Any]) -> LoaderConfig:
    known = {f.name for f in fields(LoaderConfig)}
    data = {k: v for k, v in data.items() if k in known}
    data["dataset_kind"] = DatasetKind(data.get("dataset_kind", "unknown"))
    return LoaderConfig(**data)


def _delivered(mine: NDArray[Any], events: Sequence[Event], sampled: str | None) -> int:
    if sampled is None:
        return len(mine)
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


def _keys(rows: NDArray[Any], iterators: NDArray[Any], turns: int, workers: int, ks: int) -> NDArray[Any]:
    iterator = np.searchsorted(iterators, rows["iterator"]).astype(np.int64)
    worker = rows["worker"].astype(np.int64) - IN_CONSUMER
    keys: NDArray[np.int64] = ((iterator * turns + rows["turn"]) * workers + worker) * ks + rows["k"]
    return keys


def _match(mine: NDArray[Any], fetched: NDArray[Any]) -> NDArray[np.int64]:
    """For each delivery the row of its fetch, or -1."""
    if not len(mine) or not len(fetched):
        return np.full(len(mine), MISSING, dtype=np.int64)
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
    if len(values) and (values == MISSING).all() and name != "worker":
        absent[name] = reason
    else:
        into[name] = values


def _deliveries(mine: NDArray[Any], fetched: NDArray[Any], reasons: Mapping[str, str]) -> Table:
    columns: dict[str, Any] = {}
    absent: dict[str, str] = {}
    rows = _match(mine, fetched)
    hit = rows >= 0
    dispatch_ns = mine["dispatch_ns"].copy()
    if hit.any():
        # The probe knows a dispatch to the return of the next() that made it, some 20 us late: by then an
        # idle worker may have begun.
        dispatch_ns[hit] = np.minimum(dispatch_ns[hit], fetched["fetch_start_ns"][rows[hit]])
    derived = {
        "wait_ns": mine["got_ns"] - mine["ask_ns"],
        "fast_forward": (mine["flags"] & FLAG_FAST_FORWARD).astype("u1"),
        "dispatch_ns": dispatch_ns,
    }
    for spec in DELIVERY_COLUMNS:
        values = derived[spec.name] if spec.name in derived else mine[spec.name]
        values = np.ascontiguousarray(values.astype(spec.dtype, copy=False))
        _column(values, spec.name, _why_delivery(spec.name), columns, absent)
    for spec in FETCH_COLUMNS:
        values = np.full(len(mine), MISSING, dtype=spec.dtype)
        if hit.any():
            values[hit] = fetched[spec.name][rows[hit]]
        reason = reasons.get(spec.name, "no fetch was recorded for these deliveries")
        _column(values, spec.name, reason, columns, absent)
    return Table(columns, absent)


def _fetches(fetched: NDArray[Any], mine: NDArray[Any], reasons: Mapping[str, str]) -> Table:
    if not len(fetched):
        return Table({}, {c.name: "no fetch was recorded" for c in (*FETCH_KEY_COLUMNS, *FETCH_COLUMNS)})
    columns: dict[str, Any] = {}
    absent: dict[str, str] = {}
    turns, first = np.unique(_turn_key(mine), return_index=True)
    epoch_of = dict(zip(turns.tolist(), mine["epoch"][first].tolist(), strict=True))
    turns, inverse = np.unique(_turn_key(fetched), return_inverse=True)
    # A turn without a delivery has no epoch of its own yet; it counts as the iterator's turn.
    epochs = np.array([epoch_of.get(key, key & 0xFFFFFFFF) for key in turns.tolist()], dtype="i4")[inverse]
    for spec in (*FETCH_KEY_COLUMNS, *FETCH_COLUMNS):
        values = epochs if spec.name == "epoch" else fetched[spec.name].astype(spec.dtype)
        _column(values, spec.name, reasons.get(spec.name, "not recorded"), columns, absent)
    done = fetched["state"] >= FETCH_DONE
    for name in ("fetch_end_ns", "cpu_ns"):
        if name in columns:
            columns[name] = np.where(done, columns[name], MISSING)
    return Table(columns, absent)


def _turn_key(rows: NDArray[Any]) -> NDArray[np.int64]:
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
