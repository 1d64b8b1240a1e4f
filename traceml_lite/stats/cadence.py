"""Cadence: do events (stalls, slow fetches) recur at a fixed distance in batches?

Every answer is tested against events placed at random, with a correction for the phases and periods that
were tried: random stalls at rate 1/4 have a gap of 4 one time in ten. Nothing here knows what an event is
or what a period would mean.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

# Up to this many deliveries the hypergeometric tail is summed exactly; above, the binomial bounds it.
EXACT_TAIL_SIZE = 20_000
# Every period is folded below this length; above, only those that stand out in the autocorrelation.
DIRECT_SCAN_SIZE = 2048
SCAN_CANDIDATES = 32
# A period must be seen three times to be one.
MIN_CYCLES = 3
# Longer periods than this are not looked for: the folds would cost more than they find.
MAX_PERIOD = 1024
# Block of the autocorrelation: memory stays flat however long the run is.
CORRELATION_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True)
class PeriodFit:
    """How well one period explains the events, at its best phase."""

    period: int
    """Batches."""
    phase: int
    """The residue that the events share."""
    on_phase: float
    """Share of the events that lie on the phase, in [0, 1]."""
    recall: float
    """Share of the phase's places that hold an event, in [0, 1]."""
    log_ratio: float
    """Bernoulli log likelihood ratio against one rate for all places."""
    p_value: float
    """Chance that random events do as well at this period at any phase."""
    p_corrected: float
    """The same after the number of periods that were tried."""
    tried: int
    """Periods tried."""
    events: int
    """Events seen."""
    places: int
    """Deliveries looked at."""

    @property
    def explained(self) -> float:
        """Share of what there is to explain about where the events are that this fit explains, in [0, 1]."""
        if not 0 < self.events < self.places:
            return 0.0
        share = self.events / self.places
        return self.log_ratio / -(self.places * (share * math.log(share) + (1 - share) * math.log(1 - share)))


@dataclass(frozen=True, slots=True)
class WindowCadence:
    """Cadence within one stretch of the run."""

    start: int
    """First delivery of the window."""
    stop: int
    """One past the last."""
    gaps: int
    """Gaps between consecutive events inside the window."""
    gap_share: float
    """Share of those gaps equal to the period; nan without gaps."""
    on_phase: float
    """Largest share of the window's events on one phase; nan without events."""
    p_value: float
    """As in ``PeriodFit``, for this window and this one period; 1 without events."""
    again: int
    """Events with another one exactly a period later."""
    open_ended: int
    """Events with a place for one inside the window."""


def tail_probability(hits: int, drawn: int, marked: int, total: int) -> float:
    """P(X >= hits) when ``drawn`` of ``total`` places are drawn at random and ``marked`` of them count.

    Exact (hypergeometric) up to 20 000 places; above, the binomial tail, which is never smaller in the
    range where it is used (hits above the mean).
    """
    if hits <= 0:
        return 1.0
    if hits > min(drawn, marked):
        return 0.0
    if total > EXACT_TAIL_SIZE:
        return float(special.betainc(hits, drawn - hits + 1, marked / total))
    k = np.arange(hits, min(drawn, marked) + 1)
    k = k[total - drawn - marked + k >= 0]
    logs = (
        _log_choose(marked, k)
        + _log_choose(total - marked, drawn - k)
        - _log_choose(total, np.asarray(drawn))
    )
    return float(min(1.0, np.exp(logs).sum()))


def _log_choose(n: int, k: NDArray[np.int64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    return result


def _log_likelihood(hits: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.float64]:
    misses = places - hits
    result: NDArray[np.float64] = np.asarray(
        special.xlogy(hits, hits) + special.xlogy(misses, misses) - special.xlogy(places, places),
        dtype=np.float64,
    )
    return result


def _restarts(restarts: NDArray[np.int64] | None) -> NDArray[np.int64]:
    return np.zeros(1, dtype=np.int64) if restarts is None else np.asarray(restarts, dtype=np.int64)


def _phase_places(period: int, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many places lie on each residue, when counting starts at 0 in every stretch."""
    if lengths.size == 1:
        whole, rest = divmod(int(lengths[0]), period)
        return whole + (np.arange(period) < rest)
    rests = np.bincount(lengths % period, minlength=period)
    places: NDArray[np.int64] = rests.sum() - np.cumsum(rests) + (lengths // period).sum()
    return places


def fit_period(
    events: NDArray[np.int64],
    total: int,
    period: int,
    restarts: NDArray[np.int64] | None = None,
    tried: int = 1,
) -> PeriodFit:
    """Fold the events at one planned period and test the best phase.

    Args:
        events: Places of the events, distinct, ascending, in ``[0, total)``.
        total: Number of places.
        period: Batches, at least 2.
        restarts: Places where counting starts again at 0 (epochs), ascending, the first one 0; default
            only there.
        tried: How many periods are being tried in all (a Bonferroni factor).

    Returns:
        The fit at the best phase that holds more than its share of events.

    Raises:
        ValueError: A period below 2 or above ``total``.
    """
    if not 2 <= period <= max(total, 2):
        raise ValueError(f"period must lie in [2, {total}], got {period}")
    count = int(events.size)
    if count == 0 or count == total:
        return PeriodFit(period, 0, 1.0 / period, count / max(total, 1), 0.0, 1.0, 1.0, tried, count, total)
    starts = _restarts(restarts)
    return fit_phases(
        np.bincount(_since_restart(events, starts) % period, minlength=period),
        _phase_places(period, np.diff(np.append(starts, total))),
        period,
        tried,
    )


def phase_ratios(
    hits: NDArray[np.int64], places: NDArray[np.int64], count: int, total: int
) -> NDArray[np.float64]:
    """Log likelihood ratio of each phase against one rate for all; 0 for a phase below its share.

    Args:
        hits: Events on each phase, of one folding or of many in a row.
        places: Places on each phase, likewise.
        count: Events of one folding.
        total: Places of one folding.
    """
    ratios = np.zeros(hits.size, dtype=np.float64)
    # A phase that events avoid is a good split too, but no cadence.
    above = np.flatnonzero(hits * total > places * count)
    hits, places = hits[above], places[above]
    ratios[above] = (
        _log_likelihood(hits, places)
        + _log_likelihood(count - hits, total - places)
        - _log_likelihood(np.asarray(count), np.asarray(total))
    )
    return ratios


def best_folding(foldings: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> int:
    """Which of several foldings of the same events, each ``(hits, places)`` by phase, has the best phase.

    The first of equals, so that a period wins over its multiples.
    """
    sizes = [hits.size for hits, _ in foldings]
    count, total = int(foldings[0][0].sum()), int(foldings[0][1].sum())
    # All at once: most foldings are so short that a call costs more than its numbers.
    hits, places = (np.concatenate(part) for part in zip(*foldings, strict=True))
    heads = np.concatenate([[0], np.cumsum(sizes[:-1], dtype=np.int64)])
    best = np.maximum.reduceat(phase_ratios(hits, places, count, total), heads)
    return int(np.argmax(best > best.max() - 1e-9))


def fit_phases(
    events_by_phase: NDArray[np.int64], places_by_phase: NDArray[np.int64], period: int, tried: int = 1
) -> PeriodFit:
    """The best phase, given how many events and how many places lie on each; see ``fit_period``.

    ``events_by_phase`` and ``places_by_phase`` have one entry per phase. Any grouping of places will do,
    e.g. one phase per worker.
    """
    hits, places = np.asarray(events_by_phase), np.asarray(places_by_phase)
    count, total = int(hits.sum()), int(places.sum())
    ratios = phase_ratios(hits, places, count, total)
    phase = int(np.argmax(ratios))
    chance = 0.0
    for size, same in zip(*np.unique(places, return_counts=True), strict=True):
        chance += int(same) * tail_probability(int(hits[phase]), int(size), count, total)
    chance = min(1.0, chance)
    return PeriodFit(
        period=period,
        phase=phase,
        on_phase=float(hits[phase] / count) if count else 0.0,
        recall=float(hits[phase] / places[phase]) if places[phase] else 0.0,
        log_ratio=float(ratios[phase]),
        p_value=chance,
        p_corrected=min(1.0, chance * tried),
        tried=tried,
        events=count,
        places=total,
    )


def _since_restart(events: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    return events - starts[np.searchsorted(starts, events, side="right") - 1] if starts.size > 1 else events


def pair_counts(mask: NDArray[np.bool_], max_lag: int) -> NDArray[np.float64]:
    """Number of event pairs at each distance 0 .. max_lag, by FFT in blocks of bounded memory."""
    counts = np.zeros(max_lag + 1)
    size = min(CORRELATION_BLOCK, max(mask.size, 1))
    length = fft.next_fast_len(size + max_lag, real=True)
    for start in range(0, mask.size, size):
        # Pairs whose earlier member lies in this block; the later one may lie max_lag behind its end.
        head = both = fft.rfft(mask[start : start + size].astype(np.float32), length)
        if start + size < mask.size:
            both = fft.rfft(mask[start : start + size + max_lag].astype(np.float32), length)
        product = np.conj(head) * both
        counts += fft.irfft(product, length)[: max_lag + 1]
    result: NDArray[np.float64] = np.round(counts)
    return result


def candidate_periods(events: NDArray[np.int64], total: int, longest: int) -> NDArray[np.int64]:
    """Periods worth a fold: all in a short run, in a long one those with most event pairs above chance."""
    if total <= DIRECT_SCAN_SIZE:
        return np.arange(2, longest + 1)
    mask = np.zeros(total, dtype=np.bool_)
    mask[events] = True
    pairs = pair_counts(mask, longest)[2:]
    expected = events.size**2 / total
    excess = (pairs - expected) / np.sqrt(expected + 1.0)
    return 2 + np.sort(np.argsort(excess)[::-1][:SCAN_CANDIDATES])


def scan_periods(
    events: NDArray[np.int64],
    total: int,
    restarts: NDArray[np.int64] | None = None,
    longest: int | None = None,
) -> PeriodFit | None:
    """The period that explains the events best, corrected for all periods that could have won.

    Args:
        events: Places of the events, distinct, ascending, in ``[0, total)``.
        total: Number of places.
        restarts: See ``fit_period``.
        longest: Longest period to try; default and limit: seen three times, at most 1024 batches.

    Returns:
        The fit with the largest likelihood ratio, or None with fewer than three events or no period to
        try. Multiples and divisors of the true period fit worse by construction, so the largest is the
        fundamental.
    """
    limit = min(total // MIN_CYCLES, MAX_PERIOD)
    longest = limit if longest is None else min(longest, limit)
    if events.size < MIN_CYCLES or longest < 2:
        return None
    if events.size == total:
        return None
    starts = _restarts(restarts)
    since, lengths = _since_restart(events, starts), np.diff(np.append(starts, total))
    periods = candidate_periods(events, total, longest).tolist()
    best = best_folding([(np.bincount(since % p, minlength=p), _phase_places(p, lengths)) for p in periods])
    return fit_period(events, total, periods[best], restarts, tried=longest - 1)


def recurrence(events: NDArray[np.int64], total: int, period: int) -> float:
    """Chance of an event one period after an event: survives slips of the phase, unlike the fold.

    Returns:
        A share in ``[0, 1]``; nan when no event has a place one period later.
    """
    mask = np.zeros(total + period, dtype=np.bool_)
    mask[events] = True
    open_ended = events[events + period < total]
    return float(mask[open_ended + period].mean()) if open_ended.size else float("nan")


def gap_share(events: NDArray[np.int64], period: int) -> float:
    """Share of gaps between consecutive events that equal the period; nan without gaps."""
    gaps = np.diff(np.sort(np.asarray(events)))
    return float((gaps == period).mean()) if gaps.size else float("nan")


def cadence_by_window(
    events: NDArray[np.int64], total: int, period: int, edges: Sequence[int]
) -> tuple[WindowCadence, ...]:
    """The cadence in consecutive windows, so that a lock at the start is not taken for a lasting one.

    Args:
        events: Places of the events in ``[0, total)``, distinct.
        total: Number of places.
        period: Batches, at least 2.
        edges: Inner window edges in rounds of ``period``, e.g. ``(4, 16, 64)``; those behind the end of
            the run are left out.

    Returns:
        One entry per window that holds at least two rounds.
    """
    ordered = np.sort(np.asarray(events))
    bounds = [0, *sorted({e * period for e in edges if e * period < total - 2 * period}), total]
    mask = np.zeros(total + period, dtype=np.bool_)
    mask[ordered] = True
    windows = []
    for start, stop in itertools.pairwise(bounds):
        if stop - start < 2 * period:
            continue
        inside = ordered[np.searchsorted(ordered, start) : np.searchsorted(ordered, stop)]
        fit = fit_period(inside - start, stop - start, period) if inside.size else None
        open_ended = inside[inside + period < stop]
        windows.append(
            WindowCadence(
                start=start,
                stop=stop,
                gaps=max(0, inside.size - 1),
                gap_share=gap_share(inside, period),
                on_phase=fit.on_phase if fit else float("nan"),
                p_value=fit.p_value if fit else 1.0,
                again=int(mask[open_ended + period].sum()),
                open_ended=int(open_ended.size),
            )
        )
    return tuple(windows)


def deliveries_needed(period: int, level: float = 0.01, planned: bool = False) -> int:
    """Deliveries after which a perfect cadence can be told from random events of the same number.

    Args:
        period: Batches, at least 2.
        level: p-value to reach.
        planned: The period was known beforehand (the number of workers, a shard's size), so that it need
            not be corrected for a scan.

    Returns:
        A whole number of periods.
    """
    cycles = MIN_CYCLES
    while True:
        total = cycles * period
        fit = fit_period(np.arange(0, total, period), total, period)
        tried = 1 if planned else max(1, min(total // MIN_CYCLES, MAX_PERIOD) - 1)
        if fit.p_value * tried < level:
            return total
        cycles += 1
