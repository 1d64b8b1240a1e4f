from dataclasses import replace

import numpy as np
import pytest

from traceml_lite._errors import MissingColumnError
from traceml_lite.records.run import LoaderConfig, Table, from_arrays
from traceml_lite.simulate.model import Demands, Host, simulate
from traceml_lite.simulate.replay import recorded, replay

MS = 1_000_000


def work(n=96, io_ms=30.0, cpu_ms=0.0, step_ms=8.0, cv=0.3, seed=3):
    rng = np.random.default_rng(seed)
    spread = np.exp(cv * rng.standard_normal(n) - cv * cv / 2)
    return Demands(io_ns=io_ms * MS * spread, cpu_ns=cpu_ms * MS * spread, step_ns=np.full(n, step_ms * MS))


def trace_of(demands, workers, cores=float("inf"), **options):
    config = LoaderConfig(num_workers=workers, prefetch_factor=2, in_order=True, **options)
    return simulate(demands, config, host=Host(cores=cores)).run().main


def period_ns(demands, cores=float("inf"), **options):
    run = simulate(demands, LoaderConfig(**options), host=Host(cores=cores))
    return run.wait_ns.mean() + run.columns["step_ns"].mean()


@pytest.mark.parametrize(
    "target", [(0, None, True), (1, 2, True), (4, 2, True), (8, 1, False), (3, 4, False)]
)
@pytest.mark.parametrize(("io_ms", "cpu_ms", "cores"), [(30, 0, float("inf")), (0, 40, 2.0), (20, 20, 2.0)])
def test_a_replay_predicts_what_the_model_makes_of_the_true_demands(target, io_ms, cpu_ms, cores):
    demands = work(io_ms=io_ms, cpu_ms=cpu_ms)
    workers, prefetch, in_order = target
    seen = replay(
        trace_of(demands, 2, cores),
        num_workers=workers,
        prefetch_factor=prefetch,
        in_order=in_order,
        cores=cores,
    )
    truth = period_ns(demands, cores, num_workers=workers, prefetch_factor=prefetch, in_order=in_order)
    assert seen.mean_period_ns == pytest.approx(truth, rel=0.03)
    assert abs(seen.own_error) < 0.02


def test_cpu_bound_fetches_do_not_get_faster_beyond_the_cores():
    trace = trace_of(work(io_ms=0, cpu_ms=40, step_ms=1), 1)
    waits = {w: replay(trace, num_workers=w, cores=2).mean_wait_ns for w in (1, 2, 4, 8)}
    assert waits[2] < 0.6 * waits[1]
    assert waits[4] == pytest.approx(waits[2], rel=0.1)
    assert waits[8] == pytest.approx(waits[2], rel=0.2)


def test_time_spent_waiting_for_a_cpu_is_no_demand():
    demands = work(io_ms=0, cpu_ms=40)
    seen = recorded(trace_of(demands, 6, cores=2.0))
    assert seen.demands.cpu_ns.sum() == pytest.approx(demands.cpu_ns.sum(), rel=0.01)
    assert seen.demands.io_ns.sum() < 0.01 * demands.cpu_ns.sum()
    assert any("waiting for a CPU" in note for note in seen.notes)


def test_epochs_are_replayed_as_epochs():
    seen = replay(trace_of(work(n=90), 2, batches=30), num_workers=4)
    assert seen.simulated.columns["epoch"].max() == 2
    assert len(seen.simulated) == 90


def test_a_fetch_that_was_not_measured_copies_its_neighbour_and_is_said():
    trace = trace_of(work(n=20, cv=0.0), 2)
    start = trace.deliveries["fetch_start_ns"].copy()
    start[5] = -1
    columns = {**trace.deliveries.columns, "fetch_start_ns": start}
    holed = replace(trace, deliveries=Table(columns, trace.deliveries.absent))
    seen = recorded(holed)
    assert seen.demands.io_ns == pytest.approx(np.full(20, 30.0 * MS), rel=0.01)
    assert "1 of 20 fetches were not measured" in seen.notes[0]


def test_missing_counters_are_said_and_not_taken_for_zero_silently():
    run = simulate(work(), LoaderConfig(num_workers=2, prefetch_factor=2, in_order=True))
    names = ("wait_ns", "step_ns", "ask_ns", "got_ns", "fetch_start_ns", "fetch_end_ns", "worker", "rank")
    columns = {name: run.columns[name] for name in names}
    trace = from_arrays(**columns, num_workers=2, prefetch_factor=2, in_order=True).main
    notes = " ".join(recorded(trace).notes)
    assert "CPU time was not measured" in notes
    assert "run-queue delay was not measured" in notes


def test_a_trace_without_fetches_cannot_be_replayed_and_says_so():
    trace = from_arrays(wait_ns=[1, 2, 3], step_ns=[1, 1, 1], num_workers=2).main
    with pytest.raises(MissingColumnError, match="fetch_start_ns"):
        replay(trace, num_workers=4)


def test_a_loader_of_unknown_workers_cannot_be_replayed():
    run = simulate(work(), LoaderConfig(num_workers=2))
    trace = replace(run.run().main, config=LoaderConfig())
    with pytest.raises(MissingColumnError, match="num_workers"):
        replay(trace, num_workers=4)
