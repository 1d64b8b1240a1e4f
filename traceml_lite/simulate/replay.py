"""What the same batches would have cost under another setting: a recorded trace put back into the model.

Each fetch is taken apart into CPU time and the rest; time it waited for a core is left out, because the
model makes that anew from the cores it is given. The recorded setting is replayed as well and held against
the recording: that error says how far to trust the others. Not covered: memory bandwidth, the page cache,
locks between workers (they look like storage here), other processes on the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite._errors import MissingColumnError
from traceml_lite.records.run import MISSING, LoaderConfig, LoaderTrace, Table
from traceml_lite.simulate.model import Demands, Host, Simulated, simulate

# Above this share of the fetch time spent waiting for a core, other load was on the host and a prediction
# from it misses by more than the 15 % that quiet hosts give.
CONTENDED_SHARE = 0.1
# Waits below this are the price of taking a result that was ready.
READY_WAIT_NS = 5_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """What a trace says about its batches, in the form the model takes.

    Attributes:
        demands: Per batch, in the sampler's order over all epochs.
        config: The recorded setting, with ``batches`` set to the epochs' length.
        host: Costs of the queues as measured, without a limit of cores.
        mean_period_ns: Measured time per delivery, wait and step.
        mean_wait_ns: Measured wait per delivery.
        notes: What was missing and how it was filled.
    """

    demands: Demands
    config: LoaderConfig
    host: Host
    mean_period_ns: float
    mean_wait_ns: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """A predicted run, and how well the recorded one was predicted.

    Attributes:
        simulated: The predicted run under the new setting.
        mean_wait_ns: Its wait per delivery.
        mean_period_ns: Its time per delivery, wait and step.
        own_error: Relative error of the time per delivery when the recorded setting itself is replayed.
        notes: As in ``Recorded``.
    """

    simulated: Simulated
    mean_wait_ns: float
    mean_period_ns: float
    own_error: float
    notes: tuple[str, ...] = ()


def replay(
    trace: LoaderTrace,
    *,
    num_workers: int | None = None,
    prefetch_factor: int | None = None,
    in_order: bool | None = None,
    cores: float | None = None,
) -> Replay:
    """Predict the waits of a recorded loader under another setting.

    Args:
        trace: A loader whose fetches were recorded.
        num_workers: The new setting; None keeps the recorded one, likewise the next two.
        prefetch_factor: See ``num_workers``.
        in_order: See ``num_workers``.
        cores: CPUs the process may use; None is no limit, right only where fetches hardly need a CPU.

    Returns:
        The predicted run over the recorded batches.

    Raises:
        MissingColumnError: Fetch times or steps were not recorded.
        ValueError: Too few deliveries, or a setting the loader refuses.
    """
    seen = recorded(trace)
    host = replace(seen.host, cores=math.inf if cores is None else cores)
    own = simulate(seen.demands, seen.config, host=host)
    config = replace(
        seen.config,
        num_workers=seen.config.num_workers if num_workers is None else num_workers,
        prefetch_factor=seen.config.prefetch_factor if prefetch_factor is None else prefetch_factor,
        in_order=seen.config.in_order if in_order is None else in_order,
    )
    new = simulate(seen.demands, config, host=host)
    return Replay(
        simulated=new,
        mean_wait_ns=float(new.wait_ns.mean()),
        mean_period_ns=_period(new),
        own_error=_period(own) / seen.mean_period_ns - 1.0,
        notes=seen.notes,
    )


def _period(run: Simulated) -> float:
    return float(run.wait_ns.mean() + run.columns["step_ns"].mean())


def recorded(trace: LoaderTrace) -> Recorded:
    """Take a trace apart into demands per batch; see ``Recorded`` and ``replay`` for its errors."""
    table = trace.deliveries
    # The first error names the column and why it is missing.
    start, end, wait = table["fetch_start_ns"], table["fetch_end_ns"], table["wait_ns"]
    steps = table.get("step_ns")
    if steps is None:
        raise MissingColumnError(f"a replay needs the steps: {table.why_absent('step_ns')}")
    notes: list[str] = []
    order = np.lexsort((_ranks(table), table["epoch"]))
    measured = (start != MISSING) & (end >= start)
    if int(measured.sum()) < 2 or not (steps >= 0).any():
        raise ValueError(f"{trace.name}: a replay needs at least two measured fetches and one step")
    if not measured.all():
        notes.append(
            f"{int((~measured).sum())} of {len(wait)} fetches were not measured and copy the one before"
        )
    fetch = _filled(np.where(measured, end - start, MISSING), order)
    cpu, queued = _parts(table, notes)
    cpu = np.minimum(_filled(cpu, order), fetch)
    queued = np.minimum(_filled(queued, order), fetch - cpu)
    if queued.sum() > CONTENDED_SHARE * fetch.sum():
        notes.append(
            f"{queued.sum() / fetch.sum():.0%} of the fetch time was spent waiting for a CPU: "
            "a recording with fewer workers than CPUs predicts better"
        )
    step = np.where(steps >= 0, steps, np.median(steps[steps >= 0])).astype(np.float64)
    step, step_cpu = _step_parts(table, step)
    epochs = np.unique(table["epoch"], return_counts=True)[1]
    config = trace.config
    if config.num_workers is None:
        raise MissingColumnError(f"{trace.name}: a replay needs num_workers of the recorded loader")
    return Recorded(
        demands=Demands(io_ns=fetch - cpu - queued, cpu_ns=cpu, step_ns=step, step_cpu_ns=step_cpu),
        config=replace(config, batches=int(epochs.max())),
        host=_queue_costs(table, config.num_workers, measured),
        mean_period_ns=float(wait.mean() + step.mean() + (0 if step_cpu is None else step_cpu.mean())),
        mean_wait_ns=float(wait.mean()),
        notes=tuple(notes),
    )


def _ranks(table: Table) -> NDArray[Any]:
    ranks = table.get("rank")
    return table["delivery"] if ranks is None else ranks


def _parts(table: Table, notes: list[str]) -> tuple[NDArray[Any], NDArray[Any]]:
    nothing = np.zeros(len(table), dtype=np.int64)
    cpu, queued = table.get("thread_cpu_ns"), table.get("run_queue_ns")
    if cpu is None:
        cpu = table.get("cpu_ns")
    if cpu is None:
        notes.append("CPU time was not measured: every fetch is taken to need no core")
    if queued is None:
        notes.append("run-queue delay was not measured: waiting for a CPU counts as storage")
    return (nothing if cpu is None else cpu), (nothing if queued is None else queued)


def _filled(values: NDArray[Any], order: NDArray[np.int64]) -> NDArray[np.float64]:
    """The values in the given order, each unmeasured one replaced by the last measured one before it."""
    ordered = values[order].astype(np.float64)
    known = np.flatnonzero(ordered >= 0)
    if not known.size:
        return np.zeros(len(ordered))
    last = np.searchsorted(known, np.arange(len(ordered)), side="right") - 1
    filled: NDArray[np.float64] = ordered[known[np.maximum(last, 0)]]
    return filled


def _step_parts(
    table: Table, step: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """The steps split into CPU time and the rest, by the share seen in the sampled ones."""
    cpu = table.get("step_cpu_ns")
    if cpu is None or not (cpu >= 0).any():
        return step, None
    seen = cpu >= 0
    queued = table.get("step_run_queue_ns")
    lost = 0.0 if queued is None else float(np.maximum(queued[seen], 0).sum())
    total = float(step[seen].sum())
    share = min(1.0, float(cpu[seen].sum()) / max(1.0, total - lost))
    # Time the consumer itself waited for a core is made anew by the model.
    step = step * (1 - min(0.95, lost / max(1.0, total)))
    return step * (1 - share), step * share


def _queue_costs(table: Table, workers: int, measured: NDArray[np.bool_]) -> Host:
    """Costs of the queues from the deliveries that were waited for, and from those that lay ready."""
    asks, gots = table.get("ask_ns"), table.get("got_ns")
    default = Host()
    if not workers or asks is None or gots is None:
        return default
    end, wait = table["fetch_end_ns"], table["wait_ns"]
    waited = measured & (asks < end) & (gots >= end)
    ready = measured & (asks > end) & (wait < READY_WAIT_NS)
    get = min(default.get_ns, float(np.median(wait[ready]))) if ready.any() else default.get_ns
    if not waited.any():
        return replace(default, get_ns=get)
    lag = float(np.median((gots - end)[waited]))
    # A batch held back by order shows a lag that is not the queue's; half of the waited-for ones do not.
    return replace(default, get_ns=min(get, lag), put_ns=max(0.0, lag - min(get, lag)))
