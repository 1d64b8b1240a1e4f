"""From a sweep's directory to its conclusions: check the index streams, then laws, comparisons, controls.

Reads traces and calls ``diagnose``; measures nothing. It can be run again at any time on the same directory.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from traceml_lite import store
from traceml_lite._errors import ComparisonError, TraceFormatError, TracemlLiteError
from traceml_lite.diagnose.arms import disturbances
from traceml_lite.diagnose.compare import compare_arms
from traceml_lite.diagnose.laws import sweep_laws
from traceml_lite.experiment.evidence import answer_control
from traceml_lite.experiment.folder import SweepFolder
from traceml_lite.experiment.plan import (
    CONTROL_BLOCK,
    SWEEP_BLOCK,
    Facts,
    Plan,
    PlannedPass,
    Request,
    beside,
    show_request,
)
from traceml_lite.experiment.scout import loader_trace
from traceml_lite.experiment.streams import Stream, StreamCheck, check_streams
from traceml_lite.records.sweep import (
    ArmComparison,
    Condition,
    ControlAnswer,
    MeasuredPass,
    PassResult,
    PassStatus,
    SweepResult,
)


@dataclass(frozen=True, slots=True)
class _Ended:
    """A pass that ended well, as planned and as measured."""

    planned: PlannedPass
    measured: MeasuredPass


def analyse(folder: SweepFolder, *, allow_different: bool = False, why_incomplete: str = "") -> SweepResult:
    """Conclude from what stands on disk.

    Args:
        folder: The sweep's directory.
        allow_different: Compare arms that saw other indices, and name the difference.
        why_incomplete: Why not all passes ran, if so.

    Raises:
        TraceFormatError: There is no plan in it.
    """
    stored = folder.read_plan()
    if stored is None:
        raise TraceFormatError(f"{folder.path}: no plan.json; the sweep's first pass has not ended")
    request, facts, plan = stored
    results = {one.number: folder.read_result(one) for one in plan.passes}
    conditions = _conditions(plan)
    notes = list(plan.notes)
    ended = _load(folder, facts, plan, results, conditions, notes)
    check = _check_streams(folder, ended)
    results = {
        number: replace(result, indices_hash=check.hashes.get(number)) if result is not None else None
        for number, result in results.items()
    }
    refused, unlike = _refusal(check, ended, facts, len(plan.passes), allow_different, notes)
    laws = None
    comparisons: list[ArmComparison] = []
    answers: list[ControlAnswer] = []
    if not refused:
        swept = [one.measured for one in ended if one.planned.block == SWEEP_BLOCK]
        if len({one.run.main.config.num_workers for one in swept}) > 1:
            laws = sweep_laws(swept)
        comparisons, answers = _compare(plan, ended, unlike, notes)
    first = ended[0].measured.run.environment if ended else None
    return SweepResult(
        target=request.target,
        conditions=tuple(conditions.values()),
        passes=tuple(result for _, result in sorted(results.items()) if result is not None),
        laws=laws,
        comparisons=tuple(comparisons),
        notes=tuple(dict.fromkeys(notes)),
        controls=tuple(answers),
        loader=f"{facts.loader_type.split('.')[-1]} of {facts.dataset.split('.')[-1]}",
        command=show_request(request),
        environment=_environment(first, facts, request),
        complete=not why_incomplete and all(r is not None for r in results.values()),
        why_incomplete=why_incomplete,
        refused=refused,
        planned=len(plan.passes),
        disturbed=disturbances([one.measured for one in ended]),
    )


def measured_passes(folder: SweepFolder, *, block: str) -> list[MeasuredPass]:
    """The passes of one block that ended well, with their traces.

    Raises:
        TraceFormatError: There is no plan in the directory.
    """
    stored = folder.read_plan()
    if stored is None:
        raise TraceFormatError(f"{folder.path}: no plan.json; the sweep's first pass has not ended")
    _, facts, plan = stored
    results = {one.number: folder.read_result(one) for one in plan.passes}
    ended = _load(folder, facts, plan, results, _conditions(plan), [])
    return [one.measured for one in ended if one.planned.block == block]


def first_stream(folder: SweepFolder) -> Stream | None:
    """The index stream of the first pass that ended well and has one."""
    stored = folder.read_plan()
    for one in stored[2].passes if stored is not None else ():
        result = folder.read_result(one)
        if result is not None and result.status is PassStatus.DONE and one.repeat_after is None:
            rows = folder.indices(one)
            if rows is not None and len(rows):
                return rows
    return None


def _conditions(plan: Plan) -> dict[str, Condition]:
    found: dict[str, Condition] = {}
    for one in plan.passes:
        setting = one.condition
        options: dict[str, Any] = dict(setting.options)
        options |= {f"arg.{name}": value for name, value in setting.arguments.items()}
        options |= {f"env.{name}": value for name, value in setting.environment.items()}
        found.setdefault(one.arm, Condition(one.arm, options, one.control))
    return found


def _load(
    folder: SweepFolder,
    facts: Facts,
    plan: Plan,
    results: Mapping[int, PassResult | None],
    conditions: Mapping[str, Condition],
    notes: list[str],
) -> list[_Ended]:
    ended = []
    for one in plan.passes:
        result = results[one.number]
        if result is None or result.status is not PassStatus.DONE:
            continue
        place, child = folder.trace(result), folder.child_result(one.number, one.arm)
        if place is None or child is None:
            continue
        try:
            run = store.load(place)
            main = loader_trace(run, child["loaders"][facts.loader])
        except TracemlLiteError as error:
            notes.append(f"pass {one.number} ({one.arm}) is left out: {error}")
            continue
        ended.append(_Ended(one, MeasuredPass(conditions[one.arm], result, replace(run, loaders=(main,)))))
    return ended


def _check_streams(folder: SweepFolder, ended: Sequence[_Ended]) -> StreamCheck:
    streams = {}
    until = {}
    for one in ended:
        rows = folder.indices(one.planned)
        # Indices are drawn ahead of the deliveries: a pass that delivered nothing saw none of them.
        if rows is not None and len(rows) and one.measured.result.deliveries:
            streams[one.planned.number] = rows
            if one.planned.repeat_after is not None:
                until[one.planned.number] = one.planned.repeat_after
    return check_streams(streams, until=until)


def _refusal(
    check: StreamCheck,
    ended: Sequence[_Ended],
    facts: Facts,
    planned: int,
    allow_different: bool,
    notes: list[str],
) -> tuple[str, tuple[str, ...]]:
    """Why arms are not compared, and what is named where that is allowed."""
    if check.same is None:
        if len(ended) > 1:
            why = "an iterable dataset has none" if facts.iterable else "no two passes have comparable ones"
            notes.append(f"that the arms saw the same indices was not checked: {why}")
        return "", ()
    if check.same:
        compared = len(check.hashes)
        who = "all passes" if compared == planned else f"the {compared} passes that delivered"
        notes.append(f"{who} saw the same indices in the same order ({check.samples} samples compared)")
        return "", ()
    arms = sorted({one.planned.arm for one in ended if one.planned.number in check.differing})
    text = f"the passes of {', '.join(arms)} saw other indices than those of {ended[0].planned.arm}"
    if allow_different:
        return "", (text,)
    return (
        f"{text}, so arms are not compared: the difference could be the data's. If the script draws its "
        "order from what it does not seed, seed it; to compare all the same: --allow-different",
        (),
    )


def _compare(
    plan: Plan, ended: Sequence[_Ended], unlike: tuple[str, ...], notes: list[str]
) -> tuple[list[ArmComparison], list[ControlAnswer]]:
    comparisons: list[ArmComparison] = []
    answers: list[ControlAnswer] = []
    for block in dict.fromkeys(one.block for one in plan.passes):
        arms = list(dict.fromkeys(one.arm for one in plan.passes if one.block == block))
        of_arm = {
            arm: [one for one in ended if one.planned.block == block and one.planned.arm == arm]
            for arm in arms
        }
        if block == SWEEP_BLOCK:
            ordered = [arm for arm in _given_order(plan, block) if of_arm[arm]]
            for a, b in itertools.pairwise(ordered):
                neighbours = _pair(of_arm[a], of_arm[b], unlike, notes)
                comparisons += [neighbours] if neighbours is not None else []
            continue
        for arm in arms:
            control = next(one.control for one in plan.passes if one.arm == arm and one.block == block)
            if control is None or not of_arm[arm]:
                continue
            base = of_arm[_base_arm(arms, control, block)]
            comparison = None
            if base and control not in ("ceiling", "repeat"):
                comparison = _pair(base, of_arm[arm], unlike, notes)
                comparisons += [comparison] if comparison is not None else []
            answers.append(
                answer_control(
                    control, [one.measured for one in base], [one.measured for one in of_arm[arm]], comparison
                )
            )
    return comparisons, answers


def _pair(
    a: Sequence[_Ended], b: Sequence[_Ended], unlike: tuple[str, ...], notes: list[str]
) -> ArmComparison | None:
    """Two arms of this sweep; None, with a note, where one has nothing to compare."""
    try:
        comparison = compare_arms(
            [one.measured for one in a], [one.measured for one in b], allow_different=bool(unlike)
        )
    except ComparisonError as error:
        notes.append(f"{a[0].planned.arm} and {b[0].planned.arm} are not compared: {error}")
        return None
    return replace(comparison, unlike=(*comparison.unlike, *unlike)) if unlike else comparison


def _base_arm(arms: Sequence[str], control: str, block: str) -> str:
    """The arm that is run for this control to be compared with."""
    what = block if block != CONTROL_BLOCK else control if control == "persistent" else "controls"
    return next((one for one in arms if one.endswith(beside(what))), arms[0])


def _given_order(plan: Plan, block: str) -> list[str]:
    """Arms of a block in the order in which they were given."""
    forward = [one.arm for one in plan.passes if one.block == block and one.forward]
    return list(dict.fromkeys(forward or [one.arm for one in plan.passes if one.block == block][::-1]))


def _environment(environment: Any, facts: Facts, request: Request) -> dict[str, Any]:
    """What two sweeps must have in common to be compared."""
    found: dict[str, Any] = {
        "dataset": facts.dataset,
        "batch_size": facts.options.get("batch_size"),
        "seed": request.seed,
        "cpus": facts.cpus,
    }
    if environment is not None:
        found |= {
            "host": environment.host,
            "torch": environment.torch,
            "python": environment.python,
            "versions": dict(environment.versions),
        }
    return found
