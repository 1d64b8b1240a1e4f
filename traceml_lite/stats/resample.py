"""Intervals by the block bootstrap, for means and shares of a series whose neighbours depend on each other.

Only means and ratios of sums are offered: intervals of high quantiles, Gini or top shares from one run
covered the truth in 32 to 88 % of cases at a nominal 90 %, so no function here makes one.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

# Resamples: the ends of a 95 % interval then rest on 25 draws each.
RESAMPLES = 1000
# Fewer blocks than this cannot show how much blocks differ.
MIN_BLOCKS = 5
# Blocks above this number are merged: the interval no longer changes, the cost would.
MAX_BLOCKS = 256


def block_sums(values: NDArray[np.number], block: int) -> NDArray[np.float64]:
    """Sums of consecutive whole blocks; a shorter rest at the end is left out."""
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}")
    array = np.asarray(values)
    count = array.size // block
    sums: NDArray[np.float64] = array[: count * block].reshape(count, block).sum(axis=1, dtype=np.float64)
    return sums


def _coarse(n: int, block: int) -> int:
    blocks = n // block
    return block * max(1, -(-blocks // MAX_BLOCKS))


@functools.lru_cache(maxsize=2)
def _draws(blocks: int, seed: int, resamples: int) -> NDArray[np.float64]:
    """How often each block is drawn in each resample; shares of one run are resampled alike."""
    random = np.random.default_rng(seed)
    drawn = random.multinomial(blocks, np.full(blocks, 1.0 / blocks), size=resamples)
    counts: NDArray[np.float64] = drawn.astype(np.float64)
    counts.flags.writeable = False
    return counts


def block_bootstrap_ratio(
    numerator: NDArray[np.number],
    denominator: NDArray[np.number],
    block: int,
    seed: int,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> tuple[float, float] | None:
    """Interval of ``sum(numerator) / sum(denominator)`` by resampling blocks with replacement.

    Args:
        numerator: Shape ``(n,)``, e.g. waits.
        denominator: Shape ``(n,)``, e.g. waits plus steps.
        block: Deliveries per block; a multiple of the number of workers keeps rounds whole.
        seed: Of the resampling, so that the same run prints the same interval.
        level: Coverage aimed at, in ``(0, 1)``.
        resamples: How many resamples.

    Returns:
        ``(low, high)``, or None where no valid interval exists: fewer than five blocks, or a denominator
        that can be zero.

    Raises:
        ValueError: Different shapes, or ``block`` or ``level`` out of range.

    Source: H. R. Künsch, "The jackknife and the bootstrap for general stationary observations", 1989.
    """
    top, bottom = np.asarray(numerator), np.asarray(denominator)
    if top.shape != bottom.shape or top.ndim != 1:
        raise ValueError(f"expected two equal one-dimensional shapes, got {top.shape} and {bottom.shape}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), got {level}")
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}")
    block = _coarse(top.size, block)
    tops, bottoms = block_sums(top, block), block_sums(bottom, block)
    if tops.size < MIN_BLOCKS:
        return None
    counts = _draws(tops.size, seed, resamples)
    below = counts @ bottoms
    if (below <= 0).any():
        return None
    ratios = (counts @ tops) / below
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def block_bootstrap_mean(
    values: NDArray[np.number], block: int, seed: int, level: float = 0.95, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """Interval of the mean of a dependent series; see ``block_bootstrap_ratio`` for the arguments."""
    array = np.asarray(values)
    return block_bootstrap_ratio(array, np.ones(array.size), block, seed, level, resamples)
