"""The text of sweeps, comparisons and investigations: whole, from made-up records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_sweep_passes import made, pool

from traceml_lite.diagnose.compare import compare_arms
from traceml_lite.diagnose.laws import sweep_laws
from traceml_lite.records.investigation import Investigation, Skipped, Step
from traceml_lite.records.results import Verdict
from traceml_lite.records.sweep import (
    ArmComparison,
    ControlAnswer,
    PassResult,
    PassStatus,
    SweepResult,
)
from traceml_lite.report.comparison import render_comparisons
from traceml_lite.report.investigation import render_investigation
from traceml_lite.report.sweep import clock, progress_line, render_sweep

GOLDEN = Path(__file__).parent / "golden"


def check(name: str, lines: list[str]) -> None:
    """Compare with the golden file; every line fits a ticket."""
    assert all(len(line) <= 88 or line.lstrip().startswith("traceml-lite") for line in lines), max(
        lines, key=len
    )
    assert all(line == line.rstrip() for line in lines)
    place = GOLDEN / f"{name}.txt"
    assert "\n".join(lines) + "\n" == place.read_text(encoding="utf-8")


def worded(comparison: ArmComparison) -> ArmComparison:
    """With sentences of the test's own: what the analysis says is tested where it is said."""
    cadence = comparison.cadence
    return replace(
        comparison,
        difference=replace(
            comparison.difference, statement=f"Mean wait is 87 % lower in {comparison.b.name}: it differs."
        ),
        cadence=cadence and replace(cadence, statement="The cadence of 4 is gone."),
    )


def a_pass(number, workers, **more):
    return PassResult(
        f"num_workers={workers}",
        number,
        "back" if number < 3 else "forward",
        deliveries=72,
        warmup=8,
        cache="warm",
        wall_s=12.4 + number,
        mean_wait_ns=31e6 / workers,
        **more,
    )


@pytest.fixture(scope="module")
def sweep() -> SweepResult:
    passes = [
        made(f"num_workers={w}", pool(64, w, stall=20.0 * w, seed=n), fetch_ms=80.0, workers=w, number=n)
        for n, w in enumerate((4, 2, 2, 4), 1)
    ]
    ordered = [p for p in passes if p.result.condition == "num_workers=4"]
    free = [
        made("num_workers=4 [in_order]", np.full(64, 2.0 + n / 10), workers=4, number=n, in_order=False)
        for n in (5, 6)
    ]
    control = compare_arms(ordered, free)
    laws = sweep_laws(passes)
    results = [a_pass(1, 4), a_pass(2, 2), a_pass(3, 2), a_pass(4, 4)]
    results[1] = replace(
        results[1],
        status=PassStatus.TIMEOUT,
        reason="not at its end after 120 s; its 3 processes were killed",
    )
    conditions = tuple({p.condition.name: p.condition for p in passes}.values())
    return SweepResult(
        target="train.py",
        conditions=(*conditions, replace(free[0].condition, control="in_order")),
        passes=tuple(results),
        laws=replace(
            laws,
            gap=replace(
                laws.gap, statement="Stalls recur every num_workers batches.", alone="W = 4 alone tells less."
            ),
            throughput=replace(
                laws.throughput,
                statement="Throughput is flat beyond 2 workers.",
                cpu_per_batch_ns={4: 20.3e6},
                cpu_statement="Measured at one setting only.",
            ),
            notes=(),
        ),
        comparisons=(
            worded(compare_arms([p for p in passes if p not in ordered], ordered)),
            worded(control),
        ),
        notes=("all passes saw the same indices in the same order (256 samples compared)",),
        controls=(
            ControlAnswer(
                "in_order",
                "stalls_fall_away",
                "without order the mean wait is 0.11 of what it was",
                "does the cadence need ordered delivery?",
                short="16 deliveries per pass would have said: undecided",
            ),
        ),
        loader="DataLoader of Images",
        command="traceml-lite sweep train.py -s num_workers=2,4 --control in_order",
        complete=False,
        why_incomplete="1 of 4 passes did not end well",
        planned=4,
    )


def test_a_sweep_reads_conclusions_first_and_then_what_they_rest_on(sweep: SweepResult):
    check("sweep", render_sweep(sweep))


def test_a_refused_sweep_says_why_and_concludes_nothing(sweep: SweepResult):
    refused = replace(
        sweep, laws=None, comparisons=(), controls=(), refused="the passes of A saw other indices than B's"
    )
    text = "\n".join(render_sweep(refused))
    assert "refused      the passes of A saw other indices" in text
    assert "gap law" not in text


def test_a_traceback_is_told_by_its_first_and_last_line(sweep: SweepResult):
    reason = "RuntimeError: Caught in worker 0.\nTraceback:\n  File x\nRuntimeError: boom\n"
    failed = replace(sweep.passes[1], status=PassStatus.FAILED, reason=reason)
    text = "\n".join(render_sweep(replace(sweep, passes=(failed,))))
    assert "failed: RuntimeError: Caught in worker 0. ... RuntimeError: boom" in text
    assert "File x" not in text


def test_two_sweeps_side_by_side(sweep: SweepResult):
    check(
        "comparison",
        render_comparisons(
            sweep.comparisons[:1], cpu_per_batch_ns=[(7.06e9, 9.4e7)], only_a=["num_workers=0"], only_b=[]
        ),
    )


def test_cpu_that_was_not_measured_is_not_zero(sweep: SweepResult):
    lines = render_comparisons(sweep.comparisons[:1], cpu_per_batch_ns=[(None, 1e6)])
    assert lines[-1] == "CPU a batch  not measured in A"


def test_an_investigation_reads_verdict_first_then_the_chain():
    chain = Investigation(
        target="train.py",
        steps=(
            Step(
                "does the loop wait for its input?",
                "read from the first pass",
                "yes, it is input-bound",
                ("58 % of the time goes into waiting",),
                folder="1-as-it-is",
            ),
            Step(
                "does ordered delivery make the stalls?",
                "4 passes of 408 deliveries",
                "cadence gone",
                ("over 400 deliveries the cadence goes without order",),
                ("ordered delivery as the cause",),
                "3-in_order",
                "traceml-lite sweep train.py --control in_order",
                212.0,
            ),
        ),
        shape=Verdict("saturated_pool", 0.97, "All workers are equally busy and too few."),
        cost=Verdict("inconclusive", 0.5, "A fetch is blocked.", ("lock", "remote")),
        stands=True,
        ended="the verdict stands",
        falsified=("ordered delivery as the cause",),
        skipped=(
            Skipped("stagger", "traceml-lite sweep train.py --control stagger", "it needs 5.0 min", 300.0),
        ),
        next_command="traceml-lite explain lock",
        next_reason="what lock is mistaken for, and its cure",
        used_s=250.0,
        budget_s=600.0,
        environment={"host": "box", "python": "3.11", "torch": "2.13.0", "cpus": "2"},
    )
    check("investigation", render_investigation(chain))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1 min"), (200, "3 min 20 s"), (3600, "1 h"), (3900, "1 h 5 min")],
)
def test_a_time_is_said_as_one_plans_with_it(seconds, text):
    assert clock(seconds) == text


def test_the_progress_of_a_pass_is_one_line_with_what_is_left():
    line = progress_line(
        done=3, total=8, arm="num_workers=4", result=a_pass(3, 4), elapsed_s=40.0, remaining_s=75.0
    )
    assert line == "3/8  num_workers=4  72 deliveries, mean wait 7.75 ms, 15 s  (about 1 min 15 s left)"


def test_the_progress_of_a_pass_that_hung_says_so():
    hung = replace(a_pass(3, 4), status=PassStatus.TIMEOUT, reason="not at its end after 60 s\nmore")
    line = progress_line(done=8, total=8, arm="num_workers=4", result=hung, elapsed_s=1.0, remaining_s=0.0)
    assert line == "8/8  num_workers=4  timeout: not at its end after 60 s  (done)"


def test_a_running_pass_fits_a_terminal():
    line = progress_line(
        done=0, total=8, arm="env.PYTHONPATH=" + "x" * 200, result=None, elapsed_s=1.0, remaining_s=9.0
    )
    assert len(line) <= 88
