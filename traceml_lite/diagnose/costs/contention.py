"""Whose fault run-queue delay is: our own workers, our threads, a quota, a CPU mask, or somebody else.

Run-queue delay says that a thread wanted a CPU and had none. What to do about it depends on who had the
CPU, and that is not in the fetch: it takes the job's own demand, the mask, the quota and the machine's
totals. One split serves all the keys, so that no nanosecond is claimed twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceml_lite.diagnose.costs.facts import CostFacts

# The kernel checks a quota every 100 ms; stopped in fewer than one period in twenty, it costs under 5 %.
THROTTLED_PERIODS_MIN = 0.05
QUOTA_PERIOD_NS = 100_000_000
# Worker processes have three threads without any help of the user's: the loop, the queue's feeder and
# the one that passes file descriptors of shared memory.
BASE_THREADS = 3
# Below a quarter of the CPU time, helper threads (the feeder pickles there) do not make a fetch slow.
HELPER_SHARE_MIN = 0.25
# Others that use less than this share of the job's CPUs cannot explain a delay anyone would notice.
OTHERS_MIN = 0.1
# Workers confined to one CPU use 0.9 to 1.05 of it together; two free workers of equal load use more.
ONE_CPU = (0.8, 1.15)
# A machine with half a CPU idle while workers queue for one is not short of CPUs: the mask is.
IDLE_CORES_MIN = 0.5
# Mask trouble needs workers that really queue; a few percent of delay is ordinary wake-up latency.
QUEUE_SHARE_MIN = 0.2


@dataclass(frozen=True, slots=True)
class QueueSplit:
    """Shares of fetch time spent waiting for a CPU, by who had it. They add up to the run-queue share."""

    own: float = 0.0
    """More worker processes than CPUs."""
    threads: float = 0.0
    """More threads than CPUs."""
    quota: float = 0.0
    affinity: float = 0.0
    others: float = 0.0
    others_known: bool = True
    """False when the machine's totals were not read, so that ``own`` may hold somebody else's share."""


def throttled(facts: CostFacts) -> float | None:
    """Share of the quota's periods in which the group was stopped; None when it was not measured."""
    periods = facts.host.throttled_periods
    if periods is None or facts.host.span_ns <= 0:
        return None
    return min(1.0, periods * QUOTA_PERIOD_NS / facts.host.span_ns)


def helper_share(facts: CostFacts) -> float:
    """Share of the workers' CPU time that helper threads used, in [0, 1]."""
    fetches = facts.fetches
    if fetches is None or fetches.process_ns.sum() <= 0:
        return 0.0
    return max(0.0, 1.0 - float(fetches.thread_ns.sum()) / float(fetches.process_ns.sum()))


def has_helper_threads(facts: CostFacts) -> bool:
    """True when threads beyond those every worker has did a good part of the work."""
    threads = facts.worker_threads
    return helper_share(facts) >= HELPER_SHARE_MIN and (threads is None or threads > BASE_THREADS)


def consumer_cores(facts: CostFacts) -> float:
    """CPUs the consumer used on average, over all time in the loop; 0 where it was not measured."""
    steps = facts.steps
    per_step = steps.process_cores if steps.process_cores is not None else steps.cpu_share
    return 0.0 if per_step is None else per_step * (1.0 - steps.wait_share)


def own_runnable(facts: CostFacts) -> float | None:
    """Threads of the job that ran or wanted to, on average; None where run-queue delay was not read."""
    if facts.pool_runnable is None:
        return None
    waiting = (facts.steps.starved_share or 0.0) * (1.0 - facts.steps.wait_share)
    in_consumer = 0.0 if facts.workers == 0 else consumer_cores(facts) + waiting
    return facts.pool_runnable + in_consumer


def threads_oversubscribed(facts: CostFacts) -> bool:
    """Helper threads are at work, and there are not CPUs enough for all that want one."""
    cpus, demand = facts.cpus, own_runnable(facts)
    if not has_helper_threads(facts):
        return False
    if facts.worker_threads is not None and cpus is not None:
        working = (facts.worker_threads - BASE_THREADS + 1) * max(1, facts.workers)
        return working > cpus
    return cpus is None or demand is None or demand > 0.9 * cpus


def single_cpu_mask(facts: CostFacts) -> str | None:
    """Why the workers are held to one CPU, in words, or None when they are not."""
    environment = facts.environment
    online = environment.cpus_online
    if facts.workers < 2 or online is None or online < 2:
        return None
    if facts.worker_cpus == 1 or environment.cpus_affinity == 1:
        return f"the affinity mask holds 1 of the machine's {online} CPUs"
    if facts.worker_cpus is not None:
        return None
    idle = facts.host.idle_cores(environment)
    pool = facts.pool_cores
    if pool is None or idle is None or not ONE_CPU[0] <= pool <= ONE_CPU[1] or idle < IDLE_CORES_MIN:
        return None
    if facts.environment.cpu_quota is not None:
        return None
    return (
        f"{facts.workers} workers together used {pool:.2f} CPUs and queued for more while {idle:.2f} "
        "CPUs of the machine were idle: as with a mask of one CPU set inside the workers"
    )


def split_queue(facts: CostFacts, share: float) -> QueueSplit:
    """Divide ``share``, the run-queue share of the fetches that matter, by cause."""
    stopped = throttled(facts)
    if stopped is not None and stopped >= THROTTLED_PERIODS_MIN:
        return QueueSplit(quota=share)
    if share >= QUEUE_SHARE_MIN and single_cpu_mask(facts) is not None:
        return QueueSplit(affinity=share)
    others = facts.host.other_cores
    if others is not None and facts.host.steal_cores is not None:
        others += facts.host.steal_cores
    mine = share * (1.0 if others is None else _own_fraction(facts, others))
    by_threads = has_helper_threads(facts)
    return QueueSplit(
        own=0.0 if by_threads else mine,
        threads=mine if by_threads else 0.0,
        others=share - mine,
        others_known=others is not None,
    )


def _own_fraction(facts: CostFacts, others: float) -> float:
    """Fraction of the delay that would remain if the machine did nothing else.

    With ``r`` runnable threads on ``K`` CPUs shared equally, each waits ``1 - K/r`` of its time. ``r`` is
    the job's own demand with the others left out, over the same with them in; others that used ``u`` CPUs
    beside us had ``u r / (K - u)`` threads that wanted one.
    """
    cpus, demand = facts.cpus, own_runnable(facts)
    if cpus is None or demand is None or demand <= 0:
        return 1.0
    if others < OTHERS_MIN * cpus:
        return 1.0
    theirs = others * demand / max(cpus - others, 0.1 * cpus)
    alone = max(0.0, 1.0 - cpus / demand)
    together = 1.0 - cpus / (demand + theirs)
    if together <= 0.05:
        # Barely more runnable threads than CPUs: the delay is the bad luck of meeting, shared by demand.
        return demand / (demand + theirs)
    return min(1.0, alone / together)


@dataclass(frozen=True, slots=True)
class Starved:
    """Share of the loop's time in which the consumer wanted a CPU and had none, by who had it."""

    own_workers: float
    others: float
    others_known: bool


def starved_consumer(facts: CostFacts) -> Starved | None:
    """Divide the consumer's run-queue delay by who used the CPUs; None where it was not measured.

    The consumer queues behind whoever runs, so the delay is shared by the CPU time of the two.
    """
    in_step = facts.steps.starved_share
    if in_step is None:
        return None
    starved = in_step * (1.0 - facts.steps.wait_share)
    if facts.budget.loop_ns > 0:
        starved += facts.budget.starved_ns / facts.budget.loop_ns
    workers = (facts.pool_cores or 0.0) if facts.workers else 0.0
    others = facts.host.other_cores
    if others is None:
        return Starved(starved if workers > 0 else 0.0, 0.0 if workers > 0 else starved, False)
    others += facts.host.steal_cores or 0.0
    total = workers + others
    mine = starved * (workers / total if total > 0 else 0.0)
    return Starved(mine, starved - mine, True)
