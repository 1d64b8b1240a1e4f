from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from summary_runs import MS, chain, pool, reason, value, with_fetches, with_trace

from traceml_lite.diagnose.summary import summarize
from traceml_lite.diagnose.summary.context import host_pressure
from traceml_lite.records.run import Event, Run, Table
from traceml_lite.records.summary import Edge, Edges

S = 10**9


def edges_of(*events: Event) -> Edges:
    epoch = np.repeat([0, 1], 5)
    run = chain(
        np.tile([40, 1, 1, 1, 1], 2),
        [9] * 10,
        epoch=epoch,
        delivery=np.tile(np.arange(5), 2),
        num_workers=2,
        prefetch_factor=1,
    )
    return summarize(with_trace(run, events=events)).edges


def test_start_and_epochs_are_told_from_the_steady_state() -> None:
    found = edges_of(
        Event("iterator", 0, 0, {"epoch": 0, "iter_ns": 100 * MS, "pids": [1, 2]}),
        Event("epoch_end", 1, 0, {"epoch": 0, "deliveries": 5, "stop_ns": 30 * MS}),
        Event("epoch_start", 2, 0, {"epoch": 1, "iter_ns": 10 * MS}),
        Event("closed", 3, 0, {"epoch": 1, "deliveries": 5}),
    )
    assert isinstance(found.first, Edge)
    assert isinstance(found.later, Edge)
    assert value(found.first.iter_ns) == 100 * MS
    assert value(found.first.first_wait_ns) == 40 * MS
    assert value(found.first.warm_up_wait_ns) == 41 * MS
    assert value(found.first.stop_ns) == 30 * MS
    assert value(found.later.iter_ns) == 10 * MS
    assert "StopIteration" in reason(found.later.stop_ns)
    assert found.broken_off == 1
    # 140 ms outside next(), 80 ms of first waits, of 140 + 178 ms in all.
    assert value(found.share) == pytest.approx(220 / 318)


def test_without_events_the_first_waits_are_still_there() -> None:
    found = edges_of()
    assert isinstance(found.later, Edge)
    assert value(found.later.first_wait_ns) == 40 * MS
    assert "no events" in reason(found.later.iter_ns)
    assert "no events" in reason(found.share)


def test_a_dead_worker_and_an_error_are_told_in_words() -> None:
    found = edges_of(
        Event("worker_gone", 5 * S, 0, {"worker": 1, "pid": 42, "rank": 7, "since_ns": 2 * S}),
        Event("worker_gone", 5 * S, 0, {"worker": 0, "pid": 41, "rank": None, "since_ns": None}),
        Event("error", 6 * S, 0, {"epoch": 1, "deliveries": 3, "rank": 4, "type": "KeyError", "worker": 0}),
    )
    assert found.errors == (
        "worker 1 (PID 42) died 3 s into rank 7",
        "worker 0 (PID 41) died between fetches",
        "KeyError in epoch 1 after 3 deliveries, rank 4, worker 0",
    )


def test_shares_of_the_step_rest_on_the_steps_that_were_sampled() -> None:
    run = chain([1] * 4, [10, 20, 10, 10], step_cpu_ns=[5 * MS, 20 * MS, -1, -1], wait_cpu_ns=[MS, 0, -1, -1])
    step = summarize(run).consumer
    assert value(step.cpu_share) == pytest.approx(25 / 30)
    assert step.cpu_share.n == 2  # type: ignore[union-attr]
    assert value(step.wait_cpu_share) == pytest.approx(0.5)
    assert value(step.p50_step_ns) == 10 * MS
    assert reason(step.run_queue_share) == "not given"


def host(**columns: list[int]) -> Table:
    return Table(
        {name: np.array(values, dtype=np.int64) for name, values in columns.items()},
        {"throttled_ns": "no cgroup"},
    )


def test_cores_of_others_are_the_busy_ones_less_ours() -> None:
    found = host_pressure(
        host(
            time_ns=[0, S, 2 * S],
            cpu_busy_ns=[0, 3 * S, 6 * S],
            own_cpu_ns=[0, S, 2 * S],
            pressure_cpu_ns=[0, S // 2, S],
        )
    )
    assert value(found.own_cores) == pytest.approx(1)
    assert value(found.other_cores) == pytest.approx(2)
    assert value(found.pressure_cpu_share) == pytest.approx(0.5)
    assert reason(found.throttled_share) == "no cgroup"
    assert "does not have it" in reason(found.steal_cores)


def test_a_stretch_in_which_one_of_our_processes_ended_is_left_out() -> None:
    found = host_pressure(
        host(time_ns=[0, S, 2 * S, 3 * S], cpu_busy_ns=[0, 2 * S, 4 * S, 6 * S], own_cpu_ns=[0, S, 0, S])
    )
    assert value(found.own_cores) == pytest.approx(1)
    assert value(found.other_cores) == pytest.approx(1)
    assert found.other_cores.n == 2  # type: ignore[union-attr]


def test_one_reading_of_the_host_gives_no_rate() -> None:
    assert "two readings" in reason(host_pressure(host(time_ns=[0], cpu_busy_ns=[5])).other_cores)
    assert "not watched" in reason(host_pressure(Table({})).own_cores)


def test_readings_that_failed_are_no_zeros() -> None:
    found = host_pressure(
        host(time_ns=[0, S], pressure_io_ns=[-1, -1], open_files=[-1, 7], shm_used_bytes=[-1, 3])
    )
    assert reason(found.pressure_io_share)
    assert value(found.peak_shm_bytes) == 3
    assert value(found.open_files_growth) == 0


def test_the_probes_cost_is_its_own_time_over_the_loops() -> None:
    run = replace(
        with_fetches(pool(6)),
        probe_cost={
            "consumer_ns": 24 * 1000.0,
            "worker_ns": 24 * 4000.0,
            "records": 24.0,
            "dropped": 0.0,
            "fixed_cpu_ns": 5.0,
        },
    )
    cost = summarize(run).probe
    assert value(cost.consumer_ns_per_delivery) == 1000
    assert value(cost.worker_ns_per_fetch) == 4000
    assert value(cost.worker_share) == pytest.approx(4000 / (400 * MS))
    waited = int(run.main.deliveries["wait_ns"].sum())
    assert value(cost.consumer_share) == pytest.approx(24_000 / (waited + 24 * 10 * MS))


def test_a_trace_that_does_not_know_the_probes_cost_says_so() -> None:
    assert "what recording it cost" in reason(summarize(pool(6)).probe.consumer_share)


def test_other_loaders_get_one_line_each_and_are_not_mixed_in() -> None:
    run = pool(6)
    other = with_trace(chain([90] * 3, [10] * 3, num_workers=1), name="validation", delivered=3).main
    both = Run("two", (*run.loaders, other))
    summary = summarize(both)
    assert summary.subject.deliveries == 24
    (line,) = summary.others
    assert (line.name, line.num_workers, line.deliveries) == ("validation", 1, 3)
    assert value(line.wait_share) == pytest.approx(0.9)


def test_what_is_absent_for_one_reason_is_said_together() -> None:
    absences = {absence.reason: absence.what for absence in summarize(chain([1, 2], [1, 1])).not_measured}
    assert "fetches in the workers" in absences["not given"]
    assert "step time" not in absences["not given"]
    assert absences["the host was not watched in this run"] == ("pressure of the host",)


def test_a_single_absent_counter_is_named_in_words() -> None:
    run = pool(6, **{name: [1] * 24 for name in ("cpu_ns", "pid")})
    trace = run.main
    denied = dict(trace.deliveries.absent) | {"rchar": "no permission to read /proc/self/io"}
    run = with_trace(run, deliveries=Table(trace.deliveries.columns, denied))
    absences = {absence.reason: absence for absence in summarize(run).not_measured}
    found = absences["no permission to read /proc/self/io"]
    assert found.what == ("bytes asked for by read calls (rchar)",)
    assert found.columns == ("rchar",)


def test_a_capability_that_was_missing_is_named() -> None:
    run = replace(pool(6), capabilities={"hooks": "torch 9 is not known", "rchar": None})
    assert ("hooks",) in [absence.what for absence in summarize(run).not_measured]


def test_an_iterator_that_was_made_and_never_asked_is_no_epoch() -> None:
    found = edges_of(
        Event("iterator", 0, 0, {"epoch": 0, "iter_ns": 100 * MS}),
        Event("iterator", 1, 7, {"epoch": 0, "iter_ns": 1 * MS}),
        Event("epoch_start", 2, 0, {"epoch": 1, "iter_ns": 10 * MS}),
    )
    assert isinstance(found.later, Edge)
    assert found.later.epochs == 1


def test_the_share_of_the_edges_weighs_a_sampled_run() -> None:
    run = chain([100] + [2] * 999, [8] * 1000, num_workers=1, prefetch_factor=1)
    made = (Event("iterator", 0, 0, {"epoch": 0, "iter_ns": 100 * MS}),)
    kept = np.arange(1000) % 10 == 0
    sampled = with_trace(
        run,
        events=made,
        deliveries=run.main.deliveries.take(kept),
        sampled="1 in 10",
        delivered=1000,
        sampled_floor_ns=50 * MS,
    )
    whole = summarize(with_trace(run, events=made)).edges.share
    assert value(summarize(sampled).edges.share) == pytest.approx(value(whole), rel=0.01)


def test_the_probes_cost_per_fetch_counts_the_fetches_that_were_not_kept() -> None:
    run = with_trace(with_fetches(pool(6)), sampled="some", delivered=2400, sampled_floor_ns=MS)
    cost = summarize(replace(run, probe_cost={"worker_ns": 2400 * 4000.0, "records": 2400.0})).probe
    assert value(cost.worker_ns_per_fetch) == 4000
