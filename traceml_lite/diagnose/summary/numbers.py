"""Estimates from arrays, with their intervals where a valid one exists and the reason where none does.

The statistics themselves are in ``stats``; here they are put into records.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from traceml_lite.records.results import Estimate
from traceml_lite.records.summary import Measured, NotMeasured
from traceml_lite.stats.resample import MIN_BLOCKS, RESAMPLES, block_bootstrap_ratio
from traceml_lite.stats.tails import median, quantiles

LEVEL = 0.95
# The same run prints the same interval.
SEED = 20240229
# Blocks per resample: 200 tell the spread of the blocks to 5 %, at a tenth of the time of 2000.
MAX_BLOCKS = 200

QUANTILE_METHOD = "linear interpolation; no interval, one run gives none for a quantile of a pool"
WEIGHED_METHOD = "weighed by what each kept delivery stands for; no interval"
TOTALS_METHOD = "ratio of totals"
MEAN_METHOD = "mean; no interval"


def quantile_estimates(
    values: NDArray[Any], shares: tuple[float, ...], weight: NDArray[np.float64] | None = None
) -> tuple[Estimate, ...]:
    """Quantiles of measured values; no interval, as none is valid.

    Args:
        values: Shape ``(n,)``, n at least 1.
        shares: Each in ``[0, 1]``.
        weight: How many values each stands for, in a sampled trace.

    Returns:
        One estimate per share.
    """
    n = len(values)
    if weight is None:
        return tuple(Estimate(q, n=n, method=QUANTILE_METHOD) for q in quantiles(values, shares))
    by_value = np.argsort(values, kind="stable")
    up_to = np.cumsum(weight[by_value])
    at = np.minimum(np.searchsorted(up_to, np.asarray(shares) * up_to[-1]), n - 1)
    return tuple(Estimate(float(q), n=n, method=WEIGHED_METHOD) for q in values[by_value][at])


def ratio_estimate(top: NDArray[Any], bottom: NDArray[Any], block: int, *, what: str) -> Measured:
    """``sum(top) / sum(bottom)`` with a block bootstrap interval.

    Args:
        top: Shape ``(n,)``.
        bottom: Shape ``(n,)``, its sum positive, or the ratio is not measured.
        block: Deliveries per block.
        what: What a zero denominator means, for the reason.

    Returns:
        The ratio; without an interval where there are too few blocks.
    """
    n = len(top)
    total = float(bottom.sum(dtype=np.float64)) if n else 0.0
    if total <= 0:
        return NotMeasured(what)
    value = float(top.sum(dtype=np.float64)) / total
    blocks = min(n // block, MAX_BLOCKS)
    if blocks < MIN_BLOCKS:
        return Estimate(
            value, n=n, method=f"no interval: fewer than {MIN_BLOCKS} blocks of {block} deliveries"
        )
    # Blocks of all deliveries, their lengths equal to within one: a rest left out would shift the interval.
    starts = np.linspace(0, n, blocks, endpoint=False).astype(np.intp)
    ends = block_bootstrap_ratio(
        np.add.reduceat(top, starts, dtype=np.float64),
        np.add.reduceat(bottom, starts, dtype=np.float64),
        1,
        SEED,
        _expanded(LEVEL, blocks),
    )
    if ends is None:
        return Estimate(value, n=n, method="no interval: too many blocks without any time in them")
    method = f"block bootstrap, {blocks} blocks, {RESAMPLES} resamples, expanded percentiles"
    return Estimate(value, *ends, LEVEL, n, method)


def _expanded(level: float, blocks: int) -> float:
    """Nominal level whose percentile interval covers ``level`` with few blocks.

    A percentile interval of n values is too narrow by sqrt((n - 1) / n), and by the normal where Student's t
    belongs: the expanded percentile interval of T. Hesterberg, "What teachers should know about the
    bootstrap", The American Statistician, 2015.
    """
    t = float(stdtrit(blocks - 1, (1 + level) / 2)) * math.sqrt(blocks / (blocks - 1))
    return float(2 * ndtr(t) - 1)


def inverse(estimate: Measured, factor: float) -> Measured:
    """``factor / estimate``, its interval turned over with it."""
    if isinstance(estimate, NotMeasured):
        return estimate
    if estimate.value <= 0:
        return NotMeasured("no time passed")
    low = factor / estimate.high if estimate.high else None
    high = factor / estimate.low if estimate.low else None
    if low is None or high is None:
        return Estimate(factor / estimate.value, n=estimate.n, method=estimate.method)
    return Estimate(factor / estimate.value, low, high, estimate.level, estimate.n, estimate.method)


def median_estimate(values: NDArray[Any] | list[int]) -> Estimate:
    """Median of values, at least one."""
    return Estimate(median(np.asarray(values)), n=len(values), method="median")


def totals_share(top: NDArray[Any], bottom: NDArray[Any]) -> Measured:
    """``sum(top) / sum(bottom)`` over the elements where both were measured (are not negative)."""
    both = (top >= 0) & (bottom >= 0)
    n = int(np.count_nonzero(both))
    if not n:
        return NotMeasured("measured in no element")
    over = float(bottom.sum(dtype=np.float64, where=both))
    if over <= 0:
        return NotMeasured("no time passed")
    return Estimate(float(top.sum(dtype=np.float64, where=both)) / over, n=n, method=TOTALS_METHOD)


def mean_of_measured(values: NDArray[Any]) -> Measured:
    """Mean over the elements that were measured (are not negative)."""
    there = values >= 0
    n = int(np.count_nonzero(there))
    if not n:
        return NotMeasured("measured in no element")
    return Estimate(float(values.sum(dtype=np.float64, where=there)) / n, n=n, method=MEAN_METHOD)
