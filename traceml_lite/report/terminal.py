"""The summary as plain text: what was measured, the result, its details, what was not measured.

Lines of at most 88 columns that can be pasted into a ticket. Returns lines and prints nothing; every number
comes from the summary. The verdict and the next command are another module's, between and after these.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from traceml_lite.records.results import Estimate
from traceml_lite.records.summary import (
    Contrast,
    Edge,
    Measured,
    NotMeasured,
    OtherLoader,
    Place,
    Stalls,
    Summary,
    Waits,
    WorkerLine,
    Workers,
)
from traceml_lite.report import format as f

# Places and gaps are examples of a pattern; a line holds about this many.
SHOWN_GAPS = 3


def render_summary(summary: Summary, *, width: int = f.WIDTH, color: bool = False) -> list[str]:
    """The whole summary, without a diagnosis.

    Args:
        summary: The summary.
        width: Columns there are.
        color: Whether headings may be bold (a terminal).

    Returns:
        Lines without a newline.
    """
    parts = (
        render_head(summary, width=width, color=color),
        render_details(summary, width=width, color=color),
        render_not_measured(summary, width=width, color=color),
    )
    return [line for part in parts if part for line in ([""] if part is not parts[0] else []) + part]


def render_head(summary: Summary, *, width: int = f.WIDTH, color: bool = False) -> list[str]:
    """What was measured and the result."""
    lines = _what_ran(summary, width)
    if isinstance(summary.whole, NotMeasured):
        return [*lines, "", f.bold(color)("No batch was delivered."), *_troubles(summary, width)]
    lines += ["", *_headline(summary, width, f.bold(color)), ""]
    lines += _waits_table(summary)
    lines += _stall_lines(summary, width)
    longest = summary.whole.longest
    lines += f.labelled(
        "longest", f"{_time(summary.whole.max_wait_ns)}: {_place(longest, summary)}", width=width
    )
    return lines + _troubles(summary, width)


def render_details(summary: Summary, *, width: int = f.WIDTH, color: bool = False) -> list[str]:
    """The workers, slow against fast intervals, and what goes on around the waiting."""
    if isinstance(summary.whole, NotMeasured):
        return []
    heading = f.bold(color)
    blocks = []
    if isinstance(summary.workers, Workers):
        blocks.append(_workers(summary.workers, width, heading))
    if isinstance(summary.contrast, Contrast):
        blocks.append(_contrast(summary.contrast, heading))
    blocks.append(_around(summary, width))
    return [line for i, block in enumerate(b for b in blocks if b) for line in ([""] if i else []) + block]


def render_not_measured(summary: Summary, *, width: int = f.WIDTH, color: bool = False) -> list[str]:
    """What this run cannot say, and why."""
    lines = []
    for absence in summary.not_measured:
        lines += f.labelled("  ", f"{', '.join(absence.what)}: {absence.reason}", width=width, indent=4)
    said = {absence.reason for absence in summary.not_measured}
    for what, missing in _derived(summary):
        if isinstance(missing, NotMeasured) and missing.reason not in said:
            lines += f.labelled("  ", f"{what}: {missing.reason}", width=width, indent=4)
    return [f.bold(color)("Not measured"), *lines] if lines else []


def _what_ran(summary: Summary, width: int) -> list[str]:
    subject, env = summary.subject, summary.subject.environment
    config = subject.config
    lines = [f.shorten(subject.source, width)]
    if env.command:
        lines += f.labelled("command", f.shorten(shlex.join(env.command), width - 10), width=width)
    options = [
        "num_workers not known" if config.num_workers is None else f.count(config.num_workers, "worker"),
        "" if config.prefetch_factor is None else f"prefetch {config.prefetch_factor}",
        {None: "", True: "in order", False: "in_order=False"}[config.in_order],
        "" if config.batch_size is None else f"batch {config.batch_size}",
        "persistent" if config.persistent_workers else "",
        "pinned" if config.pin_memory else "",
        config.start_method or "",
    ]
    lines += f.labelled("loader", ", ".join([subject.loader, *filter(None, options)]), width=width)
    software = [f"torch {env.torch}" if env.torch else "", f"Python {env.python}" if env.python else ""]
    cpus = "" if env.cpus_usable is None else f"{env.cpus_usable:g} CPUs usable"
    lines += f.labelled(
        "host", ", ".join(filter(None, [env.host, env.platform, *software, cpus])), width=width
    )
    spans = f.count(subject.deliveries, "delivery")
    if subject.epochs > 1:
        spans += f" in {f.count(subject.epochs, 'epoch')}"
    if isinstance(summary.host.seconds, Estimate):
        spans += f", {f.digits(summary.host.seconds.value)} s"
    if subject.fast_forwarded:
        spans += f"; {subject.fast_forwarded} more fast-forwarded inside iter(), left out"
    lines += f.labelled("run", spans, width=width)
    if subject.ending and not subject.complete:
        lines += f.labelled("ending", f"{subject.ending}; the numbers go up to there", width=width)
    return lines + f.labelled("sampled", subject.sampled or "", width=width)


def _headline(summary: Summary, width: int, heading: Callable[[str], str]) -> list[str]:
    waits, where = _best(summary)
    if isinstance(waits.wait_share, NotMeasured):
        total = _time(waits.total_wait_ns)
        text = f"Waited {total} in {f.count(waits.deliveries, 'delivery')}; "
        text += f"share of the time not measured: {waits.wait_share.reason}."
    else:
        pace, free = waits.deliveries_per_s, waits.deliveries_per_s_without_waiting
        text = f"Waiting takes {f.share(waits.wait_share)} of the time{where}"
        if isinstance(pace, Estimate):
            text += f": {f.digits(pace.value)}{f.interval(pace, f.ONE)} batches/s"
        if isinstance(waits.samples_per_s, Estimate):
            text += f" ({f.digits(waits.samples_per_s.value)} samples/s)"
        if isinstance(free, Estimate):
            text += f", {f.digits(free.value)}{f.interval(free, f.ONE)} if it never waited"
        text += "."
    return [heading(line) for line in f.labelled("", text, width=width, indent=0)]


def _best(summary: Summary) -> tuple[Waits, str]:
    """The steady state where there is one, else the whole run, and how to say so."""
    assert isinstance(summary.whole, Waits)
    if isinstance(summary.steady, Waits):
        apart = (
            isinstance(summary.subject.warm_up_batches, Estimate) and summary.subject.warm_up_batches.value
        )
        return summary.steady, " in the steady state" if apart else ""
    return summary.whole, " in the whole run"


def _waits_table(summary: Summary) -> list[str]:
    assert isinstance(summary.whole, Waits)
    warm = summary.subject.warm_up_batches
    spans: list[tuple[str, Waits]] = [("whole run", summary.whole)]
    if isinstance(summary.steady, Waits) and summary.steady.deliveries < summary.whole.deliveries:
        name = f"after the first {warm.value:.0f}" if isinstance(warm, Estimate) else "steady state"
        spans.insert(0, (name, summary.steady))
    times = [(w.p50_wait_ns, w.p95_wait_ns, w.p99_wait_ns, w.max_wait_ns) for _, w in spans]
    unit = f.unit_for(f.values(m for row in times for m in row), f.TIMES)
    rows = [["waits", "n", "share of time", *(f"{q} {unit.name}" for q in ("p50", "p95", "p99", "max"))]]
    for (name, waits), row in zip(spans, times, strict=True):
        part = f.MISSING if isinstance(waits.wait_share, NotMeasured) else f.share(waits.wait_share)
        rows.append([name, str(waits.deliveries), part, *(f.cell(m, unit) for m in row)])
    return [*f.table(rows), ""]


def _stall_lines(summary: Summary, width: int) -> list[str]:
    stalls = summary.stalls
    if isinstance(stalls, NotMeasured):
        return []
    source = "given" if stalls.threshold_source == "given" else "automatic"
    level = f"{f.duration(stalls.threshold_ns)} ({source})"
    if not stalls.n:
        return f.labelled("stalls", f"none of {stalls.deliveries} waits is above {level}", width=width)
    text = f"{stalls.n} of {f.count(stalls.deliveries, 'wait')} above {level}"
    if isinstance(stalls.share_of_waiting, Estimate):
        text += f" carry {f.share(stalls.share_of_waiting)} of all waiting"
    if stalls.n_warm_up:
        warm = summary.subject.warm_up_batches
        first = f"{warm.value:.0f}" if isinstance(warm, Estimate) else "W·F"
        text += f"; {stalls.n_warm_up} within the first {first}"
        text += " of an epoch" if summary.subject.epochs > 1 else ""
    lines = f.labelled("stalls", text, width=width)
    return lines + f.labelled("", _pattern(stalls, summary.subject.epochs > 1), width=width)


def _pattern(stalls: Stalls, epochs: bool) -> str:
    places = " ".join(f"{p.epoch}:{p.delivery}" if epochs else str(p.delivery) for p in stalls.places)
    text = f"at {'epoch:delivery' if epochs else 'deliveries'} {places}"
    text += " ..." if stalls.n > len(stalls.places) else ""
    if isinstance(stalls.gaps, NotMeasured):
        return text
    gaps = ", ".join(f"{gap} ({times} of {stalls.gaps.n})" for gap, times in stalls.gaps.common[:SHOWN_GAPS])
    text += f"; gaps {gaps}"
    if len(stalls.gaps.common) > SHOWN_GAPS:
        text += ", others"
    if isinstance(stalls.gaps.median_interval_ns, Estimate):
        text += f"; median {f.duration(stalls.gaps.median_interval_ns.value)} apart"
    return text


def _place(place: Place, summary: Summary) -> str:
    text = f"delivery {place.delivery}"
    if summary.subject.epochs > 1:
        text += f" of epoch {place.epoch}"
    if place.rank is not None and place.rank != place.delivery:
        text += f", rank {place.rank}"
    if place.worker is not None and place.worker >= 0:
        text += f", from worker {place.worker}"
    return text


def _troubles(summary: Summary, width: int) -> list[str]:
    lines = []
    for error in summary.edges.errors:
        lines += f.labelled("error", error, width=width)
    if isinstance(summary.workers, Workers) and summary.workers.n_pid_changes:
        changes = summary.workers.pid_changes
        assert not isinstance(changes, NotMeasured)
        first = changes[0]
        text = f"{f.count(summary.workers.n_pid_changes, 'change')} of process within an epoch; first worker "
        text += f"{first.worker} in epoch {first.epoch}: {first.before_pid} to {first.after_pid}"
        lines += f.labelled("PIDs", text, width=width)
    return lines


# (key of WorkerLine, first and second line of its heading, kind of number)
WORKER_COLUMNS: tuple[tuple[str, str, str, str], ...] = (
    ("p50_fetch_ns", "fetch", "p50", "time"),
    ("p95_fetch_ns", "", "p95", "time"),
    ("cpu_share", "% of it", "CPU", "share"),
    ("run_queue_share", "", "runq", "share"),
    ("read_bytes_per_fetch", "each", "read", "size"),
    ("rchar_per_fetch", "", "rchar", "size"),
    ("minor_faults_per_fetch", "", "minflt", "count"),
    ("major_faults_per_fetch", "", "majflt", "count"),
    ("voluntary_switches_per_fetch", "", "vol", "count"),
    ("involuntary_switches_per_fetch", "", "invol", "count"),
)


def _workers(workers: Workers, width: int, heading: Callable[[str], str]) -> list[str]:
    chosen = [line for line in workers.lines if line.worker in workers.notable]
    shown = [*chosen, workers.pool] if len(workers.lines) != 1 else chosen
    columns = [c for c in WORKER_COLUMNS if f.values(getattr(line, c[0]) for line in shown)]
    times = f.values(getattr(line, c[0]) for line in shown for c in columns if c[3] == "time")
    sizes = f.values(getattr(line, c[0]) for line in shown for c in columns if c[3] == "size")
    units = {
        "time": f.unit_for(times, f.TIMES),
        "size": f.unit_for(sizes, f.SIZES),
        "share": f.PERCENT,
        "count": f.ONE,
    }
    rows = [["worker", "PID", "n", *(_worker_heading(c, units) for c in columns)]]
    for line in shown:
        cells = (f.cell(getattr(line, c[0]), units[c[3]]) for c in columns)
        rows.append([_worker_name(line), _pids(line), _deliveries(line), *cells])
    title = "Workers: fetch time, CPU and run-queue delay as a share of it, the rest per fetch"
    lines = [heading(title), *f.table(rows, gap=1 if len(columns) > 8 else 2)]
    if len(workers.lines) > len(chosen):
        lines.append(f"{len(chosen)} of {len(workers.lines)} workers: slowest, fastest, most and least used")
    if isinstance(workers.pid_changes, tuple) and not workers.n_pid_changes and len(workers.lines):
        lines.append("PIDs unchanged within each epoch")
    return [line[:width] for line in lines]


def _worker_heading(column: tuple[str, str, str, str], units: dict[str, f.Unit]) -> str:
    _, _, name, kind = column
    return name if kind == "count" else f"{name} {units[kind].name}"


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


def _contrast(contrast: Contrast, heading: Callable[[str], str]) -> list[str]:
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


def _around(summary: Summary, width: int) -> list[str]:
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
    text = f"from fetched (or asked) to delivered: {_times(('p50', 'p95', 'max'), times)}"
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
        parts.append(f"{edges.broken_off} left before its end")
    return "; ".join(parts)


def _step(summary: Summary) -> str:
    step = summary.consumer
    if isinstance(step.p50_step_ns, NotMeasured):
        return ""
    text = _times(("p50", "p95"), (step.p50_step_ns, step.p95_step_ns))
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
    if isinstance(host.open_files_growth, Estimate) and host.open_files_growth.value > 0:
        text += f"; {f.count(host.open_files_growth.value, 'more open file')}"
    return text


def _other(other: OtherLoader) -> str:
    workers = "" if other.num_workers is None else f", {f.count(other.num_workers, 'worker')}"
    text = f"{other.name}{workers}: {f.count(other.deliveries, 'delivery')}"
    if isinstance(other.wait_share, Estimate):
        text += f", waits {f.share(other.wait_share)} of its time"
    if isinstance(other.p50_wait_ns, Estimate) and isinstance(other.max_wait_ns, Estimate):
        text += f", {_times(('p50', 'max'), (other.p50_wait_ns, other.max_wait_ns))}"
    return text


def _probe(summary: Summary) -> str:
    cost = summary.probe
    if isinstance(cost.consumer_ns_per_delivery, NotMeasured):
        return ""
    text = f"{_time(cost.consumer_ns_per_delivery)} a delivery"
    if isinstance(cost.consumer_share, Estimate):
        text += f" ({f.share(cost.consumer_share)} of the loop)"
    if isinstance(cost.worker_ns_per_fetch, Estimate):
        text += f", {_time(cost.worker_ns_per_fetch)} a fetch"
        if isinstance(cost.worker_share, Estimate):
            text += f" ({f.share(cost.worker_share)} of it)"
    if isinstance(cost.fixed_cpu_ns, Estimate):
        text += f", {_time(cost.fixed_cpu_ns)} of CPU once"
    if isinstance(cost.dropped_records, Estimate) and cost.dropped_records.value:
        text += f"; {f.count(cost.dropped_records.value, 'record')} lost"
    text += "; by the clock, time off the CPU included"
    return text


def _derived(summary: Summary) -> list[tuple[str, object]]:
    """Numbers made from columns, with a reason of their own where they could not be made."""
    derived: list[tuple[str, object]] = [
        ("steady state", summary.steady),
        ("slow against fast intervals", summary.contrast),
        ("time of iter() and of epoch ends", summary.edges.share),
    ]
    if summary.subject.config.num_workers != 0:
        derived.insert(1, ("ready at ask", summary.supply.ready_at_ask_batches))
        derived.insert(2, ("delivery lag", summary.supply.p50_lag_ns))
    if isinstance(summary.stalls, Stalls) and summary.stalls.n > 1:
        derived.append(("gaps", summary.stalls.gaps))
    return [] if isinstance(summary.whole, NotMeasured) else derived


def _time(measured: Measured) -> str:
    return "n/m" if isinstance(measured, NotMeasured) else f.duration(measured.value)


def _times(names: Sequence[str], times: Sequence[Measured]) -> str:
    unit = f.unit_for(f.values(times), f.TIMES)
    return ", ".join(f"{n} {f.cell(t, unit)}" for n, t in zip(names, times, strict=True)) + f" {unit.name}"
