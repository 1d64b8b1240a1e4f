"""Block bootstrap intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml_lite.stats.resample import MIN_BLOCKS, block_bootstrap_mean, block_bootstrap_ratio, block_sums


def test_the_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    """A series in blocks that belong together, as rounds of workers do."""
    rng = np.random.default_rng(5)
    covered = 0
    for seed in range(200):
        series = np.repeat(rng.exponential(1.0, 60), 4)
        interval = block_bootstrap_mean(series, 4, seed, level=0.9)
        assert interval is not None
        covered += interval[0] <= 1.0 <= interval[1]
    assert 0.8 <= covered / 200 <= 0.97


def test_blocks_that_are_too_short_make_the_interval_too_narrow() -> None:
    """Why the block must be a multiple of the round."""
    series = np.repeat(np.random.default_rng(1).exponential(1.0, 60), 4)
    single, whole = block_bootstrap_mean(series, 1, 0), block_bootstrap_mean(series, 4, 0)
    assert single is not None
    assert whole is not None
    assert whole[1] - whole[0] > 1.5 * (single[1] - single[0])


def test_the_same_seed_gives_the_same_interval() -> None:
    series = np.random.default_rng(2).random(500)
    assert block_bootstrap_mean(series, 5, 7) == block_bootstrap_mean(series, 5, 7)


def test_there_is_no_interval_from_too_few_blocks() -> None:
    assert block_bootstrap_mean(np.arange(MIN_BLOCKS * 10 - 1), 10, 0) is None


def test_there_is_no_interval_over_nothing() -> None:
    assert block_bootstrap_ratio(np.ones(50), np.zeros(50), 5, 0) is None


@given(st.integers(1, 20), st.integers(0, 10**6))
def test_the_ratio_of_a_series_to_itself_is_certain(block: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(1, 1000, 400)
    assert block_bootstrap_ratio(values, values, block, seed) == (1.0, 1.0)


@given(st.integers(1, 7), st.integers(1, 100))
def test_block_sums_leave_only_the_rest_out(block: int, n: int) -> None:
    values = np.arange(n)
    assert block_sums(values, block).sum() == values[: n // block * block].sum()


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="equal one-dimensional"):
        block_bootstrap_ratio(np.ones(3), np.ones(4), 1, 0)
