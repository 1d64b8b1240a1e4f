from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from conftest_costs import Judge, host, made

from traceml_lite.records.results import State
from traceml_lite.records.run import Environment, Event


def test_a_fetch_that_computes_all_the_time_costs_cpu(judge: Judge) -> None:
    found = judge(made(cpu=0.98, queue=0.01))
    assert found.key == "cpu"
    assert found.verdict.confidence > 0.9
    assert found.evidence["run_queue"].state is State.RULED_OUT


def test_more_busy_workers_than_cpus_cost_run_queue_and_the_sentence_says_what_a_batch_needs(
    judge: Judge,
) -> None:
    found = judge(
        made(cpu=0.12, queue=0.87, fetch_ms=1670),
        cpus=2,
        readings=host(3000, 2, cpu_busy_ns=2.0, own_cpu_ns=2.0),
    )
    assert found.key == "run_queue"
    assert "200 ms" in found.verdict.statement
    assert "4 workers and the loop share 2 CPUs" in found.verdict.statement


def test_the_delay_is_the_neighbours_when_they_have_the_cpus(judge: Judge) -> None:
    found = judge(made(workers=2, cpu=0.2, queue=0.8), cpus=4, rates={"cpu_busy_ns": 4.0, "own_cpu_ns": 0.4})
    assert found.key == "neighbours"
    assert found.evidence["neighbours"].numbers["other_cores"] == pytest.approx(3.6, abs=0.1)


def test_stolen_time_counts_as_a_neighbour(judge: Judge) -> None:
    rates = {"cpu_busy_ns": 1.0, "own_cpu_ns": 1.0, "cpu_steal_ns": 3.0}
    assert judge(made(workers=2, cpu=0.2, queue=0.8), cpus=4, rates=rates).key == "neighbours"


def test_a_delay_shared_by_own_workers_and_neighbours_names_both(judge: Judge) -> None:
    # Three runnable workers and three others on two CPUs: half of the delay would stay without the others.
    rates = {"cpu_busy_ns": 2.0, "own_cpu_ns": 1.0}
    found = judge(made(workers=3, cpu=0.2, queue=0.8), cpus=2, rates=rates)
    assert found.key == "inconclusive"
    assert set(found.verdict.candidates) == {"run_queue", "neighbours"}


def test_without_the_machines_totals_the_neighbours_are_not_measured_and_the_verdict_says_so(
    judge: Judge,
) -> None:
    found = judge(made(cpu=0.2, queue=0.8), cpus=2, readings=host(0.1, 1))
    assert found.evidence["neighbours"].state is State.NOT_MEASURED
    assert "who else used the CPUs was not measured" in found.evidence["run_queue"].supports


def test_run_queue_delay_that_nobody_read_is_not_taken_for_zero(judge: Judge) -> None:
    found = judge(made(cpu=0.3, queue=None))
    assert found.key == "inconclusive"
    for key in ("run_queue", "threads", "affinity", "lock"):
        assert found.evidence[key].state is State.NOT_MEASURED, key


def test_a_disk_is_named_with_a_reservation_when_run_queue_delay_was_not_read(judge: Judge) -> None:
    found = judge(made(cpu=0.05, queue=None, read_bytes=8 << 20, rchar=8 << 20))
    assert (found.key, found.verdict.confidence) == ("storage", 0.7)


def test_a_quota_is_named_only_by_its_own_counters(judge: Judge) -> None:
    loader = made(cpu=0.2, queue=0.8)
    throttled = judge(loader, rates={"throttled_periods": 9.0, "throttled_ns": 0.7})
    assert throttled.key == "quota"
    assert judge(loader, cpus=2).key == "run_queue"
    unread = judge(loader, cpus=2, readings=host(cpu_busy_ns=2.0, own_cpu_ns=2.0))
    assert unread.evidence["quota"].state is State.NOT_MEASURED


def test_a_quota_is_named_even_where_computing_takes_as_long_as_being_stopped(judge: Judge) -> None:
    found = judge(made(cpu=0.55, queue=0.45), rates={"throttled_periods": 9.0, "throttled_ns": 0.4})
    assert found.key == "quota"


def test_a_mask_of_one_cpu_is_named_when_the_environment_or_a_worker_reports_it(judge: Judge) -> None:
    slow = {"cpu": 0.24, "queue": 0.75}
    inherited = judge(made(**slow), environment=Environment(cpus_online=8, cpus_affinity=1))
    assert inherited.key == "affinity"
    events = tuple(Event("worker_start", 0, 0, {"worker": w, "pid": w, "cpus_affinity": 1}) for w in range(4))
    reported = judge(made(**slow, events=events), cpus=8)
    assert reported.key == "affinity"


def test_one_cpu_shared_by_all_workers_while_others_idle_is_taken_for_a_mask(judge: Judge) -> None:
    found = judge(made(cpu=0.25, queue=0.74), cpus=8, rates={"cpu_busy_ns": 1.1, "own_cpu_ns": 1.1})
    assert found.key == "affinity"
    assert "idle" in found.evidence["affinity"].supports[0]


def test_helper_threads_that_fight_for_cpus_are_named_and_helpers_with_cpus_to_spare_are_not(
    judge: Judge,
) -> None:
    crowded = made(cpu=0.9, thread=0.2, queue=0.3, threads=11)
    assert judge(crowded, cpus=2).key == "threads"
    assert judge(made(cpu=0.95, thread=0.4, threads=4), cpus=32).key == "cpu"


def test_the_thread_that_sends_batches_is_not_taken_for_helper_threads(judge: Judge) -> None:
    found = judge(made(cpu=0.9, thread=0.5, threads=3), cpus=2)
    assert found.evidence["threads"].state is State.RULED_OUT


def test_blocked_fetches_that_read_the_device_cost_storage(judge: Judge) -> None:
    found = judge(made(cpu=0.05, read_bytes=8 << 20, rchar=8 << 20), rates={"pressure_io_ns": 0.9})
    assert found.key == "storage"
    assert found.evidence["lock"].state is not State.SUPPORTED


def test_a_few_bytes_read_from_the_device_do_not_explain_a_long_block(judge: Judge) -> None:
    found = judge(made(cpu=0.02, fetch_ms=500, read_bytes=4096, rchar=4096))
    assert found.key == "inconclusive"
    assert found.evidence["storage"].state is State.RULED_OUT


def test_a_machine_without_io_pressure_was_not_waiting_for_its_disk(judge: Judge) -> None:
    found = judge(made(cpu=0.02, read_bytes=1 << 20, rchar=1 << 20), rates={"pressure_io_ns": 0.01})
    assert found.evidence["storage"].state is State.RULED_OUT


def test_reads_of_fetches_that_nobody_waited_for_are_not_denied(judge: Judge) -> None:
    # The table of workers shows the bytes of all fetches; the first of them is not judged.
    read = np.zeros(96, np.int64)
    read[0] = 4096
    loader = made(cpu=0.02, read_bytes=read, major_faults=0, rchar=0)
    (text,) = judge(loader).evidence["storage"].contradicts
    assert text == (
        "the fetches that were waited for read no byte from a device and took no major fault; "
        "all fetches together read 4.00 KiB"
    )
    (text,) = judge(made(cpu=0.02, read_bytes=0, rchar=0)).evidence["storage"].contradicts
    assert text == "the fetches read no byte from a device and took no major fault"


def test_the_share_in_a_sentence_is_the_ratio_of_its_two_times(judge: Judge) -> None:
    # Every other fetch is long and computes little: a mean of ratios is far from the ratio of the means.
    even = np.arange(96) % 8 == 0
    found = judge(made(fetch_ms=np.where(even, 400.0, 30.0), cpu=np.where(even, 0.1, 0.9), workers=2))
    text = found.evidence["cpu"].supports[0]
    match = re.fullmatch(
        r"a fetch that was waited for takes (\d+) ms, of which its thread computes ([\d.]+) ms \((\d+) %\)",
        text,
    )
    assert match, text
    wall, busy, share = (float(word) for word in match.groups())
    assert share == pytest.approx(100 * busy / wall, abs=1)


def test_a_long_delay_that_is_not_the_pools_own_says_whose_it_is(judge: Judge) -> None:
    rates = {"cpu_busy_ns": 4.0, "own_cpu_ns": 0.4}
    found = judge(made(workers=2, cpu=0.2, queue=0.8), cpus=4, rates=rates)
    assert found.evidence["run_queue"].state is not State.SUPPORTED
    (text,) = found.evidence["run_queue"].contradicts
    assert text.startswith("run-queue delay is 80 % of a fetch that was waited for, but ")
    assert text.endswith("of the delay goes to other processes")


def test_major_faults_alone_are_enough_for_storage(judge: Judge) -> None:
    assert judge(made(cpu=0.05, major_faults=40, read_bytes=None)).key == "storage"


def test_bytes_that_no_device_read_cost_remote_with_a_bounded_confidence(judge: Judge) -> None:
    found = judge(made(cpu=0.03, rchar=2 << 20))
    assert found.key == "remote"
    assert found.verdict.confidence <= 0.8


def test_remote_needs_rchar(judge: Judge) -> None:
    found = judge(made(cpu=0.03, rchar=None))
    assert found.key == "inconclusive"
    assert found.evidence["remote"].state is State.NOT_MEASURED
    assert found.verdict.candidates == ("remote", "lock")


def test_the_page_cache_is_not_remote_as_nothing_is_blocked(judge: Judge) -> None:
    assert judge(made(cpu=0.97, rchar=64 << 20)).key == "cpu"


def test_a_sleep_is_given_no_name(judge: Judge) -> None:
    found = judge(made(cpu=0.01))
    assert found.key == "inconclusive"
    assert found.evidence["lock"].state is State.UNDECIDED
    assert "a lock, a sleep or a remote service" in found.verdict.statement


def test_workers_that_take_turns_from_the_first_fetch_on_share_a_lock(judge: Judge) -> None:
    found = judge(made(turns=True, fetch_ms=20, step_ms=2, cpu=0.01))
    assert found.key == "lock"
    assert found.evidence["lock"].numbers["first_fetch_ratio"] == pytest.approx(0.25, abs=0.02)


def test_a_pool_that_only_happens_to_be_staggered_is_not_a_lock(judge: Judge) -> None:
    # Evenly shifted sleepers end one after the other too; but their first fetches are as long as later ones.
    lengths = np.full(96, 100.0)
    lengths[:4] = [100, 125, 150, 175]
    found = judge(made(fetch_ms=lengths, cpu=0.01))
    assert found.evidence["lock"].numbers["short_turn_share"] <= 0.05
    assert found.key == "inconclusive"


def test_one_worker_alone_cannot_show_a_lock(judge: Judge) -> None:
    found = judge(made(workers=1, turns=True, cpu=0.01))
    assert found.evidence["lock"].state is State.UNDECIDED


def test_the_fetches_behind_the_waits_decide_not_the_many_quick_ones(judge: Judge) -> None:
    slow = np.arange(200) % 20 == 10
    lengths = np.where(slow, 1500.0, 30.0)
    found = judge(
        made(deliveries=200, fetch_ms=lengths, step_ms=10, cpu=np.where(slow, 0.02, 1.0),
             read_bytes=np.where(slow, 64 << 20, 0), rchar=np.where(slow, 64 << 20, 100))
    )  # fmt: skip
    assert found.key == "storage"


def test_workers_that_grow_and_fault_cost_memory(judge: Judge) -> None:
    grown = (np.linspace(200, 900, 400) * (1 << 20)).astype(np.int64)
    found = judge(made(deliveries=400, workers=2, fetch_ms=8, step_ms=1, rss_bytes=grown, minor_faults=900))
    assert found.key == "memory"
    assert found.verdict.confidence <= 0.75


def test_faults_without_growth_are_ordinary_work(judge: Judge) -> None:
    assert judge(made(fetch_ms=8, step_ms=1, minor_faults=900)).key == "cpu"


def test_growth_that_costs_no_time_is_a_finding_and_not_the_verdict(judge: Judge) -> None:
    grown = (np.linspace(200, 900, 400) * (1 << 20)).astype(np.int64)
    found = judge(made(deliveries=400, workers=2, rss_bytes=grown))
    assert found.key == "cpu"
    assert [finding.key for finding in found.findings] == ["memory_growth"]


def test_two_causes_of_equal_weight_are_both_named(judge: Judge) -> None:
    found = judge(made(cpu=0.5, queue=0.0, read_bytes=8 << 20, rchar=8 << 20))
    assert found.key == "inconclusive"
    assert set(found.verdict.candidates) == {"cpu", "storage"}


def test_without_workers_the_fetch_is_the_wait_itself(judge: Judge) -> None:
    assert judge(made(workers=0, fetch_ms=30, cpu=0.99)).key == "cpu"


def test_waits_alone_have_no_cost_and_say_why(judge: Judge) -> None:
    loader = made()
    waits = replace(loader, deliveries=loader.deliveries.take(slice(None)))
    bare = {name: waits.deliveries[name] for name in ("wait_ns", "step_ns", "delivery", "epoch", "iterator")}
    table = type(loader.deliveries)(bare, {"fetch_end_ns": "another tool's export"})
    found = judge(replace(loader, deliveries=table))
    assert found.key == "inconclusive"
    assert "not measured" in found.verdict.statement
    assert found.evidence["cpu"].state is State.NOT_MEASURED
