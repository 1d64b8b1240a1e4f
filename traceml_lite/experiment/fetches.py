"""What a fetch is made of at each number of workers of a sweep: CPU time, waiting for a CPU, and the rest.

A single run with more workers than CPUs cannot tell expensive fetches from too many workers: in both a fetch
waits for a CPU. The passes of a sweep that have no more workers than CPUs can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traceml_lite.records.run import LoaderTrace
from traceml_lite.records.sweep import MeasuredPass

# With a CPU for every worker, a fetch of which this much is CPU time is made of it ...
CPU_SHARE_MIN = 0.8
# ... and is the same work beside more workers where its CPU time grows by no more than this.
CPU_RATIO_MAX = 1.5
# W workers that share C CPUs fairly take W/C times as long each; much more than that has other causes.
FAIR_RATIO_MAX = 1.4
# Waiting for a CPU is worth a word from this share of a fetch on.
QUEUE_SHARE_MIN = 0.2
_COLUMNS = ("fetch_start_ns", "fetch_end_ns", "cpu_ns", "run_queue_ns")


@dataclass(frozen=True, slots=True)
class FetchParts:
    """Mean parts of the fetches that were made with one number of workers."""

    workers: int
    fetches: int
    wall_ns: float
    cpu_ns: float
    run_queue_ns: float


@dataclass(frozen=True, slots=True)
class CpuBound:
    """Fetches are CPU time wherever they get a CPU; the delay beside it comes from the number of workers."""

    alone: tuple[FetchParts, ...]
    """With no more workers than CPUs."""
    crowded: tuple[FetchParts, ...]
    """With more."""
    cpus: float
    """CPUs that they could use."""


def read_parts(passes: Iterable[MeasuredPass]) -> tuple[FetchParts, ...]:
    """Parts of the fetches of a sweep over num_workers, by ascending number of workers."""
    rows: dict[int, list[np.ndarray]] = {}
    for one in passes:
        table, workers = _steady(one.run.main), one.run.main.config.num_workers
        if len(table) and workers is not None:
            rows.setdefault(workers, []).append(table)
    found = []
    for workers, tables in sorted(rows.items()):
        table = np.concatenate(tables)
        wall, cpu, queue = table.mean(axis=0)
        found.append(FetchParts(workers, len(table), float(wall), float(cpu), float(queue)))
    return tuple(found)


def _steady(trace: LoaderTrace) -> np.ndarray:
    """Wall, CPU and run-queue ns of each fetch, without the first of every worker, which opens files."""
    columns: Mapping[str, np.ndarray | None] = {name: trace.fetches.get(name) for name in _COLUMNS}
    start, end, cpu, queue = (columns[name] for name in _COLUMNS)
    if start is None or end is None or cpu is None or queue is None:
        return np.empty((0, 3))
    order = trace.fetches.get("k")
    known = (start >= 0) & (end > start) & (cpu >= 0) & (queue >= 0)
    if order is not None:
        known &= order >= 1
    return np.stack([(end - start)[known], cpu[known], queue[known]], axis=1).astype(np.float64)


def cpu_bound(parts: Sequence[FetchParts], cpus: float) -> CpuBound | None:
    """Whether a fetch is the same CPU time at every number of workers, and only the wait for a CPU grows.

    None where the passes do not show it: no pass with a CPU for every worker, none with more, fetches that
    are blocked or are kept from the CPUs by others, or CPU time that itself grows with the workers.

    Args:
        parts: Of each number of workers.
        cpus: That the loader may use; a quota may leave less than one.
    """
    alone = tuple(one for one in parts if one.workers <= cpus)
    crowded = tuple(one for one in parts if one.workers > cpus)
    if not alone or not crowded:
        return None
    if any(one.cpu_ns < CPU_SHARE_MIN * one.wall_ns for one in alone):
        return None
    times = [one.cpu_ns for one in parts]
    if max(times) > CPU_RATIO_MAX * min(times):
        return None
    if any(
        one.run_queue_ns < QUEUE_SHARE_MIN * one.wall_ns
        or one.cpu_ns + one.run_queue_ns < CPU_SHARE_MIN * one.wall_ns
        or one.wall_ns > FAIR_RATIO_MAX * one.cpu_ns * one.workers / cpus
        for one in crowded
    ):
        return None
    return CpuBound(alone, crowded, cpus)
