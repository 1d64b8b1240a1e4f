"""Periods in batches against an exact null."""

from __future__ import annotations

import itertools
from math import comb

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from traceml_lite.stats import cadence


@given(st.integers(2, 40), st.integers(0, 39), st.integers(4, 30))
def test_a_perfect_period_is_found_with_its_phase(period: int, phase: int, cycles: int) -> None:
    assume(phase < period)
    total = period * cycles
    events = np.arange(phase, total, period)
    fit = cadence.scan_periods(events, total)
    assert fit is not None
    assert (fit.period, fit.phase, fit.on_phase, fit.recall) == (period, phase, 1.0, 1.0)
    assert fit.explained == pytest.approx(1.0)


@pytest.mark.parametrize(("total", "marked", "drawn", "hits"), [(12, 4, 3, 2), (16, 5, 4, 4), (30, 10, 7, 3)])
def test_the_tail_is_the_share_of_arrangements(total: int, marked: int, drawn: int, hits: int) -> None:
    found = sum(
        comb(marked, k) * comb(total - marked, drawn - k) for k in range(hits, min(drawn, marked) + 1)
    )
    assert cadence.tail_probability(hits, drawn, marked, total) == pytest.approx(found / comb(total, drawn))


def test_the_p_value_of_a_planned_period_is_the_share_of_arrangements_that_do_as_well() -> None:
    """All ways to put three events on twelve places, period 4: exact up to the bound over phases."""
    perfect = cadence.fit_period(np.array([0, 4, 8]), 12, 4)
    as_well = sum(
        max(np.bincount(np.array(places) % 4, minlength=4)) == 3
        for places in itertools.combinations(range(12), 3)
    )
    assert perfect.p_value == pytest.approx(as_well / comb(12, 3))


def test_random_stalls_of_rate_one_in_four_are_no_cadence() -> None:
    """They have a gap of four in 10.5 % of cases, and one phase of four always holds the most."""
    false = 0
    for seed in range(400):
        events = np.flatnonzero(np.random.default_rng(seed).random(64) < 0.25)
        fit = cadence.scan_periods(events, 64)
        false += fit is not None and fit.p_corrected < 0.01
    assert false / 400 <= 0.01


@pytest.mark.parametrize(("workers", "needed"), [(2, 12), (3, 12), (4, 16), (8, 24), (16, 48)])
def test_a_planned_cadence_needs_so_many_deliveries(workers: int, needed: int) -> None:
    """12 at two or three workers, 16 at four, three rounds from eight workers on."""
    found = cadence.deliveries_needed(workers, planned=True)
    assert found <= max(needed, 3 * workers)
    assert cadence.deliveries_needed(workers) >= found


def test_more_periods_tried_need_more_evidence() -> None:
    events = np.arange(0, 24, 4)
    once, many = cadence.fit_period(events, 24, 4), cadence.fit_period(events, 24, 4, tried=10)
    assert many.p_corrected == pytest.approx(10 * once.p_value)


def test_counting_starts_again_at_an_epoch() -> None:
    starts = np.array([0, 25, 50, 75])
    events = np.concatenate([s + np.arange(3, 25, 10) for s in starts])
    apart, through = cadence.fit_period(events, 100, 10, starts), cadence.fit_period(events, 100, 10)
    assert apart.on_phase == 1.0
    assert apart.phase == 3
    assert through.on_phase < 1.0


def test_a_restart_at_a_whole_period_changes_no_fold() -> None:
    # One stretch is folded in one step, several are summed: the same places here.
    events = np.arange(3, 101, 7)
    once = cadence.fit_period(events, 101, 7)
    again = cadence.fit_period(events, 101, 7, restarts=np.array([0, 98]))
    assert (once.places, once.events) == (again.places, again.events)
    assert (once.on_phase, once.recall, once.p_value) == (again.on_phase, again.recall, again.p_value)


def test_events_everywhere_or_nowhere_are_no_period() -> None:
    for events in (np.arange(0), np.arange(40)):
        fit = cadence.fit_period(events, 40, 4)
        assert (fit.log_ratio, fit.p_value, fit.explained) == (0.0, 1.0, 0.0)
    assert cadence.scan_periods(np.arange(40), 40) is None


@given(st.integers(0, 10**6), st.integers(10, 600), st.floats(0.02, 0.6))
def test_pairs_are_counted_as_by_hand(seed: int, n: int, rate: float) -> None:
    mask = np.random.default_rng(seed).random(n) < rate
    lag = min(20, n - 1)
    by_hand = [int((mask[: n - k] & mask[k:]).sum()) for k in range(lag + 1)]
    assert cadence.pair_counts(mask, lag).tolist() == by_hand


def test_pairs_across_blocks_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = np.random.default_rng(4).random(1000) < 0.3
    whole = cadence.pair_counts(mask, 50)
    monkeypatch.setattr(cadence, "CORRELATION_BLOCK", 64)
    assert cadence.pair_counts(mask, 50).tolist() == whole.tolist()


@pytest.mark.parametrize("period", [7, 118, 640])
def test_a_long_run_is_scanned_by_candidates_and_finds_the_same(period: int) -> None:
    rng = np.random.default_rng(period)
    total = 40_000
    events = np.flatnonzero((np.arange(total) % period == 5) | (rng.random(total) < 0.01))
    fit = cadence.scan_periods(events, total)
    assert fit is not None
    assert (fit.period, fit.phase, fit.recall) == (period, 5, 1.0)


def test_a_cadence_of_the_start_is_seen_to_end() -> None:
    """Workers that start in phase look like a lasting cadence in the first rounds."""
    rng = np.random.default_rng(8)
    start = np.arange(0, 64, 4)
    later = 64 + np.flatnonzero(rng.random(936) < 0.25)
    windows = cadence.cadence_by_window(np.concatenate([start, later]), 1000, 4, (4, 16, 64))
    assert windows[0].gap_share == 1.0
    assert windows[-1].gap_share < 0.3
    assert windows[-1].p_value > 0.01
    assert [w.start for w in windows] == [0, 16, 64, 256]


def test_recurrence_survives_a_slip_of_the_phase() -> None:
    events = np.concatenate([np.arange(0, 200, 5), np.arange(203, 400, 5)])
    assert cadence.recurrence(events, 400, 5) > 0.95
    assert cadence.fit_period(events, 400, 5).on_phase < 0.6


def test_a_period_longer_than_the_run_is_refused() -> None:
    with pytest.raises(ValueError, match="period must lie"):
        cadence.fit_period(np.array([1]), 10, 11)
