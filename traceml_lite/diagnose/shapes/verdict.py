"""From evidence to one answer: ranks the shapes, says which cannot be told apart, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from traceml_lite.diagnose.shapes import pool, recurring, steady
from traceml_lite.diagnose.shapes.features import extract
from traceml_lite.diagnose.shapes.measures import Measures, measure
from traceml_lite.diagnose.shapes.scoring import state_of
from traceml_lite.diagnose.shapes.wording import STATEMENTS, ordinal, undecided
from traceml_lite.diagnose.words import counted, digits, duration, listed, percent
from traceml_lite.records.results import Evidence, Finding, State, Verdict
from traceml_lite.records.run import Environment, LoaderTrace
from traceml_lite.stats.cadence import cadence_by_window

SHAPES: Mapping[str, Callable[[Measures], Evidence]] = MappingProxyType(
    {
        "none": steady.none,
        "start_up": steady.start_up,
        "uniform": steady.uniform,
        "saturated_pool": pool.saturated_pool,
        "slow_worker": pool.slow_worker,
        "slow_sample": recurring.slow_sample,
        "data_period": recurring.data_period,
        "worker_period": recurring.worker_period,
        "clock_period": recurring.clock_period,
        "epoch_boundary": steady.epoch_boundary,
        "shard_starvation": pool.shard_starvation,
        "drift": steady.drift,
    }
)

# A special shape explains all that a general one explains, and why: the general one gives way to it.
GIVES_WAY: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "saturated_pool": (
            "uniform",
            "drift",
            "start_up",
            "epoch_boundary",
            "shard_starvation",
        ),
        "slow_sample": ("start_up", "drift", "epoch_boundary", "slow_worker"),
        "data_period": ("start_up", "epoch_boundary", "drift"),
        "clock_period": ("start_up", "epoch_boundary", "drift", "uniform", "slow_worker"),
        "uniform": ("drift", "shard_starvation", "data_period"),
        "start_up": ("epoch_boundary",),
    }
)
# Handing over batches that were ready is worth a line from this share of the time on.
HANDING_SHARE = 0.03
# A shape is named from this score on.
NAMED = 0.5
# A run this short holds no shape: three rounds of two workers.
MIN_DELIVERIES = 6
# Score from which another shape is still a candidate.
CANDIDATE = 0.1
# Score to the share of verdicts that were right, on made-up runs of other seeds than those the thresholds
# were set on; rounded down, as hosts are noisier than simulations. `experiments/accuracy` prints the table.
CALIBRATED_SCORES = (0.0, 0.5, 0.7, 0.9, 1.0)
RIGHT_WITH_FETCHES = (0.0, 0.65, 0.85, 0.94, 0.985)
RIGHT_WITH_WAITS = (0.0, 0.6, 0.78, 0.92, 0.975)
# What is left for the first of several shapes that leave the same picture; from how common they are.
FIRST_OF_ALIKE = {
    "slow_worker": 0.75,
    "data_period": 0.65,
    "worker_period": 0.6,
    "saturated_pool": 0.6,
    "slow_sample": 0.6,
}
# Fewer stalls than this cannot show that they are irregular: three have two gaps.
FEW_SLOW = 4
# Fetch times with the waits of an ordered pool of which this share stands off the phase are a pool's own.
SURE_POOL_OFF_PHASE = 0.05


def _give_way(found: Mapping[str, Evidence]) -> list[Evidence]:
    left = []
    for key, one in found.items():
        score = one.score
        for special in GIVES_WAY.get(key, ()):
            score *= 1.0 - found[special].score
        if one.state is State.NOT_MEASURED or score == one.score:
            left.append(one)
            continue
        rival = max(GIVES_WAY[key], key=lambda k: found[k].score)
        state = state_of(score)
        against = one.contradicts
        if state is not one.state:
            against = (*against, f"{rival} explains the same waits and more")
        left.append(replace(one, score=round(score, 4), state=state, contradicts=against))
    return left


# Shapes whose stalls lie at a fixed distance in batches.
_PERIODIC = ("data_period", "worker_period")


def _alike(key: str, seen: Measures) -> tuple[str, ...]:
    """Shapes that leave the same picture as ``key`` in this run, ``key`` first; empty if there are none."""
    features, workers = seen.features, seen.features.workers or 0
    period = (seen.fetch or seen.wait).scanned
    if seen.fetch is None and key in ("saturated_pool", "slow_worker"):
        if features.in_order is False:
            return ()
        off = pool.off_phase(seen)
        if key == "saturated_pool" and off > SURE_POOL_OFF_PHASE:
            return ()
        other = "slow_worker" if key == "saturated_pool" else "saturated_pool"
        return (key, other, "data_period")
    if key == "slow_sample" and seen.fetch is None and seen.wait.events.size < FEW_SLOW:
        # Prefetch hides most slow ones from the waits, and so few may be the first of a period as well.
        return (key, "data_period")
    if key == "slow_worker" and features.in_order is not False:
        # Ordered, a worker's batches are the ranks of one residue: it and the data cannot be told apart.
        return (key, "data_period")
    if key == "data_period" and period is not None:
        if workers >= 2 and period.period == workers and features.in_order is not False:
            return (key, "slow_worker")
        if workers == 1:
            # One worker's turns are the ranks.
            return ()
        if seen.fetch is None and workers >= 2 and period.period % workers == 0:
            return (key, "worker_period")
    return ()


def _confidence(best: Evidence, seen: Measures, alike: tuple[str, ...]) -> float:
    right = RIGHT_WITH_FETCHES if seen.fetch is not None else RIGHT_WITH_WAITS
    calibrated = float(np.interp(best.score, CALIBRATED_SCORES, right))
    return round(calibrated * (FIRST_OF_ALIKE.get(best.key, 0.6) if alike else 1.0), 3)


def _findings(verdict: str, seen: Measures) -> tuple[Finding, ...]:
    """What is worth a line of its own beside the verdict."""
    found = []
    features = seen.features
    if verdict not in ("start_up", "none") and seen.start_share > 0.05 and seen.start_steps > 3:
        found.append(
            Finding(
                "start_up",
                f"The first {features.fill} deliveries hold {percent(seen.start_share)} of the run's time as "
                "waiting; they are not part of the verdict.",
                {"start_wait_share": seen.start_share},
            )
        )
    if verdict != "epoch_boundary" and seen.epoch_time_share > 0.02:
        found.append(
            Finding(
                "epoch_boundary",
                f"The starts of {features.epoch_starts.size - 1} later epochs hold "
                f"{percent(seen.epoch_time_share)} of the run's time as waiting.",
                {"epoch_start_time_share": seen.epoch_time_share},
            )
        )
    handing = seen.wait_share - seen.steady_share
    if verdict == "none" and handing > HANDING_SHARE:
        found.append(
            Finding(
                "handing_over",
                f"{percent(handing)} of the time, {duration(seen.ready_wait_ns)} a batch, goes into handing "
                "over batches that had been made, as with any loader on this host.",
                {"handover_share": handing, "handover_ns": seen.ready_wait_ns},
            )
        )
    slow = seen.fetch
    if verdict == "none" and slow is not None and slow.scanned and recurring.data_score(seen) > 0.5:
        hidden = slow.scanned
        found.append(
            Finding(
                "hidden_data_period",
                f"Every {ordinal(hidden.period)} fetch is {digits(slow.ratio)} times as long as the others; "
                "prefetch hides it from the loop.",
                {"period_batches": float(hidden.period), "phase": float(hidden.phase)},
            )
        )
    if (features.workers or 0) >= 2 and verdict in ("saturated_pool", "slow_worker", "inconclusive"):
        found += _windows(seen)
    return tuple(found)


def _windows(seen: Measures) -> list[Finding]:
    """The cadence of the round by window: workers that start together look in step for a while."""
    workers = seen.features.workers or 0
    events = np.flatnonzero(seen.features.stalled)
    windows = [w for w in cadence_by_window(events, seen.features.n, workers, (4, 16, 64)) if w.gaps >= 3]
    if len(windows) < 2:
        return []
    shares = [f"{percent(w.gap_share)} of {w.gaps} gaps in {w.start} to {w.stop - 1}" for w in windows]
    numbers = {"first_gap_share": windows[0].gap_share, "last_gap_share": windows[-1].gap_share}
    text = f"Gaps of exactly {workers} between stalls, by deliveries: {listed(shares)}."
    if seen.features.fetches is not None:
        ns = seen.features.fetches.ns
        numbers["fetch_cv"] = float(ns.std() / max(float(ns.mean()), 1.0))
        text += f" Fetch times vary by {percent(numbers['fetch_cv'])}."
    return [Finding("cadence_by_window", text, numbers)]


def shape_verdict(
    loader: LoaderTrace, environment: Environment, stall_ns: int | None = None
) -> tuple[Verdict, tuple[Evidence, ...], tuple[Finding, ...]]:
    """Which shape the waiting of one loader has.

    Args:
        loader: Its deliveries; fetch times are used where there are some.
        environment: The host.
        stall_ns: The user's own stall threshold, nanoseconds.

    Returns:
        The verdict, the evidence for every shape (strongest first), and single observations beside it. Where
        several shapes leave the same picture in this run, the verdict names the commonest with a confidence
        to match and lists them as candidates; where nothing is clear enough it is ``inconclusive``.
    """
    features = extract(loader, stall_ns)
    if features is None:
        return Verdict("inconclusive", 0.0, "No delivery with a measured wait was recorded."), (), ()
    if features.n < MIN_DELIVERIES:
        text = f"{counted(features.n, 'delivery', 'deliveries')} are too few to show a shape."
        return Verdict("inconclusive", 0.0, f"{text} At least {MIN_DELIVERIES} are needed."), (), ()
    seen = measure(features, environment.cpus_usable)
    found = sorted(_give_way({key: shape(seen) for key, shape in SHAPES.items()}), key=lambda e: -e.score)
    best = found[0]
    if best.score < NAMED:
        candidates = tuple(e.key for e in found if e.state is not State.NOT_MEASURED and e.score > CANDIDATE)
        confidence = _confidence(best, seen, ())
        verdict = Verdict("inconclusive", confidence, undecided(seen, candidates[:3]), candidates[:3])
    elif best.key in _PERIODIC and features.workers is None and seen.fetch is None:
        # Any period may be the number of workers, and then a pool in step looks the same.
        text = STATEMENTS[best.key](seen).rstrip(".")
        text += "; num_workers is not known, and a pool of that many workers would look the same."
        confidence = _confidence(best, seen, _PERIODIC)
        verdict = Verdict("inconclusive", confidence, text, ("saturated_pool", "slow_worker", "data_period"))
    else:
        alike = _alike(best.key, seen)
        verdict = Verdict(best.key, _confidence(best, seen, alike), STATEMENTS[best.key](seen), alike)
    return verdict, _with_open_candidates(found, verdict), _findings(verdict.key, seen)


def _with_open_candidates(found: list[Evidence], verdict: Verdict) -> tuple[Evidence, ...]:
    """The evidence, in which no candidate of the verdict is ruled out: this run cannot do that."""
    return tuple(
        replace(one, state=State.UNDECIDED)
        if one.key in verdict.candidates and one.state is State.RULED_OUT
        else one
        for one in found
    )
