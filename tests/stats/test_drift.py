"""Trends and changes of level by ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml_lite.stats.drift import MAX_POINTS, block_medians, change_point, trend


# A quarter of 64 and more: the medians of five points and six move by more than the tolerance.
@given(st.integers(64, 3000), st.floats(1.5, 8.0), st.integers(0, 10**6))
def test_a_growth_is_found_and_measured(n: int, growth: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    series = (1 + (growth - 1) * np.linspace(0, 1, n)) * rng.uniform(0.95, 1.05, n)
    fit = trend(series)
    assert fit is not None
    assert fit.spearman > 0.85
    assert fit.p_value < 1e-4
    # The last quarter's median over the first's: seven eighths of the way over one eighth.
    expected = (1 + (growth - 1) * 0.875) / (1 + (growth - 1) * 0.125)
    assert fit.growth == pytest.approx(expected, rel=0.15)


@given(st.integers(0, 10**6))
def test_the_order_turns_with_time(seed: int) -> None:
    series = np.random.default_rng(seed).random(200)
    forward, backward = trend(series), trend(series[::-1])
    assert forward is not None
    assert backward is not None
    assert forward.spearman == pytest.approx(-backward.spearman, abs=1e-9)


def test_noise_is_no_trend_more_often_than_it_may_be() -> None:
    fits = [trend(np.random.default_rng(seed).random(64)) for seed in range(300)]
    assert sum(fit is not None and fit.p_value < 0.01 for fit in fits) <= 9


def test_a_jump_is_placed() -> None:
    rng = np.random.default_rng(0)
    series = np.concatenate([rng.uniform(1, 1.2, 300), rng.uniform(3, 3.6, 200)])
    change = change_point(series)
    assert change is not None
    assert abs(change.at - 300) <= 3
    assert change.after / change.before == pytest.approx(3.0, rel=0.05)
    assert change.p_value < 1e-6


def test_too_little_is_no_answer() -> None:
    assert trend(np.arange(5)) is None
    assert trend(np.ones(100)) is None
    assert change_point(np.arange(5)) is None


@given(st.integers(1, 50_000), st.integers(1, 64))
def test_blocks_are_bounded_in_number(n: int, block: int) -> None:
    assert block_medians(np.arange(n), block).size <= max(MAX_POINTS * 2, n if block == 1 else 0)


def test_a_few_huge_values_make_no_trend() -> None:
    series = np.random.default_rng(1).random(400)
    series[-3:] = 1e9
    fit = trend(series)
    assert fit is not None
    assert abs(fit.spearman) < 0.2
