"""Two arms side by side: is the mean wait different, is it the same, and does the cadence survive?

Difference and equivalence are two questions with two answers; "not shown to differ" is neither. A claim about
a cadence under another ``in_order`` needs a run long enough that workers which began together have lost
their phase, and is refused before. Runs that differ in more than the condition are refused, unless the caller
allows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from traceml_lite._errors import ComparisonError
from traceml_lite.diagnose.arms import (
    CADENCE_P,
    arm_threshold_ns,
    disturbances,
    fetch_cv,
    finished,
    stretches,
    summarise_arm,
    wait_share,
)
from traceml_lite.diagnose.likeness import UnlikeError, named_differences, unlike_arms
from traceml_lite.diagnose.phase import lock_words, phase_lock, phase_memory
from traceml_lite.diagnose.words import counted, digits, listed, percent
from traceml_lite.records.results import Estimate
from traceml_lite.records.sweep import (
    ArmCadence,
    ArmComparison,
    ArmSummary,
    CadenceClaim,
    Difference,
    MeasuredPass,
    PhaseLock,
)

# Arms count as equivalent within a fifth: passes of one setting on one host, minutes apart, differ as much.
DEFAULT_MARGIN = 0.2
# A difference is shown at 5 %, two-sided; equivalence by two one-sided tests at 5 %, so with a 90 % interval.
DIFFERENCE_P, EQUIVALENCE_LEVEL = 0.05, 0.90
# Mean waits of one setting were seen to differ by two from run to run on a shared host. A ratio of more than
# the square of that is a difference even between one run of each.
BEYOND_REPEATS = 4.0
# It must hold without the longest waits, too: a few rare stalls fall into one run and not into the other.
RARE_SHARE = 0.05
# Chance of showing a difference that is there, in the number of pairs asked for.
POWER = 0.8
# More repeats than this nobody runs; the answer is then that it cannot be shown.
MAX_PAIRS = 1000
# Both arms below this share of waiting: there is nothing to compare.
NO_WAIT_SHARE = 0.02
# An in_order control needs this many deliveries per pass before the start in phase no longer decides, counted
# after those in which workers of equal fetches stay in phase (``phase_memory``).
MIN_CLAIM_DELIVERIES, MIN_CLAIM_ROUNDS = 200, 50
# Fewer stalls than this share of the other arm's have fallen away: no cadence is left to speak of.
FALLEN_AWAY = 0.2


def compare_arms(
    a: Sequence[MeasuredPass],
    b: Sequence[MeasuredPass],
    *,
    margin: float = DEFAULT_MARGIN,
    stall_ns: int | None = None,
    allow_different: bool = False,
) -> ArmComparison:
    """Compare two conditions of one experiment.

    Args:
        a: Passes of arm A, the reference: its waits set the stall threshold of both.
        b: Passes of arm B. The i-th pass of A in the order of running is paired with the i-th of B.
        margin: Ratios of mean wait within ``[1 - margin, 1 / (1 - margin)]`` count as the same, as in trials
            of bioequivalence (0.80 to 1.25).
        stall_ns: Wait above which a delivery is a stall; None takes it from arm A.
        allow_different: Compare runs that differ in more than the condition, and name the differences.

    Returns:
        Both arms in numbers, the difference of their mean waits, and what can be claimed about the cadence.

    Raises:
        ComparisonError: An arm has no usable pass.
        UnlikeError: The arms are unlike and ``allow_different`` is False.
        ValueError: ``margin`` does not lie between 0 and 1.
    """
    if not 0 < margin < 1:
        raise ValueError(f"margin: expected a share between 0 and 1, got {margin}")
    names = [arm[0].condition.name if arm else letter for letter, arm in (("A", a), ("B", b))]
    a, b = finished(a), finished(b)
    for name, arm in zip(names, (a, b), strict=True):
        if not any(stretches(p) for p in arm):
            raise ComparisonError(f"{name} has no finished pass with steady deliveries to compare")
    unlike = unlike_arms(a, b)
    if unlike and not allow_different:
        raise UnlikeError(unlike)
    parts_a, parts_b = ([part for p in arm for part in stretches(p)] for arm in (a, b))
    threshold = arm_threshold_ns(parts_a) if stall_ns is None else stall_ns
    workers = parts_a[0].workers
    same_workers = workers is not None and workers == parts_b[0].workers
    period = workers if same_workers and workers and workers >= 2 else None
    cvs = [cv for parts in (parts_a, parts_b) if (cv := fetch_cv(parts)) is not None]
    cv = min(cvs) if cvs else None
    control = period is not None and _in_order(a) != _in_order(b)
    shortest = min(len(part) for part in parts_a + parts_b)
    needed = claim_deliveries(period, cv) if period is not None and control else 0
    settled = phase_memory(period, cv) if period is not None and control and shortest >= needed else 0
    summary_a = summarise_arm(a[0].condition.name, a, threshold, period, settled)
    summary_b = summarise_arm(b[0].condition.name, b, threshold, period, settled)
    difference = _difference(a, b, margin)
    lock = None if period is None else phase_lock(a, b, cv=summary_a.fetch_cv if control else None)
    claim = None
    if summary_a.cadence is not None and summary_b.cadence is not None:
        lost = lock if lock is not None and lock.lost and difference.equivalent else None
        claim = _claim(summary_a, summary_b, control, cv, shortest, needed, lost)
    return ArmComparison(
        a=summary_a,
        b=summary_b,
        threshold_ns=threshold,
        difference=difference,
        cadence=claim,
        lock=lock,
        disturbed=disturbances([*a, *b]),
        unlike=tuple(unlike),
        notes=named_differences(a, b),
    )


def compare_sweeps(
    a: Sequence[MeasuredPass],
    b: Sequence[MeasuredPass],
    *,
    margin: float = DEFAULT_MARGIN,
    stall_ns: int | None = None,
    allow_different: bool = False,
) -> tuple[ArmComparison, ...]:
    """Compare the conditions that two sweeps have in common, in the order of the first.

    Raises:
        ComparisonError: No condition is in both, or conditions are unlike; see ``compare_arms``.
    """
    arms_a, arms_b = ({p.condition.name: p.condition for p in finished(s)} for s in (a, b))
    common = [name for name in arms_a if name in arms_b]
    if not common:
        raise ComparisonError(
            f"the sweeps have no condition in common: {listed(list(arms_a))} in one, "
            f"{listed(list(arms_b))} in the other"
        )
    return tuple(
        compare_arms(
            [p for p in a if p.condition.name == name],
            [p for p in b if p.condition.name == name],
            margin=margin,
            stall_ns=stall_ns,
            allow_different=allow_different,
        )
        for name in common
    )


def claim_deliveries(workers: int, cv: float | None) -> int:
    """Deliveries per pass before a claim about the cadence under another ``in_order`` may be made.

    Args:
        workers: num_workers, at least 2.
        cv: Variation of the fetch times within workers; None when it is not known.
    """
    return max(MIN_CLAIM_DELIVERIES, MIN_CLAIM_ROUNDS * workers + phase_memory(workers, cv))


def _in_order(arm: Sequence[MeasuredPass]) -> bool | None:
    return arm[0].run.main.config.in_order


# -- the mean wait ---------------------------------------------------------------------------------------


def _difference(a: Sequence[MeasuredPass], b: Sequence[MeasuredPass], margin: float) -> Difference:
    names = _called(a[0].condition.name, b[0].condition.name)
    means = [[_mean_wait(p) for p in arm if stretches(p)] for arm in (a, b)]
    parts = [[part for p in arm for part in stretches(p)] for arm in (a, b)]
    pairs = min(len(m) for m in means)
    shares = [wait_share(p) for p in parts]
    if all(share is not None and share < NO_WAIT_SHARE for share in shares):
        ratio = Estimate(math.nan, n=pairs, method="neither arm waits")
        return Difference(
            ratio,
            None,
            False,
            True,
            margin,
            pairs,
            None,
            f"Neither {names[0]} nor {names[1]} waits: nothing to compare.",
        )
    # A microsecond is below what a clock around next() resolves, and keeps an arm without waits comparable.
    logs = np.log(
        [max(y, 1e3) / max(x, 1e3) for x, y in zip(means[0][:pairs], means[1][:pairs], strict=True)]
    )
    mean = float(logs.mean())
    if pairs < 2:
        first, second = (next(p for p in arm if stretches(p)) for arm in (a, b))
        # Waits that are nothing beside a step are the price of a queue get, and the host's.
        floor_ns = max(1e3, NO_WAIT_SHARE * max(_median_step_ns(first), _median_step_ns(second)))
        common = math.log(
            max(_mean_wait(second, RARE_SHARE), floor_ns) / max(_mean_wait(first, RARE_SHARE), floor_ns)
        )
        return _of_one_pair(mean, common, names, margin)
    error = float(logs.std(ddof=1)) / math.sqrt(pairs)
    if error == 0:
        # Equal to the digit in every pair: made-up runs; no test has a meaning.
        p_value = 1.0 if mean == 0 else 0.0
    else:
        p_value = float(2 * stats.t.sf(abs(mean) / error, pairs - 1))
    half = float(stats.t.ppf((1 + EQUIVALENCE_LEVEL) / 2, pairs - 1)) * error
    low, high, edge = mean - half, mean + half, -math.log1p(-margin)
    equivalent = True if -edge < low and high < edge else False if low > edge or high < -edge else None
    different = p_value < DIFFERENCE_P
    needed = None if different else _pairs_needed(abs(mean), float(logs.std(ddof=1)))
    ratio = Estimate(
        math.exp(mean), math.exp(low), math.exp(high), EQUIVALENCE_LEVEL, pairs, "paired t on log ratios"
    )
    statement = _difference_statement(names, ratio, p_value, different, equivalent, margin, needed)
    return Difference(ratio, p_value, different, equivalent, margin, pairs, needed, statement)


def _of_one_pair(log_ratio: float, common: float, names: tuple[str, str], margin: float) -> Difference:
    """The difference of one run of each, which has no interval; only a very large one can be told from it.

    Args:
        log_ratio: Of the mean waits.
        common: The same without the longest waits.
        names: Of the arms.
        margin: Of equivalence.
    """
    head = f"Mean wait {_change(math.exp(log_ratio), *names)}, from one run of each"
    edge = math.log(BEYOND_REPEATS)
    far = abs(log_ratio) > edge and abs(common) > edge and log_ratio * common > 0
    if far:
        statement = (
            f"{head}: it differs, by more than runs of one setting were seen to (2 times on a shared host). "
            "How much is the setting's own takes a repeat of both."
        )
    else:
        statement = (
            f"{head}: runs of one setting differ as well, so neither a difference nor equality is shown. "
            "Repeat both at least once."
        )
    ratio = Estimate(math.exp(log_ratio), n=1, method="one pair: no valid interval")
    return Difference(ratio, None, True if far else None, False if far else None, margin, 1, None, statement)


def _mean_wait(one: MeasuredPass, without: float = 0.0) -> float:
    waits = np.sort(np.concatenate([part.wait_ns for part in stretches(one)]))
    return float(waits[: max(1, len(waits) - math.ceil(without * len(waits)))].mean())


def _median_step_ns(one: MeasuredPass) -> float:
    """Median step; 0 where none was measured."""
    steps = [part.step_ns[part.step_ns >= 0] for part in stretches(one) if part.step_ns is not None]
    known = np.concatenate(steps) if steps else np.zeros(0)
    return float(np.median(known)) if known.size else 0.0


def _pairs_needed(effect: float, deviation: float) -> int | None:
    """Pairs that show an effect of this size with 80 % probability; None beyond what anyone would run."""
    if effect <= 0:
        return None
    for pairs in range(2, MAX_PAIRS + 1):
        critical = stats.t.ppf(1 - DIFFERENCE_P / 2, pairs - 1)
        if stats.nct.sf(critical, pairs - 1, effect / max(deviation, 1e-12) * math.sqrt(pairs)) >= POWER:
            return pairs
    return None


def _called(a: str, b: str) -> tuple[str, str]:
    """How sentences call two arms: by their names, and by letters where alike or paths of traces."""
    paths = any("/" in name and "=" not in name for name in (a, b))
    return ("A", "B") if a == b or paths else (a, b)


def _change(ratio: float, a: str, b: str) -> str:
    if ratio > 10 or ratio < 0.1:
        return f"in {b} is {digits(ratio)} times that in {a}"
    return f"is {_apart(ratio)} in {b} than in {a}"


def _apart(ratio: float) -> str:
    return f"{percent(abs(ratio - 1))} {'higher' if ratio > 1 else 'lower'}"


def _difference_statement(
    names: tuple[str, str],
    ratio: Estimate,
    p_value: float,
    different: bool,
    equivalent: bool | None,
    margin: float,
    needed: int | None,
) -> str:
    interval = f"[{digits(ratio.low or 0)}, {digits(ratio.high or 0)}] at 90 %, {counted(ratio.n, 'pair')}"
    numbers = f"ratio {digits(ratio.value)} {interval}, p = {digits(p_value)}"
    head = f"Mean wait {_change(ratio.value, *names)}, {numbers}"
    within = f"within ±{percent(margin)}"
    if different and equivalent:
        return f"{head}: both hold, it differs by {percent(abs(ratio.value - 1))} and is the same {within}."
    if different:
        return f"{head}: it differs."
    if equivalent and ratio.low is not None and ratio.high is not None and not ratio.low <= 1 <= ratio.high:
        # Between the levels of the two tests, 5 % and 10 % two-sided: neither sentence alone would be true.
        return (
            f"{head}: the same {within}, and within that {_apart(ratio.value)}, as the interval leaves out "
            f"1; at {percent(DIFFERENCE_P)} the difference is not shown."
        )
    if equivalent:
        return f"{head}: the same {within}; a difference is not shown."
    repeats = f"about {counted(needed, 'pair')} would" if needed else "no reasonable number of repeats would"
    return f"{head}: not separated; {repeats}, if the difference is real."


# -- the cadence -----------------------------------------------------------------------------------------


def _claim(
    a: ArmSummary,
    b: ArmSummary,
    control: bool,
    cv: float | None,
    shortest: int,
    needed: int,
    lost: PhaseLock | None,
) -> CadenceClaim:
    """What can be claimed; ``lost`` where the workers of B have lost the phase of A at the same mean wait."""
    assert a.cadence is not None
    assert b.cadence is not None
    key, by_gaps = _would_claim(a, b, a.cadence, b.cadence)
    if key == "no_cadence":
        lost = None
    statement = by_gaps
    if lost is not None:
        key, statement = "gone", _out_of_phase(a, b, a.cadence, b.cadence, lost)
    if not control:
        return CadenceClaim(key, statement, shortest, needed)
    variation = "not known" if cv is None else percent(cv)
    # Workers that have been seen to lose their phase need not be given the time in which they would.
    if shortest < (needed if lost is None else MIN_CLAIM_DELIVERIES):
        return CadenceClaim(
            "refused",
            f"{counted(shortest, 'delivery', 'deliveries')} per pass cannot decide whether the cadence "
            "survives another in_order: workers that begin together stay in phase at first (variation of the "
            f"fetch time {variation}). Run at least {needed} per pass.",
            shortest,
            needed,
            short_claim=by_gaps,
        )
    if key == "survived" and cv is None:
        return CadenceClaim(
            "undecided",
            "The cadence is still there, but without fetch times it cannot be said whether the workers have "
            "lost the phase they began with.",
            shortest,
            needed,
        )
    late = b.cadence.late
    if key == "survived" and late is not None and late.verdict != "present":
        # What is there over all may be what is left of the phase that the workers began with.
        key = "gone" if late.verdict == "absent" else "undecided"
        over_all = f"{_called(a.name, b.name)[1]} over all: {_cadence_words(b.cadence)}"
        later = f"its later half: {_cadence_words(late)}"
        what = (
            f"The cadence of {b.cadence.period} is there at first and then goes"
            if key == "gone"
            else f"Whether the cadence of {b.cadence.period} survives to the end is undecided"
        )
        statement = f"{what} ({over_all}; {later})."
    return CadenceClaim(key, f"{statement} Variation of the fetch time {variation}.", shortest, needed)


def _would_claim(a: ArmSummary, b: ArmSummary, before: ArmCadence, after: ArmCadence) -> tuple[str, str]:
    name_a, name_b = _called(a.name, b.name)
    if before.verdict != "present":
        return (
            "no_cadence",
            f"{name_a} has no cadence of {before.period} to follow ({_cadence_words(before)}).",
        )
    if b.stall_share < FALLEN_AWAY * a.stall_share:
        return "gone", (
            f"The stalls themselves fall away: {percent(a.stall_share)} of deliveries in {name_a}, "
            f"{percent(b.stall_share)} in {name_b}."
        )
    words = _both(a, b, before, after)
    if after.verdict == "present":
        return "survived", f"The cadence of {before.period} survives ({words})."
    if after.verdict == "absent":
        return "gone", f"The cadence of {before.period} is gone ({words})."
    return "undecided", f"Whether the cadence of {before.period} survives is undecided ({words})."


def _out_of_phase(
    a: ArmSummary, b: ArmSummary, before: ArmCadence, after: ArmCadence, lost: PhaseLock
) -> str:
    text = f"The workers lose their phase: {lock_words(lost)}."
    if after.verdict == "present":
        text += (
            f" What is left of the cadence of {after.period} is that workers of equal speed repeat any "
            f"pattern every round ({_both(a, b, before, after)})."
        )
    return text


def _both(a: ArmSummary, b: ArmSummary, before: ArmCadence, after: ArmCadence) -> str:
    name_a, name_b = _called(a.name, b.name)
    return f"{name_a}: {_cadence_words(before)}; {name_b}: {_cadence_words(after)}"


def _cadence_words(cadence: ArmCadence) -> str:
    if cadence.by_again and cadence.again is not None and cadence.again_p is not None:
        again = cadence.again
        return (
            f"{percent(again.value)} of {counted(again.n or 0, 'stall')} have another one {cadence.period} "
            f"later [{percent(again.low or 0.0)}, {percent(again.high or 0.0)}], "
            f"p = {_p_words(cadence.again_p)}"
        )
    if cadence.multiples is None:
        return f"{counted(cadence.stalls, 'stall')}, no gaps"
    share = cadence.multiples
    p_value = "" if cadence.p_value is None else f", p = {_p_words(cadence.p_value)}"
    return (
        f"{percent(share.value)} of {counted(cadence.gaps, 'gap')} on it "
        f"[{percent(share.low or 0.0)}, {percent(share.high or 0.0)}]{p_value}"
    )


def _p_words(p_value: float) -> str:
    return f"under {CADENCE_P / 100:g}" if p_value < CADENCE_P / 100 else digits(p_value)
