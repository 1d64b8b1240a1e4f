"""The controls: what each changes, why it exists, and how many deliveries it needs to decide anything.

A table and nothing else. What a control does inside the training process is in ``probe.controls``; what its
result means is read in ``experiment.evidence``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from traceml_lite._errors import UsageError

# How long an in_order control must be is ``claim_deliveries``: at least 200 and 50 a worker, after the rounds
# in which workers that start together stay in phase. With very even fetches (1 %) that is thousands; this is
# where a control stops by itself, and the comparison then says what it could not decide.
IN_ORDER_MAX_DELIVERIES = 1200
# A short first pass sees the variation of the fetches within so much; the claim is judged by what the control
# itself sees, and would ask for a few more deliveries than were planned.
PLANNED_CV = 0.85

# A staggered start must show that the cadence is gone: with k gaps of which none is a multiple of W, the
# upper 95 % bound of the share is 1 - 0.025^(1/k), below one half from k = 6. Sixteen rounds give more. And
# not longer: order pulls a staggered pool into phase again (at a variation of 6 %, within 50 rounds).
STAGGER_MIN_DELIVERIES = 64
STAGGER_DELIVERIES_PER_WORKER = 16

# Batches that the ceiling control fetches for real before it replays them. More than one, so that a step
# whose length depends on the batch keeps its variety; few, so that they fit in memory.
CEILING_BATCHES = 8


@dataclass(frozen=True, slots=True)
class Control:
    """One control: an arm that differs from the base condition in one thing."""

    name: str
    reason: str
    """Why it exists: the question that it answers."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Loader options that it sets in its own arm."""
    base_options: Mapping[str, Any] = field(default_factory=dict)
    """Loader options that it sets in the base arm beside it, so that they differ in one thing."""
    needs_workers: bool = True
    own_block: bool = False
    """Whether it is compared in a block of its own (longer passes, no epoch boundary within them)."""


CONTROLS: Mapping[str, Control] = {
    control.name: control
    for control in (
        Control(
            "in_order",
            "does the cadence need ordered delivery? One slow worker's stalls fall away when later batches "
            "may pass; those of a saturated pool stay while its workers are in phase",
            options={"in_order": False},
            base_options={"in_order": True},
            own_block=True,
        ),
        Control(
            "stagger",
            "is the cadence a matter of phase? Worker k starts k*P/W later: a phase-locked pool loses its "
            "cadence at the same mean wait, every other cause keeps it",
            own_block=True,
        ),
        Control(
            "ceiling",
            "the most there is to win: no workers, and batches replayed from memory",
            options={"num_workers": 0},
            needs_workers=False,
        ),
        Control(
            "repeat",
            "the same indices twice: cold against warm, and whether the same ranks stall again (data) or "
            "others (chance, scheduling)",
            needs_workers=False,
        ),
        Control(
            "trivial",
            "is the host itself slow? A data set of zeros of the same shapes leaves start, delivery and "
            "neighbours, and no fetch",
            needs_workers=False,
        ),
        Control(
            "threads",
            "do helper threads fight for the CPUs? One thread in every worker",
        ),
        Control(
            "persistent",
            "what does an epoch's start cost? Workers kept over epochs against workers made anew",
            options={"persistent_workers": True},
            base_options={"persistent_workers": False},
        ),
        Control(
            "pin",
            "does the pinning thread hold batches back? The same with pin_memory the other way",
        ),
    )
}


def control_named(name: str) -> Control:
    """The control of this name.

    Raises:
        UsageError: There is none; the message lists all with their reasons.
    """
    if name in CONTROLS:
        return CONTROLS[name]
    listed = "\n".join(f"  {control.name:10} {control.reason}" for control in CONTROLS.values())
    raise UsageError(f"no control is called {name!r}. Controls are:\n{listed}")


def deliveries_needed(control: str, workers: int, wanted: int, cv: float | None = None) -> int:
    """Deliveries that a pass of this control takes.

    Args:
        control: Its name.
        workers: Of the loader.
        wanted: What a control without a need of its own takes.
        cv: Variation of the fetch times, which decides how long workers stay in phase; None if not known.
    """
    if control == "in_order":
        # Here, because it brings scipy: a child of a sweep reads this module too, and should start at once.
        from traceml_lite.diagnose.compare import claim_deliveries

        seen = None if cv is None else PLANNED_CV * cv
        return max(wanted, min(claim_deliveries(workers, seen), IN_ORDER_MAX_DELIVERIES))
    if control == "stagger":
        return max(STAGGER_MIN_DELIVERIES, STAGGER_DELIVERIES_PER_WORKER * workers)
    return wanted
