from __future__ import annotations

from dataclasses import replace

from traceml_lite.records.results import Diagnosis, Evidence, Experiment, Finding, Outcome, State, Verdict
from traceml_lite.report.diagnosis import render_diagnosis, render_next

MADE_UP = Diagnosis(
    shape=Verdict("saturated_pool", 0.97, "One long wait, then three short ones: 4 workers are too few."),
    cost=Verdict("inconclusive", 0.5, "Blocked for 98 % of 75.1 ms.", ("remote", "lock")),
    evidence=(
        Evidence("saturated_pool", "shape", State.SUPPORTED, 0.97, ("the pool's load is 4.81",)),
        Evidence("slow_worker", "shape", State.RULED_OUT, 0, contradicts=("1.06 times the others",)),
        Evidence("drift", "shape", State.RULED_OUT, 0, contradicts=("no trend",)),
        Evidence("lock", "cost", State.UNDECIDED, 0.45, ("blocked without I/O",), ("ends come together",)),
        Evidence("memory", "cost", State.SUPPORTED, 0.3, ("grew 3-fold",)),
        Evidence("storage", "cost", State.UNDECIDED, 0.21, ("blocked for 3.10 ms",), ("reads little",)),
        Evidence("pin", "cost", State.UNDECIDED, 0.1, ("pinning takes 0.1 ms",)),
        Evidence("uniform", "shape", State.UNDECIDED, 0.3, (), ("a tenth of the waits is short",)),
        Evidence("cpu", "cost", State.RULED_OUT, 0, contradicts=("only 1.40 % of a fetch is computing",)),
        Evidence("remote", "cost", State.NOT_MEASURED, 0, missing=("rchar",)),
    ),
    findings=(Finding("busy_host", "Others have 1.80 CPUs.", severity="warning"),),
    not_measured=("remote cannot be judged: rchar",),
    next_experiment=Experiment(
        "traceml-lite sweep demo:lock -s num_workers=1,4", 95.0, "A lock makes workers useless.",
        (Outcome("no faster with four", "a lock"), Outcome("faster with four", "latency")),
    ),
)  # fmt: skip

TEXT = """\
Diagnosis
  shape         saturated_pool (97 %). One long wait, then three short ones: 4 workers
                are too few.
  cost          cannot tell (remote or lock). Blocked for 98 % of 75.1 ms.
  for           saturated_pool: the pool's load is 4.81
                lock: blocked without I/O
  against       lock: ends come together
  also possible memory: grew 3-fold
                storage, weakly: blocked for 3.10 ms
                uniform, but a tenth of the waits is short
  ruled out     slow_worker: 1.06 times the others
                cpu: only 1.40 % of a fetch is computing
                also drift
  not measured  remote cannot be judged: rchar
  also seen     Others have 1.80 CPUs."""

NEXT = """\
Try next: (about 2 min)
  traceml-lite sweep demo:lock -s num_workers=1,4
  A lock makes workers useless.
  - no faster with four -> a lock
  - faster with four -> latency"""


def test_a_diagnosis_reads_verdicts_evidence_gaps_and_findings_in_this_order() -> None:
    assert "\n".join(render_diagnosis(MADE_UP)) == TEXT


def test_the_next_experiment_is_text_of_its_own_so_that_it_can_stand_last() -> None:
    assert "\n".join(render_next(MADE_UP)) == NEXT


def test_a_long_run_queue_delay_is_not_ruled_out_without_its_reason() -> None:
    for share, reason in ((0.42, True), (0.04, False)):
        numbers = {"run_queue_share": share}
        delayed = Evidence("run_queue", "cost", State.RULED_OUT, 0.0, (), ("others have it",), (), numbers)
        shape = Evidence("none", "shape", State.SUPPORTED, 0.9, ("no wait",))
        made = replace(
            MADE_UP,
            shape=Verdict("none", 0.9, "No wait."),
            cost=Verdict("consumer", 0.9, "The step."),
            evidence=(shape, delayed),
        )
        assert ("run_queue: others have it" in "\n".join(render_diagnosis(made))) is reason


def test_without_an_experiment_nothing_is_proposed() -> None:
    assert render_next(replace(MADE_UP, next_experiment=None)) == []


def test_a_command_is_never_wrapped_however_long() -> None:
    long = "traceml-lite sweep train.py -- " + " ".join(f"--option-{k} value" for k in range(20))
    experiment = Experiment(long, None, "Because.")
    assert render_next(replace(MADE_UP, next_experiment=experiment)) == [
        "Try next:",
        f"  {long}",
        "  Because.",
    ]


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    for padding in range(60):
        statement = f"{'x' * padding} and then some words 12.3 ms of 45 % of 1.80 CPUs are left over here"
        lines = render_diagnosis(replace(MADE_UP, cost=Verdict("cpu", 0.9, statement)))
        assert not any(line.rstrip().endswith(("12.3", "45", "1.80")) for line in lines)
        assert all(len(line) <= 88 for line in lines)
