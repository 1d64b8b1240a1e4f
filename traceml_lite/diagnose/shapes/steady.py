"""Shapes without a rhythm: none, start_up, uniform, epoch_boundary, drift.

One function per key; each weighs the numbers of one run and returns what speaks for and against it.
"""

from __future__ import annotations

import math

from traceml_lite.diagnose.costs.budget import FLOOR_SHARE_MAX, HANDOVER_COLD_NS
from traceml_lite.diagnose.shapes.measures import Growth, Measures
from traceml_lite.diagnose.shapes.scoring import above, below, either, evidence, unlikely
from traceml_lite.diagnose.words import digits, duration, percent
from traceml_lite.records.results import Evidence

# Below this share of the time waiting is not worth an experiment.
IDLE_SHARE = 0.02
# From this share of the time on, waits for batches that had been made are a loss that has to be explained,
# unless each is what handing over any batch takes: 0.6 to 1.3 ms measured, and a little room.
READY_SHARE = 0.1
HANDOVER_NS = 2_000_000
# Then "the loader keeps up" is one reading at most: the pool does, the batches still come late.
UNEXPLAINED_CAP = 0.4
# Waiting with a place of its own (the start of the run or of an epoch) is named from a smaller share on, if
# it is long enough to be noticed there: it is known what to change.
PLACED_SHARE = 0.002
# ... noticed: so many steps long.
PLACED_STEPS = 3.0
# A start that costs only the making of workers is part of every run; it is the shape of a run when it takes
# this share of it.
WORKER_START_SHARE = 0.15
# Upper over lower decile of the waits of a uniform loader.
UNIFORM_RATIO = 3.0
# Share of the waiting in its longest tenth: a quarter within the ratio above, a third with one maker.
UNIFORM_TOP_TENTH = 0.4
# Lower decile of its waits, in steps: everybody waits.
UNIFORM_LOW_STEPS = 0.05
# Share of the waiting that must stand at epoch starts.
EPOCH_SHARE = 0.5
# The start of an epoch stands out from this many steps on, or from this share of the run's time on.
EPOCH_WAIT_STEPS = 1.8
EPOCH_TIME_SHARE = 0.04
# Growth from the first to the last quarter, and rank correlation with time, that make a drift.
DRIFT_FACTOR = 1.6
DRIFT_ORDER = 0.7
# A jump that stays: chance that a later value exceeds an earlier one.
JUMP_SEPARATION = 0.88
# Levels of the two tests. Pettitt's cannot go below 0.008 in 16 deliveries.
DRIFT_LEVEL = 0.003
JUMP_LEVEL = 0.02


def unrest(seen: Measures) -> float:
    """How clearly there is steady waiting at all: shared by every shape but none and start_up."""
    return above(seen.steady_share, IDLE_SHARE, 1.6)


def _epoch_score(seen: Measures) -> float:
    if seen.features.epoch_starts.size < 2:
        return 0.0
    felt = either(
        above(seen.epoch_wait_steps, EPOCH_WAIT_STEPS, 1.3) * above(seen.epoch_time_share, PLACED_SHARE, 1.5),
        above(seen.epoch_wait_steps, 0.3, 1.5) * above(seen.epoch_time_share, EPOCH_TIME_SHARE, 1.4),
    )
    return above(seen.epoch_share, EPOCH_SHARE, 1.3) * felt


def _start_score(seen: Measures) -> float:
    """Slow first deliveries and nothing afterwards."""
    quiet = seen.late_share if not math.isnan(seen.late_share) else seen.steady_share
    calm = below(quiet, 0.03, 1.6)
    felt = above(seen.start_share, PLACED_SHARE, 1.5) * above(seen.start_steps, PLACED_STEPS, 1.3)
    slow = seen.fetch
    if slow is None:
        # A wait longer than the pool could afford, or one behind the first round, is no usual filling.
        features = seen.features
        inner = bool(seen.waited[: features.fill].any())
        unusual = either(above(seen.first_load, 1.15, 1.2), 0.9 if inner else 0.0)
        others = above((features.n - features.fill) / features.fill, 0.6, 1.5)
        return calm * felt * above(seen.start_share, 0.01, 1.4) * unusual * others
    if (
        slow.events.size
        and slow.events[-1] < seen.features.fill
        and slow.mask[: slow.events[-1] + 1].mean() > 0.6
    ):
        # The slow ones are the first of the run and there are others to compare them with.
        others = seen.features.n - seen.features.fill
        return felt * calm * above(others, 2.5, 2.0) * above(slow.ratio, 2.0, 1.5)
    return calm * above(seen.making_share, WORKER_START_SHARE, 1.4)


def waits_for_made(seen: Measures) -> bool:
    """True when the loop loses much time to batches that had been made before it had them."""
    share = seen.wait_share - seen.steady_share
    if share <= READY_SHARE or seen.ready_wait_ns <= HANDOVER_NS:
        return False
    return share > FLOOR_SHARE_MAX or seen.ready_wait_ns > HANDOVER_COLD_NS


def _settled(seen: Measures) -> float:
    """How clearly waits for batches that had been made leave ``none`` standing: the cap at least."""
    share = max(0.0, seen.wait_share - seen.steady_share)
    few = below(share, READY_SHARE, 1.3)
    short = below(seen.ready_wait_ns, HANDOVER_NS, 1.3)
    cold = below(share, FLOOR_SHARE_MAX, 1.2) * below(seen.ready_wait_ns, HANDOVER_COLD_NS, 1.2)
    return UNEXPLAINED_CAP + (1.0 - UNEXPLAINED_CAP) * either(few, short, cold)


def made_words(seen: Measures) -> str:
    """What the waits for made batches were, as far as it was measured."""
    queued = seen.wait_queue_share
    if math.isnan(queued):
        return "handing over, or a loop without a CPU; which was not measured"
    # The worker's thread that sends and the one that fetches share a CPU, or the lock of the interpreter.
    rest = "handing the batches over, for which the workers need a CPU as well"
    if queued < 0.1:
        return f"{rest} (the loop's own thread had none in {percent(queued)} of its waits)"
    return f"the loop's own thread had no CPU in {percent(queued)} of its waits, the rest is {rest}"


def none(seen: Measures) -> Evidence:
    """Nobody waits: the loader is not what limits this loop."""
    calm = below(seen.steady_share, IDLE_SHARE, 1.6)
    # A run no longer than the queue shows only its start: then a long one leaves it open what follows.
    shown = below(seen.start_share, 0.25, 1.3) if math.isnan(seen.late_share) else 1.0
    score = calm * shown * (1.0 - _epoch_score(seen)) * (1.0 - _start_score(seen)) * _settled(seen)
    against = []
    if calm <= 0.5:
        against.append(f"{percent(seen.steady_share)} of the time behind the first round is waiting")
    elif waits_for_made(seen):
        against.append(
            f"{percent(seen.wait_share)} of the time is waiting, {duration(seen.ready_wait_ns)} a batch for "
            f"batches that had been made: {made_words(seen)}"
        )
    return evidence(
        "none",
        score,
        {
            "steady_wait_share": seen.steady_share,
            "wait_share": seen.wait_share,
            "ready_wait_ns": seen.ready_wait_ns,
            "load": seen.load,
        },
        supports=[
            f"behind the first round {percent(seen.steady_share)} of the time is waiting for a batch still "
            "being made"
        ]
        if calm > 0.5
        else (),
        contradicts=against,
    )


def start_up(seen: Measures) -> Evidence:
    """Only what was dispatched before the first ask is slow."""
    features = seen.features
    score = _start_score(seen)
    late = seen.late_share
    first = (
        f"the first {features.fill} deliveries hold {percent(seen.start_share)} of the run's time as waiting"
    )
    after = (
        f"after them {percent(late)} of the time is waiting"
        if not math.isnan(late)
        else "too few deliveries lie behind them to see what comes after"
    )
    calm = not math.isnan(late) and late < 0.03
    if features.iter_ns and seen.making_share > WORKER_START_SHARE:
        first = f"making the workers takes {percent(seen.making_share)} of the run's time, "
        first += f"{duration(features.iter_ns)} of it in iter()"
    return evidence(
        "start_up",
        score,
        {
            "start_wait_share": seen.start_share,
            "late_wait_share": late,
            "making_workers_share": seen.making_share,
            "fill_deliveries": float(features.fill),
        },
        supports=[text for text, holds in ((first, score > 0.5), (after, calm)) if holds],
        contradicts=[after] if not calm and not math.isnan(late) else (),
        missing=[after] if math.isnan(late) else (),
    )


def uniform(seen: Measures) -> Evidence:
    """Every wait alike: the pool cannot keep up and its workers are evenly spread, or there is one."""
    everybody = above(seen.low_wait_steps, UNIFORM_LOW_STEPS, 1.5)
    alike = below(seen.wait_ratio, UNIFORM_RATIO, 1.25)
    alone = 0.0
    slow_ones = seen.fetch is not None and seen.fetch.events.size > 0 and seen.fetch.carried > 0.4
    if seen.features.workers in (0, 1) and not slow_ones:
        # With one maker of batches there is nobody to be out of step with: waits vary as fetches do.
        alone = below(seen.wait_ratio, 3 * UNIFORM_RATIO, 1.4) * above(seen.waited_share, 0.9, 1.1)
    even = below(seen.top_tenth, UNIFORM_TOP_TENTH * (1.25 if alone > alike else 1.0), 1.2)
    # What handing over any batch takes is every loader's, not the shape of a slow one.
    waiting = seen.wait_share if waits_for_made(seen) else seen.steady_share
    score = above(waiting, IDLE_SHARE, 1.6) * everybody * either(alike, alone) * even
    numbers = {
        "wait_q90_over_q10": seen.wait_ratio,
        "wait_q10_steps": seen.low_wait_steps,
        "top_tenth_share": seen.top_tenth,
    }
    ratio = f"nine in ten waits lie within a factor of {digits(seen.wait_ratio)}"
    low = f"a tenth of the waits is below {digits(seen.low_wait_steps)} steps"
    return evidence(
        "uniform",
        score,
        numbers,
        supports=[ratio] if either(alike, alone) > 0.5 and everybody > 0.5 else (),
        contradicts=[low] if everybody <= 0.5 else ([ratio] if either(alike, alone) <= 0.5 else ()),
    )


def epoch_boundary(seen: Measures) -> Evidence:
    """The waiting stands at the first deliveries of each epoch."""
    features = seen.features
    epochs = int(features.epoch_starts.size)
    if epochs < 2:
        return evidence(
            "epoch_boundary", 0.0, {"epochs": float(epochs)}, contradicts=["the run has no second epoch"]
        )
    step = features.step_median_ns
    where = f"{percent(seen.epoch_share)} of the waiting stands at the starts of {epochs - 1} later epochs"
    if step > 0:
        where += f", typically {duration(seen.epoch_wait_steps * step)} each"
    score = _epoch_score(seen)
    return evidence(
        "epoch_boundary",
        score,
        {
            "epoch_start_wait_share": seen.epoch_share,
            "epoch_start_time_share": seen.epoch_time_share,
            "epoch_start_wait_steps": seen.epoch_wait_steps,
            "epochs": float(epochs),
        },
        supports=[where] if seen.epoch_share > EPOCH_SHARE else (),
        contradicts=[where] if seen.epoch_share <= EPOCH_SHARE else (),
    )


def _growth_score(growth: Growth | None) -> float:
    if growth is None or math.isnan(growth.factor):
        return 0.0
    steadily = above(growth.order, DRIFT_ORDER, 1.15) * unlikely(growth.p_value, DRIFT_LEVEL)
    jump = above(growth.separation, JUMP_SEPARATION, 1.06) * unlikely(growth.jump_p, JUMP_LEVEL)
    return either(steadily, jump) * above(growth.factor, DRIFT_FACTOR, 1.25)


def drift(seen: Measures) -> Evidence:
    """Waits grow over the run, or jump and stay up."""
    growth = seen.fetch_growth if seen.fetch is not None else seen.round_growth
    what = "fetch times" if seen.fetch is not None else "the times of a round"
    score = unrest(seen) * _growth_score(growth)
    if growth is None:
        return evidence(
            "drift",
            0.0,
            {},
            missing=["the run is too short to compare its beginning with its end"],
            measured=False,
        )
    text = (
        f"{what} end at {digits(growth.factor)} times their beginning, in order with time "
        f"(correlation {growth.order:.2f}, p = {growth.p_value:.1g})"
    )
    return evidence(
        "drift",
        score,
        {
            "growth": growth.factor,
            "order": growth.order,
            "p_value": growth.p_value,
            "jump": growth.separation,
        },
        supports=[text] if score > 0.5 else (),
        contradicts=[text] if score <= 0.5 else (),
    )
