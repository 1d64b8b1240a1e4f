from __future__ import annotations

import numpy as np
import pytest
from summary_runs import MS, pool, reason, value, with_fetches

from traceml_lite.diagnose.summary import summarize
from traceml_lite.records.run import Run, from_arrays
from traceml_lite.records.summary import Workers


def workers(run: Run) -> Workers:
    found = summarize(run).workers
    assert isinstance(found, Workers), found
    return found


def test_each_worker_has_its_own_line_and_the_pool_one() -> None:
    n = 24
    worker = np.arange(n) % 4
    run = pool(6, cpu_ns=(worker + 1) * 100 * MS // 4, rchar=worker * 1000, pid=100 + worker)
    found = workers(run)
    assert [line.worker for line in found.lines] == [0, 1, 2, 3]
    assert [value(line.cpu_share) for line in found.lines] == pytest.approx([0.0625, 0.125, 0.1875, 0.25])
    assert [value(line.rchar_per_fetch) for line in found.lines] == [0, 1000, 2000, 3000]
    assert [line.pids for line in found.lines] == [(100,), (101,), (102,), (103,)]
    assert value(found.pool.rchar_per_fetch) == 1500
    assert found.pool.fetches == n
    assert sum(value(line.deliveries) for line in found.lines) == n


def test_fetch_times_are_the_workers_own() -> None:
    found = workers(pool(6))
    assert value(found.lines[0].p50_fetch_ns) == 400 * MS
    assert value(found.pool.p95_fetch_ns) == 400 * MS


def test_a_counter_that_was_not_read_is_missing_with_its_reason_and_no_zero() -> None:
    line = workers(pool(6)).lines[0]
    assert reason(line.rchar_per_fetch) == "not given"
    assert reason(line.run_queue_share) == "not given"


def test_a_counter_missing_in_some_fetches_is_the_mean_of_the_others() -> None:
    rchar = np.where(np.arange(24) // 4 == 0, 600, -1)
    line = workers(pool(6, rchar=rchar)).lines[0]
    assert value(line.rchar_per_fetch) == 600
    assert line.rchar_per_fetch.n == 1  # type: ignore[union-attr]


def test_a_counter_missing_in_every_fetch_of_one_worker_is_missing_there_only() -> None:
    rchar = np.where(np.arange(24) % 4 == 2, -1, 600)
    lines = workers(pool(6, rchar=rchar)).lines
    assert reason(lines[2].rchar_per_fetch)
    assert value(lines[1].rchar_per_fetch) == 600


def test_a_process_that_changes_within_an_epoch_is_found() -> None:
    n = 24
    pid = 100 + np.arange(n) % 4
    pid[(np.arange(n) % 4 == 2) & (np.arange(n) >= 12)] = 900
    found = workers(pool(6, pid=pid))
    assert found.n_pid_changes == 1
    assert isinstance(found.pid_changes, tuple)
    change = found.pid_changes[0]
    assert (change.worker, change.before_pid, change.after_pid) == (2, 102, 900)


def test_new_processes_at_the_start_of_an_epoch_are_no_change() -> None:
    one = pool(6)
    epoch = np.repeat([0, 1], 12)
    table = dict(one.main.deliveries.columns) | {
        "epoch": epoch,
        "iterator": epoch,
        "delivery": np.tile(np.arange(12), 2),
        "pid": 100 + np.arange(24) % 4 + 10 * epoch,
    }
    found = workers(from_arrays(num_workers=4, prefetch_factor=2, **table))
    assert found.n_pid_changes == 0
    assert found.lines[0].n_pids == 2
    assert found.pool.n_pids == 8


def test_without_the_worker_of_a_fetch_there_is_still_the_pool() -> None:
    run = from_arrays(
        wait_ns=[1, 1],
        fetch_start_ns=[0, 5],
        fetch_end_ns=[5, 11],
        ask_ns=[4, 10],
        got_ns=[5, 11],
        num_workers=3,
    )
    found = workers(run)
    assert found.lines == ()
    assert found.pool.fetches == 2
    assert "needs the worker" in reason(found.pid_changes)


def test_of_a_big_pool_the_slowest_and_the_fastest_are_notable() -> None:
    run = with_fetches(pool(4, workers=32))
    table = dict(run.main.fetches.columns)
    start = table["fetch_start_ns"].copy()
    start[table["worker"] == 7] -= 300 * MS
    start[table["worker"] == 21] += 100 * MS
    found = workers(with_fetches(pool(4, workers=32), fetch_start_ns=start))
    assert len(found.lines) == 32
    assert len(found.notable) <= 8
    assert found.notable[0] == 7
    assert 21 in found.notable


def test_fetches_of_the_consumer_itself_are_a_line() -> None:
    run = from_arrays(
        wait_ns=[5, 5],
        step_ns=[1, 1],
        fetch_start_ns=[0, 6],
        fetch_end_ns=[4, 10],
        cpu_ns=[4, 2],
        num_workers=0,
    )
    found = workers(run)
    assert [line.worker for line in found.lines] == [-1]
    assert value(found.lines[0].cpu_share) == pytest.approx(0.75)


def test_a_fetch_has_not_waited_longer_for_a_cpu_than_it_took() -> None:
    line = workers(pool(6, run_queue_ns=[900 * MS] * 24)).lines[0]
    assert value(line.run_queue_share) == pytest.approx(1)
