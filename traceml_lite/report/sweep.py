"""A sweep and a comparison of arms as text: conclusions first, then what they rest on.

Lines of at most 88 columns that can be pasted into a ticket. Computes nothing: every number and sentence
comes from the records.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceml_lite.records.results import Estimate
from traceml_lite.records.sweep import (
    ArmCadence,
    ArmComparison,
    ArmSummary,
    ControlAnswer,
    Disturbance,
    Laws,
    PassResult,
    PassStatus,
    PhaseLock,
    SweepResult,
)
from traceml_lite.report import format as f

# Room for the longest label of a line of conclusions.
_LABEL = 13
# A condition's name beyond this is shortened in the middle.
_NAME = 34
# Controls whose question is the cadence, which takes both arms in full to judge; the others' answers are in a
# sentence.
_SIDE_BY_SIDE = ("in_order", "stagger")
# Disturbed passes that are listed; where nearly all are, a few tell what of.
_DISTURBED = 3


def render_sweep(result: SweepResult) -> list[str]:
    """A whole sweep.

    Args:
        result: The sweep, also an unfinished one.

    Returns:
        Lines without a newline.
    """
    blocks = [_head(result)]
    if result.laws is not None:
        blocks.append(_laws(result.laws))
    blocks.append([line for answer in result.controls for line in _control(answer)])
    pairs = [one for one in result.comparisons if _is_control(one, result) is None]
    blocks.append(_pairs(pairs))
    blocks.append(_passes(result.passes))
    for one in result.comparisons:
        if _is_control(one, result) in _SIDE_BY_SIDE:
            blocks.append(render_comparison(one))
    blocks.append(_disturbed(_all_disturbed(result)))
    blocks.append(_listed("notes", result.notes))
    return [line for block in blocks if block for line in (block if block is blocks[0] else ["", *block])]


def render_comparison(comparison: ArmComparison) -> list[str]:
    """Two arms side by side, what differs, and what became of the cadence."""
    lines = [f"A  {comparison.a.name}", f"B  {comparison.b.name}", ""]
    lines += _side_by_side(comparison)
    lines.append("")
    lines += f.labelled("difference", comparison.difference.statement, indent=_LABEL)
    if comparison.cadence is not None:
        lines += f.labelled("cadence", comparison.cadence.statement, indent=_LABEL)
    for name, arm in (("A", comparison.a), ("B", comparison.b)):
        if arm.cadence is not None and arm.cadence.windows:
            again = comparison.a.cadence is not None and comparison.a.cadence.by_again
            lines += f.labelled(f"windows {name}", _windows(arm.cadence, again), indent=_LABEL)
    lines += _listed("differ", comparison.unlike)
    lines += _listed("notes", comparison.notes)
    return lines


def progress_line(
    *,
    done: int,
    total: int,
    arm: str | None,
    result: PassResult | None,
    elapsed_s: float,
    remaining_s: float,
) -> str:
    """Where a sweep stands, in one line.

    Args:
        done: Passes that have ended.
        total: Passes of the plan.
        arm: The pass's condition; None for the first pass, which learns about the target.
        result: How the pass ended; None while it runs.
        elapsed_s: Time so far.
        remaining_s: Expected time for what is left.
    """
    if arm is None:
        return "first pass: the target as it is, to see what there is to vary"
    left = f"about {clock(remaining_s)} left" if remaining_s >= 1 else "done"
    if result is None:
        return f.shorten(f"{done + 1}/{total}  {arm}  running, {clock(elapsed_s)} so far, {left}", f.WIDTH)
    text = f"{done}/{total}  {arm}  "
    if result.status is PassStatus.DONE:
        wait = "" if result.mean_wait_ns is None else f", mean wait {f.duration(result.mean_wait_ns)}"
        wall = "" if result.wall_s is None else f", {clock(result.wall_s)}"
        text += f"{f.count(result.deliveries, 'delivery')}{wait}{wall}"
    else:
        text += f"{result.status.value}: {result.reason.splitlines()[0]}"
    return f"{text}  ({left})"


def clock(seconds: float) -> str:
    """A time as a person plans with it: ``8 s``, ``3 min 20 s``, ``1 h 5 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 // 60 else "")


def _head(result: SweepResult) -> list[str]:
    ended = sum(one.status is PassStatus.DONE for one in result.passes)
    lines = [result.command or result.target]
    if result.planned:
        lines += f.labelled("", f"{result.loader}; {ended} of {result.planned} passes ended well", indent=0)
    if not result.complete:
        lines += f.labelled("unfinished", result.why_incomplete or "not all passes have ended", indent=_LABEL)
    if result.refused:
        lines += f.labelled("refused", result.refused, indent=_LABEL)
    return lines


def _laws(laws: Laws) -> list[str]:
    lines = f.labelled("gap law", f"{laws.gap.key}. {laws.gap.statement}", indent=_LABEL)
    if laws.gap.alone:
        lines += f.labelled("alone", laws.gap.alone, indent=_LABEL)
    lines += f.labelled("throughput", f"{laws.throughput.key}. {laws.throughput.statement}", indent=_LABEL)
    if laws.throughput.cpu_statement:
        lines += f.labelled("CPU a batch", laws.throughput.cpu_statement, indent=_LABEL)
    lines += ["", *_by_workers(laws)]
    lines += _listed("notes", laws.notes)
    return lines


def _by_workers(laws: Laws) -> list[str]:
    cpu = laws.throughput.busy_cores
    head = ["workers", "median gap", "stall from", "deliveries/s", "CPU a batch"]
    rows = [head + (["busy CPUs"] if cpu else [])]
    for workers in laws.workers:
        gap = laws.gap.median_gap.get(workers)
        threshold = laws.gap.threshold_ns.get(workers)
        pace = laws.throughput.batches_per_s.get(workers)
        work = laws.throughput.cpu_per_batch_ns.get(workers)
        row = [
            str(workers),
            "none" if gap is None else f.digits(gap),
            f.MISSING if threshold is None else f.duration(threshold),
            f.MISSING if pace is None else f.digits(pace),
            f.MISSING if work is None else f.duration(work),
        ]
        if cpu:
            busy = cpu.get(workers)
            row.append(f.MISSING if busy is None else f.digits(busy))
        rows.append(row)
    return f.table(rows, left=0)


def _control(answer: ControlAnswer) -> list[str]:
    lines = f.labelled(answer.control, f"{answer.key}. {answer.statement}", indent=_LABEL)
    if answer.short:
        lines += f.labelled("", answer.short, indent=_LABEL)
    lines += f.labelled("", f"(asked: {answer.reason})", indent=_LABEL)
    return lines


def _pairs(comparisons: Sequence[ArmComparison]) -> list[str]:
    lines: list[str] = []
    for one in comparisons:
        lines += f.labelled("" if lines else "pairs", one.difference.statement, indent=_LABEL)
    return lines


def _passes(passes: Sequence[PassResult]) -> list[str]:
    if not passes:
        return []
    times = f.unit_for([one.mean_wait_ns for one in passes if one.mean_wait_ns is not None], f.TIMES)
    rows = [["pass", "condition", "way", "n", f"wait {times.name}", "cache", "took"]]
    for one in passes:
        rows.append(
            [
                str(one.number),
                f.shorten(one.condition, _NAME),
                one.direction,
                str(one.deliveries - one.warmup if one.status is PassStatus.DONE else one.deliveries),
                f.MISSING if one.mean_wait_ns is None else f.digits(one.mean_wait_ns / times.size),
                one.cache or f.MISSING,
                f.MISSING if one.wall_s is None else clock(one.wall_s),
            ]
        )
    lines = f.table(rows, left=3)
    for one in passes:
        if one.status is not PassStatus.DONE:
            lines += f.labelled(
                f"pass {one.number}", f"{one.status.value}: {_ends(one.reason)}", indent=_LABEL
            )
        lines += _listed(f"pass {one.number}", one.notes)
    return lines


def _ends(reason: str) -> str:
    """A reason's first and last line: what lies between is a traceback, which sweep.json has."""
    full = [line.strip() for line in reason.splitlines() if line.strip()]
    return reason if len(full) < 2 else f"{full[0]} ... {full[-1]}"


def _side_by_side(comparison: ArmComparison) -> list[str]:
    a, b = comparison.a, comparison.b
    waits = [a.mean_wait_ns.value, b.mean_wait_ns.value, a.p95_wait_ns.value, b.p95_wait_ns.value]
    unit = f.unit_for(waits, f.TIMES)

    def time(value: float | None) -> str:
        return f.MISSING if value is None else f.digits(value / unit.size)

    rows = [
        ["", "A", "B"],
        ["passes", str(a.passes), str(b.passes)],
        ["deliveries", str(a.deliveries), str(b.deliveries)],
        [f"mean wait {unit.name}", _estimate(a.mean_wait_ns, unit), _estimate(b.mean_wait_ns, unit)],
        [f"median wait {unit.name}", time(a.median_wait_ns), time(b.median_wait_ns)],
        [f"p95 wait {unit.name}", _estimate(a.p95_wait_ns, unit), _estimate(b.p95_wait_ns, unit)],
        ["deliveries/s", _plain(a.batches_per_s), _plain(b.batches_per_s)],
        [f"stalls (from {f.duration(comparison.threshold_ns)})", _stalls(a), _stalls(b)],
        [f"mean stall {unit.name}", time(a.stall_wait_ns), time(b.stall_wait_ns)],
        ["cadence", _cadence(a), _cadence(b)],
        *_in_phase(comparison.lock),
        ["overtakings", _overtakings(a), _overtakings(b)],
        ["fetch variation", _share(a.fetch_cv), _share(b.fetch_cv)],
    ]
    return f.table(rows)


def _estimate(estimate: Estimate, unit: f.Unit) -> str:
    return f"{f.digits(estimate.value / unit.size)}{f.interval(estimate, unit)}"


def _plain(value: float | None) -> str:
    return f.MISSING if value is None else f.digits(value)


def _share(value: float | None) -> str:
    return f.MISSING if value is None else f.percent(value)


def _stalls(arm: ArmSummary) -> str:
    return f"{arm.stalls} ({f.percent(arm.stall_share)})"


def _cadence(arm: ArmSummary) -> str:
    if arm.cadence is None:
        return "-"
    found = arm.cadence
    share = found.again if found.by_again else found.multiples
    text = "" if share is None else f", {f.percent(share.value)} {'recur' if found.by_again else 'on it'}"
    return f"{found.verdict} at {found.period}{text}"


def _in_phase(lock: PhaseLock | None) -> list[list[str]]:
    if lock is None:
        return []
    shares = (f"{f.percent(share)} of its waiting" for share in (lock.base, lock.changed))
    return [["largest wait of a round", *shares]]


def _overtakings(arm: ArmSummary) -> str:
    if arm.overtaking is None:
        return f.MISSING
    one = arm.overtaking
    return f"{one.passed}" + (f" (by up to {one.displacement_max})" if one.passed else "")


def _windows(cadence: ArmCadence, again: bool) -> str:
    parts = []
    for window in cadence.windows:
        if again:
            share = "no stall" if window.again_share is None else f.percent(window.again_share)
        else:
            share = (
                "no gap" if window.gap_share is None else f"{f.percent(window.gap_share)} of {window.gaps}"
            )
        parts.append(f"{window.start}-{window.stop - 1}: {share}")
    what = f"stalls with another one {cadence.period} later" if again else f"gaps equal to {cadence.period}"
    return f"share of {what}, by delivery: " + "; ".join(parts)


def _all_disturbed(result: SweepResult) -> list[Disturbance]:
    found = {one.number: one for one in result.disturbed}
    told = [result.laws.disturbed] if result.laws is not None else []
    for items in (*told, *(one.disturbed for one in result.comparisons)):
        for item in items:
            found.setdefault(item.number, item)
    return [found[number] for number in sorted(found)]


def _disturbed(disturbed: Sequence[Disturbance]) -> list[str]:
    texts = [f"pass {one.number} ({one.condition}): {one.reason}" for one in disturbed[:_DISTURBED]]
    if len(disturbed) > _DISTURBED:
        more = len(disturbed) - _DISTURBED
        texts.append(f"and {more} more {'pass' if more == 1 else 'passes'}, all in sweep.json")
    return _listed("disturbed", texts)


def _listed(label: str, texts: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for text in texts:
        lines += f.labelled("" if lines else label, text, indent=_LABEL)
    return lines


def _is_control(comparison: ArmComparison, result: SweepResult) -> str | None:
    """Name of the control that arm B is, or None."""
    return next((one.control for one in result.conditions if one.name == comparison.b.name), None)
