"""What the host was doing while the deliveries were made: who used the CPUs, pressure, throttling.

Differences of the running totals of ``HOST_COLUMNS`` over the span of the run. A total that was not read
twice is None with its reason, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from traceml_lite.records.run import Environment, Table

Ints = NDArray[np.int64]

# Totals are read about once a second; over less than this a difference of kernel ticks says little.
MIN_SPAN_NS = 200_000_000
# A slow growth needs this many readings before it can be told from noise.
MIN_READINGS = 5


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Rates over the run. ``None`` is "not measured", for the reason in ``why``."""

    span_ns: float = 0.0
    busy_cores: float | None = None
    """CPUs of the whole machine that were busy."""
    own_cores: float | None = None
    """CPUs that the traced process and its children used."""
    steal_cores: float | None = None
    iowait_cores: float | None = None
    pressure_cpu: float | None = None
    """Share of time in which some task of the machine waited for a CPU."""
    pressure_io: float | None = None
    pressure_memory: float | None = None
    throttled_periods: float | None = None
    """Periods in which the cgroup's quota stopped this group."""
    throttled_share: float | None = None
    """Time the quota stopped this group over the span; above 1 when it stopped several CPUs at once."""
    shm_growth_bytes: float | None = None
    shm_last_bytes: float | None = None
    files_growth: float | None = None
    files_last: float | None = None
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def other_cores(self) -> float | None:
        """CPUs used by processes that are not the traced job's."""
        if self.busy_cores is None or self.own_cores is None:
            return None
        return max(0.0, self.busy_cores - self.own_cores)

    def idle_cores(self, environment: Environment) -> float | None:
        """CPUs of the machine that had nothing to do."""
        if self.busy_cores is None or environment.cpus_online is None:
            return None
        return max(0.0, environment.cpus_online - self.busy_cores)


def host_facts(host: Table, first_ns: int | None, last_ns: int | None, own_floor_cores: float) -> HostFacts:
    """Rates of the host's totals over the deliveries.

    Args:
        host: ``HOST_COLUMNS``, in order of time.
        first_ns: First moment of interest, or None for the whole table; likewise ``last_ns``.
        last_ns: See ``first_ns``.
        own_floor_cores: CPUs the job is known to have used by its own counters. Processes that ended
            between two readings take their CPU time out of ``own_cpu_ns``, so this is a lower bound.
    """
    moments = _column(host, "time_ns")
    if moments is None or len(moments) < 2:
        reason = host.why_absent("time_ns") if moments is None else "only one reading of the host was taken"
        return HostFacts(why={"host": reason})
    rows = _rows_around(moments, first_ns, last_ns)
    span = float(moments[rows][-1] - moments[rows][0])
    if span < MIN_SPAN_NS:
        return HostFacts(why={"host": "the run was too short for two readings of the host"})
    why: dict[str, str] = {}

    def rate(name: str, per: float = span) -> float | None:
        column = _column(host, name)
        values = None if column is None else column[rows]
        if values is None or (values < 0).any():
            why[name] = host.why_absent(name) if column is None else "not read throughout"
            return None
        return float(np.maximum(np.diff(values), 0).sum()) / per

    own = rate("own_cpu_ns")
    shm, files = _growth(host, "shm_used_bytes", rows, why), _growth(host, "open_files", rows, why)
    return HostFacts(
        span_ns=span,
        busy_cores=rate("cpu_busy_ns"),
        own_cores=None if own is None else max(own, own_floor_cores),
        steal_cores=rate("cpu_steal_ns"),
        iowait_cores=rate("cpu_iowait_ns"),
        pressure_cpu=rate("pressure_cpu_ns"),
        pressure_io=rate("pressure_io_ns"),
        pressure_memory=rate("pressure_memory_ns"),
        throttled_periods=rate("throttled_periods", per=1.0),
        throttled_share=rate("throttled_ns"),
        shm_growth_bytes=None if shm is None else shm[0],
        shm_last_bytes=None if shm is None else shm[1],
        files_growth=None if files is None else files[0],
        files_last=None if files is None else files[1],
        why=why,
    )


def _column(host: Table, name: str) -> Ints | None:
    column = host.get(name)
    return None if column is None or not len(column) else column.astype(np.int64, copy=False)


def _rows_around(moments: Ints, first_ns: int | None, last_ns: int | None) -> slice:
    """The readings that span the moments of interest, one more on either side."""
    low = 0 if first_ns is None else max(0, int(np.searchsorted(moments, first_ns, side="right")) - 1)
    high = len(moments)
    if last_ns is not None:
        high = min(len(moments), int(np.searchsorted(moments, last_ns, side="left")) + 1)
    return slice(low, high) if high - low >= 2 else slice(0, len(moments))


def _growth(host: Table, name: str, rows: slice, why: dict[str, str]) -> tuple[float, float] | None:
    """Lasting growth of a level and its last value: median of the last quarter less that of the first.

    The first reading is left out: filling the prefetch queue for the first time is growth, but no leak.
    """
    column = _column(host, name)
    values = None if column is None else column[rows]
    if values is None or (values < 0).any():
        why[name] = host.why_absent(name) if column is None else "not read throughout"
        return None
    values = values[1:]
    if len(values) < MIN_READINGS:
        why[name] = f"only {len(values) + 1} readings, too few to see a growth"
        return None
    quarter = max(1, len(values) // 4)
    rising = float(np.mean(np.diff(values) >= 0))
    growth = float(np.median(values[-quarter:]) - np.median(values[:quarter]))
    # A level that also falls is in use, not leaking.
    return (growth if rising >= 0.8 else 0.0), float(values[-1])
