from dataclasses import replace

import numpy as np
import pytest

from traceml_lite.stats.laws import StallSeries, gap_laws, throughput_law

MS = 1_000_000


def series(workers, at, n=64, pace_ms=10.0, seed=0, jitter=0.15, slow=None):
    """Stalls at given deliveries, at a pace with jitter."""
    stalled = np.zeros(n, dtype=bool)
    stalled[np.asarray(at, dtype=int)] = True
    rng = np.random.default_rng([seed, workers])
    steps = pace_ms * MS * (1 + jitter * rng.uniform(-1, 1, n))
    time = np.concatenate([[0.0], np.cumsum(steps + 40 * MS * stalled)[:-1]]).astype(np.int64)
    return StallSeries(workers, stalled, time, slow=slow)


def every(period, n=64, phase=0):
    return np.arange(phase, n, period)


def sweep(gap, workers=(1, 2, 4, 4, 2, 1), **options):
    return [series(w, every(gap(w)), seed=i, **options) for i, w in enumerate(workers)]


def test_stalls_every_num_workers_batches_are_proportional():
    found = gap_laws(sweep(lambda w: w, workers=(2, 3, 4, 4, 3, 2)))
    assert found.key == "proportional"
    assert found.workers == (2, 3, 4)
    assert found.delta_bic > 10


def test_the_seeds_sixteen_deliveries_at_two_and_four_workers_settle_it():
    found = gap_laws([series(w, every(w, 16), n=16, seed=i) for i, w in enumerate((4, 2, 1, 1, 2, 4))])
    assert found.key == "proportional"


def test_one_number_of_workers_alone_settles_nothing():
    found = gap_laws([series(4, every(4), seed=i) for i in range(6)])
    assert found.key == "undecided"
    assert found.reason


def test_one_worker_whose_every_wait_is_a_stall_adds_nothing_to_four():
    found = gap_laws([series(w, every(w), seed=i) for i, w in enumerate((1, 4, 4, 1))])
    assert found.key == "undecided"
    assert found.workers == (4,)


@pytest.mark.parametrize("period", [3, 5, 7, 12])
def test_a_gap_that_does_not_move_is_constant_in_batches(period):
    found = gap_laws(sweep(lambda w: period, jitter=0.6))
    assert (found.key, found.fit("constant_batches").parameter) == ("constant_batches", period)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_gaps_of_k_times_the_workers_are_multiple_and_say_what_would_look_the_same(k):
    found = gap_laws(sweep(lambda w: k * w))
    assert (found.key, found.fit("multiple").parameter) == ("multiple", k)
    assert "in parallel" in found.reason


def test_stalls_at_a_fixed_time_at_uneven_paces_are_constant_in_seconds():
    passes = []
    for i, w in enumerate((1, 2, 4, 4, 2, 1)):
        rng = np.random.default_rng(i)
        time = np.cumsum(rng.uniform(4, 16, 96) * MS * (3 if w == 1 else 1)).astype(np.int64)
        ticks = np.arange(rng.uniform(50, 150) * MS, time[-1], 150 * MS)
        stalled = np.zeros(96, dtype=bool)
        stalled[np.unique(np.searchsorted(time[:-1], ticks))] = True
        passes.append(StallSeries(w, stalled, time))
    found = gap_laws(passes)
    assert found.key == "constant_seconds"
    assert found.fit("constant_seconds").parameter == pytest.approx(150 * MS, rel=0.06)


def test_batches_and_seconds_cannot_be_told_apart_at_an_even_pace():
    found = gap_laws(sweep(lambda w: 8, jitter=0.0))
    assert found.key in ("undecided", "constant_seconds") or found.fit("constant_batches").gain > 0
    assert found.key == "undecided"
    assert "pace" in found.reason or "constant_seconds" in found.reason


def test_the_same_random_stalls_in_every_pass_are_one_run_and_not_six():
    wrong = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        at = np.flatnonzero(rng.random(64) < 0.15)
        found = gap_laws([series(w, at, seed=i) for i, w in enumerate((1, 2, 4, 4, 2, 1))])
        wrong += found.key not in ("none", "undecided")
    assert wrong <= 1


def test_independent_random_stalls_are_hardly_ever_called_a_law():
    wrong = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rate = rng.uniform(0.1, 0.4)
        order = (2, 4, 4, 2)
        passes = [series(w, np.flatnonzero(rng.random(96) < rate), n=96, seed=i) for i, w in enumerate(order)]
        wrong += gap_laws(passes).key not in ("none", "undecided")
    assert wrong <= 1


def test_hardly_any_stalls_are_undecided_and_not_none():
    found = gap_laws([series(w, [20, 50], seed=i) for i, w in enumerate((2, 4))])
    assert found.key == "undecided"


def test_waits_that_are_all_alike_have_no_gap():
    found = gap_laws([series(w, every(1), seed=w) for w in (2, 4)])
    assert found.key == "none"
    assert "no gaps" in found.reason


def test_no_pass_at_all_is_undecided():
    assert gap_laws([]).key == "undecided"


def test_slow_fetches_at_the_same_ranks_outweigh_stalls_at_multiples():
    slow = np.arange(64) % 3 == 0
    found = gap_laws(sweep(lambda w: 3 * w, slow=slow))
    assert (found.key, found.by_fetches) == ("constant_batches", True)
    assert found.fit("constant_batches").parameter == 3


def test_where_all_fetches_are_alike_only_the_pool_makes_gaps():
    passes = [replace(one, alike=True) for one in sweep(lambda w: 2, workers=(2, 4, 4, 2))]
    found = gap_laws(passes)
    assert {f.key for f in found.fits} == {"none", "proportional"}
    assert found.key == "proportional" or found.reason


def test_a_phase_that_slips_keeps_its_gap():
    at = {w: np.concatenate([every(w, 32), every(w, 64, 33)[every(w, 64, 33) >= 33]]) for w in (2, 3, 5)}
    found = gap_laws([series(w, at[w], seed=i) for i, w in enumerate((2, 3, 5, 5, 3, 2))])
    assert found.key == "proportional"


@pytest.mark.parametrize(
    ("rates", "cpus", "key", "knee"),
    [
        ({1: 10, 2: 20, 4: 40, 8: 80}, None, "grows", None),
        ({1: 10, 2: 20, 4: 20, 8: 20}, None, "flat", 2),
        ({1: 10, 2: 10, 4: 10}, None, "flat", 1),
        ({1: 10, 2: 20, 4: 30, 8: 30}, 3.0, "flat", 3),
        ({1: 10, 2: 20, 4: 14, 8: 10}, None, "falls", 2),
        ({1: 10, 2: 15.2, 4: 23, 8: 35}, None, "grows", 1),
    ],
)
def test_the_shape_of_throughput(rates, cpus, key, knee):
    rng = np.random.default_rng(1)
    workers = np.array([w for w in rates for _ in range(3)])
    measured = np.array([rates[w] for w in workers]) * np.exp(0.01 * rng.standard_normal(len(workers)))
    found = throughput_law(workers, measured, cpus)
    assert (found.key, found.knee) == (key, knee)


def test_throughput_that_scatters_as_much_as_it_moves_is_undecided():
    found = throughput_law(np.array([1, 2, 1, 2]), np.array([10.0, 14.0, 14.0, 20.0]))
    assert found.key == "undecided"


def test_throughput_at_one_setting_says_nothing_and_nonsense_is_refused():
    assert throughput_law(np.array([4, 4]), np.array([1.0, 1.1])).key == "undecided"
    with pytest.raises(ValueError, match="above 0"):
        throughput_law(np.array([1, 2]), np.array([1.0, 0.0]))


def test_uniform_waits_of_which_a_threshold_cuts_some_off_follow_no_law() -> None:
    random = np.random.default_rng(4)
    passes = []
    for workers in (1, 2, 4, 4, 2, 1):
        stalled = random.random(96) < 0.75
        passes.append(StallSeries(workers, stalled, np.cumsum(np.full(96, 50_000_000))))
    assert gap_laws(passes).key == "none"
