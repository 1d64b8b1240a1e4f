"""Around the waiting: the consumer's step, the host, the other loaders, the probe's own cost, the gaps.

Shares of a step's CPU time rest on the steps that were sampled, not on all of them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite.diagnose.summary.edges import loop_ns
from traceml_lite.diagnose.summary.numbers import quantile_estimates, totals_share
from traceml_lite.diagnose.summary.view import View, look
from traceml_lite.diagnose.summary.waiting import all_waits
from traceml_lite.records.results import Estimate
from traceml_lite.records.run import LoaderTrace, Run, Table
from traceml_lite.records.summary import (
    ConsumerStep,
    HostPressure,
    Measured,
    NotMeasured,
    OtherLoader,
    ProbeCost,
)

NS_PER_S = 1e9


def consumer_step(view: View) -> ConsumerStep:
    """The consumer's side in the steady state (the whole run where there is none)."""
    span = view.even
    p50: Measured
    p95: Measured
    if isinstance(view.step_ns, NotMeasured):
        p50 = p95 = view.step_ns
    else:
        steps = view.step_ns[span]
        steps = steps[steps >= 0]
        p50, p95 = (
            quantile_estimates(steps, (0.5, 0.95))
            if len(steps)
            else (NotMeasured("no step of it ended"),) * 2
        )

    def share(name: str, over: NDArray[Any] | NotMeasured) -> Measured:
        column = view.column(name)
        if isinstance(column, NotMeasured):
            return column
        if isinstance(over, NotMeasured):
            return over
        spent, time = column[span], over[span]
        # As for a fetch: read just outside of what it is about, a delay may exceed it.
        return totals_share(np.minimum(spent, time) if name.endswith("run_queue_ns") else spent, time)

    return ConsumerStep(
        p50_step_ns=p50,
        p95_step_ns=p95,
        cpu_share=share("step_cpu_ns", view.step_ns),
        process_cpu_share=share("step_process_cpu_ns", view.step_ns),
        run_queue_share=share("step_run_queue_ns", view.step_ns),
        wait_cpu_share=share("wait_cpu_ns", view.wait_ns),
        wait_run_queue_share=share("wait_run_queue_ns", view.wait_ns),
    )


def host_pressure(host: Table) -> HostPressure:
    """The host over the run, from its running totals."""
    seconds = _seconds(host)
    if isinstance(seconds, NotMeasured):
        return HostPressure(*(seconds,) * len(fields(HostPressure)))
    return HostPressure(
        seconds=seconds,
        own_cores=_rate(host, "own_cpu_ns"),
        other_cores=_rate(host, "cpu_busy_ns", less="own_cpu_ns"),
        steal_cores=_rate(host, "cpu_steal_ns"),
        iowait_cores=_rate(host, "cpu_iowait_ns"),
        pressure_cpu_share=_rate(host, "pressure_cpu_ns"),
        pressure_io_share=_rate(host, "pressure_io_ns"),
        pressure_memory_share=_rate(host, "pressure_memory_ns"),
        throttled_share=_rate(host, "throttled_ns"),
        throttled_periods=_level(host, "throttled_periods", peak=False),
        peak_shm_bytes=_level(host, "shm_used_bytes", peak=True),
        open_files_growth=_level(host, "open_files", peak=False),
    )


def _seconds(host: Table) -> Measured:
    time = host.get("time_ns")
    if time is None:
        return NotMeasured(host.absent.get("time_ns", "the host was not watched in this run"))
    if len(time) < 2:
        return NotMeasured("the run was too short: a rate needs two readings of the host")
    return Estimate(float(time[-1] - time[0]) / NS_PER_S, n=len(time), method="first to last reading")


def _rate(host: Table, name: str, less: str | None = None) -> Measured:
    """Growth of a running total per time, less that of another."""
    total = host.get(name)
    if total is None:
        return NotMeasured(host.why_absent(name))
    change = np.diff(total).astype(np.float64)
    spans = np.diff(host["time_ns"])
    usable = (spans > 0) & (total[1:] >= 0) & (total[:-1] >= 0) & (change >= 0)
    if less is not None:
        part = host.get(less)
        if part is None:
            return NotMeasured(host.why_absent(less))
        # The total of live processes falls when one of them ends; such a stretch says nothing.
        usable &= (part[1:] >= 0) & (part[:-1] >= 0) & (np.diff(part) >= 0)
        change -= np.diff(part)
    time = int(spans.sum(where=usable))
    if not time:
        return NotMeasured("no two readings in a row could be compared")
    value = max(float(change.sum(where=usable)) / time, 0.0)
    return Estimate(value, n=int(np.count_nonzero(usable)), method="growth over time")


def _level(host: Table, name: str, *, peak: bool) -> Measured:
    """Largest reading of a quantity, or last less first."""
    column = host.get(name)
    if column is None:
        return NotMeasured(host.why_absent(name))
    there = column[column >= 0]
    if not len(there):
        return NotMeasured("measured in no reading")
    if peak:
        return Estimate(float(there.max()), n=len(there), method="largest reading")
    return Estimate(float(there[-1] - there[0]), n=len(there), method="last reading less first")


def other_loader(trace: LoaderTrace) -> OtherLoader:
    """One line about a loader that the summary is not about."""
    view = look(trace)
    waits = all_waits(view)
    if isinstance(waits, NotMeasured):
        return OtherLoader(trace.name, trace.config.num_workers, trace.delivered, waits, waits, waits, waits)
    return OtherLoader(
        name=trace.name,
        num_workers=trace.config.num_workers,
        deliveries=max(trace.delivered - view.fast_forwarded, view.n),
        wait_share=waits.wait_share,
        total_wait_ns=waits.total_wait_ns,
        p50_wait_ns=waits.p50_wait_ns,
        max_wait_ns=waits.max_wait_ns,
    )


def probe_cost(run: Run, view: View) -> ProbeCost:
    """What the probe's bookkeeping took, per record of the run, against this loader's own time."""
    cost = run.probe_cost
    absent = NotMeasured("this trace does not say what recording it cost")
    # The table of a sampled trace lacks fetches that were made, and paid for.
    fetches = sum(len(t.fetches) if t.sampled is None else t.delivered for t in run.loaders if len(t.fetches))
    consumer = _per_record(cost.get("consumer_ns"), int(cost.get("records", 0)), absent)
    worker = _per_record(cost.get("worker_ns"), fetches, absent)
    fixed, dropped = cost.get("fixed_cpu_ns"), cost.get("dropped")
    return ProbeCost(
        consumer_ns_per_delivery=consumer,
        worker_ns_per_fetch=worker,
        consumer_share=_against(consumer, view.stands_for(slice(None)), loop_ns(view), "no delivery"),
        worker_share=_against(worker, *_fetch_time(view), "no fetch was seen"),
        fixed_cpu_ns=absent if fixed is None else Estimate(float(fixed), n=1, method="measured once"),
        dropped_records=absent
        if dropped is None
        else Estimate(float(dropped), n=int(cost.get("records", 0)), method="counted"),
        core=run.probe_core,
    )


def _per_record(total_ns: float | None, records: int, absent: NotMeasured) -> Measured:
    if total_ns is None:
        return absent
    if not records:
        return NotMeasured("no record was written")
    return Estimate(float(total_ns) / records, n=records, method="total by the probe's own clock / records")


def _fetch_time(view: View) -> tuple[int, int]:
    if isinstance(view.fetches, NotMeasured):
        return 0, 0
    return view.fetches.count, int((view.fetches.end_ns - view.fetches.start_ns).sum())


def _against(per_record: Measured, records: int, time_ns: float | NotMeasured, missing: str) -> Measured:
    if isinstance(per_record, NotMeasured):
        return per_record
    if isinstance(time_ns, NotMeasured):
        return time_ns
    if not records or time_ns <= 0:
        return NotMeasured(missing)
    share = per_record.value * records / time_ns
    return Estimate(share, n=records, method="cost per record x records / time")
