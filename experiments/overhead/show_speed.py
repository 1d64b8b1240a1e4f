"""Time and memory of ``show``: ``python experiments/overhead/show_speed.py [N]``.

The made-up run has every column of a real trace: four workers, saturated, 4 % of noise, 10 epochs. Prints
medians of five: of the command on a trace of that length on disk, and of what it computes, piece by piece;
then the peak of allocations against the size of the columns.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from traceml_lite.diagnose.diagnosis import diagnose
from traceml_lite.diagnose.summary import summarize
from traceml_lite.records.run import DELIVERY_COLUMNS, FETCH_COLUMNS, LoaderConfig, Run, Table, from_arrays
from traceml_lite.report.jsondoc import summary_document
from traceml_lite.report.terminal import render_summary
from traceml_lite.store.layout import DELIVERIES, DELIVERY, FETCH, FETCHES

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


def on_disk(run: Run, folder: Path) -> Path:
    """A trace of the made-up run: a real one of 40 deliveries, multiplied, with these times.

    Its events stay those of the short run, so one epoch holds all.
    """
    trace = folder / "trace"
    demo = [sys.executable, "-m", "traceml_lite", "demo", "saturated-pool", "-n", "40", "--out", str(trace)]
    subprocess.run(demo, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    made = run.main.deliveries
    n, rank = len(made), np.arange(len(made))
    short = np.fromfile(trace / DELIVERIES, dtype=DELIVERY)
    workers = int(short["worker"].max()) + 1
    begin = int(short["ask_ns"].min()) - int(made["ask_ns"].min())
    deliveries, fetches = (
        np.repeat(short[-2:-1], n),
        np.repeat(np.fromfile(trace / FETCHES, dtype=FETCH)[:1], n),
    )
    for rows in (deliveries, fetches):
        rows["worker"], rows["k"] = rank % workers, rank // workers
    for name, values in (
        ("rank", rank),
        ("delivery", rank),
        ("sequence", rank),
        ("step_ns", made["step_ns"]),
    ):
        deliveries[name] = values
    for rows, names in ((deliveries, ("ask_ns", "got_ns")), (fetches, ("fetch_start_ns", "fetch_end_ns"))):
        for name in names:
            rows[name] = made[name] + begin
    for name in ("cpu_ns", "run_queue_ns", "rchar"):
        fetches[name] = made[name]
    deliveries.tofile(trace / DELIVERIES)
    fetches.tofile(trace / FETCHES)
    return trace


def show(trace: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "traceml_lite", "show", str(trace)], check=True, stdout=subprocess.DEVNULL
    )


def timed(action: Callable[[], Any]) -> tuple[str, Any]:
    """Median wall and CPU seconds of some calls, and what the last one returned."""
    walls, cpus = [], []
    for _ in range(ROUNDS):
        wall, cpu = time.perf_counter(), cpu_s()
        result = action()
        walls.append(time.perf_counter() - wall)
        cpus.append(cpu_s() - cpu)
    spread = f"{min(walls):.3f} to {max(walls):.3f}"
    return f"{statistics.median(walls):7.3f} s ({spread}), CPU {statistics.median(cpus):.3f} s", result


def cpu_s() -> float:
    """CPU time of this process and of its children that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    run = made_up_run(n)
    columns = {id(c): c for t in (run.main.deliveries, run.main.fetches) for c in t.columns.values()}
    size = sum(c.nbytes for c in columns.values())
    load = os.getloadavg()[0]
    print(f"{n} deliveries, {os.cpu_count()} CPUs, load {load:.1f}, {size / 2**20:.0f} MiB of columns")
    with tempfile.TemporaryDirectory() as folder:
        trace = on_disk(run, Path(folder))
        show(trace)
        line, _ = timed(lambda: show(trace))
    print(f"show, in all  {line}")
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
