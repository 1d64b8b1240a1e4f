"""Shapes made by the pool of workers: saturated_pool, slow_worker, shard_starvation.

Under ordered delivery the worker of a delivery is its rank modulo the number of workers, so the worker ids
at the stalls prove nothing and are not looked at. What tells a saturated pool from one slow worker is the
fetch times per worker; without them the two are one picture.
"""

from __future__ import annotations

import math

import numpy as np

from traceml_lite.diagnose.shapes.measures import Measures
from traceml_lite.diagnose.shapes.patterns import SLOW_SHARE, Pattern
from traceml_lite.diagnose.shapes.scoring import above, below, either, evidence, unlikely
from traceml_lite.diagnose.shapes.steady import unrest
from traceml_lite.diagnose.words import digits, duration, percent
from traceml_lite.records.results import Evidence
from traceml_lite.stats.cadence import PeriodFit

# A pool whose usual fetch exceeds workers x step cannot keep up: the load is above 1. The margin is what
# the step's own variation and the measuring leave open.
SATURATED_LOAD = 1.05
# One worker is slow when its usual fetch takes this many times the others'.
SLOW_WORKER_RATIO = 1.7
# ... and nearly all of its fetches lie above nine tenths of the others'.
SLOW_WORKER_CONSISTENCY = 0.7
# Chance that the longest fetches fall on one worker by accident.
WORKER_LEVEL = 0.02
# Chance of a cadence of the round where stalls fall at random.
ROUND_LEVEL = 0.01
# Cadence by stalls alone: share of stalls on the phase and of the phase's places that stall.
ON_PHASE = 0.55
RECALL = 0.6
# A cadence beyond doubt may be a partial one: prefetch hides some of its stalls.
PARTIAL_RECALL = 0.35
BEYOND_DOUBT = 1e-4
# In a saturated ordered pool a waited batch is followed by another one round later: measured 0.42 to 0.99
# over all spreads of fetch time, against the rate of waits where they fall at random.
RECURRENCE_LIFT = 1.25
RECURRENCE_ROOM = 0.25
# Load from which a pool is overloaded by its first wait and by its pace, and how far the two may differ: the
# first wait is one draw of a fetch time.
OVERLOAD = 1.25
AGREEMENT = 2.0
# First wait and pace may agree by accident, and waits may recur by accident, but seldom both: with the first,
# this many times the level is asked of the second.
PINNED_LEVELS = 10.0
# From so many waited batches on, their recurrence must be more than chance; a short run has no more to show.
ENOUGH_WAITED, ENOUGH_WAITED_SHORT = 10, 5
# A busy pool and an overload have no p-value. In a run this short rare slow samples look like them now and
# then: with less trust in each, one of them alone names a pool only where it is beyond doubt.
SHORT_RUN, SHORT_TRUST = 32, 0.7
# A pool that is too slow makes every round late: the median round waits 0.6 to 1 times the mean (simulated
# pools, fetch times varying by up to 80 %), where rare slow samples make all the waiting 0 to 0.2 times.
EVEN_ROUNDS = 0.35
# A share of waited batches is of no use as evidence over fewer deliveries than this.
ENOUGH_STEADY = 12
# Ready batches in a row, in queue lengths: a full queue, and a part of what is made while it empties.
LONGEST_CALM = 1.35
# Share of the waiting that slow fetches must carry to be what the loop waits for.
CARRIED = 0.4
# Waiting off the phase: in a pool the rest of the round comes late by its spread, behind one slow worker
# everybody else is ready.
OFF_PHASE_POOL = 0.02


def explained(fit: PeriodFit | None) -> float:
    """What a fit explains of the places of the slow ones, in [0, 1]; 0 without one."""
    return 0.0 if fit is None else fit.explained


def cadence_score(fit: PeriodFit | None, level: float = 0.01) -> float:
    """How clearly stalls recur at one period: significance and effect."""
    if fit is None or fit.events < 2:
        return 0.0
    recall = PARTIAL_RECALL if fit.p_corrected < BEYOND_DOUBT else RECALL
    effect = above(fit.on_phase, ON_PHASE, 1.25) * above(fit.recall, recall, 1.25)
    return unlikely(fit.p_corrected, level) * effect


def _recurrence_score(seen: Measures, level: float) -> float:
    again, share = seen.recurrence, seen.waited_share
    if math.isnan(again) or not 0 < share < 1:
        return 0.0
    # Where most batches are waited for there is little room for a multiple: then the room used counts.
    effect = either(
        above(again / share, RECURRENCE_LIFT, 1.15),
        above((again - share) / (1 - share), RECURRENCE_ROOM, 1.3),
    )
    return effect * above(again, 0.5, 1.2) * unlikely(seen.recurrence_p, level)


def pinned_score(seen: Measures, level: float = ROUND_LEVEL) -> float:
    """How clearly a stall is followed by another one round later."""
    return either(cadence_score(seen.wait.by_count, level), _recurrence_score(seen, 0.3 * level))


def _overload(seen: Measures, level: float) -> float:
    """How clearly first wait, pace and runs of ready batches agree on one load above 1.

    The first wait is a fetch. In a pool that never catches up it sets the pace too, and no more batches can
    lie ready in a row than the queue holds and the workers add meanwhile. Rare slow samples do not tie the
    three together.
    """
    first, pace, features = seen.first_load, seen.pace_load, seen.features
    if not (first > 0 and 0 < pace < math.inf):
        return 0.0
    scanned, other_period = seen.wait.scanned, 0.0
    if scanned is not None and scanned.period % features.round:
        other_period = cadence_score(scanned)
    pinned = 1.0
    if features.in_order is not False:
        # Ordered, a late worker is late again one round later.
        lift = seen.recurrence / seen.waited_share if seen.waited_share > 0 else 0.0
        pinned = 0.6 if math.isnan(lift) else above(lift, 1.08, 1.1)
        if seen.waited.sum() >= (ENOUGH_WAITED_SHORT if features.n < SHORT_RUN else ENOUGH_WAITED):
            pinned *= unlikely(seen.recurrence_p, min(0.5, PINNED_LEVELS * level))
    return (
        above(first, OVERLOAD, 1.2)
        * above(pace, OVERLOAD, 1.15)
        * below(max(first / pace, pace / first), AGREEMENT, 1.4)
        * below(seen.longest_calm, LONGEST_CALM, 1.2)
        * above(seen.waited.sum(), 3.5, 1.4)
        * pinned
        * (1.0 - other_period)
    )


def round_score(seen: Measures, level: float = ROUND_LEVEL) -> float:
    """How clearly the waits recur once per round of the workers, whatever makes them."""
    workers = seen.features.workers
    if workers is None or workers < 2:
        return 0.0
    busy = 0.0
    if seen.features.in_order is False or workers == 2:
        # Whoever is ready first is taken: with a busy pool every other batch at least is waited for.
        busy = above(seen.waited_share, 0.55, 1.2) * (1.0 if seen.features.in_order is False else 0.5)
        busy *= above(int(seen.features.steady.sum()), ENOUGH_STEADY, 1.3)
    trust = SHORT_TRUST if seen.features.n < SHORT_RUN else 1.0
    every_round = 1.0 if math.isnan(seen.evenness) else above(seen.evenness, EVEN_ROUNDS, 1.5)
    return every_round * either(pinned_score(seen, level), trust * busy, trust * _overload(seen, level))


def off_phase(seen: Measures) -> float:
    """Share of the steady waiting that stands off the best phase of the round; nan without one."""
    fit, features = seen.wait.by_count, seen.features
    if fit is None or fit.events == 0:
        return float("nan")
    waits = np.where(features.steady, features.starved_ns, 0)
    total = float(waits.sum())
    on = (features.in_epoch % fit.period) == fit.phase
    return float(waits[~on].sum()) / total if total > 0 else float("nan")


def worker_contrast(seen: Measures, level: float = WORKER_LEVEL) -> float:
    """How clearly one worker's fetches are longer than everybody else's."""
    spread = seen.spread
    if spread is None:
        return 0.0
    return (
        above(spread.ratio, SLOW_WORKER_RATIO, 1.25)
        * above(spread.consistency, SLOW_WORKER_CONSISTENCY, 1.2)
        * below(spread.rivals, max(1.2, spread.ratio**0.6), 1.2)
        * unlikely(spread.p_value, level)
    )


def _structured(pattern: Pattern | None) -> float:
    """How clearly some fetches are a class of their own: several times as long, and not just one or two."""
    if pattern is None or not pattern.events.size:
        return 0.0
    return above(pattern.ratio, 2.5, 1.3) * above(pattern.share, 0.01, 2.0)


def _two_kinds(pattern: Pattern | None) -> float:
    """Doubt in fetches of similar length: most of them are long, a good part is far shorter."""
    modes = pattern.modes if pattern is not None else None
    if modes is None or not modes.two or modes.high_share <= SLOW_SHARE:
        return 0.0
    return 0.5 * above(1.0 - modes.high_share, 0.15, 1.3)


def saturated_pool(seen: Measures) -> Evidence:
    """All workers equally busy and still too slow: W batches come at once, then nothing for a while."""
    features = seen.features
    workers = features.workers
    if workers is None:
        return evidence("saturated_pool", 0.0, {}, missing=["num_workers is not known"], measured=False)
    if workers < 2:
        return evidence(
            "saturated_pool", 0.0, {"num_workers": workers}, contradicts=["there is no pool of workers"]
        )
    numbers = {"load": seen.load, "recurrence": seen.recurrence, "waited_share": seen.waited_share}
    if seen.fetch is not None:
        spread = seen.spread
        alike = 1.0 - worker_contrast(seen)
        score = (
            unrest(seen)
            * above(seen.load_low, SATURATED_LOAD, 1.15)
            * alike
            * (1.0 - _structured(seen.fetch) * above(seen.fetch.carried, CARRIED, 1.4))
            * (1.0 - _two_kinds(seen.fetch))
        )
        load = _load_text(seen, workers)
        sure = seen.load_low > SATURATED_LOAD
        supports, contradicts = ([load], []) if seen.load > SATURATED_LOAD else ([], [load])
        if supports and not sure:
            supports = [f"{load}, at least {digits(seen.load_low)} with 95 % confidence"]
        # Workers that sleep or read share nothing by sharing CPUs; nan is not above anything.
        if seen.cpus_usable is not None and features.cpu_demand * workers > seen.cpus_usable:
            numbers["cpus_usable"] = seen.cpus_usable
            supports.append(f"{workers} workers share {digits(seen.cpus_usable)} CPUs")
        if spread is not None:
            numbers["slowest_worker_ratio"] = spread.ratio
            text = f"the slowest worker takes {digits(spread.ratio)} times as long as the others"
            (supports if alike > 0.5 else contradicts).append(text)
        return evidence("saturated_pool", score, numbers, supports, contradicts)
    cadence = round_score(seen)
    off = off_phase(seen)
    numbers["off_phase_share"] = off
    pool = either(above(off, OFF_PHASE_POOL, 1.5) if not math.isnan(off) else 0.5, 0.5)
    if features.in_order is False:
        # Taking whatever is ready first removes the cadence of one slow worker, not that of the pool.
        pool = 1.0
    return evidence(
        "saturated_pool",
        unrest(seen) * cadence * pool,
        numbers,
        supports=[_cadence_text(seen)] if cadence > 0.5 else (),
        contradicts=[_cadence_text(seen)] if cadence <= 0.5 else (),
        missing=[f"fetch times per worker ({features.fetch_missing})"],
    )


def _load_text(seen: Measures, workers: int) -> str:
    """A fetch against the time that the pool has for it, in the units of this run."""
    fetch, step = duration(seen.usual_fetch_ns), seen.features.step_median_ns
    if not step > 0:
        return f"a fetch takes {fetch}, and no step was measured that {workers} workers could use for it"
    return (
        f"a fetch takes {fetch}; {workers} workers and a step of {duration(step)} have "
        f"{duration(workers * step)} for it (load {digits(seen.load)})"
    )


def _cadence_text(seen: Measures) -> str:
    fit, workers = seen.wait.by_count, seen.features.workers
    if fit is None or fit.events < 2:
        return f"no stalls to compare with the round of {workers} workers"
    share = percent(fit.on_phase)
    text = f"{share} of {fit.events} stalls lie on one phase of {workers} (p = {fit.p_value:.1g})"
    if not math.isnan(seen.recurrence):
        text += (
            f"; a waited batch is followed by another {workers} later in {percent(seen.recurrence)}"
            f" of cases, {percent(seen.waited_share)} of all are waited for"
        )
    return text


def slow_worker(seen: Measures) -> Evidence:
    """One worker's fetches are longer than the others', which wait for it."""
    features = seen.features
    workers = features.workers
    if workers is None:
        return evidence("slow_worker", 0.0, {}, missing=["num_workers is not known"], measured=False)
    if workers < 2:
        return evidence(
            "slow_worker", 0.0, {"num_workers": workers}, contradicts=["there are no workers to compare"]
        )
    if seen.fetch is not None:
        spread = seen.spread
        if spread is None:
            return evidence("slow_worker", 0.0, {}, missing=["which worker made which batch"], measured=False)
        score = unrest(seen) * worker_contrast(seen)
        text = (
            f"worker {spread.slowest} takes {digits(spread.ratio)} times as long as the others; "
            f"{percent(spread.consistency)} of its fetches exceed nine tenths of theirs"
        )
        return evidence(
            "slow_worker",
            score,
            {
                "slowest_worker": float(spread.slowest),
                "slowest_worker_ratio": spread.ratio,
                "consistency": spread.consistency,
            },
            supports=[text] if score > 0.5 else (),
            contradicts=[text] if score <= 0.5 else (),
        )
    cadence = round_score(seen)
    off = off_phase(seen)
    alone = below(off, OFF_PHASE_POOL, 1.5) if not math.isnan(off) else 0.5
    if features.in_order is False:
        alone = 0.0
    against = []
    if features.in_order is False:
        against.append("delivery is not ordered: the other workers' batches would overtake a slow one's")
    elif alone < 0.5:
        against.append(f"{percent(off)} of the waiting stands off the phase: the other workers are late, too")
    text = _cadence_text(seen)
    return evidence(
        "slow_worker",
        unrest(seen) * cadence * either(alone, 0.02) * 0.95,
        {"off_phase_share": off, "recurrence": seen.recurrence},
        supports=[text] if cadence > 0.5 else (),
        contradicts=against if cadence > 0.5 else [text, *against],
        missing=[f"fetch times per worker ({features.fetch_missing})"],
    )


def shard_starvation(seen: Measures) -> Evidence:
    """Some workers have run out of data, so fewer of them feed the loop than were asked for."""
    features = seen.features
    fetches, workers = features.fetches, features.workers or 0
    if workers < 2:
        return evidence(
            "shard_starvation", 0.0, {"num_workers": workers}, contradicts=["there are no workers to compare"]
        )
    if fetches is None or not features.worker_measured:
        return evidence(
            "shard_starvation", 0.0, {}, missing=["which worker made which batch"], measured=False
        )
    # The second half of each epoch would do, but one epoch's tail may be short: all fetches count.
    late = fetches.worker[fetches.worker.size // 2 :]
    counts = np.bincount(late[late >= 0], minlength=workers)
    expected = late.size / workers
    idle = int((counts < 0.2 * expected).sum()) if expected >= 3 else 0
    score = unrest(seen) * above(idle / workers, 0.2, 1.3) * above(seen.waited_share, 0.5, 1.3)
    text = f"{idle} of {workers} workers made next to no batch in the second half of the run"
    return evidence(
        "shard_starvation",
        score,
        {"idle_workers": float(idle), "num_workers": float(workers)},
        supports=[text] if idle and score > 0.5 else (),
        contradicts=[text] if not idle else (),
    )
