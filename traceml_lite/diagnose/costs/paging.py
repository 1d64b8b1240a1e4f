"""Memory: growth of the workers, and the time that page faults take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceml_lite.diagnose.costs.evidence import (
    cost_evidence,
    idle_reason,
    no_fetches,
    weight_in_fetch,
)
from traceml_lite.diagnose.costs.facts import CostFacts, known
from traceml_lite.diagnose.words import counted, data_size, digits, percent
from traceml_lite.records.results import Evidence

# A minor fault that copies or clears one page took 2.8 µs of CPU time in a virtual machine here, 12 µs where
# the hypervisor had to find the page first, and takes about 0.6 µs without one. This is therefore an upper
# bound, and counts only in workers that grow.
FAULT_NS = 10_000
# Growth below these is warming up: imports, allocator pools, caches that fill once.
MIN_GROWTH_RATIO, MIN_GROWTH_BYTES = 1.2, 32 << 20
# Memory pressure this high means that tasks stood still for memory, whatever they were doing.
PRESSURE_MIN = 0.1


@dataclass(frozen=True, slots=True)
class Growth:
    """How the resident set of the workers moved."""

    first_bytes: float
    last_bytes: float
    rising_share: float
    """Share of workers whose resident set grew."""

    @property
    def lasting(self) -> bool:
        """True when most workers grew by more than warming up explains."""
        return (
            self.rising_share > 0.5
            and self.last_bytes >= MIN_GROWTH_RATIO * self.first_bytes
            and self.last_bytes - self.first_bytes >= MIN_GROWTH_BYTES
        )


def growth_of(facts: CostFacts) -> Growth | None:
    """First against last third of the resident set of each worker process; None when it was not read."""
    table = facts.all_deliveries
    size, pid, start = (known(table, name) for name in ("rss_bytes", "pid", "fetch_start_ns"))
    if size is None or pid is None or start is None:
        return None
    # It is read about once a second: of a long run these rows are few.
    read = np.flatnonzero((size > 0) & (pid >= 0))
    size, pid, start = size[read], pid[read], start[read]
    firsts: list[float] = []
    lasts: list[float] = []
    # A worker of a short epoch has no trend; three readings that differ in time are the least.
    for process in np.unique(pid)[:200]:
        rows = np.flatnonzero(pid == process)
        values = size[rows[np.argsort(start[rows], kind="stable")]]
        if len(values) < 3:
            continue
        third = max(1, len(values) // 3)
        firsts.append(float(np.median(values[:third])))
        lasts.append(float(np.median(values[-third:])))
    if not firsts:
        return None
    rising = float(np.mean(np.array(lasts) > MIN_GROWTH_RATIO * np.array(firsts)))
    return Growth(float(np.median(firsts)), float(np.median(lasts)), rising)


def fault_time_share(facts: CostFacts) -> float:
    """Share of the fetches' time that handling minor faults may take, where the workers grow; else 0.

    Faults without growth are ordinary allocation and belong to computing.
    """
    fetches, faults = facts.fetches, known(facts.deliveries, "minor_faults")
    growth = growth_of(facts)
    if fetches is None or faults is None or growth is None or not growth.lasting:
        return 0.0
    spent = np.minimum(np.maximum(faults[fetches.rows], 0) * float(FAULT_NS), fetches.thread_ns)
    return fetches.share_of(spent)


def memory(facts: CostFacts) -> Evidence:
    """The workers grow: copy on write of a big object, a cache without a limit, then paging."""
    fetches, growth = facts.fetches, growth_of(facts)
    if fetches is None:
        return no_fetches("memory", facts)
    pressure = facts.host.pressure_memory
    if growth is None and (pressure is None or pressure < PRESSURE_MIN):
        return cost_evidence("memory", 0.0, missing=("resident set of the workers over time",))
    share = fault_time_share(facts)
    if pressure is not None and pressure >= PRESSURE_MIN:
        share = max(share, min(1.0, pressure) * max(fetches.parts.blocked, fetches.parts.cpu))
    faults = known(facts.deliveries, "minor_faults")
    supports: list[str] = []
    contradicts: list[str] = []
    if growth is not None:
        moved = f"resident set of a worker {data_size(growth.first_bytes)} to {data_size(growth.last_bytes)}"
        (supports if growth.lasting else contradicts).append(moved)
    if faults is not None and growth is not None and growth.lasting:
        count = fetches.mean_of(faults[fetches.rows])
        supports.append(
            f"{counted(round(count), 'minor fault')} a fetch, up to {percent(fault_time_share(facts))} of it"
        )
    if pressure is not None and pressure >= PRESSURE_MIN:
        supports.append(f"some task stood still for memory in {percent(pressure)} of the time")
    numbers = {} if growth is None else {"rss_growth": growth.last_bytes / max(growth.first_bytes, 1.0)}
    return cost_evidence(
        "memory",
        share * weight_in_fetch(facts),
        supports=tuple(supports),
        contradicts=idle_reason(facts) or tuple(contradicts),
        numbers=numbers | {"fault_time_share": share},
    )


def growth_words(growth: Growth) -> str:
    """The growth as a finding's sentence."""
    ratio = growth.last_bytes / max(growth.first_bytes, 1.0)
    return (
        f"The workers' resident set grew {digits(ratio)}-fold, from {data_size(growth.first_bytes)} to "
        f"{data_size(growth.last_bytes)} each."
    )
