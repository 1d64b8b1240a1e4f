"""Two traces or two sweeps side by side: what became different between them, before and after an upgrade.

Reads both and calls ``diagnose.compare``; unlike ones are refused there unless the caller allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traceml_lite import store
from traceml_lite._errors import ComparisonError, UsageError
from traceml_lite.diagnose.compare import compare_arms, compare_sweeps
from traceml_lite.diagnose.likeness import UnlikeError
from traceml_lite.experiment.analyse import first_stream, measured_passes
from traceml_lite.experiment.folder import SweepFolder, is_sweep
from traceml_lite.experiment.plan import SWEEP_BLOCK
from traceml_lite.experiment.streams import check_streams
from traceml_lite.records.run import MISSING, Run
from traceml_lite.records.sweep import ArmComparison, Condition, MeasuredPass, PassResult, PassStatus


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that two traces or sweeps have to say about each other."""

    a: str
    b: str
    arms: tuple[ArmComparison, ...]
    """One per condition that both have; one for two traces."""
    only_a: tuple[str, ...] = ()
    """Conditions of A that B does not have."""
    only_b: tuple[str, ...] = ()
    cpu_per_batch_ns: tuple[tuple[float | None, float | None], ...] = ()
    """Median CPU time of a fetch in A and in B, one pair per arm; None where it was not measured."""


def compare_paths(
    a: Path,
    b: Path,
    *,
    stall_ns: int | None = None,
    allow_different: bool = False,
    load: Callable[[Path], Run] = store.load,
) -> Comparison:
    """Compare what stands in two places.

    Args:
        a: A trace or a sweep; the reference.
        b: Another of the same kind.
        stall_ns: A wait from here on is a stall, nanoseconds; None takes it from A.
        allow_different: Compare unlike runs too, and name the differences.
        load: Reads a trace; by default ours only.

    Raises:
        UsageError: One is a trace and the other a sweep, or they are one and the same.
        TraceFormatError: One is neither, or is damaged; names the file.
        ComparisonError: They may not be compared, or have no condition in common.
    """
    if a.resolve() == b.resolve():
        raise UsageError(f"{a} and {b} are the same; expected two traces or two sweeps")
    kinds = [_kind(place, load) for place in (a, b)]
    if kinds[0] != kinds[1]:
        raise UsageError(f"{a} is a {kinds[0]} and {b} a {kinds[1]}; expected two of the same kind")
    try:
        if kinds[0] == "sweep":
            return _sweeps(a, b, stall_ns, allow_different)
        return _traces(a, b, stall_ns, allow_different, load)
    except UnlikeError as error:
        raise ComparisonError(
            f"the runs in {a} and {b} differ: {'; '.join(error.differences)}; to compare them all the same: "
            "--allow-different"
        ) from error


def _kind(place: Path, load: Callable[[Path], Run]) -> str:
    if is_sweep(place):
        return "sweep"
    if not store.is_trace(place):
        # Reading tells what is missing or damaged, in the words of every other command.
        load(place)
    return "trace"


def _traces(
    a: Path, b: Path, stall_ns: int | None, allow_different: bool, load: Callable[[Path], Run]
) -> Comparison:
    one, other = _as_pass(a, load), _as_pass(b, load)
    arms = compare_arms([one], [other], stall_ns=stall_ns, allow_different=allow_different)
    return Comparison(str(a), str(b), (arms,), cpu_per_batch_ns=((_cpu_ns([one]), _cpu_ns([other])),))


def _as_pass(place: Path, load: Callable[[Path], Run]) -> MeasuredPass:
    run = load(place)
    config = run.main.config
    # As in a sweep: what is queued before the first ask is not part of the steady state.
    warmup = (config.num_workers or 0) * (config.prefetch_factor or 2)
    if len(run.main.deliveries) <= warmup:
        warmup = 0
    result = PassResult(
        str(place), -1, "", status=PassStatus.DONE, deliveries=run.main.delivered, warmup=warmup
    )
    return MeasuredPass(Condition(str(place)), result, run)


def _sweeps(a: Path, b: Path, stall_ns: int | None, allow_different: bool) -> Comparison:
    first, second = (_swept(place) for place in (a, b))
    names_a, names_b = (list(dict.fromkeys(p.condition.name for p in s)) for s in (first, second))
    common = [name for name in names_a if name in names_b]
    if not common:
        raise ComparisonError(
            f"{a} and {b} have no condition in common: {', '.join(names_a)} in one, {', '.join(names_b)} in "
            "the other"
        )
    other_indices = _other_indices(a, b)
    if other_indices and not allow_different:
        raise ComparisonError(f"{other_indices}; to compare them all the same: --allow-different")
    kept = [[p for p in s if p.condition.name in common] for s in (first, second)]
    arms = compare_sweeps(kept[0], kept[1], stall_ns=stall_ns, allow_different=allow_different)
    by_name = [{name: [p for p in s if p.condition.name == name] for name in common} for s in kept]
    named = []
    for arm, name in zip(arms, common, strict=True):
        named.append(
            replace(
                arm,
                a=replace(arm.a, name=f"{a.name}: {name}"),
                b=replace(arm.b, name=f"{b.name}: {name}"),
                unlike=(*arm.unlike, other_indices) if other_indices else arm.unlike,
            )
        )
    return Comparison(
        str(a),
        str(b),
        tuple(named),
        tuple(name for name in names_a if name not in common),
        tuple(name for name in names_b if name not in common),
        tuple((_cpu_ns(by_name[0][name]), _cpu_ns(by_name[1][name])) for name in common),
    )


def _other_indices(a: Path, b: Path) -> str:
    """In words that two sweeps saw other indices; empty where they saw the same, or nobody can tell."""
    streams = {}
    for number, place in enumerate((a, b)):
        rows = first_stream(SweepFolder(place))
        if rows is not None:
            streams[number] = rows
    return f"{a} and {b} saw other indices" if check_streams(streams).same is False else ""


def _swept(place: Path) -> list[MeasuredPass]:
    passes = measured_passes(SweepFolder(place), block=SWEEP_BLOCK)
    if not passes:
        raise ComparisonError(f"{place}: no pass of this sweep has ended well")
    return passes


def _cpu_ns(passes: list[MeasuredPass]) -> float | None:
    """Median CPU time of a fetch, over all passes."""
    found = [column for column in (_known_cpu(one.run) for one in passes) if column is not None]
    values = np.concatenate(found) if found else np.zeros(0)
    return float(np.median(values)) if values.size else None


def _known_cpu(run: Run) -> NDArray[np.int64] | None:
    column = run.main.fetches.get("cpu_ns")
    return None if column is None else column[column != MISSING]
