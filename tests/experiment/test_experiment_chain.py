"""The chain: which experiment comes next, and what its answer rules out. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traceml_lite.diagnose.diagnosis import diagnose
from traceml_lite.diagnose.summary import summarize
from traceml_lite.experiment import chain, readings
from traceml_lite.experiment.fetches import FetchParts, cpu_bound
from traceml_lite.records.results import Verdict
from traceml_lite.records.run import DELIVERY_COLUMNS, FETCH_COLUMNS, from_arrays
from traceml_lite.records.sweep import ControlAnswer, GapLaw, Laws, ThroughputLaw
from traceml_lite.simulate.labelled import labelled_run


@pytest.fixture(scope="module")
def first():
    columns, config, _ = labelled_run("pool", 64, seed=1, num_workers=4)
    names = {column.name for column in DELIVERY_COLUMNS + FETCH_COLUMNS}
    run = from_arrays(
        **{name: values for name, values in columns.items() if name in names},
        **{name: config[name] for name in ("num_workers", "prefetch_factor", "in_order") if name in config},
    )
    return summarize(run), diagnose(run)


def known(first, shape, *, cost="cpu", cost_confidence=0.95, law=None, pace="flat_cpu", answers=(), **more):
    summary, diagnosis = first
    diagnosis = replace(
        diagnosis,
        shape=Verdict(shape, 0.8, "as it looks"),
        cost=Verdict(cost, cost_confidence, "as it costs"),
    )
    laws = None
    if law is not None:
        laws = Laws(
            GapLaw(law, f"the gap is {law}", 20.0), ThroughputLaw(pace, f"the pace is {pace}"), (1, 2, 4)
        )
    tried = {*more.pop("tried", ()), *(["workers"] if law else []), *(name for name, _ in answers)}
    return chain.Known(
        summary=summary,
        diagnosis=diagnosis,
        workers=more.pop("workers", 4),
        cpus=2,
        laws=laws,
        answers={name: ControlAnswer(name, key, f"{name}: {key}", "") for name, key in answers},
        tried=frozenset(tried),
        **more,
    )


def test_a_loop_that_waits_has_one_cheap_parameter_varied_first(first):
    proposal = chain.next_proposal(known(first, "saturated_pool"))
    assert (proposal.name, proposal.settings) == ("workers", ("num_workers=0,1,2,4",))


def test_a_loop_that_does_not_wait_is_asked_for_its_ceiling(first):
    proposal = chain.next_proposal(known(first, "none", cost="consumer"))
    assert proposal.controls == ("ceiling",)


def ceiling(known, **numbers):
    answer = ControlAnswer("ceiling", "ceiling", "as fast as it gets", "", numbers)
    return replace(known, answers={"ceiling": answer}, tried=known.tried | {"ceiling"})


def test_a_step_that_is_the_limit_is_confirmed_by_a_ceiling_at_its_own_pace(first):
    told = ceiling(known(first, "inconclusive", cost="consumer"), gain=1.02, step_ratio=1.0)
    assert chain.verdict_shape(told).key == "none"
    assert chain.verdict_cost(told).key == "consumer"
    assert chain.stands(told)
    assert chain.next_proposal(told) is None


def test_a_step_that_is_shorter_without_workers_was_starved_by_them(first):
    told = ceiling(known(first, "none", cost="consumer"), gain=2.1, step_ratio=2.0)
    assert chain.verdict_cost(told).key == "step_starved"
    assert chain.stands(told)


def test_a_ceiling_far_above_the_pace_confirms_nothing(first):
    told = ceiling(known(first, "inconclusive", cost="consumer"), gain=3.0, step_ratio=1.0)
    assert not chain.stands(told)


def test_a_gap_of_num_workers_needs_the_control_that_tells_pool_from_worker(first):
    after_law = known(first, "saturated_pool", law="proportional")
    assert not chain.stands(after_law)
    assert chain.next_proposal(after_law).name == "in_order"


def test_an_undecided_order_control_is_followed_by_a_stagger(first):
    undecided = known(first, "saturated_pool", law="proportional", answers=[("in_order", "undecided")])
    assert chain.next_proposal(undecided).name == "stagger"


@pytest.mark.parametrize("answer", ["cadence_stays", "cadence_gone", "stalls_stay"])
def test_a_pool_confirmed_by_order_stands_and_nothing_more_is_run(first, answer):
    confirmed = known(first, "saturated_pool", law="proportional", answers=[("in_order", answer)])
    assert chain.verdict_shape(confirmed).key == "saturated_pool"
    assert chain.stands(confirmed)
    assert chain.next_proposal(confirmed) is None


def test_stalls_that_fall_away_without_order_turn_a_pool_into_one_slow_worker(first):
    told = known(first, "saturated_pool", law="proportional", answers=[("in_order", "stalls_fall_away")])
    assert chain.verdict_shape(told).key == "slow_worker"
    assert chain.stands(told)


@pytest.mark.parametrize(
    ("law", "shape"),
    [
        ("constant_batches", "data_period"),
        ("multiple", "worker_period"),
        ("constant_seconds", "clock_period"),
    ],
)
def test_a_law_overrules_what_one_run_could_only_suspect(first, law, shape):
    told = known(first, "slow_sample", law=law)
    assert chain.verdict_shape(told).key == shape
    assert chain.stands(told)


def test_an_undecided_law_confirms_nothing(first):
    assert not chain.stands(known(first, "data_period", law="undecided"))


def test_a_cost_that_is_sure_needs_no_control_of_its_own(first):
    told = known(first, "data_period", law="constant_batches")
    assert chain.next_proposal(told) is None


def test_a_cost_that_is_not_sure_gets_its_control(first):
    told = known(first, "data_period", law="constant_batches", cost="storage", cost_confidence=0.6)
    assert chain.next_proposal(told).name == "repeat"


def test_an_iterable_dataset_is_not_asked_to_repeat_or_to_leave_its_order(first):
    told = known(first, "slow_sample", law="none", tried=("workers",), iterable=True)
    assert chain.next_proposal(told) is None


def test_flat_pace_makes_a_lock_of_what_was_only_blocked(first):
    told = known(first, "uniform", cost="inconclusive", law="none", pace="flat_lock")
    cost = replace(told.diagnosis.cost, candidates=("lock",))
    told = replace(told, diagnosis=replace(told.diagnosis, cost=cost))
    assert chain.verdict_cost(told).key == "lock"


def test_growing_pace_rules_the_lock_out(first):
    told = known(first, "uniform", cost="inconclusive", law="none", pace="grows")
    cost = replace(told.diagnosis.cost, candidates=("lock", "remote"))
    told = replace(told, diagnosis=replace(told.diagnosis, cost=cost))
    assert chain.verdict_cost(told).candidates == ("remote",)
    assert chain.verdict_cost(told).key == "inconclusive"


@pytest.mark.parametrize(
    ("workers", "counts"),
    [(0, (0, 1, 2, 4)), (1, (0, 1, 2, 4)), (4, (0, 1, 2, 4)), (8, (1, 2, 8)), (2, (0, 1, 2))],
)
def test_the_counts_to_sweep_hold_the_targets_own_and_two_above_one(workers, counts):
    assert chain.worker_counts(workers, 2) == counts


def test_the_first_passes_answer_the_first_questions(first):
    found = readings.read_first(*first)
    assert [one.question for one in found][:3] == [
        "does the loop wait for its input?",
        "is every wait alike, or do a few carry it all?",
        "are the stalls at random or structured?",
    ]
    assert found[0].answer == "yes, it is input-bound"
    assert found[1].answer.startswith("heavy-tailed")


def test_the_reading_of_a_law_says_what_it_falsifies(first):
    told = known(first, "saturated_pool", law="proportional")
    falsified = " ".join(readings.read_laws(told.laws).falsified)
    assert "data_period" in falsified
    assert "worker_period" in falsified
    assert "saturated_pool" not in falsified


def test_no_law_falsifies_no_period_by_name(first):
    assert not [
        t for t in readings.read_laws(known(first, "uniform", law="undecided").laws).falsified if "gap" in t
    ]


def parts(workers, cpu_ms, queue_ms, blocked_ms=0.0):
    wall = (cpu_ms + queue_ms + blocked_ms) * 1e6
    return FetchParts(workers, 40, wall, cpu_ms * 1e6, queue_ms * 1e6)


ON_TWO_CPUS = (parts(0, 400, 4), parts(1, 402, 6), parts(2, 410, 20), parts(4, 420, 450))


@pytest.mark.parametrize("cost", ["run_queue", "neighbours", "cpu"])
def test_fetches_that_are_cpu_time_with_fewer_workers_are_cpu_time(first, cost):
    told = known(first, "saturated_pool", cost=cost, cost_confidence=0.6, law="proportional")
    told = replace(told, cpu_bound=cpu_bound(ON_TWO_CPUS, 2))
    verdict = chain.verdict_cost(told)
    assert verdict.key == "cpu"
    assert "420 ms in one of 870 ms with 4 workers, which waits 450 ms for a CPU" in verdict.statement
    assert "4 workers on 2 CPUs" in verdict.statement


def test_two_costs_that_one_run_cannot_tell_apart_are_told_by_the_sweep(first):
    told = known(first, "saturated_pool", law="proportional")
    open_cost = Verdict("inconclusive", 0.5, "cpu or run_queue", ("run_queue", "cpu"))
    told = replace(
        told, diagnosis=replace(told.diagnosis, cost=open_cost), cpu_bound=cpu_bound(ON_TWO_CPUS, 2)
    )
    assert chain.verdict_cost(told).key == "cpu"


def test_another_cost_is_left_alone_by_it(first):
    told = known(first, "saturated_pool", cost="storage", law="proportional")
    assert chain.verdict_cost(replace(told, cpu_bound=cpu_bound(ON_TWO_CPUS, 2))).key == "storage"
    either = Verdict("inconclusive", 0.5, "delivery or neighbours", ("delivery", "neighbours"))
    told = replace(told, diagnosis=replace(told.diagnosis, cost=either))
    assert chain.verdict_cost(replace(told, cpu_bound=cpu_bound(ON_TWO_CPUS, 2))).key == "inconclusive"


def test_a_quota_of_less_than_one_cpu_is_no_zero_and_helper_threads_are_named():
    helped = cpu_bound((parts(0, 600, 0, -150), parts(4, 600, 4000)), 0.5)
    assert helped is not None
    text = readings.cpu_words(helped)
    assert "600 ms in a fetch of 450 ms with no workers" in text
    assert "helper threads" in text
    assert "4 workers on 0.5" in text


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(ON_TWO_CPUS[:3], id="no pass with more workers than CPUs"),
        pytest.param(ON_TWO_CPUS[3:], id="no pass with a CPU for each"),
        pytest.param((parts(1, 400, 200), parts(4, 400, 450)), id="others had the CPUs"),
        pytest.param((parts(1, 40, 0, 360), parts(4, 40, 60)), id="blocked"),
        pytest.param((parts(1, 200, 0), parts(4, 420, 450)), id="CPU time grows"),
        pytest.param((parts(1, 400, 0), parts(4, 400, 1000)), id="more delay than four on two make"),
        pytest.param((parts(1, 400, 0), parts(4, 400, 10)), id="no delay"),
        pytest.param((), id="nothing"),
    ],
)
def test_passes_that_do_not_show_it_claim_nothing(rows):
    assert cpu_bound(rows, 2) is None
