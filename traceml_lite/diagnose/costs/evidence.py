"""How evidence of a cost is put together: one rule for its state, one for what was not measured."""

from __future__ import annotations

from collections.abc import Mapping

from traceml_lite.diagnose.costs.facts import CostFacts
from traceml_lite.diagnose.costs.measure import LOST_SHARE_MIN
from traceml_lite.diagnose.words import percent
from traceml_lite.records.results import Evidence, State

# A cause that makes up a quarter of the lost time is worth a line; one of a twentieth is not the cause.
SUPPORTED_MIN, RULED_OUT_MAX = 0.25, 0.05


def cost_evidence(
    key: str,
    score: float,
    *,
    supports: tuple[str, ...] = (),
    contradicts: tuple[str, ...] = (),
    missing: tuple[str, ...] = (),
    numbers: Mapping[str, float] | None = None,
    state: State | None = None,
) -> Evidence:
    """Evidence whose state follows from its score unless one is given.

    Args:
        key: The cost.
        score: Share of the lost time it explains, in [0, 1].
        supports: Sentences for it; kept only where something speaks for it.
        contradicts: Sentences against it.
        missing: What was not measured; with a score too low to support anything, the state says so.
        numbers: What the sentences rest on.
        state: Overrides the rule.
    """
    score = min(1.0, max(0.0, score))
    if state is None:
        if score >= SUPPORTED_MIN:
            state = State.SUPPORTED
        elif missing:
            state = State.NOT_MEASURED
        else:
            state = State.RULED_OUT if score <= RULED_OUT_MAX else State.UNDECIDED
    return Evidence(
        key=key,
        kind="cost",
        state=state,
        score=score,
        supports=supports if state in (State.SUPPORTED, State.UNDECIDED) else (),
        contradicts=contradicts,
        missing=missing,
        numbers=dict(numbers or {}),
    )


def no_fetches(key: str, facts: CostFacts) -> Evidence:
    """The evidence of a key that lies in the fetches, when there are none."""
    return cost_evidence(key, 0.0, missing=(f"what a fetch is made of ({facts.why_no_fetches})",))


def loader_matters(facts: CostFacts) -> bool:
    """True when the loop loses time to the loader at all."""
    return facts.scope == "boundary" or facts.budget.lost_share >= LOST_SHARE_MIN


def weight_in_fetch(facts: CostFacts) -> float:
    """Share of the lost time spent waiting for fetches to end; 0 where the loop loses none."""
    if not loader_matters(facts):
        return 0.0
    return facts.budget.fetch_ns / facts.budget.lost_ns if facts.budget.lost_ns > 0 else 0.0


def idle_reason(facts: CostFacts) -> tuple[str, ...]:
    """The sentence that rules out every cost of a fetch in a loop that does not wait."""
    if loader_matters(facts):
        return ()
    if facts.steps.wait_share >= LOST_SHARE_MIN:
        # It does wait: for a CPU of its own, or for no longer than any hand-over takes.
        return (
            f"the loop loses only {percent(max(0.0, facts.budget.lost_share))} of its time to the loader",
        )
    return (f"the loop waits only {percent(facts.steps.wait_share)} of its time",)
