"""The chain of an investigation: given what is known, the next question and the experiment that answers it.

Pure. It follows the order in which one does it by hand: is the loop waiting at all; is every wait alike or
do a few carry it all; are those at random or structured; vary one cheap parameter; read the law; then the
control that tells the law's two or three mechanisms apart. The cheapest experiment that can change the answer
comes first, and what an answer rules out is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from traceml_lite.diagnose.words import duration
from traceml_lite.records.results import Diagnosis, Estimate, Verdict
from traceml_lite.records.summary import Contrast, Measured, NotMeasured, Summary, Workers
from traceml_lite.records.sweep import ControlAnswer, Laws

# Shapes that a law of the gap can follow from. A law that names one of these confirms it.
SHAPES_OF_LAW: Mapping[str, tuple[str, ...]] = {
    "proportional": ("saturated_pool", "slow_worker"),
    "multiple": ("worker_period",),
    "constant_batches": ("data_period",),
    "constant_seconds": ("clock_period",),
    "none": ("slow_sample", "uniform", "shard_starvation", "none", "start_up", "epoch_boundary", "drift"),
}
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
# Costs that leave the loader out: the number of workers is not varied for them, the step is looked at alone.
_STEP_COSTS = ("consumer", "step_starved", "launch_bound")
# A ceiling this little above the pace leaves the loader nothing to give ...
CEILING_NEAR = 1.15
# ... and a step this much longer beside the workers than without them is starved by them.
STARVED_RATIO = 1.4
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
    swept = known.diagnosis.shape.key not in _NOT_SWEPT and not _step_bound(known.diagnosis)
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


def _step_bound(diagnosis: Diagnosis) -> bool:
    """Whether the first run itself says that the step is the limit, and more likely than not."""
    return diagnosis.cost.key in _STEP_COSTS and diagnosis.cost.confidence > 0.5


def _controls(known: Known) -> list[str]:
    shape, cost = verdict_shape(known).key, verdict_cost(known).key
    if _step_bound(known.diagnosis):
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
    """The cost in the light of the sweep: a lock makes more workers useless, a sleep does not."""
    cost = known.diagnosis.cost
    ceiling = known.answers.get("ceiling")
    if ceiling is not None and cost.key in (*_STEP_COSTS, "inconclusive"):
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


# -- what the first passes answer without another experiment ------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """One question answered from the first passes."""

    question: str
    answer: str
    evidence: tuple[str, ...] = ()
    falsified: tuple[str, ...] = ()


def read_first(summary: Summary, diagnosis: Diagnosis) -> list[Reading]:
    """The first questions of the chain: waiting, uniform or not, structured or not, restarts, storage."""
    readings = [_waiting(summary, diagnosis)]
    if diagnosis.shape.key == "none" or _step_bound(diagnosis):
        return readings
    readings += [_tail(summary, diagnosis), _structure(summary, diagnosis)]
    return [*readings, *_restarts(summary), *_storage(summary)]


def _waiting(summary: Summary, diagnosis: Diagnosis) -> Reading:
    steady = summary.steady if not isinstance(summary.steady, NotMeasured) else summary.whole
    if isinstance(steady, NotMeasured):
        return Reading("does the loop wait for its input?", "cannot tell", (steady.reason,))
    share = _value(steady.wait_share)
    evidence = () if share is None else (f"{share:.0%} of the time goes into waiting for the next batch",)
    if diagnosis.shape.key == "none" or _step_bound(diagnosis):
        return Reading(
            "does the loop wait for its input?",
            "little; the step is the limit",
            (*evidence, diagnosis.cost.statement),
            ("input-bound in the plain sense: the batches are there when they are asked for",),
        )
    return Reading("does the loop wait for its input?", "yes, it is input-bound", evidence)


def _tail(summary: Summary, diagnosis: Diagnosis) -> Reading:
    question = "is every wait alike, or do a few carry it all?"
    stalls = summary.stalls
    if isinstance(stalls, NotMeasured):
        return Reading(question, "cannot tell", (stalls.reason,))
    share = _value(stalls.share_of_waiting)
    evidence = [f"{stalls.n} of {stalls.deliveries} waits are above {duration(stalls.threshold_ns)}"]
    if share is not None:
        evidence.append(f"they carry {share:.0%} of the waiting")
    if diagnosis.shape.key in ("uniform", "shard_starvation") or stalls.n == stalls.deliveries:
        return Reading(
            question, "every wait is alike", tuple(evidence), ("rare heavy batches: no wait stands out",)
        )
    return Reading(
        question,
        "heavy-tailed: few waits carry it",
        tuple(evidence),
        ("uniformly slow input: most batches are there at once",),
    )


def _structure(summary: Summary, diagnosis: Diagnosis) -> Reading:
    question = "are the stalls at random or structured?"
    stalls = summary.stalls
    evidence: list[str] = [diagnosis.shape.statement]
    if not isinstance(stalls, NotMeasured) and not isinstance(stalls.gaps, NotMeasured):
        listed = ", ".join(f"{gap} ({times}x)" for gap, times in stalls.gaps.common[:3])
        evidence.append(f"gaps between stalls: {listed}")
    key = diagnosis.shape.key
    if key in ("saturated_pool", "slow_worker", "data_period", "worker_period", "clock_period"):
        return Reading(
            question, "structured: they recur", tuple(evidence), ("random stalls: the gaps are too regular",)
        )
    if key == "slow_sample":
        return Reading(question, "at random", tuple(evidence))
    if key == "inconclusive":
        return Reading(question, "cannot tell from this run", tuple(evidence))
    return Reading(question, f"neither: {key}", tuple(evidence))


def _restarts(summary: Summary) -> list[Reading]:
    if isinstance(summary.workers, NotMeasured) or not isinstance(summary.workers, Workers):
        return []
    if isinstance(summary.workers.pid_changes, NotMeasured):
        return []
    question = "do workers restart?"
    if summary.workers.n_pid_changes:
        return [Reading(question, f"yes, {summary.workers.n_pid_changes} times within an epoch")]
    return [
        Reading(
            question,
            "no",
            ("no worker changed its process within an epoch",),
            ("worker restarts",),
        )
    ]


def _storage(summary: Summary) -> list[Reading]:
    if not isinstance(summary.contrast, Contrast):
        return []
    rows = {row.key: row for row in summary.contrast.rows}
    evidence, quiet = [], True
    for key, words in (
        ("worker_read_bytes", "bytes read from the device"),
        ("worker_major_faults", "major page faults"),
    ):
        row = rows.get(key)
        slow = _value(row.slow) if row is not None else None
        if slow is None:
            quiet = False
            continue
        evidence.append(f"median {words} in a slow interval: {slow:.3g}")
        quiet = quiet and slow == 0
    for key, words in (
        ("worker_cpu_ns", "CPU time of the workers"),
        ("worker_run_queue_ns", "their run-queue delay"),
    ):
        row = rows.get(key)
        slow, fast = (_value(row.slow), _value(row.fast)) if row is not None else (None, None)
        if slow is not None and fast is not None:
            evidence.append(f"{words} in a slow interval {duration(slow)}, in a fast one {duration(fast)}")
    if not evidence:
        return []
    if quiet:
        return [
            Reading(
                "do slow intervals read from storage?",
                "no physical reads",
                tuple(evidence),
                ("storage: nothing is read from the device while the loop waits",),
            )
        ]
    return [Reading("do slow intervals read from storage?", "see the numbers", tuple(evidence))]


def _value(measured: Measured) -> float | None:
    return measured.value if isinstance(measured, Estimate) else None


# -- what an experiment answers ------------------------------------------------------------------------


def read_laws(laws: Laws) -> Reading:
    """The sweep over num_workers."""
    gap, pace = laws.gap, laws.throughput
    falsified = []
    if gap.key in SHAPES_OF_LAW and gap.key != "undecided":
        for law, shapes in SHAPES_OF_LAW.items():
            others = [shape for shape in shapes if shape.endswith("_period") or shape == "saturated_pool"]
            if law != gap.key and others and gap.key != "none":
                falsified.append(f"{', '.join(others)}: the gap would be {_LAW_WORDS[law]}")
    if pace.key == "grows":
        falsified.append("a lock, or full CPUs: more workers deliver more")
    if pace.key in ("flat_cpu", "flat_lock", "flat_consumer", "falls", "flat"):
        falsified.append(f"too few workers: pace is {pace.key.replace('_', ' ')}")
    words = {"proportional": "the gap is the number of workers", "none": "no gap follows it"}
    answer = words.get(gap.key, f"gap law: {gap.key.replace('_', ' ')}")
    return Reading("", f"{answer}; pace: {pace.key}", (gap.statement, pace.statement), tuple(falsified))


_LAW_WORDS: Mapping[str, str] = {
    "proportional": "num_workers",
    "multiple": "a multiple of num_workers",
    "constant_batches": "the same number of batches",
    "constant_seconds": "the same time",
    "none": "none",
}


def read_control(answer: ControlAnswer) -> Reading:
    """One control."""
    falsified: Sequence[str] = _FALSIFIED.get((answer.control, answer.key), ())
    evidence = [answer.statement]
    if answer.short:
        evidence.append(answer.short)
    return Reading("", answer.key.replace("_", " "), tuple(evidence), tuple(falsified))


_FALSIFIED: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("in_order", "cadence_stays"): (
        "ordered delivery as the cause: the cadence stays without it",
        "one slow worker: its stalls would fall away when others may pass",
    ),
    ("in_order", "cadence_gone"): (
        "ordered delivery as the cause of the waiting: the mean wait is the same without it",
        "one slow worker: the mean wait would fall when others may pass",
    ),
    ("in_order", "stalls_stay"): (
        "ordered delivery as the cause of the waiting: the mean wait is the same without it",
        "one slow worker: the mean wait would fall when others may pass",
    ),
    ("in_order", "stalls_fall_away"): ("a pool too slow as a whole: it would wait without order, too",),
    ("stagger", "cadence_gone"): (
        "ordered delivery as the cause: it was on in both arms, and the cadence went",
        "one slow worker, data period: a shifted start does not move them",
    ),
    ("stagger", "cadence_stays"): ("a pool in phase: shifted starts would have broken it",),
    ("repeat", "other_ranks"): ("expensive samples: the same ones are not slow again",),
    ("repeat", "same_ranks"): ("chance and scheduling: the same batches are slow again",),
    ("trivial", "faster"): ("a slow host: zeros come without a wait",),
    ("trivial", "slower"): ("the data set as the cause: zeros wait as long",),
    ("persistent", "no_difference"): ("starting workers as the cost of an epoch",),
    ("threads", "no_difference"): ("helper threads",),
    ("pin", "no_difference"): ("pinning",),
}
