"""Where the slow ones are: slow fetches by rank, worker, turn and time; stalls by delivery.

A pattern is the same set of measurements on either series, so that each shape function can compare what
explains it best. Nothing here names a cause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceml_lite.diagnose.shapes.features import Features, Fetches, Int, Mask
from traceml_lite.stats.cadence import (
    PeriodFit,
    best_folding,
    candidate_periods,
    fit_period,
    fit_phases,
    scan_periods,
)
from traceml_lite.stats.clock import ClockFit, fit_clock
from traceml_lite.stats.tails import Modes, median, split_modes, stall_wait_share

# Two modes of fetch times: one mode cut in two has a separation below 3.5, on 16 draws below 5.
SLOW_SEPARATION = 5.0
# A fetch that takes less than twice as long is not called slow.
SLOW_RATIO = 2.0
# A period that explains this much is exact but for accidents; where no such one holds over the whole run, the
# first so many events are asked: epochs that nobody marked, or a worker that ended, shift the phase later.
EXACT = 0.75
EARLY_EVENTS = 24
EARLY_TURN_EVENTS = 96
# Longest period in turns that is tried.
MAX_TURNS = 128
# When more than this share would be slow, that is the usual and the rest is quick: the last fetches of a
# pool that shares its CPUs, cached batches. One of two workers, or every other batch, is a half.
SLOW_SHARE = 0.6
# Outliers where the split finds no second mode because they are too few: so far above the median, in robust
# standard deviations of the log, and so many times as long.
OUTLIER_SIGMAS = 6.0
OUTLIER_RATIO = 3.0
# Fetches below one percent of a step, or 50 us, are all the same: nothing waits for them.
FETCH_FLOOR_STEPS = 0.01
FETCH_FLOOR_NS = 50_000
# Slow fetches end together when no more than this many usual fetch times lie between their ends.
TOGETHER_FETCHES = 1.25
# By how much the first wait must exceed workers times step: the measuring, and the step's own variation.
FILL_MARGIN = 1.2
# The deviation of one normal is 1.4826 times its median absolute deviation.
MAD_TO_SIGMA = 1.4826
# Above this size the median and its deviation are taken from an even sample.
SAMPLE_SIZE = 200_000


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """How a set of places (slow fetches, or stalls) is arranged."""

    source: str
    """``"fetch"`` or ``"wait"``."""
    mask: Mask
    """Which places are slow, in order of rank (fetch) or delivery (wait)."""
    events: Int
    """Their indices."""
    ratio: float
    """Typical slow value over typical other value."""
    modes: Modes | None
    by_count: PeriodFit | None
    """At the number of workers: a planned period."""
    scanned: PeriodFit | None
    """At the best of all periods."""
    by_turn: PeriodFit | None
    """At the best period in turns of the workers, all workers on one phase."""
    by_worker: PeriodFit | None
    """One phase per worker: is it always the same worker?"""
    clock: ClockFit | None
    """At the best fixed time between groups of overlapping slow ones."""
    carried: float
    """Share of the steady waiting during which a slow fetch was under way, in [0, 1]; for stalls, theirs."""
    groups: int
    """Groups of slow fetches that end together (of stalls: their number)."""
    together: float
    """Share of slow fetches that end together with one of another worker, beyond what chance brings about:
    1 all of them, 0 as many as at random. nan for stalls."""

    @property
    def share(self) -> float:
        """Share of places that are slow, in [0, 1]."""
        return float(self.mask.mean()) if self.mask.size else 0.0


def slow_fetches(ns: Int, step_median_ns: float) -> tuple[Mask, float, Modes | None]:
    """Which fetches are slow, by a split into two modes or, failing that, as outliers.

    Returns:
        The mask (all False where there are no slow ones), the ratio of slow to usual, and the split.
    """
    floor = FETCH_FLOOR_NS
    if step_median_ns > 0:
        floor = max(floor, int(FETCH_FLOOR_STEPS * step_median_ns))
    modes = split_modes(ns, floor)
    if modes is not None and modes.separation >= SLOW_SEPARATION and 10**modes.decades >= SLOW_RATIO:
        if modes.high_share > SLOW_SHARE:
            return np.zeros(ns.size, dtype=np.bool_), 1.0, modes
        return ns > modes.split, 10**modes.decades, modes
    stride = max(1, ns.size // SAMPLE_SIZE)
    logs = np.log(np.maximum(ns[::stride], floor))
    centre = median(logs)
    sigma = MAD_TO_SIGMA * median(np.abs(logs - centre))
    cut = float(np.exp(centre + max(OUTLIER_SIGMAS * sigma, np.log(OUTLIER_RATIO))))
    mask = ns > cut
    ratio = median(ns[mask]) / float(np.exp(centre)) if mask.any() else 1.0
    return mask, ratio, modes


def _groups(fetches: Fetches, events: Int, usual_ns: float) -> tuple[Int, float]:
    """Slow fetches that end together, and when whatever held them up was over.

    All fetches that one pause of the host held up end within one usual fetch of its end, whenever they
    began: those caught in the middle sooner, those that began during it after a whole fetch. Slow fetches
    that merely overlap end apart.

    Returns:
        The time of each group, ascending, and the share of slow fetches that ended with one of another
        worker, less what chance would bring about, in [0, 1].
    """
    order = events[np.argsort(fetches.end_ns[events], kind="stable")]
    end, start, worker = fetches.end_ns[order], fetches.start_ns[order], fetches.worker[order]
    # The second of two began before the first ended, or it cannot have been held up by the same thing.
    joined = (np.diff(end) <= TOGETHER_FETCHES * usual_ns) & (start[1:] < end[:-1]) & (np.diff(worker) != 0)
    heads = np.flatnonzero(np.concatenate([[True], ~joined]))
    sizes = np.diff(np.append(heads, end.size))
    first, last = end[heads], end[np.append(heads[1:], end.size) - 1]
    over = (first + np.maximum(last - int(usual_ns), first - int(usual_ns))) // 2
    found = float(sizes[sizes > 1].sum() / end.size)
    span = max(1.0, float(fetches.end_ns.max() - fetches.start_ns.min()))
    chance = 1.0 - float(np.exp(-2.0 * TOGETHER_FETCHES * usual_ns * end.size / span))
    return over.astype(np.int64), max(0.0, (found - chance) / max(1.0 - chance, 1e-9))


def _by_turn(events: Int, fetches: Fetches) -> PeriodFit | None:
    """Best period in turns, over all workers at one phase; None when one worker has all the slow ones."""
    if np.unique(fetches.worker[events]).size < 2:
        return None
    fit = _turn_period(events, fetches.turn)
    if fit is None or fit.explained >= EXACT or events.size <= EARLY_TURN_EVENTS:
        return fit
    stop = int(events[EARLY_TURN_EVENTS])
    early = _turn_period(events[:EARLY_TURN_EVENTS], fetches.turn[:stop])
    return early if early is not None and early.explained > max(EXACT, fit.explained) else fit


def _turn_period(events: Int, turn: Int) -> PeriodFit | None:
    rounds = int(turn.max()) + 1
    places = np.bincount(turn, minlength=rounds)
    hits = np.bincount(turn[events], minlength=rounds)
    longest = min(rounds // 2, MAX_TURNS)
    periods = candidate_periods(np.flatnonzero(hits), rounds, longest).tolist()
    if not periods:
        return None
    both = np.stack([hits, places], axis=1)
    foldings = [_folded(both, period) for period in periods]
    best = best_folding(foldings)
    hits, places = foldings[best]
    return fit_phases(hits, places, periods[best], longest - 1)


def _folded(counts: Int, period: int) -> tuple[Int, Int]:
    """Sums of every ``period``-th row, shape ``(length, 2)`` in: an entry a phase of each column."""
    length, columns = counts.shape
    whole = length - length % period
    sums: Int = counts[:whole].reshape(-1, period, columns).sum(axis=0)
    sums[: length - whole] += counts[whole:]
    return sums[:, 0], sums[:, 1]


def _carried(features: Features, fetches: Fetches, events: Int) -> float:
    """Share of the steady waiting for fetches that falls within slow fetches."""
    starved = np.where(features.steady, features.starved_ns, 0)
    total = float(starved.sum(dtype=np.float64))
    if not events.size or total <= 0:
        return 0.0
    order = events[np.argsort(fetches.start_ns[events], kind="stable")]
    start, reach = fetches.start_ns[order], np.maximum.accumulate(fetches.end_ns[order])
    heads = np.flatnonzero(np.concatenate([[True], start[1:] > reach[:-1]]))
    opened, closed = start[heads], reach[np.append(heads[1:], order.size) - 1]
    # Time within the merged slow fetches up to any moment: linear between their ends.
    edges = np.stack([opened, closed], axis=1).ravel().astype(np.float64)
    within = np.repeat(np.cumsum(closed - opened, dtype=np.float64), 2)
    within[::2] -= closed - opened
    waiting = starved > 0
    asked = features.ask_ns[waiting].astype(np.float64)
    inside = np.interp(asked + starved[waiting], edges, within) - np.interp(asked, edges, within)
    return float(inside.sum()) / total


def _scan(events: Int, total: int, restarts: Int) -> PeriodFit | None:
    """The best period of the whole run, or of its first events where the phase has slipped since."""
    fit = scan_periods(events, total, restarts)
    if fit is None or fit.explained >= EXACT or events.size <= EARLY_EVENTS:
        return fit
    stop = int(events[EARLY_EVENTS])
    early = scan_periods(events[:EARLY_EVENTS], stop, restarts[restarts < stop])
    return early if early is not None and early.explained > max(EXACT, fit.explained) else fit


def fetch_pattern(features: Features) -> Pattern | None:
    """The arrangement of the slow fetches; None without fetch times."""
    fetches = features.fetches
    if fetches is None:
        return None
    mask, ratio, modes = slow_fetches(fetches.ns, features.step_median_ns)
    events = np.flatnonzero(mask)
    total = mask.size
    workers = features.workers or 0
    known = workers >= 2 and bool((fetches.worker >= 0).all())
    by_worker = None
    if events.size and known:
        by_worker = fit_phases(
            np.bincount(fetches.worker[events], minlength=workers),
            np.bincount(fetches.worker, minlength=workers),
            workers,
        )
    over, together = np.zeros(0, dtype=np.int64), 0.0
    if events.size:
        usual_ns = median(fetches.ns[~mask]) if not mask.all() else 0.0
        # The first fetches of the run open files and warm caches: they are no moment of a clock.
        later = events[events >= features.first_round]
        if later.size:
            over, together = _groups(fetches, later, usual_ns)
    return Pattern(
        source="fetch",
        mask=mask,
        events=events,
        ratio=ratio,
        modes=modes,
        by_count=fit_period(events, total, workers, fetches.restarts) if 2 <= workers <= total else None,
        scanned=_scan(events, total, fetches.restarts),
        by_turn=_by_turn(events, fetches) if events.size and known else None,
        by_worker=by_worker,
        clock=fit_clock(over, median(fetches.ns[events]) if events.size else 0.0),
        carried=_carried(features, fetches, events),
        groups=int(over.size),
        together=together,
    )


def _apart(features: Features, events: Int) -> float:
    """How far apart the ends of two stalls are at least: a step, and the second stall itself."""
    if not events.size:
        return 0.0
    step = features.step_median_ns if features.step_median_ns > 0 else 0.0
    return median(features.wait_ns[events]) + step


def wait_pattern(features: Features, alone: bool = True) -> Pattern:
    """The arrangement of the stalls; periods are looked for only where stalls are all there is.

    The first wait of an epoch fills the pipe. It is no stall, unless it is longer than the pool could afford
    (workers times step): a fetch of that length, repeated, starves the loop.
    """
    kept = np.ones(features.n, dtype=np.bool_)
    kept[features.epoch_starts] = False
    affordable = FILL_MARGIN * features.round * features.step_median_ns
    kept[0] = bool(features.wait_ns[0] > affordable)
    mask = features.stalled & kept
    events = np.flatnonzero(mask)
    workers = features.workers or 0
    starts = features.epoch_starts
    high = median(features.starved_ns[mask]) if events.size else 0.0
    rest = kept & ~mask
    low = median(features.starved_ns[rest]) if rest.any() else 0.0
    got: NDArray[np.int64] = features.ask_ns[events] + features.wait_ns[events]
    return Pattern(
        source="wait",
        mask=mask,
        events=events,
        ratio=high / max(low, 1.0),
        modes=features.threshold.modes,
        by_count=fit_period(events, features.n, workers, starts) if 2 <= workers <= features.n else None,
        scanned=scan_periods(events, features.n, starts) if alone else None,
        by_turn=None,
        by_worker=None,
        clock=fit_clock(got, _apart(features, events)) if alone else None,
        carried=stall_wait_share(features.wait_ns[features.steady], features.stalled[features.steady]),
        groups=int(events.size),
        together=float("nan"),
    )
