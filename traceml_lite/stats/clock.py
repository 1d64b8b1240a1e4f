"""Clock: do events recur at a fixed distance in seconds?

The variant of ``cadence`` for causes outside the loop (a job, a quota, another process): regular in time,
whatever batch is being made. Tested against events at random times; unseen ones between are allowed for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceml_lite.stats.tails import medians

# A clock needs four events: three gaps can be even by chance too easily (p >= 0.01 in the null below).
MIN_CLOCK_EVENTS = 4
# Monte-Carlo draws behind a clock's p-value, and the tail of them below which it is extrapolated.
CLOCK_DRAWS = 300
EXTRAPOLATED_TAIL = 0.05
# Draws of a first look, and how many of them must be as regular to leave it at that: no clock is near then.
FIRST_DRAWS, FIRST_HITS = 60, 12
# By how much of a period half the length must fit better still, to be more than rounding.
HALF_PERIOD_MARGIN = 0.005
# A fit this unlikely by chance is compared by closeness only.
SURE_CHANCE = 0.001
# A clock is fitted to the first of this many events: more add cost and no certainty.
MAX_CLOCK_EVENTS = 64

# Rows of ascending times to the period of each and its relative deviation.
_Fit = Callable[[NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.float64]]]


@dataclass(frozen=True, slots=True)
class ClockFit:
    """How well a fixed time between events explains them, some of them possibly unseen."""

    period_ns: float
    offset_ns: float
    """Time of the event numbered 0."""
    deviation: float
    """Root mean square distance from the regular times, as a share of the period."""
    p_value: float
    """Chance that events at random times are as regular."""
    events: int
    cycles: int
    """Periods between the first and the last event."""


def _evenness(times: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Period and relative deviation of each row, if every event was seen."""
    number = np.arange(times.shape[1], dtype=np.float64)
    centred = number - number.mean()
    period = np.maximum(times @ centred / (centred**2).sum(), 1e-9)
    residual = times - times.mean(axis=1, keepdims=True) - period[:, None] * centred
    freedom = max(times.shape[1] - 2, 1)
    return period, np.sqrt((residual**2).sum(axis=1) / freedom) / period


def _regularity(times: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Best period of each row of ascending times and its relative deviation, some events unseen or foreign.

    Candidates are quartiles of the gaps and their halves. Each is refined by regression on the numbers of
    the events it implies; two events may share a number, and the worst sixth of the distances is left out,
    so that a foreign event does no harm.
    """
    rows, events = times.shape
    gaps = np.diff(times, axis=1)
    kept = events - events // 6
    base = np.quantile(gaps, (0.25, 0.5, 0.75), axis=1)
    # A row of candidates each, shape (6, rows): whole and half of every quartile.
    period = np.maximum(np.stack([base, 0.5 * base], axis=1).reshape(-1, rows), 1e-9)
    number = np.zeros((*period.shape, events))
    for _ in range(3):
        np.cumsum(np.round(gaps / period[..., None]), axis=-1, out=number[..., 1:])
        centred = number - number.mean(axis=-1, keepdims=True)
        spread = (centred**2).sum(axis=-1)
        refined = (centred * times).sum(axis=-1) / np.maximum(spread, 1e-12)
        period = np.where(spread > 0, np.maximum(refined, 1e-9), period)
    residual = times - times.mean(axis=1, keepdims=True) - period[..., None] * centred
    residual -= medians(residual)[..., None]
    least = np.partition(residual**2, kept - 1, axis=-1)[..., :kept]
    deviation = np.sqrt(least.sum(axis=-1) / max(kept - 2, 1)) / period
    best_dev, best_period = deviation[0], period[0]
    for place in range(1, len(period)):
        # A period of half the length fits everything that the whole one does, at twice the distance.
        limit = 0.5 * best_dev - HALF_PERIOD_MARGIN if place % 2 else best_dev
        better = deviation[place] < limit
        best_dev = np.where(better, deviation[place], best_dev)
        best_period = np.where(better, period[place], best_period)
    return best_period, best_dev


def _null_chance(deviation: float, times: NDArray[np.float64], fit: _Fit) -> float:
    """Chance of so small a deviation under the null, of which each row of ``times`` is a draw.

    Counted among the draws, the first of which may settle it; below their lower tail it falls on with the
    power at which the draws themselves get rarer from their lower quartile to that tail, which is less
    steep than the tail goes on.

    Source: J. Besag and P. Clifford, "Sequential Monte Carlo p-values", 1991.
    """
    null = fit(times[:FIRST_DRAWS])[1]
    if np.count_nonzero(null <= deviation) < FIRST_HITS:
        null = np.concatenate([null, fit(times[FIRST_DRAWS:])[1]])
    quartile, edge = (float(q) for q in np.quantile(null, [0.25, EXTRAPOLATED_TAIL]))
    if deviation >= edge or quartile <= edge:
        return (1 + int(np.count_nonzero(null <= deviation))) / (null.size + 1)
    power = np.log(0.25 / EXTRAPOLATED_TAIL) / np.log(quartile / edge)
    return float(EXTRAPOLATED_TAIL * (max(deviation, 1e-12) / edge) ** power)


def fit_clock(
    times_ns: NDArray[np.int64], closest_ns: float = 0.0, seed: int = 0, draws: int = CLOCK_DRAWS
) -> ClockFit | None:
    """Fit a fixed time between events and test it against events at random times.

    Args:
        times_ns: Times of the events, shape ``(m,)``, nanoseconds, ascending.
        closest_ns: Events cannot be closer than this for other reasons (a full queue must first run
            empty; a slow fetch must end), so that random ones would be no closer either.
        seed: Of the Monte-Carlo null.
        draws: Null runs.

    Returns:
        The fit, or None with fewer than four events or events at one time.

    The null: gaps are the closest distance plus an exponential excess, with the mean of the observed gaps.
    """
    times = np.asarray(times_ns, dtype=np.float64)[:MAX_CLOCK_EVENTS]
    if times.size < MIN_CLOCK_EVENTS or times[-1] <= times[0]:
        return None
    rows = times[None, :] - times[0]
    # Two ways to be regular, with every event seen or with some unseen: the likelier one, charged for both.
    ways = (_evenness, _regularity)
    fits = [way(rows) for way in ways]
    gaps = np.diff(times)
    closest = min(max(closest_ns, 0.0), float(gaps.min()))
    excess = max(float(gaps.mean()) - closest, 1e-9)
    random = np.random.default_rng(seed)
    null_gaps = closest + random.exponential(excess, size=(draws, gaps.size))
    null_times = np.concatenate([np.zeros((draws, 1)), np.cumsum(null_gaps, axis=1)], axis=1)
    chances = [_null_chance(fit[1][0], null_times, way) for fit, way in zip(fits, ways, strict=True)]
    # Both may be far beyond chance: then the closer fit is the better description.
    ranks = [fit[1][0] if p < SURE_CHANCE else 1.0 + p for fit, p in zip(fits, chances, strict=True)]
    best = int(np.argmin(ranks))
    period, deviation = float(fits[best][0][0]), float(fits[best][1][0])
    cycles = round((times[-1] - times[0]) / period)
    centre = times.mean() - period * np.round((times - times[0]) / period).mean()
    return ClockFit(
        period_ns=period,
        offset_ns=float(centre),
        deviation=deviation,
        p_value=float(min(1.0, len(fits) * chances[best])),
        events=int(times.size),
        cycles=cycles,
    )
