"""A line per worker, one for the pool, and processes that changed within an epoch.

Sums and quantiles of fetches only. Which worker is to blame is for the diagnosis: under ``in_order`` the
worker of a delivery is its rank modulo num_workers and proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from traceml_lite.diagnose.summary.numbers import mean_of_measured, quantile_estimates, totals_share
from traceml_lite.diagnose.summary.view import Fetches, View
from traceml_lite.records.results import Estimate
from traceml_lite.records.run import UNKNOWN_WORKER
from traceml_lite.records.summary import Measured, NotMeasured, PidChange, WorkerLine, Workers

# Lines that a report has room for; a bigger pool is shown by its extremes.
MAX_LINES = 8
MAX_PIDS = 8
MAX_CHANGES = 8

Rows = slice | NDArray[np.intp]


def workers(view: View) -> Workers | NotMeasured:
    """The workers as far as their fetches were seen."""
    fetches = view.fetches
    if isinstance(fetches, NotMeasured):
        return fetches
    read, took_ns = _reader(fetches), np.maximum(fetches.end_ns - fetches.start_ns, 0)
    pool = _line(
        read,
        took_ns,
        slice(None),
        None,
        fetches.count,
        Estimate(float(view.stands_for(slice(None))), n=view.n, method="count"),
    )
    worker = fetches.column("worker")
    if isinstance(worker, NotMeasured):
        return Workers(pool, (), (), NotMeasured(f"needs the worker of a fetch: {worker.reason}"), 0)
    by_worker = np.argsort(worker, kind="stable")
    ids, starts = np.unique(worker[by_worker], return_index=True)
    ends = np.append(starts[1:], len(by_worker))
    delivered = _delivered(view)
    lines = tuple(
        _line(read, took_ns, by_worker[start:end], int(w), int(end - start), delivered(int(w)))
        for w, start, end in zip(ids, starts, ends, strict=True)
        if w != UNKNOWN_WORKER
    )
    changes, n_changes = _pid_changes(fetches, worker, by_worker)
    return Workers(pool, lines, _notable(lines), changes, n_changes)


def _reader(fetches: Fetches) -> Callable[[str], NDArray[np.int64] | NotMeasured]:
    seen: dict[str, NDArray[np.int64] | NotMeasured] = {}

    def read(name: str) -> NDArray[np.int64] | NotMeasured:
        if name not in seen:
            seen[name] = fetches.column(name)
        return seen[name]

    return read


def _delivered(view: View) -> Callable[[int], Measured]:
    worker = view.column("worker")
    if isinstance(worker, NotMeasured):
        reason = worker
        return lambda _: reason
    return lambda w: Estimate(float(view.stands_for(worker == w)), n=view.n, method="count")


def _line(
    read: Callable[[str], NDArray[np.int64] | NotMeasured],
    all_took_ns: NDArray[np.int64],
    rows: Rows,
    worker: int | None,
    count: int,
    deliveries: Measured,
) -> WorkerLine:
    took = all_took_ns[rows]
    p50, p95 = quantile_estimates(took, (0.5, 0.95))

    def share(name: str) -> Measured:
        column = read(name)
        return column if isinstance(column, NotMeasured) else totals_share(column[rows], took)

    def each(name: str) -> Measured:
        column = read(name)
        return column if isinstance(column, NotMeasured) else mean_of_measured(column[rows])

    pids, n_pids = _pids(read("pid"), rows)
    return WorkerLine(
        worker=worker,
        pids=pids,
        n_pids=n_pids,
        fetches=count,
        deliveries=deliveries,
        p50_fetch_ns=p50,
        p95_fetch_ns=p95,
        cpu_share=share("cpu_ns"),
        run_queue_share=share("run_queue_ns"),
        read_bytes_per_fetch=each("read_bytes"),
        rchar_per_fetch=each("rchar"),
        minor_faults_per_fetch=each("minor_faults"),
        major_faults_per_fetch=each("major_faults"),
        voluntary_switches_per_fetch=each("voluntary_switches"),
        involuntary_switches_per_fetch=each("involuntary_switches"),
        last_rss_bytes=NotMeasured("one figure per worker")
        if worker is None
        else _last(read("rss_bytes"), rows),
    )


def _pids(column: NDArray[np.int64] | NotMeasured, rows: Rows) -> tuple[tuple[int, ...], int]:
    if isinstance(column, NotMeasured):
        return (), 0
    mine = column[rows]
    if isinstance(rows, slice):
        everyone = np.unique(mine[mine >= 0]).tolist()
        return tuple(everyone[:MAX_PIDS]), len(everyone)
    # A worker keeps its process for long stretches: the changes are few, the fetches are many.
    kept = mine[np.concatenate(([True], np.diff(mine) != 0))]
    distinct = [int(pid) for pid in dict.fromkeys(kept.tolist()) if pid >= 0]
    return tuple(distinct[:MAX_PIDS]), len(distinct)


def _last(column: NDArray[np.int64] | NotMeasured, rows: Rows) -> Measured:
    if isinstance(column, NotMeasured):
        return column
    there = column[rows]
    there = there[there >= 0]
    if not len(there):
        return NotMeasured("measured in no element")
    return Estimate(float(there[-1]), n=len(there), method="last reading")


def _notable(lines: tuple[WorkerLine, ...]) -> tuple[int, ...]:
    if len(lines) <= MAX_LINES:
        return tuple(line.worker for line in lines if line.worker is not None)
    by_speed = sorted(lines, key=lambda line: _value(line.p50_fetch_ns))
    by_count = sorted(lines, key=lambda line: line.fetches)
    chosen = [*by_speed[:-4:-1], *by_speed[:2], by_count[0], by_count[-1]]
    ids = dict.fromkeys(line.worker for line in chosen if line.worker is not None)
    return tuple(ids)[:MAX_LINES]


def _value(measured: Measured) -> float:
    return measured.value if isinstance(measured, Estimate) else 0.0


def _pid_changes(
    fetches: Fetches, worker: NDArray[np.int64], by_worker: NDArray[np.intp]
) -> tuple[tuple[PidChange, ...] | NotMeasured, int]:
    """Consecutive fetches of one worker in one epoch that different processes made."""
    pid = fetches.column("pid")
    if isinstance(pid, NotMeasured):
        return pid, 0
    iterator, epoch = fetches.column("iterator"), fetches.column("epoch")
    if isinstance(iterator, NotMeasured) or isinstance(epoch, NotMeasured):
        return NotMeasured("needs the epoch of a fetch"), 0
    pids = pid[by_worker]
    changed = np.flatnonzero((np.diff(pids) != 0) & (pids[1:] >= 0) & (pids[:-1] >= 0))
    before, after = by_worker[changed], by_worker[changed + 1]
    within = worker[after] >= 0
    for key in (worker, iterator, epoch):
        within &= key[before] == key[after]
    found = [
        PidChange(int(worker[j]), int(epoch[j]), int(iterator[j]), int(pid[i]), int(pid[j]))
        for i, j in zip(before[within][:MAX_CHANGES], after[within][:MAX_CHANGES], strict=True)
    ]
    return tuple(found), int(np.count_nonzero(within))
