"""Quantiles, the stall threshold and shares of waiting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml_lite.stats import tails

MS = 1_000_000
times = st.lists(st.integers(0, 10**12), min_size=1, max_size=200).map(lambda x: np.array(x, dtype=np.int64))


def waits(stalled: np.ndarray, stall_ns: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    small = rng.exponential(0.1 * MS, stalled.size)
    return np.where(stalled, stall_ns * rng.uniform(0.7, 1.3, stalled.size), small).astype(np.int64)


@pytest.mark.parametrize("share", [0.03, 0.25, 1.0])
@pytest.mark.parametrize("n", [64, 4096, 100_000])
def test_the_threshold_finds_the_stalls_whatever_their_share(share: float, n: int) -> None:
    rng = np.random.default_rng(n)
    stalled = rng.random(n) < share if share < 1 else np.ones(n, dtype=bool)
    wait = waits(stalled, 900 * MS, 1)
    threshold = tails.stall_threshold_ns(wait, np.full(n, 100 * MS))
    assert np.array_equal(tails.stalls(wait, threshold.value_ns), stalled)


def test_a_loader_that_keeps_up_has_no_stall() -> None:
    wait = waits(np.zeros(500, dtype=bool), 0, 2)
    threshold = tails.stall_threshold_ns(wait, np.full(500, 50 * MS))
    assert threshold.method == "share of the step"
    assert not tails.stalls(wait, threshold.value_ns).any()


def test_a_threshold_that_is_given_is_taken_as_it_is() -> None:
    threshold = tails.stall_threshold_ns(np.array([1, 2, 3]), None, given_ns=5_000 * MS)
    assert (threshold.value_ns, threshold.method, threshold.modes) == (5_000 * MS, "given", None)


def test_without_steps_the_floor_is_what_a_person_notices() -> None:
    wait = np.full(50, 10_000, dtype=np.int64)
    assert tails.stall_threshold_ns(wait, None).value_ns == tails.STALL_FLOOR_UNKNOWN_STEP_NS


def test_one_outlier_does_not_hide_its_siblings() -> None:
    wait = np.array([0] * 40 + [200 * MS] * 10 + [100_000 * MS], dtype=np.int64)
    threshold = tails.stall_threshold_ns(wait, np.full(51, 50 * MS))
    # Half the waiting that carries 90 % is the outlier's: it is what must be above the threshold.
    assert threshold.value_ns < 100_000 * MS


@given(times, st.integers(2, 50))
def test_the_threshold_scales_with_the_clock(wait: np.ndarray, factor: int) -> None:
    """Ten times slower in all is the same loop."""
    wait = np.maximum(wait, tails.WAIT_FLOOR_NS * 2)
    step = np.full(wait.size, 40 * tails.WAIT_FLOOR_NS, dtype=np.int64)
    once = tails.stall_threshold_ns(wait, step)
    more = tails.stall_threshold_ns(wait * factor, step * factor)
    assert more.method == once.method
    assert more.value_ns == pytest.approx(once.value_ns * factor, rel=1e-6, abs=factor)


@given(times)
def test_quantiles_lie_between_the_ends_and_rise(values: np.ndarray) -> None:
    low, middle, high = tails.quantiles(values, (0.0, 0.5, 1.0))
    assert values.min() == low <= middle <= high == values.max()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 64, 101, 20_000])
@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_medians_and_quantiles_are_those_of_numpy(n: int, kind: type[np.number]) -> None:
    rows = np.random.default_rng(n).integers(0, 10**9, (3, n)).astype(kind)
    assert np.array_equal(tails.medians(rows), np.median(rows, axis=-1))
    assert tails.median(rows[0]) == np.median(rows[0])
    whole = rows[0].astype(np.int64)
    shares = (0.0, 0.1, 0.5, 0.95, 1.0)
    assert tails.quantiles(whole, shares) == pytest.approx(np.quantile(whole, shares))


def test_there_is_no_quantile_of_nothing() -> None:
    assert np.isnan(tails.quantiles(np.zeros(0, dtype=np.int64), (0.5,))[0])


@given(times)
def test_shares_lie_between_zero_and_one(wait: np.ndarray) -> None:
    step = np.ones(wait.size, dtype=np.int64)
    threshold = tails.stall_threshold_ns(wait, step)
    stalled = tails.stalls(wait, threshold.value_ns)
    for share in (
        tails.wait_share(wait, step),
        tails.stall_wait_share(wait, stalled),
        tails.top_share(wait, 0.1),
    ):
        assert 0.0 <= share <= 1.0


def test_negative_times_are_refused() -> None:
    with pytest.raises(ValueError, match="1 values are negative"):
        tails.wait_share(np.array([1, -1]), np.array([1, 1]))


@given(st.integers(5, 60), st.integers(5, 60), st.floats(0.8, 2.5), st.integers(0, 10**6))
def test_two_modes_are_split_between_them(low: int, high: int, decades: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.concatenate([10 ** rng.normal(7, 0.05, low), 10 ** rng.normal(7 + decades, 0.05, high)])
    modes = tails.split_modes(values)
    assert modes is not None
    assert modes.two
    assert modes.high_share == pytest.approx(high / (low + high))
    assert modes.decades == pytest.approx(decades, abs=0.15)


@given(st.integers(60, 2000), st.integers(0, 10**6))
def test_one_mode_is_not_called_two(n: int, seed: int) -> None:
    modes = tails.split_modes(10 ** np.random.default_rng(seed).normal(7, 0.3, n))
    assert modes is not None
    assert not modes.two


def test_the_histogram_splits_where_the_exact_search_does() -> None:
    rng = np.random.default_rng(3)
    values = np.where(
        rng.random(50_000) < 0.02, 10 ** rng.normal(8.2, 0.1, 50_000), 10 ** rng.normal(7, 0.1, 50_000)
    )
    coarse, exact = tails.split_modes(values), tails.split_modes(values[: tails.EXACT_SPLIT_SIZE])
    assert coarse is not None
    assert exact is not None
    assert np.log10(coarse.split / exact.split) == pytest.approx(0, abs=0.1)
    assert coarse.decades == pytest.approx(exact.decades, abs=0.05)
