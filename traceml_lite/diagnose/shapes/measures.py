"""The numbers that the shape functions weigh, each computed once per run.

Loads, shares, growth and recurrence; no thresholds and no names of mechanisms here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from traceml_lite.diagnose.shapes.features import Features, Int, Mask
from traceml_lite.diagnose.shapes.patterns import Pattern, fetch_pattern, wait_pattern
from traceml_lite.stats.cadence import recurrence, tail_probability
from traceml_lite.stats.drift import block_medians, change_point, trend
from traceml_lite.stats.tails import STALL_FLOOR_STEPS, WAIT_FLOOR_NS, median, quantiles, top_share

# Short series are taken value by value, until there are this many blocks of a round.
MIN_POINTS_PER_SERIES = 32
# One-sided 95 % of the standard normal distribution.
MEDIAN_Z = 1.645
# Round times needed before their growth is read, and blocks that a long run is reduced to.
MIN_ROUND_TIMES = 8
MAX_ROUND_TIMES = 512
# The waiting by round is read off so many deliveries at most: more no longer move its median.
EVENNESS_DELIVERIES = 200_000


@dataclass(frozen=True, slots=True)
class Growth:
    """How a series moves over the run."""

    order: float
    """Rank correlation with time, in [-1, 1]."""
    p_value: float
    """Of that order, against none; neighbours that share deliveries count as one."""
    factor: float
    """Median of the last quarter over that of the first."""
    separation: float
    """Chance that a value after the best split exceeds one before it: 0.5 no change, 1 a clean jump."""
    jump_p: float
    """Pettitt's test of that split; 1 where it leaves less than a sixth on one side."""


@dataclass(frozen=True, slots=True)
class WorkerSpread:
    """How the workers' fetch times differ from each other."""

    slowest: int
    ratio: float
    """Median fetch of the slowest worker over the median of the others' fetches."""
    consistency: float
    """Share of the slowest worker's fetches that exceed nine tenths of the others'."""
    p_value: float
    """Chance that so many of the longest fetches fall on one worker, whichever."""
    rivals: float
    """Median of the second slowest worker over the median of the remaining ones; 1 with two workers."""


@dataclass(frozen=True, slots=True, eq=False)
class Measures:
    """Everything the shape functions look at."""

    features: Features
    cpus_usable: float | None
    """CPUs that the workers share; None where it is not known."""
    fetch: Pattern | None
    wait: Pattern
    load: float
    """Usual fetch time over workers times step: above 1 the pool cannot keep up. nan without fetch times."""
    load_low: float
    """Lower 95 % bound of the load, from the order statistics of the fetches: of few and uneven ones the
    median alone says little. nan without fetch times."""
    usual_fetch_ns: float
    """Median fetch, slow ones of a class of their own left out; nan without fetch times."""
    steady_share: float
    """Waiting for fetches as a share of the time, first rounds of every epoch left out."""
    wait_share: float
    """All waiting as a share of that time: hand-over and a consumer without CPU included."""
    ready_wait_ns: float
    """Mean wait per steady delivery for a batch that had been made: hand-over, or a consumer without CPU."""
    wait_queue_share: float
    """Share of the waits in which the loop's own thread wanted a CPU and had none; nan where not measured."""
    late_share: float
    """The same behind everything that was dispatched before the first ask; nan if too little is left."""
    start_share: float
    """Waiting in the first ``fill`` deliveries of the run as a share of the run's time."""
    first_load: float
    """Waiting of the first round over workers times step: the load, if these waits are usual fetches."""
    pace_load: float
    """Time per delivery over the step: the load of a pool that never catches up."""
    longest_calm: float
    """Longest run of deliveries nobody waited for, over what the queue can hold (``fill``)."""
    start_steps: float
    """Waiting in the first ``fill`` deliveries, in steps."""
    making_share: float
    """Time of ``iter()`` and waiting of the first round that its own fetches do not explain (making the
    workers), as a share of the run's time; nan without fetch times."""
    epoch_share: float
    """Share of all waiting behind the first round of the run that stands at the starts of later epochs."""
    epoch_wait_steps: float
    """Median wait at these starts, in steps."""
    epoch_time_share: float
    """That waiting as a share of the run's time."""
    low_wait_steps: float
    """Lower decile of the steady waits, in steps."""
    wait_ratio: float
    """Upper over lower decile of the steady waits."""
    top_tenth: float
    """Share of the steady waiting in its longest tenth of waits: 0.1 when all are alike."""
    waited: Mask
    """Steady deliveries whose wait was more than the price of a queue get."""
    waited_share: float
    evenness: float
    """Median over mean of what a round of the workers takes beyond its steps: near 1 where every round is
    late, near 0 where few rounds hold all the waiting; nan without waiting or with too few rounds."""
    recurrence: float
    """Chance that the delivery one round after a waited one is waited for, too; nan without workers."""
    recurrence_p: float
    """Chance of that if waits fell at random."""
    fetch_growth: Growth | None
    round_growth: Growth | None
    """Of the time that a round of the workers takes."""
    spread: WorkerSpread | None
    heavy_time: float
    """Share of the fetch time spent in the slowest tenth of fetches, those that are a class of their own left
    out: 0.1 when all are alike. nan without fetch times."""


def _median_low(values: np.ndarray) -> float:
    """Lower one-sided 95 % bound of the median: the order statistic that the binomial's normal form gives."""
    place = max(0, math.floor(values.size / 2 - MEDIAN_Z * math.sqrt(values.size) / 2))
    return float(np.partition(values, place)[place])


def _separation(values: np.ndarray, at: int) -> float:
    before, after = np.sort(values[:at]), values[at:]
    if not before.size or not after.size:
        return 0.5
    lower = np.searchsorted(before, after, side="left")
    upper = np.searchsorted(before, after, side="right")
    return float((lower + upper).mean() / (2 * before.size))


def _jump(points: np.ndarray) -> tuple[float, float]:
    change = change_point(points)
    if change is None or min(change.at, points.size - change.at) < points.size / 6:
        return 0.5, 1.0
    return _separation(points, change.at), change.p_value


def _series_growth(values: Int, block: int) -> Growth | None:
    """Growth of a series; in a short one every value counts, in a long one blocks do."""
    points = block_medians(values, max(1, min(block, values.size // MIN_POINTS_PER_SERIES)))
    fit = trend(points)
    if fit is None:
        return None
    separation, jump_p = _jump(points)
    return Growth(fit.spearman, fit.p_value, fit.growth, separation, jump_p)


def _round_growth(features: Features) -> Growth | None:
    """Growth of the time that a round of the workers takes, from waits and steps alone.

    The time between a delivery and the one a round later is the fetch time itself in an ordered pool that
    cannot keep up, since its worker never rests. Neighbouring rounds overlap by all but one delivery where
    it can keep up, so that each counts for two over the round's length only.
    """
    size, n = features.round, features.n
    if n - size < MIN_ROUND_TIMES or not features.step_median_ns > 0:
        return None
    at = features.ask_ns + features.wait_ns
    within = features.in_epoch[size:] >= size
    times = (at[size:] - at[:-size])[within]
    if times.size < MIN_ROUND_TIMES:
        return None
    points = block_medians(times, max(1, times.size // MAX_ROUND_TIMES))
    fit = trend(points)
    if fit is None:
        return None
    overlap = max(1.0, size / (2.0 * max(1, times.size // points.size)))
    independent = max(3.0, points.size / overlap)
    order = fit.spearman
    t = abs(order) * math.sqrt((independent - 2) / max(1.0 - order**2, 1e-9))
    separation, jump_p = _jump(points[:: max(1, round(overlap))])
    return Growth(
        order=order,
        p_value=float(min(1.0, 2.0 * special.stdtr(independent - 2, -t))),
        factor=fit.growth,
        separation=separation,
        jump_p=jump_p,
    )


def _spread(features: Features) -> WorkerSpread | None:
    fetches = features.fetches
    workers = features.workers or 0
    if fetches is None or workers < 2 or not (fetches.worker >= 0).all():
        return None
    masks = [fetches.worker == worker for worker in range(workers)]
    counts = [np.count_nonzero(mask) for mask in masks]
    medians = np.array(
        [median(fetches.ns[m]) if n >= 2 else -1.0 for m, n in zip(masks, counts, strict=True)]
    )
    if np.count_nonzero(medians >= 0) < 2:
        return None
    slowest = int(np.argmax(medians))
    own, others = fetches.ns[masks[slowest]], fetches.ns[~masks[slowest]]
    rest = np.sort(medians[(medians >= 0) & (np.arange(workers) != slowest)])
    usual, nine_tenths = quantiles(others, (0.5, 0.9))
    cut = np.partition(fetches.ns, fetches.ns.size - own.size)[-own.size]
    longest = int((own >= cut).sum())
    return WorkerSpread(
        slowest=slowest,
        ratio=float(medians[slowest]) / max(usual, 1.0),
        consistency=float((own > nine_tenths).mean()),
        p_value=min(1.0, workers * tail_probability(longest, own.size, own.size, fetches.ns.size)),
        rivals=float(rest[-1] / max(median(rest[:-1]), 1.0)) if rest.size > 1 else 1.0,
    )


def _wait_queue_share(features: Features) -> float:
    """Run-queue delay over wait, in the steady waits in which it was read; nan without any."""
    if features.wait_queue_ns is None:
        return float("nan")
    read = features.steady & (features.wait_queue_ns >= 0)
    waited = float(features.wait_ns[read].sum(dtype=np.float64))
    queued = float(np.minimum(features.wait_queue_ns, features.wait_ns)[read].sum(dtype=np.float64))
    return queued / waited if waited > 0 else float("nan")


def _evenness(features: Features) -> float:
    """Median over mean of the waiting in a round of the workers, rounds within one epoch only."""
    size = features.round
    if features.n - size < MIN_ROUND_TIMES:
        return float("nan")
    sums = np.concatenate([[0], np.cumsum(features.starved_ns[:EVENNESS_DELIVERIES])])
    # The first round of an epoch fills the pipe.
    inside = features.in_epoch[:EVENNESS_DELIVERIES][size - 1 :] >= 2 * size - 1
    rounds = (sums[size:] - sums[:-size])[inside]
    mean = float(rounds.mean()) if rounds.size >= MIN_ROUND_TIMES else 0.0
    return median(rounds) / mean if mean > 0 else float("nan")


def _longest_calm(waited: Mask, features: Features) -> int:
    """Longest run of deliveries without a wait, epochs apart."""
    marks = np.flatnonzero(waited | (features.in_epoch == 0))
    return int(np.diff(np.append(np.append(-1, marks), features.n)).max()) - 1


def measure(features: Features, cpus_usable: float | None = None) -> Measures:
    """All numbers of one run; ``cpus_usable`` is None where it is not known."""
    fetch = fetch_pattern(features)
    wait = wait_pattern(features, alone=fetch is None)
    waits, steady, n = features.starved_ns, features.steady, features.n
    step = features.step_median_ns
    size = features.round
    floor = max(WAIT_FLOOR_NS, STALL_FLOOR_STEPS * step if step > 0 else 0.0)
    waited = steady & (waits > floor)

    load = load_low = making_share = usual = float("nan")
    total = features.total_ns
    if fetch is not None and features.fetches is not None:
        own = features.fetches.ns
        base = own[~fetch.mask] if not fetch.mask.all() else own
        usual = median(base)
        load = usual / (size * step) if step > 0 else float("inf")
        load_low = load * _median_low(base) / max(usual, 1.0)
        longest = float(own[features.fetches.delivery < features.first_round].max(initial=0))
        unexplained = max(0.0, float(waits[: features.first_round].sum()) - longest)
        making = unexplained + features.iter_ns
        making_share = making / (total + features.iter_ns) if total > 0 else 0.0

    later = features.in_epoch >= features.fill
    enough = np.count_nonzero(later) >= max(4, n // 5)
    head = min(features.fill, n)

    epoch_share = epoch_wait = epoch_time = 0.0
    starts = features.epoch_starts[1:]
    if starts.size:
        sums = np.concatenate([[0.0], np.cumsum(waits, dtype=np.float64)])
        at_start = sums[np.minimum(starts + features.first_round, n)] - sums[starts]
        all_waits = float(sums[-1] - sums[min(features.first_round, n)])
        epoch_share = float(at_start.sum() / all_waits) if all_waits > 0 else 0.0
        epoch_wait = median(at_start) / step if step > 0 else float("inf")
        epoch_time = float(at_start.sum()) / total if total > 0 else 0.0

    whole = features.wait_ns[steady]
    low, high = quantiles(whole, (0.1, 0.9)) if whole.size else (0.0, 0.0)
    share = float(waited.sum() / max(1, steady.sum()))
    again, again_p = float("nan"), 1.0
    places = np.flatnonzero(waited)
    if size >= 2 and places.size >= 3 and n > 2 * size:
        again = recurrence(places, n, size)
        open_ended = int((places + size < n).sum())
        if open_ended:
            again_p = tail_probability(round(again * open_ended), open_ended, round(share * n), n)
    steady_share, wait_share = features.shares_of_time((waits, features.wait_ns), steady)
    heavy_time = float("nan")
    fetch_growth = None
    if features.fetches is not None:
        own = features.fetches.ns
        heavy_time = top_share(own[~fetch.mask] if fetch is not None else own, 0.1)
        fetch_growth = _series_growth(own, size)
    return Measures(
        features=features,
        cpus_usable=cpus_usable,
        fetch=fetch,
        wait=wait,
        load=load,
        load_low=load_low,
        usual_fetch_ns=usual,
        steady_share=steady_share,
        wait_share=wait_share,
        ready_wait_ns=float((whole - waits[steady]).mean()) if whole.size else 0.0,
        wait_queue_share=_wait_queue_share(features),
        late_share=features.share_of_time(waits, later) if enough else float("nan"),
        start_share=float(waits[:head].sum()) / total if total > 0 else 0.0,
        first_load=float(waits[: features.first_round].sum()) / (size * step) if step > 0 else float("inf"),
        pace_load=(total / n) / step if step > 0 else float("inf"),
        longest_calm=_longest_calm(waits > floor, features) / features.fill,
        start_steps=float(waits[:head].sum()) / step if step > 0 else float("inf"),
        making_share=making_share,
        epoch_share=epoch_share,
        epoch_wait_steps=epoch_wait,
        epoch_time_share=epoch_time,
        low_wait_steps=low / step if step > 0 else float("inf"),
        wait_ratio=high / max(low, 1.0),
        top_tenth=top_share(whole, 0.1),
        waited=waited,
        waited_share=share,
        evenness=_evenness(features),
        recurrence=again,
        recurrence_p=again_p,
        fetch_growth=fetch_growth,
        round_growth=_round_growth(features),
        spread=_spread(features),
        heavy_time=heavy_time,
    )
