"""The numbers of one pass that the tables show, taken from its trace. Plain values, so they go to JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from traceml_lite.api import diagnose, load, summarize
from traceml_lite.records.results import Diagnosis
from traceml_lite.records.run import MISSING, Run
from traceml_lite.records.summary import NotMeasured, Summary

NS = 1e9
# CPUs kept busy by processes that are not the pass's own above which a pass is called disturbed: on two
# CPUs a quarter of one moves a saturated pool by an eighth, about its own variation.
DISTURBED_CORES = 0.25


def measure(trace: Path, stall_s: float | None = None) -> dict[str, Any]:
    """Everything about one pass.

    Args:
        trace: Directory of its trace.
        stall_s: Wait that counts as a stall; the summary's own threshold when None.
    """
    run = load(trace)
    stall_ns = None if stall_s is None else int(stall_s * NS)
    summary, diagnosis = summarize(run, stall_ns=stall_ns), diagnose(run, stall_ns=stall_ns)
    table = run.main.deliveries
    wait_s = np.asarray(table["wait_ns"]) / NS
    threshold_s = stall_s
    if threshold_s is None and not isinstance(summary.stalls, NotMeasured):
        threshold_s = summary.stalls.threshold_ns / NS
    stalls = [] if threshold_s is None else np.flatnonzero(wait_s >= threshold_s).tolist()
    ranks = table.get("rank")
    return {
        "workers": run.main.config.num_workers,
        "in_order": run.main.config.in_order,
        "deliveries": len(wait_s),
        "threshold_s": threshold_s,
        "mean_s": float(wait_s.mean()),
        "median_s": float(np.median(wait_s)),
        "p95_s": float(np.quantile(wait_s, 0.95)),
        "stalls": stalls,
        "gaps": np.diff(stalls).tolist(),
        "ranks": None if ranks is None else ranks.tolist(),
        "overtakings": None if isinstance(summary.order, NotMeasured) else summary.order.overtakings,
        **_fetches(run),
        **_pool(summary),
        "contrast": _contrast(summary),
        **_host(summary),
        **verdicts(diagnosis),
    }


def verdicts(diagnosis: Diagnosis) -> dict[str, Any]:
    """Shape and cost as the diagnosis has them."""
    return {
        "shape": diagnosis.shape.key,
        "shape_candidates": list(diagnosis.shape.candidates),
        "cost": diagnosis.cost.key,
        "cost_candidates": list(diagnosis.cost.candidates),
        "cost_statement": diagnosis.cost.statement,
    }


def _fetches(run: Run) -> dict[str, Any]:
    """Means per fetch over the fetches that were finished, also those never delivered."""
    table = run.main.fetches if len(run.main.fetches) else run.main.deliveries
    ended = np.asarray(table["fetch_end_ns"]) != MISSING
    wall = (np.asarray(table["fetch_end_ns"]) - np.asarray(table["fetch_start_ns"]))[ended] / NS
    found: dict[str, Any] = {
        "fetches": int(ended.sum()),
        "fetch_s": float(wall.mean()),
        "fetch_cv": float(wall.std() / wall.mean()) if len(wall) > 1 else None,
    }
    for name, column, unit in (
        ("cpu_s", "cpu_ns", NS),
        ("run_queue_s", "run_queue_ns", NS),
        ("read_bytes", "read_bytes", 1),
        ("major_faults", "major_faults", 1),
    ):
        values = table.get(column)
        known = None if values is None else values[ended & (np.asarray(values) != MISSING)]
        # A counter nobody could read is None, which a table shows as such.
        found[name] = None if known is None or not len(known) else float(known.mean() / unit)
        found[f"median_{name}"] = None if known is None or not len(known) else float(np.median(known) / unit)
    return found


def _pool(summary: Summary) -> dict[str, Any]:
    workers = summary.workers
    if isinstance(workers, NotMeasured):
        return {"pids": None, "pid_changes": None}
    changes = None if isinstance(workers.pid_changes, NotMeasured) else workers.n_pid_changes
    return {"pids": workers.pool.n_pids, "pid_changes": changes}


def _contrast(summary: Summary) -> dict[str, Any] | None:
    if isinstance(summary.contrast, NotMeasured):
        return None
    rows = {row.key: (number(row.slow), number(row.fast)) for row in summary.contrast.rows}
    return {"slow": summary.contrast.slow_intervals, "fast": summary.contrast.fast_intervals, "rows": rows}


def _host(summary: Summary) -> dict[str, Any]:
    others, consumer = number(summary.host.other_cores), summary.consumer
    return {
        "other_cores": others,
        "own_cores": number(summary.host.own_cores),
        "pressure_cpu": number(summary.host.pressure_cpu_share),
        "disturbed": None if others is None else others > DISTURBED_CORES,
        "wait_share": None if isinstance(summary.whole, NotMeasured) else number(summary.whole.wait_share),
        "steady_wait_share": None
        if isinstance(summary.steady, NotMeasured)
        else number(summary.steady.wait_share),
        "step_s": _seconds(number(consumer.p50_step_ns)),
        "step_cpu_share": number(consumer.cpu_share),
        "step_process_cpu_share": number(consumer.process_cpu_share),
        "step_run_queue_share": number(consumer.run_queue_share),
        "per_s": None if isinstance(summary.steady, NotMeasured) else number(summary.steady.deliveries_per_s),
    }


def number(measured: Any) -> float | None:
    """The value, or None where it was not measured."""
    return None if isinstance(measured, NotMeasured) else float(measured.value)


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / NS
