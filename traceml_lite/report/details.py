"""The details of a summary as text: the workers, slow against fast intervals, and what goes on around.

One block each, as lines; ``terminal`` puts them together. Every number comes from the summary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from traceml_lite.records.results import Estimate
from traceml_lite.records.summary import (
    Contrast,
    Edge,
    NotMeasured,
    OtherLoader,
    Summary,
    WorkerLine,
    Workers,
)
from traceml_lite.report import format as f

# (key of WorkerLine, its heading, kind of number)
WORKER_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("p50_fetch_ns", "p50", "time"),
    ("p95_fetch_ns", "p95", "time"),
    ("cpu_share", "CPU", "share"),
    ("run_queue_share", "runq", "share"),
    ("read_bytes_per_fetch", "read", "size"),
    ("rchar_per_fetch", "rchar", "size"),
    ("minor_faults_per_fetch", "minflt", "count"),
    ("major_faults_per_fetch", "majflt", "count"),
    ("voluntary_switches_per_fetch", "vol", "count"),
    ("involuntary_switches_per_fetch", "invol", "count"),
)


def workers_block(workers: Workers, width: int, heading: Callable[[str], str]) -> list[str]:
    """A line per worker and one for the pool, with the columns that were measured and that fit."""
    chosen = [line for line in workers.lines if line.worker in workers.notable]
    shown = [*chosen, workers.pool] if len(workers.lines) != 1 else chosen
    columns = [c for c in WORKER_COLUMNS if f.values(getattr(line, c[0]) for line in shown)]
    times = f.values(getattr(line, c[0]) for line in shown for c in columns if c[2] == "time")
    sizes = f.values(getattr(line, c[0]) for line in shown for c in columns if c[2] == "size")
    units = {
        "time": f.unit_for(times, f.TIMES),
        "size": f.unit_for(sizes, f.SIZES),
        "share": f.PERCENT,
        "count": f.ONE,
    }
    narrow = _worker_table(shown, columns, units)
    while max(map(len, narrow)) > width and columns:
        # The rightmost columns say the least about a cause; the JSON has them all.
        columns = columns[:-1]
        narrow = _worker_table(shown, columns, units)
    title = "Workers: fetch time, CPU and run-queue delay as a share of it, the rest per fetch"
    lines = [heading(title), *narrow]
    if len(workers.lines) > len(chosen):
        lines.append(f"{len(chosen)} of {len(workers.lines)} workers: slowest, fastest, most and least used")
    if isinstance(workers.pid_changes, tuple) and not workers.n_pid_changes and len(workers.lines):
        lines.append("PIDs unchanged within each epoch")
    return lines


def _worker_table(
    shown: Sequence[WorkerLine], columns: Sequence[tuple[str, str, str]], units: dict[str, f.Unit]
) -> list[str]:
    rows = [["worker", "PID", "n", *(_worker_heading(name, units[kind]) for _, name, kind in columns)]]
    for line in shown:
        cells = (f.cell(getattr(line, key), units[kind]) for key, _, kind in columns)
        rows.append([_worker_name(line), _pids(line), _deliveries(line), *cells])
    return f.table(rows, gap=1 if len(columns) > 8 else 2)


def _worker_heading(name: str, unit: f.Unit) -> str:
    return f"{name} {unit.name}".rstrip()


def _worker_name(line: WorkerLine) -> str:
    return "all" if line.worker is None else "consumer" if line.worker < 0 else str(line.worker)


def _pids(line: WorkerLine) -> str:
    if not line.pids or line.worker is None:
        return ""
    return str(line.pids[0]) if line.n_pids == 1 else f"{line.pids[0]} +{line.n_pids - 1}"


def _deliveries(line: WorkerLine) -> str:
    return f.MISSING if isinstance(line.deliveries, NotMeasured) else f"{line.deliveries.value:.0f}"


CONTRAST_WORDS = {
    "interval_ns": "interval",
    "worker_cpu_ns": "worker CPU",
    "worker_cores": "the same, mean cores",
    "worker_run_queue_ns": "run-queue delay",
    "worker_read_bytes": "read from disk",
    "worker_rchar": "read calls (rchar)",
    "worker_major_faults": "major faults",
}


def contrast_block(contrast: Contrast, heading: Callable[[str], str]) -> list[str]:
    """Slow against fast intervals side by side, one unit per row."""
    rows = [["", "", f"slow ({contrast.slow_intervals})", f"fast ({contrast.fast_intervals})"]]
    for row in contrast.rows:
        numbers = f.values((row.slow, row.fast))
        if not numbers:
            continue
        choices = {"ns": f.TIMES, "bytes": f.SIZES}.get(row.unit, (f.ONE,))
        unit = f.unit_for(numbers, choices)
        rows.append([CONTRAST_WORDS[row.key], unit.name, f.cell(row.slow, unit), f.cell(row.fast, unit)])
    title = "Slow against fast intervals: all workers between two deliveries, medians"
    return [heading(title), *f.table(rows, left=2)]


def around_block(summary: Summary, width: int) -> list[str]:
    """One labelled line each: supply, order, edges of epochs, step, host, other loaders, the probe."""
    lines: list[str] = []
    for label, text in (
        ("ready", _ready(summary)),
        ("queue", _queue(summary)),
        ("lag", _lag(summary)),
        ("order", _order(summary)),
        ("start-up", _edge(summary.edges.first, summary)),
        ("epochs", _later(summary)),
        ("step", _step(summary)),
        ("host", _host(summary)),
        *(("other", _other(other)) for other in summary.others),
        ("probe", _probe(summary)),
    ):
        lines += f.labelled(label, text, width=width)
    return lines


def _ready(summary: Summary) -> str:
    supply = summary.supply
    ready, none = supply.ready_at_ask_batches, supply.none_ready_share
    awaited, other = supply.stalls_awaited_ready_share, supply.stalls_other_ready_share
    if isinstance(ready, NotMeasured) or isinstance(none, NotMeasured):
        return ""
    text = f"{f.digits(ready.value)}{f.interval(ready, f.ONE)}"
    if isinstance(supply.capacity_batches, Estimate):
        text += f" of {supply.capacity_batches.value:.0f}"
    text += f" batches at the ask, none at {f.share(none)} of asks"
    if isinstance(awaited, Estimate) and isinstance(other, Estimate):
        text += f"; at {f.percent(awaited.value)} of stalls the awaited one was ready, "
        text += f"at {f.percent(other.value)} only others"
    return text


def _queue(summary: Summary) -> str:
    supply = summary.supply
    if isinstance(supply.queue_batches, NotMeasured) or isinstance(supply.queue_empty_share, NotMeasured):
        return ""
    pinned = "pinned batches" if summary.subject.config.pin_memory else "batches"
    text = f"{f.digits(supply.queue_batches.value)} {pinned} in the result queue at the ask, "
    text += f"empty at {f.share(supply.queue_empty_share)} of asks"
    if isinstance(supply.held_back_batches, Estimate):
        text += f"; {f.digits(supply.held_back_batches.value)} held back by order"
    return text


def _lag(summary: Summary) -> str:
    supply = summary.supply
    times = (supply.p50_lag_ns, supply.p95_lag_ns, supply.max_lag_ns)
    if any(isinstance(time, NotMeasured) for time in times):
        return ""
    text = f"from fetched (or asked) to delivered: {f.durations(('p50', 'p95', 'max'), times)}"
    if isinstance(supply.lag_share_of_waiting, Estimate):
        text += f"; {f.share(supply.lag_share_of_waiting)} of all waiting"
    return text


def _order(summary: Summary) -> str:
    order = summary.order
    if isinstance(order, NotMeasured):
        return ""
    if not order.overtakings:
        return f"no overtaking in {f.count(order.deliveries, 'delivery')}"
    text = (
        f"{order.overtakings} of {f.count(order.deliveries, 'delivery')} out of order: {order.passed} passed "
    )
    text += f"another, {order.were_passed} were passed, by up to {f.count(order.farthest_places, 'place')}"
    return text


def _edge(edge: Edge | NotMeasured, summary: Summary) -> str:
    if isinstance(edge, NotMeasured):
        return ""
    parts = []
    for words, time in (("iter()", edge.iter_ns), ("first wait", edge.first_wait_ns)):
        if isinstance(time, Estimate):
            parts.append(f"{words} {f.duration(time.value)}")
    warm = summary.subject.warm_up_batches
    if isinstance(edge.warm_up_wait_ns, Estimate) and isinstance(warm, Estimate):
        parts.append(f"first {warm.value:.0f} waits together {f.duration(edge.warm_up_wait_ns.value)}")
    if isinstance(edge.stop_ns, Estimate):
        parts.append(f"its StopIteration {f.duration(edge.stop_ns.value)}")
    return ", ".join(parts)


def _later(summary: Summary) -> str:
    edges = summary.edges
    parts = []
    if isinstance(edges.later, Edge):
        parts.append(f"{edges.later.epochs} more, medians: {_edge(edges.later, summary)}")
    if isinstance(edges.share, Estimate):
        parts.append(f"iter(), first waits and StopIteration take {f.share(edges.share)} of the time")
    if edges.broken_off:
        parts.append(f"{f.count(edges.broken_off, 'epoch')} broken off")
    return "; ".join(parts)


def _step(summary: Summary) -> str:
    step = summary.consumer
    if isinstance(step.p50_step_ns, NotMeasured):
        return ""
    text = f.durations(("p50", "p95"), (step.p50_step_ns, step.p95_step_ns))
    if isinstance(step.cpu_share, Estimate):
        text += f"; own CPU {f.share(step.cpu_share)} of it"
        if isinstance(step.process_cpu_share, Estimate):
            text += f" (process {f.percent(step.process_cpu_share.value)})"
        if isinstance(step.run_queue_share, Estimate):
            text += f", run-queue delay {f.share(step.run_queue_share)}"
        text += f", from {f.count(step.cpu_share.n, 'step')}"
    if isinstance(step.wait_cpu_share, Estimate):
        text += f"; in the wait CPU {f.percent(step.wait_cpu_share.value)}"
        if isinstance(step.wait_run_queue_share, Estimate):
            text += f", run-queue delay {f.percent(step.wait_run_queue_share.value)}"
    return text


def _host(summary: Summary) -> str:
    host = summary.host
    parts = []
    for measured, words in (
        (host.own_cores, "cores busy by this job"),
        (host.other_cores, "by others"),
        (host.steal_cores, "stolen"),
        (host.iowait_cores, "idle for I/O"),
    ):
        if isinstance(measured, Estimate):
            parts.append(f"{f.digits(measured.value)} {words}")
    text = ", ".join(parts)
    shares = [
        f"{words} {f.percent(measured.value)}"
        for measured, words in (
            (host.pressure_cpu_share, "CPU"),
            (host.pressure_io_share, "I/O"),
            (host.pressure_memory_share, "memory"),
        )
        if isinstance(measured, Estimate)
    ]
    if shares:
        text += f"; pressure {', '.join(shares)} of the time"
    if isinstance(host.throttled_share, Estimate):
        text += f"; throttled {f.percent(host.throttled_share.value)}"
        if isinstance(host.throttled_periods, Estimate) and host.throttled_periods.value:
            text += f" ({f.count(host.throttled_periods.value, 'period')})"
    if isinstance(host.peak_shm_bytes, Estimate) and host.peak_shm_bytes.value:
        unit = f.unit_for([host.peak_shm_bytes.value], f.SIZES)
        text += f"; /dev/shm at most {f.cell(host.peak_shm_bytes, unit)} {unit.name}"
    if isinstance(host.open_files_growth, Estimate) and host.open_files_growth.value > 0:
        text += f"; {f.count(host.open_files_growth.value, 'more open file')}"
    return text


def _other(other: OtherLoader) -> str:
    workers = "" if other.num_workers is None else f", {f.count(other.num_workers, 'worker')}"
    text = f"{other.name}{workers}: {f.count(other.deliveries, 'delivery')}"
    if isinstance(other.wait_share, Estimate):
        text += f", waits {f.share(other.wait_share)} of its time"
    if isinstance(other.p50_wait_ns, Estimate) and isinstance(other.max_wait_ns, Estimate):
        text += f", {f.durations(('p50', 'max'), (other.p50_wait_ns, other.max_wait_ns))}"
    return text


def _probe(summary: Summary) -> str:
    cost = summary.probe
    if isinstance(cost.consumer_ns_per_delivery, NotMeasured):
        return ""
    text = f"{f.duration_of(cost.consumer_ns_per_delivery)} a delivery"
    if isinstance(cost.consumer_share, Estimate):
        text += f" ({f.share(cost.consumer_share)} of the loop)"
    if isinstance(cost.worker_ns_per_fetch, Estimate):
        text += f", {f.duration_of(cost.worker_ns_per_fetch)} a fetch"
        if isinstance(cost.worker_share, Estimate):
            text += f" ({f.share(cost.worker_share)} of it)"
    if isinstance(cost.fixed_cpu_ns, Estimate):
        text += f", {f.duration_of(cost.fixed_cpu_ns)} of CPU once"
    if isinstance(cost.dropped_records, Estimate) and cost.dropped_records.value:
        text += f"; {f.count(cost.dropped_records.value, 'record')} lost"
    if cost.core is not None:
        text += "; its core is compiled" if cost.core == "compiled" else "; its core runs in Python"
    text += "; by the clock, time off the CPU included"
    return text
