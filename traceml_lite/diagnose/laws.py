"""What a sweep over num_workers says: the law of the gap, the law of throughput, in words and numbers.

It turns measured passes into stall series for ``stats.laws`` and says what came out. It names the law of what
the consumer sees; which mechanism makes it is for the diagnosis of a single run, with fetch times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from traceml_lite.diagnose.arms import (
    Stretch,
    arm_threshold_ns,
    batches_per_s,
    disturbances,
    finished,
    stretches,
    wait_share,
)
from traceml_lite.diagnose.words import counted, digits, duration, listed, percent
from traceml_lite.records.results import Estimate
from traceml_lite.records.run import MISSING, Table
from traceml_lite.records.sweep import GapLaw, Laws, MeasuredPass, ThroughputLaw
from traceml_lite.stats.laws import (
    DECISIVE_BIC,
    GapLaws,
    StallSeries,
    ThroughputFit,
    gap_laws,
    throughput_law,
)
from traceml_lite.stats.tails import split_modes

# Below this share of the wall time in waits the consumer sets the pace, and more workers cannot matter.
CONSUMER_BOUND_SHARE = 0.05
# Fetches that keep this share of the usable CPUs busy leave no room for more workers.
CPU_FULL_SHARE = 0.8
# ... or whose time goes by this share in waiting for a CPU.
RUN_QUEUE_SHARE = 0.2
# Workers that together use less than this share of the CPUs they could are waiting for something else.
CPU_IDLE_SHARE = 0.6
# Fewer bytes per second of fetch than any disk in use gives: the wait is not for storage.
STORAGE_BYTES_PER_S = 1e6
# Within this of the best throughput, fewer workers are as good.
AS_GOOD = 0.95
# Fetches are alike when the longest lasts less than this times the median: jitter of 15 % does, and a slow
# batch that prefetch does not hide lasts longer.
LONG_FETCH = 1.5
# CPU time of a batch counts as the same within a fifth: passes of one setting on one host differ as much.
SAME_CPU = 0.2
# A stretch shorter than this holds no gaps worth a likelihood.
MIN_STRETCH = 8

_LAW_WORDS: Mapping[str, str] = {
    "proportional": "gap = num_workers",
    "multiple": "gap = k times num_workers",
    "constant_batches": "a gap constant in batches",
    "constant_seconds": "a gap constant in seconds",
    "none": "no cadence",
}


@dataclass(frozen=True, slots=True, eq=False)
class _Setting:
    """The passes of one number of workers."""

    workers: int
    passes: list[MeasuredPass]
    parts: list[Stretch]
    threshold_ns: int


def sweep_laws(passes: Sequence[MeasuredPass], *, stall_ns: int | None = None) -> Laws:
    """The laws of a sweep over ``num_workers``.

    Args:
        passes: All passes of the sweep; those under a control, without deliveries, or that did not end well
            are left out and named. Repeats and both directions count as passes of one setting.
        stall_ns: Wait above which a delivery is a stall; None takes it from each setting's own waits.

    Returns:
        The law of the gap, the law of throughput, and what could not be used.
    """
    notes: list[str] = []
    settings = _settings(passes, stall_ns, notes)
    used = [p for s in settings.values() for p in s.passes]
    return Laws(
        gap=_gap_law(settings),
        throughput=_throughput_law(settings, notes),
        workers=tuple(sorted(settings)),
        passes=len(used),
        disturbed=disturbances(used),
        notes=tuple(notes),
    )


def _settings(passes: Sequence[MeasuredPass], stall_ns: int | None, notes: list[str]) -> dict[int, _Setting]:
    usable = [p for p in finished(passes) if p.condition.control is None]
    if len(usable) < len(passes):
        notes.append(
            f"{counted(len(passes) - len(usable), 'pass', 'passes')} left out: controls, or not finished"
        )
    grouped: dict[int, list[MeasuredPass]] = {}
    for one in usable:
        workers = one.run.main.config.num_workers
        if one.run.main.sampled is not None:
            notes.append(f"pass {one.result.number} left out: {one.run.main.sampled}")
        elif workers is None:
            notes.append(f"pass {one.result.number} left out: num_workers is not known")
        else:
            grouped.setdefault(workers, []).append(one)
    settings = {}
    for workers, group in sorted(grouped.items()):
        parts = [part for one in group for part in stretches(one)]
        threshold = arm_threshold_ns(parts) if stall_ns is None else stall_ns
        settings[workers] = _Setting(workers, group, parts, threshold)
    return settings


def _series(setting: _Setting) -> list[StallSeries]:
    series = []
    for part in setting.parts:
        if len(part) < MIN_STRETCH or setting.workers < 1:
            continue
        modes = None if part.fetch_ns is None else split_modes(part.fetch_ns)
        slow = None
        if part.fetch_ns is not None and modes is not None and modes.two:
            slow = part.fetch_ns > modes.split
        alike = part.fetch_ns is not None and (
            float(part.fetch_ns.max()) < LONG_FETCH * float(np.median(part.fetch_ns))
        )
        stalled = part.wait_ns > setting.threshold_ns
        series.append(StallSeries(setting.workers, stalled, part.ask_ns, part.rank, slow, alike))
    return series


def _gap_law(settings: Mapping[int, _Setting]) -> GapLaw:
    series = [one for setting in settings.values() for one in _series(setting)]
    found = gap_laws(series)
    medians = {}
    for workers in settings:
        gaps = [np.diff(np.flatnonzero(s.stalled)) for s in series if s.workers == workers]
        apart = np.concatenate(gaps) if gaps else np.zeros(0)
        if apart.size:
            medians[workers] = float(np.median(apart))
    fit = next((f for f in found.fits if f.key == found.key), None)
    parameter = None if fit is None else fit.parameter
    multiple = parameter if found.key in ("proportional", "multiple") else None
    return GapLaw(
        key=found.key,
        statement=_gap_statement(found, medians),
        delta_bic=found.delta_bic if len(found.fits) > 1 else None,
        scores={f.key: f.bic for f in found.fits if math.isfinite(f.bic)},
        multiple=multiple,
        gap_batches=parameter if found.key == "constant_batches" else None,
        gap_s=parameter / 1e9 if parameter and found.key == "constant_seconds" else None,
        median_gap=medians,
        gaps=found.gaps,
        threshold_ns={w: s.threshold_ns for w, s in settings.items()},
        alone=_alone(series, found),
    )


def _gap_statement(found: GapLaws, medians: Mapping[int, float]) -> str:
    fit = next((f for f in found.fits if f.key == found.key), None)
    seen = listed([f"{digits(gap)} at num_workers={w}" for w, gap in medians.items()])
    evidence = f"{counted(found.gaps, 'gap')}, medians {seen}" if medians else "no gaps"
    if found.key == "undecided":
        return f"The law of the gap is undecided: {found.reason} ({evidence})."
    if found.key == "none" or fit is None:
        return f"Stalls follow no law that num_workers would show: {found.reason or evidence}."
    sure = f"BIC better by {found.delta_bic:.0f} than the next law"
    if found.key == "proportional":
        between = [str(w) for w, gap in medians.items() if gap < w]
        apart = (
            f" At num_workers={listed(between)} workers out of step add stalls in between." if between else ""
        )
        return f"Stalls recur every num_workers batches ({evidence}; {sure}).{apart}"
    if found.key == "multiple":
        caveat = f"; {found.reason}" if found.reason else ""
        every = f"{fit.parameter:.0f} times num_workers"
        return f"Stalls recur every {every} batches ({evidence}; {sure}{caveat})."
    if found.key == "constant_batches" and fit.parameter:
        if found.by_fetches:
            return (
                f"Every {fit.parameter:.0f}-th batch is slow whatever num_workers is; prefetch hides some of "
                f"them, so the stalls show at multiples ({evidence}; {sure})."
            )
        return f"Stalls recur every {fit.parameter:.0f} batches whatever num_workers is ({evidence}; {sure})."
    every = duration(fit.parameter or 0.0)
    return f"Stalls recur every {every}, not at a fixed number of batches ({evidence}; {sure})."


def _alone(series: Sequence[StallSeries], found: GapLaws) -> str:
    """What the waits at the largest number of workers could not have told by themselves."""
    if found.key in ("undecided", "none") or not found.workers:
        return ""
    most = max(found.workers)
    single = gap_laws([replace(s, slow=None, alike=False) for s in series if s.workers == most])
    agree = [
        f
        for f in single.fits
        if f.key != "none" and -f.bic >= DECISIVE_BIC and f.bic - single.fits[0].bic < 3 * DECISIVE_BIC
    ]
    if len(agree) < 2:
        return ""
    words = listed([_LAW_WORDS[f.key] for f in agree], "or")
    gaps = counted(single.gaps, "gap")
    return f"With num_workers={most} alone, {gaps} of its waits would have fitted {words}."


def _throughput_law(settings: Mapping[int, _Setting], notes: list[str]) -> ThroughputLaw:
    rates: list[tuple[int, float]] = []
    for workers, setting in settings.items():
        for one in setting.passes:
            rate = batches_per_s(stretches(one))
            if rate is not None:
                rates.append((workers, rate))
    mean = {w: float(np.mean([r for k, r in rates if k == w])) for w in sorted({k for k, _ in rates})}
    cpus = next(
        (c for s in settings.values() for p in s.passes if (c := p.run.environment.cpus_usable)), None
    )
    busy = {w: cores for w, s in settings.items() if (cores := _fetch_rate(s, "cpu_ns")) is not None}
    if settings and not busy:
        notes.append("CPU time of fetches was not measured: why throughput is flat cannot be said")
    cpu_per_batch = {w: ns for w, s in settings.items() if (ns := _cpu_per_batch_ns(s)) is not None}
    cpu_statement = _cpu_statement(settings, cpu_per_batch)
    loaded = [(w, r) for w, r in rates if w >= 1]
    if not loaded:
        return ThroughputLaw(
            "undecided",
            "Throughput was not measured at one worker or more.",
            mean,
            busy,
            cpus,
            cpu_per_batch_ns=cpu_per_batch,
            cpu_statement=cpu_statement,
        )
    fit = throughput_law(np.array([w for w, _ in loaded]), np.array([r for _, r in loaded]), cpus)
    key, why = fit.key, ""
    if fit.key == "flat":
        key, why = _why_flat(settings, fit, busy, cpus)
    best = max(mean.values())
    fewest = min(w for w, r in mean.items() if r >= AS_GOOD * best)
    return ThroughputLaw(
        key=key,
        statement=_throughput_statement(fit, mean, why, fewest),
        batches_per_s=mean,
        busy_cores=busy,
        cpus=cpus,
        exponent=_exponent(fit, len(loaded)),
        best_workers=fewest,
        cpu_per_batch_ns=cpu_per_batch,
        cpu_statement=cpu_statement,
    )


def _cpu_per_batch_ns(setting: _Setting) -> float | None:
    """Mean CPU time of a fetch, without each worker's first, which opens files and fills caches.

    More workers have more first fetches, which would pass for work that the workers add. None where no fetch
    has a CPU time.
    """
    total, fetches = 0.0, 0
    for one in setting.passes:
        table = _fetches(one)
        column = table.get("cpu_ns")
        if column is None:
            continue
        known = column[(column != MISSING) & _not_first(table)]
        total, fetches = total + float(known.sum()), fetches + len(known)
    return total / fetches if fetches else None


def _fetches(one: MeasuredPass) -> Table:
    """Every fetch of a pass; where only deliveries are known, theirs."""
    main = one.run.main
    return main.fetches if len(main.fetches) else main.deliveries


def _not_first(table: Table) -> NDArray[np.bool_]:
    """Fetches that are not their worker's first of the pass; all where workers or times are unknown."""
    kept = np.ones(len(table), dtype=bool)
    worker, start = table.get("worker"), table.get("fetch_start_ns")
    if worker is not None and start is not None and len(table):
        order = np.argsort(start, kind="stable")
        kept[order[np.unique(worker[order], return_index=True)[1]]] = False
    return kept


def _cpu_statement(settings: Mapping[int, _Setting], cpu_per_batch: Mapping[int, float]) -> str:
    """Whether the work of a batch grows with the workers around it."""
    if len(settings) < 2:
        return ""
    cannot = "Whether CPU per batch is the same cannot be said"
    if len(cpu_per_batch) < 2:
        where = f"only at {listed([str(w) for w in cpu_per_batch])}" if cpu_per_batch else "nowhere"
        return f"{cannot}: it was measured {where}."
    sizes = {p.run.main.config.batch_size for w in cpu_per_batch for p in settings[w].passes}
    if len(sizes) > 1:
        return f"{cannot}: the batches are of different sizes."
    low, high = (
        min(cpu_per_batch, key=cpu_per_batch.__getitem__),
        max(cpu_per_batch, key=cpu_per_batch.__getitem__),
    )
    seen = listed([f"{duration(ns)} at {w}" for w, ns in sorted(cpu_per_batch.items())])
    unknown = [str(w) for w in settings if w not in cpu_per_batch]
    apart = f"; not measured at {listed(unknown)}" if unknown else ""
    within = f"within {percent(SAME_CPU)}"
    if cpu_per_batch[high] <= (1 + SAME_CPU) * cpu_per_batch[low]:
        return f"CPU per batch is the same {within} whatever num_workers is ({seen}{apart})."
    more = (
        f"{digits(cpu_per_batch[high] / cpu_per_batch[low])} times" if cpu_per_batch[low] > 0 else "more than"
    )
    return f"CPU per batch is not the same {within}: at {high} workers {more} that at {low} ({seen}{apart})."


def _fetch_rate(setting: _Setting, name: str) -> float | None:
    """A column of the fetches, summed, over their wall time (CPUs, bytes per ns); None if not measured."""
    total = span = 0.0
    for one in setting.passes:
        table = one.run.main.deliveries
        column, start, end = table.get(name), table.get("fetch_start_ns"), table.get("fetch_end_ns")
        if column is None or start is None or end is None:
            continue
        known = (column >= 0) & (start >= 0)
        if known.any():
            total += float(column[known].sum())
            span += float(end[known].max() - start[known].min())
    return total / span if span > 0 else None


def _why_flat(
    settings: Mapping[int, _Setting], fit: ThroughputFit, busy: Mapping[int, float], cpus: float | None
) -> tuple[str, str]:
    beyond = [w for w in settings if w > (fit.knee or 1)]
    shares = [share for w in beyond if (share := wait_share(settings[w].parts)) is not None]
    if shares and max(shares) < CONSUMER_BOUND_SHARE:
        return "flat_consumer", f"the consumer sets the pace (it waits {percent(max(shares))} of the time)"
    cores = [busy[w] for w in beyond if w in busy]
    if not cores or cpus is None:
        return "flat", "why cannot be said: CPU time or CPUs were not measured"
    fetching = [_fetching(settings[w]) for w in beyond]
    queued = [share for w in beyond if (share := _queued_share(settings[w])) is not None]
    used = f"fetches keep {digits(float(np.mean(cores)))} of {digits(cpus)} CPUs busy"
    if np.mean(cores) >= CPU_FULL_SHARE * cpus or (queued and np.mean(queued) >= RUN_QUEUE_SHARE):
        return "flat_cpu", used
    room = min(min(beyond), cpus)
    reads = [rate for w in beyond if (rate := _fetch_rate(settings[w], "read_bytes")) is not None]
    # bytes per ns of wall time, as the other rates are
    from_disk = max((r * 1e9 for r in reads), default=0.0)
    # Workers that do not fetch most of the time wait for indices, not for a lock.
    if np.mean(cores) <= CPU_IDLE_SHARE * room and min(fetching) > 0.5:
        if not reads:
            return "flat", f"{used}; a lock or storage, as bytes read were not measured"
        if from_disk < STORAGE_BYTES_PER_S:
            return "flat_lock", f"{used} and hardly anything is read: they wait for one another or a remote"
        return "flat", f"{used}, and {digits(from_disk / 1e6)} MB/s are read: storage sets the pace"
    return "flat", used


def _fetching(setting: _Setting) -> float:
    """Share of the workers' time inside fetches, in [0, 1]."""
    total = span = 0.0
    for one in setting.passes:
        table = one.run.main.deliveries
        start, end = table.get("fetch_start_ns"), table.get("fetch_end_ns")
        if start is None or end is None:
            continue
        known = start >= 0
        total += float((end[known] - start[known]).sum())
        span += float(end[known].max() - start[known].min()) * setting.workers if known.any() else 0.0
    return min(1.0, total / span) if span > 0 else 0.0


def _queued_share(setting: _Setting) -> float | None:
    """Share of the fetch time that was spent runnable without a CPU."""
    queued, fetching = _fetch_rate(setting, "run_queue_ns"), _fetching(setting) * setting.workers
    return None if queued is None or fetching <= 0 else queued / fetching


def _exponent(fit: ThroughputFit, n: int) -> Estimate | None:
    if not math.isfinite(fit.exponent):
        return None
    if fit.exponent_se is None:
        return Estimate(fit.exponent, n=n, method="two passes: no valid interval")
    half = float(distributions.t.ppf(0.975, n - 2)) * fit.exponent_se
    return Estimate(
        fit.exponent, fit.exponent - half, fit.exponent + half, 0.95, n, "least squares over passes"
    )


def _throughput_statement(fit: ThroughputFit, mean: Mapping[int, float], why: str, fewest: int) -> str:
    rates = listed([f"{digits(r)}/s at {w}" for w, r in mean.items()])
    if fit.key == "grows" and fit.knee is not None:
        return f"Throughput grows with num_workers to the power of {digits(fit.exponent)} ({rates})."
    if fit.key == "grows":
        return f"Throughput grows in proportion to num_workers ({rates})."
    if fit.key == "falls":
        return f"Throughput falls beyond {counted(fit.knee or 1, 'worker')} ({rates}): {fewest} is enough."
    if fit.key == "flat":
        since = "from one worker on" if (fit.knee or 1) <= 1 else f"beyond {counted(fit.knee or 1, 'worker')}"
        return f"Throughput is flat {since} ({rates}); {why}."
    return f"The law of throughput is undecided ({rates})."
