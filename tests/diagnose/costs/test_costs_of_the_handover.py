from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest_costs import Judge, host, made

from traceml_lite.diagnose.costs.budget import waits_of
from traceml_lite.records.results import State, Verdict
from traceml_lite.records.run import Event


def slow_handover(**more: object) -> object:
    """Two quick workers, and a consumer that needs 25 ms to unpickle each batch."""
    return made(workers=2, fetch_ms=2, unpickle_ms=25, step_ms=2, **more)  # type: ignore[arg-type]


def test_batches_that_arrive_long_after_their_fetch_cost_delivery(judge: Judge) -> None:
    found = judge(slow_handover())
    assert found.key == "delivery"
    assert found.evidence["cpu"].state is State.RULED_OUT


def test_a_worker_that_never_rests_is_the_limit_however_late_its_batches_arrive(judge: Judge) -> None:
    # A fetch that computes in Python keeps the thread that sends the batch before from running: every batch
    # arrives late, and yet they arrive as fast as they are fetched.
    found = judge(made(workers=1, fetch_ms=13, handover_ms=9, step_ms=2, cpu=0.98))
    assert found.key == "cpu"


def test_what_any_worker_needs_to_hand_over_is_not_blamed(judge: Judge) -> None:
    # 1.1 ms before each step of 12 ms is 8 % of the time, and no setting of the loader takes it away.
    found = judge(made(workers=4, fetch_ms=20, cpu=0.02, unpickle_ms=1.1, step_ms=12, queue_size=3), cpus=4)
    assert found.key == "consumer"


def test_a_handover_on_a_cpu_that_had_slept_is_not_blamed_and_a_longer_one_is(judge: Judge) -> None:
    # 4.5 ms behind steps of 40 ms, mostly the loop's own CPU time: what an idle virtual machine takes.
    cold = made(
        workers=2, fetch_ms=13, cpu=0.2, unpickle_ms=4.5, step_ms=40, queue_size=4, wait_cpu_ns=3_700_000
    )
    assert judge(cold).key == "consumer"
    long = made(
        workers=2, fetch_ms=13, cpu=0.2, unpickle_ms=14, step_ms=40, queue_size=4, wait_cpu_ns=12_000_000
    )
    assert judge(long).key == "delivery"


def test_on_a_busy_host_a_short_handover_may_be_its_threads_waiting_for_a_cpu(judge: Judge) -> None:
    rates = {"cpu_busy_ns": 4.0, "own_cpu_ns": 0.5}
    loader = made(workers=2, fetch_ms=2, unpickle_ms=5, step_ms=2, queue=0.3, cpu=0.7)
    found = judge(loader, rates=rates)
    assert found.key == "inconclusive"
    assert found.verdict.candidates == ("delivery", "neighbours")


def test_a_consumer_that_unpickles_is_a_slow_handover_on_any_host(judge: Judge) -> None:
    rates = {"cpu_busy_ns": 4.0, "own_cpu_ns": 0.5}
    loader = made(workers=2, fetch_ms=2, unpickle_ms=5, step_ms=2, queue=0.3, cpu=0.7, wait_cpu_ns=3_000_000)
    assert judge(loader, rates=rates).key == "delivery"


def test_pinning_is_named_when_fetched_batches_stand_before_an_empty_pinned_queue(judge: Judge) -> None:
    loader = slow_handover(config={"pin_memory": True}, queue_size=0)
    assert judge(loader).key == "pin"


def test_pinning_is_ruled_out_where_it_is_off_and_not_measured_where_nobody_knows(judge: Judge) -> None:
    off = judge(slow_handover(config={"pin_memory": False}, queue_size=0))
    assert (off.key, off.evidence["pin"].state) == ("delivery", State.RULED_OUT)
    unknown = judge(slow_handover(queue_size=0))
    assert unknown.evidence["pin"].state is State.NOT_MEASURED


def test_pinned_batches_that_are_ready_rule_pinning_out(judge: Judge) -> None:
    found = judge(slow_handover(config={"pin_memory": True}, queue_size=2))
    assert (found.key, found.evidence["pin"].state) == ("delivery", State.RULED_OUT)


def test_starting_the_workers_is_the_cost_of_short_epochs(judge: Judge) -> None:
    events = (Event("epoch_start", 0, 0, {"epoch": 0, "iter_ns": 4_000_000_000}),)
    found = judge(made(deliveries=40, fetch_ms=5, step_ms=10, cpu=0.1, handover_ms=0.1, events=events))
    assert found.key == "start"
    assert "4.0" in found.verdict.statement


def test_starting_is_not_blamed_for_a_steady_state_that_waits(judge: Judge) -> None:
    events = (Event("epoch_start", 0, 0, {"epoch": 0, "iter_ns": 4_000_000_000}),)
    assert judge(made(events=events)).key == "cpu"


def test_a_shape_that_says_the_epochs_begin_slowly_has_their_beginnings_judged(judge: Judge) -> None:
    events = (Event("epoch_start", 0, 0, {"epoch": 0, "iter_ns": 400_000_000}),)
    loader = made(deliveries=400, fetch_ms=5, step_ms=10, cpu=0.1, events=events)
    assert judge(loader).key == "consumer"
    assert judge(loader, shape=Verdict("epoch_boundary", 0.95, "")).key == "start"


def test_descriptors_that_only_grow_are_reported_as_a_leak(judge: Judge) -> None:
    table = host(cpu_busy_ns=2.0, own_cpu_ns=2.0, open_files=100.0)
    found = judge(made(), readings=table)
    assert found.evidence["shm"].state is State.SUPPORTED
    assert found.key == "cpu"
    assert "leak" in [finding.key for finding in found.findings]


def test_descriptors_that_come_and_go_are_no_leak(judge: Judge) -> None:
    table = host(cpu_busy_ns=2.0, own_cpu_ns=2.0)
    columns = dict(table.columns) | {
        "open_files": np.array([20, 90, 200, 90, 220, 80, 210, 90, 220, 80, 200])
    }
    found = judge(made(), readings=type(table)(columns))
    assert found.evidence["shm"].state is State.RULED_OUT


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_every_wait_is_split_into_parts_that_add_up_to_it(workers: int) -> None:
    loader = made(workers=workers, fetch_ms=np.linspace(1, 90, 96), handover_ms=3)
    waits = waits_of(loader)
    assert (waits.starting_ns + waits.fetching_ns + waits.handover_ns == waits.wait_ns).all()
    assert min(waits.starting_ns.min(), waits.fetching_ns.min(), waits.handover_ns.min()) >= 0


def test_a_wait_is_charged_to_the_fetch_that_ran_meanwhile() -> None:
    # Every fourth fetch is long and keeps the batch before it from being sent.
    lengths = np.where(np.arange(96) % 4 == 3, 200.0, 4.0)
    loader = made(workers=1, fetch_ms=lengths, handover_ms=0.05)
    table = loader.deliveries
    late = np.array(table["got_ns"])
    before = np.flatnonzero(lengths[1:] == 200.0)
    late[before] = np.array(table["fetch_end_ns"])[before + 1] - 1_000_000
    held = type(table)(
        dict(table.columns) | {"got_ns": late, "wait_ns": np.maximum(late - table["ask_ns"], 0)}
    )
    waits = waits_of(replace(loader, deliveries=held))
    assert waits.for_fetch_ns[lengths == 200.0].sum() > 20 * waits.for_fetch_ns[lengths == 4.0].sum()
