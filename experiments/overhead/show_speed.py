"""Time and memory of what ``show`` computes: ``python experiments/overhead/show_speed.py [N]``.

The made-up run has every column of a real trace: four workers, saturated, 4 % of noise, 10 epochs. Prints
medians of five, and the peak of allocations against the size of the columns. Reading the trace is not in it.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from traceml_lite.diagnose.diagnosis import diagnose
from traceml_lite.diagnose.summary import summarize
from traceml_lite.records.run import DELIVERY_COLUMNS, FETCH_COLUMNS, LoaderConfig, Run, Table, from_arrays
from traceml_lite.report.jsondoc import summary_document
from traceml_lite.report.terminal import render_summary

MS = 1_000_000
ROUNDS = 5


def made_up_run(n: int, workers: int = 4, epochs: int = 10, seed: int = 1) -> Run:
    """A saturated ordered pool whose workers start each round together."""
    random = np.random.default_rng(seed)
    rounds = -(-n // workers)
    took = random.normal(25 * MS * workers, MS * workers, (rounds, workers)).astype(np.int64)
    longest = took.max(axis=1, keepdims=True)
    end = (np.cumsum(longest, axis=0) - longest + took).ravel()[:n]
    took = took.ravel()[:n]
    step = random.normal(10 * MS, MS, n).astype(np.int64)
    # got[i] = max(end[i], got[i-1] + step[i-1]), unrolled: a running maximum of end less the steps so far.
    before = np.concatenate(([0], np.cumsum(step)[:-1]))
    got = np.maximum.accumulate(end - before) + before + 20_000
    ask = np.concatenate(([0], got[:-1] + step[:-1]))
    size = -(-n // epochs)
    epoch = np.arange(n) // size
    columns = {c.name: np.zeros(n, dtype=c.dtype) for c in DELIVERY_COLUMNS + FETCH_COLUMNS}
    columns |= {
        "wait_ns": got - ask,
        "step_ns": step,
        "ask_ns": ask,
        "got_ns": got,
        "fetch_start_ns": end - took,
        "fetch_end_ns": end,
        "rank": np.arange(n) % size,
        "delivery": np.arange(n) % size,
        "epoch": epoch,
        "worker": np.arange(n) % workers,
        "pid": 4000 + np.arange(n) % workers + 10 * epoch,
        "cpu_ns": took // 2,
        "run_queue_ns": took // 3,
        "rchar": np.full(n, 120_000),
        "rss_bytes": np.where(np.arange(n) % 10 == 0, 1 << 28, -1),
        "step_cpu_ns": np.where(np.arange(n) % 16 == 0, step, -1),
    }
    run = from_arrays(num_workers=workers, prefetch_factor=2, in_order=True, source="made up", **columns)
    loader = run.loaders[0]
    fetches = {name: loader.deliveries[name] for name in columns if name in {c.name for c in FETCH_COLUMNS}}
    fetches |= {name: loader.deliveries[name] for name in ("iterator", "epoch", "worker")}
    fetches |= {"k": columns["delivery"] // workers, "state": np.ones(n, dtype="u1")}
    loader = dataclasses.replace(
        loader,
        fetches=Table(fetches),
        config=LoaderConfig(num_workers=workers, prefetch_factor=2, in_order=True, batch_size=8),
    )
    return dataclasses.replace(run, loaders=(loader,))


def timed(action: Callable[[], Any]) -> tuple[str, Any]:
    """Median wall and CPU seconds of some calls, and what the last one returned."""
    walls, cpus = [], []
    for _ in range(ROUNDS):
        wall, cpu = time.perf_counter(), time.process_time()
        result = action()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    spread = f"{min(walls):.3f} to {max(walls):.3f}"
    return f"{statistics.median(walls):7.3f} s ({spread}), CPU {statistics.median(cpus):.3f} s", result


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    run = made_up_run(n)
    columns = {id(c): c for t in (run.main.deliveries, run.main.fetches) for c in t.columns.values()}
    size = sum(c.nbytes for c in columns.values())
    load = os.getloadavg()[0]
    print(f"{n} deliveries, {os.cpu_count()} CPUs, load {load:.1f}, {size / 2**20:.0f} MiB of columns")
    line, summary = timed(lambda: summarize(run))
    print(f"summarize     {line}")
    line, diagnosis = timed(lambda: diagnose(run))
    print(f"diagnose      {line}")
    line, _ = timed(lambda: (render_summary(summary), summary_document(summary, diagnosis)))
    print(f"text and JSON {line}")
    tracemalloc.start()
    summarize(run)
    peak = tracemalloc.get_traced_memory()[1]
    print(f"memory of summarize on top of the columns {peak / 2**20:.0f} MiB, {peak / size:.2f} times theirs")


if __name__ == "__main__":
    main()
