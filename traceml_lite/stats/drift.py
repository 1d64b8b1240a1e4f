"""Drift: does a series grow over the run, or jump once and stay?

Rank statistics, so that a few huge values decide nothing. They test order only; what grows (fetch time,
memory, faults) and why is for the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from traceml_lite.stats.tails import median, medians

# Longer series are reduced to this many block medians: order over the run is still resolved to 1/1000.
MAX_POINTS = 1024
# Fewer points than this reach no small p-value by any order.
MIN_POINTS = 6


@dataclass(frozen=True, slots=True)
class Trend:
    """Growth over the run."""

    spearman: float
    """Rank correlation of the block medians with time, in [-1, 1]."""
    p_value: float
    """Two-sided, against no order."""
    growth: float
    """Median of the last quarter over that of the first (>= 0; nan if the first is 0)."""
    halves: float
    """Median of the second half over that of the first: a steady growth shows here, too."""
    points: int
    """Block medians behind it."""


@dataclass(frozen=True, slots=True)
class Change:
    """The one place where a series changes most."""

    at: int
    """Index of the first value after the change."""
    before: float
    """Median before it."""
    after: float
    """Median from it on."""
    p_value: float
    """Pettitt's test, against no change."""


def block_medians(values: NDArray[np.number], block: int = 1) -> NDArray[np.float64]:
    """Medians of consecutive blocks, at most ``MAX_POINTS``; a shorter rest at the end is left out."""
    array = np.asarray(values, dtype=np.float64)
    block = max(1, block)
    size = block * max(1, -(-(array.size // block) // MAX_POINTS))
    count = array.size // size
    if size == 1:
        return array
    return medians(array[: count * size].reshape(count, size))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1, ties averaged."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    result: NDArray[np.float64] = (last - (counts - 1) / 2.0)[inverse]
    return result


def trend(values: NDArray[np.number], block: int = 1) -> Trend | None:
    """Rank correlation with time of the block medians, and how much they grow.

    Args:
        values: In order of time, shape ``(n,)``.
        block: Values per block, e.g. the number of workers, so that a round counts once.

    Returns:
        The trend, or None with fewer than six blocks or only one distinct value.
    """
    points = block_medians(values, block)
    m = points.size
    if m < MIN_POINTS or points.min() == points.max():
        return None
    ranks = _ranks(points)
    order = np.arange(1, m + 1, dtype=np.float64)
    centred = ranks - ranks.mean()
    rho = float((centred * (order - order.mean())).sum() / np.sqrt((centred**2).sum() * (m**3 - m) / 12.0))
    rho = min(1.0, max(-1.0, rho))
    t = abs(rho) * np.sqrt((m - 2) / max(1.0 - rho**2, 1e-12))
    quarter, half = max(1, m // 4), m // 2
    first, last = median(points[:quarter]), median(points[-quarter:])
    early, late = median(points[:half]), median(points[-half:])
    return Trend(
        spearman=rho,
        p_value=float(min(1.0, 2.0 * special.stdtr(m - 2, -t))),
        growth=last / first if first > 0 else float("nan"),
        halves=late / early if early > 0 else float("nan"),
        points=m,
    )


def change_point(values: NDArray[np.number], block: int = 1) -> Change | None:
    """The place of the largest change of level.

    Args:
        values: In order of time, shape ``(n,)``.
        block: Values per block; see ``trend``.

    Returns:
        The change, or None with fewer than six blocks.

    Source: A. N. Pettitt, "A non-parametric approach to the change-point problem", 1979.
    """
    points = block_medians(values, block)
    m = points.size
    if m < MIN_POINTS:
        return None
    walk = np.abs(2.0 * np.cumsum(_ranks(points))[:-1] - np.arange(1, m) * (m + 1.0))
    at = int(np.argmax(walk)) + 1
    return Change(
        at=at * (np.asarray(values).size // m),
        before=median(points[:at]),
        after=median(points[at:]),
        p_value=float(min(1.0, 2.0 * np.exp(-6.0 * walk[at - 1] ** 2 / (m**3 + m**2)))),
    )
