"""Reading results in the words of the chain: what a first run, a law or a control answers and rules out.

Pure. What is asked next, and whether a verdict stands, is in ``chain``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traceml_lite.diagnose.words import duration, percent
from traceml_lite.experiment.fetches import CpuBound, FetchParts
from traceml_lite.records.results import Diagnosis, Estimate
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


# Costs that leave the loader out: the number of workers is not varied for them, the step is looked at alone.
STEP_COSTS = ("consumer", "step_starved", "launch_bound")


def step_bound(diagnosis: Diagnosis) -> bool:
    """Whether the first run itself says that the step is the limit, and more likely than not."""
    return diagnosis.cost.key in STEP_COSTS and diagnosis.cost.confidence > 0.5


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
    if diagnosis.shape.key == "none" or step_bound(diagnosis):
        return readings
    readings += [_tail(summary, diagnosis), _structure(summary, diagnosis)]
    return [*readings, *_restarts(summary), *_storage(summary)]


def _waiting(summary: Summary, diagnosis: Diagnosis) -> Reading:
    steady = summary.steady if not isinstance(summary.steady, NotMeasured) else summary.whole
    if isinstance(steady, NotMeasured):
        return Reading("does the loop wait for its input?", "cannot tell", (steady.reason,))
    share = _value(steady.wait_share)
    evidence = (
        () if share is None else (f"{percent(share)} of the time goes into waiting for the next batch",)
    )
    if diagnosis.shape.key == "none" or step_bound(diagnosis):
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
        evidence.append(f"they carry {percent(share)} of the waiting")
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


# More CPU time than wall time by this much: threads beside the worker's own do a part of the fetch.
HELPED = 1.1


def cpu_words(found: CpuBound) -> str:
    """A fetch that is CPU time at every number of workers, in one sentence."""
    alone = " and ".join(
        f"{duration(one.cpu_ns)} in a fetch of {duration(one.wall_ns)} with {_workers(one)}"
        for one in found.alone
    )
    crowded = " and ".join(
        f"{duration(one.cpu_ns)} in one of {duration(one.wall_ns)} with {_workers(one)}, "
        f"which waits {duration(one.run_queue_ns)} for a CPU"
        for one in found.crowded
    )
    most = max(one.workers for one in found.crowded)
    helped = any(one.cpu_ns > HELPED * one.wall_ns for one in found.alone)
    threads = " (that of helper threads included)" if helped else ""
    return (
        f"A fetch is CPU time{threads}: {alone}. It is {crowded}: that run-queue delay comes from {most} "
        f"workers on {found.cpus:g} CPUs, and CPU per batch is the limit."
    )


def _workers(parts: FetchParts) -> str:
    return "no workers" if parts.workers == 0 else f"{parts.workers} worker{'s' if parts.workers > 1 else ''}"


def read_fetches(found: CpuBound) -> Reading:
    """What a sweep over num_workers shows of a fetch."""
    return Reading(
        "what is a fetch made of, where every worker has a CPU?",
        f"CPU time; the run-queue delay comes from more workers than the {found.cpus:g} CPUs",
        (cpu_words(found),),
        ("blocked fetches: where every worker has a CPU they are CPU time",),
    )


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
        "ordered delivery as the cause of the waiting: the loop waits without it, too",
        "one slow worker: the mean wait would fall when others may pass",
    ),
    ("in_order", "stalls_fall_away"): ("a pool too slow as a whole: it would wait without order, too",),
    ("in_order", "wait_stays"): (
        "ordered delivery as the cause of the waiting: the mean wait is the same without it",
        "one slow worker: the mean wait would fall when others may pass",
    ),
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
