"""An investigation: a chain of questions, the experiment that answered each, and what that falsified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from traceml_lite.records.results import Verdict


@dataclass(frozen=True, slots=True)
class Step:
    """One question of the chain and its answer."""

    question: str
    experiment: str
    """What was done for it, in words; ``"read from the first passes"`` where nothing new was run."""
    answer: str
    """The answer in a few words."""
    evidence: tuple[str, ...] = ()
    """Sentences with the numbers it rests on."""
    falsified: tuple[str, ...] = ()
    """Explanations that this answer rules out, each with why."""
    folder: str | None = None
    """Sweep that was run for it, relative to the investigation's directory."""
    command: str = ""
    """That sweep as one would type it."""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Skipped:
    """An experiment that would have told more and was not run."""

    experiment: str
    command: str
    reason: str
    needs_s: float | None = None


@dataclass(frozen=True, slots=True)
class Investigation:
    """The whole chain; this is ``investigation.json``."""

    target: str
    steps: tuple[Step, ...]
    shape: Verdict | None
    """What the chain came to; None when not even the first passes ended."""
    cost: Verdict | None
    stands: bool
    """Whether an experiment of its own confirmed the shape and none contradicted it."""
    ended: str
    """Why the chain ended, in words."""
    falsified: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    next_command: str = ""
    next_reason: str = ""
    used_s: float = 0.0
    budget_s: float | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Host and software, in words."""
