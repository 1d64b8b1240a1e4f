"""Which law the gap between stalls, and the throughput, follow when the number of workers is changed.

Each law says, for every pass, which deliveries stalls should fall on; what it explains better than stalls
at random is summed over the passes and charged for what was fitted (BIC). One pass alone cannot tell a gap of
num_workers from a constant one. Passes over the same batches are not independent: slow samples at random
places stall at the same places each time, so against chance their evidence counts as often as it differs.
Nothing here knows why a loader stalls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

# A difference of BIC above 10 is "very strong" (Kass and Raftery 1995): odds of more than 150 to 1.
DECISIVE_BIC = 10.0
# With more than this share of deliveries stalled there are no gaps to speak of: every wait is alike.
DENSE_STALL_SHARE = 0.9
# A cadence leaves deliveries between its stalls; a pool that has lost step has half of them side by side.
NEIGHBOUR_SHARE = 0.6
# A period has to come round twice in the shortest pass.
MIN_CYCLES = 2
# Longer periods are not tried; a fold of every period would cost more than it finds.
MAX_PERIOD = 512
# Largest k in gap = k * num_workers.
MAX_MULTIPLE = 64
# Half-widths of the window around a clock's tick, as a share of its period: from the precision of a timer job
# to what the queue in between smears.
CLOCK_WINDOWS = (0.03, 0.06, 0.12)
# Candidate clock periods are merged when they differ by less than this: the narrowest window.
CLOCK_RESOLUTION = 0.03
# Most candidate periods that are tried; beyond, the ones most often seen.
MAX_CLOCKS = 80
# Up to this BIC evidence is "not worth more than a bare mention": then stalls count as random.
MENTION_BIC = 2.0
# Slow fetches that agree this far between different numbers of workers belong to the batches themselves.
SAME_BATCHES = 0.6
# Cost in nats of saying that a gap is constant in seconds: a clock would have to hit the batch count of every
# number of workers by chance, where a saturated pool of equal fetches does both by itself.
CLOCK_PRIOR = 3.0


# Said with a gap of k * num_workers where fetch times are not there to tell.
PARALLEL = "heavy batches at a period of k, fetched in parallel, would look the same without fetch times"


@dataclass(frozen=True, slots=True, eq=False)
class StallSeries:
    """The stalls of one pass, in delivery order."""

    workers: int
    """num_workers of the pass, at least 1."""
    stalled: NDArray[np.bool_]
    """Which deliveries are stalls, shape ``(n,)``."""
    time_ns: NDArray[np.int64]
    """When each delivery was asked for, shape ``(n,)``. Not when it was had: a stall, being long, would come
    late after the one before by itself, and look like a clock."""
    rank: NDArray[np.int64] | None = None
    """Place of each delivery in the sampler's order; None where that is the order of delivery."""
    slow: NDArray[np.bool_] | None = None
    """Whose fetches were slow, where fetch times have two modes; None where not known or not so."""
    alike: bool = False
    """Fetch times are known and no fetch is long against the others."""

    @property
    def informative(self) -> bool:
        """Whether the stalls leave gaps that a law could be about."""
        count = int(self.stalled.sum())
        return 2 <= count <= DENSE_STALL_SHARE * len(self.stalled)


@dataclass(frozen=True, slots=True)
class LawFit:
    """One law at its best parameter."""

    key: str
    """``proportional``, ``multiple``, ``constant_batches``, ``constant_seconds`` or ``none``."""
    bic: float
    """All passes taken as independent; stalls at random have 0, the lower the better."""
    bic_chance: float
    """The same with passes that repeat each other counted once: what holds against stalls at random."""
    gain: float
    """Log likelihood over stalls at random, in nats, before the charge for the parameter."""
    parameter: float | None = None
    """k of ``multiple``, batches or nanoseconds of the constant ones."""
    passes: int = 0
    """Informative passes that the law explains better than chance."""


@dataclass(frozen=True, slots=True)
class GapLaws:
    """All laws, and the one that may be named."""

    key: str
    """The law; ``undecided`` when the evidence does not reach."""
    fits: tuple[LawFit, ...]
    """Best first."""
    delta_bic: float
    """Of the best law over the next one."""
    workers: tuple[int, ...]
    """The numbers of workers whose passes had gaps to compare."""
    gaps: int
    """Gaps between stalls, over those passes."""
    reason: str = ""
    """Why it is undecided, or what else would look the same; in words."""
    by_fetches: bool = False
    """The ranks of slow fetches decided, not the stalls."""

    def fit(self, key: str) -> LawFit:
        """The fit of one law."""
        return next(f for f in self.fits if f.key == key)


def _likelihood(hits: NDArray[np.float64], places: NDArray[np.float64]) -> NDArray[Any]:
    """Bernoulli log likelihood at the best rate."""
    result: NDArray[Any] = (
        special.xlogy(hits, hits)
        + special.xlogy(places - hits, places - hits)
        - special.xlogy(places, places)
    )
    return result


def _one(hits: float, places: float) -> float:
    return float(_likelihood(np.asarray(float(hits)), np.asarray(float(places))))


# A law's parameter and, for seconds, the window around the tick.
_Value = tuple[float, float]


class _Pass:
    """What one pass gains from any period, computed once for each."""

    def __init__(self, series: StallSeries) -> None:
        self.workers = series.workers
        self.stalled = series.stalled.astype(bool)
        self.n = len(self.stalled)
        self.at = np.flatnonzero(self.stalled)
        self.time = series.time_ns.astype(np.float64)
        self.count = len(self.at)
        ranks = np.arange(self.n) if series.rank is None else series.rank
        self.ranks = frozenset(int(r) for r in ranks[self.at])
        self.random = _one(self.count, self.n)
        # A second rate, for the places where the law expects a stall.
        self.rate_cost = 0.5 * math.log(max(2, self.n))
        last = np.full(self.n, -1)
        last[self.at] = self.at
        last = np.maximum.accumulate(last)
        # Place of the last stall before each delivery; -1 before the first.
        self.last = np.concatenate([[-1], last[:-1]])
        self._batches: dict[int, float] = {}

    def gain_of(self, on: NDArray[np.bool_]) -> float:
        """Log likelihood over random stalls when the ``on`` places have a rate of their own."""
        places = int(on.sum())
        hits = int((on & self.stalled).sum())
        if hits * self.n <= self.count * places:
            return 0.0
        return _one(hits, places) + _one(self.count - hits, self.n - places) - self.random

    def batches(self, period: int) -> float:
        """Gain of a gap of ``period`` batches, charged for phase and rate.

        By the fold (stalls share a residue; some may be missing) or by the gap itself (each stall follows the
        last one by the period; the phase may slip), whichever explains more.
        """
        if period == 1:
            return 0.0
        known = self._batches.get(period)
        if known is None:
            hits = np.bincount(self.at % period, minlength=period).astype(np.float64)
            places = np.bincount(np.arange(self.n) % period, minlength=period).astype(np.float64)
            apart = _likelihood(hits, places) + _likelihood(self.count - hits, self.n - places)
            apart[hits * self.n <= self.count * places] = self.random
            folded = float(apart.max()) - self.random
            renewed = self.gain_of((self.last >= 0) & (np.arange(self.n) - self.last == period))
            known = max(folded, renewed) - math.log(2 * period) - self.rate_cost
            self._batches[period] = known
        return known

    def seconds(self, period_ns: float, window: float) -> float:
        """Gain of a gap of ``period_ns`` to within ``window`` of it, charged and by fold or gap as above."""
        since = np.where(self.last >= 0, self.time - self.time[self.last], math.inf)
        turned = np.sort(self.time % period_ns)
        # Around the dial once more on both sides, so that a window may reach over the top.
        everybody = np.concatenate([turned - period_ns, turned, turned + period_ns])
        stalled = np.sort(self.time[self.at] % period_ns)
        stalls = np.concatenate([stalled - period_ns, stalled, stalled + period_ns])
        half = window * period_ns
        renewed = self.gain_of(np.abs(since - period_ns) <= half)
        places, hits = (
            (np.searchsorted(dial, stalled + half, "right") - np.searchsorted(dial, stalled - half)).astype(
                np.float64
            )
            for dial in (everybody, stalls)
        )
        apart = _likelihood(hits, places) + _likelihood(self.count - hits, self.n - places)
        apart[hits * self.n <= self.count * places] = self.random
        best = max(renewed, float(apart.max()) - self.random)
        # As many phases as the period has deliveries, so that batches and seconds are charged alike.
        pace = (self.time[-1] - self.time[0]) / max(1, self.n - 1)
        return best - math.log(2 * max(2.0, period_ns / pace)) - self.rate_cost


def _alike(a: _Pass, b: _Pass) -> float:
    """How far two passes stall at the same batches, beyond chance: 0 independent, 1 the same."""
    shared = 2 * len(a.ranks & b.ranks) / (len(a.ranks) + len(b.ranks))
    chance = 0.5 * (a.count / a.n + b.count / b.n)
    return max(0.0, (shared - chance) / max(1e-9, 1 - chance))


def _independent(group: Sequence[_Pass]) -> float:
    """How many independent passes a group is worth, from 1 to its size."""
    size = len(group)
    if size < 2:
        return float(size)
    alike = [_alike(a, b) for i, a in enumerate(group) for b in group[:i]]
    return size / (1 + (size - 1) * sum(alike) / len(alike))


def gap_laws(passes: Sequence[StallSeries]) -> GapLaws:
    """Compare the laws of the gap over the passes of a sweep.

    Args:
        passes: One entry per pass, any number of passes per number of workers. Passes without workers, and
            those in which nearly every delivery or hardly one is a stall, say nothing about gaps.

    Where all fetches are alike, only the pool itself can make gaps: the other laws need fetches that are slow
    at every k-th task, batch or tick, and are left out.

    Returns:
        The law that is better than every other by a BIC of 10, or ``undecided`` with the reason. ``none``
        needs enough stalls that a cadence, had there been one, would have shown by that much.
    """
    _, result = _compare(passes)
    slow, fetched = _compare([_slow_fetches(series) for series in passes if series.slow is not None])
    if len({p.workers for p in slow}) < 2:
        return replace(result, reason=PARALLEL) if result.key == "multiple" else result
    if fetched.key == "constant_batches" and result.key != fetched.key:
        # Prefetch lets several heavy batches run at once; the stalls then show at multiples of the period.
        period = fetched.fit("constant_batches")
        fits = (period, *(f for f in result.fits if f.key != period.key))
        return replace(
            result, key=period.key, fits=fits, delta_bic=fetched.delta_bic, reason="", by_fetches=True
        )
    alike = [_alike(a, b) for i, a in enumerate(slow) for b in slow[:i] if a.workers != b.workers]
    if sum(alike) < SAME_BATCHES * len(alike):
        return result
    if fetched.key == "none" and result.key == "undecided":
        return replace(result, key="none", reason="", by_fetches=True)
    if result.key == "multiple":
        return replace(result, key="undecided", reason="the same batches are slow at every num_workers")
    return result


def _slow_fetches(series: StallSeries) -> StallSeries:
    """The slow fetches of a pass in the sampler's order, in the place of its stalls."""
    assert series.slow is not None
    ranks = np.arange(len(series.slow)) if series.rank is None else series.rank
    order = np.argsort(ranks, kind="stable")
    # Times have to rise for a clock to be fitted; whose fetches come out of order have none to offer.
    return StallSeries(series.workers, series.slow[order], np.sort(series.time_ns), ranks[order])


def _compare(passes: Sequence[StallSeries]) -> tuple[list[_Pass], GapLaws]:
    seen = [_Pass(series) for series in passes if series.workers >= 1 and series.informative]
    workers = tuple(sorted({p.workers for p in seen}))
    gaps = sum(p.count - 1 for p in seen)
    none = LawFit("none", 0.0, 0.0, 0.0)
    if not seen:
        dense = {s.workers for s in passes if s.stalled.sum() > DENSE_STALL_SHARE * len(s.stalled)}
        if dense - {0, 1}:
            return seen, GapLaws(
                "none", (none,), 0.0, (), 0, "nearly every delivery stalls: there are no gaps"
            )
        reason = "no pass has two stalls with fast deliveries between"
        return seen, GapLaws("undecided", (none,), 0.0, (), 0, reason)
    fits = sorted([none, *_fits(seen)], key=lambda f: f.bic)
    if all(series.alike for series in passes if series.workers >= 1 and series.informative):
        fits = [f for f in fits if f.key in ("none", "proportional")]
    key, reason = _decide(seen, fits, workers)
    if key in ("constant_batches", "constant_seconds", "undecided") and _neighbouring(seen):
        return seen, GapLaws(
            "none", (none,), 0.0, workers, gaps, "most stalls follow one another: uniform waits"
        )
    return seen, GapLaws(key, tuple(fits), fits[1].bic - fits[0].bic, workers, gaps, reason)


def _neighbouring(seen: list[_Pass]) -> bool:
    """Whether at every number of workers above 1 most stalls come right after another.

    Uniform waits, of which a threshold cuts some off: the gaps left are the threshold's, not a cadence's.
    """
    by_workers: dict[int, list[NDArray[np.int64]]] = {}
    for one in seen:
        if one.workers > 1:
            by_workers.setdefault(one.workers, []).append(np.diff(np.flatnonzero(one.stalled)))
    shares = [float((np.concatenate(gaps) == 1).mean()) for gaps in by_workers.values()]
    return bool(shares) and min(shares) >= NEIGHBOUR_SHARE


def _fits(seen: list[_Pass]) -> list[LawFit]:
    limit = max(2, min(MAX_PERIOD, min(p.n for p in seen) // MIN_CYCLES))
    widest = max(p.workers for p in seen)
    multiples = range(2, max(2, min(MAX_MULTIPLE, limit // widest)) + 1)
    by_workers = [[i for i, p in enumerate(seen) if p.workers == w] for w in {p.workers for p in seen}]
    together = [list(range(len(seen)))]
    worth = {
        id(groups): [_independent([seen[i] for i in g]) for g in groups] for groups in (by_workers, together)
    }

    def best(
        key: str, gain: Callable[[_Pass, _Value], float], values: Sequence[_Value], groups: list[list[int]]
    ) -> LawFit:
        if not values:
            return LawFit(key, math.inf, math.inf, -math.inf)
        gains = {v: [gain(p, v) for p in seen] for v in values}
        top = max(gains, key=lambda v: sum(gains[v]))
        total, cost = sum(gains[top]), math.log(len(values))
        if key == "constant_seconds":
            cost += CLOCK_PRIOR
        distinct = sum(
            sum(gains[top][i] for i in group) / len(group) * number
            for group, number in zip(groups, worth[id(groups)], strict=True)
        )
        explained = sum(g > 0 for g in gains[top])
        return LawFit(key, -2 * (total - cost), -2 * (distinct - cost), total, top[0], explained)

    def whole(numbers: Sequence[int]) -> list[_Value]:
        return [(float(number), 0.0) for number in numbers]

    clocks = [(period, window) for period in _clock_candidates(seen) for window in CLOCK_WINDOWS]
    return [
        best("proportional", lambda p, v: p.batches(p.workers), whole([1]), by_workers),
        best("multiple", lambda p, v: p.batches(int(v[0]) * p.workers), whole(multiples), by_workers),
        best("constant_batches", lambda p, v: p.batches(int(v[0])), whole(range(2, limit + 1)), together),
        best("constant_seconds", lambda p, v: p.seconds(*v), clocks, together),
    ]


def _clock_candidates(seen: list[_Pass]) -> list[float]:
    """Times between stalls, next and next but one, merged to the resolution, the most frequent ones."""
    times = [p.time[p.at] for p in seen]
    apart = np.concatenate([t[lag:] - t[:-lag] for t in times for lag in (1, 2) if len(t) > lag])
    apart = np.sort(apart[apart > 0])
    if not len(apart):
        return []
    cells = np.round(np.log(apart) / CLOCK_RESOLUTION)
    _, inverse, counts = np.unique(cells, return_inverse=True, return_counts=True)
    chosen = np.argsort(counts)[::-1][:MAX_CLOCKS]
    return [float(np.median(apart[inverse == cell])) for cell in chosen]


def _decide(seen: list[_Pass], fits: list[LawFit], workers: tuple[int, ...]) -> tuple[str, str]:
    laws = [f for f in fits if f.key != "none"]
    best, rivals = laws[0], laws[1:]
    if min(f.bic_chance for f in laws) >= -MENTION_BIC:
        # What a cadence without exception, one stall each time round, would have gained in these passes.
        possible = 2 * sum(max(0.0, -p.random - math.log(2 * p.n / p.count) - p.rate_cost) for p in seen)
        if possible < 2 * DECISIVE_BIC:
            return "undecided", f"too few stalls: a perfect cadence would show by a BIC of {possible:.0f}"
        return "none", ""
    if -best.bic_chance < DECISIVE_BIC:
        return "undecided", f"{best.key} beats chance by a BIC of {-best.bic_chance:.1f} of 10 needed"
    if rivals and rivals[0].bic - best.bic < DECISIVE_BIC:
        delta = rivals[0].bic - best.bic
        return "undecided", f"{best.key} beats {rivals[0].key} by a BIC of {delta:.1f} of 10 needed"
    many = [w for w in workers if w > 1]
    if best.key != "constant_seconds" and len(workers) < 2:
        return "undecided", f"gaps at num_workers={workers[0]} alone: several laws agree with them"
    if best.key == "proportional" and len(many) < 2:
        return "undecided", "gaps at two different numbers of workers above 1 are needed"
    clock = next((f for f in rivals if f.key == "constant_seconds"), None)
    if best.key == "constant_batches" and clock and 2 * (best.gain - clock.gain) < DECISIVE_BIC:
        return "undecided", "the pace is too even to tell batches from seconds: change the consumer's pace"
    return best.key, ""


@dataclass(frozen=True, slots=True)
class ThroughputFit:
    """How throughput moves with the number of workers."""

    key: str
    """``grows``, ``flat``, ``falls`` or ``undecided``."""
    knee: float | None
    """Workers up to which it grows in proportion; 1 when it never does; None when it does throughout."""
    exponent: float
    """Slope of log throughput over log workers, least squares."""
    exponent_se: float | None
    """Its standard error; None with fewer than three passes."""
    delta_bic: float
    """Of the best shape over the next one."""
    scores: Mapping[str, float] = field(default_factory=dict)


# Passes of one condition on one host differ by this much at least; a better fit is luck.
THROUGHPUT_NOISE = 0.02
# Fall per doubling of the workers beyond the knee that is worth the word.
MIN_FALL = 0.05
# A power of num_workers below this is flat: 7 % per doubling.
FLAT_EXPONENT = 0.1


def throughput_law(
    workers: NDArray[np.int64], batches_per_s: NDArray[np.float64], cpus: float | None = None
) -> ThroughputFit:
    """Compare the shapes of throughput over workers by BIC, with lognormal noise.

    Args:
        workers: num_workers of each pass, at least 1.
        batches_per_s: Its throughput, above 0.
        cpus: CPUs the passes could use; a knee there needs no parameter.

    Returns:
        ``grows`` (in proportion, or with a power of num_workers: see ``exponent``), ``flat`` from a knee on,
        or ``falls`` beyond it; ``undecided`` with passes at only one number of workers, or where no shape is
        better than those of another key by a BIC of 10. A fall that is not shown leaves ``flat``.
    """
    w, rate = np.asarray(workers, dtype=np.float64), np.asarray(batches_per_s, dtype=np.float64)
    if (w < 1).any() or not (rate > 0).all():
        raise ValueError("expected workers of at least 1 and throughputs above 0")
    counts = np.unique(w)
    if len(counts) < 2:
        return ThroughputFit("undecided", None, math.nan, None, 0.0)
    x, y, n = np.log(w), np.log(rate), len(w)
    centred = x - x.mean()
    slope = float((centred * y).sum() / (centred**2).sum())
    residual = y - y.mean() - slope * centred
    error = math.sqrt(float((residual**2).sum()) / (n - 2) / float((centred**2).sum())) if n > 2 else None

    def score(shape: NDArray[np.float64], parameters: int) -> float:
        left = y - shape
        variance = max(float(((left - left.mean()) ** 2).mean()), THROUGHPUT_NOISE**2)
        return n * math.log(variance) + parameters * math.log(n)

    options: list[tuple[float, str, float | None]] = [(score(x, 1), "grows", None)]
    if len(counts) > 2:
        power = "grows" if slope > FLAT_EXPONENT else "falls" if slope < -FLAT_EXPONENT else "flat"
        options.append((score(slope * x, 2), power, 1.0))
    knees = {float(c) for c in counts[:-1]} | (
        {float(cpus)} if cpus and counts[0] < cpus < counts[-1] else set()
    )
    for knee in sorted(knees):
        free = 1 if knee in (1.0, cpus) else 2
        rising, beyond = np.minimum(x, math.log(knee)), np.maximum(0.0, x - math.log(knee))
        options.append((score(rising, free), "flat", knee))
        if len(counts) > 2 or knee == counts[0]:
            left = y - rising
            norm = float(((beyond - beyond.mean()) ** 2).sum())
            fall = -float(((beyond - beyond.mean()) * left).sum()) / norm if norm > 0 else 0.0
            if fall * math.log(2) > MIN_FALL:
                options.append((score(rising - fall * beyond, free + 1), "falls", knee))
    scores: dict[str, float] = {}
    for value, key, _ in options:
        scores[key] = min(value, scores.get(key, math.inf))
    best = min(options, key=lambda o: o[0])
    # A flat course is a fall of nothing: where the fall is not shown, flat is what is left, if the rest is.
    if best[1] == "falls" and scores.get("flat", math.inf) - best[0] < DECISIVE_BIC:
        best = min((o for o in options if o[1] == "flat"), key=lambda o: o[0])
    nested = ("flat", "falls") if best[1] == "flat" else (best[1],)
    rivals = [value for key, value in scores.items() if key not in nested]
    delta = min(rivals) - best[0] if rivals else 0.0
    key = best[1] if delta >= DECISIVE_BIC else "undecided"
    return ThroughputFit(key, best[2], slope, error, delta, scores)
