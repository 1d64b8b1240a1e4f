"""Costs that are about CPUs: a fetch that computes, and a fetch that cannot get a CPU."""

from __future__ import annotations

from traceml_lite.diagnose.costs.blocking import reading
from traceml_lite.diagnose.costs.contention import (
    BASE_THREADS,
    OTHERS_MIN,
    QueueSplit,
    helper_share,
    own_runnable,
    single_cpu_mask,
    split_queue,
    starved_consumer,
    threads_oversubscribed,
    throttled,
)
from traceml_lite.diagnose.costs.evidence import (
    cost_evidence,
    idle_reason,
    no_fetches,
    weight_in_fetch,
)
from traceml_lite.diagnose.costs.facts import CostFacts, Fetches
from traceml_lite.diagnose.costs.paging import fault_time_share
from traceml_lite.diagnose.words import counted, digits, duration, percent
from traceml_lite.records.results import Evidence, State

QUEUE_MISSING = "run-queue delay of the workers"


def cpu(facts: CostFacts) -> Evidence:
    """The fetch computes: its thread, and helpers that have CPUs to run on, make up its time."""
    fetches = facts.fetches
    if fetches is None:
        return no_fetches("cpu", facts)
    parts = fetches.parts
    helpers = 0.0 if threads_oversubscribed(facts) else parts.helper
    share = max(0.0, parts.cpu + helpers - fault_time_share(facts))
    busy = fetches.mean_of(fetches.thread_ns)
    wall = fetches.mean_wall_ns
    return cost_evidence(
        "cpu",
        share * weight_in_fetch(facts),
        supports=(
            f"{fetches.noun} takes {duration(wall)}, of which its thread computes {duration(busy)} "
            f"({percent(busy / wall)})",
            *_pool_use(facts),
        ),
        contradicts=idle_reason(facts)
        or ((f"only {percent(share)} of a fetch is computing",) if share < 0.5 else ()),
        numbers={"cpu_share": share, "fetch_ns": wall, "thread_cpu_ns": busy},
    )


def run_queue(facts: CostFacts) -> Evidence:
    """The workers wait for CPUs that the other workers of the pool have."""
    fetches, split = facts.fetches, _split(facts)
    if fetches is None:
        return no_fetches("run_queue", facts)
    if split is None or fetches.run_queue_ns is None:
        return _queue_missing("run_queue")
    waited, wall = fetches.mean_of(fetches.run_queue_ns), fetches.mean_wall_ns
    supports = [
        f"{fetches.noun} is ready to run but has no CPU for {duration(waited)} of its "
        f"{duration(wall)} ({percent(waited / wall)})",
        *_demand(facts),
    ]
    if not split.others_known:
        supports.append("who else used the CPUs was not measured")
    return cost_evidence(
        "run_queue",
        split.own * weight_in_fetch(facts),
        supports=tuple(supports),
        contradicts=idle_reason(facts) or _short_queue(fetches) or _whose_queue(fetches, split),
        numbers={"run_queue_share": fetches.parts.run_queue, "own_share": split.own},
    )


def threads(facts: CostFacts) -> Evidence:
    """Helper threads inside the workers fight each other for the CPUs."""
    fetches, split = facts.fetches, _split(facts)
    if fetches is None:
        return no_fetches("threads", facts)
    if split is None:
        return _queue_missing("threads")
    share, helpers = helper_share(facts), fetches.parts.helper
    count = facts.worker_threads
    # The run-queue delay of helper threads is not read; it shows as the fetching thread being blocked.
    blocked = 0.0 if reading(facts) else fetches.parts.blocked
    score = split.threads + helpers + blocked if threads_oversubscribed(facts) else 0.0
    against = f"helper threads did {percent(share)} of the workers' CPU time"
    if count is not None and count <= BASE_THREADS:
        against = f"a worker has {counted(count, 'thread')}, no more than any worker has"
    seen = "" if count is None else f", in {counted(count, 'thread')} per worker"
    return cost_evidence(
        "threads",
        score * weight_in_fetch(facts),
        supports=(f"helper threads did {percent(share)} of the workers' CPU time{seen}", *_demand(facts)),
        contradicts=idle_reason(facts) or ((against,) if score <= 0 else ()),
        numbers={"helper_cpu_share": share, **({} if count is None else {"threads": count})},
    )


def affinity(facts: CostFacts) -> Evidence:
    """A CPU mask holds several workers on one CPU."""
    environment, split = facts.environment, _split(facts)
    if facts.fetches is None:
        return no_fetches("affinity", facts)
    if split is None:
        return _queue_missing("affinity")
    why = single_cpu_mask(facts)
    if why is None and environment.cpus_affinity is None:
        return cost_evidence("affinity", 0.0, missing=("the CPU affinity mask",))
    mask = environment.cpus_affinity
    against = (
        f"the mask holds {counted(mask, 'CPU')}"
        if mask is not None and mask > 1
        else "fewer than two workers, or a machine of one CPU"
    )
    return cost_evidence(
        "affinity",
        split.affinity * weight_in_fetch(facts),
        supports=() if why is None else (why,),
        contradicts=idle_reason(facts) or ((against,) if why is None else ()),
    )


def quota(facts: CostFacts) -> Evidence:
    """The cgroup's CPU quota stops the workers. Only its own counters can say so."""
    stopped = throttled(facts)
    limit = facts.environment.cpu_quota
    if stopped is None:
        if limit is None and facts.environment.cpus_online is not None:
            return cost_evidence("quota", 0.0, missing=("the cgroup's throttling counters",))
        why = facts.host.why.get("throttled_periods", facts.host.why.get("host", ""))
        return cost_evidence("quota", 0.0, missing=(f"the cgroup's throttling counters ({why})",))
    split = _split(facts)
    share = 0.0 if split is None else split.quota
    # Part of being stopped shows as blocked time; the throttled time itself says how much.
    if facts.fetches is not None and share > 0:
        share = min(1.0, share + min(facts.fetches.parts.blocked, facts.host.throttled_share or 0.0))
    of = "" if limit is None else f" of {digits(limit)} CPUs"
    return cost_evidence(
        "quota",
        share * weight_in_fetch(facts),
        supports=(f"the cgroup's quota{of} stopped the job in {percent(stopped)} of its periods",),
        contradicts=("the quota never stopped the job",) if stopped == 0 else (),
        numbers={"throttled_periods_share": stopped},
    )


def neighbours(facts: CostFacts) -> Evidence:
    """Processes that are not the job's, or other guests of the machine, have the CPUs."""
    fetches, split = facts.fetches, _split(facts)
    others, steal = facts.host.other_cores, facts.host.steal_cores
    if others is None:
        why = facts.host.why.get("host") or "CPU time of the machine and of the job"
        return cost_evidence("neighbours", 0.0, missing=(f"who else used the CPUs ({why})",))
    in_fetch = 0.0 if split is None else split.others * weight_in_fetch(facts)
    starved = starved_consumer(facts)
    # A busy host also slows the step itself, which no wait shows.
    in_step = 0.0 if starved is None else starved.others
    taken = f"other processes used {digits(others)} CPUs" + (
        f" and the hypervisor took {digits(steal)}" if steal and steal >= 0.05 else ""
    )
    little = others + (steal or 0.0) < OTHERS_MIN * (facts.cpus or 1.0)
    state = None
    if split is None and not little and fetches is not None:
        state = State.UNDECIDED
    return cost_evidence(
        "neighbours",
        max(in_fetch, in_step),
        supports=(taken, *_demand(facts)),
        contradicts=(taken,) if little else (),
        numbers={"other_cores": others, **({} if steal is None else {"steal_cores": steal})},
        state=state,
    )


def _split(facts: CostFacts) -> QueueSplit | None:
    """The run-queue share by cause, or None where it was not measured."""
    if facts.fetches is None or facts.fetches.run_queue_ns is None:
        return None
    return split_queue(facts, facts.fetches.parts.run_queue)


def _queue_missing(key: str) -> Evidence:
    return cost_evidence(key, 0.0, missing=(QUEUE_MISSING,))


def _pool_use(facts: CostFacts) -> tuple[str, ...]:
    """How much of the CPUs the pool used, as a sentence."""
    cores, cpus = facts.pool_cores, facts.cpus
    if cores is None or cpus is None or facts.workers < 1:
        return ()
    who = "the worker" if facts.workers == 1 else f"{facts.workers} workers together"
    return (f"{who} used {digits(cores)} of {counted(cpus, 'CPU')}",)


def _demand(facts: CostFacts) -> tuple[str, ...]:
    """How many threads of the job wanted a CPU, as a sentence."""
    demand, cpus = own_runnable(facts), facts.cpus
    if demand is None or cpus is None:
        return ()
    has = counted(cpus, "CPU")
    return (f"the job had {digits(demand)} threads that wanted a CPU, on average, and {has}",)


def _whose_queue(fetches: Fetches, split: QueueSplit) -> tuple[str, ...]:
    """Why a long delay is not the pool's own, as a sentence; nothing where most of it is."""
    share = fetches.parts.run_queue
    whose = {
        "other processes": split.others,
        "helper threads": split.threads,
        "the quota": split.quota,
        "the CPU mask": split.affinity,
    }
    most = max(whose, key=lambda name: whose[name])
    if split.own >= 0.5 * share or whose[most] <= split.own:
        return ()
    return (
        f"run-queue delay is {percent(share)} of {fetches.noun}, but {percent(whose[most] / share)} of the "
        f"delay goes to {most}",
    )


def _short_queue(fetches: Fetches) -> tuple[str, ...]:
    share = fetches.parts.run_queue
    return (f"run-queue delay is {percent(share)} of a fetch",) if share < 0.25 else ()
