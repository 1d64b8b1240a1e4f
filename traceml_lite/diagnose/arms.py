"""One arm of an experiment in numbers: its steady deliveries, stalls, cadence, overtakings, and its host.

The passes of one condition are looked at together, each epoch on its own, without the warm-up. Comparing arms
is for ``compare``, laws over many conditions for ``laws``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from traceml_lite.diagnose.words import percent
from traceml_lite.records.results import Estimate
from traceml_lite.records.run import MISSING, Run
from traceml_lite.records.sweep import (
    ArmCadence,
    ArmSummary,
    CadenceWindow,
    Disturbance,
    MeasuredPass,
    Overtaking,
    PassStatus,
)
from traceml_lite.stats.cadence import WindowCadence, cadence_by_window, fit_period, tail_probability
from traceml_lite.stats.tails import STALL_FLOOR_STEPS, mass_cut_ns

# Of the waits that carry half of all waiting, half the smallest: of 15 % jitter the 90 % rule of single runs
# makes fragments of rounds, and a cadence that is there gets lost.
ARM_MASS_SHARE, ARM_MASS_MARGIN = 0.5, 0.5
# A cadence is there when stalls at random would do as well in one of a hundred runs at most ...
CADENCE_P = 0.01
# ... and more than half of the gaps are multiples of it, at one-sided 95 %: the 90 % interval lies above.
CADENCE_SHARE = 0.5
CADENCE_LEVEL = 0.90
# A round may hold two stalls, as with four workers on two CPUs. Then the gaps say nothing, and a stall is
# followed by another one round later: that share must use this much of the room above the share of stalls.
AGAIN_ROOM = 0.25
# Windows in rounds of num_workers: workers that start together lose their phase at a pace that these show.
WINDOW_ROUNDS = (4, 16, 64, 256)
# Steal above this share of the machine's CPU time stretches a fetch by as much.
STEAL_SHARE = 0.02
# CPU taken by others, as a share of the usable CPUs: above, fetch times are partly theirs.
OTHERS_SHARE = 0.15
# Pressure (some task waited) beyond that of the other passes: the loader's own workers make some.
PRESSURE_EXCESS = 0.15
# A cadence of one pass says nothing below two rounds.
MIN_ROUNDS = 2
# A stretch of so many rounds can spare its first, in which the pipe fills; a shorter one keeps it.
SPARE_ROUNDS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """The steady deliveries of one epoch of one pass."""

    workers: int | None
    wait_ns: NDArray[np.int64]
    step_ns: NDArray[np.int64] | None
    """Element -1 where not measured; None without any."""
    ask_ns: NDArray[np.int64]
    rank: NDArray[np.int64] | None
    fetch_ns: NDArray[np.int64] | None
    """None unless every fetch was measured."""
    worker: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.wait_ns)


def finished(passes: Sequence[MeasuredPass]) -> list[MeasuredPass]:
    """Passes with deliveries that may be compared, in the order in which they ran."""
    kept = [p for p in passes if p.result.status == PassStatus.DONE and p.run.loaders]
    return sorted(kept, key=lambda p: p.result.number)


def stretches(one: MeasuredPass) -> list[Stretch]:
    """The deliveries of a pass by epoch, without its warm-up and the first round of each long enough epoch.

    The first waits fill the pipe whatever the shape is. A thinned trace has no gaps to count: it gives none.
    """
    trace = one.run.main
    if trace.sampled is not None:
        return []
    table = trace.deliveries
    wait, step = table["wait_ns"], table.get("step_ns")
    keep = np.ones(len(wait), dtype=bool)
    keep[: one.result.warmup] = False
    if (fast := table.get("fast_forward")) is not None:
        keep &= fast != 1
    ask = table.get("ask_ns")
    if ask is None:
        passed = wait + (np.maximum(step, 0) if step is not None else 0)
        ask = np.concatenate([[0], np.cumsum(passed)[:-1]])
    start, end = table.get("fetch_start_ns"), table.get("fetch_end_ns")
    fetch = None if start is None or end is None else np.where(start == MISSING, MISSING, end - start)
    group = table["iterator"].astype(np.int64) * (int(table["epoch"].max(initial=0)) + 1) + table["epoch"]
    round_length = max(1, trace.config.num_workers or 1)
    found = []
    for key in dict.fromkeys(group.tolist()):
        rows = np.flatnonzero((group == key) & keep)
        if len(rows) >= SPARE_ROUNDS * round_length:
            rows = rows[table["delivery"][rows] >= round_length]
        if not len(rows):
            continue
        fetches = None if fetch is None or (fetch[rows] < 0).any() else fetch[rows]
        rank, worker = table.get("rank"), table.get("worker")
        found.append(
            Stretch(
                workers=trace.config.num_workers,
                wait_ns=wait[rows],
                step_ns=None if step is None else step[rows],
                ask_ns=ask[rows],
                rank=None if rank is None else rank[rows],
                fetch_ns=fetches,
                worker=None if worker is None else worker[rows].astype(np.int64),
            )
        )
    return found


def known_steps(parts: Sequence[Stretch]) -> NDArray[np.int64]:
    """All measured steps."""
    steps = [p.step_ns[p.step_ns >= 0] for p in parts if p.step_ns is not None]
    return np.concatenate(steps) if steps else np.zeros(0, dtype=np.int64)


def arm_threshold_ns(parts: Sequence[Stretch]) -> int:
    """Wait above which a delivery is a stall, for a comparison: taken from one arm and used in both."""
    # The first wait of a short stretch may hold the start of the workers, which is no stall to measure by.
    waits = np.concatenate([p.wait_ns[1:] for p in parts]) if parts else np.zeros(0, dtype=np.int64)
    steps = known_steps(parts)
    floor = STALL_FLOOR_STEPS * float(np.median(steps)) if steps.size else 0.0
    return int(max(ARM_MASS_MARGIN * mass_cut_ns(waits, ARM_MASS_SHARE), floor))


def wait_share(parts: Sequence[Stretch]) -> float | None:
    """Share of the wall time spent waiting, in [0, 1]; None where steps were not measured."""
    waited = stepped = 0.0
    for part in parts:
        if part.step_ns is None:
            return None
        known = part.step_ns >= 0
        waited += float(part.wait_ns[known].sum())
        stepped += float(part.step_ns[known].sum())
    return waited / (waited + stepped) if waited + stepped > 0 else None


def batches_per_s(parts: Sequence[Stretch]) -> float | None:
    """Deliveries over waits and steps; None where steps were not measured."""
    count, total = 0, 0.0
    for part in parts:
        if part.step_ns is None:
            return None
        known = part.step_ns >= 0
        count += int(known.sum())
        total += float((part.wait_ns[known] + part.step_ns[known]).sum())
    return count / total * 1e9 if total > 0 else None


def fetch_cv(parts: Sequence[Stretch]) -> float | None:
    """Variation of the fetch times within workers, robust against slow ones; None without fetch times."""
    logs: list[NDArray[np.float64]] = []
    for part in parts:
        if part.fetch_ns is None or part.worker is None:
            continue
        for worker in np.unique(part.worker):
            mine = np.log(np.maximum(part.fetch_ns[part.worker == worker], 1))
            logs.append(mine - np.median(mine))
    if not logs or sum(map(len, logs)) < 8:
        return None
    low, high = np.quantile(np.concatenate(logs), [0.25, 0.75])
    # A normal distribution's quartiles are 1.349 standard deviations apart.
    return float((high - low) / 1.349)


def clopper_pearson(hits: int, n: int, level: float = CADENCE_LEVEL) -> tuple[float, float]:
    """Exact two-sided interval of a share; each end is a one-sided bound at ``(1 + level) / 2``."""
    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else float(special.betaincinv(hits, n - hits + 1, tail))
    high = 1.0 if hits == n else float(special.betaincinv(hits + 1, n - hits, 1 - tail))
    return low, high


def fisher_pooled(p_values: Sequence[float]) -> float:
    """One p-value for several independent ones (Fisher 1932)."""
    statistic = -2 * sum(math.log(max(p, 1e-300)) for p in p_values)
    return float(stats.chi2.sf(statistic, 2 * len(p_values)))


def cadence_of(parts: Sequence[Stretch], period: int, threshold_ns: int, settled: int = 0) -> ArmCadence:
    """Whether stalls recur at the period.

    Args:
        parts: The arm's stretches.
        period: Batches, at least 2.
        threshold_ns: Wait above which a delivery is a stall.
        settled: Deliveries at the start of each stretch that the verdict leaves out, because workers that
            began together were still in phase; the windows show them all the same.

    Returns:
        The verdict on all that is not left out, and under ``late`` that on the later half alone.
    """
    late = _cadence([part.wait_ns[max(settled, len(part) // 2) :] for part in parts], period, threshold_ns)
    return replace(
        _cadence([part.wait_ns[settled:] for part in parts], period, threshold_ns),
        windows=_windows(parts, period, threshold_ns),
        late=late,
    )


def _cadence(waits: Sequence[NDArray[np.int64]], period: int, threshold_ns: int) -> ArmCadence:
    multiples = gaps = stalls = places = again = open_ended = 0
    p_values: list[float] = []
    for wait_ns in waits:
        mask = wait_ns > threshold_ns
        at = np.flatnonzero(mask)
        stalls += len(at)
        apart = np.diff(at)
        gaps += len(apart)
        multiples += int((apart % period == 0).sum())
        places += len(mask)
        followed = mask[period:][mask[:-period]]
        open_ended += len(followed)
        again += int(followed.sum())
        if len(mask) >= MIN_ROUNDS * period and len(at):
            p_values.append(fit_period(at, len(mask), period).p_value)
    p_value = fisher_pooled(p_values) if p_values else None
    share, verdict = None, "undecided"
    if gaps:
        low, high = clopper_pearson(multiples, gaps)
        share = Estimate(multiples / gaps, low, high, CADENCE_LEVEL, gaps, "Clopper-Pearson")
        if low > CADENCE_SHARE and p_value is not None and p_value < CADENCE_P:
            verdict = "present"
        elif high < CADENCE_SHARE:
            verdict = "absent"
    found = ArmCadence(period, verdict, share, p_value, stalls, gaps)
    if not open_ended or verdict == "present":
        return found
    low, high = clopper_pearson(again, open_ended)
    again_p = tail_probability(again, open_ended, stalls, places)
    needed = max(CADENCE_SHARE, (chance := stalls / places) + AGAIN_ROOM * (1 - chance))
    found = replace(
        found,
        again=Estimate(again / open_ended, low, high, CADENCE_LEVEL, open_ended, "Clopper-Pearson"),
        again_p=again_p,
    )
    # A stretch of slow deliveries has stalls everywhere, a period later too: only the phase tells it apart.
    on_phase = p_value is not None and p_value < CADENCE_P
    if not (on_phase and again_p < CADENCE_P and high > needed):
        return found
    told = "present" if low > needed else "undecided"
    return replace(found, verdict=told, by_again=told != verdict)


def _windows(parts: Sequence[Stretch], period: int, threshold_ns: int) -> tuple[CadenceWindow, ...]:
    """The windows of all stretches, those over the same deliveries put together."""
    found: dict[tuple[int, int], list[WindowCadence]] = {}
    for part in parts:
        at = np.flatnonzero(part.wait_ns > threshold_ns)
        for w in cadence_by_window(at, len(part), period, WINDOW_ROUNDS):
            found.setdefault((w.start, w.stop), []).append(w)
    windows = []
    for (start, stop), seen in sorted(found.items()):
        gaps, open_ended = sum(w.gaps for w in seen), sum(w.open_ended for w in seen)
        equal = sum(w.gaps * w.gap_share for w in seen if w.gaps)
        windows.append(
            CadenceWindow(
                start,
                stop,
                gaps,
                equal / gaps if gaps else None,
                fisher_pooled([w.p_value for w in seen]),
                sum(w.again for w in seen) / open_ended if open_ended else None,
            )
        )
    return tuple(windows)


def overtaking_of(parts: Sequence[Stretch]) -> Overtaking | None:
    """How far delivery left the sampler's order; None when ranks were not recorded."""
    total = passed = overtook = 0
    moved: list[NDArray[np.int64]] = []
    for part in parts:
        if part.rank is None:
            return None
        rank = part.rank
        total += len(rank)
        before = np.maximum.accumulate(rank)
        after = np.minimum.accumulate(rank[::-1])[::-1]
        passed += int((rank[1:] < before[:-1]).sum())
        overtook += int((rank[:-1] > after[1:]).sum())
        # Ranks may have holes (a shard's end), so a batch's place is that among the ranks that came.
        place = np.empty(len(rank), dtype=np.int64)
        place[np.argsort(rank, kind="stable")] = np.arange(len(rank))
        away = np.abs(place - np.arange(len(rank)))
        moved.append(away[away > 0])
    if not moved:
        return None
    out = np.concatenate(moved)
    return Overtaking(
        total, passed, overtook, int(out.max(initial=0)), float(out.mean()) if out.size else 0.0
    )


def spread_over_passes(values: Sequence[float], level: float = 0.95) -> Estimate:
    """Mean over passes with a t interval; one pass has no interval."""
    n = len(values)
    mean = float(np.mean(values)) if n else math.nan
    if n < 2:
        return Estimate(mean, n=n, method="one pass: no valid interval")
    half = float(stats.t.ppf((1 + level) / 2, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
    # With two passes the interval is wide; what it is taken of is not negative.
    return Estimate(mean, max(0.0, mean - half), mean + half, level, n, "t interval over passes")


def summarise_arm(
    name: str, passes: Sequence[MeasuredPass], threshold_ns: int, period: int | None, settled: int = 0
) -> ArmSummary:
    """One arm in numbers; ``period`` None leaves the cadence out."""
    by_pass = [parts for parts in (stretches(p) for p in passes) if parts]
    parts = [part for one in by_pass for part in one]
    waits = [np.concatenate([part.wait_ns for part in one]) for one in by_pass]
    pooled = np.concatenate(waits) if waits else np.zeros(0, dtype=np.int64)
    stalled = pooled > threshold_ns
    return ArmSummary(
        name=name,
        passes=len(by_pass),
        deliveries=len(pooled),
        num_workers=parts[0].workers if parts else None,
        mean_wait_ns=spread_over_passes([float(w.mean()) for w in waits]),
        median_wait_ns=float(np.median(pooled)) if pooled.size else math.nan,
        p95_wait_ns=spread_over_passes([float(np.quantile(w, 0.95)) for w in waits]),
        batches_per_s=batches_per_s(parts),
        stalls=int(stalled.sum()),
        stall_share=float(stalled.mean()) if pooled.size else 0.0,
        stall_wait_ns=float(pooled[stalled].mean()) if stalled.any() else None,
        fetch_cv=fetch_cv(parts),
        cadence=None if period is None else cadence_of(parts, period, threshold_ns, settled),
        overtaking=overtaking_of(parts),
    )


def host_load(run: Run) -> dict[str, float]:
    """What the host did during a run: shares of time or cores; only what was measured."""
    host = run.host
    if len(host) < 2:
        return {}
    time = host.get("time_ns")
    span = float(time[-1] - time[0]) if time is not None else 0.0
    if span <= 0:
        return {}

    def grown(name: str) -> float | None:
        column = host.get(name)
        if column is None:
            return None
        known = column[column >= 0]
        return float(known[-1] - known[0]) if len(known) >= 2 else None

    load: dict[str, float] = {}
    cpus = run.environment.cpus_online
    steal, busy, own = grown("cpu_steal_ns"), grown("cpu_busy_ns"), grown("own_cpu_ns")
    if steal is not None and cpus:
        load["steal_share"] = steal / (span * cpus)
    if busy is not None and own is not None:
        load["others_cores"] = max(0.0, busy - own) / span
    for kind in ("cpu", "io", "memory"):
        pressure = grown(f"pressure_{kind}_ns")
        if pressure is not None:
            load[f"pressure_{kind}_share"] = pressure / span
    return load


def disturbances(passes: Sequence[MeasuredPass]) -> tuple[Disturbance, ...]:
    """Passes during which the host was busy with something else.

    That is steal, CPU used by other processes, or more pressure than other passes of the condition had.
    """
    loads = [host_load(p.run) for p in passes]
    found = []
    for one, load in zip(passes, loads, strict=True):
        reasons = []
        if load.get("steal_share", 0.0) > STEAL_SHARE:
            reasons.append(f"{percent(load['steal_share'])} of the CPU time was stolen by the hypervisor")
        usable = one.run.environment.cpus_usable
        others = load.get("others_cores", 0.0)
        if usable and others > OTHERS_SHARE * usable:
            reasons.append(f"other processes used {others:.2g} of {usable:.3g} CPUs")
        for kind in ("cpu", "io", "memory"):
            name = f"pressure_{kind}_share"
            same = [
                other[name]
                for p, other in zip(passes, loads, strict=True)
                if p.condition.name == one.condition.name and p is not one and name in other
            ]
            if name in load and same and load[name] > min(same) + PRESSURE_EXCESS:
                reasons.append(
                    f"{kind} pressure was {percent(load[name])} of the time, "
                    f"{percent(min(same))} in another pass of this condition"
                )
        if reasons:
            found.append(Disturbance(one.condition.name, one.result.number, "; ".join(reasons), load))
    return tuple(found)
