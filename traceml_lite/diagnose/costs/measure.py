"""From the tables of a trace to ``CostFacts``: which deliveries are judged and what their time went into.

The steady state is judged when the loop waits in it. Where it does not, but starting and the first batches
of the epochs cost the run a good part of its time, those are judged instead.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceml_lite.diagnose.costs.budget import (
    Waits,
    budget_of,
    covered_before,
    merged,
    outside_ns,
    waits_of,
)
from traceml_lite.diagnose.costs.facts import (
    MAX_ROWS,
    Budget,
    CostFacts,
    Fetches,
    Ints,
    Steps,
    known,
    why_unknown,
)
from traceml_lite.diagnose.costs.host import host_facts
from traceml_lite.records.results import Verdict
from traceml_lite.records.run import Environment, LoaderTrace, Table
from traceml_lite.stats.tails import median

# Below this share of its time a loop cannot gain anything one would notice from a faster loader.
LOST_SHARE_MIN = 0.05
# Starting is judged when it cost this share of the whole run; start-up of a short trial always costs some.
START_SHARE_MIN = 0.2
# Shapes in which the time is lost where epochs begin, whatever the steady state does.
BOUNDARY_SHAPES = frozenset({"start_up", "epoch_boundary"})
# A shape verdict less sure than this does not choose which deliveries are judged.
SURE_SHAPE = 0.7
# Fewer steps than this on either side make a ratio of medians a matter of luck.
MIN_STEPS_PER_SIDE = 5
# A step counts as "workers busy" when a fetch ran in most of it, as "idle" when in almost none of it.
BUSY_OVERLAP, IDLE_OVERLAP = 0.7, 0.1


def cost_facts(
    loader: LoaderTrace, environment: Environment, host: Table, shape: Verdict | None
) -> CostFacts:
    """Everything the functions of the cost keys look at, computed once.

    Args:
        loader: The trace of one loader.
        environment: Host and software.
        host: ``HOST_COLUMNS`` over the run.
        shape: The verdict on the shape, if there is one; it may say that the starts are what matters.
    """
    table = loader.deliveries
    waits, at_start = waits_of(loader), _at_start(loader)
    steady_budget = _budget(waits, table, ~at_start, 0.0)
    of_starts = _budget(waits, table, at_start, outside_ns(loader))
    total_ns = steady_budget.loop_ns + of_starts.loop_ns
    by_shape = shape is not None and shape.key in BOUNDARY_SHAPES and shape.confidence >= SURE_SHAPE
    starts_cost = of_starts.lost_ns / total_ns if total_ns > 0 else 0.0
    slow_starts = steady_budget.lost_share < LOST_SHARE_MIN and starts_cost >= START_SHARE_MIN
    at_boundary = slow_starts or by_shape or at_start.all()
    judged, split = (at_start, of_starts) if at_boundary else (~at_start, steady_budget)
    rows = np.flatnonzero(judged)
    budget = replace(split, loop_ns=total_ns) if at_boundary else split
    return _facts(loader, environment, host, rows, waits.for_fetch_ns, budget, bool(at_boundary))


def _budget(waits: Waits, table: Table, rows: NDArray[np.bool_], outside: float) -> Budget:
    return budget_of(waits, rows, outside, _sampled_share(table, "wait_run_queue_ns", "wait_ns", rows))


def _facts(
    loader: LoaderTrace,
    environment: Environment,
    host: Table,
    rows: Ints,
    for_fetch_ns: Ints,
    budget: Budget,
    at_boundary: bool,
) -> CostFacts:
    """The facts of the deliveries ``rows``."""
    count, cores_runnable = len(rows), pool_cores_of(loader.deliveries, rows)
    if count > MAX_ROWS:
        # A fixed random draw: an even stride would alias with a period.
        rows = np.sort(np.random.default_rng(0).choice(rows, MAX_ROWS, replace=False, shuffle=False))
    everything, judged = loader.deliveries, loader.deliveries.take(rows)
    fetches, why = fetches_of(judged, for_fetch_ns[rows])
    cores, runnable = cores_runnable
    ask, got = known(everything, "ask_ns"), known(everything, "got_ns")
    threads = known(everything, "threads")
    return CostFacts(
        config=loader.config,
        environment=environment,
        host=host_facts(
            host,
            None if ask is None else int(ask[ask >= 0].min()),
            None if got is None else int(got.max()),
            cores or 0.0,
        ),
        deliveries=judged,
        all_deliveries=everything,
        fetches=fetches,
        why_no_fetches=why,
        steps=steps_of(judged, everything),
        budget=budget,
        sampling=count / max(1, len(rows)),
        scope="boundary" if at_boundary else "steady",
        pool_cores=cores,
        pool_runnable=runnable,
        worker_threads=None if threads is None else median(threads[threads >= 0]),
        worker_cpus=_smallest_mask(loader),
    )


def _at_start(loader: LoaderTrace) -> NDArray[np.bool_]:
    """Deliveries that an epoch's start reaches: its first num_workers x prefetch_factor, at least one."""
    table = loader.deliveries
    number, ahead = known(table, "delivery"), known(table, "fast_forward")
    size = max(1, (loader.config.num_workers or 0) * (loader.config.prefetch_factor or 2))
    mask = np.zeros(len(table), bool) if number is None else (number >= 0) & (number < size)
    return mask if ahead is None else mask | (ahead > 0)


def _smallest_mask(loader: LoaderTrace) -> int | None:
    """CPUs in the smallest mask that a worker reported at its start."""
    masks = [event.data.get("cpus_affinity") for event in loader.events if event.kind == "worker_start"]
    known_masks = [mask for mask in masks if isinstance(mask, int) and mask > 0]
    return min(known_masks) if known_masks else None


def fetches_of(deliveries: Table, for_fetch_ns: Ints) -> tuple[Fetches | None, str]:
    """The fetches behind ``deliveries``, with the waiting for each, or None with the reason."""
    start, end = known(deliveries, "fetch_start_ns"), known(deliveries, "fetch_end_ns")
    process, thread = known(deliveries, "cpu_ns"), known(deliveries, "thread_cpu_ns")
    either = process if process is not None else thread
    if start is None or end is None or either is None:
        return None, why_unknown(deliveries, "fetch_start_ns", "fetch_end_ns", "cpu_ns")
    process = either if process is None else process
    thread = either if thread is None else thread
    queue = known(deliveries, "run_queue_ns")
    ok = (start >= 0) & (end > start) & (process >= 0) & (thread >= 0)
    if queue is not None:
        ok &= queue >= 0
    rows = np.flatnonzero(ok)
    if not len(rows):
        return None, "no fetch has all its counters"
    wall = (end[rows] - start[rows]).astype(np.float64)
    worker, waited = known(deliveries, "worker"), for_fetch_ns[rows]
    return (
        Fetches(
            wall_ns=wall,
            waited_ns=waited.astype(np.float64),
            thread_ns=np.minimum(thread[rows], wall),
            process_ns=process[rows].astype(np.float64),
            run_queue_ns=None if queue is None else queue[rows].astype(np.float64),
            start_ns=start[rows],
            end_ns=end[rows],
            worker=np.full(len(rows), -1, np.int64) if worker is None else worker[rows],
            rows=rows,
            behind_waits=bool(waited.sum() > 0),
        ),
        "",
    )


def steps_of(deliveries: Table, everything: Table) -> Steps:
    """The consumer's side of ``deliveries``; the slowdown is read off ``everything``."""
    wait, step = known(deliveries, "wait_ns"), known(deliveries, "step_ns")
    waits = np.zeros(0, np.int64) if wait is None else np.maximum(wait, 0)
    wait_ns, step_ns = float(waits.sum()), 0.0
    if step is not None:
        # A delivery whose step is unknown (the last of a broken-off epoch) would count as pure waiting.
        wait_ns, step_ns = float(waits[step >= 0].sum()), float(step[step >= 0].sum())
    total = wait_ns + step_ns
    return Steps(
        deliveries=len(deliveries),
        wait_ns=wait_ns,
        step_ns=step_ns if step is not None else None,
        wait_share=wait_ns / total if total > 0 else 0.0,
        starved_share=_sampled_share(deliveries, "step_run_queue_ns", "step_ns"),
        cpu_share=_sampled_share(deliveries, "step_cpu_ns", "step_ns"),
        process_cores=_sampled_share(deliveries, "step_process_cpu_ns", "step_ns"),
        slowdown=_slowdown(everything),
        wait_starved_share=_sampled_share(deliveries, "wait_run_queue_ns", "wait_ns"),
        unpickle_share=_sampled_share(deliveries, "wait_cpu_ns", "wait_ns"),
    )


def _sampled_share(
    deliveries: Table, part: str, whole: str, rows: NDArray[np.bool_] | None = None
) -> float | None:
    """Sum of ``part`` over sum of ``whole`` where both were read; None when no row has both."""
    parts, wholes = known(deliveries, part), known(deliveries, whole)
    if parts is None or wholes is None:
        return None
    both = (parts >= 0) & (wholes >= 0)
    if rows is not None:
        both &= rows
    total = float(wholes[both].sum())
    return float(parts[both].sum()) / total if total > 0 else None


def _slowdown(deliveries: Table) -> float | None:
    """Median step with busy workers over median step with idle ones, where the run has both."""
    got, step = known(deliveries, "got_ns"), known(deliveries, "step_ns")
    start, end = known(deliveries, "fetch_start_ns"), known(deliveries, "fetch_end_ns")
    if got is None or step is None or start is None or end is None:
        return None
    got, step, start, end = (column[:MAX_ROWS] for column in (got, step, start, end))
    usable, done = (got >= 0) & (step > 0), (start >= 0) & (end > start)
    if not usable.any() or not done.any():
        return None
    got, step = got[usable], step[usable]
    starts, ends = merged(start[done], end[done])
    overlap = (covered_before(got + step, starts, ends) - covered_before(got, starts, ends)) / step
    busy, idle = step[overlap >= BUSY_OVERLAP], step[overlap <= IDLE_OVERLAP]
    if min(len(busy), len(idle)) < MIN_STEPS_PER_SIDE:
        return None
    return median(busy) / median(idle)


def pool_cores_of(table: Table, rows: Ints) -> tuple[float | None, float | None]:
    """CPUs the workers used together, and worker threads that wanted one, on average over the span."""
    start, end, cpu, queue = (
        known(table, name) for name in ("fetch_start_ns", "fetch_end_ns", "cpu_ns", "run_queue_ns")
    )
    if start is None or end is None or cpu is None:
        return None, None
    # The steady part of one epoch is one stretch, and a view of it costs nothing.
    stretch = len(rows) > 0 and int(rows[-1]) - int(rows[0]) + 1 == len(rows)
    judged: Ints | slice = slice(int(rows[0]), int(rows[-1]) + 1) if stretch else rows
    start, end, cpu = start[judged], end[judged], cpu[judged]
    ok = (start >= 0) & (end > start) & (cpu >= 0)
    if not ok.any():
        return None, None
    span = float(end[ok].max() - start[ok].min())
    cores = float(cpu[ok].sum()) / span
    if queue is None:
        return cores, None
    return cores, cores + float(np.maximum(queue[judged][ok], 0).sum()) / span
