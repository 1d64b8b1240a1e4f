"""The summary as plain text: what was measured, the result, its details, what was not measured.

Lines of at most 88 columns that can be pasted into a ticket. Returns lines and prints nothing; every number
comes from the summary. The verdict and the next command are another module's, between and after these.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from traceml_lite.records.results import Estimate
from traceml_lite.records.summary import (
    Contrast,
    NotMeasured,
    Place,
    Stalls,
    Summary,
    Waits,
    Workers,
)
from traceml_lite.report import format as f
from traceml_lite.report.details import around_block, contrast_block, workers_block

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
    lines += _waits_table(summary, width)
    lines += _stall_lines(summary, width)
    longest = summary.whole.longest
    lines += f.labelled(
        "longest", f"{f.duration_of(summary.whole.max_wait_ns)}: {_place(longest, summary)}", width=width
    )
    return lines + _troubles(summary, width)


def render_details(summary: Summary, *, width: int = f.WIDTH, color: bool = False) -> list[str]:
    """The workers, slow against fast intervals, and what goes on around the waiting."""
    if isinstance(summary.whole, NotMeasured):
        return []
    heading = f.bold(color)
    blocks = []
    if isinstance(summary.workers, Workers):
        blocks.append(workers_block(summary.workers, width, heading))
    if isinstance(summary.contrast, Contrast):
        blocks.append(contrast_block(summary.contrast, heading))
    blocks.append(around_block(summary, width))
    return [line for i, block in enumerate(b for b in blocks if b) for line in ([""] if i else []) + block]


def render_not_measured(summary: Summary, *, width: int = f.WIDTH, color: bool = False) -> list[str]:
    """What this run cannot say, and why."""
    lines = []
    for absence in summary.not_measured:
        lines += f.labelled("  ", f"{', '.join(absence.what)}: {absence.reason}", width=width, indent=4)
    # What is missing only because a column is has been said with that column.
    said = tuple(absence.reason for absence in summary.not_measured)
    for what, missing in _derived(summary):
        if isinstance(missing, NotMeasured) and not missing.reason.endswith(said):
            lines += f.labelled("  ", f"{what}: {missing.reason}", width=width, indent=4)
    return [f.bold(color)("Not measured"), *lines] if lines else []


def _what_ran(summary: Summary, width: int) -> list[str]:
    subject, env = summary.subject, summary.subject.environment
    config = subject.config
    lines = [f.shorten(subject.source, width)]
    if env.command:
        lines += f.labelled("command", f.shorten(shlex.join(env.command_line), width - 10), width=width)
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
        total, n = waits.total_wait_ns, f.count(waits.deliveries, "delivery")
        text = f"Waited {f.duration_of(total)} in {n}; " if isinstance(total, Estimate) else "Waiting: "
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


def _waits_table(summary: Summary, width: int) -> list[str]:
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
    lines = f.table(rows)
    return [*(lines if max(map(len, lines)) <= width else f.table(rows, gap=1)), ""]


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
    changes = summary.workers.pid_changes if isinstance(summary.workers, Workers) else ()
    if isinstance(summary.workers, Workers) and isinstance(changes, tuple) and changes:
        first = changes[0]
        text = f"{f.count(summary.workers.n_pid_changes, 'change')} of process within an epoch; first worker "
        text += f"{first.worker} in epoch {first.epoch}: {first.before_pid} to {first.after_pid}"
        lines += f.labelled("PIDs", text, width=width)
    return lines


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
