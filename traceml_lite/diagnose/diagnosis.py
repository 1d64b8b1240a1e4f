"""From a run to its diagnosis: shape, cost, the evidence for both, what is missing and what to try next.

Puts together what the shapes, the costs and the next experiment conclude; concludes nothing itself.
"""

from __future__ import annotations

import numpy as np

from traceml_lite._together import keep_memory_at_hand
from traceml_lite.diagnose.costs import cost_verdict
from traceml_lite.diagnose.next_experiment import next_experiment
from traceml_lite.diagnose.shapes import shape_verdict
from traceml_lite.records.results import Diagnosis, Evidence, State
from traceml_lite.records.run import LoaderTrace, Run

_ORDER = {State.SUPPORTED: 0, State.UNDECIDED: 1, State.RULED_OUT: 2, State.NOT_MEASURED: 3}


def diagnose(run: Run, *, loader: LoaderTrace | None = None, stall_ns: int | None = None) -> Diagnosis:
    """Why this run waits for its loader, as far as it can be told.

    Args:
        run: A trace, or arrays of one's own.
        loader: Which of its loaders; None takes the one with the most time around it.
        stall_ns: A wait from here on is a stall, nanoseconds; None finds the threshold.

    Raises:
        MissingColumnError: The run iterated no DataLoader.
    """
    keep_memory_at_hand()
    chosen = run.main if loader is None else loader
    shape, shape_evidence, shape_findings = shape_verdict(chosen, run.environment, stall_ns)
    cost, cost_evidence, cost_findings = cost_verdict(chosen, run.environment, run.host, shape)
    evidence = (*_ranked(shape_evidence, shape.key), *cost_evidence)
    return Diagnosis(
        shape=shape,
        cost=cost,
        evidence=evidence,
        findings=(*shape_findings, *cost_findings),
        not_measured=_not_measured(run, evidence),
        next_experiment=next_experiment(
            shape,
            cost,
            config=chosen.config,
            environment=run.environment,
            delivery_s=_seconds_per_delivery(chosen),
            fetches_seen="fetch_end_ns" in chosen.deliveries,
            deliveries=len(chosen.deliveries),
        ),
        deliveries=_steady_deliveries(chosen),
        loader=chosen.name,
    )


def _ranked(evidence: tuple[Evidence, ...], first: str) -> tuple[Evidence, ...]:
    return tuple(sorted(evidence, key=lambda e: (e.key != first, _ORDER[e.state], -e.score)))


def _not_measured(run: Run, evidence: tuple[Evidence, ...]) -> tuple[str, ...]:
    """What was missing, each with the keys it would have borne on, then what the probe could not read."""
    bears_on: dict[str, list[str]] = {}
    for item in evidence:
        if item.state is State.NOT_MEASURED:
            for missing in item.missing:
                bears_on.setdefault(missing, []).append(item.key)
    lines = [f"{', '.join(keys)} cannot be judged: {missing}" for missing, keys in bears_on.items()]
    lines += [f"{name}: {why}" for name, why in run.capabilities.items() if why is not None]
    return tuple(lines)


def _seconds_per_delivery(loader: LoaderTrace) -> float | None:
    wait, step = loader.deliveries.get("wait_ns"), loader.deliveries.get("step_ns")
    if wait is None or step is None or not len(wait):
        return None
    return float(np.maximum(wait, 0).sum() + np.maximum(step, 0).sum()) / len(wait) / 1e9


def _steady_deliveries(loader: LoaderTrace) -> int:
    number = loader.deliveries.get("delivery")
    size = max(1, (loader.config.num_workers or 0) * (loader.config.prefetch_factor or 2))
    return 0 if number is None else int((number >= size).sum())
