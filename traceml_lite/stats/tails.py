"""Tails of waiting times: quantiles, the stall threshold, and how much of the waiting the stalls carry.

Pure functions on int64 nanoseconds. They do not know why a wait is long and fit no tail law: on runs of
useful length Hill's and the Pareto estimators covered the true index of exponential and lognormal data
in none of the intervals, so only quantiles, shares and a two-mode split are offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Waits shorter than this are the price of one queue get, not a stall: 18 to 812 us on measured loaders.
WAIT_FLOOR_NS = 200_000
# ... and the same relative to the step, for loops whose step is long: 2 % of a step is not waiting.
WAIT_FLOOR_STEPS = 0.02
# A wait below a tenth of the step goes unnoticed by a person who watches the loop.
STALL_FLOOR_STEPS = 0.1
# Without any step time the floor is what a person notices in a loop of unknown pace.
STALL_FLOOR_UNKNOWN_STEP_NS = 1_000_000
# The stalls are those waits that it takes to reach this share of all waiting ...
MASS_SHARE = 0.9
# ... and half their smallest, so that a sibling of equal cause is not cut off by noise.
MASS_MARGIN = 0.5
# A normal or uniform sample split at its Otsu threshold has a separation of 2.65 or 3.46: above 4, two modes.
MODES_SEPARATION = 4.0
# Modes nearer than a factor of five are one skewed mode as often as two.
MODES_DECADES = 0.7
# Above this many values the split is searched on a histogram of the logs: same answer to 1/400 decade.
EXACT_SPLIT_SIZE = 8192
SPLIT_BINS = 4096
# Values looked at for equal ones, and how many pairs of them are many.
TIES_SAMPLE, TIES_MOST = 256, 16


@dataclass(frozen=True, slots=True)
class Modes:
    """Best split of positive values into a low and a high mode, on the log scale (Otsu 1979)."""

    split: float
    """Geometric middle between the highest low and the lowest high value."""
    low: float
    """Geometric mean of the low mode."""
    high: float
    """Geometric mean of the high mode."""
    separation: float
    """Distance of the means over the pooled standard deviation, both in decades."""
    decades: float
    """log10(high / low)."""
    high_share: float
    """Share of values in the high mode, in [0, 1]."""

    @property
    def two(self) -> bool:
        """Whether these are two modes and not one mode cut in two."""
        return self.separation >= MODES_SEPARATION and self.decades >= MODES_DECADES


@dataclass(frozen=True, slots=True)
class StallThreshold:
    """Above which wait a delivery counts as a stall, and where that number comes from."""

    value_ns: int
    method: str
    """``given``, ``two modes``, ``share of the step`` or ``half of the waits that carry 90 %``."""
    modes: Modes | None
    """The split of the waits, whether or not it decided; None when there are too few values."""


def _times(values: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected one dimension, got shape {array.shape}")
    if array.size and array.min() < 0:
        raise ValueError(
            f"{name}: {int((array < 0).sum())} values are negative; select the measured ones first"
        )
    return array


def medians(values: NDArray[np.number]) -> NDArray[np.float64]:
    """Medians along the last axis, which must not be empty; no value may be nan.

    Four times as fast as numpy's on long arrays: numpy partitions at both middle places, for which it has no
    vector code.
    """
    half = values.shape[-1] // 2
    parts = _parted(values, half)
    upper = parts[..., half].astype(np.float64)
    return upper if values.shape[-1] % 2 else 0.5 * (upper + parts[..., :half].max(axis=-1))


def _parted(values: NDArray[np.number], place: int) -> NDArray[np.number]:
    """The values with those below ``place`` before it and those above behind it, along the last axis.

    Vector code for partitions looks at equal values again and again; sorting them is ten times as fast.
    """
    flat = values.reshape(-1)
    if flat.size > TIES_SAMPLE:
        sample = np.sort(flat[:: flat.size // TIES_SAMPLE])
        if np.count_nonzero(sample[1:] == sample[:-1]) > TIES_MOST:
            return np.sort(values, axis=-1)
    return np.partition(values, place, axis=-1)


def median(values: NDArray[np.number]) -> float:
    """Median of a non-empty array of one dimension; see ``medians``."""
    return float(medians(values))


def quantiles(values_ns: NDArray[np.int64], shares: Sequence[float]) -> tuple[float, ...]:
    """Quantiles of times by linear interpolation between order statistics.

    Args:
        values_ns: Times, shape ``(n,)``, nanoseconds, not negative.
        shares: Each in ``[0, 1]``, e.g. ``(0.5, 0.95)``.

    Returns:
        One number of nanoseconds per share; an empty input gives ``nan`` each, as there is no quantile.

    Raises:
        ValueError: A negative time, a wrong shape or a share outside ``[0, 1]``.
    """
    array = _times(values_ns, "values_ns")
    if any(not 0 <= share <= 1 for share in shares):
        raise ValueError(f"shares must lie in [0, 1], got {tuple(shares)}")
    if not array.size:
        return tuple(float("nan") for _ in shares)
    return tuple(_quantile(array, share) for share in shares)


def _quantile(values: NDArray[np.int64], share: float) -> float:
    place = share * (values.size - 1)
    below = int(place)
    parts = _parted(values, below)
    value = float(parts[below])
    return value if place == below else value + (place - below) * (float(parts[below + 1 :].min()) - value)


def wait_share(wait_ns: NDArray[np.int64], step_ns: NDArray[np.int64]) -> float:
    """Share of wall time the consumer spent blocked in ``next(loader)``.

    Args:
        wait_ns: Blocked time before each batch, shape ``(n,)``, nanoseconds.
        step_ns: Consumer time after each batch, shape ``(n,)``, nanoseconds.

    Returns:
        A fraction in ``[0, 1]``; 0 when no time passed at all.

    Raises:
        ValueError: The arrays are empty, differ in shape, or hold a negative time.
    """
    waits, steps = _times(wait_ns, "wait_ns"), _times(step_ns, "step_ns")
    if waits.shape != steps.shape or not waits.size:
        raise ValueError(f"expected two equal, non-empty shapes, got {waits.shape} and {steps.shape}")
    waited, stepped = float(waits.sum(dtype=np.float64)), float(steps.sum(dtype=np.float64))
    return waited / (waited + stepped) if waited + stepped > 0 else 0.0


def split_modes(values: NDArray[np.number], floor: float = 1.0) -> Modes | None:
    """Split values into two modes on the log scale where the variance between them is largest.

    Args:
        values: Non-negative, shape ``(n,)``.
        floor: Smaller values are raised to it, so that noise near zero is one place and not decades.

    Returns:
        The best split, or None with fewer than four values or only one distinct value. Whether it is a
        split of two modes is for ``Modes.two`` to say.

    Source: N. Otsu, "A threshold selection method from gray-level histograms", 1979, on logs.
    """
    array = np.asarray(values)
    if array.size < 4:
        return None
    raised = np.maximum(array, max(floor, 1e-12))
    if array.size <= EXACT_SPLIT_SIZE:
        ordered = np.sort(np.log10(raised))
        counts = np.ones(ordered.size)
    else:
        # numpy's histogram of log10 in double precision would take six times as long for the same bins.
        logs = np.log(raised.astype(np.float32))
        logs *= np.float32(1.0 / np.log(10.0))
        low, width = float(logs.min()), float(np.ptp(logs)) / SPLIT_BINS
        logs -= low
        logs /= max(width, 1e-12)
        raw = np.bincount(np.minimum(logs.astype(np.int64), SPLIT_BINS - 1))
        kept = np.flatnonzero(raw)
        ordered, counts = low + (kept + 0.5) * width, raw[kept].astype(float)
    if ordered[-1] - ordered[0] < 1e-9:
        return None
    below = np.cumsum(counts)
    first, second = np.cumsum(counts * ordered), np.cumsum(counts * ordered**2)
    total, total1, total2 = below[-1], first[-1], second[-1]
    n0, n1 = below[:-1], total - below[:-1]
    m0, m1 = first[:-1] / n0, (total1 - first[:-1]) / n1
    between = n0 * n1 * (m1 - m0) ** 2
    between[np.diff(ordered) <= 0] = -1.0
    at = int(np.argmax(between))
    v0 = max(float(second[at] / n0[at] - m0[at] ** 2), 0.0)
    v1 = max(float((total2 - second[at]) / n1[at] - m1[at] ** 2), 0.0)
    decades = float(m1[at] - m0[at])
    return Modes(
        split=float(10 ** (0.5 * (ordered[at] + ordered[at + 1]))),
        low=float(10 ** m0[at]),
        high=float(10 ** m1[at]),
        separation=decades / max(np.sqrt(0.5 * (v0 + v1)), 1e-9),
        decades=decades,
        high_share=float(n1[at] / total),
    )


def mass_cut_ns(wait_ns: NDArray[np.int64], share: float = MASS_SHARE) -> int:
    """The smallest of the longest waits that it takes to reach a share of all waiting.

    Args:
        wait_ns: Waits, shape ``(n,)``, nanoseconds, not negative.
        share: In ``(0, 1]``.

    Returns:
        Nanoseconds; 0 when nobody waited.
    """
    waits = _times(wait_ns, "wait_ns")
    if not waits.size:
        return 0
    ordered = np.sort(waits)[::-1]
    reached = np.cumsum(ordered, dtype=np.float64)
    if reached[-1] <= 0:
        return 0
    return int(
        ordered[min(int(np.searchsorted(reached, share * reached[-1] * (1 - 1e-12))), ordered.size - 1)]
    )


def stall_threshold_ns(
    wait_ns: NDArray[np.int64], step_ns: NDArray[np.int64] | None, given_ns: int | None = None
) -> StallThreshold:
    """The wait above which a delivery is a stall, right when 3 %, 25 % or 100 % of deliveries are.

    The largest of: the split of the log waits if they have two modes; a tenth of the median step; half the
    smallest wait needed to reach 90 % of all waiting. With one mode of long waits the last one decides, and
    then every delivery is a stall, which is what a uniform loader looks like.

    Args:
        wait_ns: Waits, shape ``(n,)``, nanoseconds, not negative; leave out the first, which fills the pipe.
        step_ns: Measured steps, any length, not negative; None or empty when no step is known.
        given_ns: The user's own threshold; then nothing is computed.

    Returns:
        The threshold and its origin. A wait is a stall when it is above ``value_ns``.

    Raises:
        ValueError: A negative time or a negative ``given_ns``.
    """
    waits = _times(wait_ns, "wait_ns")
    steps = _times(step_ns, "step_ns") if step_ns is not None else np.zeros(0, dtype=np.int64)
    if given_ns is not None:
        if given_ns < 0:
            raise ValueError(f"given_ns: a threshold is at least 0 ns, got {given_ns}")
        return StallThreshold(int(given_ns), "given", None)
    step = median(steps) if steps.size else 0.0
    floor = STALL_FLOOR_STEPS * step if steps.size else float(STALL_FLOOR_UNKNOWN_STEP_NS)
    modes = split_modes(waits, max(WAIT_FLOOR_NS, WAIT_FLOOR_STEPS * step))
    options = [
        (floor, "share of the step"),
        (MASS_MARGIN * mass_cut_ns(waits), "half of the waits that carry 90 %"),
    ]
    if modes is not None and modes.two:
        options.append((modes.split, "two modes"))
    value, method = max(options)
    return StallThreshold(int(value), method, modes)


def stalls(wait_ns: NDArray[np.int64], threshold_ns: int) -> NDArray[np.bool_]:
    """Which deliveries are stalls: a mask, True where the wait is above the threshold."""
    mask: NDArray[np.bool_] = np.asarray(wait_ns) > threshold_ns
    return mask


def stall_wait_share(wait_ns: NDArray[np.int64], stalled: NDArray[np.bool_]) -> float:
    """Share of all waiting that the stalls carry, in ``[0, 1]``; 0 when nobody waited."""
    waits = _times(wait_ns, "wait_ns")
    total = float(waits.sum(dtype=np.float64))
    return float(waits[stalled].sum(dtype=np.float64)) / total if total > 0 else 0.0


def top_share(wait_ns: NDArray[np.int64], share: float = 0.05) -> float:
    """Share of all waiting carried by the longest ``share`` of deliveries (at least one), in ``[0, 1]``."""
    waits = _times(wait_ns, "wait_ns")
    total = float(waits.sum(dtype=np.float64))
    if total <= 0:
        return 0.0
    count = max(1, round(share * waits.size))
    return float(np.partition(waits, waits.size - count)[-count:].sum(dtype=np.float64)) / total
