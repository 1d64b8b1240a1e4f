from __future__ import annotations

import numpy as np
import pytest
from conftest_costs import MS, Judge, host, made
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traceml_lite.records.results import State
from traceml_lite.records.run import Environment

NOT_THE_LOADER = {"consumer", "step_starved", "neighbours", "inconclusive"}


def test_a_loop_that_hardly_waits_is_its_own_limit(judge: Judge) -> None:
    found = judge(made(fetch_ms=20, step_ms=50, step_cpu_ns=45 * MS, step_run_queue_ns=0))
    assert found.key == "consumer"
    assert found.verdict.confidence > 0.9
    assert found.evidence["cpu"].state is State.RULED_OUT


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fetch_ms=st.floats(1, 60),
    step_ms=st.floats(80, 300),
    workers=st.integers(1, 8),
    cpu=st.floats(0, 1),
    queued=st.floats(0, 0.9),
    read=st.sampled_from([0, 1 << 24]),
    rchar=st.sampled_from([None, 0, 1 << 24]),
    starved=st.sampled_from([None, 0.0, 0.1, 0.5]),
    busy=st.floats(0, 4),
)
def test_no_slow_consumer_is_ever_blamed_on_the_loader(
    judge: Judge, fetch_ms: float, step_ms: float, workers: int, cpu: float, queued: float, read: int,
    rchar: int | None, starved: float | None, busy: float,
) -> None:  # fmt: skip
    loader = made(
        workers=workers, fetch_ms=fetch_ms, step_ms=step_ms, cpu=cpu * (1 - queued), queue=queued,
        read_bytes=read, rchar=rchar, major_faults=read >> 20, config={"pin_memory": True}, queue_size=0,
        step_run_queue_ns=None if starved is None else round(starved * step_ms * MS),
    )  # fmt: skip
    found = judge(loader, rates={"cpu_busy_ns": max(busy, 0.5), "own_cpu_ns": 0.5})
    assert found.key in NOT_THE_LOADER


def test_workers_that_take_the_steps_cpus_are_named_although_nothing_waits(judge: Judge) -> None:
    loader = made(fetch_ms=90, step_ms=40, step_cpu_ns=15 * MS, step_run_queue_ns=24 * MS)
    found = judge(loader, cpus=2, rates={"cpu_busy_ns": 2.0, "own_cpu_ns": 2.0})
    assert found.key == "step_starved"
    assert "workers take the step's CPUs" in found.verdict.statement


def test_a_step_that_queues_behind_other_processes_is_the_neighbours(judge: Judge) -> None:
    loader = made(fetch_ms=10, cpu=0.05, step_ms=40, step_cpu_ns=15 * MS, step_run_queue_ns=24 * MS)
    assert judge(loader, cpus=2, rates={"cpu_busy_ns": 2.0, "own_cpu_ns": 0.4}).key == "neighbours"


def test_who_starves_the_step_is_left_open_when_the_machines_totals_are_missing(judge: Judge) -> None:
    loader = made(fetch_ms=90, step_ms=40, step_cpu_ns=15 * MS, step_run_queue_ns=24 * MS)
    found = judge(loader, cpus=2, readings=host(0.1, 1))
    assert found.key == "inconclusive"
    assert found.verdict.candidates == ("step_starved", "neighbours")


def test_full_cpus_and_an_unread_step_leave_consumer_and_step_starved_open(judge: Judge) -> None:
    loader = made(fetch_ms=90, step_ms=50)
    found = judge(loader, cpus=2)
    assert found.key == "inconclusive"
    assert found.verdict.candidates == ("consumer", "step_starved")


def test_steps_that_are_faster_with_idle_workers_speak_for_a_starved_step(judge: Judge) -> None:
    # Workers are busy for the first half of the run, and the steps beside them take twice as long.
    n, busy = 96, 48
    loader = made(deliveries=n, fetch_ms=0.05, step_ms=20, cpu=0.9, prefetch=1)
    columns = {name: np.array(column) for name, column in loader.deliveries.columns.items()}
    steps = np.where(np.arange(n) < busy, 40 * MS, 20 * MS)
    ask = np.r_[0, np.cumsum(steps + 1000)[:-1]]
    columns |= {"step_ns": steps, "ask_ns": ask, "got_ns": ask + 1000, "wait_ns": np.full(n, 1000)}
    columns["fetch_start_ns"] = ask - 38 * MS
    columns["fetch_end_ns"] = np.where(np.arange(n) < busy, ask, ask - 38 * MS + 50_000)
    columns["fetch_start_ns"][0] = 0
    columns["fetch_end_ns"][0] = 1
    columns["step_run_queue_ns"] = np.where(np.arange(n) < busy, 20 * MS, 0)
    table = type(loader.deliveries)(columns)
    found = judge(type(loader)(loader.name, loader.config, table, loader.fetches), cpus=2)
    supports = found.evidence["step_starved"].supports
    assert any("2.00 times as long while workers are busy" in sentence for sentence in supports)


def test_a_loop_without_workers_cannot_be_starved_by_them(judge: Judge) -> None:
    loader = made(workers=0, fetch_ms=0.5, step_ms=50, step_run_queue_ns=30 * MS)
    found = judge(loader, cpus=2, rates={"cpu_busy_ns": 2.0, "own_cpu_ns": 0.5})
    assert found.evidence["step_starved"].state is State.RULED_OUT
    assert found.key == "neighbours"


def test_launch_bound_is_never_claimed_from_a_trace_of_the_loader(judge: Judge) -> None:
    found = judge(made(fetch_ms=5, step_ms=50, step_cpu_ns=50 * MS, step_run_queue_ns=0))
    assert found.evidence["launch_bound"].state is State.NOT_MEASURED
    assert judge(made()).evidence["launch_bound"].state is State.RULED_OUT


def test_small_waits_alone_acquit_the_loader_only_with_a_reservation(judge: Judge) -> None:
    loader = made(fetch_ms=10, step_ms=50)
    bare = {name: loader.deliveries[name] for name in ("wait_ns", "step_ns", "delivery", "epoch", "iterator")}
    table = type(loader.deliveries)(bare)
    found = judge(type(loader)(loader.name, loader.config, table, loader.fetches))
    assert (found.key, found.verdict.confidence) == ("consumer", 0.6)
    assert "was not measured" in found.verdict.statement


def test_three_deliveries_are_no_ground_for_a_verdict(judge: Judge) -> None:
    found = judge(made(deliveries=3))
    assert (found.key, found.verdict.confidence) == ("inconclusive", 0.0)


def test_waits_without_steps_do_not_acquit_or_convict_the_consumer(judge: Judge) -> None:
    loader = made(fetch_ms=10, step_ms=50)
    columns = {name: column for name, column in loader.deliveries.columns.items() if name != "step_ns"}
    table = type(loader.deliveries)(columns)
    found = judge(type(loader)(loader.name, loader.config, table, loader.fetches))
    assert found.evidence["consumer"].state is State.NOT_MEASURED
    assert found.key != "consumer"


@pytest.mark.parametrize("n", [4, 16, 96])
def test_scores_of_one_budget_never_exceed_the_whole(judge: Judge, n: int) -> None:
    loader = made(deliveries=n, cpu=0.3, thread=0.2, queue=0.4, read_bytes=1 << 22, rchar=1 << 22, threads=9)
    found = judge(loader, environment=Environment(cpus_online=2, cpus_affinity=2))
    parts = ("cpu", "run_queue", "affinity", "quota", "neighbours", "storage", "delivery", "pin")
    assert sum(found.evidence[key].score for key in parts) <= 1 + 1e-9
