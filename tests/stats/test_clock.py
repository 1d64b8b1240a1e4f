"""Periods in seconds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceml_lite.stats.clock import MIN_CLOCK_EVENTS, fit_clock

S = 1_000_000_000


@settings(max_examples=30, deadline=None)
@given(st.integers(6, 40), st.floats(0.1, 100.0), st.floats(0.0, 0.02), st.integers(0, 1000))
def test_a_clock_is_found_with_its_period(count: int, period_s: float, jitter: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = (np.arange(count) + 3 + jitter * rng.standard_normal(count)) * period_s * S
    fit = fit_clock(np.sort(times).astype(np.int64))
    assert fit is not None
    assert fit.p_value < 0.005
    assert fit.period_ns == pytest.approx(period_s * S, rel=0.03)


def test_events_nobody_saw_do_no_harm() -> None:
    ticks = np.array([0, 1, 2, 4, 5, 7, 8, 9, 10, 12])
    fit = fit_clock((ticks * 2 * S).astype(np.int64))
    assert fit is not None
    assert fit.period_ns == pytest.approx(2 * S, rel=0.01)
    assert fit.p_value < 0.005


def test_one_foreign_event_does_no_harm() -> None:
    times = np.sort(np.append(np.arange(15) * 0.5 * S, 2.2 * S)).astype(np.int64)
    fit = fit_clock(times)
    assert fit is not None
    assert fit.period_ns == pytest.approx(0.5 * S, rel=0.02)
    assert fit.deviation < 0.05


@pytest.mark.parametrize("count", [4, 12, 40])
def test_random_times_are_no_clock(count: int) -> None:
    false = 0
    for seed in range(120):
        times = np.cumsum(np.random.default_rng(seed).exponential(S, count)).astype(np.int64)
        fit = fit_clock(times)
        false += fit is not None and fit.p_value < 0.01
    # 1 % of 120 is 1.2; five would happen by chance once in two hundred tests.
    assert false <= 4


def test_a_refractory_time_alone_is_no_clock() -> None:
    """A queue that must first run empty keeps random stalls apart: they look more even than they are."""
    false = 0
    for seed in range(120):
        gaps = S + np.random.default_rng(seed).exponential(S, 12)
        fit = fit_clock(np.cumsum(gaps).astype(np.int64), closest_ns=S)
        false += fit is not None and fit.p_value < 0.01
    assert false <= 4


def test_three_events_are_no_clock() -> None:
    assert fit_clock(np.arange(MIN_CLOCK_EVENTS - 1) * S) is None
