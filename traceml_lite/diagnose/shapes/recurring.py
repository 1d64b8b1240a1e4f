"""Shapes of single slow fetches: slow_sample, data_period, worker_period, clock_period.

The same slow ones are held against a period in rank, in turns of a worker and in seconds; the arrangement
that explains most of them is named, and chance is named where none explains enough. Prefetch hides many of
them from the waits, so fetch times by rank are asked first.
"""

from __future__ import annotations

import math

from traceml_lite.diagnose.shapes.measures import Measures
from traceml_lite.diagnose.shapes.patterns import SLOW_SHARE, Pattern
from traceml_lite.diagnose.shapes.pool import (
    CARRIED,
    cadence_score,
    explained,
    pinned_score,
    round_score,
    worker_contrast,
)
from traceml_lite.diagnose.shapes.scoring import above, below, either, evidence, unlikely
from traceml_lite.diagnose.shapes.steady import unrest
from traceml_lite.diagnose.words import counted, digits, duration, percent
from traceml_lite.records.results import Evidence
from traceml_lite.stats.clock import MIN_CLOCK_EVENTS

# A period must explain this share of where the slow ones are; with random ones on top of a data period the
# simulated runs reach 0.5, a clock folded in batches 0.45 at most.
EXPLAINED = 0.45
# Every place of a data period is slow, but for one now and then.
FETCH_RECALL = 0.7
# Regular in seconds: root mean square deviation as a share of the period.
CLOCK_DEVIATION = 0.12
# Chance of so regular an arrangement at any period tried, where slow ones fall at random.
PERIOD_LEVEL = 0.01
# From here on chance is no longer the better explanation, if an arrangement fits: then neither is named.
DOUBT_LEVEL = 0.15
# p-values for a clock: on its own, and where all workers are held up together.
CLOCK_LEVEL = 0.005
CLOCK_LEVEL_TOGETHER = 0.4
# A pause of the host holds up every worker that is fetching.
TOGETHER = 0.7
# ... and then its slow fetches are explained; a period in rank must be nearly exact to be the better reason.
PAUSE_EXPLAINS = 0.75
# Without slow fetches as a class: share of the fetch time in the slowest tenth (an even tenth would be 0.1).
HEAVY_TIME = 0.25
# Usual load above which waits come from the pool and not from single samples.
LIGHT_LOAD = 1.05


def data_score(seen: Measures, level: float = PERIOD_LEVEL) -> float:
    """How clearly slow fetches (or, without fetch times, stalls) recur at a fixed distance in rank."""
    pattern = seen.fetch
    if pattern is None:
        return _wait_period(seen, level)
    fit = pattern.scanned
    if fit is None:
        return 0.0
    rivals = max(
        explained(pattern.by_turn),
        explained(pattern.by_worker),
        PAUSE_EXPLAINS * either(_held_up(seen), _even(pattern)),
    )
    here = explained(fit)
    # A period of the worker count is one worker as well as the data; a worker is the commoner cause.
    ahead = below(rivals, max(here, 1e-9) * 0.98, 1.05) if rivals > 0 else 1.0
    return (
        unlikely(fit.p_corrected, level)
        * above(here, EXPLAINED * 0.9, 1.15)
        * above(fit.recall, FETCH_RECALL, 1.2)
        * ahead
    )


def _wait_period(seen: Measures, level: float = PERIOD_LEVEL) -> float:
    fit, workers = seen.wait.scanned, seen.features.workers
    if fit is None:
        return 0.0
    score = cadence_score(fit, level)
    if explained(fit) < PAUSE_EXPLAINS:
        score *= 1.0 - _even(seen.wait)
    return score * 0.3 if fit.period == workers else score


def turn_score(seen: Measures, level: float = PERIOD_LEVEL) -> float:
    """How clearly every k-th fetch of each worker is the slow one."""
    pattern = seen.fetch
    if pattern is None or pattern.by_turn is None:
        return 0.0
    fit = pattern.by_turn
    here = explained(fit)
    rival = explained(pattern.scanned)
    return (
        unlikely(fit.p_corrected, level)
        * above(here, EXPLAINED + 0.15, 1.15)
        * above(fit.recall, FETCH_RECALL, 1.2)
        * above(here, max(rival, 1e-9), 1.05)
    )


def _even(pattern: Pattern) -> float:
    """How clearly the slow ones are even in seconds, far beyond chance."""
    fit = pattern.clock
    return 0.0 if fit is None else unlikely(fit.p_value, 0.003) * below(fit.deviation, 0.05, 1.4)


def _held_up(seen: Measures) -> float:
    """How clearly the slow fetches are those that one pause after the other held up, all workers at once."""
    pattern = seen.fetch
    if pattern is None or (seen.features.workers or 0) < 2 or pattern.groups < 3:
        return 0.0
    return above(pattern.together, TOGETHER, 1.15)


def clock_score(seen: Measures, level: float = CLOCK_LEVEL) -> float:
    """How clearly the slow ones are regular in seconds and not in batches or turns."""
    pattern = seen.fetch if seen.fetch is not None else seen.wait
    fit = pattern.clock
    if fit is None:
        return 0.0
    regular = below(fit.deviation, CLOCK_DEVIATION, 1.4)
    if pattern.source == "fetch" and (seen.features.workers or 0) >= 2:
        shared = _held_up(seen)
        alone = unlikely(fit.p_value, level)
        score = regular * either(shared * unlikely(fit.p_value, CLOCK_LEVEL_TOGETHER), alone)
    else:
        score = regular * unlikely(fit.p_value, level)
        if pattern.source == "wait":
            # A pool in step is as regular in seconds as its fetches are alike.
            score *= 1.0 - max(pinned_score(seen), round_score(seen))
    # What is exact in batches or turns is regular in seconds only because the steps are.
    exact = max(data_score(seen), turn_score(seen))
    return score * (1.0 - exact)


def _matters(seen: Measures) -> float:
    """How clearly the loop waits for the slow ones, and not for something beside them."""
    return above((seen.fetch or seen.wait).carried, 0.6 * CARRIED, 1.4)


def _pattern_numbers(pattern: Pattern) -> dict[str, float]:
    numbers = {"slow": float(pattern.events.size), "slow_share": pattern.share, "slow_ratio": pattern.ratio}
    if pattern.scanned is not None:
        numbers |= {
            "period_batches": float(pattern.scanned.period),
            "on_phase": pattern.scanned.on_phase,
            "recall": pattern.scanned.recall,
            "p_corrected": pattern.scanned.p_corrected,
        }
    return numbers


def _what(pattern: Pattern) -> str:
    return "slow fetches" if pattern.source == "fetch" else "stalls"


def data_period(seen: Measures) -> Evidence:
    """Slow ones at a fixed distance in rank: a shard, a row group, an episode."""
    pattern = seen.fetch if seen.fetch is not None else seen.wait
    fit = pattern.scanned
    if fit is None:
        return evidence(
            "data_period",
            0.0,
            {"slow": float(pattern.events.size)},
            missing=[f"whether {_what(pattern)} recur in rank (there are fewer than three)"],
            measured=False,
        )
    score = either(unrest(seen), above(seen.steady_share, 0.01, 1.5)) * data_score(seen) * _matters(seen)
    features = seen.features
    # Ordered, the batches of one worker are the ranks of one residue: what scores for the worker speaks for
    # the data as much.
    one_worker_or_data = (
        features.in_order is not False
        and fit.period == features.workers
        and unlikely(fit.p_corrected, PERIOD_LEVEL) * above(fit.recall, FETCH_RECALL, 1.2) > 0.5
    )
    text = (
        f"{percent(fit.on_phase)} of {fit.events} {_what(pattern)} lie at ranks {fit.phase} modulo "
        f"{fit.period}, {percent(fit.recall)} of these ranks are slow "
        f"(p = {fit.p_corrected:.1g} after {counted(fit.tried, 'period')})"
    )
    return evidence(
        "data_period",
        score,
        _pattern_numbers(pattern),
        supports=[text] if score > 0.5 or one_worker_or_data else (),
        contradicts=[text] if score <= 0.5 and not one_worker_or_data else (),
        missing=() if pattern.source == "fetch" else (f"fetch times ({seen.features.fetch_missing})",),
    )


def worker_period(seen: Measures) -> Evidence:
    """Every k-th fetch of each worker is slow: garbage collection, a buffer refilled, a file reopened."""
    features = seen.features
    if (features.workers or 0) < 2:
        return evidence(
            "worker_period", 0.0, {}, contradicts=["one maker of batches: its turns are the ranks"]
        )
    if seen.fetch is None:
        fit, workers = seen.wait.scanned, features.workers or 0
        multiple = fit is not None and fit.period > workers and fit.period % workers == 0
        score = unrest(seen) * _wait_period(seen) * (0.5 if multiple else 0.02)
        return evidence(
            "worker_period",
            score,
            {"period_batches": float(fit.period) if fit else float("nan")},
            missing=[f"fetch times per worker ({features.fetch_missing})"],
        )
    fit = seen.fetch.by_turn
    if fit is None:
        return evidence(
            "worker_period",
            0.0,
            {"slow": float(seen.fetch.events.size)},
            contradicts=["fewer than two workers have slow fetches"],
        )
    score = unrest(seen) * turn_score(seen) * _matters(seen)
    text = (
        f"{percent(fit.on_phase)} of {fit.events} slow fetches are a worker's turn {fit.phase} modulo "
        f"{fit.period}, {percent(fit.recall)} of these turns are slow (p = {fit.p_corrected:.1g})"
    )
    return evidence(
        "worker_period",
        score,
        {"period_turns": float(fit.period), "on_phase": fit.on_phase, "recall": fit.recall},
        supports=[text] if score > 0.5 else (),
        contradicts=[text] if score <= 0.5 else (),
    )


def clock_period(seen: Measures) -> Evidence:
    """Regular in seconds, whatever the batch: something outside holds everybody up."""
    pattern = seen.fetch if seen.fetch is not None else seen.wait
    fit = pattern.clock
    if fit is None:
        return evidence(
            "clock_period",
            0.0,
            {"groups": float(pattern.groups)},
            missing=[f"whether {_what(pattern)} are regular in time (there are too few)"],
            measured=False,
        )
    score = either(unrest(seen), above(seen.steady_share, 0.01, 1.5)) * clock_score(seen) * _matters(seen)
    text = (
        f"{fit.events} moments of {_what(pattern)} lie {duration(fit.period_ns)} apart, to "
        f"{percent(fit.deviation)} of it (p = {fit.p_value:.2g})"
    )
    supports, contradicts = ([text], []) if score > 0.5 else ([], [text])
    if not math.isnan(pattern.together) and (seen.features.workers or 0) >= 2:
        both = f"{percent(pattern.together)} of the slow fetches end together with another worker's"
        (supports if pattern.together > TOGETHER else contradicts).append(both)
    return evidence(
        "clock_period",
        score,
        {
            "period_ns": fit.period_ns,
            "deviation": fit.deviation,
            "p_value": fit.p_value,
            "moments": float(fit.events),
            "together": pattern.together,
        },
        supports,
        contradicts,
    )


def _shown(count: int) -> float:
    """How far so few slow ones can show that they are irregular."""
    return 1.0 - 0.45 * 0.7 ** max(0, count - 1)


def slow_sample(seen: Measures) -> Evidence:
    """A few fetches far above the rest, at no regular distance; what is behind them waits."""
    features = seen.features
    pattern = seen.fetch if seen.fetch is not None else seen.wait
    regular = max(
        data_score(seen, DOUBT_LEVEL),
        turn_score(seen, DOUBT_LEVEL),
        clock_score(seen, DOUBT_LEVEL),
        worker_contrast(seen, DOUBT_LEVEL),
    )
    numbers = _pattern_numbers(pattern) | {"heavy_time": seen.heavy_time, "load": seen.load}
    if seen.fetch is None:
        rare = below(seen.wait.share, 0.45, 1.15) * above(seen.wait.events.size, 0.7, 1.5)
        rare *= _shown(pattern.events.size)
        score = unrest(seen) * rare * (1.0 - max(regular, round_score(seen, DOUBT_LEVEL)))
        text = f"{counted(pattern.events.size, 'stall')} in {features.n} deliveries"
        if pattern.events.size >= MIN_CLOCK_EVENTS:
            text += ", at no regular distance"
        return evidence(
            "slow_sample",
            score,
            numbers,
            supports=[text] if score > 0.5 else (),
            contradicts=[text] if score <= 0.5 else (),
            missing=[f"fetch times ({features.fetch_missing})"],
        )
    apart = 0.0
    if pattern.events.size:
        apart = above(pattern.ratio, 2.5, 1.3) * below(pattern.share, SLOW_SHARE + 0.05, 1.05)
        apart *= _shown(pattern.events.size) * (1.0 - _held_up(seen)) * above(pattern.carried, CARRIED, 1.4)
    broad = above(seen.heavy_time, HEAVY_TIME, 1.2) * below(seen.load_low, LIGHT_LOAD, 1.15)
    score = unrest(seen) * either(apart, broad) * (1.0 - regular)
    if pattern.events.size:
        text = (
            f"{counted(pattern.events.size, 'fetch', 'fetches')} of {features.n} take "
            f"{digits(pattern.ratio)} times as long as usual"
        )
    else:
        text = f"the slowest tenth of the fetches takes {percent(seen.heavy_time)} of all fetch time"
    return evidence(
        "slow_sample",
        score,
        numbers,
        supports=[text] if score > 0.5 else (),
        contradicts=[text] if score <= 0.5 else (),
    )
