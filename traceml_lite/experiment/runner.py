"""Run a plan: every pass in a fresh process, in order, with a budget, a time limit, and resumption.

Starts and ends processes and writes the sweep's directory. It concludes nothing: `analyse` does that from
what stands on disk, so an interrupted sweep has the conclusions of what it finished.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from traceml_lite.experiment.folder import SweepFolder
from traceml_lite.experiment.installed import installed_options
from traceml_lite.experiment.layout import plan_sweep
from traceml_lite.experiment.one_pass import run_one, scout
from traceml_lite.experiment.plan import Facts, Plan, PlannedPass, Request
from traceml_lite.experiment.settings import check_known, parse_settings
from traceml_lite.records.sweep import PassResult, PassStatus

# A pass that takes five times what was expected of it, and two minutes at least, hangs: the estimate is from
# the same target minutes before, and hosts were seen to differ by two.
TIMEOUT_FACTOR, TIMEOUT_MIN_S = 5.0, 120.0
SCOUT_TIMEOUT_S = 600.0
# Statuses of a pass that the same command does not run again.
_FINAL = (PassStatus.DONE, PassStatus.TIMEOUT)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a sweep stands; given to the caller after each pass and now and then within one."""

    done: int
    """Passes that have ended, earlier runs of the same command included."""
    total: int
    planned: PlannedPass | None
    """The pass that this is about; None for the first pass, which learns about the target."""
    result: PassResult | None
    """How it ended; None while it runs."""
    elapsed_s: float
    remaining_s: float
    """Expected time for the passes that are left, from the pace of those that ended."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take."""

    budget_s: float | None = None
    """For this call; a pass that would not fit is not begun."""
    pass_timeout_s: float | None = None
    """For one pass; None takes five times what is expected of it, at least two minutes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call of the runner came to."""

    plan: Plan
    facts: Facts
    complete: bool
    why_not: str = ""


def ensure_plan(
    request: Request,
    folder: SweepFolder,
    limits: Limits,
    report: Callable[[Progress], None] | None = None,
    *,
    facts: Facts | None = None,
) -> tuple[Facts, Plan]:
    """The stored plan of this request, or a new one after a short first pass of the target.

    Args:
        request: What is asked for.
        folder: Of the sweep.
        limits: Budget and time limit.
        report: Told that the first pass begins.
        facts: Of an earlier first pass of the same target; then none is run.

    Raises:
        UsageError: The directory holds another sweep, or the request cannot be carried out.
        TargetError: The first pass failed.
    """
    stored = folder.read_plan(request)
    if stored is not None:
        return stored[1], stored[2]
    if facts is not None:
        plan = plan_sweep(request, facts, budget_s=limits.budget_s)
        folder.write_plan(request, facts, plan)
        return facts, plan
    known = installed_options()
    if known is not None:
        check_known(parse_settings(request.settings), known)
    began_s = time.monotonic()
    if report is not None:
        report(Progress(0, 0, None, None, 0.0, 0.0))
    facts = scout(request, folder, limits.pass_timeout_s or SCOUT_TIMEOUT_S)
    left_s = None if limits.budget_s is None else limits.budget_s - (time.monotonic() - began_s)
    plan = plan_sweep(request, facts, budget_s=left_s)
    folder.write_plan(request, facts, plan)
    return facts, plan


def run_plan(
    request: Request,
    facts: Facts,
    plan: Plan,
    folder: SweepFolder,
    limits: Limits,
    report: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Run the passes that have not ended yet.

    Args:
        request: What was asked for.
        facts: Of the first pass.
        plan: What to run.
        folder: Where to.
        limits: Budget and time limit.
        report: Called after each pass and about twice a second within one.

    Returns:
        Whether all passes have ended, and why not. On KeyboardInterrupt the running pass is ended and its
        trace kept, and the interrupt goes on.
    """
    began_s = time.monotonic()
    results = {one.number: folder.read_result(one) for one in plan.passes}
    for one in plan.passes:
        before = results[one.number]
        if before is not None and before.status in _FINAL:
            continue
        elapsed_s = time.monotonic() - began_s
        expected_s = _expected_s(one, plan, results)
        if limits.budget_s is not None and elapsed_s + expected_s > limits.budget_s:
            done = _ended(results)
            why = (
                f"the budget of {limits.budget_s:.0f} s would not hold the next pass (about "
                f"{expected_s:.0f} s); {done} of {len(plan.passes)} passes have ended. The same command "
                "goes on from here"
            )
            return Outcome(plan, facts, False, why)

        def tick(session: int, now_s: float, one: PlannedPass = one) -> None:
            if report is not None:
                report(_progress(plan, one, results, began_s, None))

        timeout_s = limits.pass_timeout_s or max(TIMEOUT_MIN_S, TIMEOUT_FACTOR * expected_s)
        left_s = None if limits.budget_s is None else max(1.0, limits.budget_s - elapsed_s)
        result = run_one(
            request,
            facts,
            plan,
            one,
            folder,
            results=results,
            timeout_s=timeout_s if left_s is None else min(timeout_s, left_s),
            tick=tick,
        )
        if result.status is PassStatus.TIMEOUT and left_s is not None and left_s < timeout_s:
            result = replace(result, status=PassStatus.INTERRUPTED, reason="the budget ended within the pass")
            folder.write_result(one, result)
        results[one.number] = result
        if report is not None:
            report(_progress(plan, one, results, began_s, result))
    bad = [result for result in results.values() if result is None or result.status is not PassStatus.DONE]
    why = "" if not bad else f"{len(bad)} of {len(plan.passes)} passes did not end well"
    return Outcome(plan, facts, not bad, why)


def _ended(results: Mapping[int, PassResult | None]) -> int:
    return sum(1 for result in results.values() if result is not None and result.status in _FINAL)


def _expected_s(one: PlannedPass, plan: Plan, results: Mapping[int, PassResult | None]) -> float:
    """Expected time of a pass: that of the same arm if one has ended, else the plan's, corrected by pace."""
    same, measured, planned = [], 0.0, 0.0
    for other in plan.passes:
        result = results[other.number]
        if result is None or result.status is not PassStatus.DONE or result.wall_s is None:
            continue
        measured, planned = measured + result.wall_s, planned + other.expected_s
        if (other.arm, other.block) == (one.arm, one.block):
            same.append(result.wall_s)
    if same:
        return max(same)
    return one.expected_s * (measured / planned if planned else 1.0)


def _progress(
    plan: Plan,
    one: PlannedPass,
    results: Mapping[int, PassResult | None],
    began_s: float,
    result: PassResult | None,
) -> Progress:
    left = [
        _expected_s(other, plan, results)
        for other in plan.passes
        if (known := results[other.number]) is None or known.status not in _FINAL
    ]
    return Progress(
        _ended(results), len(plan.passes), one, result, time.monotonic() - began_s, float(sum(left))
    )
