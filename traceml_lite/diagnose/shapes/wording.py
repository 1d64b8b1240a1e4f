"""One sentence per shape, in plain words, with the numbers of this run that matter.

The evidence carries the tests and their p-values; this is what a person reads first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from traceml_lite.diagnose.shapes.measures import Measures
from traceml_lite.diagnose.shapes.steady import made_words, waits_for_made
from traceml_lite.diagnose.words import counted, digits, duration, listed, percent
from traceml_lite.stats.cadence import deliveries_needed
from traceml_lite.stats.clock import MIN_CLOCK_EVENTS

# A count of slow ones from which a distance between them could be told from chance.
EVENTS_TO_TELL = 6
# Asked for at least, so that a hint is worth a run.
LEAST_MORE = 16


def ordinal(number: int) -> str:
    """``2nd``, ``16th`` ..."""
    ending = "th" if 10 <= number % 100 <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _none(seen: Measures) -> str:
    text = f"The loader keeps up: behind the first round {percent(seen.wait_share)} of the time is waiting"
    if seen.wait_share > max(0.02, 2 * seen.steady_share):
        text += f", {percent(seen.steady_share)} for a batch still being made; the rest is waits "
        text += f"for batches already made, {duration(seen.ready_wait_ns)} a batch"
    return f"{text}."


def _start_up(seen: Measures) -> str:
    if seen.features.iter_ns and seen.making_share > seen.start_share:
        return (
            f"Only the start costs: making the workers takes {percent(seen.making_share)} of the run's time."
        )
    fill = counted(seen.features.fill, "delivery", "deliveries")
    share = percent(seen.start_share)
    return f"Only the start waits: the first {fill} hold {share} of the run's time as waiting."


def _uniform(seen: Measures) -> str:
    share = percent(seen.wait_share)
    return f"Every batch is waited for, about equally long; {share} of the time is waiting."


def _saturated_pool(seen: Measures) -> str:
    workers = seen.features.workers or 0
    share = percent(seen.wait_share)
    if seen.fetch is None:
        return (
            f"The waits recur with the round of {workers} workers and take {share} of the time: a pool that "
            "cannot keep up, or one slow worker; fetch times would tell."
        )
    return (
        f"The {workers} workers are equally busy and still too slow by a factor of {digits(seen.load)}; "
        f"{share} of the time is waiting."
    )


def _slow_worker(seen: Measures) -> str:
    workers, spread = seen.features.workers or 0, seen.spread
    share = percent(seen.wait_share)
    if spread is None or seen.fetch is None:
        return (
            f"Every {ordinal(workers)} delivery stalls and the others are ready; {share} of the time is "
            "waiting: one slow worker, a pool in step, or data with that period; fetch times would tell more."
        )
    return (
        f"Worker {spread.slowest} takes {digits(spread.ratio)} times as long per batch as the others, which "
        f"wait for it; {share} of the time is waiting."
    )


def _slow_sample(seen: Measures) -> str:
    pattern = seen.fetch or seen.wait
    what = "fetches" if pattern.source == "fetch" else "waits"
    share = percent(seen.wait_share)
    if not pattern.events.size:
        return (
            f"Single {what} far above the rest, at no regular distance, hold up the batches behind them; "
            f"{share} of the time is waiting."
        )
    count = counted(pattern.events.size, what[:-2] if what == "fetches" else "wait", what)
    hold = "holds" if pattern.events.size == 1 else "hold"
    # Of three nobody can say that their distances are uneven.
    where = "at no regular distance" if pattern.groups >= MIN_CLOCK_EVENTS else "too few to tell a distance"
    return (
        f"{count} of {seen.features.n} far above the rest, {where}, {hold} up what is behind; {share} of the "
        "time is waiting."
    )


def _data_period(seen: Measures) -> str:
    pattern = seen.fetch or seen.wait
    fit = pattern.scanned
    if fit is None:
        return "Slow batches recur at a fixed distance in the sampler's order."
    what = "fetches are slow" if pattern.source == "fetch" else "deliveries stall"
    return (
        f"Every {ordinal(fit.period)} batch of the sampler's order: {what} at rank {fit.phase} modulo "
        f"{fit.period}; {percent(seen.wait_share)} of the time is waiting."
    )


def _worker_period(seen: Measures) -> str:
    fit = seen.fetch.by_turn if seen.fetch is not None else None
    every = ordinal(fit.period) if fit is not None else "k-th"
    return (
        f"Every {every} fetch of each worker is slow, whatever the batch; "
        f"{percent(seen.wait_share)} of the time is waiting."
    )


def _clock_period(seen: Measures) -> str:
    fit = (seen.fetch or seen.wait).clock
    every = duration(fit.period_ns) if fit is not None else "fixed time"
    return (
        f"Something holds the loader up every {every}, whatever batch is being made; "
        f"{percent(seen.wait_share)} of the time is waiting."
    )


def _epoch_boundary(seen: Measures) -> str:
    epochs = int(seen.features.epoch_starts.size)
    return (
        f"The waiting stands at the starts of epochs: {percent(seen.epoch_time_share)} of the time in "
        f"{counted(epochs - 1, 'start')} behind the first."
    )


def _shard_starvation(seen: Measures) -> str:
    workers = seen.features.workers or 0
    return f"Some of the {workers} workers have run out of data, and the others cannot keep up alone."


def _drift(seen: Measures) -> str:
    growth = seen.fetch_growth if seen.fetch is not None else seen.round_growth
    what = "Fetches" if seen.fetch is not None else "Rounds of the workers"
    factor = digits(growth.factor) if growth is not None and math.isfinite(growth.factor) else "several"
    return (
        f"{what} get slower over the run: the end takes {factor} times the beginning; "
        f"{percent(seen.wait_share)} of the time is waiting."
    )


STATEMENTS: Mapping[str, Callable[[Measures], str]] = MappingProxyType(
    {
        "none": _none,
        "start_up": _start_up,
        "uniform": _uniform,
        "saturated_pool": _saturated_pool,
        "slow_worker": _slow_worker,
        "slow_sample": _slow_sample,
        "data_period": _data_period,
        "worker_period": _worker_period,
        "clock_period": _clock_period,
        "epoch_boundary": _epoch_boundary,
        "shard_starvation": _shard_starvation,
        "drift": _drift,
    }
)


def _more_deliveries(seen: Measures) -> int:
    """How many more deliveries would let a distance between the slow ones be told from chance."""
    pattern, n = seen.fetch or seen.wait, seen.features.n
    count = int(pattern.events.size)
    if pattern.scanned is not None and pattern.scanned.recall > 0.5:
        needed = deliveries_needed(pattern.scanned.period)
    else:
        needed = int(n * EVENTS_TO_TELL / max(count, 1))
    return max(LEAST_MORE, needed - n)


def undecided(seen: Measures, candidates: tuple[str, ...]) -> str:
    """Why no shape is named, and what would tell."""
    share = f"{percent(seen.wait_share)} of the time is waiting"
    if candidates[:1] == ("none",) and waits_for_made(seen):
        return (
            f"Batches are made in time, yet {share}: {percent(seen.steady_share)} for one still being made, "
            f"otherwise {made_words(seen)}."
        )
    more = f"about {_more_deliveries(seen)} more deliveries"
    if seen.fetch is None:
        more += ", or fetch times,"
    if len(candidates) > 1:
        return f"Cannot tell {listed(candidates, 'from')} in this run: {share}; {more} would tell."
    if candidates:
        return f"Too little speaks for {candidates[0]} or anything else: {share}; {more} would tell."
    return f"No shape of the catalogue fits: {share}; {more} would tell."
