"""What a control's passes answer: one key and one sentence with its numbers. Pure, on measured passes.

The comparison of arms is ``diagnose.compare``'s; here it is read in the light of the control's question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from traceml_lite.diagnose.compare import MIN_CLAIM_DELIVERIES, compare_arms
from traceml_lite.diagnose.phase import Passes, fetches_alike, lock_words, slow_fetches
from traceml_lite.diagnose.words import percent
from traceml_lite.experiment.control import CEILING_BATCHES, CONTROLS
from traceml_lite.records.run import Table
from traceml_lite.records.sweep import ArmComparison, ControlAnswer, MeasuredPass

# What everybody tries first has some 16 deliveries an arm; what that would have said stands beside the rest.
SHORT_DELIVERIES = 16
# Stalls have fallen away when less than half of the waiting is left; a pool that is too small keeps it all.
FALLEN_AWAY = 0.5
# A second round this much faster speaks for a cache; two rounds on one host differ by some 10 %.
WARM_RATIO = 0.8
# Below this gain the step is the limit: a ceiling is a best case.
CEILING_GAIN = 1.05
# Zeros that leave this share of the waiting: the host's; less than the second: the data set's.
HOST_SHARE, DATA_SHARE = 0.5, 0.1


def answer_control(
    name: str, base: Passes, changed: Passes, comparison: ArmComparison | None
) -> ControlAnswer:
    """What one control says.

    Args:
        name: The control.
        base: Passes of the arm beside it; empty where none finished.
        changed: Passes of the control's own arm, at least one.
        comparison: Base against control; None where the control has no arm to be compared with.
    """
    answer = _ANSWERS[name](base, changed, comparison)
    return replace(answer, control=name, reason=CONTROLS[name].reason)


def _answer(key: str, statement: str, **numbers: float) -> ControlAnswer:
    return ControlAnswer(control="", key=key, statement=statement, reason="", numbers=numbers)


def _no_base(base: Passes, comparison: ArmComparison | None) -> ControlAnswer | None:
    if comparison is None or not base:
        return _answer("undecided", "no pass of the arm beside it finished, so there is nothing to compare")
    return None


def _in_order(base: Passes, changed: Passes, comparison: ArmComparison | None) -> ControlAnswer:
    missing = _no_base(base, comparison)
    if missing is not None or comparison is None:
        return missing or _answer("undecided", "")
    claim, difference = comparison.cadence, comparison.difference
    ratio, left = difference.ratio.value, _stall_ratio(comparison)
    numbers = {"wait_ratio": ratio, "stall_ratio": left}
    lock = comparison.lock
    if lock is not None:
        numbers |= {"burst": lock.base, "burst_changed": lock.changed, "burst_chance": lock.chance}
    long = claim.deliveries if claim is not None else min(one.result.deliveries for one in changed)
    if ratio <= FALLEN_AWAY and (difference.ratio.high is None or difference.ratio.high < 1):
        answer = _answer(
            "stalls_fall_away",
            f"without order the mean wait is {ratio:.2g} of what it was and stalls are {left:.2g} as "
            "frequent: finished batches were held back behind a late one (one slow worker, or heavy "
            "samples); the pool as a whole keeps up",
            **numbers,
        )
    elif claim is None or claim.key == "no_cadence":
        if difference.equivalent and np.isfinite(ratio) and left >= FALLEN_AWAY:
            answer = _answer(
                "wait_stays",
                f"without order the mean wait is the same (ratio {ratio:.3g}) and stalls are {left:.2g} as "
                "frequent: no finished batch is held back, so order does not make the wait. The ordered arm "
                "shows no cadence that could stay or go",
                **numbers,
            )
        else:
            answer = _answer("undecided", "the ordered arm shows no cadence that could stay or go", **numbers)
    elif lock is not None and lock.lost and difference.equivalent and long >= MIN_CLAIM_DELIVERIES:
        answer = _answer(
            "cadence_gone",
            f"over {long} deliveries the pool loses its phase without order: {lock_words(lock)}. The mean "
            f"wait is the same (ratio {ratio:.3g}), so the pool is as slow; order keeps the workers in phase "
            "and does not make them wait",
            **numbers,
        )
    elif claim.key == "survived":
        answer = _answer(
            "cadence_stays",
            f"the cadence stays without order at {long} deliveries (mean wait {ratio:.2g} of the ordered "
            "arm's): order does not make it" + ("" if lock is None else f". By round, {lock_words(lock)}"),
            **numbers,
        )
    elif claim.key == "gone":
        same = "the mean wait is the same, so the pool is as slow" if difference.equivalent else ""
        answer = _answer(
            "cadence_gone",
            f"over {long} deliveries the cadence goes without order"
            + (f", but {same}; order keeps the workers in phase, it does not make them wait" if same else ""),
            **numbers,
        )
    elif difference.equivalent and left >= FALLEN_AWAY:
        answer = _answer(
            "stalls_stay",
            f"without order the mean wait is the same (ratio {ratio:.3g}) and stalls are {left:.2g} as "
            "frequent: no finished batch is held back, the pool as a whole is slower than the loop. Whether "
            f"the cadence would last is another question: {claim.statement}",
            **numbers,
        )
    elif (low := difference.ratio.low) is not None and low >= FALLEN_AWAY and left >= FALLEN_AWAY:
        most = "none" if low >= 1 else f"at most {percent(1 - low)}"
        answer = _answer(
            "stalls_stay",
            f"without order the mean wait is {ratio:.2g} of what it was (at least {low:.2g}, at 90 %) and "
            f"stalls are {left:.2g} as frequent: order makes {most} of the waiting, the pool as a whole is "
            f"slower than the loop. Whether the cadence would last is another question: {claim.statement}",
            **numbers,
        )
    else:
        answer = _answer("undecided", claim.statement, **numbers)
    return replace(answer, short=_short(base, changed))


def _stagger(base: Passes, changed: Passes, comparison: ArmComparison | None) -> ControlAnswer:
    missing = _no_base(base, comparison)
    if missing is not None or comparison is None:
        return missing or _answer("undecided", "")
    claim, difference = comparison.cadence, comparison.difference
    ratio = difference.ratio.value
    numbers = {"wait_ratio": ratio, "stall_ratio": _stall_ratio(comparison)}
    if claim is None or claim.key == "no_cadence":
        return _answer("undecided", "the arm beside it shows no cadence that could go", **numbers)
    lock = comparison.lock
    if lock is not None:
        numbers |= {"burst": lock.base, "burst_changed": lock.changed, "burst_chance": lock.chance}
    if lock is not None and lock.lost and difference.equivalent:
        return _answer(
            "cadence_gone",
            f"with shifted starts the cadence goes at an equal mean wait (ratio {ratio:.3g}): "
            f"{lock_words(lock)}. A pool too slow for the loop, whose workers ran in phase",
            **numbers,
        )
    if claim.key == "gone" and difference.equivalent is not False:
        same = "at an equal mean wait" if difference.equivalent else f"at {ratio:.2g} of the mean wait"
        return _answer(
            "cadence_gone",
            f"with shifted starts the cadence goes {same}: a pool too slow for the loop, whose workers ran "
            "in phase",
            **numbers,
        )
    if claim.key == "survived" and fetches_alike(base):
        return _answer(
            "undecided",
            "the cadence is still there, but fetches are alike in all workers, which leaves phase as its "
            "only cause: their starts were too uneven on this host, or order has pulled them together again",
            **numbers,
        )
    if claim.key == "survived":
        return _answer(
            "cadence_stays",
            "the cadence stays though the workers start apart: one worker or the data makes it, not phase",
            **numbers,
        )
    return _answer("undecided", claim.statement, **numbers)


def _ceiling(base: Passes, changed: Passes, comparison: ArmComparison | None) -> ControlAnswer:
    now = _deliveries_per_s(base)
    most = _deliveries_per_s(changed, skip=CEILING_BATCHES)
    if now is None or most is None:
        return _answer("undecided", "too few deliveries after the cached ones to tell a pace")
    steps = [_median(one.run.main.deliveries, "step_ns", 0) for one in base]
    idle = [_median(one.run.main.deliveries, "step_ns", CEILING_BATCHES) for one in changed]
    numbers = {"per_s": now, "ceiling_per_s": most, "gain": most / now}
    text = f"{most:.3g} deliveries/s with batches from memory against {now:.3g} as it is"
    busy = [value for value in steps if value is not None]
    alone = [value for value in idle if value is not None]
    if busy and alone and min(alone) > 0:
        numbers["step_ratio"] = float(np.median(busy) / np.median(alone))
    if most / now < CEILING_GAIN:
        return _answer("ceiling", f"{text}: nothing to win, the step is the limit", **numbers)
    text += f": at most {most / now:.3g} times as fast"
    if numbers.get("step_ratio", 1.0) > 1 / FALLEN_AWAY**0.5:
        text += (
            f". The step itself is {numbers['step_ratio']:.2g} times as long beside the workers: they take "
            "its CPU"
        )
    return _answer("ceiling", text, **numbers)


def _repeat(base: Passes, changed: Passes, comparison: ArmComparison | None) -> ControlAnswer:
    rounds = [pair for pair in map(_two_rounds, changed) if pair is not None]
    if not rounds:
        return _answer("undecided", "fetch times of both rounds were not recorded")
    first = np.concatenate([pair[0] for pair in rounds])
    second = np.concatenate([pair[1] for pair in rounds])
    ratio = float(np.exp(np.median(np.log(second / first))))
    slow_first, slow_second = slow_fetches(first), slow_fetches(second)
    both = int((slow_first & slow_second).sum())
    numbers = {
        "second_over_first": ratio,
        "ranks": float(len(first)),
        "slow_first": float(slow_first.sum()),
        "slow_second": float(slow_second.sum()),
        "slow_both": float(both),
    }
    warm = (
        f"the second time a fetch takes {ratio:.2g} of the first"
        if ratio <= WARM_RATIO
        else f"the second time is as slow (ratio {ratio:.2g})"
    )
    if slow_first.any() and slow_second.any():
        chance = float(
            stats.hypergeom.sf(both - 1, len(first), int(slow_first.sum()), int(slow_second.sum()))
        )
        numbers["chance"] = chance
        listed = f"{both} of {int(slow_first.sum())} slow ranks are slow again (by chance: p = {chance:.2g})"
        if chance < 0.01 and both >= 0.5 * slow_first.sum():
            return _answer("same_ranks", f"{warm}; {listed}: the samples make them slow", **numbers)
        if chance > 0.05:
            return _answer("other_ranks", f"{warm}; {listed}: not the samples", **numbers)
        return _answer("undecided", f"{warm}; {listed}", **numbers)
    if ratio <= WARM_RATIO:
        return _answer("faster", f"{warm}: what is read the first time is in memory the second", **numbers)
    if slow_first.any():
        text = f"{warm}; none of {int(slow_first.sum())} slow ranks is slow again: not the samples"
        return _answer("other_ranks", text, **numbers)
    return _answer("no_difference", f"{warm}, and no rank is slow in either round", **numbers)


def _trivial(base: Passes, changed: Passes, comparison: ArmComparison | None) -> ControlAnswer:
    missing = _no_base(base, comparison)
    if missing is not None or comparison is None:
        return missing or _answer("undecided", "")
    before, after = comparison.a.mean_wait_ns.value, comparison.b.mean_wait_ns.value
    share = after / before if before > 0 else float("nan")
    numbers = {"share_left": share, "wait_ns": after}
    text = f"with zeros instead of data {percent(share)} of the mean wait is left"
    if not before > 0:
        return _answer("undecided", "there is no waiting to explain", **numbers)
    if share >= HOST_SHARE:
        return _answer(
            "slower", f"{text}: the host or the delivery is slow, whatever the data set", **numbers
        )
    if share <= DATA_SHARE:
        return _answer("faster", f"{text}: the data set makes the wait, the host does not", **numbers)
    return _answer("undecided", f"{text}: both have a part", **numbers)


def _difference(base: Passes, changed: Passes, comparison: ArmComparison | None) -> ControlAnswer:
    missing = _no_base(base, comparison)
    if missing is not None or comparison is None:
        return missing or _answer("undecided", "")
    difference = comparison.difference
    key = "undecided"
    if difference.different:
        key = "faster" if difference.ratio.value < 1 else "slower"
    elif difference.equivalent:
        key = "no_difference"
    return _answer(key, difference.statement, wait_ratio=difference.ratio.value)


def _persistent(base: Passes, changed: Passes, comparison: ArmComparison | None) -> ControlAnswer:
    before, after = _boundary_s(base), _boundary_s(changed)
    if before is None or after is None:
        return _answer("undecided", "no epoch boundary fell into the passes of both arms")
    numbers = {"boundary_s": before, "persistent_boundary_s": after, "ratio": after / before}
    text = f"an epoch's start takes {after:.3g} s with persistent workers, {before:.3g} s without"
    if after <= FALLEN_AWAY * before:
        return _answer("faster", f"{text}: starting workers is what it costs", **numbers)
    if after >= WARM_RATIO * before:
        return _answer(
            "no_difference", f"{text}: the first fetches make it, not the workers' start", **numbers
        )
    return _answer("undecided", text, **numbers)


_ANSWERS: dict[str, Callable[[Passes, Passes, ArmComparison | None], ControlAnswer]] = {
    "in_order": _in_order,
    "stagger": _stagger,
    "ceiling": _ceiling,
    "repeat": _repeat,
    "trivial": _trivial,
    "threads": _difference,
    "pin": _difference,
    "persistent": _persistent,
}


def _short(base: Passes, changed: Passes) -> str:
    """What the first few deliveries of the same passes would have claimed."""
    short = compare_arms([_cut(one) for one in base], [_cut(one) for one in changed]).cadence
    if short is None:
        return ""
    claimed = short.short_claim or short.key
    return f"{SHORT_DELIVERIES} deliveries per pass would have said: {claimed}"


def _cut(one: MeasuredPass) -> MeasuredPass:
    trace = one.run.main
    table = trace.deliveries.take(np.arange(min(len(trace.deliveries), SHORT_DELIVERIES)))
    run = replace(one.run, loaders=(replace(trace, deliveries=table, delivered=len(table)),))
    result = replace(one.result, deliveries=len(table), warmup=0)
    return MeasuredPass(one.condition, result, run)


def _stall_ratio(comparison: ArmComparison) -> float:
    a, b = comparison.a.stall_share, comparison.b.stall_share
    return b / a if a else float("nan")


def _deliveries_per_s(passes: Passes, skip: int | None = None) -> float | None:
    """Deliveries per second of wait and step after the warm-up, over all passes."""
    total_ns, count = 0, 0
    for one in passes:
        table = one.run.main.deliveries
        start = one.result.warmup if skip is None else skip
        wait, step = table["wait_ns"][start:], table.get("step_ns")
        if step is None:
            return None
        known = step[start:] >= 0
        total_ns += int(wait[known].sum() + step[start:][known].sum())
        count += int(known.sum())
    return count * 1e9 / total_ns if count and total_ns else None


def _median(table: Table, name: str, skip: int) -> float | None:
    column = table.get(name)
    known = column[skip:][column[skip:] >= 0] if column is not None else None
    return float(np.median(known)) if known is not None and len(known) else None


def _two_rounds(one: MeasuredPass) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Fetch times of the same ranks in the first and in the second round."""
    table = one.run.main.deliveries
    start, end = table.get("fetch_start_ns"), table.get("fetch_end_ns")
    total = one.result.deliveries
    if start is None or end is None or total < 2:
        return None
    half = total // 2
    length = np.full(total, np.nan)
    rank = table["rank"]
    known = (start >= 0) & (end > start) & (rank >= 0) & (rank < total)
    length[rank[known]] = (end - start)[known]
    first, second = length[:half], length[half : 2 * half]
    both = np.isfinite(first) & np.isfinite(second)
    return (first[both], second[both]) if both.any() else None


def _boundary_s(passes: Passes) -> float | None:
    """Median time from a later epoch's iter() to its first batch."""
    found = []
    for one in passes:
        trace = one.run.main
        table = trace.deliveries
        begun = {
            event.data.get("epoch"): event.data.get("iter_ns", 0)
            for event in trace.events
            if event.kind == "epoch_start"
        }
        for epoch in np.unique(table["epoch"])[1:]:
            first = int(np.argmax(table["epoch"] == epoch))
            found.append(float(table["wait_ns"][first] + begun.get(int(epoch), 0)) / 1e9)
    return float(np.median(found)) if found else None
