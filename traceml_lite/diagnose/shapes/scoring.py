"""From numbers to scores: soft thresholds, and the evidence record they end in.

A threshold that flips from 0 to 1 makes a verdict that flips with the noise. Each condition is therefore a
number in (0, 1) that crosses 0.5 at its threshold, and a shape scores the product of its conditions: far
from every threshold the product is near 0 or 1, near one of them it is not, and the verdict says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from traceml_lite.records.results import Evidence, State

# Scores from here on count as support, and below the other as ruled out.
SUPPORTED = 0.6
RULED_OUT = 0.2


def above(value: float, threshold: float, factor: float = 1.5) -> float:
    """How clearly a positive quantity exceeds a threshold: 0.5 at it, 0.9 at ``factor`` times it."""
    if not value > 0:
        return 0.0
    if math.isinf(value):
        return 1.0
    exponent = math.log(9.0) / math.log(factor) * math.log(value / threshold)
    return 1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, exponent))))


def below(value: float, threshold: float, factor: float = 1.5) -> float:
    """How clearly a positive quantity stays below a threshold: 0.5 at it, 0.9 at it over ``factor``."""
    return 1.0 - above(value, threshold, factor)


def unlikely(p_value: float, level: float = 0.01) -> float:
    """How clearly a p-value is below a level: 0.5 at it, 0.9 at its 1.5th power."""
    return above(-math.log10(max(p_value, 1e-300)), -math.log10(level), 1.5)


def either(*scores: float) -> float:
    """The strongest of several ways to show the same thing."""
    return max(scores)


def state_of(score: float) -> State:
    """What a score says."""
    if score >= SUPPORTED:
        return State.SUPPORTED
    return State.RULED_OUT if score <= RULED_OUT else State.UNDECIDED


def evidence(
    key: str,
    score: float,
    numbers: Mapping[str, float],
    supports: Iterable[str] = (),
    contradicts: Iterable[str] = (),
    missing: Iterable[str] = (),
    measured: bool = True,
) -> Evidence:
    """The record of one shape; its state follows from the score, unless nothing could be measured."""
    return Evidence(
        key=key,
        kind="shape",
        state=state_of(score) if measured else State.NOT_MEASURED,
        score=round(min(1.0, max(0.0, score)), 4) if measured else 0.0,
        supports=tuple(supports),
        contradicts=tuple(contradicts),
        missing=tuple(missing),
        numbers=dict(numbers),
    )
