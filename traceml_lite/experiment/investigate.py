"""Walk the chain of an investigation: run what ``chain`` proposes within the budget, and keep every step.

Each experiment is a sweep in the investigation's directory, so the same command again goes on where it was
cut off, and every number of the chain can be looked up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from traceml_lite import store
from traceml_lite._errors import TargetError, UsageError
from traceml_lite.diagnose.diagnosis import diagnose
from traceml_lite.diagnose.summary import summarize
from traceml_lite.experiment import chain, readings
from traceml_lite.experiment.analyse import measured_passes
from traceml_lite.experiment.atomic import write_json
from traceml_lite.experiment.fetches import CpuBound, cpu_bound, read_parts
from traceml_lite.experiment.folder import FILES, INVESTIGATION, SweepFolder
from traceml_lite.experiment.layout import plan_sweep
from traceml_lite.experiment.plan import SWEEP_BLOCK, Facts, Request, show_request
from traceml_lite.experiment.runner import Limits, Progress
from traceml_lite.experiment.scout import loader_trace
from traceml_lite.experiment.sweep import run_sweep
from traceml_lite.records.investigation import Investigation, Skipped, Step
from traceml_lite.records.run import Run
from traceml_lite.records.sweep import PassStatus, SweepResult

FIRST = "1-as-it-is"
# Shares of the budget: the first look is short, the sweep may take half of what is left after it, and a
# control whose length is fixed takes what it takes or is left out.
FIRST_SHARE, SWEEP_SHARE = 0.25, 0.5

Say = Callable[[str], None]
Show = Callable[[Progress], None]


@dataclass(slots=True)
class _Walk:
    request: Request
    folder: Path
    budget_s: float | None
    pass_timeout_s: float | None
    say: Say
    show: Show | None
    began_s: float = field(default_factory=time.monotonic)
    steps: list[Step] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def used_s(self) -> float:
        return time.monotonic() - self.began_s

    @property
    def left_s(self) -> float | None:
        return None if self.budget_s is None else self.budget_s - self.used_s

    def add(self, step: Step) -> None:
        self.steps.append(step)
        self.say(f"{step.question} -> {step.answer}")


def investigate(
    request: Request,
    folder: Path,
    *,
    budget_s: float | None = None,
    pass_timeout_s: float | None = None,
    say: Say | None = None,
    progress: Show | None = None,
) -> Investigation:
    """From a target to a verdict with its chain of evidence.

    Args:
        request: The target; its settings and controls are chosen here.
        folder: The investigation's directory.
        budget_s: Time for all of it.
        pass_timeout_s: For one pass.
        say: Gets each question with its answer as it falls.
        progress: Gets the state of the sweep that runs.

    Returns:
        The chain, also one that the budget ended; it stands in ``investigation.json`` too.

    Raises:
        TargetError: The target cannot be run, or its first pass does not end.
    """
    walk = _Walk(request, folder, budget_s, pass_timeout_s, say or (lambda line: None), progress)
    folder.mkdir(parents=True, exist_ok=True)
    known, facts, run = _first(walk)
    ended = ""
    while not ended:
        proposal = chain.next_proposal(known)
        if proposal is None:
            ended = "the verdict stands" if chain.stands(known) else "no further experiment would change it"
            break
        known = _try(walk, known, facts, proposal)
        if walk.left_s is not None and walk.left_s <= 0:
            ended = "the budget ended"
    result = _conclude(walk, known, run, ended)
    write_json(folder / INVESTIGATION, {"version": [1, 0], "result": asdict(result)})
    return result


def _first(walk: _Walk) -> tuple[chain.Known, Facts, Run]:
    """The target as it is, and what its trace alone answers."""
    request = replace(walk.request, settings=(), controls=(), one_direction=True)
    share_s = None if walk.budget_s is None else FIRST_SHARE * walk.budget_s
    result = _sweep(walk, request, FIRST, share_s, None)
    place = SweepFolder(walk.folder / FIRST)
    stored = place.read_plan()
    done = [one for one in result.passes if one.status is PassStatus.DONE]
    if stored is None or not done or done[0].trace is None:
        why = result.passes[0].reason if result.passes else result.why_incomplete
        raise TargetError(f"the first pass of {request.target} did not end well: {why}")
    _, facts, plan = stored
    one = plan.passes[0]
    child = place.child_result(one.number, one.arm)
    assert child is not None
    run = store.load(walk.folder / FIRST / done[0].trace)
    trace = loader_trace(run, child["loaders"][facts.loader])
    run = replace(run, loaders=(trace,))
    summary, diagnosis = summarize(run), diagnose(run)
    for reading in readings.read_first(summary, diagnosis):
        walk.add(_step(reading, "read from the first pass", FIRST))
    known = chain.Known(
        summary=summary,
        diagnosis=diagnosis,
        workers=facts.workers,
        cpus=max(1, int(facts.cpus)),
        iterable=facts.iterable,
    )
    return known, facts, run


def _try(walk: _Walk, known: chain.Known, facts: Facts, proposal: chain.Proposal) -> chain.Known:
    """Run one proposal, or say why not; either way it is not proposed again."""
    known = replace(known, tried=known.tried | {proposal.name})
    for settings in _shorter(proposal.settings):
        request = replace(walk.request, settings=settings, controls=proposal.controls)
        share_s = walk.left_s
        if share_s is not None and proposal.name == "workers":
            share_s *= SWEEP_SHARE
        try:
            plan = plan_sweep(request, facts, budget_s=share_s)
        except UsageError as error:
            walk.skipped.append(Skipped(proposal.name, show_request(request), str(error)))
            return known
        if not plan.passes:
            walk.skipped.append(Skipped(proposal.name, show_request(request), "; ".join(plan.notes)))
            return known
        if share_s is None or plan.expected_s <= share_s:
            break
    else:
        reason = f"it needs about {plan.expected_s / 60:.1f} min, more than is left of the budget"
        walk.skipped.append(Skipped(proposal.name, show_request(request), reason, plan.expected_s))
        walk.say(f"{proposal.question} -> not asked: {reason}")
        return known
    name = f"{len({step.folder for step in walk.steps}) + 1}-{proposal.name}"
    before_s = walk.used_s
    result = _sweep(walk, request, name, share_s if proposal.name == "workers" else walk.left_s, facts)
    took_s = walk.used_s - before_s
    if proposal.name == "workers":
        if result.laws is None:
            return _nothing(walk, known, proposal, result, name, took_s)
        bound = _cpu_bound(SweepFolder(walk.folder / name), known.workers, facts.cpus)
        known = replace(known, laws=result.laws, cpu_bound=bound)
        reading = readings.read_laws(result.laws)
    else:
        answer = next((one for one in result.controls if one.control == proposal.name), None)
        if answer is None:
            return _nothing(walk, known, proposal, result, name, took_s)
        known = replace(known, answers={**known.answers, proposal.name: answer})
        reading = readings.read_control(answer)
    reading = replace(reading, question=proposal.question)
    walk.add(_step(reading, _experiment(result), name, command=result.command, took_s=took_s))
    if proposal.name == "workers" and known.cpu_bound is not None:
        walk.add(_step(readings.read_fetches(known.cpu_bound), "read from the passes of the sweep", name))
    return known


def _step(
    reading: readings.Reading, experiment: str, folder: str, *, command: str = "", took_s: float = 0.0
) -> Step:
    return Step(
        question=reading.question,
        experiment=experiment,
        answer=reading.answer,
        evidence=reading.evidence,
        falsified=reading.falsified,
        folder=folder,
        command=command,
        took_s=took_s,
    )


def _cpu_bound(folder: SweepFolder, workers: int, cpus: float) -> CpuBound | None:
    """None also where the target itself has a CPU for every worker: then its delay is not theirs."""
    if workers <= cpus:
        return None
    return cpu_bound(read_parts(measured_passes(folder, block=SWEEP_BLOCK)), cpus)


def _nothing(
    walk: _Walk,
    known: chain.Known,
    proposal: chain.Proposal,
    result: SweepResult,
    name: str,
    took_s: float,
) -> chain.Known:
    why = result.refused or result.why_incomplete or "too few of its passes ended well"
    walk.add(
        Step(
            question=proposal.question,
            experiment=_experiment(result),
            answer="no answer",
            evidence=(why,),
            folder=name,
            command=result.command,
            took_s=took_s,
        )
    )
    return known


def _shorter(settings: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The settings, and cheaper ones for a small budget: without 0, then without 1 worker."""
    found = [settings]
    if settings and settings[0].startswith("num_workers="):
        counts = settings[0].partition("=")[2].split(",")
        for left_out in ("0", "1"):
            if left_out in counts and len(counts) > 2:
                counts = [count for count in counts if count != left_out]
                found.append((f"num_workers={','.join(counts)}", *settings[1:]))
    return found


def _sweep(
    walk: _Walk, request: Request, name: str, budget_s: float | None, facts: Facts | None
) -> SweepResult:
    place = walk.folder / name
    if facts is not None and not (place / FILES).exists():
        # What the first pass saw being read holds for the others.
        files = SweepFolder(walk.folder / FIRST).read_files()
        place.mkdir(parents=True, exist_ok=True)
        SweepFolder(place).write_files(files)
    limits = Limits(budget_s if budget_s is None else max(1.0, budget_s), walk.pass_timeout_s)
    return run_sweep(request, place, limits, progress=walk.show, facts=facts)


def _experiment(result: SweepResult) -> str:
    done = [one for one in result.passes if one.status is PassStatus.DONE]
    counts = sorted({one.deliveries for one in done})
    spread = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0]) if counts else "no"
    return f"{len(done)} passes of {spread} deliveries"


def _conclude(walk: _Walk, known: chain.Known, run: Run, ended: str) -> Investigation:
    shape, cost = chain.verdict_shape(known), chain.verdict_cost(known)
    command, reason = _next(known, walk)
    return Investigation(
        target=walk.request.target,
        steps=tuple(walk.steps),
        shape=shape,
        cost=cost,
        stands=chain.stands(known),
        ended=ended,
        falsified=tuple(dict.fromkeys(text for step in walk.steps for text in step.falsified)),
        skipped=tuple(walk.skipped),
        next_command=command,
        next_reason=reason,
        used_s=walk.used_s,
        budget_s=walk.budget_s,
        environment={
            "host": run.environment.host,
            "python": run.environment.python,
            "torch": run.environment.torch,
            "cpus": f"{run.environment.cpus_usable:g}" if run.environment.cpus_usable else "unknown",
            **dict(run.environment.versions),
        },
    )


def _next(known: chain.Known, walk: _Walk) -> tuple[str, str]:
    if walk.skipped:
        first = walk.skipped[0]
        if first.needs_s is not None:
            return first.command, "what the budget did not hold"
    verdict = chain.verdict_cost(known)
    cost = verdict.key
    if cost == "cpu":
        return (
            "traceml-lite explain cpu",
            "profile one fetch at num_workers=0: the CPU time of a batch must fall, more workers cannot help",
        )
    if cost == "inconclusive":
        proposed = known.diagnosis.next_experiment
        # A sweep over workers has been made already, and its answer is in the verdict.
        if proposed is not None and not ("workers" in known.tried and "num_workers=" in proposed.command):
            return proposed.command, proposed.reason
        if verdict.candidates:
            cost = verdict.candidates[0]
        else:
            return (
                "traceml-lite explain remote",
                "a fetch is blocked, and by no lock: a sleep or a remote service; time its parts",
            )
    return f"traceml-lite explain {cost}", f"what {cost} is mistaken for, and its cure"
