"""The chain of an investigation: given what is known, the next question and the experiment that answers it.

Pure. It follows the order in which one does it by hand: is the loop waiting at all; is every wait alike or
do a few carry it all; are those at random or structured; vary one cheap parameter; read the law; then the
control that tells the law's two or three mechanisms apart. The cheapest experiment that can change the answer
comes first, and what an answer rules out is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from traceml_lite.experiment.fetches import CpuBound
from traceml_lite.experiment.readings import SHAPES_OF_LAW, STEP_COSTS, cpu_words, step_bound
from traceml_lite.records.results import Diagnosis, Verdict
from traceml_lite.records.summary import Summary
from traceml_lite.records.sweep import ControlAnswer, Laws

# What a shape would be mistaken for, and the control that tells.
CONTROLS_OF_SHAPE: Mapping[str, tuple[str, ...]] = {
    "saturated_pool": ("in_order", "stagger"),
    "slow_worker": ("in_order",),
    "slow_sample": ("repeat",),
    "drift": ("repeat",),
    "epoch_boundary": ("persistent",),
    "start_up": ("persistent",),
    "none": ("ceiling",),
    "inconclusive": ("in_order",),
}
CONTROLS_OF_COST: Mapping[str, tuple[str, ...]] = {
    "storage": ("repeat",),
    "remote": ("repeat",),
    "threads": ("threads",),
    "pin": ("pin",),
    "neighbours": ("trivial",),
    "step_starved": ("ceiling",),
    "consumer": ("ceiling",),
    "launch_bound": ("ceiling",),
}
# A shape for which the number of workers can change nothing that one does not know already.
_NOT_SWEPT = ("none", "epoch_boundary", "start_up")
# A ceiling this little above the pace leaves the loader nothing to give ...
CEILING_NEAR = 1.15
# ... and a step this much longer beside the workers than without them is starved by them.
STARVED_RATIO = 1.4
# Costs between which a run with more workers than CPUs cannot tell.
CROWDED = frozenset({"cpu", "run_queue", "neighbours"})
# A verdict needs no further control from this confidence on, once an experiment has confirmed it.
SURE = 0.9


@dataclass(frozen=True, slots=True)
class Known:
    """What the chain knows so far."""

    summary: Summary
    diagnosis: Diagnosis
    workers: int
    """Of the loader as the target makes it."""
    cpus: int
    iterable: bool = False
    laws: Laws | None = None
    cpu_bound: CpuBound | None = None
    """What the passes of the sweep show of a fetch, where it is CPU time at every number of workers."""
    answers: Mapping[str, ControlAnswer] = field(default_factory=dict)
    tried: frozenset[str] = frozenset()
    """Experiments that were run or skipped: ``"workers"`` and names of controls."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """An experiment to run next."""

    name: str
    """``"workers"`` or the name of a control."""
    question: str
    settings: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()


def next_proposal(known: Known) -> Proposal | None:
    """The next experiment, or None when the verdict stands or nothing is left that could change it."""
    cost = verdict_cost(known)
    settled = stands(known) and (cost.confidence >= SURE or cost.key == "inconclusive")
    if settled:
        return None
    swept = known.diagnosis.shape.key not in _NOT_SWEPT and not step_bound(known.diagnosis)
    if swept and "workers" not in known.tried:
        counts = worker_counts(known.workers, known.cpus)
        return Proposal(
            "workers",
            "vary one cheap parameter: how do stalls and pace move with num_workers?",
            (f"num_workers={','.join(map(str, counts))}",),
        )
    for name in _controls(known):
        if name not in known.tried:
            if stands(known) and name not in CONTROLS_OF_COST.get(known.diagnosis.cost.key, ()):
                continue
            workers = (
                () if known.workers >= 2 or name in ("ceiling", "repeat", "trivial") else ("num_workers=4",)
            )
            return Proposal(name, _QUESTIONS[name], workers, (name,))
    return None


def worker_counts(workers: int, cpus: int) -> tuple[int, ...]:
    """Numbers of workers to sweep: none, one, the CPUs, and as the target has it; at most four.

    Two counts of two or more are what tells laws apart; none and one carry no cadence but give the pace.
    """
    most = max(workers, 4 if workers < 2 else workers)
    counts = {1, 2, most}
    if most > 4:
        counts.add(max(2, min(cpus, most // 2)))
    else:
        counts.add(0)
    return tuple(sorted(counts))


def _controls(known: Known) -> list[str]:
    shape, cost = verdict_shape(known).key, verdict_cost(known).key
    if step_bound(known.diagnosis):
        return ["ceiling"]
    wanted = [*CONTROLS_OF_SHAPE.get(shape, ()), *CONTROLS_OF_COST.get(cost, ())]
    if known.iterable:
        wanted = [name for name in wanted if name not in ("repeat", "in_order")]
    return list(dict.fromkeys(wanted))


_QUESTIONS: Mapping[str, str] = {
    "in_order": "does ordered delivery make the stalls?",
    "stagger": "do the stalls come from workers that run in phase?",
    "ceiling": "what is there to win, and does the step itself suffer from the workers?",
    "repeat": "do the same batches stall again, and does memory of them help?",
    "trivial": "is the host slow even without the data?",
    "threads": "do helper threads fight for the CPUs?",
    "persistent": "is it the workers' start?",
    "pin": "does pinning hold batches back?",
}


def verdict_shape(known: Known) -> Verdict:
    """The shape in the light of the experiments: they overrule what a single run can only suspect."""
    shape = known.diagnosis.shape
    ceiling = known.answers.get("ceiling")
    if ceiling is not None and shape.key in ("none", "inconclusive"):
        near = ceiling.numbers.get("gain", float("inf")) < CEILING_NEAR
        if near or ceiling.numbers.get("step_ratio", 0.0) >= STARVED_RATIO:
            return Verdict("none", max(SURE, shape.confidence), ceiling.statement)
    order, stagger = known.answers.get("in_order"), known.answers.get("stagger")
    law = known.laws.gap.key if known.laws is not None else None
    if order is not None and order.key == "stalls_fall_away" and law in (None, "proportional"):
        return Verdict("slow_worker", max(SURE, shape.confidence), order.statement)
    pool = (order is not None and order.key in ("cadence_stays", "cadence_gone", "stalls_stay")) or (
        stagger is not None and stagger.key == "cadence_gone"
    )
    if pool and law in (None, "proportional", "undecided"):
        told = stagger if stagger is not None and stagger.key == "cadence_gone" else order
        assert told is not None
        return Verdict("saturated_pool", max(SURE, shape.confidence), told.statement)
    if (
        known.laws is not None
        and law is not None
        and law in SHAPES_OF_LAW
        and shape.key not in SHAPES_OF_LAW[law]
    ):
        shapes = SHAPES_OF_LAW[law]
        if law == "none":
            # No gap law leaves shapes open that the single run has judged; it stays with its own word.
            return shape
        if len(shapes) == 1:
            return Verdict(shapes[0], SURE, known.laws.gap.statement, (shapes[0], shape.key))
        return Verdict("inconclusive", shape.confidence, known.laws.gap.statement, shapes)
    return shape


def verdict_cost(known: Known) -> Verdict:
    """The cost in the light of the sweep: a lock makes more workers useless, a sleep does not.

    A run with more workers than CPUs has a delay that hides what its fetches are made of; passes with fewer
    workers show it.
    """
    cost = known.diagnosis.cost
    open_costs = {cost.key, *cost.candidates} - {"inconclusive"}
    if known.cpu_bound is not None and open_costs and open_costs <= CROWDED:
        return Verdict("cpu", max(SURE, cost.confidence), cpu_words(known.cpu_bound))
    ceiling = known.answers.get("ceiling")
    if ceiling is not None and cost.key in (*STEP_COSTS, "inconclusive"):
        if ceiling.numbers.get("step_ratio", 0.0) >= STARVED_RATIO:
            return Verdict("step_starved", max(SURE, cost.confidence), ceiling.statement)
        if ceiling.numbers.get("gain", float("inf")) < CEILING_NEAR:
            return Verdict("consumer", max(SURE, cost.confidence), ceiling.statement)
    if known.laws is None or cost.key != "inconclusive":
        return cost
    pace = known.laws.throughput
    if pace.key == "flat_lock" and "lock" in cost.candidates:
        return Verdict("lock", SURE, pace.statement)
    if pace.key == "grows" and "lock" in cost.candidates:
        # What is left may also be a plain sleep, which the catalogue has no name for.
        left = tuple(key for key in cost.candidates if key != "lock")
        statement = f"{cost.statement} It is no lock: {pace.statement}"
        return Verdict("inconclusive", cost.confidence, statement, left)
    return cost


def confirmed_by(known: Known) -> list[str]:
    """Experiments that confirm the shape: none of them is the run that suggested it."""
    key = verdict_shape(known).key
    found = []
    if known.laws is not None and key in SHAPES_OF_LAW.get(known.laws.gap.key, ()):
        found.append("the sweep over num_workers")
    expected = {
        ("in_order", "stalls_fall_away"): ("slow_worker", "slow_sample"),
        ("in_order", "cadence_stays"): ("saturated_pool",),
        ("in_order", "cadence_gone"): ("saturated_pool",),
        ("in_order", "stalls_stay"): ("saturated_pool",),
        ("stagger", "cadence_gone"): ("saturated_pool",),
        ("repeat", "same_ranks"): ("slow_sample", "data_period"),
        ("repeat", "other_ranks"): ("slow_sample",),
        ("persistent", "faster"): ("epoch_boundary", "start_up"),
        ("ceiling", "ceiling"): ("none",),
    }
    for name, answer in known.answers.items():
        if key in expected.get((name, answer.key), ()):
            found.append(f"the {name} control")
        elif (name, answer.key, key) == ("in_order", "wait_stays", "saturated_pool") and found:
            # With the law of the gap it leaves the pool: one slow worker's wait would not stay.
            found.append("the in_order control")
    return found


def stands(known: Known) -> bool:
    """Whether the shape is named, confirmed by an experiment of its own, and its rivals are told apart."""
    key = verdict_shape(known).key
    if key == "inconclusive":
        return False
    confirmed = confirmed_by(known)
    if key in ("saturated_pool", "slow_worker"):
        # The law of the gap is the same for both; only a control tells them apart from outside.
        return any("control" in text for text in confirmed)
    return bool(confirmed)
