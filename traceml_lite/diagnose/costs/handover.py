"""Costs around the fetch: starting the workers, handing a batch over, and what leaks on the way."""

from __future__ import annotations

import numpy as np

from traceml_lite.diagnose.costs.evidence import cost_evidence, idle_reason, loader_matters
from traceml_lite.diagnose.costs.facts import CostFacts, known, why_unknown
from traceml_lite.diagnose.words import counted, data_size, digits, duration, percent
from traceml_lite.records.results import Evidence, State

# The pin-memory thread is the bottleneck when its output is empty while fetched batches stand before it,
# in most of the waits; a queue that happens to be empty once is nothing.
EMPTY_SHARE_MIN = 0.5
# A leak is a growth that will end the run: half of what is in use now, and more than one batch's worth.
LEAK_RATIO = 1.5
LEAK_FILES, LEAK_BYTES = 64, 64 << 20
# How far a leak ranks among the costs: it endangers a run rather than slowing it.
LEAK_SCORE = 0.1


def start(facts: CostFacts) -> Evidence:
    """Workers are started: processes, imports, unpickling of the dataset; and joined."""
    budget = facts.budget
    if known(facts.all_deliveries, "wait_ns") is None:
        return cost_evidence("start", 0.0, missing=("waits",))
    if facts.scope != "boundary":
        return cost_evidence(
            "start", 0.0, contradicts=("what is judged here is the steady state, after the starts",)
        )
    share = budget.start_ns / budget.lost_ns if budget.lost_ns > 0 else 0.0
    epochs = len(np.unique(facts.all_deliveries["epoch"])) if "epoch" in facts.all_deliveries else 1
    return cost_evidence(
        "start",
        share,
        supports=(
            f"making iterators, starting and joining workers took {duration(budget.start_ns)} over "
            f"{counted(epochs, 'epoch')}, {percent(share)} of the time lost to the loader",
        ),
        contradicts=(
            (f"starting is {percent(share)} of the time lost to the loader",) if share < 0.25 else ()
        ),
        missing=() if facts.fetches is not None else ("when the first fetches began",),
        numbers={"start_ns": budget.start_ns, "start_share": share},
    )


def delivery(facts: CostFacts) -> Evidence:
    """Handing the batch over: pickling, the queue, unpickling in the consumer."""
    share = _handover_share(facts)
    if share is None:
        missing = why_unknown(facts.deliveries, "fetch_end_ns", "ask_ns")
        return cost_evidence("delivery", 0.0, missing=(f"when the fetches ended ({missing})",))
    pinning = _pinned_empty_share(facts)
    score = 0.0 if pinning is not None and pinning >= EMPTY_SHARE_MIN else share
    per_batch = facts.budget.handover_ns / max(1, facts.steps.deliveries)
    supports = [f"batches reach the loop {duration(per_batch)} after their fetch has ended, on average"]
    if facts.steps.unpickle_share is not None:
        supports.append(
            f"the loop's own thread computes for {percent(facts.steps.unpickle_share)} of its waits"
        )
    return cost_evidence(
        "delivery",
        score,
        supports=tuple(supports),
        contradicts=idle_reason(facts)
        or ((f"handing over is {percent(share)} of the waiting",) if share < 0.25 else ()),
        numbers={"handover_share": share, "handover_ns": per_batch},
    )


def pin(facts: CostFacts) -> Evidence:
    """The pin-memory thread cannot keep up."""
    pinned = facts.config.pin_memory
    if pinned is None:
        return cost_evidence("pin", 0.0, missing=("the pin_memory option",))
    if not pinned:
        return cost_evidence("pin", 0.0, contradicts=("pin_memory=False",))
    share, empty = _handover_share(facts), _pinned_empty_share(facts)
    if share is None or empty is None:
        return cost_evidence("pin", 0.0, missing=("pinned and fetched batches at the ask",))
    return cost_evidence(
        "pin",
        share if empty >= EMPTY_SHARE_MIN else 0.0,
        supports=(
            f"in {percent(empty)} of the waits for a handover, fetched batches stood before the "
            "pin-memory thread and no pinned one behind it",
        ),
        contradicts=idle_reason(facts)
        or ((f"pinned batches were ready in {percent(1 - empty)} of the waits",) if empty < 0.5 else ()),
        numbers={"pinned_empty_share": empty, "handover_share": share},
    )


def shm(facts: CostFacts) -> Evidence:
    """Shared memory or open descriptors grow until the run fails."""
    host = facts.host
    if host.shm_growth_bytes is None and host.files_growth is None:
        why = host.why.get("open_files") or host.why.get("host") or "not read"
        return cost_evidence("shm", 0.0, missing=(f"/dev/shm and open descriptors over time ({why})",))
    supports: list[str] = []
    files, last = host.files_growth or 0.0, host.files_last or 0.0
    if files >= LEAK_FILES and last >= LEAK_RATIO * (last - files):
        supports.append(f"open descriptors grew by {digits(files)} to {digits(last)}")
    grown, used = host.shm_growth_bytes or 0.0, host.shm_last_bytes or 0.0
    if grown >= LEAK_BYTES and used >= LEAK_RATIO * (used - grown):
        supports.append(f"/dev/shm grew by {data_size(grown)} to {data_size(used)}")
    numbers = {"open_files_growth": files, "shm_growth_bytes": grown}
    if not supports:
        steady = ("neither /dev/shm nor the open descriptors keep growing",)
        return cost_evidence("shm", 0.0, contradicts=steady, numbers=numbers)
    return cost_evidence("shm", LEAK_SCORE, supports=tuple(supports), numbers=numbers, state=State.SUPPORTED)


def _handover_share(facts: CostFacts) -> float | None:
    """Share of the lost time in which the fetch had ended; None where that was not seen."""
    if known(facts.deliveries, "fetch_end_ns") is None or known(facts.deliveries, "ask_ns") is None:
        return None
    if not loader_matters(facts) or facts.budget.lost_ns <= 0:
        return 0.0
    return facts.budget.handover_ns / facts.budget.lost_ns


def _pinned_empty_share(facts: CostFacts) -> float | None:
    """Of the waits that were mostly handover, the share with fetched batches ready but none pinned."""
    if not facts.config.pin_memory or not facts.workers:
        return None
    table = facts.deliveries
    ask, wait, end, queue = (
        known(table, name) for name in ("ask_ns", "wait_ns", "fetch_end_ns", "queue_size")
    )
    if ask is None or wait is None or end is None or queue is None:
        return None
    everything = known(facts.all_deliveries, "fetch_end_ns")
    got = known(facts.all_deliveries, "got_ns")
    if everything is None or got is None:
        return None
    ended = np.searchsorted(np.sort(everything[everything >= 0]), ask, side="right")
    taken = np.searchsorted(np.sort(got[got >= 0]), ask, side="right")
    handed = (end >= 0) & (queue >= 0) & (wait > 0) & (wait - np.clip(end - ask, 0, wait) > 0.5 * wait)
    if not handed.any():
        return None
    starving = (ended - taken >= 1) & (queue == 0)
    return float(np.average(starving[handed], weights=wait[handed]))
