"""One sentence per cost, with the numbers that matter, for a reader who skips the evidence."""

from __future__ import annotations

from collections.abc import Callable

from traceml_lite.diagnose.costs.blocking import reads_of
from traceml_lite.diagnose.costs.contention import throttled
from traceml_lite.diagnose.costs.facts import CostFacts, Fetches
from traceml_lite.diagnose.costs.measure import LOST_SHARE_MIN
from traceml_lite.diagnose.costs.paging import fault_time_share, growth_of
from traceml_lite.diagnose.words import counted, data_size, digits, duration, percent

# The pool has its CPUs full from here on, so that fewer workers would finish as many batches.
FULL_SHARE = 0.85


def statement_of(key: str, facts: CostFacts) -> str:
    """The sentence for ``key``; it must be one of the keys that a verdict can name."""
    return _SENTENCES[key](facts)


def _wall(fetches: Fetches | None) -> float:
    return 0.0 if fetches is None else fetches.mean_wall_ns


def _noun(fetches: Fetches | None) -> str:
    words = "a fetch" if fetches is None else fetches.noun
    return f"{words[0].upper()}{words[1:]}"


def _cpu(facts: CostFacts) -> str:
    fetches = facts.fetches
    busy = 0.0 if fetches is None else fetches.mean_of(fetches.process_ns)
    return f"{_noun(fetches)} computes: {duration(busy)} of CPU time in {duration(_wall(fetches))}."


def _run_queue(facts: CostFacts) -> str:
    fetches = facts.fetches
    busy = 0.0 if fetches is None else fetches.mean_of(fetches.thread_ns)
    wall = duration(_wall(fetches))
    text = f"{_noun(fetches)} waits for a CPU: it computes for {duration(busy)} and takes {wall}"
    if facts.cpus is not None and facts.workers:
        text += f", as {counted(facts.workers, 'worker')} and the loop share {counted(facts.cpus, 'CPU')}"
    full = facts.cpus is not None and (facts.pool_cores or 0.0) >= FULL_SHARE * facts.cpus
    return text + ("; the CPUs are full, so only cheaper batches or more CPUs give more." if full else ".")


def _threads(facts: CostFacts) -> str:
    count = "" if facts.worker_threads is None else f" of {counted(facts.worker_threads, 'thread')} each"
    cpus = "" if facts.cpus is None else f" on {counted(facts.cpus, 'CPU')}"
    return (
        f"Threads inside the workers fight for the CPUs: {counted(facts.workers, 'worker')}{count}{cpus}, "
        f"and a fetch takes {duration(_wall(facts.fetches))}."
    )


def _affinity(facts: CostFacts) -> str:
    pool = "" if facts.pool_cores is None else f"; together they used {digits(facts.pool_cores)}"
    return f"A CPU mask holds the {facts.workers} workers on one CPU{pool}."


def _quota(facts: CostFacts) -> str:
    limit = facts.environment.cpu_quota
    of = "" if limit is None else f" of {digits(limit)} CPUs"
    return f"The cgroup's quota{of} stops the workers in {percent(throttled(facts) or 0.0)} of its periods."


def _neighbours(facts: CostFacts) -> str:
    others = facts.host.other_cores or 0.0
    return f"Others have the CPUs: processes that are not this job's used {digits(others)} of them."


def _storage(facts: CostFacts) -> str:
    reads = reads_of(facts)
    if reads is None:
        return "A fetch waits for the disk."
    amount = "" if not reads.read_bytes else f" while it reads {data_size(reads.read_bytes)} from it"
    return (
        f"A fetch waits for the disk: blocked for {duration(reads.blocked_ns)} of "
        f"{duration(_wall(facts.fetches))}{amount}."
    )


def _remote(facts: CostFacts) -> str:
    reads = reads_of(facts)
    if reads is None:
        return "A fetch waits for files that are not on a disk of this machine."
    return (
        f"A fetch waits for files that are not on a disk of this machine: blocked for "
        f"{duration(reads.blocked_ns)}, {data_size(reads.rchar or 0.0)} read, none of it from a device."
    )


def _lock(facts: CostFacts) -> str:
    return (
        f"The workers take turns at a lock: a fetch takes {duration(_wall(facts.fetches))}, and only one of "
        f"{facts.workers} gets on at a time."
    )


def _memory(facts: CostFacts) -> str:
    growth = growth_of(facts)
    grown = (
        "" if growth is None else f", {data_size(growth.first_bytes)} to {data_size(growth.last_bytes)} each"
    )
    return f"The workers grow{grown}; page faults take up to {percent(fault_time_share(facts))} of a fetch."


def _delivery(facts: CostFacts) -> str:
    per_batch = facts.budget.handover_ns / max(1, facts.steps.deliveries)
    return f"Handing a batch over costs {duration(per_batch)} after its fetch has ended."


def _pin(facts: CostFacts) -> str:
    per_batch = facts.budget.handover_ns / max(1, facts.steps.deliveries)
    return f"The pin-memory thread is behind: a fetched batch needs {duration(per_batch)} more to arrive."


def _shm(facts: CostFacts) -> str:
    files = facts.host.files_growth or 0.0
    grown = facts.host.shm_growth_bytes or 0.0
    return f"Shared memory leaks: {digits(files)} more open descriptors, {data_size(grown)} more in /dev/shm."


def _start(facts: CostFacts) -> str:
    return f"Starting the workers costs {duration(facts.budget.start_ns)}, more than the batches themselves."


def _consumer(facts: CostFacts) -> str:
    budget, waits = facts.budget, percent(facts.steps.wait_share)
    if facts.steps.wait_share >= LOST_SHARE_MIN and facts.fetches is not None:
        # Such waits are not the loader's, and "it hardly waits" would be untrue.
        fetching = budget.fetch_ns / budget.loop_ns if budget.loop_ns > 0 else 0.0
        return (
            f"The loader is hardly the cause: the loop waits {waits} of its time, but only "
            f"{percent(fetching)} for a fetch; otherwise for batches already made."
        )
    return f"The loader is not the cause: the loop waits {waits} of its time; the rest is its own step."


def _step_starved(facts: CostFacts) -> str:
    return (
        f"The loader's workers take the step's CPUs: the step has none for "
        f"{percent(facts.steps.starved_share_or_zero)} of its time, while the loop waits for batches "
        f"{percent(facts.steps.wait_share)} of it."
    )


_SENTENCES: dict[str, Callable[[CostFacts], str]] = {
    "cpu": _cpu,
    "run_queue": _run_queue,
    "threads": _threads,
    "affinity": _affinity,
    "quota": _quota,
    "neighbours": _neighbours,
    "storage": _storage,
    "remote": _remote,
    "lock": _lock,
    "memory": _memory,
    "delivery": _delivery,
    "pin": _pin,
    "shm": _shm,
    "start": _start,
    "consumer": _consumer,
    "step_starved": _step_starved,
}
