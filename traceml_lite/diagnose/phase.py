"""Do workers run in phase? And do they fetch alike? Pure functions on measured passes.

A share of gaps equal to num_workers does not answer the first: it depends on the threshold of a stall, and
free-running workers of one speed repeat any pattern of waits each round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceml_lite.diagnose.words import percent
from traceml_lite.records.sweep import MeasuredPass, PhaseLock

Passes = Sequence[MeasuredPass]


# Workers whose medians are within this factor, and at most this share of fetches that stand out, are alike.
ALIKE_FACTOR, ALIKE_SHARE = 1.5, 0.02


# Workers of a variation cv stay in phase for about (PHASE_MEMORY / cv)^2 rounds; simulated from 1 % to 30 %.
PHASE_MEMORY, MIN_CV = 0.3, 0.005


# Below this many rounds the share of their largest waits is no mean of anything.
MIN_ROUNDS = 8


# A batch is slow from this multiple of the median fetch on, and from half of the smallest of those that make
# up half of all time beyond the median; below, jitter makes it.
SLOW_FACTOR, SLOW_MASS = 3.0, 0.5


# A pool has lost its phase when half of its lock is gone, in every pass: what is left of the cadence is that
# workers of equal speed repeat any pattern every round.
LOCK_LOST = 0.5


def lock_words(lock: PhaseLock) -> str:
    """Both shares, and what chance would give."""
    return (
        f"the largest wait of a round carries {percent(lock.base)} of its waiting against "
        f"{percent(lock.changed)} (in phase 100 %, at random phases {percent(lock.chance)})"
    )


def phase_lock(base: Passes, changed: Passes, *, cv: float | None = None) -> PhaseLock | None:
    """How far both arms run in phase; None with fewer than two workers, or too few rounds.

    A share of gaps depends on the threshold of a stall; this does not.

    Args:
        base: Passes of one arm.
        changed: Passes of the other.
        cv: Variation of the fetch times: the rounds in which workers that began together stay together by
            themselves are then left out, at most half of a pass. None looks at all.
    """
    workers = base[0].run.main.config.num_workers or 0
    shares = [
        [share for one in arm if (share := _burst(one, phase_memory(workers, cv))) is not None]
        for arm in (base, changed)
    ]
    if workers < 2 or not shares[0] or not shares[1]:
        return None
    chance = sum(1 / place for place in range(1, workers + 1)) / workers
    locked, left = ((float(np.mean(arm)) - chance) / (1 - chance) for arm in shares)
    lost = left <= LOCK_LOST * locked and locked > 0 and min(shares[0]) > max(shares[1])
    return PhaseLock(float(np.mean(shares[0])), float(np.mean(shares[1])), chance, lost)


def phase_memory(workers: int, cv: float | None) -> int:
    """Deliveries after which workers of this variation have lost the phase they began with; 0 if unknown."""
    return 0 if cv is None else math.ceil((PHASE_MEMORY / max(cv, MIN_CV)) ** 2) * workers


def _burst(one: MeasuredPass, skip: int) -> float | None:
    """Share of the waiting that the largest wait of each round of W deliveries carries."""
    workers = one.run.main.config.num_workers or 0
    waits = one.run.main.deliveries["wait_ns"][one.result.warmup :]
    waits = waits[min(skip, len(waits) // 2) :]
    rounds = len(waits) // workers if workers else 0
    if rounds < MIN_ROUNDS:
        return None
    by_round = waits[: rounds * workers].reshape(rounds, workers)
    total = float(by_round.sum())
    return float(by_round.max(axis=1).sum()) / total if total else None


def fetches_alike(passes: Passes) -> bool:
    """Whether all workers fetch alike and no fetch stands out; False where fetches were not seen."""
    slow = total = 0
    for one in passes:
        table = one.run.main.deliveries
        start, end, worker = table.get("fetch_start_ns"), table.get("fetch_end_ns"), table.get("worker")
        if start is None or end is None or worker is None:
            return False
        known = (start >= 0) & (end > start) & (np.arange(len(start)) >= one.result.warmup)
        length, by = (end - start)[known], worker[known]
        if not len(length):
            return False
        medians = [float(np.median(length[by == which])) for which in np.unique(by)]
        if max(medians) > ALIKE_FACTOR * min(medians):
            return False
        slow += int((length > SLOW_FACTOR * np.median(length)).sum())
        total += len(length)
    return slow <= ALIKE_SHARE * total


def slow_fetches(length: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The batches that make most of what goes beyond the median: a busy host's jitter is none of them."""
    median = float(np.median(length))
    excess = np.sort(np.maximum(length - median, 0.0))[::-1]
    if excess[0] == 0.0:
        return np.zeros(len(length), dtype=bool)
    smallest = excess[int(np.searchsorted(np.cumsum(excess), SLOW_MASS * excess.sum()))]
    slow: NDArray[np.bool_] = length > max(SLOW_FACTOR * median, median + smallest / 2)
    return slow
