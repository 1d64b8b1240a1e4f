"""Costs on the consumer's side: the loader is not the cause, or harms the step without any wait."""

from __future__ import annotations

from traceml_lite.diagnose.costs.contention import Starved, consumer_cores, starved_consumer
from traceml_lite.diagnose.costs.evidence import cost_evidence, loader_matters
from traceml_lite.diagnose.costs.facts import CostFacts
from traceml_lite.diagnose.words import counted, digits, percent
from traceml_lite.records.results import Evidence, State

# A loop that stands in the run queue for a seventh of its time could be a sixth faster. Wake-ups on a
# quiet machine cost a percent or two.
STARVED_MIN = 0.15
# CPUs in use above which the step may be short of one although nobody measured its run-queue delay.
FULL_SHARE = 0.8


def consumer(facts: CostFacts) -> Evidence:
    """The loop hardly waits: what is slow, if anything, is the step."""
    steps = facts.steps
    if steps.step_ns is None:
        return cost_evidence("consumer", 0.0, missing=("the consumer's steps",))
    share = steps.wait_share
    starved = starved_consumer(facts)
    free = 1.0 if starved is None else 1.0 - starved.own_workers - starved.others
    score = 0.0 if loader_matters(facts) else (1.0 - share) * free
    words = f"the loop waits {percent(share)} of its time and is in its own step for the rest"
    return cost_evidence(
        "consumer",
        score,
        supports=(words,),
        contradicts=(f"the loop waits {percent(share)} of its time for batches",) if score == 0 else (),
        missing=() if starved is not None else ("run-queue delay of the step",),
        numbers={"wait_share": share},
        state=State.SUPPORTED if score >= 0.5 else None,
    )


def step_starved(facts: CostFacts) -> Evidence:
    """The loader's workers take the CPUs that the step needs."""
    steps, starved = facts.steps, starved_consumer(facts)
    if facts.workers == 0 and facts.config.num_workers is not None:
        return cost_evidence("step_starved", 0.0, contradicts=("there are no workers",))
    if starved is None or facts.pool_cores is None:
        missing = "run-queue delay of the step" if starved is None else "CPU time of the workers"
        return cost_evidence("step_starved", 0.0, missing=(missing,))
    share = starved.own_workers
    supports = [
        f"the step is ready to run but has no CPU for {percent(steps.starved_share_or_zero)} of its time",
        _who(facts),
    ]
    against: list[str] = []
    if steps.slowdown is not None:
        words = f"steps take {digits(steps.slowdown)} times as long while workers are busy as while idle"
        (supports if steps.slowdown > 1.1 else against).append(words)
    if share < STARVED_MIN:
        against.append(supports[0])
    return cost_evidence(
        "step_starved",
        share,
        supports=tuple(supports),
        contradicts=tuple(against),
        missing=() if starved.others_known else ("who else used the CPUs",),
        numbers={"step_run_queue_share": steps.starved_share_or_zero, "by_workers_share": share},
        state=_starved_state(starved, share),
    )


def _starved_state(starved: Starved, share: float) -> State:
    if share >= STARVED_MIN:
        return State.SUPPORTED if starved.others_known else State.UNDECIDED
    return State.UNDECIDED if share >= 0.5 * STARVED_MIN else State.RULED_OUT


def _who(facts: CostFacts) -> str:
    cpus = "CPUs" if facts.cpus is None else f"of {counted(facts.cpus, 'CPU')}"
    return (
        f"{counted(facts.workers, 'worker')} used {digits(facts.pool_cores or 0.0)} {cpus}, the loop's "
        f"thread {digits(consumer_cores(facts))}"
    )


def launch_bound(facts: CostFacts) -> Evidence:
    """The GPU waits for the CPU to launch its kernels. Needs facts of the GPU, which no trace here has."""
    if loader_matters(facts):
        words = f"the loop waits {percent(facts.steps.wait_share)} of its time for batches"
        return cost_evidence("launch_bound", 0.0, contradicts=(words,))
    return cost_evidence("launch_bound", 0.0, missing=("how long the GPU was busy within a step",))


def cpus_full(facts: CostFacts) -> bool:
    """True when the job uses most of its CPUs, so that the step may be short of one unseen."""
    if facts.pool_cores is None or facts.cpus is None:
        return False
    return facts.pool_cores + consumer_cores(facts) >= FULL_SHARE * facts.cpus
