from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from traceml_lite._errors import MissingColumnError
from traceml_lite.diagnose.diagnosis import diagnose
from traceml_lite.records.results import State
from traceml_lite.records.run import Run, from_arrays
from traceml_lite.report.catalogue import KEYS
from traceml_lite.report.diagnosis import render_diagnosis, render_next

MS = 1_000_000


def saturated(n: int = 240, workers: int = 4, **columns: object) -> Run:
    """A pool in step whose fetches compute."""
    start, end, ask, got = (np.zeros(n, np.int64) for _ in range(4))
    random = np.random.default_rng(1)
    now = 0
    for i in range(n):
        start[i] = end[i - workers] if i >= workers else i * MS
        end[i] = start[i] + round(random.normal(60, 1) * MS)
        ask[i], got[i] = now, max(now, end[i])
        now = got[i] + 5 * MS
    cpu = ((end - start) * 0.97).astype(np.int64)
    given = {"cpu_ns": cpu, "thread_cpu_ns": cpu, "run_queue_ns": np.zeros(n, np.int64)} | columns
    return from_arrays(
        wait_ns=got - ask, step_ns=np.full(n, 5 * MS), ask_ns=ask, got_ns=got, rank=np.arange(n),
        worker=np.arange(n) % workers, fetch_start_ns=start, fetch_end_ns=end, num_workers=workers,
        prefetch_factor=2, in_order=True, **given,
    )  # fmt: skip


def test_shape_and_cost_are_two_answers_to_two_questions() -> None:
    found = diagnose(saturated())
    assert (found.shape.key, found.cost.key) == ("saturated_pool", "cpu")
    assert found.deliveries == 232


def test_every_key_of_both_questions_has_its_evidence_and_the_verdicts_come_first() -> None:
    found = diagnose(saturated())
    shapes = [item.key for item in found.evidence if item.kind == "shape"]
    costs = [item.key for item in found.evidence if item.kind == "cost"]
    assert (shapes[0], costs[0]) == ("saturated_pool", "cpu")
    assert {*shapes, *costs, "inconclusive"} >= set(KEYS)
    assert len(shapes) + len(costs) == len({*shapes, *costs})


def test_what_was_not_measured_names_the_keys_that_it_bears_on() -> None:
    found = diagnose(saturated(run_queue_ns=np.full(240, -1)))
    line = next(text for text in found.not_measured if "run-queue delay of the workers" in text)
    for key in ("run_queue", "threads", "affinity", "lock"):
        assert key in line


def test_the_worker_at_the_stalls_is_no_evidence_when_delivery_is_ordered() -> None:
    text = "\n".join(render_diagnosis(diagnose(saturated())))
    # Which worker a stalled batch came from is its rank modulo num_workers, whatever the cause.
    for words in ("stalls come from worker", "stalls on worker", "stalled worker"):
        assert words not in text


def test_waits_alone_are_diagnosed_as_far_as_they_go() -> None:
    full = saturated().main.deliveries
    found = diagnose(
        from_arrays(wait_ns=full["wait_ns"], step_ns=full["step_ns"], num_workers=4, in_order=True)
    )
    assert found.cost.key == "inconclusive"
    assert {e.state for e in found.evidence if e.key in ("cpu", "storage", "lock")} == {State.NOT_MEASURED}
    assert any("fetch" in text for text in found.not_measured)


def test_a_loader_that_delivered_nothing_is_inconclusive() -> None:
    full = saturated()
    nothing = replace(full.main, deliveries=full.main.deliveries.take(slice(0, 0)), delivered=0)
    found = diagnose(replace(full, loaders=(nothing,)))
    assert (found.shape.key, found.cost.key) == ("inconclusive", "inconclusive")


def test_a_run_without_a_loader_is_an_error_and_not_a_healthy_run() -> None:
    with pytest.raises(MissingColumnError, match="no DataLoader"):
        diagnose(Run("nothing", ()))


@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_short_runs_are_rendered_within_the_width_and_never_certain_of_a_cost(n: int) -> None:
    found = diagnose(saturated(n))
    lines = render_diagnosis(found) + render_next(found)
    assert all(len(line) <= 88 for line in lines if not line.startswith("  traceml-lite"))
    assert n >= 4 or found.cost.key == "inconclusive"
