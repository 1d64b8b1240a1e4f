"""From evidence to one answer: ranks the shapes, says which cannot be told apart, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from traceml_lite.diagnose.shapes import pool, recurring, steady
from traceml_lite.diagnose.shapes.features import extract
from traceml_lite.diagnose.shapes.measures import Measures, measure
from traceml_lite.diagnose.shapes.scoring import state_of
from traceml_lite.records.results import Evidence, Finding, State, Verdict
from traceml_lite.records.run import Environment, LoaderTrace

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
        "clock_period": ("start_up", "epoch_boundary", "drift"),
        "uniform": ("drift", "shard_starvation", "data_period"),
        "start_up": ("epoch_boundary",),
    }
)
# A shape is named from this score on.
NAMED = 0.5


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


def shape_verdict(
    loader: LoaderTrace, environment: Environment, stall_ns: int | None = None
) -> tuple[Verdict, tuple[Evidence, ...], tuple[Finding, ...]]:
    """Which shape the waiting of one loader has.

    Args:
        loader: Its deliveries; fetch times are used where there are some.
        environment: The host.
        stall_ns: The user's own stall threshold, nanoseconds.

    Returns:
        The verdict, the evidence for every shape (strongest first), and single observations beside it.
    """
    features = extract(loader, stall_ns)
    if features is None:
        verdict = Verdict("inconclusive", 0.0, "no delivery with a measured wait was recorded")
        return verdict, (), ()
    seen = measure(features)
    found = sorted(_give_way({key: shape(seen) for key, shape in SHAPES.items()}), key=lambda e: -e.score)
    best = found[0]
    key = best.key if best.score >= NAMED else "inconclusive"
    candidates = tuple(e.key for e in found if e.state is not State.NOT_MEASURED and e.score > 0.3)
    verdict = Verdict(key, best.score, best.supports[0] if best.supports else best.key, candidates)
    return verdict, tuple(found), ()
