"""The traps of the catalogue: a diagnosis that falls into one names a cause that is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from traceml_lite.records.results import State
from traceml_lite.simulate.labelled import labelled_run

MS = 1_000_000
Diagnose = Callable[..., Any]
PERIODIC = {"data_period", "worker_period", "clock_period", "saturated_pool", "slow_worker"}
FOUR = {"num_workers": 4, "in_order": True}


def test_a_gap_of_the_workers_is_told_apart_by_fetch_times_only(diagnose: Diagnose) -> None:
    """A pool that cannot keep up and one slow worker stall alike, at the same worker's batches."""
    pool = labelled_run("pool", 256, 7, **FOUR, fetch_cv=0.01, cores=4)
    slow = labelled_run("straggler", 256, 7, **FOUR, slow_worker=0)
    for columns, options, shape in (pool, slow):
        assert diagnose(columns, options)[0].key == shape
        without, evidence, _ = diagnose(columns, options, fetches=False)
        assert {"saturated_pool", "slow_worker"} <= set(without.candidates)
        assert without.confidence < 0.8
        assert evidence["slow_worker"].missing


def test_the_worker_of_a_stalled_delivery_is_no_evidence_when_ordered(diagnose: Diagnose) -> None:
    columns, options, _ = labelled_run("pool", 128, 9, **FOUR)
    waits = {k: v for k, v in columns.items() if k not in ("fetch_start_ns", "fetch_end_ns")}
    bare = {k: v for k, v in waits.items() if k != "worker"}
    assert diagnose(waits, options)[0] == diagnose(bare, options)[0]
    stalls = columns["wait_ns"] > np.median(columns["wait_ns"]) * 10
    blamed = {**columns, "worker": np.where(stalls, 0, columns["worker"])}
    assert diagnose(blamed, options)[0].key == "saturated_pool"


@pytest.mark.parametrize("n", [16, 64, 256])
def test_random_stalls_are_not_called_periodic(n: int, diagnose: Diagnose) -> None:
    """At a rate of one in four, one gap in ten is four: a cadence needs its null."""
    called = []
    for seed in range(120):
        columns, options, _ = labelled_run("poisson_hard", n, 7000 + seed)
        verdict, _, _ = diagnose(columns, options)
        called.append(verdict.key in PERIODIC - {"saturated_pool"})
    assert sum(called) <= 2


def test_a_drift_is_not_called_periodic(diagnose: Diagnose) -> None:
    called = []
    for seed in range(60):
        columns, options, _ = labelled_run("drift", 128, 7000 + seed)
        called.append(diagnose(columns, options)[0].key in PERIODIC - {"saturated_pool"})
    assert sum(called) <= 1


def test_a_cadence_of_the_first_rounds_is_reported_as_that(diagnose: Diagnose) -> None:
    """Unordered delivery: workers start in step and lose it within some (0.3/cv)^2 rounds."""
    columns, options, _ = labelled_run(
        "pool_desync", 1024, 3, num_workers=4, in_order=False, fetch_cv=0.3, load=4.0, cores=4
    )
    verdict, _, findings = diagnose(columns, options)
    assert verdict.key == "saturated_pool"
    window = next(f for f in findings if f.key == "cadence_by_window")
    assert window.numbers["last_gap_share"] < 0.3
    assert window.numbers["fetch_cv"] == pytest.approx(0.3, abs=0.05)


def test_a_period_that_prefetch_hides_is_found_in_the_fetch_times(diagnose: Diagnose) -> None:
    """Every second heavy batch is hidden: the waits show twice the period, the fetches the period."""
    n, step, base, heavy, period = 240, 10 * MS, 4 * MS, 160 * MS, 10
    rank = np.arange(n)
    fetch = np.where(rank % period == 3, heavy, base)
    waits = np.where(rank % (2 * period) == 3, heavy - 60 * MS, 20_000)
    got = np.cumsum(waits + step) - step
    end = np.where(waits > MS, got, got - 3 * MS - waits)
    columns = {
        "wait_ns": waits,
        "step_ns": np.full(n, step),
        "ask_ns": got - waits,
        "got_ns": got,
        "rank": rank,
        "worker": rank % 3,
        "fetch_start_ns": end - fetch,
        "fetch_end_ns": end,
    }
    options = {"num_workers": 3, "prefetch_factor": 4, "in_order": True}
    verdict, evidence, _ = diagnose(columns, options)
    assert verdict.key == "data_period"
    assert evidence["data_period"].numbers["period_batches"] == period
    hidden = {**columns, "wait_ns": np.full(n, 20_000), "step_ns": np.full(n, step)}
    hidden["ask_ns"] = np.cumsum(hidden["wait_ns"] + step)
    hidden["got_ns"] = hidden["ask_ns"] + 20_000
    hidden["fetch_end_ns"] = hidden["ask_ns"] - MS
    hidden["fetch_start_ns"] = hidden["fetch_end_ns"] - fetch
    verdict, _, findings = diagnose(hidden, options)
    assert verdict.key == "none"
    assert any(f.key == "hidden_data_period" and f.numbers["period_batches"] == period for f in findings)


def test_every_fetch_of_a_slow_uniform_loader_is_a_stall_and_the_shape_is_uniform(diagnose: Diagnose) -> None:
    """A relative threshold calls none of them a stall, an absolute one all or none by the host's speed."""
    columns, options, _ = labelled_run("uniform", 64, 2, num_workers=0)
    for factor in (1, 100):
        scaled = {k: v * factor if k.endswith("_ns") else v for k, v in columns.items()}
        assert diagnose(scaled, options)[0].key == "uniform"


def test_a_data_period_of_the_worker_count_names_the_slow_worker_beside_it(diagnose: Diagnose) -> None:
    columns, options, _ = labelled_run("data_multW", 256, 5, **FOUR, times=1)
    verdict, evidence, _ = diagnose(columns, options)
    assert set(verdict.candidates) == {"slow_worker", "data_period"}
    assert verdict.confidence < 0.8
    # What shows the one shows the other: neither's ranks speak against the verdict.
    assert "modulo 4" in evidence["data_period"].supports[0]
    assert not evidence["data_period"].contradicts
    assert all(evidence[key].state is not State.RULED_OUT for key in verdict.candidates)


def test_unordered_a_data_period_of_the_worker_count_is_told_from_a_slow_worker(diagnose: Diagnose) -> None:
    """The worker of a rank is no longer its residue."""
    n, step = 240, 10 * MS
    rank = np.arange(n)
    fetch = np.where(rank % 4 == 1, 120 * MS, 6 * MS)
    worker = np.random.default_rng(0).integers(0, 4, n)
    waits = np.where(rank % 4 == 1, 50 * MS, 20_000)
    got = np.cumsum(waits + step)
    columns = {
        "wait_ns": waits,
        "step_ns": np.full(n, step),
        "ask_ns": got - waits,
        "got_ns": got,
        "rank": rank,
        "worker": worker,
        "fetch_start_ns": got - fetch,
        "fetch_end_ns": got,
    }
    verdict, evidence, _ = diagnose(columns, {"num_workers": 4, "prefetch_factor": 2, "in_order": False})
    assert verdict.key == "data_period"
    assert not verdict.candidates
    assert evidence["slow_worker"].state is State.RULED_OUT


def _taken_late(per_step: float) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """A run whose batches are made long before they are asked for, and taken late by a part of a step."""
    rng = np.random.default_rng(1)
    columns, options, _ = labelled_run("healthy", 256, 4, num_workers=4, in_order=True)
    late = (rng.exponential(per_step, 256) * np.median(columns["step_ns"])).astype(np.int64)
    # Each delivery is later by what all before it were late: asks, returns and fetches move along.
    shift = np.cumsum(late)
    busy = {
        **columns,
        "wait_ns": columns["wait_ns"] + late,
        "ask_ns": columns["ask_ns"] + shift - late,
        "got_ns": columns["got_ns"] + shift,
        "fetch_start_ns": columns["fetch_start_ns"] + shift - late,
        "fetch_end_ns": columns["fetch_end_ns"] + shift - late,
    }
    return busy, options


def test_a_batch_that_lay_ready_is_no_reason_to_blame_the_loader(diagnose: Diagnose) -> None:
    """A consumer without CPU waits in next() as well, for batches that were made long ago."""
    busy, options = _taken_late(0.4)
    assert busy["wait_ns"].sum() / (busy["wait_ns"].sum() + busy["step_ns"].sum()) > 0.2
    verdict, evidence, _ = diagnose(busy, options)
    assert verdict.key == "inconclusive"
    assert verdict.candidates == ("none",)
    assert all(e.state is not State.SUPPORTED for e in evidence.values())


def test_a_loop_that_waits_for_made_batches_is_not_said_to_be_well(diagnose: Diagnose) -> None:
    """A quarter of the time is lost: that no batch was still being made does not explain it."""
    busy, options = _taken_late(0.4)
    verdict, evidence, _ = diagnose(busy, options)
    assert verdict.confidence < 0.6
    assert "not measured" in verdict.statement
    queued = {**busy, "wait_run_queue_ns": busy["wait_ns"] // 2}
    queued["wait_run_queue_ns"][::3] = -1  # It is read now and then.
    verdict, evidence, _ = diagnose(queued, options)
    assert "the loop's own thread had no CPU in 50 % of its waits" in verdict.statement
    assert "the loop's own thread had no CPU in 50 %" in evidence["none"].contradicts[0]


def test_waits_no_longer_than_any_handover_leave_the_loader_well(diagnose: Diagnose) -> None:
    """In a quick loop a hand-over of a millisecond is a large share, and no loader is without it."""
    busy, options = _taken_late(0.4)
    usual = float(np.mean(busy["wait_ns"]))
    quick = {k: (v * (MS / usual)).astype(np.int64) if k.endswith("_ns") else v for k, v in busy.items()}
    assert diagnose(quick, options)[0].key == "none"


@pytest.mark.parametrize(("handing_ms", "shape"), [(4.5, "none"), (14.0, "uniform")])
def test_a_handover_on_a_cpu_that_had_slept_is_no_uniform_loader(
    diagnose: Diagnose, handing_ms: float, shape: str
) -> None:
    """Behind steps of 40 ms an idle virtual machine needs 3.5 to 4.6 ms for a batch that is ready."""
    n, rng = 120, np.random.default_rng(3)
    wait = (handing_ms * MS * (1 + 0.1 * rng.standard_normal(n))).astype(np.int64)
    step = np.full(n, 40 * MS)
    ask = 200 * MS + np.concatenate([[0], np.cumsum(wait + step)[:-1]])
    start = np.maximum(ask - 4 * 40 * MS, 0)
    columns = {
        "wait_ns": wait, "step_ns": step, "ask_ns": ask, "got_ns": ask + wait, "rank": np.arange(n),
        "worker": np.arange(n) % 2, "fetch_start_ns": start, "fetch_end_ns": start + 13 * MS,
    }  # fmt: skip
    verdict, _, findings = diagnose(columns, {"num_workers": 2, "prefetch_factor": 2, "in_order": True})
    assert verdict.key == shape
    assert [f.key for f in findings if f.key == "handing_over"] == ["handing_over"] * (shape == "none")


def test_the_sureness_of_a_loader_that_keeps_up_falls_with_the_waiting(diagnose: Diagnose) -> None:
    found = [diagnose(*_taken_late(per_step))[1]["none"].score for per_step in (0.01, 0.05, 0.13, 0.4)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.9
    assert found[-1] < 0.5


def test_a_few_hiccups_of_the_host_do_not_hide_a_saturated_pool(diagnose: Diagnose) -> None:
    columns, options, _ = labelled_run("pool", 256, 12, **FOUR, fetch_cv=0.05, cores=4)
    longer = columns["fetch_end_ns"] - columns["fetch_start_ns"]
    hiccup = {**columns, "fetch_start_ns": columns["fetch_start_ns"].copy()}
    for at in (50, 130, 131):
        hiccup["fetch_start_ns"][at] -= 4 * int(longer[at])
    assert diagnose(hiccup, options)[0].key == "saturated_pool"


def test_all_workers_slow_at_every_third_turn_are_not_a_clock(diagnose: Diagnose) -> None:
    """They are slow at the same moments too, and evenly while the steps are even."""
    columns, options, _ = labelled_run("worker_local", 256, 3)
    verdict, evidence, _ = diagnose(columns, options)
    assert verdict.key == "worker_period"
    assert evidence["clock_period"].state is State.RULED_OUT


def test_one_slow_batch_in_sixteen_is_not_named_with_much_confidence(diagnose: Diagnose) -> None:
    columns, options, _ = labelled_run("healthy", 16, 3, num_workers=2, in_order=True)
    at = 9
    extra = 6 * int(np.median(columns["step_ns"]))
    one = {k: v.copy() for k, v in columns.items()}
    one["wait_ns"][at] += extra
    one["got_ns"][at:] += extra
    one["ask_ns"][at + 1 :] += extra
    one["fetch_end_ns"][at] = one["got_ns"][at]
    verdict, _, _ = diagnose(one, options)
    assert verdict.confidence < 0.8


def test_an_undecided_run_says_what_it_cannot_tell_and_how_many_deliveries_would(diagnose: Diagnose) -> None:
    columns, options, _ = labelled_run("straggler", 16, 120, num_workers=8, in_order=True)
    verdict, _, _ = diagnose(columns, options)
    assert verdict.key == "inconclusive"
    assert "more deliveries" in verdict.statement
    assert verdict.confidence < 0.5
