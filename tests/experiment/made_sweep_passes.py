"""Measured passes made of plain numbers, for what is read from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traceml_lite.records.run import from_arrays
from traceml_lite.records.sweep import Condition, MeasuredPass, PassResult

MS = 1_000_000


def made(
    name, wait_ms, *, step_ms=1.0, fetch_ms=None, rank=None, workers=4, number=1, warmup=0, in_order=True
):
    """One pass with these waits, in milliseconds."""
    wait = np.asarray(wait_ms, dtype=float)
    n = len(wait)
    columns = {"rank": np.arange(n) if rank is None else np.asarray(rank)}
    columns["worker"] = columns["rank"] % max(workers, 1)
    if fetch_ms is not None:
        length = np.round(np.broadcast_to(np.asarray(fetch_ms, dtype=float), (n,)) * MS).astype(np.int64)
        columns["fetch_start_ns"] = np.arange(n, dtype=np.int64) * MS
        columns["fetch_end_ns"] = columns["fetch_start_ns"] + length
    run = from_arrays(
        wait_ns=np.round(wait * MS).astype(np.int64),
        step_ns=np.full(n, round(step_ms * MS), dtype=np.int64),
        num_workers=workers,
        prefetch_factor=2,
        in_order=in_order,
        **columns,
    )
    trace = run.main
    run = replace(run, loaders=(replace(trace, fetches=trace.deliveries),))
    result = PassResult(name, number, "forward", deliveries=n, warmup=warmup)
    return MeasuredPass(Condition(name, {"num_workers": workers, "in_order": in_order}), result, run)


def pool(n, workers=4, stall=40.0, seed=0):
    """Waits of a pool in phase: one stall each round."""
    rng = np.random.default_rng(seed)
    waits = np.full(n, 0.1)
    waits[::workers] = stall * (1 + 0.05 * rng.standard_normal(len(waits[::workers])))
    return waits
