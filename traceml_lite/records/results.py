"""What was concluded: estimates with intervals, evidence with its state, verdicts, the next experiment."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with what it rests on."""

    value: float
    low: float | None = None
    """Lower end of the interval; None when no valid interval exists for this statistic."""
    high: float | None = None
    level: float | None = None
    """Coverage the interval aims at, e.g. 0.95."""
    n: int = 0
    """Observations behind it."""
    method: str = ""
    """How the interval was made, e.g. ``"block bootstrap, 1000 resamples"``; or why there is none."""


class State(str, enum.Enum):
    """What the run says about one mechanism."""

    SUPPORTED = "supported"
    RULED_OUT = "ruled_out"
    UNDECIDED = "undecided"
    NOT_MEASURED = "not_measured"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the run says about one mechanism (a key of the catalogue), with the numbers it rests on."""

    key: str
    kind: str
    """``"shape"`` or ``"cost"``."""
    state: State
    score: float
    """Strength in [0, 1]; ranks the supported ones. 0 where nothing speaks for it."""
    supports: tuple[str, ...] = ()
    """Sentences with numbers that speak for it."""
    contradicts: tuple[str, ...] = ()
    """Sentences with numbers that speak against it."""
    missing: tuple[str, ...] = ()
    """What was not measured and would have been needed."""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one of the two questions (shape or cost)."""

    key: str
    """A key of the catalogue, or ``"inconclusive"``."""
    confidence: float
    """Calibrated probability in [0, 1] that ``key`` is right; for ``inconclusive`` the best candidate's."""
    statement: str
    """One sentence in plain words, with the numbers that matter."""
    candidates: tuple[str, ...] = ()
    """Keys that this run cannot tell apart, most likely first; set where the verdict is not one key."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One possible result of an experiment and what it would mean."""

    result: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """The cheapest next step that would settle what is open."""

    command: str
    """Runs as printed."""
    duration_s: float | None
    """Expected time, from this run's own pace; None where it cannot be known."""
    reason: str
    outcomes: tuple[Outcome, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A single observation worth a line of its own, beside the verdicts (an epoch boundary, a PID change)."""

    key: str
    statement: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    severity: str = "note"
    """``"note"`` or ``"warning"``."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Shape, cost, evidence for and against, and what to try next."""

    shape: Verdict
    cost: Verdict
    evidence: tuple[Evidence, ...]
    """One per key of the catalogue that applies, shapes first, strongest first."""
    findings: tuple[Finding, ...] = ()
    not_measured: tuple[str, ...] = ()
    next_experiment: Experiment | None = None
    deliveries: int = 0
    """Deliveries of the steady state that the verdicts rest on."""
    loader: str = ""
