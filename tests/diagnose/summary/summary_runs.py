"""Small runs with figures that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from traceml_lite.records.results import Estimate
from traceml_lite.records.run import FETCH_DONE, LoaderConfig, LoaderTrace, Run, Table, from_arrays
from traceml_lite.records.summary import Measured, NotMeasured

MS = 1_000_000


def value(measured: Measured) -> float:
    assert isinstance(measured, Estimate), measured
    return measured.value


def reason(found: object) -> str:
    assert isinstance(found, NotMeasured), found
    return found.reason


def chain(wait_ms: Any, step_ms: Any, **columns: Any) -> Run:
    """Deliveries one after another: ask and got follow from waits and steps (one per delivery)."""
    wait = (np.asarray(wait_ms) * MS).astype(np.int64)
    step = (np.asarray(step_ms) * MS).astype(np.int64)
    before = np.concatenate(([0], np.cumsum(wait + step)[:-1]))
    return from_arrays(wait_ns=wait, step_ns=step, ask_ns=before, got_ns=before + wait, **columns)


def pool(rounds: int, workers: int = 4, fetch_ms: float = 400, step_ms: float = 10, **columns: Any) -> Run:
    """A saturated pool in phase: each round one long wait, then ``workers - 1`` ready batches."""
    n = rounds * workers
    fetch, step = int(fetch_ms * MS), int(step_ms * MS)
    end = np.repeat(np.arange(1, rounds + 1) * fetch, workers)
    start = end - fetch
    at = 0
    asks, gots = [], []
    for i in range(n):
        asks.append(at)
        at = max(at, int(end[i]))
        gots.append(at)
        at += step
    ask, got = np.array(asks), np.array(gots)
    return from_arrays(
        wait_ns=got - ask,
        step_ns=np.full(n, step),
        ask_ns=ask,
        got_ns=got,
        fetch_start_ns=start,
        fetch_end_ns=end,
        rank=np.arange(n),
        worker=np.arange(n) % workers,
        num_workers=workers,
        prefetch_factor=2,
        in_order=True,
        **columns,
    )


def with_trace(run: Run, **changes: Any) -> Run:
    """The run, its one loader changed."""
    return replace(run, loaders=(replace(run.loaders[0], **changes),))


def with_fetches(run: Run, **columns: Any) -> Run:
    """The run with a table of fetches of its own, made of the deliveries' fetch columns and ``columns``."""
    trace = run.loaders[0]
    names = [
        n
        for n in trace.deliveries
        if n in ("fetch_start_ns", "fetch_end_ns", "pid", "worker", "epoch", "iterator")
    ]
    table = {name: np.asarray(trace.deliveries[name]) for name in names} | columns
    n = len(table["fetch_end_ns"])
    table.setdefault("state", np.full(n, FETCH_DONE, dtype="u1"))
    return with_trace(run, fetches=Table({k: np.asarray(v) for k, v in table.items()}))


def nothing() -> Run:
    """A loader that was iterated and delivered nothing."""
    trace = LoaderTrace("empty", LoaderConfig(num_workers=2, prefetch_factor=2), Table({}), Table({}))
    return Run("made up", (trace,))
