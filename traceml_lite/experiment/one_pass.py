"""One pass from its plan to its record: the spec of its child, the page cache before it, its end afterwards.

What comes before and after a pass, and whether there is time for it, is the runner's business.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from traceml_lite import store
from traceml_lite._errors import TracemlLiteError
from traceml_lite.diagnose.words import percent
from traceml_lite.experiment import pagecache
from traceml_lite.experiment.atomic import write_json
from traceml_lite.experiment.child import OPENED, RESULT, SPEC, TRACE, Spec, spec_to_json
from traceml_lite.experiment.folder import SweepFolder
from traceml_lite.experiment.plan import Facts, Plan, PlannedPass, Request
from traceml_lite.experiment.process import ChildEnd, child_command, run_child, session_members
from traceml_lite.experiment.scout import (
    SCOUT_DELIVERIES,
    SCOUT_LIMIT_S,
    loader_trace,
    read_facts,
    tail,
)
from traceml_lite.experiment.settings import Setting, parse_settings
from traceml_lite.probe.files import read_opened
from traceml_lite.records.run import LoaderTrace
from traceml_lite.records.sweep import PassResult, PassStatus

SCOUT_ARM = "as-it-is"


# Looking at the open files of a pass from outside costs some milliseconds a process.
LOOK_EVERY_S = 0.5


def scout(request: Request, folder: SweepFolder, timeout_s: float) -> Facts:
    """Run the short first pass of the target as it is, and read what it tells.

    Raises:
        UsageError: The request cannot be carried out.
        TargetError: The pass failed.
    """
    # Refused before anything is started, where the texts alone tell.
    first = parse_settings(request.settings)[0]
    folder.write_request(request)
    place = _clear(folder.pass_folder(0, SCOUT_ARM))
    spec = replace(
        _spec(request, place, None, first),
        options={},
        deliveries=SCOUT_DELIVERIES,
        limit_s=SCOUT_LIMIT_S,
        loader=request.loader,
        note_files=request.cache != "as-is",
    )
    held: set[str] = set()
    end = _start(spec, place, first, timeout_s, _looker(held) if spec.note_files else None)
    facts = read_facts(place, folder.child_result(0, SCOUT_ARM), end.started_ns, request.loader)
    if spec.note_files:
        seen = [*read_opened(place / OPENED), *sorted(held)]
        folder.write_files(pagecache.with_siblings(pagecache.data_files(seen, without=[folder.path])))
    return facts


def run_one(
    request: Request,
    facts: Facts,
    plan: Plan,
    one: PlannedPass,
    folder: SweepFolder,
    *,
    results: Mapping[int, PassResult | None],
    timeout_s: float,
    tick: Callable[[int, float], None] | None = None,
) -> PassResult:
    """Run one pass and write what became of it.

    Args:
        request: What was asked for.
        facts: Of the first pass.
        plan: The whole plan; a staggered pass takes its period from the arm beside it.
        one: The pass.
        folder: Of the sweep.
        results: What became of the passes so far, by number.
        timeout_s: When it is taken to hang.
        tick: Called now and then while it runs.

    Returns:
        Its record. On any exception from ``tick``, KeyboardInterrupt too, the pass is ended and its record
        says that it was interrupted.
    """
    place = _clear(folder.pass_folder(one.number, one.arm))
    notes: list[str] = []
    spec = replace(
        _spec(request, place, facts, one.condition),
        deliveries=one.deliveries,
        control=one.control,
        endless=one.endless,
        repeat_after=one.repeat_after,
        note_files=request.cache == "cold",
    )
    if one.control == "stagger":
        shift_ns = _fetch_ns(folder, plan, one, results, facts)
        spec = replace(spec, shift_ns=shift_ns)
        notes.append(
            f"worker k begins its first fetch k/{one.workers} of {shift_ns / 1e6:.3g} ms after worker 0"
        )
    files = folder.read_files()
    cache = _prepare_cache(request.cache, files, notes)
    base = PassResult(
        condition=one.arm,
        number=one.number,
        direction="forward" if one.forward else "back",
        repeat=one.round // 2,
        deliveries=0,
        warmup=one.warmup,
        cache=cache.state,
        cache_share=cache.resident,
        block=one.block,
    )
    try:
        end = _start(spec, place, one.condition, timeout_s, tick)
    except BaseException:
        folder.write_result(
            one, replace(base, status=PassStatus.INTERRUPTED, reason="interrupted", notes=tuple(notes))
        )
        raise
    result = _read_end(base, one, facts.loader, folder, place, end, notes)
    if request.cache == "cold":
        seen = pagecache.data_files(read_opened(place / OPENED), without=[folder.path])
        folder.write_files(pagecache.with_siblings(list(dict.fromkeys([*files, *seen]))))
    folder.write_result(one, result)
    return result


def _read_end(
    base: PassResult,
    one: PlannedPass,
    loader: int,
    folder: SweepFolder,
    place: Path,
    end: ChildEnd,
    notes: list[str],
) -> PassResult:
    """What became of a pass, from how its process ended and what it left."""
    child = folder.child_result(one.number, one.arm)
    status, reason = PassStatus.DONE, ""
    if end.timed_out:
        status = PassStatus.TIMEOUT
        reason = f"not at its end after {end.wall_s:.0f} s; its {end.killed} processes were killed"
    elif child is None:
        status = PassStatus.FAILED
        reason = f"its process ended with exit code {end.exit_code} and no result.{tail(place)}"
    elif child["ended"] == "error":
        status, reason = PassStatus.FAILED, f"{child['kind']}: {child['message']}"
    elif end.killed:
        notes.append(f"{end.killed} processes of the target did not exit by themselves and were killed")
    seen = child["loaders"] if child is not None else []
    chosen = seen[loader] if loader < len(seen) else None
    notes += [note for one_seen in seen for note in one_seen["notes"]]
    if child is not None and child["indices"]:
        notes.append(f"indices not compared: {child['indices']}")
    delivered, start_s, mean_wait_ns = 0, None, None
    traced = store.is_trace(place / TRACE)
    if traced:
        try:
            run = store.load(place / TRACE)
            if run.loaders:
                trace = loader_trace(run, chosen) if chosen is not None else run.main
                delivered = trace.delivered
                waits = trace.deliveries["wait_ns"][one.warmup :]
                mean_wait_ns = float(waits.mean()) if len(waits) else None
                if delivered:
                    start_s = float(trace.deliveries["ask_ns"].min() - end.started_ns) / 1e9
        except (TracemlLiteError, ValueError) as error:
            if status is PassStatus.DONE:
                status, reason = PassStatus.FAILED, f"its trace cannot be read: {error}"
    if status is PassStatus.DONE:
        if chosen is None or delivered == 0:
            status, reason = PassStatus.FAILED, "the chosen loader delivered nothing"
        elif chosen["refused"]:
            status = PassStatus.FAILED
            reason = f"{', '.join(chosen['refused'])} could not be set: {'; '.join(chosen['notes'])}"
        elif delivered < one.deliveries:
            notes.append(f"the target ended after {delivered} of {one.deliveries} deliveries")
    return replace(
        base,
        status=status,
        reason=reason,
        trace=folder.relative_trace(one) if traced else None,
        deliveries=delivered,
        wall_s=end.wall_s,
        start_s=start_s,
        mean_wait_ns=mean_wait_ns,
        notes=tuple(notes),
    )


def _start(
    spec: Spec,
    place: Path,
    condition: Setting,
    timeout_s: float,
    tick: Callable[[int, float], None] | None,
) -> ChildEnd:
    write_json(place / SPEC, spec_to_json(spec))
    return run_child(
        child_command(place / SPEC),
        folder=place,
        done=place / RESULT,
        environment={**os.environ, **condition.environment},
        timeout_s=timeout_s,
        tick=tick,
    )


def _spec(
    request: Request,
    place: Path,
    facts: Facts | None,
    condition: Setting,
) -> Spec:
    return Spec(
        target=request.target,
        module=request.module,
        script=request.is_script,
        folder=str(place.resolve()),
        script_arguments=request.script_arguments,
        arguments={**dict(request.arguments), **condition.arguments},
        options=dict(condition.options),
        loader=facts.loader if facts is not None else None,
        seed=request.seed,
        consumer=request.consumer,
    )


def _looker(held: set[str]) -> Callable[[int, float], None]:
    """Collects the files that the processes of a session hold, now and then."""
    last_s = 0.0

    def look(session: int, now_s: float) -> None:
        nonlocal last_s
        if now_s - last_s >= LOOK_EVERY_S:
            last_s = now_s
            held.update(pagecache.held_files(session_members(session)))

    return look


def _prepare_cache(wanted: str, files: list[str], notes: list[str]) -> pagecache.CacheState:
    if wanted == "cold":
        pagecache.evict(files)
    elif wanted == "warm" and files:
        state = pagecache.cache_state(files)
        if state.state == "warm":
            return state
        if not pagecache.warm(files, available_bytes=pagecache.available_bytes()):
            notes.append(
                "the data files are larger than half of the free memory and were not read in advance"
            )
    if wanted == "as-is":
        return pagecache.CacheState("unknown", 0, 0, None)
    state = pagecache.cache_state(files)
    if wanted == "cold" and state.state not in ("cold", "no files"):
        share = "an unknown share" if state.resident is None else percent(state.resident)
        notes.append(f"cold was asked for, but {share} of the data files' bytes stayed in memory")
    return state


def _fetch_ns(
    folder: SweepFolder,
    plan: Plan,
    one: PlannedPass,
    results: Mapping[int, PassResult | None],
    facts: Facts,
) -> int:
    """Median fetch of the base arm beside a staggered one: the period over which starts are spread."""
    for other in plan.passes:
        result = results[other.number]
        if (
            other.block != one.block
            or other.control
            or result is None
            or result.status is not PassStatus.DONE
        ):
            continue
        child = folder.child_result(other.number, other.arm)
        place = folder.trace(result)
        if child is None or place is None:
            continue
        median = median_fetch_ns(loader_trace(store.load(place), child["loaders"][facts.loader]))
        if median is not None:
            return median
    per_worker_s = facts.fetch_s if facts.fetch_s is not None else facts.delivery_s * one.workers
    return int(per_worker_s * max(1.0, one.workers / facts.cpus) * 1e9)


def median_fetch_ns(trace: LoaderTrace) -> int | None:
    """Median duration of a loader's fetches; None where none was seen."""
    start, end = trace.fetches.get("fetch_start_ns"), trace.fetches.get("fetch_end_ns")
    if start is None or end is None:
        return None
    known = (start >= 0) & (end > start)
    return int(np.median((end - start)[known])) if known.any() else None


def _clear(place: Path) -> Path:
    """An empty folder; what an earlier, unfinished try left is removed."""
    if place.exists():
        shutil.rmtree(place)
    place.mkdir(parents=True)
    return place
