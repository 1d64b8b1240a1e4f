"""Made-up runs of a pool that delivers in order, with every counter under control."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from traceml_lite.diagnose.costs import cost_verdict
from traceml_lite.records.results import Evidence, Finding, Verdict
from traceml_lite.records.run import Environment, Event, LoaderTrace, Table, from_arrays

MS = 1_000_000


def made(
    *,
    deliveries: int = 96,
    workers: int = 4,
    prefetch: int = 2,
    fetch_ms: float | np.ndarray[Any, Any] = 100.0,
    step_ms: float = 10.0,
    handover_ms: float = 0.05,
    unpickle_ms: float = 0.0,
    turns: bool = False,
    cpu: float | np.ndarray[Any, Any] = 1.0,
    thread: float | np.ndarray[Any, Any] | None = None,
    queue: float | np.ndarray[Any, Any] | None = 0.0,
    config: dict[str, Any] | None = None,
    events: tuple[Event, ...] = (),
    **columns: Any,
) -> LoaderTrace:
    """A loader in the steady way of torch: round robin, prefetching, ordered.

    Args:
        deliveries: How many.
        workers: Workers.
        prefetch: Batches dispatched ahead per worker.
        fetch_ms: Duration of each fetch, by rank.
        step_ms: The consumer's step.
        handover_ms: From the end of a fetch to the earliest moment the consumer can have it.
        unpickle_ms: What the consumer itself needs for each batch.
        turns: Fetches of all workers go through one lock, held for ``fetch_ms``.
        cpu: Process CPU over fetch time, by rank.
        thread: Thread CPU over fetch time; None for ``cpu``.
        queue: Run-queue delay over fetch time; None for not measured.
        config: Further options of the loader.
        events: Events of the loader.
        **columns: Further columns, as scalars or arrays by rank.
    """
    n, pool = deliveries, max(1, workers)
    lengths = np.broadcast_to(np.asarray(fetch_ms, float) * MS, n).astype(np.int64)
    start, end, ask, got = (np.zeros(n, np.int64) for _ in range(4))
    free = np.zeros(pool, np.int64)
    now = lock_free = 0
    for i in range(n):
        worker = i % pool
        if workers == 0:
            start[i], end[i] = now, now + lengths[i]
            ask[i], got[i] = now, end[i]
        else:
            dispatched = 0 if i < pool * prefetch else got[i - pool * prefetch]
            start[i] = max(free[worker], dispatched)
            begin = max(start[i], lock_free) if turns else start[i]
            end[i] = begin + lengths[i]
            free[worker], lock_free = end[i], end[i]
            ready = max(now, end[i] + round(handover_ms * MS))
            ask[i], got[i] = now, ready + round(unpickle_ms * MS)
        now = got[i] + round(step_ms * MS)
    wall = end - start
    given: dict[str, Any] = {
        "cpu_ns": (wall * cpu).astype(np.int64),
        "thread_cpu_ns": (wall * (cpu if thread is None else thread)).astype(np.int64),
        "read_bytes": 0,
        "rchar": 100,
        "major_faults": 0,
        "minor_faults": 10,
        "threads": 3,
        "rss_bytes": 200 << 20,
        "pid": 100 + np.arange(n) % pool,
    }
    if queue is not None:
        given["run_queue_ns"] = (wall * queue).astype(np.int64)
    given |= columns
    run = from_arrays(
        wait_ns=got - ask,
        step_ns=np.full(n, round(step_ms * MS)),
        ask_ns=ask,
        got_ns=got,
        rank=np.arange(n),
        worker=np.arange(n) % pool if workers else np.full(n, -1),
        fetch_start_ns=start,
        fetch_end_ns=end,
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        in_order=True,
        **{name: np.broadcast_to(value, n) for name, value in given.items() if value is not None},
    )
    loader = run.main
    return replace(loader, config=replace(loader.config, **(config or {})), events=events)


def host(seconds: float = 2.4, readings: int = 11, **rates: float) -> Table:
    """Readings of the host whose totals rise evenly; a rate is per second, in seconds for ``*_ns``."""
    time_ns = np.linspace(0, seconds * 1e9, readings).astype(np.int64)
    columns: dict[str, Any] = {"time_ns": time_ns}
    for name, rate in rates.items():
        per_second = rate * 1e9 if name.endswith("_ns") else rate
        columns[name] = (time_ns / 1e9 * per_second).astype(np.int64)
    return Table(columns)


QUIET = {
    "cpu_busy_ns": 2.0,
    "own_cpu_ns": 2.0,
    "cpu_steal_ns": 0.0,
    "throttled_periods": 0.0,
    "throttled_ns": 0.0,
}


class Judged:
    """The verdict with its evidence by key."""

    def __init__(
        self, verdict: Verdict, evidence: tuple[Evidence, ...], findings: tuple[Finding, ...]
    ) -> None:
        self.verdict, self.findings = verdict, findings
        self.evidence = {item.key: item for item in evidence}
        self.order = [item.key for item in evidence]

    @property
    def key(self) -> str:
        return self.verdict.key


Judge = Callable[..., Judged]


@pytest.fixture
def judge() -> Judge:
    def _judge(
        loader: LoaderTrace,
        *,
        cpus: int = 4,
        rates: dict[str, float] | None = None,
        readings: Table | None = None,
        shape: Verdict | None = None,
        environment: Environment | None = None,
    ) -> Judged:
        known = environment or Environment(cpus_online=cpus, cpus_affinity=cpus)
        table = readings if readings is not None else host(**(QUIET | (rates or {})))
        return Judged(*cost_verdict(loader, known, table, shape))

    return _judge
